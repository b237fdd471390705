/* SPDX-License-Identifier: MIT
 * Runs the loam program as a user does, from a shell, in a directory of its own. */
#ifndef LOAM_TESTS_CLI_PROGRAM_H
#define LOAM_TESTS_CLI_PROGRAM_H

#include "io/array.h"

#include <stdbool.h>

typedef struct outcome {
    int status;
    char out[1 << 15], err[1 << 12];
} outcome;

/* cmocka group fixtures: make a fresh directory and go there; leave and remove it. */
int program_setup(void **state);
int program_teardown(void **state);

/* `loam ARGUMENTS` by sh. $LOAM is the program, that of the build unless
 * it is set, $DATA the directory of fixtures, $IN inputs.safetensors. */
outcome run_loam(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Any shell command with the same variables. */
outcome run_shell(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Whether a shell condition holds. */
bool shell_holds(const char *condition);
/* Starts `loam ARGUMENTS`, and kills it when the condition holds; false where it ended before. */
bool kill_loam(const char *arguments, const char *condition);

/* Fails the test with everything that the program said where the status is another. */
void expect_status(const outcome *result, int status);
/* One line on stderr which holds `part`. */
void expect_complaint(const outcome *result, int status, const char *part);

/* What `loam COMMAND ARGUMENTS` is refused for. */
typedef struct refusal {
    const char *arguments;
    int status;
    const char *said;
} refusal;
/* Each is refused so, and leaves no `absent`, a path; NULL: none is looked for. */
void expect_refusals(const char *command, const refusal *cases, size_t count, const char *absent);

bool file_exists(const char *path);
/* Files in the present directory whose names begin so. */
int count_files(const char *prefix);

/* A tensor of $DATA/FILE.safetensors as float64. */
array fixture(const char *file, const char *tensor);
array read_array(const char *path); /* of any file, in its own type */

/* Same shape, and every element within tolerance * (1 + the largest expected). */
void expect_arrays_near(const char *what, const array *got, const array *expected, double tolerance);
/* The array in `path` is the tensor NAME.PART of the fixture. */
void expect_tensor(const char *file, const char *path, const char *name, const char *part, double tolerance);
/* The folder g holds dq, dk, dv, dscale and `gradients`,
 * words apart, as the fixture has them, and nothing else. */
void expect_gradients(const char *file, const char *name, const char *gradients, double tolerance);

#endif
