/* SPDX-License-Identifier: MIT
 * A letter for the kind of text, then the text: paragraphs have single blanks and none at their ends, and
 * are no longer than the text together. */
#define _POSIX_C_SOURCE 200809L
#include "corpus/collection.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

static int check_paragraph(void *context, const char *text, size_t bytes, io_error *error)
{
    size_t *left = context;
    (void)error;
    if (bytes == 0 || bytes > *left || text[0] == ' ' || text[bytes - 1] == ' ') abort();
    for (size_t i = 0; i < bytes; i++)
        if (text[i] == '\n' || text[i] == '\t' || (i > 0 && text[i] == ' ' && text[i - 1] == ' ')) abort();
    *left -= bytes;
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) return 0;
    const text_kind kind = (text_kind)(*data % (TEXT_DICTIONARY + 1));
    const char *const text = (const char *)data + 1;
    size_t left = size - 1;
    io_error error;
    corpus_source source = { .name = "fuzz", .path = "fuzz", .kind = -1 };
    collection all = { .corpora = &source, .count = 1, .end = "<|end|>" };
    buffer kept = { 0 };
    if (extract_paragraphs(kind, text, size - 1, check_paragraph, &left, &error)) abort();
    if (collection_add(&all, 0, kind, "file", text, size - 1, &error) || collection_separate(&all, &error))
        abort();
    for (size_t i = 0; i < all.documents; i++)
        collection_text(&all, &all.document[i], &kept);
    if (kept.count > size) abort();
    buffer_free(&kept);
    collection_free(&all);
    return 0;
}
