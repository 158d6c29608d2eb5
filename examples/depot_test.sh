#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# usage: depot_test.sh BIN - runs depot_server and depot_client of docs/request-reply.md.
set -euo pipefail

work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill -KILL "$server" 2>/dev/null || true; rm -rf "$work"' EXIT
mkfifo "$work/url"
"$1/depot_server" >"$work/url" &
server=$!
read -r url <"$work/url"
timeout 100 "$1/depot_client" "$url" | tee "$work/out"
for line in 'put: .*success' 'get: .*, the same' 'get of nothing: ENOENT' 'put of too much: EFBIG'; do
  grep -qi "^$line" "$work/out" || {
    echo "FAILED: no line \"$line\""
    exit 1
  }
done
kill -INT "$server"
wait "$server" || {
  echo "FAILED: the server's status"
  exit 1
}
server=
