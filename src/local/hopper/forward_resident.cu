/* SPDX-License-Identifier: MIT
 *
 * Local Linear Attention forward on Hopper, blocks of 64 rows that see few keys (local/hopper/resident.cuh):
 * the passes of forward_solved.cu in two fp16 parts, in one thread block for each block of rows. Blocks with
 * a row that does not end are left to the launches that give each row a matrix of its own.
 */
#include "src/local/hopper/channels.cuh"
#include "src/local/hopper/forward_resident.cuh"
#include "src/local/hopper/heavy_work.cuh"
#include "src/local/hopper/resident.cuh"

/* Queries in fp16 as operand; unit: of a row, in units of the keys. */
struct resident_query {
    row_operand<1> rows;
    float unit[2], scale2[2];
};

/* The block's queries become fp16 in place. */
template <int TILES>
static __device__ __forceinline__ void load_resident_queries(const resident_system<TILES> &sys,
                                                             resident_query &query)
{
    float top[2], inverse[2];
    wide_tile_tops<TILE_SIDE>(top, sys.sm.rows, sys.r, sys.p.dtype == LOAM_F16);
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float unit = unit_of_largest<__half>(quad_max(top[row]));
        inverse[row] = power_inverse(unit);
        query.unit[row] = unit * power_inverse(sys.units.key);
        query.scale2[row] = (float)(sys.p.scale * LOG2E) * (unit * sys.units.key);
    }
    narrow_tile<TILE_SIDE>(sys.sm.rows, sys.sm.rows, sys.r, inverse, sys.p.dtype == LOAM_F16);
    load_fragments<TILE_SIDE>(query.rows.part[0], sys.sm.rows, sys.r);
}

/* Scores become p times its power of two, and their mean key is found: divided by the sum of the weights as
 * rounded to their parts, so that its error is relative to the spread of the keys. */
template <int TILES>
static __device__ __forceinline__ void weigh_resident(resident_system<TILES> &sys, const float (&best)[2],
                                                      row_weight (&weight)[2])
{
    float omega[2] = { 0, 0 }, rounded[2] = { 0, 0 }, k[FRAGMENTS][4], factor[2];
    const float top = 15, base[2] = { finite_or_zero(best[0]) - top, finite_or_zero(best[1]) - top };
    clear(k);
#pragma unroll 1
    for (int g = 0; g < sys.groups; g++) {
        float w[2][4];
        uint32_t part[2][4];
#pragma unroll
        for (int n = 0; n < 2; n++) {
            sys.weight().load(w[n], 2 * g + n);
#pragma unroll
            for (int e = 0; e < 4; e++)
                w[n][e] = exp2_fast(w[n][e] - base[e / 2]), omega[e / 2] += w[n][e];
            sys.weight().store(2 * g + n, w[n]);
        }
        split_group(part, w);
        add_group(rounded, part);
        add_weighted(k, part, sys.sm.keys, g);
    }
#pragma unroll
    for (int row = 0; row < 2; row++) {
        omega[row] = quad_sum(omega[row]), rounded[row] = quad_sum(rounded[row]);
        const bool sees = omega[row] > 0;
        weight[row].lse2 = sees ? finite_or_zero(best[row]) + (log2f(omega[row]) - top) : 0;
        weight[row].largest = sees ? power_of_two(top) / omega[row] : 0;
        rounded[row] = rounded[row] > 0 ? 1 / rounded[row] : 0;
        sys.weight_log2[row] = weight_exponent(weight[row].largest, sys.units.norm);
        factor[row] = sees ? power_of_two(sys.weight_log2[row]) / omega[row] : 0;
    }
#pragma unroll
    for (int n = 0; n < FRAGMENTS; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++)
            k[n][e] *= rounded[e / 2];
        sys.kbar().store(n, k[n]);
    }
#pragma unroll 1
    for (int n = 0; n < 2 * sys.groups; n++) {
        float w[4];
        sys.weight().load(w, n);
#pragma unroll
        for (int e = 0; e < 4; e++)
            w[e] *= factor[e / 2];
        sys.weight().store(n, w);
    }
}

