/* SPDX-License-Identifier: MIT
 * Checks of sizes, pointers and arrays. No value of q, k and v is read; the checks of the other arrays cost
 * O(batch + ridge + log_decay + beta + w). */
#include "src/core/check.h"

#include "src/base/dtype.h"

#include <float.h>
#include <math.h>

loam_status check_size(const char *name, int64_t value, int64_t least, int64_t most, loam_error *error)
{
    REQUIRE(value >= least && value <= most, error, LOAM_ESHAPE, "%s: %lld, expected %lld to %lld", name,
            (long long)value, (long long)least, (long long)most);
    return LOAM_OK;
}

loam_status check_given(const void *data, const char *name, const char *why, loam_error *error)
{
    REQUIRE(data, error, LOAM_EARG, "%s: NULL, but %s", name, why);
    return LOAM_OK;
}

loam_status check_output(const loam_view *view, const char *name, extent e, loam_error *error)
{
    if (!view->data || extent_rows(e) == 0) return LOAM_OK;
    const int64_t counts[] = { e.tokens, e.heads, e.batch },
                  strides[] = { view->token, view->head, view->batch };
    static const char *const axes[] = { "token", "head", "batch" };
    for (int axis = 0; axis < 3; axis++) {
        const int64_t size = strides[axis] < 0 ? -strides[axis] : strides[axis];
        REQUIRE(counts[axis] <= 1 || size >= e.channels, error, LOAM_ESHAPE,
                "%s: %s stride %lld, expected at least %lld so that rows do not overlap", name, axes[axis],
                (long long)strides[axis], (long long)e.channels);
    }
    return LOAM_OK;
}

/* Are the first n values from `least` to `most`? The loop has no branch. */
static bool within(const void *data, loam_dtype real, int64_t at, int64_t n, double least, double most)
{
    int outside = 0;
    if (real == LOAM_F64) {
        const double *x = (const double *)data + at;
        for (int64_t c = 0; c < n; c++)
            outside |= !((x[c] >= least) & (x[c] <= most));
    } else {
        const bool finite = most > FLT_MAX && most < HUGE_VAL; /* not to become infinite */
        const float *x = (const float *)data + at, from = (float)least, to = finite ? FLT_MAX : (float)most;
        for (int64_t c = 0; c < n; c++)
            outside |= !((x[c] >= from) & (x[c] <= to));
    }
    return !outside;
}

/* What every row must be: of length 1 or 0 (unit), else of values from `least` to `most`. */
typedef struct row_rule {
    loam_dtype dtype;
    bool unit;
    double least, most;
} row_rule;

LOAM_INLINE double sum_of_squares(const void *data, loam_dtype dtype, int64_t at, int64_t n)
{
    double sums[4] = { 0 }, rest = 0;
    for (int64_t c = 0; c < n / 4 * 4; c += 4) {
        for (int part = 0; part < 4; part++) {
            const double x = element_load(data, dtype, at + c + part);
            sums[part] += x * x;
        }
    }
    for (int64_t c = n / 4 * 4; c < n; c++) {
        const double x = element_load(data, dtype, at + c);
        rest += x * x;
    }
    return sums[0] + sums[1] + (sums[2] + sums[3]) + rest;
}

static double length_of(const void *data, loam_dtype dtype, int64_t at, int64_t n)
{
    switch (dtype) { /* a loop for each type */
    case LOAM_F64: return sqrt(sum_of_squares(data, LOAM_F64, at, n));
    case LOAM_F32: return sqrt(sum_of_squares(data, LOAM_F32, at, n));
    case LOAM_BF16: return sqrt(sum_of_squares(data, LOAM_BF16, at, n));
    case LOAM_F16: return sqrt(sum_of_squares(data, LOAM_F16, at, n));
    }
    return 0;
}

/* How far rounding takes a length from 1: rounding of the elements to their type, and of the float32 sum that
 * normalised them. float64 arrays may have been rounded to any type before. */
static double unit_tolerance(loam_dtype dtype)
{
    const bool coarse = dtype == LOAM_BF16 || dtype == LOAM_F64;
    return 8 * (double)FLT_EPSILON + (coarse ? 0x1p-7 : dtype == LOAM_F16 ? 0x1p-10 : (double)FLT_EPSILON);
}

static bool is_unit(double length, loam_dtype dtype)
{
    return length == 0 || fabs(length - 1) <= unit_tolerance(dtype);
}

static bool rows_hold(const row_rule *rule, const loam_const_view *view, int64_t at, int64_t rows,
                      int64_t channels)
{
    bool all = true;
    if (!rule->unit && view->token == channels)
        return within(view->data, rule->dtype, at, rows * channels, rule->least, rule->most);
    for (int64_t t = 0; t < rows && all; t++, at += view->token) {
        all = rule->unit ? is_unit(length_of(view->data, rule->dtype, at, channels), rule->dtype)
                         : within(view->data, rule->dtype, at, channels, rule->least, rule->most);
    }
    return all;
}

