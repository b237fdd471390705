/* SPDX-License-Identifier: MIT
 * loam distill: a pretrained Transformer whose softmax attention becomes positive random features. */
#define _POSIX_C_SOURCE 200809L
#include "cli/command.h"
#include "cli/distill/beside.h"
#include "cli/distill/course.h"
#include "cli/distill/measure.h"
#include "cli/distill/strategy.h"
#include "cli/lm/folder.h"
#include "cli/lm/lm.h"
#include "cli/names.h"
#include "cli/progress.h"
#include "distill/flushed.h"
#include "distill/model.h"
#include "io/out_file.h"
#include "lm/chat.h"
#include "lm/path.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char USAGE[] = "loam distill MODEL --calibration FILE[,FILE..] --text FILE[,FILE..] [options]";
static const char ABOUT[] =
    "Softmax attention of a pretrained Transformer as positive random features: how well the model predicts "
    "with features drawn in several ways, and with those that were trained layer by layer on its own queries "
    "and keys.";

static const double interval = 60; /* seconds between checkpoints */

typedef struct request {
    lm_words words;
    const char *calibration, *texts, *loss, *strategy, *start, *out;
    ridge_choice choice; /* of what is predicted */
    int64_t windows, layer, seed, measured_windows, measured_steps, hybrid;
    dof_budget budget;
    bool shared, cascade, untied;
    int how;   /* the strategy */
    int begin; /* a student_start, of what is trained */
    training_options training;
} request;

/* ---- options */

static const char *start_name(int index)
{
    static const char *const names[] = { [STUDENT_PAIRS] = "pairs",
                                         [STUDENT_NORMAL] = "normal",
                                         [STUDENT_ORTHOGONAL] = "orthogonal",
                                         [STUDENT_DCT] = "dct" };
    return (size_t)index < sizeof names / sizeof *names ? names[index] : NULL;
}

static int check(request *r, io_error *error)
{
    int kind = r->training.loss;
    int status = names_choose("loss", r->loss, course_loss, &kind, error);
    if (!status) status = names_choose("strategy", r->strategy, strategy_name, &r->how, error);
    if (!status) status = names_choose("start", r->start, start_name, &r->begin, error);
    r->training.loss = (feature_loss_kind)kind, r->training.seed = (uint64_t)r->seed;
    if (!status && r->budget.mean > 0 && dof_budget_check(&r->budget, error)) return EXIT_USAGE;
    if (!status && r->hybrid > 0 && r->training.steps > 0 && kind != FEATURE_LOSS_SOFTMAX)
        return io_fail(error, EXIT_USAGE, "--hybrid: trains by the softmax loss; leave --loss out");
    if (!status && r->cascade && r->layer >= 0)
        return io_fail(error, EXIT_USAGE, "--cascade with --layer %" PRId64 ": expected all layers",
                       r->layer);
    return !status && r->out ? experiment_check_out(r->out, error) : status;
}

static request request_default(void)
{
    return (request){ .words = lm_words_default(),
                      .choice = { .tokens = 4096, .context = 512 },
                      .windows = 64,
                      .layer = -1,
                      .measured_windows = 8,
                      .measured_steps = 100,
                      .budget = { .unit = 8, .most = LOAM_MAX_DIM },
                      .training = training_options_default() };
}

