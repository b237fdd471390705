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
template <int DIM> constexpr float value_norm = 2 * HALF_TOP *(DIM == 64 ? 8 : DIM == 128 ? 12 : 16);

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

/* What load_solved sums of the thread's columns of its rows; b = kbar - q. */
struct solved_rows {
    row_extent rho, y, grad;
    row_products products;
    float gbar[2], square[2], b2[2];

    __device__ __forceinline__ void add_b(int row, const float2 &b, const float2 &of_rho,
                                          const float2 &lambda)
    {
        square[row] += of_rho.x * (b.x - lambda.x * of_rho.x) + of_rho.y * (b.y - lambda.y * of_rho.y);
        b2[row] += b.x * b.x + b.y * b.y;
    }
    __device__ __forceinline__ void add_grad(int row, const float2 &x, const float2 &vbar)
    {
        gbar[row] += x.x * vbar.x + x.y * vbar.y;
        grad.add(row, x);
    }
};

/* What add_solved reads of the rows, and where their y goes. */
template <class ROWS> struct solved_input {
    row_vectors rho, mean, value, y;
    typename ROWS::row_queries query;
    row_lambdas lambda;
    float key;

    __device__ __forceinline__ solved_input(const ROWS &rs)
        : rho(key_rows(rs, rs.all.saved.rho)), mean(key_rows(rs, rs.all.saved.kbar)),
          value(rs, rs.all.saved.vbar, rs.sys.p.dim_v), y(key_rows(rs, rs.all.arrays.y)), query(rs.targets()),
          lambda(rs.lambdas()), key(rs.sys.units.key)
    {
    }
};

/* Adds fragments from n on to the sums, and writes their y to its array. */
template <class ROWS, class SOURCE>
static __device__ __forceinline__ void add_solved(solved_rows &sum, const solved_input<ROWS> &in,
                                                  const SOURCE &source, int n)
{
    row_fragments rho, mean, value, lambda, y;
    in.rho.load(rho, n), in.mean.load(mean, n), in.value.load(value, n);
    in.lambda.load(lambda, n);
    source.load(y, n);
#pragma unroll
    for (int k = 0; k < TOGETHER; k++) {
#pragma unroll
        for (int row = 0; row < 2; row++) {
            const int c = column_of(n + k, 0);
            const float2 b = { mean[k][row].x - in.key * in.query.get(row, c),
                               mean[k][row].y - in.key * in.query.get(row, c + 1) };
            sum.rho.add(row, rho[k][row]), sum.y.add(row, y[k][row]);
            sum.products.add(row, rho[k][row], y[k][row], mean[k][row], lambda[k][row]);
            sum.add_b(row, b, rho[k][row], lambda[k][row]);
            sum.add_grad(row, source.grad(n + k, row), value[k][row]);
        }
    }
    in.y.store(y, n);
}

/* What the rows have once, and their units and norms; y goes to its array, and its gradient of the ridge.
 * source.load(y, n): fragments of y from n on; source.grad(n, row): fragment n of do of a row. */
