/* SPDX-License-Identifier: MIT
 *
 * Products of bfloat16 pairs by tiles (AMX, TILE_DOTS = 1): one instruction multiplies 16 rows of 16 pairs by
 * 16 pairs of 16 lanes and adds to 16 x 16 floats. A panel of pairs (src/simd/pairs.h) is a row of such right
 * operands as it lies in memory; left operands are rows of bfloat16.
 *
 * All eight tiles are whole. What they are loaded from is padded: pairs to TILE_PAIRS, rows to TILE_ROWS.
 */
#ifndef LOAM_SIMD_TILES_H
#define LOAM_SIMD_TILES_H

#include "src/simd/transpose.h"

#if defined __AMX_BF16__ || defined __AMXBF16__ /* the latter is clang 14's */
#define TILE_DOTS 1
#else
#define TILE_DOTS 0
#endif

enum { TILE_ROWS = 16, TILE_PAIRS = 16 };

/* The tile registers of a thread: between tiles_begin and tiles_end they are set up for tile_product. */
#if TILE_DOTS
typedef struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;

static inline void tiles_begin(void)
{
    static const tile_config whole = { .palette = 1,
                                       .row_bytes = { 64, 64, 64, 64, 64, 64, 64, 64 },
                                       .rows = { 16, 16, 16, 16, 16, 16, 16, 16 } };
    _tile_loadconfig(&whole);
}

static inline void tiles_end(void) { _tile_release(); }

/* gcc's loads of tiles do not say that they read memory. */
VEC_INLINE void tile_fence(void) { __asm__ volatile("" ::: "memory"); }

enum { TILE_PANEL_BYTES = LANES * 4 };

/* c [rows][LANES] (+)= A b on lanes 0 .. 15, or with `wide` 0 .. 31; A: 16 or 32 rows of TILE_PAIRS * steps
 * pairs. `rows` and `wide` are constants at each call. */
VEC_INLINE void tile_block(const int rows, const bool wide, float *c, const uint16_t *a, int64_t row_bytes,
                           const int32_t *b, int64_t steps, bool add)
{
    const bool tall = rows > TILE_ROWS;
    const char *const low = (const char *)a, *const high = low + TILE_ROWS * row_bytes;
    float *const under = c + TILE_ROWS * LANES;
    _tile_zero(0);
    if (wide) _tile_zero(1);
    if (tall) _tile_zero(2);
    if (tall && wide) _tile_zero(3);
    if (add) {
        _tile_loadd(0, c, TILE_PANEL_BYTES);
        if (wide) _tile_loadd(1, c + 16, TILE_PANEL_BYTES);
        if (tall) _tile_loadd(2, under, TILE_PANEL_BYTES);
        if (tall && wide) _tile_loadd(3, under + 16, TILE_PANEL_BYTES);
    }
    for (int64_t step = 0; step < steps; step++) {
        const int32_t *const pairs = b + step * TILE_PAIRS * LANES;
        _tile_loadd(6, pairs, TILE_PANEL_BYTES);
        _tile_loadd(4, low + 64 * step, row_bytes);
        if (wide) _tile_loadd(7, pairs + 16, TILE_PANEL_BYTES);
        if (tall) _tile_loadd(5, high + 64 * step, row_bytes);
        _tile_dpbf16ps(0, 4, 6);
        if (wide) _tile_dpbf16ps(1, 4, 7);
        if (tall) _tile_dpbf16ps(2, 5, 6);
        if (tall && wide) _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, TILE_PANEL_BYTES);
    if (wide) _tile_stored(1, c + 16, TILE_PANEL_BYTES);
    if (tall) _tile_stored(2, under, TILE_PANEL_BYTES);
    if (tall && wide) _tile_stored(3, under + 16, TILE_PANEL_BYTES);
}

/* The same on lanes 0 .. width - 1. */
VEC_INLINE void tile_strips(const int rows, float *c, const uint16_t *a, int64_t row_bytes, const int32_t *b,
                            int64_t steps, int64_t width, bool add)
{
    int64_t lane = 0;
    for (; lane + 32 <= width; lane += 32)
        tile_block(rows, true, c + lane, a, row_bytes, b + lane, steps, add);
    if (lane < width) tile_block(rows, false, c + lane, a, row_bytes, b + lane, steps, add);
}

/* c [rows][LANES] (+)= A b on the first `width` lanes, whole tiles. A: rows of TILE_PAIRS * steps pairs,
 * `stride` elements apart, readable up to whole tiles; what is beyond `rows` counts for nothing. b:
 * [TILE_PAIRS * steps][LANES] pairs. */
static inline void tile_product(float *restrict c, int64_t rows, const uint16_t *restrict a, int64_t stride,
                                const int32_t *restrict b, int64_t steps, int64_t width, bool add)
{
    const int64_t row_bytes = 2 * stride;
    int64_t r = 0;
    tile_fence();
    for (; r + 2 * TILE_ROWS <= rows; r += 2 * TILE_ROWS)
        tile_strips(2 * TILE_ROWS, c + r * LANES, a + r * stride, row_bytes, b, steps, width, add);
    for (; r + TILE_ROWS <= rows; r += TILE_ROWS)
        tile_strips(TILE_ROWS, c + r * LANES, a + r * stride, row_bytes, b, steps, width, add);
    if (r < rows) {
        float rest[TILE_ROWS * LANES] = { 0 };
        const size_t bytes = (size_t)(rows - r) * LANES * sizeof(float);
        if (add) memcpy(rest, c + r * LANES, bytes);
        tile_fence();
        tile_strips(TILE_ROWS, rest, a + r * stride, row_bytes, b, steps, width, add);
        memcpy(c + r * LANES, rest, bytes);
    }
    tile_fence();
}

/* Vector p: the pairs of tokens 2p and 2p + 1; 0 from token `tokens` and channel `channels` on. */
VEC_INLINE void tile_load_pairs(vec x[VL], const uint16_t *restrict from, int64_t stride, int64_t tokens,
                                int64_t channels)
{
    const __mmask16 some = channels < VL ? (__mmask16)((1u << channels) - 1) : 0xffff;
#pragma GCC unroll 16
    for (int p = 0; p < VL; p++) {
        const int64_t low = 2 * p < tokens ? 2 * p : 0, high = 2 * p + 1 < tokens ? 2 * p + 1 : 0;
        const __m256i a = _mm256_maskz_loadu_epi16(low == 2 * p ? some : 0, from + low * stride);
        const __m256i b = _mm256_maskz_loadu_epi16(high > 0 ? some : 0, from + high * stride);
        x[p] = (vec)_mm512_or_si512(_mm512_cvtepu16_epi32(a),
                                    _mm512_slli_epi32(_mm512_cvtepu16_epi32(b), 16));
    }
}

/* out[c][t] = element c of the token row t: [channels][out_stride], whole tiles of it, with 0 beyond. */
static inline void tile_tokens(uint16_t *restrict out, int64_t out_stride, const uint16_t *restrict from,
                               int64_t stride, int64_t tokens, int64_t channels)
{
    for (int64_t t = 0; t < tokens; t += 2 * TILE_PAIRS) {
        for (int64_t c = 0; c < channels; c += TILE_ROWS) {
            vec x[VL];
            tile_load_pairs(x, from + t * stride + c, stride, tokens - t, channels - c);
            transpose_vectors(x);
#pragma GCC unroll 16
            for (int e = 0; e < VL; e++)
                memcpy(out + (c + e) * out_stride + t, &x[e], sizeof x[e]);
        }
    }
}
#else
static inline void tiles_begin(void) {}
static inline void tiles_end(void) {}
#endif

#endif
