/* SPDX-License-Identifier: MIT
 * Positive random features: against the sum over all pairs of tokens and features; as an estimate of softmax;
 * in parts, in steps, packed, by any threads, at any place; on hostile numbers. */
#include "tests/recurrent/cases.h"
#include "tests/support/compare.h"
#include "tests/support/memory.h"
#include "tests/support/random.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------ the equations once more */

static double scale_of(const spec *s) { return s->scale != 0 ? s->scale : 1 / sqrt((double)s->dim_qk); }

/* sqrt(scale) A (row - shift). */
static void map_row(const values *v, slot matrix, int64_t n, const double *row, const double *shift,
                    double *to)
{
    const int64_t d = v->spec.dim_qk;
    for (int64_t c = 0; c < d; c++) {
        to[c] = 0;
        for (int64_t j = 0; j < d; j++) {
            const double A = v->x[matrix] ? slot_at(v, matrix, 0, n, c)[j] : c == j;
            to[c] += sqrt(scale_of(&v->spec)) * A * (row[j] - (shift ? shift[j] : 0));
        }
    }
}

/* One query head of one sequence: the logarithm of what it gives to key j, sum_m e^{a_jm + b_tm}. */
typedef struct pair_sum {
    const values *v;
    sequence s;
    int64_t h, g, n;
} pair_sum;

static double log_weight(const pair_sum *x, int64_t t, int64_t j)
{
    const values *v = x->v;
    const int64_t d = v->spec.dim_qk, features = spec_state_width(&v->spec);
    double q[64], k[64], sum = 0, norm2 = 0, most = -HUGE_VAL, all[64];
    const double *shift = v->x[SLOT_SHIFT] ? slot_at(v, SLOT_SHIFT, 0, x->n, 0) : NULL;
    map_row(v, SLOT_BALANCE, x->n, slot_at(v, SLOT_Q, x->s.batch, x->h, x->s.q0 + t), NULL, q);
    map_row(v, SLOT_BALANCE_KEYS, x->n, slot_at(v, SLOT_K, x->s.batch, x->g, x->s.q0 + j), shift, k);
    for (int64_t c = 0; c < d; c++)
        norm2 += k[c] * k[c];
    for (int64_t m = 0; m < features; m++) {
        all[m] = v->x[SLOT_LOG_ALPHA] ? slot_at(v, SLOT_LOG_ALPHA, 0, x->n, 0)[m] : 0;
        for (int64_t c = 0; c < d; c++)
            all[m] += slot_at(v, SLOT_Z, 0, x->n, m)[c] * (q[c] + k[c]);
        all[m] -= norm2 / 2;
        most = fmax(most, all[m]);
    }
    for (int64_t m = 0; m < features; m++)
        sum += exp(all[m] - most);
    return most + log(sum);
}

/* want <- the mean of the values with these weights, or with those of softmax. */
static void weigh(const pair_sum *x, int64_t t, int exact, double *want)
{
    const spec *s = &x->v->spec;
    double w[512], most = -HUGE_VAL, sum = 0;
    for (int64_t j = 0; j <= t; j++) {
        const double *q = slot_at(x->v, SLOT_Q, x->s.batch, x->h, x->s.q0 + t),
                     *k = slot_at(x->v, SLOT_K, x->s.batch, x->g, x->s.q0 + j);
        w[j] = 0;
        for (int64_t c = 0; exact && c < s->dim_qk; c++)
            w[j] += scale_of(s) * q[c] * k[c];
        w[j] = exact ? w[j] : log_weight(x, t, j);
        most = fmax(most, w[j]);
    }
    memset(want, 0, (size_t)s->dim_v * sizeof *want);
    for (int64_t j = 0; j <= t; j++) {
        const double p = exp(w[j] - most);
        for (int64_t c = 0; c < s->dim_v; c++)
            want[c] += p * slot_at(x->v, SLOT_V, x->s.batch, x->g, x->s.q0 + j)[c];
        sum += p;
    }
    for (int64_t c = 0; c < s->dim_v; c++)
        want[c] /= sum;
}

