/* SPDX-License-Identifier: MIT
 *
 * Backward on GPUs, last kernel of the pass over rows: dq, the gradient of the ridge, the row's parts of the
 * gradients that are sums over rows, and the row_scalars for the pass over keys.
 */
#ifndef LOAM_LOCAL_CUDA_BACKWARD_QUERY_CUH
#define LOAM_LOCAL_CUDA_BACKWARD_QUERY_CUH

#include "src/local/cuda/backward.cuh"

template <bool WIDE, int DIM, int DIRECTIONS> struct query_shared {
    typedef backward_shape<WIDE, DIM, DIRECTIONS> S;
    alignas(16) typename S::type query[S::rows * S::pitch];
    alignas(16) typename S::type grad_o[S::rows * S::pitch];
    alignas(16) typename S::type direction[S::directions * S::rows * S::pitch];
    pair_ring<S> ring;
};

/* e = -y . Lambda rho, and the gradient of the ridge, -unit y rho. The four lanes of the row call it. */
static __device__ __forceinline__ void ridge_gradient(row_scalars &rec, bool real, const loam_problem &p,
                                                      const loam_args &a, const row_block &x, int64_t i,
                                                      const float *rho, const float *y, double *sums)
{
    const int64_t out = LOCAL_AT(a.grad_ridge, x.s.b, x.h, x.s.q0 + i);
    double e = 0, sum = 0;
    for (int c = threadIdx.x % 4; real && c < p.dim_qk; c += 4) {
        const double part = -(double)y[c] * (double)rho[c] * (double)rec.unit;
        e += part * local_ridge(&p, &a, &x.s, x.h, i, c);
        sum += part;
        if (p.ridge_axes == LOAM_RIDGE_CHANNEL && a.grad_ridge.data)
            ((float *)a.grad_ridge.data)[out + c] = (float)part;
    }
    e = quad_sum(e), sum = quad_sum(sum);
    rec.e = (float)e;
    rec.spread = rec.unit > 0 ? (float)(e / (double)rec.unit) : 0;
    if (real && threadIdx.x % 4 == 0) {
        sums[local_row(&p, &x.s, x.h, i)] = sum;
        if (p.ridge_axes == LOAM_RIDGE_TOKEN && a.grad_ridge.data)
            ((float *)a.grad_ridge.data)[out] = (float)sum;
    }
}

/* The product of a direction with the peak key, which sweep_centres subtracts from the products of all
 * keys. PARTS: bf16 parts of the direction in products. */
template <int PARTS>
static __device__ __forceinline__ float peak_product(bool real, const loam_problem &p, const loam_args &a,
                                                     const row_block &x, int peak, const float *direction,
                                                     const float *origin)
{
    const int64_t at = LOCAL_AT(a.k, x.s.b, x.h_kv, x.s.k0 + peak);
    float sum = 0;
    for (int c = threadIdx.x % 4; real && peak >= 0 && c < p.dim_qk; c += 4) {
        const float k = load_real<float>(a.k.data, p.dtype, at + c) - (PARTS == 3 ? origin[c] : 0);
        sum += rounded<PARTS>(direction[c]) * k;
    }
    return quad_sum(sum);
}

/* Finds rho . kbar and y . kbar, each as the product with the peak key plus a rest: the weighted mean of
 * the products relative to that one. Thus a small u is exact even where one key has nearly all weight and
 * rho is large. */
template <bool WIDE, int DIM, int DIRECTIONS>
static __device__ __forceinline__ void sweep_centres(query_shared<WIDE, DIM, DIRECTIONS> &sm,
                                                     row_scalars (&rec)[2], const loam_problem &p,
                                                     const loam_args &a, const row_block &x,
                                                     const row_pair &r, const score_constants &sc,
                                                     const row_constants &rc)
{
    typedef backward_shape<WIDE, DIM, DIRECTIONS> S;
    float omega[2] = { 0, 0 }, rho[2] = { 0, 0 }, y[2] = { 0, 0 };
    stream_pairs<S, false>(sm.ring, p, a, x, sc, false, [&](const tile_at &t, const key_terms &terms) {
        float s[S::keys / 8][4], u[S::keys / 8][4], v[S::keys / 8][4];
        clear(s);
        product_rows<1, DIM>(s, sm.query, 0, threadIdx.x / 32 * 16, sm.ring.keys[t.stage]);
        product_direction<S>(u, sm.direction, 0, sm.ring.keys[t.stage]);
        product_direction<S>(v, sm.direction, 1, sm.ring.keys[t.stage]);
        scores_in_place(s, sc, terms, r, rc.x0, t.j);
#pragma unroll
        for (int n = 0; n < S::keys / 8; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int row = e / 2;
                const float w = weight_of(s[n][e], rc.lse[row]);
                omega[row] += w;
                rho[row] += w * (u[n][e] - rec[row].rho_kbar);
                y[row] += w * (v[n][e] - rec[row].y_kbar);
            }
        }
    });
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float sum = quad_sum(omega[row]), inverse = sum > 0 ? 1 / sum : 0;
        rec[row].rho_rest = quad_sum(rho[row]) * inverse;
        rec[row].y_rest = quad_sum(y[row]) * inverse;
    }
}

