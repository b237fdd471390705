/* SPDX-License-Identifier: MIT */
#include "cli/attend.h"

#include "cli/options.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char USAGE[] = "loam attend MECHANISM --q F --k F --v F --out F [options]";

static const char EXPECTED[] =
    "softmax, parallax, lla, fox, path, linear, retention, ssd, gla, delta, gated-delta, kda, mesa or interpolation";

const char *const attend_feature_maps[] = { "identity", "elu", "unit", NULL };

static const char ABOUT[] =
    "Attention of the queries q over the keys k with values v. MECHANISM is softmax (a local constant), parallax (a "
    "given probe) or lla (Local Linear Attention: an affine fit by a ridge solve); fox or path, softmax whose scores "
    "decay or whose keys are reflected by the tokens between; or a recurrence, one linear map for all that came before: "
    "linear, retention, ssd, gla, delta, gated-delta, kda or mesa; or interpolation, softmax on what a recurrence "
    "(--linear) leaves over.\n\n"
    "Files F are FILE.npy (float16, float32, float64, little-endian, C order) or FILE.safetensors:TENSOR "
    "(F16, BF16, F32, F64). q, k and v have one rank: (B,H,T,D), (H,T,D) or (T,D); heads of q are a multiple of "
    "heads of k and v, but of a recurrence q and k have one shape and v may have a multiple of their heads, Hv. Results are .npy files with the rank of q; bfloat16 is written as float32. No result "
    "appears before all are complete.\n\n"
    "Other shapes follow the rank of q; Hq are its heads, Tq and Tk the tokens of q and k: ridge () or (1,), "
    "(Hq,), (B,Hq,Tq) or (B,Hq,Tq,D); slope and sink (Hq,); key-bias (B,Hq,Tk); lse (B,Hq,Tq); weights "
    "(B,Hq,Tq,Tk). Of recurrences: log-decay (Hv,) for retention, (B,Hv,T) for ssd, gated-delta and mesa, (B,Hv,T,D) "
    "for gla and kda; beta (B,Hv,T); ridge (), (1,), (Hv,) or (Hv,D); a state (B,Hv,R,D), R the channels of v, one more "
    "with --normalise, D more for mesa. Of softmax, parallax and lla: log-decay (B,Hq,Tk), beta (B,Hk,Tk), w as k. "
    "Without B and H these lose their axes too: with q of (T,D) a ridge is (), (1,), (T,) or "
    "(T,D), a slope () or (1,). With --cu-seqlens, q has (H,T,D) or (T,D) with the T tokens of N sequences together; states "
    "are (N,Hv,R,D) or (N,R,D), weights (Hq,Tq,keys of the longest). Only q, k, v, probe, w, out, rho, grad-out and their gradients follow --layout."
    "\n\n"
    "Exit status: 0 done, 1 a bug or too little memory, 2 wrong options, 3 wrong input, 4 output not "
    "written.";

enum { ROWS_MAX = 60 };

static const double NO_BOUND = 1e300;

