#!/usr/bin/env bash
# Several launchers of one job, all on this machine, which the ranks tell apart by LOCKSTEP_HOST_ID: how they meet, fail,
# stop, leave and come back. Hosts of their own are tests/test_launch_hosts.sh.
# usage: test_launch_nodes.sh BUILD [ONE]
# shellcheck source=tests/lib.sh
# shellcheck disable=SC2016 # what the ranks' shells are to expand stands in single quotes
. "$(dirname "$0")/lib.sh"
has_tcp || skip "no tcp in this build, or no loopback"
unset LOCKSTEP_TOKEN LOCKSTEP_TRANSPORT
port=$(free_port)

fail() {
  echo "FAILED: $*"
  head -n 20 "$work"/node* 2>/dev/null
  failures=$((failures + 1))
}

# node I ARGUMENTS: launcher I in the background; what it says goes to $work/nodeI, its pid to launcher[I]
node() {
  local i=$1
  shift
  LOCKSTEP_HOST_ID=node$i timeout -k 5 60 "$lockstep" run "${where[@]}" "$@" >"$work/node$i" 2>&1 </dev/null &
  launcher[i]=$!
}

# code_of I: waits for launcher I, sets $code
code_of() {
  wait "${launcher[$1]}"
  code=$?
}

want_codes() { # WHAT CODE I...
  local what=$1 want=$2 i
  shift 2
  for i in "$@"; do
    code_of "$i"
    [ "$code" = "$want" ] || fail "$what: launcher $i ended with $code, want $want"
  done
}

says() { grep -qF -- "$2" "$work/node$1" || fail "$3: launcher $1 does not say '$2'"; }

# wait_for I TEXT [TIMES]: until launcher I has said it so often
wait_for() {
  for _ in $(seq 300); do
    [ "$(grep -cF -- "$2" "$work/node$1" 2>/dev/null)" -ge "${3:-1}" ] && return
    sleep 0.05
  done
  fail "launcher $1 does not say '$2'"
}

# the pid of launcher I itself, below `timeout`
pid_of() { pgrep -P "${launcher[$1]}"; }

marker=$work/rank
where=(--rendezvous "127.0.0.1:$port")
table='echo table $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE $MASTER_ADDR'

# They get their numbers, and the ranks meet on a socket that the launcher holds.
meet() {
  for i in 0 1 2; do node $i --nnodes 3 --node-rank $i -n $((i + 1)) -- sh -c "$table"; done
  want_codes meet 0 0 1 2
  says 0 "table 0 6 0 1 0 3 127.0.0.1" meet
  says 1 "table 2 6 1 2 1 3 127.0.0.1" meet
  says 2 "table 5 6 2 3 2 3 127.0.0.1" meet
  for i in 0 1; do node $i --nnodes 2 -n 2 -- "$lockstep" bench all_reduce --iterations 20 --sizes 4K; done # no numbers given
  want_codes "meet without numbers" 0 0 1
  cat "$work"/node[01] | grep -q '4 ranks over shm+tcp' || fail "meet without numbers: not shm+tcp"
  for i in 0 1; do node $i --nnodes 2 -n 1 --transport tcp -- "$lockstep" bench all_reduce --iterations 20 --sizes 4K; done
  want_codes "meet over tcp" 0 0 1
  cat "$work"/node[01] | grep -q '2 ranks over tcp' || fail "meet over tcp: not tcp"
}

