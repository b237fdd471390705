/* SPDX-License-Identifier: MIT
 *
 * Times are processor time of one thread, the least of some
 * runs: ratios then mean something on a busy machine too.
 */
#include "tests/accuracy/solvers.h"

#include "tests/accuracy/alternatives.h"
#include "tests/accuracy/measure.h"
#include "tests/accuracy/table.h"
#include "tests/support/memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RUNS = 3, ROWS = 64, SEED = 31 };

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(double *x, int64_t count, double at)
{
    qsort(x, (size_t)count, sizeof *x, by_size);
    return x[(int64_t)(at * (double)(count - 1))];
}

static double row_error(const double *want, const double *got, int64_t d)
{
    double far = 0, size = 0;
    for (int64_t c = 0; c < d; c++) {
        far += (got[c] - want[c]) * (got[c] - want[c]);
        size += want[c] * want[c];
    }
    return isfinite(far) ? sqrt(far / size) : HUGE_VAL;
}

/* Median and largest of the rows' errors, "3e-07, 2e-06". */
static void error_cell(table *t, const sample *s, const double *want, const double *got)
{
    double *e = memory_zeroed((size_t)s->len_q, sizeof *e);
    for (int64_t i = 0; i < s->len_q; i++)
        e[i] = row_error(want + i * s->dim, got + i * s->dim, s->dim);
    const double median = quantile(e, s->len_q, 0.5);
    table_cell(t, "%.0e, %.0e", median, quantile(e, s->len_q, 1));
    free(e);
}

/* The least time of some runs; *last: the answer of the last. */
static double timed(const sample *s, const question *ask, answer *last)
{
    double least = HUGE_VAL;
    for (int run = 0; run < RUNS; run++) {
        answer a = answer_make(s, ask);
        least = fmin(least, a.seconds);
        if (run == RUNS - 1 && last)
            *last = a;
        else
            answer_free(&a);
    }
    return least;
}

static void survey_line(table *t, sample_kind kind, double ridge, int64_t n, int64_t d)
{
    sample s = sample_make(kind, GRID_F32, n < ROWS ? n : ROWS, n, d, 1, SEED);
    question ask = { LOAM_SOFTMAX, LOAM_F32, NULL, ridge, false, 1 };
    const double softmax = timed(&s, &ask, NULL);
    answer got, want;
    ask.mechanism = LOAM_LLA;
    const double lla = timed(&s, &ask, &got);
    ask.dtype = LOAM_F64, ask.threads = 0;
    want = answer_make(&s, &ask);
    int solver[4] = { 0 };
    double *iterations = memory_zeroed((size_t)s.len_q, sizeof *iterations);
    for (int64_t i = 0; i < s.len_q; i++) {
        solver[got.info[i].solver]++;
        iterations[i] = (double)got.info[i].iterations;
    }
    table_cell(t, "%s", sample_kind_name(kind));
    table_cell(t, "%g", ridge);
    table_cell(t, "%lld", (long long)n);
    table_cell(t, "%lld", (long long)d);
    table_cell(t, "%d / %d / %d", solver[LOAM_SOLVER_CG], solver[LOAM_SOLVER_DUAL], solver[LOAM_SOLVER_GRAM]);
    const double median = quantile(iterations, s.len_q, 0.5);
    table_cell(t, "%.0f, %.0f", median, quantile(iterations, s.len_q, 1));
    error_cell(t, &s, want.x[PART_O], got.x[PART_O]);
    table_cell(t, "%.0f", lla / softmax);
    free(iterations);
    answer_free(&got);
    answer_free(&want);
    sample_free(&s);
}

