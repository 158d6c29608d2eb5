/* SPDX-License-Identifier: BSD-3-Clause
 *
 * relay_fault.c - a peer in the middle that relays, byte for byte, all bytes of two others, nonces,
 * incarnations and proofs included, so that each takes its connection for one to the other.
 *
 * P and X are honest processes with the library; this process is M, with sockets alone. X dials M,
 * which dials P, and P looks X up: the request must not come through M. P dials M, which dials X,
 * and X has dialled P: messages of P to M's address must come through M, not go to X. And M is
 * connected to P in X's name, silent: P's first exchange with X does not wait for M. On one host
 * with three ports, on three addresses of one host, on three hosts, which are network namespaces,
 * and over Unix sockets between processes of three users.
 *
 * usage: relay_fault [three|namespaces|users]
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "namespaces.h"
#include "raw_peer.h"
#include "serve.h"

enum { NOBODY = 65534 };
enum { CALL_TAG = 3, HELLO_TAG = 4, ANSWER_TAG = 5, ROUNDS = 8 };
enum { ENDS_ALL = 0, CALL, HELLO, RESTART }; /* orders */

struct order {
    int64_t kind;
    uint64_t number;
    char url[BMI_MAX_ADDR_LEN];
};

/* ---- P and X --------------------------------------------------------------------------------- */

struct answer {
    struct noted noted;
    uint64_t number;
};
static struct answer answers[64];
static unsigned answer_count;

/* A call is answered with the next number; messages of HELLO, and of M, are not. */
static void process_called(const struct BMI_unexpected_info *info)
{
    if (info->tag == CALL_TAG && info->size == sizeof(uint64_t)) {
        struct answer *answer = &answers[answer_count++ % 64];
        memcpy(&answer->number, info->buffer, sizeof answer->number);
        answer->number++;
        note_send(&answer->noted, info->addr, &answer->number, sizeof answer->number, ANSWER_TAG);
    }
    must(BMI_unexpected_free(info->addr, info->buffer), "BMI_unexpected_free");
}

static void process_start(const char *host, int channel)
{
    char address[64], listening[BMI_MAX_ADDR_LEN];
    snprintf(address, sizeof address, "%s://%s:0", test_scheme(), host);
    if (strcmp(host, "@") == 0)
        strcpy(address, "unix://@");
    serve(address, BMI_TCP_BIND_SPECIFIC, listening);
    /* no process may wait for M: such a wait would be longer than the test */
    must(BMI_set_info(0, BMI_SETTING, "connect_timeout_ms=600000"), "BMI_SETTING");
    operations_open();
    tell(channel, listening, sizeof listening);
}

static void process_stop(void)
{
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
}

static void process_send(const struct order *order, int channel)
{
    struct noted sent, received;
    uint64_t answered = 0;
    BMI_addr_t address;
    bool calls = order->kind == CALL;
    must(BMI_addr_lookup(&address, order->url), "BMI_addr_lookup");
    if (calls)
        note_receive(&received, address, &answered, sizeof answered, ANSWER_TAG);
    note_sendunexpected(&sent, address, &order->number, sizeof order->number,
                        calls ? CALL_TAG : HELLO_TAG);
    noted_good(&sent, calls ? "a call" : "a hello");
    if (calls)
        noted_good(&received, "the answer");
    CHECK(!calls || answered == order->number + 1, "the answer is wrong");
    tell_number(channel, order->kind);
}

static bool namespaces; /* each process has its own */

struct place {
    const char *host;
    uid_t user; /* 0: that of the test */
};

static int child_run(void *argument, int channel)
{
    const struct place *place = argument;
    const char *host = place->host;
    struct order order;
    CHECK(place->user == 0 || setuid(place->user) == 0, "setuid: %s", strerror(errno));
    if (namespaces)
        namespace_enter_child(channel);
    test_unexpected = process_called;
    process_start(host, channel);
    for (;;) {
        while (!heard(channel, 0))
            operations_step(5);
        hear(channel, &order, sizeof order);
        if (order.kind == ENDS_ALL)
            break;
        if (order.kind == RESTART) {
            process_stop();
            process_start(host, channel);
        } else {
            process_send(&order, channel);
        }
    }
    process_stop();
    return 0;
}

static void order_give(const struct child *child, int64_t kind, const char *url, uint64_t number)
{
    struct order order = {.kind = kind, .number = number};
    if (url != NULL)
        strcpy(order.url, url);
    tell(child->channel, &order, sizeof order);
}

