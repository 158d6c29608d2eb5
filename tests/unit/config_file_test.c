/* SPDX-License-Identifier: BSD-3-Clause
 *
 * config_file_test.c - the configuration file: its lines, its precedence, and its faults.
 */
#include "bmi/base/config_file.h"
#include "bmi/base/instance.h"

#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bmi/base/log.h"
#include "bmi/base/settings.h"
#include "unit.h"

static struct caught caught;
static char folder[] = "/tmp/bmi-config-XXXXXX", path[64];
static bool privileged;

int bmi_classic_initialize(const char *method_list, const char *listen_addr, int flags,
                           const char *options);
char *__real_secure_getenv(const char *name);
char *__wrap_secure_getenv(const char *name);

/* As libc's in a set-user-id program. */
char *__wrap_secure_getenv(const char *name)
{
    return privileged ? NULL : __real_secure_getenv(name);
}

static void file_write(const char *text, size_t size)
{
    FILE *file = fopen(path, "w");
    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    CU_ASSERT_EQUAL(fwrite(text, 1, size, file), size);
    CU_ASSERT_EQUAL(fclose(file), 0);
}

static void file_is(const char *text)
{
    file_write(text, strlen(text));
}

static void setting_is(const char *name, const char *expected)
{
    struct bmi_setting setting = {.name = name};
    CU_ASSERT_EQUAL(BMI_get_info(0, BMI_SETTING, &setting), 0);
    CU_ASSERT_STRING_EQUAL(setting.value, expected);
}

static int start(void)
{
    caught.text[0] = '\0';
    return BMI_initialize(NULL, NULL, 0);
}

static void starts_and_ends(const char *name, const char *expected)
{
    CU_ASSERT_EQUAL_FATAL(start(), 0);
    setting_is(name, expected);
    CU_ASSERT_EQUAL(BMI_finalize(), 0);
}

/* The library does not start, and the log has `text`. */
static void is_refused(int status, const char *text)
{
    CU_ASSERT_EQUAL(start(), status);
    if (strstr(caught.text, text) == NULL)
        fprintf(stderr, "\"%s\" is not in: %s\n", text, caught.text);
    CU_ASSERT_PTR_NOT_NULL(strstr(caught.text, text));
}

/* ---- lines ---------------------------------------------------------------------------------- */

static const struct {
    const char *text, *found; /* found: "line name>value;" for each */
    const char *reason;       /* NULL: no fault */
    size_t size;              /* 0: strlen(text) */
} lines[] = {
    {"", "", NULL, 0},
    {"\n\n \t\n\r\n", "", NULL, 0},
    {"a=1", "1 a>1;", NULL, 0},
    {"a=1\n", "1 a>1;", NULL, 0},
    {"  a \t=  1  \r\n\nb = x y \n", "1 a>1;3 b>x y;", NULL, 0},
    {"# comment\n\t# a = 1\nb = 2 # a = 1\nc = 3\t#\n", "3 b>2;4 c>3;", NULL, 0},
    {"a = x#y\nb = #\nc =#\n", "1 a>x#y;2 b>;3 c>#;", NULL, 0},
    {"a = b = c\na == d\n", "1 a>b = c;2 a>= d;", NULL, 0},
    {"a =\n", "1 a>;", NULL, 0},
    {"#", "", NULL, 0},
    {"a = 1\nb\nc = 1\n", "1 a>1;", "no value", 0},
    {"b # = 1\n", "", "no value", 0},
    {" = 1\n", "", "no name", 0},
    {"a = 1\nb = \0 1\n", "1 a>1;", "byte 0", 12},
    {"# \0\n", "", "byte 0", 4},
    {"a = 1\0", "", "byte 0", 6},
};

