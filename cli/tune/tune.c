/* SPDX-License-Identifier: MIT
 * loam lm tune: a pretrained model, or a student with features, trained through all its layers. */
#define _POSIX_C_SOURCE 200809L
#include "cli/experiment/options.h"
#include "cli/lm/folder.h"
#include "cli/lm/lm.h"
#include "cli/names.h"
#include "cli/training/backend.h"
#include "cli/tune/run.h"
#include "io/out_file.h"
#include "lm/chat.h"
#include "lm/tuned.h"
#include "train/checkpoint.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char USAGE[] = "loam lm tune MODEL --text FILE[,FILE..] --out DIR [options]";
static const char ABOUT[] =
    "Trains through a pretrained model, or a student that loam distill made, on windows of text, by the "
    "probability of next tokens and, with --teacher, by how far the model is from another one. What moves "
    "are the features of a student, factors A B beside the weights of attention, both, or all weights. DIR "
    "gets the model with the least loss on what is held out, the start if nothing is below it, and "
    "tune.csv. A killed run goes on when it is started again with the same options.";

typedef struct request {
    const char *texts, *held, *out, *kind, *teacher, *tokenizer, *backend, *dtype;
    int64_t context, tokens, threads;
    double minutes, interval;
    bool restart;
    tune_choice choice;
} request;

/* ---- options */

static void set(int64_t *value, int64_t usual) { *value = *value > 0 ? *value : usual; }

static int check(request *r, const backend *where, io_error *error)
{
    tune_choice *c = &r->choice;
    int kind = TUNE_FEATURES, status = names_choose("what", r->kind, tune_name, &kind, error);
    if (status) return status;
    c->kind = (tune_kind)kind;
    set(&c->warm, c->steps >= 40 ? c->steps / 20 : 2);
    set(&c->every, c->steps >= 10 ? c->steps / 10 : 1);
    set(&c->piece, where->cuda ? c->batch : 1);
    if (c->rate < 0) c->rate = tune_usual_rate(c->kind);
    if (c->batch % c->piece != 0)
        status = io_fail(error, EXIT_USAGE, "--batch %" PRId64 " is no multiple of --micro-batch %" PRId64,
                         c->batch, c->piece);
    if (!status && c->weight >= 0 && !r->teacher)
        status = io_fail(error, EXIT_USAGE, "--kl %g: expected with --teacher", c->weight);
    if (c->weight < 0) c->weight = r->teacher ? 1 : 0;
    return status ? status : experiment_check_out(r->out, error);
}

static int read_request(request *r, int argc, char **argv, const char **model, backend *where, bool *help,
                        io_error *error)
{
    *r = (request){ .tokens = 16384, .interval = CHECKPOINT_SECONDS };
    tune_choice *c = &r->choice;
    c->steps = 500, c->batch = 8, c->rank = 8, c->seed = 1, c->rate = c->weight = -1;
    const option_row rows[] = {
        { "text", OPTION_TEXT, &r->texts, 0, 0, "FILE,..",
          "to train on; without --held but for the last tenth of each" },
        { "held", OPTION_TEXT, &r->held, 0, 0, "FILE,..", "held out, to choose the state that is kept by" },
        { "out", OPTION_TEXT, &r->out, 0, 0, "DIR", "the folder of the model that comes of it" },
        { "what", OPTION_TEXT, &r->kind, 0, 0, "NAME",
          "what moves: features (default), lora, both, or all weights" },
        { "teacher", OPTION_TEXT, &r->teacher, 0, 0, "MODEL", "what it should be like; default none" },
        { "kl", OPTION_REAL, &c->weight, 0, 1e6, "X",
          "weight of the divergence from the teacher; default 1" },
        { "steps", OPTION_INT, &c->steps, 1, 1e9, "N", "default 500" },
        { "batch", OPTION_INT, &c->batch, 1, 1e6, "N", "windows of a step; default 8" },
        { "micro-batch", OPTION_INT, &c->piece, 1, 1e6, "N",
          "windows at a time, which memory must hold; default 1, on a GPU all" },
        { "context", OPTION_INT, &r->context, 2, 1e6, "N",
          "tokens of a window; default 512, or the model's" },
        { "tokens", OPTION_INT, &r->tokens, 1, 1e12, "N",
          "held out, of all texts, of each as many; default 16384" },
        { "rate", OPTION_REAL, &c->rate, 0, 1e3, "X", "the highest; default 0.001, of all weights 0.0001" },
        { "warm", OPTION_INT, &c->warm, 1, 1e9, "N", "steps of warm-up; default a twentieth of all" },
        { "every", OPTION_INT, &c->every, 1, 1e9, "N", "steps between tests; default a tenth of all" },
        { "rank", OPTION_INT, &c->rank, 1, 1024, "N", "of A and B; default 8" },
        { "seed", OPTION_INT, &c->seed, 0, 1e15, "N", "of windows and first factors; default 1" },
        { "tokenizer", OPTION_TEXT, &r->tokenizer, 0, 0, "PATH",
          "tokenizer.json, a folder or .gguf; default: beside the model" },
        { "backend", OPTION_TEXT, &r->backend, 0, 0, "NAME", "cpu (default) or cuda" },
        { "dtype", OPTION_TEXT, &r->dtype, 0, 0, "T", "of products on a GPU: bf16 (default) or f32" },
        { "threads", OPTION_INT, &r->threads, 1, 4096, "N", "default: all; results do not depend on it" },
        { "time", OPTION_REAL, &r->minutes, 1e-6, 1e9, "MINUTES", "ends then; the same command goes on" },
        { "checkpoint", OPTION_REAL, &r->interval, 0, 1e9, "SECONDS",
          "what a killed run may lose at most; default 60" },
        { "restart", OPTION_FLAG, &r->restart, 0, 0, NULL, "discard what a killed run left" },
        { .name = NULL },
    };
    int status = options_parse(&argc, argv, rows, USAGE, ABOUT, help, error);
    if (status || *help) return status;
    if (argc != 2 || !r->texts || !r->out)
        return io_fail(error, EXIT_USAGE, "expected one model, --text and --out; usage: %s", USAGE);
    *model = argv[1];
    status = backend_read(where, r->backend, r->dtype, error);
    return status ? status : check(r, where, error);
}

