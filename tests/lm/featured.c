/* SPDX-License-Identifier: MIT */
#include "tests/lm/featured.h"

#include "lm/write.h"
#include "random/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

typedef struct source {
    lm_files *files;
    bool untied;
} source;

/* Weights of a model, and any numbers for features. */
static int read_student(const void *from, lm_part part, int64_t layer, int64_t first, int64_t count,
                        loam_dtype dtype, void *out, io_error *error)
{
    const source *const s = from;
    lm_config config = *lm_files_config(s->files);
    int64_t rows, columns;
    if (part < LM_FEATURE_Z) return lm_files_read(s->files, part, layer, first, count, dtype, out, error);
    config.mechanism = LOAM_LINEAR, config.features[layer] = 1, config.features_untied = s->untied;
    lm_part_shape(&config, part, layer, &rows, &columns);
    for (int64_t i = 0; i < count * columns; i++) {
        double x;
        random_normals((random_stream){ 5, (uint64_t)part }, (uint64_t)(first * columns + i), 1, &x);
        ((float *)out)[i] = (float)(part == LM_FEATURE_Z ? x : x / 4);
    }
    return 0;
}

static void write_student(const char *to, const char *path, int64_t first, bool shared, bool untied)
{
    char file[2][512];
    source s = { .untied = untied };
    io_error error;
    if (lm_files_open(&s.files, path, &error)) fail_msg("%s", error.text);
    lm_config config = *lm_files_config(s.files);
    config.mechanism = LOAM_LINEAR, config.features_shared = shared, config.features_untied = untied;
    for (int64_t i = 0; i < config.layers; i++)
        config.features[i] = (int16_t)(i == 0 ? first : 24);
    snprintf(file[0], sizeof file[0], "%s/config.json", to);
    snprintf(file[1], sizeof file[1], "%s/model.safetensors", to);
    if (lm_config_write(&config, file[0], &error) ||
        lm_write(file[1], &config, LOAM_F32, read_student, &s, &error))
        fail_msg("%s", error.text);
    lm_files_close(s.files);
}

void write_featured(const char *to, const char *path, int64_t first, bool shared)
{
    write_student(to, path, first, shared, false);
}

void write_untied(const char *to, const char *path, int64_t first)
{
    write_student(to, path, first, false, true);
}
