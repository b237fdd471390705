/* SPDX-License-Identifier: MIT
 * Rows by their number: words, positions, answers. */
#include "train/cuda/sum.cuh"
#include "train/cuda/weights.cuh"

enum { ROW_THREADS = 256, RUNS = 16, AHEAD = 8 }; /* runs of the batch that one thread sums over, and reads */

static __device__ __forceinline__ int number_of(numbers list, int64_t m, int64_t i)
{
    return list.data[m * list.model + i];
}

/* Of every row i of `all`: GATHER, out_i = from[at_i], 0 where at_i < 0; else out[at_i] = from_i. */
template <int N, bool GATHER>
static __global__ void __launch_bounds__(ROW_THREADS)
    row_kernel(view out, view from, numbers at, unsigned packs, unsigned all)
{
    const unsigned n = blockIdx.x * ROW_THREADS + threadIdx.x, m = blockIdx.y;
    if (n >= all) return;
    const int64_t i = n / packs, other = number_of(at, m, i);
    const int c = (int)(n % packs) * N;
    float x[N] = {};
    if (!GATHER && other < 0) return;
    if (!GATHER || other >= 0) load<N>(x, from, m, GATHER ? other : i, c);
    store<N>(out, m, GATHER ? i : other, c, x);
}

/* A matrix whose rows are chosen by number: even one row has a stride. */
static view view_numbered(matrix a)
{
    view v = view_of(a);
    v.row = a.row;
    return v;
}

template <bool GATHER>
static void move_rows(const machine *on, const char *name, matrix out, matrix from, numbers at, int64_t rows)
{
    const view to = view_numbered(out), source = view_numbered(from);
    const bool four = out.width % 4 == 0 && view_aligned(to) && view_aligned(source);
    const int64_t packs = four ? out.width / 4 : out.width, all = packs * rows;
    const dim3 grid((unsigned)((all + ROW_THREADS - 1) / ROW_THREADS), (unsigned)out.models);
    assert(all < INT32_MAX - ROW_THREADS);
    if (four)
        row_kernel<4, GATHER>
            <<<grid, ROW_THREADS, 0, on->gpu->stream>>>(to, source, at, (unsigned)packs, (unsigned)all);
    else
        row_kernel<1, GATHER>
            <<<grid, ROW_THREADS, 0, on->gpu->stream>>>(to, source, at, (unsigned)packs, (unsigned)all);
    gpu_launched(on, name);
}

template <int N>
static __global__ void __launch_bounds__(ROW_THREADS)
    embed_kernel(view e, view table, numbers tokens, view positions, int length, unsigned packs, unsigned all)
{
    const unsigned n = blockIdx.x * ROW_THREADS + threadIdx.x, m = blockIdx.y;
    if (n >= all) return;
    const int i = (int)(n / packs), c = (int)(n % packs) * N;
    float x[N], more[N];
    load<N>(x, table, m, number_of(tokens, m, i), c);
    load<N>(more, positions, m, i % length, c);
#pragma unroll
    for (int k = 0; k < N; k++)
        x[k] += more[k];
    store<N>(e, m, i, c, x);
}

extern "C" void cuda_embed(const machine *on, matrix e, matrix table, numbers tokens, matrix positions)
{
    if (table.dtype == LOAM_F16) {
        weights_from_half(on, e, table, tokens);
        if (positions.data) cuda_add_positions(on, e, positions);
        return;
    }
    const view to = view_of(e), from = view_numbered(table), more = view_numbered(positions);
    const bool four = e.width % 4 == 0 && view_aligned(to) && view_aligned(from) && view_aligned(more);
    const int64_t packs = four ? e.width / 4 : e.width, all = packs * e.rows;
    const dim3 grid((unsigned)((all + ROW_THREADS - 1) / ROW_THREADS), (unsigned)e.models);
    const int length = positions.data ? (int)positions.rows : 1;
    assert(all < INT32_MAX - ROW_THREADS);
    const auto kernel = four ? embed_kernel<4> : embed_kernel<1>;
    kernel<<<grid, ROW_THREADS, 0, on->gpu->stream>>>(to, from, tokens, more, length, (unsigned)packs,
                                                      (unsigned)all);
    gpu_launched(on, "embed");
}

