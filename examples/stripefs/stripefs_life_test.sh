#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Leftovers and bad requests of clients: puts that are interrupted, killed, or stopped; clients that hold
# all places or send false lists of servers; check; and arguments as cp takes them.
#
# usage: stripefs_life_test.sh BIN [SCHEME [HOST]]
source "$(dirname "$0")/stripefs_lib.sh"

# objects: how many objects with bytes of files the stores hold.
objects() {
  find "$work"/store[0123]/collections/ -type f -path '*/collections/00000002/*' | wc -l
}

# until_true COMMAND...: waits, for two minutes at most, until it succeeds.
until_true() {
  local end=$((SECONDS + 120))
  until "$@"; do
    [ $SECONDS -lt $end ] || return 1
    read -rt 0.05 <> <(:)
  done
  return 0
}

objects_are() { [ "$(objects)" = "$1" ]; }
bytes_came() { [ "$(du -sk "$work"/store2 | cut -f 1)" -gt $((before + 64)) ]; }

# put_begin NAME [OPTION...]: a put that has sent some of a large file; its process is $put. It cannot
# end before the test continues server 1, which is stopped.
put_begin() {
  kill -STOP "${pid[1]}"
  before=$(du -sk "$work"/store2 | cut -f 1)
  env --default-signal=INT,HUP "$bin/bmi-stripefs" --servers "$servers" "${@:2}" put "$work/large" "$1" >"$work/put" 2>&1 &
  put=$!
  until_true bytes_came || fail "the put does not begin: $(cat "$work/put")"
}

# no_signal_pending PROCESS: it has taken all signals that it was sent, or has ended.
no_signal_pending() {
  ! grep -q '^ShdPnd:.*[1-9a-f]' "/proc/$1/status" 2>/dev/null
}

# put_end STATUS NAME: it ends with that status.
put_end() {
  wait $put 2>/dev/null
  local status=$?
  [ $status = "$1" ] && echo "passed: $2" || { fail "$2: the put ended with $status, not $1"; cat "$work/put"; }
}

servers_start() {
  local i
  for i in 0 1 2 3; do server_start $i "${url[$i]:-$scheme://$host:0}"; done
  servers=$(IFS=,; echo "${url[*]:0:4}")
}

servers_start
head -c 32M /dev/zero | tr '\0' x >"$work/large"
echo small >"$work/small"
check "put a first file" fs put "$work/small" /small
whole=$(objects)

# ---- a signal ends a put, and no part of it is left ----
for signal in INT TERM HUP; do
  put_begin /cut
  kill -s $signal $put
  until_true no_signal_pending $put || fail "the put does not take $signal"
  kill -CONT "${pid[1]}"
  put_end $((128 + $(kill -l $signal))) "$signal ends a put"
  # The servers remove the objects if the put could not, which gives up after 5 s.
  until_true objects_are "$whole" || fail "$signal left $(($(objects) - whole)) objects"
done
refused "nothing has its name" "no such file" fs stat /cut
check "what was there is there" fs cat /small

# ---- a signal while a server is stopped ----
put_begin /cut
kill -INT $put
put_end 130 "a signal ends a put to a server that stands still"
kill -CONT "${pid[1]}"
until_true objects_are "$whole" || fail "it left $(($(objects) - whole)) objects"

# ---- kill -9 of a client: the servers drop objects without a name ----
put_begin /killed
kill -9 $put
put_end 137 "a put is killed"
kill -CONT "${pid[1]}"
until_true objects_are "$whole" && echo "passed: the servers dropped its bytes" ||
  fail "the servers keep $(($(objects) - whole)) objects of a client that was killed"
mkdir "$work/many"
for i in {1..1000}; do echo "$i" >"$work/many/$i"; done
"$bin/bmi-stripefs" --servers "$servers" put -r "$work/many" / >"$work/out" 2>&1 &
put=$!
until_true eval '[ "$(objects)" -gt $((whole + 20)) ]'
kill -9 $put
wait $put 2>/dev/null
# A server may still commit names that the client had requested, and holds the other objects until it
# drops the client.
many_removed() {
  fs rm -r /many >"$work/out" 2>&1
  [ "$(objects)" -le $((whole + 8)) ]
}
many_repaired() {
  many_removed && fs check --repair >"$work/out" 2>&1 && objects_are "$whole"
}
until_true many_removed || fail "$(objects) objects of small files are left"
until_true many_repaired && echo "passed: those between their bytes and their name" ||
  fail "check --repair left $(objects) objects: $(cat "$work/out")"

