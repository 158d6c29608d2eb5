#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""bmi-metrics, and bmi-info --openmetrics: their text, processes that hang, end, or send nonsense, and clients that do.

usage: metrics_test.py BIN       where the programs are

Other processes of this host may be in the page, too; the tests look at their own only.
"""
import contextlib
import http.client
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse

from openmetrics_check import Bad, check

BIN = sys.argv[1]
OPENMETRICS = "application/openmetrics-text; version=1.0.0,text/plain;q=0.5"
PATIENCE_S = 60
SCRAPE_S = 10  # Prometheus' default
CLIENTS = 32   # connections that bmi-metrics holds at most

# A process with a report of the test's own. Arguments: what it does, and the process that it names.
FAKE = r"""
import os, socket, sys, time
what, process = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else str(os.getpid())
listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
listener.bind("\0bmi-report-" + process)
if what == "user":
    os.seteuid(65534) # as of a process that has ended, and whose number this one has now
listener.listen()
if what == "user":
    os.seteuid(0)
further = []
if what == "crowd": # more instances than are shown, and names that are of none; nobody answers there
    for name in [f"{process}-{i}" for i in range(70)] + ["0" + process, process + "-", process + "-a b", process + "-" + "x" * 32, process + "x"]:
        further.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        further[-1].bind("\0bmi-report-" + name)
        further[-1].listen()
print("ready", flush=True)
head = b"libbmi 9.9, process 1 (x)\nprogress by the caller; memory lent to peers or held for them 5 of 10 bytes\n" \
       b"since the start\n  accepts 7\n  strange 8\nat present\npeers\n"
line = b" accepted, up: messages 1 out 2 in, bytes 3 out 4 in"
peers = {
    "strange": [b'a"b\\c' + line, b"\x1b[2J\xff\xe2\x80\xae" + line + b'; identity "x\\; errors 9', b"a\\nb" + line,
                b"twice" + line, b"twice" + line.replace(b"up", b"gone"), b"long" + b"\xc3\xa4" * 4000 + line, b"longer" + b"\xc3\xa4" * 4100 + line],
    "many": [b"peer%d" % i + line for i in range(20000)],
    "late": [b"peer%d" % i + line for i in range(40000)],
}.get(what, [])
body = head + b"".join(b"  " + one + b"\n" for one in peers)
if what == "methods":
    body += b"methods\n" + b"".join(b"  %d%s: x\n" % (i, b"\xff" * 250000) for i in range(16))
    body += b"  tcp: 3 handshakes, 1 of them resumed\n  tcp: listens at " + b"x" * 9000 + b"\n"
body += b"end\n"
while True:
    one, _ = listener.accept()
    try:
        if what == "cut":
            one.sendall(body[:-5])
        elif what == "exit":
            one.sendall(body[:50])
            os._exit(0)
        elif what == "endless":
            while True:
                one.sendall(b"x" * 65536)
        elif what == "drip":
            while True:
                one.sendall(b"x")
                time.sleep(0.1)
        else:
            time.sleep(0.7 if what == "late" else 0) # within the time for a report
            one.sendall(body)
    except OSError:
        pass
    one.close()
"""


def need(true, message):
    if not true:
        raise AssertionError(message)


def until(condition, message):
    """Waits for a condition; returns its value."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(message)


class Process:
    """A program that prints a line when it is ready, and is ended behind the block."""

    def __init__(self, *command, stdin=None, **environment):
        self.run = subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, text=True, env=os.environ | environment)
        self.line = self.run.stdout.readline().strip()
        self.pid = self.run.pid
        need(self.line, f"{command} printed nothing")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.run.kill()
        self.run.send_signal(signal.SIGCONT)
        self.run.wait()
        self.run.stdout.close()
        if self.run.stdin is not None:
            self.run.stdin.close()


