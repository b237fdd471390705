/* SPDX-License-Identifier: MIT
 * Checkpoints: a run that goes on from one is the run that was never stopped, wherever it was killed; a file
 * that is damaged, or of another run, is refused. */
#define _XOPEN_SOURCE 700
#include "io/safetensors.h"
#include "tests/train/course.h"
#include "train/checkpoint.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { MOST_STEPS = 1 << 20 };

static void expect_saved(const trainer *t, const char *path)
{
    io_error error;
    if (checkpoint_save(t, path, &error)) fail_msg("%s", error.text);
}

static void expect_loaded(trainer *t, const char *path)
{
    io_error error;
    bool found;
    if (checkpoint_load(t, path, &found, &error)) fail_msg("%s", error.text);
    assert_true(found);
}

/* Each piece by a trainer of its own. */
static void check_resumed(const char *what, const course *c)
{
    trainer whole, part;
    course_open(&whole, c), course_open(&part, c);
    course_advance(&whole, MOST_STEPS);
    for (int64_t steps = 1; !trainer_finished(&part); steps++) {
        course_advance(&part, steps);
        const double seconds = part.seconds;
        expect_saved(&part, "resumed.st");
        trainer_close(&part);
        course_open(&part, c);
        expect_loaded(&part, "resumed.st");
        assert_true(part.seconds == seconds);
    }
    assert_int_equal(part.step, whole.step);
    for (int64_t m = 0; m < c->models; m++)
        course_same(what, &whole, m, &part, m, true);
    for (int64_t i = 0; i < part.most; i++)
        assert_true(part.times[i] > 0);
    trainer_close(&whole), trainer_close(&part);
    assert_int_equal(unlink("resumed.st"), 0);
}

/* In pieces of 1, 2, 3 ... steps, which end before, at and after tests and epochs. */
static void resumed_is_not_interrupted(void **state)
{
    (void)state;
    course c = course_recall("lla", 1);
    check_resumed("lla", &c);
    c = course_recall("softmax", 3);
    c.options.muon = true;
    check_resumed("a stack by muon", &c);
    c = course_regression("mesa", 2);
    check_resumed("regression", &c);
    c.on = machine_cpu(LOAM_F64, 1);
    check_resumed("float64", &c);
    /* One that stops early beside one that does not. */
    c = course_stopping();
    check_resumed("stopped", &c);
}

/* ---- killed */

/* What the child trains, with a checkpoint after every step. */
static course course_to_kill(void)
{
    course c = course_recall("lla", 2);
    c.options.steps = 60;
    return c;
}

static int train_to(const char *path)
{
    const course c = course_to_kill();
    io_error error = { 0 };
    trainer t;
    course_open(&t, &c);
    if (checkpoint_run(&t, path, 0, 1e9, &error)) fail_msg("%s", error.text);
    trainer_close(&t);
    return 0;
}

/* Starts this program as that, and kills it after so long; false where it had ended by itself. */
static bool killed_after(const char *program, double seconds)
{
    int status;
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        execl(program, program, "killed.st", (char *)NULL);
        _exit(127);
    }
    const struct timespec wait = { 0, (long)(1e9 * seconds) };
    nanosleep(&wait, NULL);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) return true;
    assert_int_equal(status, 0);
    return false;
}

/* The same tensors, but for the times. */
static void expect_same_files(const char *a, const char *b, const char *const *names)
{
    io_error error;
    for (; *names; names++) {
        array x, y;
        if (safetensors_read(&x, a, *names, &error) || safetensors_read(&y, b, *names, &error))
            fail_msg("%s", error.text);
        assert_int_equal(x.count, y.count);
        assert_memory_equal(x.data, y.data, (size_t)x.count * array_dtype_bytes(x.dtype));
        array_free(&x), array_free(&y);
    }
}

