/* SPDX-License-Identifier: MIT
 * The products of word losses on Hopper. A block keeps 128 rows, or 128 words, and goes through tiles of the
 * others: two warpgroups make the logits of 64 of its rows each, turn them into weights and multiply these
 * with the same tile; a thread of the third copies tiles. */
#include "src/gpu/ring.cuh"
#include "train/cuda/word_loss.h"

enum { STAGES = 4, GROUP = 128, CONSUMERS = 2, WORD_THREADS = (CONSUMERS + 1) * GROUP };
enum { COLUMNS_64 = WORD_TILE * TILE_SIDE, TILE_BYTES = WORD_ELEMENTS * 2 };

typedef __nv_bfloat16 bf16;

static const float log2_e = 1.44269504f;

struct word_shared {
    bf16 fixed[WORD_ELEMENTS], tile[STAGES][WORD_ELEMENTS];
    float scale[STAGES][WORD_TILE]; /* of a tile of rows */
    int target[STAGES][WORD_TILE];
    ring_barriers<STAGES> ring;
    uint64_t fixed_full;
};

/* Tiles first .. end - 1 of what the block goes through. */
struct word_range {
    int first, end;
};

static __device__ __forceinline__ word_range range_of(int tiles, int part, int parts)
{
    return { (int)((int64_t)tiles * part / parts), (int)((int64_t)tiles * (part + 1) / parts) };
}

static __device__ __forceinline__ word_shared &shared_room()
{
    extern __shared__ char room[];
    return *(word_shared *)(room + (1024 - shared_address(room) % 1024) % 1024);
}

/* By all threads of the block. */
static __device__ __forceinline__ void begin(word_shared &sm)
{
    if (threadIdx.x == 0) {
        ring_init(sm.ring, CONSUMERS * GROUP / 32);
        barrier_init(&sm.fixed_full, 1);
        fence_async_proxy();
    }
    __syncthreads();
}

/* One thread copies the tile that stays, and the others; with the scales and targets of their rows, where
 * these are given. */
static __device__ __forceinline__ void produce(word_shared &sm, const bf16 *fixed, const bf16 *tiles,
                                               const float *scale, const int *target, word_range range)
{
    const unsigned more = scale ? WORD_TILE * 8 : 0;
    barrier_expect(&sm.fixed_full, TILE_BYTES);
    load_bytes(sm.fixed, fixed, TILE_BYTES, &sm.fixed_full);
    for (int t = range.first; t < range.end; t++) {
        const unsigned count = (unsigned)(t - range.first);
        uint64_t *full = ring_acquire(sm.ring, count, TILE_BYTES + more);
        load_bytes(sm.tile[count % STAGES], tiles + (int64_t)t * WORD_ELEMENTS, TILE_BYTES, full);
        if (!scale) continue;
        load_bytes(sm.scale[count % STAGES], scale + t * WORD_TILE, WORD_TILE * 4, full);
        load_bytes(sm.target[count % STAGES], target + t * WORD_TILE, WORD_TILE * 4, full);
    }
}

/* s = the products of 64 rows of a tile with all of another. */
static __device__ __forceinline__ void logits_of(float (&s)[16][4], const bf16 *rows, const bf16 *tile)
{
    const uint32_t a = descriptor_low(rows), b = descriptor_low(tile);
#pragma unroll
    for (int c = 0; c < WORD_WIDTH; c += TILE_SIDE)
#pragma unroll
        for (int k = 0; k < TILE_SIDE; k += 16) {
            const int at = (c / TILE_SIDE * COLUMNS_64 + k) / 8;
            wgmma_rows<bf16>(s, descriptor_of(a + at), descriptor_of(b + at), c + k > 0);
        }
}

/* What a warpgroup adds up: out [64][WORD_WIDTH] += weights(s) tile over the tiles of the range. The logits
 * of a tile are made together with the product of the one before. weights(s, stage, t, out) may scale `out`.
 */
