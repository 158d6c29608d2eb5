/* SPDX-License-Identifier: BSD-3-Clause
 *
 * uring_send_test.c - sends that wait in the io_uring engine for those of other links: which wait
 * and until when, their order with writes, a socket that is full, a thread that submits and exits,
 * a link that ends meanwhile. Two plain sockets are the peers.
 */
#include <CUnit/Basic.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fake_core.h"
#include "uring.h"

enum { A, B, PEERS, SMALL = 300, BIG = 100000, PIECE = 1900 };

static int peers[PEERS];
static struct fake_owner *owners[PEERS];
static uint8_t into[PEERS][SMALL];

struct test_frame {
    struct bmi_frame frame;
    void *buffer;
    bmi_size_t size;
    struct test_frame *next;
};
static struct test_frame *frames; /* of the present test */

static struct stream_uring *uring(void)
{
    return ((struct stream_state *)fake_state)->uring;
}

static void setup(void)
{
    char bound[64];
    fake_start();
    int port = fake_listen(bound, sizeof(bound));
    for (int i = 0; i < PEERS; i++)
        peers[i] = fake_raw_peer(port, &owners[i], into[i]);
    fake_method->progress(fake_state);
}

static void teardown(void)
{
    for (int i = 0; i < PEERS; i++)
        if (peers[i] >= 0)
            close(peers[i]);
    CU_ASSERT_EQUAL(fake_stop(), 0);
    while (frames) {
        struct test_frame *next = frames->next;
        free(frames->buffer);
        free(frames);
        frames = next;
    }
}

static void post(int to, uint32_t sequence, size_t size)
{
    struct test_frame *made = calloc(1, sizeof(*made));
    made->next = frames;
    frames = made;
    made->size = (bmi_size_t)size;
    made->buffer = malloc(size);
    memset(made->buffer, (int)sequence, size);
    made->frame.body = (struct bmi_segments){.buffers = &made->buffer,
                                             .sizes = &made->size,
                                             .count = 1,
                                             .left = (bmi_size_t)size};
    fake_header_write(made->frame.header, sequence, size, size);
    fake_method->send(owners[to]->link, &made->frame);
    fake_method->flush(owners[to]->link);
}

/* As if the last look had brought bytes of two links: this send waits. */
static void post_waiting(int to, uint32_t sequence, size_t size)
{
    atomic_store(&uring()->sends.expected, 2);
    post(to, sequence, size);
}

