/* SPDX-License-Identifier: MIT
 * The same inputs give the same bits, for any number of threads and any place in the batch: every row of the
 * registry that this machine can run, every mechanism. */
#include "tests/support/expect.h"
#include "tests/support/kernels.h"

#include <stdio.h>
#include <string.h>

enum { VARIANTS = 5, MOST_THREADS = 4, BATCH = 3, MANY = 40, MORE_QUERIES = 130, LONG_VARIANTS = 8 };

/* Sequences are shorter where a sanitizer makes all of this slow. */
#ifdef __SANITIZE_ADDRESS__
enum { SLOWER = 2 };
#else
enum { SLOWER = 1 };
#endif

typedef void check_fn(spec s);

/* Lengths around tiles and lanes, all options on or off, lists of dtypes as the row has them. */
static spec variant(const loam_kernel_info *row, loam_mechanism mechanism, int number)
{
    static const int64_t lengths[VARIANTS] = { 130, 67, 33, 260, 100 },
                         dims[VARIANTS] = { 17, 64, 33, 8, 64 };
    static const loam_dtype dtypes[VARIANTS] = { LOAM_F32, LOAM_BF16, LOAM_F16, LOAM_F32, LOAM_BF16 };
    const loam_pass pass = strcmp(row->pass, "forward") == 0    ? LOAM_FORWARD
                           : strcmp(row->pass, "backward") == 0 ? LOAM_BACKWARD
                                                                : LOAM_DECODE;
    /* Turned keys take their time, and for each row more of it. */
    const int64_t part = strstr(row->name, "_batch_") ? 4 : kernel_turns_keys(row->name) ? 2 : 1;
    const int64_t length = lengths[number] / (part * SLOWER);
    spec s = spec_default(mechanism, pass, length, dims[number], dims[VARIANTS - 1 - number]);
    s.backend = LOAM_BACKEND_AUTO;
    s.dtype = kernel_lists(row->dtypes, loam_dtype_name(dtypes[number])) ? dtypes[number] : LOAM_BF16;
    s.heads_q = 4;
    s.heads_kv = 2;
    s.slope = s.key_bias = number % 2;
    s.causal = number != 2;
    s.decay = number < 2;
    s.window = number == 3 ? 50 : 0;
    s.score = number / 2 % 2;
    s.len_q = pass == LOAM_DECODE ? 3 : s.len_q;
    s.ridge = number == 1 ? 1e-3 : 0.1;
    s.ridge_axes = mechanism == LOAM_LLA ? (number < 4 ? number : LOAM_RIDGE_TOKEN) : 0;
    s.ridge_unit = mechanism == LOAM_LLA ? number % 3 : 0;
    s.omit = number == 4 ? spec_omit(SLOT_WEIGHTS) : 0; /* with weights, Hopper takes the plain kernels */
    s.seed = 11 + number;
    snprintf(s.kernel, sizeof s.kernel, "%s", row->name);
    kernel_fit(&s);
    return s;
}

static void for_rows(check_fn *check, int tiled)
{
    static const char *const words[] = { "softmax", "parallax", "lla" };
    loam_kernel_info row;
    for (int i = 0; loam_kernel_at(i, &row) == LOAM_OK; i++) {
        const int wanted = row.available && (!tiled || kernel_tiled(&row));
        for (int mechanism = LOAM_SOFTMAX; wanted && mechanism <= LOAM_LLA; mechanism++)
            for (int number = 0; kernel_lists(row.mechanisms, words[mechanism]) && number < VARIANTS;
                 number++)
                check(variant(&row, (loam_mechanism)mechanism, number));
    }
}

static void check_threads(spec s) { expect_any_threads(s, MOST_THREADS); }

/* Outputs that are sums over the batch. */
static int of_all(const spec *s, int which)
{
    return which == SLOT_GRAD_SCALE || which == SLOT_GRAD_SLOPE || which == SLOT_GRAD_SINK ||
           (which == SLOT_GRAD_RIDGE && s->ridge_axes < LOAM_RIDGE_TOKEN);
}