/* ---- M --------------------------------------------------------------------------------------- */

struct stage {
    const char *hosts[3]; /* of P, X, and M */
    struct child p, x;
    char p_url[BMI_MAX_ADDR_LEN], x_url[BMI_MAX_ADDR_LEN], m_url[BMI_MAX_ADDR_LEN];
    int listener;
    struct chance chance;
};

/* Two connections, one to each side; bytes that come over one go out of the other. */
struct relay {
    int sockets[2];
    uint64_t secret, window[2];
    bool seen; /* the secret went through */
};

static void relay_pass(struct relay *relay, int from)
{
    uint8_t bytes[4096];
    ssize_t got = recv(relay->sockets[from], bytes, sizeof bytes, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got <= 0) {
        shutdown(relay->sockets[!from], SHUT_WR);
        close(relay->sockets[from]);
        relay->sockets[from] = -1;
        return;
    }
    for (ssize_t i = 0; i < got; i++) { /* little-endian, as in this machine's memory */
        relay->window[from] = relay->window[from] >> 8 | (uint64_t)bytes[i] << 56;
        relay->seen = relay->seen || relay->window[from] == relay->secret;
    }
    if (relay->sockets[!from] >= 0)
        raw_write(relay->sockets[!from], bytes, (size_t)got);
}

/* Relays bytes, for 100 ms at most. Returns whether the channel of a child has something. */
static bool relay_step(struct relay *relay, int channel)
{
    struct pollfd polled[3] = {{.fd = relay->sockets[0], .events = POLLIN},
                               {.fd = relay->sockets[1], .events = POLLIN},
                               {.fd = channel, .events = POLLIN}};
    if (poll(polled, 3, 100) <= 0)
        return false;
    for (int i = 0; i < 2; i++)
        if (polled[i].revents != 0)
            relay_pass(relay, i);
    return polled[2].revents != 0;
}

/* Relays until the child has done what it was ordered to. */
static void relay_until(struct relay *relay, const struct child *child)
{
    uint64_t until = now_ns() + UINT64_C(1000000) * TEST_BOUND_MS;
    while (!relay_step(relay, child->channel))
        CHECK(now_ns() < until, "%s does not end what it was ordered", child->name);
    hear_number(child->channel);
}

/* Relays until the secret has gone through. */
static void relay_until_seen(struct relay *relay)
{
    uint64_t until = now_ns() + UINT64_C(1000000) * TEST_BOUND_MS;
    while (!relay->seen) {
        CHECK(now_ns() < until, "what P sent to M went elsewhere");
        relay_step(relay, -1);
    }
}

/* Accepts the connection of one side, and makes another one to `url`. */
static void relay_begin(struct relay *relay, const struct stage *stage, const char *url)
{
    relay->sockets[0] = raw_accept(stage->listener, stage->m_url);
    relay->sockets[1] = raw_connect_from(stage->hosts[2], url);
}

static void process_run(struct relay *relay)
{
    for (int i = 0; i < 2; i++)
        if (relay->sockets[i] >= 0)
            close(relay->sockets[i]);
}

/* ---- cases ----------------------------------------------------------------------------------- */

static void restart(struct child *child, char url[BMI_MAX_ADDR_LEN])
{
    order_give(child, RESTART, NULL, 0);
    hear(child->channel, url, BMI_MAX_ADDR_LEN);
}

static uint64_t ordered(struct stage *stage, struct child *child, int64_t kind, const char *url)
{
    uint64_t number = chance_next(&stage->chance);
    order_give(child, kind, url, number);
    return number;
}

/* X dials M, which dials P. P calls X. */
static void between_two_that_do_not_know(struct stage *stage)
{
    struct relay relay = {.seen = false};
    ordered(stage, &stage->x, HELLO, stage->m_url);
    relay_begin(&relay, stage, stage->p_url);
    relay_until(&relay, &stage->x);
    relay.seen = false;
    relay.secret = ordered(stage, &stage->p, CALL, stage->x_url);
    relay_until(&relay, &stage->p);
    CHECK(!relay.seen, "the call of P to X came through M");
    process_run(&relay);
}

/* X has dialled P. P dials M, which dials X: P must reach M, and no other. */
static void hands_itself_over(struct stage *stage)
{
    struct relay relay = {.sockets = {-1, -1}};
    ordered(stage, &stage->x, HELLO, stage->p_url);
    relay_until(&relay, &stage->x);
    relay.secret = ordered(stage, &stage->p, HELLO, stage->m_url);
    relay_begin(&relay, stage, stage->x_url);
    relay_until(&relay, &stage->p);
    relay_until_seen(&relay);
    process_run(&relay);
}

