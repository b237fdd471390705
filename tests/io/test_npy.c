/* SPDX-License-Identifier: MIT
 * io/npy.c: what NumPy writes is read, what is written reads back, and every lie is found. */
#define _POSIX_C_SOURCE 200809L
#include "io/npy.h"

#include "tests/io/bytes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static int read_bytes(array *a, const bytes *b, io_error *error)
{
    FILE *stream = open_bytes(b);
    int status = npy_read_stream(a, stream, "x.npy", error);
    fclose(stream);
    return status;
}

static void expect_read(const bytes *b, loam_dtype dtype, int rank, const int64_t *shape)
{
    array a;
    io_error error;
    if (read_bytes(&a, b, &error)) fail_msg("%s", error.text);
    assert_int_equal(a.dtype, dtype);
    assert_int_equal(a.rank, rank);
    for (int axis = 0; axis < rank; axis++)
        assert_int_equal(a.shape[axis], shape[axis]);
    size_t bytes_of_data = (size_t)a.count * array_dtype_bytes(dtype);
    assert_memory_equal(a.data, b->at + b->count - bytes_of_data, bytes_of_data);
    array_free(&a);
}

static void good_headers_are_read(void **state)
{
    (void)state;
    static const struct {
        const char *dictionary;
        size_t data;
        loam_dtype dtype;
        int rank;
        int64_t shape[ARRAY_MAX_RANK];
    } rows[] = {
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }          \n",
          24,
          LOAM_F32,
          2,
          { 2, 3 } },
        { "{'descr': '<f8', 'fortran_order': False, 'shape': (3,), }\n", 24, LOAM_F64, 1, { 3 } },
        { "{'descr': '<f2', 'fortran_order': False, 'shape': (), }\n", 2, LOAM_F16, 0, { 0 } },
        { "{'descr': '=f4', 'fortran_order': False, 'shape': (1,), }\n", 4, LOAM_F32, 1, { 1 } },
        { "{\"shape\":(2,3),\"descr\":\"<f4\",\"fortran_order\":False}", 24, LOAM_F32, 2, { 2, 3 } },
        { " { 'fortran_order' : False , 'shape' : ( 2L , 3L ) , 'descr' : '<f4' } ",
          24,
          LOAM_F32,
          2,
          { 2, 3 } },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (0, 5), }\n", 0, LOAM_F32, 2, { 0, 5 } },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 1, 1, 1, 1, 1, 2), }\n",
          8,
          LOAM_F32,
          8,
          { 1, 1, 1, 1, 1, 1, 1, 2 } },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int major = 1; major <= 3; major++) {
            bytes b = npy_bytes(major, rows[i].dictionary, rows[i].data);
            expect_read(&b, rows[i].dtype, rows[i].rank, rows[i].shape);
        }
}

static void expect_error(const bytes *b, const char *text)
{
    array a = { .rank = 99 };
    io_error error;
    assert_int_equal(read_bytes(&a, b, &error), EXIT_INPUT);
    assert_null(a.data);
    assert_int_equal(a.rank, 0);
    if (!strstr(error.text, text) || !strstr(error.text, "x.npy"))
        fail_msg("'%s' lacks '%s'", error.text, text);
}

#define ORDER "'fortran_order': False"
#define SHAPE "'shape': (2, 3)"
#define DESCR "'descr': '<f4'"

