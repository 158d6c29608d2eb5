/* SPDX-License-Identifier: BSD-3-Clause
 *
 * handshake.c - the handshake over a new exchange.
 *
 * Both sides send two hellos of one form; the side that dialled sends first each time. The first
 * one has no secrets, so any process may read it: version, provider, address family, and a status,
 * which is not 0 if the sender refuses. Over shm each side then asks the kernel for the user of the
 * process at the other end. Only if all of that matches, the second hello adds token, wake-up flag,
 * and the endpoint's name. It can refuse, too: its sender may lack memory for the peer.
 *
 * The first line of a hello is followed by an empty one, so that an HTTP server answers at once.
 * A listener that reads other bytes answers with a hello that refuses, and closes.
 *
 * The poller runs all of it.
 */
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ib.h"

enum { REFUSED_MS = 1000 }; /* the time for a refused peer to read the reason */

static const char magic[12] = "BMI ib\r\n\r\n";

/* Numbers are little-endian, but for the doorbell's: processes of one host use it. */
struct hello {
    char magic[sizeof(magic)];
    uint32_t version;
    uint32_t status;
    uint32_t format; /* of the endpoint's address */
    uint32_t message_bytes;
    uint32_t name_size; /* this, token, doorbell, and name: 0 in the first hello */
    uint64_t token;
    struct ib_doorbell_record doorbell;
    char provider[IB_PROVIDER_BYTES];
    uint8_t name[IB_NAME_BYTES];
};
_Static_assert(sizeof(struct hello) == 248, "it has no padding");

struct ib_handshake {
    bool opened;  /* the other side's first hello was valid */
    bool refused; /* we have sent a refusal: further bytes are dropped */
    uint32_t have;
    struct hello hello; /* the first `have` bytes of the one being read */
};

/* ---- sending --------------------------------------------------------------------------------- */

/* Sends a hello, with the secrets if it is `second`. The socket has room for these first bytes. */
static int hello_send(const struct ib_link *link, int status, bool second)
{
    const struct ib_state *state = ib_state_of(link);
    struct hello hello = {.version = htole32(IB_VERSION),
                          .status = htole32((uint32_t)-status),
                          .format = htole32(state->fabric->info->addr_format),
                          .message_bytes = htole32(IB_MESSAGE_BYTES)};
    memcpy(hello.magic, magic, sizeof(magic));
    memcpy(hello.provider, state->provider, sizeof(hello.provider));
    if (second) {
        const struct ib_endpoint *endpoint = link->endpoint;
        hello.token = htole64(link->token);
        hello.name_size = htole32((uint32_t)endpoint->name_size);
        memcpy(hello.name, endpoint->name, endpoint->name_size);
        if (state->doorbell)
            hello.doorbell = ib_doorbell_record(state->doorbell);
    }
    ssize_t sent = send(link->watch.fd, &hello, sizeof(hello), MSG_NOSIGNAL | MSG_DONTWAIT);
    return sent == (ssize_t)sizeof(hello) ? 0 : sent < 0 ? -errno : -ENOBUFS;
}

void ib_handshake_refuse(const struct ib_link *link, int status)
{
    hello_send(link, status, false);
}

/* Ends a link that is not up. The core knows only links that we dialled. A peer that dialled us
 * gets the reason; a close with unread bytes would discard it, so these are read first. */
static void handshake_fail(struct ib_link *link, int status)
{
    if (link->dialled) {
        ib_link_end(link, status);
        return;
    }
    if (link->handshake->refused || status == -ECONNRESET) {
        ib_link_forget(link);
        return;
    }
    ib_handshake_refuse(link, status);
    shutdown(link->watch.fd, SHUT_WR);
    link->handshake->refused = true;
    link->handshake->have = 0;
    bmi_method_timer_set(link->base.instance, &link->timer, REFUSED_MS);
}

void ib_handshake_expired(struct ib_link *link)
{
    if (link->handshake->refused)
        ib_link_forget(link);
    else
        handshake_fail(link, -ETIMEDOUT);
}

/* ---- the first hello ------------------------------------------------------------------------- */

/* Whether the bytes received may begin a hello of our version: one of another version may be
 * shorter. The core names the protocol of a server that we dialled, unless that sends frames of
 * BMI. Returns 0 or an errno. */
static int start_check(struct ib_link *link)
{
    const struct ib_handshake *handshake = link->handshake;
    size_t size = handshake->have < sizeof(magic) ? handshake->have : sizeof(magic);
    uint32_t version = le32toh(handshake->hello.version);
    bool ours = memcmp(&handshake->hello, magic, size) == 0;
    if (ours && (handshake->have < offsetof(struct hello, status) || version == IB_VERSION))
        return 0;
    if (ours) {
        bmi_method_log(link->base.instance, BMI_LOG_WARN, &link->base,
                       "%s speaks version %u of the exchange, we speak %d", ib_host_of(link),
                       version, IB_VERSION);
        return -EPROTO;
    }
    if (!link->dialled ||
        bmi_method_header_begun(&link->base, (const void *)&handshake->hello, size) == 0)
        bmi_method_log(link->base.instance, BMI_LOG_WARN, &link->base,
                       "%s speaks no BMI of this scheme: check its port and its scheme",
                       ib_host_of(link));
    return -EPROTO;
}

