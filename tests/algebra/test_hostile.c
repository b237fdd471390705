/* SPDX-License-Identifier: MIT
 * Singular systems, data at the edge of what numbers can
 * hold, and gradients of very small and large losses. */
#include "tests/algebra/engine.h"
#include "tests/support/compare.h"
#include "tests/support/expect.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

static values like_softmax(const values *from)
{
    spec s = from->spec;
    s.mechanism = LOAM_SOFTMAX;
    s.ridge_axes = LOAM_RIDGE_NUMBER;
    return values_like(&s, from);
}

/* Ridge 0 with equal keys, or with fewer keys than channels: the softmax row, in the gradients too. */
static void check_singular(const engine *e, loam_pass pass, data_kind data)
{
    spec s = engine_spec(e, LOAM_LLA, pass);
    s.len_q = s.len_kv = data == DATA_EQUAL ? 21 : e->dim; /* the last row sees dim keys: rank dim - 1 */
    s.data = data;
    s.ridge = 0;
    values lla = values_make(&s), softmax = like_softmax(&lla);
    expect_run(&lla);
    expect_run(&softmax);
    expect_no_nan(&lla);
    static const slot shared[] = { SLOT_O, SLOT_LSE, SLOT_GRAD_Q, SLOT_GRAD_K, SLOT_GRAD_V };
    for (int i = 0; i < 5; i++) {
        if (lla.x[shared[i]]) {
            expect_near("singular rows", &lla, shared[i], softmax.x[shared[i]],
                        engine_tolerance(e, LOAM_LLA, pass), 0.1);
        }
    }
    for (int64_t row = 0; lla.info && row < slot_size(&lla, SLOT_INFO); row++) {
        assert_int_equal(lla.info[row].code, LOAM_ROW_SINGULAR);
        assert_true(compare_norm(lla.x[SLOT_RHO] + row * s.dim_qk, s.dim_qk) == 0);
    }
    assert_true(pass != LOAM_BACKWARD || lla.x[SLOT_GRAD_RIDGE][0] == 0);
    values_free(&lla);
    values_free(&softmax);
}

static void singular_rows_are_softmax_rows(void **state)
{
    (void)state;
    for (int index = 0; index < ENGINES; index++) {
        for (int pass = LOAM_FORWARD; pass <= LOAM_DECODE; pass++) {
            const engine e = engine_at(index, (loam_pass)pass);
            check_singular(&e, (loam_pass)pass, DATA_EQUAL);
            check_singular(&e, (loam_pass)pass, DATA_NORMAL);
        }
    }
}

/* Magnitudes of q, k and v that float32 can still square and add up. */
static void nothing_is_nan_on_finite_inputs(void **state)
{
    (void)state;
    static const double sizes[][3] = {
        { 1, 1, 1 },        { 1e4, 1e4, 1 },    { 1e8, 1e8, 1e8 },       { 1e18, 1e18, 1e18 },
        { 1e-18, 1e18, 1 }, { 1e18, 1e-18, 1 }, { 1e-30, 1e-30, 1 },     { 0, 0, 0 },
        { 1, 1, 1e30 },     { 1, 1, 1e-38 },    { 1e-44, 1e-44, 1e-44 }, { 0, 1e18, 1 },
        { 1, 0, 1 },
    };
    for (int index = 0; index < ENGINES; index++) {
        for (int number = 0; number < 13 * 6; number++) {
            const double *size = sizes[number / 6];
            for (int pass = LOAM_FORWARD; pass <= LOAM_DECODE; pass++) {
                /* The terms of a gradient are products of q, k and v; beyond float32 they are infinite. */
                if (pass == LOAM_BACKWARD && size[0] * size[1] * size[2] > 1e31) continue;
                const engine e = engine_at(index, (loam_pass)pass);
                spec s = engine_spec(&e, (loam_mechanism)(number % 3), (loam_pass)pass);
                s.len_q = s.len_kv = 70;
                s.dim_qk = s.dim_v = 9;
                s.score = number / 3 % 2;
                s.ridge = number % 4 ? 1e-3 : 0;
                s.ridge_unit = s.mechanism == LOAM_LLA ? number % 5 % 3 : LOAM_RIDGE_NORMALISED;
                s.seed = 1 + number;
                values v = values_make(&s);
                for (int which = SLOT_Q; which <= SLOT_V; which++)
                    for (int64_t i = 0; i < slot_size(&v, (slot)which); i++)
                        v.x[which][i] *= size[which];
                expect_run(&v);
                expect_no_nan(&v);
                values_free(&v);
            }
        }
    }
}

/* Scores beyond what float32 holds are cut, by the rows in float64 too (LLA): two keys
 * with products of 1e38 and more have the same weight, and lse is that of the cut. */
