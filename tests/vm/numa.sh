# SPDX-License-Identifier: BSD-3-Clause
#
# The task manager, flows, and progress in the background with several NUMA nodes, each with its own
# CPUs, which most test hosts lack. The argument is the number of nodes.
. /guest.sh

nodes=$(ls -d /sys/devices/system/node/node[0-9]* | wc -l)
expect "the guest has $1 nodes, not $nodes" [ "$nodes" -eq "$1" ]
for node in $(seq 0 $((nodes - 1))); do
  echo "node $node: CPUs $(cat /sys/devices/system/node/node$node/cpulist)"
done
for test in task_topology task_place task_memory flow_numa core_background_numa; do
  title $test
  $test >/tmp/output 2>&1
  status=$?
  cat /tmp/output
  expect "$test" [ $status -eq 0 ]
  case $test in
    task_memory | *_numa) expect "$test had all nodes" grep -q "^$1 NUMA nodes\$" /tmp/output ;;
  esac
done
exit $failed
