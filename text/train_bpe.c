/* SPDX-License-Identifier: MIT */
#include "text/train_bpe.h"

#include "text/parts.h"
#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>

enum { PIECES_MIN = 1024, ALPHABET = 257, SIZE_MAX_TOKENS = 1 << 20 };

typedef struct piece_count {
    size_t at, length;
    int64_t count;
} piece_count;

struct bpe_trainer {
    char *end_of_text;
    tokenizer *alphabet; /* of bytes alone: it cuts the texts */
    buffer bytes;
    piece_count *piece;
    size_t pieces;
    size_t *slot; /* hash table of index + 1 */
    size_t slots;
};

static int no_memory(io_error *error)
{
    return io_fail(error, EXIT_INTERNAL, "out of memory for the pieces of texts");
}

/* ---------------------------------------------------------------- a tokenizer from tokens and merges */

static json_t *text_of(const vocabulary *v, int32_t id)
{
    size_t length;
    const char *bytes = vocabulary_bytes(v, id, &length);
    buffer text = { 0 };
    printable_of_bytes(&text, bytes, length);
    json_t *json = text.failed ? NULL : json_stringn(text.at, text.count);
    buffer_free(&text);
    return json;
}

/* Id 0 is the end of texts; 1 .. 256 are bytes in the order of their characters: those that stand for
 * themselves first. */
static bool add_alphabet(vocabulary *v)
{
    int32_t id = 1;
    for (int hidden = 0; hidden < 2; hidden++)
        for (int byte = 0; byte < 256; byte++) {
            const char one = (char)byte;
            buffer text = { 0 };
            printable_of_bytes(&text, &one, 1);
            size_t length;
            const bool itself = !text.failed && utf8_first(text.at, &length) == byte;
            if (text.failed) return false;
            buffer_free(&text);
            if (itself == !hidden) vocabulary_add(v, id++, &one, 1, false);
        }
    return !v->bytes.failed;
}

static bool add_tokens(json_t *model, const vocabulary *v, const int32_t (*pair)[2], int64_t merges)
{
    json_t *vocab = json_object_get(model, "vocab"), *list = json_object_get(model, "merges");
    bool whole = true;
    for (int32_t id = 1; id < v->count && whole; id++) {
        json_t *text = text_of(v, id);
        whole = text && json_object_set_new(vocab, json_string_value(text), json_integer(id)) == 0;
        json_decref(text);
    }
    for (int64_t i = 0; i < merges && whole; i++)
        whole = json_array_append_new(
                    list, json_pack("[o,o]", text_of(v, pair[i][0]), text_of(v, pair[i][1]))) == 0;
    return whole;
}

static int make_tokenizer(tokenizer **made, const char *end_of_text, const vocabulary *v,
                          const int32_t (*pair)[2], int64_t merges, io_error *error)
{
    json_t *root = json_of_byte_level(end_of_text);
    *made = NULL;
    const bool whole = root && add_tokens(json_object_get(root, "model"), v, pair, merges);
    const int status = whole ? tokenizer_from_json(made, root, "the trained tokenizer", error)
                             : no_memory(error);
    json_decref(root);
    return status;
}

/* ---------------------------------------------------------------- counting */

int bpe_trainer_make(bpe_trainer **made, const char *end_of_text, io_error *error)
{
    *made = NULL;
    if (strlen(end_of_text) < 2)
        return io_fail(error, EXIT_USAGE,
                       "the token for the end of texts is '%s'; expected two characters or more",
                       end_of_text);
    vocabulary v = { 0 };
    bpe_trainer *b = calloc(1, sizeof *b);
    if (!b) return no_memory(error);
    b->end_of_text = malloc(strlen(end_of_text) + 1);
    int status = b->end_of_text && vocabulary_make(&v, ALPHABET, ALPHABET) ? 0 : no_memory(error);
    if (!status) {
        strcpy(b->end_of_text, end_of_text);
        vocabulary_add(&v, 0, end_of_text, strlen(end_of_text), false);
        status = add_alphabet(&v) ? 0 : no_memory(error);
    }
    if (!status) status = make_tokenizer(&b->alphabet, end_of_text, &v, NULL, 0, error);
    vocabulary_free(&v);
    if (status)
        bpe_trainer_free(b);
    else
        *made = b;
    return status;
}

void bpe_trainer_free(bpe_trainer *b)
{
    if (!b) return;
    free(b->end_of_text);
    tokenizer_close(b->alphabet);
    buffer_free(&b->bytes);
    free(b->piece);
    free(b->slot);
    free(b);
}

