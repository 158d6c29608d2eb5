/* SPDX-License-Identifier: BSD-3-Clause
 *
 * address.c - addresses of Unix sockets: an absolute path, or '@' and an abstract name.
 */
#include <stdio.h>

#include "unix.h"

static int refuse(const char **reason, const char *why)
{
    if (reason)
        *reason = why;
    return -EINVAL;
}

int unix_address_parse(const char *whole, struct unix_address *address, const char **reason)
{
    struct sockaddr_un *to = &address->socket;
    char name[BMI_MAX_ADDR_LEN];
    const char *text = whole;
    if (whole[0] == '@') {
        bmi_address_copy(whole, name, sizeof(name));
        text = name;
    }
    size_t length = strlen(text);

    if (text[0] != '/' && text[0] != '@')
        return refuse(reason, "neither an absolute path nor '@' and a name");
    if (length >= sizeof(to->sun_path))
        return refuse(reason, "path is above 107 characters");
    if (text[0] == '/' && text[length - 1] == '/')
        return refuse(reason, "path ends with '/'");
    for (size_t i = 0; i < length; i++)
        if ((unsigned char)text[i] < ' ' || text[i] == 0x7f)
            return refuse(reason, "path has a control character");

    memset(to, 0, sizeof(*to));
    to->sun_family = AF_UNIX;
    memcpy(to->sun_path, text, length);
    address->length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length);
    if (text[0] == '/')
        address->length++; /* with its final zero */
    else if (length == 1)
        address->length = sizeof(to->sun_family); /* the kernel chooses a name */
    else
        to->sun_path[0] = '\0';
    return 0;
}

int unix_parse(const char *text, char *canonical, size_t size, const char **reason)
{
    struct unix_address address;
    int error = unix_address_parse(text, &address, reason);
    if (error)
        return error;
    const char *path = address.socket.sun_path;
    if (address.length == sizeof(address.socket.sun_family))
        return refuse(reason, "name behind '@' is empty");
    int length = snprintf(canonical, size, "%s%s", path[0] ? "" : "@", path + !path[0]);
    return length < 0 || (size_t)length >= size ? -ENAMETOOLONG : 0;
}