class Instances(Process):
    """A process with these instances ("default": the default one). Each reports, and makes progress by itself."""

    def __init__(self, *names):
        super().__init__(program("metrics_instances"), *names, stdin=subprocess.PIPE)
        self.urls = dict(zip(names, self.line.split(), strict=True))
        until(lambda: self.reports() == len(names), "the instances do not answer")

    def reports(self):
        done = subprocess.run([program("bmi-info"), "--process", str(self.pid)], capture_output=True, text=True, timeout=PATIENCE_S)
        return len(re.findall(r"^end$", done.stdout, re.M))

    def order(self, what, name):
        """stall: the instance makes no progress; go: it does again; end: it is closed"""
        print(what, name, file=self.run.stdin, flush=True)
        need(self.run.stdout.readline() == "done\n", f"{what} {name}")


def program(name):
    return os.path.join(BIN, name)


def server(*arguments, **environment):
    """A server that answers: its socket is there once it waits for messages."""
    one = Process(program("hello_server"), *arguments, BMI_REPORT="on", **environment)
    until(lambda: status_of(program("bmi-info"), "--process", str(one.pid)) == 0, "the server does not answer")
    return one


def fake(*arguments):
    return Process(sys.executable, "-c", FAKE, *arguments)


def exporter(*options):
    return Process(program("bmi-metrics"), "--listen", "127.0.0.1:0", *options)


def fetch(at, accept=OPENMETRICS, method="GET", path="/metrics"):
    """(status, type, body)"""
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(at.line).netloc, timeout=PATIENCE_S)
    try:
        connection.request(method, path, headers={"Accept": accept})
        answer = connection.getresponse()
        return answer.status, answer.getheader("Content-Type"), answer.read().decode()
    finally:
        connection.close()


def scrape(at):
    """The samples of the page, which comes before Prometheus would give up."""
    start = time.monotonic()
    status, kind, body = fetch(at)
    need(status == 200 and kind.startswith("application/openmetrics-text; version=1.0.0"), f"{status} {kind}")
    need(time.monotonic() - start < SCRAPE_S, "the scrape took too long")
    return check(body)


def of(samples, pid, name):
    """[(labels, value)] of a process."""
    found = [(dict(labels), value) for (sample, labels), value in samples.items() if sample == name]
    return [(labels, value) for labels, value in found if labels.get("pid") == str(pid)]


def value(samples, pid, name):
    found = of(samples, pid, name)
    need(len(found) == 1, f"{name} of {pid}: {found}")
    return found[0][1]


def up(samples, pid):
    found = of(samples, pid, "bmi_up")
    return found[0][1] if found else None


def connect(at):
    host, port = urllib.parse.urlsplit(at.line).netloc.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=PATIENCE_S)


def ended(connection):
    """Whether the other side ends the connection before the test's patience does."""
    try:
        while connection.recv(65536):
            pass
    except ConnectionError:
        pass
    return True


def status_of(*command):
    return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=PATIENCE_S).returncode


# ---- bmi-info ---------------------------------------------------------------------------------------


def info(pid, *options):
    done = subprocess.run([program("bmi-info"), "--process", str(pid), *options], stdout=subprocess.PIPE, check=True,
                          timeout=PATIENCE_S)
    return done.stdout.decode()


def ping(url):
    """A client that stays."""
    return Process(program("bmi-ping"), "-i", "0.01", url)


