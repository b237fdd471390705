/* SPDX-License-Identifier: MIT
 *
 * Local Linear Attention forward on Hopper: the same passes as local_solved_cuda.cuh, for bf16 dot scores without bias terms and
 * head dimensions 64 and 128, with products of the whole warpgroup (a thread block is one) and bulk copies.
 *
 * Blocks whose rows see many keys begin cheap: directions and weights in one bf16 part each, which leaves a residual of about 2^-8.
 * The last sweep finds the true one. Where it misses, and where a row sees fewer than FEW_KEYS head dimensions, two parts go on
 * from what is there.
 */
#ifndef LOAM_LOCAL_LOCAL_SOLVED_SM90_CUH
#define LOAM_LOCAL_LOCAL_SOLVED_SM90_CUH

#include "src/local/local_stream_sm90.cuh"

enum { FEW_KEYS = 6 };

/* 113 KiB at 128 dimensions: two thread blocks to a multiprocessor. */
template <int DIM> struct solve_shared_sm90 {
    alignas(1024) __nv_bfloat16 slot[ring_slots<DIM>][DIM * SIDE];
    __nv_bfloat16 query[DIM * SIDE];
    __nv_bfloat16 direction[2][DIM * SIDE];
    uint64_t full[ring_slots<DIM>], query_full;
    int64_t block;
};

template <int DIM> struct system_sm90 {
    static constexpr int dim = DIM;
    const loam_problem &p;
    const loam_args &a;
    const row_block &x;
    const row_pair &r;
    const row_ridge &ridge;
    const maps_sm90 &maps;
    solve_shared_sm90<DIM> &sm;
    ring_count &count;
    float *scratch;
    float scale2;  /* of scores to base 2 */
    float lse2[2]; /* to base 2; 0 where nothing is seen */
    int whole, to; /* tiles within whole .. to are seen by all rows */
    bool fine;     /* two parts */

    __device__ __forceinline__ lane_vector vector(int which) const
    {
        return scratch_vector<DIM>(scratch, which);
    }
    __device__ __forceinline__ ring_sm90<DIM> ring() const { return { sm.slot, sm.full }; }
    __device__ __forceinline__ float target(int row, int c) const
    {
        return tile_value(sm.query[swizzled(r.at[row], c)]);
    }
    __device__ __forceinline__ bool all_seen(int j) const { return j >= whole && j + SIDE <= to; }
    __device__ __forceinline__ bool seen(int row, int j) const { return j >= r.lo[row] && j < r.hi[row]; }
};

/* w: the products q . k become p; 0 where a row does not see the key. */
template <int DIM>
static __device__ __forceinline__ void weights_sm90(float (&w)[8][4], const system_sm90<DIM> &sys, int j)
{
#pragma unroll
    for (int n = 0; n < 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            w[n][e] = exp2_fast(fminf(w[n][e] * sys.scale2 - sys.lse2[e / 2], 0));
        }
    }
    if (!sys.all_seen(j)) {
#pragma unroll
        for (int n = 0; n < 8; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                w[n][e] = sys.seen(e / 2, j + column_of(n, e)) ? w[n][e] : 0;
            }
        }
    }
}

/* w <- p (direction . k - centre); its row sums (this thread's columns) go to total */
template <bool FINE, int DIM>
static __device__ __forceinline__ void centred_sm90(float (&w)[8][4], const system_sm90<DIM> &sys,
                                                    const tiles_at &t, const float (&centre)[2],
                                                    float (&total)[2])
{
    float u[8][4];
    const __nv_bfloat16 *keys = t.keys;
    multiply_rows<DIM>(w, sys.sm.query, keys, false);
    if (FINE) {
        multiply_rows<DIM>(u, sys.sm.direction[1], keys, false);
    }
    multiply_rows<DIM>(u, sys.sm.direction[0], keys, FINE);
    products_commit();
    products_wait<0>();
    products_arrived(w);
    products_arrived(u);
    weights_sm90(w, sys, t.j);
#pragma unroll
    for (int n = 0; n < 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            w[n][e] *= u[n][e] - centre[e / 2];
            total[e / 2] += w[n][e];
        }
    }
}

