#!/usr/bin/env bash
# lockstep run, as a user sees it: exit codes, output, failures, signals, and that nothing is left.
# usage: test_cli_run.sh BUILD [ONE]
# shellcheck source=tests/lib.sh
# shellcheck disable=SC2016 # what the ranks' shells are to expand stands in single quotes
. "$(dirname "$0")/lib.sh"
marker=$work/run-

fail() {
  echo "FAILED: $*"
  sed 's/^/    stdout: /' "$work/out" 2>/dev/null | head -20
  sed 's/^/    stderr: /' "$work/err" 2>/dev/null | head -20
  failures=$((failures + 1))
}

# run ARGUMENTS: runs `lockstep run ARGUMENTS` with files for stdout and stderr; sets $code
run() {
  timeout -k 5 20 "$lockstep" run "$@" >"$work/out" 2>"$work/err" </dev/null
  code=$?
}

want_code() { [ "$code" = "$1" ] || fail "$2: exit code $code, want $1"; }
want_out() { grep -qF -- "$1" "$work/out" || fail "$2: stdout lacks '$1'"; }
want_err() { grep -qF -- "$1" "$work/err" || fail "$2: stderr lacks '$1'"; }
want_no_err() { ! grep -qF -- "$1" "$work/err" || fail "$2: stderr has '$1'"; }

# wait_for TEXT FILE: until a line with TEXT is there, 10 s at most
wait_for() {
  for _ in $(seq 200); do
    grep -qF -- "$1" "$2" 2>/dev/null && return
    sleep 0.05
  done
  fail "waited in vain for '$1'"
}

# start MARKER ARGUMENTS: in the background, $job is the launcher
start() {
  : >"$work/out"
  "$lockstep" run "${@:2}" "$1" >"$work/out" 2>"$work/err" </dev/null &
  job=$!
}

# ends WHAT MILLISECONDS: waits for the job of `start`, sets $code, bounds the time
ends() {
  local begin
  begin=$(now_ms)
  wait "$job"
  code=$?
  local took=$(($(now_ms) - begin))
  [ $took -le "$2" ] || fail "$1: ended after $took ms, want at most $2"
}

# A rank with two generations of children; says "up" when they run.
family='sleep 100 & sh -c "sleep 100 & wait" & echo up $RANK; wait'

up() { for rank in 0 1 2 3; do wait_for "up $rank" "$work/out"; done; }

exit_codes() {
  run -n 2 true
  want_code 0 "success"
  [ ! -s "$work/err" ] || fail "success: something on stderr"
  run -n 3 sh -c 'exit $((RANK == 1 ? 7 : 0))'
  want_code 7 "exit 7"
  want_err "rank 1 (pid" "exit 7"
  want_err "exited with code 7" "exit 7"
  run -n 1 sh -c 'kill -SEGV $$'
  want_code 139 "segmentation fault"
  want_err "signal 11 (SIGSEGV)" "segmentation fault"
  run -n 2 no-such-program-here
  want_code 127 "not found"
  want_err "'no-such-program-here' not found" "not found"
  [ "$(wc -l <"$work/err")" = 1 ] || fail "not found: want one line"
  run -n 2 ./no/such/path
  want_code 127 "path not found"
  echo 'echo hello' >"$work/plain"
  run -n 2 "$work/plain"
  want_code 126 "not executable"
  printf '#!/no/such/interpreter\n' >"$work/script"
  chmod +x "$work/script"
  run -n 1 "$work/script"
  want_code 127 "interpreter not found"
  want_err "$work/script" "interpreter not found"
}

