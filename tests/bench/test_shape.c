/* SPDX-License-Identifier: MIT
 * cli/bench/shape.c: what a line means, and what is said about a wrong one. */
#define _POSIX_C_SOURCE 200809L
#include "cli/bench/shape.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define KIND "name softmax forward f32 "
#define LLA "name lla forward f32 1 1 1 9 9 8 8 "
#define LINE KIND "1 4 2 9 9 8 8 "

static int read_text(bench_shapes *shapes, const char *text, io_error *error)
{
    /* fmemopen takes no empty buffer. */
    FILE *stream = fmemopen((void *)(uintptr_t)text, strlen(text), "r");
    assert_non_null(stream);
    const int status = bench_shapes_read(shapes, stream, "some.txt", error);
    fclose(stream);
    return status;
}

static void lines_are_read(void **state)
{
    (void)state;
    bench_shapes shapes = { 0 };
    io_error error;
    const char *text =
        "# a comment\n"
        "\n"
        "one softmax forward f32 2 8 4 100 200 64 32 # the rest\r\n"
        "\ttwo  lla backward bf16 1 1 1 5 6 7 8 full window=9 ridge=0.25 unit=trace score=rbf scale=0.5 "
        "soft_cap=30 slope layout=bthd kernel=*_avx2\n"
        "three parallax decode f16 1 2 1 1 9 512 1 causal\n"
        "four parallax forward bf16 1 2 1 9 9 8 8 saved data=rope\n"
        "five gated-delta backward f32 1 2 6 9 9 8 4 features=unit\n"
        "six lla backward f32 1 2 2 9 9 8 4 decay\n"
        "seven mesa forward f32 1 2 2 9 9 8 8 ridge=3\n"
        "eight linear forward f32 1 2 2 9 9 8 8 normalise features=elu\n"
        "nine softmax forward f32 1 2 2 9 9 8 8 path\n"
        "ten lla forward f32 1 2 2 9 9 8 8 data=some/folder/layer20 ridge=3\n";
    assert_int_equal(read_text(&shapes, text, &error), 0);
    assert_int_equal(shapes.count, 10);
    const loam_problem *p = &shapes.at[0].problem;
    assert_string_equal(shapes.at[0].name, "one");
    assert_string_equal(shapes.at[0].flags, "");
    assert_string_equal(shapes.at[0].kernel, "");
    assert_int_equal(shapes.at[0].line, 3);
    assert_true(p->mechanism == LOAM_SOFTMAX && p->pass == LOAM_FORWARD && p->dtype == LOAM_F32);
    assert_true(p->batch == 2 && p->heads_q == 8 && p->heads_kv == 4 && p->len_q == 100 && p->len_kv == 200);
    assert_true(p->dim_qk == 64 && p->dim_v == 32 && p->causal == 1 && p->window == 0 &&
                p->score == LOAM_DOT);
    p = &shapes.at[1].problem;
    assert_true(p->mechanism == LOAM_LLA && p->pass == LOAM_BACKWARD && p->dtype == LOAM_BF16);
    assert_true(p->causal == 0 && p->window == 9 && p->ridge == 0.25 && p->ridge_unit == LOAM_RIDGE_TRACE);
    assert_true(p->score == LOAM_RBF && p->scale == 0.5 && p->soft_cap == 30 && p->slope == 1 &&
                p->sink == 0);
    assert_true(shapes.at[1].tokens_first && !shapes.at[0].tokens_first);
    assert_string_equal(shapes.at[1].kernel, "*_avx2");
    p = &shapes.at[2].problem;
    assert_true(p->mechanism == LOAM_PARALLAX && p->pass == LOAM_DECODE && p->dtype == LOAM_F16);
    assert_true(p->dim_qk == 512 && p->dim_v == 1 && shapes.at[2].line == 5);
    assert_true(shapes.at[3].saved && shapes.at[3].data == BENCH_ROPE);
    assert_true(!shapes.at[0].saved && shapes.at[1].saved && shapes.at[0].data == BENCH_NORMAL);
    p = &shapes.at[4].problem;
    assert_true(p->mechanism == LOAM_GATED_DELTA && p->heads_q == 2 && p->heads_kv == 2 && p->heads_v == 6);
    assert_true(p->feature_map == LOAM_FEATURES_UNIT && !p->normalise && !shapes.at[4].saved);
    assert_true(shapes.at[5].problem.decay && !shapes.at[5].problem.path && shapes.at[5].saved);
    assert_true(shapes.at[6].problem.ridge == 3);
    assert_true(shapes.at[7].problem.normalise && shapes.at[7].problem.feature_map == LOAM_FEATURES_ELU);
    assert_true(shapes.at[8].problem.path && !shapes.at[8].problem.decay);
    assert_true(shapes.at[9].data == BENCH_FILES && shapes.at[9].problem.ridge == 3);
    assert_string_equal(shapes.at[9].files, "some/folder/layer20");
    assert_string_equal(shapes.at[3].files, "");
    bench_shapes_free(&shapes);
}

