/* SPDX-License-Identifier: MIT
 *
 * One token of decode, bound by memory bandwidth. A warp has some rows of a state and never waits for another
 * warp. It issues all its loads at once, those of the state first; the state stays in registers from the read
 * S k to the update. It needs rows of q, k, log decays by channel and states that can be accessed four
 * elements at a time; sweep_kernel handles all others.
 */
#include "src/recurrent/cuda/decode.h"

#include "src/recurrent/cuda/common.cuh"

enum { STEP_THREADS = 128, STEP_BLOCKS = 4, STEP_GROUPS = 4 }; /* on a multiprocessor; rows of a lane */

struct step {
    loam_problem p;
    loam_args a;
    recurrent_form form;
    unsigned tiles;           /* warps of a head */
    unsigned share;           /* value heads of a head of q and k */
    const float *denominator; /* [work row]: s . x of normalised reads */
};

/* Four elements of q or k, as stored in memory. */
template <class TYPE> struct packed_quad {
    uint2 bits;
    static __device__ __forceinline__ packed_quad zero() { return { make_uint2(0, 0) }; }
};
template <> struct packed_quad<float> {
    uint4 bits;
    static __device__ __forceinline__ packed_quad zero() { return { make_uint4(0, 0, 0, 0) }; }
};

static __device__ __forceinline__ float4 unpack(const packed_quad<float> &x)
{
    return make_float4(__uint_as_float(x.bits.x), __uint_as_float(x.bits.y), __uint_as_float(x.bits.z),
                       __uint_as_float(x.bits.w));
}
static __device__ __forceinline__ float4 unpack(const packed_quad<__nv_bfloat16> &x)
{
    return make_float4(__uint_as_float(x.bits.x << 16), __uint_as_float(x.bits.x & 0xffff0000u),
                       __uint_as_float(x.bits.y << 16), __uint_as_float(x.bits.y & 0xffff0000u));
}
static __device__ __forceinline__ float4 unpack(const packed_quad<__half> &x)
{
    __half2 pair[2];
    memcpy(pair, &x.bits, sizeof pair);
    const float2 lo = __half22float2(pair[0]), hi = __half22float2(pair[1]);
    return make_float4(lo.x, lo.y, hi.x, hi.y);
}

static __device__ __forceinline__ float to_float(float x) { return x; }
static __device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
static __device__ __forceinline__ float to_float(__half x) { return __half2float(x); }
static __device__ __forceinline__ void from_float(float *to, float x) { *to = x; }
static __device__ __forceinline__ void from_float(__nv_bfloat16 *to, float x)
{
    *to = __float2bfloat16_rn(x);
}
static __device__ __forceinline__ void from_float(__half *to, float x) { *to = __float2half_rn(x); }

template <int LANES, class TYPE>
static __device__ __forceinline__ void load_packed(packed_quad<TYPE> (&x)[CHANNELS / 4], const TYPE *row,
                                                   int d)
{
#pragma unroll
    for (int n = 0; n < CHANNELS / 4; n++) {
        const int c = quad_channel<LANES>(n);
        x[n] = c < d ? *(const packed_quad<TYPE> *)(row + c) : packed_quad<TYPE>::zero();
    }
}

/* factor / |x|, 0 for x = 0. x is divided by its largest entry first, since squares may overflow
 * or underflow. */
template <int LANES>
static __device__ __forceinline__ float over_norm(const float (&x)[CHANNELS], float factor)
{
    float most = 0, sum = 0;
#pragma unroll
    for (int i = 0; i < CHANNELS; i++)
        most = fmaxf(most, fabsf(x[i]));
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2)
        most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
    const float unit = 1 / most;
#pragma unroll
    for (int i = 0; i < CHANNELS; i++)
        sum = fma(x[i] * unit, x[i] * unit, sum);
    return most > 0 ? factor / sqrtf(row_sum<LANES>(sum)) * unit : 0;
}

