/* SPDX-License-Identifier: MIT
 * The forward pass against the quadratic form: no state, but all pairs of tokens,
 *
 *     <x, y>_ti = sum_c x_c y_c e^{g_{i+1,c} + ... + g_{t,c}}
 *     u_t = beta_t (v_t - [delta rule] (sum_{i<t} <k_t, k_i> u_i + S_0 e^{..} k_t))
 *     o_t = sum_{i<=t} <x_t, k_i> u_i + S_0 e^{..} x_t
 *
 * with x_t = scale q_t, solved by elimination from the explicit sum H_t for
 * MesaNet, and divided by the same with values 1 where the read is normalised. */
#include "tests/recurrent/cases.h"
#include "tests/support/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CASES = 120, LEN = 150 };
#define TOLERANCE 1e-11

/* One sequence of one head. */
typedef struct head {
    const values *v;
    sequence s;
    int64_t b, h, d, dv;
    double *q, *k; /* features [len, d]; q scaled */
    double *u;     /* [len, dv + 1]: the last is that of value 1 */
} head;

static double log_decay(const head *x, int64_t t, int64_t c)
{
    switch (spec_recurrence_of(&x->v->spec).gate) {
    case SPEC_NO_GATE: return 0;
    case SPEC_GATE_HEAD: return x->v->x[SLOT_LOG_DECAY][x->h];
    case SPEC_GATE_TOKEN: return *slot_at(x->v, SLOT_LOG_DECAY, x->s.batch, x->h, x->s.q0 + t);
    case SPEC_GATE_CHANNEL: break;
    }
    return slot_at(x->v, SLOT_LOG_DECAY, x->s.batch, x->h, x->s.q0 + t)[c];
}

/* What is left at token t of channel c as it was after token i (-1: at the beginning). */
static double left(const head *x, int64_t t, int64_t i, int64_t c)
{
    double sum = 0;
    for (int64_t l = i + 1; l <= t; l++)
        sum += log_decay(x, l, c);
    return exp(sum);
}

static double beta_of(const head *x, int64_t t)
{
    return x->v->x[SLOT_BETA] ? *slot_at(x->v, SLOT_BETA, x->s.batch, x->h, x->s.q0 + t) : 1;
}

static double paired(const head *x, const double *a, int64_t t, int64_t i)
{
    double sum = 0;
    for (int64_t c = 0; c < x->d; c++)
        sum += a[c] * x->k[i * x->d + c] * left(x, t, i, c);
    return sum;
}

/* Row r of the first state, times what is left of it, times a. */
static double from_start(const head *x, const double *a, int64_t t, int64_t r)
{
    double sum = 0;
    for (int64_t c = 0; x->v->spec.state && c < x->d; c++)
        sum += slot_at(x->v, SLOT_STATE_IN, x->b, x->h, r)[c] * left(x, t, -1, c) * a[c];
    return sum;
}

static void features(const spec *s, const double *row, double factor, double *out)
{
    double norm = 0;
    for (int64_t c = 0; c < s->dim_qk; c++)
        norm = hypot(norm, row[c]);
    for (int64_t c = 0; c < s->dim_qk; c++) {
        const double elu = row[c] > 0 ? 1 + row[c] : exp(row[c]);
        out[c] = factor * (s->feature_map == LOAM_FEATURES_ELU    ? elu
                           : s->feature_map == LOAM_FEATURES_UNIT ? row[c] / norm
                                                                  : row[c]);
    }
}

static double scale_of(const spec *s)
{
    return s->scale != 0                               ? s->scale
           : s->normalise || s->mechanism == LOAM_MESA ? 1
                                                       : 1 / sqrt((double)s->dim_qk);
}

static double ridge_at(const values *v, int64_t h, int64_t c)
{
    const int64_t axes = v->spec.ridge_axes;
    return !v->x[SLOT_RIDGE]           ? v->spec.ridge
           : axes == LOAM_RIDGE_NUMBER ? v->x[SLOT_RIDGE][0]
           : axes == LOAM_RIDGE_HEAD   ? v->x[SLOT_RIDGE][h]
                                       : v->x[SLOT_RIDGE][h * v->spec.dim_qk + c];
}

/* x <- A^-1 x by elimination with pivots. */
static void eliminate(double *A, double *x, int64_t n)
{
    for (int64_t p = 0; p < n; p++) {
        int64_t best = p;
        for (int64_t r = p + 1; r < n; r++)
            best = fabs(A[r * n + p]) > fabs(A[best * n + p]) ? r : best;
        for (int64_t c = 0; c <= n; c++) {
            double *a = c < n ? &A[p * n + c] : &x[p], *b = c < n ? &A[best * n + c] : &x[best];
            const double other = *a;
            *a = *b, *b = other;
        }
        for (int64_t r = 0; r < n; r++) {
            const double factor = r == p ? 0 : A[r * n + p] / A[p * n + p];
            for (int64_t c = 0; c < n; c++)
                A[r * n + c] -= factor * A[p * n + c];
            x[r] -= factor * x[p];
        }
    }
    for (int64_t r = 0; r < n; r++)
        x[r] /= A[r * n + r];
}

/* q of token t becomes (H_t + Lambda)^-1 q. */
static void solve(const head *x, int64_t t, double *q)
{
    double *A = memory_zeroed((size_t)(x->d * x->d), sizeof *A);
    for (int64_t r = 0; r < x->d; r++) {
        for (int64_t c = 0; c < x->d; c++) {
            double *a = &A[r * x->d + c];
            *a = r == c ? ridge_at(x->v, x->h, c) : 0;
            if (x->v->spec.state)
                *a += slot_at(x->v, SLOT_STATE_IN, x->b, x->h, x->dv + r)[c] * left(x, t, -1, c);
            for (int64_t i = 0; i <= t; i++)
                *a += beta_of(x, i) * left(x, t, i, c) * x->k[i * x->d + r] * x->k[i * x->d + c];
        }
    }
    eliminate(A, q, x->d);
    free(A);
}

