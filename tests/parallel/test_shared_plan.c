/* SPDX-License-Identifier: MIT
 * One plan, run by several threads at once, each with arguments and workspace of its own. */
#define _POSIX_C_SOURCE 200809L
#include "tests/support/expect.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { WORKERS = 4, ROUNDS = 6 };

typedef struct worker {
    pthread_t thread;
    const loam_plan *plan;
    arrays m;
    values v;
    loam_status status;
} worker;

static void *work(void *context)
{
    worker *w = context;
    for (int round = 0; round < ROUNDS && !w->status; round++) {
        loam_error error;
        w->status = loam_run(w->plan, &w->m.args, &error);
    }
    return NULL;
}

static void prepare(worker *w, const loam_plan *plan, const spec *s, int number)
{
    spec own = *s;
    own.seed = 50 + number;
    w->plan = plan;
    w->status = LOAM_OK;
    w->v = values_make(&own);
    arrays_make(&w->m, &w->v);
    if (s->pass == LOAM_FORWARD) arrays_saved(&w->m, plan);
    arrays_work(&w->m, plan);
}

static void check_results(worker *w)
{
    char misuse[160];
    values want = values_like(&w->v.spec, &w->v);
    expect_run(&want);
    arrays_read(&w->m, &w->v);
    for (int which = SLOT_FIRST_OUTPUT; which < SLOT_COUNT; which++)
        if (w->v.x[which] && spec_wants(&w->v.spec, (slot)which))
            expect_same("plan in use by several threads", &w->v, (slot)which, want.x[which]);
    assert_null(arrays_misuse(&w->m, misuse, sizeof misuse));
    values_free(&want);
}

static void check_plan(const spec *s)
{
    worker workers[WORKERS];
    values any = values_make(s);
    const loam_problem problem = values_problem(&any);
    loam_plan *plan;
    loam_error error;
    assert_int_equal(loam_plan_create(&plan, &problem, &error), LOAM_OK);
    for (int i = 0; i < WORKERS; i++)
        prepare(&workers[i], plan, s, i);
    for (int i = 0; i < WORKERS; i++)
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    for (int i = 0; i < WORKERS; i++) {
        assert_int_equal(pthread_join(workers[i].thread, NULL), 0);
        assert_int_equal(workers[i].status, LOAM_OK);
    }
    for (int i = 0; i < WORKERS; i++) {
        check_results(&workers[i]);
        arrays_free(&workers[i].m);
        values_free(&workers[i].v);
    }
    loam_plan_destroy(plan);
    values_free(&any);
}

static void a_plan_serves_several_threads(void **state)
{
    (void)state;
    for (int mechanism = LOAM_SOFTMAX; mechanism <= LOAM_LLA; mechanism++) {
        for (int number = 0; number < 4; number++) {
            spec s = spec_default((loam_mechanism)mechanism, number % 2 ? LOAM_DECODE : LOAM_FORWARD, 90, 19,
                                  21);
            s.dtype = number < 2 ? LOAM_F32 : LOAM_F64;
            s.backend = LOAM_BACKEND_AUTO;
            s.heads_q = 2;
            s.threads = 2;
            check_plan(&s);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(a_plan_serves_several_threads) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
