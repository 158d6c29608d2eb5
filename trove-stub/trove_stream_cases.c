/* SPDX-License-Identifier: BSD-3-Clause
 *
 * trove_stream_cases.c - streams and objects, and the threads that move their bytes.
 */
#include <sys/syscall.h>

#include "trove-stub/trove_cases.h"

void written_bytes_are_read(void)
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

void reads_stop_at_the_end_or_give_zeros(void)
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

void resizing_cuts_and_extends_with_zeros(void)
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

void lists_of_unlike_counts(void)
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
        for (int i = 0; i < pieces; i++) { /* some are adjacent, some leave a gap; in descending
                                              halves */
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

void bad_arguments_are_refused(void)
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
    op = 77;
    CU_ASSERT_EQUAL(bmi_trove_post_resize(&op, &place, -1, 0, NULL, context), -BMI_EINVAL);
    CU_ASSERT_EQUAL(op, 0);
    op = 77;
    CU_ASSERT_EQUAL(bmi_trove_post_size(&op, &place, NULL, NULL, context), -BMI_EINVAL);
    CU_ASSERT_EQUAL(op, 0);
    op = 77;
    CU_ASSERT_EQUAL(bmi_trove_post_create(&op, &place, NULL, 0, NULL, context), -BMI_EINVAL);
    CU_ASSERT_EQUAL(op, 0);
    op = 77;
    CU_ASSERT_EQUAL(bmi_trove_post_objects(&op, &place, NULL, NULL, 1, NULL, context), -BMI_EINVAL);
    CU_ASSERT_EQUAL(op, 0);
    int count = 5;
    bmi_error_code_t error;
    CU_ASSERT_EQUAL(bmi_trove_test(0, &count, &error, NULL, NULL, 0, context), -BMI_EINVAL);
    CU_ASSERT_EQUAL(count, 0);
    CU_ASSERT_EQUAL(bmi_trove_test(12345, &count, &error, NULL, NULL, 0, context), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_trove_cancel(12345, context), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_trove_testcontext(1, &op, &count, &error, NULL, NULL, -1, context),
                    -BMI_EINVAL);
}

/* ---- objects --------------------------------------------------------------------------------- */

void absent_objects_are_told(void)
{
    bmi_trove_op_id_t op;
    char byte = 0;
    place.object = 4711;
    CU_ASSERT_EQUAL(read_at(&byte, 1, 0, 0).error, -BMI_ENOENT);
    CU_ASSERT_EQUAL(write_at(&byte, 1, 0).error, -BMI_ENOENT);
    CU_ASSERT_EQUAL(done(bmi_trove_post_remove(&op, &place, 0, NULL, context), &op).error,
                    -BMI_ENOENT);
    place.collection = 99;
    bmi_trove_object_id_t object = 0;
    CU_ASSERT_EQUAL(done(bmi_trove_post_create(&op, &place, &object, 0, NULL, context), &op).error,
                    -BMI_ENOENT);
    CU_ASSERT_EQUAL(bmi_trove_collection_remove(store, 99), -BMI_ENOENT);
    CU_ASSERT_EQUAL(bmi_trove_collection_create(store, 7), -BMI_EEXIST);
    CU_ASSERT_EQUAL(bmi_trove_collection_remove(store, 7), -BMI_ENOTEMPTY);
}

void objects_are_made_listed_and_removed(void)
{
    enum { COUNT = 40 };
    bmi_trove_object_id_t list[16], position = 0, found = 0, number = 0xab00000000000001u;
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
        bmi_trove_object_id_t before = position;
        int result = bmi_trove_post_objects(&op, &all, &position, list, 16, NULL, context);
        struct outcome outcome = done(result, &op);
        CU_ASSERT_EQUAL_FATAL(outcome.error, 0);
        count = 0;
        while (count < 16 && found + (uint64_t)count < COUNT && list[count] > before)
            before = list[count++];             /* ascending */
        CU_ASSERT_EQUAL(outcome.actual, count); /* only this has the number */
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
    bmi_trove_collection_id_t collection = 0;
    CU_ASSERT_EQUAL(bmi_trove_collection_next(store, &collection), -BMI_ENOENT);
    CU_ASSERT_EQUAL(bmi_trove_collection_create(store, 0xfffffff0u), 0);
    CU_ASSERT_EQUAL(bmi_trove_collection_next(store, &collection), 0);
    CU_ASSERT_EQUAL(collection, 0xfffffff0u);
}

/* ---- which thread does the work -------------------------------------------------------------- */

static bool uring_there(void)
{
    char parameters[256] = {0};
    long fd = BMI_WITH_URING ? syscall(SYS_io_uring_setup, 2, parameters) : -1;
    if (fd >= 0)
        close((int)fd);
    return fd >= 0;
}

void io_uring_is_used_where_it_is_there(void)
{
    struct bmi_trove_statistics before, after;
    char bytes[100] = {0};
    CU_ASSERT_EQUAL(write_at(bytes, 100, 0).error, 0); /* opens the file */
    CU_ASSERT_EQUAL(bmi_trove_statistics(store, &before), 0);
    CU_ASSERT_EQUAL(write_at(bytes, 100, 0).error, 0);
    CU_ASSERT_EQUAL(read_at(bytes, 100, 0, 0).error, 0);
    CU_ASSERT_EQUAL(bmi_trove_statistics(store, &after), 0);
    bool wanted = strcmp(kind.backend, "dir:") == 0 && !kind.settings.no_uring && uring_there();
    CU_ASSERT_EQUAL(after.uring - before.uring, wanted ? 2 : 0);
    CU_ASSERT_EQUAL(after.operations - before.operations, 2);
}
