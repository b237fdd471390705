/* SPDX-License-Identifier: MIT
 * A paragraph as it is read, piece by piece. */
#ifndef LOAM_CORPUS_PARAGRAPH_H
#define LOAM_CORPUS_PARAGRAPH_H

#include "corpus/extract.h"
#include "text/buffer.h"

typedef struct paragraph {
    buffer text;
    bool blank; /* comes before the next character */
    paragraph_sink *sink;
    void *context;
    int status;
    io_error *error;
} paragraph;

/* White space, also a no-break space, becomes a blank. */
void paragraph_put(paragraph *p, const char *text, size_t bytes);
/* Tells what there is, and begins the next one. */
void paragraph_end(paragraph *p);

/* The readers of each kind. They stop where p->status is not 0. */
void extract_html(paragraph *p, const char *text, size_t bytes);
void extract_plain(paragraph *p, const char *text, size_t bytes);
void extract_pod(paragraph *p, const char *text, size_t bytes);
void extract_dictionary(paragraph *p, const char *text, size_t bytes);

#endif
