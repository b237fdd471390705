/* SPDX-License-Identifier: MIT
 * The whole from its parts: decode step by step, keys split in any way, packed sequences one by one. */
#include "tests/algebra/engine.h"
#include "tests/support/element.h"
#include "tests/support/expect.h"
#include "tests/support/memory.h"
#include "tests/support/random.h"

#include <stdlib.h>
#include <string.h>

/* All that a decode may be asked for. */
static void all_options(spec *s)
{
    s->batch = 2;
    s->heads_q = 4;
    s->heads_kv = 2;
    s->dim_v = s->dim_qk + 3;
    s->slope = s->key_bias = 1;
    s->sink = s->mechanism == LOAM_SOFTMAX;
    s->decay = !s->sink;
    s->ridge_axes = s->mechanism == LOAM_LLA ? LOAM_RIDGE_CHANNEL : LOAM_RIDGE_NUMBER;
}

/* Copies token `from` of every head to token 0 of `to`, which has one. */
static void take_token(values *to, const values *v, slot which, int64_t from)
{
    const shape a = slot_shape(v, which);
    for (int64_t b = 0; b < a.batch; b++) {
        for (int64_t h = 0; h < a.heads; h++) {
            memcpy(slot_at(to, which, b, h, 0), slot_at(v, which, b, h, from),
                   (size_t)a.channels * sizeof(double));
        }
    }
}

/* Query t against a cache of which t + 1 keys are in use. */
static void check_step(const engine *e, const values *prefill, int64_t t)
{
    static const slot whole[] = { SLOT_K, SLOT_V, SLOT_KEY_BIAS, SLOT_SLOPE, SLOT_SINK, SLOT_LOG_DECAY };
    static const slot of_token[] = { SLOT_Q, SLOT_PROBE, SLOT_RIDGE };
    static const slot outputs[] = { SLOT_O, SLOT_LSE, SLOT_RHO };
    spec s = prefill->spec;
    s.pass = LOAM_DECODE;
    s.len_q = 1;
    s.lens = 1;
    values step = values_make(&s), want = values_like(&s, &step);
    for (int64_t b = 0; b < s.batch; b++)
        step.lens_kv[b] = t + 1;
    for (int i = 0; i < 6; i++) {
        if (step.x[whole[i]]) {
            memcpy(step.x[whole[i]], prefill->x[whole[i]],
                   (size_t)slot_size(&step, whole[i]) * sizeof(double));
        }
    }
    for (int i = 0; i < 3; i++) {
        if (step.x[of_token[i]]) take_token(&step, prefill, of_token[i], t);
        take_token(&want, prefill, outputs[i], t);
    }
    expect_run(&step);
    for (int i = 0; i < 3; i++) {
        expect_near("decode step", &step, outputs[i], want.x[outputs[i]],
                    10 * engine_tolerance(e, (loam_mechanism)s.mechanism, LOAM_DECODE), 0);
    }
    values_free(&step);
    values_free(&want);
}

static void decode_step_by_step_is_prefill(void **state)
{
    (void)state;
    for (int index = 0; index < ENGINES; index++) {
        for (int mechanism = LOAM_SOFTMAX; mechanism <= LOAM_LLA; mechanism++) {
            const engine e = engine_at(index, LOAM_DECODE);
            spec s = engine_spec(&e, (loam_mechanism)mechanism, LOAM_FORWARD);
            all_options(&s);
            values prefill = values_make(&s);
            expect_run(&prefill);
            const int64_t stride = e.len > 64 ? e.len / 9 : 1;
            for (int64_t t = 0; t < e.len; t += stride)
                check_step(&e, &prefill, t);
            check_step(&e, &prefill, e.len - 1);
            values_free(&prefill);
        }
    }
}

/* A decode problem whose state is put together by hand. */
typedef struct split {
    arrays m;
    loam_plan *plan;
    double *whole, *part;
    const values *v;
    rng random;
} split;

static loam_const_view from_key(loam_const_view view, loam_dtype dtype, int64_t first)
{
    if (view.data) view.data = (const char *)view.data + (size_t)(first * view.token) * element_bytes(dtype);
    return view;
}

