#!/usr/bin/env bash
# What a run that is started again goes on from, and when it refuses to: checkpoints that cannot be read, that are all
# broken, that have another's name, or that another run still has.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"

text "$work/text"
args=(--model "gpt:layers=1,heads=1,width=8,context=8" --data "text:$work/text" --batch-size 4 --steps 25)
"$lockstep" train "${args[@]}" --steps 20 --checkpoint-every 5 --out "$work/first" >"$work/log" 2>&1 || { fail "first"; cat "$work/log"; }

# a_copy NAME: of that run's folder, not complete
a_copy() {
  cp -r "$work/first" "$work/$1"
  rm "$work/$1/summary.json"
}

# again CODE PATTERN NAME OPTIONS...
again() {
  local want=$1 pattern=$2 name=$3 code=0
  shift 3
  "$lockstep" train "${args[@]}" --out "$work/$name" "$@" >"$work/said" 2>&1 || code=$?
  [ $code = "$want" ] || { fail "$name $*: exit $code, want $want"; cat "$work/said"; }
  grep -q -- "$pattern" "$work/said" || { fail "$name $*: lacks '$pattern'"; cat "$work/said"; }
}

# --- one that cannot be read may be whole ----------------------------------------------------------
a_copy unread
# for root every file is readable, so somebody else tries
as_user() {
  if [ "$(id -u)" = 0 ]; then setpriv --reuid=65534 --regid=65534 --clear-groups "$@"; else "$@"; fi
}
chmod 711 "$work"
chmod -R a+rwX "$work/unread" "$work/text"
if as_user "$lockstep" --version >/dev/null 2>&1; then
  chmod 000 "$work/unread/checkpoints/step-00000020"
  as_user "$lockstep" train "${args[@]}" --out "$work/unread" --resume auto --keep 1 >"$work/said" 2>&1
  [ $? = 3 ] && grep -q 'step-00000020 cannot be checked and may be whole: .*: Permission denied' "$work/said" ||
    { fail "unreadable: no refusal"; cat "$work/said"; }
  [ "$(find "$work/unread/checkpoints" -name "step-*" | grep -c .)" = 4 ] || fail "unreadable: $(ls -A "$work/unread/checkpoints")"
  chmod 755 "$work/unread/checkpoints/step-00000020"
  chmod 000 "$work/unread/checkpoints/step-00000020/optimizer.safetensors"
  as_user "$lockstep" train "${args[@]}" --out "$work/unread" --resume auto >"$work/said" 2>&1
  [ $? = 3 ] && grep -q 'may be whole: .*optimizer.safetensors: .*: Permission denied' "$work/said" ||
    { fail "unreadable file: no refusal"; cat "$work/said"; }
else
  echo "unreadable checkpoints not tried: no other user can run $lockstep"
fi

# --- all are broken ---------------------------------------------------------------------------------
a_copy broken
for step in "$work"/broken/checkpoints/step-*; do truncate -s -1 "$step/model.safetensors"; done
for ranks in 1 2; do again 3 'none of its 4 checkpoints is whole' broken --resume auto --ranks $ranks; done
[ "$(find "$work/broken/checkpoints" -name "step-*" | grep -c .)" = 4 ] || fail "all broken: $(ls -A "$work/broken/checkpoints")"
again 0 'no checkpoint in .* yet, starting from the beginning' fresh --resume auto --checkpoint-every 10

# --- the name says another step than the manifest -----------------------------------------------------
a_copy named
mv "$work/named/checkpoints/step-00000015" "$work/named/checkpoints/step-99999999"
again 0 'step-99999999 is passed over: .*its manifest says step 15' named --resume auto --checkpoint-every 5 --keep 1
grep -q 'going on from .*step-00000020' "$work/said" || fail "named: $(cat "$work/said")"
[ "$(cd "$work/named/checkpoints" && echo step-*)" = "step-00000025 step-99999999" ] ||
  fail "named: left $(ls -A "$work/named/checkpoints")"
"$lockstep" checkpoint verify "$work/named/checkpoints/step-99999999/" >"$work/said"
[ $? = 3 ] && grep -q 'give it the name step-00000015' "$work/said" || fail "verify of a wrong name: $(cat "$work/said")"

# --- somebody's link ------------------------------------------------------------------------------------
# is told, stays, and is none of those to keep
a_copy linked
mv "$work/linked/checkpoints/step-00000020" "$work/moved"
ln -s "$work/moved" "$work/linked/checkpoints/step-00000020"
again 0 'step-00000020: is no folder, so of no run; it stays' linked --resume auto --checkpoint-every 5 --keep 2
[ "$(grep -c 'is no folder' "$work/said")" = 1 ] || fail "linked: not told once: $(cat "$work/said")"
[ "$(cd "$work/linked/checkpoints" && echo step-*)" = "step-00000015 step-00000020 step-00000025" ] ||
  fail "linked: left $(ls -A "$work/linked/checkpoints")"
[ -e "$work/moved/manifest.json" ] || fail "linked: what the link points to was removed"

