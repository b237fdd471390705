/* SPDX-License-Identifier: MIT */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/match.h"

#include "text/utf8.h"

#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A pattern that needs more steps for one match is refused: those of known models need a few per character,
 * and repeats of one character, as in \s+, none. */
enum { STEPS_MAX = 1000000 };

struct matcher {
    pcre2_code *code;
};

struct match_scratch {
    pcre2_match_data *data;
    pcre2_match_context *context;
};

/* ---------------------------------------------------------------- dialect */

/* PCRE2 counts U+180E as white space, and leaves marks and connectors out of \w. */
#define SPACES "\\t-\\r\\x{85}\\p{Z}"
#define WORDS "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"

typedef struct translation {
    const char *at; /* what follows */
    buffer out;
    bool in_class;
    const char *refused; /* what cannot be said here */
} translation;

static void put_text(buffer *out, const char *text) { buffer_put(out, text, strlen(text)); }

/* \p{L}, \P{Lu}, \p{^N}, \p{IsL}: of general categories only, which both know; scripts differ. */
static void translate_property(translation *t)
{
    static const char categories[] =
        " L Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs Zl Zp ";
    const char *end = t->at[2] == '{' ? strchr(t->at, '}') : NULL;
    const char *name = t->at + 3 + (end && t->at[3] == '^');
    char padded[8] = "";
    if (end && end - name >= 1 && end - name <= 2) snprintf(padded, 8, " %.*s ", (int)(end - name), name);
    if (!*padded || !strstr(categories, padded)) {
        t->refused = "a property \\p{..} other than a general category";
        return;
    }
    buffer_put(&t->out, t->at, (size_t)(end + 1 - t->at));
    t->at = end + 1;
}

/* \uHHHH */
static void translate_number(translation *t)
{
    if (strspn(t->at + 2, "0123456789abcdefABCDEF") < 4) {
        t->refused = "\\u without four digits";
        return;
    }
    put_text(&t->out, "\\x{");
    buffer_put(&t->out, t->at + 2, 4);
    put_text(&t->out, "}");
    t->at += 6;
}

static void translate_class_escape(translation *t, const char *members, bool negated)
{
    if (t->in_class && negated) {
        t->refused = "\\S, \\W or \\D within brackets";
        return;
    }
    if (!t->in_class) put_text(&t->out, negated ? "[^" : "[");
    put_text(&t->out, members);
    if (!t->in_class) put_text(&t->out, "]");
    t->at += 2;
}

static void translate_escape(translation *t)
{
    const char sign = t->at[1];
    switch (sign) {
    case 's':
    case 'S': translate_class_escape(t, SPACES, sign == 'S'); return;
    case 'w':
    case 'W': translate_class_escape(t, WORDS, sign == 'W'); return;
    case 'd':
    case 'D': translate_class_escape(t, "\\p{Nd}", sign == 'D'); return;
    case 'p':
    case 'P': translate_property(t); return;
    case 'u': translate_number(t); return;
    case '\0': t->refused = "a \\ at the end"; return;
    default: break;
    }
    const bool letter = (sign >= '0' && sign <= '9') || (sign >= 'A' && sign <= 'Z') ||
                        (sign >= 'a' && sign <= 'z');
    if (letter && !strchr("rntfvax", sign)) {
        t->refused = "an escape that is not known";
        return;
    }
    buffer_put(&t->out, t->at, 2);
    t->at += 2;
}

/* What stands behind a bracket: (?: and its like are the same in both. */
static const char *bad_group(const char *at)
{
    static const char *const known[] = { "(?:", "(?i:", "(?i)", "(?!", "(?=", "(?<!", "(?<=", "(?>" };
    if (at[1] == '*') return "a group (*";
    if (at[1] != '?') return NULL;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strncmp(at, known[i], strlen(known[i])) == 0) return NULL;
    return "a group (? of unknown kind";
}

static void translate_sign(translation *t)
{
    const char sign = *t->at;
    if (t->in_class && (sign == '[' || (sign == '&' && t->at[1] == '&')))
        t->refused = "brackets or && within brackets";
    else if (!t->in_class && sign == '(')
        t->refused = bad_group(t->at);
    else if (!t->in_class && sign == '}' && t->at[1] == '+')
        t->refused = "{..}+"; /* possessive in one dialect, repeated in the other */
    if (t->refused) return;
    if (sign == '[' || (sign == ']' && t->in_class)) t->in_class = sign == '[';
    buffer_put(&t->out, t->at++, 1);
    if (sign != '[') return;
    if (*t->at == '^') buffer_put(&t->out, t->at++, 1);
    if (*t->at == ']') buffer_put(&t->out, t->at++, 1);
}

static void translate(translation *t)
{
    while (*t->at && !t->refused)
        if (*t->at == '\\')
            translate_escape(t);
        else
            translate_sign(t);
}

/* ---------------------------------------------------------------- making */

