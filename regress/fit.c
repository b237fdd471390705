/* SPDX-License-Identifier: MIT */
#include "regress/fit.h"

#include <math.h>
#include <string.h>

const char *const regress_names[REGRESS_ESTIMATORS + 1] = { "constant", "linear", NULL };

/* Below this sum of weights (the nearest row is then some 6 bandwidths away) they are summed again relative
 * to the nearest row's: far points must keep their digits. */
static const double far_weight = 1e-8;

/* A pivot below poor_pivot of its column's second moment about the centre has lost digits, below least_pivot
 * most of them. */
static const double poor_pivot = 1e-4, least_pivot = 1e-10, least_moment = 1e-280;

/* Below this sum of weights, or where the rows in reach spread over less than a share of the bandwidth, what
 * bins leave out may count, and the rows are looked at. */
static const double binned_weight = 1e-4, binned_spread = 1e-5;

typedef struct fit_job {
    const regress_table *table;
    regress_smoother with;
    regress_engine engine;
    regress_kind kind;
    const double *points; /* [columns, count], or NULL: */
    const int64_t *rows;  /* points are these rows, and left out */
    int64_t count;
    regress_wish wish;
    const regress_bins *bins; /* or NULL */
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
        block->left_out[lane] = job->rows ? job->rows[index] : -1;
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
    double factor[REGRESS_COLUMNS_MAX][REGRESS_COLUMNS_MAX];
    double ridge;
    int columns;
} local_system;

/* Lengths stay in units of the table here: the ridge is multiplied by h^2 instead. s and offset are there. */
static void complete_system(const fit_job *job, local_system *system)
{
    system->columns = job->table->rows.columns;
    system->ridge = job->with.ridge * job->with.bandwidth * job->with.bandwidth;
    for (int c = 0; job->kind.linear && c < system->columns; c++)
        system->mean[c] = system->s[REGRESS_WZ + c] / system->s[REGRESS_W];
}

static void load_system(const fit_job *job, const regress_block *block, double (*sums)[REGRESS_LANES],
                        int lane, local_system *system)
{
    const int d = job->table->rows.columns, count = regress_sum_count(d, job->kind.linear);
    for (int i = 0; i < count; i++)
        system->s[i] = sums[i][lane];
    for (int c = 0; c < d; c++)
        system->offset[c] = block->tilt[c][lane] / (2 * block->curve);
    complete_system(job, system);
}

