/* SPDX-License-Identifier: BSD-3-Clause
 *
 * fork_fault.c - children of a server that end by exit, with BMI_finalize as their exit handler.
 *
 * The server's connections, and its listening socket, are not affected. After that finalize a child
 * cannot use the library.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "serve.h"

enum { CHILDREN = 5, EXCHANGES = 20, GOOD = 3, BAD };

static char listening[BMI_MAX_ADDR_LEN];

static void finalize(void)
{
    BMI_addr_t addr;
    bmi_context_id context;
    bmi_op_id_t id;
    bmi_error_code_t error;
    int count;
    if (BMI_initialize(NULL, NULL, 0) != -BMI_EBUSY || BMI_finalize() != 0 ||
        BMI_finalize() != -BMI_EINVAL || BMI_addr_lookup(&addr, listening) != -BMI_EINVAL ||
        BMI_open_context(&context) != -BMI_EINVAL ||
        BMI_testcontext(1, &id, &count, &error, NULL, NULL, 0, test_context) != -BMI_EINVAL ||
        BMI_initialize(NULL, NULL, 0) != -BMI_EBUSY)
        _exit(BAD);
}

/* If it hangs, it ends with its parent, or by itself: support's table of children does not
 * have it. */
_Noreturn static void child_run(pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(BAD);
    test_deadline();
    atexit(finalize);
    exit(GOOD);
}

/* A child that its parent forks in the midst of its service. */
static void fork_and_serve(void)
{
    int status = 0;
    pid_t ended = 0, parent = getpid(), child = fork();
    CHECK(child >= 0, "fork");
    if (child == 0)
        child_run(parent);
    while (ended == 0) {
        operations_step(1);
        ended = waitpid(child, &status, WNOHANG);
    }
    CHECK(ended == child && WIFEXITED(status) && WEXITSTATUS(status) == GOOD,
          "the child ended with status %#x", (unsigned)status);
}

static void exchanges_go_on(struct echo_report *report)
{
    unsigned long wanted = atomic_load(&report->exchanges) + EXCHANGES;
    while (atomic_load(&report->exchanges) < wanted)
        operations_step(10);
}

static void client_begins(struct child *client, struct echo_report *report)
{
    strcpy(report->listening, listening);
    tell_number(client->channel, 0);
    exchanges_go_on(report);
}

int main(void)
{
    test_begin("fork_fault", 60);
    struct echo_report *early = shared_memory(sizeof *early), *late = shared_memory(sizeof *late);
    struct child clients[2] = {echo_client_start(early), echo_client_start(late)};
    serve_here(0, listening);
    operations_open();
    client_begins(&clients[0], early);
    for (int i = 0; i < CHILDREN; i++) {
        fork_and_serve();
        exchanges_go_on(early);
    }
    client_begins(&clients[1], late); /* the address is still listened at */
    exchanges_go_on(early);
    CHECK(echo_sessions() == 2, "%u sessions of two clients", echo_sessions());
    atomic_store(&early->stop, true);
    atomic_store(&late->stop, true);
    while (echo_sessions() > 0)
        operations_step(10);
    child_end(&clients[0]);
    child_end(&clients[1]);
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    return test_passed();
}
