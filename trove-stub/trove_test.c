/* SPDX-License-Identifier: BSD-3-Clause
 *
 * trove_test.c - the same cases over every backend: posts, tests, lists, objects, key/values,
 * cancel, faults.
 */
#include "trove-stub/trove_testing.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>

static struct {
    const char *backend;
    struct bmi_trove_settings settings;
    bool has_keys;
} kind;

static struct folder folder;
static struct bmi_trove_store *store;
static bmi_trove_context_id context;
static struct bmi_trove_place place;

static struct outcome done(int result, const bmi_trove_op_id_t *op)
{
    return outcome_of(result, op, context);
}

static bmi_trove_object_t object_make(void)
{
    bmi_trove_op_id_t op;
    bmi_trove_object_t object = 0;
    CU_ASSERT_EQUAL_FATAL(
        done(bmi_trove_post_create(&op, &place, &object, 0, NULL, context), &op).error, 0);
    CU_ASSERT_NOT_EQUAL(object, 0);
    place.object = object;
    return object;
}

static void set_up(void)
{
    char where[300], error[256] = "";
    if (strcmp(kind.backend, "dir:") == 0)
        folder_make(&folder);
    snprintf(where, sizeof where, "%s%s", kind.backend,
             strcmp(kind.backend, "dir:") == 0 ? folder.path : "");
    struct bmi_trove_settings settings = kind.settings;
    settings.create = true;
    CU_ASSERT_EQUAL_FATAL(bmi_trove_open(&store, where, &settings, error, sizeof error), 0);
    CU_ASSERT_EQUAL_FATAL(bmi_trove_collection_create(store, 7), 0);
    CU_ASSERT_EQUAL_FATAL(bmi_trove_open_context(&context), 0);
    place = (struct bmi_trove_place){.store = store, .collection = 7};
    object_make();
}

static void tear_down(void)
{
    struct bmi_trove_statistics statistics;
    CU_ASSERT_EQUAL(bmi_trove_get_statistics(store, &statistics), 0);
    CU_ASSERT_EQUAL(statistics.outstanding, 0);
    CU_ASSERT_EQUAL(bmi_trove_close_context(context), 0);
    CU_ASSERT_EQUAL(bmi_trove_close(store), 0);
    if (strcmp(kind.backend, "dir:") == 0)
        folder_remove(&folder);
}

/* ---- streams -----------------------------------------------------------------------------------
 */

static struct outcome write_at(const void *bytes, bmi_size_t size, bmi_size_t offset)
{
    bmi_trove_op_id_t op;
    bmi_size_t actual = -1;
    struct outcome outcome =
        done(bmi_trove_post_write_at(&op, &place, bytes, size, offset, &actual, 0, NULL, context),
             &op);
    outcome.actual = actual;
    return outcome;
}

static struct outcome read_at(void *bytes, bmi_size_t size, bmi_size_t offset, unsigned flags)
{
    bmi_trove_op_id_t op;
    bmi_size_t actual = -1;
    int result =
        bmi_trove_post_read_at(&op, &place, bytes, size, offset, &actual, flags, NULL, context);
    struct outcome outcome = done(result, &op);
    outcome.actual = actual;
    return outcome;
}

static bmi_size_t size_now(void)
{
    bmi_trove_op_id_t op;
    bmi_size_t size = -1;
    CU_ASSERT_EQUAL(done(bmi_trove_post_size(&op, &place, &size, NULL, context), &op).error, 0);
    return size;
}

static bool keeps_bytes(void)
{
    return strcmp(kind.backend, "null:") != 0;
}

static void what_was_written_is_read(void)
{
    enum { SIZE = 3 * 65536 + 17 };
    static char out[SIZE], in[SIZE];
    bytes_make(out, SIZE, 1);
    for (int pass = 0; pass < 3; pass++) { /* the first opens the file */
        struct outcome wrote = write_at(out, SIZE, 5000 * pass);
        CU_ASSERT_EQUAL(wrote.error, 0);
        CU_ASSERT_EQUAL(wrote.actual, SIZE);
        struct outcome read = read_at(in, SIZE, 5000 * pass, 0);
        CU_ASSERT_EQUAL(read.error, 0);
        CU_ASSERT_EQUAL(read.actual, SIZE);
        if (keeps_bytes())
            CU_ASSERT_EQUAL(memcmp(in, out, SIZE), 0);
        memset(in, 0, SIZE);
    }
    CU_ASSERT_EQUAL(size_now(), SIZE + 10000);
}

static void reads_stop_at_the_end_or_give_zeros(void)
{
    char in[100], out[10];
    bytes_make(out, sizeof out, 2);
    CU_ASSERT_EQUAL(write_at(out, 10, 20).actual, 10);
    memset(in, 'x', sizeof in);
    struct outcome read = read_at(in, 100, 5, 0);
    CU_ASSERT_EQUAL(read.error, 0);
    CU_ASSERT_EQUAL(read.actual, 25);
    CU_ASSERT_EQUAL(in[25], 'x');
    CU_ASSERT_EQUAL(read_at(in, 100, 30, 0).actual, 0);
    CU_ASSERT_EQUAL(read_at(in, 100, (bmi_size_t)1 << 50, 0).actual, 0);
    read = read_at(in, 100, 5, BMI_TROVE_ZEROS);
    CU_ASSERT_EQUAL(read.actual, 100);
    for (int i = 25; i < 100; i++)
        CU_ASSERT_EQUAL(in[i], 0);
    if (keeps_bytes()) {
        CU_ASSERT_EQUAL(memcmp(in + 15, out, 10), 0);
        CU_ASSERT_EQUAL(in[14], 0); /* a hole */
    }
}

