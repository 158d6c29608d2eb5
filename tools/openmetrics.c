/* SPDX-License-Identifier: BSD-3-Clause
 *
 * openmetrics.c - see openmetrics.h.
 *
 * All samples of a metric stand together, so each table below is gone through once for all
 * instances. Values of labels come from outside: they are made valid UTF-8 without control
 * characters, and escaped. No two samples have the same labels: peers of one name are added up, and
 * the metric of the process itself, bmi_build_info, has one sample for all of its instances.
 */
#include "openmetrics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "line.h"

enum kind { GAUGE, COUNTER, INFO };

struct family {
    const char *name; /* without the suffix of its kind */
    enum kind kind;
    const char *unit, *help;
};

static const char *const suffixes[] = {[GAUGE] = "", [COUNTER] = "_total", [INFO] = "_info"};

/* ---- tables ---------------------------------------------------------------------------------- */

static const struct family up = {"bmi_up", GAUGE, "",
                                 "Whether this instance of the process has sent its report."};
static const struct family build = {"bmi_build", INFO, "", "The libbmi that the process runs."};
static const struct family listens = {"bmi_listen", INFO, "",
                                      "An address that the process listens at."};
static const struct family memory_used = {
    "bmi_memory_used_bytes", GAUGE, "bytes",
    "Memory lent to peers, or held for messages that the program has not taken."};
static const struct family memory_limit = {"bmi_memory_limit_bytes", GAUGE, "bytes",
                                           "The limit of that memory: the setting total_memory."};

/* Totals and gauges: lines of the report. */
static const struct {
    const char *line;
    struct family family;
} totals[] = {
    {"messages_sent", {"bmi_messages_sent", COUNTER, "", "Expected messages sent."}},
    {"messages_received", {"bmi_messages_received", COUNTER, "", "Expected messages received."}},
    {"bytes_sent", {"bmi_sent_bytes", COUNTER, "bytes", "Bodies of messages sent."}},
    {"bytes_received", {"bmi_received_bytes", COUNTER, "bytes", "Bodies of messages received."}},
    {"unexpected_sent", {"bmi_unexpected_messages_sent", COUNTER, "", "Unexpected messages sent."}},
    {"unexpected_received",
     {"bmi_unexpected_messages_received", COUNTER, "", "Unexpected messages received."}},
    {"eager_sent",
     {"bmi_eager_messages_sent", COUNTER, "", "Expected messages sent without a request."}},
    {"rendezvous_sent",
     {"bmi_rendezvous_messages_sent", COUNTER, "", "Expected messages sent after a request."}},
    {"announced_sent",
     {"bmi_announced_messages_sent", COUNTER, "",
      "Expected messages sent to a receive that the peer had announced."}},
    {"announcements",
     {"bmi_receives_announced", COUNTER, "", "Receives announced to their senders."}},
    {"puts", {"bmi_puts", COUNTER, "", "Writes to memory of a peer."}},
    {"put_bytes", {"bmi_put_bytes", COUNTER, "bytes", "Bytes of these writes."}},
    {"gets", {"bmi_gets", COUNTER, "", "Reads from memory of a peer."}},
    {"get_bytes", {"bmi_get_bytes", COUNTER, "bytes", "Bytes of these reads."}},
    {"copies", {"bmi_copies", COUNTER, "", "Bodies copied through memory of the library."}},
    {"copied_bytes", {"bmi_copied_bytes", COUNTER, "bytes", "Bytes of these bodies."}},
    {"credit_waits",
     {"bmi_credit_waits", COUNTER, "", "Sends that had to wait for memory of the peer."}},
    {"connects", {"bmi_connects", COUNTER, "", "Connections made to peers."}},
    {"reconnects", {"bmi_reconnects", COUNTER, "", "Connections made again after a loss."}},
    {"accepts", {"bmi_accepts", COUNTER, "", "Connections accepted from peers."}},
    {"errors",
     {"bmi_operation_errors", COUNTER, "", "Operations that failed, without cancelled ones."}},
    {"cancels", {"bmi_operation_cancels", COUNTER, "", "Operations cancelled."}},
    {"outstanding_sends", {"bmi_outstanding_sends", GAUGE, "", "Sends posted and not complete."}},
    {"outstanding_receives",
     {"bmi_outstanding_receives", GAUGE, "", "Receives posted and not complete."}},
    {"unmatched_messages",
     {"bmi_unmatched_messages", GAUGE, "", "Messages whose receive is not posted yet."}},
    {"unmatched_bytes", {"bmi_unmatched_bytes", GAUGE, "bytes", "Memory held for these messages."}},
    {"unexpected_waiting",
     {"bmi_unexpected_waiting_messages", GAUGE, "",
      "Unexpected messages not fetched or not freed by the program."}},
    {"unexpected_bytes",
     {"bmi_unexpected_waiting_bytes", GAUGE, "bytes", "Memory held for these messages."}},
};

