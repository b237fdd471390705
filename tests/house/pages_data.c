/* SPDX-License-Identifier: MIT
 * Writes the small files that the commands on the pages read: two heads, 16 tokens and one more, 8
 * channels. */
#include "io/npy.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { HEADS = 2, TOKENS = 16, DIM = 8 };

/* Scattered numbers in [-1, 1). */
static double scattered(void)
{
    static unsigned seed = 1;
    seed = seed * 1664525u + 1013904223u;
    return (double)(seed >> 8) / 8388608.0 - 1;
}

static double value_of(const char *name)
{
    const double x = scattered();
    if (name[0] == 'g') return -x * x;
    if (name[0] == 'b' || strcmp(name, "ridge") == 0) return fabs(x) + 0.01;
    return name[0] == 'w' ? copysign(1 / sqrt(DIM), x) : x;
}

static int write_array(const char *name, int rank, const int64_t *shape)
{
    io_error error;
    array a;
    char path[64];
    snprintf(path, sizeof path, "%s.npy", name);
    int status = array_create(&a, LOAM_F32, rank, shape, name, &error);
    if (status) return status;
    for (int64_t index = 0; index < a.count; index++)
        array_set(&a, index, value_of(name));
    status = npy_write(path, &a, &error);
    array_free(&a);
    if (status) fprintf(stderr, "%s\n", error.text);
    return status;
}

int main(void)
{
    static const char *const rows[] = { "q", "k", "v", "r", "w", "gates", "do", NULL }, *const numbers[] = {
        "g", "beta", NULL
    };
    int status = write_array("ridge", 1, (int64_t[]){ HEADS });
    for (int step = 0; step < 2; step++) {
        const int64_t shape[] = { HEADS, step ? 1 : TOKENS, DIM };
        char name[16];
        for (int i = 0; rows[i] && !status; i++) {
            snprintf(name, sizeof name, step ? "%s1" : "%s", rows[i]);
            status = write_array(name, 3, shape);
        }
        for (int i = 0; numbers[i] && !status; i++) {
            snprintf(name, sizeof name, step ? "%s1" : "%s", numbers[i]);
            status = write_array(name, 2, shape);
        }
    }
    return status;
}
