/* SPDX-License-Identifier: MIT */
#include "cli/training/probe_arms.h"

#include "cli/experiment/options.h"
#include "cli/names.h"
#include "cli/training/lists.h"
#include "cli/training/preset.h"
#include "cli/training/text.h"
#include "train/checkpoint.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const char *const probe_start_names[] = {
    "none", "zero", "like W_q", "normed", "gated", "softmax", "softmax"
};

static const char *const short_names[] = {
    "softmax", "zero", "like", "normed", "gated", "convert", "control"
};

static const char about[] =
    "Parallax beside softmax, by AdamW and by Muon, on recall and regression in context: does the probe's "
    "matrix use more directions under Muon, does the correction grow, and does it help. Parallax starts "
    "from W_R = 0 and from W_R like W_q, with --all also with RMSNorm of queries, keys and probes and with "
    "a gate on the probe; last, what softmax has learned goes on as Parallax, and as softmax.\n"
    "Writes probe.csv (each test of each run and layer), times.csv and index.html. A killed run goes on "
    "when it is started again with the same options, and comes to the same bytes in every file but "
    "times.csv.";

typedef struct words {
    const char *rates, *muon_rates, *seeds, *scale, *backend, *dtype;
    int64_t steps, tests;
    bool tiny, reduced, paper, all;
} words;

/* Its rates, and whether its steps are as long as AdamW's. */
typedef struct muon_choice {
    double rates[PLAN_RATES];
    int count;
    bool rms;
} muon_choice;

static const char *scale_word(int index)
{
    static const char *const list[] = { "jordan", "rms", NULL };
    return list[index];
}

static int parse(probe_request *r, words *w, int argc, char **argv, bool *help, io_error *error)
{
    const option_row rows[] = {
        { "tiny", OPTION_FLAG, &w->tiny, 0, 0, NULL, "a test of some minutes, the default" },
        { "reduced", OPTION_FLAG, &w->reduced, 0, 0, NULL,
          "recall at L = 64, context at L = 128 and S = 32" },
        { "paper", OPTION_FLAG, &w->paper, 0, 0, NULL, "likewise, with all steps, rates and three seeds" },
        { "all", OPTION_FLAG, &w->all, 0, 0, NULL,
          "Parallax with RMSNorm, and with a gate on the probe, too" },
        { "rate", OPTION_TEXT, &w->rates, 0, 0, "LIST",
          "learning rates of AdamW; Muon has the highest beside its own" },
        { "muon-rate", OPTION_TEXT, &w->muon_rates, 0, 0, "LIST", "learning rates of Muon" },
        { "muon-scale", OPTION_TEXT, &w->scale, 0, 0, "jordan|rms",
          "length of Muon's steps: that of its authors (jordan), or one that AdamW's rates fit" },
        { "seed", OPTION_TEXT, &w->seeds, 0, 0, "LIST",
          "of weights and data; three or more decide what needs seeds" },
        { "steps", OPTION_INT, &w->steps, 1, 1e8, "N", "of each run" },
        { "tests", OPTION_INT, &w->tests, 1, 1e8, "N", "of each run (10)" },
        { "backend", OPTION_TEXT, &w->backend, 0, 0, "cpu|cuda",
          "on the CPU (cpu), or a GPU, whose layers the CPU measures" },
        { "dtype", OPTION_TEXT, &w->dtype, 0, 0, "f32|bf16",
          "what products and attention read: f32, on a GPU bf16 by default" },
        { "threads", OPTION_INT, &r->threads, 1, 4096, "N", "all by default; results do not depend on it" },
        { "time", OPTION_REAL, &r->minutes, 0.001, 1e9, "MINUTES",
          "end then, to be continued by the same command" },
        { "checkpoint", OPTION_REAL, &r->interval, 0.01, 1e9, "SECONDS",
          "what a killed run may lose at most (60)" },
        { "out", OPTION_TEXT, &r->out, 0, 0, "DIR", "where the results go (out/probe)" },
        { "resume", OPTION_FLAG, &r->resume, 0, 0, NULL, "insist on a killed run to continue" },
        { "restart", OPTION_FLAG, &r->restart, 0, 0, NULL, "discard what a killed run left" },
        { 0 },
    };
    return experiment_parse(argc, argv, rows, "loam experiment probe [options]", about, help, error);
}

/* ---- arms */

static void set_list(double *rates, int *count, const double *from, int many)
{
    memcpy(rates, from, (size_t)many * sizeof *rates);
    *count = many;
}

/* What all arms of a task have in common; rates are AdamW's. */
static void make_task(plan *p, train_task task, plan_preset size)
{
    static const double usual[] = { 5e-4, 1e-3 };
    const int64_t length = size == PLAN_TINY      ? (task == TRAIN_RECALL ? 16 : 32)
                           : task == TRAIN_RECALL ? 64
                                                  : 128;
    int64_t sizes[RECALL_PARTS + 1];
    int count = preset_sizes(task, size, length, sizes);
    preset_plan(p, task, size);
    if (task == TRAIN_REGRESSION) sizes[0] = length / 4, count = 1;
    preset_add(p, length, sizes, count, true, false);
    p->options.stop = 0;
    p->tests = 10;
    if (size == PLAN_PAPER) set_list(p->rates, &p->rate_count, usual, 2);
    if (size == PLAN_REDUCED) set_list(p->rates, &p->rate_count, usual + 1, 1);
}

