#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# usage: abi_test.sh SOURCE LIBRARY        the source tree, libbmi.so
# The library has the binary interface that the files of abi/ describe, and they describe each public type. A library
# of one source file then shows that the comparison finds members, symbols, and types that were added or removed.
set -euo pipefail

source=$1 library=$2

# described INCLUDE: the files of abi/ have each structure and enumeration of the public headers
described() {
  local header kind name status=0
  for header in "$1"/bmi.h "$1"/bmi/*.h; do
    case ${header##*/} in lock.h | method.h) continue ;; esac
    while read -r kind name; do
      [ "$kind" = enum ] && kind=enum-decl || kind=class-decl
      grep -h "<$kind name='$name'" "$source"/abi/*.xml | grep -v declaration-only >/dev/null && continue
      echo "${header##*/}: no file of abi/ describes $name; tests/unit/abi_types.c has to name it, then scripts/abi"
      status=1
    done < <(sed -nE 's/^(struct|enum) ([A-Za-z_0-9]+) \{.*/\1 \2/p' "$header")
  done
  return $status
}

status=0
"$source/scripts/abi" --check "$library" || status=$?
[ $status -eq 0 ] || exit $status
described "$source/include"

# ---- what it would find -------------------------------------------------------------------------------

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# small NAME: $work/NAME.so, with the headers and the map of $work/NAME
small() {
  (cd "$source" && gcc -D_GNU_SOURCE -g -fPIC -shared -I"$work/$1" -I. "-Wl,--version-script=$work/$1/map" -o "$work/$1.so" \
    bmi/api/test.c -x c - <<<'int bmi_added(void); int bmi_added(void) { return 0; }')
}

# found NAME TEXT COMMAND...: the command fails, and prints the text
found() {
  local name=$1 text=$2
  shift 2
  if "$@" >"$work/log" 2>&1; then
    echo "FAILED: $name: nothing was found"
    exit 1
  fi
  grep "$text" "$work/log" >/dev/null || { cat "$work/log"; echo "FAILED: $name: no '$text'"; exit 1; }
  echo "$name: found"
}

compare=("$source/scripts/abi" --check)
for name in same member option value added removed type; do
  cp -r "$source/include" "$work/$name"
  cp "$source/cmake/libbmi.map" "$work/$name/map"
done
sed -i 's/^struct BMI_unexpected_info {/& int added;/' "$work/member/bmi.h"
sed -i 's/^struct bmi_statistics {/& int added;/' "$work/option/bmi.h"
sed -i 's/^enum bmi_log_level {/& BMI_LOG_ADDED = 100,/' "$work/value/bmi.h"
sed -i 's/^        bmi_version;/& bmi_added;/' "$work/added/map"
sed -i '/^        BMI_testsome;/d' "$work/removed/map"
echo 'struct bmi_added { int member; };' >>"$work/type/bmi.h"
for name in same member added removed; do
  small "$name"
done
"$source/scripts/abi" "$work/same.so" "$work/same" "$work/abi"
"${compare[@]}" "$work/same.so" "$work/same" "$work/abi" || { echo "FAILED: a difference where nothing changed"; exit 1; }

found member "struct BMI_unexpected_info" "${compare[@]}" "$work/member.so" "$work/member" "$work/abi"
found option "struct bmi_statistics" "${compare[@]}" "$work/same.so" "$work/option" "$work/abi"
found value "BMI_LOG_ADDED" "${compare[@]}" "$work/same.so" "$work/value" "$work/abi"
found added "bmi_added" "${compare[@]}" "$work/added.so" "$work/added" "$work/abi"
found removed "BMI_testsome" "${compare[@]}" "$work/removed.so" "$work/removed" "$work/abi"
found type "describes bmi_added" described "$work/type"
