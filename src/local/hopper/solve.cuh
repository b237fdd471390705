/* SPDX-License-Identifier: MIT
 *
 * The solver of Local Linear Attention on Hopper, for the forward pass and for the adjoint solve of the
 * backward pass: the state of a block of 64 rows, and the product of Cov + Lambda with a direction (its
 * image). conjugate.cuh has the steps.
 *
 * Operands of products are of type T. A direction and weights in one bf16 part each leave a relative residual
 * of about 2^-8, in two parts of about 2^-17; in fp16 of 2^-11 and 2^-22. fp16 needs units: keys and values
 * are copies in powers of two of a head (half_copy.cuh), queries and directions in those of a row, and
 * weights are multiplied by one of a row. All that belongs to the solve, x, b, kbar and the ridge, is in
 * units of the keys. bf16 has the range of float, and 1 for all of these.
 *
 * Queries, directions and tiles of keys lie in shared memory; x, r, b and the means of the rows in a scratch
 * in global memory.
 */
#ifndef LOAM_LOCAL_HOPPER_SOLVE_CUH
#define LOAM_LOCAL_HOPPER_SOLVE_CUH

#include "src/local/hopper/decay.cuh"
#include "src/local/hopper/half_copy.cuh"
#include "src/local/hopper/segments.cuh"
#include "src/local/hopper/stream.cuh"

/* Rows must see this many keys for each channel for one part to be enough. */
enum { FEW_KEYS = 6 };

/* The ridge of each channel lies in the scratch where the solver of cuda/ has the image. */
enum { VECTOR_RIDGE = VECTOR_IMAGE };

/* Where |lse|, to base 2, is below this, it is exact enough that no weight exceeds 1 + 2^-10. */
#define EXACT_LSE 4096.0f

/* Thread blocks on a multiprocessor. Each takes 105 or 113 KiB of shared memory, or 225 with 256 channels;
 * two take all registers. */
enum { BLOCKS_PER_SM = 2 };
template <int DIM> constexpr int solver_blocks = DIM <= 128 ? BLOCKS_PER_SM : 1;

template <int DIM, class T> struct solver_shared {
    alignas(1024) T direction[2][DIM * TILE_SIDE];
    /* Right after the direction, whose memory is used for more stages by passes that do not need it. */
    T stage[ring_stages<DIM>][DIM * TILE_SIDE];
    T query[DIM * TILE_SIDE];
    uint64_t full[ring_stages<DIM>], query_full, extended_full[2][ring_stages<DIM> + 2];
    ring_count extended[2]; /* of the rings with 1 and 2 more stages */
    int64_t block, listed;
    int scratch;
    row_block rows;
    int segment_tiles; /* of the claimed block's keys (segments.cuh) */
};

/* Stages that a sweep over keys uses. */
template <int KEYS, int DIM>
constexpr unsigned sweep_stages = KEYS == ALL_KEYS       ? ring_stages<DIM>
                                  : KEYS == KEY_SEGMENTS ? (unsigned)SEGMENT_STAGES
                                                         : (unsigned)SHARE_STAGES;

