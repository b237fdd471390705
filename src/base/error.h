/* SPDX-License-Identifier: MIT
 * Statuses with a message, which names the argument, the value found and the value expected. */
#ifndef LOAM_BASE_ERROR_H
#define LOAM_BASE_ERROR_H

#include "loam.h"

#ifdef __cplusplus
extern "C" {
#endif

loam_status loam_fail(loam_error *error, loam_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Clears *error, which may be NULL, and returns LOAM_OK. */
loam_status loam_succeed(loam_error *error);

#ifdef __cplusplus
}
#endif

#define TRY(call) \
    do { \
        const loam_status try_status = (call); \
        if (try_status != LOAM_OK) { \
            return try_status; \
        } \
    } while (0)

#define REQUIRE(condition, error, status, ...) \
    do { \
        if (!(condition)) { \
            return loam_fail(error, status, __VA_ARGS__); \
        } \
    } while (0)

#endif
