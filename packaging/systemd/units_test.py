#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Checks the units: by systemd-analyze, and by a run of the server's command line, whose system calls the unit has to allow.

usage: units_test.py BIN    the folder of the programs
"""
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

SECONDS = 60
HERE = pathlib.Path(__file__).parent
BIN = pathlib.Path(sys.argv[1]).absolute()
# The highest exposure that `systemd-analyze security` may find, in tenths.
EXPOSURE = {"bmi-stripefsd@.service": 15, "bmi-metrics.service": 20}
failures = 0


def check(name, good, more=""):
    global failures
    failures += not good
    print(f"{'passed' if good else 'FAILED'}: {name} {'' if good else more}", flush=True)


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(77 if failures == 0 else 1)


def analyze(*arguments):
    done = subprocess.run(["systemd-analyze", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env=os.environ | {"LC_ALL": "C.UTF-8", "SYSTEMD_PAGER": "cat"})
    return done.returncode, done.stdout


def values(unit, key):
    """The words of all its lines of that key."""
    return [word for line in re.findall(rf"^{key}=(.*)$", (HERE / unit).read_text(), re.M) for word in line.split()]


def unit_check(unit, folder):
    program = BIN / re.search(r"^ExecStart=/usr/bin/(\S+)", (HERE / unit).read_text(), re.M).group(1)
    if not program.exists():
        print(f"left out: {unit}: {program.name} is not built")
        return
    copy = folder / unit
    copy.write_text((HERE / unit).read_text().replace("/usr/bin/", f"{BIN}/"))
    status, said = analyze("verify", "--man=no", str(copy))
    ours = [line for line in said.split("\n") if line.startswith(("bmi-", str(copy)))]
    check(f"{unit}: verify", status == 0 and not ours, said)
    status, said = analyze("security", "--offline=true", f"--threshold={EXPOSURE[unit]}", str(copy))
    check(f"{unit}: exposure of at most {EXPOSURE[unit] / 10}", status == 0, said)


# ---- a run ----------------------------------------------------------------------------------------------------------

def allowed_calls(unit):
    """The system calls that SystemCallFilter= of a unit allows."""
    sets, name = {}, None
    for line in analyze("syscall-filter")[1].split("\n"):
        if line.startswith("@"):
            name = line.strip()
            sets[name] = []
        elif line.startswith("    ") and name and not line.strip().startswith("#"):
            sets[name].append(line.strip())

    def expand(word):
        return {call for part in sets[word] for call in expand(part)} if word.startswith("@") else {word}
    allowed, remove = expand("@default"), False
    for line in re.findall(r"^SystemCallFilter=(.*)$", (HERE / unit).read_text(), re.M):
        remove = line.startswith("~")
        for word in line.lstrip("~").split():
            allowed = allowed - expand(word) if remove else allowed | expand(word)
    return allowed | expand("@default")


def environment_of(file):
    lines = [line for line in file.read_text().split("\n") if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def command_line(unit, variables, folder):
    """The words of ExecStart=, with those of its specifiers and variables that it uses."""
    words = re.search(r"^ExecStart=/usr/bin/(.*)$", (HERE / unit).read_text(), re.M).group(1).split()
    result = []
    for word in words:
        if word.startswith("$") and not word.startswith("${"):
            result += variables[word[1:]].split()
        else:
            word = re.sub(r"\$\{(\w+)\}", lambda match: variables[match.group(1)], word)
            result.append(word.replace("%S", str(folder)).replace("%i", "1"))
    return [str(BIN / result[0]), *result[1:]]


def server_run(unit, folder, engine):
    variables = environment_of(HERE / "stripefsd.conf")
    check(f"{engine}: the unit reads the variables' file", "/etc/bmi/stripefsd.conf" in values(unit, "EnvironmentFile"))
    variables |= {"STRIPEFSD_LISTEN": "tcp://localhost:0", "BMI_CONFIG_FILE": str(HERE.parent / "bmi.conf"),
                  "BMI_TCP_ENGINE": engine, "NOTIFY_SOCKET": f"@bmi-units-test-{os.getpid()}"}
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.settimeout(SECONDS)
    manager.bind("\0" + variables["NOTIFY_SOCKET"][1:])
    (folder / "bmi-stripefsd").mkdir(exist_ok=True)
    trace = folder / f"trace-{engine}"
    server = subprocess.Popen(["strace", "-f", "-q", "-D", "-o", trace, *command_line(unit, variables, folder)],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | variables)
    try:
        manager.recv(4096)
    except TimeoutError:
        server.kill()
        check(f"{engine}: the server starts", False, server.stderr.read())
        return
    url = server.stdout.readline().strip()
    for verb in (["put", str(BIN / "bmi-stripefsd"), "/file"], ["ls", "/"], ["get", "/file", str(folder / "got")], ["rm", "/file"]):
        done = subprocess.run([BIN / "bmi-stripefs", "--servers", url, *verb], capture_output=True, text=True)
        check(f"{engine}: {verb[0]}", done.returncode == 0, done.stderr)
    server.send_signal(signal.SIGTERM)
    check(f"{engine}: SIGTERM ends it", server.wait(SECONDS) == 0, server.stderr.read())
    calls_check(unit, engine, trace_read(trace, server.pid))


def trace_read(file, process):
    """strace is not our child, and writes the end of the file in its own time."""
    end = time.monotonic() + SECONDS
    while not (whole := re.search(rf"^{process} +\+\+\+ exited", text := file.read_text(), re.M)) and time.monotonic() < end:
        time.sleep(0.01)
    check("the trace is whole", whole)
    return text


def calls_check(unit, engine, trace):
    called = set(re.findall(r"^\d+ +(\w+)\(", trace, re.M))
    families = set(re.findall(r"^\d+ +socket\((AF_\w+)", trace, re.M))
    check(f"{engine}: the trace has calls of each kind", {"execve", "listen", "exit_group"} <= called, called)
    more = called - allowed_calls(unit)
    check(f"{engine}: all {len(called)} system calls are allowed", not more, more)
    more = families - set(values(unit, "RestrictAddressFamilies"))
    check(f"{engine}: the address families are allowed", not more, more)
    check(f"{engine}: no memory is writable and executable", not re.search(r"PROT_WRITE\|PROT_EXEC", trace))


if not shutil.which("systemd-analyze"):
    skip("systemd-analyze is not installed (package systemd)")
if "--offline" not in analyze("--help")[1]:
    skip("this systemd-analyze has no --offline; version 250 has")
with tempfile.TemporaryDirectory() as name:
    for one in EXPOSURE:
        unit_check(one, pathlib.Path(name))
    if not shutil.which("strace") or subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True).returncode:
        skip("strace is not installed, or may trace nothing")
    for kind in ("epoll", "io_uring"):
        server_run("bmi-stripefsd@.service", pathlib.Path(name), kind)
sys.exit(failures > 0)
