#!/usr/bin/env bash
# --compress: each hook trains about as well as none, with equal weights on all ranks (the drift watch looks at
# every step), also with batch norm and inline; wrong texts are refused before anything starts.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
fashion "$work/data" 2000 500

# train NAME OPTIONS...
train() {
  "$lockstep" train --data "idx:$work/data" --batch-size 50 --watch 1 --out "$work/$1" "${@:2}" \
    >"$work/$1.out" 2>"$work/$1.err" || fail "$1: $(cat "$work/$1.err")"
}
accuracy() { sed -n 's/.*"test_accuracy":\([0-9.]*\).*/\1/p' "$work/$1/summary.json"; }
close() {
  awk "BEGIN { exit !($(accuracy "$1") > $(accuracy none) - $2) }" ||
    fail "$1: accuracy $(accuracy "$1"), without compression $(accuracy none)"
}
mlp=(--model mlp:784,64,10 --epochs 4 --ranks 2)
train none "${mlp[@]}"
awk "BEGIN { exit !($(accuracy none) > 0.7) }" || fail "none: accuracy $(accuracy none)"
train bf16 "${mlp[@]}" --compress bf16
close bf16 0.03
train f16 "${mlp[@]}" --compress f16
close f16 0.03
train topk "${mlp[@]}" --compress topk:ratio=0.05
close topk 0.05
train powersgd "${mlp[@]}" --compress powersgd:rank=4,start=5
close powersgd 0.05
[ "$(hash_of "$work/bf16")" != "$(hash_of "$work/none")" ] || fail "bf16: nothing was rounded"
grep -q '"compress":"topk:ratio=0.05"' "$work/topk/summary.json" || fail "summary.json does not say --compress"

# bits depend on neither the progress nor the transport
train inline "${mlp[@]}" --compress powersgd:rank=4,start=5 --progress inline --transport tcp
[ "$(hash_of "$work/inline")" = "$(hash_of "$work/powersgd")" ] || fail "inline, tcp: other bits"
# batch statistics are not compressed: with topk they would be mostly zeros
train resnet --model resnet18:channels=1,side=28,width=4 --steps 3 --ranks 3 --compress topk:ratio=0.01
train one --model mlp:784,64,10 --steps 3 --compress bf16

# a run that goes on from a checkpoint has the bits of one that was never stopped
for hook in powersgd:rank=2,start=3 topk:ratio=0.02; do
  go=(--model mlp:784,64,10 --ranks 2 --compress "$hook" --checkpoint-dir "$work/points-$hook")
  train "whole-$hook" --model mlp:784,64,10 --ranks 2 --compress $hook --steps 12
  train "first-$hook" "${go[@]}" --steps 6 --checkpoint-every 6
  train "second-$hook" "${go[@]}" --steps 12 --resume auto
  [ "$(hash_of "$work/whole-$hook")" = "$(hash_of "$work/second-$hook")" ] || fail "$hook: other bits after going on"
done
"$lockstep" train --data "idx:$work/data" --batch-size 50 --steps 12 --model mlp:784,64,10 --ranks 2 --resume auto \
  --checkpoint-dir "$work/points-topk:ratio=0.02" >"$work/out" 2>"$work/err" && fail "went on without its hook"
grep -q -- '--compress' "$work/err" || fail "without its hook: $(cat "$work/err")"

"$lockstep" train --model cnn --data "idx:$work/data" --ranks 2 --compress fp8 >"$work/out" 2>"$work/err"
[ $? = 2 ] && grep -q -- '--compress: hook fp8: unknown kind' "$work/err" || fail "fp8: $(cat "$work/err")"
want_nothing_left compress
finish
