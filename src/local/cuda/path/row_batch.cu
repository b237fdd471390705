/* SPDX-License-Identifier: MIT
 * PaTH scores on GPUs for any probe, with each row as a problem of its own (local/path_batch.h): the copies
 * between the caller's arrays and those of a group of rows, and the calls of the family's kernels on the
 * group. */
#include "src/gpu/launch.cuh"
#include "src/local/cuda/backward.h"
#include "src/local/cuda/forward.h"
#include "src/local/cuda/path/reflect.h"

enum { MOVE_THREADS = 128, SUM_THREADS = 256 };

/* ------------------------------------------------------------------ rows in and out */

template <bool IN>
static __device__ __forceinline__ void move_element(const batch_rows &x, int64_t outside, int64_t inside)
{
    switch (x.dtype) {
    case LOAM_F64: {
        double *const all = (double *)x.data + outside, *const own = (double *)x.own + inside;
        *(IN ? own : all) = *(IN ? all : own);
        return;
    }
    case LOAM_F32: { /* any 32-bit elements */
        uint32_t *const all = (uint32_t *)x.data + outside, *const own = (uint32_t *)x.own + inside;
        *(IN ? own : all) = *(IN ? all : own);
        return;
    }
    default:
        if (IN)
            ((float *)x.own)[inside] = (float)element_load(x.data, x.dtype, outside);
        else
            element_store(x.data, x.dtype, outside, (double)((float *)x.own)[inside]);
    }
}

/* blockIdx.x: row of the group; blockIdx.y: which array. Copies rows into the group, or out of it; a row of
 * the group that has no query is 0. */
template <bool IN>
static __global__ void __launch_bounds__(MOVE_THREADS)
    move_rows_kernel(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                     const __grid_constant__ batch_moves moves, const batch_shape shape, int64_t *lens,
                     int64_t b, int64_t first)
{
    const batch_rows &x = moves.rows[blockIdx.y];
    const int64_t n = blockIdx.x / p.heads_q, h = blockIdx.x % p.heads_q;
    const local_seq s = local_seq_at(&p, &a, b);
    const batch_step step = batch_step_at(&shape, &s, first + n);
    if (IN && blockIdx.y == 0 && h == 0 && threadIdx.x == 0)
        lens[n] = step.query >= 0 && step.position >= 0 ? step.position + 1 : 0;
    if (!IN && step.query < 0) return;
    const int64_t outside = s.b * x.batch + h * x.head + (s.q0 + step.query) * x.token,
                  inside = blockIdx.x * x.width;
    for (int64_t c = threadIdx.x; c < x.width; c += MOVE_THREADS)
        if (IN && step.query < 0)
            ((float *)x.own)[inside + c] = 0;
        else
            move_element<IN>(x, outside + c, inside + c);
}

static loam_status move(const loam_problem *p, const loam_args *a, const batch_arrays *w,
                        const batch_moves *moves, bool in, const batch_steps *steps, loam_error *error)
{
    const dim3 grid((unsigned)(steps->count * p->heads_q), (unsigned)moves->count);
    const cudaStream_t stream = (cudaStream_t)a->stream;
    if (moves->count == 0) return LOAM_OK;
    if (in) {
        move_rows_kernel<true>
            <<<grid, MOVE_THREADS, 0, stream>>>(*p, *a, *moves, w->shape, w->lens, steps->b, steps->first);
    } else {
        move_rows_kernel<false>
            <<<grid, MOVE_THREADS, 0, stream>>>(*p, *a, *moves, w->shape, w->lens, steps->b, steps->first);
    }
    return cuda_launched("move_rows_kernel", error);
}

/* ------------------------------------------------------------------ begin and end of a sequence */

/* blockIdx.x: key; blockIdx.y: query head, of which the first heads_kv also stand for the key-value heads. */
static __global__ void __launch_bounds__(MOVE_THREADS)
    copy_sequence_kernel(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                         float *values, local_decay_pair *decay, int64_t b)
{
    const local_seq s = local_seq_at(&p, &a, b);
    const int64_t j = blockIdx.x, h = blockIdx.y;
    if (j >= s.nk) return;
    if (p.decay && threadIdx.x == 0) {
        decay[h * p.len_kv + j] =
            ((const local_decay_pair *)a.log_decay.data)[LOCAL_AT(a.log_decay, s.b, h, s.k0 + j)];
    }
    for (int64_t c = threadIdx.x; h < p.heads_kv && c < p.dim_v; c += MOVE_THREADS) {
        values[(h * p.len_kv + j) * p.dim_v + c] = (float)element_load(a.v.data, p.dtype,
                                                                       LOCAL_AT(a.v, s.b, h, s.k0 + j) + c);
    }
}

