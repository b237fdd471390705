/* SPDX-License-Identifier: MIT
 * The parts of the tiny models against their arrays by the layouts' equations, and what is no model. */
#define _XOPEN_SOURCE 700
#include "io/half.h"
#include "io/safetensors.h"
#include "lm/files.h"
#include "tests/lm/folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static lm_files *opened(const char *path)
{
    lm_files *f;
    io_error error;
    if (lm_files_open(&f, path, &error)) fail_msg("%s", error.text);
    return f;
}

static float *read_part(const lm_files *f, lm_part part, int64_t layer, int64_t *count)
{
    int64_t rows, columns;
    io_error error;
    lm_part_shape(lm_files_config(f), part, layer, &rows, &columns);
    *count = rows * columns;
    float *values = malloc((size_t)(*count + 1) * sizeof *values);
    assert_non_null(values);
    if (lm_files_read(f, part, layer, 0, rows, LOAM_F32, values, &error)) fail_msg("%s", error.text);
    return values;
}

/* An array of a folder's file as float32. */
static array read_array(const char *path, const char *name)
{
    array a;
    io_error error;
    if (safetensors_read(&a, path, name, &error) || array_convert(&a, LOAM_F32, name, &error))
        fail_msg("%s", error.text);
    return a;
}

/* Element (i, k) of a part in its array, whose rows have `stride` elements: i first + k second + offset. */
static void expect_part(const lm_files *f, lm_part part, int64_t layer, const char *path, const char *name,
                        int64_t (*place)(int64_t i, int64_t k))
{
    int64_t count, rows, columns;
    array a = read_array(path, name);
    float *got = read_part(f, part, layer, &count);
    lm_part_shape(lm_files_config(f), part, layer, &rows, &columns);
    assert_true(count > 0);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t k = 0; k < columns; k++)
            if (got[i * columns + k] != ((const float *)a.data)[place(i, k)])
                fail_msg("%s: element %lld, %lld", name, (long long)i, (long long)k);
    free(got);
    array_free(&a);
}

/* Width 16; of c_attn the columns 16 .. 31 are the key's. */
static int64_t gpt2_key(int64_t i, int64_t k) { return k * 48 + 16 + i; }

static int64_t gpt2_value_bias(int64_t i, int64_t k) { return 32 + k + i; }

static int64_t gpt2_up(int64_t i, int64_t k) { return k * 24 + i; }

static int64_t rows_of_16(int64_t i, int64_t k) { return 16 * i + k; }

/* Width 32, two heads of 16: of each 16 rows of the query, 16 of the key, 16 of the value. */
static int64_t neox_key(int64_t i, int64_t k) { return (i / 16 * 48 + 16 + i % 16) * 32 + k; }

static int64_t neox_value_bias(int64_t i, int64_t k) { return k / 16 * 48 + 32 + k % 16 + i; }

static void layouts_are_undone(void **state)
{
    (void)state;
    const char *scaled = LM_TEST_DATA "/gpt2-scaled/model.safetensors";
    lm_files *f = opened(LM_TEST_DATA "/gpt2-scaled");
    expect_part(f, LM_K, 1, scaled, "h.1.attn.c_attn.weight", gpt2_key);
    expect_part(f, LM_V_BIAS, 1, scaled, "h.1.attn.c_attn.bias", gpt2_value_bias);
    expect_part(f, LM_UP, 0, scaled, "h.0.mlp.c_fc.weight", gpt2_up);
    expect_part(f, LM_POSITIONS, 0, scaled, "wpe.weight", rows_of_16);
    lm_files_close(f);
    const char *neox = LM_TEST_DATA "/neox/model.safetensors";
    f = opened(LM_TEST_DATA "/neox");
    expect_part(f, LM_K, 1, neox, "gpt_neox.layers.1.attention.query_key_value.weight", neox_key);
    expect_part(f, LM_V_BIAS, 0, neox, "gpt_neox.layers.0.attention.query_key_value.bias", neox_value_bias);
    lm_files_close(f);
}

