#!/usr/bin/env bash
# --strategy dp: the bits of one process with as many shards and of as many ranks, whatever the model; what it says
# about itself; what it refuses.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"

fashion "$work/images" 92 10
text "$work/text"
images=(--data "idx:$work/images" --batch-size 13 --steps 8)

# run OUT ARGS...
run() {
  local out=$work/$1
  shift
  timeout 60 "$lockstep" train "$@" --out "$out" >"$out.log" 2>&1 || { fail "$*: exit $?"; cat "$out.log"; }
}

# same NAME REPLICAS ARGS...
same() {
  local name=$1 n=$2
  shift 2
  run "$name-$n-dp" "$@" --strategy dp --ranks "$n"
  run "$name-$n-one" "$@" --shards "$n"
  echo "$name, $n replicas: $(hash_of "$work/$name-$n-dp")"
  [[ -n $(hash_of "$work/$name-$n-one") && $(hash_of "$work/$name-$n-dp") = "$(hash_of "$work/$name-$n-one")" ]] ||
    fail "$name, $n replicas: $(hash_of "$work/$name-$n-dp"), one process has $(hash_of "$work/$name-$n-one")"
}
same cnn 1 --model cnn "${images[@]}"
same cnn 2 --model cnn "${images[@]}"
same cnn 3 --model cnn "${images[@]}" --optimizer sgd --momentum 0.9 --clip 0.5
same resnet 4 --model resnet18:channels=1,width=4 "${images[@]}" # statistics travel too
same mlp 5 --model mlp:784,24,10 "${images[@]}"                  # the last batch is one sample: four have none
same gpt 4 --model gpt:layers=2,heads=2,width=32,context=32,dropout=0.1 --data "text:$work/text" --batch-size 11 --steps 6
run cnn-ranks --model cnn "${images[@]}" --ranks 2
[ "$(hash_of "$work/cnn-ranks")" = "$(hash_of "$work/cnn-2-dp")" ] || fail "two ranks have other bits than two replicas"

# per step replica 0 sends all parameters to each other replica, and gets as many bytes of gradients
grep -qE '^dp: a step replicated [0-9.]+ ms.* sent 13\.7 MiB and received 13\.7 MiB$' "$work/cnn-ranks.log" && fail "ranks are no replicas"
mib=$(sed -n 's/.*"parameters":\([0-9]*\),.*/\1/p' "$work/cnn-3-dp/summary.json" | awk '{ printf "%.1f", 2 * $1 * 4 / 1048576 }')
grep -qE "^dp: a step replicated [0-9.]+ ms.* sent $mib MiB and received $mib MiB\$" "$work/cnn-3-dp.log" || fail "traffic is not twice $mib: $(cat "$work/cnn-3-dp.log")"
grep -q '"dp":{"replicas":3,"replicate_ms":' "$work/cnn-3-dp/summary.json" || fail "summary: $(cat "$work/cnn-3-dp/summary.json")"

# refused CODE TEXT ARGS...
refused() {
  local code=$1 text=$2 seen
  shift 2
  timeout 60 "$lockstep" train --strategy dp "$@" >"$work/out" 2>"$work/err"
  seen=$?
  [ $seen = "$code" ] && grep -qF -- "$text" "$work/err" || fail "$*: exit $seen, $(cat "$work/err")"
}
refused 2 "--shards 4: --strategy dp has one for each of --ranks 2" --model cnn "${images[@]}" --ranks 2 --shards 4
refused 2 "norm=sync" --model cnn:norm=sync "${images[@]}" --ranks 2
refused 2 "--ranks 300" --model cnn "${images[@]}" --batch-size 400 --ranks 300
"$lockstep" run -n 2 -- "$lockstep" train --strategy dp --model cnn "${images[@]}" --ranks 2 >"$work/out" 2>"$work/err" &&
  fail "dp as a rank of two is accepted"
grep -q -- "--ranks 1 inside of a job of WORLD_SIZE 2" "$work/err" || fail "dp as a rank: $(cat "$work/err")"
finish
