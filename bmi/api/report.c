/* SPDX-License-Identifier: BSD-3-Clause
 *
 * report.c - statistics of methods and contexts, and the report: those, totals, and each peer, a
 * line each.
 *
 * The report reads the peers one after the other, each under its lock, so it is not a snapshot of
 * one moment. Programs parse it too (tools/report_parse.c): a peer's name is one word, and the last
 * line is "end".
 */
#include "bmi/api/report.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "bmi/base/escape.h"
#include "bmi/base/instance.h"
#include "bmi/base/settings.h"
#include "bmi/connection/option.h"
#include "bmi/progress/background.h"
#include "bmi/progress/methods.h"
#include "bmi/protocol/credit.h"
#include "bmi/state/context.h"
#include "bmi/state/library.h"
#include "bmi/state/liveness.h"
#include "bmi/state/peer.h"

typedef unsigned long long number;

/* ---- statistics ----------------------------------------------------------------------------- */

int bmi__method_statistics(struct bmi_instance *instance, struct bmi_method_statistics *out)
{
    struct running_method *method =
        out->name != NULL ? bmi__method_named(instance, out->name, strlen(out->name)) : NULL;
    if (method == NULL)
        return -EINVAL;
#define COUNT(counter) (uint64_t) bmi__method_counter(method, BMI_COUNT_##counter)
    *out = (struct bmi_method_statistics){
        .name = method->method->name,
        .frames_sent = COUNT(FRAMES_SENT),
        .frames_received = COUNT(FRAMES_RECEIVED),
        .bytes_sent = COUNT(BYTES_SENT),
        .bytes_received = COUNT(BYTES_RECEIVED),
        .writes = COUNT(WRITES),
        .reads = COUNT(READS),
        .copies = COUNT(COPIES),
        .copied_bytes = COUNT(COPIED_BYTES),
        .links = COUNT(LINKS),
        .links_opened = COUNT(LINKS_OPENED),
        .links_accepted = COUNT(LINKS_ACCEPTED),
        .links_failed = COUNT(LINKS_FAILED),
        .bad_frames = COUNT(BAD_FRAMES),
        .puts = COUNT(PUTS),
        .put_bytes = COUNT(PUT_BYTES),
        .gets = COUNT(GETS),
        .get_bytes = COUNT(GET_BYTES),
        .registrations = COUNT(REGISTRATIONS),
        .registration_hits = COUNT(REGISTRATION_HITS),
        .handshakes = COUNT(HANDSHAKES),
        .handshakes_resumed = COUNT(HANDSHAKES_RESUMED),
    };
#undef COUNT
    return 0;
}

int bmi__context_statistics(struct bmi_context_statistics *out)
{
    struct context *context = bmi__context_find(out->context);
    if (context == NULL)
        return -EINVAL;
    out->completions = atomic_load(&context->completions);
    out->immediate = atomic_load(&context->immediate);
    out->queue_depth = bmi__context_depth(context);
    out->waiters = atomic_load(&context->waiters.count);
    return 0;
}

/* ---- totals and methods --------------------------------------------------------------------- */

static void totals_write(FILE *out, const struct bmi_statistics *s)
{
#define LINE(field) fprintf(out, "  %-22s %llu\n", #field, (number)s->field)
    LINE(messages_sent), LINE(messages_received), LINE(bytes_sent), LINE(bytes_received);
    LINE(unexpected_sent), LINE(unexpected_received);
    LINE(eager_sent), LINE(rendezvous_sent), LINE(announced_sent), LINE(announcements);
    LINE(puts), LINE(put_bytes), LINE(gets), LINE(get_bytes), LINE(copies), LINE(copied_bytes);
    LINE(credit_waits), LINE(connects), LINE(reconnects), LINE(accepts);
    LINE(errors), LINE(cancels);
}

static void gauges_write(FILE *out, const struct bmi_statistics *s)
{
    LINE(outstanding_sends), LINE(outstanding_receives);
    LINE(unmatched_messages), LINE(unmatched_bytes);
    LINE(unexpected_waiting), LINE(unexpected_bytes);
#undef LINE
}

