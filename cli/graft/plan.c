/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "cli/graft/plan.h"

#include "cli/lm/lm.h"
#include "cli/training/text.h"
#include "lm/pretrained.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Windows that losses on the way are of; the first of those that are held out. */
enum { ON_THE_WAY = 8, TENTH = 10, TRAIN = TRAIN_SPLIT_TRAIN, TEST = TRAIN_SPLIT_TEST };

/* ---- what moves */

static const struct {
    const char *name, *mixer;
    unsigned low;
    bool temperature;
    graft_kind control;
    const char *moving[3]; /* NULL behind the last */
} kinds[] = {
    [GRAFT_RIDGES] = { "ridges", "lla-heads", 0, false, GRAFT_TEMPERATURES, { "layer*.s" } },
    [GRAFT_TEMPERATURES] = { "temperatures", "softmax", 0, true, GRAFT_NONE, { "layer*.t" } },
    [GRAFT_BOTH] = { "both", "lla-heads", 0, true, GRAFT_TEMPERATURES, { "layer*.s", "layer*.t" } },
    [GRAFT_PARALLAX] = { "parallax", "parallax", 1 << LOW_PROBE, false, GRAFT_LORA, { "layer*.[AB]_r" } },
    [GRAFT_LORA] = { "lora", "softmax", 1 << LOW_Q, false, GRAFT_NONE, { "layer*.[AB]_q" } },
    [GRAFT_NONE] = { "none", "softmax", 0, false, GRAFT_NONE, { NULL } },
};

const char *graft_name(int kind) { return kind < GRAFT_KINDS ? kinds[kind].name : NULL; }
int graft_control(int kind) { return (int)kinds[kind].control; }

static train_source source_of(const graft_plan *p)
{
    const graft_choice *c = &p->choice;
    train_source from = { .task = TRAIN_TEXT,
                          .text = { c->context,
                                    p->config->vocabulary,
                                    { p->tokens[TRAIN], p->tokens[TEST] },
                                    { p->count[TRAIN], p->count[TEST] },
                                    p->sum } };
    from.part[0].examples[TRAIN] = c->steps * c->batch;
    from.part[0].examples[TEST] = p->windows < ON_THE_WAY ? p->windows : ON_THE_WAY;
    return from;
}

trainee graft_trainee(const graft_plan *p, int kind, uint64_t seed)
{
    return (
        trainee){ .seed = seed, .from = source_of(p), .rate = kind < GRAFT_KINDS ? p->choice.rate[kind] : 0 };
}

int graft_options(const graft_plan *p, int kind, const char *from, trainer_options *o, io_error *error)
{
    const graft_choice *c = &p->choice;
    *o = trainer_options_default(mixer_find(kinds[kind].mixer));
    const int status = lm_pretrained_options(o, p->config, p->model, error);
    if (status) return status;
    o->mixing.low = kinds[kind].low, o->mixing.rank = c->rank;
    o->mixing.temperature = kinds[kind].temperature;
    o->mixing.ridge_start = c->ridge;
    o->shape.moving = kinds[kind].moving;
    o->shape.batch = c->piece, o->batches = c->batch / c->piece;
    o->pretrained = from;
    o->steps = c->steps, o->warm = c->steps >= 40 ? c->steps / 20 : 2;
    o->test_every = c->steps >= 10 ? c->steps / 10 : 1;
    o->decay = 0, o->clip = 1;
    return 0;
}

/* ---- texts */

static int add_tokens(graft_plan *p, int split, const int32_t *id, int64_t count, io_error *error)
{
    const size_t all = (size_t)(p->count[split] + count);
    uint16_t *more = realloc(p->tokens[split], (all + 1) * sizeof *more);
    if (!more) return io_fail(error, EXIT_INTERNAL, "out of memory for tokens");
    for (int64_t i = 0; i < count; i++)
        more[p->count[split] + i] = (uint16_t)id[i];
    p->tokens[split] = more, p->count[split] = (int64_t)all;
    return 0;
}