static int read_request(request *r, int argc, char **argv, const char **model, bool *help, io_error *error)
{
    *r = request_default();
    const option_row rows[] = {
        { "calibration", OPTION_TEXT, &r->calibration, 0, 0, "FILE,..", "texts that features are fitted to" },
        { "windows", OPTION_INT, &r->windows, 1, 1e6, "N",
          "of them, of whole context; of an encoder lines; default 64" },
        { "text", OPTION_TEXT, &r->texts, 0, 0, "FILE,..", "texts that are predicted, or lines compared" },
        { "tokens", OPTION_INT, &r->choice.tokens, 1, 1e9, "N", "of these, of each as many; default 4096" },
        { "context", OPTION_INT, &r->choice.context, 2, 1e6, "N", "tokens of a window; default 512" },
        { "features", OPTION_INT, &r->budget.mean, 1, LOAM_MAX_DIM, "M",
          "of a head in the mean; default 64, of an encoder a head's channels" },
        { "unit", OPTION_INT, &r->budget.unit, 1, LOAM_MAX_DIM, "N",
          "features are multiples of it; default 8" },
        { "strategy", OPTION_TEXT, &r->strategy, 0, 0, "NAME",
          "who has more: fix (default: none), rel, attn, head, clip or measured" },
        { "measured-windows", OPTION_INT, &r->measured_windows, 1, 1e6, "N",
          "of the calibration that measured predicts; default 8" },
        { "measured-steps", OPTION_INT, &r->measured_steps, 0, 1e9, "N",
          "of training before it measures; default 100" },
        { "shared", OPTION_FLAG, &r->shared, 0, 0, NULL, "one state for the queries that share keys" },
        { "hybrid", OPTION_INT, &r->hybrid, 1, 1e6, "W",
          "also exact sinks and a window of W tokens beside fewer features; default: not" },
        { "layer", OPTION_INT, &r->layer, 0, 1e6, "N", "the one layer without softmax; default all" },
        { "loss", OPTION_TEXT, &r->loss, 0, 0, "NAME", "softmax (default), l2row or l2" },
        { "start", OPTION_TEXT, &r->start, 0, 0, "NAME",
          "where training begins: pairs (default), normal, orthogonal or dct; a cascade at pairs" },
        { "untied", OPTION_FLAG, &r->untied, 0, 0, NULL,
          "also a student whose queries and keys have features of their own, trained on the CPU" },
        { "cascade", OPTION_FLAG, &r->cascade, 0, 0, NULL,
          "also a student whose layers are trained one after the other, on what those before it make" },
        { "steps", OPTION_INT, &r->training.steps, 0, 1e9, "N", "of training; default 2000, 0: none" },
        { "batch", OPTION_INT, &r->training.batch, 1, 1e6, "N", "windows of a step; default 8" },
        { "rate", OPTION_REAL, &r->training.rate, 1e-9, 10, "X", "of z; default 0.02" },
        { "rate-alpha", OPTION_REAL, &r->training.rate_log_alpha, 1e-9, 10, "X",
          "of log alpha; default 0.05" },
        { "seed", OPTION_INT, &r->seed, 0, 9e15, "N", "of draws and orders; default 0" },
        { "out", OPTION_TEXT, &r->out, 0, 0, "DIR",
          "the students as models, results.csv, windows.csv, training.safetensors; default none" },
        { "weights", OPTION_TEXT, &r->words.weights, 0, 0, "TYPE",
          "in memory: f32, bf16 or f16; default: the file's type, of 4- and 8-bit files f32" },
        { "tokenizer", OPTION_TEXT, &r->words.tokenizer, 0, 0, "PATH",
          "tokenizer.json, a folder or .gguf; default: beside the model" },
        { "backend", OPTION_TEXT, &r->words.backend, 0, 0, "cpu|cuda",
          "default cpu, which trains in float64; cuda in float32" },
        { "device", OPTION_INT, &r->words.device, 0, 1023, "N", "which GPU; default 0" },
        { "threads", OPTION_INT, &r->words.threads, 1, 4096, "N",
          "default: all; results do not depend on it" },
        { .name = NULL },
    };
    const int status = options_parse(&argc, argv, rows, USAGE, ABOUT, help, error);
    if (status || *help) return status;
    if (argc != 2 || !r->texts || !r->calibration)
        return io_fail(error, EXIT_USAGE, "expected one model, --calibration and --text; usage: %s", USAGE);
    *model = argv[1];
    return check(r, error);
}

/* ---- a run */

