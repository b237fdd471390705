/* SPDX-License-Identifier: MIT
 *
 * The solver of Local Linear Attention on Hopper, for the forward pass and for the adjoint solve of the
 * backward pass: the state of a block of 64 rows, the product of Cov + Lambda with a direction (its image),
 * and conjugate gradients.
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

/* Rows that take more iterations stop at `late_stop`: rounding adds more to their residual. */
enum { FEW_ITERATIONS = 4 };

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
constexpr unsigned sweep_stages = KEYS == ALL_KEYS        ? ring_stages<DIM>
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

/* The systems of a thread block that has a multiprocessor to itself: their vectors lie in shared memory, which
 * is nearer than the scratch. */
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

/* Must the row iterate on? It stops where its residual is below `stop` and where it would also be accepted,
 * by the condition number met so far and with a margin for rounding. */
static __device__ __forceinline__ bool unsolved(const cg_rows &cg, const cg_tolerance &tolerance, int row)
{
    const float sure = 0.64f * tolerance.accept * tolerance.accept;
    const float stop = cg.iterations[row] > FEW_ITERATIONS ? tolerance.late_stop : tolerance.stop;
    return cg.rr[row] > stop * stop * cg.bb[row] ||
           (!tolerance.by_residual && cg.rr[row] * cg.most[row] > sure * cg.bb[row] * cg.least[row]);
}

/* Where a rate is asked for, a row whose residual, relative to b, is above envelope_start rate^n after n >= 3
 * steps would not converge in time, nor one above second_residual after two. Residuals first rise where the
 * spectrum is wide. The first step tells by the largest residual of the block together with the largest
 * Rayleigh quotient of its directions, relative to the ridge. Blocks of four layers of a trained model had
 * residuals of 1.2 to 3.6 with quotients of 9 to 46 at ridge 1, which takes 8 to 14 steps; at 0.1, which
 * takes more than 20, 2.5 to 6.7 with 83 to 454, or 1.3 to 1.8 with 253 to 359. Normal keys at 0.01, which
 * take 10 to 20, had 0.5 to 1.6 with 110 to 189. With 128 channels, two heads of these side by side, it was
 * 2.7 to 4.3 with 9 to 68, which takes 11 to 15 steps, and up to 2.4 after two; at 0.1, 4.1 to 9.1 with 84 to
 * 673. */
template <int DIM> constexpr float envelope_start = DIM == 64 ? 2.4f : 4.0f;
template <int DIM> constexpr float second_residual = DIM == 64 ? 2.0f : 3.0f;
#define FIRST_RESIDUAL 2.0f
#define FIRST_QUOTIENT 75.0f
#define FIRST_RESIDUAL_WIDE 1.2f
#define FIRST_QUOTIENT_WIDE 230.0f

/* Would a row of the block take too long, by its residual after `count` steps? any(x): is x true of any row
 * of the block? All of its threads call it, and what they ask does not depend on their rows. */
template <int DIM, class ANY>
static __device__ __forceinline__ bool too_slow(const cg_rows &cg, const cg_tolerance &tolerance,
                                                const image_products &d, const float (&least)[2],
                                                float envelope, int count, ANY &&any)
{
    const auto beyond = [&](float limit) {
        return any((cg.live[0] && cg.rr[0] > limit * limit * cg.bb[0]) ||
                   (cg.live[1] && cg.rr[1] > limit * limit * cg.bb[1]));
    };
    const auto wide = [&](float limit) {
        return any((cg.live[0] && d.curvature[0] > limit * least[0] * d.size[0]) ||
                   (cg.live[1] && d.curvature[1] > limit * least[1] * d.size[1]));
    };
    if (tolerance.widest > 0 && count == 1 && wide(tolerance.widest)) return true;
    if (!(tolerance.rate > 0)) return false;
    if (count > 2) return beyond(envelope);
    if (count == 2) return beyond(second_residual<DIM>);
    const bool slow = beyond(FIRST_RESIDUAL), slow_wide = beyond(FIRST_RESIDUAL_WIDE),
               far = wide(FIRST_QUOTIENT), far_wide = wide(FIRST_QUOTIENT_WIDE);
    return (slow && far) || (slow_wide && far_wide);
}

/* alpha of the live rows, r . z (plain: z = r) over the curvature, and the bounds of the spectrum that their
 * Rayleigh quotients give; 0 for the others. A row whose direction has no positive curvature stops. */
