/* SPDX-License-Identifier: MIT */
#include "lm/names.h"

#include <stdio.h>
#include <string.h>

enum { FAMILIES = LM_NAMES_GGUF + 1 };

static const char *const prefixes[FAMILIES] = {
    [LM_GPT2] = "transformer.", [LM_NEOX] = "gpt_neox.", [LM_LLAMA] = "model.",
    [LM_BERT] = "bert.",        [LM_NAMES_GGUF] = "",
};

static const lm_name table[FAMILIES][LM_PARTS] = {
    [LM_GPT2] = {
        [LM_EMBED] = { "wte.weight", LM_ROWS, LM_WHOLE },
        [LM_POSITIONS] = { "wpe.weight", LM_ROWS, LM_WHOLE },
        [LM_LAST_NORM] = { "ln_f.weight", LM_ROWS, LM_WHOLE },
        [LM_LAST_NORM_BIAS] = { "ln_f.bias", LM_ROWS, LM_WHOLE },
        [LM_HEAD] = { "lm_head.weight", LM_ROWS, LM_WHOLE },
        [LM_NORM_1] = { "h.%.ln_1.weight", LM_ROWS, LM_WHOLE },
        [LM_NORM_1_BIAS] = { "h.%.ln_1.bias", LM_ROWS, LM_WHOLE },
        [LM_Q] = { "h.%.attn.c_attn.weight", LM_COLUMNS, 0 },
        [LM_Q_BIAS] = { "h.%.attn.c_attn.bias", LM_COLUMNS, 0 },
        [LM_K] = { "h.%.attn.c_attn.weight", LM_COLUMNS, 1 },
        [LM_K_BIAS] = { "h.%.attn.c_attn.bias", LM_COLUMNS, 1 },
        [LM_V] = { "h.%.attn.c_attn.weight", LM_COLUMNS, 2 },
        [LM_V_BIAS] = { "h.%.attn.c_attn.bias", LM_COLUMNS, 2 },
        [LM_O] = { "h.%.attn.c_proj.weight", LM_COLUMNS, LM_WHOLE },
        [LM_O_BIAS] = { "h.%.attn.c_proj.bias", LM_ROWS, LM_WHOLE },
        [LM_NORM_2] = { "h.%.ln_2.weight", LM_ROWS, LM_WHOLE },
        [LM_NORM_2_BIAS] = { "h.%.ln_2.bias", LM_ROWS, LM_WHOLE },
        [LM_UP] = { "h.%.mlp.c_fc.weight", LM_COLUMNS, LM_WHOLE },
        [LM_UP_BIAS] = { "h.%.mlp.c_fc.bias", LM_ROWS, LM_WHOLE },
        [LM_DOWN] = { "h.%.mlp.c_proj.weight", LM_COLUMNS, LM_WHOLE },
        [LM_DOWN_BIAS] = { "h.%.mlp.c_proj.bias", LM_ROWS, LM_WHOLE },
        [LM_RIDGE] = { "h.%.attn.loam_ridge.weight", LM_ROWS, LM_WHOLE },
        [LM_PROBE] = { "h.%.attn.loam_probe.weight", LM_ROWS, LM_WHOLE },
        [LM_FORGET] = { "h.%.attn.loam_forget.weight", LM_ROWS, LM_WHOLE },
        [LM_FEATURE_Z] = { "h.%.attn.loam_features.z", LM_ROWS, LM_WHOLE },
        [LM_FEATURE_ALPHA] = { "h.%.attn.loam_features.log_alpha", LM_ROWS, LM_WHOLE },
        [LM_FEATURE_SHIFT] = { "h.%.attn.loam_features.shift", LM_ROWS, LM_WHOLE },
        [LM_FEATURE_BALANCE] = { "h.%.attn.loam_features.balance", LM_ROWS, LM_WHOLE },
        [LM_FEATURE_BALANCE_KEYS] = { "h.%.attn.loam_features.balance_keys", LM_ROWS, LM_WHOLE },
        [LM_FEATURE_GAIN] = { "h.%.attn.loam_features.gain", LM_ROWS, LM_WHOLE },
    },
    [LM_NEOX] = {
        [LM_EMBED] = { "embed_in.weight", LM_ROWS, LM_WHOLE },
        [LM_LAST_NORM] = { "final_layer_norm.weight", LM_ROWS, LM_WHOLE },
        [LM_LAST_NORM_BIAS] = { "final_layer_norm.bias", LM_ROWS, LM_WHOLE },
        [LM_HEAD] = { "embed_out.weight", LM_ROWS, LM_WHOLE },
        [LM_NORM_1] = { "layers.%.input_layernorm.weight", LM_ROWS, LM_WHOLE },
        [LM_NORM_1_BIAS] = { "layers.%.input_layernorm.bias", LM_ROWS, LM_WHOLE },
        [LM_Q] = { "layers.%.attention.query_key_value.weight", LM_HEAD_THIRDS, 0 },
        [LM_Q_BIAS] = { "layers.%.attention.query_key_value.bias", LM_HEAD_THIRDS, 0 },
        [LM_K] = { "layers.%.attention.query_key_value.weight", LM_HEAD_THIRDS, 1 },
        [LM_K_BIAS] = { "layers.%.attention.query_key_value.bias", LM_HEAD_THIRDS, 1 },
        [LM_V] = { "layers.%.attention.query_key_value.weight", LM_HEAD_THIRDS, 2 },
        [LM_V_BIAS] = { "layers.%.attention.query_key_value.bias", LM_HEAD_THIRDS, 2 },
        [LM_O] = { "layers.%.attention.dense.weight", LM_ROWS, LM_WHOLE },
        [LM_O_BIAS] = { "layers.%.attention.dense.bias", LM_ROWS, LM_WHOLE },
        [LM_NORM_2] = { "layers.%.post_attention_layernorm.weight", LM_ROWS, LM_WHOLE },
        [LM_NORM_2_BIAS] = { "layers.%.post_attention_layernorm.bias", LM_ROWS, LM_WHOLE },
        [LM_UP] = { "layers.%.mlp.dense_h_to_4h.weight", LM_ROWS, LM_WHOLE },
        [LM_UP_BIAS] = { "layers.%.mlp.dense_h_to_4h.bias", LM_ROWS, LM_WHOLE },
        [LM_DOWN] = { "layers.%.mlp.dense_4h_to_h.weight", LM_ROWS, LM_WHOLE },
        [LM_DOWN_BIAS] = { "layers.%.mlp.dense_4h_to_h.bias", LM_ROWS, LM_WHOLE },
        [LM_RIDGE] = { "layers.%.attention.loam_ridge.weight", LM_ROWS, LM_WHOLE },
        [LM_PROBE] = { "layers.%.attention.loam_probe.weight", LM_ROWS, LM_WHOLE },
        [LM_FORGET] = { "layers.%.attention.loam_forget.weight", LM_ROWS, LM_WHOLE },
        [LM_FEATURE_Z] = { "layers.%.attention.loam_features.z", LM_ROWS, LM_WHOLE },
        [LM_FEATURE_ALPHA] = { "layers.%.attention.loam_features.log_alpha", LM_ROWS, LM_WHOLE },
        [LM_FEATURE_SHIFT] = { "layers.%.attention.loam_features.shift", LM_ROWS, LM_WHOLE },
        [LM_FEATURE_BALANCE] = { "layers.%.attention.loam_features.balance", LM_ROWS, LM_WHOLE },
        [LM_FEATURE_BALANCE_KEYS] = { "layers.%.attention.loam_features.balance_keys", LM_ROWS, LM_WHOLE },
        [LM_FEATURE_GAIN] = { "layers.%.attention.loam_features.gain", LM_ROWS, LM_WHOLE },
    },
    [LM_LLAMA] = {
        [LM_EMBED] = { "embed_tokens.weight", LM_ROWS, LM_WHOLE },
        [LM_LAST_NORM] = { "norm.weight", LM_ROWS, LM_WHOLE },
        [LM_HEAD] = { "lm_head.weight", LM_ROWS, LM_WHOLE },
        [LM_NORM_1] = { "layers.%.input_layernorm.weight", LM_ROWS, LM_WHOLE },
        [LM_Q] = { "layers.%.self_attn.q_proj.weight", LM_ROWS, LM_WHOLE },
        [LM_K] = { "layers.%.self_attn.k_proj.weight", LM_ROWS, LM_WHOLE },
        [LM_V] = { "layers.%.self_attn.v_proj.weight", LM_ROWS, LM_WHOLE },
        [LM_O] = { "layers.%.self_attn.o_proj.weight", LM_ROWS, LM_WHOLE },
        [LM_NORM_2] = { "layers.%.post_attention_layernorm.weight", LM_ROWS, LM_WHOLE },
        [LM_GATE] = { "layers.%.mlp.gate_proj.weight", LM_ROWS, LM_WHOLE },
        [LM_UP] = { "layers.%.mlp.up_proj.weight", LM_ROWS, LM_WHOLE },
        [LM_DOWN] = { "layers.%.mlp.down_proj.weight", LM_ROWS, LM_WHOLE },
        [LM_RIDGE] = { "layers.%.self_attn.loam_ridge.weight", LM_ROWS, LM_WHOLE },
        [LM_PROBE] = { "layers.%.self_attn.loam_probe.weight", LM_ROWS, LM_WHOLE },
        [LM_FORGET] = { "layers.%.self_attn.loam_forget.weight", LM_ROWS, LM_WHOLE },
        [LM_FEATURE_Z] = { "layers.%.self_attn.loam_features.z", LM_ROWS, LM_WHOLE },
        [LM_FEATURE_ALPHA] = { "layers.%.self_attn.loam_features.log_alpha", LM_ROWS, LM_WHOLE },
        [LM_FEATURE_SHIFT] = { "layers.%.self_attn.loam_features.shift", LM_ROWS, LM_WHOLE },
        [LM_FEATURE_BALANCE] = { "layers.%.self_attn.loam_features.balance", LM_ROWS, LM_WHOLE },
        [LM_FEATURE_BALANCE_KEYS] = { "layers.%.self_attn.loam_features.balance_keys", LM_ROWS, LM_WHOLE },
        [LM_FEATURE_GAIN] = { "layers.%.self_attn.loam_features.gain", LM_ROWS, LM_WHOLE },
    },
    [LM_BERT] = {
        [LM_EMBED] = { "embeddings.word_embeddings.weight", LM_ROWS, LM_WHOLE },
        [LM_POSITIONS] = { "embeddings.position_embeddings.weight", LM_ROWS, LM_WHOLE },
        [LM_TYPES] = { "embeddings.token_type_embeddings.weight", LM_ROWS, LM_WHOLE },
        [LM_EMBED_NORM] = { "embeddings.LayerNorm.weight", LM_ROWS, LM_WHOLE },
        [LM_EMBED_NORM_BIAS] = { "embeddings.LayerNorm.bias", LM_ROWS, LM_WHOLE },
        [LM_NORM_1] = { "encoder.layer.%.attention.output.LayerNorm.weight", LM_ROWS, LM_WHOLE },
        [LM_NORM_1_BIAS] = { "encoder.layer.%.attention.output.LayerNorm.bias", LM_ROWS, LM_WHOLE },
        [LM_Q] = { "encoder.layer.%.attention.self.query.weight", LM_ROWS, LM_WHOLE },
        [LM_Q_BIAS] = { "encoder.layer.%.attention.self.query.bias", LM_ROWS, LM_WHOLE },
        [LM_K] = { "encoder.layer.%.attention.self.key.weight", LM_ROWS, LM_WHOLE },
        [LM_K_BIAS] = { "encoder.layer.%.attention.self.key.bias", LM_ROWS, LM_WHOLE },
        [LM_V] = { "encoder.layer.%.attention.self.value.weight", LM_ROWS, LM_WHOLE },
        [LM_V_BIAS] = { "encoder.layer.%.attention.self.value.bias", LM_ROWS, LM_WHOLE },
        [LM_O] = { "encoder.layer.%.attention.output.dense.weight", LM_ROWS, LM_WHOLE },
        [LM_O_BIAS] = { "encoder.layer.%.attention.output.dense.bias", LM_ROWS, LM_WHOLE },
        [LM_NORM_2] = { "encoder.layer.%.output.LayerNorm.weight", LM_ROWS, LM_WHOLE },
        [LM_NORM_2_BIAS] = { "encoder.layer.%.output.LayerNorm.bias", LM_ROWS, LM_WHOLE },
        [LM_UP] = { "encoder.layer.%.intermediate.dense.weight", LM_ROWS, LM_WHOLE },
        [LM_UP_BIAS] = { "encoder.layer.%.intermediate.dense.bias", LM_ROWS, LM_WHOLE },
        [LM_DOWN] = { "encoder.layer.%.output.dense.weight", LM_ROWS, LM_WHOLE },
        [LM_DOWN_BIAS] = { "encoder.layer.%.output.dense.bias", LM_ROWS, LM_WHOLE },
        [LM_FEATURE_Z] = { "encoder.layer.%.attention.self.loam_features.z", LM_ROWS, LM_WHOLE },
        [LM_FEATURE_ALPHA] = { "encoder.layer.%.attention.self.loam_features.log_alpha", LM_ROWS, LM_WHOLE },
        [LM_FEATURE_SHIFT] = { "encoder.layer.%.attention.self.loam_features.shift", LM_ROWS, LM_WHOLE },
        [LM_FEATURE_BALANCE] = { "encoder.layer.%.attention.self.loam_features.balance", LM_ROWS, LM_WHOLE },
        [LM_FEATURE_BALANCE_KEYS] = { "encoder.layer.%.attention.self.loam_features.balance_keys", LM_ROWS,
                                      LM_WHOLE },
        [LM_FEATURE_GAIN] = { "encoder.layer.%.attention.self.loam_features.gain", LM_ROWS, LM_WHOLE },
    },
    [LM_NAMES_GGUF] = {
        [LM_EMBED] = { "token_embd.weight", LM_ROWS, LM_WHOLE },
        [LM_LAST_NORM] = { "output_norm.weight", LM_ROWS, LM_WHOLE },
        [LM_HEAD] = { "output.weight", LM_ROWS, LM_WHOLE },
        [LM_NORM_1] = { "blk.%.attn_norm.weight", LM_ROWS, LM_WHOLE },
        [LM_Q] = { "blk.%.attn_q.weight", LM_PAIRS, -1 },
        [LM_K] = { "blk.%.attn_k.weight", LM_PAIRS, -1 },
        [LM_V] = { "blk.%.attn_v.weight", LM_ROWS, LM_WHOLE },
        [LM_O] = { "blk.%.attn_output.weight", LM_ROWS, LM_WHOLE },
        [LM_NORM_2] = { "blk.%.ffn_norm.weight", LM_ROWS, LM_WHOLE },
        [LM_GATE] = { "blk.%.ffn_gate.weight", LM_ROWS, LM_WHOLE },
        [LM_UP] = { "blk.%.ffn_up.weight", LM_ROWS, LM_WHOLE },
        [LM_DOWN] = { "blk.%.ffn_down.weight", LM_ROWS, LM_WHOLE },
    },
};

