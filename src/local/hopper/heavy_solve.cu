/* SPDX-License-Identifier: MIT
 *
 * The systems of Local Linear Attention on Hopper, of forward and of the adjoint solve, for listed blocks
 * of 64 rows: conjugate gradients with a matrix for each row as preconditioner. Three launches for each wave
 * of the list: the heavy keys of the rows, the inverses of their matrices, the steps and what follows from
 * the solution. In one kernel they would leave each other too few registers.
 */
#include "src/local/hopper/forward_rows.cuh"
#include "src/local/hopper/heavy.cuh"
#include "src/local/hopper/pcg.cuh"
#include "src/local/hopper/row_factor_wide.cuh"

/* What the launches of a wave share. */
struct heavy_launch {
    const solve_launch &all;
    const heavy_wave &wave;
};

/* Barriers of a thread block that takes one block of rows after another. */
template <int DIM> static __device__ __forceinline__ void init_barriers(solver_shared<DIM, __half> &sm)
{
    if (threadIdx.x == 0) {
        for (int n = 0; n < (int)ring_stages<DIM>; n++)
            barrier_init(&sm.full[n], 1);
        for (int n = 0; n < (THREADS / 32) * (int)factor_stages<DIM>; n++)
            barrier_init(&factor_barriers(sm)[n], 1);
        barrier_init(&sm.query_full, 1);
        fence_async_proxy();
    }
}

/* The next block of rows of this wave, its number on the list in sm.listed; false where there is none. */
template <int DIM>
static __device__ __forceinline__ bool claim_listed(solver_shared<DIM, __half> &sm,
                                                    const heavy_launch &launch, int64_t *counter)
{
    const solve_launch &all = launch.all;
    __syncthreads();
    if (threadIdx.x == 0) {
        const int64_t slot = claim_slot(counter, wave_blocks(*all.heavy, all.work, launch.wave), launch.wave);
        sm.listed = slot < 0 ? -1 : launch.wave.base + slot;
        if (slot >= 0) {
            sm.block = all.heavy->listed[sm.listed];
            sm.rows = row_block_at(all.p, all.a, sm.block);
        }
    }
    __syncthreads();
    return sm.listed >= 0;
}

/* The weights of the thread's rows of a listed block, by their array: [ROWS]. */
static __device__ __forceinline__ void load_weights(row_weight (&weight)[2], const row_weight *from,
                                                    const row_pair &r)
{
    weight[0] = from[r.at[0]], weight[1] = from[r.at[1]];
}

/* ------------------------------------------------------------------ the heavy keys */

template <int DIM, bool DECAYED>
static __device__ __forceinline__ void list_rows(solver_shared<DIM, __half> &sm, ring_count &count,
                                                 unsigned queries, const heavy_launch &launch)
{
    const solve_launch &all = launch.all;
    const row_block &block = sm.rows;
    const row_pair r = row_pair_of(all.p, block);
    row_ridge ridge = {};
    block_system<DIM, DECAYED, __half> sys = block_system_of<DIM, DECAYED>(all.p, all.a, block, r, ridge,
                                                                           all.maps, sm, count, NULL);
    row_weight weight[2];
    list_limit limit[2];
    float mean[8];
    load_weights(weight, all.heavy->weight + sm.listed * ROWS, r);
    const float lse2[2] = { weight[0].lse2, weight[1].lse2 },
                largest[2] = { weight[0].largest, weight[1].largest };
    sys.units = half_units_of(*all.copy, all.p, sm.block / all.p.heads_q % all.p.batch, block.h_kv);
    load_block_queries(sys, queries);
    set_weights(sys, lse2, largest);
    ridge = ridge_in_units(all.p, all.a, block, r, sys.units, largest);
    const bool wanted[2] = { within_range(sys, largest, 0), within_range(sys, largest, 1) };
    count_pass(sys, limit, mean);
    list_pass(sys, limit, wanted, mean, all.heavy->slot<DIM>(sm.listed - launch.wave.base));
}

