/* SPDX-License-Identifier: MIT
 *
 * Backward on GPUs, first sweep for rows that have a probe: drho = -sum p (g - gbar) kappa, g = do . v. The
 * sum of p (g - gbar) is 0 but for rounding. What rounding leaves of it is kept as gbar_rest, and subtracted
 * from drho at the mean key where that is saved. For a given probe drho is the result. For a solved one it is
 * the right-hand side of the adjoint solve, and the unit of the ridge is computed here too.
 */
#include "src/local/cuda/backward.cuh"

template <bool WIDE, int DIM> struct probe_shared {
    typedef backward_shape<WIDE, DIM, NO_DIRECTION> S;
    alignas(16) typename S::type query[S::rows * S::pitch];
    alignas(16) typename S::type grad_o[S::rows * S::pitch];
    pair_ring<S> ring;
};

/* Sums over the keys, for the thread's two rows. Until probe_finish, each thread has the part
 * of its columns. */
struct probe_sums {
    float total[2], square[2]; /* sum of p (g - gbar); sum of p |k|^2, or p |kappa|^2 */
    float best[2];             /* the highest score; peak: the first key that has it */
    int peak[2];
};

/* The products s = q . k and g = do . v of a tile become p, and p (g - gbar) rounded to the sum of
 * its bf16 parts. */
template <class S>
static __device__ __forceinline__ void weigh_errors(float (&s)[S::keys / 8][4], float (&g)[S::keys / 8][4],
                                                    probe_sums &sum, const score_constants &sc,
                                                    const key_terms &terms, const row_pair &r,
                                                    const row_constants &rc, int j0)
{
#pragma unroll
    for (int n = 0; n < S::keys / 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int row = e / 2, c = column_of(n, e), j = j0 + c;
            const bool seen = j >= r.lo[row] && j < r.hi[row];
            float factor;
            const float score = score_of(sc, terms, s[n][e], rc.x0[row], r.position[row], r.hi[row], j, c,
                                         &factor);
            const float p = seen ? weight_of(score, rc.lse[row]) : 0;
            if (seen && score > sum.best[row]) sum.best[row] = score, sum.peak[row] = j;
            g[n][e] = rounded<S::row_parts>(seen ? p * (g[n][e] - rc.gbar[row]) : 0);
            sum.total[row] += g[n][e];
            s[n][e] = p;
        }
    }
}

/* Adds p |k|^2 over a tile. */
template <int BLOCKS>
static __device__ __forceinline__ void add_squares(probe_sums &sum, const float (&w)[BLOCKS][4],
                                                   const key_terms &terms)
{
#pragma unroll
    for (int n = 0; n < BLOCKS; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++)
            sum.square[e / 2] += w[n][e] * terms.norm[column_of(n, e)];
    }
}

/* Adds p |kappa|^2 over a tile, from differences: a ridge relative to the trace needs it to full precision,
 * also where nearly all weight is on one key. */
template <class S, int BLOCKS>
static __device__ __forceinline__ void add_spread(probe_sums &sum, const float (&w)[BLOCKS][4],
                                                  const typename S::type *keys, const float *kbar,
                                                  const int64_t (&kbar_at)[2], int d)
{
#pragma unroll
    for (int n = 0; n < BLOCKS; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float distance2 = 0;
            for (int c = 0; w[n][e] > 0 && c < d; c++) {
                const float kappa = tile_value(keys[column_of(n, e) * S::pitch + c]) -
                                    kbar[kbar_at[e / 2] + c];
                distance2 += kappa * kappa;
            }
            sum.square[e / 2] += w[n][e] * distance2;
        }
    }
}

/* Combines the four lanes of a row. The peak is the first key with the highest score. */
static __device__ __forceinline__ void probe_finish(probe_sums &sum)
{
#pragma unroll
    for (int row = 0; row < 2; row++) {
        sum.total[row] = quad_sum(sum.total[row]);
        sum.square[row] = quad_sum(sum.square[row]);
#pragma unroll
        for (int step = 1; step < 4; step *= 2) {
            const float best = __shfl_xor_sync(0xffffffffu, sum.best[row], step);
            const int peak = __shfl_xor_sync(0xffffffffu, sum.peak[row], step);
            if (best > sum.best[row] || (best == sum.best[row] && peak < sum.peak[row]))
                sum.best[row] = best, sum.peak[row] = peak;
        }
    }
}

