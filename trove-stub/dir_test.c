/* SPDX-License-Identifier: BSD-3-Clause
 *
 * dir_test.c - the dir backend's folder: what is refused and why, what survives, and what a process
 * that is killed in the midst of its work leaves behind; its open files, and its rings.
 */
#include "trove-stub/store.h"
#include "trove-stub/trove_testing.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static struct folder folder;
static char where[300], told[512];
static struct bmi_trove_store *store;
static bmi_trove_context_id context;
static struct bmi_trove_place place;

static void set_up(void)
{
    folder_make(&folder);
    snprintf(where, sizeof where, "dir:%s/store", folder.path);
}

static void tear_down(void)
{
    folder_remove(&folder);
}

static bool by_tasks; /* without io_uring, and with one file kept open */

static int store_open(bool create)
{
    struct bmi_trove_settings settings = {.create = create,
                                          .no_uring = by_tasks,
                                          .open_files = by_tasks};
    told[0] = '\0';
    return bmi_trove_open(&store, where, &settings, told, sizeof told);
}

static void file_write(const char *name, const char *text)
{
    char path[400];
    snprintf(path, sizeof path, "%s/%s", folder.path, name);
    FILE *file = fopen(path, "w");
    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    fputs(text, file);
    fclose(file);
}

static struct outcome done(int result, const bmi_trove_op_id_t *op)
{
    return outcome_of(result, op, context);
}

/* ---- opening -----------------------------------------------------------------------------------
 */

static void what_is_no_store_is_refused(void)
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

/* What an interrupted making has left is no obstacle. */
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

static uint32_t own_first; /* a child's */
static int own_pipe;

/* This program, started anew: does what `role` says, and tells through `fd`. */
static pid_t child_start(const char *role, uint32_t number, int fd)
{
    char number_text[16], fd_text[16];
    snprintf(number_text, sizeof number_text, "%u", (unsigned)number);
    snprintf(fd_text, sizeof fd_text, "%d", fd);
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execl("/proc/self/exe", "trove_dir", role, number_text, fd_text, where, (char *)NULL);
        _exit(2);
    }
    return child;
}

/* Has the store open until it is killed. */
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
    CU_ASSERT_EQUAL(store_open(true), -BMI_EBUSY); /* by ourselves */
    CU_ASSERT_EQUAL(bmi_trove_close(first), 0);
}

/* ---- killed ------------------------------------------------------------------------------------
 */

enum { PAIRS = 3, RECORD = 5000 };

/* Also in a child, outside of any test. */
static void need(bool holds)
{
    if (!holds) {
        fprintf(stderr, "the store cannot be worked with: %s\n", told);
        exit(1);
    }
}

static void work_open(bool create)
{
    bmi_trove_object_t number = 1;
    bmi_trove_op_id_t op;
    bmi_error_code_t error = 0;
    int count;
    need(store_open(true) == 0);
    need(bmi_trove_open_context(&context) == 0);
    place = (struct bmi_trove_place){.store = store, .collection = 1, .object = 1};
    if (create) {
        need(bmi_trove_collection_create(store, 1) == 0);
        int result = bmi_trove_post_create(&op, &place, &number, BMI_TROVE_SYNC, NULL, context);
        if (result == 0)
            bmi_trove_test(op, &count, &error, NULL, NULL, PATIENCE_MS, context);
        need(result >= 0 && error == 0);
    }
}

static void work_close(void)
{
    CU_ASSERT_EQUAL(bmi_trove_close_context(context), 0);
    CU_ASSERT_EQUAL(bmi_trove_close(store), 0);
}

/* The value of a round: long, and every byte of it tells the round. */
static void value_make(char *value, uint32_t round)
{
    memset(value, (int)('a' + round % 26), RECORD);
    memcpy(value, &round, sizeof round);
}

static bmi_error_code_t ended(int result, bmi_trove_op_id_t op)
{
    bmi_error_code_t error = 0;
    int count = 0;
    if (result == 0)
        need(bmi_trove_test(op, &count, &error, NULL, NULL, PATIENCE_MS, context) == 1);
    return result < 0 ? result : error;
}

/* Puts the same value under several keys in one list, and writes it into the stream; tells the
 * round when both are on disk. Until it is killed. */
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

/* Starts a worker, waits for some rounds, kills it. Returns the last round that it told. */
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

/* The round whose value is under a key, which must be whole. */
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

