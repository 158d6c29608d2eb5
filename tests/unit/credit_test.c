/* SPDX-License-Identifier: BSD-3-Clause
 *
 * credit_test.c - the memory that peers occupy is bounded for each and in all. Peers are scripts.
 */
#include "bmi/protocol/credit.h"
#include "bmi/protocol/tag_queue.h"
#include "tests/unit/script_case.h"

enum { UNEXPECTED_MAX = 16384 };

/* A peer's account: what it may still send. */
struct account {
    struct script *script;
    uint64_t eager, unexpected;
    unsigned wants;
};

static void account_open(struct account *account)
{
    *account = (struct account){.script = script_open(SCRIPT_FRAMES, NULL)};
    CU_ASSERT_PTR_NOT_NULL_FATAL(account->script);
    account->eager = account->script->hello.eager_credit;
    account->unexpected = account->script->hello.unexpected_credit;
}

static void account_read(struct account *account)
{
    struct script_frame *frame;
    script_drive();
    while ((frame = script_read(account->script)) != NULL) {
        if (frame->header.type != WIRE_RTR)
            account->eager += frame->header.credit;
        if (frame->header.type == WIRE_CREDIT)
            account->unexpected += frame->header.source;
        free(frame);
    }
}

static bool account_eager(struct account *account, size_t size, int tag)
{
    if (account->eager < size + WIRE_MESSAGE_CHARGE)
        return false;
    account->eager -= size + WIRE_MESSAGE_CHARGE;
    CU_ASSERT_EQUAL(send_eager(account->script, 1, size, tag), 0);
    return true;
}

static bool account_unexpected(struct account *account, size_t size)
{
    if (account->unexpected < size + WIRE_MESSAGE_CHARGE)
        return false;
    account->unexpected -= size + WIRE_MESSAGE_CHARGE;
    CU_ASSERT_EQUAL(script_send(account->script,
                                (struct wire_header){.type = WIRE_UNEXPECTED, .tag = TAG},
                                message(1, size), size),
                    0);
    return true;
}

static void account_want(struct account *account, uint8_t which)
{
    account->wants++;
    CU_ASSERT_EQUAL(send_want(account->script, which, 0, 0), 0);
}

static int64_t window_sum(const struct window *window)
{
    return (int64_t)window->granted + window->held + window->unreported;
}

static int64_t peer_sum(const struct account *account)
{
    const struct peer *peer = script_peer(account->script);
    return window_sum(&peer->eager) + window_sum(&peer->unexpected_window);
}

/* The peer's account and the library's agree. */
static void account_check(struct account *account)
{
    const struct peer *peer = script_peer(account->script);
    account_read(account);
    CU_ASSERT_EQUAL(peer->eager.granted, account->eager);
    CU_ASSERT_EQUAL(peer->unexpected_window.granted, account->unexpected);
    CU_ASSERT_TRUE(peer->counters.unmatched_bytes <= peer->eager.held);
    CU_ASSERT_TRUE(peer->counters.unexpected_bytes <= peer->unexpected_window.held);
}

/* Fetches and frees one unexpected message. */
static bool fetch(void)
{
    struct BMI_unexpected_info info;
    int count = 0;
    CU_ASSERT_TRUE(BMI_testunexpected(1, &count, &info, 0) >= 0);
    if (count == 1)
        CU_ASSERT_EQUAL(BMI_unexpected_free(info.addr, info.buffer), 0);
    return count == 1;
}

/* ---- one peer ------------------------------------------------------------------------------- */

static void full_windows_while_there_is_plenty(void)
{
    struct account account;
    account_open(&account);
    CU_ASSERT_EQUAL(account.eager + account.unexpected, 1 << 20);
    CU_ASSERT_TRUE(account.unexpected >= UNEXPECTED_MAX + WIRE_MESSAGE_CHARGE);
    CU_ASSERT_EQUAL(credit_used(), 1 << 20);
    script_close(account.script);
    CU_ASSERT_EQUAL(credit_used(), 0);
}

static void overdrawing_ends_the_link(void)
{
    for (int unexpected = 0; unexpected < 2; unexpected++) {
        struct account account;
        account_open(&account);
        if (unexpected) {
            while (account_unexpected(&account, UNEXPECTED_MAX))
                continue;
        } else {
            while (account_eager(&account, UNEXPECTED_MAX, TAG))
                continue;
        }
        struct peer *peer = script_peer(account.script);
        CU_ASSERT_TRUE(peer->counters.unmatched_bytes + peer->counters.unexpected_bytes <= 1 << 20);
        account.script->seen = 0;
        struct wire_header header = {.type = unexpected ? WIRE_UNEXPECTED : WIRE_EAGER};
        CU_ASSERT_EQUAL(script_send(account.script, header, message(1, UNEXPECTED_MAX),
                                    UNEXPECTED_MAX),
                        -EPROTO);
        while (fetch())
            continue;
        script_close(account.script);
        CU_ASSERT_EQUAL(credit_used(), 0);
    }
}

