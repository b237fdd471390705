/* SPDX-License-Identifier: MIT */
#include "cli/distill/beside.h"

#include "distill/gains.h"

#include <inttypes.h>
#include <stdlib.h>

const distill_arm *beside_arm(beside_form form)
{
    static const distill_arm arms[BESIDE_FORMS] = {
        [BESIDE_DRAWN] = { .name = "hybrid pairs",
                           .form = FORM_DRAWN,
                           .start = STUDENT_PAIRS,
                           .balanced = true },
        [BESIDE_TRAINED] = { .name = "hybrid",
                             .form = FORM_TRAINED,
                             .start = STUDENT_PAIRS,
                             .balanced = true },
    };
    return &arms[form];
}

int beside_features(const distillation *d, int64_t window, int64_t *features, io_error *error)
{
    const activations *a = &d->of;
    const int64_t c = a->channels, heads = distillation_heads(d), token = 2 * c * a->heads_kv,
                  each = heads * (c + 1), all = each * d->choice.features;
    *features = (all - window * token) / each;
    if (*features >= 1) return 0;
    return io_fail(error, EXIT_USAGE,
                   "--hybrid %" PRId64 ": leaves no memory of that of %" PRId64
                   " features to features; expected at most %" PRId64,
                   window, d->choice.features, (all - each) / token);
}

static int train(const distillation *d, student *s, int64_t window, const fit *by, bool *whole,
                 io_error *error)
{
    fit its = *by;
    its.options.sinks = DISTILL_SINKS, its.options.window = window;
    return fit_run(d, s, &its, whole, error);
}

int beside_begin(distillation *d, student *s, beside_form form, int64_t window, const fit *by, uint64_t seed,
                 bool *whole, io_error *error)
{
    static const distill_arm calibrated = { .form = FORM_DRAWN, .start = STUDENT_NORMAL, .balanced = true };
    const int threads = d->session->on.threads;
    int64_t *const features = calloc((size_t)d->of.layers, sizeof *features), each;
    if (!features) return io_fail(error, EXIT_INTERNAL, "out of memory for features");
    int status = beside_features(d, window, &each, error);
    for (int64_t i = 0; !status && i < d->of.layers; i++)
        features[i] = each;
    if (!status) status = distillation_begin(d, s, &calibrated, features, NULL, seed, error);
    free(features);
    student_beside(s, DISTILL_SINKS, window);
    if (!status) status = student_begin(s, &d->of, beside_arm(form)->start, seed, threads, error);
    if (!status) status = student_gains(s, &d->of, DISTILL_SINKS, window, threads, error);
    *whole = !status;
    if (status || form == BESIDE_DRAWN) return status;
    status = train(d, s, window, by, whole, error);
    return status || !*whole ? status : student_gains(s, &d->of, DISTILL_SINKS, window, threads, error);
}
