/* SPDX-License-Identifier: MIT
 * Features drawn without learning: the density that they are drawn from, and how well they read attention. */
#include "dof/draw.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { TOKENS = 96, MOST_DIM = 64, VALUES = 8, FEATURES = 64, PAIRS = 500, SEEDS = 5 };

/* A text whose queries and keys lie around the same few points. */
typedef struct scene {
    int64_t dim;
    float q[TOKENS * MOST_DIM], k[TOKENS * MOST_DIM], x[2 * TOKENS * MOST_DIM];
    double v[TOKENS * VALUES];
    dof_text text;
} scene;

/* |x|^2 is about `square`, but for noise of `spread` in each channel. */
static void make_scene(scene *s, int64_t dim, int64_t clusters, double square, double spread, uint64_t seed)
{
    double centres[16 * MOST_DIM], normals[MOST_DIM];
    s->dim = dim;
    random_normals((random_stream){ seed, 0 }, 0, clusters * dim, centres);
    random_normals((random_stream){ seed, 1 }, 0, TOKENS * VALUES, s->v);
    for (int64_t i = 0; i < 2 * TOKENS; i++) {
        uint64_t word;
        random_words((random_stream){ seed, 2 }, (uint64_t)i, 1, &word);
        const double *const centre = centres + random_below(word, clusters) * dim;
        float *const to = (i < TOKENS ? s->q + i * dim : s->k + (i - TOKENS) * dim);
        random_normals((random_stream){ seed, 3 }, (uint64_t)(i * dim), dim, normals);
        /* The scale of scores is 1 / 4. */
        for (int64_t c = 0; c < dim; c++) {
            s->x[i * dim + c] = (float)(sqrt(square / (double)dim) * centre[c] + spread * normals[c]);
            to[c] = 2 * s->x[i * dim + c];
        }
    }
    s->text = (dof_text){ s->q, s->k, dim, dim, TOKENS, 0.25, true };
}

static draw_pairs open_pairs(const scene *s, uint64_t seed)
{
    draw_pairs p;
    io_error error;
    if (draw_pairs_open(&p, &s->text, s->dim, 0, PAIRS, (random_stream){ seed, 10 }, &error))
        fail_msg("%s", error.text);
    return p;
}

static double dot(const float *x, const double *z, int64_t dim)
{
    double sum = 0;
    for (int64_t c = 0; c < dim; c++)
        sum += (double)x[c] * z[c];
    return sum;
}

/* log phi(x; z). */
static double log_feature(const float *x, const double *z, int64_t dim)
{
    double square = 0;
    for (int64_t c = 0; c < dim; c++)
        square += (double)x[c] * (double)x[c];
    return dot(x, z, dim) - square / 2;
}

/* The share of the causal attention's output that features leave wrong. */
static double attention_error(const scene *s, const double *z, const double *log_alpha)
{
    double wrong = 0, all = 0;
    for (int64_t t = 0; t < TOKENS; t++) {
        double exact[VALUES] = { 0 }, got[VALUES] = { 0 }, exact_sum = 0, got_sum = 0;
        for (int64_t j = 0; j <= t; j++) {
            const float *const x = s->x + t * s->dim, *const y = s->x + (TOKENS + j) * s->dim;
            double score = 0, estimate = 0;
            for (int64_t c = 0; c < s->dim; c++)
                score += (double)x[c] * (double)y[c];
            for (int64_t m = 0; m < FEATURES; m++)
                estimate += exp(log_alpha[m] + log_feature(x, z + m * s->dim, s->dim) +
                                log_feature(y, z + m * s->dim, s->dim));
            exact_sum += exp(score), got_sum += estimate;
            for (int64_t c = 0; c < VALUES; c++) {
                exact[c] += exp(score) * s->v[j * VALUES + c];
                got[c] += estimate * s->v[j * VALUES + c];
            }
        }
        for (int64_t c = 0; c < VALUES; c++) {
            wrong += pow(got[c] / got_sum - exact[c] / exact_sum, 2);
            all += pow(exact[c] / exact_sum, 2);
        }
    }
    return sqrt(wrong / all);
}

