/* SPDX-License-Identifier: BSD-3-Clause
 *
 * connect_test.c - how links come and go: numeric hosts and names, refusal, several addresses of a
 * name, closing at every stage, listening, running out of descriptors, options. Both ends are the
 * method's unless a test says otherwise. Stands in for getaddrinfo, for the names below, and for
 * getifaddrs (the linker's --wrap).
 */
#include <CUnit/Basic.h>
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "methods/ip/ip.h"
#include "methods/stream/fake_core.h"

extern const struct bmi_method bmi__method_tcp;

static uint8_t into[4096];
static _Thread_local volatile char each_threads_own[1 << 20]; /* threads have room for that, too */
static char bound[128];
static int port;
static int held[2]; /* that port of 127.0.0.2 and of 127.0.0.3, bound but not listening */

/* Binds a socket to the port of the host without listening, so that no other process listens
 * there and the kernel refuses connections. Returns it, or -1 where another process has the
 * port. */
static int port_hold(const char *host, int number)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)number)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    inet_pton(AF_INET, host, &at.sin_addr);
    if (bind(fd, (struct sockaddr *)&at, sizeof(at)) == 0)
        return fd;
    CU_ASSERT_EQUAL(errno, EADDRINUSE);
    close(fd);
    return -1;
}

static void port_release(int fd)
{
    if (fd >= 0)
        close(fd);
}

static void neighbours_release(void)
{
    port_release(held[0]);
    port_release(held[1]);
}

enum { TRIES = 20 }; /* other programs listen here, too, at ports of their own */

static void setup(void)
{
    for (int i = 0; i < TRIES; i++) {
        fake_start();
        port = fake_listen(bound, sizeof(bound));
        held[0] = port_hold("127.0.0.2", port);
        held[1] = port_hold("127.0.0.3", port);
        if (held[0] >= 0 && held[1] >= 0)
            return;
        neighbours_release();
        CU_ASSERT_EQUAL(fake_stop(), 0);
    }
    CU_FAIL_FATAL("no port is free on three hosts");
}

static void teardown(void)
{
    neighbours_release();
    CU_ASSERT_EQUAL(fake_stop(), 0);
    CU_ASSERT_EQUAL(fake_counters[BMI_COUNT_LINKS], 0);
}

