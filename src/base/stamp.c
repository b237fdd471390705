/* SPDX-License-Identifier: MIT */
#include "src/base/stamp.h"

loam_status stamp_check(const loam_stamp *stamp, size_t bytes, size_t args_bytes, const char *name,
                        const char *begin, loam_error *error)
{
    const uint64_t version = stamp->version;
    REQUIRE(version || stamp->bytes || stamp->args_bytes, error, LOAM_EARG,
            "%s: without a stamp; begin with %s", name, begin);
    REQUIRE(version == LOAM_VERSION_NUMBER, error, LOAM_EARG,
            "%s: stamp of loam.h %llu.%llu.%llu, expected %d.%d.%d, the library's; begin with %s and compile "
            "with its header",
            name, (unsigned long long)version / 10000, (unsigned long long)version / 100 % 100,
            (unsigned long long)version % 100, LOAM_VERSION_MAJOR, LOAM_VERSION_MINOR, LOAM_VERSION_PATCH,
            begin);
    REQUIRE(
        stamp->bytes == bytes && stamp->args_bytes == args_bytes, error, LOAM_EARG,
        "%s: stamp of structs of %llu and %llu bytes, expected %zu and %zu; begin with %s and compile with "
        "the library's header",
        name, (unsigned long long)stamp->bytes, (unsigned long long)stamp->args_bytes, bytes, args_bytes,
        begin);
    return LOAM_OK;
}
