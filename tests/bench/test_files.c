/* SPDX-License-Identifier: MIT
 * cli/bench/files.c: what a shape takes of the files of its data, and which files it refuses. */
#define _POSIX_C_SOURCE 200809L
#include "cli/bench/arrays.h"
#include "cli/bench/files.h"
#include "io/npy.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* Six query heads on three key heads. */
enum { QUERY_HEADS = 6, KEY_HEADS = 3, TOKENS = 7, WIDTH = 4, VALUE_WIDTH = 2 };

static const char PREFIX[] = "bench-files";

static void path_of(int which, char path[32]) { snprintf(path, 32, "%s-%c.npy", PREFIX, "qkv"[which]); }

/* A number that tells which array, head, token and channel it is; every type but bfloat16 holds it. */
static double element(int which, int64_t head, int64_t token, int64_t channel)
{
    return (double)(((which * QUERY_HEADS + head) * TOKENS + token) * WIDTH + channel);
}

static void write_array(int which, int rank, const int64_t *shape, double special)
{
    array a;
    io_error error;
    char path[32];
    path_of(which, path);
    assert_int_equal(array_create(&a, LOAM_F32, rank, shape, path, &error), 0);
    const int64_t width = rank == 3 && a.count ? shape[2] : 1, tokens = rank == 3 && a.count ? shape[1] : 1;
    for (int64_t i = 0; i < a.count; i++)
        array_set(&a, i, element(which, i / width / tokens, i / width % tokens, i % width));
    if (special != 0) array_set(&a, a.count - 1, special);
    assert_int_equal(npy_write(path, &a, &error), 0);
    array_free(&a);
}

static void write_all(void)
{
    write_array(0, 3, (const int64_t[]){ QUERY_HEADS, TOKENS, WIDTH }, 0);
    write_array(1, 3, (const int64_t[]){ KEY_HEADS, TOKENS, WIDTH }, 0);
    write_array(2, 3, (const int64_t[]){ KEY_HEADS, TOKENS, VALUE_WIDTH }, 0);
}

/* The only shape of a line whose data are the files. */
static void read_line(bench_shapes *shapes, const char *line)
{
    char text[200];
    io_error error;
    snprintf(text, sizeof text, "some %s data=%s", line, PREFIX);
    FILE *stream = fmemopen(text, strlen(text), "r");
    assert_non_null(stream);
    *shapes = (bench_shapes){ 0 };
    if (bench_shapes_read(shapes, stream, "some.txt", &error)) fail_msg("%s", error.text);
    fclose(stream);
}

/* Heads of the files, side by side, that make head h of an array. */
typedef struct origin {
    int64_t head[2];
} origin;

static void expect_array(const bench_arrays *a, enum bench_array which, const origin *from, int64_t width,
                         int64_t first)
{
    const loam_problem *p = &a->shape->problem;
    const bench_layout l = bench_layout_of(p, which);
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t h = 0; h < l.heads; h++)
            for (int64_t t = 0; t < l.tokens; t++)
                for (int64_t c = 0; c < l.channels; c++) {
                    const double got = bench_element(a->at[which], p->dtype,
                                                     bench_row(a, which, b, h, t) + c),
                                 want = element((int)which, from[h].head[c / width], first + t, c % width);
                    if (got != want)
                        fail_msg("array %d, batch %d, head %d, token %d, channel %d: %g, expected %g",
                                 (int)which, (int)b, (int)h, (int)t, (int)c, got, want);
                }
}

