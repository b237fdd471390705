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