# A file takes the place of the address and of the token: for this user only, gone at the end.
meet_in_a_file() {
  where=(--rendezvous-file "$work/where")
  node 1 --nnodes 2 --node-rank 1 -n 1 -- sh -c "$table"
  sleep 0.3
  LOCKSTEP_INTERFACE=lo node 0 --nnodes 2 --node-rank 0 -n 1 -- sh -c "$table; stat -c 'mode %a' $work/where; sleep 0.2"
  want_codes "meet in a file" 0 0 1
  says 0 "mode 600" "meet in a file"
  says 0 "a loopback address, which other machines cannot reach" "meet in a file"
  says 1 "table 1 2 0 1 1 2" "meet in a file"
  [ ! -e "$work/where" ] || fail "meet in a file: it is left"
  # what others can read is refused, and what is no such file; a file that is late is waited for
  printf '127.0.0.1:1\nsecret\n' >"$work/open"
  chmod 644 "$work/open"
  where=(--rendezvous-file "$work/open")
  node 1 --nnodes 2 --node-rank 1 --join-timeout 1 -n 1 true
  code_of 1
  [ "$code" = 4 ] || fail "open file: code $code"
  says 1 "is not a file of this user with mode 0600" "open file"
  mkfifo -m 600 "$work/pipe" # nobody ever writes there
  where=(--rendezvous-file "$work/pipe")
  node 1 --nnodes 2 --node-rank 1 --join-timeout 1 -n 1 true
  code_of 1
  [ "$code" = 4 ] || fail "a pipe as the file: code $code"
  says 1 "is not a file of this user with mode 0600" "a pipe as the file"
  where=(--rendezvous "127.0.0.1:$port")
}

# The file of an earlier job, whose port somebody else has by now: ranks read it again until theirs is there.
stale_file() {
  local old=(env LOCKSTEP_RENDEZVOUS_FILE="$work/stale" WORLD_SIZE=2 timeout 30 "$lockstep" bench barrier --iterations 20)
  node 0 --nnodes 2 --node-rank 0 --join-timeout 20 -n 1 true # another job's launcher, with another token
  sleep 0.3
  (umask 077 && printf '127.0.0.1:%d\nsecret\n' "$port" >"$work/stale")
  SLURM_LAUNCH_NODE_IPADDR=127.0.0.1 RANK=1 "${old[@]}" >"$work/node2" 2>&1 &
  launcher[2]=$!
  sleep 0.5
  SLURM_LAUNCH_NODE_IPADDR=127.0.0.1 RANK=0 "${old[@]}" >"$work/node1" 2>&1 &
  launcher[1]=$!
  want_codes "stale file" 0 1 2
  # who is there does not answer: the text is of the file, nobody has set MASTER_ADDR
  (umask 077 && printf '127.0.0.1:%d\nsecret\n' "$port" >"$work/stale")
  kill -STOP "$(pid_of 0)"
  LOCKSTEP_TIMEOUT=1 RANK=1 "${old[@]}" >"$work/node1" 2>&1
  kill -CONT "$(pid_of 0)"
  says 1 "are the rendezvous file's host and port the same on all ranks" "a silent port in the file"
  ! grep -q MASTER_ "$work/node1" || fail "a silent port in the file: MASTER_"
  kill "$(pid_of 0)"
  want_codes "stale file: the other job" 143 0
}

