/* SPDX-License-Identifier: BSD-3-Clause
 *
 * bmi/lock.h - a mutex of four bytes; atomic operations that cost less in a process of one thread.
 *
 * Each of thousands of peers has two or three locks, and each small message takes several of them.
 * A pthread_mutex_t takes 40 bytes and a call through the linkage table: that costs a tenth of an
 * idle peer's memory and of a message's time. The algorithm is the third of Drepper, "Futexes Are
 * Tricky" (2011): 0 free, 1 taken, 2 taken and a thread waits. Not recursive; zero is free.
 *
 * A process of one thread, for example a server of state machines, needs no locked instructions:
 * the C library reports whether the process has one thread (glibc 2.32, "Single-Threaded"). The
 * first thread creates the second one, which therefore sees all earlier writes.
 */
#ifndef BMI_LOCK_H
#define BMI_LOCK_H

#ifdef __cplusplus
#error "bmi/lock.h is for methods, which are written in C; programs want bmi.h"
#endif

#include <linux/futex.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>
#if __has_include(<sys/single_threaded.h>)
#include <sys/single_threaded.h>
#endif

#ifndef __USE_MISC /* strict ISO C: <unistd.h> does not declare it */
long syscall(long number, ...);
#endif

/* ThreadSanitizer does not know fences. */
#if defined(__SANITIZE_THREAD__)
#define BMI_NO_FENCES
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define BMI_NO_FENCES
#endif
#endif

struct bmi_lock {
    _Atomic uint32_t state;
};

/* Returns: whether the process has no other thread; false where the C library does not report it.
 * Owns: nothing. Threads: any. Blocks: no. */
static inline bool bmi_one_thread(void)
{
#if __has_include(<sys/single_threaded.h>)
    return __libc_single_threaded != 0;
#else
    return false;
#endif
}

/* A full fence: of two threads that each store, call this, and then load the word that the other
 * stored, at least one sees the other's store. ThreadSanitizer gets a read-modify-write, which
 * is one on the machines that it supports. Returns: nothing. Owns: nothing. Threads: any. Blocks:
 * no. */
static inline void bmi_fence(void)
{
#ifdef BMI_NO_FENCES
    static atomic_int any;
    atomic_fetch_add_explicit(&any, 0, memory_order_relaxed);
#else
    atomic_thread_fence(memory_order_seq_cst);
#endif
}

/* Adds to an atomic counter; a fetch_add of relaxed order. Returns: nothing. Owns: nothing.
 * Threads: any. Blocks: no. */
#define bmi_add(counter, amount)                                                                   \
    (bmi_one_thread()                                                                              \
         ? atomic_store_explicit((counter),                                                        \
                                 atomic_load_explicit((counter), memory_order_relaxed) + (amount), \
                                 memory_order_relaxed)                                             \
         : (void)atomic_fetch_add_explicit((counter), (amount), memory_order_relaxed))

/* Replaces the value of an atomic object if it is *expected, which otherwise gets that value; a
 * compare_exchange_strong of sequential consistency. Returns: whether it was replaced. Owns:
 * nothing. Threads: any. Blocks: no. */
#define bmi_replace(object, expected, desired)                                           \
    (!bmi_one_thread() ? atomic_compare_exchange_strong((object), (expected), (desired)) \
     : atomic_load_explicit((object), memory_order_relaxed) == *(expected)               \
         ? (atomic_store_explicit((object), (desired), memory_order_relaxed), true)      \
         : (*(expected) = atomic_load_explicit((object), memory_order_relaxed), false))

/* Drops a reference. Returns: whether it was the last one. Owns: the object is the caller's to
 * destroy, if so. Threads: any that has a reference. Blocks: no. */
static inline bool bmi_reference_drop(atomic_uint *references)
{
    unsigned before = atomic_load_explicit(references, memory_order_relaxed);
    if (bmi_one_thread())
        atomic_store_explicit(references, before - 1, memory_order_relaxed);
    else
        before = atomic_fetch_sub_explicit(references, 1, memory_order_acq_rel);
    return before == 1;
}

/* Takes a lock that another thread holds. Returns: nothing, with the lock. Owns: as bmi_lock_take.
 * Threads: any. Blocks: until the holder releases it; spins a moment, then sleeps on a futex. */
static inline void bmi_lock_wait(struct bmi_lock *lock)
{
    enum { TRIES = 100 }; /* sections are short: the holder probably releases the lock at once */
    for (int i = 0; i < TRIES; i++) {
        uint32_t unlocked = 0;
        if (atomic_load_explicit(&lock->state, memory_order_relaxed) == 0 &&
            atomic_compare_exchange_strong_explicit(&lock->state, &unlocked, 1,
                                                    memory_order_acquire, memory_order_relaxed))
            return;
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#endif
    }
    while (atomic_exchange_explicit(&lock->state, 2, memory_order_acquire) != 0)
        syscall(SYS_futex, &lock->state, FUTEX_WAIT_PRIVATE, 2, NULL, NULL, 0);
}

/* Takes the lock. Returns: nothing, with the lock. Owns: the data that it guards, until
 * bmi_lock_give. Threads: any that does not hold it. Blocks: while another holds it. */
static inline void bmi_lock_take(struct bmi_lock *lock)
{
    uint32_t unlocked = 0;
    if (bmi_one_thread())
        atomic_store_explicit(&lock->state, 1, memory_order_relaxed);
    else if (!atomic_compare_exchange_strong_explicit(&lock->state, &unlocked, 1,
                                                      memory_order_acquire, memory_order_relaxed))
        bmi_lock_wait(lock);
}

/* Releases the lock and wakes one waiting thread. Returns: nothing. Owns: the guarded data is no
 * longer the caller's. Threads: the holder. Blocks: no. */
static inline void bmi_lock_give(struct bmi_lock *lock)
{
    if (bmi_one_thread())
        atomic_store_explicit(&lock->state, 0, memory_order_relaxed);
    else if (atomic_exchange_explicit(&lock->state, 0, memory_order_release) == 2)
        syscall(SYS_futex, &lock->state, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/* For assertions. Returns: whether any thread holds it, at that moment. Owns: nothing. Threads:
 * any. Blocks: no. */
static inline bool bmi_lock_held(struct bmi_lock *lock)
{
    return atomic_load_explicit(&lock->state, memory_order_relaxed) != 0;
}

#endif