/* Why the two sides cannot work together; NULL: they can. */
static const char *mismatch(const struct ib_state *state, const struct hello *hello)
{
    if (memcmp(hello->provider, state->provider, sizeof(hello->provider)) != 0)
        return "uses another provider: choose one scheme on both sides";
    if (le32toh(hello->format) != state->fabric->info->addr_format)
        return "has an endpoint with an address of another family than ours (IPv4, IPv6): have the "
               "server listen, and be dialled, by one of one family";
    if (le32toh(hello->message_bytes) != IB_MESSAGE_BYTES)
        return "has messages of another size";
    return NULL;
}

/* Checks the fields that both hellos have. Returns 0, the status of a refusal, or an errno. */
static int hello_check(const struct ib_link *link, const struct hello *hello)
{
    enum { ERRNO_MOST = 133 };
    const struct ib_state *state = ib_state_of(link);
    uint32_t status = le32toh(hello->status);
    const char *what = mismatch(state, hello);
    if (what) {
        bmi_method_log(link->base.instance, BMI_LOG_WARN, &link->base, "%s %s", ib_host_of(link),
                       what);
        return -EPROTONOSUPPORT;
    }
    if (status)
        bmi_method_log(link->base.instance, BMI_LOG_WARN, &link->base, "%s refuses us: %s",
                       ib_host_of(link), strerror((int)status));
    return status <= ERRNO_MOST ? -(int)status : -EPROTO;
}

/* Processes that share memory must be of one user, as the kernel reports it. */
static int user_check(const struct ib_link *link)
{
    const struct ib_state *state = ib_state_of(link);
    uid_t user = 0;
    if (!state->doorbell)
        return 0;
    int status = ib_socket_peer_user(link->watch.fd, &user);
    if (status == 0 && user == geteuid())
        return 0;
    if (status)
        bmi_method_log(link->base.instance, BMI_LOG_WARN, &link->base,
                       "cannot find out whose process %s is: %s", ib_host_of(link),
                       strerror(-status));
    else
        bmi_method_log(link->base.instance, BMI_LOG_WARN, &link->base,
                       "the peer's process belongs to user %u, ours to user %u. This provider "
                       "connects processes of one user on one host",
                       (unsigned)user, (unsigned)geteuid());
    return status == 0 || status == -ENOENT ? -EACCES : status;
}

/* Chooses our endpoint by the local address of the exchange. */
static int endpoint_choose(struct ib_link *link)
{
    char host[IB_HOST_BYTES];
    struct ib_endpoint *endpoint = NULL;
    int status = ib_socket_host(link->watch.fd, host, sizeof(host));
    if (status == 0)
        status = ib_endpoint_get(ib_state_of(link), host, &endpoint);
    ib_lock(&link->send_lock);
    link->endpoint = endpoint;
    ib_unlock(&link->send_lock);
    return status;
}

/* Returns 0 or an errno. */
static int first_take(struct ib_link *link)
{
    int status = user_check(link);
    if (status == 0 && !link->dialled)
        status = endpoint_choose(link);
    if (status)
        return status;
    link->handshake->opened = true;
    if (!link->dialled)
        return hello_send(link, 0, false);
    status = ib_token_make(link);
    return status ? status : hello_send(link, 0, true);
}

/* ---- the second hello ------------------------------------------------------------------------ */

/* The first invalid field of a second hello; NULL: none. A name that is text must end within its
 * bytes, since the provider takes no size. */
static const char *nonsense(const struct ib_link *link, const struct hello *hello)
{
    const struct ib_state *state = ib_state_of(link);
    uint32_t size = le32toh(hello->name_size);
    bool shares = hello->doorbell.number != 0;
    if (size == 0 || size > IB_NAME_BYTES)
        return "an endpoint's name of no possible size";
    if (state->fabric->shared ? !memchr(hello->name, '\0', size)
                              : size != link->endpoint->name_size)
        return "an endpoint's name that is none";
    if (shares != (state->doorbell != NULL))
        return shares ? "a page to share, which we need not" : "no page to share";
    return NULL;
}

/* Whether the other end of the exchange belongs to a link of this process, too. */
static bool is_to_ourselves(const struct ib_link *link)
{
    struct ib_state *state = ib_state_of(link);
    const struct ib_link *other;
    ib_lock(&state->list_lock);
    cds_hlist_for_each_entry_2(other, &state->links, listed)
        if (other != link && memcmp(other->base.ends, link->base.ends, BMI_LINK_ENDS) == 0)
            break;
    ib_unlock(&state->list_lock);
    return other != NULL;
}

/* Opens the other side's wake-up flag. It names the process whose memory our gets read. That may be
 * this process only if the link is to ourselves. */