def report_as_metrics():
    with server() as one, ping(one.line):
        samples = check(info(one.pid, "--openmetrics"))
        text = info(one.pid)
        need(value(samples, one.pid, "bmi_accepts_total") == 1, "accepts")
        need(re.search(r"^  accepts +1$", text, re.M), text)
        need(value(samples, one.pid, "bmi_build_info") == 1, "build")
        need(value(samples, one.pid, "bmi_memory_limit_bytes") == 1 << 28, "total_memory")
        need(of(samples, one.pid, "bmi_listen_info")[0][0]["address"] == one.line, "the address")
        states = {labels["state"]: count for labels, count in of(samples, one.pid, "bmi_peers")}
        need(states["up"] == 1 and sum(states.values()) == 1, states)
        need(all(sample.startswith("bmi_") for sample, _ in samples), "prefix")
        # every total of the report has a metric, with the number of the report where it stands still
        lines = re.findall(r"^  ([a-z_]+) +\d+$", text, re.M)
        simple = [s for s, labels in samples if {n for n, _ in labels} == {"pid", "process"}]
        need(len(lines) == 28 and len(simple) == len(lines) + 8, f"{len(lines)} lines, {len(simple)} metrics")
        need(value(samples, one.pid, "bmi_method_connections") == 1, "connections")
        need(not any(s.startswith("bmi_peer_") for s, _ in samples), "peers without --peers")
        peers = check(info(one.pid, "--openmetrics", "--peers"))
        need(of(peers, one.pid, "bmi_peer_connected")[0][1] == 1, "a peer with --peers")
        need(re.fullmatch(r"127\.0\.0\.1:\d+", of(peers, one.pid, "bmi_peer_connected")[0][0]["peer"]), "its name")
    need(status_of(program("bmi-info"), "--openmetrics") == 2, "--openmetrics alone")
    need(status_of(program("bmi-info"), "--process", "1", "--peers") == 2, "--peers alone")
    need(status_of(program("bmi-info"), "--process", str(os.getpid()), "--openmetrics") == 1, "no report")


# ---- reports ----------------------------------------------------------------------------------------


def live_server():
    with server() as one, exporter() as at, ping(one.line):
        need(re.fullmatch(r"http://127\.0\.0\.1:\d+/metrics", at.line), at.line)
        samples = scrape(at)
        need(up(samples, one.pid) == 1, "a live process")
        need(of(samples, one.pid, "bmi_up")[0][0]["process"] == "hello_server", "its name")
        need(value(samples, one.pid, "bmi_accepts_total") == 1, "accepts")
        need(("bmi_metrics_reports_failed_total", ()) in samples, "metrics of the program itself")
        before = value(samples, one.pid, "bmi_method_frames_received_total")
        until(lambda: value(scrape(at), one.pid, "bmi_method_frames_received_total") > before, "it stands still")
        status, kind, body = fetch(at, accept="*/*")
        need(status == 200 and kind.startswith("text/plain; version=0.0.4"), kind)
        need("# TYPE bmi_accepts_total counter\n" in body and "# EOF" not in body and "# UNIT" not in body, body)
        one.run.kill()
        one.run.wait()
        until(lambda: up(scrape(at), one.pid) is None, "a process that has ended is still there")


def strange_text():
    with fake("strange") as one, exporter("--peers") as at:
        samples = scrape(at)
        need(up(samples, one.pid) == 1 and value(samples, one.pid, "bmi_accepts_total") == 7, "the report")
        need(value(samples, one.pid, "bmi_memory_used_bytes") == 5, "memory")
        peers = {labels["peer"]: v for labels, v in of(samples, one.pid, "bmi_peer_connected")}
        bidi = "\\x1b[2J\\xff\\xe2\\x80\\xae"
        need(set(peers) == {'a"b\\c', bidi, "a\\nb", "twice", "long" + "\u00e4" * 4000}, set(peers))
        need(of(samples, one.pid, "bmi_peer_identity_info")[0][0]["identity"] == '"x\\', "identity")
        errors = {labels["peer"]: v for labels, v in of(samples, one.pid, "bmi_peer_operation_errors_total")}
        need(errors[bidi] == 9 and errors["twice"] == 0, errors)
        sent = {labels["peer"]: v for labels, v in of(samples, one.pid, "bmi_peer_messages_sent_total")}
        need(sent["twice"] == 2 and peers["twice"] == 1, "two peers of one name")
        states = {labels["state"]: v for labels, v in of(samples, one.pid, "bmi_peers")}
        need(states["up"] == 5 and states["gone"] == 1, states)


