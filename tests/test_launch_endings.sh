#!/usr/bin/env bash
# How jobs of `lockstep run` end, as a table: what happened, the exit code, how long it took from then on, and how many
# processes of the job were left a moment later. And that of 100,000 lines from each of four ranks none is lost.
# shellcheck source=tests/lib.sh
# shellcheck disable=SC2016 # what the ranks' shells are to expand stands in single quotes
. "$(dirname "$0")/lib.sh"
row=0

# Ranks: each with two generations of children, which hold its pipes
family='sleep 100 & sh -c "sleep 100 & wait" & echo up; wait'
ignores='trap "" INT TERM HUP; sleep 100 & echo up; while :; do sleep 0.1; done'
saves='trap "sleep 0.3; echo saved; exit 0" TERM; echo up; while :; do sleep 0.05; done'
stopped='sleep 100 & echo up; kill -STOP $$; wait'

# job OPTIONS... -- PROGRAM: 4 ranks in the background; returns when all have said "up"
job() {
  row=$((row + 1))
  mark=$work/row$row
  "$lockstep" run -n 4 --grace 1 "$@" "$mark-" >"$work/out" 2>"$work/err" </dev/null &
  pid=$!
  for _ in $(seq 200); do [ "$(grep -c up "$work/out")" -ge 4 ] && break; sleep 0.05; done
  begin=$(now_ms)
}

# ends WHAT CODE MILLISECONDS: waits for the job and adds a row
ends() {
  local code took left
  wait $pid 2>/dev/null
  code=$?
  took=$(($(now_ms) - begin))
  for _ in $(seq 40); do left=$(pgrep -fc -- "$mark-"); [ "$left" = 0 ] && break; sleep 0.05; done
  printf '%-58s %4d %7d ms %5d\n' "$1" $code $took "$left"
  [ $code = "$2" ] || { fail "$1: exit code $code, want $2"; cat "$work/err"; }
  [ "$left" = 0 ] || fail "$1: $(pgrep -af -- "$mark-")"
  [ $took -le "$3" ] || fail "$1: took $took ms, bound $3"
}

printf '%-58s %4s %10s %5s\n' "what happened" code after left
job -- sh -c "[ \$RANK != 2 ] || { echo up; sleep 0.2; exit 7; }; $family"
ends "a rank exits with 7" 7 4000
job -- sh -c "$family"
for _ in $(seq 100); do rank=$(pgrep -P $pid -x sh | head -1) && [ -n "$rank" ] && break; done
kill -9 "$rank" # not the watcher
ends "a rank gets SIGKILL" 137 4000
job -- bash -c "[ \$RANK != 2 ] || { echo up; sleep 0.2; exit 7; }; $ignores"
ends "a rank exits with 7, the others ignore SIGTERM" 7 4000
job -- sh -c "$family"
kill -INT $pid
ends "Ctrl-C" 130 4000
job -- bash -c "$ignores"
kill -INT $pid
ends "Ctrl-C, the ranks ignore it (--grace 1)" 130 5000
job --grace 60 -- bash -c "$ignores"
kill -INT $pid
sleep 0.2
kill -INT $pid
ends "Ctrl-C twice, the ranks ignore it (--grace 60)" 130 4000
job -- sh -c "$family"
kill -TERM $pid
ends "SIGTERM" 143 4000
job -- bash -c "$saves"
kill -TERM $pid
ends "SIGTERM, the ranks save and exit with 0" 0 4000
job -- bash -c "$ignores"
kill -TERM $pid
ends "SIGTERM, the ranks ignore it (--grace 1)" 143 5000
job -- sh -c "$stopped"
kill -TERM $pid
ends "SIGTERM, the ranks are stopped" 143 4000
job -- sh -c "$family"
kill -HUP $pid
ends "SIGHUP: the terminal closes" 129 4000
job -- bash -c "$saves"
kill -HUP $pid
ends "SIGHUP, the ranks save and exit with 0" 0 4000
job -- sh -c "$family"
kill -USR1 $pid
ends "SIGUSR1, the ranks do not handle it" 138 4000
for number in 1 2; do
  job -- bash -c "trap 'echo got $number; exit 0' USR$number; echo up; while :; do sleep 0.05; done"
  kill -USR$number $pid
  ends "SIGUSR$number, the ranks leave with 0" 0 4000
  [ "$(grep -c "got $number" "$work/out")" = 4 ] || fail "SIGUSR$number: want it at every rank"
