/* SPDX-License-Identifier: MIT
 * tokenizer.json: the model, which is BPE or WordPiece. */
#include "text/parts.h"
#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- vocabulary */

/* Ids, with the highest: tables are as long. */
static int check_ids(const reader *r, const json_t *vocab, int64_t *size)
{
    *size = 0;
    const char *token;
    json_t *id;
    json_object_foreach((json_t *)(uintptr_t)vocab, token, id)
    {
        const int64_t value = json_is_integer(id) ? json_integer_value(id) : -1;
        if (!*token) return reader_fail(r, "the vocabulary has an empty token");
        if (strlen(token) > TOKEN_BYTES_MAX)
            return reader_fail(r, "the token '%.60s' has %zu bytes; expected at most %d", token,
                               strlen(token), TOKEN_BYTES_MAX);
        if (value < 0 || value > TOKEN_ID_MAX)
            return reader_fail(r, "the token '%.60s' has no id from 0 to %d", token, TOKEN_ID_MAX);
        if (value >= *size) *size = value + 1;
    }
    return 0;
}

/* The bytes of the model's token for a text of the file; plain where they are the text itself. */
static const char *token_bytes(const tokenizer *t, buffer *space, const char *text, size_t *bytes,
                               bool *plain)
{
    space->count = 0;
    *plain = t->bpe.by_bytes && !bytes_of_printable(space, text, *bytes);
    if (!t->bpe.by_bytes || *plain) return text;
    *bytes = space->count;
    return space->at;
}

static int add_token(tokenizer *t, const reader *r, buffer *space, const char *token, int64_t id)
{
    if (vocabulary_has(&t->vocabulary, id))
        return reader_fail(r, "the token '%.60s' has the id %lld, which is another token's", token,
                           (long long)id);
    bool plain;
    size_t bytes = strlen(token);
    const char *stored = token_bytes(t, space, token, &bytes, &plain);
    if (space->failed) return reader_no_memory(r);
    vocabulary_add(&t->vocabulary, (int32_t)id, stored, bytes, plain);
    return t->vocabulary.bytes.failed ? reader_no_memory(r) : 0;
}

static int read_vocabulary(tokenizer *t, const reader *r, const json_t *vocab)
{
    if (!json_is_object(vocab)) return reader_fail(r, "the model has no vocab");
    int64_t size = 0;
    int status = check_ids(r, vocab, &size);
    if (status) return status;
    if (!vocabulary_make(&t->vocabulary, size, (int64_t)json_object_size(vocab))) return reader_no_memory(r);
    buffer space = { 0 };
    const char *token;
    json_t *id;
    json_object_foreach((json_t *)(uintptr_t)vocab, token, id)
    {
        status = add_token(t, r, &space, token, json_integer_value(id));
        if (status) break;
    }
    buffer_free(&space);
    return status;
}

int32_t tokenizer_find_model(const tokenizer *t, const char *text, size_t bytes)
{
    char room[TOKEN_BYTES_MAX];
    buffer space = { .at = room, .room = sizeof room };
    bool plain;
    if (bytes > TOKEN_BYTES_MAX) return -1;
    const char *stored = token_bytes(t, &space, text, &bytes, &plain);
    return vocabulary_find(&t->vocabulary, stored, bytes, plain);
}

int32_t tokenizer_find(const tokenizer *t, const char *text, size_t bytes)
{
    for (int32_t i = 0; i < t->added_count; i++)
        if (t->added[i].bytes == bytes && t->added[i].content &&
            memcmp(t->added[i].content, text, bytes) == 0)
            return t->added[i].id;
    return t->vocabulary.size ? tokenizer_find_model(t, text, bytes) : -1;
}

static int read_unknown(const tokenizer *t, const reader *r, const json_t *part, bool needed, int32_t *id)
{
    const json_t *unknown = json_object_get(part, "unk_token");
    const char *text = json_string_value(unknown);
    *id = -1;
    if (!needed && (!unknown || json_is_null(unknown))) return 0;
    if (!text) return reader_fail(r, "the model's unk_token is not a text");
    *id = tokenizer_find_model(t, text, strlen(text));
    return *id < 0 ? reader_fail(r, "the model's unk_token '%.60s' is not in its vocab", text) : 0;
}

/* ---------------------------------------------------------------- merges */

/* "a b", or ["a", "b"]. */
static int read_pair(const tokenizer *t, const reader *r, const json_t *entry, size_t number, int32_t pair[2])
{
    const char *whole = json_string_value(entry), *part[2];
    size_t bytes[2];
    part[0] = whole ? whole : json_string_value(json_array_get(entry, 0));
    part[1] = whole ? strchr(whole, ' ') : json_string_value(json_array_get(entry, 1));
    if (!part[0] || !part[1] || (!whole && json_array_size(entry) != 2))
        return reader_fail(r, "merge %zu is not a pair of tokens", number);
    part[1] += whole != NULL;
    bytes[0] = whole ? (size_t)(part[1] - part[0] - 1) : strlen(part[0]);
    bytes[1] = strlen(part[1]);
    if (whole && strchr(part[1], ' ')) return reader_fail(r, "merge %zu is not a pair of tokens", number);
    for (int i = 0; i < 2; i++) {
        pair[i] = tokenizer_find_model(t, part[i], bytes[i]);
        if (pair[i] < 0)
            return reader_fail(r, "merge %zu has '%.*s', which is not in the vocab", number,
                               (int)(bytes[i] < 60 ? bytes[i] : 60), part[i]);
    }
    return 0;
}

