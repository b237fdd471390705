/* SPDX-License-Identifier: MIT
 * What one mechanism is where another's gates, strengths or features are special: outputs and gradients. */
#include "tests/recurrent/cases.h"
#include "tests/support/compare.h"
#include "tests/support/memory.h"

#include <math.h>
#include <stdlib.h>

enum { LEN = 60, DIM = 7, DIM_V = 5 };
#define TOLERANCE 1e-12

static spec base(loam_mechanism mechanism, int pass)
{
    spec s = recurrent_spec(mechanism, (loam_pass)pass, LEN, DIM, DIM_V);
    s.batch = 2;
    s.heads_q = s.heads_kv = 2;
    s.heads_v = 4;
    s.scale = 0.7;
    s.seed = 31;
    return s;
}

/* All outputs that both have, but those of the gate, whose axes differ. */
static void expect_alike(const char *what, const values *got, const values *want, double tolerance)
{
    for (int which = SLOT_FIRST_OUTPUT; which < SLOT_COUNT; which++)
        if (got->x[which] && want->x[which] && which != SLOT_GRAD_LOG_DECAY)
            expect_near(what, got, (slot)which, want->x[which], tolerance, 0.01);
}

/* Every channel of the gate of `channels` gets that of its token in `tokens`. */
static void spread_gate(values *channels, const values *tokens)
{
    const int64_t n = channels->spec.dim_qk;
    for (int64_t i = 0; i < slot_size(channels, SLOT_LOG_DECAY); i++)
        channels->x[SLOT_LOG_DECAY][i] = tokens->x[SLOT_LOG_DECAY][i / n];
}

/* The gradient of the gate of `got` is that of `channels` summed over channels. */
static void expect_summed_gate(const char *what, const values *got, const values *channels)
{
    const int64_t n = channels->spec.dim_qk, count = slot_size(got, SLOT_LOG_DECAY);
    double *want = memory_zeroed((size_t)count, sizeof *want);
    for (int64_t i = 0; i < count * n; i++)
        want[i / n] += channels->x[SLOT_GRAD_LOG_DECAY][i];
    expect_near(what, got, SLOT_GRAD_LOG_DECAY, want, TOLERANCE, 0.01);
    free(want);
}

static void equal_channels(const char *what, loam_mechanism vector, loam_mechanism scalar)
{
    for (int pass = LOAM_FORWARD; pass <= LOAM_DECODE; pass++) {
        const spec one = base(scalar, pass), many = base(vector, pass);
        values tokens = values_make(&one), channels = values_like(&many, &tokens);
        if (!channels.x[SLOT_BETA]) fill(&tokens, SLOT_BETA, 1);
        spread_gate(&channels, &tokens);
        expect_run(&tokens);
        expect_run(&channels);
        expect_alike(what, &channels, &tokens, TOLERANCE);
        if (pass == LOAM_BACKWARD) expect_summed_gate(what, &tokens, &channels);
        values_free(&tokens);
        values_free(&channels);
    }
}

static void kda_with_equal_channels_is_gated_delta(void **state)
{
    (void)state, equal_channels("KDA with equal channels", LOAM_KDA, LOAM_GATED_DELTA);
}

static void gla_with_equal_channels_is_ssd(void **state)
{
    (void)state, equal_channels("GLA with equal channels", LOAM_GLA, LOAM_SSD);
}

/* `gated` with all log decays `decay` and, where only it has beta, beta 1, is `plain`. */
static void constant_gate(const char *what, loam_mechanism gated, loam_mechanism plain, double decay)
{
    for (int pass = LOAM_FORWARD; pass <= LOAM_DECODE; pass++) {
        const spec a = base(gated, pass), b = base(plain, pass);
        values want = values_make(&b), got = values_like(&a, &want);
        fill(&got, SLOT_LOG_DECAY, decay);
        if (got.x[SLOT_BETA] && !want.x[SLOT_BETA]) fill(&got, SLOT_BETA, 1);
        if (want.x[SLOT_LOG_DECAY]) fill(&want, SLOT_LOG_DECAY, decay);
        expect_run(&got);
        expect_run(&want);
        expect_alike(what, &got, &want, TOLERANCE);
        values_free(&got);
        values_free(&want);
    }
}