/* A frame larger than agreed is invalid, even if there is enough credit for it. */
static void larger_than_agreed_ends_the_link(void)
{
    static const uint8_t types[] = {WIRE_EAGER, WIRE_UNEXPECTED};
    for (size_t i = 0; i < COUNT_OF(types); i++) {
        struct script *script = open_script(SCRIPT_FRAMES, NULL);
        uint32_t most = i == 0 ? script->hello.eager_max : script->hello.unexpected_max;
        CU_ASSERT_TRUE(most < LARGE && script->hello.eager_credit > 2 * LARGE);
        struct wire_header header = {.type = types[i], .tag = TAG};
        CU_ASSERT_EQUAL(script_send(script, header, message(1, most), most), 0);
        CU_ASSERT_EQUAL(script_send(script, header, message(1, most + 1), most + 1), -EMSGSIZE);
        while (fetch())
            continue;
        script_close(script);
    }
}

/* Also requests to send, and messages without bytes, are charged. */
static void empty_messages_are_bounded(void)
{
    struct account account;
    account_open(&account);
    uint64_t count = 0;
    while (account_eager(&account, 0, (int)count))
        count++;
    CU_ASSERT_TRUE(count <= (1 << 20) / WIRE_MESSAGE_CHARGE);
    CU_ASSERT_TRUE(script_peer(account.script)->counters.unmatched_bytes <= 1 << 20);
    CU_ASSERT_EQUAL(send_rts(account.script, 1, 1, 0), -EPROTO);
    script_close(account.script);
}

static void credit_comes_back_with_consumption(void)
{
    static struct posted posted;
    struct account account;
    uint64_t seed = 7;
    account_open(&account);
    for (int i = 0; i < 4000; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        size_t size = (seed >> 40) % 9000;
        struct peer *peer = script_peer(account.script);
        if (seed >> 63 || !account_eager(&account, size, TAG)) {
            if (peer->counters.unmatched_messages > 0) {
                post_receive(account.script, &posted, LARGE, TAG);
                CU_ASSERT_TRUE_FATAL(done(&posted));
                CU_ASSERT_EQUAL(posted.error, 0);
            }
        }
        if ((seed >> 62 & 1) && account_unexpected(&account, size) && (seed >> 61 & 1))
            CU_ASSERT_TRUE(fetch());
        account_check(&account);
        CU_ASSERT_TRUE(peer_sum(&account) <= 1 << 20);
        CU_ASSERT_EQUAL(credit_used(), peer_sum(&account));
    }
    while (fetch())
        continue;
    while (script_peer(account.script)->counters.unmatched_messages > 0) {
        post_receive(account.script, &posted, LARGE, TAG);
        CU_ASSERT_TRUE_FATAL(done(&posted));
    }
    account_check(&account);
    CU_ASSERT_EQUAL(script_peer(account.script)->eager.held, 0);
    CU_ASSERT_EQUAL(script_peer(account.script)->unexpected_window.held, 0);
    script_close(account.script);
    CU_ASSERT_EQUAL(credit_used(), 0);
}

/* A request is charged for the memory that holds it; the charge is returned in every outcome. */
static void requests_give_their_charge_back(void)
{
    static struct posted posted;
    enum { RECEIVE_WAITS, REQUEST_WAITS, TOO_LARGE, ABORTED, WAYS };
    struct account account;
    account_open(&account);
    CU_ASSERT_EQUAL(bmi__settings_set(&bmi__default, "announce=off"), 0);
    for (uint64_t way = 0; way < WAYS; way++) {
        bool large = way == TOO_LARGE;
        if (way == RECEIVE_WAITS || large)
            post_receive(account.script, &posted, SMALL, TAG);
        account.eager -= WIRE_MESSAGE_CHARGE;
        CU_ASSERT_EQUAL(send_rts(account.script, 31 + way, large ? LARGE : SMALL, TAG), 0);
        if (way == REQUEST_WAITS)
            post_receive(account.script, &posted, SMALL, TAG);
        if (way == ABORTED) {
            CU_ASSERT_EQUAL(send_abort(account.script, 31 + way, 0, false, TAG), 0);
        } else if (large) {
            CU_ASSERT_TRUE(failed(&posted, BMI_EMSGSIZE));
        } else {
            CU_ASSERT_EQUAL(send_data(account.script, (uint64_t)posted.id, 1, SMALL, false, 0), 0);
            CU_ASSERT_TRUE(received(&posted, 1, SMALL));
        }
        const struct peer *peer = script_peer(account.script);
        CU_ASSERT_EQUAL(peer->eager.held, 0);
        CU_ASSERT_EQUAL(window_sum(&peer->eager), peer->eager.standing);
        account_check(&account);
    }
    post_receive(account.script, &posted, SMALL, TAG); /* so does a message sent eagerly */
    CU_ASSERT_TRUE(account_eager(&account, SMALL, TAG));
    CU_ASSERT_TRUE(received(&posted, 1, SMALL));
    CU_ASSERT_EQUAL(script_peer(account.script)->eager.held, 0);
    account_check(&account);
    script_close(account.script);
}

