/* SPDX-License-Identifier: MIT
 *
 * Local Linear Attention forward on Hopper: the same passes as local_solved_cuda.cuh, for bf16 dot scores without bias terms and
 * head dimensions 64 and 128, with products of the whole warpgroup (a thread block is one) and bulk copies.
 *
 * Blocks whose rows see many keys take directions and weights in one bf16 part each, which leaves a residual of about 2^-8; the last
 * sweep finds the true one. Where it misses, or the iteration is too slow to get there, the block is listed for a second launch,
 * in two parts. Blocks with few keys take two parts at once, in a launch beside the first. One kernel for both would hold too
 * much in registers for products to run ahead of what is made of them.
 */
#ifndef LOAM_LOCAL_LOCAL_SOLVED_SM90_CUH
#define LOAM_LOCAL_LOCAL_SOLVED_SM90_CUH

#include "src/local/local_stream_sm90.cuh"

/* Keys that rows must see, in head dimensions, for one part to do. */
enum { FEW_KEYS = 6 };

/* One ridge for each channel, in the scratch. */
enum { VECTOR_RIDGE = VECTOR_IMAGE };

/* Below it, in size, lse to base 2 is exact enough that no weight exceeds 1 + 2^-10. */
#define TAME_LSE 4096.0f

/* Thread blocks to a multiprocessor: 105 or 113 KiB of shared memory each, and all registers. */
enum { BLOCKS_SM90 = 2 };

template <int DIM> struct solve_shared_sm90 {
    alignas(1024) __nv_bfloat16 direction[2][DIM * SIDE];
    __nv_bfloat16 slot[ring_slots<DIM>]
                      [DIM * SIDE]; /* after the direction: passes that leave it alone have slots there too */
    __nv_bfloat16 query[DIM * SIDE];
    uint64_t full[ring_slots<DIM>], query_full, wide_full[2][ring_slots<DIM> + 2];
    ring_count wide[2]; /* of the rings of one and two slots more */
    int64_t block;
    int scratch;
    row_block rows;
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
    bool tame;     /* the block's lse are: weights need no bound */

    __device__ __forceinline__ lane_vector vector(int which) const
    {
        return scratch_vector<DIM>(scratch, which);
    }
    __device__ __forceinline__ ring_sm90<DIM> ring() const { return { sm.slot, sm.full }; }
    /* With MORE slots, 1 or 2, in place of the direction's second part, or of both. */
    template <int MORE> __device__ __forceinline__ ring_sm90<DIM, ring_slots<DIM> + MORE> wide_ring() const
    {
        return { &sm.direction[2 - MORE], sm.wide_full[MORE - 1] };
    }
    __device__ __forceinline__ float target(int row, int c) const
    {
        return tile_value(sm.query[swizzled(r.at[row], c)]);
    }
    __device__ __forceinline__ bool all_seen(int j) const { return j >= whole && j + SIDE <= to; }
    __device__ __forceinline__ bool seen(int row, int j) const { return j >= r.lo[row] && j < r.hi[row]; }
};

/* Keeps the compiler from remembering an address for each element from sweep to sweep, for which there are no registers. */
static __device__ __forceinline__ int forget(int x)
{
    asm volatile("" : "+r"(x));
    return x;
}

/* An object in memory: what a kernel knows of its rows, held in registers, would leave the products of a pass too few. */
template <class T> static __device__ __forceinline__ T &in_memory(T &object)
{
    T *at = &object;
    asm volatile("" : "+l"(at)::"memory");
    return *at;
}

/* The system as a pass takes it out of memory. Addresses known to be of shared and global memory make shorter code; solve_shared_sm90
 * is what a block's shared memory begins with. */
template <int DIM>
static __device__ __forceinline__ system_sm90<DIM> known_system(const system_sm90<DIM> &from,
                                                                const row_pair &r, const row_ridge &ridge)
{
    extern __shared__ __align__(1024) unsigned char swizzled_memory[];
    __builtin_assume(__isGlobal(from.scratch));
    system_sm90<DIM> sys = { from.p,
                             from.a,
                             from.x,
                             r,
                             ridge,
                             from.maps,
                             *(solve_shared_sm90<DIM> *)swizzled_memory,
                             from.count,
                             from.scratch,
                             from.scale2,
                             { from.lse2[0], from.lse2[1] },
                             from.whole,
                             from.to,
                             from.fine,
                             from.tame };
    return sys;
}

/* w: the products q . k become p; 0 where a row does not see the key. */
template <int DIM>
static __device__ __forceinline__ void weights_sm90(float (&w)[8][4], const system_sm90<DIM> &sys, int j)
{
#pragma unroll
    for (int n = 0; n < 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            w[n][e] = w[n][e] * sys.scale2 - sys.lse2[e / 2];
        }
    }
    if (!sys.tame || !sys.all_seen(j)) {
#pragma unroll
        for (int n = 0; n < 8; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                w[n][e] = sys.seen(e / 2, j + column_of(n, e)) ? fminf(w[n][e], 0) : -INFINITY;
            }
        }
    }
