/* SPDX-License-Identifier: MIT */
#include "io/safetensors.h"

#include "io/in_file.h"
#include "io/nearest.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { LENGTH_BYTES = 8, HEADER_MAX = 100000000, NAMED_MAX = 3 };

static const char METADATA[] = "__metadata__";

/* Where a tensor lies, in bytes from the beginning of the data section. */
typedef struct extent {
    int64_t begin, end;
    const char *name;
} extent;

typedef struct tensors {
    const char *name; /* of the file */
    io_error *error;
    json_t *root;
    int64_t data_begin, data_bytes;
} tensors;

/* ---------------------------------------------------------------- header */

static int read_header_text(tensors *t, FILE *stream, char **text, size_t *length)
{
    int64_t bytes = 0;
    unsigned char begin[LENGTH_BYTES];
    int status = in_size(stream, t->name, &bytes, t->error);
    if (status) return status;
    if (bytes < LENGTH_BYTES)
        return io_fail(t->error, EXIT_INPUT, "%s is not a .safetensors file: it has %lld bytes", t->name,
                       (long long)bytes);
    status = in_read(stream, t->name, begin, LENGTH_BYTES, t->error);
    if (status) return status;
    uint64_t told = 0;
    for (int i = LENGTH_BYTES - 1; i >= 0; i--)
        told = told << 8 | begin[i];
    if (told > (uint64_t)(bytes - LENGTH_BYTES) || told > HEADER_MAX)
        return io_fail(t->error, EXIT_INPUT,
                       "%s: the header claims %llu bytes, but the file has %lld: it is "
                       "truncated or not a .safetensors file",
                       t->name, (unsigned long long)told, (long long)bytes);
    *length = (size_t)told;
    *text = malloc(*length + 1);
    if (!*text) return io_fail(t->error, EXIT_INTERNAL, "out of memory for the header of %s", t->name);
    t->data_begin = LENGTH_BYTES + (int64_t)told;
    t->data_bytes = bytes - t->data_begin;
    return in_read(stream, t->name, *text, *length, t->error);
}

static int parse_header(tensors *t, FILE *stream)
{
    char *text = NULL;
    size_t length = 0;
    int status = read_header_text(t, stream, &text, &length);
    if (!status) {
        json_error_t reason;
        t->root = json_loadb(text, length, JSON_REJECT_DUPLICATES, &reason);
        /* Without memory jansson gives no reason, or that one; with a reason it is the text that is wrong. */
        if (!t->root && (!*reason.text || json_error_code(&reason) == json_error_out_of_memory))
            status = io_fail(t->error, EXIT_INTERNAL, "out of memory for the header of %s", t->name);
        else if (!t->root)
            status = io_fail(t->error, EXIT_INPUT, "%s: the header is not JSON: %s", t->name, reason.text);
        else if (!json_is_object(t->root))
            status = io_fail(t->error, EXIT_INPUT, "%s: the header is not a JSON object", t->name);
    }
    free(text);
    return status;
}

/* ---------------------------------------------------------------- tensors */

/* Bytes of an element, or 0 for a type that is not known here. */
static size_t type_bytes(const char *type)
{
    static const struct {
        const char *name;
        size_t bytes;
    } types[] = { { "F64", 8 },     { "F32", 4 },     { "F16", 2 }, { "BF16", 2 }, { "I64", 8 },
                  { "U64", 8 },     { "I32", 4 },     { "U32", 4 }, { "I16", 2 },  { "U16", 2 },
                  { "F8_E4M3", 1 }, { "F8_E5M2", 1 }, { "I8", 1 },  { "U8", 1 },   { "BOOL", 1 } };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(type, types[i].name) == 0) return types[i].bytes;
    return 0;
}