/* The systems (Cov + Lambda) x = b of a block of 64 rows. */
template <int DIM, bool DECAYED, class T> struct block_system {
    static constexpr int dim = DIM, rows = 2; /* rows: of a thread */
    typedef T type;                           /* of operands */
    const loam_problem &p;
    const loam_args &a;
    const row_block &block;
    const row_pair &r;
    const row_ridge &ridge;
    const qkv_maps &maps;
    solver_shared<DIM, T> &sm;
    ring_count &count;
    float *scratch;
    half_units units;                 /* of the keys and values */
    float query_unit[2];              /* of the queries in shared memory, in units of the keys */
    float scale2[2];                  /* of products of queries and keys, to base 2 */
    float weight_log2[2];             /* weights are p times two to this */
    float lse2[2];                    /* to base 2, less weight_log2; 0 for rows that see no key */
    int unmasked_begin, unmasked_end; /* all rows see all keys between */
    bool lse_exact;                   /* |lse2| < EXACT_LSE in all rows of the block: weights need no bound */

    __device__ __forceinline__ lane_vector vector(int which) const
    {
        return scratch_vector<DIM>(scratch, which);
    }
    template <unsigned STAGES = ring_stages<DIM>>
    __device__ __forceinline__ tile_ring<DIM, STAGES, T> ring() const
    {
        return { sm.stage, sm.full };
    }
    /* The ring with EXTRA stages, 1 or 2, in the place of the direction's lo part, or of both parts. */
    template <int EXTRA>
    __device__ __forceinline__ tile_ring<DIM, ring_stages<DIM> + EXTRA, T> extended_ring() const
    {
        return { &sm.direction[2 - EXTRA], sm.extended_full[EXTRA - 1] };
    }
    __device__ __forceinline__ float target(int row, int c) const
    {
        return tile_value(sm.query[swizzled(r.at[row], c)]) * (is_half<T> ? query_unit[row] : 1);
    }
    /* After the thread's part of a direction has been written to shared memory, and before it is an operand
     * of products. */
    __device__ __forceinline__ void direction_written() const { fence_async_proxy(); }
    __device__ __forceinline__ void direction_complete() const { __syncthreads(); }
    __device__ __forceinline__ bool unmasked(int j) const
    {
        return j >= unmasked_begin && j + TILE_SIDE <= unmasked_end;
    }
    __device__ __forceinline__ bool seen(int row, int j) const { return j >= r.lo[row] && j < r.hi[row]; }
};

/* The system of the block, which is sm.rows, before its lse is known. */
template <int DIM, bool DECAYED, class T>
static __device__ __forceinline__ block_system<DIM, DECAYED, T> block_system_of(
    const loam_problem &p, const loam_args &a, const row_block &block, const row_pair &r,
    const row_ridge &ridge, const qkv_maps &maps, solver_shared<DIM, T> &sm, ring_count &count,
    float *scratch)
{
    int64_t end, begin, unused;
    local_visible(&p, &block.s, block.i0, &unused, &end);
    local_visible(&p, &block.s, block.i0 + block.rows - 1, &begin, &unused);
    const float scale2 = (float)(p.scale * LOG2E);
    return { p,          a,
             block,      r,
             ridge,      maps,
             sm,         count,
             scratch,    { 1, 1, 0, false },
             { 1, 1 },   { scale2, scale2 },
             { 0, 0 },   { 0, 0 },
             (int)begin, block.rows < ROWS ? 0 : (int)end,
             false };
}

/* Returns x as if it were new, so that the compiler does not hold an address for each element from sweep to
 * sweep: there are no registers for that. */
static __device__ __forceinline__ int opaque(int x)
{
    asm volatile("" : "+r"(x));
    return x;
}

/* Keeps an object in memory: in registers, the state of its rows would leave a kernel too few for the
 * products of a pass. */
template <class T> static __device__ __forceinline__ T &in_memory(T &object)
{
    T *at = &object;
    asm volatile("" : "+l"(at)::"memory");
    return *at;
}

/* A copy of the system for one pass, in registers. Where addresses are known to be of shared and global
 * memory the code is shorter; solver_shared lies at the beginning of the shared memory of a block. */
template <int DIM, bool DECAYED, class T>
static __device__ __forceinline__ block_system<DIM, DECAYED, T> system_in_registers(
    const block_system<DIM, DECAYED, T> &from, const row_pair &r, const row_ridge &ridge)
{
    extern __shared__ __align__(1024) unsigned char swizzled_memory[];
    __builtin_assume(__isGlobal(from.scratch));
    solver_shared<DIM, T> &sm = *(solver_shared<DIM, T> *)swizzled_memory;
    block_system<DIM, DECAYED, T> sys = { from.p,
                                          from.a,
                                          sm.rows,
                                          r,
                                          ridge,
                                          from.maps,
                                          sm,
                                          from.count,
                                          from.scratch,
                                          from.units,
                                          { from.query_unit[0], from.query_unit[1] },
                                          { from.scale2[0], from.scale2[1] },
                                          { from.weight_log2[0], from.weight_log2[1] },
                                          { from.lse2[0], from.lse2[1] },
                                          from.unmasked_begin,
                                          from.unmasked_end,
                                          from.lse_exact };
    return sys;
}

