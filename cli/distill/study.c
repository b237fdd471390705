/* SPDX-License-Identifier: MIT
 * loam experiment distill: strategies, losses and seeds of features in the place of softmax. */
#define _POSIX_C_SOURCE 200809L
#include "cli/distill/report.h"
#include "cli/distill/sweep.h"
#include "cli/names.h"
#include "cli/plot.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char USAGE[] = "loam experiment distill MODEL[,MODEL..] --calibration FILE[,FILE..] "
                            "--text FILE[,FILE..] [options]";
static const char ABOUT[] =
    "Pretrained models with positive random features in the place of softmax: how features are shared out "
    "among layers, which loss trains them, and from several seeds, beside attentions that are not trained; "
    "each on the same windows, with the paper's gaps beside them. Models after the first have Fix and "
    "degrees of freedom by the softmax loss, of the first seed.\n"
    "A killed run goes on when it is started again with the same options, and comes to the same bytes in "
    "every table. Several processes with the same options, as one for each GPU, share the work.";

enum { MODELS = 8, MODEL_PATH = 4096 };

typedef struct request {
    lm_words words;
    const char *models, *strategies, *losses, *students, *seeds, *out;
    course course;
    double minutes, interval;
    bool tiny, reduced, restart, report;
} request;

/* ---- options */

/* Names with commas between; NULL: those that are set stay. */
static int read_names(const char *option, const char *text, names_word *word_at, bool *chosen,
                      io_error *error)
{
    int status = 0;
    for (int i = 0; text && word_at(i); i++)
        chosen[i] = false;
    for (const char *at = text; at && !status; at = *at ? at + 1 : NULL) {
        const size_t bytes = strcspn(at, ",");
        char name[32] = "";
        int which = 0;
        if (bytes < sizeof name) memcpy(name, at, bytes);
        status = names_choose(option, name, word_at, &which, error);
        if (!status) chosen[which] = true;
        at += bytes;
    }
    return status;
}

static int check_models(const char *models, io_error *error)
{
    int count = 0;
    for (const char *at = models; at; at = *at ? at + 1 : NULL) {
        const size_t bytes = strcspn(at, ",");
        if (++count > MODELS || bytes == 0 || bytes >= MODEL_PATH)
            return io_fail(error, EXIT_USAGE, "%s: expected at most %d paths of models with commas between",
                           models, MODELS);
        at += bytes;
    }
    return 0;
}

static int check_request(request *r, io_error *error)
{
    course *const c = &r->course;
    if (r->report && r->restart)
        return io_fail(error, EXIT_USAGE, "--report and --restart contradict each other");
    if (r->tiny && r->reduced)
        return io_fail(error, EXIT_USAGE, "--tiny and --reduced contradict each other");
    for (int i = 0; strategy_name(i); i++)
        c->strategies[i] = strcmp(strategy_name(i), "head") != 0 && strcmp(strategy_name(i), "clip") != 0;
    for (int i = 0; course_loss(i); i++)
        c->losses[i] = true;
    for (int i = 0; course_student_name(i); i++)
        c->students[i] = true;
    course_fill(c, r->reduced);
    int status = check_models(r->models, error);
    if (!status) status = experiment_check_out(r->out, error);
    if (!status) status = read_names("strategies", r->strategies, strategy_name, c->strategies, error);
    if (!status) status = read_names("losses", r->losses, course_loss, c->losses, error);
    if (!status) status = read_names("students", r->students, course_student_name, c->students, error);
    if (!status)
        status = experiment_read_list("seeds",
                                      r->seeds     ? r->seeds
                                      : r->reduced ? "1,2,3"
                                                   : "1",
                                      INT32_MAX, &c->seeds, error);
    return !status && dof_budget_check(&c->budget, error) ? EXIT_USAGE : status;
}

/* Numbers that are not given are those of the reduced experiment or of the tiny one (course_fill). */
static request request_default(void)
{
    request r = { .words = lm_words_default(), .out = "out/distill", .interval = 60 };
    r.course.budget = (dof_budget){ .unit = 8, .most = LOAM_MAX_DIM };
    r.course.training = training_options_default();
    r.course.training.steps = r.course.measured_steps = -1, r.course.training.batch = 0;
    return r;
}