/* tau(z) phi(x; z) phi(y; z) = exp(x.y) N(z; x + y, I), with one pair as the only one. */
static void test_identity(void **state)
{
    scene *s = malloc(sizeof *s);
    (void)state;
    assert_non_null(s);
    make_scene(s, 8, 5, 6, 0.3, 1);
    draw_pairs p = open_pairs(s, 1);
    double z[8];
    for (int64_t t = 0; t < 20; t++) {
        const float *const x = s->x + t * 8, *const y = s->x + (TOKENS + 2 * t) * 8;
        double sum[8], square = 0, score = 0;
        for (int c = 0; c < 8; c++) {
            sum[c] = (double)x[c] + (double)y[c];
            square += sum[c] * sum[c], score += (double)x[c] * (double)y[c];
        }
        const draw_pairs one = { 1, 8, sum, &square };
        random_normals((random_stream){ 9, (uint64_t)t }, 0, 8, z);
        const double expected = 0.05 + 0.95 * exp(log_feature(x, z, 8) + log_feature(y, z, 8) - score);
        assert_true(fabs(draw_log_ratio(&one, z) - log(expected)) < 1e-10);
    }
    /* Each sum is of a query and a key that it may see. */
    for (int64_t n = 0; n < PAIRS; n++) {
        bool found = false;
        for (int64_t t = 0; t < TOKENS && !found; t++)
            for (int64_t i = 0; i <= t && !found; i++) {
                double apart = 0;
                for (int c = 0; c < 8; c++)
                    apart += fabs(p.sums[n * 8 + c] - (double)s->x[t * 8 + c] -
                                  (double)s->x[(TOKENS + i) * 8 + c]);
                found = apart < 1e-5;
            }
        assert_true(found);
    }
    draw_pairs_close(&p);
    free(s);
}

/* Keys are drawn by the attention: of the last query alone the mean of the sums is q + sum_i p_i k_i. */
static void test_pairs(void **state)
{
    enum { DIM = 4, DRAWS = 4000 };
    scene *s = malloc(sizeof *s);
    draw_pairs p;
    io_error error;
    (void)state;
    assert_non_null(s);
    make_scene(s, DIM, 5, 3, 0.3, 6);
    const random_stream from = { 6, 0 };
    assert_int_equal(draw_pairs_open(&p, &s->text, DIM, TOKENS - 1, DRAWS, from, &error), 0);
    const float *const q = s->x + (TOKENS - 1) * DIM, *const k = s->x + TOKENS * DIM;
    double weights[TOKENS], sum = 0;
    for (int i = 0; i < TOKENS; i++) {
        weights[i] = 0;
        for (int c = 0; c < DIM; c++)
            weights[i] += (double)q[c] * (double)k[i * DIM + c];
        sum += weights[i] = exp(weights[i]);
    }
    for (int c = 0; c < DIM; c++) {
        double expected = (double)q[c], mean = 0, square = 0;
        for (int i = 0; i < TOKENS; i++)
            expected += weights[i] / sum * (double)k[i * DIM + c];
        for (int n = 0; n < DRAWS; n++) {
            const double value = p.sums[n * DIM + c];
            mean += value / DRAWS, square += value * value / DRAWS;
        }
        const double error_of_mean = sqrt((square - mean * mean) / DRAWS);
        assert_true(error_of_mean < 0.05 && fabs(mean - expected) < 4 * error_of_mean);
    }
    draw_pairs_close(&p);
    free(s);
}

/* Over many features alpha phi(x) phi(y) is exp(x.y) in the mean, and alpha is 1. */
static void test_unbiased(void **state)
{
    enum { DRAWS = 30000, DIM = 4 };
    scene *s = malloc(sizeof *s);
    double *z = malloc(DRAWS * DIM * sizeof *z), *log_alpha = malloc(DRAWS * sizeof *log_alpha);
    (void)state;
    assert_true(s && z && log_alpha);
    make_scene(s, DIM, 3, 2, 0.3, 2);
    draw_pairs p = open_pairs(s, 2);
    draw_features(&p, DRAWS, (random_stream){ 2, 20 }, z, log_alpha);
    for (int pair = -1; pair < 5; pair++) {
        const float *const x = s->x + 7 * (pair + 1) * DIM, *const y = s->x + (TOKENS + 3 * (pair + 1)) * DIM;
        double mean = 0, square = 0, score = 0;
        for (int c = 0; c < DIM; c++)
            score += (double)x[c] * (double)y[c];
        for (int64_t m = 0; m < DRAWS; m++) {
            const double phi = log_feature(x, z + m * DIM, DIM) + log_feature(y, z + m * DIM, DIM) - score;
            const double value = exp(log_alpha[m] + (pair < 0 ? 0 : phi));
            mean += value / DRAWS, square += value * value / DRAWS;
        }
        const double error = sqrt((square - mean * mean) / DRAWS);
        printf("pair %d: %.4f +- %.4f\n", pair, mean, error);
        assert_true(error < 0.05 && fabs(mean - 1) < 4 * error);
    }
    draw_pairs_close(&p);
    free(log_alpha);
    free(z);
    free(s);
}

static double by_leverage(const scene *s, const draw_pairs *p, int64_t candidates, uint64_t seed, double *z,
                          double *log_alpha, double *effective)
{
    const draw_leverage by = { .pairs = p,
                               .x = s->x,
                               .count = 2 * TOKENS,
                               .dim = s->dim,
                               .candidates = candidates,
                               .factor = 1,
                               .lambda = 0x1p-8 };
    io_error error;
    double n;
    if (draw_by_leverage(&by, FEATURES, (random_stream){ seed, 30 }, z, log_alpha, &n, effective, &error))
        fail_msg("%s", error.text);
    return n;
}

