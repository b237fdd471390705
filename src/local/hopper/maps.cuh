/* SPDX-License-Identifier: MIT
 * Tensor maps of a problem's arrays, and which arrays bulk copies can read. */
#ifndef LOAM_LOCAL_HOPPER_MAPS_CUH
#define LOAM_LOCAL_HOPPER_MAPS_CUH

#include "src/gpu/tensor_map.cuh"
#include "src/local/local.h"

/* Extents of the arrays. Packed sequences lie one after another in a batch of 1. */
typedef struct extents {
    int64_t batch, queries, keys;
} extents;

static inline extents extents_of(const loam_problem *p)
{
    const extents packed = { 1, p->total_q, p->total_kv }, whole = { p->batch, p->len_q, p->len_kv };
    return sequence_packed(p) ? packed : whole;
}

/* Can bulk copies read a view with one row for each query, or for each key? */
static inline bool query_map_fits(const loam_problem *p, const loam_const_view *view)
{
    const extents n = extents_of(p);
    return n.queries > 0 && tensor_map_fits(view, n.batch, p->heads_q, n.queries);
}

static inline bool key_map_fits(const loam_problem *p, const loam_const_view *view)
{
    const extents n = extents_of(p);
    return n.keys > 0 && tensor_map_fits(view, n.batch, p->heads_kv, n.keys);
}

/* The maps of such views with `channels` channels, in boxes of `rows` tokens by 64 channels. */
static inline loam_status query_map_make(CUtensorMap *map, const loam_problem *p, const loam_const_view *view,
                                         int64_t channels, int rows, loam_error *error)
{
    const extents n = extents_of(p);
    return tensor_map_make(map, view, n.batch, p->heads_q, n.queries, channels, rows, error);
}

static inline loam_status key_map_make(CUtensorMap *map, const loam_problem *p, const loam_const_view *view,
                                       int64_t channels, int rows, loam_error *error)
{
    const extents n = extents_of(p);
    return tensor_map_make(map, view, n.batch, p->heads_kv, n.keys, channels, rows, error);
}

#endif