/* What o should be, dense; malloc's. */
static double *weigh_all(const values *v, int exact)
{
    const spec *s = &v->spec;
    const shape a = slot_shape(v, SLOT_O);
    double *want = memory_zeroed((size_t)slot_size(v, SLOT_O), sizeof *want);
    for (int64_t b = 0; b < s->batch; b++) {
        for (int64_t h = 0; h < s->heads_q; h++) {
            pair_sum x = { v, values_sequence(v, b), h, h / (s->heads_q / s->heads_kv), 0 };
            x.n = s->features_shared ? x.g : h;
            for (int64_t t = 0; t < x.s.len_q; t++)
                weigh(&x, t, exact, want + ((x.s.batch * a.heads + h) * a.tokens + x.s.q0 + t) * a.channels);
        }
    }
    return want;
}

static void sums_over_pairs(void **state)
{
    (void)state;
    for (int64_t number = 0; number < 32; number++) {
        spec s = positive_spec(LOAM_FORWARD, 5 + 9 * number, 2 + number % 5, 3, 1 + number % 11);
        s.state = 0;
        s.backend = number % 2 ? LOAM_BACKEND_CPU : LOAM_BACKEND_REFERENCE;
        s.dtype = number % 2 ? LOAM_F32 : LOAM_F64;
        s.features_shared = number / 2 % 2;
        s.with_alpha = number / 4 % 2, s.with_shift = number / 8 % 2, s.with_balance = number / 16 % 2;
        s.packed = number % 3 == 0;
        s.batch = 1 + s.packed;
        s.scale = number % 5 == 0 ? 0.4 : 0;
        s.seed = number + 1;
        values v = values_make(&s);
        expect_run(&v);
        double *want = weigh_all(&v, 0);
        expect_near("the sum over pairs", &v, SLOT_O, want, number % 2 ? 1e-5 : 1e-12, 0);
        free(want);
        values_free(&v);
    }
}

/* ------------------------------------------------------------------ as an estimate */

static void set_projection(values *v, loam_projection projection, uint64_t seed)
{
    const shape a = slot_shape(v, SLOT_Z);
    const loam_view z = loam_dense_out(v->x[SLOT_Z], a.heads, a.tokens, a.channels);
    if (loam_projection_draw(projection, seed, a.heads, a.tokens, a.channels, LOAM_F64, &z, NULL))
        fail_msg("projection");
}

/* (1/M) sum_m e^{b_m + a_m} has the mean e^{scale q.k}: with one key the state is e^{a_m - c_m}, and c. */
static void unbiased(void **state)
{
    (void)state;
    enum { M = 32, DRAWS = 400, D = 4 };
    for (int projection = 0; projection <= LOAM_PROJECTION_ORTHOGONAL; projection++) {
        spec s = positive_spec(LOAM_FORWARD, 1, D, 1, M);
        s.heads_q = s.heads_kv = 1;
        s.state = s.with_alpha = s.with_shift = 0;
        values v = values_make(&s);
        double q[D], dot = 0, sum = 0, square = 0;
        for (int64_t c = 0; c < D; c++)
            dot += scale_of(&s) * v.x[SLOT_Q][c] * v.x[SLOT_K][c];
        map_row(&v, SLOT_BALANCE, 0, v.x[SLOT_Q], NULL, q);
        for (int draw = 0; draw < DRAWS; draw++) {
            double kernel = 0, norm2 = 0;
            set_projection(&v, (loam_projection)projection, (uint64_t)draw);
            expect_run(&v);
            for (int64_t c = 0; c < D; c++)
                norm2 += q[c] * q[c] / 2;
            for (int64_t m = 0; m < M; m++) {
                double b = -norm2;
                for (int64_t c = 0; c < D; c++)
                    b += v.x[SLOT_Z][m * D + c] * q[c];
                kernel += exp(b + v.x[SLOT_STATE_OUT][2 * M + m]) * v.x[SLOT_STATE_OUT][M + m] / M;
            }
            sum += kernel, square += kernel * kernel;
        }
        const double mean = sum / DRAWS, error = sqrt((square / DRAWS - mean * mean) / DRAWS);
        if (!(fabs(mean - exp(dot)) < 4 * error && error < 0.1 * exp(dot)))
            fail_msg("projection %d: %g +- %g, expected %g", projection, mean, error, exp(dot));
        values_free(&v);
    }
}