/* Two sequences, nine query heads on three key heads, the last 2 queries of the first 5 keys. */
static void shapes_take_heads_and_tokens(void **state)
{
    (void)state;
    static const origin keys[][3] = { { { { 0 } }, { { 1 } }, { { 2 } } },
                                      { { { 0, 1 } }, { { 2, 0 } }, { { 1, 2 } } } };
    static const origin queries[][9] = {
        { { { 0 } }, { { 1 } }, { { 0 } }, { { 2 } }, { { 3 } }, { { 2 } }, { { 4 } }, { { 5 } }, { { 4 } } },
        { { { 0, 2 } },
          { { 1, 3 } },
          { { 0, 2 } },
          { { 4, 0 } },
          { { 5, 1 } },
          { { 4, 0 } },
          { { 2, 4 } },
          { { 3, 5 } },
          { { 2, 4 } } }
    };
    static const char *const lines[] = { "softmax forward f32 2 9 3 2 5 4 2",
                                         "softmax forward f64 2 9 3 2 5 4 2 layout=bthd",
                                         "lla backward f16 2 9 3 2 5 8 4 layout=bthd",
                                         "softmax decode f32 2 9 3 2 5 8 4" };
    write_all();
    for (int n = 0; n < 4; n++) {
        bench_shapes shapes;
        bench_arrays a;
        io_error error;
        const int two = n / 2;
        read_line(&shapes, lines[n]);
        if (bench_arrays_fill(&a, &shapes.at[0], 1, 2, &error)) fail_msg("%s", error.text);
        expect_array(&a, BENCH_Q, queries[two], WIDTH, 3);
        expect_array(&a, BENCH_K, keys[two], WIDTH, 0);
        expect_array(&a, BENCH_V, keys[two], VALUE_WIDTH, 0);
        bench_arrays_free(&a);
        bench_shapes_free(&shapes);
    }
}

/* More heads than the files have: they begin again. */
static void heads_begin_again(void **state)
{
    (void)state;
    static const origin keys[] = { { { 0 } }, { { 1 } }, { { 2 } }, { { 0 } }, { { 1 } } };
    static const origin queries[] = { { { 0 } }, { { 2 } }, { { 4 } }, { { 0 } }, { { 2 } } };
    bench_shapes shapes;
    bench_arrays a;
    io_error error;
    write_all();
    read_line(&shapes, "softmax forward f32 1 5 5 7 7 4 2");
    assert_int_equal(bench_arrays_fill(&a, &shapes.at[0], 1, 1, &error), 0);
    expect_array(&a, BENCH_Q, queries, WIDTH, 0);
    expect_array(&a, BENCH_K, keys, WIDTH, 0);
    bench_arrays_free(&a);
    bench_shapes_free(&shapes);
}

static void elements_are_rounded(void **state)
{
    (void)state;
    bench_shapes shapes;
    bench_files files;
    io_error error;
    write_all();
    write_array(1, 3, (const int64_t[]){ KEY_HEADS, TOKENS, WIDTH }, 1.01171875);
    read_line(&shapes, "softmax forward bf16 1 5 5 7 7 4 2");
    assert_int_equal(bench_files_read(&files, &shapes.at[0], &error), 0);
    assert_true(array_get(&files.of[1], files.of[1].count - 1) == 1.015625);
    assert_true(bench_files_bytes(&files) == 2 * TOKENS * (6 * 4 + 3 * 4 + 3 * 2));
    bench_files_free(&files);
    bench_shapes_free(&shapes);
}

static void expect_refusal(const char *line, const char *text)
{
    bench_shapes shapes;
    bench_files files;
    io_error error = { 0 };
    read_line(&shapes, line);
    assert_int_equal(bench_files_read(&files, &shapes.at[0], &error), EXIT_INPUT);
    if (strcmp(error.text, text) != 0)
        fail_msg("%s: the message is '%s', expected '%s'", line, error.text, text);
    bench_files_free(&files);
    bench_shapes_free(&shapes);
}

static void shapes_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    write_all();
    expect_refusal("softmax forward f32 1 1 1 8 8 4 2",
                   "some.txt:1: data: bench-files-k.npy has 7 tokens, expected Lkv 8 or more");
    expect_refusal("softmax forward f32 1 1 1 7 6 4 2",
                   "some.txt:1: data: Lq is 7, expected Lkv 6 or less: queries of files have keys");
    expect_refusal("softmax forward f32 1 1 1 7 7 6 2",
                   "some.txt:1: data: bench-files-k.npy has 4 channels, expected a divisor of Dqk 6");
    expect_refusal("softmax forward f32 1 1 1 7 7 4 3",
                   "some.txt:1: data: bench-files-v.npy has 2 channels, expected a divisor of Dv 3");
}

