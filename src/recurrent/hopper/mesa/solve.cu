/* SPDX-License-Identifier: MIT
 * MesaNet on Hopper: the workspace, the order of the launches, and the kernels for chunks
 * that are solved in float64. */
#include "src/recurrent/hopper/mesa/backward.cuh"

#include "src/recurrent/cuda/backward.cuh"
#include "src/recurrent/hopper/chunks.cuh"

/* o = S x for the tokens of a chunk that was solved in float64, one after another;
 * a thread has a row of S. */
__global__ void __launch_bounds__(MESA_DIM) mesa_output_f64_kernel(const __grid_constant__ mesa_params s)
{
    __shared__ double k[MESA_DIM], x[MESA_DIM];
    mesa_begin();
    const int64_t chunk = blockIdx.x % s.kept.per_sequence, head = blockIdx.x / s.kept.per_sequence;
    const int64_t h = head % s.p.heads_v, first = chunk * MESA_TOKENS, key_head = recurrent_key_head(&s.p, h);
    const recurrent_seq seq = recurrent_seq_at(&s.p, &s.a, head / s.p.heads_v);
    if (first >= seq.len || !s.needs_f64[kept_slot(s.kept, s.p, seq, h, chunk)]) return;
    const float *kept = kept_row(s.kept, s.p, seq, h, chunk, threadIdx.x);
    double m[MESA_DIM];
#pragma unroll
    for (int c = 0; c < MESA_DIM; c++)
        m[c] = kept[c];
    for (int64_t t = first; t < seq.len && t < first + MESA_TOKENS; t++) {
        const int64_t token = seq.first + t;
        __syncthreads();
        if (threadIdx.x < 32)
            stage_features<4>(k, s.p, s.a.k.data, RECURRENT_AT(s.a.k, seq.b, key_head, token), 1.0);
        x[threadIdx.x] = s.x[recurrent_work_row(&s.p, &seq, h, t) * MESA_DIM + threadIdx.x];
        __syncthreads();
        const double decay = exp(
            (double)((const float *)s.a.log_decay.data)[RECURRENT_AT(s.a.log_decay, seq.b, h, token)]);
        const double v = load_real<double>(s.a.v.data, s.p.dtype,
                                           RECURRENT_AT(s.a.v, seq.b, h, token) + threadIdx.x);
        const double u = v * beta_of<double>(s.form, s.a, seq, h, t);
        double o = 0;
#pragma unroll
        for (int c = 0; c < MESA_DIM; c++) {
            m[c] = fma(u, k[c], m[c] * decay);
            o = fma(m[c], x[c], o);
        }
        store_real(s.a.o.data, s.p.dtype, RECURRENT_AT(s.a.o, seq.b, h, token) + threadIdx.x, (float)o);
    }
}

/* Backward for such a chunk: stores x and z in bf16 parts, and `read_terms`, the terms of S0 and H0 in the
 * gradients of the gates. */
__global__ void __launch_bounds__(MESA_DIM)
    mesa_adjoint_f64_kernel(const __grid_constant__ mesa_backward_params s)
{
    __shared__ double x[MESA_DIM], sums[MESA_DIM];
    mesa_begin();
    const mesa_chunk chunk = mesa_chunk_of_block(s.m);
    const int r = threadIdx.x;
    if (chunk.tokens <= 0) return;
    const int64_t slot = mesa_slot(s.m, chunk);
    if (!s.m.needs_f64[slot]) return;
    const float *kept = mesa_states(s.m.kept, s.m, chunk);
    double pre = 0;
    for (int t = 0; t < chunk.tokens; t++) {
        const int64_t row = recurrent_work_row(&s.m.p, &chunk.seq, chunk.h, chunk.index * MESA_TOKENS + t) *
                            MESA_DIM;
        const double z = s.dx[row + r];
        __syncthreads();
        x[r] = s.m.x[row + r];
        __syncthreads();
        for (int side = 0; side < 2; side++) {
            double rest = side ? z : x[r];
            for (int part = 0; part < 3; part++) {
                const __nv_bfloat16 high = __float2bfloat16_rn((float)rest);
                s.solutions[slot][3 * side + part][swizzled(t, r)] = high;
                rest -= (double)__bfloat162float(high);
            }
        }
        double s0_x = 0, h0_x = 0;
        for (int c = 0; c < MESA_DIM; c++) {
            const float *H = kept + MESA_DIM * MESA_DIM;
            s0_x = fma((double)kept[r * MESA_DIM + c], x[c], s0_x);
            h0_x = fma(((double)H[r * MESA_DIM + c] + (double)H[c * MESA_DIM + r]) / 2, x[c], h0_x);
        }
        const double grad_o = load_real<double>(
            s.m.a.grad_o.data, s.m.p.dtype,
            RECURRENT_AT(s.m.a.grad_o, chunk.seq.b, chunk.h, chunk.first + t) + r);
        sums[r] = grad_o * s0_x - z * h0_x;
        __syncthreads();
        pre += (double)((const float *)s.m.a.log_decay
                            .data)[RECURRENT_AT(s.m.a.log_decay, chunk.seq.b, chunk.h, chunk.first + t)];
        if (r == 0) {
            double sum = 0;
            for (int c = 0; c < MESA_DIM; c++)
                sum += sums[c];
            s.read_terms[slot * MESA_TOKENS + t] = (float)(exp(pre) * sum);
        }
    }
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
        TRY(recurrent_solve_rest_cuda(p, a, &s.kept, s.needs_f64, s.x, NULL, error));
        TRY(cuda_launch("mesa_output_f64_kernel", mesa_output_f64_kernel, chunks, MESA_DIM, 0, a->stream,
                        true, error, s));
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
    s.solutions = (mesa_tile(*)[2 * MESA_PARTS]) arena_take(pool, slots, sizeof *s.solutions);
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
        TRY(recurrent_solve_rest_cuda(p, a, &s.m.kept, s.m.needs_f64, s.m.x, s.dx, error));
        TRY(cuda_launch("mesa_adjoint_f64_kernel", mesa_adjoint_f64_kernel, chunks, MESA_DIM, 0, a->stream,
                        true, error, s));
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
