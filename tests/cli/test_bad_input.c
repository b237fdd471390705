/* SPDX-License-Identifier: MIT
 * Whatever is wrong with what `loam attend` is given: the documented exit status, one line on stderr that
 * names the thing, and no output file. */
#include "io/error.h"
#include "tests/cli/program.h"
#include "tests/io/bytes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

typedef struct bad_case {
    int status;
    const char *arguments; /* of `loam attend` */
    const char *complaint; /* part of the line on stderr */
} bad_case;

static void save_npy(const char *path, const char *dictionary, size_t data_bytes)
{
    bytes b = npy_bytes(1, dictionary, data_bytes);
    save_bytes(path, &b);
}

static void save_floats(const char *path, const char *dictionary, const float *values, size_t count)
{
    bytes b = npy_bytes(1, dictionary, count * sizeof *values);
    memcpy(b.at + b.count - count * sizeof *values, values, count * sizeof *values);
    save_bytes(path, &b);
}

/* q, k and v have shape (2, 4, 4, 3), (2, 2, 6, 3) and (2, 2, 6, 2). */
static int make_files(void **state)
{
    if (program_setup(state)) return -1;
    bytes b = text_bytes("not an array");
    save_bytes("text.npy", &b);
    save_bytes("empty.npy", &(bytes){ 0 });
    save_npy("short.npy", "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", 20);
    save_npy("long.npy", "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", 28);
    save_npy("liar.npy", "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000, 1000000), }", 24);
    save_npy("overflow.npy", "{'descr': '<f8', 'fortran_order': False, 'shape': (4294967296, 4294967296), }",
             0);
    save_npy("negative.npy", "{'descr': '<f4', 'fortran_order': False, 'shape': (-2, 3), }", 24);
    save_npy("fortran.npy", "{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }", 24);
    save_npy("big.npy", "{'descr': '>f4', 'fortran_order': False, 'shape': (2, 3), }", 24);
    save_npy("int.npy", "{'descr': '<i8', 'fortran_order': False, 'shape': (3,), }", 24);
    save_npy("object.npy", "{'descr': '|O', 'fortran_order': False, 'shape': (3,), }", 24);
    save_npy("vector.npy", "{'descr': '<f4', 'fortran_order': False, 'shape': (6,), }", 24);
    save_npy("matrix.npy", "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", 24);
    save_npy("k5.npy", "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2, 6, 5), }", 480);
    save_npy("k_batch.npy", "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2, 6, 3), }", 144);
    save_npy("kv3.npy", "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3, 6, 3), }", 432);
    save_npy("wide.npy", "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 600), }", 2400);
    save_floats("nan.npy", "{'descr': '<f4', 'fortran_order': False, 'shape': (4,), }",
                (float[]){ 1, 2, (float)__builtin_nan(""), 3 }, 4);
    save_floats("inf.npy", "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2), }",
                (float[]){ 1, -(float)__builtin_inf() }, 2);
    save_floats("huge.npy", "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2), }",
                (float[]){ 1e6f, 1 }, 2);
    save_floats("minus.npy", "{'descr': '<f4', 'fortran_order': False, 'shape': (4,), }",
                (float[]){ 1, 2, 3, -1 }, 4);
    outcome made = run_shell(
        "mkdir dir && touch locked.npy && mkfifo fifo && head -c 300 $IN >cut.safetensors");
    return made.status;
}

#define QKV "--q $IN:q --k $IN:k --v $IN:v "
#define KV "--k $IN:k --v $IN:v "

