/* SPDX-License-Identifier: MIT
 * config.json and the keys of .gguf files: what is read, what is refused, what is written. */
#include "lm/config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static lm_config parsed(const char *text)
{
    lm_config c;
    io_error error;
    if (lm_config_parse(&c, text, strlen(text), "c.json", &error)) fail_msg("%s", error.text);
    return c;
}

static void expect_same(const lm_config *a, const lm_config *b)
{
    assert_int_equal(a->architecture, b->architecture);
    assert_int_equal(a->layers, b->layers);
    assert_int_equal(a->width, b->width);
    assert_int_equal(a->heads_q, b->heads_q);
    assert_int_equal(a->heads_kv, b->heads_kv);
    assert_int_equal(a->head_dim, b->head_dim);
    assert_int_equal(a->inner, b->inner);
    assert_int_equal(a->vocabulary, b->vocabulary);
    assert_int_equal(a->context, b->context);
    assert_int_equal(a->types, b->types);
    assert_true(a->norm_eps == b->norm_eps);
    assert_int_equal(a->rope_dim, b->rope_dim);
    assert_true(a->rope_base == b->rope_base);
    assert_int_equal(a->activation, b->activation);
    assert_int_equal(a->mechanism, b->mechanism);
    assert_int_equal(a->forgets, b->forgets);
    assert_true(a->ridge_least == b->ridge_least && a->ridge_most == b->ridge_most);
    assert_int_equal(a->ridge_unit, b->ridge_unit);
    assert_int_equal(a->features_shared, b->features_shared);
    assert_int_equal(a->features_untied, b->features_untied);
    assert_true(a->sinks == b->sinks && a->window == b->window);
    assert_memory_equal(a->features, b->features, sizeof a->features);
    assert_int_equal(a->tied, b->tied);
    assert_int_equal(a->parallel, b->parallel);
    assert_int_equal(a->scale_by_layer, b->scale_by_layer);
    assert_int_equal(a->bos, b->bos);
    assert_int_equal(a->stops, b->stops);
    assert_memory_equal(a->stop, b->stop, sizeof a->stop);
}

/* A file that names its architecture alone is the class's default. */
static const lm_config defaults[] = {
    { .architecture = LM_GPT2,
      .layers = 12,
      .width = 768,
      .heads_q = 12,
      .heads_kv = 12,
      .head_dim = 64,
      .inner = 3072,
      .vocabulary = 50257,
      .context = 1024,
      .norm_eps = 1e-5,
      .activation = LM_GELU_TANH,
      .tied = true,
      .bos = 50256,
      .stop = { 50256 },
      .stops = 1 },
    { .architecture = LM_NEOX,
      .layers = 44,
      .width = 6144,
      .heads_q = 64,
      .heads_kv = 64,
      .head_dim = 96,
      .inner = 24576,
      .vocabulary = 50432,
      .context = 2048,
      .norm_eps = 1e-5,
      .rope_dim = 24,
      .rope_base = 1e4,
      .activation = LM_GELU,
      .parallel = true,
      .bos = 0,
      .stop = { 2 },
      .stops = 1 },
    { .architecture = LM_LLAMA,
      .layers = 32,
      .width = 4096,
      .heads_q = 32,
      .heads_kv = 32,
      .head_dim = 128,
      .inner = 11008,
      .vocabulary = 32000,
      .context = 2048,
      .norm_eps = 1e-6,
      .rope_dim = 128,
      .rope_base = 1e4,
      .activation = LM_SILU,
      .bos = 1,
      .stop = { 2 },
      .stops = 1 },
    { .architecture = LM_BERT,
      .layers = 12,
      .width = 768,
      .heads_q = 12,
      .heads_kv = 12,
      .head_dim = 64,
      .inner = 3072,
      .vocabulary = 30522,
      .context = 512,
      .types = 2,
      .norm_eps = 1e-12,
      .activation = LM_GELU,
      .tied = true,
      .bos = -1 },
};

