/* SPDX-License-Identifier: MIT
 * Defaults, names, versions, the registry and LOAM_ISA. */
#define _POSIX_C_SOURCE 200809L
#include "tests/support/kernels.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static loam_problem small(loam_mechanism mechanism, loam_pass pass)
{
    loam_problem p = loam_problem_default(mechanism, pass);
    p.heads_q = p.heads_kv = 8;
    p.len_q = p.len_kv = 40;
    p.dim_qk = p.dim_v = 16;
    return p;
}

static void defaults(void **state)
{
    (void)state;
    const loam_problem p = loam_problem_default(LOAM_PARALLAX, LOAM_DECODE);
    assert_int_equal(p.mechanism, LOAM_PARALLAX);
    assert_int_equal(p.pass, LOAM_DECODE);
    assert_int_equal(p.dtype, LOAM_F32);
    assert_true(p.batch == 1 && p.heads_q == 1 && p.heads_kv == 1);
    assert_true(p.len_q == 0 && p.len_kv == 0 && p.dim_qk == 0 && p.dim_v == 0);
    assert_true(p.total_q == -1 && p.total_kv == -1);
    assert_true(p.score == LOAM_DOT && p.scale == 0 && p.soft_cap == 0 && p.causal == 1 && p.window == 0);
    assert_true(p.slope == 0 && p.key_bias == 0 && p.sink == 0 && p.ridge == 0.1);
    assert_true(p.ridge_axes == LOAM_RIDGE_NUMBER && p.ridge_unit == LOAM_RIDGE_NORMALISED);
    assert_true(p.backend == LOAM_BACKEND_AUTO && p.kernel == NULL && p.threads == 0);
}

static void plan_tells_what_was_chosen(void **state)
{
    (void)state;
    loam_problem p = small(LOAM_LLA, LOAM_FORWARD);
    p.heads_kv = 2;
    loam_plan *plan;
    assert_int_equal(loam_plan_create(&plan, &p, NULL), LOAM_OK);
    const loam_problem *checked = loam_plan_problem(plan);
    assert_true(fabs(checked->scale - 0.25) < 1e-15);
    assert_int_equal(checked->threads, loam_max_threads());
    assert_non_null(checked->kernel);
    assert_true(kernel_find(checked->kernel) >= 0);
    assert_true(checked->backend != LOAM_BACKEND_AUTO);
    assert_int_equal(checked->window, 0);
    char name[128];
    snprintf(name, sizeof name, "lla forward f32 %s b1 h8/2 q40 k40 d16/16 causal", checked->kernel);
    assert_string_equal(loam_plan_name(plan), name);
    const loam_args nothing = { 0 };
    assert_null(loam_plan_fallback(plan)); /* host memory */
    assert_ptr_equal(loam_plan_kernel_for(plan, &nothing), checked->kernel);
    loam_plan_destroy(plan);
    p.causal = 0;
    p.window = 5;
    p.threads = 3;
    p.scale = 2;
    assert_int_equal(loam_plan_create(&plan, &p, NULL), LOAM_OK);
    assert_non_null(strstr(loam_plan_name(plan), "full"));
    assert_non_null(strstr(loam_plan_name(plan), "window 5"));
    assert_true(loam_plan_problem(plan)->threads == 3 && loam_plan_problem(plan)->scale == 2);
    loam_plan_destroy(plan);
}

/* Both orders of heads and tokens: views of one array of batch 2, heads 3, tokens 5, channels 7. */
static void dense_views(void **state)
{
    (void)state;
    float x[2 * 3 * 5 * 7];
    const loam_const_view a = loam_dense(x, 3, 5, 7), b = loam_dense_bthd(x, 3, 5, 7);
    const loam_view c = loam_dense_out(x, 3, 5, 7), d = loam_dense_bthd_out(x, 3, 5, 7);
    assert_true(a.data == x && b.data == x && c.data == x && d.data == x);
    assert_true(a.batch == 105 && a.head == 35 && a.token == 7);
    assert_true(b.batch == 105 && b.head == 7 && b.token == 21);
    assert_true(c.batch == a.batch && c.head == a.head && c.token == a.token);
    assert_true(d.batch == b.batch && d.head == b.head && d.token == b.token);
}

