/* SPDX-License-Identifier: MIT */
#include "tests/check/generate.h"

#include "tests/support/kernels.h"
#include "tests/support/random.h"

#include <stdio.h>
#include <string.h>

#define PICK(r, array) (array)[rng_int(r, 0, (int64_t)(sizeof(array) / sizeof((array)[0])) - 1)]

static const int64_t short_lengths[] = { 0, 1, 2, 3, 4, 5, 7, 8, 9, 13, 15, 16, 17, 23, 31, 32, 33 };
static const int64_t long_lengths[] = { 47, 63, 64, 65, 97, 127, 128, 129, 191, 193, 257, 509, 1021 };
static const int64_t small_dims[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 15, 16, 17, 19, 24, 31, 32, 33 };
static const int64_t large_dims[] = { 40,  48,  63,  64,  65,  80,  96,  127, 128,
                                      129, 160, 192, 255, 256, 257, 384, 511, 512 };
static const double ridges[] = { 1e-3, 1e-2, 0.1, 1, 10 };
static const int64_t windows[] = { 1, 2, 3, 7, 16, 33, 64, 100, 100000 };

static int64_t draw_length(rng *r)
{
    return rng_one_in(r, 3) ? PICK(r, long_lengths) : PICK(r, short_lengths);
}

static int does_recurrences(const loam_kernel_info *row)
{
    return kernel_lists(row->mechanisms, "linear") || kernel_lists(row->mechanisms, "mesa");
}

/* CUDA rows of the local family decline more than 256 (tests/cuda asks how). */
static int64_t draw_dim(rng *r, const loam_kernel_info *row)
{
    const int64_t most = !does_recurrences(row) && strcmp(row->backend, "cuda") == 0 ? 256 : LOAM_MAX_DIM;
    int64_t dim;
    do {
        dim = rng_one_in(r, 4) ? PICK(r, large_dims) : PICK(r, small_dims);
    } while (dim > most);
    return dim;
}

static int64_t draw_word(rng *r, const char *offered, const char *const *words, int64_t count)
{
    int64_t which;
    do {
        which = rng_int(r, 0, count - 1);
    } while (!kernel_lists(offered, words[which]));
    return which;
}

static void draw_kind(spec *s, rng *r, const loam_kernel_info *row)
{
    static const char *const mechanisms[] = { "softmax", "parallax", "lla" };
    static const char *const dtypes[] = { "f32", "bf16", "f16", "f64" };
    s->mechanism = draw_word(r, row->mechanisms, mechanisms, 3);
    s->dtype = draw_word(r, row->dtypes, dtypes, 4);
    s->pass = strcmp(row->pass, "forward") == 0    ? LOAM_FORWARD
              : strcmp(row->pass, "backward") == 0 ? LOAM_BACKWARD
                                                   : LOAM_DECODE;
    snprintf(s->kernel, sizeof s->kernel, "%s", row->name);
}

static void draw_shape(spec *s, rng *r, const loam_kernel_info *row)
{
    s->batch = rng_one_in(r, 20) ? 0 : rng_int(r, 1, 3);
    s->heads_kv = rng_int(r, 1, 3);
    s->heads_q = s->heads_kv * (rng_one_in(r, 2) ? 1 : rng_int(r, 2, 4));
    s->len_q = draw_length(r);
    s->len_kv = rng_one_in(r, 3) ? s->len_q : draw_length(r);
    if (s->pass == LOAM_DECODE && !rng_one_in(r, 4)) s->len_q = rng_int(r, 1, 4);
    s->dim_qk = draw_dim(r, row);
    s->dim_v = rng_one_in(r, 2) ? s->dim_qk : draw_dim(r, row);
    s->packed = s->pass != LOAM_DECODE && rng_one_in(r, 5);
    s->lens = !s->packed && rng_one_in(r, 5);
    if (s->packed) s->batch = rng_int(r, 0, 5);
}

#define DRAW_MAP(name, member, ...) s->member = rng_one_in(r, 5) ? (rng_one_in(r, 2) ? 5 : 30) : 0;

static void draw_options(spec *s, rng *r)
{
    s->score = rng_one_in(r, 3) ? LOAM_RBF : LOAM_DOT;
    s->scale = rng_one_in(r, 3) ? 0.05 + rng_uniform(r) : 0;
    if (s->score == LOAM_DOT && rng_one_in(r, 12)) s->scale = -0.3;
    SPEC_MAPS(DRAW_MAP)
    s->causal = !rng_one_in(r, 3);
    s->window = rng_one_in(r, 4) ? PICK(r, windows) : 0;
    s->slope = rng_one_in(r, 4);
    s->key_bias = rng_one_in(r, 4);
    s->sink = s->mechanism == LOAM_SOFTMAX && rng_one_in(r, 3);
    s->decay = s->causal && s->score == LOAM_DOT && !s->sink && rng_one_in(r, 3);
    s->threads = rng_int(r, 0, 3);
    s->data = rng_one_in(r, 2) ? DATA_NORMAL : rng_int(r, 0, DATA_SELF);
    s->layout = rng_one_in(r, 3) ? 0 : rng_int(r, 1, 1 << 30);
    if (s->mechanism == LOAM_LLA) {
        s->ridge = rng_one_in(r, 16) ? 0 : PICK(r, ridges);
        s->ridge_axes = rng_int(r, 0, LOAM_RIDGE_CHANNEL);
        s->ridge_unit = rng_one_in(r, 2) ? LOAM_RIDGE_NORMALISED : rng_int(r, 1, LOAM_RIDGE_TRACE);
        s->ridge_array = s->ridge_axes == LOAM_RIDGE_NUMBER && rng_one_in(r, 3);
    }
}

