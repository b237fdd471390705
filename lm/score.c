/* SPDX-License-Identifier: MIT */
#include "lm/score.h"

#include <math.h>
#include <stdlib.h>

/* Rows that have logits at a time. */
enum { ROWS = 64 };

struct scorer {
    const machine *on;
    int64_t vocabulary;
    lm_text *text;
    memory room;
    matrix logits;
    float *host; /* of a machine with memory of its own */
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

static matrix take_logits(scorer *s) { return memory_matrix(&s->room, s->on->dtype, 1, ROWS, s->vocabulary); }

int scorer_open(scorer **made, const lm_model *m, int64_t length, io_error *error)
{
    *made = NULL;
    scorer *s = calloc(1, sizeof *s);
    if (!s) return io_fail(error, EXIT_INTERNAL, "out of memory for scores");
    s->on = lm_model_machine(m), s->vocabulary = lm_model_config(m)->vocabulary;
    (void)take_logits(s);
    bool there = memory_open(&s->room, s->on);
    if (there) s->logits = take_logits(s);
    if (there && s->on->gpu)
        there = (s->host = calloc(ROWS * (size_t)s->vocabulary, sizeof *s->host)) != NULL;
    const int status = there ? lm_text_open(&s->text, m, length, length, error)
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

static int score_rows(scorer *s, matrix hidden, const int32_t *targets, double *nll, io_error *error)
{
    const matrix logits = matrix_rows(s->logits, 0, hidden.rows);
    const float *from = s->on->gpu ? s->host : logits.data;
    loam_error reason;
    lm_text_logits(s->text, hidden, logits);
    if (s->on->gpu && machine_download(s->on, s->host, logits.data,
                                       (size_t)(hidden.rows * s->vocabulary) * sizeof(float), &reason))
        return io_fail(error, EXIT_INTERNAL, "%s", reason.text);
#pragma omp parallel for num_threads(s->on->threads) schedule(static)
    for (int64_t i = 0; i < hidden.rows; i++)
        nll[i] = nll_of(from + i * s->vocabulary, s->vocabulary, targets[i]);
    return 0;
}

lm_text *scorer_text(const scorer *s) { return s->text; }

int scorer_rows(scorer *s, matrix hidden, const int32_t *targets, int64_t scored, double *nll,
                io_error *error)
{
    int status = 0;
    for (int64_t i = 0; i < scored; i++)
        if (!status && (targets[i] < 0 || targets[i] >= s->vocabulary))
            status = io_fail(error, EXIT_INPUT, "token %d: the model has %lld", targets[i],
                             (long long)s->vocabulary);
    for (int64_t first = 0; !status && first < scored; first += ROWS) {
        const int64_t rows = scored - first < ROWS ? scored - first : ROWS;
        status = score_rows(s, matrix_rows(hidden, hidden.rows - scored + first, rows), targets + first,
                            nll + first, error);
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
