/* SPDX-License-Identifier: MIT
 * Conjugate gradients with a preconditioner for each row (local/hopper/heavy_solve.cu), for blocks with a row
 * that plain ones would take too long for. */
#ifndef LOAM_LOCAL_HOPPER_PCG_CUH
#define LOAM_LOCAL_HOPPER_PCG_CUH

#include "src/local/hopper/conjugate.cuh"
#include "src/local/hopper/heavy_work.cuh"

/* The norm of a residual as operand of its factor. */
#define RESIDUAL_TOP 0x1p7f

/* The rows of this warp that are live: bit i is row i. */
static __device__ __forceinline__ unsigned live_rows(const bool (&live)[2])
{
    unsigned rows = 0;
    const unsigned first = __ballot_sync(0xffffffffu, live[0]), second = __ballot_sync(0xffffffffu, live[1]);
#pragma unroll
    for (int i = 0; i < 8; i++)
        rows |= (first >> 4 * i & 1) << i | (second >> 4 * i & 1) << (i + 8);
    return rows;
}

/* The preconditioned residuals of the thread's rows: r . z, z . z, z . kbar. */
struct pcg_rows {
    float rz[2], zz[2], mean[2];
};

/* Factors on their way to a warp, in the memory of the ring of keys while no pass needs it: an entry is a
 * factor of 64 channels, or a piece of one of 128, the first one as large. */
enum { FACTOR_BYTES = factor_words<64> * 4 };
template <int DIM> constexpr unsigned factor_stages = DIM == 64 ? 4 : 3;
template <int DIM> constexpr int factor_pieces = 1 + (DIM - TILE_SIDE) / SQUARE;

/* The first square of a piece, and how many it has. */
static __device__ __forceinline__ int piece_begin(int piece)
{
    return piece > 0 ? lower_square(SQUARES - 1 + piece, 0) : 0;
}
static __device__ __forceinline__ int piece_squares(int piece)
{
    return piece > 0 ? SQUARES + piece : LOWER_SQUARES;
}

template <int DIM> static __device__ __forceinline__ uint64_t *factor_barriers(solver_shared<DIM, __half> &sm)
{
    static_assert(sizeof sm.extended_full >= THREADS / 32 * factor_stages<DIM> * sizeof(uint64_t),
                  "no pass of the solver needs these barriers");
    return &sm.extended_full[0][0];
}

/* As load_bytes, of what the L2 cache need not keep: between two reads of a factor all others are read. */
static __device__ __forceinline__ void load_bytes_once(void *shared, const void *global, unsigned bytes,
                                                       uint64_t *barrier)
{
    asm volatile(
        "{\n"
        ".reg .b64 policy;\n"
        "createpolicy.fractional.L2::evict_first.b64 policy, 1.0;\n"
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], "
        "%2, [%3], policy;\n"
        "}\n" ::"r"(shared_address(shared)),
        "l"(global), "r"(bytes), "r"(shared_address(barrier))
        : "memory");
}

template <int DIM> struct factor_stream {
    static constexpr unsigned stages = factor_stages<DIM>;
    static constexpr int pieces = factor_pieces<DIM>;
    unsigned char *stage; /* [stages][FACTOR_BYTES] */
    uint64_t *full;
    const uint32_t *factor; /* of the warp's rows */
    unsigned &used;         /* entries that have gone through */
    unsigned rows, ahead;   /* a bit each: rows to come, and those of them not asked for */
    int piece, asked;       /* of the first row in each */

    /* One lane asks for the next piece, as entry n from here on. */
    __device__ __forceinline__ void ask(unsigned n)
    {
        if (ahead == 0) return;
        const unsigned place = (used + n) % stages;
        if (threadIdx.x % 32 == 0) {
            const unsigned bytes = pieces > 1 ? (unsigned)piece_squares(asked) * SQUARE_WORDS * 4
                                              : (unsigned)FACTOR_BYTES;
            const int begin = pieces > 1 ? piece_begin(asked) * SQUARE_WORDS : 0;
            barrier_expect(&full[place], bytes);
            load_bytes_once(stage + place * FACTOR_BYTES,
                            factor + (__ffs(ahead) - 1) * factor_words<DIM> + begin, bytes, &full[place]);
        }
        asked = pieces > 1 && asked + 1 < pieces ? asked + 1 : 0;
        if (asked == 0) ahead &= ahead - 1;
    }
    __device__ __forceinline__ void begin(unsigned wanted)
    {
        rows = ahead = wanted;
        for (unsigned n = 0; n < stages; n++)
            ask(n);
    }
    /* Waits for entry n from here on. */
    __device__ __forceinline__ const unsigned char *wait(unsigned n) const
    {
        const unsigned entry = used + n;
        barrier_wait(&full[entry % stages], entry / stages % 2);
        return stage + entry % stages * FACTOR_BYTES;
    }
    /* Nobody wants the next row. */
    __device__ __forceinline__ void skip()
    {
        for (int n = 0; n < pieces; n++)
            wait(0), release();
    }
    /* Nobody wants the rows to come. */
    __device__ __forceinline__ void drain()
    {
        while (rows)
            skip();
    }
    /* The next piece is done. */
    __device__ __forceinline__ void release()
    {
        __syncwarp();
        ask(stages);
        used++;
        piece = pieces > 1 && piece + 1 < pieces ? piece + 1 : 0;
        if (piece == 0) rows &= rows - 1;
    }
};