static void add_part(split *x, int64_t first, int64_t count, double *into)
{
    loam_error error;
    const spec *s = &x->v->spec;
    loam_args part = x->m.args;
    part.k = from_key(part.k, (loam_dtype)s->dtype, first);
    part.v = from_key(part.v, (loam_dtype)s->dtype, first);
    part.key_bias = from_key(part.key_bias, element_real((loam_dtype)s->dtype), first);
    arrays_work(&x->m, x->plan);
    part.work = x->m.args.work;
    if (loam_state_partial(x->plan, &part, first, count, x->part, &error) ||
        loam_state_merge(x->plan, into, x->part, &error))
        fail_msg("partial %lld + %lld: %s", (long long)first, (long long)count, error.text);
}

/* Cuts keys first .. last - 1 at random and merges both sides, each the same way, in either order. */
static void add_range(split *x, int64_t first, int64_t last, double *into)
{
    if (last - first < 2 || rng_one_in(&x->random, 5)) {
        add_part(x, first, last - first, into);
        return;
    }
    const size_t doubles = loam_states_doubles(x->plan);
    double *side = memory_zeroed(doubles, sizeof *side);
    loam_error error;
    const int64_t cut = rng_int(&x->random, first, last); /* one side may be empty */
    const int later_first = rng_one_in(&x->random, 2), sides_of_their_own = rng_one_in(&x->random, 2);
    add_range(x, later_first ? cut : first, later_first ? last : cut, into);
    if (sides_of_their_own && loam_state_partial(x->plan, &x->m.args, 0, 0, side, &error) == LOAM_OK) {
        add_range(x, later_first ? first : cut, later_first ? cut : last, side);
        assert_int_equal(loam_state_merge(x->plan, into, side, &error), LOAM_OK);
    } else {
        add_range(x, later_first ? first : cut, later_first ? cut : last, into);
    }
    free(side);
}

/* v: the outputs of the pass as a whole; checks those of the split state. */
static void check_split(const engine *e, values *v, uint64_t seed)
{
    static const slot outputs[] = { SLOT_O, SLOT_LSE, SLOT_RHO };
    split x = { .v = v, .random = rng_make(seed, 8) };
    values got = values_like(&v->spec, v);
    loam_error error;
    char misuse[160];
    arrays_make(&x.m, v);
    const loam_problem problem = values_problem(v);
    assert_int_equal(loam_plan_create(&x.plan, &problem, &error), LOAM_OK);
    x.whole = memory_zeroed(loam_states_doubles(x.plan), sizeof *x.whole);
    x.part = memory_zeroed(loam_states_doubles(x.plan), sizeof *x.part);
    arrays_work(&x.m, x.plan);
    assert_int_equal(loam_state_partial(x.plan, &x.m.args, 0, 0, x.whole, &error), LOAM_OK);
    add_range(&x, 0, v->spec.len_kv, x.whole);
    arrays_work(&x.m, x.plan);
    if (loam_state_finish(x.plan, &x.m.args, x.whole, &error)) fail_msg("finish: %s", error.text);
    arrays_read(&x.m, &got);
    if (arrays_misuse(&x.m, misuse, sizeof misuse)) fail_msg("split: %s", misuse);
    for (int i = 0; i < 3; i++) {
        expect_near("split keys", &got, outputs[i], v->x[outputs[i]],
                    10 * engine_tolerance(e, (loam_mechanism)v->spec.mechanism, LOAM_DECODE), 0.1);
    }
    for (int64_t row = 0; row < slot_size(v, SLOT_INFO); row++)
        assert_int_equal(got.info[row].code, v->info[row].code);
    loam_plan_destroy(x.plan);
    free(x.whole);
    free(x.part);
    arrays_free(&x.m);
    values_free(&got);
}

