/* SPDX-License-Identifier: MIT
 * What a person probably meant: names near a misspelt word. */
#ifndef LOAM_IO_NEAREST_H
#define LOAM_IO_NEAREST_H

/* Insertions, deletions, replacements and swaps of neighbours that turn a into b, case ignored; words longer
 * than 63 characters are compared by their first 63. */
int edit_distance(const char *a, const char *b);

/* The entry of `names` (NULL-terminated) nearest to `word`, or NULL where none is near. A name that begins
 * with the word is near. */
const char *nearest_name(const char *word, const char *const *names);

#endif
