/* SPDX-License-Identifier: MIT
 * What language models ask of a GPU beside training: products with transposed weights of 16 bits, of few rows
 * and of many, tables of 16 bits, losses over many words. Expected is what float64 gives here. All numbers
 * are representable in every type, so that only sums and results are rounded. */
#include "io/half.h"
#include "random/random.h"
#include "tests/support/memory.h"
#include "train/machine.h"

#include "cli/device.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SKIPPED = 77 };

/* A matrix on the device, whose rows may be apart by more than their width, and its numbers. */
typedef struct tensor {
    matrix there;
    double *x; /* [models][rows][width] */
    size_t bytes;
} tensor;

static int misses;

static machine open_gpu(loam_dtype operand)
{
    machine gpu;
    loam_error error;
    if (machine_cuda(&gpu, operand, &error)) fail_msg("%s", error.text);
    return gpu;
}

/* A normal number with 7 bits after the first; 0 where float16 would be subnormal. */
static double number(uint64_t stream, uint64_t n)
{
    double x;
    int exponent;
    random_normals((random_stream){ 20261124, stream }, n, 1, &x);
    const double part = frexp(x, &exponent);
    return exponent < -10 ? 0 : ldexp(rint(part * 256) / 256, exponent);
}

static void put(void *to, loam_dtype dtype, int64_t at, double x)
{
    if (dtype == LOAM_F32)
        ((float *)to)[at] = (float)x;
    else
        ((uint16_t *)to)[at] = dtype == LOAM_BF16 ? bf16_from_double(x) : f16_from_double(x);
}

static double get(const void *from, loam_dtype dtype, int64_t at)
{
    if (dtype == LOAM_F32) return (double)((const float *)from)[at];
    return (dtype == LOAM_BF16 ? bf16_to_double : f16_to_double)(((const uint16_t *)from)[at]);
}

static void *send(const machine *gpu, const void *from, size_t bytes)
{
    void *to = NULL;
    const char *failed = device_alloc(&to, bytes);
    if (failed) fail_msg("%s", failed);
    machine_upload(gpu, to, from, bytes);
    return to;
}

static tensor make(const machine *gpu, loam_dtype dtype, int64_t models, int64_t rows, int64_t width,
                   int64_t pad, uint64_t stream)
{
    tensor t = { .there = matrix_dense(NULL, dtype, models, rows, width + pad) };
    const int64_t whole = matrix_elements(t.there);
    t.bytes = (size_t)(whole * matrix_bytes_each(t.there));
    char *host = memory_zeroed((size_t)whole, (size_t)matrix_bytes_each(t.there));
    t.x = memory_zeroed((size_t)(models * rows * width), sizeof *t.x);
    for (int64_t i = 0; i < models * rows; i++)
        for (int64_t c = 0; c < width; c++) {
            const int64_t n = i * width + c;
            t.x[n] = number(stream, (uint64_t)n);
            put(host, dtype, i * (width + pad) + c, t.x[n]);
        }
    t.there.width = width;
    t.there.data = send(gpu, host, t.bytes);
    free(host);
    return t;
}

static void drop(tensor *t)
{
    device_free(t->there.data);
    free(t->x);
}

/* What the device has, as it lies there. */
static char *fetch(const machine *gpu, const tensor *t)
{
    loam_error error;
    char *host = memory_zeroed(t->bytes, 1);
    if (machine_download(gpu, host, t->there.data, t->bytes, &error)) fail_msg("%s", error.text);
    return host;
}

/* t->x is what is expected; the mean error relative to the mean number. */
static void compare(const machine *gpu, const char *name, const tensor *t, double bound)
{
    const matrix a = t->there;
    char *host = fetch(gpu, t);
    double miss = 0, norm = 0;
    for (int64_t i = 0; i < a.models * a.rows; i++)
        for (int64_t c = 0; c < a.width; c++) {
            const double want = t->x[i * a.width + c];
            miss += pow(get(host, a.dtype, i * a.row + c) - want, 2);
            norm += want * want;
        }
    free(host);
    miss = sqrt(miss / norm);
    if (miss <= bound) return;
    misses++;
    printf("MISS %s, operands %s: off by %.3g, bound %.3g\n", name, loam_dtype_name(gpu->operand), miss,
           bound);
}

/* ---- products: models, rows, inner, columns */

static const int64_t products[][4] = {
    { 1, 1, 576, 192 }, { 1, 1, 20, 7 },     { 2, 2, 33, 64 },  { 1, 3, 1100, 130 },
    { 3, 4, 576, 50 },  { 1, 1, 1536, 576 }, { 1, 5, 576, 64 }, { 2, 6, 20, 9 },
    { 1, 40, 37, 30 },  { 1, 150, 576, 64 }, { 1, 4, 8, 1 },    { 1, 1, 2056, 1000 },
};

