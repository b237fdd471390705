/* SPDX-License-Identifier: MIT */
#include "train/probe.h"

#include "io/half.h"
#include "train/mixing.h"

#include <lapacke.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* The mixer itself, and softmax on its queries, keys and values. */
enum { ITSELF, SOFTMAX, FITS };

/* Of a layer, a model's part of them, whatever the machine. */
static const activation reads[] = { ACTIVE_Q,     ACTIVE_K,     ACTIVE_V,
                                    ACTIVE_PROBE, ACTIVE_RIDGE, ACTIVE_PROBE_GATE };
enum { READS = sizeof reads / sizeof *reads };

/* All in host memory. */
typedef struct layer_values {
    const mixing *mix;
    matrix of[ACTIVATIONS]; /* dense, of one model, of the machine's dtype; without data: none */
    void *between;          /* as it lies in the machine's memory */
    memory room;
} layer_values;

/* Over rows, but for negative and visible, which are over keys, and squares, over channels. */
typedef struct sums {
    double correction, mean, squares, negative, visible, entropy, first, rows, channels;
} sums;

/* All sequences of a model, some of their rows as queries. */
typedef struct probing {
    const layer_values *from;
    loam_plan *plan[FITS];
    void *o[FITS], *weights[FITS], *rho, *work;
    sums *each; /* [batch] */
    memory room;
} probing;

static const machine host = { 0 };

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
    return dtype == LOAM_F64    ? ((const double *)x)[i]
           : dtype == LOAM_BF16 ? bf16_to_double(((const uint16_t *)x)[i])
                                : (double)((const float *)x)[i];
}

/* ---- from the machine */

/* A model's part, rows that are wider than it included. */
static size_t bytes_of(matrix a)
{
    return a.data ? (size_t)(((a.rows - 1) * a.row + a.width) * matrix_bytes_each(a)) : 0;
}

/* `between` has room for bytes_of(from). */
static loam_status bring(const machine *on, matrix to, matrix from, int64_t model, void *between,
                         loam_error *error)
{
    const matrix one = matrix_model(from, model);
    const loam_status status = machine_download(on, between, one.data, bytes_of(from), error);
    if (status) return status;
#pragma omp parallel for num_threads(on->threads)
    for (int64_t row = 0; row < to.rows; row++)
        for (int64_t c = 0; c < to.width; c++) {
            const double x = element(from.dtype, between, row * from.row + c);
            matrix_set(to, row * to.width + c, &x, 1);
        }
    return LOAM_OK;
}

static void take_values(layer_values *v, const mixer_layer *layer)
{
    size_t most = 0;
    for (int i = 0; i < READS; i++) {
        const matrix a = layer->value[reads[i]];
        if (!a.data) continue;
        v->of[reads[i]] = memory_matrix(&v->room, v->mix->on->dtype, 1, a.rows, a.width);
        if (bytes_of(a) > most) most = bytes_of(a);
    }
    v->between = memory_take(&v->room, (int64_t)most, 1);
}

static loam_status values_open(layer_values *v, const mixing *mix, const mixer_layer *layer, int64_t model,
                               loam_error *error)
{
    *v = (layer_values){ .mix = mix };
    take_values(v, layer);
    if (!memory_open(&v->room, &host)) return fail(error, LOAM_EMEMORY, mix->row->name, "no memory");
    take_values(v, layer);
    loam_status status = LOAM_OK;
    for (int i = 0; i < READS && !status; i++)
        if (v->of[reads[i]].data)
            status = bring(mix->on, v->of[reads[i]], layer->value[reads[i]], model, v->between, error);
    if (status) memory_close(&v->room);
    return status;
}

/* ---- rows of attention */

/* Of one model on the CPU. */
static loam_problem problem_here(const mixing *mix, loam_problem problem)
{
    problem.batch = mix->shape.batch;
    problem.dtype = mix->on->dtype;
    problem.backend = LOAM_BACKEND_AUTO;
    return problem;
}

