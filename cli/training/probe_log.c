/* SPDX-License-Identifier: MIT */
#include "cli/training/probe_log.h"

#include "cli/training/state.h"
#include "io/out_file.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const role probe_matrices[PROBE_MATRICES] = { ROLE_Q, ROLE_K, ROLE_PROBE, ROLE_OUT };

static int64_t layers_of(const probe_log *log) { return log->plan->options.shape.layers; }

probe_layer *probe_log_at(const probe_log *log, int64_t run, int64_t test, int64_t layer)
{
    return &log->at[(run * log->most + test) * layers_of(log) + layer];
}

/* ---- files: all tests of the models of a stack; those that are still to come are zeros */

static int64_t numbers_of(const probe_log *log, plan_stack stack)
{
    return stack.count * log->most * layers_of(log) * (int64_t)(sizeof(probe_layer) / sizeof(double));
}

/* A test is measured and saved before the checkpoint that follows it: what is read here is never older
 * than that, and what is newer comes once more, the same. */
static int load(const probe_log *log, plan_stack stack, io_error *error)
{
    char path[STATE_PATH];
    training_state_probe(log->directory, log->plan, stack, path);
    FILE *file = fopen(path, "r");
    if (!file && errno == ENOENT) return EXIT_OK;
    if (!file) return io_fail(error, EXIT_INPUT, "%s: %s", path, strerror(errno));
    double *to = (double *)probe_log_at(log, stack.first, 0, 0);
    int64_t read = 0;
    while (read < numbers_of(log, stack) && fscanf(file, "%la", &to[read]) == 1)
        read++;
    fclose(file);
    if (read == numbers_of(log, stack)) return EXIT_OK;
    return io_fail(error, EXIT_INPUT, "%s is damaged; --restart discards it", path);
}

static int save(const probe_log *log, plan_stack stack, io_error *error)
{
    char path[STATE_PATH];
    out_file *file;
    training_state_probe(log->directory, log->plan, stack, path);
    const int status = out_open(&file, path, error);
    if (status != EXIT_OK) return status;
    const double *from = (const double *)probe_log_at(log, stack.first, 0, 0);
    for (int64_t i = 0; i < numbers_of(log, stack); i++)
        fprintf(out_stream(file), "%a\n", from[i]);
    return out_commit(file, error);
}

int probe_log_open(probe_log *log, const results *r, const char *directory, io_error *error)
{
    const size_t all = (size_t)(plan_runs(r->plan) * r->most * r->plan->options.shape.layers);
    int status = EXIT_OK;
    *log = (probe_log){ .directory = directory, .plan = r->plan, .most = r->most };
    log->at = calloc(all, sizeof *log->at);
    if (!log->at) return io_fail(error, EXIT_INTERNAL, "out of memory for what is measured of the probe");
    for (int64_t first = 0; first < plan_runs(log->plan) && status == EXIT_OK;) {
        const plan_stack stack = plan_stack_at(log->plan, first);
        status = load(log, stack, error);
        first += stack.count;
    }
    if (status != EXIT_OK) probe_log_close(log);
    return status;
}

void probe_log_close(probe_log *log)
{
    free(log->at);
    *log = (probe_log){ 0 };
}

/* ---- a test */

static loam_status measure(const trainer *t, int64_t model, int64_t layer, probe_layer *to, loam_error *error)
{
    assert(t->options.shape.heads == PROBE_HEADS);
    loam_status status = probe_measure(t->net, model, layer, &to->rows, error);
    for (int i = 0; i < PROBE_MATRICES && !status; i++)
        status = probe_stable_ranks(t->net, model, layer, probe_matrices[i], to->rank[i], error);
    return status;
}

int probe_log_test(const probe_log *log, plan_stack stack, const trainer *t, io_error *error)
{
    const int64_t test = (t->step - 1) / t->options.test_every;
    loam_error cause;
    for (int64_t m = 0; m < stack.count; m++)
        for (int64_t layer = 0; layer < layers_of(log); layer++)
            if (measure(t, m, layer, probe_log_at(log, stack.first + m, test, layer), &cause))
                return io_fail(error, EXIT_INTERNAL, "%s", cause.text);
    return save(log, stack, error);
}
