/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "io/nearest.h"

#include <ctype.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

enum { WORD_MAX = 63 };

static int least(int a, int b) { return a < b ? a : b; }

static bool same(char a, char b) { return tolower((unsigned char)a) == tolower((unsigned char)b); }

static int word_length(const char *word) { return (int)strnlen(word, WORD_MAX); }

int edit_distance(const char *a, const char *b)
{
    int a_length = word_length(a), b_length = word_length(b);
    int rows[3][WORD_MAX + 1];
    int *before = rows[0], *last = rows[1], *row = rows[2];
    for (int j = 0; j <= b_length; j++)
        last[j] = j;
    for (int i = 1; i <= a_length; i++) {
        row[0] = i;
        for (int j = 1; j <= b_length; j++) {
            row[j] = least(last[j - 1] + !same(a[i - 1], b[j - 1]), 1 + least(last[j], row[j - 1]));
            if (i > 1 && j > 1 && same(a[i - 1], b[j - 2]) && same(a[i - 2], b[j - 1]))
                row[j] = least(row[j], before[j - 2] + 1);
        }
        int *reused = before;
        before = last, last = row, row = reused;
    }
    return last[b_length];
}

const char *nearest_name(const char *word, const char *const *names)
{
    const char *nearest = NULL;
    int length = word_length(word), nearest_distance = length < 2 ? 0 : 2 + length / 3;
    for (; *names; names++) {
        int distance = edit_distance(word, *names);
        if (length >= 2 && strncmp(word, *names, strlen(word)) == 0) distance = 1;
        if (distance < nearest_distance) nearest = *names, nearest_distance = distance;
    }
    return nearest;
}
