/* SPDX-License-Identifier: MIT
 * Numbers of features for groups, which are layers or heads, at one total cost. */
#ifndef LOAM_DOF_BUDGET_H
#define LOAM_DOF_BUDGET_H

#include "io/error.h"

#include <stdint.h>

typedef struct dof_budget {
    int64_t mean; /* features of a group: `count` of them have count * mean */
    int64_t unit; /* each has a multiple of it, and at least one */
    int64_t most; /* each has at most so many; what that leaves over goes to the others */
} dof_budget;

/* unit divides mean, and mean fits below `most`. */
int dof_budget_check(const dof_budget *b, io_error *error);
/* out [count]: proportional to the needs, >= 0, as far as least and most allow, rounded by largest remainder;
 * the sum is count * mean, and who needs more has no less. Where all are 0 they are equal. */
void dof_budget_share(const dof_budget *b, const double *needs, int64_t count, int64_t *out);
/* By measurement: rises [count][points], what is lost when a group has features[p] of them, ascending from
 * one unit. Units go one by one to who gains most by the lower convex hull of its rises, which never rise;
 * among equals to who has fewest. The sum is count * mean. rises become these hulls; returns what all lose.
 */
double dof_budget_measured(const dof_budget *b, const int64_t *features, int64_t points, double *rises,
                           int64_t count, int64_t *out);
/* At most `dim` each, in whole units and at least one: it spends less. In place. */
void dof_budget_clip(const dof_budget *b, int64_t dim, int64_t count, int64_t *features);

#endif