template <int DIM> static __device__ __forceinline__ void clear_sums(float (&y)[DIM / SIDE][8][4])
{
#pragma unroll
    for (int n = 0; n < DIM / SIDE; n++) {
        clear(y[n]);
    }
}

/* Keeps the compiler from remembering an address for each element from sweep to sweep, for which there are no registers. */
static __device__ __forceinline__ int forget(int x)
{
    asm volatile("" : "+r"(x));
    return x;
}

/* The elements of the direction as its parts say: pair `e` (0 or 2) of block n. */
template <bool FINE, int DIM>
static __device__ __forceinline__ float2 direction_pair(const system_sm90<DIM> &sys, int n, int e)
{
    const int at = swizzled(forget(sys.r.at[e / 2]), column_of(n, e));
    float2 p = __bfloat1622float2(*(const __nv_bfloat162 *)(sys.sm.direction[0] + at));
    if (FINE) {
        const float2 rest = __bfloat1622float2(*(const __nv_bfloat162 *)(sys.sm.direction[1] + at));
        p.x += rest.x, p.y += rest.y;
    }
    return p;
}

/* Sets a pair of the direction; returns it as its parts say. */
template <bool FINE, int DIM>
static __device__ __forceinline__ float2 set_direction_pair(const system_sm90<DIM> &sys, int n, int e,
                                                            float2 p)
{
    const int at = swizzled(forget(sys.r.at[e / 2]), column_of(n, e));
    uint32_t part[2];
    split_pair(part, p.x, p.y);
    *(uint32_t *)(sys.sm.direction[0] + at) = part[0];
    if (FINE) {
        *(uint32_t *)(sys.sm.direction[1] + at) = part[1];
    }
    return direction_pair<FINE>(sys, n, e);
}

/* y becomes (Cov + Lambda) times the direction, from y = sum f k and total = sum f (this thread's columns). */
template <bool FINE, int DIM>
static __device__ __forceinline__ void finish_image(float (&y)[DIM / SIDE][8][4], const system_sm90<DIM> &sys,
                                                    float (&total)[2])
{
    const lane_vector kbar = sys.vector(VECTOR_KBAR);
    total[0] = quad_sum(total[0]), total[1] = quad_sum(total[1]);
#pragma unroll
    for (int n = 0; n < DIM / 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
            const float2 p = direction_pair<FINE>(sys, n, e);
            const int row = e / 2, c = column_of(n, e);
            y[n / 8][n % 8][e] += ridge_at(sys.ridge, sys.p, sys.a, sys.x, sys.r, row, c) * p.x -
                                  total[row] * kbar.get(4 * n + e);
            y[n / 8][n % 8][e + 1] += ridge_at(sys.ridge, sys.p, sys.a, sys.x, sys.r, row, c + 1) * p.y -
                                      total[row] * kbar.get(4 * n + e + 1);
        }
    }
}

/* y = (Cov + Lambda) times the direction. centre: direction . kbar */
template <bool FINE, int DIM>
static __device__ __forceinline__ void image_sm90(float (&y)[DIM / SIDE][8][4], const system_sm90<DIM> &sys,
                                                  const float (&centre)[2])
{
    float total[2] = { 0, 0 };
    clear_sums<DIM>(y);
    stream_sm90<DIM, false>(sys.ring(), sys.count, sys.maps, sys.x, [&](const tiles_at &t) {
        float f[8][4];
        weights_operand<FINE ? 2 : 1> w;
        centred_sm90<FINE>(f, sys, t, centre, total);
        split_weights(w, f);
        if (FINE) {
            multiply_weights<DIM>(y, w.part[FINE], t.keys);
        }
        multiply_weights<DIM>(y, w.part[0], t.keys);
        products_commit();
        products_wait<0>();
        products_arrived(y);
    });
    finish_image<FINE>(y, sys, total);
}

