/* SPDX-License-Identifier: BSD-3-Clause
 *
 * handshake.c - how two ports meet: sockets, credentials, and the exchange of descriptors.
 *
 *   connecting                          accepting
 *   HELLO port memory, doorbell    ->   checks, makes the link memory, is up
 *   checks, is up                  <-   WELCOME link memory, port memory, doorbell  (or REFUSE)
 *   ARENA, BYE                     <->  ARENA, BYE
 *
 * Each side looks at the other's credentials as the kernel gives them. It also reads a nonce from
 * the other's memory: if that works, and yields the nonce that came over the socket, then
 * process_vm_writev works and reaches the process that sent the handshake and no other. A peer ends
 * with its socket, or with its process (a descriptor of the process shows that, since children may
 * have inherited the socket). Only the poller runs this code.
 */
#include <errno.h>
#include <fcntl.h>
#include <openssl/rand.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "internal.h"

enum { FDS_MAX = 4 };

struct received {
    struct nic_handshake handshake;
    int fds[FDS_MAX];
    size_t count;
    bool cut; /* descriptors were lost: we have no more */
};

int nic__handshake_send(int fd, const struct nic_handshake *handshake, const int *fds, size_t count)
{
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(FDS_MAX * sizeof(int))];
    } control;
    struct iovec iov = {.iov_base = (void *)(uintptr_t)handshake, .iov_len = sizeof(*handshake)};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
    if (count > 0) {
        memset(&control, 0, sizeof(control));
        message.msg_control = &control;
        message.msg_controllen = (socklen_t)CMSG_SPACE(count * sizeof(int)); /* size_t in glibc */
        control.header.cmsg_level = SOL_SOCKET;
        control.header.cmsg_type = SCM_RIGHTS;
        control.header.cmsg_len = (socklen_t)CMSG_LEN(count * sizeof(int));
        memcpy(CMSG_DATA(&control.header), fds, count * sizeof(int));
    }
    return sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -errno : 0;
}

void nic__hello_fill(struct nic_port *port, struct nic_handshake *handshake, uint16_t kind)
{
    *handshake = (struct nic_handshake){.magic = NIC_MAGIC,
                                        .version = NIC_VERSION,
                                        .kind = kind,
                                        .length = port->shared_size,
                                        .nonce = {port->nonce[0], port->nonce[1]},
                                        .nonce_address = (uintptr_t)port->nonce,
                                        .wire = port->wire != NULL};
    for (int i = 0; i < NIC_PRIORITIES; i++)
        handshake->max_size[i] = port->options.max_size[i];
}

/* Returns the length of the message, 0 at the end, or -errno. */
static ssize_t handshake_receive(int fd, struct received *received)
{
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(FDS_MAX * sizeof(int))];
    } control;
    struct iovec iov = {.iov_base = &received->handshake, .iov_len = sizeof(received->handshake)};
    struct msghdr message = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof(control)};
    memset(received, 0, sizeof(*received));
    ssize_t length = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (length < 0)
        return -errno;
    received->cut = (message.msg_flags & MSG_CTRUNC) != 0;
    /* The kernel writes all descriptors into one part, the first: credentials were not asked
     * for. */
    struct cmsghdr *part = CMSG_FIRSTHDR(&message);
    if (part != NULL && part->cmsg_level == SOL_SOCKET && part->cmsg_type == SCM_RIGHTS) {
        size_t bytes = part->cmsg_len - CMSG_LEN(0);
        received->count = bytes / sizeof(int) < FDS_MAX ? bytes / sizeof(int) : FDS_MAX;
        memcpy(received->fds, CMSG_DATA(part), received->count * sizeof(int));
    }
    return length;
}

static void received_close(struct received *received)
{
    for (size_t i = 0; i < received->count; i++)
        if (received->fds[i] >= 0)
            close(received->fds[i]);
    received->count = 0;
}

/* 0, or why the process at the other end may not be talked to. */
static int credentials_check(struct nic_port *port, int fd, int *pid, unsigned *uid)
{
    struct ucred peer;
    socklen_t size = sizeof(peer);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0)
        return -errno;
    *pid = peer.pid;
    *uid = peer.uid;
    return peer.uid == geteuid() || port->options.allow_other_users ? 0 : -EACCES;
}

