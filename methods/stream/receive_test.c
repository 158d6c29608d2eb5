/* SPDX-License-Identifier: BSD-3-Clause
 *
 * receive_test.c - frames cut at any place by the network, read exactly or ahead, taken back in
 * mid-body, and the ways in which a stream ends. The peer is a plain socket of the test's.
 */
#include <CUnit/Basic.h>
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fake_core.h"

extern const struct bmi_method bmi__method_tcp;

enum { INTO_BYTES = 8 << 20 };

static uint8_t *into, *stream;
static int port, peer;
static struct fake_owner *owner;

static void setup(void)
{
    char bound[64];
    memset(into, 0, INTO_BYTES);
    fake_start();
    port = fake_listen(bound, sizeof(bound));
    peer = fake_raw_peer(port, &owner, into);
}

static void teardown(void)
{
    if (peer >= 0)
        close(peer);
    CU_ASSERT_EQUAL(fake_stop(), 0);
    CU_ASSERT_EQUAL(fake_counters[BMI_COUNT_LINKS], 0);
}

static uint8_t pattern(size_t at)
{
    return (uint8_t)(at * 2654435761u >> 24);
}

static bool holds_pattern(const uint8_t *bytes, size_t count, size_t from)
{
    for (size_t i = 0; i < count; i++)
        if (bytes[i] != pattern(from + i))
            return false;
    return true;
}

/* Appends a frame to the stream whose body goes on with the pattern. */
static size_t frame_append(size_t at, uint32_t sequence, size_t length, size_t keep, size_t *from)
{
    fake_header_write(stream + at, sequence, length, keep);
    at += bmi_frame_header_size(stream[at]);
    for (size_t i = 0; i < length; i++)
        stream[at + i] = pattern(*from + i);
    *from += keep;
    return at + length;
}

