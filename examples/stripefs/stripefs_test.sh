#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# stripefs from end to end: a tree is put to four servers and got back, by several clients at once;
# bad input; a server is killed in the midst of a put, and restarted.
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

# Small files are spread over all servers.
mkdir "$work/small"
for i in {1..64}; do echo "$i" >"$work/small/$i"; done
check "put small files" fs put -r "$work/small" /
fs stat $(fs ls /small | awk '{ print "/small/" $NF }') >"$work/spread"
for i in 0 1 2 3; do
  grep -q " on ${url[$i]}\$" "$work/spread" || fail "no small file is on server $i"
done
check "remove them" fs rm -r /small

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
: >"$work/a file"
ln -s "$work" "$work/a link"
refused "a folder onto a file" "a file: ENOTDIR" fs get -r /tree "$work/a file"
mkdir "$work/held" && ln -s "$work" "$work/held/tree"
refused "a folder onto a link to another" "tree: ENOTDIR" fs get -r /tree "$work/held"
mkdir "$work/held/empty"
refused "a file over a folder" "held/empty: EISDIR" fs get /tree/empty "$work/held"
mkfifo "$work/a pipe"
refused "a file over a pipe" "a pipe: EEXIST" fs get /tree/deep/large "$work/a pipe"
refused "a link over a pipe" "a pipe: EEXIST" fs get /tree/link "$work/a pipe"
ln -s "$work/a pipe" "$work/to a pipe"
refused "a file over a link to a pipe" "to a pipe: EEXIST" fs get /tree/deep/large "$work/to a pipe"
[ -p "$work/a pipe" ] && [ -L "$work/to a pipe" ] || fail "a pipe was replaced"
refused "a file into no folder" "$work/none/x: ENOENT" fs get /tree/deep/large "$work/none/x"
mkdir "$work/x" "$work/y"
echo x >"$work/x/name"
echo y >"$work/y/name"
refused "two files of one name into a folder" "same last name" fs put "$work/x/name" "$work/y/name" /tree
[ "$(fs ls /tree | grep -c ' name$')" = 0 ] || fail "one of two files of one name was put"
refused "two files of one name out of folders" "same last name" fs get /tree/many/ /tree/deep/../many "$work/x"
refused "a file of /proc" "/proc/self/status: EOPNOTSUPP" fs put /proc/self/status /tree
refused "nothing of it is there" "no such file" fs stat /tree/status
refused "a folder that cannot be read" "$work/tree/many: EIO" \
  "$bin/stripefs-failing-folder" --servers "$servers" put -r "$work/tree/many" /unread
check "remove what was read of it" fs rm -r /unread
[ -f "$work/a file" ] && [ -L "$work/held/tree" ] || fail "what is no folder was replaced"
refused "servers in another order" "another place in the list" \
  "$bin/bmi-stripefs" --servers "${url[1]},${url[0]},${url[2]},${url[3]}" ls /
refused "no such scheme" "server nix://host:1: ENOPROTOOPT" "$bin/bmi-stripefs" --servers "nix://host:1" ls /
[ "$(wc -l <"$work/out")" = 1 ] || { fail "a wrong server, in more than a line:"; cat "$work/out"; }
refused "too many servers" "more than 64 servers" \
  "$bin/bmi-stripefs" --servers "$(printf "${url[0]},%.0s" {1..65})" ls /
[ "$(wc -l <"$work/out")" = 1 ] || { fail "too many servers, in more than a line:"; cat "$work/out"; }
refused "a store in use" "store" "$bin/bmi-stripefsd" --listen "$scheme://$host:0" \
  --store "$work/store0"
check "requests that are none" "$bin/stripefs-bad-requests" "${url[0]}"
"$bin/bmi-rpc" "${url[0]}" >"$work/out" && grep -q 'stripefs\.list' "$work/out" || fail "bmi-rpc: $(cat "$work/out")"
mkdir "$work/other"
echo important >"$work/other/file"
refused "a folder that is no store" "store" "$bin/bmi-stripefsd" \
  --listen "$scheme://$host:0" --store "$work/other" --place 1/1
[ "$(cat "$work/other/file")" = important ] || fail "the folder that is no store was touched"