/* The first windows of these tokens, at most the share of a text. */
static int hold_out(graft_plan *p, int text, const int32_t *id, int64_t count, int texts, io_error *error)
{
    const int64_t length = p->choice.context, share = p->choice.held / texts / length;
    const int64_t most = share > 1 ? share : 1, windows = count / length < most ? count / length : most;
    p->windows_of[text] = windows, p->windows += windows;
    return add_tokens(p, TEST, id, windows * length, error);
}

static int encode(const char *path, const tokenizer *t, tokens *out, io_error *error)
{
    char *all = NULL;
    size_t bytes = 0;
    int status = lm_text_file(&all, &bytes, path, error);
    if (!status) status = tokenizer_encode(t, all, bytes, false, out, error);
    free(all);
    return status;
}

/* A file that is trained on, in whole or but for its last tenth. */
static int add_text(graft_plan *p, const char *path, const tokenizer *t, int texts, bool whole,
                    io_error *error)
{
    tokens all = { 0 };
    int status = encode(path, t, &all, error);
    const int64_t length = p->choice.context;
    int64_t held = whole ? 0 : all.count / TENTH / length * length;
    if (!whole && held == 0 && all.count >= 2 * length) held = length;
    if (!status) status = add_tokens(p, TRAIN, all.id, all.count - held, error);
    if (!status && !whole) {
        p->names[p->text_count] = strdup(path);
        if (!p->names[p->text_count++]) status = io_fail(error, EXIT_INTERNAL, "out of memory for names");
        if (!status) status = hold_out(p, p->text_count - 1, all.id + all.count - held, held, texts, error);
    }
    tokens_free(&all);
    return status;
}

static int add_held(graft_plan *p, const char *path, const tokenizer *t, int texts, io_error *error)
{
    tokens all = { 0 };
    int status = encode(path, t, &all, error);
    if (!status && !(p->names[p->text_count++] = strdup(path)))
        status = io_fail(error, EXIT_INTERNAL, "out of memory for names");
    if (!status) status = hold_out(p, p->text_count - 1, all.id, all.count, texts, error);
    tokens_free(&all);
    return status;
}

/* 0: not 1 to GRAFT_TEXTS paths with commas between. */
static int count_paths(const char *list)
{
    int count = 0;
    for (const char *at = list; at; at = *at ? at + 1 : NULL) {
        const size_t bytes = strcspn(at, ",");
        if (bytes == 0 || count == GRAFT_TEXTS) return 0;
        count++;
        at += bytes;
        if (!*at) break;
    }
    return count;
}

/* held: of files that are not trained on. */
static int add_paths(graft_plan *p, const char *list, const tokenizer *t, bool held, bool whole,
                     io_error *error)
{
    const int texts = count_paths(list);
    int status = 0;
    if (texts < 1)
        return io_fail(error, EXIT_USAGE, "--%s %s: expected 1 to %d files, as in a.txt,b.txt",
                       held ? "held" : "text", list, GRAFT_TEXTS);
    for (const char *at = list; !status && *at; at += *at == ',') {
        const size_t bytes = strcspn(at, ",");
        char *path = strndup(at, bytes);
        if (!path)
            status = io_fail(error, EXIT_INTERNAL, "out of memory for names");
        else
            status = held ? add_held(p, path, t, texts, error) : add_text(p, path, t, texts, whole, error);
        free(path);
        at += bytes;
    }
    return status;
}

