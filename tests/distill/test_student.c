/* SPDX-License-Identifier: MIT
 * Students as they begin: calibrated moments, the attention that they estimate, threads and seeds. */
#include "distill/student.h"
#include "tests/distill/scene.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = 64, LAYERS = 8 };

static student open_student(const scene *s, int64_t features, bool shared)
{
    int64_t each[LAYERS];
    student made;
    io_error error;
    assert_true(s->config->layers <= LAYERS);
    for (int64_t i = 0; i < LAYERS; i++)
        each[i] = features;
    if (student_open(&made, &s->of, each, shared, &error)) fail_msg("%s", error.text);
    return made;
}

/* Over all windows and the queries of a head: mean x + mean y = 0, and equal second moments. */
static void check_head(const scene *s, const student *by, int64_t layer, int64_t head)
{
    const int64_t d = by->channels;
    double x[SCENE_TOKENS * MOST], y[SCENE_TOKENS * MOST], mean[MOST] = { 0 },
                                                           *apart = calloc(MOST * MOST, 8);
    double trace = 0;
    const double rows = (double)s->of.begins[SCENE_WINDOWS];
    assert_non_null(apart);
    for (int64_t w = 0; w < SCENE_WINDOWS; w++)
        for (int64_t n = 0; n < by->queries; n++) {
            student_rows(by, &s->of, layer, head, n, w, x, n == 0 ? y : NULL);
            for (int64_t t = 0; t < s->of.begins[w + 1] - s->of.begins[w]; t++)
                for (int64_t i = 0; i < d; i++)
                    for (int64_t j = 0; j < d; j++) {
                        const double xx = x[t * d + i] * x[t * d + j] / rows / (double)by->queries;
                        const double yy = n > 0 ? 0 : y[t * d + i] * y[t * d + j] / rows;
                        apart[i * d + j] += xx - yy;
                        trace += i == j ? xx + yy : 0;
                    }
        }
    for (int64_t e = 0; e < d * d; e++)
        assert_true(fabs(apart[e]) < 1e-3 * trace);
    for (int64_t w = 0; w < SCENE_WINDOWS; w++)
        for (int64_t n = 0; n < by->queries; n++) {
            const dof_text text = activations_text(&s->of, layer, head * by->queries + n, w);
            for (int64_t t = 0; t < text.count; t++)
                for (int64_t c = 0; c < d; c++) {
                    mean[c] += (double)text.q[t * text.q_row + c] / rows / (double)by->queries;
                    mean[c] += n > 0 ? 0 : (double)text.k[t * text.k_row + c] / rows;
                }
        }
    for (int64_t c = 0; c < d; c++)
        assert_true(fabs(mean[c] - by->layer[layer].shift[head * d + c]) < 1e-9);
    free(apart);
}

static void test_calibrated(void **state)
{
    (void)state;
    for (int shared = 0; shared < 2; shared++) {
        scene s;
        io_error error;
        scene_open(&s, "llama");
        if (shared) scene_uneven(&s);
        student by = open_student(&s, 4, shared);
        if (student_calibrate(&by, &s.of, true, 2, &error)) fail_msg("%s", error.text);
        for (int64_t layer = 0; layer < by.layers; layer++)
            for (int64_t head = 0; head < by.heads; head++)
                check_head(&s, &by, layer, head);
        student_close(&by);
        scene_close(&s);
    }
}

/* The mean over all heads, queries and windows of the divergence of attention from its estimate. */
static double divergence(const scene *s, const student *by)
{
    const int64_t d = by->channels;
    double x[SCENE_TOKENS * MOST], y[SCENE_TOKENS * MOST], all = 0;
    int64_t count = 0;
    for (int64_t place = 0; place < by->layers * by->heads * by->queries * SCENE_WINDOWS; place++) {
        const int64_t window = place % SCENE_WINDOWS, n = place / SCENE_WINDOWS % by->queries,
                      head = place / SCENE_WINDOWS / by->queries % by->heads,
                      layer = place / SCENE_WINDOWS / by->queries / by->heads;
        const student_layer *l = &by->layer[layer];
        student_rows(by, &s->of, layer, head, n, window, x, y);
        const dof_text text = activations_text(&s->of, layer, head * by->queries + n, window);
        for (int64_t t = 0; t < text.count; t++, count++) {
            const int64_t seen = text.causal ? t + 1 : text.count;
            double p[SCENE_TOKENS], k[SCENE_TOKENS], sum_p = 0, sum_k = 0;
            for (int64_t j = 0; j < seen; j++) {
                double score = 0;
                k[j] = 0;
                for (int64_t c = 0; c < d; c++)
                    score += (double)text.q[t * text.q_row + c] * (double)text.k[j * text.k_row + c];
                for (int64_t m = head * l->features; m < (head + 1) * l->features; m++) {
                    double exponent = l->log_alpha[m];
                    for (int64_t c = 0; c < d; c++)
                        exponent += l->z[m * d + c] * (x[t * d + c] + y[j * d + c]) -
                                    y[j * d + c] * y[j * d + c] / 2;
                    k[j] += exp(exponent);
                }
                sum_p += p[j] = exp(text.scale * score), sum_k += k[j];
            }
            for (int64_t j = 0; j < seen; j++)
                all += p[j] / sum_p * log(p[j] / sum_p / (k[j] / sum_k));
        }
    }
    return all / (double)count;
}

