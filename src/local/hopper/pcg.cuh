/* SPDX-License-Identifier: MIT
 * Conjugate gradients with a preconditioner for each row (local/hopper/heavy.cuh), for blocks with a row that
 * plain ones would take too long for. */
#ifndef LOAM_LOCAL_HOPPER_PCG_CUH
#define LOAM_LOCAL_HOPPER_PCG_CUH

#include "src/local/hopper/heavy.cuh"

/* The norm of a residual as operand of its factor. */
#define RESIDUAL_TOP 0x1p7f

/* The preconditioned residuals of the thread's rows: r . z, z . z, z . kbar. */
struct pcg_rows {
    float rz[2], zz[2], mean[2];
};

/* y, the residuals r, becomes z = V V^T r of the rows that are live, and 0 of the others. */
template <int DIM, bool DECAYED, class T>
static __device__ __forceinline__ void precondition(float (&y)[DIM / TILE_SIDE][8][4],
                                                    const block_system<DIM, DECAYED, T> &sys,
                                                    const cg_rows &cg, pcg_rows &pre, const uint32_t *factor)
{
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4;
    const lane_vector kbar = sys.vector(VECTOR_KBAR);
    const float unit[2] = { unit_of_norm<T>(cg.rr[0]) * (DIRECTION_TOP / RESIDUAL_TOP),
                            unit_of_norm<T>(cg.rr[1]) * (DIRECTION_TOP / RESIDUAL_TOP) };
    const float inverse[2] = { power_inverse(unit[0]), power_inverse(unit[1]) };
    square_parts r[SQUARES];
#pragma unroll
    for (int n = 0; n < DIM / 2; n += 2) {
        float(&at)[4] = y[n / 32][n / 4 % 8];
        uint32_t part[2];
        split_pair<__half>(part, at[n % 4] * inverse[n / 2 % 2], at[n % 4 + 1] * inverse[n / 2 % 2]);
        const int e = n / 2 % 2 + n / 4 % 2 * 2;
        r[n / 8].hi[e] = part[0], r[n / 8].lo[e] = part[1];
        at[n % 4] = at[n % 4 + 1] = 0;
    }
    pre.rz[0] = pre.rz[1] = 0;
    unsigned left = live_rows(cg.live);
    uint32_t next[LOWER_SQUARES][4];
    const uint32_t *const factors = factor + warp * 16 * FACTOR_WORDS;
    if (left) load_factor(next, factors + (__ffs(left) - 1) * FACTOR_WORDS);
#pragma unroll 1
    while (left) {
        const int i = __ffs(left) - 1;
        uint32_t v[LOWER_SQUARES][4];
        square_sums z[SQUARES];
        float norm2[2];
        memcpy(v, next, sizeof v);
        left &= left - 1;
        if (left) load_factor(next, factors + (__ffs(left) - 1) * FACTOR_WORDS);
        multiply_factor(z, norm2, r, v);
#pragma unroll
        for (int n = 0; n < DIM / 2; n++) {
            float &at = y[n / 32][n / 4 % 8][n % 4];
            at = i == g + n / 2 % 2 * 8 ? z[n / 8].tile[n / 4 % 2][n % 4] : at;
        }
        pre.rz[0] = i == g ? norm2[0] : pre.rz[0];
        pre.rz[1] = i == g + 8 ? norm2[1] : pre.rz[1];
    }
    pre.zz[0] = pre.zz[1] = pre.mean[0] = pre.mean[1] = 0;
#pragma unroll
    for (int n = 0; n < DIM / 2; n++) {
        const int row = n / 2 % 2;
        float &at = y[n / 32][n / 4 % 8][n % 4];
        at *= unit[row];
        pre.zz[row] += at * at, pre.mean[row] += at * kbar.get(n);
    }
#pragma unroll
    for (int row = 0; row < 2; row++) {
        pre.rz[row] = quad_sum(pre.rz[row]) * unit[row] * unit[row];
        pre.zz[row] = quad_sum(pre.zz[row]), pre.mean[row] = quad_sum(pre.mean[row]);
    }
}

/* Iterates for the rows that are live, from x and its residual r, which lie in the scratch; factor: V of
 * these rows. */
template <int PARTS, int DIM, bool DECAYED, class T>
static __device__ __noinline__ void pcg_run(const block_system<DIM, DECAYED, T> &stored, cg_rows &rows,
                                            const cg_tolerance &tolerance, const uint32_t *factor)
{
    const row_pair r = stored.r;
    const row_ridge ridge = stored.ridge;
    const block_system<DIM, DECAYED, T> sys = system_in_registers(stored, r, ridge);
    cg_rows cg = rows;
    pcg_rows pre = {};
    const lane_vector residual = sys.vector(VECTOR_R);
    float y[DIM / TILE_SIDE][8][4], beta[2], centre[2];
#pragma unroll
    for (int n = 0; n < DIM / 2; n++)
        y[n / 32][n / 4 % 8][n % 4] = residual.get(n);
    precondition(y, sys, cg, pre, factor);
    row_direction own = { { unit_of_norm<T>(pre.zz[0]), unit_of_norm<T>(pre.zz[1]) }, { 0, 0 } };
    put_direction<PARTS>(sys, y, own);
    centre[0] = pre.mean[0], centre[1] = pre.mean[1];
    for (int count = 0; count < tolerance.most && __syncthreads_or(cg.live[0] || cg.live[1]); count++) {
        float alpha[2], rr[2] = { 0, 0 };
        const float before[2] = { pre.rz[0], pre.rz[1] };
        const image_products d = compute_image<PARTS>(y, sys, own);
        cg_step_length(cg, d, before, alpha);
        cg_advance<PARTS>(sys, y, own, alpha, rr);
#pragma unroll
        for (int row = 0; row < 2; row++) {
            rr[row] = quad_sum(rr[row]);
            cg.rr[row] = cg.live[row] ? rr[row] : cg.rr[row];
            cg.live[row] = cg.live[row] && cg.rr[row] > tolerance.stop * tolerance.stop * cg.bb[row];
        }
        precondition(y, sys, cg, pre, factor);
#pragma unroll
        for (int row = 0; row < 2; row++)
            beta[row] = cg.live[row] ? pre.rz[row] / before[row] : 0;
        const float norm2[2] = { pre.zz[0] + beta[0] * beta[0] * d.size[0],
                                 pre.zz[1] + beta[1] * beta[1] * d.size[1] };
        cg_update_direction<PARTS>(sys, y, cg, norm2, beta, own);
#pragma unroll
        for (int row = 0; row < 2; row++) {
            centre[row] = pre.mean[row] + beta[row] * centre[row];
            own.centre[row] = is_half<T> && !cg.live[row] ? 0 : centre[row] * power_inverse(own.unit[row]);
        }
    }
    rows = cg;
}

#endif
