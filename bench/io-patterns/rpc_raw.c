/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rpc_raw.c - calls over plain sockets: a header with the body's length, then the body. The
 * receiver reads the header, allocates, and reads the body in place.
 */
#include "raw_side.h"
#include "rpc.h"

#include <stdlib.h>

/* A header, and the body behind it, in as few writes as possible. */
static void message_send(struct raw_link *link, struct rpc_header header, const void *body)
{
    struct iovec pieces[2] = {{&header, sizeof header}, {(void *)(uintptr_t)body, header.body}};
    struct iovec *piece = pieces;
    int count = header.body > 0 ? 2 : 1;
    while (count > 0) {
        size_t sent = link_send_some(link, piece, count);
        for (; count > 0 && sent >= piece->iov_len; count--)
            sent -= piece++->iov_len;
        if (count > 0) {
            piece->iov_base = (uint8_t *)piece->iov_base + sent;
            piece->iov_len -= sent;
        }
    }
}

/* Returns: the body, which the caller frees; NULL: there is none. */
static uint8_t *message_recv(struct raw_link *link, struct rpc_header *header)
{
    link_recv(link, header, sizeof *header);
    if (header->body == 0)
        return NULL;
    uint8_t *body = malloc(header->body);
    if (!body)
        die("no memory");
    link_recv(link, body, header->body);
    return body;
}

void rpc_serve_raw(struct raw_link *link, const struct work *work)
{
    uint8_t ack[ACK_SIZE] = {0};
    uint8_t *out = allocate_pages(work->size + 1);
    link_blocking_set(link, !work->spin);
    link_send(link, ack, sizeof ack);
    for (uint64_t i = 0, total = calls_total(work); i < total; i++) {
        struct rpc_header header;
        uint8_t *in = message_recv(link, &header);
        if (in)
            rpc_body_check(work, in, i);
        if (header.wanted > 0)
            rpc_body_fill(work, out, i);
        message_send(link, (struct rpc_header){.body = header.wanted}, out);
        free(in);
    }
    link_blocking_set(link, false);
    free(out);
}

static void call_send(struct raw_link *link, struct calls *calls, uint8_t *out, uint32_t place)
{
    const struct work *work = calls->work;
    struct rpc_header header = {.body = work->on == RPC_REQUEST ? work->size : 0,
                                .wanted = work->on == RPC_REPLY ? work->size : 0};
    if (header.body > 0)
        rpc_body_fill(work, out, calls->started);
    if (call_begin(calls, place))
        message_send(link, header, out);
}

double rpc_run_raw(struct raw_client *client, const struct work *work)
{
    struct raw_link *link = &client->links[0];
    struct calls calls;
    uint8_t *out = allocate_pages(work->size + 1);
    calls_open(&calls, work);
    link_blocking_set(link, !work->spin);
    link_ask_and_await(link, 0, work);
    for (uint32_t place = 0; place < work->window; place++)
        call_send(link, &calls, out, place);
    while (calls.ended < calls.total) {
        uint32_t place = (uint32_t)(calls.ended % work->window); /* replies come in order */
        struct rpc_header header;
        uint8_t *in = message_recv(link, &header);
        call_end(&calls, place);
        if (in)
            rpc_body_check(work, in, calls.ended - 1);
        free(in);
        call_send(link, &calls, out, place);
    }
    double figure = calls_close(&calls);
    link_blocking_set(link, false);
    free(out);
    return figure;
}