static int descriptors_open(void)
{
    int count = 0;
    for (int fd = 0; fd < 256; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

static int dial(const char *address, struct fake_owner *owner)
{
    return fake_dial(address, owner, into);
}

static void header_send(struct fake_owner *owner, struct bmi_frame *frame, uint32_t sequence)
{
    memset(frame, 0, sizeof(*frame));
    fake_header_write(frame->header, sequence, 0, 0);
    bmi__method_tcp.send(owner->link, frame);
    bmi__method_tcp.flush(owner->link);
}

static void frames_go_both_ways(void)
{
    struct fake_owner here;
    struct bmi_frame early, late, back;
    setup();
    CU_ASSERT_EQUAL(dial(bound, &here), 0);
    header_send(&here, &early, 1); /* before the link is up */
    CU_ASSERT_EQUAL(here.sent, 0);
    CU_ASSERT(FAKE_UNTIL(here.ups == 1 && fake_accepted_count == 1));
    struct fake_owner *there = &fake_accepted[0];
    CU_ASSERT(FAKE_UNTIL(there->frames == 1));
    CU_ASSERT_EQUAL(here.sent, 1);
    header_send(&here, &late, 2);
    header_send(there, &back, 3);
    CU_ASSERT(FAKE_UNTIL(there->frames == 2 && here.frames == 1));
    CU_ASSERT_EQUAL(there->last.sequence, 2);
    CU_ASSERT_EQUAL(here.last.sequence, 3);
    CU_ASSERT_STRING_EQUAL(here.host, "127.0.0.1");
    CU_ASSERT_STRING_EQUAL(there->host, "127.0.0.1");
    CU_ASSERT_EQUAL(memcmp(here.ends, there->ends, sizeof here.ends), 0);
    CU_ASSERT_NOT_EQUAL(memcmp(here.ends, here.ends + IP_ADDRESS_BYTES, IP_ADDRESS_BYTES), 0);
    CU_ASSERT_EQUAL(fake_counters[BMI_COUNT_LINKS], 2);
    CU_ASSERT_EQUAL(fake_counters[BMI_COUNT_LINKS_OPENED], 1);
    CU_ASSERT_EQUAL(fake_counters[BMI_COUNT_LINKS_ACCEPTED], 1);

    bmi__method_tcp.close(here.link, true);
    CU_ASSERT(FAKE_UNTIL(here.downs == 1 && there->downs == 1));
    CU_ASSERT_EQUAL(here.status, 0);
    CU_ASSERT_EQUAL(there->status, 0);
    teardown();
}

static void refusal_fails_waiting_frames(void)
{
    struct fake_owner here;
    struct bmi_frame frame;
    char address[64];
    setup();
    snprintf(address, sizeof(address), "127.0.0.2:%d", port);
    CU_ASSERT_EQUAL(dial(address, &here), 0);
    header_send(&here, &frame, 1);
    CU_ASSERT(FAKE_UNTIL(here.downs == 1));
    CU_ASSERT_EQUAL(here.ups, 0);
    CU_ASSERT_EQUAL(here.status, -ECONNREFUSED);
    CU_ASSERT_EQUAL(here.failed, 1);
    CU_ASSERT_EQUAL(here.last_error, -ECONNREFUSED);
    CU_ASSERT_EQUAL(fake_counters[BMI_COUNT_LINKS_FAILED], 1);
    teardown();
}

/* "localhost" may resolve to ::1 first, where no socket listens: the next address is tried. */
static void name_is_looked_up(void)
{
    struct fake_owner here;
    char address[64];
    setup();
    each_threads_own[0] = 1;
    snprintf(address, sizeof(address), "localhost:%d", port);
    CU_ASSERT_EQUAL(dial(address, &here), 0);
    CU_ASSERT(FAKE_UNTIL(here.ups == 1 || here.downs == 1));
    CU_ASSERT_EQUAL(here.ups, 1);
    CU_ASSERT_STRING_EQUAL(here.host, "127.0.0.1");
    teardown();
}

/* ---- names ---------------------------------------------------------------------------------- */

/* The result of looking up a name: an error of getaddrinfo, or addresses. */
static const struct known {
    const char *name;
    int answer;
    const char *addresses[3];
    int times; /* so many copies of the first one */
} known_names[] = {
    {.name = "none.test", .answer = EAI_NONAME},
    {.name = "again.test", .answer = EAI_AGAIN},
    {.name = "memory.test", .answer = EAI_MEMORY},
    {.name = "system.test", .answer = EAI_SYSTEM},
    {.name = "empty.test"},
    {.name = "refuses.test", .addresses = {"127.0.0.2", "127.0.0.3"}},
    {.name = "third.test", .addresses = {"127.0.0.2", "127.0.0.3", "127.0.0.1"}},
    {.name = "late.test", .addresses = {"127.0.0.1"}, .times = 40},
    {.name = "mute.test", .addresses = {"127.0.0.2"}, .times = 2},
    {.name = "then.test", .addresses = {"127.0.0.2", "127.0.0.1"}},
};

enum { OURS = 0x4000000 }; /* in ai_flags: not the C library's */

/* A name that begins with "slow" is looked up until `open`, then there is no such name. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    atomic_uint under_way, most, done;
    bool open, takes_signals;
} slow = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static int slow_look_up(void)
{
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    pthread_mutex_lock(&slow.lock);
    slow.takes_signals |= sigismember(&mask, SIGTERM) == 0;
    unsigned now = ++slow.under_way;
    if (now > slow.most)
        slow.most = now;
    while (!slow.open)
        pthread_cond_wait(&slow.changed, &slow.lock);
    slow.under_way--;
    slow.done++;
    pthread_mutex_unlock(&slow.lock);
    return EAI_NONAME;
}

static struct addrinfo *known_list(const struct known *known)
{
    struct item {
        struct addrinfo info;
        struct sockaddr_in to;
    };
    size_t count = known->times > 0 ? (size_t)known->times : 3;
    struct item *items = calloc(count, sizeof(*items));
    for (size_t i = 0; i < count; i++) {
        const char *address = known->addresses[known->times > 0 ? 0 : i];
        items[i].info = (struct addrinfo){.ai_flags = OURS,
                                          .ai_family = address ? AF_INET : AF_UNIX,
                                          .ai_addr = (struct sockaddr *)&items[i].to,
                                          .ai_addrlen = sizeof(items[i].to),
                                          .ai_next = i + 1 < count ? &items[i + 1].info : NULL};
        items[i].to.sin_family = AF_INET;
        if (address)
            inet_pton(AF_INET, address, &items[i].to.sin_addr);
    }
    return &items[0].info;
}

int __real_getaddrinfo(const char *host, const char *service, const struct addrinfo *hints,
                       struct addrinfo **list);
int __wrap_getaddrinfo(const char *host, const char *service, const struct addrinfo *hints,
                       struct addrinfo **list);
void __real_freeaddrinfo(struct addrinfo *list);
void __wrap_freeaddrinfo(struct addrinfo *list);

int __wrap_getaddrinfo(const char *host, const char *service, const struct addrinfo *hints,
                       struct addrinfo **list)
{
    if (strncmp(host, "slow", 4) == 0)
        return slow_look_up();
    for (size_t i = 0; i < sizeof(known_names) / sizeof(known_names[0]); i++) {
        if (strcmp(known_names[i].name, host) != 0)
            continue;
        errno = EMFILE; /* the error behind EAI_SYSTEM */
        *list = known_names[i].answer == 0 ? known_list(&known_names[i]) : NULL;
        return known_names[i].answer;
    }
    return __real_getaddrinfo(host, service, hints, list);
}

