/* SPDX-License-Identifier: BSD-3-Clause
 *
 * dir_test.c - the dir backend's folder: refusals and their causes, durability, and the state after
 * a process was killed in the midst of its work; its open files, and its rings.
 */
#include "trove-stub/dir_testing.h"
#include "trove-stub/store.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

static void file_write(const char *name, const char *text)
{
    char path[400];
    snprintf(path, sizeof path, "%s/%s", folder.path, name);
    FILE *file = fopen(path, "w");
    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    fputs(text, file);
    fclose(file);
}

/* ---- opening --------------------------------------------------------------------------------- */

static void a_folder_that_is_no_store_is_refused(void)
{
    CU_ASSERT_EQUAL(store_open(false), -BMI_ENOENT);
    CU_ASSERT_PTR_NOT_NULL(strstr(told, folder.path));
    snprintf(where, sizeof where, "dir:%s", folder.path);
    CU_ASSERT_EQUAL(store_open(false), -BMI_ENOENT);
    CU_ASSERT_PTR_NOT_NULL(strstr(told, "no store"));
    file_write("letter", "precious");
    CU_ASSERT_EQUAL(store_open(true), -BMI_ENOTEMPTY);
    CU_ASSERT_PTR_NOT_NULL(strstr(told, "not empty"));
    snprintf(where, sizeof where, "dir:%s/letter", folder.path);
    CU_ASSERT_EQUAL(store_open(true), -BMI_ENOTDIR);
    snprintf(where, sizeof where, "dir:%s/none/none", folder.path);
    CU_ASSERT_EQUAL(store_open(true), -BMI_ENOENT);
    CU_ASSERT_EQUAL(bmi_trove_open(&store, "disk:/", NULL, told, sizeof told), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_trove_open(&store, "mem:name", NULL, told, sizeof told), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_trove_open(NULL, "mem:", NULL, told, sizeof told), -BMI_EINVAL);
}

static void another_version_is_refused(void)
{
    CU_ASSERT_EQUAL_FATAL(store_open(true), 0);
    CU_ASSERT_EQUAL(bmi_trove_close(store), 0);
    file_write("store/bmi-trove", "bmi-trove 2\n");
    CU_ASSERT_EQUAL(store_open(true), -BMI_EPROTO);
    CU_ASSERT_PTR_NOT_NULL(strstr(told, "version 2"));
    file_write("store/bmi-trove", "something else");
    CU_ASSERT_EQUAL(store_open(true), -BMI_EPROTO);
    file_write("store/bmi-trove", "");
    CU_ASSERT_EQUAL(store_open(false), -BMI_EPROTO);
    file_write("store/bmi-trove", "bmi-trove 1\n");
    CU_ASSERT_EQUAL(store_open(false), 0);
    CU_ASSERT_EQUAL(bmi_trove_close(store), 0);
}

/* An interrupted creation does not prevent a later one. */
static void a_store_half_made_is_made(void)
{
    char path[400];
    snprintf(path, sizeof path, "%s/store", folder.path);
    CU_ASSERT_EQUAL_FATAL(mkdir(path, 0777), 0);
    file_write("store/lock", "1\n");
    file_write("store/bmi-trove.new", "bmi");
    CU_ASSERT_EQUAL(store_open(false), -BMI_ENOENT);
    CU_ASSERT_EQUAL(store_open(true), 0);
    CU_ASSERT_EQUAL(bmi_trove_close(store), 0);
    CU_ASSERT_EQUAL(store_open(false), 0);
    CU_ASSERT_EQUAL(bmi_trove_close(store), 0);
}

/* Holds the store open until it is killed. */
static void holder(void)
{
    char byte = store_open(true) == 0;
    if (write(own_pipe, &byte, 1) != 1)
        _exit(1);
    for (;;)
        pause();
}

