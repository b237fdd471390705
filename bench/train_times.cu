/* SPDX-License-Identifier: MIT */
extern "C" {
#include "bench/train_times.h"
}

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

enum { ROOM = 4096 };

typedef struct span {
    char name[64];
    cudaEvent_t begin, end;
    float milliseconds;
    bool inside; /* another, whose time has this one's */
} span;

static struct {
    span at[ROOM];
    int count, open;
} spans;

static span *begin_span(const machine *on, const char *name)
{
    if (spans.count == ROOM) return NULL;
    span *s = &spans.at[spans.count++];
    if (!s->begin) cudaEventCreate(&s->begin), cudaEventCreate(&s->end);
    s->inside = spans.open++ > 0;
    snprintf(s->name, sizeof s->name, "%s%s", s->inside ? "  " : "", name);
    cudaEventRecord(s->begin, (cudaStream_t)machine_stream(on));
    return s;
}

static void end_span(const machine *on, span *s)
{
    if (!s) return;
    cudaEventRecord(s->end, (cudaStream_t)machine_stream(on));
    spans.open--;
}

/* What tells apart operations of one name. */
template <class... A> static void describe(char *, size_t, A...) {}
static void describe(char *text, size_t room, matrix out, matrix a, matrix, unsigned how)
{
    const int64_t inner = how & PRODUCT_A_TRANSPOSED ? a.rows : a.width;
    snprintf(text, room, " [%d][%d] over %d", (int)out.rows, (int)out.width, (int)inner);
}

template <int ID, class... A> struct timed {
    static const char *name;
    static void (*real)(const machine *, A...);
    static void run(const machine *on, A... a)
    {
        span *s = begin_span(on, name);
        if (s) describe(s->name + strlen(s->name), sizeof s->name - strlen(s->name), a...);
        real(on, a...);
        end_span(on, s);
    }
};
template <int ID, class... A> const char *timed<ID, A...>::name;
template <int ID, class... A> void (*timed<ID, A...>::real)(const machine *, A...);

template <int ID, class... A>
static void (*time_it(const char *name, void (*real)(const machine *, A...)))(const machine *, A...)
{
    timed<ID, A...>::name = name;
    timed<ID, A...>::real = real;
    return timed<ID, A...>::run;
}

enum {
#define OP(name, parameters) ID_##name,
#include "train/ops.def"
#undef OP
    ID_COUNT
};

extern "C" const ops *train_times_wrap(const machine *on)
{
    static ops table;
    const ops *real = on->op;
#define OP(name, parameters) table.name = time_it<ID_##name>(#name, real->name);
#include "train/ops.def"
#undef OP
    return &table;
}

/* What lies between operations longer than this is attention, in milliseconds. */
static const float apart = 0.012f;

/* Gaps, as spans of their own behind the others, named after what ran before them. */
static int add_gaps(int count)
{
    int all = count, last = 0;
    for (int i = 1; i < count && all < ROOM; i++) {
        float gap;
        if (spans.at[i].inside) continue;
        cudaEventElapsedTime(&gap, spans.at[last].end, spans.at[i].begin);
        if (gap >= apart) {
            char before[48];
            snprintf(before, sizeof before, "%.40s", spans.at[last].name);
            snprintf(spans.at[all].name, sizeof spans.at[all].name, "attention after %s", before);
            spans.at[all].inside = false;
            spans.at[all++].milliseconds = gap;
        }
        last = i;
    }
    return all;
}

extern "C" void train_times_reset(void) { spans.count = 0; }

extern "C" void train_times_print(const machine *on, double whole, double least)
{
    double all = 0, total = 0, rest = 0;
    float between;
    cudaStreamSynchronize((cudaStream_t)machine_stream(on));
    for (int i = 0; i < spans.count; i++)
        cudaEventElapsedTime(&spans.at[i].milliseconds, spans.at[i].begin, spans.at[i].end);
    if (spans.count > 0) {
        cudaEventElapsedTime(&between, spans.at[0].begin, spans.at[spans.count - 1].end);
        all = between;
    }
    const int parts = add_gaps(spans.count);
    for (int i = 0; i < parts; i++) {
        double sum = 0;
        int count = 0;
        for (int k = 0; k < parts; k++)
            if (strcmp(spans.at[i].name, spans.at[k].name) == 0) {
                if (k < i) break;
                sum += spans.at[k].milliseconds, count++;
            }
        if (!spans.at[i].inside) total += sum;
        if (sum >= least * whole)
            printf("    %-44s %3d x %8.4f ms %6.1f %%\n", spans.at[i].name, count, sum, 100 * sum / all);
        else if (!spans.at[i].inside)
            rest += sum;
    }
    printf("    %-44s       %8.4f ms %6.1f %%\n", "smaller ones", rest, 100 * rest / all);
    printf("    %-44s       %8.4f ms %6.1f %%\n", "between", all - total, 100 * (all - total) / all);
    printf("    %-44s       %8.4f ms\n", "all, with events", all);
}
