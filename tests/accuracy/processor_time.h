/* SPDX-License-Identifier: MIT
 * The time that this program has had of the processor. */
#ifndef TESTS_ACCURACY_PROCESSOR_TIME_H
#define TESTS_ACCURACY_PROCESSOR_TIME_H

double processor_seconds(void);

#endif
