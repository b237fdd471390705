/* SPDX-License-Identifier: MIT
 * What separates the fields of a CSV file, told by its first lines. */
#ifndef LOAM_IO_CSV_DELIMITER_H
#define LOAM_IO_CSV_DELIMITER_H

#include <stddef.h>

/* ',', ';' or '\t'. A separator must part at least one more line into as many fields as the first line. Of
 * several, the one that does so for most lines is taken, then the one whose fields are most often numbers,
 * then the one with most fields. Where none does, it is the comma: one column, or lines of unequal length. */
char csv_guess_delimiter(const char *bytes, size_t count);

/* "','", "';'" or "tab", for messages. */
const char *csv_delimiter_name(char delimiter);

#endif
