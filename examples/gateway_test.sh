#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# usage: gateway_test.sh BIN - runs gateway_server, gateway, and clients of it, as three kinds of
# processes. Skipped where the method gm does not start.
set -euo pipefail

bin=$1
work=$(mktemp -d)
declare -A pids=()
cleanup() {
  for pid in "${pids[@]}"; do kill -KILL "$pid" 2>/dev/null || true; done
  rm -rf "$work"
}
trap cleanup EXIT

fail() {
  echo "FAILED: $*"
  tail -n +1 "$work"/*.out "$work"/*.err
  exit 1
}

# start NAME COMMAND...: `url` is the first line that it prints, or empty if it ends before.
start() {
  local name=$1
  shift
  mkfifo "$work/$name.pipe"
  "$@" >"$work/$name.pipe" 2>"$work/$name.err" &
  pids[$name]=$!
  exec {from}<"$work/$name.pipe"
  read -r url <&"$from" || url=
  cat <&"$from" >"$work/$name.out" &
  pids[$name.out]=$!
  exec {from}<&-
}

# stop NAME: by SIGTERM; its status has to be 0, and all of its output is there then.
stop() {
  kill -TERM "${pids[$1]}"
  wait "${pids[$1]}" || fail "$1: status $?"
  wait "${pids[$1.out]}"
  unset "pids[$1]" "pids[$1.out]"
}

client() { timeout 60 "$bin/gateway_client" "$@" 2>&1; }

# refused PATTERN BLOCK: reading the block fails with an error of this name.
refused() {
  local got
  got=$(client "$gateway" "$2" 1) && fail "block $2 was read"
  [[ $got =~ ^"gateway_client: answer: "($1) ]] || fail "block $2: $got"
}

start gm "$bin/hello_server" gm://localhost:0
if [ -z "$url" ]; then
  wait "${pids[gm]}" && fail "hello_server printed nothing" || status=$?
  echo "skipped: gm does not start: status $status: $(cat "$work/gm.err")"
  exit 77
fi
disown "${pids[gm]}" # bash does not report its end
kill -KILL "${pids[gm]}"

start server "$bin/gateway_server"
start gateway "$bin/gateway" "$url"
gateway=$url
[[ $gateway = gm://* ]] || fail "the gateway's URL is \"$gateway\""

# Two clients at a time, which use the same tags for different blocks.
client "$gateway" 500 100 >"$work/second.out" &
pids[second]=$!
[ "$(client "$gateway" 0 100)" = "100 blocks are right" ] || fail "the first client"
wait "${pids[second]}" || fail "the second client: status $?"
unset "pids[second]"
[ "$(cat "$work/second.out")" = "100 blocks are right" ] || fail "the second client"

# An error of the server; then the end of the server, which the gateway and its clients survive.
refused ENOENT 1000
stop server
refused 'ECONN|EPIPE' 0
stop gateway
lines='^front: requests: 202 received, 0 sent; answers: 0 received, 202 sent
back: requests: 0 received, 20[12] sent; answers: 201 received, 0 sent$'
[[ $(<"$work/gateway.out") =~ $lines ]] || fail "the counters of the instances"