done
job -- sh -c "$family"
kill -9 $pid
ends "the launcher gets SIGKILL" 137 4000
job -- bash -c "$ignores"
kill -9 $pid
ends "the launcher gets SIGKILL, the ranks ignore SIGTERM" 137 4000
job -- sh -c "$stopped"
kill -9 $pid
ends "the launcher gets SIGKILL, the ranks are stopped" 137 4000
export LOCKSTEP_HEARTBEAT=1
job -- sh -c '[ $RANK = 2 ] || { echo up; exit 0; }; sleep 0.2; sleep 100 & echo up; kill -STOP $$; wait'
ends "a rank is stopped, the others have ended (heartbeat 1 s)" 137 5000
grep -q 'rank 2 is stopped and the others have ended' "$work/err" || { fail "a stopped rank is not named"; cat "$work/err"; }
unset LOCKSTEP_HEARTBEAT
job --max-restarts 5 -- sh -c "$family"
kill -TERM $pid
ends "SIGTERM, with restarts left" 143 4000

# Training: SIGTERM is an agreed stop, and the next run goes on from there
text "$work/text"
train=("$lockstep" train --model "gpt:layers=1,heads=2,width=32,context=16" --data "text:$work/text" --batch-size 8 --shards 4
  --steps 2000 --resume auto)
row=$((row + 1)) mark=$work/row$row
for signal in TERM USR1; do
  before=$(cat "$mark-/metrics.jsonl" 2>/dev/null | wc -l)
  "$lockstep" run -n 2 -- "${train[@]}" --out "$mark-" >"$work/out" 2>"$work/err" </dev/null &
  pid=$!
  for _ in $(seq 400); do [ "$(cat "$mark-/metrics.jsonl" 2>/dev/null | wc -l)" -gt $((before + 20)) ] && break; sleep 0.02; done
  begin=$(now_ms)
  kill -$signal $pid
  ends "SIG$signal to a training job: it saves" 0 10000
done
"$lockstep" run -n 4 -- "${train[@]}" --out "$mark-" >"$work/out" 2>"$work/err" || { fail "resume"; cat "$work/err"; }
"${train[@]}" --out "$work/whole" >/dev/null 2>&1
[ "$(hash_of "$mark-")" = "$(hash_of "$work/whole")" ] || fail "resumed on 4 ranks: other bits than in one go"
echo "stopped on 2 ranks, resumed on 4: $(hash_of "$mark-"), as in one go"

# Lines
lines=100000
begin=$(now_ms)
"$lockstep" run -n 4 --log-dir "$work/logs" -- seq -f "line %.0f" $lines >"$work/out" 2>"$work/err" || fail "lines: $?"
took=$(($(now_ms) - begin))
awk -v n=$lines '{ r = $2; sub("]", "", r); if ($3 != "line" || $4 != ++last[r]) { print "rank " r ": line " NR ": " $0; exit 1 } }
  END { for (r = 0; r < 4; r++) if (last[r] != n) { print "rank " r " ends at " last[r]; exit 1 } }' "$work/out" || fail "lines are lost, or out of order"
for rank in 0 1 2 3; do cmp -s "$work/logs/rank-$rank.out" <(seq -f "line %.0f" $lines) || fail "the file of rank $rank differs"; done
echo "4 ranks wrote $lines lines each, also into files: none lost, all in order, $((4 * lines * 1000 / took)) lines/s"
"$lockstep" run -n 2 --log-dir "$work/some" --redirect 0:out,1:both --tee 0:err -- sh -c 'echo o$RANK; echo e$RANK >&2' >"$work/out" 2>"$work/err"
[ "$(cat "$work/out" "$work/err")" = "[rank 0] e0" ] || fail "--redirect: $(cat "$work/out" "$work/err")"
[ "$(cat "$work/some/rank-0.out" "$work/some/rank-0.err" "$work/some/rank-1.out" "$work/some/rank-1.err")" = $'o0\ne0\no1\ne1' ] || fail "--redirect: files"
"$lockstep" run -n 1 --redirect out true 2>"$work/err"
[ $? = 2 ] || fail "--redirect without --log-dir"
"$lockstep" run -n 1 --log-dir "$work/some" --tee 0:nothing true 2>"$work/err"
[ $? = 2 ] || fail "--tee of nonsense"
"$lockstep" run -n 2 --log-dir /proc/none -- echo here >"$work/out" 2>"$work/err"
[ $? = 3 ] || fail "--log-dir that cannot be written: want code 3"
[ "$(grep -c here "$work/out")" = 2 ] && [ "$(grep -c 'cannot write' "$work/err")" = 1 ] || fail "--log-dir that cannot be written"

