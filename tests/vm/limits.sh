# SPDX-License-Identifier: BSD-3-Clause
#
# ib where it cannot work, and requests that it must refuse: no device, too little lockable memory,
# queues larger than the device's, keys of memory that is not lent.
. /guest.sh
export BMI_LOG=error OFI_HOST=10.77.0.1 OFI_METHOD=bmi_ib

# Starts a server that cannot start; its output goes to /tmp/output.
refused() {
  timeout 60 "$@" bmi-bench --role server --method ib --listen ib://10.77.0.1:0 >/tmp/output 2>&1
  refused_status=$?
  cat /tmp/output
  [ $refused_status -ne 0 ] && [ $refused_status -ne 124 ]
}

says() {
  grep -q "$1" /tmp/output
}

# by its path: timeout would run the one that it is itself
as_nobody="/bin/setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all"

title "no device"
expect "a server is refused" refused env
expect "which says what it looked for" says 'no provider has a device here (verbs;ofi_rxm'
expect "and what to look at" says 'ibv_devinfo'

title "locked memory"
alone || exit 1
ulimit -l 512
export FI_UNIVERSE_SIZE=32
expect "a server is refused" refused $as_nobody
expect "which says why" says 'the locked-memory limit is 524288 bytes: raise it (ulimit -l)'
ulimit -l unlimited

title "queues"
expect "a server is refused" refused env -u FI_UNIVERSE_SIZE
expect "which says what to do" says 'FI_UNIVERSE_SIZE'

title "a plain user, with as much as is wanted"
$as_nobody bmi-bench --role server --method ib --listen ib://10.77.0.1:3335 >/tmp/listening &
server=$!
until [ -s /tmp/listening ] || ! kill -0 $server; do # it tells its address
  usleep 50000
done
$as_nobody bmi-ping -c 3 -i 0.1 -W 20 ib://10.77.0.1:3335
expect "messages pass" [ $? -eq 0 ]
kill $server
wait $server

title "keys"
ib_transfer
expect "what is not lent is out of reach" [ $? -eq 0 ]
exit $failed
