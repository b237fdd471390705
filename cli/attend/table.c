/* SPDX-License-Identifier: MIT */
#include "cli/attend/table.h"

#include <stdio.h>
#include <string.h>

const char ATTEND_USAGE[] = "loam attend MECHANISM --q F --k F --v F --out F [options]";

const char *const ATTEND_SOFTMAX_NAMES[] = { "fox", "path", NULL };

static const char ABOUT[] =
    "Attention of the queries q over the keys k with values v. MECHANISM is of the local family, a fit of "
    "its own for each query: %s; a recurrence, one linear map for all that came before: %s; or "
    "interpolation: softmax on what a recurrence leaves over. `loam list --table` has what each fits.\n\n"
    "Files F are FILE.npy (float16, float32, float64, little-endian, C order) or FILE.safetensors:TENSOR "
    "(F16, BF16, F32, F64). q, k and v have one rank: (B,H,T,D), (H,T,D) or (T,D). Other shapes are told for "
    "the first of them; where q has no B or H they lose these axes too: with q of (T,D) a ridge per token is "
    "(T,). Hq, Hk and Hv are the heads of q, k and v, Tq and Tk the tokens of q and k. With --cu-seqlens, q "
    "has (H,T,D) or (T,D) with the T tokens of N sequences one after the other, states are (N,Hv,R,D) or "
    "(N,R,D), weights (Hq,Tq,keys of the longest). Only q, k, v, probe, w, out, rho, grad-out and their "
    "gradients follow --layout.\n\n"
    "Results are .npy files with the rank of q; bfloat16 is written as float32. None appears before all are "
    "complete, and none is written over an input.\n\n"
    "Exit status: 0 done, 1 a bug or too little memory, 2 wrong options, 3 wrong input, 4 output not "
    "written.";

static const char LOCAL[] =
    "softmax fits a constant; parallax is given the slope of a line, its probe, lla (Local Linear "
    "Attention) solves for it; fox is softmax whose scores decay, path softmax whose keys are reflected by "
    "the tokens between. Hq is a multiple of Hk, and Hv is Hk. Shapes: ridge () or (1,), (Hq,), (B,Hq,Tq) "
    "or (B,Hq,Tq,D); log-decay and key-bias (B,Hq,Tk); beta (B,Hk,Tk); slope and sink (Hq,); lse (B,Hq,Tq); "
    "weights (B,Hq,Tq,Tk).";

static const char RECURRENT[] =
    "q and k have one shape, and Hv is a multiple of their heads; with positive features Hq is a multiple of "
    "Hk, and Hv is Hk. Shapes: log-decay (Hv,) for %s, (B,Hv,T) "
    "for %s, (B,Hv,T,D) for %s; beta (B,Hv,T); ridge () or (1,), (Hv,) or (Hv,D); a state (B,Hv,R,D), R the "
    "channels of v, one more with --normalise, D more for mesa; with positive features (B,Hz,R,M), R two "
    "more than these channels. Beside z (Hz,M,D): log-alpha (Hz,M), shift (Hz,D), balance and balance-keys "
    "(Hz,D,D).";

static const double NO_BOUND = 1e300;

/* ---------------------------------------------------------------- which mechanisms have what */

static bool has_probe(const loam_mechanism_info *info) { return info->probe; }
static bool has_sink(const loam_mechanism_info *info) { return info->sink; }
static bool is_normalised(const loam_mechanism_info *info) { return info->normalise; }
static bool may_decay(const loam_mechanism_info *info)
{
    return names_is_local(info) || info->log_decay != LOAM_DECAY_NONE;
}
static bool may_write(const loam_mechanism_info *info) { return names_is_local(info) || info->beta; }
static bool by_head(const loam_mechanism_info *info) { return info->log_decay == LOAM_DECAY_HEAD; }
static bool by_token(const loam_mechanism_info *info) { return info->log_decay == LOAM_DECAY_TOKEN; }
static bool by_channel(const loam_mechanism_info *info) { return info->log_decay == LOAM_DECAY_CHANNEL; }

