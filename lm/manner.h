/* SPDX-License-Identifier: MIT
 * What options say of the attention of each head. */
#ifndef LOAM_LM_MANNER_H
#define LOAM_LM_MANNER_H

#include "lm/model.h"

/* What attention does in one head. */
typedef struct manner {
    loam_mechanism mechanism;
    double ridge, inverse_temperature;
} manner;

manner manner_of(const lm_options *o, const lm_config *c, int64_t layer, int64_t head);
/* How many heads from `first` on one call does: within those of one key-value head, or all of several. Their
 * ridges may differ. */
int64_t manner_count(const lm_options *o, const lm_config *c, int64_t layer, int64_t first);
bool manner_ridges_differ(const lm_options *o, const lm_config *c, int64_t layer, int64_t first,
                          int64_t count);

#endif