/* Messages that the program holds outlive their peer, and count until they are freed. */
static void held_beyond_the_peer(void)
{
    struct BMI_unexpected_info info[2];
    struct account account;
    int count;
    account_open(&account);
    CU_ASSERT_TRUE(account_unexpected(&account, 1000) && account_unexpected(&account, 2000));
    CU_ASSERT_EQUAL(BMI_testunexpected(2, &count, info, 0), 1);
    CU_ASSERT_EQUAL(count, 2);
    script_close(account.script);
    CU_ASSERT_EQUAL(credit_used(), 3000 + 2 * WIRE_MESSAGE_CHARGE);
    account_open(&account); /* the peer's memory may be in use by another one now */
    int64_t used = credit_used();
    CU_ASSERT_EQUAL(BMI_unexpected_free(info[0].addr, info[0].buffer), 0);
    CU_ASSERT_EQUAL(credit_used(), used - 1000 - WIRE_MESSAGE_CHARGE);
    CU_ASSERT_EQUAL(BMI_unexpected_free(info[1].addr, info[1].buffer), 0);
    account_check(&account);
    script_close(account.script);
    CU_ASSERT_EQUAL(credit_used(), 0);
}

/* ---- announcements -------------------------------------------------------------------------- */

static int announce(struct script *script, int number, int tag)
{
    return script_send(script,
                       (struct wire_header){.type = WIRE_RTR,
                                            .tag = tag,
                                            .source = (uint64_t)number,
                                            .target = LARGE},
                       NULL, 0);
}

/* A peer's announcements cost memory as messages do, and so do their tag queues. */
static void announcements_are_paid_for(void)
{
    enum { MANY = 5000 };
    struct account account;
    account_open(&account);
    int64_t used = credit_used();
    for (int i = 0; i < MANY; i++)
        CU_ASSERT_EQUAL(announce(account.script, i, i), 0);
    CU_ASSERT_TRUE(credit_used() > used);
    CU_ASSERT_TRUE(credit_used() <= used + (1 << 20) / 4);
    CU_ASSERT_TRUE(script_peer(account.script)->queue_count <= 262144 / sizeof(struct tag_queue));
    script_close(account.script);
    CU_ASSERT_EQUAL(credit_used(), 0);
}

static unsigned announcements_kept(const struct tag_queue *queue)
{
    unsigned count = 0;
    for (const struct announcement *one = queue->announced_first; one != NULL; one = one->next)
        count++;
    return count;
}

/* An announcement that a waiting message uses at once is accepted even without memory for it;
 * others for the same tag are not. */
static void unpaid_announcements_are_not_kept(void)
{
    static struct posted posted;
    enum { MANY = 20000 };
    const struct script_offer offer = {.eager_max = 16384, .unexpected_max = 16384};
    struct script *script = open_script(SCRIPT_FRAMES, &offer);
    post_send(script, &posted, SMALL, TAG); /* has no credit */
    for (uint32_t i = 1; i < MANY; i++)
        CU_ASSERT_EQUAL(send_rtr(script, i, LARGE, i, TAG), 0);
    const struct tag_queue *queue = bmi__tag_queue_find_locked(script_peer(script), TAG);
    CU_ASSERT_TRUE(announcements_kept(queue) * sizeof(struct announcement) <= (1 << 20) / 4);
    CU_ASSERT_FALSE(done(&posted));
    CU_ASSERT_EQUAL(send_rtr(script, MANY, LARGE, 0, TAG), 0);
    CU_ASSERT_TRUE(done(&posted) && posted.error == 0);
    script_close(script);
}

/* ---- many peers, little memory -------------------------------------------------------------- */

enum { PEERS = 48, TOTAL = 1 << 20, EACH = 1 << 17 };

static void little_memory(void)
{
    CU_ASSERT_EQUAL_FATAL(bmi__settings_set(&bmi__default, "total_memory=1M,peer_memory=128K"), 0);
}

static void all_peers_get_on(int64_t most)
{
    static struct account accounts[PEERS];
    unsigned without = 0, fetched = 0, sent = 0;
    for (int i = 0; i < PEERS; i++) {
        account_open(&accounts[i]);
        without += accounts[i].unexpected < UNEXPECTED_MAX;
        CU_ASSERT_TRUE(credit_used() <= most);
    }
    CU_ASSERT_TRUE(without > 0); /* so little that not all have room for a large one */
    for (int round = 0; round < 20; round++) {
        bool waits[PEERS] = {false};
        unsigned goal = sent + PEERS;
        for (int i = 0; i < PEERS; i++) {
            waits[i] = !account_unexpected(&accounts[i], UNEXPECTED_MAX);
            sent += !waits[i];
            if (waits[i])
                account_want(&accounts[i], WIRE_UNEXPECTED_CREDIT);
            CU_ASSERT_TRUE(credit_used() <= most);
        }
        /* as the program fetches, each waiting peer gets its turn */
        for (int step = 0; step < 4 * PEERS && sent < goal; step++) {
            fetched += fetch();
            for (int i = 0; i < PEERS; i++) {
                account_read(&accounts[i]);
                if (waits[i] && account_unexpected(&accounts[i], UNEXPECTED_MAX)) {
                    waits[i] = false;
                    sent++;
                }
            }
            CU_ASSERT_TRUE(credit_used() <= most);
        }
        CU_ASSERT_EQUAL(sent, goal);
        while (fetch())
            fetched++;
    }
    CU_ASSERT_EQUAL(fetched, sent);
    for (int i = 0; i < PEERS; i++) {
        account_check(&accounts[i]);
        script_close(accounts[i].script);
    }
    CU_ASSERT_EQUAL(credit_used(), 0);
}