/* M is connected to P with X's incarnation and listen address, and is silent. */
static void in_the_name_of_another(struct stage *stage)
{
    struct raw_hello mine = raw_hello_make(&stage->chance), theirs;
    struct relay nothing = {.sockets = {-1, -1}};
    close(raw_join(stage->x_url, &mine, &theirs));
    strcpy(mine.listen, stage->x_url);
    memcpy(mine.incarnation, theirs.incarnation, sizeof mine.incarnation);
    int liar = raw_join(stage->p_url, &mine, NULL);
    ordered(stage, &stage->p, CALL, stage->x_url);
    relay_until(&nothing, &stage->p);
    close(liar);
}

/* One end in the namespace of the process, one at the bridge in that of this process. */
static void link_make(const struct child *child, const char *host)
{
    CHECK(namespace_run(getpid(),
                        "ip link add bmi_%s type veth peer name bmi_link netns %d && "
                        "ip link set bmi_%s master bmi_bridge && ip link set bmi_%s up",
                        child->name, (int)child->pid, child->name, child->name) &&
              namespace_run(child->pid,
                            "ip addr add %s/24 dev bmi_link && ip link set bmi_link up && "
                            "ip link set lo up",
                            host),
          "no link to %s", child->name);
    tell_number(child->channel, 0);
}

static void namespaces_join(const struct stage *stage)
{
    namespace_check_child(stage->p.channel);
    namespace_check_child(stage->x.channel);
    if (!namespace_enter() ||
        !namespace_run(getpid(),
                       "ip link set lo up && ip link add bmi_bridge type bridge && "
                       "ip addr add %s/24 dev bmi_bridge && ip link set bmi_bridge up",
                       stage->hosts[2]))
        test_skip("cannot make a bridge (ip, nsenter)");
    link_make(&stage->p, stage->hosts[0]);
    link_make(&stage->x, stage->hosts[1]);
}

static void run(const char *p, const char *x, const char *m, bool users)
{
    static void (*const cases[])(struct stage *) = {between_two_that_do_not_know, hands_itself_over,
                                                    in_the_name_of_another};
    struct stage stage = {.hosts = {p, x, m}, .chance = {.state = test_seed()}};
    struct place places[] = {{p, users ? NOBODY : 0}, {x, users ? NOBODY - 1 : 0}};
    stage.p = child_start("P", child_run, &places[0]);
    stage.x = child_start("X", child_run, &places[1]);
    if (namespaces)
        namespaces_join(&stage);
    hear(stage.p.channel, stage.p_url, sizeof stage.p_url);
    hear(stage.x.channel, stage.x_url, sizeof stage.x_url);
    stage.listener = raw_bind(m, stage.m_url);
    CHECK(listen(stage.listener, 8) == 0, "listen");
    for (unsigned c = 0; c < sizeof cases / sizeof cases[0]; c++)
        for (int round = 0; round < ROUNDS; round++) { /* either incarnation may be the greater */
            cases[c](&stage);
            restart(&stage.p, stage.p_url);
            restart(&stage.x, stage.x_url);
        }
    order_give(&stage.p, ENDS_ALL, NULL, 0);
    order_give(&stage.x, ENDS_ALL, NULL, 0);
    child_end(&stage.p);
    child_end(&stage.x);
    close(stage.listener);
    printf("  P at %s, X at %s, M at %s: nothing was taken over\n", p, x, m);
}

int main(int argc, char **argv)
{
    test_begin("relay_fault", 60);
    const char *where = argc > 1 ? argv[1] : "";
    namespaces = strcmp(where, "namespaces") == 0;
    if (namespaces) {
        namespaces_needed();
        run("10.97.0.1", "10.97.0.2", "10.97.0.3", false);
    } else if (strcmp(where, "three") == 0) {
        run("127.0.0.2", "127.0.0.3", "127.0.0.4", false);
    } else if (strcmp(where, "users") == 0) {
        if (geteuid() != 0)
            test_skip("needs root, to start processes of other users");
        setenv("BMI_UNIX_OTHER_USERS", "on", 1);
        run("@", "@", "@", true);
    } else {
        run("127.0.0.1", "127.0.0.1", "127.0.0.1", false);
    }
    return test_passed();
}
