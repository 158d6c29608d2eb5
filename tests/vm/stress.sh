# SPDX-License-Identifier: BSD-3-Clause
#
# The ib method's stress and fault programs over verbs;ofi_rxm, on software RoCE. By hand, since all take
# minutes (in BUILD/bin, 1500 MB for churn's clients):
#   tests/vm/run --seconds 400 --memory 1500 .../tests/vm/stress.sh threads_stress remap_stress \
#     ofi_memory_stress churn_stress {client_kill,restart,slow_server,stop,unmatched}_fault -- stop self
# The arguments are those to run, without: all.
. /guest.sh

export BMI_TEST_METHOD=ib BMI_TEST_HOST=10.77.0.1 BMI_LINGER_MS=300 BMI_TEST_SCALE=0.2
export FI_UNIVERSE_SIZE=32 BMI_TEST_MEMORY_KEPT=4096 BMI_CONNECT_TIMEOUT_MS=60000

program() {
  title "$@"
  "$@"
  expect "$*" [ $? -eq 0 ]
}

alone || exit 1
[ $# -gt 0 ] || set -- self pair mutual remap moved registered churn client_kill restart slow_server \
  stop unmatched
for test in "$@"; do
  case $test in
    self | pair | mutual) program threads_stress ib://10.77.0.1:0 "$test" ;;
    remap) program remap_stress ;;
    moved | registered) program ofi_memory_stress "$test" ;;
    churn) program churn_stress connections ;;
    *) program "${test}_fault" ;;
  esac
done
exit $failed