static void all_peers_get_on_within_the_budget(void)
{
    little_memory();
    all_peers_get_on(TOTAL);
    CU_ASSERT_EQUAL_FATAL(bmi__settings_set(&bmi__default, "total_memory=128K,peer_memory=32K"), 0);
    all_peers_get_on(1 << 17); /* there is not even a small window for each */
}

/* For any windows that are given, one message of the largest size finds room. */
static void room_for_the_largest_is_left(void)
{
    enum { LARGEST = 65536, LITTLE = 1 << 17 };
    static struct peer peers[PEERS] = {[0 ... PEERS - 1] = {.instance = &bmi__default}};
    CU_ASSERT_EQUAL_FATAL(bmi__settings_set(&bmi__default, "total_memory=128K,peer_memory=32K"), 0);
    for (int i = 0; i < PEERS; i++)
        bmi__credit_open_locked(&peers[i], LARGEST);
    CU_ASSERT_TRUE(credit_used() > 0);
    CU_ASSERT_TRUE(credit_used() + LARGEST + WIRE_MESSAGE_CHARGE + LITTLE / 8 <= LITTLE);
    for (int i = 0; i < PEERS; i++)
        bmi__credit_forget_locked(&peers[i]);
    CU_ASSERT_EQUAL(credit_used(), 0);
}

/* A peer holds its share of unexpected messages, and waits for room for one more. If it gets eager
 * credit meanwhile, it must not wait for ever. */
static void it_does_not_wait_for_eager_credit(void)
{
    static struct posted posted;
    enum { SIZE = 8000, EAGER = 4500 };
    const uint64_t least = SIZE + WIRE_MESSAGE_CHARGE;
    struct account account;
    CU_ASSERT_EQUAL_FATAL(bmi__settings_set(&bmi__default, "total_memory=128K,peer_memory=32K"), 0);
    account_open(&account);
    do {
        CU_ASSERT_EQUAL(send_want(account.script, WIRE_UNEXPECTED_CREDIT, least, 0), 0);
        account_read(&account);
    } while (account_unexpected(&account, SIZE));
    post_receive(account.script, &posted, EAGER, TAG);
    CU_ASSERT_TRUE(account_eager(&account, EAGER, TAG));
    CU_ASSERT_TRUE(received(&posted, 1, EAGER));
    account_read(&account);
    CU_ASSERT_TRUE(account.unexpected < least);
    CU_ASSERT_TRUE(fetch() && fetch()); /* and keeps the others */
    account_read(&account);
    CU_ASSERT_TRUE(account_unexpected(&account, SIZE));
    while (fetch())
        continue;
    account_check(&account);
    script_close(account.script);
    CU_ASSERT_EQUAL(credit_used(), 0);
}

/* All credit is lent to peers that request little, repeatedly as it comes back: one that requests
 * much gets its turn. */
static void a_peer_that_needs_much_is_not_starved(void)
{
    enum { STEPS = 2000 };
    static struct account accounts[PEERS];
    const uint64_t least = SMALL + WIRE_MESSAGE_CHARGE;
    bool waits[PEERS] = {false}, served = false;
    CU_ASSERT_EQUAL_FATAL(bmi__settings_set(&bmi__default, "total_memory=128K,peer_memory=32K"), 0);
    for (int i = 0; i < PEERS; i++)
        account_open(&accounts[i]);
    int step = 0;
    for (int i = 1; step < STEPS && !served; i = i % (PEERS - 1) + 1, step++) {
        struct account *one = &accounts[i];
        account_read(one);
        while (account_unexpected(one, SMALL))
            waits[i] = false;
        if (!waits[i])
            CU_ASSERT_EQUAL(send_want(one->script, WIRE_UNEXPECTED_CREDIT, least, 0), 0);
        waits[i] = true;
        if (step == STEPS / 4) /* none is left by now */
            account_want(&accounts[0], WIRE_UNEXPECTED_CREDIT);
        if (step > STEPS / 4)
            fetch();
        account_read(&accounts[0]);
        served = accounts[0].unexpected >= UNEXPECTED_MAX + WIRE_MESSAGE_CHARGE;
        CU_ASSERT_TRUE(credit_used() <= 1 << 17);
    }
    CU_ASSERT_TRUE(step > STEPS / 4);
    CU_ASSERT_TRUE(served);
    while (fetch())
        continue;
    for (int i = 0; i < PEERS; i++)
        script_close(accounts[i].script);
    CU_ASSERT_EQUAL(credit_used(), 0);
}

/* Each peer asks for room for a small message, sends it, and is idle from then on: the credit lent
 * to it is free for the next peers. */