static bool has_bytes(int peer)
{
    char byte;
    return recv(peers[peer], &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 1;
}

static bool peer_read(int peer, uint8_t *to, size_t count)
{
    int64_t end = fake_now_ms() + 60000;
    while (count > 0 && fake_now_ms() < end) {
        ssize_t moved = recv(peers[peer], to, count, MSG_DONTWAIT);
        if (moved == 0 || (moved < 0 && errno != EAGAIN))
            return false;
        to += moved > 0 ? moved : 0;
        count -= moved > 0 ? (size_t)moved : 0;
        fake_drive(0);
    }
    return count == 0;
}

/* Reads a frame of `size`. Returns its sequence; -1: its bytes are wrong. */
static int peer_frame(int peer, size_t size)
{
    uint8_t bytes[BMI_FRAME_HEADER];
    struct fake_header header;
    if (!peer_read(peer, bytes, BMI_FRAME_SHORT) ||
        !peer_read(peer, bytes + BMI_FRAME_SHORT,
                   bmi_frame_header_size(bytes[0]) - BMI_FRAME_SHORT) ||
        !fake_header_read(bytes, &header) || header.length != size)
        return -1;
    uint8_t *body = malloc(size);
    bool good = peer_read(peer, body, size);
    for (size_t i = 0; i < size; i++)
        good = good && body[i] == (uint8_t)header.sequence;
    free(body);
    return good ? (int)header.sequence : -1;
}

/* Fills the socket of a link, until the peer's kernel has no room for more, either. Neither buffer
 * grows any more. A peer without room is asked again after 200 ms, and may then take some bytes.
 * Returns the bytes. */
static size_t fill(int peer)
{
    static const char zeros[4096];
    static const int least = 16384;
    struct pollfd room = {.fd = stream_link_of(owners[peer]->link)->watch.fd, .events = POLLOUT};
    size_t all = 0;
    setsockopt(peers[peer], SOL_SOCKET, SO_RCVBUF, &least, sizeof(least));
    setsockopt(room.fd, SOL_SOCKET, SO_SNDBUF, &least, sizeof(least));
    for (int full = 0; full < 2;) {
        ssize_t moved = send(room.fd, zeros, sizeof(zeros), MSG_DONTWAIT | MSG_NOSIGNAL);
        all += moved > 0 ? (size_t)moved : 0;
        full = moved > 0 ? 0 : full + 1;
        if (moved < 0)
            poll(&room, 1, 250);
    }
    return all;
}

/* Reads to the end of the stream. Returns the bytes. */
static size_t peer_rest(int peer)
{
    uint8_t bytes[4096];
    size_t all = 0;
    ssize_t moved;
    while ((moved = recv(peers[peer], bytes, sizeof(bytes), 0)) > 0)
        all += (size_t)moved;
    return all;
}

static bool peer_skip(int peer, size_t bytes)
{
    uint8_t *zeros = malloc(bytes);
    bool good = peer_read(peer, zeros, bytes);
    free(zeros);
    return good;
}

static void first_of_two_waits_for_the_poller(void)
{
    setup();
    post_waiting(B, 1, SMALL);
    CU_ASSERT_FALSE(has_bytes(B));
    CU_ASSERT_EQUAL(owners[B]->sent, 1);
    fake_drive(0);
    CU_ASSERT_EQUAL(peer_frame(B, SMALL), 1);
    teardown();
}

static void nothing_waits_while_the_poller_may_block(void)
{
    setup();
    CU_ASSERT_TRUE(fake_method->arm(fake_state));
    post_waiting(B, 1, SMALL);
    CU_ASSERT_TRUE(has_bytes(B));
    teardown();
}

/* Both peers have sent a request; one look takes both. */
static void look_at_both(void)
{
    struct io_uring_cqe *first;
    uint8_t request[BMI_FRAME_HEADER];
    fake_header_write(request, 4, 0, 0);
    for (int i = 0; i < PEERS; i++)
        CU_ASSERT_EQUAL(send(peers[i], request, sizeof(request), 0), sizeof(request));
    CU_ASSERT_EQUAL(io_uring_wait_cqe_nr(&uring()->ring, &first, PEERS), 0);
    fake_method->progress(fake_state);
    CU_ASSERT_EQUAL(owners[A]->frames + owners[B]->frames, 2);
}

static void last_answer_takes_the_others_along(void)
{
    setup();
    look_at_both();
    post(A, 1, SMALL);
    CU_ASSERT_FALSE(has_bytes(A));
    post(B, 2, SMALL);
    CU_ASSERT_TRUE(has_bytes(A));
    CU_ASSERT_TRUE(has_bytes(B));
    CU_ASSERT_EQUAL(peer_frame(A, SMALL), 1);
    CU_ASSERT_EQUAL(peer_frame(B, SMALL), 2);
    teardown();
}

static void nothing_waits_after_a_look_that_brought_nothing(void)
{
    setup();
    look_at_both();
    fake_method->progress(fake_state);
    post(A, 1, SMALL);
    CU_ASSERT_TRUE(has_bytes(A));
    teardown();
}

static void nothing_waits_where_one_link_brought_bytes(void)
{
    struct io_uring_cqe *first;
    uint8_t request[BMI_FRAME_HEADER];
    setup();
    fake_header_write(request, 4, 0, 0);
    CU_ASSERT_EQUAL(send(peers[A], request, sizeof(request), 0), sizeof(request));
    CU_ASSERT_EQUAL(io_uring_wait_cqe(&uring()->ring, &first), 0);
    fake_method->progress(fake_state);
    post(A, 1, SMALL);
    CU_ASSERT_EQUAL(uring()->sends.used, 0);
    CU_ASSERT_TRUE(has_bytes(A));
    teardown();
}

static void write_does_not_overtake(void)
{
    setup();
    post_waiting(B, 1, SMALL);
    post(B, 2, BIG);
    post(B, 3, SMALL);
    CU_ASSERT_FALSE(has_bytes(B));
    CU_ASSERT_EQUAL(peer_frame(B, SMALL), 1);
    CU_ASSERT_EQUAL(peer_frame(B, BIG), 2);
    CU_ASSERT_EQUAL(peer_frame(B, SMALL), 3);
    teardown();
}

/* The kernel's part is played here: it has sent the header alone. */
static void short_send_goes_on(void)
{
    setup();
    post_waiting(B, 1, SMALL);
    struct uring_sends *sends = &uring()->sends;
    uint64_t request = (uintptr_t)sends->waiting | 1;
    sends->waiting = NULL;
    sends->waiting_last = &sends->waiting;
    CU_ASSERT_TRUE(stream_uring_is_send(request));
    CU_ASSERT_EQUAL(send(stream_link_of(owners[B]->link)->watch.fd, frames->frame.header,
                         BMI_FRAME_HEADER, 0),
                    BMI_FRAME_HEADER);
    stream_uring_sent(uring(), request, BMI_FRAME_HEADER);
    post(B, 2, SMALL);
    CU_ASSERT_EQUAL(peer_frame(B, SMALL), 1);
    CU_ASSERT_EQUAL(peer_frame(B, SMALL), 2);
    teardown();
}

static void full_socket_goes_on(void)
{
    struct stream_link *link;
    uint32_t count = 0;
    setup();
    link = stream_link_of(owners[B]->link);
    while (!atomic_load(&link->sending) && count < 100000) {
        post_waiting(B, ++count, PIECE);
        fake_drive(0);
        fake_method->progress(fake_state);
    }
    CU_ASSERT_TRUE(atomic_load(&link->sending));
    post(B, ++count, PIECE);
    bool good = true;
    for (uint32_t i = 1; i <= count; i++)
        good = good && peer_frame(B, PIECE) == (int)i;
    CU_ASSERT_TRUE(good);
    teardown();
}

/* The kernel cancels its request. */
static void *answer_and_exit(void *argument)
{
    (void)argument;
    post(A, 1, SMALL);
    post(B, 2, SMALL);
    return NULL;
}

static void thread_that_submitted_exits(void)
{
    pthread_t thread;
    setup();
    size_t before = fill(B);
    look_at_both();
    pthread_create(&thread, NULL, answer_and_exit, NULL);
    pthread_join(thread, NULL);
    CU_ASSERT_NOT_EQUAL(stream_link_of(owners[B]->link)->sending, 0);
    CU_ASSERT_EQUAL(peer_frame(A, SMALL), 1);
    CU_ASSERT_TRUE(peer_skip(B, before));
    CU_ASSERT_EQUAL(peer_frame(B, SMALL), 2);
    teardown();
}

static void end_cancels(void)
{
    setup();
    size_t before = fill(B);
    post_waiting(B, 1, SMALL);
    fake_drive(0);
    fake_method->progress(fake_state);
    CU_ASSERT_NOT_EQUAL(stream_link_of(owners[B]->link)->sending, 0);
    CU_ASSERT_EQUAL(uring()->sends.used, 1);
    fake_method->close(owners[B]->link, false);
    CU_ASSERT_TRUE(FAKE_UNTIL(owners[B]->downs == 1 && uring()->sends.used == 0));
    CU_ASSERT_EQUAL(peer_rest(B), before);
    teardown();
}

static void lingering_close_awaits_the_send(void)
{
    setup();
    size_t before = fill(B);
    post_waiting(B, 1, SMALL);
    fake_method->close(owners[B]->link, true);
    fake_drive(0);
    fake_drive(0);
    CU_ASSERT_TRUE(peer_skip(B, before));
    CU_ASSERT_EQUAL(peer_frame(B, SMALL), 1);
    CU_ASSERT_TRUE(FAKE_UNTIL(owners[B]->downs == 1));
    CU_ASSERT_EQUAL(owners[B]->status, 0);
    teardown();
}

static void failure_ends_the_link(void)
{
    setup();
    fill(B);
    post_waiting(B, 1, SMALL);
    fake_drive(0);
    close(peers[B]);
    peers[B] = -1;
    CU_ASSERT_TRUE(FAKE_UNTIL(owners[B]->downs == 1 && uring()->sends.used == 0));
    CU_ASSERT_TRUE(owners[B]->status == -ECONNRESET || owners[B]->status == -EPIPE);
    teardown();
}

static void stop_with_sends_that_wait(void)
{
    setup();
    post_waiting(B, 1, SMALL);
    teardown();
}

/* The engine would hand plain bytes to the kernel. */
static void layer_is_refused(void)
{
    static const struct stream_bytes layer;
    const struct stream_socket socket = {.method = fake_method, .bytes = &layer};
    void *state = NULL;
    setup();
    CU_ASSERT_EQUAL(stream_method_start(NULL, sizeof(struct stream_state), &socket,
                                        &stream_engine_uring, &state),
                    -EINVAL);
    CU_ASSERT_PTR_NULL(state);
    teardown();
}

int main(void)
{
    char why[STREAM_WHY];
    if (!stream_uring_usable(why)) {
        printf("skipped: io_uring cannot be used here: %s\n", why);
        return 77;
    }
    fake_tcp_engine = "io_uring";
    CU_initialize_registry();
    CU_pSuite suite = CU_add_suite("tcp sends in the ring", NULL, NULL);
    CU_ADD_TEST(suite, first_of_two_waits_for_the_poller);
    CU_ADD_TEST(suite, nothing_waits_while_the_poller_may_block);
    CU_ADD_TEST(suite, nothing_waits_after_a_look_that_brought_nothing);
    CU_ADD_TEST(suite, nothing_waits_where_one_link_brought_bytes);
    CU_ADD_TEST(suite, last_answer_takes_the_others_along);
    CU_ADD_TEST(suite, write_does_not_overtake);
    CU_ADD_TEST(suite, short_send_goes_on);
    CU_ADD_TEST(suite, full_socket_goes_on);
    CU_ADD_TEST(suite, thread_that_submitted_exits);
    CU_ADD_TEST(suite, end_cancels);
    CU_ADD_TEST(suite, lingering_close_awaits_the_send);
    CU_ADD_TEST(suite, failure_ends_the_link);
    CU_ADD_TEST(suite, stop_with_sends_that_wait);
    CU_ADD_TEST(suite, layer_is_refused);
    CU_basic_set_mode(CU_BRM_VERBOSE);
    CU_basic_run_tests();
    unsigned failures = CU_get_number_of_failures();
    CU_cleanup_registry();
    return failures > 0;
}
