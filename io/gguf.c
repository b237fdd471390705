/* SPDX-License-Identifier: MIT
 * magic, version, counts of tensors and keys;
 * of each key: name, type, value; of each tensor: name, rank, sizes (contiguous first), type, offset;
 * the tensors' data from the next multiple of the alignment on. A text is its length and its bytes. */
#include "io/gguf.h"

#include "io/mapped.h"

#include <stdlib.h>
#include <string.h>

enum { VERSION = 3, GGUF_MAX_RANK = 4, ALIGNMENT = 32, MAX_ALIGNMENT = 1 << 20, NAME_SHOWN = 60 };
enum { KEY_MIN = 8 + 4 + 1, TENSOR_MIN = 8 + 4 + 4 + 8 };

enum { U8, I8, U16, I16, U32, I32, REAL32, BOOLEAN, STRING, ARRAY, U64, I64, REAL64, VALUE_TYPES };

/* Bytes of a scalar; 0: of its own length. */
static const unsigned char VALUE_BYTES[VALUE_TYPES] = {
    [U8] = 1,     [I8] = 1,      [U16] = 2, [I16] = 2, [U32] = 4,    [I32] = 4,
    [REAL32] = 4, [BOOLEAN] = 1, [U64] = 8, [I64] = 8, [REAL64] = 8,
};

struct gguf {
    const char *name;
    mapped file; /* of gguf_open */
    const unsigned char *begin, *end;
    /* Where the keys and tensors begin, in the order of their names. */
    const unsigned char **keys, **tensors;
    int64_t key_count, tensor_count;
    const unsigned char *data;
    io_error *error; /* of the call at hand */
};

/* ---------------------------------------------------------------- bytes */

static uint64_t little(const unsigned char *at, int bytes)
{
    uint64_t value = 0;
    for (int i = bytes - 1; i >= 0; i--)
        value = value << 8 | at[i];
    return value;
}

static uint64_t left(const gguf *g, const unsigned char *at) { return (uint64_t)(g->end - at); }

static int ended(const gguf *g, const char *within)
{
    return io_fail(g->error, EXIT_INPUT, "%s ends within %s: it is truncated, or not a .gguf file", g->name,
                   within);
}

/* The text whose length is checked, and *at moved behind it. */
static gguf_text take_text(const unsigned char **at)
{
    const gguf_text text = { (const char *)*at + 8, (size_t)little(*at, 8) };
    *at += 8 + text.bytes;
    return text;
}

static int pass_text(const gguf *g, const unsigned char **at, const char *within)
{
    if (left(g, *at) < 8 || little(*at, 8) > left(g, *at) - 8) return ended(g, within);
    take_text(at);
    return 0;
}

/* For messages: "%.*s". */
#define SHOWN(text) (int)((text).bytes < NAME_SHOWN ? (text).bytes : NAME_SHOWN), (text).at

/* ---------------------------------------------------------------- keys and their values */

static int pass_array(const gguf *g, const unsigned char **at, gguf_text key)
{
    if (left(g, *at) < 12) return ended(g, "an array");
    const uint64_t type = little(*at, 4), count = little(*at + 4, 8);
    *at += 12;
    if (type >= VALUE_TYPES || type == ARRAY)
        return io_fail(g->error, EXIT_INPUT,
                       "%s: '%.*s' is an array of type %llu; expected numbers or strings", g->name,
                       SHOWN(key), (unsigned long long)type);
    const uint64_t least = type == STRING ? 8 : VALUE_BYTES[type];
    if (count > left(g, *at) / least)
        return io_fail(g->error, EXIT_INPUT,
                       "%s: the array '%.*s' claims %llu elements, but the file has %llu bytes left", g->name,
                       SHOWN(key), (unsigned long long)count, (unsigned long long)left(g, *at));
    if (type != STRING) *at += count * least;
    for (uint64_t i = 0; type == STRING && i < count; i++)
        if (pass_text(g, at, "an array of strings")) return EXIT_INPUT;
    return 0;
}

static int pass_key(const gguf *g, const unsigned char **at)
{
    const unsigned char *begin = *at;
    if (pass_text(g, at, "the name of a key")) return EXIT_INPUT;
    const gguf_text key = take_text(&begin);
    if (left(g, *at) < 4) return ended(g, "a key");
    const uint64_t type = little(*at, 4);
    *at += 4;
    if (type >= VALUE_TYPES)
        return io_fail(g->error, EXIT_INPUT, "%s: '%.*s' is of the unknown type %llu", g->name, SHOWN(key),
                       (unsigned long long)type);
    if (type == STRING) return pass_text(g, at, "a string");
    if (type == ARRAY) return pass_array(g, at, key);
    if (left(g, *at) < VALUE_BYTES[type]) return ended(g, "a value");
    *at += VALUE_BYTES[type];
    return 0;
}

