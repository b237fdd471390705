/* SPDX-License-Identifier: MIT
 * What rows of float32 and 16 bits owe to each other, on the CPU and on a GPU: special
 * cases, parts and steps of a sequence, packed sequences, nothing from the future,
 * linear gradients. Bits where they must be the same, else the bounds of the type. */
#include "tests/recurrent/cases.h"
#include "tests/support/compare.h"

#include <math.h>
#include <string.h>

enum { LEN = 150, CUT = 100 };

static spec base(int mechanism, int pass)
{
    spec s = recurrent_spec((loam_mechanism)mechanism, (loam_pass)pass, LEN, place_now.dim_qk,
                            place_now.dim_v);
    s.backend = place_now.backend;
    s.dtype = place_now.dtype;
    s.heads_q = s.heads_kv = 2;
    s.heads_v = 4;
    s.ridge = 0.5;
    s.seed = 12;
    return s;
}

/* Two results that are as far from the right one as is allowed. */
static double bound(int mechanism, slot which)
{
    const int gradient = which >= SLOT_GRAD_Q && which != SLOT_STATE_OUT;
    const int parameter = which == SLOT_GRAD_LOG_DECAY || which == SLOT_GRAD_BETA ||
                          which == SLOT_GRAD_STATE_IN;
    const double f32 = mechanism == LOAM_MESA ? 1e-4 : gradient ? 5e-5 : 1e-5;
    return (parameter ? 4 : 2) * (place_now.dtype == LOAM_F32 ? f32 : gradient ? 1e-2 : 5e-3);
}

/* All outputs that both have, but those whose axes differ and sums in which much cancels. */
static void expect_alike(const char *what, const values *got, const values *want)
{
    for (int which = SLOT_FIRST_OUTPUT; which < SLOT_COUNT; which++) {
        if (got->x[which] && want->x[which] && which != SLOT_GRAD_LOG_DECAY && which != SLOT_GRAD_SCALE) {
            expect_near(what, got, (slot)which, want->x[which], bound((int)got->spec.mechanism, (slot)which),
                        0.01);
        }
    }
}

static void run_both(const char *what, values *got, values *want)
{
    expect_run(got);
    expect_run(want);
    expect_alike(what, got, want);
    values_free(got);
    values_free(want);
}

/* `vector` with the same gate in all channels is `scalar`. */
static void equal_channels(const char *what, loam_mechanism vector, loam_mechanism scalar, int pass)
{
    const spec one = base(scalar, pass), many = base(vector, pass);
    values want = values_make(&one), got = values_like(&many, &want);
    if (!got.x[SLOT_BETA]) fill(&want, SLOT_BETA, 1);
    for (int64_t i = 0; i < slot_size(&got, SLOT_LOG_DECAY); i++)
        got.x[SLOT_LOG_DECAY][i] = want.x[SLOT_LOG_DECAY][i / many.dim_qk];
    run_both(what, &got, &want);
}

/* `gated` with all log decays `decay` and, where only it has beta, beta 1, is `plain`. */
static void constant_gate(const char *what, loam_mechanism gated, loam_mechanism plain, double decay,
                          int pass)
{
    const spec a = base(gated, pass), b = base(plain, pass);
    values want = values_make(&b), got = values_like(&a, &want);
    fill(&got, SLOT_LOG_DECAY, decay);
    if (got.x[SLOT_BETA] && !want.x[SLOT_BETA]) fill(&got, SLOT_BETA, 1);
    if (want.x[SLOT_LOG_DECAY]) fill(&want, SLOT_LOG_DECAY, decay);
    run_both(what, &got, &want);
}

static void mesa_at_a_large_ridge(int pass)
{
    spec a = base(LOAM_MESA, pass), b = base(LOAM_LINEAR, pass);
    a.state = b.state = 0;
    a.ridge = 1e9;
    a.scale = 1e9;
    b.scale = 1;
    values want = values_make(&b), got = values_like(&a, &want);
    fill(&got, SLOT_LOG_DECAY, 0);
    fill(&got, SLOT_BETA, 1);
    expect_run(&got);
    expect_run(&want);
    for (int which = SLOT_O; which <= SLOT_GRAD_V; which++) { /* not the states, which have other rows */
        if (got.x[which] && want.x[which]) {
            expect_near("MesaNet at ridge 1e9", &got, (slot)which, want.x[which],
                        bound(LOAM_MESA, (slot)which), 0.01);
        }
    }
    values_free(&got);
    values_free(&want);
}

