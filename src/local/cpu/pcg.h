/* SPDX-License-Identifier: MIT
 *
 * Conjugate gradients in float32 with a preconditioner M for each row (local/cpu/heavy.h): for the rows whose
 * few heavy keys make plain ones slow.
 *
 * With z = M^-1 r and least the smallest eigenvalue of M^-1 A, r . z / least bounds the square of the error
 * in the norm of the system, |x - A^-1 b|_A, and x . b tends to |A^-1 b|_A^2. least is estimated by the
 * quotients p . A p / p . M p of the directions, as p . M p follows from the recursion.
 *
 * Steps end when that bound is small. Then b - A x is computed anew and decides. Where x is so long that
 * float32 would spoil the products x . kappa, that residual is computed in float64, further steps add its
 * correction, and the sum of both is kept in float64, as in local/cpu/gram.h.
 */
#ifndef LOAM_LOCAL_CPU_PCG_H
#define LOAM_LOCAL_CPU_PCG_H

#include "src/local/cpu/cg.h"
#include "src/local/cpu/heavy.h"

/* Steps of a row before its residual is computed anew, and as many after: more are not worth it. All lanes
 * begin both together, so that none depends on how many another takes. */
enum { PCG_MOST = 32 };

/* The rounding of x . kappa in float32, relative to |x| |kappa|. */
#define PCG_ROUNDING 0x1p-24

/* Relative errors in the norm of the system: where steps in float32 end for good; where they end if a
 * correction follows; what that must leave at least to be trusted; where the correction ends; the part of the
 * products' rounding from which on there is one. */
typedef struct pcg_bounds {
    float plain, before, trusted, after, rounding;
} pcg_bounds;

static inline pcg_bounds pcg_bounds_of(loam_dtype dtype)
{
    return dtype == LOAM_F32 ? (pcg_bounds){ 4e-6f, 1e-3f, 3e-2f, 3e-6f, 1e-6f }
                             : (pcg_bounds){ 2e-5f, 1e-4f, 3e-2f, 1e-5f, 1e-5f };
}

/* rz = r . z; size = p . M p of the direction p; energy = |x|_A^2; extent = sum_j p_j |kappa_j|^2; the others
 * as in cg_lanes. */
typedef struct pcg_lanes {
    float rz[LANES], size[LANES], least[LANES], energy[LANES], extent[LANES], unit[LANES];
    float live[LANES];
    bool begun[LANES], open[LANES];       /* with a b to solve for; not yet decided */
    bool exact[LANES];                    /* to be corrected by a residual in float64 */
    float *b, *x, *r, *direction, *image; /* [dim_qk][LANES]; b: by unit; image holds z between steps */
    pcg_bounds bounds;
} pcg_lanes;

/* z <- M^-1 r for the groups with a lane in `some`. */
static inline void pcg_precondition(const gram *g, const heavy *hv, int64_t d, const bool *some,
                                    const float *restrict r, float *restrict z)
{
    const int64_t blocks = factor_blocks(d);
    for (int64_t group = 0; group < GROUPS; group++) {
        if (!any_of_group(some, group)) continue;
        memset(g->z + d * GROUP, 0, (size_t)(blocks * FOUR - d) * GROUP * sizeof(float));
        for (int64_t c = 0; c < d; c++)
            memcpy(g->z + c * GROUP, r + c * LANES + group * GROUP, GROUP * sizeof(float));
        factor_solve(heavy_factor_of(hv, d, group), blocks, g->z);
        for (int64_t c = 0; c < d; c++)
            memcpy(z + c * LANES + group * GROUP, g->z + c * GROUP, GROUP * sizeof(float));
    }
}

/* The energy of x, and whether its products need float64. */
static inline void pcg_measure(pcg_lanes *k, int64_t d)
{
    float xb[LANES], xx[LANES];
    panel_dot(xb, k->x, k->b, d);
    panel_dot(xx, k->x, k->x, d);
    for (int lane = 0; lane < LANES; lane++) {
        const float rounding = PCG_ROUNDING * sqrtf(k->extent[lane] * xx[lane] / xb[lane]);
        k->energy[lane] = xb[lane];
        k->exact[lane] = rounding > k->bounds.rounding;
    }
}

