/* SPDX-License-Identifier: MIT
 * PaTH scores on GPUs, rows as problems of their own: the workspace, and what moves between a problem and the problems of its
 * rows. */
#include "src/local/local_path_each_cuda.cuh"

enum { MOVE_THREADS = 128, SUM_THREADS = 256 };

/* what the copies of a group may take. */
static const size_t group_bytes = (size_t)384 << 20;
static const int64_t least_group = 8, most_group = 64;

static size_t step_bytes(const loam_problem *p)
{
    const bool backward = p->pass == LOAM_BACKWARD;
    const size_t channels = (size_t)(backward ? 2 * p->dim_qk + p->dim_v : p->dim_qk);
    return size_mul(size_mul((size_t)p->heads_kv, (size_t)p->len_kv), channels * sizeof(float));
}

static each_shape each_shape_of(const loam_problem *p)
{
    const size_t each = step_bytes(p), room = group_bytes / (each > 0 ? each : 1);
    each_shape x;
    x.steps = p->len_q > p->len_kv ? p->len_q : p->len_kv;
    x.group = local_clamp((int64_t)room, least_group, most_group);
    x.group = x.group < x.steps ? x.group : x.steps > 0 ? x.steps : 1;
    x.groups = (x.steps + x.group - 1) / x.group;
    x.no_rows = x.steps - p->len_q;
    return x;
}

/* Forward turns one frame in place. Backward keeps the first, those on the way to a group, each of which halves what is left of
 * it, and one that turning a group leaves. */
static int64_t frame_slots(const loam_problem *p, int64_t groups)
{
    int64_t slots = 1;
    for (; p->pass == LOAM_BACKWARD && groups > 0; groups /= 2) {
        slots++;
    }
    return slots + (p->pass == LOAM_BACKWARD);
}

static void carve_backward(const loam_problem *p, each_arrays *w, arena *pool)
{
    const size_t group = (size_t)w->shape.group, rows = size_mul(group, (size_t)p->heads_q);
    const size_t keys = size_mul((size_t)p->heads_kv, (size_t)p->len_kv),
                 pairs = p->decay ? size_mul((size_t)p->heads_q, (size_t)p->len_kv) : 0;
    const size_t d = (size_t)p->dim_qk, dv = (size_t)p->dim_v, tiles = ((size_t)p->len_kv + EACH_KEYS - 1) / EACH_KEYS;
    w->grad_o = (float *)arena_take(pool, size_mul(rows, dv), sizeof(float));
    w->grad_q = (float *)arena_take(pool, size_mul(rows, d), sizeof(float));
    w->grad_probe = (float *)arena_take(pool, p->mechanism == LOAM_PARALLAX ? size_mul(rows, d) : 0, sizeof(float));
    w->grad_ridge = (float *)arena_take(pool, p->mechanism == LOAM_LLA ? size_mul(rows, d) : 0, sizeof(float));
    w->grad_k = (float *)arena_take(pool, size_mul(size_mul(group, keys), d), sizeof(float));
    w->grad_v = (float *)arena_take(pool, size_mul(size_mul(group, keys), dv), sizeof(float));
    w->columns = (float *)arena_take(pool, size_mul(group, pairs), sizeof(float));
    w->sum_k = (double *)arena_take(pool, size_mul(keys, d), sizeof(double));
    w->sum_v = (double *)arena_take(pool, size_mul(keys, dv), sizeof(double));
    w->sum_columns = (double *)arena_take(pool, pairs, sizeof(double));
    w->parts = (double *)arena_take(pool, size_mul(size_mul(tiles, size_mul(group, d + 1)), (size_t)p->heads_kv), sizeof(double));
    w->rows = local_row_arrays_carve(&w->own, pool);
    w->rows.state = NULL;
    w->all = row_arrays{};
    w->all.sums = local_row_sums_carve(p, pool);
    w->all.head_sums = (double *)arena_take(pool, 2 * (size_t)p->heads_q, sizeof(double));
}

