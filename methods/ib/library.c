/* SPDX-License-Identifier: BSD-3-Clause
 *
 * library.c - libfabric, loaded when one of its schemes is first used.
 *
 * A program that only uses tcp must not pay for libfabric: linked in, it brings a dozen vendor
 * libraries whose start takes some 0.2 s, and some of them install signal handlers. The method
 * calls all other functions of libfabric through the tables of objects that these few functions
 * make.
 *
 * Its providers install handlers for the program's signals (SIGTERM, SIGINT, SIGSEGV...) when they
 * are loaded and when an endpoint is made. Such a handler would end a server that handles SIGTERM
 * itself. So each such step stands between ib_signals_save and ib_signals_restore. provider.c
 * removes the shared memory that those handlers would have removed.
 *
 * Its settings are environment variables, read when it is first called. Three have to be set:
 * - FI_AV_REMOVE_CLEANUP: removing an address closes its connection. So the connection can be cut
 *   before a program has its memory back, and is made again if it broke.
 * - FI_MR_CACHE_MAX_COUNT: libfabric's own cache of registrations would keep memory accessible to
 *   peers after we ended the registration, and more of it than we registered. We have a cache.
 * - FI_OFI_RXM_MSG_RX_SIZE: over tcp, rxm would make and clear 4096 buffers of 16 KiB for messages
 *   that find none of our buffers: 45 ms and 50 MiB in every process, which uses a few of them.
 *   When many clients start at once, that alone took longer than the time-out for connecting.
 * The program's environment is not changed for that: another one is in place during the call. The
 * user's own values are kept. If the program has called libfabric before, it has read its settings:
 * then we can only check the first one.
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
static char **environment; /* lock; the environment that libfabric has read its settings from */

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

/* A copy of the program's environment, with our settings behind the program's; NULL: no memory. */
static char **environment_make(void)
{
    static char *const settings[] = {"FI_AV_REMOVE_CLEANUP=1", "FI_MR_CACHE_MAX_COUNT=0",
                                     "FI_OFI_RXM_MSG_RX_SIZE=128"};
    enum { SETTINGS = sizeof(settings) / sizeof(settings[0]) };
    size_t count = 0;
    while (environ && environ[count])
        count++;
    char **copy = calloc(count + SETTINGS + 1, sizeof(*copy));
    if (!copy)
        return NULL;
    if (count > 0)
        memcpy(copy, environ, count * sizeof(*copy));
    for (int i = 0; i < SETTINGS; i++) /* of two equal names the first counts */
        copy[count + (size_t)i] = settings[i];
    return copy;
}

/* Makes libfabric read its settings. Other threads may read either environment meanwhile, so the
 * copy is not freed; a variable that another thread sets in it is kept. */
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

/* -ENOSYS: libfabric cannot be used; `reason` has the cause. */
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

/* Both fail for the signals that no program can handle. */
void ib_signals_save(struct sigaction actions[IB_SIGNALS])
{
    for (int i = 1; i < IB_SIGNALS; i++)
        sigaction(i, NULL, &actions[i]);
}

void ib_signals_restore(const struct sigaction actions[IB_SIGNALS])
{
    for (int i = 1; i < IB_SIGNALS; i++)
        sigaction(i, &actions[i], NULL);
}
