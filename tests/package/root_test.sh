#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# usage: root_test.sh FOLDER
# Makes a fresh root of Debian 12 in a folder of its own, and there installs the packages of FOLDER by apt,
# compiles the program of README.md and an example's server, lets them talk over loopback, and purges the
# packages. No file may be left. The root has the archives of this machine's apt, and is removed.
set -euo pipefail

[ $# -eq 1 ] || { sed -n '4,/^[^#]/s/^# \{0,1\}//p' "$0"; exit 2; }
readme=$(realpath "$(dirname "$0")/../../README.md")
source "$(dirname "$0")/root_lib.sh"
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || true; cleanup' EXIT

# All files but apt's and dpkg's own records, and the logs.
files() {
  (cd "$root" && find . -xdev \( -path ./proc -o -path ./sys -o -path ./dev -o -path ./var/lib/apt -o -path ./var/cache/apt \
    -o -path ./var/log -o -path './var/lib/dpkg/*-old' -o -path ./tmp \) -prune -o -print) | sort
}

# ---- a fresh root -----------------------------------------------------------------------------------

root_make gcc libc6-dev pkg-config
echo "a fresh root: ok"

# ---- install ----------------------------------------------------------------------------------------

files >"$work/before"
names=$(for deb in "$packages"/*.deb; do dpkg-deb -f "$deb" Package; done)
packages_install
echo "install: ok"

# ---- programs ---------------------------------------------------------------------------------------

for program in bmi-info bmi-metrics bmi-ping bmi-bench bmi-keys bmi-rpc bmi-stripefs bmi-stripefsd; do
  "${inside[@]}" "$program" --help >"$work/log" 2>&1 || { cat "$work/log"; fail "$program --help"; }
  [ -s "$root/usr/share/bash-completion/completions/$program" ] || fail "$program has no completion"
done

for file in etc/bmi/bmi.conf etc/bmi/stripefsd.conf lib/systemd/system/bmi-stripefsd@.service lib/systemd/system/bmi-metrics.service; do
  [ -s "$root/$file" ] || fail "no /$file"
done
"${inside[@]}" env BMI_LOG=error BMI_CONFIG_FILE=/etc/bmi/bmi.conf bmi-info --settings >"$work/log" 2>&1 ||
  { cat "$work/log"; fail "the settings of /etc/bmi/bmi.conf"; }

mkdir "$root/tmp/programs"
sed -n '/^```c$/,/^```$/p' "$readme" | sed '/^```/d' >"$root/tmp/programs/hello.c"
"${inside[@]}" sh -c 'cd /tmp/programs && set -e
  cc -Wall -Wextra -Werror hello.c -o hello $(pkg-config --cflags --libs bmi)
  cc /usr/share/doc/libbmi-dev/examples/hello_server.c -o hello_server $(pkg-config --cflags --libs bmi)
  cc hello.c -o hello_static $(pkg-config --static --cflags --libs bmi | sed "s/-lbmi/-l:libbmi.a/")' ||
  fail "the program of README.md does not compile"
mkfifo "$work/url"
"${inside[@]}" /tmp/programs/hello_server >"$work/url" &
server=$!
exec 3<"$work/url"
read -r -t 20 url <&3 || fail "hello_server prints no URL"
for program in hello hello_static; do
  answer=$("${inside[@]}" timeout 20 "/tmp/programs/$program" "$url") || fail "$program $url"
  [ "$answer" = "hello, client" ] || fail "$program printed '$answer'"
done
kill "$server"
wait "$server" 2>/dev/null || true
server=
echo "README's program: ok"

# ---- removal ----------------------------------------------------------------------------------------

# Their dependencies go, too, also those that another package recommends or suggests.
# shellcheck disable=SC2086
apt purge $names
apt autoremove --purge -o APT::AutoRemove::RecommendsImportant=false -o APT::AutoRemove::SuggestsImportant=false
files >"$work/after"
diff "$work/before" "$work/after" >"$work/log" || { cat "$work/log"; fail "files before and after differ"; }
echo "removal: ok"
