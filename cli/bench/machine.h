/* SPDX-License-Identifier: MIT
 * Where, when and from what a measurement comes. */
#ifndef LOAM_CLI_BENCH_MACHINE_H
#define LOAM_CLI_BENCH_MACHINE_H

typedef struct bench_machine {
    char cpu[96];       /* "AMD EPYC", or "unknown" */
    char features[48];  /* "avx2 avx512 avx512bf16", or "portable" */
    char compiler[96];  /* "gcc 12.2.0" */
    char date[32];      /* "2026-11-21T14:00:00Z" */
    const char *commit; /* "1a2b3c4d5e6f", with "+" where the tree had changes; "unknown" without git */
    long cores;
    double memory; /* bytes */
} bench_machine;

void bench_machine_read(bench_machine *machine);

#endif
