/* SPDX-License-Identifier: MIT
 * `loam attend --cu-seqlens`: packed sequences give what a call for each gives. */
#define _POSIX_C_SOURCE 200809L
#include "io/error.h"
#include "io/npy.h"
#include "tests/cli/program.h"
#include "tests/cli/sequences.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* One is empty, one has a token, one ends within a chunk of 64, one with it. */
static const sequences SEQUENCES = {
    .count = 5, .queries = { 5, 0, 1, 70, 64 }, .keys = { 9, 0, 3, 71, 64 }, .dim = 6, .dim_v = 4
};

static void attend_in(const char *directory, const attend_case *c, const char *options)
{
    outcome result = run_shell(
        "cd %s && rm -rf g o.npy && \"$LOAM\" attend %s --out o.npy %s --grad-dir g %s", directory,
        c->arguments, c->outputs, options);
    expect_status(&result, 0);
    assert_string_equal(result.err, "");
}

static void save_all(void)
{
    outcome made = run_shell("mkdir -p all 0 1 2 3 4");
    expect_status(&made, 0);
    save_sequences("all", &SEQUENCES, false, 0);
    for (int64_t b = 0; b < SEQUENCES.count; b++) {
        char directory[8];
        snprintf(directory, sizeof directory, "%d", (int)b);
        save_sequences(directory, &SEQUENCES, true, b);
    }
}

/* What a file of the packed call should hold: the parts one
 * after the other along their tokens, or stacked, or summed. */
static array expected_of(const array *parts, const array *like, bool *summed)
{
    const int64_t tokens = like->rank > 1 ? like->shape[1] : 0;
    const bool stacked = parts->rank < like->rank;
    int64_t sum = 0, at = 0;
    for (int64_t b = 0; b < SEQUENCES.count; b++)
        sum += parts[b].rank > 1 ? parts[b].shape[1] : 0;
    array all;
    assert_int_equal(array_create(&all, LOAM_F64, like->rank, like->shape, "expected", NULL), 0);
    for (int64_t i = 0; i < all.count; i++)
        array_set(&all, i, 0);
    const bool joined = !stacked && like->rank > 1 && sum == tokens;
    for (int64_t b = 0; b < SEQUENCES.count; b++) {
        const array *part = &parts[b];
        assert_true(joined || part->count == (stacked ? like->count / SEQUENCES.count : like->count));
        const int64_t own = joined ? part->shape[1] : 0, row = joined ? all.count / like->shape[0] : 0,
                      width = joined ? row / tokens : 0;
        for (int64_t i = 0; i < part->count; i++) {
            const int64_t to = stacked  ? b * part->count + i
                               : joined ? i / (own * width) * row + at * width + i % (own * width)
                                        : i;
            array_set(&all, to, array_get(&all, to) + array_get(part, i));
        }
        at += own;
    }
    *summed = !stacked && !joined;
    return all;
}

/* The bits are those of the part, but for sums over the sequences. */
static void expect_file(const attend_case *c, const char *file, double tolerance)
{
    char path[64];
    snprintf(path, sizeof path, "all/%s", file);
    array got = read_array(path), parts[MOST_SEQUENCES];
    for (int64_t b = 0; b < SEQUENCES.count; b++) {
        snprintf(path, sizeof path, "%d/%s", (int)b, file);
        parts[b] = read_array(path);
    }
    bool summed;
    array expected = expected_of(parts, &got, &summed);
    char what[256];
    snprintf(what, sizeof what, "%s of %s", file, c->arguments);
    expect_arrays_near(what, &got, &expected, summed ? tolerance : 0);
    for (int64_t b = 0; b < SEQUENCES.count; b++)
        array_free(&parts[b]);
    array_free(&got);
    array_free(&expected);
}

