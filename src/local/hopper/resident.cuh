/* SPDX-License-Identifier: MIT
 *
 * Blocks of 64 rows that see few keys, at 64 dimensions: all keys, the weights of all pairs and the vectors
 * of conjugate gradients stay in the multiprocessor from the scores to the output. A warp solves its 16 rows
 * by itself: it waits for no other one between iterations, and leaves out keys that none of its rows sees.
 *
 * Numbers are as in local/hopper/solve.cuh: fp16 keys and values in units of their head, directions and
 * weights in two fp16 parts, weights times a power of two for each row. Keys go in groups of 16, the depth of
 * a product: weights of a group become operands as they are made, so that no more than a group's are in
 * registers.
 */
#ifndef LOAM_LOCAL_HOPPER_RESIDENT_CUH
#define LOAM_LOCAL_HOPPER_RESIDENT_CUH

#include "src/local/hopper/claim.cuh"
#include "src/local/hopper/conjugate.cuh"
#include "src/local/hopper/forward_rows.cuh"

enum { GROUP = 16, FRAGMENTS = TILE_SIDE / 8 };

/* One launch has blocks with one tile, with three thread blocks on a multiprocessor, another those with two:
 * the bits of a row depend on the keys that its block sees, not on the problem. */
template <int TILES> constexpr int resident_blocks = TILES == 1 ? 3 : 2;

/* ------------------------------------------------------------------ shared memory */

template <int TILES> struct resident_shared {
    alignas(1024) __half keys[TILES * TILE_ELEMENTS];
    __half values[TILES * TILE_ELEMENTS];
    __half rows[TILE_ELEMENTS];                 /* queries, or output gradients */
    float4 x[FRAGMENTS * THREADS];              /* the solution, [fragment][thread] */
    float4 kbar[FRAGMENTS * THREADS];           /* likewise */
    float4 weight[TILES * FRAGMENTS * THREADS]; /* p times its power of two */
    uint64_t full;
    int64_t block, listed;
};

/* Fragments of 8 columns of the thread's two rows, in shared memory. */
struct shared_vector {
    float4 *at;

    __device__ __forceinline__ float4 &fragment(int n) const { return at[n * THREADS]; }
    __device__ __forceinline__ float get(int element) const
    {
        return ((const float *)(at + element / 4 * THREADS))[element % 4];
    }
    __device__ __forceinline__ void load(float (&x)[4], int n) const
    {
        const float4 all = fragment(n);
        x[0] = all.x, x[1] = all.y, x[2] = all.z, x[3] = all.w;
    }
    __device__ __forceinline__ void store(int n, const float (&x)[4]) const
    {
        fragment(n) = make_float4(x[0], x[1], x[2], x[3]);
    }
};

/* The systems (Cov + Lambda) x = b of a block of rows. */
template <int TILES> struct resident_system {
    const loam_problem &p;
    const loam_args &a;
    const row_block &block;
    resident_shared<TILES> &sm;
    row_pair r;
    row_ridge ridge;
    half_units units;
    float weight_log2[2]; /* weights are p times two to this */
    int groups;           /* of keys that the warp's rows see */

    __device__ __forceinline__ shared_vector x() const { return { sm.x + threadIdx.x }; }
    __device__ __forceinline__ shared_vector kbar() const { return { sm.kbar + threadIdx.x }; }
    __device__ __forceinline__ shared_vector weight() const { return { sm.weight + threadIdx.x }; }
    /* The key of element e of fragment n of the weights. */
    __device__ __forceinline__ int key(int n, int e) const { return block.first + column_of(n, e); }
    __device__ __forceinline__ bool seen(int row, int j) const { return j >= r.lo[row] && j < r.hi[row]; }
};

/* The block's rows, and how many groups of keys the warp's see. */
template <int TILES>
static __device__ __forceinline__ resident_system<TILES> resident_system_of(const loam_problem &p,
                                                                            const loam_args &a,
                                                                            const row_block &block,
                                                                            resident_shared<TILES> &sm,
                                                                            const half_units &units)
{
    resident_system<TILES> sys = { p, a, block, sm, row_pair_of(p, block), {}, units, { 0, 0 }, 0 };
    const int last = max(sys.r.hi[0], sys.r.hi[1]) - block.first;
    sys.groups = (__reduce_max_sync(0xffffffffu, max(last, 0)) + GROUP - 1) / GROUP;
    return sys;
}

