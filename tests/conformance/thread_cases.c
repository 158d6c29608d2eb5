/* SPDX-License-Identifier: BSD-3-Clause
 *
 * thread_cases.c - "Test": any thread may post, test, and cancel at any time. Here each rule by
 * itself; the stress suite mixes them.
 */
#include "harness.h"

#include <pthread.h>
#include <sched.h>

enum { LONG_MS = 60000, SOON_MS = 30000 };

/* A thread that waits on a context until the order to stop or until `wanted` completions
 * have come. */
struct waiter {
    struct party *party;
    bmi_context_id context;
    int wanted;
    atomic_int got;
    bmi_op_id_t first_id;
    void *first_user_ptr;
    bmi_error_code_t first_error;
};

static void *waiter_run(void *argument)
{
    struct waiter *waiter = argument;
    int64_t deadline = now_ms() + LONG_MS * patience();
    while (atomic_load(&waiter->got) < waiter->wanted && now_ms() < deadline) {
        bmi_op_id_t ids[16];
        bmi_error_code_t errors[16];
        void *user_ptrs[16];
        int count = 0;
        BMI_testcontext(16, ids, &count, errors, NULL, user_ptrs, LONG_MS * patience(),
                        waiter->context);
        if (count > 0 && atomic_load(&waiter->got) == 0) {
            waiter->first_id = ids[0];
            waiter->first_error = errors[0];
            waiter->first_user_ptr = user_ptrs[0];
        }
        atomic_fetch_add(&waiter->got, count);
    }
    return NULL;
}

static pthread_t thread_start(struct party *party, void *(*run)(void *), void *argument)
{
    pthread_t thread;
    NEED(party, pthread_create(&thread, NULL, run, argument) == 0);
    return thread;
}

static void wait_until_waiting(struct party *party, bmi_context_id context)
{
    struct bmi_context_statistics statistics = {.context = context};
    int64_t deadline = now_ms() + SOON_MS * patience();
    while (statistics.waiters == 0) {
        NEED(party, now_ms() < deadline);
        NEED_STATUS(party, BMI_get_info(0, BMI_GET_CONTEXT_STATISTICS, &statistics), 0);
        sched_yield();
    }
}

/* A receive whose completion the waiter should see. */
static bmi_op_id_t receive_for(struct party *party, struct waiter *waiter, char *byte,
                               bmi_msg_tag_t tag)
{
    bmi_op_id_t id;
    bmi_size_t actual;
    NEED_STATUS(party,
                BMI_post_recv(&id, party->peer, byte, 1, &actual, BMI_EXT_ALLOC, tag, byte,
                              waiter->context, NULL),
                0);
    return id;
}

static void expect_first(struct party *party, struct waiter *waiter, bmi_op_id_t id, void *user_ptr,
                         bmi_error_code_t error)
{
    CHECK_EQUAL(party, atomic_load(&waiter->got), 1);
    CHECK_EQUAL(party, waiter->first_id, id);
    CHECK(party, waiter->first_user_ptr == user_ptr);
    CHECK_STATUS(party, waiter->first_error, error);
}

/* Only the waiter makes progress: the post must wake it, so that it sends the posted message. The
 * first message also has to connect. */
static void post_wakes(struct party *party)
{
    timers_quieten(party);
    for (int i = 0; i < 5; i++) {
        struct waiter waiter = {.party = party, .wanted = 1};
        char byte = 0;
        struct op op;
        NEED_STATUS(party, BMI_open_context(&waiter.context), 0);
        bmi_op_id_t id = receive_for(party, &waiter, &byte, 10 + party_other(party));
        pthread_t thread = thread_start(party, waiter_run, &waiter);
        wait_until_waiting(party, waiter.context);
        party_meet_idle(party);
        int64_t start = now_ms();
        op_send(party, &op, "b", 1, 10 + party->role);
        pthread_join(thread, NULL);
        CHECK(party, now_ms() - start < SOON_MS * patience());
        expect_first(party, &waiter, id, &byte, 0);
        CHECK_EQUAL(party, byte, 'b');
        op_finish(party, &op, 1);
        party_meet(party);
        BMI_close_context(waiter.context);
    }
}

