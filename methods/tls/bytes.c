/* SPDX-License-Identifier: BSD-3-Clause
 *
 * bytes.c - the bytes of a link: TLS records in place of the socket's own.
 *
 * Sending: the writer gathers frames into records of up to 16 KiB and encrypts up to CHUNK bytes
 * under the link's lock. The SSL writes its records to `out`; the writer takes those over into
 * `sending` and passes them to the socket in one system call, without the lock. A byte that was
 * encrypted is accepted: the rest of `sending` is `unsent` until there is room. Reading may add to
 * `out`, too (an answer to an update of keys, an alert); the order of `out` is that of the records.
 *
 * Receiving: the SSL reads ahead, so one recv brings several records. It decrypts them one after
 * the other, until the socket is empty or the caller's memory is full; in the latter case the rest
 * is `unread`. Messages of TLS (updates of keys, tickets) cost more than data: a read that has met
 * one ends with the data behind it, and more than MESSAGES_MOST of them without data end the link.
 */
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "tls.h"

enum {
    RECORD = 16384, /* bytes of a record at most */
    CHUNK = 8 * RECORD,
    READ_AHEAD = 4 * RECORD + 4096,
    OUT_MOST = 16 * RECORD, /* a peer that does not read its answers ends there */
    MESSAGES_MOST = 32,
    RECORD_MORE = 32, /* its header, type and tag, rounded up */
    LEAST_ROOM = 512
};

/* ---- ciphertext ----------------------------------------------------------------------------- */

/* Takes over what the SSL has written. The writer, which has sent all before. */
static void sending_take_locked(struct tls_link *tls)
{
    tls->sending = tls->out;
    tls->out = NULL;
    atomic_store(&tls->any_sending, tls->sending && tls->sending->have > 0);
    atomic_store(&tls->any_out, false);
}

/* The writer. Returns 0: all has been sent; -EAGAIN; or another errno. */
static int sending_write(struct tls_link *tls)
{
    struct tls_buffer *sending = tls->sending;
    if (!sending)
        return 0;
    while (sending->sent < sending->have) {
        ssize_t moved = send(tls->link->watch.fd, sending->bytes + sending->sent,
                             sending->have - sending->sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (moved < 0 && errno == EINTR)
            continue;
        if (moved < 0)
            return errno == EWOULDBLOCK ? -EAGAIN : -errno;
        sending->sent += (size_t)moved;
    }
    free(sending);
    tls->sending = NULL;
    atomic_store(&tls->any_sending, false);
    return 0;
}

/* Sends all that was encrypted. The writer. */
static int out_write(struct tls_link *tls)
{
    int error = sending_write(tls);
    if (error || !atomic_load(&tls->any_out))
        return error;
    bmi_lock_take(&tls->lock);
    sending_take_locked(tls);
    bmi_lock_give(&tls->lock);
    return sending_write(tls);
}

/* ---- between SSL and socket ----------------------------------------------------------------- */

static int bio_read(BIO *bio, char *to, size_t size, size_t *have)
{
    struct tls_link *tls = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    ssize_t moved = -1;
    if (!tls->read_short) {
        do
            moved = recv(tls->link->watch.fd, to, size, MSG_DONTWAIT);
        while (moved < 0 && errno == EINTR);
        if (moved < 0 && errno != EAGAIN && errno != EWOULDBLOCK)
            tls->socket_error = -errno;
        else if (moved == 0)
            tls->socket_error = -ECONNRESET; /* without the announcement of the end */
    }
    if (moved > 0) {
        tls->read_any = true;
        tls->read_short = (size_t)moved < size;
        *have = (size_t)moved;
        return 1;
    }
    if (tls->socket_error == 0)
        BIO_set_retry_read(bio);
    *have = 0;
    return 0;
}

/* Makes room for so many bytes more. Returns false without memory. */
static bool out_reserve_locked(struct tls_link *tls, size_t bytes)
{
    struct tls_buffer *out = tls->out;
    size_t have = out ? out->have : 0;
    if (out && out->room - have >= bytes)
        return true;
    size_t room = have + bytes > LEAST_ROOM ? have + bytes : LEAST_ROOM;
    struct tls_buffer *wider = realloc(out, sizeof(*wider) + room);
    if (!wider)
        return false;
    if (!out)
        *wider = (struct tls_buffer){0};
    wider->room = room;
    tls->out = wider;
    return true;
}

static bool out_append_locked(struct tls_link *tls, const void *bytes, size_t size)
{
    if (!out_reserve_locked(tls, size))
        return false;
    memcpy(tls->out->bytes + tls->out->have, bytes, size);
    tls->out->have += size;
    atomic_store(&tls->any_out, true);
    return true;
}

static bool out_is_full_locked(struct tls_link *tls)
{
    if (!tls->out || tls->out->have < OUT_MOST)
        return false;
    tls_cause_log(tls, "it sends messages of TLS and does not read the answers");
    tls->socket_error = -EPROTO;
    return true;
}

/* Accepts what the writer encrypts, which bounds that, and answers to the peer's messages. */
static int bio_write(BIO *bio, const char *from, size_t size, size_t *written)
{
    struct tls_link *tls = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    if (tls_kernel_has_key(BIO_next(bio))) {
        int result = tls_kernel_write(BIO_next(bio), from, size, written);
        int error = errno;
        BIO_copy_next_retry(bio);
        if (result != 1 && !BIO_should_retry(bio))
            tls->socket_error = -error;
        return result;
    }
    if (out_is_full_locked(tls) || !out_append_locked(tls, from, size))
        return 0;
    *written = size;
    return 1;
}

/* What OpenSSL has encrypted reaches the socket before the kernel has the key. A step of the
 * handshake, which is the writer. */
static long flush_locked(BIO *bio, struct tls_link *tls)
{
    int error = sending_write(tls);
    BIO_clear_retry_flags(bio);
    if (error == 0) {
        sending_take_locked(tls);
        error = sending_write(tls);
    }
    if (error == -EAGAIN)
        BIO_set_retry_write(bio);
    else
        tls->socket_error = error;
    return error == 0;
}

/* With a socket BIO behind it (kernel.c), the BIO passes on what it does not know. */
static long bio_control(BIO *bio, int command, long number, void *pointer)
{
    struct tls_link *tls = BIO_get_data(bio);
    BIO *next = BIO_next(bio);
    if (command == BIO_CTRL_FLUSH)
        return next && tls->making ? flush_locked(bio, tls) : 1;
    return next ? BIO_ctrl(next, command, number, pointer) : 0;
}

static BIO_METHOD *bio_method;

static void bio_method_make(void)
{
    bio_method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "libbmi");
    if (!bio_method)
        return;
    BIO_meth_set_read_ex(bio_method, bio_read);
    BIO_meth_set_write_ex(bio_method, bio_write);
    BIO_meth_set_ctrl(bio_method, bio_control);
}

