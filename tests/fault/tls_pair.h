/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tls_pair.h - a server's and a client's process, each with credentials of its own. The test's
 * process starts no library; it hears of the messages that the server received, of the status of
 * the client's, and reads both logs.
 */
#ifndef BMI_TESTS_TLS_PAIR_H
#define BMI_TESTS_TLS_PAIR_H

#include "tls_keys.h"

enum pair_side { SERVER, CLIENT };
enum { PAIR_NAME = 256 };

extern struct pair {
    char url[BMI_MAX_ADDR_LEN];      /* the server's */
    unsigned received;               /* messages of the server */
    char client_identity[PAIR_NAME]; /* of the last one's peer */
    int status;                      /* of the client's messages */
    char server_identity[PAIR_NAME]; /* as the client sees it */
} pair;

/* Begins a case; prints its name. */
void case_begin(const char *name);
/* Starts a server with these credentials (see credentials_set). */
void server_start(const char *scheme, const char *who, const char *peers);
/* It sends a message to itself; its status is in `pair`. */
void server_calls_itself(void);
/* Starts a client that sends so many messages to the URL, one after the other; waits for it. If
 * they were sent, it stays until the server has received `count` of them. */
void client_run(const char *url, const char *who, const char *peers, unsigned count);
/* The two halves of it. */
void client_start(const char *url, const char *who, const char *peers, unsigned count);
void client_end(unsigned count);
/* Ends the server, if there is one. */
void case_end(void);

bool log_has(enum pair_side side, const char *text);
/* Waits for it. */
void until_logged(enum pair_side side, const char *text);
/* All of it so far. */
const char *log_text(enum pair_side side);

#endif