#pragma unroll
    for (int n = 0; n < 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            w[n][e] = exp2_fast(w[n][e]);
        }
    }
}

/* The pairs that the thread owns of a tile of rows: they are its operands of products with the rows. */
template <int DIM>
static __device__ __forceinline__ void own_pairs(uint32_t (&a)[DIM / 16][4], const __nv_bfloat16 *tile,
                                                 const row_pair &r)
{
#pragma unroll
    for (int k = 0; k < DIM / 16; k++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            a[k][e] = *(const uint32_t *)(tile + swizzled(forget(r.at[e % 2]), column_of(2 * k + e / 2, 0)));
        }
    }
}

/* Queries and directions as operands of a pass: in registers where there are enough, which spares shared memory the reading. */
template <int DIM, bool FINE, bool VALUES> struct score_rows {
    static constexpr bool query_held = DIM == 64 && !FINE, direction_held = !FINE && (DIM == 64 || !VALUES);
    uint32_t query[query_held ? DIM / 16 : 1][4];
    uint32_t direction[direction_held ? (FINE ? 2 : 1) : 1][direction_held ? DIM / 16 : 1][4];

    __device__ __forceinline__ void load_query(const system_sm90<DIM> &sys)
    {
        if constexpr (query_held) {
            own_pairs<DIM>(query, sys.sm.query, sys.r);
        }
    }
    __device__ __forceinline__ void load(const system_sm90<DIM> &sys)
    {
        load_query(sys);
        if constexpr (direction_held) {
            own_pairs<DIM>(direction[0], sys.sm.direction[0], sys.r);
            if constexpr (FINE) {
                own_pairs<DIM>(direction[1], sys.sm.direction[1], sys.r);
            }
        }
    }
    __device__ __forceinline__ void query_keys(float (&s)[8][4], const system_sm90<DIM> &sys,
                                               const __nv_bfloat16 *keys) const
    {
        if constexpr (query_held) {
            multiply_rows<DIM>(s, query, keys, false);
        } else {
            multiply_rows<DIM>(s, sys.sm.query, keys, false);
        }
    }
    __device__ __forceinline__ void direction_keys(float (&u)[8][4], const system_sm90<DIM> &sys,
                                                   const __nv_bfloat16 *keys) const
    {
        if constexpr (direction_held) {
            if constexpr (FINE) {
                multiply_rows<DIM>(u, direction[1], keys, false);
            }
            multiply_rows<DIM>(u, direction[0], keys, FINE);
        } else {
            if constexpr (FINE) {
                multiply_rows<DIM>(u, sys.sm.direction[1], keys, false);
            }
            multiply_rows<DIM>(u, sys.sm.direction[0], keys, FINE);
        }
    }
};

/* w <- p (u - centre), from w = q . k and u = direction . k; its row sums (this thread's columns) go to total */
template <int DIM>
static __device__ __forceinline__ void centre_weights(float (&w)[8][4], float (&u)[8][4],
                                                      const system_sm90<DIM> &sys, int j,
                                                      const float (&centre)[2], float (&total)[2])
{
    products_arrived(w);
    products_arrived(u);
    weights_sm90(w, sys, j);
#pragma unroll
    for (int n = 0; n < 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            w[n][e] *= u[n][e] - centre[e / 2];
            total[e / 2] += w[n][e];
        }
    }
    products_arrived(w); /* made here, and not where they are used: beyond the next wait */
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
    centre_weights(w, u, sys, t.j, centre, total);
}