static void bad_headers_are_named(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        { "", "expected '{'" },
        { "{" DESCR ", " ORDER ", " SHAPE, "expected ',' or '}'" },
        { "{" DESCR ", " ORDER ", " SHAPE "} x", "expected nothing after '}'" },
        { "{" DESCR ", " ORDER "}", "expected 'descr', 'fortran_order' and 'shape'" },
        { "{" DESCR ", " DESCR ", " ORDER ", " SHAPE "}", "once each" },
        { "{" DESCR ", " ORDER ", 'more': 1, " SHAPE "}", "once each" },
        { "{" DESCR " " ORDER ", " SHAPE "}", "expected ',' or '}'" },
        { "{'descr' '<f4', " ORDER ", " SHAPE "}", "expected ':' after a key" },
        { "{descr: '<f4', " ORDER ", " SHAPE "}", "expected 'descr', 'fortran_order' or 'shape'" },
        { "{'descr", "expected 'descr', 'fortran_order' or 'shape'" },
        { "{'descr': 3, " ORDER ", " SHAPE "}", "expected the element type" },
        { "{'descr': '<f4444444444444444444', " ORDER ", " SHAPE "}", "expected the element type" },
        { "{'descr': [('a', '<f4')], " ORDER ", " SHAPE "}", "elements are records" },
        { "{'descr': '>f4', " ORDER ", " SHAPE "}", "elements are big-endian ('>f4')" },
        { "{'descr': '<i4', " ORDER ", " SHAPE "}", "elements are '<i4'" },
        { "{'descr': 'f4', " ORDER ", " SHAPE "}", "elements are 'f4'" },
        { "{'descr': '<f3', " ORDER ", " SHAPE "}", "elements are '<f3'" },
        { "{'descr': '|O', " ORDER ", " SHAPE "}", "elements are Python objects" },
        { "{" DESCR ", 'fortran_order': True, " SHAPE "}", "the array is in Fortran order" },
        { "{" DESCR ", 'fortran_order': 0, " SHAPE "}", "expected True or False" },
        { "{" DESCR ", " ORDER ", 'shape': 6}", "expected the shape, a tuple" },
        { "{" DESCR ", " ORDER ", 'shape': (6)}", "expected ',' after a size" },
        { "{" DESCR ", " ORDER ", 'shape': (2 3)}", "expected ',' after a size" },
        { "{" DESCR ", " ORDER ", 'shape': (2, x)}", "expected a whole number in the shape" },
        { "{" DESCR ", " ORDER ", 'shape': (2, 3", "expected ',' after a size" },
        { "{" DESCR ", " ORDER ", 'shape': (-2, 3)}", "the shape has a negative size, -2" },
        { "{" DESCR ", " ORDER ", 'shape': (9223372036854775808,)}", "a size of the shape overflows" },
        { "{" DESCR ", " ORDER ", 'shape': (99999999999999999999,)}", "a size of the shape overflows" },
        { "{" DESCR ", " ORDER ", 'shape': (4294967296, 4294967296)}", "overflows" },
        { "{" DESCR ", " ORDER ", 'shape': (0, 4294967296, 4294967296)}", "overflows" },
        { "{" DESCR ", " ORDER ", 'shape': (2305843009213693952,)}", "overflows" },
        { "{" DESCR ", " ORDER ", 'shape': (1, 1, 1, 1, 1, 1, 1, 2, 3)}", "more than 8 axes" },
        { "{" DESCR ", " ORDER ", 'shape': (7,)}", "needs 28 bytes, but the file has 24: it is truncated" },
        { "{" DESCR ", " ORDER ", 'shape': (5,)}", "the file has 24: there are bytes after the end" },
        { "{" DESCR ", " ORDER ", 'shape': ()}", "shape () of '<f4' needs 4 bytes, but the file has 24" },
        { "{" DESCR ", " ORDER ", 'shape': (1000000000, 1000000000)}", "it is truncated" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        bytes b = npy_bytes(1, rows[i][0], 24);
        expect_error(&b, rows[i][1]);
    }
}

/* Cut anywhere, a file is an error, and never anything worse. */
static void every_truncation_is_found(void **state)
{
    (void)state;
    for (int major = 1; major <= 2; major++) {
        bytes whole = npy_bytes(major, "{" DESCR ", " ORDER ", " SHAPE "}", 24);
        for (size_t count = 1; count < whole.count; count++) {
            bytes cut = whole;
            cut.count = count;
            expect_error(&cut, count < 6                  ? "is not a .npy file"
                               : count < whole.count - 24 ? "the .npy header is truncated"
                                                          : "it is truncated");
        }
    }
}

