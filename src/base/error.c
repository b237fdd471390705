/* SPDX-License-Identifier: MIT */
#include "src/base/error.h"

#include <stdarg.h>
#include <stdio.h>

loam_status loam_fail(loam_error *error, loam_status status, const char *format, ...)
{
    if (error) {
        va_list arguments;
        va_start(arguments, format);
        error->status = status;
        vsnprintf(error->text, sizeof error->text, format, arguments);
        va_end(arguments);
    }
    return status;
}

loam_status loam_succeed(loam_error *error)
{
    if (error) {
        error->status = LOAM_OK;
        error->text[0] = '\0';
    }
    return LOAM_OK;
}

const char *loam_status_text(loam_status status)
{
    switch (status) {
    case LOAM_OK: return "success";
    case LOAM_EARG: return "invalid argument";
    case LOAM_ESHAPE: return "shape mismatch or size out of range";
    case LOAM_EVALUE: return "value out of range";
    case LOAM_EUNSUPPORTED: return "not supported by any kernel of this build and machine";
    case LOAM_EMEMORY: return "out of memory";
    case LOAM_ECUDA: return "a CUDA call failed";
    }
    return "unknown status";
}