/* The same numbers, as the library saves them and in blocks of each type, bit for bit. */
static void gguf_is_the_same_model(void **state)
{
    (void)state;
    lm_files *folder = opened(LM_TEST_DATA "/llama-gguf"),
             *file = opened(LM_TEST_DATA "/llama-gguf/model.gguf");
    assert_string_equal(lm_files_type(folder), "F32");
    assert_string_equal(lm_files_type(file), "Q4_1");
    assert_true(lm_files_bytes(file) < lm_files_bytes(folder) / 4);
    for (int part = 0; part < LM_PARTS; part++)
        for (int64_t layer = 0; layer < (part < LM_NORM_1 ? 1 : 2); layer++) {
            int64_t count, same;
            float *a = read_part(folder, (lm_part)part, layer, &count);
            float *b = read_part(file, (lm_part)part, layer, &same);
            assert_int_equal(count, same);
            assert_memory_equal(a, b, (size_t)count * sizeof *a);
            free(a);
            free(b);
        }
    lm_files_close(folder);
    lm_files_close(file);
}

/* Every part of every model: in pieces of five rows, and rounded to 16 bits, as all at once. */
static void expect_pieces(const lm_files *f, lm_part part, int64_t layer)
{
    int64_t rows, columns, count;
    io_error error;
    lm_part_shape(lm_files_config(f), part, layer, &rows, &columns);
    float *all = read_part(f, part, layer, &count);
    float *piece = malloc((size_t)(5 * columns + 1) * sizeof *piece);
    uint16_t *half = malloc((size_t)(5 * columns + 1) * sizeof *half);
    assert_true(piece && half);
    for (int64_t row = 0; row < rows; row += 5) {
        const int64_t now = rows - row < 5 ? rows - row : 5;
        if (lm_files_read(f, part, layer, row, now, LOAM_F32, piece, &error) ||
            lm_files_read(f, part, layer, row, now, LOAM_BF16, half, &error))
            fail_msg("%s", error.text);
        assert_memory_equal(piece, all + row * columns, (size_t)(now * columns) * sizeof *piece);
        for (int64_t i = 0; i < now * columns; i++)
            assert_int_equal(half[i], bf16_from_float(piece[i]));
    }
    const float *there = lm_files_mapped(f, part, layer, LOAM_F32);
    if (there) assert_memory_equal(there, all, (size_t)count * sizeof *all);
    free(all);
    free(piece);
    free(half);
}

static void pieces_are_the_whole(void **state)
{
    (void)state;
    for (int m = 0; m < FOLDER_MODELS; m++) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", LM_TEST_DATA, folder_models[m]);
        lm_files *f = opened(path);
        for (int part = 0; part < LM_PARTS; part++)
            for (int64_t layer = 0; layer < (part < LM_NORM_1 ? 1 : 2); layer++)
                expect_pieces(f, (lm_part)part, layer);
        lm_files_close(f);
    }
}

static void what_has_the_layout_stays_mapped(void **state)
{
    (void)state;
    lm_files *f = opened(LM_TEST_DATA "/neox");
    assert_non_null(lm_files_mapped(f, LM_EMBED, 0, LOAM_F16));
    assert_non_null(lm_files_mapped(f, LM_UP, 1, LOAM_F16));
    assert_null(lm_files_mapped(f, LM_UP, 1, LOAM_F32));
    assert_null(lm_files_mapped(f, LM_UP, 1, LOAM_BF16));
    assert_null(lm_files_mapped(f, LM_Q, 1, LOAM_F16));
    assert_null(lm_files_mapped(f, LM_POSITIONS, 0, LOAM_F16));
    lm_files_close(f);
    f = opened(LM_TEST_DATA "/gpt2");
    assert_non_null(lm_files_mapped(f, LM_K_BIAS, 1, LOAM_F32));
    assert_null(lm_files_mapped(f, LM_UP, 1, LOAM_F32));
    lm_files_close(f);
    f = opened(LM_TEST_DATA "/llama-gguf/model.gguf");
    assert_non_null(lm_files_mapped(f, LM_NORM_1, 1, LOAM_F32));
    assert_null(lm_files_mapped(f, LM_DOWN, 1, LOAM_F32));
    lm_files_close(f);
}

