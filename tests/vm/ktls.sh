# SPDX-License-Identifier: BSD-3-Clause
#
# The tls method with the kernel's encryption of sent bytes (tls_kernel_send), which needs module tls.
# Some cases of the conformance suite; `all`: all but those that move gigabytes.
. /guest.sh
export BMI_TLS_KERNEL_SEND=on BMI_LOG=warn
export BMI_TLS_CERTIFICATE=/tmp/keys/localhost.pem BMI_TLS_KEY=/tmp/keys/localhost.key
export BMI_TLS_AUTHORITIES=/tmp/keys/authority.pem

# How many connections the kernel has sent for.
connections() {
  sed -n 's/^TlsTxSw[[:space:]]*//p' /proc/net/tls_stat
}

title keys
bmi-keys authority /tmp/keys && bmi-keys host /tmp/keys localhost 127.0.0.1
expect "credentials are made" [ $? -eq 0 ]
expect "the kernel has module tls" [ -r /proc/net/tls_stat ]
expect "the kernel has sent for no connection yet" [ "$(connections)" -eq 0 ]

title tls_conformance
if [ "${1:-}" != all ]; then
  set -- "Functions: statistics of small" "Post: zero-length m" "sizes around every threshold, both" \
    "in order, bounded" "come and go" "before its end" "a peer dies" "CLOSE_SOCKET" "RPC: one-way"
else
  shift
fi
tls_conformance --small --arrangement pair --immediate on "$@"
expect tls_conformance [ $? -eq 0 ]
expect "the kernel sent, for $(connections) connections" [ "$(connections)" -gt 10 ]

title "the end of a key"
export BMI_TLS_KEY_RECORDS=50
bmi-bench --role server --method tls --listen tls://127.0.0.1:3334 >/tmp/listening 2>/tmp/log &
server=$!
until [ -s /tmp/listening ] || ! kill -0 $server; do # it prints its address
  usleep 50000
done
bmi-ping -c 100 -i 0.01 -W 20 tls://127.0.0.1:3334 >/tmp/output 2>&1
tail -n 3 /tmp/output
cat /tmp/log
expect "the log names the cause" grep -q "the kernel's key has served for 50 records" /tmp/log /tmp/output
expect "most pings are answered, over new connections" grep -qE '^100 asked, 9[0-9] answered' /tmp/output
kill $server
wait $server
exit $failed