/* Is the block for the launch for blocks with TILES tiles of keys? */
template <int TILES>
static __device__ __forceinline__ bool takes_block(const loam_problem &p, const row_block &block)
{
    const int tiles = key_tiles(block);
    return block.rows > 0 && is_resident<TILE_SIDE>(p, block) &&
           (tiles == TILES || (TILES == 1 && tiles == 0));
}

/* One thread asks for the tiles of keys and values, and for two tiles of rows; all wait for them, and zeros
 * take the place of keys beyond the sequence. */
template <int TILES>
static __device__ __forceinline__ void load_block(resident_shared<TILES> &sm, const qkv_maps &maps,
                                                  const row_block &block, const CUtensorMap *second)
{
    const int tiles = key_tiles(block);
    if (threadIdx.x == 0) {
        const int row = (int)(block.s.q0 + block.i0), b = (int)block.s.b;
        barrier_init(&sm.full, 1);
        fence_async_proxy();
        barrier_expect(&sm.full, (unsigned)(2 * tiles + 1 + (second != NULL)) * TILE_ELEMENTS * 2);
        load_tile<TILE_SIDE>(sm.rows, maps.q, &sm.full, row, (int)block.h, b);
        if (second) load_tile<TILE_SIDE>((__half *)sm.x, *second, &sm.full, row, (int)block.h, b);
        for (int n = 0; n < tiles; n++) {
            const int j = (int)block.s.k0 + block.first + n * TILE_SIDE;
            load_tile<TILE_SIDE>(sm.keys + n * TILE_ELEMENTS, maps.k, &sm.full, j, (int)block.h_kv, b);
            load_tile<TILE_SIDE>(sm.values + n * TILE_ELEMENTS, maps.v, &sm.full, j, (int)block.h_kv, b);
        }
    }
    __syncthreads();
    barrier_wait(&sm.full, 0);
    for (int n = 0; n < tiles; n++) {
        const int left = (int)block.s.nk - block.first - n * TILE_SIDE;
        if (left >= TILE_SIDE) continue;
        clear_tail_block<TILE_SIDE>(sm.keys + n * TILE_ELEMENTS, left);
        clear_tail_block<TILE_SIDE>(sm.values + n * TILE_ELEMENTS, left);
    }
}

/* ------------------------------------------------------------------ products of a warp's rows */

/* Rows as operand A: in part [n], step [k] of 16 channels. */
template <int PARTS> struct row_operand {
    uint32_t part[PARTS][TILE_SIDE / 16][4];

    /* Elements e and e + 1 (e = 0 or 2) of fragment n. */
    __device__ __forceinline__ float2 pair(int n, int e) const
    {
        float2 out = { 0, 0 };
#pragma unroll
        for (int at = PARTS - 1; at >= 0; at--) {
            const float2 x = unpack_pair<__half>(part[at][n / 2][n % 2 * 2 + e / 2]);
            out.x += x.x, out.y += x.y;
        }
        return out;
    }
    __device__ __forceinline__ void set(int n, int e, float x, float y)
    {
        uint32_t word[PARTS];
        split_pair<__half>(word, x, y);
#pragma unroll
        for (int at = 0; at < PARTS; at++)
            part[at][n / 2][n % 2 * 2 + e / 2] = word[at];
    }
};

/* s += rows tile^T, for the keys of a group. */
template <int PARTS>
static __device__ __forceinline__ void add_products(float (&s)[2][4], const row_operand<PARTS> &rows,
                                                    const __half *tile, int group)
{
    const int lane = threadIdx.x % 32, key = group * GROUP + lane / 16 * 8 + lane % 8;
    float least[2][4] = {};
#pragma unroll
    for (int k = 0; k < TILE_SIDE / 16; k++) {
        uint32_t b[4];
        load_matrices(b, tile + key * TILE_SIDE + ((2 * k + lane / 8 % 2) ^ key % 8) * 8);
#pragma unroll
        for (int n = 0; n < 2; n++) {
            if (PARTS == 2) mma_half(least[n], rows.part[PARTS - 1][k], b[2 * n], b[2 * n + 1]);
            mma_half(s[n], rows.part[0][k], b[2 * n], b[2 * n + 1]);
        }
    }
#pragma unroll
    for (int n = 0; PARTS == 2 && n < 2; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++)
            s[n][e] += least[n][e];
    }
}

/* The weights of a group as operand A. */
template <int PARTS>
static __device__ __forceinline__ void split_group(uint32_t (&a)[PARTS][4], const float (&w)[2][4])
{
#pragma unroll
    for (int e = 0; e < 4; e++) {
        uint32_t part[PARTS];
        split_pair<__half>(part, w[e / 2][e % 2 * 2], w[e / 2][e % 2 * 2 + 1]);
#pragma unroll
        for (int at = 0; at < PARTS; at++)
            a[at][e] = part[at];
    }
}

