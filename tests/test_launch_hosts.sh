#!/usr/bin/env bash
# One job on hosts of its own: network namespaces joined by a bridge. An elastic job of training goes on when a host
# vanishes (its link is cut: no word of goodbye) and takes it in when it comes back; every change takes less than 10 s, and
# the bits at the end are those of one rank where they are promised (docs/determinism.md). The same job under mpirun.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
has_tcp || skip "no tcp in this build, or no loopback"
command -v ip >/dev/null || skip "ip (iproute2) is not installed"
unset LOCKSTEP_TRANSPORT
export LOCKSTEP_TOKEN=secret
hub=lsthub$$
hosts=(lstl0$$ lstl1$$ lstl2$$)
# not `ip netns exec` or `ip -n`, which mount /sys anew: a chroot does not allow that
in_host() {
  local host=$1
  shift
  nsenter --net="/run/netns/$host" "$@"
}
remove_hosts() {
  local host
  for host in "${hosts[@]}" $hub; do
    ip netns pids "$host" 2>/dev/null | xargs -r kill -9 2>/dev/null
    ip netns del "$host" 2>/dev/null
  done
}
trap 'remove_hosts; cleanup' EXIT
for host in "${hosts[@]}" $hub; do ip netns add "$host" 2>/dev/null || skip "no right to make network namespaces"; done
in_host $hub ip link add br0 type bridge 2>/dev/null || skip "no bridge devices"
in_host $hub ip link set br0 up
for i in 0 1 2; do
  ip link add eth0 netns "${hosts[i]}" type veth peer name port$i netns $hub 2>/dev/null || skip "no veth devices"
  in_host "${hosts[i]}" ip addr add 10.78.0.$((i + 1))/24 dev eth0
  in_host "${hosts[i]}" ip link set lo up
  in_host "${hosts[i]}" ip link set eth0 up
  in_host $hub ip link set port$i up master br0
done

text "$work/text"
gpt=(--model "gpt:layers=2,heads=2,width=32,context=32" --data "text:$work/text" --batch-size 12)

# node I ARGUMENTS: the launcher of host I, in the background
node() {
  local i=$1
  shift
  in_host "${hosts[i]}" timeout -k 5 100 "$lockstep" run --rendezvous 10.78.0.1:29400 --node-rank "$i" "$@" \
    >"$work/node$i" 2>&1 </dev/null &
  launcher[i]=$!
}
steps_of() { cat "$1/metrics.jsonl" 2>/dev/null | wc -l; }
# steps_after OUT TEXT: until launcher 0 has said TEXT and a step has ended since
steps_after() {
  local before=
  for _ in $(seq 600); do
    if [ -z "$before" ]; then
      grep -q "$2" "$work/node0" && before=$(steps_of "$1")
    elif [ "$(steps_of "$1")" -gt "$before" ]; then
      return
    fi
    sleep 0.05
  done
  fail "no step after '$2'"
  tail -n 15 "$work"/node?
}

# vanish MIN MAX STEPS SHARDS OUT: host MAX - 1 vanishes and comes back
vanish() {
  local last=$(($2 - 1)) i begin took
  for ((i = 0; i < $2; i++)); do
    node $i --nnodes "$1:$2" -n 1 -- "$lockstep" train "${gpt[@]}" --shards "$4" --steps "$3" --out "$5" \
      --checkpoint-every 50 --keep 2 --resume auto
  done
  for _ in $(seq 400); do [ "$(steps_of "$5")" -gt 120 ] && break; sleep 0.05; done
  [ "$(steps_of "$5")" -gt 120 ] || { fail "$2 hosts do not train"; tail -n 15 "$work"/node?; return; }
  begin=$(now_ms)
  in_host $hub ip link set port$last down
  steps_after "$5" "round 2: $1 ranks on $1 of $2 machines"
  took=$(($(now_ms) - begin))
  [ $took -lt 10000 ] || fail "$2 hosts: a step only $took ms after one vanished"
  begin=$(now_ms)
  in_host $hub ip link set port$last up
  steps_after "$5" "round 3: $2 ranks on $2 of $2 machines"
  echo "$2 hosts: trained on $took ms after one vanished, and $(($(now_ms) - begin)) ms after it was back"
  [ $(($(now_ms) - begin)) -lt 10000 ] || fail "$2 hosts: too slow to take one in"
  for ((i = 0; i < $2; i++)); do wait "${launcher[i]}" || { fail "$2 hosts: launcher $i: $?"; tail -n 15 "$work/node$i"; }; done
}