static void defaults_are_the_classes(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        char text[64];
        snprintf(text, sizeof text, "{\"model_type\":\"%s\"}", lm_architecture_name((lm_architecture)i));
        const lm_config got = parsed(text);
        expect_same(&got, &defaults[i]);
    }
}

static void rotations_have_old_names_and_new(void **state)
{
    (void)state;
#define NEOX "{\"model_type\":\"gpt_neox\",\"hidden_size\":64,\"num_attention_heads\":2,"
    static const char *const rows[] = {
        NEOX "\"rotary_pct\":0.5,\"rotary_emb_base\":500}",
        NEOX "\"rope_parameters\":{\"rope_theta\":500.0,\"partial_rotary_factor\":0.5}}",
        NEOX "\"rope_parameters\":{\"rope_theta\":500,\"rope_type\":\"default\"},\"rotary_pct\":0.5}",
        NEOX
        "\"rope_scaling\":null,\"rope_parameters\":{\"partial_rotary_factor\":0.5},\"rotary_emb_base\":500}",
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const lm_config c = parsed(rows[i]);
        assert_int_equal(c.rope_dim, 16);
        assert_true(c.rope_base == 500);
    }
}

static void tokens_that_end_a_text(void **state)
{
    (void)state;
#define LLAMA "{\"model_type\":\"llama\",\"vocab_size\":100,"
    lm_config c = parsed(LLAMA "\"bos_token_id\":null,\"eos_token_id\":[7,99,100]}");
    assert_int_equal(c.bos, -1);
    assert_int_equal(c.stops, 2);
    assert_int_equal(c.stop[1], 99);
    c = parsed(LLAMA "\"bos_token_id\":5,\"eos_token_id\":null}");
    assert_int_equal(c.bos, 5);
    assert_int_equal(c.stops, 0);
}

