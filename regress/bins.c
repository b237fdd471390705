/* SPDX-License-Identifier: MIT */
#include "regress/bins.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PADDING = 8 };

/* ---- sorted rows */

typedef struct row_pair {
    double x, y;
} row_pair;

static int compare_pairs(const void *a, const void *b)
{
    const row_pair *p = a, *q = b;
    if (p->x != q->x) return p->x < q->x ? -1 : 1;
    return (p->y > q->y) - (p->y < q->y);
}

static void merge_equal(regress_sorted *sorted, const row_pair *pairs, int64_t rows)
{
    for (int64_t j = 0; j < rows; j++) {
        if (!j || pairs[j].x != pairs[j - 1].x) {
            sorted->x[sorted->count] = pairs[j].x;
            sorted->rows[sorted->count] = sorted->y[sorted->count] = 0;
            sorted->count++;
        }
        sorted->rows[sorted->count - 1] += 1;
        sorted->y[sorted->count - 1] += pairs[j].y;
    }
}

int regress_sorted_make(regress_sorted *sorted, const double *x, const double *y, int64_t rows,
                        io_error *error)
{
    memset(sorted, 0, sizeof *sorted);
    const size_t count = (size_t)rows;
    row_pair *pairs = malloc(count * sizeof *pairs);
    sorted->x = malloc(3 * count * sizeof *sorted->x);
    if (!pairs || !sorted->x) {
        free(pairs);
        regress_sorted_free(sorted);
        return io_fail(error, EXIT_INTERNAL, "out of memory for %lld sorted rows", (long long)rows);
    }
    sorted->rows = sorted->x + count, sorted->y = sorted->rows + count;
    for (int64_t j = 0; j < rows; j++)
        pairs[j] = (row_pair){ x[j], y[j] };
    qsort(pairs, count, sizeof *pairs, compare_pairs);
    merge_equal(sorted, pairs, rows);
    free(pairs);
    return EXIT_OK;
}

void regress_sorted_free(regress_sorted *sorted)
{
    free(sorted->x);
    memset(sorted, 0, sizeof *sorted);
}

/* ---- bins */

/* The first x beyond the bin that begins with `begin`. */
static int64_t bin_end(const regress_sorted *sorted, int64_t begin, double width)
{
    int64_t end = begin + 1;
    while (end < sorted->count && sorted->x[end] - sorted->x[begin] <= width)
        end++;
    return end;
}

int64_t regress_bins_count(const regress_sorted *sorted, double bandwidth, int per_bandwidth)
{
    int64_t count = 0;
    for (int64_t begin = 0; begin < sorted->count; count++)
        begin = bin_end(sorted, begin, bandwidth / per_bandwidth);
    return count;
}

static void add_terms(double *moments, int64_t room, double value, double s)
{
    for (int k = 0; k < REGRESS_TERMS; k++) {
        moments[k * room] += value;
        value *= s / (k + 1);
    }
}

static void fill_bin(const regress_bins *bins, int64_t bin, int64_t begin, int64_t end, bool squares)
{
    const regress_sorted *sorted = bins->sorted;
    const double centre = 0.5 * (sorted->x[begin] + sorted->x[end - 1]);
    double *weights = bins->moments + bin, *ys = weights + REGRESS_TERMS * bins->room,
           *squared = ys + REGRESS_TERMS * bins->room;
    bins->centre[bin] = centre;
    for (int64_t j = begin; j < end; j++) {
        const double s = (sorted->x[j] - centre) / bins->bandwidth, weight = exp(-0.5 * s * s);
        add_terms(weights, bins->room, weight * sorted->rows[j], s);
        add_terms(ys, bins->room, weight * sorted->y[j], s);
        if (squares) add_terms(squared, bins->room, weight * weight * sorted->rows[j], sqrt(2) * s);
    }
}

static void fill_bins(const regress_bins *bins, const int64_t *begins, bool squares, int threads)
{
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t bin = 0; bin < bins->count; bin++)
        fill_bin(bins, bin, begins[bin], begins[bin + 1], squares);
    for (int64_t bin = bins->count; bin < bins->room; bin++)
        bins->centre[bin] = bins->centre[bins->count - 1];
}

int regress_bins_make(regress_bins *bins, const regress_sorted *sorted, double bandwidth, int per_bandwidth,
                      bool squares, int threads, io_error *error)
{
    const double width = bandwidth / per_bandwidth;
    const int64_t count = regress_bins_count(sorted, bandwidth, per_bandwidth);
    *bins = (regress_bins){
        .sorted = sorted, .bandwidth = bandwidth, .count = count, .room = count + PADDING
    };
    bins->centre = malloc((size_t)bins->room * sizeof *bins->centre);
    bins->moments = calloc((size_t)bins->room * REGRESS_SERIES * REGRESS_TERMS, sizeof *bins->moments);
    int64_t *begins = malloc((size_t)(count + 1) * sizeof *begins);
    if (!bins->centre || !bins->moments || !begins) {
        free(begins);
        regress_bins_free(bins);
        return io_fail(error, EXIT_INTERNAL, "out of memory for %lld bins", (long long)count);
    }
    begins[0] = 0;
    for (int64_t bin = 0; bin < count; bin++)
        begins[bin + 1] = bin_end(sorted, begins[bin], width);
    fill_bins(bins, begins, squares, threads);
    free(begins);
    return EXIT_OK;
}

void regress_bins_free(regress_bins *bins)
{
    free(bins->centre);
    free(bins->moments);
    memset(bins, 0, sizeof *bins);
}

/* How many centres are less than x. */
static int64_t count_below(const regress_bins *bins, double x)
{
    int64_t low = 0, high = bins->count;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (bins->centre[middle] < x)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

void regress_bins_reach(const regress_bins *bins, double point, int64_t *first, int64_t *end)
{
    const double reach = REGRESS_BINS_REACH * bins->bandwidth;
    *first = count_below(bins, point - reach);
    *end = count_below(bins, point + reach);
}
