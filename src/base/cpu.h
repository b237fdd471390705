/* SPDX-License-Identifier: MIT
 * The instruction sets of this CPU, and the one that kernels may use. */
#ifndef LOAM_BASE_CPU_H
#define LOAM_BASE_CPU_H

#include <stdbool.h>

/* In ascending order: a CPU that has one of them has all before it. */
typedef enum cpu_isa { CPU_PORTABLE, CPU_AVX2, CPU_AVX512, CPU_AVX512BF16, CPU_AMXBF16, CPU_ISAS } cpu_isa;

/* What a processor and its operating system have. */
typedef struct cpu_features {
    bool intel; /* the maker */
    bool avx2, avx512, avx512bf16, amx;
} cpu_features;

static inline cpu_isa cpu_isa_of(const cpu_features *f)
{
    cpu_isa have = CPU_PORTABLE;
    if (f->avx2) have = CPU_AVX2;
    if (f->avx2 && f->avx512) have = CPU_AVX512;
    if (have == CPU_AVX512 && f->avx512bf16) have = CPU_AVX512BF16;
    if (have == CPU_AVX512BF16 && f->amx) have = CPU_AMXBF16;
    return have;
}

/* The largest set that this CPU and operating system support, but no more than the environment variable
 * LOAM_ISA names; an unknown name allows CPU_PORTABLE. */
cpu_isa cpu_isa_allowed(void);
const char *cpu_isa_name(cpu_isa isa);

/* Is a set that the processor has worth choosing? Dot products of bfloat16 pairs in vectors have twice the
 * rate of float32's on AMD's processors, half of it on Intel's, where rows that convert to float32 are
 * faster. */
static inline bool cpu_isa_pays(cpu_isa isa, bool intel) { return isa != CPU_AVX512BF16 || !intel; }
/* The same of this processor. */
bool cpu_isa_pays_here(cpu_isa isa);

#endif