static void resizing_cuts_and_extends_with_zeros(void)
{
    char in[200], out[200];
    bmi_trove_op_id_t op;
    memset(out, 'a', sizeof out);
    CU_ASSERT_EQUAL(write_at(out, 200, 0).error, 0);
    CU_ASSERT_EQUAL(done(bmi_trove_post_resize(&op, &place, 50, 0, NULL, context), &op).error, 0);
    CU_ASSERT_EQUAL(size_now(), 50);
    CU_ASSERT_EQUAL(
        done(bmi_trove_post_resize(&op, &place, 150, BMI_TROVE_SYNC, NULL, context), &op).error, 0);
    CU_ASSERT_EQUAL(read_at(in, 200, 0, 0).actual, 150);
    if (keeps_bytes()) {
        CU_ASSERT_EQUAL(in[49], 'a');
        CU_ASSERT_EQUAL(in[50], 0);
        CU_ASSERT_EQUAL(in[149], 0);
    }
    CU_ASSERT_EQUAL(done(bmi_trove_post_flush(&op, &place, NULL, context), &op).error, 0);
}

/* Cuts `total` into `count` pieces, some of them empty. */
static void cut(bmi_size_t *sizes, int count, bmi_size_t total, unsigned seed)
{
    for (int i = 0; i < count; i++) {
        seed = seed * 1103515245 + 12345;
        bmi_size_t most = total / (count - i) * 2;
        sizes[i] = i == count - 1  ? total
                   : seed % 5 == 0 ? 0
                                   : (bmi_size_t)(seed >> 8) % (most + 1);
        total -= sizes[i];
    }
}

static void lists_of_unlike_counts(void)
{
    enum { TOTAL = 300000, MOST = 700 };
    static char memory[TOTAL], back[TOTAL], stream[4 * TOTAL], check[4 * TOTAL];
    static void *buffers[MOST];
    static bmi_size_t sizes[MOST], offsets[MOST], extents[MOST];
    static const int counts[][2] = {{1, 1}, {1, 9}, {9, 1}, {700, 3}, {3, 700}, {333, 200}};
    bmi_trove_op_id_t op;
    for (unsigned round = 0; round < sizeof counts / sizeof counts[0]; round++) {
        int count = counts[round][0], pieces = counts[round][1];
        bytes_make(memory, TOTAL, round);
        memset(stream, 0, sizeof stream);
        cut(sizes, count, TOTAL, round);
        cut(extents, pieces, TOTAL, round + 77);
        CU_ASSERT_EQUAL(done(bmi_trove_post_resize(&op, &place, 0, 0, NULL, context), &op).error,
                        0);
        bmi_size_t at = 0, from = 0;
        for (int i = 0; i < count; from += sizes[i++])
            buffers[i] = memory + from;
        from = 0;
        for (int i = 0; i < pieces; i++) { /* some touch, some leave a gap; in descending halves */
            offsets[i] = at;
            memcpy(stream + at, memory + from, (size_t)extents[i]);
            at += extents[i] + (i % 3 == 0 ? 0 : 1000);
            from += extents[i];
        }
        bmi_size_t actual = -1;
        CU_ASSERT_EQUAL(done(bmi_trove_post_write_list(&op, &place, (const void *const *)buffers,
                                                       sizes, count, offsets, extents, pieces,
                                                       &actual, 0, NULL, context),
                             &op)
                            .error,
                        0);
        CU_ASSERT_EQUAL(actual, TOTAL);
        bmi_size_t size = size_now();
        CU_ASSERT_EQUAL(read_at(check, sizeof check, 0, 0).actual, size);
        if (keeps_bytes())
            CU_ASSERT_EQUAL(memcmp(check, stream, (size_t)size), 0);
        from = 0;
        for (int i = 0; i < count; from += sizes[i++])
            buffers[i] = back + from;
        memset(back, 0, sizeof back);
        CU_ASSERT_EQUAL(done(bmi_trove_post_read_list(&op, &place, buffers, sizes, count, offsets,
                                                      extents, pieces, &actual, 0, NULL, context),
                             &op)
                            .error,
                        0);
        CU_ASSERT_EQUAL(actual, TOTAL);
        if (keeps_bytes())
            CU_ASSERT_EQUAL(memcmp(back, memory, TOTAL), 0);
    }
}