static pid_t holder_start(void)
{
    int ready[2];
    char byte = 0;
    CU_ASSERT_EQUAL_FATAL(pipe(ready), 0);
    pid_t child = child_start("holder", 0, ready[1]);
    close(ready[1]);
    CU_ASSERT_EQUAL(read(ready[0], &byte, 1), 1);
    CU_ASSERT_EQUAL(byte, 1);
    close(ready[0]);
    return child;
}

static void a_store_in_use_is_refused_by_name(void)
{
    char number[32];
    pid_t child = holder_start();
    CU_ASSERT_FATAL(child > 0);
    CU_ASSERT_EQUAL(store_open(true), -BMI_EBUSY);
    snprintf(number, sizeof number, "process %d", (int)child);
    CU_ASSERT_PTR_NOT_NULL(strstr(told, number));
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    CU_ASSERT_EQUAL_FATAL(store_open(true), 0);
    struct bmi_trove_store *first = store;
    CU_ASSERT_EQUAL(store_open(true), -BMI_EBUSY); /* by this process */
    CU_ASSERT_EQUAL(bmi_trove_close(first), 0);
}

/* ---- killed ---------------------------------------------------------------------------------- */

enum { PAIRS = 3, RECORD = 5000 };

/* The value of a round: long, and every byte encodes the round. */
static void value_make(char *value, uint32_t round)
{
    memset(value, (int)('a' + round % 26), RECORD);
    memcpy(value, &round, sizeof round);
}

/* Puts the same value under several keys in one list, and writes it into the stream; reports the
 * round when both are on disk. It runs until it is killed. */
static void worker(void)
{
    uint32_t round = own_first;
    static const char *const names[PAIRS] = {"a", "m", "z"};
    char value[RECORD];
    bmi_trove_op_id_t op;
    work_open(round == 1);
    for (;; round++) {
        struct bmi_trove_pair pairs[PAIRS];
        value_make(value, round);
        for (int i = 0; i < PAIRS; i++)
            pairs[i] = (struct bmi_trove_pair){.key = (void *)names[i],
                                               .key_size = 1,
                                               .value = value,
                                               .value_size = RECORD};
        unsigned flags = round % 4 == 0 ? BMI_TROVE_SYNC : 0;
        int result = bmi_trove_post_put(&op, &place, pairs, PAIRS, flags, NULL, context);
        need(!BMI_WITH_LMDB || ended(result, op) == 0);
        result =
            bmi_trove_post_write_at(&op, &place, value, RECORD, (bmi_size_t)(round % 8) * RECORD,
                                    NULL, flags, NULL, context);
        need(ended(result, op) == 0);
        need(write(own_pipe, &round, sizeof round) == sizeof round);
    }
}

/* Starts a worker, waits for some rounds, kills it. Returns the last round that it reported. */
static uint32_t worker_kill(uint32_t first, uint32_t rounds)
{
    int tell[2];
    uint32_t last = first - 1, round;
    CU_ASSERT_EQUAL_FATAL(pipe(tell), 0);
    pid_t child = child_start("worker", first, tell[1]);
    close(tell[1]);
    while (last < first + rounds && read(tell[0], &round, sizeof round) == sizeof round)
        last = round;
    kill(child, SIGKILL);
    while (read(tell[0], &round, sizeof round) == sizeof round)
        last = round;
    close(tell[0]);
    waitpid(child, NULL, 0);
    return last;
}

/* The round whose value is under a key; the value must be whole. */
static uint32_t key_round(const char *name)
{
    char value[RECORD], expected[RECORD];
    uint32_t round;
    bmi_trove_op_id_t op;
    struct bmi_trove_pair pair = {.key = (void *)name,
                                  .key_size = 1,
                                  .value = value,
                                  .value_size = RECORD};
    int result = bmi_trove_post_get(&op, &place, &pair, 1, NULL, context);
    CU_ASSERT_EQUAL_FATAL(done(result, &op).error, 0);
    CU_ASSERT_EQUAL_FATAL(pair.error, 0);
    CU_ASSERT_EQUAL(pair.value_size, RECORD);
    memcpy(&round, value, sizeof round);
    value_make(expected, round);
    CU_ASSERT_EQUAL(memcmp(value, expected, RECORD), 0);
    return round;
}

