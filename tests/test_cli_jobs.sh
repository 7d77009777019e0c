#!/usr/bin/env bash
# Jobs of one machine do not meet: over each transport twenty are started and end, two at a time, beside a third that
# runs all the time. Each has the right sums and ends well, the third never notices, and no port, name or file is shared or left.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
cp "$build/tests/program_ranks" "$work/ranks" # so that its processes are known by their command line
mkdir "$work/tmp"
export TMPDIR=$work/tmp LOCKSTEP_TIMEOUT=30
segments() { find /dev/shm -name '*lockstep*' 2>/dev/null | wc -l; }
before=$(segments)

# job TRANSPORT FILE: two ranks that reduce, and print the hash of what came out
job() { timeout 60 "$lockstep" run -n 2 --transport "$1" --no-prefix -- "$work/ranks" bits >"$2" 2>&1; }

# check_job CODE TRANSPORT FILE: ended well, on that transport, with the hash that the first job had
check_job() {
  [ "$1" = 0 ] || { fail "round $round over $2: exit $1"; cat "$3"; }
  [ "$(grep -c "transport $2\$" "$3")" = 2 ] || { fail "round $round over $2: not two ranks"; cat "$3"; }
  local got
  got=$(grep -o 'bits [0-9a-f]*' "$3" | sort -u)
  want=${want:-$got}
  [ "$got" = "$want" ] || fail "round $round over $2: $got, want $want"
}

# third_starts TRANSPORT: a job that goes on until it is stopped, $third
third_starts() {
  "$lockstep" run -n 2 --transport "$1" --grace 5 -- "$work/ranks" loop >"$work/third" 2>&1 </dev/null &
  third=$!
  for ((i = 0; i < 600; i++)); do
    [ "$(pgrep -cf -- "$work/ranks loop")" -lt 3 ] || return # the launcher and two ranks
    sleep 0.05
  done
  fail "the third job over $1 did not start"
}

want=
transports=(shm)
if has_tcp; then transports+=(tcp); else echo "tcp is not built in: not tried"; fi
for transport in "${transports[@]}"; do
  third_starts "$transport"
  for ((round = 1; round <= 10; round++)); do
    job "$transport" "$work/a" &
    first=$!
    code=0
    job "$transport" "$work/b" || code=$?
    check_job $code "$transport" "$work/b"
    code=0
    wait $first || code=$?
    check_job $code "$transport" "$work/a"
  done
  kill -0 "$third" 2>/dev/null || { fail "the third job over $transport ended"; cat "$work/third"; }
  kill -TERM "$third"
  code=0
  wait "$third" || code=$?
  [ $code = 143 ] || { fail "the third job over $transport: exit $code, want 143"; cat "$work/third"; }
  want_nothing_left "over $transport"
done
[ -z "$(ls -A "$work/tmp")" ] || fail "files are left: $(ls -A "$work/tmp")"
[ "$(segments)" = "$before" ] || fail "a segment is left in /dev/shm"
finish