static void method_write(FILE *out, const struct bmi_method_statistics *m)
{
    fprintf(out,
            "  %s: frames %llu out %llu in, bytes %llu out %llu in, %llu writes, %llu reads, "
            "%llu bytes staged, links %llu (%llu dialled, %llu accepted, %llu failed)\n",
            m->name, (number)m->frames_sent, (number)m->frames_received, (number)m->bytes_sent,
            (number)m->bytes_received, (number)m->writes, (number)m->reads, (number)m->copied_bytes,
            (number)m->links, (number)m->links_opened, (number)m->links_accepted,
            (number)m->links_failed);
    if (m->puts + m->gets + m->registrations > 0)
        fprintf(out,
                "  %s: %llu puts of %llu bytes, %llu gets of %llu bytes, %llu registrations, "
                "%llu found\n",
                m->name, (number)m->puts, (number)m->put_bytes, (number)m->gets,
                (number)m->get_bytes, (number)m->registrations, (number)m->registration_hits);
    if (m->handshakes > 0)
        fprintf(out, "  %s: %llu handshakes, %llu of them resumed\n", m->name,
                (number)m->handshakes, (number)m->handshakes_resumed);
    if (m->bad_frames > 0)
        fprintf(out, "  %s: %llu links ended for what they sent\n", m->name, (number)m->bad_frames);
}

static void expiry_line_write(FILE *out, const char *name, const char *what, time_t end_s)
{
    char date[64];
    struct tm parts;
    if (end_s > 0 && gmtime_r(&end_s, &parts) != NULL &&
        strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &parts) > 0)
        fprintf(out, "  %s: %s expire at %s\n", name, what, date);
}

static void expiry_write(FILE *out, const struct running_method *running)
{
    const struct bmi_method *method = running->method;
    struct bmi_method_expiry expiry = {0};
    if (!method->secure || method->option(running->instance, running->state, NULL,
                                          BMI_METHOD_EXPIRY, &expiry, false) != 0)
        return;
    expiry_line_write(out, method->name, "certificates", (time_t)expiry.certificates_s);
    expiry_line_write(out, method->name, "lists of revoked certificates",
                      (time_t)expiry.revocations_s);
}

static void methods_write(struct bmi_instance *instance, FILE *out)
{
    struct running_method *method;
    for (int i = 0; (method = bmi__method_at(instance, i)) != NULL; i++) {
        struct bmi_method_statistics m = {.name = method->method->name};
        if (!atomic_load(&method->started) || bmi__method_statistics(instance, &m) < 0)
            continue;
        if (method->listen[0] != '\0')
            fprintf(out, "  %s: listens at %s\n", m.name, method->listen);
        method_write(out, &m);
        expiry_write(out, method);
    }
}

void bmi__report_print(struct bmi_instance *instance)
{
    struct bmi_statistics s;
    bmi__peers_statistics(instance, &s);
    fprintf(stderr, "libbmi statistics%s%s\n", instance->name[0] != '\0' ? " of instance " : "",
            instance->name);
    totals_write(stderr, &s);
    methods_write(instance, stderr);
}

/* ---- contexts ------------------------------------------------------------------------------- */

static void context_write(bmi_context_id id, void *argument)
{
    FILE *out = argument;
    struct bmi_context_statistics c = {.context = id};
    if (bmi__context_statistics(&c) == 0)
        fprintf(out,
                "  %lld: %llu reported, %llu immediate, %llu in its queue, %llu threads wait\n",
                (long long)id, (number)c.completions, (number)c.immediate, (number)c.queue_depth,
                (number)c.waiters);
}

/* ---- peers ---------------------------------------------------------------------------------- */

static const char *state_name(const struct peer *peer)
{
    static const char *const names[] = {
        [PEER_FREE] = "free",
        [PEER_IDLE] = "not connected",
        [PEER_DIALLING] = "connecting",
        [PEER_HANDSHAKE] = "handshake",
        [PEER_UP] = "up",
        [PEER_GONE] = "gone",
    };
    return peer->flags & PEER_CLOSING ? "closing" : names[peer->state];
}

/* A name as one word: blanks are escaped, so that none of it is taken for the words behind it. */
static void word_write(FILE *out, const char *text)
{
    char shown[4 * BMI_MAX_ADDR_LEN];
    bmi__escape(shown, sizeof shown, text, strlen(text));
    for (const char *at = shown; *at != '\0'; at++) {
        if (*at == ' ')
            fputs("\\x20", out);
        else
            putc(*at, out);
    }
}

