/* SPDX-License-Identifier: MIT */
#include "regress/sums.h"

#include <stdlib.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

/* Sums of a tile are added to the totals at its end: shorter chains of rounding errors, and a tile of rows
 * stays in the nearest cache for all lanes. */
enum { TILE_ROWS = 512 };

#define NAME(x) x##_portable
#define TARGET
#define LANES 2
#define FMA(a, b, c) ((a) * (b) + (c))
#include "regress/sums.inc"

#if defined __x86_64__
#include <immintrin.h>

#define NAME(x) x##_avx2
#define TARGET __attribute__((target("avx2,fma")))
#define LANES 4
#define FMA(a, b, c) ((vec_avx2)_mm256_fmadd_pd((__m256d)(a), (__m256d)(b), (__m256d)(c)))
#include "regress/sums.inc"

#define NAME(x) x##_avx512
#define TARGET __attribute__((target("avx512f,avx512dq,fma")))
#define LANES 8
#define FMA(a, b, c) ((vec_avx512)_mm512_fmadd_pd((__m512d)(a), (__m512d)(b), (__m512d)(c)))
#include "regress/sums.inc"
#endif

regress_engine regress_engine_choose(void)
{
    const regress_engine portable = { sums_portable, bin_sums_portable };
#if defined __x86_64__
    const regress_engine avx2 = { sums_avx2, bin_sums_avx2 }, avx512 = { sums_avx512, bin_sums_avx512 };
    const char *limit = getenv("LOAM_ISA");
    if (limit && !strcmp(limit, "portable")) return portable;
    if ((!limit || strcmp(limit, "avx2") != 0) && __builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512dq"))
        return avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return avx2;
#endif
    return portable;
}
