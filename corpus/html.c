/* SPDX-License-Identifier: MIT
 * HTML to paragraphs, as browsers read tags, comments and character references, but without a tree: an
 * element that is dropped counts its begin and end tags, and what it leaves open drops the rest. */
#include "corpus/paragraph.h"

#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>

enum { NAME_MAX_BYTES = 16, REFERENCE_MAX = 16, REPLACEMENT = 0xfffd };

typedef struct html {
    paragraph *out;
    const char *text;
    size_t at, bytes;
    int64_t open[3]; /* elements of DROPPED */
} html;

/* ---------------------------------------------------------------- character references */

typedef struct entity {
    const char *name;
    int32_t character;
} entity;

#define ENTITY(name, character) { #name, character },
static const entity entities[] = {
#include "corpus/entities.def"
};
#undef ENTITY

static int compare_names(const void *name, const void *e) { return strcmp(name, ((const entity *)e)->name); }

static bool is_scalar(long c) { return c > 0 && c <= 0x10ffff && !(c >= 0xd800 && c < 0xe000); }

/* The character between & and ;, or -1: the text is no reference. */
static int32_t reference(const char *name, size_t bytes)
{
    char word[REFERENCE_MAX + 1], *end;
    memcpy(word, name, bytes);
    word[bytes] = 0;
    if (strlen(word) != bytes) return -1;
    if (*word != '#') {
        const entity *found = bsearch(word, entities, sizeof entities / sizeof *entities, sizeof *entities,
                                      compare_names);
        return found ? found->character : -1;
    }
    const bool hexadecimal = word[1] == 'x' || word[1] == 'X';
    const char *const digits = word + 1 + hexadecimal;
    if (!*digits || strspn(digits, hexadecimal ? "0123456789abcdefABCDEF" : "0123456789") != strlen(digits))
        return -1;
    const long c = strtol(digits, &end, hexadecimal ? 16 : 10);
    return is_scalar(c) ? (int32_t)c : REPLACEMENT;
}

/* The bytes of a reference that the text begins with, which has become a character; 0: there is none. */
static size_t put_reference(paragraph *out, const char *text, size_t bytes)
{
    const size_t most = bytes - 1 < REFERENCE_MAX ? bytes - 1 : REFERENCE_MAX;
    const char *const end = memchr(text + 1, ';', most);
    const int32_t c = end ? reference(text + 1, (size_t)(end - text) - 1) : -1;
    if (c < 0) return 0;
    buffer character = { 0 };
    utf8_put(&character, c);
    paragraph_put(out, character.at, character.count);
    out->text.failed = out->text.failed || character.failed;
    buffer_free(&character);
    return (size_t)(end - text) + 1;
}

static void put_text(html *h, size_t end)
{
    const bool dropped = h->open[0] || h->open[1] || h->open[2];
    while (h->at < end && !dropped) {
        const char *const from = h->text + h->at, *const sign = memchr(from, '&', end - h->at);
        const size_t plain = sign ? (size_t)(sign - from) : end - h->at;
        paragraph_put(h->out, from, plain);
        h->at += plain;
        if (!sign) continue;
        size_t taken = put_reference(h->out, sign, end - h->at);
        if (taken == 0) paragraph_put(h->out, sign, taken = 1);
        h->at += taken;
    }
    h->at = end;
}

/* ---------------------------------------------------------------- tags */

static const char *const DROPPED[] = { "pre", "nav", "table", NULL };
static const char *const RAW[] = { "script", "style", NULL };
static const char *const BLOCKS[] = {
    "address", "article",  "aside",  "blockquote", "body",   "caption",  "center",     "dd",     "details",
    "dialog",  "div",      "dl",     "dt",         "figure", "fieldset", "figcaption", "footer", "form",
    "h1",      "h2",       "h3",     "h4",         "h5",     "h6",       "head",       "header", "hgroup",
    "hr",      "html",     "legend", "li",         "main",   "menu",     "nav",        "ol",     "option",
    "p",       "pre",      "script", "section",    "select", "style",    "summary",    "table",  "tbody",
    "td",      "textarea", "tfoot",  "th",         "thead",  "title",    "tr",         "ul",     NULL,
};

