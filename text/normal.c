/* SPDX-License-Identifier: MIT */
#include "text/normal.h"

#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* Characters below are the same in NFC, and what follows them changes none of them. */
enum { NFC_SAME = 0x300 };

void normaliser_free(normaliser *n)
{
    for (int i = 0; i < n->steps; i++) {
        free(n->step[i].content);
        matcher_free(n->step[i].pattern);
    }
    n->steps = 0;
}

void normal_scratch_free(normal_scratch *s)
{
    buffer_free(&s->buffers[0]);
    buffer_free(&s->buffers[1]);
    free(s->characters);
}

/* ---------------------------------------------------------------- Unicode's forms */

/* The longest decomposition of one character is 18 characters. */
enum { DECOMPOSED_MAX = 32, SHORT_RUN = 16 };

static bool reserve_characters(normal_scratch *s, size_t room)
{
    if (room <= s->room) return true;
    room += room / 2;
    int32_t *larger = realloc(s->characters, 2 * room * sizeof *larger);
    if (larger) s->characters = larger, s->room = room;
    return larger != NULL;
}

static int class_of(int32_t character) { return utf8proc_get_property(character)->combining_class; }

/* Marks behind a letter, stably by their class. utf8proc's own way to do this is quadratic. */
static void order_run(int32_t *run, size_t count, int32_t *space)
{
    if (count <= SHORT_RUN) {
        for (size_t i = 1; i < count; i++)
            for (size_t k = i; k > 0 && class_of(run[k - 1]) > class_of(run[k]); k--) {
                const int32_t mark = run[k];
                run[k] = run[k - 1];
                run[k - 1] = mark;
            }
        return;
    }
    size_t place[257] = { 0 };
    for (size_t i = 0; i < count; i++)
        place[class_of(run[i]) + 1]++;
    for (int i = 0; i < 256; i++)
        place[i + 1] += place[i];
    for (size_t i = 0; i < count; i++)
        space[place[class_of(run[i])]++] = run[i];
    memcpy(run, space, count * sizeof *run);
}

/* The characters of a part, decomposed and in order; -1 without memory. */
static int64_t decompose(normal_scratch *s, const char *text, size_t bytes, utf8proc_option_t options)
{
    size_t count = 0, run = 0; /* where the marks at the end begin */
    for (size_t at = 0, length; at < bytes; at += length) {
        const int32_t c = utf8_first(text + at, &length);
        int last = 0;
        if (!reserve_characters(s, count + DECOMPOSED_MAX)) return -1;
        const utf8proc_ssize_t more = utf8proc_decompose_char(c, s->characters + count, DECOMPOSED_MAX,
                                                              options, &last);
        if (more < 0) return -1;
        for (const size_t end = count + (size_t)more; count < end; count++) {
            if (class_of(s->characters[count])) continue;
            order_run(s->characters + run, count - run, s->characters + s->room);
            run = count + 1;
        }
    }
    order_run(s->characters + run, count - run, s->characters + s->room);
    return (int64_t)count;
}

/* The end of a part that can be normalised alone: up to an ASCII character, which nothing before changes. For
 * composition that character begins the next part. */
static size_t part_end(const char *text, size_t at, size_t bytes)
{
    at++;
    while (at < bytes && text[at] & 0x80)
        at++;
    return at;
}

static size_t ascii_run(const char *text, size_t at, size_t bytes)
{
    size_t end = at;
    while (end < bytes && !(text[end] & 0x80))
        end++;
    return end;
}

static bool stays_composed(const char *text, size_t begin, size_t end)
{
    for (size_t at = begin, length; at < end; at += length)
        if (utf8_first(text + at, &length) >= NFC_SAME) return false;
    return true;
}

