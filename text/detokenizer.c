/* SPDX-License-Identifier: MIT
 * From tokens to text: all at once, or as they come. What a token stands for is known beforehand. */
#include "text/parts.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static const added_token *find_added(const tokenizer *t, int32_t id)
{
    int32_t low = 0, high = t->added_count;
    while (low < high) {
        const int32_t middle = low + (high - low) / 2;
        if (t->added[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low < t->added_count && t->added[low].id == id ? &t->added[low] : NULL;
}

/* ---------------------------------------------------------------- beforehand */

static int put_decoded(const tokenizer *t, match_scratch *matching, int32_t id, bool first, buffer *space,
                       buffer *out, io_error *error)
{
    const added_token *added = find_added(t, id);
    if (added)
        return decoder_put(&t->decoder, matching, added->content, added->bytes, true, first, out, error);
    if (!vocabulary_has(&t->vocabulary, id)) return 0;
    size_t bytes;
    const char *text = vocabulary_bytes(&t->vocabulary, id, &bytes);
    const bool plain = t->vocabulary.place[id].plain;
    if (t->bpe.by_bytes && !plain) {
        space->count = 0;
        printable_of_bytes(space, text, bytes);
        if (space->failed) return io_fail(error, EXIT_INTERNAL, "out of memory for the texts of tokens");
        text = space->at, bytes = space->count;
    }
    return decoder_put(&t->decoder, matching, text, bytes, plain, first, out, error);
}

static int decode_tokens(const tokenizer *t, const reader *r, match_scratch *matching, bool first, decoded *d)
{
    buffer space = { 0 };
    d->end = malloc(((size_t)t->size + 1) * sizeof *d->end);
    int status = d->end && matching ? 0 : reader_no_memory(r);
    for (int64_t id = 0; id < t->size && !status; id++) {
        const size_t before = d->bytes.count;
        status = put_decoded(t, matching, (int32_t)id, first, &space, &d->bytes, r->error);
        d->end[id] = (uint32_t)d->bytes.count;
        if (!status && d->bytes.count > DECODED_BYTES_MAX)
            status = reader_fail(r, "the texts of the tokens have more than %d bytes", DECODED_BYTES_MAX);
        if (d->bytes.count - before > d->longest) d->longest = d->bytes.count - before;
    }
    buffer_free(&space);
    return status;
}

int make_decoded(tokenizer *t, const reader *r)
{
    match_scratch *matching = match_scratch_make();
    int status = decode_tokens(t, r, matching, false, &t->decoded[0]);
    if (!status) status = decode_tokens(t, r, matching, true, &t->decoded[1]);
    match_scratch_free(matching);
    return status;
}

static void put_token(const tokenizer *t, int32_t id, bool first, buffer *out)
{
    const decoded *d = &t->decoded[first];
    const size_t begin = id > 0 ? d->end[id - 1] : 0;
    if (d->end[id] > begin) buffer_put(out, d->bytes.at + begin, d->end[id] - begin);
}

static bool is_token(const tokenizer *t, int32_t id)
{
    return find_added(t, id) || vocabulary_has(&t->vocabulary, id);
}

static bool is_special(const tokenizer *t, int32_t id)
{
    const added_token *added = find_added(t, id);
    return added && added->special;
}

/* ---------------------------------------------------------------- at once */

static int put_all(const tokenizer *t, const int32_t *id, int64_t count, bool special, buffer *out,
                   io_error *error)
{
    bool first = true;
    for (int64_t i = 0; i < count; i++) {
        if (!is_token(t, id[i]))
            return io_fail(error, EXIT_INPUT, "token %lld is %d, which the tokenizer does not have",
                           (long long)i, (int)id[i]);
        if (!special && is_special(t, id[i])) continue;
        put_token(t, id[i], first, out);
        first = false;
    }
    buffer_put(out, "", 1);
    return out->failed ? io_fail(error, EXIT_INTERNAL, "out of memory for a decoded text") : 0;
}

int tokenizer_decode(const tokenizer *t, const int32_t *id, int64_t count, bool special, char **text,
                     size_t *bytes, io_error *error)
{
    *text = NULL, *bytes = 0;
    buffer out = { 0 };
    const int status = put_all(t, id, count, special, &out, error);
    if (status) {
        buffer_free(&out);
        return status;
    }
    *text = out.at, *bytes = out.count - 1;
    return 0;
}

/* ---------------------------------------------------------------- as they come */

token_stream token_stream_of(const tokenizer *t) { return (token_stream){ .tokenizer = t }; }

size_t token_stream_room(const tokenizer *t)
{
    const size_t first = t->decoded[1].longest, next = t->decoded[0].longest;
    return (first > next ? first : next) + UTF8_MAX;
}

/* Bytes at the end that may begin a character. */
static size_t unfinished(const char *text, size_t bytes)
{
    for (size_t count = 1; count < UTF8_MAX && count <= bytes; count++) {
        size_t length;
        const utf8_state state = utf8_look(text + bytes - count, count, &length);
        if (state == UTF8_SHORT && length == count) return count;
        if (state == UTF8_WHOLE) break;
    }
    return 0;
}

size_t token_stream_put(token_stream *s, int32_t id, char *out)
{
    if (!is_token(s->tokenizer, id) || is_special(s->tokenizer, id)) return 0;
    const size_t waiting = (size_t)s->count;
    memcpy(out, s->waiting, waiting);
    buffer text = { .at = out, .count = waiting, .room = token_stream_room(s->tokenizer) };
    put_token(s->tokenizer, id, !s->begun, &text);
    s->begun = true;
    const size_t rest = unfinished(out, text.count);
    s->count = (int)rest;
    memcpy(s->waiting, out + text.count - rest, rest);
    return text.count - rest;
}

size_t token_stream_end(token_stream *s, char *out)
{
    const size_t waiting = (size_t)s->count;
    memcpy(out, s->waiting, waiting);
    s->count = 0;
    return waiting;
}
