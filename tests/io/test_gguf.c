/* SPDX-License-Identifier: MIT
 * io/gguf.c and io/mapped.c. */
#include "io/gguf.h"

#include "io/mapped.h"
#include "tests/io/bytes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { U8, I8, U16, I16, U32, I32, REAL32, BOOLEAN, STRING, ARRAY, U64, I64, REAL64 };
enum { F32, F16, Q4_0, Q4_1, Q8_0 = 8, Q6_K = 14, BF16 = 30 };

static void add(bytes *b, uint64_t value, int count)
{
    for (int i = 0; i < count; i++)
        b->at[b->count++] = (unsigned char)(value >> 8 * i);
}

static void add_data(bytes *b, const void *data, size_t count)
{
    memcpy(b->at + b->count, data, count);
    b->count += count;
}

static void add_text(bytes *b, const char *text)
{
    add(b, strlen(text), 8);
    add_data(b, text, strlen(text));
}

static bytes begin_file(uint64_t tensors, uint64_t keys)
{
    bytes b = { 0 };
    add_data(&b, "GGUF", 4);
    add(&b, 3, 4);
    add(&b, tensors, 8);
    add(&b, keys, 8);
    return b;
}

static void add_key(bytes *b, const char *name, uint64_t type)
{
    add_text(b, name);
    add(b, type, 4);
}

/* A tensor of `rank` equal sizes. */
static void add_tensor(bytes *b, const char *name, uint64_t rank, uint64_t size, uint64_t type,
                       uint64_t offset)
{
    add_text(b, name);
    add(b, rank, 4);
    for (uint64_t axis = 0; axis < rank; axis++)
        add(b, size, 8);
    add(b, type, 4);
    add(b, offset, 8);
}

static void align(bytes *b, size_t alignment)
{
    while (b->count % alignment)
        add(b, 0, 1);
}

/* A key of each kind, and two tensors. */
static bytes whole_file(void)
{
    static const float third = 1.f / 3;
    static const double seventh = 1. / 7;
    bytes b = begin_file(2, 15);
    add_key(&b, "u8", U8), add(&b, 200, 1);
    add_key(&b, "i8", I8), add(&b, 200, 1);
    add_key(&b, "u16", U16), add(&b, 40000, 2);
    add_key(&b, "i16", I16), add(&b, 40000, 2);
    add_key(&b, "u32", U32), add(&b, 3000000000, 4);
    add_key(&b, "i32", I32), add(&b, 3000000000, 4);
    add_key(&b, "u64", U64), add(&b, (uint64_t)1 << 63, 8);
    add_key(&b, "i64", I64), add(&b, (uint64_t)-5, 8);
    add_key(&b, "yes", BOOLEAN), add(&b, 1, 1);
    add_key(&b, "f32", REAL32), add_data(&b, &third, 4);
    add_key(&b, "f64", REAL64), add_data(&b, &seventh, 8);
    add_key(&b, "text", STRING), add_text(&b, "llama");
    add_key(&b, "texts", ARRAY), add(&b, STRING, 4), add(&b, 3, 8);
    add_text(&b, "a"), add_text(&b, ""), add_text(&b, "bc");
    add_key(&b, "numbers", ARRAY), add(&b, I16, 4), add(&b, 2, 8), add(&b, 65535, 2), add(&b, 7, 2);
    add_key(&b, "general.alignment", U32), add(&b, 64, 4);
    add_text(&b, "w"), add(&b, 2, 4), add(&b, 3, 8), add(&b, 2, 8), add(&b, F32, 4), add(&b, 64, 8);
    add_tensor(&b, "q", 1, 32, Q8_0, 0);
    align(&b, 64);
    for (int i = 0; i < 64; i++)
        add(&b, (uint64_t)i, 1);
    for (int i = 0; i < 6; i++)
        add_data(&b, &(float){ (float)i / 2 }, 4);
    return b;
}

static gguf *open_whole(const bytes *b)
{
    gguf *g;
    io_error error;
    if (gguf_open_bytes(&g, b->at, (int64_t)b->count, "x.gguf", &error)) fail_msg("%s", error.text);
    return g;
}

