#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Checks that the core and the methods have no state of the process but what is listed here: all else is an instance's.

usage: state_test.py OBJECTS [--list]    the folder of the library's object files (it holds bmi/base, methods, ...)

Reads the symbols in the sections of writable data, except those of a thread. ONCE names the variables of each file that
may be there, and why. --list prints what is there.
"""
import pathlib
import re
import subprocess
import sys

ONCE = {
    "bmi/base/instance.c": ("bmi__default",),  # the default instance
    "bmi/base/log.c": ("bmi__default_logging",),  # its log, before it starts
    "bmi/base/settings.c": ("bmi__default_settings", "table", "method_settings", "once",  # names, bounds, help
                            "kept_texts", "lock"),  # texts are valid until the process ends
    "bmi/base/crypto.c": ("digest_context", "digest_lock"),
    "bmi/progress/methods.c": ("default_methods", "once", "threads"),  # threads: gives each its stripe of counters
    # ids are unique in the process
    "bmi/state/op.c": ("chunks", "chunk_count", "free_list", "lock", "epoch", "first_generation", "exit_key", "exit_once"),
    "bmi/state/context.c": ("contexts", "slots_used", "generations", "table_lock"),
    "bmi/connection/book.c": ("chunks", "chunk_count", "free_list", "slots_lock", "first_generation"),
    "bmi/connection/tags.c": ("tree", "first", "number", "lock"),
    "bmi/api/start.c": ("closing", "instances", "list_lock", "fork_once"),
    "bmi/api/instance.c": ("opened",),
    # memory of BMI_memalloc may be freed after its instance has ended
    "methods/gm-emu/gm_memory.c": ("blocks",),
    "methods/ib/memory.c": ("allocations", "allocations_lock"),
    # libfabric is loaded once, and its limits hold for all
    "methods/ib/library.c": ("ib_library", "handle", "environment", "lock"),
    "methods/ib/ib.c": ("kind_ib", "kind_shm", "kind_tcp", "kind_verbs", "limits_lock", "bmi__method_ib", "bmi__method_ofi_shm", "bmi__method_ofi_tcp", "bmi__method_ofi_verbs"),
    "methods/ib/fabric.c": ("warned",),
    # threads that look names up, for all connections
    "methods/ip/resolve.c": ("queue", "threads", "standing_by", "lock"),
    # networks within the process; tests change their tables
    "methods/loop/loop.c": ("loop_networks", "bmi__method_loop", "bmi__method_loopget", "bmi__method_loopput"),
    "methods/stream/engine_uring.c": ("forks", "fork_once"),
    # OpenSSL's tables
    "methods/tls/bytes.c": ("bio_method", "once"),
    "methods/tls/psk.c": ("keys_index", "once"),
    "methods/tls/session.c": ("sessions_index", "once"),
}


def variables(path):
    """Names of the variables in writable sections of an object file."""
    out = subprocess.run(["objdump", "-t", str(path)], check=True, capture_output=True, text=True).stdout
    for line in out.split("\n"):
        found = re.match(r"\S+ .{5,7}O (\.(?:bss|data)\S*)\s+\S+\s+(?:\.hidden )?(\S+)$", line)
        if found and not found.group(1).startswith(".data.rel.ro"):
            yield re.sub(r"\.\d+$", "", found.group(2))


def main():
    objects = pathlib.Path(sys.argv[1])
    faults, seen = [], set()
    for folder in ("bmi", "methods"):
        for path in sorted((objects / folder).rglob("*.c.o")):
            name = str(path.relative_to(objects))[:-len(".o")]
            for variable in variables(path):
                if "--list" in sys.argv:
                    print(name, variable)
                seen.add((name, variable))
                if variable not in ONCE.get(name, ()):
                    faults.append(f"{name}: {variable} is state of the process: make it an instance's (bmi/base/instance.h)")
    faults += [f"{name}: {variable} is not there; take it out of the list" for name, listed in ONCE.items()
               for variable in listed if any(n == name for n, _ in seen) and (name, variable) not in seen]
    print("\n".join(faults) or f"{len(seen)} variables of the process, all listed")
    if not seen:
        sys.exit(f"no variables in the object files of {objects}: is objdump's output read?")
    sys.exit(1 if faults else 0)


main()
