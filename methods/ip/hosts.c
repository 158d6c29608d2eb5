/* SPDX-License-Identifier: BSD-3-Clause
 *
 * hosts.c - hosts that are IP addresses: their names in the log, and the ranges that
 * BMI_query_addr_range knows. The functions use their arguments only.
 */
#include "hosts.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Without the port and the interface of an IPv6 address. */
static void of_address(const char *canonical, char *host, size_t size)
{
    bool bracket = *canonical == '[';
    size_t length = bracket ? strcspn(++canonical, "]%") : strcspn(canonical, ":");
    snprintf(host, size, "%.*s", (int)length, canonical);
}

static void process_name(const char *host, uint32_t number, char *name, size_t size)
{
    bool colons = strchr(host, ':') != NULL;
    snprintf(name, size, "%s%.*s%s:%u", colons ? "[" : "", INET6_ADDRSTRLEN, host,
             colons ? "]" : "", number);
}

/* ---- ranges --------------------------------------------------------------------------------- */

/* Whether the first `bits` bits are alike. */
static bool bits_alike(const uint8_t *one, const uint8_t *other, int bits)
{
    int bytes = bits / 8, rest = bits % 8;
    if (memcmp(one, other, (size_t)bytes) != 0)
        return false;
    return rest == 0 || ((one[bytes] ^ other[bytes]) >> (8 - rest)) == 0;
}

static int in_network(const char *host, const char *network, int bits)
{
    uint8_t one[16], other[16];
    int families[] = {AF_INET, AF_INET6}, widths[] = {32, 128};
    for (int i = 0; i < 2; i++) {
        if (inet_pton(families[i], network, other) != 1)
            continue;
        if (bits == BMI_HOST_WHOLE)
            bits = widths[i];
        if (bits < 0 || bits > widths[i])
            return -EINVAL;
        return inet_pton(families[i], host, one) == 1 && bits_alike(one, other, bits);
    }
    return -EINVAL;
}

/* "10.1.*", or "10.1.*.*": equal up to the star, which stands for whole numbers of the address. */
static int in_wildcard(const char *host, const char *pattern)
{
    size_t length = strcspn(pattern, "*");
    const char *more = pattern + length + 1;
    if (strspn(pattern, "0123456789.") != length || (length > 0 && pattern[length - 1] != '.'))
        return -EINVAL;
    int numbers = 1;
    for (size_t i = 0; i < length; i++)
        numbers += pattern[i] == '.';
    for (; strncmp(more, ".*", 2) == 0; numbers++)
        more += 2;
    if (*more != '\0' || numbers > 4)
        return -EINVAL;
    return strncmp(host, pattern, length) == 0;
}

/* The host part of "host[:port]", without brackets. */
static int range_host(const char *range, char *host, size_t size)
{
    bool bracket = *range == '[';
    size_t length = bracket ? strcspn(++range, "]") : strcspn(range, ":/,");
    if (length == 0 || length >= size)
        return -EINVAL;
    memcpy(host, range, length);
    host[length] = '\0';
    return 0;
}

static int in_range(const char *host, const char *range, int bits)
{
    char wanted[256];
    if (range_host(range, wanted, sizeof wanted) < 0)
        return -EINVAL;
    return strchr(wanted, '*') != NULL ? in_wildcard(host, wanted) : in_network(host, wanted, bits);
}

const struct bmi_method_hosts ip_hosts = {
    .of_address = of_address,
    .compare = strcmp, /* a numeric host is written in one way */
    .process_name = process_name,
    .in_range = in_range,
};
