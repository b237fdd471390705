/* SPDX-License-Identifier: MIT */
#include "tests/accuracy/floor.h"

#include "tests/support/memory.h"

#include <cblas.h>
#include <lapacke.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One query at a time. */
typedef struct floor_row {
    const sample *s;
    bool rounded;
    int64_t lo, hi;
    double lambda, gbar, e;
    double *p, *g, *u, *t; /* [len_kv] */
    double *kappa;         /* [len_kv][dim] */
    double *vbar, *rho, *drho, *y;
    double *matrix;
} floor_row;

static double held(const floor_row *r, double x) { return r->rounded ? (double)(float)x : x; }

static double dot(const double *x, const double *y, int64_t n)
{
    double sum = 0;
    for (int64_t c = 0; c < n; c++)
        sum += x[c] * y[c];
    return sum;
}

static void add_to(double *x, double factor, const double *y, int64_t n)
{
    for (int64_t c = 0; c < n; c++)
        x[c] += factor * y[c];
}

static floor_row row_make(const sample *s, const question *ask, bool rounded)
{
    const size_t d = (size_t)s->dim, keys = (size_t)s->len_kv, f64 = sizeof(double);
    floor_row r = { .s = s, .rounded = rounded, .lambda = (double)(float)ask->ridge };
    r.p = memory_zeroed(4 * keys, f64);
    r.g = r.p + keys, r.u = r.g + keys, r.t = r.u + keys;
    r.kappa = memory_zeroed(keys * d, f64);
    r.vbar = memory_zeroed(4 * d, f64);
    r.rho = r.vbar + d, r.drho = r.rho + d, r.y = r.drho + d;
    r.matrix = memory_zeroed(d * d, f64);
    return r;
}

static void row_free(floor_row *r)
{
    free(r->p);
    free(r->kappa);
    free(r->vbar);
    free(r->matrix);
}

/* p, kappa, vbar; rho <- kbar - q, the right-hand side */
static void row_weights(floor_row *r, int64_t i)
{
    const sample *s = r->s;
    const int64_t d = s->dim;
    const double *q = s->q + i * d;
    double m = -HUGE_VAL, omega = 0;
    sample_visible(s, i, &r->lo, &r->hi);
    for (int64_t j = r->lo; j < r->hi; j++) {
        r->p[j] = held(r, dot(q, s->k + j * d, d) / sqrt((double)d));
        m = fmax(m, r->p[j]);
    }
    for (int64_t j = r->lo; j < r->hi; j++)
        omega += r->p[j] = exp(r->p[j] - m);
    memset(r->vbar, 0, (size_t)d * sizeof(double));
    memset(r->rho, 0, (size_t)d * sizeof(double));
    for (int64_t j = r->lo; j < r->hi; j++) {
        r->p[j] /= omega;
        add_to(r->vbar, r->p[j], s->v + j * d, d);
        add_to(r->rho, r->p[j], s->k + j * d, d);
    }
    for (int64_t j = r->lo; j < r->hi; j++) {
        memcpy(r->kappa + j * d, s->k + j * d, (size_t)d * sizeof(double));
        add_to(r->kappa + j * d, -1, r->rho, d);
    }
    add_to(r->rho, -1, q, d);
}

/* x <- (Cov + lambda)^-1 x, to float32; 0 where that cannot be had. */
static void row_solve(floor_row *r, double *x, bool singular)
{
    const int64_t d = r->s->dim;
    memset(r->matrix, 0, (size_t)(d * d) * sizeof(double));
    for (int64_t j = r->lo; j < r->hi && !singular; j++)
        for (int64_t a = 0; a < d; a++)
            add_to(r->matrix + a * d, r->p[j] * r->kappa[j * d + a], r->kappa + j * d, a + 1);
    for (int64_t a = 0; a < d; a++)
        r->matrix[a * d + a] += r->lambda;
    const lapack_int n = (lapack_int)d;
    if (singular || LAPACKE_dposv(LAPACK_ROW_MAJOR, 'L', n, 1, r->matrix, n, x, 1))
        memset(x, 0, (size_t)d * sizeof(double));
    for (int64_t c = 0; c < d; c++)
        x[c] = held(r, x[c]);
}

