/* SPDX-License-Identifier: MIT
 *
 * What the plain CUDA kernels of the recurrent family share. The rows of a state interact only through the
 * vectors that multiply all of them (keys, queries, decays). So a thread block keeps some rows of one head in
 * registers and takes them through all tokens. A row belongs to LANES lanes of a warp, with CHANNELS of its
 * channels in each, as quads: four neighbouring channels. The other lanes of the warp have other rows.
 *
 * REAL is float, or double for MesaNet, which solves systems with H: rounding errors of H, divided by a small
 * ridge, would dominate the result.
 */
#ifndef LOAM_RECURRENT_CUDA_COMMON_CUH
#define LOAM_RECURRENT_CUDA_COMMON_CUH

#include "src/gpu/launch.cuh"
#include "src/gpu/number.cuh"
#include "src/recurrent/recurrent.h"

enum { CHANNELS = 16 };

/* Width of rows in the workspace and in shared memory: the channels of LANES lanes; zeros beyond dim_qk. */
template <int LANES> constexpr int width_of = LANES *CHANNELS;

static inline int recurrent_cuda_width(const loam_problem *p)
{
    return p->dim_qk <= 64 ? 64 : p->dim_qk <= 128 ? 128 : p->dim_qk <= 256 ? 256 : 512;
}

/* ------------------------------------------------------------------ numbers */

/* A product that the compiler cannot contract to a fused multiply-add: instances of one kernel must
 * agree to the bit. */
static __device__ __forceinline__ float mul_unfused(float x, float y) { return __fmul_rn(x, y); }
static __device__ __forceinline__ double mul_unfused(double x, double y) { return __dmul_rn(x, y); }

template <class REAL> struct __align__(16) quad { REAL x[4]; };

/* ------------------------------------------------------------------ lanes and rows */

/* The first channel of quad n of this lane. */
template <int LANES> static __device__ __forceinline__ int quad_channel(int n)
{
    return (n * LANES + (int)threadIdx.x % LANES) * 4;
}

/* The sum of x over the lanes of a row, returned to all of them. */
template <int LANES, class REAL> static __device__ __forceinline__ REAL row_sum(REAL x)
{
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2)
        x += __shfl_xor_sync(~0u, x, step);
    return x;
}

/* Loads this lane's channels of a row of width_of<LANES>. */
template <int LANES, class REAL>
static __device__ __forceinline__ void load_row(REAL (&x)[CHANNELS], const REAL *row)
{
#pragma unroll
    for (int n = 0; n < CHANNELS / 4; n++) {
        const quad<REAL> q = *(const quad<REAL> *)(row + quad_channel<LANES>(n));
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[4 * n + i] = q.x[i];
    }
}

template <int LANES, class REAL>
static __device__ __forceinline__ void store_row(REAL *row, const REAL (&x)[CHANNELS])
{
#pragma unroll
    for (int n = 0; n < CHANNELS / 4; n++) {
        *(quad<REAL> *)(row + quad_channel<LANES>(n)) = { x[4 * n], x[4 * n + 1], x[4 * n + 2],
                                                          x[4 * n + 3] };
    }
}

template <int LANES, class REAL>
static __device__ __forceinline__ REAL row_dot(const REAL (&x)[CHANNELS], const REAL (&y)[CHANNELS])
{
    REAL sum = 0;
#pragma unroll
    for (int i = 0; i < CHANNELS; i++)
        sum = fma(x[i], y[i], sum);
    return row_sum<LANES>(sum);
}

/* ------------------------------------------------------------------ states of the caller */

/* Whether rows of dim_qk elements can be accessed four elements at a time. */
static inline bool rows_in_quads(const loam_problem *p, const void *data, size_t bytes, int64_t batch,
                                 int64_t head, int64_t token)
{
    return p->dim_qk % 4 == 0 && (uintptr_t)data % (4 * bytes) == 0 && batch % 4 == 0 && head % 4 == 0 &&
           token % 4 == 0;
}
template <class VIEW> static inline bool state_in_quads(const loam_problem *p, const VIEW &view)
{
    return rows_in_quads(p, view.data, sizeof(float), view.batch, view.head, view.token);
}

