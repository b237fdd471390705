/* SPDX-License-Identifier: MIT
 *
 * Matrix products of bfloat16 pairs. With AVX512_BF16 (PAIR_DOTS = 1) one instruction multiplies two pairs
 * of bfloat16 numbers per lane and adds both products to a float32 accumulator.
 *
 * A pair is two neighbours along the axis of summation in one 32-bit word, the first in the low half. So a
 * row in memory is already a row of pairs (channels 0 and 1, 2 and 3, ..), and a panel of pairs is
 * [(rows + 1) / 2][LANES].
 *
 * The products are exact: the only loss is the rounding of an operand to bfloat16. The instruction treats
 * subnormal operands as 0.
 */
#ifndef LOAM_SIMD_PAIRS_H
#define LOAM_SIMD_PAIRS_H

#include "src/simd/tiles.h"

/* With PAIR_DOTS = 0 the functions below are correct, but no kernel calls them. */
#if defined __AVX512BF16__
enum { PAIR_DOTS = 1 };
#else
enum { PAIR_DOTS = 0 };
#endif

/* What a product takes at once, and so reads: rows of its left operand, and channels. A panel of pairs holds
 * whole PAIR_CHANNELS, with 0 beyond its rows. */
#if TILE_DOTS
enum { PAIR_ROWS = TILE_ROWS, PAIR_CHANNELS = 2 * TILE_PAIRS };
#else
enum { PAIR_ROWS = 1, PAIR_CHANNELS = 2 };
#endif
enum { PAIR_TOKENS = 64 }; /* the most tokens of pair_tokens */

