/* SPDX-License-Identifier: MIT
 * A directory of its own for a test program: setup enters
 * it, teardown leaves and removes it with its files. */
#ifndef TESTS_REGRESS_SCRATCH_H
#define TESTS_REGRESS_SCRATCH_H

/* For cmocka's group setup and teardown; `state` is not used. */
int scratch_enter(void **state);
int scratch_leave(void **state);

#endif
