/* SPDX-License-Identifier: MIT
 * MesaNet on Hopper: the workspace, the order of the launches, and the kernels for chunks
 * that are solved in float64. */
#include "src/recurrent/hopper/mesa/backward.cuh"

#include "src/recurrent/cuda/backward.cuh"
#include "src/recurrent/cuda/solve_rows.cuh"
#include "src/recurrent/hopper/chunks.cuh"

/* ------------------------------------------------------------------ chunks in float64
 *
 * Four neighbouring threads share a row of S or H; thread n % 4 has every fourth column, from n % 4 on. */

enum { MESA_SHARE = SOLVE_THREADS / MESA_DIM };

/* o = S x for the tokens of the chunk, one after another. */
static __device__ __forceinline__ void mesa_output_f64(const mesa_params &s, const mesa_chunk &chunk)
{
    __shared__ double k[MESA_DIM], x[MESA_DIM];
    const int row = threadIdx.x / MESA_SHARE, part = threadIdx.x % MESA_SHARE;
    const float *kept = mesa_states(s.kept, s, chunk) + row * MESA_DIM;
    double m[MESA_DIM / MESA_SHARE];
#pragma unroll
    for (int n = 0; n < MESA_DIM / MESA_SHARE; n++)
        m[n] = kept[n * MESA_SHARE + part];
    for (int t = 0; t < chunk.tokens; t++) {
        const int64_t token = chunk.first + t, at = chunk.index * MESA_TOKENS + t;
        __syncthreads();
        if (threadIdx.x < 32)
            stage_features<4>(k, s.p, s.a.k.data, RECURRENT_AT(s.a.k, chunk.seq.b, chunk.key_head, token),
                              1.0);
        else if (threadIdx.x < 32 + MESA_DIM)
            x[threadIdx.x - 32] =
                s.x[recurrent_work_row(&s.p, &chunk.seq, chunk.h, at) * MESA_DIM + threadIdx.x - 32];
        __syncthreads();
        const double decay = exp((double)mesa_load_scalar(s.a.log_decay, chunk, t));
        const int64_t v = RECURRENT_AT(s.a.v, chunk.seq.b, chunk.h, token) + row;
        const double u = load_real<double>(s.a.v.data, s.p.dtype, v) *
                         beta_of<double>(s.form, s.a, chunk.seq, chunk.h, at);
        double o = 0;
#pragma unroll
        for (int n = 0; n < MESA_DIM / MESA_SHARE; n++) {
            m[n] = fma(u, k[n * MESA_SHARE + part], m[n] * decay);
            o = fma(m[n], x[n * MESA_SHARE + part], o);
        }
        o = quad_sum(o);
        if (part == 0)
            store_real(s.a.o.data, s.p.dtype, RECURRENT_AT(s.a.o, chunk.seq.b, chunk.h, token) + row,
                       (float)o);
    }
}

/* Stores x and z of the chunk in bf16 parts, and `read_terms`, the terms of S0 and H0 in the gradients of the
 * gates. */
static __device__ __forceinline__ void mesa_adjoint_f64(const mesa_backward_params &s,
                                                        const mesa_chunk &chunk)
{
    __shared__ double solution[2][MESA_DIM], sums[MESA_DIM];
    const int row = threadIdx.x / MESA_SHARE, part = threadIdx.x % MESA_SHARE;
    const int64_t slot = mesa_slot(s.m, chunk);
    const float *S = mesa_states(s.m.kept, s.m, chunk) + row * MESA_DIM, *H = S + MESA_DIM * MESA_DIM;
    double pre = 0;
    for (int t = 0; t < chunk.tokens; t++) {
        const int64_t at = recurrent_work_row(&s.m.p, &chunk.seq, chunk.h, chunk.index * MESA_TOKENS + t) *
                           MESA_DIM;
        __syncthreads();
        if (threadIdx.x < 2 * MESA_DIM) {
            const int side = threadIdx.x / MESA_DIM, c = threadIdx.x % MESA_DIM;
            double rest = (side ? s.dx : s.m.x)[at + c];
            solution[side][c] = rest;
            for (int n = 0; n < (side ? Z_PARTS : X_PARTS); n++) {
                const __nv_bfloat16 high = __float2bfloat16_rn((float)rest);
                s.solutions[slot][X_PARTS * side + n][swizzled(t, c)] = high;
                rest -= (double)__bfloat162float(high);
            }
        }
        __syncthreads();
        double s0_x = 0, h0_x = 0;
        for (int c = part; c < MESA_DIM; c += MESA_SHARE)
            s0_x = fma((double)S[c], solution[0][c], s0_x), h0_x = fma((double)H[c], solution[0][c], h0_x);
        s0_x = quad_sum(s0_x), h0_x = quad_sum(h0_x);
        const int64_t o = RECURRENT_AT(s.m.a.grad_o, chunk.seq.b, chunk.h, chunk.first + t) + row;
        if (part == 0)
            sums[row] = load_real<double>(s.m.a.grad_o.data, s.m.p.dtype, o) * s0_x - solution[1][row] * h0_x;
        __syncthreads();
        pre += (double)mesa_load_scalar(s.m.a.log_decay, chunk, t);
        if (threadIdx.x == 0) {
            double sum = 0;
            for (int c = 0; c < MESA_DIM; c++)
                sum += sums[c];
            s.read_terms[slot * MESA_TOKENS + t] = (float)(exp(pre) * sum);
        }
    }
}

