/* SPDX-License-Identifier: MIT
 *
 * Local Linear Attention forward on Hopper where blocks of rows are few: those in one part, with 64 channels,
 * which forward_solved.cu takes where they are many. The bits are the same.
 *
 * A cluster of thread blocks takes a block of 64 rows. Where the block sees many keys each thread block has a
 * segment of them, else the first one has all. Each owns 16 of the rows: the sums of all segments for these
 * come to it, it keeps their vectors in its shared memory, adds, takes a step of conjugate gradients, and
 * tells all of the next direction. Both ways are stores into the other's shared memory that complete on a
 * barrier there, which makes them visible to those who wait for it.
 */
#include "src/gpu/cluster.cuh"
#include "src/local/hopper/forward_few.cuh"
#include "src/local/hopper/forward_means.cuh"

enum { DIM = TILE_SIDE, OWN_ROWS = ROWS / SEGMENTS, OWN_THREADS = 4 * OWN_ROWS };
/* One that owns no row. */
enum { IDLE_THREAD = THREADS - 1 };
static_assert(OWN_ROWS == 16, "the rows of a warp are those of one thread block");

/* Fragments that a thread has to tell of a sweep: sums, two of them in the first and in the last sweep, and
 * numbers of its rows. */
enum {
    SUM = DIM / 8,
    NUMBERS = 2 * SUM,
    IMAGE_FRAGMENTS = SUM + 1,
    MEANS_FRAGMENTS = NUMBERS + 2,
    OUTPUT_FRAGMENTS = NUMBERS + 1
};

/* One number for each channel of the rows that a thread block owns. */
typedef float own_memory[OWN_ROWS * DIM];

/* In the place of stages that a share of the keys does not use: what segments tell of own rows, as fragments
 * of a warp; and kbar. b and vbar lie where values are summed by the first and by the last sweep only. */
struct few_room {
    float4 part[SEGMENTS][MEANS_FRAGMENTS][32];
    own_memory kbar;
};
static_assert(sizeof(few_room) <= (ring_stages<DIM> - SHARE_STAGES) * TILE_ELEMENTS * sizeof(__half),
              "room in the ring");
static_assert(2 * sizeof(own_memory) <= TILE_ELEMENTS * sizeof(__half), "room for x and r");

/* line: what owners tell of rows, by turns: unit and centre of the direction, and signs. */
struct few_shared {
    solver_shared<DIM, __half> solver; /* the lo part of its direction is x and r of own rows */
    float4 line[2][ROWS];
    float4 weight[ROWS]; /* lse to base 2, and the largest p */
    float query_unit[ROWS];
    uint64_t parts_full, lines_full[2];

    __device__ __forceinline__ few_room &room() { return *(few_room *)solver.stage[SHARE_STAGES]; }
};

/* Signs of a row: it iterates on; one part is not enough, or its true residual is too large; and, from
 * SIGN_RULE on, what too_slow asks. */
enum { SIGN_LIVE = 1, SIGN_MORE = 2, SIGN_RULE = 4 };

struct signs_asked {
    unsigned bits, next;
    __device__ __forceinline__ bool operator()(bool x)
    {
        bits |= x ? next : 0, next *= 2;
        return false;
    }
};
struct signs_told {
    unsigned bits, next;
    __device__ __forceinline__ bool operator()(bool)
    {
        const bool x = bits & next;
        next *= 2;
        return x;
    }
};

/* A vector of own rows: element 4 n + e is of fragment n, whose second row the thread does not have. */
struct own_vector {
    float *at;
    __device__ __forceinline__ float *place(int element) const
    {
        return at + (element / 4 * 2 + element % 2) * OWN_THREADS + threadIdx.x;
    }
    __device__ __forceinline__ float get(int element) const { return element % 4 < 2 ? *place(element) : 0; }
    __device__ __forceinline__ void put(int element, float x) const
    {
        if (element % 4 < 2) *place(element) = x;
    }
};

typedef block_system<DIM, false, __half> few_system;

/* The systems of own rows, one of a thread. */
struct own_system : few_system {
    static constexpr int rows = 1;
    few_shared &all;
    bool last; /* x and r are not needed any more */

