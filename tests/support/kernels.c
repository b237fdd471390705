/* SPDX-License-Identifier: MIT */
#include "tests/support/kernels.h"

#include "tests/support/layout.h"

#include <string.h>

int kernel_find(const char *name)
{
    loam_kernel_info info;
    for (int i = 0; loam_kernel_at(i, &info) == LOAM_OK; i++)
        if (strcmp(info.name, name) == 0) return i;
    return -1;
}

int kernel_on_device(const spec *s)
{
    loam_kernel_info info;
    const int index = kernel_find(s->kernel);
    return s->backend == LOAM_BACKEND_CUDA ||
           (loam_kernel_at(index, &info) == LOAM_OK && strcmp(info.backend, "cuda") == 0);
}

int kernel_tiled(const loam_kernel_info *row)
{
    return strcmp(row->backend, "cuda") == 0 && strcmp(row->isa, "cuda") != 0;
}

int kernel_turns_keys(const char *name) { return strncmp(name, "local_path", strlen("local_path")) == 0; }

int kernel_is_positive(const char *name) { return strncmp(name, "positive_", strlen("positive_")) == 0; }

/* A multiple of `unit`, at most `most`. */
static int64_t whole(int64_t n, int64_t unit, int64_t most)
{
    const int64_t size = (n + unit - 1) / unit * unit;
    return size < most ? size : most;
}

static void take_tiled_features(spec *s)
{
    s->dim_qk = whole(s->dim_qk, 16, 64), s->dim_v = whole(s->dim_v, 16, 64);
    s->features = whole(s->features, 16, 256);
}

#define LEAVE_OUT(name, member, ...) s->member = 0;

void kernel_take_path(spec *s)
{
    s->path = s->causal = 1;
    s->score = LOAM_DOT;
    SPEC_MAPS(LEAVE_OUT)
    s->window = s->slope = s->key_bias = s->sink = 0;
}

/* Any number of channels up to `most`. Bulk copies read rows at multiples of 8 numbers alone: most cases have
 * such rows, by their strides (layout_unit) or by their sizes. */
static int64_t any_channels(const spec *s, int64_t n, int64_t most)
{
    while (n > most)
        n = (n + 1) / 2;
    return layout_unit(s) > 1 || s->layout % 4 == 1 ? n : (n + 7) / 8 * 8;
}

static void take_tiled_channels(spec *s)
{
    const int64_t most = 256; /* of the tiles of the local family, as src/local/fits.c has it */
    s->dim_qk = any_channels(s, s->dim_qk, most), s->dim_v = any_channels(s, s->dim_v, most);
}

/* Channels of a state that the tiled recurrences take. */
static int64_t most_of_state(const spec *s)
{
    const spec_recurrence form = spec_recurrence_of(s);
    const int wide = s->pass == LOAM_FORWARD && form.delta && form.gate != SPEC_GATE_CHANNEL &&
                     s->feature_map == LOAM_FEATURES_IDENTITY;
    return wide ? 256 : 128;
}

void kernel_fit(spec *s)
{
    loam_kernel_info info;
    if (loam_kernel_at(kernel_find(s->kernel), &info)) return;
    if (kernel_turns_keys(info.name)) {
        kernel_take_path(s);
        if (strcmp(info.backend, "cuda") == 0 && strcmp(info.dtypes, "bf16") == 0) {
            s->dim_qk = s->dim_v = 64;
            s->omit |= spec_omit(SLOT_WEIGHTS);
        }
    }
    if (!kernel_tiled(&info)) return;
    if (kernel_is_positive(info.name)) {
        take_tiled_features(s);
        return;
    }
    if (kernel_lists(info.mechanisms, "mesa")) {
        s->dim_qk = s->dim_v = 64;
        s->feature_map = s->feature_map == LOAM_FEATURES_ELU ? LOAM_FEATURES_UNIT : s->feature_map;
        return;
    }
    if (kernel_lists(info.mechanisms, "linear")) {
        const int64_t most = most_of_state(s);
        s->dim_qk = whole(s->dim_qk, 8, most), s->dim_v = whole(s->dim_v, 8, most);
        return;
    }
    take_tiled_channels(s);
    s->score = LOAM_DOT;
    s->slope = s->key_bias = 0;
    SPEC_MAPS(LEAVE_OUT)
    s->ridge_unit = s->ridge_unit == LOAM_RIDGE_TRACE ? LOAM_RIDGE_NORMALISED : s->ridge_unit;
}

int kernel_lists(const char *words, const char *word)
{
    const size_t length = strlen(word);
    for (const char *at = strstr(words, word); at; at = strstr(at + 1, word)) {
        const int begins = at == words || at[-1] == ' ', ends = at[length] == ' ' || at[length] == '\0';
        if (begins && ends) return 1;
    }
    return 0;
}
