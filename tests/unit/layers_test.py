#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Checks that no layer of the core names a symbol of a layer above it.

usage: layers_test.py OBJECTS [--graph]    the folder of the library's object files (it holds bmi/base, methods, ...)

LAYERS lists the folders from the lowest to the highest. An object file may use symbols that its own folder or a lower one
defines. A lower layer calls a higher one by registered functions only. --graph prints every dependency between folders.
"""
import pathlib
import subprocess
import sys

LAYERS = ("task", "bmi/base", "bmi/progress", "bmi/state", "bmi/protocol", "bmi/connection", "bmi/dispatch", "bmi/api")
METHODS = "methods"  # uses what include/bmi/method.h declares; the core names the table of methods alone


def layer(name):
    for number, folder in enumerate(LAYERS):
        if name.startswith(folder + "/") or name.startswith(folder + "."):
            return number
    return None


def symbols(path):
    """(defined, undefined) global symbols of an object file."""
    out = subprocess.run(["nm", "-g", "-P", str(path)], check=True, capture_output=True, text=True).stdout
    defined, undefined = set(), set()
    for line in out.split("\n"):
        fields = line.split()
        if len(fields) >= 2:
            (undefined if fields[1] in "Uvw" else defined).add(fields[0])
    return defined, undefined


def main():
    objects = pathlib.Path(sys.argv[1])
    files = {}
    for path in sorted(objects.rglob("*.o")):
        name = str(path.relative_to(objects))
        if layer(name) is not None:
            files[name] = symbols(path)
    found = {layer(name) for name in files}
    if found != set(range(len(LAYERS))):
        sys.exit(f"no object files of {[LAYERS[n] for n in range(len(LAYERS)) if n not in found]} in {objects}")
    home = {symbol: name for name, (defined, _) in files.items() for symbol in defined}
    upward, graph = [], {}
    for name, (_, undefined) in files.items():
        for symbol in sorted(undefined):
            other = home.get(symbol)
            if other is None:
                continue
            pair = (LAYERS[layer(name)], LAYERS[layer(other)])
            graph[pair] = graph.get(pair, 0) + 1
            if layer(other) > layer(name):
                upward.append(f"{name} names {symbol} of {other}")
    if "--graph" in sys.argv:
        for (one, other), count in sorted(graph.items()):
            print(f"{one} -> {other}: {count}")
    print("\n".join(upward))
    print(f"{len(files)} object files, {sum(graph.values())} dependencies, {len(upward)} upward")
    sys.exit(1 if upward else 0)


main()
