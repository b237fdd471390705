/* SPDX-License-Identifier: MIT
 * io/safetensors.c and io/load.c. */
#define _POSIX_C_SOURCE 200809L
#include "io/safetensors.h"

#include "io/load.h"
#include "tests/io/bytes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define A "\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}"
#define B "\"b\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[24,32]}"

static bytes file_of(const char *header, size_t data)
{
    return safetensors_bytes(strlen(header), header, data);
}

static int read_bytes(array *a, const bytes *b, const char *tensor, io_error *error)
{
    FILE *stream = open_bytes(b);
    int status = safetensors_read_stream(a, stream, "x.st", tensor, error);
    fclose(stream);
    return status;
}

static void tensors_are_read(void **state)
{
    (void)state;
    static const struct {
        const char *header, *tensor;
        size_t data, begin;
        loam_dtype dtype;
        int rank;
        int64_t count;
    } rows[] = {
        { "{" A "," B "}", "a", 32, 0, LOAM_F32, 2, 6 },
        { "{" B "," A "}", "b", 32, 24, LOAM_F64, 0, 1 },
        { "{\"__metadata__\":{\"format\":\"pt\"}," A "}    ", "a", 24, 0, LOAM_F32, 2, 6 },
        { "{\"x\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[2,8]},"
          "\"y\":{\"dtype\":\"BOOL\",\"shape\":[2,1],\"data_offsets\":[0,2]}}",
          "x", 8, 2, LOAM_BF16, 1, 3 },
        { "{\"x\":{\"dtype\":\"F16\",\"shape\":[1,1,1,4],\"data_offsets\":[5,13]},"
          "\"y\":{\"dtype\":\"FUTURE\",\"shape\":[2],\"data_offsets\":[0,5]}}",
          "x", 13, 5, LOAM_F16, 4, 4 },
        { "{\"e\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[0,0]}," A "}", "e", 24, 0, LOAM_F32, 2,
          0 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        bytes b = file_of(rows[i].header, rows[i].data);
        array a;
        io_error error;
        if (read_bytes(&a, &b, rows[i].tensor, &error)) fail_msg("%s", error.text);
        assert_int_equal(a.dtype, rows[i].dtype);
        assert_int_equal(a.rank, rows[i].rank);
        assert_int_equal(a.count, rows[i].count);
        assert_memory_equal(a.data, b.at + 8 + strlen(rows[i].header) + rows[i].begin,
                            (size_t)a.count * array_dtype_bytes(a.dtype));
        array_free(&a);
    }
}

static void expect_error(const bytes *b, const char *tensor, const char *text)
{
    array a = { .rank = 99 };
    io_error error;
    assert_int_equal(read_bytes(&a, b, tensor, &error), EXIT_INPUT);
    assert_null(a.data);
    if (!strstr(error.text, text) || !strstr(error.text, "x.st"))
        fail_msg("'%s' lacks '%s'", error.text, text);
}

#define T(type, shape, offsets) \
    "{\"a\":{\"dtype\":\"" type "\",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

static void bad_headers_are_named(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        { "", "the header is not JSON" },
        { "{", "the header is not JSON" },
        { "{} x", "the header is not JSON" },
        { "{" A "," A "}", "the header is not JSON: duplicate object key" },
        { "[]", "the header is not a JSON object" },
        { "{\"a\":3}", "tensor 'a' has no dtype" },
        { "{\"a\":{\"dtype\":3}}", "tensor 'a' has no dtype" },
        { "{\"a\":{\"dtype\":\"F32\"}}", "tensor 'a' has no shape" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[6]}}", "tensor 'a' has no pair of data_offsets" },
        { T("F32", "[2.5]", "[0,24]"), "tensor 'a' has a size that is not a whole number" },
        { T("F32", "[-6]", "[0,24]"), "tensor 'a' has a size that is not a whole number" },
        { T("F32", "[1,1,1,1,1,1,1,1,6]", "[0,24]"), "tensor 'a' has 9 axes; expected at most 8" },
        { T("F32", "[6]", "[0]"), "tensor 'a' has no pair of data_offsets" },
        { T("F32", "[6]", "[0,24.0]"), "tensor 'a' has no pair of data_offsets" },
        { T("F32", "[6]", "[0,28]"), "tensor 'a' lies at bytes 0 to 28, but the data has 24" },
        { T("F32", "[6]", "[-24,0]"), "tensor 'a' lies at bytes -24 to 0" },
        { T("F32", "[6]", "[24,0]"), "tensor 'a' lies at bytes 24 to 0" },
        { T("F32", "[5]", "[0,24]"), "tensor 'a': shape (5,) of F32 needs 20 bytes, but it lies at 0 to 24" },
        { T("F32", "[4294967296,4294967296]", "[0,24]"), "overflows" },
        { T("F32", "[2305843009213693952]", "[0,24]"), "overflows" },
        { T("F32", "[99999999999999999999]", "[0,24]"), "the header is not JSON" },
        { T("F32", "[5]", "[4,24]"), "a gap of 4 bytes before tensor 'a'" },
        { T("F32", "[5]", "[0,20]"), "4 bytes after the last tensor" },
        { T("I64", "[3]", "[0,24]"), "tensor 'a' is of type I64; expected F16, BF16, F32 or F64" },
        { "{" A ",\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[20,24]}}",
          "tensors 'a' and 'b' overlap" },
        { "{}", "24 bytes after the last tensor" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        bytes b = file_of(rows[i][0], 24);
        expect_error(&b, "a", rows[i][1]);
    }
}