static void identity_write_locked(FILE *out, const struct peer *peer)
{
    struct bmi_peer_identity identity;
    if (peer->link == NULL || bmi__link_identity(peer->link, &identity) != 0)
        return;
    fputs("; identity ", out);
    word_write(out, identity.name);
}

static void peer_write_locked(FILE *out, struct peer *peer)
{
    struct bmi_statistics s = {0};
    bmi__peer_statistics(peer, &s);
    fputs("  ", out);
    word_write(out, bmi__peer_name(peer));
    fprintf(out, " %s%s%s: messages %llu out %llu in, bytes %llu out %llu in",
            peer->flags & PEER_ACCEPTED ? "accepted, " : "", state_name(peer),
            peer->flags & PEER_SELF ? ", itself" : "",
            (number)(s.messages_sent + s.unexpected_sent),
            (number)(s.messages_received + s.unexpected_received), (number)s.bytes_sent,
            (number)s.bytes_received);
    identity_write_locked(out, peer);
    if (peer->op_count > 0)
        fprintf(out, "; outstanding %llu sends %llu receives", (number)s.outstanding_sends,
                (number)s.outstanding_receives);
    if (peer->waiting_first != NULL || peer->unexpected.first != NULL)
        fprintf(out, "; sends wait for %s", peer->state == PEER_UP ? "its memory" : "a connection");
    if (s.unmatched_messages > 0)
        fprintf(out, "; unmatched %llu of %llu bytes", (number)s.unmatched_messages,
                (number)s.unmatched_bytes);
    if (s.unexpected_waiting > 0)
        fprintf(out, "; unexpected not freed %llu of %llu bytes", (number)s.unexpected_waiting,
                (number)s.unexpected_bytes);
    if (s.errors > 0)
        fprintf(out, "; errors %llu", (number)s.errors);
    if (peer->op_count > 0 && peer->silent_ticks > 0)
        fprintf(out, "; silent for %u/%u of peer_timeout_ms", peer->silent_ticks,
                (unsigned)BMI__TICKS_DEAD);
    fprintf(out, "\n");
}

static void peer_write(struct peer *peer, void *out)
{
    peer_lock(peer);
    if (peer->state != PEER_FREE)
        peer_write_locked(out, peer);
    peer_unlock(peer);
}

/* ---- the whole ------------------------------------------------------------------------------ */

static void head_write(struct bmi_instance *instance, FILE *out)
{
    char program[32] = "?";
    FILE *file = fopen("/proc/self/comm", "re");
    if (file != NULL && fgets(program, sizeof program, file) != NULL)
        program[strcspn(program, "\n")] = '\0';
    if (file != NULL)
        fclose(file);
    char shown[4 * sizeof program];
    bmi__escape(shown, sizeof shown, program, strlen(program));
    fprintf(out, "libbmi %s, process %ld (%s)%s%s\n", bmi_version(), (long)getpid(), shown,
            instance->name[0] != '\0' ? ", instance " : "", instance->name);
    fprintf(out, "progress by %s; memory lent to peers or held for them %lld of %lld bytes\n",
            bmi__background_on(instance) ? "a thread of the library's" : "the caller",
            (long long)bmi__credit_used(instance),
            (long long)bmi__setting(instance, SETTING_TOTAL_MEMORY));
}

char *bmi__report_make(struct bmi_instance *instance, size_t *size)
{
    char *text = NULL;
    struct bmi_statistics s;
    FILE *out = open_memstream(&text, size);
    if (out == NULL)
        return NULL;
    bmi__peers_statistics(instance, &s);
    head_write(instance, out);
    fprintf(out, "since the start\n");
    totals_write(out, &s);
    fprintf(out, "at present\n");
    gauges_write(out, &s);
    fprintf(out, "methods\n");
    methods_write(instance, out);
    fprintf(out, "contexts\n");
    bmi__context_each(instance, context_write, out);
    fprintf(out, "peers\n");
    bmi__peer_each(instance, peer_write, out);
    fprintf(out, "end\n");
    bool failed = ferror(out) != 0;
    if (fclose(out) != 0 || failed) {
        free(text);
        return NULL;
    }
    return text;
}

size_t bmi_report(char *text, size_t size)
{
    size_t length = 0;
    char *report = bmi__running(&bmi__default) ? bmi__report_make(&bmi__default, &length) : NULL;
    if (size > 0)
        snprintf(text, size, "%s", report != NULL ? report : "");
    free(report);
    return report != NULL ? length : 0;
}
