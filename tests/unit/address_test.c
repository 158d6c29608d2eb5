/* SPDX-License-Identifier: BSD-3-Clause
 *
 * address_test.c - the address book: strings, handles, references. Posts go to this process, over
 * the loop method.
 */
#include "bmi/base/instance.h"
#include "bmi/connection/address.h"

#include <errno.h>

#include "bmi/base/log.h"
#include "bmi/progress/methods.h"
#include "unit.h"

static struct caught caught;

static void set_up(void)
{
    CU_ASSERT_EQUAL_FATAL(BMI_initialize(NULL, NULL, 0), 0);
    caught.text[0] = '\0';
    bmi__log_callback(&bmi__default, &(struct bmi_log_callback){.write = caught_write,
                                                                .argument = &caught,
                                                                .level = BMI_LOG_ERROR});
}

static void tear_down(void)
{
    bmi__log_callback(&bmi__default, &(struct bmi_log_callback){.write = NULL});
    CU_ASSERT_EQUAL(BMI_finalize(), 0);
}

static uint32_t upper(BMI_addr_t address)
{
    return (uint32_t)((uint64_t)address >> 32);
}

static BMI_addr_t look_up(const char *string)
{
    BMI_addr_t address = 0;
    CU_ASSERT_EQUAL(BMI_addr_lookup(&address, string), 0);
    return address;
}

/* ---- strings -------------------------------------------------------------------------------- */

