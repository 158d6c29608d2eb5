#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# stripefs_lib.sh - shared by stripefs's tests: a folder to work in, servers, checks, and lists of
# trees to compare. Sourced by them, with their arguments: BIN [SCHEME [HOST]].
set -u

bin=$1
scheme=${2:-tcp}
host=${3:-127.0.0.1}
scale=${BMI_TEST_SCALE:-1}
[ "$host" = own ] && host=stripefs$$ # a name that nobody else listens on
# The folder of all files: $BMI_TEST_FOLDER, or memory: a busy disk takes seconds for a sync, and
# kill -9 is the same on either.
memory=${BMI_TEST_FOLDER:-/dev/shm}
[ -w "$memory" ] && [ "$(df -Pk "$memory" | awk 'NR == 2 { print $4 }')" -gt 400000 ] ||
  memory=${TMPDIR:-/tmp}
work=$(mktemp -d -p "$memory")
declare -a pid url
failures=0

cleanup() {
  for p in "${pid[@]}"; do kill -9 "$p" 2>/dev/null; done
  wait 2>/dev/null
  rm -rf "$work"
}
trap cleanup EXIT

fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}

# check NAME COMMAND...: the command succeeds.
check() {
  local name=$1
  shift
  if "$@" >"$work/out" 2>&1; then echo "passed: $name"; else fail "$name"; cat "$work/out"; fi
}

# refused NAME TEXT COMMAND...: the command fails, and its message contains the text.
refused() {
  local name=$1 text=$2
  shift 2
  if "$@" >"$work/out" 2>&1; then
    fail "$name: it succeeded"
  elif ! grep -qF -- "$text" "$work/out"; then
    fail "$name: it said:"
    cat "$work/out"
  else
    echo "passed: $name"
  fi
}

# wrong NAME TEXT COMMAND...: refused, as wrong usage.
wrong() {
  local status=0
  refused "$@"
  "${@:3}" >/dev/null 2>&1 || status=$?
  [ $status = 2 ] || fail "$1: status $status"
}

# to_full COMMAND...: its output goes to a full device.
to_full() {
  timeout 20 "$@" >/dev/full
}

# server_start N URL [STORE OPTION...]: waits for the line with the URL that it listens on. Servers 0 to 3
# belong together, others serve alone. `program` may name another program.
server_start() {
  local fifo=$work/fifo$1 place=1/1
  [ "$1" -gt 3 ] || place=$(($1 + 1))/4
  rm -f "$fifo"
  mkfifo "$fifo"
  "$bin/${program:-bmi-stripefsd}" --listen "$2" --store "${3:-$work/store$1}" \
    --place $place "${@:4}" >"$fifo" 2>>"$work/log$1" &
  pid[$1]=$!
  read -r 'url['"$1"']' <"$fifo" || { fail "server $1 does not start"; cat "$work/log$1"; exit 1; }
}

fs() {
  "$bin/bmi-stripefs" --servers "$servers" "$@"
}

sha256=(sha256sum -b)
command -v openssl >/dev/null && sha256=(openssl dgst -sha256 -r) # several times as fast

# tree_list FOLDER: names, kinds, modes, sizes, times, targets, and checksums of its contents.
tree_list() {
  (cd "$1" && find . ! -type d -printf '%p|%y|%m|%s|%T@|%U|%G|%l\n' -o -printf '%p|%y|%m|%T@\n' |
    LC_ALL=C sort && find . -type f -print0 | LC_ALL=C sort -z | xargs -0 "${sha256[@]}" | LC_ALL=C sort -k 2)
}

# same A B: two trees are equal; A may be the file that tree_list wrote.
same() {
  local list=$1
  if [ -d "$1" ]; then
    list=$work/list1
    tree_list "$1" >"$list" || return
  fi
  tree_list "$2" >"$work/list2" && diff "$list" "$work/list2"
}

# servers_stop: they end with status 0, and have printed nothing.
servers_stop() {
  local i
  for i in "${!pid[@]}"; do
    kill -TERM "${pid[$i]}"
    wait "${pid[$i]}" || fail "server $i ended with $?: $(cat "$work/log$i")"
  done
  pid=()
  [ -z "$(cat "$work"/log*)" ] || { fail "servers said:"; cat "$work"/log*; }
}

# ends: the test's result.
ends() {
  chmod -R u+w "$work"
  echo "$failures failures"
  [ $failures = 0 ]
}
