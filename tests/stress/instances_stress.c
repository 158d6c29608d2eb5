/* SPDX-License-Identifier: BSD-3-Clause
 *
 * instances_stress.c - threads open and close instances at random, with messages under way.
 *
 * Each of 8 threads has 8 instances, so that 64 are open at once. A thread's instances exchange
 * messages with each other, which must arrive whole, and send unexpected messages to those of other
 * threads, which may be closing. One is closed in the midst of its operations and opened again.
 * Every eighth or so has progress in the background.
 *
 * usage: instances_stress SCHEME LISTEN    e.g. tcp tcp://127.0.0.1:0
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bmi/instance.h"
#include "support.h"

enum { THREADS = 8, EACH = 8, ROUNDS = 400, SMALL = 200, LARGE = 100000 };

struct side {
    struct bmi_instance *instance;
    bmi_context_id context;
    char url[BMI_MAX_ADDR_LEN];
};

struct worker {
    pthread_t thread;
    struct chance chance;
    struct side sides[EACH];
    uint8_t out[LARGE], in[LARGE];
    unsigned opened, exchanged, told, fetched;
};

static const char *method, *listen_url;
static const uint8_t told[SMALL]; /* never written: a send of it may outlive its round */
static struct worker workers[THREADS];

/* Where instances of any thread listen, perhaps no longer. */
static pthread_mutex_t urls_lock = PTHREAD_MUTEX_INITIALIZER;
static char urls[THREADS * EACH][BMI_MAX_ADDR_LEN]; /* urls_lock */

static unsigned below(struct worker *worker, unsigned limit)
{
    return (unsigned)chance_below(&worker->chance, limit);
}

static void side_open(struct worker *worker, int number)
{
    struct side *side = &worker->sides[number];
    const struct bmi_instance_options options = {
        .methods = method,
        .listen = listen_url,
        .settings = "linger_ms=100,spin_us=0",
        .flags = BMI_INIT_SERVER | (below(worker, EACH) == 0 ? BMI_INIT_BACKGROUND : 0)};
    int status = bmi_instance_open(&side->instance, &options);
    CHECK(status == 0, "open: %s", bmi_status_string(status));
    CHECK(bmi_instance_open_context(side->instance, &side->context) == 0, "context");
    CHECK(bmi_instance_get_info(side->instance, BMI_GET_LISTEN_ADDR, side->url) == 0, "url");
    pthread_mutex_lock(&urls_lock);
    strcpy(urls[(worker - workers) * EACH + number], side->url);
    pthread_mutex_unlock(&urls_lock);
    worker->opened++;
}

static void side_close(struct worker *worker, int number)
{
    struct side *side = &worker->sides[number];
    int status = bmi_instance_close(side->instance);
    CHECK(status == 0, "close: %s", bmi_status_string(status));
}

/* Takes what other threads sent, and makes progress. */
static void side_poll(struct worker *worker, struct side *side)
{
    struct BMI_unexpected_info info;
    int count = 0;
    CHECK(bmi_instance_testunexpected(side->instance, 1, &count, &info, 0) >= 0, "testunexpected");
    if (count == 0)
        return;
    CHECK(info.size == SMALL && bmi_instance_of_addr(info.addr) == side->instance,
          "an unexpected message of %lld bytes", (long long)info.size);
    BMI_unexpected_free(info.addr, info.buffer);
    worker->fetched++;
}

static bool over(struct side *side, bmi_op_id_t id, bmi_error_code_t *error)
{
    int done = 0;
    CHECK(BMI_test(id, &done, error, NULL, NULL, 0, side->context) >= 0, "test");
    return done > 0;
}

