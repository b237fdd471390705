/* SPDX-License-Identifier: MIT
 * The keys of a .gguf file. Whether the embedding makes the logits too is told by its tensors. */
#include "lm/config.h"

#include <string.h>

/* The first failure stays. */
typedef struct reader {
    const gguf *file;
    const char *name;
    io_error *error;
    int status;
} reader;

/* As it was, where the key is optional and missing. */
static void whole(reader *r, const char *key, bool optional, int64_t *value)
{
    if (!r->status && !(optional && !gguf_has(r->file, key)))
        r->status = gguf_integer(r->file, key, value, r->error);
}

static void real(reader *r, const char *key, bool optional, double *value)
{
    if (!r->status && !(optional && !gguf_has(r->file, key)))
        r->status = gguf_real(r->file, key, value, r->error);
}

/* A number that must be this where it is there, because no other is known here. */
static void must_be(reader *r, const char *key, double only)
{
    double value = only;
    real(r, key, true, &value);
    if (!r->status && value != only)
        r->status = io_fail(r->error, EXIT_INPUT, "%s: '%s' is %g; no other value than %g is known here",
                            r->name, key, value, only);
}

static void must_read(reader *r, const char *key, bool optional, const char *only)
{
    gguf_text text;
    if (r->status || (optional && !gguf_has(r->file, key))) return;
    r->status = gguf_string(r->file, key, &text, r->error);
    if (!r->status && (text.bytes != strlen(only) || memcmp(text.at, only, text.bytes) != 0))
        r->status = io_fail(r->error, EXIT_INPUT, "%s: '%s' is \"%.*s\"; expected \"%s\"", r->name, key,
                            (int)(text.bytes < 60 ? text.bytes : 60), text.at, only);
}

static void refuse_unknown(reader *r, const lm_config *c)
{
    must_read(r, "llama.rope.scaling.type", true, "none");
    must_be(r, "llama.rope.scaling.factor", 1);
    must_be(r, "llama.rope.scale_linear", 1);
    must_be(r, "llama.rope.dimension_count", (double)c->head_dim);
    must_be(r, "llama.attention.value_length", (double)c->head_dim);
    must_be(r, "llama.attention.sliding_window", 0);
    must_be(r, "llama.attention.scale", 0);
    must_be(r, "llama.logit_scale", 1);
    must_be(r, "llama.residual_scale", 1);
    must_be(r, "llama.embedding_scale", 1);
    must_be(r, "llama.expert_count", 0);
    must_be(r, "split.count", 1);
}

static void read_tokens(reader *r, lm_config *out)
{
    static const char *const ends[] = { "tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                        "tokenizer.ggml.eom_token_id" };
    int64_t id = -1;
    whole(r, "tokenizer.ggml.bos_token_id", true, &id);
    out->bos = id < 0 || id > INT32_MAX ? -1 : (int32_t)id;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        id = -1;
        whole(r, ends[i], true, &id);
        bool known = id < 0 || id > INT32_MAX;
        for (int k = 0; k < out->stops; k++)
            known = known || out->stop[k] == (int32_t)id;
        if (!known) out->stop[out->stops++] = (int32_t)id;
    }
}

/* The vocabulary has a size of its own, or that of the list of its tokens. */
static void read_vocabulary(reader *r, lm_config *out)
{
    static const char KEY[] = "tokenizer.ggml.tokens";
    gguf_array tokens = { 0 };
    if (!r->status && !gguf_has(r->file, "llama.vocab_size"))
        r->status = gguf_strings(r->file, KEY, &tokens, r->error);
    out->vocabulary = tokens.count;
    whole(r, "llama.vocab_size", true, &out->vocabulary);
}

int lm_config_gguf(lm_config *out, const gguf *g, const char *name, io_error *error)
{
    reader r = { g, name, error, 0 };
    *out = (lm_config){ .architecture = LM_LLAMA, .rope_base = 1e4, .activation = LM_SILU };
    must_read(&r, "general.architecture", false, "llama");
    whole(&r, "llama.block_count", false, &out->layers);
    whole(&r, "llama.embedding_length", false, &out->width);
    whole(&r, "llama.attention.head_count", false, &out->heads_q);
    whole(&r, "llama.feed_forward_length", false, &out->inner);
    whole(&r, "llama.context_length", false, &out->context);
    real(&r, "llama.attention.layer_norm_rms_epsilon", false, &out->norm_eps);
    real(&r, "llama.rope.freq_base", true, &out->rope_base);
    out->heads_kv = out->heads_q;
    out->head_dim = out->heads_q > 0 ? out->width / out->heads_q : 0;
    whole(&r, "llama.attention.head_count_kv", true, &out->heads_kv);
    whole(&r, "llama.attention.key_length", true, &out->head_dim);
    out->rope_dim = out->head_dim;
    out->tied = gguf_tensor_index(g, "output.weight") < 0;
    read_vocabulary(&r, out);
    read_tokens(&r, out);
    refuse_unknown(&r, out);
    return r.status ? r.status : lm_config_check(out, name, error);
}