static BIO *bio_make(struct tls_link *tls)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, bio_method_make);
    BIO *bio = bio_method ? BIO_new(bio_method) : NULL;
    if (!bio)
        return NULL;
    BIO_set_data(bio, tls);
    BIO_set_init(bio, 1);
    return bio;
}

/* ---- handshake ------------------------------------------------------------------------------ */

static int tls_bytes_start(struct stream_link *link)
{
    struct tls_link *tls = calloc(1, sizeof(*tls));
    struct tls_making *making = calloc(1, sizeof(*making));
    if (!tls || !making) {
        free(tls);
        free(making);
        return -ENOMEM;
    }
    tls->link = link;
    tls->making = making;
    tls->role = link->dial ? TLS_CLIENT : TLS_SERVER;
    if (link->dial) {
        const struct ip_address *to = tcp_dial_address(link);
        making->host_is_numeric = to->kind != IP_HOST_NAME;
        memcpy(making->host, to->host, sizeof(making->host));
    }
    link->layer = tls;
    return 0;
}

/* The name that the server's certificate must have. */
static bool expect_host(struct tls_link *tls)
{
    const char *host = tls->making->host;
    if (tls->making->host_is_numeric)
        return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(tls->ssl), host) == 1;
    SSL_set_hostflags(tls->ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    return SSL_set1_host(tls->ssl, host) == 1 && SSL_set_tlsext_host_name(tls->ssl, host) == 1;
}

/* One for both directions, or two where the kernel is to send. */
static bool bios_make(struct tls_link *tls)
{
    BIO *in = bio_make(tls), *out = in;
    if (in && bmi_method_setting(tls->link->base.instance, "tls_kernel_send")) {
        out = bio_make(tls);
        SSL_set_options(tls->ssl, SSL_OP_ENABLE_KTLS);
        if (out && !tls_kernel_add(out, tls)) {
            BIO_free(out);
            out = NULL;
        }
    }
    if (in && out)
        SSL_set_bio(tls->ssl, in, out);
    else
        BIO_free(in);
    return in && out;
}

