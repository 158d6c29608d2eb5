#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Runs docs/tutorial.md: each command of it, in order, in one shell, and compares the outputs.

usage: tutorial_test.py TEXT INCLUDE LIB BIN CC

The commands stand in blocks ```console, behind "$ "; the lines below a command are its output. "..." stands for any
text of a line, or, alone on a line, for any lines. The programs are compiled by CC with warnings as errors, against
the library of this build. Before the next command a server, which writes its address to the file `url`, has to have
done so.
"""
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

SECONDS = 100  # for a command
MARK = "--- the end of a command ---"
PRELUDE = """
cc() { "$CC" -Wextra -Werror "$@"; }
pkg-config() { echo "-I$INCLUDE -L$LIB -lbmi"; }
"""
NOTICE = re.compile(r"^.*line \d+: +\d+ (?:Killed|Terminated) .*\n", re.M)  # bash reports the end of a job


def steps(text):
    """(command, output) of each command."""
    for block in re.findall(r"^```console\n(.*?)^```$", text, re.M | re.S):
        for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
            command, _, output = part.partition("\n")
            yield command, output


def matches(expected, got):
    lines = [r"(?:.*\n)*" if line == "..." else ".*".join(map(re.escape, line.split("..."))) + "\n"
             for line in expected.splitlines()]
    return re.fullmatch("".join(lines), got) is not None


class Shell:
    """A bash that executes one command after the other."""

    def __init__(self, folder, environment):
        self.folder = folder
        self.bash = subprocess.Popen(["bash"], cwd=folder, env=environment, text=True, start_new_session=True,
                                     stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.write(PRELUDE)

    def write(self, text):
        self.bash.stdin.write(text)
        self.bash.stdin.flush()

    def run(self, command):
        url = self.folder / "url"
        starts_server = ">url" in command
        if starts_server:
            url.unlink(missing_ok=True)
        self.write(f"{{ {command}\n}} 2>&1 </dev/null\necho '{MARK}'\n")
        lines = []
        for line in self.bash.stdout:
            if line.endswith(MARK + "\n"):
                lines.append(line[:-len(MARK) - 1])
                break
            lines.append(line)
        while starts_server and not (url.exists() and url.read_text().endswith("\n")):
            time.sleep(0.01)
        return NOTICE.sub("", "".join(lines))

    def end(self):
        os.killpg(self.bash.pid, signal.SIGKILL)
        self.bash.wait()


def main():
    if len(sys.argv) != 6:
        sys.exit(__doc__)
    text, include, lib, folder_of_tools, compiler = sys.argv[1:]
    if not os.access(f"{folder_of_tools}/bmi-keys", os.X_OK):
        print("skipped: built without libssl, so there is no bmi-keys")
        sys.exit(77)
    include, lib, folder_of_tools = map(os.path.abspath, (include, lib, folder_of_tools))
    environment = dict(os.environ, CC=compiler, INCLUDE=include, LIB=lib, LD_LIBRARY_PATH=lib,
                       PATH=f"{folder_of_tools}:{os.environ['PATH']}")
    work = pathlib.Path(tempfile.mkdtemp())
    shutil.copy(text, work / "tutorial.md")
    shell, now = Shell(work, environment), ""

    def too_long(*_):
        sys.exit(f"FAILED: {now}\nit does not end")

    signal.signal(signal.SIGALRM, too_long)
    failed, count = False, 0
    try:
        for now, expected in steps(pathlib.Path(text).read_text()):
            count += 1
            signal.alarm(SECONDS)
            got = shell.run(now)
            if not matches(expected, got):
                print(f"FAILED: {now}\n--- expected\n{expected}--- got\n{got}---")
                failed = True
                break
    finally:
        signal.alarm(0)
        shell.end()
        shutil.rmtree(work)
    print(f"{count} commands")
    sys.exit(1 if failed or count < 20 else 0)


if __name__ == "__main__":
    main()
