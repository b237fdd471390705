/* SPDX-License-Identifier: MIT */
#include "train/mixing.h"

loam_status mixer_forward(const mixing *mix, const mixer_layer *layer, loam_error *error)
{
    static mixer_pass *const passes[] = { plain_forward, mamba_forward, hyena_forward };
    return passes[mix->row->block](mix, layer, error);
}

loam_status mixer_backward(const mixing *mix, const mixer_layer *layer, loam_error *error)
{
    static mixer_pass *const passes[] = { plain_backward, mamba_backward, hyena_backward };
    return passes[mix->row->block](mix, layer, error);
}

void mixing_add_low(const mixing *mix, const mixer_layer *layer, int which, matrix y, matrix x, bool alone)
{
    const machine *on = mix->on;
    const matrix low = layer->value[ACTIVE_Q_LOW + which];
    if (!mixing_low(layer, which)) return;
    on->op->product(on, low, x, weight_of(layer, (role)(ROLE_Q_LOW_1 + which)), 0);
    on->op->product(on, y, low, weight_of(layer, (role)(ROLE_Q_LOW_2 + which)), alone ? 0 : PRODUCT_ADD);
}

void mixing_low_back(const mixing *mix, const mixer_layer *layer, int which, matrix g, matrix x, matrix dx)
{
    const machine *on = mix->on;
    const role first = (role)(ROLE_Q_LOW_1 + which), second = (role)(ROLE_Q_LOW_2 + which);
    const matrix low = layer->value[ACTIVE_Q_LOW + which], dlow = mix->gradient[ACTIVE_Q_LOW + which];
    if (!mixing_low(layer, which)) return;
    mixing_weight_gradient(on, layer->array[second], low, g);
    on->op->product(on, dlow, g, weight_of(layer, second), PRODUCT_B_TRANSPOSED);
    mixing_weight_gradient(on, layer->array[first], x, dlow);
    on->op->product(on, dx, dlow, weight_of(layer, first), PRODUCT_B_TRANSPOSED | PRODUCT_ADD);
}