void __wrap_freeaddrinfo(struct addrinfo *list)
{
    if (list->ai_flags & OURS)
        free(list);
    else
        __real_freeaddrinfo(list);
}

/* Dials the name, and waits for the outcome. Returns the link's status; 0: it is up. */
static int dial_name(const char *name, struct fake_owner *here)
{
    char address[64];
    snprintf(address, sizeof(address), "%s:%d", name, port);
    CU_ASSERT_EQUAL(dial(address, here), 0);
    CU_ASSERT(FAKE_UNTIL(here->ups == 1 || here->downs == 1));
    return here->status;
}

static void names_and_their_addresses(void)
{
    struct fake_owner here[8];
    int descriptors = descriptors_open();
    setup();
    CU_ASSERT_EQUAL(dial_name("none.test", &here[0]), -BMI_EHOSTNTFD);
    CU_ASSERT_EQUAL(dial_name("again.test", &here[1]), -BMI_ETRYAGAIN);
    CU_ASSERT_EQUAL(dial_name("memory.test", &here[2]), -ENOMEM);
    CU_ASSERT_EQUAL(dial_name("system.test", &here[3]), -EMFILE);
    CU_ASSERT_EQUAL(dial_name("empty.test", &here[4]), -BMI_EADDRNTFD);
    CU_ASSERT_EQUAL(dial_name("refuses.test", &here[5]), -ECONNREFUSED);
    CU_ASSERT_EQUAL(dial_name("third.test", &here[6]), 0);
    CU_ASSERT_STRING_EQUAL(here[6].host, "127.0.0.1");
    CU_ASSERT_EQUAL(dial_name("late.test", &here[7]), 0); /* of many addresses the first ones
                                                           * count */
    teardown();
    CU_ASSERT_EQUAL(descriptors_open(), descriptors);
}

/* From now on, connections to the method's port on another host are neither made nor refused. */
static void neighbour_is_mute(int fillers[3])
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    inet_pton(AF_INET, "127.0.0.2", &at.sin_addr);
    CU_ASSERT_EQUAL(listen(held[0], 0), 0);
    for (int i = 0; i < 3; i++) {
        fillers[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        connect(fillers[i], (struct sockaddr *)&at, sizeof(at));
    }
}

/* An address that does not answer has its share of the time, then the next one is tried. */
static void addresses_that_do_not_answer(void)
{
    struct fake_owner here, there;
    int fillers[3], descriptors = descriptors_open();
    setup();
    neighbour_is_mute(fillers);
    fake_connect_timeout_ms = 100;
    int64_t start = fake_now_ms();
    CU_ASSERT_EQUAL(dial_name("mute.test", &here), -ETIMEDOUT);
    CU_ASSERT(fake_now_ms() - start >= 198); /* no share is below 500 ms or the whole time */
    CU_ASSERT_EQUAL(dial_name("then.test", &there), 0);
    CU_ASSERT_STRING_EQUAL(there.host, "127.0.0.1");
    fake_connect_timeout_ms = 10000;
    for (int i = 0; i < 3; i++)
        close(fillers[i]);
    teardown();
    CU_ASSERT_EQUAL(descriptors_open(), descriptors);
}

