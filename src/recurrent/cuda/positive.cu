/* SPDX-License-Identifier: MIT
 * Positive random features on GPUs: copies where the recurrence cannot read what is given, the map, the plain
 * rows of the recurrence, and back. */
#include "src/recurrent/cuda/positive.cuh"

/* A thread has one element of a copy. */
typedef enum copy { COPY_VALUES, COPY_OUTPUT_GRADIENT, COPY_OUTPUT, COPY_VALUE_GRADIENT } copy;

__global__ void __launch_bounds__(THREADS)
    positive_copy_kernel(const __grid_constant__ launch l, copy what, int64_t heads, int64_t elements)
{
    const positive x = positive_here(l);
    const int64_t e = (int64_t)blockIdx.x * THREADS + threadIdx.x, c = e % l.p.dim_v, i = e / l.p.dim_v,
                  tokens = x.axis / x.reads, h = i / tokens % heads, b = i / tokens / heads;
    if (e >= elements) return;
    switch (what) {
    case COPY_VALUES: positive_take(&x, &l.a.v, true, x.v, i, c); break;
    case COPY_OUTPUT_GRADIENT: positive_take(&x, &l.a.grad_o, false, x.o, i, c); break;
    case COPY_OUTPUT: positive_give(&x, b, h, i % tokens, c); break;
    case COPY_VALUE_GRADIENT: positive_give_values(&x, b, h, i % tokens, c); break;
    }
}

/* Where sequences begin on the axis of the recurrence. */
__global__ void __launch_bounds__(THREADS) positive_offsets_kernel(const __grid_constant__ launch l)
{
    for (int64_t b = threadIdx.x; b <= l.p.batch; b += THREADS)
        l.x.cu[b] = l.a.cu_q[b] * l.x.reads;
}

/* The logarithms that a state is relative to have no gradient. */
__global__ void __launch_bounds__(THREADS) positive_clear_kernel(const __grid_constant__ launch l)
{
    const loam_view &to = l.a.grad_state_in;
    for (int64_t m = threadIdx.x; m < l.p.features; m += THREADS) {
        const int64_t at = RECURRENT_AT(to, blockIdx.x / l.x.heads, blockIdx.x % l.x.heads, l.p.dim_v + 1);
        ((float *)to.data)[at + m] = 0;
    }
}

static loam_status run_copy(const launch *l, copy what, int64_t heads, loam_error *error)
{
    const int64_t batch = sequence_packed(&l->p) ? 1 : l->p.batch;
    const int64_t tokens = what == COPY_VALUES || what == COPY_OUTPUT_GRADIENT ? l->x.axis
                                                                               : l->x.axis / l->x.reads;
    const int64_t elements = batch * heads * tokens * l->p.dim_v, blocks = (elements + THREADS - 1) / THREADS;
    REQUIRE(blocks <= INT32_MAX, error, LOAM_EMEMORY, "batch x heads x len_q: too large for one launch");
    return blocks == 0 ? LOAM_OK
                       : cuda_launch("positive_copy_kernel", positive_copy_kernel, blocks, THREADS, 0,
                                     l->a.stream, false, error, *l, what, heads, elements);
}

static loam_status stage(const launch *l, loam_error *error)
{
    if (sequence_packed(&l->p) && l->x.reads > 1) {
        TRY(cuda_launch("positive_offsets_kernel", positive_offsets_kernel, 1, THREADS, 0, l->a.stream, false,
                        error, *l));
    }
    if (!l->x.staged) return LOAM_OK;
    TRY(run_copy(l, COPY_VALUES, l->x.heads, error));
    return l->p.pass == LOAM_BACKWARD ? run_copy(l, COPY_OUTPUT_GRADIENT, l->x.heads, error) : LOAM_OK;
}

