/* SPDX-License-Identifier: MIT
 * `loam regress` run in this process, with what it said. */
#ifndef TESTS_REGRESS_COMMAND_H
#define TESTS_REGRESS_COMMAND_H

#include <stddef.h>

extern char said[1 << 16]; /* stdout and stderr of the last run */

void write_file(const char *path, const char *text);
void read_file(const char *path, char *text, size_t size);

/* Runs with both streams in `said`; the words of `line` are split at spaces. Returns the exit status. */
int run(const char *line);
/* One line that has the words, the status, and no file more than before. */
void expect_error(const char *line, int status, const char *words);
void expect_done(const char *line);
/* `said`, or the file, has the words. */
void expect_said(const char *words);
void expect_in_file(const char *path, const char *words);

#endif
