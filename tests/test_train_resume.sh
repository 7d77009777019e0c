#!/usr/bin/env bash
# A run that goes on from a checkpoint gets the bits of one that was never interrupted, at another number of ranks
# too; what does not fit is refused by name; broken checkpoints are passed over; a full disk costs no earlier one.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"

fashion "$work/data" 400 100
text "$work/text"
gpt=(--model "gpt:layers=2,heads=2,width=32,context=32,dropout=0.1" --data "text:$work/text" --optimizer adamw
  --batch-size 8 --clip 1 --weight-decay 0.1 --schedule cosine --warmup 5 --steps 24 --eval-every 8 --shards 8)
cnn=(--model cnn --data "idx:$work/data" --optimizer sgd --momentum 0.9 --lr 0.05 --batch-size 16 --shards 8
  --epochs 1)
resnet=(--model resnet18:channels=1,width=4 --data "idx:$work/data" --optimizer adam --batch-size 16 --shards 8
  --steps 8)

# train OUT RANKS ARGS...: exits as the run; output in OUT.log
train() {
  local out=$1 ranks=$2
  shift 2
  "$lockstep" train --out "$out" --ranks "$ranks" "$@" >"$out.log" 2>&1 </dev/null
}
must() { train "$@" || { fail "train $*: exit $?"; cat "$1.log"; }; }

# refused CODE PATTERN OUT RANKS ARGS...
refused() {
  local want=$1 pattern=$2 code=0
  shift 2
  train "$@" || code=$?
  [ $code = "$want" ] || fail "$*: exit $code, want $want"
  grep -q -- "$pattern" "$1.log" || { fail "$*: message lacks '$pattern'"; cat "$1.log"; }
}
steps_of() { grep -o '^{"step":[0-9]*' "$1/metrics.jsonl" | cut -d: -f2 | tr '\n' ' '; }
val_loss() { grep -o '"val_loss":[0-9.]*' "$1/summary.json" | cut -d: -f2; }

# same NAME STEP RANKS...: $name-whole was never interrupted; $name-half was saved at 4 ranks
same() {
  local name=$1 step=$2 ranks out
  shift 2
  for ranks in "$@"; do
    out=$work/$name-$ranks
    mkdir -p "$out/checkpoints"
    cp -r "$work/$name-half/checkpoints/step-$step" "$out/checkpoints"
    cp "$work/$name-half/metrics.jsonl" "$out"
    must "$out" "$ranks" "${args[@]}" --resume auto
    grep -q "going on from .*step-$step" "$out.log" || fail "$name at $ranks ranks did not go on"
    [ "$(steps_of "$out")" = "$(steps_of "$work/$name-whole")" ] || fail "$name at $ranks: steps $(steps_of "$out")"
    if [ "$ranks" = 3 ]; then # no power of two: the sums are made in another order
      awk -v a="$(val_loss "$out")" -v b="$(val_loss "$work/$name-whole")" \
        'BEGIN { d = a > b ? a - b : b - a; exit !(b > 0 && d < 1e-3 * b) }' || fail "$name at 3 ranks: val_loss $(val_loss "$out")"
    else
      [ "$(hash_of "$out")" = "$(hash_of "$work/$name-whole")" ] || fail "$name at $ranks ranks: other bits"
    fi
    echo "$name: saved by 4 ranks, gone on with $ranks: $(hash_of "$out")"
  done
}

# --- the same bits --------------------------------------------------------------------------------
for name in gpt cnn resnet; do
  declare -n these=$name
  case $name in gpt) every=10 ;; cnn) every=7 ;; resnet) every=3 ;; esac
  must "$work/$name-whole" 2 "${these[@]}"
  must "$work/$name-half" 4 "${these[@]}" --checkpoint-every $every
  [ "$(hash_of "$work/$name-half")" = "$(hash_of "$work/$name-whole")" ] || fail "$name: saving changed the bits"
done
args=("${gpt[@]}")
same gpt 00000010 1 2 3 8
args=("${cnn[@]}")
same cnn 00000014 1 8
args=("${resnet[@]}")
same resnet 00000003 2

# --- which checkpoints there are ------------------------------------------------------------------
must "$work/kept" 2 "${gpt[@]}" --checkpoint-every 3 --keep 2 --keep-best --sync-checkpoints
[ "$(ls "$work/kept/checkpoints" | tr '\n' ' ')" = "best latest step-00000021 step-00000024 " ] ||
  fail "--keep 2 --keep-best left $(ls "$work/kept/checkpoints" | tr '\n' ' ')"
[ "$(readlink "$work/kept/checkpoints/latest")" = step-00000024 ] || fail "latest is $(readlink "$work/kept/checkpoints/latest")"