/* What is computed, of what. */
static size_t list_inputs(option_row *rows, attend_options *o)
{
    const option_row table[] = {
        { "q", OPTION_TEXT, &o->in[IN_Q], 0, 0, "F", "queries" },
        { "k", OPTION_TEXT, &o->in[IN_K], 0, 0, "F", "keys" },
        { "v", OPTION_TEXT, &o->in[IN_V], 0, 0, "F", "values; their last axis may differ" },
        { "out", OPTION_TEXT, &o->out[OUT_O], 0, 0, "F", "the result; - is standard output" },
        { "probe", OPTION_TEXT, &o->in[IN_PROBE], 0, 0, "F", "parallax: the probe, of the shape of q" },
        { "ridge", OPTION_TEXT, &o->ridge, 0, 0, "X|F", "lla, mesa: a number or a file; default 0.1" },
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
        { "log-decay", OPTION_TEXT, &o->in[IN_LOG_DECAY], 0, 0, "F",
          "logarithms of the decays, -inf to 0: of retention (default log(1 - 2^(-5-h)) of head h), ssd, gla, gated-delta, "
          "kda, mesa (default 0); and of the scores of fox, path, softmax, parallax and lla, which then forget" },
        { "beta", OPTION_TEXT, &o->in[IN_BETA], 0, 0, "F",
          "write strengths of ssd, delta, gated-delta, kda, mesa (default 1); strengths of the reflections w" },
        { "w", OPTION_TEXT, &o->in[IN_W], 0, 0, "F",
          "path, softmax, parallax, lla: rows of length 1 that reflect the keys before them" },
        { "linear", OPTION_TEXT, &o->linear, 0, 0, "NAME",
          "interpolation: the recurrence whose linear map explains what it can; softmax does the rest" },
        { "cu-seqlens", OPTION_TEXT, &o->cu_seqlens, 0, 0, "F",
          "q, k and v hold sequences one after the other; F.npy (int32 or int64) has where each begins, and the end" },
        { "cu-seqlens-k", OPTION_TEXT, &o->cu_seqlens_k, 0, 0, "F",
          "softmax, parallax, lla, fox, path: the same of the keys, where they begin elsewhere" },
        { "feature-map", OPTION_TEXT, &o->feature_map, 0, 0, "NAME",
          "recurrences: q and k become identity (default), elu(x) + 1 (elu) or x / |x| (unit)" },
        { "normalise", OPTION_FLAG, &o->normalise, 0, 0, NULL,
          "linear, retention, ssd, gla: divide by what values of 1 would give" },
        { "state-in", OPTION_TEXT, &o->in[IN_STATE], 0, 0, "F",
          "recurrences: the state to begin with; default 0" },
        { "state-out", OPTION_TEXT, &o->out[OUT_STATE], 0, 0, "F",
          "recurrences: the state after the last token" },
        { "rope", OPTION_REAL, &o->rope, 1, NO_BOUND, "BASE",
          "turn q and k by their positions first (RoPE; 10000 is usual), and their gradients back" },
        { "rope-layout", OPTION_TEXT, &o->rope_layout, 0, 0, "L",
          "which channels turn together: half (c and c + D/2, default) or interleaved (2c and 2c + 1)" },
        { "rope-dim", OPTION_INT, &o->rope_dim, 2, LOAM_MAX_DIM, "N",
          "only the first N channels turn; default all" },
        { "rope-offset", OPTION_INT, &o->rope_offset, -1e15, 1e15, "N",
          "position of the first key; default 0" },
    };
    _Static_assert(sizeof table <= ROWS_MAX / 2 * sizeof *table, "room for the table");
    memcpy(rows, table, sizeof table);
    return sizeof table / sizeof *table;
}

/* How, and what is written where. */
static void list_outputs(option_row *rows, attend_options *o)
{
    const option_row table[] = {
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
        { "grad-state-out", OPTION_TEXT, &o->in[IN_GRAD_STATE], 0, 0, "F",
          "recurrences: gradient of the state after the last token; default 0" },
        { "grad-dir", OPTION_TEXT, &o->grad_dir, 0, 0, "D",
          "write all gradients here: dq.npy, dk.npy, dv.npy, dscale.npy and, where they apply, dprobe.npy, "
          "dridge.npy, dslope.npy, dkey_bias.npy, dsink.npy, dlog_decay.npy, dbeta.npy, dw.npy, dstate.npy (of --state-in)" },
        { "verbose", OPTION_FLAG, &o->verbose, 0, 0, NULL, "name the chosen kernels on standard error" },
        { 0 }
    };
    _Static_assert(sizeof table <= ROWS_MAX / 2 * sizeof *table, "room for the table");
    memcpy(rows, table, sizeof table);
}

/* The place of a mechanism in loam_mechanism, or beyond the last where it goes by a name of its own: then `own` has it. _ is
 * as good as -. */
static int find_mechanism(const char *word, const char *const *own, int *which, const char **name,
                          io_error *error)
{
    const char *names[32];
    int count = 0, mechanisms;
    for (loam_mechanism_info info; count < 24 && loam_mechanism_at(count, &info) == LOAM_OK; count++)
        names[count] = info.name;
    for (mechanisms = count; *own; own++)
        names[count++] = *own;
    names[count] = NULL;
    char plain[64];
    snprintf(plain, sizeof plain, "%s", word);
    for (char *c = plain; *c; c++)
        if (*c == '_') *c = '-';
    *which = options_choice(plain, names);
    if (*which < 0) {
        const char *nearest = options_nearest(plain, names);
        return io_fail(error, EXIT_USAGE, "unknown mechanism '%s'; %s%s", word,
                       nearest ? "did you mean " : "expected ", nearest ? nearest : EXPECTED);
    }
    *name = names[*which];
    if (*which >= mechanisms) *which = LOAM_SOFTMAX;
    return 0;
}

