/* SPDX-License-Identifier: MIT
 * Growing lists of bytes and of ids. Where memory runs out they stay as they are and `failed` stays set, so
 * that many appends need one check. */
#ifndef LOAM_TEXT_BUFFER_H
#define LOAM_TEXT_BUFFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct buffer {
    char *at;
    size_t count, room;
    bool failed;
} buffer;

/* Room for so many bytes behind those there; false without memory. */
bool buffer_reserve(buffer *b, size_t more);
void buffer_put(buffer *b, const char *bytes, size_t count);
void buffer_free(buffer *b); /* and zeroes it */

typedef struct id_list {
    int32_t *at;
    size_t count, room;
    bool failed;
} id_list;

bool ids_reserve(id_list *list, size_t more);
void ids_put(id_list *list, const int32_t *id, size_t count);

#endif
