/* SPDX-License-Identifier: MIT
 *
 * Tables: rows t_j of elements of any 32- or 16-bit type, read in place. Attention for few queries is two
 * products with a table, and neither copies the table:
 *
 *     table_dots    out[r][j] = x_r . (t_j - origin)
 *     table_weigh   out[r][c] = sum_j w_r[j] t_j[c]
 *
 * Lanes are channels in both; table_dots sums over lanes by a transposition, VL keys and rows at a time.
 *
 * Up to four rows x_r or w_r share each load and conversion of the table. The result of a row does not depend
 * on how many rows share them. Float arrays used with a table have a stride of whole vectors, with 0 beyond
 * the channels.
 */
#ifndef LOAM_SIMD_TABLE_H
#define LOAM_SIMD_TABLE_H

#include "src/base/dtype.h"
#include "src/simd/vec.h"

#include <stdbool.h>

typedef struct table {
    const char *data;
    int64_t step; /* bytes from row to row */
    int64_t rows, channels;
    loam_dtype dtype;
} table;

/* Bytes from a row to one some 8 KiB of elements later, of which each load of the row prefetches its part:
 * the hardware prefetcher stops at each page, and many prefetches at once hold loads up. That row may lie
 * beyond the last one, where the caller reads on; the prefetch of an unmapped address does nothing. */
static inline int64_t table_ahead(const table *t)
{
    return 8192 / (t->channels * (int64_t)(t->dtype == LOAM_F32 ? 4 : 2)) * t->step;
}

VEC_INLINE void table_prefetch(const char *at, int64_t ahead)
{
    __builtin_prefetch((const void *)((uintptr_t)at + (uintptr_t)ahead));
}

/* Where a cache line of 64 bytes begins, in bytes from the begin of a row. */
VEC_INLINE bool table_line_at(int64_t offset) { return offset % 64 == 0; }

/* ------------------------------------------------------------------ vectors from elements of any type */

typedef uint16_t halves __attribute__((vector_size(VEC_BYTES / 2)));
typedef uint16_t halves_unaligned __attribute__((vector_size(VEC_BYTES / 2), aligned(2), may_alias));
typedef uint32_t words __attribute__((vector_size(VEC_BYTES)));

VEC_INLINE vec v_from_bf16(halves x) { return (vec)(__builtin_convertvector(x, words) << 16); }

VEC_INLINE vec v_from_f16(halves x)
{
#if defined __AVX512F__
    return (vec)_mm512_cvtph_ps((__m256i)x);
#elif defined __F16C__
    return (vec)_mm256_cvtph_ps((__m128i)x);
#else
    vec v;
    for (int e = 0; e < VL; e++)
        v[e] = float_from_f16(x[e]);
    return v;
#endif
}

/* Loads VL elements as float; dtype is a constant at each call. */
VEC_INLINE vec v_load_as(const loam_dtype dtype, const char *x)
{
    if (dtype == LOAM_F32) return v_load((const float *)(const void *)x);
    const halves h = *(const halves_unaligned *)(const void *)x;
    return dtype == LOAM_BF16 ? v_from_bf16(h) : v_from_f16(h);
}

/* Loads the first n elements, 0 < n < VL, and zeros in the other lanes; reads nothing beyond
 * them (tail mask). */
VEC_INLINE vec v_load_part(const loam_dtype dtype, const char *x, int n)
{
#if defined __AVX512F__
    const __mmask16 mask = (__mmask16)((1u << n) - 1);
    if (dtype == LOAM_F32) return (vec)_mm512_maskz_loadu_ps(mask, x);
    const halves h = (halves)_mm256_maskz_loadu_epi16(mask, x);
#else
    if (dtype == LOAM_F32) {
        vec v = { 0 };
        memcpy(&v, x, (size_t)n * sizeof(float));
        return v;
    }
    halves h = { 0 };
    memcpy(&h, x, (size_t)n * sizeof(uint16_t));
#endif
    return dtype == LOAM_BF16 ? v_from_bf16(h) : v_from_f16(h);
}