# --- another run has the folder -----------------------------------------------------------------------
# until_so COMMAND...: waits for what it says, 8 s at most
until_so() {
  local i
  for ((i = 0; i < 400; i++)); do
    ! "$@" || return 0
    sleep 0.02
  done
  return 1
}
said() { grep -q -- "$1" "$work/said"; }
a_copy shared
checkpoints=$work/shared/checkpoints
start_other() { # saves, and has saved more than was there
  local before
  before=$(readlink "$checkpoints/latest")
  "$lockstep" train "${args[@]}" --steps 1000000 --checkpoint-every 200 --keep 1 --resume auto --out "$work/shared" >/dev/null 2>&1 &
  other=$!
  until_so has_saved "$before" || fail "the run that has the folder saves nothing"
}
has_saved() { [ "$(readlink "$checkpoints/latest")" != "$1" ]; }
start_other
refused=(--steps 1000000000 --resume auto --out "$work/second" --checkpoint-dir "$checkpoints")
holder() { # of a folder, as the kernel lists it
  awk -v inode="$(stat -c %i "$1")" '$2 == "FLOCK" && $6 ~ ":" inode "$" { print $5 }' /proc/locks
}
again 2 '--out .*/shared: another run is writing there' shared --resume auto
if [ -n "$(holder "$work/shared")" ]; then # file systems of several layers have other numbers there
  grep -q "writing there, process $(holder "$work/shared"); " "$work/said" || fail "--out in use: $(cat "$work/said")"
  "$lockstep" train "${args[@]}" "${refused[@]}" >"$work/said" 2>&1
  [ $? = 2 ] && grep -q "shared/checkpoints: another run is writing there, process $other; " "$work/said" ||
    fail "--checkpoint-dir in use by $other: $(cat "$work/said")"
  ! said 'going on from' || fail "chosen while another run had the folder: $(cat "$work/said")"
else
  echo "the process in the message not tried: /proc/locks does not list the lock of $work/shared by its inode"
fi
kill -TERM $other
wait $other || fail "the run that had the folder: exit $?"
# One that ends in time is waited for: what is chosen is what it saved last. Where this machine is too slow for those
# 2 s the second is refused, and both try again.
has_open() { find "/proc/$1/fd" -lname "$checkpoints" 2>/dev/null | grep -q .; }
outwaited=
for ((round = 0; round < 5; round++)); do
  start_other
  "$lockstep" train "${args[@]}" "${refused[@]}" >"$work/said" 2>&1 &
  second=$!
  until_so has_open $second || fail "the second run does not open the folder: $(cat "$work/said")"
  kill -TERM $other
  wait $other || fail "the run that had the folder: exit $?"
  newest=$(readlink "$checkpoints/latest")
  until_so said 'going on from\|writing there, process' || fail "the second run neither goes on nor is refused: $(cat "$work/said")"
  kill -KILL $second 2>/dev/null
  wait $second 2>/dev/null
  said 'going on from' || continue
  outwaited=yes
  said "going on from .*/$newest" || fail "after the other run, which saved $newest: $(cat "$work/said")"
  break
done
[ -n "$outwaited" ] || fail "a run that ends at once was never waited for: $(cat "$work/said")"
# hold FOLDER: a lock of nobody who can be seen: its process is gone, a child has it open
hold() {
  rm -f "$work/child"
  flock "$1" sh -c 'echo $$ >"$0"; while :; do sleep 0.5; done' "$work/child" &
  until_so test -s "$work/child" || fail "no lock on $1"
  kill -KILL $!
  wait $! 2>/dev/null
}
# It is waited for, and that is told.
hold "$checkpoints"
"$lockstep" train "${args[@]}" "${refused[@]}" >"$work/said" 2>&1 &
second=$!
until_so said 'another run is writing there, which .*; waiting 30 s for its end' || fail "the wait is not told: $(cat "$work/said")"
! said 'going on from' || fail "chosen without the lock: $(cat "$work/said")"
newest="step-00000020"
mv "$checkpoints/$(readlink "$checkpoints/latest")" "$work/given-up"
cp -r "$work/first/checkpoints/$newest" "$checkpoints"
kill -KILL "$(cat "$work/child")"
until_so said "going on from .*/$newest" || fail "after the other run, chosen $newest: $(cat "$work/said")"
kill -KILL $second
wait $second 2>/dev/null
# For --out as well, which rank 0 alone waits for: not a matter of the deadline of the others.
mkdir "$work/held"
hold "$work/held"
if [ -n "$(holder "$work/held")" ]; then
  LOCKSTEP_TIMEOUT=4 "$lockstep" run -n 2 -- "$lockstep" train "${args[@]}" --steps 2 --out "$work/held" >"$work/said" 2>&1 &
  second=$!
  until_so said 'out .*/held: another run is writing there, which is ending; waiting 30 s for its end' ||
    fail "--out: the wait is not told: $(cat "$work/said")"
  sleep 3 # with the 2 s before more than that deadline
  kill -KILL "$(cat "$work/child")"
  wait $second || fail "--out: exit $? after the other run ended: $(cat "$work/said")"
else
  echo "the wait for --out not tried: /proc/locks does not list that lock by its inode"
  kill -KILL "$(cat "$work/child")"
fi
# Where nobody can be seen who has it, --out is refused without that wait.
mkdir "$work/afar"
apart=(unshare --pid --fork --kill-child --mount-proc) # sees its own processes alone
if "${apart[@]}" true 2>/dev/null; then
  rm -f "$work/child"
  flock "$work/afar" sh -c 'echo $$ >"$0"; exec sleep 60' "$work/child" &
  far=$!
  until_so test -s "$work/child" || fail "no lock on $work/afar"
  "${apart[@]}" "$lockstep" train "${args[@]}" --steps 2 --out "$work/afar" >"$work/said" 2>&1
  [ $? = 2 ] && said 'out .*/afar: another run is writing there, which cannot be seen from here; ' && ! said waiting ||
    fail "--out of a run that cannot be seen: $(cat "$work/said")"
  kill -KILL "$(cat "$work/child")"
  wait $far 2>/dev/null
else
  echo "--out of a run that cannot be seen not tried: no process namespace here"
fi
finish