static void versions_and_statuses(void **state)
{
    (void)state;
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", LOAM_VERSION_MAJOR, LOAM_VERSION_MINOR, LOAM_VERSION_PATCH);
    assert_string_equal(loam_version(), version);
    for (int status = LOAM_OK; status >= LOAM_ECUDA; status--) {
        assert_true(strlen(loam_status_text((loam_status)status)) > 3);
        for (int other = LOAM_OK; other > status; other--) {
            assert_string_not_equal(loam_status_text((loam_status)status),
                                    loam_status_text((loam_status)other));
        }
    }
    assert_non_null(strstr(loam_status_text((loam_status)-99), "unknown"));
    assert_true(loam_max_threads() >= 1);
}

static void registry(void **state)
{
    (void)state;
    static const char *const passes[] = { "forward", "backward", "decode" };
    loam_kernel_info info, other;
    int count = 0, references = 0;
    for (; loam_kernel_at(count, &info) == LOAM_OK; count++) {
        assert_int_equal(kernel_find(info.name), count); /* names are unique */
        assert_true(kernel_lists("forward backward decode", info.pass));
        assert_true(kernel_lists("reference cpu cuda", info.backend));
        const int narrow = kernel_lists("avx512bf16 amxbf16", info.isa) || kernel_tiled(&info) ||
                           (kernel_turns_keys(info.name) && kernel_lists("cuda", info.backend) &&
                            strcmp(info.mechanisms, "softmax") == 0);
        if (strcmp(info.backend, "cuda") == 0)
            assert_string_equal(info.name + strlen(info.name) - strlen(info.isa), info.isa);
        else
            assert_true(kernel_lists("portable avx2 avx512 avx512bf16 amxbf16", info.isa));
        assert_true(kernel_lists(info.dtypes, narrow ? "bf16" : "f32"));
        assert_true(strlen(info.mechanisms) > 0);
        references += strcmp(info.backend, "reference") == 0 && kernel_lists(info.dtypes, "f64") &&
                      info.available;
    }
    assert_int_equal(references, 9); /* three passes of two families, and of positive features */
    assert_int_equal(loam_kernel_at(count, &other), LOAM_EARG);
    assert_int_equal(loam_kernel_at(-1, &other), LOAM_EARG);
    assert_int_equal(loam_kernel_at(0, NULL), LOAM_EARG);
    for (int each = 0; each < 6; each++) { /* the last row that fits host memory wins */
        const int pass = each / 2;
        loam_problem p = small(LOAM_SOFTMAX, (loam_pass)pass);
        p.dtype = each % 2 ? LOAM_BF16 : LOAM_F32;
        const char *last = NULL;
        for (int i = 0; loam_kernel_at(i, &info) == LOAM_OK; i++) {
            const int fits = strcmp(info.backend, "cuda") != 0 && strcmp(info.pass, passes[pass]) == 0 &&
                             info.available && !kernel_turns_keys(info.name) &&
                             kernel_lists(info.dtypes, loam_dtype_name(p.dtype)) &&
                             kernel_lists(info.mechanisms, "softmax");
            last = fits ? info.name : last;
        }
        loam_plan *plan;
        assert_int_equal(loam_plan_create(&plan, &p, NULL), LOAM_OK);
        assert_string_equal(loam_plan_problem(plan)->kernel, last);
        loam_plan_destroy(plan);
    }
}

/* The names of 0, 1, ... until NULL; nothing has a name below 0. */
#define EXPECT_NAMES(type, name, ...) \
    do { \
        static const char *const words[] = { __VA_ARGS__ }; \
        int count = 0; \
        for (; name((type)count); count++) { \
            assert_true(count < (int)(sizeof words / sizeof words[0])); \
            assert_string_equal(name((type)count), words[count]); \
        } \
        assert_int_equal(count, sizeof words / sizeof words[0]); \
        assert_null(name((type)-1)); \
    } while (0)

static void expect_mechanism_names(void)
{
    static const char *const local[] = { "softmax", "parallax", "lla" };
    spec s = { 0 };
    for (; loam_mechanism_name((loam_mechanism)s.mechanism); s.mechanism++) {
        const char *expected = s.mechanism < LOAM_LINEAR ? local[s.mechanism] : spec_recurrence_of(&s).name;
        assert_non_null(expected);
        assert_string_equal(loam_mechanism_name((loam_mechanism)s.mechanism), expected);
    }
    assert_int_equal(s.mechanism, spec_mechanisms());
    assert_null(spec_recurrence_of(&s).name);
    assert_null(loam_mechanism_name((loam_mechanism)-1));
}

