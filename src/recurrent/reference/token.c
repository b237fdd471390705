/* SPDX-License-Identifier: MIT */
#include "src/recurrent/reference/token.h"

#include "src/exact/cholesky.h"

#include <math.h>

/* A pivot of H + Lambda at or below this part of the largest diagonal entry counts as zero. */
#define LEAST_PIVOT 1e-14

ref_token ref_token_carve(const loam_problem *p, arena *pool)
{
    const size_t f64 = sizeof(double), d = (size_t)p->dim_qk, rows = (size_t)recurrent_state_rows(p);
    ref_token x = { .form = recurrent_form_of(p->mechanism),
                    .d = p->dim_qk,
                    .rows = recurrent_state_rows(p),
                    .dim_v = p->dim_v };
    x.q = arena_take(pool, d, f64);
    x.k = arena_take(pool, d, f64);
    x.decay = arena_take(pool, d, f64);
    x.w = arena_take(pool, rows, f64);
    x.err = arena_take(pool, rows, f64);
    x.x = arena_take(pool, d, f64);
    x.y = arena_take(pool, rows, f64);
    x.ridge = arena_take(pool, d, f64);
    x.decayed = arena_take(pool, rows * d, f64);
    x.factor = arena_take(pool, x.form->solved ? d * d : 0, f64);
    return x;
}

void ref_token_head(const loam_problem *p, const loam_args *a, int64_t h, ref_token *x)
{
    for (int64_t c = 0; x->form->solved && c < x->d; c++)
        x->ridge[c] = recurrent_ridge(p, a, h, c);
}

static double row_norm(const loam_problem *p, const loam_const_view *view, int64_t at)
{
    double sum = 0;
    for (int64_t c = 0; c < p->dim_qk; c++) {
        const double x = element_load(view->data, p->dtype, at + c);
        sum += x * x;
    }
    return sqrt(sum);
}

void ref_features(const loam_problem *p, const loam_const_view *view, int64_t at, double *phi)
{
    const double norm = p->feature_map == LOAM_FEATURES_UNIT ? row_norm(p, view, at) : 1;
    for (int64_t c = 0; c < p->dim_qk; c++) {
        const double x = element_load(view->data, p->dtype, at + c);
        switch (p->feature_map) {
        case LOAM_FEATURES_POSITIVE: /* which are made before (reference/positive.c) */
        case LOAM_FEATURES_IDENTITY: phi[c] = x; break;
        case LOAM_FEATURES_ELU: phi[c] = x > 0 ? x + 1 : exp(x); break;
        case LOAM_FEATURES_UNIT: phi[c] = norm > 0 ? x / norm : 0; break;
        }
    }
}

void ref_features_backward(const loam_problem *p, const loam_const_view *view, int64_t at, const double *phi,
                           double *x)
{
    if (p->feature_map == LOAM_FEATURES_ELU) {
        for (int64_t c = 0; c < p->dim_qk; c++)
            x[c] *= phi[c] > 1 ? 1 : phi[c];
    } else if (p->feature_map == LOAM_FEATURES_UNIT) {
        const double norm = row_norm(p, view, at), along = exact_dot(x, phi, p->dim_qk);
        for (int64_t c = 0; c < p->dim_qk; c++)
            x[c] = norm > 0 ? (x[c] - along * phi[c]) / norm : 0;
    }
}

static double log_decay(const loam_problem *p, const loam_args *a, const recurrent_seq *s, int64_t h,
                        int64_t t, int64_t c)
{
    const loam_dtype real = dtype_real(p->dtype);
    const loam_const_view *g = &a->log_decay;
    switch (recurrent_form_of(p->mechanism)->gate) {
    case GATE_NONE: return 0;
    case GATE_HEAD: return element_load(g->data, real, h * g->head);
    case GATE_TOKEN: return element_load(g->data, real, RECURRENT_AT(*g, s->b, h, s->first + t));
    case GATE_CHANNEL: return element_load(g->data, real, RECURRENT_AT(*g, s->b, h, s->first + t) + c);
    }
    return 0;
}

static void load_token(const loam_problem *p, const loam_args *a, const recurrent_seq *s, int64_t h,
                       int64_t t, ref_token *x)
{
    const int64_t key_head = recurrent_key_head(p, h), token = s->first + t;
    ref_features(p, &a->q, RECURRENT_AT(a->q, s->b, key_head, token), x->q);
    ref_features(p, &a->k, RECURRENT_AT(a->k, s->b, key_head, token), x->k);
    for (int64_t c = 0; c < x->d; c++)
        x->decay[c] = exp(log_decay(p, a, s, h, t, c));
    x->beta = x->form->beta
                  ? element_load(a->beta.data, dtype_real(p->dtype), RECURRENT_AT(a->beta, s->b, h, token))
                  : 1;
    for (int64_t r = 0; r < x->rows; r++) {
        x->w[r] = r < x->dim_v ? element_load(a->v.data, p->dtype, RECURRENT_AT(a->v, s->b, h, token) + r)
                  : x->form->solved ? x->k[r - x->dim_v]
                                    : 1;
    }
}

