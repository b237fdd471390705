/* SPDX-License-Identifier: MIT */
#define _DEFAULT_SOURCE
#include "cli/command.h"
#include "cli/device.h"
#include "cli/options.h"
#include "loam.h"

#include <cblas.h>
#include <gnu/libc-version.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

static const char ABOUT[] = "The machine, what Loam uses of it, and versions.";

static void print_line(const char *label, const char *text) { printf("%-12s %s\n", label, text); }

/* "model name : ..." of /proc/cpuinfo; other systems lack it, and then so does the report. */
static void print_processor(void)
{
    FILE *stream = fopen("/proc/cpuinfo", "r");
    char line[256];
    while (stream && fgets(line, sizeof line, stream)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon) continue;
        line[strcspn(line, "\n")] = '\0';
        print_line("processor", colon + 1 + strspn(colon + 1, " "));
        break;
    }
    if (stream) fclose(stream);
}

static void print_machine(void)
{
    struct utsname name;
    if (uname(&name) == 0) printf("%-12s %s %s, %s\n", "system", name.sysname, name.release, name.machine);
    print_processor();
    long cores = sysconf(_SC_NPROCESSORS_ONLN), pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    if (cores > 0) printf("%-12s %ld\n", "cores", cores);
    if (pages > 0 && page > 0) printf("%-12s %.1f GiB\n", "memory", (double)pages * (double)page / (1 << 30));
}

static void print_gpus(void)
{
    device_info gpu;
    const int count = device_count();
    for (int i = 0; i < count; i++)
        if (!device_describe(i, &gpu))
            printf("%-12s %s, compute capability %d.%d, %d multiprocessors, %.1f GiB\n", "gpu", gpu.name,
                   gpu.major, gpu.minor, gpu.multiprocessors, (double)gpu.memory / (1 << 30));
    if (count == 0) print_line("gpu", device_built() ? "none" : "none: this build has no CUDA");
}

static void print_loam(void)
{
    const char *features = loam_cpu_features();
    printf("%-12s %s (header %d.%d.%d)\n", "loam", loam_version(), LOAM_VERSION_MAJOR, LOAM_VERSION_MINOR,
           LOAM_VERSION_PATCH);
    print_line("features", *features ? features : "none: portable kernels");
    printf("%-12s %d\n", "threads", loam_max_threads());
    int kernels = 0, available = 0;
    loam_kernel_info row;
    for (; loam_kernel_at(kernels, &row) == LOAM_OK; kernels++)
        available += row.available;
    printf("%-12s %d, of which this machine can run %d\n", "kernels", kernels, available);
    printf("%-12s OpenBLAS, kernels %s\n", "products", openblas_get_corename());
    print_line("compiler", __VERSION__);
    print_line("C library", gnu_get_libc_version());
}

int command_info(int argc, char **argv)
{
    const option_row rows[] = { { 0 } };
    bool help;
    io_error error;
    int status = options_parse(&argc, argv, rows, "loam info", ABOUT, &help, &error);
    if (!status && !help && argc > 1)
        status = io_fail(&error, EXIT_USAGE, "unexpected argument '%s'", argv[1]);
    if (status) return options_report("info", &error);
    if (!help) {
        print_loam();
        print_machine();
        print_gpus();
    }
    return EXIT_OK;
}