static const attend_only ALL = { NULL, NULL }, LOCAL_ONES = { names_is_local, ATTEND_SOFTMAX_NAMES },
                         RECURRENCES = { names_is_recurrent, NULL };

/* ---------------------------------------------------------------- rows */

/* A first %s of the help becomes the names of the mechanisms. */
static void add(attend_table *t, attend_only only, option_row row)
{
    const char *place = strstr(row.help, "%s");
    char names[NAMES_BYTES], *text = t->text[t->count];
    t->rows[t->count] = row, t->only[t->count] = only;
    if (place) {
        snprintf(text, sizeof t->text[0], "%.*s%s%s", (int)(place - row.help), row.help,
                 names_mechanisms(names, only.is, only.more, ", "), place + 2);
        t->rows[t->count].help = text;
    }
    t->count++;
}

static void add_group(attend_table *t, const char *name, const char *help, const char *example)
{
    t->rows[t->count++] = (option_row){ name, OPTION_GROUP, NULL, 0, 0, example, help };
}

static void add_text(attend_table *t, attend_only only, const char *name, const char **value,
                     const char *argument, const char *help)
{
    add(t, only, (option_row){ name, OPTION_TEXT, value, 0, 0, argument, help });
}

static void add_flag(attend_table *t, attend_only only, const char *name, bool *value, const char *help)
{
    add(t, only, (option_row){ name, OPTION_FLAG, value, 0, 0, NULL, help });
}

static void add_number(attend_table *t, option_kind kind, const char *name, void *value, double min,
                       double max, const char *argument, const char *help)
{
    add(t, ALL, (option_row){ name, kind, value, min, max, argument, help });
}

static void add_inputs(attend_table *t, attend_options *o)
{
    add_group(t, "inputs and results", NULL, "loam attend softmax --q q.npy --k k.npy --v v.npy --out o.npy");
    add_text(t, ALL, "q", &o->in[IN_Q], "F", "queries");
    add_text(t, ALL, "k", &o->in[IN_K], "F", "keys");
    add_text(t, ALL, "v", &o->in[IN_V], "F", "values; their last axis may differ");
    add_text(t, ALL, "out", &o->out[OUT_O], "F", "the result; - is standard output");
    add_text(t, (attend_only){ names_has_ridge, NULL }, "ridge", &o->ridge, "X|F",
             "%s: a number or a file; default 0.1");
    add_text(
        t, (attend_only){ may_decay, ATTEND_SOFTMAX_NAMES }, "log-decay", &o->in[IN_LOG_DECAY], "F",
        "logarithms of the decays, -inf to 0. Default 0, nothing is forgotten, but log(1 - 2^(-5-h)) where "
        "head h has one; of the local family only fox decays without being given them");
    add_text(t, (attend_only){ may_write, ATTEND_SOFTMAX_NAMES }, "beta", &o->in[IN_BETA], "F",
             "strengths of what a recurrence writes, or of the reflections w; default 1");
    add_number(t, OPTION_REAL, "scale", &o->problem.scale, -NO_BOUND, NO_BOUND, "X",
               "factor of the scores, or of q in recurrences; default 1/sqrt(D), but 1 for mesa");
    add_text(
        t, ALL, "cu-seqlens", &o->cu_seqlens, "F",
        "q, k and v hold sequences one after the other; F.npy (int32 or int64) has where each begins, and "
        "the end");
    add_number(t, OPTION_REAL, "rope", &o->rope, 1, NO_BOUND, "BASE",
               "turn q and k by their positions first (RoPE; 10000 is usual), and their gradients back");
    add_text(t, ALL, "rope-layout", &o->rope_layout, "L",
             "which channels turn together: half (c and c + D/2, default) or interleaved (2c and 2c + 1)");
    add_number(t, OPTION_INT, "rope-dim", &o->rope_dim, 2, LOAM_MAX_DIM, "N",
               "only the first N channels turn; default all");
    add_number(t, OPTION_INT, "rope-offset", &o->rope_offset, -1e15, 1e15, "N",
               "position of the first key; default 0");
    add_text(t, ALL, "info", &o->out[OUT_INFO], "F", "how each solve ended, as CSV");
    add_text(t, ALL, "grad-out", &o->in[IN_GRAD_OUT], "F", "gradient of the result");
    add_text(
        t, ALL, "grad-dir", &o->grad_dir, "D",
        "write all gradients here: dq.npy, dk.npy, dv.npy, dscale.npy and, where they apply, dprobe.npy, "
        "dridge.npy, dslope.npy, dkey_bias.npy, dsink.npy, dlog_decay.npy, dbeta.npy, dw.npy, dstate.npy (of "
        "--state-in), dz.npy, dlog_alpha.npy. A decay, strength or ridge that is left out has its gradient "
        "too, a state has not");
}

