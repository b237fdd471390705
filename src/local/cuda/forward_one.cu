/* SPDX-License-Identifier: MIT
 *
 * Softmax of one query of each sequence on GPUs, where a tile of 64 rows would have 63 empty ones. A group of
 * lanes has 8 channels each of the query, of a key and of its value, and an online softmax of its own over
 * every GROUPS-th key; these are merged in their order:
 *     o = sum_g e^(m_g - m) A_g / omega,   omega = sum_g e^(m_g - m) omega_g,   A_g = sum w v of group g
 * All sums are float32. Keys are relative to the first key where tiles of local/cuda/given.cuh would be
 * wide, so that saved.lse means the same.
 */
#include "src/local/cuda/forward.h"
#include "src/local/cuda/given.cuh"
#include "src/local/cuda/launch.cuh"

enum { ONE_THREADS = 256, CHANNELS = 8 };

template <int DIM> struct one_shared {
    static constexpr int lanes = DIM / CHANNELS, groups = ONE_THREADS / lanes;
    float m[groups], omega[groups], a[groups][DIM];
};

/* 8 channels of a row. */
typedef float channels[CHANNELS];

/* Rows of an array, of which a lane reads channels `first` ..; packed: 16 bytes at a time. */
template <class T> struct lane_rows {
    const T *data;
    int64_t token;
    int count;
    bool packed;

    __device__ __forceinline__ void load(channels &x, int64_t j) const
    {
        const T *const row = data + j * token;
        constexpr int each = 16 / sizeof(T);
        if (packed) {
#pragma unroll
            for (int c = 0; c < CHANNELS; c += each) {
                alignas(16) T some[each];
                *(uint4 *)some = count > 0 ? *(const uint4 *)(row + c) : uint4{};
#pragma unroll
                for (int e = 0; e < each; e++)
                    x[c + e] = (float)some[e];
            }
        } else {
#pragma unroll
            for (int c = 0; c < CHANNELS; c++)
                x[c] = c < count ? (float)row[c] : 0;
        }
    }
};

template <class T>
static __device__ __forceinline__ lane_rows<T> lane_rows_of(const loam_const_view &v, int64_t b, int64_t h,
                                                            int64_t token, int first, int64_t dim,
                                                            bool packed)
{
    return { (const T *)v.data + LOCAL_AT(v, b, h, token) + first, v.token, (int)dim - first, packed };
}

/* What a lane knows of the query: x of a key is product + constant. */
struct one_query {
    channels q, origin;
    float constant, position;
    int lo, hi;
};

