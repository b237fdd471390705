/* SPDX-License-Identifier: MIT
 * io/tensor.c, and the conversions of io/half.h that it takes, against those from and to double. */
#include "io/tensor.h"

#include "io/half.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void every_half_widens(void **state)
{
    (void)state;
    for (int bits = 0; bits < 1 << 16; bits++) {
        const double wide[2] = { f16_to_double((uint16_t)bits), bf16_to_double((uint16_t)bits) };
        const float got[2] = { f16_to_float((uint16_t)bits), bf16_to_float((uint16_t)bits) };
        for (int i = 0; i < 2; i++)
            if (isnan(wide[i]) ? !isnan(got[i])
                               : (double)got[i] != wide[i] || !signbit(got[i]) != !signbit(wide[i]))
                fail_msg("%#x is %g, not %g", (unsigned)bits, (double)got[i], wide[i]);
    }
}

/* Every step of 2^13 - 1 through all floats, which meets ties, and the neighbours of every half. */
static void floats_are_rounded_to_nearest_even(void **state)
{
    (void)state;
    for (uint64_t bits = 0; bits < (uint64_t)1 << 32; bits += 8191)
        for (int step = -1; step <= 1; step++) {
            const float value = float_of_bits((uint32_t)(bits / 4096 * 4096) + (uint32_t)step);
            if (f16_from_float(value) != f16_from_double((double)value) ||
                bf16_from_float(value) != bf16_from_double((double)value))
                fail_msg("%a: %#x and %#x", (double)value, f16_from_float(value), bf16_from_float(value));
        }
}

static tensor tensor_of(tensor_type type, int64_t count, const void *data)
{
    return (tensor){ .type = type, .rank = 1, .shape = { count }, .count = count, .data = data };
}

/* Two blocks of a type: the second is read by itself too. d = .5, m = -3. */
static void blocks_are_read(void **state)
{
    (void)state;
    for (int type = TENSOR_Q8_0; type < TENSOR_TYPES; type++) {
        unsigned char data[2 * 34] = { 0 };
        const size_t bytes = (size_t)tensor_block_bytes((tensor_type)type),
                     head = type == TENSOR_Q4_1 ? 4 : 2;
        const uint16_t scale = f16_from_double(.5), least = f16_from_double(-3);
        for (size_t b = 0; b < 2; b++) {
            memcpy(data + b * bytes, &scale, 2);
            if (head == 4) memcpy(data + b * bytes + 2, &least, 2);
            for (size_t i = head; i < bytes; i++)
                data[b * bytes + i] = (unsigned char)(37 * i + 101 * b);
        }
        const tensor t = tensor_of((tensor_type)type, 64, data);
        float all[64], second[32];
        tensor_read(&t, 0, 64, LOAM_F32, all);
        tensor_read(&t, 32, 32, LOAM_F32, second);
        assert_int_equal(tensor_bytes(&t), 2 * bytes);
        assert_memory_equal(second, all + 32, sizeof second);
        for (int i = 0; i < 64; i++) {
            const unsigned char *q = data + (size_t)(i / 32) * bytes + head;
            const int nibble = i % 32 < 16 ? q[i % 16] % 16 : q[i % 16] / 16;
            const float expected = type == TENSOR_Q8_0   ? .5f * (float)(int8_t)q[i % 32]
                                   : type == TENSOR_Q4_0 ? .5f * (float)(nibble - 8)
                                                         : .5f * (float)nibble - 3;
            assert_true(all[i] == expected);
        }
    }
}

/* From an odd place, 1100 numbers: more than are converted at once. */
static void plain_numbers_are_converted(void **state)
{
    (void)state;
    enum { COUNT = 1100 };
    static unsigned char data[1 + 8 * COUNT];
    for (int type = 0; type <= TENSOR_F64; type++) {
        const int bytes = tensor_block_bytes((tensor_type)type);
        for (int i = 0; i < COUNT; i++) {
            const double value = (i - 400) / 3.;
            const float single = (float)value;
            const uint16_t half = type == TENSOR_F16 ? f16_from_double(value) : bf16_from_double(value);
            memcpy(data + 1 + bytes * i,
                   type == TENSOR_F64   ? (const void *)&value
                   : type == TENSOR_F32 ? (const void *)&single
                                        : &half,
                   (size_t)bytes);
        }
        const tensor t = tensor_of((tensor_type)type, COUNT, data + 1);
        float floats[COUNT];
        uint16_t f16[COUNT], bf16[COUNT];
        tensor_read(&t, 0, COUNT, LOAM_F32, floats);
        tensor_read(&t, 7, COUNT - 7, LOAM_F16, f16);
        tensor_read(&t, 7, COUNT - 7, LOAM_BF16, bf16);
        for (int i = 0; i < COUNT; i++) {
            double value = (i - 400) / 3.;
            if (type == TENSOR_F32) value = (double)(float)value;
            if (type == TENSOR_F16) value = f16_to_double(f16_from_double(value));
            if (type == TENSOR_BF16) value = bf16_to_double(bf16_from_double(value));
            assert_true(floats[i] == (float)value);
            if (i < 7) continue;
            assert_int_equal(f16[i - 7], f16_from_double(value));
            assert_int_equal(bf16[i - 7], bf16_from_double(value));
        }
    }
}

/* 1 + 2^-8 + 2^-40 is above a tie of bf16, and on it once rounded to float. */
static void doubles_are_rounded_once(void **state)
{
    (void)state;
    const double value = 1 + 0x1p-8 + 0x1p-40;
    const tensor t = tensor_of(TENSOR_F64, 1, (const unsigned char *)&value);
    uint16_t bits;
    tensor_read(&t, 0, 1, LOAM_BF16, &bits);
    assert_int_equal(bits, 0x3f81);
    assert_int_equal(bf16_from_float((float)value), 0x3f80);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_half_widens),        cmocka_unit_test(floats_are_rounded_to_nearest_even),
        cmocka_unit_test(blocks_are_read),          cmocka_unit_test(plain_numbers_are_converted),
        cmocka_unit_test(doubles_are_rounded_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
