/* SPDX-License-Identifier: MIT */
#include "tests/cli/sequences.h"

#include "io/npy.h"
#include "tests/support/random.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LOCAL "--q q4.npy --k kl.npy --v vl.npy --grad-out do4.npy "
#define RECURRENT "--q q.npy --k k.npy --v v4.npy --grad-out do4.npy "
#define STATE "--state-in s.npy --grad-state-out ds.npy "
#define DECAY "--log-decay g4.npy "
#define BETA "--beta b4.npy "
#define UNIT "--feature-map unit "
#define LSE "--lse lse.npy"
#define TO "--state-out so.npy"
#define PATH "--w w.npy --beta bl.npy "
#define PAIR "--q q.npy --k ku.npy --v v2.npy --grad-out do2.npy --state-in s2.npy --grad-state-out ds2.npy "

const attend_case ATTEND_CASES[] = {
    { "softmax --window 9 --slope slope.npy --key-bias kb.npy --sink sink.npy " LOCAL, LSE, true },
    { "softmax --full --rope 100 --rope-offset 3 " LOCAL, LSE, true },
    { "softmax --q q4.npy --k k.npy --v v2.npy --grad-out do4.npy --rope 100 --rope-layout interleaved", LSE,
      false },
    { "parallax --probe r4.npy " LOCAL, LSE, true },
    { "lla --ridge rt.npy " LOCAL, "--rho rho.npy", true },
    { "lla --log-decay gl.npy " PATH LOCAL, LSE, true },
    { "fox --log-decay gl.npy " LOCAL, LSE, true },
    { "path " PATH LOCAL, LSE, true },
    { "path --log-decay gl.npy " PATH LOCAL, LSE, true },
    { "linear " RECURRENT STATE, TO, false },
    { "linear --feature-map elu --normalise --state-in sn.npy --grad-state-out dsn.npy " RECURRENT, TO,
      false },
    { "retention --log-decay gh.npy " RECURRENT STATE, TO, false },
    { "ssd " DECAY BETA RECURRENT STATE, TO, false },
    { "gla --log-decay gc.npy " RECURRENT STATE, TO, false },
    { "delta " UNIT BETA RECURRENT STATE, TO, false },
    { "gated-delta " UNIT DECAY BETA RECURRENT STATE, TO, false },
    { "kda " UNIT "--log-decay gc.npy " BETA RECURRENT STATE, TO, false },
    { "mesa " UNIT "--ridge rhc.npy " DECAY BETA "--state-in sm.npy --grad-state-out dsm.npy " RECURRENT, TO,
      false },
    { "mesa " UNIT "--ridge 0.5 " RECURRENT, TO, false },
    { "interpolation --linear gated-delta --log-decay g2.npy --beta b2.npy " PAIR, TO, false },
};
const int ATTEND_CASE_COUNT = sizeof ATTEND_CASES / sizeof *ATTEND_CASES;

/* What an input goes along, and its values. */
enum along { QUERIES, KEYS, SEQUENCES, NOTHING };
enum values { NORMAL, UNIT_ROWS, LOG_DECAYS, BETAS, BETAS_BELOW_2, RIDGES, STATES, MESA_STATES };

typedef struct input {
    const char *name;
    enum along along;
    int64_t heads, rows, channels; /* rows: of a state; channels 0: no such axis */
    enum values values;
} input;

static void fill_row(rng *r, double *row, int64_t channels, enum values values)
{
    double square = 0;
    for (int64_t c = 0; c < channels; c++) {
        const double x = rng_normal(r);
        /* One gate in eight forgets all at once. */
        const double gate = rng_one_in(r, 8) ? -60 : -0.1 * x * x;
        row[c] = values == LOG_DECAYS      ? gate
                 : values == BETAS         ? 1 / (1 + exp(-x))
                 : values == BETAS_BELOW_2 ? 2 / (1 + exp(-x))
                 : values == RIDGES        ? 0.2 + x * x
                 : values == STATES        ? 0.3 * x
                                           : x;
        square += x * x;
    }
    for (int64_t c = 0; c < channels && values == UNIT_ROWS; c++)
        row[c] /= sqrt(square);
}

/* [heads][rows][channels] of sequence b. H of MesaNet, the last rows, is a sum of outer products. */
static double *block(const input *in, int which, int64_t b, int64_t rows, int64_t channels)
{
    double *x = calloc((size_t)(in->heads * rows * channels) + 1, sizeof *x);
    assert_non_null(x);
    rng r = rng_make(100 + (uint64_t)which, (uint64_t)b);
    for (int64_t row = 0; row < in->heads * rows; row++)
        fill_row(&r, x + row * channels, channels, in->values == MESA_STATES ? STATES : in->values);
    for (int64_t h = 0; h < in->heads && in->values == MESA_STATES; h++) {
        double *H = x + ((h + 1) * rows - channels) * channels, factor[64 * 64];
        assert_true(channels <= 64);
        memcpy(factor, H, (size_t)(channels * channels) * sizeof *H);
        for (int64_t i = 0; i < channels * channels; i++) {
            H[i] = 0;
            for (int64_t c = 0; c < channels; c++)
                H[i] += factor[i / channels * channels + c] * factor[i % channels * channels + c];
        }
    }
    return x;
}

static int64_t rows_of(const sequences *s, const input *in, int64_t b)
{
    return in->along == QUERIES ? s->queries[b] : in->along == KEYS ? s->keys[b] : in->rows;
}

static void save(const char *directory, const char *name, const array *a)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s.npy", directory, name);
    assert_int_equal(npy_write(path, a, NULL), 0);
}

