/* SPDX-License-Identifier: BSD-3-Clause
 *
 * late_method_fault.c - a method that starts at a look-up, while another thread waits for a message
 * and makes progress for all: the first message over the new method does not wait for that thread.
 */
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include "serve.h"

enum { TAG = 5, BLOCKS_MS = 500, SOON_MS = 1000, WAIT_MS = 20000 };

static bmi_context_id waiting;

static void taken(const struct BMI_unexpected_info *info)
{
    must(BMI_unexpected_free(info->addr, info->buffer), "BMI_unexpected_free");
}

/* Serves on the address that is its argument, until the order to end. */
static int server_main(void *argument, int channel)
{
    char listening[BMI_MAX_ADDR_LEN];
    test_unexpected = taken;
    serve(argument, 0, listening);
    operations_open();
    tell(channel, listening, sizeof listening);
    while (!heard(channel, 0))
        operations_step(10);
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    return 0;
}

static BMI_addr_t look_up(const struct child *server)
{
    char listening[BMI_MAX_ADDR_LEN];
    BMI_addr_t address;
    hear(server->channel, listening, sizeof listening);
    must(BMI_addr_lookup(&address, listening), listening);
    return address;
}

static void *wait_for_nothing(void *argument)
{
    bmi_op_id_t id;
    bmi_error_code_t error;
    int count;
    (void)argument;
    must(BMI_testcontext(1, &id, &count, &error, NULL, NULL, WAIT_MS, waiting), "BMI_testcontext");
    CHECK(count == 1 && error == -BMI_ECANCEL, "%d operations ended, %d", count, error);
    return NULL;
}

int main(void)
{
    static char tcp[] = "tcp://127.0.0.1:0", gm[] = "gm://localhost:0";
    static char out[4], in[100];
    struct noted hello;
    bmi_op_id_t id;
    bmi_size_t size;
    pthread_t thread;
    test_begin("late_method_fault", 60);
    struct child servers[2] = {child_start("a server by tcp", server_main, tcp),
                               child_start("a server by gm", server_main, gm)};
    must(BMI_initialize(NULL, NULL, 0), "BMI_initialize");
    operations_open();
    must(BMI_open_context(&waiting), "BMI_open_context");
    BMI_addr_t server = look_up(&servers[0]);
    note_sendunexpected(&hello, server, out, sizeof out, TAG);
    noted_good(&hello, "hello");
    must(BMI_post_recv(&id, server, in, sizeof in, &size, BMI_EXT_ALLOC, TAG, NULL, waiting, NULL),
         "BMI_post_recv");
    CHECK(pthread_create(&thread, NULL, wait_for_nothing, NULL) == 0, "no thread");
    usleep(BLOCKS_MS * 1000); /* it spins before it blocks, and tells nobody of it */
    uint64_t start_ns = now_ns();
    server = look_up(&servers[1]);
    note_sendunexpected(&hello, server, out, sizeof out, TAG);
    noted_good(&hello, "hello by gm");
    uint64_t took_ms = (now_ns() - start_ns) / 1000000;
    printf("  the first message by gm: %llu ms\n", (unsigned long long)took_ms);
    CHECK(took_ms < SOON_MS, "the first message by gm took %llu ms", (unsigned long long)took_ms);
    must(BMI_cancel(id, waiting), "BMI_cancel");
    pthread_join(thread, NULL);
    BMI_close_context(waiting);
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    for (int i = 0; i < 2; i++) {
        tell_number(servers[i].channel, 0);
        child_end(&servers[i]);
    }
    return test_passed();
}