each_arrays each_arrays_carve(const loam_problem *p, arena *pool)
{
    each_arrays w = {};
    w.shape = each_shape_of(p);
    w.own = *p;
    w.own.dtype = LOAM_F32;
    w.own.batch = w.shape.group, w.own.len_q = 1, w.own.total_q = w.own.total_kv = -1;
    w.slots = frame_slots(p, w.shape.groups);
    w.frame = p->heads_kv * p->len_kv * p->dim_qk;
    const size_t group = (size_t)w.shape.group, rows = size_mul(group, (size_t)p->heads_q);
    const size_t keys = size_mul((size_t)p->heads_kv, (size_t)p->len_kv),
                 pairs = size_mul((size_t)p->heads_q, (size_t)p->len_kv);
    const size_t d = (size_t)p->dim_qk, dv = (size_t)p->dim_v, f32 = sizeof(float);
    const bool given = p->mechanism == LOAM_PARALLAX, solved = p->mechanism == LOAM_LLA,
               forward = p->pass == LOAM_FORWARD;
    size_t saved = 0;
    local_saved_carve(&w.own, NULL, &saved);
    w.values = (float *)arena_take(pool, size_mul(keys, dv), f32);
    w.decay = (local_decay_pair *)arena_take(pool, p->decay ? pairs : 0, sizeof(local_decay_pair));
    w.frames = (double *)arena_take(pool, size_mul((size_t)w.slots, size_mul(keys, d)), sizeof(double));
    w.keys = (float *)arena_take(pool, size_mul(size_mul(group, keys), d), f32);
    w.lens = (int64_t *)arena_take(pool, group, sizeof(int64_t));
    w.q = (float *)arena_take(pool, size_mul(rows, d), f32);
    w.probe = (float *)arena_take(pool, given ? size_mul(rows, d) : 0, f32);
    w.ridge = (float *)arena_take(pool, solved ? size_mul(rows, d) : 0, f32);
    w.saved = arena_take(pool, saved, 1);
    w.solver = arena_take(pool, solved ? local_all64_cuda_work(&w.own) : 0, 1);
    w.o = (float *)arena_take(pool, forward ? size_mul(rows, dv) : 0, f32);
    w.lse = (float *)arena_take(pool, forward ? rows : 0, f32);
    w.rho = (float *)arena_take(pool, forward ? size_mul(rows, d) : 0, f32);
    w.weights = (float *)arena_take(pool, forward ? size_mul(group, pairs) : 0, f32);
    w.info = (loam_row_info *)arena_take(pool, forward ? rows : 0, sizeof(loam_row_info));
    if (p->pass == LOAM_BACKWARD) {
        carve_backward(p, &w, pool);
    }
    return w;
}

loam_args each_args(const loam_problem *p, const loam_args *a, const each_arrays *w)
{
    const int64_t keys = p->len_kv, d = p->dim_qk, dv = p->dim_v, all = p->heads_kv * keys;
    loam_args x = {};
    x.q = loam_dense(w->q, p->heads_q, 1, d);
    x.k = loam_const_view{ w->keys, all * d, keys * d, d };
    x.v = loam_const_view{ w->values, 0, keys * dv, dv };
    x.probe = loam_dense(w->probe, p->heads_q, 1, d);
    x.ridge = a->ridge;
    if (p->ridge_axes >= LOAM_RIDGE_TOKEN) {
        x.ridge = loam_dense(w->ridge, p->heads_q, 1, p->ridge_axes == LOAM_RIDGE_CHANNEL ? d : 1);
    }
    x.lens_kv = w->lens;
    x.log_decay = loam_const_view{ w->decay, 0, keys, 1 };
    x.stream = a->stream;
    x.work = w->solver;
    x.saved = w->saved;
    return x;
}

/* ------------------------------------------------------------------ rows in and out */

template <bool IN>
static __device__ __forceinline__ void move_element(const each_rows &x, int64_t outside, int64_t inside)
{
    switch (x.dtype) {
    case LOAM_F64: {
        double *const all = (double *)x.data + outside, *const own = (double *)x.own + inside;
        *(IN ? own : all) = *(IN ? all : own);
        return;
    }
    case LOAM_F32: { /* any 32 bits */
        uint32_t *const all = (uint32_t *)x.data + outside, *const own = (uint32_t *)x.own + inside;
        *(IN ? own : all) = *(IN ? all : own);
        return;
    }
    default:
        if (IN) {
            ((float *)x.own)[inside] = (float)element_load(x.data, x.dtype, outside);
        } else {
            element_store(x.data, x.dtype, outside, (double)((float *)x.own)[inside]);
        }
    }
}