static int check_counts(const graft_plan *p, io_error *error)
{
    const graft_choice *c = &p->choice;
    if (p->windows < 1 || p->count[TRAIN] <= c->context)
        return io_fail(error, EXIT_INPUT,
                       "%" PRId64 " tokens to train on and %" PRId64
                       " windows held out: expected more than the %" PRId64 " of a context, and 1 window",
                       p->count[TRAIN], p->windows, c->context);
    if (p->count[TRAIN] > INT32_MAX || c->batch > INT32_MAX / c->steps || c->context > INT32_MAX / c->batch)
        return io_fail(error, EXIT_USAGE,
                       "%" PRId64 " steps of %" PRId64 " windows of %" PRId64 " tokens, or %" PRId64
                       " training tokens, are too many",
                       c->steps, c->batch, c->context, p->count[TRAIN]);
    return 0;
}

/* FNV-1a of all tokens. */
static uint64_t sum_of(const graft_plan *p)
{
    uint64_t sum = 14695981039346656037u;
    for (int split = 0; split < 2; split++)
        for (int64_t i = 0; i < p->count[split]; i++)
            sum = (sum ^ p->tokens[split][i]) * 1099511628211u;
    return sum;
}

static int check_model(graft_plan *p, io_error *error)
{
    const lm_config *c = p->config;
    trainer_options any = trainer_options_default(lm_pretrained_mixer(c));
    const int status = lm_pretrained_options(&any, c, p->model, error);
    if (status) return status;
    if (c->vocabulary > UINT16_MAX + 1)
        return io_fail(error, EXIT_INPUT, "%s: %" PRId64 " tokens; expected at most %d", p->model,
                       c->vocabulary, UINT16_MAX + 1);
    if (p->choice.context > c->context)
        return io_fail(error, EXIT_USAGE, "--context %" PRId64 ": the model reads at most %" PRId64 " tokens",
                       p->choice.context, c->context);
    if (p->choice.context == 0) p->choice.context = c->context < 512 ? c->context : 512;
    return 0;
}

int graft_plan_open(graft_plan *p, const graft_choice *choice, const lm_files *files, const char *model,
                    const tokenizer *t, const char *texts, const char *held, bool narrow, io_error *error)
{
    *p = (graft_plan){
        .choice = *choice, .config = lm_files_config(files), .model = model, .narrow = narrow
    };
    int status = check_model(p, error);
    if (!status) status = add_paths(p, texts, t, false, held != NULL, error);
    if (!status && held) status = add_paths(p, held, t, true, false, error);
    if (!status) status = check_counts(p, error);
    /* The last window predicts one token more; it is the first one held out. */
    if (!status) status = add_tokens(p, TEST, &(int32_t){ p->tokens[TEST][0] }, 1, error);
    if (!status) p->sum = sum_of(p);
    if (status) graft_plan_close(p);
    return status;
}

void graft_plan_close(graft_plan *p)
{
    for (int i = 0; i < p->text_count; i++)
        free(p->names[i]);
    free(p->tokens[TRAIN]);
    free(p->tokens[TEST]);
    *p = (graft_plan){ 0 };
}

int graft_text_of(const graft_plan *p, int64_t window)
{
    int text = 0;
    while (window >= p->windows_of[text])
        window -= p->windows_of[text++];
    return text;
}

void graft_describe(const graft_plan *p, char line[GRAFT_LINE])
{
    const graft_choice *c = &p->choice;
    snprintf(line, GRAFT_LINE,
             "%" PRId64 " steps of %" PRId64 " windows of %" PRId64 " tokens, %" PRId64 " at a time; %" PRId64
             " tokens to train on and %" PRId64 " windows held out of %d texts, %016" PRIx64,
             c->steps, c->batch, c->context, c->piece, p->count[TRAIN], p->windows, p->text_count, p->sum);
    for (int kind = 0; kind < GRAFT_KINDS; kind++)
        if (c->kinds[kind]) text_add(line, GRAFT_LINE, "; %s, rate %g", graft_name(kind), c->rate[kind]);
    text_add(line, GRAFT_LINE, "; rank %" PRId64 "; ridges from %g; seeds", c->rank, c->ridge);
    for (int i = 0; i < c->seeds.count; i++)
        text_add(line, GRAFT_LINE, " %" PRId64, c->seeds.items[i]);
}