static void lent_credit_comes_back(void)
{
    static struct account accounts[PEERS];
    const uint64_t least = SMALL + WIRE_MESSAGE_CHARGE;
    little_memory();
    for (int i = 0; i < PEERS; i++)
        account_open(&accounts[i]);
    int64_t used = credit_used();
    for (int i = 0; i < PEERS; i++) {
        while (account_unexpected(&accounts[i], SMALL)) /* its credit before any WANT */
            continue;
        CU_ASSERT_EQUAL(send_want(accounts[i].script, WIRE_UNEXPECTED_CREDIT, least, 0), 0);
        account_read(&accounts[i]);
        CU_ASSERT_TRUE(account_unexpected(&accounts[i], SMALL));
        CU_ASSERT_TRUE(accounts[i].unexpected < least);
        while (fetch())
            continue;
        account_read(&accounts[i]);
        CU_ASSERT_TRUE(credit_used() <= used + WIRE_MESSAGE_CHARGE);
    }
    for (int i = 0; i < PEERS; i++)
        script_close(accounts[i].script);
    CU_ASSERT_EQUAL(credit_used(), 0);
}

/* A peer waits for its turn, and requests credit of the other kind meanwhile: it gets both. */
static void asking_for_more_keeps_the_turn(void)
{
    static struct account accounts[PEERS];
    int waits = -1;
    little_memory();
    for (int i = 0; i < PEERS; i++)
        account_open(&accounts[i]);
    for (int i = 0; i < PEERS && waits < 0; i++)
        for (int k = 0; k < 4 && waits < 0; k++) {
            account_want(&accounts[i], WIRE_UNEXPECTED_CREDIT);
            account_read(&accounts[i]);
            if (!account_unexpected(&accounts[i], UNEXPECTED_MAX) &&
                script_peer(accounts[i].script)->unexpected_window.held == 0)
                waits = i;
        }
    CU_ASSERT_TRUE_FATAL(waits >= 0); /* the budget is used up, and this peer holds none */
    account_want(&accounts[waits], WIRE_EAGER_CREDIT);
    while (fetch())
        continue;
    account_read(&accounts[waits]);
    CU_ASSERT_TRUE(account_unexpected(&accounts[waits], UNEXPECTED_MAX));
    while (fetch())
        continue;
    for (int i = 0; i < PEERS; i++)
        script_close(accounts[i].script);
    CU_ASSERT_EQUAL(credit_used(), 0);
}

/* Peers that wait for their turn disconnect: those behind them get theirs. */
static void a_leaving_peer_delays_no_other(void)
{
    static struct account accounts[PEERS];
    enum { LAST = PEERS - 1, GONE = 3 };
    CU_ASSERT_EQUAL_FATAL(bmi__settings_set(&bmi__default, "total_memory=128K,peer_memory=32K"), 0);
    for (int i = 0; i < PEERS; i++)
        account_open(&accounts[i]);
    int first = 0;
    while (first < PEERS - GONE - 1) { /* until there is none for the next one */
        account_want(&accounts[first], WIRE_UNEXPECTED_CREDIT);
        account_read(&accounts[first]);
        if (!account_unexpected(&accounts[first++], UNEXPECTED_MAX))
            break;
    }
    for (int i = LAST - GONE; i <= LAST; i++) {
        account_want(&accounts[i], WIRE_UNEXPECTED_CREDIT);
        account_read(&accounts[i]);
        CU_ASSERT_FALSE(account_unexpected(&accounts[i], UNEXPECTED_MAX));
    }
    for (int i = LAST - GONE; i < LAST; i++)
        script_close(accounts[i].script);
    while (fetch())
        continue;
    for (int i = 0; i < first; i++)
        script_close(accounts[i].script);
    script_drive();
    account_read(&accounts[LAST]);
    CU_ASSERT_TRUE(account_unexpected(&accounts[LAST], UNEXPECTED_MAX));
    CU_ASSERT_TRUE(fetch());
    for (int i = first; i <= LAST; i++)
        if (i < LAST - GONE || i == LAST)
            script_close(accounts[i].script);
    CU_ASSERT_EQUAL(credit_used(), 0);
}

/* A peer gets what it requests, up to one message of the largest size. */
static void no_peer_is_lent_more_than_a_message_needs(void)
{
    static const uint64_t sizes[] = {UNEXPECTED_MAX + WIRE_MESSAGE_CHARGE + 1, 100 << 20,
                                     UINT32_MAX, UINT64_MAX};
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        struct account account;
        account_open(&account);
        int64_t used = credit_used();
        CU_ASSERT_EQUAL(send_want(account.script, WIRE_UNEXPECTED_CREDIT, sizes[i], 0), 0);
        CU_ASSERT_TRUE(credit_used() <= used + UNEXPECTED_MAX + WIRE_MESSAGE_CHARGE);
        account_check(&account);
        script_close(account.script);
    }
}