#define OF(type, rest) "{\"model_type\":\"" type "\"," rest "}"
static const char *const refused[][2] = {
    { "", "the text is not JSON" },
    { "[]", "the text is not a JSON object" },
    { "{}", "'model_type' is \"\"; expected gpt2, gpt_neox, llama or bert" },
    { "{\"model_type\":3}", "'model_type' is 3; expected a text" },
    { "{\"model_type\":\"mamba\"}", "'model_type' is \"mamba\"; expected gpt2" },
    { OF("gpt2", "\"n_layer\":\"2\""), "'n_layer' is \"2\"; expected a whole number" },
    { OF("gpt2", "\"n_layer\":2.5"), "'n_layer' is 2.5; expected a whole number" },
    { OF("gpt2", "\"n_layer\":0"), "the number of layers is 0; expected 1 to 268435456" },
    { OF("gpt2", "\"n_embd\":-768"), "the number of width is -768" },
    { OF("gpt2", "\"n_embd\":9223372036854775807"), "is 9223372036854775807; expected 1 to" },
    { OF("gpt2", "\"n_head\":7"), "a width of 768 is not divisible by 7 heads" },
    { OF("gpt2", "\"n_inner\":-1"), "the number of inner channels is -1" },
    { OF("gpt2", "\"activation_function\":\"mish\""),
      "'activation_function' is \"mish\"; expected gelu, gelu_new, silu or relu" },
    { OF("gpt2", "\"scale_attn_weights\":false"), "'scale_attn_weights' is false; expected true" },
    { OF("gpt2", "\"add_cross_attention\":true"), "'add_cross_attention' is true; expected none" },
    { OF("gpt2", "\"layer_norm_epsilon\":-1e-5"), "the epsilon of norms is -1e-05" },
    { OF("gpt2", "\"layer_norm_epsilon\":\"x\""), "'layer_norm_epsilon' is \"x\"; expected a number" },
    { OF("gpt2", "\"tie_word_embeddings\":1"), "'tie_word_embeddings' is 1; expected true or false" },
    { OF("gpt2", "\"eos_token_id\":\"end\""), "'eos_token_id' is \"end\"; expected a token's number" },
    { OF("gpt2", "\"eos_token_id\":[1,2,3,4,5,6,7,8,9]"), "'eos_token_id' is [1,2,3,4,5,6,7,8,9]; expected" },
    { OF("gpt2", "\"quantization_config\":{\"bits\":4}"), "'quantization_config' is {\"bits\":4}" },
    { OF("gpt_neox", "\"attention_bias\":false"), "'attention_bias' is false; expected true" },
    { OF("gpt_neox", "\"rotary_pct\":1.5"), "'rotary_pct' is 1.5; expected a share from 0 to 1" },
    { OF("gpt_neox", "\"rotary_pct\":0.18"), "RoPE turns 17 channels" },
    { OF("gpt_neox", "\"rotary_emb_base\":0"), "the base of RoPE is 0; expected more than 0" },
    { OF("llama", "\"attention_bias\":true"), "'attention_bias' is true; expected none" },
    { OF("llama", "\"mlp_bias\":true"), "'mlp_bias' is true; expected none" },
    { OF("llama", "\"num_key_value_heads\":5"), "32 query heads are not divisible by 5 key heads" },
    { OF("llama", "\"head_dim\":127"), "RoPE turns 127 channels; expected an even number" },
    { OF("llama", "\"head_dim\":268435456"), "32 heads of 268435456 channels; expected at most" },
    { OF("llama", "\"hidden_act\":\"quick_gelu\""), "'hidden_act' is \"quick_gelu\"" },
    { OF("llama", "\"sliding_window\":4096"), "'sliding_window' is 4096; expected none" },
    { OF("llama", "\"layer_types\":[\"full_attention\",\"sliding_attention\"]"),
      "'layer_types' is \"sliding_attention\"; expected \"full_attention\"" },
    { OF("llama", "\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}"),
      "'rope_scaling' is {\"type\":\"linear\",\"factor\":2}; expected the type \"default\"" },
    { OF("llama", "\"rope_parameters\":{\"rope_type\":\"llama3\",\"rope_theta\":5e5}"),
      "'rope_parameters' is {\"rope_type\":\"llama3\"" },
    { OF("llama", "\"rope_parameters\":{\"full_attention\":{\"rope_theta\":5e5}}"),
      "'full_attention' is {\"rope_theta\":500000.0}; expected one rotation for all layers" },
    { OF("llama", "\"rope_parameters\":[1]"), "'rope_parameters' is [1]; expected an object" },
    { OF("llama", "\"rope_parameters\":{\"partial_rotary_factor\":0.5}"), "llama turns all channels" },
    { OF("bert", "\"position_embedding_type\":\"relative_key\""),
      "'position_embedding_type' is \"relative_key\"; expected \"absolute\"" },
    { OF("gpt2", "\"loam_attention\":3"), "'loam_attention' is 3; expected an object" },
    { OF("gpt2", "\"loam_attention\":{\"mechanism\":\"mesa\"}"),
      "'mechanism' is \"mesa\"; expected softmax, lla, parallax, fox or features" },
    { OF("gpt2", "\"loam_attention\":{\"mechanism\":\"lla\"}"), "expected 0 < ridge_least <= ridge_most" },
    { OF("gpt2", "\"loam_attention\":{\"mechanism\":\"lla\",\"ridge_least\":2,\"ridge_most\":1}"),
      "expected 0 < ridge_least <= ridge_most" },
    { OF("gpt2", "\"loam_attention\":{\"mechanism\":\"lla\",\"ridge_least\":1,\"ridge_most\":1,"
                 "\"ridge_unit\":\"metre\"}"),
      "'ridge_unit' is \"metre\"; expected normalised, max or trace" },
    { OF("gpt2", "\"loam_attention\":{\"mechanism\":\"lla\",\"ridge\":1}"), "'ridge' is 1; expected none" },
    { OF("gpt2", "\"loam_attention\":{\"mechanism\":\"features\"}"),
      "'loam_attention' is {\"mechanism\":\"features\"}; expected a list of as many numbers as layers" },
    { OF("gpt2", "\"n_layer\":2,\"loam_attention\":{\"mechanism\":\"features\",\"features\":[1,2,3]}"),
      "'features' is [1,2,3]; expected a list of as many numbers as layers" },
    { OF("gpt2", "\"n_layer\":2,\"loam_attention\":{\"mechanism\":\"features\",\"features\":[1,513]}"),
      "'features' is 513; expected a whole number from 0 to 512" },
    { OF("gpt2", "\"n_layer\":2,\"loam_attention\":{\"mechanism\":\"features\",\"features\":[1,0.5]}"),
      "'features' is 0.5; expected a whole number" },
    { OF("gpt2", "\"n_layer\":2,\"loam_attention\":{\"mechanism\":\"features\",\"features\":[0,0]}"),
      "no layer has features" },
    { OF("gpt2", "\"n_layer\":1,\"loam_attention\":{\"mechanism\":\"features\",\"features\":[1],"
                 "\"shared\":1}"),
      "'shared' is 1; expected true or false" },
    { OF("gpt2", "\"n_layer\":1,\"n_head\":1,\"loam_attention\":{\"mechanism\":\"features\","
                 "\"features\":[1]}"),
      "features of heads of 768 channels; expected at most 512" },
    { OF("gpt2", "\"n_layer\":1,\"n_head\":2,\"loam_attention\":{\"mechanism\":\"features\","
                 "\"features\":[1],\"untied\":true}"),
      "features of heads of 384 channels; expected at most 256" },
    { OF("gpt2", "\"n_layer\":1,\"loam_attention\":{\"mechanism\":\"features\",\"features\":[1],"
                 "\"untied\":1}"),
      "'untied' is 1; expected true or false" },
    { OF("bert", "\"loam_attention\":{\"mechanism\":\"fox\"}"),
      "'mechanism' is \"fox\"; expected softmax or f" },
    { OF("bert", "\"loam_attention\":{\"mechanism\":\"lla\"}"),
      "'mechanism' is \"lla\"; expected softmax or f" },
    { OF("bert", "\"is_decoder\":true"), "'is_decoder' is true; expected none" },
    { OF("bert", "\"type_vocab_size\":0"), "the number of token types is 0" },
};