/* The direction becomes `source` + turn x direction, from registers; centre is then its product with kbar. */
template <bool FINE, int DIM>
static __device__ __forceinline__ void turn_direction(const system_sm90<DIM> &sys,
                                                      const float (&source)[DIM / SIDE][8][4],
                                                      const float (&turn)[2], float (&centre)[2])
{
    const lane_vector kbar = sys.vector(VECTOR_KBAR);
    centre[0] = centre[1] = 0;
#pragma unroll
    for (int n = 0; n < DIM / 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
            const int row = e / 2;
            float2 p = { 0, 0 };
            if (turn[row] != 0) {
                p = direction_pair<FINE>(sys, n, e);
            }
            p.x = source[n / 8][n % 8][e] + turn[row] * p.x,
            p.y = source[n / 8][n % 8][e + 1] + turn[row] * p.y;
            p = set_direction_pair<FINE>(sys, n, e, p);
            centre[row] += p.x * kbar.get(4 * n + e) + p.y * kbar.get(4 * n + e + 1);
        }
    }
    centre[0] = quad_sum(centre[0]), centre[1] = quad_sum(centre[1]);
    fence_async_proxy();
    __syncthreads();
}

/* Conjugate gradients from x and its residual r, which both lie in the scratch, for the rows that are live. */
template <bool FINE, int DIM>
static __device__ __forceinline__ void cg_run(const system_sm90<DIM> &sys, cg_rows &k,
                                              const cg_tolerance &tolerance)
{
    const lane_vector x = sys.vector(VECTOR_X), r = sys.vector(VECTOR_R);
    float y[DIM / SIDE][8][4], centre[2], turn[2] = { 0, 0 };
#pragma unroll
    for (int n = 0; n < DIM / 2; n++) {
        y[n / 32][n / 4 % 8][n % 4] = r.get(n);
    }
    turn_direction<FINE>(sys, y, turn, centre);
    for (int count = 0; count < tolerance.most && __syncthreads_or(k.live[0] || k.live[1]); count++) {
        float curvature[2] = { 0, 0 }, size[2] = { 0, 0 }, next[2] = { 0, 0 }, step[2];
        image_sm90<FINE>(y, sys, centre);
#pragma unroll
        for (int n = 0; n < DIM / 8; n++) {
#pragma unroll
            for (int e = 0; e < 4; e += 2) {
                const float2 p = direction_pair<FINE>(sys, n, e);
                curvature[e / 2] += p.x * y[n / 8][n % 8][e] + p.y * y[n / 8][n % 8][e + 1];
                size[e / 2] += p.x * p.x + p.y * p.y;
            }
        }
#pragma unroll
        for (int row = 0; row < 2; row++) {
            curvature[row] = quad_sum(curvature[row]), size[row] = quad_sum(size[row]);
            k.iterations[row] += k.live[row];
            k.live[row] = k.live[row] && curvature[row] > 0;
            step[row] = k.live[row] ? k.rr[row] / curvature[row] : 0;
            if (k.live[row]) {
                k.least[row] = fminf(k.least[row], curvature[row] / size[row]);
                k.most[row] = fmaxf(k.most[row], curvature[row] / size[row]);
            }
        }
#pragma unroll
        for (int n = 0; n < DIM / 8; n++) {
#pragma unroll
            for (int e = 0; e < 4; e += 2) {
                const float2 p = direction_pair<FINE>(sys, n, e);
#pragma unroll
                for (int s = 0; s < 2; s++) {
                    const int at = 4 * n + e + s, row = e / 2;
                    const float rest = r.get(at) - step[row] * y[n / 8][n % 8][e + s];
                    x.put(at, x.get(at) + step[row] * (s ? p.y : p.x));
                    r.put(at, rest);
                    next[row] += rest * rest;
                    y[n / 8][n % 8][e + s] = rest;
                }
            }
        }
#pragma unroll
        for (int row = 0; row < 2; row++) {
            next[row] = quad_sum(next[row]);
            turn[row] = k.live[row] ? next[row] / k.rr[row] : 0;
            k.rr[row] = k.live[row] ? next[row] : k.rr[row];
            k.live[row] = k.live[row] && next[row] > tolerance.stop * tolerance.stop * k.bb[row];
        }
        turn_direction<FINE>(sys, y, turn, centre);
    }
}

