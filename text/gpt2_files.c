/* SPDX-License-Identifier: MIT
 * GPT-2's own files: encoder.json is the vocabulary, vocab.bpe a merge to a line. */
#include "text/parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The rest of the tokenizer, which the files leave to the program. */
static const char REST[] =
    "{\"version\":\"1.0\",\"added_tokens\":[],\"normalizer\":null,"
    "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,"
    "\"use_regex\":true},\"post_processor\":null,"
    "\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true},"
    "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":null,"
    "\"end_of_word_suffix\":null,\"fuse_unk\":false,\"byte_fallback\":false,\"ignore_merges\":false}}";

static const char END_OF_TEXT[] = "<|endoftext|>";

static json_t *no_memory(const char *path, io_error *error)
{
    io_fail(error, EXIT_INTERNAL, "out of memory for %s", path);
    return NULL;
}

/* A line "a b" to each merge, behind one that begins with #version. */
static int read_lines(json_t *merges, const char *path, const char *text, size_t bytes, io_error *error)
{
    size_t number = 1;
    for (size_t at = 0; at < bytes; number++) {
        const char *line = text + at, *end = memchr(line, '\n', bytes - at);
        size_t length = end ? (size_t)(end - line) : bytes - at;
        at += length + 1;
        if (length && line[length - 1] == '\r') length--;
        if (length == 0 || (number == 1 && length >= 8 && memcmp(line, "#version", 8) == 0)) continue;
        json_t *row = json_stringn(line, length);
        if (!row || memchr(line, 0, length)) {
            json_decref(row);
            return io_fail(error, EXIT_INPUT, "%s: line %zu is not a text in UTF-8", path, number);
        }
        if (json_array_append_new(merges, row))
            return io_fail(error, EXIT_INTERNAL, "out of memory for %s", path);
    }
    return 0;
}

static json_t *read_merges(const char *path, io_error *error)
{
    char *text;
    size_t bytes = 0;
    if (read_whole_file(path, &text, &bytes, error)) return NULL;
    json_t *merges = json_array();
    const int status = merges ? read_lines(merges, path, text, bytes, error)
                              : io_fail(error, EXIT_INTERNAL, "out of memory for %s", path);
    free(text);
    if (!status) return merges;
    json_decref(merges);
    return NULL;
}

static bool add_end(json_t *root, const char *end, const json_t *tokens_by_text)
{
    const json_t *id = json_object_get(tokens_by_text, end);
    if (!json_is_integer(id)) return true;
    json_t *token = json_pack("{s:I,s:s,s:b,s:b,s:b,s:b,s:b}", "id", json_integer_value(id), "content", end,
                              "single_word", 0, "lstrip", 0, "rstrip", 0, "normalized", 0, "special", 1);
    return json_array_append_new(json_object_get(root, "added_tokens"), token) == 0;
}

json_t *json_of_gpt2_files(const char *vocabulary_path, const char *merges_path, io_error *error)
{
    json_t *tokens_by_text = json_of_file(vocabulary_path, error);
    json_t *merges = tokens_by_text ? read_merges(merges_path, error) : NULL;
    json_t *root = merges ? json_loads(REST, 0, NULL) : NULL;
    if (merges && !root) no_memory(vocabulary_path, error);
    bool whole = root && add_end(root, END_OF_TEXT, tokens_by_text);
    json_t *model = json_object_get(root, "model");
    whole = root && json_object_set(model, "vocab", tokens_by_text) == 0 && whole;
    whole = root && json_object_set(model, "merges", merges) == 0 && whole;
    json_decref(tokens_by_text);
    json_decref(merges);
    if (whole) return root;
    json_decref(root);
    return root ? no_memory(vocabulary_path, error) : NULL;
}

json_t *json_of_byte_level(const char *end_of_text)
{
    json_t *root = json_loads(REST, 0, NULL), *vocab = json_pack("{s:i}", end_of_text, 0);
    json_t *model = json_object_get(root, "model");
    bool whole = root && vocab && add_end(root, end_of_text, vocab);
    whole = json_object_set_new(model, "vocab", vocab) == 0 && whole;
    whole = json_object_set_new(model, "merges", json_array()) == 0 && whole;
    if (whole) return root;
    json_decref(root);
    return NULL;
}