/* The message that the credit was lent for was cancelled. */
static void unused_credit_is_given_back(void)
{
    static struct account accounts[PEERS];
    little_memory();
    for (int i = 0; i < PEERS; i++)
        account_open(&accounts[i]);
    struct account *last = &accounts[PEERS - 1];
    const struct window *window = &script_peer(last->script)->unexpected_window;
    int64_t used = credit_used();
    uint64_t before = last->unexpected;
    account_want(last, WIRE_UNEXPECTED_CREDIT);
    account_read(last);
    uint64_t lent = last->unexpected - before;
    CU_ASSERT_TRUE(lent > 0);
    CU_ASSERT_EQUAL(credit_used(), used + (int64_t)lent);
    CU_ASSERT_EQUAL(send_want(last->script, WIRE_UNUSED, lent, 0), 0);
    last->unexpected -= lent;
    account_check(last);
    CU_ASSERT_EQUAL(credit_used(), used);
    /* The credit of its own window is not lost: it is returned again. */
    CU_ASSERT_EQUAL(send_want(last->script, WIRE_UNUSED, before, 0), 0);
    last->unexpected -= before;
    CU_ASSERT_EQUAL(window_sum(window), window->standing);
    account_check(last);
    CU_ASSERT_EQUAL(last->unexpected, before);
    CU_ASSERT_EQUAL(credit_used(), used);
    /* more than it has */
    CU_ASSERT_EQUAL(send_want(last->script, WIRE_UNUSED, before + 1, 0), -EPROTO);
    for (int i = 0; i < PEERS; i++)
        script_close(accounts[i].script);
    CU_ASSERT_EQUAL(credit_used(), 0);
}

/* Announcements never take the memory that waiting peers need. */
static void announcements_are_bounded_in_all(void)
{
    static struct account accounts[PEERS];
    little_memory();
    for (int i = 0; i < PEERS; i++) {
        account_open(&accounts[i]);
        for (int k = 0; k < 1000; k++)
            CU_ASSERT_EQUAL(announce(accounts[i].script, k, k), 0);
        CU_ASSERT_TRUE(credit_used() <= TOTAL);
    }
    size_t queues = 0;
    for (int i = 0; i < PEERS; i++) {
        queues += script_peer(accounts[i].script)->queue_count;
        if (!account_unexpected(&accounts[i], UNEXPECTED_MAX)) {
            account_want(&accounts[i], WIRE_UNEXPECTED_CREDIT);
            account_read(&accounts[i]);
            CU_ASSERT_TRUE(account_unexpected(&accounts[i], UNEXPECTED_MAX));
        }
        CU_ASSERT_TRUE(credit_used() <= TOTAL);
        while (fetch())
            continue;
    }
    CU_ASSERT_TRUE(queues * sizeof(struct tag_queue) <= TOTAL / 8);
    for (int i = 0; i < PEERS; i++)
        script_close(accounts[i].script);
    CU_ASSERT_EQUAL(credit_used(), 0);
    account_open(&accounts[0]); /* there is room again */
    for (int k = 0; k < 20; k++)
        CU_ASSERT_EQUAL(announce(accounts[0].script, k, k), 0);
    CU_ASSERT_EQUAL(script_peer(accounts[0].script)->queue_count, 20);
    script_close(accounts[0].script);
}

/* A message to a posted receive arrives, however much memory others hold. */
static void eager_peers_without_a_window_get_on(void)
{
    static struct account accounts[PEERS];
    static struct posted posted;
    little_memory();
    for (int i = 0; i < PEERS; i++) {
        account_open(&accounts[i]);
        while (account_eager(&accounts[i], 4000, TAG + 1)) /* not received until the end */
            continue;
        CU_ASSERT_TRUE(credit_used() <= TOTAL);
    }
    for (int i = 0; i < PEERS; i++) {
        post_receive(accounts[i].script, &posted, LARGE, TAG);
        account_read(&accounts[i]);
        account_want(&accounts[i], WIRE_EAGER_CREDIT);
        account_read(&accounts[i]);
        bool announced = accounts[i].script->link.owner != NULL &&
                         script_peer(accounts[i].script)->counters.announcements > 0;
        CU_ASSERT_TRUE_FATAL(announced);
        CU_ASSERT_EQUAL(send_data(accounts[i].script, (uint64_t)posted.id, 3, SMALL, true, TAG), 0);
        CU_ASSERT_TRUE(received(&posted, 3, SMALL));
        CU_ASSERT_TRUE(credit_used() <= TOTAL);
    }
    for (int i = 0; i < PEERS; i++)
        script_close(accounts[i].script);
    CU_ASSERT_EQUAL(credit_used(), 0);
}

