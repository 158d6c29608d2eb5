#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# stripefs from end to end: a tree put to four servers and got back, by several clients at once; bad
# input; a server that is killed in the midst of a put, and comes back.
#
# usage: stripefs_test.sh BIN [SCHEME [HOST]]      BMI_TEST_SCALE multiplies the number of files
source "$(dirname "$0")/stripefs_lib.sh"

# tree_make FOLDER: small files, empty, sparse, and large ones, links, modes, and strange names.
tree_make() {
  mkdir -p "$1/many" "$1/deep/er/still" "$1/empty folder" "$1/locked"
  for ((i = 0; i < 60 * scale; i++)); do
    head -c $((RANDOM % 9000)) /dev/urandom >"$1/many/file $i"
  done
  : >"$1/empty"
  head -c 3000001 /dev/urandom >"$1/deep/large"
  head -c 65536 /dev/urandom >"$1/deep/er/one stripe"
  head -c 65537 /dev/urandom >"$1/deep/er/still/a byte more"
  truncate -s 9000000 "$1/sparse"
  printf 'in the midst' | dd of="$1/sparse" bs=1 seek=5000000 conv=notrunc status=none
  truncate -s 200000 "$1/only a hole"
  echo 'übel' >"$1/ünïcödé-имя"
  echo odd >"$1"/$'new\nline'
  ln -s ../nowhere "$1/link"
  chmod 0640 "$1/empty"
  chmod 4755 "$1/deep/large"
  touch -d '1999-12-31 23:59:59.123456789' "$1/many/file 1"
  touch -d '1960-01-02 03:04:05.5' "$1/empty"
  touch -d '2001-02-03 04:05:06.7' "$1/empty folder"
  chmod 0500 "$1/locked"
}

for i in 0 1 2 3; do server_start $i "$scheme://$host:0"; done
servers=$(IFS=,; echo "${url[*]}")
tree_make "$work/tree"

# ---- there and back ----
check "put a tree" fs put -r "$work/tree" /
check "get it" fs get -r /tree "$work/back"
check "it is the same" same "$work/tree" "$work/back"
check "list it" fs ls -r /
check "put it again, over itself" fs --sync put -r "$work/tree" /
fs cat /tree/deep/large | cmp -s - "$work/tree/deep/large" || fail "cat"
fs stat /tree/deep/large | grep -q "stripes of 65536 bytes" || fail "stat"
[ "$(fs df | grep -c "$scheme://")" = 4 ] || fail "df"

# ---- several at once ----
client() {
  fs put -r "$work/tree" "/client$1" && fs get -r "/client$1" "$work/back$1" &&
    diff <(tree_list "$work/tree") <(tree_list "$work/back$1") && fs rm -r "/client$1"
}
declare -a clients=()
for c in 1 2 3 4; do
  client $c >"$work/client$c" 2>&1 &
  clients+=($!)
done
for c in 1 2 3 4; do
  if wait "${clients[$((c - 1))]}"; then echo "passed: client $c of 4 at once"
  else fail "client $c of 4 at once"; cat "$work/client$c"; fi
done
[ "$(fs ls / | wc -l)" = 1 ] || fail "what the clients removed is still there: $(fs ls /)"

# ---- bad input ----
long=$(printf 'n%.0s' {1..256})
refused "a path with .." "no path" fs put "$work/tree/empty" /tree/../x
refused "a path without /" "no path" fs cat tree
refused "a name that is too long" "too long" fs put "$work/tree/empty" "/$long"
refused "a path that is too long" "too long" fs cat "/$(printf 'abc/%.0s' {1..150})x"
refused "what is not there" "no such file" fs get /nothing "$work/nothing"
refused "into no folder" "no such file" fs put "$work/tree/empty" /nothing/x
refused "a folder without -r" "EISDIR" fs put "$work/tree" /
refused "a folder over a file" "ENOTDIR" fs put -r "$work/tree/many" /tree/empty
refused "removing a folder that is not empty" "ENOTEMPTY" fs rm /tree
refused "a local file that is not there" "ENOENT" fs put "$work/none" /
refused "servers in another order" "its place in the list" \
  "$bin/bmi-stripefs" --servers "${url[1]},${url[0]},${url[2]},${url[3]}" ls /
refused "no such scheme" "ENOPROTOOPT" "$bin/bmi-stripefs" --servers "nix://host:1" ls /
refused "a store in use" "store" "$bin/bmi-stripefsd" --listen "$scheme://$host:0" \
  --store "$work/store0"
check "requests that are none" "$bin/stripefs-bad-requests" "${url[0]}"
mkdir "$work/other"
echo important >"$work/other/file"
refused "a folder that is no store" "store" "$bin/bmi-stripefsd" \
  --listen "$scheme://$host:0" --store "$work/other"
[ "$(cat "$work/other/file")" = important ] || fail "the folder that is no store was touched"

# ---- a server is killed in the midst of a put ----
head -c 4000000 /dev/urandom >"$work/precious"
head -c 4000000 /dev/urandom >"$work/second"
check "put with sync" fs --sync put "$work/precious" /precious
kill -STOP "${pid[2]}" # no put can end now: each has bytes on every server
fs put "$work/second" /precious >"$work/killed" 2>&1 &
put=$!
kill -9 "${pid[2]}"
wait "${pid[2]}" 2>/dev/null
if wait $put; then fail "a put to a killed server succeeded"; fi
if grep -qF "server ${url[2]}" "$work/killed"; then echo "passed: the error names the server"
else fail "the error does not name the server:"; cat "$work/killed"; fi
refused "an absent server" "server ${url[2]}" fs df
server_start 2 "${url[2]}"
check "get what was put with sync" fs get /precious "$work/precious.back"
cmp -s "$work/precious" "$work/precious.back" || fail "what was put with sync is damaged"
check "put again" fs put "$work/second" /precious
check "get that" fs get /precious "$work/second.back"
cmp -s "$work/second" "$work/second.back" || fail "what was put again is damaged"
check "get the tree again" fs get -r /tree "$work/again"
check "it is still the same" same "$work/tree" "$work/again"
check "remove all" fs rm -r /tree /precious

# ---- each operation of the store fails once, as on a full disk ----
mkdir "$work/few"
head -c 100000 /dev/urandom >"$work/few/one"
echo two >"$work/few/two"
ln -s one "$work/few/link"
failed=0
for ((n = 0; n < 16; n++)); do
  rm -rf "$work/few.back"
  server_start 4 "$scheme://$host:0" mem: --fault $n
  servers=${url[4]}
  for try in 1 2; do
    fs --sync put -r "$work/few" / >"$work/out" 2>&1 && fs get -r /few "$work/few.back" >>"$work/out" 2>&1 && break
    failed=$((failed + 1))
    grep -qF "server ${url[4]}: ENOSPC" "$work/out" || { fail "fault $n"; cat "$work/out"; }
  done
  same "$work/few" "$work/few.back" >"$work/out" 2>&1 || { fail "after fault $n"; cat "$work/out"; }
  kill -TERM "${pid[4]}"
  wait "${pid[4]}" || fail "the server with fault $n ended with $?"
done
[ $failed -ge 5 ] && echo "passed: a full disk, $failed requests failed by it" ||
  fail "only $failed requests failed by a fault"
unset 'pid[4]'

servers_stop
ends