extern "C" void cuda_gather(const machine *on, matrix out, matrix x, numbers at)
{
    move_rows<true>(on, "gather", out, x, at, out.rows);
}

extern "C" void cuda_put_rows(const machine *on, matrix out, matrix x, numbers at)
{
    move_rows<false>(on, "put_rows", out, x, at, x.rows);
}

extern "C" void cuda_scatter(const machine *on, matrix out, matrix g, numbers at)
{
    const matrix zero = {};
    each(on, "scatter", out, { view_of(out) }, { view_of(zero) },
         [] __device__(float *y, const float *x) { y[0] = x[0]; });
    cuda_put_rows(on, out, g, at);
}

template <int N>
static __global__ void __launch_bounds__(ROW_THREADS)
    scatter_add_kernel(view out, view operand, view g, numbers at, unsigned packs, unsigned all)
{
    const unsigned n = blockIdx.x * ROW_THREADS + threadIdx.x, m = blockIdx.y;
    if (n >= all) return;
    const int64_t i = n / packs, to = number_of(at, m, i);
    const int c = (int)(n % packs) * N;
    float x[N], more[N];
    if (to < 0) return;
    load<N>(x, out, m, to, c);
    load<N>(more, g, m, i, c);
#pragma unroll
    for (int k = 0; k < N; k++)
        x[k] += more[k];
    store<N>(out, m, to, c, x);
    store<N>(operand, m, to, c, x);
}

extern "C" void cuda_scatter_add(const machine *on, matrix out, matrix operand, matrix g, numbers at)
{
    const view to = view_numbered(out), also = view_numbered(operand), from = view_numbered(g);
    const bool four = g.width % 4 == 0 && view_aligned(to) && view_aligned(also) && view_aligned(from);
    const int64_t packs = four ? g.width / 4 : g.width, all = packs * g.rows;
    const dim3 grid((unsigned)((all + ROW_THREADS - 1) / ROW_THREADS), (unsigned)out.models);
    assert(all < INT32_MAX - ROW_THREADS);
    const auto kernel = four ? scatter_add_kernel<4> : scatter_add_kernel<1>;
    kernel<<<grid, ROW_THREADS, 0, on->gpu->stream>>>(to, also, from, at, (unsigned)packs, (unsigned)all);
    gpu_launched(on, "scatter_add");
}

template <int N>
static __global__ void __launch_bounds__(ROW_THREADS)
    positions_kernel(view e, view positions, int length, unsigned packs, unsigned all)
{
    const unsigned n = blockIdx.x * ROW_THREADS + threadIdx.x, m = blockIdx.y;
    if (n >= all) return;
    const int i = (int)(n / packs), c = (int)(n % packs) * N;
    float x[N], more[N];
    load<N>(x, e, m, i, c);
    load<N>(more, positions, m, i % length, c);
#pragma unroll
    for (int k = 0; k < N; k++)
        x[k] += more[k];
    store<N>(e, m, i, c, x);
}

extern "C" void cuda_add_positions(const machine *on, matrix e, matrix positions)
{
    const view to = view_of(e), from = view_of(positions);
    const bool four = e.width % 4 == 0 && view_aligned(to) && view_aligned(from);
    const int64_t packs = four ? e.width / 4 : e.width, all = packs * e.rows;
    const dim3 grid((unsigned)((all + ROW_THREADS - 1) / ROW_THREADS), (unsigned)e.models);
    assert(all < INT32_MAX - ROW_THREADS);
    if (four)
        positions_kernel<4><<<grid, ROW_THREADS, 0, on->gpu->stream>>>(to, from, (int)positions.rows,
                                                                       (unsigned)packs, (unsigned)all);
    else
        positions_kernel<1><<<grid, ROW_THREADS, 0, on->gpu->stream>>>(to, from, (int)positions.rows,
                                                                       (unsigned)packs, (unsigned)all);
    gpu_launched(on, "add_positions");
}

