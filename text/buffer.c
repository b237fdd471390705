/* SPDX-License-Identifier: MIT */
#include "text/buffer.h"

#include <stdlib.h>
#include <string.h>

enum { ROOM_MIN = 64 };

/* `memory` of *room items, enlarged by half at least to hold `count + more`; NULL, and *room as it was, where
 * that is impossible. */
static void *enlarged(void *memory, size_t *room, size_t count, size_t more, size_t bytes)
{
    const size_t most = PTRDIFF_MAX / bytes;
    if (count > most || more > most - count) return NULL;
    size_t next = *room > most / 3 * 2 ? most : *room + *room / 2;
    if (next < count + more) next = count + more;
    if (next < ROOM_MIN) next = ROOM_MIN;
    void *larger = realloc(memory, next * bytes);
    if (larger) *room = next;
    return larger;
}

bool buffer_reserve(buffer *b, size_t more)
{
    if (b->failed) return false;
    if (more <= b->room - b->count && b->at) return true;
    char *larger = enlarged(b->at, &b->room, b->count, more, 1);
    b->failed = !larger;
    if (larger) b->at = larger;
    return !b->failed;
}

void buffer_put(buffer *b, const char *bytes, size_t count)
{
    if (!buffer_reserve(b, count) || count == 0) return;
    memcpy(b->at + b->count, bytes, count);
    b->count += count;
}

void buffer_free(buffer *b)
{
    free(b->at);
    *b = (buffer){ 0 };
}

bool ids_reserve(id_list *list, size_t more)
{
    if (list->failed) return false;
    if (more <= list->room - list->count && list->at) return true;
    int32_t *larger = enlarged(list->at, &list->room, list->count, more, sizeof *list->at);
    list->failed = !larger;
    if (larger) list->at = larger;
    return !list->failed;
}

void ids_put(id_list *list, const int32_t *id, size_t count)
{
    if (!ids_reserve(list, count)) return;
    for (size_t i = 0; i < count; i++)
        list->at[list->count + i] = id[i];
    list->count += count;
}