static void special_cases(void **state)
{
    (void)state;
    for (int pass = LOAM_FORWARD; pass <= LOAM_DECODE; pass++) {
        equal_channels("KDA with equal channels", LOAM_KDA, LOAM_GATED_DELTA, pass);
        equal_channels("GLA with equal channels", LOAM_GLA, LOAM_SSD, pass);
        constant_gate("gated delta, decay 1", LOAM_GATED_DELTA, LOAM_DELTA, 0, pass);
        constant_gate("KDA, decay 1", LOAM_KDA, LOAM_DELTA, 0, pass);
        constant_gate("retention, decay 1", LOAM_RETENTION, LOAM_LINEAR, 0, pass);
        constant_gate("SSD, decay 1", LOAM_SSD, LOAM_LINEAR, 0, pass);
        constant_gate("GLA, decay 1", LOAM_GLA, LOAM_LINEAR, 0, pass);
        constant_gate("SSD, a constant decay", LOAM_SSD, LOAM_RETENTION, log(0.9), pass);
        mesa_at_a_large_ridge(pass);
    }
}

/* Rows first .. of the tokens of `whole`, as a case of their own, like those of `part`. */
static void expect_tokens(const char *what, const values *whole, const values *part, int64_t first)
{
    const shape a = slot_shape(part, SLOT_O), all = slot_shape(whole, SLOT_O);
    double far = 0, size = 0;
    for (int64_t h = 0; h < a.heads; h++) {
        const int64_t n = a.tokens * a.channels;
        const double *want = whole->x[SLOT_O] + (h * all.tokens + first) * a.channels;
        far = hypot(far, compare_distance(want, part->x[SLOT_O] + h * n, n));
        size = hypot(size, compare_norm(want, n));
    }
    if (!(far <= bound((int)whole->spec.mechanism, SLOT_O) * size + 1e-30)) {
        fail_msg("%s, %s, %s, token %lld: off by %g of %g", what, place_now.name,
                 loam_mechanism_name((loam_mechanism)whole->spec.mechanism), (long long)first, far, size);
    }
}

/* In two calls, with the state carried from one to the other, by prefill or by decode. */
static void split_anywhere(void **state)
{
    (void)state;
    static const int64_t cuts[] = { 1, 17, 64, 65, 127, 149 };
    for (int mechanism = LOAM_LINEAR; mechanism < spec_mechanisms(); mechanism++) {
        const spec s = base(mechanism, LOAM_FORWARD);
        values whole = values_make(&s);
        expect_run(&whole);
        for (size_t n = 0; n < sizeof cuts / sizeof cuts[0]; n++) {
            values first = part_of(&whole, 0, cuts[n]), rest = part_of(&whole, cuts[n], LEN - cuts[n]);
            rest.spec.pass = LEN - cuts[n] < 30 ? LOAM_DECODE : LOAM_FORWARD;
            expect_run(&first);
            carry(&rest, SLOT_STATE_IN, &first, SLOT_STATE_OUT);
            expect_run(&rest);
            expect_tokens("before the split", &whole, &first, 0);
            expect_tokens("after the split", &whole, &rest, cuts[n]);
            expect_near("the last state", &whole, SLOT_STATE_OUT, rest.x[SLOT_STATE_OUT],
                        bound(mechanism, SLOT_STATE_OUT), 0);
            values_free(&first);
            values_free(&rest);
        }
        values_free(&whole);
    }
}

/* A token at a time. */
static void decode_is_prefill(void **state)
{
    (void)state;
    enum { STEPS = 70 };
    for (int mechanism = LOAM_LINEAR; mechanism < spec_mechanisms(); mechanism++) {
        spec s = base(mechanism, LOAM_FORWARD);
        s.len_q = s.len_kv = STEPS;
        values whole = values_make(&s);
        expect_run(&whole);
        s.pass = LOAM_DECODE;
        values kept = values_like(&s, &whole);
        for (int64_t t = 0; t < STEPS; t++) {
            values step = part_of(&kept, t, 1);
            expect_run(&step);
            carry(&kept, SLOT_STATE_IN, &step, SLOT_STATE_OUT);
            expect_tokens("a step", &whole, &step, t);
            values_free(&step);
        }
        expect_near("the last state", &whole, SLOT_STATE_OUT, kept.x[SLOT_STATE_IN],
                    bound(mechanism, SLOT_STATE_OUT), 0);
        values_free(&whole);
        values_free(&kept);
    }
}

