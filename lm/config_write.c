/* SPDX-License-Identifier: MIT
 * config.json as the Hugging Face library reads it, by the older names, which all of its versions know. */
#include "io/out_file.h"
#include "lm/activation.h"
#include "lm/config.h"

#include <jansson.h>

/* What jansson refuses for lack of memory makes `whole` false; its functions take NULL. */
typedef struct writer {
    json_t *root;
    bool whole;
} writer;

static void put(writer *w, const char *key, json_t *value)
{
    w->whole = json_object_set_new(w->root, key, value) == 0 && w->whole;
}

static void put_tokens(writer *w, const lm_config *c)
{
    put(w, "bos_token_id", c->bos < 0 ? json_null() : json_integer(c->bos));
    if (c->stops < 2) {
        put(w, "eos_token_id", c->stops ? json_integer(c->stop[0]) : json_null());
        return;
    }
    json_t *list = json_array();
    for (int i = 0; i < c->stops; i++)
        w->whole = json_array_append_new(list, json_integer(c->stop[i])) == 0 && w->whole;
    put(w, "eos_token_id", list);
}

static void put_gpt2(writer *w, const lm_config *c)
{
    put(w, "n_layer", json_integer(c->layers));
    put(w, "n_embd", json_integer(c->width));
    put(w, "n_head", json_integer(c->heads_q));
    put(w, "n_inner", json_integer(c->inner));
    put(w, "n_positions", json_integer(c->context));
    put(w, "layer_norm_epsilon", json_real(c->norm_eps));
    put(w, "activation_function", json_string(lm_activation_name(c->activation)));
    put(w, "scale_attn_by_inverse_layer_idx", json_boolean(c->scale_by_layer));
}

/* The share whose product with the channels of a head is not rounded below the number of channels. */
static double rope_share(const lm_config *c)
{
    const double share = (double)c->rope_dim / (double)c->head_dim;
    return (int64_t)((double)c->head_dim * share) == c->rope_dim ? share : share + 1e-9;
}

static void put_others(writer *w, const lm_config *c)
{
    put(w, "num_hidden_layers", json_integer(c->layers));
    put(w, "hidden_size", json_integer(c->width));
    put(w, "num_attention_heads", json_integer(c->heads_q));
    put(w, "intermediate_size", json_integer(c->inner));
    put(w, "max_position_embeddings", json_integer(c->context));
    put(w, c->architecture == LM_LLAMA ? "rms_norm_eps" : "layer_norm_eps", json_real(c->norm_eps));
    put(w, "hidden_act", json_string(lm_activation_name(c->activation)));
    if (c->architecture == LM_LLAMA) {
        put(w, "num_key_value_heads", json_integer(c->heads_kv));
        put(w, "head_dim", json_integer(c->head_dim));
        put(w, "rope_theta", json_real(c->rope_base));
    } else if (c->architecture == LM_NEOX) {
        put(w, "use_parallel_residual", json_boolean(c->parallel));
        put(w, "rotary_emb_base", json_real(c->rope_base));
        put(w, "rotary_pct", json_real(rope_share(c)));
    } else {
        put(w, "type_vocab_size", json_integer(c->types));
    }
}

static bool put_features(json_t *own, const lm_config *c)
{
    json_t *list = json_array();
    bool whole = true;
    for (int64_t i = 0; i < c->layers; i++)
        whole = json_array_append_new(list, json_integer(c->features[i])) == 0 && whole;
    whole = json_object_set_new(own, "features", list) == 0 && whole;
    whole = json_object_set_new(own, "shared", json_boolean(c->features_shared)) == 0 && whole;
    if (c->window > 0) {
        whole = json_object_set_new(own, "sinks", json_integer(c->sinks)) == 0 && whole;
        whole = json_object_set_new(own, "window", json_integer(c->window)) == 0 && whole;
    }
    return (!c->features_untied || json_object_set_new(own, "untied", json_true()) == 0) && whole;
}

/* Our own key, of what the library of the others cannot read. */
static void put_attention(writer *w, const lm_config *c)
{
    json_t *own = json_object();
    bool whole = json_object_set_new(own, "mechanism", json_string(lm_config_attention_name(c))) == 0;
    if (c->mechanism == LOAM_LLA) {
        whole = json_object_set_new(own, "ridge_least", json_real(c->ridge_least)) == 0 && whole;
        whole = json_object_set_new(own, "ridge_most", json_real(c->ridge_most)) == 0 && whole;
        whole = json_object_set_new(own, "ridge_unit", json_string(loam_ridge_unit_name(c->ridge_unit))) ==
                    0 &&
                whole;
    }
    if (c->mechanism == LOAM_LINEAR) whole = put_features(own, c) && whole;
    put(w, "loam_attention", own);
    w->whole = w->whole && whole;
}

static json_t *object_of(const lm_config *c)
{
    static const char *const classes[] = { [LM_GPT2] = "GPT2LMHeadModel",
                                           [LM_NEOX] = "GPTNeoXForCausalLM",
                                           [LM_LLAMA] = "LlamaForCausalLM",
                                           [LM_BERT] = "BertModel" };
    writer w = { json_object(), true };
    put(&w, "architectures", json_pack("[s]", classes[c->architecture]));
    put(&w, "model_type", json_string(lm_architecture_name(c->architecture)));
    put(&w, "vocab_size", json_integer(c->vocabulary));
    if (c->architecture == LM_GPT2)
        put_gpt2(&w, c);
    else
        put_others(&w, c);
    put(&w, "tie_word_embeddings", json_boolean(c->tied));
    put_tokens(&w, c);
    if (c->mechanism != LOAM_SOFTMAX || c->forgets) put_attention(&w, c);
    if (w.whole) return w.root;
    json_decref(w.root);
    return NULL;
}

int lm_config_write(const lm_config *config, const char *path, io_error *error)
{
    json_t *root = object_of(config);
    if (!root) return io_fail(error, EXIT_INTERNAL, "out of memory for %s", path);
    out_file *file = NULL;
    int status = out_open(&file, path, error);
    if (!status && json_dumpf(root, out_stream(file), JSON_INDENT(2)) != 0 && !ferror(out_stream(file))) {
        out_discard(file);
        status = io_fail(error, EXIT_INTERNAL, "out of memory for %s", path);
    } else if (!status) {
        fputc('\n', out_stream(file));
        status = out_commit(file, error);
    }
    json_decref(root);
    return status;
}
