/* SPDX-License-Identifier: MIT
 *
 * loam-accuracy [LEN]
 *
 * The accuracy that the library promises: relative Frobenius error against float64 on N(0, 1) inputs, causal, and
 * each row by itself within 20 times that. Prints the table; exit status 1 where a bound does not hold. */
#include "tests/support/compare.h"
#include "tests/support/run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define ROW_ALLOWANCE 20.0

typedef struct promise {
    const char *name;
    loam_mechanism mechanism;
    loam_dtype dtype;
    double ridge, forward, gradients;
} promise;

static const promise promises[] = {
    { "softmax f32", LOAM_SOFTMAX, LOAM_F32, 0, 5e-6, 2e-5 },
    { "parallax f32", LOAM_PARALLAX, LOAM_F32, 0, 5e-6, 2e-5 },
    { "lla f32 ridge 10", LOAM_LLA, LOAM_F32, 10, 2e-5, 1e-4 },
    { "lla f32 ridge 0.1", LOAM_LLA, LOAM_F32, 0.1, 2e-5, 1e-4 },
    { "lla f32 ridge 1e-3", LOAM_LLA, LOAM_F32, 1e-3, 2e-3, 1e-2 },
    { "softmax bf16", LOAM_SOFTMAX, LOAM_BF16, 0, 4e-3, 8e-3 },
    { "parallax bf16", LOAM_PARALLAX, LOAM_BF16, 0, 4e-3, 8e-3 },
    { "lla bf16 ridge 0.1", LOAM_LLA, LOAM_BF16, 0.1, 4e-3, 8e-3 },
    { "lla f16 ridge 0.1", LOAM_LLA, LOAM_F16, 0.1, 4e-3, 8e-3 },
};

static const slot forward_outputs[] = { SLOT_O };
static const slot gradient_outputs[] = { SLOT_GRAD_Q, SLOT_GRAD_K, SLOT_GRAD_V, SLOT_GRAD_PROBE };

static int must_run(values *v)
{
    const outcome r = run_values(v);
    if (r.status || r.misuse[0]) {
        printf("FAIL %s\n", r.status ? r.error.text : r.misuse);
    }
    return r.status || r.misuse[0];
}

/* Prints one line per output; 1 where a bound does not hold. */
static int compare_outputs(const promise *p, const values *got, const values *want, const slot *outputs,
                           int count, double bound)
{
    int failed = 0;
    for (int i = 0; i < count; i++) {
        const slot which = outputs[i];
        if (!got->x[which]) {
            continue;
        }
        const shape a = slot_shape(got, which);
        const difference d = compare(want->x[which], got->x[which], a.batch * a.heads * a.tokens, a.channels);
        const int bad = !(d.relative <= bound) || !(d.worst_row <= ROW_ALLOWANCE * bound);
        printf("%-20s d %-4lld %-11s %.1e  worst row %.1e at %-5lld bound %.0e%s\n", p->name,
               (long long)got->spec.dim_qk, slot_names[which], d.relative, d.worst_row, (long long)d.row,
               bound, bad ? "  FAIL" : "");
        failed |= bad;
    }
    return failed;
}

static int keep_promise(const promise *p, int64_t len, int64_t dim)
{
    int failed = 0;
    for (int pass = LOAM_FORWARD; pass <= LOAM_BACKWARD; pass++) {
        spec s = spec_default(p->mechanism, (loam_pass)pass, len, dim, dim);
        s.dtype = p->dtype;
        s.backend = LOAM_BACKEND_AUTO;
        s.ridge = p->ridge;
        s.seed = 2 + dim;
        values got = values_make(&s);
        s.dtype = LOAM_F64;
        s.backend = LOAM_BACKEND_REFERENCE;
        values want = values_like(&s, &got);
        failed |= must_run(&got) || must_run(&want);
        failed |= pass == LOAM_FORWARD ? compare_outputs(p, &got, &want, forward_outputs, 1, p->forward)
                                       : compare_outputs(p, &got, &want, gradient_outputs, 4, p->gradients);
        values_free(&got);
        values_free(&want);
    }
    return failed;
}

int main(int argc, char **argv)
{
    static const int64_t dims[] = { 32, 64, 128 };
    const int64_t len = argc > 1 ? strtoll(argv[1], NULL, 10) : 640;
    int failed = 0;
    if (len < 1) {
        fprintf(stderr, "usage: %s [LEN]\n", argv[0]);
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("%lld tokens, causal, N(0, 1)\n", (long long)len);
    for (size_t i = 0; i < sizeof promises / sizeof promises[0]; i++) {
        for (int d = 0; d < 3; d++) {
            failed |= keep_promise(&promises[i], len, dims[d]);
        }
    }
    return failed;
}
