/* SPDX-License-Identifier: MIT
 * loam experiment graft: ridges, temperatures, probes and LoRA, trained on top of a pretrained model. */
#define _POSIX_C_SOURCE 200809L
#include "cli/experiment/options.h"
#include "cli/graft/report.h"
#include "cli/graft/run.h"
#include "cli/lm/lm.h"
#include "cli/names.h"
#include "cli/plot.h"
#include "cli/training/backend.h"
#include "train/checkpoint.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char USAGE[] = "loam experiment graft MODEL --text FILE[,FILE..] [options]";
static const char ABOUT[] =
    "A few numbers are trained on top of a pretrained model, whose own weights stay as they are: a ridge of "
    "Local Linear Attention for each layer and head, alone or beside a temperature, and the control, a "
    "temperature of softmax; Parallax with a probe of low rank that begins at 0, and the control, LoRA of "
    "the queries with as many parameters. NLL of held-out text against the model as it is and against the "
    "control, on the same windows.\n"
    "A killed run goes on when it is started again with the same options, and comes to the same bytes in "
    "every file but times.csv.";

typedef struct request {
    const char *texts, *held, *out, *kinds, *seeds, *tokenizer, *backend, *dtype;
    graft_choice choice;
    int64_t threads;
    double minutes, interval;
    bool tiny, restart;
} request;

/* ---- options */

static const char *kind_word(int index) { return graft_name(index); }

/* Names with commas between; NULL: all. */
static int read_kinds(const char *text, bool kinds[GRAFT_KINDS], io_error *error)
{
    int status = 0;
    for (int kind = 0; kind < GRAFT_KINDS; kind++)
        kinds[kind] = !text;
    for (const char *at = text; at && !status; at = *at ? at + 1 : NULL) {
        const size_t bytes = strcspn(at, ",");
        char name[32] = "";
        int kind = 0;
        if (bytes < sizeof name) memcpy(name, at, bytes);
        status = names_choose("train", name, kind_word, &kind, error);
        if (!status) kinds[kind] = true;
        at += bytes;
    }
    return status;
}

static void set(int64_t *value, int64_t usual) { *value = *value > 0 ? *value : usual; }

static int check_request(request *r, const backend *where, io_error *error)
{
    graft_choice *c = &r->choice;
    set(&c->steps, r->tiny ? 20 : 200);
    set(&c->batch, r->tiny ? 2 : 8);
    set(&c->held, r->tiny ? 128 : 32768);
    set(&c->rank, r->tiny ? 2 : 8);
    set(&c->piece, where->cuda ? c->batch : 1);
    if (r->tiny) set(&c->context, 16);
    if (c->batch % c->piece != 0)
        return io_fail(error, EXIT_USAGE, "--batch %" PRId64 " is no multiple of --micro-batch %" PRId64,
                       c->batch, c->piece);
    int status = experiment_check_out(r->out, error);
    if (!status) status = read_kinds(r->kinds, c->kinds, error);
    if (!status) status = experiment_read_list("seeds", r->seeds, INT32_MAX, &c->seeds, error);
    return status;
}

