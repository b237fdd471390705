/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "lm/pretrain.h"

#include "io/out_file.h"
#include "lm/export.h"
#include "lm/path.h"
#include "text/tokenizer.h"
#include "train/checkpoint.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_WINDOWS = 256 }; /* of a validation */

typedef struct run {
    const lm_pretraining *p;
    lm_config config;
    trainer trainer;
    char *state, *best;
    int status; /* of what is written after a validation */
    io_error *error;
} run;

/* ---------------------------------------------------------------- what is trained on */

static text_shape text_of(const lm_pretraining *p)
{
    const lm_shards *s = p->shards;
    return (text_shape){ p->recipe->context,
                         s->vocabulary,
                         { s->train.tokens, s->valid.tokens },
                         { s->train.count, s->valid.count },
                         s->sum };
}

/* Every window, and every answer of it, has a token after it. */
static int check_texts(const lm_pretraining *p, io_error *error)
{
    const lm_shards *s = p->shards;
    const lm_recipe *r = p->recipe;
    const long long context = (long long)r->context;
    if (s->train.count <= context || s->valid.count <= context)
        return io_fail(error, EXIT_INPUT,
                       "%s: %lld and %lld tokens of training and validation; expected more than "
                       "the %lld of a context",
                       p->data, (long long)s->train.count, (long long)s->valid.count, context);
    if (s->train.count > INT32_MAX)
        return io_fail(error, EXIT_INPUT, "%s: %lld training tokens; expected at most %d", p->data,
                       (long long)s->train.count, INT32_MAX);
    if (r->batch > INT32_MAX / r->steps || r->context > INT32_MAX / r->batch)
        return io_fail(error, EXIT_USAGE, "%lld steps of %lld windows of %lld tokens are too many",
                       (long long)r->steps, (long long)r->batch, context);
    return 0;
}

static train_source source_of(const lm_pretraining *p)
{
    const text_shape text = text_of(p);
    const int64_t windows = text_windows(&text);
    train_source from = { .task = TRAIN_TEXT, .text = text };
    from.part[0].examples[TRAIN_SPLIT_TRAIN] = p->recipe->steps * p->recipe->batch;
    from.part[0].examples[TRAIN_SPLIT_TEST] = windows < MOST_WINDOWS ? windows : MOST_WINDOWS;
    return from;
}

/* ---------------------------------------------------------------- files on the way */

static double test_loss(const trainer *t, int64_t test) { return trainer_record(t, 0, test)->test_loss; }

static bool is_best(const trainer *t)
{
    const int64_t last = t->tested[0] - 1;
    for (int64_t i = 0; i < last; i++)
        if (!(test_loss(t, last) < test_loss(t, i))) return false;
    return true;
}

/* A line for each validation so far, whole or not at all. */
static int write_lines(const run *r, const char *name, const char *head,
                       void (*line)(FILE *to, const trainer *t, int64_t test))
{
    char *path;
    out_file *out = NULL;
    int status = lm_path(&path, r->p->folder, name, r->error);
    if (!status) status = out_open(&out, path, r->error);
    if (!status) {
        fprintf(out_stream(out), "%s\n", head);
        for (int64_t i = 0; i < r->trainer.tested[0]; i++)
            line(out_stream(out), &r->trainer, i);
        status = out_commit(out, r->error);
    }
    free(path);
    return status;
}

static void put_loss(FILE *to, const trainer *t, int64_t test)
{
    const train_record *record = trainer_record(t, 0, test);
    fprintf(to, "%.0f,%.9g,%.9g,%.9g\n", record->step, record->train_loss, record->test_loss,
            record->gradient);
}

static void put_time(FILE *to, const trainer *t, int64_t test)
{
    const double step = (double)(t->options.batches * t->options.shape.batch *
                                 source_length(&t->options.shape.from));
    fprintf(to, "%.0f,%.6g,%.6g\n", trainer_record(t, 0, test)->step, t->times[test],
            t->times[test] * step * 1e-6);
}

static int write_losses(const run *r)
{
    return write_lines(r, "loss.csv", "step,train,validation,gradient", put_loss);
}

static void watch(void *with, const trainer *t, bool tested)
{
    run *r = with;
    if (tested && !r->status && is_best(t)) r->status = lm_export_arrays(t, r->best, r->error);
    if (tested && !r->status) r->status = write_losses(r);
    if (r->p->watch) r->p->watch(r->p->with, t, tested);
}

