# SPDX-License-Identifier: BSD-3-Clause
#
# A server on one host, a client on another, and a network between that loses one packet of a hundred,
# both ways: over tcp and over verbs. For tests/vm/run --hosts 2.
. /guest.sh
export FI_UNIVERSE_SIZE=32 BMI_LOG=warn
servers=10.78.0.1
done_port=4000

ip address add "10.78.0.$HOST/24" dev eth0 || exit 1
ip link set eth0 up || exit 1
tc qdisc add dev eth0 root netem loss 1% limit 10000 || exit 1
rxe_add eth0 || exit 1

# The packets that this side's network has dropped.
lost() {
  tc -s qdisc show dev eth0 | sed -n 's/.*dropped \([0-9]*\),.*/\1/p' | head -n 1
}

serve() {
  bmi-bench --role server --method tcp --listen tcp://$servers:3334 &
  bmi-bench --role server --method ib --listen ib://$servers:3335 &
  nc -l -p $done_port >/tmp/outcome
  expect "the client is content" grep -q '^content$' /tmp/outcome
}

use() {
  title "ping $1"
  bmi-ping -c 20 -i 0.05 -W 20 "$1" >/tmp/output 2>&1
  cat /tmp/output
  expect "every ping of $1 was answered" grep -q '^20 asked, 20 answered' /tmp/output
  title "read from $1"
  bmi-bench read --method "${1%%:*}" --role client --servers "$1" --clients 1 --bytes 2M \
    --segment 64K --reps 1 --verify --timeout 100 >/tmp/output 2>&1
  status=$?
  cat /tmp/output
  expect "every byte from $1 is right" [ $status -eq 0 ]
}

if [ "$HOST" = 1 ]; then
  serve
else
  for url in tcp://$servers:3334 ib://$servers:3335; do
    tries=0
    until bmi-ping -c 1 -W 5 "$url" >/dev/null 2>&1 || [ $tries -ge 20 ]; do
      tries=$((tries + 1))
      sleep 1
    done
    use $url
  done
  echo "$(lost) packets were lost on their way from here"
  expect "some packets were lost" [ "$(lost)" -gt 0 ]
  # This host prints the result last: the other host has ended by then.
  tc qdisc del dev eth0 root netem
  outcome=content
  [ $failed -eq 0 ] || outcome=failed
  until echo $outcome | nc -w 5 $servers $done_port; do
    sleep 1
  done
fi
exit $failed
