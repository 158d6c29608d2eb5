/* SPDX-License-Identifier: BSD-3-Clause
 *
 * request.c - a sample's description in the 25 bytes of a request, little-endian:
 * pattern 1, flags 1, server 1, client 2, window 4, size 4, amount 6, compute 2, sequence 4. Where
 * messages share memory the window's place has the number of those that fit into it.
 */
#include "bench.h"

enum {
    FLAG_VERIFY = 1,
    FLAG_PLAIN = 2,
    FLAG_SPIN = 4,
    FLAG_ON = 8 /* two bits */,
    FLAG_MEMORY = 32,
    FLAG_FIRST = 64 /* two bits */
};

static void bytes_put(uint8_t **place, uint64_t value, int count)
{
    for (int i = 0; i < count; i++)
        *(*place)++ = (uint8_t)(value >> (8 * i));
}

static uint64_t bytes_get(const uint8_t **place, int count)
{
    uint64_t value = 0;
    for (int i = 0; i < count; i++)
        value |= (uint64_t) * (*place)++ << (8 * i);
    return value;
}

void request_encode(uint8_t bytes[REQUEST_SIZE], const struct work *work)
{
    uint8_t *place = bytes;
    bytes_put(&place, work->pattern, 1);
    bytes_put(&place,
              (work->verify ? FLAG_VERIFY : 0u) | (work->plain ? FLAG_PLAIN : 0u) |
                  (work->spin ? FLAG_SPIN : 0u) | (unsigned)work->on * FLAG_ON |
                  (work->memory ? FLAG_MEMORY : 0u) | (unsigned)work->first * FLAG_FIRST,
              1);
    bytes_put(&place, work->server, 1);
    bytes_put(&place, work->client, 2);
    bytes_put(&place, work->memory ? work->memory / work->size : work->window, 4);
    bytes_put(&place, work->size, 4);
    bytes_put(&place, work->amount, 6);
    bytes_put(&place, work->compute_us, 2);
    bytes_put(&place, work->sequence, 4);
}

void request_decode(struct work *work, const uint8_t bytes[REQUEST_SIZE])
{
    const uint8_t *place = bytes;
    work->pattern = (uint8_t)bytes_get(&place, 1);
    uint64_t flags = bytes_get(&place, 1);
    work->verify = flags & FLAG_VERIFY;
    work->plain = flags & FLAG_PLAIN;
    work->spin = flags & FLAG_SPIN;
    work->on = flags / FLAG_ON & ON_BOTH;
    work->first = flags / FLAG_FIRST & 3;
    work->server = (uint8_t)bytes_get(&place, 1);
    work->client = (uint16_t)bytes_get(&place, 2);
    work->window = (uint32_t)bytes_get(&place, 4);
    work->size = (uint32_t)bytes_get(&place, 4);
    work->amount = bytes_get(&place, 6);
    work->compute_us = (uint16_t)bytes_get(&place, 2);
    work->sequence = (uint32_t)bytes_get(&place, 4);
    if (!(flags & FLAG_MEMORY)) {
        work->memory = 0;
        return;
    }
    work->memory = (uint64_t)work->window * work->size;
    work->window = (uint32_t)message_count(work); /* bandwidth posts all of them then */
}

void work_contender_set(struct work *work, const struct options *options, enum contender contender)
{
    const unsigned plain = BIT(CONTENDER_BMI_PLAIN) | BIT(CONTENDER_POST) |
                           BIT(CONTENDER_MPI_PROBE) | BIT(CONTENDER_MPI_YIELD);
    const unsigned spins = BIT(CONTENDER_RAW_POLL) | BIT(CONTENDER_TLS_POLL);
    work->plain = BIT(contender) & plain;
    work->spin = options->poll || BIT(contender) & spins;
}

/* Sets the members that a client knows for all its samples. */
void work_start(struct work *work, const struct options *options)
{
    *work = (struct work){.pattern = pattern_number(options->pattern),
                          .verify = options->verify,
                          .first = (uint8_t)options->first,
                          .client = (uint16_t)options->number,
                          .memory = options->memory,
                          .window = (uint32_t)options->window};
    work_contender_set(work, options, options->contender);
}

void work_window_set(struct work *work, const struct options *options)
{
    if (options->post == POST_ALL)
        work->window = (uint32_t)message_count(work);
    else if (options->post == POST_ONE)
        work->window = 1;
}

/* Sets the members that all processes know for one sample. */
void work_fill(struct work *work, const struct options *options, const struct grid *grid,
               uint64_t size)
{
    const struct pattern *pattern = options->pattern;
    work_start(work, options);
    work->size = pattern->size_is_clients ? (uint32_t)grid->clients : (uint32_t)size;
    work->amount = pattern->amount_is_bytes ? options->bytes : options->messages;
    work_window_set(work, options);
}

/* Messages in a sample whose amount is in bytes; the last may be shorter. */
uint64_t message_count(const struct work *work)
{
    return (work->amount + work->size - 1) / work->size;
}

uint32_t message_size(const struct work *work, uint64_t message)
{
    uint64_t left = work->amount - message * work->size;
    return left < work->size ? (uint32_t)left : work->size;
}

uint64_t memory_size(const struct work *work)
{
    uint64_t shared = work->memory / work->size * work->size;
    return shared > 0 && shared < work->amount ? shared : work->amount;
}

uint64_t memory_place(const struct work *work, uint64_t message)
{
    uint64_t fit = work->memory / work->size;
    return (fit > 0 ? message % fit : message) * work->size;
}