lm_name lm_name_of(int names, lm_part part) { return table[names][part]; }

int64_t lm_name_place(lm_name name, int64_t rows, int64_t head_dim, int64_t i)
{
    const int64_t head = i / head_dim, c = i % head_dim;
    switch (name.layout) {
    case LM_HEAD_THIRDS: return (3 * head + name.third) * head_dim + c;
    case LM_PAIRS: return head * head_dim + 2 * (c % (head_dim / 2)) + c / (head_dim / 2);
    default: return name.third == LM_WHOLE ? i : name.third * rows + i;
    }
}

void lm_name_shape(lm_name name, lm_part part, int64_t rows, int64_t columns, int *rank, int64_t shape[2])
{
    const bool vector = lm_part_is_vector(part), turned = name.layout == LM_COLUMNS && !vector;
    const int64_t parts = name.third == LM_WHOLE ? 1 : 3, all = parts * (vector ? columns : rows);
    *rank = vector ? 1 : 2;
    shape[0] = turned ? columns : all;
    shape[1] = turned ? all : columns;
}

const char *lm_name_text(int names, lm_part part, int64_t layer, bool prefix, char text[LM_NAME_TEXT])
{
    const char *pattern = table[names][part].pattern, *begin = prefix ? prefixes[names] : "";
    const char *sign = strchr(pattern, '%');
    if (sign)
        snprintf(text, LM_NAME_TEXT, "%s%.*s%lld%s", begin, (int)(sign - pattern), pattern, (long long)layer,
                 sign + 1);
    else
        snprintf(text, LM_NAME_TEXT, "%s%s", begin, pattern);
    return text;
}

