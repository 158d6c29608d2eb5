# SPDX-License-Identifier: BSD-3-Clause
#
# The ib method's conformance suite over verbs;ofi_rxm, on software RoCE. Without arguments: some cases
# of each section with two processes that both listen, and the puts of the other arrangements. `pair`:
# all of that arrangement (two minutes). `all`: everything except cases that move gigabytes. Else the
# arguments are ib_conformance's.
. /guest.sh

# The bytes that the device has sent since the guest's start.
packets() {
  cat /sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts
}

conformance() {
  title "ib_conformance $*"
  ib_conformance --small "$@"
  expect "ib_conformance $*" [ $? -eq 0 ]
}

alone || exit 1
export FI_UNIVERSE_SIZE=32 OFI_HOST=10.77.0.1
expect "the device has sent nothing yet" [ "$(packets)" -eq 0 ]
case ${1:-} in
  all)
    conformance
    ;;
  pair)
    conformance --arrangement pair --immediate on
    ;;
  '')
    conformance --arrangement pair --immediate on Functions "Init and addresses: both" "come and go" \
      "rev_lookup" "Post: zero-length m" "Post: nothing is" "Post: lists of 65" \
      "half announced" "sizes around" "Matching: buffer" \
      "unmatched eager" "unexpected messages up" "Test: one thread" "FD drives" "on contexts" \
      "Cancel: just" "Cancel: a receive unm" "Cancel: a large send that" "as their messages come" \
      "beside other" "a peer dies" "is stopped" "that restarts" "CLOSE_SOCKET"
    for arrangement in self first second; do
      conformance --arrangement $arrangement --immediate off "large message"
    done
    ;;
  *)
    conformance "$@"
    ;;
esac
expect "the messages went by the device: $(packets) packets" [ "$(packets)" -gt 10000 ]
exit $failed