/* ---- a run */

enum { FROM = 2 * LM_MODEL_NAME + 160 };

typedef struct command {
    const request *r;
    const char *model; /* its path */
    machine on;
    bool open; /* the machine */
    lm_files *files, *teacher;
    tokenizer *tokens;
    graft_plan texts;
    char name[LM_MODEL_NAME], from[FROM];
    tune_request as;
    tune_run run;
} command;

static int open_tokenizer(command *c, io_error *error)
{
    const int64_t vocabulary = lm_files_config(c->files)->vocabulary;
    const int status = tokenizer_open(&c->tokens, c->r->tokenizer ? c->r->tokenizer : c->model, error);
    if (status || tokenizer_size(c->tokens) <= vocabulary) return status;
    return io_fail(error, EXIT_INPUT, "the tokenizer has %" PRId64 " tokens, the model %" PRId64,
                   tokenizer_size(c->tokens), vocabulary);
}

/* "student of 538 bytes, BF16; taught by ..." */
static void name_models(command *c)
{
    char teacher[LM_MODEL_NAME];
    snprintf(c->from, sizeof c->from, "%s of %" PRId64 " bytes, %s", c->name, lm_files_bytes(c->files),
             lm_files_type(c->files));
    if (!c->teacher) return;
    const size_t used = strlen(c->from);
    lm_model_name(c->r->teacher, teacher);
    snprintf(c->from + used, sizeof c->from - used, ", taught by %s of %" PRId64 " bytes, weight %.17g",
             teacher, lm_files_bytes(c->teacher), c->r->choice.weight);
}

static int open_files(command *c, io_error *error)
{
    int status = lm_files_open(&c->files, c->model, error);
    if (status) return status;
    if (tune_has_features(c->r->choice.kind) && lm_files_config(c->files)->mechanism != LOAM_LINEAR)
        return io_fail(error, EXIT_USAGE, "--what %s: %s has no features; expected lora or all",
                       tune_name(c->r->choice.kind), c->model);
    status = open_tokenizer(c, error);
    if (!status && c->r->teacher) status = lm_files_open(&c->teacher, c->r->teacher, error);
    return status;
}

static int open_all(command *c, backend where, io_error *error)
{
    const request *r = c->r;
    const tune_choice *how = &r->choice;
    const graft_choice choice = { .context = r->context,
                                  .steps = how->steps,
                                  .batch = how->batch,
                                  .piece = how->piece,
                                  .held = r->tokens };
    int status = open_files(c, error);
    lm_model_name(c->model, c->name);
    if (!status)
        status = graft_plan_open(&c->texts, &choice, c->files, c->name, c->tokens, r->texts, r->held,
                                 where.bf16, error);
    if (!status) status = backend_open(where, (int)r->threads, &c->on, error);
    if (status) return status;
    c->open = true;
    name_models(c);
    c->as = (tune_request){ .choice = *how,
                            .on = &c->on,
                            .texts = &c->texts,
                            .files = c->files,
                            .teacher = c->teacher,
                            .from = c->from,
                            .directory = r->out,
                            .interval = r->interval,
                            .seconds = r->minutes > 0 ? 60 * r->minutes : (double)INFINITY,
                            .restart = r->restart };
    return 0;
}

