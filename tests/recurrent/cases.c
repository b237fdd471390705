/* SPDX-License-Identifier: MIT */
#include "tests/recurrent/cases.h"

#include "tests/support/random.h"

#include <string.h>

enum { SEED = 5005 };

spec recurrent_spec(loam_mechanism mechanism, loam_pass pass, int64_t len, int64_t dim_qk, int64_t dim_v)
{
    spec s = spec_default(mechanism, pass, len, dim_qk, dim_v);
    s.state = 1;
    s.omit = 0;
    return s;
}

spec positive_spec(loam_pass pass, int64_t len, int64_t dim_qk, int64_t dim_v, int64_t features)
{
    spec s = recurrent_spec(LOAM_LINEAR, pass, len, dim_qk, dim_v);
    s.heads_kv = 2, s.heads_q = 4;
    s.feature_map = LOAM_FEATURES_POSITIVE;
    s.normalise = 1;
    s.features = features;
    s.with_alpha = s.with_shift = s.with_balance = 1;
    return s;
}

static void draw_features(spec *s, rng *r)
{
    const int delta = spec_recurrence_of(s).delta, solved = s->mechanism == LOAM_MESA;
    s->normalise = !delta && !solved && rng_one_in(r, 3);
    s->feature_map = s->normalise ? LOAM_FEATURES_ELU
                     : delta      ? 2 * rng_int(r, 0, 1) /* keys of length 1 */
                                  : rng_int(r, LOAM_FEATURES_IDENTITY, LOAM_FEATURES_UNIT);
    s->scale = !s->normalise && rng_one_in(r, 2) ? 0.3 + rng_uniform(r) : 0;
}

spec recurrent_case(loam_mechanism mechanism, loam_pass pass, int64_t number)
{
    static const int64_t axes[] = { LOAM_RIDGE_NUMBER, LOAM_RIDGE_HEAD, LOAM_RIDGE_HEAD_CHANNEL };
    rng r = rng_make(SEED + (uint64_t)mechanism, (uint64_t)number);
    spec s = recurrent_spec(mechanism, pass, rng_int(&r, 1, 9), rng_int(&r, 1, 5), rng_int(&r, 1, 4));
    s.batch = rng_int(&r, 1, 2);
    s.heads_q = s.heads_kv = rng_int(&r, 1, 2);
    s.heads_v = rng_one_in(&r, 2) ? 0 : s.heads_q * rng_int(&r, 1, 3);
    s.packed = rng_one_in(&r, 4);
    s.batch += 2 * s.packed;
    s.state = !rng_one_in(&r, 3);
    draw_features(&s, &r);
    s.ridge = 0.05 + 2 * rng_uniform(&r);
    s.ridge_axes = mechanism == LOAM_MESA ? axes[number % 3] : LOAM_RIDGE_NUMBER;
    s.ridge_array = mechanism == LOAM_MESA && s.ridge_axes == LOAM_RIDGE_NUMBER && rng_one_in(&r, 2);
    s.threads = 1;
    s.seed = number + 1;
    return s;
}

int is_additive(int mechanism)
{
    const spec s = { .mechanism = mechanism };
    return mechanism != LOAM_MESA && spec_recurrent(&s) && !spec_recurrence_of(&s).delta;
}

void fill(values *v, slot which, double x)
{
    for (int64_t i = 0; i < slot_size(v, which); i++)
        v->x[which][i] = x;
}

void scale_slot(values *v, slot which, double factor)
{
    for (int64_t i = 0; v->x[which] && i < slot_size(v, which); i++)
        v->x[which][i] *= factor;
}

