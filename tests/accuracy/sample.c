/* SPDX-License-Identifier: MIT */
#include "tests/accuracy/sample.h"

#include "tests/support/element.h"
#include "tests/support/memory.h"
#include "tests/support/random.h"
#include "tests/support/real.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STREAM_Q = 300, STREAM_K, STREAM_V, STREAM_PROBE, STREAM_GRAD, STREAM_KIND };

static const char *const names[SAMPLE_KINDS] = { "normal", "unit",     "aniso",  "shift 4", "shift 100",
                                                 "self",   "rope",     "equal",  "one key", "dominant",
                                                 "steep",  "layer 20", "layer 3" };

const char *sample_kind_name(sample_kind kind) { return names[kind]; }

static double *draw(uint64_t seed, uint64_t stream, int64_t count, double deviation)
{
    double *x = memory_zeroed((size_t)count, sizeof *x);
    rng r = rng_make(seed, stream);
    rng_fill_normal(&r, x, count, 0, deviation);
    return x;
}

static double dot(const double *x, const double *y, int64_t n)
{
    double sum = 0;
    for (int64_t c = 0; c < n; c++)
        sum += x[c] * y[c];
    return sum;
}

static void normalise(double *x, int64_t n)
{
    const double size = sqrt(dot(x, x, n));
    for (int64_t c = 0; c < n; c++)
        x[c] /= size;
}

/* Rows become orthonormal (Gram-Schmidt, twice for safety). */
static void orthonormalise(double *axes, int64_t d)
{
    for (int64_t r = 0; r < d; r++) {
        for (int64_t e = 0; e < 2 * r; e++) {
            const double along = dot(axes + r * d, axes + e % r * d, d);
            for (int64_t c = 0; c < d; c++)
                axes[r * d + c] -= along * axes[e % r * d + c];
        }
        normalise(axes + r * d, d);
    }
}

static void stretch(double *k, int64_t tokens, int64_t d, uint64_t seed)
{
    double *axes = draw(seed, STREAM_KIND, d * d, 1), *old = memory_zeroed((size_t)d, sizeof *old);
    orthonormalise(axes, d);
    for (int64_t j = 0; j < tokens; j++) {
        memcpy(old, k + j * d, (size_t)d * sizeof *old);
        memset(k + j * d, 0, (size_t)d * sizeof *old);
        for (int64_t r = 0; r < d; r++) {
            const double deviation = 2 * pow(0.05 / 2, (double)r / (double)(d > 1 ? d - 1 : 1));
            for (int64_t c = 0; c < d; c++)
                k[j * d + c] += deviation * old[r] * axes[r * d + c];
        }
    }
    free(axes);
    free(old);
}

/* x <- rotation by position of (common + 0.7 x), pairs of channels at the usual frequencies. */
static void rotate(double *x, const double *common, int64_t first, int64_t tokens, int64_t d)
{
    for (int64_t t = 0; t < tokens; t++) {
        for (int64_t c = 0; c + 1 < d; c += 2) {
            double *at = x + t * d + c;
            const double angle = (double)(first + t) * pow(10000, -(double)c / (double)d);
            const double a = common[c] + 0.7 * at[0], b = common[c + 1] + 0.7 * at[1];
            at[0] = a * cos(angle) - b * sin(angle);
            at[1] = a * sin(angle) + b * cos(angle);
        }
    }
}

static void apply_rope(sample *s, uint64_t seed)
{
    double *common = draw(seed, STREAM_KIND, s->dim, 1.5);
    rotate(s->k, common, 0, s->len_kv, s->dim);
    rotate(s->q, common, s->len_kv - s->len_q, s->len_q, s->dim);
    free(common);
}

static void scale(double *x, int64_t count, double factor)
{
    for (int64_t i = 0; i < count; i++)
        x[i] *= factor;
}

static void shift(double *x, int64_t count, double by)
{
    for (int64_t i = 0; i < count; i++)
        x[i] += by;
}

static void repeat_first(double *x, int64_t tokens, int64_t d)
{
    for (int64_t t = 1; t < tokens; t++)
        memcpy(x + t * d, x, (size_t)d * sizeof *x);
}

/* Adds to each query what raises the score of key 0 above the others by about 30. */
static void pull_to_first(sample *s)
{
    const double factor = 30 * sqrt((double)s->dim) / dot(s->k, s->k, s->dim);
    for (int64_t i = 0; i < s->len_q * s->dim; i++)
        s->q[i] += factor * s->k[i % s->dim];
}