/* Zeros that are there before the first product of a pass is issued: set any later they would hold up all products of the pass. */
template <int DIM> static __device__ __forceinline__ void clear_sums(float (&y)[DIM / SIDE][8][4])
{
#pragma unroll
    for (int n = 0; n < DIM / SIDE; n++) {
        clear(y[n]);
    }
    products_arrived(y);
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

/* Products of an image with its direction, with itself of the direction, and with the mean key. */
struct image_products {
    float curvature[2], size[2], mean[2];
};

/* y becomes (Cov + Lambda) times the direction, from y = sum f k and total = sum f (this thread's columns). */
template <bool FINE, int DIM>
static __device__ __forceinline__ image_products finish_image(float (&y)[DIM / SIDE][8][4],
                                                              const system_sm90<DIM> &sys, float (&total)[2])
{
    const lane_vector kbar = sys.vector(VECTOR_KBAR), ridge = sys.vector(VECTOR_RIDGE);
    image_products d = {};
    total[0] = quad_sum(total[0]), total[1] = quad_sum(total[1]);
    if (sys.ridge.channels) {
#pragma unroll
        for (int n = 0; n < DIM / 8; n++) {
#pragma unroll
            for (int e = 0; e < 4; e += 2) {
                const float2 p = direction_pair<FINE>(sys, n, e);
                y[n / 8][n % 8][e] += ridge.get(4 * n + e) * p.x;
                y[n / 8][n % 8][e + 1] += ridge.get(4 * n + e + 1) * p.y;
            }
        }
    }
    const float common[2] = { sys.ridge.channels ? 0 : sys.ridge.number[0],
                              sys.ridge.channels ? 0 : sys.ridge.number[1] };
#pragma unroll
    for (int n = 0; n < DIM / 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
            const float2 p = direction_pair<FINE>(sys, n, e);
            const float mean[2] = { kbar.get(4 * n + e), kbar.get(4 * n + e + 1) };
            const int row = e / 2;
            float *image = &y[n / 8][n % 8][e];
            image[0] += common[row] * p.x - total[row] * mean[0];
            image[1] += common[row] * p.y - total[row] * mean[1];
            d.curvature[row] += p.x * image[0] + p.y * image[1];
            d.size[row] += p.x * p.x + p.y * p.y;
            d.mean[row] += mean[0] * image[0] + mean[1] * image[1];
        }
    }
#pragma unroll
    for (int row = 0; row < 2; row++) {
        d.curvature[row] = quad_sum(d.curvature[row]), d.size[row] = quad_sum(d.size[row]);
        d.mean[row] = quad_sum(d.mean[row]);
    }
    return d;
}

/* y = (Cov + Lambda) times the direction. centre: direction . kbar, which rounding may have moved: what f is off by, the mean
 * key times the sum of f takes away again. */
