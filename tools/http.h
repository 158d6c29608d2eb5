/* SPDX-License-Identifier: BSD-3-Clause
 *
 * http.h - a server of one page, /metrics, on libmicrohttpd. Connections, requests, and times are
 * bounded, and of too many connections the oldest one without a complete request is ended.
 */
#ifndef HTTP_H
#define HTTP_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

/* Makes the page, to be freed: OpenMetrics, or Prometheus' older text format. NULL: no memory. */
typedef char *http_make(void *argument, bool openmetrics, size_t *size);

/* Listens at HOST:PORT, [HOST]:PORT, or :PORT for all interfaces; a port of 0 takes a free one.
 * Writes the address taken. Returns the only server; or NULL and the reason. */
struct http_server *http_listen(const char *address, http_make *make, void *argument, char *bound,
                                size_t size, const char **reason);

/* Serves until *ending is set, by a handler of one of the signals that `waiting` does not block.
 * Ends the server. Returns 0, or -1 with errno set if waiting fails. */
int http_serve(struct http_server *server, const sigset_t *waiting,
               const volatile sig_atomic_t *ending);

#endif