/* By how much the saved product of the probe of row i and kbar, where the row is real, exceeds that of keys
 * relative to the origin. The four lanes of the row call it. */
template <bool WIDE>
static __device__ __forceinline__ float probe_constant(bool real, const loam_problem &p, const loam_args &a,
                                                       const row_block &x, int64_t i, const float *origin)
{
    if (!WIDE || !local_saves_raw(&p)) return 0;
    const int64_t at = LOCAL_AT(a.probe, x.s.b, x.h, x.s.q0 + i);
    float sum = 0;
    for (int c = threadIdx.x % 4; real && c < p.dim_qk; c += 4)
        sum += load_real<float>(a.probe.data, p.dtype, at + c) * origin[c];
    return quad_sum(sum);
}

/* Completes the records of the thread's rows. */
template <bool WIDE, int DIM, int DIRECTIONS>
static __device__ __forceinline__ void complete_records(query_shared<WIDE, DIM, DIRECTIONS> &sm,
                                                        row_scalars (&rec)[2], const loam_problem &p,
                                                        const loam_args &a, const local_saved &saved,
                                                        const row_arrays &arrays, const row_block &x,
                                                        const row_pair &r, const score_constants &sc,
                                                        const row_constants &rc)
{
    typedef backward_shape<WIDE, DIM, DIRECTIONS> S;
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const int64_t i = x.i0 + r.at[row], at = local_row(&p, &x.s, x.h, i);
        rec[row] = row_scalars{};
        rec[row].peak = -1;
        if (DIRECTIONS > NO_DIRECTION && r.real[row]) rec[row] = arrays.record[at];
        rec[row].lse = rc.lse[row], rec[row].gbar = rc.gbar[row], rec[row].x0 = rc.x0[row];
        rec[row].lo = r.lo[row], rec[row].hi = r.hi[row];
        if constexpr (DIRECTIONS == GIVEN_PROBE) {
            const float lost = probe_constant<WIDE>(r.real[row], p, a, x, i, sm.ring.origin);
            if (r.real[row]) {
                rec[row].rho_kbar = ((const float *)saved.tbar)[2 * at] - lost;
                rec[row].rho_rest = ((const float *)saved.tbar)[2 * at + 1];
            }
        }
        if (DIRECTIONS >= SOLVED_PROBE) {
            constexpr int parts = WIDE ? 3 : 2;
            const float *const rho = (const float *)saved.rho + at * p.dim_qk, *const y = arrays.y +
                                                                                          at * p.dim_qk;
            ridge_gradient(rec[row], r.real[row], p, a, x, i, rho, y, arrays.sums.ridge);
            rec[row].rho_kbar = peak_product<parts>(r.real[row], p, a, x, rec[row].peak, rho, sm.ring.origin);
            rec[row].y_kbar = peak_product<parts>(r.real[row], p, a, x, rec[row].peak, y, sm.ring.origin);
        }
    }
    if constexpr (DIRECTIONS >= SOLVED_PROBE) sweep_centres(sm, rec, p, a, x, r, sc, rc);
}

/* Sums over the keys of a row for the gradients of parameters, as in local/cpu/backward_rows.h. */
struct row_totals {
    float inner[2], scale[2], slope[2]; /* of ds factor, of ds factor (x - middle), of -ds distance */
    float from[2];                      /* the factor of the point that keys are relative to, in dq */
    float middle[2], mean[2];           /* an offset of x; sum of p (x - middle) */
    float large[2];                     /* scale / 2^100, used where scale overflows */
    float total[2];                     /* of ds, where scores decay */
};