/* Solves the chunk of the block in float64 if it is flagged: true, in all threads, if it was. */
static __device__ __forceinline__ bool mesa_solve_f64(const mesa_params &s, const solve &f64,
                                                      const mesa_chunk &chunk)
{
    extern __shared__ __align__(1024) char shared_memory[];
    if (chunk.tokens <= 0 || !s.needs_f64[mesa_slot(s, chunk)]) return false;
    solve_chunk(f64, shared_memory, chunk.seq, chunk.h, chunk.index * MESA_TOKENS,
                mesa_states(s.kept, s, chunk) + MESA_DIM * MESA_DIM, MESA_DIM, NULL);
    __syncthreads();
    return true;
}

/* The chunks that are flagged, one thread block for each chunk. */
__global__ void __launch_bounds__(SOLVE_THREADS, 3)
    mesa_output_f64_kernel(const __grid_constant__ mesa_params s, const __grid_constant__ solve f64)
{
    mesa_begin();
    const mesa_chunk chunk = mesa_chunk_of_block(s);
    if (mesa_solve_f64(s, f64, chunk)) mesa_output_f64(s, chunk);
}

__global__ void __launch_bounds__(SOLVE_THREADS, 3)
    mesa_adjoint_f64_kernel(const __grid_constant__ mesa_backward_params s, const __grid_constant__ solve f64)
{
    mesa_begin();
    const mesa_chunk chunk = mesa_chunk_of_block(s.m);
    if (mesa_solve_f64(s.m, f64, chunk)) mesa_adjoint_f64(s, chunk);
}

/* What the solver in float64 takes; dx, if not NULL, becomes z. */
static solve f64_of(const mesa_params &s, double *dx)
{
    solve f64 = {};
    f64.p = s.p, f64.a = s.a, f64.form = s.form, f64.x = s.x, f64.dx = dx, f64.parts = dx ? 1 : 0;
    return f64;
}

static mesa_params mesa_carve(const loam_problem *p, const loam_args *a, arena *pool)
{
    mesa_params s = {};
    const size_t rows = size_mul((size_t)recurrent_tokens(p), (size_t)p->heads_v);
    s.p = *p, s.form = *recurrent_form_of(p->mechanism);
    if (a) s.a = *a;
    s.kept = kept_carve<float>(p, MESA_TOKENS, 2 * MESA_DIM, pool);
    s.chunks = (unsigned)s.kept.per_sequence, s.group = (unsigned)(p->heads_v / p->heads_q);
    const size_t slots = size_mul((size_t)s.kept.per_head, (size_t)p->heads_v);
    s.h_in = (float *)arena_take(
        pool, size_mul(size_mul((size_t)p->batch, (size_t)p->heads_v), MESA_DIM * MESA_DIM), sizeof(float));
    s.chunk_decay = (float *)arena_take(pool, slots, sizeof(float));
    s.needs_f64 = (int32_t *)arena_take(pool, slots, sizeof(int32_t));
    s.x = (double *)arena_take(pool, size_mul(rows, MESA_DIM), sizeof(double));
    return s;
}

loam_status recurrent_mesa_hopper_fits(const loam_problem *p, loam_error *error)
{
    REQUIRE(p->dim_qk == MESA_DIM && p->dim_v == MESA_DIM, error, LOAM_EUNSUPPORTED,
            "dim_qk, dim_v: %lld, %lld, this kernel takes 64, 64", (long long)p->dim_qk, (long long)p->dim_v);
    REQUIRE(p->feature_map != LOAM_FEATURES_ELU, error, LOAM_EUNSUPPORTED,
            "feature_map: elu, this kernel takes none and unit");
    return LOAM_OK;
}