/* Look-ups that take long: a limited number runs at a time, and the others wait. A link that is
 * closed, or whose time is over, does not wait for its name, and the result is dropped. */
static void names_that_hang(void)
{
    enum { NAMES = 70, SOME = 20, AT_ONCE = 64 };
    struct fake_owner here[NAMES], good, late;
    char address[64];
    sigset_t mask;
    setup();
    for (int i = 0; i < NAMES; i++) {
        if (i == SOME) /* a look-up that returns at once is not delayed by the others */
            CU_ASSERT_EQUAL(dial_name("third.test", &good), 0);
        snprintf(address, sizeof(address), "slow%d.test:%d", i, port);
        CU_ASSERT_EQUAL(dial(address, &here[i]), 0);
        fake_drive(0);
    }
    CU_ASSERT(FAKE_UNTIL(slow.under_way == AT_ONCE));
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    CU_ASSERT_EQUAL(sigismember(&mask, SIGTERM), 0);
    static const int closed[] = {NAMES - 1, NAMES - 2, 1}; /* two wait, one is under way */
    for (int i = 0; i < 3; i++) {
        struct fake_owner *owner = &here[closed[i]];
        bmi__method_tcp.close(owner->link, false);
        CU_ASSERT(FAKE_UNTIL(owner->downs == 1));
        CU_ASSERT_EQUAL(owner->status, 0);
    }
    fake_connect_timeout_ms = 20;
    CU_ASSERT_EQUAL(dial_name("slow.test", &late), -ETIMEDOUT);
    fake_connect_timeout_ms = 10000;
    pthread_mutex_lock(&slow.lock);
    slow.open = true;
    pthread_cond_broadcast(&slow.changed);
    pthread_mutex_unlock(&slow.lock);
    for (int i = 0; i < NAMES; i++) {
        CU_ASSERT(FAKE_UNTIL(here[i].downs == 1));
        CU_ASSERT_EQUAL(here[i].status, i == 1 || i >= NAMES - 2 ? 0 : -BMI_EHOSTNTFD);
    }
    /* requests that were closed or expired while they waited never started */
    CU_ASSERT(FAKE_UNTIL(slow.done == NAMES - 2 && slow.under_way == 0));
    CU_ASSERT_EQUAL(slow.most, AT_ONCE);
    CU_ASSERT_FALSE(slow.takes_signals);
    teardown();
}

/* ---- closing -------------------------------------------------------------------------------- */

static void closed_at_every_stage(void)
{
    char name[64];
    setup();
    snprintf(name, sizeof(name), "localhost:%d", port);
    for (int passes = 0; passes < 8; passes++)
        for (int how = 0; how < 4; how++) {
            struct fake_owner here;
            struct bmi_frame frame;
            CU_ASSERT_EQUAL(dial(how & 1 ? name : bound, &here), 0);
            header_send(&here, &frame, 1);
            for (int i = 0; i < passes; i++)
                fake_drive(0);
            if (here.link)
                bmi__method_tcp.close(here.link, how & 2);
            CU_ASSERT(FAKE_UNTIL(here.downs == 1));
            CU_ASSERT_EQUAL(here.status, 0);
            CU_ASSERT_EQUAL(here.sent + here.failed, 1);
            if (how & 2)
                CU_ASSERT_EQUAL(here.sent, 1); /* lingering: also a link that was not up yet */
        }
    teardown();
}

static void stopped_in_the_midst(void)
{
    struct fake_owner here[20];
    struct bmi_frame frames[20];
    char name[64];
    setup();
    snprintf(name, sizeof(name), "localhost:%d", port);
    for (int i = 0; i < 20; i++) {
        CU_ASSERT_EQUAL(dial(i % 2 ? name : bound, &here[i]), 0);
        header_send(&here[i], &frames[i], 1);
        fake_drive(0);
    }
    teardown();
    for (int i = 0; i < 20; i++) {
        CU_ASSERT_EQUAL(here[i].downs, 1);
        CU_ASSERT_EQUAL(here[i].sent + here[i].failed, 1);
    }
}