static int check_mechanism(attend_options *o, int argc, char **argv, io_error *error)
{
    static const char *const own[] = { "fox", "path", "interpolation", NULL };
    int which = LOAM_SOFTMAX;
    if (argc < 2) return io_fail(error, EXIT_USAGE, "say which mechanism: %s", EXPECTED);
    if (argc > 2) return io_fail(error, EXIT_USAGE, "unexpected argument '%s'; usage: %s", argv[2], USAGE);
    const int status = find_mechanism(argv[1], own, &which, &o->name, error);
    if (status) return status;
    o->mechanism = (loam_mechanism)which;
    loam_mechanism_at(which, &o->form);
    return 0;
}

/* An interpolation is its recurrence but for the scores. */
static int check_linear(attend_options *o, const char *word, io_error *error)
{
    static const char *const none[] = { NULL };
    const bool interpolation = strcmp(o->name, "interpolation") == 0;
    const char *name = word;
    int which = LOAM_SOFTMAX;
    if (interpolation != (word != NULL))
        return io_fail(error, EXIT_USAGE, "--linear NAME %s",
                       word ? "is for interpolation only" : "is needed for interpolation: a recurrence");
    if (!word) return 0;
    const int status = find_mechanism(word, none, &which, &name, error);
    if (status) return status;
    o->mechanism = (loam_mechanism)which;
    loam_mechanism_at(which, &o->form);
    if (!attend_is_recurrent(o))
        return io_fail(error, EXIT_USAGE, "--linear %s: expected a recurrence", name);
    if (o->kernel || o->grad_kernel)
        return io_fail(error, EXIT_USAGE, "--kernel and --grad-kernel: interpolation runs two plans");
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
    static const char *const turns[] = { "half", "interleaved", NULL };
    static const char *const dtypes[] = { "f32", "bf16", "f16", "f64", NULL };
    static const char *const backends[] = { "auto", "reference", "cpu", "cuda", NULL };
    int status = check_choice("feature-map", o->feature_map, attend_feature_maps, "identity, elu or unit",
                              error);
    if (!status) status = check_choice("ridge-unit", o->ridge_unit, units, "normalised, max or trace", error);
    if (!status) status = check_choice("score", o->score, scores, "dot or rbf", error);
    if (!status) status = check_choice("rope-layout", o->rope_layout, turns, "half or interleaved", error);
    if (!status) status = check_choice("layout", o->layout, layouts, "bhtd or bthd", error);
    if (!status) status = check_choice("dtype", o->dtype, dtypes, "f32, bf16, f16 or f64", error);
    if (!status)
        status = check_choice("backend", o->backend, backends, "auto, reference, cpu or cuda", error);
    return status;
}

/* An option that only some mechanisms have. */
static int check_only(const attend_options *o, bool given, bool has, const char *option, const char *which,
                      io_error *error)
{
    if (!given || has) return 0;
    return io_fail(error, EXIT_USAGE, "%s is for %s, not for %s", option, which, o->name);
}

static int check_recurrent_options(const attend_options *o, io_error *error)
{
    static const char FAMILY[] = "recurrences (linear, retention, ssd, gla, delta, gated-delta, kda, mesa)";
    static const char LOCAL[] = "softmax, parallax, lla, fox and path";
    const bool recurrent = attend_is_recurrent(o);
    const struct {
        bool given, has;
        const char *option, *which;
    } only[] = {
        { o->in[IN_LOG_DECAY], !recurrent || o->form.log_decay != LOAM_DECAY_NONE, "--log-decay",
          "mechanisms that forget" },
        { o->in[IN_BETA], !recurrent || o->form.beta, "--beta",
          "ssd, delta, gated-delta, kda, mesa and path" },
        { o->in[IN_W], !recurrent, "--w", LOCAL },
        { o->cu_seqlens_k, !recurrent, "--cu-seqlens-k", LOCAL },
        { o->in[IN_STATE], recurrent, "--state-in", FAMILY },
        { o->out[OUT_STATE], recurrent, "--state-out", FAMILY },
        { o->in[IN_GRAD_STATE], recurrent, "--grad-state-out", FAMILY },
        { o->feature_map, recurrent, "--feature-map", FAMILY },
        { o->normalise, recurrent, "--normalise", FAMILY },
        { o->out[OUT_LSE], !recurrent, "--lse", LOCAL },
        { o->out[OUT_RHO], !recurrent, "--rho", LOCAL },
        { o->out[OUT_WEIGHTS], !recurrent, "--weights", LOCAL },
    };
    int status = 0;
    for (size_t i = 0; i < sizeof only / sizeof *only && !status; i++)
        status = check_only(o, only[i].given, only[i].has, only[i].option, only[i].which, error);
    return status;
}

