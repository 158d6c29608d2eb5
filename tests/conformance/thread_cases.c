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
    struct rank *rank;
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

static void wait_until_waiting(struct rank *rank, bmi_context_id context)
{
    struct bmi_context_statistics statistics = {.context = context};
    int64_t deadline = now_ms() + SOON_MS * patience();
    while (statistics.waiters == 0) {
        NEED(rank, now_ms() < deadline);
        NEED_STATUS(rank, BMI_get_info(0, BMI_GET_CONTEXT_STATISTICS, &statistics), 0);
        sched_yield();
    }
}

/* A receive whose completion the waiter should see. */
static bmi_op_id_t receive_for(struct rank *rank, struct waiter *waiter, char *byte,
                               bmi_msg_tag_t tag)
{
    bmi_op_id_t id;
    bmi_size_t actual;
    NEED_STATUS(rank,
                BMI_post_recv(&id, rank->peer, byte, 1, &actual, BMI_EXT_ALLOC, tag, byte,
                              waiter->context, NULL),
                0);
    return id;
}

static void expect_first(struct rank *rank, struct waiter *waiter, bmi_op_id_t id, void *user_ptr,
                         bmi_error_code_t error)
{
    CHECK_EQUAL(rank, atomic_load(&waiter->got), 1);
    CHECK_EQUAL(rank, waiter->first_id, id);
    CHECK(rank, waiter->first_user_ptr == user_ptr);
    CHECK_STATUS(rank, waiter->first_error, error);
}

/* Only the waiter makes progress: the post must wake it, so that it sends the posted message. The
 * first message also has to connect. */
static void post_wakes(struct rank *rank)
{
    timers_quieten(rank);
    for (int i = 0; i < 5; i++) {
        struct waiter waiter = {.rank = rank, .wanted = 1};
        char byte = 0;
        struct op op;
        NEED_STATUS(rank, BMI_open_context(&waiter.context), 0);
        bmi_op_id_t id = receive_for(rank, &waiter, &byte, 10 + rank_other(rank));
        pthread_t thread = rank_thread(rank, waiter_run, &waiter);
        wait_until_waiting(rank, waiter.context);
        rank_barrier_idle(rank);
        int64_t start = now_ms();
        op_send(rank, &op, "b", 1, 10 + rank->role);
        pthread_join(thread, NULL);
        CHECK(rank, now_ms() - start < SOON_MS * patience());
        expect_first(rank, &waiter, id, &byte, 0);
        CHECK_EQUAL(rank, byte, 'b');
        op_finish(rank, &op, 1);
        rank_barrier(rank);
        BMI_close_context(waiter.context);
    }
}

static void cancel_wakes(struct rank *rank)
{
    timers_quieten(rank);
    for (int i = 0; i < 5; i++) {
        struct waiter waiter = {.rank = rank, .wanted = 1};
        char byte = 0;
        NEED_STATUS(rank, BMI_open_context(&waiter.context), 0);
        bmi_op_id_t id = receive_for(rank, &waiter, &byte, 1);
        pthread_t thread = rank_thread(rank, waiter_run, &waiter);
        wait_until_waiting(rank, waiter.context);
        int64_t start = now_ms();
        CHECK_STATUS(rank, BMI_cancel(id, waiter.context), 0);
        pthread_join(thread, NULL);
        CHECK(rank, now_ms() - start < SOON_MS * patience());
        expect_first(rank, &waiter, id, &byte, -BMI_ECANCEL);
        BMI_close_context(waiter.context);
    }
}

/* Several threads wait, each in its own context; each gets its own completion only, independent of
 * the poller; a poller that leaves hands over to a follower. */
static void contexts_of_threads(struct rank *rank)
{
    enum { THREADS = 6 };
    struct waiter waiters[THREADS];
    pthread_t threads[THREADS];
    char bytes[THREADS];
    bmi_op_id_t ids[THREADS];
    int order[THREADS];
    timers_quieten(rank);
    for (int i = 0; i < THREADS; i++) {
        waiters[i] = (struct waiter){.rank = rank, .wanted = 1};
        order[i] = i;
        NEED_STATUS(rank, BMI_open_context(&waiters[i].context), 0);
        ids[i] = receive_for(rank, &waiters[i], &bytes[i], 10 * i + rank_other(rank));
        threads[i] = rank_thread(rank, waiter_run, &waiters[i]);
        wait_until_waiting(rank, waiters[i].context);
    }
    rank_barrier_idle(rank);
    random_shuffle(order, THREADS, 3);
    for (int i = 0; i < THREADS; i++) {
        struct op op;
        int k = order[i];
        op_send(rank, &op, "b", 1, 10 * k + rank->role);
        pthread_join(threads[k], NULL);
        expect_first(rank, &waiters[k], ids[k], &bytes[k], 0);
        op_finish(rank, &op, 1);
        rank_barrier_idle(rank);
    }
    for (int i = 0; i < THREADS; i++)
        BMI_close_context(waiters[i].context);
}

