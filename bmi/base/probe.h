/* SPDX-License-Identifier: BSD-3-Clause
 *
 * probe.h - static probes for bpftrace, perf, and gdb, provider `bmi`. Each is a nop and a note in
 * the binary. Arguments are values that the code has at hand: nothing is computed for a probe.
 * docs/tracing.md explains them, and unit.probes compares that list with the library.
 *
 *   post(op, peer, address, kind, tag, size)  sent_now(peer, address, tag, size)
 *   match(op, tag, size)  complete(op, peer, kind, tag, status, size)
 *   credit_wait(peer, window, bytes)
 *   connect(peer, url)  link_up(peer, host)  handshake(peer, host)
 *   disconnect(peer, status, operations)
 *   call_begin(rpc, service)  call_end(rpc, status)
 *   serve_begin(rpc, service)  serve_end(rpc, status)
 *
 * kind: enum op_kind; tag: wire_tag; status: 0, a negated errno, BMI__CANCELLED, or a negated BMI
 * error; window: the flags of WIRE_WANT. An argument has the same type at all
 * places of its probe, and is never a constant: perf could not add the probe.
 */
#ifndef BMI_PROBE_H
#define BMI_PROBE_H

#if BMI_WITH_PROBES
#include <sys/sdt.h>
#define BMI_PROBE(count, name, ...) STAP_PROBE##count(bmi, name, __VA_ARGS__)
#else
#define BMI_PROBE(count, name, ...) ((void)0)
#endif

#endif