static loam_status set_to_zero(const loam_args *a, void *data, size_t bytes, loam_error *error)
{
    return bytes == 0 ? LOAM_OK
                      : cuda_check(cudaMemsetAsync(data, 0, bytes, (cudaStream_t)a->stream), "zeros", error);
}

static loam_status begin(const loam_problem *p, const loam_args *a, const batch_arrays *w, int64_t b,
                         loam_error *error)
{
    const dim3 grid((unsigned)p->len_kv, (unsigned)p->heads_q);
    const size_t pairs = p->decay ? (size_t)(p->heads_q * p->len_kv) + LOCAL_DECAY_SPARE : 0;
    if (p->len_kv == 0) return LOAM_OK;
    /* Tiles of keys reach beyond the last key. */
    TRY(set_to_zero(a, w->decay, pairs * sizeof *w->decay, error));
    copy_sequence_kernel<<<grid, MOVE_THREADS, 0, (cudaStream_t)a->stream>>>(*p, *a, w->values, w->decay, b);
    return cuda_launched("copy_sequence_kernel", error);
}

/* sum[h][j][c] += parts[n][h][j][c] over the rows n of a group, from the last to the first. */
static __global__ void __launch_bounds__(SUM_THREADS)
    add_rows_kernel(double *sum, const float *parts, int64_t heads, int64_t stored, int64_t keys,
                    int64_t width, int64_t count)
{
    const int64_t e = (int64_t)blockIdx.x * SUM_THREADS + threadIdx.x, h = blockIdx.y;
    if (e >= keys * width) return;
    const int64_t at = h * stored * width + e, step = heads * stored * width;
    double total = sum[at];
    for (int64_t n = count - 1; n >= 0; n--)
        total += (double)parts[n * step + at];
    sum[at] = total;
}

static loam_status add(const loam_args *a, double *sum, const float *parts, int64_t heads, int64_t stored,
                       int64_t keys, int64_t width, int64_t count, loam_error *error)
{
    const dim3 grid((unsigned)((keys * width + SUM_THREADS - 1) / SUM_THREADS), (unsigned)heads);
    add_rows_kernel<<<grid, SUM_THREADS, 0, (cudaStream_t)a->stream>>>(sum, parts, heads, stored, keys, width,
                                                                       count);
    return cuda_launched("add_rows_kernel", error);
}

/* Writes the gradients of key blockIdx.x, head blockIdx.y; 0 for stored keys beyond those in use, which no
 * step has touched. */
static __global__ void __launch_bounds__(MOVE_THREADS)
    put_key_gradients_kernel(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                             const double *sum_k, const double *sum_v, const double *columns, int64_t b)
{
    const local_seq s = local_seq_at(&p, &a, b);
    const int64_t j = blockIdx.x, h = blockIdx.y, at = h * p.len_kv + j, token = s.k0 + j;
    const bool used = j < s.nk;
    if (j >= local_stored_keys(&p, &s)) return;
    if (p.decay && a.grad_log_decay.data && threadIdx.x == 0) {
        ((float *)a.grad_log_decay.data)[LOCAL_AT(a.grad_log_decay, s.b, h, token)] = used
                                                                                          ? (float)columns[at]
                                                                                          : 0;
    }
    if (h >= p.heads_kv) return;
    for (int64_t c = threadIdx.x; a.grad_k.data && c < p.dim_qk; c += MOVE_THREADS) {
        element_store(a.grad_k.data, p.dtype, LOCAL_AT(a.grad_k, s.b, h, token) + c,
                      used ? sum_k[at * p.dim_qk + c] : 0);
    }
    for (int64_t c = threadIdx.x; a.grad_v.data && c < p.dim_v; c += MOVE_THREADS) {
        element_store(a.grad_v.data, p.dtype, LOCAL_AT(a.grad_v, s.b, h, token) + c,
                      used ? sum_v[at * p.dim_v + c] : 0);
    }
    for (int64_t c = threadIdx.x; !used && a.grad_w.data && c < p.dim_qk; c += MOVE_THREADS)
        element_store(a.grad_w.data, p.dtype, LOCAL_AT(a.grad_w, s.b, h, token) + c, 0);
    if (!used && a.grad_beta.data && threadIdx.x == 0)
        ((float *)a.grad_beta.data)[LOCAL_AT(a.grad_beta, s.b, h, token)] = 0;
}

