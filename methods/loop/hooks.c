/* SPDX-License-Identifier: BSD-3-Clause
 *
 * hooks.c - the test hooks of the loop method; see loop_test.h.
 *
 * Each sets fields of a network under its lock, and marks the links ready that may move again
 * because of it.
 */
#include <errno.h>
#include <string.h>

#include "loop.h"

/* The method's first network, locked. Of a method that is none of ours, loop's. */
static struct loop_network *network_lock(const struct bmi_method *method)
{
    unsigned which = LOOP_NETWORKS - 1;
    while (which > 0 && loop_networks[which].table != method)
        which--;
    pthread_mutex_lock(&loop_networks[which].lock);
    return &loop_networks[which];
}

static void links_ready_locked(struct loop_network *network)
{
    for (struct loop_link *link = network->links; link != NULL; link = link->next)
        loop_link_ready_locked(link);
}

void bmi__loop_reset(const struct bmi_method *method)
{
    struct loop_network *network = network_lock(method);
    memset(&network->hooks, 0, sizeof network->hooks);
    if (!network->running)
        network->table->limits = network->limits;
    links_ready_locked(network);
    pthread_mutex_unlock(&network->lock);
}

void bmi__loop_delay(const struct bmi_method *method, unsigned delay_ms)
{
    struct loop_network *network = network_lock(method);
    network->hooks.delay_ms = delay_ms;
    pthread_mutex_unlock(&network->lock);
}

void bmi__loop_piece(const struct bmi_method *method, size_t bytes)
{
    struct loop_network *network = network_lock(method);
    network->hooks.piece = bytes;
    pthread_mutex_unlock(&network->lock);
}

void bmi__loop_fail(const struct bmi_method *method, enum bmi__loop_failure place, unsigned nth,
                    int error)
{
    struct loop_network *network = network_lock(method);
    network->hooks.failures[place] = (struct loop_failure){.countdown = nth, .status = -error};
    pthread_mutex_unlock(&network->lock);
}

void bmi__loop_cut(const struct bmi_method *method, int error)
{
    struct loop_network *network = network_lock(method);
    for (struct loop_link *link = network->links; link != NULL; link = link->next)
        link->doom = -error;
    links_ready_locked(network);
    pthread_mutex_unlock(&network->lock);
}

void bmi__loop_refuse_memory(const struct bmi_method *method, bool on)
{
    struct loop_network *network = network_lock(method);
    network->hooks.refuse_memory = on;
    pthread_mutex_unlock(&network->lock);
}

static void hold_set(const struct bmi_method *method, unsigned directions, bool held,
                     uint64_t body_bytes)
{
    struct loop_network *network = network_lock(method);
    static const unsigned ways[2] = {BMI__LOOP_FROM_DIALLER, BMI__LOOP_FROM_ACCEPTOR};
    for (unsigned way = 0; way < 2; way++)
        if (directions & ways[way]) {
            network->hooks.held[way] = held;
            network->hooks.allowed[way] = body_bytes;
        }
    links_ready_locked(network);
    pthread_mutex_unlock(&network->lock);
}

void bmi__loop_hold(const struct bmi_method *method, unsigned directions, uint64_t body_bytes)
{
    hold_set(method, directions, true, body_bytes);
}

void bmi__loop_release(const struct bmi_method *method, unsigned directions)
{
    hold_set(method, directions, false, 0);
}

void bmi__loop_strangers(const struct bmi_method *method, bool on)
{
    struct loop_network *network = network_lock(method);
    network->hooks.strangers = on;
    pthread_mutex_unlock(&network->lock);
}

int bmi__loop_limits(const struct bmi_method *method, bmi_size_t eager_max,
                     bmi_size_t unexpected_max, bmi_size_t frame_max)
{
    struct loop_network *network = network_lock(method);
    struct bmi_method_limits *limits = &network->table->limits;
    bool started = network->running;
    if (!started) {
        limits->eager_max = eager_max > 0 ? eager_max : limits->eager_max;
        limits->unexpected_max = unexpected_max > 0 ? unexpected_max : limits->unexpected_max;
        limits->frame_max = frame_max > 0 ? frame_max : limits->frame_max;
    }
    pthread_mutex_unlock(&network->lock);
    return started ? -EBUSY : 0;
}
