/* SPDX-License-Identifier: MIT
 * A fuzz target is one file with LLVMFuzzerTestOneInput. clang links it with libFuzzer (LOAM_FUZZ); any
 * compiler links it with replay.c, which runs it on the files of the corpus. */
#ifndef LOAM_TESTS_FUZZ_FUZZ_H
#define LOAM_TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The bytes as a seekable stream. */
static inline FILE *fuzz_stream(const uint8_t *data, size_t size)
{
    return fmemopen((void *)(uintptr_t)data, size, "rb");
}

#endif