static void expect_product(tensor *out, const tensor *a, const tensor *b, bool add)
{
    const matrix o = out->there;
    const int64_t inner = a->there.width;
    for (int64_t m = 0; m < o.models; m++)
        for (int64_t i = 0; i < o.rows; i++)
            for (int64_t c = 0; c < o.width; c++) {
                double *const to = &out->x[(m * o.rows + i) * o.width + c];
                const double *const x = a->x + (m * o.rows + i) * inner,
                                    *w = b->x + (m * o.width + c) * inner;
                double sum = add ? *to : 0;
                for (int64_t k = 0; k < inner; k++)
                    sum += x[k] * w[k];
                *to = sum;
            }
}

/* Tensor cores add 16 products of bfloat16 at a time to a sum in float32, and truncate. */
static double product_bound(const machine *gpu, loam_dtype out, int64_t inner)
{
    const double sums = gpu->operand == LOAM_BF16 ? (double)inner / 16 * 0x1p-24 : 0;
    return (out == LOAM_BF16 ? 3e-3 : 1e-5) + sums;
}

static void check_product(const machine *gpu, const int64_t *size, loam_dtype weights, unsigned types,
                          int64_t pad)
{
    const loam_dtype activations = types & 1 ? gpu->operand : LOAM_F32,
                     result = types & 2 ? gpu->operand : LOAM_F32;
    const bool add = types & 4;
    tensor a = make(gpu, activations, size[0], size[1], size[2], pad, 1),
           b = make(gpu, weights, size[0], size[3], size[2], pad, 2),
           out = make(gpu, result, size[0], size[1], size[3], 0, 3);
    char name[96];
    snprintf(name, sizeof name, "product of %d rows, %d of %d, weights %s, %u", (int)size[1], (int)size[3],
             (int)size[2], loam_dtype_name(weights), types);
    expect_product(&out, &a, &b, add);
    gpu->op->product(gpu, out.there, a.there, b.there, PRODUCT_B_TRANSPOSED | (add ? PRODUCT_ADD : 0));
    compare(gpu, name, &out, product_bound(gpu, result, size[2]));
    drop(&a), drop(&b), drop(&out);
}

static const loam_dtype weight_types[] = { LOAM_F32, LOAM_BF16, LOAM_F16 };

static void test_products(void **state)
{
    (void)state;
    misses = 0;
    for (int operand = LOAM_F32; operand <= LOAM_BF16; operand++) {
        machine gpu = open_gpu((loam_dtype)operand);
        for (size_t i = 0; i < sizeof products / sizeof *products; i++)
            for (int w = 0; w < 3; w++)
                for (unsigned types = 0; types < 8; types++)
                    for (int64_t pad = 0; pad <= 5; pad += 5)
                        if (operand == LOAM_BF16 || types % 4 == 0)
                            check_product(&gpu, products[i], weight_types[w], types, pad);
        machine_close(&gpu);
    }
    assert_int_equal(misses, 0);
}

/* A row has the same bits alone and beside others. */
static void test_few_rows(void **state)
{
    enum { ROWS = 4, INNER = 1100, COLUMNS = 70 };
    machine gpu = open_gpu(LOAM_BF16);
    (void)state;
    for (int w = 0; w < 3; w++)
        for (int narrow = 0; narrow < 2; narrow++) {
            tensor a = make(&gpu, narrow ? LOAM_BF16 : LOAM_F32, 1, ROWS, INNER, 4, 1),
                   b = make(&gpu, weight_types[w], 1, COLUMNS, INNER, 4, 2),
                   all = make(&gpu, LOAM_F32, 1, ROWS, COLUMNS, 0, 3),
                   alone = make(&gpu, LOAM_F32, 1, ROWS, COLUMNS, 0, 4);
            gpu.op->product(&gpu, all.there, a.there, b.there, PRODUCT_B_TRANSPOSED);
            for (int i = 0; i < ROWS; i++)
                gpu.op->product(&gpu, matrix_rows(alone.there, i, 1), matrix_rows(a.there, i, 1), b.there,
                                PRODUCT_B_TRANSPOSED);
            char *together = fetch(&gpu, &all), *single = fetch(&gpu, &alone);
            assert_memory_equal(together, single, all.bytes);
            free(together), free(single);
            drop(&a), drop(&b), drop(&all), drop(&alone);
        }
    machine_close(&gpu);
}