/* `text` fails with a message that begins with file and line and then says `part`. */
static void expect(const char *text, const char *part)
{
    bench_shapes shapes = { 0 };
    io_error error = { 0 };
    assert_int_equal(read_text(&shapes, text, &error), EXIT_INPUT);
    bench_shapes_free(&shapes);
    if (strncmp(error.text, "some.txt:", 9) != 0 || !strstr(error.text, part))
        fail_msg("'%s': the message is '%s', expected some.txt:... '%s'", text, error.text, part);
}

static void fields_are_checked(void **state)
{
    (void)state;
    expect("a\n", ":1: mechanism: missing");
    expect("\n\na softmax forward f32 1 8 8 4 4 64", ":3: Dv: missing");
    expect("a softmux forward f32", "mechanism: 'softmux', expected softmax, parallax, lla, linear,");
    expect("a lla forwards f32", "pass: 'forwards', expected forward, backward or decode");
    expect("a lla decode f31", "dtype: 'f31', expected f32, bf16, f16 or f64");
    expect(KIND "0", "B: '0', expected a whole number from 1");
    expect(KIND "1 8x", "Hq: '8x'");
    expect(KIND "1 8 -8", "Hkv: '-8'");
    expect(KIND "1 8 8 4.5", "Lq: '4.5'");
    expect(KIND "1 8 8 4 99999999999999999999", "Lkv: '99999999999999999999'");
    expect(KIND "1 8 8 4 4 513", "Dqk: '513', expected a whole number from 1 to 512");
    expect(KIND "1 8 8 4 4 64 0", "Dv: '0'");
    expect(KIND "1 8 3 4 4 64 64", "Hq: 8, expected a multiple of Hkv 3");
    expect("a,b softmax", "name: 'a,b'");
    expect("a\"b softmax", "name: 'a\"b'");
    expect("0123456789012345678901234567890123456789012345678 softmax", "name: '");
}

static void flags_are_checked(void **state)
{
    (void)state;
    expect(LINE "casual", "flag: unknown 'casual'; did you mean 'causal'?");
    expect(LINE "zzzzzz", "flag: unknown 'zzzzzz'");
    expect(LINE "causal full", "full: given twice (causal or full)");
    expect(LINE "window=3 window=3", "window: given twice");
    expect(LINE "causal=1", "causal: takes no value, got '1'");
    expect(LINE "window", "window: expected a value");
    expect(LINE "window=-1", "window: '-1'");
    expect(LINE "window=", "window: ''");
    expect(LINE "scale=nan", "scale: 'nan'");
    expect(LINE "scale=-1", "scale: '-1'");
    expect(LINE "soft_cap=inf", "soft_cap: 'inf'");
    expect(LINE "score=cosine", "score: 'cosine', expected dot or rbf");
    expect(LINE "layout=thbd", "layout: 'thbd', expected bhtd or bthd");
    expect(LINE "data=", "data: ''");
    expect(LINE "data=a,b", "data: 'a,b', expected no comma");
    expect(
        "a kda forward f32 1 4 4 9 9 8 8 data=rapid",
        "data: 'rapid', expected normal, unit, anisotropic, shifted or rope; files are for the local family, "
        "not for kda");
    expect("a softmax decode f32 1 1 1 1 9 8 8 saved", "saved: only a forward has it to leave, not decode");
    expect("a linear forward f32 1 4 2 9 9 8 8", "Hkv: 2, expected a multiple of Hq 4 for linear");
    expect("a kda forward f32 1 4 4 9 8 8 8", "Lkv: 8, expected Lq 9 for kda");
    expect("a kda forward f32 1 4 4 9 9 8 8 saved", "saved: kda leaves nothing");
    expect("a kda forward f32 1 4 4 9 9 8 8 features=relu",
           "features: 'relu', expected identity, elu, unit or positive");
    expect("a kda forward f32 1 4 4 9 9 8 8 ridge=1", "ridge: is for lla and mesa, not for kda");
    expect("a mesa forward f32 1 4 4 9 9 8 8 unit=max", "unit: is for lla, not for mesa");
    expect(LINE "ridge=1", "ridge: is for lla and mesa, not for softmax");
    expect(LINE "unit=max", "unit: is for lla, not for softmax");
    expect(LLA "unit=min", "unit: 'min', expected normalised, max or trace");
    expect(LLA "ridge=1e", "ridge: '1e'");
    expect(LINE "kernel=", "kernel: ''");
    char line[400] = LINE;
    memset(line + strlen(line), 'x', 250);
    expect(line, "flags: more than");
}

