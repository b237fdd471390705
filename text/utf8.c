/* SPDX-License-Identifier: MIT */
#include "text/utf8.h"

#include <string.h>
#include <utf8proc.h>

utf8_state utf8_look(const char *text, size_t bytes, size_t *length)
{
    const unsigned char *p = (const unsigned char *)text, lead = *p;
    const size_t need = lead < 0x80 ? 1 : lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    *length = 1;
    if (need == 0 || lead > 0xf4) return UTF8_BROKEN;
    /* The second byte excludes overlong forms, surrogates and what is beyond U+10FFFF. */
    unsigned char low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    unsigned char high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    for (; *length < need; ++*length) {
        if (*length == bytes) return UTF8_SHORT;
        if (p[*length] < low || p[*length] > high) return UTF8_BROKEN;
        low = 0x80, high = 0xbf;
    }
    return UTF8_WHOLE;
}

/* Bytes of ASCII from `at` on, eight at a time. */
static size_t ascii_end(const char *text, size_t at, size_t bytes)
{
    for (uint64_t eight; at + sizeof eight <= bytes; at += sizeof eight) {
        memcpy(&eight, text + at, sizeof eight);
        if (eight & 0x8080808080808080u) break;
    }
    while (at < bytes && !(text[at] & 0x80))
        at++;
    return at;
}

static size_t valid_end(const char *text, size_t at, size_t bytes)
{
    while ((at = ascii_end(text, at, bytes)) < bytes) {
        size_t length;
        if (utf8_look(text + at, bytes - at, &length) != UTF8_WHOLE) break;
        at += length;
    }
    return at;
}

bool utf8_is_valid(const char *text, size_t bytes) { return valid_end(text, 0, bytes) == bytes; }

void utf8_repair(buffer *out, const char *text, size_t bytes)
{
    for (size_t at = 0; at < bytes;) {
        const size_t end = valid_end(text, at, bytes);
        buffer_put(out, text + at, end - at);
        if (end == bytes) break;
        size_t length;
        utf8_look(text + end, bytes - end, &length);
        buffer_put(out, "\xef\xbf\xbd", 3);
        at = end + length;
    }
}

int32_t utf8_first(const char *text, size_t *length)
{
    const unsigned char *p = (const unsigned char *)text;
    if (p[0] < 0x80) {
        *length = 1;
        return p[0];
    }
    if (p[0] < 0xe0) {
        *length = 2;
        return (p[0] & 31) << 6 | (p[1] & 63);
    }
    if (p[0] < 0xf0) {
        *length = 3;
        return (p[0] & 15) << 12 | (p[1] & 63) << 6 | (p[2] & 63);
    }
    *length = 4;
    return (p[0] & 7) << 18 | (p[1] & 63) << 12 | (p[2] & 63) << 6 | (p[3] & 63);
}

size_t utf8_before(const char *text, size_t end)
{
    end--;
    while (end > 0 && (text[end] & 0xc0) == 0x80)
        end--;
    return end;
}

void utf8_put(buffer *out, int32_t character)
{
    utf8proc_uint8_t bytes[UTF8_MAX];
    const utf8proc_ssize_t count = utf8proc_encode_char(character, bytes);
    buffer_put(out, (const char *)bytes, (size_t)count);
}

bool is_white_space(int32_t c)
{
    if (c < 0x80) return c == ' ' || (c >= '\t' && c <= '\r');
    return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
           c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

bool is_number(int32_t c)
{
    if (c < 0x80) return c >= '0' && c <= '9';
    const utf8proc_category_t category = utf8proc_category(c);
    return category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO;
}

bool is_punctuation(int32_t c)
{
    if (c < 0x80)
        return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
               (c >= '{' && c <= '~');
    const utf8proc_category_t category = utf8proc_category(c);
    return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
}

bool is_word(int32_t c)
{
    const utf8proc_category_t category = utf8proc_category(c);
    const bool joiner = c == 0x200c || c == 0x200d, circled = c >= 0x24b6 && c <= 0x24e9;
    return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NL) ||
           category == UTF8PROC_CATEGORY_PC || joiner || circled;
}

/* GPT-2: printable bytes of Latin-1 stand for themselves, the others, in order, for U+0100 and up. */
static bool stands_for_itself(int byte)
{
    return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte != 0xad && byte <= 0xff);
}

/* The n-th byte that does not stand for itself: 0 .. 32, 127 .. 160, 173. */
static int hidden_byte(int n) { return n <= 32 ? n : n < 67 ? n + 94 : n == 67 ? 173 : -1; }

static int hidden_place(int byte) { return byte <= 32 ? byte : byte == 173 ? 67 : byte - 94; }

static int byte_of_printable(int32_t c)
{
    if (c < 0x100) return stands_for_itself(c) ? c : -1;
    return c < 0x100 + 68 ? hidden_byte(c - 0x100) : -1;
}

bool bytes_of_printable(buffer *out, const char *text, size_t bytes)
{
    const size_t before = out->count;
    for (size_t at = 0, length; at < bytes; at += length) {
        const int byte = byte_of_printable(utf8_first(text + at, &length));
        if (byte < 0) {
            out->count = before;
            return false;
        }
        const char one = (char)byte;
        buffer_put(out, &one, 1);
    }
    return true;
}

void printable_of_bytes(buffer *out, const char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const int byte = (unsigned char)bytes[i];
        utf8_put(out, stands_for_itself(byte) ? byte : 0x100 + hidden_place(byte));
    }
}