/* Returns 0 or an errno. */
static int ssl_make(struct tls_link *tls)
{
    SSL_CTX *context = tls_context_get(tls_state_of(tls->link)->contexts, tls->role);
    if (!context)
        return -EACCES;
    tls->ssl = SSL_new(context);
    SSL_CTX_free(context);
    if (!tls->ssl || !bios_make(tls))
        return -ENOMEM;
    SSL_set_app_data(tls->ssl, tls);
    if (tls->role == TLS_SERVER)
        SSL_set_accept_state(tls->ssl);
    else
        SSL_set_connect_state(tls->ssl);
    if (tls->role == TLS_CLIENT && !expect_host(tls))
        return -ENOMEM;
    tls_session_begin(tls->ssl);
    return 0;
}

/* OpenSSL calls it with each message of the handshake protocol before it handles that. */
static void message_seen(int sent, int version, int type, const void *bytes, size_t size, SSL *ssl,
                         void *argument)
{
    struct tls_link *tls = argument;
    (void)version, (void)bytes, (void)size;
    if (sent || type != SSL3_RT_HANDSHAKE)
        return;
    if (tls->messages <= MESSAGES_MOST)
        tls->messages++;
    if (tls->messages > MESSAGES_MOST) /* SSL_read handles no further one */
        SSL_set_shutdown(ssl, SSL_get_shutdown(ssl) | SSL_RECEIVED_SHUTDOWN);
}

/* Returns 0 or an errno. */
static int handshake_done(struct tls_link *tls)
{
    const struct bmi_link *base = &tls->link->base;
    int error = tls_identity_set(tls);
    free(tls->making);
    tls->making = NULL;
    if (error)
        return error;
    stream_count(tls->link, BMI_COUNT_HANDSHAKES, 1);
    stream_count(tls->link, BMI_COUNT_HANDSHAKES_RESUMED, tls->resumed);
    SSL_set_default_read_buffer_len(tls->ssl, READ_AHEAD);
    SSL_set_msg_callback(tls->ssl, message_seen);
    SSL_set_msg_callback_arg(tls->ssl, tls);
    tls->kernel_sends = tls_kernel_has_key(BIO_next(SSL_get_wbio(tls->ssl)));
    bmi_method_log(tls->link->base.instance, BMI_LOG_INFO, base, "%s:%u is %s (%s, %s%s%s)",
                   base->host ? base->host : "?", (unsigned)base->host_number, tls->identity,
                   SSL_get_version(tls->ssl), SSL_get_cipher_name(tls->ssl),
                   tls->resumed ? ", resumed" : "", tls->kernel_sends ? ", the kernel sends" : "");
    return 0;
}

/* OpenSSL sends no alert in answer to bytes that are no TLS record. By this one a plain client
 * recognises a TLS server. */
static void alert_add_locked(struct tls_link *tls)
{
    static const uint8_t protocol_version[] = {SSL3_RT_ALERT,          3, 3, 0, 2, SSL3_AL_FATAL,
                                               SSL_AD_PROTOCOL_VERSION};
    if (tls->role == TLS_SERVER && !atomic_load(&tls->any_out))
        out_append_locked(tls, protocol_version, sizeof(protocol_version));
}

static int handshake_go_on_locked(struct tls_link *tls)
{
    if (SSL_is_init_finished(tls->ssl))
        return 0;
    ERR_clear_error();
    tls->read_short = false;
    int result = SSL_do_handshake(tls->ssl);
    if (result == 1)
        return handshake_done(tls);
    int kind = SSL_get_error(tls->ssl, result);
    if (kind == SSL_ERROR_WANT_READ || kind == SSL_ERROR_WANT_WRITE)
        return kind == SSL_ERROR_WANT_READ ? -EAGAIN : -ENOBUFS;
    int error = tls_cause_locked(tls);
    if (error == -EPROTO)
        alert_add_locked(tls);
    return error;
}

static int tls_handshake(struct stream_link *link)
{
    struct tls_link *tls = tls_link_of(link);
    int error = tls->ssl ? out_write(tls) : ssl_make(tls);
    if (error)
        return error == -EAGAIN ? -ENOBUFS : error;
    bmi_lock_take(&tls->lock);
    int result = handshake_go_on_locked(tls);
    bmi_lock_give(&tls->lock);
    error = out_write(tls);
    if (result != 0 && result != -EAGAIN)
        return result;
    return error == -EAGAIN ? -ENOBUFS : error ? error : result;
}