/* E_tau l = N, by candidates of tau where |x| is small, and by those of pairs. */
static void test_leverage(void **state)
{
    scene *s = malloc(sizeof *s);
    double z[FEATURES * 2], log_alpha[FEATURES], n, effective;
    dof_room room;
    io_error error;
    (void)state;
    assert_non_null(s);
    for (int large = 0; large < 2; large++) {
        make_scene(s, 2, 6, large ? 2 : 0.1, 0.1, 3);
        draw_pairs p = open_pairs(s, 3);
        assert_int_equal(dof_room_open(&room, 2 * TOKENS, 2, false, &error), 0);
        dof_sample(&room, s->x, 2 * TOKENS, 1);
        assert_true(dof_kernel(&room, DOF_ABS, 0x1p-8, 2 * TOKENS, &n, NULL));
        const double got = by_leverage(s, large ? &p : NULL, 3000, 3, z, log_alpha, &effective);
        printf("N %.3f, E l %.3f, %.0f of 3000 candidates\n", n, got, effective);
        assert_true(fabs(got / n - 1) < 0.1 && effective > 300);
        /* One that is drawn has alpha = N / l > 0, and l is at most |h|^2 / Lam. */
        for (int m = 0; m < FEATURES; m++)
            assert_true(isfinite(log_alpha[m]));
        dof_room_close(&room);
        draw_pairs_close(&p);
    }
    free(s);
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x)
{
    qsort(x, SEEDS, sizeof *x, ascending);
    return x[SEEDS / 2];
}

/* On clusters both are far better than N(0, I), of as many features; of one channel in 64 too. */
static void test_clusters(void **state)
{
    static const int64_t dims[] = { 2, 8, 64 };
    scene *s = malloc(sizeof *s);
    double *z = malloc(FEATURES * MOST_DIM * sizeof *z), log_alpha[FEATURES], effective;
    (void)state;
    assert_true(s && z);
    for (size_t n = 0; n < sizeof dims / sizeof *dims; n++) {
        double plain[SEEDS], pairs[SEEDS], leverage[SEEDS];
        for (uint64_t seed = 0; seed < SEEDS; seed++) {
            make_scene(s, dims[n], 6, 4, 0.3 / sqrt((double)dims[n]), 40 + seed);
            draw_pairs p = open_pairs(s, seed);
            random_normals((random_stream){ seed, 50 }, 0, FEATURES * dims[n], z);
            memset(log_alpha, 0, sizeof log_alpha);
            plain[seed] = attention_error(s, z, log_alpha);
            draw_features(&p, FEATURES, (random_stream){ seed, 60 }, z, log_alpha);
            pairs[seed] = attention_error(s, z, log_alpha);
            by_leverage(s, &p, 1000, seed, z, log_alpha, &effective);
            leverage[seed] = attention_error(s, z, log_alpha);
            draw_pairs_close(&p);
        }
        const double of[] = { median(plain), median(leverage), median(pairs) };
        printf("d = %2d: plain %.3f, leverage of pair candidates %.3f, pair attention %.3f\n", (int)dims[n],
               of[0], of[1], of[2]);
        assert_true(of[1] < of[0] / 2 && of[2] < of[0] / 2);
    }
    free(z);
    free(s);
}

/* The same numbers from the same stream, others from another. */
static void test_streams(void **state)
{
    scene *s = malloc(sizeof *s);
    double z[3][FEATURES * 4], log_alpha[3][FEATURES], effective;
    (void)state;
    assert_non_null(s);
    make_scene(s, 4, 6, 4, 0.2, 5);
    for (int kind = 0; kind < 2; kind++) {
        for (int n = 0; n < 3; n++) {
            draw_pairs p = open_pairs(s, 5);
            if (kind)
                by_leverage(s, &p, 300, n == 2 ? 8 : 7, z[n], log_alpha[n], &effective);
            else
                draw_features(&p, FEATURES, (random_stream){ n == 2 ? 8 : 7, 0 }, z[n], log_alpha[n]);
            draw_pairs_close(&p);
        }
        assert_memory_equal(z[0], z[1], sizeof *z);
        assert_memory_equal(log_alpha[0], log_alpha[1], sizeof *log_alpha);
        assert_memory_not_equal(z[0], z[2], sizeof *z);
    }
    free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_identity), cmocka_unit_test(test_pairs),    cmocka_unit_test(test_unbiased),
        cmocka_unit_test(test_leverage), cmocka_unit_test(test_clusters), cmocka_unit_test(test_streams),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
