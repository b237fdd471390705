/* SPDX-License-Identifier: MIT */
#include "src/core/registry.h"

#include "src/base/error.h"

#include <string.h>

#define FAMILY_LOCAL (1u << LOAM_SOFTMAX | 1u << LOAM_PARALLAX | 1u << LOAM_LLA)
/* Where the probe is 0 or given. */
#define FAMILY_GIVEN (1u << LOAM_SOFTMAX | 1u << LOAM_PARALLAX)
/* Where it is solved for. */
#define FAMILY_SOLVED (1u << LOAM_LLA)
/* The recurrences whose read solves nothing. */
#define FAMILY_DIRECT \
    (1u << LOAM_LINEAR | 1u << LOAM_RETENTION | 1u << LOAM_SSD | 1u << LOAM_GLA | 1u << LOAM_DELTA | \
     1u << LOAM_GATED_DELTA | 1u << LOAM_KDA)
#define FAMILY_MESA (1u << LOAM_MESA)
#define FAMILY_RECURRENT (FAMILY_DIRECT | FAMILY_MESA)
#define TYPES_F32 (1u << LOAM_F32 | 1u << LOAM_BF16 | 1u << LOAM_F16)
#define TYPES_BF16 (1u << LOAM_BF16)
#define TYPES_ALL (TYPES_F32 | 1u << LOAM_F64)

