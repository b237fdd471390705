/* SPDX-License-Identifier: MIT */
#include "tests/accuracy/grid.h"

#include "tests/accuracy/measure.h"
#include "tests/accuracy/table.h"
#include "tests/support/memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct variant {
    const char *name;
    loam_mechanism mechanism;
    double ridge, probe; /* probe: its standard deviation times sqrt(d), or 0: 1 */
} variant;

static const variant variants[] = {
    { "softmax", LOAM_SOFTMAX, 0, 1 },
    { "Parallax, probe N(0,1)/sqrt(d)", LOAM_PARALLAX, 0, 1 },
    { "Parallax, probe N(0,1)", LOAM_PARALLAX, 0, 0 },
    { "LLA, ridge 10", LOAM_LLA, 10, 1 },
    { "LLA, ridge 1", LOAM_LLA, 1, 1 },
    { "LLA, ridge 0.1", LOAM_LLA, 0.1, 1 },
    { "LLA, ridge 0.01", LOAM_LLA, 0.01, 1 },
    { "LLA, ridge 0.001", LOAM_LLA, 0.001, 1 },
};

static const int64_t dims[] = { 32, 64, 128 };
static const int64_t lengths[] = { 1, 63, 64, 65, 512, 1024, 4096 };
static const loam_dtype dtypes[] = { LOAM_F32, LOAM_BF16, LOAM_F16 };
static const char *const dtype_names[] = { "f32", "bf16", "f16" };

enum { VARIANTS = 8, LLA = 3, DIMS = 3, LENGTHS = 7, TYPES = 3, SEED = 11 };

/* The worst of several cases. */
typedef struct worst {
    double whole, row, bound; /* row: in units of the bound */
    char whole_at[48], row_at[48];
} worst;

typedef struct results {
    worst forward[VARIANTS][TYPES], gradient[VARIANTS][TYPES];
    double part[VARIANTS][TYPES][PARTS];
    double by_length[VARIANTS][LENGTHS][2]; /* float32: o, gradients */
    int cases, beyond;
} results;

static void add(worst *w, distance d, double bound, const char *at)
{
    w->bound = bound;
    if (!(d.whole <= w->whole)) {
        w->whole = d.whole;
        snprintf(w->whole_at, sizeof w->whole_at, "%s", at);
    }
    if (!(d.row / bound <= w->row)) {
        w->row = d.row / bound;
        snprintf(w->row_at, sizeof w->row_at, "%s", at);
    }
}

/* One kernel on one sample, against the reference. */
static void compare_case(results *r, int v, int type, int n, const sample *s, const question *ask,
                         const answer *want)
{
    answer got = answer_make(s, ask);
    bool bad = !answer_finite(s, &got);
    for (int which = 0; which < PARTS; which++) {
        if (!want->x[which]) continue;
        char at[48];
        const distance d = measure(s, want, &got, (part)which);
        const double bound = bound_of(ask, which != PART_O);
        snprintf(at, sizeof at, "%s n=%lld/%lld d=%lld %s", part_names[which], (long long)s->len_q,
                 (long long)s->len_kv, (long long)s->dim, ask->isa);
        add(which == PART_O ? &r->forward[v][type] : &r->gradient[v][type], d, bound, at);
        r->part[v][type][which] = fmax(r->part[v][type][which], d.whole);
        if (ask->dtype == LOAM_F32) {
            double *cell = &r->by_length[v][n][which != PART_O];
            *cell = fmax(*cell, d.whole);
        }
        if (!(d.whole <= bound && d.row <= ROW_FACTOR * bound)) {
            bad = true;
            fprintf(stderr, "beyond the bound: %s %s %s: %.2e (bound %.1e), row %lld: %.2e\n",
                    variants[v].name, dtype_names[type], at, d.whole, bound, (long long)d.at, d.row);
        }
    }
    r->cases++;
    r->beyond += bad;
    answer_free(&got);
}

/* All queries, or as many at the end as `pairs` allows
 * for: the reference takes d^2 / 2 steps for each pair. */
static int64_t queries_of(int64_t n, int64_t d, double pairs)
{
    const int64_t some = (int64_t)(pairs / (double)(n * d * d));
    return n <= some ? n : some < 1 ? 1 : some;
}

