/* SPDX-License-Identifier: MIT
 * The forward pass of the four architectures against what the Hugging Face library makes of the same tokens
 * (make_models.py), in pieces and with other attention. */
#include "lm/score.h"

#include "io/npy.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *const models[] = { "gpt2",  "gpt2-scaled",   "neox",       "neox-serial",
                                      "llama", "llama-sharded", "llama-gguf", "bert" };
enum { MODELS = sizeof models / sizeof *models, TOKENS = 12, THREADS = 2 };

typedef struct scene {
    machine on;
    lm_files *files;
    lm_model *model;
    int32_t tokens[TOKENS];
    int64_t width; /* of what is expected */
} scene;

static const char *path_of(char path[4096], const char *name, const char *file)
{
    snprintf(path, 4096, "%s/%s%s%s", LM_TEST_DATA, name, *file ? "/" : "", file);
    return path;
}

/* The model points into it. */
static void open_scene(scene *s, const char *name, const lm_options *options)
{
    char path[4096];
    io_error error;
    int64_t *ids, count;
    const bool one_file = strcmp(name, "llama-gguf") == 0;
    *s = (scene){ .on = machine_cpu(LOAM_F32, THREADS) };
    if (lm_files_open(&s->files, path_of(path, name, one_file ? "model.gguf" : ""), &error))
        fail_msg("%s", error.text);
    if (lm_model_open(&s->model, &s->on, s->files, options, &error)) fail_msg("%s", error.text);
    if (npy_read_integers(&ids, &count, path_of(path, "", "tokens.npy"), &error)) fail_msg("%s", error.text);
    assert_int_equal(count, TOKENS);
    for (int i = 0; i < TOKENS; i++)
        s->tokens[i] = (int32_t)ids[i];
    free(ids);
    const lm_config *c = lm_files_config(s->files);
    s->width = c->architecture == LM_BERT ? c->width : c->vocabulary;
}

static void close_scene(scene *s)
{
    lm_model_close(s->model);
    lm_files_close(s->files);
    machine_close(&s->on);
}

/* Logits of all tokens, or BERT's last states, read in pieces of so many tokens. */
static float *run(const scene *s, int64_t piece)
{
    const bool bert = lm_files_config(s->files)->architecture == LM_BERT;
    float *out = calloc((size_t)(TOKENS * s->width), sizeof *out);
    io_error error;
    lm_text *text;
    matrix hidden;
    assert_non_null(out);
    assert_int_equal(lm_text_open(&text, s->model, TOKENS + 3, TOKENS, &error), 0);
    for (int64_t first = 0; first < TOKENS; first += piece) {
        const int64_t count = TOKENS - first < piece ? TOKENS - first : piece;
        if (lm_text_read(text, s->tokens + first, count, &hidden, &error)) fail_msg("%s", error.text);
        const matrix rows = matrix_dense(out + first * s->width, LOAM_F32, 1, count, s->width);
        if (bert)
            s->on.op->copy(&s->on, rows, hidden);
        else
            lm_text_logits(text, hidden, rows);
    }
    assert_int_equal(lm_text_length(text), TOKENS);
    lm_text_close(text);
    return out;
}

/* The largest difference, relative to the largest number. */
static double distance(const float *x, const float *y, int64_t count)
{
    double most = 0, apart = 0;
    for (int64_t i = 0; i < count; i++) {
        most = fmax(most, fabs((double)y[i]));
        apart = fmax(apart, fabs((double)x[i] - (double)y[i]));
    }
    return isfinite(apart) ? apart / most : INFINITY;
}

static void test_expected(void **state)
{
    const lm_options options = lm_options_default();
    (void)state;
    for (int i = 0; i < MODELS; i++) {
        char path[4096];
        io_error error;
        array expected;
        scene s;
        open_scene(&s, models[i], &options);
        float *got = run(&s, TOKENS);
        if (npy_read(&expected, path_of(path, models[i], "expected.npy"), &error)) fail_msg("%s", error.text);
        assert_int_equal(expected.count, TOKENS * s.width);
        assert_int_equal(array_convert(&expected, LOAM_F32, "expected", &error), 0);
        const double apart = distance(got, expected.data, expected.count);
        printf("%-14s %.1e\n", models[i], apart);
        assert_true(apart < 1e-4);
        array_free(&expected);
        free(got);
        close_scene(&s);
    }
}

