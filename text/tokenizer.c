/* SPDX-License-Identifier: MIT
 * Opening, encoding, writing. A text is repaired, cut at added tokens, normalised, cut at added tokens of
 * normalised texts, cut into pieces, and each piece encoded by the model. */
#define _POSIX_C_SOURCE 200809L
#include "text/tokenizer.h"

#include "io/out_file.h"
#include "text/parts.h"
#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---------------------------------------------------------------- opening */

static bool is_folder(const char *path)
{
    struct stat status;
    return stat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

static char *path_in(const char *folder, const char *name)
{
    char *path = malloc(strlen(folder) + strlen(name) + 2);
    if (path) sprintf(path, "%s/%s", folder, name);
    return path;
}

static bool exists(const char *path)
{
    struct stat status;
    return path && stat(path, &status) == 0;
}

static bool ends_with(const char *path, const char *end)
{
    const size_t length = strlen(path), tail = strlen(end);
    return length >= tail && strcmp(path + length - tail, end) == 0;
}

static json_t *json_of_folder(const char *folder, io_error *error)
{
    char *whole = path_in(folder, "tokenizer.json"), *tokens_of_gpt2 = path_in(folder, "encoder.json");
    char *merges = path_in(folder, "vocab.bpe");
    json_t *root = NULL;
    if (!whole || !tokens_of_gpt2 || !merges)
        io_fail(error, EXIT_INTERNAL, "out of memory for the tokenizer of %s", folder);
    else if (!exists(whole) && exists(tokens_of_gpt2) && exists(merges))
        root = json_of_gpt2_files(tokens_of_gpt2, merges, error);
    else if (exists(whole))
        root = json_of_file(whole, error);
    else
        io_fail(error, EXIT_INPUT, "%s has neither tokenizer.json nor encoder.json and vocab.bpe", folder);
    free(whole);
    free(tokens_of_gpt2);
    free(merges);
    return root;
}

int tokenizer_open(tokenizer **made, const char *path, io_error *error)
{
    io_error own;
    io_error *e = error ? error : &own;
    *made = NULL;
    json_t *root = is_folder(path)            ? json_of_folder(path, e)
                   : ends_with(path, ".gguf") ? json_of_gguf(path, e)
                                              : json_of_file(path, e);
    if (!root) return e->exit_status;
    const int status = tokenizer_from_json(made, root, path, e);
    json_decref(root);
    return status;
}

int64_t tokenizer_size(const tokenizer *t) { return t->size; }

int32_t tokenizer_id(const tokenizer *t, const char *text) { return tokenizer_find(t, text, strlen(text)); }

int tokenizer_write(const tokenizer *t, const char *path, io_error *error)
{
    out_file *file = NULL;
    const int status = out_open(&file, path, error);
    if (status) return status;
    fwrite(t->json, 1, t->json_bytes, out_stream(file));
    fputc('\n', out_stream(file));
    return out_commit(file, error);
}

/* ---------------------------------------------------------------- pieces met before */

enum { KEPT_BYTES = 15, KEPT_TOKENS = 3, KEPT_MIN = 64, KEPT_MAX = 1 << 15 };

/* A short piece with its tokens; its length is the last byte of the key. Most pieces of a text come again. */
typedef struct kept_piece {
    uint64_t key[2];
    int32_t count;
    int32_t id[KEPT_TOKENS];
} kept_piece;

typedef struct encoding {
    const tokenizer *tokenizer;
    kept_piece *kept; /* one place for each hash: the last piece stays */
    size_t kept_mask;
    match_scratch *matching;
    normal_scratch normal;
    piece_scratch pieces;
    bpe_scratch bpe;
    buffer repaired;
    id_list out;
    io_error *error;
} encoding;

static void make_key(const char *piece, size_t bytes, uint64_t key[2])
{
    char text[16] = { 0 };
    memcpy(text, piece, bytes);
    text[KEPT_BYTES] = (char)bytes;
    memcpy(key, text, sizeof text);
}

static kept_piece *kept_place(const encoding *e, const uint64_t key[2])
{
    uint64_t hash = (key[0] ^ key[1] * 0x9e3779b97f4a7c15u) * 0xff51afd7ed558ccdu;
    return &e->kept[(hash ^ hash >> 32) & e->kept_mask];
}

static int encode_part(encoding *e, const char *part, size_t bytes)
{
    const tokenizer *t = e->tokenizer;
    const bool done = t->is_bpe ? bpe_encode(&t->bpe, &e->bpe, part, bytes, &e->out)
                                : wordpiece_encode(&t->wordpiece, part, bytes, &e->out);
    return done ? 0 : io_fail(e->error, EXIT_INTERNAL, "out of memory for the tokens of a text");
}

static int encode_kept(encoding *e, const char *part, size_t bytes)
{
    uint64_t key[2];
    make_key(part, bytes, key);
    kept_piece *place = kept_place(e, key);
    if (place->key[0] == key[0] && place->key[1] == key[1]) {
        if (!ids_reserve(&e->out, KEPT_TOKENS))
            return io_fail(e->error, EXIT_INTERNAL, "out of memory for the tokens of a text");
        memcpy(e->out.at + e->out.count, place->id, sizeof place->id);
        e->out.count += (size_t)place->count;
        return 0;
    }
    const size_t before = e->out.count;
    const int status = encode_part(e, part, bytes);
    const size_t count = e->out.count - before;
    if (status || count > KEPT_TOKENS) return status;
    *place = (kept_piece){ { key[0], key[1] }, (int32_t)count, { 0 } };
    memcpy(place->id, e->out.at + before, count * sizeof *place->id);
    return 0;
}

static int encode_piece(void *context, const char *piece, size_t bytes, io_error *error)
{
    (void)error;
    encoding *e = context;
    int status = 0;
    for (size_t at = 0, end; at < bytes && !status; at = end) {
        end = bytes - at <= KEPT_BYTES || !e->tokenizer->is_bpe
                  ? bytes
                  : bpe_part_end(&e->tokenizer->bpe, piece, at, bytes);
        status = end - at <= KEPT_BYTES ? encode_kept(e, piece + at, end - at)
                                        : encode_part(e, piece + at, end - at);
    }
    return status;
}

/* ---------------------------------------------------------------- encoding */

typedef int text_part(encoding *e, const char *text, size_t bytes, bool first);

/* What lies between added tokens goes to `rest`. */
static int cut_at_added(encoding *e, const added_search *search, const char *text, size_t bytes, bool first,
                        text_part *rest)
{
    size_t done = 0, from = 0, begin, end;
    const added_token *found;
    int status = 0;
    while (!status && (found = added_next(search, text, bytes, done, &from, &begin, &end)) != NULL) {
        if (begin > done) status = rest(e, text + done, begin - done, first && done == 0);
        ids_put(&e->out, &found->id, 1);
        done = end;
    }
    if (!status && done < bytes) status = rest(e, text + done, bytes - done, first && done == 0);
    return status;
}

static int encode_normal(encoding *e, const char *text, size_t bytes, bool first)
{
    return splitter_cut(&e->tokenizer->splitter, &e->pieces, e->matching, text, bytes, first, encode_piece, e,
                        e->error);
}

static int encode_raw(encoding *e, const char *text, size_t bytes, bool first)
{
    const tokenizer *t = e->tokenizer;
    const int status = normalise(&t->normaliser, &e->normal, e->matching, text, bytes, &text, &bytes,
                                 e->error);
    return status ? status : cut_at_added(e, &t->search[1], text, bytes, first, encode_normal);
}

static int encode_all(encoding *e, const char *text, size_t bytes, bool special)
{
    const tokenizer *t = e->tokenizer;
    if (!utf8_is_valid(text, bytes)) {
        utf8_repair(&e->repaired, text, bytes);
        if (e->repaired.failed) return io_fail(e->error, EXIT_INTERNAL, "out of memory for a text");
        text = e->repaired.at, bytes = e->repaired.count;
    }
    if (special) ids_put(&e->out, t->before.at, t->before.count);
    const int status = cut_at_added(e, &t->search[0], text, bytes, true, encode_raw);
    if (special) ids_put(&e->out, t->after.at, t->after.count);
    return status || !e->out.failed
               ? status
               : io_fail(e->error, EXIT_INTERNAL, "out of memory for the tokens of a text");
}

static int begin_encoding(encoding *e, size_t bytes)
{
    size_t places = KEPT_MIN;
    while (places < KEPT_MAX && places < bytes / 4)
        places *= 2;
    e->kept_mask = places - 1;
    e->kept = calloc(places, sizeof *e->kept);
    e->matching = match_scratch_make();
    if (e->kept && e->matching && ids_reserve(&e->out, bytes / 3 + 16)) return 0;
    return io_fail(e->error, EXIT_INTERNAL, "out of memory for the tokens of a text");
}

static void end_encoding(encoding *e)
{
    free(e->kept);
    match_scratch_free(e->matching);
    normal_scratch_free(&e->normal);
    piece_scratch_free(&e->pieces);
    bpe_scratch_free(&e->bpe);
    buffer_free(&e->repaired);
}

/* Places in a long piece are 32-bit numbers; repairing and normalising may lengthen a text. */
enum { TEXT_BYTES_MAX = 1 << 28 };

int tokenizer_encode(const tokenizer *t, const char *text, size_t bytes, bool special, tokens *out,
                     io_error *error)
{
    *out = (tokens){ 0 };
    if (bytes > TEXT_BYTES_MAX)
        return io_fail(error, EXIT_INPUT, "a text to encode has %zu bytes; expected at most %d", bytes,
                       TEXT_BYTES_MAX);
    encoding e = { .tokenizer = t, .error = error };
    int status = begin_encoding(&e, bytes);
    if (!status) status = encode_all(&e, text, bytes, special);
    end_encoding(&e);
    if (status || e.out.count == 0)
        free(e.out.at);
    else
        *out = (tokens){ e.out.at, (int64_t)e.out.count };
    return status;
}

void tokens_free(tokens *list)
{
    free(list->id);
    *list = (tokens){ 0 };
}
