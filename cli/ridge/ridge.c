/* SPDX-License-Identifier: MIT
 * loam experiment ridge: Local Linear Attention in the place of a pretrained model's softmax. */
#define _POSIX_C_SOURCE 200809L
#include "cli/experiment/options.h"
#include "cli/lm/lm.h"
#include "cli/plot.h"
#include "cli/ridge/report.h"
#include "cli/ridge/run.h"
#include "cli/training/backend.h"
#include "cli/training/text.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char USAGE[] = "loam experiment ridge MODEL --text FILE[,FILE..] [options]";
static const char ABOUT[] =
    "Local Linear Attention in the place of a pretrained model's softmax, without training: -log p of the "
    "tokens of texts against the ridge, beside softmax that is as much sharper; by layers and by heads; and "
    "whether outputs follow the first order in one over the ridge. Of a BERT, which predicts nothing, one "
    "less the cosine between the vectors of each line with and without.\n"
    "A killed run goes on when it is started again with the same options, and comes to the same bytes in "
    "every file but times.csv.";

typedef struct request {
    lm_words words;
    const char *texts, *out, *normalised, *trace, *parts;
    ridge_choice choice;
    double minutes, interval;
    bool tiny, restart;
} request;

/* ---- options */

static int descending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* Numbers in any order; NULL: none. */
static int read_ridges(const char *option, const char *text, ridge_list *out, io_error *error)
{
    bool good = true;
    out->count = 0;
    for (const char *at = text; at && good; at++) {
        char *end;
        const double value = strtod(at, &end);
        good = end != at && isfinite(value) && value > 0 && (*end == ',' || *end == '\0') &&
               out->count < RIDGES;
        if (good) out->items[out->count++] = value;
        at = end;
        if (*at == '\0') break;
    }
    qsort(out->items, (size_t)out->count, sizeof *out->items, descending);
    for (int i = 1; i < out->count; i++)
        good &= out->items[i] < out->items[i - 1];
    return good ? 0
                : io_fail(error, EXIT_USAGE,
                          "--%s %s: expected at most %d different numbers > 0, as in 1e4,300,30", option,
                          text, RIDGES);
}

static int check_request(request *r, io_error *error)
{
    const char *const curve = r->tiny ? "1e5,1e4,300,30" : "1e5,1e4,3000,1000,500,300,200,100,30,10";
    if (r->choice.tokens == 0) r->choice.tokens = r->tiny ? 256 : 100000;
    if (r->choice.layer_tokens == 0) r->choice.layer_tokens = r->tiny ? 128 : 16384;
    if (r->choice.head_tokens == 0) r->choice.head_tokens = r->tiny ? 64 : 2048;
    if (r->tiny) r->choice.layers = r->choice.heads = true;
    if (r->tiny && r->choice.context == 0) r->choice.context = 32;
    int status = experiment_check_out(r->out, error);
    if (!status)
        status = read_ridges("ridges", r->normalised ? r->normalised : curve, &r->choice.normalised, error);
    if (!status) status = read_ridges("trace-ridges", r->trace, &r->choice.trace, error);
    if (!status)
        status = read_ridges("part-ridges",
                             r->parts  ? r->parts
                             : r->tiny ? "30"
                                       : "100,30",
                             &r->choice.parts, error);
    return status;
}

static int read_request(request *r, int argc, char **argv, const char **model, bool *help, io_error *error)
{
    *r = (request){ .words = lm_words_default(), .out = "out/ridge", .interval = 10 };
    ridge_choice *c = &r->choice;
    const option_row rows[] = {
        { "text", OPTION_TEXT, &r->texts, 0, 0, "FILE,..", "texts; of a BERT a sentence a line" },
        { "tokens", OPTION_INT, &c->tokens, 1, 1e12, "N", "of all texts, of each as many; default 100000" },
        { "context", OPTION_INT, &c->context, 2, 1e6, "N",
          "tokens of a window; default 512, or the model's" },
        { "ridges", OPTION_TEXT, &r->normalised, 0, 0, "LIST",
          "default 1e5,1e4,3000,1000,500,300,200,100,30,10" },
        { "trace-ridges", OPTION_TEXT, &r->trace, 0, 0, "LIST",
          "ridges in units of trace(Cov) / d, too; default none" },
        { "per-layer", OPTION_FLAG, &c->layers, 0, 0, NULL, "one layer at a time, too" },
        { "layer-tokens", OPTION_INT, &c->layer_tokens, 1, 1e12, "N", "on so many tokens; default 16384" },
        { "per-head", OPTION_FLAG, &c->heads, 0, 0, NULL, "one query head at a time, too" },
        { "head-tokens", OPTION_INT, &c->head_tokens, 1, 1e12, "N", "on so many tokens; default 2048" },
        { "part-ridges", OPTION_TEXT, &r->parts, 0, 0, "LIST", "of layers and heads; default 100,30" },
        { "tiny", OPTION_FLAG, &r->tiny, 0, 0, NULL,
          "256 tokens in windows of 32, few ridges, with layers and heads" },
        { "weights", OPTION_TEXT, &r->words.weights, 0, 0, "TYPE",
          "in memory: f32, bf16 or f16; default: the file's type, of 4- and 8-bit files f32" },
        { "tokenizer", OPTION_TEXT, &r->words.tokenizer, 0, 0, "PATH",
          "tokenizer.json, a folder or .gguf; default: beside the model" },
        { "backend", OPTION_TEXT, &r->words.backend, 0, 0, "cpu|cuda", "default cpu" },
        { "device", OPTION_INT, &r->words.device, 0, 1023, "N", "which GPU; default 0" },
        { "dtype", OPTION_TEXT, &r->words.dtype, 0, 0, "TYPE",
          "of what products and attention read: f32 (default), or bf16 on a GPU" },
        { "threads", OPTION_INT, &r->words.threads, 1, 4096, "N",
          "default: all; results do not depend on it" },
        { "time", OPTION_REAL, &r->minutes, 1e-6, 1e9, "MINUTES", "ends then; the same command goes on" },
        { "checkpoint", OPTION_REAL, &r->interval, 0, 1e9, "SECONDS",
          "what a killed run may lose at most; default 10" },
        { "out", OPTION_TEXT, &r->out, 0, 0, "DIR", "where the results go; default out/ridge" },
        { "restart", OPTION_FLAG, &r->restart, 0, 0, NULL, "discard what a killed run left" },
        { .name = NULL },
    };
    const int status = options_parse(&argc, argv, rows, USAGE, ABOUT, help, error);
    if (status || *help) return status;
    if (argc != 2 || !r->texts)
        return io_fail(error, EXIT_USAGE, "expected one model and --text; usage: %s", USAGE);
    *model = argv[1];
    return check_request(r, error);
}