    __device__ __forceinline__ own_vector vector(int which) const
    {
        float *const pair = (float *)sm.direction[1], *const second = pair + OWN_ROWS * DIM;
        few_room &room = all.room();
        return { which == VECTOR_X      ? pair
                 : which == VECTOR_R    ? second
                 : which == VECTOR_B    ? (last ? second : (float *)room.part[1][SUM])
                 : which == VECTOR_VBAR ? (last ? pair : (float *)room.part[0][SUM])
                                        : room.kbar };
    }
    __device__ __forceinline__ void direction_written() const {}
    __device__ __forceinline__ void direction_complete() const {}
};

/* What an owner keeps of its row from sweep to sweep. */
struct own_state {
    row_pair r;
    row_ridge ridge;
    cg_rows cg;
    cg_direction direction;
    row_weight weight[2];
};

/* What is told of rows after a sweep: the direction of the thread's two rows, and the signs of all. */
struct few_news {
    row_direction own;
    unsigned signs;
};

/* A thread block in its cluster. */
struct few_cluster {
    few_shared &sm;
    const unsigned rank;
    const int segments;
    unsigned parts, lines; /* phases of the barriers that have passed */

    __device__ __forceinline__ bool has_keys() const { return (int)rank < segments; }
    static __device__ __forceinline__ bool owns() { return threadIdx.x < OWN_THREADS; }

    /* Before all segments tell `fragments` of this thread block's rows, none if 0, and owners `bytes` of each
     * row. */
    __device__ __forceinline__ void expect(unsigned fragments, unsigned bytes) const
    {
        if (threadIdx.x != 0) return;
        if (fragments > 0)
            barrier_expect(&sm.parts_full, (unsigned)segments * fragments * 32 * (unsigned)sizeof(float4));
        barrier_expect(&sm.lines_full[lines % 2], (SEGMENTS - 1) * OWN_ROWS * bytes);
    }
    /* Fragments from n on go to the owner of the warp's rows. */
    template <int COUNT> __device__ __forceinline__ void tell(const float (&x)[COUNT][4], int n) const
    {
        const unsigned owner = threadIdx.x / 32;
        const uint32_t to = cluster_address(&sm.room().part[rank][n][threadIdx.x % 32], owner),
                       full = cluster_address(&sm.parts_full, owner);
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            store_cluster(to + i * 32 * (unsigned)sizeof(float4), fragment_of(x[i]), full);
    }
    __device__ __forceinline__ void wait_parts() { barrier_wait(&sm.parts_full, parts++ % 2); }
    /* Of fragment n of a segment, what is of the thread's own row. */
    __device__ __forceinline__ float2 part(int segment, int n) const
    {
        return ((const float2 *)&sm.room().part[segment][n][threadIdx.x % 32])[threadIdx.x / 32];
    }
    /* A sum of all segments; scale, where it is given: of the sum of those before each, and of each. */
    template <class... SCALE>
    __device__ __forceinline__ void gather(float (&sum)[1][8][4], int first, const SCALE &...scale) const
    {
#pragma unroll
        for (int n = 0; n < SUM; n++) {
            const float2 begin = part(0, first + n);
            float4 total = make_float4(begin.x, begin.y, 0, 0);
#pragma unroll
            for (int s = 1; s < SEGMENTS; s++) {
                if (s >= segments) continue;
                const float2 x = part(s, first + n);
                float own[4] = { x.x, x.y, 0, 0 };
                add_segment(own, total, scale[s]...);
                total = fragment_of(own);
            }
            sum[0][n][0] = total.x, sum[0][n][1] = total.y, sum[0][n][2] = sum[0][n][3] = 0;
        }
    }
    __device__ __forceinline__ float total() const
    {
        float sum = part(0, NUMBERS).x;
#pragma unroll
        for (int s = 1; s < SEGMENTS; s++)
            if (s < segments) sum += part(s, NUMBERS).x;
        return sum;
    }
    /* x, in this thread block where it lies, goes to the same place in all others. */
    __device__ __forceinline__ void tell_others(const float4 *place, const float4 &x) const
    {
#pragma unroll
        for (unsigned other = 1; other < SEGMENTS; other++) {
            const unsigned to = (rank + other) % SEGMENTS;
            store_cluster(cluster_address(place, to), x, cluster_address(&sm.lines_full[lines % 2], to));
        }
    }
    __device__ __forceinline__ void tell_line(float4 *place, const float4 &x) const
    {
        if (threadIdx.x % 4 != 0) return;
        *place = x;
        tell_others(place, x);
    }
    /* An owner tells of its row: its line and, where MOVED, its direction, which it has written here. */
    template <bool MOVED>
    __device__ __forceinline__ void tell_row(int row, const row_direction &own, unsigned signs) const
    {
        if (MOVED) {
            __syncwarp();
#pragma unroll
            for (int c = 0; c < 2; c++) {
                const float4 *const piece = (const float4 *)(sm.solver.direction[0] +
                                                             swizzled(row,
                                                                      (int)threadIdx.x % 4 * 8 + 32 * c));
                tell_others(piece, *piece);
            }
        }
        tell_line(&sm.line[lines % 2][row],
                  make_float4(own.unit[0], own.centre[0], __uint_as_float(signs), 0));
        barrier_arrive(&sm.lines_full[lines % 2]);
    }
    /* Waits until all owners have told. All threads call it. */
    __device__ __forceinline__ few_news meet(const row_pair &r)
    {
        barrier_wait(&sm.lines_full[lines % 2], lines / 2 % 2);
        const float4 *const line = sm.line[lines % 2], one = line[r.at[0]], two = line[r.at[1]];
        const unsigned lane = threadIdx.x % 32;
        const unsigned signs = __float_as_uint(line[lane].z) | __float_as_uint(line[lane + 32].z);
        lines++;
        __syncthreads();
        return { { { one.x, two.x }, { one.y, two.y } }, __reduce_or_sync(0xffffffffu, signs) };
    }
};

