#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Checks the command line of bmi-bench: JSON, drawing, bad options, a server that dies, and that no
# process stays behind. Mostly with the plain-socket reference, so it tests little of libbmi.
#
# usage: bench_test.sh path/to/bmi-bench
set -uo pipefail
bench=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failures=0

fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}

# Checks that no two colours in the legend of a drawing's first panel are equal.
colours_check() {
  local colours
  colours=$(sed -n 's/.*y="40" width="14" height="14" fill="\([^"]*\)".*/\1/p' "$1")
  [ -n "$colours" ] && [ -z "$(sort <<<"$colours" | uniq -d)" ] || fail "colours of $1:" $colours
}

# given raw samples, when they are written, then each line is an object with all keys
"$bench" read --buffers none --reference raw --reps 3 --bytes 1M --grid 1x1,2x2 \
  --json "$folder/a.json" --plot "$folder/a.svg" >"$folder/table" || fail "read"
python3 - "$folder" <<'PY' || fail "JSON or SVG"
import json, statistics, sys, xml.dom.minidom
lines = [json.loads(line) for line in open(sys.argv[1] + "/a.json")]
assert len(lines) == 2, lines
for line in lines:
    keys = "pattern implementation method servers clients size bytes unit value samples".split()
    assert [key for key in keys if key not in line] == [], line
    assert len(line["samples"]) == 3
    assert abs(statistics.median(line["samples"]) / line["value"] - 1) < 1e-5
assert [(line["servers"], line["clients"]) for line in lines] == [(1, 1), (2, 2)]
xml.dom.minidom.parse(sys.argv[1] + "/a.svg")
PY
[ "$(wc -l <"$folder/table")" -eq 4 ] || fail "table: $(cat "$folder/table")"

# given the task manager's pattern, then panel and label distinguish its rows
"$bench" tasks --reps 2 --messages 20 --threads 1,2 --json "$folder/tasks.json" \
  --plot "$folder/tasks.svg" >"$folder/table" || fail "tasks"
# Seeds repeat: the same times and traces; no schedule is faster than the bound.
for run in 1 2; do
  "$bench" place --reps 2 --size 1M --tree "package:2 numa:1 core:4 pu:1" --json "$folder/place$run.json" \
    --plot "$folder/place.svg" >"$folder/place$run" || fail "place"
done
cmp "$folder/place1.json" "$folder/place2.json" || fail "place: another trace for the same seeds"
python3 - "$folder" <<'PY' || fail "JSON or SVG of place: $(cat "$folder/place1")"
import json, sys, xml.dom.minidom
rows = {}
for line in map(json.loads, open(sys.argv[1] + "/place1.json")):
    rows.setdefault(line["label"], {})[line["implementation"]] = line["samples"]
assert len(rows) == 11 and all(len(row) == 6 for row in rows.values())
for row in rows.values():
    assert all(bound < time * 1.000001 for times in row.values() for bound, time in zip(row["bound"], times))
xml.dom.minidom.parse(sys.argv[1] + "/place.svg")
PY
python3 - "$folder" <<'PY' || fail "JSON or SVG of tasks: $(cat "$folder/table")"
import json, sys, xml.dom.minidom
lines = [json.loads(line) for line in open(sys.argv[1] + "/tasks.json")]
kinds = {line["implementation"] for line in lines}
assert {"lock-free", "spinlock"} <= kinds, kinds
rows = [(line["panel"], line["label"], line["size"], line["implementation"]) for line in lines]
assert len(set(rows)) == len(rows), rows
assert ("this machine", "own CPU", 1, "lock-free") in rows, rows
assert all(line["value"] > 0 and len(line["samples"]) == 2 for line in lines)
xml.dom.minidom.parse(sys.argv[1] + "/tasks.svg")
PY

# given flows of several numbers of processes, then their rows differ, and the bytes are those of
# whole stripes
"$bench" flow --grid 1x1,1x2 --bytes 100000 --size 64K --reps 1 --json "$folder/flow.json" \
  --plot "$folder/flow.svg" >"$folder/table" 2>&1 || fail "flow: $(cat "$folder/table")"