static void check_case(const attend_case *c, const char *dtype, double tolerance)
{
    char options[128];
    snprintf(options, sizeof options, "--cu-seqlens cu.npy %s --dtype %s",
             c->keys ? "--cu-seqlens-k cuk.npy" : "", dtype);
    attend_in("all", c, options);
    for (int64_t b = 0; b < SEQUENCES.count; b++) {
        char directory[8];
        snprintf(directory, sizeof directory, "%d", (int)b);
        snprintf(options, sizeof options, "--dtype %s", dtype);
        attend_in(directory, c, options);
    }
    outcome files = run_shell(
        "cd all && ls o.npy g/*.npy && for f in %s; do case $f in *.npy) echo $f;; esac; done", c->outputs);
    expect_status(&files, 0);
    int count = 0;
    for (char *file = strtok(files.out, "\n"); file; file = strtok(NULL, "\n"), count++)
        expect_file(c, file, tolerance);
    assert_true(count >= 6);
}

static void packed_equals_separate_calls(void **state)
{
    (void)state;
    for (int i = 0; i < ATTEND_CASE_COUNT; i++) {
        check_case(&ATTEND_CASES[i], "f64", 1e-13);
        check_case(&ATTEND_CASES[i], "f32", 1e-5);
    }
}

/* Offsets as int32, arrays as (T,H,D) and as (T,D). */
static void every_layout_is_packed_alike(void **state)
{
    (void)state;
    static const char arguments[] = "softmax --dtype f64 --rope 100 --cu-seqlens cu.npy";
    save_integers("cu.npy", (const int64_t[]){ 0, 2, 3 }, 3, 4);
    array flat;
    assert_int_equal(array_create(&flat, LOAM_F64, 2, (const int64_t[]){ 3, 4 }, "q", NULL), 0);
    for (int64_t i = 0; i < flat.count; i++)
        array_set(&flat, i, sin((double)(i * i)));
    assert_int_equal(npy_write("flat.npy", &flat, NULL), 0);
    array one = flat;
    one.rank = 3, one.shape[0] = 3, one.shape[1] = 1, one.shape[2] = 4;
    assert_int_equal(npy_write("one.npy", &one, NULL), 0);
    outcome result = run_loam("attend %s --q flat.npy --k flat.npy --v flat.npy --out o.npy", arguments);
    expect_status(&result, 0);
    result = run_loam("attend %s --layout bthd --q one.npy --k one.npy --v one.npy --out o1.npy", arguments);
    expect_status(&result, 0);
    array o = read_array("o.npy"), o1 = read_array("o1.npy");
    assert_int_equal(o1.rank, 3);
    assert_int_equal(o1.shape[0], 3);
    assert_memory_equal(o.data, o1.data, 12 * sizeof(double));
    /* Tokens 0 and 2 begin sequences and see themselves alone. */
    for (int64_t i = 0; i < 12; i++)
        if (i / 4 != 1) assert_true(array_get(&o, i) == array_get(&flat, i));
    array_free(&flat);
    array_free(&o);
    array_free(&o1);
}

/* The rows of --info are told by sequence and by their place in it. */
static void info_tells_sequences_apart(void **state)
{
    (void)state;
    outcome result = run_shell(
        "cd all && \"$LOAM\" attend mesa --ridge 1 --q q.npy --k k.npy --v v4.npy --out o.npy "
        "--cu-seqlens cu.npy --info info.csv && cut -d, -f1-3 info.csv >short.csv");
    expect_status(&result, 0);
    char expected[64];
    FILE *stream = fopen("all/short.csv", "rb");
    assert_non_null(stream);
    assert_non_null(fgets(expected, sizeof expected, stream));
    assert_string_equal(expected, "batch,head,token\n");
    for (int64_t b = 0; b < SEQUENCES.count; b++)
        for (int h = 0; h < 4; h++)
            for (int64_t t = 0; t < SEQUENCES.queries[b]; t++) {
                int at[3];
                assert_int_equal(fscanf(stream, "%d,%d,%d\n", at, at + 1, at + 2), 3);
                assert_true(at[0] == b && at[1] == h && at[2] == t);
            }
    assert_int_equal(fgetc(stream), EOF);
    fclose(stream);
}

#define QKV "--q q.npy --k k.npy --v v4.npy "
#define LOCAL "--q q4.npy --k kl.npy --v vl.npy "

