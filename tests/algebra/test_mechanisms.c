/* SPDX-License-Identifier: MIT
 * One mechanism is another at the ends of its range: forward, decode and the gradients they share. */
#include "tests/algebra/engine.h"
#include "tests/support/expect.h"

#include <string.h>

/* The outputs of a pass that mechanisms share. */
static void expect_alike(const char *what, const values *got, const values *want, double tolerance)
{
    static const slot shared[] = { SLOT_O, SLOT_LSE, SLOT_GRAD_Q, SLOT_GRAD_K, SLOT_GRAD_V, SLOT_GRAD_SCALE };
    for (size_t i = 0; i < sizeof shared / sizeof shared[0]; i++)
        if (got->x[shared[i]]) expect_near(what, got, shared[i], want->x[shared[i]], tolerance, 0);
}

static values like_mechanism(const values *from, loam_mechanism mechanism)
{
    spec s = from->spec;
    s.mechanism = mechanism;
    if (mechanism != LOAM_LLA) s.ridge_unit = LOAM_RIDGE_NORMALISED;
    return values_like(&s, from);
}

typedef void property(const engine *e, loam_pass pass);

static void for_all(property *p)
{
    for (int index = 0; index < ENGINES; index++) {
        for (int pass = LOAM_FORWARD; pass <= LOAM_DECODE; pass++) {
            const engine e = engine_at(index, (loam_pass)pass);
            p(&e, (loam_pass)pass);
        }
    }
}

static spec shape_for(const engine *e, loam_mechanism mechanism, loam_pass pass)
{
    spec s = engine_spec(e, mechanism, pass);
    s.len_q = pass == LOAM_DECODE ? 3 : s.len_q;
    return s;
}

static void check_large_ridge(const engine *e, loam_pass pass)
{
    for (int unit = 0; unit < 3; unit++) {
        spec s = shape_for(e, LOAM_LLA, pass);
        s.ridge = 1e9;
        s.ridge_unit = unit;
        values lla = values_make(&s), softmax = like_mechanism(&lla, LOAM_SOFTMAX);
        expect_run(&lla);
        expect_run(&softmax);
        /* The largest p, and with it the ridge, may be 1/len; what is left of the line is 1/ridge. */
        const double tolerance = e->dtype == LOAM_F64 ? 1e-4 : 2e-4;
        expect_alike("LLA with a large ridge", &lla, &softmax,
                     unit == LOAM_RIDGE_NORMALISED ? tolerance / 10 : tolerance);
        values_free(&lla);
        values_free(&softmax);
    }
}

static void check_probe_zero(const engine *e, loam_pass pass)
{
    spec s = shape_for(e, LOAM_PARALLAX, pass);
    values parallax = values_make(&s), softmax = like_mechanism(&parallax, LOAM_SOFTMAX);
    memset(parallax.x[SLOT_PROBE], 0, (size_t)slot_size(&parallax, SLOT_PROBE) * sizeof(double));
    expect_run(&parallax);
    expect_run(&softmax);
    expect_alike("Parallax with probe 0", &parallax, &softmax, engine_tolerance(e, LOAM_PARALLAX, pass));
    values_free(&parallax);
    values_free(&softmax);
}

static void check_probe_of_lla(const engine *e, loam_pass pass)
{
    if (pass == LOAM_BACKWARD) return; /* the gradients differ: LLA's probe depends on q and k */
    spec s = shape_for(e, LOAM_LLA, pass);
    values lla = values_make(&s);
    expect_run(&lla);
    values parallax = like_mechanism(&lla, LOAM_PARALLAX);
    memcpy(parallax.x[SLOT_PROBE], lla.x[SLOT_RHO], (size_t)slot_size(&lla, SLOT_RHO) * sizeof(double));
    expect_run(&parallax);
    expect_alike("Parallax with the probe of LLA", &parallax, &lla, engine_tolerance(e, LOAM_LLA, pass));
    expect_same("Parallax's probe", &parallax, SLOT_RHO, lla.x[SLOT_RHO]);
    values_free(&parallax);
    values_free(&lla);
}

static void lla_with_a_large_ridge_is_softmax(void **state) { (void)state, for_all(check_large_ridge); }
static void parallax_with_probe_zero_is_softmax(void **state) { (void)state, for_all(check_probe_zero); }
static void parallax_with_the_probe_of_lla_is_lla(void **state) { (void)state, for_all(check_probe_of_lla); }

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lla_with_a_large_ridge_is_softmax),
        cmocka_unit_test(parallax_with_probe_zero_is_softmax),
        cmocka_unit_test(parallax_with_the_probe_of_lla_is_lla),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
