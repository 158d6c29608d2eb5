/* SPDX-License-Identifier: BSD-3-Clause
 *
 * classic_cases.c - the prototypes of file-system code that grew up with the classic header:
 * BMI_CLASSIC_API adds an options string to BMI_initialize and BMI_addr_lookup. This file includes
 * bmi.h as such a program does; that it compiles is half of the test.
 */
#define BMI_CLASSIC_API
#include "bmi.h"

#include "harness.h"

#include <string.h>

static void classic_start(struct party *party, const char *options)
{
    char url[BMI_MAX_ADDR_LEN];
    BMI_addr_t addr = 0, again = 0;
    NEED_STATUS(party,
                BMI_initialize(party->method->name, party->method->listen, BMI_INIT_SERVER,
                               options),
                0);
    NEED_STATUS(party, BMI_get_info(0, BMI_GET_LISTEN_ADDR, url), 0);
    NEED_STATUS(party, BMI_addr_lookup(&addr, url, NULL), 0);
    NEED_STATUS(party, BMI_addr_lookup(&again, url, "ignored=yes"), 0);
    CHECK_EQUAL(party, again, addr);
    CHECK(party, BMI_addr_rev_lookup(addr) && strcmp(BMI_addr_rev_lookup(addr), url) == 0);
    NEED_STATUS(party, BMI_open_context(&party->context), 0);
    party->peer = addr;
}

static void classic_message(struct party *party)
{
    struct op send, receive;
    char from[100], to[100];
    pattern_fill(from, sizeof from, 1);
    op_receive(party, &receive, to, sizeof to, 5);
    op_send(party, &send, from, sizeof from, 5);
    op_finish(party, &send, sizeof from);
    op_finish(party, &receive, sizeof to);
    CHECK(party, pattern_holds(to, sizeof to, 1));
    party_stop(party);
}

static void classic(struct party *party)
{
    classic_start(party, NULL);
    classic_message(party);
    classic_start(party, "");
    classic_message(party);
}

static void classic_settings(struct party *party)
{
    const char *name, *value, *help;
    char options[600], first[256];
    NEED_STATUS(party, bmi_setting_next(0, &name, &value, &help), 0);
    strcpy(first, name);
    strcpy(options, first);
    strcat(options, "=");
    strcat(options, value);
    classic_start(party, options);
    classic_message(party);
    CHECK_STATUS(party,
                 BMI_initialize(party->method->name, party->method->listen, BMI_INIT_SERVER,
                                "no_such_setting=1"),
                 -BMI_EINVAL);
    CHECK_STATUS(party, BMI_finalize(), -BMI_EINVAL);
}

static void expect_setting(struct party *party, const char *name, const char *value)
{
    struct bmi_setting setting = {.name = name};
    NEED_STATUS(party, BMI_get_info(0, BMI_SETTING, &setting), 0);
    CHECK(party, strcmp(setting.value, value) == 0);
}

/* They hold until the library ends; where it does not start, not at all. */
static void classic_settings_end(struct party *party)
{
    struct bmi_setting before = {.name = "dead_peers"};
    NEED_STATUS(party, BMI_get_info(0, BMI_SETTING, &before), 0);
    CHECK_STATUS(party, BMI_initialize(NULL, NULL, 1 << 20, "dead_peers=77"), -BMI_EINVAL);
    expect_setting(party, "dead_peers", before.value);
    classic_start(party, "dead_peers=77,linger_ms=123");
    expect_setting(party, "dead_peers", "77");
    NEED_STATUS(party, BMI_set_info(0, BMI_SETTING, "linger_ms=321"), 0);
    classic_message(party);
    expect_setting(party, "dead_peers", before.value);
    expect_setting(party, "linger_ms", "321"); /* set by the program, for good */
}

/* Later calls only count: their options are ignored, too. */
static void classic_counted(struct party *party)
{
    struct bmi_setting setting = {.name = "dead_peers"};
    classic_start(party, NULL);
    CHECK_STATUS(party, BMI_initialize(NULL, NULL, 0, "dead_peers=77"), 0);
    CHECK_STATUS(party, BMI_initialize(NULL, NULL, 0, "no_such_setting=1"), 0);
    CHECK_STATUS(party, BMI_get_info(0, BMI_SETTING, &setting), 0);
    CHECK(party, strcmp(setting.value, "77") != 0);
    CHECK_STATUS(party, BMI_finalize(), 0);
    CHECK_STATUS(party, BMI_finalize(), 0);
    classic_message(party);
    CHECK_STATUS(party, BMI_finalize(), -BMI_EINVAL);
}

const struct conformance_case classic_cases[] = {
    {.section = "Functions",
     .name = "BMI_CLASSIC_API's initialize and lookup",
     .run = classic,
     .where = RAW},
    {.section = "Functions",
     .name = "BMI_CLASSIC_API's options are settings",
     .run = classic_settings,
     .where = RAW},
    {.section = "Functions",
     .name = "BMI_CLASSIC_API's options end with the library",
     .run = classic_settings_end,
     .where = RAW},
    {.section = "Functions",
     .name = "BMI_CLASSIC_API's later calls count",
     .run = classic_counted,
     .where = RAW},
    {0},
};
