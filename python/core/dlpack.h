/* SPDX-License-Identifier: MIT
 * What DLPack 1 has of a tensor, and the table by which a library shows its tensors to C: newer PyTorch has
 * one, torch.Tensor.__dlpack_c_exchange_api__. Members that nothing here calls have no type. */
#ifndef LOAM_PYTHON_DLPACK_H
#define LOAM_PYTHON_DLPACK_H

#include <stdint.h>

enum { DL_MAJOR = 1, DL_CUDA = 2 };
enum { DL_INT, DL_UNSIGNED, DL_FLOAT, DL_BFLOAT = 4 };

typedef struct dl_tensor {
    char *data;
    int32_t device_kind, device;
    int32_t axes;
    uint8_t kind, bits;
    uint16_t lanes;
    const int64_t *shape, *stride; /* of elements; the tensor's own */
    uint64_t offset;               /* of the first element, in bytes */
} dl_tensor;

typedef struct dl_exchange {
    uint32_t major, minor;
    const struct dl_exchange *older;
    void *allocate, *share, *give;
    int (*look)(void *tensor, dl_tensor *to); /* not 0: an exception of Python */
    void *stream;
} dl_exchange;

#endif
