#!/usr/bin/env bash
# --dtype bf16 from the outside: the same bits at any number of ranks and run after run, what the files say, and
# f32 with one line where bf16 is not to be had.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"

text "$work/text"
fashion "$work/data" 200 50
gpt=(--model "gpt:layers=2,heads=2,width=32,context=32" --data "text:$work/text" --batch-size 8 --steps 10
  --optimizer adamw --lr 1e-3 --clip 1 --eval-every 5)
mlp=(--model mlp:784,32,10 --data "idx:$work/data" --batch-size 24 --steps 10 --optimizer sgd --lr 0.05)

# run NAME ARGS...: trains into $work/NAME
run() {
  local name=$1
  shift
  "$lockstep" train "$@" --out "$work/$name" >"$work/$name.out" 2>"$work/$name.err" ||
    { fail "$name: $(cat "$work/$name.err")"; }
}
dtype_of() { grep -o '"dtype":"[a-z0-9]*"' "$1/summary.json" | cut -d'"' -f4; }

# Without bf16: f32's bits, one line that names what is missing, and the summary says what was computed.
run f32 "${gpt[@]}" --dtype f32
LOCKSTEP_CPU=avx2 run fallback "${gpt[@]}" --dtype bf16
[ "$(dtype_of "$work/f32")" = f32 ] || fail "f32: dtype $(dtype_of "$work/f32")"
[ "$(dtype_of "$work/fallback")" = f32 ] || fail "fallback: dtype $(dtype_of "$work/fallback")"
[ "$(grep -c -- '--dtype bf16 needs .*AVX-512.*computing in f32' "$work/fallback.err")" = 1 ] ||
  fail "fallback: $(cat "$work/fallback.err")"
LOCKSTEP_CPU=avx2 "$lockstep" bench train --model mlp:8,4 --steps 1 --dtype bf16 --format json >"$work/bench" 2>"$work/bench.err"
grep -q '"dtype":"f32"' "$work/bench" || fail "bench, fallback: $(cat "$work/bench")"
[ "$(wc -l <"$work/bench.err")" = 1 ] || fail "bench, fallback: $(cat "$work/bench.err")"
"$lockstep" train "${mlp[@]}" --dtype f16 >"$work/out" 2>"$work/err"
code=$?
[ $code = 2 ] || fail "--dtype f16: exit $code"

"$lockstep" bench train --model mlp:8,4 --steps 1 --dtype bf16 --format json >"$work/bench" 2>"$work/bench.err"
if [ -s "$work/bench.err" ]; then
  echo "the rest needs bf16: $(cat "$work/bench.err")"
  finish
fi
grep -q '"dtype":"bf16"' "$work/bench" || fail "bench: $(cat "$work/bench")"

# The same bits twice, on one, two and four ranks; other bits than f32's.
for name in gpt mlp; do
  declare -n arguments=$name
  run "$name-1" "${arguments[@]}" --dtype bf16 --shards 4
  run "$name-again" "${arguments[@]}" --dtype bf16 --shards 4
  run "$name-2" "${arguments[@]}" --dtype bf16 --shards 4 --ranks 2
  run "$name-4" "${arguments[@]}" --dtype bf16 --shards 4 --ranks 4
  run "$name-f32" "${arguments[@]}" --shards 4
  want=$(hash_of "$work/$name-1")
  for other in again 2 4; do
    [[ -n $want && $(hash_of "$work/$name-$other") = "$want" ]] || fail "$name, $other: $(hash_of "$work/$name-$other"), want $want"
  done
  [ "$(hash_of "$work/$name-f32")" != "$want" ] || fail "$name: f32 has the bits of bf16"
  [ "$(dtype_of "$work/$name-1")" = bf16 ] || fail "$name: dtype $(dtype_of "$work/$name-1")"
done
# The loss at the end is that of f32 within 2 %.
loss_of() { sed 's/.*"val_loss":\([0-9.]*\).*/\1/' "$work/$1/summary.json"; }
awk "BEGIN { d = $(loss_of gpt-1) / $(loss_of gpt-f32); exit !(d > 0.98 && d < 1.02) }" ||
  fail "val_loss $(loss_of gpt-1), in f32 $(loss_of gpt-f32)"
run gpt-recompute "${gpt[@]}" --dtype bf16 --shards 4 --recompute
[ "$(hash_of "$work/gpt-recompute")" = "$(hash_of "$work/gpt-1")" ] || fail "--recompute changes the bits"

# Threads inside a product choose their own order, the same one every time.
run threads-1 "${gpt[@]}" --dtype bf16 --threads 2
run threads-2 "${gpt[@]}" --dtype bf16 --threads 2
[ "$(hash_of "$work/threads-1")" = "$(hash_of "$work/threads-2")" ] || fail "--threads 2: other bits the second time"

# Ranks that compute in different types are told so before the first step.
if has_tcp; then
  port=$(free_port)
  pids=()
  for rank in 0 1; do
    level=avx512
    [ $rank = 0 ] || level=avx2
    LOCKSTEP_CPU=$level RANK=$rank WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port LOCKSTEP_TIMEOUT=60 \
      "$lockstep" train "${gpt[@]}" --dtype bf16 >"$work/log$rank" 2>&1 &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do
    wait "$pid"
    code=$?
    [ $code = 4 ] || fail "different types: exit $code, want 4"
  done
  for rank in 0 1; do
    grep -q 'type computed in (--dtype) differs: bf16 on rank 0, f32 on rank 1' "$work/log$rank" ||
      fail "different types, rank $rank: $(cat "$work/log$rank")"
  done
fi
finish
