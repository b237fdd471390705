/* SPDX-License-Identifier: MIT
 * The reference backward: the recurrence in reverse. One state in every sqrt(tokens) is stored; the states of
 * one block at a time are computed again from the stored one. With dM the gradient of M_t, from the last
 * token to the first:
 *
 *     dy = do, or [do; -do . o] / y_last;   dM += dy x^T,   dx = M^T dy
 *     solved: z = (H + Lambda)^-1 dx,   dx^ = z,   dLambda_c -= z_c x_c,   dH -= (z x^T + x z^T) / 2;
 *         else dx^ = dx
 *     du = dM k,   dk = dM^T u,   dw = beta du,   dbeta = du . err
 *     delta rule: dk -= D^T dw,   dM -= dw k^T
 *     dg_c = sum_r dM_rc D_rc,   dM <- dM Diag(e^g)
 */
#include "src/exact/cholesky.h"
#include "src/recurrent/reference/token.h"

#include <math.h>
#include <omp.h>
#include <string.h>

/* Sums over tokens, for each of the n pairs of sequence and value head. */
typedef struct head_sums {
    double *scale, *decay, *ridge; /* [n], [n], [n, d] */
} head_sums;

static head_sums head_sums_carve(const loam_problem *p, arena *pool)
{
    const size_t n = size_mul((size_t)p->batch, (size_t)p->heads_v);
    const bool solved = recurrent_form_of(p->mechanism)->solved;
    head_sums sums;
    sums.scale = arena_take(pool, n, sizeof(double));
    sums.decay = arena_take(pool, n, sizeof(double));
    sums.ridge = arena_take(pool, solved ? size_mul(n, (size_t)p->dim_qk) : 0, sizeof(double));
    return sums;
}

typedef struct scratch {
    ref_token token;
    int64_t every;      /* tokens from one stored state to the next */
    double *kept;       /* the stored states, before tokens 0, every, 2 every, ... */
    double *before;     /* the states before each token from one stored state to the next */
    double *m, *dm;     /* [rows, d] */
    double *o, *grad_o; /* [dim_v] */
    double *dy, *du;    /* [rows] */
    double *dx, *dk;    /* [d] */
    double *q_sum,
        *k_sum; /* [len, d]: gradients of the features of one head of q and k, summed over its value heads */
} scratch;

static scratch scratch_carve(const loam_problem *p, arena *pool)
{
    scratch x = { .token = ref_token_carve(p, pool) };
    const size_t f64 = sizeof(double), d = (size_t)p->dim_qk, len = (size_t)p->len_q;
    const size_t rows = (size_t)x.token.rows, state = rows * d;
    x.every = (int64_t)ceil(sqrt((double)p->len_q));
    x.every = x.every > 1 ? x.every : 1;
    x.kept = arena_take(pool, size_mul(len / (size_t)x.every + 1, state), f64);
    x.before = arena_take(pool, size_mul((size_t)x.every, state), f64);
    x.m = arena_take(pool, state, f64);
    x.dm = arena_take(pool, state, f64);
    x.o = arena_take(pool, (size_t)p->dim_v, f64);
    x.grad_o = arena_take(pool, (size_t)p->dim_v, f64);
    x.dy = arena_take(pool, rows, f64);
    x.du = arena_take(pool, rows, f64);
    x.dx = arena_take(pool, d, f64);
    x.dk = arena_take(pool, d, f64);
    x.q_sum = arena_take(pool, size_mul(len, d), f64);
    x.k_sum = arena_take(pool, size_mul(len, d), f64);
    return x;
}

static size_t scratch_bytes(const loam_problem *p)
{
    arena pool = { 0 };
    scratch_carve(p, &pool);
    return pool.used;
}

/* to += factor * from */
static void add(double *to, double factor, const double *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] += factor * from[i];
}

/* The adjoint of the read y = M x with respect to M and x: dm and dx. */
static void read_backward(const loam_problem *p, scratch *x)
{
    const ref_token *token = &x->token;
    const double divisor = p->normalise ? token->y[p->dim_v] : 1;
    for (int64_t r = 0; r < p->dim_v; r++)
        x->dy[r] = x->grad_o[r] / divisor;
    if (p->normalise) x->dy[p->dim_v] = -exact_dot(x->grad_o, x->o, p->dim_v) / divisor;
    for (int64_t r = 0; r < p->dim_v + p->normalise; r++) {
        add(x->dx, x->dy[r], x->m + r * token->d, token->d);
        add(x->dm + r * token->d, x->dy[r], token->x, token->d);
    }
}

/* The adjoint of x = (H + Lambda)^-1 x^: dx becomes the gradient z of x^. */
static void solve_backward(scratch *x, double *ridge)
{
    const ref_token *token = &x->token;
    double *dH = x->dm + token->dim_v * token->d;
    exact_solve(token->factor, token->d, x->dx);
    for (int64_t r = 0; r < token->d; r++) {
        ridge[r] -= x->dx[r] * token->x[r];
        add(dH + r * token->d, -x->dx[r] / 2, token->x, token->d);
        add(dH + r * token->d, -token->x[r] / 2, x->dx, token->d);
    }
}

