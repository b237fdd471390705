/* SPDX-License-Identifier: MIT
 *
 * Tolerances. A row of an output may be wrong by 20 a, all rows together by |a|, where
 *
 *     a = base * factor * max(|row|, floor) + memory * |row| + grain
 *
 * base: relative error of float32 on N(0, 1) data; factor: how much harder the row is
 * (condition.h); floor: part of what is added up to make the row, below which cancellation
 * decides; memory: rounding to 16 bits, of the result and, for bfloat16, of what is multiplied
 * on the way; grain: the smallest float16. CUDA kernels compute with 16-bit operands: there
 * the base is what they promise of 16-bit types, and on float32 the same as on the CPU. */
#include "tests/check/judge.h"

#include "tests/check/condition.h"
#include "tests/support/compare.h"
#include "tests/support/element.h"
#include "tests/support/kernels.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define ROW_ALLOWANCE 20.0
#define SAID 0.1      /* floor: this part of the terms' absolute sum */
#define ROUNDED 0.005 /* likewise of what is added up before, whose rounding counts */
#define MEAN_KEY 0.05
#define GRADED 0.01         /* floor of gradients: this part of a bound on them */
#define MOST_RESIDUAL 2e-2f /* Hopper's forward that saves accepts 1.8e-2 */

typedef struct allowance {
    double base, memory, grain;
} allowance;

/* What kernels with 16-bit operands promise of N(0, 1) data.
 * Smaller ridges than 0.1 come in by the factor of the row. */
static double promised_of_halves(const spec *s, slot which)
{
    const double half = s->dtype == LOAM_F16 ? 0.5 : 1;
    if (s->mechanism != LOAM_LLA) return half * (which == SLOT_O || which == SLOT_GRAD_V ? 4e-3 : 5e-3);
    const int row = s->ridge >= 10 ? 0 : s->ridge >= 1 ? 1 : 2;
    static const double o[] = { 4e-3, 5e-3, 1e-2 }, keys[] = { 6e-3, 1e-2, 3e-2 }, v[] = { 4e-3, 6e-3, 1e-2 },
                        ridge[] = { 1e-2, 2e-2, 5e-2 };
    switch (which) {
    case SLOT_O: return half * o[row];
    case SLOT_GRAD_V: return half * v[row];
    case SLOT_GRAD_Q:
    case SLOT_GRAD_K: return half * keys[row];
    default: return half * ridge[row];
    }
}

static allowance allowance_of(const spec *s, slot which)
{
    const int lla = s->mechanism == LOAM_LLA, gradient = which >= SLOT_GRAD_Q;
    const int stored = slot_dtype(s, which) == (loam_dtype)s->dtype;
    allowance a = { gradient ? (lla ? 1e-4 : 2e-5) : lla ? 2e-5 : 5e-6, 0, 1e-30 };
    if (s->dtype == LOAM_F64) {
        a.base = 1e-13;
    } else if (!stored &&
               ((lla && which != SLOT_LSE && s->dtype != LOAM_F32) || (gradient && s->dtype == LOAM_BF16))) {
        /* the solver stops where the 16-bit outputs are good
         * enough; kernels may round to bfloat16 on the way */
        a.base = (gradient ? 2 : 1) * (s->dtype == LOAM_BF16 ? 4e-3 : 1e-3);
    } else if (stored && s->dtype == LOAM_BF16) {
        a.memory = gradient ? 8e-3 : 4e-3;
    } else if (stored && s->dtype == LOAM_F16) {
        a.memory = gradient ? 2e-3 : 1e-3;
        a.grain = 6e-8 * sqrt((double)s->dim_qk + (double)s->dim_v);
    }
    if (element_bytes((loam_dtype)s->dtype) == 2 && (which != SLOT_LSE || s->path) && kernel_on_device(s))
        a.base = promised_of_halves(s, which);
    return a;
}

