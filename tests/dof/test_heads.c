/* SPDX-License-Identifier: MIT
 * Queries and keys of tiny models of every architecture as a sink is told of them, and degrees of freedom of
 * their heads beside those of the same rows by themselves. */
#include "dof/heads.h"

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
enum { MODELS = sizeof models / sizeof *models, TOKENS = 12, SHORT = 7, MOST = 64 };

typedef struct scene {
    machine on;
    lm_files *files;
    lm_model *model;
    const lm_config *config;
    int32_t tokens[TOKENS];
    lm_capture *capture;
} scene;

static void open_scene(scene *s, const char *name, int threads)
{
    const bool one_file = strcmp(name, "llama-gguf") == 0;
    const lm_options options = lm_options_default();
    char path[4096];
    io_error error;
    int64_t *ids, count;
    snprintf(path, sizeof path, "%s/%s%s", LM_TEST_DATA, name, one_file ? "/model.gguf" : "");
    *s = (scene){ .on = machine_cpu(LOAM_F32, threads) };
    if (lm_files_open(&s->files, path, &error)) fail_msg("%s", error.text);
    if (lm_model_open(&s->model, &s->on, s->files, &options, &error)) fail_msg("%s", error.text);
    if (npy_read_integers(&ids, &count, LM_TEST_DATA "/tokens.npy", &error)) fail_msg("%s", error.text);
    assert_int_equal(count, TOKENS);
    for (int i = 0; i < TOKENS; i++)
        s->tokens[i] = (int32_t)ids[i];
    free(ids);
    s->config = lm_model_config(s->model);
    if (lm_capture_open(&s->capture, s->model, TOKENS, &error)) fail_msg("%s", error.text);
}

static void close_scene(scene *s)
{
    lm_capture_close(s->capture);
    lm_model_close(s->model);
    lm_files_close(s->files);
    machine_close(&s->on);
}

/* ---- what a sink is told */

typedef struct seen {
    const scene *scene;
    int64_t layers, end; /* told; the layer at which it fails */
    double apart;        /* the largest difference from the outputs of attention */
    const float *last;   /* queries of the last layer */
} seen;

static double dot(const float *x, const float *y, int64_t count)
{
    double sum = 0;
    for (int64_t c = 0; c < count; c++)
        sum += (double)x[c] * (double)y[c];
    return sum;
}

/* o of row i and a head by softmax over what it sees of k and v. */
static void check_row(seen *to, const float *const f[4], int64_t layer, int64_t head, int64_t i)
{
    const lm_config *c = to->scene->config;
    const int64_t d = c->head_dim, from = head / (c->heads_q / c->heads_kv) * d, row = c->heads_kv * d;
    const int64_t keys = c->architecture == LM_BERT ? TOKENS : i + 1, place = (i * c->heads_q + head) * d;
    double sum = 0, o[MOST] = { 0 };
    for (int64_t j = 0; j < keys; j++) {
        const double p = exp(lm_config_scale(c, layer) * dot(f[0] + place, f[1] + j * row + from, d));
        sum += p;
        for (int64_t x = 0; x < d; x++)
            o[x] += p * (double)f[2][j * row + from + x];
    }
    for (int64_t x = 0; x < d; x++)
        to->apart = fmax(to->apart, fabs(o[x] / sum - (double)f[3][place + x]));
}

static int look(void *to, int64_t layer, const lm_heads *heads, io_error *error)
{
    seen *const s = to;
    const lm_config *c = s->scene->config;
    const matrix all[] = { heads->q, heads->k, heads->v, heads->o };
    float *f[4];
    assert_int_equal(layer, s->layers++);
    if (layer == s->end) return io_fail(error, EXIT_OUTPUT, "enough");
    for (int n = 0; n < 4; n++) {
        assert_int_equal(all[n].rows, TOKENS);
        assert_int_equal(all[n].width, (n == 1 || n == 2 ? c->heads_kv : c->heads_q) * c->head_dim);
        f[n] = calloc((size_t)matrix_elements(all[n]), sizeof *f[n]);
        assert_non_null(f[n]);
        assert_int_equal(lm_model_fetch(s->scene->model, f[n], all[n], error), 0);
    }
    if (layer == c->layers - 1)
        assert_memory_equal(f[0], s->last, (size_t)matrix_elements(all[0]) * sizeof *f[0]);
    for (int64_t head = 0; head < c->heads_q; head++)
        for (int64_t i = 0; i < TOKENS; i++)
            check_row(s, (const float *const[]){ f[0], f[1], f[2], f[3] }, layer, head, i);
    for (int n = 0; n < 4; n++)
        free(f[n]);
    return 0;
}

