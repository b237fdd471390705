/* SPDX-License-Identifier: MIT
 * src/simd/pairs.h: both products at sizes around what they take at once, against float64 with the bound of
 * float32 summation. What is beyond the sizes is not a number, and counts for nothing. src/base/cpu.h: on
 * which processors they are worth it. */
#include "src/base/cpu.h"
#include "src/base/dtype.h"
#include "src/simd/pairs.h"
#include "tests/simd/suites.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { MOST = 100, WIDE = 160, GUARD = 2 };
static const float UNTOUCHED = 12345;
static const int64_t sizes[] = { 1, 2, 3, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 80, MOST };
enum { SIZES = sizeof sizes / sizeof sizes[0], WIDTHS = 4 };

static float panel[MOST * LANES], out[(MOST + GUARD) * LANES];
static uint16_t rows[MOST + 32][WIDE], tokens[PAIR_TOKENS * (MOST + 16)];
static int32_t pairs[(MOST + 32) / 2 * LANES];

static void prepare(int64_t count, int64_t width, int64_t summed, uint64_t seed)
{
    for (int64_t r = 0; r < MOST + 32; r++)
        for (int64_t c = 0; c < WIDE; c++)
            rows[r][c] = bf16_from_float(r < count && c < width ? (float)next_number(&seed) : NAN);
    for (int64_t i = 0; i < MOST * LANES; i++)
        panel[i] = NAN;
    for (int64_t i = 0; i < summed * LANES; i++)
        panel[i] = float_from_bf16(bf16_from_float((float)next_number(&seed)));
    for (int64_t i = 0; i < (MOST + GUARD) * LANES; i++)
        out[i] = UNTOUCHED;
    memset(pairs, 0xff, sizeof pairs);
    memset(tokens, 0xff, sizeof tokens);
    pair_rows(pairs, panel, summed, NULL);
}

/* The first `width` lanes of out [n][LANES] = begin + sum over t < summed of rows[r][t] (turned: of
 * rows[t][r]) times panel[t] */
static void check(int64_t n, int64_t summed, int64_t width, bool turned, float begin)
{
    for (int64_t r = 0; r < n; r++) {
        for (int64_t lane = 0; lane < width; lane++) {
            double want = (double)begin, size = fabs(want);
            for (int64_t t = 0; t < summed; t++) {
                const double x = (double)float_from_bf16(turned ? rows[t][r] : rows[r][t]);
                want += x * (double)panel[t * LANES + lane];
                size += fabs(x * (double)panel[t * LANES + lane]);
            }
            const double got = (double)out[r * LANES + lane];
            if (!(fabs(got - want) <= (double)(summed + 2) * 0x1p-24 * size)) {
                fail_msg("%d x %d, turned %d: [%d][%d] is %.9g, expected %.9g", (int)n, (int)summed, turned,
                         (int)r, (int)lane, got, want);
            }
        }
    }
    for (int64_t i = n * LANES; i < (MOST + GUARD) * LANES; i++)
        assert_true(out[i] == UNTOUCHED);
}

static void products_are_within_their_bounds(void **state)
{
    (void)state;
    tiles_begin();
    for (int which = 0; which < SIZES * SIZES * WIDTHS; which++) {
        const int64_t n = sizes[which / SIZES % SIZES], summed = sizes[which % SIZES],
                      width = LANES / WIDTHS * (1 + which / (SIZES * SIZES));
        prepare(n, summed, summed, (uint64_t)which);
        for (int64_t r = 0; r < n; r++) /* rows are whole, as raw_rows_of makes them */
            memset(&rows[r][summed], 0, (size_t)(WIDE - summed) * sizeof rows[r][0]);
        pair_row_product(out, n, rows[0], WIDE, pairs, summed, width);
        check(n, summed, width, false, 0);
        if (summed > PAIR_TOKENS) continue;
        prepare(summed, n, summed, (uint64_t)which);
        for (int64_t i = 0; i < n * LANES; i++)
            out[i] = 0.5f;
        pair_tokens(tokens, rows[0], WIDE, summed, n);
        pair_token_product(out, tokens, n, pairs, summed, width);
        check(n, summed, width, true, 0.5f);
    }
    tiles_end();
}