/* ---- writing -------------------------------------------------------------------------------- */

/* The bytes of a write that have not been encrypted. */
struct plain {
    const struct iovec *iov;
    size_t count, offset;
};

static void plain_advance(struct plain *plain, size_t bytes)
{
    while (plain->count > 0 && bytes >= plain->iov->iov_len - plain->offset) {
        bytes -= plain->iov->iov_len - plain->offset;
        plain->offset = 0;
        plain->iov++;
        plain->count--;
    }
    plain->offset += bytes;
}

/* The next bytes for one call of SSL_write: records' worth of one piece where they lie, else a
 * record of several pieces put together. */
static const void *plain_next(struct plain *plain, uint8_t together[RECORD], size_t most,
                              size_t *bytes)
{
    const uint8_t *first = (const uint8_t *)plain->iov->iov_base + plain->offset;
    size_t have = plain->iov->iov_len - plain->offset;
    if (have > most)
        have = most;
    *bytes = have - have % RECORD;
    if (*bytes > 0 || plain->count == 1) {
        *bytes = *bytes > 0 ? *bytes : have;
        plain_advance(plain, *bytes);
        return first;
    }
    while (plain->count > 0 && *bytes < RECORD) {
        size_t part = plain->iov->iov_len - plain->offset;
        if (part > RECORD - *bytes)
            part = RECORD - *bytes;
        memcpy(together + *bytes, (const uint8_t *)plain->iov->iov_base + plain->offset, part);
        *bytes += part;
        plain_advance(plain, part);
    }
    return together;
}

/* The bytes of the next chunk's records. */
static size_t chunk_room(const struct plain *plain)
{
    size_t bytes = 0;
    for (size_t i = 0; i < plain->count && bytes < CHUNK; i++)
        bytes += plain->iov[i].iov_len;
    bytes = bytes < CHUNK ? bytes : CHUNK;
    return bytes + (bytes / RECORD + 2) * RECORD_MORE;
}

static void key_update_locked(struct tls_link *tls)
{
    if ((int64_t)tls->records < bmi_method_setting(tls->link->base.instance, "tls_key_records"))
        return;
    tls->records = 0;
    SSL_key_update(tls->ssl, SSL_KEY_UPDATE_NOT_REQUESTED);
}

/* Encrypts up to CHUNK bytes. Returns their number, or an errno. */
static ssize_t encrypt_locked(struct tls_link *tls, struct plain *plain)
{
    uint8_t together[RECORD];
    size_t done = 0;
    if (plain->count > 0 && !out_reserve_locked(tls, chunk_room(plain)))
        return -ENOMEM;
    ERR_clear_error();
    while (plain->count > 0 && done < CHUNK) {
        size_t bytes, written = 0;
        const void *from = plain_next(plain, together, CHUNK - done, &bytes);
        if (bytes == 0)
            continue;
        key_update_locked(tls);
        if (SSL_write_ex(tls->ssl, from, bytes, &written) != 1)
            return -EPIPE; /* reading has ended the session, and knows the cause */
        tls->records += (uint32_t)((bytes + RECORD - 1) / RECORD);
        done += bytes;
    }
    return (ssize_t)done;
}

/* Announces the end of our direction. With the kernel's key the announcement goes to the socket at
 * once, or, if that is full, with the next write. */
static void tls_end(struct stream_link *link)
{
    struct tls_link *tls = tls_link_of(link);
    bmi_lock_take(&tls->lock);
    ERR_clear_error();
    int result = SSL_shutdown(tls->ssl);
    atomic_store(&tls->end_waits, tls->kernel_sends && result < 0 &&
                                      SSL_get_error(tls->ssl, result) == SSL_ERROR_WANT_WRITE);
    ERR_clear_error();
    bmi_lock_give(&tls->lock);
}

