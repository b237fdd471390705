/* SPDX-License-Identifier: MIT
 *
 * LLA decode, in two ways.
 *
 * Moments: mean and second moment of the keys only, by float32 products over small tiles, summed in float64.
 * They determine the probe. A second pass over keys and values with that probe costs 2 (dim_qk + dim_v)
 * operations per key, against dim_qk dim_v for sum w v' k'^T. The price is float32 rounding: an entry of the
 * second moment has an error of about 2^-24 times the largest entry, independent from tile to tile. So the
 * state carries
 *
 *     noise^2 = (largest second moment)^2 (sum over tiles of omega_tile^2) / omega^2
 *
 * which merges like a sum of squares; 2^-24 noise / (omega pivot) is the relative error of the probe. Rows
 * where that is too large are computed again.
 *
 * Exact: the whole partial state of loam.h, in float64 except for scores and weights.
 */
#ifndef LOAM_LOCAL_CPU_DECODE_SOLVED_H
#define LOAM_LOCAL_CPU_DECODE_SOLVED_H

#include "src/local/cpu/decode_block.h"
#include "src/simd/gram.h"

/* The largest noise / (omega pivot) at which a probe from float32 moments is accepted. Measured on normal,
 * shifted, anisotropic, rotated, clustered and self-retrieving keys, 40 to 20000 of them: the error of the
 * output is at most 4e-7 times this number, 2e-5. */
#define MOST_NOISE 50.0

/* Below this least pivot, products of keys may underflow in float32; above this probe, its products with keys
 * may overflow. */
#define LEAST_PIVOT 1e-24
#define MOST_PROBE 1e18

/* ------------------------------------------------------------------ moments */

typedef struct moments {
    double m, omega, omega2; /* omega2: sum over tiles of omega_tile^2 */
} moments;

static inline void scale_moments(block *k, moments *s, double m)
{
    const double factor = s->m > -INFINITY ? exp(s->m - m) : 0;
    s->m = m, s->omega *= factor, s->omega2 *= factor * factor;
    for (int64_t e = 0; e < k->stride * k->stride; e++)
        k->gram[e] *= factor;
    for (int64_t c = 0; c < k->stride; c++)
        k->mean[c] *= factor;
}

/* Adds one tile to the moments of a row. next: the tile that follows, to prefetch. */
static inline void moments_tile(block *k, int64_t slot, int64_t j, int64_t n, const table *next, moments *s)
{
    const table keys = keys_of(k, j, n);
    const table scaled = { (const char *)k->scaled, k->stride * (int64_t)sizeof(float), n, k->stride,
                           LOAM_F32 };
    table_dots(&keys, k->origin, k->row[slot].sc.rbf, 1,
               (table_rows){ k->query + slot * k->stride, k->w, k->stride, k->keys });
    const float best = tile_scores(k, &k->row[slot], j, n, k->w);
    if (!(best > -INFINITY)) return;
    if ((double)best > s->m) scale_moments(k, s, (double)best);
    const double omega = tile_weights(k->w, n, (float)s->m, true);
    s->omega += omega, s->omega2 += omega * omega;
    table_scaled(&keys, k->origin, k->w, k->scaled, k->stride);
    table_weigh(&scaled, 1, (table_rows){ k->w, k->sums, k->keys, k->stride });
    for (int64_t c = 0; c < k->stride; c++)
        k->mean[c] += (double)k->sums[c];
    gram_add(k->gram, k->scaled, k->stride, n, next);
}

/* Writes the state of loam.h with dim_v = 0, and noise^2 after it. */
static inline void moments_end(const block *k, int64_t slot, const moments *s, double *state)
{
    const int64_t d = k->x.p->dim_qk, stride = k->stride;
    double *kbar = state + 2, *kk = kbar + d, largest = 0;
    for (int64_t r = 0; r < d; r++) {
        const double mean = k->mean[r];
        largest = fmax(largest, k->gram[r * stride + r]);
        for (int64_t c = 0; c <= r; c++)
            *kk++ = k->gram[r * stride + c] - mean * (k->mean[c] / s->omega);
        kbar[r] = (double)k->origin[r] + mean / s->omega;
    }
    state[0] = s->m + k->row[slot].dropped;
    state[1] = s->omega;
    *kk = largest * largest * (s->omega2 / (s->omega * s->omega));
}

/* Row by row: the time goes into products, not into loading the keys. */
static inline void moments_split(block *k, int64_t begin, int64_t end, double *states, int64_t size)
{
    for (int64_t slot = 0; slot < k->c.rows; slot++) {
        moments s = { -INFINITY, 0, 0 };
        memset(k->gram, 0, (size_t)(k->stride * k->stride) * sizeof(double));
        memset(k->mean, 0, (size_t)k->stride * sizeof(double));
        for (int64_t j = begin; j < end; j += k->gram_keys) {
            const int64_t n = clamp_to(end - j, 0, k->gram_keys);
            const table next = keys_of(k, j + n, clamp_to(end - j - n, 0, k->gram_keys));
            moments_tile(k, slot, j, n, &next, &s);
        }
        if (s.omega > 0) moments_end(k, slot, &s, states + slot * size);
    }
}

