/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "cli/lm/lm.h"

#include "cli/progress.h"
#include "io/json.h"
#include "io/npy.h"
#include "lm/path.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char USAGE[] = "loam lm embed MODEL --text FILE [--out FILE.npy] [options]";
static const char ABOUT[] =
    "Vectors of sentences, one a line of the file: the mean over the tokens of what the last layer makes of "
    "them, of length 1. Without --out it prints the cosine of each with the one before.";

typedef struct embedding {
    lm_session session;
    lm_text *text;
    int64_t width, room;
    int64_t cut; /* sentences that were too long */
    float *rows; /* of a sentence, in host memory */
} embedding;

int lm_mean_row(const lm_model *m, matrix hidden, float *rows, float *out, io_error *error)
{
    const int64_t count = hidden.rows, width = hidden.width;
    const int status = lm_model_fetch(m, rows, hidden, error);
    double norm = 0;
    if (status) return status;
    for (int64_t c = 0; c < width; c++) {
        double sum = 0;
        for (int64_t i = 0; i < count; i++)
            sum += (double)rows[i * width + c];
        out[c] = (float)(sum / (double)count);
        norm += (double)out[c] * (double)out[c];
    }
    for (int64_t c = 0; norm > 0 && c < width; c++)
        out[c] = (float)((double)out[c] / sqrt(norm));
    return 0;
}

/* Tokens that the tokenizer puts behind every text. */
static int count_last(const tokenizer *t, const char *line, size_t bytes, const tokens *whole, int64_t *last,
                      io_error *error)
{
    tokens none = { 0 }, own = { 0 };
    int status = tokenizer_encode(t, "", 0, true, &none, error);
    if (!status) status = tokenizer_encode(t, line, bytes, false, &own, error);
    /* The text's own tokens begin after the first that are put before it. */
    int64_t first = 0;
    while (!status && first < none.count && own.count > 0 &&
           memcmp(whole->id + first, own.id, (size_t)own.count * sizeof *own.id) != 0)
        first++;
    *last = none.count - first;
    tokens_free(&none);
    tokens_free(&own);
    return status;
}

/* A sentence longer than `room` loses words at its end, as in sentence-transformers: what the tokenizer puts
 * behind it stays. */
static int cut_line(embedding *e, const char *line, size_t bytes, tokens *ids, io_error *error)
{
    int64_t last;
    if (ids->count <= e->room) return 0;
    const int status = count_last(e->session.tokens, line, bytes, ids, &last, error);
    if (status) return status;
    if (last > e->room) last = e->room;
    memmove(ids->id + e->room - last, ids->id + ids->count - last, (size_t)last * sizeof *ids->id);
    ids->count = e->room, e->cut++;
    return 0;
}

static int embed_line(embedding *e, const char *line, size_t bytes, float *out, io_error *error)
{
    tokens ids = { 0 };
    matrix hidden;
    int status = tokenizer_encode(e->session.tokens, line, bytes, true, &ids, error);
    if (!status) status = cut_line(e, line, bytes, &ids, error);
    if (!status && ids.count == 0) {
        memset(out, 0, (size_t)e->width * sizeof *out);
    } else if (!status) {
        lm_text_rewind(e->text, 0);
        status = lm_text_read(e->text, ids.id, ids.count, &hidden, error);
        if (!status) status = lm_mean_row(e->session.model, hidden, e->rows, out, error);
    }
    tokens_free(&ids);
    return status;
}

static int64_t count_lines(const char *text, size_t bytes)
{
    int64_t lines = bytes > 0 && text[bytes - 1] != '\n';
    for (size_t i = 0; i < bytes; i++)
        lines += text[i] == '\n';
    return lines;
}

static void print_cosine(const embedding *e, const float *rows, int64_t n)
{
    double cosine = 0;
    for (int64_t c = 0; c < e->width; c++)
        cosine += (double)rows[n * e->width + c] * (double)rows[(n - 1) * e->width + c];
    printf("%lld %.6f\n", (long long)n + 1, cosine);
}