static void bad_strings_are_refused_and_the_part_named(void)
{
    static const struct {
        const char *string;
        int32_t error;
        const char *told;
    } cases[] = {
        {"", BMI_EINVAL, "scheme"},
        {"localhost:1", BMI_EINVAL, "localhost:1"},
        {"tcp:/localhost", BMI_EINVAL, "scheme"},
        {"tcp//localhost", BMI_EINVAL, "scheme"},
        {"tcp://", BMI_EINVAL, "host"},
        {"tcp:///path", BMI_EINVAL, "host"},
        {"tcp://host:port", BMI_EINVAL, "port"},
        {"tcp://host:70000", BMI_EINVAL, "port"},
        {"tcp://host:0", BMI_EINVAL, "port 0"},
        {"tcp://[::1", BMI_EINVAL, "]"},
        {"tcp://1.2.3.4.5:6", BMI_EINVAL, "IPv4"},
        {"tcp://good:1,tcp://bad:x", BMI_EINVAL, "tcp://bad:x"},
        {"tcp://good:1,", BMI_EINVAL, "empty"},
        {",tcp://good:1", BMI_EINVAL, "empty"},
        {"tcp://a:1,,tcp://b:1", BMI_EINVAL, "empty"},
        {"nothing://host:1", BMI_ENOPROTOOPT, "nothing://host:1"},
        {"://host:1", BMI_ENOPROTOOPT, "://host:1"},
        {"tc://host:1", BMI_ENOPROTOOPT, "tc://host:1"},
        {"tcpp://host:1", BMI_ENOPROTOOPT, "tcpp"},
        {"TCP://host:1", BMI_ENOPROTOOPT, "TCP"},
        {"bmi_tcp://host:1", BMI_ENOPROTOOPT, "bmi_tcp"},
        {"loop://a name", BMI_EINVAL, "letters"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        BMI_addr_t address = 77;
        caught.text[0] = '\0';
        int status = BMI_addr_lookup(&address, cases[i].string);
        CU_ASSERT_EQUAL(status, -cases[i].error);
        CU_ASSERT_EQUAL(address, 77);
        CU_ASSERT_PTR_NOT_NULL(strstr(caught.text, cases[i].told));
        if (status != -cases[i].error || strstr(caught.text, cases[i].told) == NULL)
            fprintf(stderr, "\"%s\": %s; log: %s", cases[i].string, bmi_status_string(status),
                    caught.text);
    }
    CU_ASSERT_EQUAL(BMI_addr_lookup(NULL, "tcp://host:1"), -BMI_EINVAL);
    CU_ASSERT_EQUAL(BMI_addr_lookup(&(BMI_addr_t){0}, NULL), -BMI_EINVAL);
}

static void alternatives_are_parsed_in_order(void)
{
    BMI_addr_t handle =
        look_up("nothing://x:1,tcp://Host:007/fs,loop://name,tcp://[::1]:5/a/b,other://y");
    bmi__book_lock(&bmi__default);
    struct address *address = bmi__address_find_locked(handle);
    CU_ASSERT_PTR_NOT_NULL_FATAL(address);
    CU_ASSERT_EQUAL_FATAL(address->alternative_count, 3);
    CU_ASSERT_STRING_EQUAL(address->alternatives[0].canonical, "host:7");
    CU_ASSERT_STRING_EQUAL(address->alternatives[0].url, "tcp://host:7");
    CU_ASSERT_STRING_EQUAL(address->alternatives[1].url, "loop://name");
    CU_ASSERT_STRING_EQUAL(address->alternatives[2].url, "tcp://[::1]:5");
    CU_ASSERT_STRING_EQUAL(address->alternatives[1].method->method->name, "bmi_loop");
    bmi__book_unlock(&bmi__default);
    CU_ASSERT_STRING_EQUAL(
        BMI_addr_rev_lookup(handle),
        "nothing://x:1,tcp://Host:007/fs,loop://name,tcp://[::1]:5/a/b,other://y");
}

static void the_longest_string(void)
{
    char string[BMI_MAX_ADDR_LEN + 2];
    BMI_addr_t address = 0;
    memset(string, 'p', sizeof string);
    memcpy(string, "tcp://h:1/", 10);
    string[BMI_MAX_ADDR_LEN - 1] = '\0';
    CU_ASSERT_EQUAL(BMI_addr_lookup(&address, string), 0);
    CU_ASSERT_STRING_EQUAL(BMI_addr_rev_lookup(address), string);
    address = 0;
    string[BMI_MAX_ADDR_LEN - 1] = 'p';
    string[BMI_MAX_ADDR_LEN] = '\0';
    CU_ASSERT_EQUAL(BMI_addr_lookup(&address, string), -BMI_ENAMETOOLONG);
    CU_ASSERT_EQUAL(address, 0);
}

static void many_alternatives(void)
{
    char string[BMI_MAX_ADDR_LEN] = "";
    size_t used = 0;
    for (int i = 0; used + 16 < sizeof string; i++)
        used += (size_t)snprintf(string + used, sizeof string - used, "%stcp://h:%d",
                                 i > 0 ? "," : "", i + 1);
    BMI_addr_t handle = look_up(string);
    bmi__book_lock(&bmi__default);
    struct address *address = bmi__address_find_locked(handle);
    CU_ASSERT_PTR_NOT_NULL_FATAL(address);
    CU_ASSERT_EQUAL(address->alternative_count, 64);
    bmi__book_unlock(&bmi__default);
    /* addresses of methods that this host lacks are many, too, and do not displace others */
    used = 0;
    while (used + 32 < sizeof string)
        used += (size_t)snprintf(string + used, sizeof string - used, "q://h,");
    strcpy(string + used, "tcp://h:1");
    look_up(string);
}

/* ---- handles -------------------------------------------------------------------------------- */

static void the_same_string_is_the_same_handle(void)
{
    enum { MANY = 3000 };
    static BMI_addr_t handles[MANY];
    char string[64];
    for (int i = 0; i < MANY; i++) {
        snprintf(string, sizeof string, "tcp://host%d:%d", i, i + 1);
        handles[i] = look_up(string);
        memset(string, 0, sizeof string); /* strings are copied */
    }
    for (int i = 0; i < MANY; i++) {
        snprintf(string, sizeof string, "tcp://host%d:%d", i, i + 1);
        CU_ASSERT_EQUAL(look_up(string), handles[i]);
        CU_ASSERT_STRING_EQUAL(BMI_addr_rev_lookup(handles[i]), string);
        CU_ASSERT_TRUE(handles[i] > 0);
    }
    static uint8_t used[MANY * 4];
    for (int i = 0; i < MANY; i++) {
        CU_ASSERT_TRUE_FATAL(upper(handles[i]) < sizeof used);
        CU_ASSERT_EQUAL(used[upper(handles[i])]++, 0); /* programs hash by the upper half */
    }
    CU_ASSERT_NOT_EQUAL(look_up("tcp://host1:2/"), handles[1]);
    CU_ASSERT_PTR_NULL(BMI_addr_rev_lookup_unexpected(handles[0])); /* never connected */
}

static void an_invalid_handle_is_refused(void)
{
    BMI_addr_t good = look_up("tcp://host:1");
    const BMI_addr_t bad[] = {0,
                              -1,
                              INT64_MIN,
                              INT64_MAX,
                              1,
                              good + 1,
                              good - 1,
                              good & UINT32_MAX,
                              good + (INT64_C(1) << 32),
                              -good,
                              INT64_C(1) << 62};
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        struct peer *peer;
        int value;
        CU_ASSERT_PTR_NULL(BMI_addr_rev_lookup(bad[i]));
        CU_ASSERT_PTR_NULL(BMI_addr_rev_lookup_unexpected(bad[i]));
        CU_ASSERT_EQUAL(bmi__address_lock(&bmi__default, bad[i], &peer), -EINVAL);
        CU_ASSERT_EQUAL(BMI_query_addr_range(bad[i], "tcp://10.*", 0), -BMI_EINVAL);
        CU_ASSERT_EQUAL(BMI_set_info(bad[i], BMI_INC_ADDR_REF, NULL), -BMI_EINVAL);
        CU_ASSERT_EQUAL(BMI_set_info(bad[i], BMI_DEC_ADDR_REF, NULL), -BMI_EINVAL);
        CU_ASSERT_EQUAL(BMI_set_info(bad[i], BMI_DROP_ADDR, NULL), -BMI_EINVAL);
        CU_ASSERT_EQUAL(BMI_get_info(bad[i], BMI_DROP_ADDR_QUERY, &value), -BMI_EINVAL);
    }
    CU_ASSERT_STRING_EQUAL(BMI_addr_rev_lookup(good), "tcp://host:1");
}

