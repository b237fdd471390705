/* SPDX-License-Identifier: MIT
 * Ways to compute Local Linear Attention whose working memory is compared: two that hold everything at once,
 * and the library's, which alone computes on a GPU. Scores are q.k / sqrt(d), causal; the ridge is 1. */
#ifndef LOAM_CLI_EXPERIMENT_MEMORY_METHODS_H
#define LOAM_CLI_EXPERIMENT_MEMORY_METHODS_H

#include "cli/backend.h"
#include "io/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum memory_method {
    MEMORY_DIFFERENCES, /* all z_ij = k_j - q_i: n^2 d numbers */
    MEMORY_SYSTEMS,     /* all covariances Sigma_i: n d^2 numbers */
    MEMORY_BLOCKS,      /* loam.h */
    MEMORY_FORWARDS,    /* so many; the same with the backward, in the same order: */
    MEMORY_DIFFERENCES_BACKWARD = MEMORY_FORWARDS,
    MEMORY_SYSTEMS_BACKWARD,
    MEMORY_BACKWARD,
    MEMORY_METHODS
} memory_method;

static inline bool memory_has_backward(memory_method m) { return m >= MEMORY_FORWARDS; }
/* The forward of a method. */
static inline memory_method memory_forward_of(memory_method m)
{
    return memory_has_backward(m) ? (memory_method)(m - MEMORY_FORWARDS) : m;
}
static inline bool memory_is_naive(memory_method m) { return memory_forward_of(m) != MEMORY_BLOCKS; }

extern const char *const memory_names[MEMORY_METHODS];

typedef struct memory_case {
    memory_method method;
    int64_t length, dim;
    uint64_t seed;
    int threads;
    backend on; /* where, and of what type the library's arrays are */
} memory_case;

/* Bytes. */
typedef struct memory_sizes {
    size_t arrays;      /* inputs and outputs: q, k, v, o, and for a backward their gradients */
    size_t working;     /* all that a run wants besides */
    size_t work, saved; /* of which the library's; 0 for the others */
} memory_sizes;

int memory_sizes_of(const memory_case *c, memory_sizes *sizes, io_error *error);

/* Of an element of q, k, v, o and their gradients; all else is float32. */
static inline size_t memory_element(const memory_case *c) { return c->on.bf16 ? 2 : sizeof(float); }

/* What the leading term of the working memory says: 4 n^2 d, 4 n d^2, 4 n d bytes. */
double memory_formula(const memory_case *c);

/* A few of the outputs, or with a backward of the gradients, by which the methods are compared. */
enum { MEMORY_SAMPLE = 64 };

/* Draws the inputs into `arrays`, one after the other, in float32. */
void memory_draw(const memory_case *c, float *arrays);
/* The sample of such arrays. */
void memory_take_sample(const memory_case *c, const float *arrays, float sample[MEMORY_SAMPLE]);
/* Computes o, and the gradients; `working` has memory_sizes.working bytes, at LOAM_ALIGN. */
int memory_compute(const memory_case *c, float *arrays, void *working, float sample[MEMORY_SAMPLE],
                   io_error *error);
/* MEMORY_BLOCKS and MEMORY_BACKWARD where `arrays`, of elements of the case, and `working` are. On a GPU the
 * run goes on behind the call. */
int memory_compute_library(const memory_case *c, void *arrays, void *working, io_error *error);

#endif