/* ---- a full disk -------------------------------------------------------------------------------
 */

enum { NOT_MOUNTED = 77 }; /* a child's status */

/* A disk of a MiB in place of the store's folder, for this process only. */
static void disk_mount(void)
{
    char path[300];
    snprintf(path, sizeof path, "%s", where + strlen("dir:"));
    *strrchr(path, '/') = '\0';
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", "", MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("disk", path, "tmpfs", 0, "size=1m") != 0)
        _exit(NOT_MOUNTED);
}

static bmi_error_code_t value_put_with(unsigned flags, uint32_t key, char *value, bmi_size_t size)
{
    bmi_trove_op_id_t op;
    struct bmi_trove_pair pair = {.key = &key,
                                  .key_size = sizeof key,
                                  .value = value,
                                  .value_size = size};
    int result = bmi_trove_post_put(&op, &place, &pair, 1, flags, NULL, context);
    return ended(result, op);
}

static bmi_error_code_t value_put(uint32_t key, char *value, bmi_size_t size)
{
    return value_put_with(0, key, value, size);
}

/* Puts values, smaller and smaller ones, until none has room: nothing but that is told. */
static void filler(void)
{
    static char value[200000];
    uint32_t key = 0;
    disk_mount();
    work_open(true);
    for (bmi_size_t size = sizeof value; size > 0; size /= 3) {
        bmi_error_code_t error;
        while ((error = value_put(key, value, size)) == 0)
            key++;
        CU_ASSERT_EQUAL(error, -BMI_ENOSPC);
    }
    CU_ASSERT_TRUE(key > 0);
    work_close();
    _exit(CU_get_number_of_failures() > 0);
}

static void a_full_disk_is_told_as_that(void)
{
    int status = 0;
    if (!BMI_WITH_LMDB) {
        printf("(no keys: built without LMDB) ");
        return;
    }
    pid_t child = child_start("filler", 0, 0);
    CU_ASSERT_EQUAL(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == NOT_MOUNTED)
        printf("(skipped: mounting takes root) ");
    else
        CU_ASSERT_EQUAL(status, 0);
}

/* ---- a disk that fails ------------------------------------------------------------------------
 */

static atomic_bool
    meta_fails; /* so do writes of LMDB's two first pages: what the last transaction is */
static atomic_uint metas_failed;

/* LMDB calls this one, too. */
__attribute__((visibility("default"))) ssize_t pwrite(int fd, const void *bytes, size_t size,
                                                      off_t offset)
{
    if (!atomic_load(&meta_fails) || offset >= 2 * 4096)
        return syscall(SYS_pwrite64, fd, bytes, size, offset);
    atomic_fetch_add(&metas_failed, 1);
    errno = ENOSPC;
    return -1;
}

static bmi_error_code_t value_find(uint32_t key)
{
    static char value[100000];
    bmi_trove_op_id_t op;
    struct bmi_trove_pair pair = {.key = &key,
                                  .key_size = sizeof key,
                                  .value = value,
                                  .value_size = sizeof value};
    int result = bmi_trove_post_get(&op, &place, &pair, 1, NULL, context);
    bmi_error_code_t error = ended(result, op);
    return error != 0 ? error : pair.error;
}

static bmi_error_code_t object_flush(void)
{
    bmi_trove_op_id_t op;
    int result = bmi_trove_post_flush(&op, &place, NULL, context);
    return ended(result, op);
}

static void a_put_that_failed_stops_no_other(void)
{
    static char value[100];
    char elsewhere[300];
    if (!BMI_WITH_LMDB) {
        printf("(no keys: built without LMDB) ");
        return;
    }
    work_open(true);
    CU_ASSERT_EQUAL(value_put(1, value, sizeof value), 0);
    atomic_store(&meta_fails, true);
    CU_ASSERT_EQUAL(value_put(2, value, sizeof value), -BMI_ENOSPC);
    CU_ASSERT_EQUAL(value_put(3, value, sizeof value), -BMI_ENOSPC);
    CU_ASSERT_EQUAL(value_find(1), 0);
    atomic_store(&meta_fails, false);
    CU_ASSERT_TRUE(metas_failed > 0);
    CU_ASSERT_EQUAL(value_find(2), -BMI_ENOENT);
    CU_ASSERT_EQUAL(value_put(4, value, sizeof value), 0);
    atomic_store(&meta_fails, true);
    CU_ASSERT_EQUAL(value_put(5, value, sizeof value), -BMI_ENOSPC);
    atomic_store(&meta_fails, false);
    snprintf(elsewhere, sizeof elsewhere, "%s/elsewhere", folder.path);
    CU_ASSERT_EQUAL(rename(where + strlen("dir:"), elsewhere), 0);
    CU_ASSERT_EQUAL(value_put(6, value, sizeof value), 0);
    CU_ASSERT_EQUAL(rename(elsewhere, where + strlen("dir:")), 0);
    work_close();
    work_open(false);
    for (uint32_t key = 1; key <= 6; key++)
        CU_ASSERT_EQUAL(value_find(key), key == 1 || key == 4 || key == 6 ? 0 : -BMI_ENOENT);
    work_close();
}