#define KERNEL_ROW(function, family, pass, types, backend, isa, partial, gpu, fits, keys) \
    { #function,       family,  pass, types, backend, isa,  function, \
      function##_work, partial, gpu,  fits,  keys,    NULL, NULL },
#define KERNEL_GPU_OR(function, fallback, family, pass, types, gpu, fits) \
    { #function,       family, pass, types, LOAM_BACKEND_CUDA, CPU_PORTABLE, function, \
      function##_work, NULL,   gpu,  fits,  KEYS_PLAIN,        #fallback,    function##_reads },
#define KERNEL(function, family, pass, types, backend, isa) \
    KERNEL_ROW(function, family, pass, types, backend, isa, NULL, GPU_NONE, NULL, KEYS_PLAIN)
#define KERNEL_DECODE(function, partial, family, types, backend, isa) \
    KERNEL_ROW(function, family, LOAM_DECODE, types, backend, isa, partial, GPU_NONE, NULL, KEYS_PLAIN)
#define KERNEL_GPU(function, family, pass, types, gpu, fits) \
    KERNEL_ROW(function, family, pass, types, LOAM_BACKEND_CUDA, CPU_PORTABLE, NULL, gpu, fits, KEYS_PLAIN)
#define KERNEL_PATH(function, partial, family, pass, types, backend, isa, keys) \
    KERNEL_ROW(function, family, pass, types, backend, isa, partial, GPU_NONE, NULL, keys)
#define KERNEL_GPU_PATH(function, family, pass, types, gpu, fits) \
    KERNEL_ROW(function, family, pass, types, LOAM_BACKEND_CUDA, CPU_PORTABLE, NULL, gpu, fits, KEYS_TURNED)

#ifdef LOAM_HAVE_AVX2
#define KERNEL_AVX2 KERNEL
#define KERNEL_DECODE_AVX2 KERNEL_DECODE
#define KERNEL_PATH_AVX2 KERNEL_PATH
#else
#define KERNEL_AVX2(...)
#define KERNEL_PATH_AVX2(...)
#define KERNEL_DECODE_AVX2(...)
#endif
#ifdef LOAM_HAVE_AVX512
#define KERNEL_AVX512 KERNEL
#define KERNEL_DECODE_AVX512 KERNEL_DECODE
#define KERNEL_PATH_AVX512 KERNEL_PATH
#else
#define KERNEL_AVX512(...)
#define KERNEL_PATH_AVX512(...)
#define KERNEL_DECODE_AVX512(...)
#endif
#ifdef LOAM_HAVE_AVX512BF16
#define KERNEL_AVX512BF16 KERNEL
#else
#define KERNEL_AVX512BF16(...)
#endif
#ifdef LOAM_HAVE_CUDA
#define KERNEL_CUDA KERNEL_GPU
#define KERNEL_CUDA_OR KERNEL_GPU_OR
#define KERNEL_CUDA_PATH KERNEL_GPU_PATH
#else
#define KERNEL_CUDA(...)
#define KERNEL_CUDA_OR(...)
#define KERNEL_CUDA_PATH(...)
#endif

static const kernel kernels[] = {
#include "src/core/kernels.def"
};

enum { KERNEL_COUNT = sizeof kernels / sizeof kernels[0] };

const kernel *registry_at(int index) { return index >= 0 && index < KERNEL_COUNT ? &kernels[index] : NULL; }

/* Host memory is what a caller has who asks for nothing: CUDA only by name. */
static bool does(const kernel *k, const loam_problem *p)
{
    const bool backend = p->backend != LOAM_BACKEND_AUTO ? k->backend == p->backend
                                                         : p->kernel || k->backend != LOAM_BACKEND_CUDA;
    const bool keys = k->keys == KEYS_EITHER || (k->keys == KEYS_TURNED) == (p->path != 0);
    return backend && keys && k->pass == p->pass && (k->mechanisms >> p->mechanism & 1u) &&
           (k->dtypes >> p->dtype & 1u);
}

/* `capability` is that of the GPU, 0 where none was asked for. */
static bool runs_here(const kernel *k, cpu_isa have, int capability)
{
    return k->isa <= have && gpu_offers(capability, k->gpu);
}

static loam_status no_gpu(const char *what, const char *name, gpu_level level, int capability,
                          loam_error *error)
{
    return capability ? loam_fail(error, LOAM_EUNSUPPORTED, "%s: %s needs %s; the current one has %d.%d",
                                  what, name, gpu_level_words(level), capability / 10, capability % 10)
                      : loam_fail(error, LOAM_EUNSUPPORTED, "%s: %s needs %s; none found", what, name,
                                  gpu_level_words(level));
}

static const char *with_path(const loam_problem *p) { return p->path ? " with path" : ""; }

static loam_status choose_named(const kernel **out, const loam_problem *p, cpu_isa have, loam_error *error)
{
    for (int index = 0; index < KERNEL_COUNT; index++) {
        const kernel *k = &kernels[index];
        if (strcmp(k->name, p->kernel) == 0) {
            const int capability = k->gpu ? gpu_capability() : 0;
            REQUIRE(k->isa <= have, error, LOAM_EUNSUPPORTED, "kernel: %s needs %s, this machine offers %s",
                    k->name, cpu_isa_name(k->isa), cpu_isa_name(have));
            REQUIRE(does(k, p), error, LOAM_EUNSUPPORTED,
                    "kernel: %s does not do %s %s%s in %s on back end %s", k->name,
                    loam_mechanism_name(p->mechanism), loam_pass_name(p->pass), with_path(p),
                    loam_dtype_name(p->dtype), loam_backend_name(p->backend));
            if (k->fits) {
                TRY(k->fits(p, error));
            }
            if (!gpu_offers(capability, k->gpu)) {
                return no_gpu("kernel", k->name, k->gpu, capability, error);
            }
            *out = k;
            return LOAM_OK;
        }
    }
    return loam_fail(error, LOAM_EARG, "kernel: '%s' is unknown; `loam list` names them", p->kernel);
}

/* The last row that does the pass, fits the problem and runs here; where there is none, `error` says what the first that
 * came closest lacks. */
static loam_status choose_best(const kernel **out, const loam_problem *p, cpu_isa have, loam_error *error)
{
    const int capability = p->backend == LOAM_BACKEND_CUDA ? gpu_capability() : 0;
    const kernel *unfit = NULL, *absent = NULL;
    for (int index = 0; index < KERNEL_COUNT; index++) {
        const kernel *k = &kernels[index];
        if (!does(k, p)) {
            continue;
        }
        if (k->fits && k->fits(p, NULL)) {
            unfit = unfit ? unfit : k;
        } else if (!runs_here(k, have, capability)) {
            absent = absent ? absent : k;
        } else {
            *out = k;
        }
    }
    if (*out) {
        return LOAM_OK;
    }
    if (absent && absent->gpu) {
        return no_gpu("backend", loam_backend_name(p->backend), absent->gpu, capability, error);
    }
    if (unfit) {
        return unfit->fits(p, error);
    }
    return loam_fail(error, LOAM_EUNSUPPORTED, "backend: %s has no kernel for %s %s%s in %s",
                     loam_backend_name(p->backend), loam_mechanism_name(p->mechanism),
                     loam_pass_name(p->pass), with_path(p), loam_dtype_name(p->dtype));
}

#ifdef LOAM_HAVE_CUDA
enum { BUILT_WITH_CUDA = 1 };
#else
enum { BUILT_WITH_CUDA = 0 };
#endif

loam_status registry_choose(const kernel **out, const loam_problem *p, loam_error *error)
{
    const cpu_isa have = cpu_isa_allowed();
    *out = NULL;
    REQUIRE(p->backend != LOAM_BACKEND_CUDA || BUILT_WITH_CUDA, error, LOAM_EUNSUPPORTED,
            "backend: cuda is not in this build of the library (LOAM_CUDA)");
    return p->kernel ? choose_named(out, p, have, error) : choose_best(out, p, have, error);
}

/* The rows in words: the distinct sets are few, so constant texts serve. */
static const char *mechanisms_text(unsigned mechanisms)
{
    return mechanisms == FAMILY_DIRECT        ? "linear retention ssd gla delta gated-delta kda"
           : mechanisms == FAMILY_MESA        ? "mesa"
           : mechanisms == FAMILY_RECURRENT   ? "linear retention ssd gla delta gated-delta kda mesa"
           : mechanisms == FAMILY_GIVEN       ? "softmax parallax"
           : mechanisms == FAMILY_SOLVED      ? "lla"
           : mechanisms == 1u << LOAM_SOFTMAX ? "softmax"
                                              : "softmax parallax lla";
}

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
                                .mechanisms = mechanisms_text(k->mechanisms),
                                .pass = loam_pass_name(k->pass),
                                .dtypes = types_text(k->dtypes),
                                .backend = loam_backend_name(k->backend),
                                .isa = k->gpu ? gpu_level_name(k->gpu) : cpu_isa_name(k->isa),
                                .available = runs_here(k, cpu_isa_allowed(), k->gpu ? gpu_capability() : 0) };
    return LOAM_OK;
}