/* ---------------------------------------------------------------- tensors */

static const unsigned char TYPE_NUMBERS[TENSOR_TYPES] = {
    [TENSOR_F32] = 0,  [TENSOR_F16] = 1,  [TENSOR_Q4_0] = 2, [TENSOR_Q4_1] = 3,
    [TENSOR_Q8_0] = 8, [TENSOR_F64] = 28, [TENSOR_BF16] = 30
};

/* By number; NULL: no more in use. */
static const char *const TYPE_NAMES[] = {
    "F32",    "F16",   "Q4_0",  "Q4_1",   "Q4_2",  "Q4_3",  "Q5_0",    "Q5_1",   "Q8_0",    "Q8_1",
    "Q2_K",   "Q3_K",  "Q4_K",  "Q5_K",   "Q6_K",  "Q8_K",  "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S",
    "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS", "I8",    "I16",   "I32",     "I64",    "F64",     "IQ1_M",
    "BF16",   NULL,    NULL,    NULL,     "TQ1_0", "TQ2_0", NULL,      NULL,     NULL,      "MXFP4",
};
enum { NAMED_TYPES = sizeof TYPE_NAMES / sizeof *TYPE_NAMES };

static int type_of(uint64_t number)
{
    int type = 0;
    while (type < TENSOR_TYPES && TYPE_NUMBERS[type] != number)
        type++;
    return type;
}

static int unknown_type(const gguf *g, gguf_text name, uint64_t number)
{
    static const char EXPECTED[] = "expected F32, F16, BF16, F64, Q8_0, Q4_0 or Q4_1";
    if (number < NAMED_TYPES && TYPE_NAMES[number])
        return io_fail(g->error, EXIT_INPUT, "%s: tensor '%.*s' is of type %s; %s", g->name, SHOWN(name),
                       TYPE_NAMES[number], EXPECTED);
    return io_fail(g->error, EXIT_INPUT, "%s: tensor '%.*s' is of the unknown type %llu; %s", g->name,
                   SHOWN(name), (unsigned long long)number, EXPECTED);
}

/* What follows the name: fills *out but for its data; returns its offset. */
static uint64_t take_tensor(const unsigned char *at, tensor *out)
{
    *out = (tensor){ .rank = (int)little(at, 4) };
    for (int axis = 0; axis < out->rank; axis++)
        out->shape[out->rank - 1 - axis] = (int64_t)little(at + 4 + 8 * axis, 8);
    at += 4 + 8 * out->rank;
    out->type = (tensor_type)type_of(little(at, 4));
    out->count = array_shape_count(out->rank, out->shape, sizeof(double));
    return little(at + 4, 8);
}

static int pass_tensor(const gguf *g, const unsigned char **at)
{
    const unsigned char *begin = *at;
    if (pass_text(g, at, "the name of a tensor")) return EXIT_INPUT;
    const gguf_text name = take_text(&begin);
    if (left(g, *at) < 4) return ended(g, "the description of a tensor");
    const uint64_t rank = little(*at, 4);
    if (rank > GGUF_MAX_RANK)
        return io_fail(g->error, EXIT_INPUT, "%s: tensor '%.*s' has %llu axes; expected at most %d", g->name,
                       SHOWN(name), (unsigned long long)rank, GGUF_MAX_RANK);
    const size_t bytes = 4 + 8 * (size_t)rank + 4 + 8;
    if (left(g, *at) < bytes) return ended(g, "the description of a tensor");
    const uint64_t number = little(*at + bytes - 12, 4);
    if (type_of(number) == TENSOR_TYPES) return unknown_type(g, name, number);
    tensor t;
    char text[ARRAY_TEXT];
    take_tensor(*at, &t);
    *at += bytes;
    if (t.count < 0)
        return io_fail(g->error, EXIT_INPUT, "%s: tensor '%.*s': the size of shape %s overflows", g->name,
                       SHOWN(name), array_shape_text(text, t.rank, t.shape));
    if (tensor_block(t.type) > 1 && (!t.rank || t.shape[t.rank - 1] % tensor_block(t.type) != 0))
        return io_fail(g->error, EXIT_INPUT, "%s: tensor '%.*s': rows of shape %s are not blocks of %d of %s",
                       g->name, SHOWN(name), array_shape_text(text, t.rank, t.shape), tensor_block(t.type),
                       tensor_type_name(t.type));
    return 0;
}