typedef struct command {
    const request *r;
    const char *model; /* its path */
    lm_session session;
    ridge_plan plan;
    distillation from;
    trial trial;
    shares shares;
    double *flushed; /* [layers], of the last student */
    progress bar;
    dof_budget budget;
    bool encoder;
} command;

static void count_one(void *bar) { progress_add(bar, 1); }

static int share_features(command *c, io_error *error)
{
    const request *r = c->r;
    strategy_problem p = { .how = strategy_at(r->how),
                           .budget = c->budget,
                           .from = &c->from,
                           .seed = r->training.seed,
                           .measured = { .windows = r->measured_windows,
                                         .fit = { .options = r->training, .end = INFINITY } } };
    bool whole;
    p.measured.fit.options.steps = r->measured_steps;
    return strategy_share(&p, &c->shares, &whole, error);
}

/* What depends on the model: the number of features, and an encoder's limits. */
static int suit(command *c, io_error *error)
{
    const lm_config *config = lm_model_config(c->session.model);
    c->encoder = config->architecture == LM_BERT, c->budget = c->r->budget;
    if (c->budget.mean == 0) c->budget.mean = c->encoder ? config->head_dim : 64;
    if (c->encoder && c->session.on.gpu && c->r->training.steps > 0)
        return io_fail(error, EXIT_USAGE,
                       "--backend cuda: features of an encoder are trained on the CPU; expected --steps 0 or "
                       "--backend cpu");
    if (c->r->untied && c->session.on.gpu && c->r->training.steps > 0)
        return io_fail(error, EXIT_USAGE, "--untied with --backend cuda: it is trained on the CPU");
    if (c->encoder && c->r->hybrid > 0)
        return io_fail(error, EXIT_USAGE, "--hybrid %" PRId64 ": the model's tokens see those after them",
                       c->r->hybrid);
    return dof_budget_check(&c->budget, error);
}

static int open_all(command *c, io_error *error)
{
    const request *r = c->r;
    int status = lm_session_open(&c->session, c->model, &r->words, error);
    if (!status) status = distillation_check(&c->session, c->model, error);
    if (!status) status = suit(c, error);
    const distillation_choice choice = { r->calibration, r->windows, r->choice.context, c->budget.mean,
                                         r->shared };
    if (!status)
        status = ridge_plan_open(&c->plan, &r->choice, c->session.model, c->session.tokens, r->texts, error);
    if (!status) status = trial_open(&c->trial, &c->plan, c->session.model, error);
    if (!status) status = distillation_open(&c->from, &c->session, &choice, error);
    int64_t features;
    if (!status && r->hybrid > 0) status = beside_features(&c->from, r->hybrid, &features, error);
    return status ? status : share_features(c, error);
}

static int measure(command *c, const distill_arm *arm, const student *s, int64_t window, io_error *error)
{
    return measure_arm_of(&c->from, &c->trial, arm, s, c->r->layer, window, error);
}

/* How many tokens of a sentence an encoder reads is told by a file of its own (loam lm embed). */
static int copy_length(const command *c, const char *directory, io_error *error)
{
    static const char name[] = "sentence_bert_config.json";
    char path[EXPERIMENT_PATH], *from = NULL, *text = NULL;
    size_t bytes = 0;
    out_file *file;
    int status = lm_path(&from, c->model, name, error);
    if (!status && access(from, F_OK) == 0) {
        status = lm_text_file(&text, &bytes, from, error);
        snprintf(path, sizeof path, "%s/%s", directory, name);
        if (!status && !(status = out_open(&file, path, error))) {
            fwrite(text, 1, bytes, out_stream(file));
            status = out_commit(file, error);
        }
    }
    free(text);
    free(from);
    return status;
}

