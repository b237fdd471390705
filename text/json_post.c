/* SPDX-License-Identifier: MIT
 * tokenizer.json: the post_processor, of which tokens around one text remain. */
#include "text/parts.h"

#include <stdlib.h>
#include <string.h>

static const char WHERE[] = "the post_processor";

/* Sequences within sequences. */
enum { NESTING_MAX = 8, AROUND_MAX = 64 };

/* An id and its text, which must be the tokenizer's. */
static int check_token(const tokenizer *t, const reader *r, const json_t *text, const json_t *id)
{
    const char *token = json_string_value(text);
    if (!token || !json_is_integer(id))
        return reader_fail(r, "%s: a special token without text or id", WHERE);
    const int32_t found = tokenizer_find(t, token, strlen(token));
    if (found >= 0 && found == json_integer_value(id)) return 0;
    return reader_fail(r, "%s: the token '%.60s' has the id %lld, but the vocabulary has it as %d", WHERE,
                       token, (long long)json_integer_value(id), (int)found);
}

static int put_token(const reader *r, id_list *list, const json_t *id)
{
    const int32_t value = (int32_t)json_integer_value(id);
    if (list->count == AROUND_MAX) return reader_fail(r, "%s adds more than %d tokens", WHERE, AROUND_MAX);
    ids_put(list, &value, 1);
    return list->failed ? reader_no_memory(r) : 0;
}

/* The tokens that a name of the template stands for. */
static int put_special(const tokenizer *t, const reader *r, const json_t *specials, const char *name,
                       id_list *list)
{
    const json_t *special = json_object_get(specials, name);
    const json_t *ids = json_object_get(special, "ids"), *texts = json_object_get(special, "tokens");
    if (!json_is_array(ids) || json_array_size(ids) != json_array_size(texts))
        return reader_fail(r, "%s: '%.60s' is not among its special_tokens", WHERE, name);
    int status = 0;
    for (size_t i = 0; i < json_array_size(ids) && !status; i++) {
        status = check_token(t, r, json_array_get(texts, i), json_array_get(ids, i));
        if (!status) status = put_token(r, list, json_array_get(ids, i));
    }
    return status;
}

/* Around what stands there already: what comes before the text goes to the front. */
static int wrap(tokenizer *t, const reader *r, id_list *front)
{
    if (front->failed) return reader_no_memory(r);
    ids_put(front, t->before.at, t->before.count);
    if (front->failed || front->count > AROUND_MAX)
        return front->failed ? reader_no_memory(r)
                             : reader_fail(r, "%s adds more than %d tokens", WHERE, AROUND_MAX);
    free(t->before.at);
    t->before = *front;
    *front = (id_list){ 0 };
    return 0;
}

static int read_single(tokenizer *t, const reader *r, const json_t *part, id_list *front)
{
    const json_t *single = json_object_get(part, "single"),
                 *specials = json_object_get(part, "special_tokens");
    bool met = false;
    int status = json_is_array(single) ? 0 : reader_fail(r, "%s: single is not an array", WHERE);
    for (size_t i = 0; i < json_array_size(single) && !status; i++) {
        const json_t *piece = json_array_get(single, i);
        const char *text = json_string_value(json_object_get(json_object_get(piece, "Sequence"), "id"));
        const char *name = json_string_value(json_object_get(json_object_get(piece, "SpecialToken"), "id"));
        if (name)
            status = put_special(t, r, specials, name, met ? &t->after : front);
        else if (!text || strcmp(text, "A") != 0 || met)
            status = reader_fail(r, "%s: single is not one text with tokens around it", WHERE);
        met = met || text;
    }
    return status || met ? status : reader_fail(r, "%s: single has no text", WHERE);
}

static int read_template(tokenizer *t, const reader *r, const json_t *part)
{
    static const char *const keys[] = { "type", "single", "pair", "special_tokens", NULL };
    id_list front = { 0 };
    int status = reader_keys(r, part, WHERE, keys);
    if (!status) status = read_single(t, r, part, &front);
    if (!status) status = wrap(t, r, &front);
    free(front.at);
    return status;
}

/* BertProcessing and RobertaProcessing: cls and sep as [text, id]. */
static int read_cls_sep(tokenizer *t, const reader *r, const json_t *part)
{
    static const char *const keys[] = { "type", "sep", "cls", "trim_offsets", "add_prefix_space", NULL };
    const json_t *cls = json_object_get(part, "cls"), *sep = json_object_get(part, "sep");
    id_list front = { 0 };
    int status = reader_keys(r, part, WHERE, keys);
    if (!status) status = check_token(t, r, json_array_get(cls, 0), json_array_get(cls, 1));
    if (!status) status = check_token(t, r, json_array_get(sep, 0), json_array_get(sep, 1));
    if (!status) status = put_token(r, &front, json_array_get(cls, 1));
    if (!status) status = put_token(r, &t->after, json_array_get(sep, 1));
    if (!status) status = wrap(t, r, &front);
    free(front.at);
    return status;
}

static int read_processor(tokenizer *t, const reader *r, const json_t *part, int depth)
{
    static const char *const byte_level[] = { "type", "add_prefix_space", "trim_offsets", "use_regex", NULL };
    static const char *const sequence[] = { "type", "processors", NULL };
    int status;
    const char *type = reader_type(r, part, WHERE, &status);
    if (status) return status;
    if (strcmp(type, "TemplateProcessing") == 0) return read_template(t, r, part);
    if (strcmp(type, "BertProcessing") == 0 || strcmp(type, "RobertaProcessing") == 0)
        return read_cls_sep(t, r, part);
    /* It moves offsets, which are not reported here. */
    if (strcmp(type, "ByteLevel") == 0) return reader_keys(r, part, WHERE, byte_level);
    if (strcmp(type, "Sequence") != 0) return reader_fail(r, "%s '%.60s' is not known here", WHERE, type);
    status = depth < NESTING_MAX ? reader_keys(r, part, WHERE, sequence)
                                 : reader_fail(r, "%s: too many Sequences in each other", WHERE);
    const json_t *list = json_object_get(part, "processors");
    if (!status && !json_is_array(list)) status = reader_fail(r, "%s: a Sequence without processors", WHERE);
    for (size_t i = 0; i < json_array_size(list) && !status; i++)
        status = read_processor(t, r, json_array_get(list, i), depth + 1);
    return status;
}

int read_post_processor(tokenizer *t, const reader *r, const json_t *part)
{
    return !part || json_is_null(part) ? 0 : read_processor(t, r, part, 0);
}
