/* SPDX-License-Identifier: MIT
 *
 *     z_ij = k_j - q_i,  zbar_i = sum_j p_ij z_ij,  Sigma_i = sum_j p_ij z_ij z_ij^T - zbar_i zbar_i^T
 *     (Sigma_i + ridge I) rho_i = zbar_i,  o_i = sum_j p_ij (1 - rho_i . (z_ij - zbar_i)) v_j
 *
 * with p_ij the softmax of scale q_i . k_j over j <= i. Sigma_i is as well the covariance of the keys, so
 * naive_systems has no need of the differences. Backward, with g_i the gradient of o_i:
 *
 *     e_ij = g_i . v_j,  ebar_i = sum_j p_ij e_ij,  kappa_ij = z_ij - zbar_i,  u_ij = rho_i . kappa_ij
 *     (Sigma_i + ridge I) y_i = -sum_j p_ij e_ij kappa_ij,  a_ij = y_i . kappa_ij
 *     ds_ij = p_ij ((1 - u_ij) (e_ij + a_ij) + ebar_i u_ij - ebar_i - ridge rho_i . y_i)
 *     dq_i = scale sum_j ds_ij k_j - y_i,  dv_j = sum_i p_ij (1 - u_ij) g_i
 *     dk_j = sum_i p_ij (1 - u_ij) y_i - p_ij (e_ij - ebar_i + a_ij) rho_i + scale ds_ij q_i */
#include "cli/experiment/memory_naive.h"

#include <cblas.h>
#include <lapacke.h>
#include <math.h>
#include <string.h>

/* Keys that naive_systems takes at a time. */
enum { BLOCK = 64 };

static blasint as_blas(int64_t count) { return (blasint)count; }

/* Sigma -= mean mean^T, then x = (Sigma + ridge I)^-1 x. False where it is not positive definite. */
static int solve_row(const naive_task *t, float *sigma, const float *mean, float *x)
{
    const blasint d = as_blas(t->d);
    cblas_ssyr(CblasColMajor, CblasLower, d, -1, mean, 1, sigma, d);
    for (int64_t c = 0; c < t->d; c++)
        sigma[c * t->d + c] += t->ridge;
    return LAPACKE_spotrf(LAPACK_COL_MAJOR, 'L', d, sigma, d) == 0 &&
           LAPACKE_spotrs(LAPACK_COL_MAJOR, 'L', d, 1, sigma, d, x, d) == 0;
}

static int solve_again(const naive_task *t, const float *factor, float *x)
{
    const blasint d = as_blas(t->d);
    return LAPACKE_spotrs(LAPACK_COL_MAJOR, 'L', d, 1, factor, d, x, d) == 0;
}

static float dot(const naive_task *t, const float *x, const float *y)
{
    return cblas_sdot(as_blas(t->d), x, 1, y, 1);
}

/* What all pairs of a row share. */
typedef struct row_terms {
    float u_mean, a_mean; /* rho . zbar and y . zbar, or by mean keys */
    float e_mean, rest;   /* ebar; ridge rho . y */
} row_terms;

/* p, and rho . z, y . z and e, become the factors of g and y, of rho, and of scores. */
static void pair_gradients(const naive_task *t, const row_terms *row, float p, float *u, float *a, float *e)
{
    const float line = *u - row->u_mean, slope = *a - row->a_mean, value = *e;
    *u = p * (1 - line);
    *a = -p * (value - row->e_mean + slope);
    *e = t->scale * p * ((1 - line) * (value + slope) + row->e_mean * line - row->e_mean - row->rest);
}

/* ---- all differences */

int64_t naive_differences_room(int64_t n, int64_t d) { return n * n * d + n * n + d * d + 3 * d + 3 * n; }

static void fill_differences(const naive_task *t, float *z)
{
    for (int64_t i = 0; i < t->n; i++)
        for (int64_t j = 0; j < t->n; j++)
            for (int64_t c = 0; c < t->d; c++)
                z[(i * t->n + j) * t->d + c] = t->k[j * t->d + c] - t->q[i * t->d + c];
}

