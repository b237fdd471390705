/* SPDX-License-Identifier: MIT
 * Language models on a GPU give what they give on the CPU, whose logits are those of the Hugging Face library
 * (test_model.c): tiny models of every architecture, in pieces, with other attention and types, by heads and
 * layers, as they were trained; and the program there. */
#include "io/npy.h"
#include "lm/capture.h"
#include "lm/sample.h"
#include "lm/score.h"
#include "tests/cli/program.h"
#include "tests/lm/featured.h"
#include "tests/lm/grammar.h"

#include "cli/device.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *const models[] = { "gpt2",  "gpt2-scaled",   "neox",       "neox-serial",
                                      "llama", "llama-sharded", "llama-gguf", "bert" };
enum { SKIPPED = 77, MODELS = sizeof models / sizeof *models, WRITERS = MODELS - 1, TOKENS = 12 };

typedef struct scene {
    machine on;
    lm_files *files;
    lm_model *model;
    int32_t tokens[TOKENS];
    int64_t width; /* of what is expected */
} scene;

/* Where gpu-bundle.sh took the models, or where they are in the tree. */
static const char *data(void)
{
    static char path[4096];
    const char *const folder = getenv("LOAM_TEST_DATA");
    snprintf(path, sizeof path, "%s%s", folder ? folder : LM_TEST_DATA, folder ? "/lm" : "");
    return path;
}

static const char *file_of(int model)
{
    return strcmp(models[model], "llama-gguf") == 0 ? "/model.gguf" : "";
}

static const char *path_of(int model)
{
    static char path[4200];
    snprintf(path, sizeof path, "%s/%s%s", data(), models[model], file_of(model));
    return path;
}

static bool is_bert(const scene *s) { return lm_files_config(s->files)->architecture == LM_BERT; }

static machine open_gpu(loam_dtype operand)
{
    machine on;
    loam_error reason;
    if (machine_cuda(&on, operand, &reason)) fail_msg("%s", reason.text);
    return on;
}

/* The model points into it. */
static void open_scene(scene *s, machine on, const char *from, const lm_options *options)
{
    char path[4200];
    io_error error;
    int64_t *ids, count;
    *s = (scene){ .on = on };
    if (lm_files_open(&s->files, from, &error)) fail_msg("%s", error.text);
    if (lm_model_open(&s->model, &s->on, s->files, options, &error)) fail_msg("%s", error.text);
    snprintf(path, sizeof path, "%s/tokens.npy", data());
    if (npy_read_integers(&ids, &count, path, &error)) fail_msg("%s", error.text);
    assert_int_equal(count, TOKENS);
    const lm_config *c = lm_files_config(s->files);
    for (int i = 0; i < TOKENS; i++)
        s->tokens[i] = (int32_t)(ids[i] % c->vocabulary);
    free(ids);
    s->width = is_bert(s) ? c->width : c->vocabulary;
}

static void close_scene(scene *s)
{
    lm_model_close(s->model);
    lm_files_close(s->files);
    machine_close(&s->on);
}

static lm_text *open_text(const scene *s)
{
    io_error error;
    lm_text *text;
    if (lm_text_open(&text, s->model, TOKENS + 3, TOKENS, &error)) fail_msg("%s", error.text);
    return text;
}

/* The logits of rows that were read, or BERT's last states. */
static void put_rows(const scene *s, lm_text *text, matrix rows, float *to)
{
    io_error error;
    memory room = { 0 };
    if (!is_bert(s)) {
        (void)memory_matrix(&room, LOAM_F32, 1, rows.rows, s->width);
        assert_true(memory_open(&room, &s->on));
        const matrix logits = memory_matrix(&room, LOAM_F32, 1, rows.rows, s->width);
        lm_text_logits(text, rows, logits);
        rows = logits;
    }
    if (lm_model_fetch(s->model, to, rows, &error)) fail_msg("%s", error.text);
    memory_close(&room);
}

/* Reads tokens first .. first + count - 1; what comes of them to rows of `out`. */
static void read_some(const scene *s, lm_text *text, int64_t first, int64_t count, float *out)
{
    io_error error;
    matrix rows;
    if (lm_text_read(text, s->tokens + first, count, &rows, &error)) fail_msg("%s", error.text);
    put_rows(s, text, rows, out + first * s->width);
}