template <bool FINE, int DIM>
static __device__ __forceinline__ image_products image_sm90(float (&y)[DIM / SIDE][8][4],
                                                            const system_sm90<DIM> &sys,
                                                            const float (&centre)[2])
{
    float total[2] = { 0, 0 }, f[8][4], u[8][4];
    weights_operand<FINE ? 2 : 1> w;
    score_rows<DIM, FINE, false> rows;
    rows.load(sys);
    clear_sums<DIM>(y);
    stream_steps_sm90<DIM, false, true>(
        sys.ring(), sys.count, sys.maps, sys.x,
        [&](const tiles_at &t) {
            rows.query_keys(f, sys, t.keys);
            rows.direction_keys(u, sys, t.keys);
        },
        [&](const tiles_at &t) { centre_weights(f, u, sys, t.j, centre, total); },
        [&]() {
            products_arrived(y);
            split_weights(w, f);
        },
        [&](const tiles_at &t) {
            if (FINE) {
                multiply_weights<DIM>(y, w.part[FINE], t.keys);
            }
            multiply_weights<DIM>(y, w.part[0], t.keys);
        });
    products_arrived(y);
    return finish_image<FINE>(y, sys, total);
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

/* A ridge of its own for each channel, where the problem has that. */
template <int DIM> static __device__ __forceinline__ void put_ridge(const system_sm90<DIM> &sys)
{
    const lane_vector ridge = sys.vector(VECTOR_RIDGE);
    if (sys.ridge.channels) {
#pragma unroll 1
        for (int n = 0; n < DIM / 2; n++) {
            ridge.put(n, ridge_at(sys.ridge, sys.p, sys.a, sys.x, sys.r, n / 2 % 2, column_of(n / 4, n % 4)));
        }
    }
}

/* Does the row go on? To where it is accepted too, by the condition that it met, with a margin for rounding. */
static __device__ __forceinline__ bool unsolved(const cg_rows &k, const cg_tolerance &tolerance, int row)
{
    const float sure = 0.64f * tolerance.accept * tolerance.accept;
    return k.rr[row] > tolerance.stop * tolerance.stop * k.bb[row] ||
           k.rr[row] * k.most[row] > sure * k.bb[row] * k.least[row];
}

/* In one part, a row whose residual is above START PACE^n of b after n iterations would not be there in time. */
#define START 1.6f
#define PACE 0.65f

/* Conjugate gradients from x and its residual r, which both lie in the scratch, for the rows that are live. */
template <bool FINE, int DIM>
static __device__ __forceinline__ void cg_run(const system_sm90<DIM> &outer, cg_rows &rows,
                                              const cg_tolerance &tolerance)
{
    const row_pair r = outer.r;
    const row_ridge ridge = outer.ridge;
    const system_sm90<DIM> sys = known_system(outer, r, ridge);
    cg_rows k = rows;
    const lane_vector x = sys.vector(VECTOR_X), residual = sys.vector(VECTOR_R);
    float y[DIM / SIDE][8][4], centre[2], turn[2] = { 0, 0 }, rest_mean[2];
#pragma unroll
    for (int n = 0; n < DIM / 2; n++) {
        y[n / 32][n / 4 % 8][n % 4] = residual.get(n);
    }
    put_ridge(sys);
    turn_direction<FINE>(sys, y, turn, centre);
    rest_mean[0] = centre[0], rest_mean[1] = centre[1];
    float pace = START * START;
    for (int count = 0; count < tolerance.most && __syncthreads_or(k.live[0] || k.live[1]); count++) {
        float next[2] = { 0, 0 }, step[2];
        const image_products d = image_sm90<FINE>(y, sys, centre);
#pragma unroll
        for (int row = 0; row < 2; row++) {
            k.iterations[row] += k.live[row];
            k.live[row] = k.live[row] && d.curvature[row] > 0;
            step[row] = k.live[row] ? k.rr[row] / d.curvature[row] : 0;
            if (k.live[row]) {
                k.least[row] = fminf(k.least[row], d.curvature[row] / d.size[row]);
                k.most[row] = fmaxf(k.most[row], d.curvature[row] / d.size[row]);
            }
        }
        float old[DIM / 2]; /* all loads before any store */
#pragma unroll
        for (int n = 0; n < DIM / 2; n++) {
            old[n] = residual.get(n);
        }
#pragma unroll
        for (int n = 0; n < DIM / 2; n++) {
            const int row = n / 2 % 2;
            float &rest = y[n / 32][n / 4 % 8][n % 4];
            rest = old[n] - step[row] * rest;
            next[row] += rest * rest;
            old[n] = x.get(n);
        }
#pragma unroll
        for (int n = 0; n < DIM / 2; n += 2) {
            const float2 p = direction_pair<FINE>(sys, n / 4, n % 4);
            x.put(n, old[n] + step[n / 2 % 2] * p.x), x.put(n + 1, old[n + 1] + step[n / 2 % 2] * p.y);
            residual.put(n, y[n / 32][n / 4 % 8][n % 4]),
                residual.put(n + 1, y[n / 32][n / 4 % 8][n % 4 + 1]);
        }
#pragma unroll
        for (int row = 0; row < 2; row++) {
            next[row] = quad_sum(next[row]);
            turn[row] = k.live[row] ? next[row] / k.rr[row] : 0;
            k.rr[row] = k.live[row] ? next[row] : k.rr[row];
            k.live[row] = k.live[row] && unsolved(k, tolerance, row);
            rest_mean[row] -= step[row] * d.mean[row];
            centre[row] = rest_mean[row] + turn[row] * centre[row];
        }
#pragma unroll
        for (int n = 0; n < DIM / 8; n++) {
#pragma unroll
            for (int e = 0; e < 4; e += 2) {
                float2 p = direction_pair<FINE>(sys, n, e);
                p.x = y[n / 8][n % 8][e] + turn[e / 2] * p.x,
                p.y = y[n / 8][n % 8][e + 1] + turn[e / 2] * p.y;
                set_direction_pair<FINE>(sys, n, e, p);
            }
        }
        fence_async_proxy();
        pace *= PACE * PACE;
        const bool late = (k.live[0] && k.rr[0] > pace * k.bb[0]) || (k.live[1] && k.rr[1] > pace * k.bb[1]);
        if (!FINE && count >= 2 && __syncthreads_or(late)) {
            break;
        }
    }
    rows = k;
}

/* A pass over keys and values, on a ring of MORE slots than the solver's: what lay there is gone. */
template <int MORE, bool AHEAD, int DIM, class SCORE, class WEIGH, class PACK, class GATHER>
static __device__ __forceinline__ void stream_values_sm90(const system_sm90<DIM> &sys, SCORE score,
                                                          WEIGH weigh, PACK pack, GATHER gather)
{
    if constexpr (MORE == 0) {
        stream_steps_sm90<DIM, true, AHEAD>(sys.ring(), sys.count, sys.maps, sys.x, score, weigh, pack,
                                            gather);
    } else {
        ring_count count = sys.sm.wide[MORE - 1];
        fence_async_proxy();
        __syncthreads();
        stream_steps_sm90<DIM, true, AHEAD>(sys.template wide_ring<MORE>(), count, sys.maps, sys.x, score,
                                            weigh, pack, gather);
        if (threadIdx.x == 0) {
            sys.sm.wide[MORE - 1] = count;
        }
    }
}

/* Means under the weights into the scratch; most: the largest p. */
template <bool FINE, int DIM>
static __device__ __forceinline__ void means_sm90(system_sm90<DIM> &outer, float (&lse)[2], float (&most)[2])
{
    const row_pair r = outer.r;
    const row_ridge ridge = outer.ridge;
    system_sm90<DIM> sys = known_system(outer, r, ridge);
    constexpr int parts = FINE ? 2 : 1;
    float k[DIM / SIDE][8][4], v[DIM / SIDE][8][4], s[8][4];
    float m[2] = { -INFINITY, -INFINITY }, omega[2] = { 0, 0 }, sum[2] = { 0, 0 }, keep[2];
    weights_operand<parts> a;
    score_rows<DIM, FINE, true> rows;
    rows.load_query(sys);
    clear_sums<DIM>(k);
    clear_sums<DIM>(v);
    stream_values_sm90<FINE || DIM == 64 ? 0 : 2, true>(
        sys, [&](const tiles_at &t) { rows.query_keys(s, sys, t.keys); },
        [&](const tiles_at &t) {
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
                const float base = finite_or_zero(top);
                keep[row] = exp2_fast(m[row] - base);
                m[row] = top, omega[row] *= keep[row], sum[row] *= keep[row];
#pragma unroll
                for (int n = 0; n < 8; n++) {
#pragma unroll
                    for (int e = 2 * row; e < 2 * row + 2; e++) {
                        s[n][e] = exp2_fast(s[n][e] - base);
                        omega[row] += s[n][e];
                    }
                }
            }
            products_arrived(s);
        },
        [&]() {
            products_arrived(k);
            products_arrived(v);
            split_weights(a, s);
#pragma unroll
            for (int step = 0; step < 4; step++) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
#pragma unroll
                    for (int part = 0; part < parts; part++) {
                        const uint32_t pair = a.part[part][step][e];
                        sum[e % 2] += __uint_as_float(pair << 16) + __uint_as_float(pair & 0xffff0000u);
                    }
                }
            }
            if (__any_sync(0xffffffffu, keep[0] != 1 || keep[1] != 1)) {
#pragma unroll
                for (int n = 0; n < DIM / 8; n++) {
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        k[n / 8][n % 8][e] *= keep[e / 2], v[n / 8][n % 8][e] *= keep[e / 2];
                    }
                }
            }
        },
        [&](const tiles_at &t) {
            if (FINE) {
                multiply_weights<DIM>(k, a.part[FINE], t.keys);
            }
            multiply_weights<DIM>(k, a.part[0], t.keys);
            multiply_weights<DIM>(v, a.part[0], t.values);
        });
    products_arrived(k);
    products_arrived(v);
    const lane_vector kbar = sys.vector(VECTOR_KBAR), vbar = sys.vector(VECTOR_VBAR);
    sys.tame = true;