static void what_is_not_known_is_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        lm_config c;
        io_error error = { 0 };
        if (lm_config_parse(&c, refused[i][0], strlen(refused[i][0]), "c.json", &error) != EXIT_INPUT ||
            !strstr(error.text, refused[i][1]) || !strstr(error.text, "c.json"))
            fail_msg("%s: '%s' lacks '%s'", refused[i][0], error.text, refused[i][1]);
    }
}

static void what_is_written_is_read(void **state)
{
    (void)state;
    static const char *const names[] = { "gpt2",  "gpt2-scaled",   "neox",       "neox-serial",
                                         "llama", "llama-sharded", "llama-gguf", "bert" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[512];
        lm_config a, b;
        io_error error;
        snprintf(path, sizeof path, "%s/%s/config.json", LM_TEST_DATA, names[i]);
        if (lm_config_read(&a, path, &error) || lm_config_write(&a, "written.json", &error) ||
            lm_config_read(&b, "written.json", &error))
            fail_msg("%s", error.text);
        expect_same(&a, &b);
    }
    assert_int_equal(unlink("written.json"), 0);
}

static void trained_attention_is_written(void **state)
{
    static const char *const names[] = { "softmax", "lla", "parallax", "fox", "features" };
    static const loam_mechanism mechanisms[] = { LOAM_SOFTMAX, LOAM_LLA, LOAM_PARALLAX, LOAM_SOFTMAX,
                                                 LOAM_LINEAR };
    (void)state;
    for (int i = 0; i < 5; i++) {
        lm_config a = parsed("{\"model_type\":\"gpt2\"}"), b;
        io_error error;
        assert_true(lm_config_attention(&a, names[i]));
        assert_int_equal(a.mechanism, mechanisms[i]);
        assert_int_equal(a.forgets, i == 3);
        if (i == 1) a.ridge_least = 0.01, a.ridge_most = 3, a.ridge_unit = LOAM_RIDGE_TRACE;
        if (i == 4) a.features[1] = 512, a.features[11] = 3, a.features_shared = a.features_untied = true;
        if (lm_config_write(&a, "written.json", &error) || lm_config_read(&b, "written.json", &error))
            fail_msg("%s", error.text);
        expect_same(&a, &b);
        assert_string_equal(lm_config_attention_name(&b), names[i]);
        for (int64_t layer = 0; i == 4 && layer < a.layers; layer++)
            a.features[layer] = 511;
        if (i < 4) continue;
        a.features_untied = false, a.sinks = 4, a.window = 48;
        if (lm_config_write(&a, "written.json", &error) || lm_config_read(&b, "written.json", &error))
            fail_msg("%s", error.text);
        expect_same(&a, &b);
    }
    lm_config c = { 0 };
    assert_false(lm_config_attention(&c, "gated-delta"));
    assert_int_equal(unlink("written.json"), 0);
}