wrong "no verb" "no verb" fs
wrong "a verb that is none" "frob: there is no such verb" fs frob /tree
wrong "too few arguments" "put: too few arguments" fs put /tree
wrong "too many arguments" "df: too many arguments" fs df /tree
wrong "no servers" "--servers" "$bin/bmi-stripefs" --servers '' ls
wrong "servers without names" "--servers" "$bin/bmi-stripefs" --servers , ls
wrong "a number that is none" "--parallel 3x" fs --parallel 3x ls
server=("$bin/bmi-stripefsd" --listen "$scheme://$host:0" --store mem: --place 1/1)
wrong "no store" "--fault" "$bin/bmi-stripefsd" --listen "$scheme://$host:0"
wrong "requests that are no number" "--requests 4x" timeout 20 "${server[@]}" --requests 4x
wrong "no requests" "--requests 0" timeout 20 "${server[@]}" --requests 0
wrong "a fault that is no number" "--fault soon" timeout 20 "${server[@]}" --fault soon
wrong "a fault before the first" "--fault -1" timeout 20 "${server[@]}" --fault -1
for verb in "ls /" "stat /tree" df --version --help -V -h; do
  refused "$verb to a full disk" "standard output" to_full "$bin/bmi-stripefs" --servers "$servers" $verb
done
refused "a file to a full disk" "standard output: ENOSPC" to_full "$bin/bmi-stripefs" --servers "$servers" \
  cat /tree/deep/large
refused "a server whose URL nobody gets" "standard output" to_full "${server[@]}"
for option in --version --help -V -h; do
  refused "a server's $option to a full disk" "standard output" to_full "${server[@]}" $option
done

# ---- no memory: each allocation of the program in turn; work that is reported as done is done ----
# short NAME VERB...: until all allocations have been tried.
short() {
  local number=0 name=$1
  shift
  while number=$((number + 1)) && [ $number -lt 100 ]; do
    reset "$name"
    if STRIPEFS_FAILS=$number "$bin/stripefs-failing-memory" --servers "$servers" "$@" >"$work/out" 2>&1; then
      break
    fi
    grep -q ENOMEM "$work/out" || fail "$name without allocation $number said: $(cat "$work/out")"
    [ -z "$(find "$work/short" -name '.*.??????' 2>/dev/null)" ] || fail "$name left a temporary file"
  done
  [ $number -gt 3 ] || fail "$name was not tried without memory"
}
reset() {
  rm -rf "$work/short"
  [ "$1" != put ] || fs rm -r /short >/dev/null 2>&1
}
mkdir -p "$work/scarce/folder/below"
head -c 3000 "$work/tree/sparse" >"$work/scarce/folder/one"
echo two >"$work/scarce/two"
chmod 700 "$work/scarce/folder"
touch -d 2001-02-03 "$work/scarce/folder/one" "$work/scarce/folder/below" "$work/scarce/folder" "$work/scarce"
short put put -r "$work/scarce" /short
short get get -r /short "$work/short"
check "what was put and got with hardly any memory" same "$work/scarce" "$work/short"
short list ls -r /short
check "a list with hardly any memory" test "$(wc -l <"$work/out")" = "$(fs ls -r /short | wc -l)"
short remove rm -r /short
refused "what was removed with hardly any memory" "no such" fs stat /short
short "put of one" put "$work/scarce/two" /alone
short "get of one" get /alone "$work/short"
check "one that was put and got with hardly any memory" cmp "$work/scarce/two" "$work/short"
fs rm /alone

# ---- no memory for one of the machines: those that run already end before the memory is used again ----
# started VERB...: with each of the first machines failing in turn.
started() {
  local number status failed=0
  for number in {1..48}; do
    [ "$1" != rm ] || fs put -r "$work/victims" /
    STRIPEFS_FAILS=$number timeout 60 "$bin/stripefs-failing-start" --servers "$servers" "$@" >"$work/out" 2>&1
    status=$?
    [ $status = 0 ] && continue
    failed=$((failed + 1))
    [ $status = 1 ] && grep -q ENOMEM "$work/out" ||
      { fail "$1 without machine $number ended with $status:"; cat "$work/out"; }
  done
  [ $failed -gt 3 ] && echo "passed: $1 without one of its machines" || fail "$1 was not tried without a machine"
}
started put "$work/tree/deep/large" "$work/tree/deep/er/one stripe" /tree/many
started get /tree/deep/large "$work/short"
check "put with all machines" fs put "$work/tree/deep/large" /tree/many
check "get with all machines" fs get /tree/many/large "$work/short"
check "what was put and got with all machines" cmp "$work/tree/deep/large" "$work/short"
check "remove what was put" fs rm /tree/many/large "/tree/many/one stripe"
mkdir "$work/victims"
touch "$work"/victims/{1..8}
started rm -r /victims