static void listens_on_everything(void)
{
    struct fake_owner four, six;
    char address[128], where[128];
    int second = 0;
    setup();
    CU_ASSERT_EQUAL(bmi__method_tcp.listen(fake_state, ":0", 0, where, sizeof(where)), 0);
    CU_ASSERT_EQUAL(sscanf(strrchr(where, ':'), ":%d", &second), 1);
    CU_ASSERT(second > 0 && second != port);
    CU_ASSERT_NOT_EQUAL(where[0], ':'); /* something that can be dialled */

    snprintf(address, sizeof(address), "127.0.0.1:%d", second);
    CU_ASSERT_EQUAL(dial(address, &four), 0);
    CU_ASSERT(FAKE_UNTIL(four.ups == 1 && fake_accepted_count == 1));
    CU_ASSERT_STRING_EQUAL(fake_accepted[0].host, "127.0.0.1");
    CU_ASSERT_EQUAL(memcmp(four.ends, fake_accepted[0].ends, sizeof four.ends), 0);

    int probe = socket(AF_INET6, SOCK_STREAM, 0);
    struct sockaddr_in6 loopback = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    bool have_ipv6 = probe >= 0 && bind(probe, (struct sockaddr *)&loopback, sizeof(loopback)) == 0;
    close(probe);
    if (have_ipv6) {
        snprintf(address, sizeof(address), "[::1]:%d", second);
        CU_ASSERT_EQUAL(dial(address, &six), 0);
        CU_ASSERT(FAKE_UNTIL(six.ups == 1 && fake_accepted_count == 2));
        CU_ASSERT_STRING_EQUAL(fake_accepted[1].host, "::1");
        CU_ASSERT_EQUAL(memcmp(six.ends, fake_accepted[1].ends, sizeof six.ends), 0);
    } else {
        fprintf(stderr, "(no IPv6 here) ");
    }
    teardown();
}

/* Listens at the address, and outputs the address that peers dial. Returns the port. */
static int listen_at(const char *address, int flags, char *where, size_t size)
{
    int there = 0;
    CU_ASSERT_EQUAL(bmi__method_tcp.listen(fake_state, address, flags, where, size), 0);
    CU_ASSERT_EQUAL(sscanf(strrchr(where, ':'), ":%d", &there), 1);
    return there;
}

static bool reached(const char *host, int there)
{
    struct fake_owner here;
    char address[64];
    snprintf(address, sizeof(address), "%s:%d", host, there);
    CU_ASSERT_EQUAL(dial(address, &here), 0);
    CU_ASSERT(FAKE_UNTIL(here.ups == 1 || here.downs == 1));
    bool up = here.ups == 1;
    if (up) {
        bmi__method_tcp.close(here.link, false);
        CU_ASSERT(FAKE_UNTIL(here.downs == 1));
    }
    return up;
}

/* Listens on all of IPv6, at a port that is free on 127.0.0.1. Returns the port, which *fd
 * holds. */
static int listen_at_six(int *fd)
{
    char where[128];
    for (int i = 0; i < TRIES; i++) {
        int six = listen_at("[::1]:0", 0, where, sizeof(where));
        *fd = port_hold("127.0.0.1", six);
        if (*fd >= 0)
            return six;
    }
    CU_FAIL_FATAL("no port is free on 127.0.0.1");
    return -1;
}

/* All interfaces of the host's family, or that host alone. The reported port is the first one's. */
static void listens_on_a_family(void)
{
    char where[128];
    int first = 0, fd = -1;
    setup();
    int four = listen_at("127.0.0.1:0", 0, where, sizeof(where));
    CU_ASSERT(strncmp(where, "127.0.0.1:", 10) == 0);
    CU_ASSERT(reached("127.0.0.1", four));
    CU_ASSERT(reached("127.0.0.2", four));
    CU_ASSERT(!reached("127.0.0.2", port)); /* fake_listen binds to its host */
    if (bmi__method_tcp.listen(fake_state, "[::1]:0", BMI_TCP_BIND_SPECIFIC, where,
                               sizeof(where)) == 0) {
        int six = listen_at_six(&fd);
        CU_ASSERT(reached("[::1]", six));
        CU_ASSERT(!reached("127.0.0.1", six));
    } else {
        fprintf(stderr, "(no IPv6 here) ");
    }
    CU_ASSERT_EQUAL(bmi__method_tcp.option(NULL, fake_state, NULL, BMI_TCP_GET_PORT, &first, false),
                    0);
    CU_ASSERT_EQUAL(first, port);
    port_release(fd);
    teardown();
}