/* The mean value, by weights in one part, takes the place of the solution. */
template <int TILES> static __device__ __forceinline__ void mean_values(const resident_system<TILES> &sys)
{
    float rounded[2] = { 0, 0 }, v[FRAGMENTS][4];
    const float top[2] = { power_of_two(14 - sys.weight_log2[0]), power_of_two(14 - sys.weight_log2[1]) };
    clear(v);
#pragma unroll 1
    for (int g = 0; g < sys.groups; g++) {
        float w[2][4];
        uint32_t part[1][4];
#pragma unroll
        for (int n = 0; n < 2; n++) {
            sys.weight().load(w[n], 2 * g + n);
#pragma unroll
            for (int e = 0; e < 4; e++)
                w[n][e] *= top[e / 2];
        }
        split_group(part, w);
        add_group(rounded, part);
        add_weighted(v, part, sys.sm.values, g);
    }
    rounded[0] = quad_sum(rounded[0]), rounded[1] = quad_sum(rounded[1]);
    const float inverse[2] = { rounded[0] > 0 ? 1 / rounded[0] : 0, rounded[1] > 0 ? 1 / rounded[1] : 0 };
#pragma unroll
    for (int n = 0; n < FRAGMENTS; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++)
            v[n][e] *= inverse[e / 2];
        sys.x().store(n, v[n]);
    }
}

/* Channel c of the query, in units of the keys. */
template <int TILES>
static __device__ __forceinline__ float target_of(const resident_system<TILES> &sys,
                                                  const float (&query_unit)[2], int row, int c)
{
    return tile_value(sys.sm.rows[swizzled(sys.r.at[row], c)]) * query_unit[row];
}

/* b = kbar - q. */
template <int TILES>
static __device__ __forceinline__ void right_side(float (&b)[FRAGMENTS][4], const resident_system<TILES> &sys,
                                                  const float (&query_unit)[2])
{
#pragma unroll
    for (int n = 0; n < FRAGMENTS; n++) {
        sys.kbar().load(b[n], n);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float q = target_of(sys, query_unit, e / 2, column_of(n, e));
            b[n][e] = sys.r.real[e / 2] ? b[n][e] - q : 0;
        }
    }
}

/* The solution becomes the direction, its unit by its norm. */
template <int TILES>
static __device__ __forceinline__ void direction_of_solution(row_operand<2> &direction,
                                                             const resident_system<TILES> &sys,
                                                             row_direction &own)
{
    float x[FRAGMENTS][4], top[2] = { 0, 0 }, norm2[2] = { 0, 0 };
#pragma unroll
    for (int n = 0; n < FRAGMENTS; n++) {
        sys.x().load(x[n], n);
#pragma unroll
        for (int e = 0; e < 4; e++)
            top[e / 2] = fmaxf(top[e / 2], fabsf(x[n][e]));
    }
    const float largest[2] = { magnitude(quad_max(top[0])), magnitude(quad_max(top[1])) };
    const float inverse[2] = { power_inverse(largest[0]), power_inverse(largest[1]) };
#pragma unroll
    for (int n = 0; n < FRAGMENTS; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++)
            norm2[e / 2] += x[n][e] * inverse[e / 2] * (x[n][e] * inverse[e / 2]);
    }
#pragma unroll
    for (int row = 0; row < 2; row++)
        own.unit[row] = magnitude(largest[row] * unit_of_norm<__half>(quad_sum(norm2[row])));
    set_direction(direction, sys, x, own);
}

/* Writes rho, and saves rho, kbar and vbar, of rows within the sequence. */
template <int TILES>
static __device__ __forceinline__ void save_resident(const resident_system<TILES> &sys, const cg_rows &cg,
                                                     const float (&d)[FRAGMENTS][4], const row_direction &own,
                                                     const local_saved &saved)
{
    const loam_args &a = sys.a;
    const row_block &block = sys.block;
    const float key = sys.units.key, value = sys.units.value;
    if (!a.rho.data && !a.saved) return;
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float unit = cg.unit[row] * own.unit[row] * power_inverse(key);
        const int64_t i = block.i0 + sys.r.at[row], line = local_row(&sys.p, &block.s, block.h, i);
        const int64_t to = LOCAL_AT(a.rho, block.s.b, block.h, block.s.q0 + i);
        if (!sys.r.real[row]) continue;
#pragma unroll
        for (int n = 0; n < FRAGMENTS; n++) {
            const float2 rho = { unit * d[n][2 * row], unit * d[n][2 * row + 1] };
            const int c = column_of(n, 0), at = 4 * n + 2 * row;
            if (a.rho.data) ((float *)a.rho.data)[to + c] = rho.x, ((float *)a.rho.data)[to + c + 1] = rho.y;
            if (!a.saved) continue;
            const int64_t from = line * TILE_SIDE + c;
            *(float2 *)((float *)saved.rho + from) = rho;
            *(float2 *)((float *)saved.kbar + from) = { key * sys.kbar().get(at),
                                                        key * sys.kbar().get(at + 1) };
            *(float2 *)((float *)saved.vbar + from) = { value * sys.x().get(at),
                                                        value * sys.x().get(at + 1) };
        }
    }
}