static bool is_doorbell(int fd)
{
    static const char EVENTFD[] = "anon_inode:[eventfd]";
    char path[64], target[64] = "";
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || (flags & O_NONBLOCK) == 0) /* ringing must not block us */
        return false;
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    ssize_t length = readlink(path, target, sizeof(target) - 1);
    return length < 0 || strcmp(target, EVENTFD) == 0;
}

/* Takes the other's port memory, doorbell, and wire memory from `fds` on. */
static int shared_take(struct nic_peer *peer, struct received *received, size_t first)
{
    const struct nic_handshake *handshake = &received->handshake;
    void *memory;
    size_t wanted = first + 2 + (handshake->wire != 0);
    if (received->cut)
        return -EMFILE;
    if (received->count != wanted || handshake->length < sizeof(struct nic_shared_port) ||
        handshake->length > (2ull << NIC_EXPOSURE_BITS) * sizeof(struct nic_shared_exposure) ||
        !is_doorbell(received->fds[first + 1]))
        return -EPROTO;
    int status = nic__memory_map(received->fds[first], handshake->length, false, &memory);
    if (status != 0)
        return status;
    peer->their_port = memory;
    peer->their_port_size = handshake->length;
    if (handshake->wire != 0) {
        status = nic__memory_map(received->fds[first + 2], sizeof(struct nic_shared_wire), true,
                                 &memory);
        if (status != 0)
            return status;
        peer->their_wire = memory;
    }
    peer->doorbell = received->fds[first + 1];
    received->fds[first + 1] = -1;
    for (int i = 0; i < NIC_PRIORITIES; i++) {
        uint32_t size = peer->port->options.max_size[i];
        if (handshake->max_size[i] < NIC_MIN_SIZE || handshake->max_size[i] > NIC_MAX_SIZE)
            return -EPROTO;
        if (handshake->max_size[i] < size)
            size = handshake->max_size[i];
        peer->max_length[i] = nic_max_length_for_size(size);
    }
    return 0;
}

/* Whether the process that sent the handshake can be written to directly; and watches its end. */
static void process_find(struct nic_peer *peer, const struct nic_handshake *handshake)
{
    memcpy(peer->nonce, handshake->nonce, sizeof(peer->nonce));
    peer->nonce_address = handshake->nonce_address;
    if (peer->pid <= 0)
        return;
    peer->process.fd = (int)syscall(SYS_pidfd_open, peer->pid, 0);
    peer->vm_write = nic__process_is_peer(peer);
    /* If the nonce cannot be read, the number may already be that of another process. */
    if (peer->process.fd >= 0 &&
        (!peer->vm_write || nic__source_add(peer->port, &peer->process, EPOLLIN) != 0)) {
        close(peer->process.fd);
        peer->process.fd = -1;
    }
    if (peer->port->options.refuse_vm_write)
        peer->vm_write = false;
}

/* That of low priority also carries directed sends: while the one side fills a part of it
 * the other empties another. */
static uint64_t ring_size(const struct nic_peer *peer, int priority)
{
    return (priority == NIC_LOW_PRIORITY ? 16 : 4) * peer->max_length[priority];
}

static uint64_t link_size(const struct nic_peer *peer)
{
    return sizeof(struct nic_shared_link) +
           2 * (ring_size(peer, NIC_LOW_PRIORITY) + ring_size(peer, NIC_HIGH_PRIORITY));
}

static void rings_set(struct nic_peer *peer, void *memory)
{
    struct nic_shared_link *link = memory;
    uint8_t *place = (uint8_t *)memory + sizeof(*link);
    int mine = peer->accepted ? 1 : 0;
    peer->link_memory = memory;
    peer->link_size = link_size(peer);
    peer->mine = &link->end[mine];
    peer->theirs = &link->end[1 - mine];
    for (int end = 0; end < 2; end++) {
        for (int i = NIC_PRIORITIES; i-- > 0;) {
            struct nic_ring *ring = end == mine ? &peer->out[i] : &peer->in[i];
            *ring = (struct nic_ring){.base = place, .size = ring_size(peer, i)};
            place += ring->size;
        }
    }
}