static void bad_arguments_are_refused(void)
{
    char byte = 0;
    void *buffer = &byte;
    bmi_size_t one = 1, two = 2, zero = 0, below = -1, far = INT64_MAX;
    bmi_trove_op_id_t op = 9;
    struct bmi_trove_place none = place;
    none.store = NULL;
    CU_ASSERT_EQUAL(bmi_trove_post_read_at(NULL, &place, &byte, 1, 0, NULL, 0, NULL, context),
                    -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_trove_post_read_at(&op, &none, &byte, 1, 0, NULL, 0, NULL, context),
                    -BMI_EINVAL);
    CU_ASSERT_EQUAL(op, 0);
    CU_ASSERT_EQUAL(bmi_trove_post_read_at(&op, &place, NULL, 1, 0, NULL, 0, NULL, context),
                    -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_trove_post_read_at(&op, &place, &byte, -1, 0, NULL, 0, NULL, context),
                    -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_trove_post_read_at(&op, &place, &byte, 1, -1, NULL, 0, NULL, context),
                    -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_trove_post_write_at(&op, &place, &byte, 1, far, NULL, 0, NULL, context),
                    -BMI_EFBIG);
    CU_ASSERT_EQUAL(bmi_trove_post_read_at(&op, &place, &byte, 1, 0, NULL, 1u << 30, NULL, context),
                    -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_trove_post_read_at(&op, &place, &byte, 1, 0, NULL, 0, NULL, context + 1),
                    -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_trove_post_read_list(&op, &place, &buffer, &one, 1, &zero, &two, 1, NULL, 0,
                                             NULL, context),
                    -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_trove_post_read_list(&op, &place, &buffer, &below, 1, &zero, &below, 1,
                                             NULL, 0, NULL, context),
                    -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_trove_post_resize(&op, &place, -1, 0, NULL, context), -BMI_EINVAL);
    int count = 5;
    bmi_error_code_t error;
    CU_ASSERT_EQUAL(bmi_trove_test(0, &count, &error, NULL, NULL, 0, context), -BMI_EINVAL);
    CU_ASSERT_EQUAL(count, 0);
    CU_ASSERT_EQUAL(bmi_trove_test(12345, &count, &error, NULL, NULL, 0, context), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_trove_cancel(12345, context), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_trove_testcontext(1, &op, &count, &error, NULL, NULL, -1, context),
                    -BMI_EINVAL);
}

/* ---- objects -----------------------------------------------------------------------------------
 */

static void absent_objects_are_told(void)
{
    bmi_trove_op_id_t op;
    char byte = 0;
    place.object = 4711;
    CU_ASSERT_EQUAL(read_at(&byte, 1, 0, 0).error, -BMI_ENOENT);
    CU_ASSERT_EQUAL(write_at(&byte, 1, 0).error, -BMI_ENOENT);
    CU_ASSERT_EQUAL(done(bmi_trove_post_remove(&op, &place, 0, NULL, context), &op).error,
                    -BMI_ENOENT);
    place.collection = 99;
    bmi_trove_object_t object = 0;
    CU_ASSERT_EQUAL(done(bmi_trove_post_create(&op, &place, &object, 0, NULL, context), &op).error,
                    -BMI_ENOENT);
    CU_ASSERT_EQUAL(bmi_trove_collection_remove(store, 99), -BMI_ENOENT);
    CU_ASSERT_EQUAL(bmi_trove_collection_create(store, 7), -BMI_EEXIST);
    CU_ASSERT_EQUAL(bmi_trove_collection_remove(store, 7), -BMI_ENOTEMPTY);
}

static void objects_are_made_listed_and_removed(void)
{
    enum { COUNT = 40 };
    bmi_trove_object_t list[16], position = 0, found = 0, number = 0xab00000000000001u;
    bmi_trove_op_id_t op;
    struct bmi_trove_place all = place;
    for (int i = 0; i < COUNT - 2; i++)
        object_make();
    CU_ASSERT_EQUAL(
        done(bmi_trove_post_create(&op, &place, &number, BMI_TROVE_SYNC, NULL, context), &op).error,
        0);
    CU_ASSERT_EQUAL(done(bmi_trove_post_create(&op, &place, &number, 0, NULL, context), &op).error,
                    -BMI_EEXIST);
    bmi_size_t count = 0;
    do {
        bmi_trove_object_t before = position;
        int result = bmi_trove_post_objects(&op, &all, &position, list, 16, NULL, context);
        struct outcome outcome = done(result, &op);
        CU_ASSERT_EQUAL_FATAL(outcome.error, 0);
        count = 0;
        while (count < 16 && found + (uint64_t)count < COUNT && list[count] > before)
            before = list[count++]; /* ascending */
        if (!outcome.immediate)
            CU_ASSERT_EQUAL(outcome.actual, count);
        found += (uint64_t)count;
    } while (count == 16);
    CU_ASSERT_EQUAL(found, COUNT);
    position = 0;
    for (int i = 0; i < COUNT; i++) {
        done(bmi_trove_post_objects(&op, &all, &position, list, 1, NULL, context), &op);
        all.object = list[0];
        CU_ASSERT_EQUAL(done(bmi_trove_post_remove(&op, &all, 0, NULL, context), &op).error, 0);
        CU_ASSERT_EQUAL(done(bmi_trove_post_remove(&op, &all, 0, NULL, context), &op).error,
                        -BMI_ENOENT);
    }
    CU_ASSERT_EQUAL(bmi_trove_collection_remove(store, 7), 0);
    bmi_trove_collection_t collection = 0;
    CU_ASSERT_EQUAL(bmi_trove_collection_next(store, &collection), -BMI_ENOENT);
    CU_ASSERT_EQUAL(bmi_trove_collection_create(store, 0xfffffff0u), 0);
    CU_ASSERT_EQUAL(bmi_trove_collection_next(store, &collection), 0);
    CU_ASSERT_EQUAL(collection, 0xfffffff0u);
}

