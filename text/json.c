/* SPDX-License-Identifier: MIT
 * tokenizer.json: the file as a whole. What it says and is not known here is refused by name. */
#include "io/in_file.h"
#include "text/parts.h"
#include "text/utf8.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_BYTES_MAX = 1 << 28 };

int reader_fail(const reader *r, const char *format, ...)
{
    char text[400];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return io_fail(r->error, EXIT_INPUT, "%.100s: %s", r->name, text);
}

int reader_no_memory(const reader *r)
{
    return io_fail(r->error, EXIT_INTERNAL, "out of memory for the tokenizer of %s", r->name);
}

/* ---------------------------------------------------------------- members */

int reader_keys(const reader *r, const json_t *object, const char *where, const char *const *keys)
{
    if (!json_is_object(object)) return reader_fail(r, "%s is not an object", where);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, key, value)
    {
        const char *const *known = keys;
        while (*known && strcmp(*known, key) != 0)
            known++;
        if (!*known) return reader_fail(r, "%s has '%.60s', which is not known here", where, key);
    }
    return 0;
}

int reader_flag(const reader *r, const json_t *object, const char *where, const char *key, bool missing,
                bool *out)
{
    const json_t *value = json_object_get(object, key);
    *out = value && !json_is_null(value) ? json_is_true(value) : missing;
    if (!value || json_is_null(value) || json_is_boolean(value)) return 0;
    return reader_fail(r, "%s: %s is neither true nor false", where, key);
}

int reader_text(const reader *r, const json_t *object, const char *where, const char *key,
                const char *missing, char **out)
{
    const json_t *value = json_object_get(object, key);
    const char *text = json_string_value(value);
    *out = NULL;
    if (!text && missing && (!value || json_is_null(value))) text = missing;
    if (!text) return reader_fail(r, "%s: %s is not a text", where, key);
    *out = malloc(strlen(text) + 1);
    if (!*out) return reader_no_memory(r);
    strcpy(*out, text);
    return 0;
}

int reader_pattern(const reader *r, const json_t *object, const char *where, matcher **out)
{
    const json_t *pattern = json_object_get(object, "pattern");
    const char *text = json_string_value(json_object_get(pattern, "String"));
    const char *expression = json_string_value(json_object_get(pattern, "Regex"));
    *out = NULL;
    if (json_object_size(pattern) != 1 || (!text && !expression))
        return reader_fail(r, "%s: the pattern is neither a String nor a Regex", where);
    return matcher_make(out, text ? text : expression, text != NULL, r->name, r->error);
}

const char *reader_type(const reader *r, const json_t *object, const char *where, int *status)
{
    const char *type = json_string_value(json_object_get(object, "type"));
    *status = type ? 0 : reader_fail(r, "%s has no type", where);
    return type;
}

/* ---------------------------------------------------------------- added tokens */

static int by_id(const void *a, const void *b)
{
    const added_token *x = a, *y = b;
    return (x->id > y->id) - (x->id < y->id);
}

/* An added token may be the model's as well, but then the two must agree. */
static int check_added(const tokenizer *t, const reader *r, const added_token *token, int64_t id)
{
    if (token->bytes == 0 || token->bytes > ADDED_BYTES_MAX)
        return reader_fail(r, "an added token has %zu bytes; expected 1 to %d", token->bytes,
                           ADDED_BYTES_MAX);
    if (id < 0 || id > TOKEN_ID_MAX)
        return reader_fail(r, "the added token '%.60s' has the id %lld; expected 0 to %d", token->content,
                           (long long)id, TOKEN_ID_MAX);
    const int32_t model = tokenizer_find_model(t, token->content, token->bytes);
    if (model >= 0 && model != id)
        return reader_fail(r, "the added token '%.60s' has the id %lld, but the model has it as %d",
                           token->content, (long long)id, (int)model);
    if (model < 0 && vocabulary_has(&t->vocabulary, id))
        return reader_fail(r, "the added token '%.60s' has the id %lld, which is another token's",
                           token->content, (long long)id);
    return 0;
}

static int read_added_token(tokenizer *t, const reader *r, const json_t *entry, added_token *token)
{
    static const char *const keys[] = { "id",     "content",    "single_word", "lstrip",
                                        "rstrip", "normalized", "special",     NULL };
    static const char where[] = "an added token";
    int status = reader_keys(r, entry, where, keys);
    if (!status) status = reader_text(r, entry, where, "content", NULL, &token->content);
    if (!status) status = reader_flag(r, entry, where, "special", false, &token->special);
    if (!status) status = reader_flag(r, entry, where, "normalized", !token->special, &token->normalised);
    if (!status) status = reader_flag(r, entry, where, "single_word", false, &token->single_word);
    if (!status) status = reader_flag(r, entry, where, "lstrip", false, &token->left_strip);
    if (!status) status = reader_flag(r, entry, where, "rstrip", false, &token->right_strip);
    if (status) return status;
    token->bytes = strlen(token->content);
    const json_t *id = json_object_get(entry, "id");
    if (!json_is_integer(id)) return reader_fail(r, "the added token '%.60s' has no id", token->content);
    status = check_added(t, r, token, json_integer_value(id));
    token->id = (int32_t)json_integer_value(id);
    return status;
}