/* The softmax of the first `seen` scores; the others become 0. */
static void normalise_row(float *p, int64_t seen, int64_t n)
{
    float most = p[0], sum = 0;
    for (int64_t j = 1; j < seen; j++)
        most = fmaxf(most, p[j]);
    for (int64_t j = 0; j < n; j++)
        sum += p[j] = j < seen ? expf(p[j] - most) : 0;
    for (int64_t j = 0; j < seen; j++)
        p[j] /= sum;
}

/* z: the row's differences, [n, d], which become sqrt(p_j) z_j; scratch: d * d + 2 d + 2 n. */
static int differences_row(const naive_task *t, const float *p, float *z, float *scratch, float *o)
{
    const blasint n = as_blas(t->n), d = as_blas(t->d);
    float *sigma = scratch, *mean = sigma + t->d * t->d, *rho = mean + t->d;
    float *products = rho + t->d, *weights = products + t->n;
    cblas_sgemv(CblasRowMajor, CblasTrans, n, d, 1, z, d, p, 1, 0, mean, 1);
    for (int64_t j = 0; j < t->n; j++)
        for (int64_t c = 0; c < t->d; c++)
            z[j * t->d + c] *= sqrtf(p[j]);
    cblas_ssyrk(CblasColMajor, CblasLower, CblasNoTrans, d, n, 1, z, d, 0, sigma, d);
    memcpy(rho, mean, (size_t)t->d * sizeof *rho);
    if (!solve_row(t, sigma, mean, rho)) return 0;
    cblas_sgemv(CblasRowMajor, CblasNoTrans, n, d, 1, z, d, rho, 1, 0, products, 1);
    const float centre = 1 + cblas_sdot(d, rho, 1, mean, 1);
    for (int64_t j = 0; j < t->n; j++)
        weights[j] = p[j] * centre - sqrtf(p[j]) * products[j];
    cblas_sgemv(CblasRowMajor, CblasTrans, n, d, 1, t->v, d, weights, 1, 0, o, 1);
    return 1;
}

int64_t naive_differences(const naive_task *t, float *room)
{
    const blasint n = as_blas(t->n), d = as_blas(t->d);
    float *z = room, *p = z + t->n * t->n * t->d, *scratch = p + t->n * t->n;
    fill_differences(t, z);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, n, n, d, t->scale, t->q, d, t->k, d, 0, p, n);
    for (int64_t i = 0; i < t->n; i++) {
        normalise_row(p + i * t->n, i + 1, t->n);
        if (!differences_row(t, p + i * t->n, z + i * t->n * t->d, scratch, t->o + i * t->d)) return i + 1;
    }
    return 0;
}

/* Sigma from z, which naive_differences has left as sqrt(p_j) z_j; its factor in `sigma`, and rho. */
static int factor_again(const naive_task *t, const float *p, const float *z, float *roots, float *sigma,
                        float *mean, float *rho)
{
    const blasint n = as_blas(t->n), d = as_blas(t->d);
    for (int64_t j = 0; j < t->n; j++)
        roots[j] = sqrtf(p[j]);
    cblas_sgemv(CblasRowMajor, CblasTrans, n, d, 1, z, d, roots, 1, 0, mean, 1);
    cblas_ssyrk(CblasColMajor, CblasLower, CblasNoTrans, d, n, 1, z, d, 0, sigma, d);
    memcpy(rho, mean, (size_t)t->d * sizeof *rho);
    return solve_row(t, sigma, mean, rho);
}

/* out_j = x . z_j, where p_j is not 0. */
static void multiply_differences(const naive_task *t, const float *p, const float *z, const float *x,
                                 float *out)
{
    cblas_sgemv(CblasRowMajor, CblasNoTrans, as_blas(t->n), as_blas(t->d), 1, z, as_blas(t->d), x, 1, 0, out,
                1);
    for (int64_t j = 0; j < t->n; j++)
        out[j] = p[j] > 0 ? out[j] / sqrtf(p[j]) : 0;
}

static void add_outer(const naive_task *t, const float *weights, const float *x, float *to)
{
    cblas_sger(CblasRowMajor, as_blas(t->n), as_blas(t->d), 1, weights, 1, x, 1, to, as_blas(t->d));
}