/* blockIdx.x: row of the group, .y: which array. Rows that are not there are 0 in the group. */
template <bool IN>
static __global__ void __launch_bounds__(MOVE_THREADS)
    each_move_kernel(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                     const __grid_constant__ each_moves moves, const each_shape shape, int64_t *lens, int64_t b,
                     int64_t first)
{
    const each_rows &x = moves.rows[blockIdx.y];
    const int64_t n = blockIdx.x / p.heads_q, h = blockIdx.x % p.heads_q;
    const local_seq s = local_seq_at(&p, &a, b);
    const each_step step = each_step_at(shape, s, first + n);
    if (IN && blockIdx.y == 0 && h == 0 && threadIdx.x == 0) {
        lens[n] = step.query >= 0 && step.position >= 0 ? step.position + 1 : 0;
    }
    if (!IN && step.query < 0) {
        return;
    }
    const int64_t outside = s.b * x.batch + h * x.head + (s.q0 + step.query) * x.token,
                  inside = blockIdx.x * x.width;
    for (int64_t c = threadIdx.x; c < x.width; c += MOVE_THREADS) {
        if (IN && step.query < 0) {
            ((float *)x.own)[inside + c] = 0;
        } else {
            move_element<IN>(x, outside + c, inside + c);
        }
    }
}

loam_status each_move_cuda(const loam_problem *p, const loam_args *a, const each_arrays *w,
                           const each_moves *moves, bool in, int64_t b, int64_t first, int64_t count,
                           loam_error *error)
{
    const dim3 grid((unsigned)(count * p->heads_q), (unsigned)moves->count);
    const cudaStream_t stream = (cudaStream_t)a->stream;
    if (moves->count == 0) {
        return LOAM_OK;
    }
    if (in) {
        each_move_kernel<true><<<grid, MOVE_THREADS, 0, stream>>>(*p, *a, *moves, w->shape, w->lens, b, first);
    } else {
        each_move_kernel<false><<<grid, MOVE_THREADS, 0, stream>>>(*p, *a, *moves, w->shape, w->lens, b, first);
    }
    return cuda_launched("each_move_kernel", error);
}

/* ------------------------------------------------------------------ a sequence begins and ends */

/* blockIdx.x: key, .y: head of q; those of k are among them. */
static __global__ void __launch_bounds__(MOVE_THREADS)
    each_begin_kernel(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a, float *values,
                      local_decay_pair *decay, int64_t b)
{
    const local_seq s = local_seq_at(&p, &a, b);
    const int64_t j = blockIdx.x, h = blockIdx.y;
    if (j >= s.nk) {
        return;
    }
    if (p.decay && threadIdx.x == 0) {
        decay[h * p.len_kv + j] = ((const local_decay_pair *)a.log_decay.data)[LOCAL_AT(a.log_decay, s.b, h, s.k0 + j)];
    }
    for (int64_t c = threadIdx.x; h < p.heads_kv && c < p.dim_v; c += MOVE_THREADS) {
        values[(h * p.len_kv + j) * p.dim_v + c] =
            (float)element_load(a.v.data, p.dtype, LOCAL_AT(a.v, s.b, h, s.k0 + j) + c);
    }
}

static loam_status clear_doubles(double *x, int64_t count, const loam_args *a, loam_error *error)
{
    return cuda_check(cudaMemsetAsync(x, 0, (size_t)count * sizeof(double), (cudaStream_t)a->stream), "sums over rows",
                      error);
}

loam_status each_begin_cuda(const loam_problem *p, const loam_args *a, const each_arrays *w, int64_t b,
                            loam_error *error)
{
    const int64_t keys = p->heads_kv * p->len_kv;
    if (p->len_kv == 0) {
        return LOAM_OK;
    }
    if (p->pass == LOAM_BACKWARD) {
        TRY(clear_doubles(w->sum_k, keys * p->dim_qk, a, error));
        TRY(clear_doubles(w->sum_v, keys * p->dim_v, a, error));
        TRY(clear_doubles(w->sum_columns, p->decay ? p->heads_q * p->len_kv : 0, a, error));
    }
    const dim3 grid((unsigned)p->len_kv, (unsigned)p->heads_q);
    each_begin_kernel<<<grid, MOVE_THREADS, 0, (cudaStream_t)a->stream>>>(*p, *a, w->values, w->decay, b);
    return cuda_launched("each_begin_kernel", error);
}

