#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Checks that no layer of the core names a symbol of a layer above it, and no file of flow or job is in a circle.

usage: layers_test.py OBJECTS [--graph]    the folder of the library's object files (it holds bmi/base, methods, ...)

LAYERS lists the folders from the lowest to the highest. An object file may use symbols that its own folder or a lower one
defines. A lower layer calls a higher one by registered functions only. --graph prints every dependency between folders.
In the folders of NO_CIRCLES, files use each other in one direction, too.
"""
import pathlib
import subprocess
import sys

LAYERS = ("task", "bmi/base", "bmi/progress", "bmi/state", "bmi/protocol", "bmi/connection", "bmi/dispatch", "bmi/rpc", "bmi/api")
NO_CIRCLES = ("flow", "job")
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


def circles(folder):
    """What is left of the files of a folder once those that use no other one are taken away, again and again."""
    files = {path.name: symbols(path) for path in folder.glob("*.o")}
    home = {symbol: name for name, (defined, _) in files.items() for symbol in defined}
    uses = {name: {home[symbol] for symbol in undefined if symbol in home} - {name}
            for name, (_, undefined) in files.items()}
    while free := {name for name, others in uses.items() if not others & set(uses)}:
        uses = {name: others for name, others in uses.items() if name not in free}
    return len(files), sorted(uses)


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
    for folder in NO_CIRCLES:
        count, left = circles(objects / folder)
        if count == 0:
            sys.exit(f"no object files in {objects / folder}")
        if left:
            upward.append(f"{folder}: a circle among {', '.join(left)}")
    print("\n".join(upward))
    print(f"{len(files)} object files, {sum(graph.values())} dependencies, {len(upward)} faults")
    sys.exit(1 if upward else 0)


main()