/* BERT reads whole texts. */
static void test_pieces(void **state)
{
    static const int64_t pieces[] = { 1, 5 };
    const lm_options options = lm_options_default();
    (void)state;
    for (int i = 0; i < MODELS - 1; i++) {
        scene s;
        open_scene(&s, models[i], &options);
        float *whole = run(&s, TOKENS);
        for (int n = 0; n < 2; n++) {
            float *got = run(&s, pieces[n]);
            assert_true(distance(got, whole, TOKENS * s.width) < 1e-5);
            free(got);
        }
        free(whole);
        close_scene(&s);
    }
}

/* Texts side by side are what each is alone, with any attention; and pieces are read again afterwards. */
static void test_batch(void **state)
{
    enum { TEXTS = 3, LENGTH = TOKENS / TEXTS };
    (void)state;
    for (int i = 0; i < 2 * MODELS; i++) {
        lm_options options = lm_options_default();
        scene s;
        lm_text *text;
        matrix hidden;
        io_error error;
        options.mechanism = i < MODELS ? LOAM_SOFTMAX : LOAM_LLA;
        options.only_head = i < MODELS ? -1 : 1;
        open_scene(&s, models[i % MODELS], &options);
        const int64_t width = lm_files_config(s.files)->width;
        float *alone = calloc((size_t)(TOKENS * width), sizeof *alone);
        assert_non_null(alone);
        assert_int_equal(lm_text_open_batch(&text, s.model, TEXTS, LENGTH, &error), 0);
        for (int n = 0; n < 2 * TEXTS; n++) {
            lm_text_batch(text, n == TEXTS ? TEXTS : 1);
            const int64_t first = n > TEXTS ? n - TEXTS : n, count = n == TEXTS ? TOKENS : LENGTH;
            if (lm_text_read(text, s.tokens + (n == TEXTS ? 0 : first * LENGTH), count, &hidden, &error))
                fail_msg("%s", error.text);
            const float *got = hidden.data;
            if (n < TEXTS)
                memcpy(alone + first * LENGTH * width, got, (size_t)(LENGTH * width) * sizeof *got);
            else if (n == TEXTS)
                assert_true(distance(got, alone, TOKENS * width) < 1e-5);
            else
                assert_memory_equal(got, alone + first * LENGTH * width,
                                    (size_t)(LENGTH * width) * sizeof *got);
        }
        lm_text_close(text);
        free(alone);
        close_scene(&s);
    }
}

static void test_attention(void **state)
{
    (void)state;
    for (int i = 0; i < MODELS; i++) {
        lm_options options = lm_options_default();
        scene softmax;
        open_scene(&softmax, models[i], &options);
        float *want = run(&softmax, TOKENS);
        const int64_t count = TOKENS * softmax.width;
        double apart[4];
        for (int n = 0; n < 4; n++) {
            options = lm_options_default();
            options.mechanism = n == 0 ? LOAM_PARALLAX : n < 3 ? LOAM_LLA : LOAM_SOFTMAX;
            options.ridge = n == 1 ? 1e7 : 0.5;
            options.inverse_temperature = n == 3 ? 2 : 1;
            scene other;
            open_scene(&other, models[i], &options);
            float *got = run(&other, TOKENS);
            apart[n] = distance(got, want, count);
            if (strcmp(models[i], "bert") != 0) {
                float *steps = run(&other, 1);
                assert_true(distance(steps, got, count) < 1e-4);
                free(steps);
            }
            free(got);
            close_scene(&other);
        }
        assert_true(apart[0] < 1e-6 && apart[1] < 1e-5 && apart[2] > 1e-4 && apart[3] > 1e-4);
        free(want);
        close_scene(&softmax);
    }
}