/* ---------------------------------------------------------------- names */

static int compare_texts(gguf_text a, gguf_text b)
{
    const int order = memcmp(a.at, b.at, a.bytes < b.bytes ? a.bytes : b.bytes);
    return order ? order : (a.bytes > b.bytes) - (a.bytes < b.bytes);
}

static gguf_text name_at(const unsigned char *record) { return take_text(&record); }

static int by_name(const void *a, const void *b)
{
    return compare_texts(name_at(*(const unsigned char *const *)a),
                         name_at(*(const unsigned char *const *)b));
}

/* The records of `count` keys or tensors from *at on, sorted. A record takes more bytes in the file than its
 * pointer here. */
static int collect(const gguf *g, const unsigned char **at, uint64_t count, const char *what, size_t least,
                   int (*pass)(const gguf *, const unsigned char **), const unsigned char ***records)
{
    if (count > left(g, *at) / least)
        return io_fail(g->error, EXIT_INPUT, "%s claims %llu %s, but has %llu bytes left", g->name,
                       (unsigned long long)count, what, (unsigned long long)left(g, *at));
    *records = malloc((size_t)(count ? count : 1) * sizeof **records);
    if (!*records) return io_fail(g->error, EXIT_INTERNAL, "out of memory for the %s of %s", what, g->name);
    for (uint64_t i = 0; i < count; i++) {
        (*records)[i] = *at;
        if (pass(g, at)) return EXIT_INPUT;
    }
    qsort(*records, (size_t)count, sizeof **records, by_name);
    for (uint64_t i = 1; i < count; i++)
        if (by_name(*records + i - 1, *records + i) == 0)
            return io_fail(g->error, EXIT_INPUT, "%s has two %s '%.*s'", g->name, what,
                           SHOWN(name_at((*records)[i])));
    return 0;
}

static int64_t find(const unsigned char *const *records, int64_t count, const char *name)
{
    const gguf_text wanted = { name, strlen(name) };
    int64_t first = 0, behind = count;
    while (first < behind) {
        const int64_t middle = first + (behind - first) / 2;
        const int order = compare_texts(name_at(records[middle]), wanted);
        if (order == 0) return middle;
        if (order < 0)
            first = middle + 1;
        else
            behind = middle;
    }
    return -1;
}

/* ---------------------------------------------------------------- places */

typedef struct place {
    uint64_t begin;
    int64_t index;
} place;

static int by_begin(const void *a, const void *b)
{
    const place *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (x->index > y->index) - (x->index < y->index);
}

static uint64_t offset_of(const gguf *g, int64_t index, tensor *out)
{
    const unsigned char *at = g->tensors[index];
    take_text(&at);
    return take_tensor(at, out);
}

static int check_place(const gguf *g, int64_t index, uint64_t alignment, uint64_t *begin)
{
    tensor t;
    const uint64_t offset = *begin = offset_of(g, index, &t), bytes = (uint64_t)tensor_bytes(&t);
    const gguf_text name = gguf_tensor_name(g, index);
    if (offset % alignment != 0)
        return io_fail(g->error, EXIT_INPUT, "%s: tensor '%.*s' lies at byte %llu, no multiple of %llu",
                       g->name, SHOWN(name), (unsigned long long)offset, (unsigned long long)alignment);
    if (offset > left(g, g->data) || bytes > left(g, g->data) - offset)
        return io_fail(g->error, EXIT_INPUT,
                       "%s: tensor '%.*s' of %llu bytes lies at byte %llu, but the data has %llu", g->name,
                       SHOWN(name), (unsigned long long)bytes, (unsigned long long)offset,
                       (unsigned long long)left(g, g->data));
    return 0;
}

