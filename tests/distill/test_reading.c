/* SPDX-License-Identifier: MIT
 * A model that reads by a student: the outputs of its attention beside sums over all pairs and features. */
#include "distill/reading.h"
#include "tests/distill/scene.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = 64, LAYERS = 8 };

/* out = sqrt(scale) m (row - shift). */
static void map(const float *row, const double *shift, const double *m, int64_t d, double scale, double *out)
{
    for (int64_t i = 0; i < d; i++) {
        out[i] = 0;
        for (int64_t c = 0; c < d; c++)
            out[i] += m[i * d + c] * sqrt(scale) * ((double)row[c] - (shift ? shift[c] : 0));
    }
}

/* The keys that token t of a text sees. */
static int64_t seen_of(const scene *s, const lm_heads *from, int64_t t)
{
    return s->config->architecture == LM_BERT ? from->q.rows : t + 1;
}

static double elu(double x) { return x > 0 ? x + 1 : exp(x); }

/* Without a student: products of elu + 1. */
static void direct_elu(const scene *s, const lm_heads *from, int64_t head, int64_t t, double *o)
{
    const int64_t d = s->config->head_dim, key = head / (s->config->heads_q / s->config->heads_kv);
    const float *const q = (const float *)from->q.data + t * from->q.row + head * d;
    double sum = 0;
    memset(o, 0, (size_t)d * sizeof *o);
    for (int64_t j = 0; j < seen_of(s, from, t); j++) {
        const float *const k = (const float *)from->k.data + j * from->k.row + key * d;
        double weight = 0;
        for (int64_t c = 0; c < d; c++)
            weight += elu((double)q[c]) * elu((double)k[c]);
        sum += weight;
        for (int64_t c = 0; c < d; c++)
            o[c] += weight * (double)((const float *)from->v.data)[j * from->v.row + key * d + c];
    }
    for (int64_t c = 0; c < d; c++)
        o[c] /= sum;
}

/* Softmax over the first `sinks` and the last `window`. */
static void direct_window(const scene *s, const lm_options *by, const lm_heads *from, int64_t layer,
                          int64_t head, int64_t t, double *o)
{
    const int64_t d = s->config->head_dim, key = head / (s->config->heads_q / s->config->heads_kv);
    const float *const q = (const float *)from->q.data + t * from->q.row + head * d;
    double sum = 0;
    memset(o, 0, (size_t)d * sizeof *o);
    for (int64_t j = 0; j <= t; j++) {
        const float *const k = (const float *)from->k.data + j * from->k.row + key * d;
        double score = 0;
        if (j >= by->sinks && j <= t - by->window) continue;
        for (int64_t c = 0; c < d; c++)
            score += (double)q[c] * (double)k[c];
        const double weight = exp(score * lm_config_scale(s->config, layer));
        sum += weight;
        for (int64_t c = 0; c < d; c++)
            o[c] += weight * (double)((const float *)from->v.data)[j * from->v.row + key * d + c];
    }
    for (int64_t c = 0; c < d; c++)
        o[c] /= sum;
}

/* What a weight by features lacks of the estimate of e^score: the gain too. */
static double rest_of(const student *by, const float *q, const double *x, int64_t layer, int64_t head,
                      int64_t own, double scale)
{
    const student_layer *l = &by->layer[layer];
    double rest = l->gain[head] - log((double)l->features);
    for (int64_t c = 0; c < by->channels; c++)
        rest += scale * (double)q[c] * l->shift[own * by->channels + c] - x[c] * x[c] / 2;
    return rest;
}

/* Of token t and a query head: the mean of values weighed by the estimate; beside a window (NULL: none) by
 * what it is the estimate of. */