/* partial [models][chunks of runs][length][width]: of each place, the sum over the runs of a chunk. */
template <int N>
static __global__ void __launch_bounds__(ROW_THREADS)
    positions_back_kernel(float *partial, view g, int length, int runs, unsigned packs, unsigned all)
{
    const unsigned n = blockIdx.x * ROW_THREADS + threadIdx.x, m = blockIdx.z;
    if (n >= all) return;
    const int t = (int)(n / packs), c = (int)(n % packs) * N;
    const int first = (int)blockIdx.y * RUNS, end = min(first + RUNS, runs);
    float sum[N] = {};
    for (int run = first; run < end; run += AHEAD) {
        float x[AHEAD][N] = {};
#pragma unroll
        for (int r = 0; r < AHEAD; r++)
            if (run + r < end) fetch<N>(x[r], g, m, (int64_t)(run + r) * length + t, c);
#pragma unroll
        for (int r = 0; r < AHEAD; r++) {
            widen<N>(x[r], g);
#pragma unroll
            for (int k = 0; k < N; k++)
                sum[k] += x[r][k];
        }
    }
    float *to = partial + ((int64_t)m * gridDim.y + blockIdx.y) * all * N + (int64_t)n * N;
#pragma unroll
    for (int k = 0; k < N; k++)
        to[k] = sum[k];
}

extern "C" void cuda_add_positions_back(const machine *on, matrix dpositions, matrix g)
{
    const view from = view_of(g);
    const int64_t runs = g.rows / dpositions.rows, chunks = (runs + RUNS - 1) / RUNS;
    const bool four = g.width % 4 == 0 && view_aligned(from);
    const int64_t packs = four ? g.width / 4 : g.width, all = packs * dpositions.rows;
    float *partial = (float *)gpu_scratch(on->gpu, (size_t)(g.models * chunks * dpositions.rows * g.width) *
                                                       sizeof *partial);
    if (!partial) return;
    assert(all < INT32_MAX - ROW_THREADS && g.rows == runs * dpositions.rows);
    const dim3 grid((unsigned)((all + ROW_THREADS - 1) / ROW_THREADS), (unsigned)chunks, (unsigned)g.models);
    if (four)
        positions_back_kernel<4><<<grid, ROW_THREADS, 0, on->gpu->stream>>>(
            partial, from, (int)dpositions.rows, (int)runs, (unsigned)packs, (unsigned)all);
    else
        positions_back_kernel<1><<<grid, ROW_THREADS, 0, on->gpu->stream>>>(
            partial, from, (int)dpositions.rows, (int)runs, (unsigned)packs, (unsigned)all);
    gpu_launched(on, "add_positions_back");
    sum_fold(on, dpositions, partial, chunks, false);
}

template <int N>
static __global__ void __launch_bounds__(ROW_THREADS)
    clear_kernel(view x, int length, int first, unsigned packs, unsigned all)
{
    const unsigned n = blockIdx.x * ROW_THREADS + threadIdx.x;
    if (n >= all) return;
    const int cleared = length - first, i = (int)(n / packs), c = (int)(n % packs) * N;
    const float zeros[N] = {};
    store<N>(x, blockIdx.y, i / cleared * length + first + i % cleared, c, zeros);
}

extern "C" void cuda_clear_rows(const machine *on, matrix x, int64_t length, int64_t first)
{
    const view to = view_of(x);
    const bool four = x.width % 4 == 0 && view_aligned(to);
    const int64_t packs = four ? x.width / 4 : x.width, all = packs * (x.rows / length) * (length - first);
    const dim3 grid((unsigned)((all + ROW_THREADS - 1) / ROW_THREADS), (unsigned)x.models);
    assert(x.rows % length == 0 && all < INT32_MAX - ROW_THREADS);
    if (all == 0) return;
    const auto kernel = four ? clear_kernel<4> : clear_kernel<1>;
    kernel<<<grid, ROW_THREADS, 0, on->gpu->stream>>>(to, (int)length, (int)first, (unsigned)packs,
                                                      (unsigned)all);
    gpu_launched(on, "clear_rows");
}
