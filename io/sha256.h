/* SPDX-License-Identifier: MIT
 * SHA-256 (FIPS 180-4), as sha256sum prints it. */
#ifndef LOAM_IO_SHA256_H
#define LOAM_IO_SHA256_H

#include <stddef.h>
#include <stdint.h>

enum { SHA256_BYTES = 32, SHA256_HEX = 65 };

typedef struct sha256 {
    uint32_t state[8];
    uint64_t bytes;
    unsigned char block[64];
} sha256;

sha256 sha256_begin(void);
void sha256_add(sha256 *s, const void *bytes, size_t count);
/* Of all that was added; nothing can be added after it. */
void sha256_end(sha256 *s, unsigned char digest[SHA256_BYTES]);
/* The same in hexadecimal, with a 0 behind it; returns `text`. */
const char *sha256_hex(sha256 *s, char text[SHA256_HEX]);

#endif