# A disk that is full from some line on, and a pipe that nobody reads: said once, by name, and the ranks go on
mkdir "$work/lost"
ln -s /dev/full "$work/lost/rank-0.out"
"$lockstep" run -n 2 --log-dir "$work/lost" -- sh -c 'echo one; sleep 0.1; echo two' >"$work/out" 2>"$work/err"
[ $? = 3 ] || fail "full --log-dir: want code 3"
[ "$(grep -c two "$work/out")" = 2 ] && grep -q two "$work/lost/rank-1.out" || fail "full --log-dir: the ranks do not go on"
[ "$(cat "$work/err")" = "lockstep run: --log-dir: cannot write $work/lost/rank-0.out: No space left on device; its lines are lost there" ] ||
  { fail "full --log-dir"; cat "$work/err"; }
"$lockstep" run -n 2 --log-dir "$work/lost" -- sh -c '[ $RANK = 0 ] && echo one; exit 5' >"$work/out" 2>"$work/err"
[ $? = 5 ] || fail "full --log-dir and a rank that fails: want its code"
"$lockstep" run -n 2 --format json --log-dir "$work/lost" -- echo one >"$work/out" 2>"$work/err"
tail -1 "$work/out" | grep -q "\"exit_code\": *3.*\"lost_lines\": *\"$(hostname)\"" || { fail "full --log-dir: json"; cat "$work/out"; }
rm "$work/lost/rank-0.out"
mkfifo "$work/lost/rank-0.out"
timeout 20 "$lockstep" run -n 1 --log-dir "$work/lost" -- echo here >"$work/out" 2>"$work/err"
[ $? = 3 ] && grep -q "cannot write $work/lost/rank-0.out" "$work/err" || fail "--log-dir with a pipe that nobody reads"

# What would be started, and what runs
"$lockstep" run -n 2 --dry-run -- no-such-program >/dev/null 2>&1
[ $? = 127 ] || fail "--dry-run of a program that is not there"
# A folder of PATH that may not be searched hides programs, but is none that cannot be executed. Nothing is closed to
# root, who becomes nobody for it.
as=()
[ "$(id -u)" != 0 ] || as=(setpriv --reuid 65534 --regid 65534 --clear-groups)
mkdir "$work/closed" "$work/open"
touch "$work/open/no-program"
chmod 711 "$work"
chmod 0 "$work/closed"
if (cd / && "${as[@]}" "$lockstep" --version >/dev/null 2>&1); then # a build folder may be closed to nobody
  for case in "no-such-program 127 program 'no-such-program' not found on PATH" \
    "no-program 126 cannot execute 'no-program': Permission denied"; do
    read -r program want words <<<"$case"
    (cd / && PATH=$work/closed:$work/open:$PATH "${as[@]}" "$lockstep" run -n 1 -- "$program" >"$work/out" 2>"$work/err")
    code=$?
    [ $code = "$want" ] && grep -qF "$words" "$work/err" || { fail "a closed folder in PATH, $program: exit $code"; cat "$work/err"; }
  done
fi
"$lockstep" run -n 2 --dry-run -- touch "$work/touched" >"$work/out"
grep -q '^  RANK=1$' "$work/out" && grep -q '^  LOCKSTEP_TOKEN=(chosen at the start)$' "$work/out" && [ ! -e "$work/touched" ] || fail "--dry-run"
"$lockstep" run -n 2 --monitor 0.2 -- sleep 0.7 2>"$work/err"
[ "$(grep -c '2 ranks after' "$work/err")" -ge 2 ] && grep -qE '^ +1 +[0-9]+  S ' "$work/err" || { fail "--monitor"; cat "$work/err"; }
OMP_NUM_THREADS=abc "$lockstep" run -n 2 -- sh -c 'echo $OMP_NUM_THREADS' >"$work/out" 2>"$work/err"
finish
