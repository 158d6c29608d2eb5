#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# usage: tools_test.sh BIN      where the programs are
# bmi-info's output is complete and well formed; bmi-ping reaches a running server, and reports an
# absent one; both refuse wrong usage with status 2.
set -euo pipefail

bin=$1
work=$(mktemp -d)
server=
imposter=
cleanup() {
  for one in $server $imposter; do kill "$one" 2>/dev/null || true; done
  rm -rf "$work"
}
trap cleanup EXIT

fail() {
  echo "FAILED: $*" >&2
  exit 1
}
# status_is EXPECTED COMMAND...
status_is() {
  local expected=$1 status=0
  shift
  timeout 30 "$@" >"$work/out" 2>"$work/err" || status=$?
  [ "$status" = "$expected" ] ||
    { cat "$work/out" "$work/err"; fail "status $status, not $expected: $*"; }
}

# ---- bmi-info -----------------------------------------------------------------------------------

status_is 0 "$bin/bmi-info"
grep -q '^libbmi [0-9]' "$work/out" || fail "bmi-info tells no version"
version=$(sed -n 's/^libbmi //p' "$work/out")
grep -q 'bmi_tcp' "$work/out" || fail "bmi-info does not list bmi_tcp"
status_is 0 "$bin/bmi-info" --methods
if grep -q 'bmi_ofi_tcp' "$work/out"; then
  grep -A 12 'bmi_ofi_tcp' "$work/out" | grep -q 'here .*provider tcp' ||
    { cat "$work/out"; fail "bmi-info tells no provider for ofi+tcp"; }
fi
status_is 0 "$bin/bmi-info" --json
python3 - "$work/out" <<'TXT'
import json, sys
info = json.load(open(sys.argv[1]))
assert info["version"], "version"
tcp = [m for m in info["methods"] if m["name"] == "bmi_tcp"][0]
assert "tcp" in tcp["schemes"].split(","), tcp
assert tcp["unexpected_max"] >= 16384, tcp
assert tcp["eager_max"] > 0 and tcp["segments_max"] > 0, tcp
for m in info["methods"]: # the choice, or the reason why there is none and a remedy
    if m["name"] in ("bmi_ofi_tcp", "bmi_ofi_shm"):
        assert m["usable"] and m["provider"] and m["device"] and m["reason"], m
    elif m["name"] == "bmi_ib" and not m["usable"]:
        assert not m["provider"], m
        assert all(p in m["reason"] for p in ("verbs;ofi_rxm", "efa", "psm3", "ibv_devinfo")), m
    elif m["name"] == "bmi_tls":
        assert not m["usable"] and "neither tls_certificate nor tls_psk is set" in m["reason"], m
    elif m["name"] == "bmi_tcp":
        assert m["usable"] and not m["provider"], m
    assert m["proves_identity"] == (m["name"] == "bmi_tls"), m
assert len(info["settings"]) >= 5, "settings"
names = [s["name"] for s in info["settings"]]
assert len(set(names)) == len(names), "a setting is there twice"
assert all(s["help"] and s["valid"] for s in info["settings"]), "a setting has no help"
TXT
status_is 0 "$bin/bmi-info" --methods
grep -q '^settings' "$work/out" && fail "--methods printed settings"
status_is 0 "$bin/bmi-info" --topology
grep -q '^topology' "$work/out" || fail "--topology drew nothing"
grep -q 'queue 0' "$work/out" || { cat "$work/out"; fail "--topology shows no queue"; }
[ "$(grep -cE '^  (local|remote|move)_[a-z_]+ +[0-9.e+]+  (measured|default: .+)$' "$work/out")" = 5 ] ||
  { cat "$work/out"; fail "--topology does not show five costs with their source"; }
grep -q '^settings' "$work/out" && fail "--topology printed settings"
status_is 0 "$bin/bmi-info" --topology --json
python3 - "$work/out" <<'TXT'
import json, os, sys
info = json.load(open(sys.argv[1]))
queues = info["topology"]
assert queues[0]["parent"] == -1 and queues[0]["depth"] == 0, queues
assert set(queues[0]["cpus"]) == os.sched_getaffinity(0), queues
assert all(q["cpus"] and q["parent"] < i for i, q in enumerate(queues)), queues
nodes, costs = info["nodes"], info["costs"]
numbers = [n["node"] for n in nodes]
for n in nodes:
    assert [a["node"] for a in n["accesses"]] == numbers, n
    assert all((a["distance"] == 0) == (a["node"] == n["node"]) for a in n["accesses"]), n
    assert set(queues[n["queue"]]["cpus"]) <= os.sched_getaffinity(0), n
assert [c["name"] for c in costs] == ["local_ns_per_kib", "remote_factor", "move_ns_per_kib",
                                      "move_region_ns", "move_task_ns"], costs
