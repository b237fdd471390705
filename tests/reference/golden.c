/* SPDX-License-Identifier: MIT */
#include "tests/reference/golden.h"

#include "tests/support/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 48, WORD_BYTES = 8 };

static uint64_t little_endian(const unsigned char *bytes)
{
    uint64_t x = 0;
    for (int i = WORD_BYTES - 1; i >= 0; i--)
        x = x << 8 | bytes[i];
    return x;
}

int golden_open(golden *g, const char *path)
{
    enum { MOST = 1 << 24 };
    memset(g, 0, sizeof *g);
    FILE *file = fopen(path, "rb");
    if (!file) {
        perror(path);
        return -1;
    }
    g->bytes = memory_zeroed(MOST, 1);
    g->size = (int64_t)fread(g->bytes, 1, MOST, file);
    fclose(file);
    return 0;
}

void golden_close(golden *g)
{
    free(g->bytes);
    memset(g, 0, sizeof *g);
}

double *golden_array(const golden *g, const char *name, int64_t *count)
{
    for (int64_t at = 0; at + NAME_BYTES + WORD_BYTES <= g->size;) {
        const unsigned char *record = g->bytes + at, *data = record + NAME_BYTES + WORD_BYTES;
        const int64_t n = (int64_t)little_endian(record + NAME_BYTES);
        if (n < 0 || n > (g->size - at) / WORD_BYTES) return NULL;
        if (strncmp((const char *)record, name, NAME_BYTES) == 0) {
            double *x = memory_zeroed((size_t)n, sizeof *x);
            for (int64_t i = 0; i < n; i++) {
                const uint64_t bits = little_endian(data + i * WORD_BYTES);
                memcpy(&x[i], &bits, sizeof bits);
            }
            *count = n;
            return x;
        }
        at += NAME_BYTES + WORD_BYTES + n * WORD_BYTES;
    }
    return NULL;
}