void ref_token_write(const loam_problem *p, const loam_args *a, const recurrent_seq *s, int64_t h, int64_t t,
                     ref_token *x, double *state)
{
    load_token(p, a, s, h, t, x);
    for (int64_t r = 0; r < x->rows; r++) {
        double *row = state + r * x->d, *decayed = x->decayed + r * x->d;
        for (int64_t c = 0; c < x->d; c++)
            decayed[c] = x->decay[c] * row[c];
        x->err[r] = x->w[r] - (x->form->delta ? exact_dot(decayed, x->k, x->d) : 0);
        for (int64_t c = 0; c < x->d; c++)
            row[c] = decayed[c] + x->beta * x->err[r] * x->k[c];
    }
}

/* factor <- the Cholesky factor of (H + H^T) / 2 + Lambda. Returns false if it is singular. */
static bool factor_system(ref_token *x, const double *state)
{
    const double *H = state + x->dim_v * x->d;
    double largest = 0;
    for (int64_t r = 0; r < x->d; r++) {
        for (int64_t c = 0; c <= r; c++)
            x->factor[r * x->d + c] = (H[r * x->d + c] + H[c * x->d + r]) / 2 + (r == c ? x->ridge[c] : 0);
        largest = fmax(largest, x->factor[r * x->d + r]);
    }
    return exact_factor(x->factor, x->d, LEAST_PIVOT * largest) == 0;
}

/* |(H + Lambda) x - x^| / |x^|. */
static double residual_of(const ref_token *x, const double *state, double scale)
{
    const double *H = state + x->dim_v * x->d;
    double wrong = 0, right = 0;
    for (int64_t r = 0; r < x->d; r++) {
        double sum = x->ridge[r] * x->x[r] - scale * x->q[r];
        for (int64_t c = 0; c < x->d; c++)
            sum += (H[r * x->d + c] + H[c * x->d + r]) / 2 * x->x[c];
        wrong += sum * sum;
        right += scale * x->q[r] * scale * x->q[r];
    }
    return right > 0 ? sqrt(wrong / right) : 0;
}

void ref_token_read(const loam_problem *p, ref_token *x, const double *state, double *out)
{
    x->info = (loam_row_info){ LOAM_ROW_SOLVED, LOAM_SOLVER_NONE, 0, 0 };
    for (int64_t c = 0; c < x->d; c++)
        x->x[c] = p->scale * x->q[c];
    if (x->form->solved) {
        x->info.solver = LOAM_SOLVER_GRAM;
        if (factor_system(x, state)) {
            exact_solve(x->factor, x->d, x->x);
            x->info.residual = (float)residual_of(x, state, p->scale);
        } else {
            x->info.code = LOAM_ROW_SINGULAR;
        }
    }
    for (int64_t r = 0; r < x->dim_v + p->normalise; r++)
        x->y[r] = exact_dot(state + r * x->d, x->x, x->d);
    if (p->normalise && x->y[x->dim_v] == 0) x->info.code = LOAM_ROW_SINGULAR;
    const double divisor = p->normalise ? x->y[x->dim_v] : 1;
    for (int64_t r = 0; r < x->dim_v; r++)
        out[r] = x->info.code == LOAM_ROW_SINGULAR ? 0 : x->y[r] / divisor;
}

void ref_state_load(const loam_problem *p, const loam_const_view *view, const recurrent_seq *s, int64_t h,
                    double *state)
{
    for (int64_t r = 0; r < recurrent_state_rows(p); r++) {
        for (int64_t c = 0; c < p->dim_qk; c++) {
            state[r * p->dim_qk + c] = view->data ? element_load(view->data, dtype_real(p->dtype),
                                                                 RECURRENT_AT(*view, s->index, h, r) + c)
                                                  : 0;
        }
    }
}

void ref_state_store(const loam_problem *p, const loam_view *view, const recurrent_seq *s, int64_t h,
                     const double *state)
{
    for (int64_t r = 0; view->data && r < recurrent_state_rows(p); r++) {
        for (int64_t c = 0; c < p->dim_qk; c++) {
            element_store(view->data, dtype_real(p->dtype), RECURRENT_AT(*view, s->index, h, r) + c,
                          state[r * p->dim_qk + c]);
        }
    }
}
