/* SPDX-License-Identifier: MIT
 * The launches of key_kernel_hopper. */
#include "src/local/hopper/backward_key.cuh"
#include "src/local/hopper/maps.cuh"

static key_directions key_directions_carve(const loam_problem *p, arena *pool)
{
    const size_t rows = p->mechanism == LOAM_LLA ? (size_t)local_rows(p) : 0,
                 numbers = size_mul(rows, (size_t)p->dim_qk);
    key_directions x;
    for (int part = 0; part < 2; part++) {
        x.rho[part] = (__nv_bfloat16 *)arena_take(pool, numbers, sizeof(__nv_bfloat16));
        x.y[part] = (__nv_bfloat16 *)arena_take(pool, numbers, sizeof(__nv_bfloat16));
    }
    x.centre = (float2 *)arena_take(pool, rows, sizeof(float2));
    return x;
}

size_t local_keys_hopper_work(const loam_problem *p)
{
    arena pool = { NULL, 0 };
    (void)key_directions_carve(p, &pool);
    return pool.used;
}

/* A view of dense rows in the order of local_row. */
static loam_const_view rows_view_of(const loam_problem *p, const void *data)
{
    const int64_t d = p->dim_qk, tokens = extents_of(p).queries;
    return loam_const_view{ data, p->heads_q * tokens * d, tokens * d, d };
}

template <int DIM, int DIRECTIONS>
static loam_status make_maps(key_maps *maps, const loam_problem *p, const loam_args *a,
                             const key_directions *directions, loam_error *error)
{
    constexpr int rows = key_shape<DIM, DIRECTIONS>::queries;
    TRY(key_map_make(&maps->k, p, &a->k, TILE_SIDE, error));
    TRY(key_map_make(&maps->v, p, &a->v, TILE_SIDE, error));
    TRY(query_map_make(&maps->query[TILE_Q], p, &a->q, rows, error));
    TRY(query_map_make(&maps->query[TILE_GRAD_O], p, &a->grad_o, rows, error));
    if (DIRECTIONS == GIVEN_PROBE) {
        TRY(query_map_make(&maps->query[TILE_RHO], p, &a->probe, rows, error));
    }
    for (int part = 0; part < 2 && DIRECTIONS == SOLVED_PROBE; part++) {
        CUtensorMap *const to = part ? maps->lo : maps->query;
        const loam_const_view rho = rows_view_of(p, directions->rho[part]),
                              y = rows_view_of(p, directions->y[part]);
        TRY(query_map_make(to + TILE_RHO, p, &rho, rows, error));
        TRY(query_map_make(to + TILE_Y, p, &y, rows, error));
    }
    return LOAM_OK;
}

template <int DIM, int DIRECTIONS, bool DECAYED>
static loam_status launch(const loam_problem *p, const loam_args *a, const row_arrays *rows, void *memory,
                          loam_error *error)
{
    const int64_t blocks = (p->len_kv + KEY_ROWS - 1) / KEY_ROWS * p->batch * p->heads_kv;
    const cudaStream_t stream = (cudaStream_t)a->stream;
    const local_saved saved = local_saved_carve(p, a->saved, NULL);
    arena pool = { (char *)memory, 0 };
    const key_directions directions = key_directions_carve(p, &pool);
    if (DIRECTIONS == SOLVED_PROBE) {
        const int64_t tiles = (p->len_q + ROWS - 1) / ROWS * p->batch * p->heads_q;
        split_directions_kernel<DIM><<<(unsigned)tiles, 256, 0, stream>>>(*p, *a, saved, *rows, directions);
        TRY(cuda_launched("split_directions_kernel", error));
    }
    key_maps maps;
    TRY((make_maps<DIM, DIRECTIONS>(&maps, p, a, &directions, error)));
    constexpr size_t shared = sizeof(key_pass_shared<DIM, DIRECTIONS>);
    TRY(cuda_allow_shared((const void *)key_kernel_hopper<DIM, DIRECTIONS, DECAYED>, shared, error));
    key_kernel_hopper<DIM, DIRECTIONS, DECAYED>
        <<<(unsigned)blocks, KEY_THREADS, shared, stream>>>(*p, *a, *rows, directions, maps);
    return cuda_launched("key_kernel_hopper", error);
}

template <int DIM>
static loam_status launch_directions(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                                     void *memory, loam_error *error)
{
    switch (p->mechanism) {
    case LOAM_SOFTMAX:
        return p->decay ? launch<DIM, NO_DIRECTION, true>(p, a, rows, memory, error)
                        : launch<DIM, NO_DIRECTION, false>(p, a, rows, memory, error);
    case LOAM_PARALLAX:
        return p->decay ? launch<DIM, GIVEN_PROBE, true>(p, a, rows, memory, error)
                        : launch<DIM, GIVEN_PROBE, false>(p, a, rows, memory, error);
    default:
        return p->decay ? launch<DIM, SOLVED_PROBE, true>(p, a, rows, memory, error)
                        : launch<DIM, SOLVED_PROBE, false>(p, a, rows, memory, error);
    }
}

loam_status local_keys_hopper(const loam_problem *p, const loam_args *a, const row_arrays *rows, void *memory,
                              loam_error *error)
{
    return p->dim_qk == 64 ? launch_directions<64>(p, a, rows, memory, error)
                           : launch_directions<128>(p, a, rows, memory, error);
}
