/* SPDX-License-Identifier: MIT
 * cli/bench/report.c and the statistics, on times that are made up. */
#define _POSIX_C_SOURCE 200809L
#include "cli/bench/report.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct made_up {
    bench_machine machine;
    bench_roofs roofs;
    bench_protocol protocol;
    bench_shape shapes[3];
    bench_result results[3];
    bench_report report;
} made_up;

/* Softmax forward, LLA forward of the same sizes, softmax decode. */
static void make_up(made_up *m)
{
    static const loam_mechanism mechanisms[] = { LOAM_SOFTMAX, LOAM_LLA, LOAM_SOFTMAX };
    static const loam_pass passes[] = { LOAM_FORWARD, LOAM_FORWARD, LOAM_DECODE };
    *m = (made_up){ .machine = { "a CPU", "avx2", "gcc 1", "2026-01-02T03:04:05Z", "abc+", 4, 1e9 },
                    .roofs = { .sgemm = { 90, 80, 100 },
                               .read = { 9, 8, 10 },
                               .copy = { 19, 18, 20 },
                               .update = { 29, 28, 30 },
                               .count = 2 },
                    .protocol = { .threads = 3, .seed = 5 } };
    for (int i = 0; i < 3; i++) {
        bench_shape *s = &m->shapes[i];
        snprintf(s->name, sizeof s->name, "shape-%d", i);
        snprintf(s->flags, sizeof s->flags, "causal window=%d", i);
        s->problem = loam_problem_default(mechanisms[i], passes[i]);
        s->problem.len_q = s->problem.len_kv = 8, s->problem.dim_qk = s->problem.dim_v = 4;
        m->results[i] = (bench_result){ .shape = s,
                                        .kernel = "some_kernel",
                                        .runs = 3,
                                        .median = 0.5 * (i + 1),
                                        .low = 0.4,
                                        .high = 0.6,
                                        .least = 0.3,
                                        .most = 0.7,
                                        .pairs = 36,
                                        .flop = 25e9,
                                        .bytes = 2e9,
                                        .iterations = i == 1 ? 12.5 : NAN,
                                        .exact = i == 1 ? 0.375 : NAN,
                                        .error = i == 1   ? INFINITY
                                                 : i == 0 ? 1e-6
                                                          : NAN,
                                        .work_bytes = 64 };
    }
    m->report = (bench_report){ &m->machine, &m->roofs, &m->protocol, m->results, 3, NULL };
}

static char *written(const bench_report *report, int (*write)(const bench_report *, FILE *, io_error *))
{
    char *text = NULL;
    size_t length;
    io_error error;
    FILE *stream = open_memstream(&text, &length);
    assert_non_null(stream);
    assert_int_equal(write(report, stream, &error), 0);
    fclose(stream);
    return text;
}

static bool near(double a, double b) { return fabs(a - b) <= 1e-12 * fabs(b); }

static void rates_are_derived(void **state)
{
    (void)state;
    made_up m;
    make_up(&m);
    const bench_rates forward = bench_rates_of(&m.report, &m.results[0]);
    assert_true(near(forward.gflops, 50) && near(forward.gbs, 4));
    assert_true(near(forward.of_sgemm, 0.5) && near(forward.of_read, 0.4) && near(forward.of_roof, 0.5));
    assert_true(near(forward.times_softmax, 1));
    assert_true(near(bench_rates_of(&m.report, &m.results[1]).times_softmax, 2));
    const bench_rates decode = bench_rates_of(&m.report, &m.results[2]);
    assert_true(decode.of_roof == decode.of_read && near(decode.times_softmax, 1));
    m.roofs.count = 0;
    const bench_rates roofless = bench_rates_of(&m.report, &m.results[0]);
    assert_true(isnan(roofless.of_roof) && isnan(roofless.of_sgemm) && isnan(roofless.of_read));
}