wrong() {
  node 0 --nnodes 2 --node-rank 0 --join-timeout 1 -n 2 true
  want_codes "alone" 4 0
  says 0 "only 1 of at least 2 machines were there after 1 s at 127.0.0.1:$port" alone
  node 1 --nnodes 2 --node-rank 1 --join-timeout 1 -n 2 true
  want_codes "nobody to meet" 4 1
  says 1 "found no launcher to meet within 1 s" "nobody to meet"
  node 0 --nnodes 2 --node-rank 0 -n 1 -- sleep 0.1
  sleep 0.3
  LOCKSTEP_TOKEN=wrong node 1 --nnodes 2 --node-rank 1 -n 1 true
  want_codes "wrong token" 4 1
  says 1 "do not have the same token" "wrong token"
  node 2 --nnodes 3 --node-rank 1 -n 1 true
  want_codes "wrong number of nodes" 2 2
  says 2 "host $(hostname) has --nnodes 2:2, host $(hostname) has --nnodes 3:3" "wrong number of nodes"
  (exec 3<>"/dev/tcp/127.0.0.1/$port" && printf 'GET / HTTP/1.0\r\n\r\n%080d' 0 >&3) 2>/dev/null # a stranger
  node 1 --nnodes 2 --node-rank 1 -n 1 -- sleep 0.1
  want_codes "after all of them" 0 0 1
  where=(--rendezvous "0.0.0.0:$port")
  node 0 --nnodes 2 --node-rank 0 -n 1 true
  want_codes "any address" 2 0
  where=(--rendezvous "192.0.2.1:$port")
  LOCKSTEP_TOKEN=x node 0 --nnodes 2 --node-rank 0 -n 1 true
  want_codes "address of another machine" 1 0
  says 0 "no address of this machine; --rendezvous must name the machine on which node 0 runs" "address of another machine"
  where=(--rendezvous "no-such-host.invalid:$port")
  LOCKSTEP_TOKEN=x node 0 --nnodes 2 --node-rank 0 -n 1 true
  want_codes "no host" 1 0
  says 0 '--rendezvous "no-such-host.invalid" has no address' "no host"
  where=(--rendezvous "192.0.2.1:$port")
  node 1 --nnodes 2 --node-rank 1 -n 1 true
  want_codes "no token" 4 1
  says 1 "this launcher: 192.0.2.1:$port is not a loopback address and there is no token" "no token"
  where=(--rendezvous "127.0.0.1:$port")
  node 0 --nnodes 2 --node-rank 0 -n 1 --join-timeout 20 -- sleep 0.1
  sleep 0.3
  node 2 --nnodes 2 --node-rank 0 -n 1 true
  want_codes "port in use" 1 2
  says 2 "choose another port for --rendezvous, the same on all launchers" "port in use"
  node 1 --nnodes 2 --node-rank 1 -n 1 --log-dir "$work/logs" --redirect 1:out,2:out -- sleep 0.1
  want_codes "the first of the port" 0 0 1
  says 1 "--redirect '1:out,2:out': there is no rank 2 among the 2 of the job" "rank that is nowhere"
  where=(--rendezvous "127.0.0.1:$port")
  where=() node 0 --nnodes 2 -n 1 true
  want_codes "no rendezvous" 2 0
  where=(--rendezvous "127.0.0.1:$port")
}

wait_until_gone() { # PID
  for _ in $(seq 200); do kill -0 "$1" 2>/dev/null || return; sleep 0.05; done
  fail "process $1 does not end"
}

until_done='echo "up $RANK of $WORLD_SIZE in round $LOCKSTEP_ROUND"; while [ ! -e '$work/done' ]; do sleep 0.05; done'

# want_refused I TEXT WHAT: launcher I is, for wrong usage, and launcher 0 says so too
want_refused() {
  want_codes "$3" 2 "$1"
  says "$1" "$2" "$3"
  says 0 "refused a launcher: $2" "$3"
  ! grep -q 'up ' "$work/node$1" || fail "$3: launcher $1 has started ranks"
}

# A machine beyond the most that --nnodes says is refused, and those that are there go on; when one of them is gone there is room.
one_too_many() {
  local nodes
  for nodes in 2 1:2; do
    rm -f "$work/done"
    for i in 0 1; do node $i --nnodes $nodes --node-rank $i -n 1 -- sh -c "$until_done" "$marker-many"; done
    wait_for 0 "up 0 of 2 in round 1"
    wait_for 1 "up 1 of 2 in round 1"
    node 2 --nnodes $nodes -n 1 -- sh -c "$until_done" "$marker-many"
    want_refused 2 "the job has its 2 machines, as --nnodes says: host $(hostname) (pid" "one too many of $nodes"
    if [ $nodes = 1:2 ]; then
      kill -9 "$(pid_of 1)"
      node 2 --nnodes $nodes -n 1 -- sh -c "$until_done" "$marker-many"
      wait_for 2 "up 1 of 2"
      : >"$work/done"
      want_codes "in the place of one that is gone" 0 0 2
    else
      : >"$work/done"
      want_codes "one too many" 0 0 1
    fi
  done
  want_nothing_left "one too many" "$marker-many"
}