/* Rows whose keys are turned do nothing else; the reference is asked for them now and then. */
static void draw_path(spec *s, rng *r, const loam_kernel_info *row)
{
    if (kernel_turns_keys(row->name) || (strstr(row->name, "_ref") && rng_one_in(r, 6))) {
        kernel_take_path(s);
        s->decay = rng_one_in(r, 3);
        s->data = s->data == DATA_FAR ? DATA_NORMAL : s->data;
    }
}

/* The last draw of a case, so that it moves no other. */
static void draw_real(spec *s, rng *r)
{
    if (rng_one_in(r, 12)) s->data = DATA_REAL;
}

static void draw_omissions(spec *s, rng *r)
{
    if (rng_one_in(r, 3)) {
        for (int output = SLOT_FIRST_OUTPUT + 1; output <= SLOT_GRAD_SINK + 1; output++) {
            const int64_t bit = output <= SLOT_GRAD_SINK ? spec_omit((slot)output) : SPEC_OMIT_SAVED;
            s->omit |= rng_one_in(r, 2) ? bit : 0;
        }
        s->omit |= rng_one_in(r, 2) ? spec_omit(SLOT_GRAD_LOG_DECAY) : 0;
    }
    if (!rng_one_in(r, 3)) s->omit |= spec_omit(SLOT_WEIGHTS);
}

/* About the multiplications of the reference. */
static double cost(const spec *s)
{
    const double rows = (double)(s->batch * s->heads_q * s->len_q), d = (double)s->dim_qk;
    const double pairs = rows * (double)s->len_kv;
    const double solve = s->mechanism == LOAM_LLA ? pairs * d * d / 2 + rows * d * d * d / 6 : 0;
    const double turns = s->path ? rows * (double)(s->len_kv * s->len_kv) / 2 * d : 0;
    return turns + solve + pairs * (d + (double)s->dim_v) * (s->pass == LOAM_BACKWARD ? 12 : 4);
}

/* Halves one thing after another until the reference is quick. */
static void shrink(spec *s, rng *r, double budget)
{
    while (cost(s) > budget) {
        int64_t *const sizes[] = { &s->len_q, &s->len_kv, &s->dim_qk, &s->dim_v, &s->batch };
        int64_t *size = PICK(r, sizes);
        if (*size > 1) {
            *size = (*size + 1) / 2;
        } else if (s->heads_kv > 1) {
            s->heads_q /= s->heads_kv;
            s->heads_kv = 1;
        }
    }
}

/* About the multiplications of the reference. */
static double recurrent_cost(const spec *s)
{
    const double rows = (double)(s->batch * spec_heads_v(s) * s->len_q), d = (double)s->dim_qk;
    const double solve = s->mechanism == LOAM_MESA ? d * d * d / 3 : 0;
    const double map = spec_positive(s)
                           ? d * (double)spec_state_width(s) + 2 * d * d * (double)s->with_balance
                           : 0;
    return rows * (solve + (map + (double)spec_state_width(s) * (double)spec_state_rows(s)) *
                               (s->pass == LOAM_BACKWARD ? 16 : 4));
}

static void draw_recurrent_shape(spec *s, rng *r, const loam_kernel_info *row)
{
    s->batch = rng_one_in(r, 20) ? 0 : rng_int(r, 1, 3);
    s->heads_q = s->heads_kv = rng_int(r, 1, 3);
    s->heads_v = rng_one_in(r, 2) ? 0 : s->heads_q * rng_int(r, 1, 3);
    s->len_q = s->pass == LOAM_DECODE && !rng_one_in(r, 4) ? rng_int(r, 1, 3) : draw_length(r);
    s->dim_qk = draw_dim(r, row);
    s->dim_v = rng_one_in(r, 2) ? s->dim_qk : draw_dim(r, row);
    if (kernel_tiled(row)) {
        if (rng_one_in(r, 2)) s->dim_qk = s->dim_v = rng_one_in(r, 2) ? 64 : 128; /* whole tiles */
        s->len_q = rng_one_in(r, 2) ? PICK(r, long_lengths) : s->len_q;
    }
    s->packed = rng_one_in(r, 4);
    s->batch = s->packed ? rng_int(r, 0, 5) : s->batch;
    s->state = rng_one_in(r, 2);
}

