/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "cli/distill/direct.h"

#include "cli/lm/folder.h"
#include "cli/training/backend.h"
#include "cli/tune/run.h"
#include "distill/model.h"
#include "lm/tuned.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const left[] = { "config.json", "model.safetensors", "state.safetensors",
                                    "best.safetensors" };

int direct_discard(const char *directory, io_error *error)
{
    char path[EXPERIMENT_PATH];
    for (size_t i = 0; i < sizeof left / sizeof *left; i++) {
        snprintf(path, sizeof path, "%s/%s", directory, left[i]);
        if (unlink(path) && errno != ENOENT)
            return io_fail(error, EXIT_OUTPUT, "%s: %s", path, strerror(errno));
    }
    if (rmdir(directory) == 0 || errno == ENOENT) return 0;
    return io_fail(error, EXIT_OUTPUT, "%s: %s", directory, strerror(errno));
}

/* ---- the student as files */

static int write_student(const distillation *d, const student *s, const char *directory, io_error *error)
{
    char path[EXPERIMENT_PATH];
    student_model m;
    int status = student_model_make(&m, d->session->files, s, -1, error);
    const lm_folder folder = {
        &m.config, lm_model_type(d->session->model), student_model_read, &m, NULL, NULL
    };
    if (!status) status = experiment_make_directories(directory, error);
    for (int i = 0; !status && i < LM_FOLDER_FILES; i++) {
        snprintf(path, sizeof path, "%s/%s", directory, lm_folder_name(i));
        status = lm_folder_write(&folder, i, path, error);
    }
    return status;
}

/* ---- what was trained, back into the student */

static int take_part(const lm_tuned *t, lm_part part, int64_t layer, int64_t rows, int64_t columns,
                     double *to, io_error *error)
{
    float *const x = calloc((size_t)(rows * columns), sizeof *x);
    if (!x) return io_fail(error, EXIT_INTERNAL, "out of memory for features");
    const int status = lm_tuned_read(t, part, layer, 0, rows, LOAM_F32, x, error);
    for (int64_t i = 0; !status && i < rows * columns; i++)
        to[i] = (double)x[i];
    free(x);
    return status;
}

static int take_features(const tune_run *run, const machine *on, student *s, io_error *error)
{
    lm_tuned_part last = { 0 };
    const lm_tuned from = { run->t.net, on, run->as->files, &last };
    int status = 0;
    for (int64_t i = 0; !status && i < s->layers; i++) {
        student_layer *const l = &s->layer[i];
        status = take_part(&from, LM_FEATURE_Z, i, s->heads * l->features, s->channels, l->z, error);
        if (!status)
            status = take_part(&from, LM_FEATURE_ALPHA, i, s->heads, l->features, l->log_alpha, error);
    }
    lm_tuned_close(&from);
    return status;
}

/* ---- the training */

static int tune(const tune_request *as, student *s, bool *whole, io_error *error)
{
    tune_run run;
    int status = tune_open(&run, as, error);
    if (status) return status;
    status = tune_train(&run, whole);
    if (!status && *whole) status = take_features(&run, as->on, s, error);
    tune_close(&run);
    return status;
}

static tune_choice choice_of(const direct *how, const machine *on)
{
    return (tune_choice){ .kind = TUNE_FEATURES,
                          .steps = how->steps,
                          .warm = how->steps >= 40 ? how->steps / 20 : 2,
                          .every = how->steps >= 10 ? how->steps / 10 : 1,
                          .batch = how->batch,
                          .piece = on->gpu ? how->batch : 1,
                          .seed = how->seed,
                          .rate = tune_usual_rate(TUNE_FEATURES) };
}

static int run_on(const distillation *d, student *s, const direct *how, const lm_files *files,
                  const machine *on, bool *whole, io_error *error)
{
    const tune_choice choice = choice_of(how, on);
    const graft_choice texts = { .context = d->choice.context,
                                 .steps = how->steps,
                                 .batch = how->batch,
                                 .piece = choice.piece,
                                 .held = how->held };
    graft_plan plan;
    int status = graft_plan_open(&plan, &texts, files, how->directory, d->session->tokens,
                                 d->choice.calibration, NULL, on->operand == LOAM_BF16, error);
    if (status) return status;
    const tune_request as = { .choice = choice,
                              .on = on,
                              .texts = &plan,
                              .files = files,
                              .from = "a student",
                              .directory = how->directory,
                              .interval = how->interval,
                              .seconds = fmax(how->end - lm_seconds(), 0),
                              .quiet = true };
    status = tune(&as, s, whole, error);
    graft_plan_close(&plan);
    return status;
}

int direct_run(const distillation *d, student *s, const direct *how, bool *whole, io_error *error)
{
    const bool cuda = d->session->on.gpu != NULL;
    const backend where = { .cuda = cuda, .bf16 = cuda };
    lm_files *files = NULL;
    machine on;
    *whole = false;
    int status = write_student(d, s, how->directory, error);
    if (!status) status = lm_files_open(&files, how->directory, error);
    if (!status) status = backend_open(where, d->session->on.threads, &on, error);
    if (!status) {
        status = run_on(d, s, how, files, &on, whole, error);
        machine_close(&on);
    }
    lm_files_close(files);
    return status;
}