# The same --node-rank twice: who has it and is alive keeps it, whichever of the two was meant.
a_number_twice() {
  local old
  node 0 --nnodes 3 --node-rank 0 --max-restarts 1 -n 1 -- sh -c "$until_done" "$marker-twice"
  node 1 --nnodes 3 --node-rank 1 --max-restarts 1 -n 1 -- sh -c "$until_done" "$marker-twice"
  wait_for 0 "2 of 3 machines"
  old=$(pid_of 1)
  node 2 --nnodes 3 --node-rank 1 -n 1 -- sh -c "$until_done" "$marker-twice" # before the start
  want_refused 2 "node rank 1 is taken by host $(hostname) (pid $old), which is alive; host $(hostname) (pid" "a number twice"
  node 2 --nnodes 3 --node-rank 2 -n 1 -- sh -c "$until_done" "$marker-twice"
  wait_for 1 "up 1 of 3 in round 1"
  for i in 1 0; do # while it runs
    node 3 --nnodes 3 --node-rank $i -n 1 -- sh -c "$until_done" "$marker-twice"
    if [ $i = 1 ]; then want_refused 3 "node rank 1 is taken by host" "a number twice, in a round"; fi
    if [ $i = 0 ]; then want_codes "number 0 twice" 1 3; fi # it cannot listen
  done
  [ "$(cat "$work"/node[012] | grep -c 'up . of 3 in round 1')" = 3 ] || fail "a number twice: the job did not go on"
  kill -STOP "$old" # it is not alive when it is silent for too long: then the newcomer has its place
  node 4 --nnodes 3 --node-rank 1 -n 1 -- sh -c "$until_done" "$marker-twice"
  wait_for 4 "up 1 of 3 in round 2"
  says 0 "node 1 (host $(hostname), pid $old) is gone: no sign of life for 4 s" "a number twice"
  kill -9 "$old"
  wait_until_gone "$old"
  : >"$work/done"
  want_codes "a number twice" 0 0 2 4
  want_nothing_left "a number twice" "$marker-twice"
  # number 0 by a file: of the launcher that is alive it is not replaced
  rm "$work/done"
  where=(--rendezvous-file "$work/zero")
  export LOCKSTEP_INTERFACE=lo
  node 0 --nnodes 2 --node-rank 0 -n 1 -- sh -c "$until_done" "$marker-twice"
  wait_for 0 "rendezvous at 127.0.0.1"
  for i in before during; do
    node 2 --nnodes 2 --node-rank 0 --join-timeout 1 -n 1 true
    want_codes "number 0 twice by a file, $i" 2 2
    says 2 "node rank 0 is taken by the launcher at 127.0.0.1:" "number 0 twice by a file, $i"
    [ $i = during ] && break
    node 1 --nnodes 2 --node-rank 1 -n 1 -- sh -c "$until_done" "$marker-twice"
    wait_for 1 "up 1 of 2"
  done
  : >"$work/done"
  want_codes "number 0 twice by a file" 0 0 1
  unset LOCKSTEP_INTERFACE
  where=(--rendezvous "127.0.0.1:$port")
}

# stranger WORDS: listens on the port till $work/leave is there, and says WORDS to whoever calls
stranger() {
  rm -f "$work/leave" "$work/listens"
  timeout 60 python3 -S -c '
import os, select, socket, sys
port, words, work = int(sys.argv[1]), sys.argv[2].encode(), sys.argv[3]
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("127.0.0.1", port))
s.listen()
open(work + "/listens", "w").close()
callers = []
while not os.path.exists(work + "/leave"):
    if words and select.select([s], [], [], 0.05)[0]:
        callers.append(s.accept()[0])
        callers[-1].sendall(words * 100)
' "$port" "$1" "$work" &
  wait_file "$work/listens"
}

# What has the port when the launchers start, and is gone a moment later, costs nothing but that moment.
a_stranger_on_the_port() {
  command -v python3 >/dev/null || { echo "a_stranger_on_the_port: no python3"; return; }
  local words
  for words in "" "HTTP/1.0 400 Bad Request"; do
    stranger "$words"
    for i in 0 1; do node $i --nnodes 2 --join-timeout 30 -n 1 -- sh -c "$table"; done
    for i in 0 1; do wait_for $i "cannot listen on 127.0.0.1:$port, an address of this machine: something else has the port"; done
    : >"$work/leave"
    want_codes "a stranger that says '$words'" 0 0 1
    cat "$work"/node[01] | grep -q "listening on 127.0.0.1:$port now" || fail "a stranger that says '$words': nobody listens"
    cat "$work"/node[01] | grep -q "table 1 2 0 1 1 2 127.0.0.1" || fail "a stranger that says '$words': no rank 1"
  done
  stranger ""
  node 0 --nnodes 2 --join-timeout 1 -n 1 true
  want_codes "a stranger that stays" 4 0
  says 0 "could not listen on 127.0.0.1:$port, an address of this machine, whose port something else has" "a stranger that stays"
  : >"$work/leave"
}

