/* SPDX-License-Identifier: BSD-3-Clause
 *
 * lease_test.c - memory that a store lends: lent memory does not change, blank memory is not
 * visible before it is written, and writes of it are not copied.
 */
#include "trove-stub/lease.h"
#include "trove-stub/trove_testing.h"

enum { SIZE = 4 * BLOCK_SIZE, CAPACITY = 6 * BLOCK_SIZE };

static struct bmi_trove_store *store;
static bmi_trove_context_id_t context;
static struct bmi_trove_place place;
static char bytes[SIZE], other[SIZE], found[SIZE];

static void store_open(const char *where)
{
    struct bmi_trove_settings settings = {.capacity = CAPACITY};
    bmi_trove_object_id_t object = 0;
    bmi_trove_op_id_t op;
    CU_ASSERT_EQUAL_FATAL(bmi_trove_open(&store, where, &settings, NULL, 0), 0);
    CU_ASSERT_EQUAL_FATAL(bmi_trove_collection_create(store, 1), 0);
    CU_ASSERT_EQUAL_FATAL(bmi_trove_context_open(&context), 0);
    place = (struct bmi_trove_place){.store = store, .collection = 1};
    int result = bmi_trove_post_create(&op, &place, &object, 0, NULL, context);
    CU_ASSERT_EQUAL_FATAL(outcome_of(result, &op, context).error, 0);
    place.object = object;
    bytes_make(bytes, SIZE, 1);
    bytes_make(other, SIZE, 2);
}

static void store_close(void)
{
    CU_ASSERT_EQUAL(bmi_trove_context_close(context), 0);
    CU_ASSERT_EQUAL(bmi_trove_close(store), 0);
}

static bmi_error_code_t write_at(const char *from, bmi_size_t size, bmi_size_t offset)
{
    bmi_trove_op_id_t op;
    int result = bmi_trove_post_write_at(&op, &place, from, size, offset, NULL, 0, NULL, context);
    return outcome_of(result, &op, context).error;
}

static bool holds(const char *expected, bmi_size_t size, bmi_size_t offset)
{
    bmi_trove_op_id_t op;
    bmi_size_t actual = 0;
    int result =
        bmi_trove_post_read_at(&op, &place, found, size, offset, &actual, 0, NULL, context);
    return outcome_of(result, &op, context).error == 0 && actual == size &&
           memcmp(found, expected, (size_t)size) == 0;
}

static bool lend(struct trove_lease *lease, bmi_size_t offset, bmi_size_t size)
{
    return bmi__trove_lend(lease, &place, &offset, &size, 1);
}

static bool lend_blank(struct trove_lease *lease, bmi_size_t offset, bmi_size_t size)
{
    return bmi__trove_lend_blank(lease, &place, &offset, &size, 1);
}

static void lease_fill(struct trove_lease *lease, const char *from)
{
    for (int i = 0; i < lease->count; from += lease->sizes[i++])
        memcpy(lease->buffers[i], from, (size_t)lease->sizes[i]);
}

static bool lease_holds(const struct trove_lease *lease, const char *expected)
{
    bool same = true;
    for (int i = 0; i < lease->count; expected += lease->sizes[i++])
        same = same && memcmp(lease->buffers[i], expected, (size_t)lease->sizes[i]) == 0;
    return same;
}

/* Writes all of a lease's memory to this place of the stream. */
static struct outcome lease_write(struct trove_lease *lease, bmi_size_t offset)
{
    bmi_trove_op_id_t op;
    bmi_size_t actual = -1, size = 0;
    for (int i = 0; i < lease->count; i++)
        size += lease->sizes[i];
    int result =
        bmi__trove_post_write_lent(&op, &place, (const void *const *)lease->buffers, lease->sizes,
                                   lease->count, &offset, &size, 1, &actual, lease, NULL, context);
    struct outcome outcome = outcome_of(result, &op, context);
    outcome.actual = actual;
    return outcome;
}

static uint64_t lent_bytes(void)
{
    struct bmi_trove_statistics statistics = {0};
    CU_ASSERT_EQUAL(bmi_trove_statistics(store, &statistics), 0);
    return statistics.lent_bytes;
}

/* ---- cases ----------------------------------------------------------------------------------- */

