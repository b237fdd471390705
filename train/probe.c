/* SPDX-License-Identifier: MIT */
#include "train/probe.h"

#include "train/mixing.h"

#include <lapacke.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* The mixer itself, and softmax on its queries, keys and values. */
enum { ITSELF, SOFTMAX, FITS };

/* One sequence at a time, some of its rows as queries. */
typedef struct probing {
    const mixing *mix;
    const mixer_layer *layer;
    loam_plan *plan[FITS];
    void *o[FITS], *weights[FITS], *rho, *work;
    memory room;
} probing;

/* Over rows, but for negative and visible, which are over keys, and squares, over channels. */
typedef struct sums {
    double correction, mean, squares, negative, visible, entropy, first;
    int64_t rows, channels;
} sums;

static loam_status fail(loam_error *error, loam_status status, const char *what, const char *text)
{
    if (error) {
        *error = (loam_error){ .status = status };
        snprintf(error->text, sizeof error->text, "%s: %s", what, text);
    }
    return status;
}

static double element(loam_dtype dtype, const void *x, int64_t i)
{
    return dtype == LOAM_F64 ? ((const double *)x)[i] : (double)((const float *)x)[i];
}

/* ---- rows of attention */

static loam_problem softmax_like(const loam_problem *other)
{
    loam_problem problem = loam_problem_default(LOAM_SOFTMAX, LOAM_FORWARD);
    problem.dtype = other->dtype;
    problem.heads_q = other->heads_q, problem.heads_kv = other->heads_kv;
    problem.len_q = other->len_q, problem.len_kv = other->len_kv;
    problem.dim_qk = other->dim_qk, problem.dim_v = other->dim_v;
    problem.scale = other->scale;
    problem.causal = other->causal;
    problem.threads = other->threads;
    return problem;
}

static void take_all(probing *p)
{
    const loam_problem *problem = loam_plan_problem(p->plan[ITSELF]);
    const size_t bytes = problem->dtype == LOAM_F64 ? sizeof(double) : sizeof(float);
    const int64_t rows = problem->heads_q * problem->len_q;
    size_t work = 0;
    for (int i = 0; i < FITS; i++) {
        const size_t wanted = loam_plan_work_bytes(p->plan[i]);
        if (wanted > work) work = wanted;
        p->o[i] = memory_take(&p->room, rows * problem->dim_v, bytes);
        p->weights[i] = memory_take(&p->room, rows * problem->len_kv, bytes);
    }
    p->rho = memory_take(&p->room, rows * problem->dim_qk, bytes);
    p->work = memory_take(&p->room, (int64_t)work, 1);
}

static loam_status probing_open(probing *p, const loam_problem *one, loam_error *error)
{
    const loam_problem softmax = softmax_like(one);
    loam_status status = loam_plan_create(&p->plan[ITSELF], one, error);
    if (!status) status = loam_plan_create(&p->plan[SOFTMAX], &softmax, error);
    if (status) return status;
    take_all(p);
    if (!memory_open(&p->room, p->mix->on)) return fail(error, LOAM_EMEMORY, p->mix->row->name, "no memory");
    take_all(p);
    return LOAM_OK;
}

static void probing_close(probing *p)
{
    for (int i = 0; i < FITS; i++)
        loam_plan_destroy(p->plan[i]);
    memory_close(&p->room);
}

/* A sequence's array from its row `first` on. */
static loam_const_view rows_of(const probing *p, activation which, int64_t model, int64_t sequence,
                               int64_t first)
{
    const matrix a = p->layer->value[which];
    const int64_t row = sequence * p->mix->shape.length + first;
    if (!a.data) return (loam_const_view){ 0 };
    const char *from = (const char *)a.data + (model * a.model + row * a.row) * matrix_bytes_each(a);
    return (loam_const_view){ from, 0, a.width / p->mix->shape.heads, a.row };
}

static loam_status run(const probing *p, int64_t model, int64_t sequence, int64_t first, loam_error *error)
{
    const loam_problem *problem = loam_plan_problem(p->plan[ITSELF]);
    const int64_t heads = problem->heads_q, len_q = problem->len_q;
    loam_args args = {
        .q = rows_of(p, ACTIVE_Q, model, sequence, first),
        .k = rows_of(p, ACTIVE_K, model, sequence, 0),
        .v = rows_of(p, ACTIVE_V, model, sequence, 0),
        .work = p->work,
    };
    loam_status status = LOAM_OK;
    for (int i = 0; i < FITS && !status; i++) {
        args.o = loam_dense_out(p->o[i], heads, len_q, problem->dim_v);
        args.weights = loam_dense_out(p->weights[i], heads, len_q, problem->len_kv);
        if (i == ITSELF) {
            args.probe = rows_of(p, ACTIVE_PROBE, model, sequence, first);
            args.ridge = rows_of(p, ACTIVE_RIDGE, model, sequence, first);
            args.rho = loam_dense_out(p->rho, heads, len_q, problem->dim_qk);
        } else {
            args.probe = args.ridge = (loam_const_view){ 0 };
            args.rho = (loam_view){ 0 };
        }
        status = loam_run(p->plan[i], &args, error);
    }
    return status;
}