static void cancel_wakes(struct party *party)
{
    timers_quieten(party);
    for (int i = 0; i < 5; i++) {
        struct waiter waiter = {.party = party, .wanted = 1};
        char byte = 0;
        NEED_STATUS(party, BMI_open_context(&waiter.context), 0);
        bmi_op_id_t id = receive_for(party, &waiter, &byte, 1);
        pthread_t thread = thread_start(party, waiter_run, &waiter);
        wait_until_waiting(party, waiter.context);
        int64_t start = now_ms();
        CHECK_STATUS(party, BMI_cancel(id, waiter.context), 0);
        pthread_join(thread, NULL);
        CHECK(party, now_ms() - start < SOON_MS * patience());
        expect_first(party, &waiter, id, &byte, -BMI_ECANCEL);
        BMI_close_context(waiter.context);
    }
}

/* Several threads wait, each in its own context; each gets its own completion only, independent of
 * the poller; a poller that leaves hands over to a follower. */
static void contexts_of_threads(struct party *party)
{
    enum { THREADS = 6 };
    struct waiter waiters[THREADS];
    pthread_t threads[THREADS];
    char bytes[THREADS];
    bmi_op_id_t ids[THREADS];
    int order[THREADS];
    timers_quieten(party);
    for (int i = 0; i < THREADS; i++) {
        waiters[i] = (struct waiter){.party = party, .wanted = 1};
        order[i] = i;
        NEED_STATUS(party, BMI_open_context(&waiters[i].context), 0);
        ids[i] = receive_for(party, &waiters[i], &bytes[i], 10 * i + party_other(party));
        threads[i] = thread_start(party, waiter_run, &waiters[i]);
        wait_until_waiting(party, waiters[i].context);
    }
    party_meet_idle(party);
    random_shuffle(order, THREADS, 3);
    for (int i = 0; i < THREADS; i++) {
        struct op op;
        int k = order[i];
        op_send(party, &op, "b", 1, 10 * k + party->role);
        pthread_join(threads[k], NULL);
        expect_first(party, &waiters[k], ids[k], &bytes[k], 0);
        op_finish(party, &op, 1);
        party_meet_idle(party);
    }
    for (int i = 0; i < THREADS; i++)
        BMI_close_context(waiters[i].context);
}

/* Several threads on one context: each completion goes to one of them. */
static void threads_of_one_context(struct party *party)
{
    enum { THREADS = 4, MESSAGES = 400 };
    struct waiter waiters[THREADS];
    pthread_t threads[THREADS];
    static char bytes[ROLES][MESSAGES];
    bmi_context_id context;
    struct waiter posts = {0};
    int total = 0;
    NEED_STATUS(party, BMI_open_context(&context), 0);
    posts.context = context;
    for (int i = 0; i < MESSAGES; i++)
        receive_for(party, &posts, &bytes[party->role][i], 10 + party_other(party));
    for (int i = 0; i < THREADS; i++) {
        waiters[i] = (struct waiter){.party = party, .wanted = 1, .context = context};
        threads[i] = thread_start(party, waiter_run, &waiters[i]);
    }
    party_meet_idle(party);
    for (int i = 0; i < MESSAGES; i++) {
        struct op op;
        op_send(party, &op, "b", 1, 10 + party->role);
        op_finish(party, &op, 1);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        total += atomic_load(&waiters[i].got);
    }
    struct waiter rest = {.party = party, .wanted = MESSAGES - total, .context = context};
    waiter_run(&rest);
    CHECK_EQUAL(party, total + atomic_load(&rest.got), MESSAGES);
    for (int i = 0; i < MESSAGES; i++)
        CHECK_EQUAL(party, bytes[party->role][i], 'b');
    party_meet(party);
    BMI_close_context(context);
}