static int64_t row_at(const loam_const_view *v, int64_t b, int64_t h, int64_t t)
{
    return b * v->batch + h * v->head + t * v->token;
}

static int64_t in_use(const extent *e, int64_t b) { return e->lens ? e->lens[b] : e->tokens; }

/* Gates per channel are as large as keys: threads share them, RANGE_TOKENS tokens of a head at a time. */
static bool all_hold(const loam_problem *p, const row_rule *rule, const loam_const_view *view,
                     const extent *e)
{
    enum { RANGE_TOKENS = 1024, RANGE_SHARED = 1 << 16 };
    const int64_t heads = e->batch * e->heads, pieces = (e->tokens + RANGE_TOKENS - 1) / RANGE_TOKENS;
    const bool shared = heads * e->tokens * e->channels >= RANGE_SHARED;
    bool all = true;
#pragma omp parallel for num_threads(p->threads) reduction(&& : all) if (shared)
    for (int64_t n = 0; n < heads * pieces; n++) {
        const int64_t first = n % pieces * RANGE_TOKENS, b = n / pieces / e->heads, h = n / pieces % e->heads;
        const int64_t rest = in_use(e, b) - first, count = rest < RANGE_TOKENS ? rest : RANGE_TOKENS;
        all = all && rows_hold(rule, view, row_at(view, b, h, first), count, e->channels);
    }
    return all;
}

static bool read_by_host(const loam_problem *p, extent e) { return !on_device(p) && extent_rows(e) > 0; }

loam_status check_range(const loam_problem *p, const loam_const_view *view, const char *name, extent e,
                        double least, double most, const char *expected, loam_error *error)
{
    const row_rule rule = { dtype_real(p->dtype), false, least, most };
    if (!read_by_host(p, e) || all_hold(p, &rule, view, &e)) return LOAM_OK;
    for (int64_t row = 0; row < extent_rows(e); row++) {
        const int64_t t = row % e.tokens, h = row / e.tokens % e.heads, b = row / e.tokens / e.heads;
        for (int64_t c = 0; c < e.channels && t < in_use(&e, b); c++) {
            const double x = element_load(view->data, rule.dtype, row_at(view, b, h, t) + c);
            REQUIRE(x >= least && x <= most, error, LOAM_EVALUE,
                    "%s: %g at batch %lld, head %lld, token %lld, channel %lld, expected %s", name, x,
                    (long long)b, (long long)h, (long long)t, (long long)c, expected);
        }
    }
    return LOAM_OK;
}

loam_status check_unit(const loam_problem *p, const loam_const_view *view, const char *name, extent e,
                       loam_error *error)
{
    const row_rule rule = { p->dtype, true, 0, 0 };
    if (!read_by_host(p, e) || all_hold(p, &rule, view, &e)) return LOAM_OK;
    for (int64_t row = 0; row < extent_rows(e); row++) {
        const int64_t t = row % e.tokens, h = row / e.tokens % e.heads, b = row / e.tokens / e.heads;
        if (t < in_use(&e, b)) {
            const double length = length_of(view->data, p->dtype, row_at(view, b, h, t), e.channels);
            REQUIRE(is_unit(length, p->dtype), error, LOAM_EVALUE,
                    "%s: length %.17g at batch %lld, head %lld, token %lld, expected 1 to within %.2g, or 0",
                    name, length, (long long)b, (long long)h, (long long)t, unit_tolerance(p->dtype));
        }
    }
    return LOAM_OK;
}

loam_status check_ascending(const loam_problem *p, const int64_t *cu, const char *name, int64_t longest,
                            int64_t total, loam_error *error)
{
    const int64_t batch = p->batch;
    TRY(check_given(cu, name, "the problem is packed", error));
    if (on_device(p)) return LOAM_OK;
    REQUIRE(cu[0] == 0, error, LOAM_ESHAPE, "%s[0]: %lld, expected 0", name, (long long)cu[0]);
    for (int64_t b = 0; b < batch; b++) {
        /* Compared before subtracting: hostile values must not overflow. */
        REQUIRE(cu[b + 1] >= cu[b] && cu[b + 1] <= total && cu[b + 1] - cu[b] <= longest, error, LOAM_ESHAPE,
                "%s[%lld]: %lld after %lld, expected a length of 0 to %lld and no more than %lld in all",
                name, (long long)(b + 1), (long long)cu[b + 1], (long long)cu[b], (long long)longest,
                (long long)total);
    }
    REQUIRE(cu[batch] == total, error, LOAM_ESHAPE, "%s[%lld]: %lld, expected the total %lld", name,
            (long long)batch, (long long)cu[batch], (long long)total);
    return LOAM_OK;
}
