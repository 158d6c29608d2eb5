/* SPDX-License-Identifier: BSD-3-Clause
 *
 * trove_keys_cases.c - key/values.
 */
#include "trove-stub/trove_cases.h"

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

/* Whether the store has keys: a folder's are LMDB's. */
static bool keys_there(void)
{
    if (!kind.has_keys)
        printf("skipped: built without LMDB ");
    return kind.has_keys;
}

void pairs_are_put_got_and_removed(void)
{
    char room[16];
    bmi_size_t size = sizeof room;
    bmi_trove_op_id_t op;
    if (!keys_there())
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

/* If one entry of a list may not be put, none is. */
void a_list_is_put_whole_or_not(void)
{
    char room[16];
    bmi_size_t size = sizeof room;
    bmi_trove_op_id_t op;
    if (!keys_there())
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

/* The second of two equal keys exists already when its turn comes. */
void a_key_twice_in_a_list_is_not_only_new(void)
{
    char room[16];
    bmi_size_t size = sizeof room;
    bmi_trove_op_id_t op;
    if (!keys_there())
        return;
    struct bmi_trove_pair pairs[2] = {
        {.key = (char *)"twice", .key_size = 5, .value = (char *)"1", .value_size = 1},
        {.key = (char *)"twice", .key_size = 5, .value = (char *)"2", .value_size = 1}};
    CU_ASSERT_EQUAL(
        done(bmi_trove_post_put(&op, &place, pairs, 2, BMI_TROVE_ONLY_NEW, NULL, context), &op)
            .error,
        -BMI_EEXIST);
    CU_ASSERT_EQUAL(get_one("twice", room, &size), -BMI_ENOENT);
    CU_ASSERT_EQUAL(done(bmi_trove_post_put(&op, &place, pairs, 2, 0, NULL, context), &op).error,
                    0);
    size = sizeof room;
    CU_ASSERT_EQUAL(get_one("twice", room, &size), 0);
    CU_ASSERT_EQUAL(room[0], '2');
}

void keys_are_iterated_in_order_from_a_position(void)
{
    enum { COUNT = 300, BATCH = 7 };
    char key[16], keys[BATCH][16], values[BATCH][16];
    bmi_trove_op_id_t op;
    if (!keys_there())
        return;
    bmi_trove_object_id_t first = place.object;
    object_make(); /* a neighbour, whose keys must not be visible */
    CU_ASSERT_EQUAL(put_one("k000", "wrong", 0).error, 0);
    bmi_trove_object_id_t neighbour = place.object;
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
        CU_ASSERT_EQUAL(outcome.actual, got); /* only this has the number */
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
void the_table_grows(void)
{
    enum { COUNT = 40 };
    if (strcmp(kind.backend, "dir:") != 0 || kind.settings.no_uring || !keys_there())
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
