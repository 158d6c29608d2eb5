/* SPDX-License-Identifier: BSD-3-Clause
 *
 * bell.c - telling a process that something has come, where its provider has no descriptor (shm).
 *
 * Each process has a page of memory that says whether its driver looks at its completion queue, or
 * watches this page instead, or is about to sleep. Whoever sends something to it takes that word
 * back afterwards, and if it sleeps, rings: one byte over the rendezvous, which the sleeper's wait
 * sees. Who watches sees that the word is gone. Both write the word, then look at their completion
 * queue again, then sleep or watch: so either they see what was sent, or the sender sees the word
 * (both sequentially consistent).
 *
 * Who watches learns of a message when it is there. So that it comes to look meanwhile, who is
 * about to send says so before, in a word that is a hint and no more.
 *
 * The page is an anonymous file, sealed so that its size can't change, and opened by the other side
 * through /proc: nothing is left behind when a process is killed. The number in it is compared with
 * the one told in the greeting, so that a page of another process is never taken for it.
 */
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ib.h"

enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL, CACHE_LINE = 64 };

/* Each word in a line of its own: two are written by the other side with each message, all read by
 * us at each look. */
struct bell_page {
    uint64_t number;
    _Alignas(CACHE_LINE) atomic_uint rest;    /* enum ib_rest */
    _Alignas(CACHE_LINE) atomic_uint coming;  /* bytes that somebody is about to send */
    _Alignas(CACHE_LINE) atomic_uint wanting; /* somebody's message found our queue full */
};

struct ib_bell {
    struct bell_page *page;
    int fd; /* -1: the other side's */
    int32_t process;
    int spare; /* a descriptor for what is opened to greet another process; -1: none */
};

/* Returns 0 or an errno. */
static int bell_map(int fd, struct ib_bell **out)
{
    struct ib_bell *bell = calloc(1, sizeof(*bell));
    if (!bell)
        return -ENOMEM;
    bell->fd = bell->spare = -1;
    bell->page = mmap(NULL, sizeof(*bell->page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (bell->page == MAP_FAILED) {
        int status = -errno;
        free(bell);
        return status;
    }
    *out = bell;
    return 0;
}

int ib_bell_make(struct ib_bell **out)
{
    int fd = memfd_create("bmi-bell", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return -errno;
    struct ib_bell *bell = NULL;
    int status;
    if (ftruncate(fd, sizeof(struct bell_page)) != 0 || fcntl(fd, F_ADD_SEALS, SEALS) != 0)
        status = -errno;
    else
        status = bell_map(fd, &bell);
    if (status == 0 && getrandom(&bell->page->number, sizeof(uint64_t), 0) != sizeof(uint64_t))
        status = -EIO;
    if (status) {
        ib_bell_free(bell);
        close(fd);
        return status;
    }
    bell->page->number |= 1; /* not 0, which is no bell */
    bell->fd = fd;
    ib_bell_spare_take(bell);
    *out = bell;
    return 0;
}

/* Number (8 bytes), process (4), descriptor (4). */
void ib_bell_record(const struct ib_bell *bell, uint8_t record[16])
{
    int32_t pid = getpid(), fd = bell->fd;
    memcpy(record, &bell->page->number, 8);
    memcpy(record + 8, &pid, 4);
    memcpy(record + 12, &fd, 4);
}

int ib_bell_open(const uint8_t record[16], struct ib_bell **out)
{
    uint64_t number;
    int32_t pid, theirs;
    char path[64];
    struct stat file;

    *out = NULL;
    memcpy(&number, record, 8);
    memcpy(&pid, record + 8, 4);
    memcpy(&theirs, record + 12, 4);
    if (number == 0)
        return 0;
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)pid, (int)theirs);
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return -errno;
    int seals = fcntl(fd, F_GET_SEALS);
    struct ib_bell *bell = NULL;
    int status = -EPROTO;
    if (seals >= 0 && (seals & SEALS) == SEALS && fstat(fd, &file) == 0 &&
        file.st_size == (off_t)sizeof(struct bell_page))
        status = bell_map(fd, &bell);
    close(fd);
    if (status == 0 && bell->page->number != number) {
        ib_bell_free(bell);
        bell = NULL;
        status = -EPROTO;
    }
    if (bell)
        bell->process = pid;
    *out = bell;
    return status;
}

int ib_bell_process(const struct ib_bell *bell)
{
    return bell->process;
}

void ib_bell_free(struct ib_bell *bell)
{
    if (!bell)
        return;
    munmap(bell->page, sizeof(*bell->page));
    if (bell->fd >= 0)
        close(bell->fd);
    ib_bell_spare_lend(bell);
    free(bell);
}

void ib_bell_spare_take(struct ib_bell *bell)
{
    if (bell && bell->spare < 0)
        bell->spare = fcntl(bell->fd, F_DUPFD_CLOEXEC, 0);
}

void ib_bell_spare_lend(struct ib_bell *bell)
{
    if (!bell || bell->spare < 0)
        return;
    close(bell->spare);
    bell->spare = -1;
}

void ib_bell_rest(struct ib_bell *bell, enum ib_rest rest)
{
    atomic_exchange(&bell->page->rest, rest);
}

bool ib_bell_untouched(const struct ib_bell *bell)
{
    return atomic_load_explicit(&bell->page->rest, memory_order_acquire) == IB_WATCHES;
}

uint32_t ib_bell_coming(struct ib_bell *bell)
{
    uint32_t bytes = atomic_load_explicit(&bell->page->coming, memory_order_relaxed);
    if (bytes > 0)
        atomic_store_explicit(&bell->page->coming, 0, memory_order_relaxed);
    return bytes;
}

void ib_bell_announce(struct ib_bell *bell, uint32_t bytes)
{
    atomic_store_explicit(&bell->page->coming, bytes, memory_order_relaxed);
}

void ib_bell_want(struct ib_bell *bell)
{
    atomic_store(&bell->page->wanting, 1);
}

bool ib_bell_wanted(struct ib_bell *bell)
{
    return atomic_load_explicit(&bell->page->wanting, memory_order_relaxed) &&
           atomic_exchange(&bell->page->wanting, 0);
}

bool ib_bell_take(struct ib_bell *bell)
{
    /* Read-modify-write, whatever it is: it is the fence after what was sent. */
    return atomic_fetch_and(&bell->page->rest, IB_LOOKS) == IB_SLEEPS;
}
