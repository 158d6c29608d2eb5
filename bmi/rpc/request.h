/* SPDX-License-Identifier: BSD-3-Clause
 *
 * request.h - a request that is served: for serve.c, which does so, and request.c.
 */
#ifndef BMI_RPC_REQUEST_H
#define BMI_RPC_REQUEST_H

#include "bmi/rpc/exchange.h"
#include "bmi/task.h"

struct forwarding;
struct service;

enum stage {
    ARRIVED, /* nothing was looked at */
    STREAM,  /* its stream travels apart and is being received */
    UNPACK,  /* the service unpacks next */
    UNPACKING,
    DEFERRED, /* the program unpacks, later */
    BODY,     /* its body is being received */
    READY,    /* `run` is queued */
    RUNNING,
    FORWARDED,
    ENDING /* by the service, or by the library: the rest of its messages is awaited */
};

struct bmi_rpc_request {
    struct exchange exchange; /* first */
    enum stage stage; /* peer's lock; the rest is the poller's, or of the thread that runs it */
    struct service *service; /* NULL: none */
    BMI_addr_t address;
    void *bytes; /* of the header's message, lent from the core */
    struct rpc_head head;
    int head_length;
    uint8_t *stream; /* that travels apart */
    struct bmi_message arguments;
    struct bmi_message *reply;
    struct forwarding *forwarding; /* NULL: not forwarded */
    void *data;
    struct bmi_deferred run; /* of `run`, outside of all locks */
    struct bmi_task task;    /* BMI_RPC_BLOCKING */
    struct bmi_timer timer;  /* poller: the service's time-out */
    enum stage waits_in;     /* poller: the stage that the timer is set for; ARRIVED: not set */
    int steps;               /* poller: of that time, which have gone by */
    int status;              /* with which it ends: a negated errno or a BMI error */
    bool cancel_arrived;     /* peer's lock */
    bool timed_out;          /* peer's lock: the timer has expired */
    bool reply_withdrawn;    /* poller: the time-out of the reply is over */
    bool answered;           /* the reply was sent, or there is none to send */
    atomic_bool taken;       /* bmi_rpc_reply, bmi_rpc_fail, or bmi_rpc_forward ends it */
    bool service_knows;      /* a function of the service was called */
    bool told;               /* `cancelled`, or that of the forwarding, was called or is to be */
    bool resumed;            /* bmi_rpc_resume was called before `arrived` had returned */
    atomic_bool is_cancelled;
    void *list_buffer;
    bmi_size_t list_size;
    uint8_t reply_head[RPC_HEAD_MAX];
};

/* Counts the requests that are queued or run as tasks. */
void bmi__requests_add(struct bmi_instance *instance, int change);

#endif
