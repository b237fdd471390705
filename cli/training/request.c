/* SPDX-License-Identifier: MIT */
#include "cli/training/request.h"

#include "cli/experiment/options.h"
#include "cli/names.h"
#include "cli/training/lists.h"
#include "cli/training/preset.h"
#include "train/checkpoint.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LONGEST = 4096, MOST_STEPS = 100000000, OPTIONS = 48 };

/* Options as they are written. */
typedef struct words {
    const char *mechanisms, *rates, *seeds, *lengths, *sizes, *queries, *norm, *positions, *ridge_unit,
        *backend, *dtype;
    int64_t steps, tests, layers, fill, stack;
    double stop;
    bool tiny, reduced, paper, all, separate, mlp, qk_norm, no_silu, short_filter, published_dims;
} words;

/* An option of one task, or of all. */
typedef struct task_row {
    int tasks; /* a bit for each */
    option_row row;
} task_row;

static const char *const about[] = {
    "Regression in context (Zuo et al. 2025, figure 5a): small models learn to predict y' of a query x' "
    "from pairs (x, y) of noisy linear maps, one for each segment, all shuffled. Writes the test error of "
    "each mechanism at its best learning rate, beside what can be said without training.",
    "Associative recall (Zuo et al. 2025, figures 5b and 8; Arora et al. 2023): small models learn to say "
    "the word that followed a word when it was first there. Writes the accuracy of each mechanism at its "
    "best learning rate, and how it rose.",
    "Swaps (Zuo et al. 2025, figure 6): small models learn which item a place holds after pairs of places "
    "have swapped theirs. Writes the accuracy of each mechanism at its best learning rate, beside that of "
    "following 0, 1, 2 swaps.",
};
static const char *const usages[] = { "loam experiment context [options]", "loam experiment recall [options]",
                                      "loam experiment swaps [options]" };
static const char common_about[] =
    "\nA killed run goes on when it is started again with the same options, and comes to the same bytes in "
    "every file but times.csv.";

static const char *mechanism_word(int index) { return mixers[index].name; }

static const char *queries_word(int index)
{
    static const char *const list[] = { "plain", "blind", NULL };
    return list[index];
}

static const char *norm_word(int index)
{
    static const char *const list[] = { "rms", "layer", NULL };
    return list[index];
}

static const char *positions_word(int index)
{
    static const char *const list[] = { "learned", "rope", "none", NULL };
    return list[index];
}

static const char *unit_word(int index)
{
    static const char *const list[] = { "normalised", "max", NULL };
    return list[index];
}

/* ---- lists */

static int read_mechanisms(const char *text, plan *p, io_error *error)
{
    for (const char *at = text;; at++) {
        char word[64];
        int index = 0;
        const size_t length = strcspn(at, ",");
        snprintf(word, sizeof word, "%.*s", (int)(length < 63 ? length : 63), at);
        const int status = names_choose("mechanism", word, mechanism_word, &index, error);
        if (status != EXIT_OK) return status;
        for (int i = 0; i < p->mechanism_count; i++)
            if (p->mechanisms[i].row == &mixers[index])
                return io_fail(error, EXIT_USAGE, "--mechanism %s: %s is there twice", text, word);
        if (!preset_train(p, &mixers[index]))
            return io_fail(error, EXIT_USAGE, "--mechanism %s: expected at most %d", text, PLAN_MECHANISMS);
        at += length;
        if (*at == '\0') return EXIT_OK;
    }
}

/* ---- cells */

static const char *size_option(train_task task)
{
    return task == TRAIN_REGRESSION ? "segment" : task == TRAIN_SWAPS ? "places" : "pairs";
}

/* A cone for each of L / S segments, a power of two, needs as many bits. */
static bool fits_segments(const plan *p, int64_t length, int64_t segment)
{
    const int channels = p->preset == PLAN_TINY ? 4 : 32;
    int bits = 0;
    while (bits < channels && segment << bits < length)
        bits++;
    return segment << bits == length;
}