static int embed_lines(embedding *e, const char *text, size_t bytes, const char *out, io_error *error)
{
    const int64_t lines = count_lines(text, bytes), shape[] = { lines, e->width };
    array vectors;
    progress bar;
    if (lines == 0) return io_fail(error, EXIT_INPUT, "--text: no lines");
    int status = array_create(&vectors, LOAM_F32, 2, shape, "the vectors", error);
    if (status) return status;
    progress_begin(&bar, "sentences", lines);
    const char *from = text;
    for (int64_t n = 0; !status && n < lines; n++) {
        const char *const end = memchr(from, '\n', bytes - (size_t)(from - text));
        const size_t count = end ? (size_t)(end - from) : bytes - (size_t)(from - text);
        status = embed_line(e, from, count, (float *)vectors.data + n * e->width, error);
        if (!status && !out && n > 0) print_cosine(e, vectors.data, n);
        from += count + 1;
        progress_add(&bar, 1);
    }
    progress_end(&bar);
    if (!status && out) status = npy_write(out, &vectors, error);
    array_free(&vectors);
    return status;
}

/* How many tokens of a sentence are read: as many as the model does, or max_seq_length of the file that
 * sentence-transformers has for it. */
static int read_room(embedding *e, const char *model, io_error *error)
{
    static const char NAME[] = "sentence_bert_config.json", KEY[] = "max_seq_length";
    struct stat told;
    json_t *root = NULL;
    char *path;
    e->room = lm_model_config(e->session.model)->context;
    int status = lm_path(&path, model, NAME, error);
    if (!status && stat(path, &told) == 0) {
        status = json_object_in(&root, path, error);
        const json_t *value = json_object_get(root, KEY);
        const int64_t most = json_integer_value(value);
        if (!status && value && !json_is_null(value) && (!json_is_integer(value) || most < 1))
            status = io_fail(error, EXIT_INPUT, "%s: '%s': expected a number of tokens", path, KEY);
        if (!status && most > 0 && most < e->room) e->room = most;
        json_decref(root);
    }
    free(path);
    return status;
}

static int embed_file(embedding *e, const char *model, const char *text, size_t bytes, const char *out,
                      io_error *error)
{
    e->width = lm_model_config(e->session.model)->width;
    int status = read_room(e, model, error);
    if (!status && !(e->rows = calloc((size_t)(e->room * e->width), sizeof *e->rows)))
        status = io_fail(error, EXIT_INTERNAL, "out of memory for a sentence");
    if (!status) status = lm_text_open(&e->text, e->session.model, e->room, e->room, error);
    if (!status) status = embed_lines(e, text, bytes, out, error);
    if (!status && e->cut > 0)
        fprintf(stderr, "cut after %lld tokens: %lld of the sentences\n", (long long)e->room,
                (long long)e->cut);
    return status;
}

int lm_embed(int argc, char **argv, io_error *error)
{
    lm_words words = lm_words_default();
    const char *path = NULL, *out = NULL;
    bool help = false;
    const option_row rows[] = {
        { "text", OPTION_TEXT, &path, 0, 0, "FILE", "a sentence a line; - standard input" },
        { "out", OPTION_TEXT, &out, 0, 0, "FILE.npy", "the vectors, [lines][width]" },
        LM_OPTION_ROWS(words),
        { .name = NULL },
    };
    int status = options_parse(&argc, argv, rows, USAGE, ABOUT, &help, error);
    if (status || help) return status;
    if (argc != 2 || !path)
        return io_fail(error, EXIT_USAGE, "expected one model and --text; usage: %s", USAGE);
    embedding e = { 0 };
    char *text = NULL;
    size_t bytes = 0;
    status = lm_text_file(&text, &bytes, path, error);
    if (!status) status = lm_session_open(&e.session, argv[1], &words, error);
    if (!status) status = embed_file(&e, argv[1], text, bytes, out, error);
    lm_text_close(e.text);
    lm_session_close(&e.session);
    free(e.rows);
    free(text);
    return status;
}
