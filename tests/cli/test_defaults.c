/* SPDX-License-Identifier: MIT
 * What may be left out of `loam attend`: without an option every mechanism writes, byte
 * for byte, what it writes where the default that --help tells of is given as a file. */
#define _XOPEN_SOURCE 700
#include "io/npy.h"
#include "loam.h"
#include "tests/cli/program.h"
#include "tests/cli/sequences.h"
#include "tests/support/random.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BATCH = 2, HEADS = 3, TOKENS = 9, DIM = 4 };

typedef struct layout {
    int rank; /* of q */
    const char *options;
} layout;

static const layout LAYOUTS[] = {
    { 4, "--layout bthd --dtype bf16" },
    { 3, "--backend reference --rope 100" },
    { 3, "--cu-seqlens cu.npy" },
    { 2, "" },
    { 2, "--cu-seqlens cu.npy --dtype f64" },
};

enum values { NORMAL, UNIT_ROWS, ZEROS, ONES, RETENTION };

static double value(rng *r, enum values values, int64_t head)
{
    switch (values) {
    case ZEROS: return 0;
    case ONES: return 1;
    case RETENTION: return log1p(-exp2(-5 - (double)head));
    default: return 0.7 * rng_normal(r);
    }
}

/* Of the axes B, H and `rest`, those that the rank has; with `tokens_first` H after the tokens. */
static void save(const char *name, int rank, bool tokens_first, int rest, const int64_t *more,
                 enum values values)
{
    int64_t shape[4] = { BATCH, HEADS };
    memcpy(shape + 2, more, (size_t)rest * sizeof *more);
    if (tokens_first) shape[1] = more[0], shape[2] = HEADS;
    const int skipped = 4 - rank;
    array a;
    assert_int_equal(array_create(&a, LOAM_F64, rank - 2 + rest, shape + skipped, name, NULL), 0);
    rng r = rng_make(7, (uint64_t)(unsigned char)*name);
    for (int64_t i = 0; i < a.count; i++)
        array_set(&a, i, value(&r, values, 0));
    for (int64_t row = 0; row < a.count / DIM && values == UNIT_ROWS; row++) {
        double square = 0;
        for (int c = 0; c < DIM; c++)
            square += array_get(&a, row * DIM + c) * array_get(&a, row * DIM + c);
        for (int c = 0; c < DIM; c++)
            array_set(&a, row * DIM + c, array_get(&a, row * DIM + c) / sqrt(square));
    }
    assert_int_equal(npy_write(name, &a, NULL), 0);
    array_free(&a);
}

static void save_heads(const char *name, int rank)
{
    const int64_t heads = rank == 2 ? 1 : HEADS;
    array a;
    assert_int_equal(array_create(&a, LOAM_F64, 1, &heads, name, NULL), 0);
    for (int64_t h = 0; h < heads; h++)
        array_set(&a, h, value(NULL, RETENTION, h));
    assert_int_equal(npy_write(name, &a, NULL), 0);
    array_free(&a);
}

/* rank - 2 axes of heads, so that an array of rank 2 has none. */
static void save_inputs(const layout *l)
{
    static const char *const like_q[] = { "q.npy", "k.npy", "v.npy", "do.npy", "probe.npy" };
    const int64_t sizes[] = { TOKENS, DIM }, offsets[] = { 0, 2, 2, TOKENS };
    const bool tokens_first = strstr(l->options, "bthd") && l->rank > 2;
    for (int i = 0; i < 5; i++)
        save(like_q[i], l->rank, tokens_first, 2, sizes, NORMAL);
    save("w.npy", l->rank, tokens_first, 2, sizes, UNIT_ROWS);
    save("zeros.npy", l->rank, false, 1, sizes, ZEROS);
    save("channels.npy", l->rank, false, 2, sizes, ZEROS);
    save("ones.npy", l->rank, false, 1, sizes, ONES);
    save_heads("heads.npy", l->rank);
    save_integers("cu.npy", offsets, 4, 8);
}

static void run_into(const char *to, const char *mechanism, const char *extra, const layout *l)
{
    outcome result = run_shell(
        "mkdir %s && cd %s && cp ../*.npy . && \"$LOAM\" attend %s --q q.npy --k k.npy --v v.npy "
        "--out o.npy --threads 1 --grad-out do.npy --grad-dir g %s %s",
        to, to, mechanism, l->options, extra);
    if (result.status) fail_msg("loam attend %s %s %s: %s", mechanism, l->options, extra, result.err);
}

