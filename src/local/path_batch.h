/* SPDX-License-Identifier: MIT
 *
 * PaTH for any probe: each row becomes a problem of its own, of one query and the keys as the row sees them.
 * The reflections of a group of positions are applied to the keys, with a copy of the keys for each row. The
 * kernels of the family then run on the group as a batch of problems with one query each, in float32, without
 * any reflections. local/path_batch.c has the sequence of operations, a back end (batch_backend) the
 * operations.
 *
 * Steps are aligned at the end of the longer of queries and keys: step n is position n - (steps - n_kv) among
 * the keys and query n - (steps - n_q), each where that is not negative. So a host that does not know the
 * lengths knows which steps may have rows.
 *
 * Backward runs over the groups from the last. M may be singular, so reflections cannot be undone: keys are
 * computed again from frames (the keys as seen before some step) stored earlier, at half the remaining
 * distance to the group each.
 */
#ifndef LOAM_LOCAL_PATH_BATCH_H
#define LOAM_LOCAL_PATH_BATCH_H

#include "src/local/decay.h"
#include "src/local/local.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Tiles of keys: each has one partial sum of dw and dbeta. */
enum { BATCH_KEYS = 32 };

/* The division of a problem into groups of steps. */
typedef struct batch_shape {
    int64_t steps, group, groups; /* steps of the longest sequence; steps of a group; groups */
    int64_t no_rows;              /* no step before this one has a query */
} batch_shape;

/* Arrays of one sequence and of one group of its rows. Frames, sums and partial sums are float64. */
typedef struct batch_arrays {
    batch_shape shape;
    loam_problem own;        /* the problem of a group: its rows as a batch */
    int64_t first, end;      /* keys [first, end): all, or the slice of a partial state */
    float *values;           /* [heads_kv][len_kv][dim_v] */
    local_decay_pair *decay; /* [heads_q][len_kv] */
    double *frames;          /* [slots][heads_kv][len_kv][dim_qk] */
    int64_t frame;           /* elements of a frame */
    double *turns;           /* CPU: [heads_kv][group][dim_qk + 1]: w and beta of the steps */
    float *keys;             /* [group][heads_kv][len_kv][dim_qk] */
    int64_t *lens;           /* [group]: the number of keys that the row sees */
    float *q, *probe, *ridge, *o, *lse, *rho, *weights;
    loam_row_info *info;
    void *saved, *work; /* work: of the group's problem */
    double *states;     /* of the group */
    /* Backward. */
    float *grad_o, *grad_q, *grad_probe, *grad_ridge;
    float *grad_k, *grad_v, *columns; /* [group][heads_kv or heads_q][len_kv][..] */
    double *sum_k, *sum_v, *sum_columns;
    double *parts;       /* [heads_kv][tiles of BATCH_KEYS][group][dim_qk + 1]: partial sums of dw, dbeta */
    local_row_sums sums; /* of all rows */
    double *head_sums;   /* [2][heads_q] */
} batch_arrays;

/* One array over rows: of the whole problem in its type (data), and of a group, dense (own):
 * [group][heads_q][width] of F32, or F64 where data is F64. */
typedef struct batch_rows {
    void *data;
    loam_dtype dtype;
    int64_t batch, head, token, width;
    void *own;
} batch_rows;

enum { BATCH_MOST_ROWS = 12 };
typedef struct batch_moves {
    batch_rows rows[BATCH_MOST_ROWS];
    int count;
} batch_moves;

/* Steps first .. first + count - 1 of sequence b; rows: whether some of them may have a query. */
typedef struct batch_steps {
    int64_t b, first, count;
    bool rows;
} batch_steps;

/* The operations of a back end. */
typedef struct batch_backend {
    size_t group_bytes; /* the bytes that the copies of keys of a group may use, if that allows a few rows */
    size_t (*work)(const loam_problem *own);
    /* Copies values and log-decay sums of sequence b to the workspace. */
    loam_status (*begin)(const loam_problem *p, const loam_args *a, const batch_arrays *w, int64_t b,
                         loam_error *error);
    loam_status (*clear)(const loam_args *a, void *data, size_t bytes, loam_error *error);
    /* Copies rows into the group and sets the lengths (in), or copies rows out of the group. */
    loam_status (*move)(const loam_problem *p, const loam_args *a, const batch_arrays *w,
                        const batch_moves *moves, bool in, const batch_steps *steps, loam_error *error);
    /* Applies the reflections of the steps to the keys of frame `from`, the result is frame `to`; copies:
     * also stores the keys of each step in w->keys. */
    loam_status (*turn)(const loam_problem *p, const loam_args *a, const batch_arrays *w,
                        const batch_steps *steps, int64_t from, int64_t to, bool copies, loam_error *error);
    /* Run the kernels of the family on the group: w->own, with its arguments. Backward returns its
     * row sums in *sums. */
    loam_status (*forward)(const batch_arrays *w, const loam_args *own, loam_error *error);
    loam_status (*backward)(const batch_arrays *w, const loam_args *own, local_row_sums *sums,
                            loam_error *error);
    /* sum[h][j][c] += parts[n][h][j][c] over rows n of the group, from the last to the first, for the first
     * `keys` keys. */
    loam_status (*add)(const loam_args *a, double *sum, const float *parts, int64_t heads, int64_t stored,
                       int64_t keys, int64_t width, int64_t count, loam_error *error);
    /* The adjoint of the reflections of the group on sum_k, with the dw and dbeta of its positions; `frame`
     * is the one before its first step. Where there are rows, w->grad_k is added. */
    loam_status (*turn_back)(const loam_problem *p, const loam_args *a, const batch_arrays *w,
                             const batch_steps *steps, int64_t frame, loam_error *error);
    /* Writes the gradients of sequence b; reduce: those that are sums over rows. */
    loam_status (*finish)(const loam_problem *p, const loam_args *a, const batch_arrays *w, int64_t b,
                          loam_error *error);
    loam_status (*reduce)(const loam_problem *p, const loam_args *a, const batch_arrays *w,
                          loam_error *error);
} batch_backend;

/* The kernels: workspace, forward or decode, backward, partial states. */
size_t local_path_batch_work(const batch_backend *backend, const loam_problem *p);
loam_status local_path_batch_forward(const batch_backend *backend, const loam_problem *p, const loam_args *a,
                                     loam_error *error);
loam_status local_path_batch_backward(const batch_backend *backend, const loam_problem *p, const loam_args *a,
                                      loam_error *error);
/* partial: the kernel for partial states without PaTH. */
loam_status local_path_batch_partial(const batch_backend *backend, kernel_partial_fn *partial,
                                     const loam_problem *p, const loam_args *a, int64_t first, int64_t count,
                                     double *states, loam_error *error);

/* The most keys that any row of the steps before `end` sees. */
LOAM_INLINE int64_t batch_keys_before(const loam_problem *p, const batch_arrays *w, int64_t end)
{
    const int64_t keys = end - w->shape.steps + p->len_kv;
    return keys < 0 ? 0 : keys;
}

/* Position among the keys and query of step n of a sequence; negative where the step has none. */
typedef struct batch_step {
    int64_t position, query;
} batch_step;

LOAM_INLINE batch_step batch_step_at(const batch_shape *x, const local_seq *s, int64_t n)
{
    batch_step out;
    out.position = n - (x->steps - s->nk), out.query = n - (x->steps - s->nq);
    return out;
}

#ifdef __cplusplus
}
#endif

#endif