/* ---- testunexpected and testcontext, each in a thread ---------------------------------------- */

struct unexpected_waiter {
    struct party *party;
    int wanted, got;
};

static void *unexpected_run(void *argument)
{
    struct unexpected_waiter *waiter = argument;
    int64_t deadline = now_ms() + LONG_MS * patience();
    while (waiter->got < waiter->wanted && now_ms() < deadline) {
        struct BMI_unexpected_info info;
        int count = 0;
        BMI_testunexpected(1, &count, &info, LONG_MS * patience());
        if (count == 1)
            BMI_unexpected_free(info.addr, info.buffer);
        waiter->got += count;
    }
    return NULL;
}

static void both_waits(struct party *party)
{
    enum { ROUNDS = 50 };
    struct op op;
    if (party->role == SENDER) {
        party_meet(party);
        for (int i = 0; i < ROUNDS; i++) {
            if (i % 2)
                op_send(party, &op, "b", 1, 1);
            else
                op_send_unexpected(party, &op, "u", 1, 1);
            op_finish(party, &op, 1);
        }
        return;
    }
    struct waiter expected = {.party = party, .wanted = ROUNDS / 2};
    struct unexpected_waiter unexpected = {.party = party, .wanted = ROUNDS / 2};
    char bytes[ROUNDS / 2];
    NEED_STATUS(party, BMI_open_context(&expected.context), 0);
    for (int i = 0; i < ROUNDS / 2; i++)
        receive_for(party, &expected, &bytes[i], 1);
    pthread_t first = thread_start(party, waiter_run, &expected);
    pthread_t second = thread_start(party, unexpected_run, &unexpected);
    int64_t start = now_ms();
    party_meet_idle(party);
    pthread_join(first, NULL);
    pthread_join(second, NULL);
    CHECK(party, now_ms() - start < SOON_MS * patience());
    CHECK_EQUAL(party, atomic_load(&expected.got), ROUNDS / 2);
    CHECK_EQUAL(party, unexpected.got, ROUNDS / 2);
    BMI_close_context(expected.context);
}

/* ---- *op is stored before its completion can be seen ----------------------------------------- */

enum { STORED = 3000 };

struct stored {
    struct party *party;
    bmi_context_id context;
    bmi_op_id_t ids[STORED];
    char bytes[STORED];
    atomic_int pending; /* posted and not immediate */
    atomic_bool posted_all;
    int seen, wrong;
};

static void *stored_run(void *argument)
{
    struct stored *stored = argument;
    int64_t deadline = now_ms() + LONG_MS * patience();
    while (!atomic_load(&stored->posted_all) || stored->seen < atomic_load(&stored->pending)) {
        bmi_op_id_t ids[8];
        bmi_error_code_t errors[8];
        void *user_ptrs[8];
        int count = 0;
        BMI_testcontext(8, ids, &count, errors, NULL, user_ptrs, 10, stored->context);
        for (int i = 0; i < count; i++) {
            bmi_op_id_t *id = user_ptrs[i];
            stored->wrong += *id != ids[i] || ids[i] <= 0 || errors[i] != 0;
        }
        stored->seen += count;
        if (now_ms() > deadline)
            break;
    }
    return NULL;
}

