/* SPDX-License-Identifier: MIT
 * A cascade: each layer has the queries and keys of the model whose layers before it have their students. */
#include "distill/cascade.h"
#include "distill/reading.h"
#include "distill/training.h"
#include "tests/distill/scene.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LAYERS = 8 };

/* Queries and keys where the first `layers` layers have their students. */
static activations read_by(const scene *s, const student *by, int64_t layers)
{
    lm_options options = lm_options_default();
    lm_features features[LAYERS] = { { 0 } };
    int64_t lengths[SCENE_WINDOWS];
    lm_model *m;
    reading r;
    activations a = { 0 };
    io_error error;
    if (reading_open(&r, by, &s->on, &error)) fail_msg("%s", error.text);
    memcpy(features, r.layers, (size_t)layers * sizeof *features);
    for (int w = 0; w < SCENE_WINDOWS; w++)
        lengths[w] = s->of.begins[w + 1] - s->of.begins[w];
    options.features = features;
    if (lm_model_open(&m, &s->on, s->files, &options, &error) ||
        activations_open_texts(&a, m, s->ids[0], lengths, SCENE_WINDOWS, NULL, NULL, &error))
        fail_msg("%s", error.text);
    lm_model_close(m);
    reading_close(&r);
    return a;
}

/* A text of one token that has states is decoded, which rounds otherwise. */
static void expect_same_rows(const float *got, const float *want, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        assert_true(fabs((double)got[i] - (double)want[i]) < 1e-5 * (1 + fabs((double)want[i])));
}

static void expect_same(const activations *got, const activations *all, int64_t layer)
{
    const int64_t count = all->begins[all->windows] * all->channels;
    assert_true(got->scale[0] >= all->scale[layer] && got->scale[0] <= all->scale[layer]);
    expect_same_rows(got->q[0], all->q[layer], count * all->heads_q);
    expect_same_rows(got->k[0], all->k[layer], count * all->heads_kv);
}

static void fit_layer(cascade *c)
{
    training_options o = training_options_default();
    training t;
    io_error error;
    o.steps = 3, o.batch = 2, o.threads = 1, o.seed = 4;
    if (student_calibrate(&c->one, &c->at, true, 1, &error) ||
        student_begin(&c->one, &c->at, STUDENT_PAIRS, 5, 1, &error) ||
        training_open(&t, &c->one, &c->at, &o, &error))
        fail_msg("%s", error.text);
    while (training_taken(&t) < o.steps)
        training_step(&t);
    training_close(&t);
}

static void check(const char *name, bool uneven, bool shared)
{
    int64_t features[LAYERS];
    scene s;
    student by;
    cascade c;
    io_error error;
    scene_open(&s, name);
    if (uneven) scene_uneven(&s);
    for (int64_t i = 0; i < LAYERS; i++)
        features[i] = 6 + i;
    if (student_open(&by, &s.of, features, shared, &error)) fail_msg("%s", error.text);
    if (cascade_open(&c, s.model, &by, &s.of, s.ids[0], &error)) fail_msg("%s", error.text);
    for (int64_t layer = 0; layer < by.layers; layer++) {
        activations want = read_by(&s, &by, layer);
        assert_int_equal(c.layer, layer);
        if (cascade_look(&c, &error)) fail_msg("%s", error.text);
        expect_same(&c.at, &want, layer);
        assert_ptr_equal(c.one.layer, &by.layer[layer]);
        fit_layer(&c);
        if (cascade_pass(&c, &error)) fail_msg("%s", error.text);
        const size_t bytes = (size_t)(SCENE_TOKENS * s.of.heads_q * s.of.channels) * sizeof(float);
        if (layer > 0) assert_memory_not_equal(want.q[layer], s.of.q[layer], bytes);
        activations_close(&want);
    }
    cascade_close(&c);
    student_close(&by);
    scene_close(&s);
}

static void test_layers(void **state)
{
    (void)state;
    check("llama", false, true);
    check("gpt2-scaled", true, false);
    check("bert", true, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_layers) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