template <int DIM, bool DECAYED>
__global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    heavy_keys_kernel(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                      const local_saved saved, const solve_work work, const __grid_constant__ qkv_maps maps,
                      const __grid_constant__ half_copy copy, const __grid_constant__ heavy_work heavy,
                      const heavy_wave wave)
{
    extern __shared__ __align__(1024) unsigned char swizzled_memory[];
    solver_shared<DIM, __half> &sm = *(solver_shared<DIM, __half> *)swizzled_memory;
    const solve_launch all = { p, a, saved, work, maps, &copy, &heavy };
    const heavy_launch launch = { all, wave };
    launch_dependents();
    wait_for_previous_launch();
    if (wave_blocks(heavy, work, wave) <= 0) return;
    ring_count count = { 0 };
    init_barriers(sm);
    for (unsigned n = 0; claim_listed(sm, launch, work.next_heavy); n++)
        list_rows<DIM, DECAYED>(sm, count, n, launch);
}

/* ------------------------------------------------------------------ their matrices */

/* Rows that a thread block takes at a time, and thread blocks of a multiprocessor. */
enum { MATRIX_ROWS = 16, MATRIX_BLOCKS = 3 };

/* Threads that have a row: with 64 channels a warp, else all. */
template <int DIM> constexpr int row_threads = DIM == 64 ? 32 : THREADS;
template <int DIM> constexpr int rows_at_once = THREADS / row_threads<DIM>;

/* Which of the rows at once is this thread's. */
template <int DIM> static __device__ __forceinline__ int own_row()
{
    return rows_at_once<DIM> > 1 ? (int)threadIdx.x / row_threads<DIM> : 0;
}

/* kbar and the list of a row, and of the next one of its threads. */
template <int DIM> struct row_lists {
    alignas(16) float mean[2][DIM];
    alignas(16) int32_t key[2][heavy_keys<DIM>];
    alignas(16) __half root[2][heavy_keys<DIM>];
};

template <int DIM> struct matrix_shared;

template <> struct matrix_shared<64> {
    alignas(16) unsigned char stage[THREADS / 32][GATHER_STAGES * GATHER_BYTES];
    alignas(16) float tail[tail_elements<64>];
    row_lists<64> lists[rows_at_once<64>];
    heavy_row row[MATRIX_ROWS];
    row_block block;
    half_units units;
};

/* Columns take the place of keys. */
template <> struct matrix_shared<128> {
    union {
        alignas(1024) __half keys[2][WIDE_DIM * TILE_SIDE];
        wide_column column[3];
    };
    alignas(16) float tail[tail_elements<128>];
    row_lists<128> lists[rows_at_once<128>];
    heavy_row row[MATRIX_ROWS];
    row_block block;
    half_units units;
    uint64_t ended;
};

/* Channel 8 n + g of a row, of a vector of a listed block. */
static __device__ __forceinline__ float channel_of_row(const float *vector, int at, int n, int g)
{
    const int thread = at / 16 * 32 + at % 8 * 4 + g / 2, element = 4 * n + at / 8 % 2 * 2 + g % 2;
    return vector[element * THREADS + thread];
}

/* The rows of a piece, from `first` on: keys of their head, kbar and weights of all rows of their block. */
template <int DIM> struct matrix_piece {
    const heavy_slot<DIM> &slot;
    const __half *keys;
    const float *kbar;
    const row_weight *weight;
    int first;
};

/* kbar of the next row, in the thread's channels. */
template <int DIM> struct asked_row {
    float mean[DIM / row_threads<DIM>];
};

/* Asks for what is needed of row i of a piece, before the row at hand is done. */
template <int DIM>
static __device__ __forceinline__ void ask_row(asked_row<DIM> &asked, matrix_shared<DIM> &sm,
                                               const matrix_piece<DIM> &piece, int i)
{
    constexpr int threads = row_threads<DIM>;
    const int at = piece.first + i, thread = (int)threadIdx.x % threads, turn = i / rows_at_once<DIM> % 2;
    const int whole = whole_squares(sm.row[i].count);
    row_lists<DIM> &to = sm.lists[own_row<DIM>()];
#pragma unroll
    for (int from = 0; from < heavy_keys<DIM>; from += 4 * threads) {
        const int n = from + 4 * thread;
        if (n < whole) copy_async_16(&to.key[turn][n], &piece.slot.keys(at)[n]);
    }
    static_assert(heavy_keys<DIM> <= 8 * threads, "a thread asks for eight roots");
    if (8 * thread < whole) copy_async_16(&to.root[turn][8 * thread], &piece.slot.roots(at)[8 * thread]);
    copy_async_commit();
#pragma unroll
    for (int n = 0; n < DIM / threads; n++) {
        const int channel = n * threads + thread;
        asked.mean[n] = channel_of_row(piece.kbar, at, channel / 8, channel % 8);
    }
}

