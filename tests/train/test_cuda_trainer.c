/* SPDX-License-Identifier: MIT
 * The loop on a GPU, where steps are recorded and replayed: pieces, stacks and checkpoints change no bit, and
 * float32 finds what the CPU finds. */
#include "tests/train/course.h"
#include "train/checkpoint.h"

#include "cli/device.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { SKIPPED = 77, MOST_STEPS = 1 << 20 };

/* As wide as the models of the papers. */
static course wide_course(const char *name, bool words, const machine *on)
{
    course c = words ? course_recall(name, 2) : course_regression(name, 2);
    c.on = *on;
    c.options.shape.width = 128;
    for (int m = 0; m < 2; m++) {
        c.each[m].from.recall.length = 24;
        c.each[m].from.recall.words = 64;
        c.each[m].from.regression.dim_x = c.each[m].from.regression.dim_y = 16;
    }
    return c;
}

static machine open_gpu(loam_dtype operand)
{
    machine on;
    loam_error error;
    if (machine_cuda(&on, operand, &error)) fail_msg("%s", error.text);
    return on;
}

static void check_pieces(const char *what, const course *c)
{
    io_error error;
    bool found;
    trainer whole, alone, part;
    course_open(&whole, c), course_open(&part, c);
    course_advance(&whole, MOST_STEPS);
    for (int64_t steps = 1; !trainer_finished(&part); steps++) {
        course_advance(&part, steps);
        if (checkpoint_save(&part, "gpu.st", &error)) fail_msg("%s", error.text);
        trainer_close(&part);
        course_open(&part, c);
        if (checkpoint_load(&part, "gpu.st", &found, &error)) fail_msg("%s", error.text);
    }
    for (int64_t m = 0; m < c->models; m++) {
        const course one = course_alone(c, m);
        course_same(what, &whole, m, &part, m, true);
        course_open(&alone, &one);
        course_advance(&alone, MOST_STEPS);
        course_same(what, &whole, m, &alone, 0, true);
        trainer_close(&alone);
    }
    trainer_close(&whole), trainer_close(&part);
    assert_int_equal(unlink("gpu.st"), 0);
}

static void check_type(loam_dtype operand)
{
    static const char *const names[] = { "softmax", "lla", "gated-delta" };
    machine on = open_gpu(operand);
    for (int i = 0; i < 3; i++) {
        course c = wide_course(names[i], true, &on);
        check_pieces(names[i], &c);
        c = wide_course(names[i], false, &on);
        c.options.muon = true;
        check_pieces(names[i], &c);
    }
    course text = course_text("lla", 2);
    text.on = on, text.options.shape.width = 128;
    check_pieces("text", &text);
    text.options.batches = 3;
    check_pieces("text in batches", &text);
    machine_close(&on);
}

static void float32_in_pieces(void **state)
{
    (void)state;
    check_type(LOAM_F32);
}

static void bf16_in_pieces(void **state)
{
    (void)state;
    check_type(LOAM_BF16);
}

static void expect_near(const char *what, double got, double want)
{
    if (!(fabs(got - want) <= 1e-3 * fmax(1, fabs(want)))) fail_msg("%s: %g, expected %g", what, got, want);
}

/* Losses and gradients of the first tests; shares of solvers only roughly, which roundings decide. */
static void the_cpu_finds_the_same(void **state)
{
    (void)state;
    const machine cpu = machine_cpu(LOAM_F32, 0);
    machine on = open_gpu(LOAM_F32);
    for (int words = 0; words < 2; words++) {
        const course here = wide_course("lla", words, &cpu), there = wide_course("lla", words, &on);
        trainer a, b;
        course_open(&a, &here), course_open(&b, &there);
        course_advance(&a, 8), course_advance(&b, 8);
        for (int64_t test = 0; test < 2; test++) {
            const train_record *want = trainer_record(&a, 1, test), *got = trainer_record(&b, 1, test);
            double solved = 0;
            expect_near("train loss", got->train_loss, want->train_loss);
            expect_near("test loss", got->test_loss, want->test_loss);
            expect_near("gradient", got->gradient, want->gradient);
            for (int i = 0; i < TRAIN_SOLVERS; i++)
                solved += got->solved[i];
            expect_near("rows", solved, 1);
            assert_true(b.times[test] > 0);
        }
        trainer_close(&a), trainer_close(&b);
    }
    machine_close(&on);
}

static void too_wide_is_refused(void **state)
{
    (void)state;
    machine on = open_gpu(LOAM_BF16);
    course c = wide_course("softmax", true, &on);
    loam_error error = { 0 };
    trainer t;
    c.options.shape.heads = 8;
    c.options.shape.width = 1088;
    assert_int_equal(trainer_open(&t, &on, &c.options, c.each, c.models, &error), LOAM_EUNSUPPORTED);
    assert_string_equal(error.text, "width is 1088; expected at most 1024 on a GPU");
    c.options.shape.width = 1024;
    course_open(&t, &c);
    course_advance(&t, 2);
    trainer_close(&t);
    machine_close(&on);
}

/* Another GPU, or another version of its products, may sum in another order. */
static void a_checkpoint_names_its_gpu(void **state)
{
    (void)state;
    machine on = open_gpu(LOAM_BF16);
    const course c = wide_course("softmax", true, &on);
    char name[MACHINE_NAME], tail[16] = "";
    io_error error;
    bool found;
    trainer t;
    machine_name(&on, name);
    printf("%s\n", name);
    assert_int_equal(strncmp(name, "cuda NVIDIA", 11), 0);
    assert_true(sscanf(strrchr(name, ','), ", cuBLASLt %15[1-9]", tail) == 1);
    course_open(&t, &c);
    assert_int_equal(checkpoint_save(&t, "gpu.st", &error), 0);
    assert_int_equal(checkpoint_load(&t, "gpu.st", &found, &error), 0);
    assert_true(found);
    /* As long a line, of a neighbour. */
    assert_int_equal(system("sed -i 's/cuda NVIDIA/cuda NVIDIB/' gpu.st"), 0);
    assert_int_not_equal(checkpoint_load(&t, "gpu.st", &found, &error), 0);
    if (!strstr(error.text, "it has 'f32 bf16 cuda NVIDIB")) fail_msg("%s", error.text);
    trainer_close(&t);
    assert_int_equal(unlink("gpu.st"), 0);
    machine_close(&on);
}

/* Of all its tests, or of those that the argument, a pattern, names. */
int main(int argc, char **argv)
{
    if (!device_count()) {
        print_message("skipped: no CUDA device\n");
        return SKIPPED;
    }
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(float32_in_pieces),      cmocka_unit_test(bf16_in_pieces),
        cmocka_unit_test(the_cpu_finds_the_same), cmocka_unit_test(a_checkpoint_names_its_gpu),
        cmocka_unit_test(too_wide_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