for c in costs: # on one node nothing is measured
    assert (c["source"] == "default") == bool(c["cause"]), c
    assert len(nodes) > 1 or c["cause"] == "there is one node", c
TXT
# bmi-info reads the environment, and refuses errors in it as a program does.
# A bad BMI_LOG needs no BMI_LOG.
BMI_SPIN_US=77 status_is 0 "$bin/bmi-info" --settings
grep -q '^  spin_us: 77$' "$work/out" || fail "bmi-info does not read the environment"
grep -q '^      valid: 0 to 1000000$' "$work/out" || fail "bmi-info does not tell what is valid"
BMI_PEER_MEMORY=2M status_is 0 "$bin/bmi-info" --settings
grep -q '^  peer_memory: 2097152$' "$work/out" || fail "2M is not 2 MiB"
BMI_SPIN_US=78 status_is 0 "$bin/bmi-info" --json
grep -q '"spin_us","value":"78"' "$work/out" || fail "bmi-info --json does not read the environment"
BMI_LOG=error BMI_SPIN_US=soon status_is 1 "$bin/bmi-info"
grep -q 'spin_us: bad value "soon"' "$work/err" || fail "BMI_LOG=error does not tell of BMI_SPIN_US"
BMI_LOG=loud status_is 1 "$bin/bmi-info"
grep -q 'log: bad value "loud"; valid: off, error' "$work/err" || fail "a bad BMI_LOG is not told"
BMI_LOG=warn BMI_STRIPEFS_SERVERS=tcp://a:1 status_is 0 "$bin/bmi-info"
[ ! -s "$work/err" ] || { cat "$work/err"; fail "a known variable is complained of"; }

status_is 2 "$bin/bmi-info" --nonsense
status_is 2 "$bin/bmi-info" superfluous
status_is 1 sh -c "\"$bin/bmi-info\" >/dev/full"

# ---- bmi-ping -----------------------------------------------------------------------------------

mkfifo "$work/url"
BMI_REPORT=on "$bin/hello_server" >"$work/url" &
server=$!
exec 3<"$work/url"
read -r -t 20 url <&3 || fail "hello_server told no URL"

status_is 0 "$bin/bmi-ping" -c 5 -i 0.01 "$url"
grep -q '^5 asked, 5 answered, 0 % lost$' "$work/out" || { cat "$work/out"; fail "bmi-ping $url"; }
[ "$(grep -cE '^[0-9]+: [0-9.]+ us$' "$work/out")" = 5 ] || fail "bmi-ping printed no times"

# The server's state, seen from outside.
status_is 0 "$bin/bmi-info" --process "$server"
grep -q "process $server (hello_server)" "$work/out" || { cat "$work/out"; fail "whose report?"; }
grep -q "listens at $url" "$work/out" || { cat "$work/out"; fail "the report tells no address"; }
grep -qE '^  accepts +1$' "$work/out" || { cat "$work/out"; fail "one connection came"; }
kill -STOP "$server"
asking=() # more than may wait to be connected
for _ in {1..16}; do
  timeout 30 "$bin/bmi-info" -p "$server" >/dev/null 2>&1 &
  asking+=($!)
done
status_is 1 "$bin/bmi-info" -p "$server"
for one in "${asking[@]}"; do
  status=0
  wait "$one" || status=$?
  [ "$status" = 1 ] || fail "bmi-info and a stopped process, one of many: status $status"
done
grep -q 'does not answer: no thread' "$work/err" || { cat "$work/err"; fail "a stopped process"; }
kill -CONT "$server"
status_is 1 "$bin/bmi-info" --process $$
grep -q 'no answer from .*BMI_REPORT=on' "$work/err" || { cat "$work/err"; fail "no such process"; }
status_is 2 "$bin/bmi-info" --process none
# bmi-info rejects another process that answers in its name, and prints none of its text.
mkfifo "$work/ready"
python3 - "$work/ready" "$$" <<'TXT' &
import socket, sys
listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
listener.bind("\0bmi-report-" + sys.argv[2])
listener.listen()
open(sys.argv[1], "w").write("ready\n")
while True:
    one, _ = listener.accept()
    try:
        one.sendall(b"forged\n")
    except OSError:
        pass
    one.close()
TXT
imposter=$!
read -r _ <"$work/ready"
status_is 1 "$bin/bmi-info" --process $$
grep -q "process $imposter of user $(id -u) answers for process $$: refused" "$work/err" ||
  { cat "$work/err"; fail "an imposter is not told"; }