static const bad_case CASES[] = {
    /* the command line */
    { EXIT_USAGE, "", "say which mechanism: softmax, parallax, lla" },
    { EXIT_USAGE, "sofmax " QKV, "unknown mechanism 'sofmax'; did you mean softmax" },
    { EXIT_USAGE, "xyzzy " QKV, "expected softmax, parallax, lla" },
    { EXIT_USAGE, "lla softmax " QKV, "unexpected argument 'softmax'" },
    { EXIT_USAGE, "lla --qq $IN:q", "unknown option --qq; did you mean --q?" },
    { EXIT_USAGE, "lla --windw 3 " QKV, "unknown option --windw; did you mean --window?" },
    { EXIT_USAGE, "lla --xyzzyx 3 " QKV, "unknown option --xyzzyx; see --help" },
    { EXIT_USAGE, "lla -x " QKV, "unknown option -x" },
    { EXIT_USAGE, "lla " QKV "--window", "--window needs an argument: --window N" },
    { EXIT_USAGE, "lla " QKV "--full=yes", "--full takes no argument" },
    { EXIT_USAGE, "lla " QKV "--window -3", "--window -3: expected a whole number of at least 1" },
    { EXIT_USAGE, "lla " QKV "--window 2.5", "--window 2.5: expected a whole number" },
    { EXIT_USAGE, "lla " QKV "--window 99999999999999999999", "--window 99999999999999999999: expected" },
    { EXIT_USAGE, "lla " QKV "--threads 0", "--threads 0: expected a whole number from 1 to 4096" },
    { EXIT_USAGE, "lla " QKV "--scale nan", "--scale nan: expected a finite number" },
    { EXIT_USAGE, "lla " QKV "--soft-cap -1", "--soft-cap -1: expected a finite number of at least 0" },
    { EXIT_USAGE, "lla " QKV "--score rbf --scale -1", "scale" },
    { EXIT_USAGE, "lla " QKV "--ridge nan",
      "--ridge nan: expected a finite number of at least 0, or a file" },
    { EXIT_USAGE, "lla " QKV "--ridge -0.5",
      "--ridge -0.5: expected a finite number of at least 0, or a file" },
    { EXIT_USAGE, "lla " QKV "--ridge-unit foo", "--ridge-unit foo: expected normalised, max or trace" },
    { EXIT_USAGE, "lla " QKV "--score cos", "--score cos: expected dot or rbf" },
    { EXIT_USAGE, "lla " QKV "--layout dthb", "--layout dthb: expected bhtd or bthd" },
    { EXIT_USAGE, "lla " QKV "--dtype int8", "--dtype int8: expected f32, bf16, f16 or f64" },
    { EXIT_USAGE, "lla " QKV "--backend gpu", "--backend gpu: expected auto, reference, cpu or cuda" },
    { EXIT_USAGE, "lla " QKV "--kernel nosuch", "nosuch" },
    { EXIT_USAGE, "lla " QKV "--grad-kernel x", "--grad-kernel needs --grad-out and --grad-dir" },
    { EXIT_USAGE, "lla --k $IN:k --v $IN:v", "--q F is needed" },
    { EXIT_USAGE, "lla --q $IN:q --k $IN:k", "--v F is needed" },
    { EXIT_USAGE, "parallax " QKV, "--probe F is needed for parallax" },
    { EXIT_USAGE, "lla --probe $IN:probe " QKV, "--probe is for parallax, not for lla" },
    { EXIT_USAGE, "softmax --ridge 1 " QKV, "--ridge is for lla and mesa, not for softmax" },
    { EXIT_USAGE, "lla --sink $IN:sink " QKV, "--sink is for softmax, not for lla" },
    { EXIT_USAGE, "lla --grad-out $IN:grad_out " QKV, "--grad-out F and --grad-dir D are given together" },
    { EXIT_USAGE, "lla --lse ./o.npy --rho ./o.npy " QKV,
      "--rho ./o.npy would be written over --lse ./o.npy" },
    { EXIT_USAGE, "lla --ridge 1 --ridge 2 " QKV, "--ridge: given twice" },
    { EXIT_USAGE, "lla --full --full " QKV, "--full: given twice" },
    { EXIT_USAGE, "lla --out other.npy " QKV, "--out: given twice" },
    { EXIT_USAGE, "lla --lse l.safetensors:x " QKV, "results are not written as .safetensors" },
    { EXIT_USAGE, "lla --dtype f64 --backend cpu " QKV, "f64" },
    /* files */
    { EXIT_INPUT, "lla --q nosuch.npy " KV, "cannot read nosuch.npy: No such file" },
    { EXIT_INPUT, "lla --q dir " KV, "cannot read dir: it is not a regular file" },
    { EXIT_INPUT, "lla --q fifo " KV, "cannot read fifo: it is not a regular file" },
    { EXIT_INPUT, "lla --q text.npy " KV, "text.npy is not a .npy file" },
    { EXIT_INPUT, "lla --q empty.npy " KV, "empty.npy is not a .npy file" },
    { EXIT_INPUT, "lla --q short.npy " KV,
      "short.npy: shape (2, 3) of '<f4' needs 24 bytes, but the file has 20" },
    { EXIT_INPUT, "lla --q long.npy " KV,
      "long.npy: shape (2, 3) of '<f4' needs 24 bytes, but the file has 28" },
    { EXIT_INPUT, "lla --q liar.npy " KV, "liar.npy: shape (1000000000, 1000000) of '<f4' needs" },
    { EXIT_INPUT, "lla --q overflow.npy " KV,
      "overflow.npy: the size of shape (4294967296, 4294967296) overflows" },
    { EXIT_INPUT, "lla --q negative.npy " KV, "negative.npy: the shape has a negative size, -2" },
    { EXIT_INPUT, "lla --q fortran.npy " KV, "fortran.npy: the array is in Fortran order" },
    { EXIT_INPUT, "lla --q big.npy " KV, "big.npy: elements are big-endian ('>f4')" },
    { EXIT_INPUT, "lla --q int.npy " KV, "int.npy: elements are '<i8'; expected '<f2', '<f4' or '<f8'" },
    { EXIT_INPUT, "lla --q object.npy " KV, "object.npy: elements are Python objects" },
    { EXIT_INPUT, "lla --q $IN " KV, "say which tensor" },
    { EXIT_INPUT, "lla --q $IN:prob " KV, "has no tensor 'prob'; nearest: 'probe'" },
    { EXIT_INPUT, "lla --q cut.safetensors:q " KV, "cut.safetensors: the header claims" },
    /* shapes */
    { EXIT_INPUT, "lla --q vector.npy " KV,
      "--q vector.npy has shape (6,): expected (B,H,T,D), (H,T,D) or (T,D)" },
    { EXIT_INPUT, "lla --q matrix.npy " KV, "--q matrix.npy has shape (2, 3) and --k " },
    { EXIT_INPUT, "lla --q matrix.npy " KV, "has shape (2, 2, 6, 3): expected the same number of axes" },
    { EXIT_INPUT, "lla --q $IN:q --k k5.npy --v $IN:v", "shape (2, 2, 6, 5): expected the same last axis" },
    { EXIT_INPUT, "lla --q $IN:q --k k_batch.npy --v $IN:v", "shape (1, 2, 6, 3): expected the same batch" },
    { EXIT_INPUT, "lla --q $IN:q --k $IN:k --v kv3.npy", "expected the same batch, heads and tokens" },
    { EXIT_INPUT, "lla --q $IN:q --k kv3.npy --v kv3.npy", "heads of q in a multiple of the heads of k" },
    { EXIT_INPUT, "lla --q wide.npy --k wide.npy --v wide.npy", "600" },
    { EXIT_INPUT, "parallax --probe $IN:k " QKV, "expected the same shape" },
    { EXIT_INPUT, "lla --ridge vector.npy " QKV,
      "--ridge vector.npy has shape (6,): with --q of shape (2, 4, 4, 3) expected (), (1,), (H,), (B,H,T)" },
    { EXIT_INPUT, "lla --ridge matrix.npy --q matrix.npy --k matrix.npy --v matrix.npy --slope vector.npy",
      "--slope vector.npy has shape (6,): with --q of shape (2, 3) expected (1,)" },
    { EXIT_INPUT, "lla --ridge vector.npy --q matrix.npy --k matrix.npy --v matrix.npy",
      "with --q of shape (2, 3) expected (), (1,), (T,) or (T,D)" },
    { EXIT_INPUT, "lla --key-bias $IN:ridge_token " QKV, "expected (2, 4, 6)" },
    { EXIT_INPUT, "softmax --sink vector.npy " QKV, "--sink vector.npy has shape (6,)" },
    { EXIT_INPUT, "lla --grad-out $IN:q --grad-dir g " QKV, "--grad-out" },
    { EXIT_INPUT, "lla --grad-out $IN:k --grad-dir g " QKV, "expected the same batch, heads and tokens" },
    /* values */
    { EXIT_INPUT, "lla --ridge nan.npy " QKV, "nan.npy: the value at (2,) is NaN, not a finite f32" },
    { EXIT_INPUT, "lla --ridge minus.npy " QKV,
      "minus.npy: the ridge at (3,) is -1: expected a number of at least 0" },
    { EXIT_INPUT, "lla --q inf.npy --k inf.npy --v inf.npy", "inf.npy: the value at (0, 1) is -infinite" },
    { EXIT_INPUT, "lla --dtype f16 --q huge.npy --k huge.npy --v huge.npy",
      "huge.npy: the value at (0, 0) is infinite, not a finite f16" },
    { EXIT_INPUT, "softmax --slope nan.npy " QKV, "nan.npy: the value at (2,) is NaN" },
    /* outputs */
    { EXIT_OUTPUT, "lla --lse dir " QKV, "cannot write dir: Is a directory" },
    { EXIT_OUTPUT, "lla --lse nosuch/l.npy " QKV, "cannot write nosuch/l.npy: No such file or directory" },
    { EXIT_OUTPUT, "lla --lse '' " QKV, "cannot write a file without a name" },
    { EXIT_OUTPUT, "lla --lse /dev/full " QKV, "cannot write /dev/full: No space left on device" },
    { EXIT_OUTPUT, "lla --grad-out $IN:grad_out --grad-dir text.npy " QKV, "cannot write text.npy/dq.npy" },
    { EXIT_OUTPUT, "lla --grad-out $IN:grad_out --grad-dir nosuch/g " QKV,
      "cannot make the directory nosuch/g" },
};

static void every_mistake_is_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        outcome result = run_loam("attend --out new.npy %s", CASES[i].arguments);
        expect_complaint(&result, CASES[i].status, CASES[i].complaint);
        if (file_exists("new.npy") || file_exists("g") || count_files(".loam-"))
            fail_msg("a file was left by: loam attend %s", CASES[i].arguments);
    }
}

static void out_is_needed(void **state)
{
    (void)state;
    outcome result = run_loam("attend lla " QKV);
    expect_complaint(&result, EXIT_USAGE, "--out F is needed");
}

/* An old result stays as it was where the new one fails. */
static void old_results_survive(void **state)
{
    (void)state;
    outcome result = run_shell("echo old >new.npy");
    expect_status(&result, 0);
    result = run_loam("attend lla " QKV "--out new.npy --lse /dev/full");
    expect_complaint(&result, EXIT_OUTPUT, "/dev/full");
    result = run_shell("cat new.npy; rm new.npy");
    assert_string_equal(result.out, "old\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_mistake_is_named),
        cmocka_unit_test(out_is_needed),
        cmocka_unit_test(old_results_survive),
    };
    return cmocka_run_group_tests(tests, make_files, program_teardown);
}
