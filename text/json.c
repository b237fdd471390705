/* SPDX-License-Identifier: MIT
 * tokenizer.json: the file as a whole. What it says and is not known here is refused by name. */
#include "text/parts.h"

#include <stdlib.h>
#include <string.h>

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

void tokenizer_close(tokenizer *t)
{
    if (!t) return;
    for (int32_t i = 0; i < t->added_count; i++) {
        free(t->added[i].content);
        free(t->added[i].wanted);
    }
    free(t->added);
    added_search_free(&t->search[0]);
    added_search_free(&t->search[1]);
    bpe_free(&t->bpe);
    free(t->wordpiece.prefix);
    normaliser_free(&t->normaliser);
    splitter_free(&t->splitter);
    decoder_free(&t->decoder);
    vocabulary_free(&t->vocabulary);
    free(t->before.at);
    free(t->after.at);
    for (int i = 0; i < 2; i++) {
        buffer_free(&t->decoded[i].bytes);
        free(t->decoded[i].end);
    }
    free(t->json);
    free(t);
}

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