static void huge_scores_are_cut_in_float64_rows(void **state)
{
    (void)state;
    const engine e = engine_at(1, LOAM_FORWARD);
    spec s = engine_spec(&e, LOAM_LLA, LOAM_FORWARD);
    s.batch = s.heads_q = s.heads_kv = 1;
    s.len_q = 1, s.len_kv = 2, s.dim_qk = s.dim_v = 4;
    s.scale = 1, s.ridge = 1e-3;
    values v = values_make(&s);
    for (int64_t c = 0; c < 4; c++) {
        v.x[SLOT_Q][c] = c == 0 ? 1e19 : 0;
        v.x[SLOT_K][c] = c == 0 ? 1e19 : 0;
        v.x[SLOT_K][4 + c] = c == 0 ? 2e19 : 0;
    }
    expect_run(&v);
    expect_no_nan(&v);
    assert_true(v.info[0].solver == LOAM_SOLVER_DUAL || v.info[0].solver == LOAM_SOLVER_GRAM);
    assert_true(fabs(v.x[SLOT_LSE][0] / 1e37 - 1) < 1e-6);
    values_free(&v);
}

static void gradients_scale_with_the_loss(void **state)
{
    (void)state;
    static const double factors[] = { 1e-6, 1e-3, 1e3, 1e6 };
    static const slot gradients[] = { SLOT_GRAD_Q,     SLOT_GRAD_K,     SLOT_GRAD_V,
                                      SLOT_GRAD_PROBE, SLOT_GRAD_RIDGE, SLOT_GRAD_SCALE };
    for (int index = 0; index < ENGINES; index++) {
        const engine e = engine_at(index, LOAM_BACKWARD);
        for (int mechanism = LOAM_SOFTMAX; mechanism <= LOAM_LLA; mechanism++) {
            spec s = engine_spec(&e, (loam_mechanism)mechanism, LOAM_BACKWARD);
            values v = values_make(&s);
            expect_run(&v);
            for (int f = 0; f < 4; f++) {
                values scaled = values_like(&s, &v);
                for (int64_t i = 0; i < slot_size(&v, SLOT_GRAD_O); i++)
                    scaled.x[SLOT_GRAD_O][i] *= factors[f];
                expect_run(&scaled);
                for (int g = 0; g < 6; g++) {
                    const slot which = gradients[g];
                    for (int64_t i = 0; scaled.x[which] && i < slot_size(&v, which); i++)
                        scaled.x[which][i] /= factors[f];
                    if (scaled.x[which]) {
                        expect_near("scaled loss", &scaled, which, v.x[which],
                                    engine_tolerance(&e, (loam_mechanism)mechanism, LOAM_BACKWARD), 0);
                    }
                }
                values_free(&scaled);
            }
            values_free(&v);
        }
    }
}

/* A bias of -inf hides a key. Rows that see hidden keys alone are empty, and no other row knows of them. */
static void rows_of_hidden_keys_are_empty(void **state)
{
    (void)state;
    for (int index = 0; index < ENGINES; index++) {
        for (int number = 0; number < 3 * 3; number++) {
            const loam_pass pass = (loam_pass)(number / 3);
            const engine e = engine_at(index, pass);
            spec s = engine_spec(&e, (loam_mechanism)(number % 3), pass);
            s.len_q = s.len_kv = 70;
            s.key_bias = 1;
            values v = values_make(&s);
            const int64_t hidden = pass == LOAM_DECODE ? 70 : 40, rows = slot_size(&v, SLOT_LSE);
            for (int64_t i = 0; i < slot_size(&v, SLOT_KEY_BIAS); i++)
                if (i % 70 < hidden) v.x[SLOT_KEY_BIAS][i] = -INFINITY;
            expect_run(&v);
            expect_no_nan(&v);
            for (int64_t row = 0; v.x[SLOT_O] && row < rows; row++) {
                const bool empty = pass == LOAM_DECODE || row % 70 < hidden;
                assert_true((compare_norm(v.x[SLOT_O] + row * s.dim_v, s.dim_v) == 0) == empty);
            }
            for (int64_t j = 0; v.x[SLOT_GRAD_V] && j < slot_size(&v, SLOT_GRAD_V) / s.dim_v; j++)
                assert_true((compare_norm(v.x[SLOT_GRAD_V] + j * s.dim_v, s.dim_v) == 0) ==
                            (j % 70 < hidden));
            values_free(&v);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(singular_rows_are_softmax_rows),
        cmocka_unit_test(nothing_is_nan_on_finite_inputs),
        cmocka_unit_test(huge_scores_are_cut_in_float64_rows),
        cmocka_unit_test(gradients_scale_with_the_loss),
        cmocka_unit_test(rows_of_hidden_keys_are_empty),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