/* What a mechanism cannot do without. Retention and mesa have defaults. */
static int check_needed(const attend_options *o, io_error *error)
{
    const bool fox = strcmp(o->name, "fox") == 0, path = strcmp(o->name, "path") == 0 || o->in[IN_W];
    const bool defaults = o->mechanism == LOAM_RETENTION || o->mechanism == LOAM_MESA;
    const bool decays = fox || (attend_is_recurrent(o) && o->form.log_decay != LOAM_DECAY_NONE && !defaults);
    const bool writes = path || (attend_is_recurrent(o) && o->form.beta && !defaults);
    if (decays && !o->in[IN_LOG_DECAY])
        return io_fail(error, EXIT_USAGE, "--log-decay F is needed for %s", o->name);
    if (path && !o->in[IN_W]) return io_fail(error, EXIT_USAGE, "--w F is needed for %s", o->name);
    if (writes && !o->in[IN_BETA])
        return io_fail(error, EXIT_USAGE, "--beta F is needed for %s%s", o->name,
                       path && strcmp(o->name, "path") != 0 ? " with --w" : "");
    if (!attend_is_recurrent(o) && o->in[IN_BETA] && !path)
        return io_fail(error, EXIT_USAGE, "--beta needs --w for %s", o->name);
    if (o->in[IN_GRAD_STATE] && !o->grad_dir)
        return io_fail(error, EXIT_USAGE, "--grad-state-out needs --grad-out and --grad-dir");
    return 0;
}

static int check_given(const attend_options *o, io_error *error)
{
    static const enum attend_input needed[] = { IN_Q, IN_K, IN_V };
    const bool ridge = o->mechanism == LOAM_LLA || o->mechanism == LOAM_MESA;
    for (int i = 0; i < 3; i++)
        if (!o->in[needed[i]])
            return io_fail(error, EXIT_USAGE, "%s F is needed", attend_input_option(needed[i]));
    if (!o->out[OUT_O]) return io_fail(error, EXIT_USAGE, "--out F is needed");
    if ((o->mechanism == LOAM_PARALLAX) != (o->in[IN_PROBE] != NULL))
        return io_fail(error, EXIT_USAGE,
                       o->in[IN_PROBE] ? "--probe is for parallax only" : "--probe F is needed for parallax");
    int status = check_only(o, o->ridge, ridge, "--ridge", "lla and mesa", error);
    if (!status)
        status = check_only(o, o->ridge_unit, o->mechanism == LOAM_LLA, "--ridge-unit", "lla", error);
    if (!status)
        status = check_only(o, o->in[IN_SINK], o->mechanism == LOAM_SOFTMAX, "--sink", "softmax", error);
    if (!status) status = check_recurrent_options(o, error);
    if (!status) status = check_needed(o, error);
    if (status) return status;
    if (!o->in[IN_GRAD_OUT] != !o->grad_dir)
        return io_fail(error, EXIT_USAGE, "--grad-out F and --grad-dir D are given together or not at all");
    if ((o->rope_layout || o->rope_dim || o->rope_offset) && o->rope == 0)
        return io_fail(error, EXIT_USAGE, "--rope-layout, --rope-dim and --rope-offset need --rope BASE");
    if (o->cu_seqlens_k && !o->cu_seqlens)
        return io_fail(error, EXIT_USAGE, "--cu-seqlens-k needs --cu-seqlens");
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
    list_outputs(rows + list_inputs(rows, options), options);
    int status = options_parse(&argc, argv, rows, USAGE, ABOUT, &options->help, error);
    if (status || options->help) return status;
    status = check_mechanism(options, argc, argv, error);
    if (!status) status = check_linear(options, options->linear, error);
    if (!status) status = check_choices(options, error);
    if (!status) status = check_given(options, error);
    if (!status) status = check_outputs(options, error);
    return status ? status : check_ridge(options, error);
}