static void add_machine(attend_table *t, attend_options *o)
{
    add_group(t, "how it is computed", NULL, NULL);
    add_text(t, ALL, "layout", &o->layout, "L", "bhtd (default) or bthd: (B,T,H,D), (T,H,D)");
    add_text(
        t, ALL, "dtype", &o->dtype, "T",
        "f32, bf16, f16 or f64: convert inputs and compute so. Default: the type of q, but float64 becomes "
        "f32 unless the back end is reference");
    add_text(t, ALL, "backend", &o->backend, "B",
             "cpu, cuda (the current NVIDIA GPU; arrays are copied there and back), reference, or auto, the "
             "default: the fastest of the CPU's that fits");
    add_text(t, ALL, "kernel", &o->kernel, "K", "one forward kernel of `loam list`");
    add_text(t, ALL, "grad-kernel", &o->grad_kernel, "K", "likewise for the gradients");
    add_number(t, OPTION_INT, "threads", &o->threads, 1, 4096, "N", "default: all");
    add_flag(t, ALL, "verbose", &o->verbose, "name the chosen kernels on standard error");
}

static void add_local(attend_table *t, attend_options *o)
{
    add_group(t, "local family", LOCAL,
              "loam attend lla --q q.npy --k k.npy --v v.npy --ridge 0.1 --window 256 --out o.npy");
    add_text(t, (attend_only){ has_probe, NULL }, "probe", &o->in[IN_PROBE], "F",
             "%s: the probe, of the shape of q");
    add_text(
        t, (attend_only){ names_has_units, NULL }, "ridge-unit", &o->ridge_unit, "U",
        "%s: the ridge is relative to normalised weights (normalised, default), to max-normalised weights "
        "(max) or to the trace of the covariance (trace)");
    add_text(t, ALL, "score", &o->score, "S", "dot (default): scale q.k; rbf: -scale/2 |q-k|^2");
    add_number(t, OPTION_REAL, "soft-cap", &o->problem.soft_cap, 0, NO_BOUND, "C",
               "scores become C tanh(s / C)");
    add_flag(t, ALL, "full", &o->full, "see all keys; default causal, aligned at the last token");
    add_number(t, OPTION_INT, "window", &o->problem.window, 1, NO_BOUND, "N",
               "see only keys less than N tokens away");
    add_text(t, LOCAL_ONES, "slope", &o->in[IN_SLOPE], "F",
             "per head: subtract slope x distance from scores");
    add_text(t, LOCAL_ONES, "key-bias", &o->in[IN_KEY_BIAS], "F", "added to the scores of a key");
    add_text(t, (attend_only){ has_sink, NULL }, "sink", &o->in[IN_SINK], "F",
             "%s: per head, a logit that takes mass");
    add_text(t, LOCAL_ONES, "w", &o->in[IN_W], "F",
             "rows of length 1 that reflect the keys before them, of the shape of k; path needs them");
    add_text(t, LOCAL_ONES, "cu-seqlens-k", &o->cu_seqlens_k, "F",
             "as --cu-seqlens, of the keys, where they begin elsewhere");
    add_text(t, LOCAL_ONES, "lse", &o->out[OUT_LSE], "F", "log of the sum of exp(score)");
    add_text(t, LOCAL_ONES, "rho", &o->out[OUT_RHO], "F", "the probe that was used");
    add_text(t, LOCAL_ONES, "weights", &o->out[OUT_WEIGHTS], "F", "effective weights, Tq x Tk per head");
}

