/* SPDX-License-Identifier: BSD-3-Clause
 *
 * message_test.c - messages between two ports: classes, priorities, order, tokens, time-outs, and
 * refusals.
 */
#include "harness.h"
#include "internal.h"

static struct host server, client;

static void setup(void (*change)(struct nic_options *options))
{
    struct nic_options options;
    nic_options_default(&options);
    if (change != NULL)
        change(&options);
    hosts_pair(&server, &client, &options);
}

static void teardown(void)
{
    host_close(&client);
    host_close(&server);
}

static void a_message_of_each_length_arrives(void)
{
    static uint8_t data[1 << 15];
    setup(NULL);
    for (unsigned size = NIC_MIN_SIZE; size <= 15; size++)
        host_provide(&server, 2, size, NIC_LOW_PRIORITY);
    unsigned sent = 0;
    for (size_t length = 0; length <= sizeof(data);
         length = length < 300 ? length + 1 : length * 2) {
        pattern_fill(data, length, sent);
        unsigned size = nic_min_size_for_length(length);
        CU_ASSERT_EQUAL(host_send(&client, data, length, size, NIC_LOW_PRIORITY, 0), 0);
        sent++;
        CU_ASSERT_FATAL(UNTIL(server.received == sent && client.callbacks == sent));
        CU_ASSERT_EQUAL(server.length, length);
        CU_ASSERT_EQUAL(server.size, size);
        CU_ASSERT(pattern_is(server.message, length, sent - 1));
    }
    CU_ASSERT_EQUAL(client.failures, 0);
    CU_ASSERT(server.fast > 0 && server.fast < sent);
    teardown();
}

static void segments_are_gathered(void)
{
    static uint8_t data[3000];
    struct iovec iov[1000];
    setup(NULL);
    host_provide(&server, 1, 12, NIC_HIGH_PRIORITY);
    pattern_fill(data, sizeof(data), 5);
    size_t place = 0;
    for (unsigned i = 0; i < 1000; i++) { /* 0 to 5 bytes, and the rest */
        size_t length = i == 999 ? sizeof(data) - place : i % 6;
        iov[i] = (struct iovec){data + place, length};
        place += length;
    }
    int status = nic_send_with_callback(client.peer, iov, 1000, 12, NIC_HIGH_PRIORITY, NIC_BUFFERED,
                                        host_callback, &client);
    CU_ASSERT_EQUAL(status, 1);
    CU_ASSERT(UNTIL(server.received == 1));
    CU_ASSERT_EQUAL(server.length, sizeof(data));
    CU_ASSERT_EQUAL(server.priority, NIC_HIGH_PRIORITY);
    CU_ASSERT(pattern_is(server.message, sizeof(data), 5));
    CU_ASSERT_EQUAL(client.callbacks, 0);
    teardown();
}

struct order {
    uint32_t next[NIC_PRIORITIES];
    bool good;
};

static void order_check(struct host *host, struct nic_event *event)
{
    struct order *order = host->context;
    uint32_t number;
    memcpy(&number, event->message, sizeof(number));
    if (number != order->next[event->priority]++)
        order->good = false;
}

/* Many more than rings and tokens hold, with every length. */
static void messages_of_a_priority_keep_their_order(void)
{
    enum { COUNT = 6000 };
    static uint32_t data[2][8192];
    struct order order = {.good = true};
    uint32_t next[2] = {0, 0};
    setup(NULL);
    host_provide(&server, 4, 15, NIC_LOW_PRIORITY);
    host_provide(&server, 4, 12, NIC_HIGH_PRIORITY);
    server.on_message = order_check;
    server.context = &order;
    for (unsigned i = 0; i < 2 * COUNT; i++) {
        unsigned priority = i % 2, size = priority == NIC_LOW_PRIORITY ? 15 : 12;
        size_t length = 4 + (i * 2654435761u >> 7) % ((1u << size) - 3);
        int status;
        data[priority][0] = next[priority];
        while ((status = host_send(&client, data[priority], length, size,
                                   (enum nic_priority)priority, NIC_BUFFERED)) == -EAGAIN)
            CU_ASSERT_FATAL(hosts_drive());
        CU_ASSERT_FATAL(status >= 0);
        next[priority]++;
        if (status == 0) /* the number must stay as it is until it is copied */
            CU_ASSERT_FATAL(UNTIL(nic_num_send_tokens(client.port) == 256));
    }
    CU_ASSERT(UNTIL(server.received == 2 * COUNT));
    CU_ASSERT(order.good);
    CU_ASSERT_EQUAL(client.failures, 0);
    teardown();
}

