/* SPDX-License-Identifier: MIT
 * io/array.c, io/half.c, io/nearest.c, io/error.c. */
#include "io/array.h"
#include "io/half.h"
#include "io/nearest.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* Every 16-bit pattern survives the way to double and back. */
static void half_formats_round_trip(void **state)
{
    (void)state;
    for (unsigned bits = 0; bits < 1u << 16; bits++) {
        double f16 = f16_to_double((uint16_t)bits), bf16 = bf16_to_double((uint16_t)bits);
        if (isnan(f16))
            assert_true(isnan(f16_to_double(f16_from_double(f16))));
        else
            assert_int_equal(f16_from_double(f16), bits);
        if (isnan(bf16))
            assert_true(isnan(bf16_to_double(bf16_from_double(bf16))));
        else
            assert_int_equal(bf16_from_double(bf16), bits);
    }
}

typedef struct half_format {
    double (*widen)(uint16_t);
    uint16_t (*narrow)(double);
    uint16_t infinite;
} half_format;

/* Between two neighbours: halfway goes to the even one, a hair to either side to the nearer. */
static void halves_round_to_nearest_even(void **state)
{
    (void)state;
    const half_format formats[] = { { f16_to_double, f16_from_double, 0x7c00 },
                                    { bf16_to_double, bf16_from_double, 0x7f80 } };
    for (int f = 0; f < 2; f++)
        for (unsigned bits = 0; bits + 1 < formats[f].infinite; bits++) {
            double low = formats[f].widen((uint16_t)bits), high = formats[f].widen((uint16_t)(bits + 1));
            double middle = low + (high - low) / 2;
            assert_int_equal(formats[f].narrow(middle), bits + (bits & 1));
            assert_int_equal(formats[f].narrow(nextafter(middle, 0)), bits);
            assert_int_equal(formats[f].narrow(nextafter(middle, high)), bits + 1);
            assert_int_equal(formats[f].narrow(-middle), (bits + (bits & 1)) | 0x8000);
        }
}

static void halves_at_the_ends(void **state)
{
    (void)state;
    assert_int_equal(f16_from_double(65504), 0x7bff);
    assert_int_equal(f16_from_double(65519.99), 0x7bff);
    assert_int_equal(f16_from_double(65520), 0x7c00);
    assert_int_equal(f16_from_double(-1e300), 0xfc00);
    assert_int_equal(bf16_from_double(1e39), 0x7f80);
    assert_int_equal(f16_from_double(0x1p-25), 0);
    assert_int_equal(f16_from_double(0x1.8p-25), 1);
    assert_int_equal(f16_from_double(0x1p-26), 0);
    assert_int_equal(f16_from_double(4.9e-324), 0);
    assert_int_equal(f16_from_double(-0.0), 0x8000);
    assert_int_equal(f16_from_double((double)INFINITY), 0x7c00);
    assert_true(f16_to_double(0x3c00) == 1.0 && bf16_to_double(0x3f80) == 1.0);
    assert_true(bf16_to_double(1) == 0x1p-133 && f16_to_double(1) == 0x1p-24);
}

static void shapes_are_counted_without_overflow(void **state)
{
    (void)state;
    const int64_t big = (int64_t)1 << 40;
    assert_int_equal(array_shape_count(0, NULL, 8), 1);
    assert_int_equal(array_shape_count(3, (int64_t[]){ 2, 3, 4 }, 8), 24);
    assert_int_equal(array_shape_count(3, (int64_t[]){ 2, 0, 4 }, 8), 0);
    assert_int_equal(array_shape_count(2, (int64_t[]){ big, big }, 1), -1);
    assert_int_equal(array_shape_count(3, (int64_t[]){ 0, big, big }, 1), -1);
    assert_int_equal(array_shape_count(1, (int64_t[]){ (int64_t)1 << 60 }, 8), -1);
    assert_int_equal(array_shape_count(1, (int64_t[]){ (int64_t)1 << 60 }, 4), (int64_t)1 << 60);
    assert_int_equal(array_shape_count(2, (int64_t[]){ 3, -1 }, 1), -1);
}

static void shapes_and_places_have_text(void **state)
{
    (void)state;
    char text[ARRAY_TEXT];
    assert_string_equal(array_shape_text(text, 0, NULL), "()");
    assert_string_equal(array_shape_text(text, 1, (int64_t[]){ 5 }), "(5,)");
    assert_string_equal(array_shape_text(text, 2, (int64_t[]){ 5, 6 }), "(5, 6)");
    int64_t largest[ARRAY_MAX_RANK];
    for (int axis = 0; axis < ARRAY_MAX_RANK; axis++)
        largest[axis] = INT64_MIN;
    assert_int_equal(strlen(array_shape_text(text, ARRAY_MAX_RANK, largest)), 2 + 8 * 20 + 7 * 2);
    const array a = { .rank = 3, .shape = { 2, 3, 4 } };
    assert_string_equal(array_index_text(text, &a, 23), "(1, 2, 3)");
    assert_string_equal(array_index_text(text, &a, 5), "(0, 1, 1)");
}

