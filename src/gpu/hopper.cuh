/* SPDX-License-Identifier: MIT
 *
 * Instructions of Hopper GPUs (sm_90a), one function each: matrix products of a warpgroup (wgmma), bulk
 * copies (TMA), and the barriers in shared memory (mbarrier) on which bulk loads complete.
 *
 * A tile for wgmma is [rows][64 columns] of bf16 or fp16, 64 rows unless said otherwise, in the 128-byte
 * swizzle: row r starts at byte 128 r, and its 16-byte chunk n is stored as chunk n ^ (r % 8). A tile starts
 * at a multiple of 1024 bytes. Accumulators and register operands have the fragments of mma.cuh: warp w of
 * the warpgroup has rows 16 w .. 16 w + 15.
 */
#ifndef LOAM_GPU_HOPPER_CUH
#define LOAM_GPU_HOPPER_CUH

#include "src/gpu/tile.cuh"

#include <cuda.h>

enum { TILE_SIDE = 64, TILE_ELEMENTS = TILE_SIDE * TILE_SIDE };

/* ------------------------------------------------------------------ barriers */

/* A phase completes after `arrivals` arrivals. */
static __device__ __forceinline__ void barrier_init(uint64_t *barrier, unsigned arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals)
                 : "memory");
}

/* Arrives; the phase then completes only after `bytes` of bulk copies as well. */
static __device__ __forceinline__ void barrier_expect(uint64_t *barrier, unsigned bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
                 "r"(bytes)
                 : "memory");
}

/* Waits until the phase of this parity has completed. */
static __device__ __forceinline__ void barrier_wait(uint64_t *barrier, unsigned parity)
{
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n"
                 "}\n" ::"r"(shared_address(barrier)),
                 "r"(parity)
                 : "memory");
}

static __device__ __forceinline__ void barrier_arrive(uint64_t *barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

/* Makes writes of this thread to shared memory, mbarrier inits included, visible to bulk copies and wgmma. */
static __device__ __forceinline__ void fence_async_proxy()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* ------------------------------------------------------------------ roles of warpgroups */

/* Sets the registers of a thread to COUNT, a multiple of 8: one warpgroup releases registers, another
 * acquires them. All warps of the warpgroup execute it. */
template <int COUNT> static __device__ __forceinline__ void registers_release()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT> static __device__ __forceinline__ void registers_acquire()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

/* A named barrier of the 128 threads of a warpgroup. Barrier 0 is that of __syncthreads. */
static __device__ __forceinline__ void warpgroup_sync(int barrier)
{
    asm volatile("bar.sync %0, 128;" ::"r"(barrier) : "memory");
}

/* A named barrier of THREADS threads, in whole warps: named_barrier_sync waits until all of them have come,
 * named_barrier_arrive does not wait. What any of them wrote before it came is visible to those that waited.
 */
template <int THREADS> static __device__ __forceinline__ void named_barrier_sync(int barrier)
{
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(THREADS) : "memory");
}
template <int THREADS> static __device__ __forceinline__ void named_barrier_arrive(int barrier)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"(THREADS) : "memory");
}

/* The same as named_barrier_sync; tells whether x is true in any of the threads. */
template <int THREADS> static __device__ __forceinline__ bool named_barrier_or(int barrier, bool x)
{
    int any;
    asm volatile("{\n"
                 ".reg .pred own, all;\n"
                 "setp.ne.b32 own, %1, 0;\n"
                 "bar.red.or.pred all, %2, %3, own;\n"
                 "selp.b32 %0, 1, 0, all;\n"
                 "}\n"
                 : "=r"(any)
                 : "r"((int)x), "r"(barrier), "n"(THREADS)
                 : "memory");
    return any != 0;
}

/* ------------------------------------------------------------------ launches that overlap */

/* Programmatic dependent launch: once every block has called this, the next kernel of the stream may start,
 * if it was launched with that attribute. */
