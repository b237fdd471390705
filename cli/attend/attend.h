/* SPDX-License-Identifier: MIT
 * The parts of `loam attend`: options -> inputs -> run -> outputs. */
#ifndef LOAM_CLI_ATTEND_H
#define LOAM_CLI_ATTEND_H

#include "cli/device_set.h"
#include "io/array.h"
#include "io/error.h"
#include "loam.h"

#include <stdbool.h>
#include <stdint.h>

enum attend_input {
    IN_Q,
    IN_K,
    IN_V,
    IN_PROBE,
    IN_W,
    IN_RIDGE, /* from here to IN_SINK: real */
    IN_LOG_DECAY,
    IN_BETA,
    IN_STATE,
    IN_GRAD_STATE,
    IN_Z,
    IN_LOG_ALPHA,
    IN_SHIFT,
    IN_BALANCE,
    IN_BALANCE_KEYS,
    IN_SLOPE,
    IN_KEY_BIAS,
    IN_SINK,
    IN_GRAD_OUT,
    IN_COUNT
};

enum attend_output {
    OUT_O,
    OUT_LSE,
    OUT_RHO,
    OUT_WEIGHTS,
    OUT_INFO,
    OUT_STATE,
    OUT_DQ, /* from here: gradients */
    OUT_DK,
    OUT_DV,
    OUT_DPROBE,
    OUT_DRIDGE,
    OUT_DSCALE,
    OUT_DSLOPE,
    OUT_DKEY_BIAS,
    OUT_DSINK,
    OUT_DLOG_DECAY,
    OUT_DBETA,
    OUT_DW,
    OUT_DSTATE,
    OUT_DZ,
    OUT_DLOG_ALPHA,
    OUT_COUNT
};

/* What words stand for: places in the enumerations of loam.h; -1: not given. */
typedef struct attend_choices {
    int feature_map, ridge_unit, score, rope_layout, tokens_first, dtype, backend;
} attend_choices;

typedef struct attend_options {
    bool help;
    const char *name;              /* of the mechanism, as it was asked for: "fox" is softmax */
    bool fox, path, interpolation; /* such a name */
    loam_mechanism mechanism;
    loam_mechanism_info form; /* of it */
    const char *in[IN_COUNT]; /* paths, NULL where not given; of IN_RIDGE also where it is a number */
    const char *out[OUT_DQ];  /* likewise; gradients go into grad_dir */
    const char *grad_dir;
    const char *ridge, *ridge_unit, *score, *layout, *backend, *kernel, *grad_kernel, *dtype, *feature_map;
    const char *rope_layout;
    const char *cu_seqlens, *cu_seqlens_k;
    const char *linear; /* the recurrence of an interpolation, which `mechanism` then is */
    attend_choices choice;
    loam_problem problem;      /* default but for what options set there: numbers of scores */
    double ridge_number, rope; /* rope: its base, 0 for none */
    int64_t threads, rope_dim, rope_offset;
    bool full, normalise, verbose;
} attend_options;

/* Where the sequences of packed tokens begin, and the end of the last; at is NULL where they are not
 * packed. */
typedef struct attend_offsets {
    const char *path;
    int64_t *at, count;
} attend_offsets;

typedef struct attend_run {
    const attend_options *options;
    bool tokens_first; /* layout (B,T,H,D) */
    int rank;          /* of q: 2, 3 or 4 */
    loam_problem problem;
    attend_offsets cu_q, cu_kv; /* of one memory where only --cu-seqlens was given */
    loam_dtype real;            /* of ridge, lse, ...: f32, or f64 where the problem is f64 */
    array in[IN_COUNT];
    array out[OUT_COUNT]; /* OUT_INFO: data is loam_row_info, `dtype` means nothing */
} attend_run;

/* The option that names an input, or an output that is no gradient: "--q". */
const char *attend_input_option(enum attend_input which);
const char *attend_output_option(enum attend_output which);

/* Whether log decays and strengths are read, given or not, and whether a gradient is written. */
bool attend_decays(const attend_options *options);
bool attend_writes(const attend_options *options);
bool attend_has_gradient(const attend_options *options, enum attend_output which);
/* The file of a gradient; malloc's. */
int attend_gradient_path(char **path, const char *directory, enum attend_output which, io_error *error);

/* Sizes of a (B,H,T,D) array by its rank and layout; absent axes are 1. */
typedef struct attend_sizes {
    int64_t batch, heads, tokens, channels;
} attend_sizes;
attend_sizes attend_sizes_of(const attend_run *run, const array *a);
/* Strides of such an array for the library. */
loam_view attend_view(const attend_run *run, array *a);
loam_const_view attend_const_view(const attend_run *run, array *a);

