/* SPDX-License-Identifier: MIT
 * What the kernels of float32 owe besides loam-check: a linear backward over twelve decades, MesaNet without
 * forgetting, whose systems are solved in another way, and with keys that leave most directions empty. */
#include "tests/recurrent/cases.h"
#include "tests/support/compare.h"

#include <math.h>
#include <string.h>

enum { LEN = 150, DIM = 20, DIM_V = 9 };
#define PROMISED 1e-4 /* of MesaNet in float32, relative */

static spec base(int mechanism, int pass)
{
    spec s = recurrent_spec((loam_mechanism)mechanism, (loam_pass)pass, LEN, DIM, DIM_V);
    s.backend = LOAM_BACKEND_CPU;
    s.heads_q = s.heads_kv = 2;
    s.heads_v = 4;
    s.dtype = LOAM_F32;
    s.ridge = 0.3;
    return s;
}

/* By powers of 2, bit for bit: nothing is added to a denominator, and solves stop on a relative residual. */
static void gradients_are_linear(void **state)
{
    (void)state;
    static const double factors[] = { 0x1p-20, 0x1p20 };
    for (int mechanism = LOAM_LINEAR; mechanism < spec_mechanisms(); mechanism++) {
        for (int each = 0; each < 2; each++) {
            const spec s = base(mechanism, LOAM_BACKWARD);
            expect_linear_backward(&s, factors[each]);
        }
    }
}

static void mesa_is_linear_in_queries(void **state)
{
    (void)state;
    static const double factors[] = { 0x1p-20, 0x1p20 };
    for (int each = 0; each < 4; each++) {
        const spec s = base(LOAM_MESA, each < 2 ? LOAM_FORWARD : LOAM_DECODE);
        values one = values_make(&s), scaled = values_like(&s, &one);
        scale_slot(&scaled, SLOT_Q, factors[each % 2]);
        expect_run(&one);
        expect_run(&scaled);
        scale_slot(&one, SLOT_O, factors[each % 2]);
        expect_same("scaled queries", &scaled, SLOT_O, one.x[SLOT_O]);
        values_free(&one);
        values_free(&scaled);
    }
}

/* All outputs are those of the reference in float64. */
static void expect_reference(const char *what, const values *got)
{
    spec s = got->spec;
    s.dtype = LOAM_F64;
    s.backend = LOAM_BACKEND_REFERENCE;
    values want = values_like(&s, got);
    expect_run(&want);
    for (int which = SLOT_FIRST_OUTPUT; which < SLOT_COUNT; which++) {
        if (got->x[which]) {
            const int64_t n = slot_size(got, (slot)which);
            const double off = compare_distance(want.x[which], got->x[which], n);
            const double size = compare_norm(want.x[which], n);
            if (!(off <= PROMISED * size))
                fail_msg("%s: %s is off by %.3g of its norm", what, slot_names[which], off / size);
        }
    }
    values_free(&want);
}

static void mesa_case(const char *what, int pass, int data, double ridge, double decay)
{
    spec s = base(LOAM_MESA, pass);
    s.data = data;
    s.ridge = ridge;
    s.state = data == DATA_NORMAL; /* else H is empty but for the keys */
    values v = values_make(&s);
    if (decay <= 0) fill(&v, SLOT_LOG_DECAY, decay);
    expect_run(&v);
    expect_reference(what, &v);
    int exact = 0;
    for (int64_t i = 0; pass != LOAM_BACKWARD && i < slot_size(&v, SLOT_INFO); i++) {
        const loam_row_info *row = &v.info[i];
        assert_int_equal(row->code, LOAM_ROW_SOLVED);
        assert_true(row->residual <= (pass == LOAM_FORWARD ? 1e-5f : 1e-6f));
        assert_true(pass == LOAM_DECODE || decay != 0 ||
                    (row->solver == LOAM_SOLVER_GRAM && row->iterations == 0));
        assert_true(pass == LOAM_FORWARD || ridge < 1 ||
                    (row->solver == LOAM_SOLVER_CG && row->iterations > 0));
        exact += row->solver == LOAM_SOLVER_GRAM;
    }
    assert_true(pass != LOAM_DECODE || ridge > 1e-6 || exact > 0); /* float32 does not get there */
    values_free(&v);
}