static void peer_write(const uint8_t *bytes, size_t count)
{
    while (count > 0) {
        ssize_t moved = send(peer, bytes, count, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (moved < 0 && errno != EAGAIN) {
            CU_FAIL("peer's write");
            return;
        }
        if (moved > 0) {
            bytes += moved;
            count -= (size_t)moved;
        }
        fake_drive(0);
    }
}

static void byte_by_byte(void)
{
    size_t from = 0, length = 0;
    setup();
    length = frame_append(length, 1, 10, 10, &from);
    length = frame_append(length, 2, 0, 0, &from);
    length = frame_append(length, 3, 100, 100, &from);
    for (size_t i = 0; i < length; i++) {
        uint64_t before = atomic_load(&owner->link->bytes_in);
        peer_write(stream + i, 1);
        CU_ASSERT(FAKE_UNTIL(atomic_load(&owner->link->bytes_in) == before + 1));
    }
    CU_ASSERT_EQUAL(owner->frames, 3);
    CU_ASSERT_EQUAL(owner->bodies, 2);
    CU_ASSERT(holds_pattern(into, 110, 0));
    teardown();
}

static void split_at_every_place(void)
{
    enum { EXACT = 1, WHOLE = 2, WAYS = 4 };
    setup();
    for (int way = 0; way < WAYS; way++) {
        atomic_store(&owner->link->large_expected, (unsigned)(way & EXACT));
        owner->takes_whole = (way & WHOLE) != 0;
        for (size_t cut = 1;; cut++) {
            size_t from = 0, length = 0;
            int frames = owner->frames;
            owner->received = 0;
            memset(into, 0, 512);
            length = frame_append(length, 1, 7, 7, &from);
            length = frame_append(length, 2, 0, 0, &from);
            length = frame_append(length, 3, 90, 60, &from); /* 30 bytes to nowhere */
            length = frame_append(length, 4, 33, 0, &from);
            length = frame_append(length, 5, 41, 41, &from);
            if (cut >= length)
                break;
            uint64_t before = atomic_load(&owner->link->bytes_in);
            peer_write(stream, cut);
            CU_ASSERT(FAKE_UNTIL(atomic_load(&owner->link->bytes_in) == before + cut));
            peer_write(stream + cut, length - cut);
            CU_ASSERT(FAKE_UNTIL(atomic_load(&owner->link->bytes_in) == before + length));
            CU_ASSERT_EQUAL(owner->frames - frames, 5);
            CU_ASSERT_EQUAL(owner->last.sequence, 5);
            CU_ASSERT(holds_pattern(into, from, 0));
        }
    }
    CU_ASSERT_EQUAL(owner->bodies * 5, owner->frames * 4);
    teardown();
}

static void long_list_with_empty_segments(void)
{
    enum { SEGMENTS = 3000 };
    static void *buffers[SEGMENTS];
    static bmi_size_t sizes[SEGMENTS];
    size_t total = 0, from = 0, length;

    setup();
    for (size_t i = 0; i < SEGMENTS; i++) {
        buffers[i] = into + total + i; /* a byte's gap between segments */
        sizes[i] = (bmi_size_t)(i % 7 == 0 ? 0 : i % 300);
        total += (size_t)sizes[i];
    }
    owner->list = (struct bmi_segments){.buffers = buffers, .sizes = sizes, .count = SEGMENTS};
    length = frame_append(0, 1, total, total, &from);
    peer_write(stream, length);
    CU_ASSERT(FAKE_UNTIL(owner->bodies == 1));

    size_t at = 0;
    for (size_t i = 0; i < SEGMENTS; i++) {
        CU_ASSERT(holds_pattern(buffers[i], (size_t)sizes[i], at));
        CU_ASSERT_EQUAL(((uint8_t *)buffers[i])[sizes[i]], 0);
        at += (size_t)sizes[i];
    }
    teardown();
}

static void large_bodies_are_not_read_ahead(void)
{
    size_t from = 0, length = 0;
    setup();
    atomic_store(&owner->link->large_expected, 1);
    for (uint32_t i = 0; i < 6; i++)
        length = frame_append(length, i, 262144, 262144, &from);
    peer_write(stream, length);
    CU_ASSERT(FAKE_UNTIL(owner->bodies == 6));
    CU_ASSERT(holds_pattern(into, from, 0));
    CU_ASSERT_EQUAL(fake_counters[BMI_COUNT_COPIED_BYTES], 0);
    CU_ASSERT_EQUAL(fake_counters[BMI_COUNT_COPIES], 0);
    CU_ASSERT_EQUAL(fake_counters[BMI_COUNT_BYTES_RECEIVED], (int64_t)length);
    teardown();
}

/* Many small frames that are there together come with one read. */
static void small_frames_read(bool takes_whole)
{
    size_t from = 0, length = 0;
    setup();
    owner->takes_whole = takes_whole;
    for (uint32_t i = 0; i < 50; i++)
        length = frame_append(length, i, 1000, 1000, &from);
    CU_ASSERT_EQUAL(send(peer, stream, length, MSG_NOSIGNAL), (ssize_t)length);
    int64_t reads = fake_counters[BMI_COUNT_READS];
    CU_ASSERT(FAKE_UNTIL(owner->bodies == 50));
    CU_ASSERT_EQUAL(fake_counters[BMI_COUNT_READS] - reads, 1);
    CU_ASSERT_EQUAL(fake_counters[BMI_COUNT_FRAMES_RECEIVED], 50);
    CU_ASSERT_EQUAL(fake_counters[BMI_COUNT_COPIES], 50);
    CU_ASSERT_EQUAL(fake_counters[BMI_COUNT_COPIED_BYTES], 50000);
    CU_ASSERT(holds_pattern(into, from, 0));
    fake_header_write(stream, 51, 0, 0); /* none of its bytes are copied */
    CU_ASSERT_EQUAL(send(peer, stream, BMI_FRAME_SHORT, MSG_NOSIGNAL), BMI_FRAME_SHORT);
    CU_ASSERT(FAKE_UNTIL(owner->frames == 51));
    CU_ASSERT_EQUAL(fake_counters[BMI_COUNT_COPIES], 50);
    teardown();
}

static void small_frames_are_read_together(void)
{
    small_frames_read(false);
    small_frames_read(true);
}

static void drained_body_leaves_no_trace(void)
{
    size_t from = 0, length = 0;
    setup();
    length = frame_append(length, 1, 3 << 20, 100, &from);
    length = frame_append(length, 2, 50, 50, &from);
    peer_write(stream, length);
    CU_ASSERT(FAKE_UNTIL(owner->frames == 2 && owner->bodies == 2));
    CU_ASSERT(holds_pattern(into, 150, 0));
    CU_ASSERT_EQUAL(into[150], 0);
    teardown();
}

static void retract_in_mid_body(void)
{
    size_t from = 0, length = 0;
    setup();
    length = frame_append(length, 1, 100000, 100000, &from);
    length = frame_append(length, 2, 20, 20, &from);
    peer_write(stream, 40 + 5000);
    CU_ASSERT(FAKE_UNTIL(atomic_load(&owner->link->bytes_in) == 5040));

    CU_ASSERT_FALSE(bmi__method_tcp.retract(owner->link, &port));
    CU_ASSERT_TRUE(bmi__method_tcp.retract(owner->link, into));
    CU_ASSERT_FALSE(bmi__method_tcp.retract(owner->link, into));
    peer_write(stream + 5040, length - 5040);
    CU_ASSERT(FAKE_UNTIL(owner->bodies == 1));
    CU_ASSERT_EQUAL(owner->frames, 2);
    CU_ASSERT(holds_pattern(into, 5000, 0));
    for (size_t i = 5000; i < 100000; i++)
        if (into[i] != 0) {
            CU_FAIL("a byte came after retract");
            break;
        }
    CU_ASSERT(holds_pattern(into + 100000, 20, 100000));
    teardown();
}

/* A body that has arrived completely cannot be retracted, and the next one is still reported. */
static void retract_behind_a_body(void)
{
    size_t from = 0, first, length;
    setup();
    first = frame_append(0, 1, 5000, 5000, &from);
    length = frame_append(first, 2, 5000, 5000, &from);
    peer_write(stream, first);
    CU_ASSERT(FAKE_UNTIL(owner->bodies == 1));
    CU_ASSERT_FALSE(bmi__method_tcp.retract(owner->link, into));
    peer_write(stream + first, length - first);
    CU_ASSERT(FAKE_UNTIL(owner->bodies == 2));
    CU_ASSERT(holds_pattern(into, 10000, 0));
    teardown();
}

enum { THREAD_FRAMES = 60, THREAD_BYTES = 100000 };

static struct bmi_link *shared_link;
static atomic_int arrived; /* frames begun */
static bool taken_back[THREAD_FRAMES];

static void frame_begun(struct fake_owner *at)
{
    (void)at;
    atomic_fetch_add(&arrived, 1);
}

/* Takes bodies back while they arrive, and uses their memory at once. */
static void *retractor_run(void *unused)
{
    int at;
    (void)unused;
    while ((at = atomic_load(&arrived)) < THREAD_FRAMES) {
        if (at % 2 == 0) /* none yet, or one to be left alone */
            continue;
        uint8_t *place = into + (size_t)(at - 1) * THREAD_BYTES;
        if (bmi__method_tcp.retract(shared_link, place)) {
            memset(place, 0xee, THREAD_BYTES);
            taken_back[at - 1] = true;
        }
    }
    return NULL;
}

static void retract_by_another_thread(void)
{
    pthread_t retractor;
    size_t from = 0, length = 0;
    int retracted = 0;
    setup();
    owner->on_frame = frame_begun;
    shared_link = owner->link;
    atomic_store(&owner->link->large_expected, 1);
    for (uint32_t i = 0; i < THREAD_FRAMES; i++)
        length = frame_append(length, i, THREAD_BYTES, THREAD_BYTES, &from);
    pthread_create(&retractor, NULL, retractor_run, NULL);
    for (size_t at = 0; at < length; at += 7000)
        peer_write(stream + at, length - at < 7000 ? length - at : 7000);
    CU_ASSERT(FAKE_UNTIL(atomic_load(&owner->link->bytes_in) == length));
    pthread_join(retractor, NULL);

    for (size_t i = 0; i < THREAD_FRAMES; i++) {
        const uint8_t *place = into + i * THREAD_BYTES;
        retracted += taken_back[i];
        if (taken_back[i])
            CU_ASSERT(place[0] == 0xee && memcmp(place, place + 1, THREAD_BYTES - 1) == 0);
        if (!taken_back[i])
            CU_ASSERT(holds_pattern(place, THREAD_BYTES, i * THREAD_BYTES));
    }
    fprintf(stderr, "%d of %d taken back ", retracted, THREAD_FRAMES);
    CU_ASSERT_EQUAL(owner->bodies, THREAD_FRAMES - retracted);
    teardown();
}

/* The poller polls the link that received last without a wait. */
static void hot_link_is_polled(void)
{
    size_t from = 0;
    setup();
    CU_ASSERT_EQUAL(bmi__method_tcp.progress(fake_state), 0);
    size_t length = frame_append(0, 1, 10, 10, &from);
    peer_write(stream, length);
    CU_ASSERT(FAKE_UNTIL(owner->bodies == 1));
    CU_ASSERT_EQUAL(bmi__method_tcp.progress(fake_state), 0);
    CU_ASSERT_EQUAL(send(peer, stream, length, MSG_NOSIGNAL), (ssize_t)length);
    int64_t end = fake_now_ms() + 60000;
    while (bmi__method_tcp.progress(fake_state) == 0 && fake_now_ms() < end)
        ;
    CU_ASSERT_EQUAL(owner->bodies, 2);
    close(peer);
    peer = -1;
    while (bmi__method_tcp.progress(fake_state) == 0 && fake_now_ms() < end)
        ;
    CU_ASSERT_EQUAL(owner->downs, 1);
    CU_ASSERT_EQUAL(bmi__method_tcp.progress(fake_state), 0);
    teardown();
}

static bool readable_without_arming(void)
{
    int bodies = owner->bodies;
    fake_drive(0);
    return owner->bodies > bodies;
}

/* Reads `count` frames by polling alone; one before makes the link the hot one, and one more is
 * left to be read. */
static void hot_polls(int count)
{
    int before = owner->bodies;
    size_t from = 0, length = frame_append(0, 1, 10, 10, &from);
    peer_write(stream, length);
    CU_ASSERT(FAKE_UNTIL(owner->bodies > before));
    for (int i = 0; i < count; i++) {
        int64_t end = fake_now_ms() + 60000;
        CU_ASSERT_EQUAL(send(peer, stream, length, MSG_NOSIGNAL), (ssize_t)length);
        while (bmi__method_tcp.progress(fake_state) == 0 && fake_now_ms() < end)
            ;
    }
    CU_ASSERT_EQUAL(owner->bodies, before + count + 1);
    CU_ASSERT_EQUAL(send(peer, stream, length, MSG_NOSIGNAL), (ssize_t)length);
}

/* After many reads by polling the link leaves the epoll set, and is back before a wait. */
static void hot_link_needs_no_watch(void)
{
    setup();
    hot_polls(10);
    CU_ASSERT(readable_without_arming());
    teardown();
    setup();
    hot_polls(100);
    for (int round = 1; round <= 3; round++) { /* and again */
        CU_ASSERT(!readable_without_arming());
        CU_ASSERT(FAKE_UNTIL(owner->bodies == 102 * round)); /* waits, so it arms */
        CU_ASSERT_EQUAL(bmi__method_tcp.progress(fake_state), 0);
        hot_polls(100);
    }
    CU_ASSERT_EQUAL(owner->downs, 0);
    teardown();
}

/* It is back as soon as another link is the hot one. */
static void hot_link_that_cools(void)
{
    struct fake_owner *other;
    size_t from = 0;
    uint8_t *into_other = malloc(INTO_BYTES);
    setup();
    int socket = fake_raw_peer(port, &other, into_other);
    hot_polls(100);
    size_t length = frame_append(0, 1, 10, 10, &from);
    CU_ASSERT_EQUAL(send(socket, stream, length, MSG_NOSIGNAL), (ssize_t)length);
    int64_t end = fake_now_ms() + 60000;
    while (other->bodies == 0 && fake_now_ms() < end)
        fake_drive(0);
    CU_ASSERT_EQUAL(other->bodies, 1);
    while (owner->bodies < 102 && fake_now_ms() < end)
        fake_drive(0);
    CU_ASSERT_EQUAL(owner->bodies, 102);
    close(socket);
    teardown();
    free(into_other);
}

/* Its end is seen without a watch. */
static void hot_link_that_ends(void)
{
    setup();
    hot_polls(100);
    close(peer);
    peer = -1;
    int64_t end = fake_now_ms() + 60000;
    while (owner->downs == 0 && fake_now_ms() < end)
        bmi__method_tcp.progress(fake_state);
    CU_ASSERT_EQUAL(owner->bodies, 102);
    CU_ASSERT_EQUAL(owner->downs, 1);
    teardown();
}

static void end_between_frames(void)
{
    size_t from = 0;
    setup();
    size_t length = frame_append(0, 1, 10, 10, &from);
    CU_ASSERT_EQUAL(send(peer, stream, length, MSG_NOSIGNAL), (ssize_t)length);
    close(peer);
    peer = -1;
    CU_ASSERT(FAKE_UNTIL(owner->downs == 1));
    CU_ASSERT_EQUAL(owner->bodies, 1);
    CU_ASSERT_EQUAL(owner->status, 0);
    teardown();
}

static void end_within_a_header(void)
{
    size_t from = 0;
    setup();
    frame_append(0, 1, 10, 10, &from);
    CU_ASSERT_EQUAL(send(peer, stream, 39, MSG_NOSIGNAL), 39);
    close(peer);
    peer = -1;
    CU_ASSERT(FAKE_UNTIL(owner->downs == 1));
    CU_ASSERT_EQUAL(owner->frames, 0);
    CU_ASSERT_EQUAL(owner->status, -ECONNRESET);
    teardown();
}

static void end_within_a_body(void)
{
    size_t from = 0;
    setup();
    frame_append(0, 1, 10, 10, &from);
    CU_ASSERT_EQUAL(send(peer, stream, 49, MSG_NOSIGNAL), 49);
    close(peer);
    peer = -1;
    CU_ASSERT(FAKE_UNTIL(owner->downs == 1));
    CU_ASSERT_EQUAL(owner->bodies, 0);
    CU_ASSERT_EQUAL(owner->status, -ECONNRESET);
    teardown();
}

static void reset_by_peer(void)
{
    struct linger hard = {.l_onoff = 1};
    size_t from = 0;
    setup();
    size_t length = frame_append(0, 1, 10, 10, &from);
    peer_write(stream, length);
    CU_ASSERT(FAKE_UNTIL(owner->bodies == 1));
    setsockopt(peer, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
    close(peer);
    peer = -1;
    CU_ASSERT(FAKE_UNTIL(owner->downs == 1));
    CU_ASSERT_EQUAL(owner->status, -ECONNRESET);
    CU_ASSERT_EQUAL(fake_counters[BMI_COUNT_LINKS_FAILED], 1);
    teardown();
}

static void garbage_ends_that_link_only(void)
{
    struct fake_owner *other;
    uint8_t *half = into + INTO_BYTES / 2;
    size_t from = 0;
    setup();
    int good = fake_raw_peer(port, &other, half);
    memset(stream, 0xee, 64);
    CU_ASSERT_EQUAL(send(peer, stream, 64, MSG_NOSIGNAL), 64);
    CU_ASSERT(FAKE_UNTIL(owner->downs == 1));
    CU_ASSERT_EQUAL(owner->status, -EPROTO);
    CU_ASSERT_EQUAL(fake_counters[BMI_COUNT_BAD_FRAMES], 1);

    size_t length = frame_append(0, 1, 10, 10, &from);
    CU_ASSERT_EQUAL(send(good, stream, length, MSG_NOSIGNAL), (ssize_t)length);
    CU_ASSERT(FAKE_UNTIL(other->bodies == 1));
    CU_ASSERT(holds_pattern(half, 10, 0));
    CU_ASSERT_EQUAL(other->downs, 0);
    close(good);
    teardown();
}

static atomic_bool writer_in, writer_may_leave;

static void writer_stays(struct fake_owner *at, struct bmi_frame *frame)
{
    (void)at;
    (void)frame;
    atomic_store(&writer_in, true);
    while (!atomic_load(&writer_may_leave))
        sched_yield();
}

static void *writer_run(void *argument)
{
    struct bmi_frame *frame = argument;
    bmi__method_tcp.send(owner->link, frame);
    bmi__method_tcp.flush(owner->link);
    return NULL;
}

/* The end of a link waits for the writing thread. Meanwhile nothing more is read, and the first
 * status stays. */
static void garbage_while_another_writes(void)
{
    struct bmi_frame frame = {0};
    pthread_t writer;
    size_t from = 0;
    setup();
    owner->on_sent = writer_stays;
    fake_header_write(frame.header, 1, 0, 0);
    pthread_create(&writer, NULL, writer_run, &frame);
    CU_ASSERT(FAKE_UNTIL(atomic_load(&writer_in)));
    memset(stream, 0xee, 64);
    CU_ASSERT_EQUAL(send(peer, stream, 64, MSG_NOSIGNAL), 64);
    CU_ASSERT(FAKE_UNTIL(fake_counters[BMI_COUNT_BAD_FRAMES] == 1));
    size_t length = frame_append(0, 1, 10, 10, &from);
    CU_ASSERT_EQUAL(send(peer, stream, length, MSG_NOSIGNAL), (ssize_t)length);
    shutdown(peer, SHUT_WR);
    for (int i = 0; i < 10; i++)
        fake_drive(1);
    CU_ASSERT_EQUAL(owner->frames, 0);
    CU_ASSERT_EQUAL(owner->downs, 0);
    atomic_store(&writer_may_leave, true);
    CU_ASSERT(FAKE_UNTIL(owner->downs == 1));
    pthread_join(writer, NULL);
    CU_ASSERT_EQUAL(owner->status, -EPROTO);
    CU_ASSERT_EQUAL(owner->frames, 0);
    teardown();
}

/* ---- after close ---------------------------------------------------------------------------- */

static void close_lingering(struct fake_owner *at)
{
    bmi__method_tcp.close(at->link, true);
}

/* The core closes the link when it sees a frame: it gets none of the frames behind it, which
 * have arrived already; the body of that frame arrives. */
static void nothing_is_shown_after_close(void)
{
    size_t from = 0, length = 0;
    setup();
    owner->on_frame = close_lingering;
    for (uint32_t i = 0; i < 5; i++)
        length = frame_append(length, i, 100, 100, &from);
    peer_write(stream, length);
    CU_ASSERT(FAKE_UNTIL(owner->downs == 1));
    CU_ASSERT_EQUAL(owner->frames, 1);
    CU_ASSERT_EQUAL(owner->bodies, 1);
    CU_ASSERT(holds_pattern(into, 100, 0));
    CU_ASSERT_EQUAL(owner->status, 0);
    teardown();
}

/* The same while the link lingers: the peer does not read the queued data, and sends on. */
static void nothing_is_shown_while_lingering(void)
{
    static uint8_t bytes[4 << 20], sunk[1 << 16];
    void *buffer = bytes;
    bmi_size_t size = sizeof(bytes);
    struct bmi_frame frame = {
        .body = {.buffers = &buffer, .sizes = &size, .count = 1, .left = size}};
    size_t from = 0, length = 0, read_back = 0;
    ssize_t got;
    setup();
    fake_header_write(frame.header, 1, sizeof(bytes), sizeof(bytes));
    bmi__method_tcp.send(owner->link, &frame);
    bmi__method_tcp.flush(owner->link);
    bmi__method_tcp.close(owner->link, true);
    owner->takes_whole = true;
    for (uint32_t i = 0; i < 50; i++)
        length = frame_append(length, i, 1000, 1000, &from);
    for (int i = 0; i < 40; i++)
        peer_write(stream, length); /* read, or this would not end */
    CU_ASSERT_EQUAL(owner->frames, 0);
    CU_ASSERT_EQUAL(owner->downs, 0);
    while ((got = recv(peer, sunk, sizeof(sunk), MSG_DONTWAIT)) != 0) {
        if (got > 0)
            read_back += (size_t)got;
        else if (errno != EAGAIN)
            break;
        fake_drive(0);
    }
    CU_ASSERT_EQUAL(read_back, sizeof(bytes) + BMI_FRAME_HEADER);
    CU_ASSERT(FAKE_UNTIL(owner->downs == 1));
    CU_ASSERT_EQUAL(owner->frames, 0);
    CU_ASSERT_EQUAL(owner->sent, 1);
    CU_ASSERT_EQUAL(owner->status, 0);
    teardown();
}

/* An owner that was notified of a link's end frees the buffers for its incoming data. */
static void nothing_is_written_after_close(void)
{
    size_t from = 0, length;
    setup();
    length = frame_append(0, 1, 1000, 1000, &from);
    peer_write(stream, length / 2);
    CU_ASSERT(FAKE_UNTIL(owner->frames == 1));
    memset(into, 0, 1000);
    fake_method->close(owner->link, false);
    CU_ASSERT_EQUAL(send(peer, stream + length / 2, length - length / 2, 0),
                    (ssize_t)(length - length / 2));
    CU_ASSERT(fake_method->progress(fake_state) > 0); /* it is the hot link */
    for (size_t i = 0; i < 1000; i++)
        CU_ASSERT_EQUAL(into[i], 0);
    CU_ASSERT_EQUAL(owner->bodies, 0);
    CU_ASSERT(FAKE_UNTIL(owner->downs == 1));
    teardown();
}

/* ---- turns ---------------------------------------------------------------------------------- */

/* The cost that a frame of a misbehaving peer may cause. */
static void frame_cost(struct fake_owner *costly)
{
    int64_t until = fake_now_ms() + 2; /* more than 1 ms passes */
    while (costly->frames > 0 && fake_now_ms() < until)
        continue;
}

/* A peer's costly frames do not hold up another peer's frames without bound. */
static void costly_frames_end_the_turn(void)
{
    enum { FRAMES = 64, TURN = 7 };
    struct fake_owner *other;
    setup();
    int socket = fake_raw_peer(port, &other, into);
    for (size_t i = 0; i < FRAMES; i++)
        fake_header_write(stream + i * BMI_FRAME_HEADER, (uint32_t)i * 4, 0, 0);
    owner->on_frame = frame_cost;
    atomic_store(&owner->link->large_expected, 1); /* one frame a read */

    CU_ASSERT_EQUAL(send(peer, stream, FRAMES * BMI_FRAME_HEADER, 0), FRAMES * BMI_FRAME_HEADER);
    CU_ASSERT(FAKE_UNTIL(owner->frames > 0));
    CU_ASSERT(owner->frames <= TURN);
    CU_ASSERT_EQUAL(send(socket, stream, BMI_FRAME_HEADER, 0), BMI_FRAME_HEADER);
    CU_ASSERT(FAKE_UNTIL(other->frames == 1));
    CU_ASSERT(owner->frames <= 3 * TURN);
    CU_ASSERT(FAKE_UNTIL(owner->frames == FRAMES));
    close(socket);
    CU_ASSERT(FAKE_UNTIL(other->downs == 1));
    teardown();
}

/* One poll of the hot link takes a burst of requests, which are read one by one, and no more than
 * the header of a large message behind them. */
static void requests_share_a_turn(void)
{
    enum { REQUESTS = 20, LARGE = 100000 };
    size_t from = 0, length = 0;
    setup();
    atomic_store(&owner->link->large_expected, 1);
    peer_write(stream, frame_append(0, 0, 0, 0, &from));
    CU_ASSERT(FAKE_UNTIL(owner->frames == 1)); /* it is the hot link */
    for (uint32_t i = 0; i < REQUESTS; i++)
        length = frame_append(length, 4 * i, 0, 0, &from);
    length = frame_append(length, 4 * REQUESTS, LARGE, LARGE, &from);
    CU_ASSERT_EQUAL(send(peer, stream, length, 0), (ssize_t)length);
    CU_ASSERT(fake_method->progress(fake_state) > 0);
    CU_ASSERT_EQUAL(owner->frames, 1 + REQUESTS + 1);
    CU_ASSERT_EQUAL(owner->bodies, 0);
    CU_ASSERT(FAKE_UNTIL(owner->bodies == 1));
    CU_ASSERT(holds_pattern(into, LARGE, 0));
    CU_ASSERT_EQUAL(fake_counters[BMI_COUNT_COPIES], 0);
    teardown();
}

int main(void)
{
    into = malloc(INTO_BYTES);
    stream = malloc(INTO_BYTES);
    CU_initialize_registry();
    CU_pSuite suite = CU_add_suite("tcp receive", NULL, NULL);
    CU_ADD_TEST(suite, byte_by_byte);
    CU_ADD_TEST(suite, split_at_every_place);
    CU_ADD_TEST(suite, long_list_with_empty_segments);
    CU_ADD_TEST(suite, large_bodies_are_not_read_ahead);
    CU_ADD_TEST(suite, small_frames_are_read_together);
    CU_ADD_TEST(suite, drained_body_leaves_no_trace);
    CU_ADD_TEST(suite, retract_in_mid_body);
    CU_ADD_TEST(suite, retract_behind_a_body);
    CU_ADD_TEST(suite, retract_by_another_thread);
    CU_ADD_TEST(suite, hot_link_is_polled);
    CU_ADD_TEST(suite, hot_link_needs_no_watch);
    CU_ADD_TEST(suite, hot_link_that_cools);
    CU_ADD_TEST(suite, hot_link_that_ends);
    CU_ADD_TEST(suite, end_between_frames);
    CU_ADD_TEST(suite, end_within_a_header);
    CU_ADD_TEST(suite, end_within_a_body);
    CU_ADD_TEST(suite, reset_by_peer);
    CU_ADD_TEST(suite, garbage_ends_that_link_only);
    CU_ADD_TEST(suite, garbage_while_another_writes);
    CU_ADD_TEST(suite, nothing_is_shown_after_close);
    CU_ADD_TEST(suite, nothing_is_shown_while_lingering);
    CU_ADD_TEST(suite, nothing_is_written_after_close);
    CU_ADD_TEST(suite, costly_frames_end_the_turn);
    CU_ADD_TEST(suite, requests_share_a_turn);
    CU_basic_set_mode(CU_BRM_VERBOSE);
    CU_basic_run_tests();
    unsigned failures = CU_get_number_of_failures();
    CU_cleanup_registry();
    free(into);
    free(stream);
    return failures > 0;
}
