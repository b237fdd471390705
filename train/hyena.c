/* SPDX-License-Identifier: MIT
 * Hyena of order 2 (Poli et al. 2023) by direct sums: p, q and v are columns of one product, which may go
 * through a short convolution,
 *
 *     u = p v, y = (h * u + D u) q, h = MLP(times) window,
 *
 * with h * u causal, channel by channel, and the MLP of sines: sin(f (x W + b)) three times, then W_4. */
#include "train/mixing.h"

#include <math.h>

enum { AT_ONCE = 128 };

void hyena_times(const machine *on, matrix times, matrix window)
{
    const double pi = 3.14159265358979323846, slow = log(100) / 1.5, fast = log(100) / 0.3;
    const int64_t length = times.rows, width = window.width;
    for (int64_t n = 0; n < times.models * length; n++) {
        const double j = (double)(n % length), t = j / (double)(length - 1);
        const double angle = 1e-4 * 2 * pi * j / (double)length, row[3] = { t, cos(angle), -sin(angle) };
        machine_set(on, times, n * 3, row, 3);
        for (int64_t first = 0; first < width; first += AT_ONCE) {
            const int64_t part = width - first < AT_ONCE ? width - first : AT_ONCE;
            double x[AT_ONCE];
            for (int64_t c = 0; c < part; c++)
                x[c] = exp(-t * (slow + (fast - slow) * (double)(first + c) / (double)(width - 1)));
            machine_set(on, window, n * width + first, x, part);
        }
    }
}

/* Layer i of the filter's MLP reads the activation before it. */
enum { SINES = 3 };
static activation raw_of(int i) { return (activation)(ACTIVE_FILTER_RAW_1 + 2 * i); }
static activation sine_of(int i) { return (activation)(ACTIVE_FILTER_1 + 2 * i); }
static activation before(int i) { return i == 0 ? ACTIVE_TIMES : sine_of(i - 1); }
static role filter_weight(int i) { return (role)(ROLE_FILTER_1 + 2 * i); }
static role bias_of(int i) { return (role)(ROLE_FILTER_BIAS_1 + 2 * i); }

static void filter_forward(const mixing *mix, const mixer_layer *layer)
{
    const machine *on = mix->on;
    const matrix *value = layer->value;
    for (int i = 0; i < SINES; i++) {
        on->op->product(on, value[raw_of(i)], value[before(i)], weight_of(layer, filter_weight(i)), 0);
        on->op->sine(on, value[sine_of(i)], value[raw_of(i)], array_of(layer, bias_of(i)),
                     array_of(layer, ROLE_FILTER_RATE));
    }
    on->op->product(on, value[ACTIVE_FILTER_RAW], value[ACTIVE_FILTER_3], weight_of(layer, ROLE_FILTER_4), 0);
    on->op->multiply(on, value[ACTIVE_FILTER], value[ACTIVE_FILTER_RAW], value[ACTIVE_WINDOW]);
}

static void filter_backward(const mixing *mix, const mixer_layer *layer)
{
    const machine *on = mix->on;
    const matrix *value = layer->value, *g = mix->gradient;
    on->op->multiply(on, g[ACTIVE_FILTER_RAW], g[ACTIVE_FILTER], value[ACTIVE_WINDOW]);
    on->op->product(on, array_gradient(layer, ROLE_FILTER_4), value[ACTIVE_FILTER_3], g[ACTIVE_FILTER_RAW],
                    PRODUCT_A_TRANSPOSED);
    on->op->product(on, g[ACTIVE_FILTER_3], g[ACTIVE_FILTER_RAW], weight_of(layer, ROLE_FILTER_4),
                    PRODUCT_B_TRANSPOSED);
    for (int i = SINES - 1; i >= 0; i--) {
        on->op->sine_back(on, g[raw_of(i)], array_gradient(layer, bias_of(i)),
                          array_gradient(layer, ROLE_FILTER_RATE), g[sine_of(i)], value[raw_of(i)],
                          array_of(layer, bias_of(i)), array_of(layer, ROLE_FILTER_RATE), i < SINES - 1);
        on->op->product(on, array_gradient(layer, filter_weight(i)), value[before(i)], g[raw_of(i)],
                        PRODUCT_A_TRANSPOSED);
        if (i > 0)
            on->op->product(on, g[before(i)], g[raw_of(i)], weight_of(layer, filter_weight(i)),
                            PRODUCT_B_TRANSPOSED);
    }
}