/* Killed again and again, each time after a bit longer: what is left is a whole checkpoint, or none. */
static void killed_runs_go_on(void **state)
{
    static const char *const names[] = { "records", "state",        "sums",       "E",
                                         "E.m",     "E.v",          "layer0.W_q", "layer0.W_lambda",
                                         "gain",    "layer1.W_o.m", "P",          "layer1.W_k.v",
                                         NULL };
    const char *program = *state;
    int kills = 0;
    for (double seconds = 1e-3; killed_after(program, seconds); seconds *= 1.15, kills++) {
        const course c = course_to_kill();
        io_error error;
        bool found;
        trainer t;
        course_open(&t, &c);
        if (checkpoint_load(&t, "killed.st", &found, &error)) fail_msg("%s", error.text);
        trainer_close(&t);
    }
    const course c = course_to_kill();
    trainer ended;
    course_open(&ended, &c);
    expect_loaded(&ended, "killed.st");
    assert_true(trainer_finished(&ended));
    trainer_close(&ended);
    train_to("whole.st");
    printf("killed %d times\n", kills);
    assert_true(kills > 5);
    expect_same_files("killed.st", "whole.st", names);
    assert_int_equal(unlink("killed.st") | unlink("whole.st"), 0);
}

/* ---- refused */

static void expect_refused(const course *c, const char *path, const char *text)
{
    io_error error = { 0 };
    bool found;
    trainer t, other;
    course_open(&t, c), course_open(&other, c);
    assert_int_equal(checkpoint_load(&t, path, &found, &error), EXIT_INPUT);
    if (!strstr(error.text, text) || !strstr(error.text, path)) fail_msg("'%s' lacks '%s'", error.text, text);
    assert_true(found && t.step == 0);
    for (int64_t m = 0; m < c->models; m++)
        course_same("refused", &t, m, &other, m, true);
    trainer_close(&t), trainer_close(&other);
}

static course saved_course(void)
{
    const course c = course_recall("softmax", 2);
    trainer t;
    course_open(&t, &c);
    course_advance(&t, 5);
    expect_saved(&t, "saved.st");
    trainer_close(&t);
    return c;
}

static char *read_file(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    *size = (size_t)ftell(file);
    rewind(file);
    char *bytes = malloc(*size);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, *size, file), *size);
    fclose(file);
    return bytes;
}

static void write_file(const char *path, const char *bytes, size_t size)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    fclose(file);
}

static void damaged_files_are_refused(void **state)
{
    (void)state;
    const course c = saved_course();
    size_t size;
    char *bytes = read_file("saved.st", &size);
    int tried = 0;
    for (size_t at = 0; at < size; at += at < 10000 ? 61 : 499, tried++) {
        bytes[at] ^= 1;
        write_file("damaged.st", bytes, size);
        expect_refused(&c, "damaged.st", "");
        bytes[at] ^= 1;
    }
    for (size_t length = 0; length < size; length += 1 + size / 20)
        write_file("damaged.st", bytes, length), expect_refused(&c, "damaged.st", "");
    bytes[size - 1] ^= 1;
    write_file("damaged.st", bytes, size);
    expect_refused(&c, "damaged.st", "is damaged: its checksum is not that of its tensors");
    printf("%d bytes changed\n", tried);
    assert_true(tried > 200);
    free(bytes);
    assert_int_equal(unlink("damaged.st") | unlink("saved.st"), 0);
}

