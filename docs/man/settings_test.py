#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Checks that the manual pages agree with the settings of this build, as bmi-info prints them.

usage: settings_test.py PAGES BMI-INFO...    the folder of the pages; the command, with its emulator if any

The section SETTINGS of bmi-settings.7, and of the page of each method, has an entry for each setting:

    .It Cm peer_memory Pq bytes, 32K to 1G; default 1M

bmi-settings.7 has every setting once, and no other one. Units, ranges, and defaults are those of the library, which also
takes the bounds as they are written. The entries of its part "Method tcp" are those of bmi-tcp.7, and so on. A part whose
method is not in this build is compared with the method's page only.
"""
import json
import os
import pathlib
import re
import subprocess
import sys

ENTRY = re.compile(r"\.It Cm (\w+) Pq ([a-z]+), (.+); default (.+)")
# a name of a setting in the text, also of one that does not exist
NAME = re.compile(r"\b(?:tcp|tls|gm|ofi(?!_rxm)|unix|registration|handshakes?)_[a-z_]*[a-z]\b")
SUFFIXES = {"_ms": "ms", "_us": "us", "_s": "s"}
faults = []


def check(good, text):
    if not good:
        faults.append(text)


def info(command, variables):
    """What bmi-info prints, with no setting in its environment but these."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("BMI_")}
    run = subprocess.run(command + ["--json"], env=environment | {"BMI_LOG": "error"} | variables, text=True,
                         capture_output=True, check=False)
    if run.returncode != 0:
        sys.exit(f"bmi-info does not start: {run.stderr}")
    return json.loads(run.stdout)


def entries(page):
    """{part: {name: (unit, range, default)}} of the section SETTINGS; the first part is ''."""
    parts, inside, part = {}, False, ""
    for line in page.read_text().splitlines():
        if line.startswith(".Sh "):
            inside, part = line == ".Sh SETTINGS", ""
        elif line.startswith(".Ss "):
            part = line[4:]
        elif inside and line.startswith(".It Cm "):
            entry = ENTRY.fullmatch(line)
            check(entry, f"{page.name}: not the form of an entry: {line}")
            if entry:
                check(not any(entry[1] in names for names in parts.values()), f"{page.name}: {entry[1]} is there twice")
                parts.setdefault(part, {})[entry[1]] = entry.groups()[1:]
    return parts


def number(text, unit):
    """The number as bmi-info prints it; the text itself if it is none."""
    match = re.fullmatch("([0-9]+)([KMG]?)", text)
    if not match or (match[2] and unit != "bytes"):
        return text
    return str(int(match[1]) << 10 * " KMG".index(match[2] or " "))


def valid(unit, bounds):
    """The range as bmi-info words it."""
    if unit == "text":
        return bounds.replace("up to", "a text of at most")
    if unit in ("switch", "word"):
        words = re.split(", or | or |, ", bounds)
        return ", ".join(words) + f", or 0 to {len(words) - 1}"
    return " to ".join(number(bound, unit) for bound in bounds.split(" to "))


def compare(name, entry, setting):
    unit, bounds, default = entry
    for suffix, wanted in SUFFIXES.items():
        if name.endswith(suffix):
            check(unit == wanted, f"{name}: the unit is {wanted}, not {unit}")
    if unit not in ("text", "switch", "word"):
        default = number(default, unit)
    elif default == "none":
        default = "(none)"
    check(default == setting["value"], f"{name}: the default is {setting['value']}, not {default}")
    check(valid(unit, bounds) == setting["valid"], f"{name}: valid is {setting['valid']}, not {bounds}")


def compare_bounds(command, wanted, at):
    """Sets each number to its lower (0) or upper (1) bound, as the page writes it."""
    bounds = {name: (unit, bounds.split(" to ")[at]) for name, (unit, bounds, _) in wanted.items() if " to " in bounds
              and unit != "text"}
    got = info(command, {"BMI_" + name.upper(): text for name, (_, text) in bounds.items()})["settings"]
    for setting in got:
        if setting["name"] in bounds:
            unit, text = bounds[setting["name"]]
            check(setting["value"] == number(text, unit), f"{setting['name']}={text} is {setting['value']}")


def main():
    pages, command = pathlib.Path(sys.argv[1]), sys.argv[2:]
    library = info(command, {"BMI_LOG": ""})
    settings = {s["name"]: s for s in library["settings"]}
    methods = {m["name"].removeprefix("bmi_") for m in library["methods"]}
    parts = entries(pages / "bmi-settings.7")
    listed = {name: entry for names in parts.values() for name, entry in names.items()}
    absent = set()
    for part, names in parts.items():
        if not part.startswith("Method "):
            continue
        method = part.removeprefix("Method ")
        own = {n: e for ns in entries(pages / f"bmi-{method}.7").values() for n, e in ns.items()}
        check(own == names, f"bmi-{method}.7 and bmi-settings.7 differ: {set(own.items()) ^ set(names.items())}")
        if method not in methods:
            print(f"{method} is not in this build: {', '.join(names)}")
            absent |= names.keys() - settings.keys()
    check(settings.keys() <= listed.keys(), f"bmi-settings.7 lacks {sorted(settings.keys() - listed.keys())}")
    check(listed.keys() <= settings.keys() | absent,
          f"bmi-settings.7 invents {sorted(listed.keys() - settings.keys() - absent)}")
    wanted = {name: listed[name] for name in listed.keys() & settings.keys()}
    for name, entry in wanted.items():
        compare(name, entry, settings[name])
    for page in pages.glob("bmi*.7"):
        for name in NAME.findall(page.read_text()):
            check(name in listed, f"{page.name}: there is no setting {name}")
    if not faults:
        compare_bounds(command, wanted, 0)
        compare_bounds(command, wanted, 1)
    print("\n".join(faults) or f"{len(wanted)} settings")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