enum { DIRECTION_BYTES = DIM * sizeof(__half), LINE_BYTES = sizeof(float4) };

/* ------------------------------------------------------------------ owners */

/* The thread's own row, as the first of a pair without a second. */
static __device__ __forceinline__ row_pair own_row(const loam_problem &p, const row_block &x, unsigned rank)
{
    row_pair r = {};
    int64_t lo = 0, hi = 0;
    r.at[0] = r.at[1] = (int)(rank * OWN_ROWS + threadIdx.x / 4);
    r.real[0] = r.at[0] < x.rows;
    if (r.real[0]) local_visible(&p, &x.s, x.i0 + r.at[0], &lo, &hi);
    r.lo[0] = (int)lo, r.hi[0] = (int)hi;
    return r;
}

static __device__ __forceinline__ own_system own_system_of(const few_system &stored, few_shared &sm,
                                                           const row_pair &r, const row_ridge &ridge,
                                                           float largest, bool last = false)
{
    own_system sys = { system_in_registers(stored, r, ridge), sm, last };
    sys.weight_log2[0] = weight_exponent(largest, sys.units.norm);
    sys.query_unit[0] = sm.query_unit[r.at[0]];
    return sys;
}

/* The ridge of the own row: the same for all channels. */
static __device__ __forceinline__ row_ridge plain_ridge(row_ridge ridge)
{
    ridge.channels = false;
    return ridge;
}