/* Means under the weights into the scratch; most: the largest p. */
template <bool FINE, int DIM>
static __device__ __forceinline__ void means_sm90(system_sm90<DIM> &sys, float (&lse)[2], float (&most)[2])
{
    float k[DIM / SIDE][8][4], v[DIM / SIDE][8][4], m[2] = { -INFINITY, -INFINITY }, omega[2] = { 0, 0 },
                                                    sum[2] = { 0, 0 };
    clear_sums<DIM>(k);
    clear_sums<DIM>(v);
    stream_sm90<DIM, true>(sys.ring(), sys.count, sys.maps, sys.x, [&](const tiles_at &t) {
        float s[8][4];
        multiply_rows<DIM>(s, sys.sm.query, t.keys, false);
        products_commit();
        products_wait<0>();
        products_arrived(s);
#pragma unroll
        for (int n = 0; n < 8; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                s[n][e] *= sys.scale2;
            }
        }
        if (!sys.all_seen(t.j)) {
#pragma unroll
            for (int n = 0; n < 8; n++) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    s[n][e] = sys.seen(e / 2, t.j + column_of(n, e)) ? s[n][e] : -INFINITY;
                }
            }
        }
#pragma unroll
        for (int row = 0; row < 2; row++) {
            float top = m[row];
#pragma unroll
            for (int n = 0; n < 8; n++) {
                top = fmaxf(top, fmaxf(s[n][2 * row], s[n][2 * row + 1]));
            }
            top = quad_max(top);
            const float base = finite_or_zero(top), keep = exp2_fast(m[row] - base);
            m[row] = top, omega[row] *= keep, sum[row] *= keep;
#pragma unroll
            for (int n = 0; n < DIM / 8; n++) {
#pragma unroll
                for (int e = 2 * row; e < 2 * row + 2; e++) {
                    k[n / 8][n % 8][e] *= keep, v[n / 8][n % 8][e] *= keep;
                }
            }
#pragma unroll
            for (int n = 0; n < 8; n++) {
#pragma unroll
                for (int e = 2 * row; e < 2 * row + 2; e++) {
                    s[n][e] = exp2_fast(s[n][e] - base);
                    omega[row] += s[n][e];
                    s[n][e] = rounded < FINE ? 2 : 1 > (s[n][e]);
                    sum[row] += s[n][e];
                }
            }
        }
        weights_operand<2> a;
        split_weights(a, s);
        if (sys.fine) {
            multiply_weights<DIM>(k, a.part[1], t.keys);
        }
        multiply_weights<DIM>(k, a.part[0], t.keys);
        multiply_weights<DIM>(v, a.part[0], t.values);
        products_commit();
        products_wait<0>();
        products_arrived(k);
        products_arrived(v);
    });
    const lane_vector kbar = sys.vector(VECTOR_KBAR), vbar = sys.vector(VECTOR_VBAR);