static void names_until_null(void **state)
{
    (void)state;
    expect_mechanism_names();
    EXPECT_NAMES(loam_family, loam_family_name, "local", "recurrent");
    EXPECT_NAMES(loam_pass, loam_pass_name, "forward", "backward", "decode");
    EXPECT_NAMES(loam_dtype, loam_dtype_name, "f32", "bf16", "f16", "f64");
    EXPECT_NAMES(loam_backend, loam_backend_name, "auto", "reference", "cpu", "cuda");
    EXPECT_NAMES(loam_score, loam_score_name, "dot", "rbf");
    EXPECT_NAMES(loam_ridge_axes, loam_ridge_axes_name, "number", "head", "token", "channel", "head-channel");
    EXPECT_NAMES(loam_ridge_unit, loam_ridge_unit_name, "normalised", "max", "trace");
    EXPECT_NAMES(loam_feature_map, loam_feature_map_name, "identity", "elu", "unit", "positive");
    EXPECT_NAMES(loam_projection, loam_projection_name, "normal", "orthogonal", "dct");
    EXPECT_NAMES(loam_rope_layout, loam_rope_layout_name, "half", "interleaved");
    EXPECT_NAMES(loam_row_code, loam_row_code_name, "solved", "empty", "singular");
    EXPECT_NAMES(loam_solver, loam_solver_name, "none", "cg", "dual", "gram");
}

/* What a mechanism is said to read is what it cannot run without. */
static void mechanisms(void **state)
{
    (void)state;
    static const float zeros[8 * 40 * 16] = { 0 };
    static float o[8 * 40 * 16];
    loam_mechanism_info info;
    int count = 0;
    for (; loam_mechanism_at(count, &info) == LOAM_OK; count++) {
        assert_string_equal(info.name, loam_mechanism_name((loam_mechanism)count));
        assert_true(strlen(info.objective) > 0 && strlen(info.regulariser) > 0 && strlen(info.update) > 0 &&
                    strlen(info.output) > 0 && strlen(info.cost) > 0);
        assert_int_equal(info.family, count >= LOAM_LINEAR ? LOAM_FAMILY_RECURRENT : LOAM_FAMILY_LOCAL);
        const spec s = spec_default((loam_mechanism)count, LOAM_FORWARD, 4, 4, 4);
        const spec_recurrence form = spec_recurrence_of(&s);
        assert_true((int)info.log_decay == (int)form.gate && info.beta == form.beta &&
                    info.delta == form.delta);
        const loam_problem p = small((loam_mechanism)count, LOAM_FORWARD);
        loam_plan *plan;
        for (int without = 0; without < 3 && info.family == LOAM_FAMILY_RECURRENT; without++) {
            assert_int_equal(loam_plan_create(&plan, &p, NULL), LOAM_OK);
            loam_args args = { .q = loam_dense(zeros, 8, 40, 16),
                               .k = loam_dense(zeros, 8, 40, 16),
                               .v = loam_dense(zeros, 8, 40, 16),
                               .o = loam_dense_out(o, 8, 40, 16),
                               .work = aligned_alloc(LOAM_ALIGN, loam_plan_work_bytes(plan) + LOAM_ALIGN) };
            const int decays = info.log_decay != LOAM_DECAY_NONE;
            if (decays && without != 1) args.log_decay.data = zeros; /* strides 0 */
            if (info.beta && without != 2) args.beta.data = zeros;
            const int lacks = (without == 1 && decays) || (without == 2 && info.beta);
            assert_int_equal(loam_run(plan, &args, NULL), lacks ? LOAM_EARG : LOAM_OK);
            free(args.work);
            loam_plan_destroy(plan);
        }
    }
    assert_true(count > LOAM_MESA);
    assert_int_equal(loam_mechanism_at(-1, &info), LOAM_EARG);
    assert_int_equal(loam_mechanism_at(0, NULL), LOAM_EARG);
}

static loam_status plan_of(const loam_problem *p)
{
    loam_plan *plan;
    const loam_status status = loam_plan_create(&plan, p, NULL);
    loam_plan_destroy(plan);
    return status;
}