static int welcome_send(struct nic_peer *peer)
{
    struct nic_port *port = peer->port;
    struct nic_handshake welcome;
    void *memory;
    int fd;
    nic__hello_fill(port, &welcome, NIC_WELCOME);
    if (RAND_bytes((uint8_t *)&peer->link_name, sizeof(peer->link_name)) != 1)
        return -EIO;
    peer->link_name |= 1; /* 0 stands for all */
    welcome.link = peer->link_name;
    int status = nic__memory_make(link_size(peer), false, &fd, &memory);
    if (status != 0)
        return status;
    int fds[FDS_MAX] = {fd, port->shared_fd, port->doorbell.fd, port->wire_fd};
    status = nic__handshake_send(peer->socket.fd, &welcome, fds, port->wire != NULL ? 4 : 3);
    close(fd);
    if (status == 0)
        rings_set(peer, memory);
    else
        munmap(memory, link_size(peer));
    return status;
}

int nic__welcome(struct nic_peer *peer)
{
    int status = welcome_send(peer);
    peer->crowded = status == -ETOOMANYREFS; /* as in nic__dial */
    if (peer->crowded)
        return 0;
    if (status == 0)
        status = nic__peer_up(peer);
    if (status == 0)
        peer->port->shortage_logged = false; /* it is over */
    return status;
}

static bool is_shortage(int status)
{
    return status == -EMFILE || status == -ENFILE;
}

/* This process has no descriptor for a connection. Asks the user to close one that is idle, at most
 * ten times a second. */
static void shortage_note(struct nic_port *port)
{
    enum { ASK_NS = 100000000 };
    uint64_t now = nic__now();
    if (!port->shortage_logged)
        nic__log(port, NIC_LOG_WARN,
                 "no descriptor is left: new connections wait until others end (ulimit -n)");
    port->shortage_logged = true;
    if (port->crowded || now < port->crowded_ns)
        return;
    port->crowded_ns = now + ASK_NS;
    port->crowded = true;
    atomic_fetch_add(&port->event_count, 1);
}

/* The accepting port has no descriptor for us: dials again later, each time after twice the time,
 * until connect_timeout_ms have passed. It does not wait in the backlog, where the descriptors of
 * its HELLO would count as in transit, and the kernel bounds their number for each user. */
static int wait_in_line(struct nic_peer *peer)
{
    enum { FIRST_NS = 2000000, MOST_NS = 100000000 };
    if (peer->line_ns == 0)
        nic__log(peer->port, NIC_LOG_INFO, "%s:%u has no descriptor left: waiting", peer->host,
                 peer->number);
    peer->line_ns = peer->line_ns == 0            ? FIRST_NS
                    : peer->line_ns < MOST_NS / 2 ? 2 * peer->line_ns
                                                  : MOST_NS;
    peer->retry_ns = nic__now() + peer->line_ns;
    nic__source_remove(peer->port, &peer->socket);
    atomic_store(&peer->state, NIC_DIALLING);
    return 0;
}

/* HELLO came: goes up, now or later, or says why not. */
static int hello_handle(struct nic_peer *peer, struct received *received)
{
    if (received->handshake.kind != NIC_HELLO || peer->their_port != NULL)
        return -EPROTO;
    int status = shared_take(peer, received, 0);
    if (status != 0)
        return status;
    process_find(peer, &received->handshake);
    return nic__welcome(peer);
}

static int refusal_error(const struct nic_handshake *handshake)
{
    return handshake->error > 0 && handshake->error < 4096 ? -handshake->error : -EPROTO;
}

/* The accepting side chooses the name of a connection, and memory is exposed to names: a peer with
 * the name of another connection could write to memory exposed to that one. Only a connection to
 * ourselves has two ends with one name here. */
static bool name_is_taken(struct nic_peer *peer, uint64_t name)
{
    struct nic_port *port = peer->port;
    bmi_lock_take(&port->lock);
    struct nic_peer *each = port->peers;
    while (each != NULL && (each == peer || each->link_name != name))
        each = each->next;
    bmi_lock_give(&port->lock);
    return each != NULL && peer->pid != getpid();
}

