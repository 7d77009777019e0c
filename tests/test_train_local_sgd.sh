#!/usr/bin/env bash
# --local-sgd: trains about as well as reducing each gradient, says when replicas were averaged, goes on from a
# checkpoint to the same bits; wrong use is refused.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
fashion "$work/data" 2000 500

# train NAME OPTIONS...
train() {
  "$lockstep" train --model mlp:784,64,10 --data "idx:$work/data" --batch-size 50 --ranks 2 --out "$work/$1" "${@:2}" \
    >"$work/$1.out" 2>"$work/$1.err" || fail "$1: $(cat "$work/$1.err")"
}
accuracy() { sed -n 's/.*"test_accuracy":\([0-9.]*\).*/\1/p' "$work/$1/summary.json"; }
averaged() { grep '"averaged":true' "$work/$1/metrics.jsonl" | sed 's/{"step":\([0-9]*\).*/\1/' | tr '\n' ' '; }

train none --epochs 4
train local --epochs 4 --local-sgd 8
train post --epochs 4 --local-sgd 8,start=40
for name in local post; do
  awk "BEGIN { exit !($(accuracy $name) > $(accuracy none) - 0.04) }" ||
    fail "$name: accuracy $(accuracy $name), reducing each gradient $(accuracy none)"
done
# an evaluation, after each 40 steps, averages too
[ "$(averaged local)" = "8 16 24 32 40 48 56 64 72 80 88 96 104 112 120 128 136 144 152 160 " ] || fail "local: averaged after $(averaged local)"
grep -c '"averaged"' "$work/post/metrics.jsonl" | grep -qx 120 || fail "post: $(grep -c '"averaged"' "$work/post/metrics.jsonl") local steps, want 120"
grep '"step":8,' "$work/local/metrics.jsonl" | grep -q '"samples":400' || fail "step 8: $(sed -n 8p "$work/local/metrics.jsonl")"
grep -q '"local_sgd":"8,start=40"' "$work/post/summary.json" || fail "summary.json: $(cat "$work/post/summary.json")"

# gone on from a checkpoint; saving one averages, so the other run saves as well
save=(--checkpoint-every 7 --local-sgd 4,start=3)
train whole "${save[@]}" --steps 20 --checkpoint-dir "$work/a"
train first "${save[@]}" --steps 7 --checkpoint-dir "$work/b"
train second "${save[@]}" --steps 20 --checkpoint-dir "$work/b" --resume auto
[ "$(hash_of "$work/whole")" = "$(hash_of "$work/second")" ] || fail "other bits after going on"

# one rank is told to end: all do after the same average, saved, with code 0; also where only saving averages. That
# average was due, so who goes on gets the bits of a run that nobody stopped.
stops() { # NAME OPTIONS...
  local name=$1 port i rank at steps pids=()
  port=$(free_port)
  for rank in 0 1; do
    RANK=$rank WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "$lockstep" train --model mlp:784,64,10 \
      --data "idx:$work/data" --batch-size 50 --steps 100000 --eval-every 100000 --out "$work/$name" --checkpoint-dir "$work/$name/c" \
      "${@:2}" >"$work/$name.$rank" 2>&1 &
    pids[rank]=$!
  done
  for ((i = 0; i < 600; i++)); do
    [ ! -s "$work/$name/metrics.jsonl" ] || [ "$(wc -l <"$work/$name/metrics.jsonl")" -lt 5 ] || break
    sleep 0.02
  done
  kill -TERM "${pids[1]}"
  for rank in 0 1; do wait "${pids[rank]}" || fail "$name: rank $rank told to stop: exit $?: $(tail -3 "$work/$name.$rank")"; done
  at=$(readlink "$work/$name/c/latest" | tr -dc 0-9 | sed 's/^0*//')
  steps=$(wc -l <"$work/$name/metrics.jsonl")
  [ "$at" = "$steps" ] && ((at % 8 == 0)) || fail "$name: stopped after $steps steps, saved at $at"
  [ ! -e "$work/$name/summary.json" ] || fail "$name: a stopped run claims to be complete"
  train "$name" --steps $((at + 13)) --eval-every 100000 --checkpoint-dir "$work/$name/c" --resume auto "${@:2}"
  train "$name-whole" --steps $((at + 13)) --eval-every 100000 --checkpoint-dir "$work/$name-whole/c" "${@:2}"
  [ "$(hash_of "$work/$name")" = "$(hash_of "$work/$name-whole")" ] || fail "$name: stopped at $at and gone on: other bits"
}
if has_tcp; then
  stops stop-average --local-sgd 8
  stops stop-save --local-sgd 20 --checkpoint-every 8
fi

for options in "--local-sgd 0" "--local-sgd 4,begin=2" "--local-sgd x" "--local-sgd 4 --compress bf16" \
  "--local-sgd 4 --loss-scale dynamic"; do
  # shellcheck disable=SC2086
  "$lockstep" train --model cnn --data "idx:$work/data" $options >"$work/out" 2>"$work/err"
  [ $? = 2 ] && grep -q -- '--local-sgd' "$work/err" || fail "$options: $(cat "$work/err")"
done
want_nothing_left local
finish
