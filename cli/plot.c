/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L

#include "cli/plot.h"

#include "io/out_file.h"

#include <errno.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* gnuplot reads the script from, and writes the picture and its complaints to, files that have no name:
 * nothing is left behind, no path needs quoting, and the picture can be checked before it is published. */
struct plot {
    FILE *script, *picture, *complaint;
    out_file *out;
    const char *ending; /* of the path: ".svg" or ".png" */
};

/* Okabe and Ito's palette, in the order of the line types, but Tol's wine for black. */
static const char *const palette[] = { "#0072B2", "#D55E00", "#009E73", "#CC79A7",
                                       "#E69F00", "#56B4E9", "#882255", "#8C8C8C" };

static const char style[] = "set border 3 lc rgb '#5A5A5A' lw 1\n"
                            "set tics nomirror out scale 0.5 textcolor rgb '#3C3C3C'\n"
                            "set grid lt 1 lc rgb '#E8E8E8' lw 1\n"
                            "set key top right samplen 2 spacing 1.2 noopaque textcolor rgb '#1E1E1E'\n"
                            "set style fill transparent solid 0.18 noborder\n"
                            "set datafile missing 'nan'\n"
                            "set bars 0\n";

static const char *ending_of(const char *path)
{
    const char *dot = strrchr(path, '.');
    if (dot && dot != path && dot[-1] != '/') {
        if (!strcmp(dot, ".svg")) return ".svg";
        if (!strcmp(dot, ".png")) return ".png";
    }
    return NULL;
}

static bool in_search_path(const char *program)
{
    const char *dirs = getenv("PATH");
    size_t span;
    for (; dirs; dirs = dirs[span] ? dirs + span + 1 : NULL) {
        span = strcspn(dirs, ":");
        char name[4096];
        const int n = snprintf(name, sizeof name, "%.*s/%s", (int)span, dirs, program);
        if (n > 0 && (size_t)n < sizeof name && access(name, X_OK) == 0) return true;
    }
    return false;
}

static int fail_missing(io_error *error)
{
    return io_fail(error, EXIT_OUTPUT,
                   "pictures need gnuplot, which is not installed (Debian: apt install gnuplot-nox)");
}

int plot_check(const char *path, io_error *error)
{
    if (!ending_of(path))
        return io_fail(error, EXIT_USAGE, "%s: a picture's name ends in .svg or .png", path);
    return in_search_path("gnuplot") ? EXIT_OK : fail_missing(error);
}

static void write_header(const plot *p, int width, int height)
{
    if (!strcmp(p->ending, ".svg"))
        fprintf(p->script,
                "set terminal svg size %d,%d dynamic enhanced font 'Arial,16' background '#FFFFFF'\n", width,
                height);
    else
        fprintf(p->script, "set terminal pngcairo size %d,%d enhanced font 'DejaVu Sans,11'\n", width,
                height);
    for (size_t i = 0; i < sizeof palette / sizeof palette[0]; i++)
        fprintf(p->script, "set linetype %zu lc rgb '%s' lw 2 pt 7 ps 0.5\n", i + 1, palette[i]);
    fputs(style, p->script);
}

int plot_open(plot **out, const char *path, int width, int height, io_error *error)
{
    *out = NULL;
    int status = plot_check(path, error);
    if (status) return status;
    plot *p = calloc(1, sizeof *p);
    if (!p) return io_fail(error, EXIT_INTERNAL, "out of memory");
    p->ending = ending_of(path);
    if ((status = out_open(&p->out, path, error)) != EXIT_OK) {
        plot_discard(p);
        return status;
    }
    p->script = tmpfile();
    p->picture = tmpfile();
    p->complaint = tmpfile();
    if (!p->script || !p->picture || !p->complaint) {
        status = io_fail(error, EXIT_OUTPUT, "%s: no temporary file: %s", path, strerror(errno));
        plot_discard(p);
        return status;
    }
    write_header(p, width, height);
    *out = p;
    return EXIT_OK;
}

FILE *plot_script(plot *p) { return p->script; }

void plot_quote(plot *p, const char *text)
{
    fputc('\'', p->script);
    for (; *text; text++) {
        const unsigned char c = (unsigned char)*text;
        if (c < ' ' || c == 127)
            fputc(' ', p->script);
        else if (c == '\'')
            fputs("''", p->script);
        else if (strchr("_^@&~{}\\", c))
            fprintf(p->script, "\\%c", c);
        else
            fputc(c, p->script);
    }
    fputc('\'', p->script);
}