/* The same, layer by layer. */
static void read_layers(const scene *s, lm_text *text, int64_t first, int64_t count, float *out)
{
    const lm_config *c = lm_files_config(s->files);
    io_error error;
    memory room = { 0 };
    (void)memory_matrix(&room, LOAM_F32, 1, count, c->width);
    assert_true(memory_open(&room, &s->on));
    const matrix x = memory_matrix(&room, LOAM_F32, 1, count, c->width);
    if (lm_text_enter(text, s->tokens + first, count, x, &error)) fail_msg("%s", error.text);
    for (int64_t layer = 0; layer < c->layers; layer++)
        if (lm_text_layers(text, layer, layer + 1, x, &error)) fail_msg("%s", error.text);
    put_rows(s, text, lm_text_leave(text, x), out + first * s->width);
    memory_close(&room);
}

static float *make_rows(const scene *s)
{
    float *out = calloc((size_t)(TOKENS * s->width), sizeof *out);
    assert_non_null(out);
    return out;
}

/* All tokens, read in pieces of so many. */
static float *run(const scene *s, int64_t piece)
{
    float *out = make_rows(s);
    lm_text *text = open_text(s);
    for (int64_t first = 0; first < TOKENS; first += piece)
        read_some(s, text, first, TOKENS - first < piece ? TOKENS - first : piece, out);
    lm_text_close(text);
    return out;
}

static float *run_on(machine on, const char *path, const lm_options *options, int64_t piece, int64_t *count)
{
    scene s;
    open_scene(&s, on, path, options);
    float *out = run(&s, piece);
    *count = TOKENS * s.width;
    close_scene(&s);
    return out;
}

/* The largest difference, relative to the largest number. */
static double distance(const float *x, const float *y, int64_t count)
{
    double most = 0, apart = 0;
    for (int64_t i = 0; i < count; i++) {
        most = fmax(most, fabs((double)y[i]));
        apart = fmax(apart, fabs((double)x[i] - (double)y[i]));
        if (!isfinite(x[i])) return INFINITY;
    }
    return apart / most;
}

static const loam_dtype weight_types[] = { LOAM_F32, LOAM_BF16, LOAM_F16 };

/* Operands in bfloat16 lose 2^-9 of each, in a few layers. */
static void test_logits(void **state)
{
    (void)state;
    for (int i = 0; i < MODELS; i++)
        for (int w = 0; w < 3; w++) {
            lm_options options = lm_options_default();
            int64_t count;
            double apart[2];
            options.weights = weight_types[w];
            float *want = run_on(machine_cpu(LOAM_F32, 2), path_of(i), &options, TOKENS, &count);
            for (int n = 0; n < 2; n++) {
                float *got = run_on(open_gpu(n == 0 ? LOAM_F32 : LOAM_BF16), path_of(i), &options, TOKENS,
                                    &count);
                apart[n] = distance(got, want, count);
                free(got);
            }
            printf("%-14s %-4s %.1e, operands bf16 %.1e\n", models[i], loam_dtype_name(weight_types[w]),
                   apart[0], apart[1]);
            assert_true(apart[0] < 1e-4 && apart[1] < 5e-2);
            free(want);
        }
}

/* BERT reads whole texts. */
static void test_pieces(void **state)
{
    static const int64_t pieces[] = { 1, 5 };
    (void)state;
    for (int i = 0; i < WRITERS; i++)
        for (int n = 0; n < 4; n++) {
            const lm_options options = lm_options_default();
            const loam_dtype operand = n < 2 ? LOAM_F32 : LOAM_BF16;
            int64_t count;
            float *whole = run_on(open_gpu(operand), path_of(i), &options, TOKENS, &count),
                  *got = run_on(open_gpu(operand), path_of(i), &options, pieces[n % 2], &count);
            assert_true(distance(got, whole, count) < (n < 2 ? 1e-4 : 5e-2));
            free(whole), free(got);
        }
}