# ---- a client that is stopped for longer than the servers wait continues ----
export BMI_PEER_TIMEOUT_MS=5000
kill -TERM "${pid[@]}"
wait "${pid[@]}"
pid=()
servers_start
unset BMI_PEER_TIMEOUT_MS
put_begin /stopped --timeout 15
kill -STOP $put
kill -CONT "${pid[1]}"
sleep 17 # the stop itself, longer than both time-outs
check "check knows that a stopped client is not gone" fs check --repair
kill -CONT $put
put_end 0 "a put goes on after a stop"
fs cat /stopped | cmp -s - "$work/large" || fail "a put that was stopped is damaged"
check "remove it" fs rm /stopped

# ---- kill -9 of all processes: check finds the leftovers ----
put_begin /crash
kill -9 $put "${pid[@]}"
wait 2>/dev/null
pid=()
servers_start
refused "check finds objects without a name" "has no name" fs check
check "check removes them" fs check --repair
objects_are "$whole" || fail "check left $(($(objects) - whole)) objects"
check "check finds nothing more" fs check
check "what was there is still there" fs cat /small
head -c 1M "$work/large" >"$work/part"
check "put a file that will lack a part" fs put "$work/part" /part
object=$(fs stat /part | sed -n 's/.*object 0*\([0-9a-f]*\),.*/\1/p')
kill -TERM "${pid[1]}"
wait "${pid[1]}"
lost=$(find "$work/store1/collections" -type f -size +200k | head -n 1)
rm "$lost"
server_start 1 "${url[1]}"
refused "check finds a file that lacks a part" "/part: its part on server ${url[1]} is missing" fs check --repair
check "remove it" fs rm /part
check "check finds nothing" fs check

# ---- one false list of servers does not damage a store ----
server_start 4 "$scheme://$host:0"
# Only the new server gets the false list: another one would refuse it first.
refused "a false list of servers" "another place in the list" \
  "$bin/bmi-stripefs" --servers "${url[4]},${url[4]}" put "$work/small" /
check "the true list after it" "$bin/bmi-stripefs" --servers "${url[4]}" put "$work/small" /
refused "a new store without a place" "--place" "$bin/bmi-stripefsd" --listen "$scheme://$host:0" --store mem:
kill -TERM "${pid[4]}"
wait "${pid[4]}"
refused "a store at another place" "1/1, not 2/3" "$bin/bmi-stripefsd" --listen "$scheme://$host:0" \
  --store "$work/store4" --place 2/3
wrong "a place that is none" "--place 3" "$bin/bmi-stripefsd" --listen "$scheme://$host:0" --store mem: --place 3
wrong "a place beyond the last" "--place 3" "$bin/bmi-stripefsd" --listen "$scheme://$host:0" --store mem: --place 3/2

