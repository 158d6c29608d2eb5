/* SPDX-License-Identifier: BSD-3-Clause
 *
 * timing.c - the timing model, and the faults that tests inject.
 *
 * Each port has one link, each direction shared by all its peers. A message takes its time on the
 * sender's link and on the receiver's, both at once, each after the traffic that is on it already;
 * it becomes visible when its last byte has arrived. All peers of a port write the time when its
 * link is free, in shared memory: an invalid value there delays messages by a bounded time, no
 * more.
 */
#include <errno.h>

#include "internal.h"

int nic_options_preset(struct nic_options *options, const char *name)
{
    static const struct nic_timing OFF = {0};
    /* 2 Gb/s, 7 us one way for a short message. Users of GM measured 3 us a page for registering
     * and 200 us for deregistering on its hosts. */
    static const struct nic_timing MYRINET2000 = {.link_bytes_per_s = 250000000,
                                                  .latency_ns = 6000,
                                                  .host_send_ns = 400,
                                                  .host_receive_ns = 400,
                                                  .register_ns = 1000,
                                                  .register_page_ns = 3000,
                                                  .deregister_ns = 200000,
                                                  .deregister_page_ns = 0};
    if (strcmp(name, "off") == 0) {
        options->timing = OFF;
    } else if (strcmp(name, "myrinet2000") == 0) {
        options->timing = MYRINET2000;
    } else {
        return -EINVAL;
    }
    return 0;
}

void nic__spend(uint64_t ns)
{
    if (ns == 0)
        return;
    uint64_t end = nic__now() + ns;
    while (nic__now() < end)
        ;
}

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Reserves time on the receiver's link. Returns when it ends. */
static uint64_t receiver_reserve(struct nic_shared_wire *wire, uint64_t start, uint64_t duration)
{
    const uint64_t FAR_NS = 10000000000u;
    uint64_t free_ns = atomic_load_explicit(&wire->free_ns, memory_order_relaxed), end;
    do {
        uint64_t begin = free_ns > start + FAR_NS ? start : later(free_ns, start);
        end = begin + duration;
    } while (!atomic_compare_exchange_weak(&wire->free_ns, &free_ns, end));
    return end;
}

uint64_t nic__wire_reserve(struct nic_peer *peer, uint64_t length, uint64_t now, uint64_t *next_ns)
{
    struct nic_port *port = peer->port;
    const struct nic_timing *timing = &port->options.timing;
    uint64_t duration = 0, end = now;
    if (timing->link_bytes_per_s != 0)
        duration = (uint64_t)((double)length * 1e9 / (double)timing->link_bytes_per_s);
    bmi_lock_take(&port->wire_lock);
    uint64_t start = later(now, port->wire_free_ns);
    port->wire_free_ns = end = start + duration;
    bmi_lock_give(&port->wire_lock);
    if (peer->their_wire != NULL && duration != 0)
        end = later(end, receiver_reserve(peer->their_wire, start, duration));
    *next_ns = end - duration;
    return end + timing->latency_ns;
}

bool nic__fault_drops(struct nic_peer *peer)
{
    if (peer->faults.drop_every == 0 || ++peer->fault_count % peer->faults.drop_every != 0)
        return false;
    nic__count(&peer->port->counters.lost, 1);
    return true;
}

void nic_set_faults(struct nic_port *port, struct nic_peer *peer, const struct nic_faults *faults)
{
    bmi_lock_take(&port->lock);
    if (peer == NULL)
        port->faults = *faults;
    for (struct nic_peer *each = port->peers; each != NULL; each = each->next) {
        if (peer != NULL && each != peer)
            continue;
        bmi_lock_take(&each->lock);
        each->faults = *faults;
        bmi_lock_give(&each->lock);
    }
    bmi_lock_give(&port->lock);
    nic__attention(port);
}
