/* SPDX-License-Identifier: MIT
 * What the contract says of CUDA alone: what is refused, what is not looked at, lengths that lie. */
#include "tests/cuda/scene.h"

#include "cli/device.h"

#include <string.h>

enum { SKIPPED = 77 };

static spec basic(loam_pass pass)
{
    spec s = scene_spec(LOAM_LLA, pass, 1);
    s.lens = 0;
    return s;
}

static void refuse(const loam_problem *p, loam_status status, const char *text)
{
    loam_plan *plan;
    loam_error error;
    assert_int_equal(loam_plan_create(&plan, p, &error), status);
    assert_null(plan);
    if (!strstr(error.text, text)) fail_msg("'%s' does not say '%s'", error.text, text);
}

static void problems_that_are_refused(void **state)
{
    (void)state;
    const spec s = basic(LOAM_FORWARD);
    const loam_problem good = spec_problem(&s);
    loam_problem p = good;
    p.dim_qk = 257;
    refuse(&p, LOAM_EUNSUPPORTED, "dim_qk: 257, the CUDA kernels take 1 to 256");
    p = good;
    p.dim_v = 512;
    refuse(&p, LOAM_EUNSUPPORTED, "dim_v: 512, the CUDA kernels take 1 to 256");
    p.backend = LOAM_BACKEND_AUTO;
    p.kernel = "local_forward_cuda";
    refuse(&p, LOAM_EUNSUPPORTED, "dim_v: 512");
    p = good;
    p.dtype = LOAM_F64;
    refuse(&p, LOAM_EUNSUPPORTED, "backend: cuda has no kernel for lla forward in f64");
    p = good;
    p.pass = LOAM_DECODE;
    refuse(&p, LOAM_EUNSUPPORTED, "backend: cuda has no kernel for lla decode in bf16");
}

static void auto_means_host_memory(void **state)
{
    (void)state;
    const spec s = basic(LOAM_FORWARD);
    loam_problem p = spec_problem(&s);
    loam_plan *plan;
    p.backend = LOAM_BACKEND_AUTO;
    assert_int_equal(loam_plan_create(&plan, &p, NULL), LOAM_OK);
    assert_int_not_equal(loam_plan_problem(plan)->backend, LOAM_BACKEND_CUDA);
    loam_plan_destroy(plan);
    p.kernel = "local_forward_cuda";
    assert_int_equal(loam_plan_create(&plan, &p, NULL), LOAM_OK);
    assert_int_equal(loam_plan_problem(plan)->backend, LOAM_BACKEND_CUDA);
    loam_plan_destroy(plan);
}

static void missing_pointers_are_refused(void **state)
{
    (void)state;
    spec s = basic(LOAM_FORWARD);
    s.lens = 1;
    scene x;
    scene_make(&x, &s);
    loam_args args[5];
    static const char *const names[] = { "q", "ridge", "slope", "work", "o" };
    for (int i = 0; i < 5; i++)
        args[i] = x.m.args;
    args[0].q.data = NULL;
    args[1].ridge.data = NULL;
    args[2].slope = NULL;
    args[3].work = NULL;
    args[4].o.token = 1;
    for (int i = 0; i < 5; i++) {
        loam_error error;
        assert_int_not_equal(loam_run(x.plan, &args[i], &error), LOAM_OK);
        assert_non_null(strstr(error.text, names[i]));
    }
    scene_free(&x);
}

/* Values on the device are the caller's promise; a length
 * that lies reads and writes nothing outside the arrays. */
static void lengths_are_held_within_the_arrays(void **state)
{
    (void)state;
    for (int pass = LOAM_FORWARD; pass <= LOAM_BACKWARD; pass++) {
        spec s = basic((loam_pass)pass);
        s.lens = 1;
        values honest = values_make(&s), lying = values_like(&s, &honest);
        honest.lens_kv[0] = s.len_kv;
        honest.lens_kv[1] = 0;
        lying.lens_kv[0] = s.len_kv + 1000000;
        lying.lens_kv[1] = -7;
        expect_run(&honest);
        expect_run(&lying);
        scene_expect_same("lengths outside the arrays", &lying, &honest);
        values_free(&honest);
        values_free(&lying);
    }
}

