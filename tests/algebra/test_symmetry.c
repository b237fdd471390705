/* SPDX-License-Identifier: MIT
 * What may be done to queries and keys without changing the output, or any of it before some token. */
#include "tests/algebra/engine.h"
#include "tests/support/compare.h"
#include "tests/support/expect.h"
#include "tests/support/memory.h"
#include "tests/support/random.h"

#include <stdlib.h>
#include <string.h>

typedef void property(const engine *e, loam_mechanism mechanism, loam_pass pass);

static void for_all(property *p)
{
    for (int index = 0; index < ENGINES; index++) {
        for (int pass = LOAM_FORWARD; pass <= LOAM_BACKWARD; pass++) {
            const engine e = engine_at(index, (loam_pass)pass);
            for (int mechanism = LOAM_SOFTMAX; mechanism <= LOAM_LLA; mechanism++)
                p(&e, (loam_mechanism)mechanism, (loam_pass)pass);
        }
    }
}

static void check_shift(const engine *e, loam_mechanism mechanism, loam_pass pass)
{
    spec s = engine_spec(e, mechanism, pass);
    s.score = mechanism == LOAM_LLA ? LOAM_RBF : LOAM_DOT;
    values v = values_make(&s);
    double by[LOAM_MAX_DIM];
    for (int64_t c = 0; c < s.dim_qk; c++)
        by[c] = (double)(c * 5 % 7) - 3;
    coarsen(&v, SLOT_K, 12);
    coarsen(&v, SLOT_Q, 12);
    values moved = values_like(&s, &v);
    shift_rows(&moved, SLOT_K, by);
    if (mechanism == LOAM_LLA) shift_rows(&moved, SLOT_Q, by);
    expect_run(&v);
    expect_run(&moved);
    const double tolerance = 2 * engine_tolerance(e, mechanism, pass);
    const slot same[] = { SLOT_O, SLOT_GRAD_V, SLOT_GRAD_K,
                          mechanism == LOAM_LLA ? SLOT_GRAD_Q : SLOT_GRAD_PROBE };
    for (int i = 0; i < 4; i++)
        if (v.x[same[i]]) expect_near("common shift", &moved, same[i], v.x[same[i]], tolerance, 0);
    values_free(&v);
    values_free(&moved);
}

/* A reflection is as good as a rotation: both keep all products. Gradients turn along. */
static void check_rotation(const engine *e, loam_mechanism mechanism, loam_pass pass)
{
    static const slot turned[] = { SLOT_Q, SLOT_K, SLOT_PROBE };
    static const slot outputs[] = { SLOT_O, SLOT_GRAD_V, SLOT_GRAD_Q, SLOT_GRAD_K, SLOT_GRAD_PROBE };
    spec s = engine_spec(e, mechanism, pass);
    values v = values_make(&s), moved = values_like(&s, &v);
    double axis[LOAM_MAX_DIM];
    unit_vector(axis, s.dim_qk, 5);
    for (int i = 0; i < 3; i++)
        if (moved.x[turned[i]]) reflect_rows(&moved, turned[i], axis);
    expect_run(&v);
    expect_run(&moved);
    for (int i = 0; i < 5; i++) {
        if (v.x[outputs[i]]) {
            if (i >= 2) reflect_rows(&moved, outputs[i], axis);
            expect_near("common rotation", &moved, outputs[i], v.x[outputs[i]],
                        2 * engine_tolerance(e, mechanism, pass), 0);
        }
    }
    values_free(&v);
    values_free(&moved);
}

/* to[order[j]] = from[j], rows of n. */
static void scatter_rows(double *to, const double *from, const int64_t *order, int64_t rows, int64_t n)
{
    for (int64_t j = 0; j < rows; j++)
        memcpy(to + order[j] * n, from + j * n, (size_t)n * sizeof *to);
}

