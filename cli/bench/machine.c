/* SPDX-License-Identifier: MIT */
#define _DEFAULT_SOURCE
#include "cli/bench/machine.h"

#include "cli/bench/generated.h"
#include "loam.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#if defined __clang__
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif

/* "model name : ..." of /proc/cpuinfo; other systems lack it. Commas and quotes would need care in CSV. */
static void read_cpu(char *cpu, size_t bytes)
{
    snprintf(cpu, bytes, "unknown");
    FILE *stream = fopen("/proc/cpuinfo", "r");
    char line[256];
    while (stream && fgets(line, sizeof line, stream)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon) continue;
        line[strcspn(line, "\n")] = '\0';
        snprintf(cpu, bytes, "%.90s", colon + 1 + strspn(colon + 1, " "));
        break;
    }
    if (stream) fclose(stream);
}

static void read_date(char *date, size_t bytes)
{
    const time_t now = time(NULL);
    struct tm utc;
    if (!gmtime_r(&now, &utc) || strftime(date, bytes, "%Y-%m-%dT%H:%M:%SZ", &utc) == 0)
        snprintf(date, bytes, "unknown");
}

static void plain(char *text)
{
    for (; *text; text++)
        if (*text == ',' || *text == '"' || *text < ' ' || *text > '~') *text = ' ';
}

void bench_machine_read(bench_machine *m)
{
    *m = (bench_machine){ .commit = BENCH_COMMIT };
    read_cpu(m->cpu, sizeof m->cpu);
    const char *features = loam_cpu_features();
    snprintf(m->features, sizeof m->features, "%s", *features ? features : "portable");
    snprintf(m->compiler, sizeof m->compiler, "%s", COMPILER);
    read_date(m->date, sizeof m->date);
    plain(m->cpu);
    plain(m->compiler);
    m->cores = sysconf(_SC_NPROCESSORS_ONLN);
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    m->memory = pages > 0 && page > 0 ? (double)pages * (double)page : 0;
}