/* ---- key/values --------------------------------------------------------------------------------
 */

static struct outcome put_one(const char *key, const char *value, unsigned flags)
{
    bmi_trove_op_id_t op;
    struct bmi_trove_pair pair = {.key = (char *)key,
                                  .key_size = (bmi_size_t)strlen(key),
                                  .value = (char *)value,
                                  .value_size = (bmi_size_t)strlen(value)};
    return done(bmi_trove_post_put(&op, &place, &pair, 1, flags, NULL, context), &op);
}

static bmi_error_code_t get_one(const char *key, char *room, bmi_size_t *size)
{
    bmi_trove_op_id_t op;
    struct bmi_trove_pair pair = {.key = (char *)key,
                                  .key_size = (bmi_size_t)strlen(key),
                                  .value = room,
                                  .value_size = *size};
    struct outcome outcome = done(bmi_trove_post_get(&op, &place, &pair, 1, NULL, context), &op);
    *size = pair.value_size;
    return outcome.error != 0 ? outcome.error : pair.error;
}

static void pairs_are_put_got_and_removed(void)
{
    char room[16];
    bmi_size_t size = sizeof room;
    bmi_trove_op_id_t op;
    if (!kind.has_keys)
        return;
    CU_ASSERT_EQUAL(get_one("name", room, &size), -BMI_ENOENT);
    CU_ASSERT_EQUAL(put_one("name", "value", 0).error, 0);
    size = sizeof room;
    CU_ASSERT_EQUAL(get_one("name", room, &size), 0);
    CU_ASSERT_EQUAL(size, 5);
    CU_ASSERT_EQUAL(memcmp(room, "value", 5), 0);
    CU_ASSERT_EQUAL(put_one("name", "another", BMI_TROVE_ONLY_NEW).error, -BMI_EEXIST);
    CU_ASSERT_EQUAL(put_one("name", "another one", BMI_TROVE_SYNC).error, 0);
    size = 4;
    CU_ASSERT_EQUAL(get_one("name", room, &size), -BMI_EMSGSIZE);
    CU_ASSERT_EQUAL(size, 11);
    CU_ASSERT_EQUAL(memcmp(room, "anot", 4), 0);
    struct bmi_trove_pair pairs[2] = {{.key = (char *)"name", .key_size = 4},
                                      {.key = (char *)"none", .key_size = 4}};
    CU_ASSERT_EQUAL(
        done(bmi_trove_post_remove_keys(&op, &place, pairs, 2, 0, NULL, context), &op).error, 0);
    CU_ASSERT_EQUAL(pairs[0].error, 0);
    CU_ASSERT_EQUAL(pairs[1].error, -BMI_ENOENT);
    size = sizeof room;
    CU_ASSERT_EQUAL(get_one("name", room, &size), -BMI_ENOENT);
    struct bmi_trove_place mine = place;
    place.object = 4711;
    CU_ASSERT_EQUAL(put_one("name", "value", 0).error, -BMI_ENOENT);
    place = mine;
}

/* A list of which one may not be put leaves nothing. */
static void a_list_is_put_whole_or_not(void)
{
    char room[16];
    bmi_size_t size = sizeof room;
    bmi_trove_op_id_t op;
    if (!kind.has_keys)
        return;
    CU_ASSERT_EQUAL(put_one("b", "old", 0).error, 0);
    struct bmi_trove_pair pairs[3] = {
        {.key = (char *)"a", .key_size = 1, .value = (char *)"1", .value_size = 1},
        {.key = (char *)"b", .key_size = 1, .value = (char *)"2", .value_size = 1},
        {.key = (char *)"c", .key_size = 1, .value = NULL, .value_size = 0}};
    CU_ASSERT_EQUAL(
        done(bmi_trove_post_put(&op, &place, pairs, 3, BMI_TROVE_ONLY_NEW, NULL, context), &op)
            .error,
        -BMI_EEXIST);
    CU_ASSERT_EQUAL(get_one("a", room, &size), -BMI_ENOENT);
    CU_ASSERT_EQUAL(done(bmi_trove_post_put(&op, &place, pairs, 3, 0, NULL, context), &op).error,
                    0);
    size = sizeof room;
    CU_ASSERT_EQUAL(get_one("b", room, &size), 0);
    CU_ASSERT_EQUAL(room[0], '2');
    size = sizeof room;
    CU_ASSERT_EQUAL(get_one("c", room, &size), 0);
    CU_ASSERT_EQUAL(size, 0);
}

