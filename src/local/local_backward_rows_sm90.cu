/* SPDX-License-Identifier: MIT
 * The pass over rows of Local Linear Attention on Hopper: the launch of rows_kernel_sm90, and of the plain kernels for what it
 * leaves. */
#include "src/local/local_backward_rows_sm90.cuh"
#include "src/local/local_maps_sm90.cuh"
#include "src/local/local_solve_work_cuda.cuh"

static int64_t row_blocks(const loam_problem *p)
{
    return (p->len_q + ROWS - 1) / ROWS * p->batch * p->heads_q;
}

typedef struct rows_work {
    solve_work solve; /* where local_adjoint64_cuda has it */
    int32_t *unfinished;
} rows_work;

static rows_work rows_work_carve(const loam_problem *p, arena *pool)
{
    rows_work w;
    w.solve = solve_work_carve(p, pool);
    w.unfinished = (int32_t *)arena_take(pool, (size_t)row_blocks(p), sizeof(int32_t));
    return w;
}

template <int DIM>
static loam_status launch(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                          const solve_work *work, loam_error *error)
{
    const int64_t blocks = row_blocks(p), most = solve_blocks(p), grid = most < blocks ? most : blocks;
    const local_saved saved = local_saved_carve(p, a->saved, NULL);
    rows_maps_sm90 maps;
    TRY(query_map_make(&maps.all.q, p, &a->q, SIDE, error));
    TRY(query_map_make(&maps.grad_o, p, &a->grad_o, SIDE, error));
    TRY(key_map_make(&maps.all.k, p, &a->k, SIDE, error));
    TRY(key_map_make(&maps.all.v, p, &a->v, SIDE, error));
    TRY(solve_work_clear(work, a, error));
    TRY(cuda_allow_shared((const void *)rows_kernel_sm90<DIM>, rows_shared_bytes<DIM>, error));
    rows_kernel_sm90<DIM><<<(unsigned)grid, THREADS, rows_shared_bytes<DIM>, (cudaStream_t)a->stream>>>(
        *p, *a, saved, *rows, *work, blocks, maps);
    return cuda_launched("rows_kernel_sm90", error);
}

loam_status local_rows_solved_sm90(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                                   void *memory, loam_error *error)
{
    arena pool = { (char *)memory, 0 };
    const rows_work work = rows_work_carve(p, &pool);
    row_arrays marked = *rows;
    marked.unfinished = work.unfinished;
    TRY(p->dim_qk == 64 ? launch<64>(p, a, &marked, &work.solve, error)
                        : launch<128>(p, a, &marked, &work.solve, error));
    TRY(local_adjoint64_cuda(p, a, &marked, memory, error));
    return local_query_gradient_narrow_cuda(p, a, &marked, error);
}

size_t local_rows_solved_sm90_work(const loam_problem *p)
{
    arena pool = { NULL, 0 };
    (void)rows_work_carve(p, &pool);
    return pool.used;
}