static int read_request(request *r, int argc, char **argv, const char **model, backend *where, bool *help,
                        io_error *error)
{
    *r = (request){ .out = "out/graft", .seeds = "1", .interval = CHECKPOINT_SECONDS };
    graft_choice *c = &r->choice;
    c->ridge = 1e4;
    c->rate[GRAFT_RIDGES] = 0.1, c->rate[GRAFT_TEMPERATURES] = 0.01;
    c->rate[GRAFT_BOTH] = 0.03;
    c->rate[GRAFT_PARALLAX] = c->rate[GRAFT_LORA] = 1e-3;
    const option_row rows[] = {
        { "text", OPTION_TEXT, &r->texts, 0, 0, "FILE,..",
          "to train on; without --held but for the last tenth of each" },
        { "held", OPTION_TEXT, &r->held, 0, 0, "FILE,..", "held out, to measure on" },
        { "train", OPTION_TEXT, &r->kinds, 0, 0, "LIST",
          "of ridges, temperatures, both, parallax, lora; default all" },
        { "steps", OPTION_INT, &c->steps, 1, 1e9, "N", "default 200" },
        { "batch", OPTION_INT, &c->batch, 1, 1e6, "N", "windows of a step; default 8" },
        { "micro-batch", OPTION_INT, &c->piece, 1, 1e6, "N",
          "windows at a time, which memory must hold; default 1, on a GPU all" },
        { "context", OPTION_INT, &c->context, 2, 1e6, "N",
          "tokens of a window; default 512, or the model's" },
        { "tokens", OPTION_INT, &c->held, 1, 1e12, "N",
          "held out, of all texts, of each as many; default 32768" },
        { "seeds", OPTION_TEXT, &r->seeds, 0, 0, "LIST", "of windows and first factors; default 1" },
        { "rank", OPTION_INT, &c->rank, 1, 1024, "N", "of the probe and of LoRA; default 8" },
        { "ridge", OPTION_REAL, &c->ridge, 1e-3, 1e12, "X", "that ridges begin with; default 1e4" },
        { "ridge-rate", OPTION_REAL, &c->rate[GRAFT_RIDGES], 0, 1e3, "X", "the highest; default 0.1" },
        { "temperature-rate", OPTION_REAL, &c->rate[GRAFT_TEMPERATURES], 0, 1e3, "X", "default 0.01" },
        { "both-rate", OPTION_REAL, &c->rate[GRAFT_BOTH], 0, 1e3, "X", "default 0.03" },
        { "parallax-rate", OPTION_REAL, &c->rate[GRAFT_PARALLAX], 0, 1e3, "X", "default 0.001" },
        { "lora-rate", OPTION_REAL, &c->rate[GRAFT_LORA], 0, 1e3, "X", "default 0.001" },
        { "tiny", OPTION_FLAG, &r->tiny, 0, 0, NULL,
          "20 steps of 2 windows of 16 tokens, 128 held out, rank 2" },
        { "tokenizer", OPTION_TEXT, &r->tokenizer, 0, 0, "PATH",
          "tokenizer.json, a folder or .gguf; default: beside the model" },
        { "backend", OPTION_TEXT, &r->backend, 0, 0, "NAME", "cpu (default) or cuda" },
        { "dtype", OPTION_TEXT, &r->dtype, 0, 0, "T", "of products on a GPU: bf16 (default) or f32" },
        { "threads", OPTION_INT, &r->threads, 1, 4096, "N", "default: all; results do not depend on it" },
        { "time", OPTION_REAL, &r->minutes, 1e-6, 1e9, "MINUTES", "ends then; the same command goes on" },
        { "checkpoint", OPTION_REAL, &r->interval, 0, 1e9, "SECONDS",
          "what a killed run may lose at most; default 60" },
        { "out", OPTION_TEXT, &r->out, 0, 0, "DIR", "where the results go; default out/graft" },
        { "restart", OPTION_FLAG, &r->restart, 0, 0, NULL, "discard what a killed run left" },
        { .name = NULL },
    };
    int status = options_parse(&argc, argv, rows, USAGE, ABOUT, help, error);
    if (status || *help) return status;
    if (argc != 2 || !r->texts)
        return io_fail(error, EXIT_USAGE, "expected one model and --text; usage: %s", USAGE);
    *model = argv[1];
    status = backend_read(where, r->backend, r->dtype, error);
    return status ? status : check_request(r, where, error);
}

/* ---- a run */

typedef struct experiment {
    machine on;
    bool open; /* the machine */
    lm_files *files;
    tokenizer *tokens;
    graft_plan plan;
    graft_results results;
    char from[LM_MODEL_NAME + 64], description[GRAFT_LINE], state[EXPERIMENT_PATH];
    char model[LM_MODEL_NAME];
} experiment;

static int open_tokenizer(experiment *x, const char *path, io_error *error)
{
    const int status = tokenizer_open(&x->tokens, path, error);
    const int64_t vocabulary = lm_files_config(x->files)->vocabulary;
    if (status || tokenizer_size(x->tokens) <= vocabulary) return status;
    return io_fail(error, EXIT_INPUT, "the tokenizer has %" PRId64 " tokens, the model %" PRId64,
                   tokenizer_size(x->tokens), vocabulary);
}