/* Whatever the bits depend on, one after another. */
static void other_runs_are_refused(void **state)
{
    (void)state;
    const course good = saved_course();
    course c = good;
    c.options.row = mixer_find("lla");
    expect_refused(&c, "saved.st", "is of another run: it has 'mixer softmax', this one 'mixer lla'");
    c = good, c.options.mixing.positions = POSITIONS_NONE;
    expect_refused(&c, "saved.st", "it has 'positions 0', this one 'positions 2'");
    c = good, c.options.mixing.layer_norm = true;
    expect_refused(&c, "saved.st", "this one 'layer_norm 1'");
    c = good, c.options.mixing.ridge_least = 0.5;
    expect_refused(&c, "saved.st", "this one 'ridge 0.5 to 1 unit 0'");
    c = good, c.options.mixing.probe_zero = true;
    expect_refused(&c, "saved.st", "this one 'probe_zero 1'");
    c = good, c.options.mixing.mlp = true;
    expect_refused(&c, "saved.st", "this one 'mlp 1'");
    c = good, c.options.mixing.qk_norm = true;
    expect_refused(&c, "saved.st", "this one 'qk_norm 1'");
    c = good, c.options.mixing.probe_gate = true;
    expect_refused(&c, "saved.st", "this one 'probe_gate 1'");
    c = good, c.options.mixing.short_filter = true;
    expect_refused(&c, "saved.st", "this one 'short_filter 1'");
    c = good, c.options.mixing.published_dims = true;
    expect_refused(&c, "saved.st", "this one 'published_dims 1'");
    c = good, c.options.mixing.no_silu = true;
    expect_refused(&c, "saved.st", "this one 'no_silu 1'");
    c = good, c.options.shape.width = 32;
    expect_refused(&c, "saved.st", "it has 'width 16', this one 'width 32'");
    c = good, c.options.shape.layers = 1;
    expect_refused(&c, "saved.st", "this one 'layers 1'");
    c = good, c.options.shape.batch = 2;
    expect_refused(&c, "saved.st", "this one 'batch 2'");
    c = good, c.options.steps = 12;
    expect_refused(&c, "saved.st", "this one 'steps 12'");
    c = good, c.options.test_every = 5;
    expect_refused(&c, "saved.st", "this one 'test_every 5'");
    c = good, c.options.decay = 0;
    expect_refused(&c, "saved.st", "this one 'decay 0'");
    c = good, c.options.muon = true;
    expect_refused(&c, "saved.st", "this one 'muon 1 rms 0'");
    c = good, c.options.stop = 0.5;
    expect_refused(&c, "saved.st", "this one 'stop 0.5'");
    c = good, c.on = machine_cpu(LOAM_F64, 2);
    expect_refused(&c, "saved.st", "this one 'f64 f64 openblas ");
    c = good, c.each[1].seed++;
    expect_refused(&c, "saved.st", "it has 'model 1 seed 5 rate 0.006");
    c = good, c.each[0].rate = 1;
    expect_refused(&c, "saved.st", "this one 'model 0 seed 5 rate 1 ");
    c = good, c.models = 1;
    expect_refused(&c, "saved.st", "");
    c = good, c.each[0].from.recall.fill = c.each[1].from.recall.fill = false;
    expect_refused(&c, "saved.st", "fill 0");
    c = course_regression("softmax", 2);
    expect_refused(&c, "saved.st",
                   "this one 'model 0 seed 5 rate 0.0030000000000000001 0.02 regression length 8 ");
    c.options.mixing.blind = true;
    expect_refused(&c, "saved.st", "this one 'blind 1'");
    assert_int_equal(unlink("saved.st"), 0);
}

/* ---- other tensors under the same line */

enum { MOST_TENSORS = 256 };

typedef struct forgery {
    safetensors_contents contents;
    array tensors[MOST_TENSORS];
    const char *names[MOST_TENSORS], *texts[5];
    char inputs[4096], sum[17];
} forgery;

/* All of a checkpoint, as the trainer's parameters name it. */
static void read_all(forgery *f, const course *c)
{
    io_error error;
    safetensors *file;
    trainer t;
    static char made[MOST_TENSORS][48];
    static const char *const endings[] = { "", ".m", ".v" }, *const first[] = { "records", "times", "state",
                                                                                "sums" };
    int count, n = 0;
    course_open(&t, c);
    const parameter *list = model_parameters(t.net, &count);
    for (; n < 4; n++)
        f->names[n] = first[n];
    for (int i = 0; i < 3 * count; i++, n++) {
        snprintf(made[n], sizeof made[n], "%s%s", list[i / 3].name, endings[i % 3]);
        f->names[n] = made[n];
    }
    trainer_close(&t);
    if (safetensors_open(&file, "saved.st", &error)) fail_msg("%s", error.text);
    assert_int_equal(safetensors_count(file), n);
    for (int i = 0; i < n; i++)
        if (safetensors_tensor(file, &f->tensors[i], f->names[i], &error)) fail_msg("%s", error.text);
    snprintf(f->inputs, sizeof f->inputs, "%s", safetensors_text(file, "inputs"));
    snprintf(f->sum, sizeof f->sum, "%s", safetensors_text(file, "checksum"));
    safetensors_close(file);
    f->texts[0] = "inputs", f->texts[1] = f->inputs, f->texts[2] = "checksum", f->texts[3] = f->sum;
    f->contents = (safetensors_contents){ (size_t)n, f->names, f->tensors, f->texts };
}

