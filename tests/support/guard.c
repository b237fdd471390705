/* SPDX-License-Identifier: MIT */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "tests/support/guard.h"

#include "cli/device.h"
#include "tests/support/memory.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

guard guard_make(size_t bytes, int at_end)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t room = (bytes + page - 1) / page * page, all = room + 2 * page;
    unsigned char *map = mmap(NULL, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED || (room && mprotect(map + page, room, PROT_READ | PROT_WRITE))) {
        perror("guard_make");
        exit(EXIT_FAILURE);
    }
    guard g = { .bytes = bytes, .map = map, .room = map + page, .map_bytes = all, .room_bytes = room };
    g.data = at_end ? g.room + room - bytes : g.room;
    memset(g.room, GUARD_POISON, room);
    return g;
}

static int all_poison(const unsigned char *from, size_t bytes)
{
    return bytes == 0 || (from[0] == GUARD_POISON && memcmp(from, from + 1, bytes - 1) == 0);
}

enum { MARGIN = 1024, ALIGNMENT = 256 };

/* A device that fails in a test cannot go on: abort, so that whoever traps crashes can name the case. */
static void must(const char *failed)
{
    if (failed) {
        fprintf(stderr, "tests: CUDA: %s\n", failed);
        abort();
    }
}

void guard_to_device(guard *g, int scratch)
{
    const int tight = getenv("LOAM_CHECK_TIGHT") != NULL;
    void *twin;
    g->before = (uintptr_t)g->data % ALIGNMENT + (tight ? 0 : MARGIN);
    g->after = tight ? 0 : MARGIN;
    const size_t all = g->before + g->bytes + g->after;
    must(device_alloc(&twin, all));
    g->twin = twin;
    g->unset = tight && scratch;
    if (!g->unset) {
        unsigned char *image = memory_zeroed(all, 1);
        memset(image, GUARD_POISON, all);
        memcpy(image + g->before, g->data, g->bytes);
        must(device_upload(g->twin, image, all));
        free(image);
    }
}

void guard_from_device(guard *g)
{
    if (!g->twin || g->unset) return;
    const size_t all = g->before + g->bytes + g->after;
    unsigned char *image = memory_zeroed(all, 1);
    must(device_download(image, g->twin, all));
    memcpy(g->data, image + g->before, g->bytes);
    g->twin_hurt |= g->after &&
                    (!all_poison(image, g->before) || !all_poison(image + g->before + g->bytes, g->after));
    free(image);
}

void *guard_address(const guard *g) { return g->twin ? g->twin + g->before : g->data; }

int guard_intact(const guard *g)
{
    const size_t before = (size_t)(g->data - g->room);
    return !g->twin_hurt && all_poison(g->room, before) &&
           all_poison(g->data + g->bytes, g->room_bytes - before - g->bytes);
}

int guard_untouched(const guard *g) { return all_poison(g->data, g->bytes); }

void guard_free(guard *g)
{
    device_free(g->twin);
    if (g->map) munmap(g->map, g->map_bytes);
    memset(g, 0, sizeof *g);
}
