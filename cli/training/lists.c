/* SPDX-License-Identifier: MIT */
#include "cli/training/lists.h"

#include "cli/experiment/options.h"

#include <math.h>
#include <stdlib.h>

int lists_rates(const char *option, const char *text, double *rates, int *count, io_error *error)
{
    *count = 0;
    for (const char *at = text;; at++) {
        char *end;
        const double value = strtod(at, &end);
        if (end == at || !isfinite(value) || value <= 0 || value > 1 || (*end != ',' && *end != '\0') ||
            *count == PLAN_RATES || (*count > 0 && value <= rates[*count - 1]))
            return io_fail(error, EXIT_USAGE,
                           "--%s %s: expected at most %d ascending numbers above 0, and at most 1, as in "
                           "5e-4,1e-3",
                           option, text, PLAN_RATES);
        rates[(*count)++] = value;
        at = end;
        if (*at == '\0') return EXIT_OK;
    }
}

int lists_seeds(const char *text, plan *p, io_error *error)
{
    number_list list;
    const int status = experiment_read_list("seed", text, (int64_t)9e15, &list, error);
    if (status != EXIT_OK) return status;
    if (list.count > PLAN_SEEDS)
        return io_fail(error, EXIT_USAGE, "--seed %s: expected at most %d seeds", text, PLAN_SEEDS);
    for (p->seed_count = 0; p->seed_count < list.count; p->seed_count++)
        p->seeds[p->seed_count] = (uint64_t)list.items[p->seed_count];
    return EXIT_OK;
}