static void direct(const scene *s, const student *by, const lm_options *window, const lm_heads *from,
                   int64_t layer, int64_t head, int64_t t, double *o)
{
    const int64_t d = s->config->head_dim, key = head / (s->config->heads_q / s->config->heads_kv);
    const int64_t own = by->queries > 1 ? key : head;
    const student_layer *l = &by->layer[layer];
    const double scale = lm_config_scale(s->config, layer);
    const double *const zk = l->z_keys ? l->z_keys : l->z;
    double x[MOST], y[MOST], sum = 0;
    const float *const q = (const float *)from->q.data + t * from->q.row + head * d;
    map(q, NULL, l->balance + own * d * d, d, scale, x);
    const double rest = window ? rest_of(by, q, x, layer, head, own, scale) : 0;
    memset(o, 0, (size_t)d * sizeof *o);
    for (int64_t j = 0; j < seen_of(s, from, t); j++) {
        const float *const k = (const float *)from->k.data + j * from->k.row + key * d;
        double weight = 0, score = 0;
        map(k, l->shift + own * d, l->balance_keys + own * d * d, d, scale, y);
        for (int64_t m = own * l->features; m < (own + 1) * l->features; m++) {
            double exponent = l->log_alpha[m];
            for (int64_t c = 0; c < d; c++)
                exponent += l->z[m * d + c] * x[c] + zk[m * d + c] * y[c] - y[c] * y[c] / 2;
            weight += exp(exponent + rest);
        }
        for (int64_t c = 0; c < d; c++)
            score += scale * (double)q[c] * (double)k[c];
        if (window && (j < window->sinks || t - j < window->window)) weight = exp(score);
        sum += weight;
        for (int64_t c = 0; c < d; c++)
            o[c] += weight * (double)((const float *)from->v.data)[j * from->v.row + key * d + c];
    }
    for (int64_t c = 0; c < d; c++)
        o[c] /= sum;
}

typedef struct seen {
    const scene *scene;
    const student *by;
    const lm_options *window; /* NULL: none */
    int64_t only;
    double apart, apart_elsewhere;
} seen;

static int look(void *to, int64_t layer, const lm_heads *heads, io_error *error)
{
    seen *const s = to;
    const lm_config *c = s->scene->config;
    double o[MOST];
    (void)error;
    for (int64_t head = 0; head < c->heads_q; head++)
        for (int64_t t = 0; t < heads->q.rows; t++) {
            if (s->by)
                direct(s->scene, s->by, s->window, heads, layer, head, t, o);
            else if (s->window)
                direct_window(s->scene, s->window, heads, layer, head, t, o);
            else
                direct_elu(s->scene, heads, head, t, o);
            const float *const got = (const float *)heads->o.data + t * heads->o.row + head * c->head_dim;
            double *const at = s->only < 0 || s->only == layer ? &s->apart : &s->apart_elsewhere;
            for (int64_t x = 0; x < c->head_dim; x++)
                *at = fmax(*at, fabs(o[x] - (double)got[x]));
        }
    return 0;
}

static void read_texts(const scene *s, const lm_options *options, seen *to)
{
    lm_model *m;
    lm_capture *capture;
    io_error error;
    if (lm_model_open(&m, &s->on, s->files, options, &error)) fail_msg("%s", error.text);
    if (lm_capture_open(&capture, m, SCENE_TOKENS, &error)) fail_msg("%s", error.text);
    if (lm_capture_read(capture, s->ids[1], SCENE_TOKENS, look, to, &error)) fail_msg("%s", error.text);
    if (lm_capture_read(capture, s->ids[2], 1, look, to, &error)) fail_msg("%s", error.text);
    lm_capture_close(capture);
    lm_model_close(m);
}

static seen read_by(const scene *s, const student *by, int64_t only)
{
    lm_options options = lm_options_default();
    seen to = { .scene = s, .by = by, .only = only };
    reading r = { 0 };
    io_error error;
    if (by && reading_open(&r, by, &s->on, &error)) fail_msg("%s", error.text);
    options.features = r.layers, options.only = only;
    options.mechanism = by ? LOAM_SOFTMAX : LOAM_LINEAR;
    read_texts(s, &options, &to);
    reading_close(&r);
    return to;
}

