/* SPDX-License-Identifier: MIT */
#include "cli/attend.h"

#include "cli/options.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char USAGE[] = "loam attend softmax|parallax|lla --q F --k F --v F --out F [options]";

static const char ABOUT[] =
    "Attention of the queries q over the keys k with values v: softmax (a local constant), parallax (a given "
    "probe) or lla (Local Linear Attention: an affine fit by a ridge solve).\n\n"
    "Files F are FILE.npy (float16, float32, float64, little-endian, C order) or FILE.safetensors:TENSOR "
    "(F16, BF16, F32, F64). q, k and v have one rank: (B,H,T,D), (H,T,D) or (T,D); heads of q are a multiple of "
    "heads of k and v. Results are .npy files with the rank of q; bfloat16 is written as float32. No result "
    "appears before all are complete.\n\n"
    "Other shapes follow the rank of q; Hq are its heads, Tq and Tk the tokens of q and k: ridge () or (1,), "
    "(Hq,), (B,Hq,Tq) or (B,Hq,Tq,D); slope and sink (Hq,); key-bias (B,Hq,Tk); lse (B,Hq,Tq); weights "
    "(B,Hq,Tq,Tk). Without B and H these lose their axes too: with q of (T,D) a ridge is (), (1,), (T,) or "
    "(T,D), a slope () or (1,). Only q, k, v, probe, out, rho, grad-out and their gradients follow --layout."
    "\n\n"
    "Exit status: 0 done, 1 a bug or too little memory, 2 wrong options, 3 wrong input, 4 output not "
    "written.";

enum { ROWS_MAX = 40 };

static const double NO_BOUND = 1e300;

static void list_rows(option_row rows[ROWS_MAX], attend_options *o)
{
    const option_row table[] = {
        { "q", OPTION_TEXT, &o->in[IN_Q], 0, 0, "F", "queries" },
        { "k", OPTION_TEXT, &o->in[IN_K], 0, 0, "F", "keys" },
        { "v", OPTION_TEXT, &o->in[IN_V], 0, 0, "F", "values; their last axis may differ" },
        { "out", OPTION_TEXT, &o->out[OUT_O], 0, 0, "F", "the result; - is standard output" },
        { "probe", OPTION_TEXT, &o->in[IN_PROBE], 0, 0, "F", "parallax: the probe, of the shape of q" },
        { "ridge", OPTION_TEXT, &o->ridge, 0, 0, "X|F", "lla: a number or a file; default 0.1" },
        { "ridge-unit", OPTION_TEXT, &o->ridge_unit, 0, 0, "U",
          "lla: the ridge is relative to normalised weights (normalised, default), to max-normalised weights "
          "(max) or to the trace of the covariance (trace)" },
        { "score", OPTION_TEXT, &o->score, 0, 0, "S", "dot (default): scale q.k; rbf: -scale/2 |q-k|^2" },
        { "scale", OPTION_REAL, &o->scale, -NO_BOUND, NO_BOUND, "X", "default 1/sqrt(D)" },
        { "soft-cap", OPTION_REAL, &o->soft_cap, 0, NO_BOUND, "C", "scores become C tanh(s / C)" },
        { "full", OPTION_FLAG, &o->full, 0, 0, NULL,
          "see all keys; default causal, aligned at the last token" },
        { "window", OPTION_INT, &o->window, 1, NO_BOUND, "N", "see only keys less than N tokens away" },
        { "slope", OPTION_TEXT, &o->in[IN_SLOPE], 0, 0, "F",
          "per head: subtract slope x distance from scores" },
        { "key-bias", OPTION_TEXT, &o->in[IN_KEY_BIAS], 0, 0, "F", "added to the scores of a key" },
        { "sink", OPTION_TEXT, &o->in[IN_SINK], 0, 0, "F", "softmax: per head, a logit that takes mass" },
        { "layout", OPTION_TEXT, &o->layout, 0, 0, "L", "bhtd (default) or bthd: (B,T,H,D), (T,H,D)" },
        { "dtype", OPTION_TEXT, &o->dtype, 0, 0, "T",
          "f32, bf16, f16 or f64: convert inputs and compute so. Default: the type of q, but float64 becomes "
          "f32 unless the back end is reference" },
        { "backend", OPTION_TEXT, &o->backend, 0, 0, "B",
          "cpu, cuda (the current NVIDIA GPU; arrays are copied there and back), reference, or auto, the default: the "
          "fastest of the CPU's that fits" },
        { "kernel", OPTION_TEXT, &o->kernel, 0, 0, "K", "one forward kernel of `loam list`" },
        { "grad-kernel", OPTION_TEXT, &o->grad_kernel, 0, 0, "K", "likewise for the gradients" },
        { "threads", OPTION_INT, &o->threads, 1, 4096, "N", "default: all" },
        { "lse", OPTION_TEXT, &o->out[OUT_LSE], 0, 0, "F", "log of the sum of exp(score)" },
        { "rho", OPTION_TEXT, &o->out[OUT_RHO], 0, 0, "F", "the probe that was used" },
        { "weights", OPTION_TEXT, &o->out[OUT_WEIGHTS], 0, 0, "F", "effective weights, Tq x Tk per head" },
        { "info", OPTION_TEXT, &o->out[OUT_INFO], 0, 0, "F", "how each solve ended, as CSV" },
        { "grad-out", OPTION_TEXT, &o->in[IN_GRAD_OUT], 0, 0, "F", "gradient of the result" },
        { "grad-dir", OPTION_TEXT, &o->grad_dir, 0, 0, "D",
          "write all gradients here: dq.npy, dk.npy, dv.npy, dscale.npy and, where they apply, dprobe.npy, "
          "dridge.npy, dslope.npy, dkey_bias.npy, dsink.npy" },
        { "verbose", OPTION_FLAG, &o->verbose, 0, 0, NULL, "name the chosen kernels on standard error" },
        { 0 }
    };
    _Static_assert(sizeof table <= ROWS_MAX * sizeof *table, "room for the table");
    memcpy(rows, table, sizeof table);
}

