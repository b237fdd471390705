/* SPDX-License-Identifier: MIT
 *
 * Backward of Local Linear Attention on Hopper, rows of blocks whose adjoint system row matrices have solved
 * (heavy_solve.cu): from y to dq, records and the residual of y, in one sweep with fp16 operands. y and rho
 * have two parts, all else one. Formulas are those of backward_pairs.cuh; here u and E are centred by rho .
 * kbar and gbar + y . kbar alone, and the sweep also finds what their means then are under p, du and dE. With
 * sums over kappa = k - kbar, whose mean is 0, and Cov rho = kbar - q - Lambda rho from the forward pass:
 *
 *     sum ds kappa = sum p (1 - u) E kappa + du sum p E kappa + dE Cov rho,   x . ds = q . sum ds kappa
 *     drho - (Cov + Lambda) y = -(sum p E kappa + Lambda y)
 *
 * Rows that miss the tolerance are for float64, and query_kernel then takes their whole block.
 */
#include "src/local/hopper/backward_pairs.cuh"
#include "src/local/hopper/forward_rows.cuh"

template <bool DECAYED> using solved_system = rows_system<TILE_SIDE, DECAYED, __half>;
typedef pair_stages<TILE_SIDE> stages;

/* Of the residual, relative to drho; and of rounding, relative to the largest that a term of it can be, where
 * drho is itself no more than rounding, as in rows that see one key. */
#define SOLVED_ACCEPT 3.5e-3f
#define SOLVED_ROUNDING 0x1p-28f

/* Powers of two of the thread's rows. Operands are rho / probe, y / solution and do / grad; products with
 * fp16 keys and values are then u / u and E / error. Weights are p E weight / error, and gradients of scores
 * these times `gradient`. */
struct solved_units {
    float probe[2], solution[2], grad[2];
    float u[2], error[2], weight_log2[2], gradient[2];
    float rounding[2]; /* of the residual */

    __device__ __forceinline__ float weight(int row) const { return power_of_two(weight_log2[row]); }
};

/* What a row has once. bb: the square of drho. */
struct solved_rows {
    row_scalars rec[2];
    float bb[2];
};

/* The largest element and the norm of a vector of each of the thread's rows. */
struct row_extent {
    float top[2], norm[2];

    __device__ __forceinline__ void add(int row, const float2 &x)
    {
        top[row] = fmaxf(top[row], fmaxf(fabsf(x.x), fabsf(x.y)));
        norm[row] += x.x * x.x + x.y * x.y;
    }
    __device__ __forceinline__ void finish()
    {
#pragma unroll
        for (int row = 0; row < 2; row++)
            top[row] = quad_max(top[row]), norm[row] = sqrtf(quad_sum(norm[row]));
    }
};

/* y of channels column_of(n, e) and the next one, which heavy_adjoint left. */
static __device__ __forceinline__ float2 solution_of(const float *solution, const adjoint_row (&own)[2],
                                                     int n, int e)
{
    const float unit = own[e / 2].unit, *const from = solution + (4 * n + e) * THREADS + threadIdx.x;
    return { unit * from[0], unit * from[THREADS] };
}

template <bool DECAYED>
static __device__ __forceinline__ float2 lambda_of(const solved_system<DECAYED> &rs, int row, int c)
{
    const auto &sys = rs.sys;
    return { ridge_at(rs.ridge, sys.p, sys.a, sys.block, rs.r, row, c),
             ridge_at(rs.ridge, sys.p, sys.a, sys.block, rs.r, row, c + 1) };
}

/* Elements e and e + 1 of fragment n of a tile of bf16 rows in the memory of fp16. */
static __device__ __forceinline__ float2 wide_pair(const __half *tile, const row_pair &r, int n, int e)
{
    return unpack_pair<__nv_bfloat16>(*(const uint32_t *)(tile + swizzled(r.at[e / 2], column_of(n, e))));
}