static void keys_are_iterated_in_order_from_a_position(void)
{
    enum { COUNT = 300, BATCH = 7 };
    char key[16], keys[BATCH][16], values[BATCH][16];
    bmi_trove_op_id_t op;
    if (!kind.has_keys)
        return;
    bmi_trove_object_t first = place.object;
    object_make(); /* a neighbour, whose keys must not be seen */
    CU_ASSERT_EQUAL(put_one("k000", "wrong", 0).error, 0);
    bmi_trove_object_t neighbour = place.object;
    place.object = first;
    for (int i = 0; i < COUNT; i++) {
        snprintf(key, sizeof key, "k%03d", i * 7 % COUNT);
        CU_ASSERT_EQUAL(put_one(key, key + 1, 0).error, 0);
    }
    struct bmi_trove_position position = {0};
    int seen = 0;
    bmi_size_t got;
    do {
        struct bmi_trove_pair pairs[BATCH];
        memset(keys, 0, sizeof keys);
        for (int i = 0; i < BATCH; i++)
            pairs[i] = (struct bmi_trove_pair){.key = keys[i],
                                               .key_size = 16,
                                               .value = values[i],
                                               .value_size = 16};
        struct outcome outcome =
            done(bmi_trove_post_iterate(&op, &place, &position, pairs, BATCH, NULL, context), &op);
        CU_ASSERT_EQUAL_FATAL(outcome.error, 0);
        for (got = 0; got < BATCH && keys[got][0] != '\0'; got++, seen++) {
            snprintf(key, sizeof key, "k%03d", seen);
            CU_ASSERT_EQUAL(pairs[got].error, 0);
            CU_ASSERT_EQUAL(pairs[got].key_size, 4);
            CU_ASSERT_EQUAL(memcmp(keys[got], key, 4), 0);
            CU_ASSERT_EQUAL(memcmp(values[got], key + 1, 3), 0);
        }
        if (!outcome.immediate)
            CU_ASSERT_EQUAL(outcome.actual, got);
    } while (got == BATCH);
    CU_ASSERT_EQUAL(seen, COUNT);
    /* removing one object leaves the other's keys, and making it anew finds none */
    CU_ASSERT_EQUAL(done(bmi_trove_post_remove(&op, &place, 0, NULL, context), &op).error, 0);
    CU_ASSERT_EQUAL(done(bmi_trove_post_create(&op, &place, &first, 0, NULL, context), &op).error,
                    0);
    bmi_size_t size = 16;
    CU_ASSERT_EQUAL(get_one("k000", values[0], &size), -BMI_ENOENT);
    place.object = neighbour;
    size = 16;
    CU_ASSERT_EQUAL(get_one("k000", values[0], &size), 0);
    CU_ASSERT_EQUAL(size, 5);
}

/* Values that make the table grow beyond its first size. */
static void the_table_grows(void)
{
    enum { COUNT = 40 };
    if (!kind.has_keys || strcmp(kind.backend, "dir:") != 0 || kind.settings.no_uring)
        return;
    char *value = calloc(1, BMI_TROVE_VALUE_MAX), key[8];
    CU_ASSERT_PTR_NOT_NULL_FATAL(value);
    bmi_trove_op_id_t op;
    struct bmi_trove_pair pair = {.key = key, .value = value, .value_size = BMI_TROVE_VALUE_MAX};
    for (int i = 0; i < COUNT; i++) {
        pair.key_size = snprintf(key, sizeof key, "%d", i % 4);
        value[i] = (char)i;
        CU_ASSERT_EQUAL(
            done(bmi_trove_post_put(&op, &place, &pair, 1, 0, NULL, context), &op).error, 0);
    }
    pair.value_size = BMI_TROVE_VALUE_MAX + 1;
    CU_ASSERT_EQUAL(bmi_trove_post_put(&op, &place, &pair, 1, 0, NULL, context), -BMI_EINVAL);
    free(value);
}

/* Posts a write until one is pending: with a short delay it may be done by the time the post ends.
 */
static int write_pending(bmi_trove_op_id_t *op, char *byte, bmi_size_t offset, void *user_ptr)
{
    int result;
    do
        result = bmi_trove_post_write_at(op, &place, byte, 1, offset, NULL, 0, user_ptr, context);
    while (result == 1);
    return result;
}

/* ---- tests, waits, cancel -----------------------------------------------------------------------
 */

static void delay(int ms, unsigned kinds)
{
    CU_ASSERT_EQUAL(bmi_trove_inject(store,
                                     &(struct bmi_trove_fault){.kinds = kinds, .delay_ms = ms}),
                    0);
}

static void completions_come_with_their_pointers(void)
{
    enum { COUNT = 20 };
    bmi_trove_op_id_t ops[COUNT], out[COUNT];
    bmi_error_code_t errors[COUNT];
    bmi_size_t actuals[COUNT];
    void *pointers[COUNT];
    char bytes[COUNT];
    bool seen[COUNT] = {false};
    delay(1, BMI_TROVE_WRITES);
    for (int i = 0; i < COUNT; i++)
        CU_ASSERT_EQUAL_FATAL(write_pending(&ops[i], &bytes[i], i, &bytes[i]), 0);
    for (int left = COUNT; left > 0;) {
        int count = 0;
        CU_ASSERT_EQUAL_FATAL(bmi_trove_testcontext(7, out, &count, errors, actuals, pointers,
                                                    PATIENCE_MS, context),
                              1);
        for (int i = 0; i < count; i++, left--) {
            long index = (char *)pointers[i] - bytes;
            CU_ASSERT_FATAL(index >= 0 && index < COUNT && !seen[index]);
            seen[index] = true;
            CU_ASSERT_EQUAL(out[i], ops[index]);
            CU_ASSERT_EQUAL(errors[i], 0);
            CU_ASSERT_EQUAL(actuals[i], 1);
        }
    }
    int count = 9;
    CU_ASSERT_EQUAL(bmi_trove_testcontext(7, out, &count, errors, NULL, NULL, 0, context), 0);
    CU_ASSERT_EQUAL(count, 0);
}