/* to <- factor times the features; zeros beyond dim_qk. */
template <int LANES, class TYPE>
static __device__ __forceinline__ void unpack_features(float (&to)[CHANNELS],
                                                       const packed_quad<TYPE> (&x)[CHANNELS / 4],
                                                       loam_feature_map map, int d, float factor)
{
#pragma unroll
    for (int n = 0; n < CHANNELS / 4; n++) {
        const float4 f = unpack(x[n]);
        to[4 * n] = f.x, to[4 * n + 1] = f.y, to[4 * n + 2] = f.z, to[4 * n + 3] = f.w;
    }
    if (map == LOAM_FEATURES_UNIT) factor = over_norm<LANES>(to, factor);
#pragma unroll
    for (int i = 0; i < CHANNELS; i++) {
        if (map == LOAM_FEATURES_ELU)
            to[i] = quad_channel<LANES>(i / 4) >= d ? 0 : to[i] > 0 ? to[i] + 1 : expf(to[i]);
        to[i] *= factor;
    }
}

/* Each row of the state is read once and written once, so accesses use the streaming cache policy. */
template <int LANES>
static __device__ __forceinline__ void load_streamed(float (&x)[CHANNELS], const float *row, int d)
{
#pragma unroll
    for (int n = 0; n < CHANNELS / 4; n++) {
        const int c = quad_channel<LANES>(n);
        const float4 f = c < d ? __ldcs((const float4 *)(row + c)) : make_float4(0, 0, 0, 0);
        x[4 * n] = f.x, x[4 * n + 1] = f.y, x[4 * n + 2] = f.z, x[4 * n + 3] = f.w;
    }
}

template <int LANES>
static __device__ __forceinline__ void store_streamed(float *row, const float (&x)[CHANNELS], int d)
{
#pragma unroll
    for (int n = 0; n < CHANNELS / 4; n++) {
        const int c = quad_channel<LANES>(n);
        if (c < d)
            __stcs((float4 *)(row + c), make_float4(x[4 * n], x[4 * n + 1], x[4 * n + 2], x[4 * n + 3]));
    }
}

/* The inputs of one token, as loaded: all loads are issued before any of them is used. */
template <class TYPE> struct step_inputs {
    packed_quad<TYPE> k[CHANNELS / 4], q[CHANNELS / 4];
    packed_quad<float> gates[CHANNELS / 4]; /* log decays by channel */
    TYPE v[STEP_GROUPS];
    float gate, beta, denominator;
};

/* The rows of this lane: row0, row0 + 32 / LANES, ... of the state of head h; d: dim_qk, rows: dim_v. */
struct step_place {
    recurrent_seq seq;
    unsigned h;
    int row0, d, rows;
};

template <class TYPE, int LANES, bool BY_CHANNEL>
static __device__ __forceinline__ void step_load(step_inputs<TYPE> &x, const step &s, const step_place &at)
{
    constexpr int apart = 32 / LANES;
    const loam_problem &p = s.p;
    const loam_args &a = s.a;
    const recurrent_seq &seq = at.seq;
    const int64_t h = at.h, key_head = at.h / s.share, token = seq.first;
    load_packed<LANES>(x.k, (const TYPE *)a.k.data + RECURRENT_AT(a.k, seq.b, key_head, token), at.d);
    load_packed<LANES>(x.q, (const TYPE *)a.q.data + RECURRENT_AT(a.q, seq.b, key_head, token), at.d);
    const float *log_decay = (const float *)a.log_decay.data + RECURRENT_AT(a.log_decay, seq.b, h, token);
    x.gate = 0;
    if (BY_CHANNEL) {
        load_packed<LANES>(x.gates, log_decay, at.d);
    } else if (s.form.gate != GATE_NONE) {
        x.gate = s.form.gate == GATE_HEAD ? ((const float *)a.log_decay.data)[h * a.log_decay.head]
                                          : *log_decay;
    }
    x.beta = beta_of<float>(s.form, a, seq, h, 0);
    x.denominator = p.normalise ? s.denominator[recurrent_work_row(&p, &seq, h, 0)] : 1;
    const TYPE *values = (const TYPE *)a.v.data + RECURRENT_AT(a.v, seq.b, h, token);
#pragma unroll
    for (int g = 0; g < STEP_GROUPS; g++)
        x.v[g] = at.row0 + g * apart < at.rows ? values[at.row0 + g * apart] : TYPE(0.0f);
}

