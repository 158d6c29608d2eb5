/* SPDX-License-Identifier: BSD-3-Clause
 *
 * settings_test.c - the table of settings: values, units, bounds, environment, lines of the log.
 */
#include "bmi/base/instance.h"
#include "bmi/base/settings.h"

#include <ctype.h>
#include <errno.h>

#include "bmi/base/log.h"
#include "bmi/method.h"
#include "unit.h"

static struct caught caught;

static void catch_log_at(enum bmi_log_level level)
{
    caught.text[0] = '\0';
    bmi__log_callback(&bmi__default, &(struct bmi_log_callback){.write = caught_write,
                                                                .argument = &caught,
                                                                .level = level});
}

static void catch_log(void)
{
    catch_log_at(BMI_LOG_ERROR);
}

static void release_log(void)
{
    bmi__log_callback(&bmi__default, &(struct bmi_log_callback){.write = NULL});
}

static bool value_is(const char *name, const char *expected)
{
    char value[64] = "";
    return bmi__settings_get(&bmi__default, name, value, sizeof value) == 0 &&
           strcmp(value, expected) == 0;
}

/* Given: a setting that is a text, if there is one in this build. */
static void a_text(void)
{
    if (bmi__setting_find("tls_psk") < 0)
        return;
    CU_ASSERT_EQUAL(bmi__settings_set(&bmi__default, "tls_psk=/a b/c:d"), 0);
    CU_ASSERT_TRUE(value_is("tls_psk", "/a b/c:d"));
    const char *first = bmi_method_setting_text(&bmi__default, "tls_psk");
    CU_ASSERT_EQUAL(bmi__settings_set(&bmi__default, "tls_psk=other"), 0);
    CU_ASSERT_STRING_EQUAL(first, "/a b/c:d"); /* still there */
    CU_ASSERT_EQUAL(bmi__settings_set(&bmi__default, "tls_psk=/a b/c:d"), 0);
    CU_ASSERT_PTR_EQUAL(bmi_method_setting_text(&bmi__default, "tls_psk"), first);
    CU_ASSERT_EQUAL(bmi__settings_set(&bmi__default, "tls_psk="), 0);
    CU_ASSERT_STRING_EQUAL(bmi_method_setting_text(&bmi__default, "tls_psk"), "");
    CU_ASSERT_TRUE(value_is("tls_psk", "(none)"));
}

static void the_table_is_whole(void)
{
    const char *name, *value, *help;
    int index = 0;
    for (; bmi_setting_next(index, &name, &value, &help) == 0; index++) {
        CU_ASSERT_TRUE(strlen(name) > 0 && strlen(value) > 0 && strlen(help) > 10);
        for (const char *c = name; *c != '\0'; c++)
            CU_ASSERT_TRUE(islower((unsigned char)*c) || isdigit((unsigned char)*c) || *c == '_');
        CU_ASSERT_TRUE(value_is(name, value));
        char text[160];
        snprintf(text, sizeof text, "%s=%s", name, value);
        CU_ASSERT_EQUAL(bmi__settings_set(&bmi__default, text),
                        0); /* a value that it prints is also accepted */
        CU_ASSERT_TRUE(value_is(name, value));
    }
    CU_ASSERT_TRUE(index > SETTINGS); /* the core's, then the methods' */
    CU_ASSERT_EQUAL(bmi_setting_next(-1, &name, &value, &help), -BMI_ENOENT);
    CU_ASSERT_EQUAL(bmi_setting_next(index, &name, &value, &help), -BMI_ENOENT);
}

