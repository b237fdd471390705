/* SPDX-License-Identifier: MIT
 * Gains of features beside a window are the best ones, pair by pair; pairs that are far; training beside a
 * window. */
#include "distill/gains.h"
#include "distill/training.h"
#include "tests/distill/scene.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SINKS = 2, WINDOW = 5, FEATURES = 6, MOST = 64, LAYERS = 8, STEPS = 60 };

static student begin(const scene *s, bool shared)
{
    int64_t each[LAYERS];
    student made;
    io_error error;
    for (int i = 0; i < LAYERS; i++)
        each[i] = FEATURES + i % 2;
    if (student_open(&made, &s->of, each, shared, &error)) fail_msg("%s", error.text);
    if (student_calibrate(&made, &s->of, true, 2, &error)) fail_msg("%s", error.text);
    if (student_begin(&made, &s->of, STUDENT_PAIRS, 7, 2, &error)) fail_msg("%s", error.text);
    return made;
}

static double dot(const double *a, const double *b, int64_t d)
{
    double sum = 0;
    for (int64_t c = 0; c < d; c++)
        sum += a[c] * b[c];
    return sum;
}

/* The estimate of e^{x.y}. */
static double estimate(const student_layer *l, int64_t head, const double *x, const double *y, int64_t d)
{
    double sum = 0;
    for (int64_t m = head * l->features; m < (head + 1) * l->features; m++) {
        sum += exp(l->log_alpha[m] + dot(l->z + m * d, x, d) - dot(x, x, d) / 2 + dot(l->z + m * d, y, d) -
                   dot(y, y, d) / 2);
    }
    return sum / (double)l->features;
}

/* Of a query head over all windows: the sum over rows of squares between softmax and a gain's rows. */
static double squares(const student *by, const scene *s, int64_t layer, int64_t query, double gain)
{
    double x[SCENE_TOKENS * MOST], y[SCENE_TOKENS * MOST], sum = 0;
    const student_layer *l = &by->layer[layer];
    const int64_t head = query / by->queries, d = by->channels;
    for (int64_t window = 0; window < SCENE_WINDOWS; window++) {
        student_rows(by, &s->of, layer, head, query % by->queries, window, x, y);
        for (int64_t t = SINKS + WINDOW; t < SCENE_TOKENS; t++) {
            double p[SCENE_TOKENS], got[SCENE_TOKENS], all = 0, all_got = 0;
            for (int64_t j = 0; j <= t; j++) {
                const bool far = j >= SINKS && t - j >= WINDOW;
                p[j] = exp(dot(x + t * d, y + j * d, d));
                got[j] = far ? exp(gain) * estimate(l, head, x + t * d, y + j * d, d) : p[j];
                all += p[j], all_got += got[j];
            }
            for (int64_t j = 0; j <= t; j++)
                sum += (p[j] / all - got[j] / all_got) * (p[j] / all - got[j] / all_got);
        }
    }
    return sum;
}

static void gains_are_the_best(void **state)
{
    static const double others[] = { -1e-2, 1e-2, -0.5, 0.5, -3, 3, -10, 10 };
    (void)state;
    for (int shared = 0; shared < 2; shared++) {
        scene s;
        io_error error;
        double largest = 0;
        scene_open(&s, "llama");
        student by = begin(&s, shared), other = begin(&s, shared);
        assert_int_equal(student_gains(&by, &s.of, SINKS, WINDOW, 1, &error), 0);
        assert_int_equal(student_gains(&other, &s.of, SINKS, WINDOW, 3, &error), 0);
        for (int64_t n = 0; n < by.layers * s.config->heads_q; n++) {
            const int64_t layer = n / s.config->heads_q, query = n % s.config->heads_q;
            const double gain = by.layer[layer].gain[query], least = squares(&by, &s, layer, query, gain);
            for (size_t i = 0; i < sizeof others / sizeof *others; i++)
                assert_true(squares(&by, &s, layer, query, gain + others[i]) >= least);
            largest = fmax(largest, fabs(gain));
            assert_true(gain == other.layer[layer].gain[query]);
        }
        assert_true(largest > 0.01);
        /* A text that ends before anything is far. */
        assert_int_equal(student_gains(&by, &s.of, SINKS, SCENE_TOKENS, 2, &error), 0);
        assert_true(by.layer[0].gain[0] == 0);
        student_close(&by), student_close(&other);
        scene_close(&s);
    }
}