/* Adds the weights of a group as rounded to their parts to total, sums of the thread's columns. */
template <int PARTS>
static __device__ __forceinline__ void add_group(float (&total)[2], const uint32_t (&a)[PARTS][4])
{
#pragma unroll
    for (int at = PARTS - 1; at >= 0; at--) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float2 x = unpack_pair<__half>(a[at][e]);
            total[e % 2] += x.x + x.y;
        }
    }
}

/* y += w tile, for the keys of a group. */
template <int PARTS>
static __device__ __forceinline__ void add_weighted(float (&y)[FRAGMENTS][4], const uint32_t (&w)[PARTS][4],
                                                    const __half *tile, int group)
{
    const int lane = threadIdx.x % 32, key = group * GROUP + lane % 16;
#pragma unroll
    for (int n = 0; n < FRAGMENTS; n += 2) {
        uint32_t b[4];
        load_matrices_transposed(b, tile + key * TILE_SIDE + ((n + lane / 16) ^ key % 8) * 8);
#pragma unroll
        for (int at = PARTS - 1; at >= 0; at--) {
            mma_half(y[n], w[at], b[0], b[1]);
            mma_half(y[n + 1], w[at], b[2], b[3]);
        }
    }
}

/* ------------------------------------------------------------------ the solver */

/* Scores to base 2 take the place of the weights; -inf where a row does not see a key. best: the highest of
 * a row, and peak its first key, -1 where it sees none. */
template <int TILES>
static __device__ __forceinline__ void score_keys(const resident_system<TILES> &sys,
                                                  const row_operand<1> &query, const float (&scale2)[2],
                                                  float (&best)[2], int (&peak)[2])
{
    best[0] = best[1] = -INFINITY;
    peak[0] = peak[1] = INT32_MAX;
#pragma unroll 1
    for (int g = 0; g < sys.groups; g++) {
        float s[2][4] = {};
        add_products(s, query, sys.sm.keys, g);
#pragma unroll
        for (int n = 0; n < 2; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int row = e / 2, j = sys.key(2 * g + n, e);
                s[n][e] = sys.seen(row, j) ? s[n][e] * scale2[row] : -INFINITY;
                if (s[n][e] > best[row]) best[row] = s[n][e], peak[row] = j;
            }
            sys.weight().store(2 * g + n, s[n]);
        }
    }
#pragma unroll
    for (int row = 0; row < 2; row++) {
#pragma unroll
        for (int step = 1; step < 4; step *= 2) {
            const float other = __shfl_xor_sync(0xffffffffu, best[row], step);
            const int at = __shfl_xor_sync(0xffffffffu, peak[row], step);
            if (other > best[row] || (other == best[row] && at < peak[row]))
                best[row] = other, peak[row] = at;
        }
        peak[row] = best[row] > -INFINITY ? peak[row] : -1;
    }
}

/* The direction as float, in its unit: it is the sum of its parts. */
static __device__ __forceinline__ void unpack_direction(float (&d)[FRAGMENTS][4],
                                                        const row_operand<2> &direction)
{
#pragma unroll
    for (int n = 0; n < FRAGMENTS; n++) {
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
            const float2 x = direction.pair(n, e);
            d[n][e] = x.x, d[n][e + 1] = x.y;
        }
    }
}

/* The unit of images of a direction: that of the direction, less the power of two of the weights. */
template <int TILES>
static __device__ __forceinline__ float resident_image_unit(const resident_system<TILES> &sys,
                                                            const row_direction &own, int row)
{
    return own.unit[row] * power_of_two(-sys.weight_log2[row]);
}

/* y becomes the image (Cov + Lambda) direction in its unit, from y = sum f k and total = sum f (this thread's
 * columns), where f = p (d . k - centre) times the power of two of the weights; d: the direction in its
 * unit. */
