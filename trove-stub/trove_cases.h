/* SPDX-License-Identifier: BSD-3-Clause
 *
 * trove_cases.h - shared by the files of trove_test: the backend under test, with an open store, a
 * context, and an object; and the cases.
 */
#ifndef TROVE_CASES_H
#define TROVE_CASES_H

#include "trove-stub/trove_testing.h"

extern struct kind {
    const char *backend;
    struct bmi_trove_settings settings;
    bool has_keys;
} kind;
extern struct bmi_trove_store *store;
extern bmi_trove_context_id_t context;
extern struct bmi_trove_place place; /* the object's */

/* Waits for the end of an operation, by the result and id of its post. */
struct outcome done(int result, const bmi_trove_op_id_t *op);
/* A new object; sets `place` to it. */
bmi_trove_object_id_t object_make(void);
struct outcome write_at(const void *bytes, bmi_size_t size, bmi_size_t offset);
struct outcome read_at(void *bytes, bmi_size_t size, bmi_size_t offset, unsigned flags);
bmi_size_t size_now(void);
bool keeps_bytes(void);
struct outcome put_one(const char *key, const char *value, unsigned flags);

void written_bytes_are_read(void);
void reads_stop_at_the_end_or_give_zeros(void);
void resizing_cuts_and_extends_with_zeros(void);
void lists_of_unlike_counts(void);
void bad_arguments_are_refused(void);
void absent_objects_are_told(void);
void objects_are_made_listed_and_removed(void);
void pairs_are_put_got_and_removed(void);
void a_list_is_put_whole_or_not(void);
void a_key_twice_in_a_list_is_not_only_new(void);
void keys_are_iterated_in_order_from_a_position(void);
void the_table_grows(void);
void completions_come_with_their_pointers(void);
void testsome_takes_the_named_operations(void);
void the_descriptor_is_readable_when_there_is_something(void);
void a_cancelled_operation_ends_at_once(void);
void closing_a_context_cancels(void);
void many_threads_on_one_context(void);
void a_poster_may_end(void);
void io_uring_is_used_where_it_is_there(void);
void faults_strike_the_nth(void);
void faults_may_move_some_bytes_first(void);
void a_removal_waits_for_the_last_holder(void);
void without_holders_a_removal_does_not_wait(void);
void a_removal_that_waits_is_cancelled(void);
void closing_a_store_ends_holds(void);
void readers_and_a_removal(void);
void a_put_returns_the_former_value(void);
void a_put_if_nothing_has_changed(void);
void bad_exchanges_are_refused(void);
void many_threads_put_if_nothing_has_changed(void);

#endif
