/* SPDX-License-Identifier: BSD-3-Clause
 *
 * signals.c - signals end the program, but first it removes incomplete files: the temporary files
 * of a get, and on the servers the bytes of a put that have no name yet. A second signal, or 5 s in
 * which the servers do not answer, end it at once: the servers then remove those bytes themselves.
 */
#include <errno.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "client.h"
#include "local.h"

enum { UNDO_S = 5 };

static sigset_t signals; /* blocked in all threads; this one waits for them */
static pthread_t thread;
static struct client *ending;

static void *signals_await(void *argument)
{
    struct timespec limit = {.tv_sec = UNDO_S};
    int number = SIGTERM;
    (void)argument;
    sigwait(&signals, &number);
    atomic_store(&ending->ended, number);
    if (ending->end_fd >= 0)
        eventfd_write(ending->end_fd, 1);
    if (atomic_load(&ending->running)) {
        bmi_job_event_complete(ending->jobs, ending->end_event, 0, 0);
        while (sigtimedwait(&signals, NULL, &limit) < 0 && errno == EINTR)
            ;
    }
    temporaries_remove();
    signal(number, SIG_DFL);
    pthread_sigmask(SIG_UNBLOCK, &signals, NULL);
    raise(number);
    return NULL;
}

/* Ignored signals stay ignored, for instance after nohup(1). */
void signals_take(struct client *client)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
    struct sigaction action;
    ending = client;
    client->end_fd = eventfd(0, EFD_CLOEXEC);
    sigemptyset(&signals);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (sigaction(numbers[i], NULL, &action) == 0 && action.sa_handler != SIG_IGN)
            sigaddset(&signals, numbers[i]);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    if (pthread_create(&thread, NULL, signals_await, NULL) == 0)
        pthread_detach(thread);
    else
        pthread_sigmask(SIG_UNBLOCK, &signals, NULL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* writes fail with EFBIG instead */
}

int signals_open(struct client *client)
{
    return bmi_job_event(client->jobs, NULL, &client->end_event, NULL);
}

void signals_end(const struct client *client)
{
    pthread_kill(thread, client->ended);
    for (;;)
        pause();
}
