/* SPDX-License-Identifier: BSD-3-Clause
 *
 * report_find.c - see report_find.h.
 *
 * Any process may give a socket any name. A name that is not exactly that of a report is passed
 * over; whether the right process listens there is checked when the report is read.
 */
#include "report_find.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bmi.h"

struct search {
    long process; /* 0: all */
    struct report_source *sources;
    int count, most;
    uint64_t skipped;
};

/* Whether a process runs as our user, or we are root. Others would not answer. */
static bool is_readable(long process)
{
    long user = report_process_user(process);

    return user >= 0 && (geteuid() == 0 || user == (long)geteuid());
}

/* Of the names of instances: bmi_instance_open accepts no other ones. */
static bool is_instance(const char *name)
{
    size_t size = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-");

    return size > 0 && size < REPORT_INSTANCE_SIZE && name[size] == '\0';
}

/* Reads the name of a report's socket, which is written in one way only. */
static bool name_parse(const char *name, struct report_source *source)
{
    char same[REPORT_SOCKET_SIZE];
    int end = 0;

    *source = (struct report_source){.fd = -1};
    if (sscanf(name, BMI_REPORT_NAME "%n", &source->process, &end) != 1 || source->process <= 0)
        return false;
    if (name[end] == '-' && is_instance(name + end + 1))
        strcpy(source->instance, name + end + 1);
    report_socket_name(source, same);
    return strcmp(name, same) == 0;
}

/* A line of /proc/net/unix, if a report's socket listens there. */
static bool line_parse(char *line, struct report_source *source)
{
    enum { LISTENS = 0x10000 }; /* __SO_ACCEPTCON of the kernel */
    unsigned flags;
    int name = 0;

    line[strcspn(line, "\n")] = '\0';
    return sscanf(line, "%*s %*s %*s %x %*s %*s %*s @%n", &flags, &name) == 1 && name > 0 &&
           (flags & LISTENS) != 0 && name_parse(line + name, source);
}

static void source_add(struct search *search, const struct report_source *found)
{
    int known = 0, further = 0; /* of the same process */

    for (int i = 0; i < search->count; i++) {
        const struct report_source *source = &search->sources[i];

        if (source->process != found->process)
            continue;
        if (strcmp(source->instance, found->instance) == 0)
            return;
        known++;
        further += source->instance[0] != '\0';
    }
    if (search->process == 0 && known == 0 && !is_readable(found->process))
        return;
    if (search->count == search->most ||
        (found->instance[0] != '\0' && further == REPORT_INSTANCES))
        search->skipped++;
    else
        search->sources[search->count++] = *found;
}

static int order(const void *a, const void *b)
{
    const struct report_source *one = a, *other = b;

    return one->process != other->process ? (one->process > other->process ? 1 : -1)
                                          : strcmp(one->instance, other->instance);
}

int reports_find(long process, struct report_source *sources, int most, uint64_t *skipped)
{
    struct search search = {.process = process, .sources = sources, .most = most};
    struct report_source found;
    FILE *file = fopen("/proc/net/unix", "re");
    char *line = NULL;
    size_t room = 0;

    while (file != NULL && getline(&line, &room, file) > 0) {
        if (line_parse(line, &found) && (process == 0 || found.process == process))
            source_add(&search, &found);
    }
    free(line);
    if (file != NULL)
        fclose(file);
    qsort(sources, (size_t)search.count, sizeof *sources, order);
    *skipped = search.skipped;
    return search.count;
}