# ---- idle clients hold neither all places nor theirs for long ----
# idle_begin URL: four clients begin sixteen writes each, and send nothing.
idle_begin() {
  local i said
  rm -f "$work/idle.in" "$work/idle.out"*
  mkfifo "$work/idle.in"
  idle=()
  for i in 1 2 3 4; do
    mkfifo "$work/idle.out$i"
    "$bin/stripefs-idle-writes" "$1" 16 <"$work/idle.in" >"$work/idle.out$i" 2>&1 &
    idle+=($!)
  done
  exec 4>"$work/idle.in"
  for i in 1 2 3 4; do read -r said <"$work/idle.out$i"; done
}
idle_end() {
  exec 4>&-
  wait "${idle[@]}"
}
# served_at_once URL IDLE_URL: a client's put ends before the server gives up the idle clients, which it
# does after 5 s. A slow machine gets several tries.
served_at_once() {
  local try status=1
  for try in 1 2 3 4 5 6; do
    idle_begin "$2"
    "$bin/bmi-stripefs" --servers "$1" --timeout 3 put "$work/small" / && status=0
    idle_end
    [ $status != 0 ] || return 0
  done
  return 1
}
if [ "$scheme" = tcp ]; then
  server_start 4 "tcp://:0" mem:
  port=${url[4]##*:}
  if grep -q '^0\{31\}1 .* lo$' /proc/net/if_inet6 2>/dev/null; then
    check "a client on another host" served_at_once "tcp://127.0.0.1:$port" "tcp://[::1]:$port"
  else
    echo "left out: there is no IPv6 here, and so no second host"
  fi
  kill -TERM "${pid[4]}"
  wait "${pid[4]}"
fi
server_start 4 "$scheme://$host:0" mem:
idle_begin "${url[4]}"
check "a client on the same host" "$bin/bmi-stripefs" --servers "${url[4]}" --timeout 120 put "$work/small" /
idle_end

# ---- names that act on terminals ----
printf -v odd 'a\033]0;x\007\nb'
echo odd >"$work/$odd"
check "put an odd name" fs put "$work/$odd" /
fs ls / >"$work/list"
fs ls -r / >>"$work/list"
fs stat "/$odd" >>"$work/list"
fs cat "/$odd/nothing" >>"$work/list" 2>&1
fs get "/$odd" "$work/none/x" >>"$work/list" 2>&1
LC_ALL=C grep -q $'[\001-\011\013-\037\177]' "$work/list" && fail "control bytes are printed: $(cat -v "$work/list")"
[ "$(grep -cF 'a\x1b]0;x\x07\x0ab' "$work/list")" = 4 ] || { fail "an odd name is not escaped"; cat -v "$work/list"; }
check "remove it" fs rm "/$odd"

# ---- links, pipes, and standard input, as cp takes them ----
ln -s small "$work/link"
check "put a link without -r" fs put "$work/link" /followed
[ "$(fs cat /followed)" = small ] || fail "a link was not followed"
check "put a link with -r" fs put -r "$work/link" /link
fs ls / | grep -q ' link -> small$' || fail "a link was followed in spite of -r"
check "put /dev/stdin from a file" eval 'fs put /dev/stdin /stdin <"$work/small"'
check "put /dev/stdin from a pipe" eval 'cat "$work/part" | fs put /dev/stdin /piped'
check "put - from a pipe" eval 'cat "$work/large" | fs --sync put - /dash'
check "put - from a file" eval 'fs put - /dash2 <"$work/small"'
check "put - of nothing" fs put - /nothing </dev/null
mkfifo "$work/pipe"
cat "$work/part" >"$work/pipe" &
check "put a pipe" fs put "$work/pipe" /pipe
wait $!
[ "$(fs cat /stdin)" = small ] || fail "/dev/stdin"
fs cat /piped | cmp -s - "$work/part" || fail "/dev/stdin from a pipe"
fs cat /pipe | cmp -s - "$work/part" || fail "a pipe"
fs cat /dash | cmp -s - "$work/large" || fail "- from a pipe"
[ "$(fs cat /dash2)" = small ] || fail "- from a file"
[ -z "$(fs cat /nothing)" ] || fail "- of nothing"
refused "a pipe with -r" "EOPNOTSUPP" fs put -r "$work/pipe" /
refused "- into a folder" "needs a name" fs put - / <"$work/small"
refused "a link to nothing" "ENOENT" eval 'ln -s nowhere "$work/dangling"; fs put "$work/dangling" /'
"$bin/bmi-stripefs" --servers "$servers" put - /waits < <(sleep 100) >"$work/put" 2>&1 &
put=$!
until_true eval 'tr "\0" " " </proc/$put/cmdline | grep -q -- "- /waits"' # it has started
kill -TERM $put
put_end 143 "a signal ends a put that waits for its input"
fs rm -r /followed /link /stdin /piped /pipe /dash /dash2 /nothing || fail "remove them"

# ---- slashes at the end, as in cp ----
mkdir -p "$work/dir/below"
echo inner >"$work/dir/below/file"
check "put a folder with a slash" fs put -r "$work/dir/" /
check "put a folder into one with a slash" fs put -r "$work/dir/" /dir/
check "put a folder to a new name with a slash" fs put -r "$work/dir/" /new/
check "list a folder with a slash" fs ls /dir//dir/
check "get a folder with a slash" fs get -r /new/ "$work/back/"
check "it is the same" same "$work/dir" "$work/back"
check "put a file into a folder with a slash" fs put "$work/small" /new/
[ "$(fs cat //new///small)" = small ] || fail "slashes in a path"
ln -s dir "$work/dirlink"
check "put a link to a folder, with a slash" fs put -r "$work/dirlink/" /
[ "$(fs cat /dirlink/below/file)" = inner ] || fail "a link with a slash was not followed"
refused "put a file to a new name with a slash" "ENOTDIR" fs put "$work/small" /newer/
refused "put to a file with a slash" "ENOTDIR" fs put "$work/small" /small/
refused "put a file with a slash" "ENOTDIR" fs put "$work/small/" /
refused "get a file with a slash" "ENOTDIR" fs get /small/ "$work/x"
refused "get to a new name with a slash" "ENOTDIR" fs get /small "$work/newer/"
refused "cat with a slash" "ENOTDIR" fs cat /small/
refused "rm with a slash" "ENOTDIR" fs rm /small/
check "rm a folder with a slash" fs rm -r /dir/ /new/ /dirlink/
check "put what is in a folder" fs put -r "$work/dir/." /
[ "$(fs cat /below/file)" = inner ] || fail "the contents of a folder"
check "remove it" fs rm -r /below

# ---- a link's target may be long ----
target=$(printf 'x%.0s' {1..4095})
ln -s "$target" "$work/dir/longest"
check "put a link of 4095 bytes" fs put -r "$work/dir" /
rm -rf "$work/back"
check "get it" fs get -r /dir "$work/back"
[ "$(readlink "$work/back/longest")" = "$target" ] || fail "a link of 4095 bytes"
check "replace it" fs put -r "$work/dir" /
check "remove it" fs rm -r /dir

# ---- special bits ----
cp "$work/small" "$work/special"
for mode in 4755 4644 2755 2644 1755 1644 7777; do
  chmod $mode "$work/special"
  fs put "$work/special" / || fail "put mode $mode"
  [ "$(fs ls /special | cut -c 1-10)" = "$(stat -c %A "$work/special")" ] ||
    fail "mode $mode is shown as $(fs ls /special)"
done
if [ "$(id -u)" = 0 ]; then
  mkdir -m 0777 "$work/nobody's"
  chmod 0711 "$work"
  nobody=(setpriv --reuid 65534 --regid 65534 --clear-groups)
  if "${nobody[@]}" "$bin/bmi-stripefs" --servers "$servers" ls / >/dev/null 2>&1; then
    check "get a file of another user" "${nobody[@]}" "$bin/bmi-stripefs" --servers "$servers" get /special "$work/nobody's/"
    [ "$(stat -c '%a %u' "$work/nobody's/special")" = "777 65534" ] ||
      fail "a file of another user is $(stat -c '%a %u' "$work/nobody's/special")"
  fi
  check "get it as root" fs get /special "$work/special.back"
  [ "$(stat -c %a "$work/special.back")" = 7777 ] || fail "a mode that may be kept"
fi

# ---- extended attributes are not kept, with one warning ----
if python3 - "$work" <<'END' 2>/dev/null; then
import os, sys
for name in ("small", "part"):
    os.setxattr(os.path.join(sys.argv[1], name), "user.test", b"1")
END
  fs put "$work/small" "$work/part" / 2>"$work/warned" || fail "put with attributes"
  [ "$(grep -c "attributes.*not kept" "$work/warned")" = 1 ] || { fail "a warning of attributes"; cat "$work/warned"; }
else
  echo "left out: this file system keeps no extended attributes"
fi

# ---- many small files ----
rm -rf "$work/many"
for d in {1..20}; do
  mkdir -p "$work/many/$d/a/b"
  for f in {1..20}; do echo $f >"$work/many/$d/$f"; done
  : >"$work/many/$d/a/b/deep"
done
check "put many files" fs put -r "$work/many" /
rm -rf "$work/back"
check "get them" fs get -r /many "$work/back"
check "they are the same" same "$work/many" "$work/back"
check "remove them" fs rm -r /many
refused "they are gone" "no such" fs stat /many/1
check "remove all" fs rm -r /
objects_are 0 || fail "$(objects) objects are left"
check "nothing is left" fs check

servers_stop
ends
