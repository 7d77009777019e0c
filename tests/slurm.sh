#!/usr/bin/env bash
# Jobs under Slurm, with daemons of their own: munged, slurmctld and two slurmd ("machines" a and b) in a temporary folder, on
# free ports, ended with the script. Needs slurmctld, slurmd, srun and munged (Debian: slurm-wlm, munge) and root.
# Not in the suite: cmake --build build/release --target slurm
# shellcheck source=tests/lib.sh
# shellcheck disable=SC2016
. "$(dirname "$0")/lib.sh"
for tool in munged slurmctld slurmd srun sinfo; do
  command -v $tool >/dev/null || PATH=$PATH:/usr/sbin:/sbin
  command -v $tool >/dev/null || skip "$tool is not installed (slurm-wlm, munge)"
done
[ "$(id -u)" = 0 ] || skip "slurmd wants to be root"
unset LOCKSTEP_TOKEN LOCKSTEP_TRANSPORT
lockstep=$(realpath "$lockstep")
export SLURM_CONF=$work/slurm.conf
ports=("$(free_port)" "$(free_port)" "$(free_port)")
mkdir "$work/state" "$work/spool.a" "$work/spool.b" "$work/jobs"
dd if=/dev/urandom of="$work/munge.key" bs=128 count=1 2>/dev/null
chmod 600 "$work/munge.key"
chmod 711 "$work"
cat >"$SLURM_CONF" <<END
ClusterName=lockstep
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$work/munge.socket
SlurmctldPort=${ports[0]}
SlurmctldPidFile=$work/slurmctld.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdPidFile=$work/slurmd.%n.pid
SlurmdLogFile=$work/slurmd.%n.log
SlurmdSpoolDir=$work/spool.%n
StateSaveLocation=$work/state
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SchedulerType=sched/builtin
SelectType=select/linear
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
KillWait=5
SlurmdParameters=config_overrides
ReturnToService=2
NodeName=a NodeHostname=$(hostname -s) NodeAddr=127.0.0.1 Port=${ports[1]} CPUs=8 State=UNKNOWN
NodeName=b NodeHostname=$(hostname -s) NodeAddr=127.0.0.1 Port=${ports[2]} CPUs=8 State=UNKNOWN
PartitionName=all Nodes=a,b Default=YES MaxTime=INFINITE State=UP
END

daemons=()
stop_daemons() {
  [ ${#daemons[@]} = 0 ] || kill "${daemons[@]}" 2>/dev/null
  sleep 0.3
  [ ${#daemons[@]} = 0 ] || kill -9 "${daemons[@]}" 2>/dev/null
}
trap 'stop_daemons; cleanup' EXIT
daemon() {
  "$@" >"$work/${1##*/}.out" 2>&1 &
  daemons+=($!)
}
daemon munged --foreground --force --key-file="$work/munge.key" --socket="$work/munge.socket" \
  --pid-file="$work/munged.pid" --log-file="$work/munged.log" --seed-file="$work/munged.seed"
for _ in $(seq 50); do [ -S "$work/munge.socket" ] && break; sleep 0.1; done
daemon slurmctld -D
daemon slurmd -D -N a
daemon slurmd -D -N b
for _ in $(seq 150); do [ "$(sinfo -h -t idle -o %D 2>/dev/null)" = 2 ] && break; sleep 0.2; done
[ "$(sinfo -h -t idle -o %D 2>/dev/null)" = 2 ] || {
  tail -n 5 "$work"/*.log "$work"/*.out
  skip "the Slurm daemons do not start here"
}

cd "$work/jobs" || exit 1
text "$work/text"
gpt=(--model "gpt:layers=2,heads=2,width=32,context=32" --data "text:$work/text" --batch-size 8 --shards 4 --steps 10)
"$lockstep" train "${gpt[@]}" --out "$work/one" >/dev/null 2>&1 || fail "one rank"
want=$(hash_of "$work/one")
on_slurm() { timeout 60 srun "$@" >"$work/log" 2>&1; }
same() { [ "$(hash_of "$2")" = "$want" ] || { fail "$1: bits differ, or no result"; cat "$work/log"; }; }

# Nothing but srun: ranks from its variables, one or two machines; nothing stays in the folder
on_slurm -N 1 -n 4 "$lockstep" train "${gpt[@]}" --out "$work/n1" || { fail "one machine"; cat "$work/log"; }
same "srun, one machine" "$work/n1"
LOCKSTEP_HOST_ID='' on_slurm -N 2 -n 4 "$lockstep" train "${gpt[@]}" --out "$work/n2" || { fail "two machines"; cat "$work/log"; }
same "srun, two machines" "$work/n2"
on_slurm -N 2 -n 4 bash -c 'LOCKSTEP_HOST_ID=$SLURMD_NODENAME exec "$@"' _ "$lockstep" train "${gpt[@]}" --out "$work/n2h" ||
  { fail "two machines apart"; cat "$work/log"; }
same "srun, two machines apart" "$work/n2h"
[ -z "$(ls -A)" ] || fail "left in the folder: $(ls -A)"

# A launcher on each machine
on_slurm -N 2 --ntasks-per-node=1 "$lockstep" run -n 2 -- "$lockstep" train "${gpt[@]}" --out "$work/run" ||
  { fail "launchers"; cat "$work/log"; }
same "srun lockstep run" "$work/run"
on_slurm -N 2 --ntasks-per-node=1 "$lockstep" run -n 2 -- sh -c '[ $RANK = 3 ] || exec sleep 60; exit 7'
code=$?
[ $code = 7 ] && grep -q 'rank 3 (host .*failed first: it exited with code 7' "$work/log" ||
  { fail "a rank fails under launchers: code $code"; cat "$work/log"; }

# Two opinions of which rank this is
on_slurm -n 2 env RANK=1 WORLD_SIZE=2 "$lockstep" train "${gpt[@]}"
grep -q 'RANK=1 WORLD_SIZE=2 | SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2' "$work/log" || { fail "contradiction"; cat "$work/log"; }

# A rank that is killed ends all; so does scancel
on_slurm -N 2 -n 4 bash -c '[ $SLURM_PROCID = 2 ] || exec "$@"; "$@" & sleep 2; kill -9 $!; wait $!' _ "$lockstep" train "${gpt[@]/10/100000}" --out "$work/killed"
code=$?
[ $code != 0 ] && grep -q 'rank 2' "$work/log" || { fail "killed rank: code $code"; cat "$work/log"; }
for _ in $(seq 50); do [ -z "$(squeue -h)" ] && break; sleep 0.1; done
[ -z "$(squeue -h)" ] || fail "jobs are left: $(squeue -h)"
want_nothing_left "slurm" "--out $work"
echo "under Slurm, 4 tasks on 1 and 2 nodes, and 2 launchers of 2 ranks: $want, as 1 rank"
finish
