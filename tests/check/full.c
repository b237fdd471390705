/* SPDX-License-Identifier: MIT */
#include "tests/check/full.h"

#include "tests/support/kernels.h"

#include <stdio.h>
#include <string.h>

enum { WIDTH = 64, WIDEST = 256, MANY_KEYS = 1700, HUGE_QUERIES = 200 };

/* Causal, 64 channels, in float32 where the row has it. */
static spec base(const loam_kernel_info *row, int mechanism, int64_t queries, int64_t keys)
{
    const loam_pass pass = strcmp(row->pass, "forward") == 0    ? LOAM_FORWARD
                           : strcmp(row->pass, "backward") == 0 ? LOAM_BACKWARD
                                                                : LOAM_DECODE;
    spec s = spec_default((loam_mechanism)mechanism, pass, keys, WIDTH, WIDTH);
    s.dtype = kernel_lists(row->dtypes, "f32") && !kernel_tiled(row) ? LOAM_F32 : LOAM_BF16;
    s.backend = LOAM_BACKEND_AUTO;
    s.len_q = queries;
    s.seed = 4096 + queries;
    snprintf(s.kernel, sizeof s.kernel, "%s", row->name);
    return s;
}

/* Keys of length 1 where a rule takes back what the state says of them; gates and strengths of
 * every kind in the last, among them decays of a head that last for thousands of tokens. */
static int recurrent_specs(const loam_kernel_info *row, int mechanism, spec *cases)
{
    static const int64_t lengths[] = { 1, 63, 65, 4095, 4096 };
    int count = 0;
    for (int n = 0; n < 5; n++) {
        const int hostile = n == 4;
        spec s = base(row, mechanism, lengths[n], lengths[n]);
        s.state = 1;
        s.feature_map = mechanism >= LOAM_DELTA ? LOAM_FEATURES_UNIT : LOAM_FEATURES_IDENTITY;
        if (kernel_is_positive(row->name)) s.feature_map = LOAM_FEATURES_POSITIVE, s.normalise = 1;
        s.data = hostile ? DATA_STEEP : DATA_NORMAL;
        s.ridge = 0.5;
        cases[count++] = s;
    }
    /* Keys leave directions free: x is a thousand times its products with them. */
    if (mechanism == LOAM_MESA) {
        spec s = base(row, mechanism, 7, 7);
        s.feature_map = LOAM_FEATURES_UNIT;
        s.ridge_axes = LOAM_RIDGE_HEAD, s.ridge = 1e-3;
        s.batch = 3, s.seed = 1987729274;
        cases[count++] = s;
    }
    return count;
}

/* The widest tiles, and as many keys as their solver takes for many: FEW_KEYS of each channel. */
static spec widest_spec(const loam_kernel_info *row, int mechanism, loam_dtype dtype)
{
    spec s = base(row, mechanism, 4, MANY_KEYS);
    s.dtype = dtype;
    s.dim_qk = s.dim_v = WIDEST;
    kernel_fit(&s);
    return s;
}

/* Operands of the backward beyond float16, first those of early rows, where single keys have much weight: the
 * kernel of Hopper then computes their blocks again. */
static spec huge_spec(const loam_kernel_info *row, int mechanism)
{
    spec s = base(row, mechanism, HUGE_QUERIES, HUGE_QUERIES);
    s.dtype = LOAM_F16;
    s.heads_q = s.heads_kv = 2;
    s.data = DATA_HUGE;
    return s;
}

static int has_huge_spec(const loam_kernel_info *row, int mechanism)
{
    return mechanism != LOAM_LLA && kernel_tiled(row) && kernel_lists(row->dtypes, "f16") &&
           strcmp(row->pass, "backward") == 0 && !kernel_turns_keys(row->name);
}

/* The last queries of a long sequence, which see all of its keys, so that the reference takes seconds. */
static int local_specs(const loam_kernel_info *row, int mechanism, spec *cases)
{
    static const int64_t lengths[][2] = { { 1, 1 }, { 65, 65 }, { 8, 4096 } };
    const int turned = kernel_turns_keys(row->name);
    int count = 0;
    for (size_t n = 0; n < sizeof lengths / sizeof lengths[0]; n++) {
        for (int decay = 0; decay < 2; decay++) {
            spec s = base(row, mechanism, lengths[n][0], lengths[n][1]);
            s.path = turned;
            s.decay = decay;
            cases[count++] = s;
        }
    }
    const int tiled = kernel_tiled(row) && !turned;
    if (tiled) cases[count++] = widest_spec(row, mechanism, LOAM_BF16);
    if (tiled && kernel_lists(row->dtypes, "f16")) cases[count++] = widest_spec(row, mechanism, LOAM_F16);
    if (has_huge_spec(row, mechanism)) cases[count++] = huge_spec(row, mechanism);
    return count;
}

int full_specs(const loam_kernel_info *row, spec cases[FULL_MOST])
{
    int count = 0;
    for (int mechanism = LOAM_SOFTMAX; mechanism < spec_mechanisms(); mechanism++) {
        if (strcmp(row->backend, "reference") != 0 &&
            kernel_lists(row->mechanisms, loam_mechanism_name((loam_mechanism)mechanism))) {
            count += (mechanism >= LOAM_LINEAR ? recurrent_specs : local_specs)(row, mechanism,
                                                                                cases + count);
        }
    }
    return count;
}
