/* SPDX-License-Identifier: MIT
 *
 * Panels are [d or n][rows], as in the library, and every product is an sgemm. No
 * acceptance, no early end: a row stops at a residual of STOP, or all do after MOST steps.
 */
#include "tests/accuracy/block_cg.h"

#include "tests/accuracy/processor_time.h"
#include "tests/support/memory.h"

#include <cblas.h>
#include <lapacke.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 96 };
#define STOP 3e-7

typedef struct block_cg {
    int n, d, m; /* keys, channels, rows */
    float ridge;
    float *k, *v, *q;                           /* [n][d], [n][d], [m][d] */
    float *p, *t;                               /* [n][m]: weights, scratch */
    float *kbar, *b, *x, *r, *z, *step, *image; /* [d][m] */
    float *factor;                              /* [d][d] */
    double *rz, *stop;                          /* [m]; stop < 0: the row is done */
} block_cg;

static float *floats(const double *x, int64_t count)
{
    float *out = memory_zeroed((size_t)count, sizeof *out);
    for (int64_t i = 0; x && i < count; i++)
        out[i] = (float)x[i];
    return out;
}

/* c [rows][m] <- A b, A [rows][inner] or its transpose */
static void product(const block_cg *g, bool transposed, const float *a, const float *b, float *c)
{
    const int rows = transposed ? g->d : g->n, inner = transposed ? g->n : g->d;
    cblas_sgemm(CblasRowMajor, transposed ? CblasTrans : CblasNoTrans, CblasNoTrans, rows, g->m, inner, 1, a,
                g->d, b, g->m, 0, c, g->m);
}

static double column_dot(const block_cg *g, const float *x, const float *y, int i)
{
    double sum = 0;
    for (int c = 0; c < g->d; c++)
        sum += (double)x[c * g->m + i] * (double)y[c * g->m + i];
    return sum;
}

static void weigh(block_cg *g)
{
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, g->n, g->m, g->d, 1 / sqrtf((float)g->d), g->k, g->d,
                g->q, g->d, 0, g->p, g->m);
    for (int i = 0; i < g->m; i++) {
        float most = -HUGE_VALF, omega = 0;
        for (int j = 0; j < g->n; j++)
            most = fmaxf(most, g->p[j * g->m + i]);
        for (int j = 0; j < g->n; j++)
            omega += g->p[j * g->m + i] = expf(g->p[j * g->m + i] - most);
        for (int j = 0; j < g->n; j++)
            g->p[j * g->m + i] /= omega;
    }
    product(g, true, g->k, g->p, g->kbar);
}

/* t <- p (kappa . x), centred */
static void lines(block_cg *g, const float *x)
{
    product(g, false, g->k, x, g->t);
    for (int i = 0; i < g->m; i++)
        g->stop[g->m + i] = column_dot(g, x, g->kbar, i);
    for (int j = 0; j < g->n; j++)
        for (int i = 0; i < g->m; i++)
            g->t[j * g->m + i] = g->p[j * g->m + i] * (g->t[j * g->m + i] - (float)g->stop[g->m + i]);
}

static void apply(block_cg *g, const float *x, float *image)
{
    lines(g, x);
    product(g, true, g->k, g->t, image);
    for (int i = 0; i < g->m; i++) {
        double total = 0;
        for (int j = 0; j < g->n; j++)
            total += (double)g->t[j * g->m + i];
        for (int c = 0; c < g->d; c++)
            image[c * g->m + i] += g->ridge * x[c * g->m + i] - (float)total * g->kbar[c * g->m + i];
    }
}

/* The mean over rows of Cov, from the mean weights and the mean keys, and the ridge: its factor. */
static void share(block_cg *g)
{
    float *scaled = floats(NULL, (int64_t)g->n * g->d);
    for (int j = 0; j < g->n; j++) {
        double mean = 0;
        for (int i = 0; i < g->m; i++)
            mean += (double)g->p[j * g->m + i] / g->m;
        for (int c = 0; c < g->d; c++)
            scaled[j * g->d + c] = sqrtf((float)mean) * g->k[j * g->d + c];
    }
    cblas_ssyrk(CblasRowMajor, CblasLower, CblasTrans, g->d, g->n, 1, scaled, g->d, 0, g->factor, g->d);
    cblas_ssyrk(CblasRowMajor, CblasLower, CblasNoTrans, g->d, g->m, -1.0F / (float)g->m, g->kbar, g->m, 1,
                g->factor, g->d);
    for (int c = 0; c < g->d; c++)
        g->factor[c * g->d + c] += g->ridge;
    free(scaled);
    if (LAPACKE_spotrf(LAPACK_ROW_MAJOR, 'L', g->d, g->factor, g->d)) {
        fprintf(stderr, "loam-accuracy: the shared matrix is singular\n");
        exit(EXIT_FAILURE);
    }
}

