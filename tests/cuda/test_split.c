/* SPDX-License-Identifier: MIT
 * On a GPU too states of float32 carry a sequence over the edge of a chunk as if it were not there, forward and back. */
#include "cli/device.h"
#include "tests/cuda/scene.h"
#include "tests/recurrent/cases.h"

#include <string.h>

enum { SKIPPED = 77, LEN = 330, CHUNK = 64, SEEDS = 4 };

static spec split_spec(int mechanism, loam_pass pass, int64_t dim, int seed)
{
    spec s = recurrent_spec((loam_mechanism)mechanism, pass, LEN, dim, dim);
    s.backend = LOAM_BACKEND_CUDA;
    s.dtype = LOAM_BF16;
    s.heads_q = s.heads_kv = 2;
    s.heads_v = seed % 2 ? 4 : 2;
    s.feature_map = mechanism == LOAM_MESA ? LOAM_FEATURES_UNIT : LOAM_FEATURES_IDENTITY;
    s.seed = seed;
    return s;
}

static void carry(values *to, slot in, const values *from, slot out)
{
    memcpy(to->x[in], from->x[out], (size_t)slot_size(to, in) * sizeof(double));
}

static void check_forward(int mechanism, int64_t dim, int seed, int64_t at)
{
    const spec s = split_spec(mechanism, LOAM_FORWARD, dim, seed);
    values whole = values_make(&s);
    values first = part_of(&whole, 0, at), rest = part_of(&whole, at, LEN - at);
    expect_run(&whole);
    expect_run(&first);
    carry(&rest, SLOT_STATE_IN, &first, SLOT_STATE_OUT);
    expect_run(&rest);
    expect_part("before the split", &whole, &first, SLOT_O, 0);
    expect_part("after the split", &whole, &rest, SLOT_O, at);
    expect_same("the last state", &whole, SLOT_STATE_OUT, rest.x[SLOT_STATE_OUT]);
    values_free(&first), values_free(&rest), values_free(&whole);
}

static void check_backward(int mechanism, int64_t dim, int seed, int64_t at)
{
    static const slot rows[] = { SLOT_GRAD_Q, SLOT_GRAD_K, SLOT_GRAD_V, SLOT_GRAD_BETA, SLOT_GRAD_LOG_DECAY };
    const spec s = split_spec(mechanism, LOAM_BACKWARD, dim, seed);
    values whole = values_make(&s);
    values first = part_of(&whole, 0, at), rest = part_of(&whole, at, LEN - at);
    spec ahead = first.spec;
    ahead.pass = LOAM_FORWARD;
    values forward = values_like(&ahead, &first);
    expect_run(&whole);
    expect_run(&forward);
    carry(&rest, SLOT_STATE_IN, &forward, SLOT_STATE_OUT);
    expect_run(&rest);
    carry(&first, SLOT_GRAD_STATE_OUT, &rest, SLOT_GRAD_STATE_IN);
    expect_run(&first);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (whole.x[rows[i]] && !(rows[i] == SLOT_GRAD_LOG_DECAY && mechanism == LOAM_RETENTION)) {
            expect_part("before the split", &whole, &first, rows[i], 0);
            expect_part("after the split", &whole, &rest, rows[i], at);
        }
    }
    expect_same("the first state", &whole, SLOT_GRAD_STATE_IN, first.x[SLOT_GRAD_STATE_IN]);
    values_free(&first), values_free(&rest), values_free(&whole), values_free(&forward);
}

static void splits_keep_their_bits(void **state)
{
    (void)state;
    for (int mechanism = LOAM_LINEAR; mechanism <= LOAM_MESA; mechanism++) {
        for (int seed = 0; seed < SEEDS; seed++) {
            const int64_t dim = seed / 2 && mechanism != LOAM_MESA ? 128 : 64, at = (1 + seed) * CHUNK;
            check_forward(mechanism, dim, seed, at);
            check_backward(mechanism, dim, seed, at);
        }
    }
}

int main(void)
{
    if (device_count() == 0) {
        return SKIPPED;
    }
    const struct CMUnitTest tests[] = { cmocka_unit_test(splits_keep_their_bits) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
