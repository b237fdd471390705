/* SPDX-License-Identifier: MIT
 * Systems of LLA that a solver, or numbers of 16 bits, may fail on: every row of the registry that this
 * machine can run, forward and backward, against the float64 reference on the same inputs. */
#include "tests/support/compare.h"
#include "tests/support/expect.h"
#include "tests/support/kernels.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { WIDTH = 64, WIDE = 128, QUERIES = 64, CAUSAL = 192, DISTINCT = 40 };

/* A row by itself may be this many times further off than the whole. */
#define ROW_FACTOR 20.0

typedef void change_fn(values *v);

typedef struct hard_case {
    const char *name;
    int64_t dim, len_q, len_kv, heads_q;
    double ridge;
    data_kind data;
    int causal;
    change_fn *change;      /* of the inputs, or NULL */
    double device_gradient; /* the bound of gradients on a GPU; 0: they are finite */
} hard_case;

static void lengthen(values *v, double factor)
{
    double *k = slot_at(v, SLOT_K, 0, 0, v->spec.len_kv / 2);
    for (int64_t c = 0; c < v->spec.dim_qk; c++)
        k[c] *= factor;
}

/* With N(0, 1) keys all that float16 has, from 2^-24 to 2^15. */
static void lengthen_to_half(values *v) { lengthen(v, 0x1p13); }
static void lengthen_beyond_half(values *v) { lengthen(v, 0x1p30); }

/* Every key stands for fifteen: whichever are the heaviest, they are tied. */
static void tie(values *v)
{
    for (int64_t j = DISTINCT; j < v->spec.len_kv; j++)
        memcpy(slot_at(v, SLOT_K, 0, 0, j), slot_at(v, SLOT_K, 0, 0, j % DISTINCT),
               (size_t)v->spec.dim_qk * sizeof(double));
}

/* As where few tokens have a target: the adjoint solve has b = 0 in all rows but these. */
static void clear_errors(values *v)
{
    for (int64_t i = 0; v->x[SLOT_GRAD_O] && i < v->spec.len_q; i++)
        if (i % QUERIES != 5)
            memset(slot_at(v, SLOT_GRAD_O, 0, 0, i), 0, (size_t)v->spec.dim_v * sizeof(double));
}

/* In layer 20 one key has most of the weight of each row. Around 192 keys lists of heavy ones are full, with
 * 128 channels around 256; there rows that see fewer than 768 keys are solved in two parts. */
static const hard_case cases[] = {
    { "layer 20", WIDTH, 256, 256, 3, 1e-3, DATA_REAL, 1, NULL, 0 },
    { "191 keys", WIDTH, QUERIES, 191, 1, 1e-3, DATA_REAL, 0, NULL, 0 },
    { "192 keys", WIDTH, QUERIES, 192, 1, 1e-3, DATA_REAL, 0, NULL, 0 },
    { "193 keys", WIDTH, QUERIES, 193, 1, 1e-3, DATA_REAL, 0, NULL, 0 },
    { "511 keys", WIDTH, QUERIES, 511, 1, 1e-3, DATA_REAL, 0, NULL, 0 },
    { "512 keys", WIDTH, QUERIES, 512, 1, 1e-3, DATA_REAL, 0, NULL, 0 },
    { "513 keys", WIDTH, QUERIES, 513, 1, 1e-3, DATA_REAL, 0, NULL, 0 },
    { "a key 2^13 times as long", WIDTH, CAUSAL, CAUSAL, 1, 1e-2, DATA_NORMAL, 1, lengthen_to_half, 0 },
    { "a key 2^30 times as long", WIDTH, CAUSAL, CAUSAL, 1, 1e-2, DATA_NORMAL, 1, lengthen_beyond_half, 0 },
    { "ties of real keys", WIDTH, QUERIES, 600, 1, 1e-3, DATA_REAL, 0, tie, 0 },
    { "one row of 64 with an error", WIDTH, QUERIES, 512, 1, 1e-3, DATA_REAL, 0, clear_errors, 0 },
    { "three different keys", WIDTH, QUERIES, 600, 1, 0.1, DATA_REPEATED, 0, NULL, 0 },
    { "128 channels, 255 keys", WIDE, QUERIES, 255, 1, 1e-3, DATA_REAL, 0, NULL, 0 },
    { "128 channels, 256 keys", WIDE, QUERIES, 256, 1, 1e-3, DATA_REAL, 0, NULL, 0 },
    { "128 channels, 257 keys", WIDE, QUERIES, 257, 1, 1e-3, DATA_REAL, 0, NULL, 0 },
    { "128 channels, 1000 keys", WIDE, 2 * QUERIES, 1000, 1, 1e-2, DATA_REAL, 1, NULL, 0 },
    { "128 channels, ties of real keys", WIDE, QUERIES, 600, 1, 1e-2, DATA_REAL, 0, tie, 0 },
    { "128 channels, one row of 64 with an error", WIDE, QUERIES, 512, 1, 1e-3, DATA_REAL, 0, clear_errors,
      0 },
    { "one key 40 away in each channel", 8, QUERIES - 1, 1, 1, 1e-3, DATA_FAR, 1, NULL, 2e-2 },
};