/* ---- a map that cannot grow --------------------------------------------------------------------
 */

enum { MAP_FIRST = 1 << 30, MAP_SMALL = 1 << 20 };

static bool map_small; /* LMDB's map begins with a MiB only */
static atomic_bool map_grow_fails, map_first_fails;

struct MDB_env;
int __real_mdb_env_set_mapsize(struct MDB_env *env, size_t size);
int __wrap_mdb_env_set_mapsize(struct MDB_env *env, size_t size);

#if BMI_WITH_LMDB
/* Where it fails it is asked for more than there is address space: LMDB gives up its map, and gets
 * none. */
int __wrap_mdb_env_set_mapsize(struct MDB_env *env, size_t size)
{
    if (size == MAP_FIRST && atomic_load(&map_first_fails))
        return ENOMEM;
    if (size == MAP_FIRST && map_small)
        size = MAP_SMALL;
    if (size > MAP_SMALL && atomic_load(&map_grow_fails))
        size = SIZE_MAX / 4;
    return __real_mdb_env_set_mapsize(env, size);
}
#endif

/* Puts values until one has no room. Returns how many had. */
static uint32_t values_put(bmi_error_code_t *error)
{
    static char value[100000];
    uint32_t key = 0;
    while ((*error = value_put(key, value, sizeof value)) == 0)
        key++;
    return key;
}

static void a_map_that_cannot_grow_is_an_error(void)
{
    static char value[100000];
    bmi_error_code_t error;
    if (!BMI_WITH_LMDB) {
        printf("(no keys: built without LMDB) ");
        return;
    }
    map_small = true;
    work_open(true);
    atomic_store(&map_grow_fails, true);
    uint32_t there = values_put(&error);
    CU_ASSERT_EQUAL(error, -BMI_ENOMEM);
    CU_ASSERT_TRUE_FATAL(there > 0);
    for (uint32_t key = 0; key <= there; key++)
        CU_ASSERT_EQUAL(value_find(key), key < there ? 0 : -BMI_ENOENT);
    CU_ASSERT_EQUAL(value_put(there, value, sizeof value), -BMI_ENOMEM);
    atomic_store(&map_first_fails, true); /* not even the small one is to be had */
    CU_ASSERT_EQUAL(value_find(0), -BMI_ENOMEM);
    CU_ASSERT_EQUAL(value_put(there, value, sizeof value), -BMI_ENOMEM);
    CU_ASSERT_EQUAL(object_flush(), -BMI_ENOMEM);
    atomic_store(&map_first_fails, false);
    atomic_store(&map_grow_fails, false);
    CU_ASSERT_EQUAL(object_flush(), 0);
    CU_ASSERT_EQUAL(value_put(there, value, sizeof value), 0);
    CU_ASSERT_EQUAL(value_find(there), 0);
    work_close();
    map_small = false;
}

/* ---- a limit of file sizes ---------------------------------------------------------------------
 */

