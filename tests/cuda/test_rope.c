/* SPDX-License-Identifier: MIT
 * Rotary positions on a GPU are those of the CPU: every type and
 * layout, part of the channels, positions, views, in place. */
#include "cli/device.h"
#include "tests/cuda/scene.h"
#include "tests/support/element.h"
#include "tests/support/memory.h"
#include "tests/support/random.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

enum { SKIPPED = 77, BATCH = 2, HEADS = 5, TOKENS = 65, PITCH = 48 };
enum { SIZE = BATCH * TOKENS * HEADS * PITCH };

static void *on_device(const void *from, size_t bytes)
{
    void *memory = NULL;
    assert_null(device_alloc(&memory, bytes));
    assert_null(device_upload(memory, from, bytes));
    return memory;
}

/* Case `number`: (batch, token, head, channel) rows of PITCH, of which 18 to 40 are used, so that planes go
 * by words of 1, 2, 4 and 8; of some cases from the second element on, which no word of two begins at. */
static void check_case(int number)
{
    static const double eps[] = { 0x1p-23, 0x1p-7, 0x1p-10, 0x1p-52 };
    static const int channels[] = { 20, 18, 32, 40, 24 }, dims[] = { 0, 8, 16 };
    rng random = rng_make(17, (uint64_t)number);
    loam_rope r = loam_rope_default((loam_dtype)rng_int(&random, 0, 3));
    r.batch = BATCH, r.heads = HEADS, r.tokens = TOKENS, r.channels = channels[rng_int(&random, 0, 4)];
    r.layout = (loam_rope_layout)rng_int(&random, 0, 1);
    r.dim = dims[rng_int(&random, 0, 2)];
    r.inverse = (int)rng_int(&random, 0, 1);
    r.offset = 1000000;
    const size_t bytes = (size_t)SIZE * element_bytes(r.dtype);
    const bool in_place = rng_int(&random, 0, 1) == 1, positioned = rng_int(&random, 0, 1) == 1;
    const size_t shift = rng_int(&random, 0, 3) == 0 ? element_bytes(r.dtype) : 0;
    int64_t positions[BATCH * TOKENS];
    void *host = memory_zeroed(2, bytes);
    loam_error error;
    for (int64_t e = 0; e < SIZE; e++)
        element_set(host, r.dtype, e, rng_normal(&random));
    for (int64_t e = 0; e < BATCH * TOKENS; e++)
        positions[e] = rng_int(&random, -5, 100000);
    void *from = on_device(host, bytes), *other = on_device(host, bytes), *places = NULL;
    void *to = in_place ? from : other;
    if (positioned) {
        places = on_device(positions, sizeof positions);
        r.positions = places, r.positions_batch = TOKENS;
    }
    const loam_const_view in = { (char *)from + shift, TOKENS * HEADS * PITCH, PITCH, HEADS * PITCH };
    const loam_view out = { (char *)to + shift, TOKENS * HEADS * PITCH, PITCH, HEADS * PITCH };
    r.backend = LOAM_BACKEND_CUDA;
    if (loam_rope_apply(&r, &in, &out, &error)) fail_msg("%s", error.text);
    assert_null(device_wait());
    void *got = (char *)host + bytes;
    assert_null(device_download(got, to, bytes));

    const loam_const_view host_in = { (char *)host + shift, in.batch, in.head, in.token };
    const loam_view host_out = { (char *)host + shift, in.batch, in.head, in.token };
    r.backend = LOAM_BACKEND_CPU;
    r.positions = positioned ? positions : NULL;
    assert_int_equal(loam_rope_apply(&r, &host_in, &host_out, &error), LOAM_OK);
    for (int64_t e = 0; e < SIZE; e++) {
        const double want = element_get(host, r.dtype, e), have = element_get(got, r.dtype, e);
        if (fabs(want - have) > 16 * eps[r.dtype] * (1 + fabs(want)))
            fail_msg("case %d, element %lld: %.17g, on the CPU %.17g", number, (long long)e, have, want);
        assert_true((e - (shift > 0)) % PITCH < r.channels || want == have);
    }
    device_free(from), device_free(other), device_free(places);
    free(host);
}

static void rotations_are_those_of_the_cpu(void **state)
{
    (void)state;
    for (int number = 0; number < 200; number++)
        check_case(number);
}

int main(void)
{
    if (device_count() == 0) return SKIPPED;
    const struct CMUnitTest tests[] = { cmocka_unit_test(rotations_are_those_of_the_cpu) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
