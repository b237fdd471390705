/* SPDX-License-Identifier: MIT
 * loam experiment probe: the arms one after another, each as an experiment with a state of its own. */
#define _POSIX_C_SOURCE 200809L
#include "cli/experiment/options.h"
#include "cli/training/probe_report.h"
#include "cli/training/run.h"
#include "cli/training/state.h"
#include "train/checkpoint.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct session session;

/* An arm, for those who are told of its stacks. */
typedef struct place {
    session *session;
    int arm;
} place;

struct session {
    probe_request request;
    probe_result all[PROBE_ARMS];
    pace pace[PROBE_ARMS];
    char state[EXPERIMENT_PATH], folder[PROBE_ARMS][EXPERIMENT_PATH + 64];
    machine on;
    double begun;
    place place[PROBE_ARMS];
};

/* ---- softmax that goes on */

/* Arrays that both have, by name; the W_R of Parallax stays 0. */
static void copy_weights(const trainer *from, const trainer *to)
{
    int count, others;
    const parameter *list = model_parameters(to->net, &count), *other = model_parameters(from->net, &others);
    for (int n = 0; n < count; n++)
        for (int i = 0; i < others; i++)
            if (strcmp(list[n].name, other[i].name) == 0) to->on->op->copy(to->on, list[n].x, other[i].x);
}

/* The same runs of the first arm, which are finished, lie in their last checkpoint. */
static int go_on(session *s, plan_stack stack, const trainer *to, io_error *error)
{
    const plan *p = &s->request.arms[0].plan;
    const trainer_options options = plan_options(p, stack);
    char path[STATE_PATH];
    trainee each[PLAN_STACK];
    trainer from;
    loam_error cause;
    bool found;
    plan_trainees(p, stack, each);
    training_state_checkpoint(s->folder[0], p, stack, path);
    if (trainer_open(&from, &s->on, &options, each, stack.count, &cause))
        return io_fail(error, EXIT_INTERNAL, "%s", cause.text);
    int status = checkpoint_load(&from, path, &found, error);
    if (status == EXIT_OK && !found)
        status = io_fail(error, EXIT_INPUT, "%s is missing; --restart begins anew", path);
    if (status == EXIT_OK) copy_weights(&from, to);
    trainer_close(&from);
    return status;
}

/* ---- arms as stacks are told of them */

static int tell_test(void *with, plan_stack stack, const trainer *t, io_error *error)
{
    const place *at = with;
    return probe_log_test(&at->session->all[at->arm].log, stack, t, error);
}

static int tell_opened(void *with, plan_stack stack, const trainer *t, io_error *error)
{
    const place *at = with;
    if (at->session->request.arms[at->arm].start < PROBE_CONVERT) return EXIT_OK;
    return go_on(at->session, stack, t, error);
}

static runner runner_of(session *s, int arm)
{
    const double minutes = s->request.minutes;
    s->place[arm] = (place){ s, arm };
    return (runner){ .on = &s->on,
                     .directory = s->folder[arm],
                     .interval = s->request.interval,
                     .seconds = minutes > 0 ? 60 * minutes : INFINITY,
                     .begun = s->begun,
                     .tested = tell_test,
                     .opened = tell_opened,
                     .with = &s->place[arm],
                     .keep = arm == 0 };
}

/* ---- what an earlier run left */

static void forget(session *s)
{
    for (int arm = 0; arm < s->request.count; arm++)
        training_state_remove(s->folder[arm]);
    training_state_remove(s->state);
}

static int begin(session *s, io_error *error)
{
    const probe_request *r = &s->request;
    bool found;
    int drops;
    if (r->restart) forget(s);
    int status = experiment_make_directories(s->state, error);
    if (status == EXIT_OK) status = training_state_open(s->state, r->description, &found, &drops, error);
    if (status == EXIT_OK && r->resume && !found)
        status = io_fail(error, EXIT_INPUT, "--resume: %s holds no run to continue", s->state);
    if (status == EXIT_OK && !found) status = training_state_begin(s->state, r->description, 0, error);
    for (int arm = 0; arm < r->count && status == EXIT_OK; arm++)
        status = experiment_make_directories(s->folder[arm], error);
    return status;
}

/* ---- the arms */

static int open_arms(session *s, io_error *error)
{
    int status = EXIT_OK;
    for (int arm = 0; arm < s->request.count && status == EXIT_OK; arm++) {
        probe_result *at = &s->all[arm];
        at->arm = &s->request.arms[arm];
        status = results_open(&at->results, &at->arm->plan, error);
        if (status == EXIT_OK) status = probe_log_open(&at->log, &at->results, s->folder[arm], error);
    }
    return status;
}

/* The measured time of all arms. */
static int measure(session *s, io_error *error)
{
    double sum = 0;
    int status = EXIT_OK;
    for (int arm = 0; arm < s->request.count && status == EXIT_OK; arm++) {
        const runner with = runner_of(s, arm);
        double left;
        status = runner_plan(&with, &s->request.arms[arm].plan, &s->pace[arm], &left, false, error);
        if (status != EXIT_OK) break;
        printf("%-24s %7.0f seconds\n", s->request.arms[arm].name, left);
        sum += left;
    }
    if (status == EXIT_OK) printf("About %.1f minutes left of training.\n\n", sum / 60);
    fflush(stdout);
    return status;
}

static int run_arms(session *s, bool *whole, io_error *error)
{
    int status = EXIT_OK;
    *whole = true;
    for (int arm = 0; arm < s->request.count && status == EXIT_OK && *whole; arm++) {
        const runner with = runner_of(s, arm);
        status = runner_run(&with, &s->pace[arm], &s->all[arm].results, whole, error);
    }
    return status;
}

static int run(session *s, const char **out, io_error *error)
{
    const probe_request *r = &s->request;
    bool whole = false;
    int status = begin(s, error);
    if (status == EXIT_OK) status = open_arms(s, error);
    if (status == EXIT_OK) status = measure(s, error);
    if (status == EXIT_OK) status = run_arms(s, &whole, error);
    if (status == EXIT_OK && !whole) printf("The time is over; the same command goes on.\n");
    if (status == EXIT_OK && whole) status = probe_report(s->all, r->count, r->description, r->out, error);
    if (status == EXIT_OK && whole) {
        forget(s);
        *out = r->out;
    }
    for (int arm = 0; arm < r->count; arm++) {
        results_close(&s->all[arm].results);
        probe_log_close(&s->all[arm].log);
    }
    return status;
}

int experiment_probe(int argc, char **argv, const char **out, io_error *error)
{
    session *s = calloc(1, sizeof *s);
    bool help = false;
    int status = s ? probe_request_read(&s->request, argc, argv, &help, error)
                   : io_fail(error, EXIT_INTERNAL, "out of memory");
    if (status == EXIT_OK && !help)
        status = backend_open(s->request.where, (int)s->request.threads, &s->on, error);
    if (status == EXIT_OK && !help) {
        s->begun = trainer_clock();
        snprintf(s->state, sizeof s->state, "%s/state", s->request.out);
        for (int arm = 0; arm < s->request.count; arm++) {
            const probe_arm own = s->request.arms[arm];
            snprintf(s->folder[arm], sizeof s->folder[arm], "%s/%s", s->state, own.name);
        }
        status = run(s, out, error);
        machine_close(&s->on);
    }
    free(s);
    return status;
}