/* The exponent of the power of two that brings products up to `bound` to at most 2^15. */
static __device__ __forceinline__ float product_exponent(float bound)
{
    return bound > 0 && bound < INFINITY ? fminf(fmaxf(14 - floorf(log2f(bound)), -100), 100) : 0;
}

/* Units by Cauchy and Schwarz: operands and weights then stay within the range of fp16. The largest |x| of a
 * value is below 2 HALF_TOP. */
template <bool DECAYED>
static __device__ __forceinline__ solved_units units_of(const solved_system<DECAYED> &rs,
                                                        const row_extent &rho, const row_extent &y,
                                                        const row_extent &grad, const row_scalars (&rec)[2],
                                                        const float (&largest)[2])
{
    const half_units &head = rs.sys.units;
    solved_units out;
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float value_norm = 2 * HALF_TOP * 8;
        out.probe[row] = unit_of_largest<__half>(rho.top[row]);
        out.u[row] = out.probe[row] * head.key;
        out.error[row] = fmaxf(unit_of_largest<__half>(grad.top[row]) * head.value,
                               unit_of_largest<__half>(y.top[row]) * head.key);
        out.grad[row] = out.error[row] * power_inverse(head.value);
        out.solution[row] = out.error[row] * power_inverse(head.key);
        const float error = 2 * (grad.norm[row] * value_norm * power_inverse(out.grad[row]) +
                                 y.norm[row] * head.norm * power_inverse(out.solution[row])),
                    one = 1 + 2 * rho.norm[row] * head.key * head.norm,
                    e = fabsf(rec[row].e) * power_inverse(out.error[row]);
        out.weight_log2[row] = product_exponent(largest[row] * error);
        out.gradient[row] = power_of_two(
            product_exponent(out.weight(row) * (largest[row] * error * one + e)));
        out.rounding[row] = SOLVED_ROUNDING * largest[row] * error * out.error[row] * head.key * head.norm;
    }
    return out;
}

/* What the rows have once, and their units; y goes to its array, and its gradient of the ridge. do lies in
 * its stage, in bf16. */
