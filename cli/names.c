/* SPDX-License-Identifier: MIT */
#include "cli/names.h"

#include "io/nearest.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum { MOST_NAMES = 64 };

const char *names_mechanism(int index) { return loam_mechanism_name((loam_mechanism)index); }
const char *names_pass(int index) { return loam_pass_name((loam_pass)index); }
const char *names_dtype(int index) { return loam_dtype_name((loam_dtype)index); }
const char *names_backend(int index) { return loam_backend_name((loam_backend)index); }
const char *names_score(int index) { return loam_score_name((loam_score)index); }
const char *names_ridge_unit(int index) { return loam_ridge_unit_name((loam_ridge_unit)index); }
const char *names_feature_map(int index) { return loam_feature_map_name((loam_feature_map)index); }
const char *names_rope_layout(int index) { return loam_rope_layout_name((loam_rope_layout)index); }

loam_mechanism_info names_form(loam_mechanism mechanism)
{
    loam_mechanism_info info = { 0 };
    loam_mechanism_at((int)mechanism, &info);
    return info;
}

bool names_is_local(const loam_mechanism_info *info) { return info->family == LOAM_FAMILY_LOCAL; }
bool names_is_recurrent(const loam_mechanism_info *info) { return info->family == LOAM_FAMILY_RECURRENT; }
bool names_has_ridge(const loam_mechanism_info *info) { return info->ridge_axes; }
bool names_has_units(const loam_mechanism_info *info) { return info->ridge_units & (info->ridge_units - 1); }

int names_find(names_word *word_at, const char *word)
{
    for (int i = 0; word_at(i); i++)
        if (strcmp(word_at(i), word) == 0) return i;
    return -1;
}

/* All words of a list, NULL after the last. */
static void gather(names_word *word_at, const char *words[MOST_NAMES + 1])
{
    int count = 0;
    while (count < MOST_NAMES && (words[count] = word_at(count)))
        count++;
    words[count] = NULL;
}

const char *names_nearest(names_word *word_at, const char *word)
{
    const char *words[MOST_NAMES + 1];
    gather(word_at, words);
    return nearest_name(word, words);
}

static const char *join(char text[NAMES_BYTES], const char *const *words, const char *last)
{
    int at = 0;
    *text = '\0';
    for (int i = 0; words[i] && at < NAMES_BYTES; i++)
        at += snprintf(text + at, (size_t)(NAMES_BYTES - at), "%s%s",
                       i == 0         ? ""
                       : words[i + 1] ? ", "
                                      : last,
                       words[i]);
    return text;
}

const char *names_list(char text[NAMES_BYTES], names_word *word_at, const char *last)
{
    const char *words[MOST_NAMES + 1];
    gather(word_at, words);
    return join(text, words, last);
}

int names_choose(const char *option, const char *word, names_word *word_at, int *choice, io_error *error)
{
    char text[NAMES_BYTES];
    if (!word) return 0;
    *choice = names_find(word_at, word);
    return *choice >= 0 ? 0
                        : io_fail(error, EXIT_USAGE, "--%s %s: expected %s", option, word,
                                  names_list(text, word_at, " or "));
}

const char *names_mechanisms(char text[NAMES_BYTES], names_test *is, const char *const *more,
                             const char *last)
{
    const char *words[MOST_NAMES + 1];
    int count = 0;
    loam_mechanism_info info;
    for (int i = 0; count < MOST_NAMES && loam_mechanism_at(i, &info) == LOAM_OK; i++)
        if (is(&info)) words[count++] = info.name;
    while (more && *more && count < MOST_NAMES)
        words[count++] = *more++;
    words[count] = NULL;
    return join(text, words, last);
}
