#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# usage: completion_test.sh BIN SOURCE      where the programs are; the source tree
# Calls the completion of each program of BIN as bash does. All options of the program's manual page are offered, and
# the commands where one is due.
set -euo pipefail
export LC_ALL=C

bin=$1
source=$2
fail() {
  echo "FAILED: $*" >&2
  exit 1
}
# shellcheck source=tools/completion.bash
. "$source/tools/completion.bash"

# offers PROGRAM WORD...: the answers for the last word, sorted
offers() {
  COMP_WORDS=("$bin/$1" "${@:2}")
  COMP_CWORD=$(($# - 1))
  COMPREPLY=()
  local function
  function=$(complete -p "$1" | sed -n 's/.* -F \([^ ]*\) .*/\1/p')
  "$function" "${COMP_WORDS[0]}" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
  [ ${#COMPREPLY[@]} = 0 ] || printf '%s\n' "${COMPREPLY[@]}" | sort
}
# expect ANSWERS PROGRAM WORD...: exactly these, in one line
expect() {
  local answers
  [ -x "$bin/$2" ] || { echo "$2: left out, it is not in this build"; return 0; }
  answers=$(offers "${@:2}" | tr '\n' ' ')
  [ "$answers" = "${1:+$1 }" ] || fail "'${*:2}' offers '$answers', not '$1'"
}

# ---- every program ------------------------------------------------------------------------------

count=0
for path in "$bin"/bmi-*; do
  program=$(basename "$path")
  complete -p "$program" >/dev/null || fail "$program has no completion"
  page=$(find "$source/tools" "$source/bench" "$source/examples" -name "${program%-mpi}.1")
  options=$(sed -n 's/^\.It Fl / /p' "$page" | grep -oE ' -[a-z][a-z-]+' | sed 's/ -/--/' || true)
  offered=$(offers "$program" --)
  for option in --version --help $options; do
    grep -qx -e "$option" <<<"$offered" || fail "$program does not offer $option"
  done
  count=$((count + 1))
done
[ "$count" -ge 2 ] || fail "$bin has $count programs"

# ---- each by itself -----------------------------------------------------------------------------

expect '--settings' bmi-info --s
expect '--help --json --methods --openmetrics --peers --process --settings --topology --version -P -j -m -o -p -s -t' bmi-info -
expect '' bmi-info '' # file names, by bash itself
expect '--help --version -W -c -i -q' bmi-ping -
expect '' bmi-ping -c ''
expect '--help --version -W -i' bmi-rpc -
expect 'authority client host psk revoke' bmi-keys ''
expect 'host' bmi-keys --days 30 h
expect '' bmi-keys --days ''
expect '' bmi-keys host ''
expect 'host' bmi-keys host
expect '--days --help --version' bmi-keys -
expect 'rate read reapcost rpc' bmi-bench r
expect '' bmi-bench read r
expect '--size' bmi-bench read --si
expect '' bmi-bench --size r
expect 'memory' bmi-bench --verify m
expect 'idle is' bmi-bench-mpi i
expect 'cat check df get ls put rm stat' bmi-stripefs --servers tcp://a:1 ''
expect '' bmi-stripefs --servers c
expect '--recursive --repair' bmi-stripefs ls --re
expect '--place' bmi-stripefsd --p
expect '' bmi-stripefsd --listen tcp://:0 --store ''
if [ -x "$bin/bmi-metrics" ]; then expect '--listen' bmi-metrics --l; fi

COMPREPLY=()
_bmi "$bin/no-such-program" '' "$bin/no-such-program" || true
[ ${#COMPREPLY[@]} = 0 ] || fail "a program that does not run has completions"
echo "$count programs"
