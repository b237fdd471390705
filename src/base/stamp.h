/* SPDX-License-Identifier: MIT
 * The stamp that begins the structs of a caller. */
#ifndef LOAM_BASE_STAMP_H
#define LOAM_BASE_STAMP_H

#include "src/base/error.h"

/* Is the struct of the header that this library was compiled with? Reads no more of it than the stamp. */
loam_status stamp_check(const loam_stamp *stamp, size_t bytes, size_t args_bytes, const char *name,
                        const char *begin, loam_error *error);

#endif