/* z <- M^-1 r */
static void precondition(block_cg *g, bool shared)
{
    memcpy(g->z, g->r, (size_t)g->d * (size_t)g->m * sizeof *g->z);
    if (shared) {
        cblas_strsm(CblasRowMajor, CblasLeft, CblasLower, CblasNoTrans, CblasNonUnit, g->d, g->m, 1,
                    g->factor, g->d, g->z, g->m);
        cblas_strsm(CblasRowMajor, CblasLeft, CblasLower, CblasTrans, CblasNonUnit, g->d, g->m, 1, g->factor,
                    g->d, g->z, g->m);
    }
}

/* One step of every row that goes on; how many do. */
static int advance(block_cg *g, bool shared)
{
    int live = 0;
    apply(g, g->step, g->image);
    for (int i = 0; i < g->m; i++) {
        const double curvature = column_dot(g, g->step, g->image, i);
        const float by = g->stop[i] >= 0 && curvature > 0 ? (float)(g->rz[i] / curvature) : 0;
        for (int c = i; c < g->d * g->m; c += g->m) {
            g->x[c] += by * g->step[c];
            g->r[c] -= by * g->image[c];
        }
    }
    precondition(g, shared);
    for (int i = 0; i < g->m; i++) {
        const double next = column_dot(g, g->r, g->z, i);
        const float turn = g->stop[i] >= 0 ? (float)(next / g->rz[i]) : 0;
        g->rz[i] = next;
        if (g->stop[i] >= 0 && column_dot(g, g->r, g->r, i) <= g->stop[i]) g->stop[i] = -1;
        live += g->stop[i] >= 0;
        for (int c = i; c < g->d * g->m; c += g->m)
            g->step[c] = g->z[c] + turn * g->step[c];
    }
    return live;
}

static int solve(block_cg *g, bool shared)
{
    const size_t bytes = (size_t)g->d * (size_t)g->m * sizeof(float);
    for (int i = 0; i < g->m; i++) {
        for (int c = 0; c < g->d; c++)
            g->b[c * g->m + i] = g->kbar[c * g->m + i] - g->q[i * g->d + c];
        g->stop[i] = STOP * STOP * column_dot(g, g->b, g->b, i);
    }
    memset(g->x, 0, bytes);
    memcpy(g->r, g->b, bytes);
    if (shared) share(g);
    precondition(g, shared);
    memcpy(g->step, g->z, bytes);
    for (int i = 0; i < g->m; i++)
        g->rz[i] = column_dot(g, g->r, g->z, i);
    int steps = 0;
    for (int live = g->m; live > 0 && steps < MOST; steps++)
        live = advance(g, shared);
    return steps;
}

/* o = sum p (1 - u) v, the weighted mean of u taken out */
static void output(block_cg *g, double *o)
{
    lines(g, g->x);
    for (int i = 0; i < g->m; i++) {
        double mean = 0;
        for (int j = 0; j < g->n; j++)
            mean += (double)g->t[j * g->m + i];
        for (int j = 0; j < g->n; j++)
            g->t[j * g->m + i] = g->p[j * g->m + i] * (1 + (float)mean) - g->t[j * g->m + i];
    }
    product(g, true, g->v, g->t, g->image);
    for (int i = 0; i < g->m; i++)
        for (int c = 0; c < g->d; c++)
            o[i * g->d + c] = (double)g->image[c * g->m + i];
}

alternative_cost block_cg_run(const sample *s, double ridge, bool shared, double *o)
{
    block_cg g = { (int)s->len_kv,
                   (int)s->dim,
                   (int)s->len_q,
                   (float)ridge,
                   .k = floats(s->k, s->len_kv * s->dim),
                   .v = floats(s->v, s->len_kv * s->dim),
                   .q = floats(s->q, s->len_q * s->dim) };
    float **const tall[] = { &g.p, &g.t },
                  **const wide[] = { &g.kbar, &g.b, &g.x, &g.r, &g.z, &g.step, &g.image };
    for (int e = 0; e < 2; e++)
        *tall[e] = floats(NULL, s->len_kv * s->len_q);
    for (int e = 0; e < 7; e++)
        *wide[e] = floats(NULL, s->dim * s->len_q);
    g.factor = floats(NULL, s->dim * s->dim);
    g.rz = memory_zeroed((size_t)s->len_q, sizeof *g.rz);
    g.stop = memory_zeroed(2 * (size_t)s->len_q, sizeof *g.stop);
    const double begin = processor_seconds();
    weigh(&g);
    const int steps = solve(&g, shared);
    output(&g, o);
    const alternative_cost cost = { processor_seconds() - begin, steps };
    void *all[] = { g.k, g.v, g.q,    g.p,     g.t,      g.kbar, g.b,   g.x,
                    g.r, g.z, g.step, g.image, g.factor, g.rz,   g.stop };
    for (size_t e = 0; e < sizeof all / sizeof *all; e++)
        free(all[e]);
    return cost;
}