static int find_name(const char *name, const char *const *names)
{
    for (int i = 0; names[i]; i++)
        if (strcmp(name, names[i]) == 0) return i;
    return -1;
}

/* The name at `at` in small letters; one too long is no name that is looked for. */
static void read_name(const html *h, size_t at, char name[NAME_MAX_BYTES])
{
    int n = 0;
    for (; at < h->bytes && n < NAME_MAX_BYTES - 1; at++, n++) {
        const char c = h->text[at];
        const bool large = c >= 'A' && c <= 'Z';
        if (!large && !(c >= 'a' && c <= 'z') && !(n > 0 && c >= '0' && c <= '9')) break;
        name[n] = large ? (char)(c - 'A' + 'a') : c;
    }
    name[n] = 0;
}

/* Behind the > of a tag, which is none within quotes of an attribute. */
static size_t tag_end(const html *h, size_t at)
{
    bool value = false; /* comes next: quotes elsewhere are none */
    for (; at < h->bytes && h->text[at] != '>'; at++) {
        const char c = h->text[at];
        if (value && (c == '"' || c == '\'')) {
            const char *const end = memchr(h->text + at + 1, c, h->bytes - at - 1);
            if (!end) return h->bytes;
            at = (size_t)(end - h->text);
        }
        value = c == '=' || (value && (c == ' ' || (c >= '\t' && c <= '\r')));
    }
    return at < h->bytes ? at + 1 : h->bytes;
}

static size_t behind(const html *h, size_t at, const char *mark)
{
    const size_t bytes = strlen(mark);
    while (at < h->bytes) {
        const char *const found = memchr(h->text + at, *mark, h->bytes - at);
        if (!found) break;
        at = (size_t)(found - h->text);
        if (h->bytes - at >= bytes && memcmp(found, mark, bytes) == 0) return at + bytes;
        at++;
    }
    return h->bytes;
}

/* Where the end tag of a script or style begins. */
static size_t raw_end(const html *h, size_t at, const char *element)
{
    char name[NAME_MAX_BYTES];
    for (; (at = behind(h, at, "</")) < h->bytes;) {
        read_name(h, at, name);
        if (strcmp(name, element) == 0) return at - 2;
    }
    return h->bytes;
}

static void take_tag(html *h)
{
    char name[NAME_MAX_BYTES];
    const bool ends = h->text[h->at + 1] == '/';
    read_name(h, h->at + 1 + ends, name);
    h->at = tag_end(h, h->at + 1 + ends + strlen(name));
    const int dropped = find_name(name, DROPPED);
    if (strcmp(name, "br") == 0) paragraph_put(h->out, " ", 1);
    if (find_name(name, BLOCKS) >= 0) paragraph_end(h->out);
    if (dropped >= 0 && !ends) h->open[dropped]++;
    if (dropped >= 0 && ends && h->open[dropped] > 0) h->open[dropped]--;
    if (!ends && find_name(name, RAW) >= 0) h->at = raw_end(h, h->at, name);
}

static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

/* At a <: a tag, a comment, or a sign like others. */
static void take_markup(html *h)
{
    const size_t left = h->bytes - h->at;
    const char *const text = h->text + h->at;
    const char next = left > 1 ? text[1] : ' ';
    if (left > 3 && memcmp(text, "<!--", 4) == 0)
        h->at = behind(h, h->at + 2, "-->"); /* <!--> is a comment */
    else if (is_letter(next) || (next == '/' && left > 2 && is_letter(text[2])))
        take_tag(h);
    else if (next == '!' || next == '?' || next == '/')
        h->at = behind(h, h->at, ">");
    else
        put_text(h, h->at + 1);
}

void extract_html(paragraph *p, const char *text, size_t bytes)
{
    html h = { .out = p, .text = text, .bytes = bytes };
    while (h.at < bytes && !p->status) {
        const char *const sign = memchr(text + h.at, '<', bytes - h.at);
        put_text(&h, sign ? (size_t)(sign - text) : bytes);
        if (sign) take_markup(&h);
    }
}
