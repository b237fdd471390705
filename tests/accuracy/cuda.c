/* SPDX-License-Identifier: MIT */
#include "tests/accuracy/cuda.h"

#include "tests/accuracy/measure.h"
#include "tests/accuracy/table.h"
#include "tests/support/kernels.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { SEED = 31, SKIPPED = 77, LONG_QUERIES = 64, SHORT = 512 };

static const int64_t lengths[] = { 64, 496, 512, 1024, 4096 };
static const sample_kind kinds[] = { SAMPLE_NORMAL, SAMPLE_UNIT,     SAMPLE_ANISO,  SAMPLE_SHIFT_4,
                                     SAMPLE_ROPE,   SAMPLE_LAYER_20, SAMPLE_LAYER_3 };
enum { LENGTHS = 5, KINDS = 7, MOST_DIMS = 6, MOST_TYPES = 2 };

/* Head dimensions. */
typedef struct sizes {
    int64_t dims[MOST_DIMS];
    int count;
} sizes;

static const sizes trained = { { 64, 128 }, 2 }, others = { { 32, 64, 80, 128, 192, 256 }, 6 };

typedef struct variant {
    loam_mechanism mechanism;
    double ridge;
    const char *name;
} variant;

static const variant variants[] = {
    { LOAM_SOFTMAX, 0, "softmax" }, { LOAM_PARALLAX, 0, "Parallax" }, { LOAM_LLA, 10, "LLA, 10" },
    { LOAM_LLA, 1, "LLA, 1" },      { LOAM_LLA, 0.1, "LLA, 0.1" },    { LOAM_LLA, 0.01, "LLA, 0.01" },
};
enum { VARIANTS = 6 };

/* Of the whole, per part; infinite: only finite is asked for. A row may be ROW_FACTOR times as far off. */
typedef struct bounds {
    double of[PARTS];
} bounds;

static bounds bounds_of_bf16(sample_kind kind, const variant *v)
{
    static const double o[] = { 4e-3, 5e-3, 1e-2, 3e-2 }, keys[] = { 6e-3, 1e-2, 3e-2, INFINITY },
                        values[] = { 4e-3, 6e-3, 1e-2, INFINITY }, ridge[] = { 1e-2, 2e-2, 5e-2, INFINITY };
    const int row = v->ridge >= 10 ? 0 : v->ridge >= 1 ? 1 : v->ridge >= 0.1 ? 2 : 3;
    if (v->mechanism != LOAM_LLA) return (bounds){ { 4e-3, 5e-3, 5e-3, 4e-3, 5e-3, 5e-3, 5e-3 } };
    bounds b = { { o[row], keys[row], keys[row], values[row], ridge[row], ridge[row], ridge[row] } };
    if (kind == SAMPLE_NORMAL || kind == SAMPLE_UNIT) return b;
    static const double rope[] = { 5e-3, 5e-3, 1e-2, 5e-2 };
    for (int which = 0; which < PARTS; which++)
        b.of[which] = INFINITY;
    b.of[PART_O] = kind == SAMPLE_ROPE ? rope[row] : fmax(o[row], kind == SAMPLE_ANISO ? 2e-2 : 1e-2);
    return b;
}

/* With a given probe, of gradients half of what is promised of bf16, as tests/check/judge.c has it; LLA is at
 * least as exact as in bf16. */
static bounds bounds_of_half(sample_kind kind, const variant *v)
{
    if (v->mechanism == LOAM_LLA) return bounds_of_bf16(kind, v);
    return (bounds){ { 1e-3, 2.5e-3, 2.5e-3, 2e-3, 2.5e-3, 2.5e-3, 2.5e-3 } };
}

/* What float32 gives on the CPU, on the data where it has such a bound. */
static bounds bounds_of_f32(sample_kind kind, const variant *v)
{
    const question ask = { .mechanism = v->mechanism, .dtype = LOAM_F32, .ridge = v->ridge };
    const int usual = kind == SAMPLE_NORMAL || kind == SAMPLE_UNIT;
    bounds b;
    for (int which = 0; which < PARTS; which++)
        b.of[which] = usual ? bound_of(&ask, which != PART_O) : INFINITY;
    return b;
}

/* The worst of all lengths and dimensions. */
typedef struct line {
    loam_dtype dtype;
    bounds bound;
    distance worst[PARTS];
    bool there[PARTS], finite, beyond;
} line;

static line line_of(loam_dtype dtype, const variant *v, sample_kind kind)
{
    return (line){ .dtype = dtype,
                   .bound = dtype == LOAM_F32   ? bounds_of_f32(kind, v)
                            : dtype == LOAM_F16 ? bounds_of_half(kind, v)
                                                : bounds_of_bf16(kind, v),
                   .finite = true };
}

static void add_answer(line *l, const sample *s, const answer *want, const answer *got)
{
    l->finite &= answer_finite(s, got);
    for (int which = 0; which < PARTS; which++) {
        if (!want->x[which]) continue;
        const distance d = measure(s, want, got, (part)which);
        l->there[which] = true;
        l->worst[which].whole = fmax(l->worst[which].whole, d.whole);
        l->worst[which].row = fmax(l->worst[which].row, d.row);
        l->beyond |= !(d.whole <= l->bound.of[which]) || !(d.row <= ROW_FACTOR * l->bound.of[which]);
    }
}