/* A given probe: writes grad_probe, and returns the thread's part of rho . f, f = sum p (g - gbar) k.
 * The keys of narrow tiles are not relative to the origin; excess = sum p (g - gbar) corrects f for that. */
template <int BLOCKS>
static __device__ __forceinline__ float given_gradient(const float (&f)[BLOCKS][4], int row, float excess,
                                                       const float *origin, const loam_problem &p,
                                                       const loam_args &a, const row_block &x, int64_t i)
{
    const int64_t probe = LOCAL_AT(a.probe, x.s.b, x.h, x.s.q0 + i);
    const int64_t out = LOCAL_AT(a.grad_probe, x.s.b, x.h, x.s.q0 + i);
    float product = 0;
#pragma unroll
    for (int n = 0; n < BLOCKS; n++) {
        const int c = column_of(n, 0);
        float drho[2];
#pragma unroll
        for (int s = 0; s < 2; s++) {
            const float sum = f[n][2 * row + s];
            drho[s] = excess * origin[c + s] - sum;
            product += c + s < p.dim_qk ? sum * load_real<float>(a.probe.data, p.dtype, probe + c + s) : 0;
        }
        if (a.grad_probe.data) store_pair(a.grad_probe.data, p.dtype, out, c, p.dim_qk, drho[0], drho[1]);
    }
    return product;
}

/* A solved probe: writes drho for the solve; returns the thread's part of |kbar|^2. */
template <bool WIDE, int BLOCKS>
static __device__ __forceinline__ float solved_gradient(const float (&f)[BLOCKS][4], int row, float total,
                                                        const float *origin, const loam_problem &p,
                                                        const float *kbar, float *drho)
{
    float kbar2 = 0;
#pragma unroll
    for (int n = 0; n < BLOCKS; n++) {
#pragma unroll
        for (int s = 0; s < 2; s++) {
            const int c = column_of(n, s);
            if (c < p.dim_qk) {
                const float mean = kbar[c] - saved_shift<WIDE>(p, origin, c);
                kbar2 += mean * mean;
                drho[c] = total * mean - f[n][2 * row + s];
            }
        }
    }
    return kbar2;
}

/* The unit of the ridge, and trace(Cov) / dim, the mean variance of the keys. */
static __device__ __forceinline__ void set_unit(row_scalars &rec, const loam_problem &p, float square,
                                                float most)
{
    const bool by_trace = p.ridge_unit == LOAM_RIDGE_TRACE;
    rec.trace = fmaxf(by_trace ? square : square - rec.kbar2, 0) / (float)p.dim_qk;
    rec.unit = ridge_unit_of(p, most, rec.trace);
}

/* Writes the gradient of the probe of a row, or drho for its solve, and the part of its row_scalars that this
 * sweep finds. The four lanes of the row call it. */
template <bool WIDE, int BLOCKS>
static __device__ __forceinline__ void put_probe_row(const float (&f)[BLOCKS][4], const probe_sums &sum,
                                                     int row, bool solved, const float *origin,
                                                     const loam_problem &p, const loam_args &a,
                                                     const local_saved &saved, const row_arrays &arrays,
                                                     const row_block &x, const row_pair &r,
                                                     const row_constants &rc)
{
    const int64_t i = x.i0 + r.at[row], at = local_row(&p, &x.s, x.h, i);
    row_scalars rec = { 0 };
    const float excess = WIDE ? 0 : sum.total[row];
    float part = 0;
    if (r.real[row] && solved) {
        part = solved_gradient<WIDE>(f, row, sum.total[row], origin, p,
                                     (const float *)saved.kbar + at * p.dim_qk, arrays.y + at * p.dim_qk);
    } else if (r.real[row]) {
        part = given_gradient(f, row, excess, origin, p, a, x, i);
    }
    part = quad_sum(part);
    if (!r.real[row] || threadIdx.x % 4 != 0) return;
    rec.gbar_rest = sum.total[row];
    rec.peak = -1;
    if (solved) {
        const bool some = r.lo[row] < r.hi[row];
        rec.kbar2 = part;
        rec.peak = some ? sum.peak[row] : -1;
        set_unit(rec, p, sum.square[row], some ? weight_of(sum.best[row], rc.lse[row]) : 0);
    } else {
        /* e = rho . (f - excess kbar). rho . kbar is saved; with the origin for kbar, as in drho, dq would be
         * off by excess rho . (kbar - origin) (kbar - origin), far from the origin more than dq is. */
        const float *const tbar = (const float *)saved.tbar + 2 * at;
        rec.e = part - excess * (tbar[0] + tbar[1]);
    }
    arrays.record[at] = rec;
}