/* The distance of o from softmax, relative, with small queries and keys. */
static double distance_from_softmax(loam_projection projection, int64_t features, int with_shift,
                                    int with_balance)
{
    spec s = positive_spec(LOAM_FORWARD, 60, 3, 4, features);
    s.state = s.with_alpha = 0;
    s.with_shift = with_shift, s.with_balance = with_balance;
    values v = values_make(&s);
    scale_slot(&v, SLOT_Q, 0.5);
    scale_slot(&v, SLOT_K, 0.5);
    scale_slot(&v, SLOT_SHIFT, 0.3);
    set_projection(&v, projection, 3);
    expect_run(&v);
    double *want = weigh_all(&v, 1);
    const int64_t n = slot_size(&v, SLOT_O);
    const double distance = compare_distance(want, v.x[SLOT_O], n) / compare_norm(want, n);
    free(want);
    values_free(&v);
    return distance;
}

/* The more features the closer, whatever the shift of the keys and the balance of keys and queries, which
 * change neither what is estimated. */
static void converges_to_softmax(void **state)
{
    (void)state;
    for (int projection = 0; projection <= LOAM_PROJECTION_DCT; projection++) {
        for (int with = 0; with < 4; with++) {
            const double few = distance_from_softmax((loam_projection)projection, 8, with % 2, with / 2),
                         many = distance_from_softmax((loam_projection)projection, 512, with % 2, with / 2);
            if (!(many < 0.1 && many < few / 3))
                fail_msg("projection %d, with %d: %g with 8 features, %g with 512", projection, with, few,
                         many);
        }
    }
}

/* ------------------------------------------------------------------ parts, threads, places */

/* On the CPU at first. */
static spec on_rows(int pass, int64_t len)
{
    spec s = positive_spec((loam_pass)pass, len, 20, 9, 37);
    s.backend = place_now.backend;
    s.dtype = LOAM_F32;
    s.threads = 2;
    return s;
}

static void split(void **state)
{
    (void)state;
    for (int pass = LOAM_FORWARD; pass <= LOAM_BACKWARD; pass++) {
        for (int shared = 0; shared < 2; shared++) {
            spec s = positive_spec((loam_pass)pass, 11, 4, 3, 6);
            s.features_shared = shared;
            values whole = values_make(&s);
            expect_run(&whole);
            for (int64_t at = 1; at < 11; at += 3)
                expect_split(&whole, at);
            values_free(&whole);
            s = on_rows(pass, 150);
            s.features_shared = 0;
            whole = values_make(&s);
            expect_run(&whole);
            for (int64_t at = 64; at < 150; at += 64)
                expect_split(&whole, at);
            values_free(&whole);
        }
    }
}

/* A token at a time, from nothing and from a state: the same within float32, whatever rises on the way. */
static void decode_is_prefill(void **state)
{
    (void)state;
    enum { STEPS = 90 };
    for (int with = 0; with < 4; with++) {
        spec s = on_rows(LOAM_FORWARD, STEPS);
        s.features_shared = with % 2, s.state = with / 2;
        values whole = values_make(&s);
        scale_slot(&whole, SLOT_K, 4);
        expect_run(&whole);
        s.state = 1;
        s.pass = LOAM_DECODE;
        values kept = values_like(&s, &whole);
        const int64_t n = s.dim_v;
        for (int64_t t = 0; t < STEPS; t++) {
            values step = part_of(&kept, t, 1);
            expect_run(&step);
            carry(&kept, SLOT_STATE_IN, &step, SLOT_STATE_OUT);
            for (int64_t h = 0; h < s.heads_q; h++) {
                const double *want = slot_at(&whole, SLOT_O, 0, h, t),
                             far = compare_distance(want, step.x[SLOT_O] + h * n, n);
                if (!(far < 2e-5 * (1 + compare_norm(want, n)))) fail_msg("step %d: %g", (int)t, far);
            }
            values_free(&step);
        }
        expect_near("the last state", &whole, SLOT_STATE_OUT, kept.x[SLOT_STATE_IN], 1e-5, 0);
        values_free(&whole);
        values_free(&kept);
    }
}

