/* SPDX-License-Identifier: BSD-3-Clause
 *
 * send_test.c - frames gathered into few writes, a full socket, frames taken back before, in the
 * midst of, and after their sending, lingering, and many threads on one link. The peer is a plain
 * socket, so every byte of the stream is checked.
 */
#include <CUnit/Basic.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fake_core.h"

extern const struct bmi_method bmi__method_tcp;

struct test_frame {
    struct bmi_frame frame;
    void *buffer;
    bmi_size_t size;
};

static int port, peer;
static struct fake_owner *owner;

static void setup_with_buffer(int64_t send_buffer)
{
    char bound[64];
    fake_send_buffer = send_buffer;
    fake_start();
    port = fake_listen(bound, sizeof(bound));
    peer = fake_raw_peer(port, &owner, NULL);
}

static void setup(void)
{
    setup_with_buffer(0);
}

static void teardown(void)
{
    if (peer >= 0)
        close(peer);
    CU_ASSERT_EQUAL(fake_stop(), 0);
}

/* A body's bytes depend on the frame and the position. */
static void body_fill(uint8_t *body, size_t size, uint32_t sequence)
{
    for (size_t i = 0; i < size; i++)
        body[i] = (uint8_t)(sequence * 31 + i * 7);
}

static void frame_init(struct test_frame *frame, uint32_t sequence, size_t size)
{
    memset(frame, 0, sizeof(*frame));
    frame->size = (bmi_size_t)size;
    frame->buffer = malloc(size > 0 ? size : 1);
    body_fill(frame->buffer, size, sequence);
    frame->frame.body = (struct bmi_segments){.buffers = &frame->buffer,
                                              .sizes = &frame->size,
                                              .count = 1,
                                              .left = (bmi_size_t)size};
    frame->frame.status = -1;
    fake_header_write(frame->frame.header, sequence, size, size);
}

static void frames_free(struct test_frame *frames, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free(frames[i].buffer);
    free(frames);
}

static struct test_frame *frames_make(size_t count, size_t size)
{
    struct test_frame *frames = calloc(count, sizeof(*frames));
    for (size_t i = 0; i < count; i++)
        frame_init(&frames[i], (uint32_t)i, size);
    return frames;
}

static void frames_send(struct test_frame *frames, size_t count)
{
    for (size_t i = 0; i < count; i++)
        frames[i].frame.next = i + 1 < count ? &frames[i + 1].frame : NULL;
    bmi__method_tcp.send(owner->link, &frames[0].frame);
}

/* Reads `count` bytes at the peer, and polls meanwhile. */
static bool peer_read(uint8_t *to, size_t count)
{
    int64_t end = fake_now_ms() + 60000;
    while (count > 0 && fake_now_ms() < end) {
        ssize_t moved = recv(peer, to, count, MSG_DONTWAIT);
        if (moved > 0) {
            to += moved;
            count -= (size_t)moved;
        } else if (moved == 0 || errno != EAGAIN) {
            return false;
        }
        fake_drive(0);
    }
    return count == 0;
}

/* Reads one frame, checks its body, outputs its sequence. */
static bool peer_read_frame(uint32_t *sequence)
{
    uint8_t bytes[BMI_FRAME_HEADER];
    struct fake_header header;
    if (!peer_read(bytes, BMI_FRAME_SHORT) ||
        !peer_read(bytes + BMI_FRAME_SHORT, bmi_frame_header_size(bytes[0]) - BMI_FRAME_SHORT) ||
        !fake_header_read(bytes, &header))
        return false;
    uint8_t *body = malloc(header.length + 1), *wanted = malloc(header.length + 1);
    bool good = peer_read(body, header.length);
    body_fill(wanted, header.length, header.sequence);
    good = good && memcmp(body, wanted, header.length) == 0;
    free(body);
    free(wanted);
    *sequence = header.sequence;
    return good;
}

static bool peer_sees_end(void)
{
    char byte;
    int64_t end = fake_now_ms() + 60000;
    ssize_t moved;
    while ((moved = recv(peer, &byte, 1, MSG_DONTWAIT)) < 0 && errno == EAGAIN &&
           fake_now_ms() < end)
        fake_drive(1);
    return moved == 0;
}

