/* SPDX-License-Identifier: MIT
 * loam-parts OUT.csv: times the parts of src/simd and src/base by themselves, on one thread with operands in
 * cache, for every instruction set of this machine, beside the same products of OpenBLAS and libxsmm and the
 * rate of a loop of multiply-adds that touches registers only. */
#include "bench/parts.h"
#include "cli/bench/machine.h"
#include "cli/bench/roof.h"
#include "io/out_file.h"
#include "loam.h"

#include <cblas.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define LEVEL(isa) extern const parts parts_##isa;
PARTS_LEVELS
#undef LEVEL
#define LEVEL(isa) &parts_##isa,
/* Libraries last: code of theirs that leaves the upper halves of registers in use slows that of lesser
 * sets. */
static const parts *const levels[] = { PARTS_LEVELS & parts_openblas, &parts_libxsmm };
enum { LEVELS = sizeof levels / sizeof levels[0], SAMPLES = 9, COUNT = 4096, MOST_ORDER = 128 };
static const double SAMPLE_SECONDS = 2e-3;

/* All that is timed works here. */
typedef struct memory {
    float a[PARTS_TILE * PARTS_MOST_DIM], b[PARTS_MOST_DIM * PARTS_LANES], c[PARTS_MOST_DIM * PARTS_LANES];
    float x[COUNT], y[COUNT];
    uint16_t halves[COUNT];
    double matrix[MOST_ORDER * MOST_ORDER], factor[MOST_ORDER * MOST_ORDER];
} memory;

/* One thing to time: `run` does it once; it may use the other members. */
typedef struct work {
    const parts *level;
    parts_product shape;
    int dtype;
    int64_t order;
    memory *m;
    void (*run)(const struct work *);
} work;

typedef struct sink {
    FILE *stream;
    const bench_machine *machine;
    double peak;
} sink;

/* ---------------------------------------------------------------- timing */

static double time_of(const work *w, int64_t runs)
{
    const double begun = bench_now();
    for (int64_t i = 0; i < runs; i++)
        w->run(w);
    return (bench_now() - begun) / (double)runs;
}

