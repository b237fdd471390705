/* SPDX-License-Identifier: MIT
 * The tests' own tools: a harness that misses faults passes everything. */
#include "tests/support/compare.h"
#include "tests/support/element.h"
#include "tests/support/expect.h"
#include "tests/support/random.h"
#include "tests/support/real.h"

#include <math.h>
#include <string.h>

static void guards_notice_writes(void **state)
{
    (void)state;
    for (int at_end = 0; at_end <= 1; at_end++) {
        guard g = guard_make(100, at_end);
        assert_true(guard_intact(&g) && guard_untouched(&g));
        g.data[99] = 0;
        assert_true(guard_intact(&g) && !guard_untouched(&g));
        unsigned char *beyond = at_end ? g.data - 1 : g.data + 100;
        *beyond = 0;
        assert_false(guard_intact(&g));
        guard_free(&g);
    }
}

/* What a run leaves is told apart: all written, one element missing, a gap written, an input changed. */
static void arrays_notice_misuse(void **state)
{
    (void)state;
    spec s = spec_default(LOAM_SOFTMAX, LOAM_FORWARD, 5, 3, 2);
    s.layout = 1;
    s.omit = ~spec_omit(SLOT_O);
    for (int fault = 0; fault < 4; fault++) {
        values v = values_make(&s);
        arrays m;
        char text[160];
        arrays_make(&m, &v);
        m.layout[SLOT_O].token = 3; /* a gap of one element after each row */
        guard_free(&m.array[SLOT_O]);
        m.array[SLOT_O] = guard_make(15 * sizeof(double), 1);
        double *o = (double *)(void *)m.array[SLOT_O].data;
        for (int64_t i = 0; i < 15; i++)
            o[i] = i % 3 < 2 || fault == 2 ? 1.0 : o[i];
        if (fault == 1)
            memset(&o[4], GUARD_POISON, sizeof o[4]);
        else if (fault == 3)
            m.array[SLOT_K].data[0] ^= 1;
        assert_int_equal(arrays_misuse(&m, text, sizeof text) != NULL, fault != 0);
        arrays_free(&m);
        values_free(&v);
    }
}

static void elements_are_rounded_to_nearest_even(void **state)
{
    (void)state;
    static const struct {
        loam_dtype dtype;
        double x;
        unsigned bits;
    } known[] = {
        { LOAM_BF16, 1.0, 0x3f80 },          { LOAM_BF16, 1.00390625, 0x3f80 },
        { LOAM_BF16, 1.01171875, 0x3f82 },   { LOAM_BF16, -2.0, 0xc000 },
        { LOAM_BF16, 1e39, 0x7f80 },         { LOAM_F16, 1.0, 0x3c00 },
        { LOAM_F16, 65504, 0x7bff },         { LOAM_F16, 65520, 0x7c00 },
        { LOAM_F16, 0x1p-24, 0x0001 },       { LOAM_F16, 0x1p-25, 0x0000 },
        { LOAM_F16, 0x1.8p-24, 0x0002 },     { LOAM_F16, 0x1.ff8p-15, 0x03ff },
        { LOAM_F16, 0x1.ffcp-15, 0x0400 },   { LOAM_F16, 1.00048828125, 0x3c00 },
        { LOAM_F16, 1.00146484375, 0x3c02 }, { LOAM_F16, -0.0, 0x8000 },
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        uint16_t bits = 0;
        element_set(&bits, known[i].dtype, 0, known[i].x);
        assert_int_equal(bits, known[i].bits);
    }
    for (unsigned bits = 0; bits < 0x10000; bits++) { /* what can be stored stays as it is */
        for (int dtype = LOAM_BF16; dtype <= LOAM_F16; dtype++) {
            const uint16_t in = (uint16_t)bits;
            const double x = element_get(&in, (loam_dtype)dtype, 0);
            uint16_t out;
            element_set(&out, (loam_dtype)dtype, 0, x);
            assert_true(isnan(x) || in == out);
        }
    }
}

