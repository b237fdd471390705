/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "tests/io/bytes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void put(bytes *b, const void *from, size_t count)
{
    assert_true(b->count + count <= sizeof b->at);
    memcpy(b->at + b->count, from, count);
    b->count += count;
}

static void put_data(bytes *b, size_t count)
{
    for (size_t i = 0; i < count; i += sizeof(float)) {
        float value = (float)(i / sizeof(float));
        put(b, &value, count - i < sizeof value ? count - i : sizeof value);
    }
}

static void put_little_endian(bytes *b, uint64_t value, int size)
{
    for (int i = 0; i < size; i++) {
        unsigned char byte = (unsigned char)(value >> 8 * i);
        put(b, &byte, 1);
    }
}

bytes npy_bytes(int major, const char *dictionary, size_t data_bytes)
{
    bytes b = { 0 };
    const unsigned char version[] = { (unsigned char)major, 0 };
    put(&b, "\x93NUMPY", 6);
    put(&b, version, 2);
    put_little_endian(&b, strlen(dictionary), major == 1 ? 2 : 4);
    put(&b, dictionary, strlen(dictionary));
    put_data(&b, data_bytes);
    return b;
}

bytes safetensors_bytes(uint64_t told, const char *header, size_t data_bytes)
{
    bytes b = { 0 };
    put_little_endian(&b, told, 8);
    put(&b, header, strlen(header));
    put_data(&b, data_bytes);
    return b;
}

bytes text_bytes(const char *text)
{
    bytes b = { 0 };
    put(&b, text, strlen(text));
    return b;
}

FILE *open_bytes(const bytes *b)
{
    FILE *stream = fmemopen((void *)(uintptr_t)b->at, b->count, "rb");
    assert_non_null(stream);
    return stream;
}

void save_bytes(const char *path, const bytes *b)
{
    FILE *stream = fopen(path, "wb");
    assert_non_null(stream);
    assert_int_equal(fwrite(b->at, 1, b->count, stream), b->count);
    assert_int_equal(fclose(stream), 0);
}
