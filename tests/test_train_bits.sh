#!/usr/bin/env bash
# The same bits at any number of ranks: shm and tcp, ranks started by the launcher and by hand.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"

fashion "$work/data" 400 100
text "$work/text"
cnn=(--model cnn --data "idx:$work/data" --optimizer sgd --momentum 0.9 --lr 0.05 --batch-size 16)
gpt=(--model "gpt:layers=2,heads=2,width=32,context=32,dropout=0.1" --data "text:$work/text"
  --optimizer adamw --lr 1e-3 --batch-size 8 --clip 1 --weight-decay 0.1 --schedule cosine --warmup 5)
resnet=(--model resnet18:channels=1,width=4 --data "idx:$work/data" --optimizer sgd --momentum 0.9
  --lr 0.05 --batch-size 16)
mlp=(--model "mlp:784,32,10" --data "idx:$work/data" --optimizer adam --batch-size 24)

# by_hand OUT RANKS ARGS...: ranks as separate processes that meet over tcp
by_hand() {
  local out=$1 ranks=$2 port rank code=0
  shift 2
  port=$(free_port)
  local pids=()
  for ((rank = 0; rank < ranks; rank++)); do
    RANK=$rank WORLD_SIZE=$ranks MASTER_ADDR=127.0.0.1 MASTER_PORT=$port LOCKSTEP_TIMEOUT=60 \
      "$lockstep" train "$@" --out "$out" >"$out.rank$rank.log" 2>&1 &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || code=$?; done
  [ $code = 0 ] || { fail "by hand, $ranks ranks: exit $code"; cat "$out".rank*.log; }
}

# compare NAME STEPS SHARDS "RANKS..." ARGS...
compare() {
  local name=$1 steps=$2 shards=$3 ranks_list=$4 want=
  shift 4
  local ranks transport hash
  for ranks in $ranks_list; do
    for transport in "${transports[@]}"; do
      if [ "$ranks" = 1 ] && [ "$transport" != shm ]; then continue; fi
      local out=$work/$name-$ranks-$transport
      if [ "$transport" = hand ]; then
        by_hand "$out" "$ranks" "$@" --steps "$steps" --shards "$shards"
      else
        "$lockstep" train "$@" --steps "$steps" --shards "$shards" --ranks "$ranks" \
          --transport "$transport" --out "$out" >"$out.log" 2>&1 || { fail "$name $ranks $transport"; cat "$out.log"; }
      fi
      hash=$(hash_of "$out")
      : "${want:=$hash}"
      [[ -n $hash && $hash = "$want" ]] || fail "$name: $ranks ranks over $transport: $hash, want $want"
      echo "$name: $shards shards, $ranks ranks over $transport: $hash"
    done
  done
}

transports=(shm)
if has_tcp; then transports+=(tcp hand); else echo "tcp is not built in: not compared"; fi
compare cnn 12 4 "1 2 4" "${cnn[@]}"
compare gpt 20 4 "1 2 4" "${gpt[@]}"
# statistics of batch norm are reduced too
compare resnet 6 4 "1 2" "${resnet[@]}"
compare cnn-inline 6 4 "1 2" "${cnn[@]}" --progress inline
# 6 shards: 3 ranks of 2, 6 of 1; the last batch of an epoch is short (400 = 16 * 24 + 16)
compare mlp 34 6 "3 6" "${mlp[@]}"
# a last batch smaller than the shards leaves some shards, and one rank, without data (401 % 100 = 1)
fashion "$work/odd" 401 10
compare empty 10 4 "1 2 4" --model mlp:784,16,10 --data "idx:$work/odd" --batch-size 100 --lr 0.01
# metrics are equal as well: the losses of every step
cut -d, -f1-3 "$work/gpt-1-shm/metrics.jsonl" >"$work/one"
cut -d, -f1-3 "$work/gpt-4-${transports[-1]}/metrics.jsonl" >"$work/four"
# where a request breaks the promise, it is told, once
"$lockstep" train --model mlp:784,16,10 --data "idx:$work/odd" --steps 2 --shards 4 --ranks 3 >"$work/told" 2>&1 ||
  fail "4 shards on 3 ranks: $(cat "$work/told")"
[ "$(grep -c '4 shards on 3 ranks: .*bits are not those of other numbers of ranks' "$work/told")" = 1 ] ||
  fail "4 shards on 3 ranks: not told once: $(cat "$work/told")"
grep -q 'bits are not' "$work"/*.log && fail "told where the promise holds"
cmp "$work/one" "$work/four" || fail "losses in metrics.jsonl differ between 1 and 4 ranks"
finish
