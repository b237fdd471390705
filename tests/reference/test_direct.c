/* SPDX-License-Identifier: MIT
 * The reference against the definitions: softmax and Parallax in two lines, LLA by weighted least squares. */
#include "tests/reference/small.h"
#include "tests/support/compare.h"
#include "tests/support/direct.h"
#include "tests/support/expect.h"
#include "tests/support/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CASES = 240 };
#define TOLERANCE 1e-10

typedef struct wanted {
    double *o, *lse, *rho, *weights;
} wanted;

/* rho of the row from the slot: given for Parallax, the solution for LLA, which its own test checks. */
static void want_row(wanted *w, const values *v, direct_row *r, int64_t b, int64_t h, int64_t i)
{
    const spec *s = &v->spec;
    const sequence q = values_sequence(v, b);
    const shape a = slot_shape(v, SLOT_LSE);
    const int64_t row = (q.batch * a.heads + h) * a.tokens + q.q0 + i;
    double *o = w->o + row * s->dim_v, *rho = w->rho + row * s->dim_qk;
    direct_weights(r, v, b, h, i);
    w->lse[row] = r->lse;
    if (r->seen == 0) return;
    if (s->mechanism == LOAM_PARALLAX)
        memcpy(rho, slot_at(v, SLOT_PROBE, q.batch, h, q.q0 + i), (size_t)s->dim_qk * sizeof *rho);
    else if (s->mechanism == LOAM_LLA)
        memcpy(rho, slot_at(v, SLOT_RHO, q.batch, h, q.q0 + i), (size_t)s->dim_qk * sizeof *rho);
    if (s->mechanism == LOAM_LLA)
        assert_int_equal(direct_least_squares(r, v, b, h, i, o), 0);
    else
        direct_output(r, v, b, h, rho, o);
    for (int64_t j = 0; s->pass == LOAM_FORWARD && j < r->keys; j++) {
        const double *k = r->key + j * s->dim_qk;
        double u = 0;
        for (int64_t c = 0; c < s->dim_qk; c++)
            u += rho[c] * (k[c] - r->kbar[c]);
        w->weights[row * s->len_kv + j] = r->p[j] * (1 - u);
    }
}

static void check_case(const spec *s)
{
    values v = values_make(s);
    expect_run(&v);
    wanted w = { memory_zeroed((size_t)slot_size(&v, SLOT_O), sizeof(double)),
                 memory_zeroed((size_t)slot_size(&v, SLOT_LSE), sizeof(double)),
                 memory_zeroed((size_t)slot_size(&v, SLOT_RHO), sizeof(double)),
                 memory_zeroed((size_t)slot_size(&v, SLOT_WEIGHTS), sizeof(double)) };
    direct_row r = direct_make(&v);
    for (int64_t b = 0; b < s->batch; b++) {
        for (int64_t h = 0; h < s->heads_q; h++)
            for (int64_t i = 0; i < values_sequence(&v, b).len_q; i++)
                want_row(&w, &v, &r, b, h, i);
    }
    expect_near("definition", &v, SLOT_O, w.o, TOLERANCE, 0.1);
    expect_near("definition", &v, SLOT_LSE, w.lse, TOLERANCE, 0.1);
    expect_near("definition", &v, SLOT_RHO, w.rho, TOLERANCE, 0.1);
    if (s->pass == LOAM_FORWARD) expect_near("definition", &v, SLOT_WEIGHTS, w.weights, TOLERANCE, 0.1);
    direct_free(&r);
    free(w.o);
    free(w.lse);
    free(w.rho);
    free(w.weights);
    values_free(&v);
}

static void check_cases(loam_mechanism mechanism)
{
    for (int64_t number = 0; number < CASES; number++) {
        spec s = small_case(mechanism, number % 5 == 4 ? LOAM_DECODE : LOAM_FORWARD, number);
        check_case(&s);
    }
}

static void softmax_is_its_definition(void **state) { (void)state, check_cases(LOAM_SOFTMAX); }
static void parallax_is_its_definition(void **state) { (void)state, check_cases(LOAM_PARALLAX); }
static void lla_is_weighted_least_squares(void **state) { (void)state, check_cases(LOAM_LLA); }

/* More keys and channels, and ridges down to 1e-3. */
static void lla_at_medium_size(void **state)
{
    (void)state;
    static const double ridges[] = { 1e-3, 0.1, 10 };
    for (int which = 0; which < 12; which++) {
        spec s = spec_default(LOAM_LLA, LOAM_FORWARD, 61, 16 + which, 5);
        s.ridge = ridges[which % 3];
        s.ridge_axes = which % 4;
        s.ridge_unit = which / 4;
        s.score = which / 2 % 2;
        s.omit = 0;
        s.seed = 900 + which;
        check_case(&s);
    }
}

/* Rows without a key, by window, lens_kv 0 and more queries than keys. */
static void rows_without_keys(void **state)
{
    (void)state;
    for (int64_t mechanism = LOAM_SOFTMAX; mechanism <= LOAM_LLA; mechanism++) {
        for (int sink = 0; sink <= (mechanism == LOAM_SOFTMAX); sink++) {
            spec s = spec_default((loam_mechanism)mechanism, LOAM_FORWARD, 7, 3, 2);
            s.len_kv = 4;
            s.sink = sink;
            s.omit = 0;
            values v = values_make(&s);
            expect_run(&v);
            for (int64_t i = 0; i < s.len_q; i++) {
                const int empty = i < 3;
                assert_int_equal(v.info[i].code, empty ? LOAM_ROW_EMPTY : LOAM_ROW_SOLVED);
                assert_true(!empty || v.x[SLOT_LSE][i] == (sink ? v.x[SLOT_SINK][0] : -HUGE_VAL));
                assert_true(!empty || compare_norm(v.x[SLOT_O] + i * 2, 2) == 0);
                assert_true(!empty || compare_norm(v.x[SLOT_RHO] + i * 3, 3) == 0);
                assert_true(!empty || compare_norm(v.x[SLOT_WEIGHTS] + i * 4, 4) == 0);
            }
            values_free(&v);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(softmax_is_its_definition),
        cmocka_unit_test(parallax_is_its_definition),
        cmocka_unit_test(lla_is_weighted_least_squares),
        cmocka_unit_test(lla_at_medium_size),
        cmocka_unit_test(rows_without_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
