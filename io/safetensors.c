/* SPDX-License-Identifier: MIT */
#include "io/safetensors.h"

#include "io/in_file.h"
#include "io/json.h"
#include "io/nearest.h"
#include "io/out_file.h"

#include <assert.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { LENGTH_BYTES = 8, HEADER_MAX = 100000000, NAMED_MAX = 3 };

static const char METADATA[] = "__metadata__";

enum { DTYPES = 4 };
static const char *const dtype_names[DTYPES] = {
    [LOAM_F32] = "F32", [LOAM_BF16] = "BF16", [LOAM_F16] = "F16", [LOAM_F64] = "F64"
};

/* Where a tensor lies, in bytes from the beginning of the data section. */
typedef struct extent {
    int64_t begin, end;
    const char *name;
} extent;

struct safetensors {
    const char *name; /* of the file */
    FILE *stream;
    io_error *error; /* of the call at hand */
    json_t *root;
    int64_t data_begin, data_bytes;
};

/* ---------------------------------------------------------------- header */

static int read_header_text(safetensors *t, char **text, size_t *length)
{
    int64_t bytes = 0;
    unsigned char begin[LENGTH_BYTES];
    int status = in_size(t->stream, t->name, &bytes, t->error);
    if (status) return status;
    if (bytes < LENGTH_BYTES)
        return io_fail(t->error, EXIT_INPUT, "%s is not a .safetensors file: it has %lld bytes", t->name,
                       (long long)bytes);
    status = in_read(t->stream, t->name, begin, LENGTH_BYTES, t->error);
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
    return in_read(t->stream, t->name, *text, *length, t->error);
}

