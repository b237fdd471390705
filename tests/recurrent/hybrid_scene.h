/* SPDX-License-Identifier: MIT
 * Problems of the hybrid with their arrays: run on any machine, and the equation over all pairs. */
#ifndef TESTS_RECURRENT_HYBRID_SCENE_H
#define TESTS_RECURRENT_HYBRID_SCENE_H

#include "loam.h"

/* Inputs, then what passes write, each in double whatever type the library gets. */
typedef enum array {
    Q,
    K,
    V,
    GRAD_O,
    Z,
    ALPHA,
    SHIFT,
    BALANCE,
    BALANCE_KEYS,
    GAIN,
    O,
    GRAD_Q,
    GRAD_K,
    GRAD_V,
    GRAD_Z,
    GRAD_ALPHA,
    GRAD_GAIN,
    STATE,
    KEYS,
    VALUES,
    ARRAYS
} array;

typedef struct scene {
    int64_t batch, heads_q, heads_kv, len, d, dv, features, sinks, window;
    int shared, alpha, shift, balance, threads;
    double scale;
    loam_dtype dtype;
    loam_backend backend;
    double *x[ARRAYS];
    void *saved;
} scene;

/* Sequences first .. first + batch - 1: `count` tokens of each, from token at[b] on. */
typedef struct part {
    loam_pass pass;
    int64_t first, batch, count;
    int64_t at[2];
    int carried; /* a forward that leaves a state */
} part;

typedef struct scene_memory {
    void *memory[ARRAYS];
    int device;
} scene_memory;

/* Elements of an array, and their type. */
int64_t scene_count(const scene *s, array which);
loam_dtype scene_type(const scene *s, array which);
/* Arrays for the members set, with random inputs. */
void scene_fill(scene *s, uint64_t seed);
/* Two sequences, two heads, float64 by the reference. */
scene scene_make(int64_t len, int64_t sinks, int64_t window, uint64_t seed);
void scene_free(scene *s);
loam_problem scene_problem(const scene *s, loam_pass pass);
/* malloc'd, aligned. */
void *scene_room(size_t bytes);
/* The arrays as the library gets them; fetch brings back what it wrote, and frees them. */
scene_memory scene_send(const scene *s);
void scene_fetch(scene *s, scene_memory *m);
loam_const_view scene_const(loam_view v);
/* Of a pass over a part; without work and saved. */
loam_args scene_args(const scene *s, const part *p, const scene_memory *m);
loam_hybrid_args scene_hybrid_args(const scene *s, const part *p, const scene_memory *m);
/* Runs; saved stays from a forward until it is dropped. */
void scene_run_part(scene *s, const part *p);
/* All tokens, without a state. */
void scene_run(scene *s, loam_pass pass);
void scene_drop_saved(scene *s);
/* Forward and backward; forward alone. */
void scene_run_both(scene *s);
void scene_run_forward(scene *s);
/* The scalar product of n numbers. */
double scene_dot(const double *x, const double *y, int64_t n);
/* log (1/M) sum_m phi_m(x) phi_m(y) alpha_m, and what the shift of the keys took from the scores; n: head of
 * z. */
double scene_far_score(const scene *s, int64_t n, const double *q, const double *k);
/* The largest difference of o from the equation over all pairs; `exact`: from softmax. */
double scene_miss(const scene *s, int exact);

#endif
