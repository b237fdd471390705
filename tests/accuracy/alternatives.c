/* SPDX-License-Identifier: MIT */
#include "tests/accuracy/alternatives.h"

#include "tests/accuracy/block_cg.h"
#include "tests/accuracy/processor_time.h"
#include "tests/support/memory.h"

#include <cblas.h>
#include <lapacke.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

const char *const alternative_names[ALTERNATIVES] = { "CG",       "CG, shared", "Gram f32",
                                                      "dual f32", "Gram f64",   "dual f64" };

#define REAL float
#define NAME(name) f32_##name
#define BLAS(name) cblas_s##name
#define LAPACK(name) LAPACKE_s##name
#define EXP expf
#define SQRT sqrtf
#include "tests/accuracy/alternatives.inc"
#undef REAL
#undef NAME
#undef BLAS
#undef LAPACK
#undef EXP
#undef SQRT

#define REAL double
#define NAME(name) f64_##name
#define BLAS(name) cblas_d##name
#define LAPACK(name) LAPACKE_d##name
#define EXP exp
#define SQRT sqrt
#include "tests/accuracy/alternatives.inc"

alternative_cost alternative_run(alternative which, const sample *s, double ridge, double *o)
{
    openblas_set_num_threads(1);
    switch (which) {
    case CG: return block_cg_run(s, ridge, false, o);
    case CG_SHARED: return block_cg_run(s, ridge, true, o);
    case GRAM_F32: return (alternative_cost){ f32_run(s, ridge, false, o), 0 };
    case DUAL_F32: return (alternative_cost){ f32_run(s, ridge, true, o), 0 };
    case GRAM_F64: return (alternative_cost){ f64_run(s, ridge, false, o), 0 };
    default: return (alternative_cost){ f64_run(s, ridge, true, o), 0 };
    }
}