template <int TILES>
static __device__ __forceinline__ image_products finish_resident_image(float (&y)[FRAGMENTS][4],
                                                                       const resident_system<TILES> &sys,
                                                                       const float (&d)[FRAGMENTS][4],
                                                                       const row_direction &own,
                                                                       const float (&total)[2])
{
    image_products out = {};
    float ridge[2], common[2];
#pragma unroll
    for (int row = 0; row < 2; row++) {
        ridge[row] = sys.ridge.number[row] * power_of_two(sys.weight_log2[row]);
        common[row] = quad_sum(total[row]);
    }
#pragma unroll
    for (int n = 0; n < FRAGMENTS; n++) {
        float mean[4];
        sys.kbar().load(mean, n);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int row = e / 2;
            y[n][e] = ridge[row] * d[n][e] + (y[n][e] - common[row] * mean[e]);
            out.curvature[row] += d[n][e] * y[n][e];
            out.size[row] += d[n][e] * d[n][e];
            out.mean[row] += mean[e] * y[n][e];
        }
    }
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float unit = resident_image_unit(sys, own, row);
        out.curvature[row] = own.unit[row] * (unit * quad_sum(out.curvature[row]));
        out.size[row] = own.unit[row] * (own.unit[row] * quad_sum(out.size[row]));
        out.mean[row] = unit * quad_sum(out.mean[row]);
    }
    return out;
}

/* f = p (direction . k - centre) of a group, as operand; its sums are added to total. */
template <int TILES>
static __device__ __forceinline__ void centred_group(uint32_t (&f)[2][4], const resident_system<TILES> &sys,
                                                     const row_operand<2> &direction,
                                                     const row_direction &own, int group, float (&total)[2])
{
    float u[2][4] = {};
    add_products(u, direction, sys.sm.keys, group);
#pragma unroll
    for (int n = 0; n < 2; n++) {
        float p[4];
        sys.weight().load(p, 2 * group + n);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            u[n][e] = p[e] * (u[n][e] - own.centre[e / 2]);
            total[e / 2] += u[n][e];
        }
    }
    split_group(f, u);
}

/* y = sum f k over the keys, and total = sum f. */
template <int TILES>
static __device__ __forceinline__ void sum_image(float (&y)[FRAGMENTS][4], float (&total)[2],
                                                 const resident_system<TILES> &sys,
                                                 const row_operand<2> &direction, const row_direction &own)
{
    total[0] = total[1] = 0;
    clear(y);
#pragma unroll 1
    for (int g = 0; g < sys.groups; g++) {
        uint32_t f[2][4];
        centred_group(f, sys, direction, own, g, total);
        add_weighted(y, f, sys.sm.keys, g);
    }
}

/* A vector becomes the direction in the unit that own has. */
template <int TILES>
static __device__ __forceinline__ void set_direction(row_operand<2> &direction,
                                                     const resident_system<TILES> &sys,
                                                     const float (&y)[FRAGMENTS][4], row_direction &own)
{
    const float inverse[2] = { power_inverse(own.unit[0]), power_inverse(own.unit[1]) };
    own.centre[0] = own.centre[1] = 0;
#pragma unroll
    for (int n = 0; n < FRAGMENTS; n++) {
        float mean[4];
        sys.kbar().load(mean, n);
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
            direction.set(n, e, y[n][e] * inverse[e / 2], y[n][e + 1] * inverse[e / 2]);
            const float2 x = direction.pair(n, e);
            own.centre[e / 2] += x.x * mean[e] + x.y * mean[e + 1];
        }
    }
    own.centre[0] = quad_sum(own.centre[0]), own.centre[1] = quad_sum(own.centre[1]);
}

/* b, scaled to about 1, becomes the first residual; x = 0. */
template <int TILES>
static __device__ __forceinline__ void start_resident(const resident_system<TILES> &sys, cg_rows &cg,
                                                      float (&b)[FRAGMENTS][4], const bool (&wanted)[2])
{
    float top[2] = { 0, 0 }, bb[2] = { 0, 0 };
    const float zero[4] = { 0, 0, 0, 0 };
#pragma unroll
    for (int n = 0; n < FRAGMENTS; n++) {
        sys.x().store(n, zero);
#pragma unroll
        for (int e = 0; e < 4; e++)
            top[e / 2] = fmaxf(top[e / 2], fabsf(b[n][e]));
    }
    cg.unit[0] = magnitude(quad_max(top[0])), cg.unit[1] = magnitude(quad_max(top[1]));
    const float inverse[2] = { power_inverse(cg.unit[0]), power_inverse(cg.unit[1]) };
#pragma unroll
    for (int n = 0; n < FRAGMENTS; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++)
            b[n][e] *= inverse[e / 2], bb[e / 2] += b[n][e] * b[n][e];
    }
#pragma unroll
    for (int row = 0; row < 2; row++) {
        cg.bb[row] = cg.rr[row] = quad_sum(bb[row]);
        cg.live[row] = wanted[row] && cg.bb[row] > 0 && cg.bb[row] < INFINITY;
        cg.least[row] = INFINITY, cg.most[row] = 0;
        cg.iterations[row] = 0;
    }
}

