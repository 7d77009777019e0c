#!/usr/bin/env bash
# --loss-scale: in f32 a power of two changes no bit; in f16 it saves small gradients; where it is too large all ranks
# leave the update out and scale less, and metrics.jsonl says so.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
fashion "$work/data" 400 100

# train NAME OPTIONS...
train() {
  "$lockstep" train --data "idx:$work/data" --batch-size 40 --steps 6 --watch 1 --out "$work/$1" "${@:2}" \
    >"$work/$1.out" 2>"$work/$1.err" || fail "$1: $(cat "$work/$1.err")"
}
same() { [ "$(hash_of "$work/$1")" = "$(hash_of "$work/$2")" ] || fail "$1 and $2: other weights"; }
text "$work/text"
for ranks in 1 2; do
  train plain$ranks --model cnn --ranks $ranks
  train scaled$ranks --model cnn --ranks $ranks --loss-scale 1024
  same plain$ranks scaled$ranks
  sed 's/"timing":{[^}]*},*//; s/,*"loss_scale":[0-9.]*//; s/"[a-z]*_ms":[0-9.e-]*,*//g' "$work/scaled$ranks/metrics.jsonl" >"$work/a"
  sed 's/"timing":{[^}]*},*//; s/"[a-z]*_ms":[0-9.e-]*,*//g' "$work/plain$ranks/metrics.jsonl" >"$work/b"
  [ "$(sed 's/,}/}/' "$work/a")" = "$(sed 's/,}/}/' "$work/b")" ] || fail "$ranks ranks: other losses or norms: $(diff "$work/a" "$work/b")"
done
grep -q '"loss_scale":1024' "$work/scaled2/metrics.jsonl" || fail "metrics.jsonl has no loss_scale"
# batch statistics are not scaled; a fused loss is
train resnet --model resnet18:channels=1,side=28,width=4 --ranks 2
train resnet-scaled --model resnet18:channels=1,side=28,width=4 --ranks 2 --loss-scale dynamic
same resnet resnet-scaled
for name in gpt gpt-scaled; do
  options=()
  [ $name = gpt ] || options=(--loss-scale 256)
  "$lockstep" train --model gpt:layers=1,heads=2,width=16,context=16 --data "text:$work/text" --steps 3 --batch-size 4 \
    --ranks 2 --out "$work/$name" "${options[@]}" >/dev/null 2>"$work/$name.err" || fail "$name: $(cat "$work/$name.err")"
done
same gpt gpt-scaled

# large steps make gradients above 1, and 65536 times that overflows f16: all ranks halve the scale until it fits
train dynamic --model mlp:784,16,10 --ranks 3 --compress f16 --loss-scale dynamic --steps 60 --optimizer sgd --lr 0.3
skipped=$(grep -c '"skipped":true' "$work/dynamic/metrics.jsonl")
[ "$skipped" -ge 1 ] || fail "65536 did not overflow f16: $(tail -1 "$work/dynamic/metrics.jsonl")"
tail -1 "$work/dynamic/metrics.jsonl" | grep -q "\"loss_scale\":$(awk "BEGIN { print 65536 / 2 ^ $skipped }")[,.}]" ||
  fail "$skipped updates left out: $(tail -1 "$work/dynamic/metrics.jsonl")"
tail -1 "$work/dynamic/metrics.jsonl" | grep -q '"skipped"' && fail "the scale never fits"
grep -q "\"skipped_steps\":$skipped" "$work/dynamic/summary.json" || fail "summary.json: $(cat "$work/dynamic/summary.json")"

for options in "--loss-scale big" "--loss-scale -2" "--loss-scale dynamic --compress topk:ratio=0.1"; do
  # shellcheck disable=SC2086
  "$lockstep" train --model cnn --data "idx:$work/data" $options >"$work/out" 2>"$work/err"
  [ $? = 2 ] && grep -q -- '--loss-scale' "$work/err" || fail "$options: $(cat "$work/err")"
done
finish