/* Parses argv; sets options->help where only the help was asked for. */
int attend_parse(attend_options *options, int argc, char **argv, io_error *error);

/* The first `axes` of (B,H,rows,channels), B and H those of `like`, which is --q or --v, that its rank has:
 * without B for rank 3, without B and H for rank 2. Returns how many. */
int attend_side_shape(const attend_run *run, enum attend_input like, int axes, int64_t rows, int64_t channels,
                      int64_t *shape);
bool attend_has_shape(const array *a, int rank, const int64_t *shape);
bool attend_is_single(const array *a); /* () or (1,) */
/* Tells which shape was found and, in words, which was expected. */
int attend_wrong_shape(const attend_run *run, enum attend_input which, enum attend_input like,
                       const char *expected, io_error *error);
int attend_check_side(const attend_run *run, enum attend_input which, enum attend_input like, int axes,
                      int64_t rows, int64_t channels, io_error *error);
/* One number per head of `like`. */
int attend_check_per_head(const attend_run *run, enum attend_input which, enum attend_input like,
                          io_error *error);
int attend_misfit(const attend_run *run, enum attend_input a, enum attend_input b, const char *expected,
                  io_error *error);

/* Positive random features: whether they are asked for, and their shapes. */
bool attend_positive(const attend_options *options);
int attend_positive_shapes(attend_run *run, io_error *error);
/* Heads of z and of states, and the width of these. */
int64_t attend_state_heads(const attend_run *run);
int64_t attend_state_width(const attend_run *run);

/* Axes of q, and as many of those that are like it. */
int attend_check_ranks(const attend_run *run, io_error *error);

/* Whether the shapes of all inputs go together; sets run->problem.ridge_axes. */
int attend_local_shapes(attend_run *run, io_error *error);
int attend_recurrent_shapes(attend_run *run, io_error *error);
/* Log decays and strengths that are read and were not given: 0 and 1, and the decays of retention. */
int attend_defaults(attend_run *run, io_error *error);
int64_t attend_state_rows(const attend_run *run);

/* What goes along the tokens: of all sequences, where they are packed. */
int64_t attend_tokens_q(const attend_run *run);
int64_t attend_tokens_kv(const attend_run *run);
/* Of a state; packed sequences have one each. Returns the rank. */
int attend_state_shape(const attend_run *run, int64_t *shape);

/* Packed sequences: --cu-seqlens. Reads the offsets, once the shape of q is known. */
int attend_packed_read(attend_run *run, io_error *error);
/* Batch, lengths and totals of the problem, of which the lengths are those of the arrays. */
void attend_packed_sizes(attend_run *run);
/* The position of each token of q or k, for --rope; malloc's, NULL where memory is out. */
int64_t *attend_packed_positions(const attend_run *run, bool keys);
void attend_packed_free(attend_run *run);

/* Reads every file, checks that the shapes fit together, converts, and fills run->problem. */
int attend_read(attend_run *run, io_error *error);

/* --rope: q and k as they are read, dq and dk as they were computed. */
int attend_rope_inputs(attend_run *run, io_error *error);
int attend_rope_gradients(attend_run *run, io_error *error);

/* Makes run->out for all that was asked for, with the shapes that the help tells. */
int attend_prepare(attend_run *run, io_error *error);

/* Runs forward, and backward where gradients were asked for. */
int attend_compute(attend_run *run, io_error *error);

/* The same for softmax on what the recurrence leaves over. */
int attend_interpolate(attend_run *run, io_error *error);
/* All arrays as the library wants them, but work and saved. */
loam_args attend_args(attend_run *run);

/* All passes of a run share `saved`, which lives where the kernels do. */
typedef struct attend_call {
    loam_args args;
    bool device;
    device_set set;
    void *saved;
} attend_call;

/* The arrays go to the device, and their pointers into the arguments. */
int attend_send(attend_run *run, attend_call *call, io_error *error);
/* A buffer for the library, where its kernels are; device memory is freed with the call. */
int attend_buffer(attend_call *call, void **buffer, size_t bytes, const char *what, io_error *error);
/* What the device wrote comes back, unless something failed before; frees all. */
int attend_end(attend_call *call, int status, io_error *error);
/* What the library said, with `exit_status` where nothing else fits. */
int attend_report(const loam_error *from, int exit_status, io_error *error);

/* Writes every output; none appears before all are complete. */
int attend_write(const attend_run *run, io_error *error);

void attend_free(attend_run *run);

#endif