/* What was asked for of row i is there for all of its threads. Returns its list. */
template <int DIM>
static __device__ __forceinline__ key_list take_row(const asked_row<DIM> &asked, matrix_shared<DIM> &sm,
                                                    int i)
{
    constexpr int threads = row_threads<DIM>;
    const int turn = i / rows_at_once<DIM> % 2;
    row_lists<DIM> &list = sm.lists[own_row<DIM>()];
    copy_async_wait<0>();
#pragma unroll
    for (int n = 0; n < DIM / threads; n++)
        list.mean[turn][n * threads + (int)threadIdx.x % threads] = asked.mean[n];
    rows_at_once<DIM> > 1 ? __syncwarp() : __syncthreads();
    return { list.key[turn], list.root[turn], sm.row[i].count };
}

/* The ridge of channels channel(n) of a row, in the unit of its matrix. */
template <int COUNT, class CHANNEL>
static __device__ __forceinline__ void matrix_ridge(float (&ridge)[COUNT], const solve_launch &all,
                                                    const row_block &block, int at, const half_units &units,
                                                    float largest, CHANNEL channel)
{
    const float square = CENTRED_SCALE * CENTRED_SCALE * ROOT_SCALE * ROOT_SCALE, both[2] = { largest, 0 };
    const row_pair r = { { at, at }, { true, false }, { 0, 0 }, { 0, 0 }, { 0, 0 } };
    const row_ridge own = ridge_in_units(all.p, all.a, block, r, units, both);
#pragma unroll
    for (int n = 0; n < COUNT; n++)
        ridge[n] = fmaxf(square * ridge_at(own, all.p, all.a, block, r, 0, channel(n)), LEAST_PIVOT);
}

/* The keys of the block's head, from its first one on. */
template <int DIM>
static __device__ __forceinline__ const __half *block_keys(const solve_launch &all, const row_block &block)
{
    return (const __half *)all.copy->keys.data +
           LOCAL_AT(all.copy->keys, block.s.b, block.h_kv, block.s.k0 + block.first);
}

/* s = C of the block times the weight that is not on the list. */
static __device__ __forceinline__ void begin_sums(square_sums (&s)[LOWER_SQUARES], const float *tail,
                                                  float mass)
{
#pragma unroll
    for (int i = 0; i < LOWER_SQUARES * 2; i++) {
        const float4 c = *(const float4 *)&tail[(i * 32 + (int)threadIdx.x % 32) * 4];
        float(&at_tile)[4] = s[i / 2].tile[i % 2];
        at_tile[0] = mass * c.x, at_tile[1] = mass * c.y;
        at_tile[2] = mass * c.z, at_tile[3] = mass * c.w;
    }
}

/* V of row i of a piece, of this warp, takes the place of its list. */
static __device__ __forceinline__ void row_factor(matrix_shared<64> &sm, const solve_launch &all,
                                                  const matrix_piece<64> &piece, int i, asked_row<64> &asked)
{
    const int warp = own_row<64>(), lane = threadIdx.x % 32, at = piece.first + i;
    const key_list list = take_row(asked, sm, i);
    const float largest = piece.weight[at].largest;
    if (i + rows_at_once<64> < MATRIX_ROWS) ask_row(asked, sm, piece, i + rows_at_once<64>);
    if (list.count == NO_MATRIX) return;
    square_sums s[LOWER_SQUARES];
    uint32_t centre[2 * SQUARES];
    float ridge[2 * SQUARES];
    const float *const mean = sm.lists[warp].mean[i / rows_at_once<64> % 2];
#pragma unroll
    for (int n = 0; n < 2 * SQUARES; n++)
        centre[n] = centre_of(mean[8 * n + lane / 4]);
    begin_sums(s, sm.tail, sm.row[i].mass);
    add_list(s, piece.keys, TILE_SIDE, list, centre, sm.stage[warp]);
    matrix_ridge(ridge, all, sm.block, at, sm.units, largest, [&](int n) { return 8 * n + lane / 4; });
    add_diagonal(s, ridge);
    uint32_t *const factor = piece.slot.factor + at * factor_words<64>;
    invert_matrix(s, LEAST_PIVOT, [&](int to, int from, const square_parts &v) {
        put_square(factor, lower_square(to, from), v.hi);
    });
}