static void conversions_keep_values(void **state)
{
    (void)state;
    static const loam_dtype types[] = { LOAM_F32, LOAM_BF16, LOAM_F16, LOAM_F64 };
    static const double values[] = { 0, 1, -2.5, 0.15625, 96 };
    for (int from = 0; from < 4; from++)
        for (int to = 0; to < 4; to++) {
            array a;
            assert_int_equal(array_create(&a, types[from], 1, (int64_t[]){ 5 }, "a", NULL), 0);
            assert_int_equal((uintptr_t)a.data % LOAM_ALIGN, 0);
            for (int i = 0; i < 5; i++)
                array_set(&a, i, values[i]);
            assert_int_equal(array_convert(&a, types[to], "a", NULL), 0);
            assert_int_equal(a.dtype, types[to]);
            for (int i = 0; i < 5; i++)
                assert_true(array_get(&a, i) == values[i]);
            array_free(&a);
            assert_null(a.data);
        }
}

static void too_large_arrays_are_refused(void **state)
{
    (void)state;
    array a;
    io_error error;
    assert_int_equal(array_create(&a, LOAM_F32, 1, (int64_t[]){ (int64_t)1 << 61 }, "it", &error),
                     EXIT_INTERNAL);
    assert_string_equal(error.text, "out of memory for it, shape (2305843009213693952,) of f32");
    assert_null(a.data);
}

static void infinities_and_nans_are_found(void **state)
{
    (void)state;
    array a;
    io_error error;
    assert_int_equal(array_create(&a, LOAM_F16, 2, (int64_t[]){ 2, 2 }, "a", NULL), 0);
    for (int i = 0; i < 4; i++)
        array_set(&a, i, i);
    assert_int_equal(array_check_finite(&a, "x.npy", &error), 0);
    array_set(&a, 2, (double)NAN);
    assert_int_equal(array_check_finite(&a, "x.npy", &error), EXIT_INPUT);
    assert_string_equal(error.text, "x.npy: the value at (1, 0) is NaN, not a finite f16");
    array_set(&a, 1, (double)INFINITY);
    assert_int_equal(array_check_finite(&a, "x.npy", &error), EXIT_INPUT);
    assert_string_equal(error.text, "x.npy: the value at (0, 1) is infinite, not a finite f16");
    array_free(&a);
}

static void distances_count_edits(void **state)
{
    (void)state;
    assert_int_equal(edit_distance("", ""), 0);
    assert_int_equal(edit_distance("", "abc"), 3);
    assert_int_equal(edit_distance("window", "windwo"), 1);
    assert_int_equal(edit_distance("window", "Window"), 0);
    assert_int_equal(edit_distance("kitten", "sitting"), 3);
    char a[200], b[200];
    memset(a, 'a', 199), memset(b, 'b', 199);
    a[199] = b[199] = '\0';
    assert_int_equal(edit_distance(a, b), 63);
}

static void the_nearest_name_is_near(void **state)
{
    (void)state;
    static const char *const names[] = { "scale", "score", "soft-cap", "threads", NULL };
    assert_string_equal(nearest_name("scael", names), "scale");
    assert_string_equal(nearest_name("score", names), "score");
    assert_string_equal(nearest_name("thread", names), "threads");
    assert_string_equal(nearest_name("thr", names), "threads");
    assert_null(nearest_name("xyz", names));
    assert_null(nearest_name("", names));
    assert_null(nearest_name("t", names));
}

static void errors_are_one_line(void **state)
{
    (void)state;
    io_error error;
    assert_int_equal(io_fail(&error, EXIT_INPUT, "cannot read %s: %d", "a\nb\x1b[2J", 3), EXIT_INPUT);
    assert_int_equal(error.exit_status, EXIT_INPUT);
    assert_string_equal(error.text, "cannot read a?b?[2J: 3");
    char text[1000];
    memset(text, 'x', 999);
    text[999] = '\0';
    assert_int_equal(io_fail(&error, EXIT_USAGE, "%s", text), EXIT_USAGE);
    assert_int_equal(strlen(error.text), sizeof error.text - 1);
    assert_int_equal(io_fail(NULL, EXIT_OUTPUT, "nobody listens"), EXIT_OUTPUT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(half_formats_round_trip),      cmocka_unit_test(halves_round_to_nearest_even),
        cmocka_unit_test(halves_at_the_ends),           cmocka_unit_test(shapes_are_counted_without_overflow),
        cmocka_unit_test(shapes_and_places_have_text),  cmocka_unit_test(conversions_keep_values),
        cmocka_unit_test(too_large_arrays_are_refused), cmocka_unit_test(infinities_and_nans_are_found),
        cmocka_unit_test(distances_count_edits),        cmocka_unit_test(the_nearest_name_is_near),
        cmocka_unit_test(errors_are_one_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
