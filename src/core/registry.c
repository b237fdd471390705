/* SPDX-License-Identifier: MIT */
#include "src/core/registry.h"

#include "src/base/error.h"

#include <string.h>

#define FAMILY_LOCAL (1u << LOAM_SOFTMAX | 1u << LOAM_PARALLAX | 1u << LOAM_LLA)
#define TYPES_F32 (1u << LOAM_F32 | 1u << LOAM_BF16 | 1u << LOAM_F16)
#define TYPES_BF16 (1u << LOAM_BF16)
#define TYPES_ALL (TYPES_F32 | 1u << LOAM_F64)

#define KERNEL(function, family, pass, types, backend, isa) \
    { #function, family, pass, types, backend, isa, function, function##_work, NULL },
#define KERNEL_DECODE(function, partial, family, types, backend, isa) \
    { #function, family, LOAM_DECODE, types, backend, isa, function, function##_work, partial },

#ifdef LOAM_HAVE_AVX2
#define KERNEL_AVX2 KERNEL
#define KERNEL_DECODE_AVX2 KERNEL_DECODE
#else
#define KERNEL_AVX2(...)
#define KERNEL_DECODE_AVX2(...)
#endif
#ifdef LOAM_HAVE_AVX512
#define KERNEL_AVX512 KERNEL
#define KERNEL_DECODE_AVX512 KERNEL_DECODE
#else
#define KERNEL_AVX512(...)
#define KERNEL_DECODE_AVX512(...)
#endif
#ifdef LOAM_HAVE_AVX512BF16
#define KERNEL_AVX512BF16 KERNEL
#else
#define KERNEL_AVX512BF16(...)
#endif

static const kernel kernels[] = {
#include "src/core/kernels.def"
};

enum { KERNEL_COUNT = sizeof kernels / sizeof kernels[0] };

const kernel *registry_at(int index) { return index >= 0 && index < KERNEL_COUNT ? &kernels[index] : NULL; }

static bool does(const kernel *k, const loam_problem *p)
{
    return k->pass == p->pass && (k->mechanisms >> p->mechanism & 1u) && (k->dtypes >> p->dtype & 1u) &&
           (p->backend == LOAM_BACKEND_AUTO || k->backend == p->backend);
}

static loam_status choose_named(const kernel **out, const loam_problem *p, cpu_isa have, loam_error *error)
{
    for (int index = 0; index < KERNEL_COUNT; index++) {
        const kernel *k = &kernels[index];
        if (strcmp(k->name, p->kernel) == 0) {
            REQUIRE(k->isa <= have, error, LOAM_EUNSUPPORTED, "kernel: %s needs %s, this machine offers %s",
                    k->name, cpu_isa_name(k->isa), cpu_isa_name(have));
            REQUIRE(does(k, p), error, LOAM_EUNSUPPORTED, "kernel: %s does not do %s %s in %s on back end %s",
                    k->name, loam_mechanism_name(p->mechanism), loam_pass_name(p->pass),
                    loam_dtype_name(p->dtype), loam_backend_name(p->backend));
            *out = k;
            return LOAM_OK;
        }
    }
    return loam_fail(error, LOAM_EARG, "kernel: '%s' is unknown; `loam list` names them", p->kernel);
}

loam_status registry_choose(const kernel **out, const loam_problem *p, loam_error *error)
{
    const cpu_isa have = cpu_isa_allowed();
    *out = NULL;
    if (p->kernel) {
        return choose_named(out, p, have, error);
    }
    for (int index = 0; index < KERNEL_COUNT; index++) {
        if (does(&kernels[index], p) && kernels[index].isa <= have) {
            *out = &kernels[index];
        }
    }
    REQUIRE(*out, error, LOAM_EUNSUPPORTED, "backend: %s has no kernel for %s %s in %s",
            loam_backend_name(p->backend), loam_mechanism_name(p->mechanism), loam_pass_name(p->pass),
            loam_dtype_name(p->dtype));
    return LOAM_OK;
}

/* The rows in words: the distinct sets are few, so constant texts serve. */
static const char *types_text(unsigned dtypes)
{
    return dtypes == TYPES_ALL ? "f32 bf16 f16 f64" : dtypes == TYPES_BF16 ? "bf16" : "f32 bf16 f16";
}

loam_status loam_kernel_at(int index, loam_kernel_info *info)
{
    const kernel *k = registry_at(index);
    if (!k || !info) {
        return LOAM_EARG;
    }
    *info = (loam_kernel_info){ .name = k->name,
                                .mechanisms = "softmax parallax lla",
                                .pass = loam_pass_name(k->pass),
                                .dtypes = types_text(k->dtypes),
                                .backend = loam_backend_name(k->backend),
                                .isa = cpu_isa_name(k->isa),
                                .available = k->isa <= cpu_isa_allowed() };
    return LOAM_OK;
}