! grep -q forged "$work/out" || fail "an imposter's report was printed"
kill "$imposter"
wait "$imposter" 2>/dev/null || true
imposter=
status_is 2 "$bin/bmi-info" --process "$server" --json
if [ "$(id -u)" = 0 ] && command -v setpriv >/dev/null; then # another user is not told
  status_is 1 setpriv --reuid 65534 --clear-groups "$bin/bmi-info" --process "$server"
  grep -q 'reports only to its own user' "$work/err" || { cat "$work/err"; fail "another user was told"; }
fi

# A signal ends it, with the summary.
mkfifo "$work/endless"
"$bin/bmi-ping" -i 0.01 "$url" >"$work/endless" &
ping=$!
exec 4<"$work/endless"
for _ in 1 2 3; do
  read -r -t 20 line <&4 && [[ $line == *us ]] || fail "bmi-ping without -c printed '$line'"
done
status_is 0 "$bin/bmi-info" --process "$server" # its peer, with the port that distinguishes it
grep -qE '^  127\.0\.0\.1:[0-9]+ accepted, up: ' "$work/out" || { cat "$work/out"; fail "no peer"; }
kill -TERM "$ping" # as an interrupt; a shell's background jobs ignore that one
grep -q 'answered' <&4 || fail "no summary after a signal"
wait "$ping" || fail "bmi-ping after a signal: status $?"

# Also while it waits for an answer that is late.
timeout 40 "$bin/bmi-ping" -i 0 -W 300 "$url" >"$work/silent" &
ping=$!
until [ -s "$work/silent" ]; do kill -0 "$ping" || fail "bmi-ping printed nothing"; done
kill -STOP "$server"
size=
until [ "$(stat -c %s "$work/silent")" = "$size" ]; do # no more answers
  size=$(stat -c %s "$work/silent")
  until [ "$(cut -d ' ' -f 3 "/proc/$server/stat")" = T ]; do :; done
done
kill -TERM "$ping"
wait "$ping" || fail "bmi-ping after a signal while it waits: status $?"
grep -q answered "$work/silent" || fail "no summary after a signal while it waits"
kill -CONT "$server"
status_is 1 sh -c "\"$bin/bmi-ping\" -i 0.01 \"$url\" >/dev/full"
for program in bmi-info bmi-ping bmi-rpc bmi-keys; do
  [ -x "$bin/$program" ] || continue # bmi-keys needs libssl
  status_is 0 "$bin/$program" --version
  [ "$(cat "$work/out")" = "$program (libbmi) $version" ] || { cat "$work/out"; fail "$program --version"; }
  status_is 1 sh -c "\"$bin/$program\" --version >/dev/full"
  status_is 1 sh -c "\"$bin/$program\" --help >/dev/full"
done

kill "$server"
wait "$server" 2>/dev/null || true
server=
status_is 1 "$bin/bmi-ping" -c 1 -W 5 "$url"
grep -q 'refused' "$work/out" || { cat "$work/out"; fail "a closed port is not told as refused"; }

# Text from outside is printed without its control bytes.
status_is 2 "$bin/bmi-ping" $'nonsense://\e[31m\nforged'
grep -q '^bmi-ping: nonsense://\\x1b\[31m\\x0aforged' "$work/err" ||
  { cat -v "$work/err"; fail "bmi-ping prints control bytes"; }
BMI_IB_DEVICE=$'\e[2J' status_is 0 "$bin/bmi-info" --settings
! grep -q $'\e' "$work/out" || fail "bmi-info prints control bytes"

# ---- tls ----------------------------------------------------------------------------------------

