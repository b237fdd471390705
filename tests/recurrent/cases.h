/* SPDX-License-Identifier: MIT
 * Cases of the recurrent family in float64 on the reference, dense, with a state. */
#ifndef TESTS_RECURRENT_CASES_H
#define TESTS_RECURRENT_CASES_H

#include "tests/support/expect.h"

spec recurrent_spec(loam_mechanism mechanism, loam_pass pass, int64_t len, int64_t dim_qk, int64_t dim_v);
/* Positive features, all that they may be given, 4 heads of queries on 2 of keys. */
spec positive_spec(loam_pass pass, int64_t len, int64_t dim_qk, int64_t dim_v, int64_t features);
/* Case `number` of a mechanism: shapes of up to 9 tokens and all options in turn. */
spec recurrent_case(loam_mechanism mechanism, loam_pass pass, int64_t number);

/* Mechanisms with an additive write and a direct read. */
int is_additive(int mechanism);

void fill(values *v, slot which, double x);
void scale_slot(values *v, slot which, double factor);
/* All gradients are linear in those of o and of the last state, bit for bit; factor is a power of 2. */
void expect_linear_backward(const spec *s, double factor);
/* The tokens first .. first + count - 1 of a case that is not packed, which has the inputs of `v`. */
values part_of(const values *v, int64_t first, int64_t count);
/* Rows first .. of the tokens of `v` are those of `part`, bit for bit. */
void expect_part(const char *what, const values *v, const values *part, slot which, int64_t first);
/* The state `output` of one becomes `input` of another. */
void carry(values *to, slot input, const values *from, slot output);
/* `whole`, which was run forward or backward, has the bits of two calls that part at token `at`, the
 * state carried from the first to the second, and backward its gradient from the second to the first. */
void expect_split(const values *whole, int64_t at);
/* Each sequence of a packed case has the bits, rows and states, that it has by itself. */
void expect_separate(const spec *s);

/* Where rows are tried: on the CPU and, where there is one, on
 * a GPU, in float32 and with what its tiles are made for. */
typedef struct test_place {
    const char *name;
    loam_backend backend;
    loam_dtype dtype;
    int64_t dim_qk, dim_v;
} test_place;
extern test_place place_now; /* the CPU at first */
/* Goes to the next, if there is one. */
int next_place(void);

#endif