/* LLA in one layer: neither softmax nor LLA in all, and other layers give other results. */
static void test_one_layer(void **state)
{
    lm_options options = lm_options_default();
    float *got[4];
    int64_t width = 0;
    (void)state;
    options.mechanism = LOAM_LLA, options.ridge = 0.5;
    for (int n = 0; n < 4; n++) {
        options.only = n == 3 ? -1 : n;
        if (n == 2) options.mechanism = LOAM_SOFTMAX, options.only = -1;
        if (n == 3) options.mechanism = LOAM_LLA;
        scene s;
        open_scene(&s, "llama", &options);
        width = s.width;
        got[n] = run(&s, TOKENS);
        close_scene(&s);
    }
    for (int a = 0; a < 4; a++)
        for (int b = 0; b < a; b++)
            assert_true(distance(got[a], got[b], TOKENS * width) > 1e-5);
    for (int n = 0; n < 4; n++)
        free(got[n]);
}

/* ---- heads of their own */

enum { MOST_HEADS = 16 };

/* What layer `layer` makes of its heads, [TOKENS][heads_q head_dim]; layers before it run as it does. */
static float *heads_of_layer(const scene *s, const lm_options *options, int64_t layer)
{
    const lm_config *c = lm_files_config(s->files);
    const int64_t width = c->heads_q * c->head_dim;
    float *out = calloc((size_t)(TOKENS * width), sizeof *out),
          *stream = calloc((size_t)(TOKENS * c->width), sizeof *stream);
    const matrix x = matrix_dense(stream, LOAM_F32, 1, TOKENS, c->width);
    lm_text *text;
    io_error error;
    assert_true(out && stream);
    assert_int_equal(lm_text_open(&text, s->model, TOKENS, TOKENS, &error), 0);
    if (lm_text_attention(text, options, &error)) fail_msg("%s", error.text);
    assert_int_equal(lm_text_enter(text, s->tokens, TOKENS, x, &error), 0);
    assert_int_equal(lm_text_layers(text, 0, layer + 1, x, &error), 0);
    s->on.op->copy(&s->on, matrix_dense(out, LOAM_F32, 1, TOKENS, width),
                   lm_text_heads(text, layer, TOKENS).o);
    lm_text_close(text);
    free(stream);
    return out;
}

static bool same_head(const lm_config *c, const float *a, const float *b, int64_t head)
{
    bool same = true;
    for (int64_t i = 0; i < TOKENS; i++)
        same &= memcmp(a + (i * c->heads_q + head) * c->head_dim, b + (i * c->heads_q + head) * c->head_dim,
                       (size_t)c->head_dim * sizeof *a) == 0;
    return same;
}

/* A ridge and an inverse temperature for each head: where all have the same, the bits of the model that has
 * them as a whole; where each has its own, those of the model that has each as a whole. */
static void test_heads(void **state)
{
    static const lm_head kinds[] = { { 0.5, 1 }, { 2, 1 }, { INFINITY, 1 }, { 2, 1.5 }, { INFINITY, 2 } };
    enum { KINDS = sizeof kinds / sizeof *kinds };
    (void)state;
    for (int i = 0; i < MODELS; i++) {
        lm_options options = lm_options_default();
        lm_head heads[MOST_HEADS];
        float *whole[KINDS];
        scene s;
        open_scene(&s, models[i], &options);
        const lm_config *c = lm_files_config(s.files);
        assert_true(c->layers * c->heads_q <= MOST_HEADS);
        for (int n = 0; n < KINDS; n++) {
            options = lm_options_default();
            options.mechanism = isinf(kinds[n].ridge) ? LOAM_SOFTMAX : LOAM_LLA;
            options.ridge = kinds[n].ridge, options.inverse_temperature = kinds[n].inverse_temperature;
            whole[n] = heads_of_layer(&s, &options, 0);
            float *last = heads_of_layer(&s, &options, c->layers - 1);
            for (int64_t h = 0; h < c->layers * c->heads_q; h++)
                heads[h] = kinds[n];
            options.heads = heads;
            float *each = heads_of_layer(&s, &options, c->layers - 1);
            assert_memory_equal(each, last, (size_t)(TOKENS * c->heads_q * c->head_dim) * sizeof *each);
            free(each);
            free(last);
        }
        for (int turn = 0; turn < KINDS; turn++) {
            for (int64_t h = 0; h < c->layers * c->heads_q; h++)
                heads[h] = kinds[(h + turn) % KINDS];
            float *mixed = heads_of_layer(&s, &options, 0);
            for (int64_t h = 0; h < c->heads_q; h++)
                for (int n = 0; n < KINDS; n++)
                    assert_int_equal(same_head(c, mixed, whole[n], h), n == (h + turn) % KINDS);
            free(mixed);
        }
        for (int n = 0; n < KINDS; n++)
            free(whole[n]);
        close_scene(&s);
    }
}

