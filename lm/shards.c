/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "lm/shards.h"

#include "io/in_file.h"
#include "io/json.h"
#include "lm/path.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_WORDS = 1 << 16, MOST_CORPORA = 4096, NAME = 64 };

/* What is being read, and where. */
typedef struct reading {
    lm_shards *to;
    const char *folder;
    char *manifest; /* its path */
    io_error *error;
} reading;

/* A whole number least .. most. */
static int number_of(const reading *r, const json_t *object, const char *key, int64_t least, int64_t most,
                     int64_t *out)
{
    const json_t *value = json_object_get(object, key);
    *out = json_integer_value(value);
    if (json_is_integer(value) && *out >= least && *out <= most) return 0;
    return io_fail(r->error, EXIT_INPUT, "%s: '%s' %s; expected a whole number from %lld to %lld",
                   r->manifest, key, value ? "is another value" : "is missing", (long long)least,
                   (long long)most);
}

/* The bytes of a file, which are little-endian, as numbers. */
static int read_numbers(const reading *r, FILE *stream, const char *path, lm_shard *to, int64_t first)
{
    unsigned char *const bytes = (unsigned char *)(to->tokens + first);
    const int status = in_read(stream, path, bytes, (size_t)(to->count - first) * 2, r->error);
    for (int64_t i = 0; i < to->count - first && !status; i++)
        to->tokens[first + i] = (uint16_t)(bytes[2 * i] | bytes[2 * i + 1] << 8);
    return status;
}

static int check_numbers(const reading *r, const char *path, const lm_shard *shard, int64_t first)
{
    for (int64_t i = first; i < shard->count; i++)
        if (shard->tokens[i] >= r->to->vocabulary)
            return io_fail(r->error, EXIT_INPUT,
                           "%s: token %lld is %d; expected less than the %lld of the "
                           "vocabulary",
                           path, (long long)(i - first), shard->tokens[i], (long long)r->to->vocabulary);
    return 0;
}

/* Room for `first` tokens, then those of the file, of which there are `expected`. */
static int read_file(const reading *r, FILE *stream, const char *path, int64_t first, int64_t expected,
                     lm_shard *to)
{
    int64_t bytes = 0;
    int status = in_size(stream, path, &bytes, r->error);
    if (!status && (bytes % 2 != 0 || bytes / 2 != expected))
        status = io_fail(r->error, EXIT_INPUT, "%s has %lld bytes; expected %lld tokens of 2, as %s says",
                         path, (long long)bytes, (long long)expected, r->manifest);
    if (status) return status;
    to->count = first + expected;
    to->tokens = malloc((size_t)to->count * sizeof *to->tokens + 1);
    if (!to->tokens) return io_fail(r->error, EXIT_INTERNAL, "out of memory for the tokens of %s", path);
    status = read_numbers(r, stream, path, to, first);
    return status ? status : check_numbers(r, path, to, first);
}

static int read_shard(const reading *r, const char *name, int64_t first, int64_t expected, lm_shard *to)
{
    char *path;
    int status = lm_path(&path, r->folder, name, r->error);
    FILE *stream = status ? NULL : in_open(path, r->error);
    if (!status) status = stream ? read_file(r, stream, path, first, expected, to) : r->error->exit_status;
    if (stream) fclose(stream);
    free(path);
    return status;
}

/* ---------------------------------------------------------------- the manifest */

/* What is told of a split of a corpus: in an object of all splits, or beside its name. */
static const json_t *split_of(const json_t *corpus, const char *split)
{
    const json_t *splits = json_object_get(corpus, "splits");
    return json_object_get(splits ? splits : corpus, split);
}

/* Names are parts of the names of files. */
static bool is_name(const char *name)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._+-";
    return name && *name && *name != '.' && strlen(name) <= NAME && strspn(name, allowed) == strlen(name);
}