/* The systems of a thread block that has a multiprocessor to itself: their vectors lie in shared memory,
 * which is nearer than the scratch. */
template <int DIM, bool DECAYED, class T> struct near_system : block_system<DIM, DECAYED, T> {
    __device__ __forceinline__ lane_vector vector(int which) const
    {
        extern __shared__ __align__(1024) unsigned char swizzled_memory[];
        return scratch_vector<DIM>((float *)(swizzled_memory + sizeof(solver_shared<DIM, T>)), which);
    }
};
static constexpr size_t near_vectors(size_t dim) { return VECTORS * (dim / 2) * THREADS * sizeof(float); }

template <int DIM, bool DECAYED, class T>
static __device__ __forceinline__ near_system<DIM, DECAYED, T> system_in_registers(
    const near_system<DIM, DECAYED, T> &from, const row_pair &r, const row_ridge &ridge)
{
    const block_system<DIM, DECAYED, T> &plain = from;
    return { system_in_registers(plain, r, ridge) };
}

/* Where scores decay: the products q . k with keys from j on become scores to base 2. */
template <int DIM, bool DECAYED, class T>
static __device__ __forceinline__ void add_decay(float (&s)[8][4], const block_system<DIM, DECAYED, T> &sys,
                                                 int j)
{
    if constexpr (DECAYED) {
        const local_decay_pair *const sums = decay_sums(sys.a, sys.block.s, sys.block.h);
        const local_decay_pair row[2] = { row_decay(sums, sys.r.hi[0]), row_decay(sums, sys.r.hi[1]) };
        decay_scores(s, sums + j, row, sys.scale2);
    }
}

/* The products w = q . k with keys from j on become p, times its power of two; 0 where a row does not see the
 * key. */
template <int DIM, bool DECAYED, class T>
static __device__ __forceinline__ void score_weights(float (&w)[8][4],
                                                     const block_system<DIM, DECAYED, T> &sys, int j)
{
    add_decay(w, sys, j);
#pragma unroll
    for (int n = 0; n < 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++)
            w[n][e] = DECAYED ? w[n][e] - sys.lse2[e / 2] : w[n][e] * sys.scale2[e / 2] - sys.lse2[e / 2];
    }
    /* A branch would take registers for the weights before and after it, which 256 channels do not leave. */
    if (DIM > 128 || DECAYED || rarely(!sys.lse_exact || !sys.unmasked(j))) {
#pragma unroll
        for (int n = 0; n < 8; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++)
                w[n][e] = sys.seen(e / 2, j + column_of(n, e))
                              ? fminf(w[n][e], is_half<T> ? sys.weight_log2[e / 2] : 0)
                              : -INFINITY;
        }
    }
#pragma unroll
    for (int n = 0; n < 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++)
            w[n][e] = exp2_fast(w[n][e]);
    }
}

/* The pairs of a tile of rows that this thread owns, which are its fragments of the rows as operand A. */
template <int DIM, class T>
static __device__ __forceinline__ void load_fragments(uint32_t (&a)[DIM / 16][4], const T *tile,
                                                      const row_pair &r)
{
#pragma unroll
    for (int k = 0; k < DIM / 16; k++) {
#pragma unroll
        for (int e = 0; e < 4; e++)
            a[k][e] = *(const uint32_t *)(tile + swizzled(opaque(r.at[e % 2]), column_of(2 * k + e / 2, 0)));
    }
}

/* Queries and directions as operands of a pass: from registers where there are enough, which saves reads of
 * shared memory, else from shared memory. */
