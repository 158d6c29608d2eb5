# SPDX-License-Identifier: BSD-3-Clause
#
# Groups of tasks on several NUMA nodes, and bmi-info's view of the nodes. The argument is the number
# of nodes.
. /guest.sh

title task_numa
task_numa >/tmp/output 2>&1
status=$?
cat /tmp/output
expect task_numa [ $status -eq 0 ]

title bmi-info --topology
bmi-info --topology >/tmp/output
expect "bmi-info --topology" [ $? -eq 0 ]
cat /tmp/output
seen=$(grep -cE '^  node [0-9]+: [1-9][0-9]* MiB; its CPUs have queue [1-9]' /tmp/output)
expect "bmi-info shows $1 nodes with memory and queues, not $seen" [ "$seen" -eq "$1" ]
seen=$(grep -cE '^    to node [0-9]+: distance [0-9]' /tmp/output)
expect "bmi-info shows $(($1 * $1)) distances, not $seen" [ "$seen" -eq $(($1 * $1)) ]
# A guest may get no CPU for long; then the cause says so.
seen=$(grep -cE '^  [a-z_]+ +[0-9.e+]+  (measured|default: .*(measured|time|busy).*)$' /tmp/output)
expect "bmi-info shows 5 costs that were measured, or why not, not $seen" [ "$seen" -eq 5 ]
exit $failed
