/* SPDX-License-Identifier: MIT */
#include "corpus/question.h"
#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>

enum { CONTEXT = 64, REST = 16, DRAWS = 256 };

typedef struct continuation {
    const question_source *from;
    FILE *out;
    bool *word; /* by id: the token begins with a blank */
    int64_t begin, end;
    int64_t made;
    buffer context, choice[QUESTION_CHOICES];
} continuation;

static bool begins_word(const continuation *c, int64_t n) { return c->word[question_token(c->from, n)]; }

/* Where three other continuations begin, apart from each other and from the text around `at`. */
static bool find_others(const continuation *c, int64_t at, int64_t other[QUESTION_CHOICES])
{
    int found = 1;
    for (int64_t n = 1; n <= DRAWS && found < QUESTION_CHOICES; n++) {
        const int64_t place = c->begin + question_draw(c->from, at, n, c->end - REST - c->begin + 1);
        bool apart = begins_word(c, place) && (place + REST <= at - CONTEXT || place >= at + REST);
        for (int i = 1; i < found; i++)
            apart = apart && llabs(place - other[i]) >= REST;
        if (apart) other[found++] = place;
    }
    return found == QUESTION_CHOICES;
}

/* A window may begin or end within a character, and a text repeats itself: such questions are left out. */
static bool is_fair(const continuation *c)
{
    bool fair = utf8_is_valid(c->context.at, c->context.count);
    for (int i = 0; i < QUESTION_CHOICES; i++)
        fair = fair && c->choice[i].count > 0 && utf8_is_valid(c->choice[i].at, c->choice[i].count);
    for (int i = 1; i < QUESTION_CHOICES; i++)
        for (int j = 0; j < i; j++)
            fair = fair && (c->choice[i].count != c->choice[j].count ||
                            memcmp(c->choice[i].at, c->choice[j].at, c->choice[i].count) != 0);
    return fair;
}

/* That the text begins with: the form has one there. */
static void drop_blank(buffer *b)
{
    if (b->count == 0 || *b->at != ' ') return;
    b->count--;
    memmove(b->at, b->at + 1, b->count);
}

static int ask(continuation *c, int64_t at, io_error *error)
{
    int64_t other[QUESTION_CHOICES] = { at };
    if (!find_others(c, at, other)) return 0;
    int status = question_text(c->from, at - CONTEXT, CONTEXT, &c->context, error);
    for (int i = 0; i < QUESTION_CHOICES && !status; i++) {
        status = question_text(c->from, other[i], REST, &c->choice[i], error);
        if (!status) drop_blank(&c->choice[i]);
    }
    if (!status) drop_blank(&c->context);
    if (status || !is_fair(c)) return status;
    c->made++;
    return question_write(c->from, c->out, at, &c->context, c->choice, error);
}

static int ask_document(continuation *c, io_error *error)
{
    int status = 0;
    for (int64_t at = c->begin + CONTEXT; at + REST <= c->end && !status; at++)
        if (begins_word(c, at)) {
            status = ask(c, at, error);
            at += CONTEXT + REST - 1;
        }
    return status;
}

static int find_words(continuation *c, io_error *error)
{
    const int64_t size = tokenizer_size(c->from->tokenizer);
    c->word = calloc((size_t)size + 1, sizeof *c->word);
    if (!c->word) return io_fail(error, EXIT_INTERNAL, "out of memory for questions");
    for (int32_t id = 0; id < size; id++) {
        char *text;
        size_t bytes;
        const int status = tokenizer_decode(c->from->tokenizer, &id, 1, true, &text, &bytes, error);
        if (status) return status;
        c->word[id] = bytes > 1 && *text == ' ';
        free(text);
    }
    return 0;
}

int questions_of_continuation(const question_source *s, FILE *out, int64_t *made, io_error *error)
{
    continuation c = { .from = s, .out = out };
    int status = find_words(&c, error);
    for (c.end = 0; c.end < s->count && !status; c.end++)
        if (question_token(s, c.end) == s->end) {
            status = ask_document(&c, error);
            c.begin = c.end + 1;
        }
    *made = c.made;
    free(c.word);
    buffer_free(&c.context);
    for (int i = 0; i < QUESTION_CHOICES; i++)
        buffer_free(&c.choice[i]);
    return status;
}
