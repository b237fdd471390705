/* SPDX-License-Identifier: MIT */
#include "loam.h"

/* `names` ends with NULL, which is what a value outside the enumeration gets. */
static const char *name_at(const char *const *names, int value)
{
    int count = 0;
    while (names[count]) {
        count++;
    }
    return names[value >= 0 && value < count ? value : count];
}

const char *loam_mechanism_name(loam_mechanism mechanism)
{
    static const char *const names[] = { "softmax", "parallax", "lla",         "linear", "retention", "ssd",
                                         "gla",     "delta",    "gated-delta", "kda",    "mesa",      NULL };
    return name_at(names, (int)mechanism);
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