static void cases_survive_being_printed(void **state)
{
    (void)state;
    spec s = spec_default(LOAM_LLA, LOAM_BACKWARD, 17, 5, 6), back;
    char text[700];
    s.scale = 0.1 + 0.2;
    s.ridge_axes = LOAM_RIDGE_CHANNEL;
    s.ridge_unit = LOAM_RIDGE_TRACE;
    s.layout = 1234567;
    s.data = DATA_SELF;
    spec_print(&s, text, sizeof text);
    assert_int_equal(spec_parse(&back, text), 0);
    assert_memory_equal(&s, &back, sizeof s);
    assert_int_equal(spec_parse(&back, "mech=lla nonsense=1"), -1);
    assert_int_equal(spec_parse(&back, "mech=unknown"), -1);
}

static void comparison_finds_what_differs(void **state)
{
    (void)state;
    const double want[] = { 3, 4, 0, 0, 6, 8 }, got[] = { 3, 4, 0, 0, 6, 8.5 },
                 bad[] = { 3, 4, 0, (double)NAN, 6, 8 };
    const difference d = compare(want, got, 3, 2), none = compare(want, want, 3, 2);
    assert_true(none.relative == 0 && none.worst_row == 0);
    assert_true(fabs(d.relative - 0.5 / sqrt(125)) < 1e-15 && fabs(d.worst_row - 0.05) < 1e-15 && d.row == 2);
    assert_true(compare(want, bad, 3, 2).relative == HUGE_VAL);
    assert_int_equal(compare_bits(want, got, 6), 5);
    assert_int_equal(compare_bits(want, want, 6), -1);
}

/* Of a real layer: heads share keys, queries end where keys end, channels go on in the next token. */
static void real_data_are_the_files(void **state)
{
    (void)state;
    real_layer layers[] = { real_read(20), real_read(3) };
    spec s = spec_default(LOAM_LLA, LOAM_FORWARD, 3000, 70, 5);
    s.batch = 2, s.heads_q = 6, s.heads_kv = 2, s.len_q = 4;
    s.data = DATA_REAL;
    values v = values_make(&s);
    for (int n = 0; n < 4; n++) { /* key heads of both sequences */
        const real_layer *layer = &layers[n % 2];
        const int64_t tokens = layer->x[1].shape[1], first = n / 2 * 256;
        for (int64_t t = 0; t < s.len_kv; t += 7)
            for (int64_t c = 0; c < s.dim_qk; c += 3)
                assert_true(slot_at(&v, SLOT_K, n / 2, n % 2, t)[c] ==
                            array_get(&layer->x[1], (first + t + c / 64) % tokens * 64 + c % 64));
        assert_true(slot_at(&v, SLOT_V, n / 2, n % 2, 2999)[4] ==
                    array_get(&layer->x[2], (first + 2999) % tokens * 64 + 4));
        for (int64_t h = 0; h < 3; h++)
            assert_true(slot_at(&v, SLOT_Q, n / 2, n % 2 * 3 + h, 3)[63] ==
                        array_get(&layer->x[0], (h * tokens + (first + 2999) % tokens) * 64 + 63));
    }
    values_free(&v);
    real_free(&layers[0]);
    real_free(&layers[1]);
}

static void random_numbers_are_what_they_say(void **state)
{
    (void)state;
    rng r = rng_make(1, 2), again = rng_make(1, 2);
    double sum = 0, square = 0;
    for (int i = 0; i < 20000; i++) {
        const double x = rng_normal(&r);
        assert_true(x == rng_normal(&again));
        sum += x;
        square += x * x;
        const int64_t n = rng_int(&r, -3, 4);
        assert_true(n >= -3 && n <= 4 && n == rng_int(&again, -3, 4));
    }
    assert_true(fabs(sum / 20000) < 0.03 && fabs(square / 20000 - 1) < 0.05);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(guards_notice_writes),
        cmocka_unit_test(arrays_notice_misuse),
        cmocka_unit_test(elements_are_rounded_to_nearest_even),
        cmocka_unit_test(cases_survive_being_printed),
        cmocka_unit_test(comparison_finds_what_differs),
        cmocka_unit_test(real_data_are_the_files),
        cmocka_unit_test(random_numbers_are_what_they_say),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
