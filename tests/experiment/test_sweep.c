/* SPDX-License-Identifier: MIT
 * Sums that do not depend on threads, chunks, or where a run was cut; and state files that are wrong. */
#define _POSIX_C_SOURCE 200809L
#include "cli/experiment/state.h"
#include "tests/experiment/fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DIM = 4, LENGTH = 32, CELLS = 4 };

static void make_cells(sweep_cell cells[CELLS])
{
    for (int i = 0; i < CELLS; i++)
        cells[i] = (sweep_cell){ .task = { DIM, i % 2 ? 8 : 16, LENGTH, 0.1, 3 }, .hidden = i / 2 };
}

static void free_cells(sweep_cell cells[CELLS])
{
    for (int i = 0; i < CELLS; i++)
        moments_destroy(&cells[i].sums);
}

static sweep make_sweep(sweep_cell cells[CELLS], const char *directory, int64_t sequences)
{
    make_cells(cells);
    return (sweep){ fixture_setup(), sequences, SWEEP_CONTINUE, directory, cells, CELLS };
}

static void expect_same_sums(const sweep_cell a[CELLS], const sweep_cell b[CELLS])
{
    for (int i = 0; i < CELLS; i++) {
        assert_int_equal(a[i].sums.sequences, b[i].sums.sequences);
        assert_memory_equal(a[i].sums.sums, b[i].sums.sums, a[i].sums.count * sizeof(double));
    }
}

static void test_threads(void **state)
{
    (void)state;
    sweep_cell first[CELLS], again[CELLS];
    char directory[64];
    io_error error;
    for (int threads = 1; threads <= 4; threads++) {
        sweep_cell *cells = threads == 1 ? first : again;
        fixture_directory(directory);
        sweep s = make_sweep(cells, directory, 11);
        s.setup.threads = threads;
        expect_ok(sweep_run(&s, &error), &error);
        if (cells == again) {
            expect_same_sums(first, again);
            free_cells(again);
        }
        fixture_remove(directory);
    }
    free_cells(first);
}

/* The second line of a state file: what its sums depend on. */
static void read_inputs(const char *path, char inputs[1024])
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_true(fgets(inputs, 1024, file) && fgets(inputs, 1024, file));
    fclose(file);
    inputs[strcspn(inputs, "\n")] = '\0';
}

/* In `partial`, what a run of `sequences` leaves that is killed after `cut` of them in cell 1. */
static void leave_state(const char *whole, const char *partial, int cut, int sequences)
{
    sweep_cell cells[CELLS];
    io_error error;
    char path[128], inputs[1024], wanted[1200];
    sweep s = make_sweep(cells, whole, cut);
    expect_ok(sweep_run(&s, &error), &error);
    snprintf(path, sizeof path, "%s/d4-S8-visible", whole);
    read_inputs(path, inputs);
    char *number = strstr(inputs, "sequences ");
    assert_non_null(number);
    *number = '\0';
    snprintf(wanted, sizeof wanted, "%ssequences %d%s", inputs, sequences,
             strchr(number + strlen("sequences "), ' '));
    snprintf(path, sizeof path, "%s/d4-S8-visible", partial);
    expect_ok(state_save(path, wanted, &cells[1].sums, &error), &error);
    free_cells(cells);
}

static void test_cut_anywhere(void **state)
{
    (void)state;
    enum { SEQUENCES = 19 };
    sweep_cell whole[CELLS], resumed[CELLS];
    char directory[64], prefix[64], again[64];
    io_error error;
    fixture_directory(directory);
    sweep s = make_sweep(whole, directory, SEQUENCES);
    expect_ok(sweep_run(&s, &error), &error);
    for (int cut = 2; cut <= SEQUENCES; cut += 5) {
        fixture_directory(prefix);
        fixture_directory(again);
        leave_state(prefix, again, cut, SEQUENCES);
        s = make_sweep(resumed, again, SEQUENCES);
        s.start = SWEEP_RESUME;
        expect_ok(sweep_run(&s, &error), &error);
        expect_same_sums(whole, resumed);
        free_cells(resumed);
        fixture_remove(prefix);
        fixture_remove(again);
    }
    free_cells(whole);
    fixture_remove(directory);
}