/* The lines are of types that share a grid, and so the answer of float64, which takes most of the time. */
static void add_case(line *lines, int count, const char *isa, const variant *v, sample_kind kind, int64_t len,
                     int64_t dim)
{
    sample s = sample_make(kind, lines[0].dtype == LOAM_F32 ? GRID_F32 : GRID_HALVES,
                           len > SHORT ? LONG_QUERIES : len, len, dim, 1 / sqrt((double)dim), SEED);
    question ask = { .mechanism = v->mechanism, .dtype = LOAM_F64, .ridge = v->ridge, .gradients = true };
    answer want = answer_make(&s, &ask);
    ask.isa = isa;
    for (int n = 0; n < count; n++) {
        ask.dtype = lines[n].dtype;
        answer got = answer_make(&s, &ask);
        add_answer(&lines[n], &s, &want, &got);
        answer_free(&got);
    }
    answer_free(&want);
    sample_free(&s);
}

static int put_line(table *t, const line *l, const variant *v, sample_kind kind)
{
    table_cell(t, "%s", sample_kind_name(kind));
    table_cell(t, "%s", v->name);
    for (int which = 0; which < PARTS; which++)
        if (!l->there[which])
            table_cell(t, " ");
        else if (isinf(l->bound.of[which]))
            table_cell(t, "%.1e", l->worst[which].whole);
        else
            table_cell(t, "%.1e (%.0e)", l->worst[which].whole, l->bound.of[which]);
    table_cell(t, "%s", !l->finite ? "NOT FINITE" : l->beyond ? "BEYOND" : "in bound");
    return !l->finite || l->beyond;
}

/* Tables of types that share a grid, side by side. */
typedef struct tables {
    const char *isa;
    loam_dtype dtypes[MOST_TYPES];
    int count;
    table *of[MOST_TYPES];
    int beyond[MOST_TYPES];
} tables;

static void begin_tables(tables *t)
{
    for (int n = 0; n < t->count; n++) {
        t->of[n] = table_begin("data|mechanism|o|dq|dk|dv|dprobe|dridge|dscale|verdict");
        t->beyond[n] = 0;
    }
}

static void put_lines(tables *t, int count, const variant *v, sample_kind kind, const sizes *of)
{
    line lines[MOST_TYPES];
    for (int n = 0; n < count; n++)
        lines[n] = line_of(t->dtypes[n], v, kind);
    for (int n = 0; n < LENGTHS; n++)
        for (int d = 0; d < of->count; d++)
            add_case(lines, count, t->isa, v, kind, lengths[n], of->dims[d]);
    for (int n = 0; n < count; n++)
        t->beyond[n] += put_line(t->of[n], &lines[n], v, kind);
}

static int end_tables(tables *t, const char *what)
{
    int beyond = 0;
    for (int n = 0; n < t->count; n++) {
        printf("local_*_%s, %s, %s\n\n", t->isa, loam_dtype_name(t->dtypes[n]), what);
        table_end(t->of[n]);
        printf("%d lines beyond their bounds\n\n", t->beyond[n]);
        beyond += t->beyond[n];
    }
    fflush(stdout);
    return beyond;
}

/* Of float16 LLA alone: given probes are in tables_of_sizes. */
static int main_tables(tables *t)
{
    char what[160];
    snprintf(
        what, sizeof what,
        "causal, worst of n in {64, 496, 512, 1024, 4096} (of the last two: %d queries) and d in {64, 128}, "
        "bounds in brackets; seed %d",
        LONG_QUERIES, SEED);
    begin_tables(t);
    for (int kind = 0; kind < KINDS; kind++) {
        for (int v = 0; v < VARIANTS; v++) {
            const bool all = variants[v].mechanism == LOAM_LLA || t->dtypes[t->count - 1] != LOAM_F16;
            put_lines(t, all ? t->count : t->count - 1, &variants[v], kinds[kind], &trained);
        }
    }
    return end_tables(t, what);
}

/* Given probes at further head dimensions. */
static int tables_of_sizes(tables *t)
{
    static const sample_kind of[] = { SAMPLE_NORMAL, SAMPLE_UNIT, SAMPLE_SHIFT_4, SAMPLE_ROPE };
    begin_tables(t);
    for (int kind = 0; kind < 4; kind++)
        for (int v = 0; v < VARIANTS; v++)
            if (variants[v].mechanism != LOAM_LLA) put_lines(t, t->count, &variants[v], of[kind], &others);
    return end_tables(t, "the same with d in {32, 64, 80, 128, 192, 256}");
}

int cuda_run(const char *isa)
{
    loam_kernel_info info;
    int rows = 0, beyond = 0;
    for (int i = 0; loam_kernel_at(i, &info) == LOAM_OK; i++) {
        const bool wanted = !isa || strcmp(info.isa, isa) == 0;
        if (wanted && strcmp(info.backend, "cuda") == 0 && strcmp(info.pass, "backward") == 0 &&
            kernel_lists(info.mechanisms, "lla") && info.available) {
            rows++;
            tables halves = { .isa = info.isa, .dtypes = { LOAM_BF16, LOAM_F16 }, .count = 2 };
            tables single = { .isa = info.isa, .dtypes = { LOAM_F32 }, .count = 1 };
            beyond += main_tables(&halves) + tables_of_sizes(&halves);
            beyond += strstr(info.dtypes, "f32") ? main_tables(&single) : 0;
        }
    }
    if (!rows) {
        printf("skipped: no such row of CUDA can run here\n");
        return SKIPPED;
    }
    return beyond != 0;
}