static void testsome_takes_what_it_names(void)
{
    bmi_trove_op_id_t ops[3], asked[3], out[4];
    bmi_error_code_t errors[4];
    int index[3], count;
    char bytes[3];
    delay(1, BMI_TROVE_WRITES);
    for (int i = 0; i < 3; i++)
        CU_ASSERT_EQUAL_FATAL(write_pending(&ops[i], &bytes[i], i, NULL), 0);
    asked[0] = 0;
    asked[1] = ops[2];
    asked[2] = 0;
    CU_ASSERT_EQUAL(bmi_trove_testsome(3, asked, &count, index, errors, NULL, NULL, PATIENCE_MS,
                                       context),
                    1);
    CU_ASSERT_EQUAL(count, 1);
    CU_ASSERT_EQUAL(index[0], 1);
    CU_ASSERT_EQUAL(bmi_trove_testsome(3, asked, &count, index, errors, NULL, NULL, 0, context),
                    -BMI_EINVAL);
    for (int left = 2; left > 0; left -= count)
        CU_ASSERT_EQUAL_FATAL(bmi_trove_testcontext(4, out, &count, errors, NULL, NULL, PATIENCE_MS,
                                                    context),
                              1);
}

static void count_up(void *argument)
{
    atomic_fetch_add((atomic_int *)argument, 1);
}

/* A program's own loop: poll the descriptor, then test with 0 ms. */
static void the_descriptor_is_readable_when_there_is_something(void)
{
    bmi_trove_op_id_t op, out;
    bmi_error_code_t error;
    atomic_int notified = 0;
    char byte = 1;
    int count = 0;
    struct pollfd poll_fd = {.fd = bmi_trove_context_fd(context), .events = POLLIN};
    CU_ASSERT_FATAL(poll_fd.fd >= 0);
    CU_ASSERT_EQUAL(bmi_trove_context_fd(context), poll_fd.fd);
    CU_ASSERT_EQUAL(bmi_trove_context_notify(context, count_up, &notified), 0);
    for (int i = 0; i < 10; i++) {
        if (i == 5)
            delay(2, BMI_TROVE_WRITES);
        int result = bmi_trove_post_write_at(&op, &place, &byte, 1, 0, NULL, 0, NULL, context);
        CU_ASSERT(result >= 0);
        int seen = result;
        while (seen == 0) {
            CU_ASSERT_EQUAL_FATAL(poll(&poll_fd, 1, PATIENCE_MS), 1);
            CU_ASSERT(bmi_trove_testcontext(1, &out, &count, &error, NULL, NULL, 0, context) >= 0);
            seen = count;
            if (count > 0)
                CU_ASSERT_EQUAL(out, op);
        }
    }
    CU_ASSERT(atomic_load(&notified) >= 5);
    CU_ASSERT_EQUAL(bmi_trove_context_notify(context, NULL, NULL), 0);
}

static void a_cancelled_operation_ends_at_once(void)
{
    bmi_trove_op_id_t op;
    char byte = 1;
    delay(600000, BMI_TROVE_WRITES);
    CU_ASSERT_EQUAL_FATAL(bmi_trove_post_write_at(&op, &place, &byte, 1, 0, NULL, 0, NULL, context),
                          0);
    CU_ASSERT_EQUAL(bmi_trove_cancel(op, context), 0);
    CU_ASSERT_EQUAL(bmi_trove_cancel(op, context), 0);
    struct outcome outcome = done(0, &op);
    CU_ASSERT_EQUAL(outcome.error, -BMI_ECANCEL);
    CU_ASSERT_EQUAL(outcome.actual, 0);
    CU_ASSERT_EQUAL(bmi_trove_inject(store, NULL), 0);
    CU_ASSERT_EQUAL(size_now(), 0);
}

static void closing_a_context_cancels(void)
{
    enum { COUNT = 12 };
    bmi_trove_op_id_t op;
    char bytes[COUNT];
    delay(600000, BMI_TROVE_ALL);
    for (int i = 0; i < COUNT; i++)
        CU_ASSERT_EQUAL_FATAL(bmi_trove_post_write_at(&op, &place, &bytes[i], 1, i, NULL, 0, NULL,
                                                      context),
                              0);
    CU_ASSERT_EQUAL(bmi_trove_close_context(context), 0);
    CU_ASSERT_EQUAL(bmi_trove_close_context(context), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_trove_inject(store, NULL), 0);
    CU_ASSERT_EQUAL_FATAL(bmi_trove_open_context(&context), 0);
    CU_ASSERT_EQUAL(size_now(), 0);
}

/* Several threads post to and wait on one context. */
struct crowd {
    atomic_int left;
    atomic_int wrong;
};

