/* SPDX-License-Identifier: BSD-3-Clause
 *
 * claim_fault.c - a peer that claims another process's listen address in its HELLO.
 *
 * An impostor connects to us and claims a victim's listen address, then the victim's incarnation as
 * well, before we look the victim up, before we connect to it, and after. Each message to the
 * victim's looked-up address must reach the victim, never the impostor; and no message of the
 * impostor may complete a receive from the victim.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "raw_peer.h"
#include "serve.h"

enum { IMPOSTOR_TAG = 5, SECRET_TAG = 7, TRUTH_TAG = 8, ASK_TAG = 9, SIZE = 1000, BULK = 1 << 20 };

/* The impostor comes before the look-up, before the connection, after it; in each case it claims
 * the address, then the incarnation too. Only an impostor that claims all identities of a connected
 * peer may be refused. */
enum { ROUNDS = 6, REFUSED_ROUND = 5 };
enum word { REFUSED, DONE }; /* of the impostor's */

static char ours[BMI_MAX_ADDR_LEN], victims[BMI_MAX_ADDR_LEN];

/* ---- the victim: an honest server ------------------------------------------------------------ */

static BMI_addr_t asker;
static uint64_t asked;

static void victim_asked(const struct BMI_unexpected_info *info)
{
    CHECK(info->tag == ASK_TAG && info->size == sizeof asked, "an unexpected message with tag %d",
          info->tag);
    memcpy(&asked, info->buffer, sizeof asked);
    asker = info->addr;
    must(BMI_unexpected_free(info->addr, info->buffer), "BMI_unexpected_free");
}

static int victim(void *argument, int channel)
{
    static char small[SIZE], bulk[BULK];
    (void)argument;
    serve_here(0, victims);
    operations_open();
    test_unexpected = victim_asked;
    tell(channel, victims, sizeof victims);
    while (!heard(channel, 0)) {
        struct noted secret, secrets, truth;
        operations_step(50);
        if (asker == 0)
            continue;
        note_receive(&secret, asker, small, SIZE, SECRET_TAG);
        note_receive(&secrets, asker, bulk, BULK, SECRET_TAG);
        noted_good(&secret, "the victim's secret");
        noted_good(&secrets, "the victim's large secret");
        CHECK(pattern_wrong(small, SIZE, pattern_key(1, asked), 0) < 0, "the secret is wrong");
        CHECK(pattern_wrong(bulk, BULK, pattern_key(2, asked), 0) < 0, "the secret is wrong");
        hear_number(channel); /* the impostor has sent its claim by now */
        pattern_fill(bulk, BULK, pattern_key(3, asked), 0);
        note_send(&truth, asker, bulk, BULK, TRUTH_TAG);
        noted_good(&truth, "the truth");
        asker = 0;
    }
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    return 0;
}

/* ---- the impostor: speaks by hand ------------------------------------------------------------ */

/* A failed send is noticed when the connection is read. */
static void impostor_lie(int socket, uint64_t round)
{
    static char body[SIZE];
    memset(body, 'x', sizeof body);
    struct raw_frame lie = {.type = RAW_EAGER, .tag = TRUTH_TAG, .length = SIZE};
    struct raw_frame ready = {.type = RAW_RTR, .tag = SECRET_TAG, .source = 99, .target = BULK};
    bool sent = raw_send(socket, &ready, NULL) && /* "ready for messages" */
                raw_send(socket, &lie, body) && raw_send_unexpected(socket, IMPOSTOR_TAG, round);
    if (!sent)
        printf("  the impostor could not lie\n");
}

/* No message for the victim may arrive. Returns whether this frame refuses the impostor. */
static bool frame_check(const struct raw_frame *frame)
{
    CHECK(frame->type != RAW_EAGER && frame->type != RAW_UNEXPECTED && frame->type != RAW_RTS &&
              frame->type != RAW_DATA && frame->type != RAW_CTS && frame->type != RAW_RTR,
          "the impostor got a frame of type %u, tag %d, that was meant for the victim", frame->type,
          frame->tag);
    return frame->type == RAW_REJECT;
}

/* Reads frames until the parent's order, and reports the first sign of a refusal. */
static void impostor_listen(int socket, int channel)
{
    static uint8_t body[RAW_BODY_MAX];
    struct raw_frame frame;
    unsigned frames = 0;
    bool refused = false, ended = false;
    while (!heard(channel, ended ? -1 : 0)) {
        if (ended || !heard(socket, 20))
            continue;
        ended = !raw_receive(socket, &frame, body, TEST_BOUND_MS);
        frames += !ended;
        if ((ended || frame_check(&frame)) && !refused) {
            refused = true;
            tell_number(channel, REFUSED);
        }
    }
    printf("  the impostor got %u frames, no message\n", frames);
}

