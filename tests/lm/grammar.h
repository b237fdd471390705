/* SPDX-License-Identifier: MIT
 * Shards of a made-up language, as pretraining reads them: tokens 1 .. 24, each with two successors that are
 * equally likely, and now and then the end token 0. What can be learned is ln 2 and a little; tokens by
 * themselves have almost ln 24. */
#ifndef LOAM_TESTS_LM_GRAMMAR_H
#define LOAM_TESTS_LM_GRAMMAR_H

enum {
    GRAMMAR_VOCABULARY = 60,
    GRAMMAR_TRAIN = 12000,
    GRAMMAR_VALID = 800,
    GRAMMAR_HELD = 501,
    GRAMMAR_SHORT = 11
};

/* A new folder: corpora "one" and "two" with GRAMMAR_HELD and GRAMMAR_SHORT held-out tokens of 3 bytes each,
 * "none" without any, and the tokenizer of the tiny models. */
void grammar_write(const char *folder);
/* All bytes of a file of it, instead of what was there. */
void grammar_put(const char *folder, const char *file, const void *data, unsigned long bytes);
void grammar_remove(const char *folder);

#endif