static const struct family method_values[METHOD_VALUES] = {
    [METHOD_FRAMES_SENT] = {"bmi_method_frames_sent", COUNTER, "", "Frames sent."},
    [METHOD_FRAMES_RECEIVED] = {"bmi_method_frames_received", COUNTER, "", "Frames received."},
    [METHOD_BYTES_SENT] = {"bmi_method_sent_bytes", COUNTER, "bytes",
                           "Bytes sent on the wire, headers included."},
    [METHOD_BYTES_RECEIVED] = {"bmi_method_received_bytes", COUNTER, "bytes",
                               "Bytes received on the wire, headers included."},
    [METHOD_WRITES] = {"bmi_method_writes", COUNTER, "", "System calls that sent frames."},
    [METHOD_READS] = {"bmi_method_reads", COUNTER, "", "System calls that received frames."},
    [METHOD_STAGED] = {"bmi_method_copied_bytes", COUNTER, "bytes",
                       "Received bytes that were copied into place."},
    [METHOD_LINKS] = {"bmi_method_connections", GAUGE, "", "Open connections."},
    [METHOD_LINKS_OPENED] = {"bmi_method_connections_opened", COUNTER, "",
                             "Connections begun by this process."},
    [METHOD_LINKS_ACCEPTED] = {"bmi_method_connections_accepted", COUNTER, "",
                               "Connections accepted."},
    [METHOD_LINKS_FAILED] = {"bmi_method_connections_failed", COUNTER, "",
                             "Connections that failed."},
    [METHOD_PUTS] = {"bmi_method_puts", COUNTER, "", "Remote writes by this process."},
    [METHOD_PUT_BYTES] = {"bmi_method_put_bytes", COUNTER, "bytes", "Bytes of these writes."},
    [METHOD_GETS] = {"bmi_method_gets", COUNTER, "", "Remote reads by this process."},
    [METHOD_GET_BYTES] = {"bmi_method_get_bytes", COUNTER, "bytes", "Bytes of these reads."},
    [METHOD_REGISTRATIONS] = {"bmi_method_registrations", COUNTER, "",
                              "Registrations of memory with the network."},
    [METHOD_REGISTRATION_HITS] = {"bmi_method_registration_hits", COUNTER, "",
                                  "Uses of memory that was registered already."},
    [METHOD_HANDSHAKES] = {"bmi_method_handshakes", COUNTER, "",
                           "Handshakes that proved identities."},
    [METHOD_HANDSHAKES_RESUMED] = {"bmi_method_handshakes_resumed", COUNTER, "",
                                   "Of these, those by a ticket of an earlier one."},
    [METHOD_BAD_FRAMES] = {"bmi_method_connections_rejected", COUNTER, "",
                           "Connections ended because the peer sent a bad frame."},
};

static const struct family certificates = {
    "bmi_certificates_expiry_timestamp_seconds", GAUGE, "seconds",
    "When the first of the certificates of this process, or of its authorities, expires."};
static const struct family revocations = {
    "bmi_revocations_expiry_timestamp_seconds", GAUGE, "seconds",
    "When the first of the lists of revoked certificates expires."};

static const struct family contexts = {"bmi_contexts", GAUGE, "", "Open contexts."};
static const struct family queued = {"bmi_completions_waiting", GAUGE, "",
                                     "Completed operations that no test call has reported yet."};
static const struct family waiters = {"bmi_waiting_threads", GAUGE, "",
                                      "Threads that wait in a test call."};
static const struct family peers = {"bmi_peers", GAUGE, "", "Known peers by state."};
static const struct family peers_waiting = {
    "bmi_peers_waiting", GAUGE, "", "Peers to which sends wait for memory or a connection."};
static const struct family peers_silent = {
    "bmi_peers_silent", GAUGE, "", "Peers that are silent while operations are outstanding."};

static const struct family peer_connected = {"bmi_peer_connected", GAUGE, "",
                                             "Whether the peer is connected."};
