/* SPDX-License-Identifier: MIT
 * The checks of a problem: everything that can be known before there is data. */
#include "src/core/problem.h"

#include "src/base/size.h"
#include "src/base/stamp.h"
#include "src/core/check.h"
#include "src/core/family.h"
#include "src/core/mechanisms.h"
#include "src/local/local.h"

#include <math.h>
#include <omp.h>

enum { MAX_THREADS = 1024 };

loam_status problem_check_stamp(const loam_problem *p, const char *name, loam_error *error)
{
    REQUIRE(p, error, LOAM_EARG, "%s: NULL", name);
    return stamp_check(&p->stamp, sizeof *p, sizeof(loam_args), name, "loam_problem_default", error);
}

static loam_status check_enum(const char *name, int value, int count, loam_error *error)
{
    REQUIRE(value >= 0 && value < count, error, LOAM_EARG, "%s: %d is none of its %d values", name, value,
            count);
    return LOAM_OK;
}

static loam_status check_switch(const char *name, int value, loam_error *error)
{
    REQUIRE(value == 0 || value == 1, error, LOAM_EARG, "%s: %d, expected 0 or 1", name, value);
    return LOAM_OK;
}

static loam_status check_enums(const loam_problem *p, loam_error *error)
{
    TRY(check_enum("mechanism", (int)p->mechanism, MECHANISM_COUNT, error));
    TRY(check_enum("pass", (int)p->pass, LOAM_DECODE + 1, error));
    TRY(check_enum("dtype", (int)p->dtype, LOAM_F64 + 1, error));
    TRY(check_enum("score", (int)p->score, LOAM_RBF + 1, error));
    TRY(check_enum("ridge_axes", (int)p->ridge_axes, LOAM_RIDGE_HEAD_CHANNEL + 1, error));
    TRY(check_enum("ridge_unit", (int)p->ridge_unit, LOAM_RIDGE_TRACE + 1, error));
    TRY(check_enum("backend", (int)p->backend, LOAM_BACKEND_CUDA + 1, error));
    TRY(check_enum("feature_map", (int)p->feature_map, LOAM_FEATURES_POSITIVE + 1, error));
    TRY(check_switch("normalise", p->normalise, error));
    TRY(check_switch("features_shared", p->features_shared, error));
    TRY(check_switch("causal", p->causal, error));
    TRY(check_switch("slope", p->slope, error));
    TRY(check_switch("key_bias", p->key_bias, error));
    TRY(check_switch("decay", p->decay, error));
    TRY(check_switch("path", p->path, error));
    return check_switch("sink", p->sink, error);
}

static loam_status check_packing(const loam_problem *p, loam_error *error)
{
    if (p->total_q == -1 && p->total_kv == -1) return LOAM_OK;
    REQUIRE(p->total_q >= 0 && p->total_kv >= 0, error, LOAM_ESHAPE,
            "total_q, total_kv: %lld and %lld, expected both >= 0 (packed) or both -1", (long long)p->total_q,
            (long long)p->total_kv);
    REQUIRE(p->pass != LOAM_DECODE || family_of(p->mechanism)->packed_decode, error, LOAM_EUNSUPPORTED,
            "total_q: packed sequences do not go with decode; use lens_kv");
    TRY(check_size("total_q", p->total_q, 0, INT32_MAX, error));
    return check_size("total_kv", p->total_kv, 0, INT32_MAX, error);
}

