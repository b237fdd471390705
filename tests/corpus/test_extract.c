/* SPDX-License-Identifier: MIT
 * What is read of files of each kind. */
#include "corpus/extract.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct gathered {
    char text[1 << 12];
    size_t count, paragraphs, stop_at;
} gathered;

static int gather(void *context, const char *text, size_t bytes, io_error *error)
{
    gathered *g = context;
    if (++g->paragraphs == g->stop_at) return io_fail(error, EXIT_INPUT, "stopped");
    if (g->count + bytes + 1 >= sizeof g->text) return 0;
    for (size_t i = 0; i < bytes; i++)
        g->text[g->count++] = text[i] ? text[i] : '@';
    g->text[g->count++] = '|';
    return 0;
}

/* `want` has a | behind each paragraph, and @ for bytes of 0. */
static void expect(text_kind kind, const char *text, size_t bytes, const char *want)
{
    gathered g = { .count = 0 };
    io_error error;
    assert_int_equal(extract_paragraphs(kind, text, bytes, gather, &g, &error), 0);
    if (strlen(want) != g.count || memcmp(g.text, want, g.count) != 0)
        fail_msg("'%s'\ngave '%.*s'\nnot '%s'", text, (int)g.count, g.text, want);
}

typedef struct example {
    const char *text, *want;
} example;

static void expect_all(text_kind kind, const example *all, size_t count)
{
    for (size_t i = 0; i < count; i++)
        expect(kind, all[i].text, strlen(all[i].text), all[i].want);
}
#define EXPECT_ALL(kind, all) expect_all(kind, all, sizeof all / sizeof *all)

static void html_splits_at_blocks(void **state)
{
    static const example all[] = {
        { "", "" },
        { " \n\t ", "" },
        { "a", "a|" },
        { "<p>one <b>b</b>old\n word</p>two<p>three", "one bold word|two|three|" },
        { "a<div>b<ul><li>c<li>d</ul>e</div>f", "a|b|c|d|e|f|" },
        { "<H1 CLASS=x>t</H1 >s<span>p</span>an<br>n<br/>o", "t|span n o|" },
        { "<html><head><title>t</title></head><body>b</body></html>", "t|b|" },
        { "<custom-tag>a</custom-tag><h7>b</h7><hr>c", "ab|c|" },
    };
    (void)state;
    EXPECT_ALL(TEXT_HTML, all);
}

static void html_drops_what_is_no_prose(void **state)
{
    static const example all[] = {
        { "a<script>if (a < b) p('</p>')</script>b", "a|b|" },
        { "a<SCRIPT src=x>b</scripted></Script>c", "a|c|" },
        { "a<style>p { x }</style>b", "a|b|" },
        { "a<pre>b<p>c</pre>d", "a|d|" },
        { "a<nav><ul><li>b</ul></nav>c", "a|c|" },
        { "a<table><tr><td>b<table><tr><td>c</table>d</table>e", "a|e|" },
        { "a</table></table>b<table>c</table>d", "a|b|d|" },
        { "a<pre><nav>b</pre>c</nav>d", "a|d|" },
        { "a<table>b", "a|" },
        { "a<script>b", "a|" },
        { "a<style>b</script>c", "a|" },
    };
    (void)state;
    EXPECT_ALL(TEXT_HTML, all);
}

static void html_reads_tags_as_browsers_do(void **state)
{
    static const example all[] = {
        { "a<!-- <p>b --> -- > c -->d", "a -- > c -->d|" },
        { "a<!-->b<!--->c<!---->d", "abcd|" },
        { "a<!-- b", "a|" },
        { "a<!doctype x>b<?xml y?>c</ >d", "abcd|" },
        { "<p title='1 > 0' x=\"'>'\" y= '>'>a</p>", "a|" },
        { "<p don't>a</p>b", "a|b|" },
        { "<p x='a>b</p>c", "" },
        { "a < b <3 << c <", "a < b <3 << c <|" },
        { "a<b", "a|" },
        { "a</b", "a|" },
        { "<verylongnamethatnobodyknows>a</p>b", "a|b|" },
    };
    (void)state;
    EXPECT_ALL(TEXT_HTML, all);
}

