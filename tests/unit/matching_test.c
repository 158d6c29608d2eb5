/* SPDX-License-Identifier: BSD-3-Clause
 *
 * matching_test.c - many messages both ways over the loop method, posts and cancels at random, the
 * network slowed down, held, and short of memory. Every byte is checked, and at the end of each
 * run: no message twice, none lost unless a cancelled receive can have taken it, and each in the
 * order of sends to the oldest receive.
 */
#include <stdio.h>
#include <time.h>

#include "bmi/base/clock.h"
#include "bmi/progress/progress.h"
#include "tests/unit/pair.h"

enum { TAGS = 3, MOST = 4000, SIZE_MOST = 50000, OUTSTANDING = 120 };

enum state { PENDING, DONE };

struct item {
    bool send, cancelled; /* the program asked for it */
    int end, tag;         /* of a receive: which end receives */
    uint64_t number;      /* of a send; of a receive: the message it got */
    bmi_size_t size, actual;
    bmi_error_code_t error;
    enum state state;
    bmi_op_id_t id;
    uint8_t *buffer;
};

/* The actions of a run beside posting. */
struct plan {
    const struct bmi_method *method;
    const char *settings;
    bool cancel_sends, cancel_receives, small_receives, holds, memory_fails;
    size_t piece;
};

static struct {
    struct pair pair;
    const struct plan *plan;
    struct item items[MOST];
    int count, outstanding;
    uint64_t numbers[ENDS][TAGS];
    uint64_t seed;
} run;

static uint64_t random_below(uint64_t bound)
{
    run.seed = run.seed * 6364136223846793005u + 1442695040888963407u;
    return (run.seed >> 33) % bound;
}

static bmi_size_t random_size(void)
{
    switch (random_below(4)) {
    case 0:
        return LABEL + (bmi_size_t)random_below(200);
    case 1:
        return 16384 - 2 + (bmi_size_t)random_below(5);
    case 2:
        return 17000 + (bmi_size_t)random_below(SIZE_MOST - 17000);
    default:
        return LABEL + (bmi_size_t)random_below(3000);
    }
}

/* ---- one operation -------------------------------------------------------------------------- */

static void complete(void *user_ptr, bmi_error_code_t error, bmi_size_t actual)
{
    struct item *item = user_ptr;
    CU_ASSERT_EQUAL(item->state, PENDING);
    item->state = DONE;
    item->error = error;
    item->actual = actual;
    run.outstanding--;
    if (!item->send && error == 0) {
        int end = -1, tag = -1;
        CU_ASSERT_TRUE(label_read(item->buffer, actual, &end, &tag, &item->number));
        CU_ASSERT_EQUAL(end, 1 - item->end);
        CU_ASSERT_EQUAL(tag, item->tag);
    }
    free(item->buffer);
    item->buffer = NULL;
}

/* Returns the item, NULL if it was refused. */
static struct item *post(bool send, int end, int tag, bmi_size_t size)
{
    struct item *item = &run.items[run.count];
    if (run.count == MOST)
        return NULL;
    *item = (struct item){
        .send = send, .end = end, .tag = tag, .size = size, .buffer = malloc((size_t)size)};
    CU_ASSERT_PTR_NOT_NULL_FATAL(item->buffer);
    int status;
    BMI_addr_t address = run.pair.end[end];
    if (send) {
        item->number = run.numbers[end][tag];
        label_write(item->buffer, size, end, tag, item->number);
        status = BMI_post_send(&item->id, address, item->buffer, size, BMI_EXT_ALLOC, tag, item,
                               run.pair.context, NULL);
        run.numbers[end][tag]++;
    } else {
        status = BMI_post_recv(&item->id, address, item->buffer, size, &item->actual, BMI_EXT_ALLOC,
                               tag, item, run.pair.context, NULL);
    }
    if (status == -BMI_EMSGSIZE && !send) {
        free(item->buffer);
        return NULL;
    }
    if (status < 0)
        fprintf(stderr, "%s: %s\n", run.plan->method->name, bmi_status_string(status));
    CU_ASSERT_TRUE_FATAL(status >= 0);
    run.count++;
    run.outstanding++;
    if (status == 1)
        complete(item, 0, send ? size : item->actual);
    return item;
}

static void cancel_one(void)
{
    struct item *item = &run.items[random_below((uint64_t)run.count + 1) % MOST];
    if (run.count == 0 || item >= &run.items[run.count] || item->state != PENDING)
        return;
    if (item->send ? !run.plan->cancel_sends : !run.plan->cancel_receives)
        return;
    item->cancelled = true;
    CU_ASSERT_EQUAL(BMI_cancel(item->id, run.pair.context), 0);
}