static int differences_gradient_row(const naive_task *t, int64_t i, const float *p, const float *z,
                                    float *scratch)
{
    const int64_t n = t->n, d = t->d;
    const float *g = t->grad_o + i * d;
    float *sigma = scratch, *mean = sigma + d * d, *rho = mean + d, *y = rho + d;
    float *u = y + d, *a = u + n, *e = a + n;
    row_terms row;
    if (!factor_again(t, p, z, u, sigma, mean, rho)) return 0;
    cblas_sgemv(CblasRowMajor, CblasNoTrans, as_blas(n), as_blas(d), 1, t->v, as_blas(d), g, 1, 0, e, 1);
    row.e_mean = cblas_sdot(as_blas(n), p, 1, e, 1);
    for (int64_t j = 0; j < n; j++)
        u[j] = sqrtf(p[j]) * (e[j] - row.e_mean);
    cblas_sgemv(CblasRowMajor, CblasTrans, as_blas(n), as_blas(d), -1, z, as_blas(d), u, 1, 0, y, 1);
    if (!solve_again(t, sigma, y)) return 0;
    row.u_mean = dot(t, rho, mean), row.a_mean = dot(t, y, mean), row.rest = t->ridge * dot(t, rho, y);
    multiply_differences(t, p, z, rho, u);
    multiply_differences(t, p, z, y, a);
    for (int64_t j = 0; j < n; j++)
        pair_gradients(t, &row, p[j], &u[j], &a[j], &e[j]);
    add_outer(t, u, g, t->grad_v);
    add_outer(t, u, y, t->grad_k);
    add_outer(t, a, rho, t->grad_k);
    add_outer(t, e, t->q + i * d, t->grad_k);
    memcpy(t->grad_q + i * d, y, (size_t)d * sizeof *y);
    cblas_sgemv(CblasRowMajor, CblasTrans, as_blas(n), as_blas(d), 1, t->k, as_blas(d), e, 1, -1,
                t->grad_q + i * d, 1);
    return 1;
}

int64_t naive_differences_backward(const naive_task *t, float *room)
{
    const float *z = room, *p = z + t->n * t->n * t->d;
    float *scratch = room + t->n * t->n * t->d + t->n * t->n;
    memset(t->grad_k, 0, (size_t)(t->n * t->d) * sizeof(float));
    memset(t->grad_v, 0, (size_t)(t->n * t->d) * sizeof(float));
    for (int64_t i = 0; i < t->n; i++)
        if (!differences_gradient_row(t, i, p + i * t->n, z + i * t->n * t->d, scratch)) return i + 1;
    return 0;
}

/* ---- all systems */

int64_t naive_systems_room(int64_t n, int64_t d)
{
    return n * d * d + BLOCK * d * d + 2 * n * BLOCK + 2 * n * d + 2 * n;
}

int64_t naive_systems_backward_room(int64_t n, int64_t d)
{
    return naive_systems_room(n, d) + 2 * n * BLOCK + n * d + n;
}

typedef struct systems {
    float *sigma;        /* [n, d, d] */
    float *squares;      /* k k^T of a block of keys, [BLOCK, d, d] */
    float *p, *products; /* [n, BLOCK] */
    float *mean, *rho;   /* [n, d] */
    float *most, *sum;   /* [n], of the softmax */
} systems;

static systems place(const naive_task *t, float *room)
{
    const int64_t n = t->n, d = t->d;
    systems s = { .sigma = room };
    s.squares = s.sigma + n * d * d;
    s.p = s.squares + BLOCK * d * d;
    s.products = s.p + n * BLOCK;
    s.mean = s.products + n * BLOCK;
    s.rho = s.mean + n * d;
    s.most = s.rho + n * d;
    s.sum = s.most + n;
    return s;
}

static int64_t block_size(const naive_task *t, int64_t first)
{
    return t->n - first < BLOCK ? t->n - first : BLOCK;
}

/* out[n, BLOCK] = alpha x y^T with the keys first .. of the block. */
static void multiply_block(const naive_task *t, float alpha, const float *x, int64_t first, float *out)
{
    const blasint d = as_blas(t->d);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, as_blas(t->n), as_blas(block_size(t, first)), d,
                alpha, x, d, t->k + first * t->d, d, 0, out, BLOCK);
}