static void *crowd_member(void *argument)
{
    enum { POSTS = 100 };
    struct crowd *crowd = argument;
    char bytes[64] = {0};
    for (int i = 0; i < POSTS; i++) {
        bmi_trove_op_id_t op;
        bmi_error_code_t errors[4];
        bmi_trove_op_id_t out[4];
        int count, result = bmi_trove_post_write_at(&op, &place, bytes, 64, i * 64, NULL, 0, NULL,
                                                    context);
        if (result == 1)
            atomic_fetch_sub(&crowd->left, 1);
        else if (result < 0)
            atomic_fetch_add(&crowd->wrong, 1);
        if (bmi_trove_testcontext(4, out, &count, errors, NULL, NULL, i % 3, context) < 0)
            atomic_fetch_add(&crowd->wrong, 1);
        atomic_fetch_sub(&crowd->left, count);
        for (int k = 0; k < count; k++)
            atomic_fetch_add(&crowd->wrong, errors[k] != 0);
    }
    while (atomic_load(&crowd->left) > 0) {
        bmi_error_code_t error;
        bmi_trove_op_id_t out;
        int count;
        bmi_trove_testcontext(1, &out, &count, &error, NULL, NULL, 20, context);
        atomic_fetch_sub(&crowd->left, count);
    }
    return NULL;
}

static void many_threads_on_one_context(void)
{
    enum { THREADS = 4, POSTS = 100 };
    pthread_t threads[THREADS];
    struct crowd crowd = {.left = THREADS * POSTS};
    for (int i = 0; i < THREADS; i++)
        CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[i], NULL, crowd_member, &crowd), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    CU_ASSERT_EQUAL(crowd.left, 0);
    CU_ASSERT_EQUAL(crowd.wrong, 0);
}

/* A thread that posts and ends: io_uring cancels what it has under way, we must not. */
static void *post_and_end(void *argument)
{
    bmi_trove_op_id_t *ops = argument;
    static char bytes[8][100000];
    for (int i = 0; i < 8; i++)
        ops[i] = bmi_trove_post_write_at(&ops[i], &place, bytes[i], sizeof bytes[i], i * 100000,
                                         NULL, BMI_TROVE_SYNC, NULL, context) == 0
                     ? ops[i]
                     : 0;
    return NULL;
}

static void a_poster_may_end(void)
{
    pthread_t thread;
    bmi_trove_op_id_t ops[8];
    char byte = 0;
    CU_ASSERT_EQUAL(write_at(&byte, 1, 0).error, 0); /* the file is open then */
    CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, post_and_end, ops), 0);
    pthread_join(thread, NULL);
    for (int i = 0; i < 8; i++)
        if (ops[i] != 0)
            CU_ASSERT_EQUAL(done(0, &ops[i]).error, 0);
    CU_ASSERT_EQUAL(size_now(), 800000);
}

/* ---- faults -------------------------------------------------------------------------------------
 */

static void faults_strike_the_nth(void)
{
    char bytes[10] = {0};
    struct bmi_trove_statistics statistics;
    CU_ASSERT_EQUAL(bmi_trove_inject(store, &(struct bmi_trove_fault){.kinds = BMI_TROVE_WRITES,
                                                                      .skip = 2,
                                                                      .times = 1,
                                                                      .error = -BMI_EIO}),
                    0);
    CU_ASSERT_EQUAL(write_at(bytes, 10, 0).error, 0);
    CU_ASSERT_EQUAL(write_at(bytes, 10, 10).error, 0);
    CU_ASSERT_EQUAL(read_at(bytes, 10, 10, 0).error, 0); /* not counted */
    struct outcome outcome = write_at(bytes, 10, 20);
    CU_ASSERT_EQUAL(outcome.error, -BMI_EIO);
    CU_ASSERT_EQUAL(outcome.actual, 0);
    CU_ASSERT_EQUAL(size_now(), 20);
    CU_ASSERT_EQUAL(write_at(bytes, 10, 20).error, 0);
    CU_ASSERT_EQUAL(bmi_trove_get_statistics(store, &statistics), 0);
    CU_ASSERT_EQUAL(statistics.faults, 1);
    CU_ASSERT_EQUAL(bmi_trove_inject(store, &(struct bmi_trove_fault){.kinds = 64}), -BMI_EINVAL);
}