/* Channels of kbar as the thread centres keys. */
static __device__ __forceinline__ void wide_centre(uint32_t (&centre)[4], const float *kbar)
{
    const float *const mean = kbar + threadIdx.x % WIDE_CHUNKS * 8;
#pragma unroll
    for (int pair = 0; pair < 4; pair++)
        centre[pair] = pack_pair<__half>(-CENTRED_SCALE * mean[2 * pair],
                                         -CENTRED_SCALE * mean[2 * pair + 1]);
}

static __device__ __forceinline__ void begin_sums(wide_sums &s, const float *tail, float mass, int warp)
{
    each_wide_square(
        s, warp,
        [&](int square, float(&x)[4], float(&y)[4]) {
            const float4 *const at = (const float4 *)tail + square * 2 * 32 + threadIdx.x % 32;
            const float4 c = at[0], d = at[32];
            x[0] = mass * c.x, x[1] = mass * c.y, x[2] = mass * c.z, x[3] = mass * c.w;
            y[0] = mass * d.x, y[1] = mass * d.y, y[2] = mass * d.z, y[3] = mass * d.w;
        });
}

/* V of row i of a piece, of all threads. */
static __device__ __forceinline__ void row_factor(matrix_shared<128> &sm, const solve_launch &all,
                                                  const matrix_piece<128> &piece, int i,
                                                  asked_row<128> &asked)
{
    const int warp = (int)warp_uniform(threadIdx.x / 32), lane = threadIdx.x % 32, at = piece.first + i;
    const key_list list = take_row(asked, sm, i);
    wide_gather gather;
    gather.load(piece.keys, list, 0);
    if (i + 1 < MATRIX_ROWS) ask_row(asked, sm, piece, i + 1);
    if (list.count == NO_MATRIX) return;
    wide_sums s = {};
    uint32_t centre[4];
    float ridge[4];
    matrix_ridge(ridge, all, sm.block, at, sm.units, piece.weight[at].largest,
                 [&](int n) { return n / 2 * TILE_SIDE + warp * SQUARE + n % 2 * 8 + lane / 4; });
    wide_centre(centre, sm.lists[0].mean[i % 2]);
    begin_sums(s, sm.tail, sm.row[i].mass, warp);
    add_list(s, gather, sm.keys, piece.keys, list, centre);
    wide_rows rows = wide_rows_of(s);
    add_diagonal(rows, ridge, warp);
    uint32_t *const factor = piece.slot.factor + at * factor_words<128>;
    const auto put = [&](int to, int from, const square_parts &v) {
        put_square(factor, lower_square(to, from), v.hi);
    };
    invert_matrix(rows, sm.column, warp, LEAST_PIVOT, &sm.ended, put);
}

static __device__ __forceinline__ void init_matrices(matrix_shared<64> &) {}
static __device__ __forceinline__ void init_matrices(matrix_shared<128> &sm)
{
    if (threadIdx.x == 0) barrier_init(&sm.ended, THREADS);
}

