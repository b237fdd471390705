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

/* What the tests write: a tensor of each type, one without elements, one of rank 0. */
typedef struct written {
    array tensors[5];
    safetensors_contents contents;
} written;

static const char *const written_names[] = { "wide", "x", "y", "none", "layer0.W \"q\" \xc3\xa9" };

static void make_written(written *w)
{
    static const char *const texts[] = { "inputs", "seed 1, \"lla\"\n2", "step", "17", NULL };
    static const struct {
        loam_dtype dtype;
        int rank;
        int64_t shape[3];
    } rows[] = { { LOAM_F64, 2, { 2, 3 } },
                 { LOAM_F32, 3, { 1, 5, 1 } },
                 { LOAM_BF16, 1, { 3 } },
                 { LOAM_F32, 2, { 0, 4 } },
                 { LOAM_F16, 0, { 0 } } };
    io_error error;
    for (int i = 0; i < 5; i++) {
        array *a = &w->tensors[i];
        if (array_create(a, rows[i].dtype, rows[i].rank, rows[i].shape, "a", &error))
            fail_msg("%s", error.text);
        for (int64_t n = 0; n < a->count; n++)
            array_set(a, n, (double)(10 * i + n) / 4);
    }
    w->contents = (safetensors_contents){ 5, written_names, w->tensors, texts };
}

static void free_written(written *w)
{
    for (int i = 0; i < 5; i++)
        array_free(&w->tensors[i]);
}

/* Written and read again: names, types, shapes, bytes and texts. */
static void what_is_written_is_read(void **state)
{
    (void)state;
    written w;
    io_error error;
    safetensors *file;
    make_written(&w);
    if (safetensors_write("w.st", &w.contents, &error)) fail_msg("%s", error.text);
    if (safetensors_open(&file, "w.st", &error)) fail_msg("%s", error.text);
    assert_int_equal(safetensors_count(file), 5);
    for (int i = 4; i >= 0; i--) {
        const array *want = &w.tensors[i];
        array got;
        if (safetensors_tensor(file, &got, written_names[i], &error)) fail_msg("%s", error.text);
        assert_int_equal(got.dtype, want->dtype);
        assert_int_equal(got.rank, want->rank);
        assert_memory_equal(got.shape, want->shape, (size_t)want->rank * sizeof *want->shape);
        assert_memory_equal(got.data, want->data, (size_t)want->count * array_dtype_bytes(want->dtype));
        array_free(&got);
    }
    array got;
    assert_int_equal(safetensors_tensor(file, &got, "nosuch", &error), EXIT_INPUT);
    assert_null(got.data);
    assert_string_equal(safetensors_text(file, "inputs"), "seed 1, \"lla\"\n2");
    assert_string_equal(safetensors_text(file, "step"), "17");
    assert_null(safetensors_text(file, "nosuch"));
    safetensors_close(file);
    free_written(&w);
    assert_int_equal(unlink("w.st"), 0);
}

/* The bytes are the contents' alone: the header as any other writer would have it, then the data, from a
 * multiple of 8 on. */
static void bytes_are_fixed(void **state)
{
    (void)state;
    static const char header[] = "{\"__metadata__\":{\"k\":\"v\"},"
                                 "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}} ";
    static const float data[2] = { 0, 1 };
    static const char *const names[] = { "a" }, *const texts[] = { "k", "v", NULL };
    const array a = { LOAM_F32, 1, { 2 }, 2, (void *)(uintptr_t)data };
    const bytes want = safetensors_bytes(sizeof header - 1, header, 8);
    unsigned char got[sizeof want.at];
    io_error error;
    assert_int_equal((sizeof header - 1) % 8, 0);
    for (int turn = 0; turn < 2; turn++) {
        const safetensors_contents contents = { 1, names, &a, texts };
        if (safetensors_write("b.st", &contents, &error)) fail_msg("%s", error.text);
        FILE *stream = fopen("b.st", "rb");
        assert_non_null(stream);
        assert_int_equal(fread(got, 1, sizeof got, stream), want.count);
        assert_memory_equal(got, want.at, want.count);
        fclose(stream);
    }
    assert_int_equal(unlink("b.st"), 0);
}

/* Without texts there is no metadata; a file may have no tensor. */
static void little_is_a_file_too(void **state)
{
    (void)state;
    static const char *const none[] = { NULL };
    io_error error;
    safetensors *file;
    if (safetensors_write("e.st", &(safetensors_contents){ .texts = none }, &error))
        fail_msg("%s", error.text);
    if (safetensors_open(&file, "e.st", &error)) fail_msg("%s", error.text);
    assert_int_equal(safetensors_count(file), 0);
    assert_null(safetensors_text(file, "step"));
    safetensors_close(file);
    assert_int_equal(unlink("e.st"), 0);
}

static void failures_leave_what_was(void **state)
{
    (void)state;
    written w;
    io_error error;
    safetensors *file = (safetensors *)&w;
    make_written(&w);
    assert_int_equal(safetensors_write("nosuch/w.st", &w.contents, &error), EXIT_OUTPUT);
    assert_non_null(strstr(error.text, "cannot write nosuch/w.st"));
    assert_int_equal(safetensors_write("/dev/full", &w.contents, &error), EXIT_OUTPUT);
    assert_non_null(strstr(error.text, "No space left"));
    assert_int_equal(safetensors_open(&file, "nosuch.st", &error), EXIT_INPUT);
    assert_null(file);
    const bytes b = file_of("{" A "}", 20);
    save_bytes("cut.st", &b);
    assert_int_equal(safetensors_open(&file, "cut.st", &error), EXIT_INPUT);
    assert_non_null(strstr(error.text, "cut.st: tensor 'a' lies at bytes 0 to 24"));
    assert_null(file);
    assert_int_equal(unlink("cut.st"), 0);
    free_written(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_are_read),
        cmocka_unit_test(bad_headers_are_named),
        cmocka_unit_test(lengths_are_not_trusted),
        cmocka_unit_test(unknown_tensors_get_suggestions),
        cmocka_unit_test(load_tells_the_formats_apart),
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(bytes_are_fixed),
        cmocka_unit_test(little_is_a_file_too),
        cmocka_unit_test(failures_leave_what_was),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