def bad_reports():
    with server() as good, exporter() as at, fake("cut") as cut, fake("endless") as endless, fake("drip") as drip:
        failed = scrape(at)["bmi_metrics_reports_failed_total", ()]
        samples = scrape(at)
        for one in cut, endless, drip:
            need(up(samples, one.pid) == 0, f"{one.run.args[3]} is up")
            need(not of(samples, one.pid, "bmi_accepts_total"), f"{one.run.args[3]} has numbers")
        need(up(samples, good.pid) == 1, "another process suffers")
        need(samples["bmi_metrics_reports_failed_total", ()] >= failed + 3, "failed reports are not counted")
    with exporter() as at, fake("exit") as one:
        need(up(scrape(at), one.pid) in (None, 0), "a process that ends within its report is up")
    with exporter() as at, fake("fine", str(os.getpid())) as other:
        samples = scrape(at)
        need(up(samples, os.getpid()) is None and up(samples, other.pid) is None, "another's name was believed")
        need(samples["bmi_metrics_reports_failed_total", ()] >= 1, "it is not counted")


def large_reports():
    with exporter() as at, fake("methods") as one:
        samples = scrape(at)
        need(value(samples, one.pid, "bmi_method_handshakes_total") == 3, "a method beside those with long names")
        need(not of(samples, one.pid, "bmi_listen_info"), "a long address")
        size = len(fetch(at)[2])
        need(size < 100000, f"long names make a page of {size} bytes")
    with exporter() as at, contextlib.ExitStack() as stack:
        endless = [stack.enter_context(fake("endless")) for _ in range(20)]
        one = stack.enter_context(fake("late"))
        until(lambda: up(scrape(at), one.pid) == 1, "too large reports take the room of others")
        samples = scrape(at)
        need(all(up(samples, other.pid) == 0 for other in endless), "a report without an end")


def stopped_process():
    with server() as one, server() as other, exporter() as at:
        one.run.send_signal(signal.SIGSTOP)
        for _ in range(2):
            samples = scrape(at)
            need(up(samples, one.pid) == 0 and up(samples, other.pid) == 1, "a stopped process")
            need(of(samples, one.pid, "bmi_up")[0][0]["process"] == "hello_server", "its name")
        one.run.send_signal(signal.SIGCONT)
        until(lambda: up(scrape(at), one.pid) == 1, "a process that goes on")


def credentials():
    if not os.path.exists(program("bmi-keys")):
        print("  credentials: not run, this build has no bmi-keys")
        return
    with tempfile.TemporaryDirectory() as keys:
        for words in ["authority", keys], ["--days", "20", "host", keys, "server", "127.0.0.1"], ["--days", "5", "revoke", keys]:
            need(status_of(program("bmi-keys"), *words) == 0, f"bmi-keys {words}")
        files = {"BMI_TLS_CERTIFICATE": "server.pem", "BMI_TLS_KEY": "server.key", "BMI_TLS_AUTHORITIES": "authority.pem",
                 "BMI_TLS_REVOCATIONS": "revoked.pem"}
        environment = {name: os.path.join(keys, file) for name, file in files.items()}
        with server("tls://127.0.0.1:0", **environment) as one:
            samples = check(info(one.pid, "--openmetrics"))
            for name, days in ("bmi_certificates", 20), ("bmi_revocations", 5):
                left_s = value(samples, one.pid, name + "_expiry_timestamp_seconds") - time.time()
                need((days - 1) * 86400 < left_s <= days * 86400, f"{name}: {left_s} s")
            before = value(samples, one.pid, "bmi_certificates_expiry_timestamp_seconds")
            need(status_of(program("bmi-keys"), "--days", "9", "host", keys, "renewed", "127.0.0.1") == 0, "bmi-keys host")
            os.replace(os.path.join(keys, "renewed.pem"), environment["BMI_TLS_CERTIFICATE"])
            after = value(check(info(one.pid, "--openmetrics")), one.pid, "bmi_certificates_expiry_timestamp_seconds")
            need(before - 12 * 86400 < after < before - 10 * 86400, f"a renewed certificate: {after} after {before}")
    with server() as one:
        samples = check(info(one.pid, "--openmetrics"))
        need(not of(samples, one.pid, "bmi_certificates_expiry_timestamp_seconds"), "credentials of tcp")


