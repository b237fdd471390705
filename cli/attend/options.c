/* SPDX-License-Identifier: MIT */
#include "cli/attend/table.h"
#include "cli/files.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Names of the program's own: softmax with a score, and softmax over a recurrence. */
enum own { OWN_FOX, OWN_PATH, OWN_INTERPOLATION };

static int library_names(void)
{
    int count = 0;
    while (names_mechanism(count))
        count++;
    return count;
}

static const char *own_name(int index)
{
    return index < OWN_INTERPOLATION    ? ATTEND_SOFTMAX_NAMES[index]
           : index == OWN_INTERPOLATION ? "interpolation"
                                        : NULL;
}

static const char *any_name(int index)
{
    const char *name = names_mechanism(index);
    return name ? name : own_name(index - library_names());
}

/* The place of a mechanism in a list of names. _ is as good as -. */
static int find_mechanism(const char *word, names_word *names, int *which, io_error *error)
{
    char plain[64], text[NAMES_BYTES];
    snprintf(plain, sizeof plain, "%s", word);
    for (char *c = plain; *c; c++)
        if (*c == '_') *c = '-';
    *which = names_find(names, plain);
    if (*which >= 0) return 0;
    const char *nearest = names_nearest(names, plain);
    return io_fail(error, EXIT_USAGE, "unknown mechanism '%s'; %s%s", word,
                   nearest ? "did you mean " : "expected ",
                   nearest ? nearest : names_list(text, names, " or "));
}

static int check_mechanism(attend_options *o, int argc, char **argv, io_error *error)
{
    char text[NAMES_BYTES];
    int which;
    if (argc < 2)
        return io_fail(error, EXIT_USAGE, "say which mechanism: %s", names_list(text, any_name, " or "));
    if (argc > 2)
        return io_fail(error, EXIT_USAGE, "unexpected argument '%s'; usage: %s", argv[2], ATTEND_USAGE);
    const int status = find_mechanism(argv[1], any_name, &which, error);
    if (status) return status;
    const int own = which - library_names();
    o->name = any_name(which);
    o->mechanism = own < 0 ? (loam_mechanism)which : LOAM_SOFTMAX;
    o->fox = own == OWN_FOX, o->path = own == OWN_PATH, o->interpolation = own == OWN_INTERPOLATION;
    o->form = names_form(o->mechanism);
    return 0;
}

/* An interpolation is its recurrence but for the scores. */
static int check_linear(attend_options *o, io_error *error)
{
    int which;
    if (o->interpolation != (o->linear != NULL))
        return io_fail(error, EXIT_USAGE, "--linear NAME %s",
                       o->linear ? "is for interpolation only" : "is needed for interpolation: a recurrence");
    if (!o->linear) return 0;
    const int status = find_mechanism(o->linear, names_mechanism, &which, error);
    if (status) return status;
    o->mechanism = (loam_mechanism)which;
    o->form = names_form(o->mechanism);
    if (!names_is_recurrent(&o->form))
        return io_fail(error, EXIT_USAGE, "--linear %s: expected a recurrence", o->form.name);
    if (o->kernel || o->grad_kernel)
        return io_fail(error, EXIT_USAGE, "--kernel and --grad-kernel: interpolation runs two plans");
    return 0;
}

static const char *layout_name(int index)
{
    static const char *const names[] = { "bhtd", "bthd", NULL };
    return names[index];
}

static int choose_all(attend_options *o, io_error *error)
{
    attend_choices *c = &o->choice;
    int status = names_choose("feature-map", o->feature_map, names_feature_map, &c->feature_map, error);
    if (!status) status = names_choose("ridge-unit", o->ridge_unit, names_ridge_unit, &c->ridge_unit, error);
    if (!status) status = names_choose("score", o->score, names_score, &c->score, error);
    if (!status)
        status = names_choose("rope-layout", o->rope_layout, names_rope_layout, &c->rope_layout, error);
    if (!status) status = names_choose("layout", o->layout, layout_name, &c->tokens_first, error);
    if (!status) status = names_choose("dtype", o->dtype, names_dtype, &c->dtype, error);
    return status ? status : names_choose("backend", o->backend, names_backend, &c->backend, error);
}

bool attend_positive(const attend_options *o) { return o->choice.feature_map == LOAM_FEATURES_POSITIVE; }

static int check_features(attend_options *o, io_error *error)
{
    for (int i = IN_Z; i <= IN_BALANCE_KEYS; i++)
        if (o->in[i] && !attend_positive(o))
            return io_fail(error, EXIT_USAGE, "%s goes with --feature-map positive",
                           attend_input_option((enum attend_input)i));
    if (!attend_positive(o)) return 0;
    if (!o->in[IN_Z]) return io_fail(error, EXIT_USAGE, "--z F is needed for --feature-map positive");
    if (!o->in[IN_BALANCE] != !o->in[IN_BALANCE_KEYS])
        return io_fail(error, EXIT_USAGE,
                       "--balance F and --balance-keys F are given together or not at all");
    o->normalise = true;
    return 0;
}

