/* SPDX-License-Identifier: MIT */
#include "cli/distill/speed.h"

#include "distill/reading.h"

#include <math.h>
#include <stdlib.h>

enum { KEYS, STATES, FORMS, CHUNK = 512, RUNS = 32 };

/* A text that is read token by token. */
typedef struct reader {
    const lm_model *model;
    lm_text *text;
    double seconds[RUNS];
} reader;

typedef struct speed {
    const distillation *d;
    reading features;
    lm_model *student;
    reader by[FORMS];
    memory room;
    matrix row; /* logits of a token, in the machine's memory and in host memory */
    float *logits;
    int32_t ids[CHUNK];
} speed;

static int64_t runs_behind(int64_t others) { return others < RUNS ? others : RUNS; }

static int64_t most_of(const cells *c)
{
    int64_t most = 0;
    for (int i = 0; i < SPEEDS && c->behind[i] > 0; i++)
        most = c->behind[i] + runs_behind(c->behind[i]);
    return most;
}

void speed_plan(cells *c, const course *of, const lm_session *s)
{
    const lm_config *config = lm_model_config(s->model);
    const int64_t d = config->head_dim, number = s->on.operand == LOAM_F32 ? 4 : 2,
                  first = of->context < 4 ? 1 : of->context / 4;
    int count = 0;
    for (int64_t n = first; count < SPEEDS && n <= 16 * of->context && n + runs_behind(n) <= config->context;
         n *= 2)
        c->behind[count++] = n;
    c->bytes[KEYS] = config->layers * 2 * config->heads_kv * d * number;
    c->bytes[STATES] = config->layers * config->heads_q * of->budget.mean * (d + 2) * (int64_t)sizeof(float);
}

bool speed_known(const cells *c)
{
    bool known = true;
    for (int i = 0; i < SPEEDS && c->behind[i] > 0; i++)
        known = known && !isnan(c->speeds[KEYS][i]);
    return known;
}

/* ---- two models */

static int open_student(speed *s, distillation *d, io_error *error)
{
    const distill_arm *const drawn = distill_arm_at(distill_arm_find("balanced pairs"));
    const lm_session *from = d->session;
    lm_options options = lm_options_default();
    int64_t *const features = calloc((size_t)d->of.layers, sizeof *features);
    student of = { 0 };
    if (!features) return io_fail(error, EXIT_INTERNAL, "out of memory for features");
    for (int64_t i = 0; i < d->of.layers; i++)
        features[i] = d->choice.features;
    int status = distillation_begin(d, &of, drawn, features, NULL, 1, error);
    if (!status) status = reading_open(&s->features, &of, &from->on, error);
    options.weights = lm_model_type(from->model), options.features = s->features.layers;
    if (!status) status = lm_model_open(&s->student, &from->on, from->files, &options, error);
    student_close(&of);
    free(features);
    return status;
}

static matrix take_row(speed *s)
{
    const machine *on = &s->d->session->on;
    return memory_matrix(&s->room, on->dtype, 1, 1, lm_model_config(s->student)->vocabulary);
}

static int open_row(speed *s, io_error *error)
{
    const machine *on = &s->d->session->on;
    (void)take_row(s);
    const bool there = memory_open(&s->room, on);
    if (there) s->row = take_row(s);
    s->logits = on->gpu ? calloc((size_t)lm_model_config(s->student)->vocabulary, sizeof *s->logits)
                        : s->row.data;
    return there && s->logits ? 0 : io_fail(error, EXIT_INTERNAL, "out of memory for logits");
}

static int open_all(speed *s, distillation *d, int64_t most, io_error *error)
{
    s->d = d;
    int status = open_student(s, d, error);
    if (!status) status = open_row(s, error);
    s->by[KEYS].model = d->session->model, s->by[STATES].model = s->student;
    for (int i = 0; !status && i < FORMS; i++)
        status = lm_text_open(&s->by[i].text, s->by[i].model, most, most < CHUNK ? most : CHUNK, error);
    return status;
}

static void close_all(speed *s)
{
    for (int i = 0; i < FORMS; i++)
        lm_text_close(s->by[i].text);
    if (s->d->session->on.gpu) free(s->logits);
    memory_close(&s->room);
    lm_model_close(s->student);
    reading_close(&s->features);
}

/* ---- tokens */

/* The next ones of the calibration, again and again. */
static int read_tokens(speed *s, reader *r, int64_t count, matrix *hidden, io_error *error)
{
    const int64_t there = s->d->of.begins[s->d->of.windows], from = lm_text_length(r->text);
    for (int64_t i = 0; i < count; i++)
        s->ids[i] = s->d->ids[(from + i) % there];
    return lm_text_read(r->text, s->ids, count, hidden, error);
}

static int read_to(speed *s, reader *r, int64_t length, io_error *error)
{
    matrix hidden;
    int status = 0;
    for (int64_t left; !status && (left = length - lm_text_length(r->text)) > 0;)
        status = read_tokens(s, r, left < CHUNK ? left : CHUNK, &hidden, error);
    return status;
}

static int take_time(speed *s, reader *r, int64_t run, io_error *error)
{
    const double begun = lm_seconds();
    matrix hidden;
    int status = read_tokens(s, r, 1, &hidden, error);
    if (status) return status;
    lm_text_logits(r->text, hidden, s->row);
    status = lm_model_fetch(r->model, s->logits, s->row, error);
    r->seconds[run] = lm_seconds() - begun;
    return status;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int measure_behind(speed *s, cells *c, int at, io_error *error)
{
    const int64_t runs = runs_behind(c->behind[at]);
    int status = 0;
    for (int i = 0; !status && i < FORMS; i++)
        status = read_to(s, &s->by[i], c->behind[at], error);
    for (int64_t run = 0; !status && run < runs; run++)
        for (int i = 0; !status && i < FORMS; i++)
            status = take_time(s, &s->by[i], run, error);
    for (int i = 0; !status && i < FORMS; i++) {
        qsort(s->by[i].seconds, (size_t)runs, sizeof *s->by[i].seconds, compare);
        c->speeds[i][at] = s->by[i].seconds[runs / 2];
    }
    return status;
}

int speed_measure(cells *c, distillation *d, io_error *error)
{
    speed s = { 0 };
    int status = open_all(&s, d, most_of(c), error);
    for (int i = 0; !status && i < SPEEDS && c->behind[i] > 0; i++)
        status = measure_behind(&s, c, i, error);
    close_all(&s);
    return status;
}
