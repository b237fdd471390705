/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "cli/lm/lm.h"

#include "cli/names.h"
#include "cli/progress.h"
#include "lm/pretrain.h"
#include "train/checkpoint.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char USAGE[] = "loam lm train DATA --out RUN [options]";
static const char ABOUT[] =
    "Trains a language model from nothing on the shards of the folder DATA: manifest.json, tokenizer.json, "
    "train.u16, valid.u16, held-NAME.u16. AdamW (0.9, 0.95) with decay of matrices alone, a warm-up and a "
    "cosine to a tenth of the rate, gradients clipped at 1; on a GPU bf16 products with float32 weights. "
    "Batches are windows drawn from the seed: the same ones for every mechanism. RUN gets the model that did "
    "best on the validation text, losses, times and what was found on held-out texts. The same command goes "
    "on where it was stopped or killed, with the same bytes.";

/* Options as they are written; 0: that of the size. */
typedef struct request {
    const char *out, *architecture, *mechanism, *size, *ridge_unit, *backend, *dtype;
    int64_t layers, width, heads, context, steps, batch, piece, warm, every, seed, threads;
    double ridge_least, ridge_most, rate, decay, minutes, checkpoint;
} request;

static request request_default(void)
{
    return (request){ .steps = 800,
                      .batch = 128,
                      .warm = 200,
                      .every = 50,
                      .seed = 1,
                      .ridge_least = 0.01,
                      .ridge_most = 1,
                      .rate = 1e-3,
                      .decay = 0.1,
                      .minutes = 1e9,
                      .checkpoint = CHECKPOINT_SECONDS };
}

/* ---------------------------------------------------------------- words */

static const char *architecture_word(int index)
{
    return index < LM_BERT ? lm_architecture_name((lm_architecture)index) : NULL;
}

static const char *backend_word(int index)
{
    static const char *const list[] = { "cpu", "cuda", NULL };
    return list[index];
}

static const char *dtype_word(int index)
{
    static const char *const list[] = { "bf16", "f32", NULL };
    return list[index];
}

static const struct {
    const char *name;
    int64_t layers, width, heads, context;
} sizes[] = { { "34m", 8, 512, 8, 1024 }, { "small", 4, 256, 4, 256 } };
enum { FEW = 8 };
enum { SIZES = sizeof sizes / sizeof *sizes };

static const char *size_word(int index) { return index < SIZES ? sizes[index].name : NULL; }

/* On a GPU all windows at once; a CPU is as fast with a few. */
static int64_t piece_of(const request *r)
{
    const bool few = (!r->backend || strcmp(r->backend, "cpu") == 0) && r->batch % FEW == 0;
    return r->piece > 0 ? r->piece : few ? FEW : r->batch;
}

static int recipe_of(const request *r, lm_recipe *out, io_error *error)
{
    int architecture = LM_GPT2, mechanism = 0, size = 0, unit = LOAM_RIDGE_NORMALISED;
    int status = names_choose("architecture", r->architecture, architecture_word, &architecture, error);
    if (!status) status = names_choose("mechanism", r->mechanism, lm_recipe_mechanism, &mechanism, error);
    if (!status) status = names_choose("size", r->size, size_word, &size, error);
    if (!status) status = names_choose("ridge-unit", r->ridge_unit, names_ridge_unit, &unit, error);
    if (status) return status;
    if (r->ridge_most < r->ridge_least)
        return io_fail(error, EXIT_USAGE, "--ridge-most %g; expected at least the %g of --ridge-least",
                       r->ridge_most, r->ridge_least);
    *out = (lm_recipe){ .architecture = (lm_architecture)architecture,
                        .mechanism = lm_recipe_mechanism(mechanism),
                        .layers = r->layers > 0 ? r->layers : sizes[size].layers,
                        .width = r->width > 0 ? r->width : sizes[size].width,
                        .heads = r->heads > 0 ? r->heads : sizes[size].heads,
                        .context = r->context > 0 ? r->context : sizes[size].context,
                        .ridge_least = r->ridge_least,
                        .ridge_most = r->ridge_most,
                        .ridge_unit = (loam_ridge_unit)unit,
                        .steps = r->steps,
                        .batch = r->batch,
                        .piece = piece_of(r),
                        .warm = r->warm,
                        .every = r->every,
                        .rate = r->rate,
                        .decay = r->decay,
                        .seed = (uint64_t)r->seed };
    return 0;
}

static int open_machine(const request *r, machine *on, io_error *error)
{
    int where = 0, what = 0;
    loam_error cause;
    int status = names_choose("backend", r->backend, backend_word, &where, error);
    if (!status && r->dtype) status = names_choose("dtype", r->dtype, dtype_word, &what, error);
    if (!status && r->dtype && what == 0 && where == 0)
        status = io_fail(error, EXIT_USAGE, "--dtype bf16: expected f32 on the CPU");
    if (status) return status;
    *on = machine_cpu(LOAM_F32, (int)r->threads);
    if (where > 0 && machine_cuda(on, what == 0 ? LOAM_BF16 : LOAM_F32, &cause))
        return io_fail(error, EXIT_USAGE, "--backend cuda: %s", cause.text);
    return 0;
}

/* ---------------------------------------------------------------- what is told */

typedef struct teller {
    progress bar;
    bool begun;
} teller;

static void tell(void *with, const trainer *t, bool tested)
{
    teller *w = with;
    if (!w->begun) progress_begin(&w->bar, "training", t->options.steps - t->step + 1);
    w->begun = true;
    progress_add(&w->bar, 1);
    if (!tested) return;
    const train_record *last = trainer_record(t, 0, t->tested[0] - 1);
    printf("%10lld %12.4f %12.4f\n", (long long)t->step, last->train_loss, last->test_loss);
    fflush(stdout);
}