/* Many features estimate softmax, whatever they are drawn from, with and without calibration. Uniform
 * weights do not. */
static void check_beginnings(const char *name, bool uneven)
{
    io_error error;
    for (int shared = 0; shared < 2; shared++)
        for (int calibrated = 0; calibrated < 2; calibrated++) {
            double of[STUDENT_STARTS];
            scene s;
            scene_open(&s, name);
            if (uneven) scene_uneven(&s);
            for (int start = 0; start < STUDENT_STARTS; start++) {
                student by = open_student(&s, start == STUDENT_UNIFORM ? 1 : 256, shared);
                if (calibrated && student_calibrate(&by, &s.of, true, 2, &error)) fail_msg("%s", error.text);
                if (student_begin(&by, &s.of, (student_start)start, 4, 2, &error)) fail_msg("%s", error.text);
                of[start] = divergence(&s, &by);
                printf("%d %d %-10s %.5f\n", shared, calibrated, student_start_name(start), of[start]);
                student_close(&by);
            }
            for (int start = 0; start < STUDENT_UNIFORM; start++)
                assert_true(of[start] < of[STUDENT_UNIFORM] * 2 / 3);
            assert_true(of[STUDENT_PAIRS] < of[STUDENT_NORMAL] / 2);
            scene_close(&s);
        }
}

static void test_beginnings(void **state)
{
    (void)state;
    check_beginnings("llama", false);
    check_beginnings("bert", false);
    check_beginnings("bert", true);
}

static void test_threads_and_seeds(void **state)
{
    static const struct {
        int threads;
        uint64_t seed;
    } runs[] = { { 1, 1 }, { 3, 1 }, { 1, 2 } };
    io_error error;
    scene s;
    (void)state;
    scene_open(&s, "llama");
    /* Layers that are alike still have draws of their own. */
    const size_t rows = (size_t)(SCENE_WINDOWS * SCENE_TOKENS * s.config->head_dim) * sizeof(float);
    memcpy(s.of.q[1], s.of.q[0], rows * (size_t)s.config->heads_q);
    memcpy(s.of.k[1], s.of.k[0], rows * (size_t)s.config->heads_kv);
    for (int start = 0; start < STUDENT_UNIFORM; start++) {
        student by[3];
        for (int n = 0; n < 3; n++) {
            by[n] = open_student(&s, 8, false);
            assert_int_equal(student_calibrate(&by[n], &s.of, true, runs[n].threads, &error), 0);
            assert_int_equal(
                student_begin(&by[n], &s.of, (student_start)start, runs[n].seed, runs[n].threads, &error), 0);
        }
        for (int64_t layer = 0; layer < by[0].layers; layer++) {
            const size_t heads = (size_t)by[0].heads, d = (size_t)by[0].channels;
            const student_layer *a = &by[0].layer[layer], *b = &by[1].layer[layer], *c = &by[2].layer[layer];
            assert_memory_equal(a->z, b->z, heads * 8 * d * sizeof *a->z);
            assert_memory_equal(a->log_alpha, b->log_alpha, heads * 8 * sizeof *a->z);
            assert_memory_equal(a->shift, b->shift, heads * d * sizeof *a->z);
            assert_memory_equal(a->balance, b->balance, heads * d * d * sizeof *a->z);
            assert_memory_not_equal(a->z, c->z, 8 * d * sizeof *a->z);
            /* Heads and layers are no copies of each other. */
            assert_memory_not_equal(a->z, a->z + 8 * d, 8 * d * sizeof *a->z);
            if (layer > 0) assert_memory_not_equal(a->z, by[0].layer[0].z, 8 * d * sizeof *a->z);
        }
        for (int n = 0; n < 3; n++)
            student_close(&by[n]);
    }
    scene_close(&s);
}

static void test_refused(void **state)
{
    const int64_t features[LAYERS] = { 4, 0, 4, 4 };
    student by;
    io_error error;
    scene s;
    (void)state;
    scene_open(&s, "llama");
    assert_int_equal(student_open(&by, &s.of, features, false, &error), EXIT_USAGE);
    assert_non_null(strstr(error.text, "0 features in layer 1: expected 1 to 512"));
    assert_null(student_start_name(STUDENT_STARTS));
    s.of.q[1][7] = INFINITY;
    by = open_student(&s, 4, false);
    assert_int_equal(student_calibrate(&by, &s.of, true, 2, &error), EXIT_INPUT);
    student_close(&by);
    scene_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calibrated),
        cmocka_unit_test(test_beginnings),
        cmocka_unit_test(test_threads_and_seeds),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