static loam_status finish(const loam_problem *p, const loam_args *a, const batch_arrays *w, int64_t b,
                          loam_error *error)
{
    const dim3 grid((unsigned)p->len_kv, (unsigned)p->heads_q);
    if (p->len_kv == 0) return LOAM_OK;
    put_key_gradients_kernel<<<grid, MOVE_THREADS, 0, (cudaStream_t)a->stream>>>(*p, *a, w->sum_k, w->sum_v,
                                                                                 w->sum_columns, b);
    return cuda_launched("put_key_gradients_kernel", error);
}

/* ------------------------------------------------------------------ the kernels of the family */

/* Backward: the workspace of the group's problem. */
struct group_work {
    row_arrays rows;
    void *solver;
};

static group_work group_work_carve(const loam_problem *own, arena *pool)
{
    group_work g = {};
    if (own->pass == LOAM_BACKWARD) {
        g.rows = local_row_arrays_carve(own, pool);
        g.rows.state = NULL;
    }
    g.solver = arena_take(pool, own->mechanism == LOAM_LLA ? local_all64_cuda_work(own) : 0, 1);
    return g;
}

static size_t work(const loam_problem *own)
{
    arena pool = {};
    group_work_carve(own, &pool);
    return pool.used;
}

static loam_status forward(const batch_arrays *w, const loam_args *own, loam_error *error)
{
    return w->own.mechanism == LOAM_LLA ? local_all64_cuda(&w->own, own, error)
                                        : local_given_cuda(&w->own, own, error);
}

static loam_status backward(const batch_arrays *w, const loam_args *own, local_row_sums *sums,
                            loam_error *error)
{
    const loam_problem *p = &w->own;
    arena pool = { (char *)own->work, 0 };
    const group_work g = group_work_carve(p, &pool);
    *sums = g.rows.sums;
    if (p->mechanism != LOAM_SOFTMAX) TRY(local_probe_gradient_cuda(p, own, &g.rows, error));
    if (p->mechanism == LOAM_LLA) TRY(local_adjoint_all64_cuda(p, own, &g.rows, g.solver, error));
    TRY(local_query_gradient_wide_cuda(p, own, &g.rows, error));
    return p->len_kv > 0 ? local_key_gradient_wide_cuda(p, own, &g.rows, error) : LOAM_OK;
}

static loam_status reduce(const loam_problem *p, const loam_args *a, const batch_arrays *w, loam_error *error)
{
    row_arrays rows = {};
    rows.sums = w->sums, rows.head_sums = w->head_sums;
    return local_row_sums_cuda(p, a, &rows, error);
}

/* 640 MiB for copies of keys: at 4096 keys of 8 heads, a group then has enough rows to fill the device. */
static const batch_backend cuda = {
    (size_t)640 << 20,      work,   begin, set_to_zero, move, path_reflect_cuda, forward, backward, add,
    path_reflect_back_cuda, finish, reduce
};

extern "C" size_t local_path_batch_forward_cuda_work(const loam_problem *p)
{
    return local_path_batch_work(&cuda, p);
}

extern "C" loam_status local_path_batch_forward_cuda(const loam_problem *p, const loam_args *a,
                                                     loam_error *error)
{
    return local_path_batch_forward(&cuda, p, a, error);
}

extern "C" size_t local_path_batch_backward_cuda_work(const loam_problem *p)
{
    return local_path_batch_work(&cuda, p);
}

extern "C" loam_status local_path_batch_backward_cuda(const loam_problem *p, const loam_args *a,
                                                      loam_error *error)
{
    return local_path_batch_backward(&cuda, p, a, error);
}
