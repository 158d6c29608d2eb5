#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# complete.sh INCLUDE PAGES MADE - checks that one of PAGES names each function for programs, and
# that a page with its name exists, there or in MADE. It skips functions for methods
# (docs/methods.md), and the classic names, which are macros.
include=$1 pages=$2 made=$3 missing=0 count=0
for name in $(cat "$include/bmi.h" "$include"/bmi/flow.h "$include"/bmi/instance.h \
                  "$include"/bmi/job.h "$include"/bmi/rpc.h "$include"/bmi/task.h \
                  "$include"/bmi/task_group.h "$include"/bmi/trove.h |
              grep -oE '^[a-z][A-Za-z0-9_ ]* \*?(BMI|bmi)_[a-z_]+\(' |
              grep -oE '(BMI|bmi)_[a-z_]+\($' | tr -d '(' | grep -v '^bmi_classic_' | sort -u); do
    count=$((count + 1))
    grep -qE "^\.Nm $name( ,)?\$" "$pages"/*.3 || { echo "$name: no page names it"; missing=1; }
    [ -e "$pages/$name.3" ] || [ -e "$made/$name.3" ] || { echo "$name: no page is under it"; missing=1; }
done
[ "$count" -gt 100 ] || { echo "only $count functions found"; missing=1; }
echo "$count functions"
exit $missing