/* A row of bfloat16 is loaded as pairs of neighbours, which become a vector of even channels and one of odd
 * ones by an operation each. V_EVEN, V_ODD: of 2 VL channels in two vectors; V_LOW, V_HIGH: back. */
#if VEC_BYTES == 64
#define V_EVEN(a, b) __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30)
#define V_ODD(a, b) __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31)
#define V_LOW(a, b) __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define V_HIGH(a, b) \
    __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#elif VEC_BYTES == 32
#define V_EVEN(a, b) __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14)
#define V_ODD(a, b) __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15)
#define V_LOW(a, b) __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define V_HIGH(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#else
#define V_EVEN(a, b) __builtin_shufflevector(a, b, 0, 2, 4, 6)
#define V_ODD(a, b) __builtin_shufflevector(a, b, 1, 3, 5, 7)
#define V_LOW(a, b) __builtin_shufflevector(a, b, 0, 4, 1, 5)
#define V_HIGH(a, b) __builtin_shufflevector(a, b, 2, 6, 3, 7)
#endif

/* Rows of 16-bit elements lie at any multiple of two bytes. */
typedef int32_t pairs_unaligned __attribute__((vector_size(VEC_BYTES), aligned(2), may_alias));

/* The first n elements, 0 < n <= 2 VL, and zeros. */
VEC_INLINE vmask v_load_pairs(const char *x, int n)
{
    if (n == 2 * VL) return *(const pairs_unaligned *)(const void *)x;
#if defined __AVX512F__
    return (vmask)_mm512_maskz_loadu_epi16((__mmask32)((1u << n) - 1), x);
#else
    vmask v = { 0 };
    memcpy(&v, x, (size_t)n * sizeof(uint16_t));
    return v;
#endif
}

/* The first n of 2 VL elements of a 16-bit type as floats: of bfloat16 the even and the odd ones, of float16
 * one vector after the other; zeros beyond. */
VEC_INLINE void v_load_two(const loam_dtype dtype, const char *x, int n, vec *first, vec *second)
{
    if (dtype == LOAM_BF16) {
        const vmask pairs = v_load_pairs(x, n);
        *first = (vec)(pairs << 16), *second = (vec)(pairs & -0x10000);
        return;
    }
    const char *const next = x + VL * sizeof(uint16_t);
    *first = n < VL ? v_load_part(dtype, x, n) : v_load_as(dtype, x);
    *second = n == 2 * VL ? v_load_as(dtype, next) : n > VL ? v_load_part(dtype, next, n - VL) : v_set(0);
}

/* ------------------------------------------------------------------ horizontal sums */

/* One step of the transposition below, named by the number of lanes: each of a and b is cut into blocks of N
 * of its lanes, odd and even blocks are added, and the sums of a and b alternate. */
#define SUM_8_OF_16(a, b) \
    (__builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) + \
     __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31))
#define SUM_4_OF_16(a, b) \
    (__builtin_shufflevector(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27) + \
     __builtin_shufflevector(a, b, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31))
#define SUM_2_OF_16(a, b) \
    (__builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) + \
     __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31))
#define SUM_1_OF_16(a, b) \
    (__builtin_shufflevector(a, b, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30) + \
     __builtin_shufflevector(a, b, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31))
#define SUM_4_OF_8(a, b) \
    (__builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11) + \
     __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15))
#define SUM_2_OF_8(a, b) \
    (__builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13) + \
     __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15))
#define SUM_1_OF_8(a, b) \
    (__builtin_shufflevector(a, b, 0, 8, 2, 10, 4, 12, 6, 14) + \
     __builtin_shufflevector(a, b, 1, 9, 3, 11, 5, 13, 7, 15))
#define SUM_2_OF_4(a, b) \
    (__builtin_shufflevector(a, b, 0, 1, 4, 5) + __builtin_shufflevector(a, b, 2, 3, 6, 7))
#define SUM_1_OF_4(a, b) \
    (__builtin_shufflevector(a, b, 0, 4, 2, 6) + __builtin_shufflevector(a, b, 1, 5, 3, 7))
#define SUM_1_OF_2(a, b) (__builtin_shufflevector(a, b, 0, 2) + __builtin_shufflevector(a, b, 1, 3))