static ssize_t tls_write(struct stream_link *link, struct iovec *iov, size_t count)
{
    struct tls_link *tls = tls_link_of(link);
    struct plain plain = {.iov = iov, .count = count};
    ssize_t all = 0, part;
    if (tls->kernel_sends && count > 0)
        return tls_kernel_send(link, iov, count);
    if (tls->kernel_sends) {
        if (atomic_load(&tls->end_waits))
            tls_end(link);
        return 0;
    }
    int error = sending_write(tls);
    if (error)
        return error;
    do {
        bmi_lock_take(&tls->lock);
        part = encrypt_locked(tls, &plain);
        sending_take_locked(tls);
        bmi_lock_give(&tls->lock);
        if (part < 0)
            return part;
        all += part;
        error = sending_write(tls);
    } while (error == 0 && plain.count > 0);
    return error && error != -EAGAIN ? error : all;
}

static bool tls_unsent(const struct stream_link *link)
{
    const struct tls_link *tls = tls_link_of(link);
    return tls && (atomic_load(&tls->any_sending) || atomic_load(&tls->any_out) ||
                   atomic_load(&tls->end_waits));
}

/* ---- reading -------------------------------------------------------------------------------- */

enum { READ_MORE = 1, READ_PAUSES = 2 }; /* how a read ended, if not with 0 or an errno */

/* How reading goes on after a call of SSL_read_ex. */
static int read_status_locked(struct tls_link *tls, int result)
{
    bool messages = tls->messages > 0;
    if (tls->messages > MESSAGES_MOST) {
        tls_cause_log(tls, "it sends messages of TLS and no data");
        ERR_clear_error();
        return -EPROTO;
    }
    if (result == 1) {
        tls->messages = 0;
        if (tls->read_short && !SSL_has_pending(tls->ssl))
            return -EAGAIN; /* the socket is empty, too */
        return messages ? READ_PAUSES : READ_MORE;
    }
    int kind = SSL_get_error(tls->ssl, result);
    if (kind == SSL_ERROR_WANT_READ)
        return -EAGAIN;
    return kind == SSL_ERROR_ZERO_RETURN ? 0 : tls_cause_locked(tls);
}

/* Reads into one piece. Returns the bytes; *status is READ_MORE, or how the reading ended. */
static size_t piece_read_locked(struct tls_link *tls, const struct iovec *piece, int *status)
{
    uint8_t *to = piece->iov_base;
    size_t all = 0;
    while (all < piece->iov_len && *status == READ_MORE) {
        size_t have = 0;
        int result = SSL_read_ex(tls->ssl, to + all, piece->iov_len - all, &have);
        all += have;
        *status = read_status_locked(tls, result);
    }
    return all;
}

static ssize_t tls_read(struct stream_link *link, struct iovec *iov, size_t count)
{
    struct tls_link *tls = tls_link_of(link);
    size_t all = 0;
    int status = READ_MORE;
    if (tls->over)
        return tls->status;
    bmi_lock_take(&tls->lock);
    ERR_clear_error();
    tls->read_short = false;
    for (size_t i = 0; i < count && status == READ_MORE; i++)
        all += piece_read_locked(tls, &iov[i], &status);
    tls->unread = status == READ_PAUSES || (status == READ_MORE && SSL_has_pending(tls->ssl));
    bmi_lock_give(&tls->lock);
    if (status == 0 || (status < 0 && status != -EAGAIN)) {
        tls->over = tls->unread = true;
        tls->status = status;
    }
    return all > 0 ? (ssize_t)all : status;
}

static bool tls_unread(struct stream_link *link)
{
    return tls_link_of(link)->unread;
}

/* ---- the end -------------------------------------------------------------------------------- */

/* The peer closes first. */
static bool tls_peer_first(const struct stream_link *link)
{
    return tls_link_of(link)->kernel_sends;
}

static void tls_free(struct stream_link *link)
{
    struct tls_link *tls = tls_link_of(link);
    stream_lock(&link->send_lock);
    link->layer = NULL;
    stream_unlock(&link->send_lock);
    if (tls->ssl && SSL_is_init_finished(tls->ssl) && !(tls->over && tls->status < 0)) {
        bmi_lock_take(&tls->lock);
        SSL_shutdown(tls->ssl);
        bmi_lock_give(&tls->lock);
    }
    out_write(tls);
    SSL_free(tls->ssl);
    ERR_clear_error();
    free(tls->out);
    free(tls->sending);
    free(tls->identity);
    free(tls->making);
    free(tls);
}

const struct stream_bytes tls_bytes = {
    .write = tls_write,
    .read = tls_read,
    .start = tls_bytes_start,
    .handshake = tls_handshake,
    .unsent = tls_unsent,
    .unread = tls_unread,
    .end = tls_end,
    .peer_first = tls_peer_first,
    .free = tls_free,
};