/* m <- M Diag(e^g) + u k^T for the rows of this lane. */
template <class TYPE, int LANES, bool BY_CHANNEL>
static __device__ __forceinline__ void step_write(float (&m)[STEP_GROUPS][CHANNELS], const step &s,
                                                  const step_inputs<TYPE> &x, int d)
{
    float k[CHANNELS];
    unpack_features<LANES>(k, x.k, s.p.feature_map, d, 1);
    const float all = decay_change(x.gate);
#pragma unroll
    for (int i = 0; i < CHANNELS; i += 4) {
        const float4 by = BY_CHANNEL ? unpack(x.gates[i / 4]) : make_float4(0, 0, 0, 0);
        const float decay[4] = { BY_CHANNEL ? decay_change(by.x) : all, BY_CHANNEL ? decay_change(by.y) : all,
                                 BY_CHANNEL ? decay_change(by.z) : all,
                                 BY_CHANNEL ? decay_change(by.w) : all };
#pragma unroll
        for (int e = 0; e < 4 * STEP_GROUPS; e++)
            m[e / 4][i + e % 4] = decayed(m[e / 4][i + e % 4], decay[e % 4]);
    }
#pragma unroll
    for (int g = 0; g < STEP_GROUPS; g++) {
        const float w = to_float(x.v[g]);
        const float u = x.beta * (s.form.delta ? w - row_dot<LANES>(m[g], k) : w);
#pragma unroll
        for (int i = 0; i < CHANNELS; i++)
            m[g][i] = fma(u, k[i], m[g][i]);
    }
}

/* o <- M q, or that over the denominator, for the rows of this lane; the first row of a head writes info. */
template <class TYPE, int LANES>
static __device__ __forceinline__ void step_read(const float (&m)[STEP_GROUPS][CHANNELS], const step &s,
                                                 const step_inputs<TYPE> &x, const step_place &at)
{
    constexpr int apart = 32 / LANES;
    const loam_problem &p = s.p;
    const loam_args &a = s.a;
    const int lane = (int)threadIdx.x % LANES;
    float q[CHANNELS], y[STEP_GROUPS];
    unpack_features<LANES>(q, x.q, p.feature_map, at.d, (float)p.scale);
#pragma unroll
    for (int g = 0; g < STEP_GROUPS; g++)
        y[g] = row_dot<LANES>(m[g], q);
    TYPE *o = (TYPE *)a.o.data + RECURRENT_AT(a.o, at.seq.b, at.h, at.seq.first);
#pragma unroll
    for (int g = 0; g < STEP_GROUPS; g++) {
        const int row = at.row0 + g * apart;
        if (lane == g && row < at.rows)
            from_float(o + row, x.denominator == 0 ? 0 : p.normalise ? y[g] / x.denominator : y[g]);
    }
    if (a.info.data && at.row0 == 0 && lane == 0) {
        const loam_row_info info = { x.denominator == 0 ? LOAM_ROW_SINGULAR : LOAM_ROW_SOLVED,
                                     LOAM_SOLVER_NONE, 0, 0 };
        ((loam_row_info *)a.info.data)[RECURRENT_AT(a.info, at.seq.b, at.h, at.seq.first)] = info;
    }
}

/* blockIdx.y: head h. The warps of the grid's x axis take the tiles of rows of the first sequence, then
 * those of the next. */