/* ---------------------------------------------------------------- known names */

static bool begins(const char *name, size_t bytes, const char *with)
{
    return bytes >= strlen(with) && memcmp(name, with, strlen(with)) == 0;
}

static bool ends(const char *name, size_t bytes, const char *with)
{
    return bytes >= strlen(with) && memcmp(name + bytes - strlen(with), with, strlen(with)) == 0;
}

/* The number of a layer, written as lm_name_text does; else -1. */
static int64_t layer_number(const char *digits, size_t count)
{
    int64_t layer = 0;
    if (count < 1 || count > 10 || (count > 1 && *digits == '0')) return -1;
    for (size_t i = 0; i < count; i++) {
        if (digits[i] < '0' || digits[i] > '9') return -1;
        layer = 10 * layer + digits[i] - '0';
    }
    return layer;
}

/* The layer of a part's name, 0 of a part of none; else -1. */
static int64_t layer_of(const char *pattern, const char *name, size_t bytes)
{
    const char *sign = strchr(pattern, '%');
    if (!sign) return bytes == strlen(pattern) && memcmp(name, pattern, bytes) == 0 ? 0 : -1;
    const size_t before = (size_t)(sign - pattern), after = strlen(sign + 1);
    if (bytes < before + after || memcmp(name, pattern, before) != 0 || !ends(name, bytes, sign + 1))
        return -1;
    return layer_number(name + before, bytes - before - after);
}

