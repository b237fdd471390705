/* SPDX-License-Identifier: MIT */
#include "distill/model.h"

#include <assert.h>

int student_model_make(student_model *m, const lm_files *teacher, const student *s, int64_t only,
                       io_error *error)
{
    *m = (student_model){ *lm_files_config(teacher), teacher, s };
    lm_config *const c = &m->config;
    assert(c->mechanism == LOAM_SOFTMAX && !c->forgets);
    if (c->layers > LM_MAX_FEATURE_LAYERS)
        return io_fail(error, EXIT_USAGE, "%lld layers: expected at most %d", (long long)c->layers,
                       LM_MAX_FEATURE_LAYERS);
    c->mechanism = LOAM_LINEAR, c->features_shared = s->queries > 1;
    c->features_untied = s->layer[0].z_keys != NULL;
    c->sinks = s->sinks, c->window = s->window;
    for (int64_t i = 0; i < c->layers; i++)
        c->features[i] = (int16_t)(only < 0 || only == i ? s->layer[i].features : 0);
    return 0;
}

static student_array wide_of(lm_part part)
{
    switch (part) {
    case LM_FEATURE_Z: return STUDENT_Z;
    case LM_FEATURE_SHIFT: return STUDENT_SHIFT;
    case LM_FEATURE_BALANCE: return STUDENT_BALANCE;
    default: return STUDENT_BALANCE_KEYS;
    }
}

static const double *array_of(const student_layer *l, lm_part part)
{
    switch (part) {
    case LM_FEATURE_Z: return l->z;
    case LM_FEATURE_ALPHA: return l->log_alpha;
    case LM_FEATURE_SHIFT: return l->shift;
    case LM_FEATURE_BALANCE: return l->balance;
    case LM_FEATURE_GAIN: return l->gain;
    default: return l->balance_keys;
    }
}

int student_model_read(const void *model, lm_part part, int64_t layer, int64_t first, int64_t count,
                       loam_dtype dtype, void *out, io_error *error)
{
    const student_model *m = model;
    int64_t rows, columns;
    if (part < LM_FEATURE_Z) return lm_files_read(m->teacher, part, layer, first, count, dtype, out, error);
    assert(dtype == LOAM_F32);
    lm_part_shape(&m->config, part, layer, &rows, &columns);
    for (int64_t i = 0; m->config.features_untied && part != LM_FEATURE_ALPHA && i < count; i++)
        student_wide_row(m->s, layer, wide_of(part), first + i, (float *)out + i * columns);
    if (m->config.features_untied && part != LM_FEATURE_ALPHA) return 0;
    const double *from = array_of(&m->s->layer[layer], part) + first * columns;
    for (int64_t e = 0; e < count * columns; e++)
        ((float *)out)[e] = (float)from[e];
    return 0;
}
