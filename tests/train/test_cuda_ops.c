/* SPDX-License-Identifier: MIT
 * Every operation on a GPU against float64 on the CPU, over odd sizes, single rows, stacks and columns of
 * wider arrays. All numbers are representable in bfloat16, so that only results are rounded. */
#include "random/random.h"
#include "tests/support/memory.h"
#include "tests/train/fixture.h"

#include "cli/device.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SKIPPED = 77, MOST = 11, WORDS = 11, RUNS = 5, PAD = 8 };

static const matrix none = { 0 };

/* Sizes of arrays as functions of the shape: rows and columns. */
typedef enum extent { ONE, HALF, FULL, TWO, FOUR, LIST, TABLE } extent;

/* Operands may be bfloat16; what is dense is never columns of a wider array. */
typedef enum kind { WIDE, OPERAND, DENSE } kind;

typedef struct shape {
    int64_t models, rows, width;
} shape;

typedef struct input {
    matrix x[MOST];
    numbers tokens, at, targets;
    const int64_t *counts;
    int64_t *step;
    void *order;
} input;

typedef struct op_case {
    const char *name;
    void (*run)(const machine *on, const input *in);
    int arrays;
    struct {
        extent rows, width;
        kind kind;
    } x[MOST];
} op_case;

/* ---- the operations; x[0] .. are outputs and inputs, all filled before */

#define CASE(name) static void run_##name(const machine *on, const input *in)
#define X(n) in->x[n]
#define EPS 0.125 /* of norms, large enough to be seen */

