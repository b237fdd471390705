/* SPDX-License-Identifier: MIT
 *
 * Each line: the error of the kernels against float64, and the floor (floor.h),
 * the error of the best that a kernel with float32 numbers can do. Where a
 * bound is near the floor or below it, a multiple of the floor takes its place.
 */
#include "tests/accuracy/hostile.h"

#include "tests/accuracy/condition.h"
#include "tests/accuracy/floor.h"
#include "tests/accuracy/measure.h"
#include "tests/accuracy/table.h"
#include "tests/support/memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { TOKENS = 200, DIM = 64, SEED = 23 };

/* Scores of N(0, 1) data are within this of their middle. A score is off by its size times
 * 2^-24, and so are the weights: gradients of steeper data may be further off in proportion. */
#define USUAL_SCORE 4.0

/* So many floors may lie between float32 and float64: sums round too, not only what they are made of. */
#define FLOORS 20.0

/* Two float64 computations agree to this, where ridge and weights leave float64 digits enough. */
#define SOUND 1e-6
#define LEAST_SOUND_RIDGE 1e-3

typedef struct hostile_line {
    distance o, gradients, floor_o, floor_gradients;
    part which; /* the worst gradient */
    int solver[4], singular;
    bool finite, same_codes, sound;
} hostile_line;

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_condition(const sample *s, double ridge)
{
    double *all = memory_zeroed((size_t)s->len_q, sizeof *all);
    condition_rows(s, ridge, all);
    qsort(all, (size_t)s->len_q, sizeof *all, by_size);
    const double median = all[s->len_q / 2];
    free(all);
    return median;
}

static distance worse(distance a, distance b)
{
    return (distance){ !(b.whole <= a.whole) ? b.whole : a.whole, !(b.row <= a.row) ? b.row : a.row,
                       !(b.row <= a.row) ? b.at : a.at };
}

static void count_rows(hostile_line *line, const sample *s, const answer *want, const answer *got)
{
    for (int64_t i = 0; i < s->len_q; i++) {
        line->solver[got->info[i].solver]++;
        line->singular += got->info[i].code == LOAM_ROW_SINGULAR;
        line->same_codes &= got->info[i].code == want->info[i].code;
        line->finite &= isfinite(got->info[i].residual);
    }
}

/* Does the reference say what the equations say? */
static bool agrees(const sample *s, const question *ask, const answer *want)
{
    answer plain = floor_answer(s, ask, want, false);
    part ignored;
    const double o = measure(s, want, &plain, PART_O).whole;
    const double gradients = measure_gradients(s, want, &plain, &ignored).whole;
    answer_free(&plain);
    return o < SOUND && gradients < SOUND;
}

static hostile_line measure_line(const sample *s, question ask)
{
    const loam_dtype dtype = ask.dtype;
    hostile_line line = { .finite = true, .same_codes = true, .sound = true };
    ask.dtype = LOAM_F64, ask.gradients = true;
    answer want = answer_make(s, &ask), floor = floor_answer(s, &ask, &want, true);
    part ignored;
    if (ask.mechanism != LOAM_LLA || ask.ridge >= LEAST_SOUND_RIDGE) line.sound = agrees(s, &ask, &want);
    line.floor_o = measure(s, &want, &floor, PART_O);
    line.floor_gradients = measure_gradients(s, &want, &floor, &ignored);
    ask.dtype = dtype;
    for (int isa = 0; answer_isa(ask.dtype, isa); isa++) {
        ask.isa = answer_isa(ask.dtype, isa);
        answer got = answer_make(s, &ask);
        part which;
        const double before = line.gradients.whole;
        line.finite &= answer_finite(s, &got);
        line.o = worse(line.o, measure(s, &want, &got, PART_O));
        line.gradients = worse(line.gradients, measure_gradients(s, &want, &got, &which));
        line.which = line.gradients.whole > before ? which : line.which;
        line.solver[0] = line.solver[1] = line.solver[2] = line.solver[3] = line.singular = 0;
        count_rows(&line, s, &want, &got);
        answer_free(&got);
    }
    answer_free(&want);
    answer_free(&floor);
    return line;
}