static void add_recurrent(attend_table *t, attend_options *o)
{
    char head[NAMES_BYTES], token[NAMES_BYTES], channel[NAMES_BYTES], *text = t->text[t->count];
    snprintf(text, sizeof t->text[0], RECURRENT, names_mechanisms(head, by_head, NULL, " and "),
             names_mechanisms(token, by_token, NULL, " and "),
             names_mechanisms(channel, by_channel, NULL, " and "));
    add_group(
        t, "recurrences", text,
        "loam attend gated-delta --feature-map unit --q q.npy --k k.npy --v v.npy --state-out s.npy --out "
        "o.npy");
    add_text(
        t, RECURRENCES, "feature-map", &o->feature_map, "NAME",
        "q and k become identity (default), elu(x) + 1 (elu), x / |x| (unit) or positive random features "
        "(positive; linear only, implies --normalise), whose read estimates softmax");
    add_text(t, RECURRENCES, "z", &o->in[IN_Z], "F",
             "projections of positive features, (Hq,M,D), or (Hk,M,D) where heads of keys share them");
    add_text(t, RECURRENCES, "log-alpha", &o->in[IN_LOG_ALPHA], "F",
             "logarithms of the weights of positive features; default 0");
    add_text(t, RECURRENCES, "shift", &o->in[IN_SHIFT], "F",
             "a row per head of z that keys are made less by");
    add_text(t, RECURRENCES, "balance", &o->in[IN_BALANCE], "F",
             "a matrix A per head of z: queries become A q, with --balance-keys");
    add_text(t, RECURRENCES, "balance-keys", &o->in[IN_BALANCE_KEYS], "F",
             "and keys B k, B the inverse of A transposed");
    add_flag(t, (attend_only){ is_normalised, NULL }, "normalise", &o->normalise,
             "%s: divide by what values of 1 would give");
    add_text(t, RECURRENCES, "state-in", &o->in[IN_STATE], "F", "the state to begin with; default 0");
    add_text(t, RECURRENCES, "state-out", &o->out[OUT_STATE], "F", "the state after the last token");
    add_text(t, RECURRENCES, "grad-state-out", &o->in[IN_GRAD_STATE], "F",
             "gradient of the state after the last token; default 0");
}

static void add_interpolation(attend_table *t, attend_options *o)
{
    add_group(t, "interpolation",
              "The scale and the options of scores are those of the softmax, all else is of the recurrence.",
              "loam attend interpolation --linear mesa --q q.npy --k k.npy --v v.npy --out o.npy");
    add_text(t, ALL, "linear", &o->linear, "NAME",
             "the recurrence whose linear map explains what it can; softmax does the rest");
}

void attend_table_make(attend_table *t, attend_options *o)
{
    char local[NAMES_BYTES], recurrent[NAMES_BYTES];
    *t = (attend_table){ .count = 0 };
    snprintf(t->about, sizeof t->about, ABOUT,
             names_mechanisms(local, names_is_local, ATTEND_SOFTMAX_NAMES, " or "),
             names_mechanisms(recurrent, names_is_recurrent, NULL, " or "));
    add_inputs(t, o);
    add_local(t, o);
    add_recurrent(t, o);
    add_interpolation(t, o);
    add_machine(t, o);
}

/* ---------------------------------------------------------------- what goes with a mechanism */

static bool is_given(const option_row *row)
{
    return row->kind == OPTION_FLAG ? *(const bool *)row->value : *(const char *const *)row->value != NULL;
}

int attend_table_check(const attend_table *t, const attend_options *o, io_error *error)
{
    char names[NAMES_BYTES];
    for (size_t i = 0; i < t->count; i++) {
        const attend_only *only = &t->only[i];
        if (only->is && is_given(&t->rows[i]) && !only->is(&o->form))
            return io_fail(error, EXIT_USAGE, "--%s is for %s, not for %s", t->rows[i].name,
                           names_mechanisms(names, only->is, only->more, " and "), o->name);
    }
    return 0;
}
