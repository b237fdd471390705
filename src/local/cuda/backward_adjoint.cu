/* SPDX-License-Identifier: MIT
 *
 * The adjoint solve on GPUs: y = (Cov + Lambda)^-1 drho, by the solver of the forward pass. Rows that are not
 * solved in this way are put on a list for adjoint_double_kernel. drho is read from the array into which y is
 * written.
 */
#include "src/local/cuda/backward.h"
#include "src/local/cuda/launch.cuh"
#include "src/local/cuda/solve_work.cuh"

/* Loads the thread's elements of its two rows from an array [rows][dim_qk], less shift(c) of channel c; 0
 * beyond the sequence. */
template <int DIM, class SHIFT>
static __device__ __forceinline__ void load_vector(const lane_vector &to, const float *from,
                                                   const loam_problem &p, const row_block &x,
                                                   const row_pair &r, SHIFT shift)
{
    for (int n = 0; n < DIM / 2; n++) {
        const int row = n / 2 % 2, c = column_of(n / 4, n % 4);
        const int64_t at = local_row(&p, &x.s, x.h, x.i0 + r.at[row]) * p.dim_qk + c;
        to.put(n, r.real[row] && c < p.dim_qk ? from[at] - shift(c) : 0);
    }
}

/* Writes y = unit x, and finds error2 = |b - (Cov + Lambda) x|^2 of each row. */
template <int DIM>
static __device__ __forceinline__ void put_solutions(float (&error2)[2], const lane_vector &solution,
                                                     const lane_vector &b, const lane_vector &image,
                                                     const float (&unit)[2], float *y, const loam_problem &p,
                                                     const row_block &x, const row_pair &r)
{
    error2[0] = error2[1] = 0;
    for (int n = 0; n < DIM / 2; n++) {
        const int row = n / 2 % 2, c = column_of(n / 4, n % 4);
        const int64_t at = local_row(&p, &x.s, x.h, x.i0 + r.at[row]) * p.dim_qk + c;
        const float residual = b.get(n) - image.get(n);
        error2[row] += residual * residual;
        if (r.real[row] && c < p.dim_qk) y[at] = unit[row] * solution.get(n);
    }
    error2[0] = quad_sum(error2[0]), error2[1] = quad_sum(error2[1]);
}

template <bool WIDE, int DIM>
static __device__ void adjoint_block(solve_shared<WIDE, DIM> &sm, const loam_problem &p, const loam_args &a,
                                     const local_saved &saved, const row_arrays &arrays,
                                     const solve_work &work, int64_t block, float *scratch)
{
    const row_block x = row_block_at(p, a, block);
    if (x.rows <= 0) return;
    const score_constants sc = score_constants_of(p, a, x.s, x.h);
    const row_pair r = row_pair_of(p, x);
    __syncthreads();
    begin_rows<WIDE, DIM>(sm.query, sm.ring, p, a, x);
    float constant[2], unit[2], variance[2], error2[2];
    bool wanted[2];
    query_constants<WIDE, DIM>(constant, sm.query, sm.ring.origin, r, sc.rbf);
    row_ridge ridge = {};
    row_systems<WIDE, DIM> sys = {
        p,     a,  x,       r,        sc,
        ridge, sm, scratch, { 0, 0 }, { sc.mapped ? constant[0] : 0, sc.mapped ? constant[1] : 0 }
    };
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const int64_t at = local_row(&p, &x.s, x.h, x.i0 + r.at[row]);
        const float dropped = WIDE && local_saves_raw(&p) ? sc.scale * constant[row] : 0;
        sys.lse[row] = r.real[row] ? ((const float *)saved.lse)[at] - dropped : -INFINITY;
        unit[row] = r.real[row] ? arrays.record[at].unit : 0;
        variance[row] = r.real[row] ? arrays.record[at].trace : 0;
    }
    ridge = row_ridge_of(p, a, x, r, unit);
#pragma unroll
    for (int row = 0; row < 2; row++) {
        wanted[row] = r.lo[row] < r.hi[row] && variance[row] < INFINITY &&
                      ridge.least[row] > BLOCK_LEAST_RIDGE * variance[row];
    }
    load_vector<DIM>(
        sys.vector(VECTOR_KBAR), (const float *)saved.kbar, p, x, r,
        [&](int c) { return saved_shift<WIDE>(p, sm.ring.origin, c); });
    load_vector<DIM>(sys.vector(VECTOR_B), arrays.y, p, x, r, [](int) { return 0.0f; });
    cg_rows k;
    solve_rows(sys, k, wanted);
    apply(sys, sys.vector(VECTOR_X), sys.vector(VECTOR_IMAGE), true);
    put_solutions<DIM>(error2, sys.vector(VECTOR_X), sys.vector(VECTOR_B), sys.vector(VECTOR_IMAGE), k.unit,
                       arrays.y, p, x, r);
#pragma unroll
    for (int row = 0; row < 2; row++) {
        float residual;
        const bool good = accepted(k, cg_tolerance_of(p.dtype), row, error2[row], &residual);
        if (threadIdx.x % 4 == 0 && r.lo[row] < r.hi[row] && !(wanted[row] && good)) {
            const hard_row hard = { block, r.at[row], k.iterations[row] };
            work.hard[atomicAdd(work.hard_count, 1ull)] = hard;
        }
    }
}

template <bool WIDE, int DIM>
__global__ void __launch_bounds__(THREADS, 2)
    adjoint_kernel(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                   const local_saved saved, const row_arrays arrays, const solve_work work,
                   const int64_t blocks)
{
    extern __shared__ __align__(16) unsigned char memory[];
    solve_shared<WIDE, DIM> &sm = *(solve_shared<WIDE, DIM> *)memory;
    float *scratch = scratch_of<DIM>(work);
    for_blocks_drawn(work.next_block, blocks,
                     [&](int64_t block) { adjoint_block(sm, p, a, saved, arrays, work, block, scratch); });
}

template <bool WIDE, int DIM>
static loam_status launch_adjoint(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                                  void *memory, loam_error *error)
{
    const int64_t blocks = (int64_t)row_blocks(p);
    const int64_t most = solve_blocks(p), grid = most < blocks ? most : blocks;
    const local_saved saved = local_saved_carve(p, a->saved, NULL);
    const cudaStream_t stream = (cudaStream_t)a->stream;
    arena pool = { (char *)memory, 0 };
    const solve_work work = solve_work_carve(p, &pool);
    constexpr size_t shared = sizeof(solve_shared<WIDE, DIM>);
    TRY(solve_work_clear(&work, a, error));
    TRY(cuda_allow_shared((const void *)adjoint_kernel<WIDE, DIM>, shared, error));
    adjoint_kernel<WIDE, DIM>
        <<<(unsigned)grid, THREADS, shared, stream>>>(*p, *a, saved, *rows, work, blocks);
    return cuda_launched("adjoint_kernel", error);
}

loam_status local_adjoint_cuda(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                               void *memory, loam_error *error)
{
    return by_tiles(
        p,
        [&](auto wide, auto dim) {
            return launch_adjoint<decltype(wide)::value, decltype(dim)::value>(p, a, rows, memory, error);
        });
}

size_t local_adjoint_cuda_work(const loam_problem *p)
{
    arena pool = { NULL, 0 };
    (void)solve_work_carve(p, &pool);
    return pool.used;
}