static void files_limit(rlim_t bytes)
{
    struct rlimit limit;
    CU_ASSERT_EQUAL(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes;
    CU_ASSERT_EQUAL(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static struct outcome stream_write(bmi_size_t offset, bmi_size_t size, unsigned flags)
{
    static char bytes[8192];
    bmi_trove_op_id_t op;
    bmi_size_t actual = -1;
    int result =
        bmi_trove_post_write_at(&op, &place, bytes, size, offset, &actual, flags, NULL, context);
    struct outcome outcome = done(result, &op);
    outcome.actual = actual;
    return outcome;
}

/* Whether the calling thread has a signal of the limit, or blocks it. */
static bool limit_signal(void)
{
    sigset_t pending, blocked;
    sigpending(&pending);
    pthread_sigmask(SIG_BLOCK, NULL, &blocked);
    return sigismember(&pending, SIGXFSZ) || sigismember(&blocked, SIGXFSZ);
}

static void streams_limited(bmi_size_t limit)
{
    bmi_trove_op_id_t op;
    bmi_size_t size = 0;
    CU_ASSERT_EQUAL(stream_write(0, 4096, 0).error, 0);
    files_limit((rlim_t)limit);
    CU_ASSERT_EQUAL(stream_write(limit, 4096, 0).error, -BMI_EFBIG);
    CU_ASSERT_EQUAL(stream_write(limit, 4096, BMI_TROVE_SYNC).error, -BMI_EFBIG);
    struct outcome across = stream_write(limit - 100, 4096, 0);
    CU_ASSERT_EQUAL(across.error, -BMI_EFBIG);
    CU_ASSERT_EQUAL(across.actual, 100);
    CU_ASSERT_FALSE(limit_signal());
    int result = bmi_trove_post_resize(&op, &place, limit + 1, 0, NULL, context);
    CU_ASSERT_EQUAL(done(result, &op).error, -BMI_EFBIG);
    result = bmi_trove_post_size(&op, &place, &size, NULL, context);
    CU_ASSERT_EQUAL(done(result, &op).error, 0);
    CU_ASSERT_EQUAL(size, limit);
    CU_ASSERT_FALSE(limit_signal());
}

/* Puts with less and less room before the limit, so that some of LMDB's writes are cut by it. */
static void keys_limited(void)
{
    enum { STEP = 5000, STEPS = 20 };
    static char value[50000];
    char path[400];
    struct stat status;
    snprintf(path, sizeof path, "%s/keys/data.mdb", where + strlen("dir:"));
    for (uint32_t i = 0; BMI_WITH_LMDB && i < STEPS; i++) {
        bmi_error_code_t error;
        uint32_t key = i * 1000;
        files_limit(RLIM_INFINITY);
        CU_ASSERT_EQUAL(stat(path, &status), 0);
        files_limit((rlim_t)(status.st_size + (i + 1) * STEP));
        while ((error = value_put(key, value, sizeof value)) == 0)
            key++;
        CU_ASSERT_EQUAL(error, -BMI_EFBIG);
    }
}

/* Within a limit of file sizes, whose signal ends the process: nothing but EFBIG tells of it. */
static void limited(void)
{
    struct sigaction action;
    signal(SIGXFSZ, SIG_DFL);
    work_open(true);
    streams_limited(1 << 20);
    keys_limited();
    work_close();
    files_limit(0);
    CU_ASSERT_EQUAL(store_open(false), -BMI_EFBIG); /* its number cannot be written */
    files_limit(RLIM_INFINITY);
    CU_ASSERT_EQUAL(store_open(false), 0);
    CU_ASSERT_EQUAL(bmi_trove_close(store), 0);
    CU_ASSERT_FALSE(limit_signal());
    sigaction(SIGXFSZ, NULL, &action);
    CU_ASSERT_TRUE(action.sa_handler == SIG_DFL);
    _exit(CU_get_number_of_failures() > 0);
}

static void a_limit_of_file_sizes_is_an_error(void)
{
    int status = 0;
    pid_t child = child_start("limited", 0, 0);
    CU_ASSERT_EQUAL(waitpid(child, &status, 0), child);
    CU_ASSERT_EQUAL(status, 0);
}

/* ---- flushes that fail -------------------------------------------------------------------------
 */

static atomic_int flushes_left; /* the flush that makes it 0 fails, as only the first one does */

static int flush_by(long call, int fd)
{
    if (atomic_load(&flushes_left) == 0 || atomic_fetch_sub(&flushes_left, 1) != 1)
        return (int)syscall(call, fd);
    errno = EIO;
    return -1;
}

/* LMDB calls these, too. */
__attribute__((visibility("default"))) int fdatasync(int fd)
{
    return flush_by(SYS_fdatasync, fd);
}

__attribute__((visibility("default"))) int fsync(int fd)
{
    return flush_by(SYS_fsync, fd);
}

static void keys_that_a_flush_has_lost_are_told_on_and_on(void)
{
    static char value[100];
    if (!BMI_WITH_LMDB) {
        printf("(no keys: built without LMDB) ");
        return;
    }
    work_open(true);
    CU_ASSERT_EQUAL(value_put_with(BMI_TROVE_SYNC, 1, value, sizeof value), 0);
    CU_ASSERT_EQUAL(value_put(2, value, sizeof value), 0);
    atomic_store(&flushes_left, 1);
    CU_ASSERT_EQUAL(value_put_with(BMI_TROVE_SYNC, 3, value, sizeof value), -BMI_EIO);
    CU_ASSERT_EQUAL(flushes_left, 0);
    CU_ASSERT_EQUAL(value_find(3), 0); /* seen, but nobody says that it is on disk */
    CU_ASSERT_EQUAL(value_put_with(BMI_TROVE_SYNC, 4, value, sizeof value), -BMI_EIO);
    CU_ASSERT_EQUAL(value_find(4), -BMI_ENOENT);
    CU_ASSERT_EQUAL(object_flush(), -BMI_EIO);
    CU_ASSERT_EQUAL(value_put(5, value, sizeof value), 0);
    CU_ASSERT_EQUAL(value_find(5), 0);
    CU_ASSERT_EQUAL(bmi_trove_close_context(context), 0);
    CU_ASSERT_EQUAL(bmi_trove_close(store), -BMI_EIO);
    work_open(false);
    CU_ASSERT_EQUAL(value_put_with(BMI_TROVE_SYNC, 4, value, sizeof value), 0);
    CU_ASSERT_EQUAL(object_flush(), 0);
    work_close();
}

static bmi_error_code_t object_make(bmi_trove_object_t number)
{
    bmi_trove_op_id_t op;
    int result = bmi_trove_post_create(&op, &place, &number, 0, NULL, context);
    return done(result, &op).error;
}

static bmi_error_code_t object_drop(void)
{
    bmi_trove_op_id_t op;
    return done(bmi_trove_post_remove(&op, &place, 0, NULL, context), &op).error;
}

/* Also after other files were used, for which it would have been closed. */
static void bytes_that_a_flush_has_lost_are_told_on_and_on(void)
{
    enum { OTHERS = 3 };
    by_tasks = true;
    work_open(true);
    CU_ASSERT_EQUAL(stream_write(0, 100, BMI_TROVE_SYNC).error, 0);
    atomic_store(&flushes_left, 1);
    CU_ASSERT_EQUAL(stream_write(0, 100, BMI_TROVE_SYNC).error, -BMI_EIO);
    CU_ASSERT_EQUAL(flushes_left, 0);
    CU_ASSERT_EQUAL(stream_write(0, 100, 0).error, 0);
    for (place.object = 2; place.object < 2 + OTHERS; place.object++) {
        CU_ASSERT_EQUAL(object_make(place.object), 0);
        CU_ASSERT_EQUAL(stream_write(0, 100, BMI_TROVE_SYNC).error, 0);
        CU_ASSERT_EQUAL(object_flush(), 0);
    }
    place.object = 1;
    CU_ASSERT_EQUAL(stream_write(0, 100, BMI_TROVE_SYNC).error, -BMI_EIO);
    CU_ASSERT_EQUAL(object_flush(), -BMI_EIO);
    CU_ASSERT_EQUAL(object_drop(), 0);
    CU_ASSERT_EQUAL(object_make(1), 0);
    CU_ASSERT_EQUAL(stream_write(0, 100, BMI_TROVE_SYNC).error, 0);
    CU_ASSERT_EQUAL(object_flush(), 0);
    atomic_store(&flushes_left, 1);
    CU_ASSERT_EQUAL(object_flush(), -BMI_EIO);
    work_close();
    work_open(false);
    CU_ASSERT_EQUAL(object_flush(), 0);
    work_close();
    by_tasks = false;
}

/* ---- folders that can't be read ----------------------------------------------------------------
 */

static bool reading_fails;

struct dirent *__real_readdir(DIR *list);
struct dirent *__wrap_readdir(DIR *list);

struct dirent *__wrap_readdir(DIR *list)
{
    if (!reading_fails)
        return __real_readdir(list);
    errno = EIO;
    return NULL;
}

static struct outcome objects_list(bmi_trove_object_t *found, int count)
{
    bmi_trove_op_id_t op;
    bmi_trove_object_t position = 0;
    int result = bmi_trove_post_objects(&op, &place, &position, found, count, NULL, context);
    return done(result, &op);
}

/* What is not read is not taken for what is not there. */
static void a_folder_that_cannot_be_read_is_told(void)
{
    bmi_trove_object_t found[4];
    bmi_trove_collection_t collection = 0;
    work_open(true);
    CU_ASSERT_EQUAL(objects_list(found, 4).actual, 1);
    reading_fails = true;
    CU_ASSERT_EQUAL(objects_list(found, 4).error, -BMI_EIO);
    CU_ASSERT_EQUAL(bmi_trove_collection_next(store, &collection), -BMI_EIO);
    reading_fails = false;
    CU_ASSERT_EQUAL(bmi_trove_collection_next(store, &collection), 0);
    work_close();
    snprintf(where, sizeof where, "dir:%s", folder.path); /* which holds something else */
    reading_fails = true;
    CU_ASSERT_EQUAL(store_open(true), -BMI_EIO);
    CU_ASSERT_PTR_NOT_NULL(strstr(told, folder.path));
    reading_fails = false;
}

/* ---- open files --------------------------------------------------------------------------------
 */

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

/* The file of the object that work_open makes. */
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

/* Who opens the object's file to write is held up from now on, having found the file, until the
 * descriptor is closed. -1: not here. */
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
    bmi_trove_object_t number = 1;
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

/* ---- io_uring ----------------------------------------------------------------------------------
 */

static bool is_readable(int fd, int ms)
{
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    return poll(&poll_fd, 1, ms) == 1;
}

/* Whether bytes go by io_uring here; leaves something in its descriptor. */
static bool uring_used(void)
{
    static char bytes[4096];
    struct bmi_trove_statistics statistics;
    bmi_trove_op_id_t op;
    int result = bmi_trove_post_write_at(&op, &place, bytes, 4096, 0, NULL, 0, NULL, context);
    CU_ASSERT_EQUAL(done(result, &op).error, 0);
    result = bmi_trove_post_read_at(&op, &place, bytes, 4096, 0, NULL, 0, NULL, context);
    CU_ASSERT_EQUAL(done(result, &op).error, 0);
    CU_ASSERT_EQUAL(bmi_trove_get_statistics(store, &statistics), 0);
    if (statistics.uring == 0)
        printf("(no io_uring here) ");
    return statistics.uring > 0;
}

/* What the last one has completed is nothing that others could do. */
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
    CU_ASSERT_EQUAL(bmi_trove_close_context(context), 0);
}

/* Somebody who reaps, and is held up when he has looked at a ring. */
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

/* What rings have completed is told of once. Who hears it while another reaps, who may have looked
 * before, leaves it to that one, and hears of it again. */
static void a_wake_is_not_lost_to_who_reaps(void)
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
        if (atomic_load(&reaper.mine)) { /* else a task has done it */
            CU_ASSERT(is_readable(bmi__rings_source(), 0));
            bmi__rings_reap();
            CU_ASSERT_FALSE(is_readable(bmi__rings_source(), 0));
        }
        CU_ASSERT_EQUAL(bmi_trove_context_notify(context, NULL, NULL), 0);
    }
    CU_ASSERT_EQUAL(done(0, &op).error, 0);
    work_close();
}

