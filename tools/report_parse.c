/* SPDX-License-Identifier: BSD-3-Clause
 *
 * report_parse.c - see report_parse.h. The text is made by bmi/api/report.c.
 */
#include "report_parse.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Not inttypes.h: the report prints unsigned long long. */
typedef unsigned long long number;

static bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

/* Whether sscanf has come to the end of a line. */
static bool at_end(const char *line, int end)
{
    return end > 0 && line[end] == '\0';
}

/* ---- lines of the sections ------------------------------------------------------------------- */

static void head_parse(struct report *report, char *line)
{
    static const char memory[] = "; memory lent to peers or held for them ";
    const char *at = strstr(line, memory);
    number used, limit;
    int end = 0;

    if (at != NULL &&
        sscanf(at + strlen(memory), "%llu of %llu bytes%n", &used, &limit, &end) == 2) {
        report->memory_used = used;
        report->memory_limit = limit;
    }
}

static void value_parse(struct report *report, char *line)
{
    char *name = line + strspn(line, " ");
    char *blank = strchr(name, ' ');
    number value;
    int end = 0;

    if (blank == NULL || report->value_count == REPORT_VALUES)
        return;
    sscanf(blank, "%llu%n", &value, &end);
    if (!at_end(blank, end))
        return;
    *blank = '\0';
    report->values[report->value_count++] = (struct report_value){name, value};
}

/* Of the names of methods: it stands in many lines of a page, and another user may have sent it. */
static bool is_method(const char *name)
{
    size_t size = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_+-");

    return size > 0 && size <= REPORT_METHOD_NAME && name[size] == '\0';
}

static struct report_method *method_named(struct report *report, const char *name)
{
    for (int i = 0; i < report->method_count; i++) {
        if (strcmp(report->methods[i].name, name) == 0)
            return &report->methods[i];
    }
    if (report->method_count == REPORT_METHODS)
        return NULL;
    report->methods[report->method_count] = (struct report_method){.name = name};
    return &report->methods[report->method_count++];
}

static void numbers_take(uint64_t *to, const number *from, int count)
{
    for (int i = 0; i < count; i++)
        to[i] = from[i];
}

/* A date of the report, in seconds of time(2). */
static uint64_t date_parse(const char *text)
{
    struct tm parts = {.tm_isdst = 0};
    const char *end = strptime(text, "%Y-%m-%dT%H:%M:%SZ", &parts);
    time_t time = end != NULL && *end == '\0' ? timegm(&parts) : 0;

    return time > 0 ? (uint64_t)time : 0;
}

/* The lines of a method have six forms, and begin with its name. */
static void method_parse(struct report *report, char *line)
{
    static const char certificates[] = "certificates expire at ";
    static const char lists[] = "lists of revoked certificates expire at ";
    char *name = line + strspn(line, " ");
    char *text = strstr(name, ": ");
    struct report_method *method;
    number n[11];
    int end = 0;

    if (text == NULL)
        return;
    *text = '\0';
    text += 2;
    if (!is_method(name) || (method = method_named(report, name)) == NULL)
        return;
    if (begins(text, "listens at ") && strlen(text) < REPORT_TEXT)
        method->listen = text + strlen("listens at ");
    else if (begins(text, certificates))
        method->certificates_end_s = date_parse(text + strlen(certificates));
    else if (begins(text, lists))
        method->revocations_end_s = date_parse(text + strlen(lists));
    else if (sscanf(text,
                    "frames %llu out %llu in, bytes %llu out %llu in, %llu writes, %llu reads, "
                    "%llu bytes staged, links %llu (%llu dialled, %llu accepted, %llu failed)%n",
                    &n[0], &n[1], &n[2], &n[3], &n[4], &n[5], &n[6], &n[7], &n[8], &n[9], &n[10],
                    &end) == 11)
        numbers_take(&method->values[METHOD_FRAMES_SENT], n, 11);
    else if (sscanf(text,
                    "%llu puts of %llu bytes, %llu gets of %llu bytes, %llu registrations, "
                    "%llu found%n",
                    &n[0], &n[1], &n[2], &n[3], &n[4], &n[5], &end) == 6)
        numbers_take(&method->values[METHOD_PUTS], n, 6);
    else if (sscanf(text, "%llu handshakes, %llu of them resumed%n", &n[0], &n[1], &end) == 2)
        numbers_take(&method->values[METHOD_HANDSHAKES], n, 2);
    else if (sscanf(text, "%llu links ended for what they sent%n", &n[0], &end) == 1 &&
             at_end(text, end))
        numbers_take(&method->values[METHOD_BAD_FRAMES], n, 1);
}

static void context_parse(struct report *report, char *line)
{
    number reported, immediate, queued, waiters;
    int end = 0;

    sscanf(line, " %*d: %llu reported, %llu immediate, %llu in its queue, %llu threads wait%n",
           &reported, &immediate, &queued, &waiters, &end);
    if (!at_end(line, end))
        return;
    report->contexts++;
    report->queued += queued;
    report->waiters += waiters;
}

/* ---- peers ----------------------------------------------------------------------------------- */

static const char *const states[PEER_STATES] = {
    [PEER_UP] = "up",
    [PEER_CONNECTING] = "connecting",
    [PEER_HANDSHAKE] = "handshake",
    [PEER_NOT_CONNECTED] = "not connected",
    [PEER_CLOSING] = "closing",
    [PEER_GONE] = "gone",
    [PEER_OTHER] = "other",
};

const char *report_peer_state_name(enum report_peer_state state)
{
    return states[state];
}

