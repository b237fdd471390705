/* SPDX-License-Identifier: MIT
 * loam-calls [cuda]: what a call of loam_run costs its host, in microseconds, the best of 50 loops of 100
 * calls. The least problem is that of bench/python_calls.py, so that the cost of Python is what is more; on a
 * GPU, where a call only launches, 512 tokens of 8 heads in bfloat16 besides. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/device.h"
#include "loam.h"

enum { LOOPS = 50, CALLS = 100 };

typedef struct size {
    int64_t tokens, heads, channels;
    loam_dtype dtype;
} size;

static double now(void)
{
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void stop(const char *why)
{
    if (!why) return;
    fprintf(stderr, "loam-calls: %s\n", why);
    exit(1);
}

/* Zeros, which every array of a call may be. */
static void *zeros(size_t bytes, bool on_device)
{
    void *memory = NULL;
    bytes = (bytes + LOAM_ALIGN) / LOAM_ALIGN * LOAM_ALIGN;
    if (on_device) {
        stop(device_alloc(&memory, bytes));
        stop(device_fill(memory, 0, bytes));
        return memory;
    }
    memory = aligned_alloc(LOAM_ALIGN, bytes);
    if (!memory) stop("out of memory");
    return memset(memory, 0, bytes);
}

static void drop(const void *memory, bool on_device)
{
    void *ours = (void *)(uintptr_t)memory;
    if (on_device)
        device_free(ours);
    else
        free(ours);
}

static double best_seconds(const loam_plan *plan, const loam_args *args, bool on_device)
{
    double best = 1e9;
    loam_error error;
    for (int loop = 0; loop < LOOPS; loop++) {
        if (on_device) stop(device_wait());
        const double begun = now();
        for (int i = 0; i < CALLS; i++)
            if (loam_run(plan, args, &error)) stop(error.text);
        const double each = (now() - begun) / CALLS;
        best = each < best ? each : best;
    }
    if (on_device) stop(device_wait());
    return best;
}

static double measure(loam_mechanism mechanism, size n, bool saves, bool on_device)
{
    loam_problem p = loam_problem_default(mechanism, LOAM_FORWARD);
    p.dtype = n.dtype, p.heads_q = p.heads_kv = n.heads, p.len_q = p.len_kv = n.tokens;
    p.dim_qk = p.dim_v = n.channels, p.threads = 1;
    p.backend = on_device ? LOAM_BACKEND_CUDA : LOAM_BACKEND_AUTO;
    loam_plan *plan;
    loam_error error;
    if (loam_plan_create(&plan, &p, &error)) stop(error.text);
    loam_mechanism_info info;
    loam_mechanism_at((int)mechanism, &info);
    const size_t bytes = (size_t)(n.tokens * n.heads * n.channels) * sizeof(double);
    void *array = zeros(bytes, on_device), *out = zeros(bytes, on_device);
    const int64_t row = n.heads * n.channels;
    const loam_const_view in = { array, 0, n.channels, row };
    loam_args args = { .q = in, .k = in, .v = in, .o = { out, 0, n.channels, row } };
    if (info.beta) args.beta = (loam_const_view){ array, 0, 1, n.heads };
    if (info.log_decay == LOAM_DECAY_TOKEN) args.log_decay = (loam_const_view){ array, 0, 1, n.heads };
    if (info.log_decay == LOAM_DECAY_CHANNEL) args.log_decay = in;
    if (saves) args.saved = zeros(loam_plan_saved_bytes(plan), on_device);
    args.work = zeros(loam_plan_work_bytes(plan), on_device);
    const double best = best_seconds(plan, &args, on_device);
    drop(args.saved, on_device), drop(args.work, on_device);
    drop(array, on_device), drop(out, on_device);
    loam_plan_destroy(plan);
    return best;
}

static void print_row(const char *name, loam_mechanism mechanism, bool saves, bool on_device)
{
    const size least = { 1, 1, 8, LOAM_F32 }, more = { 512, 8, 64, LOAM_BF16 };
    printf("%-16s%16.2f", name, 1e6 * measure(mechanism, least, saves, on_device));
    if (on_device) printf("%16.2f", 1e6 * measure(mechanism, more, saves, on_device));
    printf("\n");
    fflush(stdout);
}

int main(int count, char **words)
{
    const bool on_device = count == 2 && strcmp(words[1], "cuda") == 0;
    if (count > 1 && !on_device) stop("expected no argument, or cuda");
    const loam_mechanism mechanisms[] = { LOAM_SOFTMAX, LOAM_LINEAR, LOAM_GATED_DELTA, LOAM_KDA };
    printf("%-16s%16s%16s\n", on_device ? "cuda" : "cpu", "1 token f32", on_device ? "512 tokens bf16" : "");
    for (size_t i = 0; i < sizeof mechanisms / sizeof *mechanisms; i++)
        print_row(loam_mechanism_name(mechanisms[i]), mechanisms[i], false, on_device);
    print_row("softmax, saves", LOAM_SOFTMAX, true, on_device);
    return 0;
}
