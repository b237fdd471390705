/* SPDX-License-Identifier: MIT */
#include "cli/bench/count.h"

#include "cli/names.h"

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

static bool recurrent(const loam_problem *p)
{
    const loam_mechanism_info form = names_form(p->mechanism);
    return names_is_recurrent(&form);
}

int64_t bench_features(const loam_problem *p)
{
    if (p->feature_map != LOAM_FEATURES_POSITIVE) return 0;
    return p->features ? p->features : p->dim_qk;
}

bool bench_solves(const loam_problem *p) { return names_form(p->mechanism).ridge_axes != 0; }

double bench_pairs(const loam_problem *p)
{
    double pairs = 0;
    if (recurrent(p)) return 0;
    for (int64_t i = 0; i < p->len_q; i++)
        pairs += row_pairs(p, i);
    return pairs * (double)p->batch * (double)p->heads_q;
}

/* ---------------------------------------------------------------- operations */

/* Of one pair, without the solver. */
static double pair_flop(const loam_problem *p)
{
    /* Products over dim_qk and over dim_v, [no probe, given, solved][backward]. */
    static const double qk[][2] = { { 1, 3 }, { 2, 5 }, { 3, 8 } }, v[][2] = { { 1, 2 }, { 2, 2 }, { 2, 2 } };
    const int probe = bench_solves(p) ? 2 : names_form(p->mechanism).probe;
    const double d = (double)p->dim_qk, dv = (double)p->dim_v;
    if (bench_solves(p) && p->pass == LOAM_DECODE) return d * (d + 1) + 6 * d + 4 * dv;
    const int backward = p->pass == LOAM_BACKWARD;
    const double tiles = p->path ? (backward ? 6 : 2) * d * d / 64 : 0;
    return tiles + 2 * (qk[probe][backward] * d + v[probe][backward] * dv);
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

/* ---------------------------------------------------------------- a token and head of the recurrences */

static const double CHUNK = 64;

static double additive(double d, double dv) { return 2 * CHUNK * (d + dv) + 4 * d * dv; }

/* The map of positive features and its gradient: products of queries and of keys with z. */
static double map_flop(const loam_problem *p)
{
    return (p->pass == LOAM_BACKWARD ? 12 : 4) * (double)bench_features(p) * (double)p->dim_qk;
}

static double direct_flop(const loam_problem *p, const loam_mechanism_info *form)
{
    const double d = (double)(bench_features(p) ? bench_features(p) : p->dim_qk),
                 dv = (double)(p->dim_v + p->normalise), c = CHUNK;
    if (p->pass == LOAM_DECODE)
        return (form->delta ? 6 : 4) * d * dv + (form->log_decay != LOAM_DECAY_NONE ? d * dv : 0);
    if (p->pass == LOAM_FORWARD)
        return form->delta ? 4 * c * (d + dv) + 6 * d * dv + c * c / 3 : additive(d, dv);
    return form->delta ? 12 * c * d + 10 * c * dv + 16 * d * dv + c * c / 3
                       : 6 * c * d + 4 * c * dv + 10 * d * dv;
}

/* One solve of MesaNet. */
static double solve_flop(const loam_problem *p, const loam_row_info *info)
{
    const double d = (double)p->dim_qk, n = (double)info->iterations;
    const bool exact = info->iterations == 0;
    if (p->pass == LOAM_DECODE) return exact ? d * d * d / 3 + 2 * d * d : 2 * n * d * d;
    return exact ? 20 * d * d : n * (2 * d * d + 4 * CHUNK * d);
}

static double mesa_flop(const loam_problem *p, const loam_row_info *info)
{
    const double d = (double)p->dim_qk, dv = (double)p->dim_v, c = CHUNK;
    if (p->pass == LOAM_DECODE) return 2 * d * d + 4 * d * dv + solve_flop(p, info);
    if (p->pass == LOAM_FORWARD) return additive(d, dv) + additive(d, d) + solve_flop(p, info);
    return 10 * c * d + 4 * c * dv + 10 * d * dv + 6 * d * d + 2 * solve_flop(p, info);
}

static double recurrent_flop(const loam_problem *p, const loam_row_info *info)
{
    const int64_t rows = p->batch * p->heads_v * p->len_q;
    const loam_mechanism_info form = names_form(p->mechanism);
    double flop = 0;
    if (!bench_solves(p)) return (double)rows * (direct_flop(p, &form) + map_flop(p));
    for (int64_t row = 0; row < rows; row++)
        flop += mesa_flop(p, &info[row]);
    return flop;
}

double bench_flop(const loam_problem *p, const loam_row_info *info)
{
    if (recurrent(p)) return recurrent_flop(p, info);
    const double d = (double)p->dim_qk;
    const int64_t rows = p->batch * p->heads_q * p->len_q;
    double flop = pair_flop(p) * bench_pairs(p);
    if (!bench_solves(p)) return flop;
    if (p->pass == LOAM_DECODE) return flop + (double)rows * (d * d * d / 3 + 2 * d * d);
    for (int64_t row = 0; row < rows; row++)
        flop += solver_flop(p, &info[row], row_pairs(p, row % p->len_q));
    return flop;
}

static int64_t info_rows(const loam_problem *p)
{
    return p->batch * (recurrent(p) ? p->heads_v : p->heads_q) * p->len_q;
}

double bench_iterations(const loam_problem *p, const loam_row_info *info)
{
    const int64_t rows = info_rows(p);
    double sum = 0;
    for (int64_t row = 0; row < rows; row++)
        sum += (double)info[row].iterations;
    return rows > 0 ? sum / (double)rows : 0;
}

double bench_exact(const loam_problem *p, const loam_row_info *info)
{
    const int64_t rows = info_rows(p);
    int64_t exact = 0;
    for (int64_t row = 0; row < rows; row++)
        exact += info[row].solver == LOAM_SOLVER_DUAL || info[row].solver == LOAM_SOLVER_GRAM;
    return rows > 0 ? (double)exact / (double)rows : 0;
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

/* Log decays and betas of one sequence. */
static double gates(const loam_problem *p)
{
    const loam_mechanism_info form = names_form(p->mechanism);
    const double tokens = (double)p->heads_v * (double)p->len_q, d = (double)p->dim_qk;
    const double decays = form.log_decay == LOAM_DECAY_CHANNEL ? d * tokens
                          : form.log_decay == LOAM_DECAY_TOKEN ? tokens
                                                               : 0;
    return decays + (form.beta ? tokens : 0);
}

static double recurrent_bytes(const loam_problem *p)
{
    const double d = (double)p->dim_qk, dv = (double)p->dim_v, n = (double)p->len_q;
    const double element = (double)bench_dtype_bytes(p->dtype), real = (double)bench_real_bytes(p->dtype);
    const double keys = 2 * (double)p->heads_q * n * d * element,
                 values = (double)p->heads_v * n * dv * element;
    const double features = (double)bench_features(p), width = features > 0 ? features : d;
    const double rows = dv + p->normalise + (bench_solves(p) ? d : 0) + (features > 0);
    const double state = p->pass == LOAM_DECODE ? 2 * (double)p->heads_v * rows * width * real : 0;
    const double once = keys + 2 * values + gates(p) * real + state; /* q, k, v, gates, and o or grad_o */
    return (double)p->batch * (p->pass == LOAM_BACKWARD ? once + keys + values + gates(p) * real : once);
}

/* What the scores of FoX and PaTH read, and write backward. */
static double between_bytes(const loam_problem *p, double keys)
{
    const double element = (double)bench_dtype_bytes(p->dtype), real = (double)bench_real_bytes(p->dtype);
    const double decays = p->decay ? (double)p->heads_q * real : 0;
    const double path = p->path ? (double)p->heads_kv * ((double)p->dim_qk * element + real) : 0;
    return (p->pass == LOAM_BACKWARD ? 2 : 1) * (double)p->batch * keys * (decays + path);
}

double bench_bytes(const loam_problem *p)
{
    if (recurrent(p)) return recurrent_bytes(p);
    const double d = (double)p->dim_qk, dv = (double)p->dim_v, b = (double)p->batch;
    const double element = (double)bench_dtype_bytes(p->dtype), real = (double)bench_real_bytes(p->dtype);
    const double rows = b * (double)p->heads_q * (double)p->len_q;
    const double keys = b * (double)p->heads_kv * keys_seen(p) * (d + dv) * element;
    const int given = names_form(p->mechanism).probe;
    const double probe = given ? d : 0;
    const double between = between_bytes(p, keys_seen(p));
    const double once = keys + between +
                        rows * (d + probe + dv) * element; /* q, k, v, probe and o, or grad_o */
    if (p->pass != LOAM_BACKWARD) return once;
    const double saved = bench_solves(p) ? 1 + dv + 2 * d : given ? 3 + 2 * dv : 1 + dv;
    return once + keys + rows * (d + probe) * element + rows * saved * real;
}
