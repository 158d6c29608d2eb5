/* SPDX-License-Identifier: BSD-3-Clause
 *
 * threads_stress.c - eight threads post, test, and cancel at random; every byte is verified.
 *
 *   threads_stress ADDRESS [self|pair|mutual]
 *
 * self: one process that talks to its own address. pair: a client looked a server up, which replies
 * to the address of a first unexpected message. mutual: both look each other up, and both connect
 * at once. Each thread picks streams at random and takes steps at both their ends (stream.h), uses
 * all three test calls on two contexts that all share and one of its own, fetches unexpected
 * messages and keeps their buffers for a while, and cancels operations that are outstanding, or
 * were reported long ago.
 *
 * BMI_TEST_SCALE 1 is five seconds.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "stream.h"

enum { WORKERS = 8, STREAMS_MAX = 32, SHARED_CONTEXTS = 2, BATCH = 16, KEPT = 8, STALE = 8 };
enum { HELLO_TAG = 77 };

enum variant { SELF, PAIR, MUTUAL };

struct shared {
    struct ledger ledgers[STREAMS_MAX];
    atomic_ulong reports; /* completions and messages that any thread got: the watchdog's pulse */
    char listening[2][BMI_MAX_ADDR_LEN];
};

struct worker {
    pthread_t thread;
    struct chance chance;
    bmi_context_id own;
    struct slot *mine[BATCH]; /* pending in our own context; NULL: none */
    bmi_op_id_t stale[STALE];
    bmi_context_id stale_context[STALE];
    struct BMI_unexpected_info kept[KEPT]; /* buffers not given back yet */
    uint64_t fetched[STREAMS_MAX];         /* UNEXPECTED: last number + 1 */
};

static const char *address;
static enum variant variant;
static struct shared *shared;
static struct stream streams[STREAMS_MAX];
static unsigned stream_count;
static bmi_context_id contexts[SHARED_CONTEXTS];
static uint64_t stop_at;
static struct worker workers[WORKERS];
static pthread_mutex_t finish_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t finish_changed = PTHREAD_COND_INITIALIZER;
static int finished; /* workers; guarded by finish_lock */

static void pulse(unsigned long count)
{
    atomic_fetch_add_explicit(&shared->reports, count, memory_order_relaxed);
}

/* ---- actions of a worker --------------------------------------------------------------------- */

static struct stream *any_stream(struct worker *worker)
{
    return &streams[chance_below(&worker->chance, stream_count)];
}

static struct slot *any_slot(struct worker *worker)
{
    struct stream *stream = any_stream(worker);
    struct side *side = chance_below(&worker->chance, 2) ? &stream->sending : &stream->receiving;
    return &side->slots[chance_below(&worker->chance, SLOTS)];
}

static int free_place(const struct worker *worker)
{
    for (int i = 0; i < BATCH; i++)
        if (!worker->mine[i])
            return i;
    return -1;
}

static void step(struct worker *worker)
{
    struct stream *stream = any_stream(worker);
    struct posting posting = {.chance = &worker->chance};
    int place = chance_below(&worker->chance, 2) ? free_place(worker) : -1;
    posting.context =
        place >= 0 ? worker->own : contexts[chance_below(&worker->chance, SHARED_CONTEXTS)];
    posting.anybody = place < 0;
    bool done = false;
    if (stream->sends_here && chance_below(&worker->chance, 2))
        done = stream_send_step(stream, &posting, now_ns() > stop_at);
    else if (stream->receives_here)
        done = stream_receive_step(stream, &posting);
    if (place >= 0)
        worker->mine[place] = posting.pending;
    pulse(done);
}

static int wait_choose(struct worker *worker)
{
    static const int waits[] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 5};
    return waits[chance_below(&worker->chance, sizeof waits / sizeof waits[0])];
}

static void stale_note(struct worker *worker, bmi_op_id_t id, bmi_context_id context)
{
    unsigned place = (unsigned)chance_below(&worker->chance, STALE);
    worker->stale[place] = id;
    worker->stale_context[place] = context;
}

