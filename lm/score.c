/* SPDX-License-Identifier: MIT */
#include "lm/score.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

/* Rows that have logits at a time, on a CPU and on a GPU. */
enum { ROWS = 64, GPU_ROWS = 512 };

struct scorer {
    const lm_model *model;
    const machine *on;
    int64_t vocabulary, rows;
    lm_text *text;
    memory room;
    matrix apart;          /* divergences */
    matrix logits, losses; /* losses, targets and count: of a GPU, which sends back no logits */
    int32_t *targets;
    int64_t *count;
    float *host; /* losses and divergences in host memory */
};

bool score_window_at(score_window *w, int64_t tokens, int64_t length, bool prefix, int64_t index)
{
    const int64_t first = prefix ? -1 : 0, targets = tokens - 1 - first, done = index * length;
    if (targets <= done) return false;
    w->scored = targets - done < length ? targets - done : length;
    const int64_t end = first + done + w->scored;
    w->inputs = end - first < length ? end - first : length;
    w->begin = end - w->inputs;
    return true;
}

static void take_rows(scorer *s)
{
    s->logits = memory_matrix(&s->room, s->on->dtype, 1, s->rows, s->vocabulary);
    s->apart = memory_matrix(&s->room, s->on->dtype, 1, s->rows, 1);
    if (!s->on->gpu) return;
    s->losses = memory_matrix(&s->room, s->on->dtype, 1, s->rows, 2);
    s->targets = memory_take(&s->room, s->rows, sizeof *s->targets);
    s->count = memory_take(&s->room, 1, sizeof *s->count);
}

int scorer_open(scorer **made, const lm_model *m, int64_t length, io_error *error)
{
    return scorer_open_batch(made, m, 1, length, error);
}

int scorer_open_batch(scorer **made, const lm_model *m, int64_t most, int64_t length, io_error *error)
{
    *made = NULL;
    scorer *s = calloc(1, sizeof *s);
    if (!s) return io_fail(error, EXIT_INTERNAL, "out of memory for scores");
    s->model = m, s->on = lm_model_machine(m), s->vocabulary = lm_model_config(m)->vocabulary;
    s->rows = s->on->gpu ? GPU_ROWS : ROWS;
    take_rows(s);
    bool there = memory_open(&s->room, s->on);
    if (there) take_rows(s);
    if (there) there = (s->host = calloc(2 * (size_t)s->rows, sizeof *s->host)) != NULL;
    const int status = there ? lm_text_open_batch(&s->text, m, most, length, error)
                             : io_fail(error, EXIT_INTERNAL, "out of memory for logits");
    if (status)
        scorer_close(s);
    else
        *made = s;
    return status;
}

void scorer_close(scorer *s)
{
    if (!s) return;
    lm_text_close(s->text);
    memory_close(&s->room);
    free(s->host);
    free(s);
}

static double nll_of(const float *logits, int64_t count, int32_t target)
{
    float most = -INFINITY;
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        most = logits[i] > most ? logits[i] : most;
    for (int64_t i = 0; i < count; i++)
        sum += (double)expf(logits[i] - most);
    return log(sum) + (double)most - (double)logits[target];
}

static int score_on_gpu(scorer *s, matrix logits, const int32_t *targets, double *nll, io_error *error)
{
    static const matrix none = { 0 };
    const machine *on = s->on;
    const matrix losses = matrix_rows(s->losses, 0, logits.rows);
    machine_upload(on, s->targets, targets, (size_t)logits.rows * sizeof *targets);
    machine_upload(on, s->count, &logits.rows, sizeof logits.rows);
    on->op->cross_entropy(on, losses, none, logits, (numbers){ s->targets, 0 }, s->count);
    const int status = lm_model_fetch(s->model, s->host, losses, error);
    for (int64_t i = 0; !status && i < logits.rows; i++)
        nll[i] = (double)s->host[2 * i];
    return status;
}