/* A step; correcting: x is the correction of a solution whose energy is known. */
static inline void pcg_step(const block_system *sys, const gram *g, const heavy *hv, bool correcting,
                            pcg_lanes *k)
{
    const int64_t d = sys->x->p->dim_qk;
    float curvature[LANES], step[LANES], back[LANES], next[LANES], beta[LANES], going[LANES];
    block_apply_live(sys, hv->few, k->live, k->direction, k->image);
    panel_dot(curvature, k->direction, k->image, d);
    for (int lane = 0; lane < LANES; lane++) {
        const bool go = k->live[lane] != 0 && curvature[lane] > 0;
        step[lane] = go ? k->rz[lane] / curvature[lane] : 0;
        back[lane] = -step[lane];
        k->live[lane] = go;
        if (go) k->least[lane] = fminf(k->least[lane], curvature[lane] / k->size[lane]);
    }
    panel_axpy(k->x, d, step, k->direction);
    panel_axpy(k->r, d, back, k->image);
    pcg_precondition(g, hv, d, k->open, k->r, k->image);
    panel_dot(next, k->r, k->image, d);
    if (!correcting) pcg_measure(k, d);
    for (int lane = 0; lane < LANES; lane++) {
        const bool go = k->live[lane] != 0;
        const float stop = correcting ? k->bounds.after : k->exact[lane] ? k->bounds.before : k->bounds.plain;
        going[lane] = go;
        beta[lane] = go ? next[lane] / k->rz[lane] : 1;
        if (go) {
            k->rz[lane] = next[lane];
            k->size[lane] = next[lane] + beta[lane] * beta[lane] * k->size[lane];
        }
        k->live[lane] = go && next[lane] > stop * stop * k->least[lane] * k->energy[lane];
    }
    panel_scale(k->direction, d, beta);
    panel_axpy(k->direction, d, going, k->image);
}

/* Steps until no lane is live. */
static inline void pcg_steps(const block_system *sys, const gram *g, const heavy *hv, bool correcting,
                             pcg_lanes *k, block_result *result)
{
    for (int steps = 0; steps < PCG_MOST && live_lanes(k->live) > 0; steps++) {
        for (int lane = 0; lane < LANES; lane++)
            result->iterations[lane] += k->live[lane] != 0;
        pcg_step(sys, g, hv, correcting, k);
    }
}

/* The first direction, z, of the residual r. */
static inline void pcg_begin(const gram *g, const heavy *hv, int64_t d, pcg_lanes *k)
{
    pcg_precondition(g, hv, d, k->open, k->r, k->direction);
    panel_dot(k->rz, k->r, k->direction, d);
    memcpy(k->size, k->rz, sizeof k->size);
    for (int lane = 0; lane < LANES; lane++)
        k->live[lane] = k->open[lane];
}

/* r <- b - A x of the exact lanes, in float64; their x moves to g->solution. */
static inline void pcg_residual_exact(const block_system *sys, const gram *g, pcg_lanes *k)
{
    const int64_t d = sys->x->p->dim_qk;
    bool picked[LANES];
    int rows[LANES];
    for (int lane = 0; lane < LANES; lane++)
        picked[lane] = k->open[lane] && k->exact[lane];
    const int count = lanes_of(rows, picked);
    for (int first = 0; first < count; first += GROUP) {
        const int some = count - first < GROUP ? count - first : GROUP;
        gram_begin(sys, g, k->b, rows + first, some);
        for (int64_t c = 0; c < d; c++)
            for (int m = 0; m < GROUP; m++)
                g->x[c * GROUP + m] = (double)k->x[c * LANES + g->lane[m]];
        gram_residual(sys, g);
        for (int64_t c = 0; c < d; c++) {
            for (int m = 0; m < some; m++) {
                const int64_t at = c * LANES + g->lane[m];
                g->solution[at] = g->x[c * GROUP + m];
                k->r[at] = (float)g->r[c * GROUP + m];
                k->x[at] = 0;
            }
        }
    }
}

/* r <- b - A x of the other lanes. */
static inline void pcg_residual(const block_system *sys, const heavy *hv, pcg_lanes *k)
{
    const int64_t d = sys->x->p->dim_qk;
    float some[LANES];
    for (int lane = 0; lane < LANES; lane++)
        some[lane] = k->open[lane] && !k->exact[lane];
    if (live_lanes(some) == 0) return;
    block_apply_live(sys, hv->few, some, k->x, k->image);
    for (int64_t c = 0; c < d; c++) {
        FOR_LANES(lane)
        {
            const int64_t at = c * LANES + lane;
            const vec r = v_load(k->b + at) - v_load(k->image + at);
            v_store(k->r + at, v_select(v_load(some + lane) > 0, r, v_load(k->r + at)));
        }
    }
}

/* Replaces r by the true residual, and z, in the direction too: what the direction has of earlier ones stays,
 * so that the steps that follow go on as if there had been no rounding. The last step left z in image. */
static inline void pcg_replace(const block_system *sys, const gram *g, const heavy *hv, pcg_lanes *k)
{
    const int64_t d = sys->x->p->dim_qk;
    float rz[LANES], sign[LANES];
    panel_fill(sign, 1, -1);
    panel_axpy(k->direction, d, sign, k->image);
    pcg_residual(sys, hv, k);
    pcg_residual_exact(sys, g, k);
    pcg_precondition(g, hv, d, k->open, k->r, k->image);
    panel_fill(sign, 1, 1);
    panel_axpy(k->direction, d, sign, k->image);
    panel_dot(rz, k->r, k->image, d);
    for (int lane = 0; lane < LANES; lane++) {
        k->size[lane] += rz[lane] - k->rz[lane];
        k->rz[lane] = rz[lane];
    }
}

