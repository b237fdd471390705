/* SPDX-License-Identifier: MIT
 * Which parts a model has, and their shapes. */
#include "lm/files.h"

#include <stdio.h>

int64_t lm_config_features(const lm_config *config, int64_t layer)
{
    const bool has = config->mechanism == LOAM_LINEAR && layer >= 0 && layer < LM_MAX_FEATURE_LAYERS;
    return has ? config->features[layer] : 0;
}

int64_t lm_config_feature_heads(const lm_config *config)
{
    return config->features_shared ? config->heads_kv : config->heads_q;
}

int64_t lm_config_state(const lm_config *config, int64_t layer)
{
    const int64_t heads = lm_config_feature_heads(config), d = config->head_dim,
                  features = lm_config_features(config, layer), near = config->sinks + config->window;
    if (config->window == 0 || features == 0) return heads * (d + 2) * features;
    return heads * (d + 3) * (features + 1) + 2 * config->heads_kv * near * d;
}

bool lm_part_is_vector(lm_part part)
{
    switch (part) {
    case LM_EMBED:
    case LM_POSITIONS:
    case LM_TYPES:
    case LM_HEAD:
    case LM_Q:
    case LM_K:
    case LM_V:
    case LM_O:
    case LM_GATE:
    case LM_UP:
    case LM_DOWN:
    case LM_RIDGE:
    case LM_PROBE:
    case LM_FORGET:
    case LM_FEATURE_Z:
    case LM_FEATURE_ALPHA:
    case LM_FEATURE_SHIFT:
    case LM_FEATURE_BALANCE:
    case LM_FEATURE_BALANCE_KEYS:
    case LM_FEATURE_GAIN: return false;
    default: return true;
    }
}

static bool has_part(const lm_config *c, lm_part part, int64_t layer)
{
    const bool biased = c->architecture != LM_LLAMA;
    switch (part) {
    case LM_POSITIONS: return c->architecture == LM_GPT2 || c->architecture == LM_BERT;
    case LM_TYPES:
    case LM_EMBED_NORM:
    case LM_EMBED_NORM_BIAS: return c->architecture == LM_BERT;
    case LM_LAST_NORM: return c->architecture != LM_BERT;
    case LM_LAST_NORM_BIAS: return c->architecture == LM_GPT2 || c->architecture == LM_NEOX;
    case LM_HEAD: return !c->tied;
    case LM_RIDGE: return c->mechanism == LOAM_LLA;
    case LM_PROBE: return c->mechanism == LOAM_PARALLAX;
    case LM_FORGET: return c->forgets;
    case LM_FEATURE_Z:
    case LM_FEATURE_ALPHA:
    case LM_FEATURE_SHIFT:
    case LM_FEATURE_BALANCE:
    case LM_FEATURE_BALANCE_KEYS: return lm_config_features(c, layer) > 0;
    case LM_FEATURE_GAIN: return lm_config_features(c, layer) > 0 && c->window > 0;
    case LM_GATE: return c->architecture == LM_LLAMA;
    case LM_NORM_1_BIAS:
    case LM_NORM_2_BIAS:
    case LM_Q_BIAS:
    case LM_K_BIAS:
    case LM_V_BIAS:
    case LM_O_BIAS:
    case LM_UP_BIAS:
    case LM_DOWN_BIAS: return biased;
    default: return true;
    }
}