def other_users():
    if os.geteuid() != 0:
        print("  another user: not run, it needs root")
        return
    with server() as one, Process("setpriv", "--reuid", "65534", "--clear-groups", program("bmi-metrics"), "--listen",
                                  "127.0.0.1:0") as at:
        need(up(scrape(at), one.pid) is None, "another user's process is shown")
    with exporter() as at, fake("user") as one:
        samples = scrape(at)
        need(up(samples, one.pid) is None, "the socket of another user's process is believed")
        need(samples["bmi_metrics_reports_failed_total", ()] >= 1, "it is not counted")


# ---- instances --------------------------------------------------------------------------------------


def ups(samples, pid):
    """{name of an instance: bmi_up}; None is the default one, which has no label."""
    found = of(samples, pid, "bmi_up")
    by_name = {labels.get("bmi_instance"): v for labels, v in found}
    need(len(found) == len(by_name), found)
    return by_name


def by_instance(samples, pid, name):
    return {labels.get("bmi_instance"): v for labels, v in of(samples, pid, name)}


def once(samples, pid):
    """Numbers of the process itself are not multiplied by its instances."""
    found = of(samples, pid, "bmi_build_info")
    need(len(found) == 1 and set(found[0][0]) == {"pid", "process", "version"}, found)


def several_instances():
    with Instances("default", "data", "control") as one, ping(one.urls["data"]):
        samples = check(info(one.pid, "--openmetrics", "--peers"))
        need(ups(samples, one.pid) == {None: 1, "data": 1, "control": 1}, ups(samples, one.pid))
        once(samples, one.pid)
        need(by_instance(samples, one.pid, "bmi_accepts_total") == {None: 0, "data": 1, "control": 0}, "accepts")
        need(by_instance(samples, one.pid, "bmi_peer_connected") == {"data": 1}, "the peer")
        urls = {labels.get("bmi_instance", "default"): labels["address"] for labels, _ in of(samples, one.pid, "bmi_listen_info")}
        need(urls == one.urls, urls)
        need(all(dict(labels)["process"] == "metrics_instanc" for _, labels in samples), "the name of the program")
        text = info(one.pid)
        need(re.findall(r"^libbmi .*?, process \d+ \(metrics_instanc\)(.*)$", text, re.M) ==
             ["", ", instance control", ", instance data"], text)
        one.order("stall", "control")
        done = subprocess.run([program("bmi-info"), "-p", str(one.pid), "-o"], capture_output=True, text=True, timeout=PATIENCE_S)
        need(done.returncode == 1 and f"control of process {one.pid} does not answer" in done.stderr, done)
        need(ups(check(done.stdout), one.pid) == {None: 1, "data": 1, "control": 0}, "bmi-info, a stalled instance")
    with Instances("data", "control") as one:
        samples = check(info(one.pid, "--openmetrics"))
        need(ups(samples, one.pid) == {"data": 1, "control": 1}, "a process without a default instance")
        once(samples, one.pid)


def instances_served():
    with Instances("default", "data", "control") as one, server() as other, exporter() as at, ping(one.urls["data"]):
        samples = scrape(at)
        need(ups(samples, one.pid) == {None: 1, "data": 1, "control": 1}, ups(samples, one.pid))
        need(ups(samples, other.pid) == {None: 1}, ups(samples, other.pid))
        need(by_instance(samples, one.pid, "bmi_accepts_total") == {None: 0, "data": 1, "control": 0}, "accepts")
        once(samples, one.pid)
        one.order("stall", "control")
        failed = samples["bmi_metrics_reports_failed_total", ()]
        samples = scrape(at)
        need(ups(samples, one.pid) == {None: 1, "data": 1, "control": 0}, "a stalled instance")
        need(ups(samples, other.pid) == {None: 1}, "another process suffers")
        need(set(by_instance(samples, one.pid, "bmi_contexts")) == {None, "data"}, "a stalled instance has numbers")
        need(samples["bmi_metrics_reports_failed_total", ()] >= failed + 1, "it is not counted")
        once(samples, one.pid)
        one.order("go", "control")
        need(ups(scrape(at), one.pid) == {None: 1, "data": 1, "control": 1}, "an instance that goes on")
        one.order("end", "data")
        samples = scrape(at)
        need(ups(samples, one.pid) == {None: 1, "control": 1}, "an instance that has ended")
        need(not any(dict(labels).get("bmi_instance") == "data" for _, labels in samples), "metrics of it")
        one.order("end", "default")
        samples = scrape(at)
        need(ups(samples, one.pid) == {"control": 1}, "a process without a default instance")
        once(samples, one.pid)
        one.order("end", "control")
        samples = scrape(at)
        need(not ups(samples, one.pid) and not of(samples, one.pid, "bmi_build_info"), "a process without instances")


