/* SPDX-License-Identifier: BSD-3-Clause
 *
 * library.c - libfabric, loaded when one of its schemes is first used.
 *
 * A program that only uses tcp should not pay for it: linked in, it brings a dozen vendor libraries
 * whose start takes some 0.2 s, and of which some install signal handlers. Everything else that
 * the method uses of it are calls through tables of the objects that these few functions make.
 *
 * Its providers take the program's signals (SIGTERM, SIGINT, SIGSEGV...) for themselves: when they
 * are loaded and when an endpoint is made. A server that ends in good order at SIGTERM would be
 * ended by one of them instead. So each such step stands between ib_signals_save and
 * ib_signals_restore. What those handlers would have tidied up, provider.c removes.
 *
 * Its settings are environment variables, read when it is first called. Three have to be set:
 * - FI_AV_REMOVE_CLEANUP: a connection goes with its address, so that it can be cut before a
 * program has its memory back, and is made again if it broke.
 * - FI_MR_CACHE_MAX_COUNT: its own cache of registrations would keep memory in reach of peers after
 *   we ended the registration, and more of it than we registered. We have one.
 * - FI_OFI_RXM_MSG_RX_SIZE: over tcp, rxm would make and clear 4096 buffers of 16 KiB for messages
 *   that it has no buffer of ours for: 45 ms and 50 MiB of every process, of which it uses a few.
 *   Where many clients start at once, that alone took them longer than the time for connecting.
 * The program's environment is not touched for that; for the moment of the call there is another
 * one. What the program's user set stays as it is. A program that has called libfabric before has
 * had it read them: then nothing is left to us but to ask for the first one.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include "ib.h"

#define IB_LIBRARY "libfabric.so.1"

struct ib_library ib_library;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *handle; /* lock; never closed: its providers have threads and handlers of their own */
static char **environment; /* lock; what it has read its settings from */

static const char *symbols_find(void)
{
    const struct {
        const char *name;
        void **place;
    } symbols[] = {
        {"fi_getinfo", (void **)&ib_library.getinfo},
        {"fi_freeinfo", (void **)&ib_library.freeinfo},
        {"fi_dupinfo", (void **)&ib_library.dupinfo},
        {"fi_fabric", (void **)&ib_library.fabric},
        {"fi_strerror", (void **)&ib_library.strerror},
        {"fi_getparams", (void **)&ib_library.getparams},
        {"fi_freeparams", (void **)&ib_library.freeparams},
        {"fi_param_get", (void **)&ib_library.param_get},
        {"fi_version", (void **)&ib_library.version},
    };
    for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
        *symbols[i].place = dlsym(handle, symbols[i].name);
        if (!*symbols[i].place)
            return symbols[i].name;
    }
    return NULL;
}

/* The program's environment with those of our settings that it lacks; NULL without memory. */
static char **environment_make(void)
{
    static char cleanup[] = "FI_AV_REMOVE_CLEANUP=1", no_cache[] = "FI_MR_CACHE_MAX_COUNT=0",
                few_buffers[] = "FI_OFI_RXM_MSG_RX_SIZE=128";
    size_t count = 0, ours = 0;
    while (environ && environ[count])
        count++;
    char **copy = calloc(count + 4, sizeof(*copy));
    if (!copy)
        return NULL;
    if (!getenv("FI_AV_REMOVE_CLEANUP"))
        copy[ours++] = cleanup;
    if (!getenv("FI_MR_CACHE_MAX_COUNT"))
        copy[ours++] = no_cache;
    if (!getenv("FI_OFI_RXM_MSG_RX_SIZE"))
        copy[ours++] = few_buffers;
    if (count > 0)
        memcpy(copy + ours, environ, count * sizeof(*copy));
    return copy;
}

/* Has the library read its settings. Other threads may look at either environment meanwhile, so the
 * copy stays; what one of them sets in it is kept. */
static void settings_read(void)
{
    static const char cleanup[] = "av_remove_cleanup";
    char **before = environ;
    struct fi_param *parameters = NULL;
    int number = 0, on = 0;

    if (ib_library.param_get(NULL, cleanup, &on) == -FI_ENOENT) { /* it does not know it yet */
        environ = environment;
        if (ib_library.getparams(&parameters, &number) == 0)
            ib_library.freeparams(parameters);
        ib_library.param_get(NULL, cleanup, &on);
        if (environ == environment)
            environ = before;
    }
    ib_library.cuts = on;
}

/* -ENOSYS: it cannot be used, for that reason. */
static int library_open(char *reason, size_t size)
{
    errno = 0;
    handle = dlopen(IB_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    int error = handle ? 0 : errno == ENOMEM ? -ENOMEM : -ENOSYS;
    const char *missing = handle ? symbols_find() : NULL;
    if (!handle || missing)
        snprintf(reason, size, IB_LIBRARY " cannot be used: %s%s", handle ? "it lacks " : "",
                 handle ? missing : dlerror());
    if (!missing)
        return error;
    dlclose(handle);
    handle = NULL;
    return -ENOSYS;
}

int ib_library_load(char *reason, size_t size)
{
    int error = 0;
    pthread_mutex_lock(&lock);
    if (!handle) {
        environment = environment_make(); /* before: it reads its settings once */
        if (!environment)
            snprintf(reason, size, IB_LIBRARY " cannot be used: no memory");
        error = environment ? library_open(reason, size) : -ENOMEM;
        if (error)
            free(environment);
        else
            settings_read();
    }
    pthread_mutex_unlock(&lock);
    return error;
}

void ib_signals_save(struct ib_signals *signals)
{
    for (int i = 1; i < IB_SIGNALS; i++)
        signals->known[i] = sigaction(i, NULL, &signals->actions[i]) == 0;
}

static bool same_action(const struct sigaction *one, const struct sigaction *other)
{
    return one->sa_flags == other->sa_flags &&
           (one->sa_flags & SA_SIGINFO ? one->sa_sigaction == other->sa_sigaction
                                       : one->sa_handler == other->sa_handler);
}

void ib_signals_restore(const struct ib_signals *signals)
{
    struct sigaction now;
    for (int i = 1; i < IB_SIGNALS; i++)
        if (signals->known[i] && sigaction(i, NULL, &now) == 0 &&
            !same_action(&now, &signals->actions[i]))
            sigaction(i, &signals->actions[i], NULL);
}
