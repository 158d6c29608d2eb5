#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# usage: run_test.sh EXPECTED PROGRAM [ARGUMENT...] - runs an example, which must print EXPECTED. Skipped
# if the program was not built, because a library is absent.
expected=$1
shift
[ -x "$1" ] || { echo "skipped: built without libuv"; exit 77; }
got=$(timeout 100 "$@") || { echo "FAILED: $1: status $?"; exit 1; }
[ "$got" = "$(printf '%b' "$expected")" ] || { echo "FAILED: $1 printed: $got"; exit 1; }
