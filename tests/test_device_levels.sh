#!/usr/bin/env bash
# Every test of a kernel again, at each instruction set below the best that this processor has.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"

best=$("$lockstep" doctor | sed -n 's/^ *own kernels use *\([a-z0-9]*\).*/\1/p')
[ -n "$best" ] || fail "doctor does not say which level is used"
for level in baseline avx2; do
  [ "$level" != "$best" ] || break
  LOCKSTEP_CPU=$level "$lockstep" doctor | grep -q "own kernels use *$level (LOCKSTEP_CPU)" ||
    fail "doctor does not show LOCKSTEP_CPU=$level"
  for test in "$build"/tests/test_device_*; do
    [ -x "$test" ] || continue
    LOCKSTEP_CPU=$level timeout 120 "$test" >"$work/log" 2>&1 || { fail "$level: $test"; tail -5 "$work/log"; }
  done
done
LOCKSTEP_CPU=avx9 "$lockstep" doctor >"$work/log" && fail "doctor is content with LOCKSTEP_CPU=avx9"
grep -q "LOCKSTEP_CPU=avx9" "$work/log" || fail "doctor does not name LOCKSTEP_CPU=avx9"
finish
