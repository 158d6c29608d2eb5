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

# Over tls, by clients that --allow names, and others. The server prints the latter.
if [ ! -x "$bin/bmi-keys" ]; then
  echo "skipped: tls is not built in"
  ends
  exit
fi
keys=$work/keys
as() { # as NAME COMMAND...: with that certificate
  BMI_TLS_CERTIFICATE=$keys/$1.pem BMI_TLS_KEY=$keys/$1.key BMI_TLS_AUTHORITIES=$keys/authority.pem "${@:2}"
}
"$bin/bmi-keys" authority "$keys" >/dev/null && "$bin/bmi-keys" host "$keys" server 127.0.0.1 >/dev/null
for client in backup render7 guest; do
  "$bin/bmi-keys" client "$keys" $client >/dev/null
done
wrong "--allow and tcp" "tcp://127.0.0.1:0 prove no identity" \
  as server "$bin/bmi-stripefsd" --listen tls://127.0.0.1:0,tcp://127.0.0.1:0 --store "$work/none" --allow backup
wrong "--allow of nothing" "--allow: 1 to 64 patterns" \
  as server "$bin/bmi-stripefsd" --listen tls://127.0.0.1:0 --store "$work/none" --allow ''
as server server_start $number tls://127.0.0.1:0 "$work/store$number" --allow backup --allow 'render[0-9]'
servers=${url[$number]}
check "put over tls" as backup fs put "$work/file" /file
check "get over tls by another" as render7 fs get /file "$work/back$number"
check "it is the same" cmp "$work/file" "$work/back$number"
refused "get by a guest" EACCES as guest fs get /file "$work/none"
refused "rm by a guest" EACCES as guest fs rm /file
check "the file is still there" as backup fs stat /file
kill -TERM "${pid[$number]}"
wait "${pid[$number]}" || fail "the server over tls ended with $?"
check "the server names the guest" grep -q "^bmi-stripefsd: refused guest from 127.0.0.1" "$work/log$number"
check "it names nobody else" [ -z "$(grep -v "refused guest from" "$work/log$number")" ]
ends