template <class F>
static __device__ __forceinline__ void consume(word_shared &sm, float (&out)[2][8][4], word_range range,
                                               F weights)
{
    const bf16 *rows = sm.fixed + threadIdx.x / GROUP * TILE_ELEMENTS;
    const unsigned count = (unsigned)(range.end - range.first);
    float s[16][4];
#pragma unroll
    for (int n = 0; n < 16; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            out[n / 8][n % 8][e] = s[n][e] = 0;
    barrier_wait(&sm.fixed_full, 0);
    if (count == 0) return;
    ring_wait(sm.ring, 0);
    wgmma_fence();
    logits_of(s, rows, sm.tile[0]);
    wgmma_commit();
    for (unsigned n = 0; n < count; n++) {
        weights_operand<1, 8> w;
        wgmma_wait<0>();
        wgmma_results(s);
        wgmma_results(out);
        if (n > 0) ring_release(sm.ring, n - 1);
        weights(s, n % STAGES, range.first + (int)n, out);
        split_weights(w, s);
        if (n + 1 < count) ring_wait(sm.ring, n + 1);
        wgmma_fence();
        more_weights<WORD_WIDTH>(out, w.part[0], sm.tile[n % STAGES]);
        if (n + 1 < count) logits_of(s, rows, sm.tile[(n + 1) % STAGES]);
        wgmma_commit();
    }
    wgmma_wait<0>();
    wgmma_results(out);
}

/* The first of the two rows of out that this thread has, among the 128 of its block; the other is 8 on. */
static __device__ __forceinline__ int row_of()
{
    return (int)threadIdx.x / 32 * 16 + (int)threadIdx.x % 32 / 4;
}
static __device__ __forceinline__ int column_of() { return (int)threadIdx.x % 4 * 2; }

/* Rows of `to` are those of the block. */
static __device__ __forceinline__ void store_out(float *to, const float (&out)[2][8][4], float by)
{
#pragma unroll
    for (int c = 0; c < 2; c++)
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int r = 0; r < 2; r++)
                *(float2 *)(to + (row_of() + 8 * r) * WORD_WIDTH + c * TILE_SIDE + 8 * n +
                            column_of()) = make_float2(out[c][n][2 * r] * by, out[c][n][2 * r + 1] * by);
}

/* ---- rows: sums of weights, and of weights times words */

/* The maximum of a row moves only where it grows by more, to base 2: any number near it will do, and sums
 * then need scaling for few tiles. */
static const float slack = 8;

struct row_sums {
    word_sums of[2];
    int target[2];
};

/* Where the tile of words has the target of a row its logit is taken out. */
static __device__ __forceinline__ void take_targets(float (&s)[16][4], row_sums &sums, int word)
{
    const int off[2] = { sums.target[0] - word, sums.target[1] - word };
    const bool here = (unsigned)off[0] < WORD_TILE || (unsigned)off[1] < WORD_TILE;
    if (!__any_sync(0xffffffffu, here)) return;
#pragma unroll
    for (int n = 0; n < 16; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (8 * n + e % 2 + column_of() == off[e / 2])
                sums.of[e / 2].wanted = s[n][e], s[n][e] = -INFINITY;
}

static __device__ __forceinline__ void row_weights(float (&s)[16][4], row_sums &sums, int word,
                                                   float (&out)[2][8][4])
{
    float most[2] = { -INFINITY, -INFINITY };
#pragma unroll
    for (int n = 0; n < 16; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            most[e / 2] = fmaxf(most[e / 2], s[n][e]);
    take_targets(s, sums, word);
    bool grows = false;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        sums.of[r].most = fmaxf(sums.of[r].most, most[r]);
        grows = grows || most[r] * log2_e > sums.of[r].top + slack;
    }
    if (__any_sync(0xffffffffu, grows)) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float top = quad_max(most[r]) * log2_e;
            if (!(top > sums.of[r].top + slack)) continue;
            const float by = exp2_fast(sums.of[r].top - top);
            sums.of[r].top = top, sums.of[r].rest *= by;
#pragma unroll
            for (int n = 0; n < 16; n++)
                out[n / 8][n % 8][2 * r] *= by, out[n / 8][n % 8][2 * r + 1] *= by;
        }
    }
#pragma unroll
    for (int n = 0; n < 16; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            s[n][e] = exp2_fast(fmaf(s[n][e], log2_e, -sums.of[e / 2].top));
            sums.of[e / 2].rest += s[n][e];
        }
}