#pragma unroll
    for (int row = 0; row < 2; row++) {
        omega[row] = quad_sum(omega[row]), sum[row] = quad_sum(sum[row]);
        const bool some = omega[row] > 0;
        const float inverse = sum[row] > 0 ? 1 / sum[row] : 0;
        sys.lse2[row] = some ? m[row] + log2f(omega[row]) : 0;
        sys.tame = sys.tame && fabsf(sys.lse2[row]) < TAME_LSE;
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
    outer.tame = __syncthreads_and(sys.tame);
    outer.lse2[0] = sys.lse2[0], outer.lse2[1] = sys.lse2[1];
}

/* b = kbar - q, scaled to about 1; x = 0 and r = b. */
template <int DIM>
static __device__ __forceinline__ void begin_sm90(const system_sm90<DIM> &outer, cg_rows &k,
                                                  const bool (&wanted)[2])
{
    const row_pair r = outer.r;
    const row_ridge ridge = outer.ridge;
    const system_sm90<DIM> sys = known_system(outer, r, ridge);
    const lane_vector x = sys.vector(VECTOR_X), rest = sys.vector(VECTOR_R), b = sys.vector(VECTOR_B),
                      kbar = sys.vector(VECTOR_KBAR);
    float y[DIM / 2], top[2] = { 0, 0 }, bb[2] = { 0, 0 };
#pragma unroll
    for (int n = 0; n < DIM / 2; n++) {
        const int row = n / 2 % 2;
        y[n] = sys.r.real[row] ? kbar.get(n) - sys.target(row, column_of(n / 4, n % 4)) : 0;
        top[row] = fmaxf(top[row], fabsf(y[n]));
    }
    k.unit[0] = magnitude(quad_max(top[0])), k.unit[1] = magnitude(quad_max(top[1]));
    const float inverse[2] = { 1 / k.unit[0], 1 / k.unit[1] };
#pragma unroll
    for (int n = 0; n < DIM / 2; n++) {
        const int row = n / 2 % 2;
        y[n] *= inverse[row];
        b.put(n, y[n]), rest.put(n, y[n]), x.put(n, 0);
        bb[row] += y[n] * y[n];
    }
#pragma unroll
    for (int row = 0; row < 2; row++) {
        k.bb[row] = k.rr[row] = quad_sum(bb[row]);
        k.live[row] = wanted[row] && k.bb[row] > 0 && k.bb[row] < INFINITY;
        k.least[row] = INFINITY, k.most[row] = 0;
        k.iterations[row] = 0;
    }
}

/* Two neighbours of a row of bf16. */
static __device__ __forceinline__ void store_bf16_pair(__nv_bfloat16 *to, float x, float y)
{
    const __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
    if ((uintptr_t)to % 4 == 0) {
        *(__nv_bfloat162 *)to = pair;
    } else {
        to[0] = pair.x, to[1] = pair.y;
    }
}