static int welcome_handle(struct nic_peer *peer, struct received *received)
{
    const struct nic_handshake *handshake = &received->handshake;
    void *memory;
    if (handshake->kind == NIC_REFUSE && is_shortage(refusal_error(handshake)))
        return wait_in_line(peer);
    if (handshake->kind == NIC_REFUSE)
        return refusal_error(handshake);
    if (handshake->kind != NIC_WELCOME || handshake->link == 0 ||
        name_is_taken(peer, handshake->link))
        return -EPROTO;
    int status = shared_take(peer, received, 1);
    if (status != 0)
        return status;
    status = nic__memory_map(received->fds[0], link_size(peer), true, &memory);
    if (status != 0)
        return status;
    peer->link_name = handshake->link;
    rings_set(peer, memory);
    process_find(peer, handshake);
    return nic__peer_up(peer);
}

/* Whether enough addresses are free to map the arena. An unused arena costs its maker nothing, but
 * it costs addresses in each process that maps it. Without a mapping there are other ways to write
 * there. */
static bool arena_fits(const struct nic_peer *peer, uint64_t length)
{
    const uint64_t OF_ONE = UINT64_C(1) << 42, OF_ALL = UINT64_C(1) << 45;
    return length <= OF_ONE - peer->arena_bytes && length <= OF_ALL - peer->port->arena_bytes;
}

static int arena_handle(struct nic_peer *peer, struct received *received)
{
    uint32_t index = received->handshake.index;
    uint64_t length = received->handshake.length;
    void *memory;
    if (peer->port->options.refuse_mapping || received->cut)
        return 0; /* there are other ways to write there */
    if (index >= NIC_ARENAS_MAX || atomic_load(&peer->arenas[index]) != NULL ||
        received->count != 1 || length == 0 || length >> NIC_ARENA_BITS != 0)
        return -EPROTO;
    if (!arena_fits(peer, length))
        return 0;
    struct nic_mapping *mapping = malloc(sizeof(*mapping));
    int status =
        mapping == NULL ? -ENOMEM : nic__memory_map(received->fds[0], length, true, &memory);
    if (status != 0) {
        free(mapping);
        return status == -ENOMEM ? 0 : status;
    }
    *mapping = (struct nic_mapping){.base = memory, .length = length};
    peer->arena_bytes += length;
    peer->port->arena_bytes += length;
    atomic_store_explicit(&peer->arenas[index], mapping, memory_order_release);
    return 0;
}

/* One message, whose length and first fields are checked here. */
static int handshake_handle(struct nic_peer *peer, struct received *received, ssize_t length)
{
    const struct nic_handshake *handshake = &received->handshake;
    if (length < (ssize_t)offsetof(struct nic_handshake, index) || handshake->magic != NIC_MAGIC)
        return -EPROTO;
    if (handshake->version != NIC_VERSION) {
        nic__log(peer->port, NIC_LOG_WARN, "peer (pid %d) speaks version %u of the NIC, we %d",
                 peer->pid, handshake->version, NIC_VERSION);
        return -EPROTONOSUPPORT;
    }
    if (length != (ssize_t)sizeof(*handshake))
        return -EPROTO;
    if (atomic_load(&peer->state) == NIC_HANDSHAKE)
        return peer->accepted ? hello_handle(peer, received) : welcome_handle(peer, received);
    if (handshake->kind == NIC_ARENA)
        return arena_handle(peer, received);
    if (handshake->kind == NIC_REFUSE) /* it has welcomed us, and then found no room */
        return refusal_error(handshake);
    if (handshake->kind != NIC_BYE)
        return -EPROTO;
    peer->said_bye = true;
    return 0;
}

static void refuse(struct nic_port *port, int fd, int status)
{
    struct nic_handshake refusal;
    nic__hello_fill(port, &refusal, NIC_REFUSE);
    refusal.error = -status;
    nic__handshake_send(fd, &refusal, NULL, 0);
    nic__count_own(&port->counters.refused, 1);
}

/* Logs a connection that ends before it is up, or by a breach of rules. */
static void end_log(struct nic_port *port, int pid, unsigned uid, int status)
{
    nic__log(port, NIC_LOG_WARN, "peer (pid %d of user %u): %s", pid, uid, strerror(-status));
}

