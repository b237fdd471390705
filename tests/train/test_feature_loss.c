/* SPDX-License-Identifier: MIT
 * Losses of positive features against sums over all pairs and features, and their gradients against central
 * differences; where they are 0; large numbers. */
#include "tests/support/memory.h"
#include "tests/support/random.h"
#include "train/feature_loss.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { T = 70, D = 3, M = 5 };

typedef struct scene {
    feature_loss loss;
    double x[T * D], y[T * D], z[M * D], log_alpha[M];
    double z_keys[M * D], grad_z[M * D], grad_z_keys[M * D], grad_log_alpha[M];
    double *work;
} scene;

static void make(scene *s, feature_loss_kind kind, bool causal, double size)
{
    rng r = rng_make(31, 1);
    memset(s, 0, sizeof *s);
    rng_fill_normal(&r, s->x, T * D, 0, size);
    rng_fill_normal(&r, s->y, T * D, 0, size);
    rng_fill_normal(&r, s->z, M * D, 0, 1);
    rng_fill_normal(&r, s->log_alpha, M, 0, 1);
    s->loss = (feature_loss){ kind, causal, 1.5, 0, 0, 0, T, D, M, s->x, s->y, s->z, s->log_alpha, NULL };
    s->work = memory_zeroed(feature_loss_doubles(&s->loss), sizeof *s->work);
}

/* Keys have a z of their own. */
static void untie(scene *s)
{
    rng r = rng_make(32, 1);
    rng_fill_normal(&r, s->z_keys, M * D, 0, 1);
    s->loss.z_keys = s->z_keys;
}

static double run(scene *s)
{
    memset(s->grad_z, 0, sizeof s->grad_z);
    memset(s->grad_z_keys, 0, sizeof s->grad_z_keys);
    memset(s->grad_log_alpha, 0, sizeof s->grad_log_alpha);
    return feature_loss_run(&s->loss, s->grad_z, s->grad_z_keys, s->grad_log_alpha, s->work);
}

static double dot(const double *a, const double *b)
{
    double sum = 0;
    for (int c = 0; c < D; c++)
        sum += a[c] * b[c];
    return sum;
}

static double estimate(const scene *s, const double *x, const double *y)
{
    double sum = 0;
    for (int m = 0; m < M; m++) {
        const double *z = s->z + m * D, *keys = s->loss.z_keys ? s->z_keys + m * D : z;
        sum += exp(dot(z, x) + dot(keys, y) - dot(x, x) / 2 - dot(y, y) / 2 + s->log_alpha[m]) / M;
    }
    return sum;
}

/* The estimate, but beside a window what it is the estimate of. */
static double weight(const scene *s, int t, int j)
{
    const feature_loss *l = &s->loss;
    const double *x = s->x + t * D, *y = s->y + j * D;
    if (l->window == 0) return estimate(s, x, y);
    return j < l->sinks || t - j < l->window ? exp(dot(x, y)) : exp(l->gain) * estimate(s, x, y);
}

/* From the definitions, pair by pair. */
static double direct(const scene *s)
{
    const feature_loss *l = &s->loss;
    double loss = 0, pairs = 0;
    for (int t = 0; t < T; t++) {
        const int end = l->causal ? t + 1 : T;
        double sum = 0, sum_of_estimates = 0;
        for (int j = 0; j < end; j++) {
            sum += exp(dot(s->x + t * D, s->y + j * D));
            sum_of_estimates += weight(s, t, j);
        }
        for (int j = 0; j < end; j++, pairs++) {
            const double K = exp(dot(s->x + t * D, s->y + j * D)), k = weight(s, t, j),
                         off = l->kind == FEATURE_LOSS_L2 ? exp(-l->largest) * (k - K) : (k - K) / sum;
            loss += l->kind == FEATURE_LOSS_SOFTMAX ? -K / sum * log(k / sum_of_estimates) : off * off;
        }
    }
    return loss / (l->kind == FEATURE_LOSS_L2 ? pairs : T);
}

static void sums_over_pairs(void **state)
{
    (void)state;
    static scene s;
    for (int kind = FEATURE_LOSS_SOFTMAX; kind <= FEATURE_LOSS_L2; kind++) {
        for (int how = 0; how < 4; how++) {
            const int causal = how % 2;
            make(&s, (feature_loss_kind)kind, causal, 0.8);
            if (how > 1) untie(&s);
            const double got = run(&s), want = direct(&s);
            if (!(fabs(got - want) < 1e-12 * want)) fail_msg("%d, %d: %g, expected %g", kind, how, got, want);
            free(s.work);
        }
    }
}

/* Softmax beside a window: sizes of sinks and window, of which the last leave nothing to features. */
static const int64_t beside[][2] = { { 0, 1 }, { 3, 7 }, { 2, 64 }, { 3, 67 }, { 70, 1 } };
enum { BESIDE = sizeof beside / sizeof *beside, NOTHING = 2 };