/* A sequence alone, and at one place of a batch whose other sequences are something else. */
static void check_place(const values *alone, int64_t in_batch, int64_t place)
{
    spec s = alone->spec;
    s.batch = in_batch;
    s.threads = 2;
    values batch = values_make(&s);
    for (int which = SLOT_Q; which < SLOT_FIRST_OUTPUT; which++) {
        if (batch.x[which]) {
            const int64_t size = slot_size(alone, (slot)which);
            const int split = slot_shape(&batch, (slot)which).batch == in_batch;
            memcpy(batch.x[which] + (split ? place * size : 0), alone->x[which],
                   (size_t)size * sizeof(double));
        }
    }
    expect_run(&batch);
    for (int which = SLOT_FIRST_OUTPUT; which < SLOT_COUNT; which++) {
        const shape a = slot_shape(alone, (slot)which);
        const int64_t rows = a.heads * a.tokens;
        if (batch.x[which] && !of_all(&s, which))
            expect_same_rows("place in the batch", &batch, (slot)which, place * rows, alone->x[which], rows);
    }
    values_free(&batch);
}

static void check_places(spec s)
{
    values alone = values_make(&s);
    expect_run(&alone);
    for (int64_t place = 0; place < BATCH; place++)
        check_place(&alone, BATCH, place);
    values_free(&alone);
}

/* Thread blocks of GPUs may have more rows where there are as many as this. With weights rows of Hopper take
 * the plain kernels. */
static void check_one_of_many(const spec *s)
{
    values alone = values_make(s);
    expect_run(&alone);
    check_place(&alone, MANY, MANY / 3);
    values_free(&alone);
}

/* Such a batch takes its time: each variant has one width, of up to 256 channels, the widest both types. */
static void check_many(spec s)
{
    const int wider = 1 + s.seed % 4, both = wider == 4;
    s.omit |= spec_omit(SLOT_WEIGHTS);
    s.dim_qk *= wider, s.dim_v *= wider;
    kernel_fit(&s);
    check_one_of_many(&s);
    s.dtype = LOAM_F16;
    loam_kernel_info row;
    if (both && loam_kernel_at(kernel_find(s.kernel), &row) == LOAM_OK && kernel_lists(row.dtypes, "f16"))
        check_one_of_many(&s);
}

/* Lengths of several blocks of 64, edges of masks within blocks, pairs and vectors. */
static spec pass_variant(const loam_kernel_info *row, int number)
{
    static const int64_t queries[] = { 200, 131, 128, 77, 260, 150 },
                         keys[] = { 200, 131, 192, 150, 260, 90 }, windows[] = { 0, 51, 0, 37, 70, 0 };
    const int at = number % 6;
    spec s = spec_default(LOAM_SOFTMAX, LOAM_BACKWARD, queries[at] / SLOWER, number % 2 ? 64 : 33, 48);
    s.len_kv = keys[at] / SLOWER;
    s.window = windows[at];
    s.causal = at != 2;
    s.packed = number == 6, s.lens = number == 7;
    s.key_bias = number == 5;
    s.batch = 2, s.heads_q = 4, s.heads_kv = number % 3 ? 4 : 2;
    s.data = number == 8 ? DATA_FAR : DATA_NORMAL;
    s.backend = LOAM_BACKEND_AUTO;
    s.dtype = kernel_lists(row->dtypes, "f32") && number % 4 < 2 ? LOAM_F32 : LOAM_BF16;
    s.seed = 31 + number;
    snprintf(s.kernel, sizeof s.kernel, "%s", row->name);
    return s;
}

/* Softmax on CPUs sums dq as it goes over the keys, where threads share no head and no number is summed over
 * the keys of a row, as the gradient of the scale is. */
static void check_passes(spec s)
{
    s.threads = 4;
    values two = values_make(&s);
    expect_run(&two);
    s.omit |= spec_omit(SLOT_GRAD_SCALE);
    for (s.threads = 1; s.threads <= MOST_THREADS; s.threads++) {
        values one = values_like(&s, &two);
        expect_run(&one);
        for (int which = SLOT_GRAD_Q; which <= SLOT_GRAD_V; which++)
            expect_same("in one pass", &one, (slot)which, two.x[which]);
        values_free(&one);
    }
    values_free(&two);
}

static void same_bits_in_one_pass_and_two(void **state)
{
    (void)state;
    loam_kernel_info row;
    for (int i = 0; loam_kernel_at(i, &row) == LOAM_OK; i++) {
        const int wanted = row.available && strncmp(row.name, "local_backward_", 15) == 0 &&
                           strcmp(row.backend, "cpu") == 0;
        for (int number = 0; wanted && number < 9; number++)
            check_passes(pass_variant(&row, number));
    }
}

