#!/usr/bin/env bash
# examples/own_trainer ends with the same weights alone, as ranks started by hand, and as 1, 2
# and 4 ranks of `lockstep run`.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
trainer=$build/examples/own_trainer

# good WHAT OUTPUT: there is one result, the one wanted
good() {
  [ "$(grep -c 'weights ' <<<"$2")" = 1 ] && grep -q "$weights" <<<"$2" && return
  fail "$1: want $weights"
  echo "$2"
}

alone=$(timeout 60 "$trainer" 2>&1) || fail "alone: exit code $?: $alone"
weights=$(grep -o 'weights [0-9a-f]\{16\}' <<<"$alone") || fail "alone: no weights printed: $alone"
loss=$(grep -o 'loss [0-9.]*' <<<"$alone" | tail -1 | cut -d' ' -f2)
awk -v l="$loss" 'BEGIN { exit !(l < 0.1) }' || fail "alone: it did not learn, loss $loss"
echo "alone: $weights"

# Two ranks started by hand: they meet over tcp.
by_hand() {
  local port rank
  port=$(free_port)
  for rank in 0 1; do
    RANK=$rank WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port LOCKSTEP_TIMEOUT=30 \
      timeout 60 "$trainer" 2>&1 &
  done
  wait
}
if has_tcp; then
  good "2 ranks over tcp" "$(by_hand)"
else
  by_hand | grep -q 'which this build lacks' || fail "2 ranks over tcp: no reason given"
fi

for ranks in 1 2 4; do
  got=$(timeout 100 "$lockstep" run -n "$ranks" -- "$trainer" 2>&1) || fail "$ranks ranks: exit code $?"
  good "$ranks ranks" "$got"
done
if got=$(timeout 60 "$lockstep" run -n 3 -- "$trainer" 2>&1); then
  fail "3 ranks: 4 shards cannot be shared by 3, want a failure: $got"
fi
grep -q "cannot share" <<<"$got" || fail "3 ranks: no reason given: $got"
finish