static void find_normalisers(const naive_task *t, const systems *s)
{
    for (int64_t i = 0; i < t->n; i++)
        s->most[i] = -INFINITY, s->sum[i] = 0;
    for (int64_t first = 0; first < t->n; first += BLOCK) {
        multiply_block(t, t->scale, t->q, first, s->p);
        for (int64_t i = first; i < t->n; i++)
            for (int64_t j = 0; j < block_size(t, first) && first + j <= i; j++) {
                const float score = s->p[i * BLOCK + j], most = fmaxf(s->most[i], score);
                s->sum[i] = s->sum[i] * expf(s->most[i] - most) + expf(score - most);
                s->most[i] = most;
            }
    }
}

/* The weights of a block of keys. */
static void weigh_block(const naive_task *t, const systems *s, int64_t first)
{
    multiply_block(t, t->scale, t->q, first, s->p);
    for (int64_t i = 0; i < t->n; i++)
        for (int64_t j = 0; j < block_size(t, first); j++) {
            float *p = &s->p[i * BLOCK + j];
            *p = first + j <= i ? expf(*p - s->most[i]) / s->sum[i] : 0;
        }
}

/* sum_j p_ij k_j k_j^T and sum_j p_ij k_j. */
static void add_moments(const naive_task *t, const systems *s)
{
    const int64_t d = t->d;
    const blasint n = as_blas(t->n);
    memset(s->sigma, 0, (size_t)(t->n * d * d) * sizeof(float));
    memset(s->mean, 0, (size_t)(t->n * d) * sizeof(float));
    for (int64_t first = 0; first < t->n; first += BLOCK) {
        const int64_t count = block_size(t, first);
        const float *k = t->k + first * d;
        weigh_block(t, s, first);
        for (int64_t j = 0; j < count; j++)
            for (int64_t a = 0; a < d; a++)
                for (int64_t b = 0; b < d; b++)
                    s->squares[(j * d + a) * d + b] = k[j * d + a] * k[j * d + b];
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, as_blas(d * d), as_blas(count), 1, s->p,
                    BLOCK, s->squares, as_blas(d * d), 1, s->sigma, as_blas(d * d));
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, as_blas(d), as_blas(count), 1, s->p, BLOCK,
                    k, as_blas(d), 1, s->mean, as_blas(d));
    }
}

static void add_outputs(const naive_task *t, const systems *s)
{
    const blasint d = as_blas(t->d);
    memset(t->o, 0, (size_t)(t->n * t->d) * sizeof *t->o);
    for (int64_t first = 0; first < t->n; first += BLOCK) {
        const int64_t count = block_size(t, first);
        weigh_block(t, s, first);
        multiply_block(t, 1, s->rho, first, s->products);
        for (int64_t i = 0; i < t->n; i++) {
            const float centre = 1 + cblas_sdot(d, s->rho + i * t->d, 1, s->mean + i * t->d, 1);
            for (int64_t j = 0; j < count; j++)
                s->p[i * BLOCK + j] *= centre - s->products[i * BLOCK + j];
        }
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, as_blas(t->n), d, as_blas(count), 1, s->p,
                    BLOCK, t->v + first * t->d, d, 1, t->o, d);
    }
}

int64_t naive_systems(const naive_task *t, float *room)
{
    const systems s = place(t, room);
    find_normalisers(t, &s);
    add_moments(t, &s);
    for (int64_t i = 0; i < t->n; i++) {
        const float *mean = s.mean + i * t->d;
        float *rho = s.rho + i * t->d;
        for (int64_t c = 0; c < t->d; c++)
            rho[c] = mean[c] - t->q[i * t->d + c];
        if (!solve_row(t, s.sigma + i * t->d * t->d, mean, rho)) return i + 1;
    }
    add_outputs(t, &s);
    return 0;
}

/* ---- their gradients */

/* Beside naive_systems' own, which stay: the factors, means and rho. */
typedef struct adjoints {
    float *a, *e;  /* [n, BLOCK] */
    float *y;      /* [n, d] */
    float *e_mean; /* [n] */
} adjoints;

static adjoints place_adjoints(const naive_task *t, float *room)
{
    adjoints a = { .a = room + naive_systems_room(t->n, t->d) };
    a.e = a.a + t->n * BLOCK;
    a.y = a.e + t->n * BLOCK;
    a.e_mean = a.y + t->n * t->d;
    return a;
}