# What is no rendezvous file is neither replaced nor removed, by the launcher and by its ranks.
no_rendezvous_file() {
  local path kind
  mkdir "$work/kept"
  printf 'my data\n' >"$work/kept/data"
  printf '127.0.0.1:1\nsecret\nand more\n' >"$work/kept/longer"
  : >"$work/kept/empty"
  mkfifo "$work/kept/pipe"
  mkdir "$work/kept/folder"
  (umask 077 && printf '127.0.0.1:1\nsecret\n' >"$work/ours")
  ln -s "$work/ours" "$work/kept/link"
  ln -s nowhere "$work/kept/dangling"
  mknod "$work/kept/device" c 1 5 2>/dev/null # as root only
  kind=$(cd "$work/kept" && stat -c '%n %i %F' ./*)
  for path in "$work"/kept/*; do
    where=(--rendezvous-file "$path")
    LOCKSTEP_INTERFACE=lo node 0 --nnodes 2 --node-rank 0 --join-timeout 1 -n 1 true
    want_codes "$path" 3 0
    says 0 "rendezvous file: $path" "no rendezvous file"
    LOCKSTEP_RENDEZVOUS_FILE=$path LOCKSTEP_INTERFACE=lo LOCKSTEP_TIMEOUT=1 RANK=0 WORLD_SIZE=2 timeout 20 "$lockstep" bench barrier >"$work/node1" 2>&1
    code=$?
    [ "$code" = 3 ] || fail "$path: rank 0 ended with $code, want 3"
    says 1 "rendezvous file: $path" "no rendezvous file"
  done
  [ "$(cd "$work/kept" && stat -c '%n %i %F' ./*)" = "$kind" ] || fail "no rendezvous file: changed to $(ls -l "$work/kept")"
  [ "$(cat "$work/kept/data")" = "my data" ] || fail "no rendezvous file: other data"
  # what is, is: one that a killed launcher has left; and what has come in its place meanwhile is not removed
  where=(--rendezvous-file "$work/ours")
  LOCKSTEP_INTERFACE=lo node 0 --nnodes 2 --node-rank 0 --join-timeout 2 -n 1 true
  wait_for 0 "rendezvous at 127.0.0.1"
  ! grep -qx secret "$work/ours" || fail "a rendezvous file that was left: is not replaced"
  rm "$work/ours"
  echo "my data" >"$work/ours"
  want_codes "a rendezvous file that was left" 4 0
  [ "$(cat "$work/ours")" = "my data" ] || fail "no rendezvous file: removed another one"
  where=(--rendezvous "127.0.0.1:$port")
}

# Which port is taken for 0 knows its launcher alone.
port_zero() {
  where=(--rendezvous 127.0.0.1:0)
  node 1 --nnodes 2 --node-rank 1 --join-timeout 20 -n 1 true
  want_codes "port 0" 2 1
  says 1 "--rendezvous with port 0: only the launcher of --node-rank 0 takes a free port" "port 0"
  node 1 --nnodes 2 --node-rank 1 --dry-run -n 1 true
  want_codes "port 0, dry" 2 1
  node 0 --nnodes 2 --node-rank 0 --join-timeout 20 -n 1 -- sh -c "$table"
  wait_for 0 "rendezvous at 127.0.0.1:"
  where=(--rendezvous "$(sed -n 's/.*rendezvous at //p' "$work/node0" | head -1)")
  node 1 --nnodes 2 --node-rank 1 -n 1 -- sh -c "$table"
  want_codes "the port that was printed" 0 0 1
  where=(--rendezvous "127.0.0.1:$port")
}

# Two opinions of which rank a process is are refused with both; what a launcher says below srun counts alone.
contradictions() {
  local slurm=(SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 SLURM_JOB_ID=7 SLURM_STEP_ID=0)
  env "${slurm[@]}" RANK=1 WORLD_SIZE=2 "$lockstep" bench barrier --iterations 20 >"$work/node0" 2>&1
  [ $? = 2 ] || fail "RANK and SLURM_PROCID: want exit code 2"
  says 0 "RANK=1 WORLD_SIZE=2 | SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2" "RANK and SLURM_PROCID"
  env RANK=0 WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=3 "$lockstep" bench barrier --iterations 20 >"$work/node0" 2>&1
  [ $? = 2 ] || fail "WORLD_SIZE and OMPI_COMM_WORLD_SIZE: want exit code 2"
  says 0 "RANK=0 WORLD_SIZE=2 | OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=3" "WORLD_SIZE and OMPI_COMM_WORLD_SIZE"
  env "${slurm[@]}" timeout 20 "$lockstep" run --nnodes 1 -n 2 "$lockstep" bench barrier --iterations 20 >"$work/node0" 2>&1 ||
    fail "a launcher below srun"
  # srun and nothing else: its ranks meet in a file that is gone then
  (cd "$work" && for i in 0 1; do
    env "${slurm[@]}" SLURM_PROCID=$i SLURM_LAUNCH_NODE_IPADDR=127.0.0.1 timeout 20 "$lockstep" bench all_reduce --iterations 20 --sizes 4K >"node$i" 2>&1 &
  done; wait)
  says 0 "2 ranks over" "srun's variables"
  [ ! -e "$work/.lockstep-7.0" ] || fail "srun's variables: the file is left"
  (cd "$work" && for i in 0 1; do
    env "${slurm[@]}" SLURM_PROCID=$i SLURM_LAUNCH_NODE_IPADDR=127.0.0.1 timeout 20 "$lockstep" run -n 1 sh -c "$table" >"node$i" 2>&1 &
  done; wait)
  says 1 "table 1 2 0 1 1 2 127.0.0.1" "launchers that srun started"
}

# The first cause, from whichever machine, once in full and everywhere in a line.
a_rank_fails() {
  for who in 0 3; do
    for i in 0 1; do
      node $i --nnodes 2 --node-rank $i -n 2 -- sh -c "[ \$RANK = $who ] || exec sleep 60; sleep 0.2; echo reason >&2; exit 7" "$marker-fail"
    done
    want_codes "rank $who fails" 7 0 1
    says 0 "rank $who (host $(hostname), pid " "rank $who fails"
    says 0 "failed first: it exited with code 7" "rank $who fails"
    says 0 "    reason" "rank $who fails"
    [ "$(grep -c 'was ended by the launcher (SIGTERM)' "$work/node0")" = 3 ] || fail "rank $who fails: want all in the report"
    says 1 "rank $who (host $(hostname), pid " "rank $who fails"
    want_nothing_left "rank $who fails" "$marker-fail"
  done
  # code 4 tells of somebody else's end: of two that end together on another machine the other one is the cause
  node 0 --nnodes 2 --node-rank 0 -n 1 -- sleep 60
  node 1 --nnodes 2 --node-rank 1 -n 2 -- sh -c \
    ': >"$0.$RANK"; while [ ! -e "$0.1" ] || [ ! -e "$0.2" ]; do :; done; [ $RANK = 1 ] && exit 4; sleep 0.02; exit 7' "$work/both"
  want_codes "two fail together" 7 0 1
  says 0 "rank 2 (host $(hostname), pid " "two fail together"
  # who gives up because of another one is not the first: the launchers that print no report say the same
  LOCKSTEP_TIMEOUT=1 node 0 --nnodes 2 --node-rank 0 -n 1 -- "$lockstep" bench barrier
  node 1 --nnodes 2 --node-rank 1 -n 1 true
  want_codes "one leaves before it joined" 4 0 1
  for i in 0 1; do
    says $i "failed first: it exited with code 0 before it joined the job" "one leaves before it joined"
    says $i ": rank 1 (host $(hostname), pid " "one leaves before it joined"
  done
  # its consequences on the other machine are not taken for the cause
  for i in 0 1; do
    LOCKSTEP_HOST_ID="" node $i --nnodes 2 --node-rank $i -n 1 -- "$build/tests/program_ranks" loop "$work/mark"
  done
  wait_file "$work/mark"
  pkill -9 -P "$(pid_of 1)" program_ranks
  want_codes "rank 1 is killed" 137 0 1
  says 0 "rank 1 (host $(hostname), pid " "rank 1 is killed"
}

# A folder for lines that one of the machines cannot write: all end with the code for that, and say where.
lost_lines() {
  mkdir "$work/full"
  ln -s /dev/full "$work/full/rank-1.out"
  node 0 --nnodes 2 --node-rank 0 -n 1 -- echo here
  node 1 --nnodes 2 --node-rank 1 -n 1 --log-dir "$work/full" -- echo here
  want_codes "lost lines" 3 0 1
  says 1 "cannot write $work/full/rank-1.out: No space left on device" "lost lines"
  for i in 0 1; do says $i "host $(hostname) could not write its --log-dir" "lost lines"; done
}

# A rank is stopped and the other one of its machine has ended: ranks elsewhere may still wait for it, so it is not ended.
# The threads of a launcher that has called another one hold its signals, which are the main thread's.
a_rank_is_stopped() {
  local task blocked
  export LOCKSTEP_HEARTBEAT=0.5
  node 0 --nnodes 2 --node-rank 0 -n 2 -- sh -c '[ $RANK = 0 ] || { echo stops $$; kill -STOP $$; }'
  node 1 --nnodes 2 --node-rank 1 -n 1 -- sh -c 'echo up; sleep 3'
  unset LOCKSTEP_HEARTBEAT
  wait_for 0 stops
  wait_for 1 up
  for task in /proc/"$(pid_of 1)"/task/*; do
    [ "${task##*/}" != "$(pid_of 1)" ] || continue
    blocked=0x$(awk '/SigBlk/ {print $2}' "$task/status")
    (((blocked & 0x14a03) == 0x14a03)) || fail "a thread of the launcher takes signals: $blocked"
  done
  sleep 1.5
  kill -CONT "$(sed -n 's/.*stops //p' "$work/node0")"
  want_codes "a stopped rank goes on" 0 0 1
}