static void expect_integer(const gguf *g, const char *key, int64_t expected)
{
    int64_t value = 99;
    io_error error;
    if (gguf_integer(g, key, &value, &error)) fail_msg("%s", error.text);
    assert_true(value == expected);
}

static void expect_real(const gguf *g, const char *key, double expected)
{
    double value = 99;
    io_error error;
    if (gguf_real(g, key, &value, &error)) fail_msg("%s", error.text);
    assert_true(value == expected);
}

static void values_are_read(void **state)
{
    (void)state;
    const bytes b = whole_file();
    gguf *g = open_whole(&b);
    expect_integer(g, "u8", 200);
    expect_integer(g, "i8", -56);
    expect_integer(g, "u16", 40000);
    expect_integer(g, "i16", -25536);
    expect_integer(g, "u32", 3000000000);
    expect_integer(g, "i32", -1294967296);
    expect_integer(g, "i64", -5);
    expect_integer(g, "yes", 1);
    expect_real(g, "f32", (double)(1.f / 3));
    expect_real(g, "f64", 1. / 7);
    expect_real(g, "i8", -56);
    expect_real(g, "u64", 9223372036854775808.);
    gguf_text text;
    assert_int_equal(gguf_string(g, "text", &text, NULL), 0);
    assert_int_equal(text.bytes, 5);
    assert_memory_equal(text.at, "llama", 5);
    assert_true(gguf_has(g, "text"));
    assert_false(gguf_has(g, "tex"));
    gguf_close(g);
}

static void arrays_are_walked(void **state)
{
    (void)state;
    const bytes b = whole_file();
    gguf *g = open_whole(&b);
    gguf_array list;
    assert_int_equal(gguf_strings(g, "texts", &list, NULL), 0);
    assert_int_equal(list.count, 3);
    static const char *const expected[] = { "a", "", "bc" };
    for (int i = 0; i < 3; i++) {
        const gguf_text text = gguf_next_string(&list);
        assert_int_equal(text.bytes, strlen(expected[i]));
        assert_memory_equal(text.at, expected[i], text.bytes);
    }
    assert_int_equal(list.count, 0);
    assert_int_equal(gguf_numbers(g, "numbers", &list, NULL), 0);
    assert_int_equal(list.count, 2);
    assert_true(gguf_next_number(&list) == -1);
    assert_true(gguf_next_number(&list) == 7);
    gguf_close(g);
}

static void tensors_are_found(void **state)
{
    (void)state;
    const bytes b = whole_file();
    gguf *g = open_whole(&b);
    assert_int_equal(gguf_tensors(g), 2);
    assert_int_equal(gguf_tensor_index(g, "nosuch"), -1);
    assert_int_equal(gguf_tensor_index(g, "q"), 0);
    assert_int_equal(gguf_tensor_name(g, 1).bytes, 1);
    const tensor t = gguf_tensor_at(g, gguf_tensor_index(g, "w"));
    assert_int_equal(t.type, TENSOR_F32);
    assert_int_equal(t.rank, 2);
    assert_int_equal(t.shape[0], 2);
    assert_int_equal(t.shape[1], 3);
    float values[6];
    tensor_read(&t, 0, 6, LOAM_F32, values);
    for (int i = 0; i < 6; i++)
        assert_true(values[i] == (float)i / 2);
    assert_ptr_equal(gguf_tensor_at(g, 0).data, t.data - 64);
    gguf_close(g);
}

static void wrong_keys_are_named(void **state)
{
    (void)state;
    const bytes b = whole_file();
    gguf *g = open_whole(&b);
    io_error error;
    int64_t integer;
    double real;
    gguf_text text;
    gguf_array list;
    assert_int_equal(gguf_integer(g, "nosuch", &integer, &error), EXIT_INPUT);
    assert_string_equal(error.text, "x.gguf has no 'nosuch'");
    assert_int_equal(gguf_integer(g, "f32", &integer, &error), EXIT_INPUT);
    assert_string_equal(error.text, "x.gguf: 'f32' is not a whole number");
    assert_int_equal(gguf_integer(g, "u64", &integer, &error), EXIT_INPUT);
    assert_int_equal(gguf_integer(g, "texts", &integer, &error), EXIT_INPUT);
    assert_int_equal(gguf_real(g, "text", &real, &error), EXIT_INPUT);
    assert_string_equal(error.text, "x.gguf: 'text' is not a number");
    assert_int_equal(gguf_string(g, "u8", &text, &error), EXIT_INPUT);
    assert_string_equal(error.text, "x.gguf: 'u8' is not a string");
    assert_int_equal(gguf_strings(g, "numbers", &list, &error), EXIT_INPUT);
    assert_int_equal(gguf_numbers(g, "texts", &list, &error), EXIT_INPUT);
    assert_string_equal(error.text, "x.gguf: 'texts' is not an array of numbers");
    assert_int_equal(gguf_numbers(g, "u8", &list, &error), EXIT_INPUT);
    gguf_close(g);
}