static void keys_split_in_any_way_are_the_whole(void **state)
{
    (void)state;
    for (int index = 0; index < ENGINES; index++) {
        for (int number = 0; number < 24; number++) {
            const engine e = engine_at(index, LOAM_DECODE);
            const loam_mechanism mechanism = (loam_mechanism)(number % 3);
            spec s = engine_spec(&e, mechanism, LOAM_DECODE);
            all_options(&s);
            s.len_q = 1 + number % 4;
            s.len_kv = number < 3 ? e.len : e.len / 4 + number;
            s.lens = number % 2;
            s.window = number % 5 == 4 ? e.len / 6 : 0;
            s.causal = number % 4 != 3;
            s.score = number / 3 % 2;
            s.decay = s.causal && s.score == LOAM_DOT && !s.sink;
            s.ridge_unit = mechanism == LOAM_LLA ? number / 6 % 3 : 0;
            s.seed = 40 + number;
            values v = values_make(&s);
            expect_run(&v);
            check_split(&e, &v, (uint64_t)number);
            values_free(&v);
        }
    }
}

/* Tokens first .. of every head of one array to another's beginning. */
static void take_tokens(values *to, const values *v, slot which, int64_t first, int64_t count)
{
    const shape a = slot_shape(v, which);
    for (int64_t h = 0; h < a.heads && count > 0; h++) {
        memcpy(slot_at(to, which, 0, h, 0), slot_at(v, which, 0, h, first),
               (size_t)(count * a.channels) * sizeof(double));
    }
}

static void check_sequence(const values *packed, int64_t b)
{
    const sequence q = values_sequence(packed, b);
    spec s = packed->spec;
    s.packed = 0;
    s.batch = 1;
    s.len_q = q.len_q;
    s.len_kv = q.len_kv;
    values alone = values_make(&s);
    for (int which = SLOT_Q; which < SLOT_FIRST_OUTPUT; which++) {
        if (!alone.x[which]) continue;
        if (which == SLOT_SLOPE || which == SLOT_SINK) {
            memcpy(alone.x[which], packed->x[which], (size_t)slot_size(&alone, (slot)which) * sizeof(double));
        } else {
            const int of_keys = which == SLOT_K || which == SLOT_V || which == SLOT_KEY_BIAS ||
                                which == SLOT_LOG_DECAY;
            take_tokens(&alone, packed, (slot)which, of_keys ? q.k0 : q.q0, of_keys ? q.len_kv : q.len_q);
        }
    }
    expect_run(&alone);
    static const slot of_queries[] = { SLOT_O,      SLOT_LSE,        SLOT_RHO,
                                       SLOT_GRAD_Q, SLOT_GRAD_PROBE, SLOT_GRAD_RIDGE };
    static const slot of_keys[] = { SLOT_GRAD_K, SLOT_GRAD_V, SLOT_GRAD_KEY_BIAS, SLOT_GRAD_LOG_DECAY };
    for (int i = 0; i < 10; i++) {
        const slot which = i < 6 ? of_queries[i] : of_keys[i - 6];
        const shape a = alone.x[which] ? slot_shape(&alone, which) : (shape){ 0, 0, 0, 0 };
        for (int64_t h = 0; h < a.heads && a.tokens > 0; h++) {
            expect_same_rows("sequence of a pack", &alone, which, h * a.tokens,
                             slot_at(packed, which, 0, h, i < 6 ? q.q0 : q.k0), a.tokens);
        }
    }
    values_free(&alone);
}

static void packed_sequences_are_separate_ones(void **state)
{
    (void)state;
    for (int index = 0; index < ENGINES; index++) {
        for (int number = 0; number < 18; number++) {
            const loam_pass pass = number % 2 ? LOAM_BACKWARD : LOAM_FORWARD;
            const engine e = engine_at(index, pass);
            spec s = engine_spec(&e, (loam_mechanism)(number % 3), pass);
            all_options(&s);
            s.ridge_axes = s.mechanism == LOAM_LLA ? LOAM_RIDGE_TOKEN + number / 3 % 2 : 0;
            s.packed = 1;
            s.batch = 5;
            s.len_q = s.len_kv = e.len > 300 ? 300 : e.len / 2;
            s.len_kv += number % 4 ? 0 : 9;
            s.score = number / 6 % 2;
            s.decay = s.score == LOAM_DOT && !s.sink;
            s.seed = 300 + number;
            values v = values_make(&s);
            expect_run(&v);
            for (int64_t b = 0; b < s.batch; b++)
                check_sequence(&v, b);
            values_free(&v);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decode_step_by_step_is_prefill),
        cmocka_unit_test(keys_split_in_any_way_are_the_whole),
        cmocka_unit_test(packed_sequences_are_separate_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
