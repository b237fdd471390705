/* SPDX-License-Identifier: MIT */
#include "tests/distill/scene.h"

#include "random/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

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

void scene_close(scene *s)
{
    activations_close(&s->of);
    lm_model_close(s->model);
    lm_files_close(s->files);
    machine_close(&s->on);
}
