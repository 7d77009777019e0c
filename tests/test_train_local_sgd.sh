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

for options in "--local-sgd 0" "--local-sgd 4,begin=2" "--local-sgd x" "--local-sgd 4 --compress bf16" \
  "--local-sgd 4 --loss-scale dynamic"; do
  # shellcheck disable=SC2086
  "$lockstep" train --model cnn --data "idx:$work/data" $options >"$work/out" 2>"$work/err"
  [ $? = 2 ] && grep -q -- '--local-sgd' "$work/err" || fail "$options: $(cat "$work/err")"
done
want_nothing_left local
finish
