#!/usr/bin/env bash
# The same bits in every run with the same number of threads, for every model, and with two ranks too.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"

fashion "$work/data" 64 16
text "$work/text"
images=(--data "idx:$work/data" --lr 0.05 --steps 3)
sgd=(--optimizer sgd --momentum 0.9)

# twice NAME ARGS...: two runs of two threads
twice() {
  local name=$1 want='' hash
  shift
  for run in 1 2; do
    "$lockstep" train "$@" --threads 2 --out "$work/$name-$run" >"$work/log" 2>&1 || { fail "$name" && cat "$work/log"; }
    hash=$(hash_of "$work/$name-$run")
    : "${want:=$hash}"
    [[ -n $hash && $hash = "$want" ]] || fail "$name, run $run: $hash, want $want"
  done
  echo "$name: $want"
}

# Large enough for kernels to be cut into two parts: 16384 elements.
twice mlp --model mlp:784,300,10 --batch-size 64 "${images[@]}" --optimizer adamw
twice cnn --model cnn --batch-size 16 "${images[@]}" "${sgd[@]}"
twice resnet18 --model resnet18:channels=1,width=8 --batch-size 16 "${images[@]}" "${sgd[@]}"
twice gpt --model "gpt:layers=2,heads=4,width=64,context=64,dropout=0.1" --data "text:$work/text" \
  --optimizer adamw --lr 1e-3 --batch-size 8 --clip 1 --steps 3
twice mlp-ranks --model mlp:784,300,10 --batch-size 64 --ranks 2 "${images[@]}" "${sgd[@]}"
finish
