/* SPDX-License-Identifier: BSD-3-Clause
 *
 * trove_hold_cases.c - objects that are held, removals that wait for their release, and puts that
 * compare and return the former values.
 */
#include <pthread.h>

#include "trove-stub/trove_cases.h"

/* ---- holds ----------------------------------------------------------------------------------- */

static bool exists(void)
{
    bmi_trove_op_id_t op;
    bmi_size_t size;
    return done(bmi_trove_post_size(&op, &place, &size, NULL, context), &op).error == 0;
}

static bmi_trove_op_id_t removal_begin(void)
{
    bmi_trove_op_id_t op = 0;
    CU_ASSERT_EQUAL_FATAL(bmi_trove_post_remove(&op, &place, BMI_TROVE_WHEN_RELEASED, NULL,
                                                context),
                          0);
    return op;
}

static bool has_ended(bmi_trove_op_id_t op, bmi_error_code_t *error, int ms)
{
    int count = 0;
    CU_ASSERT(bmi_trove_test(op, &count, error, NULL, NULL, ms, context) >= 0);
    return count == 1;
}

void a_removal_waits_for_the_last_holder(void)
{
    bmi_error_code_t error = 1;
    /* given an object with two holders */
    CU_ASSERT_EQUAL(bmi_trove_hold(&place), 0);
    CU_ASSERT_EQUAL(bmi_trove_hold(&place), 0);
    /* when it is removed, then it stays, there are no new holders, and no second removal */
    bmi_trove_op_id_t op = removal_begin(), second;
    CU_ASSERT_FALSE(has_ended(op, &error, 0));
    CU_ASSERT_TRUE(exists());
    CU_ASSERT_EQUAL(bmi_trove_hold(&place), -BMI_ENOENT);
    CU_ASSERT_EQUAL(done(bmi_trove_post_remove(&second, &place, BMI_TROVE_WHEN_RELEASED, NULL,
                                               context),
                         &second)
                        .error,
                    -BMI_ENOENT);
    CU_ASSERT_EQUAL(bmi_trove_release(&place), 0);
    CU_ASSERT_FALSE(has_ended(op, &error, 0));
    CU_ASSERT_TRUE(exists());
    /* until the last one has released it */
    CU_ASSERT_EQUAL(bmi_trove_release(&place), 0);
    CU_ASSERT_TRUE(has_ended(op, &error, PATIENCE_MS));
    CU_ASSERT_EQUAL(error, 0);
    CU_ASSERT_FALSE(exists());
    CU_ASSERT_EQUAL(bmi_trove_release(&place), -BMI_EINVAL);
}

void without_holders_a_removal_does_not_wait(void)
{
    bmi_trove_op_id_t op;
    CU_ASSERT_EQUAL(bmi_trove_hold(&place), 0);
    CU_ASSERT_EQUAL(bmi_trove_release(&place), 0);
    CU_ASSERT_EQUAL(
        done(bmi_trove_post_remove(&op, &place, BMI_TROVE_WHEN_RELEASED, NULL, context), &op).error,
        0);
    CU_ASSERT_FALSE(exists());
}

void a_removal_that_waits_is_cancelled(void)
{
    bmi_error_code_t error = 0;
    CU_ASSERT_EQUAL(bmi_trove_hold(&place), 0);
    bmi_trove_op_id_t op = removal_begin();
    CU_ASSERT_EQUAL(bmi_trove_cancel(op, context), 0);
    CU_ASSERT_TRUE(has_ended(op, &error, PATIENCE_MS));
    CU_ASSERT_EQUAL(error, -BMI_ECANCEL);
    /* then the object exists, and may be held and removed again */
    CU_ASSERT_TRUE(exists());
    CU_ASSERT_EQUAL(bmi_trove_hold(&place), 0);
    op = removal_begin();
    CU_ASSERT_EQUAL(bmi_trove_release(&place), 0);
    CU_ASSERT_EQUAL(bmi_trove_release(&place), 0);
    CU_ASSERT_TRUE(has_ended(op, &error, PATIENCE_MS));
    CU_ASSERT_FALSE(exists());
}

void closing_a_store_ends_holds(void)
{
    struct bmi_trove_store *other;
    bmi_trove_object_id_t object = 0;
    bmi_trove_op_id_t op;
    bmi_error_code_t error = 1;
    CU_ASSERT_EQUAL_FATAL(bmi_trove_open(&other, "mem:", NULL, NULL, 0), 0);
    struct bmi_trove_place held = {.store = other, .collection = 1};
    CU_ASSERT_EQUAL(bmi_trove_collection_create(other, 1), 0);
    CU_ASSERT_EQUAL(done(bmi_trove_post_create(&op, &held, &object, 0, NULL, context), &op).error,
                    0);
    held.object = object;
    /* given a hold without a release, and a removal that waits */
    CU_ASSERT_EQUAL(bmi_trove_hold(&held), 0);
    CU_ASSERT_EQUAL(bmi_trove_post_remove(&op, &held, BMI_TROVE_WHEN_RELEASED, NULL, context), 0);
    /* when the store is closed, then the removal runs before */
    CU_ASSERT_EQUAL(bmi_trove_close(other), 0);
    CU_ASSERT_TRUE(has_ended(op, &error, PATIENCE_MS));
    CU_ASSERT_EQUAL(error, 0);
}