static void row_forward(floor_row *r, const question *ask, int64_t i, bool singular, double *o)
{
    const int64_t d = r->s->dim;
    if (ask->mechanism == LOAM_LLA)
        row_solve(r, r->rho, singular);
    else
        for (int64_t c = 0; c < d; c++)
            r->rho[c] = ask->mechanism == LOAM_PARALLAX ? r->s->probe[i * d + c] : 0;
    for (int64_t j = r->lo; j < r->hi; j++) {
        r->u[j] = held(r, dot(r->rho, r->kappa + j * d, d));
        add_to(o, r->p[j] * (1 - r->u[j]), r->s->v + j * d, d);
    }
}

/* g, gbar, drho, y, t, e */
static void row_adjoint(floor_row *r, const question *ask, int64_t i, bool singular, const double *o)
{
    const int64_t d = r->s->dim;
    const double *grad = r->s->grad_o + i * d;
    r->gbar = held(r, dot(grad, r->vbar, d));
    memset(r->drho, 0, (size_t)d * sizeof(double));
    memset(r->y, 0, (size_t)d * sizeof(double));
    for (int64_t j = r->lo; j < r->hi; j++) {
        r->g[j] = held(r, dot(grad, r->s->v + j * d, d));
        add_to(r->drho, -r->p[j] * (r->g[j] - r->gbar), r->kappa + j * d, d);
    }
    if (ask->mechanism == LOAM_LLA) {
        memcpy(r->y, r->drho, (size_t)d * sizeof(double));
        row_solve(r, r->y, singular);
    }
    for (int64_t j = r->lo; j < r->hi; j++)
        r->t[j] = held(r, dot(r->y, r->kappa + j * d, d));
    r->e = ask->mechanism == LOAM_LLA ? -r->lambda * dot(r->y, r->rho, d) : r->gbar - dot(grad, o, d);
}

static void row_gradients(const floor_row *r, int64_t i, answer *out)
{
    const sample *s = r->s;
    const int64_t d = s->dim;
    const double scale = 1 / sqrt((double)d);
    for (int64_t j = r->lo; j < r->hi; j++) {
        const double error = r->g[j] - r->gbar + r->t[j], kept = r->p[j] * (1 - r->u[j]);
        const double ds = kept * error + r->p[j] * r->e;
        add_to(out->x[PART_DQ] + i * d, scale * ds, s->k + j * d, d);
        add_to(out->x[PART_DK] + j * d, scale * ds, s->q + i * d, d);
        add_to(out->x[PART_DK] + j * d, -r->p[j] * error, r->rho, d);
        add_to(out->x[PART_DK] + j * d, kept, r->y, d);
        add_to(out->x[PART_DV] + j * d, kept, s->grad_o + i * d, d);
        out->x[PART_DSCALE][0] += ds * dot(s->q + i * d, s->k + j * d, d);
    }
    add_to(out->x[PART_DQ] + i * d, -1, r->y, d);
    if (out->x[PART_DPROBE]) memcpy(out->x[PART_DPROBE] + i * d, r->drho, (size_t)d * sizeof(double));
    if (out->x[PART_DRIDGE]) out->x[PART_DRIDGE][i] = -dot(r->y, r->rho, d);
}

answer floor_answer(const sample *s, const question *ask, const answer *like, bool rounded)
{
    answer out = { .info = memory_zeroed((size_t)s->len_q, sizeof *out.info) };
    for (int which = 0; which < PARTS; which++) {
        const size_t count = (size_t)(part_rows(s, (part)which) * part_width(s, (part)which));
        out.x[which] = like->x[which] ? memory_zeroed(count, sizeof(double)) : NULL;
    }
    floor_row r = row_make(s, ask, rounded);
    openblas_set_num_threads(1);
    for (int64_t i = 0; i < s->len_q; i++) {
        const bool singular = like->info[i].code == LOAM_ROW_SINGULAR;
        double *o = out.x[PART_O] + i * s->dim;
        row_weights(&r, i);
        row_forward(&r, ask, i, singular, o);
        if (ask->gradients) {
            row_adjoint(&r, ask, i, singular, o);
            row_gradients(&r, i, &out);
        }
    }
    row_free(&r);
    return out;
}