template <bool DECAYED>
static __device__ __forceinline__ solved_units load_solved(const solved_system<DECAYED> &rs,
                                                           const adjoint_row (&own)[2], const float *solution,
                                                           const float (&largest)[2], solved_rows &out)
{
    const auto &sys = rs.sys;
    const loam_args &a = sys.a;
    const __half *const grad_tile = rs.stage(stages::grad_o);
    row_extent rho_extent = {}, y_extent = {}, grad_extent = {};
    float e[2] = {}, ridge[2] = {}, gbar[2] = {}, rho_kbar[2] = {}, y_kbar[2] = {}, bb[2] = {};
    int64_t to[2];
    for (int row = 0; row < 2; row++)
        to[row] = LOCAL_AT(a.grad_ridge, sys.block.s.b, sys.block.h,
                           sys.block.s.q0 + sys.block.i0 + rs.r.at[row]);
#pragma unroll 4
    for (int n = 0; n < TILE_SIDE / 8; n++) {
#pragma unroll
        for (int at = 0; at < 4; at += 2) {
            const int row = at / 2, c = column_of(n, at);
            const float2 rho = rs.pair(rs.all.saved.rho, row, c), y = solution_of(solution, own, n, at),
                         mean = rs.pair(rs.all.saved.kbar, row, c),
                         value = rs.pair(rs.all.saved.vbar, row, c), grad = wide_pair(grad_tile, rs.r, n, at),
                         b = solution_of(solution + listed_vector<TILE_SIDE>, own, n, at),
                         lambda = lambda_of(rs, row, c);
            const float2 part = { -y.x * rho.x * rs.ridge.unit[row], -y.y * rho.y * rs.ridge.unit[row] };
            rho_extent.add(row, rho), y_extent.add(row, y), grad_extent.add(row, grad);
            gbar[row] += grad.x * value.x + grad.y * value.y;
            rho_kbar[row] += rho.x * mean.x + rho.y * mean.y;
            y_kbar[row] += y.x * mean.x + y.y * mean.y;
            ridge[row] += part.x + part.y;
            e[row] -= y.x * rho.x * lambda.x + y.y * rho.y * lambda.y;
            bb[row] += b.x * b.x + b.y * b.y;
            if (!rs.r.real[row]) continue;
            *(float2 *)(rs.all.arrays.y + rs.line(row) * TILE_SIDE + c) = y;
            if (sys.p.ridge_axes == LOAM_RIDGE_CHANNEL && a.grad_ridge.data)
                store_pair(a.grad_ridge.data, LOAM_F32, to[row], c, TILE_SIDE, part.x, part.y);
        }
    }
#pragma unroll
    for (int row = 0; row < 2; row++) {
        row_scalars rec = {};
        ridge[row] = quad_sum(ridge[row]), out.bb[row] = quad_sum(bb[row]);
        rec.lse = sys.lse2[row] * 0.693147181f;
        rec.gbar = quad_sum(gbar[row]), rec.gbar_rest = own[row].rest;
        rec.rho_kbar = quad_sum(rho_kbar[row]), rec.y_kbar = quad_sum(y_kbar[row]);
        rec.e = quad_sum(e[row]), rec.unit = rs.ridge.unit[row];
        rec.peak = own[row].peak, rec.lo = rs.r.lo[row], rec.hi = rs.r.hi[row];
        out.rec[row] = rec;
        if (!rs.r.real[row] || threadIdx.x % 4 != 0) continue;
        rs.all.arrays.sums.ridge[rs.line(row)] = (double)ridge[row];
        if (sys.p.ridge_axes == LOAM_RIDGE_TOKEN && a.grad_ridge.data)
            ((float *)a.grad_ridge.data)[to[row]] = ridge[row];
    }
    rho_extent.finish(), y_extent.finish(), grad_extent.finish();
    return units_of(rs, rho_extent, y_extent, grad_extent, out.rec, largest);
}

/* The operands of the rows in shared memory. */
template <bool DECAYED>
static __device__ __forceinline__ void put_operands(const solved_system<DECAYED> &rs,
                                                    const adjoint_row (&own)[2], const float *solution,
                                                    const solved_units &units)
{
    const float grad[2] = { power_inverse(units.grad[0]), power_inverse(units.grad[1]) };
    narrow_tile<TILE_SIDE>(rs.stage(stages::grad_o), rs.r, grad);
#pragma unroll 4
    for (int n = 0; n < TILE_SIDE / 8; n++) {
#pragma unroll
        for (int at = 0; at < 4; at += 2) {
            const int row = at / 2, c = column_of(n, at);
            const float probe = power_inverse(units.probe[row]), inverse = power_inverse(units.solution[row]);
            const float2 rho = rs.pair(rs.all.saved.rho, row, c), y = solution_of(solution, own, n, at);
            store_directions<2>(rs, swizzled(rs.r.at[row], c), { probe * rho.x, probe * rho.y },
                                { inverse * y.x, inverse * y.y });
        }
    }
    fence_async_proxy();
    __syncthreads();
}

/* Constants of a row in the formulas of its pairs, in the units of the products and weights. */
struct solved_pair_rows {
    float error[2], u[2];   /* what E and u are centred by */
    float one[2], slope[2]; /* (1 - u) gradient = one - slope (product - u) */
    float e[2];             /* where the unit of the ridge is the largest p: 0, and that of the peak: */
    float at_peak[2];
    bool by_max;
    int peak[2];
};