static void values_and_units(void)
{
    static const struct {
        const char *text;
        enum setting setting;
        int64_t expected;
    } cases[] = {
        {"peer_memory=65536", SETTING_PEER_MEMORY, 65536},
        {"peer_memory=64K", SETTING_PEER_MEMORY, 65536},
        {"peer_memory=64k", SETTING_PEER_MEMORY, 65536},
        {"PEER_MEMORY=2M", SETTING_PEER_MEMORY, 2 << 20},
        {"peer_memory=1g", SETTING_PEER_MEMORY, 1 << 30},
        {"total_memory=1024G", SETTING_TOTAL_MEMORY, INT64_C(1) << 40},
        {"immediate=off", SETTING_IMMEDIATE, 0},
        {"immediate=On", SETTING_IMMEDIATE, 1},
        {"immediate=no", SETTING_IMMEDIATE, 0},
        {"immediate=yes", SETTING_IMMEDIATE, 1},
        {"immediate=0", SETTING_IMMEDIATE, 0},
        {"immediate=1", SETTING_IMMEDIATE, 1},
        {"log=trace", SETTING_LOG, BMI_LOG_TRACE},
        {"log=2", SETTING_LOG, BMI_LOG_WARN},
        {"log=OFF", SETTING_LOG, BMI_LOG_OFF},
        {"cancel_grace_ms=0", SETTING_CANCEL_GRACE, 0},
        {"connect_timeout_ms=86400000", SETTING_CONNECT_TIMEOUT, 86400000},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        CU_ASSERT_EQUAL(bmi__settings_set(&bmi__default, cases[i].text), 0);
        CU_ASSERT_EQUAL(bmi__setting(&bmi__default, cases[i].setting), cases[i].expected);
    }
    CU_ASSERT_EQUAL(bmi__settings_get(&bmi__default, "no_such", (char[8]){0}, 8), -ENOENT);
}

/* gm declares its settings in its own folder; they are set and read like the core's. */
static void methods_declare_their_own(void)
{
    static const struct {
        const char *text, *name;
        int64_t expected;
    } cases[] = {{"gm_pages=5", "gm_pages", 5},
                 {"tcp_backlog=1", "tcp_backlog", 1},
                 {"GM_Mapping=off", "gm_mapping", 0}};
    CU_ASSERT_EQUAL(bmi_method_setting(&bmi__default, "gm_send_tokens"), 256); /* the preset */
    CU_ASSERT_EQUAL(bmi__settings_set(&bmi__default, "gm_send_tokens=1"), -EINVAL);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        CU_ASSERT_EQUAL(bmi__settings_set(&bmi__default, cases[i].text), 0);
        CU_ASSERT_EQUAL(bmi_method_setting(&bmi__default, cases[i].name), cases[i].expected);
    }
    setenv("BMI_GM_PAGES", "7", 1);
    CU_ASSERT_EQUAL(bmi__settings_load(&bmi__default), 0);
    CU_ASSERT_EQUAL(bmi_method_setting(&bmi__default, "gm_pages"), 7);
    unsetenv("BMI_GM_PAGES");
    CU_ASSERT_EQUAL(bmi__settings_lend(&bmi__default, "gm_pages=9"), 0);
    CU_ASSERT_EQUAL(bmi_method_setting(&bmi__default, "gm_pages"), 9);
    bmi__settings_return(&bmi__default);
    CU_ASSERT_EQUAL(bmi_method_setting(&bmi__default, "gm_pages"), 7);
    CU_ASSERT_EQUAL(bmi__settings_set(&bmi__default, "gm_pages=0,gm_mapping=on"), 0);
}

static void bad_values_change_nothing_and_are_told(void)
{
    static const char *const cases[] = {
        "peer_memory=",
        "peer_memory=x",
        "peer_memory=12x",
        "peer_memory=1KB",
        "peer_memory=1 K",
        "peer_memory=-65536",
        "peer_memory=32767",
        "peer_memory=2G",
        "peer_memory=9999999999G",
        "peer_memory=99999999999999999999",
        "spin_us=10K",
        "spin_us=-1",
        "spin_us=1000001",
        "immediate=2",
        "immediate=maybe",
        "immediate=",
        "log=loud",
        "log=6",
        "log=-1",
        "connect_timeout_ms=0",
        "tcp_backlog=0",
        "stats=on off",
        "eager_max=1.5",
        "eager_max=0x10",
    };
    CU_ASSERT_EQUAL(bmi__settings_set(&bmi__default,
                                      "peer_memory=1M,spin_us=50,immediate=on,log=off"),
                    0);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char name[32] = "";
        memcpy(name, cases[i], strcspn(cases[i], "="));
        catch_log();
        CU_ASSERT_EQUAL(bmi__settings_set(&bmi__default, cases[i]), -EINVAL);
        CU_ASSERT_PTR_NOT_NULL(strstr(caught.text, name));
        CU_ASSERT_PTR_NOT_NULL(strstr(caught.text, "valid: "));
    }
    release_log();
    CU_ASSERT_TRUE(value_is("peer_memory", "1048576"));
    CU_ASSERT_TRUE(value_is("spin_us", "50"));
    CU_ASSERT_TRUE(value_is("immediate", "on"));
    CU_ASSERT_TRUE(value_is("log", "off"));
}

