/* SPDX-License-Identifier: MIT
 * SHA-256 beside the examples of FIPS 180-4 and the sums that Python's hashlib gives. */
#include "io/sha256.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void expect_sum(const char *text, size_t bytes, size_t step, const char *sum)
{
    char hex[SHA256_HEX];
    sha256 s = sha256_begin();
    for (size_t at = 0; at < bytes; at += step)
        sha256_add(&s, text + at, step < bytes - at ? step : bytes - at);
    assert_string_equal(sha256_hex(&s, hex), sum);
}

static void sums_are_those_of_the_standard(void **state)
{
    static const char long_one[] = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    (void)state;
    expect_sum("", 0, 1, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    expect_sum("abc", 3, 3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    expect_sum(long_one, 56, 56, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

/* Around the ends of blocks, in pieces of any length. */
static void pieces_do_not_matter(void **state)
{
    static const struct {
        size_t bytes;
        const char *sum;
    } cases[] = {
        { 55, "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318" },
        { 56, "b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a" },
        { 63, "7d3e74a05d7db15bce4ad9ec0658ea98e3f06eeecf16b4c6fff2da457ddc2f34" },
        { 64, "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb" },
        { 65, "635361c48bb9eab14198e76ea8ab7f1a41685d6ad62aa9146d301d4f17eb0ae0" },
        { 119, "31eba51c313a5c08226adf18d4a359cfdfd8d2e816b13f4af952f7ea6584dcfb" },
        { 120, "2f3d335432c70b580af0e8e1b3674a7c020d683aa5f73aaaedfdc55af904c21c" },
        { 1000, "41edece42d63e8d9bf515a9ba6932e1c20cbc9f5a5d134645adb5db1b9737ea3" },
    };
    static char text[1000];
    (void)state;
    memset(text, 'a', sizeof text);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t step = 1; step <= 200; step += 9)
            expect_sum(text, cases[i].bytes, step, cases[i].sum);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(sums_are_those_of_the_standard),
                                        cmocka_unit_test(pieces_do_not_matter) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