static __device__ __forceinline__ solved_pair_rows pair_constants(const row_scalars (&rec)[2],
                                                                  const solved_units &units, bool by_max)
{
    solved_pair_rows own;
    own.by_max = by_max;
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float inverse = power_inverse(units.error[row]);
        own.error[row] = inverse * (rec[row].gbar + rec[row].gbar_rest + rec[row].y_kbar);
        own.u[row] = power_inverse(units.u[row]) * rec[row].rho_kbar;
        own.one[row] = units.gradient[row], own.slope[row] = units.gradient[row] * units.u[row];
        own.e[row] = by_max ? 0 : rec[row].e * inverse * units.gradient[row];
        own.at_peak[row] = rec[row].e * inverse * units.gradient[row] * units.weight(row);
        own.peak[row] = rec[row].peak;
    }
    return own;
}

/* Sums of the sweep over the thread's columns: p, p (u - its centre), p (E - its centre), each times the
 * unit of weights; p E and ds as rounded; ds where scores decay. */
struct solved_sums {
    float p[2], u[2], error[2], weight[2], gradient[2], ds[2];
};

/* The products s = q . k, g = do . v + y . k and u = rho . k become p, p E and ds. */
template <bool DECAYED>
static __device__ __forceinline__ void solved_errors(float (&s)[8][4], float (&g)[8][4],
                                                     const solved_system<DECAYED> &rs,
                                                     const solved_pair_rows &own, solved_sums &sum, int j)
{
    score_weights(s, rs.sys, j);
#pragma unroll
    for (int n = 0; n < 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int row = e / 2;
            g[n][e] = s[n][e] * (g[n][e] - own.error[row]);
            sum.p[row] += s[n][e];
            sum.error[row] += g[n][e];
        }
    }
}

template <bool DECAYED>
static __device__ __forceinline__ void solved_gradients(float (&u)[8][4], const float (&p)[8][4],
                                                        const float (&f)[8][4], const solved_pair_rows &own,
                                                        solved_sums &sum, int j)
{
#pragma unroll
    for (int n = 0; n < 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int row = e / 2;
            const float from_mean = u[n][e] - own.u[row];
            sum.u[row] += p[n][e] * from_mean;
            u[n][e] = f[n][e] * (own.one[row] - own.slope[row] * from_mean) + p[n][e] * own.e[row];
        }
    }
    if (own.by_max) {
#pragma unroll
        for (int n = 0; n < 8; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++)
                u[n][e] += j + column_of(n, e) == own.peak[e / 2] ? own.at_peak[e / 2] : 0;
        }
    }
    if constexpr (DECAYED) {
#pragma unroll
        for (int n = 0; n < 8; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++)
                sum.ds[e / 2] += u[n][e];
        }
    }
}

/* q = sum ds k and r = sum p E k, in the units of their weights and of the keys. */
template <bool DECAYED>
static __device__ __forceinline__ void solved_sweep(float (&q)[1][8][4], float (&r)[1][8][4],
                                                    const solved_system<DECAYED> &rs,
                                                    const solved_pair_rows &own, solved_sums &sums)
{
    enum { DIM = TILE_SIDE };
    const auto &sys = rs.sys;
    solved_sums sum = {};
    pair_stream<DIM, DECAYED, stages::rho, true, __half> stream(rs);
    clear_sums<DIM>(q);
    clear_sums<DIM>(r);
    while (stream.waited < stream.count) {
        const int j = stream.key_of(stream.waited);
        const __half *const values = stream.wait(), *const keys = stream.wait();
        float s[8][4], g[8][4], u[8][4];
        weights_operand<1, 4, __half> f, ds;
        multiply_rows<DIM>(s, sys.sm.query, keys, false);
        more_rows<DIM>(g, rs.stage(stages::grad_o), values, false);
        more_rows<DIM>(g, rs.stage(stages::y), keys, true);
        more_rows<DIM>(g, sys.sm.direction[0], keys, true);
        more_rows<DIM>(u, rs.stage(stages::rho), keys, false);
        more_rows<DIM>(u, sys.sm.direction[1], keys, true);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_results(s);
        wgmma_results(g);
        wgmma_results(u);
        solved_errors(s, g, rs, own, sum, j);
        split_weights(f, g);
        add_weights(sum.weight, f);
        solved_gradients<DECAYED>(u, s, g, own, sum, j);
        split_weights(ds, u);
        add_weights(sum.gradient, ds);
        multiply_weights<DIM>(r, f.part[0], keys);
        more_weights<DIM>(q, ds.part[0], keys);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_results(r);
        wgmma_results(q);
        stream.release(stream.waited);
    }
    stream.finish();
#pragma unroll
    for (int row = 0; row < 2; row++) {
        sums.p[row] = quad_sum(sum.p[row]), sums.u[row] = quad_sum(sum.u[row]);
        sums.error[row] = quad_sum(sum.error[row]), sums.weight[row] = quad_sum(sum.weight[row]);
        sums.gradient[row] = quad_sum(sum.gradient[row]), sums.ds[row] = quad_sum(sum.ds[row]);
    }
}

