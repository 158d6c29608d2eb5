#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# usage: install_test.sh BUILD COMPILER
# Installs BUILD into a folder of its own; there, away from the tree, builds the examples by
# pkg-config (shared and static) and by CMake's find_package, checks what they need and what libbmi
# exports, and runs them.
set -euo pipefail

[ $# -eq 2 ] || { sed -n '4,/^[^#]/s/^# \{0,1\}//p' "$0"; exit 2; }
build=$1
compiler=$2
examples=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
server=
cleanup() {
  [ -z "$server" ] || kill "$server" 2>/dev/null || true
  rm -rf "$work"
}
trap cleanup EXIT

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

# ---- install ------------------------------------------------------------------------------------

prefix=$work/prefix
cmake --install "$build" --prefix "$prefix" >/dev/null
libdir=$(dirname "$(find "$prefix" -name libbmi.so)")
export PKG_CONFIG_PATH=$libdir/pkgconfig
export LD_LIBRARY_PATH=$libdir
mkdir "$work/source" "$work/bin"
cp "$examples"/*.c "$work/source"
cd "$work/source"

for page in man1/bmi-info.1 man1/bmi-ping.1 man3/BMI_initialize.3 man7/bmi.7 man7/bmi-settings.7; do
  [ -s "$prefix/share/man/$page" ] || fail "$page is not installed"
done
for program in "$prefix"/bin/*; do
  [ -s "$prefix/share/bash-completion/completions/${program##*/}" ] || fail "${program##*/} has no completion"
done

# Folders that are given as absolute ones, as by distributions, stay absolute.
tree=$(dirname "$examples")
cmake -G Ninja -S "$tree" -B "$work/absolute" -DCMAKE_C_COMPILER="$compiler" -DBMI_WITH_TESTS=OFF \
  -DBMI_WITH_TOOLS=OFF -DBMI_WITH_EXAMPLES=OFF -DBMI_WITH_BENCH=OFF -DCMAKE_INSTALL_PREFIX=/opt/bmi \
  -DCMAKE_INSTALL_LIBDIR=/far/lib -DCMAKE_INSTALL_INCLUDEDIR=/away/include >"$work/log" 2>&1 ||
  { cat "$work/log"; fail "absolute folders"; }
for variable in prefix=/opt/bmi libdir=/far/lib includedir=/away/include; do
  [ "$(pkg-config --variable="${variable%%=*}" "$work/absolute/bmi.pc")" = "${variable#*=}" ] ||
    { cat "$work/absolute/bmi.pc"; fail "bmi.pc with absolute folders: not $variable"; }
done

# For make, unlike Ninja, the build must state that the objects of libbmi.a come first. The compiled
# code does not matter for that: a launcher in place of the compiler makes the same empty object for
# all.
if command -v make >/dev/null; then
  "$compiler" -c -x c /dev/null -o "$work/empty.o"
  cat >"$work/launcher" <<TXT
#!/bin/sh
until [ "\$1" = -o ]; do shift; done
cp "$work/empty.o" "\$2"
TXT
  chmod +x "$work/launcher"
  cmake -G "Unix Makefiles" -S "$tree" -B "$work/make" -DCMAKE_C_COMPILER="$compiler" -DBMI_WITH_TESTS=OFF \
    -DBMI_WITH_TOOLS=OFF -DBMI_WITH_EXAMPLES=OFF -DBMI_WITH_BENCH=OFF -DCMAKE_BUILD_TYPE=Debug \
    -DCMAKE_C_COMPILER_LAUNCHER="$work/launcher" >"$work/log" 2>&1 &&
    cmake --build "$work/make" --target bmi_static >>"$work/log" 2>&1 || { tail -n 20 "$work/log"; fail "make"; }
else
  echo "make: left out, there is none"
fi

# ---- what libbmi.so exports ------------------------------------------------------------------------

nm -D --defined-only "$libdir/libbmi.so" | awk '$2 ~ /[A-Z]/ && $2 != "A" { sub(/@.*/, "", $3); print $3 }' |
  sort -u >"$work/exported"
alien=$(grep -Ev '^(BMI_|bmi_[a-z])' "$work/exported" || true)
[ -z "$alien" ] || fail "libbmi.so exports" $alien
# Every function that the header declares is there.
printf '#define BMI_CLASSIC_API\n#include <bmi.h>\n' |
  "$compiler" -E -P $(pkg-config --cflags bmi) -x c - | tr '\n' ' ' | tr ';' '\n' |
  grep -oE '\b(BMI|bmi)_[a-z_]+ ?\(' | tr -d ' (' | sort -u >"$work/declared"
missing=$(comm -23 "$work/declared" "$work/exported")
[ -z "$missing" ] || fail "declared in bmi.h, not in libbmi.so:" $missing
[ "$(wc -l <"$work/declared")" -ge 30 ] || fail "no list of functions could be made from bmi.h"

nm -g --defined-only "$libdir/libbmi.a" 2>/dev/null | awk 'NF == 3 { print $3 }' | sort -u >"$work/archived"
alien=$(grep -Ev '^(BMI_|bmi_[a-z])' "$work/archived" || true)
[ -z "$alien" ] || fail "libbmi.a defines" $alien
missing=$(comm -23 "$work/exported" "$work/archived")
[ -z "$missing" ] || fail "in libbmi.so, not in libbmi.a:" $missing

soname=$(readelf -d "$libdir/libbmi.so" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p')
[ "$soname" = libbmi.so.0 ] || fail "SONAME is $soname"

# ---- headers ---------------------------------------------------------------------------------------

# Each compiles alone, in C and in C++; those for methods are for C only.
cxx=$(command -v clang++ g++ || command -v c++) || echo "headers in C++: left out, there is no C++ compiler"
for header in $(cd "$prefix/include" && find . -name '*.h' -printf '%P\n'); do
  echo "#include <$header>" >header.c
  "$compiler" -std=gnu11 -Wall -Wextra -Werror -fsyntax-only $(pkg-config --cflags bmi) header.c ||
    fail "$header in C"
  [[ $header = bmi/@(lock|method).h ]] ||
    "$compiler" -std=c99 -Wall -Wextra -Wpedantic -Werror -fsyntax-only $(pkg-config --cflags bmi) header.c ||
    fail "$header in C99"
  for one in $cxx; do
    said=$("$one" -std=c++11 -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wold-style-cast -Werror -fsyntax-only \
      $(pkg-config --cflags bmi) -x c++ header.c 2>&1) ||
      [[ $header = bmi/@(lock|method).h && $said = *"are written in C"* ]] || fail "$header in $one: $said"
  done
done

# ---- programs --------------------------------------------------------------------------------------

# start_server COMMAND: runs it in the background; `url` is what it printed first.
start_server() {
  local out=$work/url
  rm -f "$out"
  mkfifo "$out"
  "$@" >"$out" &
  server=$!
  exec 3<"$out"
  read -r -t 20 url <&3 || fail "$1 told no URL"
}
stop_server() {
  kill "$server"
  wait "$server" 2>/dev/null || true
  server=
  exec 3<&-
}
# run_hello SERVER CLIENT
run_hello() {
  local answer
  start_server "$1"
  answer=$(timeout 20 "$2" "$url") || fail "$2 $url"
  [ "$answer" = "hello, client" ] || fail "$2 printed '$answer'"
  stop_server
}
# run_pair FOLDER: the examples of a folder talk to each other.
run_pair() {
  local bin=$1
  run_hello "$bin/hello_server" "$bin/hello_client"
  run_hello "$bin/rpc_server" "$bin/rpc_client"

  start_server "$bin/statemachine_server"
  for bytes in 1 1000 300000; do
    timeout 60 "$bin/statemachine_client" "$url" 50 "$bytes" >"$work/log.$bytes" &
    clients+=($!)
  done
  for client in "${clients[@]}"; do
    wait "$client" || fail "a statemachine_client of $bin failed"
  done
  clients=()
  grep -L '^50 answers, 0 wrong$' "$work"/log.* | grep . && fail "wrong answers"
  stop_server
}
clients=()
programs="hello_server hello_client statemachine_server statemachine_client rpc_server rpc_client"

libs=$(pkg-config --libs bmi)
[ "${libs%% }" = "-L$libdir -lbmi" ] || [ "$(echo $libs | tr ' ' '\n' | grep -c '^-l')" = 1 ] ||
  fail "pkg-config wants more than -lbmi: $libs"
for program in $programs; do
  "$compiler" -Wall -Werror $(pkg-config --cflags bmi) $program.c -o "$work/bin/$program" $libs
done
needed=$(readelf -d "$work/bin/statemachine_server" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p' | sort | tr '\n' ' ')
[ "$needed" = "libbmi.so.0 libc.so.6 " ] || fail "a program needs $needed"
run_pair "$work/bin"
echo "pkg-config, shared: ok"

# The program in the README works.
sed -n '/^```c$/,/^```$/p' "$examples/../README.md" | sed '/^```/d' >readme.c
"$compiler" -Wall -Wextra -Werror $(pkg-config --cflags bmi) readme.c -o "$work/bin/readme" $libs
run_hello "$work/bin/hello_server" "$work/bin/readme"
echo "README: ok"

mkdir "$work/static"
static=$(pkg-config --static --libs bmi | sed "s|-lbmi|$libdir/libbmi.a|")
for program in $programs; do
  "$compiler" $(pkg-config --cflags bmi) $program.c -o "$work/static/$program" $static
done
readelf -d "$work/static/hello_client" | grep -q libbmi && fail "the static program needs libbmi.so"
run_pair "$work/static"
# A program may have names that the library has inside.
cat >own_names.c <<'TXT'
int tcp_connect(void);
int wire_encode(void);
int bmi__post(void);
int tcp_connect(void) { return 1; }
int wire_encode(void) { return 2; }
int bmi__post(void) { return 3; }
TXT
"$compiler" $(pkg-config --cflags bmi) hello_client.c own_names.c -o "$work/static/own_names" $static
run_hello "$work/static/hello_server" "$work/static/own_names"
echo "pkg-config, static: ok"

cat >CMakeLists.txt <<TXT
cmake_minimum_required(VERSION 3.13)
project(user C)
find_package(bmi 0.2 REQUIRED)
foreach(program $programs)
    add_executable(\${program} \${program}.c)
    target_link_libraries(\${program} bmi::bmi)
endforeach()
find_path(BMI_INCLUDE_DIR bmi.h REQUIRED)
find_library(BMI_LIBRARY NAMES bmi REQUIRED)
add_executable(found_client hello_client.c)
target_include_directories(found_client PRIVATE \${BMI_INCLUDE_DIR})
target_link_libraries(found_client \${BMI_LIBRARY})
add_executable(static_client hello_client.c)
target_link_libraries(static_client bmi::bmi_static)
TXT
cmake -G Ninja -B "$work/cmake" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$compiler" >"$work/log" 2>&1 &&
  cmake --build "$work/cmake" >>"$work/log" 2>&1 || { cat "$work/log"; fail "find_package"; }
run_pair "$work/cmake"
echo "find_package: ok"

# Other projects' FindBMI.cmake looks for the header and the library; file systems define
# BMI_CLASSIC_API.
grep -q "^BMI_LIBRARY:FILEPATH=.*/libbmi.so$" "$work/cmake/CMakeCache.txt" || fail "find_library found no libbmi.so"
run_hello "$work/cmake/hello_server" "$work/cmake/found_client"
sed -e 's/BMI_initialize(NULL, NULL, 0)/BMI_initialize(NULL, NULL, 0, "")/' \
  -e 's/\(BMI_addr_lookup(.*""\))/\1, NULL)/' hello_client.c >classic_client.c
"$compiler" -DBMI_CLASSIC_API -Wall -Wextra -Werror $(pkg-config --cflags bmi) classic_client.c \
  -o "$work/bin/classic_client" $libs
nm -D "$work/bin/classic_client" | grep -q ' bmi_classic_addr_lookup' || fail "no classic prototypes"
run_hello "$work/bin/hello_server" "$work/bin/classic_client"
echo "find_library, BMI_CLASSIC_API: ok"

env -u LD_LIBRARY_PATH "$prefix/bin/bmi-info" --version