/* rho, and what backward wants of the real rows. */
template <bool FINE, int DIM>
static __device__ __forceinline__ void put_rows(const system_sm90<DIM> &sys, const cg_rows &k,
                                                const local_saved &saved)
{
    const loam_args &a = sys.a;
    const lane_vector vbar = sys.vector(VECTOR_VBAR), kbar = sys.vector(VECTOR_KBAR);
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const int64_t i = sys.x.i0 + sys.r.at[row], line = local_row(&sys.p, &sys.x.s, sys.x.h, i);
        const int64_t to = LOCAL_AT(a.rho, sys.x.s.b, sys.x.h, sys.x.s.q0 + i);
        if (!sys.r.real[row]) {
            continue;
        }
#pragma unroll 4
        for (int n = 0; n < DIM / 8; n++) {
            const float2 x = direction_pair<FINE>(sys, n, 2 * row);
            const float2 rho = { k.unit[row] * x.x, k.unit[row] * x.y };
            const int c = column_of(n, 0), at = 4 * n + 2 * row;
            if (a.rho.data) {
                ((float *)a.rho.data)[to + c] = rho.x, ((float *)a.rho.data)[to + c + 1] = rho.y;
            }
            if (a.saved) {
                *(float2 *)((float *)saved.rho + line * DIM + c) = rho;
                *(float2 *)((float *)saved.kbar + line * DIM + c) = { kbar.get(at), kbar.get(at + 1) };
                *(float2 *)((float *)saved.vbar + line * DIM + c) = { vbar.get(at), vbar.get(at + 1) };
            }
        }
    }
}

/* o, rho, saved of the real rows; error2: the square of the residual of each. */
template <bool FINE, int DIM>
static __device__ __forceinline__ void lines_sm90(const system_sm90<DIM> &outer, const cg_rows &k,
                                                  const local_saved &saved, float (&error)[2],
                                                  bool (&finite)[2])
{
    const row_pair r = outer.r;
    const row_ridge ridge = outer.ridge;
    const system_sm90<DIM> sys = known_system(outer, r, ridge);
    float error2[2];
    const loam_args &a = sys.a;
    float y[DIM / SIDE][8][4], o[DIM / SIDE][8][4], total[2] = { 0, 0 }, centre[2];
    float f[8][4], u[8][4];
    weights_operand<FINE ? 2 : 1> w;
    score_rows<DIM, FINE, true> rows;
    {
        const lane_vector x = sys.vector(VECTOR_X);
        const float none[2] = { 0, 0 };
#pragma unroll
        for (int n = 0; n < DIM / 2; n++) {
            y[n / 32][n / 4 % 8][n % 4] = x.get(n);
        }
        turn_direction<FINE>(sys, y, none, centre);
    }
    rows.load(sys);
    clear_sums<DIM>(y);
    clear_sums<DIM>(o);
    stream_values_sm90<FINE || DIM == 64 ? 0 : 1, false>(
        sys,
        [&](const tiles_at &t) {
            rows.query_keys(f, sys, t.keys);
            rows.direction_keys(u, sys, t.keys);
        },
        [&](const tiles_at &t) { centre_weights(f, u, sys, t.j, centre, total); },
        [&]() {
            products_arrived(y);
            products_arrived(o);
            split_weights(w, f);
        },
        [&](const tiles_at &t) {
            if (FINE) {
                multiply_weights<DIM>(y, w.part[FINE], t.keys);
                multiply_weights<DIM>(o, w.part[FINE], t.values);
            }
            multiply_weights<DIM>(y, w.part[0], t.keys);
            multiply_weights<DIM>(o, w.part[0], t.values);
        });
    products_arrived(y);
    products_arrived(o);
    finish_image<FINE>(y, sys, total);
    const lane_vector b = sys.vector(VECTOR_B), vbar = sys.vector(VECTOR_VBAR);
    float bad[2] = { 0, 0 };
    __nv_bfloat16 *to[2];
    error2[0] = error2[1] = 0;
#pragma unroll
    for (int row = 0; row < 2; row++) {
        to[row] = (__nv_bfloat16 *)a.o.data +
                  LOCAL_AT(a.o, sys.x.s.b, sys.x.h, sys.x.s.q0 + sys.x.i0 + sys.r.at[row]);
    }
#pragma unroll
    for (int n = 0; n < DIM / 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
            const int row = e / 2, at = 4 * n + e;
            float out[2];
#pragma unroll
            for (int s = 0; s < 2; s++) {
                const float rest = b.get(at + s) - y[n / 8][n % 8][e + s], mean = vbar.get(at + s);
                error2[row] += rest * rest;
                out[s] = mean - k.unit[row] * (o[n / 8][n % 8][e + s] - total[row] * mean);
                bad[row] += out[s] * 0;
            }
            if (sys.r.real[row]) {
                store_bf16_pair(to[row] + column_of(n, 0), out[0], out[1]);
            }
        }
    }
    if (a.rho.data || a.saved) {
        put_rows<FINE>(sys, k, saved);
    }
    error[0] = quad_sum(error2[0]), error[1] = quad_sum(error2[1]);
    finite[0] = quad_sum(bad[0]) == 0, finite[1] = quad_sum(bad[1]) == 0;
}

