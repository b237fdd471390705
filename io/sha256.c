/* SPDX-License-Identifier: MIT */
#include "io/sha256.h"

#include <stdio.h>
#include <string.h>

/* The first 32 bits of the fractional parts of the cube roots of the first 64 primes. */
static const uint32_t round_constant[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t turn(uint32_t x, int bits) { return x >> bits | x << (32 - bits); }

sha256 sha256_begin(void)
{
    return (sha256){ .state = { 0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c,
                                0x1f83d9ab, 0x5be0cd19 } };
}

static void take_block(sha256 *s, const unsigned char *block)
{
    uint32_t w[64], v[8];
    for (int t = 0; t < 16; t++)
        w[t] = (uint32_t)block[4 * t] << 24 | (uint32_t)block[4 * t + 1] << 16 |
               (uint32_t)block[4 * t + 2] << 8 | block[4 * t + 3];
    for (int t = 16; t < 64; t++) {
        const uint32_t a = w[t - 15], b = w[t - 2];
        w[t] = w[t - 16] + (turn(a, 7) ^ turn(a, 18) ^ a >> 3) + w[t - 7] +
               (turn(b, 17) ^ turn(b, 19) ^ b >> 10);
    }
    memcpy(v, s->state, sizeof v);
    for (int t = 0; t < 64; t++) {
        const uint32_t e = v[4], a = v[0];
        const uint32_t one = v[7] + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) + ((e & v[5]) ^ (~e & v[6])) +
                             round_constant[t] + w[t];
        const uint32_t two = (turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) +
                             ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += one;
        v[0] = one + two;
    }
    for (int i = 0; i < 8; i++)
        s->state[i] += v[i];
}

void sha256_add(sha256 *s, const void *bytes, size_t count)
{
    const unsigned char *from = bytes;
    size_t held = s->bytes % sizeof s->block;
    s->bytes += count;
    while (count > 0) {
        if (held == 0 && count >= sizeof s->block) {
            take_block(s, from);
            from += sizeof s->block, count -= sizeof s->block;
            continue;
        }
        const size_t room = sizeof s->block - held, taken = count < room ? count : room;
        memcpy(s->block + held, from, taken);
        from += taken, count -= taken, held += taken;
        if (held == sizeof s->block) take_block(s, s->block), held = 0;
    }
}

void sha256_end(sha256 *s, unsigned char digest[SHA256_BYTES])
{
    const uint64_t bits = 8 * s->bytes;
    unsigned char tail[72] = { 0x80 };
    const size_t zeros = (119 - s->bytes % 64) % 64; /* one byte 0x80, these, then 8 bytes: whole blocks */
    for (int i = 0; i < 8; i++)
        tail[1 + zeros + (size_t)i] = (unsigned char)(bits >> (56 - 8 * i));
    sha256_add(s, tail, 1 + zeros + 8);
    for (int i = 0; i < SHA256_BYTES; i++)
        digest[i] = (unsigned char)(s->state[i / 4] >> (24 - 8 * (i % 4)));
}

const char *sha256_hex(sha256 *s, char text[SHA256_HEX])
{
    unsigned char digest[SHA256_BYTES];
    sha256_end(s, digest);
    for (int i = 0; i < SHA256_BYTES; i++)
        snprintf(text + 2 * i, 3, "%02x", digest[i]);
    return text;
}