static void test_attention(void **state)
{
    (void)state;
    for (int i = 0; i < MODELS; i++)
        for (int n = 0; n < 6; n++) {
            lm_options options = lm_options_default();
            options.mechanism = n < 2 ? LOAM_PARALLAX : n < 4 ? LOAM_LLA : LOAM_SOFTMAX;
            options.ridge = n == 2 ? 1000 : 0.5;
            options.inverse_temperature = n == 4 ? 2 : 1;
            options.only = n % 2;
            int64_t count;
            float *want = run_on(machine_cpu(LOAM_F32, 2), path_of(i), &options, TOKENS, &count),
                  *got = run_on(open_gpu(LOAM_F32), path_of(i), &options, TOKENS, &count);
            assert_true(distance(got, want, count) < 1e-4);
            free(got);
            if (i < WRITERS) {
                float *steps = run_on(open_gpu(LOAM_F32), path_of(i), &options, 1, &count);
                assert_true(distance(steps, want, count) < 1e-4);
                free(steps);
            }
            free(want);
        }
}

/* Models with features in all layers, or with softmax in the first, shared and untied too: whole and token by
 * token; an encoder whole. */
static void test_features(void **state)
{
    lm_options options = lm_options_default();
    (void)state;
    options.own = true;
    assert_true(shell_holds("mkdir student"));
    for (int i = 0; i < MODELS; i++)
        for (int n = 0; n < 6; n++) {
            int64_t count;
            if (n < 4)
                write_featured("student", path_of(i), n % 2 * 8, n / 2);
            else
                write_untied("student", path_of(i), n % 2 * 8);
            float *want = run_on(machine_cpu(LOAM_F32, 2), "student", &options, TOKENS, &count);
            for (int k = 0; k < 6; k += i < WRITERS ? 1 : 3) {
                const loam_dtype operand = k < 3 ? LOAM_F32 : LOAM_BF16;
                static const int64_t pieces[] = { TOKENS, 5, 1 };
                float *got = run_on(open_gpu(operand), "student", &options, pieces[k % 3], &count);
                const double apart = distance(got, want, count);
                if (!(apart < (k < 3 ? 1e-4 : 5e-2))) fail_msg("%s, %d, %d: %g", models[i], n, k, apart);
                free(got);
            }
            free(want);
        }
}

/* Two texts that are read by turns have the bits of one that is read alone; so has one that was rewound. */
static void test_beside(void **state)
{
    static const int64_t pieces[] = { 5, 1, 1, 2, 3 };
    (void)state;
    for (int i = 0; i < WRITERS; i++)
        for (int n = 0; n < 2; n++) {
            const lm_options options = lm_options_default();
            scene s;
            open_scene(&s, open_gpu(n == 0 ? LOAM_F32 : LOAM_BF16), path_of(i), &options);
            float *alone = make_rows(&s), *one = make_rows(&s), *two = make_rows(&s);
            lm_text *text[3] = { open_text(&s), open_text(&s), open_text(&s) };
            for (int64_t first = 0, k = 0; first < TOKENS; first += pieces[k++])
                read_some(&s, text[0], first, pieces[k], alone);
            read_some(&s, text[2], 0, TOKENS, two);
            lm_text_rewind(text[2], 5);
            for (int64_t first = 0, k = 0; first < TOKENS; first += pieces[k++]) {
                read_some(&s, text[1], first, pieces[k], one);
                if (k > 0) read_some(&s, text[2], first, pieces[k], two);
            }
            assert_memory_equal(one, alone, (size_t)(TOKENS * s.width) * sizeof *one);
            if (n == 0) assert_true(distance(two, alone, TOKENS * s.width) < 1e-4);
            for (int k = 0; k < 3; k++)
                lm_text_close(text[k]);
            free(alone), free(one), free(two);
            close_scene(&s);
        }
}

