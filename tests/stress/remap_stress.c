/* SPDX-License-Identifier: BSD-3-Clause
 *
 * remap_stress.c - a program unmaps memory and maps other memory at the same address, between any
 * two messages, as malloc and free do with large blocks.
 *
 * A cache of registrations that does not notice this would move bytes to or from the old pages:
 * then the pattern is wrong, or memory that was not lent changes. Both sides do it; in some rounds
 * only the middle of the buffer is mapped anew, in some the buffer is a part of the earlier one, or
 * larger, while a message of another tag is on its way to or from pages beside it.
 *
 * usage: remap_stress        (BMI_TEST_METHOD: the method's scheme)
 */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "support.h"

enum { PAGE = 4096, PAGES = 96, BESIDE = 32, ROUNDS = 400 };
enum { OPEN_TAG = 1, DATA_TAG, BESIDE_TAG, DONE_TAG };

/* The actions of both sides in a round follow from its number. */
struct round {
    size_t offset, size; /* of the message in the area */
    bool beside;         /* another message goes to or from the pages behind it meanwhile */
    bool middle;         /* only the middle of the area is mapped anew */
};

static uint8_t *area;
static bmi_context_id context;

static struct round round_of(unsigned number)
{
    struct chance chance = {.state = 77 + number};
    struct round round;
    round.size = 20000 + chance_below(&chance, (PAGES - BESIDE) * PAGE - 30000);
    round.offset = chance_below(&chance, (PAGES - BESIDE) * PAGE - round.size);
    round.beside = number % 3 == 1;
    round.middle = number % 4 == 2;
    return round;
}

/* Maps anonymous memory at the area's address, over the present one. */
static void area_map(size_t first, size_t pages)
{
    int fixed = area != NULL ? MAP_FIXED : 0;
    uint8_t *at = area != NULL ? area + first * PAGE : NULL;
    if (area != NULL)
        CHECK(munmap(at, pages * PAGE) == 0, "munmap");
    uint8_t *mapped =
        mmap(at, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | fixed, -1, 0);
    CHECK(mapped != MAP_FAILED && (at == NULL || mapped == at), "mmap");
    if (area == NULL)
        area = mapped;
}

static void area_renew(const struct round *round)
{
    if (area != NULL && round->middle)
        area_map(PAGES / 4, PAGES / 4);
    else
        area_map(0, PAGES);
}

static void wait_for(bmi_op_id_t id, int result, const char *what)
{
    struct completion completion = {.id = 0};
    must(result, what);
    if (result == 1)
        return;
    while (!next_completion(context, 1000, &completion))
        ;
    CHECK(completion.status == 0, "%s: %s", what, status_name(completion.status));
    (void)id;
}

/* Posts the round's operations; the memory beside is in the last BESIDE pages. */
static int round_run(BMI_addr_t peer, const struct round *round, bool sends)
{
    uint8_t *data = area + round->offset, *beside = area + (PAGES - BESIDE) * PAGE + 100;
    bmi_size_t size = (bmi_size_t)round->size, more = BESIDE * PAGE - 200, actual;
    bmi_op_id_t ids[2];
    int results[2] = {1, 1};
    if (sends) {
        if (round->beside)
            results[1] = BMI_post_send(&ids[1], peer, beside, more, BMI_EXT_ALLOC, BESIDE_TAG, NULL,
                                       context, NULL);
        results[0] =
            BMI_post_send(&ids[0], peer, data, size, BMI_EXT_ALLOC, DATA_TAG, NULL, context, NULL);
    } else {
        if (round->beside)
            results[1] = BMI_post_recv(&ids[1], peer, beside, more, &actual, BMI_EXT_ALLOC,
                                       BESIDE_TAG, NULL, context, NULL);
        results[0] = BMI_post_recv(&ids[0], peer, data, size, &actual, BMI_EXT_ALLOC, DATA_TAG,
                                   NULL, context, NULL);
    }
    wait_for(ids[0], results[0], sends ? "send" : "receive");
    wait_for(ids[1], results[1], sends ? "send beside" : "receive beside");
    return 0;
}