static void add_arm(probe_request *r, const plan *task, probe_start start, bool by_muon,
                    const muon_choice *muon)
{
    probe_arm *arm = &r->arms[r->count++];
    plan *p = &arm->plan;
    *p = *task;
    arm->start = start;
    snprintf(arm->name, sizeof arm->name, "%s-%s-%s", p->name, short_names[start],
             by_muon ? "muon" : "adamw");
    preset_train(p, mixer_find(start == PROBE_NONE || start == PROBE_CONTROL ? "softmax" : "parallax"));
    p->options.mixing.probe_zero = start == PROBE_ZERO || start == PROBE_CONVERT;
    p->options.mixing.qk_norm = start == PROBE_NORM;
    p->options.mixing.probe_gate = start == PROBE_GATE;
    p->options.muon = by_muon;
    if (!by_muon) return;
    p->options.muon_rms = muon->rms;
    p->adamw = task->rates[task->rate_count - 1];
    set_list(p->rates, &p->rate_count, muon->rates, muon->count);
}

static void describe(probe_request *r, const words *w, plan_preset size)
{
    static const char *const sizes[] = { "tiny", "reduced", "paper" };
    const plan *p = &r->arms[0].plan, *muon = &r->arms[1].plan;
    char *text = r->description;
    const size_t room = sizeof r->description;
    text_add(text, room, "loam %s, probe, %s; %d arms; %" PRId64 " tests; steps %" PRId64 " (0: by task)",
             loam_version(), sizes[size], r->count, p->tests, w->steps);
    text_add(text, room, "; AdamW %s", w->rates ? w->rates : "by task");
    text_add(text, room, "; Muon %s", muon->options.muon_rms ? "rms" : "jordan");
    for (int i = 0; i < muon->rate_count; i++)
        text_add(text, room, " %g", muon->rates[i]);
    text_add(text, room, "; seeds");
    for (int i = 0; i < p->seed_count; i++)
        text_add(text, room, " %" PRIu64, p->seeds[i]);
    text_add(text, room, "; %s", backend_text(r->where));
}

/* Of as many runs as the first arm, each of which goes on from one of those. */
static void add_further(probe_request *r, probe_start start)
{
    enum { MORE = 500 };
    plan task = r->arms[0].plan;
    const int64_t steps = task.mechanisms[0].steps;
    task.mechanism_count = 0;
    add_arm(r, &task, start, false, NULL);
    r->arms[r->count - 1].plan.mechanisms[0].steps = steps < MORE ? steps : MORE;
}

static int make_arms(probe_request *r, const words *w, plan_preset size, const muon_choice *muon,
                     io_error *error)
{
    static const train_task tasks[] = { TRAIN_RECALL, TRAIN_REGRESSION };
    for (int t = 0; t < 2; t++) {
        plan task;
        int status = EXIT_OK;
        make_task(&task, tasks[t], size);
        if (w->rates) status = lists_rates("rate", w->rates, task.rates, &task.rate_count, error);
        if (status == EXIT_OK && w->seeds) status = lists_seeds(w->seeds, &task, error);
        if (status != EXIT_OK) return status;
        if (w->tests > 0) task.tests = w->tests;
        for (int start = 0; start < (w->all ? PROBE_CONVERT : PROBE_NORM); start++)
            for (int by_muon = 0; by_muon < 2; by_muon++) {
                add_arm(r, &task, (probe_start)start, by_muon, muon);
                plan_mechanism *trained = &r->arms[r->count - 1].plan.mechanisms[0];
                /* Of one length, so that they compare. */
                trained->steps = w->steps > 0 ? w->steps : preset_steps(tasks[t], size);
            }
    }
    add_further(r, PROBE_CONVERT);
    add_further(r, PROBE_CONTROL);
    return EXIT_OK;
}

int probe_request_read(probe_request *r, int argc, char **argv, bool *help, io_error *error)
{
    static const double usual[] = { 0.005, 0.01, 0.02 };
    words w = { .scale = "jordan", .backend = "cpu" };
    muon_choice muon = { 0 };
    int scale = 0;
    *r = (probe_request){ .out = "out/probe", .interval = CHECKPOINT_SECONDS };
    int status = parse(r, &w, argc, argv, help, error);
    if (status != EXIT_OK || *help) return status;
    const plan_preset size = w.paper ? PLAN_PAPER : w.reduced ? PLAN_REDUCED : PLAN_TINY;
    if (w.tiny + w.reduced + w.paper > 1)
        return io_fail(error, EXIT_USAGE, "--tiny, --reduced and --paper: expected one of them");
    if (r->resume && r->restart)
        return io_fail(error, EXIT_USAGE, "--resume and --restart contradict each other");
    status = experiment_check_out(r->out, error);
    if (status == EXIT_OK) status = backend_read(&r->where, w.backend, w.dtype, error);
    if (status == EXIT_OK) status = names_choose("muon-scale", w.scale, scale_word, &scale, error);
    set_list(muon.rates, &muon.count, size == PLAN_PAPER ? usual : usual + 1, size == PLAN_PAPER ? 3 : 1);
    if (status == EXIT_OK && w.muon_rates)
        status = lists_rates("muon-rate", w.muon_rates, muon.rates, &muon.count, error);
    muon.rms = scale > 0;
    if (status == EXIT_OK) status = make_arms(r, &w, size, &muon, error);
    if (status == EXIT_OK) describe(r, &w, size);
    return status;
}