template <class ROWS, class SOURCE>
static __device__ __forceinline__ solved_units load_solved(const ROWS &rs, const SOURCE &source,
                                                           const adjoint_row (&own)[2],
                                                           const float (&lse2)[2], const float (&largest)[2],
                                                           row_scalars (&rec)[2], row_norms (&norms)[2])
{
    const solved_input<ROWS> in(rs);
    solved_rows sum = {};
#pragma unroll 1
    for (int n = 0; n < ROWS::dim / 8; n += TOGETHER)
        add_solved(sum, in, source, n);
#pragma unroll
    for (int row = 0; row < 2; row++) {
        rec[row] = begin_record(rs, sum.products, row, lse2[row]);
        rec[row].gbar = quad_sum(sum.gbar[row]), rec[row].gbar_rest = own[row].rest;
        rec[row].peak = own[row].peak;
    }
    put_channel_ridges(rs);
    sum.rho.finish(), sum.y.finish(), sum.grad.finish();
    norms_of(norms, sum.square, sum.b2, sum.rho, sum.y, sum.grad, rec);
    return units_of<ROWS::dim>(rs.sys.units, sum.rho, sum.y, sum.grad, rec, largest);
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

/* What the sums of the sweep become dq by, what this takes of the rows, and where dq goes. */
template <class ROWS> struct solved_output {
    row_vectors mean, rho, y;
    typename ROWS::row_queries query;
    row_lambdas lambda;
    uint16_t *to[2];
    bool is_f16, real[2];
    int channels;
    float key, scale, weight[2], gradient[2];

    __device__ __forceinline__ solved_output(const ROWS &rs, const solved_units &units)
        : mean(key_rows(rs, rs.all.saved.kbar)), rho(key_rows(rs, rs.all.saved.rho)),
          y(key_rows(rs, rs.all.arrays.y)), query(rs.targets()), lambda(rs.lambdas()), is_f16(rs.is_f16()),
          channels((int)rs.sys.p.dim_qk), key(rs.sys.units.key), scale((float)rs.sys.p.scale)
    {
#pragma unroll
        for (int row = 0; row < 2; row++) {
            to[row] = query_gradient(rs, row), real[row] = rs.r.real[row];
            weight[row] = key * units.error[row] * power_of_two(-units.weight_log2[row]);
            gradient[row] = weight[row] * power_inverse(units.gradient[row]);
        }
    }
};

/* Sums over the columns of the thread: the square of the residual of y; x . ds for the gradient of the
 * scale. */
struct output_sums {
    float error2[2], scale[2];
};

/* One column of sum ds kappa, and adds to the residual, from the sums q and r of the sweep. cov: of Cov rho;
 * ridge: of Lambda y. */
template <class ROWS>
static __device__ __forceinline__ float solved_gradient(output_sums &total, int row, float q, float r,
                                                        float kbar, float cov, float ridge,
                                                        const solved_sums &sum, const solved_centres &centre,
                                                        const solved_output<ROWS> &out)
{
    const float from_mean = out.weight[row] * (r - sum.weight[row] * kbar), rest = from_mean + ridge;
    total.error2[row] += rest * rest;
    return out.gradient[row] * (q - sum.gradient[row] * kbar) + centre.u[row] * from_mean +
           centre.error[row] * cov;
}

/* Writes fragments of dq from n on, from the sums q and r of the sweep. */
template <class ROWS>
static __device__ __forceinline__ void put_fragments(output_sums &total, const solved_output<ROWS> &out,
                                                     int n, const row_fragments &q, const row_fragments &r,
                                                     const solved_sums &sum, const solved_centres &centre)
{
    const float key = out.key, inverse = power_inverse(key), scale = out.scale;
    row_fragments mean, rho, y, lambda;
    out.mean.load(mean, n), out.rho.load(rho, n), out.y.load(y, n);
    out.lambda.load(lambda, n);
#pragma unroll
    for (int k = 0; k < TOGETHER; k++) {
#pragma unroll
        for (int row = 0; row < 2; row++) {
            const int c = column_of(n + k, 0);
            const float2 m = mean[k][row], p = rho[k][row], x = y[k][row], l = lambda[k][row],
                         target = { out.query.get(row, c), out.query.get(row, c + 1) };
            const float2 ds = {
                solved_gradient(total, row, q[k][row].x, r[k][row].x, inverse * m.x,
                                m.x - key * target.x - l.x * p.x, l.x * x.x, sum, centre, out),
                solved_gradient(total, row, q[k][row].y, r[k][row].y, inverse * m.y,
                                m.y - key * target.y - l.y * p.y, l.y * x.y, sum, centre, out)
            };
            if (!out.real[row]) continue;
            total.scale[row] += ds.x * target.x + ds.y * target.y;
            if (out.to[row])
                store_channels(out.to[row], out.is_f16, c, out.channels, scale * ds.x - x.x,
                               scale * ds.y - x.y);
        }
    }
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
