/* SPDX-License-Identifier: BSD-3-Clause
 *
 * hosts_test.c - hosts that are IP addresses: their names, their order, and ranges of them.
 */
#include "hosts.h"

#include <CUnit/Basic.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

static void host_of_an_address(void)
{
    static const struct {
        const char *canonical, *host;
    } cases[] = {
        {"10.1.2.3:4", "10.1.2.3"},    {"name:4", "name"}, {"[fe80::1]:4", "fe80::1"},
        {"[fe80::1%lo]:4", "fe80::1"}, {"name", "name"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char host[256];
        ip_hosts.of_address(cases[i].canonical, host, sizeof host);
        CU_ASSERT_STRING_EQUAL(host, cases[i].host);
    }
}

static void process_names(void)
{
    char name[64];
    ip_hosts.process_name("10.1.2.3", 4711, name, sizeof name);
    CU_ASSERT_STRING_EQUAL(name, "10.1.2.3:4711");
    ip_hosts.process_name("fe80::1", 4711, name, sizeof name);
    CU_ASSERT_STRING_EQUAL(name, "[fe80::1]:4711");
}

static void order(void)
{
    CU_ASSERT_EQUAL(ip_hosts.compare("10.1.2.3", "10.1.2.3"), 0);
    int forth = ip_hosts.compare("10.1.2.3", "10.1.2.30");
    int back = ip_hosts.compare("10.1.2.30", "10.1.2.3");
    CU_ASSERT_TRUE((forth < 0 && back > 0) || (forth > 0 && back < 0));
}

static void ranges(void)
{
    static const struct {
        const char *host, *range;
        int bits, expected;
    } cases[] = {
        {"10.1.2.3", "10.1.2.0:99", 24, 1},
        {"10.1.2.3", "10.1.3.0/x", 24, 0},
        {"10.1.2.3", "10.1.2.3", BMI_HOST_WHOLE, 1},
        {"10.1.2.3", "10.1.2.4", BMI_HOST_WHOLE, 0},
        {"10.1.2.3", "10.1.2.3", -1, -EINVAL},
        {"10.1.2.3", "10.1.2.3", 33, -EINVAL},
        {"10.1.2.3", "10.1.*", -1, 1},
        {"10.1.2.3", "10.2.*.*", 7, 0},
        {"10.1.2.3", "1*", 7, -EINVAL},
        {"10.1.2.3", "1.2.3.4.*", 7, -EINVAL},
        {"10.1.2.3", "", 8, -EINVAL},
        {"10.1.2.3", "[fe80::]", 10, 0},
        {"fe80::1", "[fe80::]:7", 10, 1},
        {"fe80::1", "[fe80::2]", BMI_HOST_WHOLE, 0},
        {"fe80::1", "[fe80::2]", 129, -EINVAL},
        {"name", "10.0.0.0", 0, 0}, /* it is not looked up */
        {"", "10.0.0.0", 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int result = ip_hosts.in_range(cases[i].host, cases[i].range, cases[i].bits);
        CU_ASSERT_EQUAL(result, cases[i].expected);
        if (result != cases[i].expected)
            fprintf(stderr, "%s in %s/%d: %d\n", cases[i].host, cases[i].range, cases[i].bits,
                    result);
    }
}

int main(void)
{
    CU_initialize_registry();
    CU_pSuite suite = CU_add_suite("hosts", NULL, NULL);
    CU_add_test(suite, "host of an address", host_of_an_address);
    CU_add_test(suite, "names of processes", process_names);
    CU_add_test(suite, "order", order);
    CU_add_test(suite, "ranges", ranges);
    CU_basic_run_tests();
    unsigned failed = CU_get_number_of_failures();
    CU_cleanup_registry();
    return failed != 0;
}
