/* SPDX-License-Identifier: MIT */
#include "lm/recipe.h"

static const char *const mechanisms[] = { "softmax", "lla", "parallax", "fox", "gated-delta", NULL };

const char *lm_recipe_mechanism(int index) { return mechanisms[index]; }

bool lm_recipe_has_files(const lm_recipe *r)
{
    lm_config config = { 0 };
    return lm_config_attention(&config, r->mechanism);
}

/* Two thirds of what a plain MLP has, in whole 64s: as many parameters with the third matrix. */
static int64_t gated_inner(int64_t width) { return (8 * width / 3 + 63) / 64 * 64; }

/* A quarter of the channels of a head, and an even number of them. */
static int64_t neox_turned(int64_t head_dim) { return head_dim / 8 > 0 ? head_dim / 8 * 2 : 2; }

static lm_config config_of(const lm_recipe *r, int64_t vocabulary, int32_t end_token)
{
    const bool llama = r->architecture == LM_LLAMA, neox = r->architecture == LM_NEOX;
    const int64_t width = r->width <= LM_MAX_SIZE ? r->width : 0;
    const int64_t head_dim = r->heads > 0 ? width / r->heads : 0;
    lm_config c = {
        .architecture = r->architecture,
        .layers = r->layers,
        .width = r->width,
        .heads_q = r->heads,
        .heads_kv = r->heads,
        .head_dim = head_dim,
        .inner = llama ? gated_inner(width) : 4 * width,
        .vocabulary = vocabulary,
        .context = r->context,
        .norm_eps = NORM_EPS,
        .rope_dim = llama  ? head_dim
                    : neox ? neox_turned(head_dim)
                           : 0,
        .rope_base = 1e4,
        .activation = llama ? LM_SILU : LM_GELU_TANH,
        .tied = !neox,
        .parallel = neox,
        .bos = end_token,
        .stop = { end_token },
        .stops = 1,
    };
    lm_config_attention(&c, r->mechanism);
    if (c.mechanism == LOAM_LLA)
        c.ridge_least = r->ridge_least, c.ridge_most = r->ridge_most, c.ridge_unit = r->ridge_unit;
    return c;
}

int lm_recipe_config(lm_config *out, const lm_recipe *r, int64_t vocabulary, int32_t end_token,
                     io_error *error)
{
    *out = config_of(r, vocabulary, end_token);
    if (r->layers > MODEL_MAX_LAYERS)
        return io_fail(error, EXIT_USAGE, "--layers %lld: expected at most %d", (long long)r->layers,
                       MODEL_MAX_LAYERS);
    if (out->heads_q > 0 && out->width % out->heads_q != 0)
        return io_fail(error, EXIT_USAGE, "--width %lld is not divisible by --heads %lld",
                       (long long)out->width, (long long)out->heads_q);
    if (r->piece < 1 || r->batch % r->piece != 0)
        return io_fail(error, EXIT_USAGE, "--batch %lld is no multiple of --micro-batch %lld",
                       (long long)r->batch, (long long)r->piece);
    return lm_config_check(out, "the model", error);
}

trainer_options lm_recipe_options(const lm_recipe *r, const lm_config *config)
{
    trainer_options o = trainer_options_default(mixer_find(r->mechanism));
    o.mixing = (mixer_options){
        .ridge_least = r->ridge_least,
        .ridge_most = r->ridge_most,
        .ridge_unit = r->ridge_unit,
        .positions = config->rope_dim > 0 ? POSITIONS_ROPE : POSITIONS_LEARNED,
        .rope_dim = config->rope_dim,
        .layer_norm = config->architecture != LM_LLAMA,
        .mlp = true,
        .mlp_gate = config->architecture == LM_LLAMA,
        .mlp_inner = config->inner,
        .parallel = config->parallel,
        .untied = !config->tied,
        .short_filter = true,
    };
    o.shape = (model_shape){ .batch = r->piece, .layers = r->layers, .width = r->width, .heads = r->heads };
    o.batches = r->batch / r->piece;
    o.steps = r->steps, o.warm = r->warm, o.test_every = r->every;
    o.least = 0.1, o.beta_v = 0.95, o.decay = r->decay, o.clip = 1;
    return o;
}
