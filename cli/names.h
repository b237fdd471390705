/* SPDX-License-Identifier: MIT
 * The words of loam.h: what the program takes, lists and refuses is made of them, so that it keeps no list of
 * its own. */
#ifndef LOAM_CLI_NAMES_H
#define LOAM_CLI_NAMES_H

#include "io/error.h"
#include "loam.h"

#include <stdbool.h>

/* Word `index` of a list, NULL beyond its last. */
typedef const char *names_word(int index);

names_word names_mechanism, names_pass, names_dtype, names_backend, names_score, names_ridge_unit,
    names_feature_map, names_rope_layout;

/* The index of a word, or -1. */
int names_find(names_word *word_at, const char *word);
/* The one that is nearest to a misspelt word, or NULL. */
const char *names_nearest(names_word *word_at, const char *word);

/* Room for a list of all mechanisms. */
enum { NAMES_BYTES = 256 };

/* "a, b or c", with " or " as `last`; returns `text`. */
const char *names_list(char text[NAMES_BYTES], names_word *word_at, const char *last);

/* The index of an option's word; `choice` stays where the word is NULL. */
int names_choose(const char *option, const char *word, names_word *word_at, int *choice, io_error *error);

/* What the library knows of a mechanism. */
loam_mechanism_info names_form(loam_mechanism mechanism);

typedef bool names_test(const loam_mechanism_info *info);
/* Likewise of the mechanisms that pass a test, and of the words `more` after them, which NULL ends; NULL:
 * none. */
const char *names_mechanisms(char text[NAMES_BYTES], names_test *is, const char *const *more,
                             const char *last);

/* has_units: of more than one kind. */
names_test names_is_local, names_is_recurrent, names_has_ridge, names_has_units;

#endif