/* Shares that double rounds: the number of channels comes back all the same. */
static void every_share_is_written(void **state)
{
    (void)state;
    lm_config c = parsed("{\"model_type\":\"gpt_neox\",\"hidden_size\":512,\"num_attention_heads\":2}"), back;
    io_error error;
    for (c.head_dim = 2; c.head_dim <= 256; c.head_dim += 2)
        for (c.rope_dim = 0; c.rope_dim <= c.head_dim; c.rope_dim += 2) {
            if (c.head_dim != 256 && c.head_dim != 98 && c.head_dim != 46) continue;
            c.width = 2 * c.head_dim;
            if (lm_config_write(&c, "share.json", &error) || lm_config_read(&back, "share.json", &error))
                fail_msg("%s", error.text);
            assert_int_equal(back.rope_dim, c.rope_dim);
        }
    assert_int_equal(unlink("share.json"), 0);
}

static void gguf_is_the_same_model(void **state)
{
    (void)state;
    lm_config file, folder;
    io_error error;
    gguf *g;
    const char *path = LM_TEST_DATA "/llama-gguf/model.gguf";
    if (gguf_open(&g, path, &error) || lm_config_gguf(&file, g, path, &error) ||
        lm_config_read(&folder, LM_TEST_DATA "/llama-gguf/config.json", &error))
        fail_msg("%s", error.text);
    assert_true(file.norm_eps > .999e-6 && file.norm_eps < 1.001e-6);
    file.norm_eps = folder.norm_eps;
    expect_same(&file, &folder);
    gguf_close(g);
}

/* A .gguf file of three keys at most, without tensors, of version 3. */
static void gguf_refuses_by_name(void **state)
{
    (void)state;
    static const char text[] = "GGUF\3\0\0\0\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0"
                               "\24\0\0\0\0\0\0\0general.architecture\10\0\0\0";
    static const struct {
        const char *value, *text;
    } rows[] = { { "\5\0\0\0\0\0\0\0qwen2", "'general.architecture' is \"qwen2\"; expected \"llama\"" },
                 { "\5\0\0\0\0\0\0\0llama", "has no 'llama.block_count'" } };
    for (int i = 0; i < 2; i++) {
        unsigned char data[sizeof text - 1 + 13];
        memcpy(data, text, sizeof text - 1);
        memcpy(data + sizeof text - 1, rows[i].value, 13);
        gguf *g;
        lm_config c;
        io_error error;
        if (gguf_open_bytes(&g, data, sizeof data, "x.gguf", &error)) fail_msg("%s", error.text);
        assert_int_equal(lm_config_gguf(&c, g, "x.gguf", &error), EXIT_INPUT);
        if (!strstr(error.text, rows[i].text)) fail_msg("'%s' lacks '%s'", error.text, rows[i].text);
        gguf_close(g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_the_classes),     cmocka_unit_test(rotations_have_old_names_and_new),
        cmocka_unit_test(tokens_that_end_a_text),       cmocka_unit_test(what_is_not_known_is_refused),
        cmocka_unit_test(what_is_written_is_read),      cmocka_unit_test(every_share_is_written),
        cmocka_unit_test(trained_attention_is_written), cmocka_unit_test(gguf_is_the_same_model),
        cmocka_unit_test(gguf_refuses_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
