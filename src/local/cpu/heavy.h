/* SPDX-License-Identifier: MIT
 *
 * For each row of a block, the Cholesky factor of a matrix near Cov + Lambda that costs a fraction of it: the
 * preconditioner of local/cpu/pcg.h. A row of a trained model has most of its weight on a few of its keys,
 * and the remaining ones differ little from row to row. So for GROUP rows side by side
 *
 *     A_i ~ sum_heavy p_ij kappa_ij kappa_ij^T + mass_i C + Lambda_i,
 *
 * heavy: the keys of the largest weights of row i and of the rows of the group before it; light: all others,
 * mass_i their weight in row i; C: the covariance of the light keys of the group's first row by its weights,
 * around its mean. Sums of squares only, so that the matrix is positive definite.
 *
 * A row's factor depends on rows of its group before it, but on none after it: causal results do not change
 * with later tokens. A heavy key of a later row only adds zeros.
 */
#ifndef LOAM_LOCAL_CPU_HEAVY_H
#define LOAM_LOCAL_CPU_HEAVY_H

#include "src/local/cpu/gram.h"
#include "src/simd/gram.h"

/* Light keys below this part of their mean weight are left out of C: half of them, with 4 % of the weight,
 * and no more steps follow. */
#define HEAVY_TAIL 0.3f

/* The least heavy weight is 2^(-n / 4), n < HEAVY_LEVELS. */
enum { HEAVY_LEVELS = 128, GROUPS = LANES / GROUP };

typedef struct heavy {
    float *factor; /* [GROUPS] factors of local/cpu/factor.h; the first is that of gram */
    float *light;  /* [keys]: p of the group's first row; 0 where it is heavy */
    int32_t *key;  /* [keys]: the heavy ones */
    int8_t *from;  /* [keys]: the row of the group from which on each of these is heavy */
    float *apart;  /* [TILE_KEYS][whole_vectors(dim_qk)]: sqrt(light) (k' - centre) */
    double *tail;  /* [whole_vectors(dim_qk)] twice, lower triangle: C times the sum of light */
    float *centre; /* [dim_qk] */
    float *b, *x;  /* [dim_qk][LANES], of local/cpu/pcg.h */
    few_lanes few; /* likewise */
} heavy;