static void same_bits_for_any_number_of_threads(void **state) { (void)state, for_rows(check_threads, 0); }
static void same_bits_at_any_place_in_the_batch(void **state) { (void)state, for_rows(check_places, 0); }
static void same_bits_in_a_large_batch(void **state) { (void)state, for_rows(check_many, 1); }

/* Lengths around and beyond the segments in which a row of Hopper sums keys. Thread blocks share them out
 * where sequences and heads are as few as here. */
static spec long_variant(const loam_kernel_info *row, int number)
{
    static const int64_t lengths[LONG_VARIANTS][2] = { { 2048, 2048 }, { 3100, 3100 }, { 4100, 4100 },
                                                       { 6300, 6300 }, { 4500, 4500 }, { 130, 4096 },
                                                       { 70, 9000 },   { 65, 17000 } };
    spec s = spec_default(LOAM_SOFTMAX, LOAM_FORWARD, lengths[number][1], number == 1 ? 40 : 64, 64);
    s.len_q = lengths[number][0];
    s.heads_q = number == 2 ? 4 : number == 5 ? 2 : 1;
    s.heads_kv = number == 2 ? 2 : 1;
    s.dtype = number % 2 ? LOAM_F16 : LOAM_BF16;
    s.causal = number != 5;
    s.window = number == 4 ? 2300 : 0;
    s.decay = number == 2 || number == 7;
    s.sink = number == 6;
    s.omit = spec_omit(SLOT_WEIGHTS) | (number == 0 ? SPEC_OMIT_SAVED : 0);
    s.backend = LOAM_BACKEND_AUTO;
    s.seed = 91 + number;
    snprintf(s.kernel, sizeof s.kernel, "%s", row->name);
    return s;
}

static void same_bits_of_long_sequences(void **state)
{
    (void)state;
    loam_kernel_info row;
    for (int i = 0; loam_kernel_at(i, &row) == LOAM_OK; i++) {
        const int wanted = row.available && kernel_tiled(&row) &&
                           strncmp(row.name, "local_forward_", 14) == 0;
        for (int number = 0; wanted && number < LONG_VARIANTS; number++) {
            const spec s = long_variant(&row, number);
            values alone = values_make(&s);
            expect_run(&alone);
            check_place(&alone, s.len_q > MORE_QUERIES ? BATCH * BATCH : MANY, 2);
            values_free(&alone);
        }
    }
}

/* Queries that see all keys: some of them alone, and among others of their head. */
static void check_fewer(spec s, int64_t fewer)
{
    values all = values_make(&s);
    expect_run(&all);
    s.len_q = fewer;
    values some = values_make(&s);
    for (int which = SLOT_Q; which < SLOT_FIRST_OUTPUT; which++) {
        const shape a = some.x[which] ? slot_shape(&all, (slot)which) : (shape){ 0 };
        const int64_t taken = a.tokens == MORE_QUERIES ? fewer : a.tokens;
        for (int64_t h = 0; h < a.heads; h++)
            memcpy(some.x[which] + h * taken * a.channels, all.x[which] + h * a.tokens * a.channels,
                   (size_t)(taken * a.channels) * sizeof(double));
    }
    expect_run(&some);
    for (int64_t h = 0; h < s.heads_q; h++) {
        for (int which = SLOT_O; which <= SLOT_LSE; which++)
            expect_same_rows("fewer queries", &some, (slot)which, h * fewer,
                             all.x[which] + h * MORE_QUERIES * slot_shape(&all, (slot)which).channels, fewer);
    }
    values_free(&some);
    values_free(&all);
}

