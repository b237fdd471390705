/* SPDX-License-Identifier: MIT */
#include "tests/support/real.h"

#include "io/npy.h"

#include <stdio.h>
#include <stdlib.h>

real_layer real_read(int number)
{
    const char *folder = getenv("LOAM_TEST_DATA");
    real_layer layer;
    for (int which = 0; which < 3; which++) {
        char path[4096];
        io_error error;
        snprintf(path, sizeof path, "%s/smollm2/layer%d-%c.npy", folder ? folder : LOAM_TEST_DATA, number,
                 "qkv"[which]);
        if (npy_read(&layer.x[which], path, &error)) {
            fprintf(stderr, "tests: %s\n", error.text);
            exit(EXIT_FAILURE);
        }
    }
    return layer;
}

void real_free(real_layer *layer)
{
    for (int which = 0; which < 3; which++)
        array_free(&layer->x[which]);
}

void real_row(const real_layer *layer, slot which, int64_t head, int64_t token, int64_t channels, double *x)
{
    const array *a = &layer->x[which];
    const int64_t tokens = a->shape[1], width = a->shape[2];
    const int64_t first = (token % tokens + tokens) % tokens;
    for (int64_t c = 0; c < channels; c++) {
        const int64_t row = head % a->shape[0] * tokens + (first + c / width) % tokens;
        x[c] = array_get(a, row * width + c % width);
    }
}