/* From the sums of the first sweep to the first direction. */
static __device__ __forceinline__ void own_start(few_cluster &c, const few_system &stored,
                                                 const cg_tolerance &tolerance, own_state &state)
{
    softmax_rows soft = no_weights;
    float k[1][8][4], v[1][8][4], scale[SEGMENTS][2][2], lse2[2], largest[2];
    c.wait_parts();
#pragma unroll
    for (int s = 0; s < SEGMENTS; s++) {
        if (s >= c.segments) continue;
        const float2 x = c.part(s, NUMBERS), y = c.part(s, NUMBERS + 1);
        softmax_rows part = { { x.x, -INFINITY }, { x.y, 0 }, { y.x, 0 }, { 0, 0 } };
        merge_softmax(part, soft, scale[s]);
        soft = part;
    }
    c.gather(k, 0, scale);
    c.gather(v, SUM, scale);
    named_barrier_sync<OWN_THREADS>(1); /* vectors lie where the sums of v have been read */
    softmax_results<__half>(soft, lse2, largest);
    const row_pair r = own_row(stored.p, stored.block, c.rank);
    const row_ridge ridge = plain_ridge(
        ridge_in_units(stored.p, stored.a, stored.block, r, stored.units, largest));
    const own_system sys = own_system_of(stored, c.sm, r, ridge, largest[0]);
    put_mean<DIM>(sys.vector(VECTOR_KBAR), soft, k);
    put_mean<DIM>(sys.vector(VECTOR_VBAR), soft, v);
    const bool wanted[2] = { within_range(sys, largest, 0), false };
    cg_rows cg;
    cg_direction direction;
    start_rows(sys, cg, wanted);
    cg_first<1>(sys, cg, k, direction);
    c.tell_line(&c.sm.weight[r.at[0]], make_float4(lse2[0], largest[0], 0, 0));
    c.tell_row<true>(r.at[0], direction.own,
                     (cg.live[0] ? SIGN_LIVE : 0) | (needs_more<1>(cg, tolerance) ? SIGN_MORE : 0));
    state.r = r, state.ridge = ridge, state.cg = cg, state.direction = direction;
    state.weight[0] = state.weight[1] = { lse2[0], largest[0] };
}

/* Step `count`, from the sums of the image to the next direction. */
static __device__ __forceinline__ void own_step(few_cluster &c, const few_system &stored,
                                                const cg_tolerance &tolerance, float envelope, int count,
                                                own_state &state)
{
    const row_pair r = state.r;
    const row_ridge ridge = plain_ridge(state.ridge);
    const own_system sys = own_system_of(stored, c.sm, r, ridge, state.weight[0].largest);
    cg_rows cg = state.cg;
    cg_direction direction = state.direction;
    float y[1][8][4];
    c.wait_parts();
    c.gather(y, 0);
    float total[2] = { c.total(), 0 };
    const image_products d = finish_image<1>(y, sys, direction.own, total);
    cg_step<1>(sys, cg, tolerance, y, d, direction);
    signs_asked signs = { 0, SIGN_RULE };
    too_slow<DIM>(cg, tolerance, d, ridge.least, envelope, count, signs);
    c.tell_row<true>(r.at[0], direction.own,
                     (cg.live[0] ? SIGN_LIVE : 0) | (needs_more<1>(cg, tolerance) ? SIGN_MORE : 0) |
                         signs.bits);
    state.cg = cg, state.direction = direction;
}

/* The solution becomes the direction; b and vbar go where x and r were. */
static __device__ __forceinline__ void own_solution(few_cluster &c, const few_system &stored,
                                                    own_state &state)
{
    const row_pair r = state.r;
    const row_ridge ridge = plain_ridge(state.ridge);
    own_system sys = own_system_of(stored, c.sm, r, ridge, state.weight[0].largest);
    row_direction own = {};
    float y[1][8][4];
    direction_from_solution<1>(sys, y, own, is_probe_narrow<1>(sys.p, sys.a));
    const own_vector b = sys.vector(VECTOR_B), vbar = sys.vector(VECTOR_VBAR);
    sys.last = true;
#pragma unroll
    for (int n = 0; n < DIM / 2; n++)
        sys.vector(VECTOR_B).put(n, b.get(n)), sys.vector(VECTOR_VBAR).put(n, vbar.get(n));
    c.tell_row<true>(r.at[0], own, 0);
    state.direction.own = own;
}

/* From the sums of the last sweep to all that a row writes but info and lse. */
static __device__ __forceinline__ row_verdict own_output(few_cluster &c, const few_system &stored,
                                                         const cg_tolerance &tolerance,
                                                         const local_saved &saved, const own_state &state)
{
    const row_pair r = state.r;
    const row_ridge ridge = plain_ridge(state.ridge);
    const own_system sys = own_system_of(stored, c.sm, r, ridge, state.weight[0].largest, true);
    const cg_rows cg = state.cg;
    const row_direction own = state.direction.own;
    float y[1][8][4], o[1][8][4], error2[2];
    const float largest[2] = { state.weight[0].largest, 0 };
    bool finite[2];
    c.wait_parts();
    c.gather(y, 0);
    c.gather(o, SUM);
    float total[2] = { c.total(), 0 };
    (void)finish_image<1>(y, sys, own, total);
    residual_square(sys, y, error2);
    put_output(sys, cg, own, o, total, finite);
    if (sys.a.rho.data || sys.a.saved) save_rows<1>(sys, cg, own, saved);
    const bool possible = within_range(sys, largest, 0) && finite[0];
    const row_verdict verdict = verdict_of(sys, cg, tolerance, 0, possible, quad_sum(error2[0]));
    c.tell_row<false>(r.at[0], own, possible && !verdict.good ? SIGN_MORE : 0);
    return verdict;
}