static void make_beside(scene *s, int n)
{
    make(s, FEATURE_LOSS_SOFTMAX, true, 0.8);
    s->loss.sinks = beside[n][0], s->loss.window = beside[n][1], s->loss.gain = 0.7;
}

static void sums_beside_a_window(void **state)
{
    (void)state;
    static scene s;
    for (int n = 0; n < BESIDE; n++) {
        make_beside(&s, n);
        const double got = run(&s), want = direct(&s);
        if (!(fabs(got - want) < 1e-12 * want)) fail_msg("%d: %g, expected %g", n, got, want);
        for (int e = 0; e < M * D; e++)
            assert_true((s.grad_z[e] == 0) == (n >= BESIDE - NOTHING));
        free(s.work);
    }
}

static void expect_difference(scene *s, double *at, double gradient, double size)
{
    static const double places[4] = { -2, -1, 1, 2 };
    const double middle = *at, step = 1e-3;
    double value[4];
    for (int i = 0; i < 4; i++) {
        *at = middle + places[i] * step;
        value[i] = run(s);
    }
    *at = middle;
    const double want = (8 * (value[2] - value[1]) - (value[3] - value[0])) / (12 * step);
    if (!(fabs(gradient - want) < 1e-6 * size))
        fail_msg("kind %d, causal %d: %g, expected %g, of %g", (int)s->loss.kind, s->loss.causal, gradient,
                 want, size);
}

static void gradients(void **state)
{
    (void)state;
    static scene s;
    for (int kind = FEATURE_LOSS_SOFTMAX; kind <= FEATURE_LOSS_L2; kind++) {
        for (int how = 0; how < 4; how++) {
            double z[M * D], keys[M * D], alpha[M], size = 0;
            make(&s, (feature_loss_kind)kind, how % 2, 0.8);
            if (how > 1) untie(&s);
            run(&s);
            memcpy(z, s.grad_z, sizeof z);
            memcpy(keys, s.grad_z_keys, sizeof keys);
            memcpy(alpha, s.grad_log_alpha, sizeof alpha);
            for (int e = 0; e < M * D; e++)
                size = hypot(size, z[e]);
            assert_true(size > 0);
            for (int e = 0; e < M * D; e++) {
                expect_difference(&s, &s.z[e], z[e], size);
                expect_difference(&s, &s.z_keys[e], keys[e], size);
                assert_true((keys[e] == 0) == (how < 2));
            }
            for (int m = 0; m < M; m++)
                expect_difference(&s, &s.log_alpha[m], alpha[m], size);
            free(s.work);
        }
    }
}

static void gradients_beside_a_window(void **state)
{
    (void)state;
    static scene s;
    for (int n = 0; n < BESIDE - NOTHING; n++) {
        double z[M * D], alpha[M], size = 0;
        make_beside(&s, n);
        run(&s);
        memcpy(z, s.grad_z, sizeof z);
        memcpy(alpha, s.grad_log_alpha, sizeof alpha);
        for (int e = 0; e < M * D; e++)
            size = hypot(size, z[e]);
        for (int e = 0; e < M * D; e++)
            expect_difference(&s, &s.z[e], z[e], size);
        for (int m = 0; m < M; m++)
            expect_difference(&s, &s.log_alpha[m], alpha[m], size);
        free(s.work);
    }
}

/* Gradients are added to what is there; softmax does not see a factor of all features. */
static void added(void **state)
{
    (void)state;
    static scene s;
    make(&s, FEATURE_LOSS_SOFTMAX, true, 0.8);
    const double loss = run(&s), first = s.grad_z[0];
    double sum = 0;
    for (int m = 0; m < M; m++)
        sum += s.grad_log_alpha[m];
    assert_true(fabs(sum) < 1e-12);
    feature_loss_run(&s.loss, s.grad_z, NULL, s.grad_log_alpha, s.work);
    assert_true(s.grad_z[0] == 2 * first);
    for (int m = 0; m < M; m++)
        s.log_alpha[m] += 40;
    assert_true(fabs(run(&s) - loss) < 1e-11);
    s.loss.tokens = 0;
    assert_true(run(&s) == 0 && s.grad_z[0] == 0);
    free(s.work);
}

/* |x|^2 of some thousands: the softmax loss and its gradients stay finite. */
static void large_numbers(void **state)
{
    (void)state;
    static scene s;
    for (int causal = 0; causal < 2; causal++) {
        make(&s, FEATURE_LOSS_SOFTMAX, causal, 30);
        assert_true(isfinite(run(&s)));
        for (int e = 0; e < M * D; e++)
            assert_true(isfinite(s.grad_z[e]));
        free(s.work);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_over_pairs),
        cmocka_unit_test(sums_beside_a_window),
        cmocka_unit_test(gradients_beside_a_window),
        cmocka_unit_test(gradients),
        cmocka_unit_test(added),
        cmocka_unit_test(large_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
