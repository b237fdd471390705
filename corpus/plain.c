/* SPDX-License-Identifier: MIT
 * Plain text, Perl's POD, dictionaries: what is read line by line. */
#include "corpus/paragraph.h"

#include <string.h>

enum { NESTED_MAX = 32 };

typedef struct line {
    const char *at;
    size_t bytes;
} line;

/* Takes the next line off the text. */
static line next_line(const char **text, size_t *bytes)
{
    const char *const end = memchr(*text, '\n', *bytes);
    const line found = { *text, end ? (size_t)(end - *text) : *bytes };
    *text += found.bytes + (end != NULL);
    *bytes -= found.bytes + (end != NULL);
    return found;
}

static bool is_empty(line l)
{
    for (size_t i = 0; i < l.bytes; i++)
        if (l.at[i] != ' ' && (l.at[i] < '\t' || l.at[i] > '\r')) return false;
    return true;
}

void extract_plain(paragraph *p, const char *text, size_t bytes)
{
    while (bytes > 0 && !p->status) {
        const line l = next_line(&text, &bytes);
        if (is_empty(l))
            paragraph_end(p);
        else {
            paragraph_put(p, l.at, l.bytes);
            paragraph_put(p, " ", 1);
        }
    }
}

/* ---------------------------------------------------------------- POD */

/* A code such as B<bold>, C<< a > b >> or L<text|page>, open. */
typedef struct pod_code {
    char letter;
    int brackets; /* that close it */
    bool hidden;  /* from here on: an index entry, the target of a link */
} pod_code;

typedef struct pod {
    paragraph *out;
    pod_code open[NESTED_MAX];
    int depth;
} pod;

/* E<gt> and its like; E<0xe9> and the names of other characters are dropped. */
static void put_escape(paragraph *out, const char *name, size_t bytes)
{
    static const char *const names[] = { "lt", "gt", "sol", "verbar" }, *const texts[] = { "<", ">", "/",
                                                                                           "|" };
    for (int i = 0; i < 4; i++)
        if (strlen(names[i]) == bytes && memcmp(names[i], name, bytes) == 0) paragraph_put(out, texts[i], 1);
}

static bool is_hidden(const pod *d) { return d->depth > 0 && d->open[d->depth - 1].hidden; }

/* The letter and the brackets that open a code, or 0. */
static size_t open_code(pod *d, const char *text, size_t bytes)
{
    size_t brackets = 0;
    if (*text < 'A' || *text > 'Z' || d->depth == NESTED_MAX) return 0;
    while (1 + brackets < bytes && text[1 + brackets] == '<')
        brackets++;
    if (brackets == 0 || brackets > NESTED_MAX) return 0;
    const bool hidden = is_hidden(d) || *text == 'X' || *text == 'Z';
    d->open[d->depth++] = (pod_code){ *text, (int)brackets, hidden };
    return 1 + brackets;
}

static size_t close_code(pod *d, const char *text, size_t bytes)
{
    if (d->depth == 0) return 0;
    const size_t brackets = (size_t)d->open[d->depth - 1].brackets;
    for (size_t i = 0; i < brackets; i++)
        if (i >= bytes || text[i] != '>') return 0;
    d->depth--;
    return brackets;
}

static bool is_special(char c) { return (c >= 'A' && c <= 'Z') || c == '>' || c == '|'; }

static void put_pod(pod *d, const char *text, size_t bytes)
{
    for (size_t at = 0, taken; at < bytes; at += taken) {
        if (text[at] == 'E' && at + 1 < bytes && text[at + 1] == '<') {
            const size_t most = bytes - at - 2 < 16 ? bytes - at - 2 : 16;
            const char *const end = memchr(text + at + 2, '>', most);
            if (end) {
                const size_t name = (size_t)(end - text) - at - 2;
                if (!is_hidden(d)) put_escape(d->out, text + at + 2, name);
                taken = name + 3;
                continue;
            }
        }
        if ((taken = open_code(d, text + at, bytes - at)) > 0) continue;
        if (text[at] == '>' && (taken = close_code(d, text + at, bytes - at)) > 0) continue;
        for (taken = 1; at + taken < bytes && !is_special(text[at + taken]);)
            taken++;
        if (text[at] == '|' && d->depth > 0 && d->open[d->depth - 1].letter == 'L')
            d->open[d->depth - 1].hidden = true, taken = 1;
        else if (!is_hidden(d))
            paragraph_put(d->out, text + at, taken);
    }
}

static bool begins(line l, const char *with)
{
    const size_t bytes = strlen(with);
    return l.bytes >= bytes && memcmp(l.at, with, bytes) == 0;
}

/* A paragraph is a command, verbatim or text by its first line. */
void extract_pod(paragraph *p, const char *text, size_t bytes)
{
    pod d = { .out = p };
    bool first = true, shown = false, other = false; /* other: between =begin and =end */
    while (bytes > 0 && !p->status) {
        const line l = next_line(&text, &bytes);
        if (is_empty(l)) {
            paragraph_end(p);
            first = true, d.depth = 0;
            continue;
        }
        if (first) shown = *l.at != '=' && *l.at != ' ' && *l.at != '\t' && !other;
        if (first && (begins(l, "=begin") || begins(l, "=end"))) other = begins(l, "=begin");
        first = false;
        if (!shown) continue;
        put_pod(&d, l.at, l.bytes);
        paragraph_put(p, " ", 1);
    }
}

/* ---------------------------------------------------------------- dictionaries */

/* A bracket that nothing closes on its line is text. */
void extract_dictionary(paragraph *p, const char *text, size_t bytes)
{
    while (bytes > 0 && !p->status) {
        const line l = next_line(&text, &bytes);
        const char *from = l.at, *const end = l.at + l.bytes;
        bool closed[2] = { true, true }; /* is there one further on? */
        for (const char *at = l.at; at < end; at++) {
            const int kind = *at == '<';
            if ((*at != '[' && *at != '<') || !closed[kind]) continue;
            const char *const last = memchr(at, kind ? '>' : ']', (size_t)(end - at));
            closed[kind] = last != NULL;
            if (!last) continue;
            paragraph_put(p, from, (size_t)(at - from));
            from = last + 1, at = last;
        }
        paragraph_put(p, from, (size_t)(end - from));
        paragraph_end(p);
    }
}