grep -q "131072 bytes a pair" "$folder/table" || fail "bytes of flows: $(cat "$folder/table")"
python3 - "$folder" <<'PY' || fail "JSON or SVG of flow: $(cat "$folder/table")"
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1] + "/flow.json")]
rows = [(line["panel"], line["label"], line["implementation"]) for line in lines]
assert len(rows) == 16 and len(set(rows)) == 16, rows
assert all(line["bytes"] == 131072 for line in lines), lines
drawing, table = open(sys.argv[1] + "/flow.svg").read(), open(sys.argv[1] + "/table").read()
assert all(drawing.count(row[0]) == 1 and table.count(row[0]) == 1 for row in rows), rows
PY

# given calls, then each panel has its unit, and the ratio of many in flight to one follows
"$bench" rpc --messages 200 --size 1K,100001 --reps 1 --reference post,raw \
  --json "$folder/rpc.json" --plot "$folder/rpc.svg" >"$folder/table" 2>&1 ||
  fail "rpc: $(cat "$folder/table")"
grep -q "64 in flight to 1: bmi [0-9.]* post [0-9.]* raw [0-9.]*$" "$folder/table" ||
  fail "no ratio of calls in flight: $(cat "$folder/table")"
python3 - "$folder" <<'PY' || fail "JSON or SVG of rpc: $(cat "$folder/table")"
import json, sys, xml.dom.minidom
lines = [json.loads(line) for line in open(sys.argv[1] + "/rpc.json")]
rows = {(line["panel"], line["label"], line["implementation"]) for line in lines}
assert len(lines) == len(rows) == 3 * (3 * 3 + 4 * 2), rows
assert {line["unit"] for line in lines} == {"us", "calls/s", "MB/s"}
assert all(line["value"] > 0 and line["unit"] in line["panel"] for line in lines), lines
xml.dom.minidom.parse(sys.argv[1] + "/rpc.svg")
PY

# given a sort, then each number of processes has its panels
"$bench" is --class S --grid 1x1,2x1 --reps 3 --json "$folder/is.json" --plot "$folder/is.svg" \
  >"$folder/table" 2>&1 || fail "is: $(cat "$folder/table")"
python3 - "$folder" <<'PY' || fail "JSON or SVG of is: $(cat "$folder/table")"
import json, sys, xml.dom.minidom
lines = [json.loads(line) for line in open(sys.argv[1] + "/is.json")]
rows = [(line["servers"], line["unit"]) for line in lines]
assert rows == [(n, unit) for n in (1, 2) for unit in ("Mop/s", "us", "%")], rows
assert all(line["label"] == "S" and line["size"] == 65536 and line["value"] > 0 for line in lines)
assert all(line["value"] < 100 for line in lines if line["unit"] == "%")
assert [line["bytes"] for line in lines] == 3 * [0] + 3 * [655360]
xml.dom.minidom.parse(sys.argv[1] + "/is.svg")
PY

# given connected clients and both engines, then each has its rows; without io_uring the run ends
# with the reason
if "$bench" clients --engine epoll,io_uring --reference raw --size 20,40 --active 10,30 \
  --messages 500 --reps 1 --json "$folder/clients.json" >"$folder/table" 2>&1; then
  python3 - "$folder" <<'PY' || fail "JSON of clients: $(cat "$folder/table")"
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1] + "/clients.json")]
rows = {(line["panel"], line["label"], line["implementation"], line.get("engine")) for line in lines}
assert len(lines) == len(rows), rows
assert {row[1] for row in rows if "10 active" in row[0]} == {"20", "40"}, rows
assert {row[1] for row in rows if "30 active" in row[0]} == {"40"}, rows
assert {row[2:] for row in rows} == {("bmi", "epoll"), ("bmi", "io_uring"), ("raw", None)}, rows
assert all(line["value"] > 0 for line in lines), lines
PY
else
  grep -q "the library says: engine epoll, though" "$folder/table" ||
    fail "clients: $(cat "$folder/table")"
fi