/* Sequences first .. end - 1, one after the other along their tokens, or as a first axis of states. */
static void save_input(const char *directory, const sequences *s, const input *in, int which, int64_t first,
                       int64_t end, bool one)
{
    const bool state = in->along == SEQUENCES;
    const int64_t channels = in->channels ? in->channels : 1;
    int64_t tokens = 0, shape[4], at = 0;
    int rank = 0;
    if (in->along == NOTHING) end = first = 0, tokens = in->rows;
    for (int64_t b = first; b < end; b++)
        tokens += state ? 0 : rows_of(s, in, b);
    if (state && !one) shape[rank++] = end - first;
    shape[rank++] = in->heads;
    if (in->along != NOTHING) shape[rank++] = state ? in->rows : tokens;
    if (in->channels) shape[rank++] = channels;
    array a;
    assert_int_equal(array_create(&a, LOAM_F64, rank, shape, in->name, NULL), 0);
    for (int64_t b = first; b < (in->along == NOTHING ? 1 : end); b++) {
        const int64_t rows = rows_of(s, in, b);
        double *x = block(in, which, b, rows, channels);
        for (int64_t h = 0; h < in->heads; h++)
            memcpy((double *)a.data + (state ? (at + h * rows) : (h * tokens + at)) * channels,
                   x + h * rows * channels, (size_t)(rows * channels) * sizeof *x);
        at += state ? in->heads * rows : rows;
        free(x);
    }
    save(directory, in->name, &a);
    array_free(&a);
}

void save_integers(const char *path, const int64_t *values, int64_t count, int bytes)
{
    char header[128];
    FILE *stream = fopen(path, "wb");
    assert_non_null(stream);
    snprintf(header, sizeof header, "{'descr': '<i%d', 'fortran_order': False, 'shape': (%d,), }", bytes,
             (int)count);
    fprintf(stream, "\x93NUMPY%c%c%c%c%-117s\n", 1, 0, 118, 0, header);
    for (int64_t i = 0; i < count; i++) {
        const int32_t narrow = (int32_t)values[i];
        fwrite(bytes == 4 ? (const void *)&narrow : &values[i], (size_t)bytes, 1, stream);
    }
    assert_int_equal(fclose(stream), 0);
}

static void save_offsets(const char *directory, const char *name, const int64_t *lengths, int64_t count)
{
    char path[256];
    int64_t at[MOST_SEQUENCES + 1] = { 0 };
    snprintf(path, sizeof path, "%s/%s.npy", directory, name);
    for (int64_t b = 0; b < count; b++)
        at[b + 1] = at[b] + lengths[b];
    save_integers(path, at, count + 1, 8);
}

void save_sequences(const char *directory, const sequences *s, bool one, int64_t first)
{
    const int64_t d = s->dim, dv = s->dim_v, end = one ? first + 1 : s->count;
    const input inputs[] = {
        { "q", QUERIES, 2, 0, d, NORMAL },          { "q4", QUERIES, 4, 0, d, NORMAL },
        { "k", QUERIES, 2, 0, d, NORMAL },          { "v2", QUERIES, 2, 0, dv, NORMAL },
        { "v4", QUERIES, 4, 0, dv, NORMAL },        { "do2", QUERIES, 2, 0, dv, NORMAL },
        { "do4", QUERIES, 4, 0, dv, NORMAL },       { "r4", QUERIES, 4, 0, d, STATES },
        { "rt", QUERIES, 4, 0, 0, RIDGES },         { "kl", KEYS, 2, 0, d, NORMAL },
        { "vl", KEYS, 2, 0, dv, NORMAL },           { "w", KEYS, 2, 0, d, UNIT_ROWS },
        { "gl", KEYS, 4, 0, 0, LOG_DECAYS },        { "bl", KEYS, 2, 0, 0, BETAS_BELOW_2 },
        { "ku", QUERIES, 2, 0, d, UNIT_ROWS },      { "kb", KEYS, 4, 0, 0, NORMAL },
        { "g2", QUERIES, 2, 0, 0, LOG_DECAYS },     { "g4", QUERIES, 4, 0, 0, LOG_DECAYS },
        { "gc", QUERIES, 4, 0, d, LOG_DECAYS },     { "gh", NOTHING, 4, 1, 0, LOG_DECAYS },
        { "b2", QUERIES, 2, 0, 0, BETAS },          { "b4", QUERIES, 4, 0, 0, BETAS },
        { "slope", NOTHING, 4, 1, 0, RIDGES },      { "sink", NOTHING, 4, 1, 0, NORMAL },
        { "rhc", NOTHING, 4, 1, d, RIDGES },        { "s", SEQUENCES, 4, dv, d, STATES },
        { "ds", SEQUENCES, 4, dv, d, STATES },      { "sn", SEQUENCES, 4, dv + 1, d, RIDGES },
        { "dsn", SEQUENCES, 4, dv + 1, d, STATES }, { "s2", SEQUENCES, 2, dv, d, STATES },
        { "ds2", SEQUENCES, 2, dv, d, STATES },     { "sm", SEQUENCES, 4, dv + d, d, MESA_STATES },
        { "dsm", SEQUENCES, 4, dv + d, d, STATES },
    };
    for (int i = 0; i < (int)(sizeof inputs / sizeof *inputs); i++)
        save_input(directory, s, &inputs[i], i, first, end, one);
    save_offsets(directory, "cu", s->queries + first, end - first);
    save_offsets(directory, "cuk", s->keys + first, end - first);
}