static void packed_is_separate(void **state)
{
    (void)state;
    for (int mechanism = LOAM_LINEAR; mechanism < spec_mechanisms(); mechanism++) {
        for (int pass = LOAM_FORWARD; pass <= LOAM_DECODE; pass++) {
            spec s = base(mechanism, pass);
            s.packed = 1;
            s.batch = 4;
            expect_separate(&s);
        }
    }
}

/* Other tokens from CUT on change no bit before it. */
static void change_the_future(int mechanism)
{
    static const slot inputs[] = { SLOT_Q, SLOT_K, SLOT_V, SLOT_BETA, SLOT_LOG_DECAY };
    const spec s = base(mechanism, LOAM_FORWARD);
    values v = values_make(&s), other = values_like(&s, &v);
    for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++) {
        const shape a = slot_shape(&v, inputs[i]);
        for (int64_t h = 0; v.x[inputs[i]] && a.tokens == LEN && h < a.heads; h++)
            for (int64_t x = CUT * a.channels; x < LEN * a.channels; x++)
                other.x[inputs[i]][h * LEN * a.channels + x] *= 0.5;
    }
    expect_run(&v);
    expect_run(&other);
    const shape a = slot_shape(&v, SLOT_O);
    for (int64_t h = 0; h < a.heads; h++) {
        expect_same_rows("tokens before a change", &other, SLOT_O, h * LEN,
                         v.x[SLOT_O] + h * LEN * a.channels, CUT);
    }
    assert_true(compare_bits(v.x[SLOT_O], other.x[SLOT_O], slot_size(&v, SLOT_O)) >= 0);
    values_free(&v);
    values_free(&other);
}

/* A gradient that comes in at one token goes to none after it. */
static void look_for_later_gradients(int mechanism)
{
    static const slot gradients[] = { SLOT_GRAD_Q, SLOT_GRAD_K, SLOT_GRAD_V, SLOT_GRAD_BETA,
                                      SLOT_GRAD_LOG_DECAY };
    const spec s = base(mechanism, LOAM_BACKWARD);
    values v = values_make(&s);
    const int64_t channels = slot_shape(&v, SLOT_GRAD_O).channels;
    fill(&v, SLOT_GRAD_STATE_OUT, 0);
    fill(&v, SLOT_GRAD_O, 0);
    for (int64_t h = 0; h < s.heads_v; h++)
        v.x[SLOT_GRAD_O][(h * LEN + CUT) * channels] = 1;
    expect_run(&v);
    for (size_t i = 0; i < sizeof gradients / sizeof gradients[0]; i++) {
        const shape a = slot_shape(&v, gradients[i]);
        for (int64_t h = 0; v.x[gradients[i]] && a.tokens == LEN && h < a.heads; h++) {
            const double *x = v.x[gradients[i]] + h * LEN * a.channels;
            assert_true(compare_norm(x, (CUT + 1) * a.channels) > 0);
            if (compare_norm(x + (CUT + 1) * a.channels, (LEN - CUT - 1) * a.channels) != 0) {
                fail_msg("%s, %s: %s after the token", place_now.name,
                         loam_mechanism_name((loam_mechanism)mechanism), slot_names[gradients[i]]);
            }
        }
    }
    values_free(&v);
}

static void nothing_from_the_future(void **state)
{
    (void)state;
    for (int mechanism = LOAM_LINEAR; mechanism < spec_mechanisms(); mechanism++) {
        change_the_future(mechanism);
        look_for_later_gradients(mechanism);
    }
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(special_cases),           cmocka_unit_test(split_anywhere),
        cmocka_unit_test(decode_is_prefill),       cmocka_unit_test(packed_is_separate),
        cmocka_unit_test(nothing_from_the_future), cmocka_unit_test(gradients_are_linear),
    };
    int failed = 0;
    do {
        failed += cmocka_run_group_tests_name(place_now.name, tests, NULL, NULL);
    } while (next_place());
    return failed;
}