template <int DIM, bool DECAYED, class T, int PARTS, bool VALUES> struct score_operands {
    static constexpr bool query_held = DIM == 64 && PARTS == 1,
                          direction_held = PARTS == 1 && (DIM == 64 || (DIM == 128 && !VALUES));
    uint32_t query[query_held ? DIM / 16 : 1][4];
    uint32_t direction[direction_held ? PARTS : 1][direction_held ? DIM / 16 : 1][4];

    __device__ __forceinline__ void load_query(const block_system<DIM, DECAYED, T> &sys)
    {
        if constexpr (query_held) load_fragments<DIM>(query, sys.sm.query, sys.r);
    }
    __device__ __forceinline__ void load(const block_system<DIM, DECAYED, T> &sys)
    {
        load_query(sys);
        if constexpr (direction_held) {
            load_fragments<DIM>(direction[0], sys.sm.direction[0], sys.r);
            if constexpr (PARTS == 2) load_fragments<DIM>(direction[1], sys.sm.direction[1], sys.r);
        }
    }
    __device__ __forceinline__ void query_keys(float (&s)[8][4], const block_system<DIM, DECAYED, T> &sys,
                                               const T *keys) const
    {
        if constexpr (query_held)
            multiply_rows<DIM>(s, query, keys, false);
        else
            multiply_rows<DIM>(s, operand_tile<DIM>(sys.sm.query), keys, false);
    }
    __device__ __forceinline__ void direction_keys(float (&u)[8][4], const block_system<DIM, DECAYED, T> &sys,
                                                   const T *keys) const
    {
        if constexpr (direction_held) {
            if constexpr (PARTS == 2) multiply_rows<DIM>(u, direction[1], keys, false);
            multiply_rows<DIM>(u, direction[0], keys, PARTS == 2);
        } else {
            if constexpr (PARTS == 2)
                multiply_rows<DIM>(u, operand_tile<DIM>(sys.sm.direction[1]), keys, false);
            multiply_rows<DIM>(u, operand_tile<DIM>(sys.sm.direction[0]), keys, PARTS == 2);
        }
    }
};

/* A direction of the thread's rows: shared memory has it in `unit` (bf16: 1), and `centre` is its product
 * with kbar in that unit. */
struct row_direction {
    float unit[2], centre[2];
};

/* w <- w (u - centre), from w = p and u = direction . k; row sums of w (this thread's columns) are added to
 * total. */
static __device__ __forceinline__ void centre_weights(float (&w)[8][4], const float (&u)[8][4],
                                                      const float (&centre)[2], float (&total)[2])
{
#pragma unroll
    for (int n = 0; n < 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            w[n][e] *= u[n][e] - centre[e / 2];
            total[e / 2] += w[n][e];
        }
    }
}

/* The weights f = p (direction . k - centre) of a pass, whose steps are those of stream_pipelined. Sums of
 * 256 channels leave no registers for products of the next tile: there p is made during those with the
 * direction. */
template <int DIM, bool DECAYED, class T, int PARTS, bool VALUES> struct pass_weights {
    static constexpr bool direction_later = DIM > 128;
    const block_system<DIM, DECAYED, T> &sys;
    const row_direction &own;
    float (&total)[2];
    score_operands<DIM, DECAYED, T, PARTS, VALUES> rows;
    float f[8][4], u[8][4];

    __device__ __forceinline__ pass_weights(const block_system<DIM, DECAYED, T> &system,
                                            const row_direction &direction, float (&sum)[2])
        : sys(system), own(direction), total(sum)
    {
        rows.load(sys);
    }
    __device__ __forceinline__ void score(const kv_tile<T> &t)
    {
        rows.query_keys(f, sys, t.keys);
        if (!direction_later) rows.direction_keys(u, sys, t.keys);
    }
    __device__ __forceinline__ void weigh(const kv_tile<T> &t)
    {
        wgmma_results(f);
        if constexpr (direction_later) {
            rows.direction_keys(u, sys, t.keys);
            wgmma_commit();
            score_weights(f, sys, t.j);
        } else {
            wgmma_results(u);
            score_weights(f, sys, t.j);
            centre_weights(f, u, own.centre, total);
        }
        wgmma_results(f); /* else the compiler computes f beyond the next wait */
    }
    __device__ __forceinline__ void pack(weights_operand<PARTS, 4, T> &w)
    {
        if constexpr (direction_later) {
            wgmma_wait<0>();
            wgmma_results(u);
            centre_weights(f, u, own.centre, total);
        }
        split_weights(w, f);
    }
};