/* Arrays of ours that are there and not read would be a contradiction; of others' files some are not used. */
static bool is_part(const lm_config *config, lm_part part, int64_t layer)
{
    int64_t rows = 1, columns;
    if (layer < 0 || layer >= config->layers) return false;
    if (part >= LM_RIDGE) lm_part_shape(config, part, layer, &rows, &columns);
    return rows > 0;
}

static bool changes_nothing(int names, const char *name, size_t bytes)
{
    static const char *const tails[] = { ".attn.bias",           ".attn.masked_bias",
                                         ".attention.bias",      ".attention.masked_bias",
                                         ".rotary_emb.inv_freq", "embeddings.position_ids" };
    if (names == LM_NAMES_GGUF) return false;
    for (size_t i = 0; i < sizeof tails / sizeof *tails; i++)
        if (ends(name, bytes, tails[i])) return true;
    return names == LM_BERT && (begins(name, bytes, "pooler.") || begins(name, bytes, "cls."));
}

bool lm_name_known(int names, const lm_config *config, const char *name, size_t bytes)
{
    const size_t prefix = begins(name, bytes, prefixes[names]) ? strlen(prefixes[names]) : 0;
    name += prefix, bytes -= prefix;
    for (int part = 0; part < LM_PARTS; part++) {
        const char *pattern = table[names][part].pattern;
        if (pattern && is_part(config, (lm_part)part, layer_of(pattern, name, bytes))) return true;
    }
    return changes_nothing(names, name, bytes);
}