static loam_status check_shape(const loam_problem *p, loam_error *error)
{
    TRY(check_size("batch", p->batch, 0, INT32_MAX, error));
    TRY(check_size("heads_q", p->heads_q, 1, INT32_MAX, error));
    TRY(check_size("heads_kv", p->heads_kv, 1, INT32_MAX, error));
    REQUIRE(p->heads_q % p->heads_kv == 0, error, LOAM_ESHAPE,
            "heads_q: %lld, expected a multiple of heads_kv %lld", (long long)p->heads_q,
            (long long)p->heads_kv);
    /* Positions and their differences must fit an int32 lane. */
    TRY(check_size("len_q", p->len_q, 0, INT32_MAX / 4, error));
    TRY(check_size("len_kv", p->len_kv, 0, INT32_MAX / 4, error));
    TRY(check_size("dim_qk", p->dim_qk, 1, LOAM_MAX_DIM, error));
    TRY(check_size("dim_v", p->dim_v, 1, LOAM_MAX_DIM, error));
    const size_t tokens = sequence_packed(p) ? (size_t)p->total_q
                                             : size_mul((size_t)p->batch, (size_t)p->len_q);
    const size_t elements = size_mul(size_mul(tokens, (size_t)p->heads_q), LOAM_MAX_DIM * sizeof(double));
    REQUIRE(elements < INT64_MAX, error, LOAM_EMEMORY, "batch x heads_q x len_q: too large to address");
    return check_packing(p, error);
}

/* The axes and the unit of the ridge; those of a number are the default of mechanisms that have none. */
static loam_status check_ridge_kind(const loam_problem *p, const loam_mechanism_info *m, loam_error *error)
{
    REQUIRE(p->ridge_axes == LOAM_RIDGE_NUMBER || (m->ridge_axes >> p->ridge_axes & 1), error,
            LOAM_EUNSUPPORTED, "ridge_axes: per %s, which %s does not have",
            loam_ridge_axes_name(p->ridge_axes), m->name);
    REQUIRE(p->ridge_unit == LOAM_RIDGE_NORMALISED || (m->ridge_units >> p->ridge_unit & 1), error,
            LOAM_EUNSUPPORTED, "ridge_unit: %s, which %s does not have", loam_ridge_unit_name(p->ridge_unit),
            m->name);
    return LOAM_OK;
}

#define CHECK_MAP(member, ...) \
    REQUIRE(isfinite(p->member) && p->member >= 0, error, LOAM_EVALUE, \
            #member ": %g, expected >= 0 (0: none)", p->member);

static loam_status check_values(const loam_problem *p, const loam_mechanism_info *m, loam_error *error)
{
    REQUIRE(isfinite(p->scale), error, LOAM_EVALUE, "scale: %g, expected a finite number", p->scale);
    REQUIRE(p->score == LOAM_DOT || p->scale >= 0, error, LOAM_EVALUE,
            "scale: %g, expected > 0 for the RBF score (or 0 for the default)", p->scale);
    LOCAL_MAPS(CHECK_MAP)
    REQUIRE(p->window >= 0, error, LOAM_EVALUE, "window: %lld, expected >= 0 (0: none)",
            (long long)p->window);
    REQUIRE(p->threads >= 0 && p->threads <= MAX_THREADS, error, LOAM_EVALUE, "threads: %d, expected 0 to %d",
            p->threads, MAX_THREADS);
    REQUIRE(!p->sink || m->sink, error, LOAM_EUNSUPPORTED,
            "sink: only softmax has one, not %s: the mass that leaves has no key to fit a line through",
            m->name);
    if (m->ridge_axes) {
        REQUIRE(isfinite(p->ridge) && p->ridge >= 0, error, LOAM_EVALUE,
                "ridge: %g, expected a finite number >= 0", p->ridge);
    }
    return LOAM_OK;
}

loam_status problem_check(loam_problem *p, loam_error *error)
{
    TRY(check_enums(p, error));
    TRY(check_shape(p, error));
    const family *f = family_of(p->mechanism);
    loam_mechanism_info info;
    loam_mechanism_at((int)p->mechanism, &info);
    TRY(f->check_problem(p, error));
    TRY(check_ridge_kind(p, &info, error));
    TRY(check_values(p, &info, error));
    f->fill(p);
    if (p->threads == 0) {
        const int most = omp_get_max_threads();
        p->threads = most < MAX_THREADS ? most : MAX_THREADS;
    }
    return LOAM_OK;
}
