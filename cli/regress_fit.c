/* SPDX-License-Identifier: MIT */
#include "cli/regress_fit.h"

#include <math.h>
#include <string.h>

const char *const regress_names[REGRESS_ESTIMATORS + 1] = { "constant", "linear", NULL };

/* Below this sum of weights (the nearest row is then some 6 bandwidths away) they are summed again relative
 * to the nearest row's: far points must keep their digits. */
static const double far_weight = 1e-8;

/* A pivot below poor_pivot of its column's second moment about the centre has lost digits, below least_pivot
 * most of them. */
static const double poor_pivot = 1e-4, least_pivot = 1e-10, least_moment = 1e-280;

typedef struct fit_job {
    const regress_table *table;
    regress_smoother with;
    regress_sums_fn *sum;
    regress_kind kind;
    const double *points; /* [columns, count], or NULL: */
    const int64_t *rows;  /* points are these rows, and left out */
    int64_t count;
    regress_fit *const *fits;
    progress *bar;
} fit_job;

static double point_at(const fit_job *job, int column, int64_t index)
{
    const regress_rows *rows = &job->table->rows;
    return job->points ? job->points[column * job->count + index]
                       : rows->x[column * rows->rows + job->rows[index]];
}

/* Lanes beyond the last point repeat it. */
static void place_block(const fit_job *job, int64_t first, regress_block *block)
{
    memset(block, 0, sizeof *block);
    block->curve = 0.5 / (job->with.bandwidth * job->with.bandwidth);
    for (int lane = 0; lane < REGRESS_LANES; lane++) {
        const int64_t index = first + lane < job->count ? first + lane : job->count - 1;
        block->left_out[lane] = job->kind.leave_out ? job->rows[index] : -1;
        for (int c = 0; c < job->table->rows.columns; c++)
            block->centre[c][lane] = point_at(job, c, index);
    }
}

static int64_t nearest_row(const regress_rows *rows, const regress_block *block, int lane)
{
    int64_t nearest = block->left_out[lane] == 0 ? 1 : 0;
    double least = HUGE_VAL;
    for (int64_t j = 0; j < rows->rows; j++) {
        double distance = 0;
        for (int c = 0; c < rows->columns; c++) {
            const double z = rows->x[c * rows->rows + j] - block->centre[c][lane];
            distance += z * z;
        }
        if (distance < least && j != block->left_out[lane]) least = distance, nearest = j;
    }
    return nearest;
}

static void recentre(const fit_job *job, regress_block *block, int lane)
{
    const regress_rows *rows = &job->table->rows;
    const int64_t row = nearest_row(rows, block, lane);
    for (int c = 0; c < rows->columns; c++) {
        const double centre = rows->x[c * rows->rows + row];
        block->tilt[c][lane] = 2 * block->curve * (centre - block->centre[c][lane]);
        block->centre[c][lane] = centre;
    }
}