static const struct family peer_identity = {"bmi_peer_identity", INFO, "",
                                            "The name that the peer has proved."};
static const struct family peer_values[PEER_VALUES] = {
    [PEER_SENT] = {"bmi_peer_messages_sent", COUNTER, "", "Messages sent to the peer."},
    [PEER_RECEIVED] = {"bmi_peer_messages_received", COUNTER, "",
                       "Messages received from the peer."},
    [PEER_BYTES_SENT] = {"bmi_peer_sent_bytes", COUNTER, "bytes", "Bodies sent to the peer."},
    [PEER_BYTES_RECEIVED] = {"bmi_peer_received_bytes", COUNTER, "bytes",
                             "Bodies received from the peer."},
    [PEER_ERRORS] = {"bmi_peer_operation_errors", COUNTER, "",
                     "Operations with the peer that failed."},
    [PEER_OUTSTANDING_SENDS] = {"bmi_peer_outstanding_sends", GAUGE, "",
                                "Sends to the peer that are not complete."},
    [PEER_OUTSTANDING_RECEIVES] = {"bmi_peer_outstanding_receives", GAUGE, "",
                                   "Receives from the peer that are not complete."},
    [PEER_UNMATCHED_BYTES] = {"bmi_peer_unmatched_bytes", GAUGE, "bytes",
                              "Memory held for messages of the peer without a receive."},
    [PEER_UNEXPECTED_BYTES] = {"bmi_peer_unexpected_waiting_bytes", GAUGE, "bytes",
                               "Memory held for unexpected messages of the peer."},
};

static const struct family seconds = {"bmi_metrics_collection_duration_seconds", GAUGE, "seconds",
                                      "How long it took to read the reports."};
static const struct family failed = {
    "bmi_metrics_reports_failed", COUNTER, "",
    "Reports that were not whole, too large, too late, or in the name of another process."};
static const struct family skipped = {"bmi_metrics_reports_skipped", GAUGE, "",
                                      "Reports beyond the limits, which were not asked for."};

/* ---- instances ------------------------------------------------------------------------------- */

bool metrics_take(struct metrics_instance *instance, const struct report_source *source)
{
    if (source->status == REPORT_ABSENT || source->status == REPORT_DENIED ||
        source->status == REPORT_CLOSED || source->status == REPORT_FOREIGN)
        return false;
    *instance = (struct metrics_instance){.process = source->process};
    strcpy(instance->name, source->instance);
    bool exists = report_process_name(source->process, instance->program);
    if (exists && source->status == REPORT_WHOLE)
        instance->up = report_parse(&instance->report, source->text, source->size);
    return exists;
}

/* ---- lines ----------------------------------------------------------------------------------- */

struct page {
    FILE *out;
    const struct metrics *metrics;
};

/* OpenMetrics describes a family without the suffix of its samples; the older format has no infos,
 * and describes samples. */
static void family_begin(const struct page *page, const struct family *family)
{
    bool plain = page->metrics->plain;
    const char *suffix = plain ? suffixes[family->kind] : "";
    const char *kind = family->kind == COUNTER          ? "counter"
                       : family->kind == INFO && !plain ? "info"
                                                        : "gauge";

    fprintf(page->out, "# TYPE %s%s %s\n", family->name, suffix, kind);
    if (!plain && *family->unit != '\0')
        fprintf(page->out, "# UNIT %s %s\n", family->name, family->unit);
    fprintf(page->out, "# HELP %s%s %s\n", family->name, suffix, family->help);
}

static void label(const struct page *page, const char *name, const char *value)
{
    fprintf(page->out, ",%s=\"", name);
    escaped_write(page->out, value, strlen(value), "\"\\");
    putc('"', page->out);
}

/* The name of a sample and the labels of its process, up to further labels and the value. */
static void process_sample_begin(const struct page *page, const struct family *family,
                                 const struct metrics_instance *instance)
{
    fprintf(page->out, "%s%s{pid=\"%ld\"", family->name, suffixes[family->kind], instance->process);
    label(page, "process", instance->program);
}

/* As above, of an instance. Not `instance`: Prometheus names its target by that label. The default
 * one has no such label, which Prometheus takes for an empty one. */
static void sample_begin(const struct page *page, const struct family *family,
                         const struct metrics_instance *instance)
{
    process_sample_begin(page, family, instance);
    if (instance->name[0] != '\0')
        label(page, "bmi_instance", instance->name);
}

