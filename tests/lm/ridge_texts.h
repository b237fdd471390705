/* SPDX-License-Identifier: MIT
 * What the tests of the ridge experiment read: a text of two lines and one of another kind. */
#ifndef TESTS_LM_RIDGE_TEXTS_H
#define TESTS_LM_RIDGE_TEXTS_H

#include "tests/cli/program.h"

#define MODELS LM_TEST_DATA "/"
#define TOKENIZER LM_TEST_DATA "/tokenizer.json"
#define TEXTS "t.txt,u.txt"

static inline void make_texts(void)
{
    const outcome made = run_shell(
        "echo 'the cat, the dog. a text that ends, and another one that goes on and on; it is long enough "
        "for windows.\n\nand a second line' >t.txt; echo 'other words of a text that is different: the dog "
        "has seen the cat' >u.txt");
    expect_status(&made, 0);
}

#endif