void expect_linear_backward(const spec *s, double factor)
{
    values one = values_make(s), scaled = values_like(s, &one);
    scale_slot(&scaled, SLOT_GRAD_O, factor);
    scale_slot(&scaled, SLOT_GRAD_STATE_OUT, factor);
    expect_run(&one);
    expect_run(&scaled);
    for (int which = SLOT_FIRST_OUTPUT; which < SLOT_COUNT; which++) {
        if (one.x[which]) {
            scale_slot(&one, (slot)which, factor);
            expect_same("scaled gradients", &scaled, (slot)which, one.x[which]);
        }
    }
    values_free(&one);
    values_free(&scaled);
}

/* Has the slot a row for each token? */
static int of_tokens(const values *v, slot which)
{
    const int gate = which == SLOT_LOG_DECAY || which == SLOT_GRAD_LOG_DECAY;
    return !(which >= SLOT_Z && which < SLOT_O) && which != SLOT_STATE_IN && which != SLOT_STATE_OUT &&
           which != SLOT_GRAD_STATE_IN && which != SLOT_GRAD_STATE_OUT && which != SLOT_RIDGE &&
           which != SLOT_GRAD_RIDGE && which != SLOT_GRAD_SCALE &&
           !(gate && spec_recurrence_of(&v->spec).gate == SPEC_GATE_HEAD);
}

values part_of(const values *v, int64_t first, int64_t count)
{
    spec s = v->spec;
    s.len_q = s.len_kv = count;
    values part = values_make(&s);
    for (int which = 0; which < SLOT_FIRST_OUTPUT; which++) {
        if (!v->x[which]) continue;
        const shape to = slot_shape(&part, (slot)which);
        const int64_t skip = of_tokens(v, (slot)which) ? first : 0;
        for (int64_t n = 0; n < to.batch * to.heads; n++) {
            if (to.tokens > 0) {
                memcpy(slot_at(&part, (slot)which, n / to.heads, n % to.heads, 0),
                       slot_at(v, (slot)which, n / to.heads, n % to.heads, skip),
                       (size_t)(to.tokens * to.channels) * sizeof(double));
            }
        }
    }
    return part;
}

void expect_part(const char *what, const values *v, const values *part, slot which, int64_t first)
{
    const shape a = slot_shape(part, which), whole = slot_shape(v, which);
    for (int64_t n = 0; n < a.batch * a.heads; n++) {
        expect_same_rows(what, v, which, n * whole.tokens + (of_tokens(v, which) ? first : 0),
                         part->x[which] + n * a.tokens * a.channels, a.tokens);
    }
}

void carry(values *to, slot input, const values *from, slot output)
{
    memcpy(to->x[input], from->x[output], (size_t)slot_size(to, input) * sizeof(double));
}

static void split_forward(const values *whole, int64_t at)
{
    values first = part_of(whole, 0, at), rest = part_of(whole, at, whole->spec.len_q - at);
    expect_run(&first);
    carry(&rest, SLOT_STATE_IN, &first, SLOT_STATE_OUT);
    expect_run(&rest);
    expect_part("before the split", whole, &first, SLOT_O, 0);
    expect_part("after the split", whole, &rest, SLOT_O, at);
    expect_same("the last state", whole, SLOT_STATE_OUT, rest.x[SLOT_STATE_OUT]);
    values_free(&first);
    values_free(&rest);
}

/* The gradient of the state goes back over the split. */
static void split_backward(const values *whole, int64_t at)
{
    static const slot rows[] = { SLOT_GRAD_Q, SLOT_GRAD_K, SLOT_GRAD_V, SLOT_GRAD_BETA, SLOT_GRAD_LOG_DECAY };
    values first = part_of(whole, 0, at), rest = part_of(whole, at, whole->spec.len_q - at);
    spec s = first.spec;
    s.pass = LOAM_FORWARD;
    values forward = values_like(&s, &first);
    expect_run(&forward);
    carry(&rest, SLOT_STATE_IN, &forward, SLOT_STATE_OUT);
    expect_run(&rest);
    carry(&first, SLOT_GRAD_STATE_OUT, &rest, SLOT_GRAD_STATE_IN);
    expect_run(&first);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const int of_heads = rows[i] == SLOT_GRAD_LOG_DECAY &&
                             spec_recurrence_of(&whole->spec).gate == SPEC_GATE_HEAD;
        if (whole->x[rows[i]] && !of_heads) {
            expect_part("before the split", whole, &first, rows[i], 0);
            expect_part("after the split", whole, &rest, rows[i], at);
        }
    }
    expect_same("the first state", whole, SLOT_GRAD_STATE_IN, first.x[SLOT_GRAD_STATE_IN]);
    values_free(&first);
    values_free(&rest);
    values_free(&forward);
}

