/* SPDX-License-Identifier: MIT
 * loam bench as a user runs it. */
#include "io/npy.h"
#include "tests/cli/program.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void write_file(const char *path, const char *text)
{
    FILE *stream = fopen(path, "w");
    assert_non_null(stream);
    fputs(text, stream);
    assert_int_equal(fclose(stream), 0);
}

/* Small problems of every mechanism, pass and type. */
static void write_shapes(void)
{
    write_file("small.txt", "soft softmax forward f32 1 4 2 20 20 8 8 causal window=5\n"
                            "para parallax backward bf16 2 2 2 9 17 8 4 full\n"
                            "lla lla forward f32 1 2 1 40 40 8 8 ridge=0.5 layout=bthd\n"
                            "grad lla backward f16 1 2 1 40 40 8 8\n"
                            "step lla decode f32 1 4 1 1 300 16 16\n"
                            "exact softmax decode f64 1 4 1 2 300 16 16 sink slope\n"
                            "rows softmax forward f32 1 1 1 5 5 4 4 kernel=*\n");
}

/* data-q.npy, data-k.npy and data-v.npy, of 40 tokens: two query heads on one key head. */
static void write_data(void)
{
    for (const char *letter = "qkv"; *letter; letter++) {
        char path[16];
        array a;
        io_error error;
        snprintf(path, sizeof path, "data-%c.npy", *letter);
        const int64_t shape[] = { *letter == 'q' ? 2 : 1, 40, 8 };
        assert_int_equal(array_create(&a, LOAM_F16, 3, shape, path, &error), 0);
        for (int64_t i = 0; i < a.count; i++)
            array_set(&a, i, (double)(i * 37 % 101) / 50 - 1);
        assert_int_equal(npy_write(path, &a, &error), 0);
        array_free(&a);
    }
}

static json_t *run_json(const char *arguments)
{
    outcome result = run_loam("bench %s --format json --out out.json", arguments);
    expect_status(&result, 0);
    assert_string_equal(result.out, "");
    json_error_t error;
    json_t *root = json_load_file("out.json", JSON_REJECT_DUPLICATES, &error);
    if (!root) fail_msg("%s", error.text);
    return root;
}

static const char *text_of(json_t *object, const char *name)
{
    const char *text = json_string_value(json_object_get(object, name));
    if (!text) fail_msg("no text '%s'", name);
    return text;
}

static double number_of(json_t *object, const char *name)
{
    json_t *value = json_object_get(object, name);
    if (!json_is_number(value)) fail_msg("no number '%s'", name);
    return json_number_value(value);
}

/* Rows that a plan takes for the shape "rows". */
static int available_rows(void)
{
    int rows = 0;
    loam_kernel_info row;
    for (int i = 0; loam_kernel_at(i, &row) == LOAM_OK; i++) {
        loam_problem problem = loam_problem_default(LOAM_SOFTMAX, LOAM_FORWARD);
        problem.len_q = problem.len_kv = 5, problem.dim_qk = problem.dim_v = 4;
        problem.kernel = row.name;
        loam_plan *plan;
        rows += loam_plan_create(&plan, &problem, NULL) == LOAM_OK;
        loam_plan_destroy(plan);
    }
    return rows;
}

static void results_are_whole(void **state)
{
    (void)state;
    write_shapes();
    json_t *root = run_json("small.txt --no-roof --repeat 2 --threads 2 --seed 9"), *row;
    size_t index;
    assert_true(number_of(root, "threads") == 2 && number_of(root, "seed") == 9);
    assert_true(*text_of(root, "machine") && *text_of(root, "compiler") && *text_of(root, "commit"));
    assert_int_equal(strlen(text_of(root, "date")), strlen("2026-01-02T03:04:05Z"));
    assert_true(json_is_null(json_object_get(root, "sgemm_gflops")));
    assert_int_equal(json_array_size(json_object_get(root, "results")), 6 + available_rows());
    json_array_foreach(json_object_get(root, "results"), index, row)
    {
        const double least = number_of(row, "min_s"), most = number_of(row, "max_s");
        assert_true(least > 0 && least <= number_of(row, "median_s") && number_of(row, "median_s") <= most);
        assert_true(number_of(row, "runs") == 2 && number_of(row, "gflops") > 0 && number_of(row, "gbs") > 0);
        assert_true(number_of(row, "error") >= 0 && number_of(row, "error") < 1e-2);
        assert_true(json_is_null(json_object_get(row, "of_roof")));
    }
    json_decref(root);
}

/* Rows of LLA tell how they were solved, others do not. */
static void data_from_files_are_measured(void **state)
{
    (void)state;
    write_data();
    write_file("files.txt", "soft softmax forward bf16 2 4 2 20 40 16 8 data=data layout=bthd\n"
                            "lla lla forward f32 1 2 1 40 40 8 8 data=data ridge=0.001\n"
                            "grad lla backward f16 1 3 1 9 33 8 8 data=data ridge=1e4\n");
    json_t *root = run_json("files.txt --no-roof --repeat 1"), *results = json_object_get(root, "results");
    assert_int_equal(json_array_size(results), 3);
    for (size_t i = 0; i < 3; i++) {
        const double error = number_of(json_array_get(results, i), "error");
        assert_true(error >= 0 && error < 1e-2);
    }
    assert_true(json_is_null(json_object_get(json_array_get(results, 0), "exact")));
    assert_true(number_of(json_array_get(results, 1), "exact") > 0.1);
    assert_true(number_of(json_array_get(results, 2), "exact") == 0);
    json_decref(root);
}