/* The logits of tokens LONG - STEPS .. LONG - 1, read one by one after all before them. */
enum { LONG = 530, STEPS = 24 };
static float *run_long(machine on, const char *path, const lm_options *options, int64_t *width)
{
    scene s;
    io_error error;
    lm_text *text;
    matrix rows;
    int32_t tokens[LONG];
    open_scene(&s, on, path, options);
    for (int i = 0; i < LONG; i++)
        tokens[i] = (int32_t)((i * 7 + i / 13) % s.width);
    if (lm_text_open(&text, s.model, LONG + 40, LONG, &error)) fail_msg("%s", error.text);
    if (lm_text_read(text, tokens, LONG - STEPS, &rows, &error)) fail_msg("%s", error.text);
    float *out = calloc((size_t)(STEPS * s.width), sizeof *out);
    assert_non_null(out);
    for (int i = 0; i < STEPS; i++) {
        memcpy(s.tokens, tokens + LONG - STEPS + i, sizeof *tokens);
        read_some(&s, text, 0, 1, out + i * s.width);
    }
    lm_text_close(text);
    *width = s.width;
    close_scene(&s);
    return out;
}

static void expect_near(const char *path, const char *what, double apart, double bound)
{
    if (!(apart < bound)) fail_msg("%s, %s: %.1e apart, expected less than %.1e", path, what, apart, bound);
}

/* Keys of one query are read in splits of 256: the third begins while tokens are read. */
static void test_long(void **state)
{
    (void)state;
    for (int i = 0; i < WRITERS; i++) {
        static const char *const runs[] = { "f32", "bf16", "LLA", "LLA in one layer", "Parallax" };
        if (strncmp(models[i], "gpt2", 4) == 0) continue; /* its positions end before */
        for (int n = 0; n < 5; n++) {
            lm_options options = lm_options_default();
            int64_t width;
            options.mechanism = n == 2 || n == 3 ? LOAM_LLA : n == 4 ? LOAM_PARALLAX : LOAM_SOFTMAX;
            options.only = n == 3 ? 1 : -1;
            float *want = run_long(machine_cpu(LOAM_F32, 2), path_of(i), &options, &width),
                  *got = run_long(open_gpu(n == 1 ? LOAM_BF16 : LOAM_F32), path_of(i), &options, &width);
            expect_near(path_of(i), runs[n], distance(got, want, STEPS * width), n == 1 ? 1e-1 : 1e-4);
            free(want), free(got);
        }
    }
}

/* ---- attention of heads, and layer by layer */

enum { HEADS = 64 };

/* Some heads have softmax, others LLA with ridges of their own, neighbours alike and not. */
static void make_heads(lm_head *heads, int shift)
{
    static const double ridges[] = { INFINITY, INFINITY, 0.5, 20, 2, INFINITY, 3 };
    for (int i = 0; i < HEADS; i++)
        heads[i] = (lm_head){ ridges[(i + shift) % 7], (i + shift) % 5 == 4 ? 1.5 : 1 };
}

/* Whole, token by token, and beyond a split of the keys. */
static void check_options(const char *path, const lm_options *options, bool writes, bool is_long)
{
    int64_t count;
    float *want = run_on(machine_cpu(LOAM_F32, 2), path, options, TOKENS, &count);
    for (int n = 0; n < (writes ? 4 : 2); n++) {
        const bool narrow = n % 2 == 1;
        float *got = run_on(open_gpu(narrow ? LOAM_BF16 : LOAM_F32), path, options, n < 2 ? TOKENS : 1,
                            &count);
        expect_near(path, narrow ? "bf16" : "f32", distance(got, want, count), narrow ? 5e-2 : 1e-4);
        free(got);
    }
    free(want);
    if (!is_long) return;
    float *far = run_long(machine_cpu(LOAM_F32, 2), path, options, &count),
          *got = run_long(open_gpu(LOAM_F32), path, options, &count);
    expect_near(path, "long", distance(got, far, STEPS * count), 1e-4);
    free(far), free(got);
}

static void test_heads(void **state)
{
    (void)state;
    for (int i = 0; i < MODELS; i++)
        for (int n = 0; n < 4; n++) {
            lm_options options = lm_options_default();
            lm_head heads[HEADS];
            make_heads(heads, n);
            if (n < 2) options.heads = heads;
            if (n >= 2) options.mechanism = LOAM_LLA, options.ridge = 0.5, options.only_head = 1;
            if (n == 3) options.only = 0;
            check_options(path_of(i), &options, i < WRITERS,
                          i < WRITERS && strncmp(models[i], "gpt2", 4) != 0);
        }
}