/* du, dE and the sum of ds of the rows. */
struct solved_centres {
    float u[2], error[2], ds[2];
};

static __device__ __forceinline__ solved_centres centres_of(const solved_sums &sum, const solved_units &units)
{
    solved_centres out;
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float inverse = sum.p[row] > 0 ? 1 / sum.p[row] : 0,
                    weight = units.error[row] * power_of_two(-units.weight_log2[row]);
        out.u[row] = units.u[row] * sum.u[row] * inverse;
        out.error[row] = units.error[row] * sum.error[row] * inverse;
        out.ds[row] = weight *
                          (power_inverse(units.gradient[row]) * sum.ds[row] + out.u[row] * sum.error[row]) -
                      out.error[row] * (1 - out.u[row]);
    }
    return out;
}

/* sum ds kappa (in q) and the square of the residual of y, from the sums of the sweep. */
template <bool DECAYED>
static __device__ __forceinline__ void finish_sums(float (&q)[1][8][4], float (&error2)[2],
                                                   const float (&r)[1][8][4],
                                                   const solved_system<DECAYED> &rs, const solved_sums &sum,
                                                   const solved_centres &centre, const solved_units &units)
{
    const auto &sys = rs.sys;
    const float key = sys.units.key, inverse = power_inverse(key);
    float weight[2], gradient[2];
#pragma unroll
    for (int row = 0; row < 2; row++) {
        weight[row] = key * units.error[row] * power_of_two(-units.weight_log2[row]);
        gradient[row] = weight[row] * power_inverse(units.gradient[row]);
    }
    error2[0] = error2[1] = 0;
#pragma unroll
    for (int n = 0; n < TILE_SIDE / 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
            const int row = e / 2, c = column_of(n, e);
            const float2 mean = rs.pair(rs.all.saved.kbar, row, c), rho = rs.pair(rs.all.saved.rho, row, c),
                         y = rs.pair(rs.all.arrays.y, row, c), lambda = lambda_of(rs, row, c);
            const float k[2] = { inverse * mean.x, inverse * mean.y };
            const float cov[2] = { mean.x - key * sys.target(row, c) - lambda.x * rho.x,
                                   mean.y - key * sys.target(row, c + 1) - lambda.y * rho.y };
            const float ridge[2] = { lambda.x * y.x, lambda.y * y.y };
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float &to = q[0][n][e + i];
                const float from_mean = weight[row] * (r[0][n][e + i] - sum.weight[row] * k[i]),
                            rest = from_mean + ridge[i];
                to = gradient[row] * (to - sum.gradient[row] * k[i]) + centre.u[row] * from_mean +
                     centre.error[row] * cov[i];
                error2[row] += rest * rest;
            }
        }
    }
    error2[0] = quad_sum(error2[0]), error2[1] = quad_sum(error2[1]);
}