static int read_held(const reading *r, const json_t *corpus, lm_held *to)
{
    const json_t *held = split_of(corpus, "held");
    const char *name = json_string_value(json_object_get(corpus, "name"));
    char file[NAME + 16];
    int64_t tokens;
    if (!is_name(name))
        return io_fail(r->error, EXIT_INPUT, "%s: a corpus has no 'name' of letters, digits and ._+-",
                       r->manifest);
    int status = number_of(r, held, "tokens", 0, INT32_MAX, &tokens);
    if (!status) status = number_of(r, held, "bytes", tokens > 0, INT64_MAX / 2, &to->bytes);
    if (status || tokens == 0) return status;
    r->to->corpora++;
    to->name = strdup(name);
    if (!to->name) return io_fail(r->error, EXIT_INTERNAL, "out of memory for the names of corpora");
    snprintf(file, sizeof file, "held-%s.u16", name);
    status = read_shard(r, file, 1, tokens, &to->shard);
    if (!status) to->shard.tokens[0] = (uint16_t)r->to->end_token;
    return status;
}

/* The tokens of a split, of all corpora. */
static int tokens_of(const reading *r, const json_t *corpora, const char *split, int64_t *out)
{
    size_t index;
    const json_t *corpus;
    *out = 0;
    json_array_foreach(corpora, index, corpus)
    {
        int64_t tokens;
        const int status = number_of(r, split_of(corpus, split), "tokens", 0, INT32_MAX, &tokens);
        if (status) return status;
        *out += tokens;
    }
    return 0;
}

static int read_split(const reading *r, const json_t *corpora, const char *split, const char *file,
                      lm_shard *to)
{
    int64_t tokens;
    const int status = tokens_of(r, corpora, split, &tokens);
    return status ? status : read_shard(r, file, 0, tokens, to);
}

static int read_all(const reading *r, const json_t *root)
{
    lm_shards *s = r->to;
    const json_t *corpora = json_object_get(root, "corpora");
    int64_t end = 0;
    int status = number_of(r, root, "vocabulary", 2, MOST_WORDS, &s->vocabulary);
    if (!status) status = number_of(r, root, "end_token", 0, s->vocabulary - 1, &end);
    if (!status && (json_array_size(corpora) < 1 || json_array_size(corpora) > MOST_CORPORA))
        status = io_fail(r->error, EXIT_INPUT, "%s: 'corpora' is no list of 1 to %d", r->manifest,
                         MOST_CORPORA);
    if (status) return status;
    s->end_token = (int32_t)end;
    status = read_split(r, corpora, "train", "train.u16", &s->train);
    if (!status) status = read_split(r, corpora, "valid", "valid.u16", &s->valid);
    if (status) return status;
    s->held = calloc(json_array_size(corpora), sizeof *s->held);
    if (!s->held) return io_fail(r->error, EXIT_INTERNAL, "out of memory for %s", r->manifest);
    for (size_t i = 0; !status && i < json_array_size(corpora); i++)
        status = read_held(r, json_array_get(corpora, i), &s->held[s->corpora]);
    return status;
}

/* FNV-1a, a token at a time. */
static uint64_t add_sum(uint64_t sum, const lm_shard *shard)
{
    for (int64_t i = 0; i < shard->count; i++)
        sum = (sum ^ shard->tokens[i]) * 1099511628211u;
    return sum;
}

int lm_shards_open(lm_shards *s, const char *folder, io_error *error)
{
    reading r = { .to = s, .folder = folder, .error = error };
    json_t *root = NULL;
    *s = (lm_shards){ 0 };
    int status = lm_path(&r.manifest, folder, "manifest.json", error);
    if (!status) status = json_object_in(&root, r.manifest, error);
    if (!status) status = read_all(&r, root);
    if (status)
        lm_shards_close(s);
    else
        s->sum = add_sum(add_sum(14695981039346656037u, &s->train), &s->valid);
    json_decref(root);
    free(r.manifest);
    return status;
}

void lm_shards_close(lm_shards *s)
{
    for (int64_t i = 0; i < s->corpora; i++) {
        free(s->held[i].name);
        free(s->held[i].shard.tokens);
    }
    free(s->held);
    free(s->train.tokens);
    free(s->valid.tokens);
    *s = (lm_shards){ 0 };
}