void lm_part_shape(const lm_config *config, lm_part part, int64_t layer, int64_t *rows, int64_t *columns)
{
    const int64_t width = config->width, inner = config->inner;
    const int64_t queries = config->heads_q * config->head_dim, keys = config->heads_kv * config->head_dim;
    const int64_t heads = lm_config_feature_heads(config), features = lm_config_features(config, layer),
                  head_dim = (config->features_untied ? 2 : 1) * config->head_dim;
    const int64_t shapes[LM_PARTS][2] = {
        [LM_EMBED] = { config->vocabulary, width },
        [LM_POSITIONS] = { config->context, width },
        [LM_TYPES] = { config->types, width },
        [LM_EMBED_NORM] = { 1, width },
        [LM_EMBED_NORM_BIAS] = { 1, width },
        [LM_LAST_NORM] = { 1, width },
        [LM_LAST_NORM_BIAS] = { 1, width },
        [LM_HEAD] = { config->vocabulary, width },
        [LM_NORM_1] = { 1, width },
        [LM_NORM_1_BIAS] = { 1, width },
        [LM_Q] = { queries, width },
        [LM_Q_BIAS] = { 1, queries },
        [LM_K] = { keys, width },
        [LM_K_BIAS] = { 1, keys },
        [LM_V] = { keys, width },
        [LM_V_BIAS] = { 1, keys },
        [LM_O] = { width, queries },
        [LM_O_BIAS] = { 1, width },
        [LM_NORM_2] = { 1, width },
        [LM_NORM_2_BIAS] = { 1, width },
        [LM_GATE] = { inner, width },
        [LM_UP] = { inner, width },
        [LM_UP_BIAS] = { 1, inner },
        [LM_DOWN] = { width, inner },
        [LM_DOWN_BIAS] = { 1, width },
        [LM_RIDGE] = { config->heads_q, width },
        [LM_PROBE] = { queries, width },
        [LM_FORGET] = { config->heads_q, width },
        [LM_FEATURE_Z] = { heads * features, head_dim },
        [LM_FEATURE_ALPHA] = { heads, features },
        [LM_FEATURE_SHIFT] = { heads, head_dim },
        [LM_FEATURE_BALANCE] = { heads * head_dim, head_dim },
        [LM_FEATURE_BALANCE_KEYS] = { heads * head_dim, head_dim },
        [LM_FEATURE_GAIN] = { config->heads_q, 1 },
    };
    *rows = has_part(config, part, layer) ? shapes[part][0] : 0;
    *columns = shapes[part][1];
}

const char *lm_part_text(lm_part part, int64_t layer, char text[64])
{
    static const char *const names[LM_PARTS] = {
        [LM_EMBED] = "embedding of tokens",
        [LM_POSITIONS] = "embedding of positions",
        [LM_TYPES] = "embedding of token types",
        [LM_EMBED_NORM] = "norm of the embedding",
        [LM_EMBED_NORM_BIAS] = "bias of the embedding's norm",
        [LM_LAST_NORM] = "last norm",
        [LM_LAST_NORM_BIAS] = "bias of the last norm",
        [LM_HEAD] = "weights of the logits",
        [LM_NORM_1] = "first norm",
        [LM_NORM_1_BIAS] = "bias of the first norm",
        [LM_Q] = "query weights",
        [LM_Q_BIAS] = "query bias",
        [LM_K] = "key weights",
        [LM_K_BIAS] = "key bias",
        [LM_V] = "value weights",
        [LM_V_BIAS] = "value bias",
        [LM_O] = "output weights",
        [LM_O_BIAS] = "output bias",
        [LM_NORM_2] = "second norm",
        [LM_NORM_2_BIAS] = "bias of the second norm",
        [LM_GATE] = "gate weights",
        [LM_UP] = "up weights",
        [LM_UP_BIAS] = "up bias",
        [LM_DOWN] = "down weights",
        [LM_DOWN_BIAS] = "down bias",
        [LM_RIDGE] = "ridge weights",
        [LM_PROBE] = "probe weights",
        [LM_FORGET] = "forget gate's weights",
        [LM_FEATURE_Z] = "features' projections",
        [LM_FEATURE_ALPHA] = "log weights of features",
        [LM_FEATURE_SHIFT] = "features' shift of keys",
        [LM_FEATURE_BALANCE] = "features' balance of queries",
        [LM_FEATURE_BALANCE_KEYS] = "features' balance of keys",
        [LM_FEATURE_GAIN] = "features' gains",
    };
    if (part < LM_NORM_1)
        snprintf(text, 64, "the %s", names[part]);
    else
        snprintf(text, 64, "layer %lld's %s", (long long)layer, names[part]);
    return text;
}
