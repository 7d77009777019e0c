#!/usr/bin/env bash
# Small limits (ulimit), closed standard files, two jobs in one folder: a message and an exit code, never a
# crash, and nothing left.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"

text "$work/text"
gpt=(--model gpt:layers=1,heads=1,width=8,context=8 --data "text:$work/text" --batch-size 8)

# no_crash WHAT: $code is no signal's, and when the run failed, stderr names the limit
no_crash() {
  [ "$code" -lt 128 ] || { fail "$1: exit $code"; cat "$work/stderr"; }
  [ "$code" = 0 ] || grep -q "$2" "$work/stderr" || { fail "$1: message lacks '$2'"; cat "$work/stderr"; }
}

# Open files: from too few to start anything to just enough
for transport in shm tcp; do
  counts="4 6 8 9 10 12 16 20"
  [ $transport = shm ] || counts="8 12 24 40"
  for files in $counts; do
    # where the libraries themselves cannot be opened, the program never starts
    (ulimit -n $files && exec "$lockstep" --version) >/dev/null 2>&1 || continue
    (ulimit -n $files && exec "$lockstep" train "${gpt[@]}" --steps 1 --ranks 2 --transport $transport) \
      >/dev/null 2>"$work/stderr"
    code=$?
    # Error 24 is what the dynamic loader calls it, where not even the libraries can be opened
    no_crash "ulimit -n $files over $transport" 'open files\|Error 24'
  done
done
(ulimit -n 64 && exec "$lockstep" train "${gpt[@]}" --steps 1 --ranks 2 --transport tcp) >/dev/null 2>"$work/stderr" ||
  { fail "64 open files are enough for 2 ranks over tcp"; cat "$work/stderr"; }

# More ranks than open files: told before memory is taken for them
(ulimit -n 256 && RANK=0 WORLD_SIZE=1000000 MASTER_ADDR=127.0.0.1 MASTER_PORT=$(free_port) LOCKSTEP_TIMEOUT=1 \
  exec timeout 20 "$lockstep" train "${gpt[@]}" --batch-size 90000 --steps 1) >/dev/null 2>"$work/stderr"
code=$?
[ $code = 1 ] && grep -q '1000000 ranks wants .* open files' "$work/stderr" ||
  { fail "a million ranks: exit $code"; cat "$work/stderr"; }

# A rank whose forward gets no memory: the others end at once, with its reason
if has_tcp && ! nm -D "$lockstep" | grep -qE '__(asan|tsan)_init'; then
  fashion "$work/images" 2000 20
  port=$(free_port)
  for rank in 0 1; do
    (
      [ $rank = 0 ] || ulimit -d 220000
      RANK=$rank WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port exec timeout 60 "$lockstep" train \
        --model mlp:784,1,65536 --data "idx:$work/images" --batch-size 2000 --steps 2 --oversubscribe-memory
    ) >/dev/null 2>"$work/rank$rank" &
    pids[rank]=$!
  done
  for rank in 0 1; do
    wait "${pids[rank]}"
    codes[rank]=$?
  done
  [ "${codes[*]}" = "4 1" ] || fail "no memory for a forward: exit ${codes[*]}, want 4 1"
  grep -q 'rank 1 of 2 cannot go on: cpu: no memory for 262144000 bytes' "$work/rank0" || { fail "no memory for a forward: rank 0"; cat "$work/rank0"; }
  grep -q 'train: cpu: no memory for 262144000 bytes' "$work/rank1" || { fail "no memory for a forward: rank 1"; cat "$work/rank1"; }
fi

# Files that may not grow: 1 KiB ends the metrics, 4 KiB the model
for ranks in 1 2; do
  for blocks in 0 1 4; do
    # the limit would hold for a file of messages, too
    (ulimit -f $blocks && exec "$lockstep" train "${gpt[@]}" --steps 10 --ranks $ranks --transport tcp \
      --out "$work/small" --overwrite) 2>&1 >/dev/null | cat >"$work/stderr"
    code=${PIPESTATUS[0]}
    [ $code = 3 ] || { fail "ulimit -f $blocks with $ranks ranks: exit $code, want 3"; cat "$work/stderr"; }
    grep -q "$work/small/.*File too large" "$work/stderr" || { fail "ulimit -f $blocks: file not named"; cat "$work/stderr"; }
    [ ! -e "$work/small/summary.json" ] || fail "ulimit -f $blocks: left a summary"
    [ -z "$(find "$work/small" -name '*.tmp*' -o -name '*.part')" ] || fail "ulimit -f $blocks: left a temporary file"
  done
