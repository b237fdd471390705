/* SPDX-License-Identifier: MIT */
#include "corpus/question.h"
#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>

enum { DRAWS = 4096, LENGTHS = 2 };

/* Views of the text of a shard. */
typedef struct view {
    const char *at;
    size_t bytes;
} view;

typedef struct entry {
    view words, word, part, gloss; /* word: the first of the words */
} entry;

typedef struct glosses {
    const question_source *from;
    buffer text;
    entry *entry;
    int64_t count, room;
} glosses;

static const char *find(const char *text, size_t bytes, const char *part)
{
    const size_t length = strlen(part);
    for (; bytes >= length; text++, bytes--)
        if (memcmp(text, part, length) == 0) return text;
    return NULL;
}

static bool has(view text, view part)
{
    for (size_t i = 0; i + part.bytes <= text.bytes; i++)
        if (memcmp(text.at + i, part.at, part.bytes) == 0) return true;
    return false;
}

static bool same(view a, view b) { return a.bytes == b.bytes && memcmp(a.at, b.at, a.bytes) == 0; }

static view until(view text, const char *sign)
{
    const char *const end = find(text.at, text.bytes, sign);
    return (view){ text.at, end ? (size_t)(end - text.at) : text.bytes };
}

/* "word, word (part): gloss; more"; false: the line is none of these. */
static bool read_entry(view line, entry *e)
{
    const char *const colon = find(line.at, line.bytes, "): ");
    e->words = until(line, " (");
    if (!colon || e->words.at + e->words.bytes >= colon) return false;
    const char *const part = e->words.at + e->words.bytes + 2;
    if (part >= colon) return false;
    e->part = (view){ part, (size_t)(colon - part) };
    e->word = until(e->words, ", ");
    const view rest = { colon + 3, line.bytes - (size_t)(colon + 3 - line.at) };
    e->gloss = until(rest, ";");
    return e->word.bytes > 0 && e->gloss.bytes > 0 && !has(e->gloss, e->word) &&
           utf8_is_valid(line.at, line.bytes);
}

static int add_line(glosses *g, view line, io_error *error)
{
    entry e;
    if (!read_entry(line, &e)) return 0;
    if (g->count == g->room) {
        const int64_t room = g->room ? 2 * g->room : 1024;
        entry *larger = realloc(g->entry, (size_t)room * sizeof *larger);
        if (!larger) return io_fail(error, EXIT_INTERNAL, "out of memory for entries");
        g->entry = larger, g->room = room;
    }
    g->entry[g->count++] = e;
    return 0;
}

/* The end tokens are line feeds here. */
static int read_entries(glosses *g, io_error *error)
{
    const question_source *s = g->from;
    buffer document = { 0 };
    int status = 0;
    for (int64_t begin = 0, at = 0; at < s->count && !status; at++) {
        if (question_token(s, at) != s->end) continue;
        status = question_text(s, begin, at - begin, &document, error);
        if (!status) buffer_put(&g->text, document.at, document.count);
        buffer_put(&g->text, "\n", 1);
        begin = at + 1;
    }
    buffer_free(&document);
    if (!status && g->text.failed) status = io_fail(error, EXIT_INTERNAL, "out of memory for entries");
    for (size_t at = 0; at < g->text.count && !status;) {
        const view line = until((view){ g->text.at + at, g->text.count - at }, "\n");
        status = add_line(g, line, error);
        at += line.bytes + 1;
    }
    return status;
}

static bool is_near(const entry *a, const entry *b)
{
    const size_t longer = a->word.bytes > b->word.bytes ? a->word.bytes : b->word.bytes;
    const size_t shorter = a->word.bytes + b->word.bytes - longer;
    return same(a->part, b->part) && longer - shorter <= LENGTHS && !has(a->words, b->word);
}

static bool find_others(const glosses *g, int64_t n, const entry *chosen[QUESTION_CHOICES])
{
    int found = 1;
    chosen[0] = &g->entry[n];
    for (int64_t draw = 1; draw <= DRAWS && found < QUESTION_CHOICES; draw++) {
        const entry *e = &g->entry[question_draw(g->from, n, draw, g->count)];
        bool fits = is_near(chosen[0], e);
        for (int i = 0; i < found; i++)
            fits = fits && !same(chosen[i]->word, e->word);
        if (fits) chosen[found++] = e;
    }
    return found == QUESTION_CHOICES;
}

static void set_text(buffer *b, view text)
{
    b->count = 0;
    buffer_put(b, text.at, text.bytes);
}

int questions_of_glosses(const question_source *s, FILE *out, int64_t *made, io_error *error)
{
    glosses g = { .from = s };
    buffer asked = { 0 }, choice[QUESTION_CHOICES] = { 0 };
    *made = 0;
    int status = read_entries(&g, error);
    for (int64_t n = 0; n < g.count && !status; n++) {
        const entry *chosen[QUESTION_CHOICES];
        if (!find_others(&g, n, chosen)) continue;
        set_text(&asked, g.entry[n].gloss);
        bool failed = asked.failed;
        for (int i = 0; i < QUESTION_CHOICES; i++) {
            set_text(&choice[i], chosen[i]->word);
            failed = failed || choice[i].failed;
        }
        status = failed ? io_fail(error, EXIT_INTERNAL, "out of memory for a question")
                        : question_write(s, out, n, &asked, choice, error);
        ++*made;
    }
    buffer_free(&asked);
    for (int i = 0; i < QUESTION_CHOICES; i++)
        buffer_free(&choice[i]);
    buffer_free(&g.text);
    free(g.entry);
    return status;
}