/* SUM_n: for vec; SUM64_n: for vec64, which has half as many lanes. */
#if VEC_BYTES == 64
#define SUM_8 SUM_8_OF_16
#define SUM_4 SUM_4_OF_16
#define SUM_2 SUM_2_OF_16
#define SUM_1 SUM_1_OF_16
#define SUM64_4 SUM_4_OF_8
#define SUM64_2 SUM_2_OF_8
#define SUM64_1 SUM_1_OF_8
#elif VEC_BYTES == 32
#define SUM_4 SUM_4_OF_8
#define SUM_2 SUM_2_OF_8
#define SUM_1 SUM_1_OF_8
#define SUM64_2 SUM_2_OF_4
#define SUM64_1 SUM_1_OF_4
#else
#define SUM_2 SUM_2_OF_4
#define SUM_1 SUM_1_OF_4
#define SUM64_1 SUM_1_OF_2
#endif

/* Lane e of the result is the horizontal sum of x[e]; the order of the additions is the same for each e.
 * Overwrites x. */
VEC_INLINE vec v_sums(vec x[VL])
{
#if VEC_BYTES == 64
#pragma GCC unroll 8
    for (int e = 0; e < 8; e++)
        x[e] = SUM_8(x[e], x[e + 8]);
#endif
#if VEC_BYTES >= 32
#pragma GCC unroll 4
    for (int e = 0; e < 4; e++)
        x[e] = SUM_4(x[e], x[e + 4]);
#endif
#pragma GCC unroll 2
    for (int e = 0; e < 2; e++)
        x[e] = SUM_2(x[e], x[e + 2]);
    return SUM_1(x[0], x[1]);
}

VEC_INLINE float v_sum(vec x)
{
    float sum = 0;
    for (int e = 0; e < VL; e++)
        sum += x[e];
    return sum;
}

VEC_INLINE float v_top(vec x)
{
    float top = x[0];
    for (int e = 1; e < VL; e++)
        top = x[e] > top ? x[e] : top;
    return top;
}

VEC_INLINE vmask v_iota(void)
{
#if VEC_BYTES == 64
    return (vmask){ 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 };
#elif VEC_BYTES == 32
    return (vmask){ 0, 1, 2, 3, 4, 5, 6, 7 };
#else
    return (vmask){ 0, 1, 2, 3 };
#endif
}

/* ------------------------------------------------------------------ dot products of all rows */

/* The float arrays that a product reads and writes besides the table: rows `stride` elements apart. */
typedef struct table_rows {
    const float *in;
    float *out;
    int64_t in_stride, out_stride;
} table_rows;

/* sum[r * keys] += x_r k over one vector of channels; with `distance`, -(x_r - k)^2 / 2. */
VEC_INLINE void dots_step(const int rows, const bool distance, const int keys, vec *sum, const vec *x, vec k)
{
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        if (distance) {
            const vec between = x[r] - k;
            sum[r * keys] -= (0.5f * between) * between;
        } else {
            sum[r * keys] += x[r] * k;
        }
    }
}

/* Sums over lanes of the dots of `keys` keys, VL / rows, which go to those from key j on. */
VEC_INLINE void dots_store(const int rows, vec *sum, table_rows io, int64_t j)
{
    const int keys = VL / rows;
    const vec total = v_sums(sum);
    if (rows == 1) {
        v_store(io.out + j, total);
        return;
    }
    float each[VL];
    v_store(each, total);
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
        memcpy(io.out + r * io.out_stride + j, each + r * keys, (size_t)keys * sizeof(float));
}

/* The keys from j on, the last one again beyond the table, and their sums, 0. */
VEC_INLINE void dots_begin(const int rows, const table *t, int64_t j, const char *at[VL], vec sum[VL])
{
    const int keys = VL / rows;
#pragma GCC unroll 16
    for (int e = 0; e < keys; e++)
        at[e] = t->data + (j + e < t->rows ? j + e : t->rows - 1) * t->step;
#pragma GCC unroll 16
    for (int e = 0; e < VL; e++)
        sum[e] = v_set(0);
}