static void an_unknown_name_brings_the_list_of_valid_ones(void)
{
    static const char *const cases[] = {"no_such=1",       "=5",
                                        "peer memory=1M",  "peer_memor=1M",
                                        "peer_memoryy=1M", "no_such"};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const char *name, *value, *help;
        catch_log();
        CU_ASSERT_EQUAL(bmi__settings_set(&bmi__default, cases[i]), -EINVAL);
        CU_ASSERT_PTR_NOT_NULL(strstr(caught.text, cases[i]));
        for (int index = 0; bmi_setting_next(index, &name, &value, &help) == 0; index++)
            CU_ASSERT_PTR_NOT_NULL(strstr(caught.text, name));
    }
    caught.text[0] = '\0'; /* a name without a value is a setting's name */
    CU_ASSERT_EQUAL(bmi__settings_set(&bmi__default, "spin_us"), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(caught.text, "spin_us"));
    CU_ASSERT_PTR_NULL(strstr(caught.text, "is no setting"));
    release_log();
    CU_ASSERT_EQUAL(bmi__settings_set(&bmi__default, ""), -EINVAL);
    char longest[2000];
    memset(longest, 'a', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    CU_ASSERT_EQUAL(bmi__settings_set(&bmi__default, longest), -EINVAL);
}

static void several_are_set_all_or_none(void)
{
    CU_ASSERT_EQUAL(bmi__settings_set(&bmi__default, "spin_us=1,dead_peers=2,announce=off"), 0);
    CU_ASSERT_TRUE(value_is("spin_us", "1") && value_is("dead_peers", "2") &&
                   value_is("announce", "off"));
    catch_log();
    CU_ASSERT_EQUAL(bmi__settings_set(&bmi__default, "spin_us=7,dead_peers=8,announce=perhaps"),
                    -EINVAL);
    CU_ASSERT_EQUAL(bmi__settings_set(&bmi__default, "spin_us=7,nothing=8"), -EINVAL);
    release_log();
    CU_ASSERT_TRUE(value_is("spin_us", "1") && value_is("dead_peers", "2") &&
                   value_is("announce", "off"));
    CU_ASSERT_EQUAL(bmi__settings_set(&bmi__default, ",spin_us=50,,announce=on,"), 0);
    CU_ASSERT_TRUE(value_is("spin_us", "50") && value_is("announce", "on"));
}

static void the_environment_is_read(void)
{
    setenv("BMI_SPIN_US", "77", 1);
    setenv("BMI_PEER_MEMORY", "256K", 1);
    setenv("BMI_IMMEDIATE", "off", 1);
    setenv("BMI_LINGER_MS", "", 1); /* empty: as if absent */
    setenv("bmi_dead_peers", "5", 1);
    CU_ASSERT_EQUAL(bmi__settings_load(&bmi__default), 0);
    CU_ASSERT_EQUAL(bmi__setting(&bmi__default, SETTING_SPIN), 77);
    CU_ASSERT_EQUAL(bmi__setting(&bmi__default, SETTING_PEER_MEMORY), 256 << 10);
    CU_ASSERT_EQUAL(bmi__setting(&bmi__default, SETTING_IMMEDIATE), 0);
    CU_ASSERT_EQUAL(bmi__setting(&bmi__default, SETTING_LINGER), 5000);
    CU_ASSERT_NOT_EQUAL(bmi__setting(&bmi__default, SETTING_DEAD_PEERS), 5);

    setenv("BMI_SPIN_US", "soon", 1);
    catch_log();
    CU_ASSERT_EQUAL(bmi__settings_load(&bmi__default), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(caught.text, "spin_us"));
    CU_ASSERT_PTR_NOT_NULL(strstr(caught.text, "soon"));
    caught.text[0] = '\0';
    CU_ASSERT_EQUAL(BMI_initialize(NULL, NULL, 0), -BMI_EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(caught.text, "spin_us"));
    release_log();
    unsetenv("BMI_SPIN_US");
    unsetenv("BMI_PEER_MEMORY");
    unsetenv("BMI_IMMEDIATE");
    unsetenv("BMI_LINGER_MS");
    CU_ASSERT_EQUAL(BMI_initialize(NULL, NULL, 0), 0);
    CU_ASSERT_EQUAL(BMI_finalize(), 0);
}

