/* SPDX-License-Identifier: MIT */
#include "src/core/registry.h"

#include "src/base/error.h"
#include "src/core/mechanisms.h"
#include "src/local/local.h"
#include "src/recurrent/recurrent.h"

#include <string.h>

/* ------------------------------------------------------------------ rows
 * The bits of a list of mechanisms or types, and its words, which each bring a space before them. */
#define LIST_BIT(id, ...) | 1u << LOAM_##id
#define LIST_WORD(id, name, ...) " " name
#define OF(list) .mechanisms = 0 list(LIST_BIT), .mechanism_names = &list(LIST_WORD)[1]
#define FORWARD(list) .pass = LOAM_FORWARD, OF(list)
#define BACKWARD(list) .pass = LOAM_BACKWARD, OF(list)
#define DECODE(list) .pass = LOAM_DECODE, OF(list)
#define PATH .keys = KEYS_TURNED

#define TYPE_BF16(X) X(BF16, "bf16")
#define TYPES_16(X) TYPE_BF16(X) X(F16, "f16")
#define TYPES_F32(X) X(F32, "f32") TYPES_16(X)
#define TYPES_ALL(X) TYPES_F32(X) X(F64, "f64")
#define TYPES(list) .dtypes = 0 list(LIST_BIT), .type_names = &list(LIST_WORD)[1]

#define ROW(function, ...) { .name = #function, .run = function, .work = function##_work, __VA_ARGS__ },
#define ROW_CPU(function, level, types, ...) \
    ROW(function, .backend = LOAM_BACKEND_CPU, .isa = level, TYPES(types), __VA_ARGS__)
#define ROW_GPU(function, level, types, ...) \
    ROW(function, .backend = LOAM_BACKEND_CUDA, .gpu = level, TYPES(types), __VA_ARGS__)

/* What this build has. */
#ifdef LOAM_HAVE_AVX2
#define ROW_AVX2 ROW_CPU
#else
#define ROW_AVX2(...)
#endif
#ifdef LOAM_HAVE_AVX512
#define ROW_AVX512 ROW_CPU
#else
#define ROW_AVX512(...)
#endif
#ifdef LOAM_HAVE_AVX512BF16
#define ROW_AVX512BF16 ROW_CPU
#else
#define ROW_AVX512BF16(...)
#endif
#ifdef LOAM_HAVE_AMXBF16
#define ROW_AMXBF16 ROW_CPU
#else
#define ROW_AMXBF16(...)
#endif
#ifdef LOAM_HAVE_CUDA
#define ROW_CUDA ROW_GPU
#else
#define ROW_CUDA(...)
#endif

/* The rows of a line of kernels.def, one macro for each machine. */
#define ROWS_REFERENCE(name, ...) \
    ROW(name##_ref, .backend = LOAM_BACKEND_REFERENCE, TYPES(TYPES_ALL), __VA_ARGS__)
#define ROWS_REFERENCE_PARTIAL(name, function, ...) \
    ROWS_REFERENCE(name, .partial = function##_ref, __VA_ARGS__)
#define ROWS_CPU(name, ...) \
    ROW_CPU(name##_portable, CPU_PORTABLE, TYPES_F32, __VA_ARGS__) \
    ROW_AVX2(name##_avx2, CPU_AVX2, TYPES_F32, __VA_ARGS__) \
    ROW_AVX512(name##_avx512, CPU_AVX512, TYPES_F32, __VA_ARGS__)
#define ROWS_CPU_PARTIAL(name, function, ...) \
    ROW_CPU(name##_portable, CPU_PORTABLE, TYPES_F32, .partial = function##_portable, __VA_ARGS__) \
    ROW_AVX2(name##_avx2, CPU_AVX2, TYPES_F32, .partial = function##_avx2, __VA_ARGS__) \
    ROW_AVX512(name##_avx512, CPU_AVX512, TYPES_F32, .partial = function##_avx512, __VA_ARGS__)
#define ROWS_CPU_BF16(name, ...) \
    ROW_AVX512BF16(name##_avx512bf16, CPU_AVX512BF16, TYPE_BF16, __VA_ARGS__) \
    ROW_AMXBF16(name##_amxbf16, CPU_AMXBF16, TYPE_BF16, __VA_ARGS__)
#define ROWS_CUDA(name, ...) ROW_CUDA(name##_cuda, GPU_CUDA, TYPES_F32, __VA_ARGS__)
#define ROWS_CUDA_BF16(name, ...) ROW_CUDA(name##_cuda, GPU_CUDA, TYPE_BF16, __VA_ARGS__)
#define ROW_TILED(function, level, types, other, ...) \
    ROW_CUDA(function, level, types, .fallback = #other, .reads = function##_reads, __VA_ARGS__)
#define ROWS_HOPPER(name, ...) ROW_TILED(name##_hopper, GPU_HOPPER, TYPES_16, __VA_ARGS__)
#define ROWS_HOPPER_BF16(name, ...) ROW_TILED(name##_hopper, GPU_HOPPER, TYPE_BF16, __VA_ARGS__)

#define KERNEL(machine, ...) ROWS_##machine(__VA_ARGS__)
static const kernel kernels[] = {
#include "src/local/kernels.def"
#include "src/recurrent/kernels.def"
};

enum { KERNEL_COUNT = sizeof kernels / sizeof kernels[0] };

/* ------------------------------------------------------------------ the choice among them */

const kernel *registry_at(int index) { return index >= 0 && index < KERNEL_COUNT ? &kernels[index] : NULL; }

/* A caller who names no back end has host memory: CUDA only where it is asked for. */
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
            if (k->fits) TRY(k->fits(p, error));
            if (!gpu_offers(capability, k->gpu)) return no_gpu("kernel", k->name, k->gpu, capability, error);
            *out = k;
            return LOAM_OK;
        }
    }
    return loam_fail(error, LOAM_EARG, "kernel: '%s' is unknown; `loam list` names them", p->kernel);
}

/* The last row that does the pass, fits the problem, runs here and is worth it. Where there is none, `error`
 * says what is missing: a GPU, else what the first row that does the pass does not fit. */
static loam_status choose_best(const kernel **out, const loam_problem *p, cpu_isa have, loam_error *error)
{
    const int capability = p->backend == LOAM_BACKEND_CUDA ? gpu_capability() : 0;
    const kernel *unfit = NULL, *absent = NULL;
    for (int index = 0; index < KERNEL_COUNT; index++) {
        const kernel *k = &kernels[index];
        if (!does(k, p)) continue;
        if (k->fits && k->fits(p, NULL))
            unfit = unfit ? unfit : k;
        else if (!runs_here(k, have, capability))
            absent = absent ? absent : k;
        else if (cpu_isa_pays_here(k->isa))
            *out = k;
    }
    if (*out) return LOAM_OK;
    if (absent && absent->gpu)
        return no_gpu("backend", loam_backend_name(p->backend), absent->gpu, capability, error);
    if (unfit) return unfit->fits(p, error);
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

loam_status loam_kernel_at(int index, loam_kernel_info *info)
{
    const kernel *k = registry_at(index);
    if (!k || !info) return LOAM_EARG;
    *info = (loam_kernel_info){ .name = k->name,
                                .mechanisms = k->mechanism_names,
                                .pass = loam_pass_name(k->pass),
                                .dtypes = k->type_names,
                                .backend = loam_backend_name(k->backend),
                                .isa = k->gpu ? gpu_level_name(k->gpu) : cpu_isa_name(k->isa),
                                .available = runs_here(k, cpu_isa_allowed(), k->gpu ? gpu_capability() : 0) };
    return LOAM_OK;
}
