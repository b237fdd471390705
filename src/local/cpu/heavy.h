/* SPDX-License-Identifier: MIT
 *
 * For each row of a block, the Cholesky factor of a matrix near Cov + Lambda that costs a fraction of it: the
 * preconditioner of local/cpu/pcg.h. A row of a trained model has most of its weight on a few of its keys,
 * and the remaining ones differ little from row to row. So for GROUP rows side by side
 *
 *     A_i ~ sum_heavy p_ij kappa_ij kappa_ij^T + mass_i C + Lambda_i,
 *
 * heavy: the keys with the largest weight in any of these rows, with each row's own weights; light: all other
 * keys, mass_i their weight in row i, C their covariance by the weights summed over the rows, around the mean
 * of the rows' kbar. Sums of squares only, so that the matrix is positive definite.
 *
 * The rows of a group are fixed by their place in the sequence, and so are the bits of the factor.
 */
#ifndef LOAM_LOCAL_CPU_HEAVY_H
#define LOAM_LOCAL_CPU_HEAVY_H

#include "src/local/cpu/gram.h"
#include "src/simd/gram.h"

/* Weights are told apart by the upper bits of the float: eight bins for each power of two up to 1. */
enum { WEIGHT_BINS = 1024, WEIGHT_SHIFT = 20, GROUPS = LANES / GROUP };

typedef struct heavy {
    float *factor;      /* [GROUPS] factors of local/cpu/factor.h; the first is that of gram */
    float *most, *mean; /* [keys rounded up to tiles]: the largest p of the group, and the sum; 0: heavy */
    int32_t *key;       /* [keys]: the heavy ones */
    float *apart;       /* [TILE_KEYS][whole_vectors(dim_qk)]: sqrt(mean) (k' - centre) */
    double
        *tail; /* [whole_vectors(dim_qk)][whole_vectors(dim_qk)], lower triangle: C times the sum of mean */
    float *centre; /* [dim_qk] */
    float *b, *x;  /* [dim_qk][LANES], of local/cpu/pcg.h */
    few_lanes few; /* likewise */
} heavy;

static inline heavy heavy_carve(const loam_problem *p, arena *pool, gram *g)
{
    const size_t f = sizeof(float), stride = (size_t)whole_vectors(p->dim_qk);
    const size_t keys = ((size_t)p->len_kv + TILE_KEYS - 1) / TILE_KEYS * TILE_KEYS;
    heavy hv = { 0 };
    hv.factor = arena_take(pool, GROUPS * (size_t)factor_block_at(factor_blocks(p->dim_qk)), f);
    hv.most = arena_take(pool, keys, f);
    hv.mean = arena_take(pool, keys, f);
    hv.key = arena_take(pool, keys, sizeof(int32_t));
    hv.apart = arena_take(pool, TILE_KEYS * stride, f);
    hv.tail = arena_take(pool, stride * stride, sizeof(double));
    hv.centre = arena_take(pool, (size_t)p->dim_qk, f);
    hv.b = arena_take(pool, (size_t)p->dim_qk * LANES, f);
    hv.x = arena_take(pool, (size_t)p->dim_qk * LANES, f);
    hv.few.v = arena_take(pool, (size_t)p->dim_qk * LANES, f);
    hv.few.image = arena_take(pool, (size_t)p->dim_qk * LANES, f);
    hv.few.weights = arena_take(pool, TILE_KEYS * LANES, f);
    g->factor = hv.factor;
    return hv;
}

static inline float *heavy_factor_of(const heavy *hv, int64_t d, int64_t group)
{
    return hv->factor + group * factor_block_at(factor_blocks(d));
}

/* The most heavy keys of a group whose block sees n keys: their matrices cost as much as four sweeps of
 * conjugate gradients. */
static inline int64_t heavy_limit(int64_t d, int64_t n)
{
    const int64_t share = 16 * n / d;
    return share > 2 * d ? share : 2 * d;
}

/* Rows of fewer keys have a factor of all of them for little more. */
static inline bool heavy_serves(const block_system *sys, int64_t lane)
{
    return sys->l->hi[lane] - sys->l->lo[lane] > 2 * sys->x->p->dim_qk;
}