static void every_mistake_is_named(void **state)
{
    (void)state;
    static const struct {
        int status;
        const char *arguments, *complaint;
    } bad[] = {
        { EXIT_INPUT, "linear --cu-seqlens nosuch.npy " QKV, "cannot read nosuch.npy" },
        { EXIT_INPUT, "linear --cu-seqlens q.npy " QKV,
          "q.npy: elements are '<f8'; expected '<i4' or '<i8'" },
        { EXIT_INPUT, "linear --cu-seqlens none.npy " QKV, "--cu-seqlens none.npy is empty: expected where" },
        { EXIT_INPUT, "linear --cu-seqlens late.npy " QKV,
          "--cu-seqlens late.npy: the offset at (0,) is 1: expected 0" },
        { EXIT_INPUT, "linear --cu-seqlens back.npy " QKV,
          "--cu-seqlens back.npy: the offset at (3,) is 6: expected at least the one before, 7" },
        { EXIT_INPUT, "linear --cu-seqlens minus.npy " QKV,
          "minus.npy: the offset at (1,) is -9223372036854775808" },
        { EXIT_INPUT, "linear --cu-seqlens short.npy " QKV,
          "--cu-seqlens short.npy: the last offset is 139: expected 140, the tokens of --q" },
        { EXIT_INPUT, "softmax --cu-seqlens cu.npy " LOCAL,
          "--cu-seqlens cu.npy: the last offset is 140: expected 147, the tokens of --k" },
        { EXIT_INPUT, "softmax --cu-seqlens cu.npy --cu-seqlens-k cu.npy " LOCAL,
          "--cu-seqlens-k cu.npy: the last offset is 140: expected 147, the tokens of --k" },
        { EXIT_INPUT, "softmax --cu-seqlens cu.npy --cu-seqlens-k two.npy " LOCAL,
          "--cu-seqlens-k two.npy has shape (2,): expected (6,), that of --cu-seqlens" },
        { EXIT_USAGE, "softmax --cu-seqlens-k cuk.npy " LOCAL, "--cu-seqlens-k needs --cu-seqlens" },
        { EXIT_USAGE, "linear --cu-seqlens cu.npy --cu-seqlens-k cu.npy " QKV,
          "--cu-seqlens-k is for softmax" },
        { EXIT_INPUT, "softmax --cu-seqlens cu.npy --q s.npy --k s.npy --v s.npy",
          "--q s.npy has shape (5, 4, 4, 6): with --cu-seqlens expected (H,T,D) or (T,D)" },
        { EXIT_INPUT, "linear --cu-seqlens cu.npy --layout bthd --q s.npy --k s.npy --v s.npy",
          "expected (T,H,D)" },
        { EXIT_INPUT, "linear --cu-seqlens cu.npy --state-in ../0/s.npy " QKV,
          "--state-in ../0/s.npy has shape (4, 4, 6): with --v of shape (4, 140, 4) expected (5, 4, 4, 6)" },
        { EXIT_INPUT, "linear --state-in s.npy " QKV, "expected (4, 4, 6)" },
    };
    save_integers("all/none.npy", NULL, 0, 8);
    save_integers("all/late.npy", (const int64_t[]){ 1, 140 }, 2, 8);
    save_integers("all/back.npy", (const int64_t[]){ 0, 5, 7, 6, 140 }, 5, 8);
    save_integers("all/minus.npy", (const int64_t[]){ 0, INT64_MIN, 140 }, 3, 8);
    save_integers("all/short.npy", (const int64_t[]){ 0, 5, 139 }, 3, 4);
    save_integers("all/two.npy", (const int64_t[]){ 0, 147 }, 2, 8);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        outcome result = run_shell("cd all && rm -f o.npy && \"$LOAM\" attend --out o.npy %s",
                                   bad[i].arguments);
        expect_complaint(&result, bad[i].status, bad[i].complaint);
        assert_false(file_exists("all/o.npy"));
    }
}

static int make_files(void **state)
{
    if (program_setup(state)) return -1;
    save_all();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packed_equals_separate_calls),
        cmocka_unit_test(every_layout_is_packed_alike),
        cmocka_unit_test(info_tells_sequences_apart),
        cmocka_unit_test(every_mistake_is_named),
    };
    return cmocka_run_group_tests(tests, make_files, program_teardown);
}