static spec spec_of(const hard_case *c, loam_pass pass, loam_dtype dtype)
{
    spec s = spec_default(LOAM_LLA, pass, c->len_kv, c->dim, c->dim);
    s.dtype = dtype;
    s.len_q = c->len_q;
    s.heads_q = c->heads_q;
    s.ridge = c->ridge;
    s.data = c->data;
    s.causal = c->causal;
    s.seed = 5;
    return s;
}

/* Of the whole, on the CPU: of o and, if wanted, of gradients. 16 bits round what is stored. */
static double bound(loam_dtype dtype, int gradient)
{
    return dtype == LOAM_F32    ? (gradient ? 1e-3 : 2e-5)
           : dtype == LOAM_BF16 ? (gradient ? 8e-3 : 4e-3)
                                : (gradient ? 1e-3 : 5e-4);
}

/* On a GPU of 16-bit products: of o. */
#define BOUND_OF_DEVICES 6e-3

static void expect_close(const hard_case *c, const values *got, const values *want, slot which)
{
    const int device = kernel_on_device(&got->spec);
    const shape a = slot_shape(want, which);
    const difference d = compare(want->x[which], got->x[which], a.batch * a.heads * a.tokens, a.channels);
    const double allowed = !device                  ? bound((loam_dtype)got->spec.dtype, which != SLOT_O)
                           : which == SLOT_O        ? BOUND_OF_DEVICES
                           : c->device_gradient > 0 ? c->device_gradient
                                                    : HUGE_VAL;
    if (d.relative <= allowed && d.worst_row <= ROW_FACTOR * allowed) return;
    fail_msg("%s, %s, %s: %s is off by %.2g, row %lld by %.2g; expected %.2g, %.2g", c->name,
             got->spec.kernel, loam_dtype_name((loam_dtype)got->spec.dtype), slot_names[which], d.relative,
             (long long)d.row, d.worst_row, allowed, ROW_FACTOR * allowed);
}

static void check_row(const hard_case *c, const char *kernel, const values *inputs, const values *want)
{
    static const slot compared[] = { SLOT_O, SLOT_GRAD_Q, SLOT_GRAD_K, SLOT_GRAD_V };
    spec s = inputs->spec;
    s.backend = LOAM_BACKEND_AUTO;
    snprintf(s.kernel, sizeof s.kernel, "%s", kernel);
    values got = values_like(&s, inputs);
    expect_run(&got);
    expect_no_nan(&got);
    for (int n = 0; n < 4; n++)
        if (got.x[compared[n]]) expect_close(c, &got, want, compared[n]);
    for (int64_t row = 0; got.info && row < slot_size(&got, SLOT_INFO); row++)
        assert_int_equal(got.info[row].code, want->info[row].code);
    values_free(&got);
}

/* Tiled rows name types that they take of other mechanisms alone. */
static int takes(const char *kernel, const spec *s)
{
    spec fitted = *s;
    snprintf(fitted.kernel, sizeof fitted.kernel, "%s", kernel);
    kernel_fit(&fitted);
    return fitted.dtype == s->dtype && fitted.dim_qk == s->dim_qk && fitted.dim_v == s->dim_v;
}

