/* SPDX-License-Identifier: MIT
 * Copies of the tiny models, to be spoiled, in a directory of the test's own. */
#ifndef LOAM_TESTS_LM_FOLDER_H
#define LOAM_TESTS_LM_FOLDER_H

#include <stdbool.h>
#include <stddef.h>

enum { FOLDER_MODELS = 9 };
/* Paths within LM_TEST_DATA. */
extern const char *const folder_models[FOLDER_MODELS];

/* cmocka group fixtures: make a fresh directory and go there; leave and remove it, which must be empty. */
int folder_setup(void **state);
int folder_teardown(void **state);

void folder_copy(const char *model, const char *to);
void folder_remove(const char *folder);
void folder_unlink(const char *folder, const char *file);
bool folder_is_file(const char *file); /* a model by itself: .gguf */

/* malloc's. */
char *folder_read(const char *folder, const char *file, size_t *count);
void folder_cut(const char *folder, const char *file, size_t count);
/* Every place where `from` stands; there must be one. */
void folder_replace(const char *folder, const char *file, const char *from, const char *to);

#endif
