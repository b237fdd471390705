/* SPDX-License-Identifier: MIT
 * A student as files: read as it was written, beside the same student in memory; whole, in pieces and token
 * by token; and files that contradict themselves. */
#define _XOPEN_SOURCE 700
#include "distill/model.h"
#include "distill/reading.h"
#include "lm/write.h"
#include "tests/distill/scene.h"
#include "tests/lm/folder.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

static void save(const scene *s, const student *by, int64_t only, loam_dtype dtype)
{
    student_model m;
    io_error error;
    assert_int_equal(mkdir("saved", 0777), 0);
    if (student_model_make(&m, s->files, by, only, &error) ||
        lm_config_write(&m.config, "saved/config.json", &error) ||
        lm_write("saved/model.safetensors", &m.config, dtype, student_model_read, &m, &error))
        fail_msg("%s", error.text);
}

/* The scene's first text, `piece` tokens at a time; [SCENE_TOKENS][width]. */
static void read_pieces(lm_text *text, const scene *s, int64_t piece, float *to)
{
    matrix hidden;
    io_error error;
    lm_text_rewind(text, 0);
    for (int64_t at = 0; at < SCENE_TOKENS; at += piece) {
        const int64_t count = SCENE_TOKENS - at < piece ? SCENE_TOKENS - at : piece;
        if (lm_text_read(text, s->ids[0] + at, count, &hidden, &error)) fail_msg("%s", error.text);
        memcpy(to + at * s->config->width, hidden.data, (size_t)(count * s->config->width) * sizeof *to);
    }
}

static double apart(const float *a, const float *b, int64_t count)
{
    double most = 0, size = 0;
    for (int64_t i = 0; i < count; i++)
        most = fmax(most, fabs((double)a[i] - (double)b[i])), size = fmax(size, fabs((double)a[i]));
    return most / size;
}

typedef struct pair {
    lm_files *files;
    lm_model *model;
} pair;

static pair opened(const scene *s)
{
    lm_options options = lm_options_default();
    pair p;
    io_error error;
    options.own = true;
    if (lm_files_open(&p.files, "saved", &error) ||
        lm_model_open(&p.model, &s->on, p.files, &options, &error))
        fail_msg("%s", error.text);
    return p;
}

static void close_pair(pair p)
{
    lm_model_close(p.model);
    lm_files_close(p.files);
}

/* What the student in memory makes of the text. */
static void read_in_memory(const scene *s, const student *by, int64_t only, float *to)
{
    lm_options options = lm_options_default();
    lm_text *text;
    reading r;
    io_error error;
    assert_int_equal(reading_open(&r, by, &s->on, &error), 0);
    options.features = r.layers, options.only = only;
    options.sinks = by->sinks, options.window = by->window;
    assert_int_equal(lm_text_open(&text, s->model, SCENE_TOKENS, SCENE_TOKENS, &error), 0);
    assert_int_equal(lm_text_attention(text, &options, &error), 0);
    read_pieces(text, s, SCENE_TOKENS, to);
    lm_text_close(text);
    reading_close(&r);
}

/* With a window beside it, and gains. */
static void set_beside(student *by)
{
    student_beside(by, 3, 9);
    for (int64_t i = 0; i < by->layers; i++)
        for (int64_t h = 0; h < by->heads * by->queries; h++)
            by->layer[i].gain[h] = 0.4 * (double)(h % 3) - 0.2 * (double)i;
}