/* The reference takes what the type has left of the inputs, once for all rows of that type; so many rows. */
static int check_type(const hard_case *c, loam_pass pass, loam_dtype dtype)
{
    const spec s = spec_of(c, pass, dtype);
    values inputs = values_make(&s), want = { 0 };
    if (c->change) c->change(&inputs);
    loam_kernel_info row;
    int rows = 0;
    for (int i = 0; loam_kernel_at(i, &row) == LOAM_OK; i++) {
        if (!row.available || strcmp(row.backend, "reference") == 0 || kernel_turns_keys(row.name) ||
            strcmp(row.pass, loam_pass_name(pass)) != 0 || !kernel_lists(row.mechanisms, "lla") ||
            !kernel_lists(row.dtypes, loam_dtype_name(dtype)) || !takes(row.name, &s))
            continue;
        if (rows++ == 0) {
            spec reference = s;
            reference.dtype = LOAM_F64;
            want = values_like(&reference, &inputs);
            expect_run(&want);
        }
        check_row(c, row.name, &inputs, &want);
    }
    values_free(&inputs);
    values_free(&want);
    return rows;
}

static void hard_systems_are_solved(void **state)
{
    (void)state;
    static const loam_dtype dtypes[] = { LOAM_F32, LOAM_BF16, LOAM_F16 };
    for (size_t n = 0; n < sizeof cases / sizeof cases[0]; n++)
        for (int pass = LOAM_FORWARD; pass <= LOAM_BACKWARD; pass++)
            for (int type = 0; type < 3; type++) {
                if (cases[n].change == lengthen_beyond_half && dtypes[type] == LOAM_F16) continue;
                assert_true(check_type(&cases[n], (loam_pass)pass, dtypes[type]) > 0);
            }
}

/* ---- gradients on the keys of a trained model */

/* Of each gradient as a whole, in float32: 130 roundings at ridge 10, and as the root of the condition of the
 * systems, about 100 / ridge, from there on to 0.1; below, the solver refines in float64. */
typedef struct real_bound {
    double ridge, whole;
} real_bound;

static const real_bound real_bounds[] = {
    { 10, 8e-6 }, { 1, 2e-5 }, { 0.1, 6e-5 }, { 0.01, 1e-4 }, { 0.001, 2e-4 }
};

/* Head 0 has keys of layer 20, head 1 of layer 3. */
static spec real_spec(double ridge)
{
    spec s = spec_default(LOAM_LLA, LOAM_BACKWARD, 320, WIDTH, WIDTH);
    s.dtype = LOAM_F32;
    s.backend = LOAM_BACKEND_CPU;
    s.heads_q = s.heads_kv = 2;
    s.ridge = ridge;
    s.data = DATA_REAL;
    s.causal = 1;
    s.seed = 6;
    return s;
}

static void check_real_gradients(const real_bound *b)
{
    const spec s = real_spec(b->ridge);
    spec reference = s;
    reference.dtype = LOAM_F64;
    reference.backend = LOAM_BACKEND_REFERENCE;
    values got = values_make(&s), want = values_like(&reference, &got);
    expect_run(&want);
    expect_run(&got);
    for (slot which = SLOT_GRAD_Q; which <= SLOT_GRAD_V; which++) {
        const shape a = slot_shape(&want, which);
        const difference d = compare(want.x[which], got.x[which], a.batch * a.heads * a.tokens, a.channels);
        if (!(d.relative <= b->whole))
            fail_msg("ridge %g: %s is off by %.2g; expected %.2g", b->ridge, slot_names[which], d.relative,
                     b->whole);
    }
    values_free(&got);
    values_free(&want);
}

static void gradients_on_real_keys(void **state)
{
    (void)state;
    for (size_t n = 0; n < sizeof real_bounds / sizeof real_bounds[0]; n++)
        check_real_gradients(&real_bounds[n]);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(hard_systems_are_solved),
                                        cmocka_unit_test(gradients_on_real_keys) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