static void rows_that_are_not_there_are_refused(void **state)
{
    (void)state;
    float values[16];
    io_error error;
    lm_files *f = opened(LM_TEST_DATA "/llama");
    assert_int_equal(lm_files_read(f, LM_EMBED, 0, 64, 1, LOAM_F32, values, &error), EXIT_INTERNAL);
    assert_string_equal(error.text, "the embedding of tokens has 64 rows; 1 rows from 64 on were asked for");
    assert_int_equal(lm_files_read(f, LM_Q, 2, 0, 1, LOAM_F32, values, &error), EXIT_INTERNAL);
    assert_int_equal(lm_files_read(f, LM_Q, 1, 0, 1, LOAM_F64, values, &error), EXIT_INTERNAL);
    assert_string_equal(error.text,
                        "layer 1's query weights was asked for as f64; expected f32, bf16 or f16");
    assert_int_equal(lm_files_read(f, LM_Q_BIAS, 1, 0, 1, LOAM_F32, values, &error), EXIT_INTERNAL);
    lm_files_close(f);
}

/* ---------------------------------------------------------------- what is no model */

static void expect_refused(const char *path, const char *text)
{
    lm_files *f = (lm_files *)(uintptr_t)path;
    io_error error = { 0 };
    assert_int_equal(lm_files_open(&f, path, &error), EXIT_INPUT);
    assert_null(f);
    if (!strstr(error.text, text)) fail_msg("'%s' lacks '%s'", error.text, text);
}

static void changed_models_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *model, *file, *from, *to, *text;
    } rows[] = {
        { "llama", "config.json", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3",
          "copy has no 'layers.2.input_layernorm.weight', layer 2's first norm" },
        { "llama", "config.json", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1",
          "tensor 'model.layers.1.input_layernorm.weight' is no part of llama" },
        { "llama", "config.json", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 200000000",
          "has 20 tensors, too few for 200000000 layers" },
        { "llama", "config.json", "\"vocab_size\": 64", "\"vocab_size\": 63",
          "'embed_tokens.weight' is of shape (64, 16); expected (63, 16)" },
        { "llama", "config.json", "\"num_key_value_heads\": 2", "\"num_key_value_heads\": 4",
          "'layers.0.self_attn.k_proj.weight' is of shape (16, 16); expected (32, 16)" },
        { "llama", "config.json", "\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false",
          "has no 'lm_head.weight', the weights of the logits" },
        { "llama", "config.json", "\"llama\"", "\"gpt2\"", "copy has no 'wte.weight'" },
        { "llama", "config.json", "{", "[", "the text is not JSON" },
        { "llama", "model.safetensors", "1.self_attn.q_proj", "1.self_attn.q_norm",
          "has no 'layers.1.self_attn.q_proj.weight', layer 1's query weights" },
        { "gpt2-scaled", "config.json", "\"n_inner\": 24", "\"n_inner\": 32",
          "'h.0.mlp.c_fc.weight' is of shape (16, 24); expected (16, 32)" },
        { "gpt2-scaled", "model.safetensors", "h.0.attn.masked_bias", "h.0.attn.msk_bias_x1",
          "tensor 'h.0.attn.msk_bias_x1' is no part of gpt2 that is known here" },
        { "gpt2-scaled", "model.safetensors", "h.1.attn.masked_bias", "h.2.ln_1.bias_______", "is no part" },
        { "bert", "model.safetensors", "\"F32\"", "\"I32\"",
          "is of type I32; expected F16, BF16, F32 or F64" },
        { "llama-sharded", "model.safetensors.index.json", "model-00002-of", "model-00009-of",
          "model-00009-of-00003.safetensors: No such file" },
        { "llama-sharded", "model.safetensors.index.json", "model-00001", "../model-00001",
          "expected the name of a file beside it" },
        { "llama-sharded", "model.safetensors.index.json", "\"model-00001-of-00003.safetensors\"", "\"..\"",
          "lies in '..'; expected the name of a file beside it" },
        { "llama-sharded", "model.safetensors.index.json", "\"model-00001-of-00003.safetensors\"", "17",
          "expected the name of a file beside it" },
        { "llama-sharded", "model.safetensors.index.json", "\"weight_map\"", "\"weights\"",
          "has no 'weight_map'" },
        { "llama-sharded", "model.safetensors.index.json", "lm_head.weight", "lm_tail.weight",
          "says that 'lm_tail.weight' is in model-00003-of-00003.safetensors, but it is not" },
        { "llama-gguf", "model.gguf", "blk.1.ffn_up.weight", "blk.1.ffn_xx.weight",
          "has no 'blk.1.ffn_up.weight', layer 1's up weights" },
        { "llama-gguf", "model.gguf", "llama.rope.freq_base", "llama.rope.freq_bass", NULL },
        { "llama-gguf", "model.gguf", "llama.rope.dimension_count", "llama.rope.dimension_xxxxx", NULL },
        { "llama-gguf", "model.gguf", "llama.attention.head_count", "llama.attention.tail_count",
          "has no 'llama.attention.head_count'" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *model = folder_is_file(rows[i].file) ? "copy/model.gguf" : "copy";
        folder_copy(rows[i].model, "copy");
        folder_replace("copy", rows[i].file, rows[i].from, rows[i].to);
        if (rows[i].text)
            expect_refused(model, rows[i].text);
        else
            lm_files_close(opened(model));
        folder_remove("copy");
    }
}

