#!/usr/bin/env bash
# Ranks started by hand with different settings: every rank names the setting and both values, before any step.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"

text "$work/text"
head -c 99999 "$work/text" >"$work/shorter"
cp "$work/text" "$work/copy"
common=(--model "gpt:layers=1,heads=1,width=8,context=8" --data "text:$work/text" --batch-size 8 --steps 2)

# hand "ARGS OF RANK 0" "ARGS OF RANK 1": both exit codes in $codes, output in $work/log0 and log1
hand() {
  local port rank pids=()
  port=$(free_port)
  for rank in 0 1; do
    # shellcheck disable=SC2086
    RANK=$rank WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port LOCKSTEP_TIMEOUT=60 \
      "$lockstep" train "${common[@]}" ${!rank_arguments[rank]} >"$work/log$rank" 2>&1 &
    pids[rank]=$!
  done
  codes=
  for rank in 0 1; do
    wait "${pids[rank]}"
    codes+="$? "
  done
}
rank_arguments=(first second)

differs() { # PATTERN ARGS0 ARGS1
  local pattern=$1 first=$2 second=$3 rank
  hand
  [ "$codes" = "4 4 " ] || fail "[$first] [$second]: exits $codes, want 4 4"
  for rank in 0 1; do
    grep -q -- "$pattern" "$work/log$rank" ||
      { fail "[$first] [$second]: rank $rank lacks '$pattern'"; cat "$work/log$rank"; }
    [ "$(wc -l <"$work/log$rank")" = 1 ] || fail "[$first] [$second]: rank $rank says more than a line"
  done
}

same() {
  local first=$1 second=$2
  hand
  [ "$codes" = "0 0 " ] || { fail "[$first] [$second]: exits $codes, want 0 0"; cat "$work"/log?; }
}

same "" ""
same "--progress inline" ""
same "--out $work/both --profile" "--out $work/both --profile"
same "--data text:$work/copy" ""
differs 'lr differs: 0.1 on rank 0, 0.01 on rank 1' "--lr 0.1" "--lr 0.01"
differs 'seed differs: 3 on rank 0, 1 on rank 1' "--seed 3" ""
differs 'shards differs: 4 on rank 0, absent on rank 1' "--shards 4" ""
differs 'batch-size differs: 6 on rank 0, 8 on rank 1' "--batch-size 6" ""
differs 'steps differs: 2 on rank 0, 3 on rank 1' "" "--steps 3"
differs 'optimizer differs: sgd on rank 0, adamw on rank 1' "--optimizer sgd" ""
differs 'schedule differs: cosine on rank 0, constant on rank 1' "--schedule cosine" ""
differs 'threads differs: 2 on rank 0, 1 on rank 1' "--threads 2" ""
# what only rank 0 would write, and where
differs "trace differs: absent on rank 0, $work/trace on rank 1" "" "--trace $work/trace"
differs "out differs: absent on rank 0, $work/mine on rank 1" "" "--out $work/mine --overwrite"
differs "out differs: $work/a on rank 0, $work/mine on rank 1" "--out $work/a" "--out $work/mine"
differs "checkpoint-dir differs: $work/a on rank 0, $work/mine on rank 1" \
  "--checkpoint-every 1 --checkpoint-dir $work/a" "--checkpoint-every 1 --checkpoint-dir $work/mine"
differs "checkpoint-dir differs: absent on rank 0, $work/mine on rank 1" "--out $work/a --checkpoint-every 1" \
  "--out $work/a --checkpoint-every 1 --checkpoint-dir $work/mine"
differs 'checkpoint-every differs: absent on rank 0, 1 on rank 1' "--out $work/a" "--out $work/a --checkpoint-every 1"
differs 'keep differs: absent on rank 0, 2 on rank 1' "--out $work/a --checkpoint-every 1" "--out $work/a --checkpoint-every 1 --keep 2"
differs 'overwrite differs: absent on rank 0, given on rank 1' "--out $work/a" "--out $work/a --overwrite"
differs 'profile differs: absent on rank 0, given on rank 1' "" "--profile"
for path in a mine trace; do
  [ ! -e "$work/$path" ] || fail "$path was written by ranks that disagree"
done
differs 'model differs: .*layers=2.* on rank 0' "--model gpt:layers=2,heads=1,width=8,context=8" ""
differs "data differs in content: .*$work/text on rank 0.*$work/shorter on rank 1" "" "--data text:$work/shorter"
finish