static void roofs_are_measured(void **state)
{
    (void)state;
    write_shapes();
    json_t *root = run_json("small.txt --shape 's*' --repeat 1");
    static const char *const roofs[] = { "sgemm", "read", "copy", "update" };
    static const char *const units[] = { "gflops", "gbs", "gbs", "gbs" };
    for (int i = 0; i < 4; i++) {
        char name[32];
        snprintf(name, sizeof name, "%s_%s", roofs[i], units[i]);
        const double most = number_of(root, name);
        snprintf(name, sizeof name, "%s_first", roofs[i]);
        assert_true(number_of(root, name) > 0 && number_of(root, name) <= most);
        snprintf(name, sizeof name, "%s_last", roofs[i]);
        assert_true(number_of(root, name) > 0 && number_of(root, name) <= most);
    }
    json_t *results = json_object_get(root, "results");
    assert_int_equal(json_array_size(results), 2);
    assert_true(number_of(json_array_get(results, 0), "of_roof") ==
                number_of(json_array_get(results, 0), "of_sgemm"));
    assert_true(number_of(json_array_get(results, 1), "of_roof") ==
                number_of(json_array_get(results, 1), "of_read"));
    json_decref(root);
}

/* What `bench small.txt OPTIONS` measures, as the names of its shapes. */
static void expect_shapes(const char *options, const char *expected)
{
    outcome result = run_loam(
        "bench small.txt --no-roof --repeat 1 --format csv %s | tail -n +2 | cut -d, -f1 | "
        "tr '\\n' ' '",
        options);
    expect_status(&result, 0);
    if (strcmp(result.out, expected) != 0) fail_msg("%s: %s, expected %s", options, result.out, expected);
}

static void options_choose(void **state)
{
    (void)state;
    write_shapes();
    expect_shapes("--mechanism parallax", "para ");
    expect_shapes("--mechanism lla --pass forward", "lla ");
    expect_shapes("--pass decode --dtype f64", "exact ");
    expect_shapes("--kernel local_decode_ref", "step exact ");
    expect_shapes("--kernel '*_portable' --shape '[gl]*'", "lla grad ");
    json_t *root = run_json("small.txt --no-roof --no-error --repeat 1 --kernel '*_ref' --shape soft");
    json_t *row = json_array_get(json_object_get(root, "results"), 0);
    assert_true(json_is_null(json_object_get(row, "error")));
    assert_string_equal(text_of(row, "kernel"), "local_forward_ref");
    json_decref(root);
}

/* Rows that this machine, or LOAM_ISA, does not allow are left out. */
static void rows_that_cannot_run_are_left_out(void **state)
{
    (void)state;
    write_shapes();
    outcome result = run_shell(
        "LOAM_ISA=portable \"$LOAM\" bench small.txt --shape rows --no-roof --repeat 1 "
        "--format csv | tail -n +2 | cut -d, -f2 | tr '\\n' ' '");
    expect_status(&result, 0);
    assert_string_equal(result.err, "");
    assert_string_equal(result.out, "local_forward_ref local_forward_portable ");
}

static void table_is_the_default(void **state)
{
    (void)state;
    write_shapes();
    outcome result = run_loam("bench small.txt --no-roof --seconds 0 --shape soft");
    expect_status(&result, 0);
    assert_string_equal(result.err, "");
    assert_non_null(strstr(result.out, "median ms"));
    assert_non_null(strstr(result.out, "\nsoft "));
}

static void shapes_are_printed(void **state)
{
    (void)state;
    outcome first = run_loam("bench --print-shapes");
    expect_status(&first, 0);
    write_file("printed.txt", first.out);
    outcome second = run_loam("bench printed.txt --print-shapes");
    expect_status(&second, 0);
    assert_string_equal(second.out, first.out);
    outcome some = run_loam("bench --print-shapes --mechanism lla --pass decode | grep -c decode");
    assert_int_equal(some.status, 0);
    assert_non_null(strstr(first.out, "softmax-f32-d64 "));
    assert_null(strstr(first.out, "gated-delta"));
}

/* Whatever the library has is found by its name, without a file. */
static void every_mechanism_is_found(void **state)
{
    (void)state;
    loam_mechanism_info info;
    for (int m = 0; loam_mechanism_at(m, &info) == LOAM_OK; m++) {
        outcome result = run_loam("bench --print-shapes --mechanism %s", info.name);
        expect_status(&result, 0);
        for (int pass = 0; loam_pass_name((loam_pass)pass); pass++) {
            char words[64];
            snprintf(words, sizeof words, " %-11s %-8s ", info.name, loam_pass_name((loam_pass)pass));
            if (!strstr(result.out, words)) fail_msg("no '%s' in: %s", words, result.out);
        }
    }
    outcome result = run_loam("bench --print-shapes --shape gated-delta-unit");
    expect_status(&result, 0);
    assert_non_null(strstr(result.out, "\ngated-delta-unit "));
}

