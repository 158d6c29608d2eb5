/* SPDX-License-Identifier: BSD-3-Clause
 *
 * address_test.c - "host:port" strings: which are accepted, their canonical form, and why others
 * are refused.
 */
#include "address.h"

#include <CUnit/Basic.h>
#include <errno.h>
#include <string.h>

static const struct {
    const char *text, *canonical;
} good[] = {
    {"host", "host:3334"},
    {"Host.Example.COM:80", "host.example.com:80"},
    {"host.:1", "host.:1"},
    {"a_b-c.d:65535", "a_b-c.d:65535"},
    {"1a:2", "1a:2"},
    {"127.0.0.1", "127.0.0.1:3334"},
    {"127.0.0.1:00080", "127.0.0.1:80"},
    {"0.0.0.0:5", "0.0.0.0:5"},
    {"[::1]", "[::1]:3334"},
    {"[::1]:7", "[::1]:7"},
    {"[2001:DB8:0:0:0:0:0:1]:7", "[2001:db8::1]:7"},
    {"[fe80::1%eth0.2]:7", "[fe80::1%eth0.2]:7"},
    {"[::ffff:10.0.0.1]:7", "10.0.0.1:7"},
    {"[::]:7", "[::]:7"},
    {"a:80/b:c", "a:80"},
};

static const struct {
    const char *text, *reason;
} bad[] = {
    {"", "host is empty"},
    {":80", "host is empty"},
    {"host:", "port is empty"},
    {"host:x", "port is not a decimal number"},
    {"host:+1", "port is not a decimal number"},
    {"host:-1", "port is not a decimal number"},
    {"host: 1", "port is not a decimal number"},
    {"host:0", "port 0"},
    {"host:65536", "port is above 65535"},
    {"host:000001", "port is too long"},
    {"::1", "more than one ':'"},
    {"a:1:2", "more than one ':'"},
    {"[::1", "']' is missing"},
    {"[::1]7", "text between ']' and the port"},
    {"[::1]:", "port is empty"},
    {"[]:1", "bad IPv6 address"},
    {"[1.2.3.4]:1", "bad IPv6 address"},
    {"[::g]", "bad IPv6 address"},
    {"[::1%]", "interface name"},
    {"[::1%eth/0]", "']' is missing"},
    {"[::1%interface-name-too-long]", "interface name"},
    {"1.2.3", "bad IPv4 address"},
    {"1.2.3.256", "bad IPv4 address"},
    {"1.2.3.4.5", "bad IPv4 address"},
    {"010.1.1.1", "bad IPv4 address"},
    {"12345", "bad IPv4 address"},
    {"0x7f.0X1", "bad IPv4 address"},
    {"a.0x", "bad IPv4 address"},
    {"a..b", "empty label"},
    {".a", "empty label"},
    {".", "empty label"},
    {"-a", "'-'"},
    {"a-.b", "'-'"},
    {"a b", "bad character"},
    {"a?b", "bad character"},
    {"a\x80", "bad character"},
    {"*", "bad character"},
};

static void accepts_and_normalises(void)
{
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        char canonical[300] = "", again[300] = "";
        const char *reason = NULL;
        CU_ASSERT_EQUAL(ip_parse(good[i].text, canonical, sizeof(canonical), &reason), 0);
        CU_ASSERT_STRING_EQUAL(canonical, good[i].canonical);
        CU_ASSERT_EQUAL(ip_parse(canonical, again, sizeof(again), &reason), 0);
        CU_ASSERT_STRING_EQUAL(again, canonical);
    }
}

static void refuses_with_the_reason(void)
{
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        char canonical[300] = "untouched";
        const char *reason = "";
        CU_ASSERT_EQUAL(ip_parse(bad[i].text, canonical, sizeof(canonical), &reason), -EINVAL);
        CU_ASSERT_PTR_NOT_NULL(strstr(reason, bad[i].reason));
        if (!strstr(reason, bad[i].reason))
            fprintf(stderr, "'%s': '%s' is not '%s'\n", bad[i].text, reason, bad[i].reason);
        CU_ASSERT_STRING_EQUAL(canonical, "untouched");
    }
}

