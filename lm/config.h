/* SPDX-License-Identifier: MIT
 * What a Transformer is, as config.json or the header of a GGUF file tells it: four architectures, one
 * description. */
#ifndef LOAM_LM_CONFIG_H
#define LOAM_LM_CONFIG_H

#include "io/error.h"
#include "io/gguf.h"
#include "loam.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum lm_architecture {
    LM_GPT2,  /* x += attn(norm_1 x); x += mlp(norm_2 x); LayerNorm, learned positions */
    LM_NEOX,  /* the same with RoPE; where `parallel`, x += attn(norm_1 x) + mlp(norm_2 x) */
    LM_LLAMA, /* as GPT-2 with RMSNorm, RoPE, grouped heads and a gated mlp, without biases */
    LM_BERT   /* x = norm_1(x + attn(x)); x = norm_2(x + mlp(x)); not causal */
} lm_architecture;

typedef enum lm_activation { LM_GELU, LM_GELU_TANH, LM_SILU, LM_RELU } lm_activation;

enum { LM_MAX_STOPS = 8, LM_MAX_SIZE = 1 << 28, LM_MAX_FEATURE_LAYERS = 256 };

typedef struct lm_config {
    lm_architecture architecture;
    int64_t layers, width, heads_q, heads_kv, head_dim, inner, vocabulary, context;
    int64_t types; /* BERT: of token types; else 0 */
    double norm_eps;
    int64_t rope_dim; /* the first channels of a head, which RoPE turns in halves; 0: none */
    double rope_base;
    lm_activation activation;
    /* The attention that it was trained with, by our key "loam_attention": LOAM_SOFTMAX, LOAM_LLA with a
     * ridge for each head and token, or LOAM_PARALLAX with a probe; or LOAM_LINEAR with positive random
     * features (docs/features.md), that it was distilled to. */
    loam_mechanism mechanism;
    bool forgets;                   /* LOAM_SOFTMAX: FoX, with a gate for each head and token */
    double ridge_least, ridge_most; /* LOAM_LLA: least + (most - least) sigmoid(W x) */
    loam_ridge_unit ridge_unit;
    /* LOAM_LINEAR: of each head of a layer, 0: it has softmax; whether heads are those of the keys. */
    int16_t features[LM_MAX_FEATURE_LAYERS];
    bool features_shared;
    bool features_untied;       /* queries and keys have their own, in arrays of twice the channels */
    int64_t sinks, window;      /* exact beside the features of all layers; window 0: none */
    bool tied;                  /* logits by the embedding */
    bool parallel;              /* NeoX: attention and mlp from the same x */
    bool scale_by_layer;        /* GPT-2: scores of layer i are divided by i + 1 as well */
    int32_t bos;                /* -1: none */
    int32_t stop[LM_MAX_STOPS]; /* tokens that end a text */
    int stops;
} lm_config;

/* "gpt2", "gpt_neox", "llama", "bert". */
const char *lm_architecture_name(lm_architecture architecture);

/* Of a layer: its features, the heads that have them, and the floats of all their states, with keys and
 * values of the window beside them. */
int64_t lm_config_features(const lm_config *config, int64_t layer);
int64_t lm_config_feature_heads(const lm_config *config);
int64_t lm_config_state(const lm_config *config, int64_t layer);

/* What scores q.k of a layer are multiplied by. */
double lm_config_scale(const lm_config *config, int64_t layer);

/* "softmax", "lla", "parallax", "fox", "features": sets, or tells, the attention that a model was trained
 * with. False: there is none of this name. */
bool lm_config_attention(lm_config *config, const char *name);
const char *lm_config_attention_name(const lm_config *config);

/* From a config.json. A switch that changes the result and is not known here is refused by name. */
int lm_config_read(lm_config *out, const char *path, io_error *error);
/* The same of its text, in a file called `name`. */
int lm_config_parse(lm_config *out, const char *text, size_t bytes, const char *name, io_error *error);
/* From the keys of a .gguf file, of architecture llama, called `name`. */
int lm_config_gguf(lm_config *out, const gguf *g, const char *name, io_error *error);
/* Sizes are positive and divide each other as they must; so small that no product of two overflows. What ends
 * a text and is no token is left out. All of the above do this last. */
int lm_config_check(lm_config *config, const char *name, io_error *error);
/* Writes such a file, whole or not at all. */
int lm_config_write(const lm_config *config, const char *path, io_error *error);

#endif