/* Weights that moved are float32; others have the type of the files, where that is plain. */
static loam_dtype type_of(const command *c)
{
    const char *own = lm_files_type(c->files);
    if (tune_has_weights(c->r->choice.kind)) return LOAM_F32;
    return strcmp(own, "BF16") == 0 ? LOAM_BF16 : strcmp(own, "F16") == 0 ? LOAM_F16 : LOAM_F32;
}

static int write_model(const command *c, io_error *error)
{
    char path[EXPERIMENT_PATH], *template = NULL;
    lm_tuned_part last = { 0 };
    const lm_tuned from = { c->run.t.net, &c->on, c->files, &last };
    int status = lm_chat_template(&template, c->model, error);
    const lm_folder folder = {
        lm_files_config(c->files), type_of(c), lm_tuned_read, &from, c->tokens, template
    };
    for (int i = 0; !status && i < LM_FOLDER_FILES; i++) {
        snprintf(path, sizeof path, "%s/%s", c->r->out, lm_folder_name(i));
        status = lm_folder_write(&folder, i, path, error);
    }
    lm_tuned_close(&from);
    free(template);
    return status;
}

static int write_csv(const command *c, io_error *error)
{
    char path[EXPERIMENT_PATH];
    out_file *file;
    const trainer *t = &c->run.t;
    snprintf(path, sizeof path, "%s/tune.csv", c->r->out);
    const int status = out_open(&file, path, error);
    if (status) return status;
    fprintf(out_stream(file), "step,training,held\n0,,%.9g\n", tune_total(&c->run, c->run.start));
    for (int64_t i = 0; i < t->tested[0]; i++) {
        const train_record *record = trainer_record(t, 0, i);
        fprintf(out_stream(file), "%.0f,%.9g,%.9g\n", record->step, record->train_loss, record->test_loss);
    }
    return out_commit(file, error);
}

static void print_loss(const command *c, const char *name, tune_loss loss)
{
    printf("%-10s NLL %.4f", name, loss.nll);
    if (c->teacher) printf(", divergence from the teacher %.4f", loss.divergence);
    printf("\n");
}

static void print_begin(const command *c)
{
    int count;
    int64_t moved = 0;
    const parameter *list = model_parameters(c->run.t.net, &count);
    for (int i = 0; i < count; i++)
        if (!list[i].frozen) moved += matrix_elements(list[i].x);
    printf("%" PRId64 " numbers move; %" PRId64 " tokens are held out\n", moved,
           c->texts.windows * c->texts.choice.context);
    print_loss(c, "start", c->run.start);
    printf("\n%10s %12s %12s\n", "step", "training", "held out");
    fflush(stdout);
}

static int finish(const command *c, io_error *error)
{
    int status = write_csv(c, error);
    if (!status) status = write_model(c, error);
    if (status) return status;
    tune_discard(&c->as);
    printf("\n");
    print_loss(c, "start", c->run.start);
    print_loss(c, "kept", c->run.end);
    printf("kept is the state after step %" PRId64 "; a step took %.3g s\n", c->run.kept,
           tune_step_seconds(&c->run));
    return 0;
}

static int run(command *c, backend where, io_error *error)
{
    bool finished = false;
    int status = open_all(c, where, error);
    if (!status) status = experiment_make_directories(c->r->out, error);
    if (!status) status = tune_open(&c->run, &c->as, error);
    if (status) rmdir(c->r->out); /* It stays where there is something in it. */
    if (status) return status;
    print_begin(c);
    status = tune_train(&c->run, &finished);
    if (!status && !finished) printf("The time is over; the same command goes on.\n");
    return !status && finished ? finish(c, error) : status;
}

int lm_tune(int argc, char **argv, io_error *error)
{
    request r;
    backend where = { false, false };
    const char *model = NULL;
    bool help = false;
    int status = read_request(&r, argc, argv, &model, &where, &help, error);
    if (status || help) return status;
    command *c = calloc(1, sizeof *c);
    if (!c) return io_fail(error, EXIT_INTERNAL, "out of memory");
    c->r = &r, c->model = model;
    status = run(c, where, error);
    tune_close(&c->run);
    graft_plan_close(&c->texts);
    if (c->open) machine_close(&c->on);
    tokenizer_close(c->tokens);
    lm_files_close(c->teacher);
    lm_files_close(c->files);
    free(c);
    return status;
}
