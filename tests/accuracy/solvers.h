/* SPDX-License-Identifier: MIT
 * The evidence for the choice of the solver. */
#ifndef TESTS_ACCURACY_SOLVERS_H
#define TESTS_ACCURACY_SOLVERS_H

/* Which solver rows took, their iterations, the error of o and the
 * time in units of softmax, over data, ridge, n and d. 0: success. */
int solvers_survey(void);

/* Error and time of a row: the library's, and plain direct solvers. 0: success. */
int solvers_compare(const char *data);

#endif