/* Attention changes while a text is read: what was recorded is not of the new one. */
static float *run_changes(machine on, int model)
{
    scene s;
    lm_options options = lm_options_default();
    lm_head heads[HEADS];
    io_error error;
    make_heads(heads, 0);
    open_scene(&s, on, path_of(model), &options);
    float *out = make_rows(&s);
    lm_text *text = open_text(&s);
    read_some(&s, text, 0, 3, out);
    for (int64_t first = 3; first < TOKENS; first++) {
        options.mechanism = first < 6 ? LOAM_SOFTMAX : LOAM_LLA, options.ridge = 0.5;
        options.heads = first < 9 ? NULL : heads;
        if (first % 3 == 0 && lm_text_attention(text, &options, &error)) fail_msg("%s", error.text);
        read_some(&s, text, first, 1, out);
    }
    lm_text_close(text);
    close_scene(&s);
    return out;
}

static void test_changes(void **state)
{
    (void)state;
    for (int i = 0; i < WRITERS; i++) {
        scene s;
        const lm_options options = lm_options_default();
        open_scene(&s, machine_cpu(LOAM_F32, 2), path_of(i), &options);
        float *want = run_changes(machine_cpu(LOAM_F32, 2), i), *got = run_changes(open_gpu(LOAM_F32), i);
        assert_true(distance(got, want, TOKENS * s.width) < 1e-4);
        close_scene(&s);
        free(want), free(got);
    }
}

static void test_layers(void **state)
{
    static const int64_t pieces[] = { 5, 1, 1, 4, 1 };
    (void)state;
    for (int i = 0; i < WRITERS; i++) {
        const lm_options options = lm_options_default();
        scene s;
        open_scene(&s, open_gpu(LOAM_F32), path_of(i), &options);
        float *want = make_rows(&s), *got = make_rows(&s);
        lm_text *text[2] = { open_text(&s), open_text(&s) };
        for (int64_t first = 0, k = 0; first < TOKENS; first += pieces[k++]) {
            read_some(&s, text[0], first, pieces[k], want);
            read_layers(&s, text[1], first, pieces[k], got);
        }
        assert_memory_equal(got, want, (size_t)(TOKENS * s.width) * sizeof *got);
        lm_text_close(text[0]), lm_text_close(text[1]);
        free(want), free(got);
        close_scene(&s);
    }
}

/* ---- as it was trained */

static void train(const char *architecture, const char *mechanism, const char *run, const char *rest)
{
    const outcome told = run_loam(
        "lm train data --out %s --architecture %s --mechanism %s --layers 2 --width 32 --heads 2 "
        "--context 16 --batch 8 --rate 0.02 --warm 3 --steps 12 --ridge-least 0.1 --ridge-most 2 %s",
        run, architecture, mechanism, rest);
    expect_status(&told, 0);
}

/* The NLL of the first corpus that was held out. */
static double held_nll(const char *run)
{
    char path[64], line[256];
    double nll = NAN;
    snprintf(path, sizeof path, "%s/held.csv", run);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file))
        if (strncmp(line, "one,", 4) == 0) assert_int_equal(sscanf(line, "one,%*d,%*d,%lf", &nll), 1);
    fclose(file);
    return nll;
}

/* On a GPU training finds what it finds on the CPU, in one batch and in two. */
static void check_training(const char *architecture, const char *mechanism, const char *rest, double bound)
{
    char arguments[64];
    snprintf(arguments, sizeof arguments, "--backend cuda %s", rest);
    train(architecture, mechanism, "other", arguments);
    expect_near(mechanism, "trained on a GPU", fabs(held_nll("other") - held_nll("run")), bound);
    run_shell("rm -r other");
}

