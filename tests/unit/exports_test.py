#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Checks that libbmi.so exports what its map lists, and that the public headers declare the same.

usage: exports_test.py MAP LIBRARY INCLUDE [NM]    cmake/libbmi.map, libbmi.so, the folder of bmi.h, nm's name

INTERNAL names the headers that are for methods, which are part of the library: nothing of theirs is exported.
"""
import pathlib
import re
import subprocess
import sys

INTERNAL = ("bmi/lock.h", "bmi/method.h")


def mapped(path):
    """{symbol: version} of the map, and its faults."""
    text = re.sub(r"#.*", "", path.read_text())
    symbols, faults = {}, []
    for version, body in re.findall(r"([\w.]+)\s*\{(.*?)\}", text, re.S):
        names = re.search(r"global:(.*?)(?:local:|$)", body, re.S).group(1).split(";")
        names = [name.strip() for name in names if name.strip()]
        faults += [f"{path.name}: {name} is a pattern" for name in names if not re.fullmatch(r"\w+", name)]
        faults += [f"{path.name}: {name} is listed twice" for name in names if name in symbols]
        if names != sorted(names):
            faults.append(f"{path.name}: the symbols of {version} are not sorted")
        symbols.update((name, version) for name in names)
    return symbols, faults


def exported(library, nm):
    """{symbol: version} of the shared library."""
    out = subprocess.run([nm, "-D", "--defined-only", str(library)], check=True, capture_output=True, text=True).stdout
    lines = [line.split() for line in out.split("\n") if line]
    names = [re.split("@+", fields[-1]) for fields in lines if fields[-2] != "A"]  # absolute: a version's own symbol
    return {name[0]: name[1] if len(name) > 1 else None for name in names}


def declared(path):
    """The functions and variables that a header declares, without inline functions."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", path.read_text(), flags=re.S).replace("\\\n", " ")
    text = re.sub(r"^\s*#.*$", "", text, flags=re.M).replace('extern "C" {', "")
    while re.search(r"\{[^{}]*\}", text):  # bodies of structures, enumerations, and inline functions
        text = re.sub(r"\{[^{}]*\}", " BODY ", text)
    names = set()
    for statement in re.sub(r"(static inline [^;]*?BODY)", r"\1;", text).split(";"):
        statement = re.sub(r"__attribute__\s*\(\(.*?\)\)+", "", statement.replace("BODY", " "), flags=re.S).strip()
        if statement.startswith(("typedef", "static")):
            continue
        function = re.match(r"[\w\s*]*?\b(\w+)\s*\(", statement)
        variable = re.match(r"extern [\w\s*]*?(\w+)(?:\[\w*\])?$", statement)
        if function and function.group(1) != "_Static_assert":
            names.add(function.group(1))
        elif variable:
            names.add(variable.group(1))
    return names


def main():
    script, library, include = (pathlib.Path(argument) for argument in sys.argv[1:4])
    symbols, faults = mapped(script)
    there = exported(library, sys.argv[4] if len(sys.argv) > 4 else "nm")
    public = {}
    for path in [include / "bmi.h"] + sorted(include.glob("bmi/*.h")):
        header = str(path.relative_to(include))
        if header not in INTERNAL:
            public.update((name, header) for name in declared(path))
    if not there or not public:
        sys.exit(f"{library} exports {len(there)} symbols, {include} declares {len(public)}")
    faults += [f"{name}@{version} is exported and not in the map" for name, version in sorted(there.items())
               if symbols.get(name) != version]
    faults += [f"{name} is in the map and not exported" for name in sorted(set(symbols) - set(there))]
    faults += [f"{name} is in the map and in no public header" for name in sorted(set(symbols) - set(public))]
    faults += [f"{public[name]}: {name} is not in the map" for name in sorted(set(public) - set(symbols))]
    print("\n".join(faults))
    print(f"{len(there)} symbols exported, {len(public)} declared, {len(faults)} faults")
    sys.exit(1 if faults else 0)


main()
