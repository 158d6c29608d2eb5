/* SPDX-License-Identifier: BSD-3-Clause
 *
 * log_test.c - lines of the log, and the bound on warnings.
 */
#include "bmi/base/instance.h"
#include "bmi/base/log.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "bmi/base/settings.h"
#include "bmi/method.h"
#include "unit.h"

struct lines {
    unsigned warnings, left_out, told; /* the number in the last line that reports omitted ones */
};

static void lines_count(void *argument, enum bmi_log_level level, const char *text)
{
    struct lines *lines = argument;
    unsigned left_out;
    if (level == BMI_LOG_WARN && sscanf(text, "%u warnings were left out", &left_out) == 1) {
        lines->left_out += left_out;
        lines->told++;
    } else {
        lines->warnings += level == BMI_LOG_WARN;
    }
}

static void warnings_are_bounded(void)
{
    enum { MANY = 5000 };
    struct lines lines = {.warnings = 0};
    struct bmi_log_callback callback = {.write = lines_count,
                                        .argument = &lines,
                                        .level = BMI_LOG_WARN};
    bmi__log_callback(&bmi__default, &callback);
    time_t start = time(NULL);
    for (int i = 0; i < MANY; i++)
        bmi__log(&bmi__default, BMI_LOG_WARN, "a peer does it again");
    unsigned seconds = (unsigned)(time(NULL) - start) + 2; /* the seconds that it may
                                                              have touched */
    CU_ASSERT_TRUE(lines.warnings >= BMI__LOG_WARNINGS);
    CU_ASSERT_TRUE(lines.warnings <= seconds * BMI__LOG_WARNINGS);
    nanosleep(&(struct timespec){.tv_sec = 1, .tv_nsec = 100000000}, NULL);
    bmi__log(&bmi__default, BMI_LOG_WARN, "and once more");
    CU_ASSERT_TRUE(lines.told >= 1);
    CU_ASSERT_EQUAL(lines.warnings + lines.left_out, MANY + 1);
    callback.write = NULL;
    bmi__log_callback(&bmi__default, &callback);
}

/* Standard error is a pipe meanwhile. */
static void a_line_has_time_and_process(void)
{
    int ends[2], kept = dup(STDERR_FILENO), year, month, day, pid;
    char line[200] = "", level[20] = "", text[100] = "";
    CU_ASSERT_EQUAL_FATAL(pipe(ends), 0);
    dup2(ends[1], STDERR_FILENO);
    bmi__setting_put(&bmi__default, SETTING_LOG, BMI_LOG_ERROR);
    bmi__log(&bmi__default, BMI_LOG_WARN, "not wanted");
    bmi__log(&bmi__default, BMI_LOG_ERROR, "wrong: %d", 7);
    bmi__setting_put(&bmi__default, SETTING_LOG, BMI_LOG_OFF);
    dup2(kept, STDERR_FILENO);
    close(kept);
    close(ends[1]);
    CU_ASSERT_TRUE(read(ends[0], line, sizeof line - 1) > 0);
    close(ends[0]);
    CU_ASSERT_EQUAL(sscanf(line, "%4d-%2d-%2dT%*2d:%*2d:%*fZ libbmi[%d] %19[^:]: %99[^\n]", &year,
                           &month, &day, &pid, level, text),
                    6);
    CU_ASSERT_TRUE(year > 2020 && month >= 1 && month <= 12 && day >= 1 && day <= 31);
    CU_ASSERT_EQUAL(pid, (int)getpid());
    CU_ASSERT_STRING_EQUAL(level, "error");
    CU_ASSERT_STRING_EQUAL(text, "wrong: 7");
}

static void text_keep(void *argument, enum bmi_log_level level, const char *text)
{
    (void)level;
    snprintf(argument, 200, "%s", text);
}

static void text_of_peers_is_escaped(void)
{
    char text[200];
    struct bmi_link link = {.method = &(const struct bmi_method){.name = "bmi_x"}};
    struct bmi_log_callback callback = {.write = text_keep,
                                        .argument = text,
                                        .level = BMI_LOG_ERROR};
    bmi__log_callback(&bmi__default, &callback);
    bmi__log(&bmi__default, BMI_LOG_ERROR, "%s is up",
             "\x1b[31mhost\n2026-01-01 libbmi[1] error: forged");
    CU_ASSERT_STRING_EQUAL(text, "\\x1b[31mhost\\x0a2026-01-01 libbmi[1] error: forged is up");
    bmi_method_log(&bmi__default, BMI_LOG_ERROR, &link, "%s", "a\xe2\x80\xae\xff");
    CU_ASSERT_STRING_EQUAL(text, "bmi_x: a\\xe2\\x80\\xae\\xff");
    callback.write = NULL;
    bmi__log_callback(&bmi__default, &callback);
}

/* Standard error is a pipe without a reading process, then one whose reader has closed it. Neither
 * blocks nor ends a process that logs. The number of omitted lines is logged once there is room. */
static void no_process_reads(void)
{
    enum { LINES = 3000 };
    int ends[2], kept = dup(STDERR_FILENO);
    unsigned left_out = 0, written = 0;
    static char text[1 << 18];
    CU_ASSERT_EQUAL_FATAL(pipe(ends), 0);
    dup2(ends[1], STDERR_FILENO);
    close(ends[1]);
    bmi__setting_put(&bmi__default, SETTING_LOG, BMI_LOG_INFO);
    for (int i = 0; i < LINES; i++)
        bmi__log(&bmi__default, BMI_LOG_INFO, "a line that takes some of the room in the pipe");
    ssize_t got = read(ends[0], text, sizeof text - 1);
    bmi__log(&bmi__default, BMI_LOG_INFO, "there is room");
    got += read(ends[0], text + got, sizeof text - 1 - (size_t)got);
    close(ends[0]);
    bmi__log(&bmi__default, BMI_LOG_INFO, "nobody is there");
    dup2(kept, STDERR_FILENO);
    close(kept);
    bmi__setting_put(&bmi__default, SETTING_LOG, BMI_LOG_OFF);
    text[got > 0 ? got : 0] = '\0';
    for (const char *at = text; (at = strstr(at, "a line that")) != NULL; at++)
        written++;
    const char *told = strstr(text, "libbmi: ");
    CU_ASSERT_PTR_NOT_NULL_FATAL(told);
    CU_ASSERT_EQUAL(sscanf(told, "libbmi: %u lines were left out", &left_out), 1);
    CU_ASSERT_TRUE(written > 0 && left_out > 0);
    CU_ASSERT_EQUAL(written + left_out, LINES);
    CU_ASSERT_PTR_NOT_NULL(strstr(told, "there is room"));
}

int main(void)
{
    CU_TestInfo tests[] = {
        {"warnings are bounded", warnings_are_bounded},
        {"a line has time and process", a_line_has_time_and_process},
        {"text of peers is escaped", text_of_peers_is_escaped},
        {"no process reads", no_process_reads},
        CU_TEST_INFO_NULL,
    };
    return unit_run("log", tests);
}
