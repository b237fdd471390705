/* SPDX-License-Identifier: MIT
 * The systems of MesaNet in float64, one token after another: H follows its recurrence, and A = (H + H^T) / 2
 * + Lambda = L D L^T is factored for each token. One square array holds both: H in the lower triangle, and
 * above the diagonal the columns of L times D, transposed. */
#ifndef LOAM_RECURRENT_CUDA_SOLVE_ROWS_CUH
#define LOAM_RECURRENT_CUDA_SOLVE_ROWS_CUH

#include "src/recurrent/cuda/solve.cuh"

enum { SOLVE_THREADS = 256, SOLVE_WARPS = SOLVE_THREADS / 32 };

/* A pivot of A at or below this share of the largest diagonal entry counts as zero, as in the reference. */
#define LEAST_PIVOT 1e-14

/* Up to this dimension H fits the shared memory of all GPUs; beyond it, H stays where it was kept, in
 * the workspace. */
enum { SHARED_DIM = 96 };

struct solve {
    loam_problem p;
    loam_args a;
    recurrent_form form;
    kept_states<double> system;
    double *x, *dx;
    int parts;
    int64_t plane; /* elements of one part of dx */
};

struct solve_stage {
    double k[LOAM_MAX_DIM], q[LOAM_MAX_DIM], ridge[LOAM_MAX_DIM];
    double diagonal[LOAM_MAX_DIM]; /* of A, then D, then 1 / D */
    double right[2][LOAM_MAX_DIM]; /* right-hand sides, then solutions */
    double wrong[LOAM_MAX_DIM];    /* residuals */
};

/* A square matrix: row r begins at at[r * pitch]. */
struct square {
    double *at;
    int pitch, d;
};

static __device__ __forceinline__ double warp_max(double x)
{
    for (int step = 16; step > 0; step /= 2)
        x = fmax(x, __shfl_xor_sync(~0u, x, step));
    return x;
}

/* Lower triangle of H <- its symmetric part, from a kept state. */
template <class REAL>
static __device__ __forceinline__ void load_system(const square &h, const REAL *kept, int64_t width)
{
    for (int r = threadIdx.x / 32; r < h.d; r += SOLVE_WARPS)
        for (int c = threadIdx.x % 32; c <= r; c += 32)
            h.at[r * h.pitch + c] = ((double)kept[r * width + c] + (double)kept[c * width + r]) / 2;
}

/* H <- a H + beta k k^T, and A = H + Lambda. */
static __device__ __forceinline__ void write_system(const square &h, solve_stage &x, double a, double beta)
{
    for (int r = threadIdx.x / 32; r < h.d; r += SOLVE_WARPS) {
        const double u = beta * x.k[r];
        for (int c = threadIdx.x % 32; c <= r; c += 32) {
            double *entry = &h.at[r * h.pitch + c];
            *entry = fma(u, x.k[c], *entry * a);
            if (c < r)
                h.at[c * h.pitch + r] = *entry;
            else
                x.diagonal[r] = *entry + x.ridge[r];
        }
    }
}

/* Factors A = L D L^T column by column, and right <- L^-1 right for the first `sides` right-hand sides.
 * False, in all threads, where A is singular. */
static __device__ __forceinline__ bool factor_system(const square &h, solve_stage &x, int sides)
{
    const int lane = threadIdx.x % 32;
    double largest = 0;
    for (int c = lane; c < h.d; c += 32)
        largest = fmax(largest, x.diagonal[c]);
    const double least = LEAST_PIVOT * warp_max(largest);
    __syncthreads();
    for (int j = 0; j < h.d; j++) {
        const double *column = h.at + j * h.pitch, pivot = x.diagonal[j];
        if (!(pivot > least)) return false;
        const double inverse = 1 / pivot;
        for (int c = j + 1 + threadIdx.x / 32; c < h.d; c += SOLVE_WARPS) {
            const double factor = -column[c] * inverse;
            for (int r = c + 1 + lane; r < h.d; r += 32)
                h.at[c * h.pitch + r] = fma(factor, column[r], h.at[c * h.pitch + r]);
            if (lane == 0) {
                x.diagonal[c] = fma(factor, column[c], x.diagonal[c]);
            } else if (lane <= sides) {
                double *right = x.right[lane - 1];
                right[c] = fma(factor, right[j], right[c]);
            }
        }
        __syncthreads();
    }
    for (int c = threadIdx.x; c < h.d; c += SOLVE_THREADS)
        x.diagonal[c] = 1 / x.diagonal[c];
    __syncthreads();
    return true;
}

/* right <- L^-T D^-1 right, by one warp. */
static __device__ __forceinline__ void substitute(const square &h, const solve_stage &x, double *right)
{
    for (int j = h.d - 1; j >= 0; j--) {
        const double solution = right[j] * x.diagonal[j];
        __syncwarp();
        for (int r = threadIdx.x % 32; r <= j; r += 32)
            right[r] = r == j ? solution : fma(-h.at[r * h.pitch + j], solution, right[r]);
        __syncwarp();
    }
}

