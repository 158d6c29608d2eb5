#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""The server as a service: it notifies its manager, a datagram socket of this test, when it is ready and when it stops.

usage: notify_test.py BIN    the folder of the programs
"""
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile

SECONDS = 60
BIN = pathlib.Path(sys.argv[1])
failures = 0


def check(name, good, more=""):
    global failures
    failures += not good
    print(f"{'passed' if good else 'FAILED'}: {name} {'' if good else more}")


def server_start(notify, url="tcp://127.0.0.1:0"):
    environment = {k: v for k, v in os.environ.items() if k != "NOTIFY_SOCKET"}
    return subprocess.Popen([BIN / "bmi-stripefsd", "--listen", url, "--store", "mem:", "--place", "1/1"],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env=environment | ({} if notify is None else {"NOTIFY_SOCKET": notify}))


def server_stop(server, number=signal.SIGTERM):
    """Its exit status, and all that it printed on standard error."""
    server.send_signal(number)
    return server.wait(SECONDS), server.stderr.read()


def datagrams(manager):
    """Those that have come."""
    manager.setblocking(False)
    got = []
    try:
        while True:
            got.append(manager.recv(4096).decode())
    except BlockingIOError:
        return got
    finally:
        manager.settimeout(SECONDS)


def case(kind, address, notify, number=signal.SIGTERM):
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.settimeout(SECONDS)
    manager.bind(address)
    server = server_start(notify)
    state = manager.recv(4096).decode().split("\n")
    url = server.stdout.readline().strip()
    check(f"{kind}: ready, with its URL", state == ["READY=1", f"STATUS=listens on {url}"], state)
    listed = subprocess.run([BIN / "bmi-stripefs", "--servers", url, "ls", "/"], capture_output=True, text=True)
    check(f"{kind}: it serves", listed.returncode == 0, listed.stderr)
    check(f"{kind}: no more states", datagrams(manager) == [])
    status, said = server_stop(server, number)
    check(f"{kind}: the end", status == 0 and said == "", f"{status} {said}")
    states = datagrams(manager)
    check(f"{kind}: stopping", states == ["STOPPING=1"], states)
    return manager


def unreachable(kind, notify, text):
    server = server_start(notify)
    url = server.stdout.readline().strip()
    check(f"{kind}: it starts", url.startswith("tcp://"), url)
    status, said = server_stop(server)
    check(f"{kind}: it ends, and reports it", status == 0 and (text in said if text else said == ""), f"{status} {said}")


with tempfile.TemporaryDirectory() as folder:
    path = f"{folder}/notify"
    name = f"bmi-notify-test-{os.getpid()}"
    case("a path", path, path)
    manager = case("an abstract name", "\0" + name, "@" + name, signal.SIGINT)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = server_start("@" + name, f"tcp://127.0.0.1:{taken.getsockname()[1]}")
        status, said = server.wait(SECONDS), server.stderr.read()
        check("a port in use", status == 1 and "EADDRINUSE" in said, f"{status} {said}")
        check("a port in use: never ready", datagrams(manager) == [])
    unreachable("no manager", None, "")
    unreachable("an empty name", "", "")
    unreachable("a manager that has gone", path + "2", "No such file")
    unreachable("a relative path", "notify", "Invalid argument")
    unreachable("a name that is too long", "/" + "x" * 108, "Invalid argument")
sys.exit(failures > 0)
