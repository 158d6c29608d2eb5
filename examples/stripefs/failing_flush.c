/* SPDX-License-Identifier: BSD-3-Clause
 *
 * failing_flush.c - for a test: of a server's flushes of key/values, the one whose number is in
 * STRIPEFSD_FLUSH_FAILS fails. LMDB finds this fdatasync(2) before the C library's.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool is_keys(int fd)
{
    char link[64], name[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, name, sizeof name - 1);
    name[length > 0 ? length : 0] = '\0';
    return strstr(name, "/keys/data.mdb") != NULL;
}

__attribute__((visibility("default"))) int fdatasync(int fd)
{
    static atomic_long flushes;
    const char *number = getenv("STRIPEFSD_FLUSH_FAILS");
    if (number == NULL || !is_keys(fd) || atomic_fetch_add(&flushes, 1) + 1 != atol(number))
        return (int)syscall(SYS_fdatasync, fd);
    errno = EIO;
    return -1;
}