/* The student as a folder that loam lm reads. */
static int save_model(const command *c, const student *s, const char *directory, io_error *error)
{
    const lm_session *from = &c->session;
    char path[EXPERIMENT_PATH], *template = NULL;
    student_model m;
    int status = student_model_make(&m, from->files, s, c->r->layer, error);
    if (!status) status = lm_chat_template(&template, c->model, error);
    const lm_folder folder = { &m.config, lm_model_type(from->model), student_model_read, &m, from->tokens,
                               template };
    for (int i = 0; !status && i < LM_FOLDER_FILES; i++) {
        snprintf(path, sizeof path, "%s/%s", directory, lm_folder_name(i));
        status = lm_folder_write(&folder, i, path, error);
    }
    free(template);
    return !status && c->encoder ? copy_length(c, directory, error) : status;
}

/* What is kept of the last student: how its states fare, and where --out says so the model. */
static int finish(command *c, const student *s, io_error *error)
{
    c->flushed = calloc((size_t)c->from.of.layers, sizeof *c->flushed);
    if (!c->flushed) return io_fail(error, EXIT_INTERNAL, "out of memory for shares");
    const int status = c->encoder ? 0
                                  : student_flushed(s, &c->from.of, c->session.on.threads, c->flushed, error);
    return !status && c->r->out ? save_model(c, s, c->r->out, error) : status;
}

/* Of a training: what began elsewhere than at pairs has a file of its own. */
static void checkpoint_of(const request *r, const distill_arm *arm, char path[EXPERIMENT_PATH])
{
    const bool pairs = r->begin == STUDENT_PAIRS;
    if (arm->form == FORM_CASCADE)
        snprintf(path, EXPERIMENT_PATH, "%s/cascade", r->out);
    else
        snprintf(path, EXPERIMENT_PATH, "%s/%s%s%s.safetensors", r->out,
                 arm->form == FORM_UNTIED ? "untied" : "training", pairs ? "" : "-",
                 pairs ? "" : start_name(r->begin));
}

static int train(command *c, const distill_arm *arm, student *s, io_error *error)
{
    const bool cascade = arm->form == FORM_CASCADE;
    char path[EXPERIMENT_PATH];
    if (c->r->out) checkpoint_of(c->r, arm, path);
    const fit by = { c->r->training, c->r->out ? path : NULL, interval, INFINITY, count_one, &c->bar };
    bool whole;
    progress_begin(&c->bar, arm->name, by.options.steps * (cascade ? c->from.of.layers : 1));
    const int status = cascade ? fit_cascade(&c->from, s, &by, &whole, error)
                               : fit_run(&c->from, s, &by, &whole, error);
    progress_end(&c->bar);
    return status;
}

static bool is_trained(const distill_arm *a) { return a->form >= FORM_TRAINED; }

/* last: its student is the one that is kept. */
static int measure_arm(command *c, const distill_arm *arm, bool last, io_error *error)
{
    student s = { 0 };
    distill_arm from = *arm;
    int status = 0;
    if (!distill_arm_has_features(arm)) return measure(c, arm, NULL, 0, error);
    if (is_trained(arm)) from.start = (student_start)c->r->begin;
    status = distillation_begin(&c->from, &s, &from, c->shares.features, c->shares.used, c->r->training.seed,
                                error);
    if (!status && arm->form == FORM_UNTIED) status = student_untie(&s, error);
    if (!status && is_trained(arm)) status = train(c, arm, &s, error);
    if (!status) status = measure(c, arm, &s, 0, error);
    if (!status && last) status = finish(c, &s, error);
    student_close(&s);
    return status;
}

/* The student with its window as a folder of its own. */
static int save_hybrid(const command *c, const student *s, io_error *error)
{
    char directory[EXPERIMENT_PATH];
    snprintf(directory, sizeof directory, "%s/hybrid", c->r->out);
    const int status = experiment_make_directories(directory, error);
    return status ? status : save_model(c, s, directory, error);
}