static void done_tell(BMI_addr_t peer)
{
    bmi_op_id_t id;
    wait_for(0, BMI_post_send(&id, peer, "", 0, BMI_EXT_ALLOC, DONE_TAG, NULL, context, NULL),
             "tell");
}

static void done_hear(BMI_addr_t peer)
{
    bmi_op_id_t id;
    bmi_size_t actual;
    char none;
    wait_for(0,
             BMI_post_recv(&id, peer, &none, 0, &actual, BMI_EXT_ALLOC, DONE_TAG, NULL, context,
                           NULL),
             "hear");
}

/* The receiver's memory is fresh, so zero, and only the message may change it. */
static void untouched_check(const struct round *round, unsigned number)
{
    size_t end = round->offset + round->size, limit = (PAGES - BESIDE) * PAGE;
    for (size_t i = 0; i < limit; i++)
        if ((i < round->offset || i >= end) && area[i] != 0 && !round->middle)
            CHECK(false, "round %u: byte %zu changed, the message is %zu to %zu", number, i,
                  round->offset, end);
}

static void rounds_run(BMI_addr_t peer, bool sends, unsigned rounds)
{
    for (unsigned i = 0; i < rounds; i++) {
        struct round round = round_of(i);
        area_renew(&round);
        if (sends) {
            pattern_fill(area + round.offset, round.size, pattern_key(1, i), 0);
            pattern_fill(area + (PAGES - BESIDE) * PAGE + 100, BESIDE * PAGE - 200,
                         pattern_key(2, i), 0);
        }
        round_run(peer, &round, sends);
        if (sends) {
            done_hear(peer);
            continue;
        }
        int64_t wrong = pattern_wrong(area + round.offset, round.size, pattern_key(1, i), 0);
        CHECK(wrong < 0, "round %u: byte %lld of %zu is wrong", i, (long long)wrong, round.size);
        if (round.beside)
            CHECK(pattern_wrong(area + (PAGES - BESIDE) * PAGE + 100, BESIDE * PAGE - 200,
                                pattern_key(2, i), 0) < 0,
                  "round %u: the message beside is wrong", i);
        untouched_check(&round, i);
        done_tell(peer);
    }
}

static int sender(void *argument, int channel)
{
    char listening[BMI_MAX_ADDR_LEN];
    BMI_addr_t peer;
    bmi_op_id_t id;
    hear(channel, listening, sizeof listening);
    must(BMI_initialize(NULL, NULL, 0), "BMI_initialize");
    must(BMI_open_context(&context), "BMI_open_context");
    must(BMI_addr_lookup(&peer, listening), "BMI_addr_lookup");
    wait_for(0,
             BMI_post_sendunexpected(&id, peer, "", 0, BMI_EXT_ALLOC, OPEN_TAG, NULL, context,
                                     NULL),
             "open");
    rounds_run(peer, true, *(unsigned *)argument);
    BMI_close_context(context);
    must(BMI_finalize(), "BMI_finalize");
    return 0;
}

static BMI_addr_t client_await(void)
{
    struct BMI_unexpected_info info;
    int count = 0;
    while (count == 0)
        must(BMI_testunexpected(1, &count, &info, 1000), "BMI_testunexpected");
    must(BMI_unexpected_free(info.addr, info.buffer), "BMI_unexpected_free");
    return info.addr;
}

int main(void)
{
    char listening[BMI_MAX_ADDR_LEN];
    test_begin("remap_stress", 60);
    unsigned rounds = test_scaled(ROUNDS, 40);
    printf("remap_stress: %s, %u rounds\n", test_scheme(), rounds);
    struct child child = child_start("sender", sender, &rounds);
    serve_here(0, listening);
    must(BMI_open_context(&context), "BMI_open_context");
    tell(child.channel, listening, sizeof listening);
    rounds_run(client_await(), false, rounds);
    child_end(&child);
    BMI_close_context(context);
    must(BMI_finalize(), "BMI_finalize");
    return test_passed();
}
