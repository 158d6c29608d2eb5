/* SPDX-License-Identifier: BSD-3-Clause
 *
 * dir_fault_test.c - the dir backend under failures of the system: a full disk, a failing disk, no
 * address space, a limit of file sizes, failing flushes, folders that cannot be read.
 */
#include "trove-stub/dir_testing.h"

#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

/* ---- a full disk ----------------------------------------------------------------------------- */

enum { NOT_MOUNTED = 77 }; /* a child's status */

/* Mounts a disk of a MiB in place of the store's folder, for this process only. */
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

/* Puts values, smaller and smaller ones, until none has room: the only reported error is ENOSPC. */
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

/* ---- a disk that fails ----------------------------------------------------------------------- */

static atomic_bool
    meta_fails; /* so do writes of LMDB's first two pages, which record the last transaction */
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

/* ---- a map that cannot grow ------------------------------------------------------------------ */

enum { MAP_FIRST = 1 << 30, MAP_SMALL = 1 << 20 };

static bool map_small; /* LMDB's map begins with one MiB */
static atomic_bool map_grow_fails, map_first_fails;

struct MDB_env;
int __real_mdb_env_set_mapsize(struct MDB_env *env, size_t size);
int __wrap_mdb_env_set_mapsize(struct MDB_env *env, size_t size);

#if BMI_WITH_LMDB
/* To make it fail it requests more than the address space: LMDB gives up its map, and gets none. */
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

/* Puts values until one has no room. Returns how many had room. */
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
    atomic_store(&map_first_fails, true); /* even the small map fails */
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

/* ---- a limit of file sizes ------------------------------------------------------------------- */

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

/* Whether the calling thread has a pending signal of the limit, or blocks it. */
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

/* Puts with less and less room before the limit, so that it cuts some of LMDB's writes. */
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

/* Within a limit of file sizes, whose signal would end the process: only EFBIG reports it. */
static void limited(void)
{
    struct sigaction action;
    signal(SIGXFSZ, SIG_DFL);
    work_open(true);
    streams_limited(1 << 20);
    keys_limited();
    work_close();
    files_limit(0);
    CU_ASSERT_EQUAL(store_open(false), -BMI_EFBIG); /* its process id cannot be written */
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

/* ---- flushes that fail ----------------------------------------------------------------------- */

static atomic_int flushes_left; /* the flush that makes it 0 fails, and only the first one does */

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
    CU_ASSERT_EQUAL(value_find(3), 0); /* visible, but not reported as on disk */
    CU_ASSERT_EQUAL(value_put_with(BMI_TROVE_SYNC, 4, value, sizeof value), -BMI_EIO);
    CU_ASSERT_EQUAL(value_find(4), -BMI_ENOENT);
    CU_ASSERT_EQUAL(object_flush(), -BMI_EIO);
    CU_ASSERT_EQUAL(value_put(5, value, sizeof value), 0);
    CU_ASSERT_EQUAL(value_find(5), 0);
    CU_ASSERT_EQUAL(bmi_trove_context_close(context), 0);
    CU_ASSERT_EQUAL(bmi_trove_close(store), -BMI_EIO);
    work_open(false);
    CU_ASSERT_EQUAL(value_put_with(BMI_TROVE_SYNC, 4, value, sizeof value), 0);
    CU_ASSERT_EQUAL(object_flush(), 0);
    work_close();
}

static bmi_error_code_t object_make(bmi_trove_object_id_t number)
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

/* The error remains also after other files were used, for which it would have been closed. */
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

/* ---- folders that can't be read -------------------------------------------------------------- */

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

static struct outcome objects_list(bmi_trove_object_id_t *found, int count)
{
    bmi_trove_op_id_t op;
    bmi_trove_object_id_t position = 0;
    int result = bmi_trove_post_objects(&op, &place, &position, found, count, NULL, context);
    return done(result, &op);
}

/* A folder that cannot be read does not count as empty. */
static void a_folder_that_cannot_be_read_is_told(void)
{
    bmi_trove_object_id_t found[4];
    bmi_trove_collection_id_t collection = 0;
    work_open(true);
    CU_ASSERT_EQUAL(objects_list(found, 4).actual, 1);
    reading_fails = true;
    CU_ASSERT_EQUAL(objects_list(found, 4).error, -BMI_EIO);
    CU_ASSERT_EQUAL(bmi_trove_collection_next(store, &collection), -BMI_EIO);
    reading_fails = false;
    CU_ASSERT_EQUAL(bmi_trove_collection_next(store, &collection), 0);
    work_close();
    snprintf(where, sizeof where, "dir:%s", folder.path); /* which holds another file */
    reading_fails = true;
    CU_ASSERT_EQUAL(store_open(true), -BMI_EIO);
    CU_ASSERT_PTR_NOT_NULL(strstr(told, folder.path));
    reading_fails = false;
}

static CU_TestInfo cases[] = {
    {"a full disk is reported as such", a_full_disk_is_told_as_that},
    {"a put that failed stops no other", a_put_that_failed_stops_no_other},
    {"a map that cannot grow is an error", a_map_that_cannot_grow_is_an_error},
    {"a limit of file sizes is an error", a_limit_of_file_sizes_is_an_error},
    {"keys that a flush has lost stay reported", keys_that_a_flush_has_lost_are_told_on_and_on},
    {"bytes that a flush has lost stay reported", bytes_that_a_flush_has_lost_are_told_on_and_on},
    {"a folder that cannot be read is reported", a_folder_that_cannot_be_read_is_told},
    CU_TEST_INFO_NULL};

int main(int argc, char **argv)
{
    static const struct dir_role roles[] = {{"filler", filler}, {"limited", limited}, {NULL, NULL}};
    return dir_main(argc, argv, "dir, failed by the system", cases, roles);
}
