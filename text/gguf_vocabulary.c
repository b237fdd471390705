/* SPDX-License-Identifier: MIT
 * The vocabulary in a .gguf file: tokens with their types, merges, and the name of a pre-tokenizer. */
#include "io/gguf.h"
#include "text/parts.h"

#include <string.h>

/* Types of tokens, as the format numbers them. */
enum { TYPE_NORMAL = 1, TYPE_UNKNOWN = 2, TYPE_CONTROL = 3, TYPE_USER_DEFINED = 4, TYPE_UNUSED = 5 };

#define BYTE_LEVEL \
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true}"

static const struct {
    const char *name, *pre_tokenizer;
} splits[] = { { "gpt-2", BYTE_LEVEL },
               { "smollm", "{\"type\":\"Sequence\",\"pretokenizers\":["
                           "{\"type\":\"Digits\",\"individual_digits\":true}," BYTE_LEVEL "]}" } };

typedef struct words {
    const gguf *file;
    const char *path;
    io_error *error;
    json_t *vocab, *merges, *added;
    json_t *beginning; /* of every text, or NULL: a token's text and id */
} words;

static int no_memory(const words *w)
{
    return io_fail(w->error, EXIT_INTERNAL, "out of memory for the vocabulary of %s", w->path);
}

/* A text as JSON has it; NULL where it is none. */
static json_t *json_of_text(gguf_text text)
{
    return text.bytes == 0 || memchr(text.at, 0, text.bytes) ? NULL : json_stringn(text.at, text.bytes);
}

static int add_special(words *w, const char *text, int64_t id, int type)
{
    if (type == TYPE_NORMAL || type == TYPE_UNKNOWN || type == TYPE_UNUSED) return 0;
    if (type != TYPE_CONTROL && type != TYPE_USER_DEFINED)
        return io_fail(w->error, EXIT_INPUT, "%s: token %lld is of type %d, which is not known here", w->path,
                       (long long)id, type);
    json_t *token = json_pack("{s:I,s:s,s:b,s:b,s:b,s:b,s:b}", "id", (json_int_t)id, "content", text,
                              "single_word", 0, "lstrip", 0, "rstrip", 0, "normalized", 0, "special",
                              type == TYPE_CONTROL);
    return json_array_append_new(w->added, token) ? no_memory(w) : 0;
}

static int read_token(words *w, int64_t id, gguf_text text, double type)
{
    json_t *token = json_of_text(text);
    if (!token)
        return io_fail(w->error, EXIT_INPUT, "%s: token %lld is not a text in UTF-8", w->path, (long long)id);
    const char *key = json_string_value(token);
    int status = 0;
    if (json_object_get(w->vocab, key))
        status = io_fail(w->error, EXIT_INPUT, "%s: the token '%.60s' is there twice", w->path, key);
    else if (!(type >= TYPE_NORMAL && type <= 6))
        status = io_fail(w->error, EXIT_INPUT, "%s: token %lld has no type from 1 to 6", w->path,
                         (long long)id);
    else if (json_object_set_new(w->vocab, key, json_integer(id)))
        status = no_memory(w);
    else
        status = add_special(w, key, id, (int)type);
    json_decref(token);
    return status;
}

static int read_tokens(words *w)
{
    gguf_array texts, types;
    int status = gguf_strings(w->file, "tokenizer.ggml.tokens", &texts, w->error);
    if (!status) status = gguf_numbers(w->file, "tokenizer.ggml.token_type", &types, w->error);
    if (!status && texts.count != types.count)
        status = io_fail(w->error, EXIT_INPUT, "%s has %lld tokens, but types of %lld", w->path,
                         (long long)texts.count, (long long)types.count);
    if (!status && texts.count > TOKEN_ID_MAX)
        status = io_fail(w->error, EXIT_INPUT, "%s has %lld tokens; expected at most %d", w->path,
                         (long long)texts.count, TOKEN_ID_MAX);
    const int64_t count = status ? 0 : texts.count;
    for (int64_t id = 0; id < count && !status; id++)
        status = read_token(w, id, gguf_next_string(&texts), gguf_next_number(&types));
    return status;
}

static int read_merges(words *w)
{
    gguf_array texts;
    int status = gguf_strings(w->file, "tokenizer.ggml.merges", &texts, w->error);
    const int64_t count = status ? 0 : texts.count;
    for (int64_t i = 0; i < count && !status; i++) {
        json_t *merge_text = json_of_text(gguf_next_string(&texts));
        if (!merge_text)
            status = io_fail(w->error, EXIT_INPUT, "%s: merge %lld is not a text in UTF-8", w->path,
                             (long long)i);
        else if (json_array_append_new(w->merges, merge_text))
            status = no_memory(w);
    }
    return status;
}

/* A switch that may be missing, and is off then. */
static int read_switch(const words *w, const char *key, int64_t *value)
{
    *value = 0;
    return gguf_has(w->file, key) ? gguf_integer(w->file, key, value, w->error) : 0;
}

