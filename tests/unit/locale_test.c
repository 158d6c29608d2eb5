/* SPDX-License-Identifier: BSD-3-Clause
 *
 * locale_test.c - a program in a Turkish locale, where the capital of `i` is not `I`: names of
 * settings, their variables, and hosts are the same as elsewhere.
 */
#include <locale.h>
#include <stdio.h>
#include <unistd.h>

#include "unit.h"

static char folder[] = "/tmp/bmi-locale-XXXXXX";

static void run(const char *command)
{
    char text[200];
    snprintf(text, sizeof text, command, folder);
    if (system(text) != 0)
        fprintf(stderr, "failed: %s\n", text);
}

static bool turkish(bool on)
{
    return setlocale(LC_CTYPE, on ? "tr_TR.ISO-8859-9" : "C") != NULL;
}

static void setting_is(const char *name, const char *expected)
{
    struct bmi_setting setting = {.name = name};
    CU_ASSERT_EQUAL(BMI_get_info(0, BMI_SETTING, &setting), 0);
    CU_ASSERT_STRING_EQUAL(setting.value, expected);
}

static void settings_are_found(void)
{
    setenv("BMI_LINGER_MS", "77", 1);
    setenv("BMI_IMMEDIATE", "OFF", 1);
    CU_ASSERT_TRUE(turkish(true));
    CU_ASSERT_EQUAL_FATAL(BMI_initialize(NULL, NULL, 0), 0);
    setting_is("linger_ms", "77");
    setting_is("IMMEDIATE", "off");
    CU_ASSERT_EQUAL(BMI_set_info(0, BMI_SETTING, "LINGER_MS=78,DEAD_PEERS=5,PEER_MEMORY=64k"), 0);
    setting_is("linger_ms", "78");
    setting_is("peer_memory", "65536");
    CU_ASSERT_EQUAL(BMI_finalize(), 0);
    CU_ASSERT_TRUE(turkish(false));
}

/* One process listens in one locale, another dials in the other: the host is the same. */
static void hosts_are_the_same(void)
{
    char listens[BMI_MAX_ADDR_LEN], spelt[BMI_MAX_ADDR_LEN] = "gm://CITIES";
    BMI_addr_t address;
    double us;
    CU_ASSERT_EQUAL_FATAL(BMI_initialize("bmi_gm", "gm://CITIES:0", BMI_INIT_SERVER), 0);
    CU_ASSERT_EQUAL(BMI_get_info(0, BMI_GET_LISTEN_ADDR, listens), 0);
    strcat(spelt, strrchr(listens, ':'));
    CU_ASSERT_TRUE(turkish(true));
    CU_ASSERT_EQUAL(BMI_addr_lookup(&address, spelt), 0);
    CU_ASSERT_EQUAL(bmi_ping(address, 20000, &us), 0);
    CU_ASSERT_TRUE(turkish(false));
    CU_ASSERT_EQUAL(BMI_finalize(), 0);
}

int main(void)
{
    CU_TestInfo tests[] = {
        {"settings are found", settings_are_found},
        {"hosts are the same", hosts_are_the_same},
        CU_TEST_INFO_NULL,
    };
    if (mkdtemp(folder) == NULL)
        return 1;
    run("localedef -i tr_TR -f ISO-8859-9 %s/tr_TR.ISO-8859-9");
    setenv("LOCPATH", folder, 1);
    bool there = turkish(true);
    turkish(false);
    int status = 77;
    if (there)
        status = unit_run("locale", tests);
    else
        puts("skipped: no Turkish locale can be made; the package locales has what it takes");
    run("rm -rf %s");
    return status;
}