static loam_problem softmax_like(const loam_problem *other)
{
    loam_problem problem = loam_problem_default(LOAM_SOFTMAX, LOAM_FORWARD);
    problem.dtype = other->dtype;
    problem.batch = other->batch;
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
    const int64_t rows = problem->batch * problem->heads_q * problem->len_q;
    size_t work = 0;
    for (int i = 0; i < FITS; i++) {
        const size_t wanted = loam_plan_work_bytes(p->plan[i]);
        if (wanted > work) work = wanted;
        p->o[i] = memory_take(&p->room, rows * problem->dim_v, bytes);
        p->weights[i] = memory_take(&p->room, rows * problem->len_kv, bytes);
    }
    p->rho = memory_take(&p->room, rows * problem->dim_qk, bytes);
    p->work = memory_take(&p->room, (int64_t)work, 1);
    p->each = memory_take(&p->room, problem->batch, sizeof *p->each);
}

static loam_status probing_open(probing *p, const loam_problem *one, loam_error *error)
{
    const loam_problem softmax = softmax_like(one);
    loam_status status = loam_plan_create(&p->plan[ITSELF], one, error);
    if (!status) status = loam_plan_create(&p->plan[SOFTMAX], &softmax, error);
    if (status) return status;
    take_all(p);
    if (!memory_open(&p->room, &host)) return fail(error, LOAM_EMEMORY, p->from->mix->row->name, "no memory");
    take_all(p);
    return LOAM_OK;
}

static void probing_close(probing *p)
{
    for (int i = 0; i < FITS; i++)
        loam_plan_destroy(p->plan[i]);
    memory_close(&p->room);
}

/* The sequences' rows from `first` on. */
static loam_const_view rows_of(const probing *p, activation which, int64_t first)
{
    const mixer_shape *shape = &p->from->mix->shape;
    const bool grouped = which == ACTIVE_K || which == ACTIVE_V;
    const int64_t heads = grouped ? shape->heads_kv : shape->heads;
    const matrix a = p->from->of[which];
    if (!a.data) return (loam_const_view){ 0 };
    const char *from = (const char *)a.data + first * a.row * matrix_bytes_each(a);
    return (loam_const_view){ from, shape->length * a.row, a.width / heads, a.row };
}

