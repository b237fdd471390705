/* SPDX-License-Identifier: MIT
 * Which instruction sets a kernel needs and this CPU has. */
#ifndef LOAM_BASE_CPU_H
#define LOAM_BASE_CPU_H

/* In order: each machine that has one has those before it. */
typedef enum cpu_isa { CPU_PORTABLE, CPU_AVX2, CPU_AVX512, CPU_AVX512BF16, CPU_ISAS } cpu_isa;

/* The best of this CPU and operating system. */
cpu_isa cpu_isa_detect(void);
/* No more than the environment variable LOAM_ISA names; an unknown name allows only CPU_PORTABLE. */
cpu_isa cpu_isa_allowed(void);
const char *cpu_isa_name(cpu_isa isa);

#endif