static __device__ __forceinline__ bool sums_to_zero(const score_constants &sc, const loam_problem &p)
{
    return !sc.mapped && !p.sink;
}

/* middle: an x between the mean and the maximum of the row, where it follows from lse:
 * (lse - log n) / scale for n keys. */
static __device__ __forceinline__ void set_middle(row_totals &sum, const score_constants &sc,
                                                  const loam_problem &p, const row_pair &r,
                                                  const row_constants &rc)
{
    const bool known = sums_to_zero(sc, p) && !sc.sloped && !sc.biased && !sc.decayed && sc.scale != 0;
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const int keys = r.hi[row] - r.lo[row];
        const float x = known && keys > 0 ? (rc.lse[row] - logf((float)keys)) / sc.scale : 0;
        sum.middle[row] = fabsf(x) < 1e30f ? x : 0;
    }
}

/* Adds one tile to the totals. s, which holds the products q . k, becomes ds factor. g, u, t, w: products
 * with the tile of do, rho, y, kbar. */
template <class S, int DIRECTIONS, int BLOCKS>
static __device__ __forceinline__ void row_tile_gradient(
    float (&s)[BLOCKS][4], const float (&g)[BLOCKS][4], const float (&u)[BLOCKS][4],
    const float (&t)[BLOCKS][4], const float (&w)[BLOCKS][4], row_totals &sum, const row_scalars (&rec)[2],
    const score_constants &sc, const key_terms &terms, const row_pair &r, bool by_max, float inverse_d,
    int j0)
{
#pragma unroll
    for (int n = 0; n < BLOCKS; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int row = e / 2, c = column_of(n, e), j = j0 + c;
            const row_scalars &k = rec[row];
            const pair_row own = { k.e, k.spread, k.trace, k.kbar2, k.peak };
            const float x = score_argument(sc, terms, s[n][e], k.x0, c) - sum.middle[row];
            float factor;
            const float score = score_of(sc, terms, s[n][e], k.x0, r.position[row], k.hi, j, c, &factor);
            const float p = j >= k.lo && j < k.hi ? weight_of(score, k.lse) : 0;
            const pair_terms pair = pair_of<DIRECTIONS>(
                by_max, inverse_d, p, DIRECTIONS >= GIVEN_PROBE ? u[n][e] - k.rho_kbar - k.rho_rest : 0,
                g[n][e] - k.gbar - k.gbar_rest,
                DIRECTIONS >= SOLVED_PROBE ? t[n][e] - k.y_kbar - k.y_rest : 0, j,
                DIRECTIONS == SOLVED_BY_TRACE ? terms.norm[c] : 0,
                DIRECTIONS == SOLVED_BY_TRACE ? w[n][e] : 0, own);
            const float ds = rounded<S::row_parts>(pair.ds * factor);
            sum.inner[row] += ds;
            sum.scale[row] += ds * x;
            sum.large[row] += ds * (x * 0x1p-100f);
            sum.mean[row] += p * x;
            if (sc.sloped) sum.slope[row] -= pair.ds * fabsf(r.position[row] - (float)j);
            if (sc.decayed) sum.total[row] += pair.ds;
            s[n][e] = ds;
        }
    }
}

/* Adds one tile of keys and values to the totals and to f = sum ds factor k. */
template <bool WIDE, int DIM, int DIRECTIONS>
static __device__ __forceinline__ void query_tile(float (&f)[DIM / 8][4], row_totals &sum,
                                                  const query_shared<WIDE, DIM, DIRECTIONS> &sm,
                                                  const tile_at &tile, const key_terms &terms,
                                                  const row_scalars (&rec)[2], const score_constants &sc,
                                                  const row_pair &r, bool by_max, float inverse_d)
{
    typedef backward_shape<WIDE, DIM, DIRECTIONS> S;
    constexpr int blocks = S::keys / 8;
    const int warp_row = threadIdx.x / 32 * 16;
    const typename S::type *const keys = sm.ring.keys[tile.stage];
    float s[blocks][4], g[blocks][4], u[blocks][4], t[blocks][4], w[blocks][4];
    clear(s);
    clear(g);
    product_rows<1, DIM>(s, sm.query, 0, warp_row, keys);
    product_rows<1, DIM>(g, sm.grad_o, 0, warp_row, sm.ring.values[tile.stage]);
    if constexpr (DIRECTIONS >= GIVEN_PROBE) product_direction<S>(u, sm.direction, 0, keys);
    if constexpr (DIRECTIONS >= SOLVED_PROBE) product_direction<S>(t, sm.direction, 1, keys);
    if constexpr (DIRECTIONS >= SOLVED_BY_TRACE) product_direction<S>(w, sm.direction, 2, keys);
    row_tile_gradient<S, DIRECTIONS>(s, g, u, t, w, sum, rec, sc, terms, r, by_max, inverse_d, tile.j);
    product_weights<S::row_parts, S::pitch>(f, s, keys, 0);
}