/* ---- tables */

static void test_tables(void **state)
{
    enum { WORDS = 9, ROWS = 14 };
    static const int64_t widths[] = { 4, 7, 64, 576 };
    machine gpu = open_gpu(LOAM_F32);
    int32_t ids[ROWS];
    (void)state;
    misses = 0;
    for (int i = 0; i < ROWS; i++)
        ids[i] = i * 5 % WORDS;
    int32_t *there = send(&gpu, ids, sizeof ids);
    for (int n = 0; n < 4; n++)
        for (int w = 0; w < 3; w++)
            for (int placed = 0; placed < 2; placed++) {
                const int64_t width = widths[n];
                tensor table = make(&gpu, weight_types[w], 1, WORDS, width, n, 1),
                       places = make(&gpu, LOAM_F32, 1, ROWS, width, 0, 2),
                       e = make(&gpu, LOAM_F32, 1, ROWS, width, 0, 3);
                const matrix none = { 0 };
                for (int64_t i = 0; i < ROWS * width; i++)
                    e.x[i] = table.x[ids[i / width] * width + i % width] + (placed ? places.x[i] : 0);
                gpu.op->embed(&gpu, e.there, table.there, (numbers){ there, 0 },
                              placed ? places.there : none);
                compare(&gpu, "embed", &e, 1e-7);
                drop(&table), drop(&places), drop(&e);
            }
    device_free(there);
    machine_close(&gpu);
    assert_int_equal(misses, 0);
}

/* ---- losses, of more words than shared memory has room for too */

static void expect_losses(const tensor *logits, const int32_t *targets, tensor *each, tensor *g)
{
    const int64_t width = logits->there.width;
    for (int64_t i = 0; i < logits->there.rows; i++) {
        const double *const x = logits->x + i * width;
        double sum = 0;
        int64_t best = 0;
        for (int64_t c = 0; c < width; c++)
            sum += exp(x[c]), best = x[c] > x[best] ? c : best;
        each->x[2 * i] = log(sum) - x[targets[i]], each->x[2 * i + 1] = best == targets[i];
        for (int64_t c = 0; c < width; c++)
            g->x[i * width + c] = exp(x[c]) / sum - (c == targets[i]);
    }
}

static void check_losses(const machine *gpu, int64_t width, bool over)
{
    enum { ROWS = 5 };
    const matrix none = { 0 };
    const int64_t count = 1;
    const int32_t targets[ROWS] = { 0, 3, (int32_t)width - 1, 2, (int32_t)width / 2 };
    tensor logits = make(gpu, LOAM_F32, 1, ROWS, width, 0, 1), each = make(gpu, LOAM_F32, 1, ROWS, 2, 0, 2),
           alone = make(gpu, LOAM_F32, 1, ROWS, 2, 0, 4), g = make(gpu, LOAM_F32, 1, ROWS, width, 0, 3);
    int32_t *there = send(gpu, targets, sizeof targets);
    int64_t *counts = send(gpu, &count, sizeof count);
    expect_losses(&logits, targets, &each, &g);
    memcpy(alone.x, each.x, 2 * ROWS * sizeof *each.x);
    gpu->op->cross_entropy(gpu, alone.there, none, logits.there, (numbers){ there, 0 }, counts);
    gpu->op->cross_entropy(gpu, each.there, over ? logits.there : g.there, logits.there,
                           (numbers){ there, 0 }, counts);
    if (over) memcpy(logits.x, g.x, (size_t)(ROWS * width) * sizeof *g.x);
    compare(gpu, "losses alone", &alone, 1e-6);
    compare(gpu, "losses", &each, 1e-6);
    compare(gpu, "gradients of losses", over ? &logits : &g, 1e-5);
    device_free(there), device_free(counts);
    drop(&logits), drop(&each), drop(&alone), drop(&g);
}

static void test_losses(void **state)
{
    static const int64_t widths[] = { 7, 300, 57344, 57345, 60000, 130001 };
    machine gpu = open_gpu(LOAM_F32);
    (void)state;
    misses = 0;
    for (int n = 0; n < 6; n++)
        for (int over = 0; over < 2; over++)
            check_losses(&gpu, widths[n], over > 0);
    machine_close(&gpu);
    assert_int_equal(misses, 0);
}

int main(void)
{
    if (!device_count()) {
        print_message("skipped: no CUDA device\n");
        return SKIPPED;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products),
        cmocka_unit_test(test_few_rows),
        cmocka_unit_test(test_tables),
        cmocka_unit_test(test_losses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
