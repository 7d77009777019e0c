#!/usr/bin/env bash
# examples/own_trainer ends with the same weights alone, as ranks started by hand, and as 1, 2
# and 4 ranks of `lockstep run`.
set -u
build=$1
trainer=$build/examples/own_trainer
lockstep=$build/lockstep
[ -x "$trainer" ] || { echo "skipped: $trainer is not built"; exit 77; }

fail() { echo "FAILED: $1"; shift; printf '%s\n' "$@"; exit 1; }

alone=$(timeout 60 "$trainer" 2>&1) || fail "alone: exit code $?" "$alone"
weights=$(grep -o 'weights [0-9a-f]\{16\}' <<<"$alone") || fail "alone: no weights printed" "$alone"
loss=$(grep -o 'loss [0-9.]*' <<<"$alone" | tail -1 | cut -d' ' -f2)
awk -v l="$loss" 'BEGIN { exit !(l < 0.1) }' || fail "alone: it did not learn, loss $loss" "$alone"

# Two ranks started by hand: they meet over tcp. A port that was free a moment ago may be taken by now.
by_hand() {
    local port=$((20000 + RANDOM % 10000)) rank
    for rank in 0 1; do
        RANK=$rank WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port LOCKSTEP_TIMEOUT=30 \
            timeout 60 "$trainer" 2>&1 &
    done
    wait
}
for try in 1 2 3; do
    got=$(by_hand)
    grep -q 'weights ' <<<"$got" && break
done
grep -q "$weights" <<<"$got" || grep -q "which this build lacks" <<<"$got" ||
    fail "2 ranks over tcp: want $weights" "$got"

if ! timeout 20 "$lockstep" run -n 1 -- true >/dev/null 2>&1; then
    echo "skipped: alone passed, but $lockstep cannot run programs yet"
    exit 77
fi
for ranks in 1 2 4; do
    got=$(timeout 100 "$lockstep" run -n "$ranks" -- "$trainer" 2>&1) ||
        fail "$ranks ranks: exit code $?" "$got"
    grep -q "$weights" <<<"$got" || fail "$ranks ranks: want $weights" "$got"
    [ "$(grep -c 'weights ' <<<"$got")" = 1 ] || fail "$ranks ranks: more than one result" "$got"
done
if got=$(timeout 60 "$lockstep" run -n 3 -- "$trainer" 2>&1); then
    fail "3 ranks: 4 shards cannot be shared by 3, want a failure" "$got"
fi
grep -q "cannot share" <<<"$got" || fail "3 ranks: no reason given" "$got"
echo "passed: $weights alone, over tcp, and with 1, 2, 4 ranks of lockstep run"