static void references_and_the_end_of_a_handle(void)
{
    BMI_addr_t handle = look_up("tcp://host:1");
    CU_ASSERT_EQUAL(BMI_set_info(handle, BMI_DEC_ADDR_REF, NULL), -BMI_EINVAL); /* below 0 */
    for (int i = 0; i < 3; i++)
        CU_ASSERT_EQUAL(BMI_set_info(handle, BMI_INC_ADDR_REF, NULL), 0);
    for (int i = 0; i < 2; i++)
        CU_ASSERT_EQUAL(BMI_set_info(handle, BMI_DEC_ADDR_REF, NULL), 0);
    CU_ASSERT_STRING_EQUAL(BMI_addr_rev_lookup(handle), "tcp://host:1");
    CU_ASSERT_EQUAL(BMI_set_info(handle, BMI_DEC_ADDR_REF, NULL), 0);
    CU_ASSERT_EQUAL(BMI_set_info(handle, BMI_DEC_ADDR_REF, NULL), -BMI_EINVAL);
    CU_ASSERT_STRING_EQUAL(BMI_addr_rev_lookup(handle), "tcp://host:1"); /* the look-up holds it */
    CU_ASSERT_EQUAL(look_up("tcp://host:1"), handle);
    CU_ASSERT_EQUAL(BMI_set_info(handle, BMI_DROP_ADDR, NULL), 0);
    CU_ASSERT_PTR_NULL(BMI_addr_rev_lookup(handle));
    BMI_addr_t again = look_up("tcp://host:1");
    CU_ASSERT_NOT_EQUAL(again, handle);
    CU_ASSERT_PTR_NULL(BMI_addr_rev_lookup(handle));
    CU_ASSERT_EQUAL(BMI_set_info(again, BMI_DROP_ADDR, NULL), 0);
    CU_ASSERT_PTR_NULL(BMI_addr_rev_lookup(again));
}

/* A peer was created, but never dialled. */
static void an_idle_peer_goes_with_its_address(void)
{
    BMI_addr_t handle = look_up("tcp://host:1");
    struct peer *peer, *again;
    CU_ASSERT_EQUAL_FATAL(bmi__address_lock(&bmi__default, handle, &peer), 0);
    CU_ASSERT_EQUAL(peer->state, PEER_IDLE);
    peer_unlock(peer);
    CU_ASSERT_EQUAL_FATAL(bmi__address_lock(&bmi__default, handle, &again), 0);
    CU_ASSERT_PTR_EQUAL(again, peer);
    peer_unlock(again);
    CU_ASSERT_EQUAL(BMI_set_info(handle, BMI_DROP_ADDR, NULL), 0);
    CU_ASSERT_EQUAL(peer->state, PEER_FREE);
    CU_ASSERT_EQUAL(bmi__address_lock(&bmi__default, handle, &peer), -EINVAL);
}

