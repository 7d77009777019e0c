#!/usr/bin/env bash
# --nonfinite: a gradient that is no number ends all ranks, or is left out by all of them and counted.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
fashion "$work/data" 200 50

# train NAME OPTIONS...: two ranks whose first updates, with a learning rate of 1e6, ruin the weights
train() {
  "$lockstep" train --model mlp:784,16,16,16,16,16,16,16,16,16,10 --data "idx:$work/data" --batch-size 20 --ranks 2 \
    --optimizer sgd --lr 1e6 --out "$work/$1" "${@:2}" >"$work/$1.out" 2>"$work/$1.err"
}

train stop --steps 10
code=$?
[ $code = 3 ] || fail "--nonfinite stop: exit code $code, want 3"
grep -q 'step [0-9]*: .*holds a NaN or an infinity' "$work/stop.err" || fail "stop: no reason: $(cat "$work/stop.err")"
[ ! -e "$work/stop/summary.json" ] || fail "stop: the run counts as complete"

train skip --steps 10 --nonfinite skip
code=$?
[ $code = 0 ] || fail "--nonfinite skip: exit code $code: $(cat "$work/skip.err")"
skipped=$(sed -n 's/.*"skipped_steps": *\([0-9]*\).*/\1/p' "$work/skip/summary.json")
[ "${skipped:-0}" -ge 1 ] && [ "$skipped" -le 9 ] || fail "skip: summary $(cat "$work/skip/summary.json")"
[ "$(grep -c '"skipped": *true' "$work/skip/metrics.jsonl")" = "$skipped" ] || fail "skip: metrics.jsonl does not say $skipped times skipped"
[ "$(grep -c 'is left out' "$work/skip.err")" = 1 ] || fail "skip: not told once: $(cat "$work/skip.err")"

[ "$(tail -n 1 "$work/skip.out")" = "left out: $skipped of 10 updates, because a gradient held a NaN or an infinity" ] ||
  fail "skip: the last line is not how many were left out: $(tail -n 1 "$work/skip.out")"

# the weights are those of the updates that were made
train some --steps $((10 - skipped))
weights() { sed -n 's/.*"weights_xxh64": *"\([0-9a-f]*\)".*/\1/p' "$work/$1/summary.json"; }
[ -n "$(weights some)" ] && [ "$(weights some)" = "$(weights skip)" ] || fail "skipped updates changed weights"

grep -q 'left out' "$work/some.out" && fail "some: says that updates were left out"

train endless --steps 300 --nonfinite skip
code=$?
[ $code = 3 ] || fail "a job that only skips: exit code $code, want 3"
grep -q '100 updates in a row were left out' "$work/endless.err" || fail "endless: $(cat "$work/endless.err")"

# a NaN's sign is nobody's business
grep -h 'val_loss' "$work"/*.out | grep -q 'nan' || fail "no run ends with a val_loss that is a NaN"
grep -n -e '-nan' "$work"/*.out "$work"/*.err && fail "a NaN is printed with a sign"

# a val_loss that is no number is not the best one
train best --steps 6 --nonfinite skip --eval-every 1 --checkpoint-dir "$work/best/c" --keep-best
grep -q '"val_loss": *null' "$work/best/metrics.jsonl" || fail "best: every val_loss is a number"
saved=$(find "$work/best/c" -name 'step-*' | wc -l)
finite=$(grep -c '"val_loss": *[0-9]' "$work/best/metrics.jsonl")
[ "$saved" -ge 1 ] && [ "$saved" -le "$finite" ] || fail "best: $saved saved, $finite times a number"
finish
