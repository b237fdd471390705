/* SPDX-License-Identifier: MIT
 * Conjugate gradients on Hopper for the rows of a block (solve.cuh). SYSTEM is a block_system, or has vectors
 * of its own. */
#ifndef LOAM_LOCAL_HOPPER_CONJUGATE_CUH
#define LOAM_LOCAL_HOPPER_CONJUGATE_CUH

#include "src/local/hopper/solve.cuh"

/* Rows that take more iterations stop at `late_stop`: rounding adds more to their residual. Of rows that are
 * accepted by their residual, those that take as many as MANY_ITERATIONS stop at `stop` again: what is still
 * to come costs more than it gains. */
enum { FEW_ITERATIONS = 4, MANY_ITERATIONS = 16 };

/* Must the row iterate on? It stops where its residual is below `stop` and where it would also be accepted,
 * by the condition number met so far and with a margin for rounding. */
static __device__ __forceinline__ bool unsolved(const cg_rows &cg, const cg_tolerance &tolerance, int row)
{
    const float sure = 0.64f * tolerance.accept * tolerance.accept;
    const bool late = cg.iterations[row] > FEW_ITERATIONS &&
                      !(tolerance.by_residual && cg.iterations[row] >= MANY_ITERATIONS);
    const float stop = late ? tolerance.late_stop : tolerance.stop;
    return cg.rr[row] > stop * stop * cg.bb[row] ||
           (!tolerance.by_residual && cg.rr[row] * cg.most[row] > sure * cg.bb[row] * cg.least[row]);
}

/* Where a rate is asked for, a row whose residual, relative to b, is above envelope_start rate^n after n >= 3
 * steps would not converge in time, nor one above second_residual after two. Residuals first rise where the
 * spectrum is wide. The first step tells by the largest residual of the block together with the largest
 * Rayleigh quotient of its directions, relative to the ridge. Blocks of four layers of a trained model had
 * residuals of 1.2 to 3.6 with quotients of 9 to 46 at ridge 1, which takes 8 to 14 steps; at 0.1, which
 * takes more than 20, 2.5 to 6.7 with 83 to 454, or 1.3 to 1.8 with 253 to 359. Normal keys at 0.01, which
 * take 10 to 20, had 0.5 to 1.6 with 110 to 189. With 128 channels, two heads of these side by side, it was
 * 2.7 to 4.3 with 9 to 68, which takes 11 to 15 steps, and up to 2.4 after two; at 0.1, 4.1 to 9.1 with 84 to
 * 673. */
template <int DIM> constexpr float envelope_start = DIM == 64 ? 2.4f : 4.0f;
template <int DIM> constexpr float second_residual = DIM == 64 ? 2.0f : 3.0f;
#define FIRST_RESIDUAL 2.0f
#define FIRST_QUOTIENT 75.0f
#define FIRST_RESIDUAL_WIDE 1.2f
#define FIRST_QUOTIENT_WIDE 230.0f

/* Would a row of the block take too long, by its residual after `count` steps? any(x): is x true of any row
 * of the block? All of its threads call it, and what they ask does not depend on their rows. */
template <int DIM, class ANY>
static __device__ __forceinline__ bool too_slow(const cg_rows &cg, const cg_tolerance &tolerance,
                                                const image_products &d, const float (&least)[2],
                                                float envelope, int count, ANY &&any)
{
    const auto beyond = [&](float limit) {
        return any((cg.live[0] && cg.rr[0] > limit * limit * cg.bb[0]) ||
                   (cg.live[1] && cg.rr[1] > limit * limit * cg.bb[1]));
    };
    const auto wide = [&](float limit) {
        return any((cg.live[0] && d.curvature[0] > limit * least[0] * d.size[0]) ||
                   (cg.live[1] && d.curvature[1] > limit * least[1] * d.size[1]));
    };
    if (tolerance.widest > 0 && count == 1 && wide(tolerance.widest)) return true;
    if (!(tolerance.rate > 0)) return false;
    if (count > 2) return beyond(envelope);
    if (count == 2) return beyond(second_residual<DIM>);
    const bool slow = beyond(FIRST_RESIDUAL), slow_wide = beyond(FIRST_RESIDUAL_WIDE),
               far = wide(FIRST_QUOTIENT), far_wide = wide(FIRST_QUOTIENT_WIDE);
    return (slow && far) || (slow_wide && far_wide);
}

/* alpha of the live rows, r . z (plain: z = r) over the curvature, and the bounds of the spectrum that their
 * Rayleigh quotients give; 0 for the others. A row whose direction has no positive curvature stops. */