static void expect_same_text(const char *name, bool shared, bool untied, bool beside, int64_t only)
{
    enum { PIECES = 4 };
    static const int64_t pieces[PIECES] = { SCENE_TOKENS, 7, 1, 23 };
    scene s;
    lm_text *text;
    io_error error;
    scene_open(&s, name);
    const int64_t count = SCENE_TOKENS * s.config->width;
    float *const want = malloc(2 * (size_t)count * sizeof *want), *const got = want + count;
    assert_non_null(want);
    student by = scene_student(&s, shared);
    if (untied) scene_untie(&by);
    if (beside) set_beside(&by);
    read_in_memory(&s, &by, only, want);
    save(&s, &by, only, LOAM_F32);
    const pair p = opened(&s);
    const lm_config *c = lm_files_config(p.files);
    for (int64_t i = 0; i < c->layers; i++)
        assert_int_equal(lm_config_features(c, i), only < 0 || only == i ? by.layer[i].features : 0);
    assert_int_equal(c->features_shared, by.queries > 1);
    assert_int_equal(c->features_untied, untied);
    assert_true(c->sinks == (beside ? 3 : 0) && c->window == (beside ? 9 : 0));
    /* An encoder reads a text as a whole. */
    for (int i = 0; i < (c->architecture == LM_BERT ? 1 : PIECES); i++) {
        const int64_t chunk = pieces[i];
        if (lm_text_open(&text, p.model, SCENE_TOKENS, chunk, &error)) fail_msg("%s", error.text);
        for (int again = 0; again < 2; again++) {
            read_pieces(text, &s, chunk, got);
            const double far = apart(want, got, count);
            if (i == 0) assert_memory_equal(want, got, (size_t)count * sizeof *want);
            if (!(far < 1e-4)) fail_msg("%s, pieces of %d: %g", name, (int)chunk, far);
        }
        lm_text_close(text);
    }
    close_pair(p);
    folder_remove("saved");
    student_close(&by);
    free(want);
    scene_close(&s);
}

static void texts_are_the_same_in_any_pieces(void **state)
{
    static const char *const models[] = { "gpt2-scaled", "llama", "neox", "bert" };
    (void)state;
    for (size_t n = 0; n < sizeof models / sizeof *models; n++)
        for (int how = 0; how < 4; how++)
            for (int only = -1; only < 2; only++)
                expect_same_text(models[n], how % 2, how > 1, false, only);
}

static void windows_are_the_same_in_any_pieces(void **state)
{
    static const char *const models[] = { "gpt2", "gpt2-scaled", "llama", "neox" };
    (void)state;
    for (size_t n = 0; n < sizeof models / sizeof *models; n++)
        for (int shared = 0; shared < 2; shared++)
            expect_same_text(models[n], shared, false, true, -1);
}

/* A window asks for features in every layer. */
static void windows_beside_softmax_are_refused(void **state)
{
    scene s;
    lm_files *f;
    io_error error;
    (void)state;
    scene_open(&s, "llama");
    student by = scene_student(&s, false);
    set_beside(&by);
    save(&s, &by, -1, LOAM_F32);
    folder_replace("saved", "config.json", "\"window\": 9", "\"window\": -9");
    assert_int_equal(lm_files_open(&f, "saved", &error), EXIT_INPUT);
    assert_non_null(strstr(error.text, "'window' is -9; expected a whole number"));
    folder_remove("saved");
    save(&s, &by, -1, LOAM_F32);
    folder_replace("saved", "config.json", "\"features\": [\n      3", "\"features\": [\n      0");
    assert_int_equal(lm_files_open(&f, "saved", &error), EXIT_INPUT);
    assert_non_null(strstr(error.text, "a window of 9 tokens: expected 1 to 511 features in all layers"));
    folder_remove("saved");
    student_close(&by);
    scene_close(&s);
}

/* Features stay float32, and what is converted again is the same. */
static void features_are_exact(void **state)
{
    scene s;
    int64_t rows, columns;
    io_error error;
    (void)state;
    scene_open(&s, "llama");
    student by = scene_student(&s, false);
    save(&s, &by, -1, LOAM_BF16);
    lm_files *f;
    if (lm_files_open(&f, "saved", &error)) fail_msg("%s", error.text);
    assert_string_equal(lm_files_type(f), "BF16");
    lm_part_shape(lm_files_config(f), LM_FEATURE_Z, 1, &rows, &columns);
    assert_int_equal(rows * columns, by.heads * by.layer[1].features * by.channels);
    const float *const z = lm_files_mapped(f, LM_FEATURE_Z, 1, LOAM_F32);
    assert_non_null(z);
    for (int64_t i = 0; i < rows * columns; i++)
        assert_true(z[i] == (float)by.layer[1].z[i]);
    lm_files_close(f);
    folder_remove("saved");
    student_close(&by);
    scene_close(&s);
}