static double read_row(const head *x, const double *a, int64_t t, int64_t last, int64_t r)
{
    double sum = r < x->dv || x->v->spec.normalise ? from_start(x, a, t, r) : 0;
    for (int64_t i = 0; i <= last; i++)
        sum += paired(x, a, t, i) * x->u[i * (x->dv + 1) + r];
    return sum;
}

static void one_head(const values *v, int64_t b, int64_t h, double *want)
{
    const spec *s = &v->spec;
    head x = { .v = v, .s = values_sequence(v, b), .b = b, .h = h, .d = s->dim_qk, .dv = s->dim_v };
    const size_t len = (size_t)x.s.len_q;
    const int64_t key_head = h / (spec_heads_v(s) / s->heads_q);
    x.q = memory_zeroed(len * (size_t)x.d, sizeof(double));
    x.k = memory_zeroed(len * (size_t)x.d, sizeof(double));
    x.u = memory_zeroed(len * (size_t)(x.dv + 1), sizeof(double));
    for (int64_t t = 0; t < x.s.len_q; t++) {
        double *q = x.q + t * x.d, *k = x.k + t * x.d;
        features(s, slot_at(v, SLOT_Q, x.s.batch, key_head, x.s.q0 + t), scale_of(s), q);
        features(s, slot_at(v, SLOT_K, x.s.batch, key_head, x.s.q0 + t), 1, k);
        for (int64_t r = 0; r <= x.dv; r++) {
            const double value = r < x.dv ? slot_at(v, SLOT_V, x.s.batch, h, x.s.q0 + t)[r] : 1;
            const double known = spec_recurrence_of(s).delta && r < x.dv ? read_row(&x, k, t, t - 1, r) : 0;
            x.u[t * (x.dv + 1) + r] = beta_of(&x, t) * (value - known);
        }
        if (s->mechanism == LOAM_MESA) solve(&x, t, q);
        const shape a = slot_shape(v, SLOT_O);
        double *o = want + ((x.s.batch * a.heads + h) * a.tokens + x.s.q0 + t) * x.dv;
        for (int64_t r = 0; r < x.dv; r++) {
            const double divisor = s->normalise ? read_row(&x, q, t, t, x.dv) : 1;
            o[r] = divisor != 0 ? read_row(&x, q, t, t, r) / divisor : 0;
        }
    }
    free(x.q);
    free(x.k);
    free(x.u);
}

static void check_case(const spec *s)
{
    values v = values_make(s);
    expect_run(&v);
    double *want = memory_zeroed((size_t)slot_size(&v, SLOT_O), sizeof *want);
    for (int64_t b = 0; b < s->batch; b++)
        for (int64_t h = 0; h < spec_heads_v(s); h++)
            one_head(&v, b, h, want);
    expect_near("the quadratic form", &v, SLOT_O, want, TOLERANCE, 1e-3);
    free(want);
    values_free(&v);
}

static void recurrence_is_the_quadratic_form(void **state)
{
    (void)state;
    for (int mechanism = LOAM_LINEAR; mechanism < spec_mechanisms(); mechanism++) {
        for (int64_t number = 0; number < CASES; number++) {
            spec s = recurrent_case((loam_mechanism)mechanism, LOAM_FORWARD, number);
            s.data = number % 2 ? DATA_STEEP
                                : DATA_NORMAL; /* gates of 0, -1000 and -inf, beta of 0, 1 and 2 */
            check_case(&s);
        }
        spec s = recurrent_spec((loam_mechanism)mechanism, LOAM_FORWARD, 70, 12, 7);
        check_case(&s);
        s.data = DATA_STEEP;
        check_case(&s);
    }
}

/* All pairs of the tokens of a chunk, and a state for all that was before. */
static void chunk_by_chunk(const values *whole, int64_t chunk)
{
    const double *state = whole->x[SLOT_STATE_IN];
    values part = { .cu_q = NULL };
    for (int64_t at = 0; at < LEN; at += chunk) {
        values next = part_of(whole, at, at + chunk < LEN ? chunk : LEN - at);
        memcpy(next.x[SLOT_STATE_IN], state, (size_t)slot_size(&next, SLOT_STATE_IN) * sizeof *state);
        expect_run(&next);
        expect_part("a chunk", whole, &next, SLOT_O, at);
        double *want = memory_zeroed((size_t)slot_size(&next, SLOT_O), sizeof *want);
        one_head(&next, 0, 0, want);
        expect_near("the quadratic form of a chunk", &next, SLOT_O, want, TOLERANCE, 1e-3);
        free(want);
        values_free(&part);
        part = next;
        state = part.x[SLOT_STATE_OUT];
    }
    values_free(&part);
}

static void recurrence_is_the_chunk_form(void **state)
{
    (void)state;
    for (int mechanism = LOAM_LINEAR; mechanism < spec_mechanisms(); mechanism++) {
        for (int hostile = 0; hostile < 2; hostile++) {
            spec s = recurrent_spec((loam_mechanism)mechanism, LOAM_FORWARD, LEN, 12, 7);
            s.data = hostile ? DATA_STEEP : DATA_NORMAL;
            values whole = values_make(&s);
            expect_run(&whole);
            for (int64_t chunk = 16; chunk <= 64; chunk *= 2)
                chunk_by_chunk(&whole, chunk);
            values_free(&whole);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recurrence_is_the_quadratic_form),
        cmocka_unit_test(recurrence_is_the_chunk_form),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