static inline heavy heavy_carve(const loam_problem *p, arena *pool, gram *g)
{
    const size_t f = sizeof(float), stride = (size_t)whole_vectors(p->dim_qk);
    const size_t keys = (size_t)p->len_kv;
    heavy hv = { 0 };
    hv.factor = arena_take(pool, GROUPS * (size_t)factor_block_at(factor_blocks(p->dim_qk)), f);
    hv.light = arena_take(pool, keys, f);
    hv.key = arena_take(pool, keys, sizeof(int32_t));
    hv.from = arena_take(pool, keys, sizeof(int8_t));
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

/* The most keys that a row of a block that sees n keys calls heavy; a group of a trained model's rows comes
 * to about twice as many. */
static inline int64_t heavy_limit(int64_t d, int64_t n)
{
    const int64_t share = 6 * n / d, least = 2 * d;
    return share > least ? share : least;
}

/* Rows of fewer keys have a factor of all of them for little more. */
static inline bool heavy_serves(const block_system *sys, int64_t lane)
{
    return sys->l->hi[lane] - sys->l->lo[lane] > 2 * sys->x->p->dim_qk;
}

/* What the factors of a block and the steps with them cost, in sweeps of plain conjugate gradients. */
static inline float heavy_worth(int64_t d) { return 14 + (float)d / 32; }

/* least[lane]: the smallest level above which a lane has at most `limit` weights, as a weight that is not
 * normalised. */
static inline void heavy_levels(const block_system *sys, int64_t limit, float *restrict least)
{
    const int64_t n = sys->l->last - sys->l->first;
    /* Level `low` is a solution, low + 2 * step none or not one to be tried. */
    int32_t low[LANES], count[LANES];
    memset(low, 0, sizeof low);
    for (int step = HEAVY_LEVELS / 2; step > 0; step /= 2) {
        for (int lane = 0; lane < LANES; lane++)
            least[lane] = exp2f(-0.25f * (float)(low[lane] + step)) / sys->inverse[lane];
        FOR_LANES(lane)
        {
            const vec level = v_load(least + lane);
            vmask sum = v_set_int(0);
            for (int64_t r = 0; r < n; r++)
                sum -= v_load(sys->weights + r * LANES + lane) > level;
            memcpy(count + lane, &sum, sizeof sum);
        }
        for (int lane = 0; lane < LANES; lane++)
            low[lane] += count[lane] <= limit ? step : 0;
    }
    for (int lane = 0; lane < LANES; lane++)
        least[lane] = exp2f(-0.25f * (float)low[lane]) / sys->inverse[lane];
}

/* Lists the heavy keys of a group and fills `light`. Returns their number; *sum: of light. */
static inline int64_t heavy_select(const block_system *sys, const heavy *hv, int64_t group,
                                   const float *restrict least, double *sum)
{
    const int64_t n = sys->l->last - sys->l->first;
    int64_t kept = 0;
    *sum = 0;
    for (int64_t r = 0; r < n; r++) {
        const float *w = sys->weights + r * LANES + group * GROUP;
        int from = 0, any = 0;
        for (int m = 0; m < GROUP; m++)
            any |= w[m] > least[group * GROUP + m];
        while (any && !(w[from] > least[group * GROUP + from]))
            from++;
        if (any) {
            hv->key[kept] = (int32_t)(sys->l->first + r);
            hv->from[kept++] = (int8_t)from;
        }
        hv->light[r] = any && from == 0 ? 0 : w[0] * sys->inverse[group * GROUP];
        *sum += (double)hv->light[r];
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
        for (int64_t r = 0; r < sys->tile->n; r++) {
            memset(g->weights + r * GROUP, 0, (size_t)hv->from[from + r] * sizeof(float));
            for (int m = 0; m < GROUP; m++)
                mass[m] -= g->weights[r * GROUP + m];
        }
        gram_add_tile(sys, g);
    }
    gram_compensate(g, d);
}

/* tail <- sum of light (k' - centre) (k' - centre)^T over the keys whose weight is above `least`; *sum: of
 * these. */
static inline void heavy_tail(const block_system *sys, const gram *g, const heavy *hv, float least,
                              double *sum)
{
    const int64_t d = sys->x->p->dim_qk, stride = whole_vectors(d), n = sys->l->last - sys->l->first;
    const table none = { 0 };
    int64_t kept = 0;
    *sum = 0;
    for (int64_t c = 0; c < d; c++)
        hv->centre[c] = g->kbar[c * GROUP];
    memset(hv->tail, 0, (size_t)(stride * stride) * sizeof(double));
    memset(hv->apart, 0, (size_t)(TILE_KEYS * stride) * sizeof(float));
    for (int64_t r = 0; r < n; r++) {
        if (hv->light[r] > least) {
            const float root = sqrtf(hv->light[r]);
            load_keys(sys->tile->keys, sys->x, sys->l->first + r, 1);
            for (int64_t c = 0; c < d; c++)
                hv->apart[kept * stride + c] = root * (sys->tile->keys[c] - hv->centre[c]);
            *sum += (double)hv->light[r];
            kept++;
        }
        if (kept == TILE_KEYS || (kept > 0 && r == n - 1)) {
            gram_add(hv->tail, hv->apart, stride, kept, &none);
            kept = 0;
        }
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
                               const float *least, int64_t group)
{
    const int64_t d = sys->x->p->dim_qk;
    int lanes_of_group[GROUP];
    float mass[GROUP];
    double light;
    for (int m = 0; m < GROUP; m++) {
        lanes_of_group[m] = (int)group * GROUP + m;
        mass[m] = 1;
    }
    gram_begin(sys, g, b, lanes_of_group, GROUP);
    const int64_t count = heavy_select(sys, hv, group, least, &light);
    heavy_matrix(sys, g, hv, count, mass);
    if (light > 0) {
        const float mean = (float)(light / (double)(sys->l->last - sys->l->first));
        heavy_tail(sys, g, hv, HEAVY_TAIL * mean, &light);
        for (int m = 0; m < GROUP; m++)
            mass[m] = fmaxf(mass[m], 0) * (float)(1 / light);
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
    const int64_t d = sys->x->p->dim_qk;
    float least[LANES];
    heavy_levels(sys, heavy_limit(d, sys->l->last - sys->l->first), least);
    for (int64_t group = 0; group < GROUPS; group++) {
        gram one = *g;
        one.factor = heavy_factor_of(hv, d, group);
        if (any_of_group(wanted, group)) heavy_group(sys, &one, hv, b, least, group);
    }
}

#endif