enum { READERS = 4, ROUNDS = 100 };

/* Holds, reads, and releases until the object is gone; a read within a hold is never refused. */
static void *reader(void *argument)
{
    bmi_trove_context_id_t own;
    bool good = bmi_trove_context_open(&own) == 0;
    (void)argument;
    while (good && bmi_trove_hold(&place) == 0) {
        bmi_trove_op_id_t op;
        bmi_size_t size;
        bmi_error_code_t error = 0;
        int count = 0, result = bmi_trove_post_size(&op, &place, &size, NULL, own);
        if (result == 0)
            bmi_trove_test(op, &count, &error, NULL, NULL, PATIENCE_MS, own);
        bool gone = result < 0 || error != 0; /* it was removed before this hold */
        good = bmi_trove_release(&place) == 0;
        if (gone)
            break;
    }
    bmi_trove_context_close(own);
    return good ? &place : NULL;
}

void readers_and_a_removal(void)
{
    for (int round = 0; round < ROUNDS / 10; round++) {
        pthread_t threads[READERS];
        bmi_error_code_t error = 1;
        bmi_trove_op_id_t op = 0;
        object_make();
        CU_ASSERT_EQUAL(bmi_trove_hold(&place), 0);
        for (int i = 0; i < READERS; i++)
            CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[i], NULL, reader, NULL), 0);
        op = removal_begin();
        CU_ASSERT_EQUAL(bmi_trove_release(&place), 0);
        CU_ASSERT_TRUE(has_ended(op, &error, PATIENCE_MS));
        CU_ASSERT_EQUAL(error, 0);
        for (int i = 0; i < READERS; i++) {
            void *good;
            pthread_join(threads[i], &good);
            CU_ASSERT_PTR_NOT_NULL(good);
        }
    }
}

/* ---- exchange -------------------------------------------------------------------------------- */

static struct bmi_trove_pair pair_of(const char *key, const char *value)
{
    return (struct bmi_trove_pair){.key = (char *)key,
                                   .key_size = (bmi_size_t)strlen(key),
                                   .value = (char *)value,
                                   .value_size = value != NULL ? (bmi_size_t)strlen(value) : 0,
                                   .error = value != NULL ? 0 : -BMI_ENOENT};
}

static struct outcome exchange(struct bmi_trove_pair *pairs, const struct bmi_trove_pair *expected,
                               struct bmi_trove_pair *old, int count, unsigned flags)
{
    bmi_trove_op_id_t op;
    return done(bmi_trove_post_exchange(&op, &place, pairs, expected, old, count, flags, NULL,
                                        context),
                &op);
}

static bool has_value(const char *key, const char *value)
{
    char room[32];
    bmi_trove_op_id_t op;
    struct bmi_trove_pair pair = pair_of(key, "");
    pair.value = room;
    pair.value_size = sizeof room;
    CU_ASSERT_EQUAL(done(bmi_trove_post_get(&op, &place, &pair, 1, NULL, context), &op).error, 0);
    return pair.error == 0 && pair.value_size == (bmi_size_t)strlen(value) &&
           memcmp(room, value, strlen(value)) == 0;
}

void a_put_returns_the_former_value(void)
{
    char rooms[2][8];
    if (!kind.has_keys)
        return;
    CU_ASSERT_EQUAL(put_one("a", "first", 0).error, 0);
    /* given room for two, of which one key exists */
    struct bmi_trove_pair pairs[] = {pair_of("a", "second"), pair_of("b", "new")};
    struct bmi_trove_pair old[] = {{.value = rooms[0], .value_size = 8},
                                   {.value = rooms[1], .value_size = 8}};
    CU_ASSERT_EQUAL(exchange(pairs, NULL, old, 2, 0).error, 0);
    CU_ASSERT_EQUAL(old[0].error, 0);
    CU_ASSERT(old[0].value_size == 5 && memcmp(rooms[0], "first", 5) == 0);
    CU_ASSERT_EQUAL(old[1].error, -BMI_ENOENT);
    CU_ASSERT(has_value("a", "second") && has_value("b", "new"));
    /* if the room is too small its size is returned */
    old[0].value_size = 3;
    CU_ASSERT_EQUAL(exchange(pairs, NULL, old, 1, BMI_TROVE_SYNC).error, 0);
    CU_ASSERT_EQUAL(old[0].error, -BMI_EMSGSIZE);
    CU_ASSERT_EQUAL(old[0].value_size, 6);
}

