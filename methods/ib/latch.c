/* SPDX-License-Identifier: BSD-3-Clause
 *
 * latch.c - libfabric's spin locks, so that they outlive who has them.
 *
 * libfabric 1.17's shm keeps a spin lock in the memory of each endpoint, for its own process and
 * for all that send to it, and has it while it copies a message. Who is killed in that moment
 * leaves it shut, and all others spin in it for ever, in calls that can't fail. So in that
 * version's table of imported functions we put others in the place of pthread_spin_lock, _trylock,
 * and _unlock: who shuts a lock leaves the number of its process in it, and who has waited for long
 * looks whether that one still lives, and takes its place if not. What the dead process was about
 * to put into a queue is not there then, or is one more message of a link that has ended; the room
 * for it may be lost: one of 1024 places, or a buffer of 4 KiB. From 1.18 on no sender takes a
 * lock.
 *
 * An open lock is the same as glibc's, and one that is shut is shut for glibc's functions as well,
 * so a program that uses libfabric beside us sees no difference, nor does a process that shares a
 * lock with us and has glibc's. What glibc's functions have shut tells no process, and is waited
 * for.
 *
 * x86-64 only: elsewhere glibc's words are others.
 */
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "ib.h"

#if defined(__x86_64__) && defined(__LP64__) && defined(__GLIBC__)

/* glibc's word: 1 is open, all below is shut, and each that waits by glibc's functions takes 1 off,
 * once. We shut it with -256 times the number of our process, so that below 256 of those that wait
 * don't hide it; the largest number is 2^22. */
enum { OPEN = 1, WAITING_BITS = 8 };

typedef _Atomic int latch_word;
_Static_assert(sizeof(latch_word) == sizeof(pthread_spinlock_t), "a lock is one word");

static int our_word; /* of a lock that we have shut: getpid() is a system call, forks are rare */
static atomic_uint inherited;
static atomic_uint tries; /* in vain */

static latch_word *word_of(pthread_spinlock_t *lock)
{
    return (latch_word *)(void *)(uintptr_t)lock;
}

/* The process that has shut it; 0: it is open, or glibc's functions did. */
static int32_t owner_of(int word)
{
    return word < 0 ? (int32_t)(-(int64_t)word >> WAITING_BITS) : 0;
}

static bool shut_if(latch_word *word, int found)
{
    return atomic_compare_exchange_strong_explicit(word, &found, our_word, memory_order_acquire,
                                                   memory_order_relaxed);
}

/* Whether it runs no more: it is gone, or its parent has yet to hear of its end. */
static bool has_ended(int32_t process)
{
    char path[64], line[512], state = 0;
    if (kill(process, 0) < 0 && errno == ESRCH)
        return true;
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)process);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, line, sizeof(line) - 1) : -1;
    if (fd >= 0)
        close(fd);
    line[got > 0 ? got : 0] = '\0';
    const char *name_end = strrchr(line, ')');
    return name_end && sscanf(name_end, ") %c", &state) == 1 && strchr("ZXx", state);
}

/* Takes the place of a process that has ended. */
static bool inherit(latch_word *word)
{
    int found = atomic_load_explicit(word, memory_order_relaxed);
    int32_t owner = owner_of(found);
    int error = errno;
    bool ours =
        owner > 0 && owner != owner_of(our_word) && has_ended(owner) && shut_if(word, found);
    errno = error;
    if (ours)
        atomic_fetch_add(&inherited, 1);
    return ours;
}

/* Who has a lock is through within a microsecond, unless another thread runs on its CPU: at first
 * we wait for it, then let others run, and in the end, when it must have died or been stopped,
 * sleep. */
static __attribute__((noinline, cold)) void lock_wait(latch_word *word)
{
    enum { PAUSES = 1000, YIELDS = 1000, LOOK_EACH = 100 };
    static const struct timespec moment = {.tv_nsec = 1000000};
    for (uint64_t i = 1;; i++) {
        if (atomic_load_explicit(word, memory_order_relaxed) == OPEN && shut_if(word, OPEN))
            return;
        if (i < PAUSES) {
            __builtin_ia32_pause();
            continue;
        }
        if (i % LOOK_EACH == 0 && inherit(word))
            return;
        if (i < PAUSES + YIELDS)
            sched_yield();
        else
            nanosleep(&moment, NULL);
    }
}

static int latch_lock(pthread_spinlock_t *lock)
{
    if (!shut_if(word_of(lock), OPEN))
        lock_wait(word_of(lock));
    return 0;
}

static int latch_trylock(pthread_spinlock_t *lock)
{
    enum { LOOK_EACH = 1000 };
    if (shut_if(word_of(lock), OPEN))
        return 0;
    unsigned now = atomic_fetch_add_explicit(&tries, 1, memory_order_relaxed) + 1;
    return now % LOOK_EACH == 0 && inherit(word_of(lock)) ? 0 : EBUSY;
}