/* True if 16-byte copies can read the rows. */
static bool reads(const loam_const_view &v)
{
    return chunk_view_aligned(v.data, v.batch, v.head, v.token, 8);
}

static bool writes(const loam_view &v) { return chunk_view_aligned(v.data, v.batch, v.head, v.token, 8); }

/* The states at the beginning of chunks, and state_out. */
static loam_status states(const mesa_params &s, loam_error *error)
{
    const int64_t heads = s.p.batch * s.p.heads_v, chunks = heads * s.kept.per_sequence;
    if (chunks > 0) {
        TRY(cuda_launch("mesa_write_kernel", mesa_write_kernel, chunks, MESA_THREADS,
                        sizeof(mesa_write_shared), s.a.stream, false, error, s));
    }
    const mesa_scan scan = { s.kept, s.a.state_in, {}, s.a.state_out, NULL };
    return cuda_launch("mesa_scan_kernel", mesa_scan_kernel<false>, heads * SCAN_BLOCKS, SCAN_THREADS, 0,
                       s.a.stream, true, error, s, scan);
}

size_t recurrent_mesa_hopper_work(const loam_problem *p)
{
    arena pool = {};
    (void)mesa_carve(p, NULL, &pool);
    const size_t fallback = recurrent_forward_cuda_work(p);
    return pool.used > fallback ? pool.used : fallback;
}

bool recurrent_mesa_hopper_reads(const loam_problem *, const loam_args *a)
{
    return reads(a->q) && reads(a->k) && reads(a->v) && writes(a->o);
}

loam_status recurrent_mesa_hopper(const loam_problem *p, const loam_args *a, loam_error *error)
{
    if (!recurrent_mesa_hopper_reads(p, a)) return recurrent_forward_cuda(p, a, error);
    arena pool = { (char *)a->work, 0 };
    const mesa_params s = mesa_carve(p, a, &pool);
    if (p->batch > 0) TRY(states(s, error));
    const int64_t chunks = p->batch * p->heads_v * s.kept.per_sequence;
    if (chunks > 0) {
        TRY(cuda_launch("mesa_solve_kernel", mesa_solve_kernel, chunks, MESA_THREADS,
                        sizeof(mesa_solve_shared), a->stream, true, error, s));
        TRY(cuda_launch("mesa_output_f64_kernel", mesa_output_f64_kernel, chunks, SOLVE_THREADS,
                        solve_shared_bytes(MESA_DIM), a->stream, true, error, s, f64_of(s, NULL)));
    }
    return loam_succeed(error);
}

/* ------------------------------------------------------------------ backward */

static mesa_backward_params backward_carve(const loam_problem *p, const loam_args *a, backward_work<float> *w,
                                           arena *pool)
{
    mesa_backward_params s = {};
    const size_t rows = size_mul((size_t)recurrent_tokens(p), (size_t)p->heads_v),
                 numbers = size_mul(rows, MESA_DIM), heads_v = (size_t)p->heads_v;
    s.m = mesa_carve(p, a, pool);
    const size_t slots = size_mul((size_t)s.m.kept.per_head, heads_v);
    s.shared = p->heads_v > p->heads_q;
    s.grads = kept_carve<float>(p, MESA_TOKENS, 2 * MESA_DIM, pool);
    s.solutions = (mesa_tile(*)[SOLUTION_PARTS])arena_take(pool, slots, sizeof *s.solutions);
    s.read_terms = (float *)arena_take(pool, size_mul(slots, MESA_TOKENS), sizeof(float));
    s.antisymmetric = (double *)arena_take(pool, size_mul(size_mul((size_t)p->batch, heads_v), SCAN_BLOCKS),
                                           sizeof(double));
    s.dx = (double *)arena_take(pool, numbers, sizeof(double));
    s.sums = (float *)arena_take(pool, size_mul(slots, MESA_SUMS), sizeof(float));
    s.head_sums = (double *)arena_take(pool, size_mul(heads_v, MESA_SUMS), sizeof(double));
    *w = {};
    if (s.shared) {
        s.z = (float *)arena_take(pool, numbers, sizeof(float));
        s.dk = (float *)arena_take(pool, numbers, sizeof(float));
        w->work_rows = (int64_t)rows, w->parts = 1, w->dx = s.z, w->dk = s.dk;
        w->scale = (double *)arena_take(pool, rows, sizeof(double));
    }
    return s;
}

