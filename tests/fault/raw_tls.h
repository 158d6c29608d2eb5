/* SPDX-License-Identifier: BSD-3-Clause
 *
 * raw_tls.h - TLS under the bytes of a peer made by hand (raw_peer.h): the peer keeps a plain
 * socket, and a thread carries the bytes between that and the session. Credentials are those of the
 * environment: BMI_TLS_CERTIFICATE, BMI_TLS_KEY, BMI_TLS_AUTHORITIES.
 */
#ifndef BMI_TESTS_RAW_TLS_H
#define BMI_TESTS_RAW_TLS_H

#include <stdbool.h>

/* Shakes hands on a connected socket, which it takes over. Returns the plain socket; when that is
 * closed, the session ends with close_notify. */
int raw_tls_make(int network, bool accepts);
/* A session on a connected socket, before its handshake; for a test that has many. */
struct ssl_st *raw_tls_session(int network);
/* The next close of the plain socket resets the connection. false: it is no such socket. */
bool raw_tls_reset(int plain);

#endif
