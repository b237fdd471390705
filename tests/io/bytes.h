/* SPDX-License-Identifier: MIT
 * The bytes of files, right and wrong, for the tests of the readers. */
#ifndef LOAM_TESTS_IO_BYTES_H
#define LOAM_TESTS_IO_BYTES_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef struct bytes {
    size_t count;
    unsigned char at[4096];
} bytes;

/* A .npy file of this version and dictionary, then `data_bytes` bytes of float32 0.0, 1.0, 2.0, ... */
bytes npy_bytes(int major, const char *dictionary, size_t data_bytes);
/* A .safetensors file: the length of the header as told, the header, then data as above. */
bytes safetensors_bytes(uint64_t told, const char *header, size_t data_bytes);
bytes text_bytes(const char *text);

/* An open stream of them; the bytes must outlive it. */
FILE *open_bytes(const bytes *b);
void save_bytes(const char *path, const bytes *b);

#endif
