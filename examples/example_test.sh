#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# usage: example_test.sh INCLUDE CC
# The example in bmi/job.h is a table of states that compiles without a warning.
set -euo pipefail

include=$1 cc=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
{
  echo '#include <bmi/job.h>'
  for action in receive answer give_up; do
    echo "static int $action(struct bmi_sm *machine, void *data) { (void)machine, (void)data; return 0; }"
  done
  echo 'int main(void) {'
  sed -n '/^ \* For instance:/,/^ \*\//p' "$include/bmi/job.h" | sed '1d;$d;s/^ \*//'
  echo 'return bmi_sm_check(&request, NULL, 0); }'
} >"$work/example.c"
grep -q 'BMI_SM_TABLE("request", states)' "$work/example.c" || {
  echo "FAILED: no example found in bmi/job.h"
  exit 1
}
for standard in c99 c11 c17; do
  "$cc" -std=$standard -Wall -Wextra -pedantic -Werror -I"$include" -fsyntax-only "$work/example.c"
done
