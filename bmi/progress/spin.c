/* SPDX-License-Identifier: BSD-3-Clause
 * spin.c - see spin.h. */
#include "bmi/progress/spin.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bmi/base/instance.h"
#include "bmi/base/settings.h"

enum { SKIP_MOST = 63, SAMPLE_NS = 10000000 };

struct bmi__spin {
    unsigned skip, backoff; /* waits that go without a spin: left, and after the next failure */
    uint64_t sampled_ns;    /* when the load was last read */
    bool crowded_once;      /* at that time, more threads were runnable than there are CPUs */
    bool crowded;           /* twice in a row; one reading counts threads that run for 50 us, too */
    long cpus;              /* online at the start: to read that takes as long as the load does */
};

/* From /proc/loadavg, "0.20 0.18 0.12 3/80 11206": three threads are runnable. */
static bool is_crowded(struct bmi__spin *spin)
{
    char text[128];
    int fd = open("/proc/loadavg", O_RDONLY | O_CLOEXEC);
    ssize_t length = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    if (fd >= 0)
        close(fd);
    if (length <= 0)
        return false;
    text[length] = '\0';
    char *slash = strchr(text, '/');
    while (slash != NULL && slash > text && slash[-1] != ' ')
        slash--;
    return slash != NULL && strtol(slash, NULL, 10) > spin->cpus;
}

uint64_t bmi__spin_window(struct bmi_instance *instance, uint64_t now_ns)
{
    struct bmi__spin *spin = instance->spin;
    uint64_t window_ns = (uint64_t)bmi__setting(instance, SETTING_SPIN) * 1000;
    if (window_ns == 0)
        return 0;
    if (spin->skip > 0) {
        spin->skip--;
        return 0;
    }
    if (now_ns - spin->sampled_ns > SAMPLE_NS) {
        spin->sampled_ns = now_ns;
        bool crowded = is_crowded(spin);
        spin->crowded = crowded && spin->crowded_once;
        spin->crowded_once = crowded;
    }
    if (!spin->crowded)
        return window_ns;
    bmi__spin_failed(instance); /* so that an idle program does not read the load at each wait */
    return 0;
}

void bmi__spin_paid(struct bmi_instance *instance)
{
    struct bmi__spin *spin = instance->spin;
    spin->skip = spin->backoff = 0;
}

void bmi__spin_failed(struct bmi_instance *instance)
{
    struct bmi__spin *spin = instance->spin;
    spin->backoff = spin->backoff * 2 + 1;
    if (spin->backoff > SKIP_MOST)
        spin->backoff = SKIP_MOST;
    spin->skip = spin->backoff;
}

void bmi__spin_slept(struct bmi_instance *instance, uint64_t ns)
{
    struct bmi__spin *spin = instance->spin;
    if (!spin->crowded && ns < (uint64_t)bmi__setting(instance, SETTING_SPIN) * 1000)
        bmi__spin_paid(instance);
}

int bmi__spin_open(struct bmi_instance *instance)
{
    struct bmi__spin *spin = calloc(1, sizeof *spin);
    if (spin == NULL)
        return -ENOMEM;
    spin->cpus = sysconf(_SC_NPROCESSORS_ONLN);
    instance->spin = spin;
    return 0;
}

void bmi__spin_close(struct bmi_instance *instance)
{
    free(instance->spin);
    instance->spin = NULL;
}
