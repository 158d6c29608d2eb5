# SPDX-License-Identifier: BSD-3-Clause
#
# The task manager with two NUMA nodes, each with its own CPUs, which most test hosts lack.
. /guest.sh

nodes=$(ls -d /sys/devices/system/node/node[0-9]* | wc -l)
expect "the guest has 2 nodes, not $nodes" [ "$nodes" -eq 2 ]
for node in 0 1; do
  echo "node $node: CPUs $(cat /sys/devices/system/node/node$node/cpulist)"
done
for test in task_topology task_place task_memory; do
  title $test
  $test >/tmp/output 2>&1
  status=$?
  cat /tmp/output
  expect "$test" [ $status -eq 0 ]
  [ $test != task_memory ] || expect "memory was moved for real" grep -q '^2 NUMA nodes$' /tmp/output
done
exit $failed