"$lockstep" train "${gpt[@]}" --shards 4 --steps 3000 --out "$work/one" >/dev/null 2>&1 || fail "one rank"
vanish 1 2 3000 4 "$work/two"
[ "$(hash_of "$work/two")" = "$(hash_of "$work/one")" ] || fail "2, 1, 2 hosts: bits $(hash_of "$work/two"), want $(hash_of "$work/one")"

# 12 shards on 3 and on 2 ranks are summed in another order: losses agree to rounding, bits need not
loss_of() { grep -o '"val_loss":[0-9.e+-]*' "$1/summary.json" | head -1 | cut -d: -f2; }
"$lockstep" train "${gpt[@]}" --shards 12 --steps 2000 --out "$work/one12" >/dev/null 2>&1 || fail "one rank, 12 shards"
vanish 2 3 2000 12 "$work/three"
awk -v a="$(loss_of "$work/three")" -v b="$(loss_of "$work/one12")" 'BEGIN { d = a - b; exit !(a > 0 && d < 0.02 && d > -0.02) }' ||
  fail "3, 2, 3 hosts: val_loss $(loss_of "$work/three"), want $(loss_of "$work/one12")"
echo "2, 1, 2 hosts: $(hash_of "$work/two") as one rank; 3, 2, 3 hosts: val_loss $(loss_of "$work/three"), one rank $(loss_of "$work/one12")"

# What has the port at the start: the launcher whose machine has the address says so, and listens when it is gone.
if command -v python3 >/dev/null; then
  in_host "${hosts[0]}" timeout 60 python3 -S -c '
import os, socket, sys, time
s = socket.create_server(("10.78.0.1", 29400))
open(sys.argv[1] + "/listens", "w").close()
while not os.path.exists(sys.argv[1] + "/leave"):
    time.sleep(0.05)
' "$work" &
  for _ in $(seq 200); do [ -f "$work/listens" ] && break; sleep 0.05; done
  for i in 0 1; do
    in_host "${hosts[i]}" timeout -k 5 60 "$lockstep" run --rendezvous 10.78.0.1:29400 --nnodes 2 --join-timeout 30 -n 1 -- true \
      >"$work/node$i" 2>&1 </dev/null &
    launcher[i]=$!
  done
  taken='cannot listen on 10.78.0.1:29400, an address of this machine: something else has the port'
  for _ in $(seq 200); do grep -q "$taken" "$work/node0" && break; sleep 0.05; done
  : >"$work/leave"
  for i in 0 1; do wait "${launcher[i]}" || { fail "a stranger on the port: launcher $i: $?"; tail -n 15 "$work/node$i"; }; done
  grep -q "$taken" "$work/node0" && grep -q "listening on 10.78.0.1:29400 now" "$work/node0" || fail "a stranger on the port: host 0 does not say so"
  ! grep -q "listen" "$work/node1" || fail "a stranger on the port: host 1 listens"
fi

# mpirun reaches the hosts by what it takes for ssh
if command -v mpirun.openmpi >/dev/null && [ -f "$build/liblockstep-mpi-openmpi.so" ]; then
  cat >"$work/agent" <<END
#!/bin/sh
host=\$1
shift
case \$host in 10.78.0.1) name=${hosts[0]} ;; 10.78.0.2) name=${hosts[1]} ;; *) name=${hosts[2]} ;; esac
exec nsenter --net=/run/netns/\$name sh -c "\$*"
END
  chmod +x "$work/agent"
  "$lockstep" train "${gpt[@]}" --shards 4 --steps 20 --out "$work/short" >/dev/null 2>&1 || fail "one rank, 20 steps"
  in_host "${hosts[0]}" env LOCKSTEP_MODULES="$build" timeout -k 5 60 mpirun.openmpi --allow-run-as-root --oversubscribe \
    --bind-to none --mca plm_rsh_agent "$work/agent" --mca btl tcp,self --mca btl_tcp_if_include 10.78.0.0/24 \
    --mca oob_tcp_if_include 10.78.0.0/24 -H 10.78.0.1:2,10.78.0.2:2 "$lockstep" train "${gpt[@]}" --shards 4 --steps 20 \
    --out "$work/mpi" >"$work/log" 2>&1 || { fail "mpirun over two hosts"; tail -n 20 "$work/log"; }
  [ "$(hash_of "$work/mpi")" = "$(hash_of "$work/short")" ] || fail "mpirun over two hosts: bits differ"
  grep -q 'shm+mpi\|4 ranks over mpi' "$work/log" && echo "mpirun over 2 hosts: $(hash_of "$work/mpi") as one rank"
fi
want_nothing_left "hosts"
finish