VEC_INLINE void dots_floats(const int rows, const bool distance, const table *t, const float *restrict origin,
                            table_rows io, bool prefetch)
{
    const int keys = VL / rows, rest = (int)(t->channels % VL);
    const int64_t whole = t->channels - rest, bytes = sizeof(float), ahead = table_ahead(t);
    for (int64_t j = 0; j < t->rows; j += keys) {
        const char *at[VL];
        vec sum[VL], x[4];
        dots_begin(rows, t, j, at, sum);
        for (int64_t c = 0; c < whole; c += VL) {
            const bool fetched = prefetch && table_line_at(c * bytes);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++)
                x[r] = v_load(io.in + r * io.in_stride + c);
            const vec from = distance ? v_set(0) : v_load(origin + c);
#pragma GCC unroll 16
            for (int e = 0; e < keys; e++) {
                if (fetched) table_prefetch(at[e] + c * bytes, ahead);
                dots_step(rows, distance, keys, sum + e, x, v_load_as(LOAM_F32, at[e] + c * bytes) - from);
            }
        }
        if (rest > 0) {
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++)
                x[r] = v_load(io.in + r * io.in_stride + whole);
            const vec from = distance ? v_set(0) : v_load(origin + whole);
#pragma GCC unroll 16
            for (int e = 0; e < keys; e++)
                dots_step(rows, distance, keys, sum + e, x,
                          v_load_part(LOAM_F32, at[e] + whole * bytes, rest) - from);
        }
        dots_store(rows, sum, io, j);
    }
}

/* Channels c .. c + n - 1 of keys of a 16-bit type. x, origin: as arrange_channels has them; ahead: 0 for no
 * prefetch. */
VEC_INLINE void dots_two_step(const loam_dtype dtype, const int rows, const bool distance, vec *sum,
                              const char *const *at, int64_t c, const int n, const float *restrict x,
                              const float *restrict origin, int64_t ahead)
{
    const int keys = VL / rows;
    vec first[4], second[4];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        first[r] = v_load(x + r * LOAM_MAX_DIM + c);
        second[r] = v_load(x + r * LOAM_MAX_DIM + c + VL);
    }
    const vec from_first = distance ? v_set(0) : v_load(origin + c),
              from_second = distance ? v_set(0) : v_load(origin + c + VL);
#pragma GCC unroll 16
    for (int e = 0; e < keys; e++) {
        vec k, next;
        v_load_two(dtype, at[e] + 2 * c, n, &k, &next);
        if (ahead) table_prefetch(at[e] + 2 * c, ahead);
        dots_step(rows, distance, keys, sum + e, first, k - from_first);
        dots_step(rows, distance, keys, sum + e, second, next - from_second);
    }
}

/* Channels in the order of v_load_two, with zeros up to whole pairs of vectors. */
VEC_INLINE void arrange_channels(const loam_dtype dtype, float *restrict to, const float *restrict from,
                                 int64_t channels)
{
    const bool pairs = dtype == LOAM_BF16;
    for (int64_t c = 0; c < channels; c += 2 * VL) {
        const vec low = v_load(from + c), high = c + VL < channels ? v_load(from + c + VL) : v_set(0);
        v_store(to + c, pairs ? V_EVEN(low, high) : low);
        v_store(to + c + VL, pairs ? V_ODD(low, high) : high);
    }
}

VEC_INLINE void dots_two(const loam_dtype dtype, const int rows, const bool distance, const table *t,
                         const float *restrict origin, table_rows io, bool prefetch)
{
    const int keys = VL / rows, rest = (int)(t->channels % (2 * VL));
    const int64_t whole = t->channels - rest, ahead = prefetch ? table_ahead(t) : 0;
    float x[4 * LOAM_MAX_DIM], from[LOAM_MAX_DIM];
    for (int r = 0; r < rows; r++)
        arrange_channels(dtype, x + r * LOAM_MAX_DIM, io.in + r * io.in_stride, t->channels);
    arrange_channels(dtype, from, origin, t->channels);
    for (int64_t j = 0; j < t->rows; j += keys) {
        const char *at[VL];
        vec sum[VL];
        dots_begin(rows, t, j, at, sum);
        for (int64_t c = 0; c < whole; c += 2 * VL)
            dots_two_step(dtype, rows, distance, sum, at, c, 2 * VL, x, from,
                          table_line_at(2 * c) ? ahead : 0);
        if (rest > 0) dots_two_step(dtype, rows, distance, sum, at, whole, rest, x, from, ahead);
        dots_store(rows, sum, io, j);
    }
}