int solvers_survey(void)
{
    static const sample_kind kinds[] = { SAMPLE_NORMAL, SAMPLE_UNIT, SAMPLE_ANISO,    SAMPLE_SHIFT_4,
                                         SAMPLE_SELF,   SAMPLE_ROPE, SAMPLE_LAYER_20, SAMPLE_LAYER_3 };
    static const double ridges[] = { 1, 0.1, 0.01, 1e-3 };
    static const int64_t lengths[] = { 64, 512, 4096 }, dims[] = { 64, 128 };
    printf("The last %d queries of n tokens, causal, float32 on the fastest instruction set; seed %d. Rows "
           "solved by conjugate gradients / dual / Gram; iterations and row errors: median, largest.\n\n",
           ROWS, SEED);
    for (int d = 0; d < 2; d++) {
        table *t = table_begin("data|ridge|n|d|cg / dual / gram|iterations|error of o|time / softmax");
        for (int kind = 0; kind < 8; kind++) {
            for (int r = 0; r < 4; r++)
                for (int n = 0; n < 3; n++)
                    survey_line(t, kinds[kind], ridges[r], lengths[n], dims[d]);
        }
        table_end(t);
    }
    return 0;
}

/* "12.3, 4e-07", and the steps where it takes any. */
static void compare_cell(table *t, const sample *s, const double *want, const double *got,
                         alternative_cost cost)
{
    double worst = 0;
    for (int64_t i = 0; i < s->len_q; i++)
        worst = fmax(worst, row_error(want + i * s->dim, got + i * s->dim, s->dim));
    const double each = 1e6 * cost.seconds / (double)s->len_q;
    if (cost.steps > 0)
        table_cell(t, "%.1f, %.0e, %d", each, worst, cost.steps);
    else
        table_cell(t, "%.1f, %.0e", each, worst);
}

static void compare_line(table *t, sample_kind kind, double ridge, int64_t n, int64_t d)
{
    sample s = sample_make(kind, GRID_F32, ROWS, n, d, 1, SEED);
    s.causal = 0; /* every row sees all n keys */
    question ask = { LOAM_LLA, LOAM_F64, NULL, ridge, false, 0 };
    answer want = answer_make(&s, &ask), got;
    ask.dtype = LOAM_F32, ask.threads = 1;
    const double loam = timed(&s, &ask, &got);
    double *o = memory_zeroed((size_t)(s.len_q * d), sizeof *o);
    table_cell(t, "%s", sample_kind_name(kind));
    table_cell(t, "%g", ridge);
    table_cell(t, "%lld", (long long)n);
    table_cell(t, "%lld", (long long)d);
    table_cell(t, "%.1f", 1e6 * loam / (double)s.len_q);
    error_cell(t, &s, want.x[PART_O], got.x[PART_O]);
    for (int which = 0; which < ALTERNATIVES; which++) {
        const bool dual = which == DUAL_F32 || which == DUAL_F64;
        if (dual && n > d) {
            table_cell(t, " ");
            continue;
        }
        alternative_cost best = { HUGE_VAL, 0 };
        for (int run = 0; run < RUNS; run++) {
            const alternative_cost cost = alternative_run((alternative)which, &s, ridge, o);
            best = cost.seconds < best.seconds ? cost : best;
        }
        compare_cell(t, &s, want.x[PART_O], o, best);
    }
    free(o);
    answer_free(&want);
    answer_free(&got);
    sample_free(&s);
}

int solvers_compare(const char *data)
{
    static const sample_kind kinds[] = { SAMPLE_NORMAL, SAMPLE_UNIT, SAMPLE_ANISO,
                                         SAMPLE_SELF,   SAMPLE_ROPE, SAMPLE_LAYER_20 };
    static const double ridges[] = { 1, 0.1, 0.01, 1e-3 };
    static const int64_t lengths[] = { 64, 512, 4096 }, dims[] = { 32, 64, 128 };
    printf(
        "%d queries that all see n keys, one thread: microseconds of processor time per row, largest error "
        "of a row of o; of conjugate gradients also the steps; seed %d\n\n",
        ROWS, SEED);
    for (int kind = 0; kind < 6; kind++) {
        if (strcmp(data, "all") != 0 && strcmp(data, sample_kind_name(kinds[kind])) != 0) continue;
        table *t = table_begin("data|ridge|n|d|Loam|error|CG|CG, shared|Gram f32|dual f32|Gram f64|dual f64");
        for (int d = 0; d < 3; d++) {
            for (int n = 0; n < 3; n++)
                for (int r = 0; r < 4; r++)
                    compare_line(t, kinds[kind], ridges[r], lengths[n], dims[d]);
        }
        table_end(t);
    }
    return 0;
}