/* ---------------------------------------------------------------- what was held out */

/* Those tokens of a window that count: from .. to - 1. */
typedef struct span {
    int64_t from, to;
} span;

/* The losses of windows first .. first + count - 1 of a text. */
static loam_status add_windows(trainer *t, const text_shape *text, int64_t first, int64_t count, span counted,
                               double *sum, loam_error *error)
{
    const matrix each = model_results(t->net);
    const int64_t batch = t->options.shape.batch;
    const size_t bytes = (size_t)(matrix_elements(each) * matrix_bytes_each(each));
    train_source from = t->options.shape.from;
    from.text = *text;
    for (int64_t i = 0; i < batch; i++)
        t->examples[i] = (int32_t)(first + (i < count ? i : count - 1));
    batch_fill(&t->data, 0, &from, 0, TRAIN_SPLIT_TEST, t->examples);
    batch_send(&t->data);
    loam_status status = model_test(t->net, &t->data, error);
    if (!status) status = machine_download(t->on, t->host, each.data, bytes, error);
    for (int64_t row = 0; row < count * text->length && !status; row++)
        if (row % text->length >= counted.from && row % text->length < counted.to)
            *sum += (double)((const float *)t->host)[row * each.width];
    return status;
}

/* A text that fills no window: none of its tokens sees those behind it. */
static loam_status add_short(trainer *t, const lm_shard *held, double *sum, loam_error *error)
{
    const text_shape *trained = &t->options.shape.from.text;
    const int64_t length = trained->length;
    uint16_t *all = calloc((size_t)length + 1, sizeof *all);
    if (!all) {
        *error = (loam_error){ LOAM_EMEMORY, "out of memory for a window" };
        return LOAM_EMEMORY;
    }
    memcpy(all, held->tokens, (size_t)held->count * sizeof *all);
    const text_shape text = { length, trained->words, { NULL, all }, { 0, length + 1 }, 0 };
    const loam_status status = add_windows(t, &text, 0, 1, (span){ 0, held->count - 1 }, sum, error);
    free(all);
    return status;
}

/* Every token but the first, which is the end token: windows one after another, and a last one that ends with
 * the text, of which the tokens that are left count. */
static loam_status add_text(trainer *t, const lm_shard *held, double *sum, loam_error *error)
{
    const text_shape *trained = &t->options.shape.from.text;
    const int64_t length = trained->length, batch = t->options.shape.batch, all = (held->count - 1) / length;
    text_shape text = { length, trained->words, { NULL, held->tokens }, { 0, held->count }, 0 };
    const span whole = { 0, length };
    loam_status status = LOAM_OK;
    if (all == 0) return add_short(t, held, sum, error);
    for (int64_t first = 0; first < all && !status; first += batch)
        status = add_windows(t, &text, first, all - first < batch ? all - first : batch, whole, sum, error);
    const int64_t left = held->count - 1 - all * length;
    if (status || left == 0) return status;
    text.tokens[TRAIN_SPLIT_TEST] += held->count - 1 - length;
    text.count[TRAIN_SPLIT_TEST] = length + 1;
    return add_windows(t, &text, 0, 1, (span){ length - left, length }, sum, error);
}

static int judge_held(run *r, lm_held_loss *held)
{
    const lm_shards *s = r->p->shards;
    loam_error reason;
    for (int64_t i = 0; i < s->corpora; i++) {
        const int64_t count = s->held[i].shard.count - 1;
        double sum = 0;
        if (add_text(&r->trainer, &s->held[i].shard, &sum, &reason))
            return io_fail(r->error, EXIT_INTERNAL, "%s", reason.text);
        held[i] = (lm_held_loss){ count, sum / (double)count, sum / ((double)s->held[i].bytes * log(2)) };
    }
    return 0;
}

static int write_held(const run *r, const lm_held_loss *held)
{
    const lm_shards *s = r->p->shards;
    char *path;
    out_file *out = NULL;
    int status = lm_path(&path, r->p->folder, "held.csv", r->error);
    if (!status) status = out_open(&out, path, r->error);
    if (!status) {
        fprintf(out_stream(out), "corpus,tokens,bytes,nll,bits_per_byte\n");
        for (int64_t i = 0; i < s->corpora; i++)
            fprintf(out_stream(out), "%s,%lld,%lld,%.9g,%.9g\n", s->held[i].name, (long long)held[i].tokens,
                    (long long)s->held[i].bytes, held[i].nll, held[i].bits);
        status = out_commit(out, r->error);
    }
    free(path);
    return status;
}