static __device__ __forceinline__ void launch_dependents()
{
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/* Waits until the previous kernel of the stream has ended and its writes are visible. */
static __device__ __forceinline__ void wait_for_previous_launch()
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

/* ------------------------------------------------------------------ bulk copies */

/* Copies the box at channel c, token t, head h, batch b of the tensor into a tile; completes on `barrier`. */
static __device__ __forceinline__ void load_box(void *tile, const CUtensorMap *map, uint64_t *barrier, int c,
                                                int t, int h, int b)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(shared_address(tile)),
                 "l"(map), "r"(shared_address(barrier)), "r"(c), "r"(t), "r"(h), "r"(b)
                 : "memory");
}

/* Copies `bytes`, which is a multiple of 16, as both addresses are; completes on `barrier`. */
static __device__ __forceinline__ void load_bytes(void *shared, const void *global, unsigned bytes,
                                                  uint64_t *barrier)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            shared_address(shared)),
        "l"(global), "r"(bytes), "r"(shared_address(barrier))
        : "memory");
}

/* Stores a tile to the box at channel c, token t, head h, batch b. A fence_async_proxy comes between the
 * threads' writes to the tile and this. */
static __device__ __forceinline__ void store_box(const CUtensorMap *map, const void *tile, int c, int t,
                                                 int h, int b)
{
    asm volatile(
        "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
        "r"(shared_address(tile)), "r"(c), "r"(t), "r"(h), "r"(b)
        : "memory");
}

static __device__ __forceinline__ void store_commit()
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* Waits until all but the last `pending` groups of stores of this thread have read their tiles, which may
 * then be overwritten. */
template <int pending> static __device__ __forceinline__ void store_wait()
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
}

/* ------------------------------------------------------------------ operands into shared memory */

/* The inverses of load_matrices and load_matrices_transposed. */
static __device__ __forceinline__ void store_matrices(void *row, const uint32_t (&r)[4])
{
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)),
        "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
        : "memory");
}

static __device__ __forceinline__ void store_matrices_transposed(void *row, const uint32_t (&r)[4])
{
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)),
        "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
        : "memory");
}

/* ------------------------------------------------------------------ products of a warpgroup */

/* The descriptor of tiles for wgmma, from its low half. The high half is constant: 1024 bytes from one group
 * of eight rows to the next, 128-byte swizzle. */
static __device__ __forceinline__ uint64_t descriptor_of(uint32_t low)
{
    uint64_t descriptor;
    asm("mov.b64 %0, {%1, %2};" : "=l"(descriptor) : "r"(low), "n"(1024 >> 4 | 1 << 30));
    return descriptor;
}

/* The low half of a descriptor. An address `elements` of 16 bits further on makes it greater by elements / 8.
 * `next`: bytes from the tile of columns 0 .. 63 to that of columns 64 .. 127, for products that read
 * both. */
static __device__ __forceinline__ uint32_t descriptor_low(const void *tile, unsigned next = 1024)
{
    return (uint32_t)shared_address(tile) >> 4 | next >> 4 << 16;
}

static __device__ __forceinline__ void wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
static __device__ __forceinline__ void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int pending> static __device__ __forceinline__ void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

/* Stands between a wait for products and the first use of their accumulators: without it the compiler may
 * move the use before the wait. */
