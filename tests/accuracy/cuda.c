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
enum { LENGTHS = 5, KINDS = 7, MOST_DIMS = 6 };

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
    distance worst[PARTS];
    bool there[PARTS], finite, beyond;
} line;

static void add_case(line *l, const char *isa, loam_dtype dtype, const variant *v, sample_kind kind,
                     int64_t len, int64_t dim, const bounds *b)
{
    sample s = sample_make(kind, dtype == LOAM_F32 ? GRID_F32 : GRID_HALVES, len > SHORT ? LONG_QUERIES : len,
                           len, dim, 1 / sqrt((double)dim), SEED);
    question ask = { .mechanism = v->mechanism, .dtype = LOAM_F64, .ridge = v->ridge, .gradients = true };
    answer want = answer_make(&s, &ask);
    ask.dtype = dtype, ask.isa = isa;
    answer got = answer_make(&s, &ask);
    l->finite &= answer_finite(&s, &got);
    for (int which = 0; which < PARTS; which++) {
        if (!want.x[which]) continue;
        const distance d = measure(&s, &want, &got, (part)which);
        l->there[which] = true;
        l->worst[which].whole = fmax(l->worst[which].whole, d.whole);
        l->worst[which].row = fmax(l->worst[which].row, d.row);
        l->beyond |= !(d.whole <= b->of[which]) || !(d.row <= ROW_FACTOR * b->of[which]);
    }
    answer_free(&want);
    answer_free(&got);
    sample_free(&s);
}

static int one_line(table *t, const char *isa, loam_dtype dtype, const variant *v, sample_kind kind,
                    const sizes *of)
{
    const bounds b = dtype == LOAM_F32   ? bounds_of_f32(kind, v)
                     : dtype == LOAM_F16 ? bounds_of_half(kind, v)
                                         : bounds_of_bf16(kind, v);
    line l = { .finite = true };
    for (int n = 0; n < LENGTHS; n++)
        for (int d = 0; d < of->count; d++)
            add_case(&l, isa, dtype, v, kind, lengths[n], of->dims[d], &b);
    table_cell(t, "%s", sample_kind_name(kind));
    table_cell(t, "%s", v->name);
    for (int which = 0; which < PARTS; which++)
        if (!l.there[which])
            table_cell(t, " ");
        else if (isinf(b.of[which]))
            table_cell(t, "%.1e", l.worst[which].whole);
        else
            table_cell(t, "%.1e (%.0e)", l.worst[which].whole, b.of[which]);
    table_cell(t, "%s", !l.finite ? "NOT FINITE" : l.beyond ? "BEYOND" : "in bound");
    return !l.finite || l.beyond;
}

/* Of float16 LLA alone: given probes are in table_of_sizes. */
static int one_table(const char *isa, loam_dtype dtype)
{
    table *t = table_begin("data|mechanism|o|dq|dk|dv|dprobe|dridge|dscale|verdict");
    int beyond = 0;
    printf(
        "local_*_%s, %s, causal, worst of n in {64, 496, 512, 1024, 4096} (of the last two: %d queries) and "
        "d in {64, 128}, bounds in brackets; seed %d\n\n",
        isa, loam_dtype_name(dtype), LONG_QUERIES, SEED);
    for (int kind = 0; kind < KINDS; kind++)
        for (int v = 0; v < VARIANTS; v++)
            if (dtype != LOAM_F16 || variants[v].mechanism == LOAM_LLA)
                beyond += one_line(t, isa, dtype, &variants[v], kinds[kind], &trained);
    table_end(t);
    printf("%d lines beyond their bounds\n\n", beyond);
    return beyond;
}

/* Given probes at further head dimensions. */
static int table_of_sizes(const char *isa, loam_dtype dtype)
{
    static const sample_kind of[] = { SAMPLE_NORMAL, SAMPLE_UNIT, SAMPLE_SHIFT_4, SAMPLE_ROPE };
    table *t = table_begin("data|mechanism|o|dq|dk|dv|dprobe|dridge|dscale|verdict");
    int beyond = 0;
    printf("local_*_%s, %s, the same with d in {32, 64, 80, 128, 192, 256}\n\n", isa, loam_dtype_name(dtype));
    for (int kind = 0; kind < 4; kind++)
        for (int v = 0; v < VARIANTS; v++)
            if (variants[v].mechanism != LOAM_LLA)
                beyond += one_line(t, isa, dtype, &variants[v], of[kind], &others);
    table_end(t);
    printf("%d lines beyond their bounds\n\n", beyond);
    return beyond;
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
            beyond += one_table(info.isa, LOAM_F16) + one_table(info.isa, LOAM_BF16);
            beyond += table_of_sizes(info.isa, LOAM_BF16) + table_of_sizes(info.isa, LOAM_F16);
            beyond += strstr(info.dtypes, "f32") ? one_table(info.isa, LOAM_F32) : 0;
        }
    }
    if (!rows) {
        printf("skipped: no such row of CUDA can run here\n");
        return SKIPPED;
    }
    return beyond != 0;
}