/* sum[h][j][c] += parts[n][h][j][c] for the rows n of a group, from the last. */
static __global__ void __launch_bounds__(SUM_THREADS)
    each_add_kernel(double *sum, const float *parts, int64_t heads, int64_t stored, int64_t keys, int64_t width,
                    int64_t count)
{
    const int64_t e = (int64_t)blockIdx.x * SUM_THREADS + threadIdx.x, h = blockIdx.y;
    if (e >= keys * width) {
        return;
    }
    const int64_t at = h * stored * width + e, step = heads * stored * width;
    double total = sum[at];
    for (int64_t n = count - 1; n >= 0; n--) {
        total += (double)parts[n * step + at];
    }
    sum[at] = total;
}

static loam_status add(double *sum, const float *parts, int64_t heads, int64_t stored, int64_t keys, int64_t width,
                       int64_t count, const loam_args *a, loam_error *error)
{
    const dim3 grid((unsigned)((keys * width + SUM_THREADS - 1) / SUM_THREADS), (unsigned)heads);
    each_add_kernel<<<grid, SUM_THREADS, 0, (cudaStream_t)a->stream>>>(sum, parts, heads, stored, keys, width, count);
    return cuda_launched("each_add_kernel", error);
}

loam_status each_add_cuda(const loam_problem *p, const loam_args *a, const each_arrays *w, int64_t keys, int64_t count,
                          loam_error *error)
{
    if (p->decay) {
        TRY(add(w->sum_columns, w->columns, p->heads_q, p->len_kv, keys, 1, count, a, error));
    }
    return add(w->sum_v, w->grad_v, p->heads_kv, p->len_kv, keys, p->dim_v, count, a, error);
}

/* Gradients of key blockIdx.x, head blockIdx.y; 0 of keys beyond those in use, which no step has met. */
static __global__ void __launch_bounds__(MOVE_THREADS)
    each_finish_kernel(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                       const double *sum_k, const double *sum_v, const double *columns, int64_t b)
{
    const local_seq s = local_seq_at(&p, &a, b);
    const int64_t j = blockIdx.x, h = blockIdx.y, at = h * p.len_kv + j, token = s.k0 + j;
    const bool used = j < s.nk;
    if (j >= local_stored_keys(&p, &s)) {
        return;
    }
    if (p.decay && a.grad_log_decay.data && threadIdx.x == 0) {
        ((float *)a.grad_log_decay.data)[LOCAL_AT(a.grad_log_decay, s.b, h, token)] = used ? (float)columns[at] : 0;
    }
    if (h >= p.heads_kv) {
        return;
    }
    for (int64_t c = threadIdx.x; a.grad_k.data && c < p.dim_qk; c += MOVE_THREADS) {
        element_store(a.grad_k.data, p.dtype, LOCAL_AT(a.grad_k, s.b, h, token) + c,
                      used ? sum_k[at * p.dim_qk + c] : 0);
    }
    for (int64_t c = threadIdx.x; a.grad_v.data && c < p.dim_v; c += MOVE_THREADS) {
        element_store(a.grad_v.data, p.dtype, LOCAL_AT(a.grad_v, s.b, h, token) + c, used ? sum_v[at * p.dim_v + c] : 0);
    }
    for (int64_t c = threadIdx.x; !used && a.grad_w.data && c < p.dim_qk; c += MOVE_THREADS) {
        element_store(a.grad_w.data, p.dtype, LOCAL_AT(a.grad_w, s.b, h, token) + c, 0);
    }
    if (!used && a.grad_beta.data && threadIdx.x == 0) {
        ((float *)a.grad_beta.data)[LOCAL_AT(a.grad_beta, s.b, h, token)] = 0;
    }
}

loam_status each_finish_cuda(const loam_problem *p, const loam_args *a, const each_arrays *w, int64_t b,
                             loam_error *error)
{
    const dim3 grid((unsigned)p->len_kv, (unsigned)p->heads_q);
    if (p->len_kv == 0) {
        return LOAM_OK;
    }
    each_finish_kernel<<<grid, MOVE_THREADS, 0, (cudaStream_t)a->stream>>>(*p, *a, w->sum_k, w->sum_v, w->sum_columns, b);
    return cuda_launched("each_finish_kernel", error);
}