/* At once, or not at all: it must not overtake waiting messages. */
static void short_ones_go_at_once_or_not_at_all(void)
{
    enum { LONG = 32768 };
    static uint8_t data[LONG];
    uint32_t head[NIC_HEAD / 4] = {0}, number = 0;
    struct order order = {.good = true};
    setup(NULL);
    host_provide(&server, 4, 15, NIC_LOW_PRIORITY);
    pattern_fill(data, sizeof data, 3);
    for (size_t length = 0; length <= 300; length++, number++) {
        head[0] = number;
        CU_ASSERT_TRUE_FATAL(nic_send_now(client.peer, head, data, length, 15));
        CU_ASSERT_FATAL(UNTIL(server.received == number + 1));
        CU_ASSERT_EQUAL(server.length, NIC_HEAD + length);
        CU_ASSERT(memcmp(server.message, head, NIC_HEAD) == 0);
        CU_ASSERT(pattern_is(server.message + NIC_HEAD, length, 3));
    }
    CU_ASSERT_EQUAL(client.callbacks, 0);

    order.next[NIC_LOW_PRIORITY] = number;
    server.on_message = order_check;
    server.context = &order;
    server.stopped = true;
    int status = 1;
    while (status == 1) { /* until one waits for room in the ring */
        memcpy(data, &number, sizeof number);
        status = host_send(&client, data, LONG, 15, NIC_LOW_PRIORITY, NIC_BUFFERED);
        number++;
    }
    CU_ASSERT_EQUAL(status, 0);
    head[0] = number;
    CU_ASSERT_FALSE(nic_send_now(client.peer, head, data, 8, 15));
    server.stopped = false;
    CU_ASSERT(UNTIL(server.received == number && client.callbacks == 1));
    CU_ASSERT_TRUE(nic_send_now(client.peer, head, data, 8, 15));
    CU_ASSERT(UNTIL(server.received == number + 1));
    CU_ASSERT(order.good);
    CU_ASSERT_FALSE(nic_send_now(client.peer, head, data, 8, 4));  /* class too small */
    CU_ASSERT_FALSE(nic_send_now(client.peer, head, data, 8, 99)); /* none */
    CU_ASSERT_FALSE(nic_send_now(client.peer, head, data, LONG, 15));
    host_close(&server);
    CU_ASSERT(UNTIL(client.downs == 1));
    CU_ASSERT_FALSE(nic_send_now(client.peer, head, data, 8, 15));
    host_close(&client);
}

static void a_message_waits_for_its_class_and_priority(void)
{
    setup(NULL);
    host_provide(&server, 1, 7, NIC_HIGH_PRIORITY);
    host_provide(&server, 1, 8, NIC_LOW_PRIORITY);
    CU_ASSERT_EQUAL(host_send(&client, "low", 4, 7, NIC_LOW_PRIORITY, 0), 0);
    CU_ASSERT_EQUAL(host_send(&client, "behind", 7, 8, NIC_LOW_PRIORITY, 0), 0);
    CU_ASSERT_EQUAL(host_send(&client, "high", 5, 7, NIC_HIGH_PRIORITY, 0), 0);
    CU_ASSERT(UNTIL(server.received == 1 && client.callbacks == 1)); /* high passes low */
    CU_ASSERT_STRING_EQUAL(server.message, "high");
    struct nic_statistics figures;
    bool waits = UNTIL((nic_statistics(server.port, &figures), figures.waited_for_buffer == 1));
    CU_ASSERT(waits);
    CU_ASSERT_EQUAL(server.received, 1);
    host_provide(&server, 1, 7, NIC_LOW_PRIORITY);
    CU_ASSERT(UNTIL(server.received == 3 && client.callbacks == 3));
    CU_ASSERT_STRING_EQUAL(server.message, "behind");
    CU_ASSERT_EQUAL(client.failures, 0);
    teardown();
}

