/* SPDX-License-Identifier: MIT
 * The instruction sets of this CPU, and the one that kernels may use. */
#ifndef LOAM_BASE_CPU_H
#define LOAM_BASE_CPU_H

/* In ascending order: a CPU that has one of them has all before it. */
typedef enum cpu_isa { CPU_PORTABLE, CPU_AVX2, CPU_AVX512, CPU_AVX512BF16, CPU_ISAS } cpu_isa;

/* The largest set that this CPU and operating system support. */
cpu_isa cpu_isa_detect(void);
/* The same, but no more than the environment variable LOAM_ISA names; an unknown name allows CPU_PORTABLE. */
cpu_isa cpu_isa_allowed(void);
const char *cpu_isa_name(cpu_isa isa);

#endif
