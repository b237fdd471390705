/* SPDX-License-Identifier: MIT
 * Tables for people and for Markdown: cells in aligned columns between bars. */
#ifndef TESTS_ACCURACY_TABLE_H
#define TESTS_ACCURACY_TABLE_H

enum { TABLE_COLUMNS = 14, TABLE_CELLS = 2400, TABLE_CELL = 56 };

typedef struct table {
    int columns, cells; /* the first row is the head */
    char text[TABLE_CELLS][TABLE_CELL];
} table;

/* head: the names of the columns, "|" between them. The
 * table is on the heap: table_end prints and frees it. */
table *table_begin(const char *head);
void table_cell(table *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
void table_end(table *t);

#endif
