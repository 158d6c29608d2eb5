/* SPDX-License-Identifier: BSD-3-Clause
 *
 * head.c - see head.h.
 */
#include "bmi/rpc/head.h"

#include <endian.h>
#include <string.h>

#include "bmi/rpc/message.h"

static void put32(uint8_t *bytes, uint32_t value)
{
    value = htole32(value);
    memcpy(bytes, &value, sizeof value);
}

static void put64(uint8_t *bytes, uint64_t value)
{
    value = htole64(value);
    memcpy(bytes, &value, sizeof value);
}

static uint32_t get32(const uint8_t *bytes)
{
    uint32_t value;
    memcpy(&value, bytes, sizeof value);
    return le32toh(value);
}

static uint64_t get64(const uint8_t *bytes)
{
    uint64_t value;
    memcpy(&value, bytes, sizeof value);
    return le64toh(value);
}

size_t bmi__rpc_head_encode(uint8_t bytes[RPC_HEAD_MAX], const struct rpc_head *head)
{
    size_t name = strnlen(head->name, sizeof head->name - 1), room = (name + 7) & ~(size_t)7;
    bytes[0] = (uint8_t)head->kind;
    bytes[1] = RPC_VERSION;
    bytes[2] = (uint8_t)name;
    bytes[3] = 0;
    put32(bytes + 4, head->flags);
    put64(bytes + 8, head->stream);
    put64(bytes + 16, head->body);
    put32(bytes + 24, head->reply_room);
    put32(bytes + 28, (uint32_t)head->status);
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
    return name == 0 && (head->kind == RPC_REPLY || head->kind == RPC_CANCEL);
}

int bmi__rpc_head_decode(const uint8_t *bytes, size_t size, struct rpc_head *head)
{
    if (size < RPC_HEAD || bytes[1] != RPC_VERSION)
        return -1;
    size_t name = bytes[2], room = (name + 7) & ~(size_t)7;
    *head = (struct rpc_head){.kind = (enum rpc_kind)bytes[0],
                              .flags = get32(bytes + 4),
                              .stream = get64(bytes + 8),
                              .body = get64(bytes + 16),
                              .reply_room = get32(bytes + 24),
                              .status = (int32_t)get32(bytes + 28)};
    if (!is_sound(head, name) || name >= sizeof head->name || room > size - RPC_HEAD)
        return -1;
    memcpy(head->name, bytes + RPC_HEAD, name);
    if (strlen(head->name) != name)
        return -1;
    if (head->kind == RPC_CANCEL)
        return RPC_HEAD;
    size_t left = size - RPC_HEAD - room;
    uint64_t here = (head->flags & RPC_STREAM_APART ? 0 : head->stream) +
                    (head->flags & RPC_BODY_APART ? 0 : head->body);
    return here == left ? (int)(RPC_HEAD + room) : -1;
}
