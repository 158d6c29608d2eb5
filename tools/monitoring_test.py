#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""The metrics as other programs see them: the alert rules, the dashboard, and Prometheus.

usage: monitoring_test.py BIN names         every metric of rules, dashboard, and docs is in the page
       monitoring_test.py BIN promtool      promtool accepts the page and the rules, and their tests pass
       monitoring_test.py BIN prometheus    Prometheus scrapes bmi-metrics, and answers queries of the dashboard
Exit status 77: the program of the package `prometheus` is not installed.
"""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request

from metrics_test import Instances, PATIENCE_S, exporter, fetch, need, ping, server, until

SOURCE = pathlib.Path(__file__).resolve().parent.parent
MONITORING = SOURCE / "packaging" / "monitoring"
RULES = MONITORING / "bmi.rules.yml"
CONFIGURATION = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: ['{rules}']
scrape_configs:
  - job_name: bmi
    static_configs: [{{targets: ['{target}']}}]
"""


def dashboard_queries():
    dashboard = json.loads((MONITORING / "bmi-dashboard.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queries += [re.sub(r"label_values\((.*), (\w+)\)", r"group by (\2) (\1)", variable["query"]["query"])
                for variable in dashboard["templating"]["list"] if variable["type"] == "query"]
    need(len(queries) > 20, "the dashboard has few queries")
    return [query.replace("$__rate_interval", "1m").replace("$instance", ".*").replace("$process", ".*")
            for query in queries]


def rule_queries():
    """The expressions of the rules, whose other lines may name metrics in words."""
    text = "\n".join(line for line in RULES.read_text().split("\n") if not line.strip().startswith(("#", "summary:")))
    need(text.count("- alert:") > 5, "few rules")
    return text


def metrics_of(text):
    return set(re.findall(r"\bbmi_[a-z0-9_]+\b", text)) - {"bmi_instance"}  # a label


def pages():
    """The text pages of a live server, a client, and a process of two instances, without and with --peers."""
    with server() as one, ping(one.line), Instances("default", "data"), exporter() as sums, exporter("--peers") as peers:
        return [fetch(at, accept="text/plain")[2] for at in (sums, peers)]


def names():
    sums, peers = [set(re.findall(r"^# TYPE (\S+)", page, re.M)) for page in pages()]
    need(metrics_of(rule_queries()) <= sums, f"rules: {metrics_of(rule_queries()) - sums}")
    used = metrics_of(" ".join(dashboard_queries()))
    need(used <= sums, f"dashboard: {used - sums}")
    document = set(re.findall(r"^\| `(bmi_\w+)` \|", (SOURCE / "docs" / "monitoring.md").read_text(), re.M))
    need(document == peers, f"docs/monitoring.md: {document ^ peers}")
    listed = set(re.findall(r"^\| `(\w+)` \|", (MONITORING / "README.md").read_text(), re.M))
    alerts = set(re.findall(r"- alert: (\w+)", RULES.read_text()))
    need(alerts == listed, f"packaging/monitoring/README.md: {alerts ^ listed}")
    tested = (MONITORING / "bmi.rules_test.yml").read_text()
    need(all(alert in tested for alert in alerts), "an alert has no test")


def promtool_run(*words, text=None):
    done = subprocess.run(["promtool", *words], input=text, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          timeout=PATIENCE_S)
    need(done.returncode == 0 and (text is None or not done.stdout), f"promtool {words}: {done.stdout}")


def promtool():
    for page in pages():
        promtool_run("check", "metrics", text=page)
    promtool_run("check", "rules", str(RULES))
    promtool_run("test", "rules", str(MONITORING / "bmi.rules_test.yml"))


# ---- Prometheus -------------------------------------------------------------------------------------


def listening_port(process):
    """The port of a process that listens at 127.0.0.1, or None."""
    if process.poll() is not None:
        raise AssertionError(f"prometheus ended with status {process.returncode}")
    try:
        targets = [entry.readlink() for entry in pathlib.Path(f"/proc/{process.pid}/fd").iterdir()]
    except FileNotFoundError: # one that is closed meanwhile
        return None
    sockets = {match.group(1) for match in (re.fullmatch(r"socket:\[(\d+)\]", str(t)) for t in targets) if match}
    for line in pathlib.Path(f"/proc/{process.pid}/net/tcp").read_text().split("\n")[1:]:
        words = line.split()
        if words and words[3] == "0A" and words[9] in sockets:
            return int(words[1].split(":")[1], 16)
    return None


def ask(port, path, **parameters):
    """The data of an answer of Prometheus' HTTP API; None: it is not ready."""
    url = f"http://127.0.0.1:{port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            body = json.load(answer)
    except urllib.error.HTTPError as error:
        if error.code == 503:
            return None
        raise AssertionError(f"{url}: {error.read()}") from error
    need(body["status"] == "success", body)
    return body["data"]


def query(port, text):
    data = ask(port, "query", query=text)
    return data["result"] if data else []


def scraped(port, one):
    """Prometheus has the metrics of a live server, with its numbers."""
    until(lambda: query(port, f'bmi_up{{pid="{one.pid}",process="hello_server"}} == 1'), "no bmi_up of the server")
    accepted = until(lambda: query(port, f'bmi_accepts_total{{pid="{one.pid}"}}'), "no accepts")
    need(accepted[0]["value"][1] == "1", accepted)
    until(lambda: query(port, f'rate(bmi_method_frames_received_total{{pid="{one.pid}",method="bmi_tcp"}}[30s]) > 0'),
          "no rate of a busy server")
    addresses = query(port, f'bmi_listen_info{{pid="{one.pid}"}}')
    need(addresses[0]["metric"]["address"] == one.line, addresses)
    target = ask(port, "targets")["activeTargets"][0]
    need(target["health"] == "up" and not target["lastError"], target)
    kinds = ask(port, "metadata", metric="bmi_sent_bytes") # as OpenMetrics, by which the unit comes
    need(kinds["bmi_sent_bytes"][0]["type"] == "counter" and kinds["bmi_sent_bytes"][0]["unit"] == "bytes", kinds)


def instances_scraped(port, one, target):
    """Both instances of a process, of which the default one has an empty label; `instance` is the target."""
    for name in "", "data":
        found = until(lambda: query(port, f'bmi_up{{pid="{one.pid}",bmi_instance="{name}"}} == 1'), f"no instance '{name}'")
        need(len(found) == 1 and found[0]["metric"]["instance"] == target, found)


def rules_work(port):
    def all_evaluated():
        rules = [rule for group in ask(port, "rules")["groups"] for rule in group["rules"]]
        need(not [rule for rule in rules if rule["health"] == "err"], rules)
        return len(rules) > 5 and all(rule["health"] == "ok" for rule in rules)

    until(all_evaluated, "the rules are not evaluated")


def prometheus():
    with tempfile.TemporaryDirectory() as folder, server() as one, ping(one.line), Instances("default", "data") as two, \
            exporter() as at:
        target = urllib.parse.urlsplit(at.line).netloc
        configuration = pathlib.Path(folder, "prometheus.yml")
        configuration.write_text(CONFIGURATION.format(rules=RULES, target=target))
        with open(pathlib.Path(folder, "log"), "w+") as log:
            process = subprocess.Popen(["prometheus", f"--config.file={configuration}", f"--storage.tsdb.path={folder}/data",
                                        "--web.listen-address=127.0.0.1:0"], stdout=log, stderr=log)
            try:
                port = until(lambda: listening_port(process), "prometheus does not listen")
                scraped(port, one)
                instances_scraped(port, two, target)
                rules_work(port)
                for text in dashboard_queries():
                    ask(port, "query", query=text)
            except BaseException:
                log.seek(0)
                print(log.read()[-4000:])
                raise
            finally:
                process.terminate()
                process.wait(PATIENCE_S)


def main():
    part = {"names": names, "promtool": promtool, "prometheus": prometheus}[sys.argv[2]]
    if part is not names and shutil.which(part.__name__) is None:
        print(f"skipped: {part.__name__} is not installed (package prometheus: scripts/deps)")
        return 77
    part()
    print(f"{part.__name__}: ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
