/* SPDX-License-Identifier: BSD-3-Clause
 *
 * trove_test.c - the same cases over every backend; a file for each subject.
 */
#include "trove-stub/trove_cases.h"

struct kind kind;
struct bmi_trove_store *store;
bmi_trove_context_id_t context;
struct bmi_trove_place place;
static struct folder folder;

struct outcome done(int result, const bmi_trove_op_id_t *op)
{
    return outcome_of(result, op, context);
}

bmi_trove_object_id_t object_make(void)
{
    bmi_trove_op_id_t op;
    bmi_trove_object_id_t object = 0;
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
    CU_ASSERT_EQUAL_FATAL(bmi_trove_context_open(&context), 0);
    place = (struct bmi_trove_place){.store = store, .collection = 7};
    object_make();
}

static void tear_down(void)
{
    struct bmi_trove_statistics statistics;
    CU_ASSERT_EQUAL(bmi_trove_statistics(store, &statistics), 0);
    CU_ASSERT_EQUAL(statistics.outstanding, 0);
    CU_ASSERT_EQUAL(bmi_trove_context_close(context), 0);
    CU_ASSERT_EQUAL(bmi_trove_close(store), 0);
    if (strcmp(kind.backend, "dir:") == 0)
        folder_remove(&folder);
}
struct outcome write_at(const void *bytes, bmi_size_t size, bmi_size_t offset)
{
    bmi_trove_op_id_t op;
    bmi_size_t actual = -1;
    struct outcome outcome =
        done(bmi_trove_post_write_at(&op, &place, bytes, size, offset, &actual, 0, NULL, context),
             &op);
    outcome.actual = actual;
    return outcome;
}

struct outcome read_at(void *bytes, bmi_size_t size, bmi_size_t offset, unsigned flags)
{
    bmi_trove_op_id_t op;
    bmi_size_t actual = -1;
    int result =
        bmi_trove_post_read_at(&op, &place, bytes, size, offset, &actual, flags, NULL, context);
    struct outcome outcome = done(result, &op);
    outcome.actual = actual;
    return outcome;
}

bmi_size_t size_now(void)
{
    bmi_trove_op_id_t op;
    bmi_size_t size = -1;
    CU_ASSERT_EQUAL(done(bmi_trove_post_size(&op, &place, &size, NULL, context), &op).error, 0);
    return size;
}

bool keeps_bytes(void)
{
    return strcmp(kind.backend, "null:") != 0;
}

struct outcome put_one(const char *key, const char *value, unsigned flags)
{
    bmi_trove_op_id_t op;
    struct bmi_trove_pair pair = {.key = (char *)key,
                                  .key_size = (bmi_size_t)strlen(key),
                                  .value = (char *)value,
                                  .value_size = (bmi_size_t)strlen(value)};
    return done(bmi_trove_post_put(&op, &place, &pair, 1, flags, NULL, context), &op);
}

/* ---- the kinds ------------------------------------------------------------------------------- */

static CU_TestInfo cases[] = {
    {"written bytes are read", written_bytes_are_read},
    {"reads stop at the end, or give zeros", reads_stop_at_the_end_or_give_zeros},
    {"resizing cuts, and extends with zeros", resizing_cuts_and_extends_with_zeros},
    {"lists of unlike counts", lists_of_unlike_counts},
    {"bad arguments are refused", bad_arguments_are_refused},
    {"absent objects are reported", absent_objects_are_told},
    {"objects are made, listed, and removed", objects_are_made_listed_and_removed},
    {"pairs are put, got, and removed", pairs_are_put_got_and_removed},
    {"a list is put whole or not", a_list_is_put_whole_or_not},
    {"a key twice in a list is not only new", a_key_twice_in_a_list_is_not_only_new},
    {"keys are iterated in order from a position", keys_are_iterated_in_order_from_a_position},
    {"the table grows", the_table_grows},
    {"completions come with their pointers", completions_come_with_their_pointers},
    {"testsome takes the operations that it names", testsome_takes_the_named_operations},
    {"the descriptor is readable", the_descriptor_is_readable_when_there_is_something},
    {"a cancelled operation ends at once", a_cancelled_operation_ends_at_once},
    {"closing a context cancels", closing_a_context_cancels},
    {"many threads on one context", many_threads_on_one_context},
    {"a poster may end", a_poster_may_end},
    {"io_uring is used where it is there", io_uring_is_used_where_it_is_there},
    {"faults strike the nth", faults_strike_the_nth},
    {"faults may move some bytes first", faults_may_move_some_bytes_first},
    {"a removal waits for the last holder", a_removal_waits_for_the_last_holder},
    {"without holders a removal does not wait", without_holders_a_removal_does_not_wait},
    {"a removal that waits is cancelled", a_removal_that_waits_is_cancelled},
    {"closing a store ends holds", closing_a_store_ends_holds},
    {"readers and a removal", readers_and_a_removal},
    {"a put returns the former value", a_put_returns_the_former_value},
    {"a put if nothing has changed", a_put_if_nothing_has_changed},
    {"bad exchanges are refused", bad_exchanges_are_refused},
    {"many threads put if nothing has changed", many_threads_put_if_nothing_has_changed},
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