static void test_outputs(void **state)
{
    static const char *const models[] = { "gpt2-scaled", "llama", "neox", "bert" };
    (void)state;
    for (size_t n = 0; n < sizeof models / sizeof *models; n++)
        for (int how = 0; how < 4; how++) {
            const bool shared = how % 2;
            scene s;
            scene_open(&s, models[n]);
            student by = scene_student(&s, shared);
            if (how > 1) scene_untie(&by);
            assert_int_equal(by.heads, shared ? s.config->heads_kv : s.config->heads_q);
            const seen all = read_by(&s, &by, -1), one = read_by(&s, &by, 1);
            printf("%-12s %d: %.1e, layer 1 alone %.1e, others %.1e\n", models[n], how, all.apart, one.apart,
                   one.apart_elsewhere);
            assert_true(all.apart < 1e-5 && one.apart < 1e-5 && one.apart_elsewhere > 1e-3);
            student_close(&by);
            scene_close(&s);
        }
}

static void test_elu(void **state)
{
    static const char *const models[] = { "gpt2-scaled", "llama", "neox", "bert" };
    (void)state;
    for (size_t n = 0; n < sizeof models / sizeof *models; n++) {
        scene s;
        scene_open(&s, models[n]);
        const seen all = read_by(&s, NULL, -1), one = read_by(&s, NULL, 1);
        printf("elu + 1: %.1e, layer 1 alone %.1e, others %.1e\n", all.apart, one.apart, one.apart_elsewhere);
        assert_true(all.apart < 1e-5 && one.apart < 1e-5 && one.apart_elsewhere > 1e-3);
        scene_close(&s);
    }
}

/* Texts longer and shorter than sinks and window together, and one layer alone. */
static void test_window(void **state)
{
    static const char *const models[] = { "gpt2-scaled", "llama", "neox" };
    static const int64_t sizes[][2] = {
        { 4, 3 }, { 0, 1 }, { 2, SCENE_TOKENS - 3 }, { 2, SCENE_TOKENS - 2 }, { 4, 64 }
    };
    (void)state;
    for (size_t n = 0; n < sizeof models / sizeof *models; n++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            lm_options options = lm_options_default();
            scene s;
            scene_open(&s, models[n]);
            options.sinks = sizes[i][0], options.window = sizes[i][1];
            seen all = { .scene = &s, .window = &options, .only = -1 }, one = all;
            read_texts(&s, &options, &all);
            options.only = one.only = 1;
            read_texts(&s, &options, &one);
            assert_true(all.apart < 1e-5 && one.apart < 1e-5 && (one.apart_elsewhere > 1e-3) == (i < 3));
            scene_close(&s);
        }
}

/* Sinks and window exact, features for the rest. */
static void test_hybrid(void **state)
{
    static const char *const models[] = { "gpt2-scaled", "llama", "neox" };
    (void)state;
    for (size_t n = 0; n < sizeof models / sizeof *models; n++)
        for (int shared = 0; shared < 2; shared++) {
            lm_options options = lm_options_default();
            scene s;
            reading r;
            io_error error;
            scene_open(&s, models[n]);
            student by = scene_student(&s, shared);
            for (int64_t i = 0; i < s.config->layers * s.config->heads_q; i++)
                by.layer[i / s.config->heads_q].gain[i % s.config->heads_q] = 0.3 * (double)(i % 4) - 0.5;
            assert_int_equal(reading_open(&r, &by, &s.on, &error), 0);
            options.features = r.layers, options.sinks = 2, options.window = 5;
            seen all = { .scene = &s, .by = &by, .window = &options, .only = -1 };
            read_texts(&s, &options, &all);
            printf("%-12s %d, beside a window: %.1e\n", models[n], shared, all.apart);
            assert_true(all.apart > 0 && all.apart < 1e-5);
            reading_close(&r);
            student_close(&by);
            scene_close(&s);
        }
}