static void many_small_frames_in_few_writes(void)
{
    enum { COUNT = 64 };
    struct test_frame *frames = frames_make(COUNT, 1024);
    uint32_t sequence;
    setup();
    frames_send(frames, COUNT);
    CU_ASSERT_EQUAL(fake_counters[BMI_COUNT_WRITES], 0);
    bmi__method_tcp.flush(owner->link);
    CU_ASSERT_EQUAL(fake_counters[BMI_COUNT_WRITES], 1);
    CU_ASSERT_EQUAL(fake_counters[BMI_COUNT_FRAMES_SENT], COUNT);
    CU_ASSERT_EQUAL(fake_counters[BMI_COUNT_BYTES_SENT],
                    COUNT * (1024 + 40) - COUNT / 4 * (40 - 16));
    CU_ASSERT_EQUAL(owner->sent, COUNT);
    for (uint32_t i = 0; i < COUNT; i++)
        CU_ASSERT(peer_read_frame(&sequence) && sequence == i);
    frames_free(frames, COUNT);
    teardown();
}

static void list_of_many_segments(void)
{
    enum { SEGMENTS = 5000 };
    static void *buffers[SEGMENTS];
    static bmi_size_t sizes[SEGMENTS];
    struct test_frame *frame = frames_make(1, 40000);
    size_t total = 0;
    uint32_t sequence;

    setup();
    for (size_t i = 0; i < SEGMENTS; i++) {
        buffers[i] = (uint8_t *)frame->buffer + total;
        sizes[i] = i % 5 == 0 ? 0 : 10;
        total += (size_t)sizes[i];
    }
    CU_ASSERT_EQUAL(total, 40000);
    frame->frame.body = (struct bmi_segments){.buffers = buffers,
                                              .sizes = sizes,
                                              .count = SEGMENTS,
                                              .left = (bmi_size_t)total};
    frames_send(frame, 1);
    bmi__method_tcp.flush(owner->link);
    CU_ASSERT(peer_read_frame(&sequence));
    CU_ASSERT_EQUAL(owner->sent, 1);
    frames_free(frame, 1);
    teardown();
}

static void full_socket_goes_on_when_there_is_room(void)
{
    enum { COUNT = 300, BYTES = 65536 };
    struct test_frame *frames = frames_make(COUNT, BYTES);
    uint32_t sequence;
    setup();
    frames_send(frames, COUNT);
    /* One flush may stop before the socket is full; when it is full nothing is tried in vain. */
    int64_t writes = -1;
    for (int i = 0; i < COUNT && fake_counters[BMI_COUNT_WRITES] != writes; i++) {
        writes = fake_counters[BMI_COUNT_WRITES];
        bmi__method_tcp.flush(owner->link);
    }
    CU_ASSERT(owner->sent < COUNT); /* the peer has not read */
    CU_ASSERT_EQUAL(fake_counters[BMI_COUNT_WRITES], writes);
    for (uint32_t i = 0; i < COUNT; i++)
        CU_ASSERT(peer_read_frame(&sequence) && sequence == i);
    CU_ASSERT_EQUAL(owner->sent, COUNT);
    frames_free(frames, COUNT);
    teardown();
}

/* Fills the socket with frame 0, half sent; frames 1 to 4 wait behind it. */
static struct test_frame *stuck_frames(void)
{
    struct test_frame *frames = frames_make(5, 100);
    setup();
    free(frames[0].buffer);
    frame_init(&frames[0], 0, 16 << 20);
    frames_send(frames, 5);
    bmi__method_tcp.flush(owner->link);
    CU_ASSERT_EQUAL(owner->sent, 0);
    return frames;
}

static void withdraw_before_it_went(void)
{
    struct test_frame *frames = stuck_frames(), *other = frames_make(1, 50);
    uint32_t sequence = 99;
    fake_header_write(other->frame.header, 70, 50, 50);
    body_fill(other->buffer, 50, 70);

    CU_ASSERT_TRUE(bmi__method_tcp.withdraw(owner->link, &frames[4].frame, NULL)); /* the last */
    CU_ASSERT_TRUE(bmi__method_tcp.withdraw(owner->link, &frames[2].frame, &other->frame));
    CU_ASSERT_EQUAL(frames[2].frame.header_sent, 0);
    CU_ASSERT_EQUAL(frames[2].frame.body.left, 100);
    CU_ASSERT_FALSE(bmi__method_tcp.withdraw(owner->link, &frames[2].frame, NULL)); /* gone */
    frames[4].frame.next = NULL;
    bmi__method_tcp.send(owner->link, &frames[4].frame); /* behind the new last one */

    static const uint32_t wanted[] = {0, 1, 70, 3, 4};
    for (size_t i = 0; i < 5; i++)
        CU_ASSERT(peer_read_frame(&sequence) && sequence == wanted[i]);
    CU_ASSERT_EQUAL(owner->sent, 5);
    CU_ASSERT_FALSE(bmi__method_tcp.withdraw(owner->link, &frames[1].frame, NULL));
    frames_free(frames, 5);
    frames_free(other, 1);
    teardown();
}