static void a_killed_process_leaves_whole_pairs(void)
{
    const char *scale = getenv("BMI_TEST_SCALE");
    int times = 6 * (scale != NULL && atoi(scale) > 0 ? atoi(scale) : 1);
    uint32_t next = 1;
    if (!BMI_WITH_LMDB)
        printf("(no keys: built without LMDB) ");
    for (int i = 0; i < times; i++) {
        uint32_t last = worker_kill(next, 3 + (uint32_t)i * 7 % 20);
        CU_ASSERT_FATAL(last >= next);
        work_open(false);
        uint32_t round = BMI_WITH_LMDB ? key_round("a") : last;
        if (BMI_WITH_LMDB) {
            CU_ASSERT(round == last || round == last + 1);
            CU_ASSERT_EQUAL(key_round("m"), round);
            CU_ASSERT_EQUAL(key_round("z"), round);
        }
        char record[RECORD], expected[RECORD];
        bmi_trove_op_id_t op;
        int result =
            bmi_trove_post_read_at(&op, &place, record, RECORD, (bmi_size_t)(last % 8) * RECORD,
                                   NULL, 0, NULL, context);
        CU_ASSERT_EQUAL(done(result, &op).error, 0);
        value_make(expected, last);
        CU_ASSERT_EQUAL(memcmp(record, expected, RECORD), 0);
        work_close();
        next = last + 2;
    }
}

/* ---- open files ------------------------------------------------------------------------------ */

static struct outcome size_get(bmi_size_t *size)
{
    bmi_trove_op_id_t op;
    return done(bmi_trove_post_size(&op, &place, size, NULL, context), &op);
}

static void object_remove(void)
{
    bmi_trove_op_id_t op;
    CU_ASSERT_EQUAL(done(bmi_trove_post_remove(&op, &place, 0, NULL, context), &op).error, 0);
}

/* The file of the object that work_open creates. */
static const char *object_path(void)
{
    static char path[400];
    snprintf(path, sizeof path, "%s/store/collections/00000001/00/%016x", folder.path, 1u);
    return path;
}

static bmi_size_t file_size(void)
{
    struct stat status;
    return stat(object_path(), &status) == 0 ? status.st_size : -1;
}

/* From now on a thread that opens the object's file for writing is delayed after it has found the
 * file, until the descriptor is closed. -1: not possible here. */
static int opening_hold(void)
{
    int fd = open(object_path(), O_RDONLY | O_CLOEXEC);
    CU_ASSERT_FATAL(fd >= 0);
    signal(SIGIO, SIG_IGN);
    if (fcntl(fd, F_SETLEASE, F_RDLCK) == 0)
        return fd;
    printf("(no leases on files here) ");
    close(fd);
    return -1;
}

static void an_object_removed_while_it_is_opened_is_gone(void)
{
    bmi_size_t size;
    bmi_trove_op_id_t opening, op;
    bmi_trove_object_id_t number = 1;
    bmi_error_code_t error = 0;
    char bytes[10] = "012345678";
    int count = 0;
    work_open(true);
    work_close();
    work_open(false); /* it is not open */
    int held = opening_hold();
    CU_ASSERT_EQUAL_FATAL(bmi_trove_post_size(&opening, &place, &size, NULL, context), 0);
    while (held >= 0 && count == 0 && fcntl(held, F_GETLEASE) == F_RDLCK)
        CU_ASSERT(bmi_trove_test(opening, &count, &error, NULL, NULL, 1, context) >= 0);
    CU_ASSERT(held < 0 || count == 0);
    object_remove();
    if (held >= 0)
        close(held);
    error = done(0, &opening).error;
    CU_ASSERT(error == 0 || error == -BMI_ENOENT); /* before or after */
    CU_ASSERT_EQUAL(size_get(&size).error, -BMI_ENOENT);
    int result = bmi_trove_post_create(&op, &place, &number, 0, NULL, context);
    CU_ASSERT_EQUAL(done(result, &op).error, 0);
    result = bmi_trove_post_write_at(&op, &place, bytes, 10, 0, NULL, 0, NULL, context);
    CU_ASSERT_EQUAL(done(result, &op).error, 0);
    CU_ASSERT_EQUAL(file_size(), 10);
    work_close();
}

