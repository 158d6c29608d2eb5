#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# usage: pair_test.sh EXPECTED SERVER CLIENT [ARGUMENT...] - runs a server, which prints its URL, and
# a client of it, which must print EXPECTED.
set -euo pipefail

expected=$1 server=$2 client=$3
shift 3
work=$(mktemp -d)
pid=
trap '[ -z "$pid" ] || kill -KILL "$pid" 2>/dev/null || true; rm -rf "$work"' EXIT
mkfifo "$work/url"
"$server" >"$work/url" &
pid=$!
read -r url <"$work/url"
got=$(timeout 60 "$client" "$url" "$@") || { echo "FAILED: $client: status $?"; exit 1; }
[ "$got" = "$expected" ] || { echo "FAILED: $client printed: $got"; exit 1; }
