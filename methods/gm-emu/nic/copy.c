/* SPDX-License-Identifier: BSD-3-Clause
 *
 * copy.c - long copies into or out of a peer's mapped memory, and into or out of a ring used as a
 * staging buffer. It selects the method that was faster lately. Messages are copied by memcpy:
 * nic__gather in send.c.
 *
 * Ordinary stores first fetch each line, perhaps out of the other processor's cache, and leave it
 * in ours, from where the reader must fetch it. Streaming stores write past the caches: nothing is
 * fetched, and the reader finds the line in memory. The faster method depends on the distance
 * between the two processors, which the program cannot learn (a virtual machine's changes), and on
 * whether the memory fits into a cache: for 10 MB between two processors streaming had 1.2 to 3
 * times the rate, for memory that is used again and again between near ones half.
 * So the copier remembers the destinations of recent copies. A destination that was not written
 * within as many bytes as a cache may hold is streamed: its lines would only evict others, and the
 * cost of writing those back falls on later copies, so a measured time is meaningless. For the
 * other destinations the copier times some copies (reading the clock twice takes some hundredths of
 * a copy of 32 KiB), uses the method with the better average, and tries the other one now and then.
 *
 * Threads: any; the averages are only hints, and may be those of another thread.
 */
#include "internal.h"

#ifdef __SSE2__
#include <immintrin.h>
#endif

enum {
    LINE = 64,
    WORTH_SHIFT = 14,
    WORTH_IT = 1 << WORTH_SHIFT, /* shorter copies are not tracked */
    TRY_EVERY = 64,              /* copies: then one each way */
    NOTE_EVERY = 8,              /* copies: the first two of these are timed, as are those that
                                  * try the other method */
    SETTLED = 8                  /* a new average is made of this many */
};

#ifdef __SSE2__
/* Whole lines, `to` at the beginning of one. */
static void lines_stream(uint8_t *to, const uint8_t *from, uint64_t bytes)
{
    for (uint64_t done = 0; done < bytes; done += LINE) {
        const __m128i *line = (const void *)(from + done);
        __m128i *stream = (void *)(to + done);
        __m128i first = _mm_loadu_si128(line), second = _mm_loadu_si128(line + 1);
        __m128i third = _mm_loadu_si128(line + 2), fourth = _mm_loadu_si128(line + 3);
        _mm_stream_si128(stream, first);
        _mm_stream_si128(stream + 1, second);
        _mm_stream_si128(stream + 2, third);
        _mm_stream_si128(stream + 3, fourth);
    }
}

/* The same, a tenth faster, where the processor can. */
__attribute__((target("avx2"))) static void lines_stream_avx2(uint8_t *to, const uint8_t *from,
                                                              uint64_t bytes)
{
    for (uint64_t done = 0; done < bytes; done += LINE) {
        const __m256i *line = (const void *)(from + done);
        __m256i *stream = (void *)(to + done);
        __m256i first = _mm256_loadu_si256(line), second = _mm256_loadu_si256(line + 1);
        _mm256_stream_si256(stream, first);
        _mm256_stream_si256(stream + 1, second);
    }
}

/* Each line by one store. */
__attribute__((target("avx512f"))) static void lines_stream_avx512(uint8_t *to, const uint8_t *from,
                                                                   uint64_t bytes)
{
    for (uint64_t done = 0; done < bytes; done += LINE)
        _mm512_stream_si512((void *)(to + done), _mm512_loadu_si512(from + done));
}

void nic__copy_streaming(void *to, const void *from, uint64_t bytes)
{
    uint8_t *place = to;
    const uint8_t *source = from;
    uint64_t head = -(uintptr_t)place % LINE;
    if (head > bytes)
        head = bytes;
    memcpy(place, source, head);
    uint64_t lines = (bytes - head) / LINE * LINE, done = head + lines;
    if (__builtin_cpu_supports("avx512f"))
        lines_stream_avx512(place + head, source + head, lines);
    else if (__builtin_cpu_supports("avx2"))
        lines_stream_avx2(place + head, source + head, lines);
    else
        lines_stream(place + head, source + head, lines);
    _mm_sfence(); /* before any store that announces the data */
    memcpy(place + done, source + done, bytes - done);
}