static void lengths_are_not_trusted(void **state)
{
    (void)state;
    static const uint64_t lies[] = { 1000, UINT64_MAX, (uint64_t)1 << 63, UINT64_MAX - 7 };
    for (int i = 0; i < 4; i++) {
        bytes b = safetensors_bytes(lies[i], "{" A "}", 24);
        expect_error(&b, "a", "the header claims");
    }
    bytes whole = file_of("{" A "}", 24);
    for (size_t count = 1; count < whole.count; count++) {
        bytes cut = whole;
        cut.count = count;
        expect_error(&cut, "a", count < 8 ? "is not a .safetensors file" : "");
    }
}

static void unknown_tensors_get_suggestions(void **state)
{
    (void)state;
    const char *header = "{\"layer.0.query\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                         "\"layer.0.key\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]},"
                         "\"layer.0.value\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[8,12]},"
                         "\"bias\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[12,16]},"
                         "\"__metadata__\":{}}";
    bytes b = file_of(header, 16);
    expect_error(&b, "layer.0.keys", "has no tensor 'layer.0.keys'; nearest: 'layer.0.key', 'layer.0.");
    expect_error(&b, "", "say which tensor, as in x.st:");
    expect_error(&b, "__metadata__", "has no tensor '__metadata__'");
    b = file_of("{\"__metadata__\":{}}", 0);
    expect_error(&b, "a", "x.st holds no tensors");
}

static void load_tells_the_formats_apart(void **state)
{
    (void)state;
    bytes b = file_of("{" A "," B "}", 32);
    save_bytes("l.safetensors", &b);
    save_bytes("l.safetensors.npy", &b);
    array a;
    io_error error;
    assert_int_equal(array_load(&a, "l.safetensors:b", &error), 0);
    assert_int_equal(a.dtype, LOAM_F64);
    array_free(&a);
    assert_int_equal(array_load(&a, "./l.safetensors:nope:a", &error), EXIT_INPUT);
    assert_non_null(strstr(error.text, "no tensor 'nope:a'"));
    assert_int_equal(array_load(&a, "l.safetensors", &error), EXIT_INPUT);
    assert_non_null(strstr(error.text, "say which tensor"));
    assert_int_equal(array_load(&a, "l.safetensors.npy", &error), EXIT_INPUT);
    assert_non_null(strstr(error.text, "l.safetensors.npy is not a .npy file"));
    assert_int_equal(array_load(&a, "nosuch.safetensors:a", &error), EXIT_INPUT);
    assert_non_null(strstr(error.text, "cannot read nosuch.safetensors: No such file"));
    assert_int_equal(unlink("l.safetensors") | unlink("l.safetensors.npy"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_are_read),
        cmocka_unit_test(bad_headers_are_named),
        cmocka_unit_test(lengths_are_not_trusted),
        cmocka_unit_test(unknown_tensors_get_suggestions),
        cmocka_unit_test(load_tells_the_formats_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
