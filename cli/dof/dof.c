/* SPDX-License-Identifier: MIT
 * loam dof: how many features the heads of a pretrained Transformer need. */
#include "cli/command.h"
#include "cli/dof/report.h"
#include "cli/experiment/options.h"
#include "cli/lm/lm.h"
#include "cli/names.h"
#include "cli/plot.h"
#include "cli/progress.h"
#include "cli/ridge/plan.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char USAGE[] = "loam dof MODEL --text FILE[,FILE..] [options]";
static const char ABOUT[] =
    "How many features each head of a pretrained Transformer needs: degrees of freedom of its kernel over a "
    "sample of its queries and keys, and of its attention; and from them numbers of features by layer and "
    "head at one total cost.";

typedef struct request {
    lm_words words;
    const char *texts, *modes, *lambda, *out;
    dof_options options;
    dof_budget budget;
    ridge_choice choice; /* of windows alone */
    int64_t seed;
} request;

/* ---- options */

static const char *mode_word(int index)
{
    return index < DOF_MODES ? dof_mode_name(index) : index == DOF_MODES ? "all" : NULL;
}

/* "rel,attn", or "all". */
static int read_modes(const char *text, bool modes[DOF_MODES], io_error *error)
{
    int status = 0;
    for (const char *at = text; !status; at++) {
        const size_t bytes = strcspn(at, ",");
        char word[16];
        int mode = 0;
        snprintf(word, sizeof word, "%.*s", (int)(bytes < sizeof word ? bytes : sizeof word - 1), at);
        status = names_choose("mode", word, mode_word, &mode, error);
        for (int n = 0; !status && n < DOF_MODES; n++)
            modes[n] |= mode == n || mode == DOF_MODES;
        at += bytes;
        if (*at == '\0') break;
    }
    return status;
}

/* A number, or 2^-8. */
static int read_lambda(const char *text, double *lambda, io_error *error)
{
    char *end;
    *lambda = strtod(text, &end);
    const char *rest = end;
    if (end != text && *rest == '^') {
        const double base = *lambda;
        *lambda = pow(base, strtod(rest + 1, &end));
    }
    if (end == text || *end != '\0' || end == rest + 1 || !(*lambda >= 1e-12 && *lambda <= 1))
        return io_fail(error, EXIT_USAGE, "--lambda %s: expected a number from 1e-12 to 1, as 2^-8 or 0.004",
                       text);
    return 0;
}

static int read_request(request *r, int argc, char **argv, const char **model, bool *help, io_error *error)
{
    *r = (request){ .words = lm_words_default(), .modes = "rel,attn", .lambda = "2^-8" };
    r->options = (dof_options){ .samples = 1024, .skip = 1 };
    r->budget = (dof_budget){ .unit = 8, .most = LOAM_MAX_DIM };
    r->choice.tokens = 4096;
    const option_row rows[] = {
        { "text", OPTION_TEXT, &r->texts, 0, 0, "FILE,..", "texts; of a BERT a sentence a line" },
        { "tokens", OPTION_INT, &r->choice.tokens, 1, 1e9, "N",
          "of all texts, of each as many; default 4096" },
        { "context", OPTION_INT, &r->choice.context, 2, 1e6, "N",
          "tokens of a window; default 256, or the model's" },
        { "mode", OPTION_TEXT, &r->modes, 0, 0, "MODE,..", "rel, attn, gauss, abs or all; default rel,attn" },
        { "samples", OPTION_INT, &r->options.samples, 2, 32768, "J",
          "queries and keys of a head, not of attn; default 1024" },
        { "skip", OPTION_INT, &r->options.skip, 0, 1e6, "N",
          "the first tokens of a window, which are in no sample; default 1" },
        { "lambda", OPTION_TEXT, &r->lambda, 0, 0, "X", "a number or a power; default 2^-8" },
        { "seed", OPTION_INT, &r->seed, 0, 9e15, "N", "of the sample; default 0" },
        { "features", OPTION_INT, &r->budget.mean, 1, LOAM_MAX_DIM, "C",
          "of a head in the mean; default as many as it has channels" },
        { "unit", OPTION_INT, &r->budget.unit, 1, LOAM_MAX_DIM, "N",
          "features are multiples of it; default 8" },
        { "out", OPTION_TEXT, &r->out, 0, 0, "DIR", "tables, pictures and a page; default none" },
        { "weights", OPTION_TEXT, &r->words.weights, 0, 0, "TYPE",
          "in memory: f32, bf16 or f16; default: the file's type, of 4- and 8-bit files f32" },
        { "tokenizer", OPTION_TEXT, &r->words.tokenizer, 0, 0, "PATH",
          "tokenizer.json, a folder or .gguf; default: beside the model" },
        { "backend", OPTION_TEXT, &r->words.backend, 0, 0, "cpu|cuda",
          "that reads the texts; default cpu. The rest is the CPU's" },
        { "device", OPTION_INT, &r->words.device, 0, 1023, "N", "which GPU; default 0" },
        { "dtype", OPTION_TEXT, &r->words.dtype, 0, 0, "TYPE",
          "of what products and attention read: f32 (default), or bf16 on a GPU" },
        { "threads", OPTION_INT, &r->words.threads, 1, 4096, "N",
          "default: all; results do not depend on it" },
        { .name = NULL },
    };
    int status = options_parse(&argc, argv, rows, USAGE, ABOUT, help, error);
    if (status || *help) return status;
    if (argc != 2 || !r->texts)
        return io_fail(error, EXIT_USAGE, "expected one model and --text; usage: %s", USAGE);
    *model = argv[1];
    r->options.seed = (uint64_t)r->seed;
    if (r->out) status = experiment_check_out(r->out, error);
    if (!status) status = read_modes(r->modes, r->options.modes, error);
    return status ? status : read_lambda(r->lambda, &r->options.lambda, error);
}