static int open_all(experiment *x, const request *r, const char *model, backend where, io_error *error)
{
    int status = lm_files_open(&x->files, model, error);
    if (!status && lm_files_config(x->files)->mechanism == LOAM_LINEAR)
        status = io_fail(error, EXIT_INPUT, "%s: it has features; expected softmax", model);
    if (!status) status = open_tokenizer(x, r->tokenizer ? r->tokenizer : model, error);
    lm_model_name(model, x->model);
    if (!status)
        status = graft_plan_open(&x->plan, &r->choice, x->files, x->model, x->tokens, r->texts, r->held,
                                 where.bf16, error);
    if (!status) status = graft_results_open(&x->results, &x->plan, error);
    if (status) return status;
    graft_describe(&x->plan, x->description);
    snprintf(x->from, sizeof x->from, "%s of %" PRId64 " bytes, %s", x->model, lm_files_bytes(x->files),
             lm_files_type(x->files));
    snprintf(x->results.line, sizeof x->results.line, "loam %s; %s; %s; %s", loam_version(),
             backend_text(where), x->from, x->description);
    return 0;
}

/* Where what is left is made: by the same machine that made the rest. */
static int open_machine(experiment *x, const request *r, backend where, io_error *error)
{
    char name[MACHINE_NAME], here[GRAFT_LINE];
    const int status = backend_open(where, (int)r->threads, &x->on, error);
    if (status) return status;
    x->open = true;
    snprintf(here, sizeof here, "%s, %s", loam_cpu_features(), machine_name(&x->on, name));
    if (*x->results.machine && strcmp(x->results.machine, here) != 0)
        return io_fail(error, EXIT_INPUT,
                       "%s is of another machine, '%.200s'; this one is '%.200s': --restart "
                       "discards it",
                       x->state, x->results.machine, here);
    snprintf(x->results.machine, sizeof x->results.machine, "%s", here);
    return 0;
}

static int write_report(const experiment *x, const request *r, bool drawn, io_error *error)
{
    const graft_report report = { &x->results, x->model, x->description, drawn };
    const int status = graft_report_write(&report, r->out, error);
    if (!status && drawn) unlink(x->state);
    if (!status && !drawn)
        printf("\nThere is no gnuplot here, so no pictures: the same command draws them where it is.\n");
    return status;
}

static int run(experiment *x, const request *r, const char *model, backend where, bool *whole,
               io_error *error)
{
    io_error missing;
    const bool drawn = plot_check("figure.svg", &missing) == EXIT_OK;
    graft_runner with = { .on = &x->on,
                          .directory = r->out,
                          .state = x->state,
                          .from = x->from,
                          .interval = r->interval,
                          .seconds = r->minutes > 0 ? 60 * r->minutes : (double)INFINITY,
                          .restart = r->restart };
    int status = open_all(x, r, model, where, error);
    if (!status) status = experiment_make_directories(r->out, error);
    with.files = x->files;
    if (!status && r->restart && unlink(x->state) && errno != ENOENT)
        status = io_fail(error, EXIT_OUTPUT, "%s: %s", x->state, strerror(errno));
    if (!status) status = graft_results_load(&x->results, x->state, error);
    if (!status && !graft_whole(&x->results)) status = open_machine(x, r, where, error);
    if (!status) status = graft_run(&with, &x->results, whole, error);
    if (!status && !*whole) printf("The time is over; the same command goes on.\n");
    if (!status && *whole) status = write_report(x, r, drawn, error);
    if (status) rmdir(r->out); /* It stays where there is something in it. */
    return status;
}

int experiment_graft(int argc, char **argv, const char **out, io_error *error)
{
    request r;
    backend where = { false, false };
    const char *model = NULL;
    bool help = false, whole = false;
    int status = read_request(&r, argc, argv, &model, &where, &help, error);
    if (status || help) return status;
    experiment *x = calloc(1, sizeof *x);
    if (!x) return io_fail(error, EXIT_INTERNAL, "out of memory");
    snprintf(x->state, sizeof x->state, "%s/state", r.out);
    status = run(x, &r, model, where, &whole, error);
    graft_results_close(&x->results);
    graft_plan_close(&x->plan);
    if (x->open) machine_close(&x->on);
    tokenizer_close(x->tokens);
    lm_files_close(x->files);
    free(x);
    if (!status && whole) *out = r.out;
    return status;
}