static size_t *slot_of(const bpe_trainer *b, const char *piece, size_t bytes)
{
    uint64_t hash = hash_begin(false);
    for (size_t i = 0; i < bytes; i++)
        hash = hash_more(hash, piece[i]);
    size_t slot = (hash ^ hash >> 32) & (b->slots - 1);
    for (; b->slot[slot]; slot = (slot + 1) & (b->slots - 1)) {
        const piece_count *p = &b->piece[b->slot[slot] - 1];
        if (p->length == bytes && memcmp(b->bytes.at + p->at, piece, bytes) == 0) break;
    }
    return &b->slot[slot];
}

static bool enlarge(bpe_trainer *b)
{
    if (b->pieces < b->slots / 2) return true;
    const size_t slots = b->slots ? 2 * b->slots : PIECES_MIN;
    piece_count *piece = realloc(b->piece, slots * sizeof *piece);
    if (piece) b->piece = piece;
    size_t *slot = piece ? calloc(slots, sizeof *slot) : NULL;
    if (!slot) return false;
    free(b->slot);
    b->slot = slot;
    b->slots = slots;
    for (size_t i = 0; i < b->pieces; i++)
        *slot_of(b, b->bytes.at + b->piece[i].at, b->piece[i].length) = i + 1;
    return true;
}

static int count_piece(void *context, const char *piece, size_t bytes, io_error *error)
{
    bpe_trainer *b = context;
    if (!enlarge(b)) return no_memory(error);
    size_t *slot = slot_of(b, piece, bytes);
    if (!*slot) {
        b->piece[b->pieces] = (piece_count){ b->bytes.count, bytes, 0 };
        buffer_put(&b->bytes, piece, bytes);
        if (b->bytes.failed) return no_memory(error);
        *slot = ++b->pieces;
    }
    b->piece[*slot - 1].count++;
    return 0;
}

int bpe_trainer_add(bpe_trainer *b, const char *text, size_t bytes, io_error *error)
{
    buffer repaired = { 0 };
    piece_scratch scratch = { 0 };
    match_scratch *matching = match_scratch_make();
    if (!utf8_is_valid(text, bytes)) {
        utf8_repair(&repaired, text, bytes);
        text = repaired.at, bytes = repaired.count;
    }
    const int status = !matching || repaired.failed ? no_memory(error)
                                                    : splitter_cut(&b->alphabet->splitter, &scratch, matching,
                                                                   text, bytes, true, count_piece, b, error);
    match_scratch_free(matching);
    piece_scratch_free(&scratch);
    buffer_free(&repaired);
    return status;
}

/* ---------------------------------------------------------------- pairs */

typedef struct pair_count {
    int32_t left, right;
    int64_t count;
    id_list words;   /* where it was seen; some may have lost it since */
    int64_t touched; /* by which merge */
} pair_count;

/* Most frequent first, then by ids. */
typedef struct candidate {
    int64_t count;
    int32_t left, right;
} candidate;

typedef struct training {
    const bpe_trainer *pieces;
    vocabulary vocabulary;
    int32_t *symbol; /* of all pieces, one after another */
    size_t *begin;   /* of a piece */
    size_t *length;
    pair_count *pair;
    size_t pairs;
    size_t *slot; /* index + 1 */
    size_t slots;
    candidate *heap;
    size_t heap_count, heap_room;
    int32_t (*merge)[2];
    int64_t merges;
    size_t *touched; /* pairs of the merge at hand */
    size_t touched_count, touched_room;
    bool failed;
} training;

static bool goes_first(candidate a, candidate b)
{
    if (a.count != b.count) return a.count > b.count;
    return a.left != b.left ? a.left < b.left : a.right < b.right;
}

static void heap_put(training *t, candidate c)
{
    if (t->heap_count == t->heap_room) {
        const size_t room = t->heap_room ? 2 * t->heap_room : PIECES_MIN;
        candidate *larger = realloc(t->heap, room * sizeof *larger);
        t->failed = t->failed || !larger;
        if (!larger) return;
        t->heap = larger;
        t->heap_room = room;
    }
    size_t at = t->heap_count++;
    for (; at > 0 && goes_first(c, t->heap[(at - 1) / 2]); at = (at - 1) / 2)
        t->heap[at] = t->heap[(at - 1) / 2];
    t->heap[at] = c;
}