/* Rows of CUDA are measured against the device, whose name and roof are told. */
static void devices_have_their_own_roof(void **state)
{
    (void)state;
    made_up m;
    make_up(&m);
    const bench_device device = { .info = { .name = "a GPU", .major = 9 }, .copy = 16 };
    m.results[0].device = true;
    m.report.device = &device;
    const bench_rates x = bench_rates_of(&m.report, &m.results[0]);
    assert_true(isnan(x.of_sgemm) && near(x.of_read, 0.25) && near(x.of_roof, 0.25));
    assert_true(near(bench_rates_of(&m.report, &m.results[1]).of_sgemm, 0.25));
    char *text = written(&m.report, bench_report_table);
    assert_non_null(strstr(text, "a GPU, compute capability 9.0"));
    assert_non_null(strstr(text, "copy 16.0 GB/s"));
    free(text);
    text = written(&m.report, bench_report_csv);
    assert_non_null(strstr(text, ",device,device_copy_gbs\n"));
    assert_non_null(strstr(text, ",device copy,0.25,"));
    assert_non_null(strstr(text, ",a GPU,16\n"));
    free(text);
}

/* A ratio is told for the same problem by the same row, and no other. */
static void softmax_is_the_same_problem(void **state)
{
    (void)state;
    made_up m;
    make_up(&m);
    snprintf(m.results[0].kernel, sizeof m.results[0].kernel, "another");
    assert_true(isnan(bench_rates_of(&m.report, &m.results[1]).times_softmax));
    make_up(&m);
    m.shapes[0].problem.window = 3;
    assert_true(isnan(bench_rates_of(&m.report, &m.results[1]).times_softmax));
    make_up(&m);
    m.shapes[1].problem.ridge = 3;
    assert_false(isnan(bench_rates_of(&m.report, &m.results[1]).times_softmax));
}

/* Fields of a CSV line; empty ones count. */
static int split(char *line, char *fields[64])
{
    int count = 0;
    for (char *at = line; at && count < 64; count++) {
        fields[count] = at;
        at = strchr(at, ',');
        if (at) *at++ = '\0';
    }
    return count;
}

static const char *cell(char *const *names, char *const *values, int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0) return values[i];
    fail_msg("no column %s", name);
    return "";
}

static void csv_has_its_columns(void **state)
{
    (void)state;
    made_up m;
    make_up(&m);
    char *text = written(&m.report, bench_report_csv), *rest, *names[64], *values[64];
    const int columns = split(strtok_r(text, "\n", &rest), names);
    int rows = 0;
    for (char *line; (line = strtok_r(NULL, "\n", &rest)); rows++) {
        assert_int_equal(split(line, values), columns);
        char shape[32];
        snprintf(shape, sizeof shape, "shape-%d", rows);
        assert_string_equal(cell(names, values, columns, "shape"), shape);
        assert_string_equal(cell(names, values, columns, "machine"), "a CPU");
        assert_string_equal(cell(names, values, columns, "compiler"), "gcc 1");
        assert_string_equal(cell(names, values, columns, "commit"), "abc+");
        assert_string_equal(cell(names, values, columns, "date"), "2026-01-02T03:04:05Z");
        assert_string_equal(cell(names, values, columns, "threads"), "3");
        assert_string_equal(cell(names, values, columns, "seed"), "5");
        assert_string_equal(cell(names, values, columns, "sgemm_gflops"), "100");
        assert_string_equal(cell(names, values, columns, "sgemm_first"), "90");
        assert_string_equal(cell(names, values, columns, "read_last"), "8");
        assert_string_equal(cell(names, values, columns, "error"), rows == 0   ? "1e-06"
                                                                   : rows == 1 ? "inf"
                                                                               : "");
        assert_string_equal(cell(names, values, columns, "iterations"), rows == 1 ? "12.5" : "");
        assert_string_equal(cell(names, values, columns, "exact"), rows == 1 ? "0.375" : "");
        assert_string_equal(cell(names, values, columns, "roof"), rows == 2 ? "read" : "sgemm");
    }
    assert_int_equal(rows, 3);
    free(text);
}

