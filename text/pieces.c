/* SPDX-License-Identifier: MIT */
#include "text/pieces.h"

#include "text/utf8.h"

#include <string.h>

void splitter_free(splitter *s)
{
    for (int i = 0; i < s->steps; i++)
        matcher_free(s->step[i].pattern);
    s->steps = 0;
}

void piece_scratch_free(piece_scratch *s)
{
    for (int i = 0; i < PIECE_STEPS; i++)
        buffer_free(&s->texts[i]);
}

typedef struct cutting {
    const splitter *splitter;
    piece_scratch *scratch;
    match_scratch *matching;
    const char *beginning; /* of the whole text; NULL where this is no beginning */
    piece_sink *sink;
    void *context;
    io_error *error;
} cutting;

static int cut(cutting *c, int step, const char *text, size_t bytes);

/* ---------------------------------------------------------------- between matches */

/* Matches and what lies between them come by turns or match after match; `waiting` is the last part, where
 * the next one may join it. */
typedef struct parts {
    cutting *cutting;
    int step;
    const char *text;
    span waiting;
    bool is_waiting, last_is_match;
} parts;

static int deliver(parts *p, span part)
{
    if (part.begin == part.end) return 0;
    return cut(p->cutting, p->step + 1, p->text + part.begin, part.end - part.begin);
}

static int flush(parts *p)
{
    const bool is_waiting = p->is_waiting;
    p->is_waiting = false;
    return is_waiting ? deliver(p, p->waiting) : 0;
}

static int wait_for_next(parts *p, span part)
{
    const int status = flush(p);
    p->waiting = part;
    p->is_waiting = true;
    return status;
}

static bool joins(const parts *p, piece_behaviour behaviour, bool is_match)
{
    if (!p->is_waiting) return false;
    if (behaviour == PIECE_CONTIGUOUS) return is_match == p->last_is_match;
    if (behaviour == PIECE_MERGED_PREVIOUS) return is_match && !p->last_is_match;
    return !is_match && p->last_is_match;
}

static int take_part(parts *p, span part, bool is_match)
{
    const piece_step *step = &p->cutting->splitter->step[p->step];
    is_match ^= step->invert;
    if (step->behaviour == PIECE_REMOVED && is_match) return 0;
    if (step->behaviour == PIECE_REMOVED || step->behaviour == PIECE_ISOLATED) return deliver(p, part);
    int status = 0;
    if (joins(p, step->behaviour, is_match))
        p->waiting.end = part.end;
    else
        status = wait_for_next(p, part);
    p->last_is_match = is_match;
    return status;
}

/* The next match at or behind `from`. */
static int next_match(const cutting *c, const piece_step *step, const char *text, size_t bytes, size_t from,
                      span *match, bool *found)
{
    if (step->kind == PIECE_PATTERN)
        return matcher_next(step->pattern, c->matching, text, bytes, from, match, found, c->error);
    *found = false;
    for (size_t at = from, length; at < bytes && !*found; at += length) {
        *found = step->in_class(utf8_first(text + at, &length));
        *match = (span){ at, at + length };
    }
    return 0;
}

static int cut_at_matches(cutting *c, int k, const char *text, size_t bytes)
{
    parts p = { .cutting = c, .step = k, .text = text };
    size_t done = 0, from = 0;
    int status = 0;
    while (!status && from < bytes) {
        span match;
        bool found;
        status = next_match(c, &c->splitter->step[k], text, bytes, from, &match, &found);
        if (status || !found) break;
        if (match.begin > done) status = take_part(&p, (span){ done, match.begin }, false);
        if (!status) status = take_part(&p, match, true);
        done = from = match.end;
        if (match.begin == match.end && from < bytes) {
            size_t length;
            utf8_first(text + from, &length);
            from += length;
        }
    }
    if (!status && done < bytes) status = take_part(&p, (span){ done, bytes }, false);
    return status ? status : flush(&p);
}

/* ---------------------------------------------------------------- other steps */

static int cut_copy(cutting *c, int k, const buffer *copy)
{
    if (copy->failed) return io_fail(c->error, EXIT_INTERNAL, "out of memory for the pieces of a text");
    return cut(c, k + 1, copy->at, copy->count);
}

static int prefix_space(cutting *c, int k, const char *text, size_t bytes)
{
    if (*text == ' ') return cut(c, k + 1, text, bytes);
    buffer *copy = &c->scratch->texts[k];
    copy->count = 0;
    buffer_put(copy, " ", 1);
    buffer_put(copy, text, bytes);
    return cut_copy(c, k, copy);
}

static int metaspace(cutting *c, int k, const char *text, size_t bytes)
{
    const piece_step *step = &c->splitter->step[k];
    const size_t mark = strlen(step->mark);
    buffer *copy = &c->scratch->texts[k];
    copy->count = 0;
    const bool begins = *text == ' ' || (bytes >= mark && memcmp(text, step->mark, mark) == 0);
    const bool wanted = step->prepend == METASPACE_ALWAYS ||
                        (step->prepend == METASPACE_FIRST && c->beginning == text);
    if (wanted && !begins) buffer_put(copy, step->mark, mark);
    for (size_t at = 0; at < bytes;) {
        const char *space = memchr(text + at, ' ', bytes - at);
        const size_t end = space ? (size_t)(space - text) : bytes;
        buffer_put(copy, text + at, end - at);
        if (space) buffer_put(copy, step->mark, mark);
        at = end + (space != NULL);
    }
    return cut_copy(c, k, copy);
}

static int cut(cutting *c, int step, const char *text, size_t bytes)
{
    if (step == c->splitter->steps) return c->sink(c->context, text, bytes, c->error);
    switch (c->splitter->step[step].kind) {
    case PIECE_PREFIX_SPACE: return prefix_space(c, step, text, bytes);
    case PIECE_METASPACE: return metaspace(c, step, text, bytes);
    default: return cut_at_matches(c, step, text, bytes);
    }
}

int splitter_cut(const splitter *s, piece_scratch *scratch, match_scratch *matching, const char *text,
                 size_t bytes, bool first, piece_sink *sink, void *context, io_error *error)
{
    cutting c = { s, scratch, matching, first ? text : NULL, sink, context, error };
    return bytes ? cut(&c, 0, text, bytes) : 0;
}