template <int BLOCKS> static __device__ __forceinline__ void wgmma_results(float (&d)[BLOCKS][4])
{
#pragma unroll
    for (int n = 0; n < BLOCKS; n++)
        asm volatile("" : "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])::"memory");
}

template <int TILES> static __device__ __forceinline__ void wgmma_results(float (&d)[TILES][8][4])
{
#pragma unroll
    for (int n = 0; n < TILES; n++)
        wgmma_results(d[n]);
}

#define WGMMA_4(d, n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define WGMMA_16(d, n) WGMMA_4(d, n), WGMMA_4(d, n + 1), WGMMA_4(d, n + 2), WGMMA_4(d, n + 3)
#define WGMMA_32(d) WGMMA_16(d, 0), WGMMA_16(d, 4)
#define WGMMA_REGISTERS_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define WGMMA_REGISTERS_24 WGMMA_REGISTERS_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define WGMMA_REGISTERS_32 \
    WGMMA_REGISTERS_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_REGISTERS_48 \
    WGMMA_REGISTERS_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define WGMMA_REGISTERS_64 \
    WGMMA_REGISTERS_48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

/* A product of SHAPE with operands of type T, bf16 or fp16; the rest are the operands of asm, of which number
 * ADD is the predicate that says whether d is added to. */
#define WGMMA(T, SHAPE, ADD, OPERANDS, ...) \
    if constexpr (is_half<T>) \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" ADD ", 0;\nwgmma.mma_async.sync.aligned." SHAPE \
                     ".f32.f16.f16 " OPERANDS ";\n}\n" __VA_ARGS__); \
    else \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" ADD ", 0;\nwgmma.mma_async.sync.aligned." SHAPE \
                     ".f32.bf16.bf16 " OPERANDS ";\n}\n" __VA_ARGS__)

/* d (+)= A B^T over 16 columns, d = A B^T where `add` is 0. Both operands are read by rows from shared
 * memory; B has 32, 48, 64, 96 or 128 rows. */
template <class T>
static __device__ __forceinline__ void wgmma_rows(float (&d)[4][4], uint64_t a, uint64_t b, int add)
{
    WGMMA(T, "m64n32k16", "18", "{" WGMMA_REGISTERS_16 "}, %16, %17, p, 1, 1, 0, 0",
          : WGMMA_16(d, 0)
          : "l"(a), "l"(b), "r"(add));
}

template <class T>
static __device__ __forceinline__ void wgmma_rows(float (&d)[6][4], uint64_t a, uint64_t b, int add)
{
    WGMMA(T, "m64n48k16", "26", "{" WGMMA_REGISTERS_24 "}, %24, %25, p, 1, 1, 0, 0",
          : WGMMA_16(d, 0), WGMMA_4(d, 4), WGMMA_4(d, 5)
          : "l"(a), "l"(b), "r"(add));
}

template <class T>
static __device__ __forceinline__ void wgmma_rows(float (&d)[8][4], uint64_t a, uint64_t b, int add)
{
    WGMMA(T, "m64n64k16", "34", "{" WGMMA_REGISTERS_32 "}, %32, %33, p, 1, 1, 0, 0",
          : WGMMA_32(d)
          : "l"(a), "l"(b), "r"(add));
}

template <class T>
static __device__ __forceinline__ void wgmma_rows(float (&d)[12][4], uint64_t a, uint64_t b, int add)
{
    WGMMA(T, "m64n96k16", "50", "{" WGMMA_REGISTERS_48 "}, %48, %49, p, 1, 1, 0, 0",
          : WGMMA_32(d), WGMMA_16(d, 8)
          : "l"(a), "l"(b), "r"(add));
}

template <class T>
static __device__ __forceinline__ void wgmma_rows(float (&d)[16][4], uint64_t a, uint64_t b, int add)
{
    WGMMA(T, "m64n128k16", "66", "{" WGMMA_REGISTERS_64 "}, %64, %65, p, 1, 1, 0, 0",
          : WGMMA_32(d), WGMMA_16(d, 8), WGMMA_16(d, 12)
          : "l"(a), "l"(b), "r"(add));
}