# given wrong options, then each is refused with a message
refused() {
  if "$bench" "$@" >"$folder/out" 2>&1; then
    fail "accepted: $*"
  elif ! grep -q bmi-bench "$folder/out"; then
    fail "no message: $*"
  fi
}
refused
refused nothing
# wrong usage has a status of its own, and no table is begun
wrong() {
  timeout 20 "$bench" "$@" >"$folder/out" 2>&1
  [ $? -eq 2 ] || fail "not told as wrong usage: $*"
  grep -q "^servers" "$folder/out" && fail "told too late: $*"
}
wrong
wrong nothing
wrong latency --reps
wrong latency --method nonsense
grep -q "no such method" "$folder/out" || fail "nonsense: $(cat "$folder/out")"
wrong read --role client --servers nonsense://127.0.0.1:1
wrong --role server --listen nonsense://127.0.0.1:1
wrong read --reps 0
grep -q -- "--reps 0: a number from 1" "$folder/out" || fail "--reps 0: $(cat "$folder/out")"
# an option that is not for a pattern is refused with those that it is for
"$bench" rate --segment 4K >"$folder/out" 2>&1
grep -q -- "--segment: not for rate, but for: read, write" "$folder/out" ||
  fail "the patterns of an option are not told"
refused read --bytes 10X
refused read --bytes 0
refused read --size -1
refused read --grid 2
refused read --reference ours
refused read --no-such-option
refused read write
refused rate --buffers plain
refused latency --segment 4K
refused read --messages 10
refused testcost --verify
refused read --reference raw-poll
refused read --progress background
refused read --buffers none
refused read --reference fi
refused latency --reference fi
refused latency --reference memcpy
refused latency --reference post
refused read --reference mpi-probe
refused rpc --window 4
refused rpc --size 0
refused tasks --grid 1x2
refused tasks --verify
refused tasks --tree nonsense:0
grep -q "own CPU" "$folder/out" && fail "a wrong tree is told too late"
refused flow --compute 100
refused flow --progress background --compute 0
refused flow --on sender
refused tasks --threads 0
refused is --class C
refused is --size 64K
refused is --grid 2x2
grep -q "one client only" "$folder/out" || fail "two clients of a sort: $(cat "$folder/out")"
refused read --class S
refused read --reference mpi-yield
refused place --tree nonsense:0
refused place --verify
wrong latency --progress background --role client --servers tcp://127.0.0.1:1
grep -q "the progress that they were started with" "$folder/out" || fail "$(cat "$folder/out")"
refused latency --clients 2
refused rate --size 0
refused read --role client
refused read --listen tcp://127.0.0.1:0
refused read --grid 1x1 --servers 2
refused read --grid 1x1 --clients 2
refused read --role client --grid 1x1 --servers tcp://127.0.0.1:1
refused --role server --method tcp --listen gm://anybody
refused --role server --bind --listen tcp://127.0.0.1:0
refused tasks --bind
# memory that messages take turns in: of one pattern, large enough for one, and nothing to verify
refused read --memory 1M
refused bandwidth --memory 0
refused bandwidth --memory 2G
refused bandwidth --memory 64K --size 4K,64K,65537
grep -q "65536 bytes do not hold a message of 65537" "$folder/out" || fail "$(cat "$folder/out")"
refused bandwidth --memory 64K --size 4K --verify
grep -q "not with --verify" "$folder/out" || fail "$(cat "$folder/out")"
refused read --post some
refused read --post all --window 4
refused read --first neither
refused latency --post all
refused rate --poll
refused bandwidth --memory 1M --post one
refused read --active 4
refused latency --engine poll
refused read --first sender --reference mpi
refused read --role client --servers raw://127.0.0.1:1 --buffers none --reference raw
# servers that run already: as many of each contender's, and one where a pattern has one pair
wrong read --role client --servers tcp://127.0.0.1:1,raw://127.0.0.1:1,raw://127.0.0.1:2 \
  --reference raw
