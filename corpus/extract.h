/* SPDX-License-Identifier: MIT
 * Paragraphs of files, by their kind. White space becomes single blanks, none at the ends; empty ones are not
 * told. The time is linear in the bytes, whatever they are. */
#ifndef LOAM_CORPUS_EXTRACT_H
#define LOAM_CORPUS_EXTRACT_H

#include "io/error.h"

#include <stddef.h>

typedef enum text_kind {
    TEXT_HTML,      /* split at block tags; without script, style, pre, nav and table */
    TEXT_PLAIN,     /* split at blank lines */
    TEXT_POD,       /* Perl's: likewise, without commands and what is indented */
    TEXT_DICTIONARY /* an entry a line, without [..] and <..> */
} text_kind;

/* "html", "txt", "pod", "dictionary"; NULL beyond the last. */
const char *text_kind_name(int kind);
/* By the ending of the path; -1: none of these. */
int text_kind_of(const char *path);

/* Takes a paragraph; other than 0 ends it all. */
typedef int paragraph_sink(void *context, const char *text, size_t bytes, io_error *error);

/* Any bytes. */
int extract_paragraphs(text_kind kind, const char *text, size_t bytes, paragraph_sink *sink, void *context,
                       io_error *error);

#endif
