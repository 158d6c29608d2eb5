/* SPDX-License-Identifier: BSD-3-Clause
 *
 * bmi_side.h - how the patterns post and wait with BMI.
 *
 * An operation's user pointer is its struct bmi_op; its `complete` runs from the side's loop, also
 * where the post completed at once, so a completion may post the next operation without recursion.
 * One thread; no locks.
 */
#ifndef BENCH_BMI_SIDE_H
#define BENCH_BMI_SIDE_H

#include "bench.h"
#include "bmi.h"
#include "bmi/rpc.h"
#include "layout.h"

#define WAIT_MS 100 /* bound of one wait; between waits a server checks whether it must end */

struct bmi_op {
    struct bmi_op *next; /* in the list of those that completed at once */
    void (*complete)(struct bmi_op *op);
    bmi_size_t expected; /* a receive's bytes, which must come exactly; -1 for a send or a call */
    bmi_size_t actual;
};

struct bmi_side {
    bmi_context_id context;
    struct bmi_op *done_first, *done_last; /* completed at once, not run yet */
    uint64_t outstanding;                  /* posted, not completed */
    int timeout_s;
    bool polls;  /* test calls do not wait */
    bool ending; /* failures from here on are ignored */
    /* For a pattern that waits for more than messages: the number of other operations, and the
     * function that waits for both, at most wait_ms. Returns: how many have ended. */
    uint64_t others;
    int (*other_step)(struct bmi_side *side, int wait_ms);
};

struct bmi_client {
    struct bmi_side side;
    BMI_addr_t *servers;
    int server_count;
};

/* A scatter list in BMI's form. */
struct bmi_pieces {
    void **buffers;
    bmi_size_t *sizes;
    int count, room;
};
void pieces_open(struct bmi_pieces *pieces, const struct layout *layout, uint64_t size);
void pieces_set(struct bmi_pieces *pieces, const struct layout *layout, int server,
                uint64_t position, uint64_t size);
void pieces_close(struct bmi_pieces *pieces);

void bmi_check(int status, const char *what);

/* Posts; all end the process on refusal. */
void side_send(struct bmi_side *side, struct bmi_op *op, BMI_addr_t to, const void *buffer,
               bmi_size_t size, enum bmi_buffer_type type, bmi_msg_tag_t tag);
void side_recv(struct bmi_side *side, struct bmi_op *op, BMI_addr_t from, void *buffer,
               bmi_size_t size, enum bmi_buffer_type type, bmi_msg_tag_t tag);
void side_send_list(struct bmi_side *side, struct bmi_op *op, BMI_addr_t to,
                    const struct bmi_pieces *pieces, bmi_size_t size, bmi_msg_tag_t tag);
void side_recv_list(struct bmi_side *side, struct bmi_op *op, BMI_addr_t from,
                    const struct bmi_pieces *pieces, bmi_size_t size, bmi_msg_tag_t tag);
void side_request(struct bmi_side *side, struct bmi_op *op, BMI_addr_t to, const struct work *work,
                  uint8_t bytes[REQUEST_SIZE]);

void side_call(struct bmi_side *side, struct bmi_op *op, BMI_addr_t to, const char *service,
               struct bmi_message *request, bmi_rpc_unpack unpack, void *argument);

/* Runs the callbacks of completed operations, waiting at most `wait_ms` for one. Returns:
 * completions run. */
int side_step(struct bmi_side *side, int wait_ms);
/* Steps until *value reaches `target`; ends the process if nothing moves for the time-out. */
void side_await(struct bmi_side *side, const uint64_t *value, uint64_t target);

/* A completion that only counts. */
struct bmi_counted {
    struct bmi_op op;
    uint64_t *counter;
};
void counted_complete(struct bmi_op *op);

static inline bmi_msg_tag_t tag_ack(const struct work *work)
{
    return (bmi_msg_tag_t)((work->sequence & 0x1fffffff) * 2);
}
static inline bmi_msg_tag_t tag_data(const struct work *work)
{
    return tag_ack(work) + 1;
}

/* Exchanges request and acknowledgement with one server; `ack` may be NULL. */
void client_ask_for(struct bmi_client *client, int server, const struct work *work, uint8_t *ack);
void client_ask(struct bmi_client *client, int server, const struct work *work);

/* A server's acknowledgement, sent to its end; `ack` NULL: zeroes. */
void acknowledge_and_await(struct bmi_side *side, BMI_addr_t client, const struct work *work,
                           const uint8_t *ack);
/* A server's two acknowledgements, of zeroes: "ready" and "all is there". */
struct bmi_acks {
    struct bmi_side *side;
    BMI_addr_t client;
    bmi_msg_tag_t tag;
    int sent, gone;
    void (*close)(struct bmi_acks *acks); /* both have gone */
    struct acks_op {
        struct bmi_op op;
        struct bmi_acks *acks;
    } ops[2];
};
void acks_open(struct bmi_acks *acks, struct bmi_side *side, BMI_addr_t client,
               const struct work *work, void (*close)(struct bmi_acks *acks));
void acks_send(struct bmi_acks *acks); /* the next one */
/* A process's whole life, and its parts. A server runs until it has answered `requests` requests
 * to their end, or until it is ended (0). */
void bmi_server_open(struct bmi_side *side, const struct options *options, const char *listen,
                     char address[BMI_MAX_ADDR_LEN]);
void bmi_server_run(struct bmi_side *side, uint64_t requests);
void bmi_client_open(struct bmi_client *client, const struct options *options);
/* Takes a sample in the memory that it names. Returns: the pattern's figure. */
double bmi_client_run(struct bmi_client *client, const struct work *work);
void bmi_side_close(struct bmi_side *side);
void bmi_server_main(const struct options *options);
void bmi_client_main(const struct options *options);

#endif