/* Array `which` of another shape, all others as they were. */
static void expect_bad_file(int which, int rank, const int64_t *shape, double special, const char *text)
{
    write_all();
    write_array(which, rank, shape, special);
    expect_refusal("softmax forward f16 1 1 1 7 7 4 2", text);
}

static void files_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    const int64_t queries[] = { 6, 7, 4 }, keys[] = { 3, 7, 4 };
    expect_bad_file(
        0, 2, queries, 0,
        "some.txt:1: data: bench-files-q.npy has shape (6, 7), expected (heads, tokens, channels), "
        "none of them 0");
    expect_bad_file(1, 3, (const int64_t[]){ 3, 0, 4 }, 0,
                    "some.txt:1: data: bench-files-k.npy has shape (3, 0, 4), expected (heads, tokens, "
                    "channels), none of them 0");
    expect_bad_file(0, 3, (const int64_t[]){ 7, 7, 4 }, 0,
                    "some.txt:1: data: bench-files-q.npy has 7 heads, expected a multiple of 3 as "
                    "bench-files-k.npy");
    expect_bad_file(2, 3, (const int64_t[]){ 6, 7, 2 }, 0,
                    "some.txt:1: data: bench-files-v.npy has 6 heads, expected 3 as bench-files-k.npy");
    expect_bad_file(0, 3, (const int64_t[]){ 6, 9, 4 }, 0,
                    "some.txt:1: data: bench-files-q.npy has 9 tokens, expected 7 as bench-files-k.npy");
    expect_bad_file(2, 3, (const int64_t[]){ 3, 6, 2 }, 0,
                    "some.txt:1: data: bench-files-v.npy has 6 tokens, expected 7 as bench-files-k.npy");
    expect_bad_file(0, 3, (const int64_t[]){ 6, 7, 2 }, 0,
                    "some.txt:1: data: bench-files-q.npy has 2 channels, expected 4 as bench-files-k.npy");
    expect_bad_file(1, 3, keys, (double)NAN,
                    "some.txt:1: data: bench-files-k.npy: the value at (2, 6, 3) is NaN, not a finite f16");
    expect_bad_file(0, 3, queries, -1e5,
                    "some.txt:1: data: bench-files-q.npy: the value at (5, 6, 3) is -infinite, not a finite "
                    "f16");
}

static void files_that_cannot_be_read_are_refused(void **state)
{
    (void)state;
    static const char start[] =
        "some.txt:1: data: 'bench-files', expected normal, unit, anisotropic, shifted "
        "or rope, or the prefix of files: ";
    char text[300];
    write_all();
    unlink("bench-files-v.npy");
    snprintf(text, sizeof text, "%scannot read bench-files-v.npy: No such file or directory", start);
    expect_refusal("softmax forward f16 1 1 1 7 7 4 2", text);
    FILE *stream = fopen("bench-files-v.npy", "w");
    assert_non_null(stream);
    fputs("1,2,3\n", stream);
    assert_int_equal(fclose(stream), 0);
    snprintf(text, sizeof text, "%sbench-files-v.npy is not a .npy file", start);
    expect_refusal("softmax forward f16 1 1 1 7 7 4 2", text);
}

static int remove_files(void **state)
{
    (void)state;
    for (int which = 0; which < BENCH_FILES_COUNT; which++) {
        char path[32];
        path_of(which, path);
        unlink(path);
    }
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes_take_heads_and_tokens),
        cmocka_unit_test(heads_begin_again),
        cmocka_unit_test(elements_are_rounded),
        cmocka_unit_test(shapes_that_do_not_fit_are_refused),
        cmocka_unit_test(files_that_do_not_fit_are_refused),
        cmocka_unit_test(files_that_cannot_be_read_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, remove_files);
}