/* What the factors of a block and the steps with them cost, in sweeps of plain conjugate gradients. */
static inline float heavy_worth(int64_t d) { return 14 + (float)d / 32; }

/* most, mean, and the weight of all keys in each row of the group. */
static inline void heavy_weigh(const block_system *sys, const heavy *hv, int64_t group, float *restrict total)
{
    float p[TILE_KEYS * GROUP], turned[GROUP * TILE_KEYS];
    for (int m = 0; m < GROUP; m++)
        total[m] = 0;
    for (int64_t j = sys->l->first; j < sys->l->last; j += TILE_KEYS) {
        const int64_t at = j - sys->l->first, n = sys->l->last - j < TILE_KEYS ? sys->l->last - j : TILE_KEYS;
        memset(p, 0, sizeof p);
        for (int m = 0; m < GROUP; m += VL) {
            const vec inverse = v_load(sys->inverse + group * GROUP + m);
            vec sum = v_load(total + m);
            for (int64_t r = 0; r < n; r++) {
                const vec x = v_load(sys->weights + (at + r) * LANES + group * GROUP + m) * inverse;
                sum += x;
                v_store(p + r * GROUP + m, x);
            }
            v_store(total + m, sum);
        }
        transpose_tile(turned, TILE_KEYS, p, GROUP, TILE_KEYS, GROUP);
        for (int r = 0; r < TILE_KEYS; r += VL) {
            vec most = v_set(0), sum = v_set(0);
            for (int m = 0; m < GROUP; m++) {
                const vec x = v_load(turned + m * TILE_KEYS + r);
                most = v_max(x, most);
                sum += x;
            }
            v_store(hv->most + at + r, most);
            v_store(hv->mean + at + r, sum);
        }
    }
}

/* The bin of a weight; NaN, of rows that overflowed, is in the highest. */
static inline int32_t weight_bin(float p)
{
    const uint32_t bin = bits_from_float(p) >> WEIGHT_SHIFT;
    return bin < WEIGHT_BINS ? (int32_t)bin : WEIGHT_BINS - 1;
}

/* Lists the heavy keys: whole bins from the largest weights down, so that ties stay together, as long as
 * there are at most `limit`. Clears their mean. Returns their number; *light: the sum of mean over the light
 * ones. */
static inline int64_t heavy_select(const heavy *hv, int64_t first, int64_t n, int64_t limit, double *light)
{
    int32_t count[WEIGHT_BINS] = { 0 };
    int32_t cut = WEIGHT_BINS;
    int64_t kept = 0;
    for (int64_t j = 0; j < n; j++)
        count[weight_bin(hv->most[j])]++;
    for (int64_t some = 0; cut > 0 && some + count[cut - 1] <= limit; cut--)
        some += count[cut - 1];
    *light = 0;
    for (int64_t j = 0; j < n; j++) {
        if (weight_bin(hv->most[j]) >= cut) {
            hv->key[kept++] = (int32_t)(first + j);
            hv->mean[j] = 0;
        } else {
            *light += (double)hv->mean[j];
        }
    }
    return kept;
}

/* The sum over the heavy keys, in the group's factor; takes their weights from `mass`. */
static inline void heavy_matrix(const block_system *sys, const gram *g, const heavy *hv, int64_t count,
                                float *restrict mass)
{
    const int64_t d = sys->x->p->dim_qk;
    gram_clear(g, d);
    for (int64_t from = 0; from < count; from += TILE_KEYS) {
        sys->tile->n = count - from < TILE_KEYS ? count - from : TILE_KEYS;
        for (int64_t r = 0; r < sys->tile->n; r++) {
            const int64_t j = hv->key[from + r];
            load_keys(sys->tile->keys + r * d, sys->x, j, 1);
            gram_gather(g, g->weights + r * GROUP, sys->weights + (j - sys->l->first) * LANES, 1);
        }
        gram_normalise(sys, g);
        for (int64_t r = 0; r < sys->tile->n; r++)
            for (int m = 0; m < GROUP; m++)
                mass[m] -= g->weights[r * GROUP + m];
        gram_add_tile(sys, g);
    }
    gram_compensate(g, d);
}

