/* SPDX-License-Identifier: MIT */
#include "lm/model.h"

#include <math.h>

lm_options lm_options_default(void)
{
    return (lm_options){ .weights = LOAM_F32,
                         .mechanism = LOAM_SOFTMAX,
                         .ridge = 0.1,
                         .only = -1,
                         .only_head = -1,
                         .inverse_temperature = 1 };
}

static int check_heads(const lm_config *c, const lm_head *heads, io_error *error)
{
    for (int64_t i = 0; i < c->layers * c->heads_q; i++) {
        const long long layer = (long long)(i / c->heads_q), head = (long long)(i % c->heads_q);
        if (!(heads[i].ridge >= 0))
            return io_fail(error, EXIT_USAGE, "layer %lld, head %lld: ridge %g: expected a number >= 0",
                           layer, head, heads[i].ridge);
        if (!(heads[i].inverse_temperature > 0 && isfinite(heads[i].inverse_temperature)))
            return io_fail(error, EXIT_USAGE,
                           "layer %lld, head %lld: inverse temperature %g: expected a number > 0", layer,
                           head, heads[i].inverse_temperature);
    }
    return 0;
}

int lm_options_check(const lm_options *o, const lm_config *c, io_error *error)
{
    if (o->only >= c->layers)
        return io_fail(error, EXIT_USAGE, "layer %lld: the model has %lld", (long long)o->only,
                       (long long)c->layers);
    if (o->only_head >= c->heads_q)
        return io_fail(error, EXIT_USAGE, "head %lld: the model's layers have %lld", (long long)o->only_head,
                       (long long)c->heads_q);
    return o->heads ? check_heads(c, o->heads, error) : 0;
}
