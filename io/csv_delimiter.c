/* SPDX-License-Identifier: MIT */
#include "io/csv_delimiter.h"

#include <stdbool.h>
#include <string.h>
#include <strings.h>

enum { LINES_MOST = 100 };

/* What one separator makes of the first lines. */
typedef struct tally {
    size_t lines;       /* not blank, the first among them */
    size_t first;       /* fields of the first line */
    size_t agree;       /* later lines with as many */
    size_t cells, good; /* fields of later lines, and those that are a number or missing */
} tally;

/* Decimal commas are not read, but a file that has them is still parted by what parts its fields. */
static bool is_number_or_missing(const char *text, size_t length)
{
    if (length == 0 || (length == 2 && !strncasecmp(text, "NA", 2))) return true;
    bool digit = false;
    for (size_t i = 0; i < length; i++) {
        if (!text[i] || !strchr("0123456789.,+-eE", text[i])) return false;
        digit |= text[i] >= '0' && text[i] <= '9';
    }
    return digit;
}

static bool is_padding(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '"'; }

static void end_field(tally *t, const char *text, size_t length)
{
    if (!t->lines) return;
    while (length && is_padding(*text))
        text++, length--;
    while (length && is_padding(text[length - 1]))
        length--;
    t->cells++;
    t->good += is_number_or_missing(text, length);
}

static void end_line(tally *t, size_t fields)
{
    if (!t->lines++)
        t->first = fields;
    else
        t->agree += fields == t->first;
}

static tally count_fields(const char *bytes, size_t count, char delimiter)
{
    tally t = { 0 };
    size_t start = 0, fields = 0;
    bool quoted = false, blank = true;
    for (size_t i = 0; i <= count && t.lines < LINES_MOST; i++) {
        const char c = i < count ? bytes[i] : '\n';
        const bool ends_line = (c == '\n' && !quoted) || i == count, ends_field = c == delimiter && !quoted;
        if (c == '"') quoted = !quoted;
        if (c == delimiter || !(is_padding(c) || c == '\n')) blank = false;
        if (!ends_line && !ends_field) continue;
        if (!(ends_line && blank)) end_field(&t, bytes + start, i - start), fields++;
        start = i + 1;
        if (!ends_line) continue;
        if (!blank) end_line(&t, fields);
        fields = 0;
        blank = true;
    }
    return t;
}

/* Where a parts the lines better than b. */
static bool is_better(const tally *a, const tally *b)
{
    if (a->agree != b->agree) return a->agree > b->agree;
    const size_t good_a = a->good * b->cells, good_b = b->good * a->cells;
    return good_a != good_b ? good_a > good_b : a->first > b->first;
}

char csv_guess_delimiter(const char *bytes, size_t count)
{
    static const char candidates[] = { ',', ';', '\t' };
    char best = ',';
    tally most = { 0 };
    for (size_t i = 0; i < sizeof candidates; i++) {
        const tally t = count_fields(bytes, count, candidates[i]);
        if (t.first < 2 || (t.lines > 1 && !t.agree)) continue;
        if (!most.lines || is_better(&t, &most)) best = candidates[i], most = t;
    }
    return best;
}

const char *csv_delimiter_name(char delimiter)
{
    return delimiter == ';' ? "';'" : delimiter == '\t' ? "tab" : "','";
}