static void packed_is_separate(void **state)
{
    (void)state;
    for (int pass = LOAM_FORWARD; pass <= LOAM_DECODE; pass++) {
        for (int shared = 0; shared < 2; shared++) {
            spec s = on_rows(pass, 90);
            s.features_shared = shared;
            s.packed = 1;
            s.batch = 4;
            expect_separate(&s);
        }
    }
}

static void any_number_of_threads(void **state)
{
    (void)state;
    for (int pass = LOAM_FORWARD; pass <= LOAM_DECODE; pass++) {
        spec s = on_rows(pass, 300);
        s.features_shared = pass % 2;
        s.batch = 2;
        expect_any_threads(s, 5);
    }
}

/* Parameters and their gradients are of the whole batch. */
static int of_all(slot which)
{
    return (which >= SLOT_Z && which < SLOT_O) || which == SLOT_GRAD_Z || which == SLOT_GRAD_LOG_ALPHA;
}

static void any_place_in_a_batch(void **state)
{
    (void)state;
    enum { BATCH = 3 };
    for (int pass = LOAM_FORWARD; pass <= LOAM_DECODE; pass++) {
        spec s = on_rows(pass, 100);
        values alone = values_make(&s);
        expect_run(&alone);
        s.batch = BATCH;
        for (int64_t place = 0; place < BATCH; place++) {
            s.seed = 40 + place;
            values batch = values_make(&s);
            for (int which = 0; which < SLOT_FIRST_OUTPUT; which++) {
                const int64_t n = batch.x[which] ? slot_size(&alone, (slot)which) : 0;
                if (n) {
                    memcpy(batch.x[which] + (of_all((slot)which) ? 0 : place * n), alone.x[which],
                           (size_t)n * sizeof(double));
                }
            }
            expect_run(&batch);
            for (int which = SLOT_FIRST_OUTPUT; which < SLOT_COUNT; which++) {
                const shape a = slot_shape(&alone, (slot)which);
                if (batch.x[which] && !of_all((slot)which)) {
                    expect_same_rows("a place in a batch", &batch, (slot)which, place * a.heads * a.tokens,
                                     alone.x[which], a.heads * a.tokens);
                }
            }
            values_free(&batch);
        }
        values_free(&alone);
    }
}

static void gradients_are_linear(void **state)
{
    (void)state;
    const spec s = on_rows(LOAM_BACKWARD, 100);
    expect_linear_backward(&s, 0x1p10);
    expect_linear_backward(&s, 0x1p-10);
}

/* Heads that share features are heads with the same features, and their gradients of these the sum. */
static void shared_is_repeated(void **state)
{
    (void)state;
    for (int pass = LOAM_FORWARD; pass <= LOAM_BACKWARD; pass++) {
        spec s = on_rows(pass, 70);
        s.state = 0;
        s.features_shared = 1;
        values shared = values_make(&s);
        s.features_shared = 0;
        values each = values_like(&s, &shared);
        for (int which = SLOT_Z; which < SLOT_O; which++) {
            const int64_t n = slot_size(&shared, (slot)which) / s.heads_kv;
            for (int64_t h = 0; h < s.heads_q; h++)
                memcpy(each.x[which] + h * n, shared.x[which] + h / 2 * n, (size_t)n * sizeof(double));
        }
        expect_run(&shared);
        expect_run(&each);
        for (int which = SLOT_O; which <= SLOT_GRAD_V; which++)
            if (each.x[which]) expect_near("shared", &shared, (slot)which, each.x[which], 2e-5, 0);
        for (int which = SLOT_GRAD_Z; pass == LOAM_BACKWARD && which <= SLOT_GRAD_LOG_ALPHA; which++) {
            const int64_t n = slot_size(&shared, (slot)which) / s.heads_kv;
            for (int64_t e = 0; e < 2 * n; e++) {
                double *x = each.x[which];
                x[e] = x[e / n * 2 * n + e % n] + x[e / n * 2 * n + n + e % n];
            }
            expect_near("shared", &shared, (slot)which, each.x[which], 2e-5, 0.01);
        }
        values_free(&shared);
        values_free(&each);
    }
}