static int tensor_shape(const tensors *t, const char *tensor, const json_t *entry, int *rank, int64_t *shape)
{
    const json_t *sizes = json_object_get(entry, "shape");
    if (!json_is_array(sizes))
        return io_fail(t->error, EXIT_INPUT, "%s: tensor '%s' has no shape", t->name, tensor);
    size_t axes = json_array_size(sizes);
    if (axes > ARRAY_MAX_RANK)
        return io_fail(t->error, EXIT_INPUT, "%s: tensor '%s' has %zu axes; expected at most %d", t->name,
                       tensor, axes, ARRAY_MAX_RANK);
    for (size_t axis = 0; axis < axes; axis++) {
        const json_t *size = json_array_get(sizes, axis);
        if (!json_is_integer(size) || json_integer_value(size) < 0)
            return io_fail(t->error, EXIT_INPUT, "%s: tensor '%s' has a size that is not a whole number >= 0",
                           t->name, tensor);
        shape[axis] = json_integer_value(size);
    }
    *rank = (int)axes;
    return 0;
}

static int tensor_offsets(const tensors *t, const char *tensor, const json_t *entry, extent *out)
{
    const json_t *offsets = json_object_get(entry, "data_offsets");
    const json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(begin) || !json_is_integer(end))
        return io_fail(t->error, EXIT_INPUT, "%s: tensor '%s' has no pair of data_offsets", t->name, tensor);
    *out = (extent){ json_integer_value(begin), json_integer_value(end), tensor };
    if (out->begin < 0 || out->end < out->begin || out->end > t->data_bytes)
        return io_fail(t->error, EXIT_INPUT,
                       "%s: tensor '%s' lies at bytes %lld to %lld, but the data has %lld", t->name, tensor,
                       (long long)out->begin, (long long)out->end, (long long)t->data_bytes);
    return 0;
}

/* Its place, which must be as long as type and shape say. */
static int tensor_extent(const tensors *t, const char *tensor, const json_t *entry, extent *out)
{
    const char *type = json_string_value(json_object_get(entry, "dtype"));
    if (!type) return io_fail(t->error, EXIT_INPUT, "%s: tensor '%s' has no dtype", t->name, tensor);
    int rank = 0;
    int64_t shape[ARRAY_MAX_RANK] = { 0 };
    int status = tensor_shape(t, tensor, entry, &rank, shape);
    if (!status) status = tensor_offsets(t, tensor, entry, out);
    if (status) return status;
    size_t element = type_bytes(type);
    int64_t count = array_shape_count(rank, shape, element ? element : 1);
    char text[ARRAY_TEXT];
    if (count < 0)
        return io_fail(t->error, EXIT_INPUT, "%s: tensor '%s': the size of shape %s overflows", t->name,
                       tensor, array_shape_text(text, rank, shape));
    if (element && count * (int64_t)element != out->end - out->begin)
        return io_fail(t->error, EXIT_INPUT,
                       "%s: tensor '%s': shape %s of %s needs %lld bytes, but it lies at %lld "
                       "to %lld",
                       t->name, tensor, array_shape_text(text, rank, shape), type,
                       (long long)(count * (int64_t)element), (long long)out->begin, (long long)out->end);
    return 0;
}