static int measure_hybrid(command *c, beside_form form, const char *path, io_error *error)
{
    const fit by = { c->r->training, path, interval, INFINITY, count_one, &c->bar };
    const int64_t window = c->r->hybrid;
    student s = { 0 };
    bool whole;
    progress_begin(&c->bar, beside_arm(form)->name, form == BESIDE_TRAINED ? by.options.steps : 0);
    int status = beside_begin(&c->from, &s, form, window, &by, c->r->training.seed, &whole, error);
    progress_end(&c->bar);
    if (!status) status = measure(c, beside_arm(form), &s, window, error);
    if (!status && path && c->r->layer < 0) status = save_hybrid(c, &s, error);
    student_close(&s);
    return status;
}

static int measure_hybrids(command *c, const char *path, io_error *error)
{
    int status = 0;
    if (c->r->hybrid == 0) return 0;
    status = measure_hybrid(c, BESIDE_DRAWN, NULL, error);
    return status || c->r->training.steps == 0 ? status : measure_hybrid(c, BESIDE_TRAINED, path, error);
}

static bool is_wanted(const command *c, const distill_arm *a)
{
    switch (a->form) {
    case FORM_WINDOW: return !c->encoder;
    case FORM_TRAINED: return c->r->training.steps > 0;
    case FORM_UNTIED: return c->r->training.steps > 0 && c->r->untied;
    case FORM_CASCADE: return c->r->training.steps > 0 && c->r->cascade;
    case FORM_HYBRID:
    case FORM_DIRECT: return false; /* a hybrid is one of --hybrid, beside the table */
    default: return true;
    }
}

static int measure_all(command *c, io_error *error)
{
    int last = 0;
    for (int i = 0; distill_arm_at(i); i++)
        if (is_wanted(c, distill_arm_at(i)) && distill_arm_has_features(distill_arm_at(i))) last = i;
    const distill_arm *arm;
    int status = 0;
    for (int i = 0; !status && (arm = distill_arm_at(i)); i++)
        if (is_wanted(c, arm)) status = measure_arm(c, arm, i == last, error);
    return status;
}

/* ---- results */

/* By how much of what features of N(0, I) lose. */
static double gap_of(const trial *t, int arm)
{
    return trial_value_of(t, arm).more / trial_value_of(t, distill_arm_find("normal")).more;
}

/* Of the layers that have features. */
static void print_flushed(const command *c)
{
    double sum = 0;
    int64_t most = c->r->layer < 0 ? 0 : c->r->layer;
    for (int64_t i = 0; i < c->from.of.layers; i++) {
        sum += c->flushed[i] / (double)c->from.of.layers;
        if (c->r->layer < 0 && c->flushed[i] > c->flushed[most]) most = i;
    }
    printf("keys that take the past of a feature times less than e^-20: %.3g %% of a head's tokens",
           100 * (c->r->layer < 0 ? sum : c->flushed[most]));
    if (c->r->layer < 0) printf(" in the mean, %.3g %% in layer %" PRId64, 100 * c->flushed[most], most);
    printf("\n");
}

static void print_hybrid(const command *c)
{
    int64_t features;
    if (c->r->hybrid > 0 && !beside_features(&c->from, c->r->hybrid, &features, NULL))
        printf("hybrid: softmax over the first %d tokens and the last %" PRId64 ", %" PRId64
               " features of a head for those between, a gain for each\n",
               DISTILL_SINKS, c->r->hybrid, features);
}

/* A mean of -log p, or of cosines. */
static double mean_of(const command *c, trial_value v) { return c->encoder ? 1 - v.mean : v.mean; }

static void print_inputs(const command *c)
{
    const char *const calibrate = c->encoder ? "lines of at most" : "windows of",
                      *const judge = c->encoder ? "lines are compared" : "windows are predicted";
    printf("%" PRId64 " %s %" PRId64 " tokens calibrate, %" PRId64 " %s; %" PRId64
           " features of a %s head in the mean, %s\n",
           c->from.of.windows, calibrate, c->from.of.tokens, c->plan.window_count, judge, c->budget.mean,
           c->r->shared ? "key" : "query", c->r->layer < 0 ? "all layers" : "one layer");
    shares_print(&c->shares, c->from.of.layers);
    if (c->encoder) return;
    printf("window: softmax over the first %d tokens and the last %" PRId64 "\n", DISTILL_SINKS,
           distillation_window(lm_model_config(c->session.model), &c->from.choice));
    print_hybrid(c);
    print_flushed(c);
}

