#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# usage: headers_test.sh INCLUDE CC CXX...      the folder of bmi.h; CC may have options Each public
# header compiles alone, in strict C and C++, without a warning: those for programs from C99 and C++11
# on, those for methods, which have atomics, from C11 on. C++ is compiled with each CXX; one that is
# not installed is named as skipped.
set -euo pipefail

include=$1 cc=$2
shift 2
cxx=()
for compiler in "$@"; do
  if command -v "$compiler" >/dev/null; then
    cxx+=("$compiler")
  else
    echo "skipped: C++ with $compiler, which is not installed"
  fi
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

# compile COMPILER LANGUAGE STANDARD HEADER
compile() {
  local command
  read -ra command <<<"$1"
  printf '#include <%s>\nint main(void) { return 0; }\n' "$4" > "$work/source"
  if ! "${command[@]}" -x "$2" -std="$3" -Wall -Wextra -Wshadow -Wconversion -pedantic -Werror -I"$include" \
    -fsyntax-only "$work/source"; then
    echo "FAILED: <$4> as $3 with $1"
    failed=1
  fi
}

for path in "$include"/bmi.h "$include"/bmi/*.h; do
  header=${path#"$include/"}
  case $header in
    bmi/lock.h | bmi/method.h) c="c11 gnu11 c17" cxx_standards="" ;;
    *) c="c99 gnu99 c11 c17" cxx_standards="c++11 c++17" ;;
  esac
  for standard in $c; do
    compile "$cc" c "$standard" "$header"
  done
  for compiler in ${cxx[@]+"${cxx[@]}"}; do
    for standard in $cxx_standards; do
      compile "$compiler" c++ "$standard" "$header"
    done
  done
done
exit $failed