/* ---- this machine's interfaces -------------------------------------------------------------- */

static struct machine_interface {
    unsigned flags;
    const char *address;
    struct sockaddr_in6 at;
    struct ifaddrs entry;
} interfaces[] = {
    {.flags = IFF_UP | IFF_LOOPBACK, .address = "127.0.0.1"},
    {.flags = IFF_UP | IFF_LOOPBACK, .address = "::1"},
    {.flags = 0, .address = "192.0.2.1"},
    {.flags = IFF_UP, .address = "fe80::5"},
    {.flags = IFF_UP, .address = NULL},
    {.flags = IFF_UP, .address = "2001:db8::6"},
    {.flags = IFF_UP, .address = "2001:db8::7"},
    {.flags = IFF_UP, .address = "192.0.2.8"},
    {.flags = IFF_UP, .address = "192.0.2.9"},
};

static int interfaces_shown; /* so many of them are there; 0: the machine's own */

int __real_getifaddrs(struct ifaddrs **list);
int __wrap_getifaddrs(struct ifaddrs **list);
void __real_freeifaddrs(struct ifaddrs *list);
void __wrap_freeifaddrs(struct ifaddrs *list);

int __wrap_getifaddrs(struct ifaddrs **list)
{
    if (interfaces_shown == 0)
        return __real_getifaddrs(list);
    *list = NULL;
    for (int i = interfaces_shown; i-- > 0;) {
        struct machine_interface *one = &interfaces[i];
        struct sockaddr_in *ipv4 = (struct sockaddr_in *)(void *)&one->at;
        one->entry = (struct ifaddrs){.ifa_next = *list, .ifa_flags = one->flags};
        if (one->address)
            one->entry.ifa_addr = (struct sockaddr *)&one->at;
        if (one->address && inet_pton(AF_INET6, one->address, &one->at.sin6_addr) == 1)
            one->at.sin6_family = AF_INET6;
        else if (one->address && inet_pton(AF_INET, one->address, &ipv4->sin_addr) == 1)
            ipv4->sin_family = AF_INET;
        *list = &one->entry;
    }
    return 0;
}

void __wrap_freeifaddrs(struct ifaddrs *list)
{
    if (interfaces_shown == 0)
        __real_freeifaddrs(list);
}

static bool told(const char *listening, int shown, const char *host)
{
    char where[128];
    interfaces_shown = shown;
    listen_at(listening, 0, where, sizeof(where));
    interfaces_shown = 0;
    return strncmp(where, host, strlen(host)) == 0;
}

/* Without a host, peers get this machine's first address that is not the loopback, not valid on
 * one link only, and not of an interface that is down; IPv4 first. */
static void tells_an_address_of_its_own(void)
{
    char where[128];
    setup();
    CU_ASSERT(told(":0", 9, "192.0.2.8:"));
    CU_ASSERT(told(":0", 7, "[2001:db8::6]:"));
    CU_ASSERT(told(":0", 5, "127.0.0.1:"));
    CU_ASSERT(told("0.0.0.0:0", 9, "192.0.2.8:"));
    CU_ASSERT(told("0.0.0.0:0", 7, "127.0.0.1:"));
    if (bmi__method_tcp.listen(fake_state, "[::1]:0", BMI_TCP_BIND_SPECIFIC, where,
                               sizeof(where)) == 0) {
        CU_ASSERT(told("[::]:0", 9, "[2001:db8::6]:"));
        CU_ASSERT(told("[::]:0", 5, "[::1]:"));
    }
    teardown();
}

static void address_in_use(void)
{
    char where[128] = "";
    setup();
    CU_ASSERT_EQUAL(bmi__method_tcp.listen(fake_state, bound, BMI_TCP_BIND_SPECIFIC, where,
                                           sizeof(where)),
                    -EADDRINUSE);
    CU_ASSERT_EQUAL(bmi__method_tcp.listen(fake_state, "127.0.0.1:x", 0, where, sizeof(where)),
                    -EINVAL);
    CU_ASSERT_STRING_EQUAL(where, "");
    teardown();
}