if [ -x "$bin/bmi-keys" ]; then
  keys=$work/keys
  as() { # as NAME COMMAND...: with that certificate
    BMI_TLS_CERTIFICATE=$keys/$1.pem BMI_TLS_KEY=$keys/$1.key BMI_TLS_AUTHORITIES=$keys/authority.pem "${@:2}"
  }
  status_is 0 "$bin/bmi-keys" authority "$keys"
  status_is 0 "$bin/bmi-keys" host "$keys" server 127.0.0.1
  status_is 0 "$bin/bmi-keys" client "$keys" client
  status_is 0 "$bin/bmi-keys" --days 20 client "$keys" ending
  status_is 0 "$bin/bmi-keys" --days -1 client "$keys" ended
  tls_lines() { grep -A 9 '^  bmi_tls ' "$work/out" | grep "^    here  *$1" >/dev/null || { cat "$work/out"; fail "$2"; }; }
  as client status_is 0 "$bin/bmi-info" --methods
  tls_lines 'the certificates are valid for 39[0-9] days$' "bmi-info and good credentials"
  as ending status_is 0 "$bin/bmi-info" --methods
  tls_lines "warning: a certificate in '.*ending.pem' expires in \(19\|20\) days\$" "bmi-info and credentials that expire soon"
  as ended status_is 0 "$bin/bmi-info" --methods
  tls_lines "warning: a certificate in '.*ended.pem' has expired\$" "bmi-info and expired credentials"
  status_is 0 "$bin/bmi-keys" --days 5 revoke "$keys"
  BMI_TLS_REVOCATIONS=$keys/revoked.pem as client status_is 0 "$bin/bmi-info" --methods
  tls_lines "warning: a list of revoked certificates in '.*' expires in [45] days\$" "bmi-info and a list that expires"
  chmod 644 "$keys/ended.key"
  as ended status_is 0 "$bin/bmi-info" --methods
  tls_lines "not usable: EACCES.*ended.key' has mode 0644" "bmi-info and a key that others can read"

  mkfifo "$work/tls"
  as server exec "$bin/hello_server" tls://127.0.0.1:0 >"$work/tls" &
  server=$!
  exec 5<"$work/tls"
  read -r -t 20 url <&5 || fail "hello_server told no URL"
  about='^the peer is server (TLS 1.3, TLS_[A-Z0-9_]*); its certificate expires in 39[0-9] days$'
  as client status_is 0 "$bin/bmi-ping" -c 2 -i 0.01 "$url"
  [ "$(grep -c "$about" "$work/out")" = 1 ] || { cat "$work/out"; fail "bmi-ping and the peer's name"; }
  as client status_is 0 "$bin/bmi-ping" -q -c 1 "$url"
  grep -q "$about" "$work/out" || { cat "$work/out"; fail "bmi-ping -q and the peer's name"; }
  kill "$server"
  wait "$server" 2>/dev/null || true
  server=
  status_is 0 "$bin/bmi-keys" psk "$work/psk" one
  chmod 640 "$work/psk"
  status_is 1 "$bin/bmi-keys" psk "$work/psk" two
  grep -q "psk has mode 0640" "$work/err" || { cat "$work/err"; fail "bmi-keys and an open file of keys"; }
fi

# ---- bmi-rpc ------------------------------------------------------------------------------------

mkfifo "$work/rpc"
"$bin/rpc_server" >"$work/rpc" &
server=$!
exec 6<"$work/rpc"
read -r -t 20 rpc_url <&6 || fail "rpc_server printed no URL"
for _ in 1 2 3; do status_is 0 "$bin/rpc_client" "$rpc_url"; done
status_is 0 "$bin/bmi-rpc" "$rpc_url"
grep -qE '^greet +3 +0 +0 +0 +[1-9][0-9]* +[1-9][0-9]*$' "$work/out" ||
  { cat "$work/out"; fail "bmi-rpc and the counters of a service"; }
grep -qE '^bmi.services +1 +0 +0 +1 ' "$work/out" || { cat "$work/out"; fail "bmi-rpc and bmi.services"; }
status_is 0 "$bin/bmi-rpc" -i 0.1 "$rpc_url" greet
grep -qx 'greet: 0.0 calls/s' "$work/out" || { cat "$work/out"; fail "bmi-rpc and an idle service"; }
status_is 0 "$bin/bmi-rpc" -i 0.1 "$rpc_url" bmi.services # its second request is in the interval
grep -qE '^bmi.services: [1-9][0-9.]* calls/s$' "$work/out" || { cat "$work/out"; fail "bmi-rpc's rate"; }
status_is 1 "$bin/bmi-rpc" "$rpc_url" nobody
grep -q 'nobody: no such service' "$work/err" || { cat "$work/err"; fail "bmi-rpc and no such service"; }
kill "$server"
wait "$server" 2>/dev/null || true
server=
status_is 1 "$bin/bmi-rpc" "$rpc_url"
grep -q ECONNREFUSED "$work/err" || { cat "$work/err"; fail "bmi-rpc and no server"; }
status_is 2 "$bin/bmi-rpc"
status_is 2 "$bin/bmi-rpc" -i 0 "$rpc_url"
status_is 2 "$bin/bmi-rpc" nonsense://host

status_is 2 "$bin/bmi-ping"
status_is 2 "$bin/bmi-ping" -c x "$url"
status_is 2 "$bin/bmi-ping" -W -1 "$url"
status_is 2 "$bin/bmi-ping" nonsense://host
status_is 2 "$bin/bmi-ping" tcp://host:notaport
grep -q 'BMI_LOG=error' "$work/err" || fail "bmi-ping does not tell who knows what is wrong with a URL"
# A fault of this host or its environment is not reported as wrong usage.
BMI_SPIN_US=soon status_is 1 "$bin/bmi-ping" -c 1 tcp://127.0.0.1:1
if "$bin/bmi-info" --methods | grep -A 8 '^  bmi_ib ' | grep -q 'not usable'; then
  status_is 1 "$bin/bmi-ping" -c 1 ib://127.0.0.1:1
fi
echo ok