/* ------------------------------------------------------------------ hostile numbers */

/* Long keys: exponents of some thousands, which float32 keeps as well as short ones. */
static void long_keys(void **state)
{
    (void)state;
    spec s = on_rows(LOAM_BACKWARD, 150);
    values got = values_make(&s);
    scale_slot(&got, SLOT_K, 30);
    scale_slot(&got, SLOT_Q, 10);
    s.backend = LOAM_BACKEND_REFERENCE;
    values want = values_like(&s, &got);
    expect_run(&got);
    expect_run(&want);
    for (int which = SLOT_GRAD_Q; which < SLOT_COUNT; which++)
        if (got.x[which]) expect_near("long keys", &got, (slot)which, want.x[which], 1e-4, 0.01);
    values_free(&got);
    values_free(&want);
}

/* Numbers of every size that the type has: all results are finite, and a mean of ones is one. */
static void hostile(void **state)
{
    (void)state;
    static const double sizes[] = { 0, 1e-30, 1, 1e3, 1e5, 1e15, 1e30, FLT_MAX };
    for (int pass = LOAM_FORWARD; pass <= LOAM_DECODE; pass++) {
        for (int which = 0; which < 24; which++) {
            spec s = on_rows(pass, 80);
            const int reference = which % 3 == 2;
            s.backend = reference ? LOAM_BACKEND_REFERENCE : place_now.backend;
            s.dtype = reference ? LOAM_F64 : LOAM_F32;
            s.state = 0;
            s.seed = which;
            values v = values_make(&s);
            static const slot inputs[] = { SLOT_Q, SLOT_K, SLOT_Z, SLOT_SHIFT, SLOT_LOG_ALPHA };
            rng r = rng_make(77, (uint64_t)which);
            for (int i = 0; i < 5; i++) {
                for (int64_t e = 0; which >> i & 1 && e < slot_size(&v, inputs[i]); e++) {
                    const double size = sizes[rng_int(&r, 0, 7)];
                    v.x[inputs[i]][e] = (rng_one_in(&r, 2) ? -size : size) * (reference ? 5e269 : 1);
                }
            }
            fill(&v, SLOT_V, 1);
            expect_run(&v);
            for (int out = SLOT_FIRST_OUTPUT; out < SLOT_COUNT; out++)
                for (int64_t e = 0; v.x[out] && out != SLOT_INFO && e < slot_size(&v, (slot)out); e++)
                    if (!isfinite(v.x[out][e]))
                        fail_msg("case %d: %s[%d] is %g", which, slot_names[out], (int)e, v.x[out][e]);
            for (int64_t e = 0; v.x[SLOT_O] && e < slot_size(&v, SLOT_O); e++)
                assert_true(fabs(v.x[SLOT_O][e] - 1) < 1e-5);
            values_free(&v);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_over_pairs),
        cmocka_unit_test(unbiased),
        cmocka_unit_test(converges_to_softmax),
        cmocka_unit_test(split),
        cmocka_unit_test(decode_is_prefill),
        cmocka_unit_test(packed_is_separate),
        cmocka_unit_test(any_number_of_threads),
        cmocka_unit_test(any_place_in_a_batch),
        cmocka_unit_test(gradients_are_linear),
        cmocka_unit_test(shared_is_repeated),
        cmocka_unit_test(long_keys),
        cmocka_unit_test(hostile),
    };
    /* Also on a GPU. */
    const struct CMUnitTest anywhere[] = {
        cmocka_unit_test(decode_is_prefill),
        cmocka_unit_test(packed_is_separate),
        cmocka_unit_test(any_place_in_a_batch),
        cmocka_unit_test(gradients_are_linear),
        cmocka_unit_test(shared_is_repeated),
        cmocka_unit_test(long_keys),
        cmocka_unit_test(hostile),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    while (next_place())
        if (place_now.dtype == LOAM_F32)
            failed += cmocka_run_group_tests_name(place_now.name, anywhere, NULL, NULL);
    return failed;
}