static int by_place(const void *a, const void *b)
{
    const extent *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

static int check_no_gap(const tensors *t, extent *extents, size_t count)
{
    qsort(extents, count, sizeof *extents, by_place);
    int64_t end = 0;
    for (size_t i = 0; i < count; i++) {
        if (extents[i].begin < end)
            return io_fail(t->error, EXIT_INPUT, "%s: tensors '%s' and '%s' overlap", t->name,
                           extents[i - 1].name, extents[i].name);
        if (extents[i].begin > end)
            return io_fail(t->error, EXIT_INPUT, "%s: a gap of %lld bytes before tensor '%s'", t->name,
                           (long long)(extents[i].begin - end), extents[i].name);
        end = extents[i].end;
    }
    if (end != t->data_bytes)
        return io_fail(t->error, EXIT_INPUT, "%s: %lld bytes after the last tensor", t->name,
                       (long long)(t->data_bytes - end));
    return 0;
}

static int check_layout(const tensors *t)
{
    extent *extents = malloc((json_object_size(t->root) + 1) * sizeof *extents);
    if (!extents) return io_fail(t->error, EXIT_INTERNAL, "out of memory for the tensors of %s", t->name);
    size_t count = 0;
    int status = 0;
    const char *tensor;
    json_t *entry;
    json_object_foreach(t->root, tensor, entry)
    {
        if (strcmp(tensor, METADATA) == 0) continue;
        status = tensor_extent(t, tensor, entry, &extents[count++]);
        if (status) break;
    }
    if (!status) status = check_no_gap(t, extents, count);
    free(extents);
    return status;
}

/* ---------------------------------------------------------------- one tensor */

/* The (at most NAMED_MAX) names least far from `tensor`. */
static int unknown_tensor(const tensors *t, const char *tensor)
{
    const char *nearest[NAMED_MAX + 1] = { NULL }, *name;
    int distances[NAMED_MAX + 1], found = 0;
    json_t *entry;
    json_object_foreach(t->root, name, entry)
    {
        if (strcmp(name, METADATA) == 0) continue;
        int distance = edit_distance(tensor, name), place = found;
        for (; place > 0 && distance < distances[place - 1]; place--)
            distances[place] = distances[place - 1], nearest[place] = nearest[place - 1];
        distances[place] = distance, nearest[place] = name;
        found += found < NAMED_MAX;
    }
    if (!found) return io_fail(t->error, EXIT_INPUT, "%s holds no tensors", t->name);
    char list[256] = "";
    size_t at = 0;
    for (int i = 0; i < found && at < sizeof list; i++)
        at += (size_t)snprintf(list + at, sizeof list - at, "%s'%.60s'", i ? ", " : "", nearest[i]);
    if (!*tensor)
        return io_fail(t->error, EXIT_INPUT, "%s: say which tensor, as in %s:%s; it holds %s", t->name,
                       t->name, nearest[0], list);
    return io_fail(t->error, EXIT_INPUT, "%s has no tensor '%s'; nearest: %s", t->name, tensor, list);
}

static int read_tensor(array *out, const tensors *t, FILE *stream, const char *tensor)
{
    static const char *const types[] = { "F32", "BF16", "F16", "F64" };
    static const loam_dtype dtypes[] = { LOAM_F32, LOAM_BF16, LOAM_F16, LOAM_F64 };
    const json_t *entry = strcmp(tensor, METADATA) == 0 ? NULL : json_object_get(t->root, tensor);
    if (!entry) return unknown_tensor(t, tensor);
    const char *type = json_string_value(json_object_get(entry, "dtype"));
    int kind = 0, rank = 0;
    while (kind < 4 && strcmp(type, types[kind]) != 0)
        kind++;
    if (kind == 4)
        return io_fail(t->error, EXIT_INPUT, "%s: tensor '%s' is of type %s; expected F16, BF16, F32 or F64",
                       t->name, tensor, type);
    int64_t shape[ARRAY_MAX_RANK] = { 0 };
    extent place = { 0 };
    int status = tensor_shape(t, tensor, entry, &rank, shape);
    if (!status) status = tensor_offsets(t, tensor, entry, &place);
    if (!status) status = array_create(out, dtypes[kind], rank, shape, tensor, t->error);
    if (!status && fseek(stream, (long)(t->data_begin + place.begin), SEEK_SET))
        status = io_fail(t->error, EXIT_INPUT, "cannot read %s: it cannot be searched", t->name);
    if (!status) status = in_read(stream, t->name, out->data, (size_t)(place.end - place.begin), t->error);
    if (status) array_free(out);
    return status;
}

int safetensors_read_stream(array *out, FILE *stream, const char *name, const char *tensor, io_error *error)
{
    *out = (array){ 0 };
    tensors t = { .name = name, .error = error };
    int status = parse_header(&t, stream);
    if (!status) status = check_layout(&t);
    if (!status) status = read_tensor(out, &t, stream, tensor);
    json_decref(t.root);
    return status;
}

int safetensors_read(array *out, const char *path, const char *tensor, io_error *error)
{
    *out = (array){ 0 };
    FILE *stream = in_open(path, error);
    if (!stream) return EXIT_INPUT;
    int status = safetensors_read_stream(out, stream, path, tensor, error);
    fclose(stream);
    return status;
}
