/* SPDX-License-Identifier: MIT */
#include "lm/files.h"

#include "lm/names.h"
#include "lm/path.h"
#include "lm/store.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { LAYER_PARTS = LM_PARTS - LM_NORM_1, TILE = 64 };

/* A part's array. A vector is a matrix of one column here, so that its elements are rows. */
typedef struct source {
    tensor array;
    lm_name name;
    int64_t rows, columns; /* of the part */
} source;

struct lm_files {
    const char *path;
    lm_config config;
    lm_store *store;
    int names;
    source *sources; /* of the model, then of each layer */
    tensor_type type;
    int64_t bytes;
};

static source *source_at(const lm_files *f, lm_part part, int64_t layer)
{
    return &f->sources[part < LM_NORM_1 ? part : part + layer * LAYER_PARTS];
}

/* ---------------------------------------------------------------- opening */

static int read_config(lm_files *f, io_error *error)
{
    const gguf *one = lm_store_gguf(f->store);
    f->names = LM_NAMES_GGUF;
    if (one) return lm_config_gguf(&f->config, one, f->path, error);
    char *path;
    int status = lm_path(&path, f->path, "config.json", error);
    if (!status) status = lm_config_read(&f->config, path, error);
    free(path);
    f->names = (int)f->config.architecture;
    return status;
}

static int find_array(const lm_files *f, lm_part part, int64_t layer, tensor *out, io_error *error)
{
    char name[LM_NAME_TEXT], text[64];
    bool found = false;
    for (int prefix = 1; prefix >= 0; prefix--) {
        const int status = lm_store_find(f->store, lm_name_text(f->names, part, layer, prefix, name), out,
                                         &found, error);
        if (status || found) return status;
    }
    return io_fail(error, EXIT_INPUT, "%s has no '%s', %s", f->path, name, lm_part_text(part, layer, text));
}

static int check_shape(const lm_files *f, lm_part part, int64_t layer, const tensor *t, io_error *error)
{
    int64_t rows, columns, shape[2];
    int rank;
    lm_part_shape(&f->config, part, layer, &rows, &columns);
    lm_name_shape(lm_name_of(f->names, part), part, rows, columns, &rank, shape);
    if (t->rank == rank && memcmp(shape, t->shape, (size_t)rank * sizeof *shape) == 0) return 0;
    char name[LM_NAME_TEXT], found[ARRAY_TEXT], expected[ARRAY_TEXT];
    return io_fail(error, EXIT_INPUT, "%s: '%s' is of shape %s; expected %s", f->path,
                   lm_name_text(f->names, part, layer, false, name),
                   array_shape_text(found, t->rank, t->shape), array_shape_text(expected, rank, shape));
}

static int find_part(lm_files *f, lm_part part, int64_t layer, io_error *error)
{
    source *s = source_at(f, part, layer);
    int64_t rows, columns;
    lm_part_shape(&f->config, part, layer, &rows, &columns);
    if (!rows) return 0;
    *s = (source){ .name = lm_name_of(f->names, part), .rows = rows, .columns = columns };
    if (lm_part_is_vector(part)) s->rows = columns, s->columns = 1;
    int status = find_array(f, part, layer, &s->array, error);
    if (!status) status = check_shape(f, part, layer, &s->array, error);
    return status;
}

static int64_t layers_with(const lm_files *f, lm_part part)
{
    return part < LM_NORM_1 ? 1 : f->config.layers;
}

static int find_parts(lm_files *f, io_error *error)
{
    /* Each layer has arrays of its own: more layers than arrays are no model, and take no memory. */
    if (f->config.layers > lm_store_count(f->store))
        return io_fail(error, EXIT_INPUT, "%s has %lld tensors, too few for %lld layers", f->path,
                       (long long)lm_store_count(f->store), (long long)f->config.layers);
    f->sources = calloc((size_t)(LM_NORM_1 + f->config.layers * LAYER_PARTS), sizeof *f->sources);
    if (!f->sources) return io_fail(error, EXIT_INTERNAL, "out of memory for the parts of %s", f->path);
    for (int part = 0; part < LM_PARTS; part++)
        for (int64_t layer = 0; layer < layers_with(f, (lm_part)part); layer++) {
            const int status = find_part(f, (lm_part)part, layer, error);
            if (status) return status;
        }
    return 0;
}

typedef struct known {
    const lm_files *files;
    io_error *error;
} known;

static int check_known(void *context, gguf_text name)
{
    const known *k = context;
    if (lm_name_known(k->files->names, &k->files->config, name.at, name.bytes)) return 0;
    return io_fail(k->error, EXIT_INPUT, "%s: tensor '%.*s' is no part of %s that is known here",
                   k->files->path, (int)(name.bytes < 100 ? name.bytes : 100), name.at,
                   lm_architecture_name(k->files->config.architecture));
}

/* An array that is three parts counts once. */
static void add_up(lm_files *f)
{
    int64_t counts[TENSOR_TYPES] = { 0 };
    for (int part = 0; part < LM_PARTS; part++)
        for (int64_t layer = 0; layer < layers_with(f, (lm_part)part); layer++) {
            const source *s = source_at(f, (lm_part)part, layer);
            if (!s->rows || s->name.third > 0) continue;
            if (part < LM_FEATURE_Z) counts[s->array.type] += s->array.count;
            f->bytes += tensor_bytes(&s->array);
        }
    for (int type = 0; type < TENSOR_TYPES; type++)
        if (counts[type] > counts[f->type]) f->type = (tensor_type)type;
}