size_t recurrent_mesa_backward_hopper_work(const loam_problem *p)
{
    arena pool = {};
    backward_work<float> w;
    (void)backward_carve(p, NULL, &w, &pool);
    const size_t fallback = recurrent_backward_cuda_work(p);
    return pool.used > fallback ? pool.used : fallback;
}

/* The gradients of the states at the ends of chunks, and grad_state_in. */
static loam_status grad_states(const mesa_backward_params &s, loam_error *error)
{
    const loam_args &a = s.m.a;
    const int64_t heads = s.m.p.batch * s.m.p.heads_v, chunks = heads * s.m.kept.per_sequence;
    if (chunks > 0) {
        TRY(cuda_launch("mesa_reverse_write_kernel", mesa_reverse_write_kernel, chunks, MESA_THREADS,
                        sizeof(mesa_reverse_shared), a.stream, true, error, s));
    }
    const mesa_scan scan = { s.grads, a.grad_state_out, a.state_in, a.grad_state_in, s.antisymmetric };
    return cuda_launch("mesa_scan_kernel", mesa_scan_kernel<true>, heads * SCAN_BLOCKS, SCAN_THREADS, 0,
                       a.stream, true, error, s.m, scan);
}

/* grad_ridge and grad_scale */
static loam_status sums(const mesa_backward_params &s, loam_error *error)
{
    TRY(cuda_launch("mesa_sums_kernel", mesa_sums_kernel, s.m.p.heads_v, SUM_THREADS, 0, s.m.a.stream, true,
                    error, s));
    return cuda_launch("mesa_store_sums_kernel", mesa_store_sums_kernel, 1, 32, 0, s.m.a.stream, true, error,
                       s);
}

static loam_status backward(const mesa_backward_params &s, loam_error *error)
{
    const loam_problem *p = &s.m.p;
    const loam_args *a = &s.m.a;
    const int64_t chunks = p->batch * p->heads_v * s.m.kept.per_sequence;
    TRY(states(s.m, error));
    if (chunks > 0) {
        TRY(cuda_launch("mesa_adjoint_kernel", mesa_adjoint_kernel, chunks, MESA_THREADS,
                        sizeof(mesa_adjoint_shared), a->stream, true, error, s));
        TRY(cuda_launch("mesa_adjoint_f64_kernel", mesa_adjoint_f64_kernel, chunks, SOLVE_THREADS,
                        solve_shared_bytes(MESA_DIM), a->stream, true, error, s, f64_of(s.m, s.dx)));
    }
    TRY(grad_states(s, error));
    return chunks > 0 ? cuda_launch("mesa_gradient_kernel", mesa_gradient_kernel, chunks, MESA_THREADS,
                                    sizeof(mesa_gradient_shared), a->stream, true, error, s)
                      : LOAM_OK;
}

bool recurrent_mesa_backward_hopper_reads(const loam_problem *, const loam_args *a)
{
    return reads(a->q) && reads(a->k) && reads(a->v) && reads(a->grad_o) && writes(a->grad_q) &&
           writes(a->grad_k) && writes(a->grad_v);
}

loam_status recurrent_mesa_backward_hopper(const loam_problem *p, const loam_args *given, loam_error *error)
{
    if (!recurrent_mesa_backward_hopper_reads(p, given)) return recurrent_backward_cuda(p, given, error);
    loam_args a = *given;
    arena pool = { (char *)a.work, 0 };
    backward_work<float> w;
    const mesa_backward_params s = backward_carve(p, &a, &w, &pool);
    const size_t slots = (size_t)(s.m.kept.per_head * p->heads_v);
    if (sequence_packed(p)) { /* unused slots must add 0 to the sums over slots */
        TRY(cuda_check(cudaMemsetAsync(s.sums, 0, slots * MESA_SUMS * sizeof(float), (cudaStream_t)a.stream),
                       "cudaMemsetAsync", error));
    }
    TRY(p->batch > 0 ? backward(s, error) : LOAM_OK);
    if (a.grad_ridge.data || a.grad_scale) TRY(sums(s, error));
    if (s.shared) {
        a.grad_beta.data = NULL, a.grad_log_decay.data = NULL; /* already written */
        a.grad_ridge.data = NULL, a.grad_scale = NULL;
        TRY(recurrent_gather_cuda(p, &a, &w, error));
    }
    return loam_succeed(error);
}