static __device__ __forceinline__ void cg_step_length(cg_rows &cg, const image_products &d,
                                                      const float (&rz)[2], float (&alpha)[2])
{
#pragma unroll
    for (int row = 0; row < 2; row++) {
        cg.iterations[row] += cg.live[row];
        cg.live[row] = cg.live[row] && d.curvature[row] > 0;
        alpha[row] = cg.live[row] ? rz[row] / d.curvature[row] : 0;
        if (cg.live[row]) {
            cg.least[row] = fminf(cg.least[row], d.curvature[row] / d.size[row]);
            cg.most[row] = fmaxf(cg.most[row], d.curvature[row] / d.size[row]);
        }
    }
}

/* x += alpha direction and r -= alpha image, in the scratch. y: the image, becomes r; rr: sums of its squares
 * (this thread's columns). */
template <int PARTS, class SYSTEM>
static __device__ __forceinline__ void cg_advance(const SYSTEM &sys,
                                                  float (&y)[SYSTEM::dim / TILE_SIDE][8][4],
                                                  const row_direction &own, const float (&alpha)[2],
                                                  float (&rr)[2])
{
    constexpr int DIM = SYSTEM::dim;
    const auto x = sys.vector(VECTOR_X), residual = sys.vector(VECTOR_R);
    const float step[2] = { alpha[0] * own.unit[0], alpha[1] * own.unit[1] };
    constexpr int piece = DIM <= 128 ? DIM / 2 : DIM / 4;
#pragma unroll
    for (int first = 0; first < DIM / 2; first += piece) {
        float old[piece]; /* all loads before any store */
#pragma unroll
        for (int n = 0; n < piece; n++)
            old[n] = residual.get(first + n);
#pragma unroll
        for (int n = 0; n < piece; n++) {
            const int at = first + n, row = at / 2 % 2;
            if (row >= SYSTEM::rows) continue;
            float &r = y[at / 32][at / 4 % 8][at % 4];
            r = old[n] - alpha[row] * r;
            rr[row] += r * r;
            old[n] = x.get(at);
        }
#pragma unroll
        for (int n = 0; n < piece; n += 2) {
            const int at = first + n, row = at / 2 % 2;
            if (row >= SYSTEM::rows) continue;
            const float(&r)[4] = y[at / 32][at / 4 % 8];
            const float2 p = direction_pair<PARTS>(sys, at / 4, at % 4);
            x.put(at, old[n] + step[row] * p.x), x.put(at + 1, old[n + 1] + step[row] * p.y);
            residual.put(at, r[at % 4]), residual.put(at + 1, r[at % 4 + 1]);
        }
    }
}

/* direction <- r + beta direction, with the unit of a vector whose square is norm2. A row that is not live
 * has direction 0: its residual may be so much smaller than the first one that rounding in the centre would
 * leave the range of fp16. cg_run has the centre by a recurrence. */
template <int PARTS, class SYSTEM>
static __device__ __forceinline__ void cg_update_direction(const SYSTEM &sys,
                                                           const float (&r)[SYSTEM::dim / TILE_SIDE][8][4],
                                                           const cg_rows &cg, const float (&norm2)[2],
                                                           const float (&beta)[2], row_direction &own)
{
    typedef typename SYSTEM::type T;
    constexpr int DIM = SYSTEM::dim;
    float inverse[2], factor[2];
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float unit = unit_of_norm<T>(norm2[row]);
        inverse[row] = !is_half<T> ? 1 : cg.live[row] ? power_inverse(unit) : 0;
        factor[row] = beta[row] * own.unit[row] * inverse[row];
        own.unit[row] = unit;
    }
#pragma unroll
    for (int n = 0; n < DIM / 8; n++) {
#pragma unroll
        for (int e = 0; e < 2 * SYSTEM::rows; e += 2) {
            float2 p = direction_pair<PARTS>(sys, n, e);
            p.x = r[n / 8][n % 8][e] * inverse[e / 2] + factor[e / 2] * p.x;
            p.y = r[n / 8][n % 8][e + 1] * inverse[e / 2] + factor[e / 2] * p.y;
            set_direction_pair<PARTS>(sys, n, e, p);
        }
    }
    sys.direction_written();
}

/* What conjugate gradients know of the thread's rows beside cg_rows: the direction, and the products of the
 * residual and of the direction with kbar. */
struct cg_direction {
    row_direction own;
    float mean[2], centre[2];
};

/* The residual, which lies in its vector, becomes the first direction; y is clobbered. */
template <int PARTS, class SYSTEM>
static __device__ __forceinline__ void cg_first(const SYSTEM &sys, const cg_rows &cg,
                                                float (&y)[SYSTEM::dim / TILE_SIDE][8][4], cg_direction &to)
{
    typedef typename SYSTEM::type T;
    const auto residual = sys.vector(VECTOR_R);
    to.own = { { unit_of_norm<T>(cg.rr[0]), unit_of_norm<T>(cg.rr[1]) }, { 0, 0 } };
#pragma unroll
    for (int n = 0; n < SYSTEM::dim / 2; n++)
        y[n / 32][n / 4 % 8][n % 4] = residual.get(n);
    put_direction<PARTS>(sys, y, to.own);
#pragma unroll
    for (int row = 0; row < 2; row++)
        to.centre[row] = to.mean[row] = to.own.centre[row] * to.own.unit[row];
}

