/* SPDX-License-Identifier: MIT
 * Products by OpenBLAS on blocks that depend on the shape alone, one thread each; and by our own loops where
 * few rows meet transposed weights, which is decoding: reading the weights is then what takes time. */
#include "train/cpu/real.h"

#include <cblas.h>
#include <string.h>
#if defined __x86_64__
#include <immintrin.h>
#endif

#if LOAM_TRAIN_F64
#define GEMM cblas_dgemm
#else
#define GEMM cblas_sgemm
#endif

/* Rows of a block. Where a is transposed the rows of the result are few and its sums long. */
enum { BLOCK = 256, BLOCK_TRANSPOSED = 32, BLOCK_COLUMNS = 192 };
/* Few rows; and of the widened weights of a block of columns, as many elements as lie on a stack. */
enum { FEW = 4, WIDENED = 1 << 16, LEAST_COLUMNS = 8 };

/* The widest vectors of this machine, chosen at run time. */
#if defined __x86_64__ && defined __gnu_linux__ && !defined __clang__ && !defined __SANITIZE_ADDRESS__ && \
    !defined __SANITIZE_THREAD__
#define WIDE __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define WIDE
#endif

static inline float from_bf16(uint16_t bits)
{
    const uint32_t word = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &word, sizeof x);
    return x;
}

/* A number of 2^-24 and more as a float with the bits of f16 is 2^-112 of itself. */
static inline float from_f16(uint16_t bits)
{
    const uint32_t sign = (uint32_t)(bits & 0x8000u) << 16;
    uint32_t word = (uint32_t)(bits & 0x7fffu) << 13;
    float x;
    memcpy(&x, &word, sizeof x);
    x *= 0x1p112f;
    memcpy(&word, &x, sizeof word);
    word |= ((bits & 0x7c00u) == 0x7c00u ? 0x7f800000u : 0) | sign; /* infinities and NaN */
    memcpy(&x, &word, sizeof x);
    return x;
}

WIDE static void widen_bf16(real *restrict to, const uint16_t *restrict from, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = from_bf16(from[i]);
}

WIDE static void widen_f16_by_bits(real *restrict to, const uint16_t *restrict from, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = from_f16(from[i]);
}

/* Compilers do not find the instruction that widens f16. */
#if defined __x86_64__ && !LOAM_TRAIN_F64
#define WITH_F16 __attribute__((target("avx512f")))
static bool widens_f16(void) { return __builtin_cpu_supports("avx512f"); }

WITH_F16 static __m512 load_f16(const uint16_t *from)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from));
}

WITH_F16 static void widen_f16_by_instruction(float *restrict to, const uint16_t *restrict from,
                                              int64_t count)
{
    int64_t i = 0;
    for (; i + 16 <= count; i += 16)
        _mm512_storeu_ps(to + i, load_f16(from + i));
    for (; i < count; i++)
        to[i] = from_f16(from[i]);
}

WITH_F16 static float dot_f16_by_instruction(const float *restrict x, const uint16_t *restrict w,
                                             int64_t count)
{
    __m512 even = _mm512_setzero_ps(), odd = even;
    int64_t i = 0;
    for (; i + 32 <= count; i += 32) {
        even = _mm512_fmadd_ps(_mm512_loadu_ps(x + i), load_f16(w + i), even);
        odd = _mm512_fmadd_ps(_mm512_loadu_ps(x + i + 16), load_f16(w + i + 16), odd);
    }
    float sum = _mm512_reduce_add_ps(_mm512_add_ps(even, odd));
    for (; i < count; i++)
        sum += x[i] * from_f16(w[i]);
    return sum;
}
#else
static bool widens_f16(void) { return false; }
#define widen_f16_by_instruction widen_f16_by_bits
#define dot_f16_by_instruction dot_f16_by_bits
#endif

static void widen_f16(real *restrict to, const uint16_t *restrict from, int64_t count)
{
    (widens_f16() ? widen_f16_by_instruction : widen_f16_by_bits)(to, from, count);
}

void REAL(widen)(real *to, matrix a, int64_t m, int64_t row, int64_t rows)
{
    for (int64_t i = 0; i < rows; i++, to += a.width) {
        const int64_t at = m * a.model + (row + i) * a.row;
        if (a.dtype == LOAM_BF16)
            widen_bf16(to, (const uint16_t *)a.data + at, a.width);
        else if (a.dtype == LOAM_F16)
            widen_f16(to, (const uint16_t *)a.data + at, a.width);
        else
            memcpy(to, (const real *)a.data + at, (size_t)a.width * sizeof(real));
    }
}