static void add_row(const probing *p, int64_t row, int64_t visible, sums *to)
{
    const loam_problem *problem = loam_plan_problem(p->plan[ITSELF]);
    const loam_dtype dtype = problem->dtype;
    double miss = 0, mean = 0;
    for (int64_t c = row * problem->dim_v; c < (row + 1) * problem->dim_v; c++) {
        const double vbar = element(dtype, p->o[SOFTMAX], c), off = element(dtype, p->o[ITSELF], c) - vbar;
        miss += off * off;
        mean += vbar * vbar;
    }
    to->correction += sqrt(miss);
    to->mean += sqrt(mean);
    for (int64_t c = row * problem->dim_qk; c < (row + 1) * problem->dim_qk; c++)
        to->squares += pow(element(dtype, p->rho, c), 2);
    for (int64_t j = 0; j < visible; j++) {
        const double w = element(dtype, p->weights[SOFTMAX], row * problem->len_kv + j);
        to->entropy -= w > 0 ? w * log(w) : 0;
        to->negative += element(dtype, p->weights[ITSELF], row * problem->len_kv + j) < 0;
    }
    to->first += element(dtype, p->weights[SOFTMAX], row * problem->len_kv);
    to->visible += (double)visible;
    to->rows++;
    to->channels += problem->dim_qk;
}

/* All sequences of a model; their rows from `first` on are the problem's queries. */
static loam_status add_all(probing *p, const loam_problem *problem, int64_t model, int64_t first, sums *to,
                           loam_error *error)
{
    loam_problem one = *problem;
    one.batch = 1;
    loam_status status = probing_open(p, &one, error);
    for (int64_t b = 0; b < p->mix->shape.batch && !status; b++) {
        status = run(p, model, b, first, error);
        for (int64_t row = 0; row < one.heads_q * one.len_q && !status; row++)
            add_row(p, row, one.causal ? row % one.len_q + 1 : one.len_kv, to);
    }
    probing_close(p);
    return status;
}

static double gate_of(const mixer_layer *layer, int64_t model)
{
    const matrix gate = layer->value[ACTIVE_PROBE_GATE];
    double sum = 0;
    if (!gate.data) return NAN;
    for (int64_t i = 0; i < gate.model; i++)
        sum += element(gate.dtype, gate.data, model * gate.model + i);
    return sum / (double)gate.model;
}

loam_status probe_measure(const train_model *m, int64_t model, int64_t layer, probe_rows *rows,
                          loam_error *error)
{
    const mixing *mix = model_mixing(m);
    const mixer *row = mix->row;
    const bool local = row->block == MIXER_PLAIN && row->mechanism <= LOAM_LLA;
    if (mix->on->gpu) return fail(error, LOAM_EUNSUPPORTED, row->name, "rows are measured on a CPU");
    if (!local || row->decay != MIXER_NO_DECAY || row->reflect)
        return fail(error, LOAM_EUNSUPPORTED, row->name,
                    "rows are measured of softmax, Parallax and LLA, on plain scores");
    const loam_problem problem = mixing_problem(mix, LOAM_FORWARD);
    probing p = { .mix = mix, .layer = model_layer(m, layer) };
    sums all = { 0 };
    loam_status status = add_all(&p, &problem, model, 0, &all, error);
    if (!status && mixing_in_parts(mix)) {
        const loam_problem queries = mixing_query_problem(mix, LOAM_FORWARD);
        p = (probing){ .mix = mix, .layer = p.layer };
        status = add_all(&p, &queries, model, mix->shape.seen, &all, error);
    }
    if (status) return status;
    const double count = (double)all.rows;
    *rows = (probe_rows){ all.correction / all.mean,  sqrt(all.squares / (double)all.channels),
                          all.negative / all.visible, all.entropy / count,
                          all.first / count,          gate_of(p.layer, model) };
    return LOAM_OK;
}

/* ---- stable ranks */

/* Of a dense array, which is lost. */
static loam_status stable_rank(double *x, int64_t rows, int64_t width, double *values, double *rank)
{
    const int64_t count = rows < width ? rows : width;
    double sum = 0;
    /* Column by column it is the transposed array, whose singular values are the same. */
    const lapack_int left = LAPACKE_dgesvd(LAPACK_COL_MAJOR, 'N', 'N', (lapack_int)width, (lapack_int)rows, x,
                                           (lapack_int)width, values, NULL, 1, NULL, 1, values + count);
    if (left != 0) return left == LAPACK_WORK_MEMORY_ERROR ? LOAM_EMEMORY : LOAM_EVALUE;
    for (int64_t i = 0; i < count; i++)
        sum += values[i] * values[i];
    *rank = values[0] > 0 ? sum / (values[0] * values[0]) : 0;
    return LOAM_OK;
}

loam_status probe_stable_ranks(const train_model *m, int64_t model, int64_t layer, role which, double *ranks,
                               loam_error *error)
{
    const mixing *mix = model_mixing(m);
    const int64_t heads = mix->shape.heads;
    const matrix w = array_of(model_layer(m, layer), which);
    const bool out = which == ROLE_OUT;
    const int64_t rows = out ? w.rows / heads : w.rows, width = out ? w.width : w.width / heads;
    if (mix->on->gpu) return fail(error, LOAM_EUNSUPPORTED, mix->row->name, "ranks are found on a CPU");
    for (int64_t h = 0; h < heads; h++)
        ranks[h] = NAN;
    if (!w.data) return LOAM_OK;
    double *x = calloc((size_t)(rows * width + 2 * rows), sizeof *x);
    if (!x) return fail(error, LOAM_EMEMORY, mix->row->name, "no memory");
    loam_status status = LOAM_OK;
    for (int64_t h = 0; h < heads && !status; h++) {
        const int64_t first = model * w.model + (out ? h * rows * w.row : h * width);
        for (int64_t i = 0; i < rows * width; i++)
            x[i] = element(w.dtype, w.data, first + i / width * w.row + i % width);
        status = stable_rank(x, rows, width, x + rows * width, &ranks[h]);
    }
    free(x);
    return status ? fail(error, status, mix->row->name, "no singular values") : LOAM_OK;
}