/* Each element of a state is read once and written once, so accesses use the streaming cache policy. */
template <int LANES, class REAL>
static __device__ __forceinline__ void load_state_row(REAL (&x)[CHANNELS], const float *row, int64_t d,
                                                      bool quads)
{
#pragma unroll
    for (int n = 0; n < CHANNELS / 4; n++) {
        const int c = quad_channel<LANES>(n);
        float4 f = { 0, 0, 0, 0 };
        if (quads) {
            if (c < d) f = __ldcs((const float4 *)(row + c));
        } else {
            f.x = c < d ? row[c] : 0, f.y = c + 1 < d ? row[c + 1] : 0;
            f.z = c + 2 < d ? row[c + 2] : 0, f.w = c + 3 < d ? row[c + 3] : 0;
        }
        x[4 * n] = f.x, x[4 * n + 1] = f.y, x[4 * n + 2] = f.z, x[4 * n + 3] = f.w;
    }
}

template <int LANES, class REAL>
static __device__ __forceinline__ void store_state_row(float *row, const REAL (&x)[CHANNELS], int64_t d,
                                                       bool quads)
{
#pragma unroll
    for (int n = 0; n < CHANNELS / 4; n++) {
        const int c = quad_channel<LANES>(n);
        const float f[4] = { (float)x[4 * n], (float)x[4 * n + 1], (float)x[4 * n + 2], (float)x[4 * n + 3] };
        if (quads) {
            if (c < d) __stcs((float4 *)(row + c), make_float4(f[0], f[1], f[2], f[3]));
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (c + i < d) row[c + i] = f[i];
        }
    }
}

/* ------------------------------------------------------------------ rows of the workspace */

/* Tokens of a head over the whole batch, and the index of token t of head h (the work row) in
 * arrays over them. */
LOAM_INLINE int64_t recurrent_tokens(const loam_problem *p)
{
    return sequence_packed(p) ? p->total_q : p->batch * p->len_q;
}
LOAM_INLINE int64_t recurrent_work_row(const loam_problem *p, const recurrent_seq *s, int64_t h, int64_t t)
{
    return sequence_packed(p) ? h * p->total_q + s->first + t : (s->b * p->heads_v + h) * p->len_q + t;
}

/* States of some rows before tokens 0, every, 2 every, ... of each sequence and head: [slot][rows][width].
 * Slots of sequences never overlap, whatever their lengths; some slots of packed sequences are unused. */
template <class REAL> struct kept_states {
    REAL *data;
    int64_t every, per_sequence, per_head, rows, width;
};

template <class REAL>
static kept_states<REAL> kept_carve(const loam_problem *p, int64_t every, int64_t rows, arena *pool)
{
    kept_states<REAL> k = { NULL, every, (p->len_q + every - 1) / every, 0, rows, recurrent_cuda_width(p) };
    k.per_head = sequence_packed(p) ? p->total_q / every + p->batch
                                    : (int64_t)size_mul((size_t)p->batch, (size_t)k.per_sequence);
    const size_t slots = size_mul((size_t)k.per_head, (size_t)p->heads_v);
    k.data = (REAL *)arena_take(pool, size_mul(slots, (size_t)(k.rows * k.width)), sizeof(REAL));
    return k;
}

/* The slot of the state before token n * every, and row r of that state. */
template <class REAL>
static __device__ __forceinline__ int64_t kept_slot(const kept_states<REAL> &k, const loam_problem &p,
                                                    const recurrent_seq &s, int64_t h, int64_t n)
{
    return h * k.per_head + (sequence_packed(&p) ? s.first / k.every + s.index : s.index * k.per_sequence) +
           n;
}
template <class REAL>
static __device__ __forceinline__ REAL *kept_row(const kept_states<REAL> &k, const loam_problem &p,
                                                 const recurrent_seq &s, int64_t h, int64_t n, int64_t r)
{
    return k.data + (kept_slot(k, p, s, h, n) * k.rows + r) * k.width;
}

