/* SPDX-License-Identifier: MIT */
#include "dof/heads.h"

#include "random/random.h"

#include <cblas.h>
#include <inttypes.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

struct dof_heads {
    const lm_model *model;
    const lm_config *config;
    dof_options options;
    int64_t heads, windows, longest;
    int64_t window, *begins; /* the present one; of each its first token among those that are sampled from */
    bool sampled;
    int32_t *drawn; /* [heads][samples]: query i, or, from the last on, key i */
    float *sample;  /* [heads][samples][head_dim] */
    float *q, *k;   /* of a window and layer, in host memory */
    bool *bad;      /* [heads] */
    dof_room *rooms;
    int threads;
    dof_value *values[DOF_MODES]; /* [heads] */
    double *squares;
};

static int64_t rows_of(const dof_heads *h) { return h->begins[h->windows]; }

/* ---- the sample */

static int draw_samples(dof_heads *h, io_error *error)
{
    const int64_t there = 2 * rows_of(h), samples = h->options.samples;
    if (there > INT32_MAX)
        return io_fail(error, EXIT_USAGE, "%" PRId64 " tokens to sample from: expected less than 2^30",
                       rows_of(h));
    if (samples > there)
        return io_fail(error, EXIT_USAGE,
                       "--samples %" PRId64 ": the texts have %" PRId64 " queries and keys of each head",
                       samples, there);
    int32_t *table = malloc((size_t)there * sizeof *table);
    if (!table) return io_fail(error, EXIT_INTERNAL, "out of memory for samples");
    for (int64_t n = 0; n < h->heads; n++)
        random_distinct((random_stream){ h->options.seed, (uint64_t)n }, there, samples, table,
                        h->drawn + n * samples);
    free(table);
    return 0;
}

/* What of a head's sample lies in the present window: rows of a layer's queries, and of its keys. */
static void take_rows(dof_heads *h, int64_t layer, int64_t head)
{
    const lm_config *c = h->config;
    const int64_t dim = c->head_dim, samples = h->options.samples, place = layer * c->heads_q + head;
    const int64_t begin = h->begins[h->window], end = h->begins[h->window + 1], queries = rows_of(h);
    const int64_t key_head = head / (c->heads_q / c->heads_kv);
    for (int64_t n = 0; n < samples; n++) {
        const int64_t drawn = h->drawn[place * samples + n];
        const bool key = drawn >= queries;
        const int64_t at = drawn - (key ? queries : 0);
        if (at < begin || at >= end) continue;
        const int64_t row = at - begin + h->options.skip;
        const float *const from = key ? h->k + (row * c->heads_kv + key_head) * dim
                                      : h->q + (row * c->heads_q + head) * dim;
        memcpy(h->sample + (place * samples + n) * dim, from, (size_t)dim * sizeof *from);
    }
}

/* ---- open and close */

static int check(const dof_options *o, const int64_t *lengths, int64_t windows, io_error *error)
{
    int64_t rows = 0;
    for (int64_t w = 0; w < windows; w++)
        rows += lengths[w] > o->skip ? lengths[w] - o->skip : 0;
    if (rows == 0)
        return io_fail(error, EXIT_USAGE, "--skip %" PRId64 ": no window has more tokens", o->skip);
    return 0;
}

static bool take(dof_heads *h, const int64_t *lengths)
{
    const lm_config *c = h->config;
    const size_t heads = (size_t)h->heads, dim = (size_t)c->head_dim,
                 samples = h->sampled ? (size_t)h->options.samples : 0;
    h->begins = calloc((size_t)h->windows + 1, sizeof *h->begins);
    for (int64_t w = 0; h->begins && w < h->windows; w++) {
        const int64_t rows = lengths[w] - h->options.skip;
        h->begins[w + 1] = h->begins[w] + (rows > 0 ? rows : 0);
        if (lengths[w] > h->longest) h->longest = lengths[w];
    }
    h->drawn = calloc(heads * samples + 1, sizeof *h->drawn);
    h->sample = calloc(heads * samples + 1, dim * sizeof *h->sample);
    h->q = calloc((size_t)(h->longest * c->heads_q), dim * sizeof *h->q);
    h->k = calloc((size_t)(h->longest * c->heads_kv), dim * sizeof *h->k);
    h->bad = calloc(heads, sizeof *h->bad);
    h->squares = calloc(heads, sizeof *h->squares);
    h->threads = h->options.threads < h->heads ? h->options.threads : (int)h->heads;
    h->rooms = calloc((size_t)h->threads, sizeof *h->rooms);
    bool there = h->begins && h->drawn && h->sample && h->q && h->k && h->bad && h->squares && h->rooms;
    for (int mode = 0; mode < DOF_MODES; mode++)
        there &= (h->values[mode] = calloc(heads, sizeof *h->values[mode])) != NULL;
    return there;
}

static int open_rooms(dof_heads *h, io_error *error)
{
    const bool attention = h->options.modes[DOF_ATTN];
    const int64_t rows = h->sampled ? h->options.samples : 0,
                  most = attention && h->longest > rows ? h->longest : rows;
    int status = 0;
    for (int n = 0; !status && n < h->threads; n++)
        status = dof_room_open(&h->rooms[n], most, h->config->head_dim, attention, error);
    return status;
}

