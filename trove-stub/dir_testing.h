/* SPDX-License-Identifier: BSD-3-Clause
 *
 * dir_testing.h - shared by the tests of the dir backend: a store in its own folder, an object in
 * it, and children that are started anew.
 */
#ifndef DIR_TESTING_H
#define DIR_TESTING_H

#include "trove-stub/trove_testing.h"

extern struct folder folder;
extern char where[300], told[512]; /* the store's URL; the cause if it was not opened */
extern struct bmi_trove_store *store;
extern bmi_trove_context_id_t context;
extern struct bmi_trove_place place; /* object 1 in collection 1, which work_open creates */
extern bool by_tasks;                /* without io_uring, and with one file kept open */

void set_up(void);
void tear_down(void);
int store_open(bool create);

/* Opens the store and a context; `create`: also creates the object. Also in a child. */
void work_open(bool create);
void work_close(void);

/* Waits for the end of an operation, by the result and id of its post. */
struct outcome done(int result, const bmi_trove_op_id_t *op);
/* The same, also in a child, outside of any test. */
bmi_error_code_t ended(int result, bmi_trove_op_id_t op);
/* Ends the process if the expectation fails. */
void need(bool holds);

extern uint32_t own_first; /* a child's: the argument of child_start */
extern int own_pipe;

/* Starts this program anew, in the role `role`; it reports through `fd`. */
pid_t child_start(const char *role, uint32_t number, int fd);

struct dir_role {
    const char *name;
    void (*body)(void);
};
/* main of these tests: runs the cases, or, in a child, its role. A role without a name ends the
 * list. */
int dir_main(int argc, char **argv, const char *name, CU_TestInfo *cases,
             const struct dir_role *roles);

#endif