/* ---- io_uring -------------------------------------------------------------------------------- */

static bool is_readable(int fd, int ms)
{
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    return poll(&poll_fd, 1, ms) == 1;
}

/* Whether io_uring moves bytes here; leaves an event in its descriptor. */
static bool uring_used(void)
{
    static char bytes[4096];
    struct bmi_trove_statistics statistics;
    bmi_trove_op_id_t op;
    int result = bmi_trove_post_write_at(&op, &place, bytes, 4096, 0, NULL, 0, NULL, context);
    CU_ASSERT_EQUAL(done(result, &op).error, 0);
    result = bmi_trove_post_read_at(&op, &place, bytes, 4096, 0, NULL, 0, NULL, context);
    CU_ASSERT_EQUAL(done(result, &op).error, 0);
    CU_ASSERT_EQUAL(bmi_trove_statistics(store, &statistics), 0);
    if (statistics.uring == 0)
        printf("(no io_uring here) ");
    return statistics.uring > 0;
}

/* Completions of the last store's ring do not make the descriptor readable for others. */
static void a_closed_store_leaves_descriptors_quiet(void)
{
    enum { TESTS = 5 };
    bmi_trove_op_id_t op;
    bmi_error_code_t error;
    int count;
    work_open(true);
    uring_used();
    CU_ASSERT_EQUAL(bmi_trove_close(store), 0);
    int fd = bmi_trove_context_fd(context);
    CU_ASSERT_FATAL(fd >= 0);
    for (int i = 0; i < TESTS && is_readable(fd, 0); i++)
        CU_ASSERT_EQUAL(bmi_trove_testcontext(1, &op, &count, &error, NULL, NULL, 0, context), 0);
    CU_ASSERT_FALSE(is_readable(fd, 0));
    CU_ASSERT_EQUAL(bmi_trove_context_close(context), 0);
}

/* A thread that reaps, and is delayed after it has checked a ring. */
static _Thread_local bool reaps;
static struct {
    sem_t held, go_on;
    atomic_bool told, mine;
} reaper;

static void reaper_hold(void *argument)
{
    (void)argument;
    atomic_store(&reaper.mine, reaps);
    atomic_store(&reaper.told, true);
    sem_post(&reaper.held);
    sem_wait(&reaper.go_on);
}

static void *reaper_run(void *argument)
{
    reaps = true;
    while (!atomic_load(&reaper.told)) {
        is_readable(bmi__rings_source(), 1000);
        bmi__rings_reap();
    }
    return argument;
}

static void reaper_start(pthread_t *thread)
{
    sem_init(&reaper.held, 0, 0);
    sem_init(&reaper.go_on, 0, 0);
    atomic_store(&reaper.told, false);
    CU_ASSERT_EQUAL(bmi_trove_context_notify(context, reaper_hold, NULL), 0);
    CU_ASSERT_EQUAL_FATAL(pthread_create(thread, NULL, reaper_run, NULL), 0);
}

/* The descriptor reports completions of rings once. A thread that gets the event while another one
 * reaps leaves the completions to that thread. That one may have checked before they came; then
 * there must be a second event. */
