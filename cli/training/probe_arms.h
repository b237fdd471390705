/* SPDX-License-Identifier: MIT
 * `loam experiment probe`: softmax and Parallax, whose probe starts in several ways, each under AdamW and
 * Muon. An arm is one of these on one task. */
#ifndef LOAM_CLI_TRAINING_PROBE_ARMS_H
#define LOAM_CLI_TRAINING_PROBE_ARMS_H

#include "cli/training/backend.h"
#include "cli/training/plan.h"

typedef enum probe_start {
    PROBE_NONE,    /* softmax */
    PROBE_ZERO,    /* W_R = 0 */
    PROBE_LIKE,    /* like W_q */
    PROBE_NORM,    /* likewise, with RMSNorm of queries, keys and probes */
    PROBE_GATE,    /* likewise, times a learned gate for each head */
    PROBE_CONVERT, /* W_R = 0 in what softmax has learned, and some steps more */
    PROBE_CONTROL, /* softmax, which goes on for as many */
    PROBE_STARTS
} probe_start;

extern const char *const probe_start_names[]; /* "none", "zero", "like W_q", .. */

typedef struct probe_arm {
    char name[48]; /* "recall-zero-muon" */
    probe_start start;
    plan plan; /* of one mechanism and one cell */
} probe_arm;

enum { PROBE_ARMS = 2 * 2 * PROBE_CONVERT + 2 };

typedef struct probe_request {
    /* By task, then start, then AdamW and Muon: the first is softmax on recall by AdamW, from which the
     * last two go on. */
    probe_arm arms[PROBE_ARMS];
    int count;
    const char *out;
    int64_t threads;          /* 0: all */
    double minutes, interval; /* as in request */
    bool resume, restart;
    backend where;
    char description[512]; /* what the results depend on */
} probe_request;

int probe_request_read(probe_request *r, int argc, char **argv, bool *help, io_error *error);

#endif