/* Puts the block on the list of those that need row matrices. All threads of the cluster call it. */
static __device__ __forceinline__ void list_rows(few_cluster &c, const few_system &stored,
                                                 const solve_launch &all, const own_state &state, bool last)
{
    solver_shared<DIM, __half> &sm = c.sm.solver;
    const heavy_work &heavy = *all.heavy;
    if (c.rank == 0 && threadIdx.x == 0) {
        sm.scratch = (int)atomicAdd(all.work.heavy_count, 1ull);
        heavy.listed[sm.scratch] = (int32_t)sm.block;
    }
    cluster_sync();
    const int64_t place = cluster_load(&sm.scratch, 0);
    if (c.owns()) {
        const row_pair r = state.r;
        const row_ridge ridge = plain_ridge(state.ridge);
        const own_system sys = own_system_of(stored, c.sm, r, ridge, 0, last);
        float *const to = heavy.vectors + place * listed_vectors<DIM> + threadIdx.x / 32 * 2 * THREADS +
                          c.rank * 32 + threadIdx.x % 32;
#pragma unroll 4
        for (int n = 0; n < DIM / 2; n += n % 4 == 1 ? 3 : 1) {
            to[n * THREADS] = sys.vector(VECTOR_KBAR).get(n);
            to[listed_vector<DIM> + n * THREADS] = sys.vector(VECTOR_VBAR).get(n);
        }
        if (threadIdx.x % 4 == 0) heavy.weight[place * ROWS + r.at[0]] = state.weight[0];
    }
    cluster_sync();
}

/* ------------------------------------------------------------------ sweeps */

static __device__ __forceinline__ void tell_numbers(const few_cluster &c, int n, const float (&first)[2],
                                                    const float (&second)[2])
{
    const float numbers[1][4] = { { first[0], second[0], first[1], second[1] } };
    c.tell(numbers, n);
}

static __device__ __forceinline__ void share_means(const few_cluster &c, const few_system &stored)
{
    const row_pair r = stored.r;
    const row_ridge ridge = {};
    const few_system sys = system_in_registers(stored, r, ridge);
    float k[1][8][4], v[1][8][4];
    softmax_rows soft;
    sum_means<1, true, true, KEY_SHARE>(sys, soft, k, v);
    c.tell(k[0], 0);
    c.tell(v[0], SUM);
    tell_numbers(c, NUMBERS, soft.m, soft.omega);
    tell_numbers(c, NUMBERS + 1, soft.rounded, soft.rounded);
    ask_ahead(sys.ring<SHARE_STAGES>(), sys.count, sys.maps, sys.block, IDLE_THREAD);
}

static __device__ __forceinline__ void share_image(const few_cluster &c, const few_system &stored,
                                                   const row_direction &own)
{
    const row_pair r = stored.r;
    const row_ridge ridge = {};
    const few_system sys = system_in_registers(stored, r, ridge);
    float y[1][8][4], total[2];
    sum_image<1, KEY_SHARE>(y, sys, own, total);
    c.tell(y[0], 0);
    tell_numbers(c, NUMBERS, total, total);
    ask_ahead(sys.ring<SHARE_STAGES>(), sys.count, sys.maps, sys.block, IDLE_THREAD);
}

static __device__ __forceinline__ void share_outputs(const few_cluster &c, const few_system &stored,
                                                     const row_direction &own)
{
    const row_pair r = stored.r;
    const row_ridge ridge = {};
    const few_system sys = system_in_registers(stored, r, ridge);
    float y[1][8][4], o[1][8][4], total[2] = { 0, 0 };
    sum_outputs<1, true, KEY_SHARE>(sys, own, y, o, total);
    c.tell(y[0], 0);
    c.tell(o[0], SUM);
    tell_numbers(c, NUMBERS, total, total);
}

