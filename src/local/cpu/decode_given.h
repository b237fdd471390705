/* SPDX-License-Identifier: MIT
 *
 * The partial state, over one split, of rows whose probe is known (none, given, or solved for before): two
 * products with each tile of keys and values, each read once for up to four rows. Weights w are relative to
 * the running maximum of the scores. Sums within a tile are float32, sums over tiles float64. With
 * t = probe . k and c the weighted mean of t in a tile, a tile adds
 *
 *     sum w v,    sum w (t - c) + omega c  to sum w t,    sum w (t - c) v + c sum w v  to sum w t v
 *
 * so that no large c cancels in the float32 sums.
 */
#ifndef LOAM_LOCAL_CPU_DECODE_GIVEN_H
#define LOAM_LOCAL_CPU_DECODE_GIVEN_H

#include "src/local/cpu/decode_block.h"

/* During a split a state holds sums in place of means: m, omega, [sum w t], sum w v, [sum w t v].
 * Rescales it to m. */
static inline void scale_state(double *state, int64_t doubles, double m)
{
    const double factor = state[0] > -INFINITY ? exp(state[0] - m) : 0;
    state[0] = m;
    for (int64_t e = 1; e < doubles; e++)
        state[e] *= factor;
}

/* t <- w (t - mean), with the weighted mean of t in the tile, which is returned; adds the sum of w
 * t to *sum. */
static inline float centre_products_of(const float *restrict w, float *restrict t, int64_t n, double omega,
                                       double *restrict sum)
{
    vec total = v_set(0), left = v_set(0);
    for (int64_t e = n; e < whole_vectors(n); e++)
        t[e] = 0;
    for (int64_t e = 0; e < n; e += VL)
        total += v_load(w + e) * v_load(t + e);
    const float mean = v_sum(total) / (float)omega;
    for (int64_t e = 0; e < n; e += VL) {
        const vec wt = v_load(w + e) * (v_load(t + e) - mean);
        left += wt;
        v_store(t + e, wt);
    }
    *sum += (double)v_sum(left) + omega * (double)mean;
    return mean;
}

/* Adds keys j .. j + n - 1 to the states of rows slot .. slot + rows - 1 of the chunk. */
static inline void given_tile(block *k, int64_t slot, int64_t rows, int64_t j, int64_t n, double *states,
                              int64_t size)
{
    const bool probed = k->x.p->mechanism != LOAM_SOFTMAX;
    const int64_t dv = k->x.p->dim_v;
    const table keys = keys_of(k, j, n), values = values_of(k, j, n);
    float mean[SHARE_ROWS] = { 0 };
    table_dots(&keys, k->origin, k->row[slot].sc.rbf, rows,
               (table_rows){ k->query + slot * k->stride, k->w, k->stride, k->keys });
    if (probed) {
        table_dots(&keys, k->origin, false, rows,
                   (table_rows){ k->probe + slot * k->stride, k->w + rows * k->keys, k->stride, k->keys });
    }
    for (int64_t r = 0; r < rows; r++) {
        float *w = k->w + r * k->keys, *t = w + rows * k->keys;
        double *state = states + (slot + r) * size;
        const float best = tile_scores(k, &k->row[slot + r], j, n, w);
        if (!(best > -INFINITY)) {
            memset(w, 0, (size_t)n * sizeof(float));
            memset(t, 0, probed ? (size_t)n * sizeof(float) : 0);
            continue;
        }
        if ((double)best > state[0]) scale_state(state, size, (double)best);
        const double omega = tile_weights(w, n, (float)state[0], false);
        state[1] += omega;
        if (probed && omega > 0)
            mean[r] = centre_products_of(w, t, n, omega, &state[2]);
        else if (probed)
            memset(t, 0, (size_t)n * sizeof(float));
    }
    table_weigh(&values, probed ? 2 * rows : rows, (table_rows){ k->w, k->sums, k->keys, k->stride_v });
    for (int64_t r = 0; r < rows; r++) {
        const float *sum = k->sums + r * k->stride_v, *sum_t = sum + rows * k->stride_v;
        double *v = states + (slot + r) * size + 2 + probed;
        for (int64_t c = 0; c < dv; c++)
            v[c] += (double)sum[c];
        for (int64_t c = 0; probed && c < dv; c++)
            v[dv + c] += (double)sum_t[c] + (double)mean[r] * (double)sum[c];
    }
}

/* Converts the sums into the means and centred sums of loam.h. */
static inline void given_end(const block *k, int64_t slot, double *state)
{
    const bool probed = k->x.p->mechanism != LOAM_SOFTMAX;
    const int64_t dv = k->x.p->dim_v;
    double *v = state + 2 + probed;
    if (!(state[1] > 0)) return;
    state[0] += k->row[slot].dropped;
    if (probed) {
        const double mean = state[2] / state[1];
        for (int64_t c = 0; c < dv; c++)
            v[dv + c] -= mean * v[c];
        state[2] = mean + dot64(k->probe + slot * k->stride, k->origin, k->x.p->dim_qk);
    }
    for (int64_t c = 0; c < dv; c++)
        v[c] /= state[1];
}

/* The states of the chunk over keys begin .. end - 1. On entry they are clear. */
static inline void given_split(block *k, int64_t begin, int64_t end, double *states, int64_t size)
{
    for (int64_t j = begin; j < end; j += k->keys) {
        const int64_t n = end - j < k->keys ? end - j : k->keys;
        for (int64_t slot = 0; slot < k->c.rows; slot += SHARE_ROWS) {
            const int64_t left = k->c.rows - slot;
            given_tile(k, slot, left < SHARE_ROWS ? left : SHARE_ROWS, j, n, states, size);
        }
    }
    for (int64_t slot = 0; slot < k->c.rows; slot++)
        given_end(k, slot, states + slot * size);
}

#endif
