/* SPDX-License-Identifier: MIT */
#include "distill/reading.h"

#include <stdlib.h>

/* `count` numbers in the machine's memory; in the first of the two passes of `room` there is none yet. */
static const float *send(reading *r, const machine *on, const double *x, int64_t count)
{
    const matrix to = memory_matrix(&r->room, LOAM_F32, 1, 1, count);
    float block[1024];
    for (int64_t first = 0; to.data && first < count; first += 1024) {
        const int64_t these = count - first < 1024 ? count - first : 1024;
        for (int64_t i = 0; i < these; i++)
            block[i] = (float)x[first + i];
        machine_upload(on, (float *)to.data + first, block, (size_t)these * sizeof *block);
    }
    return to.data;
}

static const float *send_wide(reading *r, const machine *on, const student *s, int64_t layer,
                              student_array which, int64_t rows)
{
    const int64_t width = 2 * s->channels;
    const matrix to = memory_matrix(&r->room, LOAM_F32, 1, rows, width);
    float row[2 * LOAM_MAX_DIM];
    for (int64_t i = 0; to.data && i < rows; i++) {
        student_wide_row(s, layer, which, i, row);
        machine_upload(on, (float *)to.data + i * width, row, (size_t)width * sizeof *row);
    }
    return to.data;
}

/* What is other of an untied student. */
static void send_untied(reading *r, const student *s, const machine *on, int64_t layer)
{
    const int64_t heads = s->heads, wide = 2 * s->channels;
    lm_features *const f = &r->layers[layer];
    f->untied = true;
    f->z = send_wide(r, on, s, layer, STUDENT_Z, heads * f->features);
    f->shift = send_wide(r, on, s, layer, STUDENT_SHIFT, heads);
    f->balance = send_wide(r, on, s, layer, STUDENT_BALANCE, heads * wide);
    f->balance_keys = send_wide(r, on, s, layer, STUDENT_BALANCE_KEYS, heads * wide);
}

static void send_all(reading *r, const student *s, const machine *on)
{
    const int64_t heads = s->heads, d = s->channels;
    for (int64_t i = 0; i < s->layers; i++) {
        const student_layer *l = &s->layer[i];
        const int64_t M = l->features;
        r->layers[i] = (lm_features){ .features = M,
                                      .shared = s->queries > 1,
                                      .z = send(r, on, l->z, heads * M * d),
                                      .log_alpha = send(r, on, l->log_alpha, heads * M),
                                      .shift = send(r, on, l->shift, heads * d),
                                      .balance = send(r, on, l->balance, heads * d * d),
                                      .balance_keys = send(r, on, l->balance_keys, heads * d * d),
                                      .gain = send(r, on, l->gain, heads * s->queries) };
        if (l->z_keys) send_untied(r, s, on, i);
    }
}

int reading_open(reading *r, const student *s, const machine *on, io_error *error)
{
    *r = (reading){ .layers = calloc((size_t)s->layers, sizeof *r->layers) };
    if (r->layers) {
        send_all(r, s, on);
        if (memory_open(&r->room, on)) {
            send_all(r, s, on);
            return 0;
        }
    }
    reading_close(r);
    return io_fail(error, EXIT_INTERNAL, "out of memory for features");
}

void reading_close(reading *r)
{
    memory_close(&r->room);
    free(r->layers);
    *r = (reading){ 0 };
}