static void id_before_completion(struct party *party)
{
    struct stored *stored = memory_take(party, sizeof *stored);
    stored->party = party;
    NEED_STATUS(party, BMI_open_context(&stored->context), 0);
    pthread_t thread = thread_start(party, stored_run, stored);
    for (int i = 0; i < STORED; i++) {
        bmi_size_t actual;
        int posted =
            party->role == SENDER
                ? BMI_post_send(&stored->ids[i], party->peer, "b", 1, BMI_EXT_ALLOC, 1,
                                &stored->ids[i], stored->context, NULL)
                : BMI_post_recv(&stored->ids[i], party->peer, &stored->bytes[i], 1, &actual,
                                BMI_EXT_ALLOC, 1, &stored->ids[i], stored->context, NULL);
        NEED(party, posted == 0 || posted == 1);
        if (posted == 0)
            atomic_fetch_add(&stored->pending, 1);
    }
    atomic_store(&stored->posted_all, true);
    pthread_join(thread, NULL);
    CHECK_EQUAL(party, stored->wrong, 0);
    CHECK_EQUAL(party, stored->seen, atomic_load(&stored->pending));
    party_meet(party);
    BMI_close_context(stored->context);
    memory_give_back(stored);
}

/* ---- cancels of what completes just then ----------------------------------------------------- */

struct late {
    bmi_context_id context;
    _Atomic bmi_op_id_t id;
    atomic_bool over;
    atomic_uint cancels, refused;
};

static void *late_run(void *argument)
{
    struct late *late = argument;
    while (!atomic_load(&late->over)) {
        bmi_op_id_t id = atomic_load(&late->id);
        if (id == 0)
            continue;
        atomic_fetch_add(&late->refused, BMI_cancel(id, late->context) != 0);
        atomic_fetch_add(&late->cancels, 1);
    }
    return NULL;
}

static void receive_end(struct party *party, bmi_op_id_t id, bmi_context_id context)
{
    bmi_error_code_t error = 0;
    int count = 0;
    while (count == 0)
        NEED(party, BMI_test(id, &count, &error, NULL, NULL, LONG_MS, context) >= 0);
    CHECK_STATUS(party, error, -BMI_ECANCEL);
}

/* The cancelled id may belong to another operation, of another context, when the call
 * examines it. */
static void cancel_of_completed(struct party *party)
{
    enum { MS = 400 };
    struct late late = {.id = 0};
    bmi_context_id other;
    char byte;
    bmi_size_t actual;
    NEED_STATUS(party, BMI_open_context(&late.context), 0);
    NEED_STATUS(party, BMI_open_context(&other), 0);
    pthread_t thread = thread_start(party, late_run, &late);
    for (int64_t end = now_ms() + MS; now_ms() < end;) {
        bmi_op_id_t id;
        NEED_STATUS(party,
                    BMI_post_recv(&id, party->peer, &byte, 1, &actual, BMI_EXT_ALLOC, 1, NULL,
                                  late.context, NULL),
                    0);
        atomic_store(&late.id, id);
        receive_end(party, id, late.context);
        NEED_STATUS(party,
                    BMI_post_recv(&id, party->peer, &byte, 1, &actual, BMI_EXT_ALLOC, 2, NULL,
                                  other, NULL),
                    0);
        NEED_STATUS(party, BMI_cancel(id, other), 0);
        receive_end(party, id, other);
    }
    atomic_store(&late.over, true);
    pthread_join(thread, NULL);
    CHECK(party, atomic_load(&late.cancels) > 0);
    CHECK_EQUAL(party, atomic_load(&late.refused), 0);
    BMI_close_context(other);
    BMI_close_context(late.context);
}

#define SECTION .section = "Test"
const struct conformance_case thread_cases[] = {
    {SECTION, .name = "a post by one thread wakes another's wait", .run = post_wakes},
    {SECTION, .name = "a cancel by one thread wakes another's wait", .run = cancel_wakes,
     .where = SOLO},
    {SECTION, .name = "a cancel of an id that completes, and is used again, just then",
     .run = cancel_of_completed, .where = SOLO},
    {SECTION, .name = "threads wait on contexts of their own", .run = contexts_of_threads},
    {SECTION, .name = "threads wait on one context", .run = threads_of_one_context},
    {SECTION, .name = "testcontext and testunexpected wait in two threads", .run = both_waits},
    {SECTION, .name = "an id is stored before its completion is seen", .run = id_before_completion},
    {0},
};