static void disturb(void)
{
    const struct bmi_method *method = run.plan->method;
    unsigned ways = 1 + (unsigned)random_below(3);
    switch (random_below(run.plan->memory_fails ? 5 : 2)) {
    case 0:
        if (run.plan->holds)
            bmi__loop_hold(method, ways, random_below(30000));
        break;
    case 1:
        bmi__loop_release(method, ways);
        break;
    case 2:
        bmi__loop_refuse_memory(method, random_below(2));
        break;
    case 3:
        bmi__loop_fail(method, BMI__LOOP_EXPOSE, 1 + (unsigned)random_below(4), 12);
        break;
    default:
        bmi__loop_fail(method, BMI__LOOP_TRANSFER, 1 + (unsigned)random_below(4), 5);
        break;
    }
}

/* ---- checks at the end ----------------------------------------------------------------------- */

struct tally {
    uint64_t sent, received, too_small, cancelled_receives, cancelled_sends;
};

static bool of_key(const struct item *item, int end, int tag)
{
    return item->tag == tag && item->end == (item->send ? end : 1 - end);
}

static struct item *send_of(int end, int tag, uint64_t number)
{
    for (int i = 0; i < run.count; i++)
        if (run.items[i].send && of_key(&run.items[i], end, tag) && run.items[i].number == number)
            return &run.items[i];
    return NULL;
}

/* Whether a message before `number` was cancelled: its receive may have come back late. */
static bool cancelled_before(int end, int tag, uint64_t number)
{
    for (uint64_t i = 0; i < number; i++) {
        const struct item *send = send_of(end, tag, i);
        if (send != NULL && send->cancelled)
            return true;
    }
    return false;
}

static void check_receive(const struct item *item, int end, int tag, struct tally *tally,
                          uint64_t *highest, bool *any)
{
    if (item->error == -BMI_EMSGSIZE) {
        CU_ASSERT_TRUE(run.plan->small_receives);
        tally->too_small++;
    } else if (item->error == -BMI_ECANCEL) {
        tally->cancelled_receives += item->cancelled;
        CU_ASSERT_TRUE(item->cancelled || run.plan->cancel_sends);
    } else {
        CU_ASSERT_EQUAL_FATAL(item->error, 0);
        struct item *send = send_of(end, tag, item->number);
        CU_ASSERT_PTR_NOT_NULL_FATAL(send);
        CU_ASSERT_EQUAL(item->actual, send->size);
        CU_ASSERT_EQUAL(send->actual, send->size); /* a send that failed was not received */
        CU_ASSERT_NOT_EQUAL(send->id, -1);         /* nor was one received twice */
        send->id = -1;
        bool in_order =
            !*any || item->number > *highest || cancelled_before(end, tag, item->number);
        CU_ASSERT_TRUE(in_order);
        if (!*any || item->number > *highest)
            *highest = item->number;
        *any = true;
        tally->received++;
    }
}

static void check_key(int end, int tag)
{
    struct tally tally = {0};
    uint64_t highest = 0;
    bool any = false;
    for (int i = 0; i < run.count; i++) {
        const struct item *item = &run.items[i];
        if (!of_key(item, end, tag))
            continue;
        if (!item->send) {
            check_receive(item, end, tag, &tally, &highest, &any);
        } else if (item->error == 0) {
            tally.sent++;
        } else {
            CU_ASSERT_EQUAL(item->error, -BMI_ECANCEL);
            CU_ASSERT_TRUE(item->cancelled);
            tally.cancelled_sends++;
        }
    }
    uint64_t missing = tally.sent - tally.received;
    CU_ASSERT_TRUE(tally.received <= tally.sent);
    /* a message too large for its receive counts as sent, or was cancelled when it was refused */
    CU_ASSERT_TRUE(missing + tally.cancelled_sends >= tally.too_small);
    CU_ASSERT_TRUE(missing <= tally.too_small + tally.cancelled_receives);
}

/* ---- a run ---------------------------------------------------------------------------------- */

static bool settled(void)
{
    uint64_t until = bmi__monotonic_ns() + UINT64_C(20) * 1000000000u;
    while (run.outstanding > 0 && bmi__monotonic_ns() < until)
        pair_drive(&run.pair, complete);
    return run.outstanding == 0;
}

static void outstanding_print(void)
{
    fprintf(stderr, "%s, settings %s:\n", run.plan->method->name,
            run.plan->settings != NULL ? run.plan->settings : "default");
    for (int i = 0; i < run.count; i++) {
        const struct item *item = &run.items[i];
        if (item->state == PENDING)
            fprintf(stderr, "    %d: %s end %d tag %d size %lld number %llu%s id %llx\n", i,
                    item->send ? "send" : "receive", item->end, item->tag, (long long)item->size,
                    (unsigned long long)item->number, item->cancelled ? " cancelled" : "",
                    (unsigned long long)item->id);
    }
}

/* Every tag queue gets a last message, and receives until that one has arrived; and sends for the
 * receives that still wait. */
