/* SPDX-License-Identifier: MIT
 * The same bits for any number of threads and any place in a batch; how much memory a plan asks for. */
#include "tests/recurrent/cases.h"

#include <string.h>

enum { LEN = 150, BATCH = 3, CHUNK = 64 };

/* On the kernel that the library would choose there. */
static spec base(int mechanism, int pass)
{
    spec s = recurrent_spec((loam_mechanism)mechanism, (loam_pass)pass, LEN, place_now.dim_qk,
                            place_now.dim_v);
    s.backend = place_now.backend;
    s.heads_q = s.heads_kv = 2;
    s.heads_v = 6;
    s.dtype = place_now.dtype;
    s.threads = 1;
    return s;
}

static void any_number_of_threads(void **state)
{
    (void)state;
    for (int mechanism = LOAM_LINEAR; mechanism < spec_mechanisms(); mechanism++) {
        for (int pass = LOAM_FORWARD; pass <= LOAM_DECODE; pass++) {
            spec s = base(mechanism, pass);
            s.batch = BATCH;
            expect_any_threads(s, 5);
        }
    }
}

/* Is the slot one thing for the whole batch? */
static int of_all(const values *v, slot which) { return slot_shape(v, which).batch != v->spec.batch; }

static void any_place_in_a_batch(void **state)
{
    (void)state;
    for (int mechanism = LOAM_LINEAR; mechanism < spec_mechanisms(); mechanism++) {
        for (int pass = LOAM_FORWARD; pass <= LOAM_DECODE; pass++) {
            spec s = base(mechanism, pass);
            values alone = values_make(&s);
            expect_run(&alone);
            s.batch = BATCH;
            for (int64_t place = 0; place < BATCH; place++) {
                s.seed = 40 + place;
                values batch = values_make(&s);
                for (int which = 0; which < SLOT_FIRST_OUTPUT; which++) {
                    if (batch.x[which]) {
                        const int64_t n = slot_size(&alone, (slot)which);
                        memcpy(batch.x[which] + (of_all(&batch, (slot)which) ? 0 : place * n), alone.x[which],
                               (size_t)n * sizeof(double));
                    }
                }
                expect_run(&batch);
                for (int which = SLOT_FIRST_OUTPUT; which < SLOT_COUNT; which++) {
                    if (batch.x[which] && !of_all(&batch, (slot)which)) {
                        const shape a = slot_shape(&alone, (slot)which);
                        expect_same_rows("a place in a batch", &batch, (slot)which,
                                         place * a.heads * a.tokens, alone.x[which], a.heads * a.tokens);
                    }
                }
                values_free(&batch);
            }
            values_free(&alone);
        }
    }
}

/* MesaNet's states are float64 while a call lasts, but for its chunks on Hopper. */
static int by_chunks(int mechanism)
{
    return mechanism != LOAM_MESA ||
           (place_now.backend == LOAM_BACKEND_CUDA && place_now.dtype == LOAM_BF16 && place_now.dim_qk == 64);
}

/* States of float32 carry a sequence over the edge of a chunk
 * as if it were not there, and their gradients back. */
static void split_at_chunks(void **state)
{
    (void)state;
    for (int mechanism = LOAM_LINEAR; mechanism < spec_mechanisms(); mechanism++) {
        for (int pass = LOAM_FORWARD; pass <= LOAM_BACKWARD && by_chunks(mechanism); pass++) {
            const spec s = base(mechanism, pass);
            values whole = values_make(&s);
            expect_run(&whole);
            for (int64_t at = CHUNK; at < LEN; at += CHUNK)
                expect_split(&whole, at);
            values_free(&whole);
        }
    }
}

/* Kernels may pass on the state of several chunks: a split between them changes where these begin. */
static void split_a_long_sequence(void **state)
{
    (void)state;
    for (int mechanism = LOAM_LINEAR; mechanism < spec_mechanisms(); mechanism++) {
        if (!by_chunks(mechanism)) continue;
        spec s = base(mechanism, LOAM_FORWARD);
        s.len_q = s.len_kv = 8 * LEN;
        values whole = values_make(&s);
        expect_run(&whole);
        expect_split(&whole, CHUNK);
        expect_split(&whole, 8 * CHUNK);
        expect_split(&whole, 17 * CHUNK);
        values_free(&whole);
    }
}

/* Delta rules of a GPU may go through so many chunks in two parts, at half of each sequence; a part of a
 * sequence has too few for that. */
static void split_many_chunks(void **state)
{
    (void)state;
    if (place_now.dtype != LOAM_BF16 || place_now.dim_v != 64) return;
    for (int mechanism = LOAM_DELTA; mechanism <= LOAM_GATED_DELTA; mechanism++) {
        spec s = base(mechanism, LOAM_FORWARD);
        s.heads_v = 16;
        s.len_q = s.len_kv = 53 * CHUNK - 7;
        values whole = values_make(&s);
        expect_run(&whole);
        expect_split(&whole, 17 * CHUNK);
        values_free(&whole);
    }
}