static int parse_header(safetensors *t)
{
    char *text = NULL;
    size_t length = 0;
    int status = read_header_text(t, &text, &length);
    if (!status) status = json_object_of(&t->root, text, length, t->name, "the header", t->error);
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

static int tensor_shape(const safetensors *t, const char *tensor, const json_t *entry, int *rank,
                        int64_t *shape)
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

static int tensor_offsets(const safetensors *t, const char *tensor, const json_t *entry, extent *out)
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
static int tensor_extent(const safetensors *t, const char *tensor, const json_t *entry, extent *out)
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

static int check_no_gap(const safetensors *t, extent *extents, size_t count)
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

static int check_layout(const safetensors *t)
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
static int unknown_tensor(const safetensors *t, const char *tensor)
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

static int read_tensor(array *out, const safetensors *t, const char *tensor)
{
    const json_t *entry = strcmp(tensor, METADATA) == 0 ? NULL : json_object_get(t->root, tensor);
    if (!entry) return unknown_tensor(t, tensor);
    const char *type = json_string_value(json_object_get(entry, "dtype"));
    int kind = 0, rank = 0;
    while (kind < DTYPES && strcmp(type, dtype_names[kind]) != 0)
        kind++;
    if (kind == DTYPES)
        return io_fail(t->error, EXIT_INPUT, "%s: tensor '%s' is of type %s; expected F16, BF16, F32 or F64",
                       t->name, tensor, type);
    int64_t shape[ARRAY_MAX_RANK] = { 0 };
    extent place = { 0 };
    int status = tensor_shape(t, tensor, entry, &rank, shape);
    if (!status) status = tensor_offsets(t, tensor, entry, &place);
    if (!status) status = array_create(out, (loam_dtype)kind, rank, shape, tensor, t->error);
    if (!status && fseek(t->stream, (long)(t->data_begin + place.begin), SEEK_SET))
        status = io_fail(t->error, EXIT_INPUT, "cannot read %s: it cannot be searched", t->name);
    if (!status) status = in_read(t->stream, t->name, out->data, (size_t)(place.end - place.begin), t->error);
    if (status) array_free(out);
    return status;
}

static int read_header(safetensors *t)
{
    const int status = parse_header(t);
    return status ? status : check_layout(t);
}

int safetensors_read_stream(array *out, FILE *stream, const char *name, const char *tensor, io_error *error)
{
    *out = (array){ 0 };
    safetensors t = { .name = name, .stream = stream, .error = error };
    int status = read_header(&t);
    if (!status) status = read_tensor(out, &t, tensor);
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

/* ---------------------------------------------------------------- several tensors */

int safetensors_open(safetensors **file, const char *path, io_error *error)
{
    *file = NULL;
    safetensors *t = calloc(1, sizeof *t);
    if (!t) return io_fail(error, EXIT_INTERNAL, "out of memory for the tensors of %s", path);
    *t = (safetensors){ .name = path, .stream = in_open(path, error), .error = error };
    const int status = t->stream ? read_header(t) : EXIT_INPUT;
    if (status)
        safetensors_close(t);
    else
        *file = t;
    return status;
}

void safetensors_close(safetensors *file)
{
    if (!file) return;
    if (file->stream) fclose(file->stream);
    json_decref(file->root);
    free(file);
}

size_t safetensors_count(const safetensors *file)
{
    return json_object_size(file->root) - (json_object_get(file->root, METADATA) != NULL);
}

const char *safetensors_text(const safetensors *file, const char *name)
{
    return json_string_value(json_object_get(json_object_get(file->root, METADATA), name));
}

int safetensors_tensor(safetensors *file, array *out, const char *tensor, io_error *error)
{
    *out = (array){ 0 };
    file->error = error;
    return read_tensor(out, file, tensor);
}

static const char *without_metadata(const safetensors *file, void *at)
{
    if (at && strcmp(json_object_iter_key(at), METADATA) == 0) at = json_object_iter_next(file->root, at);
    return at ? json_object_iter_key(at) : NULL;
}

const char *safetensors_next(const safetensors *file, const char *tensor)
{
    if (!tensor) return without_metadata(file, json_object_iter(file->root));
    return without_metadata(file, json_object_iter_next(file->root, json_object_iter_at(file->root, tensor)));
}

bool safetensors_find(const safetensors *file, const char *tensor, safetensors_place *out)
{
    const json_t *entry = strcmp(tensor, METADATA) == 0 ? NULL : json_object_get(file->root, tensor);
    if (!entry) return false;
    extent place;
    *out = (safetensors_place){ .type = json_string_value(json_object_get(entry, "dtype")) };
    /* Both were checked when the file was opened. */
    if (tensor_shape(file, tensor, entry, &out->rank, out->shape) ||
        tensor_offsets(file, tensor, entry, &place))
        return false;
    out->begin = file->data_begin + place.begin;
    out->bytes = place.end - place.begin;
    return true;
}

/* ---------------------------------------------------------------- writing */

static size_t bytes_of(const array *a) { return (size_t)a->count * array_dtype_bytes(a->dtype); }

/* Functions of jansson take NULL, and say so. */
static bool add_entry(json_t *root, const char *name, const array *a, int64_t begin)
{
    json_t *entry = json_object(), *shape = json_array(), *offsets = json_array();
    bool whole = true;
    for (int axis = 0; axis < a->rank; axis++)
        whole = json_array_append_new(shape, json_integer(a->shape[axis])) == 0 && whole;
    whole = json_array_append_new(offsets, json_integer(begin)) == 0 && whole;
    whole = json_array_append_new(offsets, json_integer(begin + (int64_t)bytes_of(a))) == 0 && whole;
    whole = json_object_set_new(entry, "dtype", json_string(dtype_names[a->dtype])) == 0 && whole;
    whole = json_object_set_new(entry, "shape", shape) == 0 && whole;
    whole = json_object_set_new(entry, "data_offsets", offsets) == 0 && whole;
    return json_object_set_new(root, name, entry) == 0 && whole;
}

static bool add_texts(json_t *root, const char *const *texts)
{
    json_t *all = json_object();
    bool whole = true;
    for (; *texts; texts += 2)
        whole = json_object_set_new(all, texts[0], json_string(texts[1])) == 0 && whole;
    return json_object_set_new(root, METADATA, all) == 0 && whole;
}

/* Into memory of the right size: json_dumps does not notice each allocation that fails. */
static char *dump(const json_t *root)
{
    const size_t length = json_dumpb(root, NULL, 0, JSON_COMPACT);
    char *text = length > 0 ? malloc(length + 1) : NULL;
    if (text && json_dumpb(root, text, length, JSON_COMPACT) == length) {
        text[length] = '\0';
        return text;
    }
    free(text);
    return NULL;
}

/* NULL where memory ran out, or a text is not UTF-8. */
static char *header_text(const safetensors_contents *contents)
{
    json_t *root = json_object();
    int64_t begin = 0;
    bool whole = !*contents->texts || add_texts(root, contents->texts);
    for (size_t i = 0; i < contents->count; i++) {
        assert(!json_object_get(root, contents->names[i]));
        whole = add_entry(root, contents->names[i], &contents->tensors[i], begin) && whole;
        begin += (int64_t)bytes_of(&contents->tensors[i]);
    }
    char *text = whole ? dump(root) : NULL;
    json_decref(root);
    return text;
}

static int put_data(void *context, size_t index, FILE *stream, io_error *error)
{
    const array *tensors = context;
    (void)error;
    fwrite(tensors[index].data, 1, bytes_of(&tensors[index]), stream);
    return 0;
}

/* The header is filled up with spaces, so that the data begin at a multiple of 8. */
static void write_header(FILE *stream, const char *header)
{
    const size_t length = strlen(header), padded = (length + 7) / 8 * 8;
    for (int i = 0; i < LENGTH_BYTES; i++)
        fputc((int)(padded >> 8 * i & 255), stream);
    fprintf(stream, "%-*s", (int)padded, header);
}

int safetensors_write_by(const char *path, const safetensors_contents *contents, safetensors_put *put,
                         void *context, io_error *error)
{
    char *header = header_text(contents);
    if (!header) return io_fail(error, EXIT_INTERNAL, "out of memory for the header of %s", path);
    out_file *file = NULL;
    int status = out_open(&file, path, error);
    if (!status) write_header(out_stream(file), header);
    for (size_t i = 0; !status && i < contents->count; i++)
        status = put(context, i, out_stream(file), error);
    if (!status)
        status = out_commit(file, error);
    else
        out_discard(file);
    free(header);
    return status;
}

int safetensors_write(const char *path, const safetensors_contents *contents, io_error *error)
{
    return safetensors_write_by(path, contents, put_data, (void *)(uintptr_t)contents->tensors, error);
}