#pragma unroll
    for (int row = 0; row < 2; row++) {
        omega[row] = quad_sum(omega[row]), sum[row] = quad_sum(sum[row]);
        const bool some = omega[row] > 0;
        const float inverse = sum[row] > 0 ? 1 / sum[row] : 0;
        sys.lse2[row] = some ? m[row] + log2f(omega[row]) : 0;
        lse[row] = some ? sys.lse2[row] * 0.693147181f : -INFINITY;
        most[row] = some ? 1 / omega[row] : 0;
#pragma unroll
        for (int n = 0; n < DIM / 8; n++) {
#pragma unroll
            for (int e = 2 * row; e < 2 * row + 2; e++) {
                kbar.put(4 * n + e, k[n / 8][n % 8][e] * inverse);
                vbar.put(4 * n + e, v[n / 8][n % 8][e] * inverse);
            }
        }
    }
}

/* o, rho, saved of the real rows; the residual of each becomes r, and error2 its square. */
template <bool FINE, int DIM>
static __device__ __forceinline__ void lines_sm90(const system_sm90<DIM> &sys, const cg_rows &k,
                                                  const local_saved &saved, float (&error2)[2],
                                                  bool (&finite)[2])
{
    const loam_problem &p = sys.p;
    const loam_args &a = sys.a;
    const lane_vector x = sys.vector(VECTOR_X), b = sys.vector(VECTOR_B), r = sys.vector(VECTOR_R);
    const lane_vector vbar = sys.vector(VECTOR_VBAR), kbar = sys.vector(VECTOR_KBAR);
    float y[DIM / SIDE][8][4], o[DIM / SIDE][8][4], total[2] = { 0, 0 }, centre[2], bad[2] = { 0, 0 };
    const float none[2] = { 0, 0 };
#pragma unroll
    for (int n = 0; n < DIM / 2; n++) {
        y[n / 32][n / 4 % 8][n % 4] = x.get(n);
    }
    turn_direction<FINE>(sys, y, none, centre);
    clear_sums<DIM>(y);
    clear_sums<DIM>(o);
    stream_sm90<DIM, true>(sys.ring(), sys.count, sys.maps, sys.x, [&](const tiles_at &t) {
        float f[8][4];
        centred_sm90<FINE>(f, sys, t, centre, total);
        weights_operand<FINE ? 2 : 1> w;
        split_weights(w, f);
        if (FINE) {
            multiply_weights<DIM>(y, w.part[FINE], t.keys);
            multiply_weights<DIM>(o, w.part[FINE], t.values);
        }
        multiply_weights<DIM>(y, w.part[0], t.keys);
        multiply_weights<DIM>(o, w.part[0], t.values);
        products_commit();
        products_wait<0>();
        products_arrived(y);
        products_arrived(o);
    });
    finish_image<FINE>(y, sys, total);
    error2[0] = error2[1] = 0;
#pragma unroll
    for (int n = 0; n < DIM / 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
            const int row = e / 2, at = 4 * n + e, c = column_of(n, e);
            const float2 used = direction_pair<FINE>(sys, n, e);
            float out[2];
            x.put(at, used.x), x.put(at + 1, used.y);
#pragma unroll
            for (int s = 0; s < 2; s++) {
                const float rest = b.get(at + s) - y[n / 8][n % 8][e + s], mean = vbar.get(at + s);
                r.put(at + s, rest);
                error2[row] += rest * rest;
                out[s] = mean - k.unit[row] * (o[n / 8][n % 8][e + s] - total[row] * mean);
                bad[row] += out[s] * 0;
            }
            if (!sys.r.real[row]) {
                continue;
            }
            const int64_t i = sys.x.i0 + sys.r.at[row], line = local_row(&p, &sys.x.s, sys.x.h, i),
                          token = sys.x.s.q0 + i;
            store_pair(a.o.data, p.dtype, LOCAL_AT(a.o, sys.x.s.b, sys.x.h, token), c, p.dim_v, out[0],
                       out[1]);
            const float rho[2] = { k.unit[row] * used.x, k.unit[row] * used.y };
            if (a.rho.data) {
                store_pair(a.rho.data, LOAM_F32, LOCAL_AT(a.rho, sys.x.s.b, sys.x.h, token), c, p.dim_qk,
                           rho[0], rho[1]);
            }
            if (a.saved) {
                store_pair(saved.rho, LOAM_F32, line * p.dim_qk, c, p.dim_qk, rho[0], rho[1]);
                store_pair(saved.kbar, LOAM_F32, line * p.dim_qk, c, p.dim_qk, kbar.get(at),
                           kbar.get(at + 1));
                store_pair(saved.vbar, LOAM_F32, line * p.dim_v, c, p.dim_v, vbar.get(at), vbar.get(at + 1));
            }
        }
    }
    error2[0] = quad_sum(error2[0]), error2[1] = quad_sum(error2[1]);
    finite[0] = quad_sum(bad[0]) == 0, finite[1] = quad_sum(bad[1]) == 0;
}

