/* SPDX-License-Identifier: MIT */
#include "lm/loaded.h"

#include "io/half.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static int take_features(lm_model *m, io_error *error)
{
    const lm_config *c = m->config;
    const lm_weights *w = &m->weights;
    m->features = calloc((size_t)c->layers, sizeof *m->features);
    if (!m->features) return io_fail(error, EXIT_INTERNAL, "out of memory for a model");
    for (int64_t i = 0; i < c->layers; i++)
        m->features[i] = (lm_features){ .features = lm_config_features(c, i),
                                        .shared = c->features_shared,
                                        .untied = c->features_untied,
                                        .z = lm_weight(w, i, LM_FEATURE_Z).data,
                                        .log_alpha = lm_weight(w, i, LM_FEATURE_ALPHA).data,
                                        .shift = lm_weight(w, i, LM_FEATURE_SHIFT).data,
                                        .balance = lm_weight(w, i, LM_FEATURE_BALANCE).data,
                                        .balance_keys = lm_weight(w, i, LM_FEATURE_BALANCE_KEYS).data,
                                        .gain = lm_weight(w, i, LM_FEATURE_GAIN).data };
    return 0;
}

lm_options loaded_options(const lm_model *m, const lm_options *options)
{
    lm_options o = *options;
    if (!o.own) return o;
    o.only = o.only_head = -1, o.heads = NULL;
    o.mechanism = m->features ? LOAM_SOFTMAX : m->config->mechanism;
    o.features = m->features, o.own = !m->features;
    if (m->features) o.sinks = m->config->sinks, o.window = m->config->window;
    return o;
}

int lm_model_open(lm_model **made, const machine *on, const lm_files *f, const lm_options *options,
                  io_error *error)
{
    *made = NULL;
    const lm_config *config = lm_files_config(f);
    int status = lm_options_check(options, config, error);
    if (status) return status;
    lm_model *m = calloc(1, sizeof *m);
    if (!m) return io_fail(error, EXIT_INTERNAL, "out of memory for a model");
    m->on = on, m->config = config;
    status = lm_weights_open(&m->weights, on, f, options->weights, error);
    if (!status && config->mechanism == LOAM_LINEAR) status = take_features(m, error);
    m->options = loaded_options(m, options);
    if (status)
        lm_model_close(m);
    else
        *made = m;
    return status;
}

void lm_model_close(lm_model *m)
{
    if (!m) return;
    lm_weights_close(&m->weights);
    free(m->features);
    free(m);
}

const lm_config *lm_model_config(const lm_model *m) { return m->config; }
const machine *lm_model_machine(const lm_model *m) { return m->on; }
int64_t lm_model_bytes(const lm_model *m) { return m->weights.bytes; }
loam_dtype lm_model_type(const lm_model *m) { return m->options.weights; }

int lm_model_fetch(const lm_model *m, float *to, matrix rows, io_error *error)
{
    loam_error reason;
    const size_t count = (size_t)matrix_elements(rows);
    const bool narrow = rows.dtype == LOAM_BF16;
    assert((narrow || rows.dtype == LOAM_F32) && rows.row == rows.width && rows.models == 1);
    /* 16-bit numbers come into the second half of the room: each is read before it is written over. */
    char *const at = (char *)to + (narrow ? count * sizeof(uint16_t) : 0);
    if (machine_download(m->on, at, rows.data, count * (size_t)matrix_bytes_each(rows), &reason))
        return io_fail(error, EXIT_INTERNAL, "%s", reason.text);
    for (size_t i = 0; narrow && i < count; i++) {
        uint16_t bits;
        memcpy(&bits, at + i * sizeof bits, sizeof bits);
        to[i] = bf16_to_float(bits);
    }
    return 0;
}