void expect_split(const values *whole, int64_t at)
{
    (whole->spec.pass == LOAM_BACKWARD ? split_backward : split_forward)(whole, at);
}

static values part_alone(const values *packed, int64_t b)
{
    const sequence q = values_sequence(packed, b);
    spec s = packed->spec;
    s.packed = 0;
    s.batch = 1;
    s.len_q = s.len_kv = q.len_q;
    values one = values_make(&s);
    for (int which = 0; which < SLOT_FIRST_OUTPUT; which++) {
        if (!one.x[which]) continue;
        const shape from = slot_shape(packed, (slot)which), to = slot_shape(&one, (slot)which);
        const int states = which == SLOT_STATE_IN || which == SLOT_GRAD_STATE_OUT;
        for (int64_t h = 0; h < to.heads && to.tokens > 0; h++) {
            const int64_t skip = states || from.tokens == 1 || !of_tokens(packed, (slot)which) ? 0 : q.q0;
            memcpy(slot_at(&one, (slot)which, 0, h, 0), slot_at(packed, (slot)which, states ? b : 0, h, skip),
                   (size_t)(to.tokens * to.channels) * sizeof(double));
        }
    }
    return one;
}

static void expect_sequence(const values *packed, const values *one, int64_t b)
{
    static const slot rows[] = { SLOT_O, SLOT_GRAD_Q, SLOT_GRAD_K, SLOT_GRAD_V, SLOT_GRAD_BETA };
    static const slot states[] = { SLOT_STATE_OUT, SLOT_GRAD_STATE_IN };
    const sequence q = values_sequence(packed, b);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (one->x[rows[i]]) expect_part("a packed sequence", packed, one, rows[i], q.q0);
    for (size_t i = 0; i < 2; i++) {
        if (one->x[states[i]]) {
            const int64_t n = slot_size(one, states[i]) / spec_state_width(&packed->spec);
            expect_same_rows("a packed sequence", packed, states[i], b * n, one->x[states[i]], n);
        }
    }
}

/* ------------------------------------------------------------------ places */

static int cuda_runs(void)
{
    loam_kernel_info row;
    for (int i = 0; loam_kernel_at(i, &row) == LOAM_OK; i++)
        if (row.available && strcmp(row.backend, "cuda") == 0) return 1;
    return 0;
}

void expect_separate(const spec *s)
{
    values packed = values_make(s);
    expect_run(&packed);
    for (int64_t b = 0; b < s->batch; b++) {
        values one = part_alone(&packed, b);
        expect_run(&one);
        expect_sequence(&packed, &one, b);
        values_free(&one);
    }
    values_free(&packed);
}

test_place place_now = { "CPU, f32", LOAM_BACKEND_CPU, LOAM_F32, 48, 70 };

int next_place(void)
{
    static const test_place on_gpu[] = { { "CUDA, f32", LOAM_BACKEND_CUDA, LOAM_F32, 20, 9 },
                                         { "CUDA, bf16, square", LOAM_BACKEND_CUDA, LOAM_BF16, 64, 64 },
                                         { "CUDA, bf16, narrow", LOAM_BACKEND_CUDA, LOAM_BF16, 40, 96 } };
    static size_t next;
    if (next == sizeof on_gpu / sizeof on_gpu[0] || !cuda_runs()) return 0;
    place_now = on_gpu[next++];
    return 1;
}