grep -q "1 of BMI and 2 of plain sockets" "$folder/out" || fail "$(cat "$folder/out")"
wrong read --role client --servers tcp://127.0.0.1:1 --buffers none --reference raw
grep -q "names none for raw" "$folder/out" || fail "$(cat "$folder/out")"
wrong read --role client --servers raw://127.0.0.1:1
wrong clients --size 0
wrong clients --size 4 --active 5
wrong clients --method gm
wrong read --method gm --engine io_uring
wrong bandwidth --role client --servers tcp://127.0.0.1:1,tcp://127.0.0.1:2
grep -q "one server and one client only" "$folder/out" || fail "$(cat "$folder/out")"
wrong rate --role client --servers raw://127.0.0.1:1,raw://127.0.0.1:2 --buffers none \
  --reference raw
for file in --json --plot; do
  refused read --buffers none --reference raw $file /nowhere/file --bytes 1000 --reps 1
  grep -q "^servers" "$folder/out" && fail "$file that cannot be written is told too late"
done
"$bench" read --role client --method gm --servers tcp://127.0.0.1:1 >"$folder/out" 2>&1
grep -q "not of the method gm" "$folder/out" || fail "a URL of another method: $(cat "$folder/out")"
"$bench" read --buffers none --reference raw --bytes 1000 --reps 1 --json "$folder/late.json" \
  --plot "$folder" >"$folder/out" 2>&1 && fail "accepted a folder for a drawing"
[ -e "$folder/late.json" ] && fail "a file was left by a run that was refused"

# given an output that cannot be written, as on a full disk, then an error is printed, and the run
# fails
full() {
  timeout 20 "$bench" "$@" >/dev/full 2>"$folder/out" && fail "a full disk went unnoticed: $*"
  grep -q "cannot write to standard output" "$folder/out" || fail "$*: $(cat "$folder/out")"
}
full --help
full --version
full read --buffers none --reference raw --bytes 1000 --reps 1
full --role server --listen raw://127.0.0.1:0
full --role server --listen "gm://full$$"
"$bench" --version | grep -q '^bmi-bench (libbmi) [0-9]' || fail "--version"
[ "$("$bench" -V)" = "$("$bench" --version)" ] || fail "-V"
[ "$("$bench" -h)" = "$("$bench" --help)" ] || fail "-h"

# given --bind, then there is a result
"$bench" read --bind --grid 2x2 --reference raw --bytes 1000 --reps 1 >"$folder/out" 2>&1 ||
  fail "--bind: $(cat "$folder/out")"

# given memory that messages share, then no process has more, and the figures contain it
python3 - "$bench" "$folder" <<'PY' || fail "--memory: $(cat "$folder/out")"
import json, resource, subprocess, sys
bench, folder = sys.argv[1:]
with open(folder + "/out", "w") as out:
    subprocess.run([bench, "bandwidth", "--memory", "100K", "--size", "7000,64K", "--bytes", "400M",
                    "--buffers", "memalloc,plain", "--reference", "raw,memcpy", "--reps", "1",
                    "--json", folder + "/memory.json"],
                   stdout=out, stderr=out, check=True)
most_kb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
assert most_kb < 200 * 1024, most_kb
lines = [json.loads(line) for line in open(folder + "/memory.json")]
assert len(lines) == 8 and all(line["memory"] == 100 * 1024 for line in lines), lines
assert "in turn in 102400 bytes of memory" in open(folder + "/out").read()
PY

# given a wrong setting in the environment, then the message names the cause
BMI_PEER_TIMEOUT_MS=soon "$bench" --role server --listen "gm://wrong$$" >"$folder/out" 2>&1 &&
  fail "accepted a wrong setting"
grep -q "set BMI_LOG=error for details" "$folder/out" || fail "no way to the cause: $(cat "$folder/out")"

# given progress in the environment, then it is not that of a pattern that has the choice
BMI_PROGRESS=soon "$bench" latency --messages 20 --size 24 --reps 1 --json "$folder/caller.json" \
  >"$folder/out" 2>&1 || fail "progress of the environment: $(cat "$folder/out")"
grep -q '"progress": "caller"' "$folder/caller.json" || fail "progress is not told"
BMI_PROGRESS=soon "$bench" rate --messages 20 --size 24 --reps 1 >"$folder/out" 2>&1 &&
  fail "progress of the environment is not that of a pattern without the choice"

