/* SPDX-License-Identifier: BSD-3-Clause
 *
 * provider.c - chooses one of libfabric's providers, by scheme, and reports the reason.
 *
 * All providers must have: reliable datagram endpoints, messages into multi-receive buffers, remote
 * memory access, messages of one sender in order. We offer all memory registration modes that this
 * method supports, and the provider keeps those that it needs.
 */
#include <dirent.h>
#include <fcntl.h>
#include <openssl/rand.h>
#include <signal.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ib.h"

enum { FABRIC_API = FI_VERSION(1, 14) };

bool ib_provider_tells_source(const char *provider)
{
    return strcmp(provider, "tcp;ofi_rxm") == 0;
}

static struct fi_info *hints_make(const char *provider)
{
    struct fi_info *hints = ib_library.dupinfo(NULL);
    if (!hints)
        return NULL;
    bool shm = strcmp(provider, "shm") == 0;
    hints->caps = FI_MSG | FI_RMA | FI_MULTI_RECV;
    if (shm)
        hints->caps |= FI_TAGGED; /* see ib_reserve_post_locked */
    if (ib_provider_tells_source(provider))
        hints->caps |= FI_SOURCE;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = FI_EP_RDM;
    /* Every call is made under fabric_lock, so shm, which has no threads of its own, needs no locks
     * within the process. (It still takes those in the memory that processes share.) */
    hints->domain_attr->threading = shm ? FI_THREAD_DOMAIN : FI_THREAD_SAFE;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->tx_attr->msg_order = FI_ORDER_SAS;
    hints->rx_attr->msg_order = FI_ORDER_SAS;
    hints->fabric_attr->prov_name = strdup(provider);
    if (!hints->fabric_attr->prov_name) {
        ib_library.freeinfo(hints);
        return NULL;
    }
    return hints;
}

static int info_get(const char *provider, const char *host, struct fi_info **info)
{
    struct fi_info *hints = hints_make(provider);
    if (!hints)
        return -ENOMEM;
    int status =
        ib_library.getinfo(FABRIC_API, host, host ? "0" : NULL, host ? FI_SOURCE : 0, hints, info);
    ib_library.freeinfo(hints);
    return status ? ib_error(status) : 0;
}

/* The file stays locked while the process, or a forked child of it, has the descriptor. */
int ib_provider_name_hold(const char *name)
{
    const char *file = strstr(name, "bmi-");
    int fd = file ? shm_open(file, O_RDONLY | O_CLOEXEC, 0) : -1;
    if (fd >= 0)
        flock(fd, LOCK_SH | LOCK_NB);
    return fd;
}

/* Whether neither the process that made the file nor a forked child of it uses it. */
static bool is_nobodys(const char *file)
{
    int fd = shm_open(file, O_RDONLY | O_CLOEXEC, 0);
    bool free = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0;
    if (fd >= 0)
        close(fd);
    return free;
}

/* Removes the shared memory that killed processes of this user have left. A name has the number of
 * the process and that of its pid namespace. Returns 0 or -ENOMEM. */
static int leftovers_remove(unsigned long long table)
{
    DIR *folder = opendir("/dev/shm");
    struct dirent *entry;
    if (!folder && errno == ENOMEM)
        return -ENOMEM;
    while (folder && (entry = readdir(folder)) != NULL) {
        unsigned long long theirs;
        int pid;
        if (sscanf(entry->d_name, "bmi-%llx-%d-", &theirs, &pid) == 2 && theirs == table &&
            pid > 0 && kill(pid, 0) < 0 && errno == ESRCH && is_nobodys(entry->d_name))
            shm_unlink(entry->d_name);
    }
    if (folder)
        closedir(folder);
    return 0;
}

/* Providers whose names are text make them of the address, or of the process's number. A killed
 * process leaves shared memory of its name behind, and the next process of that number could not
 * make its own. So our names have a random part. */
int ib_provider_name_choose(struct fi_info *info)
{
    struct stat table = {0};
    uint64_t number;
    char name[96];
    if (info->addr_format != FI_ADDR_STR)
        return 0;
    if (RAND_bytes((uint8_t *)&number, sizeof(number)) != 1)
        return -EIO;
    stat("/proc/self/ns/pid", &table);
    if (leftovers_remove(table.st_ino) < 0)
        return -ENOMEM;
    snprintf(name, sizeof(name), "fi_shm://bmi-%llx-%d-%016llx", (unsigned long long)table.st_ino,
             (int)getpid(), (unsigned long long)number);
    free(info->src_addr);
    info->src_addr = strdup(name);
    info->src_addrlen = strlen(name) + 1;
    return info->src_addr ? 0 : -ENOMEM;
}

bool ib_provider_connects(const char *provider)
{
    return strncmp(provider, "tcp", 3) == 0 || strncmp(provider, "verbs", 5) == 0;
}

int ib_provider_info(const struct ib_state *state, const char *host, struct fi_info **info)
{
    int status = host ? info_get(state->provider, host, info) : -ENODATA;
    if (status && status != -ENOMEM)
        status = info_get(state->provider, NULL, info);
    return status;
}

/* Takes the first provider that has a device; reports what the providers before it lack. Without
 * memory it takes none, since the next one might not be the one that our peers use. */
static int providers_try(const struct ib_kind *kind, struct bmi_method_choice *choice)
{
    char lacking[384] = "none better is known";
    size_t used = 0;
    for (const char *const *name = kind->providers; *name; name++) {
        struct fi_info *info = NULL;
        int answer = info_get(*name, NULL, &info);
        if (answer == 0) {
            snprintf(choice->provider, sizeof(choice->provider), "%s", *name);
            snprintf(choice->device, sizeof(choice->device), "%s", info->domain_attr->name);
            snprintf(choice->reason, sizeof(choice->reason), "the best present (%s)", lacking);
            ib_library.freeinfo(info);
            return 0;
        }
        if (answer == -ENOMEM) {
            snprintf(choice->reason, sizeof(choice->reason), "no memory to look for %s", *name);
            return -ENOMEM;
        }
        if (used < sizeof(lacking))
            used += (size_t)snprintf(lacking + used, sizeof(lacking) - used, "%s%s: %s",
                                     used > 0 ? "; " : "", *name, ib_library.strerror(-answer));
    }
    snprintf(choice->reason, sizeof(choice->reason), "no provider has a device here (%s). %s",
             lacking, kind->advice);
    return -ENODEV;
}

int ib_provider_choose(const struct ib_kind *kind, struct bmi_method_choice *choice)
{
    struct sigaction signals[IB_SIGNALS];
    ib_signals_save(signals);
    int status = ib_library_load(choice->reason, sizeof(choice->reason));
    if (status == 0)
        status = providers_try(kind, choice);
    ib_signals_restore(signals);
    return status;
}