int dof_heads_open(dof_heads **made, const lm_model *m, const dof_options *options, const int64_t *lengths,
                   int64_t windows, io_error *error)
{
    *made = NULL;
    int status = check(options, lengths, windows, error);
    if (status) return status;
    dof_heads *h = calloc(1, sizeof *h);
    if (!h) return io_fail(error, EXIT_INTERNAL, "out of memory for heads");
    h->model = m, h->config = lm_model_config(m), h->options = *options;
    h->heads = h->config->layers * h->config->heads_q, h->windows = windows, h->window = -1;
    h->sampled = options->modes[DOF_REL] || options->modes[DOF_GAUSS] || options->modes[DOF_ABS];
    /* Heads are shared out here, so that bits do not depend on threads. */
    openblas_set_num_threads(1);
    if (!take(h, lengths)) status = io_fail(error, EXIT_INTERNAL, "out of memory for samples");
    if (!status && h->sampled) status = draw_samples(h, error);
    if (!status) status = open_rooms(h, error);
    if (status)
        dof_heads_close(h);
    else
        *made = h;
    return status;
}

void dof_heads_close(dof_heads *h)
{
    if (!h) return;
    for (int n = 0; h->rooms && n < h->threads; n++)
        dof_room_close(&h->rooms[n]);
    for (int mode = 0; mode < DOF_MODES; mode++)
        free(h->values[mode]);
    free(h->begins);
    free(h->drawn);
    free(h->sample);
    free(h->q);
    free(h->k);
    free(h->bad);
    free(h->squares);
    free(h->rooms);
    free(h);
}

/* ---- windows */

void dof_heads_window(dof_heads *h) { h->window++; }

static int check_heads(const dof_heads *h, int64_t first, int64_t count, io_error *error)
{
    for (int64_t n = first; n < first + count; n++)
        if (h->bad[n])
            return io_fail(error, EXIT_INPUT,
                           "layer %" PRId64 ", head %" PRId64 ": its queries and keys give no numbers",
                           n / h->config->heads_q, n % h->config->heads_q);
    return 0;
}

static void attend(dof_heads *h, int64_t layer, int64_t head, int64_t count, dof_room *room)
{
    const lm_config *c = h->config;
    const int64_t dim = c->head_dim, place = layer * c->heads_q + head;
    const dof_text text = { .q = h->q + head * dim,
                            .k = h->k + head / (c->heads_q / c->heads_kv) * dim,
                            .q_row = c->heads_q * dim,
                            .k_row = c->heads_kv * dim,
                            .count = count,
                            .scale = lm_config_scale(c, layer),
                            .causal = c->architecture != LM_BERT };
    dof_value *const sum = &h->values[DOF_ATTN][place], n;
    h->bad[place] |= !dof_attention(room, &text, h->options.lambda, &n);
    sum->whole += n.whole / (double)h->windows, sum->half += n.half / (double)h->windows;
}

int dof_heads_sink(void *to, int64_t layer, const lm_heads *heads, io_error *error)
{
    dof_heads *const h = to;
    const int64_t per_layer = h->config->heads_q, count = heads->q.rows;
    int status = lm_model_fetch(h->model, h->q, heads->q, error);
    if (!status) status = lm_model_fetch(h->model, h->k, heads->k, error);
    if (status) return status;
#pragma omp parallel for num_threads(h->threads) schedule(dynamic, 1)
    for (int64_t head = 0; head < per_layer; head++) {
        if (h->sampled) take_rows(h, layer, head);
        if (h->options.modes[DOF_ATTN]) attend(h, layer, head, count, &h->rooms[omp_get_thread_num()]);
    }
    return check_heads(h, layer * per_layer, per_layer, error);
}

/* ---- what samples tell */

static void solve_head(dof_heads *h, int64_t n, dof_room *room)
{
    const dof_options *o = &h->options;
    const double scale = lm_config_scale(h->config, n / h->config->heads_q);
    dof_sample(room, h->sample + n * o->samples * h->config->head_dim, o->samples, sqrt(scale));
    for (int64_t i = 0; i < o->samples; i++)
        h->squares[n] += room->squares[i] / (double)o->samples;
    for (int mode = 0; mode < DOF_MODES; mode++) {
        if (!o->modes[mode] || mode == DOF_ATTN) continue;
        dof_value *const v = &h->values[mode][n];
        h->bad[n] |= !dof_kernel(room, (dof_mode)mode, o->lambda, o->samples, &v->whole, NULL) ||
                     !dof_kernel(room, (dof_mode)mode, o->lambda, o->samples / 2, &v->half, NULL);
    }
}

int dof_heads_solve(dof_heads *h, void (*told)(void *to), void *to, io_error *error)
{
    if (!h->sampled) return 0;
#pragma omp parallel for num_threads(h->threads) schedule(dynamic, 1)
    for (int64_t n = 0; n < h->heads; n++) {
        solve_head(h, n, &h->rooms[omp_get_thread_num()]);
#pragma omp critical
        if (told) told(to);
    }
    return check_heads(h, 0, h->heads, error);
}

const dof_value *dof_heads_values(const dof_heads *h, dof_mode mode) { return h->values[mode]; }
const double *dof_heads_squares(const dof_heads *h) { return h->squares; }
