/* SPDX-License-Identifier: MIT */
#define _DEFAULT_SOURCE /* madvise; POSIX has it under a name that does nothing on Linux */
#include "io/mapped.h"

#include "io/in_file.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

/* With a page that is read Linux maps others within as many bytes of it. A multiple of the page. */
enum { AROUND = 1 << 16 };

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

void mapped_forget(const mapped *m, const void *at, size_t bytes)
{
    const size_t size = (size_t)m->bytes, place = (size_t)((const unsigned char *)at - m->data);
    /* From the mapping's first page on; never beyond it, where other memory lies. */
    const size_t begin = (place < AROUND ? 0 : place - AROUND) / AROUND * AROUND;
    const size_t end = size - place - bytes < AROUND ? size : place + bytes + AROUND;
    assert(place <= size && bytes <= size - place);
    /* Where it fails they stay. */
    if (bytes > 0) (void)madvise((void *)(uintptr_t)(m->data + begin), end - begin, MADV_DONTNEED);
}
