/* SPDX-License-Identifier: MIT */
#include "cli/experiment/memory_device.h"

#include "cli/device.h"
#include "io/half.h"

#include <stdlib.h>

/* A case on the current device: its arrays there, and in float32 here. */
typedef struct device_case {
    const memory_case *what;
    const memory_sizes *sizes;
    void *arrays;
    float *host;
} device_case;

static int fail_device(const char *why, io_error *error)
{
    return io_fail(error, EXIT_INTERNAL, "--backend cuda: %s", why);
}

static int64_t elements(const device_case *d)
{
    return (int64_t)(d->sizes->arrays / memory_element(d->what));
}

/* ---- arrays, through a copy in the type of the case */

typedef const char *copy_fn(const device_case *d, uint16_t *narrow);

static const char *put_inputs(const device_case *d, uint16_t *narrow)
{
    memory_draw(d->what, d->host);
    for (int64_t i = 0; narrow && i < elements(d); i++)
        narrow[i] = bf16_from_float(d->host[i]);
    return device_upload(d->arrays, narrow ? (void *)narrow : d->host, d->sizes->arrays);
}

static const char *take_outputs(const device_case *d, uint16_t *narrow)
{
    const char *why = device_download(narrow ? (void *)narrow : d->host, d->arrays, d->sizes->arrays);
    for (int64_t i = 0; !why && narrow && i < elements(d); i++)
        d->host[i] = bf16_to_float(narrow[i]);
    return why;
}

static int copy(const device_case *d, copy_fn *how, io_error *error)
{
    uint16_t *narrow = d->what->on.bf16 ? malloc(d->sizes->arrays) : NULL;
    if (d->what->on.bf16 && !narrow) return io_fail(error, EXIT_INTERNAL, "out of memory");
    const char *const why = how(d, narrow);
    free(narrow);
    return why ? fail_device(why, error) : EXIT_OK;
}

/* ---- a run */

static int read_free(device_info *info, io_error *error)
{
    const char *const why = device_describe(0, info);
    return why ? fail_device(why, error) : EXIT_OK;
}

/* Memory that is taken is written to as well. */
static int use(const device_case *d, bool compute, void *working, io_error *error)
{
    const char *why = NULL;
    int status = EXIT_OK;
    if (compute)
        status = memory_compute_library(d->what, d->arrays, working, error);
    else
        why = device_fill(working, 0, d->sizes->working);
    if (status == EXIT_OK && !why) why = device_wait();
    return why ? fail_device(why, error) : status;
}

/* `before`: what is free without the working memory. */
static int use_once(const device_case *d, bool compute, memory_result *result, device_info *before,
                    io_error *error)
{
    void *working;
    device_info after;
    int status = read_free(before, error);
    if (status != EXIT_OK) return status;
    if (device_alloc(&working, d->sizes->working)) {
        result->end = MEMORY_OUT;
        return EXIT_OK;
    }
    status = use(d, compute, working, error);
    if (status == EXIT_OK) status = read_free(&after, error);
    device_free(working);
    if (status != EXIT_OK) return status;
    result->working = before->free_memory > after.free_memory ? before->free_memory - after.free_memory : 0;
    result->process = after.memory - after.free_memory;
    result->end = compute ? MEMORY_COMPUTED : MEMORY_TAKEN;
    return EXIT_OK;
}

/* Twice: kernels are loaded, and get their stacks, when they first run; that is no part of a method. */
static int run_case(const device_case *d, bool compute, memory_result *result, io_error *error)
{
    device_info before;
    int status = compute ? copy(d, put_inputs, error) : EXIT_OK;
    for (int i = 0; i < 2 && status == EXIT_OK && result->end != MEMORY_OUT; i++)
        status = use_once(d, compute, result, &before, error);
    if (status != EXIT_OK || !compute || result->end == MEMORY_OUT) return status;
    status = copy(d, take_outputs, error);
    if (status == EXIT_OK) memory_take_sample(d->what, d->host, result->sample);
    return status;
}

int memory_measure_device(const memory_case *c, size_t limit, bool compute, memory_result *result,
                          io_error *error)
{
    device_case d = { .what = c, .sizes = &result->sizes };
    if (device_count() == 0)
        return io_fail(error, EXIT_USAGE, "--backend cuda: %s",
                       device_built() ? "no CUDA device" : "this build has no CUDA");
    const char *const why = device_use(0);
    if (why) return fail_device(why, error);
    int status = memory_sizes_of(c, &result->sizes, error);
    if (status != EXIT_OK) return status;
    result->end = MEMORY_OUT;
    if (result->sizes.arrays + result->sizes.working > limit) return EXIT_OK;
    if (compute && !(d.host = malloc((size_t)elements(&d) * sizeof *d.host)))
        return io_fail(error, EXIT_INTERNAL, "out of memory");
    if (!device_alloc(&d.arrays, d.sizes->arrays)) {
        result->end = MEMORY_TAKEN;
        status = run_case(&d, compute, result, error);
    }
    device_free(d.arrays);
    free(d.host);
    return status;
}