static BMI_addr_t self_connect(bmi_context_id context)
{
    BMI_addr_t self = look_up("loop://self");
    struct BMI_unexpected_info info;
    bmi_error_code_t error = 0;
    bmi_op_id_t op;
    int posted = BMI_post_sendunexpected(&op, self, "x", 1, BMI_EXT_ALLOC, 1, NULL, context, NULL);
    int sent = posted == 1, heard = 0;
    CU_ASSERT_FATAL(posted >= 0);
    while (sent == 0)
        CU_ASSERT_FATAL(BMI_test(op, &sent, &error, NULL, NULL, 1000, context) >= 0);
    CU_ASSERT_EQUAL(error, 0);
    while (heard == 0)
        CU_ASSERT_FATAL(BMI_testunexpected(1, &heard, &info, 1000) >= 0);
    CU_ASSERT_EQUAL(info.addr, self);
    CU_ASSERT_EQUAL(BMI_unexpected_free(info.addr, info.buffer), 0);
    return self;
}

static void drive_until_free(struct peer *peer)
{
    struct BMI_unexpected_info info;
    int count;
    while (peer->state != PEER_FREE)
        CU_ASSERT_FATAL(BMI_testunexpected(1, &count, &info, 10) >= 0);
}

/* One call closes the connection and forgets the address; the string is found until both are gone.
 */
static void a_connected_address_is_dropped(void)
{
    struct peer *peer, *again;
    bmi_context_id context;
    tear_down();
    CU_ASSERT_EQUAL_FATAL(BMI_initialize("bmi_loop", "loop://self", BMI_INIT_SERVER), 0);
    CU_ASSERT_EQUAL_FATAL(BMI_open_context(&context), 0);
    BMI_addr_t handle = self_connect(context);
    CU_ASSERT_EQUAL_FATAL(bmi__address_lock(&bmi__default, handle, &peer), 0);
    CU_ASSERT_EQUAL(peer->state, PEER_UP);
    peer_unlock(peer);
    CU_ASSERT_EQUAL(BMI_set_info(handle, BMI_DROP_ADDR, NULL), 0);
    CU_ASSERT_EQUAL(BMI_set_info(handle, BMI_DROP_ADDR, NULL), -BMI_EINVAL);
    CU_ASSERT_PTR_NULL(BMI_addr_rev_lookup(handle));
    CU_ASSERT_EQUAL(bmi__address_lock(&bmi__default, handle, &again), -EINVAL);
    drive_until_free(peer);

    handle = self_connect(context);
    CU_ASSERT_EQUAL_FATAL(bmi__address_lock(&bmi__default, handle, &peer), 0);
    peer_unlock(peer);
    CU_ASSERT_EQUAL(BMI_set_info(handle, BMI_DROP_ADDR, NULL), 0);
    BMI_addr_t next = self_connect(context); /* while it is being closed */
    CU_ASSERT_NOT_EQUAL(next, handle);
    CU_ASSERT_EQUAL(bmi__address_lock(&bmi__default, handle, &again), -EINVAL);
    CU_ASSERT_EQUAL_FATAL(bmi__address_lock(&bmi__default, next, &again), 0);
    CU_ASSERT_PTR_EQUAL(again, peer);
    peer_unlock(again);
    CU_ASSERT_EQUAL(BMI_set_info(next, BMI_DROP_ADDR, NULL), 0);
    drive_until_free(peer);
    BMI_close_context(context);
    CU_ASSERT_EQUAL(BMI_finalize(), 0);
    set_up();
}

/* Two strings of one process: one is dropped, the connection stays. */
static void an_alias_is_dropped(void)
{
    struct peer *peer, *again;
    BMI_addr_t one = look_up("tcp://host:1"), other = look_up("tcp://HOST:1");
    CU_ASSERT_EQUAL_FATAL(bmi__address_lock(&bmi__default, one, &peer), 0);
    peer_unlock(peer);
    CU_ASSERT_EQUAL_FATAL(bmi__address_lock(&bmi__default, other, &again), 0);
    peer_unlock(again);
    bmi__book_lock(&bmi__default);
    bmi__address_move_locked(again, peer);
    bmi__book_unlock(&bmi__default);
    CU_ASSERT_EQUAL(BMI_set_info(one, BMI_DROP_ADDR, NULL), 0);
    CU_ASSERT_PTR_NULL(BMI_addr_rev_lookup(one));
    CU_ASSERT_EQUAL_FATAL(bmi__address_lock(&bmi__default, other, &again), 0);
    CU_ASSERT_PTR_EQUAL(again, peer);
    peer_unlock(again);
    CU_ASSERT_EQUAL(BMI_set_info(other, BMI_DROP_ADDR, NULL), 0);
    CU_ASSERT_EQUAL(peer->state, PEER_FREE);
}

