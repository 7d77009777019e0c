#!/usr/bin/env bash
# lockstep doctor: finds what this machine has, in both forms, and says what is wrong.
# usage: test_cli_doctor.sh BUILD
set -u
lockstep=$1/lockstep
failures=0
fail() { echo "FAILED: $*"; failures=$((failures + 1)); }

text=$(timeout 60 "$lockstep" doctor) || fail "exit code $?: $text"
for name in lockstep oneDNN libuv hwloc jansson xxhash cores caches memory 'kernels use' shm tcp 'open files' fashion-mnist; do
    grep -q "^  $name  *[^ ]" <<<"$text" || fail "lacks '$name'"
done
grep -q '^  shm  *works' <<<"$text" || fail "shm was not tried"
json=$(timeout 60 "$lockstep" doctor --format json) || fail "json: exit code $?"
[ "$(wc -l <<<"$json")" = 1 ] || fail "json: want one line"
[[ $json == '{"ok":true,"findings":[{"section":'*'"name":"shm","state":"ok"'*'}]}' ]] || fail "json: $json"
# too few descriptors is found and comes with advice, but is no failure
few=$(ulimit -n 64 && timeout 60 "$lockstep" doctor) || fail "few descriptors: exit code $?"
grep -q 'ulimit -n 1024' <<<"$few" || fail "few descriptors: no advice"
timeout 10 "$lockstep" doctor >/dev/full 2>/dev/null
[ $? = 3 ] || fail "full device: want exit code 3"
timeout 10 "$lockstep" doctor extra 2>/dev/null
[ $? = 2 ] || fail "extra argument: want exit code 2"
[ $failures = 0 ]