/* ------------------------------------------------------------------ the kernel */

/* The block of rows of this cluster, -1 where it is not for this launch, and the share of its keys that this
 * thread block has. least: tiles of keys that blocks of this launch see. One thread calls it. */
static __device__ __forceinline__ void claim_rows(few_shared &sm, const solve_launch &all, unsigned rank,
                                                  int least)
{
    solver_shared<DIM, __half> &solver = sm.solver;
    solver.block = (int64_t)(blockIdx.x / SEGMENTS);
    solver.rows = row_block_at(all.p, all.a, solver.block);
    row_block &rows = solver.rows;
    if (rows.rows <= 0 || is_resident<DIM>(all.p, rows) || sees_few<DIM>(all.p, rows) ||
        key_tiles(rows) < least)
        solver.block = -1;
    solver.segment_tiles = segment_tiles(rows);
    if (solver.block >= 0) ask_queries(solver, all.maps);
    if (solver.segment_tiles == 0) return;
    rows.first += (int)rank * solver.segment_tiles * TILE_SIDE;
    if (rank + 1 < SEGMENTS) rows.last = rows.first + solver.segment_tiles * TILE_SIDE;
}

/* Iterates until all rows of the block have ended or take too long; false where one part is not enough. */
static __device__ __forceinline__ bool iterate(few_cluster &c, few_system &sys, const cg_tolerance &tolerance,
                                               own_state &state)
{
    float envelope = envelope_start<DIM>;
    for (int count = 0;; count++) {
        const few_news news = c.meet(sys.r);
        if (count == 0 && c.has_keys()) {
            const float4 one = c.sm.weight[sys.r.at[0]], two = c.sm.weight[sys.r.at[1]];
            set_weights(sys, { one.x, two.x }, { one.y, two.y });
        }
        const cg_rows none = {};
        const image_products nothing = {};
        const bool slow = count > 0 && too_slow<DIM>(none, tolerance, nothing, { 0, 0 }, envelope, count,
                                                     signs_told{ news.signs, SIGN_RULE });
        if (slow || count >= tolerance.most || !(news.signs & SIGN_LIVE)) {
            if (c.has_keys()) drop_ahead(sys.ring<SHARE_STAGES>(), sys.count);
            return !(news.signs & SIGN_MORE);
        }
        c.expect(IMAGE_FRAGMENTS, DIRECTION_BYTES + LINE_BYTES);
        envelope *= tolerance.rate;
        if (c.has_keys()) share_image(c, sys, news.own);
        if (c.owns()) own_step(c, sys, tolerance, envelope, count + 1, state);
    }
}

/* The last sweep, and all results; false where a true residual is too large. */
static __device__ __forceinline__ bool finish(few_cluster &c, few_system &sys, const solve_launch &all,
                                              const cg_tolerance &tolerance, own_state &state)
{
    row_verdict verdict[2] = {};
    c.expect(0, DIRECTION_BYTES + LINE_BYTES);
    if (c.owns()) own_solution(c, sys, state);
    const row_direction own = c.meet(sys.r).own;
    c.expect(OUTPUT_FRAGMENTS, LINE_BYTES);
    if (c.has_keys()) share_outputs(c, sys, own);
    if (c.owns()) verdict[0] = own_output(c, sys, tolerance, all.saved, state);
    if (c.meet(sys.r).signs & SIGN_MORE) return false;
    if (c.owns()) {
        const row_weight weight[2] = { state.weight[0], state.weight[0] };
        put_row_results(all, sys.sm.block, sys.block, state.r, state.cg, verdict, weight);
    }
    return true;
}