/* "accepted, up, itself": the first and the last may be missing. */
static enum report_peer_state state_parse(const char *text)
{
    static const char accepted[] = "accepted, ";
    enum report_peer_state state = 0;

    if (begins(text, accepted))
        text += strlen(accepted);
    size_t length = strcspn(text, ",");
    while (state < PEER_OTHER &&
           (strlen(states[state]) != length || strncmp(states[state], text, length) != 0))
        state++;
    return state;
}

/* What stands behind one of the semicolons. */
static void peer_field(struct report_peer *peer, char *text)
{
    number a, b;

    if (begins(text, "identity ") && strlen(text) < REPORT_TEXT)
        peer->identity = text + strlen("identity ");
    else if (begins(text, "sends wait for "))
        peer->waits = true;
    else if (begins(text, "silent for "))
        peer->silent = true;
    else if (sscanf(text, "outstanding %llu sends %llu receives", &a, &b) == 2) {
        peer->values[PEER_OUTSTANDING_SENDS] = a;
        peer->values[PEER_OUTSTANDING_RECEIVES] = b;
    } else if (sscanf(text, "unmatched %llu of %llu bytes", &a, &b) == 2)
        peer->values[PEER_UNMATCHED_BYTES] = b;
    else if (sscanf(text, "unexpected not freed %llu of %llu bytes", &a, &b) == 2)
        peer->values[PEER_UNEXPECTED_BYTES] = b;
    else if (sscanf(text, "errors %llu", &a) == 1)
        peer->values[PEER_ERRORS] = a;
}

/* Returns false if the line is not of a peer. The name is one word. */
static bool peer_line(struct report_peer *peer, char *line)
{
    char *name = line + strspn(line, " ");
    char *state = strchr(name, ' ');
    char *traffic = state != NULL ? strstr(state, ": messages ") : NULL;
    number n[4];

    if (traffic == NULL || state - name > REPORT_TEXT)
        return false;
    *state++ = '\0';
    *traffic = '\0';
    traffic += 2;
    *peer = (struct report_peer){.name = name, .state = state_parse(state)};
    if (sscanf(traffic, "messages %llu out %llu in, bytes %llu out %llu in", &n[0], &n[1], &n[2],
               &n[3]) != 4)
        return false;
    numbers_take(&peer->values[PEER_SENT], n, 4);
    for (char *field = strstr(traffic, "; "); field != NULL;) {
        char *next = strstr(field + 2, "; ");

        if (next != NULL)
            *next = '\0';
        peer_field(peer, field + 2);
        field = next;
    }
    return true;
}

static bool peers_parse(struct report *report, char *line)
{
    struct report_peer peer;

    if (!peer_line(&peer, line))
        return true;
    size_t count = report->peer_count;
    if ((count & (count - 1)) == 0) { /* the room is the next power of two */
        size_t room = count > 0 ? 2 * count : 1;
        struct report_peer *peers = realloc(report->peers, room * sizeof *peers);

        if (peers == NULL)
            return false;
        report->peers = peers;
    }
    report->peers[report->peer_count++] = peer;
    return true;
}

/* ---- the whole ------------------------------------------------------------------------------- */

enum section { IN_HEAD, IN_VALUES, IN_METHODS, IN_CONTEXTS, IN_PEERS, IN_OTHER };

static enum section section_named(const char *line)
{
    if (strcmp(line, "since the start") == 0 || strcmp(line, "at present") == 0)
        return IN_VALUES;
    if (strcmp(line, "methods") == 0)
        return IN_METHODS;
    if (strcmp(line, "contexts") == 0)
        return IN_CONTEXTS;
    return strcmp(line, "peers") == 0 ? IN_PEERS : IN_OTHER;
}

/* Returns false without memory. */
static bool line_parse(struct report *report, enum section *section, char *line)
{
    if (line[0] != ' ' && *section == IN_HEAD)
        head_parse(report, line);
    if (line[0] != ' ') {
        enum section named = section_named(line);

        *section = named == IN_OTHER && *section == IN_HEAD ? IN_HEAD : named;
        return true;
    }
    if (*section == IN_VALUES)
        value_parse(report, line);
    else if (*section == IN_METHODS)
        method_parse(report, line);
    else if (*section == IN_CONTEXTS)
        context_parse(report, line);
    return *section != IN_PEERS || peers_parse(report, line);
}

/* "libbmi 0.2.0, process 1234 (name)". Returns the line behind it, or NULL. */
static char *version_parse(struct report *report, char *text)
{
    char *end = strchr(text, '\n');

    if (end == NULL || !begins(text, "libbmi "))
        return NULL;
    *end = '\0';
    report->version = text + strlen("libbmi ");
    char *comma = strchr(text, ',');
    if (comma != NULL)
        *comma = '\0';
    return strlen(report->version) <= REPORT_VERSION ? end + 1 : NULL;
}

bool report_parse(struct report *report, char *text, size_t size)
{
    static const char last[] = "\nend\n";
    enum section section = IN_HEAD;
    bool memory = true;

    *report = (struct report){.version = NULL};
    if (size < strlen(last) || strlen(text) != size ||
        strcmp(text + size - strlen(last), last) != 0)
        return false;
    char *line = version_parse(report, text);
    while (line != NULL && *line != '\0' && memory) {
        char *end = strchr(line, '\n');

        *end = '\0';
        memory = line_parse(report, &section, line);
        line = end + 1;
    }
    bool whole = line != NULL && memory;
    if (!whole)
        report_release(report);
    return whole;
}

void report_release(struct report *report)
{
    free(report->peers);
    report->peers = NULL;
}