/* Clears accumulators before the first product of a pass is issued: any later, that would hold up all
 * products of the pass. */
template <int DIM> static __device__ __forceinline__ void clear_sums(float (&y)[DIM / TILE_SIDE][8][4])
{
#pragma unroll
    for (int n = 0; n < DIM / TILE_SIDE; n++)
        clear(y[n]);
    wgmma_results(y);
}

/* Elements e and e + 1 (e = 0 or 2) of fragment n of the direction, each as the sum of its parts, in its
 * unit. */
template <int PARTS, int DIM, bool DECAYED, class T>
static __device__ __forceinline__ float2 direction_pair(const block_system<DIM, DECAYED, T> &sys, int n,
                                                        int e)
{
    const int at = swizzled(opaque(sys.r.at[e / 2]), column_of(n, e));
    float2 p = unpack_pair<T>(*(const uint32_t *)(sys.sm.direction[0] + at));
    if (PARTS == 2) {
        const float2 lo = unpack_pair<T>(*(const uint32_t *)(sys.sm.direction[1] + at));
        p.x += lo.x, p.y += lo.y;
    }
    return p;
}

/* Stores such a pair of the direction; returns it as rounded to its parts. */
template <int PARTS, int DIM, bool DECAYED, class T>
static __device__ __forceinline__ float2 set_direction_pair(const block_system<DIM, DECAYED, T> &sys, int n,
                                                            int e, float2 p)
{
    const int at = swizzled(opaque(sys.r.at[e / 2]), column_of(n, e));
    uint32_t part[2];
    split_pair<T>(part, p.x, p.y);
    *(uint32_t *)(sys.sm.direction[0] + at) = part[0];
    if (PARTS == 2) *(uint32_t *)(sys.sm.direction[1] + at) = part[1];
    return direction_pair<PARTS>(sys, n, e);
}

/* Units of fp16 directions bring their norm, and those of queries their largest element, to DIRECTION_TOP ..
 * 2 DIRECTION_TOP. With loss of conjugacy the norm of a direction stays below DIRECTION_NORM. */
#define DIRECTION_TOP 0x1p13f
#define DIRECTION_NORM (3 * DIRECTION_TOP)

/* A weight in fp16 may be off by 2^-25, and its key is at most the longest one: in the image this must be
 * little beside the ridge times the direction. Rows whose largest p times the square of the longest norm is
 * above this multiple of the ridge need float64. */
#define HALF_RANGE 0x1p28f

template <class T> static __device__ __forceinline__ float unit_of_largest(float largest)
{
    return is_half<T> ? magnitude(largest * (1 / DIRECTION_TOP)) : 1;
}

/* From the square of the norm, half of whose exponent is that of the norm. */
template <class T> static __device__ __forceinline__ float unit_of_norm(float norm2)
{
    const float norm = __uint_as_float((__float_as_uint(norm2) >> 1) + (127u << 22));
    return is_half<T> ? magnitude(norm * (1 / DIRECTION_TOP)) : 1;
}

/* What sums of weights times products with a direction are multiplied by. */
template <int DIM, bool DECAYED, class T>
static __device__ __forceinline__ float image_unit(const block_system<DIM, DECAYED, T> &sys,
                                                   const row_direction &own, int row)
{
    return is_half<T> ? own.unit[row] * power_of_two(-sys.weight_log2[row]) : 1;
}

/* Dot products of a row: direction . image, direction . direction, kbar . image. */
struct image_products {
    float curvature[2], size[2], mean[2];
};

