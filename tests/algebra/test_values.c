/* SPDX-License-Identifier: MIT
 * How the output depends on the values: linearly, keeping
 * constants and, as the ridge goes to 0, affine maps. */
#include "tests/algebra/engine.h"
#include "tests/support/expect.h"
#include "tests/support/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef void property(const engine *e, loam_mechanism mechanism);

static void for_all(property *p)
{
    for (int index = 0; index < ENGINES; index++) {
        const engine e = engine_at(index, LOAM_FORWARD);
        for (int mechanism = LOAM_SOFTMAX; mechanism <= LOAM_LLA; mechanism++)
            p(&e, (loam_mechanism)mechanism);
    }
}

static void check_linear(const engine *e, loam_mechanism mechanism)
{
    const double a = 2, b = -0.5; /* exact in float32 on coarse values */
    spec s = engine_spec(e, mechanism, LOAM_FORWARD), other = s;
    values x = values_make(&s);
    coarsen(&x, SLOT_V, 8);
    values y = values_like(&other, &x), both = values_like(&s, &x);
    const int64_t count = slot_size(&x, SLOT_V), outputs = slot_size(&x, SLOT_O);
    for (int64_t i = 0; i < count; i++) {
        y.x[SLOT_V][i] = x.x[SLOT_V][(i * 7 + 3) % count];
        both.x[SLOT_V][i] = a * x.x[SLOT_V][i] + b * y.x[SLOT_V][i];
    }
    expect_run(&x);
    expect_run(&y);
    expect_run(&both);
    for (int64_t i = 0; i < outputs; i++)
        x.x[SLOT_O][i] = a * x.x[SLOT_O][i] + b * y.x[SLOT_O][i];
    expect_near("linear in v", &both, SLOT_O, x.x[SLOT_O], engine_tolerance(e, mechanism, LOAM_FORWARD), 0);
    values_free(&x);
    values_free(&y);
    values_free(&both);
}

static void check_constant(const engine *e, loam_mechanism mechanism)
{
    spec s = engine_spec(e, mechanism, LOAM_FORWARD);
    values v = values_make(&s);
    for (int64_t i = 0; i < slot_size(&v, SLOT_V); i++)
        v.x[SLOT_V][i] = 1 + (double)(i % s.dim_v);
    expect_run(&v);
    double *want = memory_zeroed((size_t)slot_size(&v, SLOT_O), sizeof *want);
    for (int64_t i = 0; i < slot_size(&v, SLOT_O); i++)
        want[i] = 1 + (double)(i % s.dim_v);
    expect_near("constant v", &v, SLOT_O, want, engine_tolerance(e, mechanism, LOAM_FORWARD), 0);
    free(want);
    values_free(&v);
}

/* Rows of the effective weights sum to 1 and, times v, give o. */
static void check_weights(const engine *e, loam_mechanism mechanism)
{
    spec s = engine_spec(e, mechanism, LOAM_FORWARD);
    s.len_q = s.len_kv = e->len < 300 ? e->len : 300;
    s.omit = 0;
    values v = values_make(&s);
    expect_run(&v);
    const int64_t rows = slot_size(&v, SLOT_LSE), keys = s.len_kv, n = s.dim_v;
    double *o = memory_zeroed((size_t)(rows * n), sizeof *o);
    for (int64_t row = 0; row < rows; row++) {
        const double *w = v.x[SLOT_WEIGHTS] + row * keys;
        double sum = 0, mass = 0;
        for (int64_t j = 0; j < keys; j++) {
            sum += w[j];
            mass += fabs(w[j]);
            for (int64_t c = 0; c < n; c++)
                o[row * n + c] += w[j] * v.x[SLOT_V][j * n + c]; /* both heads read the one key head */
        }
        const double allowed = engine_tolerance(e, mechanism, LOAM_FORWARD) * mass;
        if (!(fabs(sum - 1) <= allowed)) {
            fail_msg("%s, mechanism %d, row %lld: weights sum to %.9g", e->name, mechanism, (long long)row,
                     sum);
        }
    }
    expect_near("weights times v", &v, SLOT_O, o, engine_tolerance(e, mechanism, LOAM_FORWARD), 0);
    free(o);
    values_free(&v);
}

static void linear_in_v(void **state) { (void)state, for_all(check_linear); }
static void constant_v_is_kept(void **state) { (void)state, for_all(check_constant); }
static void weights_sum_to_one_and_give_o(void **state) { (void)state, for_all(check_weights); }

/* v = A x + b in x; writes what it is at `rows` points. */
static void affine(const double *x, double *v, int64_t rows, int64_t d, int64_t dv)
{
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t c = 0; c < dv; c++) {
            double sum = (double)(c % 5) - 2;
            for (int64_t a = 0; a < d; a++)
                sum += (double)((a * 3 + c * 5) % 9 - 4) / 8 * x[row * d + a];
            v[row * dv + c] = sum;
        }
    }
}

/* Not causal: the first rows see fewer keys than channels, and no line is determined there. */
static void affine_v_is_reproduced(void **state)
{
    (void)state;
    for (int index = 0; index < ENGINES; index++) {
        const engine e = engine_at(index, LOAM_FORWARD);
        for (int score = LOAM_DOT; score <= LOAM_RBF; score++) {
            spec s = engine_spec(&e, LOAM_LLA, LOAM_FORWARD);
            s.causal = 0;
            s.score = score;
            s.scale = 0.5 / (double)e.dim;
            s.ridge = e.dtype == LOAM_F64 ? 1e-11 : 1e-6;
            values v = values_make(&s);
            coarsen(&v, SLOT_K, 6); /* so that v is exact in float32 */
            affine(v.x[SLOT_K], v.x[SLOT_V], e.len, e.dim, e.dim);
            double *want = memory_zeroed((size_t)slot_size(&v, SLOT_O), sizeof *want);
            affine(v.x[SLOT_Q], want, slot_size(&v, SLOT_LSE), e.dim, e.dim);
            expect_run(&v);
            expect_near("affine v", &v, SLOT_O, want, e.dtype == LOAM_F64 ? 1e-9 : 5e-5, 0);
            free(want);
            values_free(&v);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_in_v),
        cmocka_unit_test(constant_v_is_kept),
        cmocka_unit_test(weights_sum_to_one_and_give_o),
        cmocka_unit_test(affine_v_is_reproduced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
