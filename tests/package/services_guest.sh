#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# The checks of services_test.sh, in the guest, where systemd runs as process 1.
failures=0
fail() { echo "FAILED: $*"; failures=$((failures + 1)); }

# check NAME COMMAND...: it succeeds.
check() {
  if "${@:2}" >/tmp/out 2>&1; then echo "passed: $1"; else fail "$1"; cat /tmp/out; fi
}
# refused NAME COMMAND...: it fails.
refused() {
  if "${@:2}" >/tmp/out 2>&1; then fail "$1"; cat /tmp/out; else echo "passed: $1"; fi
}
has() { "${@:2}" 2>&1 | tee /dev/stderr | grep -qF -- "$1"; }
shown() { systemctl show -p "$1" --value "$2"; }
nobody=(setpriv --reuid 65534 --regid 65534 --clear-groups)
url=tcp://127.0.0.1:4001
fs() { bmi-stripefs --servers "$url" "$@"; }

check "not enabled" has disabled systemctl is-enabled bmi-stripefsd@1 bmi-metrics
check "start a server" systemctl start bmi-stripefsd@1
check "its status has its URL" has "listens on $url" shown StatusText bmi-stripefsd@1
process=$(shown MainPID bmi-stripefsd@1)
check "it has no capability" grep -qx $'CapBnd:\t0*' "/proc/$process/status"
check "its system calls are filtered" grep -qx $'Seccomp:\t2' "/proc/$process/status"
refused "it is not root" grep -q $'^Uid:\t0\t' "/proc/$process/status"
check "root reads its report" has "process $process" bmi-info --process "$process"
refused "another user does not" "${nobody[@]}" bmi-info --process "$process"
check "put" fs put /usr/bin/bmi-info /file
check "restart" systemctl restart bmi-stripefsd@1
check "the file is still there" eval 'fs cat /file | cmp - /usr/bin/bmi-info'
systemctl stop bmi-stripefsd@1
check "SIGTERM ended it well" has success shown Result bmi-stripefsd@1

cp /etc/bmi/bmi.conf /tmp/bmi.conf
echo "spin_usec = 5" >>/etc/bmi/bmi.conf
refused "a bad setting" systemctl start bmi-stripefsd@1
check "the journal has its line" has "/etc/bmi/bmi.conf:$(wc -l </etc/bmi/bmi.conf): " \
  journalctl --no-pager -u bmi-stripefsd@1
cp /tmp/bmi.conf /etc/bmi/bmi.conf
systemctl stop bmi-stripefsd@1
systemctl reset-failed

# A second server, with a key that it gets as a credential, and a socket for other users.
bmi-keys psk /etc/bmi/cluster.psk cluster >/dev/null
mkdir -p /etc/systemd/system/bmi-stripefsd@b.service.d
printf '[Service]\nLoadCredential=key:/etc/bmi/cluster.psk\nEnvironment=BMI_TLS_PSK=%%d/key BMI_UNIX_OTHER_USERS=on\n' \
  >/etc/systemd/system/bmi-stripefsd@b.service.d/key.conf
socket=unix:///run/bmi-stripefsd/b/socket
echo "STRIPEFSD_LISTEN=tls://127.0.0.1:4002,$socket" >/etc/bmi/stripefsd-b.conf
systemctl daemon-reload
check "start two servers" systemctl start bmi-stripefsd@1 bmi-stripefsd@b
check "put over tls" env BMI_TLS_PSK=/etc/bmi/cluster.psk \
  bmi-stripefs --servers tls://127.0.0.1:4002 put /usr/bin/bmi-info /file
check "another user sees it" has " file" env BMI_UNIX_OTHER_USERS=on "${nobody[@]}" \
  bmi-stripefs --servers "$socket" ls /

if [ -x /usr/bin/bmi-metrics ]; then
  check "start bmi-metrics" systemctl start bmi-metrics
  until (exec 9<>/dev/tcp/127.0.0.1/9723) 2>/dev/null || [ "$(shown ActiveState bmi-metrics)" != active ]; do
    sleep 0.1
  done
  exec 9<>/dev/tcp/127.0.0.1/9723
  printf 'GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n' >&9
  timeout 60 cat <&9 >/tmp/metrics
  check "metrics of both servers" [ "$(grep -c '^bmi_up{.*process="bmi-stripefsd".*} 1$' /tmp/metrics)" = 2 ]
  systemctl stop bmi-metrics
  check "SIGTERM ended it well" has success shown Result bmi-metrics
else
  echo "left out: the packages have no bmi-metrics"
fi
check "no unit failed" has "0 loaded units" systemctl --no-pager --failed
echo "services: $failures failures"
systemctl poweroff