/* Where a text keeps states it has no keys for softmax; a model of the same files has. */
static void other_attention(void **state)
{
    scene s;
    lm_options options = lm_options_default();
    lm_text *text;
    lm_model *plain;
    matrix hidden;
    io_error error;
    (void)state;
    scene_open(&s, "llama");
    const size_t bytes = (size_t)(SCENE_TOKENS * s.config->width) * sizeof(float);
    float *const want = malloc(bytes);
    assert_non_null(want);
    student by = scene_student(&s, false);
    save(&s, &by, -1, LOAM_F32);
    const pair p = opened(&s);
    assert_int_equal(lm_text_open(&text, p.model, SCENE_TOKENS, 8, &error), 0);
    assert_int_equal(lm_text_attention(text, &options, &error), EXIT_USAGE);
    assert_non_null(strstr(error.text, "softmax in layer 0"));
    lm_text_close(text);
    assert_int_equal(lm_text_open(&text, s.model, SCENE_TOKENS, SCENE_TOKENS, &error), 0);
    read_pieces(text, &s, SCENE_TOKENS, want);
    lm_text_close(text);
    assert_int_equal(lm_text_open(&text, p.model, SCENE_TOKENS, SCENE_TOKENS, &error), 0);
    assert_int_equal(lm_text_attention(text, &options, &error), 0);
    assert_int_equal(lm_text_read(text, s.ids[0], SCENE_TOKENS, &hidden, &error), 0);
    assert_memory_equal(want, hidden.data, bytes);
    options.own = true;
    assert_int_equal(lm_text_attention(text, &options, &error), 0);
    assert_int_equal(lm_text_length(text), 0);
    assert_int_equal(lm_text_read(text, s.ids[0], SCENE_TOKENS, &hidden, &error), 0);
    assert_true(apart(want, hidden.data, SCENE_TOKENS * s.config->width) > 1e-3);
    lm_text_close(text);
    options.own = false;
    assert_int_equal(lm_model_open(&plain, &s.on, p.files, &options, &error), 0);
    lm_model_close(plain);
    close_pair(p);
    folder_remove("saved");
    student_close(&by);
    free(want);
    scene_close(&s);
}

static void contradictions_are_refused(void **state)
{
    static const char *const wrong[][4] = {
        { "config.json", "\"features\": [\n      3", "\"features\": [\n      4",
          "layers.0.self_attn.loam_features.z' is of shape" },
        { "config.json", "\"features\": [\n      3", "\"features\": [\n      0",
          "loam_features.z' is no part" },
        { "config.json", "\"shared\": false", "\"shared\": true", "loam_features.z' is of shape" },
        { "config.json", "\"mechanism\": \"features\"", "\"mechanism\": \"softmax\"",
          "'features' is [3,5]; expected none" },
        { "model.safetensors", "layers.1.self_attn.loam_features.shift",
          "layers.1.self_attn.loam_features.shaft", "has no 'layers.1.self_attn.loam_features.shift'" },
    };
    scene s;
    lm_files *f;
    io_error error;
    (void)state;
    scene_open(&s, "llama");
    assert_int_equal(s.config->layers, 2);
    student by = scene_student(&s, false);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        save(&s, &by, -1, LOAM_F32);
        folder_replace("saved", wrong[i][0], wrong[i][1], wrong[i][2]);
        assert_int_equal(lm_files_open(&f, "saved", &error), EXIT_INPUT);
        if (!strstr(error.text, wrong[i][3])) fail_msg("%s lacks %s", error.text, wrong[i][3]);
        folder_remove("saved");
    }
    student_close(&by);
    scene_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_are_the_same_in_any_pieces),
        cmocka_unit_test(windows_are_the_same_in_any_pieces),
        cmocka_unit_test(windows_beside_softmax_are_refused),
        cmocka_unit_test(features_are_exact),
        cmocka_unit_test(other_attention),
        cmocka_unit_test(contradictions_are_refused),
    };
    return cmocka_run_group_tests(tests, folder_setup, folder_teardown);
}