# Nobody is left who would miss it but the launchers: of the machine of the meeting, and of another one.
a_stopped_rank_is_left() {
  local who other
  export LOCKSTEP_HEARTBEAT=1
  for who in 0 1; do
    other=$((1 - who))
    node $who --nnodes 2 --node-rank $who -n 1 -- sh -c 'kill -STOP $$'
    node $other --nnodes 2 --node-rank $other -n 1 -- sh -c 'sleep 1.5'
    want_codes "a stopped rank is left on machine $who" 137 0 1
    grep -q "rank $who is stopped and the others have ended" "$work/node$who" || { fail "machine $who does not say so"; cat "$work/node$who"; }
  done
  # on both, where one of them has other ranks that have ended
  node 0 --nnodes 2 --node-rank 0 -n 2 -- sh -c '[ $RANK != 0 ] || exit 0; kill -STOP $$'
  node 1 --nnodes 2 --node-rank 1 -n 1 -- sh -c 'kill -STOP $$'
  want_codes "stopped ranks are left on both machines" 137 0 1
  grep -q 'is stopped and the others have ended' "$work"/node[01] || { fail "neither machine says so"; cat "$work"/node[01]; }
  unset LOCKSTEP_HEARTBEAT
}

wait_file() {
  for _ in $(seq 200); do [ -f "$1" ] && return; sleep 0.05; done
  fail "$1 is not there"
}

