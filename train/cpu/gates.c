/* SPDX-License-Identifier: MIT
 * Element by element: activations and gates. */
#include "train/cpu/real.h"

static real silu_slope(real x)
{
    const real s = sigmoid(x);
    return s * (1 + x * (1 - s));
}

void REAL(silu)(const machine *on, matrix y, matrix x)
{
    PARALLEL_ROWS(n, x)
    {
        const real *from = ROW(x, x, n);
        real *to = ROW(y, x, n);
        for (int64_t c = 0; c < x.width; c++)
            to[c] = from[c] * sigmoid(from[c]);
    }
}

void REAL(silu_back)(const machine *on, matrix dx, matrix g, matrix x)
{
    PARALLEL_ROWS(n, x)
    {
        const real *from = ROW(x, x, n), *down = ROW(g, x, n);
        real *to = ROW(dx, x, n);
        for (int64_t c = 0; c < x.width; c++)
            to[c] = down[c] * silu_slope(from[c]);
    }
}

/* tanh's argument in GELU: slope (x + cubic x^3), slope = sqrt(2 / pi). */
static const double gelu_slope = 0.79788456080286535588, gelu_cubic = 0.044715;

static real gelu_tanh(real x) { return tanh((real)gelu_slope * (x + (real)gelu_cubic * x * x * x)); }

void REAL(gelu)(const machine *on, matrix y, matrix x)
{
    PARALLEL_ROWS(n, x)
    {
        const real *from = ROW(x, x, n);
        real *to = ROW(y, x, n);
        for (int64_t c = 0; c < x.width; c++)
            to[c] = (real)0.5 * from[c] * (1 + gelu_tanh(from[c]));
    }
}

void REAL(gelu_erf)(const machine *on, matrix y, matrix x)
{
    PARALLEL_ROWS(n, x)
    {
        const real *from = ROW(x, x, n);
        real *to = ROW(y, x, n);
        for (int64_t c = 0; c < x.width; c++)
            to[c] = (real)0.5 * from[c] * (1 + erf(from[c] * (real)0.70710678118654752440));
    }
}

void REAL(relu)(const machine *on, matrix y, matrix x)
{
    PARALLEL_ROWS(n, x)
    {
        const real *from = ROW(x, x, n);
        real *to = ROW(y, x, n);
        for (int64_t c = 0; c < x.width; c++)
            to[c] = from[c] > 0 ? from[c] : 0;
    }
}

void REAL(gelu_back)(const machine *on, matrix dx, matrix g, matrix x)
{
    PARALLEL_ROWS(n, x)
    {
        const real *from = ROW(x, x, n), *down = ROW(g, x, n);
        real *to = ROW(dx, x, n);
        for (int64_t c = 0; c < x.width; c++) {
            const real t = gelu_tanh(from[c]), square = from[c] * from[c];
            const real inner = (real)gelu_slope * (1 + 3 * (real)gelu_cubic * square);
            to[c] = down[c] * (real)0.5 * (1 + t + from[c] * (1 - t * t) * inner);
        }
    }
}

/* With Phi the normal distribution's: y = x Phi(x), y' = Phi(x) + x Phi'(x). */
void REAL(gelu_erf_back)(const machine *on, matrix dx, matrix g, matrix x)
{
    PARALLEL_ROWS(n, x)
    {
        const real *from = ROW(x, x, n), *down = ROW(g, x, n);
        real *to = ROW(dx, x, n);
        for (int64_t c = 0; c < x.width; c++) {
            const real whole = (real)0.5 * (1 + erf(from[c] * (real)0.70710678118654752440));
            const real slope = (real)0.39894228040143267794 * exp((real)-0.5 * from[c] * from[c]);
            to[c] = down[c] * (whole + from[c] * slope);
        }
    }
}

void REAL(relu_back)(const machine *on, matrix dx, matrix g, matrix x)
{
    PARALLEL_ROWS(n, x)
    for (int64_t c = 0; c < x.width; c++)
        ROW(dx, x, n)[c] = ROW(x, x, n)[c] > 0 ? ROW(g, x, n)[c] : 0;
}

void REAL(output_gate)(const machine *on, matrix y, matrix n, matrix z)
{
    PARALLEL_ROWS(i, n)
    {
        const real *normed = ROW(n, n, i), *by = ROW(z, n, i);
        real *to = ROW(y, n, i);
        for (int64_t c = 0; c < n.width; c++)
            to[c] = normed[c] * by[c] * sigmoid(by[c]);
    }
}