static void resend_soon(struct nic_options *options)
{
    options->resend_timeout_ms = 50;
}

static void a_message_without_a_buffer_fails_in_time(void)
{
    setup(resend_soon);
    host_provide(&server, 1, 8, NIC_LOW_PRIORITY);
    CU_ASSERT_EQUAL(host_send(&client, "never", 6, 7, NIC_LOW_PRIORITY, 0), 0);
    CU_ASSERT_EQUAL(host_send(&client, "behind", 7, 8, NIC_LOW_PRIORITY, 0), 0);
    CU_ASSERT(UNTIL(client.callbacks == 2 && server.received == 1));
    CU_ASSERT_EQUAL(client.failures, 1);
    CU_ASSERT_STRING_EQUAL(server.message, "behind");
    struct nic_statistics figures;
    nic_statistics(client.port, &figures);
    CU_ASSERT_EQUAL(figures.timed_out, 1);
    CU_ASSERT_EQUAL(client.downs + server.downs, 0);
    teardown();
}

static void a_buffered_one_that_fails_ends_the_connection(void)
{
    setup(resend_soon);
    CU_ASSERT_EQUAL(host_send(&client, "never", 6, 7, NIC_LOW_PRIORITY, NIC_BUFFERED), 1);
    CU_ASSERT(UNTIL(client.downs == 1 && server.downs == 1));
    CU_ASSERT_EQUAL(client.down_status, -ETIMEDOUT);
    CU_ASSERT_EQUAL(server.received, 0);
    CU_ASSERT_EQUAL(host_send(&client, "more", 5, 7, NIC_LOW_PRIORITY, 0), -ENOTCONN);
    teardown();
}

static void two_tokens(struct nic_options *options)
{
    options->send_tokens = 2;
    options->receive_tokens = 2;
}

static void tokens_bound_outstanding_sends(void)
{
    setup(two_tokens);
    CU_ASSERT_EQUAL(nic_num_send_tokens(client.port), 2);
    CU_ASSERT_EQUAL(host_send(&client, "one", 4, 6, NIC_LOW_PRIORITY, 0), 0);
    CU_ASSERT_EQUAL(host_send(&client, "two", 4, 6, NIC_LOW_PRIORITY, 0), 0);
    CU_ASSERT_EQUAL(host_send(&client, "three", 6, 6, NIC_LOW_PRIORITY, 0), -EAGAIN);
    CU_ASSERT_EQUAL(nic_num_send_tokens(client.port), 0);
    host_provide(&server, 2, 6, NIC_LOW_PRIORITY);
    void *third = nic_dma_malloc(server.port, 64);
    CU_ASSERT_EQUAL(nic_provide_receive_buffer(server.port, third, 6, NIC_LOW_PRIORITY), -EAGAIN);
    CU_ASSERT(UNTIL(client.callbacks == 2));
    CU_ASSERT_EQUAL(nic_num_send_tokens(client.port), 2);
    for (unsigned i = 3; i < 200; i++) {
        CU_ASSERT_EQUAL(host_send(&client, "more", 5, 6, NIC_LOW_PRIORITY, 0), 0);
        CU_ASSERT_FATAL(UNTIL(client.callbacks == i));
    }
    teardown();
}