# ---- a file larger than the limit of file sizes ----
limited() {
  (ulimit -f 8000 && fs get /tree/sparse "$work/limited")
}
refused "a file beyond the limit of files" "$work/limited: EFBIG" limited
compgen -G "$work/.limited.*" && fail "something of it is left"

# ---- signals end a get, and leave no part of it ----
for i in 0 1 2 3; do
  kill -STOP "${pid[$i]}"
  "$bin/bmi-stripefs" --servers "$servers" --timeout 5 stat /tree/deep/large >"$work/out" 2>&1 && break
  kill -CONT "${pid[$i]}"
done
ulimit -c 0
for signal in TERM HUP QUIT; do
  env --default-signal=$signal "$bin/bmi-stripefs" --servers "$servers" get /tree/deep/large "$work/cut" >"$work/out" 2>&1 &
  get=$!
  while kill -0 $get 2>/dev/null && ! compgen -G "$work/.cut.*" >/dev/null; do :; done
  kill -s $signal $get
  wait $get
  status=$?
  [ $((status - 128)) = "$(kill -l $signal)" ] || { fail "a get ended by $signal: $status"; cat "$work/out"; }
  if compgen -G "$work/.cut.*" || [ -e "$work/cut" ]; then fail "$signal left something of a get"
  else echo "passed: $signal left nothing of a get"; fi
done
kill -CONT "${pid[$i]}"