static loam_status run(const probing *p, int64_t first, loam_error *error)
{
    const loam_problem *problem = loam_plan_problem(p->plan[ITSELF]);
    const int64_t heads = problem->heads_q, len_q = problem->len_q;
    loam_args args = {
        .q = rows_of(p, ACTIVE_Q, first),
        .k = rows_of(p, ACTIVE_K, 0),
        .v = rows_of(p, ACTIVE_V, 0),
        .work = p->work,
    };
    loam_status status = LOAM_OK;
    for (int i = 0; i < FITS && !status; i++) {
        args.o = loam_dense_out(p->o[i], heads, len_q, problem->dim_v);
        args.weights = loam_dense_out(p->weights[i], heads, len_q, problem->len_kv);
        if (i == ITSELF) {
            args.probe = rows_of(p, ACTIVE_PROBE, first);
            args.ridge = rows_of(p, ACTIVE_RIDGE, first);
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
    to->channels += (double)problem->dim_qk;
}

/* Of a sequence. */
static void add_rows(const probing *p, int64_t sequence, sums *to)
{
    const loam_problem *problem = loam_plan_problem(p->plan[ITSELF]);
    const int64_t rows = problem->heads_q * problem->len_q;
    for (int64_t row = 0; row < rows; row++) {
        const int64_t visible = problem->causal ? row % problem->len_q + 1 : problem->len_kv;
        add_row(p, sequence * rows + row, visible, to);
    }
}

static void add_sums(sums *to, const sums *more)
{
    double *a = (double *)to;
    const double *b = (const double *)more;
    for (size_t i = 0; i < sizeof *to / sizeof *a; i++)
        a[i] += b[i];
}

/* Rows from `first` on are the problem's queries. */
static loam_status add_all(const layer_values *from, loam_problem problem, int64_t first, sums *to,
                           loam_error *error)
{
    const loam_problem all = problem_here(from->mix, problem);
    probing p = { .from = from };
    loam_status status = probing_open(&p, &all, error);
    if (!status) status = run(&p, first, error);
    if (!status) {
#pragma omp parallel for num_threads(from->mix->on->threads)
        for (int64_t b = 0; b < all.batch; b++)
            add_rows(&p, b, &p.each[b]);
        for (int64_t b = 0; b < all.batch; b++)
            add_sums(to, &p.each[b]);
    }
    probing_close(&p);
    return status;
}

static loam_status add_queries(const layer_values *from, sums *to, loam_error *error)
{
    const mixing *mix = from->mix;
    const loam_status status = add_all(from, mixing_problem(mix, LOAM_FORWARD), 0, to, error);
    if (status || !mixing_in_parts(mix)) return status;
    return add_all(from, mixing_query_problem(mix, LOAM_FORWARD), mix->shape.seen, to, error);
}

static double mean_of(matrix a)
{
    double sum = 0;
    if (!a.data) return NAN;
    for (int64_t i = 0; i < matrix_elements(a); i++)
        sum += element(a.dtype, a.data, i);
    return sum / (double)matrix_elements(a);
}

loam_status probe_measure(const train_model *m, int64_t model, int64_t layer, probe_rows *rows,
                          loam_error *error)
{
    const mixing *mix = model_mixing(m);
    const mixer *row = mix->row;
    const bool local = row->block == MIXER_PLAIN && row->mechanism <= LOAM_LLA;
    if (!local || row->decay != MIXER_NO_DECAY || row->reflect)
        return fail(error, LOAM_EUNSUPPORTED, row->name,
                    "rows are measured of softmax, Parallax and LLA, on plain scores");
    layer_values v;
    sums all = { 0 };
    loam_status status = values_open(&v, mix, model_layer(m, layer), model, error);
    if (status) return status;
    status = add_queries(&v, &all, error);
    const double gate = mean_of(v.of[ACTIVE_PROBE_GATE]);
    memory_close(&v.room);
    if (status) return status;
    *rows = (probe_rows){ all.correction / all.mean,  sqrt(all.squares / all.channels),
                          all.negative / all.visible, all.entropy / all.rows,
                          all.first / all.rows,       gate };
    return LOAM_OK;
}

/* ---- stable ranks */

/* Of a dense array, which is lost. */
static loam_status stable_rank(double *x, int64_t rows, int64_t width, double *sigma, double *rank)
{
    const int64_t count = rows < width ? rows : width;
    double sum = 0;
    /* Column by column it is the transposed array, whose singular values are the same. */
    const lapack_int left = LAPACKE_dgesvd(LAPACK_COL_MAJOR, 'N', 'N', (lapack_int)width, (lapack_int)rows, x,
                                           (lapack_int)width, sigma, NULL, 1, NULL, 1, sigma + count);
    if (left != 0) return left == LAPACK_WORK_MEMORY_ERROR ? LOAM_EMEMORY : LOAM_EVALUE;
    for (int64_t i = 0; i < count; i++)
        sum += sigma[i] * sigma[i];
    *rank = sigma[0] > 0 ? sum / (sigma[0] * sigma[0]) : 0;
    return LOAM_OK;
}

/* Of each head's part of a dense matrix. */
static loam_status ranks_of(matrix w, bool out, int64_t heads, double *x, double *ranks)
{
    const int64_t rows = out ? w.rows / heads : w.rows, width = out ? w.width : w.width / heads;
    loam_status status = LOAM_OK;
    for (int64_t h = 0; h < heads && !status; h++) {
        const int64_t first = out ? h * rows * w.row : h * width;
        for (int64_t i = 0; i < rows * width; i++)
            x[i] = element(w.dtype, w.data, first + i / width * w.row + i % width);
        status = stable_rank(x, rows, width, x + rows * width, &ranks[h]);
    }
    return status;
}

loam_status probe_stable_ranks(const train_model *m, int64_t model, int64_t layer, role which, double *ranks,
                               loam_error *error)
{
    const mixing *mix = model_mixing(m);
    const matrix w = array_of(model_layer(m, layer), which);
    for (int64_t h = 0; h < mix->shape.heads; h++)
        ranks[h] = NAN;
    if (!w.data) return LOAM_OK;
    /* The matrix, a head's part of it with singular values and workspace, and what comes from the machine. */
    double *x = calloc((size_t)(3 * w.rows * w.width + 2 * w.rows), sizeof *x);
    if (!x) return fail(error, LOAM_EMEMORY, mix->row->name, "no memory");
    const matrix here = matrix_dense(x, LOAM_F64, 1, w.rows, w.width);
    double *part = x + w.rows * w.width, *between = part + w.rows * w.width + 2 * w.rows;
    loam_status status = bring(mix->on, here, w, model, between, error);
    if (!status) {
        status = ranks_of(here, which == ROLE_OUT, mix->shape.heads, part, ranks);
        if (status) fail(error, status, mix->row->name, "no singular values");
    }
    free(x);
    return status;
}
