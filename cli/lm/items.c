/* SPDX-License-Identifier: MIT
 * loam lm items: questions from the held-out text of a corpus. */
#include "cli/lm/lm.h"
#include "corpus/questions.h"
#include "io/json.h"
#include "io/mapped.h"
#include "io/out_file.h"
#include "lm/path.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char USAGE[] = "loam lm items DATA --corpus NAME --kind KIND --out FILE.jsonl [--seed N]";
static const char ABOUT[] =
    "Questions with four choices for loam lm eval --form arc, from the held-out text of a corpus in DATA, a "
    "folder of loam lm data: continuation asks which 16 tokens follow 64, against three others of the same "
    "document; gloss which word a dictionary's entry \"word (part): gloss\" explains.";

static const struct {
    const char *name;
    question_maker *make;
} kinds[] = { { "continuation", questions_of_continuation }, { "gloss", questions_of_glosses } };
enum { KINDS = sizeof kinds / sizeof *kinds };

typedef struct request {
    const char *corpus, *kind, *out;
    int64_t seed;
} request;

static int find_kind(const char *word, int *kind, io_error *error)
{
    for (*kind = 0; *kind < KINDS; ++*kind)
        if (strcmp(word, kinds[*kind].name) == 0) return 0;
    return io_fail(error, EXIT_USAGE, "--kind %s is not known; expected continuation or gloss", word);
}

/* The name of the corpus's held-out file, malloc's, and the end token. */
static int read_manifest(const char *folder, const char *corpus, char **held, int32_t *end, io_error *error)
{
    char *path = NULL;
    json_t *root = NULL;
    const char *file = NULL;
    int status = lm_path(&path, folder, "manifest.json", error);
    if (!status) status = json_object_in(&root, path, error);
    const json_t *corpora = json_object_get(root, "corpora"), *number = json_object_get(root, "end_token");
    for (size_t i = 0; i < json_array_size(corpora); i++) {
        const json_t *c = json_array_get(corpora, i);
        const char *name = json_string_value(json_object_get(c, "name"));
        if (name && strcmp(name, corpus) == 0) file = json_string_value(json_object_get(c, "held"));
    }
    if (!status && !json_is_integer(number))
        status = io_fail(error, EXIT_INPUT, "%s has no number \"end_token\"; expected that of loam lm data",
                         path);
    if (!status && (!file || strchr(file, '/')))
        status = io_fail(error, EXIT_INPUT, "%s has no held-out file of %s; expected one of its corpora",
                         path, corpus);
    if (!status) status = lm_path(held, folder, file, error);
    if (!status) *end = (int32_t)json_integer_value(number);
    json_decref(root);
    free(path);
    return status;
}

static int check_tokens(const question_source *s, const char *path, int64_t bytes, io_error *error)
{
    if (bytes % 2)
        return io_fail(error, EXIT_INPUT, "%s has %lld bytes; expected two a token", path, (long long)bytes);
    for (int64_t n = 0; n < s->count; n++) {
        const int id = s->shard[2 * n] | s->shard[2 * n + 1] << 8;
        if (id >= tokenizer_size(s->tokenizer))
            return io_fail(error, EXIT_INPUT, "%s: token %lld is %d; expected at most %lld", path,
                           (long long)n, id, (long long)tokenizer_size(s->tokenizer) - 1);
    }
    return 0;
}

static int write_questions(const question_source *s, const request *r, int kind, io_error *error)
{
    out_file *out;
    int64_t made = 0;
    int status = out_open(&out, r->out, error);
    if (status) return status;
    status = kinds[kind].make(s, out_stream(out), &made, error);
    if (!status && made == 0)
        status = io_fail(error, EXIT_INPUT,
                         "the %lld held-out tokens of %s make no question; expected more, or "
                         "another --kind",
                         (long long)s->count, r->corpus);
    if (status)
        out_discard(out);
    else
        status = out_commit(out, error);
    if (!status) fprintf(stderr, "%lld questions\n", (long long)made);
    return status;
}

static int make_items(const char *folder, const request *r, int kind, io_error *error)
{
    char *held = NULL;
    mapped file = { 0 };
    tokenizer *t = NULL;
    question_source s = { .seed = (uint64_t)r->seed };
    int status = read_manifest(folder, r->corpus, &held, &s.end, error);
    if (!status) status = tokenizer_open(&t, folder, error);
    if (!status) status = mapped_open(&file, held, error);
    s.tokenizer = t, s.shard = file.data, s.count = file.bytes / 2;
    if (!status) status = check_tokens(&s, held, file.bytes, error);
    if (!status) status = write_questions(&s, r, kind, error);
    mapped_close(&file);
    tokenizer_close(t);
    free(held);
    return status;
}

int lm_make_items(int argc, char **argv, io_error *error)
{
    request r = { 0 };
    bool help = false;
    int kind;
    const option_row rows[] = {
        { "corpus", OPTION_TEXT, &r.corpus, 0, 0, "NAME", "of DATA" },
        { "kind", OPTION_TEXT, &r.kind, 0, 0, "KIND", "continuation or gloss" },
        { "out", OPTION_TEXT, &r.out, 0, 0, "FILE.jsonl", "an object a line; - standard output" },
        { "seed", OPTION_INT, &r.seed, 0, 1e15, "N", "of the choices; default 0" },
        { .name = NULL },
    };
    int status = options_parse(&argc, argv, rows, USAGE, ABOUT, &help, error);
    if (status || help) return status;
    if (argc != 2 || !r.corpus || !r.kind || !r.out)
        return io_fail(error, EXIT_USAGE, "expected DATA, --corpus, --kind and --out; usage: %s", USAGE);
    status = find_kind(r.kind, &kind, error);
    return status ? status : make_items(argv[1], &r, kind, error);
}
