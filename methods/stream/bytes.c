/* SPDX-License-Identifier: BSD-3-Clause
 *
 * bytes.c - the bytes of a link without a layer: they are the socket's. Always without blocking,
 * without SIGPIPE, and with as few bytes of arguments as the kernel allows.
 */
#include <sys/socket.h>

#include "stream.h"

static ssize_t stream_error(void)
{
    return errno == EWOULDBLOCK ? -EAGAIN : -errno;
}

/* Few bytes are cheaper to send from one place than to have the kernel read a list of places: about
 * 0.1 us for a header and a body of some hundred bytes. */
static size_t gather_small(uint8_t *to, size_t most, const struct iovec *iov, size_t count)
{
    size_t bytes = 0;
    if (count < 2 || count > 8)
        return 0;
    for (size_t i = 0; i < count; i++) {
        if (iov[i].iov_len > most - bytes)
            return 0;
        memcpy(to + bytes, iov[i].iov_base, iov[i].iov_len);
        bytes += iov[i].iov_len;
    }
    return bytes;
}

/* The count of a msghdr is an int in musl, a size_t in glibc; IOV_MAX fits an unsigned short. */
static ssize_t plain_write(struct stream_link *link, struct iovec *iov, size_t count)
{
    uint8_t together[STREAM_GATHER_BYTES];
    struct iovec one = {.iov_base = together};
    one.iov_len = gather_small(together, sizeof(together), iov, count);
    if (one.iov_len > 0) {
        iov = &one;
        count = 1;
    }
    struct msghdr message = {.msg_iov = iov, .msg_iovlen = (unsigned short)count};
    ssize_t moved;
    do
        moved = count == 1
                    ? send(link->watch.fd, iov->iov_base, iov->iov_len, MSG_NOSIGNAL | MSG_DONTWAIT)
                    : sendmsg(link->watch.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (moved < 0 && errno == EINTR);
    return moved < 0 ? stream_error() : moved;
}

static ssize_t plain_read(struct stream_link *link, struct iovec *iov, size_t count)
{
    struct msghdr message = {.msg_iov = iov, .msg_iovlen = (unsigned short)count};
    ssize_t moved;
    do
        moved = count == 1 ? recv(link->watch.fd, iov->iov_base, iov->iov_len, MSG_DONTWAIT)
                           : recvmsg(link->watch.fd, &message, MSG_DONTWAIT);
    while (moved < 0 && errno == EINTR);
    return moved < 0 ? stream_error() : moved;
}

const struct stream_bytes stream_plain = {.write = plain_write, .read = plain_read};