static void check_permutation(const engine *e, loam_mechanism mechanism, loam_pass pass)
{
    static const slot of_keys[] = { SLOT_K, SLOT_V, SLOT_GRAD_K, SLOT_GRAD_V };
    spec s = engine_spec(e, mechanism, pass);
    s.causal = 0;
    values v = values_make(&s), moved = values_like(&s, &v);
    int64_t *order = memory_zeroed((size_t)s.len_kv, sizeof *order);
    rng r = rng_make(3, 0);
    rng_permutation(&r, order, s.len_kv);
    for (int i = 0; i < 2; i++)
        scatter_rows(moved.x[of_keys[i]], v.x[of_keys[i]], order, s.len_kv, s.dim_v);
    expect_run(&v);
    expect_run(&moved);
    const double tolerance = 2 * engine_tolerance(e, mechanism, pass);
    for (int i = 2; i < 4 && pass == LOAM_BACKWARD; i++) {
        double *want = memory_zeroed((size_t)slot_size(&v, of_keys[i]), sizeof *want);
        scatter_rows(want, v.x[of_keys[i]], order, s.len_kv, s.dim_v);
        expect_near("permuted keys", &moved, of_keys[i], want, tolerance, 0);
        free(want);
    }
    const slot of_queries = pass == LOAM_BACKWARD ? SLOT_GRAD_Q : SLOT_O;
    expect_near("permuted keys", &moved, of_queries, v.x[of_queries], tolerance, 0);
    free(order);
    values_free(&v);
    values_free(&moved);
}

/* Other tokens from `first` on: other keys, values and queries. */
static void change_future(values *v, int64_t first)
{
    static const slot inputs[] = { SLOT_Q, SLOT_K, SLOT_V, SLOT_PROBE };
    for (int i = 0; i < 4; i++) {
        const slot which = inputs[i];
        if (!v->x[which]) continue;
        const shape a = slot_shape(v, which);
        for (int64_t h = 0; h < a.heads; h++)
            for (int64_t x = first * a.channels; x < a.tokens * a.channels; x++)
                v->x[which][h * a.tokens * a.channels + x] *= -3;
    }
}

static void check_causal_forward(const engine *e, loam_mechanism mechanism)
{
    spec s = engine_spec(e, mechanism, LOAM_FORWARD);
    s.heads_q = 1;
    values v = values_make(&s);
    expect_run(&v);
    const int64_t firsts[] = { 1, s.len_q / 3, s.len_q / 2 + 1, s.len_q - 1 };
    for (int i = 0; i < 4; i++) {
        values other = values_like(&s, &v);
        change_future(&other, firsts[i]);
        expect_run(&other);
        expect_same_rows("past of changed tokens", &other, SLOT_O, 0, v.x[SLOT_O], firsts[i]);
        expect_same_rows("past of changed tokens", &other, SLOT_LSE, 0, v.x[SLOT_LSE], firsts[i]);
        expect_same_rows("past of changed tokens", &other, SLOT_RHO, 0, v.x[SLOT_RHO], firsts[i]);
        assert_true(compare_bits(other.x[SLOT_O] + firsts[i] * s.dim_v, v.x[SLOT_O] + firsts[i] * s.dim_v,
                                 s.dim_v) >= 0);
        values_free(&other);
    }
    values_free(&v);
}

/* A loss of the rows before `first` has no gradient from there on: exactly 0. */
static void check_causal_backward(const engine *e, loam_mechanism mechanism)
{
    spec s = engine_spec(e, mechanism, LOAM_BACKWARD);
    s.heads_q = 1;
    const int64_t first = s.len_q / 2 + 1;
    values v = values_make(&s);
    memset(slot_at(&v, SLOT_GRAD_O, 0, 0, first), 0, (size_t)((s.len_q - first) * s.dim_v) * sizeof(double));
    expect_run(&v);
    const slot gradients[] = { SLOT_GRAD_K, SLOT_GRAD_V, SLOT_GRAD_Q };
    for (int i = 0; i < 3; i++) {
        const double *x = slot_at(&v, gradients[i], 0, 0, first);
        for (int64_t c = 0; c < (s.len_q - first) * slot_shape(&v, gradients[i]).channels; c++) {
            if (x[c] != 0) {
                fail_msg("%s, mechanism %d: %s of a future token is %.9g", e->name, mechanism,
                         slot_names[gradients[i]], x[c]);
            }
        }
        assert_true(compare_norm(v.x[gradients[i]], first) > 0);
    }
    values_free(&v);
}

static void check_causal(const engine *e, loam_mechanism mechanism, loam_pass pass)
{
    if (pass == LOAM_FORWARD)
        check_causal_forward(e, mechanism);
    else
        check_causal_backward(e, mechanism);
}

static void common_shift_changes_nothing(void **state) { (void)state, for_all(check_shift); }
static void common_rotation_changes_nothing(void **state) { (void)state, for_all(check_rotation); }
static void order_of_keys_changes_nothing(void **state) { (void)state, for_all(check_permutation); }
static void future_tokens_change_nothing(void **state) { (void)state, for_all(check_causal); }

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(common_shift_changes_nothing),
        cmocka_unit_test(common_rotation_changes_nothing),
        cmocka_unit_test(order_of_keys_changes_nothing),
        cmocka_unit_test(future_tokens_change_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