static void same_bits_with_fewer_queries(void **state)
{
    (void)state;
    static const int64_t fewer[] = {
        1, 15, 16, 17, 33, 48, 63
    }; /* with weights, so that the kernel is one */
    loam_kernel_info row;
    for (int i = 0; loam_kernel_at(i, &row) == LOAM_OK; i++) {
        const int wanted = row.available && strncmp(row.name, "local_forward_", 14) == 0 &&
                           strcmp(row.backend, "cpu") == 0;
        for (int number = 0; wanted && number < 7; number++) {
            spec s = spec_default(number % 2 ? LOAM_PARALLAX : LOAM_SOFTMAX, LOAM_FORWARD, MORE_QUERIES,
                                  number % 3 ? 64 : 33, 40);
            s.len_kv = 150, s.causal = 0, s.heads_q = 4, s.heads_kv = 2, s.seed = 51 + number;
            s.backend = LOAM_BACKEND_AUTO;
            s.dtype = kernel_lists(row.dtypes, "f16") && number % 4 < 2 ? LOAM_F16 : LOAM_BF16;
            s.key_bias = number == 5;
            snprintf(s.kernel, sizeof s.kernel, "%s", row.name);
            check_fewer(s, fewer[number]);
        }
    }
}

/* Softmax that leaves nothing for backward may take another way where queries are few. */
static void same_bits_of_few_queries(void **state)
{
    (void)state;
    static const int64_t queries[] = { 1, 3, 4, 5, 16, 17 };
    loam_kernel_info row;
    for (int i = 0; loam_kernel_at(i, &row) == LOAM_OK; i++) {
        const int wanted = row.available && strncmp(row.name, "local_forward_", 14) == 0 &&
                           strcmp(row.backend, "cpu") == 0;
        for (int number = 0; wanted && number < 6; number++) {
            spec s = spec_default(LOAM_SOFTMAX, LOAM_FORWARD, queries[number], number % 2 ? 64 : 33, 40);
            s.len_kv = number % 3 ? 1300 : 260, s.heads_q = 4, s.heads_kv = 2, s.seed = 71 + number;
            s.causal = number != 2, s.lens = number == 1, s.window = number == 3 ? 700 : 0;
            s.slope = s.sink = number == 4;
            s.backend = LOAM_BACKEND_AUTO;
            s.dtype = kernel_lists(row.dtypes, "f16") && number % 4 < 2 ? LOAM_F16 : LOAM_BF16;
            s.omit = SPEC_OMIT_SAVED | spec_omit(SLOT_WEIGHTS);
            snprintf(s.kernel, sizeof s.kernel, "%s", row.name);
            check_threads(s);
            s.lens = 0; /* drawn for each place */
            check_places(s);
        }
    }
}

/* Where blocks of rows are few, several thread blocks of a GPU may share the keys of one, in sequences of
 * more than 1472; the batch has enough blocks for all multiprocessors. */
static void same_bits_where_keys_are_shared(void **state)
{
    (void)state;
    static const int64_t lengths[] = { 1472, 1536, 1600, 2100 };
    loam_kernel_info row;
    for (int i = 0; loam_kernel_at(i, &row) == LOAM_OK; i++) {
        const int wanted = row.available && kernel_tiled(&row) && strcmp(row.pass, "forward") == 0 &&
                           kernel_lists(row.mechanisms, "lla") && !kernel_turns_keys(row.name);
        for (int number = 0; wanted && number < 8; number++) {
            spec s = spec_default(LOAM_LLA, LOAM_FORWARD, lengths[number % 4], number < 4 ? 64 : 128, 64);
            s.ridge = number % 3 ? 1 : 0.1;
            s.causal = number != 2, s.seed = 91 + number;
            s.backend = LOAM_BACKEND_AUTO;
            s.dtype = kernel_lists(row.dtypes, "f16") && number % 2 ? LOAM_F16 : LOAM_BF16;
            s.omit = spec_omit(SLOT_WEIGHTS) | (number % 4 == 1 ? 0 : SPEC_OMIT_SAVED);
            snprintf(s.kernel, sizeof s.kernel, "%s", row.name);
            values alone = values_make(&s);
            expect_run(&alone);
            check_place(&alone, MANY / 5, MANY / 8);
            values_free(&alone);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits_for_any_number_of_threads),
        cmocka_unit_test(same_bits_at_any_place_in_the_batch),
        cmocka_unit_test(same_bits_in_a_large_batch),
        cmocka_unit_test(same_bits_of_long_sequences),
        cmocka_unit_test(same_bits_in_one_pass_and_two),
        cmocka_unit_test(same_bits_with_fewer_queries),
        cmocka_unit_test(same_bits_of_few_queries),
        cmocka_unit_test(same_bits_where_keys_are_shared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
