/* SPDX-License-Identifier: MIT
 * What the pages of trained experiments share. */
#ifndef LOAM_CLI_TRAINING_HTML_H
#define LOAM_CLI_TRAINING_HTML_H

#include "cli/training/claims.h"

#include <stdio.h>

void html_escape(FILE *out, const char *text);
/* As far as the heading, which is in words that need no escape. */
void html_head(FILE *out, const char *title);
void html_claims(FILE *out, const claim *claims, int count);

#endif