/* All rows go on from x, with its residual as exact products see it. What the cheap ones met says little of the condition. */
template <int DIM>
static __device__ __forceinline__ void cg_resume(const system_sm90<DIM> &outer, cg_rows &k,
                                                 const bool (&wanted)[2], float stop)
{
    const row_pair r = outer.r;
    const row_ridge ridge = outer.ridge;
    const system_sm90<DIM> sys = known_system(outer, r, ridge);
    const lane_vector x = sys.vector(VECTOR_X), residual = sys.vector(VECTOR_R), b = sys.vector(VECTOR_B);
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
        residual.put(n, rest);
        error2[n / 2 % 2] += rest * rest;
    }
#pragma unroll
    for (int row = 0; row < 2; row++) {
        k.rr[row] = quad_sum(error2[row]);
        k.live[row] = wanted[row] && k.rr[row] > stop * stop * k.bb[row] && k.rr[row] < INFINITY;
        k.least[row] = INFINITY, k.most[row] = 0;
    }
}

/* What every block of a launch shares. */
struct solve_launch {
    const loam_problem &p;
    const loam_args &a;
    const local_saved &saved;
    const solve_work &work;
    const maps_sm90 &maps;
};

/* The rows of the block are solved in one part or, FINE, in two; false where one part was not enough. */
template <bool FINE, int DIM>
static __device__ __forceinline__ bool solved_block_sm90(solve_shared_sm90<DIM> &sm, ring_count &count,
                                                         unsigned &queries, const solve_launch &all,
                                                         float *scratch)
{
    const loam_problem &p = all.p;
    const loam_args &a = all.a;
    const row_block &x = sm.rows;
    row_pair r_storage = row_pair_of(p, x);
    const row_pair &r = in_memory(r_storage);
    if (threadIdx.x == 0) {
        barrier_expect(&sm.query_full, DIM * SIDE * 2);
        for (int c = 0; c < DIM; c += SIDE) {
            copy_box(sm.query + c * SIDE, &all.maps.q, &sm.query_full, c, (int)(x.s.q0 + x.i0), (int)x.h,
                     (int)x.s.b);
        }
    }
    barrier_wait(&sm.query_full, queries++ % 2);

    int64_t hi, first, unused;
    local_visible(&p, &x.s, x.i0, &unused, &hi);
    local_visible(&p, &x.s, x.i0 + x.rows - 1, &first, &unused);
    row_ridge ridge_storage = {};
    row_ridge &ridge = in_memory(ridge_storage);
    system_sm90<DIM> sys_storage = { p,
                                     a,
                                     x,
                                     r,
                                     ridge,
                                     all.maps,
                                     sm,
                                     count,
                                     scratch,
                                     (float)(p.scale * 1.4426950408889634),
                                     { 0, 0 },
                                     (int)first,
                                     x.rows < ROWS ? 0 : (int)hi,
                                     FINE,
                                     false };
    system_sm90<DIM> &sys = in_memory(sys_storage);
    float lse_storage[2], most[2], error2[2];
    float(&lse)[2] = in_memory(lse_storage);
    bool finite[2], good[2], missed = false;
    means_sm90<FINE>(sys, lse, most);
    const bool by_max = p.ridge_unit == LOAM_RIDGE_MAX;
    const float unit[2] = { by_max ? most[0] : 1, by_max ? most[1] : 1 };
    ridge = row_ridge_of(p, a, x, r, unit);
    /* Gradients take more of the probe than o does. */
    const cg_tolerance tolerance = FINE ? cg_tolerance{ a.saved ? 3e-4f : 1.2e-3f, 1e-2f, 128 }
                                        : cg_tolerance{ 6e-3f, 1.8e-2f, 8 };
    const bool wanted[2] = { r.lo[0] < r.hi[0] && ridge.least[0] > 0,
                             r.lo[1] < r.hi[1] && ridge.least[1] > 0 };
    cg_rows k_storage;
    cg_rows &k = in_memory(k_storage);
    begin_sm90(sys, k, wanted);
    cg_run<FINE>(sys, k, tolerance);
    if (!FINE) {
        const float far = tolerance.accept * tolerance.accept;
        missed = (k.live[0] && k.rr[0] > far * k.bb[0]) || (k.live[1] && k.rr[1] > far * k.bb[1]);
        if (__syncthreads_or(missed)) {
            return false;
        }
    }
    lines_sm90<FINE>(sys, k, all.saved, error2, finite);
    float residual[2];
#pragma unroll
    for (int row = 0; row < 2; row++) {
        good[row] = accepted(k, tolerance, row, error2[row], &residual[row]) && finite[row] &&
                    ridge.least[row] > BLOCK_LEAST_RIDGE * k.most[row];
        missed = missed || (wanted[row] && !good[row] && finite[row]);
    }
    if (!FINE && __syncthreads_or(missed)) {
        return false;
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
            const hard_row hard = { sm.block, r.at[row], k.iterations[row] };
            all.work.hard[atomicAdd(all.work.hard_count, 1ull)] = hard;
        }
        put_info(a, x, i, info);
        if (a.lse.data) {
            ((float *)a.lse.data)[LOCAL_AT(a.lse, x.s.b, x.h, x.s.q0 + i)] = lse[row];
        }
        if (a.saved) {
            ((float *)all.saved.lse)[local_row(&p, &x.s, x.h, i)] = lse[row];
        }
    }
    return true;
}