static loam_status unstage(const launch *l, loam_error *error)
{
    const bool backward = l->p.pass == LOAM_BACKWARD;
    const int64_t states = l->p.batch * l->x.heads;
    if (l->x.staged && !backward) TRY(run_copy(l, COPY_OUTPUT, l->p.heads_q, error));
    if (l->x.staged && backward && l->a.grad_v.data)
        TRY(run_copy(l, COPY_VALUE_GRADIENT, l->p.heads_kv, error));
    return !backward || !l->a.grad_state_in.data || states == 0
               ? LOAM_OK
               : cuda_launch("positive_clear_kernel", positive_clear_kernel, states, THREADS, 0, l->a.stream,
                             false, error, *l);
}

/* The workspace, and in *work that of the recurrence. */
static launch carve(const loam_problem *p, const loam_args *a, kernel_work_fn *recurrence, arena *pool,
                    void **work)
{
    launch l = {};
    l.p = *p;
    if (a) l.a = *a;
    l.x = positive_make(p, a, LOAM_F32, pool);
    const int64_t tokens = sequence_packed(p) ? p->total_q : p->batch * p->len_q;
    const size_t heads = (size_t)l.x.heads, features = (size_t)p->features;
    const bool backward = p->pass == LOAM_BACKWARD;
    l.blocks = (p->len_q + BLOCK - 1) / BLOCK;
    l.slices = backward ? (tokens + SLICE - 1) / SLICE : 0;
    const size_t starts = size_mul(size_mul((size_t)p->batch, heads), (size_t)l.blocks),
                 parts = size_mul(size_mul((size_t)l.slices, heads), features);
    l.before = (float *)arena_take(pool, size_mul(starts, features), sizeof *l.before);
    l.parts = (double *)arena_take(pool, size_mul(parts, (size_t)p->dim_qk + 1), sizeof *l.parts);
    const loam_problem problem = positive_problem(&l.x);
    *work = arena_take(pool, recurrence(&problem), 1);
    return l;
}

static size_t work_bytes(const loam_problem *p, kernel_work_fn *recurrence)
{
    arena pool = {};
    void *work;
    (void)carve(p, NULL, recurrence, &pool, &work);
    return pool.used;
}

static loam_status run(const loam_problem *p, const loam_args *a, kernel_work_fn *recurrence,
                       kernel_run_fn *read, loam_error *error)
{
    arena pool = { (char *)a->work, 0 };
    void *work;
    const launch l = carve(p, a, recurrence, &pool, &work);
    if (p->pass == LOAM_DECODE && p->len_q == 1) {
        TRY(positive_step_cuda(&l, error));
        return loam_succeed(error);
    }
    positive_read inner = positive_recurrence(&l.x);
    inner.args.work = work;
    TRY(stage(&l, error));
    TRY(positive_map_cuda(&l, error));
    TRY(read(&inner.problem, &inner.args, error));
    if (p->pass == LOAM_BACKWARD) TRY(positive_gradient_cuda(&l, error));
    TRY(unstage(&l, error));
    return loam_succeed(error);
}

size_t positive_forward_cuda_work(const loam_problem *p)
{
    return work_bytes(p, recurrent_forward_cuda_work);
}
size_t positive_backward_cuda_work(const loam_problem *p)
{
    return work_bytes(p, recurrent_backward_cuda_work);
}
size_t positive_decode_cuda_work(const loam_problem *p) { return work_bytes(p, recurrent_decode_cuda_work); }

loam_status positive_forward_cuda(const loam_problem *p, const loam_args *a, loam_error *error)
{
    return run(p, a, recurrent_forward_cuda_work, recurrent_forward_cuda, error);
}

loam_status positive_backward_cuda(const loam_problem *p, const loam_args *a, loam_error *error)
{
    return run(p, a, recurrent_backward_cuda_work, recurrent_backward_cuda, error);
}

loam_status positive_decode_cuda(const loam_problem *p, const loam_args *a, loam_error *error)
{
    return run(p, a, recurrent_decode_cuda_work, recurrent_decode_cuda, error);
}