/* The socket has ended. */
static void socket_gone(struct nic_peer *peer)
{
    peer->remote_gone = true;
    nic__source_remove(peer->port, &peer->socket);
    nic__peer_end(peer, peer->said_bye ? 0 : -ECONNRESET);
    nic__attention(peer->port); /* a peer that was down already may now be freed */
}

void nic__socket_ready(struct nic_peer *peer, uint32_t events)
{
    enum { TURN = 16 };
    (void)events;
    for (int i = 0; i < TURN && peer->socket.fd >= 0; i++) {
        struct received received;
        ssize_t length = handshake_receive(peer->socket.fd, &received);
        if (length == -EAGAIN || length == -EINTR)
            return;
        if (length <= 0) {
            received_close(&received); /* an empty message may carry descriptors */
            socket_gone(peer);
            return;
        }
        int status = peer->hung_up ? 0 : handshake_handle(peer, &received, length);
        received_close(&received);
        if (status == 0)
            continue;
        bool refused = peer->accepted && atomic_load(&peer->state) == NIC_HANDSHAKE;
        if (refused)
            refuse(peer->port, peer->socket.fd, status);
        if (refused && is_shortage(status))
            shortage_note(peer->port);
        else
            end_log(peer->port, peer->pid, peer->uid, status);
        nic__peer_end(peer, status);
        return;
    }
}

void nic__process_ended(struct nic_peer *peer)
{
    nic__socket_ready(peer, 0); /* what it said at last */
    peer->remote_gone = true;
    nic__source_remove(peer->port, &peer->process);
    nic__peer_end(peer, peer->said_bye ? 0 : -ECONNRESET);
}

/* Sends a REFUSE to an accepted connection, and closes it. A close with the peer's HELLO unread
 * would discard the REFUSE, so HELLO is read before; one that comes later finds the socket shut,
 * and the REFUSE there. */
static void turn_away(struct nic_port *port, int fd, int status)
{
    struct nic_handshake unread;
    refuse(port, fd, status);
    shutdown(fd, SHUT_RD);
    while (recv(fd, &unread, sizeof(unread), MSG_DONTWAIT) > 0)
        ;
    close(fd);
}

/* Takes one connection off the backlog by means of the reserved descriptor, and refuses it. Returns
 * 0 or an errno. */
static int accept_to_refuse(struct nic_port *port, int listener)
{
    if (port->reserve_fd < 0)
        return -EMFILE;
    close(port->reserve_fd);
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    int status = fd >= 0 ? 0 : -errno;
    if (fd >= 0)
        turn_away(port, fd, -EMFILE);
    port->reserve_fd = fcntl(port->epoll, F_DUPFD_CLOEXEC, 0);
    return status;
}

/* Returns 0, or the reason to refuse the connection. A connection of another user is refused
 * before its HELLO, since otherwise other users could use up all descriptors. */
static int accepted_add(struct nic_port *port, int fd)
{
    int pid = 0;
    unsigned uid = 0;
    int status = credentials_check(port, fd, &pid, &uid);
    if (status != 0) {
        end_log(port, pid, uid, status);
        return status;
    }
    struct nic_peer *peer = nic__peer_new(port);
    if (peer == NULL)
        return -ENOMEM;
    peer->accepted = true;
    peer->pid = pid;
    peer->uid = uid;
    peer->socket.fd = fd;
    atomic_store(&peer->state, NIC_HANDSHAKE);
    status = nic__source_add(port, &peer->socket, EPOLLIN | EPOLLRDHUP);
    if (status == 0) {
        nic__peer_add(peer);
        return 0;
    }
    peer->socket.fd = -1;
    nic__peer_free(peer);
    return status;
}

static void listeners_watch(struct nic_port *port, uint32_t events)
{
    bmi_lock_take(&port->lock);
    for (struct nic_listener *each = port->listeners; each != NULL; each = each->next) {
        struct epoll_event event = {.events = events, .data = {.ptr = &each->source}};
        epoll_ctl(port->epoll, EPOLL_CTL_MOD, each->source.fd, &event);
    }
    bmi_lock_give(&port->lock);
}