/* ---------------------------------------------------------------- hostile files */

static void expect_error(const bytes *b, const char *text)
{
    gguf *g = (gguf *)(uintptr_t)b;
    io_error error = { 0 };
    assert_int_equal(gguf_open_bytes(&g, b->at, (int64_t)b->count, "x.gguf", &error), EXIT_INPUT);
    assert_null(g);
    if (!strstr(error.text, text) || !strstr(error.text, "x.gguf"))
        fail_msg("'%s' lacks '%s'", error.text, text);
}

/* The bytes lie at the end of their own memory, so that a sanitizer sees a step beyond them. */
static void every_cut_is_an_error(void **state)
{
    (void)state;
    const bytes whole = whole_file();
    for (size_t count = 0; count < whole.count; count++) {
        static unsigned char at[sizeof whole.at];
        unsigned char *begin = at + sizeof at - count;
        memcpy(begin, whole.at, count);
        gguf *g;
        io_error error = { 0 };
        if (gguf_open_bytes(&g, begin, (int64_t)count, "x.gguf", &error) != EXIT_INPUT || g || !*error.text)
            fail_msg("%zu bytes: '%s'", count, error.text);
    }
}

static void wrong_beginnings_are_named(void **state)
{
    (void)state;
    bytes b = whole_file();
    b.at[0] = 'g';
    expect_error(&b, "x.gguf is not a .gguf file");
    b = whole_file();
    b.at[4] = 2;
    expect_error(&b, "of version 2; expected 3");
    b = begin_file(0, (uint64_t)1 << 60);
    expect_error(&b, "claims 1152921504606846976 keys, but has 0 bytes left");
    b = begin_file(UINT64_MAX, 0);
    expect_error(&b, "claims 18446744073709551615 tensors, but has 0 bytes left");
}

static void wrong_keys_are_refused(void **state)
{
    (void)state;
    bytes b = begin_file(0, 1);
    add_key(&b, "a", 13), add(&b, 0, 8);
    expect_error(&b, "'a' is of the unknown type 13");
    b = begin_file(0, 1);
    add_key(&b, "a", ARRAY), add(&b, ARRAY, 4), add(&b, 0, 8);
    expect_error(&b, "'a' is an array of type 9; expected numbers or strings");
    b = begin_file(0, 1);
    add_key(&b, "a", ARRAY), add(&b, U64, 4), add(&b, (uint64_t)1 << 61, 8), add(&b, 0, 8);
    expect_error(&b, "the array 'a' claims 2305843009213693952 elements, but the file has 8 bytes left");
    b = begin_file(0, 1);
    add_key(&b, "a", STRING), add(&b, UINT64_MAX, 8);
    expect_error(&b, "ends within a string");
    b = begin_file(0, 2);
    add_key(&b, "same", U8), add(&b, 0, 1), add_key(&b, "same", I8), add(&b, 0, 1);
    expect_error(&b, "has two keys 'same'");
    b = begin_file(0, 1);
    add_key(&b, "general.alignment", U32), add(&b, 24, 4);
    expect_error(&b, "general.alignment is 24; expected a power of two from 8 to 1048576");
    b = begin_file(0, 1);
    add_key(&b, "general.alignment", STRING), add_text(&b, "32");
    expect_error(&b, "'general.alignment' is not a whole number");
}

/* Two tensors, and 64 bytes of data. */
static bytes two_tensors(uint64_t rank, uint64_t size, uint64_t type, uint64_t offset, const char *second)
{
    bytes b = begin_file(2, 0);
    add_tensor(&b, "a", rank, size, type, offset);
    add_tensor(&b, second, 1, 8, F32, 32);
    align(&b, 32);
    for (int i = 0; i < 64; i++)
        add(&b, 0, 1);
    return b;
}