CASE(copy) { on->op->copy(on, X(0), X(1)); }
CASE(combine) { on->op->combine(on, X(0), 0.5, X(0), -2, X(1)); }
CASE(merge_parts) { on->op->merge_parts(on, X(0), X(1), X(2)); }
CASE(column_sums) { on->op->column_sums(on, X(0), X(1), none, none); }
CASE(column_sums_all) { on->op->column_sums(on, X(0), X(1), X(2), X(3)); }
CASE(rms_norm) { on->op->rms_norm(on, X(0), X(1), X(2), X(3), EPS); }
CASE(rms_norm_back)
{
    on->op->rms_norm(on, X(0), X(1), X(2), X(3), EPS);
    on->op->rms_norm_back(on, X(4), none, X(5), X(6), X(2), X(1), X(3), none);
    on->op->rms_norm_back(on, none, X(10), X(8), X(6), X(2), X(1), X(3), X(7));
    on->op->rms_norm_back(on, X(7), X(9), X(8), X(6), X(2), X(1), X(3), X(7));
}
CASE(layer_norm) { on->op->layer_norm(on, X(0), X(1), X(2), X(3), X(4), EPS); }
CASE(layer_norm_back)
{
    on->op->layer_norm(on, X(0), X(1), X(2), X(3), X(3), EPS);
    on->op->layer_norm_back(on, X(4), none, X(5), X(6), X(7), X(2), X(1), X(3), none);
    on->op->layer_norm_back(on, none, X(10), X(5), X(6), X(7), X(2), X(1), X(3), X(8));
    on->op->layer_norm_back(on, X(8), X(9), X(5), X(6), X(7), X(2), X(1), X(3), X(8));
}
CASE(unit) { on->op->unit(on, X(0), X(1)); }
CASE(unit_back) { on->op->unit_back(on, X(0), X(1), X(2)); }
CASE(silu) { on->op->silu(on, X(0), X(1)); }
CASE(silu_back) { on->op->silu_back(on, X(0), X(1), X(2)); }
CASE(gelu_erf)
{
    on->op->gelu_erf(on, X(0), X(1));
    on->op->gelu_erf_back(on, X(2), X(3), X(1));
}
CASE(relu)
{
    on->op->relu(on, X(0), X(1));
    on->op->relu_back(on, X(2), X(3), X(1));
}
CASE(gelu)
{
    on->op->gelu(on, X(0), X(1));
    on->op->gelu_back(on, X(2), X(3), X(1));
}
CASE(scale_rows)
{
    on->op->scale_rows(on, X(0), X(1), X(2));
    on->op->scale_rows_back(on, X(3), X(4), X(5), X(1), X(2));
}
CASE(short_conv)
{
    const int64_t length = X(0).rows / RUNS;
    on->op->short_conv(on, X(0), X(1), X(2), length, length);
    on->op->short_conv(on, X(3), X(1), X(4), length, length - length / 3);
}
CASE(short_conv_back)
{
    const int64_t length = X(0).rows / RUNS;
    on->op->short_conv_back(on, X(0), X(1), X(2), X(3), X(4), length, length);
    on->op->short_conv_back(on, X(5), X(6), X(2), X(3), X(7), length, length - length / 3);
}
CASE(clear_rows) { on->op->clear_rows(on, X(0), X(0).rows / RUNS, X(0).rows / RUNS / 2); }
CASE(output_gate) { on->op->output_gate(on, X(0), X(1), X(2)); }
CASE(output_gate_back) { on->op->output_gate_back(on, X(0), X(1), X(2), X(3), X(4)); }
CASE(sigmoid_gate)
{
    on->op->sigmoid_gate(on, X(0), X(1), X(2), 0.25, 2);
    on->op->sigmoid_gate(on, X(3), X(1), none, 0.25, 2);
}
CASE(sigmoid_gate_back)
{
    on->op->sigmoid_gate_back(on, X(0), X(1), X(2), X(3), X(4), 0.25, 2);
    on->op->sigmoid_gate_back(on, X(5), none, X(2), X(3), none, 0.25, 2);
}
CASE(forget_gate)
{
    on->op->forget_gate(on, X(0), X(1), X(2), 4, 16);
    on->op->forget_gate(on, X(3), X(1), none, 0, 1);
}
CASE(forget_gate_back)
{
    on->op->forget_gate_back(on, X(0), X(1), X(2), X(3), X(4), 4, 16);
    on->op->forget_gate_back(on, X(5), none, X(2), X(3), none, 0, 1);
}
CASE(decay_gate)
{
    on->op->decay_gate(on, X(0), X(1), X(2), X(3), X(4));
    on->op->decay_gate(on, X(5), none, X(2), X(3), X(4));
}
CASE(decay_gate_back) { on->op->decay_gate_back(on, X(0), X(1), X(2), X(3), X(4), X(5), X(6), X(7), X(8)); }
CASE(decay_gate_back_alone)
{
    on->op->decay_gate_back(on, X(0), X(1), X(2), X(3), none, X(4), X(5), X(6), X(7));
}
CASE(add_skip) { on->op->add_skip(on, X(0), X(1), X(2)); }
CASE(add_skip_back) { on->op->add_skip_back(on, X(0), X(1), X(2), X(3), X(4)); }
CASE(softplus)
{
    on->op->softplus(on, X(0), X(1), 0.25);
    on->op->softplus_back(on, X(2), X(3), X(1));
}
CASE(inverse_softplus)
{
    on->op->inverse_softplus(on, X(0), X(1));
    on->op->inverse_softplus_back(on, X(2), X(3), X(1));
}
CASE(multiply) { on->op->multiply(on, X(0), X(1), X(2)); }
CASE(sine) { on->op->sine(on, X(0), X(1), X(2), X(3)); }
CASE(sine_back)
{
    on->op->sine_back(on, X(0), X(1), X(2), X(3), X(4), X(5), X(6), false);
    on->op->sine_back(on, X(0), X(1), X(2), X(3), X(4), X(5), X(6), true);
}
CASE(long_conv) { on->op->long_conv(on, X(0), X(1), X(2)); }
CASE(long_conv_back) { on->op->long_conv_back(on, X(0), X(1), X(2), X(3), X(4)); }
CASE(embed)
{
    on->op->embed(on, X(0), X(1), in->tokens, none);
    on->op->embed(on, X(2), X(1), in->tokens, X(3));
}
CASE(copies) { on->op->copies(on, in->x, in->x + 2, 2); }
CASE(embed_back)
{
    on->op->order_tokens(on, in->order, in->tokens, X(1).models, X(1).rows, X(0).rows);
    on->op->embed_back(on, X(0), X(1), in->tokens, in->order);
    on->op->embed_back(on, X(0), X(2), in->tokens, in->order);
}
CASE(add_positions) { on->op->add_positions(on, X(0), X(1)); }
CASE(add_positions_back)
{
    on->op->add_positions_back(on, X(0), X(1));
    on->op->add_positions_back(on, X(2), X(3));
}
CASE(gather) { on->op->gather(on, X(0), X(1), in->at); }
CASE(scatter) { on->op->scatter(on, X(0), X(1), in->at); }
CASE(put_rows) { on->op->put_rows(on, X(0), X(1), in->at); }
CASE(scatter_add)
{
    on->op->scatter_add(on, X(0), X(1), X(2), in->at);
    on->op->scatter_add(on, X(3), none, X(2), in->at);
}
CASE(cross_entropy) { on->op->cross_entropy(on, X(0), X(1), X(2), in->targets, in->counts); }
CASE(cross_entropy_over) { on->op->cross_entropy(on, X(0), X(1), X(1), in->targets, in->counts); }
CASE(divergence) { on->op->divergence(on, X(0), X(1), X(2)); }
CASE(squared_error) { on->op->squared_error(on, X(0), X(1), X(2)); }
CASE(squares) { on->op->squares(on, X(0), in->x + 1, 2); }
CASE(clip)
{
    on->op->squares(on, X(1), &X(2), 1);
    on->op->clip(on, X(0), X(1), 0.5);
}
CASE(rate)
{
    on->op->rate(on, X(0), X(2), in->step, 10, 40, 0);
    on->op->rate(on, X(1), X(2), in->step, 4, 40, 0);
    on->op->advance(on, in->step);
    on->op->rate(on, X(3), X(2), in->step, 4, 40, 0.25);
}
CASE(adamw)
{
    on->op->multiply(on, X(2), X(2), X(2)); /* no root of a negative number */
    const parameter a = { .x = X(0), .m = X(1), .v = X(2), .g = X(3), .decay = true };
    const parameter b = { .x = X(6), .m = X(7), .v = X(2), .g = X(8), .decay = false };
    const parameter *const list[] = { &a, &b };
    on->op->adamw(on, list, 1, X(4), X(5), in->step, 0.999, 0.1);
    on->op->adamw(on, list + 1, 1, X(4), X(5), in->step, 0.95, 0.1);
}
CASE(momentum) { on->op->momentum(on, X(0), X(1), X(2), X(3)); }
CASE(normalise)
{
    on->op->squares(on, X(1), &X(0), 1);
    on->op->normalise(on, X(0), X(1));
}
CASE(descend) { on->op->descend(on, X(0), X(1), X(2), 0.75, 0.1); }

