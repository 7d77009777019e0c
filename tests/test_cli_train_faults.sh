#!/usr/bin/env bash
# lockstep train, killed in mid-step: a rank with SIGKILL, the launcher with SIGKILL, Ctrl-C. The job ends
# within 2 seconds, the rank and the signal are named, no process and no segment is left, and no result
# claims to be complete.
# usage: test_cli_train_faults.sh BUILD
set -u
lockstep=$1/lockstep
folder=$(mktemp -d)
failures=0
job=
trap '[ -z "$job" ] || kill -9 "$job" 2>/dev/null; rm -rf "$folder"' EXIT

fail() {
    echo "FAILED: $*"
    sed 's/^/    stdout: /' "$folder/out" | tail -5
    sed 's/^/    stderr: /' "$folder/err" | tail -10
    failures=$((failures + 1))
}

# Processes whose command line names this test's folder; the bracket keeps grep from finding itself.
left_over() { grep -lsa -- "[/]${folder#/}" /proc/[0-9]*/cmdline 2>/dev/null; }

want_nothing_left() {
    for _ in $(seq 40); do
        [ -z "$(left_over)" ] && return
        sleep 0.05
    done
    fail "$1: processes are left: $(left_over | tr '\n' ' ')"
}

# pid_of_rank R: the child of the launcher with RANK=R in its environment
pid_of_rank() {
    for pid in $(cat "/proc/$job/task/$job/children"); do
        tr '\0' '\n' <"/proc/$pid/environ" 2>/dev/null | grep -qx "RANK=$1" && echo "$pid"
    done
}

# start TRANSPORT: four ranks that train for as long as they are let, past their first steps
start() {
    rm -rf "$folder/run"
    "$lockstep" train --model gpt:layers=1,heads=2,width=32,context=16 --data "text:$folder/text" \
        --steps 1000000 --batch-size 8 --eval-every 1000000 --ranks 4 --transport "$1" --out "$folder/run" \
        >"$folder/out" 2>"$folder/err" </dev/null &
    job=$!
    for _ in $(seq 600); do
        [ "$(wc -l 2>/dev/null <"$folder/run/metrics.jsonl")" -ge 3 ] 2>/dev/null && return
        sleep 0.05
    done
    fail "training over $1 did not start"
}

now_ms() { echo $(($(date +%s%N) / 1000000)); }

# finish WHAT CODE
finish() {
    local begin took code
    begin=$(now_ms)
    wait "$job" 2>/dev/null
    code=$?
    took=$(($(now_ms) - begin))
    [ $code = "$2" ] || fail "$1: exit code $code, want $2"
    [ $took -le 2000 ] || fail "$1: the job ended after $took ms, want 2000 at most"
    job=
    want_nothing_left "$1"
    [ ! -e "$folder/run/summary.json" ] || fail "$1: there is a summary of a run that did not end"
}

segments() { ls /dev/shm 2>/dev/null | grep -c lockstep; }

for i in $(seq 2000); do echo "line $i: the quick brown fox jumps over the lazy dog"; done >"$folder/text"
before=$(segments)

for transport in shm tcp; do
    if [ $transport = tcp ] && ! "$lockstep" doctor | grep -q '^  tcp  *built in; loopback works'; then
        echo "tcp is not built in: skipped"
        continue
    fi
    start $transport
    kill -9 "$(pid_of_rank 2)"
    finish "kill -9 of rank 2 over $transport" 137
    grep -q '^lockstep train: rank 2 (pid [0-9]*) failed first: it was killed by signal 9 (SIGKILL)' "$folder/err" ||
        fail "kill -9 of rank 2 over $transport: the report does not name it"
done

start shm
kill -9 "$job"
finish "kill -9 of the launcher" 137

start shm
kill -INT "$job"
finish "Ctrl-C" 130
grep -q 'stopped by SIGINT' "$folder/err" || fail "Ctrl-C: not reported"

start shm
kill -STOP "$(pid_of_rank 1)"
kill -9 "$(pid_of_rank 3)"
finish "kill -9 of rank 3 while rank 1 hangs" 137

[ "$(segments)" = "$before" ] || fail "a segment is left in /dev/shm"
[ $failures = 0 ]