wrong_usage() {
  for n in 0 -1 x 4097 99999999999999999999 2.5 ''; do
    run -n "$n" true
    want_code 2 "-n '$n'"
    [ "$(wc -l <"$work/err")" = 1 ] || fail "-n '$n': want one line"
  done
  run -n 2
  want_code 2 "no program"
  run true
  want_code 2 "no -n"
  run -n 2 --grac 3 true
  want_code 2 "unknown option"
  want_err "unknown option --grac; did you mean --grace?" "unknown option"
  run -n 2 --prefix --no-prefix true
  want_code 2 "contradiction"
  # what cannot be is refused alike by a run and by one that only says what it would do
  for how in "" --dry-run; do
    run -n 257 $how true
    want_code 2 "257 ranks over shm $how"
    want_err "transport shm (tcp is the other): shared memory for 257 ranks; want 1 to 256" "257 ranks over shm $how"
    refused "--rendezvous 'here' is not HOST:PORT" --nnodes 2 --rendezvous here $how
    refused "--rendezvous and --rendezvous-file contradict each other" --nnodes 2 --rendezvous 127.0.0.1:1 --rendezvous-file f $how
    refused "--rendezvous-file: say which launcher listens" --nnodes 2 --rendezvous-file f $how
    refused "--redirect wants --log-dir" --redirect out $how
    refused "--redirect '2:out': there is no rank 2, want 0 to 1" --log-dir "$work/no" --redirect 2:out $how
    refused "--tee '0:out,2:err': there is no rank 2" --log-dir "$work/no" --tee 0:out,2:err $how
    refused "--tee '1:out,0:out,1:err': rank 1 is there twice" --log-dir "$work/no" --tee 1:out,0:out,1:err $how
    for list in 0:nothing '0:out,' ',0:out' 4 0:out,err ''; do
      refused "--redirect" --log-dir "$work/no" --redirect "$list" $how
    done
    # and what would mean nothing
    for option in "--rendezvous 127.0.0.1:29400" "--rendezvous-file f" "--node-rank 0" "--join-timeout 3"; do
      # shellcheck disable=SC2086
      refused "${option% *} is for several machines: say how many with --nnodes" $option $how
    done
  done
  refused "--format json says how a job ended, and --dry-run starts none" --format json --dry-run
  run -n 2 --nnodes 1 --node-rank 0 --join-timeout 3 true
  want_code 0 "one machine, said so"
  run --help
  want_code 0 "help"
  want_out "--fail-grace SECONDS" "help"
  "$lockstep" --version | grep -q '^lockstep [0-9]' || fail "version"
  "$lockstep" >/dev/null 2>&1
  [ $? = 2 ] || fail "no command: want exit code 2"
  "$lockstep" rum >"$work/out" 2>"$work/err"
  [ $? = 2 ] || fail "unknown command: want exit code 2"
  want_err "did you mean run?" "unknown command"
  "$lockstep" help run | grep -q '^Usage: lockstep run' || fail "help run"
}

# refused WHY OPTIONS: two ranks with them end with the usage code, and one line that says WHY
refused() {
  run -n 2 "${@:2}" true
  want_code 2 "${*:2}"
  want_err "$1" "${*:2}"
  [ "$(wc -l <"$work/err")" = 1 ] || fail "${*:2}: want one line"
}