template <int DIM, bool DECAYED, class T>
static __device__ __forceinline__ factor_stream<DIM> factor_stream_of(
    const block_system<DIM, DECAYED, T> &sys, const uint32_t *factor, unsigned &used)
{
    static_assert(sizeof sys.sm.stage >= THREADS / 32 * factor_stages<DIM> * FACTOR_BYTES,
                  "factors in the ring");
    const int warp = threadIdx.x / 32;
    return { (unsigned char *)sys.sm.stage + warp * factor_stages<DIM> * FACTOR_BYTES,
             factor_barriers(sys.sm) + warp * factor_stages<DIM>,
             factor + warp * 16 * factor_words<DIM>,
             used,
             0,
             0,
             0,
             0 };
}

/* z = V V^T r of the next COUNT rows of eight, of which each keeps its own: lanes whose vectors 2 t and
 * 2 t + 1 include it. */
template <int COUNT>
static __device__ __forceinline__ void precondition_rows(float (&z)[SQUARES][4], const vector_parts<64> &r,
                                                         factor_stream<64> &factors)
{
    const int t = threadIdx.x % 4;
    const unsigned char *factor[COUNT];
    float product[COUNT][SQUARES][4] = {};
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        factor[i] = factors.wait((unsigned)i);
#pragma unroll
    for (int i = 0; i < SQUARES; i++) {
        const unsigned char *squares[COUNT];
#pragma unroll
        for (int n = 0; n < COUNT; n++)
            squares[n] = factor[n] + lower_square(i, 0) * SQUARE_WORDS * 4;
        multiply_squares<COUNT, false>(product, r, i, squares);
    }
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        const int at = (__ffs(factors.rows) - 1) % 8;
#pragma unroll
        for (int n = 0; n < SQUARES * 4; n++)
            z[n / 4][n % 4] = 2 * t + n % 2 == at ? product[i][n / 4][n % 4] : z[n / 4][n % 4];
        factors.release();
    }
}

/* The next row of eight with 128 channels, piece by piece. */
static __device__ __forceinline__ void precondition_row(float (&z)[1][2 * SQUARES][4],
                                                        const vector_parts<128> &r,
                                                        factor_stream<128> &factors)
{
    const int own = (__ffs(factors.rows) - 1) % 8;
#pragma unroll
    for (int piece = 0; piece < factor_pieces<128>; piece++) {
        const unsigned char *const at = factors.wait(0);
#pragma unroll
        for (int i = piece > 0 ? SQUARES - 1 + piece : 0; i < SQUARES + piece; i++) {
            const unsigned char *const squares[1] = {
                at + (piece > 0 ? 0 : lower_square(i, 0) * SQUARE_WORDS * 4)
            };
            multiply_squares<1, true>(z, r, i, squares, own);
        }
        factors.release();
    }
}

/* The direction of the thread's rows becomes 0. */
template <int PARTS, int DIM, bool DECAYED, class T>
static __device__ __forceinline__ void clear_direction(const block_system<DIM, DECAYED, T> &sys)
{
#pragma unroll
    for (int n = 0; n < DIM / 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e += 2)
            set_direction_pair<PARTS>(sys, n, e, { 0, 0 });
    }
}

/* y, the residuals r, becomes z = V V^T r of the rows that are live, and 0 of the others. `factors` has begun
 * with all that are live, and those that just ended. */