/* Queries of the last layer where the text is read in one go. */
static float *last_queries(const scene *s)
{
    const lm_config *c = s->config;
    float *out = calloc((size_t)(TOKENS * c->heads_q * c->head_dim), sizeof *out);
    lm_text *text;
    matrix hidden;
    io_error error;
    assert_non_null(out);
    assert_int_equal(lm_text_open(&text, s->model, TOKENS, TOKENS, &error), 0);
    assert_int_equal(lm_text_read(text, s->tokens, TOKENS, &hidden, &error), 0);
    assert_int_equal(lm_model_fetch(s->model, out, lm_text_heads(text, c->layers - 1, TOKENS).q, &error), 0);
    lm_text_close(text);
    return out;
}

/* Softmax of the scaled products of what is told is what the layer made: after bias and rotation, of every
 * layer, and for a second window too. */
static void test_capture(void **state)
{
    io_error error;
    (void)state;
    for (int i = 0; i < MODELS; i++) {
        scene s;
        open_scene(&s, models[i], 2);
        float *last = last_queries(&s);
        for (int window = 0; window < 2; window++) {
            seen to = { .scene = &s, .end = -1, .last = last };
            assert_true(s.config->head_dim <= MOST);
            if (lm_capture_read(s.capture, s.tokens, TOKENS, look, &to, &error)) fail_msg("%s", error.text);
            assert_int_equal(to.layers, s.config->layers);
            printf("%-14s %.1e\n", models[i], to.apart);
            assert_true(to.apart < 1e-5);
        }
        seen to = { .scene = &s, .end = 1, .last = last };
        assert_int_equal(lm_capture_read(s.capture, s.tokens, TOKENS, look, &to, &error), EXIT_OUTPUT);
        assert_string_equal(error.text, "enough");
        assert_int_equal(to.layers, 2);
        s.tokens[3] = -1;
        assert_int_equal(lm_capture_read(s.capture, s.tokens, TOKENS, look, &to, &error), EXIT_INPUT);
        free(last);
        close_scene(&s);
    }
}

/* bf16, as a GPU has them, is widened in the room for float32. */
static void test_fetch(void **state)
{
    uint16_t bits[37];
    float out[37];
    io_error error;
    scene s;
    (void)state;
    open_scene(&s, "llama", 1);
    for (int i = 0; i < 37; i++)
        bits[i] = (uint16_t)(0x3f80 + i);
    assert_int_equal(lm_model_fetch(s.model, out, matrix_dense(bits, LOAM_BF16, 1, 1, 37), &error), 0);
    for (int i = 0; i < 37; i++)
        assert_true(fabs((double)out[i] - (1 + i / 128.0)) < 1e-9);
    close_scene(&s);
}

/* ---- degrees of freedom */

static dof_options options_of(int64_t samples, int64_t skip, uint64_t seed, int threads)
{
    dof_options o = { .lambda = 0x1p-8, .samples = samples, .skip = skip, .seed = seed, .threads = threads };
    for (int mode = 0; mode < DOF_MODES; mode++)
        o.modes[mode] = true;
    return o;
}

static void count_call(void *calls) { ++*(int *)calls; }

/* Of two windows, the second a shorter one. */
static dof_heads *study_of(scene *s, const dof_options *o)
{
    static const int64_t lengths[] = { TOKENS, SHORT };
    dof_heads *h;
    io_error error;
    int calls = 0;
    if (dof_heads_open(&h, s->model, o, lengths, 2, &error)) fail_msg("%s", error.text);
    for (int w = 0; w < 2; w++) {
        dof_heads_window(h);
        if (lm_capture_read(s->capture, s->tokens + w, lengths[w], dof_heads_sink, h, &error))
            fail_msg("%s", error.text);
    }
    if (dof_heads_solve(h, count_call, &calls, &error)) fail_msg("%s", error.text);
    assert_int_equal(calls, s->config->layers * s->config->heads_q);
    return h;
}

/* Rows of all windows of one layer, to be asked for the same by hand. */
typedef struct rows {
    const scene *scene;
    const dof_options *options;
    int64_t layer, head, count; /* rows so far, of `x` */
    float x[4 * TOKENS * MOST];
    dof_value attention;
    dof_room room;
} rows;

static int gather(void *to, int64_t layer, const lm_heads *heads, io_error *error)
{
    rows *const r = to;
    const lm_config *c = r->scene->config;
    const int64_t d = c->head_dim, key_head = r->head / (c->heads_q / c->heads_kv);
    (void)error;
    if (layer != r->layer) return 0;
    const float *const q = (const float *)heads->q.data + r->head * d, *const k = (const float *)
                                                                                      heads->k.data +
                                                                                  key_head * d;
    const dof_text text = {
        q, k, heads->q.row, heads->k.row, heads->q.rows, lm_config_scale(c, layer), c->architecture != LM_BERT
    };
    dof_value n;
    assert_true(dof_attention(&r->room, &text, r->options->lambda, &n));
    r->attention.whole += n.whole / 2, r->attention.half += n.half / 2;
    for (int64_t i = r->options->skip; i < heads->q.rows; i++, r->count += 2) {
        memcpy(r->x + r->count * d, q + i * heads->q.row, (size_t)d * sizeof *q);
        memcpy(r->x + (r->count + 1) * d, k + i * heads->k.row, (size_t)d * sizeof *k);
    }
    return 0;
}

