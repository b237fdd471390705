/* SPDX-License-Identifier: MIT
 * What went wrong on the way from or to a file, in one line for a person, and the exit status for it. */
#ifndef LOAM_IO_ERROR_H
#define LOAM_IO_ERROR_H

/* The documented exit statuses of the program. */
enum {
    EXIT_OK = 0,
    EXIT_INTERNAL = 1, /* a bug, or memory that ran out */
    EXIT_USAGE = 2,    /* unknown option or command, a missing or malformed argument */
    EXIT_INPUT = 3,    /* a file that cannot be read, or whose contents are wrong */
    EXIT_OUTPUT = 4    /* a file that cannot be written: full disk, closed pipe, no permission */
};

typedef struct io_error {
    int exit_status;
    char text[512];
} io_error;

/* Fills *error (may be NULL) and returns exit_status, so that callers can write `return io_fail(...)`. */
int io_fail(io_error *error, int exit_status, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
