/* SPDX-License-Identifier: MIT */
#include "corpus/shards.h"

#include "corpus/manifest.h"
#include "io/out_file.h"
#include "io/sha256.h"

#include <stdlib.h>
#include <string.h>

/* Of one document while it is encoded. */
typedef struct encoding {
    buffer text, packed; /* packed: the tokens as the file has them */
    int64_t tokens;
    int status;
    io_error error;
} encoding;

static int no_memory(io_error *error) { return io_fail(error, EXIT_INTERNAL, "out of memory for shards"); }

static shard *shard_of(const shards *s, const corpus_document *d)
{
    return &s->shard[d->split == SPLIT_HELD ? (int)SPLIT_HELD + d->corpus : (int)d->split];
}

static int open_shard(shards *s, int n, io_error *error)
{
    shard *to = &s->shard[n];
    char *path = NULL;
    if (n < SPLIT_HELD)
        snprintf(to->name, sizeof to->name, "%s.u16", corpus_split_name(n));
    else
        snprintf(to->name, sizeof to->name, "%s-%.*s.u16", corpus_split_name(SPLIT_HELD), CORPUS_NAME_MAX,
                 s->from->corpora[n - SPLIT_HELD].name);
    to->sum = sha256_begin();
    int status = out_folder_path(s->folder, to->name, &path, error);
    if (!status) status = out_open(&to->file, path, error);
    free(path);
    return status;
}

int shards_open(shards **made, const collection *c, const tokenizer *t, const out_folder *folder,
                io_error *error)
{
    *made = NULL;
    shards *s = calloc(1, sizeof *s);
    if (!s) return no_memory(error);
    *s = (shards){ .from = c, .tokenizer = t, .folder = folder, .count = SPLIT_HELD + c->count };
    s->shard = calloc((size_t)s->count, sizeof *s->shard);
    s->corpus = calloc((size_t)c->count, sizeof *s->corpus);
    int status = s->shard && s->corpus ? 0 : no_memory(error);
    s->end = tokenizer_id(t, c->end);
    if (!status && s->end < 0)
        status = io_fail(error, EXIT_INPUT, "the tokenizer has no token '%s'; expected one to end documents",
                         c->end);
    if (!status && tokenizer_size(t) > SHARD_TOKENS)
        status = io_fail(error, EXIT_INPUT, "the tokenizer has %lld tokens; expected at most %d",
                         (long long)tokenizer_size(t), SHARD_TOKENS);
    for (int i = 0; i < c->count && !status; i++)
        s->corpus[i].sum = sha256_begin();
    for (int n = 0; n < s->count && !status; n++)
        status = open_shard(s, n, error);
    if (status)
        shards_close(s);
    else
        *made = s;
    return status;
}

void shards_close(shards *s)
{
    if (!s) return;
    for (int n = 0; s->shard && n < s->count; n++)
        out_discard(s->shard[n].file);
    free(s->shard);
    free(s->corpus);
    free(s);
}

/* ---------------------------------------------------------------- documents */

static void pack(buffer *out, int32_t id)
{
    const char pair[2] = { (char)(id & 0xff), (char)(id >> 8) };
    buffer_put(out, pair, sizeof pair);
}

static void encode(const shards *s, const corpus_document *d, encoding *e)
{
    tokens ids = { 0 };
    collection_text(s->from, d, &e->text);
    if (e->text.count > 0)
        e->status = tokenizer_encode(s->tokenizer, e->text.at, e->text.count, false, &ids, &e->error);
    for (int64_t i = 0; i < ids.count; i++)
        pack(&e->packed, ids.id[i]);
    pack(&e->packed, s->end);
    e->tokens = ids.count + 1;
    tokens_free(&ids);
    if (!e->status && (e->text.failed || e->packed.failed)) e->status = no_memory(&e->error);
}

static void write_document(shards *s, const corpus_document *d, const encoding *e)
{
    shard *to = shard_of(s, d);
    corpus_sum *sum = &s->corpus[d->corpus];
    shard_total *total = &sum->total[d->split];
    fwrite(e->packed.at, 1, e->packed.count, out_stream(to->file)); /* out_commit checks all writes */
    sha256_add(&to->sum, e->packed.at, e->packed.count);
    to->tokens += e->tokens;
    sha256_add(&sum->sum, e->text.at, e->text.count);
    sha256_add(&sum->sum, "\n", 1);
    total->documents++;
    total->bytes += (int64_t)e->text.count;
    total->tokens += e->tokens;
}

int shards_add(shards *s, size_t first, size_t count, int threads, io_error *error)
{
    int status = 0;
    encoding *all = calloc(count + 1, sizeof *all);
    if (!all) return no_memory(error);
    const corpus_document *const document = s->from->document + first;
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (size_t i = 0; i < count; i++)
        encode(s, &document[i], &all[i]);
    for (size_t i = 0; i < count; i++) {
        if (!status && all[i].status) *error = all[i].error, status = all[i].status;
        if (!status && all[i].text.count > 0) write_document(s, &document[i], &all[i]);
        buffer_free(&all[i].text);
        buffer_free(&all[i].packed);
    }
    free(all);
    return status;
}

int shards_finish(shards *s, io_error *error)
{
    int status = 0;
    for (int n = 0; n < s->count && !status; n++) {
        status = out_commit(s->shard[n].file, error);
        s->shard[n].file = NULL;
        sha256_hex(&s->shard[n].sum, s->shard[n].hex);
    }
    for (int i = 0; i < s->from->count; i++)
        sha256_hex(&s->corpus[i].sum, s->corpus[i].hex);
    return status ? status : manifest_write(s, error);
}

shard_total shards_total(const shards *s, int corpus, corpus_split split)
{
    return s->corpus[corpus].total[split];
}
