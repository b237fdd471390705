/* SPDX-License-Identifier: MIT */
#include "text/decode.h"

#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>

void decoder_free(decoder *d)
{
    for (int i = 0; i < d->steps; i++) {
        free(d->step[i].content);
        matcher_free(d->step[i].pattern);
    }
    d->steps = 0;
}

static bool begins_with(const char *text, size_t bytes, const char *prefix)
{
    const size_t length = strlen(prefix);
    return length > 0 && bytes >= length && memcmp(text, prefix, length) == 0;
}

static void replace_all(buffer *text, const char *from, const char *to)
{
    const size_t from_bytes = strlen(from), to_bytes = strlen(to);
    size_t kept = 0;
    for (size_t at = 0; at < text->count;)
        if (begins_with(text->at + at, text->count - at, from)) {
            memcpy(text->at + kept, to, to_bytes);
            kept += to_bytes, at += from_bytes;
        } else {
            text->at[kept++] = text->at[at++];
        }
    text->count = kept;
}

/* Of tokenizers' library, one after another. None makes the text longer. */
static void clean_up(buffer *text)
{
    static const char *const rows[][2] = { { " .", "." },     { " ?", "?" },           { " !", "!" },
                                           { " ,", "," },     { " ' ", "'" },          { " n't", "n't" },
                                           { " 'm", "'m" },   { " do not", " don't" }, { " 's", "'s" },
                                           { " 've", "'ve" }, { " 're", "'re" } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        replace_all(text, rows[i][0], rows[i][1]);
}

static void wordpiece(const decode_step *step, const char *text, size_t bytes, bool first, buffer *out)
{
    const size_t prefix = strlen(step->content);
    if (!first && begins_with(text, bytes, step->content)) {
        buffer_put(out, text + prefix, bytes - prefix);
    } else {
        if (!first && prefix) buffer_put(out, " ", 1);
        buffer_put(out, text, bytes);
    }
    if (step->cleanup && !out->failed) clean_up(out);
}

static void metaspace(const decode_step *step, const char *text, size_t bytes, bool first, buffer *out)
{
    for (size_t at = 0, length; at < bytes; at += length) {
        utf8_first(text + at, &length);
        const bool mark = begins_with(text + at, bytes - at, step->content);
        if (!mark)
            buffer_put(out, text + at, length);
        else if (!first || step->keep_first)
            buffer_put(out, " ", 1);
    }
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static void byte_fallback(const char *text, size_t bytes, buffer *out)
{
    const bool framed = bytes == 6 && memcmp(text, "<0x", 3) == 0 && text[5] == '>';
    const int high = framed ? hex_digit(text[3]) : -1, low = framed ? hex_digit(text[4]) : -1;
    const char byte = (char)(high * 16 + low);
    if (high >= 0 && low >= 0)
        buffer_put(out, &byte, 1);
    else
        buffer_put(out, text, bytes);
}

static int take_step(const decode_step *step, match_scratch *matching, const char *text, size_t bytes,
                     bool first, buffer *out, io_error *error)
{
    switch (step->kind) {
    case DECODE_BYTE_LEVEL:
        if (!bytes_of_printable(out, text, bytes)) buffer_put(out, text, bytes);
        break;
    case DECODE_WORDPIECE: wordpiece(step, text, bytes, first, out); break;
    case DECODE_METASPACE: metaspace(step, text, bytes, first, out); break;
    case DECODE_BYTE_FALLBACK: byte_fallback(text, bytes, out); break;
    case DECODE_STRIP: {
        const size_t cut = first || !step->first_only ? strlen(step->content) : 0;
        const bool strips = cut && begins_with(text, bytes, step->content);
        buffer_put(out, text + (strips ? cut : 0), bytes - (strips ? cut : 0));
        break;
    }
    case DECODE_REPLACE:
        return matcher_replace(step->pattern, matching, text, bytes, step->content, strlen(step->content),
                               out, error);
    }
    return 0;
}

/* The steps write by turns to two buffers. */
static int take_steps(const decoder *d, match_scratch *matching, const char *text, size_t bytes, bool plain,
                      bool first, buffer *turns, buffer *out, io_error *error)
{
    for (int i = 0; i < d->steps; i++) {
        buffer *into = &turns[i % 2];
        into->count = 0;
        if (d->step[i].kind == DECODE_BYTE_LEVEL && plain) {
            buffer_put(into, text, bytes);
        } else {
            const int status = take_step(&d->step[i], matching, text, bytes, first, into, error);
            if (status) return status;
        }
        if (into->failed) return io_fail(error, EXIT_INTERNAL, "out of memory for a decoded text");
        text = into->at ? into->at : "", bytes = into->count;
    }
    if (d->spaced && !first) buffer_put(out, " ", 1);
    buffer_put(out, text, bytes);
    return out->failed ? io_fail(error, EXIT_INTERNAL, "out of memory for a decoded text") : 0;
}

int decoder_put(const decoder *d, match_scratch *matching, const char *text, size_t bytes, bool plain,
                bool first, buffer *out, io_error *error)
{
    buffer turns[2] = { { 0 }, { 0 } };
    const int status = take_steps(d, matching, text, bytes, plain, first, turns, out, error);
    buffer_free(&turns[0]);
    buffer_free(&turns[1]);
    return status;
}