/* Trained on the CPU, read on both. */
static void test_own(void **state)
{
    static const char *const names[] = { "lla", "fox", "parallax", "softmax" };
    static const char *const architectures[] = { "llama", "gpt2", "gpt_neox" };
    static const char *const rest[] = { "--dtype f32", "--dtype f32 --micro-batch 4", "" };
    (void)state;
    grammar_write("data");
    for (int i = 0; i < 4; i++)
        for (int a = 0; a < 3; a++) {
            lm_options options = lm_options_default();
            options.own = true;
            train(architectures[a], names[i], "run", "");
            check_options("run", &options, true, a != 1);
            /* A process takes its time to find a GPU. */
            if (a == i % 3) check_training(architectures[a], names[i], rest[a], a < 2 ? 2e-3 : 0.1);
            run_shell("rm -r run");
        }
    grammar_remove("data");
}

/* ---- scores */

static void test_scores(void **state)
{
    (void)state;
    for (int i = 0; i < WRITERS; i++) {
        double nll[2][TOKENS];
        for (int n = 0; n < 2; n++) {
            const lm_options options = lm_options_default();
            scene s;
            scorer *scores;
            io_error error;
            open_scene(&s, n == 0 ? machine_cpu(LOAM_F32, 2) : open_gpu(LOAM_F32), path_of(i), &options);
            if (scorer_open(&scores, s.model, TOKENS, &error)) fail_msg("%s", error.text);
            if (scorer_run(scores, s.tokens, TOKENS - 1, s.tokens + 3, TOKENS - 3, nll[n], &error))
                fail_msg("%s", error.text);
            scorer_close(scores);
            close_scene(&s);
        }
        for (int k = 0; k < TOKENS - 3; k++)
            assert_true(fabs(nll[1][k] - nll[0][k]) < 1e-5);
    }
}

/* The divergence of LLA from softmax, and nll of both, as on the CPU. */
static void test_pairs(void **state)
{
    enum { SCORED = TOKENS - 3 };
    (void)state;
    for (int i = 0; i < WRITERS; i++) {
        double got[2][3][SCORED];
        for (int n = 0; n < 2; n++) {
            lm_options options = lm_options_default();
            lm_model *other;
            scene s;
            scorer *scores[2];
            io_error error;
            open_scene(&s, n == 0 ? machine_cpu(LOAM_F32, 2) : open_gpu(LOAM_F32), path_of(i), &options);
            options.mechanism = LOAM_LLA;
            if (lm_model_open(&other, &s.on, s.files, &options, &error)) fail_msg("%s", error.text);
            if (scorer_open(&scores[0], other, TOKENS, &error)) fail_msg("%s", error.text);
            if (scorer_open(&scores[1], s.model, TOKENS, &error)) fail_msg("%s", error.text);
            const score_pair pair = { got[n][0], got[n][1], got[n][2] };
            if (scorer_run_pair(scores[0], scores[1], s.tokens, TOKENS - 1, s.tokens + 3, SCORED, pair,
                                &error))
                fail_msg("%s", error.text);
            scorer_close(scores[0]), scorer_close(scores[1]);
            lm_model_close(other);
            close_scene(&s);
        }
        for (int k = 0; k < SCORED; k++) {
            assert_true(fabs(got[1][0][k] - got[0][0][k]) < 1e-4);
            assert_true(fabs(got[1][1][k] - got[0][1][k]) < 1e-5);
            assert_true(fabs(got[1][2][k] - got[0][2][k]) < 1e-6 + 1e-2 * got[0][2][k]);
        }
    }
}

/* ---- the program */

/* A process takes its time to find a GPU: some models. */
/* ---- queries and keys */

typedef struct captured {
    const lm_model *model;
    float *rows;
    int64_t used;
} captured;

static int keep(void *to, int64_t layer, const lm_heads *heads, io_error *error)
{
    captured *const c = to;
    const matrix each[] = { heads->q, heads->k };
    int status = 0;
    (void)layer;
    for (int n = 0; !status && n < 2; n++) {
        status = lm_model_fetch(c->model, c->rows + c->used, each[n], error);
        c->used += matrix_elements(each[n]);
    }
    return status;
}