/* What a mechanism is said to take, plans take, and nothing else. */
static void options_of_mechanisms(void **state)
{
    (void)state;
    loam_mechanism_info info;
    for (int m = 0; loam_mechanism_at(m, &info) == LOAM_OK; m++) {
        const loam_problem plain = small((loam_mechanism)m, LOAM_FORWARD);
        for (int axes = 0; loam_ridge_axes_name((loam_ridge_axes)axes); axes++) {
            loam_problem p = plain;
            p.ridge_axes = (loam_ridge_axes)axes;
            const int none = axes == LOAM_RIDGE_NUMBER; /* the default, with or without a ridge */
            assert_int_equal(plan_of(&p), none || info.ridge_axes >> axes & 1 ? LOAM_OK : LOAM_EUNSUPPORTED);
        }
        for (int unit = 0; loam_ridge_unit_name((loam_ridge_unit)unit); unit++) {
            loam_problem p = plain;
            p.ridge_unit = (loam_ridge_unit)unit;
            const int none = unit == LOAM_RIDGE_NORMALISED;
            assert_int_equal(plan_of(&p), none || info.ridge_units >> unit & 1 ? LOAM_OK : LOAM_EUNSUPPORTED);
        }
        loam_problem sink = plain, normal = plain, zero = plain;
        sink.sink = normal.normalise = 1, zero.ridge = 0;
        assert_int_equal(plan_of(&sink), info.sink ? LOAM_OK : LOAM_EUNSUPPORTED);
        assert_int_equal(plan_of(&normal), info.normalise ? LOAM_OK : LOAM_EUNSUPPORTED);
        assert_int_equal(plan_of(&zero), info.ridge_positive ? LOAM_EVALUE : LOAM_OK);
        assert_true(info.beta_most == (info.delta || info.family == LOAM_FAMILY_LOCAL ? 2 : HUGE_VAL));
    }
}

static int isa_rank(const char *isa)
{
    static const char *const sets[] = { "portable", "avx2", "avx512", "avx512bf16", "amxbf16" };
    int rank = 0;
    for (int r = 0; r < 5; r++)
        rank = strcmp(isa, sets[r]) == 0 ? r : rank;
    return rank;
}

/* Nothing above the named set is available, listed as a feature or chosen, by rule or by name. */
static void check_mask(const char *isa, int rank)
{
    loam_kernel_info info;
    loam_plan *plan;
    loam_error error;
    assert_int_equal(setenv("LOAM_ISA", isa, 1), 0);
    const char *features = loam_cpu_features();
    assert_true(rank >= 4 || !kernel_lists(features, "amxbf16"));
    assert_true(rank >= 3 || !kernel_lists(features, "avx512bf16"));
    assert_true(rank >= 2 || !kernel_lists(features, "avx512"));
    assert_true(rank >= 1 || !kernel_lists(features, "avx2"));
    for (int i = 0; loam_kernel_at(i, &info) == LOAM_OK; i++) {
        assert_true(!info.available || isa_rank(info.isa) <= rank);
        if (!info.available && strcmp(info.pass, "forward") == 0 && strcmp(info.backend, "cuda") != 0) {
            loam_problem p = small(LOAM_LLA, LOAM_FORWARD);
            p.dtype = LOAM_BF16;
            p.kernel = info.name;
            assert_int_equal(loam_plan_create(&plan, &p, &error), LOAM_EUNSUPPORTED);
            assert_non_null(strstr(error.text, info.name));
        }
    }
    loam_problem p = small(LOAM_LLA, LOAM_FORWARD);
    p.dtype = LOAM_BF16;
    assert_int_equal(loam_plan_create(&plan, &p, &error), LOAM_OK);
    const int chosen = kernel_find(loam_plan_problem(plan)->kernel);
    assert_int_equal(loam_kernel_at(chosen, &info), LOAM_OK);
    assert_true(isa_rank(info.isa) <= rank);
    loam_plan_destroy(plan);
    unsetenv("LOAM_ISA");
}

static void environment_masks_instruction_sets(void **state)
{
    (void)state;
    check_mask("portable", 0);
    check_mask("avx2", 1);
    check_mask("avx512", 2);
    check_mask("avx512bf16", 3);
    check_mask("amxbf16", 4);
    check_mask("", 4);
    check_mask("no-such-set", 0);
}

int main(void)
{
    unsetenv("LOAM_ISA");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults),
        cmocka_unit_test(plan_tells_what_was_chosen),
        cmocka_unit_test(dense_views),
        cmocka_unit_test(versions_and_statuses),
        cmocka_unit_test(registry),
        cmocka_unit_test(names_until_null),
        cmocka_unit_test(mechanisms),
        cmocka_unit_test(options_of_mechanisms),
        cmocka_unit_test(environment_masks_instruction_sets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
