/* SPDX-License-Identifier: MIT */
#include "tests/train/course.h"

#include "tests/support/memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static course course_of(const char *name, int64_t models)
{
    course c = { .on = machine_cpu(LOAM_F32, 2), .models = models };
    c.options = trainer_options_default(mixer_find(name));
    c.options.shape.batch = 4;
    c.options.shape.width = 16;
    c.options.steps = 11;
    c.options.warm = 3;
    c.options.test_every = 4;
    for (int64_t m = 0; m < models; m++)
        c.each[m] = (trainee){ .seed = 5 - (uint64_t)m / 2,
                               .rate = 3e-3 * (double)(1 + m),
                               .muon_rate = 0.02 };
    return c;
}

course course_recall(const char *name, int64_t models)
{
    course c = course_of(name, models);
    for (int64_t m = 0; m < models; m++)
        c.each[m].from = (train_source){ .task = TRAIN_RECALL,
                                         .recall = { .length = 12, .words = 16, .fill = true },
                                         .part = { { 2, { 4, 3 } }, { 3, { 6, 4 } } } };
    return c;
}

course course_regression(const char *name, int64_t models)
{
    course c = course_of(name, models);
    for (int64_t m = 0; m < models; m++)
        c.each[m].from = (train_source){ .task = TRAIN_REGRESSION,
                                         .regression = { 8, 8 >> m, 3, 2, 4, 0.1 },
                                         .part = { { 0, { 13, 5 } } } };
    return c;
}

course course_text(const char *name, int64_t models)
{
    enum { LENGTH = 16, WINDOWS = 5 };
    static const uint16_t prose[] =
        u"A line of the best fit through the points that are near says what a mean cannot "
        u"say: which way they go. Where keys lie to one side of a query the mean of their "
        u"values is off to that side, and the line is not. It costs a solve for each.";
    static const int64_t count = sizeof prose / sizeof *prose - 1, test = LENGTH * WINDOWS + 3;
    course c = course_of(name, models);
    for (int64_t m = 0; m < models; m++)
        c.each[m].from = (train_source){
            .task = TRAIN_TEXT,
            .text = { LENGTH, 128, { prose, prose + count - test }, { count - test, test }, 1 },
            .part = { { 0, { 48, WINDOWS } } },
        };
    return c;
}

course course_stopping(void)
{
    course c = course_recall("softmax", 2);
    c.options.steps = 120, c.options.test_every = 10;
    c.options.stop = 0.3;
    c.options.shape.batch = 16;
    c.each[0].rate = 0.02, c.each[1].rate = 0;
    for (int m = 0; m < 2; m++)
        c.each[m].from.part[0].examples[TRAIN_SPLIT_TRAIN] = 1000;
    return c;
}

course course_alone(const course *all, int64_t m)
{
    course c = *all;
    c.each[0] = all->each[m];
    c.models = 1;
    return c;
}

void course_open(trainer *t, const course *c)
{
    loam_error error;
    if (trainer_open(t, &c->on, &c->options, c->each, c->models, &error)) fail_msg("%s", error.text);
}

void course_advance(trainer *t, int64_t steps)
{
    loam_error error;
    if (trainer_advance(t, steps, 1e9, &error)) fail_msg("%s", error.text);
}

/* Model m of an array of the machine's; free it. */
static char *copy_of(const trainer *t, matrix a, int64_t m)
{
    const size_t bytes = (size_t)(a.model * matrix_bytes_each(a));
    char *copy = memory_zeroed(bytes, 1);
    loam_error error;
    if (machine_download(t->on, copy, (char *)a.data + (size_t)m * bytes, bytes, &error))
        fail_msg("%s", error.text);
    return copy;
}

static void same_array(const char *what, const char *name, const trainer *t, matrix a, int64_t m,
                       const trainer *other, matrix b, int64_t n)
{
    char *one = copy_of(t, a, m), *two = copy_of(other, b, n);
    if (memcmp(one, two, (size_t)(a.model * matrix_bytes_each(a))) != 0)
        fail_msg("%s: %s has other bits", what, name);
    free(one), free(two);
}

void course_same(const char *what, const trainer *t, int64_t a, const trainer *other, int64_t b, bool moments)
{
    int count;
    const parameter *list = model_parameters(t->net, &count), *with = model_parameters(other->net, &count);
    if (t->tested[a] != other->tested[b])
        fail_msg("%s: %d records and %d", what, (int)t->tested[a], (int)other->tested[b]);
    assert_memory_equal(trainer_record(t, a, 0), trainer_record(other, b, 0),
                        (size_t)t->most * sizeof(train_record));
    for (int i = 0; i < count; i++) {
        same_array(what, list[i].name, t, list[i].x, a, other, with[i].x, b);
        if (!moments) continue;
        same_array(what, list[i].name, t, list[i].m, a, other, with[i].m, b);
        same_array(what, list[i].name, t, list[i].v, a, other, with[i].v, b);
    }
}