/* Writes dq and the sums of the rows, from sum ds kappa. */
template <bool DECAYED>
static __device__ __forceinline__ void put_solved(const solved_system<DECAYED> &rs, const float (&q)[1][8][4],
                                                  const solved_centres &centre)
{
    const auto &sys = rs.sys;
    const loam_args &a = sys.a;
    const float scale = (float)sys.p.scale, key = sys.units.key;
    float of_scale[2] = {};
#pragma unroll
    for (int n = 0; n < TILE_SIDE / 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
            const int row = e / 2, c = column_of(n, e);
            if (!rs.r.real[row]) continue;
            const float2 y = rs.pair(rs.all.arrays.y, row, c);
            const int64_t to = LOCAL_AT(a.grad_q, sys.block.s.b, sys.block.h,
                                        sys.block.s.q0 + sys.block.i0 + rs.r.at[row]);
            of_scale[row] += q[0][n][e] * sys.target(row, c) + q[0][n][e + 1] * sys.target(row, c + 1);
            if (a.grad_q.data)
                store_pair(a.grad_q.data, LOAM_BF16, to, c, TILE_SIDE, scale * q[0][n][e] - y.x,
                           scale * q[0][n][e + 1] - y.y);
        }
    }
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float total = key * quad_sum(of_scale[row]);
        if (!rs.r.real[row] || threadIdx.x % 4 != 0) continue;
        rs.all.arrays.sums.scale[rs.line(row)] = (double)total;
        if constexpr (DECAYED) rs.all.arrays.sums.inner[rs.line(row)] = (double)centre.ds[row];
    }
}

/* The rows that are not solved go on the list for float64; true where all are. All threads of the block call
 * it. */
template <bool DECAYED>
static __device__ __forceinline__ bool all_solved(const solved_system<DECAYED> &rs, const float (&error2)[2],
                                                  const float (&bb)[2], const solved_units &units)
{
    bool hard[2];
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float most = SOLVED_ACCEPT * SOLVED_ACCEPT * bb[row] +
                           units.rounding[row] * units.rounding[row];
        const bool good = !(bb[row] > 0) || error2[row] <= most;
        hard[row] = rs.r.lo[row] < rs.r.hi[row] && !(rs.ridge.least[row] > 0 && good);
        if (!hard[row] || threadIdx.x % 4 != 0) continue;
        const hard_row left = { rs.sys.sm.block, rs.r.at[row], 0 };
        rs.all.work.hard[atomicAdd(rs.all.work.hard_count, 1ull)] = left;
    }
    return !__syncthreads_or(hard[0] || hard[1]);
}

/* A block of the list. */
template <bool DECAYED>
static __device__ __forceinline__ void rows_after_solution(pairs_shared<TILE_SIDE, __half> &sm,
                                                           rows_count &count, const rows_launch &all)
{
    const row_block &block = sm.rows;
    const heavy_work &heavy = *all.heavy;
    const row_pair r = row_pair_of(all.p, block);
    adjoint_row own[2];
    float lse2[2], largest[2];
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const int64_t line = sm.listed * ROWS + r.at[row];
        const row_weight weight = heavy.weight[line];
        own[row] = heavy.adjoint[line], lse2[row] = weight.lse2, largest[row] = weight.largest;
    }
    const bool by_max = all.p.ridge_unit == LOAM_RIDGE_MAX;
    const float unit[2] = { by_max ? largest[0] : 1, by_max ? largest[1] : 1 };
    const row_ridge ridge = row_ridge_of(all.p, all.a, block, r, unit);
    pairs_system<TILE_SIDE, DECAYED, __half> sys = block_system_of<TILE_SIDE, DECAYED>(
        all.p, all.a, block, r, ridge, all.maps.all, sm, count.ring, all.work.scratch);
    sys.units = half_units_of(*all.copy, all.p, sm.block / all.p.heads_q % all.p.batch, block.h_kv);
    load_block_queries(sys, count.rows++);
    if (threadIdx.x == 0) {
        barrier_expect(&sm.query_full, TILE_SIDE * TILE_SIDE * 2);
        load_row_tile(sys, sm.stage[stages::grad_o], all.maps.grad_o);
    }
    barrier_wait(&sm.query_full, count.rows++ % 2);
    sys.lse_exact = __syncthreads_and(fabsf(lse2[0]) < EXACT_LSE && fabsf(lse2[1]) < EXACT_LSE);
    sys.lse2[0] = lse2[0], sys.lse2[1] = lse2[1];

    solved_rows rows;
    const float *const solution = heavy.vectors + sm.listed * listed_vectors<TILE_SIDE>;
    const solved_units units = load_solved(solved_system<DECAYED>(sys, all, count), own, solution, largest,
                                           rows);
    put_operands(solved_system<DECAYED>(sys, all, count), own, solution, units);