/* Completes the totals of the rows. On wide tiles keys are relative to the origin. On narrow tiles they are
 * not, and what rounding leaves of sum ds = 0 would bring keys far from zero into dq: it is subtracted at the
 * mean key, or at the origin where the mean key is not saved. */
template <bool WIDE>
static __device__ __forceinline__ void finish_totals(row_totals &sum, bool zero_sum, const row_constants &rc)
{
#pragma unroll
    for (int row = 0; row < 2; row++) {
        float inner = quad_sum(sum.inner[row]), scale = quad_sum(sum.scale[row]),
              large = quad_sum(sum.large[row]);
        /* What rounding leaves of sum ds = 0 is subtracted at the mean x. */
        const float rest = inner * quad_sum(sum.mean[row]);
        scale -= zero_sum && fabsf(rest) < INFINITY ? rest : 0;
        sum.from[row] = WIDE ? (zero_sum ? 0 : inner) : zero_sum ? -inner : 0;
        inner = zero_sum ? 0 : inner;
        sum.scale[row] = scale + inner * rc.constant[row];
        sum.large[row] = large + inner * (rc.constant[row] * 0x1p-100f);
        sum.slope[row] = quad_sum(sum.slope[row]);
        sum.total[row] = quad_sum(sum.total[row]);
    }
}

/* dq = scale sum ds (k or, for RBF, k - q) - y. */
template <bool WIDE, int DIM, int DIRECTIONS>
static __device__ __forceinline__ void put_query_gradient(const query_shared<WIDE, DIM, DIRECTIONS> &sm,
                                                          const float (&f)[DIM / 8][4], const row_totals &sum,
                                                          int row, const loam_problem &p, const loam_args &a,
                                                          const local_saved &saved, const row_arrays &arrays,
                                                          const row_block &x, const row_pair &r,
                                                          const score_constants &sc)
{
    typedef backward_shape<WIDE, DIM, DIRECTIONS> S;
    const int64_t i = x.i0 + r.at[row], at = local_row(&p, &x.s, x.h, i) * p.dim_qk;
    const int64_t out = LOCAL_AT(a.grad_q, x.s.b, x.h, x.s.q0 + i);
#pragma unroll
    for (int n = 0; n < DIM / 8; n++) {
        float grad[2];
#pragma unroll
        for (int s = 0; s < 2; s++) {
            const int c = column_of(n, s);
            float from = sc.rbf ? -tile_value(sm.query[r.at[row] * S::pitch + c]) : sm.ring.origin[c], y = 0;
            if constexpr (DIRECTIONS >= SOLVED_PROBE) y = c < p.dim_qk ? arrays.y[at + c] : 0;
            if constexpr (DIRECTIONS >= SOLVED_PROBE && !WIDE)
                from = c < p.dim_qk ? ((const float *)saved.kbar)[at + c] : 0;
            grad[s] = sc.scale * (f[n][2 * row + s] + sum.from[row] * from) - y;
        }
        store_pair(a.grad_q.data, p.dtype, out, column_of(n, 0), p.dim_qk, grad[0], grad[1]);
    }
}

static __device__ __forceinline__ void put_row(const row_scalars &rec, const row_totals &sum, int row,
                                               const row_constants &rc, const score_constants &sc,
                                               const loam_problem &p, const loam_args &a,
                                               const row_arrays &arrays, int64_t h, int64_t at)
{
    arrays.record[at] = rec;
    arrays.sums.scale[at] = fabsf(sum.scale[row]) < INFINITY ? (double)sum.scale[row]
                                                             : (double)sum.large[row] * 0x1p100;
    if (p.slope) arrays.sums.slope[at] = (double)sum.slope[row];
    if (p.decay) arrays.sums.inner[at] = (double)sum.total[row];
    if (p.sink) {
        const double sink = (double)((const float *)a.sink)[h],
                     dropped = (double)(sc.scale * rc.constant[row]);
        arrays.sums.sink[at] = -exp(sink - dropped - (double)rec.lse) * (double)rec.gbar;
    }
}