static int read_beginning(words *w)
{
    int64_t begins, ends, prefix, id = 0;
    int status = read_switch(w, "tokenizer.ggml.add_bos_token", &begins);
    if (!status) status = read_switch(w, "tokenizer.ggml.add_eos_token", &ends);
    if (!status) status = read_switch(w, "tokenizer.ggml.add_space_prefix", &prefix);
    if (!status && (ends || prefix))
        status = io_fail(w->error, EXIT_INPUT, "%s: tokenizer.ggml.%s is not known here", w->path,
                         ends ? "add_eos_token" : "add_space_prefix");
    if (!status && begins) status = gguf_integer(w->file, "tokenizer.ggml.bos_token_id", &id, w->error);
    if (status || !begins) return status;
    const char *text;
    json_t *value;
    json_object_foreach(w->vocab, text, value)
    {
        if (json_integer_value(value) != id) continue;
        w->beginning = json_pack("[s,I]", text, (json_int_t)id);
        return w->beginning ? 0 : no_memory(w);
    }
    return io_fail(w->error, EXIT_INPUT, "%s: tokenizer.ggml.bos_token_id is %lld, which no token has",
                   w->path, (long long)id);
}

static bool is(gguf_text text, const char *word)
{
    return text.bytes == strlen(word) && memcmp(text.at, word, text.bytes) == 0;
}

static int read_names(const words *w, const char **pre_tokenizer)
{
    gguf_text model, pre;
    int status = gguf_string(w->file, "tokenizer.ggml.model", &model, w->error);
    if (!status && !is(model, "gpt2"))
        status = io_fail(w->error, EXIT_INPUT, "%s: tokenizer.ggml.model is '%.*s', expected 'gpt2'", w->path,
                         (int)(model.bytes < 60 ? model.bytes : 60), model.at);
    if (!status) status = gguf_string(w->file, "tokenizer.ggml.pre", &pre, w->error);
    if (status) return status;
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++)
        if (is(pre, splits[i].name)) {
            *pre_tokenizer = splits[i].pre_tokenizer;
            return 0;
        }
    return io_fail(w->error, EXIT_INPUT, "%s: tokenizer.ggml.pre is '%.*s', expected 'gpt-2' or 'smollm'",
                   w->path, (int)(pre.bytes < 60 ? pre.bytes : 60), pre.at);
}

static json_t *template_of(const json_t *beginning)
{
    const char *text = json_string_value(json_array_get(beginning, 0));
    return json_pack("{s:s,s:[{s:{s:s,s:i}},{s:{s:s,s:i}}],s:[{s:{s:s,s:i}},{s:{s:s,s:i}},{s:{s:s,s:i}}],"
                     "s:{s:{s:s,s:[O],s:[s]}}}",
                     "type", "TemplateProcessing", "single", "SpecialToken", "id", text, "type_id", 0,
                     "Sequence", "id", "A", "type_id", 0, "pair", "SpecialToken", "id", text, "type_id", 0,
                     "Sequence", "id", "A", "type_id", 0, "Sequence", "id", "B", "type_id", 1,
                     "special_tokens", text, "id", text, "ids", json_array_get(beginning, 1), "tokens", text);
}

static json_t *put_together(const words *w, const char *pre_tokenizer)
{
    json_t *post = w->beginning ? template_of(w->beginning) : json_null();
    json_t *split = json_loads(pre_tokenizer, 0, NULL), *back = json_loads(BYTE_LEVEL, 0, NULL);
    json_t *root = json_pack("{s:s,s:O,s:n,s:o,s:o,s:o,s:{s:s,s:n,s:n,s:n,s:n,s:b,s:b,s:b,s:O,s:O}}",
                             "version", "1.0", "added_tokens", w->added, "normalizer", "pre_tokenizer", split,
                             "post_processor", post, "decoder", back, "model", "type", "BPE", "dropout",
                             "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0,
                             "byte_fallback", 0, "ignore_merges", 0, "vocab", w->vocab, "merges", w->merges);
    if (!root) no_memory(w);
    return root;
}

static json_t *json_of_words(words *w)
{
    const char *pre_tokenizer = NULL;
    w->vocab = json_object(), w->merges = json_array(), w->added = json_array();
    int status = w->vocab && w->merges && w->added ? 0 : no_memory(w);
    if (!status) status = read_names(w, &pre_tokenizer);
    if (!status) status = read_tokens(w);
    if (!status) status = read_merges(w);
    if (!status) status = read_beginning(w);
    json_t *root = status ? NULL : put_together(w, pre_tokenizer);
    json_decref(w->vocab);
    json_decref(w->merges);
    json_decref(w->added);
    json_decref(w->beginning);
    return root;
}

json_t *json_of_gguf(const char *path, io_error *error)
{
    gguf *file = NULL;
    if (gguf_open(&file, path, error)) return NULL;
    words w = { .file = file, .path = path, .error = error };
    json_t *root = json_of_words(&w);
    gguf_close(file);
    return root;
}
