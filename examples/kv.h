/* SPDX-License-Identifier: BSD-3-Clause
 *
 * kv.h - the messages between kv_client and kv_server. docs/request-reply.md explains them.
 */
#ifndef KV_H
#define KV_H

#include <stdint.h>

enum { KV_REQUEST_TAG = 1, KV_KEY_MAX = 47, KV_VALUE_MAX = 64 << 20, KV_DEADLINE_MS = 60000 };
enum { KV_PUT, KV_GET };

struct kv_request { /* unexpected, under KV_REQUEST_TAG */
    int32_t operation;
    int32_t tag; /* of the replies and the value; taken by the client */
    int64_t size;
    char key[KV_KEY_MAX + 1];
};

struct kv_reply { /* put: one before the value, one after it; get: one, then the value */
    int32_t error;
    int32_t unused;
    int64_t size;
};

#endif