/* The logits of rows, at most `rows`. */
static matrix logits_of(scorer *s, matrix hidden)
{
    const matrix logits = matrix_rows(s->logits, 0, hidden.rows);
    lm_text_logits(s->text, hidden, logits);
    return logits;
}

static int score_logits(scorer *s, matrix logits, const int32_t *targets, double *nll, io_error *error)
{
    if (s->on->gpu) return score_on_gpu(s, logits, targets, nll, error);
#pragma omp parallel for num_threads(s->on->threads) schedule(static)
    for (int64_t i = 0; i < logits.rows; i++)
        nll[i] = nll_of((const float *)logits.data + i * s->vocabulary, s->vocabulary, targets[i]);
    return 0;
}

static int check_targets(const scorer *s, const int32_t *targets, int64_t scored, io_error *error)
{
    for (int64_t i = 0; i < scored; i++)
        if (targets[i] < 0 || targets[i] >= s->vocabulary)
            return io_fail(error, EXIT_INPUT, "token %d: the model has %lld", targets[i],
                           (long long)s->vocabulary);
    return 0;
}

lm_text *scorer_text(const scorer *s) { return s->text; }

int scorer_rows(scorer *s, matrix hidden, const int32_t *targets, int64_t scored, double *nll,
                io_error *error)
{
    int status = check_targets(s, targets, scored, error);
    for (int64_t first = 0; !status && first < scored; first += s->rows) {
        const int64_t rows = scored - first < s->rows ? scored - first : s->rows;
        const matrix logits = logits_of(s, matrix_rows(hidden, hidden.rows - scored + first, rows));
        status = score_logits(s, logits, targets + first, nll + first, error);
    }
    return status;
}

int scorer_run(scorer *s, const int32_t *tokens, int64_t count, const int32_t *targets, int64_t scored,
               double *nll, io_error *error)
{
    matrix hidden;
    lm_text_rewind(s->text, 0);
    const int status = lm_text_read(s->text, tokens, count, &hidden, error);
    return status ? status : scorer_rows(s, hidden, targets, scored, nll, error);
}

static int score_pair_rows(scorer *s, scorer *teacher, matrix hidden, matrix taught, const int32_t *targets,
                           score_pair to, io_error *error)
{
    const machine *on = s->on;
    const matrix logits = logits_of(s, hidden), wanted = logits_of(teacher, taught);
    const matrix apart = matrix_rows(s->apart, 0, logits.rows);
    int status = score_logits(s, logits, targets, to.nll, error);
    if (!status) status = score_logits(teacher, wanted, targets, to.teacher, error);
    if (status) return status;
    on->op->divergence(on, apart, wanted, logits);
    status = lm_model_fetch(s->model, s->host, apart, error);
    for (int64_t i = 0; !status && i < logits.rows; i++)
        to.divergence[i] = (double)s->host[i];
    return status;
}

int scorer_run_pair(scorer *s, scorer *teacher, const int32_t *tokens, int64_t count, const int32_t *targets,
                    int64_t scored, score_pair to, io_error *error)
{
    matrix hidden, taught;
    assert(s->vocabulary == teacher->vocabulary && s->on == teacher->on);
    int status = check_targets(s, targets, scored, error);
    lm_text_rewind(s->text, 0);
    lm_text_rewind(teacher->text, 0);
    if (!status) status = lm_text_read(s->text, tokens, count, &hidden, error);
    if (!status) status = lm_text_read(teacher->text, tokens, count, &taught, error);
    for (int64_t first = 0; !status && first < scored; first += s->rows) {
        const int64_t rows = scored - first < s->rows ? scored - first : s->rows, at = count - scored + first;
        const score_pair part = { to.nll + first, to.teacher + first, to.divergence + first };
        status = score_pair_rows(s, teacher, matrix_rows(hidden, at, rows), matrix_rows(taught, at, rows),
                                 targets + first, part, error);
    }
    return status;
}