static void without_decay_gates_vanish(void **state)
{
    (void)state;
    constant_gate("gated delta, decay 1", LOAM_GATED_DELTA, LOAM_DELTA, 0);
    constant_gate("KDA, decay 1", LOAM_KDA, LOAM_DELTA, 0);
    constant_gate("retention, decay 1", LOAM_RETENTION, LOAM_LINEAR, 0);
    constant_gate("SSD, decay 1", LOAM_SSD, LOAM_LINEAR, 0);
    constant_gate("GLA, decay 1", LOAM_GLA, LOAM_LINEAR, 0);
    constant_gate("SSD, a constant decay", LOAM_SSD, LOAM_RETENTION, log(0.9));
}

/* The gradient of a head's decay is the sum over its tokens. */
static void retention_gradient_is_a_sum(void **state)
{
    (void)state;
    const spec a = base(LOAM_SSD, LOAM_BACKWARD), b = base(LOAM_RETENTION, LOAM_BACKWARD);
    values tokens = values_make(&a), heads = values_like(&b, &tokens);
    fill(&tokens, SLOT_BETA, 1);
    fill(&tokens, SLOT_LOG_DECAY, log(0.93));
    fill(&heads, SLOT_LOG_DECAY, log(0.93));
    expect_run(&tokens);
    expect_run(&heads);
    const shape all = slot_shape(&tokens, SLOT_LOG_DECAY);
    double want[4] = { 0 };
    for (int64_t i = 0; i < shape_size(all); i++)
        want[i / all.tokens % all.heads] += tokens.x[SLOT_GRAD_LOG_DECAY][i];
    expect_near("retention", &heads, SLOT_GRAD_LOG_DECAY, want, TOLERANCE, 0.01);
    values_free(&tokens);
    values_free(&heads);
}

/* (H + ridge)^-1 -> 1 / ridge */
static void mesa_at_a_large_ridge_is_ssd(void **state)
{
    (void)state;
    const double ridge = 1e9;
    for (int pass = LOAM_FORWARD; pass <= LOAM_DECODE; pass++) {
        spec a = base(LOAM_MESA, pass), b = base(LOAM_SSD, pass);
        a.state = b.state = 0;
        a.ridge = ridge;
        a.scale *= ridge;
        values want = values_make(&b), got = values_like(&a, &want);
        expect_run(&got);
        expect_run(&want);
        for (int which = SLOT_O; which <= SLOT_GRAD_V; which++)
            if (got.x[which] && want.x[which])
                expect_near("MesaNet at ridge 1e9", &got, (slot)which, want.x[which], 1e-6, 0.01);
        values_free(&got);
        values_free(&want);
    }
}

/* Fewer tokens than dimensions, queries the keys, next to no ridge: the fit goes through every value. */
static void mesa_without_a_ridge_interpolates(void **state)
{
    (void)state;
    spec s = recurrent_spec(LOAM_MESA, LOAM_FORWARD, DIM, 2 * DIM, DIM_V);
    s.state = 0;
    s.data = DATA_SELF;
    s.ridge = 1e-9;
    values v = values_make(&s);
    fill(&v, SLOT_LOG_DECAY, 0);
    fill(&v, SLOT_BETA, 1);
    for (int64_t i = 0; i < slot_size(&v, SLOT_Q); i++)
        v.x[SLOT_Q][i] = v.x[SLOT_K][i];
    expect_run(&v);
    expect_near("MesaNet at its own keys", &v, SLOT_O, v.x[SLOT_V], 1e-6, 0);
    for (int64_t t = 0; t < DIM; t++) {
        assert_true(v.info[t].code == LOAM_ROW_SOLVED && v.info[t].solver == LOAM_SOLVER_GRAM &&
                    v.info[t].residual < 1e-6f);
    }
    values_free(&v);
}

