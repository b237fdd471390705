/* SPDX-License-Identifier: MIT */
#include "tests/distill/scene.h"

#include "random/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { LAYERS = 8 };

void scene_open(scene *s, const char *name)
{
    const lm_options options = lm_options_default();
    io_error error;
    char path[4096];
    const char *const folder = getenv("LOAM_TEST_DATA"); /* of gpu-bundle.sh */
    snprintf(path, sizeof path, "%s%s/%s", folder ? folder : LM_TEST_DATA, folder ? "/lm" : "", name);
    *s = (scene){ .on = machine_cpu(LOAM_F32, 1) };
    if (lm_files_open(&s->files, path, &error)) fail_msg("%s", error.text);
    if (lm_model_open(&s->model, &s->on, s->files, &options, &error)) fail_msg("%s", error.text);
    s->config = lm_model_config(s->model);
    for (uint64_t i = 0; i < SCENE_WINDOWS * SCENE_TOKENS; i++) {
        uint64_t word;
        random_words((random_stream){ 12, 0 }, i, 1, &word);
        s->ids[i / SCENE_TOKENS][i % SCENE_TOKENS] = random_below(word, s->config->vocabulary);
    }
    if (activations_open(&s->of, s->model, s->ids[0], SCENE_WINDOWS, SCENE_TOKENS, NULL, NULL, &error))
        fail_msg("%s", error.text);
}

void scene_uneven(scene *s)
{
    static const int64_t lengths[SCENE_WINDOWS] = { SCENE_TOKENS, 1, 7, 16 };
    io_error error;
    activations_close(&s->of);
    if (activations_open_texts(&s->of, s->model, s->ids[0], lengths, SCENE_WINDOWS, NULL, NULL, &error))
        fail_msg("%s", error.text);
}

static void fill(double *x, int64_t count, double size, uint64_t stream)
{
    random_normals((random_stream){ 3, stream }, 0, count, x);
    for (int64_t i = 0; i < count; i++)
        x[i] *= size;
}

student scene_student(const scene *s, bool shared)
{
    int64_t features[LAYERS];
    io_error error;
    student made;
    assert_true(s->config->layers <= LAYERS);
    for (int64_t i = 0; i < LAYERS; i++)
        features[i] = 3 + 2 * i;
    if (student_open(&made, &s->of, features, shared, &error)) fail_msg("%s", error.text);
    for (int64_t i = 0; i < made.layers; i++) {
        const student_layer *l = &made.layer[i];
        const int64_t heads = made.heads, d = made.channels;
        fill(l->z, heads * l->features * d, 1, (uint64_t)(8 * i));
        fill(l->log_alpha, heads * l->features, 1, (uint64_t)(8 * i + 1));
        l->log_alpha[heads * l->features - 1] = -1e4; /* not used: student_use */
        fill(l->shift, heads * d, 0.5, (uint64_t)(8 * i + 2));
        fill(l->balance, heads * d * d, 0.3, (uint64_t)(8 * i + 3));
        fill(l->balance_keys, heads * d * d, 0.3, (uint64_t)(8 * i + 4));
    }
    return made;
}

void scene_untie(student *s)
{
    io_error error;
    if (student_untie(s, &error)) fail_msg("%s", error.text);
    for (int64_t i = 0; i < s->layers; i++)
        fill(s->layer[i].z_keys, s->heads * s->layer[i].features * s->channels, 1, (uint64_t)(8 * i + 5));
}

void scene_close(scene *s)
{
    activations_close(&s->of);
    lm_model_close(s->model);
    lm_files_close(s->files);
    machine_close(&s->on);
}