static void expect_refusal(const char *arguments, int status, const char *part)
{
    outcome result = run_loam("bench --no-roof --repeat 1 --out never %s", arguments);
    expect_complaint(&result, status, part);
    assert_false(file_exists("never"));
}

static void mistakes_are_refused(void **state)
{
    (void)state;
    write_shapes();
    write_data();
    write_file("absent.txt", "good softmax forward f32 1 1 1 4 4 8 8\n"
                             "absent softmax forward f32 1 1 1 4 4 8 8 data=norml\n");
    write_file("own.txt", "own softmax forward f32 1 1 1 4 4 8 8 data=data\n");
    expect_refusal("absent.txt", EXIT_INPUT,
                   "absent.txt:2: data: 'norml', expected normal, unit, anisotropic, shifted or rope, or the "
                   "prefix of files: cannot read norml-q.npy: No such file or directory");
    expect_refusal("own.txt --memory 0.000001", EXIT_INPUT, "own.txt:1: own: needs ");
    write_file("bad.txt", "good softmax forward f32 1 1 1 4 4 4 4\nbad softmax forward f32 1 1 1 4 4 4 x\n");
    write_file("contract.txt", "sunk lla forward f32 1 1 1 4 4 4 4 sink\n");
    write_file("huge.txt", "huge softmax forward f32 1048576 1048576 1 536870911 536870911 512 512\n");
    write_file("large.txt", "large softmax forward f32 1 64 64 1000000 1000000 512 512\n");
    expect_refusal("bad.txt", EXIT_INPUT, "bad.txt:2: Dv: 'x'");
    expect_refusal("nowhere.txt", EXIT_INPUT, "nowhere.txt: cannot open");
    expect_refusal("contract.txt", EXIT_INPUT, "contract.txt:1: sunk: sink: only softmax");
    expect_refusal("huge.txt", EXIT_INPUT, "huge.txt:1: huge: needs ");
    expect_refusal("large.txt", EXIT_INPUT, "large.txt:1: large: needs ");
    expect_refusal("small.txt --memory 0.000001", EXIT_INPUT, "(--memory)");
    expect_refusal("small.txt --mechanism softmux", EXIT_USAGE, "did you mean 'softmax'?");
    char unknown[1024] = "--mechanism: unknown 'fax', expected softmax";
    for (int m = LOAM_PARALLAX; loam_mechanism_name((loam_mechanism)m); m++) {
        strcat(unknown, loam_mechanism_name((loam_mechanism)(m + 1)) ? ", " : " or ");
        strcat(unknown, loam_mechanism_name((loam_mechanism)m));
    }
    expect_refusal("--mechanism fax", EXIT_USAGE, unknown);
    expect_refusal("small.txt --repeat 1", EXIT_USAGE, "--repeat: given twice");
    expect_refusal("small.txt --pass sideways", EXIT_USAGE, "--pass: unknown 'sideways', expected forward");
    expect_refusal("small.txt --dtype f65", EXIT_USAGE, "--dtype: unknown 'f65'");
    expect_refusal("small.txt --format xml", EXIT_USAGE, "--format: unknown 'xml'");
    expect_refusal("small.txt --shape nothing", EXIT_USAGE, "no shape is left of 7");
    expect_refusal("small.txt --kernel nothing", EXIT_USAGE, "'nothing'");
    expect_refusal("small.txt --threads -1", EXIT_USAGE, "--threads -1");
    expect_refusal("small.txt small.txt", EXIT_INPUT, "is taken by small.txt:1");
    outcome result = run_loam("bench small.txt --no-roof --repeat 1 --out ./small.txt");
    expect_complaint(&result, EXIT_USAGE, "--out ./small.txt would be written over the shapes small.txt");
    result = run_loam("bench own.txt --no-roof --repeat 1 --out ./data-k.npy");
    expect_complaint(&result, EXIT_USAGE, "--out ./data-k.npy would be written over the data data-k.npy");
    result = run_loam("bench small.txt --no-roof --repeat 1 --out no/such/directory");
    expect_complaint(&result, EXIT_OUTPUT, "no/such/directory");
    result = run_loam("bench small.txt --no-roof --repeat 1 --format json --out /dev/full");
    expect_complaint(&result, EXIT_OUTPUT, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_are_whole),
        cmocka_unit_test(data_from_files_are_measured),
        cmocka_unit_test(roofs_are_measured),
        cmocka_unit_test(options_choose),
        cmocka_unit_test(rows_that_cannot_run_are_left_out),
        cmocka_unit_test(table_is_the_default),
        cmocka_unit_test(shapes_are_printed),
        cmocka_unit_test(every_mechanism_is_found),
        cmocka_unit_test(mistakes_are_refused),
    };
    return cmocka_run_group_tests(tests, program_setup, program_teardown);
}