/* beta = 1 and a unit key: what was just written is read back. */
static void delta_rule_remembers_the_last_value(void **state)
{
    (void)state;
    for (int mechanism = LOAM_DELTA; mechanism <= LOAM_KDA; mechanism++) {
        spec s = recurrent_spec((loam_mechanism)mechanism, LOAM_FORWARD, LEN, DIM, DIM_V);
        s.feature_map = LOAM_FEATURES_UNIT;
        s.scale = 1;
        values v = values_make(&s);
        fill(&v, SLOT_BETA, 1);
        for (int64_t i = 0; i < slot_size(&v, SLOT_Q); i++)
            v.x[SLOT_Q][i] = v.x[SLOT_K][i];
        expect_run(&v);
        expect_near("the last value", &v, SLOT_O, v.x[SLOT_V], TOLERANCE, 0);
        values_free(&v);
    }
}

/* beta = 0 writes nothing, and takes nothing back. */
static void beta_0_leaves_the_state(void **state)
{
    (void)state;
    for (int mechanism = LOAM_SSD; mechanism < spec_mechanisms(); mechanism++) {
        spec s = recurrent_spec((loam_mechanism)mechanism, LOAM_FORWARD, LEN, DIM, DIM_V);
        values v = values_make(&s);
        if (v.x[SLOT_BETA]) {
            fill(&v, SLOT_BETA, 0);
            if (v.x[SLOT_LOG_DECAY]) fill(&v, SLOT_LOG_DECAY, 0);
            expect_run(&v);
            expect_same("beta 0", &v, SLOT_STATE_OUT, v.x[SLOT_STATE_IN]);
        }
        values_free(&v);
    }
}

static void normalised_reads_are_means(void **state)
{
    (void)state;
    for (int mechanism = LOAM_LINEAR; mechanism < spec_mechanisms(); mechanism++) {
        if (!is_additive(mechanism)) continue;
        spec s = recurrent_spec((loam_mechanism)mechanism, LOAM_FORWARD, LEN, DIM, DIM_V);
        s.normalise = 1;
        s.feature_map = LOAM_FEATURES_ELU;
        s.state = 0;
        values v = values_make(&s);
        fill(&v, SLOT_V, -3.5);
        if (v.x[SLOT_BETA])
            v.x[SLOT_BETA][0] = 0.5; /* so that there is something to average from the first token on */
        expect_run(&v);
        for (int64_t i = 0; i < slot_size(&v, SLOT_O); i++)
            assert_true(fabs(v.x[SLOT_O][i] + 3.5) < 1e-12);
        values_free(&v);
    }
}

/* A normaliser of 0 has no mean: 0, and no gradient. */
static void nothing_to_normalise_by(void **state)
{
    (void)state;
    for (int pass = LOAM_FORWARD; pass <= LOAM_BACKWARD; pass++) {
        spec s = recurrent_spec(LOAM_LINEAR, (loam_pass)pass, 4, DIM, DIM_V);
        s.normalise = 1;
        s.state = 0;
        values v = values_make(&s);
        fill(&v, SLOT_K, 0);
        expect_run(&v);
        expect_no_nan(&v);
        const slot out = pass == LOAM_FORWARD ? SLOT_O : SLOT_GRAD_Q;
        assert_true(compare_norm(v.x[out], slot_size(&v, out)) == 0);
        assert_true(pass == LOAM_BACKWARD || v.info[3].code == LOAM_ROW_SINGULAR);
        values_free(&v);
    }
}

/* A feature map is what the caller would have done to q and k. */
static void features_act_before_everything(void **state)
{
    (void)state;
    for (int mechanism = LOAM_LINEAR; mechanism < spec_mechanisms(); mechanism++) {
        for (int map = LOAM_FEATURES_ELU; map <= LOAM_FEATURES_UNIT; map++) {
            const int delta = mechanism >= LOAM_DELTA && mechanism <= LOAM_KDA;
            spec s = base((loam_mechanism)mechanism, LOAM_FORWARD);
            s.feature_map = delta ? LOAM_FEATURES_UNIT : map;
            values mapped = values_make(&s);
            const int elu = s.feature_map == LOAM_FEATURES_ELU;
            s.feature_map = LOAM_FEATURES_IDENTITY;
            values plain = values_like(&s, &mapped);
            for (int which = SLOT_Q; which <= SLOT_K; which++) {
                for (int64_t i = 0; i < slot_size(&plain, (slot)which); i++) {
                    double *x = &plain.x[which][i];
                    const double *row = &mapped.x[which][i / DIM * DIM];
                    *x = elu ? (*x > 0 ? *x + 1 : exp(*x)) : *x / compare_norm(row, DIM);
                }
            }
            expect_run(&mapped);
            expect_run(&plain);
            expect_alike("a feature map", &mapped, &plain, TOLERANCE);
            values_free(&mapped);
            values_free(&plain);
        }
    }
}