static int doorbell_take(const struct ib_link *link, const struct ib_doorbell_record *record,
                         struct ib_doorbell **doorbell)
{
    int status = ib_doorbell_open(record, doorbell);
    if (status || !*doorbell || ib_doorbell_process(*doorbell) != getpid() || is_to_ourselves(link))
        return status;
    ib_doorbell_free(*doorbell);
    *doorbell = NULL;
    return -EPERM;
}

/* Opens the memory that the other side shares, and its endpoint. The link owns them, also if a step
 * fails. */
static int peer_open(struct ib_link *link, struct hello *hello)
{
    struct ib_state *state = ib_state_of(link);
    struct ib_doorbell *doorbell = NULL;
    struct ib_peer *peer = NULL;
    uint32_t size = le32toh(hello->name_size);
    int status = doorbell_take(link, &hello->doorbell, &doorbell);
    if (status)
        bmi_method_log(link->base.instance, BMI_LOG_WARN, &link->base,
                       "cannot share a page with the peer: %s", strerror(-status));
    else
        status = ib_socket_name_check(link, hello->name, size);
    if (status == 0)
        status = ib_peer_get(state, hello->name, size, &peer);
    if (status && status != -EACCES)
        bmi_method_log(link->base.instance, BMI_LOG_WARN, &link->base,
                       "cannot reach the endpoint of %s: %s", ib_host_of(link), strerror(-status));
    ib_lock(&link->send_lock);
    link->peer = peer;
    link->doorbell = doorbell;
    link->their_token = le64toh(hello->token);
    ib_unlock(&link->send_lock);
    return status;
}

/* Handles the other side's second hello, the last step. Returns 0 or an errno. */
static int second_take(struct ib_link *link)
{
    struct ib_state *state = ib_state_of(link);
    struct hello *hello = &link->handshake->hello;
    const char *what = nonsense(link, hello);
    if (what) {
        bmi_method_log(link->base.instance, BMI_LOG_WARN, &link->base, "%s sends a hello with %s",
                       ib_host_of(link), what);
        return -EPROTO;
    }
    int status = peer_open(link, hello);
    if (status == 0 && !link->dialled) {
        status = ib_token_make(link);
        if (status == 0)
            status = hello_send(link, 0, true);
        if (status == 0)
            status = bmi_method_link_accepted(&link->base);
    }
    if (status)
        return status;
    ib_handshake_free(link);
    ib_count(state, link->dialled ? BMI_COUNT_LINKS_OPENED : BMI_COUNT_LINKS_ACCEPTED, 1);
    if (link->dialled)
        bmi_method_link_up(&link->base);
    ib_link_open(link);
    return 0;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* The connection has ended. A server that reads a hello and closes without an answer speaks another
 * protocol. */
static int ended(const struct ib_link *link)
{
    const struct ib_handshake *handshake = link->handshake;
    if (!link->dialled)
        return -ECONNRESET;
    if (handshake->opened || handshake->have > 0)
        return -ECONNREFUSED;
    bmi_method_log(link->base.instance, BMI_LOG_WARN, &link->base,
                   "%s closed the connection without an answer. Is it a server of this scheme?",
                   ib_host_of(link));
    return -EPROTO;
}

/* Reads from the socket. Returns 1 if a hello is whole, 0 if not, or an errno. */
static int bytes_read(struct ib_link *link)
{
    struct ib_handshake *handshake = link->handshake;
    ssize_t got = recv(link->watch.fd, (char *)&handshake->hello + handshake->have,
                       sizeof(handshake->hello) - handshake->have, MSG_DONTWAIT);
    if (got < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : link->dialled ? -errno : -ECONNRESET;
    if (got == 0)
        return ended(link);
    if (handshake->refused)
        return 0;
    handshake->have += (uint32_t)got;
    int status = start_check(link);
    return status ? status : handshake->have == sizeof(handshake->hello);
}

void ib_handshake_read(struct ib_link *link)
{
    struct ib_handshake *handshake = link->handshake;
    int status = bytes_read(link);
    if (status == 1) {
        handshake->have = 0;
        status = hello_check(link, &handshake->hello);
        if (status == 0)
            status = handshake->opened ? second_take(link) : first_take(link);
    }
    if (status)
        handshake_fail(link, status);
}

int ib_handshake_start(struct ib_link *link)
{
    link->handshake = calloc(1, sizeof(*link->handshake));
    if (!link->handshake)
        return -ENOMEM;
    int status = link->dialled ? endpoint_choose(link) : 0;
    if (status == 0 && link->dialled)
        status = hello_send(link, 0, false);
    if (status == 0)
        status = ib_exchange_watch(link, EPOLLIN | EPOLLRDHUP);
    if (status)
        return status;
    ib_phase_set(link, IB_HANDSHAKE);
    bmi_method_timer_set(link->base.instance, &link->timer,
                         (uint64_t)bmi_method_setting(link->base.instance, "connect_timeout_ms"));
    return 0;
}

void ib_handshake_free(struct ib_link *link)
{
    free(link->handshake);
    link->handshake = NULL;
}