/* A misspelt variable is logged with the most similar name; the library starts. */
static void unknown_variables_are_told(void)
{
    static const struct {
        const char *name, *meant; /* meant NULL: no similar name */
    } cases[] = {{"BMI_TCP_SENDBUF", "tcp_sndbuf"},
                 {"BMI_PEER_MEMROY", "peer_memory"},
                 {"BMI_STAT", "stats"},
                 {"BMI_HOME_OF_SOMETHING_ELSE", NULL}};
    static const char *const known[] = {"BMI_STATS",
                                        "BMI_SPIN_US",
                                        "BMI_TEST_SEED",
                                        "BMI_FUZZ_SECONDS",
                                        "BMI_TASK_STRESS_SEED",
                                        "BMI_STRIPEFS_SERVERS",
                                        "BMIX"};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const char *name, *value, *help;
        setenv(cases[i].name, "1", 1);
        catch_log_at(BMI_LOG_WARN);
        CU_ASSERT_EQUAL(BMI_initialize(NULL, NULL, 0), 0);
        CU_ASSERT_PTR_NOT_NULL(strstr(caught.text, cases[i].name));
        for (int index = 0; bmi_setting_next(index, &name, &value, &help) == 0; index++) {
            char perhaps[64];
            snprintf(perhaps, sizeof perhaps, "perhaps %s ", name);
            bool meant = cases[i].meant != NULL && strcmp(cases[i].meant, name) == 0;
            CU_ASSERT_EQUAL(strstr(caught.text, perhaps) != NULL, meant);
            CU_ASSERT_PTR_NOT_NULL(strstr(caught.text, name));
        }
        CU_ASSERT_EQUAL(BMI_finalize(), 0);
        catch_log_at(BMI_LOG_ERROR); /* no error */
        CU_ASSERT_EQUAL(bmi__settings_load(&bmi__default), 0);
        CU_ASSERT_STRING_EQUAL(caught.text, "");
        release_log();
        unsetenv(cases[i].name);
    }
    for (size_t i = 0; i < COUNT_OF(known); i++)
        setenv(known[i], "1", 1);
    catch_log_at(BMI_LOG_WARN);
    CU_ASSERT_EQUAL(bmi__settings_load(&bmi__default), 0);
    CU_ASSERT_STRING_EQUAL(caught.text, "");
    release_log();
    for (size_t i = 0; i < COUNT_OF(known); i++)
        unsetenv(known[i]);
    CU_ASSERT_EQUAL(bmi__settings_set(&bmi__default, "stats=off,spin_us=50"), 0);
}

static void through_the_public_functions(void)
{
    struct bmi_setting setting = {.name = "spin_us"};
    CU_ASSERT_EQUAL_FATAL(BMI_initialize(NULL, NULL, 0), 0);
    CU_ASSERT_EQUAL(BMI_set_info(0, BMI_SETTING, "spin_us=33"), 0);
    CU_ASSERT_EQUAL(BMI_get_info(0, BMI_SETTING, &setting), 0);
    CU_ASSERT_STRING_EQUAL(setting.value, "33");
    CU_ASSERT_EQUAL(BMI_set_info(0, BMI_SETTING, "spin_us=never"), -BMI_EINVAL);
    CU_ASSERT_EQUAL(BMI_get_info(0, BMI_SETTING, &setting), 0);
    CU_ASSERT_STRING_EQUAL(setting.value, "33");
    setting.name = "no_such";
    CU_ASSERT_TRUE(BMI_get_info(0, BMI_SETTING, &setting) < 0);
    CU_ASSERT_EQUAL(BMI_finalize(), 0);
}

int main(void)
{
    CU_TestInfo tests[] = {
        {"the table is whole", the_table_is_whole},
        {"a text", a_text},
        {"values and units", values_and_units},
        {"methods declare their own", methods_declare_their_own},
        {"bad values change nothing and are reported", bad_values_change_nothing_and_are_told},
        {"an unknown name brings the list", an_unknown_name_brings_the_list_of_valid_ones},
        {"several are set all or none", several_are_set_all_or_none},
        {"the environment is read", the_environment_is_read},
        {"unknown variables are reported", unknown_variables_are_told},
        {"through the public functions", through_the_public_functions},
        CU_TEST_INFO_NULL,
    };
    return unit_run("settings", tests);
}