static void sample_end(const struct page *page, uint64_t value)
{
    fprintf(page->out, "} %llu\n", (unsigned long long)value);
}

/* A sample of each instance that is up. `at` is where the value is in a report. */
static void simple_print(const struct page *page, const struct family *family, size_t at)
{
    family_begin(page, family);
    for (int i = 0; i < page->metrics->count; i++) {
        const struct metrics_instance *instance = &page->metrics->instances[i];

        if (!instance->up)
            continue;
        sample_begin(page, family, instance);
        sample_end(page, *(const uint64_t *)((const char *)&instance->report + at));
    }
}

/* ---- instances and methods ------------------------------------------------------------------- */

static void up_print(const struct page *page)
{
    family_begin(page, &up);
    for (int i = 0; i < page->metrics->count; i++) {
        sample_begin(page, &up, &page->metrics->instances[i]);
        sample_end(page, page->metrics->instances[i].up);
    }
}

/* Of each process, by its first instance that is up. */
static void build_print(const struct page *page)
{
    long printed = 0;

    family_begin(page, &build);
    for (int i = 0; i < page->metrics->count; i++) {
        const struct metrics_instance *instance = &page->metrics->instances[i];

        if (!instance->up || instance->process == printed)
            continue;
        printed = instance->process;
        process_sample_begin(page, &build, instance);
        label(page, "version", instance->report.version);
        sample_end(page, 1);
    }
}

static void total_print(const struct page *page, const struct family *family, const char *line)
{
    family_begin(page, family);
    for (int i = 0; i < page->metrics->count; i++) {
        const struct metrics_instance *instance = &page->metrics->instances[i];
        const struct report_value *values = instance->report.values;
        int at = 0;

        while (at < instance->report.value_count && strcmp(values[at].name, line) != 0)
            at++;
        if (!instance->up || at == instance->report.value_count)
            continue;
        sample_begin(page, family, instance);
        sample_end(page, values[at].value);
    }
}

/* The value of a method that a family is about. Returns false if it has none. */
static bool method_value(const struct family *family, const struct report_method *method,
                         uint64_t *value)
{
    if (family == &listens)
        *value = method->listen != NULL;
    else if (family == &certificates)
        *value = method->certificates_end_s;
    else if (family == &revocations)
        *value = method->revocations_end_s;
    else {
        *value = method->values[family - method_values];
        return true;
    }
    return *value != 0;
}

static void method_print(const struct page *page, const struct family *family)
{
    family_begin(page, family);
    for (int i = 0; i < page->metrics->count; i++) {
        const struct metrics_instance *instance = &page->metrics->instances[i];

        for (int j = 0; instance->up && j < instance->report.method_count; j++) {
            const struct report_method *method = &instance->report.methods[j];
            uint64_t value;

            if (!method_value(family, method, &value))
                continue;
            sample_begin(page, family, instance);
            label(page, "method", method->name);
            if (family == &listens)
                label(page, "address", method->listen);
            sample_end(page, value);
        }
    }
}

/* ---- peers ----------------------------------------------------------------------------------- */

static void states_print(const struct page *page)
{
    family_begin(page, &peers);
    for (int i = 0; i < page->metrics->count; i++) {
        const struct metrics_instance *instance = &page->metrics->instances[i];
        uint64_t counts[PEER_STATES] = {0};

        for (size_t j = 0; j < instance->report.peer_count; j++)
            counts[instance->report.peers[j].state]++;
        for (enum report_peer_state state = 0; instance->up && state < PEER_STATES; state++) {
            sample_begin(page, &peers, instance);
            label(page, "state", report_peer_state_name(state));
            sample_end(page, counts[state]);
        }
    }
}

/* How many peers are silent, or have sends that wait. */
static void flags_print(const struct page *page, const struct family *family, bool silent)
{
    family_begin(page, family);
    for (int i = 0; i < page->metrics->count; i++) {
        const struct metrics_instance *instance = &page->metrics->instances[i];
        uint64_t count = 0;

        for (size_t j = 0; j < instance->report.peer_count; j++)
            count += silent ? instance->report.peers[j].silent : instance->report.peers[j].waits;
        if (!instance->up)
            continue;
        sample_begin(page, family, instance);
        sample_end(page, count);
    }
}

