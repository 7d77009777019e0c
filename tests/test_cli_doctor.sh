#!/usr/bin/env bash
# lockstep doctor: finds what this machine has, in both forms, and says what is wrong.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"

text=$(timeout 60 "$lockstep" doctor) || fail "exit code $?: $text"
for name in lockstep oneDNN libuv hwloc jansson xxhash cores caches memory 'own kernels use' shm tcp 'open files' fashion-mnist; do
  grep -q "^  $name  *[^ ]" <<<"$text" || fail "lacks '$name'"
done
grep -q '^  shm  *works' <<<"$text" || fail "shm was not tried"
# what this build lacks comes with advice
for pair in SODIUM:libsodium ZLIB:zlib; do
  grep -q "^${pair%:*}_FOUND:INTERNAL=1" "$build/CMakeCache.txt" && continue
  grep -A1 "^  ${pair#*:}  *not built in" <<<"$text" | grep -q 'optional: install ' || fail "no advice about ${pair#*:}"
done
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
finish