VEC_INLINE void dots_rows(const int rows, const bool distance, const table *t, const float *restrict origin,
                          table_rows io, bool prefetch)
{
    switch (t->dtype) {
    case LOAM_BF16: dots_two(LOAM_BF16, rows, distance, t, origin, io, prefetch); break;
    case LOAM_F16: dots_two(LOAM_F16, rows, distance, t, origin, io, prefetch); break;
    default: dots_floats(rows, distance, t, origin, io, prefetch); break;
    }
}

VEC_INLINE table_rows rows_from(table_rows io, int64_t r)
{
    io.in += r * io.in_stride, io.out += r * io.out_stride;
    return io;
}

/* out[r][j] = in_r . (t_j - origin); with `distance`, -|in_r - t_j|^2 / 2. Writes out up to
 * whole_vectors(t->rows). in and origin are 0 beyond the channels. */
static inline void table_dots(const table *t, const float *origin, bool distance, int64_t rows, table_rows io)
{
    int64_t r = 0;
    for (; distance && r < rows; r++)
        dots_rows(1, true, t, origin, rows_from(io, r), r == 0);
    for (; r + 4 <= rows; r += 4)
        dots_rows(4, false, t, origin, rows_from(io, r), r == 0);
    for (; r + 2 <= rows; r += 2)
        dots_rows(2, false, t, origin, rows_from(io, r), r == 0);
    if (r < rows) dots_rows(1, false, t, origin, rows_from(io, r), r == 0);
}

/* ------------------------------------------------------------------ weighted sums of all rows */

/* Channels c .. c + vecs VL - 1; if rest > 0, the last `rest` channels. */
VEC_INLINE void weigh_block(const int rows, const int vecs, const int rest, const table *t, int64_t c,
                            table_rows io, bool prefetch)
{
    vec sum[4][4];
    const int64_t bytes = sizeof(float), ahead = table_ahead(t);
    const char *at = t->data + c * bytes;
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int n = 0; n < vecs; n++)
            sum[r][n] = v_set(0);
    }
    for (int64_t j = 0; j < t->rows; j++, at += t->step) {
        vec v[4];
#pragma GCC unroll 4
        for (int n = 0; n < vecs; n++) {
            if (prefetch && table_line_at((c + n * VL) * bytes)) table_prefetch(at + n * VL * bytes, ahead);
            v[n] = rest > 0 ? v_load_part(LOAM_F32, at, rest) : v_load_as(LOAM_F32, at + n * VL * bytes);
        }
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            const vec w = v_set(io.in[r * io.in_stride + j]);
#pragma GCC unroll 4
            for (int n = 0; n < vecs; n++)
                sum[r][n] += w * v[n];
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int n = 0; n < vecs; n++)
            v_store(io.out + r * io.out_stride + c + n * VL, sum[r][n]);
    }
}

VEC_INLINE void weigh_floats(const int rows, const table *t, table_rows io, bool prefetch)
{
    const int rest = (int)(t->channels % VL);
    int64_t c = 0;
    for (; c + 4 * VL <= t->channels; c += 4 * VL)
        weigh_block(rows, 4, 0, t, c, io, prefetch);
    for (; c + VL <= t->channels; c += VL)
        weigh_block(rows, 1, 0, t, c, io, prefetch);
    if (rest > 0) weigh_block(rows, 1, rest, t, c, io, prefetch);
}

