/* SPDX-License-Identifier: MIT
 *
 * The adjoint solve on GPUs: y = (Cov + Lambda)^-1 drho, by the solver of the forward pass, and in float64
 * for the rows that it leaves. drho lies where y will.
 */
#ifndef LOAM_LOCAL_LOCAL_BACKWARD_ADJOINT_CUDA_CUH
#define LOAM_LOCAL_LOCAL_BACKWARD_ADJOINT_CUDA_CUH

#include "src/local/local_backward_cuda.h"
#include "src/local/local_row64_cuda.cuh"

/* A vector of each of the thread's rows, out of dense rows. */
template <int DIM>
static __device__ __forceinline__ void load_vector(const lane_vector &to, const float *from,
                                                   const loam_problem &p, const row_block &x,
                                                   const row_pair &r)
{
    for (int n = 0; n < DIM / 2; n++) {
        const int row = n / 2 % 2, c = column_of(n / 4, n % 4);
        const int64_t at = local_row(&p, &x.s, x.h, x.i0 + r.at[row]) * p.dim_qk + c;
        to.put(n, r.real[row] && c < p.dim_qk ? from[at] : 0);
    }
}

/* y = unit x, and |b - A x|^2 of each row. */
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
        const float wrong = b.get(n) - image.get(n);
        error2[row] += wrong * wrong;
        if (r.real[row] && c < p.dim_qk) {
            y[at] = unit[row] * solution.get(n);
        }
    }
    error2[0] = quad_sum(error2[0]), error2[1] = quad_sum(error2[1]);
}

template <bool WIDE, int DIM>
static __device__ void adjoint_block(solve_shared<WIDE, DIM> &sm, const loam_problem &p, const loam_args &a,
                                     const local_saved &saved, const row_arrays &arrays,
                                     const solve_work &work, int64_t block, float *scratch)
{
    const row_block x = row_block_at(p, a, block);
    if (x.rows <= 0) {
        return;
    }
    const scoring sc = scoring_of(p, a, x.h);
    const row_pair r = row_pair_of(p, x);
    __syncthreads();
    begin_rows<WIDE, DIM>(sm.query, sm.ring, p, a, x);
    float constant[2], unit[2], variance[2], error2[2];
    bool wanted[2];
    query_constants<WIDE, DIM>(constant, sm.query, sm.ring.origin, r, sc.rbf);
    row_ridge ridge = {};
    system_of<WIDE, DIM> sys = {
        p,     a,  x,       r,        sc,
        ridge, sm, scratch, { 0, 0 }, { sc.capped ? constant[0] : 0, sc.capped ? constant[1] : 0 }
    };
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const int64_t at = local_row(&p, &x.s, x.h, x.i0 + r.at[row]);
        sys.lse[row] = r.real[row] ? ((const float *)saved.lse)[at] : -INFINITY;
        unit[row] = r.real[row] ? arrays.record[at].unit : 0;
        variance[row] = r.real[row] ? arrays.record[at].trace : 0;
    }
    ridge = row_ridge_of(p, a, x, r, unit);
#pragma unroll
    for (int row = 0; row < 2; row++) {
        wanted[row] = r.lo[row] < r.hi[row] && variance[row] < INFINITY &&
                      ridge.least[row] > BLOCK_LEAST_RIDGE * variance[row];
    }
    load_vector<DIM>(sys.vector(VECTOR_KBAR), (const float *)saved.kbar, p, x, r);
    load_vector<DIM>(sys.vector(VECTOR_B), arrays.y, p, x, r);
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
    __shared__ int64_t block;
    float *scratch = work.scratch + (int64_t)blockIdx.x * VECTORS * (DIM / 2) * THREADS;
    for (;;) {
        __syncthreads();
        if (threadIdx.x == 0) {
            block = (int64_t)atomicAdd((unsigned long long *)work.next_block, 1ull);
        }
        __syncthreads();
        if (block >= blocks) {
            return;
        }
        adjoint_block(sm, p, a, saved, arrays, work, block, scratch);
    }
}

/* right = -sum p (do . (v - vbar)) kappa of a row whose means are known */
static __device__ void adjoint_right64(row64_shared &sm, const loam_problem &p, const loam_args &a,
                                       const row64_at &r)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, c = threadIdx.x;
    const int64_t grad = LOCAL_AT(a.grad_o, r.x.s.b, r.x.h, r.x.s.q0 + r.i);
    double sum = 0;
    for (int64_t j = r.lo; j < r.hi; j += KEYS64) {
        load_tile64(sm, p, a, r, j);
        for (int row = warp; row < KEYS64; row += ROW64_THREADS / 32) {
            double g = 0;
            for (int n = lane; n < p.dim_v; n += 32) {
                g += element_load(a.grad_o.data, p.dtype, grad + n) * (sm.values[row][n] - sm.vbar[n]);
            }
#pragma unroll
            for (int step = 16; step > 0; step /= 2) {
                g += __shfl_xor_sync(0xffffffffu, g, step);
            }
            if (lane == 0) {
                sm.line[row] = exp(sm.score[row] - r.m) / r.omega * g;
            }
        }
        __syncthreads();
        for (int row = 0; row < KEYS64; row++) {
            sum -= c < p.dim_qk ? sm.line[row] * (sm.keys[row][c] - sm.kbar[c]) : 0;
        }
    }
    __syncthreads();
    sm.right[c] = sum;
    __syncthreads();
}

/* y of the rows on the list; 0 where the system is singular or float32 cannot hold it. */
static __global__ void __launch_bounds__(ROW64_THREADS)
    adjoint64_kernel(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                     const row_arrays arrays, const solve_work work, double *scratch)
{
    __shared__ row64_shared sm;
    const int64_t c = threadIdx.x, d = p.dim_qk;
    double *gram = scratch + blockIdx.x * triangle(d);
    for (unsigned long long n = blockIdx.x; n < *work.hard_count; n += gridDim.x) {
        row64_at r = begin64(sm, p, a, work.hard[n]);
        means64(sm, p, a, r);
        gram64(sm, p, a, r, gram);
        const double least = add_ridge64(sm, p, a, r, gram);
        adjoint_right64(sm, p, a, r);
        bool solved = factor64(gram, d, least);
        if (solved) {
            substitute64(sm, gram, d);
        }
        solved = solved && __syncthreads_and(c >= d || fits_float(sm.rho[c]));
        if (c < d) {
            arrays.y[local_row(&p, &r.x.s, r.x.h, r.i) * d + c] = solved ? (float)sm.rho[c] : 0;
        }
        __syncthreads();
    }
}

#endif