static void preambles_are_checked(void **state)
{
    (void)state;
    bytes b = npy_bytes(1, "{" DESCR ", " ORDER ", " SHAPE "}", 24);
    b.at[0] = 'N';
    expect_error(&b, "x.npy is not a .npy file");
    b = npy_bytes(4, "{" DESCR ", " ORDER ", " SHAPE "}", 24);
    expect_error(&b, ".npy version 4.0; expected 1.0, 2.0 or 3.0");
    b = npy_bytes(1, "{" DESCR ", " ORDER ", " SHAPE "}", 24);
    b.at[7] = 1;
    expect_error(&b, ".npy version 1.1");
    b = npy_bytes(2, "{" DESCR ", " ORDER ", " SHAPE "}", 24);
    b.at[11] = 0xff;
    expect_error(&b, "the .npy header is truncated");
}

/* A header may be as long as the file allows, but not absurdly long. */
static void absurd_headers_are_refused(void **state)
{
    (void)state;
    size_t length = (1 << 20) + 1;
    unsigned char *file = calloc(length + 12, 1);
    assert_non_null(file);
    bytes b = npy_bytes(2, "", 0);
    memcpy(file, b.at, 8);
    file[8] = 1, file[10] = 0x10;
    FILE *stream = fmemopen(file, length + 12, "rb");
    array a;
    io_error error;
    assert_int_equal(npy_read_stream(&a, stream, "x.npy", &error), EXIT_INPUT);
    assert_string_equal(error.text, "x.npy: the .npy header has 1048577 bytes; expected at most 1048576");
    fclose(stream);
    free(file);
}

static void files_that_cannot_be_read(void **state)
{
    (void)state;
    array a;
    io_error error;
    assert_int_equal(npy_read(&a, "nosuch.npy", &error), EXIT_INPUT);
    assert_string_equal(error.text, "cannot read nosuch.npy: No such file or directory");
    assert_int_equal(npy_read(&a, ".", &error), EXIT_INPUT);
    assert_string_equal(error.text, "cannot read .: it is not a regular file");
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    FILE *stream = fdopen(ends[0], "rb");
    assert_int_equal(npy_read_stream(&a, stream, "pipe", &error), EXIT_INPUT);
    assert_string_equal(error.text, "cannot read pipe: Illegal seek");
    fclose(stream);
    close(ends[1]);
    stream = fopen(".", "rb");
    assert_non_null(stream);
    assert_int_equal(npy_read_stream(&a, stream, "directory", &error), EXIT_INPUT);
    assert_string_equal(error.text, "cannot read directory: Is a directory");
    fclose(stream);
}

/* What is written is read back, at every rank, and its data begin at a multiple of 64. */
static void what_is_written_reads_back(void **state)
{
    (void)state;
    static const loam_dtype types[] = { LOAM_F32, LOAM_BF16, LOAM_F16, LOAM_F64 };
    const int64_t shape[] = { 2, 1, 3, 2, 1, 2, 1, 100 };
    for (int type = 0; type < 4; type++)
        for (int rank = 0; rank <= ARRAY_MAX_RANK; rank++) {
            array a, b;
            assert_int_equal(array_create(&a, types[type], rank, shape, "a", NULL), 0);
            for (int64_t i = 0; i < a.count; i++)
                array_set(&a, i, (double)(i % 200) / 8 - 3);
            assert_int_equal(npy_write("written.npy", &a, NULL), 0);
            assert_int_equal(npy_read(&b, "written.npy", NULL), 0);
            assert_int_equal(b.dtype, types[type] == LOAM_BF16 ? LOAM_F32 : types[type]);
            assert_int_equal(b.rank, rank);
            assert_memory_equal(a.shape, b.shape, sizeof a.shape);
            for (int64_t i = 0; i < a.count; i++)
                assert_true(array_get(&a, i) == array_get(&b, i));
            FILE *stream = fopen("written.npy", "rb");
            assert_int_equal(fseek(stream, 0, SEEK_END), 0);
            assert_int_equal((ftell(stream) - b.count * (int64_t)array_dtype_bytes(b.dtype)) % 64, 0);
            fclose(stream);
            array_free(&a);
            array_free(&b);
        }
    assert_int_equal(unlink("written.npy"), 0);
}