# ---- folders that cannot be entered, for a user who is not root ----
mkdir -p "$work/closed/inner/most"
echo deep >"$work/closed/inner/most/file"
touch -d '2001-02-03 04:05:06.7' "$work/closed/inner"
chmod 0500 "$work/closed/inner/most"
chmod 0400 "$work/closed/inner" "$work/closed"
if [ "$(id -u)" = 0 ]; then
  check "put folders that let nobody in" fs put -r "$work/closed" /
  mkdir -m 0777 "$work/nobody's"
  chmod 0711 "$work"
  nobody=(setpriv --reuid 65534 --regid 65534 --clear-groups)
  # gm and ofi+shm connect processes of the same user only.
  if "${nobody[@]}" "$bin/bmi-stripefs" --servers "$servers" ls / >/dev/null 2>&1; then
    check "get them" "${nobody[@]}" "$bin/bmi-stripefs" --servers "$servers" get -r /closed "$work/nobody's/back"
    [ "$(stat -c %a-%Y "$work/nobody's/back/inner")" = "$(stat -c %a-%Y "$work/closed/inner")" ] ||
      fail "the inner folder's mode or time"
  else
    echo "left out: nobody cannot reach the servers"
  fi
  check "remove them" fs rm -r /closed
fi

# ---- a server is killed in the midst of a put ----
head -c 4000000 /dev/urandom >"$work/precious"
head -c 4000000 /dev/urandom >"$work/second"
check "put with sync" fs --sync put "$work/precious" /precious
mkdir -p "$work/lot" "$work/where/"{a,b,c,d,e,f,g,h}
check "put folders" fs put -r "$work/where" /
head -c 300000 "$work/second" >"$work/lot/1"
for n in {2..300}; do ln "$work/lot/1" "$work/lot/$n"; done
kill -STOP "${pid[2]}" # no put can end now: each has bytes on every server
fs put "$work/second" /precious >"$work/killed" 2>&1 &
put=$!
kill -9 "${pid[2]}"
wait "${pid[2]}" 2>/dev/null
if wait $put; then fail "a put to a killed server succeeded"; fi
if grep -qF "server ${url[2]}" "$work/killed"; then echo "passed: the error names the server"
else fail "the error does not name the server:"; cat "$work/killed"; fi
refused "an absent server" "server ${url[2]}" fs df
objects() {
  find "$work"/store[013] -type f | sort
}
objects >"$work/objects"
for folder in /where/{a,b,c,d,e,f,g,h}; do fs stat $folder >"$work/out" 2>&1 && break; done # it is on another
# Operations that fail by it delay no operation on the others, and leave no objects there.
refused "a lot to an absent server" "server ${url[2]}" timeout 60 "$bin/bmi-stripefs" --servers "$servers" \
  --timeout 600 put "$work/lot"/* $folder
check "nothing of it is left" diff "$work/objects" <(objects)
server_start 2 "${url[2]}"
check "get what was put with sync" fs get /precious "$work/precious.back"
cmp -s "$work/precious" "$work/precious.back" || fail "what was put with sync is damaged"
check "put again" fs put "$work/second" /precious
check "get that" fs get /precious "$work/second.back"
cmp -s "$work/second" "$work/second.back" || fail "what was put again is damaged"
check "get the tree again" fs get -r /tree "$work/again"
check "it is still the same" same "$work/tree" "$work/again"
check "remove all" fs rm -r /tree /precious /where

# ---- a server is stopped during commits: a put without an answer may have its name or not, but no name
# lacks its bytes ----
for i in 0 1 2 3; do
  kill -STOP "${pid[$i]}"
  "$bin/bmi-stripefs" --servers "$servers" --timeout 5 stat / >"$work/out" 2>&1 && break
  kill -CONT "${pid[$i]}"
done
fs --timeout 2 --parallel 64 put "$work"/small/* / >"$work/unanswered" 2>&1 &
put=$!
while kill -0 $put 2>/dev/null && ! [ -s "$work/unanswered" ]; do :; done
kill -CONT "${pid[$i]}"
if wait $put; then fail "puts to a server that stands still succeeded"; fi
names=$(fs ls / | awk '{ print $NF }')
for name in $names; do
  fs get "/$name" "$work/unanswered.back" >"$work/out" 2>&1 && cmp "$work/small/$name" "$work/unanswered.back" ||
    { fail "/$name is a name without its bytes"; cat "$work/out"; }
done
echo "passed: $(wc -w <<<"$names") names of 64, each with its bytes"
check "remove what is there" fs rm -r /

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

# ---- each flush of a server's key/values fails once: a failed put has its name or not, but no name
# lacks its bytes ----
server_start 6 "$scheme://$host:0"
servers=${url[6]}
check "put before a flush fails" fs --sync put "$work/second" /flushed
failed=0
for n in {1..5}; do
  kill -TERM "${pid[6]}"
  wait "${pid[6]}"
  STRIPEFSD_FLUSH_FAILS=$n program=stripefsd-failing-flush server_start 6 "$scheme://$host:0"
  servers=${url[6]}
  for version in precious second; do
    fs --sync put "$work/$version" /flushed >"$work/out" 2>&1 && continue
    failed=$((failed + 1))
    grep -qF "server ${url[6]}: EIO" "$work/out" || { fail "flush $n"; cat "$work/out"; }
    fs get /flushed "$work/flushed" >"$work/out" 2>&1 &&
      { cmp -s "$work/precious" "$work/flushed" || cmp -s "$work/second" "$work/flushed"; } ||
      { fail "after flush $n /flushed is a name without its bytes"; cat "$work/out"; }
  done
done
kill -TERM "${pid[6]}"
wait "${pid[6]}"
[ $failed -ge 3 ] && echo "passed: flushes that fail, $failed puts failed by them" ||
  fail "only $failed puts failed by a flush"
unset 'pid[6]'
rm -f "$work/log6" # what it says of its closing

# ---- a client whose writes stall has its share of the places, and no more ----
server_start 5 "$scheme://$host:0" mem:
servers=${url[5]}
mkfifo "$work/idle.in" "$work/idle.out"
"$bin/stripefs-idle-writes" "${url[5]}" 200 <"$work/idle.in" >"$work/idle.out" 2>&1 &
idle=$!
exec 4>"$work/idle.in" 5<"$work/idle.out"
read -r said <&5
check "another client" fs --timeout 10 ls /
check "a put of another client" fs --timeout 10 put -r "$work/few" /
exec 4>&-
wait $idle || { fail "idle writes: $said"; cat <&5; }
exec 5<&-
check "after it has gone" fs --timeout 10 ls /

# ---- a server without memory for a reply fails the request: no client waits for it ----
program=stripefsd-failing-reply server_start 4 "$scheme://$host:0" mem:
servers=${url[4]}
check "a first reply" fs stat /
check "a second one" fs stat /
refused "a reply without memory" "server ${url[4]}: ENOMEM" timeout 60 "$bin/bmi-stripefs" --servers "$servers" --timeout 600 stat /
check "the next one" fs stat /

servers_stop
ends
