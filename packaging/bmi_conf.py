#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Checks that bmi.conf beside this file has each setting with its help, valid values, and default, commented out.

usage: bmi_conf.py BMI_INFO [--write]    the program of the build; --write makes the file

A build without optional packages has fewer settings: then each of its entries has to be in the file. The entries without
their comments are also given to the library as a configuration file, which must change nothing.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap

FILE = pathlib.Path(__file__).with_name("bmi.conf")
METHODS = {"tls", "ofi+tcp"}  # those of optional packages that have settings
HEAD = """\
# SPDX-License-Identifier: BSD-3-Clause
#
# Settings of libbmi, each with its default. A program reads this file if its environment has
# BMI_CONFIG_FILE=/etc/bmi/bmi.conf. The environment (BMI_SPIN_US=0) and the program's own calls take
# precedence. An unknown name or a bad value keeps the program from starting: BMI_LOG=error in its
# environment shows the line. Numbers of bytes may end in K, M, or G.
"""


def info(program, **variables):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("BMI_")}
    out = subprocess.run([program, "--json", "--methods", "--settings"], check=True, capture_output=True, text=True,
                         env=environment | {"BMI_LOG": "error"} | variables).stdout
    return json.loads(out)


def entry(setting):
    value = "" if setting["value"] == "(none)" else " " + setting["value"]
    text = textwrap.wrap(f"{setting['help']}. Valid: {setting['valid']}.", 98)
    # BMI_LOG is in the environment here
    value = " off" if setting["name"] == "log" else value
    return "".join(f"# {line}\n" for line in text) + f"#{setting['name']} ={value}\n"


def assignments(text):
    return "".join(line[1:] + "\n" for line in text.split("\n") if line[:1] == "#" and line[1:2] not in ("", " "))


def main():
    program = sys.argv[1]
    data = info(program)
    settings = [s for s in data["settings"] if s["name"] != "config_file"]
    wanted = HEAD + "".join("\n" + entry(s) for s in settings)
    whole = METHODS <= {scheme for m in data["methods"] for scheme in [m["name"], *m["schemes"].replace(",", " ").split()]}
    if sys.argv[2:] == ["--write"]:
        if not whole:
            sys.exit(f"this build lacks a method of {', '.join(sorted(METHODS))}")
        FILE.write_text(wanted)
    have = FILE.read_text()
    missing = [s["name"] for s in settings if "\n" + entry(s) not in have]
    if missing:
        sys.exit(f"{FILE} has no entry, or another one, of {', '.join(missing)}; mend it by {sys.argv[0]} {program} --write")
    if whole and have != wanted:
        sys.exit(f"{FILE} has more than the settings of this library; mend it by {sys.argv[0]} {program} --write")
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as file:
        file.write(assignments(wanted))
        file.flush()
        same = [s for s in info(program, BMI_CONFIG_FILE=file.name)["settings"] if s["name"] != "config_file"]
    if same != settings:
        sys.exit(f"read as a file, the defaults are others: {[s for s in same if s not in settings]}")
    print(f"{len(settings)} settings{'' if whole else ', fewer than in the file'}: the same")


main()