def crowd_of_instances():
    with exporter() as at, fake("crowd") as one, server() as other:
        samples = scrape(at)
        found = ups(samples, one.pid)
        need(found.pop(None) == 1, "the default instance")
        need(len(found) == 64 and set(found) < {str(i) for i in range(70)}, found)
        need(not any(found.values()), "instances that do not answer are up")
        need(samples["bmi_metrics_reports_skipped", ()] >= 6, "those left out are not counted")
        need(up(samples, other.pid) == 1, "another process suffers")


# ---- clients ----------------------------------------------------------------------------------------


def raw(at, request):
    """The status line of the answer to these bytes."""
    with connect(at) as connection:
        connection.sendall(request)
        answer = b""
        while part := connection.recv(65536):
            answer += part
        return answer.split(b"\r\n")[0].decode()


def requests():
    quiet = "exec 2>\"$1\"; exec \"$0\" --listen 127.0.0.1:0"
    with tempfile.NamedTemporaryFile() as log, Process("sh", "-c", quiet, program("bmi-metrics"), log.name) as at:
        need(fetch(at, path="/")[0] == 404 and fetch(at, path="/metrics2")[0] == 404, "another page")
        need(fetch(at, path="/metrics?a=b")[0] == 200, "a query")
        need(fetch(at, method="POST")[0] == 405, "POST")
        need(raw(at, b"GET nonsense\r\n\r\n") == "HTTP/1.1 400 Bad Request", "nonsense")
        need(raw(at, b"nonsense\r\n\r\n") == "", "more nonsense")
        need(raw(at, b"GET /metrics HTTP/1.1\0\r\n\r\n") == "HTTP/1.1 400 Bad Request", "a NUL")
        need(raw(at, b"GET /metrics HTTP/1.1\r\nA: " + b"x" * 20000) ==
             "HTTP/1.1 431 Request Header Fields Too Large", "a long request")
        need(raw(at, b"GET /metrics HTTP/1.0\n\n") == "HTTP/1.1 200 OK", "plain newlines")
        with connect(at) as connection:  # in pieces
            for byte in b"GET /metrics HTTP/1.1\r\n\r\n":
                connection.sendall(bytes([byte]))
            need(connection.recv(15) == b"HTTP/1.1 200 OK", "a request in pieces")
        need(log.read() == b"", "clients write to the log")


def requests_together():
    """While a page waits for a stopped process, more requests come: they have pages in common."""
    with server() as one, exporter() as at:
        one.run.send_signal(signal.SIGSTOP)
        clients = [connect(at) for _ in range(8)]
        for client in clients:
            client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        pages = [client.makefile("rb").read().split(b"\r\n\r\n")[1] for client in clients]
        need(all(b"bmi_metrics_collection_duration_seconds" in page for page in pages), "a page is not whole")
        need(len(set(pages)) < len(pages), "each request has a page of its own")
        for client in clients:
            client.close()


def descriptors(at):
    return len(os.listdir(f"/proc/{at.pid}/fd"))


def accepts(connection):
    """Whether the other side still takes bytes."""
    try:
        connection.sendall(b"x")
        return True
    except ConnectionError:
        return False


def dripping_client():
    with exporter() as at, connect(at) as drip:
        drip.sendall(b"GET /metrics HTTP/1.1\r\nA: ")
        until(lambda: not accepts(drip), "a request that never ends is waited for")