/* A bound on one row (or number) of a gradient, from the largest norms of the case. */
static double gradient_bound(const spec *s, const condition *x, slot which, double rows)
{
    const double keys = x->key + x->raw_key, spread = x->value + x->raw_value;
    const double scale = s->scale != 0 ? fabs(s->scale) : 1 / sqrt((double)s->dim_qk);
    const double rbf = s->score == LOAM_RBF, lla = s->mechanism == LOAM_LLA;
    const double fit = lla * x->grad_o * spread * x->slope_of_fit;
    const double kept = 1 + x->probe * x->key, miss = x->grad_o * spread + fit * x->key;
    const double ds = kept * miss;
    switch (which) {
    case SLOT_GRAD_Q: return scale * ds * (keys + rbf * x->query) + fit;
    case SLOT_GRAD_K: return scale * ds * x->query + miss * x->probe + kept * fit;
    case SLOT_GRAD_V: return kept * x->grad_o;
    case SLOT_GRAD_W:
    case SLOT_GRAD_BETA: return 4 * scale * ds * x->query * keys;
    case SLOT_GRAD_PROBE: return x->grad_o * spread * keys;
    case SLOT_GRAD_RIDGE: return fit * x->probe * (s->ridge_axes >= LOAM_RIDGE_TOKEN ? 1 : sqrt(rows));
    case SLOT_GRAD_SCALE: return ds * (keys + rbf * x->query) * x->query * sqrt(rows);
    case SLOT_GRAD_SLOPE: return ds * x->distance * sqrt(rows);
    case SLOT_GRAD_SINK: return ds * sqrt(rows);
    default: return ds;
    }
}

/* factor and floor of a row of an output. */
static void row_terms(const values *want, const condition *x, slot which, int64_t row, double size,
                      double mean, double *factor, double *floor)
{
    const spec *s = &want->spec;
    const row_condition *c = which < SLOT_GRAD_Q ? &x->row[row] : NULL;
    switch (which) {
    case SLOT_O:
        *factor = c->factor;
        *floor = fmax(size, SAID * c->mass + ROUNDED * c->terms);
        break;
    case SLOT_LSE:
        *factor = 1;
        *floor = 0.3 * (1 + (isfinite(want->x[SLOT_LSE][row]) ? size : 0) + c->score);
        break;
    case SLOT_RHO: /* the mean key is rounded, and its error divided by the ridge */
        *factor = c->factor;
        *floor = fmax(size, SAID * mean) + MEAN_KEY * x->raw_key * c->root * c->root / c->factor;
        break;
    case SLOT_WEIGHTS:
        *factor = c->factor;
        *floor = fmax(size, SAID * mean);
        break;
    default:
        *factor = x->worst;
        *floor = fmax(fmax(size, mean),
                      GRADED * gradient_bound(s, x, which, (double)slot_size(want, SLOT_LSE)));
    }
}

static void place(const values *v, slot which, int64_t row, verdict *out)
{
    const shape a = slot_shape(v, which);
    out->worst = which;
    out->at[0] = row / a.tokens / a.heads;
    out->at[1] = row / a.tokens % a.heads;
    out->at[2] = row % a.tokens;
}

/* Beyond the largest float16 both are as good as infinite. */
static double forgiven(const spec *s, slot which, double want, double got)
{
    const double most = 65504;
    const int overflows = slot_dtype(s, which) == LOAM_F16 && fabs(want) > 0.99 * most;
    return overflows && got * want > 0 && fabs(got) > 0.98 * most ? want : got;
}