static void withdraw_half_sent(void)
{
    struct test_frame *frames = stuck_frames();
    struct bmi_frame unused = {0};
    uint32_t sequence = 99;

    CU_ASSERT_TRUE(bmi__method_tcp.withdraw(owner->link, &frames[0].frame, &unused));
    CU_ASSERT(frames[0].frame.header_sent > 0);
    CU_ASSERT_EQUAL(frames[0].frame.body.left, 0);
    CU_ASSERT_PTR_NULL(unused.next);
    memset(frames[0].buffer, 0xaa, 16 << 20); /* the buffer is the user's again */
    free(frames[0].buffer);
    frames[0].buffer = NULL;
    for (uint32_t i = 0; i < 5; i++)
        CU_ASSERT(peer_read_frame(&sequence) && sequence == i); /* the stream is whole */
    CU_ASSERT_EQUAL(owner->sent, 4);
    frames_free(frames, 5);
    teardown();
}

static void close_at_once_gives_frames_back(void)
{
    struct test_frame *frames = stuck_frames();
    CU_ASSERT_TRUE(bmi__method_tcp.withdraw(owner->link, &frames[0].frame, NULL));
    bmi__method_tcp.close(owner->link, true);
    fake_drive(0);
    CU_ASSERT_EQUAL(owner->downs, 0);
    bmi__method_tcp.close(owner->link, false); /* cuts the lingering */
    CU_ASSERT(FAKE_UNTIL(owner->downs == 1));
    CU_ASSERT_EQUAL(owner->status, 0);
    CU_ASSERT_EQUAL(owner->failed, 4);
    CU_ASSERT_EQUAL(owner->last_error, -ECANCELED);
    for (int i = 1; i < 5; i++)
        CU_ASSERT_EQUAL(frames[i].frame.status, -ECANCELED);
    frames_free(frames, 5);
    teardown();
}

/* Also with bytes of the peer's unread, which would make the kernel reset the connection. */
static void lingering_close_delivers(void)
{
    struct test_frame *frames = stuck_frames();
    uint32_t sequence;
    bmi__method_tcp.close(owner->link, true);
    for (uint32_t i = 0; i < 4; i++)
        CU_ASSERT(peer_read_frame(&sequence) && sequence == i);
    CU_ASSERT_EQUAL(send(peer, "unread", 6, MSG_NOSIGNAL), 6);
    CU_ASSERT(peer_read_frame(&sequence) && sequence == 4);
    CU_ASSERT(peer_sees_end());
    CU_ASSERT(FAKE_UNTIL(owner->downs == 1));
    CU_ASSERT_EQUAL(owner->status, 0);
    CU_ASSERT_EQUAL(owner->sent, 5);
    frames_free(frames, 5);
    teardown();
}

