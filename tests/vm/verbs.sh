# SPDX-License-Identifier: BSD-3-Clause
#
# The ib method's conformance suite over verbs;ofi_rxm, on software RoCE. Without arguments: two
# processes that both listen, and the short cases of the other arrangements. `all`: everything but what
# moves gigabytes (a quarter of an hour). Else the arguments are ib_conformance's.
. /guest.sh

# What the device has sent since the guest's start.
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
  '')
    conformance --arrangement pair --immediate on
    for arrangement in self first second; do
      conformance --arrangement $arrangement --immediate off Functions "sizes around"
    done
    ;;
  *)
    conformance "$@"
    ;;
esac
expect "the messages went by the device: $(packets) packets" [ "$(packets)" -gt 10000 ]
exit $failed
