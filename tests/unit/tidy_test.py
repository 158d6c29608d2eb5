#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Checks the style that a compiler does not: sizes, headings, labels, and language.

usage: tidy_test.py SOURCE [--list]    the source tree; --list prints what tidy_allowed.txt has to hold

Sizes: 100 columns, 800 lines a file, 60 lines a function, CHANGELOG.md 8 KiB. Each C file begins with the SPDX line. The
comment of a public function has the labels Returns, Owns, Threads, Blocks. bmi/lock.h alone asks for the number of threads.
Prose has an acting subject: no clause of the kind "who waits is told".

docs/architecture.md names only files and functions that are there.

The version is the same in CMakeLists.txt, bmi.h, and Debian's changelog, and CHANGELOG.md has a section for it. Debian's list
of symbols knows each version of the symbol map.

Includes: a file of the core includes no header of a layer above its own; a method includes the two headers of bmi/ that
are for methods, its own folder, and what methods share. (layers_test.py checks the symbols of the object files.)

tidy_allowed.txt beside this file lists what breaks a rule today. An entry may only shrink: one that is larger than needed
fails, too.
"""
import pathlib
import re
import subprocess
import sys

COLUMNS, FILE_LINES, FUNCTION_LINES, CHANGELOG_BYTES = 100, 800, 60, 8192
LABELS = ("Returns:", "Owns:", "Threads:", "Blocks:")
# Clauses that make a pronoun act, and phrases that hide the acting subject.
PHRASES = re.compile(
    r"\b(?:[Ww]hoever|(?<!\w )[Ww]ho (?!is at|are we)|is told|are told|has (?:it|them|him)"
    r"|[Ww]hat (?:is|was|has|comes|came|goes|waits|needs|follows))\b")
# The folders of the core, from the lowest layer to the highest.
LAYERS = ("bmi/base/", "bmi/progress/", "bmi/state/", "bmi/protocol/", "bmi/connection/", "bmi/dispatch.",
          "bmi/rpc/", "bmi/api/")
ABOVE = ("methods/", "trove-stub/", "flow/", "job/")
# tls is tcp with a layer between frames and sockets
FOR_METHODS = ("bmi/method.h", "bmi/instance.h", "bmi/lock.h", "bmi/task.h", "methods/ip/", "methods/stream/", "methods/tcp/tcp.h")
TEXTS = (".c", ".h", ".md", ".1", ".3", ".7", ".8")
# Coined words that earlier code used instead of the field's terms (docs/architecture.md has the glossary).
COINAGES = re.compile(
    r"(?<![a-z])(?:choosy|verdicts?|farewell|greetings?|sleepers?|heirs?|ghosts?|knobs?|enroll(?:ed)?)(?![a-z])",
    re.IGNORECASE)


def tracked(source):
    names = subprocess.run(["git", "-C", source, "ls-files"], check=True, capture_output=True,
                           text=True).stdout.split("\n")
    return [n for n in names if n and (source / n).is_file()]


def function_lengths(lines):
    """(line of the brace, length) of each function of a C file."""
    start = None
    for number, line in enumerate(lines, 1):
        if line == "{":
            start = number
        elif line.startswith("}") and start is not None:
            yield start, number - start - 1
            start = None


def public_comments(text):
    """(name, comment) of each function that a public header declares right after a comment."""
    pattern = re.compile(r"/\*((?:[^*]|\*(?!/))*)\*/\s*\n((?:static inline )?[a-z][\w \*]*?\b(\w+)\()")
    for match in pattern.finditer(text):
        yield match.group(3), match.group(1)


def layer(name):
    return next((number for number, folder in enumerate(LAYERS) if name.startswith(folder)), None)


def check_includes(name, text, bad):
    for included in re.findall(r'^#include ["<]([^">]+)[">]', text, re.M):
        lower, higher = layer(name), layer(included)
        if lower is not None and ((higher or 0) > lower or included.startswith(ABOVE)):
            bad(name, f"includes {included} of a layer above its own")
        if name.startswith("methods/") and included.startswith(("bmi/", "methods/", "../")):
            own = "/".join(name.split("/")[:2]) + "/"
            if not included.startswith(FOR_METHODS + (own,)):
                bad(name, f"includes {included}, which is not for methods")


def check_c(name, text, lines, bad):
    for number, line in enumerate(lines, 1):
        if len(line) > COLUMNS:
            bad(name, f"line {number}: {len(line)} columns, {COLUMNS} at most")
    if "bmi_one_thread" in text and name != "include/bmi/lock.h":
        bad(name, "uses bmi_one_thread: fast paths of one thread stand in bmi/lock.h only")
    for number, length in function_lengths(lines):
        if length > FUNCTION_LINES:
            bad(name, f"line {number}: a function of {length} lines, {FUNCTION_LINES} at most")
    check_includes(name, text, bad)
    if name.startswith("include/"):
        for function, comment in public_comments(text):
            missing = [label for label in LABELS if label[:-1] not in comment]
            if missing and "Returns" in comment:
                bad(name, f"{function}: its comment lacks {', '.join(missing)}")


def check_named(source, names, bad):
    """Files and functions that docs/architecture.md names have to be there."""
    document = "docs/architecture.md"
    code = "".join((source / n).read_text(errors="replace") for n in names if n.endswith((".c", ".h")))
    known, files = set(re.findall(r"\w+", code)), {n.split("/")[-1] for n in names}
    for word in re.findall(r"`([\w./]+)`", (source / document).read_text()):
        if word.endswith((".c", ".h")):
            if word.split("/")[-1] not in files:
                bad(document, f"there is no file {word}")
        elif re.fullmatch(r"\w*_\w*", word) and word not in known:
            bad(document, f"no code names {word}")


def check_versions(source, bad):
    def find(name, pattern):
        return re.findall(pattern, (source / name).read_text(), re.M)

    version = find("CMakeLists.txt", r"^project\(bmi VERSION ([\d.]+)")[0]
    for name, said in (("include/bmi.h", ".".join(find("include/bmi.h", r"^#define BMI_VERSION_[A-Z]+ (\d+)"))),
                       ("packaging/debian/changelog", find("packaging/debian/changelog", r"^libbmi \((.*)-\d+\)")[0])):
        if said != version:
            bad(name, f"the version is {said}, in CMakeLists.txt {version}")
    if f"## [{version}]" not in (source / "CHANGELOG.md").read_text():
        bad("CHANGELOG.md", f"no section [{version}]")
    symbols = "packaging/debian/libbmi0.symbols"
    for node in find("cmake/libbmi.map", r"^([\w.]+) \{"):
        if node not in find(symbols, r"^ \(symver\)(\S+) "):
            bad(symbols, f"no line for {node} of cmake/libbmi.map")


def allowances(path):
    """{(kind, name): number} of the file tidy_allowed.txt."""
    entries = [line.split() for line in path.read_text().split("\n") if line and line[0] != "#"]
    return {(kind, name): int(number) for kind, name, number in entries}


def compare(have, allowed, bad):
    """Fails what is above its allowance, and an allowance that is above what is there."""
    for key in sorted(set(have) | set(allowed)):
        kind, name = key
        limit = FILE_LINES if kind == "lines" else 0
        count, may = have.get(key, limit), allowed.get(key, limit)
        if count > may:
            bad(name, f"{kind}: {count}, {may} at most")
        elif count < may:
            bad(name, f"{kind}: {count}; lower the {may} in tidy_allowed.txt")


def main():
    source = pathlib.Path(sys.argv[1]).resolve()
    if not (source / ".git").exists():
        print("skipped: no git checkout, so no list of files")
        sys.exit(77)
    found, have = [], {}

    def bad(name, text):
        found.append(f"{name}: {text}")

    for name in tracked(source):
        path = source / name
        if path.suffix not in TEXTS:
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        lines = text.rstrip("\n").split("\n")
        if path.suffix in (".c", ".h"):
            check_c(name, text, lines, bad)
            if not any("SPDX-License-Identifier: BSD-3-Clause" in line for line in lines[:3]):
                bad(name, "no SPDX line at its beginning")
            if len(lines) > FILE_LINES:
                have["lines", name] = len(lines)
        for number, line in enumerate(lines, 1):
            if COINAGES.search(line):
                bad(name, f"line {number}: \"{COINAGES.search(line).group()}\" is a coined word")
        folder = ("phrases", name.split("/")[0])
        count = sum(len(PHRASES.findall(line)) for line in lines)
        if count:
            have[folder] = have.get(folder, 0) + count
    check_named(source, tracked(source), bad)
    check_versions(source, bad)
    if (source / "CHANGELOG.md").stat().st_size > CHANGELOG_BYTES:
        bad("CHANGELOG.md", f"more than {CHANGELOG_BYTES} bytes")
    if len(sys.argv) > 2:
        for (kind, name), number in sorted(have.items()):
            print(kind, name, number)
        return
    compare(have, allowances(source / "tests/unit/tidy_allowed.txt"), bad)
    print("\n".join(found))
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