# given a drawing, then every reference has a colour of its own
"$bench" bandwidth --method gm --buffers memalloc,plain --reference raw,memcpy --size 64K \
  --bytes 1M --reps 1 --plot "$folder/drawing.svg" >"$folder/out" 2>&1 ||
  fail "memcpy: $(cat "$folder/out")"
grep -q '>memcpy<' "$folder/drawing.svg" || fail "memcpy is not in the drawing"
colours_check "$folder/drawing.svg"
grep -q '(null)' "$folder/drawing.svg" && fail "a drawing without a colour"

# given ranks of the user's mpiexec, then a reference without ranks is refused, not measured otherwise
if [ -x "$bench-mpi" ] && command -v mpiexec >/dev/null; then
  mpiexec -n 2 "$bench-mpi" bandwidth --servers 1 --clients 1 --reference memcpy --reps 1 \
    --bytes 1M --size 64K >"$folder/out" 2>&1 && fail "memcpy among ranks"
  grep -q 'not where MPI places' "$folder/out" || fail "memcpy among ranks: $(cat "$folder/out")"
  mpiexec -n 2 "$bench-mpi" write --servers 1 --clients 1 --method gm --buffers memalloc,plain \
    --reference raw,mpi --reps 2 --bytes 1M --verify >"$folder/out" 2>&1 ||
    fail "memory of both kinds among ranks: $(cat "$folder/out")"
fi

# given --verify, then every line is marked as no measurement
"$bench" read --buffers none --reference raw --reps 1 --bytes 1M --verify --json "$folder/v.json" \
  >/dev/null || fail "verify"
grep -q '"verify": true' "$folder/v.json" || fail "verify: $(cat "$folder/v.json")"

# given libfabric's ping-pong, then its figures stand beside ours; if it is missing, a message says
# so
if "$bench" latency --method ofi+shm --buffers none --reference raw,raw-poll,fi --messages 20 \
  --size 24,1K --reps 1 --json "$folder/fi.json" --plot "$folder/fi.svg" >"$folder/out" 2>&1; then
  colours_check "$folder/fi.svg"
  grep -q '(null)' "$folder/fi.svg" && fail "fi_pingpong has no colour in the drawing"
  [ "$(grep -c '"implementation": "fi_pingpong"' "$folder/fi.json")" -eq 2 ] ||
    fail "no figures of fi_pingpong: $(cat "$folder/fi.json")"
  "$bench" bandwidth --method ofi+shm --buffers none --reference fi,memcpy --bytes 1M --size 64K \
    --reps 2 --verify >"$folder/out" 2>&1 || fail "fi_pingpong, every byte: $(cat "$folder/out")"
  # a process that ends at once is reported, with its status, and long before the time-out
  mkdir "$folder/bin"
  printf '#!/bin/sh\necho "$@" >"%s/arguments"\nexit 3\n' "$folder" >"$folder/bin/fi_pingpong"
  chmod +x "$folder/bin/fi_pingpong"
  PATH="$folder/bin:$PATH" timeout 20 "$bench" latency --method ofi+shm --buffers none \
    --reference fi --verify >"$folder/out" 2>&1
  grep -q "ended with status 3" "$folder/out" || fail "fi_pingpong's end: $(cat "$folder/out")"
  grep -q -- '-ce rdm' "$folder/arguments" || fail "fi_pingpong checks nothing"
  env PATH=/nowhere "$bench" latency --method ofi+shm --reference fi >"$folder/out" 2>&1 &&
    fail "accepted without fi_pingpong"
  grep -q libfabric-bin "$folder/out" || fail "what is missing is not told: $(cat "$folder/out")"
else
  grep -q 'libfabric-bin\|does not go through libfabric' "$folder/out" ||
    fail "fi_pingpong: $(cat "$folder/out")"
fi

# given a server that runs already, when a client role asks it, then it serves; ended, it ends
mkfifo "$folder/address"
"$bench" --role server --listen raw://127.0.0.1:0 >"$folder/address" &
server=$!
read -r url <"$folder/address"
"$bench" read --role client --servers "$url" --clients 2 --buffers none --reference raw --reps 1 \
  --bytes 100000 --verify --json "$folder/client.json" >"$folder/out" || fail "client role"
