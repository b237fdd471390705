/* SPDX-License-Identifier: MIT
 *
 *     z_ij = k_j - q_i,  zbar_i = sum_j p_ij z_ij,  Sigma_i = sum_j p_ij z_ij z_ij^T - zbar_i zbar_i^T
 *     (Sigma_i + ridge I) rho_i = zbar_i,  o_i = sum_j p_ij (1 - rho_i . (z_ij - zbar_i)) v_j
 *
 * with p_ij the softmax of scale q_i . k_j over j <= i. Sigma_i is as well the covariance of the keys, so
 * naive_systems has no need of the differences. */
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

/* ---- all differences */

int64_t naive_differences_room(int64_t n, int64_t d) { return n * n * d + n * n + d * d + 2 * d + 2 * n; }

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

/* ---- all systems */

int64_t naive_systems_room(int64_t n, int64_t d)
{
    return n * d * d + BLOCK * d * d + 2 * n * BLOCK + 2 * n * d + 2 * n;
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
