/* SPDX-License-Identifier: MIT */
#include "tests/reference/small.h"

#include "tests/support/kernels.h"
#include "tests/support/random.h"

#include <string.h>

enum { SEED = 20260 };

static void draw_shape(spec *s, rng *r)
{
    s->batch = rng_int(r, 1, 2);
    s->heads_kv = rng_int(r, 1, 2);
    s->heads_q = s->heads_kv * rng_int(r, 1, 2);
    s->len_q = rng_int(r, 1, 8);
    s->len_kv = rng_one_in(r, 2) ? s->len_q : rng_int(r, 1, 12);
    s->dim_qk = rng_int(r, 1, 5);
    s->dim_v = rng_int(r, 1, 4);
    s->packed = s->pass != LOAM_DECODE && rng_one_in(r, 4);
    s->lens = !s->packed && rng_one_in(r, 4);
    s->batch += s->packed ? 2 : 0;
}

#define DRAW_MAP(name, member, ...) s->member = rng_one_in(r, 4) ? 2 : 0;

static void draw_options(spec *s, rng *r)
{
    s->score = rng_int(r, 0, 1);
    s->scale = rng_one_in(r, 2) ? 0 : 0.2 + rng_uniform(r);
    SPEC_MAPS(DRAW_MAP)
    s->causal = rng_int(r, 0, 1);
    s->window = rng_one_in(r, 4) ? rng_int(r, 1, 5) : 0;
    s->slope = rng_one_in(r, 3);
    s->key_bias = rng_one_in(r, 3);
    s->sink = s->mechanism == LOAM_SOFTMAX && rng_one_in(r, 2);
    s->decay = s->causal && s->score == LOAM_DOT && !s->sink && !rng_one_in(r, 3);
    if (s->mechanism == LOAM_LLA) {
        static const double ridges[] = { 1e-2, 0.1, 1, 10 };
        s->ridge = ridges[rng_int(r, 0, 3)];
        s->ridge_array = rng_one_in(r, 2);
    }
}

spec small_case(loam_mechanism mechanism, loam_pass pass, int64_t number)
{
    rng r = rng_make(SEED + (uint64_t)mechanism, (uint64_t)number);
    spec s;
    memset(&s, 0, sizeof s);
    s.mechanism = mechanism;
    s.pass = pass;
    s.dtype = LOAM_F64;
    s.backend = LOAM_BACKEND_REFERENCE;
    draw_shape(&s, &r);
    draw_options(&s, &r);
    if (number % 5 == 3) kernel_take_path(&s);
    if (mechanism == LOAM_LLA) { /* all pairs in turn */
        s.ridge_axes = number % 4;
        s.ridge_unit = number / 4 % 3;
        s.ridge_array = s.ridge_array && s.ridge_axes == LOAM_RIDGE_NUMBER;
    }
    s.threads = 1;
    s.seed = number + 1;
    return s;
}