/* V of MATRIX_ROWS rows of block n of the list, from row `first` on. */
template <int DIM>
static __device__ __forceinline__ void piece_factors(matrix_shared<DIM> &sm, const heavy_launch &launch,
                                                     const heavy_slot<DIM> &slot, int64_t n, int first)
{
    const heavy_work &heavy = *launch.all.heavy;
    const matrix_piece<DIM> piece = { slot, block_keys<DIM>(launch.all, sm.block),
                                      heavy.vectors + n * listed_vectors<DIM>, heavy.weight + n * ROWS,
                                      first };
    const int own = own_row<DIM>();
    asked_row<DIM> asked;
    if (threadIdx.x < MATRIX_ROWS) sm.row[threadIdx.x] = slot.row[first + (int)threadIdx.x];
    __syncthreads();
    ask_row(asked, sm, piece, own);
#pragma unroll 1
    for (int i = own; i < MATRIX_ROWS; i += rows_at_once<DIM>)
        row_factor(sm, launch.all, piece, i, asked);
}

template <int DIM>
__global__ void __launch_bounds__(THREADS, MATRIX_BLOCKS)
    row_matrices_kernel(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                        const local_saved saved, const solve_work work, const __grid_constant__ qkv_maps maps,
                        const __grid_constant__ half_copy copy, const __grid_constant__ heavy_work heavy,
                        const heavy_wave wave)
{
    extern __shared__ __align__(1024) unsigned char swizzled_memory[];
    matrix_shared<DIM> &sm = *(matrix_shared<DIM> *)swizzled_memory;
    const solve_launch all = { p, a, saved, work, maps, &copy, &heavy };
    const heavy_launch launch = { all, wave };
    launch_dependents();
    init_matrices(sm);
    wait_for_previous_launch();
    const int64_t pieces = wave_blocks(heavy, work, wave) * (ROWS / MATRIX_ROWS);
    for (int64_t piece = blockIdx.x; piece < pieces; piece += gridDim.x) {
        const int64_t place = piece / (ROWS / MATRIX_ROWS), n = wave.base + place, number = heavy.listed[n];
        const heavy_slot<DIM> slot = heavy.slot<DIM>(place);
        __syncthreads();
        if (threadIdx.x == 0) {
            sm.block = row_block_at(p, a, number);
            sm.units = half_units_of(copy, p, number / p.heads_q % p.batch, sm.block.h_kv);
        }
        for (int i = threadIdx.x * 4; i < tail_elements<DIM>; i += THREADS * 4)
            *(float4 *)&sm.tail[i] = *(const float4 *)&slot.tail[i];
        __syncthreads();
        piece_factors(sm, launch, slot, n, (int)(piece % (ROWS / MATRIX_ROWS)) * MATRIX_ROWS);
    }
}

/* ------------------------------------------------------------------ the steps */

/* With `saved`, gradients follow, which need a more exact probe than o does. So does the adjoint of 128
 * channels, whose gradients at ridge 0.1 would else be off four times as far as those of 64. */
template <bool ADJOINT, int DIM> static __device__ __forceinline__ cg_tolerance heavy_tolerance(bool saved)
{
    const float stop = ADJOINT ? (DIM == 64 ? 1.2e-3f : 3e-4f) : saved ? 3e-4f : 3e-3f;
    return { stop, stop, saved ? 1e-3f : 5e-3f, 32, 0, true, 0 };
}

/* The vectors of a listed block into the scratch. */
template <int DIM, bool DECAYED, class T>
static __device__ __forceinline__ void load_listed(const block_system<DIM, DECAYED, T> &sys,
                                                   const heavy_work &heavy, int first, int second)
{
    const float *const from = heavy.vectors + sys.sm.listed * listed_vectors<DIM> + threadIdx.x;
    const lane_vector one = sys.vector(first), other = sys.vector(second);
    float x[DIM]; /* all loads before any store */
#pragma unroll
    for (int n = 0; n < DIM; n++)
        x[n] = from[n * THREADS];
#pragma unroll
    for (int n = 0; n < DIM / 2; n++)
        one.put(n, x[n]), other.put(n, x[DIM / 2 + n]);
}

/* b of the adjoint solve, from VECTOR_B, scaled to about 1. */
template <int DIM, bool DECAYED, class T>
static __device__ __forceinline__ void start_adjoint(const block_system<DIM, DECAYED, T> &sys, cg_rows &cg,
                                                     const bool (&wanted)[2])
{
    const lane_vector b = sys.vector(VECTOR_B);
    float y[DIM / 2], top[2] = { 0, 0 };
#pragma unroll
    for (int n = 0; n < DIM / 2; n++) {
        y[n] = b.get(n);
        top[n / 2 % 2] = fmaxf(top[n / 2 % 2], fabsf(y[n]));
    }
    start_cg(sys, cg, y, top, wanted);
}

