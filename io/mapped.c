/* SPDX-License-Identifier: MIT */
#define _DEFAULT_SOURCE /* madvise; POSIX has it under a name that does nothing on Linux */
#include "io/mapped.h"

#include "io/in_file.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int mapped_open(mapped *out, const char *path, io_error *error)
{
    *out = (mapped){ 0 };
    FILE *stream = in_open(path, error);
    if (!stream) return EXIT_INPUT;
    struct stat told;
    void *data = NULL;
    int failed = fstat(fileno(stream), &told);
    if (!failed && told.st_size > 0) {
        data = mmap(NULL, (size_t)told.st_size, PROT_READ, MAP_PRIVATE, fileno(stream), 0);
        failed = data == MAP_FAILED;
    }
    const int reason = errno;
    fclose(stream);
    if (failed) return io_fail(error, EXIT_INPUT, "cannot map %s: %s", path, strerror(reason));
    *out = (mapped){ data, told.st_size };
    return 0;
}

void mapped_close(mapped *m)
{
    if (m->data) munmap((void *)(uintptr_t)m->data, (size_t)m->bytes);
    *m = (mapped){ 0 };
}

void mapped_forget(const void *at, size_t bytes)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = ((uintptr_t)at + page - 1) / page * page,
                    end = ((uintptr_t)at + bytes) / page * page;
    /* Where it fails they stay. */
    if (begin < end) (void)madvise((void *)begin, end - begin, MADV_DONTNEED);
}