/* The bound, or what rounding to float32 does where that is more. */
static bool within(distance d, distance floor, double bound)
{
    return d.whole <= fmax(bound, FLOORS * floor.whole) &&
           d.row <= fmax(ROW_FACTOR * bound, FLOORS * floor.row);
}

static const char *verdict(const hostile_line *line, double o, double g)
{
    static const distance none = { 0, 0, 0 };
    if (!line->finite) return "NOT FINITE";
    if (!line->same_codes) return "OTHER CODES";
    if (!line->sound) return "REFERENCE IS WRONG";
    if (!within(line->o, line->floor_o, o) || !within(line->gradients, line->floor_gradients, g))
        return "BEYOND";
    return within(line->o, none, o) && within(line->gradients, none, g) ? "in bound" : "at floor";
}

static const char *const mechanism_names[] = { "softmax", "Parallax", "LLA" };

static int one_line(table *t, sample_kind kind, loam_mechanism mechanism, loam_dtype dtype, double ridge)
{
    sample s = sample_make(kind, dtype == LOAM_F32 ? GRID_F32 : GRID_HALVES, TOKENS, TOKENS, DIM,
                           1 / sqrt(DIM), SEED);
    const question ask = { .mechanism = mechanism, .dtype = dtype, .ridge = ridge };
    hostile_line line = measure_line(&s, ask);
    const double steep = fmax(1, condition_steepness(&s) / USUAL_SCORE);
    const double o = bound_of(&ask, false), g = bound_of(&ask, true) * steep;
    const char *what = verdict(&line, o, g);
    table_cell(t, "%s", sample_kind_name(kind));
    if (mechanism == LOAM_LLA) {
        table_cell(t, "LLA, %g", ridge);
        table_cell(t, "%.0e", median_condition(&s, ridge));
        table_cell(t, "%d / %d / %d / %d", line.solver[LOAM_SOLVER_CG], line.solver[LOAM_SOLVER_DUAL],
                   line.solver[LOAM_SOLVER_GRAM], line.singular);
    } else {
        table_cell(t, "%s", mechanism_names[mechanism]);
        table_cell(t, " ");
        table_cell(t, " ");
    }
    table_cell(t, "%.0e, %.0e", line.o.whole, line.o.row);
    table_cell(t, "%.0e", o);
    table_cell(t, "%.0e, %.0e", line.floor_o.whole, line.floor_o.row);
    table_cell(t, "%.0e, %.0e (%s)", line.gradients.whole, line.gradients.row, part_names[line.which]);
    table_cell(t, "%.0e", g);
    table_cell(t, "%.0e, %.0e", line.floor_gradients.whole, line.floor_gradients.row);
    table_cell(t, "%s", what);
    sample_free(&s);
    return what[0] >= 'A' && what[0] <= 'Z';
}

int hostile_run(loam_dtype dtype)
{
    static const double ridges[] = { 1, 0.1, 0.01, 1e-3, 1e-6, 0 };
    table *t = table_begin("data|mechanism|condition|cg / dual / gram / singular|o, worst row|bound|floor|"
                           "gradients, worst row|bound|floor|verdict");
    /* 16 bits promise nothing below 1e-3, and where keys of a
     * model are about as many as channels only a ridge leaves float32 digits */
    const int most_ridges = dtype == LOAM_F32 ? 6 : 4, real_ridges = dtype == LOAM_F32 ? 5 : 4;
    int beyond = 0;
    printf("%d tokens, causal, d = %d, %s, the worst of all instruction sets; seed %d\n\n", TOKENS, DIM,
           loam_dtype_name(dtype), SEED);
    for (int kind = 0; kind < SAMPLE_KINDS; kind++) {
        for (int mechanism = LOAM_SOFTMAX; mechanism < LOAM_LLA; mechanism++)
            beyond += one_line(t, (sample_kind)kind, (loam_mechanism)mechanism, dtype, 0);
        const int ridge_count = kind >= SAMPLE_LAYER_20 ? real_ridges : most_ridges;
        for (int r = 0; r < ridge_count; r++)
            beyond += one_line(t, (sample_kind)kind, LOAM_LLA, dtype, ridges[r]);
    }
    table_end(t);
    printf("%d lines beyond their bounds\n", beyond);
    return beyond;
}