/* x of the rows that are solved, and 0 of the others, in units that are not those of the keys. */
template <int DIM, bool DECAYED, class T>
static __device__ __forceinline__ void put_adjoint(const block_system<DIM, DECAYED, T> &sys,
                                                   const cg_rows &cg, const bool (&wanted)[2],
                                                   const heavy_work &heavy)
{
    float *const to = heavy.vectors + sys.sm.listed * listed_vectors<DIM> + threadIdx.x;
    const lane_vector x = sys.vector(VECTOR_X);
    const float inverse = power_inverse(sys.units.key);
    float scale[2];
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const bool solved = wanted[row] && !cg.live[row] &&
                            sys.ridge.least[row] > BLOCK_LEAST_RIDGE * cg.most[row];
        scale[row] = solved ? cg.unit[row] * inverse * inverse : 0;
    }
#pragma unroll
    for (int n = 0; n < DIM / 2; n++)
        to[n * THREADS] = scale[n / 2 % 2] > 0 ? scale[n / 2 % 2] * x.get(n) : 0;
}

template <bool ADJOINT, int DIM, bool DECAYED>
static __device__ __forceinline__ void solve_listed(solver_shared<DIM, __half> &sm, ring_count &count,
                                                    unsigned queries, unsigned &factors,
                                                    const heavy_launch &launch, float *scratch)
{
    const solve_launch &all = launch.all;
    const loam_args &a = all.a;
    const row_block &block = sm.rows;
    row_pair r_storage = row_pair_of(all.p, block);
    const row_pair &r = in_memory(r_storage);
    row_ridge ridge_storage = {};
    row_ridge &ridge = in_memory(ridge_storage);
    typedef block_system<DIM, DECAYED, __half> system;
    system sys_storage = block_system_of<DIM, DECAYED>(all.p, a, block, r, ridge, all.maps, sm, count,
                                                       scratch);
    row_weight weight_storage[2];
    row_weight(&weight)[2] = in_memory(weight_storage);
    load_weights(weight, all.heavy->weight + sm.listed * ROWS, r);
    const float lse2[2] = { weight[0].lse2, weight[1].lse2 },
                largest[2] = { weight[0].largest, weight[1].largest };
    sys_storage.units = half_units_of(*all.copy, all.p, sm.block / all.p.heads_q % all.p.batch, block.h_kv);
    load_block_queries(sys_storage, queries);
    system &sys = in_memory(sys_storage);
    set_weights(sys, lse2, largest);
    ridge = ridge_in_units(all.p, a, block, r, sys.units, largest);
    const cg_tolerance tolerance = heavy_tolerance<ADJOINT, DIM>(a.saved != NULL);
    const bool wanted[2] = { within_range(sys, largest, 0), within_range(sys, largest, 1) };
    cg_rows k_storage;
    cg_rows &cg = in_memory(k_storage);
    load_listed(sys, *all.heavy, VECTOR_KBAR, ADJOINT ? VECTOR_B : VECTOR_VBAR);
    put_ridge(sys);
    if (ADJOINT)
        start_adjoint(sys, cg, wanted);
    else
        start_solve(sys, cg, wanted);
    pcg_run<2>(sys, cg, tolerance, all.heavy->slot<DIM>(sm.listed - launch.wave.base).factor, factors);
    if constexpr (ADJOINT) {
        put_adjoint(sys, cg, wanted, *all.heavy);
    } else {
        float error2[2];
        bool finite[2];
        output_sweep<2>(sys, cg, all.saved, error2, finite);
        const row_verdict verdict[2] = { verdict_of(sys, cg, tolerance, 0, wanted[0] && finite[0], error2[0]),
                                         verdict_of(sys, cg, tolerance, 1, wanted[1] && finite[1],
                                                    error2[1]) };
        put_row_results(all, sm.block, block, r, cg, verdict, weight);
    }
}