/* One head of one layer changes itself alone there, and all that follows. */
static void test_one_head(void **state)
{
    (void)state;
    for (int i = 0; i < MODELS; i++) {
        lm_options options = lm_options_default(), changed = options;
        lm_head heads[MOST_HEADS];
        scene s;
        open_scene(&s, models[i], &options);
        const lm_config *c = lm_files_config(s.files);
        const int64_t layer = c->layers - 1;
        changed.mechanism = LOAM_LLA, changed.ridge = 0.5;
        float *softmax = heads_of_layer(&s, &options, layer);
        for (int64_t head = 0; head < c->heads_q; head++) {
            changed.only = layer, changed.only_head = head;
            float *one = heads_of_layer(&s, &changed, layer);
            for (int64_t h = 0; h < c->heads_q; h++)
                assert_int_equal(same_head(c, one, softmax, h), h != head);
            for (int64_t h = 0; h < c->layers * c->heads_q; h++)
                heads[h] = (lm_head){ h == layer * c->heads_q + head ? 0.5 : (double)INFINITY, 1 };
            changed.heads = heads;
            float *listed = heads_of_layer(&s, &changed, layer);
            assert_memory_equal(listed, one, (size_t)(TOKENS * c->heads_q * c->head_dim) * sizeof *one);
            changed.heads = NULL, changed.only = 0;
            float *before = heads_of_layer(&s, &changed, layer);
            for (int64_t h = 0; h < c->heads_q; h++)
                assert_false(same_head(c, before, softmax, h));
            free(before);
            free(listed);
            free(one);
        }
        free(softmax);
        close_scene(&s);
    }
}

/* Heads of their own in a model that reads token by token; a model is as its text's attention says. */
static void test_heads_in_steps(void **state)
{
    lm_head heads[MOST_HEADS];
    (void)state;
    for (int64_t h = 0; h < MOST_HEADS; h++)
        heads[h] = (lm_head){ h % 3 ? 0.5 * (double)h : (double)INFINITY, h % 4 == 1 ? 1.5 : 1 };
    for (int i = 0; i < MODELS - 1; i++) {
        lm_options options = lm_options_default();
        scene s;
        options.heads = heads;
        open_scene(&s, models[i], &options);
        float *whole = run(&s, TOKENS), *steps = run(&s, 1);
        assert_true(distance(steps, whole, TOKENS * s.width) < 1e-4);
        free(steps);
        free(whole);
        close_scene(&s);
    }
}

/* 16-bit weights in memory are what the file has, or rounded from it. */
static void test_weights(void **state)
{
    static const loam_dtype types[] = { LOAM_F32, LOAM_BF16, LOAM_F16 };
    (void)state;
    for (int i = 0; i < MODELS; i++) {
        float *got[3];
        int64_t count = 0, bytes[3];
        for (int n = 0; n < 3; n++) {
            lm_options options = lm_options_default();
            options.weights = types[n];
            scene s;
            open_scene(&s, models[i], &options);
            const bool bert = strcmp(models[i], "bert") == 0;
            got[n] = run(&s, n == 1 || bert ? TOKENS : 3);
            count = TOKENS * s.width, bytes[n] = lm_model_bytes(s.model);
            close_scene(&s);
        }
        assert_true(bytes[1] == bytes[2] && bytes[1] < bytes[0] * 2 / 3);
        assert_true(distance(got[1], got[0], count) < 5e-2 && distance(got[2], got[0], count) < 5e-3);
        if (strcmp(models[i], "neox") == 0) assert_true(distance(got[2], got[0], count) < 1e-5);
        for (int n = 0; n < 3; n++)
            free(got[n]);
    }
}