/* y becomes the image (Cov + Lambda) direction, from y = sum f k and total = sum f (this thread's columns),
 * where f = p (direction . k - centre), in its unit: y - total kbar + Lambda direction. */
template <int PARTS, class SYSTEM>
static __device__ __forceinline__ image_products finish_image(float (&y)[SYSTEM::dim / TILE_SIDE][8][4],
                                                              const SYSTEM &sys, const row_direction &own,
                                                              float (&total)[2])
{
    constexpr int DIM = SYSTEM::dim;
    const auto kbar = sys.vector(VECTOR_KBAR), ridge = sys.vector(VECTOR_RIDGE);
    const float unit[2] = { image_unit(sys, own, 0), image_unit(sys, own, 1) };
    const float weight[2] = { own.unit[0] * power_inverse(unit[0]), own.unit[1] * power_inverse(unit[1]) };
    image_products d = {};
    total[0] = quad_sum(total[0]), total[1] = quad_sum(total[1]);
    if (sys.ridge.channels) {
#pragma unroll
        for (int n = 0; n < DIM / 8; n++) {
#pragma unroll
            for (int e = 0; e < 2 * SYSTEM::rows; e += 2) {
                const float2 p = direction_pair<PARTS>(sys, n, e);
                y[n / 8][n % 8][e] += weight[e / 2] * ridge.get(4 * n + e) * p.x;
                y[n / 8][n % 8][e + 1] += weight[e / 2] * ridge.get(4 * n + e + 1) * p.y;
            }
        }
    }
    const float common[2] = { sys.ridge.channels ? 0 : sys.ridge.number[0],
                              sys.ridge.channels ? 0 : sys.ridge.number[1] };
#pragma unroll
    for (int n = 0; n < DIM / 8; n++) {
#pragma unroll
        for (int e = 0; e < 2 * SYSTEM::rows; e += 2) {
            const int row = e / 2;
            float2 p = direction_pair<PARTS>(sys, n, e);
            p.x *= own.unit[row], p.y *= own.unit[row];
            const float mean[2] = { kbar.get(4 * n + e), kbar.get(4 * n + e + 1) };
            float *image = &y[n / 8][n % 8][e];
            image[0] = common[row] * p.x + unit[row] * (image[0] - total[row] * mean[0]);
            image[1] = common[row] * p.y + unit[row] * (image[1] - total[row] * mean[1]);
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

/* y = sum f k and total = sum f (this thread's columns) over the keys, where f = p (direction . k - centre).
 * own.centre is direction . kbar up to rounding; the error that it leaves in f is taken out by finish_image,
 * which subtracts kbar times the sum of f. */
template <int PARTS, int KEYS, int DIM, bool DECAYED, class T>
static __device__ __forceinline__ void sum_image(float (&y)[DIM / TILE_SIDE][8][4],
                                                 const block_system<DIM, DECAYED, T> &sys,
                                                 const row_direction &own, float (&total)[2])
{
    total[0] = total[1] = 0;
    weights_operand<PARTS, 4, T> w;
    pass_weights<DIM, DECAYED, T, PARTS, false> f(sys, own, total);
    plain_sums<KEYS == KEY_SEGMENTS, DIM, T> segments(sys.sm, sys.block.first);
    clear_sums<DIM>(y);
    stream_pipelined<DIM, false, DIM <= 128>(
        sys.template ring<sweep_stages<KEYS, DIM>>(), sys.count, sys.maps, sys.block,
        [&](const auto &t) { f.score(t); },
        [&](const auto &t) {
            segments.begin_tile(t.j, total);
            f.weigh(t);
        },
        [&]() {
            wgmma_results(y);
            segments.end_segment(y);
            f.pack(w);
        },
        [&](const auto &t) {
            if (PARTS == 2) multiply_weights<DIM>(y, w.part[PARTS - 1], t.keys);
            multiply_weights<DIM>(y, w.part[0], t.keys);
        });
    wgmma_results(y);
    segments.finish(total, y);
}

/* y = (Cov + Lambda) direction. */
template <int PARTS, int KEYS = ALL_KEYS, class SYSTEM>
static __device__ __forceinline__ image_products compute_image(float (&y)[SYSTEM::dim / TILE_SIDE][8][4],
                                                               const SYSTEM &sys, const row_direction &own)
{
    float total[2];
    sum_image<PARTS, KEYS>(y, sys, own, total);
    return finish_image<PARTS>(y, sys, own, total);
}

/* The vector y becomes the direction, in the unit that own has. */
template <int PARTS, class SYSTEM>
static __device__ __forceinline__ void put_direction(const SYSTEM &sys,
                                                     const float (&y)[SYSTEM::dim / TILE_SIDE][8][4],
                                                     row_direction &own)
{
    constexpr int DIM = SYSTEM::dim;
    const auto kbar = sys.vector(VECTOR_KBAR);
    const float inverse[2] = { power_inverse(own.unit[0]), power_inverse(own.unit[1]) };
    own.centre[0] = own.centre[1] = 0;
#pragma unroll
    for (int n = 0; n < DIM / 8; n++) {
#pragma unroll
        for (int e = 0; e < 2 * SYSTEM::rows; e += 2) {
            const int row = e / 2;
            const float2 p = set_direction_pair<PARTS>(
                sys, n, e, { y[n / 8][n % 8][e] * inverse[row], y[n / 8][n % 8][e + 1] * inverse[row] });
            own.centre[row] += p.x * kbar.get(4 * n + e) + p.y * kbar.get(4 * n + e + 1);
        }
    }
    own.centre[0] = quad_sum(own.centre[0]), own.centre[1] = quad_sum(own.centre[1]);
    sys.direction_written();
    sys.direction_complete();
}

/* The solution x in the scratch becomes the direction, rounded to bf16 where `narrow`; y is clobbered. */
template <int PARTS, class SYSTEM>
static __device__ __forceinline__ void direction_from_solution(const SYSTEM &sys,
                                                               float (&y)[SYSTEM::dim / TILE_SIDE][8][4],
                                                               row_direction &own, bool narrow = false)
{
    typedef typename SYSTEM::type T;
    constexpr int DIM = SYSTEM::dim;
    const auto x = sys.vector(VECTOR_X);
    float top[2] = { 0, 0 };
#pragma unroll
    for (int n = 0; n < DIM / 2; n++) {
        const float at = x.get(n);
        y[n / 32][n / 4 % 8][n % 4] = narrow ? rounded<1>(at) : at;
        top[n / 2 % 2] = fmaxf(top[n / 2 % 2], fabsf(y[n / 32][n / 4 % 8][n % 4]));
    }
    const float largest[2] = { magnitude(quad_max(top[0])), magnitude(quad_max(top[1])) };
    const float inverse[2] = { power_inverse(largest[0]), power_inverse(largest[1]) };
    float norm2[2] = { 0, 0 };
#pragma unroll
    for (int n = 0; is_half<T> && n < DIM / 2; n++) {
        const float e = y[n / 32][n / 4 % 8][n % 4] * inverse[n / 2 % 2];
        norm2[n / 2 % 2] += e * e;
    }
#pragma unroll
    for (int row = 0; row < 2; row++)
        own.unit[row] = is_half<T> ? magnitude(largest[row] * unit_of_norm<T>(quad_sum(norm2[row]))) : 1;
    put_direction<PARTS>(sys, y, own);
}

/* Writes the ridge of each channel to the scratch, where the problem has one for each channel. */
template <class SYSTEM> static __device__ __forceinline__ void put_ridge(const SYSTEM &sys)
{
    constexpr int DIM = SYSTEM::dim;
    const lane_vector ridge = sys.vector(VECTOR_RIDGE);
    if (sys.ridge.channels) {
#pragma unroll 1
        for (int n = 0; n < DIM / 2; n++) {
            ridge.put(
                n, ridge_at(sys.ridge, sys.p, sys.a, sys.block, sys.r, n / 2 % 2, column_of(n / 4, n % 4)));
        }
    }
}

#endif
