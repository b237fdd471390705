/* SPDX-License-Identifier: MIT
 * Descriptors of bulk tensor copies for the rows of chunks, in views of arguments and in arrays over slots,
 * and the coordinates of the boxes that a chunk consists of. */
#ifndef LOAM_RECURRENT_HOPPER_MAPS_CUH
#define LOAM_RECURRENT_HOPPER_MAPS_CUH

#include "src/gpu/tensor_map.cuh"
#include "src/recurrent/hopper/chunks.cuh"

/* The descriptor of a chunk_source or of an array over slots. `head_group` value heads
 * read one head of the view. */
struct chunk_map {
    CUtensorMap map;
    int head_group;
    bool by_slot;
};

/* The descriptor of an array over slots, [rows][columns] of bf16 for each, in boxes of `box` rows
 * by `box_columns` columns. */
static inline loam_status slot_map_make(chunk_map *to, const recurrent_chunks *chunks,
                                        const __nv_bfloat16 *array, int64_t rows, int64_t columns, int box,
                                        loam_error *error, int box_columns = TILE_SIDE)
{
    const loam_const_view view = { array, 0, rows * columns, columns };
    to->head_group = 1, to->by_slot = true;
    return tensor_map_make(&to->map, &view, 1, chunks->slots, rows, columns, box, error, box_columns);
}

static inline loam_const_view chunk_source_view(const chunk_source &s)
{
    return { s.data, s.batch, s.head, s.token };
}

/* The sizes of the view of a source: batch, heads and tokens. */
static inline int64_t source_batch(const loam_problem *p) { return sequence_packed(p) ? 1 : p->batch; }
static inline int64_t source_heads(const loam_problem *p, const chunk_source &s)
{
    return p->heads_v / s.head_group;
}
static inline int64_t source_tokens(const loam_problem *p)
{
    return sequence_packed(p) ? p->total_q : p->len_q;
}

/* Tokens of all sequences. Where there are none, no descriptor can be made. */
static inline int64_t recurrent_tokens(const loam_problem *p) { return source_batch(p) * source_tokens(p); }

/* True if bulk tensor copies can read the source. */
static inline bool chunk_source_fits(const loam_problem *p, const chunk_source &s)
{
    const loam_const_view view = chunk_source_view(s);
    return s.by_slot || tensor_map_fits(&view, source_batch(p), source_heads(p, s), source_tokens(p));
}

/* The descriptor of a source, in boxes of 64 tokens by 64 channels; arrays over slots are `width` wide. */
static inline loam_status chunk_map_make(chunk_map *to, const loam_problem *p, const recurrent_chunks *chunks,
                                         const chunk_source &s, int64_t width, loam_error *error)
{
    if (s.by_slot) return slot_map_make(to, chunks, s.data, CHUNK_TOKENS, width, CHUNK_TOKENS, error);
    const loam_const_view view = chunk_source_view(s);
    to->head_group = s.head_group, to->by_slot = false;
    return tensor_map_make(&to->map, &view, source_batch(p), source_heads(p, s), source_tokens(p), s.channels,
                           CHUNK_TOKENS, error);
}

/* Coordinates of TILES boxes of 64 columns side by side. Each copy advances them to the next chunk,
 * which costs two additions. */
template <int TILES> struct chunk_boxes {
    const CUtensorMap *map;
    int column, token, head, batch;
    int tokens, heads; /* distance to the next chunk */

    __device__ __forceinline__ void copy(__nv_bfloat16 *tiles, uint64_t *barrier)
    {
#pragma unroll
        for (int n = 0; n < TILES; n++)
            load_box(tiles + n * TILE_ELEMENTS, map, barrier, column + n * TILE_SIDE, token, head, batch);
        token += tokens, head += heads;
    }
    __device__ __forceinline__ void copy_out(const __nv_bfloat16 *tiles, int apart = TILE_ELEMENTS)
    {
#pragma unroll
        for (int n = 0; n < TILES; n++)
            store_box(map, tiles + n * apart, column + n * TILE_SIDE, token, head, batch);
        token += tokens, head += heads;
    }
};

/* The boxes from row `row` and column `column` of the chunk. step: 1 to advance to the next chunk, -1 to
 * the one before, 0 to stay. */
template <int TILES>
static __device__ __forceinline__ chunk_boxes<TILES> chunk_boxes_at(const chunk_map &m, int column, int row,
                                                                    const chunk_place &chunk, int step)
{
    if (m.by_slot) return { &m.map, column, row, (int)chunk.slot, 0, 0, step };
    return { &m.map,
             column,
             (int)chunk.first + row,
             (int)chunk.h / m.head_group,
             (int)chunk.b,
             step * CHUNK_TOKENS,
             0 };
}

#endif