template <int DIM, bool DECAYED, class T>
static __device__ __forceinline__ void precondition(float (&y)[DIM / TILE_SIDE][8][4],
                                                    const block_system<DIM, DECAYED, T> &sys,
                                                    const cg_rows &cg, pcg_rows &pre,
                                                    factor_stream<DIM> &factors)
{
    const lane_vector kbar = sys.vector(VECTOR_KBAR);
    const unsigned live = live_rows(cg.live);
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float unit = unit_of_norm<T>(cg.rr[row]) * (DIRECTION_TOP / RESIDUAL_TOP),
                    inverse = power_inverse(unit);
        vector_parts<DIM> r;
        float z[1][DIM / SQUARE][4] = {};
#pragma unroll
        for (int n = 0; n < DIM / 8; n++) {
            uint32_t part[2];
            const float(&at)[4] = y[n / 8][n % 8];
            split_pair<__half>(part, at[2 * row] * inverse, at[2 * row + 1] * inverse);
            r.hi[n / 2][n % 2] = part[0], r.lo[n / 2][n % 2] = part[1];
        }
#pragma unroll 1
        while (const unsigned rows = factors.rows & 0xffu << 8 * row) {
            const unsigned after = rows & (rows - 1);
            if (!(rows & ~after & live))
                factors.skip();
            else if constexpr (DIM == 128)
                precondition_row(z, r, factors);
            else if (after & (0 - after) & live)
                precondition_rows<2>(z[0], r, factors);
            else
                precondition_rows<1>(z[0], r, factors);
        }
        float rz = 0, zz = 0, mean = 0;
#pragma unroll
        for (int n = 0; n < DIM / 8; n++) {
            float &first = z[0][n / 2][n % 2 * 2], &second = z[0][n / 2][n % 2 * 2 + 1];
            transpose_floats(first, second);
            float(&at)[4] = y[n / 8][n % 8];
            first *= unit, second *= unit;
            rz += at[2 * row] * first + at[2 * row + 1] * second;
            zz += first * first + second * second;
            mean += first * kbar.get(4 * n + 2 * row) + second * kbar.get(4 * n + 2 * row + 1);
            at[2 * row] = first, at[2 * row + 1] = second;
        }
        pre.rz[row] = quad_sum(rz), pre.zz[row] = quad_sum(zz), pre.mean[row] = quad_sum(mean);
    }
}

/* Iterates for the rows that are live, from x and its residual r, which lie in the scratch; factor: V of
 * these rows, on which `used` counts. */
template <int PARTS, int DIM, bool DECAYED, class T>
static __device__ __forceinline__ void pcg_run(const block_system<DIM, DECAYED, T> &stored, cg_rows &rows,
                                               const cg_tolerance &tolerance, const uint32_t *factor,
                                               unsigned &used)
{
    const row_pair r = stored.r;
    const row_ridge ridge = stored.ridge;
    const block_system<DIM, DECAYED, T> sys = system_in_registers(stored, r, ridge);
    cg_rows cg = rows;
    pcg_rows pre = {};
    image_products d = {};
    row_direction own = { { 1, 1 }, { 0, 0 } };
    factor_stream<DIM> factors = factor_stream_of(sys, factor, used);
    const lane_vector residual = sys.vector(VECTOR_R);
    float y[DIM / TILE_SIDE][8][4], centre[2] = { 0, 0 };
#pragma unroll
    for (int n = 0; n < DIM / 2; n++)
        y[n / 32][n / 4 % 8][n % 4] = residual.get(n);
    factors.begin(live_rows(cg.live));
    clear_direction<PARTS>(sys);
    for (int count = 0; count < tolerance.most && __syncthreads_or(cg.live[0] || cg.live[1]); count++) {
        const float before[2] = { pre.rz[0], pre.rz[1] };
        float alpha[2], beta[2], rr[2] = { 0, 0 };
        precondition(y, sys, cg, pre, factors);
#pragma unroll
        for (int row = 0; row < 2; row++)
            beta[row] = count > 0 && cg.live[row] ? pre.rz[row] / before[row] : 0;
        const float norm2[2] = { pre.zz[0] + beta[0] * beta[0] * d.size[0],
                                 pre.zz[1] + beta[1] * beta[1] * d.size[1] };
        cg_update_direction<PARTS>(sys, y, cg, norm2, beta, own);
#pragma unroll
        for (int row = 0; row < 2; row++) {
            centre[row] = pre.mean[row] + beta[row] * centre[row];
            own.centre[row] = is_half<T> && !cg.live[row] ? 0 : centre[row] * power_inverse(own.unit[row]);
        }
        __syncthreads();
        d = compute_image<PARTS>(y, sys, own);
        factors.begin(live_rows(cg.live));
        cg_step_length(cg, d, pre.rz, alpha);
        cg_advance<PARTS>(sys, y, own, alpha, rr);
#pragma unroll
        for (int row = 0; row < 2; row++) {
            rr[row] = quad_sum(rr[row]);
            cg.rr[row] = cg.live[row] ? rr[row] : cg.rr[row];
            cg.live[row] = cg.live[row] && cg.rr[row] > tolerance.stop * tolerance.stop * cg.bb[row];
        }
    }
    factors.drain();
    rows = cg;
}

#endif