static void invalid_arguments_are_refused(void)
{
    static uint8_t data[1 << 16];
    setup(NULL);
    struct nic_port *port = client.port;
    CU_ASSERT_EQUAL(host_send(&client, data, 65, 6, NIC_LOW_PRIORITY, 0), -EMSGSIZE);
    CU_ASSERT_EQUAL(host_send(&client, data, 65536, 16, NIC_LOW_PRIORITY, 0), -EMSGSIZE);
    CU_ASSERT_EQUAL(host_send(&client, data, 8192, 13, NIC_HIGH_PRIORITY, 0), -EMSGSIZE);
    CU_ASSERT_EQUAL(nic_peer_max_length(client.peer, NIC_LOW_PRIORITY), 32768);
    CU_ASSERT_EQUAL(host_send(&client, data, 8, 5, NIC_LOW_PRIORITY, 0), -EINVAL);
    CU_ASSERT_EQUAL(host_send(&client, data, 8, 21, NIC_LOW_PRIORITY, 0), -EINVAL);
    CU_ASSERT_EQUAL(host_send(&client, data, 8, 6, (enum nic_priority)2, 0), -EINVAL);
    CU_ASSERT_EQUAL(nic_register_memory(port, data, 65), 0);
    CU_ASSERT_EQUAL(host_send(&client, data, 65, 7, NIC_LOW_PRIORITY, 0), 0);
    CU_ASSERT_EQUAL(nic_provide_receive_buffer(port, data + 64, 6, NIC_LOW_PRIORITY), -EFAULT);
    CU_ASSERT_EQUAL(nic_provide_receive_buffer(port, data, 6, NIC_LOW_PRIORITY), 0);
    CU_ASSERT_EQUAL(nic_provide_receive_buffer(port, data, 5, NIC_LOW_PRIORITY), -EINVAL);
    host_provide(&server, 1, 7, NIC_LOW_PRIORITY);
    CU_ASSERT(UNTIL(client.callbacks == 1));
    teardown();
}

static void a_waiting_send_can_be_taken_back(void)
{
    struct host mark;
    setup(NULL);
    nic_set_faults(client.port, client.peer, &(struct nic_faults){.dead_link = true});
    struct iovec iov = {.iov_base = "taken back", .iov_len = 11};
    CU_ASSERT_EQUAL(nic_send_with_callback(client.peer, &iov, 1, 6, NIC_LOW_PRIORITY, 0,
                                           host_callback, &mark),
                    0);
    CU_ASSERT_EQUAL(host_send(&client, "stays", 6, 6, NIC_LOW_PRIORITY, 0), 0);
    CU_ASSERT_EQUAL(nic_cancel_send(client.peer, &mark), true);
    CU_ASSERT_EQUAL(nic_cancel_send(client.peer, &mark), false);
    CU_ASSERT_EQUAL(nic_num_send_tokens(client.port), 255);
    nic_set_faults(client.port, NULL, &(struct nic_faults){0});
    host_provide(&server, 2, 6, NIC_LOW_PRIORITY);
    CU_ASSERT(UNTIL(server.received == 1 && client.callbacks == 1));
    CU_ASSERT_STRING_EQUAL(server.message, "stays");
    CU_ASSERT_EQUAL(nic_cancel_send(client.peer, &client), false);
    teardown();
}

static void lost_packets_are_sent_again_in_order(void)
{
    enum { COUNT = 60 };
    static uint32_t data[COUNT];
    struct order order = {.good = true};
    setup(NULL);
    nic_set_faults(client.port, NULL, &(struct nic_faults){.drop_every = 3});
    host_provide(&server, 8, 6, NIC_LOW_PRIORITY);
    server.on_message = order_check;
    server.context = &order;
    for (unsigned i = 0; i < COUNT; i++) {
        data[i] = i;
        CU_ASSERT_EQUAL(host_send(&client, &data[i], 4, 6, NIC_LOW_PRIORITY, i % 2), 0);
    }
    CU_ASSERT(UNTIL(server.received == COUNT && client.callbacks == COUNT));
    CU_ASSERT(order.good);
    struct nic_statistics figures;
    nic_statistics(client.port, &figures);
    CU_ASSERT_EQUAL(figures.lost, COUNT / 3);
    CU_ASSERT_EQUAL(figures.sent, COUNT);
    teardown();
}

