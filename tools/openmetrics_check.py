#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Checks OpenMetrics 1.0 text, as far as bmi-info and bmi-metrics use it: gauges, counters, infos.

usage: openmetrics_check.py < TEXT
"""
import re
import sys

SUFFIXES = {"gauge": "", "counter": "_total", "info": "_info"}
SAMPLE = re.compile(r'([a-z_][a-z0-9_]*)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)*)\})? (\S+)')
LABEL = re.compile(r'([a-z_]+)="((?:[^"\\\n]|\\["\\n])*)"(?:,|$)')
ESCAPES = {'\\"': '"', "\\\\": "\\", "\\n": "\n"}


class Bad(Exception):
    pass


def labels_of(text, line):
    """{name: value} of what stands within the braces."""
    pairs = LABEL.findall(text or "")
    labels = {name: re.sub(r'\\["\\n]', lambda m: ESCAPES[m.group()], value) for name, value in pairs}
    if ",".join(f'{name}="{value}"' for name, value in pairs) != (text or "") or len(labels) != len(pairs):
        raise Bad(f"labels: {line}")
    return labels


class Checker:
    def __init__(self):
        self.types, self.described, self.samples = {}, set(), {}
        self.family = None

    def describe(self, line):
        _, what, name, value = line.split(" ", 3)
        if what == "TYPE":
            if name in self.types or value not in SUFFIXES or not name.startswith("bmi_"):
                raise Bad(line)
            self.types[name], self.family = value, name
        elif what == "UNIT" and not name.endswith("_" + value):
            raise Bad(f"the name does not end in the unit: {line}")
        if what not in ("TYPE", "UNIT", "HELP") or name != self.family or (what, name) in self.described:
            raise Bad(line)
        self.described.add((what, name))

    def sample(self, line):
        match = SAMPLE.fullmatch(line)
        if match is None or self.family is None:
            raise Bad(f"no sample: {line}")
        name, labels, value = match.group(1), labels_of(match.group(2), line), float(match.group(3))
        kind = self.types[self.family]
        if name != self.family + SUFFIXES[kind]:
            raise Bad(f"a sample of another family than {self.family}: {line}")
        if (kind != "gauge" and value < 0) or (kind == "info" and value != 1):
            raise Bad(f"value: {line}")
        key = name, tuple(sorted(labels.items()))
        if key in self.samples:
            raise Bad(f"twice: {line}")
        self.samples[key] = value


def check(text):
    """Raises Bad; or returns {(name of a sample, ((label, value), ...)): number}."""
    if not text.endswith("\n# EOF\n"):
        raise Bad("no # EOF at the end")
    checker = Checker()
    for line in text[:-len("# EOF\n") - 1].split("\n"):
        if line.startswith("# "):
            checker.describe(line)
        else:
            checker.sample(line)
    for name in checker.types:
        if ("HELP", name) not in checker.described:
            raise Bad(f"{name} has no HELP")
    return checker.samples


if __name__ == "__main__":
    try:
        check(sys.stdin.buffer.read().decode())
    except (Bad, ValueError) as error:
        sys.exit(f"not OpenMetrics: {error}")