/* The public part of a connection to the victim: its incarnation. */
static void victim_spy(struct raw_hello *hello, struct chance *chance)
{
    struct raw_hello mine = raw_hello_make(chance), theirs;
    int socket = raw_join(victims, &mine, &theirs);
    close(socket);
    memcpy(hello->incarnation, theirs.incarnation, sizeof hello->incarnation);
}

static int impostor(void *argument, int channel)
{
    (void)argument;
    struct chance chance = {.state = test_seed()};
    hear(channel, ours, sizeof ours);
    hear(channel, victims, sizeof victims);
    for (int64_t round = hear_number(channel); round >= 0; round = hear_number(channel)) {
        struct raw_hello hello = raw_hello_make(&chance);
        strcpy(hello.listen, victims);
        if (round % 2)
            victim_spy(&hello, &chance);
        int socket = raw_connect(ours, 0);
        raw_send_hello(socket, &hello);
        impostor_lie(socket, (uint64_t)round);
        impostor_listen(socket, channel);
        hear_number(channel);
        close(socket);
        tell_number(channel, DONE);
    }
    return 0;
}

/* ---- us -------------------------------------------------------------------------------------- */

static BMI_addr_t liar;
static bool lied;

static void impostor_spoke(const struct BMI_unexpected_info *info)
{
    CHECK(info->tag == IMPOSTOR_TAG, "an unexpected message with tag %d", info->tag);
    liar = info->addr;
    lied = true;
    must(BMI_unexpected_free(info->addr, info->buffer), "BMI_unexpected_free");
}

/* Until a message of the impostor has arrived, or it reports a refusal. */
static void impostor_wait(struct child *child, int64_t round)
{
    tell_number(child->channel, round);
    while (!lied && !heard(child->channel, 0))
        operations_step(10);
    CHECK(lied || round == REFUSED_ROUND, "round %d: the impostor is refused", (int)round);
}

static void impostor_end(struct child *child)
{
    tell_number(child->channel, 0);
    while (hear_number(child->channel) != DONE)
        continue;
}

static void round_run(struct child *false_one, struct child *true_one, int64_t round)
{
    static char small[SIZE], bulk[BULK], truth[BULK];
    struct noted ask, secret, secrets, receive;
    uint64_t number = (uint64_t)round;
    BMI_addr_t address;
    bool connect_before = round / 2 == 2;
    lied = false;
    liar = 0;
    if (round / 2 == 0)
        impostor_wait(false_one, round); /* before the victim was ever looked up (first round) */
    must(BMI_addr_lookup(&address, victims), "BMI_addr_lookup");
    if (connect_before)
        note_sendunexpected(&ask, address, &number, sizeof number, ASK_TAG);
    if (round / 2 == 1 || connect_before) {
        if (connect_before)
            noted_good(&ask, "asking the victim");
        impostor_wait(false_one, round);
    }
    CHECK(!lied || liar != address, "the impostor has the victim's address");
    note_receive(&receive, address, truth, BULK, TRUTH_TAG);
    if (!connect_before)
        note_sendunexpected(&ask, address, &number, sizeof number, ASK_TAG);
    pattern_fill(small, SIZE, pattern_key(1, number), 0);
    pattern_fill(bulk, BULK, pattern_key(2, number), 0);
    note_send(&secret, address, small, SIZE, SECRET_TAG);
    note_send(&secrets, address, bulk, BULK, SECRET_TAG);
    noted_good(&ask, "asking the victim");
    noted_good(&secret, "a secret");
    noted_good(&secrets, "a large secret");
    CHECK(!receive.ended, "the impostor's lie was taken for the victim's truth");
    tell_number(true_one->channel, 0);
    noted_good(&receive, "the truth");
    CHECK(receive.size == BULK && pattern_wrong(truth, BULK, pattern_key(3, number), 0) < 0,
          "the truth is wrong: %lld bytes", (long long)receive.size);
    printf("  round %d: the impostor was %s; secrets and truth are right\n", (int)round,
           lied ? "heard as itself" : "refused");
    impostor_end(false_one);
    must(BMI_set_info(address, BMI_TCP_CLOSE_SOCKET, NULL), "BMI_TCP_CLOSE_SOCKET");
}

int main(void)
{
    test_begin("claim_fault", 40);
    struct child false_one = child_start("impostor", impostor, NULL);
    struct child true_one = child_start("victim", victim, NULL);
    hear(true_one.channel, victims, sizeof victims);
    serve_here(0, ours);
    operations_open();
    test_unexpected = impostor_spoke;
    tell(false_one.channel, ours, sizeof ours);
    tell(false_one.channel, victims, sizeof victims);
    for (int64_t round = 0; round < ROUNDS; round++)
        round_run(&false_one, &true_one, round);
    tell_number(false_one.channel, -1);
    child_end(&false_one);
    tell_number(true_one.channel, 0);
    child_end(&true_one);
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    return test_passed();
}
