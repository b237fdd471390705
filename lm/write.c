/* SPDX-License-Identifier: MIT */
#include "lm/write.h"

#include "io/safetensors.h"
#include "lm/names.h"

#include <stdlib.h>
#include <string.h>

enum { PIECE = 1 << 20 };

/* An array of the file: one part, or, where those share it, a query, key and value. */
typedef struct item {
    lm_part part;
    int64_t layer;
} item;

typedef struct writing {
    const lm_config *config;
    loam_dtype dtype;
    lm_reader *read;
    const void *from;
    size_t count;
    item *items;
    array *shapes;
    char (*texts)[LM_NAME_TEXT];
    const char **names;
} writing;

static lm_name name_of(const writing *w, lm_part part)
{
    return lm_name_of((int)w->config->architecture, part);
}

/* ---------------------------------------------------------------- what there is to write */

static loam_dtype dtype_of(const writing *w, lm_part part)
{
    return part >= LM_FEATURE_Z ? LOAM_F32 : w->dtype;
}

/* BERT's encoder is saved without the prefix of its family, the head of logits never has one. */
static bool has_prefix(const writing *w, lm_part part)
{
    return part != LM_HEAD && w->config->architecture != LM_BERT;
}

static void add_item(writing *w, lm_part part, int64_t layer)
{
    int64_t rows, columns;
    lm_part_shape(w->config, part, layer, &rows, &columns);
    const lm_name name = name_of(w, part);
    if (!rows || name.third > 0) return;
    array *shape = &w->shapes[w->count];
    *shape = (array){ .dtype = dtype_of(w, part) };
    lm_name_shape(name, part, rows, columns, &shape->rank, shape->shape);
    shape->count = shape->shape[0] * (shape->rank == 2 ? shape->shape[1] : 1);
    w->names[w->count] = lm_name_text((int)w->config->architecture, part, layer, has_prefix(w, part),
                                      w->texts[w->count]);
    w->items[w->count++] = (item){ part, layer };
}

static void add_items(writing *w)
{
    for (int part = 0; part < LM_NORM_1; part++)
        add_item(w, (lm_part)part, 0);
    for (int64_t layer = 0; layer < w->config->layers; layer++)
        for (int part = LM_NORM_1; part < LM_PARTS; part++)
            add_item(w, (lm_part)part, layer);
}

/* ---------------------------------------------------------------- data */

/* Pieces of whole rows. */
static int put_rows(const writing *w, item it, FILE *stream, io_error *error)
{
    int64_t rows, columns;
    lm_part_shape(w->config, it.part, it.layer, &rows, &columns);
    const loam_dtype dtype = dtype_of(w, it.part);
    const size_t bytes = (size_t)columns * array_dtype_bytes(dtype);
    const int64_t step = bytes < PIECE ? (int64_t)(PIECE / bytes) : 1;
    void *piece = malloc(bytes * (size_t)step);
    int status = piece ? 0 : io_fail(error, EXIT_INTERNAL, "out of memory for %lld rows", (long long)step);
    for (int64_t row = 0; !status && row < rows; row += step) {
        const int64_t now = rows - row < step ? rows - row : step;
        status = w->read(w->from, it.part, it.layer, row, now, dtype, piece, error);
        if (!status) fwrite(piece, bytes, (size_t)now, stream);
    }
    free(piece);
    return status;
}

/* Puts a part, [rows][columns], where it belongs in its array. */
static void place_part(const writing *w, lm_part part, const array *shape, const unsigned char *part_data,
                       unsigned char *out)
{
    int64_t rows, columns;
    const lm_name name = name_of(w, part);
    const size_t bytes = array_dtype_bytes(w->dtype);
    lm_part_shape(w->config, part, 0, &rows, &columns);
    if (lm_part_is_vector(part)) rows = columns, columns = 1;
    for (int64_t i = 0; i < rows; i++) {
        const int64_t place = lm_name_place(name, rows, w->config->head_dim, i);
        const unsigned char *row = part_data + (size_t)(i * columns) * bytes;
        if (name.layout != LM_COLUMNS || shape->rank == 1) {
            memcpy(out + (size_t)(place * columns) * bytes, row, (size_t)columns * bytes);
            continue;
        }
        for (int64_t k = 0; k < columns; k++)
            memcpy(out + (size_t)(k * shape->shape[1] + place) * bytes, row + (size_t)k * bytes, bytes);
    }
}

static int put_placed(const writing *w, item it, const array *shape, FILE *stream, io_error *error)
{
    const size_t bytes = (size_t)shape->count * array_dtype_bytes(w->dtype);
    const int parts = name_of(w, it.part).third == LM_WHOLE ? 1 : 3;
    unsigned char *all = malloc(bytes), *one = malloc(bytes / (size_t)parts);
    int status = all && one ? 0 : io_fail(error, EXIT_INTERNAL, "out of memory for %zu bytes", bytes);
    for (int i = 0; !status && i < parts; i++) {
        /* Query, key and value, whose biases lie between them. */
        const lm_part part = (lm_part)((int)it.part + i * (LM_K - LM_Q));
        int64_t rows, columns;
        lm_part_shape(w->config, part, it.layer, &rows, &columns);
        status = w->read(w->from, part, it.layer, 0, rows, w->dtype, one, error);
        if (!status) place_part(w, part, shape, one, all);
    }
    if (!status) fwrite(all, 1, bytes, stream);
    free(all);
    free(one);
    return status;
}

static int put_item(void *context, size_t index, FILE *stream, io_error *error)
{
    const writing *w = context;
    const item it = w->items[index];
    if (name_of(w, it.part).layout == LM_ROWS) return put_rows(w, it, stream, error);
    return put_placed(w, it, &w->shapes[index], stream, error);
}

/* ---------------------------------------------------------------- all of it */

int lm_write(const char *path, const lm_config *config, loam_dtype dtype, lm_reader *read, const void *from,
             io_error *error)
{
    /* The library asks for this text. */
    static const char *const texts[] = { "format", "pt", NULL };
    const size_t most = LM_NORM_1 + (size_t)config->layers * (LM_PARTS - LM_NORM_1);
    writing w = { .config = config, .dtype = dtype, .read = read, .from = from };
    w.items = malloc(most * sizeof *w.items);
    w.shapes = malloc(most * sizeof *w.shapes);
    w.texts = malloc(most * sizeof *w.texts);
    w.names = malloc(most * sizeof *w.names);
    int status = 0;
    if (!w.items || !w.shapes || !w.texts || !w.names) {
        status = io_fail(error, EXIT_INTERNAL, "out of memory for the names in %s", path);
    } else {
        add_items(&w);
        const safetensors_contents contents = { w.count, w.names, w.shapes, texts };
        status = safetensors_write_by(path, &contents, put_item, &w, error);
    }
    free(w.items);
    free(w.shapes);
    free(w.texts);
    free(w.names);
    return status;
}
