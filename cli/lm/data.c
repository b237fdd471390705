/* SPDX-License-Identifier: MIT
 * loam lm data: texts to shards of tokens. */
#define _POSIX_C_SOURCE 200809L
#include "cli/lm/lm.h"
#include "cli/progress.h"
#include "corpus/paths.h"
#include "corpus/shards.h"
#include "text/parts.h"
#include "text/train_bpe.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char USAGE[] = "loam lm data NAME[:KIND]=PATH .. --out OUT [options]";
static const char ABOUT[] =
    "Prose from files, as tokens to train on and held-out text to measure with, in the folder OUT, which "
    "appears whole or not at all. PATH is a file or a folder. The ending of a file says its kind, .html, "
    ".txt, .pod or .dictionary; others in a folder are passed over, and with KIND all but those of that "
    "kind. A file that is PATH itself is read as KIND whatever its name.";

enum { VOCABULARY = 16384, NAME_BYTES = 64, BATCH = 256 };

typedef struct request {
    const char *out, *tokenizer, *end, *packages;
    int64_t vocabulary, seed, threads;
    out_folder folder;
    collection texts;
    tokenizer *tokens;
    shards *shards;
} request;

/* ---------------------------------------------------------------- arguments */

static bool is_name(const char *text, size_t bytes)
{
    static const char signs[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-";
    return bytes > 0 && bytes < NAME_BYTES && strspn(text, signs) >= bytes;
}

/* Cuts "NAME[:KIND]=PATH" at its signs. */
static int read_argument(corpus_source *c, char *argument, io_error *error)
{
    char *const path = strchr(argument, '=');
    if (!path || !path[1])
        return io_fail(error, EXIT_USAGE, "'%s' names no corpus; expected NAME=PATH or NAME:KIND=PATH",
                       argument);
    *path = 0;
    char *const kind = strchr(argument, ':');
    if (kind) *kind = 0;
    *c = (corpus_source){ .name = argument, .path = path + 1, .kind = -1 };
    if (!is_name(argument, strlen(argument)))
        return io_fail(error, EXIT_USAGE,
                       "the name of a corpus is '%s'; expected 1 to 63 letters, digits, '_', '.' or '-'",
                       argument);
    for (int i = 0; kind && c->kind < 0 && text_kind_name(i); i++)
        if (strcmp(kind + 1, text_kind_name(i)) == 0) c->kind = i;
    if (kind && c->kind < 0)
        return io_fail(error, EXIT_USAGE, "the kind of %s is '%s'; expected html, txt, pod or dictionary",
                       argument, kind + 1);
    return 0;
}

static corpus_source *find_corpus(const request *r, const char *name, int count)
{
    for (int i = 0; i < count; i++)
        if (strcmp(r->texts.corpora[i].name, name) == 0) return &r->texts.corpora[i];
    return NULL;
}

/* "NAME=TEXT,..", cut in place. */
static int read_packages(request *r, char *list, io_error *error)
{
    char *rest = NULL;
    for (char *word = strtok_r(list, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
        char *const sign = strchr(word, '=');
        if (sign) *sign = 0;
        corpus_source *const c = sign ? find_corpus(r, word, r->texts.count) : NULL;
        if (!c)
            return io_fail(error, EXIT_USAGE,
                           "--packages: '%s'; expected CORPUS=PACKAGE,.. with corpora named "
                           "before",
                           word);
        c->package = sign + 1;
    }
    return 0;
}

static int read_arguments(request *r, int count, char **argument, io_error *error)
{
    r->texts.corpora = calloc((size_t)count + 1, sizeof *r->texts.corpora);
    if (!r->texts.corpora) return io_fail(error, EXIT_INTERNAL, "out of memory for corpora");
    for (int i = 0; i < count; i++) {
        const int status = read_argument(&r->texts.corpora[i], argument[i], error);
        if (status) return status;
        if (find_corpus(r, argument[i], i))
            return io_fail(error, EXIT_USAGE, "two corpora are called %s; expected a name for each",
                           argument[i]);
    }
    r->texts.count = count;
    r->texts.seed = (uint64_t)r->seed;
    r->texts.end = r->end;
    return 0;
}

/* ---------------------------------------------------------------- reading */

/* A file that is named has the kind that is named; in a folder that says which files are taken. */
static int kind_of(const corpus_source *c, const paths *files, size_t n)
{
    const int kind = text_kind_of(files->at[n]);
    if (c->kind < 0 || !files->folder) return c->kind < 0 ? kind : c->kind;
    return kind == c->kind ? kind : -1;
}

static int read_file(request *r, int corpus, const paths *files, size_t n, io_error *error)
{
    corpus_source *const c = &r->texts.corpora[corpus];
    const int kind = kind_of(c, files, n);
    if (kind < 0) {
        c->unread++;
        return 0;
    }
    char *text = NULL, *path = paths_join(files, c->path, n);
    size_t bytes = 0;
    int status = path ? read_whole_file(path, &text, &bytes, error)
                      : io_fail(error, EXIT_INTERNAL, "out of memory for the path of %s", files->at[n]);
    if (!status) {
        status = collection_add(&r->texts, corpus, (text_kind)kind, files->at[n], text, bytes, error);
        free(text);
    }
    free(path);
    return status;
}

static int read_corpus(request *r, int n, io_error *error)
{
    corpus_source *const c = &r->texts.corpora[n];
    paths files;
    progress bar;
    int status = paths_find(&files, c->path, error);
    progress_begin(&bar, c->name, (int64_t)files.count);
    for (size_t i = 0; i < files.count && !status; i++) {
        status = read_file(r, n, &files, i, error);
        progress_add(&bar, 1);
    }
    progress_end(&bar);
    if (!status && c->paragraphs[PROSE_KEPT] == 0)
        status = io_fail(
            error, EXIT_INPUT,
            "%s: %lld files read, %lld passed over by their endings, and no prose found; expected "
            "some in files of .html, .txt, .pod or .dictionary",
            c->path, (long long)c->files, (long long)c->unread);
    paths_free(&files);
    return status;
}

/* ---------------------------------------------------------------- tokens */

static int add_texts(const request *r, bpe_trainer *trainer, io_error *error)
{
    progress bar;
    buffer text = { 0 };
    bool any = false;
    int status = 0;
    progress_begin(&bar, "words", (int64_t)r->texts.documents);
    for (size_t i = 0; i < r->texts.documents && !status; i++) {
        const corpus_document *d = &r->texts.document[i];
        text.count = 0;
        if (d->split == SPLIT_TRAIN) collection_text(&r->texts, d, &text);
        if (text.failed) status = io_fail(error, EXIT_INTERNAL, "out of memory for a document");
        if (!status) status = bpe_trainer_add(trainer, text.at, text.count, error);
        any = any || text.count > 0;
        progress_add(&bar, 1);
    }
    progress_end(&bar);
    buffer_free(&text);
    if (!status && !any)
        status = io_fail(error, EXIT_INPUT,
                         "no text is left to train a tokenizer on; expected more documents, or --tokenizer");
    return status;
}

/* A tokenizer of the training text alone, or the one that was brought. */
static int make_tokenizer(request *r, io_error *error)
{
    bpe_trainer *trainer = NULL;
    char *path = NULL;
    int status = 0;
    if (!r->tokens) {
        status = bpe_trainer_make(&trainer, r->end, error);
        if (!status) status = add_texts(r, trainer, error);
        if (!status) status = bpe_trainer_finish(trainer, r->vocabulary, &r->tokens, error);
    }
    if (!status) status = out_folder_path(&r->folder, "tokenizer.json", &path, error);
    if (!status) status = tokenizer_write(r->tokens, path, error);
    free(path);
    bpe_trainer_free(trainer);
    return status;
}

static int write_shards(request *r, io_error *error)
{
    progress bar;
    const size_t documents = r->texts.documents;
    int status = shards_open(&r->shards, &r->texts, r->tokens, &r->folder, error);
    progress_begin(&bar, "tokens", (int64_t)documents);
    for (size_t i = 0; i < documents && !status; i += BATCH) {
        const size_t count = documents - i < BATCH ? documents - i : BATCH;
        status = shards_add(r->shards, i, count, (int)r->threads, error);
        progress_add(&bar, (int64_t)count);
    }
    progress_end(&bar);
    return status ? status : shards_finish(r->shards, error);
}

/* ---------------------------------------------------------------- the command */

static void print_summary(const request *r)
{
    shard_total all[SPLITS] = { 0 };
    printf("%-20s %7s %9s %9s %9s %9s %9s\n", "corpus", "files", "kept", "dropped", "MB", "tokens",
           "held out");
    for (int n = 0; n < r->texts.count; n++) {
        const corpus_source *c = &r->texts.corpora[n];
        int64_t dropped = 0, bytes = 0, ids = 0;
        for (int v = PROSE_KEPT + 1; v < PROSE_VERDICTS; v++)
            dropped += c->paragraphs[v];
        for (int split = 0; split < SPLITS; split++) {
            const shard_total t = shards_total(r->shards, n, (corpus_split)split);
            bytes += t.bytes, ids += t.tokens;
            all[split].documents += t.documents, all[split].bytes += t.bytes, all[split].tokens += t.tokens;
        }
        printf("%-20s %7lld %9lld %9lld %9.2f %9lld %9lld\n", c->name, (long long)c->files,
               (long long)c->paragraphs[PROSE_KEPT], (long long)dropped, (double)bytes / 1e6, (long long)ids,
               (long long)shards_total(r->shards, n, SPLIT_HELD).tokens);
    }
    for (int n = 0; n < r->texts.count; n++)
        if (shards_total(r->shards, n, SPLIT_HELD).documents == 0)
            fprintf(stderr, "loam lm data: nothing of %s is held out; another --seed may do it\n",
                    r->texts.corpora[n].name);
    printf("\n%s: %lld tokens in the vocabulary\n", r->out, (long long)tokenizer_size(r->tokens));
    for (int split = 0; split < SPLITS; split++)
        printf("%-6s %9lld documents %9.2f MB %9lld tokens\n", corpus_split_name(split),
               (long long)all[split].documents, (double)all[split].bytes / 1e6, (long long)all[split].tokens);
}

static int make_data(request *r, io_error *error)
{
    int status = r->tokenizer ? tokenizer_open(&r->tokens, r->tokenizer, error) : 0;
    if (!status) status = out_folder_open(&r->folder, r->out, error);
    for (int n = 0; n < r->texts.count && !status; n++)
        status = read_corpus(r, n, error);
    if (!status) status = collection_separate(&r->texts, error);
    if (!status) status = make_tokenizer(r, error);
    if (!status) status = write_shards(r, error);
    status = out_folder_end(&r->folder, status, error);
    if (!status) print_summary(r);
    return status;
}

int lm_data(int argc, char **argv, io_error *error)
{
    request r = { .end = "<|endoftext|>", .vocabulary = VOCABULARY, .threads = omp_get_max_threads() };
    bool help = false;
    const option_row rows[] = {
        { "out", OPTION_TEXT, &r.out, 0, 0, "OUT", "the folder, new or empty" },
        { "vocabulary", OPTION_INT, &r.vocabulary, 257, SHARD_TOKENS, "N",
          "tokens that byte-level BPE is trained to; default 16384" },
        { "tokenizer", OPTION_TEXT, &r.tokenizer, 0, 0, "PATH",
          "instead: tokenizer.json, a folder or .gguf, of at most 65536 tokens" },
        { "end", OPTION_TEXT, &r.end, 0, 0, "TEXT", "the token behind a document; default <|endoftext|>" },
        { "packages", OPTION_TEXT, &r.packages, 0, 0, "NAME=TEXT,..",
          "what corpora come from, for the manifest" },
        { "seed", OPTION_INT, &r.seed, 0, 1e15, "N", "of the split of documents; default 0" },
        { "threads", OPTION_INT, &r.threads, 1, 4096, "N", "default: all" },
        { .name = NULL },
    };
    int status = options_parse(&argc, argv, rows, USAGE, ABOUT, &help, error);
    if (status || help) return status;
    if (argc < 2 || !r.out)
        return io_fail(error, EXIT_USAGE, "expected NAME=PATH and --out; usage: %s", USAGE);
    char *packages = strdup(r.packages ? r.packages : "");
    status = packages ? read_arguments(&r, argc - 1, argv + 1, error)
                      : io_fail(error, EXIT_INTERNAL, "out of memory for names");
    if (!status) status = read_packages(&r, packages, error);
    if (!status) status = make_data(&r, error);
    shards_close(r.shards);
    tokenizer_close(r.tokens);
    free(r.texts.corpora);
    collection_free(&r.texts);
    free(packages);
    return status;
}
