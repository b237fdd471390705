/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "cli/tune/run.h"

#include "lm/export.h"
#include "lm/pretrained.h"
#include "train/checkpoint.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { LORA = 1 << LOW_Q | 1 << LOW_K | 1 << LOW_V | 1 << LOW_OUT };

static const struct {
    const char *name;
    unsigned low;
    double rate;
    const char *moving[4]; /* NULL behind the last; none: all moves */
} kinds[] = {
    [TUNE_FEATURES] = { "features", 0, 1e-3, { "layer*.z", "layer*.log_alpha" } },
    [TUNE_LORA] = { "lora", LORA, 1e-3, { "layer*.[AB]_[qkvo]" } },
    [TUNE_BOTH] = { "both", LORA, 1e-3, { "layer*.z", "layer*.log_alpha", "layer*.[AB]_[qkvo]" } },
    [TUNE_ALL] = { "all", 0, 1e-4, { NULL } },
};

const char *tune_name(int kind) { return kind < TUNE_KINDS ? kinds[kind].name : NULL; }
bool tune_has_features(tune_kind kind) { return kind == TUNE_FEATURES || kind == TUNE_BOTH; }
bool tune_has_weights(tune_kind kind) { return kind != TUNE_FEATURES; }
double tune_usual_rate(tune_kind kind) { return kinds[kind].rate; }

static int failed(const loam_error *from, io_error *error)
{
    return io_fail(error, EXIT_INTERNAL, "%s", from->text);
}

/* ---- what is trained */

static train_source source_of(const tune_request *as)
{
    const graft_plan *p = as->texts;
    train_source from = { .task = TRAIN_TEXT,
                          .text = { p->choice.context,
                                    p->config->vocabulary,
                                    { p->tokens[TRAIN_SPLIT_TRAIN], p->tokens[TRAIN_SPLIT_TEST] },
                                    { p->count[TRAIN_SPLIT_TRAIN], p->count[TRAIN_SPLIT_TEST] },
                                    p->sum } };
    from.part[0].examples[TRAIN_SPLIT_TRAIN] = as->choice.steps * as->choice.batch;
    from.part[0].examples[TRAIN_SPLIT_TEST] = p->windows;
    return from;
}

static int options_of(const tune_request *as, trainer_options *o, io_error *error)
{
    const tune_choice *c = &as->choice;
    const lm_config *config = lm_files_config(as->files);
    *o = trainer_options_default(lm_pretrained_mixer(config));
    const int status = lm_pretrained_options(o, config, as->texts->model, error);
    if (status) return status;
    o->mixing.low = kinds[c->kind].low;
    o->mixing.rank = kinds[c->kind].low ? c->rank : 0;
    o->shape.moving = kinds[c->kind].moving[0] ? kinds[c->kind].moving : NULL;
    o->shape.batch = c->piece, o->batches = c->batch / c->piece;
    o->pretrained = as->from;
    o->steps = c->steps, o->warm = c->warm, o->test_every = c->every;
    o->decay = 0, o->clip = 1;
    return 0;
}

/* A model of the same words that does not move. */
static int open_teacher(tune_run *r, io_error *error)
{
    static const char *const nothing[] = { NULL };
    const lm_config *c = lm_files_config(r->as->teacher);
    const machine *on = r->as->on;
    const uint64_t seed = 0;
    trainer_options o = trainer_options_default(lm_pretrained_mixer(c));
    loam_error reason;
    int status = lm_pretrained_options(&o, c, "--teacher", error);
    if (status) return status;
    if (c->vocabulary != r->as->texts->config->vocabulary || c->context < r->as->texts->choice.context)
        return io_fail(error, EXIT_INPUT,
                       "--teacher: %" PRId64 " tokens, %" PRId64
                       " of them at once; expected the model's %" PRId64 ", and %" PRId64 " at least",
                       c->vocabulary, c->context, r->as->texts->config->vocabulary,
                       r->as->texts->choice.context);
    o.shape.moving = nothing;
    o.shape.models = 1, o.shape.batch = r->t.options.shape.batch, o.shape.from = r->t.options.shape.from;
    if (model_create(&r->teacher, on, o.row, &o.shape, &o.mixing, &seed, &reason))
        return failed(&reason, error);
    status = lm_pretrained_fill(r->teacher, on, r->as->teacher, error);
    if (!status && model_teach(r->t.net, r->teacher, r->as->choice.weight, &reason))
        status = failed(&reason, error);
    return status;
}

/* ---- losses */

static int add_rows(trainer *t, matrix rows, int64_t count, double *sum, io_error *error)
{
    loam_error reason;
    const size_t bytes = (size_t)(matrix_elements(rows) * matrix_bytes_each(rows));
    if (!rows.data) return 0;
    if (machine_download(t->on, t->host, rows.data, bytes, &reason)) return failed(&reason, error);
    for (int64_t i = 0; i < count; i++)
        *sum += (double)((const float *)t->host)[i * rows.width];
    return 0;
}

