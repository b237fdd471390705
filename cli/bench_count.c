/* SPDX-License-Identifier: MIT */
#include "cli/bench_count.h"

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

void bench_visible(const loam_problem *p, int64_t i, int64_t *lo, int64_t *hi)
{
    const int64_t at = i + p->len_kv - p->len_q;
    int64_t first = 0, end = p->len_kv;
    if (p->causal) end = least(end, at + 1);
    if (p->window > 0) {
        first = most(first, at - p->window + 1);
        end = least(end, at + p->window);
    }
    *lo = first;
    *hi = most(first, end);
}

static double row_pairs(const loam_problem *p, int64_t i)
{
    int64_t lo, hi;
    bench_visible(p, i, &lo, &hi);
    return (double)(hi - lo);
}

double bench_pairs(const loam_problem *p)
{
    double pairs = 0;
    for (int64_t i = 0; i < p->len_q; i++)
        pairs += row_pairs(p, i);
    return pairs * (double)p->batch * (double)p->heads_q;
}

/* ---------------------------------------------------------------- operations */

/* Of one pair, without the solver. */
static double pair_flop(const loam_problem *p)
{
    /* Products over dim_qk and over dim_v, [mechanism][backward]. */
    static const double qk[][2] = { { 1, 3 }, { 2, 5 }, { 3, 8 } }, v[][2] = { { 1, 2 }, { 2, 2 }, { 2, 2 } };
    const double d = (double)p->dim_qk, dv = (double)p->dim_v;
    if (p->mechanism == LOAM_LLA && p->pass == LOAM_DECODE) return d * (d + 1) + 6 * d + 4 * dv;
    const int backward = p->pass == LOAM_BACKWARD;
    return 2 * (qk[p->mechanism][backward] * d + v[p->mechanism][backward] * dv);
}

static double solver_flop(const loam_problem *p, const loam_row_info *info, double pairs)
{
    const double d = (double)p->dim_qk;
    double flop = 4 * d * pairs * (double)info->iterations;
    if (info->solver == LOAM_SOLVER_GRAM)
        flop += d * (d + 1) * pairs + d * d * d / 3;
    else if (info->solver == LOAM_SOLVER_DUAL)
        flop += d * pairs * (pairs + 1) + pairs * pairs * pairs / 3;
    return flop;
}

double bench_flop(const loam_problem *p, const loam_row_info *info)
{
    const double d = (double)p->dim_qk;
    const int64_t rows = p->batch * p->heads_q * p->len_q;
    double flop = pair_flop(p) * bench_pairs(p);
    if (p->mechanism != LOAM_LLA) return flop;
    if (p->pass == LOAM_DECODE) return flop + (double)rows * (d * d * d / 3 + 2 * d * d);
    for (int64_t row = 0; row < rows; row++)
        flop += solver_flop(p, &info[row], row_pairs(p, row % p->len_q));
    return flop;
}

double bench_iterations(const loam_problem *p, const loam_row_info *info)
{
    const int64_t rows = p->batch * p->heads_q * p->len_q;
    double sum = 0;
    for (int64_t row = 0; row < rows; row++)
        sum += (double)info[row].iterations;
    return rows > 0 ? sum / (double)rows : 0;
}

/* ---------------------------------------------------------------- bytes */

int64_t bench_dtype_bytes(loam_dtype dtype) { return dtype == LOAM_F64 ? 8 : dtype == LOAM_F32 ? 4 : 2; }

int64_t bench_real_bytes(loam_dtype dtype) { return dtype == LOAM_F64 ? 8 : 4; }

/* Keys that some query sees: the windows of neighbouring queries overlap, so they are one run. */
static double keys_seen(const loam_problem *p)
{
    int64_t lo = p->len_kv, hi = 0;
    for (int64_t i = 0; i < p->len_q; i++) {
        int64_t first, end;
        bench_visible(p, i, &first, &end);
        if (first < end) {
            lo = least(lo, first);
            hi = most(hi, end);
        }
    }
    return (double)most(hi - lo, 0);
}

double bench_bytes(const loam_problem *p)
{
    const double d = (double)p->dim_qk, dv = (double)p->dim_v, b = (double)p->batch;
    const double element = (double)bench_dtype_bytes(p->dtype), real = (double)bench_real_bytes(p->dtype);
    const double rows = b * (double)p->heads_q * (double)p->len_q;
    const double keys = b * (double)p->heads_kv * keys_seen(p) * (d + dv) * element;
    const double probe = p->mechanism == LOAM_PARALLAX ? d : 0;
    const double once = keys + rows * (d + probe + dv) * element; /* q, k, v, probe and o, or grad_o */
    if (p->pass != LOAM_BACKWARD) return once;
    const double saved = p->mechanism == LOAM_LLA        ? 1 + dv + 2 * d
                         : p->mechanism == LOAM_PARALLAX ? 3 + 2 * dv
                                                         : 1 + dv;
    return once + keys + rows * (d + probe) * element + rows * saved * real;
}