static void a_wake_up_is_not_lost_to_a_reaping_thread(void)
{
    static char bytes[4096];
    bmi_trove_op_id_t op;
    pthread_t thread;
    int result;
    work_open(true);
    bool used = uring_used();
    do /* its flush takes a while */
        result = bmi_trove_post_write_at(&op, &place, bytes, sizeof bytes, 0, NULL, BMI_TROVE_SYNC,
                                         NULL, context);
    while (result == 1);
    CU_ASSERT_EQUAL_FATAL(result, 0);
    if (used) {
        reaper_start(&thread);
        sem_wait(&reaper.held);
        bmi__rings_reap();
        sem_post(&reaper.go_on);
        pthread_join(thread, NULL);
        if (atomic_load(&reaper.mine)) { /* otherwise a task has done it */
            CU_ASSERT(is_readable(bmi__rings_source(), 0));
            bmi__rings_reap();
            CU_ASSERT_FALSE(is_readable(bmi__rings_source(), 0));
        }
        CU_ASSERT_EQUAL(bmi_trove_context_notify(context, NULL, NULL), 0);
    }
    CU_ASSERT_EQUAL(done(0, &op).error, 0);
    work_close();
}

/* ---- collections ----------------------------------------------------------------------------- */

struct removing {
    atomic_bool over;
    int refused, others; /* its result */
};

static void *collection_remover(void *argument)
{
    struct removing *removing = argument;
    while (!atomic_load(&removing->over)) {
        bool refused = bmi_trove_collection_remove(store, 1) == -BMI_ENOTEMPTY;
        removing->refused += refused;
        removing->others += !refused;
    }
    return NULL;
}

/* It has an object all the time, in the last of its folders, and another object is created and
 * removed in the first one. */
static void a_collection_that_is_not_removed_stays_whole(void)
{
    enum { ROUNDS = 300 };
    struct removing removing = {0};
    pthread_t remover;
    bmi_trove_op_id_t op;
    work_open(true);
    bmi_trove_object_id_t stays = UINT64_C(0xff00000000000001);
    CU_ASSERT_EQUAL_FATAL(
        done(bmi_trove_post_create(&op, &place, &stays, 0, NULL, context), &op).error, 0);
    object_remove();
    CU_ASSERT_EQUAL_FATAL(pthread_create(&remover, NULL, collection_remover, &removing), 0);
    for (int i = 0; i < ROUNDS; i++) {
        bmi_trove_object_id_t number = place.object;
        int result = bmi_trove_post_create(&op, &place, &number, BMI_TROVE_SYNC, NULL, context);
        CU_ASSERT_EQUAL(done(result, &op).error, 0);
        result = bmi_trove_post_remove(&op, &place, BMI_TROVE_SYNC, NULL, context);
        CU_ASSERT_EQUAL(done(result, &op).error, 0);
    }
    atomic_store(&removing.over, true);
    pthread_join(remover, NULL);
    CU_ASSERT_TRUE(removing.refused > 0);
    CU_ASSERT_EQUAL(removing.others, 0);
    place.object = stays;
    object_remove();
    CU_ASSERT_EQUAL(bmi_trove_collection_remove(store, 1), 0);
    work_close();
}

/* Keys that are put as soon as an object exists, before its creation was reported. */
static void a_key_that_is_put_early_stays(void)
{
    enum { ROUNDS = 500 };
    work_open(true);
    for (int i = 0; i < ROUNDS && BMI_WITH_LMDB; i++) {
        char name[] = "name", value[] = "value", got[8];
        struct bmi_trove_pair put = {.key = name, .key_size = 4, .value = value, .value_size = 5};
        struct bmi_trove_pair get = {.key = name,
                                     .key_size = 4,
                                     .value = got,
                                     .value_size = sizeof got};
        bmi_trove_object_id_t number = place.object;
        bmi_trove_op_id_t creating, op;
        bmi_error_code_t error;
        object_remove();
        int made = bmi_trove_post_create(&creating, &place, &number, 0, NULL, context);
        while (
            (error = done(bmi_trove_post_put(&op, &place, &put, 1, 0, NULL, context), &op).error) ==
            -BMI_ENOENT)
            continue;
        CU_ASSERT_EQUAL_FATAL(error, 0);
        CU_ASSERT_EQUAL_FATAL(done(made, &creating).error, 0);
        CU_ASSERT_EQUAL(done(bmi_trove_post_get(&op, &place, &get, 1, NULL, context), &op).error,
                        0);
        CU_ASSERT_EQUAL(get.error, 0);
    }
    work_close();
}