static int compare_times(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Seconds of one run: the median of samples that each take some milliseconds. */
static double median_time(const work *w)
{
    int64_t runs = 1;
    while (time_of(w, runs) * (double)runs < SAMPLE_SECONDS)
        runs *= 2;
    double times[SAMPLES];
    for (int i = 0; i < SAMPLES; i++)
        times[i] = time_of(w, runs);
    qsort(times, SAMPLES, sizeof times[0], compare_times);
    return times[SAMPLES / 2];
}

static void run_product(const work *w) { w->level->product(&w->shape, w->m->c, w->m->a, w->m->b); }
static void run_exps(const work *w) { w->level->exps(w->m->y, w->m->x, COUNT); }
static void run_tanhs(const work *w) { w->level->tanhs(w->m->y, w->m->x, COUNT); }
static void run_load(const work *w) { w->level->load(w->m->y, w->m->halves, w->dtype, COUNT); }
static void run_store(const work *w) { w->level->store(w->m->halves, w->m->x, w->dtype, COUNT); }

static void run_factor(const work *w)
{
    memcpy(w->m->factor, w->m->matrix, (size_t)(w->order * w->order) * sizeof(double));
    w->level->factor(w->m->factor, w->order);
}

/* ---------------------------------------------------------------- results */

/* A rate, as a fraction of the peak too, or a time; the other is NaN and left empty. */
static void write_row(const sink *out, const char *part, int64_t size, const parts *level, double gflops,
                      double peak, double ns)
{
    const bench_machine *m = out->machine;
    fprintf(out->stream, "%s,%lld,%s,", part, (long long)size, level->by);
    isnan(gflops) ? fputs(",,", out->stream) : fprintf(out->stream, "%.6g,%.4g,", gflops, gflops / peak);
    isnan(ns) ? fputs(",", out->stream) : fprintf(out->stream, "%.4g,", ns);
    fprintf(out->stream, "%s,%s,1,%s,%s,%s\n", m->cpu, m->features, m->compiler, m->commit, m->date);
}

static double rate(double flop, double seconds) { return 1e-9 * flop / seconds; }

static void fill(float *x, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        x[i] = (float)((i * 37) % 101) / 64 - 0.75f;
}

static void prepare(memory *m)
{
    fill(m->a, PARTS_TILE * PARTS_MOST_DIM);
    fill(m->b, PARTS_MOST_DIM * PARTS_LANES);
    memset(m->c, 0, sizeof m->c);
    fill(m->x, COUNT);
    memset(m->halves, 0, sizeof m->halves);
}

/* Diagonally dominant, so that it has a factor. */
static void prepare_matrix(memory *m, int64_t n)
{
    for (int64_t i = 0; i < n * n; i++)
        m->matrix[i] = i / n == i % n ? (double)n : 1 / (1.0 + (double)((i * 7) % 13));
}

static void measure_products(const sink *out, const parts *level, memory *m)
{
    static const int64_t dims[] = { 32, 40, 64, 72, 111, 128, 256 };
    for (int which = 0; which < 2 * (int)(sizeof dims / sizeof dims[0]); which++) {
        const int64_t d = dims[which / 2];
        const bool scores = which % 2 == 0;
        work w = { .level = level, .m = m, .run = run_product };
        w.shape = scores ? (parts_product){ PARTS_TILE, d, d, 1, 0 }
                         : (parts_product){ d, PARTS_TILE, 1, d, 1 };
        prepare(m);
        if (level->ready && !level->ready(&w.shape)) continue;
        const double flop = 2.0 * PARTS_TILE * PARTS_LANES * (double)d;
        write_row(out, scores ? "scores" : "values", d, level, rate(flop, median_time(&w)), out->peak, NAN);
    }
}

static void measure_functions(const sink *out, const parts *level, memory *m)
{
    static const struct {
        const char *name;
        int dtype;
        void (*run)(const work *);
    } rows[] = {
        { "exp", LOAM_F32, run_exps },          { "tanh", LOAM_F32, run_tanhs },
        { "load bf16", LOAM_BF16, run_load },   { "load f16", LOAM_F16, run_load },
        { "store bf16", LOAM_BF16, run_store }, { "store f16", LOAM_F16, run_store },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const work w = { .level = level, .m = m, .dtype = rows[i].dtype, .run = rows[i].run };
        prepare(m);
        write_row(out, rows[i].name, COUNT, level, NAN, NAN, 1e9 * median_time(&w) / COUNT);
    }
}

/* The peak of float64 is half that of float32. */
static void measure_factors(const sink *out, const parts *level, memory *m)
{
    static const int64_t orders[] = { 16, 32, 64, MOST_ORDER };
    for (size_t i = 0; i < sizeof orders / sizeof orders[0]; i++) {
        const double n = (double)orders[i], flop = n * n * n / 3;
        const work w = { .level = level, .m = m, .order = orders[i], .run = run_factor };
        prepare_matrix(m, orders[i]);
        write_row(out, "cholesky", orders[i], level, rate(flop, median_time(&w)), out->peak / 2, NAN);
    }
}

/* The best of a few loops that each take some milliseconds. */
static double peak_of(const parts *level, memory *m)
{
    double best = 0;
    fill(m->x, COUNT);
    for (int i = 0; i < SAMPLES; i++) {
        const double begun = bench_now(), flop = level->peak(m->y, m->x, 1 << 20);
        best = fmax(best, rate(flop, bench_now() - begun));
    }
    return best;
}

/* A library, or an instruction set that this machine has. */
static bool is_here(const parts *level)
{
    char words[64], word[32];
    snprintf(words, sizeof words, " portable %s ", loam_cpu_features());
    snprintf(word, sizeof word, " %s ", level->by);
    return !level->peak || strstr(words, word);
}

static void measure_level(const sink *out, const parts *level, double peak, memory *m)
{
    if (level->peak) write_row(out, "peak", 0, level, peak, out->peak, NAN);
    if (level->product) measure_products(out, level, m);
    if (level->exps) measure_functions(out, level, m);
    if (level->factor) measure_factors(out, level, m);
}

static void measure(sink *out, memory *m)
{
    double peaks[LEVELS] = { 0 };
    for (int i = 0; i < LEVELS; i++) {
        peaks[i] = levels[i]->peak && is_here(levels[i]) ? peak_of(levels[i], m) : 0;
        out->peak = fmax(out->peak, peaks[i]);
    }
    fputs("part,size,by,gflops,of_peak,ns_each,machine,features,threads,compiler,commit,date\n", out->stream);
    for (int i = 0; i < LEVELS; i++)
        if (is_here(levels[i])) measure_level(out, levels[i], peaks[i], m);
}

int main(int argc, char **argv)
{
    io_error error;
    out_file *file;
    bench_machine machine;
    if (argc != 2) {
        fprintf(stderr, "usage: %s OUT.csv ('-': standard output)\n", argv[0]);
        return EXIT_USAGE;
    }
    int status = out_open(&file, argv[1], &error);
    memory *m = status ? NULL
                       : aligned_alloc(LOAM_ALIGN, (sizeof *m + LOAM_ALIGN - 1) / LOAM_ALIGN * LOAM_ALIGN);
    if (!status && !m) {
        out_discard(file);
        status = io_fail(&error, EXIT_INTERNAL, "out of memory");
    }
    if (!status) {
        bench_machine_read(&machine);
        openblas_set_num_threads(1);
        measure(&(sink){ out_stream(file), &machine, 0 }, m);
        status = out_commit(file, &error);
    }
    free(m);
    if (status) fprintf(stderr, "loam-parts: %s\n", error.text);
    return status;
}