static void lent_memory_does_not_change(void)
{
    struct trove_lease lease = {0};
    bmi_trove_op_id_t op;
    store_open("mem:");
    CU_ASSERT_EQUAL(write_at(bytes, SIZE, 0), 0);
    CU_ASSERT_FATAL(lend(&lease, 100, SIZE - 200));
    CU_ASSERT_EQUAL(lent_bytes(), SIZE - 200);
    CU_ASSERT_EQUAL(write_at(other, 10, 5000), 0); /* a part of a block */
    CU_ASSERT_EQUAL(write_at(other + BLOCK_SIZE, BLOCK_SIZE, BLOCK_SIZE), 0); /* a whole one */
    CU_ASSERT(holds(other, 10, 5000));
    CU_ASSERT(holds(bytes, 5000, 0));
    CU_ASSERT(holds(other + BLOCK_SIZE, BLOCK_SIZE, BLOCK_SIZE));
    CU_ASSERT(lease_holds(&lease, bytes + 100));
    int result = bmi_trove_post_resize(&op, &place, 3 * BLOCK_SIZE - 7, 0, NULL, context);
    CU_ASSERT_EQUAL(outcome_of(result, &op, context).error, 0);
    CU_ASSERT(lease_holds(&lease, bytes + 100));
    CU_ASSERT(holds(bytes + 2 * BLOCK_SIZE, BLOCK_SIZE - 7, 2 * BLOCK_SIZE));
    result = bmi_trove_post_remove(&op, &place, 0, NULL, context);
    CU_ASSERT_EQUAL(outcome_of(result, &op, context).error, 0);
    CU_ASSERT(lease_holds(&lease, bytes + 100));
    bmi__trove_lease_free(&lease);
    store_close();
}

static void lent_memory_is_written_without_a_copy(void)
{
    struct trove_lease lease = {0}, again = {0};
    store_open("mem:");
    CU_ASSERT_EQUAL(write_at(bytes, SIZE, 0), 0);
    CU_ASSERT_FATAL(lend_blank(&lease, BLOCK_SIZE, 2 * BLOCK_SIZE));
    lease_fill(&lease, other);
    CU_ASSERT(holds(bytes, SIZE, 0)); /* not visible yet */
    struct outcome outcome = lease_write(&lease, BLOCK_SIZE);
    CU_ASSERT(outcome.error == 0 && outcome.actual == 2 * BLOCK_SIZE);
    CU_ASSERT_EQUAL(lent_bytes(), 2 * BLOCK_SIZE);
    CU_ASSERT(holds(bytes, BLOCK_SIZE, 0));
    CU_ASSERT(holds(other, 2 * BLOCK_SIZE, BLOCK_SIZE));
    CU_ASSERT(holds(bytes + 3 * BLOCK_SIZE, BLOCK_SIZE, 3 * BLOCK_SIZE));
    CU_ASSERT_FATAL(lend(&again, BLOCK_SIZE, 2 * BLOCK_SIZE));
    CU_ASSERT_PTR_EQUAL(again.buffers[0], lease.buffers[0]);
    CU_ASSERT_PTR_EQUAL(again.buffers[1], lease.buffers[1]);
    bmi__trove_lease_return(&lease);
    CU_ASSERT(lease_holds(&again, other));
    CU_ASSERT_FATAL(lend_blank(&lease, 8 * BLOCK_SIZE, BLOCK_SIZE)); /* where there was no block */
    lease_fill(&lease, other);
    CU_ASSERT_EQUAL(lease_write(&lease, 8 * BLOCK_SIZE).error, 0);
    CU_ASSERT(holds(other, BLOCK_SIZE, 8 * BLOCK_SIZE));
    bmi__trove_lease_free(&lease);
    bmi__trove_lease_free(&again);
    store_close();
}