/* Decides by the residual r: lanes in float32 are accepted or not, exact ones stay open if their error can be
 * trusted to fall further. The rounding of b must not by itself exceed the tolerance, as in gram.h. */
static inline void pcg_judge(const heavy *hv, int64_t d, double tolerance, pcg_lanes *k, block_result *result)
{
    float bb[LANES], rr[LANES];
    double steepest[GROUPS][GROUP];
    panel_dot(bb, k->b, k->b, d);
    panel_dot(rr, k->r, k->r, d);
    for (int64_t group = 0; group < GROUPS; group++)
        factor_steepest(heavy_factor_of(hv, d, group), d, steepest[group]);
    for (int lane = 0; lane < LANES; lane++) {
        if (!k->open[lane]) continue;
        const double energy = (double)k->energy[lane];
        const double error = sqrt((double)k->rz[lane] / ((double)k->least[lane] * energy));
        const double of_b = GRAM_ROUNDING * steepest[lane / GROUP][lane % GROUP] *
                            sqrt((double)bb[lane] / energy);
        result->residual[lane] = sqrtf(rr[lane] / bb[lane]);
        result->accepted[lane] = !k->exact[lane] && of_b <= tolerance && error <= tolerance;
        k->open[lane] = k->exact[lane] && of_b <= tolerance && error <= (double)k->bounds.trusted;
        k->live[lane] = k->open[lane];
    }
}

/* Rows with b = 0 are accepted at once, with the x = 0 that they come with. They take no steps: what the
 * panels hold of them is undefined. */
static inline void pcg_start(const block_ridge *ridge, const float *restrict b, const bool *restrict wanted,
                             int64_t d, pcg_lanes *k, block_result *result)
{
    float bb[LANES], per_unit[LANES];
    lane_magnitudes(k->unit, b, d);
    for (int lane = 0; lane < LANES; lane++)
        per_unit[lane] = 1 / k->unit[lane];
    panel_copy(k->b, b, d);
    panel_scale(k->b, d, per_unit);
    panel_copy(k->r, k->b, d);
    panel_dot(bb, k->b, k->b, d);
    panel_fill(k->x, d, 0);
    for (int lane = 0; lane < LANES; lane++) {
        k->open[lane] = k->begun[lane] = wanted[lane] && bb[lane] > 0 && bb[lane] < INFINITY;
        k->exact[lane] = false;
        k->extent[lane] = ridge->variance[lane] * (float)d;
        k->least[lane] = INFINITY;
        if (wanted[lane] && bb[lane] == 0) {
            result->accepted[lane] = true;
            result->residual[lane] = 0;
        }
    }
}

/* Writes x of the lanes that are accepted, after the correction of the exact ones. */
static inline void pcg_finish(const gram *g, int64_t d, double tolerance, const pcg_lanes *k,
                              float *restrict x, block_result *result)
{
    for (int lane = 0; lane < LANES; lane++) {
        const double unit = (double)k->unit[lane];
        const double error2 = (double)k->rz[lane] / ((double)k->least[lane] * (double)k->energy[lane]);
        if (k->open[lane]) result->accepted[lane] = result->refined[lane] = error2 <= tolerance * tolerance;
        if (!k->begun[lane] || !result->accepted[lane]) continue;
        for (int64_t c = 0; c < d; c++) {
            const int64_t at = c * LANES + lane;
            g->solution[at] = ((k->open[lane] ? g->solution[at] : 0) + (double)k->x[at]) * unit;
            x[at] = (float)g->solution[at];
        }
    }
}

/* Solves for the lanes in `wanted`, and writes x and result of those that it accepts; adds to the iterations
 * of all. work: 3 panels. */
static inline void pcg_solve(const block_system *sys, float *const work[3], const gram *g, const heavy *hv,
                             const block_ridge *ridge, const float *restrict b, const bool *restrict wanted,
                             float *restrict x, block_result *result)
{
    const int64_t d = sys->x->p->dim_qk;
    const loam_dtype dtype = sys->x->p->dtype;
    const double tolerance = (double)block_tolerance(dtype);
    pcg_lanes k = { .b = hv->b, .x = hv->x, .r = work[0], .direction = work[1], .image = work[2] };
    k.bounds = pcg_bounds_of(dtype);
    pcg_start(ridge, b, wanted, d, &k, result);
    heavy_factors(sys, g, hv, b, k.begun);
    pcg_begin(g, hv, d, &k);
    pcg_steps(sys, g, hv, false, &k, result);
    pcg_replace(sys, g, hv, &k);
    pcg_judge(hv, d, tolerance, &k, result);
    pcg_steps(sys, g, hv, true, &k, result);
    pcg_finish(g, d, tolerance, &k, x, result);
}

#endif