static void faults_may_move_some_bytes_first(void)
{
    char bytes[1000] = {0};
    CU_ASSERT_EQUAL(bmi_trove_inject(store, &(struct bmi_trove_fault){.kinds = BMI_TROVE_WRITES,
                                                                      .times = 1,
                                                                      .error = -BMI_ENOSPC,
                                                                      .limit = 300}),
                    0);
    struct outcome outcome = write_at(bytes, 1000, 0);
    CU_ASSERT_EQUAL(outcome.error, -BMI_ENOSPC);
    CU_ASSERT_EQUAL(outcome.actual, 300);
    CU_ASSERT_EQUAL(size_now(), 300);
    CU_ASSERT_EQUAL(write_at(bytes, 1000, 0).error, 0);
    CU_ASSERT_EQUAL(bmi_trove_inject(store, &(struct bmi_trove_fault){.kinds = BMI_TROVE_READS,
                                                                      .times = 1,
                                                                      .limit = 123}),
                    0);
    outcome = read_at(bytes, 1000, 0, 0);
    CU_ASSERT_EQUAL(outcome.error, 0);
    CU_ASSERT_EQUAL(outcome.actual, 123);
    CU_ASSERT_EQUAL(bmi_trove_inject(store, &(struct bmi_trove_fault){.kinds = BMI_TROVE_OBJECTS |
                                                                               BMI_TROVE_KEYS |
                                                                               BMI_TROVE_SYNCS,
                                                                      .error = -BMI_EIO}),
                    0);
    bmi_trove_op_id_t op;
    bmi_size_t size;
    CU_ASSERT_EQUAL(done(bmi_trove_post_size(&op, &place, &size, NULL, context), &op).error,
                    -BMI_EIO);
    CU_ASSERT_EQUAL(done(bmi_trove_post_flush(&op, &place, NULL, context), &op).error, -BMI_EIO);
    CU_ASSERT_EQUAL(put_one("a", "b", 0).error, -BMI_EIO);
    CU_ASSERT_EQUAL(bmi_trove_inject(store, NULL), 0);
}

/* ---- who does the work
 * --------------------------------------------------------------------------- */

static bool uring_there(void)
{
    char parameters[256] = {0};
    long fd = BMI_WITH_URING ? syscall(SYS_io_uring_setup, 2, parameters) : -1;
    if (fd >= 0)
        close((int)fd);
    return fd >= 0;
}

static void io_uring_is_used_where_it_is_there(void)
{
    struct bmi_trove_statistics before, after;
    char bytes[100] = {0};
    CU_ASSERT_EQUAL(write_at(bytes, 100, 0).error, 0); /* opens the file */
    CU_ASSERT_EQUAL(bmi_trove_get_statistics(store, &before), 0);
    CU_ASSERT_EQUAL(write_at(bytes, 100, 0).error, 0);
    CU_ASSERT_EQUAL(read_at(bytes, 100, 0, 0).error, 0);
    CU_ASSERT_EQUAL(bmi_trove_get_statistics(store, &after), 0);
    bool wanted = strcmp(kind.backend, "dir:") == 0 && !kind.settings.no_uring && uring_there();
    CU_ASSERT_EQUAL(after.uring - before.uring, wanted ? 2 : 0);
    CU_ASSERT_EQUAL(after.operations - before.operations, 2);
}

/* ---- the kinds ----------------------------------------------------------------------------------
 */

static CU_TestInfo cases[] = {
    {"what was written is read", what_was_written_is_read},
    {"reads stop at the end, or give zeros", reads_stop_at_the_end_or_give_zeros},
    {"resizing cuts, and extends with zeros", resizing_cuts_and_extends_with_zeros},
    {"lists of unlike counts", lists_of_unlike_counts},
    {"bad arguments are refused", bad_arguments_are_refused},
    {"absent objects are told", absent_objects_are_told},
    {"objects are made, listed, and removed", objects_are_made_listed_and_removed},
    {"pairs are put, got, and removed", pairs_are_put_got_and_removed},
    {"a list is put whole or not", a_list_is_put_whole_or_not},
    {"keys are iterated in order from a position", keys_are_iterated_in_order_from_a_position},
    {"the table grows", the_table_grows},
    {"completions come with their pointers", completions_come_with_their_pointers},
    {"testsome takes what it names", testsome_takes_what_it_names},
    {"the descriptor is readable", the_descriptor_is_readable_when_there_is_something},
    {"a cancelled operation ends at once", a_cancelled_operation_ends_at_once},
    {"closing a context cancels", closing_a_context_cancels},
    {"many threads on one context", many_threads_on_one_context},
    {"a poster may end", a_poster_may_end},
    {"io_uring is used where it is there", io_uring_is_used_where_it_is_there},
    {"faults strike the nth", faults_strike_the_nth},
    {"faults may move some bytes first", faults_may_move_some_bytes_first},
    CU_TEST_INFO_NULL};

#define KIND(name, where, keys, ...)                              \
    static int name(void)                                         \
    {                                                             \
        kind.backend = where;                                     \
        kind.has_keys = keys;                                     \
        kind.settings = (struct bmi_trove_settings){__VA_ARGS__}; \
        return 0;                                                 \
    }

KIND(dir_ring, "dir:", BMI_WITH_LMDB, .open_files = 4, .ring_entries = 8)
KIND(dir_tasks, "dir:", BMI_WITH_LMDB, .no_uring = true, .no_immediate = true)
KIND(mem_immediate, "mem:", true, .immediate_max = 100000)
KIND(mem_tasks, "mem:", true, .no_immediate = true)
KIND(null, "null:", true, .immediate_max = 0)

int main(void)
{
    CU_SuiteInfo suites[] = {
        {"dir, io_uring", dir_ring, NULL, set_up, tear_down, cases},
        {"dir, tasks", dir_tasks, NULL, set_up, tear_down, cases},
        {"mem, immediate", mem_immediate, NULL, set_up, tear_down, cases},
        {"mem, tasks", mem_tasks, NULL, set_up, tear_down, cases},
        {"null", null, NULL, set_up, tear_down, cases},
        CU_SUITE_INFO_NULL,
    };
    return unit_run_suites(suites);
}