static void expect_forged(const forgery *f, const course *c, const char *text)
{
    io_error error;
    if (safetensors_write("forged.st", &f->contents, &error)) fail_msg("%s", error.text);
    expect_refused(c, "forged.st", text);
}

static void other_tensors_are_refused(void **state)
{
    (void)state;
    const course c = saved_course();
    static forgery f;
    trainer t;
    io_error error;
    read_all(&f, &c);
    const size_t last = f.contents.count - 1;
    if (safetensors_write("forged.st", &f.contents, &error)) fail_msg("%s", error.text);
    course_open(&t, &c);
    expect_loaded(&t, "forged.st");
    assert_int_equal(t.step, 5);
    trainer_close(&t);

    f.contents.count--;
    expect_forged(&f, &c, "has no tensor 'gain.v'");
    f.contents.count++;
    const array kept = f.tensors[last];
    f.tensors[last].shape[2] = 1, f.tensors[last].shape[1] = kept.shape[2];
    expect_forged(&f, &c, "tensor 'gain.v' is f32 (2, 16, 1); expected f32 (2, 1, 16)");
    f.tensors[last] = kept;
    if (array_convert(&f.tensors[last], LOAM_BF16, "x", &error)) fail_msg("%s", error.text);
    expect_forged(&f, &c, "tensor 'gain.v' is bf16 (2, 1, 16); expected f32 (2, 1, 16)");
    if (array_convert(&f.tensors[last], LOAM_F32, "x", &error)) fail_msg("%s", error.text);
    f.names[last + 1] = "more", f.tensors[last + 1] = f.tensors[last];
    f.contents.count++;
    expect_forged(&f, &c, "tensors; expected");
    f.contents.count--;
    f.texts[2] = "sum";
    expect_forged(&f, &c, "is damaged");
    f.texts[0] = "input";
    expect_forged(&f, &c, "is not a checkpoint: it has no text 'inputs'");
    for (size_t i = 0; i <= last; i++)
        array_free(&f.tensors[i]);
    assert_int_equal(unlink("saved.st") | unlink("forged.st"), 0);
}

static void runs_without_a_file_begin(void **state)
{
    (void)state;
    const course c = course_regression("softmax", 1);
    io_error error = { 0 };
    bool found = true;
    trainer t, whole;
    course_open(&t, &c), course_open(&whole, &c);
    assert_int_equal(checkpoint_load(&t, "nosuch.st", &found, &error), EXIT_OK);
    assert_false(found);
    assert_int_equal(checkpoint_save(&t, "nosuch/x.st", &error), EXIT_OUTPUT);
    assert_non_null(strstr(error.text, "cannot write nosuch/x.st"));
    /* No time: nothing is done. Then one step at a time, then all that is left. */
    assert_int_equal(checkpoint_run(&t, "run.st", 0, 0, &error), EXIT_OK);
    assert_true(t.step == 0 && access("run.st", F_OK) != 0);
    assert_int_equal(checkpoint_run(&t, "run.st", CHECKPOINT_SECONDS, 1e9, &error), EXIT_OK);
    course_advance(&whole, MOST_STEPS);
    course_same("run", &whole, 0, &t, 0, true);
    trainer_close(&t);
    course_open(&t, &c);
    assert_int_equal(checkpoint_run(&t, "run.st", CHECKPOINT_SECONDS, 1e9, &error), EXIT_OK);
    course_same("ended", &whole, 0, &t, 0, true);
    trainer_close(&t), trainer_close(&whole);
    assert_int_equal(unlink("run.st"), 0);
}

/* What another run left, which may have failed. */
static int remove_files(void **state)
{
    (void)state;
    return system("rm -f *.st .loam-*.tmp");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(resumed_is_not_interrupted), cmocka_unit_test_prestate(killed_runs_go_on, argv[0]),
        cmocka_unit_test(damaged_files_are_refused),  cmocka_unit_test(other_runs_are_refused),
        cmocka_unit_test(other_tensors_are_refused),  cmocka_unit_test(runs_without_a_file_begin),
    };
    if (argc == 2) return train_to(argv[1]);
    return cmocka_run_group_tests(tests, remove_files, remove_files);
}