enum { CAN_STREAM = true };
#else
enum { CAN_STREAM = false };

void nic__copy_streaming(void *to, const void *from, uint64_t bytes)
{
    memcpy(to, from, bytes);
}
#endif

/* Whether the place was written to so lately that it, and everything written since, may still be
 * in a cache. Copies are no shorter than the unit of a place: each has its own. */
static bool is_known(struct nic_copier *copier, uintptr_t to, uint64_t bytes)
{
    uint64_t now = atomic_load_explicit(&copier->copied, memory_order_relaxed);
    uint64_t name = (uint64_t)to >> WORTH_SHIFT;
    _Atomic uint64_t *place = &copier->places[name % NIC_COPY_PLACES];
    uint32_t age = (uint32_t)(now >> WORTH_SHIFT) -
                   (uint32_t)atomic_load_explicit(place, memory_order_relaxed);
    bool same = atomic_load_explicit(place, memory_order_relaxed) >> 32 == (uint32_t)name;
    atomic_store_explicit(place, name << 32 | (uint32_t)(now >> WORTH_SHIFT), memory_order_relaxed);
    atomic_store_explicit(&copier->copied, now + bytes, memory_order_relaxed);
    return same && age <= NIC_COPY_PLACES;
}

static unsigned turn_next(struct nic_copier *copier)
{
    unsigned turn = atomic_load_explicit(&copier->turn, memory_order_relaxed);
    atomic_store_explicit(&copier->turn, turn + 1, memory_order_relaxed);
    return turn;
}

/* The way to take now. */
static enum nic_copy_way way_of(struct nic_copier *copier, unsigned turn)
{
    uint64_t plain = atomic_load_explicit(&copier->cost[NIC_COPY_PLAIN], memory_order_relaxed);
    uint64_t stream = atomic_load_explicit(&copier->cost[NIC_COPY_STREAM], memory_order_relaxed);
    enum nic_copy_way better = stream < plain ? NIC_COPY_STREAM : NIC_COPY_PLAIN;
    return turn % TRY_EVERY < 2 ? (enum nic_copy_way)(turn % TRY_EVERY) : better;
}

/* A copy in whose midst another process had the processor counts like one that is just bad. */
static void cost_learn(_Atomic uint64_t *average, uint64_t cost)
{
    uint64_t old = atomic_load_explicit(average, memory_order_relaxed);
    if (old == 0)
        old = cost;
    if (cost > 4 * old)
        cost = 4 * old;
    atomic_store_explicit(average, (old * (SETTLED - 1) + cost) / SETTLED + 1,
                          memory_order_relaxed);
}

void nic__copy(struct nic_copier *copier, void *to, const void *from, uint64_t bytes)
{
    if (bytes < WORTH_IT) {
        memcpy(to, from, bytes);
        return;
    }
    if (CAN_STREAM && !is_known(copier, (uintptr_t)to, bytes)) {
        nic__copy_streaming(to, from, bytes);
        return;
    }
    unsigned turn = turn_next(copier);
    enum nic_copy_way way = way_of(copier, turn);
    bool timed = turn % NOTE_EVERY < 2;
    uint64_t begin = timed ? nic__now() : 0;
    if (way == NIC_COPY_STREAM)
        nic__copy_streaming(to, from, bytes);
    else
        memcpy(to, from, bytes);
    if (timed)
        cost_learn(&copier->cost[way], (nic__now() - begin) * 1024 / (bytes >> 10)); /* ns a MiB */
}

void nic__copy_all(struct nic_copier *copier, uint8_t *to, const struct iovec *window, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        nic__copy(copier, to, window[i].iov_base, window[i].iov_len);
        to += window[i].iov_len;
    }
}