/* Writes o = vbar - sum p u v from o = sum p (u - centre) v and total = sum p (u - centre), both in the unit
 * of the image. finite: whether o is. */
template <int TILES>
static __device__ __forceinline__ void put_resident_output(const resident_system<TILES> &sys,
                                                           const cg_rows &cg, const row_direction &own,
                                                           const float (&o)[FRAGMENTS][4],
                                                           const float (&total)[2], bool (&finite)[2])
{
    const loam_args &a = sys.a;
    const row_block &block = sys.block;
    float unit[2], bad[2] = { 0, 0 };
    uint16_t *to[2];
#pragma unroll
    for (int row = 0; row < 2; row++) {
        unit[row] = cg.unit[row] * resident_image_unit(sys, own, row);
        to[row] = (uint16_t *)a.o.data +
                  LOCAL_AT(a.o, block.s.b, block.h, block.s.q0 + block.i0 + sys.r.at[row]);
    }
#pragma unroll
    for (int n = 0; n < FRAGMENTS; n++) {
        float mean[4];
        sys.x().load(mean, n);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int row = e / 2;
            mean[e] = sys.units.value * (mean[e] - unit[row] * (o[n][e] - total[row] * mean[e]));
            bad[row] += mean[e] * 0;
        }
#pragma unroll
        for (int e = 0; e < 4; e += 2)
            if (sys.r.real[e / 2])
                store_channels(to[e / 2], sys.p.dtype == LOAM_F16, column_of(n, 0), TILE_SIDE, mean[e],
                               mean[e + 1]);
    }
    finite[0] = quad_sum(bad[0]) == 0, finite[1] = quad_sum(bad[1]) == 0;
}

/* From the solution to all that a row writes but info and lse. error: the square of its true residual. */
template <int TILES>
static __device__ __forceinline__ void finish_resident(const resident_system<TILES> &sys, const cg_rows &cg,
                                                       const float (&query_unit)[2], const local_saved &saved,
                                                       float (&error)[2], bool (&finite)[2])
{
    float y[FRAGMENTS][4], o[FRAGMENTS][4], total[2] = { 0, 0 };
    row_operand<2> direction;
    row_direction own;
    direction_of_solution(direction, sys, own);
    mean_values(sys);
    clear(y);
    clear(o);
#pragma unroll 1
    for (int g = 0; g < sys.groups; g++) {
        uint32_t f[2][4];
        centred_group(f, sys, direction, own, g, total);
        add_weighted(y, f, sys.sm.keys, g);
        add_weighted(o, f, sys.sm.values, g);
    }
    float d[FRAGMENTS][4];
    unpack_direction(d, direction);
    (void)finish_resident_image(y, sys, d, own, total);
    total[0] = quad_sum(total[0]), total[1] = quad_sum(total[1]);
    put_resident_output(sys, cg, own, o, total, finite);
    save_resident(sys, cg, d, own, saved);
    error[0] = error[1] = 0;
    const float inverse[2] = { power_inverse(cg.unit[0]), power_inverse(cg.unit[1]) };
    const float unit[2] = { resident_image_unit(sys, own, 0), resident_image_unit(sys, own, 1) };
    right_side(o, sys, query_unit);
#pragma unroll
    for (int n = 0; n < FRAGMENTS; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float rest = o[n][e] * inverse[e / 2] - unit[e / 2] * y[n][e];
            error[e / 2] += rest * rest;
        }
    }
    error[0] = quad_sum(error[0]), error[1] = quad_sum(error[1]);
}

/* `saved` wants a more exact probe than o does, as in forward_solved.cu. Iterations without a matrix are so
 * cheap here that a block has as many as its rows may have channels, twice. */
static __device__ __forceinline__ cg_tolerance resident_tolerance(bool saved)
{
    const float stop = saved ? 3e-4f : 1.2e-3f;
    return { stop, stop, 1e-2f, 2 * TILE_SIDE, 0, false, 0 };
}

