/* SPDX-License-Identifier: MIT
 * MesaNet on Hopper: the workspace and the kernels in their order; what leaves a chunk to float64. */
#include "src/recurrent/recurrent_mesa_sm90.cuh"

/* o = S x of the tokens of a chunk that float64 has solved; a thread has a row of S. */
__global__ void __launch_bounds__(MESA_DIM) mesa_rest_kernel(const __grid_constant__ mesa s)
{
    __shared__ double k[MESA_DIM], x[MESA_DIM];
    const int64_t chunk = blockIdx.x % s.kept.per_sequence, head = blockIdx.x / s.kept.per_sequence;
    const int64_t h = head % s.p.heads_v, first = chunk * MESA_TOKENS, key_head = recurrent_key_head(&s.p, h);
    const recurrent_seq seq = recurrent_seq_at(&s.p, &s.a, head / s.p.heads_v);
    if (first >= seq.len || !s.doubtful[kept_slot(s.kept, s.p, seq, h, chunk)]) {
        return;
    }
    const float *kept = kept_row(s.kept, s.p, seq, h, chunk, threadIdx.x);
    double m[MESA_DIM];
#pragma unroll
    for (int c = 0; c < MESA_DIM; c++) {
        m[c] = kept[c];
    }
    for (int64_t t = first; t < seq.len && t < first + MESA_TOKENS; t++) {
        const int64_t token = seq.first + t;
        __syncthreads();
        if (threadIdx.x < 32) {
            stage_features<4>(k, s.p, s.a.k.data, RECURRENT_AT(s.a.k, seq.b, key_head, token), 1.0);
        }
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

static mesa mesa_carve(const loam_problem *p, const loam_args *a, arena *pool)
{
    mesa s = {};
    const size_t rows = size_mul((size_t)recurrent_tokens(p), (size_t)p->heads_v);
    s.p = *p, s.form = *recurrent_form_of(p->mechanism);
    if (a) {
        s.a = *a;
    }
    s.kept = kept_carve<float>(p, MESA_TOKENS, 2 * MESA_DIM, pool);
    const size_t slots = size_mul((size_t)s.kept.per_head, (size_t)p->heads_v);
    s.doubtful = (int32_t *)arena_take(pool, slots, sizeof(int32_t));
    s.x = (double *)arena_take(pool, size_mul(rows, MESA_DIM), sizeof(double));
    return s;
}

loam_status recurrent_mesa_sm90_fits(const loam_problem *p, loam_error *error)
{
    REQUIRE(p->dim_qk == MESA_DIM && p->dim_v == MESA_DIM, error, LOAM_EUNSUPPORTED,
            "dim_qk, dim_v: %lld, %lld, this kernel takes 64, 64", (long long)p->dim_qk, (long long)p->dim_v);
    REQUIRE(p->feature_map != LOAM_FEATURES_ELU, error, LOAM_EUNSUPPORTED,
            "feature_map: elu, this kernel takes none and unit");
    return LOAM_OK;
}

/* Rows that copies of 16 bytes can read. */
static bool reads(const loam_const_view &view)
{
    return (uintptr_t)view.data % 16 == 0 && view.batch % 8 == 0 && view.head % 8 == 0 && view.token % 8 == 0;
}

size_t recurrent_mesa_sm90_work(const loam_problem *p)
{
    arena pool = {};
    (void)mesa_carve(p, NULL, &pool);
    const size_t plain = recurrent_forward_sm80_work(p);
    return pool.used > plain ? pool.used : plain;
}

loam_status recurrent_mesa_sm90(const loam_problem *p, const loam_args *a, loam_error *error)
{
    const loam_const_view o = { a->o.data, a->o.batch, a->o.head, a->o.token };
    if (!reads(a->q) || !reads(a->k) || !reads(a->v) || !reads(o)) {
        return recurrent_forward_sm80(p, a, error);
    }
    arena pool = { (char *)a->work, 0 };
    const mesa s = mesa_carve(p, a, &pool);
    const int64_t heads = p->batch * p->heads_v;
    if (heads > 0) {
        TRY(cuda_launch("mesa_pass_kernel", mesa_pass_kernel, 2 * heads, MESA_THREADS,
                        sizeof(mesa_pass_stage), a->stream, false, error, s));
    }
    if (heads > 0 && s.kept.per_sequence > 0) {
        TRY(cuda_launch("mesa_solve_kernel", mesa_solve_kernel, heads * s.kept.per_sequence, MESA_THREADS,
                        sizeof(mesa_solve_stage), a->stream, false, error, s));
        TRY(recurrent_solve_rest_cuda(p, a, &s.kept, s.doubtful, s.x, error));
        TRY(cuda_launch("mesa_rest_kernel", mesa_rest_kernel, heads * s.kept.per_sequence, MESA_DIM, 0,
                        a->stream, false, error, s));
    }
    return loam_succeed(error);
}
