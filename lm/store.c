/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "lm/store.h"

#include "io/json.h"
#include "io/mapped.h"
#include "io/safetensors.h"
#include "lm/path.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char ONE[] = "model.safetensors", INDEX[] = "model.safetensors.index.json", MAP[] = "weight_map";

typedef struct shard {
    const char *name; /* within the folder; of the index or ONE */
    char *path;
    safetensors *header;
    mapped file;
} shard;

struct lm_store {
    const char *path;
    gguf *one; /* or */
    shard *shards;
    size_t shard_count;
    json_t *index; /* of several shards: the object that has the map from names to shards */
};

/* ---------------------------------------------------------------- opening */

static int add_shard(lm_store *s, const char *name, io_error *error)
{
    shard *more = realloc(s->shards, (s->shard_count + 1) * sizeof *more);
    if (!more) return io_fail(error, EXIT_INTERNAL, "out of memory for the files of %s", s->path);
    s->shards = more;
    shard *added = &s->shards[s->shard_count++];
    *added = (shard){ .name = name };
    int status = lm_path(&added->path, s->path, name, error);
    if (!status) status = safetensors_open(&added->header, added->path, error);
    return status ? status : mapped_open(&added->file, added->path, error);
}

static const shard *shard_named(const lm_store *s, const char *name)
{
    for (size_t i = 0; i < s->shard_count; i++)
        if (strcmp(s->shards[i].name, name) == 0) return &s->shards[i];
    return NULL;
}

/* One of the index's lines. What it names must lie in the folder itself. */
static int open_line(lm_store *s, const char *index, const char *name, const json_t *value, io_error *error)
{
    const char *file = json_string_value(value);
    if (!file || !*file || strchr(file, '/') || strcmp(file, ".") == 0 || strcmp(file, "..") == 0)
        return io_fail(error, EXIT_INPUT, "%s: '%s' lies in '%.60s'; expected the name of a file beside it",
                       index, name, file ? file : "");
    int status = shard_named(s, file) ? 0 : add_shard(s, file, error);
    safetensors_place place;
    if (!status && !safetensors_find(shard_named(s, file)->header, name, &place))
        status = io_fail(error, EXIT_INPUT, "%s says that '%s' is in %s, but it is not", index, name, file);
    return status;
}

static int open_index(lm_store *s, const char *path, io_error *error)
{
    int status = json_object_in(&s->index, path, error);
    if (status) return status;
    json_t *map = json_object_get(s->index, MAP), *value;
    const char *name;
    if (!json_is_object(map)) return io_fail(error, EXIT_INPUT, "%s has no '%s'", path, MAP);
    json_object_foreach(map, name, value)
    {
        status = open_line(s, path, name, value, error);
        if (status) return status;
    }
    return 0;
}

static int open_folder(lm_store *s, io_error *error)
{
    struct stat told;
    char *one = NULL, *index = NULL;
    int status = lm_path(&one, s->path, ONE, error);
    if (!status) status = lm_path(&index, s->path, INDEX, error);
    if (!status && (stat(one, &told) == 0 || stat(index, &told) != 0))
        status = add_shard(s, ONE, error);
    else if (!status)
        status = open_index(s, index, error);
    free(one);
    free(index);
    return status;
}

int lm_store_open(lm_store **made, const char *path, io_error *error)
{
    struct stat told;
    *made = NULL;
    lm_store *s = calloc(1, sizeof *s);
    if (!s) return io_fail(error, EXIT_INTERNAL, "out of memory for the files of %s", path);
    s->path = path;
    const bool folder = stat(path, &told) == 0 && S_ISDIR(told.st_mode);
    const int status = folder ? open_folder(s, error) : gguf_open(&s->one, path, error);
    if (status)
        lm_store_close(s);
    else
        *made = s;
    return status;
}

void lm_store_close(lm_store *s)
{
    if (!s) return;
    for (size_t i = 0; i < s->shard_count; i++) {
        safetensors_close(s->shards[i].header);
        mapped_close(&s->shards[i].file);
        free(s->shards[i].path);
    }
    free(s->shards);
    json_decref(s->index);
    gguf_close(s->one);
    free(s);
}

/* ---------------------------------------------------------------- arrays */

const gguf *lm_store_gguf(const lm_store *s) { return s->one; }

int64_t lm_store_count(const lm_store *s)
{
    int64_t count = s->one ? gguf_tensors(s->one) : 0;
    for (size_t i = 0; i < s->shard_count; i++)
        count += (int64_t)safetensors_count(s->shards[i].header);
    return count;
}

static const shard *shard_of(const lm_store *s, const char *name)
{
    if (!s->index) return &s->shards[0];
    const char *file = json_string_value(json_object_get(json_object_get(s->index, MAP), name));
    return file ? shard_named(s, file) : NULL;
}

static int place_of(const shard *from, const char *name, const safetensors_place *place, tensor *out,
                    io_error *error)
{
    int type = 0;
    while (type <= TENSOR_F64 && strcmp(place->type, tensor_type_name((tensor_type)type)) != 0)
        type++;
    if (type > TENSOR_F64)
        return io_fail(error, EXIT_INPUT, "%s: tensor '%s' is of type %s; expected F16, BF16, F32 or F64",
                       from->path, name, place->type);
    if (place->bytes > from->file.bytes - place->begin)
        return io_fail(error, EXIT_INPUT, "%s became shorter while it was read", from->path);
    *out = (tensor){ .type = (tensor_type)type, .rank = place->rank, .data = from->file.data + place->begin };
    memcpy(out->shape, place->shape, sizeof out->shape);
    out->count = place->bytes / tensor_block_bytes(out->type);
    return 0;
}

int lm_store_find(const lm_store *s, const char *name, tensor *out, bool *found, io_error *error)
{
    *found = false;
    if (s->one) {
        const int64_t index = gguf_tensor_index(s->one, name);
        *found = index >= 0;
        if (*found) *out = gguf_tensor_at(s->one, index);
        return 0;
    }
    safetensors_place place;
    const shard *from = shard_of(s, name);
    *found = from && safetensors_find(from->header, name, &place);
    return *found ? place_of(from, name, &place, out, error) : 0;
}

void lm_store_forget(const lm_store *s, const void *at, size_t bytes)
{
    if (s->one) gguf_forget(s->one, at, bytes);
    for (size_t i = 0; i < s->shard_count; i++) {
        const mapped *file = &s->shards[i].file;
        const uintptr_t begin = (uintptr_t)file->data, place = (uintptr_t)at;
        if (place >= begin && place - begin < (size_t)file->bytes) mapped_forget(file, at, bytes);
    }
}

int lm_store_each(const lm_store *s, int (*visit)(void *context, gguf_text name), void *context)
{
    int status = 0;
    for (int64_t i = 0; s->one && !status && i < gguf_tensors(s->one); i++)
        status = visit(context, gguf_tensor_name(s->one, i));
    for (size_t i = 0; i < s->shard_count; i++)
        for (const char *name = NULL;
             !status && (name = safetensors_next(s->shards[i].header, name)) != NULL;)
            status = visit(context, (gguf_text){ name, strlen(name) });
    return status;
}
