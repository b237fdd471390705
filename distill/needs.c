/* SPDX-License-Identifier: MIT */
#include "distill/needs.h"

#include <cblas.h>
#include <inttypes.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>

/* NaN where queries and keys give no numbers. */
static double need_of(const activations *a, int64_t layer, int64_t head, double lambda, dof_room *room)
{
    double sum = 0;
    for (int64_t w = 0; w < a->windows; w++) {
        const dof_text text = activations_text(a, layer, head, w);
        dof_value n;
        sum += dof_attention(room, &text, lambda, &n) ? n.whole : NAN;
    }
    return sum / (double)a->windows;
}

static int find_largest(const activations *a, const double *heads, double *layers, io_error *error)
{
    for (int64_t n = 0; n < a->layers * a->heads_q; n++) {
        double *const layer = &layers[n / a->heads_q];
        if (isnan(heads[n]))
            return io_fail(error, EXIT_INPUT,
                           "layer %" PRId64 ", head %" PRId64 ": its queries and keys give no numbers",
                           n / a->heads_q, n % a->heads_q);
        *layer = n % a->heads_q == 0 ? heads[n] : fmax(*layer, heads[n]);
    }
    return 0;
}

int activations_needs(const activations *a, double lambda, int threads, double *layers, io_error *error)
{
    const int64_t count = a->layers * a->heads_q;
    double *const heads = calloc((size_t)count, sizeof *heads);
    dof_room *const rooms = calloc((size_t)threads, sizeof *rooms);
    int status = heads && rooms ? 0 : io_fail(error, EXIT_INTERNAL, "out of memory for degrees of freedom");
    for (int i = 0; !status && i < threads; i++)
        status = dof_room_open(&rooms[i], a->tokens, a->channels, true, error);
    /* Heads are shared out here, so that bits do not depend on threads. */
    openblas_set_num_threads(1);
    if (!status) {
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
        for (int64_t n = 0; n < count; n++)
            heads[n] = need_of(a, n / a->heads_q, n % a->heads_q, lambda, &rooms[omp_get_thread_num()]);
        status = find_largest(a, heads, layers, error);
    }
    for (int i = 0; rooms && i < threads; i++)
        dof_room_close(&rooms[i]);
    free(rooms);
    free(heads);
    return status;
}