template <int DIM> static __device__ __forceinline__ float sum_of_group(float x)
{
#pragma unroll
    for (int step = DIM / CHANNELS / 2; step > 0; step /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

template <class T, int DIM>
static __device__ __forceinline__ one_query query_of(const loam_problem &p, const loam_args &a,
                                                     const row_block &x, const score_constants &sc,
                                                     const lane_rows<T> &keys, int first)
{
    one_query r;
    int64_t lo, hi;
    float sum = 0;
    local_visible(&p, &x.s, 0, &lo, &hi);
    r.lo = (int)lo, r.hi = (int)hi;
    r.position = (float)(x.s.nk - x.s.nq);
    lane_rows_of<T>(a.q, x.s.b, x.h, x.s.q0, first, p.dim_qk, false).load(r.q, 0);
    const bool wide = local_wide(&p) && x.s.nk > 0;
#pragma unroll
    for (int c = 0; c < CHANNELS; c++)
        r.origin[c] = 0;
    if (wide) keys.load(r.origin, 0);
#pragma unroll
    for (int c = 0; c < CHANNELS; c++) {
        if (sc.rbf) r.q[c] -= r.origin[c];
        sum += sc.rbf ? -0.5f * r.q[c] * r.q[c] : r.q[c] * r.origin[c];
    }
    r.constant = wide ? sum_of_group<DIM>(sum) : 0;
    return r;
}

/* The score of key j, whose channels k are; -inf where the query does not see it. */
template <int DIM>
static __device__ __forceinline__ float one_score(const one_query &r, const score_constants &sc,
                                                  const loam_args &a, const row_block &x, const channels &k,
                                                  int j)
{
    float product = 0, norm = 0, bias = 0, factor;
#pragma unroll
    for (int c = 0; c < CHANNELS; c++) {
        const float kappa = k[c] - r.origin[c];
        product = fmaf(r.q[c], kappa, product);
        norm = fmaf(kappa, kappa, norm);
    }
    product = sum_of_group<DIM>(product);
    if (sc.rbf) norm = sum_of_group<DIM>(norm);
    if (j >= r.hi) return -INFINITY;
    if (sc.biased) bias = ((const float *)a.key_bias.data)[LOCAL_AT(a.key_bias, x.s.b, x.h, x.s.k0 + j)];
    const key_terms terms = { &norm, &bias };
    return score_of(sc, terms, product, sc.mapped ? r.constant : 0, r.position, r.hi, j, 0, &factor);
}

/* The sums of a lane's group over its keys, and of the lane's channels. */
struct one_sums {
    float m, omega;
    channels a;
};

static __device__ __forceinline__ void add_value(one_sums &g, float s, const channels &v)
{
    const float top = fmaxf(g.m, s), m = finite_or_zero(top);
    const float keep = exp_fast(g.m - m), w = exp_fast(s - m);
    g.m = top, g.omega = g.omega * keep + w;
#pragma unroll
    for (int c = 0; c < CHANNELS; c++)
        g.a[c] = fmaf(w, v[c], g.a[c] * keep);
}

/* The next key and value are on their way while one is added. All lanes of a warp take as many turns. */
template <class T, int DIM>
static __device__ __forceinline__ void sum_keys(one_sums &g, const one_query &r, const score_constants &sc,
                                                const loam_args &a, const row_block &x,
                                                const lane_rows<T> &keys, const lane_rows<T> &values,
                                                int group)
{
    constexpr int groups = one_shared<DIM>::groups;
    channels k, v;
    const int last = r.hi - 1;
    g.m = -INFINITY, g.omega = 0;
#pragma unroll
    for (int c = 0; c < CHANNELS; c++)
        g.a[c] = 0;
    if (r.lo >= r.hi) return;
    keys.load(k, min(r.lo + group, last));
    values.load(v, min(r.lo + group, last));
    for (int base = r.lo; base < r.hi; base += groups) {
        channels next_k, next_v;
        const int j = base + group, next = min(j + groups, last);
        keys.load(next_k, next);
        values.load(next_v, next);
        add_value(g, one_score<DIM>(r, sc, a, x, k, j), v);
#pragma unroll
        for (int c = 0; c < CHANNELS; c++)
            k[c] = next_k[c], v[c] = next_v[c];
    }
}

/* The sums of all groups: m and omega, and A of channel threadIdx.x. */
template <int DIM>
static __device__ __forceinline__ float merge_groups(one_shared<DIM> &sm, const one_sums &g, int group,
                                                     int first, float &m, float &omega)
{
    constexpr int groups = one_shared<DIM>::groups;
    sm.m[group] = g.m, sm.omega[group] = g.omega;
#pragma unroll
    for (int c = 0; c < CHANNELS; c++)
        sm.a[group][first + c] = g.a[c];
    __syncthreads();
    float sum = 0;
    m = -INFINITY, omega = 0;
    for (int n = 0; n < groups; n++)
        m = fmaxf(m, sm.m[n]);
    for (int n = 0; n < groups; n++) {
        const float keep = exp_fast(sm.m[n] - finite_or_zero(m));
        omega += keep * sm.omega[n];
        sum += keep * sm.a[n][threadIdx.x % DIM];
    }
    return sum;
}

/* Effective weights, in a sweep of their own: they are meant for small inputs only. */
template <class T, int DIM>
static __device__ void put_one_weights(const loam_problem &p, const loam_args &a, const row_block &x,
                                       const one_query &r, const score_constants &sc,
                                       const lane_rows<T> &keys, int group, bool leads, float lse)
{
    float *const row = (float *)a.weights.data + LOCAL_AT(a.weights, x.s.b, x.h, x.s.q0);
    for (int64_t j = threadIdx.x; j < p.len_kv; j += ONE_THREADS)
        row[j] = 0;
    __syncthreads();
    for (int base = r.lo; base < r.hi; base += one_shared<DIM>::groups) {
        channels k;
        keys.load(k, min(base + group, r.hi - 1));
        const float s = one_score<DIM>(r, sc, a, x, k, base + group);
        if (leads && base + group < r.hi) row[base + group] = weight_of(s, finite_or_zero(lse));
    }
}

template <class T, int DIM>
__global__ void __launch_bounds__(ONE_THREADS)
    given_one_kernel(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                     const local_saved saved, const bool packed)
{
    __shared__ one_shared<DIM> sm;
    constexpr int lanes = one_shared<DIM>::lanes;
    const int group = (int)threadIdx.x / lanes, first = (int)threadIdx.x % lanes * CHANNELS;
    const row_block x = row_block_at(p, a, blockIdx.x);
    if (x.rows <= 0) return;
    const score_constants sc = score_constants_of(p, a, x.s, x.h);
    const lane_rows<T> keys = lane_rows_of<T>(a.k, x.s.b, x.h_kv, x.s.k0, first, p.dim_qk, packed),
                       values = lane_rows_of<T>(a.v, x.s.b, x.h_kv, x.s.k0, first, p.dim_v, packed);
    const one_query r = query_of<T, DIM>(p, a, x, sc, keys, first);
    one_sums sums;
    sum_keys<T, DIM>(sums, r, sc, a, x, keys, values, group);
    float m, omega;
    const float sum = merge_groups(sm, sums, group, first, m, omega);
    const given_row g = given_end(m, omega, 0, sc.mapped ? 0 : sc.scale * r.constant, p, a, x.h);

    const int64_t at = local_row(&p, &x.s, x.h, 0), token = x.s.q0;
    const int c = (int)threadIdx.x;
    if (c < p.dim_v) {
        store_real(a.o.data, p.dtype, LOCAL_AT(a.o, x.s.b, x.h, token) + c, sum * g.inverse);
        if (a.saved) ((float *)saved.vbar)[at * p.dim_v + c] = sum * g.inverse;
    }
    if (a.rho.data && c < p.dim_qk) ((float *)a.rho.data)[LOCAL_AT(a.rho, x.s.b, x.h, token) + c] = 0;
    if (c == 0) {
        put_info(a, x, 0, { r.lo < r.hi ? LOAM_ROW_SOLVED : LOAM_ROW_EMPTY, LOAM_SOLVER_NONE, 0, 0 });
        if (a.lse.data) ((float *)a.lse.data)[LOCAL_AT(a.lse, x.s.b, x.h, token)] = g.full_lse;
        if (a.saved) ((float *)saved.lse)[at] = saved_lse(p, g);
    }
    if (a.weights.data) put_one_weights<T, DIM>(p, a, x, r, sc, keys, group, first == 0, g.lse);
}

/* Can every lane read its 8 channels of each row by 16 bytes, or has it none? */
static bool in_packs(const loam_const_view &v, int64_t dim, size_t bytes)
{
    const int64_t each = (int64_t)(16 / bytes);
    return dim % CHANNELS == 0 && (uintptr_t)v.data % 16 == 0 && v.batch % each == 0 && v.head % each == 0 &&
           v.token % each == 0;
}

template <class T, int DIM>
static loam_status launch_one(const loam_problem *p, const loam_args *a, loam_error *error)
{
    const local_saved saved = local_saved_carve(p, a->saved, NULL);
    const bool packed = in_packs(a->k, p->dim_qk, sizeof(T)) && in_packs(a->v, p->dim_v, sizeof(T));
    given_one_kernel<T, DIM><<<(unsigned)(p->batch * p->heads_q), ONE_THREADS, 0, (cudaStream_t)a->stream>>>(
        *p, *a, saved, packed);
    return cuda_launched("given_one_kernel", error);
}

loam_status local_given_one_cuda(const loam_problem *p, const loam_args *a, loam_error *error)
{
    return by_dim(
        p,
        [&](auto dim) {
            constexpr int dimension = decltype(dim)::value;
            return p->dtype == LOAM_BF16  ? launch_one<__nv_bfloat16, dimension>(p, a, error)
                   : p->dtype == LOAM_F16 ? launch_one<__half, dimension>(p, a, error)
                                          : launch_one<float, dimension>(p, a, error);
        });
}