template <int TILES>
static __device__ __forceinline__ void solve_resident(resident_shared<TILES> &sm, const solve_launch &all,
                                                      const row_block &block)
{
    const half_units units = half_units_of(*all.copy, all.p, sm.block / all.p.heads_q % all.p.batch,
                                           block.h_kv);
    load_block(sm, all.maps, block, NULL);
    resident_system<TILES> sys = resident_system_of(all.p, all.a, block, sm, units);
    const cg_tolerance tolerance = resident_tolerance(all.a.saved != NULL);
    row_weight weight[2];
    float query_unit[2];
    cg_rows cg;
    {
        resident_query query;
        float best[2];
        int peak[2];
        load_resident_queries(sys, query);
        score_keys(sys, query.rows, query.scale2, best, peak);
        weigh_resident(sys, best, weight);
        query_unit[0] = query.unit[0], query_unit[1] = query.unit[1];
    }
    const float largest[2] = { weight[0].largest, weight[1].largest };
    sys.ridge = ridge_in_units(all.p, all.a, block, sys.r, units, largest);
    const bool wanted[2] = { within_range(sys, largest, 0), within_range(sys, largest, 1) };
    {
        float b[FRAGMENTS][4];
        right_side(b, sys, query_unit);
        start_resident(sys, cg, b, wanted);
        resident_run(sys, cg, tolerance, b);
    }
    bool missed = cg.live[0] || cg.live[1];
    row_verdict verdict[2];
    if (!__syncthreads_or(missed)) {
        float error2[2];
        bool finite[2];
        finish_resident(sys, cg, query_unit, all.saved, error2, finite);
#pragma unroll
        for (int row = 0; row < 2; row++) {
            verdict[row] = verdict_of(sys, cg, tolerance, row, wanted[row] && finite[row], error2[row]);
            missed = missed || (wanted[row] && finite[row] && !verdict[row].good);
        }
    } else {
        mean_values(sys);
    }
    if (__syncthreads_or(missed))
        put_listed<TILE_SIDE>(sm, all, sys.r, weight, sys.kbar(), 1, sys.x());
    else
        put_row_results(all, sm.block, block, sys.r, cg, verdict, weight);
}

template <int TILES>
__global__ void __launch_bounds__(THREADS, resident_blocks<TILES>)
    resident_kernel(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                    const local_saved saved, const solve_work work, const __grid_constant__ qkv_maps maps,
                    const __grid_constant__ half_copy copy, const __grid_constant__ heavy_work heavy,
                    const bool first)
{
    extern __shared__ __align__(1024) unsigned char swizzled_memory[];
    resident_shared<TILES> &sm = *(resident_shared<TILES> *)swizzled_memory;
    const solve_launch all = { p, a, saved, work, maps, &copy, &heavy };
    /* The copy in fp16 is complete before a launch that overlaps with the first one begins. */
    if (first) wait_for_previous_launch();
    launch_dependents();
    const row_block block = row_block_at(p, a, blockIdx.x);
    if (takes_block<TILES>(p, block)) {
        if (threadIdx.x == 0) sm.block = blockIdx.x;
        __syncthreads();
        solve_resident(sm, all, block);
    }
    if (!first) wait_for_previous_launch();
}

template <int TILES>
static loam_status launch_tiles(const loam_problem *p, const loam_args *a, const local_saved *saved,
                                const solve_work *work, const half_copy *copy, const heavy_work *heavy,
                                const qkv_maps *maps, bool first, loam_error *error)
{
    return cuda_launch("resident_kernel", resident_kernel<TILES>, (int64_t)row_blocks(p), THREADS,
                       sizeof(resident_shared<TILES>), a->stream, true, error, *p, *a, *saved, *work, *maps,
                       *copy, *heavy, first);
}

loam_status forward_resident(const loam_problem *p, const loam_args *a, const local_saved *saved,
                             const solve_work *work, const half_copy *copy, const heavy_work *heavy,
                             const qkv_maps *maps, loam_error *error)
{
    const bool alone = all_resident(p, a), two = p->len_kv > TILE_SIDE;
    if (two) TRY(launch_tiles<2>(p, a, saved, work, copy, heavy, maps, alone, error));
    return launch_tiles<1>(p, a, saved, work, copy, heavy, maps, alone && !two, error);
}
