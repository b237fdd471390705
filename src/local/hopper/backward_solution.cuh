/* SPDX-License-Identifier: MIT
 *
 * Backward of Local Linear Attention on Hopper, rows of a block from y, the solution of the adjoint system,
 * to dq and records, in one sweep with fp16 operands. y and rho have two parts. Formulas are those of
 * backward_pairs.cuh; here u and E are centred by rho . kbar and gbar + y . kbar alone, and the sweep also
 * finds what their means then are under p, du and dE. With sums over kappa = k - kbar, whose mean is 0, and
 * Cov rho = kbar - q - Lambda rho from the forward pass:
 *
 *     sum ds kappa = sum p (1 - u) E kappa + du sum p E kappa + dE Cov rho,   x . ds = q . sum ds kappa
 *     drho - (Cov + Lambda) y = -(sum p E kappa + Lambda y)
 *
 * Rows that miss the tolerance are for float64, and query_kernel then takes their whole block. ROWS is the
 * block as its kernel has it: rows_system, or resident_rows.
 */
#ifndef LOAM_LOCAL_HOPPER_BACKWARD_SOLUTION_CUH
#define LOAM_LOCAL_HOPPER_BACKWARD_SOLUTION_CUH

#include "src/local/hopper/backward_pairs.cuh"
#include "src/local/hopper/forward_rows.cuh"
#include "src/local/hopper/head_extremes.cuh"

/* What the rows have before the solve. lse2: to base 2; grad: the units of do in fp16; b_unit: of drho as
 * right side. */
struct adjoint_rows {
    float lse2[2], largest[2], grad[2], b_unit[2], rest[2];
    int peak[2];
};

/* Of the residual, relative to drho; and of rounding, relative to the largest that a term of it can be, where
 * drho is itself no more than rounding, as in rows that see one key. */
#define SOLVED_ACCEPT 3.5e-3f
#define SOLVED_ROUNDING 0x1p-26f

/* Powers of two of the thread's rows. Operands are rho / probe, y / solution and do / grad; products with
 * fp16 keys and values are then u / u and E / error. Weights are p E weight / error, and gradients of scores
 * these times `gradient`. */
struct solved_units {
    float probe[2], solution[2], grad[2];
    float u[2], error[2], weight_log2[2], gradient[2];
    float rounding[2]; /* of the residual */