/* A step, from the image y of the direction and its products to the next direction; y is clobbered. */
template <int PARTS, class SYSTEM>
static __device__ __forceinline__ void cg_step(const SYSTEM &sys, cg_rows &cg, const cg_tolerance &tolerance,
                                               float (&y)[SYSTEM::dim / TILE_SIDE][8][4],
                                               const image_products &d, cg_direction &to)
{
    float alpha[2], beta[2], rr[2] = { 0, 0 };
    cg_step_length(cg, d, cg.rr, alpha);
    cg_advance<PARTS>(sys, y, to.own, alpha, rr);
#pragma unroll
    for (int row = 0; row < 2; row++) {
        rr[row] = quad_sum(rr[row]);
        beta[row] = cg.live[row] ? rr[row] / cg.rr[row] : 0;
        cg.rr[row] = cg.live[row] ? rr[row] : cg.rr[row];
        cg.live[row] = cg.live[row] && unsolved(cg, tolerance, row);
    }
    const float norm2[2] = { cg.rr[0] + beta[0] * beta[0] * d.size[0],
                             cg.rr[1] + beta[1] * beta[1] * d.size[1] };
    cg_update_direction<PARTS>(sys, y, cg, norm2, beta, to.own);
#pragma unroll
    for (int row = 0; row < 2; row++) {
        to.mean[row] -= alpha[row] * d.mean[row];
        to.centre[row] = to.mean[row] + beta[row] * to.centre[row];
        to.own.centre[row] = is_half<typename SYSTEM::type> && !cg.live[row]
                                 ? 0
                                 : to.centre[row] * power_inverse(to.own.unit[row]);
    }
}

/* Conjugate gradients for the rows that are live, from x and its residual r, which lie in the scratch. */
template <int PARTS, int KEYS = ALL_KEYS, class SYSTEM>
static __device__ __forceinline__ void cg_run(const SYSTEM &stored, cg_rows &rows,
                                              const cg_tolerance &tolerance)
{
    constexpr int DIM = SYSTEM::dim;
    const row_pair r = stored.r;
    const row_ridge ridge = stored.ridge;
    const SYSTEM sys = system_in_registers(stored, r, ridge);
    cg_rows cg = rows;
    cg_direction direction;
    float y[DIM / TILE_SIDE][8][4];
    put_ridge(sys);
    cg_first<PARTS>(sys, cg, y, direction);
    float envelope = envelope_start<DIM>;
    for (int count = 0; count < tolerance.most && __syncthreads_or(cg.live[0] || cg.live[1]); count++) {
        const image_products d = compute_image<PARTS, KEYS>(y, sys, direction.own);
        cg_step<PARTS>(sys, cg, tolerance, y, d, direction);
        envelope *= tolerance.rate;
        if (too_slow<DIM>(cg, tolerance, d, sys.ridge.least, envelope, count + 1,
                          [](bool x) { return __syncthreads_or(x) != 0; }))
            break;
    }
    rows = cg;
}

/* y, scaled to about 1, becomes b; x = 0 and r = b. top: the largest |y| of the thread's columns. */
template <class SYSTEM>
static __device__ __forceinline__ void start_cg(const SYSTEM &sys, cg_rows &cg, float (&y)[SYSTEM::dim / 2],
                                                const float (&top)[2], const bool (&wanted)[2])
{
    constexpr int DIM = SYSTEM::dim;
    const auto x = sys.vector(VECTOR_X), r = sys.vector(VECTOR_R), b = sys.vector(VECTOR_B);
    float bb[2] = { 0, 0 };
    cg.unit[0] = magnitude(quad_max(top[0])), cg.unit[1] = magnitude(quad_max(top[1]));
    const float inverse[2] = { 1 / cg.unit[0], 1 / cg.unit[1] };
#pragma unroll
    for (int n = 0; n < DIM / 2; n++) {
        const int row = n / 2 % 2;
        y[n] *= inverse[row];
        b.put(n, y[n]), r.put(n, y[n]), x.put(n, 0);
        bb[row] += y[n] * y[n];
    }
#pragma unroll
    for (int row = 0; row < 2; row++) {
        cg.bb[row] = cg.rr[row] = quad_sum(bb[row]);
        cg.live[row] = wanted[row] && cg.bb[row] > 0 && cg.bb[row] < INFINITY;
        cg.least[row] = INFINITY, cg.most[row] = 0;
        cg.iterations[row] = 0;
    }
}

#endif
