# SPDX-License-Identifier: BSD-3-Clause
#
# root_lib.sh - a fresh root of Debian 12 in a folder of its own, with the archive of this machine's apt. Sourced
# with the folder of packages as $1; the root is removed at the end.
[ "$(id -u)" -eq 0 ] || { echo "skipped: a fresh root needs root's privileges"; exit 77; }
command -v debootstrap >/dev/null || { echo "skipped: debootstrap is not installed: scripts/deps --package"; exit 77; }
packages=$(realpath "$1")
work=$(mktemp -d --tmpdir="$packages" root.XXXXXX)
root=$work/root
cleanup() { rm -rf --one-file-system "$work"; }
trap cleanup EXIT

fail() {
  echo "FAILED: $*" >&2
  exit 1
}
inside=(env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive chroot "$root")
apt() {
  "${inside[@]}" apt-get -q -y --no-install-recommends "$@" >"$work/log" 2>&1 || { tail -n 30 "$work/log"; fail "apt-get $*"; }
}

# root_make PACKAGE...: with these beside the minimum.
root_make() {
  local archives mirror
  archives=$(apt-get indextargets --format '$(REPO_URI) $(CODENAME)' 'Created-By: Packages' 'Label: Debian' \
    'Component: main')
  mirror=$(awk '$2 == "bookworm" { print $1; exit }' <<<"$archives")
  [ -n "$mirror" ] || { echo "skipped: apt of this machine knows no archive of bookworm"; exit 77; }
  debootstrap --variant=minbase bookworm "$root" "$mirror" >"$work/log" 2>&1 ||
    { tail -n 20 "$work/log"; fail "debootstrap"; }
  printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d" # a package's service would run on this machine
  chmod +x "$root/usr/sbin/policy-rc.d"
  apt update
  apt install "$@"
}

# packages_install: all of $packages.
packages_install() {
  mkdir "$root/tmp/packages"
  cp "$packages"/*.deb "$root/tmp/packages"
  # shellcheck disable=SC2046
  apt install $(cd "$root" && ls tmp/packages/*.deb | sed 's|^|/|')
}
