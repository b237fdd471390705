/* SPDX-License-Identifier: MIT
 * Chat templates as models bring them: what of them is ChatML, and where they are. */
#define _POSIX_C_SOURCE 200809L
#include "lm/chat.h"
#include "tests/lm/folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define TURN "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}"
#define ANSWER "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
#define PLAIN "{% for message in messages %}" TURN "{% endfor %}" ANSWER
#define SAID "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"

/* SmolLM2's, with line ends as they are in its file. */
static const char smol[] =
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ "
    "'<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n' }}"
    "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

static char *prompt_of(const char *template, const char *system)
{
    lm_chat chat;
    io_error error;
    char *text;
    if (lm_chat_parse(&chat, template, "m", &error)) fail_msg("%s", error.text);
    assert_int_equal(lm_chat_prompt(&text, &chat, system, "Hi", &error), 0);
    lm_chat_free(&chat);
    return text;
}

static void expect_prompt(const char *template, const char *system, const char *expected)
{
    char *text = prompt_of(template, system);
    assert_string_equal(text, expected);
    free(text);
}

static void test_known(void **state)
{
    (void)state;
    expect_prompt(smol, NULL,
                  "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
                  "<|im_end|>\n" SAID);
    expect_prompt(smol, "Rhyme.", "<|im_start|>system\nRhyme.<|im_end|>\n" SAID);
    expect_prompt(smol, "", "<|im_start|>system\n<|im_end|>\n" SAID);
    expect_prompt(PLAIN, NULL, SAID);
    expect_prompt(PLAIN, "Rhyme.", "<|im_start|>system\nRhyme.<|im_end|>\n" SAID);
    /* The same written otherwise. */
    expect_prompt("{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}"
                  "{% endif %}" PLAIN "\n",
                  NULL, SAID);
    expect_prompt("{%- for message in messages -%}\n  {{- \"<|im_start|>\" + message.role + \"\\n\" + "
                  "message.content + \"<|im_end|>\\n\" -}}\n{%- endfor -%}\n\n" ANSWER,
                  NULL, SAID);
    expect_prompt("{% for message in messages %}\n" TURN "{% endfor %}\n    " ANSWER, NULL, SAID);
}

static void test_unknown(void **state)
{
    static const char *const templates[] = {
        "",
        "Hello",
        "{% for message in messages %}",
        "{% for message in messages %}" TURN "{% endfor %}",
        "{% for message in messages %} " TURN "{% endfor %}" ANSWER,
        "{% for message in messages %}" TURN " {% endfor %}" ANSWER,
        PLAIN "{{ eos_token }}",
        PLAIN "\n\n\n",
        "{# a remark #}" PLAIN,
        "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\t' }}{% endfor %}",
        "{% for message in messages %}{{ '[INST] ' + message['content'] + ' [/INST]' }}{% endfor %}",
        "{% for message in messages %}{{ '<|im_start|>",
        "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
        "{{ '<|im_start|>system\\nIt is ' + date + '<|im_end|>\\n' }}{% endif %}" TURN "{% endfor %}" ANSWER,
    };
    (void)state;
    for (size_t n = 0; n < sizeof templates / sizeof *templates; n++) {
        lm_chat chat;
        io_error error;
        char begin[96];
        if (lm_chat_parse(&chat, templates[n], "m", &error) != EXIT_INPUT) fail_msg("%s", templates[n]);
        assert_null(chat.system);
        snprintf(begin, sizeof begin, "m: the chat template '%.60s", templates[n]);
        assert_non_null(strstr(error.text, begin));
        assert_non_null(strstr(error.text, "expected ChatML"));
    }
    /* Cut anywhere it is none. */
    for (size_t bytes = 0; bytes < sizeof smol - 1; bytes++) {
        lm_chat chat;
        io_error error;
        char *cut = strndup(smol, bytes);
        assert_int_equal(lm_chat_parse(&chat, cut, "m", &error), EXIT_INPUT);
        free(cut);
    }
}

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void expect_template(const char *path, const char *expected)
{
    io_error error;
    char *text;
    if (lm_chat_template(&text, path, &error)) fail_msg("%s", error.text);
    if (expected)
        assert_string_equal(text, expected);
    else
        assert_null(text);
    free(text);
}

/* A .gguf file of one key. */
static void write_gguf(const char *path, const char *key, const char *value)
{
    const uint64_t none = 0, one = 1, key_bytes = strlen(key), bytes = strlen(value);
    const uint32_t version = 3, kind = 8;
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    fwrite("GGUF", 1, 4, file);
    fwrite(&version, sizeof version, 1, file);
    fwrite(&none, sizeof none, 1, file);
    fwrite(&one, sizeof one, 1, file);
    fwrite(&key_bytes, sizeof key_bytes, 1, file);
    fwrite(key, 1, key_bytes, file);
    fwrite(&kind, sizeof kind, 1, file);
    fwrite(&bytes, sizeof bytes, 1, file);
    fwrite(value, 1, bytes, file);
    assert_int_equal(fclose(file), 0);
}

static void test_places(void **state)
{
    static const char list[] = "{\"chat_template\":[{\"name\":\"tools\",\"template\":\"no\"},"
                               "{\"name\":\"default\",\"template\":\"yes\"}]}";
    io_error error;
    char *text;
    (void)state;
    assert_int_equal(mkdir("m", 0777), 0);
    expect_template("m", NULL);
    write_file("m/tokenizer_config.json", "{\"chat_template\":null}");
    expect_template("m", NULL);
    write_file("m/tokenizer_config.json", "{\"chat_template\":\"a\\nb\"}");
    expect_template("m", "a\nb");
    write_file("m/tokenizer_config.json", list);
    expect_template("m", "yes");
    write_file("m/tokenizer_config.json", "{");
    assert_int_equal(lm_chat_template(&text, "m", &error), EXIT_INPUT);
    assert_null(text);
    write_file("m/chat_template.jinja", "first");
    expect_template("m", "first");
    folder_remove("m");
    assert_int_equal(lm_chat_template(&text, "m", &error), EXIT_INPUT);
    write_gguf("m.gguf", "tokenizer.chat_template", smol);
    expect_template("m.gguf", smol);
    write_gguf("m.gguf", "tokenizer.other", smol);
    expect_template("m.gguf", NULL);
    assert_int_equal(unlink("m.gguf"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known),
        cmocka_unit_test(test_unknown),
        cmocka_unit_test_setup_teardown(test_places, folder_setup, folder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
