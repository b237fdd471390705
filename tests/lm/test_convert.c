/* SPDX-License-Identifier: MIT
 * loam convert: the same model in files of the Hugging Face library, or nothing. */
#include "io/safetensors.h"
#include "lm/files.h"
#include "tests/cli/program.h"
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

static void *read_part(const lm_files *f, lm_part part, int64_t layer, loam_dtype dtype, size_t *bytes)
{
    int64_t rows, columns;
    io_error error;
    lm_part_shape(lm_files_config(f), part, layer, &rows, &columns);
    *bytes = (size_t)(rows * columns) * array_dtype_bytes(dtype);
    void *values = malloc(*bytes + 1);
    assert_non_null(values);
    if (lm_files_read(f, part, layer, 0, rows, dtype, values, &error)) fail_msg("%s", error.text);
    return values;
}

/* Every part as `dtype`, bit for bit. */
static void expect_same_parts(const char *model, const char *written, loam_dtype dtype)
{
    lm_files *a = opened(model), *b = opened(written);
    for (int part = 0; part < LM_PARTS; part++)
        for (int64_t layer = 0; layer < (part < LM_NORM_1 ? 1 : lm_files_config(a)->layers); layer++) {
            size_t bytes, same;
            void *x = read_part(a, (lm_part)part, layer, dtype, &bytes);
            void *y = read_part(b, (lm_part)part, layer, dtype, &same);
            assert_int_equal(bytes, same);
            assert_memory_equal(x, y, bytes);
            free(x);
            free(y);
        }
    lm_files_close(a);
    lm_files_close(b);
}

static void every_model_is_the_same(void **state)
{
    (void)state;
    for (int i = 0; i < FOLDER_MODELS; i++) {
        char model[512];
        snprintf(model, sizeof model, "%s/%s", LM_TEST_DATA, folder_models[i]);
        outcome result = run_loam("convert %s out --dtype f32", model);
        expect_status(&result, 0);
        assert_string_equal(result.err, "");
        expect_same_parts(model, "out", LOAM_F32);
        assert_int_equal(count_files("."), 4); /* . and .., .out and .err */
        folder_remove("out");
        result = run_loam("convert %s out/ --dtype bf16", model);
        expect_status(&result, 0);
        expect_same_parts(model, "out", LOAM_BF16);
        lm_files *f = opened("out");
        assert_string_equal(lm_files_type(f), "BF16");
        lm_files_close(f);
        folder_remove("out");
    }
}

/* Names, shapes, types and bytes as the library itself has written them. */
static void arrays_are_the_library_s(void **state)
{
    (void)state;
    static const char *const models[] = { "gpt2", "neox", "neox-serial", "llama", "llama-gguf" };
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        char path[512];
        io_error error;
        safetensors *ours, *theirs;
        outcome result = run_loam("convert %s/%s out", LM_TEST_DATA, models[i]);
        expect_status(&result, 0);
        snprintf(path, sizeof path, "%s/%s/model.safetensors", LM_TEST_DATA, models[i]);
        if (safetensors_open(&theirs, path, &error) ||
            safetensors_open(&ours, "out/model.safetensors", &error))
            fail_msg("%s", error.text);
        assert_int_equal(safetensors_count(ours), safetensors_count(theirs));
        assert_string_equal(safetensors_text(ours, "format"), "pt");
        for (const char *name = NULL; (name = safetensors_next(theirs, name)) != NULL;) {
            array a, b;
            if (safetensors_tensor(theirs, &a, name, &error) || safetensors_tensor(ours, &b, name, &error))
                fail_msg("%s", error.text);
            assert_int_equal(a.dtype, b.dtype);
            assert_int_equal(a.rank, b.rank);
            assert_memory_equal(a.shape, b.shape, sizeof a.shape);
            assert_memory_equal(a.data, b.data, (size_t)a.count * array_dtype_bytes(a.dtype));
            array_free(&a);
            array_free(&b);
        }
        safetensors_close(ours);
        safetensors_close(theirs);
        folder_remove("out");
    }
}