static int raw_connect(void)
{
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CU_ASSERT_EQUAL(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    return fd;
}

/* Polls until `count` links are accepted. A dropped connection is made again: valgrind emulates
 * the limit of descriptors itself, and accepts and drops the connections above it. */
static bool accepted_with_patience(int *peer, int count)
{
    char byte;
    int64_t end = fake_now_ms() + 60000;
    while (fake_accepted_count < count && fake_now_ms() < end) {
        fake_drive(5);
        if (fake_accepted_count < count && recv(*peer, &byte, 1, MSG_DONTWAIT) < 0 &&
            errno == EAGAIN)
            continue;
        if (fake_accepted_count < count) {
            close(*peer);
            *peer = raw_connect();
        }
    }
    return fake_accepted_count == count;
}

/* Out of descriptors the listener pauses; links go on; when one closes the next is accepted. */
static void out_of_descriptors(void)
{
    struct fake_owner *owner;
    struct rlimit before, tight;
    uint8_t header[BMI_FRAME_HEADER];
    setup();
    int first = fake_raw_peer(port, &owner, into);
    int late = raw_connect(); /* by the kernel: the method does not know yet */
    getrlimit(RLIMIT_NOFILE, &before);
    tight = before;
    tight.rlim_cur = (rlim_t)late + 1; /* nothing above the last one */
    CU_ASSERT_EQUAL(setrlimit(RLIMIT_NOFILE, &tight), 0);

    fake_header_write(header, 9, 0, 0);
    CU_ASSERT_EQUAL(send(first, header, sizeof(header), MSG_NOSIGNAL), sizeof(header));
    CU_ASSERT(FAKE_UNTIL(owner->frames == 1));
    for (int i = 0; i < 10; i++)
        fake_drive(0);
    CU_ASSERT_EQUAL(fake_accepted_count, 1);

    bmi__method_tcp.close(owner->link, false);
    CU_ASSERT(FAKE_UNTIL(owner->downs == 1));
    CU_ASSERT(accepted_with_patience(&late, 2));
    setrlimit(RLIMIT_NOFILE, &before);
    close(first);
    close(late);
    CU_ASSERT(FAKE_UNTIL(fake_accepted[1].downs == 1));
    teardown();
}

static void core_refuses_a_link(void)
{
    char byte;
    setup();
    fake_accepted_count = FAKE_OWNERS; /* the fake core has no place left */
    int peer = raw_connect();
    ssize_t moved;
    CU_ASSERT(FAKE_UNTIL((moved = recv(peer, &byte, 1, MSG_DONTWAIT)) == 0));
    close(peer);
    teardown();
}

static int buffer(struct bmi_link *link, int option, int value, bool set)
{
    int status = bmi__method_tcp.option(NULL, fake_state, link, option, &value, set);
    return status < 0 || set ? status : value;
}

/* Set before there is a connection: of this link alone, and in force when it is up. */
static void buffers_of_a_link_that_is_not_up(void)
{
    struct fake_owner one, other;
    setup();
    CU_ASSERT_EQUAL(dial(bound, &one), 0);
    CU_ASSERT_EQUAL(dial(bound, &other), 0);
    int usual = buffer(NULL, BMI_TCP_BUFFER_SEND_SIZE, 0, false);
    CU_ASSERT_EQUAL(buffer(one.link, BMI_TCP_BUFFER_SEND_SIZE, 70000, true), 0);
    CU_ASSERT_EQUAL(buffer(one.link, BMI_TCP_BUFFER_RECEIVE_SIZE, 60000, true), 0);
    CU_ASSERT_EQUAL(buffer(one.link, BMI_TCP_BUFFER_SEND_SIZE, 0, false), 70000);
    CU_ASSERT_EQUAL(buffer(other.link, BMI_TCP_BUFFER_SEND_SIZE, 0, false), usual);
    CU_ASSERT_EQUAL(buffer(NULL, BMI_TCP_BUFFER_SEND_SIZE, 0, false), usual);
    CU_ASSERT(FAKE_UNTIL(one.ups == 1 && other.ups == 1));
    CU_ASSERT_EQUAL(buffer(one.link, BMI_TCP_BUFFER_SEND_SIZE, 0, false), 70000);
    CU_ASSERT_EQUAL(buffer(one.link, BMI_TCP_BUFFER_RECEIVE_SIZE, 0, false), 60000);
    CU_ASSERT_NOT_EQUAL(buffer(other.link, BMI_TCP_BUFFER_SEND_SIZE, 0, false), 70000);
    teardown();
}

static void options(void)
{
    struct fake_owner here;
    int value = 0;
    setup();
    CU_ASSERT_EQUAL(bmi__method_tcp.option(NULL, fake_state, NULL, BMI_CHECK_INIT, &value, false),
                    -ENOSYS);
    value = -1;
    CU_ASSERT_EQUAL(bmi__method_tcp.option(NULL, fake_state, NULL, BMI_TCP_BUFFER_SEND_SIZE, &value,
                                           true),
                    -EINVAL);
    value = 70000;
    CU_ASSERT_EQUAL(bmi__method_tcp.option(NULL, fake_state, NULL, BMI_TCP_BUFFER_SEND_SIZE, &value,
                                           true),
                    -ENOSYS); /* the core's setting is the default */
    CU_ASSERT_EQUAL(dial(bound, &here), 0);
    CU_ASSERT(FAKE_UNTIL(here.ups == 1));
    CU_ASSERT_EQUAL(bmi__method_tcp.option(NULL, fake_state, here.link, BMI_TCP_BUFFER_SEND_SIZE,
                                           &value, true),
                    0);
    value = 0;
    CU_ASSERT_EQUAL(bmi__method_tcp.option(NULL, fake_state, here.link, BMI_TCP_BUFFER_SEND_SIZE,
                                           &value, false),
                    0);
    CU_ASSERT_EQUAL(value, 70000);
    value = 80000;
    CU_ASSERT_EQUAL(bmi__method_tcp.option(NULL, fake_state, here.link, BMI_TCP_BUFFER_RECEIVE_SIZE,
                                           &value, true),
                    0);
    value = 0;
    CU_ASSERT_EQUAL(bmi__method_tcp.option(NULL, fake_state, here.link, BMI_TCP_BUFFER_RECEIVE_SIZE,
                                           &value, false),
                    0);
    CU_ASSERT_EQUAL(value, 80000);
    CU_ASSERT_EQUAL(bmi__method_tcp.option(NULL, fake_state, here.link, BMI_TCP_CLOSE_SOCKET, NULL,
                                           true),
                    0);
    CU_ASSERT(FAKE_UNTIL(here.downs == 1));
    teardown();
}

/* Options of a descriptor that is no socket, for a method other than tcp. */
static void log_names_the_method(void)
{
    static const struct bmi_method other = {.name = "bmi_other", .schemes = "other"};
    ip_socket_set_option(NULL, &other, NULL, -1, SOL_SOCKET, SO_KEEPALIVE, 1, "SO_KEEPALIVE");
    CU_ASSERT_STRING_EQUAL(fake_logged, "other: cannot set SO_KEEPALIVE to 1: Bad file descriptor");
}

int main(void)
{
    CU_initialize_registry();
    CU_pSuite suite = CU_add_suite("tcp connect", NULL, NULL);
    CU_ADD_TEST(suite, frames_go_both_ways);
    CU_ADD_TEST(suite, refusal_fails_waiting_frames);
    CU_ADD_TEST(suite, name_is_looked_up);
    CU_ADD_TEST(suite, names_and_their_addresses);
    CU_ADD_TEST(suite, addresses_that_do_not_answer);
    CU_ADD_TEST(suite, names_that_hang);
    CU_ADD_TEST(suite, closed_at_every_stage);
    CU_ADD_TEST(suite, stopped_in_the_midst);
    CU_ADD_TEST(suite, listens_on_everything);
    CU_ADD_TEST(suite, listens_on_a_family);
    CU_ADD_TEST(suite, tells_an_address_of_its_own);
    CU_ADD_TEST(suite, address_in_use);
    CU_ADD_TEST(suite, out_of_descriptors);
    CU_ADD_TEST(suite, core_refuses_a_link);
    CU_ADD_TEST(suite, options);
    CU_ADD_TEST(suite, log_names_the_method);
    CU_ADD_TEST(suite, buffers_of_a_link_that_is_not_up);
    CU_basic_set_mode(CU_BRM_VERBOSE);
    CU_basic_run_tests();
    unsigned failures = CU_get_number_of_failures();
    CU_cleanup_registry();
    return failures > 0;
}
