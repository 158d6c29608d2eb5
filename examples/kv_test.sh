#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# usage: kv_test.sh BIN NAME LARGEST CLIENTS BYTES
# Runs NAME_server and NAME_client of the folder BIN, on a store in memory and on one on a disk: put,
# get, refusals, the largest value, of LARGEST bytes; then CLIENTS clients at once, which check that
# no value of up to BYTES is a mixture, while a tenth of them is killed. The server ends by SIGINT,
# with status 0.
set -euo pipefail

bin=$1 name=$2 largest=$3 clients=$4 bytes=$5
work=$(mktemp -d)
pids=()
cleanup() {
  for pid in "${pids[@]}"; do kill -KILL "$pid" 2>/dev/null || true; done
  rm -rf "$work"
}
trap cleanup EXIT
fail() {
  echo "FAILED: $*" >&2
  cat "$work"/*.log >&2 || true
  exit 1
}
client() { timeout 300 "$bin/${name}_client" "$url" "$@"; }

run() { # STORE
  mkfifo "$work/url"
  "$bin/${name}_server" tcp://127.0.0.1:0 "$1" >"$work/url" 2>"$work/server.log" &
  server=$!
  pids=("$server")
  read -r url <"$work/url" || fail "the server does not start"
  rm "$work/url"

  client put name 1000000 x || fail "put"
  [ "$(client get name)" = "1000000 x" ] || fail "get"
  client put name 3 y || fail "put again"
  [ "$(client get name)" = "3 y" ] || fail "get of what was replaced"
  client put nothing 0 z || fail "put of nothing"
  [ "$(client get nothing)" = "0 -" ] || fail "get of nothing"
  client get absent 2>"$work/absent.log" && fail "get of an absent key"
  grep -q ENOENT "$work/absent.log" || fail "absent: another error"
  if [ "$name" = rpc_kv ]; then
    client delete nothing || fail "delete"
    client get nothing 2>"$work/absent.log" && fail "get of a deleted key"
    client delete nothing 2>"$work/absent.log" && fail "delete of an absent key"
    grep -q ENOENT "$work/absent.log" || fail "deleted: another error"
  fi
  client put large $((largest + 1)) x 2>"$work/large.log" && fail "put of too much"
  grep -q EFBIG "$work/large.log" || fail "too large: another error"
  client put large "$largest" x || fail "put of the largest value"
  [ "$(client get large)" = "$largest x" ] || fail "get of the largest value"

  local good=() victims=()
  for ((i = 0; i < clients; i++)); do
    rounds=3
    ((i % 10)) || rounds=1000000
    "$bin/${name}_client" "$url" loop 8 "$bytes" "$rounds" 2>"$work/client$i.log" &
    pids+=($!)
    if ((i % 10)); then good+=($!); else victims+=($!); fi
  done
  for pid in "${good[@]}"; do wait "$pid" || fail "a client"; done
  for pid in "${victims[@]}"; do kill -KILL "$pid" || fail "a client has ended by itself"; done
  for pid in "${victims[@]}"; do wait "$pid" 2>/dev/null || true; done

  client put name 5 w || fail "put after the kills"
  [ "$(client get name)" = "5 w" ] || fail "get after the kills"
  kill -INT "$server"
  wait "$server" || fail "the server's end"
  pids=()
  [ ! -s "$work/server.log" ] || fail "the server wrote something"
}

run mem:
run "dir:$work/store"
echo "good"