static inline int64_t pair_whole(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

/* sum + a.low * b.low + a.high * b.high, lane by lane. */
VEC_INLINE vec pair_dot(vec sum, vmask a, vmask b)
{
#if defined __AVX512BF16__
    return (vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
#else
    const vec low = (vec)(a << 16) * (vec)(b << 16);
    return sum + low + (vec)(a & -0x10000) * (vec)(b & -0x10000);
#endif
}

/* Pairs (first, second) per lane, each rounded to bfloat16 to nearest, ties to even. */
VEC_INLINE vmask pair_join(vec first, vec second)
{
#if defined __AVX512BF16__
    /* The conversion yields the 16 halves of `first`, then those of `second`; the permutation interleaves
     * them. */
    const vmask turn = (vmask){ 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 } * 0x10001 + 0x100000;
    const __m512i both = (__m512i)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
    return (vmask)_mm512_permutexvar_epi16((__m512i)turn, both);
#else
    const vmask a = (vmask)first, b = (vmask)second;
    const vmask low = a + 0x7fff + (a >> 16 & 1), high = b + 0x7fff + (b >> 16 & 1);
    return (low >> 16 & 0xffff) | (high & -0x10000);
#endif
}

/* Broadcasts the pair at x to all lanes. */
VEC_INLINE vmask pair_set(const uint16_t *x)
{
    int32_t both;
    memcpy(&both, x, sizeof both);
    return v_set_int(both);
}

VEC_INLINE void pair_store(int32_t *out, vmask pair) { *(vmask_unaligned *)(void *)out = pair; }

/* Zeros in a panel of pairs beyond its rows. */
static inline void pair_fill(int32_t *out, int64_t rows)
{
    for (int64_t t = (rows + 1) / 2; t < pair_whole(rows, PAIR_CHANNELS) / 2; t++)
        memset(out + t * LANES, 0, LANES * sizeof *out);
}

/* out: panel of pairs of rows 2t and 2t + 1 of a float panel; an odd last row is paired with 0. If sum is
 * not NULL, it is increased by the sum over the rows, each rounded to bfloat16. */
static inline void pair_rows(int32_t *restrict out, const float *restrict panel, int64_t rows,
                             float *restrict sum)
{
    FOR_LANES(lane)
    {
        const vmask ones = v_set_int(0x3f803f80);
        vec total = sum ? v_load(sum + lane) : v_set(0);
        for (int64_t r = 0; r < rows; r += 2) {
            const float *at = panel + r * LANES + lane;
            const vmask pair = pair_join(v_load(at), r + 1 < rows ? v_load(at + LANES) : v_set(0));
            total = pair_dot(total, pair, ones);
            pair_store(out + r / 2 * LANES + lane, pair);
        }
        if (sum) v_store(sum + lane, total);
    }
    pair_fill(out, rows);
}

VEC_INLINE void pair_product_rows(const int rows, float *restrict c, const uint16_t *restrict a,
                                  int64_t row_stride, int64_t t_stride, const int32_t *restrict b,
                                  int64_t t_count, bool add)
{
    for (int lane = 0; lane < LANES; lane += PANEL_WIDTH) {
        vec sum[PANEL_ROWS][PANEL_VECS];
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
            for (int n = 0; n < PANEL_VECS; n++)
                sum[r][n] = add ? v_load(c + r * LANES + lane + n * VL) : v_set(0);
        }
        for (int64_t t = 0; t < t_count; t++) {
            vmask x[PANEL_VECS];
#pragma GCC unroll 4
            for (int n = 0; n < PANEL_VECS; n++)
                x[n] = v_load_int(b + t * LANES + lane + n * VL);
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) {
                const vmask y = pair_set(a + r * row_stride + t * t_stride);
#pragma GCC unroll 4
                for (int n = 0; n < PANEL_VECS; n++)
                    sum[r][n] = pair_dot(sum[r][n], y, x[n]);
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
            for (int n = 0; n < PANEL_VECS; n++)
                v_store(c + r * LANES + lane + n * VL, sum[r][n]);
        }
    }
}

/* c [rows][LANES] (+)= sum over t of A(r, t) b[t][LANES], A and b of pairs;
 * A(r, t) = the pair at a + r * row_stride + t * t_stride. */
static inline void pair_product(float *restrict c, int64_t rows, const uint16_t *restrict a,
                                int64_t row_stride, int64_t t_stride, const int32_t *restrict b,
                                int64_t t_count, bool add)
{
    int64_t r = 0;
    for (; r + PANEL_ROWS <= rows; r += PANEL_ROWS) {
        pair_product_rows(PANEL_ROWS, c + r * LANES, a + r * row_stride, row_stride, t_stride, b, t_count,
                          add);
    }
    switch (rows - r) {
    case 5:
        pair_product_rows(5, c + r * LANES, a + r * row_stride, row_stride, t_stride, b, t_count, add);
        break;
    case 4:
        pair_product_rows(4, c + r * LANES, a + r * row_stride, row_stride, t_stride, b, t_count, add);
        break;
    case 3:
        pair_product_rows(3, c + r * LANES, a + r * row_stride, row_stride, t_stride, b, t_count, add);
        break;
    case 2:
        pair_product_rows(2, c + r * LANES, a + r * row_stride, row_stride, t_stride, b, t_count, add);
        break;
    case 1:
        pair_product_rows(1, c + r * LANES, a + r * row_stride, row_stride, t_stride, b, t_count, add);
        break;
    default: break;
    }
}

/* Tokens for sums over them, from rows of `channels` elements, `stride` apart: pairs of neighbours,
 * [tokens / 2][channels], an odd last one paired with 0; for tiles [channels][PAIR_TOKENS]. */
#if TILE_DOTS
static inline void pair_tokens(uint16_t *restrict out, const uint16_t *restrict from, int64_t stride,
                               int64_t tokens, int64_t channels)
{
    tile_tokens(out, PAIR_TOKENS, from, stride, tokens, channels);
}

/* sum [channels][LANES] += tokens^T times a panel of pairs of tokens, at least on the first `width` lanes,
 * whole vectors */
static inline void pair_token_product(float *restrict sum, const uint16_t *restrict tokens, int64_t channels,
                                      const int32_t *restrict panel, int64_t n, int64_t width)
{
    tile_product(sum, channels, tokens, PAIR_TOKENS, panel, pair_whole(n, PAIR_CHANNELS) / PAIR_CHANNELS,
                 width, true);
}

/* out [n][LANES] = rows of bfloat16, `stride` elements apart, times a panel of pairs of channels, at least on
 * the first `width` lanes */
static inline void pair_row_product(float *restrict out, int64_t n, const uint16_t *restrict rows,
                                    int64_t stride, const int32_t *restrict panel, int64_t channels,
                                    int64_t width)
{
    tile_product(out, n, rows, stride, panel, pair_whole(channels, PAIR_CHANNELS) / PAIR_CHANNELS, width,
                 false);
}
#else
static inline void pair_tokens(uint16_t *restrict out, const uint16_t *restrict from, int64_t stride,
                               int64_t tokens, int64_t channels)
{
    int64_t t = 0;
    for (; t + 1 < tokens; t += 2) {
        const uint16_t *first = from + t * stride, *second = first + stride;
        for (int64_t c = 0; c < channels; c++) {
            out[2 * c] = first[c];
            out[2 * c + 1] = second[c];
        }
        out += 2 * channels;
    }
    for (int64_t c = 0; t < tokens && c < channels; c++) {
        out[2 * c] = from[t * stride + c];
        out[2 * c + 1] = 0;
    }
}

static inline void pair_token_product(float *restrict sum, const uint16_t *restrict tokens, int64_t channels,
                                      const int32_t *restrict panel, int64_t n, int64_t width)
{
    (void)width;
    pair_product(sum, channels, tokens, 2, 2 * channels, panel, (n + 1) / 2, true);
}

static inline void pair_row_product(float *restrict out, int64_t n, const uint16_t *restrict rows,
                                    int64_t stride, const int32_t *restrict panel, int64_t channels,
                                    int64_t width)
{
    (void)width;
    pair_product(out, n, rows, stride, 2, panel, (channels + 1) / 2, false);
}
#endif

#endif