template <bool WIDE, int DIM>
__global__ void __launch_bounds__(probe_shared<WIDE, DIM>::S::threads)
    probe_kernel(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                 const local_saved saved, const row_arrays arrays)
{
    typedef probe_shared<WIDE, DIM> shared;
    typedef typename shared::S S;
    extern __shared__ __align__(16) unsigned char memory[];
    shared &sm = *(shared *)memory;
    const row_block x = row_block_at<S::rows>(p, a, blockIdx.x);
    if (x.rows <= 0) return;
    const bool solved = p.mechanism == LOAM_LLA, by_trace = solved && p.ridge_unit == LOAM_RIDGE_TRACE;
    const score_constants sc = score_constants_of(p, a, x.s, x.h);
    const row_pair r = row_pair_of(p, x);
    begin_queries<S>(sm.query, sm.grad_o, sm.ring.origin, p, a, x);
    const row_constants rc = row_constants_of<WIDE, S>(sm.query, sm.grad_o, sm.ring.origin, p, saved, x, r,
                                                       sc);

    const int warp_row = threadIdx.x / 32 * 16;
    probe_sums sum = { { 0, 0 }, { 0, 0 }, { -INFINITY, -INFINITY }, { INT32_MAX, INT32_MAX } };
    const int64_t kbar_at[2] = { local_row(&p, &x.s, x.h, x.i0 + r.at[0]) * p.dim_qk,
                                 local_row(&p, &x.s, x.h, x.i0 + r.at[1]) * p.dim_qk };
    float f[DIM / 8][4];
    clear(f);
    stream_pairs<S, true>(sm.ring, p, a, x, sc, solved, [&](const tile_at &t, const key_terms &terms) {
        float s[S::keys / 8][4], g[S::keys / 8][4];
        clear(s);
        clear(g);
        product_rows<1, DIM>(s, sm.query, 0, warp_row, sm.ring.keys[t.stage]);
        product_rows<1, DIM>(g, sm.grad_o, 0, warp_row, sm.ring.values[t.stage]);
        weigh_errors<S>(s, g, sum, sc, terms, r, rc, t.j);
        if (by_trace)
            add_spread<S>(sum, s, sm.ring.keys[t.stage], (const float *)saved.kbar, kbar_at, (int)p.dim_qk);
        else if (solved)
            add_squares(sum, s, terms);
        product_weights<S::row_parts, S::pitch>(f, g, sm.ring.keys[t.stage], 0);
    });
    probe_finish(sum);

#pragma unroll
    for (int row = 0; row < 2; row++)
        put_probe_row<WIDE>(f, sum, row, solved, sm.ring.origin, p, a, saved, arrays, x, r, rc);
}

template <bool WIDE, int DIM>
static loam_status launch_probe(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                                loam_error *error)
{
    typedef typename probe_shared<WIDE, DIM>::S S;
    const int64_t blocks = (p->len_q + S::rows - 1) / S::rows * p->batch * p->heads_q;
    const local_saved saved = local_saved_carve(p, a->saved, NULL);
    constexpr size_t shared = sizeof(probe_shared<WIDE, DIM>);
    TRY(cuda_allow_shared((const void *)probe_kernel<WIDE, DIM>, shared, error));
    probe_kernel<WIDE, DIM>
        <<<(unsigned)blocks, S::threads, shared, (cudaStream_t)a->stream>>>(*p, *a, saved, *rows);
    return cuda_launched("probe_kernel", error);
}

loam_status local_probe_gradient_cuda(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                                      loam_error *error)
{
    return by_tiles(
        p,
        [&](auto wide, auto dim) {
            return launch_probe<decltype(wide)::value, decltype(dim)::value>(p, a, rows, error);
        });
}