static void test_shared_context(struct worker *worker)
{
    bmi_op_id_t ids[BATCH];
    bmi_error_code_t statuses[BATCH];
    bmi_size_t sizes[BATCH];
    void *users[BATCH];
    int count = -1, limit = 1 + (int)chance_below(&worker->chance, BATCH);
    bmi_context_id context = contexts[chance_below(&worker->chance, SHARED_CONTEXTS)];
    int result = must(BMI_testcontext(limit, ids, &count, statuses, sizes, users,
                                      wait_choose(worker), context),
                      "BMI_testcontext");
    CHECK(count >= 0 && count <= limit && result == (count > 0), "%d of %d completions", count,
          limit);
    for (int i = 0; i < count; i++) {
        slot_complete(users[i], ids[i], statuses[i], sizes[i]);
        stale_note(worker, ids[i], context);
    }
    pulse((unsigned long)count);
}

static void test_own_one(struct worker *worker)
{
    struct slot **place = &worker->mine[chance_below(&worker->chance, BATCH)];
    if (!*place)
        return;
    struct slot *slot = *place;
    bmi_op_id_t id = slot->id;
    int count = -1;
    bmi_error_code_t status;
    bmi_size_t size;
    void *user;
    must(BMI_test(id, &count, &status, &size, &user, wait_choose(worker), worker->own), "BMI_test");
    if (count == 0)
        return;
    CHECK(count == 1 && user == slot, "BMI_test told of another operation");
    *place = NULL;
    slot_complete(slot, id, status, size);
    stale_note(worker, id, worker->own);
    pulse(1);
}

static void test_own_some(struct worker *worker)
{
    bmi_op_id_t ids[BATCH];
    int places[BATCH], count = -1;
    bmi_error_code_t statuses[BATCH];
    bmi_size_t sizes[BATCH];
    void *users[BATCH];
    unsigned pending = 0;
    for (int i = 0; i < BATCH; i++) {
        ids[i] = worker->mine[i] ? worker->mine[i]->id : 0;
        pending += ids[i] != 0;
    }
    if (pending == 0)
        return;
    must(BMI_testsome(BATCH, ids, &count, places, statuses, sizes, users, wait_choose(worker),
                      worker->own),
         "BMI_testsome");
    CHECK(count >= 0 && count <= (int)pending, "BMI_testsome told of %d of %u", count, pending);
    for (int i = 0; i < count; i++) {
        int place = places[i];
        CHECK(place >= 0 && place < BATCH && worker->mine[place] == users[i],
              "BMI_testsome told of another operation");
        worker->mine[place] = NULL;
        slot_complete(users[i], ids[place], statuses[i], sizes[i]);
    }
    pulse((unsigned long)count);
}

static struct stream *stream_of_tag(bmi_msg_tag_t tag)
{
    for (unsigned i = 0; i < stream_count; i++)
        if (streams[i].tag == tag && streams[i].kind == UNEXPECTED && streams[i].receives_here)
            return &streams[i];
    CHECK(false, "an unexpected message with tag %d", tag);
    return NULL;
}

static void give_back(struct BMI_unexpected_info *info)
{
    if (!info->buffer)
        return;
    must(BMI_unexpected_free(info->addr, info->buffer), "BMI_unexpected_free");
    info->buffer = NULL;
}

static void fetch(struct worker *worker)
{
    struct BMI_unexpected_info infos[BATCH];
    int count = -1, limit = 1 + (int)chance_below(&worker->chance, BATCH);
    must(BMI_testunexpected(limit, &count, infos, wait_choose(worker)), "BMI_testunexpected");
    CHECK(count >= 0 && count <= limit, "%d of %d unexpected messages", count, limit);
    for (int i = 0; i < count; i++) {
        struct stream *stream = stream_of_tag(infos[i].tag);
        CHECK(variant != PAIR || infos[i].addr == stream->peer,
              "an unexpected message from somebody else");
        uint64_t number = stream_take(stream, &infos[i]);
        CHECK(number >= worker->fetched[stream->index],
              "stream %u: unexpected message %llu came after %llu", stream->index,
              (unsigned long long)number, (unsigned long long)worker->fetched[stream->index] - 1);
        worker->fetched[stream->index] = number + 1;
        struct BMI_unexpected_info *kept = &worker->kept[chance_below(&worker->chance, KEPT)];
        give_back(kept);
        *kept = infos[i];
    }
    pulse((unsigned long)count);
}

/* Ids that were reported long ago: refused, or at least without effect on the slot's
 * present owner. */
static void stale_use(struct worker *worker)
{
    unsigned place = (unsigned)chance_below(&worker->chance, STALE);
    bmi_op_id_t id = worker->stale[place];
    if (id == 0)
        return;
    int result = BMI_cancel(id, worker->stale_context[place]);
    CHECK(result == 0 || result == -BMI_EINVAL, "BMI_cancel of a stale id: %s",
          status_name(result));
    int count = 0;
    bmi_error_code_t status;
    result = BMI_test(id, &count, &status, NULL, NULL, 0, worker->stale_context[place]);
    CHECK(count == 0 && (result == 0 || result == -BMI_EINVAL), "BMI_test of a stale id: %s",
          status_name(result));
}

