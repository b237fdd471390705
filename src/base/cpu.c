/* SPDX-License-Identifier: MIT */
#include "src/base/cpu.h"

#include "loam.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

static const char *const isa_names[CPU_ISAS] = { "portable", "avx2", "avx512", "avx512bf16" };

const char *cpu_isa_name(cpu_isa isa) { return isa_names[isa]; }

cpu_isa cpu_isa_detect(void)
{
#if defined __x86_64__
    __builtin_cpu_init();
    const int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                     __builtin_cpu_supports("bmi2"); /* every x86 CPU with AVX2 has F16C, too */
    const int avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                       __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (avx2 && avx512) return __builtin_cpu_supports("avx512bf16") ? CPU_AVX512BF16 : CPU_AVX512;
    return avx2 ? CPU_AVX2 : CPU_PORTABLE;
#else
    return CPU_PORTABLE;
#endif
}

cpu_isa cpu_isa_allowed(void)
{
    const cpu_isa have = cpu_isa_detect();
    const char *limit = getenv("LOAM_ISA");
    if (!limit || !*limit) return have;
    for (int isa = CPU_ISAS - 1; isa > CPU_PORTABLE; isa--)
        if (strcmp(limit, isa_names[isa]) == 0) return have < (cpu_isa)isa ? have : (cpu_isa)isa;
    return CPU_PORTABLE;
}

const char *loam_cpu_features(void)
{
    switch (cpu_isa_allowed()) {
    case CPU_AVX512BF16: return "avx2 avx512 avx512bf16";
    case CPU_AVX512: return "avx2 avx512";
    case CPU_AVX2: return "avx2";
    default: return "";
    }
}

int loam_max_threads(void) { return omp_get_max_threads(); }