static void wrong_tensors_are_named(void **state)
{
    (void)state;
    static const struct {
        uint64_t rank, size, type, offset;
        const char *text;
    } rows[] = {
        { 1, 8, Q6_K, 0, "tensor 'a' is of type Q6_K; expected F32, F16, BF16, F64, Q8_0, Q4_0 or Q4_1" },
        { 1, 8, 31, 0, "tensor 'a' is of the unknown type 31; expected F32" },
        { 1, 8, 1000, 0, "tensor 'a' is of the unknown type 1000; expected F32" },
        { 5, 1, F32, 0, "tensor 'a' has 5 axes; expected at most 4" },
        { 2, (uint64_t)1 << 32, F32, 0, "the size of shape (4294967296, 4294967296) overflows" },
        { 1, UINT64_MAX, F32, 0, "the size of shape (-1,) overflows" },
        { 1, 33, Q4_0, 0, "tensor 'a': rows of shape (33,) are not blocks of 32 of Q4_0" },
        { 0, 0, Q8_0, 0, "tensor 'a': rows of shape () are not blocks of 32 of Q8_0" },
        { 1, 2, F32, 8, "tensor 'a' lies at byte 8, no multiple of 32" },
        { 1, 2, F32, 64, "tensor 'a' of 8 bytes lies at byte 64, but the data has 64" },
        { 1, 2, F32, UINT64_MAX - 31, "lies at byte 18446744073709551584, but the data has 64" },
        { 1, 17, F32, 0, "tensor 'a' of 68 bytes lies at byte 0, but the data has 64" },
        { 1, 9, F32, 0, "tensors 'a' and 'b' overlap" },
        { 1, 8, F32, 32, "overlap" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const bytes b = two_tensors(rows[i].rank, rows[i].size, rows[i].type, rows[i].offset, "b");
        expect_error(&b, rows[i].text);
    }
    bytes b = two_tensors(1, 8, F32, 0, "a");
    expect_error(&b, "has two tensors 'a'");
    b = two_tensors(1, 8, BF16, 0, "b");
    gguf_close(open_whole(&b));
}

/* ---------------------------------------------------------------- files */

static void files_are_mapped(void **state)
{
    (void)state;
    const bytes b = whole_file(), none = { 0 };
    gguf *g;
    mapped file;
    io_error error;
    save_bytes("m.gguf", &b);
    if (gguf_open(&g, "m.gguf", &error)) fail_msg("%s", error.text);
    expect_integer(g, "u8", 200);
    gguf_close(g);
    if (mapped_open(&file, "m.gguf", &error)) fail_msg("%s", error.text);
    assert_int_equal(file.bytes, b.count);
    assert_memory_equal(file.data, b.at, b.count);
    mapped_close(&file);
    assert_null(file.data);
    save_bytes("m.gguf", &none);
    if (mapped_open(&file, "m.gguf", &error)) fail_msg("%s", error.text);
    assert_true(!file.data && file.bytes == 0);
    mapped_close(&file);
    assert_int_equal(gguf_open(&g, "m.gguf", &error), EXIT_INPUT);
    assert_string_equal(error.text, "m.gguf is not a .gguf file");
    assert_int_equal(unlink("m.gguf"), 0);
    assert_int_equal(gguf_open(&g, "m.gguf", &error), EXIT_INPUT);
    assert_non_null(strstr(error.text, "cannot read m.gguf: No such file"));
    assert_int_equal(mapped_open(&file, ".", &error), EXIT_INPUT);
    assert_non_null(strstr(error.text, "not a regular file"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_read),        cmocka_unit_test(arrays_are_walked),
        cmocka_unit_test(tensors_are_found),      cmocka_unit_test(wrong_keys_are_named),
        cmocka_unit_test(every_cut_is_an_error),  cmocka_unit_test(wrong_beginnings_are_named),
        cmocka_unit_test(wrong_keys_are_refused), cmocka_unit_test(wrong_tensors_are_named),
        cmocka_unit_test(files_are_mapped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
