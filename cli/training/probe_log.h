/* SPDX-License-Identifier: MIT
 * What is measured in the layers of an arm's models at each test, kept in files beside the checkpoints. */
#ifndef LOAM_CLI_TRAINING_PROBE_LOG_H
#define LOAM_CLI_TRAINING_PROBE_LOG_H

#include "cli/training/results.h"
#include "train/probe.h"

enum { PROBE_HEADS = 2, PROBE_MATRICES = 4 };

/* W_q, W_k, W_R, W_o: whose stable ranks are told. */
extern const role probe_matrices[PROBE_MATRICES];

/* All of it numbers. */
typedef struct probe_layer {
    probe_rows rows;
    double rank[PROBE_MATRICES][PROBE_HEADS];
} probe_layer;

typedef struct probe_log {
    const char *directory;
    const plan *plan;
    int64_t most;    /* tests of a run */
    probe_layer *at; /* [runs][most][layers] */
} probe_log;

/* With what the directory holds of an earlier run. */
int probe_log_open(probe_log *log, const results *r, const char *directory, io_error *error);
void probe_log_close(probe_log *log);
probe_layer *probe_log_at(const probe_log *log, int64_t run, int64_t test, int64_t layer);
/* Measures the models of a stack after a test, and saves. */
int probe_log_test(const probe_log *log, plan_stack stack, const trainer *t, io_error *error);

#endif