/* On entry dm is the gradient of the state after the token; it becomes that of the decayed state before the
 * token. Also dk, and dw in x->du. Returns the gradient of beta. */
static double write_backward(scratch *x)
{
    const ref_token *token = &x->token;
    const int64_t d = token->d;
    double beta = 0;
    for (int64_t r = 0; r < token->rows; r++) {
        double *dm = x->dm + r * d;
        const double du = exact_dot(dm, token->k, d);
        beta += du * token->err[r];
        add(x->dk, token->beta * token->err[r], dm, d);
        x->du[r] = token->beta * du;
        if (token->form->delta) {
            add(x->dk, -x->du[r], token->decayed + r * d, d);
            add(dm, -x->du[r], token->k, d);
        }
    }
    if (token->form->solved) /* the keys are values, too */
        add(x->dk, 1, x->du + token->dim_v, d);
    return beta;
}

/* dm <- the gradient of the state before the token; dx <- those of the log decays of its
 * channels. Returns their sum. */
static double decay_backward(scratch *x)
{
    const ref_token *token = &x->token;
    double sum = 0;
    for (int64_t c = 0; c < token->d; c++) {
        x->dx[c] = 0;
        for (int64_t r = 0; r < token->rows; r++) {
            x->dx[c] += x->dm[r * token->d + c] * token->decayed[r * token->d + c];
            x->dm[r * token->d + c] *= token->decay[c];
        }
        sum += x->dx[c];
    }
    return sum;
}

static void store_row(const loam_view *view, loam_dtype dtype, int64_t at, const double *row, int64_t n)
{
    for (int64_t c = 0; view->data && c < n; c++)
        element_store(view->data, dtype, at + c, row[c]);
}

static void token_backward(const loam_problem *p, const loam_args *a, const recurrent_seq *s, int64_t h,
                           int64_t t, const head_sums *sums, scratch *x)
{
    ref_token *token = &x->token;
    const loam_dtype real = dtype_real(p->dtype);
    const int64_t d = token->d, at = s->index * p->heads_v + h, row = s->first + t;
    ref_token_write(p, a, s, h, t, token, x->m);
    ref_token_read(p, token, x->m, x->o);
    memset(x->dx, 0, (size_t)d * sizeof *x->dx);
    memset(x->dk, 0, (size_t)d * sizeof *x->dk);
    if (token->info.code == LOAM_ROW_SOLVED) {
        for (int64_t c = 0; c < p->dim_v; c++)
            x->grad_o[c] = element_load(a->grad_o.data, p->dtype, RECURRENT_AT(a->grad_o, s->b, h, row) + c);
        read_backward(p, x);
        if (token->form->solved) solve_backward(x, sums->ridge + at * d);
    }
    add(x->q_sum + t * d, p->scale, x->dx, d);
    sums->scale[at] += exact_dot(token->q, x->dx, d);
    const double beta = write_backward(x);
    add(x->k_sum + t * d, 1, x->dk, d);
    store_row(&a->grad_v, p->dtype, RECURRENT_AT(a->grad_v, s->b, h, row), x->du, p->dim_v);
    store_row(&a->grad_beta, real, RECURRENT_AT(a->grad_beta, s->b, h, row), &beta, 1);
    const double decay = decay_backward(x);
    sums->decay[at] += decay;
    if (token->form->gate == GATE_TOKEN || token->form->gate == GATE_CHANNEL) {
        const bool channels = token->form->gate == GATE_CHANNEL;
        store_row(&a->grad_log_decay, real, RECURRENT_AT(a->grad_log_decay, s->b, h, row),
                  channels ? x->dx : &decay, channels ? d : 1);
    }
}

static void head_backward(const loam_problem *p, const loam_args *a, const recurrent_seq *s, int64_t h,
                          const head_sums *sums, scratch *x)
{
    const int64_t state = x->token.rows * x->token.d;
    const size_t bytes = (size_t)state * sizeof(double);
    ref_token_head(p, a, h, &x->token);
    ref_state_load(p, &a->state_in, s, h, x->m);
    for (int64_t t = 0; t < s->len; t++) {
        if (t % x->every == 0) memcpy(x->kept + t / x->every * state, x->m, bytes);
        ref_token_write(p, a, s, h, t, &x->token, x->m);
    }
    ref_state_load(p, &a->grad_state_out, s, h, x->dm);
    for (int64_t first = s->len > 0 ? (s->len - 1) / x->every * x->every : -1; first >= 0;
         first -= x->every) {
        const int64_t end = first + x->every < s->len ? first + x->every : s->len;
        memcpy(x->m, x->kept + first / x->every * state, bytes);
        for (int64_t t = first; t < end; t++) {
            memcpy(x->before + (t - first) * state, x->m, bytes);
            ref_token_write(p, a, s, h, t, &x->token, x->m);
        }
        for (int64_t t = end - 1; t >= first; t--) {
            memcpy(x->m, x->before + (t - first) * state, bytes);
            token_backward(p, a, s, h, t, sums, x);
        }
    }
    ref_state_store(p, &a->grad_state_in, s, h, x->dm);
}