static candidate heap_take(training *t)
{
    const candidate first = t->heap[0], last = t->heap[--t->heap_count];
    size_t at = 0;
    for (size_t child; (child = 2 * at + 1) < t->heap_count; at = child) {
        if (child + 1 < t->heap_count && goes_first(t->heap[child + 1], t->heap[child])) child++;
        if (!goes_first(t->heap[child], last)) break;
        t->heap[at] = t->heap[child];
    }
    t->heap[at] = last;
    return first;
}

static size_t *pair_slot(const training *t, int32_t left, int32_t right)
{
    const uint64_t hash = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9e3779b97f4a7c15u;
    size_t slot = (hash ^ hash >> 32) & (t->slots - 1);
    for (; t->slot[slot]; slot = (slot + 1) & (t->slots - 1)) {
        const pair_count *p = &t->pair[t->slot[slot] - 1];
        if (p->left == left && p->right == right) break;
    }
    return &t->slot[slot];
}

static bool enlarge_pairs(training *t)
{
    if (t->pairs < t->slots / 2) return true;
    const size_t slots = t->slots ? 2 * t->slots : PIECES_MIN;
    pair_count *pair = realloc(t->pair, slots * sizeof *pair);
    if (pair) t->pair = pair;
    size_t *slot = pair ? calloc(slots, sizeof *slot) : NULL;
    if (!slot) return false;
    free(t->slot);
    t->slot = slot;
    t->slots = slots;
    for (size_t i = 0; i < t->pairs; i++)
        *pair_slot(t, t->pair[i].left, t->pair[i].right) = i + 1;
    return true;
}

/* The pair, new with count 0 where it is not there; NULL without memory. */
static pair_count *find_pair(training *t, int32_t left, int32_t right)
{
    t->failed = t->failed || !enlarge_pairs(t);
    if (t->failed) return NULL;
    size_t *slot = pair_slot(t, left, right);
    if (!*slot) {
        t->pair[t->pairs] = (pair_count){ .left = left, .right = right };
        *slot = ++t->pairs;
    }
    return &t->pair[*slot - 1];
}

/* ---------------------------------------------------------------- merging */

static void touch(training *t, pair_count *p)
{
    if (p->touched == t->merges + 1) return;
    p->touched = t->merges + 1;
    if (t->touched_count == t->touched_room) {
        const size_t room = t->touched_room ? 2 * t->touched_room : PIECES_MIN;
        size_t *larger = realloc(t->touched, room * sizeof *larger);
        t->failed = t->failed || !larger;
        if (!larger) return;
        t->touched = larger;
        t->touched_room = room;
    }
    t->touched[t->touched_count++] = (size_t)(p - t->pair);
}

/* The pairs of a piece are counted, or no longer. Those with the token `made` are new there; -1: all are. */
static void count_pairs(training *t, int32_t word, int64_t times, int32_t made)
{
    const int32_t *symbol = t->symbol + t->begin[word];
    for (size_t i = 0; i + 1 < t->length[word] && !t->failed; i++) {
        pair_count *p = find_pair(t, symbol[i], symbol[i + 1]);
        if (!p) return;
        p->count += times;
        if (times < 0 || (made >= 0 && p->left != made && p->right != made)) continue;
        if (!p->words.count || p->words.at[p->words.count - 1] != word) ids_put(&p->words, &word, 1);
        t->failed = t->failed || p->words.failed;
        touch(t, p);
    }
}

static bool has_pair(const training *t, int32_t word, candidate c)
{
    const int32_t *symbol = t->symbol + t->begin[word];
    for (size_t i = 0; i + 1 < t->length[word]; i++)
        if (symbol[i] == c.left && symbol[i + 1] == c.right) return true;
    return false;
}

static void replace_pair(training *t, int32_t word, candidate c, int32_t made)
{
    int32_t *symbol = t->symbol + t->begin[word];
    size_t kept = 0;
    for (size_t i = 0; i < t->length[word]; i++) {
        const bool is_pair = i + 1 < t->length[word] && symbol[i] == c.left && symbol[i + 1] == c.right;
        symbol[kept++] = is_pair ? made : symbol[i];
        i += is_pair;
    }
    t->length[word] = kept;
}