static void html_decodes_references(void **state)
{
    static const example all[] = {
        { "&lt;p&gt; &amp;amp; &quot;&apos;", "<p> &amp; \"'|" },
        { "&AElig;&zwnj;&eacute;&euro;", "\xc3\x86\xe2\x80\x8c\xc3\xa9\xe2\x82\xac|" },
        { "&#65;&#x42;&#X1f600;", "AB\xf0\x9f\x98\x80|" },
        { "&#0;&#xd800;&#1114112;", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd|" },
        { "&nosuch; &lt &; &#; &#x; &#1a; &#-1; & &averyveryverylongname;",
          "&nosuch; &lt &; &#; &#x; &#1a; &#-1; & &averyveryverylongname;|" },
        { "a&nbsp;b\xc2\xa0 c&#160;", "a b c|" },
        { "&lt;<p>&gt;", "<|>|" },
    };
    (void)state;
    EXPECT_ALL(TEXT_HTML, all);
    expect(TEXT_HTML, "a&amp\0;b\0c", 10, "a&amp@;b@c|");
}

static void plain_text_splits_at_blank_lines(void **state)
{
    static const example all[] = {
        { "", "" },
        { "a\nb\n\nc", "a b|c|" },
        { "\n \n a  b\t\r\n c\r\n \t\r\nd\n\n\n", "a b c|d|" },
        { "<p>&amp;", "<p>&amp;|" },
    };
    (void)state;
    EXPECT_ALL(TEXT_PLAIN, all);
}

static void pod_keeps_its_text(void **state)
{
    static const example all[] = {
        { "=head1 NAME\n\nperl - a\nlanguage\n\n=cut\n", "perl - a language|" },
        { "a\n\n  verbatim\nmore\n\n\tverbatim\n\nb", "a|b|" },
        { "B<bold> I<it C<code>> C<< a->b > c >> F<f>", "bold it code a->b > c f|" },
        { "L<text|page/x> L<page> X<index>Z<>a E<lt>E<gt>E<sol>E<verbar>E<eacute>", "text page a <>/||" },
        { "a > b B c<d Ex", "a > b B c<d Ex|" },
        { "B<open\n\nclosed > x", "open|closed > x|" },
        { "=begin html\n\na\n\n=end html\n\nb\n\n=for x c\n\nd", "b|d|" },
    };
    (void)state;
    EXPECT_ALL(TEXT_POD, all);
}

static void dictionaries_have_an_entry_a_line(void **state)
{
    static const example all[] = {
        { "a word [1913 Webster]\nb <tag>two</tag> [x [y] z]\n\n[only]\n", "a word|b two z]|" },
        { "a [b\nc] d", "a [b|c] d|" },
        { "a < b > c > d [", "a c > d [|" },
    };
    (void)state;
    EXPECT_ALL(TEXT_DICTIONARY, all);
}

static void a_sink_ends_it_all(void **state)
{
    static const char *const texts[] = { [TEXT_HTML] = "<p>a<p>b<p>c",
                                         [TEXT_PLAIN] = "a\n\nb\n\nc",
                                         [TEXT_POD] = "a\n\nb\n\nc",
                                         [TEXT_DICTIONARY] = "a\nb\nc" };
    (void)state;
    for (int kind = 0; text_kind_name(kind); kind++) {
        gathered g = { .stop_at = 2 };
        io_error error;
        const int status = extract_paragraphs((text_kind)kind, texts[kind], strlen(texts[kind]), gather, &g,
                                              &error);
        assert_int_equal(status, EXIT_INPUT);
        assert_int_equal(g.paragraphs, 2);
    }
}

/* A megabyte of what would take hours if any of it were read twice for each byte. */
static void hostile_text_takes_linear_time(void **state)
{
    static const char *const units[] = { "<",          "<a ",    "<!--", "</", "<!", "&",    "&#", "<script>",
                                         "<script></", "<a b='", "[",    "<<", "B<", "B<<<", "[<", "x" };
    const size_t bytes = (size_t)1 << 20;
    char *text = malloc(bytes);
    (void)state;
    assert_non_null(text);
    for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
        const size_t length = strlen(units[u]);
        for (size_t i = 0; i < bytes; i++)
            text[i] = units[u][i % length];
        for (int kind = 0; text_kind_name(kind); kind++) {
            gathered g = { .count = 0 };
            io_error error;
            assert_int_equal(extract_paragraphs((text_kind)kind, text, bytes, gather, &g, &error), 0);
        }
    }
    free(text);
}

static void endings_say_the_kind(void **state)
{
    (void)state;
    assert_int_equal(text_kind_of("a/b.html"), TEXT_HTML);
    assert_int_equal(text_kind_of("b.htm"), TEXT_HTML);
    assert_int_equal(text_kind_of("b.rst.txt"), TEXT_PLAIN);
    assert_int_equal(text_kind_of("perl.pod"), TEXT_POD);
    assert_int_equal(text_kind_of("w.dictionary"), TEXT_DICTIONARY);
    assert_int_equal(text_kind_of(".html"), -1);
    assert_int_equal(text_kind_of("a.html.gz"), -1);
    assert_int_equal(text_kind_of("html"), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(html_splits_at_blocks),
        cmocka_unit_test(html_drops_what_is_no_prose),
        cmocka_unit_test(html_reads_tags_as_browsers_do),
        cmocka_unit_test(html_decodes_references),
        cmocka_unit_test(plain_text_splits_at_blank_lines),
        cmocka_unit_test(pod_keeps_its_text),
        cmocka_unit_test(dictionaries_have_an_entry_a_line),
        cmocka_unit_test(a_sink_ends_it_all),
        cmocka_unit_test(hostile_text_takes_linear_time),
        cmocka_unit_test(endings_say_the_kind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
