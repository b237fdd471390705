/* SPDX-License-Identifier: MIT
 * A tokenizer.json, a 0, a text: what can be opened encodes, decodes and streams whatever it is given. */
#define _POSIX_C_SOURCE 200809L
#include "tests/fuzz/fuzz.h"
#include "text/parts.h"

#include <stdlib.h>
#include <string.h>

/* A stream of tokens is the same text as all at once. */
static void check_stream(const tokenizer *t, const tokens *ids)
{
    char *text;
    size_t bytes, done = 0;
    io_error error;
    if (tokenizer_decode(t, ids->id, ids->count, false, &text, &bytes, &error)) abort();
    char *out = malloc(token_stream_room(t));
    token_stream s = token_stream_of(t);
    for (int64_t i = 0; i <= ids->count && out; i++) {
        const size_t count = i < ids->count ? token_stream_put(&s, ids->id[i], out)
                                            : token_stream_end(&s, out);
        if (count > token_stream_room(t) || done + count > bytes || memcmp(text + done, out, count) != 0)
            abort();
        done += count;
    }
    if (out && done != bytes) abort();
    free(out);
    free(text);
}

static void check_text(const tokenizer *t, const char *text, size_t bytes, bool special)
{
    tokens ids;
    io_error error = { 0 };
    if (tokenizer_encode(t, text, bytes, special, &ids, &error)) {
        if (ids.id || !*error.text) abort();
        return;
    }
    for (int64_t i = 0; i < ids.count; i++)
        if (ids.id[i] < 0 || ids.id[i] >= tokenizer_size(t)) abort();
    check_stream(t, &ids);
    tokens_free(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *zero = size ? memchr(data, 0, size) : NULL;
    const size_t bytes = zero ? (size_t)(zero - data) : size;
    io_error error = { 0 };
    json_t *root = json_of_bytes((const char *)data, bytes, "fuzz.json", &error);
    tokenizer *t = NULL;
    if (root && !tokenizer_from_json(&t, root, "fuzz.json", &error) != (t != NULL)) abort();
    if (!t && (!*error.text || !error.exit_status)) abort();
    json_decref(root);
    if (t && zero) {
        check_text(t, (const char *)zero + 1, size - bytes - 1, false);
        check_text(t, (const char *)zero + 1, size - bytes - 1, true);
    }
    tokenizer_close(t);
    return 0;
}