done

(ulimit -f 4 && exec "$lockstep" train "${gpt[@]}" --steps 1 --ranks 2) 2>&1 >/dev/null | cat >"$work/stderr"
code=${PIPESTATUS[0]}
no_crash "ulimit -f 4 over shm" 'cannot reserve shared memory.*File too large'

# A trace that cannot be written is told before the first step; when the disk fills later, the model is there
for ranks in 1 2; do
  "$lockstep" train "${gpt[@]}" --steps 1000000 --ranks $ranks --trace /proc/nowhere --out "$work/traced" \
    >/dev/null 2>"$work/stderr"
  code=$?
  [ $code = 3 ] && grep -q -- '--trace /proc/nowhere' "$work/stderr" || { fail "--trace: exit $code"; cat "$work/stderr"; }
  [ ! -s "$work/traced/metrics.jsonl" ] || fail "--trace: trained before it was told"
  "$lockstep" train "${gpt[@]}" --steps 1 --ranks $ranks --trace /dev/full --out "$work/traced$ranks" \
    >/dev/null 2>"$work/stderr"
  code=$?
  [ $code = 3 ] && grep -q -- '--trace /dev/full' "$work/stderr" || { fail "full --trace: exit $code"; cat "$work/stderr"; }
  [ -s "$work/traced$ranks/model.safetensors" ] || fail "full --trace: the model is lost"
done

# stdout that takes nothing
for format in text json; do
  for ranks in 1 2; do
    "$lockstep" train "${gpt[@]}" --steps 2 --ranks $ranks --format $format >/dev/full 2>"$work/stderr"
    code=$?
    [ $code != 0 ] || fail "--format $format to a full disk with $ranks ranks: exit 0"
    [ $code -lt 128 ] && grep -q 'output\|stdout' "$work/stderr" ||
      { fail "--format $format to a full disk: exit $code"; cat "$work/stderr"; }
  done
done

# Closed standard files: no file of ours takes their numbers
for ranks in 1 2; do
  "$lockstep" train "${gpt[@]}" --steps 2 --ranks $ranks --out "$work/closed$ranks" <&- >&- 2>&- || fail "closed files: exit $?"
  [ "$(wc -l <"$work/closed$ranks/metrics.jsonl")" = 2 ] || fail "closed files: metrics.jsonl has other lines"
  grep -qv '^{' "$work/closed$ranks/metrics.jsonl" && fail "closed files: foreign text in metrics.jsonl"
done

# The same folder twice at once: the second is refused, the first is unharmed
"$lockstep" train "${gpt[@]}" --steps 100000 --out "$work/twice" >/dev/null 2>&1 &
first=$!
for ((i = 0; i < 100; i++)); do [ -s "$work/twice/metrics.jsonl" ] && break; sleep 0.1; done
: >"$work/twice/model.safetensors.tmp-1-0" # as a killed run leaves it
others=(model.safetensors.tmp- model.safetensors.tmp-2 model.safetensors.tmp-1-2-3) # and as none does
(cd "$work/twice" && touch -- "${others[@]}")
for ranks in 1 2; do
  "$lockstep" train "${gpt[@]}" --steps 2 --ranks $ranks --out "$work/twice" --overwrite >/dev/null 2>"$work/stderr"
  code=$?
  [ $code = 2 ] && grep -q "$work/twice: another run is writing there" "$work/stderr" ||
    { fail "the same folder twice: exit $code"; cat "$work/stderr"; }
done
(sleep 0.5; kill -9 $first) & # a restart that comes too early waits a moment
"$lockstep" train "${gpt[@]}" --steps 2 --ranks 2 --out "$work/twice" >/dev/null 2>&1 || fail "the lock outlived its run"
wait
[ ! -e "$work/twice/model.safetensors.tmp-1-0" ] || fail "leftovers of a killed run are still there"
for other in "${others[@]}"; do [ -e "$work/twice/$other" ] || fail "$other is gone"; done
finish