def stalling_clients():
    with server() as one, exporter() as at:
        none = descriptors(at)
        with connect(at) as half, connect(at) as slow:
            half.sendall(b"GET /metrics HT")
            slow.sendall(b"GET /metrics HT")
            until(lambda: descriptors(at) == none + 2, "the connections are not accepted")
            slow.sendall(b"TP/1.1\r\n\r\n")
            need(slow.recv(15) == b"HTTP/1.1 200 OK", "a slow client")
            need(up(scrape(at), one.pid) == 1, "a stalled client stops others")
            need(ended(half), "half a request is waited for")
        crowd = [connect(at) for _ in range(200)]
        try:
            for connection in crowd[::2]:
                try:
                    connection.sendall(b"GET /metrics")
                except ConnectionError:
                    pass
            for _ in range(3):
                need(up(scrape(at), one.pid) == 1, "a crowd stops others")
                need(descriptors(at) <= none + CLIENTS, f"{descriptors(at)} descriptors")
        finally:
            for connection in crowd:
                connection.close()
        until(lambda: descriptors(at) == none, "connections are left")


def sip(connection, flags=socket.MSG_DONTWAIT):
    """Some of the bytes that have come."""
    try:
        return connection.recv(8192, flags)
    except OSError:
        return b""


def client_that_does_not_read():
    with fake("many") as one, exporter("--peers") as at:
        none = descriptors(at)
        deaf = []
        for _ in range(3):
            connection = connect(at)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            deaf.append(connection)
        for connection in deaf:
            select.select([connection], [], [], PATIENCE_S)
        samples = scrape(at)
        need(len(of(samples, one.pid, "bmi_peer_connected")) == 20000, "the large page")
        with connect(at) as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            slow.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            answer = bytearray(slow.recv(16384))
            until(lambda: answer.extend(sip(slow)) or descriptors(at) == none, "a client that does not read is not ended")
            while part := sip(slow, 0):
                answer += part
            size = int(re.search(rb"Content-Length: (\d+)\r\n", answer)[1])
            need(len(answer) < size, "a client that reads slowly is waited for")
        for connection in deaf:
            connection.close()


# ---- start and end ----------------------------------------------------------------------------------


def start_and_end():
    for number in signal.SIGTERM, signal.SIGINT:
        with exporter() as at, connect(at) as half, connect(at) as deaf:
            half.sendall(b"GET")
            deaf.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            at.run.send_signal(number)
            need(at.run.wait(PATIENCE_S) == 0, f"status {at.run.returncode} after a signal")
    metrics = program("bmi-metrics")
    with exporter() as at:
        need(status_of(metrics, "--listen", urllib.parse.urlsplit(at.line).netloc) == 1, "a port that is in use")
    need(status_of(metrics) == 2 and status_of(metrics, "--listen", "127.0.0.1:0", "more") == 2, "wrong usage")
    for address in "127.0.0.1", "::1:0", "127.0.0.1:", "127.0.0.1:http":
        need(status_of(metrics, "--listen", address) == 1, address)
    need(status_of(metrics, "--version") == 0 and status_of(metrics, "--help") == 0, "--version, --help")
    need(status_of("sh", "-c", f"'{metrics}' --listen 127.0.0.1:0 >/dev/full") == 1, "no output")


def main():
    cases = [report_as_metrics, several_instances, credentials]
    if os.path.exists(program("bmi-metrics")):
        cases += [live_server, strange_text, bad_reports, large_reports, stopped_process, other_users, instances_served,
                  crowd_of_instances, requests, requests_together,
                  dripping_client, stalling_clients, client_that_does_not_read, start_and_end]
    else:
        print("  bmi-metrics: not run, this build has none (it needs libmicrohttpd)")
    for case in cases:
        start = time.monotonic()
        case()
        print(f"{case.__name__}: ok, {time.monotonic() - start:.1f} s", flush=True)


if __name__ == "__main__":
    try:
        main()
    except (AssertionError, Bad) as error:
        sys.exit(f"FAILED: {error!r}"[:4000])
