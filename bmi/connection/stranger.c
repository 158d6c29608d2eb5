/* SPDX-License-Identifier: BSD-3-Clause
 *
 * stranger.c - see stranger.h. A wrong port or scheme is a usual mistake, and "bad frame" does not
 * help to find it. Most protocols can be recognised by their first bytes.
 */
#include "bmi/connection/stranger.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "bmi/base/escape.h"
#include "bmi/base/log.h"
#include "bmi/state/peer.h"

enum { SHOWN = 40 }; /* bytes of a peer's that are logged */

static const struct {
    const char *begins; /* in any case of letters */
    const char *name;
} known[] = {
    {"HTTP/", "an HTTP server"},  {"<!DOCTYPE", "an HTTP server"},
    {"<html", "an HTTP server"},  {"GET ", "an HTTP client"},
    {"POST ", "an HTTP client"},  {"HEAD ", "an HTTP client"},
    {"SSH-", "an SSH server"},    {"220", "a mail or FTP server"},
    {"\x15\x03", "a TLS server"}, {"\x16\x03", "a TLS client"},
    {"RFB ", "a VNC server"},     {"-ERR", "a Redis server"},
    {"AMQP", "an AMQP server"},   {"* OK", "an IMAP server"},
    {"+OK", "a POP server"},      {"PRI * HTTP/2", "an HTTP client"},
};

static const char *name_find(const char *bytes, size_t have)
{
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        size_t length = strlen(known[i].begins);
        if (length <= have && strncasecmp(bytes, known[i].begins, length) == 0)
            return known[i].name;
    }
    return NULL;
}

void bmi__stranger_log_locked(const struct peer *peer, const uint8_t *bytes, size_t have)
{
    static const char exchange[] = "BMI "; /* then the method's name and a line's end */
    const char *text = (const char *)bytes;
    char shown[4 * SHOWN + 1];
    const char *name = name_find(text, have);
    const char *answers = peer->flags & PEER_ACCEPTED ? "sends" : "answers";
    const size_t prefix = sizeof exchange - 1;

    bmi__escape(shown, sizeof shown, bytes, have < SHOWN ? have : SHOWN);
    if (have > prefix && memcmp(bytes, exchange, prefix) == 0)
        bmi__log(peer->instance, BMI_LOG_WARN,
                 "%s is the address exchange of another method of BMI, %.*s, for which there are "
                 "other schemes: it %s \"%s\"",
                 bmi__peer_name(peer), (int)strcspn(shown + prefix, "\\ "), shown + prefix, answers,
                 shown);
    else if (name != NULL)
        bmi__log(peer->instance, BMI_LOG_WARN, "%s is %s, and speaks no BMI: it %s \"%s\"",
                 bmi__peer_name(peer), name, answers, shown);
    else
        bmi__log(peer->instance, BMI_LOG_WARN, "%s speaks no BMI: it %s \"%s\"",
                 bmi__peer_name(peer), answers, shown);
}
