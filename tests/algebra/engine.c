/* SPDX-License-Identifier: MIT */
#include "tests/algebra/engine.h"

#include "tests/support/compare.h"
#include "tests/support/element.h"
#include "tests/support/random.h"

#include <math.h>
#include <string.h>

static int is_fast(loam_pass pass)
{
    loam_problem p = loam_problem_default(LOAM_LLA, pass);
    p.len_q = p.len_kv = p.dim_qk = p.dim_v = 8;
    loam_plan *plan;
    if (loam_plan_create(&plan, &p, NULL)) return 0;
    const int fast = loam_plan_problem(plan)->backend != LOAM_BACKEND_REFERENCE;
    loam_plan_destroy(plan);
    return fast;
}

engine engine_at(int index, loam_pass pass)
{
    const engine small = { "reference", LOAM_F64, LOAM_BACKEND_REFERENCE, 48, 6 };
    engine full = { "chosen", LOAM_F32, LOAM_BACKEND_AUTO, 2048, 64 };
    if (!is_fast(LOAM_FORWARD) || !is_fast(pass)) {
        full.len = 160;
        full.dim = 24;
    }
    return index == 0 ? small : full;
}

spec engine_spec(const engine *e, loam_mechanism mechanism, loam_pass pass)
{
    spec s = spec_default(mechanism, pass, e->len, e->dim, e->dim);
    s.dtype = e->dtype;
    s.backend = e->backend;
    s.heads_q = 2;
    s.seed = 77;
    return s;
}

double engine_tolerance(const engine *e, loam_mechanism mechanism, loam_pass pass)
{
    const double gradients = pass == LOAM_BACKWARD ? 4 : 1;
    return gradients * (e->dtype == LOAM_F64 ? 1e-10 : mechanism == LOAM_LLA ? 4e-5 : 1e-5);
}

void coarsen(values *v, slot which, int bits)
{
    for (int64_t i = 0; i < slot_size(v, which); i++)
        v->x[which][i] = ldexp(nearbyint(ldexp(v->x[which][i], bits)), -bits);
}

void shift_rows(values *v, slot which, const double *s)
{
    const int64_t n = slot_shape(v, which).channels;
    for (int64_t i = 0; i < slot_size(v, which); i++)
        v->x[which][i] += s[i % n];
}

void reflect_rows(values *v, slot which, const double *axis)
{
    const int64_t n = slot_shape(v, which).channels;
    for (int64_t row = 0; row < slot_size(v, which) / n; row++) {
        double *x = v->x[which] + row * n, along = 0;
        for (int64_t c = 0; c < n; c++)
            along += axis[c] * x[c];
        for (int64_t c = 0; c < n; c++)
            x[c] = element_round(slot_dtype(&v->spec, which), x[c] - 2 * along * axis[c]);
    }
}

void unit_vector(double *x, int64_t n, uint64_t seed)
{
    rng r = rng_make(seed, 0);
    rng_fill_normal(&r, x, n, 0, 1);
    const double norm = compare_norm(x, n);
    for (int64_t c = 0; c < n; c++)
        x[c] /= norm;
}