/* A message from one of the thread's instances to another one of it, or to itself. */
static void exchange(struct worker *worker)
{
    struct side *from = &worker->sides[below(worker, EACH)];
    struct side *to = &worker->sides[below(worker, EACH)];
    bmi_size_t size = 1 + below(worker, below(worker, 2) == 0 ? SMALL : LARGE), got = 0;
    BMI_addr_t target, source;
    bmi_op_id_t sending, receiving;
    bmi_error_code_t error = 0;
    CHECK(bmi_instance_addr_lookup(from->instance, &target, to->url) == 0, "look-up");
    CHECK(bmi_instance_addr_lookup(to->instance, &source, from->url) == 0, "look-up");
    memset(worker->out, (int)below(worker, 256), (size_t)size);
    int receive = BMI_post_recv(&receiving, source, worker->in, size, &got, BMI_EXT_ALLOC, 1, NULL,
                                to->context, NULL);
    int send = BMI_post_send(&sending, target, worker->out, size, BMI_EXT_ALLOC, 1, NULL,
                             from->context, NULL);
    CHECK(receive >= 0 && send >= 0, "posts: %d, %d", receive, send);
    uint64_t end_ns = now_ns() + (uint64_t)TEST_BOUND_MS * 1000000;
    while (send == 0 || receive == 0) {
        CHECK(now_ns() < end_ns, "a message of %lld bytes does not arrive (%s)", (long long)size,
              from == to     ? "to itself"
              : receive == 0 ? "not received"
                             : "not sent");
        side_poll(worker, from); /* both take part in choosing a connection, to the end */
        if (send == 0)
            send = over(from, sending, &error);
        CHECK(error == 0, "send: %s", bmi_status_string(error));
        if (receive == 0)
            receive = over(to, receiving, &error);
        CHECK(error == 0, "receive: %s", bmi_status_string(error));
    }
    CHECK(memcmp(worker->in, worker->out, (size_t)size) == 0, "wrong bytes");
    worker->exchanged++;
}

/* An unexpected message to anybody's instance, which may have gone. */
static void inform(struct worker *worker)
{
    struct side *side = &worker->sides[below(worker, EACH)];
    char url[BMI_MAX_ADDR_LEN];
    BMI_addr_t target;
    bmi_op_id_t id;
    bmi_error_code_t error;
    pthread_mutex_lock(&urls_lock);
    strcpy(url, urls[below(worker, THREADS * EACH)]);
    pthread_mutex_unlock(&urls_lock);
    if (url[0] == '\0' || bmi_instance_addr_lookup(side->instance, &target, url) < 0)
        return;
    int status = BMI_post_sendunexpected(&id, target, told, SMALL, BMI_EXT_ALLOC, 2, NULL,
                                         side->context, NULL);
    for (int i = 0; status == 0 && i < 20; i++)
        status = over(side, id, &error);
    worker->told++; /* one that is not over ends with its context, or with the instance */
}

/* Leaves a receive that nobody sends to. */
static void wait_in_vain(struct worker *worker)
{
    static _Thread_local char byte;
    static _Thread_local bmi_size_t got;
    struct side *side = &worker->sides[below(worker, EACH)];
    BMI_addr_t target;
    bmi_op_id_t id;
    CHECK(bmi_instance_addr_lookup(side->instance, &target,
                                   worker->sides[below(worker, EACH)].url) == 0,
          "look-up");
    CHECK(BMI_post_recv(&id, target, &byte, 1, &got, BMI_EXT_ALLOC, 3, NULL, side->context, NULL) ==
              0,
          "receive");
    if (below(worker, 2) == 0)
        CHECK(BMI_cancel(id, side->context) == 0, "cancel");
}

static void *work(void *argument)
{
    struct worker *worker = argument;
    unsigned rounds = test_scaled(ROUNDS, 40);
    for (int i = 0; i < EACH; i++)
        side_open(worker, i);
    for (unsigned round = 0; round < rounds; round++) {
        unsigned choice = below(worker, 10), number = below(worker, EACH);
        if (choice < 2) {
            side_close(worker, (int)number);
            side_open(worker, (int)number);
        } else if (choice < 5) {
            exchange(worker);
        } else if (choice < 8) {
            inform(worker);
        } else if (choice < 9) {
            wait_in_vain(worker);
        }
        for (int i = 0; i < EACH; i++)
            side_poll(worker, &worker->sides[i]);
    }
    for (int i = 0; i < EACH; i++)
        side_close(worker, i);
    return NULL;
}

int main(int argc, char **argv)
{
    CHECK(argc == 3, "usage: instances_stress SCHEME LISTEN");
    char name[64];
    snprintf(name, sizeof name, "bmi_%s", argv[1]);
    method = name;
    listen_url = argv[2];
    test_begin("instances_stress", 60);
    struct worker sum = {.opened = 0};
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i].chance.state = test_seed() + i;
        CHECK(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0, "a thread");
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(workers[i].thread, NULL);
        sum.opened += workers[i].opened;
        sum.exchanged += workers[i].exchanged;
        sum.told += workers[i].told;
        sum.fetched += workers[i].fetched;
    }
    printf("%u instances, %u messages, %u unexpected ones, of which %u arrived\n", sum.opened,
           sum.exchanged, sum.told, sum.fetched);
    CHECK(sum.opened > THREADS * EACH && sum.exchanged > 0 && sum.fetched > 0,
          "too little was done");
    return 0;
}