/* Fewer heads than threads: these share the chunks of one head. */
static void chunks_of_one_head(void **state)
{
    (void)state;
    for (int mechanism = LOAM_LINEAR; mechanism < spec_mechanisms(); mechanism++) {
        for (int pass = LOAM_FORWARD; pass <= LOAM_BACKWARD; pass++) {
            spec s = base(mechanism, pass);
            s.heads_q = s.heads_kv = 1;
            s.heads_v = 2;
            s.len_q = s.len_kv = 4 * LEN;
            values one = values_make(&s);
            expect_run(&one);
            for (s.threads = 3; s.threads <= 4; s.threads++) {
                values more = values_like(&s, &one);
                expect_run(&more);
                for (int which = SLOT_FIRST_OUTPUT; which < SLOT_COUNT; which++)
                    if (one.x[which]) expect_same("threads in one head", &more, (slot)which, one.x[which]);
                values_free(&more);
            }
            values_free(&one);
        }
    }
}

/* A state that is written where it is read. */
static void in_place(void **state)
{
    (void)state;
    for (int mechanism = LOAM_LINEAR; mechanism < spec_mechanisms(); mechanism++) {
        for (int pass = LOAM_FORWARD; pass <= LOAM_DECODE; pass += LOAM_DECODE) {
            spec s = base(mechanism, pass);
            s.len_q = s.len_kv = 3;
            values apart = values_make(&s), same = values_like(&s, &apart);
            expect_run(&apart);
            arrays m;
            arrays_make(&m, &same);
            const loam_problem problem = values_problem(&same);
            loam_plan *plan;
            loam_error error;
            assert_int_equal(loam_plan_create(&plan, &problem, &error), LOAM_OK);
            arrays_work(&m, plan);
            memcpy(m.array[SLOT_STATE_OUT].data, m.array[SLOT_STATE_IN].data,
                   (size_t)slot_size(&same, SLOT_STATE_IN) * sizeof(float));
            m.args.state_in.data = m.args.state_out.data;
            assert_int_equal(loam_run(plan, &m.args, &error), LOAM_OK);
            arrays_read(&m, &same);
            expect_same("in place", &same, SLOT_O, apart.x[SLOT_O]);
            expect_same("in place", &same, SLOT_STATE_OUT, apart.x[SLOT_STATE_OUT]);
            loam_plan_destroy(plan);
            arrays_free(&m);
            values_free(&apart);
            values_free(&same);
        }
    }
}

static double work_of(int mechanism, int pass, int64_t len, loam_backend backend)
{
    spec s = base(mechanism, pass);
    s.backend = backend;
    s.len_q = s.len_kv = len;
    s.dim_qk = s.dim_v = 64;
    const loam_problem p = spec_problem(&s);
    loam_plan *plan;
    assert_int_equal(loam_plan_create(&plan, &p, NULL), LOAM_OK);
    const double bytes = (double)loam_plan_work_bytes(plan);
    assert_true(loam_plan_saved_bytes(plan) == 0);
    loam_plan_destroy(plan);
    return bytes;
}

/* Forward: a few states. Backward: two gradients of all tokens, and states
 * for only the square root of them, or one a chunk of the CPU's. */
static void workspace(void **state)
{
    (void)state;
    for (int mechanism = LOAM_LINEAR; mechanism < spec_mechanisms(); mechanism++) {
        const double state_bytes = 8.0 * (mechanism == LOAM_MESA ? 128 : 64) * 64;
        for (loam_backend with = LOAM_BACKEND_REFERENCE; with <= LOAM_BACKEND_CPU; with++) {
            assert_true(work_of(mechanism, LOAM_FORWARD, 1 << 20, with) ==
                        work_of(mechanism, LOAM_FORWARD, 1, with));
            assert_true(work_of(mechanism, LOAM_DECODE, 1, with) < 5 * state_bytes);
        }
        assert_true(work_of(mechanism, LOAM_BACKWARD, 1 << 20, LOAM_BACKEND_REFERENCE) <
                    2.0 * 8 * 64 * (1 << 20) + (2 * 1024 + 8) * state_bytes);
        assert_true(work_of(mechanism, LOAM_BACKWARD, 1 << 20, LOAM_BACKEND_CPU) <
                    2.0 * 4 * 64 * (1 << 20) + ((1 << 20) / CHUNK + 64) * state_bytes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_number_of_threads),
        cmocka_unit_test(any_place_in_a_batch),
        cmocka_unit_test(split_at_chunks),
        cmocka_unit_test(split_a_long_sequence),
        cmocka_unit_test(chunks_of_one_head),
        cmocka_unit_test(in_place),
        cmocka_unit_test(workspace),
    };
    /* Of a GPU those that touch no array themselves. */
    const struct CMUnitTest anywhere[] = {
        cmocka_unit_test(any_number_of_threads), cmocka_unit_test(any_place_in_a_batch),
        cmocka_unit_test(split_at_chunks),       cmocka_unit_test(split_a_long_sequence),
        cmocka_unit_test(split_many_chunks),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    while (next_place())
        failed += cmocka_run_group_tests_name(place_now.name, anywhere, NULL, NULL);
    return failed;
}