/* A lost message that finds its ring full at the next attempt waits without constant retries. */
static void lost_packets_wait_for_room(void)
{
    static uint8_t data[32768];
    setup(NULL);
    nic_set_faults(client.port, NULL, &(struct nic_faults){.drop_every = 1});
    server.stopped = true;
    for (unsigned i = 0; i < 4; i++) /* three of them fill it */
        CU_ASSERT_EQUAL(host_send(&client, data, 32768, 15, NIC_LOW_PRIORITY, NIC_BUFFERED), 0);
    CU_ASSERT(UNTIL(client.callbacks == 3));
    const struct nic_send *last = client.peer->waiting[NIC_LOW_PRIORITY].head;
    CU_ASSERT_PTR_NOT_NULL_FATAL(last);
    while (!last->lost_once || nic__now() <= last->retry_ns)
        CU_ASSERT_FATAL(hosts_drive());
    while (hosts_drive_once())
        continue;
    CU_ASSERT(nic_arm(client.port));
    host_provide(&server, 4, 15, NIC_LOW_PRIORITY);
    server.stopped = false;
    CU_ASSERT(UNTIL(server.received == 4 && client.callbacks == 4));
    teardown();
}

static void a_dead_link_fails_its_sends(void)
{
    setup(resend_soon);
    nic_set_faults(client.port, NULL, &(struct nic_faults){.dead_link = true});
    CU_ASSERT_EQUAL(host_send(&client, "lost", 5, 6, NIC_HIGH_PRIORITY, 0), 0);
    CU_ASSERT(UNTIL(client.callbacks == 1));
    CU_ASSERT_EQUAL(client.last_status, -ETIMEDOUT);
    CU_ASSERT_EQUAL(host_send(&client, "lost", 5, 6, NIC_HIGH_PRIORITY, NIC_BUFFERED), 0);
    CU_ASSERT(UNTIL(client.downs == 1));
    CU_ASSERT_EQUAL(client.down_status, -ETIMEDOUT);
    teardown();
}

static void preset(struct nic_options *options)
{
    CU_ASSERT_EQUAL(nic_options_preset(options, "token-ring"), -EINVAL);
    CU_ASSERT_EQUAL(nic_options_preset(options, "myrinet2000"), 0);
}

/* Benchmarks measure the delays; here: nothing is early, and all arrives. */
static void the_timing_model_delays(void)
{
    enum { COUNT = 20, LENGTH = 32768 };
    setup(preset);
    uint8_t *data = nic_dma_malloc(client.port, LENGTH);
    pattern_fill(data, LENGTH, 1);
    host_provide(&server, 4, 15, NIC_LOW_PRIORITY);
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (unsigned i = 0; i < COUNT; i++)
        CU_ASSERT_EQUAL(host_send(&client, data, LENGTH, 15, NIC_LOW_PRIORITY, 0), 0);
    CU_ASSERT(UNTIL(server.received == COUNT && client.callbacks == COUNT));
    clock_gettime(CLOCK_MONOTONIC, &end);
    double seconds =
        (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec);
    CU_ASSERT(seconds >= (double)COUNT * LENGTH / 250e6);
    CU_ASSERT(pattern_is(server.message, LENGTH, 1));
    teardown();
}

/* The number of looks that find the message, by a poller that arms before it sleeps. */
static unsigned looks_until_a_message(void)
{
    enum { MOST = 100 };
    unsigned looks = 0;
    struct nic_event *event;
    do {
        event = nic_receive(server.port);
        looks++;
        CU_ASSERT(event->type != NIC_NO_RECV_EVENT || !nic_arm(server.port));
    } while (event->type == NIC_NO_RECV_EVENT && looks < MOST);
    CU_ASSERT(event->type == NIC_RECV_EVENT);
    nic_unknown(server.port, event);
    return looks;
}