# A launcher that is killed takes its ranks along, and the others end.
a_launcher_dies() {
  for who in 0 1; do
    for i in 0 1; do node $i --nnodes 2 --node-rank $i -n 2 -- sh -c 'echo up; exec sleep 60' "$marker-die"; done
    wait_for 0 up 2
    wait_for 1 up 2
    kill -9 "$(pid_of $who)"
    want_codes "launcher $who is killed" 4 $((1 - who))
    wait "${launcher[who]}" 2>/dev/null
    says $((1 - who)) "is gone: its connection closed" "launcher $who is killed"
    want_nothing_left "launcher $who is killed" "$marker-die"
  done
}

stops() {
  local saver='trap "echo saved; exit 0" TERM; echo up; while :; do sleep 0.05; done'
  for who in 0 1; do
    for i in 0 1; do node $i --nnodes 2 --node-rank $i -n 2 -- bash -c "$saver" "$marker-stop"; done
    wait_for 0 up 2
    wait_for 1 up 2
    kill -TERM "$(pid_of $who)"
    want_codes "SIGTERM to launcher $who" 0 0 1
    [ "$(cat "$work"/node[01] | grep -c saved)" = 4 ] || fail "SIGTERM to launcher $who: not all have saved"
    for i in 0 1; do node $i --nnodes 2 --node-rank $i -n 2 -- bash -c 'trap "" INT; echo up; while :; do sleep 0.05; done' "$marker-stop"; done
    wait_for 0 up 2
    wait_for 1 up 2
    kill -INT "$(pid_of $who)"
    sleep 0.2
    kill -INT "$(pid_of 0)" "$(pid_of 1)" 2>/dev/null # twice: at once
    local begin
    begin=$(now_ms)
    want_codes "Ctrl-C twice, first at launcher $who" 130 0 1
    [ $(($(now_ms) - begin)) -le 10000 ] || fail "Ctrl-C twice, first at launcher $who: waits"
    want_nothing_left "stops" "$marker-stop"
  done
}