    __device__ __forceinline__ float weight(int row) const { return power_of_two(weight_log2[row]); }
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

/* The exponent of the power of two that brings products up to `bound` to at most 2^15. */
static __device__ __forceinline__ float product_exponent(float bound)
{
    return bound > 0 && bound < INFINITY ? fminf(fmaxf(14 - floorf(log2f(bound)), -100), 100) : 0;
}

/* No value in its unit is longer. */
template <int DIM> constexpr float value_norm = 2 * HALF_TOP *(DIM == 64 ? 8 : 12);

/* Units by Cauchy and Schwarz: operands and weights then stay within the range of fp16. */
template <int DIM>
static __device__ __forceinline__ solved_units units_of(const half_units &head, const row_extent &rho,
                                                        const row_extent &y, const row_extent &grad,
                                                        const row_scalars (&rec)[2],
                                                        const float (&largest)[2])
{
    solved_units out;
#pragma unroll
    for (int row = 0; row < 2; row++) {
        out.probe[row] = unit_of_largest<__half>(rho.top[row]);
        out.u[row] = out.probe[row] * head.key;
        out.error[row] = fmaxf(unit_of_largest<__half>(grad.top[row]) * head.value,
                               unit_of_largest<__half>(y.top[row]) * head.key);
        out.grad[row] = out.error[row] * power_inverse(head.value);
        out.solution[row] = out.error[row] * power_inverse(head.key);
        const float error = 2 * (grad.norm[row] * value_norm<DIM> * power_inverse(out.grad[row]) +
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

/* square, b2: sums of the thread's columns. */
static __device__ __forceinline__ void norms_of(row_norms (&norms)[2], const float (&square)[2],
                                                const float (&b2)[2], const row_extent &rho,
                                                const row_extent &y, const row_extent &grad,
                                                const row_scalars (&rec)[2])
{
#pragma unroll
    for (int row = 0; row < 2; row++)
        norms[row] = { quad_sum(square[row]),
                       rho.norm[row] * rho.norm[row],
                       quad_sum(b2[row]),
                       grad.norm[row] * grad.norm[row],
                       rho.top[row],
                       fmaxf(y.top[row], grad.top[row]),
                       rec[row].e };
}

/* Two of the thread's numbers into an array of 16-bit types. */
static __device__ __forceinline__ void store_16_bits(void *data, bool is_f16, int64_t at, int c,
                                                     int64_t columns, float x, float y)
{
    const uint32_t pair = is_f16 ? pack_pair<__half>(x, y) : pack_pair<__nv_bfloat16>(x, y);
    uint16_t *const to = (uint16_t *)data + at + c;
    if (c < columns) to[0] = (uint16_t)pair;
    if (c + 1 < columns) to[1] = (uint16_t)(pair >> 16);
}

/* What the rows have once, and their units and norms; y goes to its array, and its gradient of the ridge.
 * source.y and source.grad(n, e): elements e and e + 1 of fragment n of y and of do. */
template <class ROWS, class SOURCE>
static __device__ __forceinline__ solved_units load_solved(const ROWS &rs, const SOURCE &source,
                                                           const adjoint_row (&own)[2],
                                                           const float (&lse2)[2], const float (&largest)[2],
                                                           row_scalars (&out)[2], row_norms (&norms)[2])
{
    const auto &sys = rs.sys;
    const loam_args &a = sys.a;
    row_extent rho_extent = {}, y_extent = {}, grad_extent = {};
    float e[2] = {}, ridge[2] = {}, gbar[2] = {}, rho_kbar[2] = {}, y_kbar[2] = {}, square[2] = {},
          b2[2] = {};
    int64_t to[2];
    for (int row = 0; row < 2; row++)
        to[row] = LOCAL_AT(a.grad_ridge, sys.block.s.b, sys.block.h,
                           sys.block.s.q0 + sys.block.i0 + rs.r.at[row]);
#pragma unroll 2
    for (int n = 0; n < ROWS::dim / 8; n++) {
#pragma unroll
        for (int at = 0; at < 4; at += 2) {
            const int row = at / 2, c = column_of(n, at);
            const float2 rho = rs.key_pair(rs.all.saved.rho, row, c), y = source.y(n, at),
                         mean = rs.key_pair(rs.all.saved.kbar, row, c),
                         value = rs.value_pair(rs.all.saved.vbar, row, c), grad = source.grad(n, at),
                         lambda = rs.lambda_pair(n, at);
            const float b[2] = { mean.x - sys.units.key * rs.target(row, c),
                                 mean.y - sys.units.key * rs.target(row, c + 1) };
            const float2 part = { -y.x * rho.x * rs.ridge.unit[row], -y.y * rho.y * rs.ridge.unit[row] };
            rho_extent.add(row, rho), y_extent.add(row, y), grad_extent.add(row, grad);
            gbar[row] += grad.x * value.x + grad.y * value.y;
            rho_kbar[row] += rho.x * mean.x + rho.y * mean.y;
            y_kbar[row] += y.x * mean.x + y.y * mean.y;
            ridge[row] += part.x + part.y;
            e[row] -= y.x * rho.x * lambda.x + y.y * rho.y * lambda.y;
            square[row] += rho.x * (b[0] - lambda.x * rho.x) + rho.y * (b[1] - lambda.y * rho.y);
            b2[row] += b[0] * b[0] + b[1] * b[1];
            if (!rs.r.real[row]) continue;
            save_pair(rs.all.arrays.y, rs.line(row), c, sys.p.dim_qk, y.x, y.y);
            if (sys.p.ridge_axes == LOAM_RIDGE_CHANNEL && a.grad_ridge.data)
                store_pair(a.grad_ridge.data, LOAM_F32, to[row], c, sys.p.dim_qk, part.x, part.y);
        }
    }
#pragma unroll
    for (int row = 0; row < 2; row++) {
        row_scalars rec = {};
        ridge[row] = quad_sum(ridge[row]);
        rec.lse = lse2[row] * 0.693147181f;
        rec.gbar = quad_sum(gbar[row]), rec.gbar_rest = own[row].rest;
        rec.rho_kbar = quad_sum(rho_kbar[row]), rec.y_kbar = quad_sum(y_kbar[row]);
        rec.e = quad_sum(e[row]), rec.unit = rs.ridge.unit[row];
        rec.peak = own[row].peak, rec.lo = rs.r.lo[row], rec.hi = rs.r.hi[row];
        out[row] = rec;
        if (!rs.r.real[row] || threadIdx.x % 4 != 0) continue;
        rs.all.arrays.sums.ridge[rs.line(row)] = (double)ridge[row];
        if (sys.p.ridge_axes == LOAM_RIDGE_TOKEN && a.grad_ridge.data)
            ((float *)a.grad_ridge.data)[to[row]] = ridge[row];
    }
    rho_extent.finish(), y_extent.finish(), grad_extent.finish();
    norms_of(norms, square, b2, rho_extent, y_extent, grad_extent, out);
    return units_of<ROWS::dim>(sys.units, rho_extent, y_extent, grad_extent, out, largest);
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

/* Sums of the sweep over the thread's columns: p (u - its centre) times the unit of weights; p (E - its
 * centre) and ds as rounded; ds where scores decay. */
struct solved_sums {
    float u[2], weight[2], gradient[2], ds[2];
};

/* p (E - its centre), in the place of the products g = do . v + y . k. */
template <int BLOCKS>
static __device__ __forceinline__ void solved_errors(float (&g)[BLOCKS][4], const float (&p)[BLOCKS][4],
                                                     const solved_pair_rows &own)
{
#pragma unroll
    for (int n = 0; n < BLOCKS; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++)
            g[n][e] = p[n][e] * (g[n][e] - own.error[e / 2]);
    }
}

/* ds of keys from j on, in the place of the products u = rho . k, from p and f = p E. */
template <bool DECAYED, int BLOCKS>
static __device__ __forceinline__ void solved_gradients(float (&u)[BLOCKS][4], const float (&p)[BLOCKS][4],
                                                        const float (&f)[BLOCKS][4],
                                                        const solved_pair_rows &own, solved_sums &sum, int j)
{
#pragma unroll
    for (int n = 0; n < BLOCKS; n++) {
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
        for (int n = 0; n < BLOCKS; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++)
                u[n][e] += j + column_of(n, e) == own.peak[e / 2] ? own.at_peak[e / 2] : 0;
        }
    }
    if constexpr (DECAYED) {
#pragma unroll
        for (int n = 0; n < BLOCKS; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++)
                sum.ds[e / 2] += u[n][e];
        }
    }
}

/* du, dE and the sum of ds of the rows. The sum of p is 1. */
struct solved_centres {
    float u[2], error[2], ds[2];
};

static __device__ __forceinline__ solved_centres centres_of(const solved_sums &sum, const solved_units &units)
{
    solved_centres out;
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float inverse = power_of_two(-units.weight_log2[row]), weight = units.error[row] * inverse;
        out.u[row] = units.u[row] * sum.u[row] * inverse;
        out.error[row] = weight * sum.weight[row];
        out.ds[row] = weight *
                          (power_inverse(units.gradient[row]) * sum.ds[row] + out.u[row] * sum.weight[row]) -
                      out.error[row] * (1 - out.u[row]);
    }
    return out;
}

/* What the sums of the sweep become dq by. */
struct solved_scales {
    float key, weight[2], gradient[2];
};

static __device__ __forceinline__ solved_scales scales_of(float key, const solved_units &units)
{
    solved_scales out = { key, {}, {} };
#pragma unroll
    for (int row = 0; row < 2; row++) {
        out.weight[row] = key * units.error[row] * power_of_two(-units.weight_log2[row]);
        out.gradient[row] = out.weight[row] * power_inverse(units.gradient[row]);
    }
    return out;
}

/* sum ds kappa, and adds to the square of the residual of y, of elements e and e + 1 of fragment n, from the
 * sums q and r of the sweep. */
template <class ROWS>
static __device__ __forceinline__ float2 finish_pair(float (&error2)[2], const ROWS &rs, int n, int e,
                                                     const float2 &q, const float2 &r, const solved_sums &sum,
                                                     const solved_centres &centre,
                                                     const solved_scales &scales)
{
    const int row = e / 2, c = column_of(n, e);
    const float key = scales.key, inverse = power_inverse(key);
    const float2 mean = rs.key_pair(rs.all.saved.kbar, row, c), rho = rs.key_pair(rs.all.saved.rho, row, c),
                 y = rs.key_pair(rs.all.arrays.y, row, c), lambda = rs.lambda_pair(n, e);
    const float k[2] = { inverse * mean.x, inverse * mean.y }, sums[2][2] = { { q.x, r.x }, { q.y, r.y } };
    const float cov[2] = { mean.x - key * rs.target(row, c) - lambda.x * rho.x,
                           mean.y - key * rs.target(row, c + 1) - lambda.y * rho.y };
    const float ridge[2] = { lambda.x * y.x, lambda.y * y.y };
    float ds[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float from_mean = scales.weight[row] * (sums[i][1] - sum.weight[row] * k[i]),
                    rest = from_mean + ridge[i];
        ds[i] = scales.gradient[row] * (sums[i][0] - sum.gradient[row] * k[i]) + centre.u[row] * from_mean +
                centre.error[row] * cov[i];
        error2[row] += rest * rest;
    }
    return { ds[0], ds[1] };
}

/* Writes elements e and e + 1 of fragment n of dq, from sum ds kappa, and adds to the product of that with
 * the query. */
template <class ROWS>
static __device__ __forceinline__ void put_pair(float (&of_scale)[2], const ROWS &rs, int n, int e,
                                                const float2 &ds)
{
    const int row = e / 2, c = column_of(n, e);
    if (!rs.r.real[row]) return;
    const auto &sys = rs.sys;
    const loam_view &to = sys.a.grad_q;
    const float scale = (float)sys.p.scale;
    const float2 y = rs.key_pair(rs.all.arrays.y, row, c);
    of_scale[row] += ds.x * rs.target(row, c) + ds.y * rs.target(row, c + 1);
    if (to.data)
        store_16_bits(to.data, rs.is_f16(),
                      LOCAL_AT(to, sys.block.s.b, sys.block.h, sys.block.s.q0 + sys.block.i0 + rs.r.at[row]),
                      c, sys.p.dim_qk, scale * ds.x - y.x, scale * ds.y - y.y);
}

/* Writes what the rows add to gradients of parameters. */
template <bool DECAYED, class ROWS>
static __device__ __forceinline__ void put_row_sums(const ROWS &rs, const float (&of_scale)[2],
                                                    const solved_centres &centre)
{
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float total = rs.sys.units.key * quad_sum(of_scale[row]);
        if (!rs.r.real[row] || threadIdx.x % 4 != 0) continue;
        rs.all.arrays.sums.scale[rs.line(row)] = (double)total;
        if constexpr (DECAYED) rs.all.arrays.sums.inner[rs.line(row)] = (double)centre.ds[row];
    }
}

/* Is a row solved, by the square of its true residual? bb: of its right side. */
static __device__ __forceinline__ bool row_solved(float error2, float bb, float rounding, float accept)
{
    return !(bb > 0) || error2 <= accept * accept * bb + rounding * rounding;
}

/* The rows that are not solved go on the list for float64; true where all are. All threads of the block call
 * it. */
template <class ROWS>
static __device__ __forceinline__ bool all_solved(const ROWS &rs, const float (&error2)[2],
                                                  const float (&bb)[2], const solved_units &units,
                                                  float accept = SOLVED_ACCEPT)
{
    bool hard[2];
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const bool good = row_solved(error2[row], bb[row], units.rounding[row], accept);
        hard[row] = rs.r.lo[row] < rs.r.hi[row] && !(rs.ridge.least[row] > 0 && good);
        if (!hard[row] || threadIdx.x % 4 != 0) continue;
        const hard_row left = { rs.sys.sm.block, rs.r.at[row], 0 };
        rs.all.work.hard[atomicAdd(rs.all.work.hard_count, 1ull)] = left;
    }
    return !__syncthreads_or(hard[0] || hard[1]);
}

#endif
