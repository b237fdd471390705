/* SPDX-License-Identifier: MIT
 * What the mechanisms fit, one line for each, in the notation of docs/mathematics.md and docs/recurrent.md. A recurrence is
 * one step of a fit, S_t = argmin_S <grad J(D_t), S - D_t> + R / beta_t, from the decayed state D_t = S_{t-1} Diag(e^{g_t});
 * at S_{t-1} itself the steps of the gated delta rules would be others. MesaNet is the minimiser of J + R. */
#include "src/core/plan.h"

#include <math.h>

typedef struct mechanism_text {
    const char *objective, *regulariser, *update, *output, *cost;
} mechanism_text;

static const mechanism_text texts[] = {
    [LOAM_SOFTMAX] = { "sum_j p_j |b - v_j|^2 / 2", "0", "keep k, v", "b", "4 t d" },
    [LOAM_PARALLAX] = { "as lla, its probe rho given", "-", "keep k, v",
                        "sum_j p_j (1 - rho.(k_j - kbar)) v_j", "8 t d" },
    [LOAM_LLA] = { "sum_j p_j |b + W (k_j - q) - v_j|^2 / 2", "tr(W Lambda W^T) / 2", "keep k, v", "b",
                   "3 t d^2 + 7 t d + d^3 / 3" },
    [LOAM_LINEAR] = { "-<S k, v>", "|S - D|^2 / 2", "S = S + v k^T", "S q", "4 d^2" },
    [LOAM_RETENTION] = { "-<S k, v>", "|S - D|^2 / 2", "S = a S + v k^T, a of the head", "S q", "5 d^2" },
    [LOAM_SSD] = { "-<S k, v>", "|S - D|^2 / 2", "S = a S + beta v k^T", "S q", "5 d^2" },
    [LOAM_GLA] = { "-<S k, v>", "|S - D|^2 / 2", "S = S Diag(a) + v k^T", "S q", "5 d^2" },
    [LOAM_DELTA] = { "|S k - v|^2 / 2", "|S - D|^2 / 2", "S = S (I - beta k k^T) + beta v k^T", "S q",
                     "6 d^2" },
    [LOAM_GATED_DELTA] = { "|S k - v|^2 / 2", "|S - D|^2 / 2", "S = a S (I - beta k k^T) + beta v k^T", "S q",
                           "7 d^2" },
    [LOAM_KDA] = { "|S k - v|^2 / 2", "|S - D|^2 / 2", "S = S Diag(a) (I - beta k k^T) + beta v k^T", "S q",
                   "7 d^2" },
    [LOAM_MESA] = { "sum_i w_i |S k_i - v_i|^2 / 2", "tr(S Lambda S^T) / 2",
                    "S = a S + beta v k^T, H = a H + beta k k^T", "S (H + Lambda)^-1 q", "8 d^2 + 2 n d^2" },
};

static loam_decay_axes decay_axes(const recurrent_form *form)
{
    switch (form->gate) {
    case GATE_HEAD: return LOAM_DECAY_HEAD;
    case GATE_TOKEN: return LOAM_DECAY_TOKEN;
    case GATE_CHANNEL: return LOAM_DECAY_CHANNEL;
    case GATE_NONE: break;
    }
    return LOAM_DECAY_NONE;
}

static void local_reads(loam_mechanism mechanism, loam_mechanism_info *info)
{
    info->family = LOAM_FAMILY_LOCAL;
    info->probe = mechanism == LOAM_PARALLAX;
    info->sink = mechanism == LOAM_SOFTMAX;
    info->beta_most = 2;
    if (mechanism == LOAM_LLA) {
        info->ridge_axes = 1u << LOAM_RIDGE_NUMBER | 1u << LOAM_RIDGE_HEAD | 1u << LOAM_RIDGE_TOKEN |
                           1u << LOAM_RIDGE_CHANNEL;
        info->ridge_units = 1u << LOAM_RIDGE_NORMALISED | 1u << LOAM_RIDGE_MAX | 1u << LOAM_RIDGE_TRACE;
    }
}

static void recurrent_reads(const recurrent_form *form, loam_mechanism_info *info)
{
    info->family = LOAM_FAMILY_RECURRENT;
    info->log_decay = decay_axes(form);
    info->beta = form->beta;
    info->beta_most = form->delta ? 2 : HUGE_VAL;
    info->delta = form->delta;
    info->normalise = !form->delta && !form->solved;
    if (form->solved) {
        info->ridge_axes = 1u << LOAM_RIDGE_NUMBER | 1u << LOAM_RIDGE_HEAD | 1u << LOAM_RIDGE_HEAD_CHANNEL;
        info->ridge_units = 1u << LOAM_RIDGE_NORMALISED;
        info->ridge_positive = 1;
    }
}

loam_status loam_mechanism_at(int index, loam_mechanism_info *info)
{
    if (index < 0 || index >= (int)(sizeof texts / sizeof texts[0]) || !info) {
        return LOAM_EARG;
    }
    const mechanism_text *t = &texts[index];
    const recurrent_form *form = recurrent_form_of((loam_mechanism)index);
    *info = (loam_mechanism_info){ .name = loam_mechanism_name((loam_mechanism)index),
                                   .objective = t->objective,
                                   .regulariser = t->regulariser,
                                   .update = t->update,
                                   .output = t->output,
                                   .cost = t->cost };
    if (form) {
        recurrent_reads(form, info);
    } else {
        local_reads((loam_mechanism)index, info);
    }
    return LOAM_OK;
}