static __device__ __forceinline__ void cg_step_length(cg_rows &cg, const image_products &d,
                                                      const float (&rz)[2], float (&alpha)[2])
{
#pragma unroll
    for (int row = 0; row < 2; row++) {
        cg.iterations[row] += cg.live[row];
        cg.live[row] = cg.live[row] && d.curvature[row] > 0;
        alpha[row] = cg.live[row] ? rz[row] / d.curvature[row] : 0;
        if (cg.live[row]) {
            cg.least[row] = fminf(cg.least[row], d.curvature[row] / d.size[row]);
            cg.most[row] = fmaxf(cg.most[row], d.curvature[row] / d.size[row]);
        }
    }
}

/* x += alpha direction and r -= alpha image, in the scratch. y: the image, becomes r; rr: sums of its squares
 * (this thread's columns). */
template <int PARTS, class SYSTEM>
static __device__ __forceinline__ void cg_advance(const SYSTEM &sys,
                                                  float (&y)[SYSTEM::dim / TILE_SIDE][8][4],
                                                  const row_direction &own, const float (&alpha)[2],
                                                  float (&rr)[2])
{
    constexpr int DIM = SYSTEM::dim;
    const auto x = sys.vector(VECTOR_X), residual = sys.vector(VECTOR_R);
    const float step[2] = { alpha[0] * own.unit[0], alpha[1] * own.unit[1] };
    constexpr int piece = DIM <= 128 ? DIM / 2 : DIM / 4;
#pragma unroll
    for (int first = 0; first < DIM / 2; first += piece) {
        float old[piece]; /* all loads before any store */
#pragma unroll
        for (int n = 0; n < piece; n++)
            old[n] = residual.get(first + n);
#pragma unroll
        for (int n = 0; n < piece; n++) {
            const int at = first + n, row = at / 2 % 2;
            if (row >= SYSTEM::rows) continue;
            float &r = y[at / 32][at / 4 % 8][at % 4];
            r = old[n] - alpha[row] * r;
            rr[row] += r * r;
            old[n] = x.get(at);
        }
#pragma unroll
        for (int n = 0; n < piece; n += 2) {
            const int at = first + n, row = at / 2 % 2;
            if (row >= SYSTEM::rows) continue;
            const float(&r)[4] = y[at / 32][at / 4 % 8];
            const float2 p = direction_pair<PARTS>(sys, at / 4, at % 4);
            x.put(at, old[n] + step[row] * p.x), x.put(at + 1, old[n + 1] + step[row] * p.y);
            residual.put(at, r[at % 4]), residual.put(at + 1, r[at % 4 + 1]);
        }
    }
}

/* direction <- r + beta direction, with the unit of a vector whose square is norm2. A row that is not live
 * has direction 0: its residual may be so much smaller than the first one that rounding in the centre would
 * leave the range of fp16. cg_run has the centre by a recurrence. */
template <int PARTS, class SYSTEM>
static __device__ __forceinline__ void cg_update_direction(const SYSTEM &sys,
                                                           const float (&r)[SYSTEM::dim / TILE_SIDE][8][4],
                                                           const cg_rows &cg, const float (&norm2)[2],
                                                           const float (&beta)[2], row_direction &own)
{
    typedef typename SYSTEM::type T;
    constexpr int DIM = SYSTEM::dim;
    float inverse[2], factor[2];
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float unit = unit_of_norm<T>(norm2[row]);
        inverse[row] = !is_half<T> ? 1 : cg.live[row] ? power_inverse(unit) : 0;
        factor[row] = beta[row] * own.unit[row] * inverse[row];
        own.unit[row] = unit;
    }
#pragma unroll
    for (int n = 0; n < DIM / 8; n++) {
#pragma unroll
        for (int e = 0; e < 2 * SYSTEM::rows; e += 2) {
            float2 p = direction_pair<PARTS>(sys, n, e);
            p.x = r[n / 8][n % 8][e] * inverse[e / 2] + factor[e / 2] * p.x;
            p.y = r[n / 8][n % 8][e + 1] * inverse[e / 2] + factor[e / 2] * p.y;
            set_direction_pair<PARTS>(sys, n, e, p);
        }
    }
    sys.direction_written();
}

/* What conjugate gradients know of the thread's rows beside cg_rows: the direction, and the products of the
 * residual and of the direction with kbar. */
struct cg_direction {
    row_direction own;
    float mean[2], centre[2];
};

/* The residual, which lies in its vector, becomes the first direction; y is clobbered. */
template <int PARTS, class SYSTEM>
static __device__ __forceinline__ void cg_first(const SYSTEM &sys, const cg_rows &cg,
                                                float (&y)[SYSTEM::dim / TILE_SIDE][8][4], cg_direction &to)
{
    typedef typename SYSTEM::type T;
    const auto residual = sys.vector(VECTOR_R);
    to.own = { { unit_of_norm<T>(cg.rr[0]), unit_of_norm<T>(cg.rr[1]) }, { 0, 0 } };
#pragma unroll
    for (int n = 0; n < SYSTEM::dim / 2; n++)
        y[n / 32][n / 4 % 8][n % 4] = residual.get(n);
    put_direction<PARTS>(sys, y, to.own);
#pragma unroll
    for (int row = 0; row < 2; row++)
        to.centre[row] = to.mean[row] = to.own.centre[row] * to.own.unit[row];
}