static void judge_slot(const values *got, const values *want, const condition *x, slot which, verdict *out)
{
    const shape a = slot_shape(want, which);
    const int64_t rows = a.batch * a.heads * a.tokens, n = a.channels;
    const allowance tolerance = allowance_of(&got->spec, which);
    const double mean = rows ? compare_norm(want->x[which], rows * n) / sqrt((double)rows) : 0;
    double allowed2 = 0, wrong2 = 0, worst = 0;
    int64_t worst_row = 0;
    for (int64_t r = 0; r < rows; r++) {
        const double *w = want->x[which] + r * n, size = compare_norm(w, n);
        double *g = got->x[which] + r * n, factor, floor;
        for (int64_t c = 0; c < n; c++)
            g[c] = forgiven(&got->spec, which, w[c], g[c]);
        row_terms(want, x, which, r, size, mean, &factor, &floor);
        const double kept = got->spec.dtype == LOAM_BF16 ? floor : size;
        const double allowed = tolerance.base * factor * floor + tolerance.memory * kept + tolerance.grain;
        const double wrong = compare_distance(w, g, n);
        allowed2 += allowed * allowed;
        wrong2 += wrong * wrong;
        if (wrong / (ROW_ALLOWANCE * allowed) > worst) {
            worst = wrong / (ROW_ALLOWANCE * allowed);
            worst_row = r;
        }
    }
    /* A mean over few errors is that much less of one. */
    const double few = 1 + 1 / sqrt((double)(rows * n) + 1);
    const double fraction = fmax(worst, allowed2 > 0 ? sqrt(wrong2 / allowed2) / few : 0);
    if (fraction > out->fraction) {
        out->fraction = fraction;
        place(want, which, worst_row, out);
    }
}

static void judge_info(const values *got, const values *want, verdict *out)
{
    for (int64_t r = 0; r < slot_size(got, SLOT_INFO); r++) {
        const loam_row_info *g = &got->info[r], *w = &want->info[r];
        const int none = got->spec.mechanism != LOAM_LLA || w->code == LOAM_ROW_EMPTY;
        const int solver = none ? g->solver == LOAM_SOLVER_NONE
                                : g->solver > LOAM_SOLVER_NONE && g->solver <= LOAM_SOLVER_GRAM;
        if (!out->text[0] && (g->code != w->code || !solver || g->iterations < 0 || !(g->residual >= 0) ||
                              !(g->residual < MOST_RESIDUAL))) {
            snprintf(out->text, sizeof out->text,
                     "info of row %lld: code %d solver %d iterations %d residual %g, "
                     "reference code %d",
                     (long long)r, (int)g->code, (int)g->solver, (int)g->iterations, (double)g->residual,
                     (int)w->code);
        }
    }
}

/* With ridge 0 rows may be singular, or so nearly that only their being finite can be asked. */
static void judge_finite(const values *got, verdict *out)
{
    for (int which = SLOT_FIRST_OUTPUT; which < SLOT_COUNT; which++) {
        if (!got->x[which]) continue;
        for (int64_t i = 0; i < slot_size(got, (slot)which); i++) {
            const double x = got->x[which][i];
            const int fine = isfinite(x) || (which == SLOT_LSE && x < 0) ||
                             (slot_dtype(&got->spec, (slot)which) == LOAM_F16 && isinf(x));
            if (!fine && !out->text[0])
                snprintf(out->text, sizeof out->text, "%s[%lld] is %g", slot_names[which], (long long)i, x);
        }
    }
}

/* Have all tokens of a head one key, as a stride of 0 gives it to them? */
static int one_key(const values *v)
{
    const shape k = slot_shape(v, SLOT_K);
    const double *row = v->x[SLOT_K];
    for (int64_t r = 1; r < k.batch * k.heads * k.tokens; r++, row += k.channels)
        if (r % k.tokens != 0 && memcmp(row, row + k.channels, (size_t)k.channels * sizeof *row) != 0)
            return 0;
    return k.tokens > 1;
}

/* What kernels promise of the recurrent family: relative, Frobenius, twice that of parameters of the
 * recurrence. Where keys are alike a delta rule takes back with every token what the one before wrote: of
 * the terms of a chunk of 64 little is left, and 16-bit operands lose up to sqrt(64) / 2 times as much. Keys
 * of a trained model are alike: those of layer 20 have a mean cosine of 0.77. Of few channels, 64 / d keys
 * share each direction. */
