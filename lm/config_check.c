/* SPDX-License-Identifier: MIT */
#include "lm/config.h"

#include <math.h>

typedef struct size {
    const char *name;
    int64_t value;
} size;

static int check_sizes(const lm_config *c, const char *name, io_error *error)
{
    const size sizes[] = { { "layers", c->layers },
                           { "width", c->width },
                           { "query heads", c->heads_q },
                           { "key heads", c->heads_kv },
                           { "channels of a head", c->head_dim },
                           { "inner channels", c->inner },
                           { "tokens", c->vocabulary },
                           { "positions", c->context },
                           { "token types", c->architecture == LM_BERT ? c->types : 1 } };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].value < 1 || sizes[i].value > LM_MAX_SIZE)
            return io_fail(error, EXIT_INPUT, "%s: the number of %s is %lld; expected 1 to %d", name,
                           sizes[i].name, (long long)sizes[i].value, LM_MAX_SIZE);
    return 0;
}

static int check_divisions(const lm_config *c, const char *name, io_error *error)
{
    if (c->architecture != LM_LLAMA && c->width % c->heads_q != 0)
        return io_fail(error, EXIT_INPUT, "%s: a width of %lld is not divisible by %lld heads", name,
                       (long long)c->width, (long long)c->heads_q);
    if (c->heads_q % c->heads_kv != 0)
        return io_fail(error, EXIT_INPUT, "%s: %lld query heads are not divisible by %lld key heads", name,
                       (long long)c->heads_q, (long long)c->heads_kv);
    if (c->heads_q * c->head_dim > LM_MAX_SIZE)
        return io_fail(error, EXIT_INPUT, "%s: %lld heads of %lld channels; expected at most %d in all", name,
                       (long long)c->heads_q, (long long)c->head_dim, LM_MAX_SIZE);
    if (c->rope_dim % 2 != 0)
        return io_fail(error, EXIT_INPUT, "%s: RoPE turns %lld channels; expected an even number", name,
                       (long long)c->rope_dim);
    return 0;
}

static int check_reals(const lm_config *c, const char *name, io_error *error)
{
    if (!(c->norm_eps >= 0 && isfinite(c->norm_eps)))
        return io_fail(error, EXIT_INPUT, "%s: the epsilon of norms is %g; expected 0 or more", name,
                       c->norm_eps);
    if (c->rope_dim > 0 && !(c->rope_base > 0 && isfinite(c->rope_base)))
        return io_fail(error, EXIT_INPUT, "%s: the base of RoPE is %g; expected more than 0", name,
                       c->rope_base);
    return 0;
}

/* What the library's hybrid takes (loam.h). */
static int check_near(const lm_config *c, const char *name, io_error *error)
{
    bool takes = c->architecture != LM_BERT && !c->features_untied && c->head_dim <= LOAM_MAX_DIM - 2;
    for (int64_t i = 0; i < c->layers; i++)
        takes = takes && c->features[i] > 0 && c->features[i] < LOAM_MAX_DIM;
    if (takes || (c->window == 0 && c->sinks == 0)) return 0;
    return io_fail(
        error, EXIT_INPUT,
        "%s: a window of %lld tokens: expected 1 to 511 features in all layers, the same of queries "
        "and keys, heads of at most 510 channels, and a model that sees what came before",
        name, (long long)c->window);
}

static int check_features(const lm_config *c, const char *name, io_error *error)
{
    int64_t all = 0;
    if (c->mechanism != LOAM_LINEAR) return 0;
    for (int64_t i = 0; i < c->layers; i++)
        all += lm_config_features(c, i);
    if (all == 0) return io_fail(error, EXIT_INPUT, "%s: no layer has features; expected some", name);
    const int most = c->features_untied ? LOAM_MAX_DIM / 2 : LOAM_MAX_DIM;
    return c->head_dim <= most
               ? 0
               : io_fail(error, EXIT_INPUT, "%s: features of heads of %lld channels; expected at most %d",
                         name, (long long)c->head_dim, most);
}

static void drop_no_tokens(lm_config *c)
{
    int kept = 0;
    for (int i = 0; i < c->stops; i++) {
        const int32_t stop = c->stop[i];
        c->stop[i] = 0;
        if (stop >= 0 && stop < c->vocabulary) c->stop[kept++] = stop;
    }
    c->stops = kept;
    if (c->bos < 0 || c->bos >= c->vocabulary) c->bos = -1;
}

int lm_config_check(lm_config *config, const char *name, io_error *error)
{
    int status = check_sizes(config, name, error);
    if (!status) status = check_divisions(config, name, error);
    if (!status) status = check_reals(config, name, error);
    if (!status) status = check_features(config, name, error);
    if (!status && config->mechanism == LOAM_LINEAR) status = check_near(config, name, error);
    if (!status) drop_no_tokens(config);
    return status;
}
