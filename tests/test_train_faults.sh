#!/usr/bin/env bash
# A rank or the launcher is killed in mid-training: the job ends in 2 seconds, the message names who, nothing
# is left.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"

text "$work/text"
gpt=(--model gpt:layers=4,heads=4,width=128,context=64 --data "text:$work/text" --steps 100000 --batch-size 16)

# start RANKS EXTRA...: a long job in the background; waits until it trains. Sets $job and $ranks_pids.
start() {
  local ranks=$1 i
  shift
  rm -rf "$work/out"
  "$lockstep" train "${gpt[@]}" --ranks "$ranks" --out "$work/out" "$@" >"$work/stdout" 2>"$work/stderr" &
  job=$!
  for ((i = 0; i < 300; i++)); do
    [ -s "$work/out/metrics.jsonl" ] && break
    sleep 0.1
  done
  [ -s "$work/out/metrics.jsonl" ] || { fail "the job did not start"; cat "$work/stderr"; }
}

# pid_of RANK
pid_of() {
  local pid
  for pid in $(pgrep -f -- "$work/text"); do
    if tr '\0' '\n' <"/proc/$pid/environ" 2>/dev/null | grep -qx "RANK=$1"; then
      echo "$pid"
      return
    fi
  done
}

now_ms() { date +%s%3N; }

# left: processes of this test, and mapped segments of them
nothing_left() {
  local i
  for ((i = 0; i < 20; i++)); do
    [ -n "$(pgrep -f -- "$work/text")" ] || return 0
    sleep 0.1
  done
  fail "$1: left $(pgrep -af -- "$work/text")"
}

# ends_within MS WHAT: waits for $job; sets $code
ends_within() {
  local begin end
  begin=$(now_ms)
  wait "$job"
  code=$?
  end=$(now_ms)
  [ $((end - begin)) -le "$1" ] || fail "$2: took $((end - begin)) ms, want at most $1"
  echo "$2: exit $code after $((end - begin)) ms"
}

for transport in shm tcp; do
  start 4 --transport $transport
  victim=$(pid_of 2)
  kill -9 "$victim"
  ends_within 2000 "kill -9 of rank 2 over $transport"
  [ $code = 137 ] || fail "kill -9 of a rank: exit $code, want 137"
  grep -q 'rank 2' "$work/stderr" && grep -q 'signal 9\|SIGKILL' "$work/stderr" || { fail "message lacks rank and signal"; cat "$work/stderr"; }
  nothing_left "kill -9 of a rank"
  [ ! -e "$work/out/summary.json" ] || fail "kill -9: left a summary"
done

start 4
kill -9 $job
ends_within 2000 "kill -9 of the launcher"
nothing_left "kill -9 of the launcher"

for signal in INT TERM; do
  start 3
  kill -$signal $job
  ends_within 7000 "SIG$signal to the launcher"
  [ $code = $((128 + $(kill -l $signal))) ] || fail "SIG$signal: exit $code"
  nothing_left "SIG$signal"
done

# kill -9 of a rank that was started by hand: the other one ends by itself and names it
port=$(free_port)
for rank in 0 1; do
  RANK=$rank WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "$lockstep" train "${gpt[@]}" \
    >"$work/log$rank" 2>&1 &
  pids[rank]=$!
done
for ((i = 0; i < 100; i++)); do grep -q 'step' "$work/log0" && break; sleep 0.2; done
kill -9 "${pids[1]}"
job=${pids[0]}
ends_within 2000 "kill -9 of a rank started by hand"
[ $code = 4 ] || fail "by hand: exit $code, want 4"
grep -q 'rank 1' "$work/log0" || { fail "by hand: rank 1 not named"; cat "$work/log0"; }
nothing_left "by hand"
finish
