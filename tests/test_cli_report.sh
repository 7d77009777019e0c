#!/usr/bin/env bash
# Flight records of a failed job: written where they were asked for and nowhere else, and told in words.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"

text "$work/text"
gpt=(--model "gpt:layers=1,heads=1,width=8,context=8" --data "text:$work/text" --batch-size 8)

# want FILE TEXT WHAT
want() { grep -qF -- "$2" "$1" || { fail "$3: lacks '$2'"; cat "$1"; }; }

transports=(shm)
if has_tcp; then transports+=(tcp); fi
for transport in "${transports[@]}"; do
  flight=$work/flight-$transport
  cd "$work" || exit 1
  rm -f "$work/out" "$work/err"
  "$lockstep" run -n 3 --transport "$transport" --flight "$flight" "$lockstep" train "${gpt[@]}" --steps 100000 \
    >"$work/out" 2>"$work/err" &
  job=$!
  for ((i = 0; i < 200; i++)); do grep -qs 'step' "$work/out" "$work/err" && break; sleep 0.05; done
  victim=$(pgrep -f -- "$work/text" | while read -r pid; do
    tr '\0' '\n' <"/proc/$pid/environ" 2>/dev/null | grep -qx RANK=1 && echo "$pid"; done | head -1)
  kill -9 "$victim"
  wait $job
  [ $? = 137 ] || fail "$transport: exit code"
  # the killed rank has left one, too
  for rank in 0 1 2; do [ -s "$flight/flight-rank-$rank.json" ] || fail "$transport: no record of rank $rank"; done
  [ "$(find "$flight" -type f | wc -l)" = 3 ] || fail "$transport: other files are left"
  want "$work/err" "rank 1 (host $(uname -n | cut -c1-63), pid $victim) failed first: it was killed by signal 9" "$transport"
  "$lockstep" report --flight "$flight" >"$work/report" 2>"$work/report-err" || fail "$transport: report: exit $?"
  [ ! -s "$work/report-err" ] || { fail "$transport: report complains"; cat "$work/report-err"; }
  want "$work/report" "of group world" "$transport"
  want "$work/report" "rank 1 (host " "$transport"
  "$lockstep" report --flight "$flight" --format json >"$work/json" || fail "$transport: json: exit $?"
  [ "$(wc -l <"$work/json")" = 1 ] || fail "$transport: json: want one line"
  grep -q '^{"first_error_rank":[02],"first_error":".*rank 1.*"stalls":\[{.*"ranks":\[{.*}$' "$work/json" ||
    { fail "$transport: json"; cat "$work/json"; }
  want_nothing_left "$transport"
done

# What is damaged or missing is named; the rest still counts.
head -c 300 "$flight/flight-rank-1.json" >"$work/half"
cp "$work/half" "$flight/flight-rank-1.json"
rm "$flight/flight-rank-2.json"
"$lockstep" report --flight "$flight" >"$work/report" 2>"$work/report-err" || fail "damaged: exit $?"
want "$work/report-err" "flight-rank-1.json: no JSON" "damaged"
want "$work/report-err" "rank 2 left no record" "missing"
want "$work/report" "rank 0 (host" "the rest"
rm -r "$flight"
"$lockstep" report --flight "$flight" 2>"$work/err"
[ $? = 3 ] || fail "no folder: exit code"
want "$work/err" "$flight" "no folder"
"$lockstep" report 2>"$work/err"
[ $? = 2 ] || fail "no option: exit code"

# Nothing is written where nobody asked, nor after success of a program that uses no Lockstep.
mkdir "$work/clean"
cd "$work/clean" || exit 1
"$lockstep" run -n 2 sh -c 'exit 3' >/dev/null 2>&1
"$lockstep" run -n 2 --flight "$work/clean/flight" true >/dev/null 2>&1 || fail "true: exit $?"
[ -z "$(ls -A "$work/clean")" ] || fail "files nobody asked for: $(ls -A "$work/clean")"
LOCKSTEP_FLIGHT=$work/clean/flight "$lockstep" run -n 2 "$lockstep" train "${gpt[@]}" --steps 1 >/dev/null 2>&1
[ "$(find "$work/clean/flight" -type f | wc -l)" = 2 ] || fail "LOCKSTEP_FLIGHT: no records"
"$lockstep" report --flight "$work/clean/flight" >"$work/report" || fail "report after success: exit $?"
want "$work/report" "no rank was in an operation that had not ended" "success"
want "$work/report" "had left the job" "success"
# a folder that cannot be written costs the record alone
"$lockstep" run -n 2 --flight /proc/nowhere "$lockstep" train "${gpt[@]}" --steps 1 >/dev/null 2>"$work/err" || fail "/proc: exit $?"
want "$work/err" "/proc/nowhere" "unwritable folder"
# ... and is told before the start, also of a program that leaves no record
"$lockstep" run -n 2 --flight "$work/none/folder" true >/dev/null 2>"$work/err" || fail "no parent: exit $?"
want "$work/err" "--flight: no record can be written to $work/none/folder: No such file" "no parent"
LOCKSTEP_FLIGHT=$work/clean/flight/ "$lockstep" run -n 2 true >/dev/null 2>"$work/err" || fail "folder: exit $?"
[ ! -s "$work/err" ] || fail "a good folder: $(cat "$work/err")"
# without a launcher a rank says itself what it could not write
mkdir "$work/full"
if mount -t tmpfs -o size=64k none "$work/full" 2>/dev/null; then
  mkdir "$work/full/flight"
  head -c 100000 /dev/zero >"$work/full/fill" 2>/dev/null
  LOCKSTEP_FLIGHT=$work/full/flight "$lockstep" train "${gpt[@]}" --steps 1 >/dev/null 2>"$work/err" || fail "full: exit $?"
  want "$work/err" "rank 0: LOCKSTEP_FLIGHT: flight recorder: cannot write $work/full/flight/flight-rank-0.json: No space left" "full disk"
  umount "$work/full"
fi
finish