/* Delta rules get keys of length 1, a normaliser positive features: else a case grows without bound. */
static void draw_recurrent_options(spec *s, rng *r, const loam_kernel_info *row)
{
    const spec_recurrence form = spec_recurrence_of(s);
    const int solved = s->mechanism == LOAM_MESA;
    s->normalise = !form.delta && !solved && rng_one_in(r, 4) && !kernel_tiled(row);
    s->feature_map = s->normalise ? LOAM_FEATURES_ELU
                     : form.delta ? (rng_one_in(r, 2) ? LOAM_FEATURES_UNIT : LOAM_FEATURES_IDENTITY)
                                  : rng_int(r, 0, LOAM_FEATURES_UNIT);
    s->scale = !s->normalise && rng_one_in(r, 3) ? 0.05 + rng_uniform(r) : 0;
    s->causal = 1;
    s->threads = rng_int(r, 0, 3);
    s->data = rng_one_in(r, 2) ? DATA_NORMAL : rng_int(r, 0, DATA_SELF);
    if (s->normalise && form.beta && s->data == DATA_STEEP)
        s->data = DATA_NORMAL; /* beta of 0 and strong gates leave weights that only float64 tells from 0 */
    s->layout = rng_one_in(r, 3) ? 0 : rng_int(r, 1, 1 << 30);
    if (solved) {
        static const int64_t axes[] = { LOAM_RIDGE_NUMBER, LOAM_RIDGE_HEAD, LOAM_RIDGE_HEAD_CHANNEL };
        s->ridge = PICK(r, ridges);
        s->ridge_axes = PICK(r, axes);
        s->ridge_array = s->ridge_axes == LOAM_RIDGE_NUMBER && rng_one_in(r, 2);
    }
}

/* Positive features, their heads those of a grouped query. */
static void draw_positive(spec *s, rng *r, const loam_kernel_info *row)
{
    s->feature_map = LOAM_FEATURES_POSITIVE;
    s->normalise = 1;
    s->heads_v = 0;
    s->heads_q = s->heads_kv * rng_int(r, 1, 3);
    s->features = rng_one_in(r, 3) ? 0 : draw_dim(r, row);
    s->features_shared = rng_int(r, 0, 1);
    s->with_alpha = rng_int(r, 0, 1);
    s->with_shift = rng_int(r, 0, 1);
    s->with_balance = rng_one_in(r, 3);
    s->scale = rng_one_in(r, 3) ? 0.05 + rng_uniform(r) : 0;
}

static spec generate_recurrent(const loam_kernel_info *row, rng *r, double budget)
{
    static const char *const dtypes[] = { "f32", "bf16", "f16", "f64" };
    spec s;
    memset(&s, 0, sizeof s);
    s.pass = strcmp(row->pass, "forward") == 0    ? LOAM_FORWARD
             : strcmp(row->pass, "backward") == 0 ? LOAM_BACKWARD
                                                  : LOAM_DECODE;
    do {
        s.mechanism = rng_int(r, LOAM_LINEAR, spec_mechanisms() - 1);
    } while (!kernel_lists(row->mechanisms, loam_mechanism_name((loam_mechanism)s.mechanism)));
    s.dtype = draw_word(r, row->dtypes, dtypes, 4);
    snprintf(s.kernel, sizeof s.kernel, "%s", row->name);
    draw_recurrent_shape(&s, r, row);
    draw_recurrent_options(&s, r, row);
    if (kernel_is_positive(row->name)) draw_positive(&s, r, row);
    const int omits = rng_one_in(r, 3);
    for (int output = SLOT_FIRST_OUTPUT + 1; omits && output < SLOT_COUNT; output++) {
        s.omit |= rng_one_in(r, 2) && !(output == SLOT_STATE_OUT && s.pass == LOAM_DECODE)
                      ? (int64_t)1 << output
                      : 0;
    }
    kernel_fit(&s); /* channels that the row does not have would cost more than fewer tokens save */
    while (recurrent_cost(&s) > (kernel_tiled(row) ? 8 * budget : budget)) {
        int64_t *const any[] = { &s.len_q, &s.dim_qk, &s.dim_v }, *const tokens[] = { &s.len_q, &s.batch };
        int64_t *size = kernel_tiled(row) ? PICK(r, tokens) : PICK(r, any);
        *size = *size > 1 ? (*size + 1) / 2 : *size;
        s.features = s.features > 1 ? (s.features + 1) / 2 : s.features;
    }
    s.len_kv = s.len_q;
    kernel_fit(&s);
    s.seed = (int64_t)(rng_bits(r) >> 33);
    draw_real(&s, r);
    return s;
}

spec generate_spec(const loam_kernel_info *row, uint64_t seed, uint64_t number, double budget)
{
    rng r = rng_make(seed, number);
    if (does_recurrences(row)) return generate_recurrent(row, &r, budget);
    spec s;
    memset(&s, 0, sizeof s);
    draw_kind(&s, &r, row);
    draw_shape(&s, &r, row);
    draw_options(&s, &r);
    draw_path(&s, &r, row);
    draw_omissions(&s, &r);
    shrink(&s, &r, rng_one_in(&r, 10) ? 15 * budget : budget);
    kernel_fit(&s);
    s.seed = (int64_t)(rng_bits(&r) >> 33);
    draw_real(&s, &r);
    return s;
}