/* Runs gnuplot on the unnamed files; *code is its exit code, or -1 where a signal ended it. */
static int spawn_and_wait(const plot *p, int *code)
{
    char program[] = "gnuplot", plain[] = "-d"; /* -d: no settings of the user's own */
    char *const argv[] = { program, plain, NULL };
    posix_spawn_file_actions_t actions;
    int err = posix_spawn_file_actions_init(&actions);
    if (err) return err;
    pid_t child = 0;
    if (!err) err = posix_spawn_file_actions_adddup2(&actions, fileno(p->script), STDIN_FILENO);
    if (!err) err = posix_spawn_file_actions_adddup2(&actions, fileno(p->picture), STDOUT_FILENO);
    if (!err) err = posix_spawn_file_actions_adddup2(&actions, fileno(p->complaint), STDERR_FILENO);
    if (!err) err = posix_spawnp(&child, argv[0], &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (err) return err;

    int wait_status;
    pid_t waited;
    do
        waited = waitpid(child, &wait_status, 0);
    while (waited < 0 && errno == EINTR);
    if (waited < 0) return errno;
    *code = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : -1;
    return 0;
}

/* gnuplot prints the command, a caret and then `line N: reason`: the last line that says something. */
static void last_line(FILE *stream, char *text, size_t size)
{
    char line[256];
    snprintf(text, size, "no reason given");
    rewind(stream);
    while (fgets(line, sizeof line, stream)) {
        line[strcspn(line, "\n")] = 0;
        const char *start = line + strspn(line, " \t");
        if (*start) snprintf(text, size, "%s", start);
    }
}

static int run_gnuplot(plot *p, io_error *error)
{
    if (fflush(p->script) || ferror(p->script) || lseek(fileno(p->script), 0, SEEK_SET) < 0)
        return io_fail(error, EXIT_OUTPUT, "writing the script for gnuplot: %s", strerror(errno));
    int code = 0;
    const int err = spawn_and_wait(p, &code);
    if (err == ENOENT) return fail_missing(error);
    if (err) return io_fail(error, EXIT_INTERNAL, "running gnuplot: %s", strerror(err));
    if (code) {
        char reason[256];
        last_line(p->complaint, reason, sizeof reason);
        return io_fail(error, EXIT_INTERNAL, "gnuplot failed: %s", reason);
    }
    return EXIT_OK;
}

/* gnuplot does not check its own writes; a full disk shows in the picture's missing end. */
static bool is_whole(FILE *picture, const char *ending)
{
    char tail[32];
    if (fseek(picture, 0, SEEK_END) || ftell(picture) < (long)sizeof tail) return false;
    if (fseek(picture, -(long)sizeof tail, SEEK_END)) return false;
    if (fread(tail, 1, sizeof tail, picture) != sizeof tail) return false;
    const char *last = strcmp(ending, ".svg") ? "IEND" : "</svg>";
    const size_t n = strlen(last);
    for (size_t i = 0; i + n <= sizeof tail; i++)
        if (!memcmp(tail + i, last, n)) return true;
    return false;
}

static int copy_picture(plot *p, io_error *error)
{
    if (!is_whole(p->picture, p->ending))
        return io_fail(error, EXIT_OUTPUT, "gnuplot wrote no whole picture (is the disk full?)");
    rewind(p->picture);
    char block[1 << 14];
    size_t n;
    while ((n = fread(block, 1, sizeof block, p->picture)) > 0)
        if (fwrite(block, 1, n, out_stream(p->out)) != n) break; /* out_commit reports it */
    if (ferror(p->picture)) return io_fail(error, EXIT_OUTPUT, "reading the picture back failed");
    return EXIT_OK;
}

int plot_close(plot *p, io_error *error)
{
    int status = run_gnuplot(p, error);
    if (!status) status = copy_picture(p, error);
    if (!status) {
        status = out_commit(p->out, error);
        p->out = NULL;
    }
    plot_discard(p);
    return status;
}

void plot_discard(plot *p)
{
    if (!p) return;
    if (p->script) fclose(p->script);
    if (p->picture) fclose(p->picture);
    if (p->complaint) fclose(p->complaint);
    out_discard(p->out);
    free(p);
}
