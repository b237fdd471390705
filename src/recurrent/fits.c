/* SPDX-License-Identifier: MIT
 * Limits of the recurrent kernels besides pass, mechanism and type. */
#include "src/recurrent/recurrent.h"

loam_status recurrent_fits(const loam_problem *p, loam_error *error)
{
    REQUIRE(!recurrent_positive(p), error, LOAM_EUNSUPPORTED,
            "feature_map: positive, this kernel takes features of one row, the positive_* kernels these");
    return LOAM_OK;
}

loam_status positive_fits(const loam_problem *p, loam_error *error)
{
    REQUIRE(recurrent_positive(p), error, LOAM_EUNSUPPORTED,
            "feature_map: %s, this kernel takes positive alone", loam_feature_map_name(p->feature_map));
    return LOAM_OK;
}

/* Products take 16 channels, or features, at a time; a warp has 16 channels of v, and a block four of
 * them. */
loam_status positive_hopper_fits(const loam_problem *p, loam_error *error)
{
    TRY(positive_fits(p, error));
    REQUIRE(p->dim_qk % 16 == 0 && p->dim_qk <= 64 && p->dim_v % 16 == 0 && p->dim_v <= 64, error,
            LOAM_EUNSUPPORTED, "dim_qk, dim_v: %lld, %lld, this kernel takes 16, 32, 48 or 64",
            (long long)p->dim_qk, (long long)p->dim_v);
    REQUIRE(p->features % 16 == 0 && p->features <= 256, error, LOAM_EUNSUPPORTED,
            "features: %lld, this kernel takes multiples of 16 up to 256", (long long)p->features);
    return LOAM_OK;
}

/* Tiles are 64 channels wide and have 0 for those that are not there; 16-byte copies have 8. Forward of delta
 * rules without gates of channels has instances for 256. */
loam_status recurrent_hopper_fits(const loam_problem *p, loam_error *error)
{
    const recurrent_form *form = recurrent_form_of(p->mechanism);
    const bool wide = p->pass == LOAM_FORWARD && form->delta && form->gate != GATE_CHANNEL &&
                      p->feature_map == LOAM_FEATURES_IDENTITY;
    const int64_t most = wide ? 256 : 128;
    TRY(recurrent_fits(p, error));
    REQUIRE(p->dim_qk % 8 == 0 && p->dim_qk <= most && p->dim_v % 8 == 0 && p->dim_v <= most, error,
            LOAM_EUNSUPPORTED, "dim_qk, dim_v: %lld, %lld, this kernel takes multiples of 8 up to %d here",
            (long long)p->dim_qk, (long long)p->dim_v, (int)most);
    REQUIRE(!p->normalise, error, LOAM_EUNSUPPORTED, "normalise: 1, this kernel takes 0");
    return LOAM_OK;
}