/* ------------------------------------------------------------------ staging of a token, by one warp */

/* to[width] <- factor times the features of the row of q or k at element `at`; zeros beyond dim_qk. */
template <int LANES, class REAL>
static __device__ __forceinline__ void stage_features(REAL *to, const loam_problem &p, const void *data,
                                                      int64_t at, REAL factor)
{
    constexpr int each = width_of<LANES> / 32;
    const int lane = threadIdx.x % 32;
    REAL x[each];
#pragma unroll
    for (int i = 0; i < each; i++) {
        const int c = lane + 32 * i;
        x[i] = c < p.dim_qk ? load_real<REAL>(data, p.dtype, at + c) : 0;
    }
    if (p.feature_map == LOAM_FEATURES_UNIT) {
        double norm2 = 0; /* float overflows or underflows on some squares */
#pragma unroll
        for (int i = 0; i < each; i++)
            norm2 = fma((double)x[i], (double)x[i], norm2);
        norm2 = row_sum<32>(norm2);
        factor = norm2 > 0 ? (REAL)((double)factor / sqrt(norm2)) : 0;
    }
#pragma unroll
    for (int i = 0; i < each; i++) {
        const int c = lane + 32 * i;
        const REAL phi = p.feature_map == LOAM_FEATURES_ELU ? (x[i] > 0 ? x[i] + 1 : exp(x[i])) : x[i];
        to[c] = c < p.dim_qk ? mul_unfused(phi, factor) : 0;
    }
}

/* How e^g changes a number: e^g - 1 (<= 0) where e^g is near 1, else e^g (> 0), or -1 where e^g is 0,
 * for which 0 would mean no change. The rounding of an e^g near 1, the same at every token, would accumulate:
 * to 1e-4 over the tokens that a decay of 1 - 2^-12 lasts. */
template <class REAL> static __device__ __forceinline__ REAL decay_change(REAL g)
{
    const REAL e = exp(g);
    return g > (REAL)-0.5 ? expm1(g) : e > 0 ? e : (REAL)-1;
}
template <class REAL> static __device__ __forceinline__ REAL decayed(REAL x, REAL change)
{
    return fma(x, change, change > 0 ? (REAL)0 : x);
}

/* to[width] <- the decay_change of token t for each channel. */
template <int LANES, class REAL>
static __device__ __forceinline__ void stage_decay(REAL *to, const loam_problem &p,
                                                   const recurrent_form &form, const loam_const_view &view,
                                                   const recurrent_seq &s, int64_t h, int64_t t)
{
    const float *g = (const float *)view.data;
    const int64_t at = form.gate == GATE_HEAD ? h * view.head : RECURRENT_AT(view, s.b, h, s.first + t);
    const REAL all = form.gate == GATE_HEAD || form.gate == GATE_TOKEN ? decay_change((REAL)g[at]) : (REAL)0;
#pragma unroll
    for (int i = 0; i < width_of<LANES> / 32; i++) {
        const int c = threadIdx.x % 32 + 32 * i;
        to[c] = form.gate == GATE_CHANNEL && c < p.dim_qk ? decay_change((REAL)g[at + c]) : all;
    }
}

template <class REAL>
static __device__ __forceinline__ REAL beta_of(const recurrent_form &form, const loam_args &a,
                                               const recurrent_seq &s, int64_t h, int64_t t)
{
    return form.beta ? (REAL)((const float *)a.beta.data)[RECURRENT_AT(a.beta, s.b, h, s.first + t)]
                     : (REAL)1;
}

#endif
