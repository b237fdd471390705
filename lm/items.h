/* SPDX-License-Identifier: MIT
 * Questions with choices, from files of the forms that are in use, as texts that a model scores. */
#ifndef LOAM_LM_ITEMS_H
#define LOAM_LM_ITEMS_H

#include "io/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ITEM_CHOICES = 8 };

/* Forms of lines: the keys of their JSON objects; others are ignored. */
typedef enum item_form {
    ITEM_PIQA,       /* goal, sol1, sol2, label 0 or 1 */
    ITEM_ARC,        /* question, choices {text [], label []}, answerKey; or question {stem, choices [{text,
                        label}]}, answerKey */
    ITEM_LOGIQA,     /* context, question, options [], label "a" .. */
    ITEM_WINOGRANDE, /* sentence with one _, option1, option2, answer "1" or "2" */
    ITEM_WSC273,     /* text, pronoun, pronoun_loc, options [2], label 0 or 1 */
    ITEM_WSC,        /* SuperGLUE: text, target {span1_text, span2_index, span2_text}, label */
    ITEM_MMLU,       /* question, choices [4], answer 0 .. 3, subject where it is known; or CSV */
    ITEM_FORMS
} item_form;

/* "piqa", ...; NULL beyond the last. */
const char *item_form_name(int form);

/* The choice of a question is the one whose `rest` is likeliest after its `context`. Mostly all contexts are
 * the same; where a sentence is completed by each choice, the rests are. */
typedef struct item {
    int choices, answer;
    char *context[ITEM_CHOICES], *rest[ITEM_CHOICES];
    int64_t characters[ITEM_CHOICES]; /* of the choice, without the blank before it */
    bool normed;                      /* sums may also be divided by characters */
} item;

typedef struct items {
    item *list;
    int64_t count;
} items;

/* From the text of a file called `name`, an object a line; blank lines are skipped. A bad line is named by
 * its number. subject: of all questions, for ITEM_MMLU; NULL: as the file says. On failure *out is all
 * zero. */
int items_read(items *out, const char *text, size_t bytes, item_form form, const char *subject,
               const char *name, io_error *error);
/* ITEM_MMLU from CSV: question, four choices, the answer A .. D, no header or one of these words. subject,
 * where NULL, is the name's: "some/high_school_physics_test.csv" is about high school physics. */
int items_read_csv(items *out, const char *text, size_t bytes, const char *subject, const char *name,
                   io_error *error);
void items_free(items *list); /* and zeroes it */

#endif