/* A finished cell is not computed again: sums that no run would give are taken as they are. */
static void test_state_is_used(void **state)
{
    (void)state;
    sweep_cell cells[CELLS], again[CELLS];
    char directory[64], path[128], inputs[1024];
    io_error error;
    fixture_directory(directory);
    sweep s = make_sweep(cells, directory, 3);
    expect_ok(sweep_run(&s, &error), &error);
    snprintf(path, sizeof path, "%s/d4-S16-hidden", directory);
    read_inputs(path, inputs);
    cells[2].sums.sums[5] = 12345;
    expect_ok(state_save(path, inputs, &cells[2].sums, &error), &error);
    s = make_sweep(again, directory, 3);
    expect_ok(sweep_run(&s, &error), &error);
    expect_same_sums(cells, again);
    free_cells(cells);
    free_cells(again);
    sweep_forget(&s);
    assert_int_equal(rmdir(directory), 0);
}

static void expect_refused(sweep *s, const char *word)
{
    io_error error = { 0 };
    assert_int_equal(sweep_run(s, &error), EXIT_INPUT);
    if (!strstr(error.text, word)) fail_msg("\"%s\" does not say \"%s\"", error.text, word);
    free_cells(s->cells);
}

static void test_other_options(void **state)
{
    (void)state;
    sweep_cell cells[CELLS];
    char directory[64];
    io_error error;
    fixture_directory(directory);
    sweep s = make_sweep(cells, directory, 3);
    s.start = SWEEP_RESUME;
    expect_refused(&s, "holds no run");
    s = make_sweep(cells, directory, 3);
    expect_ok(sweep_run(&s, &error), &error);
    free_cells(cells);
    for (int change = 0; change < 8; change++) {
        s = make_sweep(cells, directory, change == 0 ? 4 : 3);
        for (int i = 0; i < CELLS; i++) {
            cells[i].task.seed += change == 1;
            cells[i].task.noise += change == 2;
            cells[i].task.length *= change == 3 ? 2 : 1;
        }
        s.setup.ridge *= change == 4 ? 2 : 1;
        s.setup.mesa_ridge *= change == 5 ? 2 : 1;
        s.setup.bandwidth *= change == 6 ? 2 : 1;
        s.setup.score = change == 7 ? LOAM_RBF : LOAM_DOT;
        expect_refused(&s, "other options");
        s.start = SWEEP_RESTART;
        if (change == 7) {
            expect_ok(sweep_run(&s, &error), &error);
            free_cells(cells);
        }
    }
    fixture_remove(directory);
}

static size_t read_file(const char *path, unsigned char *bytes, size_t room)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    const size_t size = fread(bytes, 1, room, file);
    fclose(file);
    assert_true(size < room);
    return size;
}

static void expect_damaged(const char *path, const unsigned char *bytes, size_t size, const char *inputs,
                           moments *m)
{
    io_error error;
    bool found;
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(state_load(path, inputs, m, &found, &error), EXIT_INPUT);
}

static void test_damage(void **state)
{
    (void)state;
    const char *inputs = "d 4 and so on";
    const double ones[8] = { 1, 1, 1, 1, 1, 1, 1, 1 };
    const double *rows[ESTIMATORS];
    for (int e = 0; e < ESTIMATORS; e++)
        rows[e] = ones;
    char directory[64], path[128];
    io_error error;
    moments m, back;
    bool found;
    fixture_directory(directory);
    snprintf(path, sizeof path, "%s/cell", directory);
    expect_ok(moments_create(&m, 8, &error), &error);
    expect_ok(moments_create(&back, 8, &error), &error);
    expect_ok(state_load(path, inputs, &back, &found, &error), &error);
    assert_false(found);
    moments_add(&m, rows);
    expect_ok(state_save(path, inputs, &m, &error), &error);
    expect_ok(state_load(path, inputs, &back, &found, &error), &error);
    assert_true(found && back.sequences == 1);
    assert_memory_equal(m.sums, back.sums, m.count * sizeof(double));
    unsigned char bytes[8192];
    const size_t size = read_file(path, bytes, sizeof bytes);
    for (size_t at = 0; at < size; at++) {
        bytes[at] ^= 4;
        expect_damaged(path, bytes, size, inputs, &back);
        bytes[at] ^= 4;
        expect_damaged(path, bytes, at, inputs, &back);
    }
    expect_damaged(path, bytes, size + 1, inputs, &back);
    moments_destroy(&m);
    moments_destroy(&back);
    fixture_remove(directory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads),       cmocka_unit_test(test_cut_anywhere),
        cmocka_unit_test(test_state_is_used), cmocka_unit_test(test_other_options),
        cmocka_unit_test(test_damage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