/* One peer sends WANT repeatedly while the program fetches none: it must not get all credit. */
static void one_peer_cannot_take_all(void)
{
    static struct account accounts[PEERS];
    static struct posted posted;
    static const uint8_t kinds[] = {WIRE_UNEXPECTED_CREDIT, WIRE_EAGER_CREDIT};
    for (size_t kind = 0; kind < COUNT_OF(kinds); kind++) {
        little_memory();
        for (int i = 0; i < PEERS; i++)
            account_open(&accounts[i]);
        for (int i = 0; i < PEERS / 2; i++) /* half of them disconnect; their memory is free */
            script_close(accounts[i].script);
        struct account *greedy = &accounts[PEERS - 1];
        for (int i = 0; i < 2000; i++) {
            account_read(greedy);
            bool moved = kinds[kind] == WIRE_UNEXPECTED_CREDIT
                             ? account_unexpected(greedy, UNEXPECTED_MAX)
                             : account_eager(greedy, 0, TAG);
            if (!moved)
                account_want(greedy, kinds[kind]);
            CU_ASSERT_TRUE(credit_used() <= TOTAL);
        }
        CU_ASSERT_TRUE(peer_sum(greedy) <= EACH);
        printf("\n    a greedy peer holds %lld of %d bytes ", (long long)peer_sum(greedy), EACH);
        while (fetch())
            continue;
        while (script_peer(greedy->script)->counters.unmatched_messages > 0) {
            post_receive(greedy->script, &posted, SMALL, TAG);
            CU_ASSERT_TRUE_FATAL(done(&posted));
        }
        account_read(greedy); /* its held messages were consumed: now it continues */
        CU_ASSERT_TRUE(kinds[kind] == WIRE_UNEXPECTED_CREDIT
                           ? account_unexpected(greedy, UNEXPECTED_MAX)
                           : account_eager(greedy, 0, TAG));
        while (fetch())
            continue;
        for (int i = PEERS / 2; i < PEERS; i++)
            script_close(accounts[i].script);
        CU_ASSERT_EQUAL(credit_used(), 0);
    }
}

/* A peer that uses returned credit without reading the frames that return it cannot know that
 * credit. The frames that it makes the library queue are bounded as answers are. */
static void credit_that_is_not_read(void)
{
    enum { MOST = 4096, STUCK = 1, ASKS = 2, WAYS = 4 };
    for (int way = 0; way < WAYS; way++) {
        little_memory(); /* one message of the largest size is a quarter of the window */
        struct script *script = open_script(SCRIPT_FRAMES, NULL);
        script->stuck = (way & STUCK) != 0;
        size_t size = way & ASKS ? 0 : UNEXPECTED_MAX;
        int status = 0, messages = 0;
        for (; status >= 0 && messages < MOST; messages++) {
            if (way & ASKS)
                status = send_want(script, WIRE_UNEXPECTED_CREDIT, 0, 0);
            if (status >= 0)
                status = script_send(script, (struct wire_header){.type = WIRE_UNEXPECTED},
                                     message(1, size), size);
            while (fetch())
                continue;
        }
        CU_ASSERT_EQUAL(status, way & STUCK ? -EPROTO : 0);
        CU_ASSERT_TRUE(messages > MOST / 4);
        script->stuck = false;
        script_close(script);
        CU_ASSERT_EQUAL(credit_used(), 0);
    }
}

/* The same for receives that are announced, but end with small messages, and are posted again: the
 * announcements of posted receives count as the program's own. */
static void announcements_that_are_not_read(void)
{
    enum { POSTED = 2 * ANSWERS_MOST, TURNS = 2 * POSTED };
    static struct posted posted;
    for (int stuck = 0; stuck < 2; stuck++) {
        struct script *script = open_script(SCRIPT_FRAMES, NULL);
        script->stuck = stuck != 0;
        int status = 0, turns = 0;
        for (; status >= 0 && turns < TURNS; turns++) {
            post_receive(script, &posted, LARGE, TAG);
            status = send_eager(script, 1, 0, TAG);
            CU_ASSERT_TRUE(status < 0 || done(&posted));
        }
        CU_ASSERT_EQUAL(status, stuck ? -EPROTO : 0);
        CU_ASSERT_TRUE(turns >= ANSWERS_MOST);
        script->stuck = false;
        script_close(script);
    }
    CU_ASSERT_EQUAL(credit_used(), 0);
}

/* And for messages that are too large for the announced receive, without credit for RTS: the notice
 * of each is its only frame, and it counts as sent. */
static void words_that_are_not_read(void)
{
    enum { TURNS = 2 * ANSWERS_MOST };
    static struct posted posted;
    for (int stuck = 0; stuck < 2; stuck++) {
        const struct script_offer poor = {.eager_credit = 1};
        struct script *script = open_script(SCRIPT_FRAMES, &poor);
        script->stuck = stuck != 0;
        int status = 0, turns = 0;
        for (; status >= 0 && turns < TURNS; turns++) {
            script->seen = (uint32_t)turns; /* claimed, true or not */
            status = send_rtr(script, (uint64_t)turns + 1, 1, 0, TAG);
            if (status < 0)
                break;
            post_send(script, &posted, SMALL, TAG);
            CU_ASSERT_TRUE(done(&posted));
        }
        CU_ASSERT_EQUAL(status, stuck ? -EPROTO : 0);
        CU_ASSERT_TRUE(turns >= ANSWERS_MOST);
        script->stuck = false;
        script_close(script);
    }
}