static int read_merges(tokenizer *t, const reader *r, const json_t *merges)
{
    if (!json_is_array(merges)) return reader_fail(r, "the model has no merges");
    const size_t count = json_array_size(merges);
    if (count > TOKEN_ID_MAX)
        return reader_fail(r, "the model has %zu merges; expected at most %d", count, TOKEN_ID_MAX);
    t->bpe.pairs = malloc((count + 1) * sizeof *t->bpe.pairs);
    if (!t->bpe.pairs) return reader_no_memory(r);
    int status = 0;
    for (size_t i = 0; i < count && !status; i++)
        status = read_pair(t, r, json_array_get(merges, i), i, t->bpe.pairs[i]);
    t->bpe.merges = (int64_t)count;
    return status;
}

static int make_bpe(tokenizer *t, const reader *r)
{
    int64_t bad;
    t->bpe.vocabulary = &t->vocabulary;
    if (!bpe_make(&t->bpe, &bad)) return reader_no_memory(r);
    return bad < 0 ? 0
                   : reader_fail(r, "merge %lld is there twice, or what it makes is not in the vocab",
                                 (long long)bad);
}

static int read_bpe(tokenizer *t, const reader *r, const json_t *part)
{
    static const char *const keys[] = { "type",
                                        "dropout",
                                        "unk_token",
                                        "continuing_subword_prefix",
                                        "end_of_word_suffix",
                                        "fuse_unk",
                                        "byte_fallback",
                                        "ignore_merges",
                                        "vocab",
                                        "merges",
                                        NULL };
    static const char where[] = "the model";
    int status = reader_keys(r, part, where, keys);
    const json_t *dropout = json_object_get(part, "dropout");
    if (!status && dropout && !json_is_null(dropout) && json_number_value(dropout) != 0)
        status = reader_fail(r, "the model has a dropout, which is not known here");
    t->is_bpe = true;
    if (!status) status = read_vocabulary(t, r, json_object_get(part, "vocab"));
    if (!status) status = read_unknown(t, r, part, false, &t->bpe.unknown);
    if (!status) status = reader_text(r, part, where, "continuing_subword_prefix", "", &t->bpe.prefix);
    if (!status) status = reader_text(r, part, where, "end_of_word_suffix", "", &t->bpe.suffix);
    if (!status) status = reader_flag(r, part, where, "fuse_unk", false, &t->bpe.fuse_unknown);
    if (!status) status = reader_flag(r, part, where, "byte_fallback", false, &t->bpe.byte_fallback);
    if (!status) status = reader_flag(r, part, where, "ignore_merges", false, &t->bpe.ignore_merges);
    if (!status && t->bpe.byte_fallback && t->bpe.by_bytes)
        status = reader_fail(r, "the model has byte_fallback, although ByteLevel gives it bytes");
    if (!status) status = read_merges(t, r, json_object_get(part, "merges"));
    return status ? status : make_bpe(t, r);
}

/* ---------------------------------------------------------------- WordPiece */

static int read_wordpiece(tokenizer *t, const reader *r, const json_t *part)
{
    static const char *const keys[] = {
        "type", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word", "vocab", NULL
    };
    static const char where[] = "the model";
    wordpiece *w = &t->wordpiece;
    int status = reader_keys(r, part, where, keys);
    if (!status && t->bpe.by_bytes)
        status = reader_fail(r, "the model WordPiece after ByteLevel is not known here");
    if (!status) status = read_vocabulary(t, r, json_object_get(part, "vocab"));
    if (!status) status = read_unknown(t, r, part, true, &w->unknown);
    if (!status) status = reader_text(r, part, where, "continuing_subword_prefix", "##", &w->prefix);
    const json_t *longest = json_object_get(part, "max_input_chars_per_word");
    w->longest_word = longest ? json_integer_value(longest) : 100;
    w->vocabulary = &t->vocabulary;
    if (!status && (w->longest_word < 1 || w->longest_word > WORDPIECE_LETTERS))
        status = reader_fail(r, "the model's max_input_chars_per_word is not 1 to %d", WORDPIECE_LETTERS);
    return status;
}

int read_model(tokenizer *t, const reader *r, const json_t *part)
{
    int status;
    const char *type = json_string_value(json_object_get(part, "type"));
    /* Older files do not name BPE, which alone has merges. */
    if (!type && json_object_get(part, "merges")) type = "BPE";
    if (!type) return reader_fail(r, "the model has no type");
    if (strcmp(type, "BPE") == 0)
        status = read_bpe(t, r, part);
    else if (strcmp(type, "WordPiece") == 0)
        status = read_wordpiece(t, r, part);
    else
        status = reader_fail(r, "the model '%.60s' is not known here; expected BPE or WordPiece", type);
    return status;
}
