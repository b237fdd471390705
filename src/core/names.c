/* SPDX-License-Identifier: MIT */
#include "loam.h"
#include "src/core/mechanisms.h"

/* `names` ends with NULL, which is what a value outside the enumeration gets. */
static const char *name_at(const char *const *names, int value)
{
    int count = 0;
    while (names[count])
        count++;
    return names[value >= 0 && value < count ? value : count];
}

#define NAME(id, name, ...) [LOAM_##id] = name,

const char *loam_mechanism_name(loam_mechanism mechanism)
{
    static const char *const names[] = { MECHANISMS(NAME) };
    return (size_t)mechanism < MECHANISM_COUNT ? names[mechanism] : NULL;
}

const char *loam_pass_name(loam_pass pass)
{
    static const char *const names[] = { "forward", "backward", "decode", NULL };
    return name_at(names, (int)pass);
}

const char *loam_dtype_name(loam_dtype dtype)
{
    static const char *const names[] = { "f32", "bf16", "f16", "f64", NULL };
    return name_at(names, (int)dtype);
}

const char *loam_backend_name(loam_backend backend)
{
    static const char *const names[] = { "auto", "reference", "cpu", "cuda", NULL };
    return name_at(names, (int)backend);
}

const char *loam_family_name(loam_family family)
{
    static const char *const names[] = { "local", "recurrent", NULL };
    return name_at(names, (int)family);
}

const char *loam_score_name(loam_score score)
{
    static const char *const names[] = { "dot", "rbf", NULL };
    return name_at(names, (int)score);
}

const char *loam_ridge_axes_name(loam_ridge_axes axes)
{
    static const char *const names[] = { "number", "head", "token", "channel", "head-channel", NULL };
    return name_at(names, (int)axes);
}

const char *loam_ridge_unit_name(loam_ridge_unit unit)
{
    static const char *const names[] = { "normalised", "max", "trace", NULL };
    return name_at(names, (int)unit);
}

const char *loam_feature_map_name(loam_feature_map map)
{
    static const char *const names[] = { "identity", "elu", "unit", "positive", NULL };
    return name_at(names, (int)map);
}

const char *loam_projection_name(loam_projection projection)
{
    static const char *const names[] = { "normal", "orthogonal", "dct", NULL };
    return name_at(names, (int)projection);
}

const char *loam_rope_layout_name(loam_rope_layout turns)
{
    static const char *const names[] = { "half", "interleaved", NULL };
    return name_at(names, (int)turns);
}

const char *loam_row_code_name(loam_row_code code)
{
    static const char *const names[] = { "solved", "empty", "singular", NULL };
    return name_at(names, (int)code);
}

const char *loam_solver_name(loam_solver solver)
{
    static const char *const names[] = { "none", "cg", "dual", "gram", NULL };
    return name_at(names, (int)solver);
}