static const char LLAMA[] = LM_TEST_DATA "/llama";

static void mistakes_leave_nothing(void **state)
{
    (void)state;
    static const struct {
        int status;
        const char *arguments, *text;
    } rows[] = {
        { EXIT_USAGE, "", "expected MODEL and OUT, not 0 arguments" },
        { EXIT_USAGE, "a b c", "expected MODEL and OUT, not 3 arguments" },
        { EXIT_USAGE, "$DATA/nosuch out --dtype f64", "--dtype f64 is not known; expected f32, bf16 or f16" },
        { EXIT_INPUT, "nosuch out", "cannot read nosuch: No such file" },
        { EXIT_INPUT, "$DATA/q.npy out", "q.npy is not a .gguf file" },
        { EXIT_INPUT, "\"$LLAMA\" out --tokenizer nosuch", "nosuch" },
        { EXIT_USAGE, "\"$LLAMA\" ''", "OUT is empty" },
        { EXIT_OUTPUT, "\"$LLAMA\" nosuch/out", "cannot write nosuch/out: No such file" },
        { EXIT_OUTPUT, "\"$LLAMA\" .out", "cannot write .out: there is such a file" },
        { EXIT_OUTPUT, "\"$LLAMA\" .", "cannot write .: the folder is there already, and not empty" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        outcome result = run_shell("LLAMA=%s; \"$LOAM\" convert %s", LLAMA, rows[i].arguments);
        expect_complaint(&result, rows[i].status, rows[i].text);
        assert_false(file_exists("out"));
        assert_int_equal(count_files(".loam"), 0);
    }
}

/* ulimit -f is a disk that fills in the middle of a file. */
static void full_disks_leave_nothing(void **state)
{
    (void)state;
    outcome result = run_shell("trap '' XFSZ; mkdir out; ulimit -f 4; \"$LOAM\" convert %s out", LLAMA);
    expect_complaint(&result, EXIT_OUTPUT, "model.safetensors: File too large");
    assert_int_equal(count_files(".loam"), 0);
    folder_remove("out"); /* and is empty */
}

/* The model's own, and one from elsewhere; with a tokenizer that is wrong there is no model either. */
static void tokenizers_go_along(void **state)
{
    (void)state;
    folder_copy("llama", "model");
    outcome result = run_loam("convert model out --tokenizer %s", LM_TEST_DATA "/tokenizer.json");
    expect_status(&result, 0);
    assert_true(file_exists("out/tokenizer.json"));
    if (strstr(result.out, "without")) fail_msg("%s", result.out);
    folder_remove("out");
    result = run_shell("cp %s model && \"$LOAM\" convert model out", LM_TEST_DATA "/tokenizer.json");
    expect_status(&result, 0);
    assert_true(file_exists("out/tokenizer.json"));
    folder_remove("out");
    result = run_shell("echo '{}' >model/tokenizer.json; \"$LOAM\" convert model out");
    expect_complaint(&result, EXIT_INPUT, "model");
    assert_false(file_exists("out"));
    folder_remove("model");
}

static void empty_folders_are_filled(void **state)
{
    (void)state;
    outcome result = run_shell("mkdir out; \"$LOAM\" convert %s out", LLAMA);
    expect_status(&result, 0);
    if (!strstr(result.out, "out: llama, 2 layers, F32 as f32, without a tokenizer"))
        fail_msg("%s", result.out);
    folder_remove("out");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_model_is_the_same), cmocka_unit_test(arrays_are_the_library_s),
        cmocka_unit_test(mistakes_leave_nothing),  cmocka_unit_test(full_disks_leave_nothing),
        cmocka_unit_test(tokenizers_go_along),     cmocka_unit_test(empty_folders_are_filled),
    };
    return cmocka_run_group_tests(tests, program_setup, program_teardown);
}