int lm_files_open(lm_files **made, const char *path, io_error *error)
{
    *made = NULL;
    lm_files *f = calloc(1, sizeof *f);
    if (!f) return io_fail(error, EXIT_INTERNAL, "out of memory for the files of %s", path);
    f->path = path;
    int status = lm_store_open(&f->store, path, error);
    if (!status) status = read_config(f, error);
    if (!status) status = find_parts(f, error);
    if (!status) status = lm_store_each(f->store, check_known, &(known){ f, error });
    if (status) {
        lm_files_close(f);
        return status;
    }
    add_up(f);
    *made = f;
    return 0;
}

void lm_files_close(lm_files *f)
{
    if (!f) return;
    lm_store_close(f->store);
    free(f->sources);
    free(f);
}

const lm_config *lm_files_config(const lm_files *f) { return &f->config; }

const char *lm_files_type(const lm_files *f) { return tensor_type_name(f->type); }

int64_t lm_files_bytes(const lm_files *f) { return f->bytes; }

/* ---------------------------------------------------------------- reading */

/* Rows that follow each other in the array too are read at once. */
static void read_rows(const source *s, int64_t head_dim, int64_t first, int64_t count, loam_dtype dtype,
                      unsigned char *out)
{
    for (int64_t i = 0; i < count;) {
        const int64_t place = lm_name_place(s->name, s->rows, head_dim, first + i);
        int64_t run = 1;
        while (i + run < count && lm_name_place(s->name, s->rows, head_dim, first + i + run) == place + run)
            run++;
        tensor_read(&s->array, place * s->columns, run * s->columns, dtype, out);
        out += (size_t)(run * s->columns) * array_dtype_bytes(dtype);
        i += run;
    }
}

/* A column of the part is a piece of a row of the array. Tiles of rows of the part keep what is written in
 * the cache. */
static void read_columns(const source *s, int64_t first, int64_t count, loam_dtype dtype, unsigned char *out)
{
    const size_t bytes = array_dtype_bytes(dtype);
    const int64_t stride = s->array.shape[1], begin = lm_name_place(s->name, s->rows, 1, first);
    unsigned char piece[TILE * sizeof(float)];
    for (int64_t i = 0; i < count; i += TILE) {
        const int64_t now = count - i < TILE ? count - i : TILE;
        for (int64_t column = 0; column < s->columns; column++) {
            tensor_read(&s->array, column * stride + begin + i, now, dtype, piece);
            for (int64_t k = 0; k < now; k++)
                memcpy(out + (size_t)((i + k) * s->columns + column) * bytes, piece + (size_t)k * bytes,
                       bytes);
        }
    }
}

int lm_files_read(const lm_files *f, lm_part part, int64_t layer, int64_t first, int64_t count,
                  loam_dtype dtype, void *out, io_error *error)
{
    int64_t rows, columns;
    char text[64];
    lm_part_shape(&f->config, part, layer, &rows, &columns);
    if (layer < 0 || layer >= layers_with(f, part) || first < 0 || count < 0 || first > rows ||
        count > rows - first)
        return io_fail(error, EXIT_INTERNAL, "%s has %lld rows; %lld rows from %lld on were asked for",
                       lm_part_text(part, layer, text), (long long)rows, (long long)count, (long long)first);
    if (dtype == LOAM_F64)
        return io_fail(error, EXIT_INTERNAL, "%s was asked for as f64; expected f32, bf16 or f16",
                       lm_part_text(part, layer, text));
    const source *s = source_at(f, part, layer);
    if (count == 0) return 0;
    if (lm_part_is_vector(part)) first = 0, count = s->rows;
    if (s->name.layout == LM_COLUMNS && s->array.rank == 2)
        read_columns(s, first, count, dtype, out);
    else
        read_rows(s, f->config.head_dim, first, count, dtype, out);
    return 0;
}

const void *lm_files_mapped(const lm_files *f, lm_part part, int64_t layer, loam_dtype dtype)
{
    assert(layer >= 0 && layer < layers_with(f, part));
    const source *s = source_at(f, part, layer);
    const size_t bytes = array_dtype_bytes(dtype);
    const bool as_it_is = s->name.layout == LM_ROWS || (s->name.layout == LM_COLUMNS && s->array.rank == 1);
    if (!s->rows || !as_it_is || s->array.type != tensor_type_of(dtype)) return NULL;
    const unsigned char *at = s->array.data + (size_t)lm_name_place(s->name, s->rows, 1, 0) * bytes;
    return (uintptr_t)at % bytes == 0 ? at : NULL;
}

void lm_files_forget(const lm_files *f, lm_part part, int64_t layer)
{
    assert(layer >= 0 && layer < layers_with(f, part));
    const source *s = source_at(f, part, layer);
    if (s->rows) lm_store_forget(f->store, s->array.data, (size_t)tensor_bytes(&s->array));
}