static bool all_finished(void)
{
    for (unsigned i = 0; i < stream_count; i++)
        if (!stream_finished(&streams[i]))
            return false;
    return true;
}

static void act(struct worker *worker)
{
    unsigned choice = (unsigned)chance_below(&worker->chance, 100);
    if (choice < 45)
        step(worker);
    else if (choice < 65)
        test_shared_context(worker);
    else if (choice < 72)
        test_own_one(worker);
    else if (choice < 82)
        test_own_some(worker);
    else if (choice < 90)
        fetch(worker);
    else if (choice < 93)
        slot_test(any_slot(worker));
    else if (choice < 95)
        stale_use(worker);
    else if (choice < 99)
        slot_cancel(any_slot(worker), false);
    else
        give_back(&worker->kept[chance_below(&worker->chance, KEPT)]);
}

static void *work(void *argument)
{
    struct worker *worker = argument;
    do {
        for (int i = 0; i < 64; i++)
            act(worker);
    } while (!all_finished());
    for (int i = 0; i < KEPT; i++)
        give_back(&worker->kept[i]);
    pthread_mutex_lock(&finish_lock);
    finished++;
    pthread_cond_signal(&finish_changed);
    pthread_mutex_unlock(&finish_lock);
    return NULL;
}

/* ---- a process ------------------------------------------------------------------------------- */

static void dump(void)
{
    for (unsigned i = 0; i < stream_count; i++)
        if (atomic_load(&streams[i].ledger->phase) != FINISHED || !stream_finished(&streams[i]))
            stream_print(&streams[i]);
}

/* Waits for the workers; fails if no completion is reported for a while. */
static void watch(void)
{
    unsigned long before = 0;
    unsigned quiet = 0;
    pthread_mutex_lock(&finish_lock);
    while (finished < WORKERS) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec++;
        int result = pthread_cond_timedwait(&finish_changed, &finish_lock, &until);
        unsigned long now = atomic_load(&shared->reports);
        quiet = now == before && result == ETIMEDOUT ? quiet + 1 : 0;
        before = now;
        if (quiet > TEST_BOUND_MS / 1000)
            dump();
        CHECK(quiet <= TEST_BOUND_MS / 1000, "nothing is reported any more");
    }
    pthread_mutex_unlock(&finish_lock);
}

static void workers_run(int process)
{
    for (int i = 0; i < WORKERS; i++) {
        workers[i].chance.state = test_seed() + (uint64_t)(process * WORKERS + i) * 7919u;
        must(BMI_open_context(&workers[i].own), "BMI_open_context");
        int result = pthread_create(&workers[i].thread, NULL, work, &workers[i]);
        CHECK(result == 0, "pthread_create: %s", strerror(result));
    }
    watch();
    for (int i = 0; i < WORKERS; i++) {
        pthread_join(workers[i].thread, NULL);
        BMI_close_context(workers[i].own);
    }
}

/* No memory and no operation may be left in the library. */
static void gauges_check(void)
{
    uint64_t until = now_ns() + TEST_BOUND_MS * UINT64_C(1000000);
    struct bmi_statistics gauges;
    do {
        int count;
        struct completion none;
        struct BMI_unexpected_info info;
        CHECK(!next_completion(contexts[0], 10, &none), "a completion of nothing");
        must(BMI_testunexpected(1, &count, &info, 0), "BMI_testunexpected");
        CHECK(count == 0, "an unexpected message that nobody sent");
        gauges = statistics_of(0);
    } while ((gauges.outstanding_sends || gauges.outstanding_receives ||
              gauges.unmatched_messages || gauges.unexpected_waiting) &&
             now_ns() < until);
    CHECK(gauges.outstanding_sends == 0 && gauges.outstanding_receives == 0,
          "%llu sends and %llu receives are outstanding in the library",
          (unsigned long long)gauges.outstanding_sends,
          (unsigned long long)gauges.outstanding_receives);
    CHECK(gauges.unmatched_messages == 0 && gauges.unmatched_bytes == 0,
          "%llu unmatched messages of %llu bytes are left",
          (unsigned long long)gauges.unmatched_messages,
          (unsigned long long)gauges.unmatched_bytes);
    CHECK(gauges.unexpected_waiting == 0 && gauges.unexpected_bytes == 0,
          "%llu unexpected messages of %llu bytes are left",
          (unsigned long long)gauges.unexpected_waiting,
          (unsigned long long)gauges.unexpected_bytes);
}

