/* SPDX-License-Identifier: MIT
 * Where a model lives: its operations, and its memory. */
#ifndef LOAM_TRAIN_MACHINE_H
#define LOAM_TRAIN_MACHINE_H

#include "train/parameter.h"

#include <stdbool.h>
#include <stddef.h>

typedef enum product_how {
    PRODUCT_A_TRANSPOSED = 1,
    PRODUCT_B_TRANSPOSED = 2,
    PRODUCT_ADD = 4,  /* to what `out` holds */
    PRODUCT_EXACT = 8 /* of operands as they are; else they may be rounded to the machine's `operand` */
} product_how;

typedef struct machine machine;

typedef struct ops {
#define OP(name, parameters) void(*name) parameters;
#include "train/ops.def"
#undef OP
} ops;

struct machine {
    const ops *op;
    loam_dtype dtype;        /* of weights, moments, the residual stream, norms, gates and losses */
    loam_dtype operand;      /* of what products and attention read: dtype, or LOAM_BF16 */
    int threads;             /* of a CPU */
    struct machine_gpu *gpu; /* NULL: the CPU */
};

/* The CPU: dtype LOAM_F32, or LOAM_F64 to check by. threads 0: all that OpenMP offers. From now on OpenBLAS
 * takes one thread a call in this process: blocks of rows are shared out here, so that bits do not depend on
 * threads. */
machine machine_cpu(loam_dtype dtype, int threads);
/* The current CUDA device, with operands of LOAM_F32 or LOAM_BF16 and float32 for all else. Operations are
 * launched and not waited for; what goes wrong is kept for the next machine_download. Refused where the
 * build, a device or cuBLASLt, which is found at run time, is missing. */
loam_status machine_cuda(machine *made, loam_dtype operand, loam_error *error);
void machine_close(machine *on);

/* What the library's calls are told: its back end, and the stream of a GPU. */
static inline loam_backend machine_backend(const machine *on)
{
    return on->gpu ? LOAM_BACKEND_CUDA : LOAM_BACKEND_AUTO;
}
void *machine_stream(const machine *on);

/* From host memory to the machine's, or back after all that was launched before. Host and machine may be the
 * same memory of a CPU. */
void machine_upload(const machine *on, void *to, const void *from, size_t bytes);
loam_status machine_download(const machine *on, void *to, const void *from, size_t bytes, loam_error *error);
/* matrix_set of an array of on->dtype in the machine's memory. */
void machine_set(const machine *on, matrix a, int64_t first, const double *x, int64_t count);

/* What is launched from `begin` to `end` is recorded, and done by each replay; of a GPU alone. All of it must
 * have been done once before, and shapes and addresses are kept: what changes from step to step is data. */
typedef struct machine_recording machine_recording;
void machine_record_begin(const machine *on);
loam_status machine_record_end(const machine *on, machine_recording **made, loam_error *error);
void machine_replay(const machine *on, const machine_recording *what);
void machine_forget(machine_recording *what); /* NULL is allowed */

/* Of what order_tokens makes. */
size_t machine_order_bytes(const machine *on, int64_t models, int64_t rows);

enum { MACHINE_NAME = 192 };
/* What sums depend on besides the program and the library's kernels: "openblas Haswell"; "cuda NVIDIA H200,
 * cuBLASLt 130100". */
const char *machine_name(const machine *on, char text[MACHINE_NAME]);

/* Memory in two passes of the same calls: without a base takes are added up, with one they are made. */
typedef struct memory {
    struct machine_gpu *gpu; /* whose it is; NULL: host memory */
    char *base;
    size_t used; /* SIZE_MAX: it overflowed */
} memory;

void *memory_take(memory *from, int64_t count, size_t bytes);
matrix memory_matrix(memory *from, loam_dtype dtype, int64_t models, int64_t rows, int64_t width);
/* Zeroed room of the machine for what was added up, and begins anew; false where there is none. */
bool memory_open(memory *m, const machine *on);
void memory_close(memory *m);

#endif
