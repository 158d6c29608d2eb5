#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Checks the static probes of libbmi.so.

usage: probes_test.py SOURCE LIBRARY [TRAFFIC]    the source tree, libbmi.so, the program of probes_traffic.c

The library has each probe of the table in docs/tracing.md, with as many arguments, and no other; bmi/base/probe.h lists the same.
An argument has the same type at all places of a probe, and is no constant.
With TRAFFIC the kernel counts the hits of all probes while that program runs: perf's interface, so no tool is needed.
"""
import ctypes
import os
import pathlib
import re
import struct
import subprocess
import sys

UPROBE = pathlib.Path("/sys/bus/event_source/devices/uprobe/type")
PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(77)


def readelf(option, library):
    return subprocess.run(["readelf", option, "-W", library], check=True, capture_output=True, text=True).stdout


def noted(library):
    """[(name, address, [argument])] of the library's notes."""
    pattern = r"Provider: bmi\s+Name: (\w+)\s+Location: (0x\w+),.*\s+Arguments: ?(.*)"
    return [(name, int(address, 16), arguments.split())
            for name, address, arguments in re.findall(pattern, readelf("-n", library))]


def documented(path):
    """{name: [argument]} of the table."""
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\|([^|]*)\|$", path.read_text(), re.M)
    return {name: re.findall(r"`(\w+)`", arguments) for name, arguments in rows}


def differences(source, library):
    table, notes = documented(source / "docs/tracing.md"), noted(library)
    header = (source / "bmi/base/probe.h").read_text()
    names = {name for name, _, _ in notes}
    faults = [f"docs/tracing.md: the library has no probe {name}" for name in sorted(set(table) - names)]
    faults += [f"docs/tracing.md: no line for {name}" for name in sorted(names - set(table))]
    types = {}  # "-4@%eax": a signed one of 4 bytes; "$": a constant
    for name, address, arguments in notes:
        here = [argument.split("@")[0] for argument in arguments]
        if name in table and len(here) != len(table[name]):
            faults.append(f"{name} at {address:#x} has {len(here)} arguments, in docs/tracing.md {len(table[name])}")
        if types.setdefault(name, here) != here or any("@$" in argument for argument in arguments):
            faults.append(f"{name} at {address:#x}: perf cannot add it: constants, or other types elsewhere: {' '.join(arguments)}")
    for name, arguments in table.items():
        if f"{name}({', '.join(arguments)})" not in header:
            faults.append(f"bmi/base/probe.h: no {name}({', '.join(arguments)})")
    print("\n".join(faults))
    print(f"{len(table)} probes at {len(notes)} places, {len(faults)} faults")
    return bool(faults) or not table


def file_offset(library, address):
    for fields in map(str.split, readelf("-l", library).split("\n")):
        if fields[:1] == ["LOAD"]:
            offset, start, size = int(fields[1], 16), int(fields[2], 16), int(fields[4], 16)
            if start <= address < start + size:
                return address - start + offset
    sys.exit(f"{library}: no segment has {address:#x}")


def counter(library, offset, pid):
    """A descriptor that counts how often the process executes an instruction of the library."""
    path = ctypes.create_string_buffer(library.encode())
    attributes = struct.pack("=IIQQQQQIIQQ", int(UPROBE.read_text()), 112, 0, 0, 0, 0, 0, 0, 0,
                             ctypes.addressof(path), offset).ljust(112, b"\0")
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.syscall(PERF_EVENT_OPEN[os.uname().machine], attributes, pid, -1, -1, 0)
    if fd < 0:
        skip(f"this kernel counts no uprobes for this user: {os.strerror(ctypes.get_errno())}")
    return fd


def hits(library, traffic):
    if not UPROBE.exists() or os.uname().machine not in PERF_EVENT_OPEN:
        skip("this kernel has no uprobes")
    library = os.path.realpath(library)
    places = [(name, file_offset(library, address)) for name, address, _ in noted(library)]
    # the program waits for the end of its input
    with subprocess.Popen([traffic], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        counters = [(name, counter(library, offset, process.pid)) for name, offset in places]
        out, _ = process.communicate()
    counts = {}
    for name, fd in counters:
        counts[name] = counts.get(name, 0) + struct.unpack("=Q", os.read(fd, 8))[0]
    print(counts)
    posts, matches = (int(number) for number in re.findall(r"\d+", out))
    # The call posts a request, its reply, and the receive for that.
    exactly = {"post": posts + 3 - counts["sent_now"], "complete": counts["post"], "match": matches + 1, "connect": 2,
               "call_begin": 1, "call_end": 1, "serve_begin": 1, "serve_end": 1}
    faults = [f"{name}: {counts[name]} hits, {number} expected" for name, number in exactly.items() if counts[name] != number]
    faults += [f"{name}: no hit" for name, count in counts.items() if count == 0]
    print("\n".join(faults))
    return bool(faults)


def main():
    source, library = pathlib.Path(sys.argv[1]), sys.argv[2]
    if not noted(library):
        skip("the library was built without probes")
    sys.exit(1 if (hits(library, sys.argv[3]) if len(sys.argv) > 3 else differences(source, library)) else 0)


main()
