/* SPDX-License-Identifier: BSD-3-Clause
 *
 * dir_testing.h - what the tests of the dir backend share: a store in a folder of its own, an
 * object in it to work with, and children that are started anew.
 */
#ifndef DIR_TESTING_H
#define DIR_TESTING_H

#include "trove-stub/trove_testing.h"

extern struct folder folder;
extern char where[300], told[512]; /* the store's URL; why it was not opened */
extern struct bmi_trove_store *store;
extern bmi_trove_context_id_t context;
extern struct bmi_trove_place place; /* of object 1 in collection 1, which work_open makes */
extern bool by_tasks;                /* without io_uring, and with one file kept open */

void set_up(void);
void tear_down(void);
int store_open(bool create);

/* Opens the store and a context; `create`: makes the object, too. Also in a child. */
void work_open(bool create);
void work_close(void);

/* Waits for what a post returned and gave. */
struct outcome done(int result, const bmi_trove_op_id_t *op);
/* The same, also in a child, outside of any test. */
bmi_error_code_t ended(int result, bmi_trove_op_id_t op);
/* Ends the process if that does not hold. */
void need(bool holds);

extern uint32_t own_first; /* a child's: what child_start gave it */
extern int own_pipe;

/* This program, started anew: does what `role` says, and tells through `fd`. */
pid_t child_start(const char *role, uint32_t number, int fd);

struct dir_role {
    const char *name;
    void (*body)(void);
};
/* main of these tests: the cases, or, in a child, its role. One without a name ends the roles. */
int dir_main(int argc, char **argv, const char *name, CU_TestInfo *cases,
             const struct dir_role *roles);

#endif