/* All value heads that read head h of q and k, then the gradients of that head. */
static void key_head_backward(const loam_problem *p, const loam_args *a, const recurrent_seq *s, int64_t h,
                              const head_sums *sums, scratch *x)
{
    const int64_t d = p->dim_qk, group = p->heads_v / p->heads_q;
    memset(x->q_sum, 0, (size_t)(s->len * d) * sizeof *x->q_sum);
    memset(x->k_sum, 0, (size_t)(s->len * d) * sizeof *x->k_sum);
    for (int64_t each = h * group; each < (h + 1) * group; each++)
        head_backward(p, a, s, each, sums, x);
    const loam_const_view *const from[] = { &a->q, &a->k };
    const loam_view *const to[] = { &a->grad_q, &a->grad_k };
    double *const sum[] = { x->q_sum, x->k_sum };
    for (int side = 0; side < 2; side++) {
        for (int64_t t = 0; t < s->len; t++) {
            const int64_t at = RECURRENT_AT(*from[side], s->b, h, s->first + t);
            ref_features(p, from[side], at, x->dx);
            ref_features_backward(p, from[side], at, x->dx, sum[side] + t * d);
            store_row(to[side], p->dtype, RECURRENT_AT(*to[side], s->b, h, s->first + t), sum[side] + t * d,
                      d);
        }
    }
}

/* The sum over sequences, over `heads` heads from h on and `channels` channels from c on. */
static double sum_of(const loam_problem *p, const double *part, int64_t width, int64_t h, int64_t heads,
                     int64_t c, int64_t channels)
{
    double sum = 0;
    for (int64_t b = 0; b < p->batch; b++) {
        for (int64_t i = h; i < h + heads; i++)
            for (int64_t j = c; j < c + channels; j++)
                sum += part[(b * p->heads_v + i) * width + j];
    }
    return sum;
}

static void store_ridge(const loam_problem *p, const loam_args *a, const double *ridge)
{
    const loam_dtype real = dtype_real(p->dtype);
    const int64_t d = p->dim_qk;
    if (p->ridge_axes == LOAM_RIDGE_NUMBER) {
        element_store(a->grad_ridge.data, real, 0, sum_of(p, ridge, d, 0, p->heads_v, 0, d));
        return;
    }
    const int64_t each = p->ridge_axes == LOAM_RIDGE_HEAD ? d : 1;
    for (int64_t h = 0; h < p->heads_v; h++) {
        for (int64_t c = 0; c < d; c += each) {
            element_store(a->grad_ridge.data, real, h * a->grad_ridge.head + c,
                          sum_of(p, ridge, d, h, 1, c, each));
        }
    }
}

static void store_sums(const loam_problem *p, const loam_args *a, const head_sums *sums)
{
    const loam_dtype real = dtype_real(p->dtype);
    const recurrent_form *form = recurrent_form_of(p->mechanism);
    if (a->grad_scale) {
        const double scale = p->normalise ? 0 : sum_of(p, sums->scale, 1, 0, p->heads_v, 0, 1);
        element_store(a->grad_scale, real, 0, scale); /* a weighted mean does not depend on the scale */
    }
    for (int64_t h = 0; form->gate == GATE_HEAD && a->grad_log_decay.data && h < p->heads_v; h++) {
        element_store(a->grad_log_decay.data, real, h * a->grad_log_decay.head,
                      sum_of(p, sums->decay, 1, h, 1, 0, 1));
    }
    if (form->solved && a->grad_ridge.data) store_ridge(p, a, sums->ridge);
}

size_t recurrent_backward_ref_work(const loam_problem *p)
{
    arena pool = { 0 };
    head_sums_carve(p, &pool);
    return size_add(pool.used, size_mul(scratch_bytes(p), (size_t)p->threads));
}

loam_status recurrent_backward_ref(const loam_problem *p, const loam_args *a, loam_error *error)
{
    arena shared = { a->work, 0 };
    const head_sums sums = head_sums_carve(p, &shared);
    if (shared.used > 0) memset(a->work, 0, shared.used);
    const size_t each = scratch_bytes(p);
#pragma omp parallel num_threads(p->threads)
    {
        arena pool = { (char *)a->work + shared.used + each * (size_t)omp_get_thread_num(), 0 };
        scratch x = scratch_carve(p, &pool);
#pragma omp for collapse(2) schedule(dynamic, 1)
        for (int64_t b = 0; b < p->batch; b++) {
            for (int64_t h = 0; h < p->heads_q; h++) {
                const recurrent_seq s = recurrent_seq_at(p, a, b);
                key_head_backward(p, a, &s, h, &sums, &x);
            }
        }
    }
    store_sums(p, a, &sums);
    return loam_succeed(error);
}