#define DOT(name, type, widened) \
    WIDE static real name(const real *restrict x, const type *restrict w, int64_t count) \
    { \
        real sum = 0; \
        PRAGMA(omp simd reduction(+ : sum)) \
        for (int64_t i = 0; i < count; i++) \
            sum += x[i] * widened(w[i]); \
        return sum; \
    }
DOT(dot_real, real, )
DOT(dot_bf16, uint16_t, from_bf16)
DOT(dot_f16_by_bits, uint16_t, from_f16)

/* x . row c of b. */
static real dot_row(const real *x, matrix b, int64_t m, int64_t c)
{
    const int64_t at = m * b.model + c * b.row;
    if (b.dtype == LOAM_BF16) return dot_bf16(x, (const uint16_t *)b.data + at, b.width);
    if (b.dtype == LOAM_F16)
        return (widens_f16() ? dot_f16_by_instruction : dot_f16_by_bits)(x, (const uint16_t *)b.data + at,
                                                                         b.width);
    return dot_real(x, (const real *)b.data + at, b.width);
}

static void few_rows(const machine *on, matrix out, matrix a, matrix b, bool add)
{
#pragma omp parallel for num_threads(on->threads) schedule(static) if (matrix_elements(b) > 1 << 16)
    for (int64_t n = 0; n < out.models * out.width; n++) {
        const int64_t m = n / out.width, c = n % out.width;
        for (int64_t i = 0; i < out.rows; i++) {
            real *const to = row_of(out, m, i) + c;
            const real x = dot_row(row_of(a, m, i), b, m, c);
            *to = add ? *to + x : x;
        }
    }
}

/* b is transposed, and of more rows than a: columns of the result in blocks, for which rows of b that are
 * 16-bit are widened. */
static void by_columns(const machine *on, matrix out, matrix a, matrix b, bool add)
{
    const bool narrow = b.dtype != on->dtype;
    const int64_t most = WIDENED / b.width, least = most < LEAST_COLUMNS ? LEAST_COLUMNS : most;
    const int64_t block = narrow ? least : BLOCK_COLUMNS, blocks = (out.width + block - 1) / block;
    assert(!narrow || b.width <= WIDENED / LEAST_COLUMNS);
#pragma omp parallel for num_threads(on->threads) schedule(dynamic)
    for (int64_t n = 0; n < out.models * blocks; n++) {
        const int64_t m = n / blocks, first = n % blocks * block;
        const int64_t count = out.width - first < block ? out.width - first : block;
        real widened[WIDENED];
        if (narrow) REAL(widen)(widened, b, m, first, count);
        GEMM(CblasRowMajor, CblasNoTrans, CblasTrans, (blasint)out.rows, (blasint)count, (blasint)b.width, 1,
             row_of(a, m, 0), (blasint)a.row, narrow ? widened : row_of(b, m, first),
             (blasint)(narrow ? b.width : b.row), add ? 1 : 0, row_of(out, m, 0) + first, (blasint)out.row);
    }
}

void REAL(product)(const machine *on, matrix out, matrix a, matrix b, unsigned how)
{
    const bool left = how & PRODUCT_A_TRANSPOSED, right = how & PRODUCT_B_TRANSPOSED, add = how & PRODUCT_ADD;
    const int64_t inner = left ? a.rows : a.width, block = left ? BLOCK_TRANSPOSED : BLOCK;
    const int64_t blocks = (out.rows + block - 1) / block;
    assert(out.rows == (left ? a.width : a.rows) && out.width == (right ? b.rows : b.width));
    assert(inner == (right ? b.width : b.rows) && out.models == a.models && out.models == b.models);
    assert(b.dtype == on->dtype || (right && !left));
    if (right && !left && out.rows <= FEW) {
        few_rows(on, out, a, b, add);
        return;
    }
    if (b.dtype != on->dtype || (right && !left && out.width > out.rows)) {
        by_columns(on, out, a, b, add);
        return;
    }
#pragma omp parallel for num_threads(on->threads) schedule(static) if (out.models * blocks > 1)
    for (int64_t n = 0; n < out.models * blocks; n++) {
        const int64_t m = n / blocks, first = n % blocks * block;
        const int64_t count = out.rows - first < block ? out.rows - first : block;
        const real *from = left ? row_of(a, m, 0) + first : row_of(a, m, first);
        GEMM(CblasRowMajor, left ? CblasTrans : CblasNoTrans, right ? CblasTrans : CblasNoTrans,
             (blasint)count, (blasint)out.width, (blasint)inner, 1, from, (blasint)a.row, row_of(b, m, 0),
             (blasint)b.row, add ? 1 : 0, row_of(out, m, first), (blasint)out.row);
    }
}

void REAL(product_onto)(const machine *on, matrix out, matrix base, matrix a, matrix b)
{
    REAL(copy)(on, out, base);
    REAL(product)(on, out, a, b, PRODUCT_ADD);
}