/* Where the last token alone has one key that is far, all pairs are that one, of each window: log alpha is
 * that of so many normal distributions, and of N(0, I). */
static void pairs_are_far(void **state)
{
    enum { ONE = SCENE_TOKENS - 2 };
    double x[SCENE_TOKENS * MOST], y[SCENE_TOKENS * MOST], sum[SCENE_WINDOWS][MOST];
    scene s;
    io_error error;
    (void)state;
    scene_open(&s, "llama");
    student by = begin(&s, false);
    const int64_t d = by.channels, M = by.layer[1].features;
    student_beside(&by, 1, ONE);
    assert_int_equal(student_begin(&by, &s.of, STUDENT_PAIRS, 3, 2, &error), 0);
    for (int64_t w = 0; w < SCENE_WINDOWS; w++) {
        student_rows(&by, &s.of, 1, 0, 0, w, x, y);
        for (int64_t c = 0; c < d; c++)
            sum[w][c] = x[(SCENE_TOKENS - 1) * d + c] + y[d + c];
    }
    for (int64_t m = 0; m < M; m++) {
        const double *z = by.layer[1].z + m * d;
        double ratio = 0.05;
        for (int64_t w = 0; w < SCENE_WINDOWS; w++)
            ratio += 0.95 / SCENE_WINDOWS * exp(dot(z, sum[w], d) - dot(sum[w], sum[w], d) / 2);
        assert_true(fabs(by.layer[1].log_alpha[m] + log(ratio)) < 1e-4);
    }
    student_close(&by);
    scene_close(&s);
}

/* The sum over heads of the loss beside a window falls, and the result is better there than that of the loss
 * over whole rows. */
static double trained(const scene *s, bool beside, double *before)
{
    io_error error;
    training t;
    student by = begin(s, false);
    training_options o = training_options_default(), judge = o;
    o.steps = STEPS, o.batch = SCENE_WINDOWS, o.threads = 2;
    o.sinks = beside ? SINKS : 0, o.window = beside ? WINDOW : 0;
    judge.steps = 1, judge.batch = SCENE_WINDOWS, judge.threads = 2, judge.rate = judge.rate_log_alpha = 0;
    judge.sinks = SINKS, judge.window = WINDOW;
    double sums[2] = { 0 };
    for (int when = 0; when < 2; when++) {
        if (student_gains(&by, &s->of, SINKS, WINDOW, 2, &error)) fail_msg("%s", error.text);
        if (training_open(&t, &by, &s->of, &judge, &error)) fail_msg("%s", error.text);
        training_step(&t);
        for (int64_t n = 0; n < by.layers * by.heads; n++)
            sums[when] += t.losses[n];
        training_close(&t);
        if (when == 1) break;
        if (training_open(&t, &by, &s->of, &o, &error)) fail_msg("%s", error.text);
        while (training_taken(&t) < STEPS)
            training_step(&t);
        training_close(&t);
    }
    student_close(&by);
    *before = sums[0];
    return sums[1];
}

static void training_beside_a_window(void **state)
{
    double before, same;
    scene s;
    (void)state;
    scene_open(&s, "llama");
    const double joint = trained(&s, true, &before), whole = trained(&s, false, &same);
    printf("loss %.6f, trained beside a window %.6f, by whole rows %.6f\n", before, joint, whole);
    assert_true(before == same && joint < before && joint < whole);
    scene_close(&s);
}

static void other_losses_are_refused(void **state)
{
    io_error error;
    training t;
    scene s;
    (void)state;
    scene_open(&s, "llama");
    student by = begin(&s, false);
    training_options o = training_options_default();
    o.steps = 1, o.batch = 1, o.window = WINDOW, o.loss = FEATURE_LOSS_L2;
    assert_int_equal(training_open(&t, &by, &s.of, &o, &error), EXIT_USAGE);
    assert_non_null(strstr(error.text, "by the softmax loss"));
    student_close(&by);
    scene_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gains_are_the_best),
        cmocka_unit_test(pairs_are_far),
        cmocka_unit_test(training_beside_a_window),
        cmocka_unit_test(other_losses_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
