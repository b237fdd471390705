/* SPDX-License-Identifier: MIT
 * What the pages of trained experiments share. */
#ifndef LOAM_CLI_TRAINING_HTML_H
#define LOAM_CLI_TRAINING_HTML_H

#include "cli/training/claims.h"

#include <stdio.h>

void html_escape(FILE *out, const char *text);
/* As far as the heading, which is in words that need no escape. */
void html_head(FILE *out, const char *title);
/* "What the paper says", and the heading of what says it: "Zuo et al. 2025". */
void html_claims(FILE *out, const char *title, const char *source, const claim *claims, int count);

#endif