/* ---- a run */

typedef struct command {
    lm_session session;
    ridge_plan plan;
    lm_capture *capture;
    dof_heads *heads;
    int32_t *inputs;
    study study;
} command;

static void count_head(void *bar) { progress_add(bar, 1); }

static int read_windows(command *c, io_error *error)
{
    progress bar;
    int status = 0;
    progress_begin(&bar, "texts", c->plan.window_count);
    for (int64_t n = 0; !status && n < c->plan.window_count; n++) {
        const ridge_window *w = &c->plan.windows[n];
        ridge_inputs(&c->plan, w, c->inputs);
        dof_heads_window(c->heads);
        status = lm_capture_read(c->capture, c->inputs, w->at.inputs, dof_heads_sink, c->heads, error);
        progress_add(&bar, 1);
    }
    progress_end(&bar);
    return status;
}

static int solve(command *c, io_error *error)
{
    progress bar;
    progress_begin(&bar, "heads", c->plan.layers * c->plan.heads);
    const int status = dof_heads_solve(c->heads, count_head, &bar, error);
    progress_end(&bar);
    return status;
}

static int open_heads(command *c, const dof_options *options, io_error *error)
{
    int64_t *lengths = calloc((size_t)c->plan.window_count, sizeof *lengths);
    c->inputs = calloc((size_t)c->plan.choice.context, sizeof *c->inputs);
    if (!lengths || !c->inputs) {
        free(lengths);
        return io_fail(error, EXIT_INTERNAL, "out of memory for windows");
    }
    for (int64_t n = 0; n < c->plan.window_count; n++)
        lengths[n] = c->plan.windows[n].at.inputs;
    const int status = dof_heads_open(&c->heads, c->session.model, options, lengths, c->plan.window_count,
                                      error);
    free(lengths);
    return status;
}

static int open_all(command *c, request *r, const char *model, io_error *error)
{
    int status = lm_session_open(&c->session, model, &r->words, error);
    if (status) return status;
    const lm_config *config = lm_model_config(c->session.model);
    const int64_t unit = r->budget.unit, channels = config->head_dim;
    if (r->budget.mean == 0) r->budget.mean = channels < unit ? unit : channels - channels % unit;
    if (r->choice.context == 0) r->choice.context = config->context < 256 ? config->context : 256;
    r->options.threads = c->session.on.threads;
    status = dof_budget_check(&r->budget, error);
    if (!status)
        status = ridge_plan_open(&c->plan, &r->choice, c->session.model, c->session.tokens, r->texts, error);
    if (!status) status = open_heads(c, &r->options, error);
    if (!status) status = lm_capture_open(&c->capture, c->session.model, c->plan.choice.context, error);
    c->study = (study){ .config = config,
                        .options = r->options,
                        .budget = r->budget,
                        .model = model,
                        .lambda = r->lambda,
                        .texts = c->plan.text_count,
                        .windows = c->plan.window_count,
                        .context = c->plan.choice.context };
    for (int64_t n = 0; n < c->plan.window_count; n++)
        c->study.tokens += c->plan.windows[n].at.inputs;
    return status;
}

static int run(command *c, request *r, const char *model, io_error *error)
{
    io_error missing;
    const bool drawn = plot_check("figure.svg", &missing) == EXIT_OK;
    int status = open_all(c, r, model, error);
    if (!status && r->out) status = experiment_make_directories(r->out, error);
    if (!status) status = read_windows(c, error);
    if (!status) status = solve(c, error);
    if (!status) status = study_fill(&c->study, c->heads, error);
    if (!status && r->out) status = dof_report_write(&c->study, r->out, drawn, error);
    if (!status) status = dof_report_print(&c->study, error);
    if (!status && r->out && !drawn)
        printf("There is no gnuplot here, so no pictures: the same command draws them where it is.\n");
    return status;
}

int command_dof(int argc, char **argv)
{
    request r;
    io_error error;
    const char *model = NULL;
    bool help = false;
    int status = read_request(&r, argc, argv, &model, &help, &error);
    if (!status && help) return EXIT_OK;
    command *c = status ? NULL : calloc(1, sizeof *c);
    if (!status && !c) status = io_fail(&error, EXIT_INTERNAL, "out of memory");
    if (!status) status = run(c, &r, model, &error);
    if (c) {
        study_close(&c->study);
        dof_heads_close(c->heads);
        lm_capture_close(c->capture);
        ridge_plan_close(&c->plan);
        lm_session_close(&c->session);
        free(c->inputs);
    }
    free(c);
    return status ? options_report("dof", &error) : EXIT_OK;
}