/* Those of all layers, of a window that is the second. */
static float *capture(machine on, int model, int64_t *count)
{
    const lm_options options = lm_options_default();
    lm_capture *reader;
    io_error error;
    scene s;
    open_scene(&s, on, path_of(model), &options);
    const lm_config *c = lm_model_config(s.model);
    *count = c->layers * TOKENS * (c->heads_q + c->heads_kv) * c->head_dim;
    captured to = { s.model, calloc((size_t)*count, sizeof(float)), 0 };
    assert_non_null(to.rows);
    if (lm_capture_open(&reader, s.model, TOKENS, &error)) fail_msg("%s", error.text);
    for (int window = 0; window < 2; window++) {
        to.used = 0;
        if (lm_capture_read(reader, s.tokens, TOKENS, keep, &to, &error)) fail_msg("%s", error.text);
    }
    assert_int_equal(to.used, *count);
    lm_capture_close(reader);
    close_scene(&s);
    return to.rows;
}

static void test_capture(void **state)
{
    int64_t count;
    (void)state;
    for (int i = 0; i < MODELS; i++) {
        float *want = capture(machine_cpu(LOAM_F32, 2), i, &count);
        float *got = capture(open_gpu(LOAM_F32), i, &count);
        float *narrow = capture(open_gpu(LOAM_BF16), i, &count);
        expect_near(path_of(i), "queries and keys", distance(got, want, count), 1e-4);
        expect_near(path_of(i), "queries and keys, bf16", distance(narrow, want, count), 0.05);
        assert_true(distance(narrow, got, count) > 1e-6);
        free(want), free(got), free(narrow);
    }
}

static const int some[] = { 0, 2, 6 };
enum { SOME = sizeof some / sizeof *some };

/* What `loam lm COMMAND MODEL` says with these arguments, on the CPU or on a GPU. */
static outcome tell(const char *command, int model, const char *arguments, bool gpu)
{
    return run_loam("lm %s %s/%s%s --tokenizer %s/tokenizer.json %s%s", command, data(), models[model],
                    file_of(model), data(), arguments, gpu ? " --backend cuda --device 0" : "");
}

static void test_generate(void **state)
{
    (void)state;
    for (int i = 0; i < SOME; i++) {
        static const char arguments[] = "--prompt 'the cat' --tokens 20";
        const outcome want = tell("generate", some[i], arguments, false),
                      got = tell("generate", some[i], arguments, true);
        expect_status(&want, 0);
        expect_status(&got, 0);
        assert_string_equal(got.out, want.out);
        assert_true(strlen(got.out) > 5);
    }
}

/* A number in the line of the text. */
static double number_of(const outcome *told, int column)
{
    const char *const line = strstr(told->out, "t.txt");
    double x[5];
    assert_non_null(line);
    const int found = sscanf(line, "t.txt %lf %lf %lf %lf %lf", x, x + 1, x + 2, x + 3, x + 4);
    assert_true(column < found);
    return x[column];
}

static void test_eval(void **state)
{
    static const char *const others[] = { "", " --dtype bf16",
                                          " --mechanism lla --ridge 0.5 --against softmax" };
    (void)state;
    const outcome made = run_shell("echo 'the cat, the dog. a text that ends' >t.txt");
    expect_status(&made, 0);
    for (int i = 0; i < SOME; i++) {
        char arguments[128];
        const bool narrow = i == 1;
        snprintf(arguments, sizeof arguments, "--text t.txt --context 8 --weights f32%s",
                 narrow ? "" : others[i]);
        const outcome want = tell("eval", some[i], arguments, false);
        strcat(arguments, narrow ? others[i] : "");
        const outcome got = tell("eval", some[i], arguments, true);
        expect_status(&want, 0);
        expect_status(&got, 0);
        assert_non_null(strstr(got.out, narrow ? "on a GPU, bf16" : "on a GPU, f32"));
        const double bound = narrow ? 0.1 : 1.5e-4; /* as it is printed */
        assert_true(fabs(number_of(&got, 1) - number_of(&want, 1)) < bound);
        if (i == 2) assert_true(fabs(number_of(&got, 4) - number_of(&want, 4)) < bound);
    }
}

