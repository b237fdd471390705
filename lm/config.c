/* SPDX-License-Identifier: MIT
 * config.json, as the classes of the Hugging Face library read it: a key that is missing, or null, has the
 * default of its class. */
#include "lm/config.h"

#include "io/json.h"
#include "lm/activation.h"

#include <math.h>
#include <string.h>

/* The first failure stays, and what is read after it is 0. */
typedef struct reader {
    const char *name;
    const json_t *root;
    io_error *error;
    int status;
} reader;

/* "'key' is VALUE; expected ..." */
static void wrong(reader *r, const char *key, const json_t *value, const char *expected)
{
    char text[64];
    if (r->status) return;
    const size_t length = json_dumpb(value, text, sizeof text - 1, JSON_ENCODE_ANY | JSON_COMPACT);
    text[length < sizeof text - 1 ? length : sizeof text - 1] = '\0';
    r->status = io_fail(r->error, EXIT_INPUT, "%s: '%s' is %s; expected %s", r->name, key,
                        length < sizeof text - 1 ? text : "something long", expected);
}

static const json_t *value_of(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

static int64_t whole(reader *r, const char *key, int64_t missing)
{
    const json_t *value = value_of(r->root, key);
    if (!value) return missing;
    if (!json_is_integer(value)) wrong(r, key, value, "a whole number");
    return json_integer_value(value);
}

static double real_of(reader *r, const json_t *object, const char *key, double missing)
{
    const json_t *value = value_of(object, key);
    if (!value) return missing;
    if (!json_is_number(value)) wrong(r, key, value, "a number");
    return json_number_value(value);
}

static bool truth(reader *r, const char *key, bool missing)
{
    const json_t *value = value_of(r->root, key);
    if (!value) return missing;
    if (!json_is_boolean(value)) wrong(r, key, value, "true or false");
    return json_is_true(value);
}

static const char *text_of(reader *r, const json_t *object, const char *key, const char *missing)
{
    const json_t *value = value_of(object, key);
    if (!value) return missing;
    if (!json_is_string(value)) wrong(r, key, value, "a text");
    return json_string_value(value) ? json_string_value(value) : "";
}

/* ---------------------------------------------------------------- what is not known */

static bool is_off(const json_t *value)
{
    return !value || json_is_false(value) || (json_is_integer(value) && json_integer_value(value) == 0) ||
           (json_is_object(value) && json_object_size(value) == 0) ||
           (json_is_array(value) && json_array_size(value) == 0);
}

static void must_be_off(reader *r, const char *key)
{
    const json_t *value = value_of(r->root, key);
    if (!is_off(value)) wrong(r, key, value, "none: no other value is known here");
}

static void must_be_on(reader *r, const char *key)
{
    if (!truth(r, key, true)) wrong(r, key, value_of(r->root, key), "true: no other value is known here");
}

static void refuse_unknown(reader *r, const lm_config *config)
{
    static const char *const off[] = { "add_cross_attention", "is_encoder_decoder",   "sliding_window",
                                       "use_sliding_window",  "attention_chunk_size", "pruned_heads",
                                       "quantization_config" };
    for (size_t i = 0; i < sizeof off / sizeof *off; i++)
        must_be_off(r, off[i]);
    const json_t *layers = value_of(r->root, "layer_types"), *layer;
    size_t index;
    json_array_foreach(layers, index, layer) if (!json_is_string(layer) ||
                                                 strcmp(json_string_value(layer), "full_attention") != 0)
        wrong(r, "layer_types", layer, "\"full_attention\"");
    if (layers && !json_is_array(layers)) wrong(r, "layer_types", layers, "a list");
    if (strcmp(text_of(r, r->root, "position_embedding_type", "absolute"), "absolute") != 0)
        wrong(r, "position_embedding_type", value_of(r->root, "position_embedding_type"), "\"absolute\"");
    if (config->architecture == LM_GPT2) must_be_on(r, "scale_attn_weights");
    if (config->architecture == LM_NEOX) must_be_on(r, "attention_bias");
    if (config->architecture == LM_LLAMA) must_be_off(r, "attention_bias"), must_be_off(r, "mlp_bias");
    if (config->architecture == LM_BERT) must_be_off(r, "is_decoder");
}

/* ---------------------------------------------------------------- parts */

/* Keys of RoPE stand in an object of their own, or, in older files, beside the others. */
static void read_rope(reader *r, lm_config *out, const char *base_key, const char *share_key, double share)
{
    const char *name = is_off(value_of(r->root, "rope_scaling")) ? "rope_parameters" : "rope_scaling";
    const json_t *own = value_of(r->root, name), *value;
    const char *key;
    if (own && !json_is_object(own)) wrong(r, name, own, "an object");
    json_object_foreach((json_t *)(uintptr_t)own, key, value) if (json_is_object(value))
        wrong(r, key, value, "one rotation for all layers");
    const char *type = text_of(r, own, "rope_type", text_of(r, own, "type", "default"));
    if (strcmp(type, "default") != 0 && strcmp(type, "none") != 0)
        wrong(r, name, own, "the type \"default\": no other rotation is known here");
    out->rope_base = real_of(r, own, "rope_theta", real_of(r, r->root, base_key, 1e4));
    share = real_of(r, own, "partial_rotary_factor", real_of(r, r->root, share_key, share));
    const double least = out->architecture == LM_LLAMA ? 1 : 0;
    if (r->status) return;
    if (share >= least && share <= 1 && out->head_dim <= LM_MAX_SIZE)
        out->rope_dim = (int64_t)((double)out->head_dim * share);
    else if (!(share >= least && share <= 1))
        r->status = io_fail(r->error, EXIT_INPUT, "%s: '%s' is %g; expected %s", r->name, share_key, share,
                            least ? "1: llama turns all channels" : "a share from 0 to 1");
}

static void read_activation(reader *r, lm_config *out, const char *key, const char *missing)
{
    const int found = lm_activation_of(text_of(r, r->root, key, missing));
    if (found < 0) wrong(r, key, value_of(r->root, key), "gelu, gelu_new, silu or relu");
    out->activation = found < 0 ? LM_GELU : (lm_activation)found;
}

static int32_t token_of(reader *r, const char *key, const json_t *value)
{
    if (!json_is_integer(value)) wrong(r, key, value, "a token's number");
    const json_int_t id = json_integer_value(value);
    return id < 0 || id > INT32_MAX ? -1 : (int32_t)id;
}

static void read_tokens(reader *r, lm_config *out, int32_t bos, int32_t stop)
{
    const json_t *begin = value_of(r->root, "bos_token_id"), *end = value_of(r->root, "eos_token_id"), *each;
    size_t index;
    out->bos = begin                                      ? token_of(r, "bos_token_id", begin)
               : json_object_get(r->root, "bos_token_id") ? -1
                                                          : bos;
    if (json_array_size(end) > LM_MAX_STOPS) wrong(r, "eos_token_id", end, "at most 8 tokens");
    if (r->status) return;
    json_array_foreach(end, index, each) out->stop[out->stops++] = token_of(r, "eos_token_id", each);
    if (end && !json_is_array(end)) out->stop[out->stops++] = token_of(r, "eos_token_id", end);
    if (!json_object_get(r->root, "eos_token_id") && stop >= 0) out->stop[out->stops++] = stop;
}

/* The key of a size and its default, in the order of `sizes_of`. */
typedef struct size_key {
    const char *key;
    int64_t missing;
} size_key;

enum { SIZES = 6 };

static void read_sizes(reader *r, lm_config *out, const size_key keys[SIZES])
{
    int64_t *const sizes[SIZES] = { &out->layers,     &out->width,   &out->heads_q,
                                    &out->vocabulary, &out->context, &out->inner };
    for (int i = 0; i < SIZES; i++)
        *sizes[i] = whole(r, keys[i].key, keys[i].missing);
    out->heads_kv = out->heads_q;
    out->head_dim = out->heads_q > 0 ? out->width / out->heads_q : 0;
}

/* ---------------------------------------------------------------- architectures */

static void read_gpt2(reader *r, lm_config *out)
{
    read_sizes(r, out,
               (size_key[SIZES]){ { "n_layer", 12 },
                                  { "n_embd", 768 },
                                  { "n_head", 12 },
                                  { "vocab_size", 50257 },
                                  { "n_positions", 1024 },
                                  { "n_inner", 0 } });
    if (!value_of(r->root, "n_inner") && out->width <= LM_MAX_SIZE) out->inner = 4 * out->width;
    out->norm_eps = real_of(r, r->root, "layer_norm_epsilon", 1e-5);
    out->tied = truth(r, "tie_word_embeddings", true);
    out->scale_by_layer = truth(r, "scale_attn_by_inverse_layer_idx", false);
    read_activation(r, out, "activation_function", "gelu_new");
    read_tokens(r, out, 50256, 50256);
}

static void read_neox(reader *r, lm_config *out)
{
    read_sizes(r, out,
               (size_key[SIZES]){ { "num_hidden_layers", 44 },
                                  { "hidden_size", 6144 },
                                  { "num_attention_heads", 64 },
                                  { "vocab_size", 50432 },
                                  { "max_position_embeddings", 2048 },
                                  { "intermediate_size", 24576 } });
    out->norm_eps = real_of(r, r->root, "layer_norm_eps", 1e-5);
    out->tied = truth(r, "tie_word_embeddings", false);
    out->parallel = truth(r, "use_parallel_residual", true);
    read_activation(r, out, "hidden_act", "gelu");
    read_rope(r, out, "rotary_emb_base", "rotary_pct", .25);
    read_tokens(r, out, 0, 2);
}

static void read_llama(reader *r, lm_config *out)
{
    read_sizes(r, out,
               (size_key[SIZES]){ { "num_hidden_layers", 32 },
                                  { "hidden_size", 4096 },
                                  { "num_attention_heads", 32 },
                                  { "vocab_size", 32000 },
                                  { "max_position_embeddings", 2048 },
                                  { "intermediate_size", 11008 } });
    out->heads_kv = whole(r, "num_key_value_heads", out->heads_q);
    out->head_dim = whole(r, "head_dim", out->head_dim);
    out->norm_eps = real_of(r, r->root, "rms_norm_eps", 1e-6);
    out->tied = truth(r, "tie_word_embeddings", false);
    read_activation(r, out, "hidden_act", "silu");
    read_rope(r, out, "rope_theta", "partial_rotary_factor", 1);
    read_tokens(r, out, 1, 2);
}

static void read_bert(reader *r, lm_config *out)
{
    read_sizes(r, out,
               (size_key[SIZES]){ { "num_hidden_layers", 12 },
                                  { "hidden_size", 768 },
                                  { "num_attention_heads", 12 },
                                  { "vocab_size", 30522 },
                                  { "max_position_embeddings", 512 },
                                  { "intermediate_size", 3072 } });
    out->types = whole(r, "type_vocab_size", 2);
    out->norm_eps = real_of(r, r->root, "layer_norm_eps", 1e-12);
    out->tied = true;
    read_activation(r, out, "hidden_act", "gelu");
    read_tokens(r, out, -1, -1);
}

/* ---------------------------------------------------------------- all of it */

static const struct {
    const char *name;
    void (*read)(reader *r, lm_config *out);
} architectures[] = {
    [LM_GPT2] = { "gpt2", read_gpt2 },
    [LM_NEOX] = { "gpt_neox", read_neox },
    [LM_LLAMA] = { "llama", read_llama },
    [LM_BERT] = { "bert", read_bert },
};
enum { ARCHITECTURES = sizeof architectures / sizeof *architectures };

const char *lm_architecture_name(lm_architecture architecture) { return architectures[architecture].name; }

/* The word of --mechanism, and what it is. */
static const struct {
    const char *name;
    loam_mechanism mechanism;
    bool forgets;
} attentions[] = { { "softmax", LOAM_SOFTMAX, false },
                   { "lla", LOAM_LLA, false },
                   { "parallax", LOAM_PARALLAX, false },
                   { "fox", LOAM_SOFTMAX, true },
                   { "features", LOAM_LINEAR, false } };
enum { ATTENTIONS = sizeof attentions / sizeof *attentions };

double lm_config_scale(const lm_config *config, int64_t layer)
{
    const double by_layer = config->scale_by_layer ? (double)(layer + 1) : 1;
    return 1 / sqrt((double)config->head_dim) / by_layer;
}

bool lm_config_attention(lm_config *config, const char *name)
{
    for (int i = 0; i < ATTENTIONS; i++)
        if (strcmp(name, attentions[i].name) == 0) {
            config->mechanism = attentions[i].mechanism, config->forgets = attentions[i].forgets;
            return true;
        }
    return false;
}

const char *lm_config_attention_name(const lm_config *config)
{
    int i = 0;
    while (attentions[i].mechanism != config->mechanism || attentions[i].forgets != config->forgets)
        i++;
    return attentions[i].name;
}

static void read_ridge(reader *r, lm_config *out, const json_t *own)
{
    out->ridge_least = real_of(r, own, "ridge_least", 0);
    out->ridge_most = real_of(r, own, "ridge_most", 0);
    const char *unit = text_of(r, own, "ridge_unit", "normalised");
    int found = LOAM_RIDGE_NORMALISED;
    while (loam_ridge_unit_name((loam_ridge_unit)found) &&
           strcmp(unit, loam_ridge_unit_name((loam_ridge_unit)found)) != 0)
        found++;
    out->ridge_unit = (loam_ridge_unit)found;
    if (found > LOAM_RIDGE_TRACE)
        wrong(r, "ridge_unit", value_of(own, "ridge_unit"), "normalised, max or trace");
    else if (!(out->ridge_least > 0 && out->ridge_most >= out->ridge_least))
        wrong(r, "loam_attention", own, "0 < ridge_least <= ridge_most");
}

/* Tokens that are exact beside features; none where the key is missing. */
static int64_t read_near(reader *r, const json_t *own, const char *key)
{
    const json_t *value = value_of(own, key);
    const json_int_t count = json_is_integer(value) ? json_integer_value(value) : -1;
    if (!value) return 0;
    if (count < 0 || count > LM_MAX_SIZE) wrong(r, key, value, "a whole number from 0 to 268435456");
    return r->status ? 0 : count;
}

static void read_features(reader *r, lm_config *out, const json_t *own)
{
    const json_t *list = value_of(own, "features"), *shared = value_of(own, "shared"),
                 *untied = value_of(own, "untied"), *each;
    size_t layer;
    if (shared && !json_is_boolean(shared)) wrong(r, "shared", shared, "true or false");
    if (out->layers > LM_MAX_FEATURE_LAYERS || (int64_t)json_array_size(list) != out->layers)
        wrong(r, list ? "features" : "loam_attention", list ? list : own,
              "a list of as many numbers as layers, of at most 256 layers");
    if (untied && !json_is_boolean(untied)) wrong(r, "untied", untied, "true or false");
    out->features_shared = json_is_true(shared), out->features_untied = json_is_true(untied);
    out->sinks = read_near(r, own, "sinks"), out->window = read_near(r, own, "window");
    json_array_foreach(list, layer, each)
    {
        const json_int_t count = json_is_integer(each) ? json_integer_value(each) : -1;
        if (count < 0 || count > LOAM_MAX_DIM) wrong(r, "features", each, "a whole number from 0 to 512");
        if (!r->status) out->features[layer] = (int16_t)count;
    }
}

/* Keys that such attention does not have. */
static void refuse_keys(reader *r, const lm_config *config, const json_t *own)
{
    static const char *const keys[][6] = { { "mechanism", NULL },
                                           { "ridge_least", "ridge_most", "ridge_unit", NULL },
                                           { "features", "shared", "untied", "sinks", "window", NULL } };
    const bool has[] = { true, config->mechanism == LOAM_LLA, config->mechanism == LOAM_LINEAR };
    const json_t *value;
    const char *key;
    json_object_foreach((json_t *)(uintptr_t)own, key, value)
    {
        bool known = false;
        for (int i = 0; i < 3; i++)
            for (int n = 0; has[i] && keys[i][n]; n++)
                known |= strcmp(key, keys[i][n]) == 0;
        if (!known) wrong(r, key, value, "none: this attention does not have it");
    }
}

static void read_attention(reader *r, lm_config *out)
{
    const json_t *own = value_of(r->root, "loam_attention");
    if (!own) return;
    if (!json_is_object(own)) wrong(r, "loam_attention", own, "an object");
    const char *name = text_of(r, own, "mechanism", "softmax");
    const bool known = lm_config_attention(out, name), encoder = out->architecture == LM_BERT;
    if (!known ||
        (encoder && ((out->mechanism != LOAM_SOFTMAX && out->mechanism != LOAM_LINEAR) || out->forgets)))
        wrong(r, "mechanism", value_of(own, "mechanism"),
              encoder ? "softmax or features" : "softmax, lla, parallax, fox or features");
    if (!r->status) refuse_keys(r, out, own);
    if (!r->status && out->mechanism == LOAM_LLA) read_ridge(r, out, own);
    if (!r->status && out->mechanism == LOAM_LINEAR) read_features(r, out, own);
}

static void read_model(reader *r, lm_config *out)
{
    const char *type = text_of(r, r->root, "model_type", "");
    int found = 0;
    while (found < ARCHITECTURES && strcmp(type, architectures[found].name) != 0)
        found++;
    if (r->status) return;
    if (found == ARCHITECTURES) {
        r->status = io_fail(r->error, EXIT_INPUT,
                            "%s: 'model_type' is \"%.60s\"; expected gpt2, gpt_neox, llama or bert", r->name,
                            type);
        return;
    }
    *out = (lm_config){ .architecture = (lm_architecture)found, .bos = -1 };
    architectures[found].read(r, out);
    read_attention(r, out);
    refuse_unknown(r, out);
}

static int from_object(lm_config *out, json_t *root, const char *name, io_error *error)
{
    reader r = { name, root, error, 0 };
    read_model(&r, out);
    json_decref(root);
    return r.status ? r.status : lm_config_check(out, name, error);
}

int lm_config_parse(lm_config *out, const char *text, size_t bytes, const char *name, io_error *error)
{
    json_t *root;
    *out = (lm_config){ 0 };
    const int status = json_object_of(&root, text, bytes, name, "the text", error);
    return status ? status : from_object(out, root, name, error);
}

int lm_config_read(lm_config *out, const char *path, io_error *error)
{
    json_t *root;
    *out = (lm_config){ 0 };
    const int status = json_object_in(&root, path, error);
    return status ? status : from_object(out, root, path, error);
}