/* ---- a run */

typedef struct experiment {
    lm_session session;
    ridge_plan plan;
    engine *engine;
    ridge_results results;
    char line[2 * RIDGE_LINE], description[RIDGE_LINE], state[EXPERIMENT_PATH], model[LM_MODEL_NAME];
} experiment;

static int open_all(experiment *x, const request *r, const char *model, io_error *error)
{
    char name[MACHINE_NAME];
    int status = lm_session_open(&x->session, model, &r->words, error);
    if (!status)
        status = ridge_plan_open(&x->plan, &r->choice, x->session.model, x->session.tokens, r->texts, error);
    if (!status) status = engine_open(&x->engine, &x->plan, x->session.model, error);
    if (!status) status = ridge_results_open(&x->results, &x->plan, error);
    if (status) return status;
    lm_model_name(model, x->model);
    ridge_describe(&x->plan, x->description);
    const backend on = { x->session.on.gpu != NULL, x->session.on.operand == LOAM_BF16 };
    snprintf(x->line, sizeof x->line, "loam %s, %s, %s, %s: %s of %" PRId64 " bytes; %s", loam_version(),
             loam_cpu_features(), machine_name(&x->session.on, name), backend_text(on), x->model,
             lm_model_bytes(x->session.model), x->description);
    return 0;
}

static int write_report(experiment *x, const request *r, bool drawn, io_error *error)
{
    double(*law)[LAW_RIDGES] = calloc((size_t)x->plan.layers + 1, sizeof *law);
    const ridge_report report = {
        .results = &x->results, .model = x->model, .description = x->description, .law = law, .drawn = drawn
    };
    int status = law ? law_measure(x->engine, &x->plan, law, error)
                     : io_fail(error, EXIT_INTERNAL, "out of memory for the law");
    if (!status) status = ridge_report_write(&report, r->out, error);
    free(law);
    return status;
}

static int run(experiment *x, const request *r, const char *model, bool *whole, io_error *error)
{
    io_error missing;
    const bool drawn = plot_check("figure.svg", &missing) == EXIT_OK;
    const ridge_runner with = { .path = x->state,
                                .line = x->line,
                                .interval = r->interval,
                                .seconds = r->minutes > 0 ? 60 * r->minutes : (double)INFINITY };
    int status = open_all(x, r, model, error);
    if (!status) status = experiment_make_directories(r->out, error);
    if (!status && r->restart && unlink(x->state) && errno != ENOENT)
        status = io_fail(error, EXIT_OUTPUT, "%s: %s", x->state, strerror(errno));
    if (!status) status = ridge_results_load(&x->results, x->state, x->line, error);
    if (!status) status = ridge_run(&with, x->engine, &x->results, whole, error);
    if (!status && !*whole) printf("The time is over; the same command goes on.\n");
    if (!status && *whole) status = write_report(x, r, drawn, error);
    if (!status && *whole && drawn) unlink(x->state);
    if (!status && *whole && !drawn)
        printf("\nThere is no gnuplot here, so no pictures: the same command draws them where it is.\n");
    if (status) rmdir(r->out); /* It stays where there is something in it. */
    return status;
}

int experiment_ridge(int argc, char **argv, const char **out, io_error *error)
{
    request r;
    const char *model = NULL;
    bool help = false, whole = false;
    int status = read_request(&r, argc, argv, &model, &help, error);
    if (status || help) return status;
    experiment *x = calloc(1, sizeof *x);
    if (!x) return io_fail(error, EXIT_INTERNAL, "out of memory");
    snprintf(x->state, sizeof x->state, "%s/state", r.out);
    status = run(x, &r, model, &whole, error);
    ridge_results_close(&x->results);
    engine_close(x->engine);
    ridge_plan_close(&x->plan);
    lm_session_close(&x->session);
    free(x);
    if (!status && whole) *out = r.out;
    return status;
}
