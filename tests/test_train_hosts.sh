#!/usr/bin/env bash
# Ranks on two hosts: network namespaces joined by a veth pair. The same bits as on one host, a wrong secret is
# refused, and a host that vanishes is named.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"

# shellcheck source=scripts/two-hosts.sh
. "$source_dir/scripts/two-hosts.sh"
trap 'remove_hosts; cleanup' EXIT
make_hosts lst 77 || skip "$why_no_hosts"

text "$work/text"
gpt=(--model "gpt:layers=2,heads=2,width=32,context=32" --data "text:$work/text" --batch-size 8 --shards 4)

# on_host HOST RANK SECRET ARGS...: in the background
on_host() {
  local host=$1 rank=$2 secret=$3
  shift 3
  in_host "$host" env RANK="$rank" WORLD_SIZE=4 MASTER_ADDR=$first MASTER_PORT=29500 \
    LOCKSTEP_TOKEN="$secret" LOCKSTEP_TIMEOUT=${timeout:-30} "$lockstep" train "${gpt[@]}" "$@" \
    >"$work/rank$rank.log" 2>&1 &
}

"$lockstep" train "${gpt[@]}" --steps 10 --out "$work/one" >/dev/null 2>&1 || fail "one rank"
for rank in 0 1 2 3; do
  host=$a
  [ $rank -lt 2 ] || host=$b
  on_host $host $rank secret --steps 10 --out "$work/two"
done
wait || true
[ "$(hash_of "$work/two")" = "$(hash_of "$work/one")" ] || { fail "bits differ"; cat "$work"/rank*.log; }
echo "2 hosts of 2 ranks: $(hash_of "$work/two"), 1 rank: $(hash_of "$work/one")"

# without a secret nothing crosses the network
in_host $a env RANK=0 WORLD_SIZE=2 MASTER_ADDR=$first MASTER_PORT=29500 "$lockstep" train "${gpt[@]}" >"$work/log" 2>&1
[ $? = 4 ] && grep -q LOCKSTEP_TOKEN "$work/log" || { fail "no secret"; cat "$work/log"; }

# a wrong secret is refused and said on both sides
timeout=5
for rank in 0 1 2; do on_host $a $rank secret --steps 10; done
on_host $b 3 wrong --steps 10
wait || true
grep -qi 'LOCKSTEP_TOKEN\|token\|secret' "$work/rank3.log" || { fail "wrong secret not told"; cat "$work/rank3.log"; }
grep -q 'rank 3\|3' "$work/rank0.log" || { fail "missing rank not told"; cat "$work/rank0.log"; }

# a host that vanishes without a word: its beats stop, the others end long before the deadline and name its ranks
timeout=60
export LOCKSTEP_HEARTBEAT=3
for rank in 0 1; do on_host $a $rank secret --steps 1000000; done
for rank in 2 3; do on_host $b $rank secret --steps 1000000; done
for ((i = 0; i < 100; i++)); do grep -q 'step' "$work/rank0.log" && break; sleep 0.2; done
in_host $b ip link set link0 down
begin=$(date +%s)
for ((i = 0; i < 150; i++)); do
  [ -n "$(ip netns pids $a)" ] || break
  sleep 0.1
done
[ -z "$(ip netns pids $a)" ] || fail "ranks still wait for a host that is gone"
echo "host gone: others ended after $(($(date +%s) - begin)) s"
cat "$work"/rank[01].log | grep -q 'rank [23] (.* has stopped: no heartbeat for [0-9.]* s' ||
  { fail "host gone: no rank named"; cat "$work"/rank[01].log; }
for rank in 0 1; do grep -q 'rank [23]' "$work/rank$rank.log" || { fail "host gone: rank $rank"; cat "$work/rank$rank.log"; }; done
finish
