#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# stripefs with real files: trees are put to four servers and got back, then by several clients at
# once, each byte and all metadata compared; a server is killed in the midst of a put of a large file.
#
# usage: stripefs_tree_test.sh BIN [SCHEME [HOST]]
#   BMI_TREE          folders to take (default: some of this source tree, for each day)
#   BMI_TREE_CLIENTS  folders that each of the clients at once takes (default: fewer)
#   BMI_CLIENTS       how many (8)
#   BMI_LARGE         bytes of the large file (32M; the whole test: 4G)
#   BMI_TEST_FOLDER   where all this is to be: twice the trees, as often as there are clients, and four
#                     times the large file
# The whole test: BMI_TREE=/usr/share BMI_TREE_CLIENTS=/usr/share/doc BMI_LARGE=4G
source "$(dirname "$0")/stripefs_lib.sh"

root=$(cd "$(dirname "$0")/../.." && pwd)
read -ra folders <<<"${BMI_TREE:-$root/bmi $root/docs $root/tests}"
read -ra folders_clients <<<"${BMI_TREE_CLIENTS:-${BMI_TREE:-$root/docs}}"
clients=${BMI_CLIENTS:-8}
large=$(numfmt --from=iec "${BMI_LARGE:-32M}")

# timed NAME COMMAND...: as check, and prints its time.
timed() {
  local begin=${EPOCHREALTIME/[.,]/}
  check "$@"
  echo "        $(((${EPOCHREALTIME/[.,]/} - begin) / 1000)) ms"
}

# tree_copy TO FOLDER...: copies the files that a server can hold; no sockets and pipes.
tree_copy() {
  local to=$1
  mkdir -p "$to"
  tar -C / --ignore-failed-read -cf - "${@:2}" 2>/dev/null | tar -C "$to" -xf -
}

# received N: KiB in a server's store.
received() {
  du -sk "$work/store$1" | cut -f 1
}

for i in 0 1 2 3; do server_start $i "$scheme://$host:0"; done
servers=$(IFS=,; echo "${url[*]}")

# ---- a tree with all kinds of files ----
tree_copy "$work/tree" "${folders[@]}"
mkdir "$work/tree/special"
: >"$work/tree/special/empty"
truncate -s $((large / 4)) "$work/tree/special/sparse"
printf 'in the midst' |
  dd of="$work/tree/special/sparse" bs=1 seek=$((large / 5)) conv=notrunc status=none
head -c "$large" /dev/urandom >"$work/tree/special/large"
tree_list "$work/tree" >"$work/tree.list"
echo "$(find "$work/tree" -type f | wc -l) files, $(du -sm "$work/tree" | cut -f 1) MB," \
  "one of $large bytes; over $scheme"
timed "put the tree" fs put -r "$work/tree" /
timed "get it" fs get -r /tree "$work/back"
check "it is the same" same "$work/tree.list" "$work/back"
rm -rf "$work/back"

# ---- several clients at once ----
tree_copy "$work/mine" "${folders_clients[@]}"
tree_list "$work/mine" >"$work/mine.list"
client() {
  fs put -r "$work/mine" "/client$1" && fs get -r "/client$1" "$work/back$1" &&
    diff "$work/mine.list" <(tree_list "$work/back$1") && fs rm -r "/client$1"
}
echo "$(find "$work/mine" -type f | wc -l) files, $(du -sm "$work/mine" | cut -f 1) MB for each of $clients"
begin=${EPOCHREALTIME/[.,]/}
declare -a running=()
for ((c = 0; c < clients; c++)); do
  client $c >"$work/client$c" 2>&1 &
  running+=($!)
done
for ((c = 0; c < clients; c++)); do
  if wait "${running[$c]}"; then echo "passed: client $c of $clients at once"
  else fail "client $c of $clients at once"; cat "$work/client$c"; fi
  rm -rf "$work/back$c"
done
echo "        $(((${EPOCHREALTIME/[.,]/} - begin) / 1000)) ms"

# ---- a server is killed in the midst of a put: another one stands still meanwhile, one that is not
# asked for the path, so that it can't end before ----
check "put files with sync" fs --sync put -r "$work/mine" /precious
before=$(received 2)
kill -STOP "${pid[0]}"
fs put "$work/tree/special/large" /second >"$work/killed" 2>&1 &
put=$!
while kill -0 $put 2>/dev/null && [ "$(received 2)" -lt $((before + 1024)) ]; do :; done
kill -9 "${pid[2]}"
wait "${pid[2]}" 2>/dev/null
kill -CONT "${pid[0]}"
if wait $put; then fail "a put to a killed server succeeded"; fi
if grep -qF "server ${url[2]}" "$work/killed"; then echo "passed: $(head -n 1 "$work/killed")"
else fail "the error does not name the server:"; cat "$work/killed"; fi
refused "nothing of it is there" "no such file" fs stat /second
server_start 2 "${url[2]}"
timed "get what was put with sync" fs get -r /precious "$work/precious"
check "it is the same" same "$work/mine.list" "$work/precious"
timed "put the large file again" fs put "$work/tree/special/large" /second
timed "get it" fs get /second "$work/second"
check "it is the same" cmp "$work/tree/special/large" "$work/second"
rm -f "$work/second"
check "get the tree again" fs get -r /tree "$work/back"
check "it is still the same" same "$work/tree.list" "$work/back"
timed "remove all" fs rm -r /
[ -z "$(fs ls /)" ] || fail "something is left: $(fs ls /)"

servers_stop
ends