static int read_integer_bytes(int64_t **values, int64_t *count, const char *dictionary, const void *data,
                              size_t data_bytes, io_error *error)
{
    bytes b = npy_bytes(1, dictionary, data_bytes);
    memcpy(b.at + b.count - data_bytes, data, data_bytes);
    FILE *stream = open_bytes(&b);
    const int status = npy_read_integers_stream(values, count, stream, "x.npy", error);
    fclose(stream);
    return status;
}

static void whole_numbers_are_read(void **state)
{
    (void)state;
    static const int32_t narrow[] = { 0, -1, INT32_MIN, INT32_MAX, 7 };
    static const int64_t wide[] = { INT64_MIN, INT64_MAX, -5 };
    int64_t *values, count;
    assert_int_equal(read_integer_bytes(&values, &count, "{'descr': '<i4', " ORDER ", 'shape': (5,)}", narrow,
                                        sizeof narrow, NULL),
                     0);
    assert_int_equal(count, 5);
    for (int i = 0; i < 5; i++)
        assert_true(values[i] == narrow[i]);
    free(values);
    assert_int_equal(read_integer_bytes(&values, &count, "{'descr': '<i8', " ORDER ", 'shape': (3,)}", wide,
                                        sizeof wide, NULL),
                     0);
    assert_int_equal(count, 3);
    assert_memory_equal(values, wide, sizeof wide);
    free(values);
    assert_int_equal(
        read_integer_bytes(&values, &count, "{'descr': '<i8', " ORDER ", 'shape': (0,)}", wide, 0, NULL), 0);
    assert_int_equal(count, 0);
    assert_non_null(values);
    free(values);
}

static void other_numbers_are_refused(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        { "{'descr': '<f4', " ORDER ", 'shape': (6,)}", "elements are '<f4'; expected '<i4' or '<i8'" },
        { "{'descr': '>i4', " ORDER ", 'shape': (6,)}", "elements are big-endian ('>i4')" },
        { "{'descr': '<u4', " ORDER ", 'shape': (6,)}", "elements are '<u4'" },
        { "{'descr': '<i4', " ORDER ", 'shape': (2, 3)}", "x.npy has shape (2, 3): expected one axis" },
        { "{'descr': '<i4', " ORDER ", 'shape': (5,)}", "there are bytes after the end" },
        { "{'descr': '<i8', " ORDER ", 'shape': (6,)}", "it is truncated" },
        { "{'descr': '<i8', 'fortran_order': True, 'shape': (3,)}", "in Fortran order" },
    };
    static const char zeros[24];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int64_t *values, count = 9;
        io_error error;
        assert_int_equal(read_integer_bytes(&values, &count, rows[i][0], zeros, sizeof zeros, &error),
                         EXIT_INPUT);
        assert_null(values);
        assert_int_equal(count, 0);
        if (!strstr(error.text, rows[i][1])) fail_msg("'%s' lacks '%s'", error.text, rows[i][1]);
    }
    int64_t *values, count;
    io_error error;
    assert_int_equal(npy_read_integers(&values, &count, "nosuch.npy", &error), EXIT_INPUT);
    assert_null(values);
}

static void full_disks_are_noticed(void **state)
{
    (void)state;
    array a;
    io_error error;
    assert_int_equal(array_create(&a, LOAM_F32, 1, (int64_t[]){ 100000 }, "a", NULL), 0);
    memset(a.data, 0, 400000);
    assert_int_equal(npy_write("/dev/full", &a, &error), EXIT_OUTPUT);
    assert_string_equal(error.text, "cannot write /dev/full: No space left on device");
    assert_int_equal(npy_write("nosuch/a.npy", &a, &error), EXIT_OUTPUT);
    array_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_headers_are_read),      cmocka_unit_test(bad_headers_are_named),
        cmocka_unit_test(every_truncation_is_found),  cmocka_unit_test(preambles_are_checked),
        cmocka_unit_test(absurd_headers_are_refused), cmocka_unit_test(files_that_cannot_be_read),
        cmocka_unit_test(what_is_written_reads_back), cmocka_unit_test(full_disks_are_noticed),
        cmocka_unit_test(whole_numbers_are_read),     cmocka_unit_test(other_numbers_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