/* Windows first .. first + count - 1 of those held out. */
static int add_windows(trainer *t, int64_t first, int64_t count, double *total, double *divergence,
                       io_error *error)
{
    const train_source *from = &t->options.shape.from;
    loam_error reason;
    for (int64_t i = 0; i < t->options.shape.batch; i++)
        t->examples[i] = (int32_t)(first + (i < count ? i : count - 1));
    batch_fill(&t->data, 0, from, t->each->seed, TRAIN_SPLIT_TEST, t->examples);
    batch_send(&t->data);
    if (model_test(t->net, &t->data, &reason)) return failed(&reason, error);
    const int64_t rows = count * source_length(from);
    const int status = add_rows(t, model_results(t->net), rows, total, error);
    return status ? status : add_rows(t, model_divergence(t->net), rows, divergence, error);
}

static int measure(tune_run *r, tune_loss *out, io_error *error)
{
    trainer *t = &r->t;
    const int64_t windows = r->as->texts->windows, batch = t->options.shape.batch;
    double total = 0, divergence = 0;
    int status = 0;
    for (int64_t first = 0; first < windows && !status; first += batch)
        status = add_windows(t, first, windows - first < batch ? windows - first : batch, &total, &divergence,
                             error);
    const double all = (double)(windows * source_length(&t->options.shape.from));
    out->divergence = divergence / all;
    out->nll = total / all - r->as->choice.weight * out->divergence;
    return status;
}

double tune_total(const tune_run *r, tune_loss loss)
{
    return loss.nll + r->as->choice.weight * loss.divergence;
}

double tune_step_seconds(const tune_run *r)
{
    const trainer *t = &r->t;
    const double tokens_each = (double)(r->as->choice.batch * source_length(&t->options.shape.from));
    double ns = 0;
    int64_t before = 0;
    for (int64_t i = 0; i < t->tested[0]; i++) {
        const int64_t step = (int64_t)trainer_record(t, 0, i)->step;
        ns += t->times[i] * tokens_each * (double)(step - before);
        before = step;
    }
    return before > 0 ? 1e-9 * ns / (double)before : 0;
}

/* ---- what is kept */

static void path_of(const tune_request *as, const char *name, char path[EXPERIMENT_PATH])
{
    snprintf(path, EXPERIMENT_PATH, "%s/%s.safetensors", as->directory, name);
}

void tune_discard(const tune_request *as)
{
    char path[EXPERIMENT_PATH];
    path_of(as, "state", path), unlink(path);
    path_of(as, "best", path), unlink(path);
}

/* Of the first `tests` records; 0: the start. */
static int64_t best_of(const tune_run *r, int64_t tests)
{
    double best = tune_total(r, r->start);
    int64_t step = 0;
    for (int64_t i = 0; i < tests; i++) {
        const train_record *record = trainer_record(&r->t, 0, i);
        if (record->test_loss < best) best = record->test_loss, step = (int64_t)record->step;
    }
    return step;
}

/* Whatever else a killed run leaves, the best state is never older than the checkpoint; of one that is newer
 * the steps are taken again. */
static void watch(void *with, const trainer *t, bool tested)
{
    tune_run *r = with;
    char path[EXPERIMENT_PATH];
    if (!tested || r->status) return;
    const train_record *last = trainer_record(t, 0, t->tested[0] - 1);
    if (!r->as->quiet) {
        printf("%10" PRId64 " %12.4f %12.4f\n", t->step, last->train_loss, last->test_loss);
        fflush(stdout);
    }
    if (best_of(r, t->tested[0]) != t->step) return;
    path_of(r->as, "best", path);
    r->status = lm_export_arrays(t, path, r->error);
}

/* Where nothing was begun the start is the best. */
static int begin(tune_run *r, const char *state, const char *best)
{
    if (r->as->restart) tune_discard(r->as);
    if (access(state, F_OK) != 0 && errno == ENOENT) return lm_export_arrays(&r->t, best, r->error);
    if (access(best, F_OK) == 0) return 0;
    return io_fail(r->error, EXIT_INPUT, "%s: %s is not there: --restart discards the run", state, best);
}

/* ---- a run */

int tune_open(tune_run *r, const tune_request *as, io_error *error)
{
    trainer_options options;
    const trainee one = { .seed = (uint64_t)as->choice.seed, .from = source_of(as), .rate = as->choice.rate };
    loam_error reason;
    *r = (tune_run){ .as = as, .error = error };
    int status = options_of(as, &options, error);
    if (status) return status;
    if (trainer_open(&r->t, as->on, &options, &one, 1, &reason)) return failed(&reason, error);
    status = lm_pretrained_fill(r->t.net, as->on, as->files, error);
    if (!status && as->teacher) status = open_teacher(r, error);
    if (!status) status = measure(r, &r->start, error);
    if (status) tune_close(r);
    return status;
}

void tune_close(tune_run *r)
{
    if (r->t.net) trainer_close(&r->t);
    model_destroy(r->teacher);
    *r = (tune_run){ 0 };
}

int tune_train(tune_run *r, bool *finished)
{
    char state[EXPERIMENT_PATH], best[EXPERIMENT_PATH];
    path_of(r->as, "state", state), path_of(r->as, "best", best);
    *finished = false;
    int status = begin(r, state, best);
    r->t.watch = watch, r->t.with = r;
    if (!status) status = checkpoint_run(&r->t, state, r->as->interval, r->as->seconds, r->error);
    if (!status) status = r->status;
    if (status || !trainer_finished(&r->t)) return status;
    r->kept = best_of(r, r->t.tested[0]);
    status = lm_export_load(&r->t, best, r->error);
    if (!status) status = measure(r, &r->end, r->error);
    *finished = !status;
    return status;
}