static int check_mechanism(attend_options *o, int argc, char **argv, io_error *error)
{
    static const char *const names[] = { "softmax", "parallax", "lla", NULL };
    if (argc < 2) return io_fail(error, EXIT_USAGE, "say which mechanism: softmax, parallax or lla");
    if (argc > 2) return io_fail(error, EXIT_USAGE, "unexpected argument '%s'; usage: %s", argv[2], USAGE);
    int mechanism = options_choice(argv[1], names);
    if (mechanism < 0) {
        const char *nearest = options_nearest(argv[1], names);
        return io_fail(error, EXIT_USAGE, "unknown mechanism '%s'; %s%s", argv[1],
                       nearest ? "did you mean " : "expected softmax, parallax or lla",
                       nearest ? nearest : "");
    }
    o->mechanism = (loam_mechanism)mechanism;
    return 0;
}

static int check_choice(const char *option, const char *word, const char *const *names, const char *expected,
                        io_error *error)
{
    if (!word || options_choice(word, names) >= 0) return 0;
    return io_fail(error, EXIT_USAGE, "--%s %s: expected %s", option, word, expected);
}

static int check_choices(const attend_options *o, io_error *error)
{
    static const char *const units[] = { "normalised", "max", "trace", NULL };
    static const char *const scores[] = { "dot", "rbf", NULL };
    static const char *const layouts[] = { "bhtd", "bthd", NULL };
    static const char *const dtypes[] = { "f32", "bf16", "f16", "f64", NULL };
    static const char *const backends[] = { "auto", "reference", "cpu", "cuda", NULL };
    int status = check_choice("ridge-unit", o->ridge_unit, units, "normalised, max or trace", error);
    if (!status) status = check_choice("score", o->score, scores, "dot or rbf", error);
    if (!status) status = check_choice("layout", o->layout, layouts, "bhtd or bthd", error);
    if (!status) status = check_choice("dtype", o->dtype, dtypes, "f32, bf16, f16 or f64", error);
    if (!status)
        status = check_choice("backend", o->backend, backends, "auto, reference, cpu or cuda", error);
    return status;
}

static int check_given(const attend_options *o, io_error *error)
{
    static const enum attend_input needed[] = { IN_Q, IN_K, IN_V };
    for (int i = 0; i < 3; i++)
        if (!o->in[needed[i]])
            return io_fail(error, EXIT_USAGE, "%s F is needed", attend_input_option(needed[i]));
    if (!o->out[OUT_O]) return io_fail(error, EXIT_USAGE, "--out F is needed");
    if ((o->mechanism == LOAM_PARALLAX) != (o->in[IN_PROBE] != NULL))
        return io_fail(error, EXIT_USAGE,
                       o->in[IN_PROBE] ? "--probe is for parallax only" : "--probe F is needed for parallax");
    if (o->mechanism != LOAM_LLA && (o->ridge || o->ridge_unit))
        return io_fail(error, EXIT_USAGE, "--ridge and --ridge-unit are for lla only");
    if (o->mechanism != LOAM_SOFTMAX && o->in[IN_SINK])
        return io_fail(error, EXIT_USAGE, "--sink is for softmax only");
    if (!o->in[IN_GRAD_OUT] != !o->grad_dir)
        return io_fail(error, EXIT_USAGE, "--grad-out F and --grad-dir D are given together or not at all");
    if (o->grad_kernel && !o->grad_dir)
        return io_fail(error, EXIT_USAGE, "--grad-kernel needs --grad-out and --grad-dir");
    return 0;
}

/* Two results in one file would leave only the last. */
static int check_outputs(const attend_options *o, io_error *error)
{
    for (int i = 0; i < OUT_DQ; i++) {
        for (int j = 0; o->out[i] && j < i; j++)
            if (o->out[j] && strcmp(o->out[i], o->out[j]) == 0)
                return io_fail(error, EXIT_USAGE, "two results would be written to %s", o->out[i]);
        if (o->out[i] && strstr(o->out[i], ".safetensors"))
            return io_fail(error, EXIT_USAGE, "results are not written as .safetensors: %s; name a .npy file",
                           o->out[i]);
    }
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
    *options = (attend_options){ .ridge_number = 0.1 };
    option_row rows[ROWS_MAX];
    list_rows(rows, options);
    int status = options_parse(&argc, argv, rows, USAGE, ABOUT, &options->help, error);
    if (status || options->help) return status;
    status = check_mechanism(options, argc, argv, error);
    if (!status) status = check_choices(options, error);
    if (!status) status = check_given(options, error);
    if (!status) status = check_outputs(options, error);
    return status ? status : check_ridge(options, error);
}