static __global__ void __launch_bounds__(WORD_THREADS, 1) word_rows_kernel(const word_job job)
{
    const int m = (int)blockIdx.z, part = (int)blockIdx.y, block = (int)blockIdx.x;
    if (block * WORD_TILE >= job.count[m]) return;
    word_shared &sm = shared_room();
    const word_range range = range_of(job.word_tiles, part, job.word_parts);
    const int64_t row = ((int64_t)m * job.row_tiles + block) * WORD_TILE,
                  to = (((int64_t)m * job.word_parts + part) * job.row_tiles + block) * WORD_TILE;
    begin(sm);
    if (threadIdx.x >= CONSUMERS * GROUP) {
        registers_release<40>();
        if (threadIdx.x == CONSUMERS * GROUP)
            produce(sm, job.rows + row * WORD_WIDTH, job.words + (int64_t)m * job.word_tiles * WORD_ELEMENTS,
                    NULL, NULL, range);
    } else {
        registers_acquire<232>();
        float out[2][8][4];
        row_sums sums;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            sums.of[r] = { -INFINITY, 0, -INFINITY, -INFINITY };
            sums.target[r] = job.targets[row + row_of() + 8 * r];
        }
        consume(sm, out, range, [&](float(&s)[16][4], unsigned, int t, float(&so_far)[2][8][4]) {
            row_weights(s, sums, t * WORD_TILE, so_far);
        });
        store_out(job.means + to * WORD_WIDTH, out, 1);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            sums.of[r].rest = quad_sum(sums.of[r].rest);
            sums.of[r].most = quad_max(sums.of[r].most);
            sums.of[r].wanted = quad_max(sums.of[r].wanted);
            if (threadIdx.x % 4 == 0) job.sums[to + row_of() + 8 * r] = sums.of[r];
        }
    }
}

/* ---- words: gradients */

/* With p = softmax(logits): p - 1 at the target of a row, p elsewhere. */
static __device__ __forceinline__ void word_weights(float (&s)[16][4], const float *scale, const int *target,
                                                    int word)
{
#pragma unroll
    for (int n = 0; n < 16; n++) {
        const float2 by = *(const float2 *)(scale + 8 * n + column_of());
#pragma unroll
        for (int e = 0; e < 4; e++)
            s[n][e] = exp2_fast(fmaf(s[n][e], log2_e, e % 2 ? -by.y : -by.x));
    }
    const int4 mine = *(const int4 *)(target + (int)threadIdx.x % 32 * 4);
    const int first = word - (int)threadIdx.x % 32 / 4; /* of the warp's 16 */
    const bool here = (unsigned)(mine.x - first) < 16 || (unsigned)(mine.y - first) < 16 ||
                      (unsigned)(mine.z - first) < 16 || (unsigned)(mine.w - first) < 16;
    if (!__any_sync(0xffffffffu, here)) return;
#pragma unroll
    for (int n = 0; n < 16; n++) {
        const int2 at = *(const int2 *)(target + 8 * n + column_of());
#pragma unroll
        for (int e = 0; e < 4; e++)
            if ((e % 2 ? at.y : at.x) == word + e / 2 * 8) s[n][e] -= 1;
    }
}

static __global__ void __launch_bounds__(WORD_THREADS, 1) word_words_kernel(const word_job job)
{
    const int m = (int)blockIdx.z, part = (int)blockIdx.y, block = (int)blockIdx.x;
    word_shared &sm = shared_room();
    const word_range range = range_of((job.count[m] + WORD_TILE - 1) / WORD_TILE, part, job.row_parts);
    const int64_t row = (int64_t)m * job.row_tiles * WORD_TILE,
                  word = ((int64_t)m * job.word_tiles + block) * WORD_TILE,
                  to = (((int64_t)m * job.row_parts + part) * job.word_tiles + block) * WORD_TILE;
    begin(sm);
    if (threadIdx.x >= CONSUMERS * GROUP) {
        registers_release<40>();
        if (threadIdx.x == CONSUMERS * GROUP)
            produce(sm, job.words + word * WORD_WIDTH, job.rows + row * WORD_WIDTH, job.scale + row,
                    job.targets + row, range);
    } else {
        registers_acquire<232>();
        float out[2][8][4];
        consume(sm, out, range, [&](float(&s)[16][4], unsigned stage, int, float(&)[2][8][4]) {
            word_weights(s, sm.scale[stage], sm.target[stage], block * WORD_TILE + row_of());
        });
        store_out(job.parts + to * WORD_WIDTH, out, 1 / (float)job.counts[m]);
    }
}

/* ---- launches */

static cudaError_t launch(void (*kernel)(word_job), dim3 grid, const word_job *job, cudaStream_t stream)
{
    const int shared = (int)sizeof(word_shared) + 1024;
    const cudaError_t code = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                  shared);
    if (code != cudaSuccess) return code;
    kernel<<<grid, WORD_THREADS, shared, stream>>>(*job);
    return cudaGetLastError();
}

cudaError_t word_rows_launch(const word_job *job, cudaStream_t stream)
{
    return launch(word_rows_kernel,
                  dim3((unsigned)job->row_tiles, (unsigned)job->word_parts, (unsigned)job->models), job,
                  stream);
}

cudaError_t word_words_launch(const word_job *job, cudaStream_t stream)
{
    return launch(word_words_kernel,
                  dim3((unsigned)job->word_tiles, (unsigned)job->row_parts, (unsigned)job->models), job,
                  stream);
}