static matrix part_of(const mixing *mix, matrix in, int64_t which)
{
    return matrix_columns(in, which * mix->shape.width, mix->shape.width);
}

/* Rows that are not seen convolve nothing; their own D u stays. */
static bool hides(const mixing *mix) { return mix->shape.seen < mix->shape.length; }

loam_status hyena_forward(const mixing *mix, const mixer_layer *layer, loam_error *error)
{
    const machine *on = mix->on;
    const ops *op = on->op;
    const matrix *value = layer->value, in = value[ACTIVE_IN_CONV];
    (void)error;
    filter_forward(mix, layer);
    op->product(on, value[ACTIVE_IN], value[ACTIVE_X], weight_of(layer, ROLE_IN), 0);
    if (layer->array[ROLE_IN_TAPS])
        op->short_conv(on, in, value[ACTIVE_IN], array_of(layer, ROLE_IN_TAPS), mix->shape.length,
                       mix->shape.seen);
    op->multiply(on, value[ACTIVE_V], part_of(mix, in, 0), part_of(mix, in, 2));
    if (hides(mix)) {
        op->copy(on, value[ACTIVE_V_SEEN], value[ACTIVE_V]);
        op->clear_rows(on, value[ACTIVE_V_SEEN], mix->shape.length, mix->shape.seen);
    }
    op->long_conv(on, value[ACTIVE_O], value[ACTIVE_V_SEEN], value[ACTIVE_FILTER]);
    op->add_skip(on, value[ACTIVE_O], value[ACTIVE_V], array_of(layer, ROLE_SKIP));
    op->multiply(on, value[ACTIVE_Y], value[ACTIVE_O], part_of(mix, in, 1));
    return LOAM_OK;
}

loam_status hyena_backward(const mixing *mix, const mixer_layer *layer, loam_error *error)
{
    const machine *on = mix->on;
    const ops *op = on->op;
    const matrix *value = layer->value, *g = mix->gradient;
    const matrix in = value[ACTIVE_IN_CONV], din = g[ACTIVE_IN_CONV];
    (void)error;
    op->multiply(on, g[ACTIVE_O], g[ACTIVE_Y], part_of(mix, in, 1));
    op->multiply(on, part_of(mix, din, 1), g[ACTIVE_Y], value[ACTIVE_O]);
    op->long_conv_back(on, g[ACTIVE_V_SEEN], g[ACTIVE_FILTER], g[ACTIVE_O], value[ACTIVE_V_SEEN],
                       value[ACTIVE_FILTER]);
    if (hides(mix)) {
        op->clear_rows(on, g[ACTIVE_V_SEEN], mix->shape.length, mix->shape.seen);
        op->copy(on, g[ACTIVE_V], g[ACTIVE_V_SEEN]);
    }
    op->add_skip_back(on, g[ACTIVE_V], array_gradient(layer, ROLE_SKIP), g[ACTIVE_O], value[ACTIVE_V],
                      array_of(layer, ROLE_SKIP));
    op->multiply(on, part_of(mix, din, 0), g[ACTIVE_V], part_of(mix, in, 2));
    op->multiply(on, part_of(mix, din, 2), g[ACTIVE_V], part_of(mix, in, 0));
    if (layer->array[ROLE_IN_TAPS])
        op->short_conv_back(on, g[ACTIVE_IN], array_gradient(layer, ROLE_IN_TAPS), din, value[ACTIVE_IN],
                            array_of(layer, ROLE_IN_TAPS), mix->shape.length, mix->shape.seen);
    op->product(on, array_gradient(layer, ROLE_IN), value[ACTIVE_X], g[ACTIVE_IN], PRODUCT_A_TRANSPOSED);
    op->product(on, g[ACTIVE_X], g[ACTIVE_IN], weight_of(layer, ROLE_IN), PRODUCT_B_TRANSPOSED);
    filter_backward(mix, layer);
    return LOAM_OK;
}