#define F \
    { \
        FULL, FULL, OPERAND \
    }
#define F32 \
    { \
        FULL, FULL, WIDE \
    }
#define V \
    { \
        ONE, FULL, WIDE \
    }
#define H \
    { \
        ONE, HALF, WIDE \
    }
#define R \
    { \
        FULL, ONE, WIDE \
    }
#define N \
    { \
        ONE, ONE, WIDE \
    }
#define T4 \
    { \
        FOUR, FULL, DENSE \
    }
#define D \
    { \
        FULL, FULL, DENSE \
    }
#define OP_CASE(name, arrays, ...) \
    { \
#name, run_##name, arrays, { __VA_ARGS__ } \
    }

static const op_case cases[] = {
    OP_CASE(copy, 2, F, F32),
    OP_CASE(combine, 2, F32, F32),
    OP_CASE(merge_parts, 3, { ONE, FULL, OPERAND }, F, { FULL, HALF, WIDE }),
    OP_CASE(column_sums, 2, V, F),
    OP_CASE(column_sums_all, 4, V, F, F, R),
    OP_CASE(rms_norm, 4, F, R, F32, V),
    OP_CASE(rms_norm_back, 11, F, R, F32, V, F32, V, F32, F32, V, F, F),
    OP_CASE(layer_norm, 5, F, { FULL, TWO, WIDE }, F32, V, V),
    OP_CASE(layer_norm_back, 11, F, { FULL, TWO, WIDE }, F32, V, F32, V, V, F32, F32, F, F),
    OP_CASE(unit, 2, F, F),
    OP_CASE(unit_back, 3, F, F, F),
    OP_CASE(silu, 2, F, F),
    OP_CASE(silu_back, 3, F, F, F),
    OP_CASE(gelu_erf, 4, F, F, F, F),
    OP_CASE(relu, 4, F, F, F, F),
    OP_CASE(gelu, 4, F, F, F, F),
    OP_CASE(scale_rows, 6, F, F, R, F, R, F),
    OP_CASE(short_conv, 5, { LIST, FULL, OPERAND }, { LIST, FULL, OPERAND }, T4, { LIST, FULL, OPERAND }, V),
    OP_CASE(short_conv_back, 8, { LIST, FULL, OPERAND }, T4, { LIST, FULL, OPERAND }, { LIST, FULL, OPERAND },
            T4, { LIST, FULL, OPERAND }, V, V),
    OP_CASE(clear_rows, 1, { LIST, FULL, OPERAND }),
    OP_CASE(output_gate, 3, F, F, F),
    OP_CASE(output_gate_back, 5, F, F, F, F, F),
    OP_CASE(sigmoid_gate, 4, F32, F32, V, F32),
    OP_CASE(sigmoid_gate_back, 6, F32, V, F32, F32, V, F32),
    OP_CASE(forget_gate, 4, F32, F32, V, F32),
    OP_CASE(forget_gate_back, 6, F32, V, F32, F32, V, F32),
    OP_CASE(decay_gate, 6, F32, F32, F, H, V, F32),
    OP_CASE(decay_gate_back, 9, F32, H, V, F32, F32, F32, F, H, V),
    OP_CASE(decay_gate_back_alone, 8, F32, H, V, F32, F32, F32, H, V),
    OP_CASE(add_skip, 3, F, F, H),
    OP_CASE(add_skip_back, 5, F, H, F, F, H),
    OP_CASE(softplus, 4, F32, F32, F32, F32),
    OP_CASE(inverse_softplus, 4, F32, F32, F32, F32),
    OP_CASE(multiply, 3, F, F, F),
    OP_CASE(sine, 4, F32, F32, V, V),
    OP_CASE(sine_back, 7, F32, V, V, F32, F32, V, V),
    OP_CASE(long_conv, 3, { LIST, FULL, OPERAND }, { LIST, FULL, OPERAND }, F32),
    OP_CASE(long_conv_back, 5, { LIST, FULL, OPERAND }, F32, { LIST, FULL, OPERAND }, { LIST, FULL, OPERAND },
            F32),
    OP_CASE(embed, 4, F32, { TABLE, FULL, WIDE }, F32, { TABLE, FULL, WIDE }),
    OP_CASE(copies, 4, F, V, F32, V),
    OP_CASE(embed_back, 3, { TABLE, FULL, WIDE }, F32, F),
    OP_CASE(add_positions, 2, { LIST, FULL, WIDE }, F32),
    OP_CASE(add_positions_back, 4, F32, { LIST, FULL, WIDE }, F32, { LIST, FULL, OPERAND }),
    OP_CASE(gather, 2, F32, { LIST, FULL, WIDE }),
    OP_CASE(scatter, 2, { LIST, FULL, WIDE }, F32),
    OP_CASE(put_rows, 2, { LIST, FULL, OPERAND }, F),
    OP_CASE(scatter_add, 4, { LIST, FULL, WIDE }, { LIST, FULL, OPERAND }, F32, { LIST, FULL, WIDE }),
    OP_CASE(cross_entropy, 3, { FULL, TWO, WIDE }, F, F32),
    OP_CASE(cross_entropy_over, 2, { FULL, TWO, WIDE }, F32),
    OP_CASE(divergence, 3, R, F32, F32),
    OP_CASE(squared_error, 3, R, F32, F32),
    OP_CASE(squares, 3, N, D, V),
    OP_CASE(clip, 3, N, N, D),
    OP_CASE(rate, 4, N, N, N, N),
    OP_CASE(adamw, 9, D, D, D, D, N, N, D, D, D),
    OP_CASE(momentum, 4, F32, F32, F32, N),
    OP_CASE(normalise, 2, D, N),
    OP_CASE(descend, 3, F32, F32, N),
};
enum { CASES = sizeof cases / sizeof *cases };