static int latch_unlock(pthread_spinlock_t *lock)
{
    atomic_store_explicit(word_of(lock), OPEN, memory_order_release);
    return 0;
}

/* ---- libfabric's table ----------------------------------------------------------------------- */

static struct import {
    const char *name;
    int (*ours)(pthread_spinlock_t *lock);
    void **place; /* NULL: not changed */
    void *before;
} imports[] = {{.name = "pthread_spin_lock", .ours = latch_lock},
               {.name = "pthread_spin_trylock", .ours = latch_trylock},
               {.name = "pthread_spin_unlock", .ours = latch_unlock}};

enum { IMPORTS = sizeof(imports) / sizeof(imports[0]) };

/* What the dynamic linker works with: where a library's names, and places for functions, are. */
struct table {
    const Elf64_Rela *places;
    size_t count;
    const Elf64_Sym *symbols;
    const char *names;
};

static bool table_find(const struct link_map *library, struct table *table)
{
    *table = (struct table){0};
    for (const Elf64_Dyn *at = library->l_ld; at->d_tag != DT_NULL; at++) {
        /* glibc has made addresses of them when it loaded the library */
        const void *address = (const void *)at->d_un.d_ptr;
        switch (at->d_tag) {
        case DT_JMPREL:
            table->places = address;
            break;
        case DT_PLTRELSZ:
            table->count = at->d_un.d_val / sizeof(Elf64_Rela);
            break;
        case DT_SYMTAB:
            table->symbols = address;
            break;
        case DT_STRTAB:
            table->names = address;
            break;
        default:
            break;
        }
    }
    return table->places && table->symbols && table->names &&
           (uintptr_t)table->places > library->l_addr;
}

static void **place_find(const struct link_map *library, const struct table *table,
                         const char *name)
{
    for (size_t i = 0; i < table->count; i++) {
        const Elf64_Rela *place = &table->places[i];
        const char *its = table->names + table->symbols[ELF64_R_SYM(place->r_info)].st_name;
        if (ELF64_R_TYPE(place->r_info) == R_X86_64_JUMP_SLOT && strcmp(its, name) == 0)
            return (void **)(library->l_addr + place->r_offset);
    }
    return NULL;
}

/* Returns 1 if the place is in a part of the library that was made read-only once it was loaded. */
static int sealed_find(struct dl_phdr_info *library, size_t size, void *place)
{
    (void)size;
    for (int i = 0; i < library->dlpi_phnum; i++) {
        const Elf64_Phdr *part = &library->dlpi_phdr[i];
        uintptr_t start = library->dlpi_addr + part->p_vaddr;
        if (part->p_type == PT_GNU_RELRO && (uintptr_t)place - start < part->p_memsz)
            return 1;
    }
    return 0;
}

static bool place_set(void **place, void *function)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *start = (char *)place - (uintptr_t)place % page;
    bool sealed = dl_iterate_phdr(sealed_find, place) == 1;
    if (sealed && mprotect(start, page, PROT_READ | PROT_WRITE) < 0)
        return false;
    __atomic_store_n(place, function, __ATOMIC_RELEASE);
    if (sealed)
        mprotect(start, page, PROT_READ);
    return true;
}

/* libfabric stays where a plugin that has our library in itself is unloaded. */
__attribute__((destructor)) static void latches_remove(void)
{
    for (int i = IMPORTS - 1; i >= 0; i--)
        if (imports[i].place && place_set(imports[i].place, imports[i].before))
            imports[i].place = NULL;
}

static void process_learn(void)
{
    our_word = -getpid() * (1 << WAITING_BITS);
}

bool ib_latches_make(void *libfabric)
{
    struct link_map *library = NULL;
    struct table table;
    void **places[IMPORTS];
    uint32_t version = ib_library.version();
    if (FI_MAJOR(version) != 1 || FI_MINOR(version) != 17 ||
        dlinfo(libfabric, RTLD_DI_LINKMAP, &library) < 0 || !table_find(library, &table))
        return false;
    for (int i = 0; i < IMPORTS; i++)
        if ((places[i] = place_find(library, &table, imports[i].name)) == NULL)
            return false;
    process_learn();
    if (pthread_atfork(NULL, NULL, process_learn) != 0)
        return false;
    /* A lock that glibc's functions have shut is opened by ours, and the other way round. */
    for (int i = 0; i < IMPORTS; i++) {
        imports[i].before = *places[i];
        if (!place_set(places[i], (void *)(uintptr_t)imports[i].ours)) {
            latches_remove();
            return false;
        }
        imports[i].place = places[i];
    }
    return true;
}

unsigned ib_latches_inherited(void)
{
    return atomic_load_explicit(&inherited, memory_order_relaxed);
}

#else

bool ib_latches_make(void *libfabric)
{
    (void)libfabric;
    return false;
}

unsigned ib_latches_inherited(void)
{
    return 0;
}

#endif