# again on a complete run: nothing is trained, the result is the same
before=$(hash_of "$work/kept")
must "$work/kept" 1 "${gpt[@]}" --resume auto
[ "$(hash_of "$work/kept")" = "$before" ] || fail "resuming a complete run changed it"
! grep -q 'missing\|cut off' "$work/kept.log" || fail "metrics that fit: $(cat "$work/kept.log")"

# --- back to an earlier step ----------------------------------------------------------------------
# later ones are of a run given up: they are neither gone on from nor counted by --keep
back=$work/back
cp -r "$work/gpt-half" "$back"
rm "$back/summary.json"
must "$back" 2 "${gpt[@]}" --resume "$back/checkpoints/step-00000010" --checkpoint-every 7 --keep 2
grep -q '1 checkpoint of later steps in .* now called old-step-N' "$back.log" || fail "no word of step 20"
[ "$(ls "$back/checkpoints" | tr '\n' ' ')" = "latest old-step-00000020 step-00000014 step-00000021 " ] ||
  fail "going back left $(ls "$back/checkpoints" | tr '\n' ' ')"
[ "$(hash_of "$back")" = "$(hash_of "$work/gpt-whole")" ] || fail "going back: other bits"
grep -q 'metrics.jsonl went on to step 24: what is behind step 10 is cut off' "$back.log" || fail "no word of cut metrics: $(cat "$back.log")"

# metrics that end too early, or are not there; a line that is not whole is where they end
saved=$work/gpt-half/checkpoints/step-00000010
mkdir "$work/early"
{ head -n 4 "$work/gpt-half/metrics.jsonl"; echo '{"step":5,"loss":'; sed -n 6p "$work/gpt-half/metrics.jsonl"; } >"$work/early/metrics.jsonl"
must "$work/early" 1 "${gpt[@]}" --resume "$saved"
grep -q 'metrics.jsonl: what is behind step 4 is cut off: it is not whole' "$work/early.log" || fail "no word of a half line: $(cat "$work/early.log")"
grep -q 'metrics.jsonl: steps 5 to 10 are missing' "$work/early.log" || fail "no word of missing steps: $(cat "$work/early.log")"
[ "$(steps_of "$work/early")" = "1 2 3 4 $(seq -s ' ' 11 24) " ] || fail "early: steps $(steps_of "$work/early")"
must "$work/elsewhere" 1 "${gpt[@]}" --resume "$saved" --steps 11
grep -q 'metrics.jsonl: steps 1 to 10 are missing' "$work/elsewhere.log" || fail "no word of missing steps: $(cat "$work/elsewhere.log")"

# --- what is passed over --------------------------------------------------------------------------
broken=$work/broken
cp -r "$work/gpt-half" "$broken"
printf 'x' | dd of="$broken/checkpoints/step-00000020/optimizer.safetensors" bs=1 seek=5000 conv=notrunc 2>/dev/null
mkdir "$broken/checkpoints/step-00000022" "$broken/checkpoints/.step-00000023.0123456789ab"
echo half >"$broken/checkpoints/.step-00000023.0123456789ab/model.safetensors"
must "$broken" 2 "${gpt[@]}" --resume auto
grep -q 'step-00000020 is passed over: .*optimizer.safetensors: bytes .* checksum' "$broken.log" || fail "step 20 was not passed over"
grep -q 'step-00000022 is passed over: .*manifest.json: cannot open' "$broken.log" || fail "step 22 was not passed over"
[ "$(hash_of "$broken")" = "$(hash_of "$work/gpt-whole")" ] || fail "passing over: other bits"
[ ! -e "$broken/checkpoints/.step-00000023.0123456789ab" ] || fail "a leftover was not removed"
refused 3 'step-00000020/optimizer.safetensors: bytes' "$broken" 1 "${gpt[@]}" --resume "$broken/checkpoints/step-00000020"

# --- what is refused ------------------------------------------------------------------------------
half=$work/gpt-half
refused 2 'holds a complete run' "$half" 2 "${gpt[@]}" --checkpoint-every 10
rm "$half/summary.json"
refused 2 'holds 2 checkpoints of an earlier run' "$half" 2 "${gpt[@]}" --checkpoint-every 10
refused 2 'saved with --batch-size 8, this run has 16' "$half" 2 "${gpt[@]}" --batch-size 16 --resume auto
refused 2 'saved with --optimizer adamw, this run has sgd' "$half" 2 "${gpt[@]}" --optimizer sgd --resume auto
refused 2 'saved with --model .*width=32.*, this run has .*width=64' "$half" 2 "${gpt[@]}" --resume auto \
  --model "gpt:layers=2,heads=2,width=64,context=32,dropout=0.1"