/* ---------------------------------------------------------------- the end */

/* The times leave the state, so that it has the same bytes in every run. Without them this has been done. */
static int keep_times(run *r)
{
    trainer *t = &r->trainer;
    double all = 0;
    for (int64_t i = 0; i < t->most; i++)
        all += t->times[i];
    if (!(all > 0)) return 0;
    int status = write_lines(r, "times.csv", "step,ns_per_token,ms_per_step", put_time);
    memset(t->times, 0, (size_t)t->most * sizeof *t->times);
    t->seconds = 0;
    return status ? status : checkpoint_save(t, r->state, r->error);
}

static int write_tokenizer(const run *r)
{
    tokenizer *t = NULL;
    char *path;
    int status = lm_path(&path, r->p->folder, "tokenizer.json", r->error);
    if (!status) status = tokenizer_open(&t, r->p->data, r->error);
    if (!status) status = tokenizer_write(t, path, r->error);
    tokenizer_close(t);
    free(path);
    return status;
}

static int finish(run *r, lm_held_loss *held)
{
    const bool files = lm_recipe_has_files(r->p->recipe);
    int status = keep_times(r);
    if (!status) status = write_losses(r);
    if (!status) status = lm_export_load(&r->trainer, r->best, r->error);
    if (!status) status = judge_held(r, held);
    if (!status && files) status = lm_export_model(&r->config, r->best, r->p->folder, r->error);
    if (!status && files) status = write_tokenizer(r);
    return status ? status : write_held(r, held);
}

/* ---------------------------------------------------------------- all of it */

/* What a folder holds without a state is not ours to replace. */
static int check_folder(const run *r)
{
    static const char *const names[] = { "model.safetensors", "config.json" };
    int status = 0;
    if (access(r->state, F_OK) == 0) return 0;
    for (int i = 0; i < 2 && !status; i++) {
        char *path;
        status = lm_path(&path, r->p->folder, names[i], r->error);
        if (!status && access(path, F_OK) == 0)
            status = io_fail(r->error, EXIT_OUTPUT, "%s is there, and no state.safetensors of its training",
                             path);
        free(path);
    }
    return status;
}

/* The tokenizer fits the tokens; it is read now so that its faults show before the training. */
static int check_tokenizer(const run *r)
{
    tokenizer *t = NULL;
    int status = tokenizer_open(&t, r->p->data, r->error);
    const int64_t vocabulary = r->p->shards->vocabulary;
    if (!status && tokenizer_size(t) > vocabulary)
        status = io_fail(r->error, EXIT_INPUT,
                         "%s: the tokenizer has %lld tokens; expected at most the %lld of the "
                         "manifest",
                         r->p->data, (long long)tokenizer_size(t), (long long)vocabulary);
    tokenizer_close(t);
    return status;
}

static int open_run(run *r)
{
    const lm_pretraining *p = r->p;
    const lm_shards *s = p->shards;
    int status = lm_path(&r->state, p->folder, "state.safetensors", r->error);
    if (!status) status = lm_path(&r->best, p->folder, "best.safetensors", r->error);
    if (!status) status = lm_recipe_config(&r->config, p->recipe, s->vocabulary, s->end_token, r->error);
    if (!status) status = check_texts(p, r->error);
    if (!status) status = check_folder(r);
    return status ? status : check_tokenizer(r);
}

static int train(run *r)
{
    const lm_pretraining *p = r->p;
    const trainer_options options = lm_recipe_options(p->recipe, &r->config);
    const trainee one = { .seed = p->recipe->seed, .from = source_of(p), .rate = p->recipe->rate };
    loam_error reason;
    if (trainer_open(&r->trainer, p->on, &options, &one, 1, &reason))
        return io_fail(r->error, EXIT_USAGE, "%s", reason.text);
    r->trainer.watch = watch, r->trainer.with = r;
    const int status = checkpoint_run(&r->trainer, r->state, p->interval, p->seconds, r->error);
    return status ? status : r->status;
}

int lm_pretrain(const lm_pretraining *p, lm_held_loss *held, bool *finished, io_error *error)
{
    run r = { .p = p, .error = error };
    int status = open_run(&r);
    if (!status) status = train(&r);
    *finished = !status && trainer_finished(&r.trainer);
    if (*finished) status = finish(&r, held);
    trainer_close(&r.trainer);
    free(r.state);
    free(r.best);
    return status;
}