static int check_size(const plan *p, int64_t length, int64_t size, io_error *error)
{
    const int64_t items = p->preset == PLAN_TINY ? 64 : SWAPS_MOST,
                  vocabulary = p->preset == PLAN_TINY ? 64 : 8192;
    if (p->task == TRAIN_REGRESSION && !fits_segments(p, length, size))
        return io_fail(error, EXIT_USAGE,
                       "segment %" PRId64 " and length %" PRId64
                       ": the length must be the segment times a power of "
                       "two, at most 2 to the channels of x",
                       size, length);
    if (p->task == TRAIN_SWAPS && (size < SWAPS_QUERIES || size > items))
        return io_fail(error, EXIT_USAGE, "--places %" PRId64 ": expected %d to %" PRId64, size,
                       SWAPS_QUERIES, items);
    if (p->task == TRAIN_RECALL &&
        (length % 2 != 0 || size < 1 || 4 * size > length || size > vocabulary / 2 - 1))
        return io_fail(error, EXIT_USAGE,
                       "%" PRId64 " pairs and length %" PRId64
                       ": the length must be even and at least four times the "
                       "pairs, and pairs from 1 to %" PRId64,
                       size, length, vocabulary / 2 - 1);
    return EXIT_OK;
}

static int add_cells(plan *p, int64_t length, const words *w, io_error *error)
{
    number_list sizes = { .count = 0 };
    int status = EXIT_OK;
    if (w->sizes && p->task != TRAIN_SWAPS)
        status = experiment_read_list(size_option(p->task), w->sizes, LONGEST, &sizes, error);
    else
        sizes.count = preset_sizes(p->task, p->preset, length, sizes.items);
    for (int i = 0; i < sizes.count && status == EXIT_OK; i++)
        status = check_size(p, length, sizes.items[i], error);
    if (status != EXIT_OK) return status;
    if (p->task == TRAIN_RECALL && sizes.count > RECALL_PARTS)
        return io_fail(error, EXIT_USAGE, "--pairs %s: expected at most %d numbers", w->sizes, RECALL_PARTS);
    if (!preset_add(p, length, sizes.items, sizes.count, w->fill != 0, w->separate))
        return io_fail(error, EXIT_USAGE, "more than %d cells of length and %s", PLAN_CELLS,
                       size_option(p->task));
    return EXIT_OK;
}

static int read_cells(plan *p, const words *w, io_error *error)
{
    const char *given = p->task == TRAIN_SWAPS ? w->sizes : w->lengths;
    number_list lengths = { .count = 0 };
    int status = EXIT_OK;
    if (given) {
        status = experiment_read_list(p->task == TRAIN_SWAPS ? "places" : "length", given, LONGEST, &lengths,
                                      error);
    } else {
        const int64_t *items = preset_lengths(p->task, p->preset, &lengths.count);
        memcpy(lengths.items, items, (size_t)lengths.count * sizeof *items);
    }
    for (int i = 0; i < lengths.count && status == EXIT_OK; i++)
        status = add_cells(p, lengths.items[i], w, error);
    return status;
}

/* ---- switches */

static int read_switches(const words *w, plan *p, io_error *error)
{
    mixer_options *m = &p->options.mixing;
    int queries = 0, norm = 0, places = 0, unit = 0;
    int status = names_choose("queries", w->queries, queries_word, &queries, error);
    if (status == EXIT_OK) status = names_choose("norm", w->norm, norm_word, &norm, error);
    if (status == EXIT_OK) status = names_choose("positions", w->positions, positions_word, &places, error);
    if (status == EXIT_OK) status = names_choose("ridge-unit", w->ridge_unit, unit_word, &unit, error);
    if (status != EXIT_OK) return status;
    m->blind = queries > 0;
    m->layer_norm = norm > 0;
    m->positions = (positions)places;
    m->ridge_unit = unit > 0 ? LOAM_RIDGE_MAX : LOAM_RIDGE_NORMALISED;
    m->mlp = w->mlp;
    m->qk_norm = w->qk_norm;
    m->no_silu = w->no_silu;
    m->short_filter = w->short_filter;
    m->published_dims = w->published_dims;
    return EXIT_OK;
}

static int read_preset(const words *w, train_task task, plan *p, io_error *error)
{
    if (w->tiny + w->reduced + w->paper > 1)
        return io_fail(error, EXIT_USAGE, "--tiny, --reduced and --paper: expected one of them");
    preset_plan(p, task, w->paper ? PLAN_PAPER : w->reduced ? PLAN_REDUCED : PLAN_TINY);
    if (w->mechanisms && w->all)
        return io_fail(error, EXIT_USAGE, "--all and --mechanism: expected one of them");
    if (w->mechanisms) return read_mechanisms(w->mechanisms, p, error);
    preset_mechanisms(p, w->all);
    return EXIT_OK;
}