/* The token that a pair makes, new where there is none with this text; -1 without memory. */
static int32_t make_token(training *t, candidate c)
{
    buffer text = { 0 };
    size_t left, right;
    const char *bytes = vocabulary_bytes(&t->vocabulary, c.left, &left);
    buffer_put(&text, bytes, left);
    bytes = vocabulary_bytes(&t->vocabulary, c.right, &right);
    buffer_put(&text, bytes, right);
    int32_t made = text.failed ? -1 : vocabulary_find(&t->vocabulary, text.at, text.count, false);
    if (made < 0 && !text.failed) {
        made = (int32_t)t->vocabulary.count;
        vocabulary_add(&t->vocabulary, made, text.at, text.count, false);
    }
    buffer_free(&text);
    return t->vocabulary.bytes.failed ? -1 : made;
}

static void push_touched(training *t)
{
    for (size_t i = 0; i < t->touched_count; i++) {
        const pair_count *p = &t->pair[t->touched[i]];
        if (p->count >= 2) heap_put(t, (candidate){ p->count, p->left, p->right });
    }
    t->touched_count = 0;
}

static void merge_pair(training *t, candidate c)
{
    pair_count *p = find_pair(t, c.left, c.right);
    const int32_t made = make_token(t, c);
    t->failed = t->failed || made < 0;
    if (t->failed || !p) return;
    id_list words = p->words;
    p->words = (id_list){ 0 };
    for (size_t i = 0; i < words.count && !t->failed; i++) {
        const int32_t word = words.at[i];
        const int64_t times = t->pieces->piece[word].count;
        if (!has_pair(t, word, c)) continue;
        count_pairs(t, word, -times, made);
        replace_pair(t, word, c, made);
        count_pairs(t, word, times, made);
    }
    free(words.at);
    t->merge[t->merges][0] = c.left;
    t->merge[t->merges++][1] = c.right;
    push_touched(t);
}

static void merge_all(training *t, int64_t size)
{
    push_touched(t);
    while (t->vocabulary.count < size && t->merges < 2 * size && t->heap_count && !t->failed) {
        const candidate c = heap_take(t);
        const pair_count *p = find_pair(t, c.left, c.right);
        const int64_t count = p ? p->count : 0;
        if (count == c.count)
            merge_pair(t, c);
        else if (count >= 2)
            heap_put(t, (candidate){ count, c.left, c.right });
    }
}

/* Every piece as a row of bytes. */
static bool begin_training(training *t, int64_t size)
{
    const bpe_trainer *b = t->pieces;
    t->symbol = malloc((b->bytes.count + 1) * sizeof *t->symbol);
    t->begin = malloc((b->pieces + 1) * sizeof *t->begin);
    t->length = malloc((b->pieces + 1) * sizeof *t->length);
    t->merge = malloc(2 * (size_t)size * sizeof *t->merge);
    if (!t->symbol || !t->begin || !t->length || !t->merge || !vocabulary_make(&t->vocabulary, size, size))
        return false;
    vocabulary_add(&t->vocabulary, 0, b->end_of_text, strlen(b->end_of_text), false);
    if (!add_alphabet(&t->vocabulary)) return false;
    for (size_t i = 0; i < b->bytes.count; i++)
        t->symbol[i] = vocabulary_find(&t->vocabulary, b->bytes.at + i, 1, false);
    for (size_t i = 0; i < b->pieces; i++) {
        t->begin[i] = b->piece[i].at;
        t->length[i] = b->piece[i].length;
        count_pairs(t, (int32_t)i, b->piece[i].count, -1);
    }
    return !t->failed;
}

static void end_training(training *t)
{
    for (size_t i = 0; i < t->pairs; i++)
        free(t->pair[i].words.at);
    free(t->pair);
    free(t->slot);
    free(t->symbol);
    free(t->begin);
    free(t->length);
    free(t->heap);
    free(t->touched);
    free(t->merge);
    vocabulary_free(&t->vocabulary);
}

int bpe_trainer_finish(const bpe_trainer *b, int64_t size, tokenizer **made, io_error *error)
{
    *made = NULL;
    if (size < ALPHABET || size > SIZE_MAX_TOKENS)
        return io_fail(error, EXIT_USAGE, "a tokenizer of %lld tokens; expected %d to %d", (long long)size,
                       ALPHABET, SIZE_MAX_TOKENS);
    if (b->pieces > INT32_MAX) return io_fail(error, EXIT_INPUT, "the texts have too many pieces");
    training t = { .pieces = b };
    bool whole = begin_training(&t, size);
    if (whole) merge_all(&t, size);
    whole = whole && !t.failed;
    const int status = whole ? make_tokenizer(made, b->end_of_text, &t.vocabulary,
                                              (const int32_t(*)[2])t.merge, t.merges, error)
                             : no_memory(error);
    end_training(&t);
    return status;
}
