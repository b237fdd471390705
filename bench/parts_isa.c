/* SPDX-License-Identifier: MIT
 * Compiled once per instruction set, with the flags of the kernels. */
#include "bench/parts.h"
#include "src/base/cholesky.h"
#include "src/simd/convert.h"
#include "src/simd/panel.h"

_Static_assert((int)LANES == (int)PARTS_LANES, "the panels of the kernels");

/* Enough sums that none waits for another: two units of latency 4 keep 8 under way. */
enum { SUMS = 12 };

static double peak(float *out, const float *in, int64_t rounds)
{
    const vec x = v_load(in), y = v_load(in + VL);
    vec sum[SUMS];
    for (int i = 0; i < SUMS; i++)
        sum[i] = v_load(in + i);
    for (int64_t round = 0; round < rounds; round++) {
#pragma GCC unroll 12
        for (int i = 0; i < SUMS; i++)
            sum[i] = sum[i] * x + y;
    }
    for (int i = 0; i < SUMS; i++)
        v_store(out + i * VL, sum[i]);
    return 2.0 * SUMS * VL * (double)rounds;
}

static void product(const parts_product *s, float *c, const float *a, const float *b)
{
    panel_product(c, s->rows, a, s->row_stride, s->t_stride, b, s->t_count, s->add);
}

static void exps(float *y, const float *x, int64_t count)
{
    for (int64_t i = 0; i < count; i += VL)
        v_store(y + i, v_exp(v_load(x + i)));
}

static void tanhs(float *y, const float *x, int64_t count)
{
    for (int64_t i = 0; i < count; i += VL)
        v_store(y + i, v_tanh(v_load(x + i)));
}

static void load(float *to, const void *from, int dtype, int64_t count)
{
    load_floats(to, from, (loam_dtype)dtype, 0, count);
}

static void store(void *to, const float *from, int dtype, int64_t count)
{
    store_floats(to, (loam_dtype)dtype, 0, from, count);
}

static void factor(double *a, int64_t n) { cholesky_factor(a, n, 0); }

#define TEXT_OF(name) #name
#define TEXT(name) TEXT_OF(name)
#define JOIN_OF(a, b) a##b
#define JOIN(a, b) JOIN_OF(a, b)

extern const parts JOIN(parts_, PARTS_ISA);
const parts JOIN(parts_, PARTS_ISA) = { .by = TEXT(PARTS_ISA),
                                        .peak = peak,
                                        .product = product,
                                        .exps = exps,
                                        .tanhs = tanhs,
                                        .load = load,
                                        .store = store,
                                        .factor = factor };
