/* SPDX-License-Identifier: MIT
 * What the kernels of float32 owe besides loam-check: a linear backward over twelve decades, MesaNet without forgetting, whose
 * systems are solved in another way, and with keys that leave most directions empty. */
#include "tests/recurrent/cases.h"
#include "tests/support/compare.h"

#include <math.h>

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
    for (int mechanism = LOAM_LINEAR; mechanism <= LOAM_MESA; mechanism++) {
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
    for (int each = 0; each < 2; each++) {
        const spec s = base(LOAM_MESA, LOAM_FORWARD);
        values one = values_make(&s), scaled = values_like(&s, &one);
        scale_slot(&scaled, SLOT_Q, factors[each]);
        expect_run(&one);
        expect_run(&scaled);
        scale_slot(&one, SLOT_O, factors[each]);
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
            if (!(off <= PROMISED * size)) {
                fail_msg("%s: %s is off by %.3g of its norm", what, slot_names[which], off / size);
            }
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
    if (decay <= 0) {
        fill(&v, SLOT_LOG_DECAY, decay);
    }
    expect_run(&v);
    expect_reference(what, &v);
    for (int64_t i = 0; pass == LOAM_FORWARD && i < slot_size(&v, SLOT_INFO); i++) {
        assert_int_equal(v.info[i].code, LOAM_ROW_SOLVED);
        assert_true(v.info[i].residual <= 1e-5f);
        assert_true(decay != 0 || (v.info[i].solver == LOAM_SOLVER_GRAM && v.info[i].iterations == 0));
    }
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_linear),
        cmocka_unit_test(mesa_is_linear_in_queries),
        cmocka_unit_test(mesa_without_forgetting),
        cmocka_unit_test(mesa_with_few_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
