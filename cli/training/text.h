/* SPDX-License-Identifier: MIT */
#ifndef LOAM_CLI_TRAINING_TEXT_H
#define LOAM_CLI_TRAINING_TEXT_H

#include <stddef.h>

/* Adds to a text in `size` bytes; what does not fit is cut off. */
void text_add(char *text, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