void REAL(output_gate_back)(const machine *on, matrix dn, matrix dz, matrix g, matrix n, matrix z)
{
    PARALLEL_ROWS(i, n)
    {
        const real *normed = ROW(n, n, i), *by = ROW(z, n, i), *down = ROW(g, n, i);
        real *to_n = ROW(dn, n, i), *to_z = ROW(dz, n, i);
        for (int64_t c = 0; c < n.width; c++) {
            to_n[c] = down[c] * by[c] * sigmoid(by[c]);
            to_z[c] = down[c] * normed[c] * silu_slope(by[c]);
        }
    }
}

/* Element c of a row with its bias, where there is one. */
static real biased(const real *a, const real *bias, int64_t c) { return bias ? a[c] + bias[c] : a[c]; }

static const real *bias_of(matrix bias, int64_t m) { return bias.data ? row_of(bias, m, 0) : NULL; }

static void sum_bias(const machine *on, matrix dbias, matrix da)
{
    const matrix none = { 0 };
    if (dbias.data) REAL(column_sums)(on, dbias, da, none, none);
}

void REAL(sigmoid_gate)(const machine *on, matrix y, matrix a, matrix bias, double least, double most)
{
    PARALLEL_ROWS(n, a)
    {
        const real *from = ROW(a, a, n), *add = bias_of(bias, n / a.rows);
        real *to = ROW(y, a, n);
        for (int64_t c = 0; c < a.width; c++)
            to[c] = (real)least + (real)(most - least) * sigmoid(biased(from, add, c));
    }
}

void REAL(sigmoid_gate_back)(const machine *on, matrix da, matrix dbias, matrix g, matrix a, matrix bias,
                             double least, double most)
{
    PARALLEL_ROWS(n, a)
    {
        const real *from = ROW(a, a, n), *add = bias_of(bias, n / a.rows), *down = ROW(g, a, n);
        real *to = ROW(da, a, n);
        for (int64_t c = 0; c < a.width; c++) {
            const real s = sigmoid(biased(from, add, c));
            to[c] = down[c] * (real)(most - least) * s * (1 - s);
        }
    }
    sum_bias(on, dbias, da);
}

void REAL(forget_gate)(const machine *on, matrix y, matrix a, matrix bias, double shift, double divisor)
{
    PARALLEL_ROWS(n, a)
    {
        const real *from = ROW(a, a, n), *add = bias_of(bias, n / a.rows);
        real *to = ROW(y, a, n);
        for (int64_t c = 0; c < a.width; c++)
            to[c] = -softplus(-(biased(from, add, c) + (real)shift)) / (real)divisor;
    }
}

void REAL(forget_gate_back)(const machine *on, matrix da, matrix dbias, matrix g, matrix a, matrix bias,
                            double shift, double divisor)
{
    PARALLEL_ROWS(n, a)
    {
        const real *from = ROW(a, a, n), *add = bias_of(bias, n / a.rows), *down = ROW(g, a, n);
        real *to = ROW(da, a, n);
        for (int64_t c = 0; c < a.width; c++)
            to[c] = down[c] * sigmoid(-(biased(from, add, c) + (real)shift)) / (real)divisor;
    }
    sum_bias(on, dbias, da);
}

void REAL(decay_gate)(const machine *on, matrix y, matrix delta, matrix a, matrix rate, matrix bias)
{
    const int64_t part = a.width / rate.width;
    PARALLEL_ROWS(n, a)
    {
        const real *from = ROW(a, a, n), *add = bias_of(bias, n / a.rows), *by = row_of(rate, n / a.rows, 0);
        real *to = ROW(y, a, n), *kept = delta.data ? ROW(delta, a, n) : NULL;
        for (int64_t c = 0; c < a.width; c++) {
            const real size = softplus(biased(from, add, c));
            to[c] = -exp(by[c / part]) * size;
            if (kept) kept[c] = size;
        }
    }
}

/* out_h = sum over rows and the columns of head h of a b. */
static void sum_heads(matrix out, matrix a, matrix b)
{
    const int64_t part = a.width / out.width;
    for (int64_t m = 0; m < a.models; m++)
        for (int64_t h = 0; h < out.width; h++) {
            real sum = 0;
            for (int64_t i = 0; i < a.rows; i++)
                for (int64_t c = h * part; c < (h + 1) * part; c++)
                    sum += row_of(a, m, i)[c] * row_of(b, m, i)[c];
            row_of(out, m, 0)[h] = sum;
        }
}