static void sums_are_those_of_rounded_rows(void **state)
{
    (void)state;
    float sum[LANES] = { 0 };
    prepare(1, 1, 7, 3);
    for (int64_t i = 0; i < 7 * LANES; i++)
        panel[i] *= 1.001f;
    pair_rows(pairs, panel, 7, sum);
    for (int lane = 0; lane < LANES; lane++) {
        double want = 0;
        for (int r = 0; r < 7; r++)
            want += (double)float_from_bf16(bf16_from_float(panel[r * LANES + lane]));
        assert_true(fabs((double)sum[lane] - want) <= 0x1p-20);
    }
}

/* Compilers name their sets differently; a row must have the instructions that it is named after. */
static void sets_have_their_products(void **state)
{
    (void)state;
    const bool tiles = strcmp(LOAM_TESTED_ISA, "amxbf16") == 0;
    assert_int_equal(TILE_DOTS, tiles);
    assert_int_equal(PAIR_DOTS, tiles || strcmp(LOAM_TESTED_ISA, "avx512bf16") == 0);
}

/* The rows of the registry go in the order of their sets, of which the last two have bfloat16 alone. */
static cpu_isa chosen_of(const cpu_features *f, bool bf16)
{
    cpu_isa chosen = CPU_PORTABLE;
    for (cpu_isa isa = CPU_PORTABLE; isa <= cpu_isa_of(f); isa++)
        if ((bf16 || isa <= CPU_AVX512) && cpu_isa_pays(isa, f->intel)) chosen = isa;
    return chosen;
}

/* Vectors of bfloat16 pairs are slower than float32 on Intel's processors; all else pays where it is. */
static void sets_are_chosen_by_processor(void **state)
{
    (void)state;
    static const struct {
        const char *processor;
        cpu_features f; /* intel, avx2, avx512, avx512bf16, amx */
        cpu_isa f32, bf16;
    } known[] = {
        { "AMD family 25, Zen 3", { 0, 1, 0, 0, 0 }, CPU_AVX2, CPU_AVX2 },
        { "AMD family 25, Zen 4", { 0, 1, 1, 1, 0 }, CPU_AVX512, CPU_AVX512BF16 },
        { "AMD family 26, Zen 5", { 0, 1, 1, 1, 0 }, CPU_AVX512, CPU_AVX512BF16 },
        { "Intel Haswell", { 1, 1, 0, 0, 0 }, CPU_AVX2, CPU_AVX2 },
        { "Intel Ice Lake", { 1, 1, 1, 0, 0 }, CPU_AVX512, CPU_AVX512 },
        { "Intel Cooper Lake", { 1, 1, 1, 1, 0 }, CPU_AVX512, CPU_AVX512 },
        { "Intel Sapphire Rapids", { 1, 1, 1, 1, 1 }, CPU_AVX512, CPU_AMXBF16 },
        { "no AVX2", { 1, 0, 0, 0, 0 }, CPU_PORTABLE, CPU_PORTABLE },
        { "AVX-512 without AVX2", { 0, 0, 1, 1, 0 }, CPU_PORTABLE, CPU_PORTABLE },
        { "tiles without AVX-512", { 1, 1, 0, 0, 1 }, CPU_AVX2, CPU_AVX2 },
    };
    for (size_t r = 0; r < sizeof known / sizeof *known; r++) {
        const cpu_isa f32 = chosen_of(&known[r].f, false), bf16 = chosen_of(&known[r].f, true);
        if (f32 != known[r].f32 || bf16 != known[r].bf16)
            fail_msg("%s: sets %d and %d of cpu_isa are chosen for float32 and bfloat16, expected %d and %d",
                     known[r].processor, (int)f32, (int)bf16, (int)known[r].f32, (int)known[r].bf16);
    }
}

int suite_pairs(void)
{
    const struct CMUnitTest pairs_h[] = {
        cmocka_unit_test(products_are_within_their_bounds),
        cmocka_unit_test(sums_are_those_of_rounded_rows),
        cmocka_unit_test(sets_have_their_products),
        cmocka_unit_test(sets_are_chosen_by_processor),
    };
    return cmocka_run_group_tests(pairs_h, NULL, NULL);
}