/* A collection that exists needs no descriptor to be flushed. */
static void a_collection_is_made_without_descriptors(void)
{
    struct rlimit before, now;
    CU_ASSERT_EQUAL_FATAL(store_open(true), 0);
    CU_ASSERT_EQUAL_FATAL(getrlimit(RLIMIT_NOFILE, &before), 0);
    now = before;
    now.rlim_cur = 0;
    CU_ASSERT_EQUAL_FATAL(setrlimit(RLIMIT_NOFILE, &now), 0);
    CU_ASSERT_EQUAL(bmi_trove_collection_create(store, 2), 0);
    setrlimit(RLIMIT_NOFILE, &before);
    CU_ASSERT_EQUAL(bmi_trove_collection_create(store, 2), -BMI_EEXIST);
    CU_ASSERT_EQUAL(bmi_trove_collection_remove(store, 2), 0);
    CU_ASSERT_EQUAL(bmi_trove_close(store), 0);
}

/* Files that are kept open are closed when others need their descriptors. */
static void objects_are_used_beyond_the_descriptors(void)
{
    enum { OBJECTS = 60, DESCRIPTORS = 20 };
    struct rlimit before, now;
    bmi_trove_op_id_t op;
    char byte;
    work_open(true);
    CU_ASSERT_EQUAL_FATAL(getrlimit(RLIMIT_NOFILE, &before), 0);
    int next = dup(STDIN_FILENO);
    close(next);
    now = before;
    now.rlim_cur = (rlim_t)next + DESCRIPTORS;
    CU_ASSERT_EQUAL_FATAL(setrlimit(RLIMIT_NOFILE, &now), 0);
    for (int round = 0; round < 2; round++)
        for (bmi_trove_object_id_t number = 1000; number < 1000 + OBJECTS; number++) {
            struct bmi_trove_place one = place;
            one.object = number;
            if (round == 0) {
                int result = bmi_trove_post_create(&op, &one, &number, 0, NULL, context);
                CU_ASSERT_EQUAL(done(result, &op).error, 0);
            }
            byte = (char)(number + (bmi_trove_object_id_t)round);
            int result = bmi_trove_post_write_at(&op, &one, &byte, 1, 0, NULL, BMI_TROVE_SYNC, NULL,
                                                 context);
            CU_ASSERT_EQUAL(done(result, &op).error, 0);
        }
    setrlimit(RLIMIT_NOFILE, &before);
    CU_ASSERT_EQUAL(bmi_trove_context_close(context), 0);
    CU_ASSERT_EQUAL(bmi_trove_close(store), 0);
}

/* ---- children -------------------------------------------------------------------------------- */

/* A child that was forked, not started anew: tests for completions of its own until it gets the
 * order to end. */
static void child_look(int end)
{
    struct bmi_trove_store *own;
    bmi_trove_context_id_t mine;
    bmi_trove_op_id_t op;
    bmi_error_code_t error;
    int count = 0;
    char byte;
    need(bmi_trove_open(&own, "mem:", NULL, NULL, 0) == 0);
    need(bmi_trove_context_open(&mine) == 0);
    while (read(end, &byte, 1) < 0 && errno == EAGAIN)
        need(bmi_trove_testcontext(1, &op, &count, &error, NULL, NULL, 1, mine) == 0);
    need(bmi_trove_context_close(mine) == 0 && bmi_trove_close(own) == 0);
    _exit(0);
}