/* Whether the Hopper kernels have finished the rows of thread block n. */
static __device__ __forceinline__ bool finished(const row_arrays &arrays, const loam_problem &p,
                                                const row_block &x, int64_t n)
{
    const int64_t lines = p.batch * p.heads_q, back = (p.len_q + ROWS - 1) / ROWS - 1 - x.i0 / ROWS;
    return arrays.state && arrays.state[back * lines + n % lines] != ROWS_PENDING;
}

template <bool WIDE, int DIM, int DIRECTIONS>
__global__ void __launch_bounds__(backward_shape<WIDE, DIM, DIRECTIONS>::threads, 2)
    query_kernel(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                 const local_saved saved, const row_arrays arrays)
{
    typedef backward_shape<WIDE, DIM, DIRECTIONS> S;
    extern __shared__ __align__(16) unsigned char memory[];
    query_shared<WIDE, DIM, DIRECTIONS> &sm = *(query_shared<WIDE, DIM, DIRECTIONS> *)memory;
    const row_block x = row_block_at<S::rows>(p, a, blockIdx.x);
    if (x.rows <= 0 || finished(arrays, p, x, blockIdx.x)) return;
    const score_constants sc = score_constants_of(p, a, x.s, x.h);
    const row_pair r = row_pair_of(p, x);
    fill_directions<S, DIRECTIONS, S::rows, S::threads>(
        sm.direction, p, a, saved, arrays, x.s.b, x.h, x.s.q0 + x.i0, local_row(&p, &x.s, x.h, x.i0), x.rows);
    begin_queries<S>(sm.query, sm.grad_o, sm.ring.origin, p, a, x);
    const row_constants rc = row_constants_of<WIDE, S>(sm.query, sm.grad_o, sm.ring.origin, p, saved, x, r,
                                                       sc);
    row_scalars rec[2];
    complete_records(sm, rec, p, a, saved, arrays, x, r, sc, rc);

    const bool by_max = p.mechanism == LOAM_LLA && p.ridge_unit == LOAM_RIDGE_MAX;
    const float inverse_d = 1 / (float)p.dim_qk;
    row_totals sum = {};
    set_middle(sum, sc, p, r, rc);
    float f[DIM / 8][4];
    clear(f);
    stream_pairs<S, true>(sm.ring, p, a, x, sc, DIRECTIONS == SOLVED_BY_TRACE,
                          [&](const tile_at &tile, const key_terms &terms) {
                              query_tile(f, sum, sm, tile, terms, rec, sc, r, by_max, inverse_d);
                          });
    finish_totals<WIDE>(sum, sums_to_zero(sc, p), rc);

#pragma unroll
    for (int row = 0; row < 2; row++) {
        if (!r.real[row]) continue;
        if (a.grad_q.data) put_query_gradient(sm, f, sum, row, p, a, saved, arrays, x, r, sc);
        if (threadIdx.x % 4 == 0) {
            put_row(rec[row], sum, row, rc, sc, p, a, arrays, x.h,
                    local_row(&p, &x.s, x.h, x.i0 + r.at[row]));
        }
    }
}

template <bool WIDE, int DIM, int DIRECTIONS>
static loam_status launch_query(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                                loam_error *error)
{
    typedef backward_shape<WIDE, DIM, DIRECTIONS> S;
    const int64_t blocks = (p->len_q + S::rows - 1) / S::rows * p->batch * p->heads_q;
    const local_saved saved = local_saved_carve(p, a->saved, NULL);
    constexpr size_t shared = sizeof(query_shared<WIDE, DIM, DIRECTIONS>);
    TRY(cuda_allow_shared((const void *)query_kernel<WIDE, DIM, DIRECTIONS>, shared, error));
    query_kernel<WIDE, DIM, DIRECTIONS>
        <<<(unsigned)blocks, S::threads, shared, (cudaStream_t)a->stream>>>(*p, *a, saved, *rows);
    return cuda_launched("query_kernel", error);
}

#endif