static double promised_of_recurrences(const values *v, slot which)
{
    const spec *s = &v->spec;
    const int gradient = which >= SLOT_GRAD_Q && which != SLOT_STATE_OUT;
    const int parameter = gradient && slot_dtype(s, which) != (loam_dtype)s->dtype;
    const int alike = (s->data >= DATA_EQUAL && s->data <= DATA_FAR) || s->data == DATA_REAL || one_key(v);
    const double tokens = alike ? 64 : fmax(64 / (double)s->dim_qk, 4);
    const int takes_back = spec_recurrence_of(s).delta && strstr(s->kernel, "_hopper");
    const double twice = (parameter || (gradient && s->dtype == LOAM_F64) ? 2 : 1) *
                         (takes_back ? sqrt(tokens) / 2 : 1);
    switch ((loam_dtype)s->dtype) {
    case LOAM_F64: return twice * 1e-12;
    case LOAM_F32: return twice * (s->mechanism == LOAM_MESA ? 1e-4 : gradient ? 5e-5 : 1e-5);
    case LOAM_BF16: return twice * (gradient ? 1e-2 : 5e-3);
    case LOAM_F16: break;
    }
    return twice * (gradient ? 2e-3 : 1e-3);
}

/* The tokens that a state remembers, most of them over the heads. */
static double memory_of_heads(const values *v)
{
    const shape a = slot_shape(v, SLOT_LOG_DECAY);
    const double tokens = (double)slot_shape(v, SLOT_Q).tokens;
    double most = 1;
    for (int64_t h = 0; h < a.heads; h++)
        most = fmax(most, fmin(tokens, -1 / expm1(v->x[SLOT_LOG_DECAY][h])));
    return most;
}

/* How large what is added up may be where it cancels. Gradients through a mean are differences, of
 * one value they are 0; that of the scale is one sum of q . grad_q / scale over all tokens, in which
 * errors of grad_q of any direction add up, and that of a decay of the head has such terms from as
 * many tokens as the state remembers. Rows that are alike err alike: their errors add up as such. Features
 * that are all positive are alike in their direction: there a channel of values errs as one. */
static double cancelling(const values *want, slot which)
{
    const spec *s = &want->spec;
    const int alike = s->data >= DATA_EQUAL && s->data <= DATA_FAR;
    const double rows = alike ? 1 : (double)slot_size(want, SLOT_Q) / (double)s->dim_qk;
    const int decay = which == SLOT_GRAD_LOG_DECAY && spec_recurrence_of(s).gate == SPEC_GATE_HEAD;
    if ((which == SLOT_GRAD_SCALE || decay) && !s->normalise) {
        const double scale = s->scale != 0               ? fabs(s->scale)
                             : s->mechanism == LOAM_MESA ? 1
                                                         : 1 / sqrt((double)s->dim_qk);
        const int64_t q = slot_size(want, SLOT_Q);
        const int few = s->feature_map == LOAM_FEATURES_ELU && s->dim_v < s->dim_qk;
        return compare_norm(want->x[SLOT_Q], q) * compare_norm(want->x[SLOT_GRAD_Q], q) /
               sqrt((rows + 1) * (double)(few ? s->dim_v : s->dim_qk)) *
               (decay ? memory_of_heads(want) : 1 / scale);
    }
    if (which == SLOT_GRAD_RIDGE) { /* of z x over all tokens; |z| is that of dq, |x| <= |q| / ridge */
        const int64_t q = slot_size(want, SLOT_Q);
        return GRADED * compare_norm(want->x[SLOT_Q], q) * compare_norm(want->x[SLOT_GRAD_Q], q) / s->ridge /
               sqrt(rows + 1);
    }
    if (which == SLOT_STATE_OUT && s->state &&
        spec_recurrence_of(s).delta) /* a chunk takes back what was there */
        return GRADED * compare_norm(want->x[SLOT_STATE_IN], slot_size(want, SLOT_STATE_IN));
    const int cancels = s->normalise && which >= SLOT_GRAD_Q && which != SLOT_GRAD_V &&
                        which != SLOT_STATE_OUT && which != SLOT_GRAD_SCALE;
    const int64_t n = slot_size(want, SLOT_V);
    if (which == SLOT_GRAD_Z && n > 0) { /* of gradients of features, which cancel, times queries and keys */
        const double keys = compare_norm(want->x[SLOT_K], slot_size(want, SLOT_K)) /
                            sqrt((double)n / (double)s->dim_v);
        return SAID * fmax(keys, 1) * compare_norm(want->x[SLOT_GRAD_O], slot_size(want, SLOT_GRAD_O)) *
               compare_norm(want->x[SLOT_V], n) / sqrt((double)n);
    }
    return cancels && n > 0 ? SAID * compare_norm(want->x[SLOT_GRAD_O], slot_size(want, SLOT_GRAD_O)) *
                                  compare_norm(want->x[SLOT_V], n) / sqrt((double)n)
                            : 0;
}

