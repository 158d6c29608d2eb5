#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# usage: services_test.sh FOLDER KERNEL
# Installs the packages of FOLDER into a fresh root of Debian 12, boots that in a guest, with systemd, and runs
# services_guest.sh there. KERNEL is the folder of tests/vm/kernel.
set -euo pipefail

[ $# -eq 2 ] || { sed -n '4,/^[^#]/s/^# \{0,1\}//p' "$0"; exit 2; }
here=$(realpath "$(dirname "$0")")
for tool in qemu-system-x86_64 cpio busybox; do
  command -v $tool >/dev/null || { echo "skipped: there is no $tool; scripts/deps names its package"; exit 77; }
done
ls "$1"/*.deb >/dev/null 2>&1 || { echo "skipped: no packages in $1"; exit 77; }
mkdir -p "$2"
exec 7>"$2.lock" # as tests/vm/run
flock 7
"$here/../vm/kernel" "$2"
flock -u 7
kernel=$(realpath "$2")
source "$here/root_lib.sh"
root_make systemd systemd-sysv
packages_install
echo "packages and systemd in a fresh root: ok"

# Systemd moves mounts, which the kernel permits in no initial RAM file system: /init copies that to another one.
cp "$(command -v busybox)" "$root/busybox"
cat >"$root/init" <<'END'
#!/busybox sh
/busybox mkdir /new
/busybox mount -t tmpfs -o size=90% tmpfs /new
for name in bin etc home lib lib64 opt root sbin srv usr var; do
  /busybox cp -a /$name /new/
  /busybox rm -rf /$name
done
/busybox mkdir -p /new/proc /new/sys /new/dev /new/run /new/tmp
exec /busybox switch_root /new /lib/systemd/systemd
END
chmod 755 "$root/init"
: >"$root/etc/machine-id"
cp "$here/services_guest.sh" "$root/root/check.sh"
cat >"$root/etc/systemd/system/check.service" <<'END'
[Unit]
After=multi-user.target
[Service]
Type=oneshot
TimeoutStartSec=infinity
ExecStart=/bin/bash /root/check.sh
StandardOutput=file:/dev/console
StandardError=file:/dev/console
END
mkdir -p "$root/etc/systemd/system/multi-user.target.wants"
ln -s ../check.service "$root/etc/systemd/system/multi-user.target.wants/"
rm -rf "$root"/usr/share/{doc,man,locale} "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/tmp/packages
(cd "$root" && find . -xdev | cpio -o -H newc --quiet) >"$work/image"

timeout -k 5 900 qemu-system-x86_64 -accel tcg,thread=multi -machine pc -cpu max -smp 2 -m 2048 -nodefaults \
  -no-user-config -display none -no-reboot -serial stdio -nic none -kernel "$kernel/vmlinuz" -initrd "$work/image" \
  -append "console=ttyS0 loglevel=4 panic=-1 random.trust_cpu=on systemd.show_status=0" \
  </dev/null 2>&1 | sed -u 's/\r//g' | tee "$work/console" || true
grep -qx 'services: 0 failures' "$work/console" || fail "the services"