/* A connection that waits and can't be accepted would keep the descriptor readable all the time. */
static void listeners_rest(struct nic_port *port)
{
    enum { REST_NS = 100000000 };
    listeners_watch(port, 0);
    port->accept_ns = nic__now() + REST_NS;
}

void nic__listeners_resume(struct nic_port *port, uint64_t now)
{
    if (port->accept_ns == 0 || now < port->accept_ns)
        return;
    port->accept_ns = 0;
    listeners_watch(port, EPOLLIN);
}

/* As many as wait, at most `most`. Returns an errno, of which EAGAIN is that no more wait. */
static int connections_take(struct nic_port *port, int listener, int most)
{
    int status = 0;
    for (int i = 0; i < most && status == 0; i++) {
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            int refusal = accepted_add(port, fd);
            if (refusal != 0)
                turn_away(port, fd, refusal);
            continue;
        }
        status = -errno;
        if (is_shortage(status)) {
            shortage_note(port);
            status = accept_to_refuse(port, listener);
        }
    }
    return status;
}

void nic__listener_ready(struct nic_port *port, struct nic_listener *listener)
{
    enum { TURN = 64 };
    if (port->reserve_fd < 0)
        port->reserve_fd = fcntl(port->epoll, F_DUPFD_CLOEXEC, 0);
    int status = connections_take(port, listener->source.fd, TURN);
    if (is_shortage(status) || status == -ENOMEM || status == -ENOBUFS)
        listeners_rest(port);
}

static int socket_connect(int fd, const char *host, uint16_t number)
{
    struct sockaddr_un address;
    uint32_t length;
    int status = nic__address(host, number, &address, &length);
    if (status != 0)
        return status;
    return connect(fd, (struct sockaddr *)&address, length) == 0 ? 0 : -errno;
}

int nic__dial(struct nic_peer *peer)
{
    struct nic_port *port = peer->port;
    struct nic_handshake hello;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    int status = socket_connect(fd, peer->host, peer->number);
    if (status == -ECONNREFUSED && nic__host_is_here(peer->host))
        status = socket_connect(fd, NIC_THIS_HOST, peer->number);
    if (status == -ECONNREFUSED && *peer->host != '\0')
        status = socket_connect(fd, "", peer->number);
    if (status != 0)
        goto undo_fd;
    status = credentials_check(port, fd, &peer->pid, &peer->uid);
    if (status != 0) {
        nic__log(port, NIC_LOG_WARN, "%s:%u belongs to another user (%u)", peer->host, peer->number,
                 peer->uid);
        goto undo_fd;
    }
    int fds[FDS_MAX] = {port->shared_fd, port->doorbell.fd, port->wire_fd};
    nic__hello_fill(port, &hello, NIC_HELLO);
    status = nic__handshake_send(fd, &hello, fds, port->wire != NULL ? 3 : 2);
    peer->crowded = status == -ETOOMANYREFS; /* too many of this user's are on their way */
    if (status != 0 && status != -EPIPE) {   /* EPIPE: refused already; the socket holds why */
        status = peer->crowded ? -EAGAIN : status;
        goto undo_fd;
    }
    peer->socket.fd = fd;
    atomic_store(&peer->state, NIC_HANDSHAKE);
    status = nic__source_add(port, &peer->socket, EPOLLIN | EPOLLRDHUP);
    if (status == 0)
        return 0;
    peer->socket.fd = -1;
undo_fd:
    close(fd);
    return status;
}

void nic__arenas_tell(struct nic_peer *peer)
{
    struct nic_port *port = peer->port;
    uint32_t count = atomic_load(&port->arena_count);
    while (peer->arenas_told < count && peer->socket.fd >= 0) {
        struct nic_handshake message;
        nic__hello_fill(port, &message, NIC_ARENA);
        message.index = peer->arenas_told;
        message.length = port->arenas[peer->arenas_told].length;
        /* A full socket: again in a millisecond; until then there are other ways to write. */
        if (nic__handshake_send(peer->socket.fd, &message, &port->arenas[peer->arenas_told].fd,
                                1) != 0)
            return;
        peer->arenas_told++;
    }
}
