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

# --- another run has the folder -----------------------------------------------------------------------
# It chooses when the other has ended: what it would have chosen before is gone by then.
a_copy shared
"$lockstep" train "${args[@]}" --steps 1000000 --checkpoint-every 200 --keep 1 --resume auto --out "$work/shared" >/dev/null 2>&1 &
other=$!
for ((i = 0; i < 400; i++)); do
  [ ! -e "$work/shared/checkpoints/step-00000200" ] || break
  sleep 0.02
done
refused=(--steps 1000000000 --resume auto --out "$work/second" --checkpoint-dir "$work/shared/checkpoints")
holder() { # of a folder, as the kernel lists it
  awk -v inode="$(stat -c %i "$1")" '$2 == "FLOCK" && $6 ~ ":" inode "$" { print $5 }' /proc/locks
}
again 2 '--out .*/shared: another run is writing there' shared --resume auto
if [ -n "$(holder "$work/shared")" ]; then # file systems of several layers have other numbers there
  grep -q "writing there, process $(holder "$work/shared"); " "$work/said" || fail "--out in use: $(cat "$work/said")"
  "$lockstep" train "${args[@]}" "${refused[@]}" >"$work/said" 2>&1
  [ $? = 2 ] && grep -q "shared/checkpoints: another run is writing there, process $other; " "$work/said" ||
    fail "--checkpoint-dir in use by $other: $(cat "$work/said")"
  ! grep -q 'going on from' "$work/said" || fail "chosen while another run had the folder: $(cat "$work/said")"
fi
kill -TERM $other
wait $other || fail "the run that had the folder: exit $?"
# A lock of nobody who can be seen: its process is gone, a child has it open. It is waited for.
flock "$work/shared/checkpoints" sh -c 'echo $$ >"$0"; while :; do sleep 0.5; done' "$work/child" &
for ((i = 0; i < 400; i++)); do [ ! -s "$work/child" ] || break; sleep 0.02; done
kill -KILL $!
wait $! 2>/dev/null
"$lockstep" train "${args[@]}" "${refused[@]}" >"$work/said" 2>&1 &
second=$!
for ((i = 0; i < 400; i++)); do
  grep -q 'another run is writing there, which .*; waiting' "$work/said" && break
  sleep 0.02
done
! grep -q 'going on from' "$work/said" || fail "chosen without the lock: $(cat "$work/said")"
newest="step-00000020"
mv "$work/shared/checkpoints/$(readlink "$work/shared/checkpoints/latest")" "$work/given-up"
cp -r "$work/first/checkpoints/$newest" "$work/shared/checkpoints"
kill -KILL "$(cat "$work/child")"
for ((i = 0; i < 400; i++)); do
  grep -q "going on from .*/$newest" "$work/said" && break
  sleep 0.02
done
((i < 400)) || fail "after the other run, chosen $newest: $(cat "$work/said")"
kill -KILL $second
wait $second 2>/dev/null
finish
