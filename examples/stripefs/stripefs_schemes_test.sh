#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Puts a file to a server and gets it back over each built-in scheme: bmi-stripefsd makes the method's
# name from bmi_ and the URL's scheme.
#
# usage: stripefs_schemes_test.sh BIN
source "$(dirname "$0")/stripefs_lib.sh"

head -c 500000 /dev/urandom >"$work/file"
number=4 # from 4 on each server is the only one of its file system
for scheme in tcp gm ofi+tcp ofi+shm; do
  "$bin/bmi-info" --methods | grep -qE "schemes +${scheme/+/\\+}\$" || {
    echo "skipped: $scheme is not built in"
    continue
  }
  host=127.0.0.1
  [ $scheme = gm ] && host=stripefs$$
  server_start $number "$scheme://$host:0"
  servers=${url[$number]}
  check "put over $scheme" fs put "$work/file" /file
  check "get over $scheme" fs get /file "$work/back$number"
  check "it is the same" cmp "$work/file" "$work/back$number"
  number=$((number + 1))
done
servers_stop
ends