static int check_places(const gguf *g, uint64_t alignment)
{
    place *places = malloc((size_t)(g->tensor_count + 1) * sizeof *places);
    if (!places) return io_fail(g->error, EXIT_INTERNAL, "out of memory for the tensors of %s", g->name);
    int status = 0;
    for (int64_t i = 0; !status && i < g->tensor_count; i++) {
        places[i].index = i;
        status = check_place(g, i, alignment, &places[i].begin);
    }
    if (!status) qsort(places, (size_t)g->tensor_count, sizeof *places, by_begin);
    for (int64_t i = 1; !status && i < g->tensor_count; i++) {
        tensor before;
        offset_of(g, places[i - 1].index, &before);
        if (places[i - 1].begin + (uint64_t)tensor_bytes(&before) > places[i].begin)
            status = io_fail(g->error, EXIT_INPUT, "%s: tensors '%.*s' and '%.*s' overlap", g->name,
                             SHOWN(gguf_tensor_name(g, places[i - 1].index)),
                             SHOWN(gguf_tensor_name(g, places[i].index)));
    }
    free(places);
    return status;
}

static int find_data(gguf *g, const unsigned char *at)
{
    int64_t alignment = ALIGNMENT;
    const char *key = "general.alignment";
    if (gguf_has(g, key) && gguf_integer(g, key, &alignment, g->error)) return EXIT_INPUT;
    if (alignment < 8 || alignment > MAX_ALIGNMENT || (alignment & (alignment - 1)))
        return io_fail(g->error, EXIT_INPUT, "%s: %s is %lld; expected a power of two from 8 to %d", g->name,
                       key, (long long)alignment, MAX_ALIGNMENT);
    const int64_t header = at - g->begin, padding = (alignment - header % alignment) % alignment;
    if (!g->tensor_count)
        g->data = g->end;
    else if ((uint64_t)padding > left(g, at))
        return ended(g, "the space before the tensors");
    else
        g->data = at + padding;
    return check_places(g, (uint64_t)alignment);
}

static int read_header(gguf *g)
{
    const unsigned char *at = g->begin + 24;
    if (left(g, g->begin) < 4 || memcmp(g->begin, "GGUF", 4) != 0)
        return io_fail(g->error, EXIT_INPUT, "%s is not a .gguf file", g->name);
    if (left(g, g->begin) < 24) return ended(g, "its first 24 bytes");
    if (little(g->begin + 4, 4) != VERSION)
        return io_fail(g->error, EXIT_INPUT, "%s is a .gguf file of version %llu; expected %d", g->name,
                       (unsigned long long)little(g->begin + 4, 4), VERSION);
    const uint64_t tensors = little(g->begin + 8, 8), keys = little(g->begin + 16, 8);
    int status = collect(g, &at, keys, "keys", KEY_MIN, pass_key, &g->keys);
    if (!status) g->key_count = (int64_t)keys;
    if (!status) status = collect(g, &at, tensors, "tensors", TENSOR_MIN, pass_tensor, &g->tensors);
    if (!status) g->tensor_count = (int64_t)tensors;
    return status ? status : find_data(g, at);
}

int gguf_open_bytes(gguf **made, const void *data, int64_t bytes, const char *name, io_error *error)
{
    *made = NULL;
    gguf *g = calloc(1, sizeof *g);
    if (!g) return io_fail(error, EXIT_INTERNAL, "out of memory for the tensors of %s", name);
    /* An empty file is mapped nowhere. */
    g->begin = data ? data : (const unsigned char *)"";
    g->end = g->begin + bytes;
    g->name = name;
    g->error = error;
    const int status = read_header(g);
    if (status)
        gguf_close(g);
    else
        *made = g;
    return status;
}

int gguf_open(gguf **made, const char *path, io_error *error)
{
    *made = NULL;
    mapped file;
    int status = mapped_open(&file, path, error);
    if (!status) status = gguf_open_bytes(made, file.data, file.bytes, path, error);
    if (status)
        mapped_close(&file);
    else
        (*made)->file = file;
    /* Of the keys, most of which are the tokenizer's, hardly any is read again. */
    if (!status) gguf_forget(*made, file.data, (size_t)((*made)->data - (*made)->begin));
    return status;
}

void gguf_forget(const gguf *g, const void *at, size_t bytes)
{
    if (g->file.data) mapped_forget(&g->file, at, bytes);
}

void gguf_close(gguf *g)
{
    if (!g) return;
    free(g->keys);
    free(g->tensors);
    mapped_close(&g->file);
    free(g);
}

/* ---------------------------------------------------------------- values */

bool gguf_has(const gguf *g, const char *key) { return find(g->keys, g->key_count, key) >= 0; }