/* Sums are shared out by rows and columns, not by threads. */
static void test_threads(void **state)
{
    const lm_options options = lm_options_default();
    (void)state;
    for (int i = 0; i < MODELS; i++) {
        scene s;
        open_scene(&s, models[i], &options);
        float *want = run(&s, TOKENS);
        s.on.threads = 1;
        float *got = run(&s, TOKENS);
        assert_memory_equal(got, want, (size_t)(TOKENS * s.width) * sizeof *got);
        free(got);
        free(want);
        close_scene(&s);
    }
}

static void test_refusals(void **state)
{
    lm_options options = lm_options_default();
    scene s;
    open_scene(&s, "gpt2", &options);
    const lm_config *c = lm_files_config(s.files);
    const int32_t bad[] = { (int32_t)c->vocabulary, -1 };
    io_error error;
    lm_text *text;
    lm_model *model;
    matrix hidden;
    (void)state;
    assert_int_equal(lm_text_open(&text, s.model, c->context + 1, 1, &error), EXIT_INPUT);
    assert_null(text);
    assert_int_equal(lm_text_open(&text, s.model, 4, 3, &error), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(lm_text_read(text, bad + i, 1, &hidden, &error), EXIT_INPUT);
    assert_int_equal(lm_text_read(text, s.tokens, 4, &hidden, &error), EXIT_INPUT);
    assert_int_equal(lm_text_read(text, s.tokens, 3, &hidden, &error), 0);
    assert_int_equal(lm_text_read(text, s.tokens, 2, &hidden, &error), EXIT_INPUT);
    assert_non_null(strstr(error.text, "expected 1 to 1"));
    assert_int_equal(lm_text_length(text), 3);
    lm_text_close(text);
    options.only = c->layers;
    assert_int_equal(lm_model_open(&model, &s.on, s.files, &options, &error), EXIT_USAGE);
    assert_null(model);
    options.only = -1, options.only_head = c->heads_q;
    assert_int_equal(lm_model_open(&model, &s.on, s.files, &options, &error), EXIT_USAGE);
    assert_non_null(strstr(error.text, "the model's layers have"));
    close_scene(&s);
}

static void test_refused_heads(void **state)
{
    static const lm_head bad[] = { { NAN, 1 }, { -1, 1 }, { 1, 0 }, { 1, INFINITY } };
    lm_options options = lm_options_default();
    lm_head heads[MOST_HEADS];
    scene s;
    io_error error;
    lm_text *text;
    (void)state;
    open_scene(&s, "llama", &options);
    assert_int_equal(lm_text_open(&text, s.model, 4, 3, &error), 0);
    for (int n = 0; n < 4; n++) {
        for (int h = 0; h < MOST_HEADS; h++)
            heads[h] = h == 1 ? bad[n] : (lm_head){ INFINITY, 1 };
        options.heads = heads;
        assert_int_equal(lm_text_attention(text, &options, &error), EXIT_USAGE);
        assert_non_null(strstr(error.text, "layer 0, head 1"));
    }
    options = lm_options_default();
    options.mechanism = LOAM_PARALLAX;
    assert_int_equal(lm_text_attention(text, &options, &error), EXIT_USAGE);
    assert_non_null(strstr(error.text, "parallax"));
    lm_text_close(text);
    close_scene(&s);
}

/* ---- scores */

static void test_windows(void **state)
{
    (void)state;
    for (int64_t tokens = 0; tokens < 30; tokens++)
        for (int64_t length = 1; length < 9; length++)
            for (int prefix = 0; prefix < 2; prefix++) {
                score_window w;
                int64_t next = prefix ? 0 : 1, n = 0; /* the next target */
                for (; score_window_at(&w, tokens, length, prefix, n); n++) {
                    const int64_t end = w.begin + w.inputs; /* the last target */
                    assert_int_equal(end - w.scored + 1, next);
                    assert_true(w.begin >= (prefix ? -1 : 0) && w.inputs <= length && w.scored <= w.inputs);
                    next = end + 1;
                    assert_true(w.inputs == length || n == 0);
                }
                assert_int_equal(next, tokens > (prefix ? 0 : 1) ? tokens : prefix ? 0 : 1);
            }
}

static void test_scores(void **state)
{
    const lm_options options = lm_options_default();
    scene s;
    open_scene(&s, "llama", &options);
    double nll[TOKENS];
    io_error error;
    scorer *scores;
    (void)state;
    float *logits = run(&s, TOKENS);
    assert_int_equal(scorer_open(&scores, s.model, TOKENS, &error), 0);
    for (int n = 0; n < 2; n++) {
        assert_int_equal(scorer_run(scores, s.tokens, TOKENS - 1, s.tokens + 3, TOKENS - 3, nll, &error), 0);
        for (int i = 0; i < TOKENS - 3; i++) {
            const float *row = logits + (i + 2) * s.width;
            double sum = 0;
            for (int64_t c = 0; c < s.width; c++)
                sum += exp((double)row[c]);
            assert_true(fabs(log(sum) - (double)row[s.tokens[i + 3]] - nll[i]) < 1e-5);
        }
    }
    const int32_t beyond = (int32_t)s.width;
    assert_int_equal(scorer_run(scores, s.tokens, 1, &beyond, 1, nll, &error), EXIT_INPUT);
    scorer_close(scores);
    free(logits);
    close_scene(&s);
}

/* NLL of both models as each has it alone, and the divergence of their logits in float64. */
static void test_pairs(void **state)
{
    enum { SCORED = TOKENS - 3 };
    lm_options options = lm_options_default();
    scene s[2];
    scorer *scores[2];
    io_error error;
    float *logits[2];
    double nll[2][SCORED], got[3][SCORED];
    (void)state;
    for (int n = 0; n < 2; n++) {
        options.mechanism = n == 0 ? LOAM_LLA : LOAM_SOFTMAX;
        open_scene(&s[n], "llama", &options);
        logits[n] = run(&s[n], TOKENS);
    }
    lm_model_close(s[1].model);
    assert_int_equal(lm_model_open(&s[1].model, &s[0].on, s[1].files, &options, &error), 0);
    for (int n = 0; n < 2; n++) {
        assert_int_equal(scorer_open(&scores[n], s[n].model, TOKENS, &error), 0);
        assert_int_equal(
            scorer_run(scores[n], s[n].tokens, TOKENS - 1, s[n].tokens + 3, SCORED, nll[n], &error), 0);
    }
    const score_pair pair = { got[0], got[1], got[2] };
    assert_int_equal(
        scorer_run_pair(scores[0], scores[1], s[0].tokens, TOKENS - 1, s[0].tokens + 3, SCORED, pair, &error),
        0);
    assert_memory_equal(got[0], nll[0], sizeof nll[0]);
    assert_memory_equal(got[1], nll[1], sizeof nll[1]);
    for (int i = 0; i < SCORED; i++) {
        const float *q = logits[0] + (i + 2) * s[0].width, *p = logits[1] + (i + 2) * s[0].width;
        double sums[2] = { 0 }, want = 0;
        for (int64_t c = 0; c < s[0].width; c++)
            sums[0] += exp((double)q[c]), sums[1] += exp((double)p[c]);
        for (int64_t c = 0; c < s[0].width; c++)
            want += exp((double)p[c]) / sums[1] * ((double)p[c] - (double)q[c] - log(sums[1] / sums[0]));
        assert_true(want > 1e-7 && fabs(got[2][i] / want - 1) < 1e-3);
    }
    for (int n = 0; n < 2; n++) {
        scorer_close(scores[n]);
        free(logits[n]);
    }
    close_scene(&s[1]);
    close_scene(&s[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_expected),      cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_batch),         cmocka_unit_test(test_attention),
        cmocka_unit_test(test_one_layer),     cmocka_unit_test(test_heads),
        cmocka_unit_test(test_one_head),      cmocka_unit_test(test_heads_in_steps),
        cmocka_unit_test(test_refused_heads), cmocka_unit_test(test_weights),
        cmocka_unit_test(test_threads),       cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_windows),       cmocka_unit_test(test_scores),
        cmocka_unit_test(test_pairs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