static int read_request(request *r, int argc, char **argv, bool *help, io_error *error)
{
    *r = request_default();
    course *const c = &r->course;
    const option_row rows[] = {
        { "calibration", OPTION_TEXT, &c->calibration, 0, 0, "FILE,..", "texts that features are fitted to" },
        { "text", OPTION_TEXT, &c->texts, 0, 0, "FILE,..", "texts that are predicted" },
        { "tiny", OPTION_FLAG, &r->tiny, 0, 0, NULL, "the default: minutes on a CPU" },
        { "reduced", OPTION_FLAG, &r->reduced, 0, 0, NULL, "3 seeds, 2000 steps of 8 x 512, for a GPU" },
        { "strategies", OPTION_TEXT, &r->strategies, 0, 0, "LIST",
          "of fix, rel, attn, head, clip, measured; default fix,rel,attn,measured" },
        { "losses", OPTION_TEXT, &r->losses, 0, 0, "LIST",
          "of softmax, l2row, l2, that train fix; default all; the other strategies have softmax" },
        { "students", OPTION_TEXT, &r->students, 0, 0, "LIST",
          "of trained, hybrid, cascade, direct; default all" },
        { "seeds", OPTION_TEXT, &r->seeds, 0, 0, "LIST", "default 1, reduced 1,2,3; the first shares out" },
        { "windows", OPTION_INT, &c->windows, 1, 1e6, "N", "of the calibration; default 4, reduced 64" },
        { "context", OPTION_INT, &c->context, 2, 1e6, "N", "tokens of a window; default 64, reduced 512" },
        { "tokens", OPTION_INT, &c->tokens, 1, 1e9, "N",
          "that are predicted, of each text as many; default 512, reduced 102400" },
        { "features", OPTION_INT, &c->budget.mean, 1, LOAM_MAX_DIM, "M",
          "of a head in the mean; default 16, reduced 64" },
        { "unit", OPTION_INT, &c->budget.unit, 1, LOAM_MAX_DIM, "N",
          "features are multiples of it; default 8" },
        { "steps", OPTION_INT, &c->training.steps, 0, 1e9, "N",
          "of training; default 20, reduced 2000; 0: none" },
        { "batch", OPTION_INT, &c->training.batch, 1, 1e6, "N", "windows of a step; default 2, reduced 8" },
        { "measured-windows", OPTION_INT, &c->measured_windows, 1, 1e6, "N",
          "of the calibration that measured predicts; default 1, reduced 8" },
        { "measured-steps", OPTION_INT, &c->measured_steps, 0, 1e9, "N",
          "of training before it measures; default 2, reduced 100" },
        { "direct-steps", OPTION_INT, &c->direct_steps, 1, 1e9, "N",
          "of training through the model; default 10, reduced 500" },
        { "rate", OPTION_REAL, &c->training.rate, 1e-9, 10, "X", "of z; default 0.02" },
        { "rate-alpha", OPTION_REAL, &c->training.rate_log_alpha, 1e-9, 10, "X",
          "of log alpha; default 0.05" },
        { "weights", OPTION_TEXT, &r->words.weights, 0, 0, "TYPE",
          "in memory: f32, bf16 or f16; default: the file's type, of 4- and 8-bit files f32" },
        { "tokenizer", OPTION_TEXT, &r->words.tokenizer, 0, 0, "PATH",
          "tokenizer.json, a folder or .gguf; default: beside the model" },
        { "backend", OPTION_TEXT, &r->words.backend, 0, 0, "cpu|cuda",
          "default cpu, which trains in float64; cuda in float32" },
        { "device", OPTION_INT, &r->words.device, 0, 1023, "N", "which GPU; default 0" },
        { "threads", OPTION_INT, &r->words.threads, 1, 4096, "N",
          "default: all; results do not depend on it" },
        { "time", OPTION_REAL, &r->minutes, 1e-6, 1e9, "MINUTES", "ends then; the same command goes on" },
        { "checkpoint", OPTION_REAL, &r->interval, 0, 1e9, "SECONDS",
          "what a killed run may lose of a training at most; default 60" },
        { "out", OPTION_TEXT, &r->out, 0, 0, "DIR", "where the results go; default out/distill" },
        { "report", OPTION_FLAG, &r->report, 0, 0, NULL, "on what was done, here or elsewhere, and end" },
        { "restart", OPTION_FLAG, &r->restart, 0, 0, NULL, "discard what an earlier run left" },
        { .name = NULL },
    };
    const int status = options_parse(&argc, argv, rows, USAGE, ABOUT, help, error);
    if (status || *help) return status;
    if (argc != 2 || !c->texts || !c->calibration)
        return io_fail(error, EXIT_USAGE, "expected models, --calibration and --text; usage: %s", USAGE);
    r->models = argv[1];
    return check_request(r, error);
}

/* ---- a run */

/* Models with commas between, one after another; count: those that were opened. */
static int run_models(const request *r, cells list[MODELS], int *count, bool *whole, io_error *error)
{
    const double end = r->minutes > 0 ? lm_seconds() + 60 * r->minutes : (double)INFINITY;
    const course brief = course_brief(&r->course);
    int status = 0;
    *whole = true;
    for (const char *at = r->models; at && *whole && !status; at = *at ? at + 1 : NULL) {
        const size_t bytes = strcspn(at, ",");
        char model[MODEL_PATH] = "";
        memcpy(model, at, bytes);
        const distill_sweep_options with = { .course = *count ? &brief : &r->course,
                                             .words = &r->words,
                                             .model = model,
                                             .directory = r->out,
                                             .number = *count + 1,
                                             .interval = r->interval,
                                             .end = end,
                                             .restart = r->restart,
                                             .report = r->report };
        status = distill_sweep_run(&with, &list[(*count)++], whole, error);
        at += bytes;
    }
    return status;
}

static int run(const request *r, cells list[MODELS], bool *whole, io_error *error)
{
    io_error missing;
    const bool drawn = plot_check("figure.svg", &missing) == EXIT_OK;
    int count = 0;
    int status = experiment_make_directories(r->out, error);
    if (!status) status = run_models(r, list, &count, whole, error);
    const distill_report report = { list, count, r->course.calibration, r->course.texts, drawn };
    if (!status && !*whole) printf("The time is over; the same command goes on.\n");
    if (!status && *whole) {
        status = distill_report_write(&report, r->out, error);
        if (!status && !drawn)
            printf("\nThere is no gnuplot here, so no pictures: the same command draws them where it is.\n");
    }
    if (status) rmdir(r->out); /* It stays where there is something in it. */
    return status;
}

int experiment_distill(int argc, char **argv, const char **out, io_error *error)
{
    request r;
    bool help = false, whole = false;
    int status = read_request(&r, argc, argv, &help, error);
    if (status || help) return status;
    cells *const list = calloc(MODELS, sizeof *list);
    if (!list) return io_fail(error, EXIT_INTERNAL, "out of memory");
    status = run(&r, list, &whole, error);
    for (int i = 0; i < MODELS; i++)
        cells_close(&list[i]);
    free(list);
    if (!status && whole) *out = r.out;
    return status;
}
