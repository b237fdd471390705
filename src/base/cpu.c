/* SPDX-License-Identifier: MIT */
#define _DEFAULT_SOURCE
#include "src/base/cpu.h"

#include "loam.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

#if defined __x86_64__ && defined __clang__
#include <cpuid.h>
#endif
#if defined LOAM_HAVE_AMXBF16 && defined __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

static const char *const isa_names[CPU_ISAS] = { "portable", "avx2", "avx512", "avx512bf16", "amxbf16" };

const char *cpu_isa_name(cpu_isa isa) { return isa_names[isa]; }

#if defined __x86_64__
#if defined LOAM_HAVE_AMXBF16 && defined __linux__
/* gcc remembers CPUID, which takes microseconds in a virtual machine; clang 14 has no name for it. */
static bool has_amx(void)
{
#if defined __clang__
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 22 & 1) && (d >> 24 & 1);
#else
    return __builtin_cpu_supports("amx-bf16") && __builtin_cpu_supports("amx-tile");
#endif
}

/* Linux gives the tile registers to processes that ask for them; to ask again changes nothing. */
static bool amx_granted(void)
{
    enum { REQUEST_STATE = 0x1023, TILE_DATA = 18 };
    return has_amx() && syscall(SYS_arch_prctl, REQUEST_STATE, TILE_DATA) == 0;
}
#else
static bool amx_granted(void) { return false; }
#endif

static cpu_isa detect(cpu_isa most)
{
    __builtin_cpu_init();
    cpu_features f = {
        .avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                __builtin_cpu_supports("bmi2"), /* every x86 CPU with AVX2 has F16C, too */
        .avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"),
        .avx512bf16 = __builtin_cpu_supports("avx512bf16"),
    };
    f.amx = most >= CPU_AMXBF16 && f.avx512bf16 && amx_granted();
    const cpu_isa have = cpu_isa_of(&f);
    return have < most ? have : most;
}
#else
static cpu_isa detect(cpu_isa most) { return (void)most, CPU_PORTABLE; }
#endif

cpu_isa cpu_isa_allowed(void)
{
    const char *limit = getenv("LOAM_ISA");
    if (!limit || !*limit) return detect(CPU_ISAS - 1);
    for (int isa = CPU_ISAS - 1; isa > CPU_PORTABLE; isa--)
        if (strcmp(limit, isa_names[isa]) == 0) return detect((cpu_isa)isa);
    return CPU_PORTABLE;
}

bool cpu_isa_pays_here(cpu_isa isa)
{
#if defined __x86_64__
    __builtin_cpu_init();
    return cpu_isa_pays(isa, __builtin_cpu_is("intel"));
#else
    return cpu_isa_pays(isa, false);
#endif
}

const char *loam_cpu_features(void)
{
    switch (cpu_isa_allowed()) {
    case CPU_AMXBF16: return "avx2 avx512 avx512bf16 amxbf16";
    case CPU_AVX512BF16: return "avx2 avx512 avx512bf16";
    case CPU_AVX512: return "avx2 avx512";
    case CPU_AVX2: return "avx2";
    default: return "";
    }
}

int loam_max_threads(void) { return omp_get_max_threads(); }