static void judge_recurrent_slot(const values *got, const values *want, slot which, verdict *out)
{
    const shape a = slot_shape(want, which);
    const int64_t rows = a.batch * a.heads * a.tokens, count = rows * a.channels;
    const double tiny = slot_dtype(&got->spec, which) == LOAM_F16 ? 6e-8 : 1e-30;
    const double size = compare_norm(want->x[which], count) + cancelling(want, which);
    const double allowed = promised_of_recurrences(got, which) * size + tiny * sqrt((double)count + 1);
    for (int64_t i = 0; i < count; i++)
        got->x[which][i] = forgiven(&got->spec, which, want->x[which][i], got->x[which][i]);
    const double fraction = compare_distance(want->x[which], got->x[which], count) / allowed;
    if (!(fraction <= out->fraction)) {
        out->fraction = fraction;
        const difference d = compare(want->x[which], got->x[which], rows, a.channels);
        place(want, which, d.row, out);
    }
}

static verdict judge_recurrent(const values *got, const values *want)
{
    verdict out = { 0, SLOT_O, { 0, 0, 0 }, "" };
    judge_finite(got, &out);
    for (int which = SLOT_FIRST_OUTPUT; which < SLOT_COUNT; which++)
        if (got->x[which] && spec_wants(&got->spec, (slot)which))
            judge_recurrent_slot(got, want, (slot)which, &out);
    const int wanted = got->info && spec_wants(&got->spec, SLOT_INFO);
    for (int64_t r = 0; wanted && !out.text[0] && r < slot_size(got, SLOT_INFO); r++) {
        const loam_row_info *g = &got->info[r], *w = &want->info[r];
        const int solver = got->spec.mechanism == LOAM_MESA ? g->solver != LOAM_SOLVER_NONE
                                                            : g->solver == LOAM_SOLVER_NONE;
        if (g->code != w->code || !solver || g->iterations < 0 || !(g->residual >= 0) ||
            g->residual > 1e-3f) {
            snprintf(out.text, sizeof out.text,
                     "info of row %lld: code %d solver %d residual %g, reference code %d", (long long)r,
                     (int)g->code, (int)g->solver, (double)g->residual, (int)w->code);
        }
    }
    return out;
}

verdict judge(const values *got, const values *want, const double *rho)
{
    if (spec_recurrent(&got->spec)) return judge_recurrent(got, want);
    verdict out = { 0, SLOT_O, { 0, 0, 0 }, "" };
    judge_finite(got, &out);
    if (got->spec.mechanism == LOAM_LLA && got->spec.ridge == 0) return out;
    condition x = condition_of(want, rho);
    for (int which = SLOT_FIRST_OUTPUT; which < SLOT_COUNT; which++)
        if (got->x[which] && spec_wants(&got->spec, (slot)which))
            judge_slot(got, want, &x, (slot)which, &out);
    if (got->info && spec_wants(&got->spec, SLOT_INFO)) judge_info(got, want, &out);
    condition_free(&x);
    return out;
}