/* A cut at each byte of the header, and some in the data. */
static void expect_cuts_refused(const char *model, const char *file, const char *path)
{
    folder_copy(model, "copy");
    size_t count;
    char *data = folder_read("copy", file, &count);
    if (data[count - 1] == '\n') count--; /* which the text can do without */
    free(data);
    for (size_t bytes = count; bytes-- > 0;) {
        if (bytes > 4000 && bytes % 997) continue;
        folder_cut("copy", file, bytes);
        expect_refused(path, "copy");
    }
    folder_remove("copy");
}

static void every_cut_is_refused(void **state)
{
    (void)state;
    expect_cuts_refused("llama-gguf", "model.gguf", "copy/model.gguf");
    expect_cuts_refused("llama", "model.safetensors", "copy");
    expect_cuts_refused("llama-sharded", "model.safetensors.index.json", "copy");
    expect_cuts_refused("llama-sharded", "model-00003-of-00003.safetensors", "copy");
}

static void what_is_not_there_is_named(void **state)
{
    (void)state;
    expect_refused("nosuch", "cannot read nosuch: No such file");
    folder_copy("llama", "copy");
    folder_unlink("copy", "config.json");
    expect_refused("copy", "cannot read copy/config.json: No such file");
    folder_unlink("copy", "model.safetensors");
    expect_refused("copy", "cannot read copy/model.safetensors: No such file");
    folder_remove("copy");
    expect_refused(LM_TEST_DATA "/llama/config.json", "config.json is not a .gguf file");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layouts_are_undone),
        cmocka_unit_test(gguf_is_the_same_model),
        cmocka_unit_test(pieces_are_the_whole),
        cmocka_unit_test(what_has_the_layout_stays_mapped),
        cmocka_unit_test(rows_that_are_not_there_are_refused),
        cmocka_unit_test(changed_models_are_refused),
        cmocka_unit_test(every_cut_is_refused),
        cmocka_unit_test(what_is_not_there_is_named),
    };
    return cmocka_run_group_tests(tests, folder_setup, folder_teardown);
}