static void print_held(const lm_shards *s, const lm_held_loss *held)
{
    printf("\n%-32s %10s %10s %10s\n", "held out", "tokens", "nll", "bits/byte");
    for (int64_t i = 0; i < s->corpora; i++)
        printf("%-32s %10lld %10.4f %10.4f\n", s->held[i].name, (long long)held[i].tokens, held[i].nll,
               held[i].bits);
}

/* ---------------------------------------------------------------- the command */

static int make_folder(const char *path, io_error *error)
{
    struct stat told;
    if (mkdir(path, 0777) == 0 || (stat(path, &told) == 0 && S_ISDIR(told.st_mode))) return 0;
    return io_fail(error, EXIT_OUTPUT, "cannot make the folder %s: %s", path, strerror(errno));
}

static int train(const request *r, const lm_recipe *recipe, const machine *on, const char *data,
                 io_error *error)
{
    lm_shards shards;
    teller w = { .begun = false };
    bool finished = false;
    int status = lm_shards_open(&shards, data, error);
    if (status) return status;
    lm_held_loss *held = calloc((size_t)shards.corpora + 1, sizeof *held);
    if (!held) status = io_fail(error, EXIT_INTERNAL, "out of memory for what is found");
    if (!status) status = make_folder(r->out, error);
    const lm_pretraining p = { .recipe = recipe,
                               .shards = &shards,
                               .on = on,
                               .data = data,
                               .folder = r->out,
                               .interval = r->checkpoint,
                               .seconds = 60 * r->minutes,
                               .watch = tell,
                               .with = &w };
    if (!status) printf("%10s %12s %12s\n", "step", "training", "validation");
    if (!status) status = lm_pretrain(&p, held, &finished, error);
    if (w.begun) progress_end(&w.bar);
    if (!status && finished) print_held(&shards, held);
    if (!status && !finished) printf("not finished: the same command goes on\n");
    free(held);
    lm_shards_close(&shards);
    return status;
}

static int parse(request *r, int *argc, char **argv, bool *help, io_error *error)
{
    const option_row rows[] = {
        { "out", OPTION_TEXT, &r->out, 0, 0, "RUN", "the folder of the run" },
        { "architecture", OPTION_TEXT, &r->architecture, 0, 0, "NAME", "gpt2 (default), gpt_neox or llama" },
        { "mechanism", OPTION_TEXT, &r->mechanism, 0, 0, "NAME",
          "softmax (default), lla, parallax, fox or gated-delta" },
        { "size", OPTION_TEXT, &r->size, 0, 0, "NAME",
          "34m (default): 8 layers, width 512, 8 heads, context 1024; small: 4, 256, 4, 256" },
        { "layers", OPTION_INT, &r->layers, 1, 1e6, "N", "instead of the size's" },
        { "width", OPTION_INT, &r->width, 1, 1e6, "N", "likewise" },
        { "heads", OPTION_INT, &r->heads, 1, 1e6, "N", "likewise" },
        { "context", OPTION_INT, &r->context, 1, 1e6, "N", "likewise" },
        { "ridge-least", OPTION_REAL, &r->ridge_least, 1e-30, 1e30, "X",
          "lla: ridges are learned between this, default 0.01," },
        { "ridge-most", OPTION_REAL, &r->ridge_most, 1e-30, 1e30, "X", "and this, default 1" },
        { "ridge-unit", OPTION_TEXT, &r->ridge_unit, 0, 0, "UNIT", "normalised (default), max or trace" },
        { "steps", OPTION_INT, &r->steps, 1, 1e9, "N", "default 800" },
        { "batch", OPTION_INT, &r->batch, 1, 1e6, "N", "windows of a step; default 128" },
        { "micro-batch", OPTION_INT, &r->piece, 1, 1e6, "N",
          "windows at a time, which memory must hold; default all, on the CPU 8" },
        { "rate", OPTION_REAL, &r->rate, 0, 1e3, "X", "the highest; default 0.001" },
        { "warm", OPTION_INT, &r->warm, 1, 1e9, "N", "steps of warm-up; default 200" },
        { "decay", OPTION_REAL, &r->decay, 0, 1e3, "X", "of matrices; default 0.1" },
        { "every", OPTION_INT, &r->every, 1, 1e9, "N", "steps between validations; default 50" },
        { "seed", OPTION_INT, &r->seed, 0, 1e18, "N", "of weights and windows; default 1" },
        { "backend", OPTION_TEXT, &r->backend, 0, 0, "NAME", "cpu (default) or cuda" },
        { "dtype", OPTION_TEXT, &r->dtype, 0, 0, "T", "of products on a GPU: bf16 (default) or f32" },
        { "time", OPTION_REAL, &r->minutes, 0, 1e9, "MINUTES", "stop then; default: when it is finished" },
        { "checkpoint", OPTION_REAL, &r->checkpoint, 0, 1e9, "SECONDS", "between saves; default 60" },
        { "threads", OPTION_INT, &r->threads, 1, 4096, "N", "of the CPU; default all" },
        { .name = NULL },
    };
    return options_parse(argc, argv, rows, USAGE, ABOUT, help, error);
}

int lm_train(int argc, char **argv, io_error *error)
{
    request r = request_default();
    lm_recipe recipe;
    machine on;
    bool help = false;
    int status = parse(&r, &argc, argv, &help, error);
    if (status || help) return status;
    if (argc != 2 || !r.out) return io_fail(error, EXIT_USAGE, "expected DATA and --out; usage: %s", USAGE);
    status = recipe_of(&r, &recipe, error);
    if (!status) status = open_machine(&r, &on, error);
    if (status) return status;
    status = train(&r, &recipe, &on, argv[1], error);
    machine_close(&on);
    return status;
}
