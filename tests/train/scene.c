/* SPDX-License-Identifier: MIT */
#include "tests/train/scene.h"

#include "tests/train/fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

model_shape scene_words(int64_t models, int64_t batch)
{
    return (model_shape){ .from = { .task = TRAIN_RECALL,
                                    .recall = { .length = 12, .words = 16, .fill = true },
                                    .part = { { 2, { 3, 3 } }, { 3, { 1 << 20, 3 } } } },
                          .models = models,
                          .batch = batch,
                          .layers = 2,
                          .width = 16,
                          .heads = 2 };
}

model_shape scene_regression(int64_t models, int64_t batch)
{
    return (model_shape){
        .from = { .task = TRAIN_REGRESSION, .regression = { 8, 4, 3, 2, 4, 0.1 } },
        .models = models,
        .batch = batch,
        .layers = 2,
        .width = 16,
        .heads = 2,
    };
}

void scene_fill(scene *s, const uint64_t *seeds, int32_t first)
{
    int32_t examples[SCENE_BATCH];
    assert_true(s->shape.batch <= SCENE_BATCH);
    for (int32_t i = 0; i < s->shape.batch; i++)
        examples[i] = first + i;
    for (int64_t m = 0; m < s->shape.models; m++)
        batch_fill(&s->data, m, &s->shape.from, seeds[m], TRAIN_SPLIT_TRAIN, examples);
}

const mixer_options scene_options = { .ridge_least = 0.01, .ridge_most = 1 };

void scene_open(scene *s, loam_dtype dtype, int threads, const char *name, const model_shape *shape,
                const uint64_t *seeds, int32_t first)
{
    scene_open_with(s, &scene_options, dtype, threads, name, shape, seeds, first);
}

void scene_open_with(scene *s, const mixer_options *options, loam_dtype dtype, int threads, const char *name,
                     const model_shape *shape, const uint64_t *seeds, int32_t first)
{
    const mixer *row = mixer_find(name);
    loam_error error;
    assert_non_null(row);
    *s = (scene){ .on = machine_cpu(dtype, threads), .shape = *shape };
    if (model_create(&s->net, &s->on, row, shape, options, seeds, &error)) fail_msg("%s", error.text);
    assert_true(batch_open(&s->data, &s->on, &shape->from, shape->models, shape->batch));
    scene_fill(s, seeds, first);
}

void scene_close(scene *s)
{
    model_destroy(s->net);
    batch_close(&s->data);
}

void scene_pass(scene *s, bool back)
{
    loam_error error;
    if (back ? model_gradients(s->net, &s->data, &error) : model_test(s->net, &s->data, &error))
        fail_msg("%s", error.text);
}

double scene_loss(const scene *s, int64_t model)
{
    const matrix each = model_results(s->net);
    const bool words = source_words(&s->shape.from) > 0;
    double sum = 0;
    for (int64_t i = 0; i < each.rows; i++)
        sum += fixture_get(each, (model * each.rows + i) * each.width);
    return sum / (double)(words ? s->data.here.counts[model] : each.rows);
}

void scene_stir(scene *s)
{
    int count;
    const parameter *list = model_parameters(s->net, &count);
    for (int n = 0; n < count; n++) {
        matrix noise = fixture_matrix(&s->on, list[n].x.models, list[n].x.rows, list[n].x.width);
        fixture_fill(noise, 100 + (uint64_t)n);
        s->on.op->combine(&s->on, list[n].x, 1, list[n].x, 0.3, noise);
        free(noise.data);
    }
}
