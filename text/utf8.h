/* SPDX-License-Identifier: MIT
 * UTF-8, the classes of characters that tokenizers ask for, and GPT-2's printable characters for bytes. */
#ifndef LOAM_TEXT_UTF8_H
#define LOAM_TEXT_UTF8_H

#include "text/buffer.h"

enum { UTF8_MAX = 4 }; /* bytes of a character */

typedef enum utf8_state {
    UTF8_WHOLE,  /* a character */
    UTF8_BROKEN, /* no character begins with these bytes */
    UTF8_SHORT   /* a character may begin so, but the text ends */
} utf8_state;

/* What the text begins with, and how many bytes that are: of what is no character, those that one replacement
 * character stands for (Unicode's maximal subpart). bytes > 0. */
utf8_state utf8_look(const char *text, size_t bytes, size_t *length);

bool utf8_is_valid(const char *text, size_t bytes);
/* Appends the text with U+FFFD for what is not UTF-8. */
void utf8_repair(buffer *out, const char *text, size_t bytes);

/* The first character of valid UTF-8, and its bytes. */
int32_t utf8_first(const char *text, size_t *length);
/* Where the last character before `end` begins. */
size_t utf8_before(const char *text, size_t end);
void utf8_put(buffer *out, int32_t character);

bool is_white_space(int32_t character); /* the property of this name */
bool is_number(int32_t character);      /* Nd, Nl, No */
bool is_punctuation(int32_t character); /* P, and ASCII's symbols */
bool is_word(int32_t character);        /* letters, marks, digits, connectors */

/* Appends the bytes that such characters stand for; false, and nothing done, where one stands for none. */
bool bytes_of_printable(buffer *out, const char *text, size_t bytes);
void printable_of_bytes(buffer *out, const char *bytes, size_t count);

#endif
