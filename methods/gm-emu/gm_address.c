/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gm_address.c - "host:number" in its one canonical form: names in lower case, IPv6 addresses as
 * RFC 5952 writes them, numbers without leading zeros. A host is a name under which a port of this
 * machine listens; it is not looked up anywhere.
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>

#include "gm.h"

static int refuse(const char **reason, const char *why)
{
    if (reason != NULL)
        *reason = why;
    return -EINVAL;
}

static int number_parse(const char *text, uint16_t *number, const char **reason)
{
    size_t length = strspn(text, "0123456789");
    if (length == 0 || text[length] != '\0')
        return refuse(reason, length == 0 && *text == '\0' ? "port is empty"
                                                           : "port is not a decimal number");
    unsigned long value = length <= 5 ? strtoul(text, NULL, 10) : 65536;
    if (value > 65535)
        return refuse(reason, "port is above 65535");
    *number = (uint16_t)value;
    return 0;
}

static int bracket_parse(const char *text, struct gm_address *address, const char **reason)
{
    struct in6_addr numeric;
    char host[INET6_ADDRSTRLEN];
    const char *close = strchr(text, ']');
    if (close == NULL)
        return refuse(reason, "']' is missing");
    size_t length = (size_t)(close - text) - 1;
    if (length >= sizeof host)
        return refuse(reason, "IPv6 address is too long");
    memcpy(host, text + 1, length);
    host[length] = '\0';
    if (inet_pton(AF_INET6, host, &numeric) != 1)
        return refuse(reason, "bad IPv6 address in brackets");
    inet_ntop(AF_INET6, &numeric, host, sizeof host);
    snprintf(address->host, sizeof address->host, "[%s]", host);
    if (close[1] == '\0')
        return 0;
    if (close[1] != ':')
        return refuse(reason, "text between ']' and the port");
    return number_parse(close + 2, &address->number, reason);
}

/* Not the C library's function, which depends on the program's locale: all processes must agree. */
static bool host_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '-' || c == '_';
}

static int host_parse(const char *text, size_t length, struct gm_address *address,
                      const char **reason)
{
    if (length >= sizeof address->host)
        return refuse(reason, "host is too long");
    for (size_t i = 0; i < length; i++) {
        char c = text[i];
        if (!host_letter(c))
            return refuse(reason, "host has a bad character");
        address->host[i] = c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
    }
    address->host[length] = '\0';
    return 0;
}

int gm_address_parse(const char *whole, struct gm_address *address, const char **reason)
{
    char text[BMI_MAX_ADDR_LEN];
    bmi_address_copy(whole, text, sizeof text);
    memset(address, 0, sizeof *address);
    address->number = GM_DEFAULT_NUMBER;
    if (text[0] == '[')
        return bracket_parse(text, address, reason);
    const char *colon = strchr(text, ':');
    if (colon != NULL && strchr(colon + 1, ':') != NULL)
        return refuse(reason, "more than one ':' (an IPv6 address stands in brackets)");
    int status =
        host_parse(text, colon != NULL ? (size_t)(colon - text) : strlen(text), address, reason);
    if (status != 0 || colon == NULL)
        return status;
    return number_parse(colon + 1, &address->number, reason);
}

int gm_address_format(const struct gm_address *address, char *out, size_t size)
{
    int length = snprintf(out, size, "%s:%u", address->host, (unsigned)address->number);
    return length < 0 || (size_t)length >= size ? -ENAMETOOLONG : 0;
}

int gm_parse(const char *text, char *canonical, size_t size, const char **reason)
{
    struct gm_address address;
    int status = gm_address_parse(text, &address, reason);
    if (status != 0)
        return status;
    if (address.host[0] == '\0')
        return refuse(reason, "host is empty");
    if (address.number == 0)
        return refuse(reason, "port 0 can only be listened at");
    return gm_address_format(&address, canonical, size);
}
