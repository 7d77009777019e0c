#!/usr/bin/env bash
# A rank or the launcher is killed, stopped or interrupted in mid-training: the job ends in 2 seconds, the
# message names who, no process and no segment is left, and no result claims to be complete.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"

text "$work/text"
gpt=(--model "gpt:layers=4,heads=4,width=128,context=64" --data "text:$work/text" --steps 100000 --batch-size 16)

# wait_for COMMAND...: until it succeeds, 30 s at most
wait_for() {
  local i
  for ((i = 0; i < 600; i++)); do
    "$@" && return
    sleep 0.05
  done
  fail "the job did not start"
  cat "$work/stderr"
}

steps_done() { [ "$(grep -c . "$work/out/metrics.jsonl" 2>/dev/null || true)" -ge 3 ] 2>/dev/null; }

# start RANKS EXTRA...: a long job in the background; waits until it trains. Sets $job.
start() {
  local ranks=$1
  shift
  rm -rf "$work/out"
  "$lockstep" train "${gpt[@]}" --ranks "$ranks" --out "$work/out" "$@" >"$work/stdout" 2>"$work/stderr" </dev/null &
  job=$!
  wait_for steps_done
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

# What else the machine did before: bounds stretch by that, for each core.
load=$(awk -v cores="$(nproc)" '{ print 1 + $1 / cores }' /proc/loadavg)

# ends WHAT CODE MS: waits for $job, which ends with CODE within MS on an idle machine and leaves nothing
ends() {
  local begin took code most
  most=$(awk -v ms="$3" -v load="$load" 'BEGIN { printf "%d", ms * load }')
  begin=$(now_ms)
  wait "$job" 2>/dev/null
  code=$?
  took=$(($(now_ms) - begin))
  echo "$1: exit $code after $took ms"
  [ $code = "$2" ] || { fail "$1: exit $code, want $2"; cat "$work/stderr"; }
  [ $took -le "$most" ] || fail "$1: took $took ms, want at most $most"
  want_nothing_left "$1"
  [ ! -e "$work/out/summary.json" ] || fail "$1: left a summary of a run that did not end"
}

# says PATTERN WHAT [FILE]
says() { grep -q -- "$1" "${3:-$work/stderr}" || { fail "$2: message lacks '$1'"; cat "${3:-$work/stderr}"; }; }

segments() { find /dev/shm -name '*lockstep*' 2>/dev/null | wc -l; }
before=$(segments)

transports=(shm)
if has_tcp; then transports+=(tcp); else echo "tcp is not built in: not tried"; fi
for transport in "${transports[@]}"; do
  what="kill -9 of rank 2 over $transport"
  start 4 --transport "$transport"
  kill -9 "$(pid_of 2)"
  ends "$what" 137 2000
  says '^lockstep train: rank 2 (host [^ ]*, pid [0-9]*) failed first: it was killed by signal 9 (SIGKILL)' "$what"
done

start 4
kill -STOP "$(pid_of 1)"
kill -9 "$(pid_of 3)"
ends "kill -9 of rank 3 while rank 1 hangs" 137 2000
says 'rank 3' "kill -9 of rank 3 while rank 1 hangs"

# who is stopped is found by its missing heartbeat, and is the first cause, not who found it
LOCKSTEP_HEARTBEAT=1 start 2
kill -STOP "$(pid_of 1)"
ends "rank 1 stopped" 4 5000
says 'rank 1 (host [^ ]*, pid [0-9]*) has stopped: no heartbeat' "rank 1 stopped"
says '^lockstep train: rank 1 (host [^ ]*, pid [0-9]*) stopped first: it had no heartbeat any more' "rank 1 stopped"

start 4
kill -9 "$job"
ends "kill -9 of the launcher" 137 2000

for signal in INT TERM; do
  start 3
  kill -$signal "$job"
  ends "SIG$signal to the launcher" $((128 + $(kill -l $signal))) 2000
  says "stopped by SIG$signal" "SIG$signal"
done

# a rank that was started by hand: the other one ends by itself and names it
if has_tcp; then
  rm -rf "$work/out"
  port=$(free_port)
  for rank in 0 1; do
    RANK=$rank WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "$lockstep" train "${gpt[@]}" --out "$work/out" \
      >"$work/log$rank" 2>&1 &
    pids[rank]=$!
  done
  wait_for steps_done
  kill -9 "${pids[1]}"
  job=${pids[0]}
  ends "kill -9 of a rank started by hand" 4 2000
  says 'rank 1' "kill -9 of a rank started by hand" "$work/log0"
fi
[ "$(segments)" = "$before" ] || fail "a segment is left in /dev/shm"
finish