static __device__ __forceinline__ void solve_rows(few_shared &sm, const solve_launch &all, unsigned rank)
{
    const loam_problem &p = all.p;
    const row_block &block = sm.solver.rows;
    ring_count count = { 0 };
    row_pair r_storage = row_pair_of(p, block);
    const row_pair &r = in_memory(r_storage);
    const row_ridge none = {};
    few_system sys_storage = block_system_of<DIM, false>(p, all.a, block, r, none, all.maps, sm.solver, count,
                                                         all.work.scratch);
    few_system &sys = in_memory(sys_storage);
    own_state state_storage;
    own_state &state = in_memory(state_storage);
    few_cluster c = { sm, rank, sm.solver.segment_tiles > 0 ? (int)SEGMENTS : 1, 0, 0 };
    const cg_tolerance tolerance = plain_tolerance<1, DIM>(all.a.saved != NULL);
    sys.units = half_units_of(*all.copy, p, sm.solver.block / p.heads_q % p.batch, block.h_kv);
    await_queries(sys, 0);
    if (threadIdx.x % 4 == 0)
        sm.query_unit[r.at[0]] = sys.query_unit[0], sm.query_unit[r.at[1]] = sys.query_unit[1];
    __syncthreads();
    c.expect(MEANS_FRAGMENTS, DIRECTION_BYTES + 2 * LINE_BYTES);
    if (c.has_keys()) share_means(c, sys);
    if (c.owns()) own_start(c, sys, tolerance, state);
    if (!iterate(c, sys, tolerance, state))
        list_rows(c, sys, all, state, false);
    else if (!finish(c, sys, all, tolerance, state))
        list_rows(c, sys, all, state, true);
}

__global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    few_kernel(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
               const local_saved saved, const solve_work work, const __grid_constant__ qkv_maps maps,
               const __grid_constant__ half_copy copy, const __grid_constant__ heavy_work heavy,
               const int least)
{
    extern __shared__ __align__(1024) unsigned char swizzled_memory[];
    few_shared &sm = *(few_shared *)swizzled_memory;
    const solve_launch all = { p, a, saved, work, maps, &copy, &heavy };
    const unsigned rank = cluster_rank();
    launch_dependents();
    if (threadIdx.x == 0) {
        init_rings(sm.solver);
        barrier_init(&sm.parts_full, 1);
        barrier_init(&sm.lines_full[0], 1 + OWN_THREADS);
        barrier_init(&sm.lines_full[1], 1 + OWN_THREADS);
        fence_barriers_cluster();
    }
    __syncthreads();
    cluster_arrive();
    if (threadIdx.x == 0) claim_rows(sm, all, rank, least);
    __syncthreads();
    cluster_wait();
    if (sm.solver.block >= 0) solve_rows(sm, all, rank);
    /* This launch does not end before the one that it overlaps with. */
    if (blockIdx.x == 0) wait_for_previous_launch();
}

/* ------------------------------------------------------------------ the launch */

bool forward_few_pays(const loam_problem *p)
{
    enum { KEYS = 4096 };
    const int64_t blocks = (int64_t)row_blocks(p), most = solve_multiprocessors();
    if (p->ridge_axes == LOAM_RIDGE_CHANNEL || p->len_kv < FEW_KEYS * DIM) return false;
    return p->len_kv <= UNSEGMENTED_KEYS ? blocks * SEGMENTS <= BLOCKS_PER_SM * most
                                         : blocks <= most && blocks * KEYS <= most * p->len_kv;
}

int forward_few_tiles(const loam_problem *p)
{
    enum { APART = 11 };
    const int64_t blocks = (int64_t)row_blocks(p), most = solve_multiprocessors(),
                  clusters = blocks - FEW_KEYS * p->batch * p->heads_q;
    /* 66 on 132 multiprocessors would be all, of which blocks in two parts and GPCs leave 54. */
    const bool find_room = clusters <= most * 2 / 5, nearly = blocks * SEGMENTS <= BLOCKS_PER_SM * most;
    return p->causal && p->len_kv > UNSEGMENTED_KEYS && nearly && !find_room ? (int)APART : 0;
}

loam_status forward_few(const loam_problem *p, const loam_args *a, const local_saved *saved,
                        const solve_work *work, const half_copy *copy, const heavy_work *heavy,
                        const qkv_maps *maps, loam_error *error)
{
    return cuda_launch_clusters("few_kernel", few_kernel, (int64_t)row_blocks(p) * SEGMENTS, SEGMENTS,
                                THREADS, sizeof(few_shared), a->stream, true, error, *p, *a, *saved, *work,
                                *maps, *copy, *heavy, forward_few_tiles(p));
}
