/* SPDX-License-Identifier: MIT */
#include "lm/tuned.h"

#include "io/half.h"
#include "lm/arrays.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The bit of mixer_options.low of what may stand beside a part; LOWS: nothing. */
static int low_of(lm_part part)
{
    switch (part) {
    case LM_Q: return LOW_Q;
    case LM_K: return LOW_K;
    case LM_V: return LOW_V;
    case LM_O: return LOW_OUT;
    default: return LOWS;
    }
}

static const parameter *low_array(const lm_tuned *t, lm_part part, int64_t layer, role first)
{
    char name[LM_ARRAY_TEXT];
    if (low_of(part) == LOWS) return NULL;
    snprintf(name, sizeof name, "layer%lld.%s", (long long)layer,
             mixer_array_name((role)(first + (role)low_of(part))));
    return lm_array_find(t->net, name);
}

static int64_t count_of(matrix x) { return x.rows * x.width; }

/* Owned by the caller. */
static int fetch(const lm_tuned *t, const parameter *p, float **out, io_error *error)
{
    loam_error reason;
    const size_t bytes = (size_t)count_of(p->x) * sizeof **out;
    *out = malloc(bytes);
    if (!*out) return io_fail(error, EXIT_INTERNAL, "out of memory for %s", p->name);
    return machine_download(t->on, *out, p->x.data, bytes, &reason)
               ? io_fail(error, EXIT_INTERNAL, "%s", reason.text)
               : 0;
}

/* x += A B. */
static int add_low(const lm_tuned *t, lm_part part, int64_t layer, matrix shape, float *x, io_error *error)
{
    const parameter *first = low_array(t, part, layer, ROLE_Q_LOW_1),
                    *second = low_array(t, part, layer, ROLE_Q_LOW_2);
    float *a = NULL, *b = NULL;
    if (!first || !second) return 0;
    int status = fetch(t, first, &a, error);
    if (!status) status = fetch(t, second, &b, error);
    for (int64_t i = 0; !status && i < shape.rows; i++)
        for (int64_t j = 0; j < shape.width; j++) {
            double sum = 0;
            for (int64_t r = 0; r < first->x.width; r++)
                sum += (double)a[i * first->x.width + r] * (double)b[r * shape.width + j];
            x[i * shape.width + j] = (float)((double)x[i * shape.width + j] + sum);
        }
    free(a);
    free(b);
    return status;
}

void lm_tuned_close(const lm_tuned *t)
{
    free(t->last->x);
    *t->last = (lm_tuned_part){ 0 };
}

/* Makes the part the last one. */
static int make(const lm_tuned *t, const parameter *p, lm_part part, int64_t layer, io_error *error)
{
    const bool queries = part == LM_Q || part == LM_Q_BIAS;
    lm_tuned_part *const last = t->last;
    if (last->x && last->part == part && last->layer == layer) return 0;
    lm_tuned_close(t);
    int status = fetch(t, p, &last->x, error);
    if (!status) status = add_low(t, part, layer, p->x, last->x, error);
    /* As lm_pretrained_fill took them. */
    for (int64_t i = 0; !status && queries && lm_files_config(t->files)->scale_by_layer && i < count_of(p->x);
         i++)
        last->x[i] *= (float)(layer + 1);
    last->part = part, last->layer = layer;
    if (status) lm_tuned_close(t);
    return status;
}

static void put(void *out, int64_t at, loam_dtype dtype, float x)
{
    if (dtype == LOAM_F32)
        ((float *)out)[at] = x;
    else
        ((uint16_t *)out)[at] = dtype == LOAM_BF16 ? bf16_from_float(x) : f16_from_double((double)x);
}

int lm_tuned_read(const void *tuned, lm_part part, int64_t layer, int64_t first, int64_t count,
                  loam_dtype dtype, void *out, io_error *error)
{
    const lm_tuned *t = tuned;
    char name[LM_ARRAY_TEXT];
    int64_t rows, columns;
    const parameter *p = lm_array_find(t->net, lm_array_text(part, layer, name));
    lm_part_shape(lm_files_config(t->files), part, layer, &rows, &columns);
    if (!p || (p->frozen && !low_array(t, part, layer, ROLE_Q_LOW_1)))
        return lm_files_read(t->files, part, layer, first, count, dtype, out, error);
    int status = make(t, p, part, layer, error);
    if (status) return status;
    const bool turned = lm_array_of(part).turned;
    const int64_t there = turned ? p->x.width : p->x.rows, left = there - first;
    const int64_t here = left < count ? left > 0 ? left : 0 : count;
    for (int64_t i = 0; i < here; i++)
        for (int64_t c = 0; c < columns; c++)
            put(out, i * columns + c, dtype,
                t->last->x[turned ? c * p->x.width + first + i : (first + i) * columns + c]);
    if (here == count) return 0;
    /* Positions that training has none of. */
    const size_t each = dtype == LOAM_F32 ? sizeof(float) : sizeof(uint16_t);
    return lm_files_read(t->files, part, layer, first + here, count - here, dtype,
                         (char *)out + (size_t)(here * columns) * each, error);
}
