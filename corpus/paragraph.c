/* SPDX-License-Identifier: MIT */
#include "corpus/paragraph.h"

static bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

/* Bytes of white space that the text begins with. */
static size_t blank_bytes(const char *text, size_t bytes)
{
    if (is_blank(*text)) return 1;
    return bytes > 1 && (unsigned char)text[0] == 0xc2 && (unsigned char)text[1] == 0xa0 ? 2 : 0;
}

void paragraph_put(paragraph *p, const char *text, size_t bytes)
{
    for (size_t at = 0, space; at < bytes;) {
        if ((space = blank_bytes(text + at, bytes - at)) > 0) {
            p->blank = p->text.count > 0;
            at += space;
            continue;
        }
        size_t end = at + 1;
        while (end < bytes && blank_bytes(text + end, bytes - end) == 0)
            end++;
        if (p->blank) buffer_put(&p->text, " ", 1);
        p->blank = false;
        buffer_put(&p->text, text + at, end - at);
        at = end;
    }
}

void paragraph_end(paragraph *p)
{
    if (!p->status && p->text.failed)
        p->status = io_fail(p->error, EXIT_INTERNAL, "out of memory for a paragraph");
    if (!p->status && p->text.count > 0) p->status = p->sink(p->context, p->text.at, p->text.count, p->error);
    p->text.count = 0;
    p->blank = false;
}