head -c 90000 "$work/text" >"$work/other"
refused 2 'saved with --data .*, this run has' "$half" 2 "${gpt[@]}" --data "text:$work/other" --resume auto
refused 2 'saved with --seed 1, this run has 2' "$half" 2 "${gpt[@]}" --seed 2 --resume auto
refused 2 'this run ends after 12' "$half" 2 "${gpt[@]}" --steps 12 --resume auto
refused 3 'no whole checkpoint' "$half" 2 "${gpt[@]}" --resume "$work"
refused 3 "$work/nowhere: cannot look into it: No such file" "$half" 2 "${gpt[@]}" --resume "$work/nowhere"
refused 3 "holds no whole checkpoint; those of a run lie in its folder checkpoints: --resume $half/checkpoints" \
  "$half" 2 "${gpt[@]}" --resume "$half"
must "$half" 2 "${gpt[@]}" --lr 0.002 --resume auto
grep -q 'saved with --lr 0.001.*, this run has 0.002' "$half.log" || fail "another --lr was not told"

# --- agreed stop ----------------------------------------------------------------------------------
# by hand, as a cluster does it: one rank is told, all stop after the same step, with a checkpoint and code 0
stop=$work/stop
long=("${gpt[@]}" --steps 3000 --schedule constant)
if has_tcp; then
  port=$(free_port)
  for rank in 0 1; do
    RANK=$rank WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "$lockstep" train "${long[@]}" --out "$stop" \
      --checkpoint-dir "$stop/c" >"$stop.$rank" 2>&1 &
    pids[rank]=$!
  done
  for ((i = 0; i < 600; i++)); do
    [ ! -s "$stop/metrics.jsonl" ] || [ "$(wc -l <"$stop/metrics.jsonl")" -lt 5 ] || break
    sleep 0.02
  done
  kill -TERM "${pids[1]}"
  for rank in 0 1; do wait "${pids[rank]}" || fail "rank $rank of a stopped run: exit $?"; done
  grep -q 'stopped on request after step' "$stop.0" || { fail "no word of the stop"; cat "$stop.0"; }
  [ ! -e "$stop/summary.json" ] || fail "a stopped run claims to be complete"
  at=$(readlink "$stop/c/latest" | tr -dc 0-9 | sed 's/^0*//')
  [ "$at" = "$(steps_of "$stop" | wc -w)" ] || fail "stopped after $(steps_of "$stop" | wc -w) steps, saved at $at"
  must "$stop" 1 "${long[@]}" --steps $((at + 7)) --checkpoint-dir "$stop/c" --resume auto
  must "$work/unstopped" 2 "${long[@]}" --steps $((at + 7))
  [ "$(hash_of "$stop")" = "$(hash_of "$work/unstopped")" ] || fail "stopped at $at and gone on: other bits"
fi

# the same through the launcher
rm -rf "$stop"
"$lockstep" train "${long[@]}" --ranks 2 --out "$stop" --checkpoint-dir "$stop/c" >"$stop.log" 2>&1 &
job=$!
for ((i = 0; i < 600; i++)); do
  [ ! -s "$stop/metrics.jsonl" ] || [ "$(wc -l <"$stop/metrics.jsonl")" -lt 5 ] || break
  sleep 0.02
done
kill -TERM $job
wait $job || { fail "a launcher told to stop: exit $?"; cat "$stop.log"; }
[ -d "$stop/c/latest/" ] && [ ! -e "$stop/summary.json" ] || fail "a launcher told to stop: no checkpoint, or a summary"

# --- a full disk ----------------------------------------------------------------------------------
mkdir "$work/full"
if mount -t tmpfs -o size=1000k none "$work/full" 2>/dev/null; then
  code=0
  train "$work/enospc" 2 "${gpt[@]}" --checkpoint-every 5 --checkpoint-dir "$work/full/c" || code=$?
  [ $code = 3 ] || fail "full disk: exit $code, want 3"
  grep -q 'step 15 could not be saved: .*No space left on device' "$work/enospc.log" || { fail "full disk: no reason"; cat "$work/enospc.log"; }
  [ "$(ls -A "$work/full/c" | tr '\n' ' ')" = "latest step-00000005 step-00000010 " ] ||
    fail "full disk left $(ls -A "$work/full/c" | tr '\n' ' ')"
  [ "$(hash_of "$work/enospc")" = "$(hash_of "$work/gpt-whole")" ] || fail "full disk: other bits"
  umount "$work/full"
else
  echo "no tmpfs can be mounted: a full disk is not tried"
fi
finish