/* Returns what factor does; factor and rho are set where that is not 0. */
static double solve_probe(local_system *system)
{
    const int d = system->columns;
    const double *pairs = system->s + regress_wzz(d), *mean = system->mean;
    double moments[REGRESS_COLUMNS_MAX];
    for (int r = 0; r < d; r++) {
        for (int c = 0; c <= r; c++)
            system->factor[r][c] = *pairs++ / system->s[REGRESS_W] - mean[r] * mean[c];
        moments[r] = system->factor[r][r] + mean[r] * mean[r] + system->ridge;
        system->factor[r][r] += system->ridge;
        system->rho[r] = mean[r] + system->offset[r];
    }
    const double least = factor(system->factor, moments, d);
    if (least > 0) solve(system->factor, system->rho, d);
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

/* slope: of the line, (C + ridge I)^-1 cov(z, y); NaN where there is none. */
static regress_fit linear_fit(local_system *system, double *slope)
{
    const int d = system->columns;
    regress_fit fit = constant_fit(system);
    const double constant = fit.value, w = system->s[REGRESS_W];
    const bool solved = solve_probe(system) > 0;
    for (int c = 0; c < d; c++)
        slope[c] = solved ? system->s[regress_wyz(d) + c] / w - system->mean[c] * constant : NAN;
    if (solved) {
        fit.value -= dot(system->rho, slope, d);
        solve(system->factor, slope, d);
        const double a = 1 + dot(system->rho, system->mean, d);
        fit.norm2 = linear_squares(system, a) / w / w;
        fit.own = a / w;
        if (isfinite(fit.value) && isfinite(fit.norm2)) return fit;
    }
    fit = constant_fit(system);
    fit.singular = true;
    return fit;
}

static void keep_fits(const fit_job *job, local_system *system, double weight, int64_t index)
{
    double slope[REGRESS_COLUMNS_MAX];
    for (int e = 0; e < REGRESS_ESTIMATORS; e++) {
        if (!job->wish.fits[e]) continue;
        regress_fit fit = e == REGRESS_LINEAR ? linear_fit(system, slope) : constant_fit(system);
        fit.value += job->table->y_mean;
        fit.weight = weight;
        fit.far = !(weight >= far_weight);
        job->wish.fits[e][index] = fit;
        if (e != REGRESS_LINEAR || !job->wish.slopes) continue;
        for (int c = 0; c < system->columns; c++)
            job->wish.slopes[c * job->count + index] = fit.singular ? NAN : slope[c];
    }
}

/* ---- points in blocks, from all rows */

static bool is_poor(const fit_job *job, local_system *system)
{
    return job->kind.linear && !(solve_probe(system) >= poor_pivot);
}

/* A far lane, or one whose sums have lost digits around its point, gets its nearest row for a centre. */
static bool recentre_where_needed(const fit_job *job, regress_block *block, double (*sums)[REGRESS_LANES],
                                  const double *weights)
{
    bool any = false;
    for (int lane = 0; lane < REGRESS_LANES; lane++) {
        bool poor = !(weights[lane] >= far_weight);
        if (!poor) {
            local_system system;
            load_system(job, block, sums, lane, &system);
            poor = is_poor(job, &system);
        }
        if (poor) recentre(job, block, lane);
        any |= poor;
    }
    return any;
}

static void fit_block(const fit_job *job, int64_t first)
{
    regress_block block;
    double sums[REGRESS_SUMS_MAX][REGRESS_LANES], weights[REGRESS_LANES];
    place_block(job, first, &block);
    job->engine.sums(&job->table->rows, &block, job->kind, sums);
    memcpy(weights, sums[REGRESS_W], sizeof weights);
    if (recentre_where_needed(job, &block, sums, weights))
        job->engine.sums(&job->table->rows, &block, job->kind, sums);
    for (int lane = 0; lane < REGRESS_LANES && first + lane < job->count; lane++) {
        local_system system;
        load_system(job, &block, sums, lane, &system);
        keep_fits(job, &system, weights[lane], first + lane);
    }
}

/* ---- points one by one, through bins */

/* What sorted rows[j] counts for: not the row at the point where that is left out. */
static double rows_without(const fit_job *job, int64_t j, double point)
{
    const regress_sorted *sorted = &job->table->sorted;
    return sorted->rows[j] - (job->rows && sorted->x[j] == point);
}

static int64_t first_not_below(const regress_sorted *sorted, double x)
{
    int64_t low = 0, high = sorted->count;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (sorted->x[middle] < x)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The distinct x nearest to the point, and how far rows count: those beyond weigh less than e^-50 of the
 * second nearest, without which there is no slope. */
typedef struct surroundings {
    int64_t nearest;
    double reach;
} surroundings;

static surroundings look_around(const fit_job *job, double point)
{
    const regress_sorted *sorted = &job->table->sorted;
    int64_t above = first_not_below(sorted, point), below = above - 1;
    if (above < sorted->count && rows_without(job, above, point) == 0) above++;
    surroundings s = { 0 };
    for (int i = 0; i < 2; i++) {
        const double up = above < sorted->count ? sorted->x[above] - point : HUGE_VAL;
        const double down = below >= 0 ? point - sorted->x[below] : HUGE_VAL;
        const int64_t nearer = up < down ? above++ : below--;
        if (i == 0) s.nearest = nearer;
        s.reach = hypot(fmin(up, down), 10 * job->with.bandwidth);
    }
    return s;
}

/* Sums over the rows around the point, relative to the weight of the nearest, which is returned. */
static double sum_sorted(const fit_job *job, int64_t index, local_system *system)
{
    const regress_sorted *sorted = &job->table->sorted;
    const double point = point_at(job, 0, index), curve = 0.5 / (job->with.bandwidth * job->with.bandwidth);
    const double own = job->rows ? job->table->y[job->rows[index]] : 0;
    const surroundings around = look_around(job, point);
    const double centre = sorted->x[around.nearest], away = centre - point;
    memset(system->s, 0, sizeof system->s);
    system->offset[0] = away;
    for (int64_t j = first_not_below(sorted, point - around.reach);
         j < sorted->count && sorted->x[j] <= point + around.reach; j++) {
        const double z = sorted->x[j] - centre, rows = rows_without(job, j, point);
        if (rows == 0) continue;
        const double y = sorted->y[j] - (rows < sorted->rows[j] ? own : 0);
        const double score = z == 0 ? 0 : -curve * z * (z + 2 * away);
        const double w = score > -700 ? exp(score) : 0; /* as the sums over all rows have it */
        const double terms[] = { w * rows, w * y, w * w * rows };
        for (int i = 0; i < 3; i++)
            system->s[REGRESS_W + i] += terms[i];
        system->s[REGRESS_WZ] += terms[0] * z;
        system->s[regress_wyz(1)] += terms[1] * z;
        system->s[regress_wzz(1)] += terms[0] * z * z;
        system->s[regress_wwz(1)] += terms[2] * z;
        system->s[regress_wwzz(1)] += terms[2] * z * z;
    }
    return exp(-curve * away * away);
}

/* The variance of x in reach, by which the slope is divided, may come from rows beyond it. */
static bool is_spread(const fit_job *job, const local_system *system)
{
    const double least = binned_spread * job->with.bandwidth, w = system->s[REGRESS_W];
    return !job->kind.linear ||
           system->s[regress_wzz(1)] / w - system->mean[0] * system->mean[0] >= least * least;
}

static void fit_binned(const fit_job *job, int64_t index)
{
    const double point = point_at(job, 0, index);
    local_system system = { .columns = 1 };
    int64_t first, end;
    regress_bins_reach(job->bins, point, &first, &end);
    job->engine.bin_sums(job->bins, first, end, point, job->kind, system.s);
    if (job->rows) { /* its weight is 1, its z is 0 */
        system.s[REGRESS_W] -= 1;
        system.s[REGRESS_WY] -= job->table->y[job->rows[index]];
    }
    double weight = system.s[REGRESS_W];
    complete_system(job, &system);
    if (!(weight >= binned_weight) || !is_spread(job, &system) || is_poor(job, &system)) {
        weight = sum_sorted(job, index, &system);
        weight *= system.s[REGRESS_W];
        complete_system(job, &system);
    }
    keep_fits(job, &system, weight, index);
}

/* ---- all points */

static void fit_all(const fit_job *job)
{
    const int64_t step = REGRESS_LANES;
#pragma omp parallel for schedule(dynamic) num_threads(job->with.threads)
    for (int64_t first = 0; first < job->count; first += step) {
        const int64_t end = job->count - first < step ? job->count : first + step;
        if (!job->bins) fit_block(job, first);
        for (int64_t index = first; job->bins && index < end; index++)
            fit_binned(job, index);
#pragma omp critical(regress_watch)
        regress_watch_add(job->with.watch, end - first);
    }
}

static int run_job(fit_job job, io_error *error)
{
    const regress_table *table = job.table;
    job.engine = regress_engine_choose();
    job.kind = (regress_kind){ .linear = job.wish.fits[REGRESS_LINEAR] != NULL, .squares = job.wish.squares };
    if (!table->bins) {
        fit_all(&job);
        return EXIT_OK;
    }
    regress_bins bins;
    const int status = regress_bins_make(&bins, &table->sorted, job.with.bandwidth, table->bins,
                                         job.wish.squares, job.with.threads, error);
    if (status) return status;
    job.bins = &bins;
    fit_all(&job);
    regress_bins_free(&bins);
    return EXIT_OK;
}

int regress_fit_points(const regress_table *table, regress_smoother with, const double *points, int64_t count,
                       const regress_wish *wish, io_error *error)
{
    return run_job((fit_job){ .table = table, .with = with, .points = points, .count = count, .wish = *wish },
                   error);
}

int regress_fit_others(const regress_table *table, regress_smoother with, const int64_t *rows, int64_t count,
                       regress_fit *const fits[REGRESS_ESTIMATORS], io_error *error)
{
    return run_job((fit_job){ .table = table,
                              .with = with,
                              .rows = rows,
                              .count = count,
                              .wish = { .fits = { fits[0], fits[1] } } },
                   error);
}