static void label_and_name_lengths(void)
{
    char name[400], canonical[400];
    const char *reason = "";

    memset(name, 'a', 63);
    name[63] = '\0';
    CU_ASSERT_EQUAL(ip_parse(name, canonical, sizeof(canonical), &reason), 0);
    strcpy(name + 63, "a");
    CU_ASSERT_EQUAL(ip_parse(name, canonical, sizeof(canonical), &reason), -EINVAL);

    for (size_t i = 0; i < 253; i++)
        name[i] = i % 2 ? '.' : 'a';
    name[253] = '\0';
    CU_ASSERT_EQUAL(ip_parse(name, canonical, sizeof(canonical), &reason), 0);
    strcpy(name + 253, ".a");
    CU_ASSERT_EQUAL(ip_parse(name, canonical, sizeof(canonical), &reason), -EINVAL);
    memset(name, 'a', 399);
    name[399] = '\0';
    CU_ASSERT_EQUAL(ip_parse(name, canonical, sizeof(canonical), &reason), -EINVAL);
}

static void small_output_is_refused(void)
{
    char canonical[16];
    CU_ASSERT_EQUAL(ip_parse("127.0.0.1:80", canonical, 13, NULL), 0);
    CU_ASSERT_EQUAL(ip_parse("127.0.0.1:80", canonical, 12, NULL), -ENAMETOOLONG);
}

static void empty_host_is_for_listening(void)
{
    struct ip_address address;
    CU_ASSERT_EQUAL(ip_address_parse(":0", &address, NULL), 0);
    CU_ASSERT_EQUAL(address.kind, IP_HOST_EMPTY);
    CU_ASSERT_TRUE(address.port_given);
    CU_ASSERT_EQUAL(ip_address_parse("a", &address, NULL), 0);
    CU_ASSERT_FALSE(address.port_given);
}

static void socket_addresses(void)
{
    struct ip_address address;
    union ip_socket_address to;
    char host[64];

    CU_ASSERT_EQUAL(ip_address_parse("10.1.2.3:99", &address, NULL), 0);
    ip_address_to_socket(&address, &to);
    CU_ASSERT_EQUAL(ip_socket_address_port(&to), 99);
    ip_socket_address_host(&to, host, sizeof(host));
    CU_ASSERT_STRING_EQUAL(host, "10.1.2.3");
    CU_ASSERT_EQUAL(ip_socket_address_length(&to), sizeof(struct sockaddr_in));

    CU_ASSERT_EQUAL(ip_address_parse("[2001:db8::5]:99", &address, NULL), 0);
    ip_address_to_socket(&address, &to);
    ip_socket_address_host(&to, host, sizeof(host));
    CU_ASSERT_STRING_EQUAL(host, "2001:db8::5");
    CU_ASSERT_EQUAL(ip_socket_address_length(&to), sizeof(struct sockaddr_in6));

    memcpy(&to.ipv6.sin6_addr, "\0\0\0\0\0\0\0\0\0\0\xff\xff\x7f\0\0\x01", 16);
    ip_socket_address_host(&to, host, sizeof(host));
    CU_ASSERT_STRING_EQUAL(host, "127.0.0.1");
}

int main(void)
{
    CU_initialize_registry();
    CU_pSuite suite = CU_add_suite("tcp address", NULL, NULL);
    CU_ADD_TEST(suite, accepts_and_normalises);
    CU_ADD_TEST(suite, refuses_with_the_reason);
    CU_ADD_TEST(suite, label_and_name_lengths);
    CU_ADD_TEST(suite, small_output_is_refused);
    CU_ADD_TEST(suite, empty_host_is_for_listening);
    CU_ADD_TEST(suite, socket_addresses);
    CU_basic_set_mode(CU_BRM_VERBOSE);
    CU_basic_run_tests();
    unsigned failures = CU_get_number_of_failures();
    CU_cleanup_registry();
    return failures > 0;
}