/* Where the value lies, and its type; NULL: there is no such key. */
static const unsigned char *value_of(const gguf *g, const char *key, int *type, io_error *error)
{
    const int64_t index = find(g->keys, g->key_count, key);
    if (index < 0) {
        io_fail(error, EXIT_INPUT, "%s has no '%s'", g->name, key);
        return NULL;
    }
    const unsigned char *at = g->keys[index];
    take_text(&at);
    *type = (int)little(at, 4);
    return at + 4;
}

static int wrong_type(const gguf *g, const char *key, const char *expected, io_error *error)
{
    return io_fail(error, EXIT_INPUT, "%s: '%s' is not %s", g->name, key, expected);
}

static bool is_real(int type) { return type == REAL32 || type == REAL64; }

static bool is_number(int type) { return type != STRING && type != ARRAY; }

static int64_t integer_at(const unsigned char *at, int type)
{
    const uint64_t bits = little(at, VALUE_BYTES[type]);
    switch (type) {
    case I8: return (int8_t)bits;
    case I16: return (int16_t)bits;
    case I32: return (int32_t)bits;
    default: return (int64_t)bits;
    }
}

static double number_at(const unsigned char *at, int type)
{
    const uint64_t bits = little(at, VALUE_BYTES[type]);
    const uint32_t low = (uint32_t)bits;
    float single;
    double value;
    memcpy(&single, &low, sizeof single);
    memcpy(&value, &bits, sizeof value);
    if (type == REAL32) return (double)single;
    if (type == REAL64) return value;
    return type == U64 ? (double)bits : (double)integer_at(at, type);
}

int gguf_integer(const gguf *g, const char *key, int64_t *value, io_error *error)
{
    int type;
    const unsigned char *at = value_of(g, key, &type, error);
    if (!at) return EXIT_INPUT;
    if (!is_number(type) || is_real(type)) return wrong_type(g, key, "a whole number", error);
    const int64_t read = integer_at(at, type);
    if (type == U64 && read < 0) return wrong_type(g, key, "below 2^63", error);
    *value = read;
    return 0;
}

int gguf_real(const gguf *g, const char *key, double *value, io_error *error)
{
    int type;
    const unsigned char *at = value_of(g, key, &type, error);
    if (!at) return EXIT_INPUT;
    if (!is_number(type)) return wrong_type(g, key, "a number", error);
    *value = number_at(at, type);
    return 0;
}

int gguf_string(const gguf *g, const char *key, gguf_text *value, io_error *error)
{
    int type;
    const unsigned char *at = value_of(g, key, &type, error);
    if (!at) return EXIT_INPUT;
    if (type != STRING) return wrong_type(g, key, "a string", error);
    *value = take_text(&at);
    return 0;
}

/* ---------------------------------------------------------------- arrays */

static int open_array(const gguf *g, const char *key, gguf_array *list, io_error *error)
{
    int type;
    const unsigned char *at = value_of(g, key, &type, error);
    if (!at) return EXIT_INPUT;
    if (type != ARRAY) return wrong_type(g, key, "an array", error);
    *list = (gguf_array){ (int64_t)little(at + 4, 8), at + 12, (int)little(at, 4) };
    return 0;
}

int gguf_strings(const gguf *g, const char *key, gguf_array *list, io_error *error)
{
    const int status = open_array(g, key, list, error);
    if (status || list->type == STRING) return status;
    return wrong_type(g, key, "an array of strings", error);
}

int gguf_numbers(const gguf *g, const char *key, gguf_array *list, io_error *error)
{
    const int status = open_array(g, key, list, error);
    if (status || list->type != STRING) return status;
    return wrong_type(g, key, "an array of numbers", error);
}

gguf_text gguf_next_string(gguf_array *list)
{
    list->count--;
    return take_text(&list->at);
}

double gguf_next_number(gguf_array *list)
{
    const double value = number_at(list->at, list->type);
    list->count--;
    list->at += VALUE_BYTES[list->type];
    return value;
}

/* ---------------------------------------------------------------- tensors */

int64_t gguf_tensors(const gguf *g) { return g->tensor_count; }

gguf_text gguf_tensor_name(const gguf *g, int64_t index) { return name_at(g->tensors[index]); }

tensor gguf_tensor_at(const gguf *g, int64_t index)
{
    tensor t;
    const uint64_t offset = offset_of(g, index, &t);
    t.data = g->data + offset;
    return t;
}

int64_t gguf_tensor_index(const gguf *g, const char *name) { return find(g->tensors, g->tensor_count, name); }