static void print(const command *c)
{
    const trial *t = &c->trial;
    print_inputs(c);
    printf("\n%-16s %8s %9s %7s %7s\n", "attention", c->encoder ? "cosine" : "NLL",
           c->encoder ? "less" : "more", "error", "gap");
    for (int arm = 0; arm < t->count; arm++) {
        const trial_value v = trial_value_of(t, arm);
        printf("%-16s %8.4f %+9.4f %7.4f %7.3f\n", t->names[arm], mean_of(c, v), v.more, v.error,
               gap_of(t, arm));
    }
}

static int write_csv(const command *c, const char *path, io_error *error)
{
    const trial *t = &c->trial;
    out_file *file;
    const int status = out_open(&file, path, error);
    if (status) return status;
    FILE *out = out_stream(file);
    fprintf(out, "attention,%s,error,gap\n", c->encoder ? "cosine,less" : "nll,more");
    for (int arm = 0; arm < t->count; arm++) {
        const trial_value v = trial_value_of(t, arm);
        fprintf(out, "%s,%.9g,%.9g,%.9g,%.9g\n", t->names[arm], mean_of(c, v), v.more, v.error,
                gap_of(t, arm));
    }
    return out_commit(file, error);
}

/* Sums over windows of each attention, by which those of two runs are compared in pairs. */
static int write_windows(const command *c, const char *path, io_error *error)
{
    const trial *t = &c->trial;
    out_file *file;
    const int status = out_open(&file, path, error);
    if (status) return status;
    FILE *out = out_stream(file);
    fprintf(out, "attention,window,text,%s\n", c->encoder ? "scored,less" : "tokens,nll");
    for (int arm = 0; arm < t->count; arm++)
        for (int64_t n = 0; n < c->plan.window_count; n++) {
            const ridge_window *w = &c->plan.windows[n];
            fprintf(out, "%s,%" PRId64 ",%d,%" PRId64 ",%.17g\n", t->names[arm], n, w->text, w->at.scored,
                    t->sums[arm][n]);
        }
    return out_commit(file, error);
}

static int run(command *c, io_error *error)
{
    const char *const out = c->r->out;
    char csv[EXPERIMENT_PATH], windows[EXPERIMENT_PATH], hybrid[EXPERIMENT_PATH];
    snprintf(csv, sizeof csv, "%s/results.csv", out ? out : "");
    snprintf(windows, sizeof windows, "%s/windows.csv", out ? out : "");
    snprintf(hybrid, sizeof hybrid, "%s/hybrid.safetensors", out ? out : "");
    int status = open_all(c, error);
    if (!status && out) status = experiment_make_directories(out, error);
    if (!status) status = measure_all(c, error);
    if (!status) status = measure_hybrids(c, out ? hybrid : NULL, error);
    if (!status) print(c);
    if (!status && out) status = write_windows(c, windows, error);
    return !status && out ? write_csv(c, csv, error) : status;
}

int command_distill(int argc, char **argv)
{
    request r;
    io_error error;
    const char *model = NULL;
    bool help = false;
    int status = read_request(&r, argc, argv, &model, &help, &error);
    if (!status && help) return EXIT_OK;
    command *c = status ? NULL : calloc(1, sizeof *c);
    if (!status && !c) status = io_fail(&error, EXIT_INTERNAL, "out of memory");
    if (c) {
        c->r = &r, c->model = model;
        status = run(c, &error);
        trial_close(&c->trial);
        distillation_close(&c->from);
        ridge_plan_close(&c->plan);
        lm_session_close(&c->session);
        shares_close(&c->shares);
        free(c->flushed);
    }
    free(c);
    return status ? options_report("distill", &error) : EXIT_OK;
}
