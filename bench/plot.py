#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Draws a results file of bmi-bench (--json) as SVG, to standard output.

usage: plot.py RESULTS.json >DRAWING.svg
       plot.py --check RESULTS.json DRAWING.svg    whether the drawing is that of the results

A group of bars for each row (servers x clients, or the size of the message), a bar for each library: the median, with
a whisker from the least to the greatest sample. Below a group stands the ratio of bmi to each other library.
bmi-bench --plot draws while it measures; this script needs the results only.
"""
import json
import math
import statistics
import sys

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM, LINE = 760, 440, 80, 20, 72, 48, 17
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#e69f00", "#56b4e9", "#cc79a7")  # also for colour-blind readers


def size_text(size):
    for unit, power in (("MiB", 20), ("KiB", 10)):
        if size >= 1 << power and size % (1 << power) == 0:
            return f"{size >> power} {unit}"
    return str(size)


def read(path):
    """(pattern, method, unit, {row: {library: samples}}) of a results file."""
    with open(path, encoding="utf-8") as file:
        results = [json.loads(line) for line in file]
    if len({(r["pattern"], r["unit"]) for r in results}) != 1:
        sys.exit(f"{path}: not the results of one pattern in one unit")
    if any(r.get("verify") for r in results):
        sys.exit(f"{path}: a run with --verify is no measurement")
    grids = len({(r["servers"], r["clients"]) for r in results}) > 1
    rows = {}
    for r in results:
        row = f"{r['servers']}×{r['clients']}" if grids else size_text(r["size"])
        rows.setdefault(row, {})[r["implementation"]] = r["samples"]
    return results[0]["pattern"], results[0]["method"], results[0]["unit"], rows


def text(x, y, words, extra=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" {extra}>{words}</text>'


def axis(most):
    """Step and end of an axis from 0: about five steps of 1, 2, or 5 times a power of ten."""
    power = 10 ** math.floor(math.log10(most / 5))
    step = next(f for f in (1, 2, 5, 10) if most / 5 <= f * power) * power
    return step, math.ceil(most / step) * step


def draw(pattern, method, unit, rows):
    libraries = list(dict.fromkeys(name for row in rows.values() for name in row))
    others = [name for name in libraries if name != "bmi"]
    height = HEIGHT + LINE * len(others)
    step, top = axis(max(max(samples) for row in rows.values() for samples in row.values()))
    floor = HEIGHT - BOTTOM
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
           'font-family="sans-serif" font-size="13">', '<rect width="100%" height="100%" fill="#fff"/>',
           text(LEFT, 24, f"{pattern} over {method}, {unit}", 'font-size="16" font-weight="bold"')]
    count = max(len(samples) for row in rows.values() for samples in row.values())
    out.append(text(WIDTH - RIGHT, 24, f"median of {count}, whiskers from least to greatest", 'text-anchor="end" fill="#555"'))

    def y(value):
        return floor - value / top * (floor - TOP)

    for i in range(round(top / step) + 1):
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(i * step):.1f}" y2="{y(i * step):.1f}" stroke="#ddd"/>')
        out.append(text(LEFT - 8, y(i * step) + 4.5, f"{i * step:g}", 'text-anchor="end"'))
    for i, name in enumerate(libraries):
        out.append(f'<rect x="{LEFT + 130 * i}" y="40" width="14" height="14" fill="{COLOURS[i % len(COLOURS)]}"/>')
        out.append(text(LEFT + 130 * i + 20, 52, name))
    for i, name in enumerate(others):
        out.append(text(LEFT - 8, floor + 20 + LINE * (i + 1), f"to {name}", 'text-anchor="end" fill="#555"'))

    room = (WIDTH - LEFT - RIGHT) / len(rows)
    width = min(0.7 * room / len(libraries), 60)
    for i, (row, values) in enumerate(rows.items()):
        middle = LEFT + (i + 0.5) * room
        median = {name: statistics.median(samples) for name, samples in values.items()}
        out.append(text(middle, floor + 20, row, 'text-anchor="middle"'))
        for j, name in enumerate(libraries):
            if name not in values:
                continue
            x = middle + (j - len(libraries) / 2) * width
            out.append(f'<rect x="{x + 1:.1f}" y="{y(median[name]):.1f}" width="{width - 2:.1f}" '
                       f'height="{floor - y(median[name]):.1f}" fill="{COLOURS[j % len(COLOURS)]}"/>')
            low, high = y(min(values[name])), y(max(values[name]))
            out.append(f'<path d="M{x + width / 2:.1f} {low:.1f}V{high:.1f}" stroke="#333" fill="none"/>')
        for j, name in enumerate(others):
            if name in median and "bmi" in median:
                out.append(text(middle, floor + 20 + LINE * (j + 1), f"{median['bmi'] / median[name]:.2f}",
                                'text-anchor="middle" fill="#555"'))
    out.append("</svg>")
    return "\n".join(out)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        print(draw(*read(sys.argv[1])))
    elif len(sys.argv) == 4 and sys.argv[1] == "--check":
        with open(sys.argv[3], encoding="utf-8") as drawing:
            if drawing.read() != draw(*read(sys.argv[2])) + "\n":
                sys.exit(f"{sys.argv[3]} does not show {sys.argv[2]}: bench/plot.py {sys.argv[2]} >{sys.argv[3]}")
    else:
        sys.exit(__doc__)
