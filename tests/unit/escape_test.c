/* SPDX-License-Identifier: BSD-3-Clause
 *
 * escape_test.c - text from outside becomes one harmless line.
 */
#include "bmi/base/escape.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "unit.h"

static bool becomes(const char *from, const char *expected)
{
    char to[256];
    size_t length = bmi__escape(to, sizeof to, from, strlen(from));
    bool same = strcmp(to, expected) == 0 && length == strlen(expected);
    if (!same)
        printf("'%s', not '%s'\n", to, expected);
    return same;
}

static void plain_text_stays(void)
{
    CU_ASSERT_TRUE(becomes("", ""));
    CU_ASSERT_TRUE(becomes("tcp://host:3334 is up\\x", "tcp://host:3334 is up\\x"));
    CU_ASSERT_TRUE(becomes("\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80 \xd7\x90",
                           "\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80 \xd7\x90"));
}

static void controls_are_escaped(void)
{
    CU_ASSERT_TRUE(becomes("a\nb\r\tc", "a\\x0ab\\x0d\\x09c"));
    CU_ASSERT_TRUE(becomes("\x1b[31mred\x7f", "\\x1b[31mred\\x7f"));
    CU_ASSERT_TRUE(becomes("\xc2\x9b"
                           "2J",
                           "\\xc2\\x9b2J")); /* C1: a control sequence of one character */
    char to[16];
    CU_ASSERT_EQUAL(bmi__escape(to, sizeof to, "a\0b", 3), 6);
    CU_ASSERT_STRING_EQUAL(to, "a\\x00b");
}

static void order_and_lines_are_kept(void)
{
    CU_ASSERT_TRUE(becomes("a\xe2\x80\xae"
                           "b",
                           "a\\xe2\\x80\\xaeb")); /* right-to-left override */
    CU_ASSERT_TRUE(becomes("\xe2\x81\xa6", "\\xe2\\x81\\xa6"));
    CU_ASSERT_TRUE(becomes("\xd8\x9c", "\\xd8\\x9c"));
    CU_ASSERT_TRUE(becomes("\xe2\x80\xa8", "\\xe2\\x80\\xa8")); /* line separator */
    CU_ASSERT_TRUE(becomes("\xef\xbb\xbf", "\\xef\\xbb\\xbf"));
}

static void invalid_utf8_is_escaped(void)
{
    CU_ASSERT_TRUE(becomes("\x80"
                           "a\xff",
                           "\\x80a\\xff"));
    CU_ASSERT_TRUE(becomes("\xc0\x8a", "\\xc0\\x8a"));          /* a newline in two bytes */
    CU_ASSERT_TRUE(becomes("\xe0\x82\x9b", "\\xe0\\x82\\x9b")); /* C1 in three */
    CU_ASSERT_TRUE(becomes("\xed\xa0\x80", "\\xed\\xa0\\x80")); /* half of a surrogate pair */
    CU_ASSERT_TRUE(becomes("\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80")); /* above U+10FFFF */
    CU_ASSERT_TRUE(becomes("\xe2\x82", "\\xe2\\x82"));                   /* cut */
    CU_ASSERT_TRUE(becomes("\xe2\n", "\\xe2\\x0a"));
}

static void nothing_is_cut_in_its_midst(void)
{
    char to[16];
    CU_ASSERT_EQUAL(bmi__escape(to, 1, "abc", 3), 0);
    CU_ASSERT_STRING_EQUAL(to, "");
    CU_ASSERT_EQUAL(bmi__escape(to, 6, "ab\ncd", 5), 2);
    CU_ASSERT_STRING_EQUAL(to, "ab");
    CU_ASSERT_EQUAL(bmi__escape(to, 7, "ab\ncd", 5), 6);
    CU_ASSERT_STRING_EQUAL(to, "ab\\x0a");
    CU_ASSERT_EQUAL(bmi__escape(to, 4, "a\xe2\x82\xac", 4), 1);
}

/* For any input, the output is one line without controls, and escaping it again changes nothing. */
static void random_bytes(void)
{
    unsigned seed =
        getenv("BMI_TEST_SEED") ? (unsigned)atoi(getenv("BMI_TEST_SEED")) : (unsigned)getpid();
    printf("seed %u\n", seed);
    srand(seed);
    for (int round = 0; round < 20000; round++) {
        unsigned char from[24];
        char to[sizeof from * 4 + 1], again[sizeof to];
        for (size_t i = 0; i < sizeof from; i++)
            from[i] = (unsigned char)(rand() >> 4);
        size_t length = bmi__escape(to, sizeof to, from, sizeof from);
        CU_ASSERT_EQUAL_FATAL(length, strlen(to));
        for (size_t i = 0; i < length; i++)
            CU_ASSERT_TRUE_FATAL((unsigned char)to[i] >= 0x20 && to[i] != 0x7f);
        CU_ASSERT_EQUAL_FATAL(bmi__escape(again, sizeof again, to, length), length);
        CU_ASSERT_STRING_EQUAL_FATAL(again, to);
    }
}

int main(void)
{
    CU_TestInfo tests[] = {
        {"plain text stays", plain_text_stays},
        {"controls are escaped", controls_are_escaped},
        {"order and lines are kept", order_and_lines_are_kept},
        {"invalid UTF-8 is escaped", invalid_utf8_is_escaped},
        {"nothing is cut in its midst", nothing_is_cut_in_its_midst},
        {"random bytes", random_bytes},
        CU_TEST_INFO_NULL,
    };
    return unit_run("escape", tests);
}