static void offsets_are_held_within_the_arrays(void **state)
{
    (void)state;
    for (int pass = LOAM_FORWARD; pass <= LOAM_BACKWARD; pass++) {
        spec s = basic((loam_pass)pass);
        s.batch = 4;
        s.packed = 1;
        scene x;
        scene_make(&x, &s);
        const int64_t total_q = x.v.cu_q[4], total_kv = x.v.cu_kv[4];
        const int64_t q[5] = { -5, total_q + 9, 3, INT64_MAX, total_q * 2 };
        const int64_t kv[5] = { total_kv + 1, -1, INT64_MIN, 2, total_kv + 100000 };
        CUDA(cudaMemcpy(guard_address(&x.m.cu_q), q, sizeof q, cudaMemcpyHostToDevice));
        CUDA(cudaMemcpy(guard_address(&x.m.cu_kv), kv, sizeof kv, cudaMemcpyHostToDevice));
        scene_launch(&x, NULL);
        const char *failed = arrays_settle(&x.m);
        if (failed) fail_msg("%s", failed);
        for (int which = 0; which < SLOT_COUNT; which++)
            assert_true(!x.m.array[which].map || guard_intact(&x.m.array[which]));
        assert_true(guard_intact(&x.m.work));
        scene_free(&x);
    }
}

/* A launch that CUDA refuses is told with CUDA's own words. */
static void failures_have_the_text_of_cuda(void **state)
{
    (void)state;
    spec s = basic(LOAM_FORWARD);
    scene x;
    cudaStream_t stream;
    cudaGraph_t graph;
    loam_error error;
    scene_make(&x, &s);
    CUDA(cudaStreamCreate(&stream));
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    x.m.args.stream = NULL; /* would have to wait for a stream that is being captured */
    const loam_status status = loam_run(x.plan, &x.m.args, &error);
    (void)cudaStreamEndCapture(stream, &graph);
    (void)cudaGetLastError();
    assert_int_equal(status, LOAM_ECUDA);
    assert_int_equal(error.status, LOAM_ECUDA);
    assert_non_null(strstr(error.text, "captur"));
    CUDA(cudaStreamDestroy(stream));
    scene_free(&x);
}

/* A row of one generation names its fallback, and says which of the two runs: nothing is launched here. */
static void plans_tell_what_runs(void **state)
{
    (void)state;
    static const int each[][2] = { { LOAM_SOFTMAX, LOAM_FORWARD },   { LOAM_LLA, LOAM_FORWARD },
                                   { LOAM_PARALLAX, LOAM_BACKWARD }, { LOAM_GATED_DELTA, LOAM_FORWARD },
                                   { LOAM_KDA, LOAM_BACKWARD },      { LOAM_MESA, LOAM_FORWARD },
                                   { LOAM_MESA, LOAM_BACKWARD } };
    char *const memory = (char *)(uintptr_t)4096;
    for (size_t i = 0; i < sizeof each / sizeof each[0]; i++) {
        loam_problem p = loam_problem_default((loam_mechanism)each[i][0], (loam_pass)each[i][1]);
        p.backend = LOAM_BACKEND_CUDA;
        p.dtype = LOAM_BF16;
        p.len_q = p.len_kv = 256, p.dim_qk = p.dim_v = 64;
        loam_plan *plan;
        assert_int_equal(loam_plan_create(&plan, &p, NULL), LOAM_OK);
        const char *row = loam_plan_problem(plan)->kernel, *fallback = loam_plan_fallback(plan);
        const loam_const_view in = loam_dense(memory, 1, 256, 64);
        const loam_view out = loam_dense_out(memory, 1, 256, 64);
        loam_args args = { .q = in, .k = in, .v = in, .probe = in, .o = out, .grad_o = in };
        args.log_decay = args.beta = loam_dense(memory, 1, 256, p.mechanism == LOAM_KDA ? 64 : 1);
        args.grad_q = args.grad_k = args.grad_v = out;
        assert_string_equal(loam_plan_kernel_for(plan, &args), row);
        if (!strstr(row, "_cuda")) {
            assert_non_null(fallback);
            assert_non_null(strstr(fallback, "_cuda"));
            args.k.data = memory + 2;
            assert_string_equal(loam_plan_kernel_for(plan, &args), fallback);
            args.k = loam_dense(memory, 1, 256, 65);
            assert_string_equal(loam_plan_kernel_for(plan, &args), fallback);
        } else {
            assert_null(fallback);
        }
        loam_plan_destroy(plan);
    }
}

int main(void)
{
    if (!device_count()) {
        print_message("skipped: no CUDA device\n");
        return SKIPPED;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(problems_that_are_refused),
        cmocka_unit_test(auto_means_host_memory),
        cmocka_unit_test(plans_tell_what_runs),
        cmocka_unit_test(missing_pointers_are_refused),
        cmocka_unit_test(lengths_are_held_within_the_arrays),
        cmocka_unit_test(offsets_are_held_within_the_arrays),
        cmocka_unit_test(failures_have_the_text_of_cuda),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