template <class TYPE, int LANES, bool BY_CHANNEL>
__global__ void __launch_bounds__(STEP_THREADS, STEP_BLOCKS - BY_CHANNEL)
    step_kernel(const __grid_constant__ step s)
{
    constexpr int apart = 32 / LANES;
    const loam_args &a = s.a;
    const unsigned n = blockIdx.x * (STEP_THREADS / 32) + threadIdx.x / 32, h = blockIdx.y, b = n / s.tiles;
    const int d = (int)s.p.dim_qk, rows = (int)s.p.dim_v;
    const int row0 = (int)(n % s.tiles) * (STEP_GROUPS * apart) + (int)threadIdx.x % 32 / LANES;
    if (b >= s.p.batch) return;
    float m[STEP_GROUPS][CHANNELS] = {};
    if (a.state_in.data) {
        const float *from = (const float *)a.state_in.data + RECURRENT_AT(a.state_in, b, h, row0);
#pragma unroll
        for (int g = 0; g < STEP_GROUPS; g++)
            if (row0 + g * apart < rows) load_streamed<LANES>(m[g], from + g * apart * a.state_in.token, d);
    }
    const recurrent_seq seq = recurrent_seq_at(&s.p, &a, b);
    if (seq.len > 0) {
        step_inputs<TYPE> x;
        const step_place at = { seq, h, row0, d, rows };
        step_load<TYPE, LANES, BY_CHANNEL>(x, s, at);
        step_write<TYPE, LANES, BY_CHANNEL>(m, s, x, d);
        step_read<TYPE, LANES>(m, s, x, at);
    }
    float *to = (float *)a.state_out.data + RECURRENT_AT(a.state_out, b, h, row0);
#pragma unroll
    for (int g = 0; g < STEP_GROUPS; g++)
        if (row0 + g * apart < rows) store_streamed<LANES>(to + g * apart * a.state_out.token, m[g], d);
}

/* ------------------------------------------------------------------ launches */

template <class TYPE, int LANES> static loam_status step_launch(step *s, loam_error *error)
{
    constexpr int rows = 32 / LANES * STEP_GROUPS, warps = STEP_THREADS / 32;
    s->tiles = (unsigned)((s->p.dim_v + rows - 1) / rows);
    const dim3 grid((unsigned)((s->p.batch * s->tiles + warps - 1) / warps), (unsigned)s->p.heads_v);
    if (s->form.gate == GATE_CHANNEL)
        step_kernel<TYPE, LANES, true><<<grid, STEP_THREADS, 0, (cudaStream_t)s->a.stream>>>(*s);
    else
        step_kernel<TYPE, LANES, false><<<grid, STEP_THREADS, 0, (cudaStream_t)s->a.stream>>>(*s);
    return cuda_launched("step_kernel", error);
}

template <class TYPE> static loam_status step_run(step *s, loam_error *error)
{
    switch (recurrent_cuda_width(&s->p)) {
    case 64: return step_launch<TYPE, 4>(s, error);
    case 128: return step_launch<TYPE, 8>(s, error);
    case 256: return step_launch<TYPE, 16>(s, error);
    default: return step_launch<TYPE, 32>(s, error);
    }
}

bool recurrent_step_reads(const loam_problem *p, const loam_args *a)
{
    const auto quads = [&](const auto &view, loam_dtype dtype) {
        return rows_in_quads(p, view.data, dtype_bytes(dtype), view.batch, view.head, view.token);
    };
    return p->len_q == 1 && p->heads_v < 65536 && quads(a->q, p->dtype) && quads(a->k, p->dtype) &&
           quads(a->state_in, LOAM_F32) && quads(a->state_out, LOAM_F32) &&
           (recurrent_form_of(p->mechanism)->gate != GATE_CHANNEL || quads(a->log_decay, LOAM_F32));
}

loam_status recurrent_step_cuda(const loam_problem *p, const loam_args *a, const float *denominator,
                                loam_error *error)
{
    step s = {};
    s.p = *p, s.a = *a, s.form = *recurrent_form_of(p->mechanism), s.denominator = denominator;
    s.share = (unsigned)(p->heads_v / p->heads_q);
    switch (p->dtype) {
    case LOAM_BF16: return step_run<__nv_bfloat16>(&s, error);
    case LOAM_F16: return step_run<__half>(&s, error);
    default: return step_run<float>(&s, error);
    }
}
