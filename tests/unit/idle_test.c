/* SPDX-License-Identifier: BSD-3-Clause
 *
 * idle_test.c - idle connections: when the setting idle_reap_s closes them, while the program only
 * waits, and when it leaves them open.
 */
#include "bmi/base/instance.h"
#include "tests/unit/script_case.h"

enum { PATIENCE_MS = 30000 };

/* Waits as a server does, until the link is down. A wait without any event for long is an error. */
static bool goes_down(struct script *script)
{
    struct BMI_unexpected_info info;
    bmi_op_id_t id;
    bmi_error_code_t error;
    int count = 0;
    CU_ASSERT_EQUAL(BMI_testcontext(1, &id, &count, &error, NULL, NULL, 1, case_context), 0);
    for (int waited = 0; waited < PATIENCE_MS && !script->down; waited += 500)
        BMI_testunexpected(1, &count, &info, 500);
    return script->down;
}

/* Makes the library's tick stop: no operation is left. */
static void quiet(void)
{
    struct BMI_unexpected_info info;
    int count;
    for (int i = 0; i < 3; i++)
        CU_ASSERT_EQUAL(BMI_testunexpected(1, &count, &info, 100), 0);
}

static void set_while_all_is_quiet(void)
{
    CU_ASSERT_EQUAL(bmi__settings_set(&bmi__default, "connect_timeout_ms=100"), 0);
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    quiet();
    CU_ASSERT_EQUAL(BMI_set_info(0, BMI_SETTING, "idle_reap_s=1"), 0);
    CU_ASSERT_TRUE(goes_down(script));
    CU_ASSERT_EQUAL(script->status, 0);
    CU_ASSERT_EQUAL(BMI_set_info(0, BMI_SETTING, "idle_reap_s=0,connect_timeout_ms=10000"), 0);
    script_close(script);
}

/* A tick that is rare for all else is frequent enough for this. */
static void set_before_the_peers_came(void)
{
    CU_ASSERT_EQUAL(BMI_set_info(0, BMI_SETTING,
                                 "idle_reap_s=1,connect_timeout_ms=86400000,peer_timeout_ms=0"),
                    0);
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    CU_ASSERT_TRUE(goes_down(script));
    CU_ASSERT_EQUAL(BMI_set_info(0, BMI_SETTING,
                                 "idle_reap_s=0,connect_timeout_ms=10000,peer_timeout_ms=30000"),
                    0);
    script_close(script);
}

/* A client connects and is silent, while no operation is outstanding. */
static void never_connected(void)
{
    CU_ASSERT_EQUAL(bmi__settings_set(&bmi__default, "connect_timeout_ms=100"), 0);
    struct script *script = script_accept(SCRIPT_FRAMES);
    CU_ASSERT_PTR_NOT_NULL_FATAL(script);
    CU_ASSERT_TRUE(goes_down(script));
    CU_ASSERT_EQUAL(bmi__settings_set(&bmi__default, "connect_timeout_ms=10000"), 0);
    script_close(script);
}

/* Waiting messages, messages that the program still holds, and operations keep a connection. */
static void a_connection_in_use_stays(void)
{
    static struct posted posted;
    struct BMI_unexpected_info info;
    int count = 0, now = 0;
    struct script *held = script_open(SCRIPT_FRAMES, NULL);
    struct script *unmatched = script_open(SCRIPT_FRAMES, NULL);
    struct script *busy = script_open(SCRIPT_FRAMES, NULL);
    struct script *referred = script_open(SCRIPT_FRAMES, NULL);
    struct script *idle = script_open(SCRIPT_FRAMES, NULL);
    CU_ASSERT_FATAL(held && unmatched && busy && referred && idle);
    struct wire_header header = {.type = WIRE_UNEXPECTED, .tag = TAG};
    CU_ASSERT_EQUAL(script_send(held, header, message(1, SMALL), SMALL), 0);
    CU_ASSERT_EQUAL(BMI_testunexpected(1, &count, &info, 0), 1);
    CU_ASSERT_EQUAL(send_eager(unmatched, 1, SMALL, TAG), 0);
    post_receive(busy, &posted, SMALL, TAG);
    CU_ASSERT_EQUAL(BMI_set_info(referred->address, BMI_INC_ADDR_REF, NULL), 0);
    for (int i = 0; i < 3; i++) { /* the first check records the bytes that have come */
        CU_ASSERT_EQUAL(BMI_set_info(0, BMI_REAP_IDLE, &now), 0);
        script_drive();
    }
    CU_ASSERT_TRUE(idle->down);
    ALIVE(held);
    ALIVE(unmatched);
    ALIVE(busy);
    ALIVE(referred);
    CU_ASSERT_EQUAL(BMI_unexpected_free(info.addr, info.buffer), 0);
    CU_ASSERT_EQUAL(BMI_set_info(referred->address, BMI_DEC_ADDR_REF, NULL), 0);
    for (int i = 0; i < 3; i++) {
        CU_ASSERT_EQUAL(BMI_set_info(0, BMI_REAP_IDLE, &now), 0);
        script_drive();
    }
    CU_ASSERT_TRUE(held->down && referred->down);
    cancel(&posted);
    CU_ASSERT_TRUE(failed(&posted, BMI_ECANCEL));
    script_close(held);
    script_close(unmatched);
    script_close(busy);
    script_close(referred);
    script_close(idle);
}

/* Time-outs expire, however often settings change meanwhile. */
static void set_again_and_again(void)
{
    static struct posted posted;
    CU_ASSERT_EQUAL(BMI_set_info(0, BMI_SETTING, "idle_reap_s=3600,peer_timeout_ms=1000"), 0);
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    post_receive(script, &posted, SMALL, TAG);
    for (int waited = 0; waited < PATIENCE_MS && !script->down; waited += 50) {
        struct BMI_unexpected_info info;
        int count = 0;
        BMI_testunexpected(1, &count, &info, 50);
        CU_ASSERT_EQUAL(BMI_set_info(0, BMI_SETTING, "stats=off"), 0);
    }
    CU_ASSERT_TRUE(script->down);
    CU_ASSERT_TRUE(failed(&posted, BMI_ETIMEDOUT));
    CU_ASSERT_EQUAL(BMI_set_info(0, BMI_SETTING, "idle_reap_s=0,peer_timeout_ms=30000"), 0);
    script_close(script);
}

int main(void)
{
    CU_TestInfo tests[] = {
        {"set while all is quiet", set_while_all_is_quiet},
        {"set before the peers came", set_before_the_peers_came},
        {"never connected", never_connected},
        {"a connection in use stays", a_connection_in_use_stays},
        {"set again and again", set_again_and_again},
        CU_TEST_INFO_NULL,
    };
    return script_suite_run("idle", tests);
}