/* A recurrence's state is read and written in place. */
static void recurrences_update(void **state)
{
    (void)state;
    made_up m;
    make_up(&m);
    m.shapes[2].problem.mechanism = LOAM_DELTA;
    char *text = written(&m.report, bench_report_json);
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(root);
    json_t *row = json_array_get(json_object_get(root, "results"), 2);
    assert_string_equal(json_string_value(json_object_get(row, "roof")), "update");
    assert_float_equal(json_real_value(json_object_get(row, "of_roof")), 2 / 1.5 / 30, 1e-6);
    json_decref(root);
    free(text);
}

static void json_has_its_fields(void **state)
{
    (void)state;
    made_up m;
    make_up(&m);
    char *text = written(&m.report, bench_report_json);
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(root);
    assert_string_equal(json_string_value(json_object_get(root, "commit")), "abc+");
    assert_string_equal(json_string_value(json_object_get(root, "machine")), "a CPU");
    assert_int_equal(json_integer_value(json_object_get(root, "threads")), 3);
    assert_true(json_real_value(json_object_get(root, "copy_gbs")) == 20);
    assert_true(json_real_value(json_object_get(root, "update_gbs")) == 30);
    json_t *results = json_object_get(root, "results");
    assert_int_equal(json_array_size(results), 3);
    json_t *lla = json_array_get(results, 1);
    assert_string_equal(json_string_value(json_object_get(lla, "mechanism")), "lla");
    assert_string_equal(json_string_value(json_object_get(lla, "flags")), "causal window=1");
    assert_int_equal(json_integer_value(json_object_get(lla, "dim_qk")), 4);
    assert_int_equal(json_integer_value(json_object_get(lla, "work_bytes")), 64);
    assert_true(json_real_value(json_object_get(lla, "median_s")) == 1);
    assert_true(json_real_value(json_object_get(lla, "times_softmax")) == 2);
    assert_true(json_is_null(json_object_get(lla, "error")));
    assert_true(json_real_value(json_object_get(lla, "exact")) == 0.375);
    assert_true(json_is_null(json_object_get(json_array_get(results, 2), "iterations")));
    assert_true(json_is_null(json_object_get(json_array_get(results, 2), "exact")));
    json_decref(root);
    free(text);
}

static void table_shows_roofs_and_rows(void **state)
{
    (void)state;
    made_up m;
    make_up(&m);
    char *text = written(&m.report, bench_report_table);
    static const char *const parts[] = { "commit abc+",
                                         "a CPU, 4 cores",
                                         "threads 3, seed 5",
                                         "100.0 GFLOP/s",
                                         "(first 90.0, last 80.0)",
                                         "shape-0",
                                         "shape-1",
                                         "shape-2",
                                         "500.000",
                                         "1.0e-06",
                                         "   12.5    37.5       inf" };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!strstr(text, parts[i])) fail_msg("no '%s' in:\n%s", parts[i], text);
    free(text);
    m.roofs.count = 0;
    text = written(&m.report, bench_report_table);
    assert_null(strstr(text, "sgemm 2048"));
    free(text);
}

static void statistics_of_a_sample(void **state)
{
    (void)state;
    bench_result r;
    double five[] = { 5, 1, 4, 2, 3 }, two[] = { 2, 1 }, one[] = { 7 };
    bench_statistics(five, 5, &r);
    assert_true(r.runs == 5 && r.least == 1 && r.low == 2 && r.median == 3 && r.high == 4 && r.most == 5);
    bench_statistics(two, 2, &r);
    assert_true(r.low == 1.25 && r.median == 1.5 && r.high == 1.75);
    bench_statistics(one, 1, &r);
    assert_true(r.runs == 1 && r.least == 7 && r.low == 7 && r.median == 7 && r.high == 7 && r.most == 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rates_are_derived),      cmocka_unit_test(softmax_is_the_same_problem),
        cmocka_unit_test(csv_has_its_columns),    cmocka_unit_test(json_has_its_fields),
        cmocka_unit_test(recurrences_update),     cmocka_unit_test(table_shows_roofs_and_rows),
        cmocka_unit_test(statistics_of_a_sample), cmocka_unit_test(devices_have_their_own_roof),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