/* All rows go on from x, with its residual as exact products see it. What the cheap ones met says little of the condition. */
template <int DIM>
static __device__ __forceinline__ void cg_resume(const system_sm90<DIM> &sys, cg_rows &k,
                                                 const bool (&wanted)[2], float stop)
{
    const lane_vector x = sys.vector(VECTOR_X), r = sys.vector(VECTOR_R), b = sys.vector(VECTOR_B);
    const float none[2] = { 0, 0 };
    float y[DIM / SIDE][8][4], centre[2], error2[2] = { 0, 0 };
#pragma unroll
    for (int n = 0; n < DIM / 2; n++) {
        y[n / 32][n / 4 % 8][n % 4] = x.get(n);
    }
    turn_direction<true>(sys, y, none, centre);
    image_sm90<true>(y, sys, centre);
#pragma unroll
    for (int n = 0; n < DIM / 2; n++) {
        const float rest = b.get(n) - y[n / 32][n / 4 % 8][n % 4];
        r.put(n, rest);
        error2[n / 2 % 2] += rest * rest;
    }
#pragma unroll
    for (int row = 0; row < 2; row++) {
        k.rr[row] = quad_sum(error2[row]);
        k.live[row] = wanted[row] && k.rr[row] > stop * stop * k.bb[row] && k.rr[row] < INFINITY;
        k.least[row] = INFINITY, k.most[row] = 0;
    }
}

