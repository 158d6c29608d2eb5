# SPDX-License-Identifier: BSD-3-Clause
#
# Shared by the guests' scripts, which source it (dash).

failed=0

# title TEXT...: prints the title of the next part.
title() {
  echo
  echo "== $* ($(cut -d. -f1 /proc/uptime) s after start)"
}

# expect NAME CONDITION...: one check, whose failure is printed and remembered.
expect() {
  expect_name=$1
  shift
  if "$@"; then
    echo "ok: $expect_name"
  else
    echo "FAILED: $expect_name"
    failed=1
  fi
}

# Software RoCE on an interface that has an address: the device is usable when its GIDs are there.
rxe_add() {
  rdma link add rxe0 type rxe netdev "$1" || return 1
  tries=0
  until grep -qsv '0000:0000:0000:0000:0000:0000:0000:0000' /sys/class/infiniband/rxe0/ports/1/gids/[0-9]; do
    tries=$((tries + 1))
    [ $tries -lt 100 ] || { echo "rxe0 has no GID"; return 1; }
    usleep 50000
  done
}

# A network of this guest alone, with an RDMA device.
alone() {
  [ -e /sys/class/net/dummy0 ] || ip link add dummy0 type dummy || return 1
  ip address add 10.77.0.1/24 dev dummy0 || return 1
  ip link set dummy0 up || return 1
  rxe_add dummy0
}