void REAL(decay_gate_back)(const machine *on, matrix da, matrix drate, matrix dbias, matrix g, matrix gdelta,
                           matrix y, matrix a, matrix rate, matrix bias)
{
    const int64_t part = a.width / rate.width;
    /* The result is e^rate times something: its derivative by the rate is itself. */
    sum_heads(drate, g, y);
    PARALLEL_ROWS(n, a)
    {
        const real *from = ROW(a, a, n), *add = bias_of(bias, n / a.rows), *by = row_of(rate, n / a.rows, 0);
        const real *down = ROW(g, a, n), *beside = gdelta.data ? ROW(gdelta, a, n) : NULL;
        real *to = ROW(da, a, n);
        for (int64_t c = 0; c < a.width; c++) {
            const real whole = (beside ? beside[c] : 0) - exp(by[c / part]) * down[c];
            to[c] = whole * sigmoid(biased(from, add, c));
        }
    }
    sum_bias(on, dbias, da);
}

void REAL(scale_rows)(const machine *on, matrix y, matrix x, matrix s)
{
    PARALLEL_ROWS(n, x)
    {
        const real *from = ROW(x, x, n), by = *ROW(s, x, n);
        real *to = ROW(y, x, n);
        for (int64_t c = 0; c < x.width; c++)
            to[c] = by * from[c];
    }
}

void REAL(scale_rows_back)(const machine *on, matrix dx, matrix ds, matrix g, matrix x, matrix s)
{
    PARALLEL_ROWS(n, x)
    {
        const real *from = ROW(x, x, n), *down = ROW(g, x, n), by = *ROW(s, x, n);
        real *to = ROW(dx, x, n), sum = 0;
        for (int64_t c = 0; c < x.width; c++) {
            sum += down[c] * from[c];
            to[c] = by * down[c];
        }
        *ROW(ds, x, n) = sum;
    }
}

void REAL(add_skip)(const machine *on, matrix y, matrix x, matrix skip)
{
    const int64_t part = x.width / skip.width;
    PARALLEL_ROWS(n, x)
    {
        const real *from = ROW(x, x, n), *by = row_of(skip, n / x.rows, 0);
        real *to = ROW(y, x, n);
        for (int64_t c = 0; c < x.width; c++)
            to[c] += by[c / part] * from[c];
    }
}

void REAL(add_skip_back)(const machine *on, matrix dx, matrix dskip, matrix g, matrix x, matrix skip)
{
    sum_heads(dskip, g, x);
    REAL(add_skip)(on, dx, g, skip);
}

void REAL(softplus)(const machine *on, matrix y, matrix x, double least)
{
    PARALLEL_ROWS(n, x)
    for (int64_t c = 0; c < x.width; c++)
        ROW(y, x, n)[c] = (real)least + softplus(ROW(x, x, n)[c]);
}

void REAL(softplus_back)(const machine *on, matrix dx, matrix g, matrix x)
{
    PARALLEL_ROWS(n, x)
    for (int64_t c = 0; c < x.width; c++)
        ROW(dx, x, n)[c] = ROW(g, x, n)[c] * sigmoid(ROW(x, x, n)[c]);
}

/* The least softplus whose square a float32 still has. */
static const double least_softplus = 1e-18;

static real inverse_of(real x)
{
    const real y = softplus(x);
    return 1 / (y > (real)least_softplus ? y : (real)least_softplus);
}

void REAL(inverse_softplus)(const machine *on, matrix y, matrix x)
{
    PARALLEL_ROWS(n, x)
    for (int64_t c = 0; c < x.width; c++)
        ROW(y, x, n)[c] = inverse_of(ROW(x, x, n)[c]);
}

void REAL(inverse_softplus_back)(const machine *on, matrix dx, matrix g, matrix x)
{
    PARALLEL_ROWS(n, x)
    for (int64_t c = 0; c < x.width; c++) {
        const real from = ROW(x, x, n)[c], y = inverse_of(from);
        ROW(dx, x, n)[c] = -ROW(g, x, n)[c] * sigmoid(from) * y * y;
    }
}