static int compile(matcher *m, const char *pattern, size_t bytes, uint32_t options, const char *name,
                   io_error *error)
{
    int code;
    PCRE2_SIZE offset;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (context) {
        pcre2_set_newline(context, PCRE2_NEWLINE_LF);
        m->code = pcre2_compile((PCRE2_SPTR)pattern, bytes, options, &code, &offset, context);
        pcre2_compile_context_free(context);
    }
    if (!context || (!m->code && code == PCRE2_ERROR_HEAP_FAILED))
        return io_fail(error, EXIT_INTERNAL, "out of memory for a pattern of %s", name);
    if (!m->code) {
        PCRE2_UCHAR reason[128];
        pcre2_get_error_message(code, reason, sizeof reason);
        return io_fail(error, EXIT_INPUT, "%s: the pattern '%.*s' is wrong: %s", name,
                       (int)(bytes < 200 ? bytes : 200), pattern, (const char *)reason);
    }
    /* Where there is no JIT, matching is slower and the same. */
    pcre2_jit_compile(m->code, PCRE2_JIT_COMPLETE);
    return 0;
}

static int make_code(matcher *m, const char *pattern, bool literal, const char *name, io_error *error)
{
    if (literal) return compile(m, pattern, strlen(pattern), PCRE2_UTF | PCRE2_LITERAL, name, error);
    translation t = { .at = pattern };
    translate(&t);
    int status = 0;
    if (t.refused)
        status = io_fail(error, EXIT_INPUT, "%s: the pattern '%.200s' has %s, which is not known here", name,
                         pattern, t.refused);
    else if (t.out.failed)
        status = io_fail(error, EXIT_INTERNAL, "out of memory for a pattern of %s", name);
    else
        status = compile(m, t.out.at, t.out.count, PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, name, error);
    buffer_free(&t.out);
    return status;
}

int matcher_make(matcher **made, const char *pattern, bool literal, const char *name, io_error *error)
{
    *made = NULL;
    if (!*pattern) return io_fail(error, EXIT_INPUT, "%s: a pattern is empty", name);
    matcher *m = calloc(1, sizeof *m);
    if (!m) return io_fail(error, EXIT_INTERNAL, "out of memory for a pattern of %s", name);
    const int status = make_code(m, pattern, literal, name, error);
    if (status)
        matcher_free(m);
    else
        *made = m;
    return status;
}

void matcher_free(matcher *m)
{
    if (!m) return;
    pcre2_code_free(m->code);
    free(m);
}

/* ---------------------------------------------------------------- matching */

match_scratch *match_scratch_make(void)
{
    match_scratch *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->data = pcre2_match_data_create(1, NULL);
    s->context = pcre2_match_context_create(NULL);
    if (!s->data || !s->context) {
        match_scratch_free(s);
        return NULL;
    }
    pcre2_set_match_limit(s->context, STEPS_MAX);
    return s;
}

void match_scratch_free(match_scratch *s)
{
    if (!s) return;
    pcre2_match_data_free(s->data);
    pcre2_match_context_free(s->context);
    free(s);
}

int matcher_next(const matcher *m, match_scratch *s, const char *text, size_t bytes, size_t from, span *match,
                 bool *found, io_error *error)
{
    *found = false;
    const PCRE2_SPTR subject = (PCRE2_SPTR)text;
    int code = pcre2_match(m->code, subject, bytes, from, PCRE2_NO_UTF_CHECK, s->data, s->context);
    if (code == PCRE2_ERROR_JIT_STACKLIMIT)
        code = pcre2_match(m->code, subject, bytes, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, s->data,
                           s->context);
    if (code == PCRE2_ERROR_NOMATCH) return 0;
    if (code < 0) {
        PCRE2_UCHAR reason[128];
        pcre2_get_error_message(code, reason, sizeof reason);
        return io_fail(error, code == PCRE2_ERROR_NOMEMORY ? EXIT_INTERNAL : EXIT_INPUT,
                       "a pattern of the tokenizer fails on this text: %s", (const char *)reason);
    }
    const PCRE2_SIZE *place = pcre2_get_ovector_pointer(s->data);
    *match = (span){ place[0], place[1] };
    *found = true;
    return 0;
}

int matcher_replace(const matcher *m, match_scratch *s, const char *text, size_t bytes, const char *content,
                    size_t content_bytes, buffer *out, io_error *error)
{
    size_t done = 0, from = 0;
    while (from <= bytes) {
        span match;
        bool found;
        const int status = matcher_next(m, s, text, bytes, from, &match, &found, error);
        if (status) return status;
        if (!found) break;
        buffer_put(out, text + done, match.begin - done);
        buffer_put(out, content, content_bytes);
        done = from = match.end;
        size_t length = 1;
        if (match.begin == match.end && from < bytes) utf8_first(text + from, &length);
        from += match.begin == match.end ? length : 0;
    }
    buffer_put(out, text + done, bytes - done);
    return 0;
}
