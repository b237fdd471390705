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

/* Is it linear attention by elu + 1? Recurrent mechanisms have a head of keys for each of queries. */
bool manner_is_elu(const lm_options *o, manner its);

/* Of a layer that reads by features; else NULL. What its problem, LOAM_LINEAR, and arguments have besides. */
const lm_features *manner_features(const lm_options *o, int64_t layer);
void manner_features_problem(const lm_features *f, loam_problem *p);
void manner_features_args(const lm_features *f, const lm_config *c, loam_args *args);
/* The heads that features and states of a layer have; the rows of a state, `features` wide. */
int64_t manner_features_heads(const lm_features *f, const lm_config *c);
int64_t manner_state_rows(const lm_config *c);

#endif