/* Several threads on one context: each completion goes to one of them. */
static void threads_of_one_context(struct rank *rank)
{
    enum { THREADS = 4, MESSAGES = 400 };
    struct waiter waiters[THREADS];
    pthread_t threads[THREADS];
    char bytes[MESSAGES];
    bmi_context_id context;
    struct waiter posts = {0};
    int total = 0;
    NEED_STATUS(rank, BMI_open_context(&context), 0);
    posts.context = context;
    for (int i = 0; i < MESSAGES; i++)
        receive_for(rank, &posts, &bytes[i], 10 + rank_other(rank));
    for (int i = 0; i < THREADS; i++) {
        waiters[i] = (struct waiter){.rank = rank, .wanted = 1, .context = context};
        threads[i] = rank_thread(rank, waiter_run, &waiters[i]);
    }
    rank_barrier_idle(rank);
    for (int i = 0; i < MESSAGES; i++) {
        struct op op;
        op_send(rank, &op, "b", 1, 10 + rank->role);
        op_finish(rank, &op, 1);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        total += atomic_load(&waiters[i].got);
    }
    struct waiter rest = {.rank = rank, .wanted = MESSAGES - total, .context = context};
    waiter_run(&rest);
    CHECK_EQUAL(rank, total + atomic_load(&rest.got), MESSAGES);
    for (int i = 0; i < MESSAGES; i++)
        CHECK_EQUAL(rank, bytes[i], 'b');
    rank_barrier(rank);
    BMI_close_context(context);
}

/* ---- testunexpected and testcontext, each in a thread ---------------------------------------- */

struct unexpected_waiter {
    struct rank *rank;
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

static void both_waits(struct rank *rank)
{
    enum { ROUNDS = 50 };
    struct op op;
    if (rank->role == SENDER) {
        rank_barrier(rank);
        for (int i = 0; i < ROUNDS; i++) {
            if (i % 2)
                op_send(rank, &op, "b", 1, 1);
            else
                op_send_unexpected(rank, &op, "u", 1, 1);
            op_finish(rank, &op, 1);
        }
        return;
    }
    struct waiter expected = {.rank = rank, .wanted = ROUNDS / 2};
    struct unexpected_waiter unexpected = {.rank = rank, .wanted = ROUNDS / 2};
    char bytes[ROUNDS / 2];
    NEED_STATUS(rank, BMI_open_context(&expected.context), 0);
    for (int i = 0; i < ROUNDS / 2; i++)
        receive_for(rank, &expected, &bytes[i], 1);
    pthread_t first = rank_thread(rank, waiter_run, &expected);
    pthread_t second = rank_thread(rank, unexpected_run, &unexpected);
    int64_t start = now_ms();
    rank_barrier_idle(rank);
    pthread_join(first, NULL);
    pthread_join(second, NULL);
    CHECK(rank, now_ms() - start < SOON_MS * patience());
    CHECK_EQUAL(rank, atomic_load(&expected.got), ROUNDS / 2);
    CHECK_EQUAL(rank, unexpected.got, ROUNDS / 2);
    BMI_close_context(expected.context);
}

/* ---- *op is stored before its completion can be seen ----------------------------------------- */

enum { STORED = 3000 };

struct stored {
    struct rank *rank;
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

static void id_before_completion(struct rank *rank)
{
    struct stored *stored = memory_take(rank, sizeof *stored);
    stored->rank = rank;
    NEED_STATUS(rank, BMI_open_context(&stored->context), 0);
    pthread_t thread = rank_thread(rank, stored_run, stored);
    for (int i = 0; i < STORED; i++) {
        bmi_size_t actual;
        int posted = rank->role == SENDER
                         ? BMI_post_send(&stored->ids[i], rank->peer, "b", 1, BMI_EXT_ALLOC, 1,
                                         &stored->ids[i], stored->context, NULL)
                         : BMI_post_recv(&stored->ids[i], rank->peer, &stored->bytes[i], 1, &actual,
                                         BMI_EXT_ALLOC, 1, &stored->ids[i], stored->context, NULL);
        NEED(rank, posted == 0 || posted == 1);
        if (posted == 0)
            atomic_fetch_add(&stored->pending, 1);
    }
    atomic_store(&stored->posted_all, true);
    pthread_join(thread, NULL);
    CHECK_EQUAL(rank, stored->wrong, 0);
    CHECK_EQUAL(rank, stored->seen, atomic_load(&stored->pending));
    rank_barrier(rank);
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

static void receive_end(struct rank *rank, bmi_op_id_t id, bmi_context_id context)
{
    bmi_error_code_t error = 0;
    int count = 0;
    while (count == 0)
        NEED(rank, BMI_test(id, &count, &error, NULL, NULL, LONG_MS, context) >= 0);
    CHECK_STATUS(rank, error, -BMI_ECANCEL);
}

/* The cancelled id may belong to another operation, of another context, when the call
 * examines it. */
static void cancel_of_completed(struct rank *rank)
{
    enum { MS = 400 };
    struct late late = {.id = 0};
    bmi_context_id other;
    char byte;
    bmi_size_t actual;
    NEED_STATUS(rank, BMI_open_context(&late.context), 0);
    NEED_STATUS(rank, BMI_open_context(&other), 0);
    pthread_t thread = rank_thread(rank, late_run, &late);
    for (int64_t end = now_ms() + MS; now_ms() < end;) {
        bmi_op_id_t id;
        NEED_STATUS(rank,
                    BMI_post_recv(&id, rank->peer, &byte, 1, &actual, BMI_EXT_ALLOC, 1, NULL,
                                  late.context, NULL),
                    0);
        atomic_store(&late.id, id);
        receive_end(rank, id, late.context);
        NEED_STATUS(rank,
                    BMI_post_recv(&id, rank->peer, &byte, 1, &actual, BMI_EXT_ALLOC, 2, NULL, other,
                                  NULL),
                    0);
        NEED_STATUS(rank, BMI_cancel(id, other), 0);
        receive_end(rank, id, other);
    }
    atomic_store(&late.over, true);
    pthread_join(thread, NULL);
    CHECK(rank, atomic_load(&late.cancels) > 0);
    CHECK_EQUAL(rank, atomic_load(&late.refused), 0);
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