/* All queries and keys as the sample: the order, which alone is drawn, changes nothing. */
static void check_head(scene *s, const dof_options *o, const dof_heads *h, int64_t layer, int64_t head)
{
    rows *r = calloc(1, sizeof *r);
    const int64_t place = layer * s->config->heads_q + head;
    io_error error;
    double n, square = 0;
    assert_non_null(r);
    r->scene = s, r->options = o, r->layer = layer, r->head = head;
    assert_int_equal(dof_room_open(&r->room, 4 * TOKENS, s->config->head_dim, true, &error), 0);
    for (int w = 0; w < 2; w++)
        assert_int_equal(lm_capture_read(s->capture, s->tokens + w, w ? SHORT : TOKENS, gather, r, &error),
                         0);
    assert_int_equal(r->count, o->samples);
    dof_sample(&r->room, r->x, r->count, sqrt(lm_config_scale(s->config, layer)));
    for (int64_t i = 0; i < r->count; i++)
        square += r->room.squares[i] / (double)r->count;
    assert_true(fabs(dof_heads_squares(h)[place] / square - 1) < 1e-12);
    for (int mode = 0; mode < DOF_MODES; mode++) {
        const dof_value got = dof_heads_values(h, (dof_mode)mode)[place];
        n = r->attention.whole;
        if (mode != DOF_ATTN)
            assert_true(dof_kernel(&r->room, (dof_mode)mode, o->lambda, r->count, &n, NULL));
        assert_true(fabs(got.whole - n) < 1e-6);
        if (mode == DOF_ATTN)
            assert_true(s->config->architecture == LM_BERT ? isnan(got.half)
                                                           : fabs(got.half - r->attention.half) < 1e-9);
        else
            assert_true(got.half > 0 && (mode == DOF_REL || got.half < n));
    }
    dof_room_close(&r->room);
    free(r);
}

static void test_heads(void **state)
{
    (void)state;
    for (int i = 0; i < MODELS; i++)
        for (int64_t skip = 0; skip < 2; skip++) {
            const dof_options o = options_of(2 * (TOKENS + SHORT - 2 * skip), skip, 3, 2);
            scene s;
            open_scene(&s, models[i], 2);
            dof_heads *h = study_of(&s, &o);
            for (int64_t layer = 0; layer < s.config->layers; layer++)
                for (int64_t head = 0; head < s.config->heads_q; head++)
                    check_head(&s, &o, h, layer, head);
            dof_heads_close(h);
            close_scene(&s);
        }
}

/* The same bits for any number of threads; another sample by another seed. */
static void test_threads_and_seeds(void **state)
{
    static const struct {
        uint64_t seed;
        int threads;
    } runs[] = { { 1, 1 }, { 1, 3 }, { 2, 1 } };
    dof_value got[3][DOF_MODES][16];
    (void)state;
    for (int n = 0; n < 3; n++) {
        const dof_options o = options_of(20, 1, runs[n].seed, runs[n].threads);
        scene s;
        open_scene(&s, "llama", runs[n].threads);
        const int64_t heads = s.config->layers * s.config->heads_q;
        assert_true(heads <= 16);
        dof_heads *h = study_of(&s, &o);
        memset(got[n], 0, sizeof got[n]);
        for (int mode = 0; mode < DOF_MODES; mode++)
            memcpy(got[n][mode], dof_heads_values(h, (dof_mode)mode), (size_t)heads * sizeof got[n][0][0]);
        dof_heads_close(h);
        close_scene(&s);
    }
    assert_memory_equal(got[0], got[1], sizeof got[0]);
    assert_memory_equal(got[0][DOF_ATTN], got[2][DOF_ATTN], sizeof got[0][0]);
    assert_memory_not_equal(got[0][DOF_REL], got[2][DOF_REL], sizeof got[0][0]);
}

static void test_refused(void **state)
{
    static const int64_t lengths[] = { TOKENS, SHORT };
    io_error error;
    dof_heads *h;
    scene s;
    (void)state;
    open_scene(&s, "llama", 1);
    dof_options o = options_of(39, 0, 0, 1);
    assert_int_equal(dof_heads_open(&h, s.model, &o, lengths, 2, &error), EXIT_USAGE);
    assert_non_null(strstr(error.text, "--samples 39: the texts have 38 queries and keys"));
    o = options_of(2, TOKENS, 0, 1);
    assert_int_equal(dof_heads_open(&h, s.model, &o, lengths, 2, &error), EXIT_USAGE);
    assert_non_null(strstr(error.text, "--skip 12: no window has more tokens"));
    assert_null(h);
    close_scene(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_capture), cmocka_unit_test(test_fetch),
        cmocka_unit_test(test_heads),   cmocka_unit_test(test_threads_and_seeds),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
