/* SPDX-License-Identifier: MIT */
#include "tests/accuracy/table.h"

#include "tests/support/memory.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

table *table_begin(const char *head)
{
    table *t = memory_zeroed(1, sizeof *t);
    for (const char *at = head; at; at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL)
        table_cell(t, "%.*s", (int)strcspn(at, "|"), at);
    t->columns = t->cells;
    return t;
}

void table_cell(table *t, const char *format, ...)
{
    if (t->cells == TABLE_CELLS) {
        fprintf(stderr, "loam-accuracy: a table has more than %d cells\n", TABLE_CELLS);
        exit(EXIT_FAILURE);
    }
    va_list list;
    va_start(list, format);
    vsnprintf(t->text[t->cells++], TABLE_CELL, format, list);
    va_end(list);
}

void table_end(table *t)
{
    int width[TABLE_COLUMNS] = { 0 };
    for (int i = 0; i < t->cells; i++) {
        const int w = (int)strlen(t->text[i]), c = i % t->columns;
        width[c] = w > width[c] ? w : width[c];
    }
    for (int i = 0; i < t->cells; i++) {
        const int c = i % t->columns;
        printf("| %-*s%s", width[c], t->text[i], c == t->columns - 1 ? " |\n" : " ");
        for (int h = 0; i == t->columns - 1 && h < t->columns; h++) {
            printf("|%.*s%s", width[h] + 2, "----------------------------------------------------------",
                   h == t->columns - 1 ? "|\n" : "");
        }
    }
    printf("\n");
    free(t);
}