/* x += alpha d and r -= alpha image, each in its unit; rr: the square of r (this thread's
 * columns). */
template <int TILES>
static __device__ __forceinline__ void advance_resident(
    const resident_system<TILES> &sys, float (&r)[FRAGMENTS][4], const float (&image)[FRAGMENTS][4],
    const float (&d)[FRAGMENTS][4], const row_direction &own, const float (&alpha)[2], float (&rr)[2])
{
    const float step[2] = { alpha[0] * own.unit[0], alpha[1] * own.unit[1] },
                back[2] = { alpha[0] * resident_image_unit(sys, own, 0),
                            alpha[1] * resident_image_unit(sys, own, 1) };
#pragma unroll
    for (int n = 0; n < FRAGMENTS; n++) {
        float x[4];
        sys.x().load(x, n);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            x[e] += step[e / 2] * d[n][e];
            r[n][e] -= back[e / 2] * image[n][e];
            rr[e / 2] += r[n][e] * r[n][e];
        }
        sys.x().store(n, x);
    }
}

/* direction <- r + beta d in the unit of a vector whose square is norm2; 0 of rows that have ended
 * (cg_update_direction says why). */
static __device__ __forceinline__ void turn_direction(row_operand<2> &direction,
                                                      const float (&r)[FRAGMENTS][4],
                                                      const float (&d)[FRAGMENTS][4], const cg_rows &cg,
                                                      const float (&norm2)[2], const float (&beta)[2],
                                                      row_direction &own)
{
    float inverse[2], factor[2];
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float unit = unit_of_norm<__half>(norm2[row]);
        inverse[row] = cg.live[row] ? power_inverse(unit) : 0;
        factor[row] = beta[row] * own.unit[row] * inverse[row];
        own.unit[row] = unit;
    }
#pragma unroll
    for (int n = 0; n < FRAGMENTS; n++) {
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
            const int row = e / 2;
            direction.set(n, e, r[n][e] * inverse[row] + factor[row] * d[n][e],
                          r[n][e + 1] * inverse[row] + factor[row] * d[n][e + 1]);
        }
    }
}

/* Conjugate gradients for the rows that are live, from x = 0 and the residual r. A row that has not ended
 * after the most iterations stays live. */
template <int TILES>
static __device__ __forceinline__ void resident_run(const resident_system<TILES> &sys, cg_rows &cg,
                                                    const cg_tolerance &tolerance, float (&r)[FRAGMENTS][4])
{
    row_operand<2> direction;
    row_direction own = { { unit_of_norm<__half>(cg.rr[0]), unit_of_norm<__half>(cg.rr[1]) }, { 0, 0 } };
    set_direction(direction, sys, r, own);
    float mean[2] = { own.centre[0] * own.unit[0], own.centre[1] * own.unit[1] }; /* residual . kbar */
    float centre[2] = { mean[0], mean[1] };
#pragma unroll 1
    for (int count = 0; count < tolerance.most; count++) {
        if (!__any_sync(0xffffffffu, cg.live[0] || cg.live[1])) break;
        float image[FRAGMENTS][4], d[FRAGMENTS][4], total[2], alpha[2], beta[2], rr[2] = { 0, 0 }, norm2[2];
        sum_image(image, total, sys, direction, own);
        unpack_direction(d, direction);
        const image_products dots = finish_resident_image(image, sys, d, own, total);
        cg_step_length(cg, dots, cg.rr, alpha);
        advance_resident(sys, r, image, d, own, alpha, rr);
#pragma unroll
        for (int row = 0; row < 2; row++) {
            rr[row] = quad_sum(rr[row]);
            beta[row] = cg.live[row] ? rr[row] / cg.rr[row] : 0;
            cg.rr[row] = cg.live[row] ? rr[row] : cg.rr[row];
            cg.live[row] = cg.live[row] && unsolved(cg, tolerance, row);
            norm2[row] = cg.rr[row] + beta[row] * beta[row] * dots.size[row];
        }
        turn_direction(direction, r, d, cg, norm2, beta, own);
#pragma unroll
        for (int row = 0; row < 2; row++) {
            mean[row] -= alpha[row] * dots.mean[row];
            centre[row] = mean[row] + beta[row] * centre[row];
            own.centre[row] = cg.live[row] ? centre[row] * power_inverse(own.unit[row]) : 0;
        }
    }
}

#endif