static int unicode_form(const normal_step *step, normal_scratch *s, const char *text, size_t bytes,
                        buffer *out)
{
    const utf8proc_option_t options = UTF8PROC_STABLE |
                                      (step->compose ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                                      (step->compatible ? UTF8PROC_COMPAT : 0);
    for (size_t at = 0; at < bytes;) {
        size_t plain = ascii_run(text, at, bytes);
        if (plain < bytes && plain > at) plain--;
        buffer_put(out, text + at, plain - at);
        at = plain;
        if (at == bytes) break;
        const size_t end = part_end(text, at, bytes);
        if (step->compose && !step->compatible && stays_composed(text, at, end)) {
            buffer_put(out, text + at, end - at);
        } else {
            int64_t count = decompose(s, text + at, end - at, options);
            if (count >= 0 && step->compose)
                count = utf8proc_normalize_utf32(s->characters, (utf8proc_ssize_t)count, options);
            if (count < 0) return -1;
            for (int64_t i = 0; i < count; i++)
                utf8_put(out, s->characters[i]);
        }
        at = end;
    }
    return 0;
}

/* ---------------------------------------------------------------- case, and BERT's */

static void put_lower(buffer *out, int32_t c)
{
    if (c == 0x130) /* the one letter whose lower case is two characters */
        buffer_put(out, "i\xcc\x87", 3);
    else
        utf8_put(out, utf8proc_tolower(c));
}

static char ascii_lower(char c) { return c >= 'A' && c <= 'Z' ? (char)(c + 32) : c; }

static void lower_case(const char *text, size_t bytes, buffer *out)
{
    for (size_t at = 0, length; at < bytes; at += length) {
        const int32_t c = utf8_first(text + at, &length);
        if (c >= 0x80) {
            put_lower(out, c);
        } else {
            const char low = ascii_lower(text[at]);
            buffer_put(out, &low, 1);
        }
    }
}

/* Control, format, private use: but not what is a space for BERT. */
static bool is_dropped(int32_t c)
{
    if (c == '\t' || c == '\n' || c == '\r') return false;
    const utf8proc_category_t category = utf8proc_category(c);
    return c == 0 || c == 0xfffd || category == UTF8PROC_CATEGORY_CC || category == UTF8PROC_CATEGORY_CF ||
           category == UTF8PROC_CATEGORY_CO;
}

static bool is_chinese(int32_t c)
{
    return (c >= 0x4e00 && c <= 0x9fff) || (c >= 0x3400 && c <= 0x4dbf) || (c >= 0x20000 && c <= 0x2a6df) ||
           (c >= 0x2a700 && c <= 0x2b73f) || (c >= 0x2b740 && c <= 0x2b81f) ||
           (c >= 0x2b920 && c <= 0x2ceaf) || (c >= 0xf900 && c <= 0xfaff) || (c >= 0x2f800 && c <= 0x2fa1f);
}

/* Characters dropped, spaces made plain, Chinese ones set apart. */
static void clean(const normal_step *step, const char *text, size_t bytes, buffer *out)
{
    for (size_t at = 0, length; at < bytes; at += length) {
        const int32_t c = utf8_first(text + at, &length);
        if (step->clean && c < 0x80) {
            if (c < ' ' ? c == '\t' || c == '\n' || c == '\r' : c != 127)
                buffer_put(out, c < ' ' ? " " : text + at, 1);
            continue;
        }
        if (step->clean && is_dropped(c)) continue;
        const bool apart = step->chinese && is_chinese(c);
        if (apart) buffer_put(out, " ", 1);
        if (step->clean && is_white_space(c))
            buffer_put(out, " ", 1);
        else
            buffer_put(out, text + at, length);
        if (apart) buffer_put(out, " ", 1);
    }
}

/* Decomposed, without marks that take no space, and in lower case where that is asked for. */
static int strip_accents(const normal_step *step, normal_scratch *s, const char *text, size_t bytes,
                         buffer *out)
{
    for (size_t at = 0; at < bytes;) {
        const size_t plain = ascii_run(text, at, bytes);
        if (step->lowercase)
            lower_case(text + at, plain - at, out);
        else
            buffer_put(out, text + at, plain - at);
        if (plain == bytes) break;
        at = part_end(text, plain, bytes);
        const int64_t count = decompose(s, text + plain, at - plain, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE);
        if (count < 0) return -1;
        for (int64_t i = 0; i < count; i++) {
            const int32_t c = s->characters[i];
            if (utf8proc_category(c) == UTF8PROC_CATEGORY_MN) continue;
            if (step->lowercase)
                put_lower(out, c);
            else
                utf8_put(out, c);
        }
    }
    return 0;
}

/* The clean text lies behind the result, in the same buffer's turn: `between` holds it. */
static int bert(const normal_step *step, normal_scratch *s, const char *text, size_t bytes, buffer *out)
{
    buffer between = { 0 };
    clean(step, text, bytes, &between);
    int status = between.failed ? -1 : 0;
    if (!status && step->strip_accents)
        status = strip_accents(step, s, between.at, between.count, out);
    else if (!status && step->lowercase)
        lower_case(between.at, between.count, out);
    else if (!status)
        buffer_put(out, between.at, between.count);
    buffer_free(&between);
    return status;
}

/* ---------------------------------------------------------------- all steps */

static bool is_ascii(const char *text, size_t bytes) { return ascii_run(text, 0, bytes) == bytes; }

static int take_step(const normal_step *step, normal_scratch *s, match_scratch *matching, const char *text,
                     size_t bytes, buffer *out, io_error *error)
{
    int failed = 0;
    switch (step->kind) {
    case NORMAL_UNICODE: failed = unicode_form(step, s, text, bytes, out); break;
    case NORMAL_LOWERCASE: lower_case(text, bytes, out); break;
    case NORMAL_BERT: failed = bert(step, s, text, bytes, out); break;
    case NORMAL_PREPEND:
        if (bytes) buffer_put(out, step->content, strlen(step->content));
        buffer_put(out, text, bytes);
        break;
    case NORMAL_REPLACE: {
        const int status = matcher_replace(step->pattern, matching, text, bytes, step->content,
                                           strlen(step->content), out, error);
        if (status) return status;
        break;
    }
    }
    return failed || out->failed ? io_fail(error, EXIT_INTERNAL, "out of memory for a normalised text") : 0;
}

int normalise(const normaliser *n, normal_scratch *s, match_scratch *matching, const char *text, size_t bytes,
              const char **out, size_t *out_bytes, io_error *error)
{
    *out = text, *out_bytes = bytes;
    int turn = 0;
    for (int i = 0; i < n->steps; i++) {
        if (n->step[i].kind == NORMAL_UNICODE && is_ascii(*out, *out_bytes)) continue;
        buffer *into = &s->buffers[turn];
        into->count = 0;
        const int status = take_step(&n->step[i], s, matching, *out, *out_bytes, into, error);
        if (status) return status;
        *out = into->at ? into->at : "", *out_bytes = into->count;
        turn = !turn;
    }
    return 0;
}