static void handles_of_an_earlier_start_are_stale(void)
{
    BMI_addr_t handles[10];
    char string[64];
    for (int i = 0; i < 10; i++) {
        snprintf(string, sizeof string, "tcp://host%d:1", i);
        handles[i] = look_up(string);
    }
    tear_down();
    set_up();
    for (int i = 0; i < 10; i++) {
        snprintf(string, sizeof string, "tcp://other%d:1", i);
        look_up(string);
    }
    for (int i = 0; i < 10; i++)
        CU_ASSERT_PTR_NULL(BMI_addr_rev_lookup(handles[i]));
}

/* A server's slots are used repeatedly, by one client after the other. */
static void handles_of_a_slot_used_often_are_stale(void)
{
    enum { OFTEN = 70000 };
    static BMI_addr_t handles[OFTEN];
    for (int i = 0; i < OFTEN; i++) {
        handles[i] = look_up("tcp://host:1");
        CU_ASSERT_EQUAL(BMI_set_info(handles[i], BMI_DROP_ADDR, NULL), 0);
    }
    tear_down();
    set_up();
    look_up("tcp://other:1");
    unsigned alive = 0;
    for (int i = 0; i < OFTEN; i++)
        alive += BMI_addr_rev_lookup(handles[i]) != NULL;
    CU_ASSERT_EQUAL(alive, 0);
}

static void ranges(void)
{
    BMI_addr_t handle = look_up("tcp://10.1.2.3:4"), six = look_up("tcp://[fe80::1]:4");
    static const struct {
        const char *range;
        int netmask, expected;
    } cases[] = {
        {"tcp://10.1.2.3", 32, 1},  {"tcp://10.1.2.4", 32, 0},  {"tcp://10.1.2.4", 24, 1},
        {"tcp://10.1.0.0", 16, 1},  {"tcp://10.2.0.0", 16, 0},  {"tcp://10.0.0.0", 8, 1},
        {"tcp://99.0.0.0", 0, 1},   {"tcp://10.1.*", 0, 1},     {"tcp://10.1.2.*", 99, 1},
        {"tcp://10.2.*", 0, 0},     {"tcp://*", 0, 1},          {"tcp://10.1.2.3", 33, -1},
        {"tcp://10.1.2.3", -1, -1}, {"tcp://10.1.2", 8, -1},    {"10.1.2.3", 8, -1},
        {"loop://10.1.*", 0, 0},    {"none://10.1.2.3", 32, 0}, {"none://10.1.2", 8, -1},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        int result = BMI_query_addr_range(handle, cases[i].range, cases[i].netmask);
        CU_ASSERT_EQUAL(result < 0 ? -1 : result, cases[i].expected);
        if ((result < 0 ? -1 : result) != cases[i].expected)
            fprintf(stderr, "%s/%d: %d\n", cases[i].range, cases[i].netmask, result);
    }
    CU_ASSERT_EQUAL(BMI_query_addr_range(six, "tcp://10.0.0.0", 8), 0);
    CU_ASSERT_EQUAL(BMI_query_addr_range(six, "tcp://[fe80::]", 10), 1);
    CU_ASSERT_EQUAL(BMI_query_addr_range(look_up("tcp://[fe80::1%lo]:4"), "tcp://[fe80::]", 10), 1);
    CU_ASSERT_EQUAL(BMI_query_addr_range(handle, NULL, 8), -BMI_EINVAL);
}

int main(void)
{
    CU_TestInfo tests[] = {
        {"bad strings are refused", bad_strings_are_refused_and_the_part_named},
        {"alternatives are parsed in order", alternatives_are_parsed_in_order},
        {"the longest string", the_longest_string},
        {"many alternatives", many_alternatives},
        {"the same string is the same handle", the_same_string_is_the_same_handle},
        {"an invalid handle is refused", an_invalid_handle_is_refused},
        {"references and the end of a handle", references_and_the_end_of_a_handle},
        {"an idle peer goes with its address", an_idle_peer_goes_with_its_address},
        {"a connected address is dropped", a_connected_address_is_dropped},
        {"an alias is dropped", an_alias_is_dropped},
        {"handles of an earlier start are stale", handles_of_an_earlier_start_are_stale},
        {"handles of a slot used often are stale", handles_of_a_slot_used_often_are_stale},
        {"ranges", ranges},
        CU_TEST_INFO_NULL,
    };
    CU_SuiteInfo suites[] = {
        {.pName = "addresses", .pSetUpFunc = set_up, .pTearDownFunc = tear_down, .pTests = tests},
        CU_SUITE_INFO_NULL};
    return unit_run_suites(suites);
}
