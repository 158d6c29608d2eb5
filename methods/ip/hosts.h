/* SPDX-License-Identifier: BSD-3-Clause
 *
 * hosts.h - hosts that are IP addresses, numeric and bare ("10.1.2.3", "fe80::1"). Methods that
 * connect within a host have "127.0.0.1".
 */
#ifndef IP_HOSTS_H
#define IP_HOSTS_H

#include "bmi/method.h"

extern const struct bmi_method_hosts ip_hosts;

#endif