grep -q '"servers": 1, "clients": 2,' "$folder/client.json" && grep -q "^1x2" "$folder/out" ||
  fail "client role's pairs: $(cat "$folder/out")"
grep -q '"value": 0,' "$folder/client.json" && fail "client role measured nothing"
# and it has all of its CPUs again when a pattern that takes one has ended
cpus=$(grep Cpus_allowed: "/proc/$server/status")
"$bench" overlap --role client --servers "$url" --buffers none --reference raw --reps 1 \
  --messages 2 --size 1K --compute 10 >/dev/null || fail "overlap with a server that runs already"
for _ in $(seq 500); do
  [ "$(grep Cpus_allowed: "/proc/$server/status")" = "$cpus" ] && break
  sleep 0.01
done
[ "$(grep Cpus_allowed: "/proc/$server/status")" = "$cpus" ] || fail "a server stays on one CPU"
kill "$server"
wait "$server"
[ $? -eq 0 ] || fail "server role's end"

# given servers of a method by their URL alone, then they use it, and the client's figures contain
# it
rm "$folder/address"
mkfifo "$folder/address"
"$bench" --role server --listen "gm://bench$$" >"$folder/address" 2>"$folder/server" &
server=$!
if read -r url <"$folder/address"; then
  "$bench" read --role client --servers "$url" --reps 1 --bytes 100000 --json "$folder/gm.json" \
    >"$folder/out" 2>&1 || fail "client role over gm: $(cat "$folder/out")"
  grep -q '"method": "gm"' "$folder/gm.json" || fail "not told as gm: $(cat "$folder/gm.json")"
  grep -q "over gm" "$folder/out" || fail "table not told as gm: $(cat "$folder/out")"
  "$bench" threads --role client --servers "$url" --reps 1 --messages 20 --threads 1 \
    --json "$folder/threads.json" >"$folder/out" 2>&1 ||
    fail "threads elsewhere: $(cat "$folder/out")"
  for bytes in 1M 2M; do # memory that the server keeps is of one kind or of the other
    for buffers in memalloc plain; do
      "$bench" bandwidth --role client --servers "$url" --buffers $buffers --bytes $bytes --reps 1 \
        --size 64K --verify >"$folder/out" 2>&1 || fail "$buffers, $bytes: $(cat "$folder/out")"
    done
  done
  grep -q background "$folder/threads.json" && fail "background with a server that runs already"
  kill "$server"
else
  fail "no server of gm by its URL: $(cat "$folder/server")"
fi
wait "$server" || fail "the end of a server of gm"

# Waits until the run has its two processes, and names them.
children_await() {
  for _ in $(seq 500); do
    children=$(cat "/proc/$run/task/$run/children" 2>/dev/null)
    [ "$(wc -w <<<"$children")" -eq 2 ] && break
    sleep 0.01
  done
}

# given a run whose server is killed in mid-sample, then it ends with a message and leaves nothing
"$bench" read --buffers none --reference raw --reps 1000 --bytes 100M --timeout 20 \
  >"$folder/out" 2>&1 &
run=$!
children_await
kill -9 "${children%% *}"
wait "$run" && fail "a killed server went unnoticed"
grep -q "the run ends" "$folder/out" || fail "no message: $(cat "$folder/out")"
for child in $children; do
  [ -e "/proc/$child" ] && fail "process $child stayed behind"
done

# given a run that is killed itself, then its processes end too
"$bench" read --buffers none --reference raw --reps 1000 --bytes 100M >/dev/null 2>&1 &
run=$!
children_await
kill -9 "$run"
wait "$run" 2>/dev/null
for child in $children; do
  for _ in $(seq 500); do
    [ -e "/proc/$child" ] || break
    sleep 0.01
  done
  [ -e "/proc/$child" ] && fail "process $child outlived its coordinator"
done

[ "$failures" -eq 0 ] && echo "all checks passed"
exit "$failures"