template <int DIM>
static __device__ __forceinline__ void solved_block_sm90(solve_shared_sm90<DIM> &sm, ring_count &count,
                                                         unsigned &queries, const loam_problem &p,
                                                         const loam_args &a, const local_saved &saved,
                                                         const solve_work &work, const maps_sm90 &maps,
                                                         int64_t block, float *scratch)
{
    const row_block x = row_block_at(p, a, block);
    if (x.rows <= 0) {
        return;
    }
    const row_pair r = row_pair_of(p, x);
    if (threadIdx.x == 0) {
        barrier_expect(&sm.query_full, DIM * SIDE * 2);
        for (int c = 0; c < DIM; c += SIDE) {
            copy_box(sm.query + c * SIDE, &maps.q, &sm.query_full, c, (int)(x.s.q0 + x.i0), (int)x.h,
                     (int)x.s.b);
        }
    }
    barrier_wait(&sm.query_full, queries++ % 2);

    int64_t lo, hi, first, last;
    local_visible(&p, &x.s, x.i0, &lo, &hi);
    local_visible(&p, &x.s, x.i0 + x.rows - 1, &first, &last);
    row_ridge ridge = {};
    system_sm90<DIM> sys = { p,
                             a,
                             x,
                             r,
                             ridge,
                             maps,
                             sm,
                             count,
                             scratch,
                             (float)(p.scale * 1.4426950408889634),
                             { 0, 0 },
                             (int)first,
                             x.rows < ROWS ? 0 : (int)hi,
                             hi - lo < FEW_KEYS * DIM };
    float lse[2], most[2], error2[2];
    bool finite[2], good[2];
    if (sys.fine) {
        means_sm90<true>(sys, lse, most);
    } else {
        means_sm90<false>(sys, lse, most);
    }
    put_right_side(sys);
    const bool by_max = p.ridge_unit == LOAM_RIDGE_MAX;
    const float unit[2] = { by_max ? most[0] : 1, by_max ? most[1] : 1 };
    ridge = row_ridge_of(p, a, x, r, unit);
    const cg_tolerance cheap = { 8e-3f, 1.8e-2f, 8 }, exact = { 3e-4f, 1e-2f, 64 };
    const bool wanted[2] = { r.lo[0] < r.hi[0] && ridge.least[0] > 0,
                             r.lo[1] < r.hi[1] && ridge.least[1] > 0 };
    cg_rows k;
    cg_begin(sys, k, wanted);
    float residual[2];
    for (;;) {
        if (sys.fine) {
            cg_run<true>(sys, k, exact);
            lines_sm90<true>(sys, k, saved, error2, finite);
        } else {
            cg_run<false>(sys, k, cheap);
            lines_sm90<false>(sys, k, saved, error2, finite);
        }
#pragma unroll
        for (int row = 0; row < 2; row++) {
            good[row] = accepted(k, sys.fine ? exact : cheap, row, error2[row], &residual[row]) &&
                        finite[row] && ridge.least[row] > BLOCK_LEAST_RIDGE * k.most[row];
        }
        const bool missed = (wanted[0] && !good[0] && finite[0]) || (wanted[1] && !good[1] && finite[1]);
        if (sys.fine || !__syncthreads_or(missed)) {
            break;
        }
        sys.fine = true;
        cg_resume(sys, k, wanted, exact.stop);
    }
#pragma unroll
    for (int row = 0; row < 2; row++) {
        if (!r.real[row] || threadIdx.x % 4 != 0) {
            continue;
        }
        const int64_t i = x.i0 + r.at[row];
        loam_row_info info = { LOAM_ROW_SOLVED, LOAM_SOLVER_CG, k.iterations[row], residual[row] };
        if (r.lo[row] >= r.hi[row]) {
            info = loam_row_info{ LOAM_ROW_EMPTY, LOAM_SOLVER_NONE, 0, 0 };
        } else if (!wanted[row] || !good[row]) {
            const hard_row hard = { block, r.at[row], k.iterations[row] };
            work.hard[atomicAdd(work.hard_count, 1ull)] = hard;
        }
        put_info(a, x, i, info);
        if (a.lse.data) {
            ((float *)a.lse.data)[LOCAL_AT(a.lse, x.s.b, x.h, x.s.q0 + i)] = lse[row];
        }
        if (a.saved) {
            ((float *)saved.lse)[local_row(&p, &x.s, x.h, i)] = lse[row];
        }
    }
}

template <int DIM>
__global__ void __launch_bounds__(THREADS, 2)
    solved_kernel_sm90(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                       const local_saved saved, const solve_work work, const int64_t blocks,
                       const __grid_constant__ maps_sm90 maps)
{
    extern __shared__ __align__(1024) unsigned char swizzled_memory[];
    solve_shared_sm90<DIM> &sm = *(solve_shared_sm90<DIM> *)swizzled_memory;
    float *scratch = work.scratch + (int64_t)blockIdx.x * VECTORS * (DIM / 2) * THREADS;
    ring_count count = { 0 };
    unsigned queries = 0;
    if (threadIdx.x == 0) {
        for (int n = 0; n < (int)ring_slots<DIM>; n++) {
            barrier_init(&sm.full[n], 1);
        }
        barrier_init(&sm.query_full, 1);
        fence_async_proxy();
    }
    for (;;) {
        __syncthreads();
        if (threadIdx.x == 0) {
            sm.block = (int64_t)atomicAdd((unsigned long long *)work.next_block, 1ull);
        }
        __syncthreads();
        const int64_t block = sm.block;
        if (block >= blocks) {
            return;
        }
        solved_block_sm90(sm, count, queries, p, a, saved, work, maps, block, scratch);
    }
}

#endif