/* A child has its parent's ring and lock, and does not use them. It is forked while another thread
 * is taking a completion. */
static void a_child_leaves_its_parents_store_alone(void)
{
    enum { WRITES = 60, LATE_MS = 10000 };
    static char bytes[64 * 1024];
    int ends[2], status = 0;
    work_open(true);
    uring_used(); /* the file is open */
    CU_ASSERT_EQUAL_FATAL(pipe2(ends, O_NONBLOCK | O_CLOEXEC), 0);
    pthread_mutex_lock(&bmi__trove_space.lock);
    pid_t child = fork();
    if (child == 0) {
        close(ends[1]);
        child_look(ends[0]);
    }
    pthread_mutex_unlock(&bmi__trove_space.lock);
    for (int i = 0; i < WRITES; i++) {
        bmi_trove_op_id_t op;
        bmi_error_code_t error = 0;
        int ended = 1;
        int result = bmi_trove_post_write_at(&op, &place, bytes, sizeof bytes, 0, NULL,
                                             BMI_TROVE_SYNC, NULL, context);
        if (result == 0)
            bmi_trove_test(op, &ended, &error, NULL, NULL, LATE_MS, context);
        CU_ASSERT_EQUAL_FATAL(ended, 1);
        CU_ASSERT_EQUAL(error, 0);
    }
    work_close();
    CU_ASSERT_EQUAL_FATAL(store_open(false), 0); /* the child still has the lock's descriptor */
    CU_ASSERT_EQUAL(bmi_trove_close(store), 0);
    close(ends[1]);
    CU_ASSERT_EQUAL(waitpid(child, &status, 0), child);
    CU_ASSERT_EQUAL(status, 0);
    close(ends[0]);
}

/* Given a store in use, when the process starts another program, that gets none of its files. */
static void a_started_program_gets_no_file(void)
{
    char path[64], file[400];
    int files = 0, leaked = 0;
    work_open(true);
    for (int fd = 0; fd < 1024; fd++) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        ssize_t length = readlink(path, file, sizeof file - 1);
        if (length < 0)
            continue;
        file[length] = '\0';
        if (strstr(file, folder.path) == NULL)
            continue;
        files++;
        leaked += (fcntl(fd, F_GETFD) & FD_CLOEXEC) == 0;
    }
    CU_ASSERT_TRUE(files > 0);
    CU_ASSERT_EQUAL(leaked, 0);
    work_close();
}

static CU_TestInfo cases[] = {
    {"a folder that is no store is refused", a_folder_that_is_no_store_is_refused},
    {"another version is refused", another_version_is_refused},
    {"a store half made is made", a_store_half_made_is_made},
    {"a store in use is refused, by name", a_store_in_use_is_refused_by_name},
    {"a killed process leaves whole pairs", a_killed_process_leaves_whole_pairs},
    {"an object removed while it is opened is gone", an_object_removed_while_it_is_opened_is_gone},
    {"a closed store leaves descriptors quiet", a_closed_store_leaves_descriptors_quiet},
    {"a wake-up is not lost to a reaping thread", a_wake_up_is_not_lost_to_a_reaping_thread},
    {"a collection that is not removed stays whole", a_collection_that_is_not_removed_stays_whole},
    {"a key that is put early stays", a_key_that_is_put_early_stays},
    {"a collection is made without descriptors", a_collection_is_made_without_descriptors},
    {"objects are used beyond the descriptors", objects_are_used_beyond_the_descriptors},
    {"a program that is started gets no file", a_started_program_gets_no_file},
    {"a child leaves its parent's store alone", a_child_leaves_its_parents_store_alone},
    CU_TEST_INFO_NULL};

int main(int argc, char **argv)
{
    static const struct dir_role roles[] = {{"holder", holder}, {"worker", worker}, {NULL, NULL}};
    return dir_main(argc, argv, "dir", cases, roles);
}