# Restarts of the whole, and of machines that come back.
restarts() {
  for i in 0 1; do
    node $i --nnodes 2 --node-rank $i -n 1 --max-restarts 2 -- sh -c \
      'echo "round $LOCKSTEP_ROUND restarts $LOCKSTEP_RESTART_COUNT"; [ "$LOCKSTEP_RESTART_COUNT" = 2 ] || { [ $RANK = $LOCKSTEP_RESTART_COUNT ] && exit 3; exec sleep 60; }'
  done
  want_codes restarts 0 0 1
  says 1 "round 3 restarts 2" restarts
  says 0 "round 3: 2 ranks on 2 of 2 machines, restart 2 of 2" restarts
}

elastic() {
  local member='echo "up $RANK of $WORLD_SIZE in round $LOCKSTEP_ROUND"; while [ ! -e '$work/done' ]; do sleep 0.05; done'
  local begin took
  for i in 0 1 2; do node $i --nnodes 2:3 --node-rank $i -n 1 -- sh -c "$member" "$marker-elastic"; done
  wait_for 2 "up 2 of 3 in round 1"
  begin=$(now_ms)
  kill -9 "$(pid_of 2)"
  wait_for 1 "up 1 of 2 in round 2"
  wait_for 0 "up 0 of 2 in round 2"
  took=$(($(now_ms) - begin))
  [ $took -le 5000 ] || fail "elastic: went on after $took ms"
  node 2 --nnodes 2:3 --node-rank 2 -n 1 -- sh -c "$member" "$marker-elastic"
  wait_for 2 "up 2 of 3 in round 3"
  wait_for 0 "up 0 of 3 in round 3"
  kill -TERM "$(pid_of 1)" # told to leave, it does
  code_of 1
  wait_for 2 "up 1 of 2 in round 4"
  kill -STOP "$(pid_of 2)" # gone without a word; what it finds when it wakes up is another job
  for _ in $(seq 200); do grep -q 'is gone: no sign of life' "$work/node0" && break; sleep 0.05; done
  says 0 "is gone: no sign of life for" elastic
  kill -CONT "$(pid_of 2)"
  wait_for 2 "in round 5"
  : >"$work/done"
  want_codes elastic 0 0 2
  want_nothing_left elastic "$marker-elastic"
}

for test in meet meet_in_a_file stale_file wrong one_too_many a_number_twice a_stranger_on_the_port no_rendezvous_file port_zero contradictions a_rank_fails lost_lines a_rank_is_stopped a_stopped_rank_is_left a_launcher_dies stops restarts elastic; do
  [ $# -lt 2 ] || [ "$2" = $test ] || continue
  begin=$(now_ms)
  before=$failures
  $test
  rm -f "$work"/node* "$work/mark" "$work/done"
  echo "$test: $([ "$before" = "$failures" ] && echo ok || echo FAILED) ($(($(now_ms) - begin)) ms)"
done
finish