static void lines_are_split(void)
{
    for (size_t i = 0; i < COUNT_OF(lines); i++) {
        size_t size = lines[i].size > 0 ? lines[i].size : strlen(lines[i].text), used = 0;
        char *text = malloc(size + 1), found[100] = ""; /* an overrun is seen by sanitizers */
        CU_ASSERT_PTR_NOT_NULL_FATAL(text);
        memcpy(text, lines[i].text, size);
        struct bmi__config_cursor cursor = {.at = text, .end = text + size};
        int status;
        while ((status = bmi__config_next(&cursor)) > 0)
            used += (size_t)snprintf(found + used, sizeof found - used, "%u %s>%s;", cursor.line,
                                     cursor.name, cursor.value);
        CU_ASSERT_STRING_EQUAL(found, lines[i].found);
        CU_ASSERT_EQUAL(status, lines[i].reason != NULL ? -EINVAL : 0);
        if (lines[i].reason != NULL)
            CU_ASSERT_TRUE(cursor.reason != NULL && strstr(cursor.reason, lines[i].reason) != NULL);
        free(text);
    }
}

/* ---- values --------------------------------------------------------------------------------- */

static void the_file_is_read_at_each_start(void)
{
    file_is("# of a test\nspin_us = 71\nPeer_Memory = 64K\nimmediate = off\nspin_us = 72\n");
    CU_ASSERT_EQUAL_FATAL(start(), 0);
    setting_is("spin_us", "72"); /* the last line */
    setting_is("peer_memory", "65536");
    setting_is("immediate", "off");
    setting_is("config_file", path);
    CU_ASSERT_EQUAL(BMI_finalize(), 0);
    setting_is("spin_us", "50");
    setting_is("immediate", "on");
    file_is("spin_us = 73\n");
    CU_ASSERT_EQUAL_FATAL(start(), 0);
    setting_is("spin_us", "73");
    setting_is("peer_memory", "1048576");
    file_is("spin_us = 74\n");
    CU_ASSERT_EQUAL(BMI_initialize(NULL, NULL, 0), 0); /* not the first */
    setting_is("spin_us", "73");
    CU_ASSERT_EQUAL(BMI_finalize(), 0);
    CU_ASSERT_EQUAL(BMI_finalize(), 0);
    unsetenv("BMI_CONFIG_FILE");
    starts_and_ends("config_file", path); /* as other variables, it acts on later starts, too */
    CU_ASSERT_EQUAL(BMI_set_info(0, BMI_SETTING, "config_file="), 0);
    starts_and_ends("spin_us", "50");
    char text[128];
    snprintf(text, sizeof text, "config_file=%s", path);
    CU_ASSERT_EQUAL(BMI_set_info(0, BMI_SETTING, text), 0);
    starts_and_ends("spin_us", "74");
    CU_ASSERT_EQUAL(BMI_set_info(0, BMI_SETTING, "config_file="), 0);
    setenv("BMI_CONFIG_FILE", path, 1);
}

static void others_override_the_file(void)
{
    file_is("spin_us = 71\nlinger_ms = 71\ndead_peers = 71\nconnect_timeout_ms = 71\n"
            "unexpected_size = 71\nprogress = background\ntcp_sndbuf = 71\n");
    int size = 1000, off = 0, sndbuf = 1000;
    setenv("BMI_LINGER_MS", "80", 1);
    CU_ASSERT_EQUAL(BMI_set_info(0, BMI_SETTING, "connect_timeout_ms=10000"), 0);
    CU_ASSERT_EQUAL_FATAL(bmi_classic_initialize(NULL, NULL, 0, "linger_ms=90,dead_peers=90"), 0);
    setting_is("spin_us", "71");
    setting_is("dead_peers", "90");
    setting_is("linger_ms", "80");
    setting_is("connect_timeout_ms", "10000");                      /* the default, but given */
    CU_ASSERT_EQUAL(BMI_set_info(0, BMI_SETTING, "spin_us=71"), 0); /* the file's, but given */
    CU_ASSERT_EQUAL(BMI_set_info(0, BMI_GET_UNEXP_SIZE, &size), 0);
    CU_ASSERT_EQUAL(BMI_set_info(0, BMI_BACKGROUND, &off), 0);
    CU_ASSERT_EQUAL(BMI_set_info(0, BMI_TCP_BUFFER_SEND_SIZE, &sndbuf), 0);
    CU_ASSERT_EQUAL(BMI_finalize(), 0);
    setting_is("spin_us", "71");
    file_is("spin_us = 72\ndead_peers = 72\nunexpected_size = 72\nprogress = background\n"
            "tcp_sndbuf = 72\n");
    CU_ASSERT_EQUAL_FATAL(start(), 0);
    setting_is("spin_us", "71");
    setting_is("dead_peers", "72"); /* options end at the last finalize */
    setting_is("unexpected_size", "1000");
    setting_is("progress", "caller");
    setting_is("tcp_sndbuf", "1000");
    CU_ASSERT_EQUAL(BMI_finalize(), 0);
    setting_is("dead_peers", "4096");
    unsetenv("BMI_LINGER_MS");
}