#pragma unroll
    for (int row = 0; row < 2; row++) {
        sys.weight_log2[row] = units.weight_log2[row];
        sys.lse2[row] = lse2[row] - units.weight_log2[row];
    }
    const solved_system<DECAYED> rs(sys, all, count);
    float q[1][8][4], p_error[1][8][4], error2[2];
    solved_sums sums;
    solved_sweep(q, p_error, rs, pair_constants(rows.rec, units, by_max), sums);
    const solved_centres centre = centres_of(sums, units);
    finish_sums(q, error2, p_error, rs, sums, centre, units);
#pragma unroll
    for (int row = 0; row < 2; row++)
        rows.rec[row].rho_rest = centre.u[row], rows.rec[row].y_rest = centre.error[row];
    put_records(rs, rows.rec);
    const bool good = all_solved(rs, error2, rows.bb, units);
    if (good) put_solved(rs, q, centre);
    if (threadIdx.x == 0) all.arrays.state[sm.block] = good ? ROWS_TWO_PARTS : ROWS_PENDING;
}

template <bool DECAYED>
__global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    rows_solved_kernel(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                       const __grid_constant__ rows_plan plan)
{
    extern __shared__ __align__(1024) unsigned char swizzled_memory[];
    typedef pairs_shared<TILE_SIDE, __half> shared;
    shared &sm = *(shared *)swizzled_memory;
    const rows_launch all = { p, a, plan.saved, plan.rows, plan.work, plan.maps, &plan.copy, &plan.heavy };
    const solve_launch solve = { p, a, plan.saved, plan.work, plan.maps.all, &plan.copy, &plan.heavy };
    const block_list list = { plan.work.next_ended, plan.heavy.listed, plan.work.heavy_count };
    rows_count count = {};
    wait_for_previous_launch();
    launch_dependents();
    if (threadIdx.x == 0) {
        pair_barriers<TILE_SIDE> *const pairs = (pair_barriers<TILE_SIDE> *)(swizzled_memory +
                                                                             pair_barriers_at<TILE_SIDE>);
        for (int n = 0; n < (int)ring_stages<TILE_SIDE> - 1; n++)
            barrier_init(&pairs->full[n], 1);
        barrier_init(&sm.query_full, 1);
        fence_async_proxy();
    }
    for (;;) {
        __syncthreads();
        if (threadIdx.x == 0) claim_block<2, DECAYED>(sm, solve, 0, list);
        __syncthreads();
        if (sm.block < 0) break;
        rows_after_solution<DECAYED>(sm, count, all);
    }
}

loam_status rows_solved(const loam_problem *p, const loam_args *a, const rows_plan *plan, loam_error *error)
{
    auto *const kernel = p->decay ? rows_solved_kernel<true> : rows_solved_kernel<false>;
    return cuda_launch("rows_solved_kernel", kernel, BLOCKS_PER_SM * solve_multiprocessors(), THREADS,
                       rows_shared_bytes<TILE_SIDE>, a->stream, true, error, *p, *a, *plan);
}