/* Do the block's rows see too few keys for one part? */
template <int DIM> static __device__ __forceinline__ bool sees_few(const loam_problem &p, const row_block &x)
{
    int64_t lo, hi;
    local_visible(&p, &x.s, x.i0, &lo, &hi);
    return hi - lo < FEW_KEYS * DIM;
}

/* The next block for this launch, and its rows; -1 where there is none. LISTED: of those that one part was not enough for. */
template <bool FINE, bool LISTED, int DIM>
static __device__ __forceinline__ int64_t take_block(row_block &rows, const solve_launch &all, int64_t blocks)
{
    unsigned long long *counter = (unsigned long long *)(LISTED ? all.work.next_listed
                                                         : FINE ? all.work.next_few
                                                                : all.work.next_block);
    const int64_t count = LISTED ? (int64_t)*all.work.listed_count : blocks;
    for (;;) {
        const int64_t n = (int64_t)atomicAdd(counter, 1ull);
        if (n >= count) {
            return -1;
        }
        const int64_t block = LISTED ? all.work.listed[n] : n;
        rows = row_block_at(all.p, all.a, block);
        if (rows.rows > 0 && (LISTED || sees_few<DIM>(all.p, rows) == FINE)) {
            return block;
        }
    }
}

/* The blocks with few keys run while the others begin: a thread block takes any scratch that is free. */
static __device__ __forceinline__ int take_scratch(const solve_work &work)
{
    int n = (int)(blockIdx.x % work.scratches);
    while (atomicCAS(&work.scratch_taken[n], 0, 1) != 0) {
        n = n + 1 < (int)work.scratches ? n + 1 : 0;
    }
    __threadfence();
    return n;
}

template <bool FINE, bool LISTED, int DIM>
__global__ void __launch_bounds__(THREADS, BLOCKS_SM90)
    solved_kernel_sm90(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                       const local_saved saved, const solve_work work, const int64_t blocks,
                       const __grid_constant__ maps_sm90 maps)
{
    extern __shared__ __align__(1024) unsigned char swizzled_memory[];
    solve_shared_sm90<DIM> &sm = *(solve_shared_sm90<DIM> *)swizzled_memory;
    const solve_launch all = { p, a, saved, work, maps };
    ring_count count = { 0 };
    unsigned queries = 0;
    if (FINE && !LISTED) {
        next_launch_may_begin();
    }
    if (threadIdx.x == 0) {
        for (int n = 0; n < (int)ring_slots<DIM>; n++) {
            barrier_init(&sm.full[n], 1);
        }
        for (int n = 0; n < (int)ring_slots<DIM> + 2; n++) {
            barrier_init(&sm.wide_full[0][n], 1);
            barrier_init(&sm.wide_full[1][n], 1);
        }
        sm.wide[0].used = sm.wide[1].used = 0;
        barrier_init(&sm.query_full, 1);
        fence_async_proxy();
        sm.scratch = take_scratch(work);
    }
    for (;;) {
        __syncthreads();
        if (threadIdx.x == 0) {
            sm.block = take_block<FINE, LISTED, DIM>(sm.rows, all, blocks);
        }
        __syncthreads();
        if (sm.block < 0) {
            break;
        }
        float *scratch = work.scratch + (int64_t)sm.scratch * VECTORS * (DIM / 2) * THREADS;
        const bool solved = solved_block_sm90<FINE>(sm, count, queries, all, scratch);
        if (!solved && threadIdx.x == 0) {
            work.listed[atomicAdd(work.listed_count, 1ull)] = (int32_t)sm.block;
        }
    }
    if (threadIdx.x == 0) {
        __threadfence();
        atomicExch(&work.scratch_taken[sm.scratch], 0);
    }
    if (!FINE) {
        await_launch_before();
    }
}

#endif