/* out[n, BLOCK] = x y^T with the rows first .. of y. */
static void multiply_rows(const naive_task *t, const float *x, const float *y, int64_t first, float *out)
{
    const blasint d = as_blas(t->d);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, as_blas(t->n), as_blas(block_size(t, first)), d, 1,
                x, d, y + first * t->d, d, 0, out, BLOCK);
}

/* y = (Sigma + ridge I)^-1 (ebar kbar - sum p e k). Returns as naive_systems_backward does. */
static int64_t solve_adjoints(const naive_task *t, const systems *s, const adjoints *adj)
{
    const int64_t n = t->n, d = t->d;
    memset(adj->y, 0, (size_t)(n * d) * sizeof(float));
    memset(adj->e_mean, 0, (size_t)n * sizeof(float));
    for (int64_t first = 0; first < n; first += BLOCK) {
        const int64_t count = block_size(t, first);
        weigh_block(t, s, first);
        multiply_rows(t, t->grad_o, t->v, first, adj->e);
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < count; j++)
                adj->e_mean[i] += s->p[i * BLOCK + j] *= adj->e[i * BLOCK + j];
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, as_blas(n), as_blas(d), as_blas(count), -1,
                    s->p, BLOCK, t->k + first * d, as_blas(d), 1, adj->y, as_blas(d));
    }
    for (int64_t i = 0; i < n; i++) {
        cblas_saxpy(as_blas(d), adj->e_mean[i], s->mean + i * d, 1, adj->y + i * d, 1);
        if (!solve_again(t, s->sigma + i * d * d, adj->y + i * d)) return i + 1;
    }
    return 0;
}

/* to += weights^T x for the keys of a block. */
static void add_transposed(const naive_task *t, const float *weights, const float *x, int64_t first,
                           float *to)
{
    const blasint d = as_blas(t->d);
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, as_blas(block_size(t, first)), d, as_blas(t->n), 1,
                weights, BLOCK, x, d, 1, to + first * t->d, d);
}

static void add_block_gradients(const naive_task *t, const systems *s, const adjoints *adj, int64_t first)
{
    const int64_t d = t->d, count = block_size(t, first);
    weigh_block(t, s, first);
    multiply_rows(t, s->rho, t->k, first, s->products);
    multiply_rows(t, adj->y, t->k, first, adj->a);
    multiply_rows(t, t->grad_o, t->v, first, adj->e);
    for (int64_t i = 0; i < t->n; i++) {
        const float *rho = s->rho + i * d, *y = adj->y + i * d, *mean = s->mean + i * d;
        const row_terms row = { dot(t, rho, mean), dot(t, y, mean), adj->e_mean[i],
                                t->ridge * dot(t, rho, y) };
        for (int64_t at = i * BLOCK; at < i * BLOCK + count; at++)
            pair_gradients(t, &row, s->p[at], &s->products[at], &adj->a[at], &adj->e[at]);
    }
    add_transposed(t, s->products, t->grad_o, first, t->grad_v);
    add_transposed(t, s->products, adj->y, first, t->grad_k);
    add_transposed(t, adj->a, s->rho, first, t->grad_k);
    add_transposed(t, adj->e, t->q, first, t->grad_k);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, as_blas(t->n), as_blas(d), as_blas(count), 1,
                adj->e, BLOCK, t->k + first * d, as_blas(d), 1, t->grad_q, as_blas(d));
}

int64_t naive_systems_backward(const naive_task *t, float *room)
{
    const systems s = place(t, room);
    const adjoints adj = place_adjoints(t, room);
    const size_t bytes = (size_t)(t->n * t->d) * sizeof(float);
    const int64_t failed = solve_adjoints(t, &s, &adj);
    if (failed) return failed;
    memset(t->grad_k, 0, bytes);
    memset(t->grad_v, 0, bytes);
    for (int64_t e = 0; e < t->n * t->d; e++)
        t->grad_q[e] = -adj.y[e];
    for (int64_t first = 0; first < t->n; first += BLOCK)
        add_block_gradients(t, &s, &adj, first);
    return 0;
}