/* Texts side by side are those by themselves; with features, or by elu + 1. */
static void check_batch(const char *name, bool elu, bool untied)
{
    lm_options options = lm_options_default();
    matrix hidden, alone;
    lm_text *text;
    io_error error;
    scene s;
    reading r;
    scene_open(&s, name);
    const size_t bytes = (size_t)(SCENE_TOKENS * s.config->width) * sizeof(float);
    float *const together = malloc(2 * bytes);
    assert_non_null(together);
    student by = scene_student(&s, false);
    if (untied) scene_untie(&by);
    assert_int_equal(reading_open(&r, &by, &s.on, &error), 0);
    options.features = elu ? NULL : r.layers, options.mechanism = elu ? LOAM_LINEAR : LOAM_SOFTMAX;
    assert_int_equal(lm_text_open_batch(&text, s.model, 2, SCENE_TOKENS, &error), 0);
    assert_int_equal(lm_text_attention(text, &options, &error), 0);
    lm_text_batch(text, 2);
    assert_int_equal(lm_text_read(text, s.ids[0], 2 * SCENE_TOKENS, &hidden, &error), 0);
    memcpy(together, hidden.data, 2 * bytes);
    for (int i = 0; i < 2; i++) {
        lm_text_batch(text, 1);
        assert_int_equal(lm_text_read(text, s.ids[i], SCENE_TOKENS, &alone, &error), 0);
        assert_memory_equal(alone.data, (const char *)together + (size_t)i * bytes, bytes);
    }
    if (s.config->architecture != LM_BERT) {
        assert_int_equal(lm_text_read(text, s.ids[0], 1, &alone, &error), EXIT_USAGE);
        assert_non_null(strstr(error.text, "24 of its tokens were read before"));
    }
    lm_text_close(text);
    reading_close(&r);
    student_close(&by);
    free(together);
    scene_close(&s);
}

static void test_batch(void **state)
{
    (void)state;
    for (int elu = 0; elu < 2; elu++) {
        check_batch("llama", elu, false);
        check_batch("bert", elu, false);
    }
}

static void test_untied_batch(void **state)
{
    (void)state;
    check_batch("llama", false, true);
    check_batch("bert", false, true);
}

/* A window has no untied features beside it. */
static void test_untied_window(void **state)
{
    lm_options options = lm_options_default();
    lm_text *text;
    matrix hidden;
    reading r;
    io_error error;
    scene s;
    (void)state;
    scene_open(&s, "llama");
    student by = scene_student(&s, false);
    scene_untie(&by);
    assert_int_equal(reading_open(&r, &by, &s.on, &error), 0);
    options.features = r.layers, options.window = 4;
    assert_int_equal(lm_text_open(&text, s.model, SCENE_TOKENS, SCENE_TOKENS, &error), 0);
    assert_int_equal(lm_text_attention(text, &options, &error), 0);
    assert_int_equal(lm_text_read(text, s.ids[0], SCENE_TOKENS, &hidden, &error), EXIT_USAGE);
    assert_non_null(strstr(error.text, "a window beside untied features"));
    lm_text_close(text);
    reading_close(&r);
    student_close(&by);
    scene_close(&s);
}

static void test_refused(void **state)
{
    lm_options options = lm_options_default();
    const lm_features none[LAYERS] = { { 0 } };
    lm_model *m;
    io_error error;
    scene s;
    (void)state;
    scene_open(&s, "bert");
    options.window = 4;
    assert_int_equal(lm_model_open(&m, &s.on, s.files, &options, &error), EXIT_USAGE);
    assert_non_null(strstr(error.text, "see those after them"));
    options.features = none, options.window = 0;
    scene_close(&s);
    scene_open(&s, "llama");
    options.only_head = 1;
    assert_int_equal(lm_model_open(&m, &s.on, s.files, &options, &error), EXIT_USAGE);
    assert_non_null(strstr(error.text, "all heads of a layer"));
    scene_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_outputs),       cmocka_unit_test(test_elu),
        cmocka_unit_test(test_window),        cmocka_unit_test(test_hybrid),
        cmocka_unit_test(test_batch),         cmocka_unit_test(test_untied_batch),
        cmocka_unit_test(test_untied_window), cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