static void test_embed(void **state)
{
    (void)state;
    const outcome made = run_shell("printf 'abc\\nabd e\\nxyz, the\\n' >s.txt");
    expect_status(&made, 0);
    const outcome want = tell("embed", MODELS - 1, "--text s.txt", false),
                  got = tell("embed", MODELS - 1, "--text s.txt", true);
    double a[4], b[4];
    expect_status(&want, 0);
    expect_status(&got, 0);
    assert_int_equal(sscanf(want.out, "%lf %lf %lf %lf", a, a + 1, a + 2, a + 3), 4);
    assert_int_equal(sscanf(got.out, "%lf %lf %lf %lf", b, b + 1, b + 2, b + 3), 4);
    for (int i = 0; i < 4; i++)
        assert_true(fabs(a[i] - b[i]) < 1e-5);
}

/* The column of numbers of a curve's rows; returns how many. */
static int read_curve(const char *path, double *values, int most)
{
    enum { COLUMN = 9 };
    char line[1024];
    int count = 0;
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file) && count <= most) {
        const char *at = line;
        for (int i = 0; i < COLUMN && at; i++)
            at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL;
        assert_non_null(at);
        if (count++ > 0) values[count - 2] = strtod(at, NULL);
    }
    fclose(file);
    return count - 1;
}

/* The experiment, windows side by side, as on the CPU; and the same bytes where it was cut. */
static void test_ridge(void **state)
{
    enum { MOST = 64 };
    (void)state;
    const outcome made = run_shell(
        "for i in 1 2 3 4 5 6; do echo 'the cat, the dog. a text that ends, and '$i; "
        "done >t.txt");
    expect_status(&made, 0);
    for (int m = 0; m < 2; m++) {
        static const char *const runs[] = { "cpu", "cuda --time 1e-6", "cuda", "cuda", "cuda --dtype bf16" };
        static const char *const names[] = { "cpu", "cut", "cut", "gpu", "narrow" };
        double want[MOST], got[MOST];
        for (int n = 0; n < 5; n++) {
            const outcome told = run_loam("experiment ridge %s/%s --tokenizer %s/tokenizer.json --text t.txt "
                                          "--tiny --context 16 --weights f32 --out %s%d --backend %s",
                                          data(), m ? "bert" : "llama", data(), names[n], m, runs[n]);
            expect_status(&told, 0);
        }
        char path[64], condition[128];
        snprintf(path, sizeof path, "cpu%d/curve.csv", m);
        const int count = read_curve(path, want, MOST);
        assert_int_equal(count, 9);
        for (int n = 3; n < 5; n++) {
            snprintf(path, sizeof path, "%s%d/curve.csv", names[n], m);
            assert_int_equal(read_curve(path, got, MOST), count);
            for (int i = 0; i < count; i++)
                if (!(fabs(got[i] - want[i]) < (n == 3 ? 1e-4 : 0.1)))
                    fail_msg("%s, row %d: %g, expected %g", path, i + 1, got[i], want[i]);
        }
        snprintf(condition, sizeof condition,
                 "cmp cut%d/curve.csv gpu%d/curve.csv && cmp cut%d/parts.csv gpu%d/parts.csv", m, m, m, m);
        assert_true(shell_holds(condition));
    }
}

static void test_refusals(void **state)
{
    (void)state;
    const outcome told = run_loam(
        "lm eval %s/llama --tokenizer %s/tokenizer.json --text t.txt --backend cuda "
        "--device 1000",
        data(), data());
    expect_complaint(&told, EXIT_USAGE, "--device 1000: expected 0 to");
}

int main(void)
{
    if (!device_count()) {
        print_message("skipped: no CUDA device\n");
        return SKIPPED;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logits),  cmocka_unit_test(test_pieces),   cmocka_unit_test(test_attention),
        cmocka_unit_test(test_beside),  cmocka_unit_test(test_long),     cmocka_unit_test(test_scores),
        cmocka_unit_test(test_pairs),   cmocka_unit_test(test_generate), cmocka_unit_test(test_eval),
        cmocka_unit_test(test_embed),   cmocka_unit_test(test_refusals), cmocka_unit_test(test_heads),
        cmocka_unit_test(test_changes), cmocka_unit_test(test_layers),   cmocka_unit_test(test_own),
        cmocka_unit_test(test_ridge),   cmocka_unit_test(test_capture),  cmocka_unit_test(test_features),
    };
    return cmocka_run_group_tests(tests, program_setup, program_teardown);
}
