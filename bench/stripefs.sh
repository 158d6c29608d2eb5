#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Compares stripefs with its disk: one client puts and gets a large file over four servers whose
# stores are folders of one disk. In turn with that, one plain reader or writer of that disk writes
# and reads a file as large, and reads the servers' own files one after the other. Writes end when
# all is on disk (fsync, --sync); reads begin without cached data, and go to a file in memory, too.
#
# usage: bench/stripefs.sh BIN FOLDER [MiB [ROUNDS]]     BIN: where bmi-stripefs and bmi-stripefsd are
set -eu

bin=$1
folder=$(mktemp -d -p "$2")
memory=$(mktemp -d -p /dev/shm)
size=${3:-512}
rounds=${4:-5}
declare -a pid=() url=()

cleanup() {
  for p in "${pid[@]}"; do kill -9 "$p" 2>/dev/null; done
  wait 2>/dev/null
  rm -rf "$folder" "$memory"
}
trap cleanup EXIT

# speed COMMAND...: its MB/s.
speed() {
  local begin=${EPOCHREALTIME/[.,]/}
  "$@" >/dev/null
  echo $((size * 1048576 / (${EPOCHREALTIME/[.,]/} - begin)))
}

# forget: removes the folder's files from the page cache.
forget() {
  local file
  sync -f "$folder"
  while IFS= read -r -d '' file; do
    dd if="$file" iflag=nocache count=0 status=none
  done < <(find "$folder" -type f -print0)
}

plain_write() { dd if="$memory/file" of="$folder/plain" bs=4M conv=fsync status=none; }
plain_read() { dd if="$folder/plain" of="$memory/back" bs=4M status=none; }
put() { "$bin/bmi-stripefs" --servers "$servers" --sync put "$memory/file" /file; }
store_read() {
  local file
  while IFS= read -r -d '' file; do
    dd if="$file" bs=4M status=none
  done < <(find "$folder"/store*/collections -type f -print0) >"$memory/all"
}
get() { "$bin/bmi-stripefs" --servers "$servers" get /file "$memory/back"; }

# whole FILE: ends the run unless the file has as many bytes as were put.
whole() {
  local bytes
  bytes=$(stat -c %s "$1")
  [ "$bytes" -eq $((size * 1048576)) ] && return
  echo "the stores' files have $bytes bytes, not $size MiB" >&2
  exit 1
}

median() { sort -n | sed -n "$(((rounds + 1) / 2))p"; }

for i in 0 1 2 3; do
  mkfifo "$memory/fifo"
  "$bin/bmi-stripefsd" --listen tcp://127.0.0.1:0 --store "$folder/store$i" --place $((i + 1))/4 >"$memory/fifo" &
  pid+=($!)
  read -r 'url['$i']' <"$memory/fifo"
  rm "$memory/fifo"
done
servers=$(IFS=,; echo "${url[*]}")
head -c "$size"M /dev/urandom >"$memory/file"
for ((round = 0; round < rounds; round++)); do
  for what in plain_write put plain_read store_read get; do
    [[ $what = *write || $what = put ]] || forget
    rm -f "$memory/back" "$memory/all"
    speed $what >>"$memory/$what"
    [ ! -e "$memory/back" ] || cmp "$memory/file" "$memory/back"
    [ ! -e "$memory/all" ] || whole "$memory/all"
  done
done
for pair in "put plain_write" "get plain_read" "get store_read"; do
  read -r ours theirs <<<"$pair"
  a=$(median <"$memory/$ours") b=$(median <"$memory/$theirs")
  printf '%s %d MB/s, %s %d MB/s: %d.%02d x   (rounds: %s; %s)\n' "$ours" "$a" "$theirs" "$b" \
    $((a / b)) $((a * 100 / b % 100)) "$(paste -sd' ' "$memory/$ours")" "$(paste -sd' ' "$memory/$theirs")"
done