static void announcements_of_many(void)
{
    enum { MANY = 2 * ANSWERS_MOST };
    static bmi_op_id_t ids[MANY];
    static bmi_size_t actual;
    static uint8_t buffer[LARGE];
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    script->stuck = true;
    for (int i = 0; i < MANY; i++)
        CU_ASSERT_EQUAL(BMI_post_recv(&ids[i], script->address, buffer, LARGE, &actual,
                                      BMI_EXT_ALLOC, TAG, NULL, case_context, NULL),
                        0);
    CU_ASSERT_EQUAL(send_eager(script, 1, 0, TAG), 0);
    CU_ASSERT_EQUAL(script_send(script, (struct wire_header){.type = WIRE_PING}, NULL, 0), 0);
    ALIVE(script);
    script->stuck = false;
    script_close(script);
}

/* A sender without credit sends WANT for the announcements of each message's tag, and may do so for
 * many before it reads: no WANT makes the library announce all of them again. */
static void asking_for_many_announcements(void)
{
    enum { RECEIVES = 64, HONEST = ANSWERS_MOST / 2, TURNS = 2 * ANSWERS_MOST };
    static struct posted posted[RECEIVES];
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    for (int i = 0; i < RECEIVES; i++)
        post_receive(script, &posted[i], LARGE, TAG);
    script->stuck = true;
    int status = 0, turns = 0;
    for (; status >= 0 && turns < TURNS; turns++)
        status = send_want(script, WIRE_EAGER_CREDIT | WIRE_ANNOUNCE, 0, TAG);
    CU_ASSERT_EQUAL(status, -EPROTO);
    CU_ASSERT_TRUE(turns > HONEST);
    script->stuck = false;
    script_close(script);
}

/* Reads the frames so far; the account does not count them yet. Returns: their number. */
static unsigned told(struct account *account, uint64_t *credit)
{
    struct script_frame *frame;
    unsigned count = 0;
    script_drive();
    while ((frame = script_read(account->script)) != NULL) {
        *credit += frame->header.credit;
        count++;
        free(frame);
    }
    return count;
}

/* A sender of many messages, which all find their receives, has used up the credit that it knows,
 * and sends WANT for credit that is on its way: the library returns credit in steps as before, not
 * for each WANT and message. */
static void credit_on_its_way_is_not_sent_again(void)
{
    enum { SIZE = 4000, ROUNDS = 20 };
    static struct posted posted;
    struct account account;
    account_open(&account);
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t credit = 0;
        do
            post_receive(account.script, &posted, SIZE, TAG);
        while (account_eager(&account, SIZE, TAG) && received(&posted, 1, SIZE));
        CU_ASSERT_TRUE(told(&account, &credit) <= 4); /* a quarter of the window each */
        CU_ASSERT_TRUE(credit > SIZE + WIRE_MESSAGE_CHARGE);
        CU_ASSERT_EQUAL(send_want(account.script, WIRE_EAGER_CREDIT, SIZE + WIRE_MESSAGE_CHARGE, 0),
                        0);
        CU_ASSERT_EQUAL(told(&account, &credit), 0);
        account.eager += credit;
        CU_ASSERT_TRUE(account_eager(&account, SIZE, TAG) && received(&posted, 1, SIZE));
        account_check(&account);
    }
    script_close(account.script);
}

int main(void)
{
    CU_TestInfo tests[] = {
        {"full windows while there is plenty", full_windows_while_there_is_plenty},
        {"overdrawing ends the link", overdrawing_ends_the_link},
        {"larger than agreed", larger_than_agreed_ends_the_link},
        {"empty messages are bounded", empty_messages_are_bounded},
        {"credit comes back with consumption", credit_comes_back_with_consumption},
        {"requests give their charge back", requests_give_their_charge_back},
        {"held beyond the peer", held_beyond_the_peer},
        {"lent credit comes back", lent_credit_comes_back},
        {"asking for more keeps the turn", asking_for_more_keeps_the_turn},
        {"a waiting peer that disconnects delays no other", a_leaving_peer_delays_no_other},
        {"no peer is lent more than a message needs", no_peer_is_lent_more_than_a_message_needs},
        {"unused credit is given back", unused_credit_is_given_back},
        {"announcements are paid for", announcements_are_paid_for},
        {"unpaid announcements are not kept", unpaid_announcements_are_not_kept},
        {"announcements are bounded in all", announcements_are_bounded_in_all},
        {"all peers get on within the budget", all_peers_get_on_within_the_budget},
        {"room for the largest is left", room_for_the_largest_is_left},
        {"it does not wait for eager credit", it_does_not_wait_for_eager_credit},
        {"a peer that needs much is not starved", a_peer_that_needs_much_is_not_starved},
        {"eager peers without a window get on", eager_peers_without_a_window_get_on},
        {"one peer cannot take all", one_peer_cannot_take_all},
        {"credit that is not read", credit_that_is_not_read},
        {"announcements that are not read", announcements_that_are_not_read},
        {"words that are not read", words_that_are_not_read},
        {"announcements of many receives", announcements_of_many},
        {"asking for many announcements", asking_for_many_announcements},
        {"credit on its way is not sent again", credit_on_its_way_is_not_sent_again},
        CU_TEST_INFO_NULL,
    };
    return script_suite_run("credit", tests);
}