environment() {
  env -u OMP_NUM_THREADS RANK=9 LOCKSTEP_SHM_FD=77 "$lockstep" run -n 2 --no-prefix -- sh -c \
    'echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK $MASTER_ADDR $OMP_NUM_THREADS $LOCKSTEP_SHM_FD
    test "$MASTER_PORT" -gt 1023 && test ${#LOCKSTEP_TOKEN} = 64 && test -z "$LOCKSTEP_TERMINAL" && echo good' \
    >"$work/out" 2>"$work/err" </dev/null
  want_out "0 0 2 2 0 127.0.0.1 1 4" "environment"
  want_out "1 1 2 2 0 127.0.0.1 1 4" "environment"
  [ "$(grep -c good "$work/out")" = 2 ] || fail "environment: port, token or terminal"
  OMP_NUM_THREADS=5 "$lockstep" run -n 1 sh -c 'echo $OMP_NUM_THREADS' >"$work/out"
  want_out 5 "OMP_NUM_THREADS is the user's"
  run -n 1 --transport tcp sh -c 'echo "$LOCKSTEP_TRANSPORT ${LOCKSTEP_SHM_FD-none}"; ls /proc/self/fd' 9</etc/passwd
  want_out "tcp none" "tcp"
  # 0 1 2, the board, the socket of rank 0 and the one ls reads with
  [ "$(wc -l <"$work/out")" = 7 ] || fail "descriptors of the launcher reach a rank"
  LOCKSTEP_TRANSPORT=tcp run -n 1 sh -c 'echo "$LOCKSTEP_TRANSPORT ${LOCKSTEP_SHM_FD-none}"'
  want_out "tcp none" "LOCKSTEP_TRANSPORT"
  LOCKSTEP_TRANSPORT=tpc run -n 1 true
  want_code 2 "LOCKSTEP_TRANSPORT"
  # a bad value is refused by name, whether or not this job would use it
  for variable in LOCKSTEP_TIMEOUT=abc LOCKSTEP_HEARTBEAT=no LOCKSTEP_STREAMS=9 LOCKSTEP_ALGORITHM=ring LOCKSTEP_CPU=avx1024 \
    LOCKSTEP_MPI=intel LOCKSTEP_TRANSPORT=tpc; do
    for how in "" --dry-run; do
      # shellcheck disable=SC2086
      (export "${variable?}"; run -n 1 --transport shm $how true; exit $code)
      code=$?
      want_code 2 "$variable $how"
      want_err "${variable%=*}" "$variable $how"
      want_err "${variable#*=}" "$variable $how"
    done
  done
  for variable in SLURM_PROCID=first SLURM_PROCID=2 SLURM_STEP_NUM_TASKS=513; do
    (export SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 SLURM_JOB_ID=7 SLURM_STEP_ID=0 "${variable?}"; run -n 1 true; exit $code)
    code=$?
    want_code 2 "$variable"
    want_err "${variable%=*} is '${variable#*=}'" "$variable"
  done
  echo for-rank-0 | timeout 10 "$lockstep" run -n 2 cat >"$work/out"
  [ "$(cat "$work/out")" = "[rank 0] for-rank-0" ] || fail "stdin belongs to rank 0"
}

output() {
  run -n 3 sh -c 'for i in 1 2 3 4 5 6 7 8 9; do printf a$RANK; printf b$RANK; echo c$RANK; done; echo e$RANK >&2; printf last'
  [ "$(grep -cE '^\[rank ([0-2])\] a\1b\1c\1$' "$work/out")" = 27 ] || fail "lines are mixed"
  [ "$(grep -cE '^\[rank [0-2]\] last$' "$work/out")" = 3 ] || fail "last line without newline"
  [ "$(grep -cE '^\[rank ([0-2])\] e\1$' "$work/err")" = 3 ] || fail "stderr lines"
  run -n 1 sh -c 'printf raw'
  [ "$(cat "$work/out")" = raw ] && [ "$(wc -c <"$work/out")" = 3 ] || fail "one rank: bytes as they are"
  # a line of just under 1 MiB comes whole, one of 3 MiB in pieces and complete
  run -n 2 sh -c 'head -c 1000000 /dev/zero | tr "\0" x; echo'
  [ "$(awk '{print length}' "$work/out" | sort -u)" = 1000009 ] || fail "a line of 1 MB"
  run -n 2 sh -c 'head -c 3000000 /dev/zero | tr "\0" x; echo'
  [ "$(tr -cd x <"$work/out" | wc -c)" = 6000000 ] || fail "a line of 3 MB: bytes are lost"
  grep -vq '^\[rank [01]\] x*$' "$work/out" && fail "a line of 3 MB: a piece lacks its prefix"
  run -n 2 --format json sh -c 'echo "$RANK" | grep 0'
  tail -1 "$work/out" | grep -q '"exit_code":1.*"first_failure":{"rank":1,' || fail "json report"
}

closed_stdout() {
  local begin
  begin=$(now_ms)
  timeout -k 5 20 "$lockstep" run -n 2 sh -c 'yes; :' "${marker}pipe" 2>"$work/err" | head -1 >"$work/out"
  code=${PIPESTATUS[0]}
  want_code 141 "closed stdout"
  [ $(($(now_ms) - begin)) -le 10000 ] || fail "closed stdout: too slow"
  want_nothing_left "closed stdout" "${marker}pipe"
  timeout -k 5 20 "$lockstep" run -n 2 echo hello >/dev/full 2>"$work/err"
  code=$?
  want_code 3 "full device"
  want_err "No space left" "full device"
  # a reader that pauses loses nothing
  timeout -k 5 20 "$lockstep" run -n 2 seq 100000 2>"$work/err" | (sleep 1.5; cat) >"$work/out"
  [ "$(wc -l <"$work/out")" = 200000 ] || fail "a slow reader loses lines"
}

first_failure() {
  local begin
  run -n 4 sh -c 'test $RANK = 2 || exec sleep 100; for i in 1 2 3 4 5 6 7 8 9 10 11 12; do echo "line $i" >&2; done; exit 9' "${marker}fail"
  want_code 9 "first failure"
  want_err "rank 2 (pid" "first failure"
  grep -qx '    line 3' "$work/err" && grep -qx '    line 12' "$work/err" &&
    ! grep -qx '    line 2' "$work/err" || fail "first failure: want the last ten lines"
  want_err "ended by the launcher (SIGTERM)" "first failure"
  want_nothing_left "first failure" "${marker}fail"
  run -n 40 sh -c 'test $RANK != 20 || exit 6; exec sleep 100' "${marker}many"
  want_code 6 "many ranks"
  want_err "ranks 0 to 19: each was ended by the launcher (SIGTERM)" "many ranks"
  want_err "ranks 21 to 39: each was ended by the launcher (SIGTERM)" "many ranks"
  want_nothing_left "many ranks" "${marker}many"
  # who ignores SIGTERM is killed
  begin=$(now_ms)
  run -n 2 bash -c 'test $RANK = 0 && exit 3; trap "" TERM; while :; do sleep 0.1; done' "${marker}stubborn"
  want_code 3 "stubborn rank"
  want_err "ended by the launcher (SIGKILL)" "stubborn rank"
  [ $(($(now_ms) - begin)) -le 10000 ] || fail "stubborn rank: too slow"
  want_nothing_left "stubborn rank" "${marker}stubborn"
  # code 4 tells of somebody else's failure: the cause is the other one
  run -n 2 sh -c 'test $RANK = 0 && exit 4; sleep 0.2; kill -9 $$'
  want_code 137 "cause and consequence"
}

killed_rank() {
  start "${marker}kill" -n 4 sh -c "echo pid \$RANK \$\$; $family"
  up
  kill -9 "$(sed -n 's/^\[rank 2\] pid 2 //p' "$work/out")"
  ends "kill -9 of a rank" 2000
  want_code 137 "kill -9 of a rank"
  want_err "rank 2 (pid" "kill -9 of a rank"
  want_err "killed by signal 9 (SIGKILL)" "kill -9 of a rank"
  want_nothing_left "kill -9 of a rank" "${marker}kill"
}

signals() {
  local name number
  for pair in INT:130 TERM:143 HUP:129; do
    name=${pair%:*} number=${pair#*:}
    start "$marker$name" -n 4 sh -c "$family"
    up
    kill -"$name" $job
    ends "SIG$name" 2000
    want_code "$number" "SIG$name"
    want_err "stopped by SIG$name" "SIG$name"
    want_nothing_left "SIG$name" "$marker$name"
  done
  # a rank that wants to save first has the time
  start "${marker}save" -n 4 bash -c 'trap "sleep 1; echo saved; exit 0" TERM; echo up $RANK; while :; do sleep 0.05; done'
  up
  kill -TERM $job
  ends "saving on SIGTERM" 4000
  want_code 0 "saving on SIGTERM"
  want_err "stopped by SIGTERM; all 4 ranks have ended with code 0" "saving on SIGTERM"
  [ "$(grep -c saved "$work/out")" = 4 ] || fail "saving on SIGTERM: want it from every rank"
  # who ignores it and says nothing is killed when the grace is over
  start "${marker}deaf" -n 4 --grace 0.5 bash -c 'trap "" TERM; echo up $RANK; sleep 100'
  up
  kill -TERM $job
  ends "deaf ranks" 3000
  want_code 143 "deaf ranks"
  want_err "all 4 ranks have ended, 4 had to be killed" "deaf ranks"
  want_nothing_left "deaf ranks" "${marker}deaf"
  # a second Ctrl-C does not wait
  start "${marker}twice" -n 4 bash -c 'trap "" INT; echo up $RANK; while :; do sleep 0.05; done'
  up
  kill -INT $job
  sleep 0.2
  kill -INT $job
  ends "second Ctrl-C" 1000
  want_code 130 "second Ctrl-C"
  want_nothing_left "second Ctrl-C" "${marker}twice"
}

# A signal that is there before the launcher has looked for any ends it as a later one does; nothing is started.
early_signals() {
  local pair
  for pair in INT:130 TERM:143 HUP:129; do
    timeout -k 5 20 env --block-signal="${pair%:*}" sh -c 'kill -$1 $$; exec "$0" run -n 2 touch "$2"' "$lockstep" "${pair%:*}" "$work/started" \
      >"$work/out" 2>"$work/err" </dev/null
    code=$?
    want_code "${pair#*:}" "early SIG${pair%:*}"
    want_err "stopped by SIG${pair%:*}" "early SIG${pair%:*}"
    [ ! -e "$work/started" ] || fail "early SIG${pair%:*}: ranks were started"
  done
  # the ranks find blocked what the caller had blocked, and nothing else
  for pair in USR2:0800 TERM:4000; do
    env --block-signal="${pair%:*}" timeout -k 5 20 "$lockstep" run -n 1 grep SigBlk /proc/self/status >"$work/out" 2>"$work/err"
    [ "$(awk '{print $2}' "$work/out")" = "000000000000${pair#*:}" ] || fail "SIG${pair%:*} is blocked"
  done
  run -n 1 grep SigBlk /proc/self/status
  want_out 0000000000000000 "no signal is blocked"
  # and what a parent ignores stays ignored
  (trap '' HUP USR1 && exec "$lockstep" run -n 1 sh -c 'kill -HUP $PPID; kill -USR1 $PPID; sleep 0.2; echo through') >"$work/out" 2>"$work/err"
  want_out through "nohup"
}

killed_launcher() {
  start "${marker}launcher" -n 4 sh -c "$family"
  up
  kill -9 $job
  wait $job 2>/dev/null
  want_nothing_left "kill -9 of the launcher" "${marker}launcher"
  # ranks that are stopped, and in the middle of starting
  start "${marker}stopped" -n 4 sh -c 'echo up $RANK; kill -STOP $$; sleep 100'
  up
  kill -9 $job
  wait $job 2>/dev/null
  want_nothing_left "kill -9 of the launcher of stopped ranks" "${marker}stopped"
  for delay in 0.001 0.003 0.006 0.010; do
    start "${marker}early" -n 8 sh -c "$family"
    sleep $delay
    kill -9 $job
    wait $job 2>/dev/null
    want_nothing_left "kill -9 of the launcher after $delay s" "${marker}early"
  done
}

two_jobs() {
  timeout 20 "$lockstep" run -n 2 sh -c 'sleep 0.5; echo first $MASTER_PORT' >"$work/a" &
  local first=$!
  timeout 20 "$lockstep" run -n 2 sh -c 'exit 5' >/dev/null 2>&1
  [ $? = 5 ] || fail "two jobs: the second fails on its own"
  wait $first || fail "two jobs: the first was disturbed"
  [ "$(grep -c first "$work/a")" = 2 ] || fail "two jobs: output of the first"
}

# A job that cannot start in full does not start in part.
too_few_files() {
  (ulimit -n 60 && timeout -k 5 20 "$lockstep" run -n 100 sleep 100 "${marker}files") >"$work/out" 2>"$work/err"
  code=$?
  want_code 1 "too few descriptors"
  want_err "ulimit -n is 60" "too few descriptors"
  want_nothing_left "too few descriptors" "${marker}files"
  (ulimit -n 60 && timeout -k 5 20 "$lockstep" run -n 100 --dry-run true) >"$work/out" 2>"$work/err"
  code=$?
  want_code 1 "too few descriptors, said beforehand"
  want_err "ulimit -n is 60" "too few descriptors, said beforehand"
}

leftovers() {
  local begin
  begin=$(now_ms)
  run -n 2 sh -c 'sleep 100 & exit 0' "${marker}child"
  want_code 0 "a rank that leaves a child"
  [ $(($(now_ms) - begin)) -le 10000 ] || fail "a rank that leaves a child: too slow"
  want_nothing_left "a rank that leaves a child" "${marker}child"
  run -n 2 bash -c 'echo through > >(sleep 0.1; cat)'
  [ "$(grep -c through "$work/out")" = 2 ] || fail "last words of a rank's children are lost"
}

# Who left the rank's process group ends with the ranks too: setsid, a daemon, one that has forgotten its environment,
# however the rank ends; as long as a rank runs, they do.
daemons() {
  local daemon='sleep 100; :'
  run -n 2 sh -c 'setsid sh -c "$1" "$0" & exit 0' "${marker}session" "$daemon"
  want_code 0 "setsid"
  want_nothing_left "setsid" "${marker}session"
  run -n 2 sh -c '(setsid sh -c "$1" "$0" >/dev/null 2>&1 </dev/null &) ; (env -i setsid sh -c "sh -c \"$1\" & $1" "$0" &); exit 7' "${marker}daemon" "$daemon"
  want_code 7 "daemons"
  want_nothing_left "daemons" "${marker}daemon"
  start "${marker}served" -n 2 sh -c '(setsid sh -c "sleep 100; :" "$0" >/dev/null 2>&1 &); sleep 1; echo $(pgrep -fc "^sh -c sleep 100; : $0"); echo up; sleep 100'
  wait_for up "$work/out"
  sleep 0.1
  kill -TERM $job
  ends "daemons of ranks that are stopped" 3000
  want_out " 2" "daemons live as long as a rank does"
  want_nothing_left "daemons of ranks that are stopped" "${marker}served"
  run -n 1 --max-restarts 1 sh -c '(setsid sh -c "sleep 100; :" "$0" >/dev/null 2>&1 &); [ $LOCKSTEP_ROUND = 2 ] || exit 3
    sleep 0.1; echo left $(pgrep -fc "^sh -c sleep 100; : $0")' "${marker}rounds"
  want_code 0 "daemons of a round"
  want_out "left 1" "daemons of a round: gone with it"
  want_nothing_left "daemons of a round" "${marker}rounds"
  run -n 1 sh -c 'for i in 1 2 3; do (setsid true &); done; sleep 0.3; echo zombies $(ps --ppid $PPID -o stat= | grep -c Z)'
  want_out "zombies 0" "daemons that end before the ranks"
  # a child that the launcher had before it was one is not its rank's, nor is what that leaves behind
  sh -c 'sh -c "sleep 100; :" "$1-child" & sh -c "sh -c \"sleep 100; :\" $1-orphan & sleep 0.3" &
    exec "$0" run -n 1 sh -c "(setsid sh -c \"sleep 100; :\" $1-daemon >/dev/null 2>&1 &); sleep 0.6"' \
    "$lockstep" "$work/own" >"$work/out" 2>"$work/err" </dev/null || fail "children of its own: exit code $?"
  want_nothing_left "children of its own: the daemon of a rank" "$work/own-daemon\$"
  [ "$(pgrep -fc "$work/own-child\$")" = 1 ] || fail "children of its own: its child was killed"
  [ "$(pgrep -fc "$work/own-orphan\$")" = 1 ] || fail "children of its own: the orphan of its child was killed"
}

# A rank that ends before it joined: the others do not wait for it, in whatever order.
early_exit() {
  local rank transport transports=shm
  ! "$lockstep" doctor | grep -q '^  tcp  *built in; loopback works' || transports+=" tcp"
  for transport in $transports; do
    for rank in 0 1; do
      for delay in 0 0.3; do
        begin=$(now_ms)
        run -n 2 --transport "$transport" -- sh -c '[ $RANK = $1 ] || exec "$0" bench barrier; sleep $2' "$lockstep" $rank $delay
        want_code 4 "early exit of rank $rank over $transport"
        want_err "rank $rank ended before it joined the job" "early exit of rank $rank over $transport"
        want_err "failed first: it exited with code 0 before it joined the job" "early exit of rank $rank over $transport"
        [ $(($(now_ms) - begin)) -le 10000 ] || fail "early exit of rank $rank over $transport: too slow"
      done
    done
  done
}

# Whoever stops the watcher by mistake does not stop the launcher's end.
stopped_watcher() {
  start "${marker}watcher" -n 2 sh -c 'echo up; sleep 100'
  wait_for up "$work/out"
  kill -STOP "$(pgrep -P "$job" lockstep-watch)" || fail "no watcher"
  kill -INT "$job"
  ends "stopped watcher" 5000
  want_code 130 "stopped watcher"
  want_nothing_left "stopped watcher" "${marker}watcher"
}

for test in exit_codes wrong_usage environment output closed_stdout first_failure killed_rank signals early_signals \
  killed_launcher two_jobs too_few_files leftovers daemons early_exit stopped_watcher; do
  [ $# -lt 2 ] || [ "$2" = $test ] || continue
  begin=$(now_ms)
  before=$failures
  $test
  echo "$test: $([ "$before" = "$failures" ] && echo ok || echo FAILED) ($(($(now_ms) - begin)) ms)"
done
finish
