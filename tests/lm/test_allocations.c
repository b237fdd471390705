/* SPDX-License-Identifier: MIT
 * Every allocation on the way from and to models' files fails once: each time an error that says so, and
 * nothing half done. What jansson allocates is seen only where it writes: reading, it calls some of its
 * failures wrong JSON. */
#define _XOPEN_SOURCE 700
#include "lm/pretrained.h"
#include "lm/shards.h"
#include "lm/tuned.h"
#include "lm/write.h"
#include "tests/lm/folder.h"
#include "tests/lm/grammar.h"
#include "tests/support/alloc_fail.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static int open_model(const char *path, io_error *error)
{
    lm_files *f;
    const int status = lm_files_open(&f, path, error);
    assert_int_equal(status != 0, f == NULL);
    lm_files_close(f);
    return status;
}

static int open_plain(io_error *error) { return open_model(LM_TEST_DATA "/gpt2-scaled", error); }

static int open_sharded(io_error *error) { return open_model(LM_TEST_DATA "/llama-sharded", error); }

static int open_gguf(io_error *error) { return open_model(LM_TEST_DATA "/llama-gguf/model.gguf", error); }

static int read_part(const void *from, lm_part part, int64_t layer, int64_t first, int64_t count,
                     loam_dtype dtype, void *out, io_error *error)
{
    return lm_files_read(from, part, layer, first, count, dtype, out, error);
}

/* Opened beforehand, so that only what is written allocates. */
static const lm_files *model;

static int write_config(io_error *error)
{
    return lm_config_write(lm_files_config(model), "config.json", error);
}

static int write_weights(io_error *error)
{
    return lm_write("model.safetensors", lm_files_config(model), LOAM_BF16, read_part, model, error);
}

static const lm_tuned *tuned;

static int write_tuned(io_error *error)
{
    const int status = lm_write("model.safetensors", lm_files_config(model), LOAM_F32, lm_tuned_read, tuned,
                                error);
    lm_tuned_close(tuned);
    return status;
}

/* `action` with its first, second, ... allocation failing, until it has no more. */
static void fail_each(int (*action)(io_error *error), const char *written)
{
    for (int nth = 1;; nth++) {
        io_error error = { 0 };
        alloc_fail_at(nth);
        const int status = action(&error);
        const bool happened = alloc_fail_happened();
        alloc_fail_at(0);
        if (!happened) {
            if (status) fail_msg("with every allocation: %s", error.text);
            assert_true(nth > 5);
            if (written) assert_int_equal(unlink(written), 0);
            return;
        }
        if (status != EXIT_INTERNAL || !strstr(error.text, "out of memory"))
            fail_msg("allocation %d: status %d, '%s'", nth, status, error.text);
        if (written) assert_int_equal(access(written, F_OK), -1);
    }
}

static void models_are_opened(void **state)
{
    (void)state;
    fail_each(open_plain, NULL);
    fail_each(open_sharded, NULL);
    fail_each(open_gguf, NULL);
}

static int open_shards(io_error *error)
{
    lm_shards s;
    const int status = lm_shards_open(&s, "data", error);
    lm_shards_close(&s);
    return status;
}

static void shards_are_read(void **state)
{
    (void)state;
    grammar_write("data");
    fail_each(open_shards, NULL);
    grammar_remove("data");
}

static void models_are_written(void **state)
{
    (void)state;
    lm_files *f;
    io_error error;
    if (lm_files_open(&f, LM_TEST_DATA "/neox", &error)) fail_msg("%s", error.text);
    model = f;
    json_set_alloc_funcs(alloc_fail_malloc, alloc_fail_free);
    fail_each(write_config, "config.json");
    fail_each(write_weights, "model.safetensors");
    lm_files_close(f);
}

/* All weights moved, and A B beside some. */
static void trained_models_are_written(void **state)
{
    (void)state;
    static const uint16_t tokens[8] = { 0 };
    static const uint64_t seed = 1;
    const machine on = machine_cpu(LOAM_F32, 1);
    lm_files *f;
    io_error error;
    loam_error reason;
    train_model *net;
    if (lm_files_open(&f, LM_TEST_DATA "/llama", &error)) fail_msg("%s", error.text);
    const lm_config *c = lm_files_config(f);
    trainer_options o = trainer_options_default(lm_pretrained_mixer(c));
    if (lm_pretrained_options(&o, c, "llama", &error)) fail_msg("%s", error.text);
    o.mixing.low = 1 << LOW_Q | 1 << LOW_OUT, o.mixing.rank = 2;
    o.shape.models = o.shape.batch = 1;
    o.shape.from = (train_source){ .task = TRAIN_TEXT,
                                   .text = { 4, c->vocabulary, { tokens, tokens }, { 8, 8 }, 0 },
                                   .part = { { 0, { 1, 1 } } } };
    if (model_create(&net, &on, o.row, &o.shape, &o.mixing, &seed, &reason)) fail_msg("%s", reason.text);
    if (lm_pretrained_fill(net, &on, f, &error)) fail_msg("%s", error.text);
    lm_tuned_part last = { 0 };
    const lm_tuned from = { net, &on, f, &last };
    model = f, tuned = &from;
    fail_each(write_tuned, "model.safetensors");
    model_destroy(net);
    lm_files_close(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(models_are_opened),
        cmocka_unit_test(shards_are_read),
        cmocka_unit_test(models_are_written),
        cmocka_unit_test(trained_models_are_written),
    };
    return cmocka_run_group_tests(tests, folder_setup, folder_teardown);
}