/* into += from, with noise^2. p has dim_v = 0. */
static inline void moments_merge(const loam_problem *p, double *into, const double *from)
{
    const size_t noise = local_state_doubles(p);
    const double before = into[0];
    local_state_merge(p, into, from);
    const double fa = into[1] > 0 && before > -INFINITY ? exp(2 * (before - into[0])) : 0;
    const double fb = from[1] > 0 ? exp(2 * (from[0] - into[0])) : 0;
    into[noise] = fa * into[noise] + fb * from[noise];
}

/* The probe from the merged moments; returns false where float32 is not accurate enough. scratch: of
 * local_state_probe. */
static inline bool moments_probe(const loam_problem *p, const loam_args *a, const local_seq *s, int64_t h,
                                 int64_t i, const double *state, double *scratch, double *rho,
                                 loam_row_info *info)
{
    *info = local_state_probe(p, a, s, h, i, state, scratch, rho);
    if (info->code != LOAM_ROW_SOLVED) return info->code == LOAM_ROW_EMPTY;
    const double noise = sqrt(state[local_state_doubles(p)]) / state[1],
                 pivot = local_state_least_pivot(p, scratch);
    bool fits = pivot > LEAST_PIVOT && noise <= MOST_NOISE * pivot;
    for (int64_t c = 0; c < p->dim_qk; c++)
        fits = fits && fabs(rho[c]) < MOST_PROBE;
    return fits;
}

/* ------------------------------------------------------------------ exact */

/* mean[c] <- weighted mean of the tile; rows <- tile - mean, 0 beyond n. */
static inline void centre(double *restrict rows, double *restrict mean, const float *restrict w,
                          const float *restrict tile, int64_t n, int64_t channels, double omega)
{
    for (int64_t c = 0; c < channels; c++)
        mean[c] = 0;
    for (int64_t r = 0; r < n; r++)
        for (int64_t c = 0; c < channels; c++)
            mean[c] += (double)w[r] * (double)tile[r * channels + c];
    for (int64_t c = 0; c < channels; c++)
        mean[c] /= omega;
    for (int64_t r = 0; r < TILE_KEYS; r++)
        for (int64_t c = 0; c < channels; c++)
            rows[r * channels + c] = r < n ? (double)tile[r * channels + c] - mean[c] : 0;
}

/* out[c] += sum over four rows of x[e] rows[e][c]. */
static inline void add_four(double *restrict out, const double x[4], const double *restrict rows,
                            int64_t stride, int64_t n)
{
    const double *r0 = rows, *r1 = rows + stride, *r2 = rows + 2 * stride, *r3 = rows + 3 * stride;
    for (int64_t c = 0; c < n; c++)
        out[c] += x[0] * r0[c] + x[1] * r1[c] + x[2] * r2[c] + x[3] * r3[c];
}

static inline void exact_tile(const block *k, const float *restrict w, int64_t n, double omega,
                              double *restrict state)
{
    const int64_t d = k->x.p->dim_qk, dv = k->x.p->dim_v;
    double *kbar = state + 2, *vbar = kbar + d, *kk = vbar + dv, *vk = kk + d * (d + 1) / 2;
    centre(k->kd, kbar, w, k->tile_k, n, d, omega);
    centre(k->vd, vbar, w, k->tile_v, n, dv, omega);
    memset(kk, 0, (size_t)(d * (d + 1) / 2 + dv * d) * sizeof(double));
    for (int64_t r = 0; r < n; r += 4) {
        double x[4];
        for (int64_t c = 0; c < d; c++) {
            for (int64_t e = 0; e < 4; e++)
                x[e] = (r + e < n ? (double)w[r + e] : 0) * k->kd[(r + e) * d + c];
            add_four(kk + c * (c + 1) / 2, x, k->kd + r * d, d, c + 1);
        }
        for (int64_t c = 0; c < dv; c++) {
            for (int64_t e = 0; e < 4; e++)
                x[e] = (r + e < n ? (double)w[r + e] : 0) * k->vd[(r + e) * dv + c];
            add_four(vk + c * d, x, k->kd + r * d, d, d);
        }
    }
}

/* The state of one row of the chunk over keys begin .. end - 1. On entry it is clear. */
static inline void exact_split(block *k, int64_t slot, int64_t begin, int64_t end, double *state)
{
    const loam_problem *p = k->x.p;
    const loam_args *a = k->x.a;
    for (int64_t j = begin; j < end; j += TILE_KEYS) {
        const int64_t n = end - j < TILE_KEYS ? end - j : TILE_KEYS, stored = j - k->c.first;
        const table keys = keys_of(k, j, n);
        table_dots(&keys, k->origin, k->row[slot].sc.rbf, 1,
                   (table_rows){ k->query + slot * k->stride, k->w, k->stride, k->keys });
        const float best = tile_scores(k, &k->row[slot], j, n, k->w);
        if (!(best > -INFINITY)) continue;
        load_rows(k->tile_k, &a->k, p->dtype, k->c.s.b, k->c.h_kv, stored, n, p->dim_qk);
        load_rows(k->tile_v, &a->v, p->dtype, k->c.s.b, k->c.h_kv, stored, n, p->dim_v);
        k->tile_state[0] = (double)best + k->row[slot].dropped;
        k->tile_state[1] = tile_weights(k->w, n, best, false);
        exact_tile(k, k->w, n, k->tile_state[1], k->tile_state);
        local_state_merge(p, state, k->tile_state);
    }
}

#endif
