#!/usr/bin/env bash
# Ranks on several hosts, which are told apart by LOCKSTEP_HOST_ID, or are network namespaces: shared memory inside,
# the network between. The same bits as with one host; who dies, leaves or calls something else is named everywhere.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
has_tcp || skip "no tcp in this build, or no loopback"
ranks=$build/tests/program_ranks
unset LOCKSTEP_TRANSPORT

# shellcheck disable=SC2086
# start "HOST HOST ..." WHAT [MARK]: rank i on the i-th host, in the background; what it says goes to $work/rankI.log
start() {
  local hosts host rank=0 port
  read -ra hosts <<<"$1"
  shift
  port=$(free_port)
  pids=()
  for host in "${hosts[@]}"; do
    LOCKSTEP_HOST_ID=$host RANK=$rank WORLD_SIZE=${#hosts[@]} MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
      LOCKSTEP_TIMEOUT=${timeout:-20} $ranks "$@" >"$work/rank$rank.log" 2>&1 &
    pids+=($!)
    rank=$((rank + 1))
  done
}

# ends WHAT: all ranks exit with 0
ends() {
  local rank
  for rank in "${!pids[@]}"; do
    wait "${pids[rank]}" || { fail "$1: rank $rank"; cat "$work/rank$rank.log"; }
  done
}

# same_bits "HOSTS" TRANSPORT: as over plain tcp
same_bits() {
  local n want got
  n=$(wc -w <<<"$1")
  LOCKSTEP_TRANSPORT=tcp start "$1" bits
  ends "bits of $n over tcp"
  want=$(cat "$work"/rank*.log | grep -o 'bits [0-9a-f]*' | sort -u)
  start "$1" bits
  ends "bits of $1"
  got=$(cat "$work"/rank*.log | grep -o 'bits [0-9a-f]*' | sort -u)
  [ "$got" = "$want" ] || fail "$1: $got, over tcp: $want"
  [ "$(grep -l "transport $2\$" "$work"/rank*.log | wc -l)" = "$n" ] || { fail "$1: not $2"; cat "$work"/rank*.log; }
  rm -f "$work"/rank*.log
}

same_bits "a a a" shm
same_bits "a a b b" shm+tcp
same_bits "a a b b c c" shm+tcp
same_bits "a a a a b b b b" shm+tcp
LOCKSTEP_STREAMS=3 same_bits "a a b b c c" shm+tcp
same_bits "a b" tcp
for algorithm in one-shot pairwise flat; do
  LOCKSTEP_ALGORITHM=$algorithm same_bits "a a b b" shm+tcp
  LOCKSTEP_ALGORITHM=$algorithm same_bits "a b c" tcp
done
LOCKSTEP_STREAMS=2 same_bits "a b" tcp # several connections also where every rank is alone
LOCKSTEP_STREAMS=3 same_bits "a b c" tcp
same_bits "a a a b b" tcp       # as many ranks on each machine, or sums could not be made in two steps
same_bits "a b a b" tcp         # ranks of a machine that do not follow each other
same_bits "a a a b b b" tcp     # a subtree has a power of two of ranks

for hosts in "a a a" "a a b b" "a a b b c c" "a a a b b"; do
  for what in grid rest point split; do
    start "$hosts" $what
    ends "$what of $hosts"
  done
done

start "a a b b" mismatch
ends "mismatch"
for rank in 0 1 2 3; do grep -q 'broadcast' "$work/rank$rank.log" || fail "rank $rank does not hear of the broadcast"; done
start "a a b b" leave
ends "leave"

# a rank of the other host is killed: everyone ends soon, and rank 3 is named
start "a a b b" loop "$work/mark"
for ((i = 0; i < 200; i++)); do [ -f "$work/mark" ] && break; sleep 0.05; done
[ -f "$work/mark" ] || fail "the loop does not run"
kill -9 "${pids[3]}"
for ((i = 0; i < 100; i++)); do kill -0 "${pids[0]}" "${pids[1]}" "${pids[2]}" 2>/dev/null || break; sleep 0.05; done
for rank in 0 1 2; do
  wait "${pids[rank]}"
  [ $? = 4 ] || fail "rank $rank did not fail with its peer"
  grep -q 'rank 3' "$work/rank$rank.log" || { fail "killed: rank $rank does not name rank 3"; cat "$work/rank$rank.log"; }
done
wait 2>/dev/null

# as many connections as streams, beside the one that every pair has
# sockets STREAMS: how many rank 0 of two has
sockets() {
  rm -f "$work/mark"
  LOCKSTEP_STREAMS=$1 start "a b" loop "$work/mark"
  for ((i = 0; i < 200; i++)); do [ -f "$work/mark" ] && break; sleep 0.05; done
  find "/proc/${pids[0]}/fd" -lname 'socket:*' | wc -l
  kill -9 "${pids[@]}"
  wait 2>/dev/null
}
one=$(sockets 1) four=$(sockets 4)
[ $((four - one)) = 4 ] || fail "$one sockets with one stream, $four with four"

# Rank 1 comes last to all, and all can tell, on its host and on others.
last_of() { # HOSTS
  local rank
  start "$1" late
  ends "late, $1"
  for rank in "${!pids[@]}"; do
    [ "$(grep -c '^last of .*: 1$' "$work/rank$rank.log")" = 6 ] || { fail "who was last, $1: rank $rank"; cat "$work/rank$rank.log"; }
  done
  rm -f "$work"/rank*.log
}
last_of "a a b b"
last_of "a b c"
LOCKSTEP_ALGORITHM=flat last_of "a a b b"
last_of "a a"

# rank 0's table and algorithm count for all, and mistakes are told to all
LOCKSTEP_ALGORITHM=ring start "a b" bits
for rank in 0 1; do
  wait "${pids[rank]}" && fail "LOCKSTEP_ALGORITHM=ring was taken"
  grep -q "LOCKSTEP_ALGORITHM is 'ring', want auto, one-shot, pairwise or flat" "$work/rank$rank.log" ||
    { fail "ring"; cat "$work/rank$rank.log"; }
done
echo "between 100 fast 1" >"$work/table"
LOCKSTEP_COST_TABLE=$work/table start "a a b b" bits
for rank in 0 1 2 3; do
  wait "${pids[rank]}" && fail "a bad table was taken"
  grep -q "LOCKSTEP_COST_TABLE of rank 0: .*table, line 1: 'between 100 fast 1'" "$work/rank$rank.log" ||
    { fail "bad table: rank $rank"; cat "$work/rank$rank.log"; }
done
printf 'inside 1 10 10\nbetween 50 0.1 10 # a link of 1 Gbit/s\n' >"$work/table"
LOCKSTEP_COST_TABLE=$work/table same_bits "a a b b" shm+tcp

# the interface that is asked for: none, and one that only the connections among ranks above 0 use
LOCKSTEP_INTERFACE=nope0 timeout=5 start "a b c" bits
wait "${pids[1]}" && fail "an interface that is not there was taken"
grep -q "LOCKSTEP_INTERFACE is 'nope0'.*lo (127.0.0.1)" "$work/rank1.log" || { fail "no interface"; cat "$work/rank1.log"; }
wait
host=lsthosts$$
trap 'ip netns pids $host 2>/dev/null | xargs -r kill -9 2>/dev/null; ip netns del $host 2>/dev/null; cleanup' EXIT
if command -v ip >/dev/null && ip netns add $host 2>/dev/null; then
  nsenter --net=/run/netns/$host ip link set lo up
  nsenter --net=/run/netns/$host ip addr add 127.0.5.5/8 dev lo
  rm -f "$work/mark"
  LOCKSTEP_INTERFACE=127.0.5.5 ranks="nsenter --net=/run/netns/$host $ranks" start "a b c" loop "$work/mark"
  for ((i = 0; i < 200; i++)); do [ -f "$work/mark" ] && break; sleep 0.05; done
  nsenter --net=/run/netns/$host cat /proc/net/tcp >"$work/tcp" # addresses are numbers in the machine's byte order
  grep -q '0505007F' "$work/tcp" || { fail "LOCKSTEP_INTERFACE is not used"; cat "$work/tcp" "$work"/rank*.log; }
  kill -9 "${pids[@]}" 2>/dev/null
  wait 2>/dev/null
else
  echo "no right to make network namespaces: LOCKSTEP_INTERFACE is not looked at"
fi
want_nothing_left "hosts"
finish