/* Heads of v that share q and k are heads with copies of them, and the gradients of the copies add up. */
static void shared_heads_are_copies(void **state)
{
    (void)state;
    for (int mechanism = LOAM_LINEAR; mechanism < spec_mechanisms(); mechanism++) {
        for (int pass = LOAM_FORWARD; pass <= LOAM_BACKWARD; pass++) {
            spec s = base((loam_mechanism)mechanism, pass);
            s.batch = 1;
            values shared = values_make(&s);
            s.heads_q = s.heads_kv = 4;
            s.heads_v = 0;
            values copies = values_make(&s);
            double sum[2][2 * LEN * DIM] = { { 0 } };
            for (int which = 0; which < SLOT_FIRST_OUTPUT; which++) {
                for (int64_t i = 0; copies.x[which] && i < slot_size(&copies, (slot)which); i++) {
                    const int64_t head = LEN * DIM;
                    copies.x[which][i] =
                        shared.x[which][which <= SLOT_K ? i / head / 2 * head + i % head : i];
                }
            }
            expect_run(&shared);
            expect_run(&copies);
            for (int64_t i = 0; pass == LOAM_BACKWARD && i < 4 * LEN * DIM; i++) {
                const int64_t to = i / (LEN * DIM) / 2 * LEN * DIM + i % (LEN * DIM);
                sum[0][to] += copies.x[SLOT_GRAD_Q][i];
                sum[1][to] += copies.x[SLOT_GRAD_K][i];
            }
            for (int which = SLOT_FIRST_OUTPUT; which < SLOT_COUNT; which++) {
                if (shared.x[which]) {
                    const double *want = which == SLOT_GRAD_Q   ? sum[0]
                                         : which == SLOT_GRAD_K ? sum[1]
                                                                : copies.x[which];
                    expect_near("shared heads", &shared, (slot)which, want, TOLERANCE, 0.01);
                }
            }
            values_free(&shared);
            values_free(&copies);
        }
    }
}

/* The backward is linear in what comes in, the forward in values and states: by powers of 2, bit for bit. */
static void passes_are_linear(void **state)
{
    (void)state;
    static const double factors[] = { 0x1p-20, 0x1p20 };
    for (int mechanism = LOAM_LINEAR; mechanism < spec_mechanisms(); mechanism++) {
        for (int each = 0; each < 2; each++) {
            spec s = base((loam_mechanism)mechanism, LOAM_BACKWARD);
            expect_linear_backward(&s, factors[each]);
            s.pass = LOAM_FORWARD;
            s.state = 0;
            values forward = values_make(&s), larger = values_like(&s, &forward);
            scale_slot(&larger, SLOT_V, factors[each]);
            expect_run(&forward);
            expect_run(&larger);
            scale_slot(&forward, SLOT_O, factors[each]);
            expect_same("scaled values", &larger, SLOT_O, forward.x[SLOT_O]);
            values_free(&forward);
            values_free(&larger);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kda_with_equal_channels_is_gated_delta),
        cmocka_unit_test(gla_with_equal_channels_is_ssd),
        cmocka_unit_test(without_decay_gates_vanish),
        cmocka_unit_test(retention_gradient_is_a_sum),
        cmocka_unit_test(mesa_at_a_large_ridge_is_ssd),
        cmocka_unit_test(mesa_without_a_ridge_interpolates),
        cmocka_unit_test(delta_rule_remembers_the_last_value),
        cmocka_unit_test(beta_0_leaves_the_state),
        cmocka_unit_test(normalised_reads_are_means),
        cmocka_unit_test(nothing_to_normalise_by),
        cmocka_unit_test(features_act_before_everything),
        cmocka_unit_test(shared_heads_are_copies),
        cmocka_unit_test(passes_are_linear),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