static double dot(const double *a, const double *b, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* Cholesky of a, d x d, lower triangle, in place. Returns the least pivot as a share of its moment, or 0
 * where it is below least_pivot. */
static double factor(double (*a)[REGRESS_COLUMNS_MAX], const double *moments, int d)
{
    double least = 1;
    for (int r = 0; r < d; r++) {
        for (int c = 0; c < r; c++)
            a[r][c] = (a[r][c] - dot(a[r], a[c], c)) / a[c][c];
        const double pivot = a[r][r] - dot(a[r], a[r], r);
        if (!(pivot > least_pivot * moments[r] && moments[r] > least_moment)) return 0;
        least = fmin(least, pivot / moments[r]);
        a[r][r] = sqrt(pivot);
    }
    return least;
}

static void solve(double (*l)[REGRESS_COLUMNS_MAX], double *x, int d)
{
    for (int r = 0; r < d; r++)
        x[r] = (x[r] - dot(l[r], x, r)) / l[r][r];
    for (int r = d - 1; r >= 0; r--) {
        for (int below = r + 1; below < d; below++)
            x[r] -= l[below][r] * x[below];
        x[r] /= l[r][r];
    }
}

/* The sums of one lane, its centre less its point (0 but for far ones), the mean of z about the centre. */
typedef struct local_system {
    double s[REGRESS_SUMS_MAX];
    double offset[REGRESS_COLUMNS_MAX], mean[REGRESS_COLUMNS_MAX], rho[REGRESS_COLUMNS_MAX];
    double ridge;
    int columns;
} local_system;

/* Lengths stay in standard deviations here: the ridge is multiplied by h^2 instead. */
static void load_system(const fit_job *job, const regress_block *block, double (*sums)[REGRESS_LANES],
                        int lane, local_system *system)
{
    const int d = job->table->rows.columns, count = regress_sum_count(d, job->kind.linear);
    system->columns = d;
    system->ridge = job->with.ridge * job->with.bandwidth * job->with.bandwidth;
    for (int i = 0; i < count; i++)
        system->s[i] = sums[i][lane];
    for (int c = 0; c < d; c++)
        system->offset[c] = block->tilt[c][lane] / (2 * block->curve);
    for (int c = 0; job->kind.linear && c < d; c++)
        system->mean[c] = system->s[REGRESS_WZ + c] / system->s[REGRESS_W];
}

/* Returns what factor does; rho is set where that is not 0. */
static double solve_probe(local_system *system)
{
    const int d = system->columns;
    const double *pairs = system->s + regress_wzz(d), *mean = system->mean;
    double a[REGRESS_COLUMNS_MAX][REGRESS_COLUMNS_MAX], moments[REGRESS_COLUMNS_MAX];
    for (int r = 0; r < d; r++) {
        for (int c = 0; c <= r; c++)
            a[r][c] = *pairs++ / system->s[REGRESS_W] - mean[r] * mean[c];
        moments[r] = a[r][r] + mean[r] * mean[r] + system->ridge;
        a[r][r] += system->ridge;
        system->rho[r] = mean[r] + system->offset[r];
    }
    const double least = factor(a, moments, d);
    if (least > 0) solve(a, system->rho, d);
    return least;
}

static regress_fit constant_fit(const local_system *system)
{
    const double w = system->s[REGRESS_W];
    return (regress_fit){ .value = system->s[REGRESS_WY] / w,
                          .norm2 = system->s[REGRESS_WW] / w / w,
                          .own = 1 / w };
}

/* sum_j w_j^2 (a - rho . z_j)^2 */
static double linear_squares(const local_system *system, double a)
{
    const int d = system->columns;
    const double *rho = system->rho, *pairs = system->s + regress_wwzz(d);
    double sum = a * a * system->s[REGRESS_WW] - 2 * a * dot(rho, system->s + regress_wwz(d), d);
    for (int r = 0; r < d; r++)
        for (int c = 0; c <= r; c++)
            sum += (r == c ? 1 : 2) * rho[r] * rho[c] * *pairs++;
    return fmax(sum, 0);
}

static regress_fit linear_fit(local_system *system)
{
    regress_fit fit = constant_fit(system);
    const double constant = fit.value, w = system->s[REGRESS_W];
    if (solve_probe(system) > 0) {
        for (int c = 0; c < system->columns; c++)
            fit.value -= system->rho[c] *
                         (system->s[regress_wyz(system->columns) + c] / w - system->mean[c] * constant);
        const double a = 1 + dot(system->rho, system->mean, system->columns);
        fit.norm2 = linear_squares(system, a) / w / w;
        fit.own = a / w;
        if (isfinite(fit.value) && isfinite(fit.norm2)) return fit;
    }
    fit = constant_fit(system);
    fit.singular = true;
    return fit;
}

/* A far lane, or one whose sums have lost digits around its point, gets its nearest row for a centre. */
static bool recentre_where_needed(const fit_job *job, regress_block *block, double (*sums)[REGRESS_LANES],
                                  bool *far)
{
    bool any = false;
    for (int lane = 0; lane < REGRESS_LANES; lane++) {
        far[lane] = !(sums[REGRESS_W][lane] >= far_weight);
        bool poor = far[lane];
        if (!poor && job->kind.linear) {
            local_system system;
            load_system(job, block, sums, lane, &system);
            poor = !(solve_probe(&system) >= poor_pivot);
        }
        if (poor) recentre(job, block, lane);
        any |= poor;
    }
    return any;
}

static void fit_block(const fit_job *job, int64_t first)
{
    regress_block block;
    double sums[REGRESS_SUMS_MAX][REGRESS_LANES];
    bool far[REGRESS_LANES];
    place_block(job, first, &block);
    job->sum(&job->table->rows, &block, job->kind, sums);
    if (recentre_where_needed(job, &block, sums, far)) job->sum(&job->table->rows, &block, job->kind, sums);
    for (int lane = 0; lane < REGRESS_LANES && first + lane < job->count; lane++) {
        local_system system;
        load_system(job, &block, sums, lane, &system);
        for (int e = 0; e < REGRESS_ESTIMATORS; e++) {
            if (!job->fits[e]) continue;
            regress_fit fit = e == REGRESS_LINEAR ? linear_fit(&system) : constant_fit(&system);
            fit.value += job->table->y_mean;
            fit.far = far[lane];
            job->fits[e][first + lane] = fit;
        }
    }
}

static void run_job(const fit_job *job)
{
#pragma omp parallel for schedule(dynamic) num_threads(job->with.threads)
    for (int64_t first = 0; first < job->count; first += REGRESS_LANES) {
        fit_block(job, first);
        if (job->bar) {
#pragma omp critical(regress_progress)
            progress_add(job->bar, job->count - first < REGRESS_LANES ? job->count - first : REGRESS_LANES);
        }
    }
}

void regress_fit_at(const regress_table *table, regress_smoother with, const double *points, int64_t count,
                    regress_fit *const fits[REGRESS_ESTIMATORS], progress *bar)
{
    const fit_job job = { .table = table,
                          .with = with,
                          .sum = regress_sums_choose(),
                          .kind = { .linear = fits[REGRESS_LINEAR] != NULL },
                          .points = points,
                          .count = count,
                          .fits = fits,
                          .bar = bar };
    run_job(&job);
}

void regress_fit_others(const regress_table *table, regress_smoother with, const int64_t *rows, int64_t count,
                        regress_fit *const fits[REGRESS_ESTIMATORS], progress *bar)
{
    const fit_job job = { .table = table,
                          .with = with,
                          .sum = regress_sums_choose(),
                          .kind = { .linear = fits[REGRESS_LINEAR] != NULL, .leave_out = true },
                          .rows = rows,
                          .count = count,
                          .fits = fits,
                          .bar = bar };
    run_job(&job);
}
