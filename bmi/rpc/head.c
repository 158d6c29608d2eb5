/* SPDX-License-Identifier: BSD-3-Clause
 *
 * head.c - see head.h.
 */
#include "bmi/rpc/head.h"

#include <string.h>

#include "bmi/base/bytes.h"
#include "bmi/rpc/message.h"

void bmi__rpc_head_split(struct rpc_head *head, uint64_t stream_most, uint64_t together_most)
{
    if (head->stream > stream_most)
        head->flags |= RPC_STREAM_APART;
    if (head->body > 0 && head->stream + head->body > together_most)
        head->flags |= RPC_BODY_APART;
}

size_t bmi__rpc_head_encode(uint8_t bytes[RPC_HEAD_MAX], const struct rpc_head *head)
{
    size_t name = strnlen(head->name, sizeof head->name - 1), room = (name + 7) & ~(size_t)7;
    bytes[0] = (uint8_t)head->kind;
    bytes[1] = RPC_VERSION;
    bytes[2] = (uint8_t)name;
    bytes[3] = 0;
    bmi__put32(bytes + 4, head->flags);
    bmi__put64(bytes + 8, head->stream);
    bmi__put64(bytes + 16, head->body);
    bmi__put32(bytes + 24, head->reply_room);
    bmi__put32(bytes + 28, (uint32_t)head->status);
    memset(bytes + RPC_HEAD, 0, room);
    memcpy(bytes + RPC_HEAD, head->name, name);
    return RPC_HEAD + room;
}

/* Whether the header's parts are those of its kind. */
static bool is_sound(const struct rpc_head *head, size_t name)
{
    if (head->stream > RPC_EXPRESS_MAX || head->body > INT64_MAX / 2 ||
        (head->flags & ~(uint32_t)RPC_FLAGS) != 0 || head->status > 0)
        return false;
    if (head->kind == RPC_REQUEST)
        return name > 0;
    return name == 0 && head->kind == RPC_REPLY;
}

int bmi__rpc_head_decode(const uint8_t *bytes, size_t size, struct rpc_head *head)
{
    if (size < RPC_HEAD || bytes[1] != RPC_VERSION)
        return -1;
    size_t name = bytes[2], room = (name + 7) & ~(size_t)7;
    *head = (struct rpc_head){.kind = (enum rpc_kind)bytes[0],
                              .flags = bmi__get32(bytes + 4),
                              .stream = bmi__get64(bytes + 8),
                              .body = bmi__get64(bytes + 16),
                              .reply_room = bmi__get32(bytes + 24),
                              .status = (int32_t)bmi__get32(bytes + 28)};
    if (!is_sound(head, name) || name >= sizeof head->name || room > size - RPC_HEAD)
        return -1;
    memcpy(head->name, bytes + RPC_HEAD, name);
    if (strlen(head->name) != name)
        return -1;
    size_t left = size - RPC_HEAD - room;
    uint64_t here = (head->flags & RPC_STREAM_APART ? 0 : head->stream) +
                    (head->flags & RPC_BODY_APART ? 0 : head->body);
    return here == left ? (int)(RPC_HEAD + room) : -1;
}
