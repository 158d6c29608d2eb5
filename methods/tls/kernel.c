/* SPDX-License-Identifier: BSD-3-Clause
 *
 * kernel.c - sending by kernel TLS: the kernel encrypts the bytes that are written to the socket.
 *
 * OpenSSL hands the key of a direction to a socket BIO (SSL_OP_ENABLE_KTLS). The link's BIO for
 * writing has one behind it for that: it passes on every control command, and, once the kernel has
 * the key, what OpenSSL itself sends (tickets, alerts). Frames go straight to the socket. Where the
 * kernel does not take the key, OpenSSL encrypts as without the setting. Reading has a BIO of its
 * own, without a socket BIO, since later versions of OpenSSL hand over the key of that direction,
 * too.
 *
 * The key cannot be replaced (Linux can since 6.14, OpenSSL 3.0 does not), so a connection ends
 * after tls_key_records records; the next one has a new key.
 *
 * The kernel takes a record whole, and does not tell how much of it the socket has sent. So a
 * connection that is closed waits for the peer's end of the stream.
 */
#include <signal.h>
#include <time.h>

#include "tls.h"

enum { RECORD = 16384 };

bool tls_kernel_add(BIO *bio, const struct tls_link *tls)
{
    BIO *socket = BIO_new_socket(tls->link->watch.fd, BIO_NOCLOSE);
    if (socket)
        BIO_push(bio, socket);
    return socket;
}

bool tls_kernel_has_key(BIO *socket)
{
    return socket && BIO_get_ktls_send(socket);
}

/* A socket BIO writes without MSG_NOSIGNAL. */
int tls_kernel_write(BIO *socket, const char *from, size_t size, size_t *written)
{
    static const struct timespec now = {0};
    sigset_t pipe, before, pending;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    sigpending(&pending);
    pthread_sigmask(SIG_BLOCK, &pipe, &before);
    int result = BIO_write_ex(socket, from, size, written);
    int error = errno;
    while (!sigismember(&pending, SIGPIPE) && sigtimedwait(&pipe, NULL, &now) < 0 && errno == EINTR)
        ;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = error;
    return result;
}

ssize_t tls_kernel_send(struct stream_link *link, struct iovec *iov, size_t count)
{
    struct tls_link *tls = tls_link_of(link);
    int64_t most = bmi_method_setting(link->base.instance, "tls_key_records");
    if (tls->records >= most) {
        bmi_method_log(link->base.instance, BMI_LOG_WARN, &link->base,
                       "%s:%u: the kernel's key has served for %lld records (tls_key_records): the "
                       "connection ends, the next one has a new key",
                       link->base.host ? link->base.host : "?", (unsigned)link->base.host_number,
                       (long long)most);
        return -ECONNRESET;
    }
    ssize_t moved = stream_plain.write(link, iov, count);
    if (moved > 0) /* each write ends a record */
        tls->records += (uint32_t)((moved + RECORD - 1) / RECORD);
    return moved;
}
