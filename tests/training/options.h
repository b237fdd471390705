/* SPDX-License-Identifier: MIT
 * Options of an experiment from one string. */
#ifndef LOAM_TESTS_TRAINING_OPTIONS_H
#define LOAM_TESTS_TRAINING_OPTIONS_H

#include "cli/training/request.h"

enum { OPTION_WORDS = 16 };

/* Cuts "NAME OPTION ..." into words, which lie in it; their number. */
int option_words(char *text, char *argv[OPTION_WORDS]);
/* Reads such options; fails the test where they are refused, or ask for help. */
void read_options(request *r, train_task task, const char *options);

#endif
