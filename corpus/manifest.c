/* SPDX-License-Identifier: MIT */
#include "corpus/manifest.h"

#include "io/mapped.h"

#include <jansson.h>
#include <stdlib.h>

static const char FORMAT[] = "loam-corpus";
enum { VERSION = 1 };

static int no_memory(io_error *error)
{
    return io_fail(error, EXIT_INTERNAL, "out of memory for the manifest");
}

/* "" for what is not UTF-8, as a path may be: JSON has no other text. */
static json_t *text_of(const char *text)
{
    json_t *json = json_string(text);
    return json ? json : json_string("");
}

/* A value that could not be made makes the object NULL, as json_pack does. */
static void put(json_t **object, const char *key, json_t *value)
{
    if (json_object_set_new(*object, key, value) == 0) return;
    json_decref(*object);
    *object = NULL;
}

static json_t *paragraphs_of(const corpus_source *c)
{
    json_t *dropped = json_object();
    for (int v = PROSE_KEPT + 1; v < PROSE_VERDICTS; v++)
        put(&dropped, prose_verdict_name(v), json_integer(c->paragraphs[v]));
    return json_pack("{s:I, s:o}", "kept", (json_int_t)c->paragraphs[PROSE_KEPT], "dropped", dropped);
}

static json_t *splits_of(const corpus_sum *c)
{
    json_t *splits = json_object();
    for (int split = 0; split < SPLITS; split++) {
        const shard_total *t = &c->total[split];
        put(&splits, corpus_split_name(split),
            json_pack("{s:I, s:I, s:I}", "documents", (json_int_t)t->documents, "bytes", (json_int_t)t->bytes,
                      "tokens", (json_int_t)t->tokens));
    }
    return splits;
}

static json_t *corpus_of(const shards *s, int n)
{
    const corpus_source *c = &s->from->corpora[n];
    const corpus_sum *sum = &s->corpus[n];
    json_t *made = json_pack("{s:s, s:o, s:I, s:I, s:o, s:o, s:s, s:s}", "name", c->name, "path",
                             text_of(c->path), "files", (json_int_t)c->files, "unread", (json_int_t)c->unread,
                             "paragraphs", paragraphs_of(c), "splits", splits_of(sum), "sha256", sum->hex,
                             "held", s->shard[SPLIT_HELD + n].name);
    if (made && c->package) put(&made, "package", text_of(c->package));
    if (made && c->kind >= 0) put(&made, "kind", json_string(text_kind_name(c->kind)));
    return made;
}

static json_t *files_of(const shards *s, const char *tokenizer_sum)
{
    json_t *files = json_pack("{s:{s:s}}", "tokenizer.json", "sha256", tokenizer_sum);
    for (int n = 0; n < s->count; n++)
        put(&files, s->shard[n].name,
            json_pack("{s:I, s:s}", "tokens", (json_int_t)s->shard[n].tokens, "sha256", s->shard[n].hex));
    return files;
}

static json_t *manifest_of(const shards *s, const char *tokenizer_sum)
{
    json_t *corpora = json_array();
    for (int n = 0; n < s->from->count && corpora; n++)
        if (json_array_append_new(corpora, corpus_of(s, n)) != 0) {
            json_decref(corpora);
            corpora = NULL;
        }
    return json_pack("{s:s, s:i, s:I, s:i, s:s, s:I, s:o, s:o}", "format", FORMAT, "version", VERSION,
                     "vocabulary", (json_int_t)tokenizer_size(s->tokenizer), "end_token", s->end, "end_text",
                     s->from->end, "seed", (json_int_t)s->from->seed, "files", files_of(s, tokenizer_sum),
                     "corpora", corpora);
}

static int sum_file(const out_folder *folder, const char *name, char hex[SHA256_HEX], io_error *error)
{
    mapped file = { 0 };
    char *path;
    sha256 sum = sha256_begin();
    int status = out_folder_path(folder, name, &path, error);
    if (!status) status = mapped_open(&file, path, error);
    if (!status && file.bytes > 0) sha256_add(&sum, file.data, (size_t)file.bytes);
    sha256_hex(&sum, hex);
    mapped_close(&file);
    free(path);
    return status;
}

int manifest_write(const shards *s, io_error *error)
{
    char hex[SHA256_HEX], *path = NULL;
    out_file *file = NULL;
    int status = sum_file(s->folder, "tokenizer.json", hex, error);
    if (status) return status;
    json_t *root = manifest_of(s, hex);
    status = root ? out_folder_path(s->folder, "manifest.json", &path, error) : no_memory(error);
    if (!status) status = out_open(&file, path, error);
    if (!status &&
        (json_dumpf(root, out_stream(file), JSON_INDENT(2)) != 0 || fputc('\n', out_stream(file)) == EOF) &&
        !ferror(out_stream(file)))
        status = no_memory(error);
    if (file && status)
        out_discard(file);
    else if (file)
        status = out_commit(file, error);
    free(path);
    json_decref(root);
    return status;
}