/* ---- arrays */

static int64_t size_of(extent e, const shape *s, int64_t full)
{
    switch (e) {
    case ONE: return 1;
    case HALF: return full % 2 == 0 ? full / 2 : 1;
    case TWO: return 2;
    case FOUR: return 4;
    case LIST: return RUNS * s->rows;
    case TABLE: return WORDS;
    default: return full;
    }
}

/* A number that bfloat16 has. */
static double rounded(double x)
{
    int exponent;
    const double part = frexp(x, &exponent);
    return ldexp(rint(part * 256) / 256, exponent);
}

static uint16_t to_narrow(double x)
{
    const float value = (float)x;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static double from_narrow(uint16_t narrow)
{
    const uint32_t bits = (uint32_t)narrow << 16;
    float value;
    memcpy(&value, &bits, sizeof bits);
    return (double)value;
}

/* All elements of an array in host memory, of any type. */
static void set_all(matrix a, const double *x)
{
    for (int64_t i = 0; i < matrix_elements(a); i++)
        if (a.dtype == LOAM_BF16)
            ((uint16_t *)a.data)[i] = to_narrow(x[i]);
        else
            matrix_set(a, i, &x[i], 1);
}

static double get(matrix a, int64_t i)
{
    return a.dtype == LOAM_BF16 ? from_narrow(((const uint16_t *)a.data)[i]) : fixture_get(a, i);
}

static matrix make_matrix(loam_dtype dtype, int64_t models, int64_t rows, int64_t width)
{
    matrix a = matrix_dense(NULL, dtype, models, rows, width);
    a.data = memory_zeroed((size_t)matrix_elements(a), (size_t)matrix_bytes_each(a));
    return a;
}

/* One array of a case: on the CPU, on the GPU, and as it comes back from there. Where it has several rows
 * they may be columns pad .. of wider ones. */
typedef struct array {
    matrix want, there, got; /* whole */
    int64_t width, pad;
    double *begin;
} array;

static matrix part_of(const array *a, matrix whole)
{
    return a->pad > 0 ? matrix_columns(whole, a->pad, a->width) : whole;
}

static array make_array(const machine *gpu, loam_dtype dtype, int64_t models, int64_t rows, int64_t width,
                        int64_t pad, uint64_t stream)
{
    array a = { .width = width, .pad = rows > 1 ? pad : 0 };
    const int64_t whole = width + 2 * a.pad;
    a.want = make_matrix(LOAM_F64, models, rows, whole);
    a.got = make_matrix(dtype, models, rows, whole);
    a.there = a.got;
    const int64_t count = matrix_elements(a.got);
    const size_t bytes = (size_t)(count * matrix_bytes_each(a.got));
    a.begin = memory_zeroed((size_t)count, sizeof *a.begin);
    random_normals((random_stream){ 20261123, stream }, 0, count, a.begin);
    for (int64_t i = 0; i < count; i++)
        a.begin[i] = rounded(a.begin[i]);
    set_all(a.want, a.begin);
    set_all(a.got, a.begin);
    const char *failed = device_alloc(&a.there.data, bytes);
    if (failed) fail_msg("%s", failed);
    machine_upload(gpu, a.there.data, a.got.data, bytes);
    return a;
}

static void free_array(array *a)
{
    free(a->want.data), free(a->got.data), free(a->begin);
    device_free(a->there.data);
}

static int misses;

/* Results of float32 from float32: sums of a few thousand products, sines of arguments to 5. */
static double bound_of(loam_dtype dtype) { return dtype == LOAM_BF16 ? 3e-3 : 1e-5; }

static void report(const char *name, const machine *gpu, const shape *s, int number, double miss,
                   double bound, bool kept)
{
    if (miss <= bound && kept) return;
    misses++;
    printf("MISS %-22s %s models %d rows %d width %d, array %d: off by %.3g, bound %.3g%s\n", name,
           loam_dtype_name(gpu->operand), (int)s->models, (int)s->rows, (int)s->width, number, miss, bound,
           kept ? "" : "; columns beside it were written");
}

static void fetch(const machine *gpu, const char *name, array *a)
{
    loam_error error;
    const size_t bytes = (size_t)(matrix_elements(a->got) * matrix_bytes_each(a->got));
    if (!machine_download(gpu, a->got.data, a->there.data, bytes, &error)) return;
    misses++;
    printf("MISS %-22s %s\n", name, error.text);
}

/* NaN is a miss. */
static void compare_within(const char *name, const machine *gpu, const shape *s, int number, array *a,
                           double bound)
{
    double miss = 0, norm = 0;
    bool kept = true;
    fetch(gpu, name, a);
    const int64_t whole = a->got.width;
    for (int64_t i = 0; i < matrix_elements(a->got); i++) {
        const int64_t c = i % whole;
        const double got = get(a->got, i), want = get(a->want, i);
        if (c < a->pad || c >= a->pad + a->width) {
            kept = kept && got == a->begin[i];
        } else {
            miss += (got - want) * (got - want);
            norm += want * want;
        }
    }
    miss = norm > 0 ? sqrt(miss / norm) : sqrt(miss);
    report(name, gpu, s, number, isnan(miss) ? INFINITY : miss, bound, kept);
}

static void compare(const char *name, const machine *gpu, const shape *s, int number, array *a)
{
    compare_within(name, gpu, s, number, a, bound_of(a->got.dtype));
}

/* ---- cases */

/* Numbers of rows, in host memory and on the device. */
typedef struct lists {
    int32_t *tokens, *at, *targets;
    int64_t counts[4], step;
    void *there[6];
} lists;

static uint64_t word_of(uint64_t stream, int64_t n)
{
    uint64_t word;
    random_words((random_stream){ 7, stream }, (uint64_t)n, 1, &word);
    return word;
}

/* Half of all tokens are the same word; every third answer is none. */
static void fill_lists(lists *l, const shape *s)
{
    const int64_t all = s->models * s->rows;
    l->tokens = memory_zeroed((size_t)all, sizeof *l->tokens);
    l->at = memory_zeroed((size_t)all, sizeof *l->at);
    l->targets = memory_zeroed((size_t)all, sizeof *l->targets);
    l->step = 6;
    for (int64_t n = 0; n < all; n++) {
        const int64_t i = n % s->rows, m = n / s->rows;
        l->tokens[n] = word_of(1, n) >> 63 ? 3 : random_below(word_of(2, n), WORDS);
        l->at[n] = n % 3 == 1 ? -1 : (int32_t)(i * RUNS + random_below(word_of(3, n), RUNS));
        l->targets[n] = n % 3 == 1 ? -1 : random_below(word_of(4, n), s->width);
        l->counts[m] += l->targets[n] >= 0;
    }
}

static void *send(const machine *gpu, const void *from, size_t bytes)
{
    void *to = NULL;
    const char *failed = device_alloc(&to, bytes);
    if (failed) fail_msg("%s", failed);
    machine_upload(gpu, to, from, bytes);
    return to;
}

static void send_lists(lists *l, const machine *gpu, const shape *s)
{
    const size_t bytes = (size_t)(s->models * s->rows) * sizeof *l->at;
    l->there[0] = send(gpu, l->tokens, bytes);
    l->there[1] = send(gpu, l->at, bytes);
    l->there[2] = send(gpu, l->targets, bytes);
    l->there[3] = send(gpu, l->counts, sizeof l->counts);
    l->there[4] = send(gpu, &l->step, sizeof l->step);
    const char *failed = device_alloc(&l->there[5], machine_order_bytes(gpu, s->models, s->rows));
    if (failed) fail_msg("%s", failed);
}

static void free_lists(lists *l)
{
    free(l->tokens), free(l->at), free(l->targets);
    for (int i = 0; i < 6; i++)
        device_free(l->there[i]);
}

static void check_case(const op_case *op, const machine *gpu, const shape *s, int64_t pad)
{
    const machine cpu = machine_cpu(LOAM_F64, 0);
    array list[MOST];
    lists l = { 0 };
    input here = { .counts = l.counts, .step = &l.step }, there;
    fill_lists(&l, s);
    send_lists(&l, gpu, s);
    there = (input){ .counts = l.there[3], .step = l.there[4], .order = l.there[5] };
    here.tokens = (numbers){ l.tokens, s->rows }, there.tokens = (numbers){ l.there[0], s->rows };
    here.at = (numbers){ l.at, s->rows }, there.at = (numbers){ l.there[1], s->rows };
    here.targets = (numbers){ l.targets, s->rows }, there.targets = (numbers){ l.there[2], s->rows };
    for (int i = 0; i < op->arrays; i++) {
        list[i] = make_array(gpu, op->x[i].kind == OPERAND ? gpu->operand : LOAM_F32, s->models,
                             size_of(op->x[i].rows, s, s->rows), size_of(op->x[i].width, s, s->width),
                             op->x[i].kind == DENSE ? 0 : pad, (uint64_t)i);
        here.x[i] = part_of(&list[i], list[i].want);
        there.x[i] = part_of(&list[i], list[i].there);
    }
    op->run(&cpu, &here);
    op->run(gpu, &there);
    for (int i = 0; i < op->arrays; i++) {
        compare(op->name, gpu, s, i, &list[i]);
        free_array(&list[i]);
    }
    free_lists(&l);
}

static const shape shapes[] = {
    { 1, 1, 4 },    { 1, 3, 6 },    { 3, 5, 6 },      { 1, 67, 20 }, { 3, 130, 64 }, { 1, 300, 128 },
    { 3, 77, 130 }, { 2, 64, 256 }, { 1, 1500, 128 }, { 3, 1, 12 },  { 2, 33, 644 }, { 1, 70, 1024 },
};

static void check_cases(loam_dtype operand)
{
    machine gpu;
    loam_error error;
    if (machine_cuda(&gpu, operand, &error)) fail_msg("%s", error.text);
    misses = 0;
    for (int n = 0; n < CASES; n++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            for (int64_t pad = 0; pad <= PAD; pad += PAD / 2)
                check_case(&cases[n], &gpu, &shapes[i], pad == PAD / 2 ? 3 : pad);
    machine_close(&gpu);
    printf("%d cases, %s: %d misses\n", CASES, loam_dtype_name(operand), misses);
    assert_int_equal(misses, 0);
}

static void test_float(void **state)
{
    (void)state;
    check_cases(LOAM_F32);
}

static void test_narrow(void **state)
{
    (void)state;
    check_cases(LOAM_BF16);
}

/* ---- products: models, then rows, inner and columns */

enum { ONTO = 16 }; /* beside the flags of product */

static const int64_t products[][4] = {
    { 1, 1, 1, 1 },       { 1, 5, 3, 7 },        { 3, 12, 20, 8 },      { 1, 64, 128, 128 },
    { 3, 300, 128, 2 },   { 2, 2, 300, 128 },    { 1, 130, 66, 33 },    { 3, 128, 2048, 128 },
    { 1, 128, 16384, 2 }, { 2, 644, 1536, 128 }, { 1, 1024, 128, 512 }, { 3, 512, 1024, 128 },
    { 2, 128, 3, 64 },    { 1, 48, 1100, 40 },   { 2, 8, 1024, 644 },
};

static void check_product(const machine *gpu, const int64_t *size, unsigned how, unsigned types)
{
    const machine cpu = machine_cpu(LOAM_F64, 0);
    const bool left = how & PRODUCT_A_TRANSPOSED, right = how & PRODUCT_B_TRANSPOSED;
    const int64_t models = size[0], rows = size[1], inner = size[2], width = size[3];
    const shape s = { models, rows, width };
    char name[64];
    loam_dtype dtype[3];
    for (int i = 0; i < 3; i++)
        dtype[i] = types >> i & 1 ? gpu->operand : LOAM_F32;
    snprintf(name, sizeof name, "product %u %u inner %d", how, types, (int)inner);
    array a = make_array(gpu, dtype[0], models, left ? inner : rows, left ? rows : inner, 0, 1);
    array b = make_array(gpu, dtype[1], models, right ? width : inner, right ? inner : width, 0, 2);
    array out = make_array(gpu, dtype[2], models, rows, width, 0, 3);
    array base = make_array(gpu, dtype[2], models, rows, width, 0, 4);
    if (how == ONTO) {
        cpu.op->product_onto(&cpu, out.want, base.want, a.want, b.want);
        gpu->op->product_onto(gpu, out.there, base.there, a.there, b.there);
    } else {
        cpu.op->product(&cpu, out.want, a.want, b.want, how);
        gpu->op->product(gpu, out.there, a.there, b.there, how);
    }
    /* Tensor cores add 16 products of bfloat16 at a time to a sum in float32, and truncate. */
    const double sums = gpu->operand == LOAM_BF16 ? (double)inner / 16 * 0x1p-24 : 0;
    compare_within(name, gpu, &s, 0, &out, bound_of(out.got.dtype) + sums);
    free_array(&a), free_array(&b), free_array(&out), free_array(&base);
}

/* float32 throughout; where operands are bfloat16 that too, and of small arrays all mixtures. */
static bool has_types(const machine *gpu, const int64_t *size, unsigned how, unsigned types)
{
    const bool narrow = gpu->operand == LOAM_BF16 && !(how & PRODUCT_EXACT);
    const bool small = size[0] * (size[1] + size[3]) * size[2] < 100000;
    return types == 0 || (narrow && (small || types == 7));
}

static void check_products(loam_dtype operand)
{
    machine gpu;
    loam_error error;
    if (machine_cuda(&gpu, operand, &error)) fail_msg("%s", error.text);
    misses = 0;
    for (size_t i = 0; i < sizeof products / sizeof *products; i++)
        for (unsigned how = 0; how <= ONTO; how++)
            for (unsigned types = 0; types < 8; types++)
                if (has_types(&gpu, products[i], how, types)) check_product(&gpu, products[i], how, types);
    machine_close(&gpu);
    printf("products, %s: %d misses\n", loam_dtype_name(operand), misses);
    assert_int_equal(misses, 0);
}

static void test_products(void **state)
{
    (void)state;
    check_products(LOAM_F32);
}

static void test_narrow_products(void **state)
{
    (void)state;
    check_products(LOAM_BF16);
}

/* ---- losses over words: models, rows, words and columns; sizes that tiles have, and others */

static const int64_t word_losses[][4] = {
    { 1, 1, 128, 128 },    { 2, 300, 256, 128 }, { 3, 129, 384, 128 }, { 2, 2100, 512, 128 },
    { 1, 9000, 256, 128 }, { 2, 90, 100, 128 },  { 1, 200, 128, 64 },  { 2, 21, 5000, 64 },
};

/* Rows that are a sixteenth of their target's word, and something more: targets have most of the weight. */
static void aim(const machine *gpu, array *x, const array *table, const shape *s, const int32_t *targets)
{
    for (int64_t n = 0; n < s->models * s->rows; n++)
        for (int64_t c = 0; c < x->width && targets[n] >= 0; c++) {
            const int64_t word = n / s->rows * table->want.rows + targets[n], at = n * x->width + c;
            x->begin[at] = rounded((table->begin[word * x->width + c] + 0.1 * x->begin[at]) / 16);
        }
    set_all(x->want, x->begin);
    set_all(x->got, x->begin);
    machine_upload(gpu, x->there.data, x->got.data,
                   (size_t)(matrix_elements(x->got) * matrix_bytes_each(x->got)));
}

/* Weights are rounded to bfloat16, by up to 2^-8: of one row nothing averages out. */
static void check_word_loss(const machine *gpu, const int64_t *size, bool aimed)
{
    enum { EACH, DX, DTABLE, X_ROWS, WORDS_OF, LOGITS, G, ARRAYS };
    const machine cpu = machine_cpu(LOAM_F64, 0);
    const shape s = { size[0], size[1], size[2] };
    const int64_t rows[ARRAYS] = { s.rows, s.rows, s.width, s.rows, s.width, 70, 130 };
    const int64_t width[ARRAYS] = { 2, size[3], size[3], size[3], size[3], s.width, s.width };
    array list[ARRAYS];
    lists l = { 0 };
    char name[64];
    snprintf(name, sizeof name, "word_loss%s of %d", aimed ? " aimed" : "", (int)size[3]);
    fill_lists(&l, &s);
    send_lists(&l, gpu, &s);
    for (int i = 0; i < ARRAYS; i++)
        list[i] = make_array(gpu, i == X_ROWS || i == WORDS_OF || i == G ? gpu->operand : LOAM_F32,
                             i < LOGITS ? s.models : 1, rows[i], width[i], 0, (uint64_t)i);
    if (aimed) aim(gpu, &list[X_ROWS], &list[WORDS_OF], &s, l.targets);
    cpu.op->word_loss(&cpu, list[EACH].want, list[DX].want, list[DTABLE].want, list[X_ROWS].want,
                      list[WORDS_OF].want, (numbers){ l.targets, s.rows }, l.counts, list[LOGITS].want,
                      list[G].want);
    gpu->op->word_loss(gpu, list[EACH].there, list[DX].there, list[DTABLE].there, list[X_ROWS].there,
                       list[WORDS_OF].there, (numbers){ l.there[2], s.rows }, l.there[3], list[LOGITS].there,
                       list[G].there);
    for (int i = 0; i < X_ROWS; i++)
        compare_within(name, gpu, &s, i, &list[i], gpu->operand == LOAM_BF16 && i > EACH ? 4e-3 : 2e-5);
    for (int i = 0; i < ARRAYS; i++)
        free_array(&list[i]);
    free_lists(&l);
}

static void test_word_loss(void **state)
{
    machine gpu;
    loam_error error;
    (void)state;
    misses = 0;
    for (int operand = LOAM_F32; operand <= LOAM_BF16; operand++) {
        if (machine_cuda(&gpu, (loam_dtype)operand, &error)) fail_msg("%s", error.text);
        for (size_t i = 0; i < 2 * sizeof word_losses / sizeof *word_losses; i++)
            check_word_loss(&gpu, word_losses[i / 2], i % 2 > 0);
        machine_close(&gpu);
    }
    printf("losses over words: %d misses\n", misses);
    assert_int_equal(misses, 0);
}

/* Of several largest logits the first is the one that counts as such. */
static void test_equal_logits(void **state)
{
    enum { ROWS = 4, WIDTH = 4096, FIRST = 100, SECOND = 3000 };
    static const int32_t targets[ROWS] = { FIRST, SECOND, 7, -1 };
    static const int64_t count = ROWS - 1;
    const shape s = { 1, ROWS, WIDTH };
    machine gpu;
    loam_error error;
    (void)state;
    misses = 0;
    if (machine_cuda(&gpu, LOAM_F32, &error)) fail_msg("%s", error.text);
    array each = make_array(&gpu, LOAM_F32, 1, ROWS, 2, 0, 1),
          logits = make_array(&gpu, LOAM_F32, 1, ROWS, WIDTH, 0, 2);
    for (int64_t i = 0; i < ROWS * WIDTH; i++)
        logits.begin[i] = i % WIDTH == FIRST || i % WIDTH == SECOND ? 2 : 0;
    set_all(logits.want, logits.begin), set_all(logits.got, logits.begin);
    machine_upload(&gpu, logits.there.data, logits.got.data, ROWS * WIDTH * sizeof(float));
    const double loss = log(2 + (WIDTH - 2) * exp(-2));
    const double want[2 * ROWS] = { loss, 1, loss, 0, loss + 2, 0, 0, 0 };
    set_all(each.want, want);
    int32_t *there = send(&gpu, targets, sizeof targets);
    int64_t *counts = send(&gpu, &count, sizeof count);
    gpu.op->cross_entropy(&gpu, each.there, none, logits.there, (numbers){ there, ROWS }, counts);
    compare("equal logits", &gpu, &s, 0, &each);
    device_free(there), device_free(counts);
    free_array(&each), free_array(&logits);
    machine_close(&gpu);
    assert_int_equal(misses, 0);
}

/* Of all its tests, or of those that the argument, a pattern, names. */
int main(int argc, char **argv)
{
    if (!device_count()) {
        print_message("skipped: no CUDA device\n");
        return SKIPPED;
    }
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_float),     cmocka_unit_test(test_narrow),
        cmocka_unit_test(test_products),  cmocka_unit_test(test_narrow_products),
        cmocka_unit_test(test_word_loss), cmocka_unit_test(test_equal_logits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