void a_put_if_nothing_has_changed(void)
{
    char room[8];
    if (!kind.has_keys)
        return;
    /* given two keys of which one is absent */
    CU_ASSERT_EQUAL(put_one("a", "1", 0).error, 0);
    struct bmi_trove_pair pairs[] = {pair_of("a", "2"), pair_of("b", "2")};
    struct bmi_trove_pair expected[] = {pair_of("a", "1"), pair_of("b", NULL)};
    CU_ASSERT_EQUAL(exchange(pairs, expected, NULL, 2, 0).error, 0);
    CU_ASSERT(has_value("a", "2") && has_value("b", "2"));
    /* when one value differs from the expected one, then none is put, and the present value is
     * returned */
    struct bmi_trove_pair third[] = {pair_of("b", "3"), pair_of("a", "3")};
    struct bmi_trove_pair stale[] = {pair_of("b", "2"), pair_of("a", "1")};
    struct bmi_trove_pair old[2] = {{.value = NULL}, {.value = room, .value_size = sizeof room}};
    CU_ASSERT_EQUAL(exchange(third, stale, old, 2, 0).error, -BMI_EAGAIN);
    CU_ASSERT(has_value("a", "2") && has_value("b", "2"));
    CU_ASSERT(old[1].error == 0 && old[1].value_size == 1 && room[0] == '2');
    /* absent although a value was expected, present although none was, and an empty value is
     * neither */
    struct bmi_trove_pair c = pair_of("c", ""), some = pair_of("c", "x"), none = pair_of("c", NULL);
    CU_ASSERT_EQUAL(exchange(&c, &some, NULL, 1, 0).error, -BMI_EAGAIN);
    CU_ASSERT_EQUAL(exchange(&c, &none, NULL, 1, 0).error, 0);
    CU_ASSERT_EQUAL(exchange(&some, &none, NULL, 1, 0).error, -BMI_EAGAIN);
    CU_ASSERT_EQUAL(exchange(&some, &c, NULL, 1, 0).error, 0);
    CU_ASSERT(has_value("c", "x"));
}

void bad_exchanges_are_refused(void)
{
    struct bmi_trove_pair a = pair_of("a", "1"), bad = {.value_size = -1}, none = {.value_size = 3};
    CU_ASSERT_EQUAL(exchange(NULL, NULL, NULL, 1, 0).error, -BMI_EINVAL);
    CU_ASSERT_EQUAL(exchange(&a, &bad, NULL, 1, 0).error, -BMI_EINVAL);
    CU_ASSERT_EQUAL(exchange(&a, NULL, &bad, 1, 0).error, -BMI_EINVAL);
    CU_ASSERT_EQUAL(exchange(&a, NULL, &none, 1, 0).error, -BMI_EINVAL);
    CU_ASSERT_EQUAL(exchange(&a, &a, &a, 1, 0).error, -BMI_EINVAL);
}

/* Threads that increment one key: each reads, and puts if no other has put in between. */
static void *counter(void *argument)
{
    bmi_trove_context_id_t own;
    bool good = bmi_trove_context_open(&own) == 0;
    (void)argument;
    for (int done_count = 0; good && done_count < ROUNDS;) {
        uint32_t now = 0, next;
        bmi_trove_op_id_t op;
        bmi_error_code_t error = 0;
        int count = 0;
        struct bmi_trove_pair seen = {.key = (char *)"n",
                                      .key_size = 1,
                                      .value = &now,
                                      .value_size = sizeof now};
        int result = bmi_trove_post_get(&op, &place, &seen, 1, NULL, own);
        if (result == 0)
            bmi_trove_test(op, &count, &error, NULL, NULL, PATIENCE_MS, own);
        next = now + 1;
        struct bmi_trove_pair put = {.key = (char *)"n",
                                     .key_size = 1,
                                     .value = &next,
                                     .value_size = sizeof next};
        result = bmi_trove_post_exchange(&op, &place, &put, &seen, NULL, 1, 0, NULL, own);
        error = result < 0 ? result : 0;
        if (result == 0)
            bmi_trove_test(op, &count, &error, NULL, NULL, PATIENCE_MS, own);
        good = error == 0 || error == -BMI_EAGAIN;
        done_count += error == 0;
    }
    bmi_trove_context_close(own);
    return good ? &place : NULL;
}

void many_threads_put_if_nothing_has_changed(void)
{
    pthread_t threads[READERS];
    uint32_t total = 0;
    bmi_trove_op_id_t op;
    if (!kind.has_keys)
        return;
    for (int i = 0; i < READERS; i++)
        CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[i], NULL, counter, NULL), 0);
    for (int i = 0; i < READERS; i++) {
        void *good;
        pthread_join(threads[i], &good);
        CU_ASSERT_PTR_NOT_NULL(good);
    }
    struct bmi_trove_pair seen = {.key = (char *)"n",
                                  .key_size = 1,
                                  .value = &total,
                                  .value_size = sizeof total};
    CU_ASSERT_EQUAL(done(bmi_trove_post_get(&op, &place, &seen, 1, NULL, context), &op).error, 0);
    CU_ASSERT_EQUAL(total, READERS * ROUNDS);
}