static void finish(void)
{
    bmi__loop_reset(run.plan->method);
    for (int i = 0; i < 200; i++)
        pair_drive(&run.pair, complete);
    for (int end = 0; end < ENDS; end++)
        for (int tag = 0; tag < TAGS; tag++) {
            int waiting = 0;
            for (int i = 0; i < run.count; i++) {
                const struct item *item = &run.items[i];
                if (of_key(item, end, tag) && item->state == PENDING)
                    waiting += item->send ? -1 : 1;
            }
            for (; waiting > 0; waiting--)
                CU_ASSERT_PTR_NOT_NULL_FATAL(post(true, end, tag, LABEL));
            struct item *last = post(true, end, tag, LABEL), *got = NULL;
            CU_ASSERT_PTR_NOT_NULL_FATAL(last);
            uint64_t number = last->number;
            do {
                got = post(false, 1 - end, tag, SIZE_MOST);
                CU_ASSERT_PTR_NOT_NULL_FATAL(got);
                while (got->state == PENDING)
                    pair_drive(&run.pair, complete);
                CU_ASSERT_EQUAL_FATAL(got->error, 0);
            } while (got->number != number);
        }
    if (!settled())
        outstanding_print();
    CU_ASSERT_TRUE_FATAL(run.outstanding == 0);
}

static void run_plan(const struct plan *plan, uint64_t seed, int steps)
{
    memset(&run, 0, sizeof run);
    run.plan = plan;
    run.seed = seed;
    pair_open(&run.pair, plan->method, plan->settings);
    bmi__loop_piece(plan->method, plan->piece);
    for (int i = 0; i < steps; i++) {
        uint64_t what = random_below(10);
        int end = (int)random_below(ENDS), tag = (int)random_below(TAGS);
        if (what < 3 && run.outstanding < OUTSTANDING)
            post(true, end, tag, random_size());
        else if (what < 6 && run.outstanding < OUTSTANDING)
            post(false, end, tag,
                 plan->small_receives && random_below(4) == 0 ? random_size() : SIZE_MOST);
        else if (what < 7)
            cancel_one();
        else if (what < 8)
            disturb();
        for (uint64_t k = random_below(4); k > 0; k--)
            pair_drive(&run.pair, complete);
    }
    finish();
    for (int end = 0; end < ENDS; end++)
        for (int tag = 0; tag < TAGS; tag++)
            check_key(end, tag);
    pair_close(&run.pair);
}

static uint64_t first_seed;

static void run_all(struct plan plan)
{
    static const struct bmi_method *const methods[] = {&bmi__method_loop, &bmi__method_loopput,
                                                       &bmi__method_loopget};
    static const char *const settings[] = {NULL, "announce=off", "peer_memory=32K",
                                           "immediate=off,eager_max=1K"};
    for (size_t m = 0; m < COUNT_OF(methods); m++)
        for (size_t s = 0; s < COUNT_OF(settings); s++)
            for (uint64_t seed = 0; seed < 4; seed++) {
                unsigned before = CU_get_number_of_failures();
                plan.method = methods[m];
                plan.settings = settings[s];
                run_plan(&plan, first_seed + seed, 400);
                if (CU_get_number_of_failures() == before)
                    continue;
                fprintf(stderr, "%s, settings %s, seed %llu\n", plan.method->name,
                        plan.settings != NULL ? plan.settings : "default",
                        (unsigned long long)(first_seed + seed));
                return;
            }
}

static void plain(void)
{
    run_all((struct plan){.piece = 5000});
}

static void held_and_short_of_memory(void)
{
    run_all((struct plan){.piece = 3000, .holds = true, .memory_fails = true});
}

static void receives_too_small(void)
{
    run_all((struct plan){.small_receives = true, .holds = true});
}

static void receives_cancelled(void)
{
    run_all((struct plan){.cancel_receives = true, .holds = true, .piece = 4000});
}

static void sends_cancelled(void)
{
    run_all((struct plan){.cancel_sends = true, .holds = true, .piece = 4000});
}

static void everything(void)
{
    run_all((struct plan){.cancel_sends = true,
                          .cancel_receives = true,
                          .small_receives = true,
                          .holds = true,
                          .memory_fails = true,
                          .piece = 2000});
}

int main(int argc, char **argv)
{
    CU_TestInfo tests[] = {
        {"plain", plain},
        {"held, and short of memory", held_and_short_of_memory},
        {"receives too small", receives_too_small},
        {"receives cancelled", receives_cancelled},
        {"sends cancelled", sends_cancelled},
        {"everything", everything},
        CU_TEST_INFO_NULL,
    };
    first_seed = argc > 1 ? strtoull(argv[1], NULL, 10) : (uint64_t)time(NULL);
    printf("seed %llu; the program takes it as its argument\n", (unsigned long long)first_seed);
    return unit_run("matching", tests);
}