/* The same with A from registers, B of 32 or 64 rows. */
template <class T>
static __device__ __forceinline__ void wgmma_rows(float (&d)[4][4], const uint32_t (&a)[4], uint64_t b,
                                                  int add)
{
    WGMMA(T, "m64n32k16", "21", "{" WGMMA_REGISTERS_16 "}, {%16, %17, %18, %19}, %20, p, 1, 1, 0",
          : WGMMA_16(d, 0)
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

template <class T>
static __device__ __forceinline__ void wgmma_rows(float (&d)[8][4], const uint32_t (&a)[4], uint64_t b,
                                                  int add)
{
    WGMMA(T, "m64n64k16", "37", "{" WGMMA_REGISTERS_32 "}, {%32, %33, %34, %35}, %36, p, 1, 1, 0",
          : WGMMA_32(d)
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

/* d (+)= A B over 16 rows of B: A from registers, B from shared memory, with 64 or 128 columns. */
template <class T>
static __device__ __forceinline__ void wgmma_weights(float (&d)[1][8][4], const uint32_t (&a)[4], uint64_t b,
                                                     int add)
{
    WGMMA(T, "m64n64k16", "37", "{" WGMMA_REGISTERS_32 "}, {%32, %33, %34, %35}, %36, p, 1, 1, 1",
          : WGMMA_32(d[0])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

template <class T>
static __device__ __forceinline__ void wgmma_weights(float (&d)[2][8][4], const uint32_t (&a)[4], uint64_t b,
                                                     int add)
{
    WGMMA(T, "m64n128k16", "69", "{" WGMMA_REGISTERS_64 "}, {%64, %65, %66, %67}, %68, p, 1, 1, 1",
          : WGMMA_32(d[0]), WGMMA_32(d[1])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

/* d (+)= A^T B over 16 rows of both, which have 64 columns each in shared memory. */
template <class T>
static __device__ __forceinline__ void wgmma_transposed(float (&d)[8][4], uint64_t a, uint64_t b, int add)
{
    WGMMA(T, "m64n64k16", "34", "{" WGMMA_REGISTERS_32 "}, %32, %33, p, 1, 1, 1, 1",
          : WGMMA_32(d)
          : "l"(a), "l"(b), "r"(add));
}

/* s (+)= rows tile^T: `rows` [64][DIM] and `tile` [8 BLOCKS][DIM], each as DIM / 64 tiles side by side.
 * Asynchronous until a commit and a wait. more_rows must follow a wgmma_fence since which no register of
 * its operands and accumulators has changed; multiply_rows has its own. Each wgmma_fence waits for the
 * products before it. */
template <int DIM, int BLOCKS, class T>
static __device__ __forceinline__ void more_rows(float (&s)[BLOCKS][4], const T *rows, const T *tile,
                                                 bool add)
{
    const uint32_t a = descriptor_low(rows), b = descriptor_low(tile);
#pragma unroll
    for (int n = 0; n < DIM / TILE_SIDE; n++) {
#pragma unroll
        for (int k = 0; k < TILE_SIDE; k += 16) {
            wgmma_rows<T>(s, descriptor_of(a + (n * TILE_ELEMENTS + k) / 8),
                          descriptor_of(b + (n * 8 * BLOCKS * TILE_SIDE + k) / 8), add || n + k > 0);
        }
    }
}

/* The same with `rows` from registers, which saves the products bandwidth of shared memory. */
template <int DIM, int BLOCKS, class T>
static __device__ __forceinline__ void more_rows(float (&s)[BLOCKS][4], const uint32_t (&rows)[DIM / 16][4],
                                                 const T *tile, bool add)
{
    const uint32_t b = descriptor_low(tile);
#pragma unroll
    for (int k = 0; k < DIM; k += 16) {
        wgmma_rows<T>(s, rows[k / 16],
                      descriptor_of(b + (k / TILE_SIDE * 8 * BLOCKS * TILE_SIDE + k % TILE_SIDE) / 8),
                      add || k > 0);
    }
}

template <int DIM, int BLOCKS, class ROWS, class T>
static __device__ __forceinline__ void multiply_rows(float (&s)[BLOCKS][4], const ROWS &rows, const T *tile,
                                                     bool add)
{
    wgmma_fence();
    more_rows<DIM>(s, rows, tile, add);
}

/* 64 rows of DIM channels, in DIM / 64 tiles, as operands from registers. */
template <int DIM, class T>
static __device__ __forceinline__ void load_rows(uint32_t (&a)[DIM / 16][4], const T *rows)
{
    const int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane % 16;
#pragma unroll
    for (int k = 0; k < DIM; k += 16) {
        const int c = k + lane / 16 * 8;
        load_matrices(a[k / 16], rows + c / TILE_SIDE * TILE_ELEMENTS + row * TILE_SIDE +
                                     (c % TILE_SIDE / 8 ^ row % 8) * 8);
    }
}

/* 64 x 16 STEPS weights as operands from registers: part[n] is the n-th of the PARTS parts of each weight, of
 * type T. */
template <int PARTS, int STEPS = 4, class T = __nv_bfloat16> struct weights_operand {
    uint32_t part[PARTS][STEPS][4];
};

template <int PARTS, int STEPS, int BLOCKS, class T>
static __device__ __forceinline__ void split_weights(weights_operand<PARTS, STEPS, T> &a,
                                                     const float (&w)[BLOCKS][4])
{
    static_assert(BLOCKS == 2 * STEPS, "a step is 16 columns of weights");
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            uint32_t part[PARTS];
            split_pair<T>(part, w[2 * k + e / 2][e % 2 * 2], w[2 * k + e / 2][e % 2 * 2 + 1]);
#pragma unroll
            for (int p = 0; p < PARTS; p++)
                a.part[p][k][e] = part[p];
        }
    }
}

/* out (+)= w tile: w [64][16 STEPS], tile [16 STEPS][DIM]; out = w tile where `add` is false. Asynchronous
 * until a commit and a wait. */
template <int DIM, int STEPS, class T>
static __device__ __forceinline__ void more_weights(float (&out)[DIM / TILE_SIDE][8][4],
                                                    const uint32_t (&w)[STEPS][4], const T *tile,
                                                    bool add = true)
{
    const uint32_t b = descriptor_low(tile, STEPS * 16 * TILE_SIDE * 2);
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
#pragma unroll
        for (int n = 0; n < DIM / TILE_SIDE; n += 2) {
            const uint64_t part = descriptor_of(b + (n * STEPS + k) * 16 * TILE_SIDE / 8);
            if (n + 1 < DIM / TILE_SIDE)
                wgmma_weights<T>(*(float(*)[2][8][4])out[n], w[k], part, add || k > 0);
            else
                wgmma_weights<T>(*(float(*)[1][8][4])out[n], w[k], part, add || k > 0);
        }
    }
}

template <int DIM, int STEPS, class T>
static __device__ __forceinline__ void multiply_weights(float (&out)[DIM / TILE_SIDE][8][4],
                                                        const uint32_t (&w)[STEPS][4], const T *tile)
{
    wgmma_fence();
    more_weights<DIM>(out, w, tile);
}

/* out = columns^T tile, for two tiles of 64 rows. Asynchronous until a commit and a wait. */
template <class T>
static __device__ __forceinline__ void multiply_transposed(float (&out)[8][4], const T *columns,
                                                           const T *tile)
{
    const uint32_t a = descriptor_low(columns), b = descriptor_low(tile);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < TILE_SIDE; k += 16) {
        wgmma_transposed<T>(out, descriptor_of(a + k * TILE_SIDE / 8), descriptor_of(b + k * TILE_SIDE / 8),
                            k > 0);
    }
}

/* The offset, in elements, of (row, column) in DIM / 64 swizzled tiles of 64 rows, side by side. */
static __device__ __forceinline__ int swizzled(int row, int column)
{
    const int c = column % TILE_SIDE;
    return column / TILE_SIDE * TILE_ELEMENTS + row * TILE_SIDE + ((c / 8 ^ row % 8) * 8 | c % 8);
}

#endif