static int make_plan(const words *w, train_task task, plan *p, io_error *error)
{
    int status = read_preset(w, task, p, error);
    if (status == EXIT_OK && w->rates)
        status = lists_rates("rate", w->rates, p->rates, &p->rate_count, error);
    if (status == EXIT_OK && w->seeds) status = lists_seeds(w->seeds, p, error);
    if (status == EXIT_OK) status = read_cells(p, w, error);
    if (status == EXIT_OK) status = read_switches(w, p, error);
    for (int i = 0; i < p->mechanism_count && w->steps > 0; i++)
        p->mechanisms[i].steps = w->steps;
    if (w->tests > 0) p->tests = w->tests;
    if (w->layers > 0) p->options.shape.layers = w->layers;
    if (w->stop >= 0) p->options.stop = w->stop;
    p->stack = w->stack;
    return status;
}

/* ---- the table of options */

enum {
    CONTEXT = 1 << TRAIN_REGRESSION,
    RECALL = 1 << TRAIN_RECALL,
    SWAPS = 1 << TRAIN_SWAPS,
    WORDS = RECALL | SWAPS,
    EVERY = CONTEXT | WORDS
};

static int add_rows(option_row *rows, int count, const task_row *from, train_task task)
{
    for (; from->row.name; from++)
        if (from->tasks >> task & 1) rows[count++] = from->row;
    return count;
}

/* What is trained. */
static int add_plan_rows(option_row *rows, int count, train_task task, words *w)
{
    const task_row list[] = {
        { EVERY, { "tiny", OPTION_FLAG, &w->tiny, 0, 0, NULL, "a test of a minute or so, the default" } },
        { EVERY,
          { "reduced", OPTION_FLAG, &w->reduced, 0, 0, NULL,
            "fewer cells and steps than the paper's: minutes of a GPU" } },
        { EVERY, { "paper", OPTION_FLAG, &w->paper, 0, 0, NULL, "the paper's sweep: days of a GPU" } },
        { EVERY,
          { "mechanism", OPTION_TEXT, &w->mechanisms, 0, 0, "LIST",
            "which are trained, as in softmax,lla" } },
        { EVERY,
          { "all", OPTION_FLAG, &w->all, 0, 0, NULL,
            "linear, parallax and mesa beside those of the paper" } },
        { EVERY,
          { "rate", OPTION_TEXT, &w->rates, 0, 0, "LIST",
            "learning rates; the best of each mechanism and cell is shown" } },
        { EVERY,
          { "seed", OPTION_TEXT, &w->seeds, 0, 0, "LIST",
            "of weights and data; three or more decide what needs seeds" } },
        { CONTEXT, { "length", OPTION_TEXT, &w->lengths, 0, 0, "LIST", "L, pairs of a sequence" } },
        { CONTEXT,
          { "segment", OPTION_TEXT, &w->sizes, 0, 0, "LIST", "S, pairs of a segment (L/8,L/4,L/2,L)" } },
        { RECALL, { "length", OPTION_TEXT, &w->lengths, 0, 0, "LIST", "L, words of a sequence" } },
        { RECALL,
          { "pairs", OPTION_TEXT, &w->sizes, 0, 0, "LIST", "N, pairs of a key and a value (L/16,L/8,L/4)" } },
        { RECALL,
          { "separate", OPTION_FLAG, &w->separate, 0, 0, NULL,
            "a model for each number of pairs, not one for all" } },
        { RECALL,
          { "fill", OPTION_INT, &w->fill, 0, 1, "0|1", "between the pairs: word 0, or random words (1)" } },
        { SWAPS, { "places", OPTION_TEXT, &w->sizes, 0, 0, "LIST", "N, places that hold an item" } },
        { EVERY, { "steps", OPTION_INT, &w->steps, 1, MOST_STEPS, "N", "of each run" } },
        { EVERY,
          { "tests", OPTION_INT, &w->tests, 1, MOST_STEPS, "N", "of each run (--paper: one an epoch)" } },
        { WORDS,
          { "stop", OPTION_REAL, &w->stop, 0, 1, "X", "end a run at this accuracy; 0: at its last step" } },
        { 0 },
    };
    return add_rows(rows, count, list, task);
}