/* tail <- sum over the light keys of mean (k' - centre) (k' - centre)^T. */
static inline void heavy_tail(const block_system *sys, const gram *g, const heavy *hv)
{
    const int64_t d = sys->x->p->dim_qk, stride = whole_vectors(d);
    const table none = { 0 };
    for (int64_t c = 0; c < d; c++) {
        float sum = 0;
        for (int m = 0; m < GROUP; m++)
            sum += g->kbar[c * GROUP + m];
        hv->centre[c] = sum * (1.0f / GROUP);
    }
    memset(hv->tail, 0, (size_t)(stride * stride) * sizeof(double));
    memset(hv->apart, 0, (size_t)(TILE_KEYS * stride) * sizeof(float));
    for (int64_t j = sys->l->first; j < sys->l->last; j += TILE_KEYS) {
        const int64_t n = sys->l->last - j < TILE_KEYS ? sys->l->last - j : TILE_KEYS;
        load_keys(sys->tile->keys, sys->x, j, n);
        for (int64_t r = 0; r < n; r++) {
            const float root = sqrtf(hv->mean[j - sys->l->first + r]);
            for (int64_t c = 0; c < d; c++)
                hv->apart[r * stride + c] = root * (sys->tile->keys[r * d + c] - hv->centre[c]);
        }
        gram_add(hv->tail, hv->apart, stride, n, &none);
    }
}

/* Adds share[m] tail to the lower triangle of each row. */
static inline void heavy_add_tail(const gram *g, const heavy *hv, int64_t d, const float *restrict share)
{
    const int64_t stride = whole_vectors(d);
    for (int64_t r = 0; r < d; r++) {
        float *row = g->factor + factor_block_at(r / FOUR) + r % FOUR * GROUP;
        for (int64_t c = 0; c <= r; c++) {
            const float x = (float)hv->tail[r * stride + c];
            for (int m = 0; m < GROUP; m += VL)
                v_store(row + c * LANES + m, v_load(row + c * LANES + m) + v_load(share + m) * x);
        }
    }
}

/* The factor of one group. g: gram, whose factor this is. */
static inline void heavy_group(const block_system *sys, const gram *g, const heavy *hv, const float *b,
                               int64_t group)
{
    const int64_t d = sys->x->p->dim_qk, n = sys->l->last - sys->l->first;
    int lanes_of_group[GROUP];
    float mass[GROUP];
    double light;
    for (int m = 0; m < GROUP; m++)
        lanes_of_group[m] = (int)group * GROUP + m;
    gram_begin(sys, g, b, lanes_of_group, GROUP);
    heavy_weigh(sys, hv, group, mass);
    const int64_t count = heavy_select(hv, sys->l->first, n, heavy_limit(d, n), &light);
    heavy_matrix(sys, g, hv, count, mass);
    if (light > 0) {
        for (int m = 0; m < GROUP; m++)
            mass[m] = fmaxf(mass[m], 0) * (float)(1 / light);
        heavy_tail(sys, g, hv);
        heavy_add_tail(g, hv, d, mass);
    }
    gram_add_ridge(g, d);
    factor_make(g->factor, factor_blocks(d));
}

static inline bool any_of_group(const bool *some, int64_t group)
{
    bool any = false;
    for (int m = 0; m < GROUP; m++)
        any |= some[group * GROUP + m];
    return any;
}

/* The factors of the groups that have a lane in `wanted`. */
static inline void heavy_factors(const block_system *sys, const gram *g, const heavy *hv, const float *b,
                                 const bool *restrict wanted)
{
    for (int64_t group = 0; group < GROUPS; group++) {
        gram one = *g;
        one.factor = heavy_factor_of(hv, sys->x->p->dim_qk, group);
        if (any_of_group(wanted, group)) heavy_group(sys, &one, hv, b, group);
    }
}

#endif