template <bool ADJOINT, int DIM, bool DECAYED>
__global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    heavy_solve_kernel(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                       const local_saved saved, const solve_work work, const __grid_constant__ qkv_maps maps,
                       const __grid_constant__ half_copy copy, const __grid_constant__ heavy_work heavy,
                       const heavy_wave wave)
{
    extern __shared__ __align__(1024) unsigned char swizzled_memory[];
    solver_shared<DIM, __half> &sm = *(solver_shared<DIM, __half> *)swizzled_memory;
    const solve_launch all = { p, a, saved, work, maps, &copy, &heavy };
    const heavy_launch launch = { all, wave };
    launch_dependents();
    wait_for_previous_launch();
    if (wave_blocks(heavy, work, wave) <= 0) return;
    float *const scratch = work.scratch + (int64_t)blockIdx.x * VECTORS * (DIM / 2) * THREADS;
    ring_count count = { 0 };
    unsigned factors = 0;
    init_barriers(sm);
    for (unsigned n = 0; claim_listed(sm, launch, work.next_solved); n++)
        solve_listed<ADJOINT, DIM, DECAYED>(sm, count, n, factors, launch, scratch);
}

/* ------------------------------------------------------------------ the launches */

template <bool ADJOINT, int DIM, bool DECAYED>
static loam_status solve_waves(const loam_problem *p, const loam_args *a, const local_saved *saved,
                               const solve_work *work, const half_copy *copy, const heavy_work *heavy,
                               const qkv_maps *maps, loam_error *error)
{
    const int64_t blocks = (int64_t)row_blocks(p), resident = BLOCKS_PER_SM * solve_multiprocessors(),
                  grid = resident < heavy->slots ? resident : heavy->slots,
                  matrix_grid = MATRIX_BLOCKS * solve_multiprocessors();
    const size_t shared = sizeof(solver_shared<DIM, __half>);
    for (heavy_wave wave = { 0, 0 }; wave.base < blocks; wave.base += heavy->slots, wave.number++) {
        TRY(cuda_launch("heavy_keys_kernel", heavy_keys_kernel<DIM, DECAYED>, grid, THREADS, shared,
                        a->stream, true, error, *p, *a, *saved, *work, *maps, *copy, *heavy, wave));
        TRY(cuda_launch("row_matrices_kernel", row_matrices_kernel<DIM>, matrix_grid, THREADS,
                        sizeof(matrix_shared<DIM>), a->stream, true, error, *p, *a, *saved, *work, *maps,
                        *copy, *heavy, wave));
        TRY(cuda_launch("heavy_solve_kernel", heavy_solve_kernel<ADJOINT, DIM, DECAYED>, grid, THREADS,
                        shared, a->stream, true, error, *p, *a, *saved, *work, *maps, *copy, *heavy, wave));
    }
    return LOAM_OK;
}

template <bool ADJOINT>
static loam_status solve_all(const loam_problem *p, const loam_args *a, const local_saved *saved,
                             const solve_work *work, const half_copy *copy, const heavy_work *heavy,
                             const qkv_maps *maps, loam_error *error)
{
    auto *const waves = local_padded_dim(p) == 64
                            ? p->decay ? solve_waves<ADJOINT, 64, true> : solve_waves<ADJOINT, 64, false>
                        : p->decay ? solve_waves<ADJOINT, 128, true>
                                   : solve_waves<ADJOINT, 128, false>;
    return waves(p, a, saved, work, copy, heavy, maps, error);
}

loam_status heavy_forward(const loam_problem *p, const loam_args *a, const local_saved *saved,
                          const solve_work *work, const half_copy *copy, const heavy_work *heavy,
                          const qkv_maps *maps, loam_error *error)
{
    return solve_all<false>(p, a, saved, work, copy, heavy, maps, error);
}

loam_status heavy_adjoint(const loam_problem *p, const loam_args *a, const solve_work *work,
                          const half_copy *copy, const heavy_work *heavy, const qkv_maps *maps,
                          loam_error *error)
{
    const local_saved none = {};
    return solve_all<true>(p, a, &none, work, copy, heavy, maps, error);
}
