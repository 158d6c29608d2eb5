/* SPDX-License-Identifier: BSD-3-Clause
 *
 * doorbell.c - a wake-up flag for providers whose completion queue has no descriptor (shm).
 *
 * Each process shares a page with its peers. The page counts how often the poller went to sleep
 * and woke up: the count is odd while it sleeps. A sender posts its message, then reads the count.
 * If the count is odd, and the sender has not rung for that sleep, it writes one byte to the
 * exchange. The poller makes the count odd, then looks at its completion queue once more, then
 * sleeps. A fence stands between both steps on both sides, so either the poller finds the message
 * or the sender finds the odd count. Each link rings for its own messages: a link that closes takes
 * no other link's wake-up with it.
 *
 * The page is a sealed anonymous file. The peer opens it through /proc, which the kernel allows to
 * processes of the same user only, and maps it read-only. A random number in the page, which the
 * peer gets in the handshake, shows that it is the right page. A killed process leaves no file.
 */
#include <fcntl.h>
#include <openssl/rand.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ib.h"

enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL, CACHE_LINE = 64 };

struct doorbell_page {
    uint64_t number;
    _Alignas(CACHE_LINE) atomic_uint sleeps; /* odd: the poller sleeps, or is about to */
};

struct ib_doorbell {
    struct doorbell_page *page;
    int fd; /* -1: the peer's */
    int32_t process;
};

static int page_map(int fd, int protection, struct ib_doorbell **out)
{
    struct ib_doorbell *doorbell = calloc(1, sizeof(*doorbell));
    if (!doorbell)
        return -ENOMEM;
    doorbell->fd = -1;
    doorbell->page = mmap(NULL, sizeof(*doorbell->page), protection, MAP_SHARED, fd, 0);
    if (doorbell->page == MAP_FAILED) {
        int status = -errno;
        free(doorbell);
        return status;
    }
    *out = doorbell;
    return 0;
}

int ib_doorbell_make(struct ib_doorbell **out)
{
    int fd = memfd_create("bmi-doorbell", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return -errno;
    struct ib_doorbell *doorbell = NULL;
    int status;
    if (ftruncate(fd, sizeof(struct doorbell_page)) != 0 || fcntl(fd, F_ADD_SEALS, SEALS) != 0)
        status = -errno;
    else
        status = page_map(fd, PROT_READ | PROT_WRITE, &doorbell);
    if (status == 0 && RAND_bytes((uint8_t *)&doorbell->page->number, sizeof(uint64_t)) != 1)
        status = -EIO;
    if (status) {
        ib_doorbell_free(doorbell);
        close(fd);
        return status;
    }
    doorbell->page->number |= 1; /* 0 in a handshake means that there is no page */
    doorbell->fd = fd;
    *out = doorbell;
    return 0;
}

struct ib_doorbell_record ib_doorbell_record(const struct ib_doorbell *doorbell)
{
    return (struct ib_doorbell_record){.number = doorbell->page->number,
                                       .process = getpid(),
                                       .fd = doorbell->fd};
}

int ib_doorbell_open(const struct ib_doorbell_record *record, struct ib_doorbell **out)
{
    char path[64];
    struct stat file;

    *out = NULL;
    if (record->number == 0)
        return 0;
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)record->process, (int)record->fd);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return -errno;
    int seals = fcntl(fd, F_GET_SEALS);
    struct ib_doorbell *doorbell = NULL;
    int status = -EPROTO;
    if (seals >= 0 && (seals & SEALS) == SEALS && fstat(fd, &file) == 0 &&
        file.st_size == (off_t)sizeof(struct doorbell_page))
        status = page_map(fd, PROT_READ, &doorbell);
    close(fd);
    if (status == 0 && doorbell->page->number != record->number) {
        ib_doorbell_free(doorbell);
        doorbell = NULL;
        status = -EPROTO;
    }
    if (doorbell)
        doorbell->process = record->process;
    *out = doorbell;
    return status;
}

int ib_doorbell_process(const struct ib_doorbell *doorbell)
{
    return doorbell->process;
}

void ib_doorbell_free(struct ib_doorbell *doorbell)
{
    if (!doorbell)
        return;
    munmap(doorbell->page, sizeof(*doorbell->page));
    if (doorbell->fd >= 0)
        close(doorbell->fd);
    free(doorbell);
}

void ib_doorbell_sleep(struct ib_doorbell *doorbell, bool asleep)
{
    unsigned count = atomic_load_explicit(&doorbell->page->sleeps, memory_order_relaxed);
    if ((count & 1) == asleep)
        return;
    atomic_store(&doorbell->page->sleeps, count + 1);
    bmi_fence();
}

bool ib_doorbell_wanted(const struct ib_doorbell *doorbell, uint32_t *rung)
{
    bmi_fence();
    unsigned count = atomic_load_explicit(&doorbell->page->sleeps, memory_order_relaxed);
    bool wanted = (count & 1) && count != *rung;
    if (wanted)
        *rung = count;
    return wanted;
}