/* ---- refused -------------------------------------------------------------------------------- */

static void faults_are_reported_with_their_line(void)
{
    static const struct {
        const char *text, *log;
    } cases[] = {
        {"dead_peers = 9\nspin_usec = 5\n", ":2: \"spin_usec\" is no setting, perhaps spin_us"},
        {"\n\ndead_peers = soon\n", ":3: setting dead_peers: bad value \"soon\"; valid: 0 to "},
        {"dead_peers = 9\ndead_peers\n", ":2: no value"},
        {"config_file = /etc/passwd\n", ":1: a configuration file cannot name another"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char text[256];
        file_is(cases[i].text);
        snprintf(text, sizeof text, "%s%s", path, cases[i].log);
        is_refused(-BMI_EINVAL, text);
        setting_is("dead_peers", "4096");
    }
    file_is("log = error\nspin_usec = 5\n");
    is_refused(-BMI_EINVAL, ":2: ");
    setting_is("log", "off");
}

static void only_regular_files_are_read(void)
{
    char *large = malloc(BMI__CONFIG_BYTES + 1);
    CU_ASSERT_PTR_NOT_NULL_FATAL(large);
    memset(large, '#', BMI__CONFIG_BYTES + 1);
    file_write(large, BMI__CONFIG_BYTES);
    starts_and_ends("dead_peers", "4096");
    file_write(large, BMI__CONFIG_BYTES + 1);
    is_refused(-BMI_EINVAL, "more than 65536 bytes");
    free(large);
    unlink(path);
    is_refused(-BMI_ENOENT, path);
    CU_ASSERT_EQUAL(mkfifo(path, 0600), 0);
    is_refused(-BMI_EINVAL, "no regular file"); /* it would wait for ever */
    unlink(path);
    setenv("BMI_CONFIG_FILE", folder, 1);
    is_refused(-BMI_EINVAL, "no regular file");
    setenv("BMI_CONFIG_FILE", path, 1);
    file_is("");
    if (geteuid() != 0) {
        CU_ASSERT_EQUAL(chmod(path, 0), 0);
        is_refused(-BMI_EACCES, path);
    }
}

/* Given: a set-user-id program. Then the file of its caller's environment is not opened. */
static void a_privileged_program_ignores_the_variable(void)
{
    file_is("no_such = 1\n");
    privileged = true;
    CU_ASSERT_EQUAL(BMI_set_info(0, BMI_SETTING, "config_file="), 0);
    starts_and_ends("config_file", "(none)");
    CU_ASSERT_PTR_NOT_NULL(strstr(caught.text, "BMI_CONFIG_FILE is ignored"));
    privileged = false;
    is_refused(-BMI_EINVAL, "no_such");
}

int main(void)
{
    CU_TestInfo tests[] = {
        {"lines are split", lines_are_split},
        {"the file is read at each start", the_file_is_read_at_each_start},
        {"others override the file", others_override_the_file},
        {"faults are reported with their line", faults_are_reported_with_their_line},
        {"only regular files are read", only_regular_files_are_read},
        {"a privileged program ignores the variable", a_privileged_program_ignores_the_variable},
        CU_TEST_INFO_NULL,
    };
    if (mkdtemp(folder) == NULL)
        return 1;
    snprintf(path, sizeof path, "%s/bmi.conf", folder);
    setenv("BMI_CONFIG_FILE", path, 1);
    bmi__log_callback(&bmi__default, &(struct bmi_log_callback){.write = caught_write,
                                                                .argument = &caught,
                                                                .level = BMI_LOG_WARN});
    int status = unit_run("config_file", tests);
    unlink(path);
    rmdir(folder);
    return status;
}
