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
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

#include "ib.h"

#define IB_LIBRARY "libfabric.so.1"

struct ib_library ib_library;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *handle; /* lock; never closed: its providers have threads and handlers of their own */

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
    };
    for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
        *symbols[i].place = dlsym(handle, symbols[i].name);
        if (!*symbols[i].place)
            return symbols[i].name;
    }
    return NULL;
}

int ib_library_load(char *reason, size_t size)
{
    int error = 0;
    pthread_mutex_lock(&lock);
    if (!handle) {
        handle = dlopen(IB_LIBRARY, RTLD_NOW | RTLD_LOCAL);
        const char *missing = handle ? symbols_find() : NULL;
        if (!handle || missing) {
            snprintf(reason, size, IB_LIBRARY " cannot be used: %s%s", handle ? "it lacks " : "",
                     handle ? missing : dlerror());
            if (handle)
                dlclose(handle);
            handle = NULL;
            error = -ENOSYS;
        }
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