static int peer_order(const void *a, const void *b)
{
    return strcmp(((const struct report_peer *)a)->name, ((const struct report_peer *)b)->name);
}

/* Sorts the peers and adds up those of one name: two connections of one host and port, of which one
 * has ended, or two addresses of ours that lead to one peer. */
static void peers_merge(struct report *report)
{
    struct report_peer *list = report->peers;
    size_t kept = 0;

    if (report->peer_count == 0)
        return;
    qsort(list, report->peer_count, sizeof *list, peer_order);
    for (size_t i = 1; i < report->peer_count; i++) {
        if (strcmp(list[kept].name, list[i].name) != 0) {
            list[++kept] = list[i];
            continue;
        }
        for (int value = 0; value < PEER_VALUES; value++)
            list[kept].values[value] += list[i].values[value];
        if (list[i].state == PEER_UP)
            list[kept].state = PEER_UP;
        if (list[kept].identity == NULL)
            list[kept].identity = list[i].identity;
    }
    report->peer_count = kept + 1;
}

static void peer_begin(const struct page *page, const struct family *family,
                       const struct metrics_instance *instance, const struct report_peer *peer)
{
    sample_begin(page, family, instance);
    label(page, "peer", peer->name);
}

static void peer_sample(const struct page *page, const struct family *family,
                        const struct metrics_instance *instance, const struct report_peer *peer)
{
    if (family == &peer_identity && peer->identity == NULL)
        return;
    peer_begin(page, family, instance, peer);
    if (family == &peer_identity)
        label(page, "identity", peer->identity);
    if (family == &peer_identity)
        sample_end(page, 1);
    else if (family == &peer_connected)
        sample_end(page, peer->state == PEER_UP);
    else
        sample_end(page, peer->values[family - peer_values]);
}

static void peer_print(const struct page *page, const struct family *family)
{
    family_begin(page, family);
    for (int i = 0; i < page->metrics->count; i++) {
        const struct metrics_instance *instance = &page->metrics->instances[i];

        for (size_t j = 0; instance->up && j < instance->report.peer_count; j++)
            peer_sample(page, family, instance, &instance->report.peers[j]);
    }
}

static void peers_print(const struct page *page)
{
    for (int i = 0; i < page->metrics->count; i++)
        peers_merge(&page->metrics->instances[i].report);
    peer_print(page, &peer_connected);
    peer_print(page, &peer_identity);
    for (int value = 0; value < PEER_VALUES; value++)
        peer_print(page, &peer_values[value]);
}

/* ---- the whole ------------------------------------------------------------------------------- */

static void instances_print(const struct page *page)
{
#define SIMPLE(family) simple_print(page, &(family), offsetof(struct report, family))
    up_print(page);
    build_print(page);
    method_print(page, &listens);
    SIMPLE(memory_used);
    SIMPLE(memory_limit);
    for (size_t i = 0; i < sizeof totals / sizeof *totals; i++)
        total_print(page, &totals[i].family, totals[i].line);
    for (int value = 0; value < METHOD_VALUES; value++)
        method_print(page, &method_values[value]);
    method_print(page, &certificates);
    method_print(page, &revocations);
    SIMPLE(contexts);
    SIMPLE(queued);
    SIMPLE(waiters);
    states_print(page);
    flags_print(page, &peers_waiting, false);
    flags_print(page, &peers_silent, true);
    if (page->metrics->peers)
        peers_print(page);
#undef SIMPLE
}

static void collection_print(const struct page *page, const struct metrics_collection *collection)
{
    family_begin(page, &seconds);
    fprintf(page->out, "%s %.6f\n", seconds.name, collection->seconds);
    family_begin(page, &failed);
    fprintf(page->out, "%s_total %llu\n", failed.name, (unsigned long long)collection->failed);
    family_begin(page, &skipped);
    fprintf(page->out, "%s %llu\n", skipped.name, (unsigned long long)collection->skipped);
}

char *metrics_text(const struct metrics *metrics, size_t *size)
{
    char *text = NULL;
    FILE *out = open_memstream(&text, size);
    const struct page page = {out, metrics};

    if (out == NULL)
        return NULL;
    instances_print(&page);
    if (metrics->collection != NULL)
        collection_print(&page, metrics->collection);
    if (!metrics->plain)
        fputs("# EOF\n", out);
    bool broken = ferror(out) != 0;
    if (fclose(out) != 0 || broken) {
        free(text);
        return NULL;
    }
    return text;
}
