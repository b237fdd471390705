/* SPDX-License-Identifier: MIT */
#include "io/tensor.h"

#include "io/half.h"

#include <assert.h>
#include <string.h>

enum { BLOCK = 32, CHUNK = 512 };

static const struct {
    const char *name;
    int numbers, bytes; /* of a block */
} types[TENSOR_TYPES] = {
    [TENSOR_F32] = { "F32", 1, 4 },        [TENSOR_BF16] = { "BF16", 1, 2 },
    [TENSOR_F16] = { "F16", 1, 2 },        [TENSOR_F64] = { "F64", 1, 8 },
    [TENSOR_Q8_0] = { "Q8_0", BLOCK, 34 }, [TENSOR_Q4_0] = { "Q4_0", BLOCK, 18 },
    [TENSOR_Q4_1] = { "Q4_1", BLOCK, 20 },
};

const char *tensor_type_name(tensor_type type) { return types[type].name; }

int tensor_block(tensor_type type) { return types[type].numbers; }

int tensor_block_bytes(tensor_type type) { return types[type].bytes; }

tensor_type tensor_type_of(loam_dtype dtype)
{
    static const tensor_type same[] = {
        [LOAM_F32] = TENSOR_F32, [LOAM_BF16] = TENSOR_BF16, [LOAM_F16] = TENSOR_F16, [LOAM_F64] = TENSOR_F64
    };
    return same[dtype];
}

int64_t tensor_bytes(const tensor *t)
{
    return t->count / tensor_block(t->type) * tensor_block_bytes(t->type);
}

/* ---------------------------------------------------------------- blocks */

static float half_at(const unsigned char *at)
{
    uint16_t bits;
    memcpy(&bits, at, sizeof bits);
    return f16_to_float(bits);
}

static void read_q8_0(const unsigned char *block, float *out)
{
    const float scale = half_at(block);
    for (int i = 0; i < BLOCK; i++)
        out[i] = scale * (float)(int8_t)block[2 + i];
}

static void read_q4_0(const unsigned char *block, float *out)
{
    const float scale = half_at(block);
    for (int i = 0; i < BLOCK / 2; i++) {
        out[i] = scale * (float)((block[2 + i] & 15) - 8);
        out[BLOCK / 2 + i] = scale * (float)((block[2 + i] >> 4) - 8);
    }
}

static void read_q4_1(const unsigned char *block, float *out)
{
    const float scale = half_at(block), least = half_at(block + 2);
    for (int i = 0; i < BLOCK / 2; i++) {
        out[i] = scale * (float)(block[4 + i] & 15) + least;
        out[BLOCK / 2 + i] = scale * (float)(block[4 + i] >> 4) + least;
    }
}

static void read_blocks(tensor_type type, const unsigned char *at, int64_t blocks, float *out)
{
    for (int64_t b = 0; b < blocks; b++, at += types[type].bytes, out += BLOCK)
        if (type == TENSOR_Q8_0)
            read_q8_0(at, out);
        else if (type == TENSOR_Q4_0)
            read_q4_0(at, out);
        else
            read_q4_1(at, out);
}

/* ---------------------------------------------------------------- plain numbers */

static void read_f16(const unsigned char *at, int64_t count, float *out)
{
    for (int64_t i = 0; i < count; i++)
        out[i] = half_at(at + 2 * i);
}

static void read_bf16(const unsigned char *at, int64_t count, float *out)
{
    for (int64_t i = 0; i < count; i++) {
        uint16_t bits;
        memcpy(&bits, at + 2 * i, sizeof bits);
        out[i] = bf16_to_float(bits);
    }
}

static void read_floats(tensor_type type, const unsigned char *at, int64_t count, float *out)
{
    switch (type) {
    case TENSOR_F32: memcpy(out, at, (size_t)count * sizeof *out); return;
    case TENSOR_F16: read_f16(at, count, out); return;
    case TENSOR_BF16: read_bf16(at, count, out); return;
    default: read_blocks(type, at, count / BLOCK, out);
    }
}

/* Rounded once, from double. */
static void read_doubles(const unsigned char *at, int64_t count, loam_dtype dtype, void *out)
{
    for (int64_t i = 0; i < count; i++) {
        double value;
        memcpy(&value, at + 8 * i, sizeof value);
        if (dtype == LOAM_F32)
            ((float *)out)[i] = (float)value;
        else
            ((uint16_t *)out)[i] = dtype == LOAM_F16 ? f16_from_double(value) : bf16_from_double(value);
    }
}

static void narrow(const float *values, int64_t count, loam_dtype dtype, uint16_t *out)
{
    if (dtype == LOAM_F16)
        for (int64_t i = 0; i < count; i++)
            out[i] = f16_from_float(values[i]);
    else
        for (int64_t i = 0; i < count; i++)
            out[i] = bf16_from_float(values[i]);
}

void tensor_read(const tensor *t, int64_t first, int64_t count, loam_dtype dtype, void *out)
{
    const int numbers = tensor_block(t->type), bytes = tensor_block_bytes(t->type);
    assert(dtype != LOAM_F64 && first % numbers == 0 && count % numbers == 0 && first >= 0 &&
           count <= t->count - first);
    const unsigned char *at = t->data + first / numbers * bytes;
    if (count == 0) return;
    if (t->type == TENSOR_F64) {
        read_doubles(at, count, dtype, out);
    } else if (t->type == tensor_type_of(dtype)) {
        memcpy(out, at, (size_t)count * (size_t)bytes);
    } else if (dtype == LOAM_F32) {
        read_floats(t->type, at, count, out);
    } else {
        float values[CHUNK] = { 0 };
        for (int64_t i = 0; i < count; i += CHUNK) {
            const int64_t now = count - i < CHUNK ? count - i : CHUNK;
            read_floats(t->type, at + i / numbers * bytes, now, values);
            narrow(values, now, dtype, (uint16_t *)out + i);
        }
    }
}