/* ---- collections -------------------------------------------------------------------------------
 */

struct removing {
    atomic_bool over;
    int refused, others; /* how it ended */
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

/* It has an object all the time, in the last of its folders, and another one comes and goes in the
 * first. */
static void a_collection_that_is_not_removed_stays_whole(void)
{
    enum { ROUNDS = 300 };
    struct removing removing = {0};
    pthread_t remover;
    bmi_trove_op_id_t op;
    work_open(true);
    bmi_trove_object_t stays = UINT64_C(0xff00000000000001);
    CU_ASSERT_EQUAL_FATAL(
        done(bmi_trove_post_create(&op, &place, &stays, 0, NULL, context), &op).error, 0);
    object_remove();
    CU_ASSERT_EQUAL_FATAL(pthread_create(&remover, NULL, collection_remover, &removing), 0);
    for (int i = 0; i < ROUNDS; i++) {
        bmi_trove_object_t number = place.object;
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

/* What is there already needs no descriptor to be flushed. */
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

/* Files that are kept open for their next use give their descriptors to others. */
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
        for (bmi_trove_object_t number = 1000; number < 1000 + OBJECTS; number++) {
            struct bmi_trove_place one = place;
            one.object = number;
            if (round == 0) {
                int result = bmi_trove_post_create(&op, &one, &number, 0, NULL, context);
                CU_ASSERT_EQUAL(done(result, &op).error, 0);
            }
            byte = (char)(number + (bmi_trove_object_t)round);
            int result = bmi_trove_post_write_at(&op, &one, &byte, 1, 0, NULL, BMI_TROVE_SYNC, NULL,
                                                 context);
            CU_ASSERT_EQUAL(done(result, &op).error, 0);
        }
    setrlimit(RLIMIT_NOFILE, &before);
    CU_ASSERT_EQUAL(bmi_trove_close_context(context), 0);
    CU_ASSERT_EQUAL(bmi_trove_close(store), 0);
}

/* ---- children ----------------------------------------------------------------------------------
 */

/* Of a child that was forked, not started anew: looks for completions of its own until it is told
 * to end. */
static void child_look(int end)
{
    struct bmi_trove_store *own;
    bmi_trove_context_id mine;
    bmi_trove_op_id_t op;
    bmi_error_code_t error;
    int count = 0;
    char byte;
    need(bmi_trove_open(&own, "mem:", NULL, NULL, 0) == 0);
    need(bmi_trove_open_context(&mine) == 0);
    while (read(end, &byte, 1) < 0 && errno == EAGAIN)
        need(bmi_trove_testcontext(1, &op, &count, &error, NULL, NULL, 1, mine) == 0);
    need(bmi_trove_close_context(mine) == 0 && bmi_trove_close(own) == 0);
    _exit(0);
}

/* A child has a ring and a lock of its parent's, and leaves them alone. It is forked while another
 * thread is just taking a completion. */
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
    CU_ASSERT_EQUAL_FATAL(store_open(false), 0); /* the child has the lock's descriptor still */
    CU_ASSERT_EQUAL(bmi_trove_close(store), 0);
    close(ends[1]);
    CU_ASSERT_EQUAL(waitpid(child, &status, 0), child);
    CU_ASSERT_EQUAL(status, 0);
    close(ends[0]);
}

static CU_TestInfo cases[] = {
    {"what is no store is refused", what_is_no_store_is_refused},
    {"another version is refused", another_version_is_refused},
    {"a store half made is made", a_store_half_made_is_made},
    {"a store in use is refused, by name", a_store_in_use_is_refused_by_name},
    {"a killed process leaves whole pairs", a_killed_process_leaves_whole_pairs},
    {"a full disk is told as that", a_full_disk_is_told_as_that},
    {"a put that failed stops no other", a_put_that_failed_stops_no_other},
    {"a map that cannot grow is an error", a_map_that_cannot_grow_is_an_error},
    {"a limit of file sizes is an error", a_limit_of_file_sizes_is_an_error},
    {"keys that a flush has lost are told on and on",
     keys_that_a_flush_has_lost_are_told_on_and_on},
    {"bytes that a flush has lost are told on and on",
     bytes_that_a_flush_has_lost_are_told_on_and_on},
    {"a folder that cannot be read is told", a_folder_that_cannot_be_read_is_told},
    {"an object removed while it is opened is gone", an_object_removed_while_it_is_opened_is_gone},
    {"a closed store leaves descriptors quiet", a_closed_store_leaves_descriptors_quiet},
    {"a wake is not lost to who reaps", a_wake_is_not_lost_to_who_reaps},
    {"a collection that is not removed stays whole", a_collection_that_is_not_removed_stays_whole},
    {"a collection is made without descriptors", a_collection_is_made_without_descriptors},
    {"objects are used beyond the descriptors", objects_are_used_beyond_the_descriptors},
    {"a child leaves its parent's store alone", a_child_leaves_its_parents_store_alone},
    CU_TEST_INFO_NULL};

static void (*role_of(const char *name))(void)
{
    static const struct {
        const char *name;
        void (*body)(void);
    } roles[] = {{"holder", holder}, {"filler", filler}, {"limited", limited}};
    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++)
        if (strcmp(name, roles[i].name) == 0)
            return roles[i].body;
    return worker;
}

int main(int argc, char **argv)
{
    if (argc == 5) {
        uint32_t first = (uint32_t)strtoul(argv[2], NULL, 10);
        snprintf(where, sizeof where, "%s", argv[4]);
        own_first = first;
        own_pipe = atoi(argv[3]);
        return child_run(role_of(argv[1]));
    }
    CU_SuiteInfo suites[] = {{"dir", NULL, NULL, set_up, tear_down, cases}, CU_SUITE_INFO_NULL};
    return unit_run_suites(suites);
}