/* `needed` both times, `defaults` the second time alone; `gradients` are among those that come out. */
static void expect_same(const char *mechanism, const char *needed, const char *defaults,
                        const char *gradients, const layout *l)
{
    char both[512];
    snprintf(both, sizeof both, "%s %s", needed, defaults);
    run_into("left", mechanism, needed, l);
    run_into("given", mechanism, both, l);
    outcome result = run_shell(
        "diff -rq left given && cd left/g && ls %s; s=$?; rm -r ../../left ../../given; exit $s", gradients);
    if (result.status)
        fail_msg("loam attend %s %s %s: %s%s", mechanism, l->options, both, result.out, result.err);
}

/* The defaults of a recurrence as options, and their gradients. */
static void defaults_of(const loam_mechanism_info *info, char options[128], char gradients[64])
{
    static const char *const decays[] = { [LOAM_DECAY_NONE] = "",
                                          [LOAM_DECAY_HEAD] = "--log-decay heads.npy",
                                          [LOAM_DECAY_TOKEN] = "--log-decay zeros.npy",
                                          [LOAM_DECAY_CHANNEL] = "--log-decay channels.npy" };
    snprintf(options, 128, "%s %s", decays[info->log_decay], info->beta ? "--beta ones.npy" : "");
    snprintf(gradients, 64, "dq.npy %s %s", info->log_decay ? "dlog_decay.npy" : "",
             info->beta ? "dbeta.npy" : "");
}

static void check_recurrence(const loam_mechanism_info *info, const layout *l)
{
    char options[128], gradients[64], name[64];
    defaults_of(info, options, gradients);
    expect_same(info->name, "--state-out s.npy", options, gradients, l);
    snprintf(name, sizeof name, "interpolation --linear %s", info->name);
    expect_same(name, "", options, gradients, l);
}

/* The probe has no default, nor have the rows that reflect. */
static void check_local(const loam_mechanism_info *info, const layout *l)
{
    const char *probe = info->probe ? "--probe probe.npy" : "";
    char path[64];
    snprintf(path, sizeof path, "--w w.npy %s", probe);
    expect_same(info->name, probe, info->ridge_axes ? "--ridge 0.1" : "", "dq.npy", l);
    expect_same(info->name, path, "--beta ones.npy", "dw.npy dbeta.npy", l);
}

static void what_is_left_out_is_the_default(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof LAYOUTS / sizeof *LAYOUTS; i++) {
        const layout *l = &LAYOUTS[i];
        loam_mechanism_info info;
        int m = 0;
        save_inputs(l);
        for (; loam_mechanism_at(m, &info) == LOAM_OK; m++)
            (info.family == LOAM_FAMILY_LOCAL ? check_local : check_recurrence)(&info, l);
        assert_true(m >= 11);
        expect_same("fox", "", "--log-decay zeros.npy", "dlog_decay.npy", l);
        expect_same("path", "--w w.npy", "--beta ones.npy", "dw.npy dbeta.npy", l);
    }
}

/* Decays of 0 forget nothing, and strengths of 0 reflect nothing. */
static void no_decay_is_softmax(void **state)
{
    (void)state;
    static const char qkv[] = "--dtype f64 --q q.npy --k k.npy --v v.npy";
    save_inputs(&(layout){ 4, "" });
    outcome result = run_loam("attend softmax %s --out softmax.npy", qkv);
    expect_status(&result, 0);
    array expected = read_array("softmax.npy");
    static const char *const same[] = { "fox", "path --w w.npy --beta zeros.npy",
                                        "softmax --log-decay zeros.npy" };
    for (int i = 0; i < 3; i++) {
        result = run_loam("attend %s %s --out same.npy", same[i], qkv);
        expect_status(&result, 0);
        array got = read_array("same.npy");
        expect_arrays_near(same[i], &got, &expected, 1e-13);
        array_free(&got);
    }
    result = run_loam("attend path --w w.npy %s --out other.npy", qkv);
    expect_status(&result, 0);
    result = run_shell("cmp -s softmax.npy other.npy");
    expect_status(&result, 1);
    array_free(&expected);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_left_out_is_the_default),
        cmocka_unit_test(no_decay_is_softmax),
    };
    return cmocka_run_group_tests(tests, program_setup, program_teardown);
}