static void mesa_without_forgetting(void **state)
{
    (void)state;
    for (int pass = LOAM_FORWARD; pass <= LOAM_BACKWARD; pass++) {
        mesa_case("ridge 1", pass, DATA_NORMAL, 1, 0);
        mesa_case("ridge 1e-3", pass, DATA_NORMAL, 1e-3, 0);
        mesa_case("three keys", pass, DATA_REPEATED, 1e-3, 0);
    }
}

static void mesa_with_few_keys(void **state)
{
    (void)state;
    for (int pass = LOAM_FORWARD; pass <= LOAM_BACKWARD; pass++) {
        mesa_case("one key, slow gates", pass, DATA_EQUAL, 1e-3, -1e-3);
        mesa_case("three keys, slow gates", pass, DATA_REPEATED, 1e-3, -1e-3);
        mesa_case("ridge 1e-6", pass, DATA_NORMAL, 1e-6, -0.01);
    }
}

/* Many tokens in a call, of which none goes through the states of the caller but the last. */
static void mesa_decodes(void **state)
{
    (void)state;
    mesa_case("ridge 1", LOAM_DECODE, DATA_NORMAL, 1, 0);
    mesa_case("ridge 1e-3", LOAM_DECODE, DATA_NORMAL, 1e-3, 0);
    mesa_case("ridge 1e-6", LOAM_DECODE, DATA_NORMAL, 1e-6, -0.01);
    mesa_case("one key, slow gates", LOAM_DECODE, DATA_EQUAL, 1e-3, -1e-3);
    mesa_case("three keys, slow gates", LOAM_DECODE, DATA_REPEATED, 1e-3, -1e-3);
}

/* Few keys in a state of float32, and one token: what a caller does who decodes. */
static void mesa_decodes_a_token(void **state)
{
    (void)state;
    static const double ridges[] = { 1, 1e-3, 1e-5, 1e-14 };
    for (int each = 0; each < 4; each++) {
        spec s = base(LOAM_MESA, LOAM_FORWARD);
        s.data = DATA_REPEATED;
        s.ridge = ridges[each];
        s.state = 0;
        values many = values_make(&s);
        expect_run(&many);
        s.pass = LOAM_DECODE;
        s.len_q = s.len_kv = 1;
        s.state = 1;
        s.data = DATA_NORMAL;
        values one = values_make(&s);
        memcpy(one.x[SLOT_STATE_IN], many.x[SLOT_STATE_OUT],
               (size_t)slot_size(&one, SLOT_STATE_IN) * sizeof(double));
        expect_run(&one);
        expect_reference("a token", &one);
        for (int64_t i = 0; i < slot_size(&one, SLOT_INFO); i++) {
            assert_int_equal(one.info[i].code, each < 3 ? LOAM_ROW_SOLVED : LOAM_ROW_SINGULAR);
            assert_true(each > 0 || one.info[i].solver == LOAM_SOLVER_CG);
            assert_true(each < 3 || one.info[i].solver == LOAM_SOLVER_GRAM);
        }
        values_free(&many);
        values_free(&one);
    }
}

/* What is antisymmetric in H changes the state, and not what is read. */
static void mesa_reads_the_symmetric_part(void **state)
{
    (void)state;
    for (int pass = LOAM_FORWARD; pass <= LOAM_DECODE; pass += LOAM_DECODE) {
        spec s = base(LOAM_MESA, pass);
        s.len_q = s.len_kv = 2;
        values v = values_make(&s);
        const shape a = slot_shape(&v, SLOT_STATE_IN);
        for (int64_t n = 0; n < a.batch * a.heads; n++) {
            double *H = v.x[SLOT_STATE_IN] + (n * a.tokens + DIM_V) * DIM;
            for (int64_t r = 0; r < DIM; r++) {
                for (int64_t c = 0; c < r; c++) {
                    H[r * DIM + c] += 0.5;
                    H[c * DIM + r] -= 0.5;
                }
            }
        }
        expect_run(&v);
        expect_reference("H with an antisymmetric part", &v);
        values_free(&v);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_linear),
        cmocka_unit_test(mesa_is_linear_in_queries),
        cmocka_unit_test(mesa_without_forgetting),
        cmocka_unit_test(mesa_with_few_keys),
        cmocka_unit_test(mesa_decodes),
        cmocka_unit_test(mesa_decodes_a_token),
        cmocka_unit_test(mesa_reads_the_symmetric_part),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