static void blanks_that_are_not_written_leave_nothing(void)
{
    struct trove_lease lease = {0};
    store_open("mem:");
    CU_ASSERT_EQUAL(write_at(bytes, SIZE, 0), 0);
    CU_ASSERT_FATAL(lend_blank(&lease, 0, SIZE));
    lease_fill(&lease, other);
    bmi__trove_lease_return(&lease);
    CU_ASSERT(holds(bytes, SIZE, 0));
    /* a fault ends the write after a block and a half: the half is copied */
    struct bmi_trove_fault fault = {.kinds = BMI_TROVE_WRITES,
                                    .error = -BMI_EIO,
                                    .limit = 3 * BLOCK_SIZE / 2};
    CU_ASSERT_FATAL(lend_blank(&lease, 0, SIZE));
    lease_fill(&lease, other);
    CU_ASSERT_EQUAL(bmi_trove_inject(store, &fault), 0);
    struct outcome outcome = lease_write(&lease, 0);
    CU_ASSERT(outcome.error == -BMI_EIO && outcome.actual == 3 * BLOCK_SIZE / 2);
    CU_ASSERT_EQUAL(bmi_trove_inject(store, NULL), 0);
    CU_ASSERT_EQUAL(lent_bytes(), BLOCK_SIZE);
    bmi__trove_lease_return(&lease);
    CU_ASSERT(holds(other, 3 * BLOCK_SIZE / 2, 0));
    CU_ASSERT(holds(bytes + 3 * BLOCK_SIZE / 2, SIZE - 3 * BLOCK_SIZE / 2, 3 * BLOCK_SIZE / 2));
    /* beyond the store's capacity */
    CU_ASSERT_FATAL(lend_blank(&lease, SIZE, SIZE));
    lease_fill(&lease, other);
    outcome = lease_write(&lease, SIZE);
    CU_ASSERT(outcome.error == -BMI_ENOSPC && outcome.actual == CAPACITY - SIZE);
    CU_ASSERT(holds(other, CAPACITY - SIZE, SIZE));
    bmi__trove_lease_free(&lease);
    store_close();
}

static void only_existing_blocks_are_lent(void)
{
    struct trove_lease lease = {0};
    struct bmi_trove_fault fault = {.kinds = BMI_TROVE_READS, .skip = 100};
    store_open("mem:");
    CU_ASSERT_EQUAL(write_at(bytes, BLOCK_SIZE, 0), 0);
    CU_ASSERT_EQUAL(write_at(bytes, 100, 2 * BLOCK_SIZE), 0);
    CU_ASSERT(!lend(&lease, 0, 2 * BLOCK_SIZE));   /* a hole */
    CU_ASSERT(!lend(&lease, 2 * BLOCK_SIZE, 101)); /* beyond the end */
    CU_ASSERT(!lend(&lease, 3 * BLOCK_SIZE, 1));
    CU_ASSERT(!lend(&lease, -1, 1));
    CU_ASSERT(!lend_blank(&lease, 10, BLOCK_SIZE)); /* no whole blocks */
    CU_ASSERT(!lend_blank(&lease, BLOCK_SIZE, 10));
    CU_ASSERT(!lend_blank(&lease, -BLOCK_SIZE, BLOCK_SIZE));
    CU_ASSERT_EQUAL(bmi_trove_inject(store, &fault), 0);
    CU_ASSERT(!lend(&lease, 0, BLOCK_SIZE)); /* reads are counted one by one */
    CU_ASSERT_EQUAL(bmi_trove_inject(store, NULL), 0);
    CU_ASSERT_EQUAL(lent_bytes(), 0);
    CU_ASSERT(lend(&lease, 2 * BLOCK_SIZE, 100));
    CU_ASSERT_EQUAL(lease.sizes[0], 100);
    bmi__trove_lease_free(&lease);
    store_close();
    store_open("null:");
    CU_ASSERT_EQUAL(write_at(bytes, SIZE, 0), 0);
    CU_ASSERT(!lend(&lease, 0, BLOCK_SIZE));
    CU_ASSERT(!lend_blank(&lease, 0, BLOCK_SIZE));
    store_close();
}

int main(void)
{
    CU_TestInfo cases[] = {{"lent memory does not change", lent_memory_does_not_change},
                           {"lent memory is written without a copy",
                            lent_memory_is_written_without_a_copy},
                           {"blanks that are not written leave nothing",
                            blanks_that_are_not_written_leave_nothing},
                           {"only existing blocks are lent", only_existing_blocks_are_lent},
                           CU_TEST_INFO_NULL};
    return unit_run("leases", cases);
}