/* How it is made. */
static int add_switch_rows(option_row *rows, int count, train_task task, words *w)
{
    const task_row list[] = {
        { CONTEXT,
          { "queries", OPTION_TEXT, &w->queries, 0, 0, "plain|blind",
            "whether tokens see the rows of queries before them (plain), or none does (blind)" } },
        { EVERY, { "norm", OPTION_TEXT, &w->norm, 0, 0, "rms|layer", "RMSNorm (rms) or LayerNorm" } },
        { EVERY,
          { "positions", OPTION_TEXT, &w->positions, 0, 0, "learned|rope|none",
            "a learned vector for each (learned), rotations of queries and keys, or none" } },
        { EVERY, { "layers", OPTION_INT, &w->layers, 1, MODEL_MAX_LAYERS, "N", "of a model (2)" } },
        { EVERY, { "mlp", OPTION_FLAG, &w->mlp, 0, 0, NULL, "an MLP after each mixer" } },
        { EVERY, { "qk-norm", OPTION_FLAG, &w->qk_norm, 0, 0, NULL, "RMSNorm of queries, keys and probes" } },
        { EVERY,
          { "ridge-unit", OPTION_TEXT, &w->ridge_unit, 0, 0, "normalised|max",
            "what LLA's ridge is relative to: the sum of the weights (normalised) or the largest" } },
        { EVERY,
          { "no-silu", OPTION_FLAG, &w->no_silu, 0, 0, NULL,
            "no silu of the queries, keys and values of Gated DeltaNet and others" } },
        { EVERY,
          { "short-filter", OPTION_FLAG, &w->short_filter, 0, 0, NULL,
            "the convolution of a few tokens, where one is published with a mechanism" } },
        { EVERY,
          { "published-dims", OPTION_FLAG, &w->published_dims, 0, 0, NULL,
            "channels of keys and values as published, not the same for all" } },
        { 0 },
    };
    return add_rows(rows, count, list, task);
}

static int add_run_rows(option_row *rows, int count, train_task task, words *w, request *r)
{
    const task_row list[] = {
        { EVERY, { "backend", OPTION_TEXT, &w->backend, 0, 0, "cpu|cuda", "on the CPU (cpu) or a GPU" } },
        { EVERY,
          { "dtype", OPTION_TEXT, &w->dtype, 0, 0, "f32|bf16",
            "what products and attention read: f32, on a GPU bf16 by default" } },
        { EVERY,
          { "threads", OPTION_INT, &r->threads, 1, 4096, "N",
            "all by default; results do not depend on it" } },
        { EVERY,
          { "stack", OPTION_INT, &w->stack, 1, PLAN_STACK, "N",
            "models side by side at most (16 at a length of 64 to 2 at 512); results do not depend on it" } },
        { EVERY,
          { "time", OPTION_REAL, &r->minutes, 0.001, 1e9, "MINUTES",
            "end then, to be continued by the same command" } },
        { EVERY,
          { "checkpoint", OPTION_REAL, &r->interval, 0.01, 1e9, "SECONDS",
            "what a killed run may lose at most (60)" } },
        { EVERY,
          { "fit", OPTION_REAL, &r->fit, 0.001, 1e9, "MINUTES",
            "leave out rates, lengths or steps of a plan that would take longer, and say so" } },
        { EVERY,
          { "out", OPTION_TEXT, &r->out, 0, 0, "DIR",
            "where the results go (out/ and the experiment's name)" } },
        { EVERY, { "resume", OPTION_FLAG, &r->resume, 0, 0, NULL, "insist on a killed run to continue" } },
        { EVERY, { "restart", OPTION_FLAG, &r->restart, 0, 0, NULL, "discard what a killed run left" } },
        { 0 },
    };
    return add_rows(rows, count, list, task);
}

static int parse(request *r, train_task task, words *w, int argc, char **argv, bool *help, io_error *error)
{
    const int at = (int)(task - TRAIN_REGRESSION);
    option_row rows[OPTIONS] = { 0 };
    char text[1024];
    int count = add_plan_rows(rows, 0, task, w);
    count = add_switch_rows(rows, count, task, w);
    add_run_rows(rows, count, task, w, r);
    snprintf(text, sizeof text, "%s%s", about[at], common_about);
    return experiment_parse(argc, argv, rows, usages[at], text, help, error);
}

int request_read(request *r, train_task task, int argc, char **argv, bool *help, io_error *error)
{
    static const char *const outs[] = { "out/context", "out/recall", "out/swaps" };
    words w = { .queries = "plain",
                .norm = "rms",
                .positions = "learned",
                .ridge_unit = "normalised",
                .backend = "cpu",
                .fill = 1,
                .stop = -1 };
    *r = (request){ .out = outs[task - TRAIN_REGRESSION], .interval = CHECKPOINT_SECONDS };
    int status = parse(r, task, &w, argc, argv, help, error);
    if (status != EXIT_OK || *help) return status;
    if (r->resume && r->restart)
        return io_fail(error, EXIT_USAGE, "--resume and --restart contradict each other");
    status = experiment_check_out(r->out, error);
    if (status == EXIT_OK) status = backend_read(&r->where, w.backend, w.dtype, error);
    return status == EXIT_OK ? make_plan(&w, task, &r->plan, error) : status;
}