/* 16-bit types: channels c .. c + 2 vecs VL - 1; if rest > 0, the last `rest` channels. */
VEC_INLINE void weigh_two_block(const loam_dtype dtype, const int rows, const int vecs, const int rest,
                                const table *t, int64_t c, table_rows io, bool prefetch)
{
    const bool pairs = dtype == LOAM_BF16;
    vec first[4][2], second[4][2];
    const int64_t ahead = table_ahead(t);
    const char *at = t->data + 2 * c;
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 2
        for (int n = 0; n < vecs; n++)
            first[r][n] = second[r][n] = v_set(0);
    }
    for (int64_t j = 0; j < t->rows; j++, at += t->step) {
#pragma GCC unroll 2
        for (int n = 0; n < vecs; n++) {
            if (prefetch && table_line_at(2 * c + n * VEC_BYTES)) table_prefetch(at + n * VEC_BYTES, ahead);
            vec v, next;
            v_load_two(dtype, at + n * VEC_BYTES, rest > 0 ? rest : 2 * VL, &v, &next);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) {
                const vec w = v_set(io.in[r * io.in_stride + j]);
                first[r][n] += w * v;
                second[r][n] += w * next;
            }
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 2
        for (int n = 0; n < vecs; n++) {
            float *to = io.out + r * io.out_stride + c + 2 * n * VL;
            const vec low = first[r][n], high = second[r][n];
            v_store(to, pairs ? V_LOW(low, high) : low);
            if (rest == 0 || rest > VL) v_store(to + VL, pairs ? V_HIGH(low, high) : high);
        }
    }
}

VEC_INLINE void weigh_two(const loam_dtype dtype, const int rows, const table *t, table_rows io,
                          bool prefetch)
{
    const int rest = (int)(t->channels % (2 * VL));
    int64_t c = 0;
    for (; c + 4 * VL <= t->channels; c += 4 * VL)
        weigh_two_block(dtype, rows, 2, 0, t, c, io, prefetch);
    for (; c + 2 * VL <= t->channels; c += 2 * VL)
        weigh_two_block(dtype, rows, 1, 0, t, c, io, prefetch);
    if (rest > 0) weigh_two_block(dtype, rows, 1, rest, t, c, io, prefetch);
}

VEC_INLINE void weigh_rows(const int rows, const table *t, table_rows io, bool prefetch)
{
    switch (t->dtype) {
    case LOAM_BF16: weigh_two(LOAM_BF16, rows, t, io, prefetch); break;
    case LOAM_F16: weigh_two(LOAM_F16, rows, t, io, prefetch); break;
    default: weigh_floats(rows, t, io, prefetch); break;
    }
}

/* out[r][c] = sum_j in[r][j] t_j[c]; writes out up to whole_vectors(t->channels). */
static inline void table_weigh(const table *t, int64_t rows, table_rows io)
{
    int64_t r = 0;
    for (; r + 4 <= rows; r += 4)
        weigh_rows(4, t, rows_from(io, r), r == 0);
    for (; r + 2 <= rows; r += 2)
        weigh_rows(2, t, rows_from(io, r), r == 0);
    if (r < rows) weigh_rows(1, t, rows_from(io, r), r == 0);
}

/* ------------------------------------------------------------------ rows centred and scaled */

VEC_INLINE void scaled_as(const loam_dtype dtype, const table *t, const float *restrict origin,
                          const float *restrict scale, float *restrict out, int64_t stride)
{
    const int rest = (int)(t->channels % VL);
    const int64_t whole = t->channels - rest, bytes = dtype == LOAM_F32 ? 4 : 2;
    for (int64_t j = 0; j < t->rows; j++) {
        const char *at = t->data + j * t->step;
        for (int64_t c = 0; c < whole; c += VL)
            v_store(out + j * stride + c, scale[j] * (v_load_as(dtype, at + c * bytes) - v_load(origin + c)));
        if (rest > 0) {
            v_store(out + j * stride + whole,
                    scale[j] * (v_load_part(dtype, at + whole * bytes, rest) - v_load(origin + whole)));
        }
    }
}

/* out[j] = scale[j] (t_j - origin); stride >= whole_vectors(t->channels) */
static inline void table_scaled(const table *t, const float *origin, const float *scale, float *out,
                                int64_t stride)
{
    switch (t->dtype) {
    case LOAM_BF16: scaled_as(LOAM_BF16, t, origin, scale, out, stride); break;
    case LOAM_F16: scaled_as(LOAM_F16, t, origin, scale, out, stride); break;
    default: scaled_as(LOAM_F32, t, origin, scale, out, stride); break;
    }
}

#endif