static BMI_addr_t hello_wait(void)
{
    struct BMI_unexpected_info info;
    int count = 0;
    while (count == 0)
        must(BMI_testunexpected(1, &count, &info, 100), "BMI_testunexpected");
    CHECK(info.tag == HELLO_TAG, "a hello with tag %d", info.tag);
    must(BMI_unexpected_free(info.addr, info.buffer), "BMI_unexpected_free");
    return info.addr;
}

static void hello_send(BMI_addr_t peer)
{
    bmi_op_id_t id;
    struct completion completion;
    int result = must(BMI_post_sendunexpected(&id, peer, "hello", 6, BMI_EXT_ALLOC, HELLO_TAG, NULL,
                                              contexts[0], NULL),
                      "hello");
    while (result == 0 && !next_completion(contexts[0], 100, &completion))
        ;
    CHECK(result == 1 || completion.status == 0, "hello: %s", status_name(completion.status));
}

static BMI_addr_t peer_find(int process, int channel)
{
    BMI_addr_t peer;
    int other = variant == SELF ? process : !process;
    if (variant != SELF) { /* both are listening from here on */
        tell_number(channel, 1);
        hear_number(channel);
    }
    if (variant == PAIR && process == 0)
        return hello_wait();
    must(BMI_addr_lookup(&peer, shared->listening[other]), "BMI_addr_lookup");
    if (variant == PAIR)
        hello_send(peer);
    return peer;
}

static void streams_prepare(int process, BMI_addr_t peer)
{
    int unexpected_max = 0;
    must(BMI_get_info(peer, BMI_GET_UNEXP_SIZE, &unexpected_max), "BMI_GET_UNEXP_SIZE");
    for (unsigned i = 0; i < stream_count; i++) {
        struct stream *stream = &streams[i];
        int sender = variant == SELF ? 0 : (int)(i / stream_kinds());
        stream_describe(stream, i, i % stream_kinds());
        stream->ledger = &shared->ledgers[i];
        stream->sends_here = sender == process;
        stream->receives_here = variant == SELF || sender != process;
        stream_open(stream, peer, unexpected_max);
    }
}

static int process_run(int process, int channel)
{
    if (variant == PAIR && process == 1)
        must(BMI_initialize(NULL, NULL, 0), "BMI_initialize");
    else
        serve(address, 0, shared->listening[process]);
    for (int i = 0; i < SHARED_CONTEXTS; i++)
        must(BMI_open_context(&contexts[i]), "BMI_open_context");
    streams_prepare(process, peer_find(process, channel));
    stop_at = now_ns() + (uint64_t)(5e9 * test_scale());
    test_dump = dump;
    workers_run(process);
    gauges_check();
    for (unsigned i = 0; i < stream_count; i++) {
        stream_audit(&streams[i]);
        stream_close(&streams[i]);
    }
    for (int i = 0; i < SHARED_CONTEXTS; i++)
        BMI_close_context(contexts[i]);
    if (variant != SELF) { /* neither ends while the other still checks its gauges */
        tell_number(channel, 1);
        hear_number(channel);
    }
    must(BMI_finalize(), "BMI_finalize");
    return 0;
}

static int second(void *argument, int channel)
{
    (void)argument;
    return process_run(1, channel);
}

int main(int argc, char **argv)
{
    address = argc > 1 ? argv[1] : "tcp://127.0.0.1:0";
    const char *name = argc > 2 ? argv[2] : "self";
    variant = strcmp(name, "pair") == 0 ? PAIR : strcmp(name, "mutual") == 0 ? MUTUAL : SELF;
    test_begin("threads_stress", 60);
    printf("threads_stress: %s, %s, %d threads a process\n", address, name, WORKERS);

    shared = shared_memory(sizeof *shared);
    stream_count = stream_kinds() * (variant == SELF ? 1 : 2);
    for (unsigned i = 0; i < stream_count; i++)
        atomic_store(&shared->ledgers[i].total, UINT32_MAX);
    if (variant == SELF) {
        process_run(0, -1);
        return test_passed();
    }
    struct child child = child_start("second", second, NULL);
    process_run(0, child.channel);
    child_end(&child);
    return test_passed();
}
