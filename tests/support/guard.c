/* SPDX-License-Identifier: MIT */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "tests/support/guard.h"

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
    guard g = { NULL, bytes, map, map + page, all, room };
    g.data = at_end ? g.room + room - bytes : g.room;
    memset(g.room, GUARD_POISON, room);
    return g;
}

static int all_poison(const unsigned char *from, size_t bytes)
{
    return bytes == 0 || (from[0] == GUARD_POISON && memcmp(from, from + 1, bytes - 1) == 0);
}

int guard_intact(const guard *g)
{
    const size_t before = (size_t)(g->data - g->room);
    return all_poison(g->room, before) && all_poison(g->data + g->bytes, g->room_bytes - before - g->bytes);
}

int guard_untouched(const guard *g) { return all_poison(g->data, g->bytes); }

void guard_free(guard *g)
{
    if (g->map) {
        munmap(g->map, g->map_bytes);
    }
    memset(g, 0, sizeof *g);
}