/* The relative residual |A x - q| / |q| of the first solution, in thread 0 only. */
static __device__ __forceinline__ float residual_of(const square &h, solve_stage &x)
{
    const int lane = threadIdx.x % 32;
    for (int r = threadIdx.x / 32; r < h.d; r += SOLVE_WARPS) {
        double sum = lane == 0 ? x.ridge[r] * x.right[0][r] - x.q[r] : 0;
        for (int c = lane; c < h.d; c += 32)
            sum = fma(c <= r ? h.at[r * h.pitch + c] : h.at[c * h.pitch + r], x.right[0][c], sum);
        sum = row_sum<32>(sum);
        if (lane == 0) x.wrong[r] = sum;
    }
    __syncthreads();
    double wrong = 0, right = 0;
    for (int r = 0; threadIdx.x == 0 && r < h.d; r++)
        wrong += x.wrong[r] * x.wrong[r], right += x.q[r] * x.q[r];
    return right > 0 ? (float)sqrt(wrong / right) : 0;
}

static __device__ __forceinline__ void load_token(const solve &s, solve_stage &x, const recurrent_seq &seq,
                                                  int64_t h, int64_t t)
{
    const loam_args &a = s.a;
    const int64_t key_head = recurrent_key_head(&s.p, h), token = seq.first + t, d = s.p.dim_qk;
    const int64_t row = recurrent_work_row(&s.p, &seq, h, t);
    if (threadIdx.x / 32 == 0)
        stage_features<32>(x.k, s.p, a.k.data, RECURRENT_AT(a.k, seq.b, key_head, token), 1.0);
    else if (threadIdx.x / 32 == 1)
        stage_features<32>(x.q, s.p, a.q.data, RECURRENT_AT(a.q, seq.b, key_head, token), s.p.scale);
    __syncthreads();
    for (int64_t c = threadIdx.x; c < d; c += SOLVE_THREADS) {
        x.right[0][c] = x.q[c];
        x.right[1][c] = 0;
        for (int part = 0; part < s.parts; part++)
            x.right[1][c] += s.dx[part * s.plane + row * d + c];
    }
}

static __device__ __forceinline__ void store_token(const solve &s, const solve_stage &x,
                                                   const recurrent_seq &seq, int64_t h, int64_t t,
                                                   bool regular, float residual)
{
    const int64_t d = s.p.dim_qk, row = recurrent_work_row(&s.p, &seq, h, t);
    for (int64_t c = threadIdx.x; c < d; c += SOLVE_THREADS) {
        s.x[row * d + c] = regular ? x.right[0][c] : 0;
        if (s.dx) s.dx[row * d + c] = regular ? x.right[1][c] : 0;
    }
    if (s.a.info.data && threadIdx.x == 0) {
        const loam_row_info info = { regular ? LOAM_ROW_SOLVED : LOAM_ROW_SINGULAR, LOAM_SOLVER_GRAM, 0,
                                     residual };
        ((loam_row_info *)s.a.info.data)[RECURRENT_AT(s.a.info, seq.b, h, seq.first + t)] = info;
    }
}

/* Bytes of shared memory of a thread block: the stage, and the square array up to SHARED_DIM. */
static inline size_t solve_shared_bytes(size_t d)
{
    return sizeof(solve_stage) + (d <= SHARED_DIM ? d * (d | 1) * sizeof(double) : 0);
}

/* Solves the systems of SOLVE_TOKENS tokens of a head from token `first` on; H before it is at `kept`, in
 * rows of `width`. outside: where the square array is beyond SHARED_DIM. */
template <class REAL>
static __device__ __forceinline__ void solve_chunk(const solve &s, char *shared, const recurrent_seq &seq,
                                                   int64_t h, int64_t first, const REAL *kept, int64_t width,
                                                   double *outside)
{
    solve_stage &x = *(solve_stage *)shared;
    const int d = (int)s.p.dim_qk, sides = s.dx ? 2 : 1;
    const bool inside = d <= SHARED_DIM;
    const square square = { inside ? (double *)(shared + sizeof(solve_stage)) : outside,
                            inside ? d | 1 : (int)width, d };
    for (int c = threadIdx.x; c < d; c += SOLVE_THREADS)
        x.ridge[c] = recurrent_ridge(&s.p, &s.a, h, c);
    load_system(square, kept, width);
    for (int64_t t = first; t < seq.len && t < first + SOLVE_TOKENS; t++) {
        __syncthreads();
        load_token(s, x, seq, h, t);
        __syncthreads();
        const float gate =
            ((const float *)s.a.log_decay.data)[RECURRENT_AT(s.a.log_decay, seq.b, h, seq.first + t)];
        write_system(square, x, exp((double)gate), beta_of<double>(s.form, s.a, seq, h, t));
        __syncthreads();
        const bool regular = factor_system(square, x, sides);
        if (regular && (int)threadIdx.x / 32 < sides) substitute(square, x, x.right[threadIdx.x / 32]);
        __syncthreads();
        store_token(s, x, seq, h, t, regular, regular && s.a.info.data ? residual_of(square, x) : 0);
    }
}

#endif