/* What is searched for in a normalised text is normalised itself. */
static int normalise_added(tokenizer *t, const reader *r, added_token *token)
{
    const char *wanted = token->content;
    size_t bytes = token->bytes;
    normal_scratch scratch = { 0 };
    match_scratch *matching = match_scratch_make();
    int status = matching ? 0 : reader_no_memory(r);
    if (!status && token->normalised)
        status = normalise(&t->normaliser, &scratch, matching, wanted, bytes, &wanted, &bytes, r->error);
    if (!status) {
        token->wanted = malloc(bytes + 1);
        status = token->wanted ? 0 : reader_no_memory(r);
        if (!status) memcpy(token->wanted, wanted, bytes);
        token->wanted_bytes = bytes;
    }
    normal_scratch_free(&scratch);
    match_scratch_free(matching);
    return status;
}

static int finish_added(tokenizer *t, const reader *r)
{
    qsort(t->added, (size_t)t->added_count, sizeof *t->added, by_id);
    for (int32_t i = 1; i < t->added_count; i++)
        if (t->added[i].id == t->added[i - 1].id)
            return reader_fail(r, "the added tokens '%.60s' and '%.60s' have the same id",
                               t->added[i - 1].content, t->added[i].content);
    for (int i = 0; i < 2; i++) {
        const added_token *twice;
        if (!added_search_make(&t->search[i], t->added, t->added_count, i, &twice))
            return reader_no_memory(r);
        if (twice) return reader_fail(r, "the added token '%.60s' is there twice", twice->content);
    }
    return 0;
}

int read_added(tokenizer *t, const reader *r, const json_t *part)
{
    if (part && !json_is_null(part) && !json_is_array(part))
        return reader_fail(r, "added_tokens is not an array");
    const size_t count = json_array_size(part);
    t->added = calloc(count + 1, sizeof *t->added);
    if (!t->added) return reader_no_memory(r);
    int status = 0;
    for (size_t i = 0; i < count && !status; i++) {
        added_token *token = &t->added[t->added_count++];
        status = read_added_token(t, r, json_array_get(part, i), token);
        if (!status) status = normalise_added(t, r, token);
    }
    return status ? status : finish_added(t, r);
}

/* ---------------------------------------------------------------- the whole */

static int read_parts(tokenizer *t, const reader *r, const json_t *root)
{
    static const char *const keys[] = {
        "version",       "truncation",     "padding", "added_tokens", "normalizer",
        "pre_tokenizer", "post_processor", "decoder", "model",        NULL
    };
    int status = reader_keys(r, root, "the tokenizer", keys);
    const json_t *version = json_object_get(root, "version");
    const char *number = json_string_value(version);
    /* truncation and padding are for batches of texts: who makes a batch decides. */
    if (!status && version && !(number && strcmp(number, "1.0") == 0))
        status = reader_fail(r, "the version is %.20s; expected 1.0", number ? number : "no text");
    if (!status) status = read_normaliser(t, r, json_object_get(root, "normalizer"));
    if (!status) status = read_splitter(t, r, json_object_get(root, "pre_tokenizer"));
    if (!status) status = read_model(t, r, json_object_get(root, "model"));
    if (!status) status = read_added(t, r, json_object_get(root, "added_tokens"));
    if (!status) status = read_decoder(t, r, json_object_get(root, "decoder"));
    if (!status) status = read_post_processor(t, r, json_object_get(root, "post_processor"));
    return status;
}

static int keep_json(tokenizer *t, const reader *r, const json_t *root)
{
    t->json_bytes = json_dumpb(root, NULL, 0, JSON_COMPACT);
    t->json = t->json_bytes ? malloc(t->json_bytes) : NULL;
    if (t->json && json_dumpb(root, t->json, t->json_bytes, JSON_COMPACT) == t->json_bytes) return 0;
    return reader_no_memory(r);
}

static void measure(tokenizer *t)
{
    t->size = t->vocabulary.size;
    if (t->added_count && t->added[t->added_count - 1].id >= t->size)
        t->size = t->added[t->added_count - 1].id + 1;
}

int tokenizer_from_json(tokenizer **made, const json_t *root, const char *name, io_error *error)
{
    const reader r = { name, error };
    *made = NULL;
    tokenizer *t = calloc(1, sizeof *t);
    if (!t) return reader_no_memory(&r);
    int status = read_parts(t, &r, root);
    measure(t);
    if (!status) status = make_decoded(t, &r);
    if (!status) status = keep_json(t, &r, root);
    if (status)
        tokenizer_close(t);
    else
        *made = t;
    return status;
}

int read_whole_file(const char *path, char **text, size_t *bytes, io_error *error)
{
    *text = NULL;
    FILE *stream = in_open(path, error);
    if (!stream) return EXIT_INPUT;
    int64_t size = 0;
    int status = in_size(stream, path, &size, error);
    if (!status && size > FILE_BYTES_MAX)
        status = io_fail(error, EXIT_INPUT, "%s has %lld bytes; expected at most %d", path, (long long)size,
                         FILE_BYTES_MAX);
    if (!status) {
        *bytes = (size_t)size;
        *text = malloc(*bytes + 1);
        status = *text ? in_read(stream, path, *text, *bytes, error)
                       : io_fail(error, EXIT_INTERNAL, "out of memory for %s", path);
    }
    fclose(stream);
    if (status) free(*text);
    return status;
}

json_t *json_of_file(const char *path, io_error *error)
{
    char *text;
    size_t bytes = 0;
    if (read_whole_file(path, &text, &bytes, error)) return NULL;
    json_error_t reason;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &reason);
    free(text);
    /* Without memory jansson gives no reason, or that one. */
    if (!root && (!*reason.text || json_error_code(&reason) == json_error_out_of_memory))
        io_fail(error, EXIT_INTERNAL, "out of memory for %s", path);
    else if (!root)
        io_fail(error, EXIT_INPUT, "%s is not JSON: %.150s", path, reason.text);
    return root;
}