static void run_sample(results *r, int v, int64_t d, int n, sample_grid grid, bool full)
{
    const int64_t len = lengths[n], len_q = queries_of(len, d, full ? 0x1p35 : v < LLA ? 0x1p30 : 0x1p28);
    sample s = sample_make(SAMPLE_NORMAL, grid, len_q, len, d,
                           variants[v].probe > 0 ? 1 / sqrt((double)d) : 1, SEED);
    question ask = { variants[v].mechanism, LOAM_F64, NULL, variants[v].ridge, true, 0 };
    answer want = answer_make(&s, &ask);
    for (int type = 0; type < TYPES; type++) {
        if ((grid == GRID_F32) != (dtypes[type] == LOAM_F32)) continue;
        ask.dtype = dtypes[type];
        for (int isa = 0; answer_isa(ask.dtype, isa); isa++) {
            const bool fastest = !answer_isa(ask.dtype, isa + 1);
            if (fastest || len < 512 || (full ? len < 4096 : ask.dtype == LOAM_F32)) {
                ask.isa = answer_isa(ask.dtype, isa);
                compare_case(r, v, type, n, &s, &ask, &want);
            }
        }
    }
    answer_free(&want);
    sample_free(&s);
}

static void print_summary(const results *r)
{
    table *t = table_begin(
        "mechanism|type|o|bound|worst row / bound|gradients|bound|worst row / bound|largest in");
    for (int v = 0; v < VARIANTS; v++) {
        for (int type = 0; type < TYPES; type++) {
            const worst *f = &r->forward[v][type], *g = &r->gradient[v][type];
            table_cell(t, "%s", variants[v].name);
            table_cell(t, "%s", dtype_names[type]);
            table_cell(t, "%.1e", f->whole);
            table_cell(t, "%.0e", f->bound);
            table_cell(t, "%.2f", f->row);
            table_cell(t, "%.1e", g->whole);
            table_cell(t, "%.0e", g->bound);
            table_cell(t, "%.2f", g->row);
            table_cell(t, "%s", g->whole_at);
        }
    }
    table_end(t);
}

static void print_parts(const results *r)
{
    table *t = table_begin("mechanism|type|o|dq|dk|dv|dprobe|dridge|dscale");
    for (int v = 0; v < VARIANTS; v++) {
        for (int type = 0; type < TYPES; type++) {
            table_cell(t, "%s", variants[v].name);
            table_cell(t, "%s", dtype_names[type]);
            for (int which = 0; which < PARTS; which++) {
                const bool has = (which != PART_DPROBE || variants[v].mechanism == LOAM_PARALLAX) &&
                                 (which != PART_DRIDGE || variants[v].mechanism == LOAM_LLA);
                if (has)
                    table_cell(t, "%.1e", r->part[v][type][which]);
                else
                    table_cell(t, " ");
            }
        }
    }
    table_end(t);
}

static void print_lengths(const results *r)
{
    table *t = table_begin("float32: o, gradients|n = 1|63|64|65|512|1024|4096");
    for (int v = 0; v < VARIANTS; v++) {
        table_cell(t, "%s", variants[v].name);
        for (int n = 0; n < LENGTHS; n++)
            table_cell(t, "%.0e, %.0e", r->by_length[v][n][0], r->by_length[v][n][1]);
    }
    table_end(t);
}

int grid_run(bool full)
{
    results *r = memory_zeroed(1, sizeof *r);
    for (int n = 0; n < LENGTHS; n++) {
        for (int d = 0; d < DIMS; d++) {
            for (int v = 0; v < VARIANTS; v++) {
                run_sample(r, v, dims[d], n, GRID_F32, full);
                run_sample(r, v, dims[d], n, GRID_HALVES, full);
            }
        }
        fprintf(stderr, "n = %lld done: %d cases, %d beyond their bounds\n", (long long)lengths[n], r->cases,
                r->beyond);
    }
    print_summary(r);
    print_parts(r);
    print_lengths(r);
    const int beyond = r->beyond;
    free(r);
    return beyond;
}