/* What a mechanism cannot do without, and what goes with something else. */
static int check_needed(const attend_options *o, io_error *error)
{
    static const enum attend_input needed[] = { IN_Q, IN_K, IN_V };
    for (int i = 0; i < 3; i++)
        if (!o->in[needed[i]])
            return io_fail(error, EXIT_USAGE, "%s F is needed", attend_input_option(needed[i]));
    if (!o->out[OUT_O]) return io_fail(error, EXIT_USAGE, "--out F is needed");
    if (o->form.probe && !o->in[IN_PROBE])
        return io_fail(error, EXIT_USAGE, "--probe F is needed for %s", o->name);
    if (o->path && !o->in[IN_W]) return io_fail(error, EXIT_USAGE, "--w F is needed for %s", o->name);
    if (o->in[IN_BETA] && !attend_writes(o))
        return io_fail(error, EXIT_USAGE, "--beta needs --w for %s", o->name);
    if (!o->in[IN_GRAD_OUT] != !o->grad_dir)
        return io_fail(error, EXIT_USAGE, "--grad-out F and --grad-dir D are given together or not at all");
    if (o->in[IN_GRAD_STATE] && !o->grad_dir)
        return io_fail(error, EXIT_USAGE, "--grad-state-out needs --grad-out and --grad-dir");
    if ((o->rope_layout || o->rope_dim || o->rope_offset) && o->rope == 0)
        return io_fail(error, EXIT_USAGE, "--rope-layout, --rope-dim and --rope-offset need --rope BASE");
    if (o->cu_seqlens_k && !o->cu_seqlens)
        return io_fail(error, EXIT_USAGE, "--cu-seqlens-k needs --cu-seqlens");
    if (o->grad_kernel && !o->grad_dir)
        return io_fail(error, EXIT_USAGE, "--grad-kernel needs --grad-out and --grad-dir");
    return 0;
}

bool attend_decays(const attend_options *o)
{
    return o->form.log_decay != LOAM_DECAY_NONE || o->fox || o->in[IN_LOG_DECAY];
}

bool attend_writes(const attend_options *o) { return o->form.beta || o->in[IN_W]; }

bool attend_has_gradient(const attend_options *o, enum attend_output which)
{
    switch (which) {
    case OUT_DPROBE: return o->in[IN_PROBE];
    case OUT_DRIDGE: return o->form.ridge_axes;
    case OUT_DSLOPE: return o->in[IN_SLOPE];
    case OUT_DKEY_BIAS: return o->in[IN_KEY_BIAS];
    case OUT_DSINK: return o->in[IN_SINK];
    case OUT_DLOG_DECAY: return attend_decays(o);
    case OUT_DBETA: return attend_writes(o);
    case OUT_DW: return o->in[IN_W];
    case OUT_DSTATE: return o->in[IN_STATE];
    case OUT_DZ: return attend_positive(o);
    case OUT_DLOG_ALPHA: return o->in[IN_LOG_ALPHA];
    case OUT_DSCALE: return !attend_positive(o);
    default: return which >= OUT_DQ;
    }
}

/* Nothing is written over an input, or over another result. */
static int check_files(const attend_options *o, io_error *error)
{
    named_file inputs[IN_COUNT + 3] = { { NULL, NULL } }, outputs[OUT_COUNT + 1] = { { NULL, NULL } };
    char *gradients[OUT_COUNT] = { NULL };
    int status = 0, from = 0, to = 0;
    for (int i = 0; i < IN_COUNT; i++)
        inputs[from++] = (named_file){ attend_input_option((enum attend_input)i), o->in[i] };
    inputs[from++] = (named_file){ "--cu-seqlens", o->cu_seqlens };
    inputs[from] = (named_file){ "--cu-seqlens-k", o->cu_seqlens_k };
    for (int i = 0; i < OUT_DQ; i++)
        outputs[to++] = (named_file){ attend_output_option((enum attend_output)i), o->out[i] };
    for (int i = OUT_DQ; i < OUT_COUNT && o->grad_dir && !status; i++) {
        if (!attend_has_gradient(o, (enum attend_output)i)) continue;
        status = attend_gradient_path(&gradients[i], o->grad_dir, (enum attend_output)i, error);
        outputs[to++] = (named_file){ "--grad-dir", gradients[i] };
    }
    if (!status) status = files_check(inputs, outputs, error);
    for (int i = OUT_DQ; i < OUT_COUNT; i++)
        free(gradients[i]);
    return status;
}

static int check_endings(const attend_options *o, io_error *error)
{
    for (int i = 0; i < OUT_DQ; i++)
        if (o->out[i] && strstr(o->out[i], ".safetensors"))
            return io_fail(error, EXIT_USAGE, "results are not written as .safetensors: %s; name a .npy file",
                           o->out[i]);
    return 0;
}

/* A number where all of the text is one, else the name of a file. */
static int check_ridge(attend_options *o, io_error *error)
{
    if (!o->ridge) return 0;
    char *end;
    double number = strtod(o->ridge, &end);
    if (end == o->ridge || *end) {
        o->in[IN_RIDGE] = o->ridge;
        return 0;
    }
    if (!isfinite(number) || number < 0)
        return io_fail(error, EXIT_USAGE, "--ridge %s: expected a finite number of at least 0, or a file",
                       o->ridge);
    o->ridge_number = number;
    return 0;
}

int attend_parse(attend_options *options, int argc, char **argv, io_error *error)
{
    *options = (attend_options){ .problem = loam_problem_default(LOAM_SOFTMAX, LOAM_FORWARD),
                                 .ridge_number = 0.1,
                                 .choice.dtype = -1 };
    attend_table table;
    attend_table_make(&table, options);
    int status = options_parse(&argc, argv, table.rows, ATTEND_USAGE, table.about, &options->help, error);
    if (status || options->help) return status;
    status = check_mechanism(options, argc, argv, error);
    if (!status) status = check_linear(options, error);
    if (!status) status = choose_all(options, error);
    if (!status) status = attend_table_check(&table, options, error);
    if (!status) status = check_needed(options, error);
    if (!status) status = check_features(options, error);
    if (!status) status = check_endings(options, error);
    if (!status) status = check_ridge(options, error);
    return status ? status : check_files(options, error);
}