static void one_of_many_that_wakes_us_is_found_at_once(void)
{
    enum { PEERS = 120 };
    struct nic_peer *peers[PEERS];
    host_open(&server, NULL);
    host_open(&client, NULL);
    uint16_t number = host_listen(&server, "many");
    host_provide(&server, 4, 6, NIC_LOW_PRIORITY);
    for (int i = 0; i < PEERS; i++)
        CU_ASSERT_EQUAL_FATAL(nic_connect(client.port, "many", number, &client, &peers[i]), 0);
    CU_ASSERT_FATAL(UNTIL(client.ups == PEERS && server.accepted == PEERS));
    for (int i = 0; i < PEERS; i++) {
        while (!nic_arm(server.port))
            hosts_drive_once();
        client.peer = peers[i];
        CU_ASSERT_EQUAL(host_send(&client, "it is me", 8, 6, NIC_LOW_PRIORITY, NIC_BUFFERED), 1);
        CU_ASSERT(looks_until_a_message() <= 2);
    }
    teardown();
}

/* The look at time-outs reads what the receiver has consumed, and moves no send. */
static void room_that_a_look_has_seen_is_used(unsigned flags)
{
    static uint8_t data[1 << 15];
    unsigned sent = 0;
    setup(NULL);
    host_provide(&server, 4, 15, NIC_LOW_PRIORITY);
    struct nic_peer *peer = client.peer;
    server.stopped = client.stopped = true;
    for (; peer->waiting[NIC_LOW_PRIORITY].head == NULL; sent++)
        CU_ASSERT_FATAL(host_send(&client, data, sizeof(data), 15, NIC_LOW_PRIORITY, flags) >= 0);
    nic__send_progress(peer, nic__now());
    CU_ASSERT_FALSE(nic__send_runnable(peer, nic__now()));
    server.stopped = false;
    CU_ASSERT_FATAL(UNTIL(server.received == sent - 1));
    nic__send_timeouts(peer, nic__now());
    CU_ASSERT_TRUE(nic__send_runnable(peer, nic__now()));
    client.stopped = false;
    CU_ASSERT(UNTIL(server.received == sent && nic_num_send_tokens(client.port) == 256));
    teardown();
}

static void a_waiting_one_uses_room_that_a_look_has_seen(void)
{
    room_that_a_look_has_seen_is_used(NIC_BUFFERED);
}

static void one_in_the_ring_ends_after_a_look(void)
{
    room_that_a_look_has_seen_is_used(0);
}

int main(void)
{
    static const struct test_case CASES[] = {
        {"a message of each length arrives", a_message_of_each_length_arrives},
        {"segments are gathered", segments_are_gathered},
        {"short ones go at once or not at all", short_ones_go_at_once_or_not_at_all},
        {"messages of a priority keep their order", messages_of_a_priority_keep_their_order},
        {"a message waits for its class and priority", a_message_waits_for_its_class_and_priority},
        {"a message without a buffer fails in time", a_message_without_a_buffer_fails_in_time},
        {"a buffered one ends the connection", a_buffered_one_that_fails_ends_the_connection},
        {"tokens bound outstanding sends", tokens_bound_outstanding_sends},
        {"invalid arguments are refused", invalid_arguments_are_refused},
        {"a waiting send can be taken back", a_waiting_send_can_be_taken_back},
        {"lost packets are sent again, in order", lost_packets_are_sent_again_in_order},
        {"lost packets wait for room", lost_packets_wait_for_room},
        {"a dead link fails its sends", a_dead_link_fails_its_sends},
        {"the timing model delays", the_timing_model_delays},
        {"one of many that wakes us is found", one_of_many_that_wakes_us_is_found_at_once},
        {"a waiting one uses room that a look has seen",
         a_waiting_one_uses_room_that_a_look_has_seen},
        {"one in the ring ends after a look", one_in_the_ring_ends_after_a_look},
    };
    return CASES_RUN("messages", CASES);
}