/* A step, from the image y of the direction and its products to the next direction; y is clobbered. */
template <int PARTS, class SYSTEM>
static __device__ __forceinline__ void cg_step(const SYSTEM &sys, cg_rows &cg, const cg_tolerance &tolerance,
                                               float (&y)[SYSTEM::dim / TILE_SIDE][8][4],
                                               const image_products &d, cg_direction &to)
{
    float alpha[2], beta[2], rr[2] = { 0, 0 };
    cg_step_length(cg, d, cg.rr, alpha);
    cg_advance<PARTS>(sys, y, to.own, alpha, rr);
#pragma unroll
    for (int row = 0; row < 2; row++) {
        rr[row] = quad_sum(rr[row]);
        beta[row] = cg.live[row] ? rr[row] / cg.rr[row] : 0;
        cg.rr[row] = cg.live[row] ? rr[row] : cg.rr[row];
        cg.live[row] = cg.live[row] && unsolved(cg, tolerance, row);
    }
    const float norm2[2] = { cg.rr[0] + beta[0] * beta[0] * d.size[0],
                             cg.rr[1] + beta[1] * beta[1] * d.size[1] };
    cg_update_direction<PARTS>(sys, y, cg, norm2, beta, to.own);
#pragma unroll
    for (int row = 0; row < 2; row++) {
        to.mean[row] -= alpha[row] * d.mean[row];
        to.centre[row] = to.mean[row] + beta[row] * to.centre[row];
        to.own.centre[row] = is_half<typename SYSTEM::type> && !cg.live[row]
                                 ? 0
                                 : to.centre[row] * power_inverse(to.own.unit[row]);
    }
}

/* Conjugate gradients for the rows that are live, from x and its residual r, which lie in the scratch. */
template <int PARTS, int KEYS = ALL_KEYS, class SYSTEM>
static __device__ __forceinline__ void cg_run(const SYSTEM &stored, cg_rows &rows,
                                              const cg_tolerance &tolerance)
{
    constexpr int DIM = SYSTEM::dim;
    const row_pair r = stored.r;
    const row_ridge ridge = stored.ridge;
    const SYSTEM sys = system_in_registers(stored, r, ridge);
    cg_rows cg = rows;
    cg_direction direction;
    float y[DIM / TILE_SIDE][8][4];
    put_ridge(sys);
    cg_first<PARTS>(sys, cg, y, direction);
    float envelope = envelope_start<DIM>;
    for (int count = 0; count < tolerance.most && __syncthreads_or(cg.live[0] || cg.live[1]); count++) {
        const image_products d = compute_image<PARTS, KEYS>(y, sys, direction.own);
        cg_step<PARTS>(sys, cg, tolerance, y, d, direction);
        envelope *= tolerance.rate;
        if (too_slow<DIM>(cg, tolerance, d, sys.ridge.least, envelope, count + 1,
                          [](bool x) { return __syncthreads_or(x) != 0; }))
            break;
    }
    rows = cg;
}

/* y, scaled to about 1, becomes b; x = 0 and r = b. top: the largest |y| of the thread's columns. */
template <class SYSTEM>
static __device__ __forceinline__ void start_cg(const SYSTEM &sys, cg_rows &cg, float (&y)[SYSTEM::dim / 2],
                                                const float (&top)[2], const bool (&wanted)[2])
{
    constexpr int DIM = SYSTEM::dim;
    const auto x = sys.vector(VECTOR_X), r = sys.vector(VECTOR_R), b = sys.vector(VECTOR_B);
    float bb[2] = { 0, 0 };
    cg.unit[0] = magnitude(quad_max(top[0])), cg.unit[1] = magnitude(quad_max(top[1]));
    const float inverse[2] = { 1 / cg.unit[0], 1 / cg.unit[1] };
#pragma unroll
    for (int n = 0; n < DIM / 2; n++) {
        const int row = n / 2 % 2;
        y[n] *= inverse[row];
        b.put(n, y[n]), r.put(n, y[n]), x.put(n, 0);
        bb[row] += y[n] * y[n];
    }
#pragma unroll
    for (int row = 0; row < 2; row++) {
        cg.bb[row] = cg.rr[row] = quad_sum(bb[row]);
        cg.live[row] = wanted[row] && cg.bb[row] > 0 && cg.bb[row] < INFINITY;
        cg.least[row] = INFINITY, cg.most[row] = 0;
        cg.iterations[row] = 0;
    }
}

#endif