static void peer_gone_fails_frames(void)
{
    struct linger hard = {.l_onoff = 1};
    struct test_frame *frames = stuck_frames();
    setsockopt(peer, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
    close(peer);
    peer = -1;
    CU_ASSERT(FAKE_UNTIL(owner->downs == 1));
    CU_ASSERT_EQUAL(owner->status, -ECONNRESET);
    CU_ASSERT_EQUAL(owner->failed, 5);
    CU_ASSERT_EQUAL(owner->last_error, -ECONNRESET);
    frames_free(frames, 5);
    teardown();
}

static struct test_frame *too_late;

static void one_more(struct fake_owner *at, struct bmi_frame *frame)
{
    (void)frame;
    at->on_sent = NULL;
    bmi__method_tcp.send(at->link, &too_late->frame);
}

/* The peer has closed in good order: frames that wait, or that are sent as the link ends, fail
 * because they did not reach it. */
static void peer_ended_fails_frames(void)
{
    struct test_frame *frames = stuck_frames();
    too_late = frames_make(1, 100);
    owner->on_sent = one_more;
    shutdown(peer, SHUT_WR);
    CU_ASSERT(FAKE_UNTIL(owner->downs == 1));
    CU_ASSERT_EQUAL(owner->status, 0);
    CU_ASSERT_EQUAL(owner->sent, 0);
    CU_ASSERT_EQUAL(owner->failed, 6);
    CU_ASSERT_EQUAL(frames[4].frame.status, -ECONNRESET);
    CU_ASSERT_EQUAL(too_late->frame.status, -ECONNRESET);
    frames_free(frames, 5);
    frames_free(too_late, 1);
    teardown();
}

/* A write meets a closed peer: the data that the peer sent before is not lost. */
static void failed_write_keeps_arrived_bytes(void)
{
    struct linger hard = {.l_onoff = 1};
    struct test_frame *frames = frames_make(1, 100);
    uint8_t header[BMI_FRAME_HEADER];
    setup();
    fake_header_write(header, 5, 0, 0);
    CU_ASSERT_EQUAL(send(peer, header, sizeof(header), MSG_NOSIGNAL), sizeof(header));
    setsockopt(peer, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
    close(peer);
    peer = -1;
    frames_send(frames, 1);
    bmi__method_tcp.flush(owner->link);
    CU_ASSERT(FAKE_UNTIL(owner->downs == 1));
    CU_ASSERT_EQUAL(owner->frames, 1);
    CU_ASSERT_EQUAL(owner->last.sequence, 5);
    CU_ASSERT(owner->status == -ECONNRESET || owner->status == -EPIPE);
    CU_ASSERT_EQUAL(owner->failed, 1);
    frames_free(frames, 1);
    teardown();
}

/* ---- threads -------------------------------------------------------------------------------- */

enum { SENDERS = 4, ROUNDS = 600, MOST_BYTES = 60000 };

enum fate { LENT, SENT, TAKEN_WHOLE, TAKEN_HALF };

struct thread_frame {
    struct test_frame at; /* first */
    enum fate fate;       /* peer_lock */
    int seen;             /* by the reader */
};

static struct thread_frame *thread_frames;
static struct bmi_link *shared_link;
static atomic_int lent;
static atomic_bool senders_done;
static pthread_mutex_t peer_lock = PTHREAD_MUTEX_INITIALIZER; /* as the core's */

static void thread_sent(struct fake_owner *unused, struct bmi_frame *frame)
{
    struct thread_frame *at = (struct thread_frame *)(void *)frame;
    (void)unused;
    pthread_mutex_lock(&peer_lock);
    at->fate = SENT;
    pthread_mutex_unlock(&peer_lock);
    atomic_fetch_sub(&lent, 1);
}

/* Takes a frame back if it is still lent, as the core does in cancel. */
static void thread_take_back(struct thread_frame *at)
{
    pthread_mutex_lock(&peer_lock);
    if (at->fate == LENT && bmi__method_tcp.withdraw(shared_link, &at->at.frame, NULL)) {
        at->fate = at->at.frame.header_sent > 0 ? TAKEN_HALF : TAKEN_WHOLE;
        memset(at->at.buffer, 0xee, (size_t)at->at.size);
        atomic_fetch_sub(&lent, 1);
    }
    pthread_mutex_unlock(&peer_lock);
}

/* The first of the frames from `at` on that is still lent, likely to be half sent. */
static unsigned oldest_lent(unsigned at, unsigned end)
{
    pthread_mutex_lock(&peer_lock);
    while (at < end && thread_frames[at].fate != LENT)
        at++;
    pthread_mutex_unlock(&peer_lock);
    return at;
}

static void *sender_run(void *argument)
{
    unsigned first = (unsigned)(uintptr_t)argument * ROUNDS, oldest = first;
    for (unsigned i = first; i < first + ROUNDS; i++) {
        struct thread_frame *at = &thread_frames[i];
        frame_init(&at->at, i, (i * 7919u) % MOST_BYTES);
        atomic_fetch_add(&lent, 1);
        pthread_mutex_lock(&peer_lock);
        bmi__method_tcp.send(shared_link, &at->at.frame);
        pthread_mutex_unlock(&peer_lock);
        bmi__method_tcp.flush(shared_link);
        if (i % 3 == 0)
            thread_take_back(at);
        oldest = oldest_lent(oldest, i);
        if (i % 3 == 1)
            thread_take_back(&thread_frames[oldest]);
    }
    return NULL;
}

static bool blocking_read(void *to, size_t count)
{
    return count == 0 || recv(peer, to, count, MSG_WAITALL) == (ssize_t)count;
}

/* Reads the stream to its end. Returns NULL if all was good. */
static void *reader_run(void *unused)
{
    static uint8_t body[MOST_BYTES], wanted[MOST_BYTES];
    int64_t last[SENDERS] = {-1, -1, -1, -1};
    uint8_t bytes[BMI_FRAME_HEADER];
    struct fake_header header;

    (void)unused;
    while (blocking_read(bytes, BMI_FRAME_SHORT)) {
        size_t rest = bmi_frame_header_size(bytes[0]) - BMI_FRAME_SHORT;
        if (!blocking_read(bytes + BMI_FRAME_SHORT, rest) || !fake_header_read(bytes, &header) ||
            header.sequence >= SENDERS * ROUNDS || header.length >= MOST_BYTES ||
            !blocking_read(body, header.length))
            return "not a frame";
        body_fill(wanted, header.length, header.sequence);
        if (memcmp(body, wanted, header.length) != 0)
            return "wrong bytes";
        if (last[header.sequence / ROUNDS] >= (int64_t)header.sequence)
            return "out of order";
        last[header.sequence / ROUNDS] = header.sequence;
        thread_frames[header.sequence].seen++;
    }
    return NULL;
}

static void *senders_run(void *unused)
{
    pthread_t threads[SENDERS];
    (void)unused;
    for (uintptr_t i = 0; i < SENDERS; i++)
        pthread_create(&threads[i], NULL, sender_run, (void *)i);
    for (int i = 0; i < SENDERS; i++)
        pthread_join(threads[i], NULL);
    atomic_store(&senders_done, true);
    return NULL;
}

static void threads_send_and_take_back(void)
{
    pthread_t senders, reader;
    void *complaint = NULL;
    int fates[4] = {0};

    setup_with_buffer(131072);
    owner->on_sent = thread_sent;
    shared_link = owner->link;
    bmi_link_ref(shared_link);
    thread_frames = calloc(SENDERS * ROUNDS, sizeof(*thread_frames));
    atomic_store(&senders_done, false);
    pthread_create(&reader, NULL, reader_run, NULL);
    pthread_create(&senders, NULL, senders_run, NULL);

    CU_ASSERT(FAKE_UNTIL(atomic_load(&senders_done) && atomic_load(&lent) == 0));
    pthread_join(senders, NULL);
    bmi__method_tcp.close(shared_link, true);
    CU_ASSERT(FAKE_UNTIL(owner->downs == 1));
    pthread_join(reader, &complaint);
    CU_ASSERT_PTR_NULL(complaint);
    if (complaint)
        fprintf(stderr, "reader: %s\n", (char *)complaint);
    for (int i = 0; i < SENDERS * ROUNDS; i++) {
        struct thread_frame *at = &thread_frames[i];
        fates[at->fate]++;
        CU_ASSERT_EQUAL(at->seen, at->fate == TAKEN_WHOLE ? 0 : 1);
        free(at->at.buffer);
    }
    fprintf(stderr, "%d sent, %d taken back whole, %d half sent\n", fates[SENT], fates[TAKEN_WHOLE],
            fates[TAKEN_HALF]);
    CU_ASSERT_EQUAL(fates[LENT], 0);
    free(thread_frames);
    bmi_link_unref(shared_link);
    teardown();
}

int main(void)
{
    CU_initialize_registry();
    CU_pSuite suite = CU_add_suite("tcp send", NULL, NULL);
    CU_ADD_TEST(suite, many_small_frames_in_few_writes);
    CU_ADD_TEST(suite, list_of_many_segments);
    CU_ADD_TEST(suite, full_socket_goes_on_when_there_is_room);
    CU_ADD_TEST(suite, withdraw_before_it_went);
    CU_ADD_TEST(suite, withdraw_half_sent);
    CU_ADD_TEST(suite, close_at_once_gives_frames_back);
    CU_ADD_TEST(suite, lingering_close_delivers);
    CU_ADD_TEST(suite, peer_gone_fails_frames);
    CU_ADD_TEST(suite, peer_ended_fails_frames);
    CU_ADD_TEST(suite, failed_write_keeps_arrived_bytes);
    CU_ADD_TEST(suite, threads_send_and_take_back);
    CU_basic_set_mode(CU_BRM_VERBOSE);
    CU_basic_run_tests();
    unsigned failures = CU_get_number_of_failures();
    CU_cleanup_registry();
    return failures > 0;
}