/* Largest |q . k| / sqrt(d) becomes 80. */
static void steepen(sample *s)
{
    double most = 0;
    for (int64_t i = 0; i < s->len_q; i++)
        for (int64_t j = 0; j < s->len_kv; j++)
            most = fmax(most, fabs(dot(s->q + i * s->dim, s->k + j * s->dim, s->dim)));
    scale(s->q, s->len_q * s->dim, 80 * sqrt((double)s->dim) / most);
}

static void take_layer(sample *s, int number)
{
    real_layer layer = real_read(number);
    const int64_t d = s->dim;
    for (int64_t t = 0; t < s->len_kv; t++) {
        real_row(&layer, SLOT_K, 0, t, d, s->k + t * d);
        real_row(&layer, SLOT_V, 0, t, d, s->v + t * d);
    }
    for (int64_t t = 0; t < s->len_q; t++)
        real_row(&layer, SLOT_Q, 0, s->len_kv - s->len_q + t, d, s->q + t * d);
    real_free(&layer);
}

static void apply(sample_kind kind, sample *s, uint64_t seed)
{
    const int64_t d = s->dim, keys = s->len_kv * d;
    switch (kind) {
    case SAMPLE_UNIT:
        for (int64_t t = 0; t < s->len_kv; t++)
            normalise(s->k + t * d, d);
        for (int64_t t = 0; t < s->len_q; t++)
            normalise(s->q + t * d, d);
        break;
    case SAMPLE_ANISO: stretch(s->k, s->len_kv, d, seed); break;
    case SAMPLE_SHIFT_4: shift(s->k, keys, 4); break;
    case SAMPLE_SHIFT_100: shift(s->k, keys, 100); break;
    case SAMPLE_SELF: memcpy(s->q, s->k + keys - s->len_q * d, (size_t)(s->len_q * d) * sizeof *s->q); break;
    case SAMPLE_ROPE: apply_rope(s, seed); break;
    case SAMPLE_EQUAL: repeat_first(s->k, s->len_kv, d); break;
    case SAMPLE_ONE: s->window = 1; break;
    case SAMPLE_DOMINANT: pull_to_first(s); break;
    case SAMPLE_STEEP: steepen(s); break;
    case SAMPLE_LAYER_20: take_layer(s, 20); break;
    case SAMPLE_LAYER_3: take_layer(s, 3); break;
    default: break;
    }
}

static void put_on_grid(sample_grid grid, double *x, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        /* What bfloat16 holds and float16 rounds keeps at most 8 bits: both hold the result. */
        x[i] = grid == GRID_F32 ? element_round(LOAM_F32, x[i])
                                : element_round(LOAM_F16, element_round(LOAM_BF16, x[i]));
    }
}

sample sample_make(sample_kind kind, sample_grid grid, int64_t len_q, int64_t len_kv, int64_t dim,
                   double probe_size, uint64_t seed)
{
    const int64_t queries = len_q * dim, keys = len_kv * dim;
    sample s = { .len_q = len_q, .len_kv = len_kv, .dim = dim, .causal = 1 };
    s.q = draw(seed, STREAM_Q, queries, 1);
    s.k = draw(seed, STREAM_K, keys, 1);
    s.v = draw(seed, STREAM_V, keys, 1);
    s.probe = draw(seed, STREAM_PROBE, queries, probe_size);
    s.grad_o = draw(seed, STREAM_GRAD, queries, 1);
    apply(kind, &s, seed);
    put_on_grid(grid, s.q, queries);
    put_on_grid(grid, s.k, keys);
    put_on_grid(grid, s.v, keys);
    put_on_grid(grid, s.probe, queries);
    put_on_grid(grid, s.grad_o, queries);
    return s;
}

void sample_visible(const sample *s, int64_t i, int64_t *lo, int64_t *hi)
{
    const int64_t last = i + s->len_kv - s->len_q;
    *hi = s->causal ? last + 1 : s->len_kv;
    *lo = s->window && last - s->window + 1 > 0 ? last - s->window + 1 : 0;
}

void sample_free(sample *s)
{
    free(s->q);
    free(s->k);
    free(s->v);
    free(s->probe);
    free(s->grad_o);
}