static void names_are_unique(void **state)
{
    (void)state;
    expect(LINE "\n\n" LINE, "some.txt:3: name: 'name' is taken by some.txt:1");
}

static void earlier_shapes_stay(void **state)
{
    (void)state;
    bench_shapes shapes = { 0 };
    io_error error;
    assert_int_equal(read_text(&shapes, LINE, &error), 0);
    assert_int_equal(read_text(&shapes, "other lla", &error), EXIT_INPUT);
    assert_int_equal(shapes.count, 1);
    assert_int_equal(bench_shapes_load(&shapes, "no/such.txt", &error), EXIT_INPUT);
    assert_non_null(strstr(error.text, "no/such.txt: cannot open"));
    assert_int_equal(bench_shapes_load(&shapes, ".", &error),
                     EXIT_INPUT); /* a directory opens, but cannot be read */
    bench_shapes_free(&shapes);
}

static void printed_shapes_read_back(void **state)
{
    (void)state;
    bench_shapes before = { 0 }, after = { 0 };
    io_error error;
    char *text = NULL;
    size_t length;
    assert_int_equal(bench_shapes_default(&before, true, &error), 0);
    FILE *stream = open_memstream(&text, &length);
    assert_non_null(stream);
    for (size_t i = 0; i < before.count; i++)
        bench_shape_print(&before.at[i], stream);
    fclose(stream);
    assert_int_equal(read_text(&after, text, &error), 0);
    assert_int_equal(after.count, before.count);
    for (size_t i = 0; i < before.count; i++) {
        assert_string_equal(after.at[i].name, before.at[i].name);
        assert_string_equal(after.at[i].flags, before.at[i].flags);
        assert_memory_equal(&after.at[i].problem, &before.at[i].problem, sizeof(loam_problem));
    }
    free(text);
    bench_shapes_free(&before);
    bench_shapes_free(&after);
}

/* Every mechanism of the library is among the shapes built
 * in, in each pass; those that run by default are local. */
static void every_mechanism_has_shapes(void **state)
{
    (void)state;
    bench_shapes local = { 0 }, all = { 0 };
    io_error error;
    assert_int_equal(bench_shapes_default(&local, false, &error), 0);
    assert_int_equal(bench_shapes_default(&all, true, &error), 0);
    loam_mechanism_info info;
    for (int m = 0; loam_mechanism_at(m, &info) == LOAM_OK; m++)
        for (int pass = 0; loam_pass_name((loam_pass)pass); pass++) {
            int in_local = 0, in_all = 0;
            for (size_t i = 0; i < all.count; i++) {
                const loam_problem *p = &all.at[i].problem;
                const int is = (int)p->mechanism == m && (int)p->pass == pass;
                in_all += is;
                in_local += is && i < local.count;
            }
            if (in_all == 0) fail_msg("no shape of %s %s", info.name, loam_pass_name((loam_pass)pass));
            assert_true((in_local > 0) == (info.family == LOAM_FAMILY_LOCAL));
        }
    bench_shapes_free(&local);
    bench_shapes_free(&all);
}

/* A default shape that no plan takes would fail before anything is measured. */
static void default_shapes_are_planned(void **state)
{
    (void)state;
    bench_shapes shapes = { 0 };
    io_error error;
    assert_int_equal(bench_shapes_default(&shapes, true, &error), 0);
    assert_true(shapes.count > 40);
    for (size_t i = 0; i < shapes.count; i++) {
        loam_plan *plan;
        loam_error reason;
        if (loam_plan_create(&plan, &shapes.at[i].problem, &reason))
            fail_msg("%s: %s", shapes.at[i].name, reason.text);
        loam_plan_destroy(plan);
    }
    bench_shapes_free(&shapes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_are_read),
        cmocka_unit_test(fields_are_checked),
        cmocka_unit_test(flags_are_checked),
        cmocka_unit_test(names_are_unique),
        cmocka_unit_test(earlier_shapes_stay),
        cmocka_unit_test(printed_shapes_read_back),
        cmocka_unit_test(every_mechanism_has_shapes),
        cmocka_unit_test(default_shapes_are_planned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
