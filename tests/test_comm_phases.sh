#!/usr/bin/env bash
# Every fault in every phase, over tcp, by hand and so with no launcher to tell: rank 2 of 3 is killed, stopped, ends with
# code 0 or 7, or its link is cut, while the ranks meet, while they are idle, and in the middle of an operation. All
# others end within a bound, with an error that names rank 2, and nothing is left. (Each operation: test_comm_kill.c; a
# full /dev/shm: test_cli_kills.sh; under mpirun: test_comm_mpi.sh.)
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
has_tcp || skip "no tcp in this build, or no loopback"
unset LOCKSTEP_TRANSPORT
export LOCKSTEP_HEARTBEAT=1 LOCKSTEP_TOKEN=phases
DEAD=1000 BEAT=5000 MEET=6000 # ms: a dead rank; a stopped one by heartbeat; one that the start waits for (4 s)
SLACK=1500                    # of processes and shells on a busy machine

# phase, fault, bound for rank 0, bound for rank 1 (which comes late to the meeting, when nobody may be left)
cells="
meeting   kill  $DEAD  $MEET
meeting   stop  $MEET  $MEET
meeting   0     $MEET  $MEET
meeting   7     $MEET  $MEET
meeting   cut   $MEET  $MEET
idle      kill  $DEAD  $DEAD
idle      stop  $BEAT  $BEAT
idle      0     $DEAD  $DEAD
idle      7     $DEAD  $DEAD
idle      cut   $BEAT  $BEAT
operation kill  $DEAD  $DEAD
operation stop  $BEAT  $BEAT
operation 0     $DEAD  $DEAD
operation 7     $DEAD  $DEAD
operation cut   $BEAT  $BEAT"

can_cut=yes
command -v ip >/dev/null && ip netns add "lstphase$$" 2>/dev/null || can_cut=
[ -n "$can_cut" ] && ip netns del "lstphase$$"
spaces() { ip netns list 2>/dev/null | awk -v p="lstphase$$" 'index($1, p) == 1 { print $1 }'; }
end_spaces() {
  local space
  for space in $(spaces); do ip netns del "$space"; done
  cleanup
}
trap end_spaces EXIT

# two hosts for a cell that cuts the link: sets $near, $far, $address
make_link() {
  near=lstphase$$-$1a far=lstphase$$-$1b address=10.83.$1.1
  ip netns add "$near" && ip netns add "$far" && ip link add link0 netns "$near" type veth peer name link0 netns "$far" || return
  local host n=1
  for host in "$near" "$far"; do
    ip -n "$host" addr add "10.83.$1.$n/24" dev link0
    ip -n "$host" link set lo up && ip -n "$host" link set link0 up
    n=2
  done
}

# at_fault PHASE FAULT: what rank 2 is to do by itself; in the meeting, one that ends never joins
at_fault() {
  case $1-$2 in
  meeting-[07]) echo "bash $work/exit$2" ;;
  *-[07]) echo "env LOCKSTEP_TEST_EXIT=$2" ;;
  *) echo "env" ;;
  esac
}

# begin RANK COMMAND...: in the background; its end goes to $dir/endRANK
begin() {
  local rank=$1
  shift
  (
    RANK=$rank WORLD_SIZE=3 LOCKSTEP_HOST_ID=host$rank MASTER_ADDR=$address MASTER_PORT=$port LOCKSTEP_TIMEOUT=4 \
      "$@" >"$dir/rank$rank" 2>&1
    echo "$? $(now_ms)" >"$dir/end$rank"
  ) &
}

# cell NUMBER PHASE FAULT BOUND0 BOUND1: prints what was wrong
cell() {
  local phase=$2 fault=$3 dir=$work/cell$1 port=$((12000 + ($$ + $1 * 97) % 8000)) address=127.0.0.1 near='' far='' at rank pid i
  local -a bounds=("$4" "$5") here=() there=()
  mkdir "$dir"
  if [ "$fault" = cut ]; then
    make_link "$1" || return
    here=(nsenter "--net=/run/netns/$near") there=(nsenter "--net=/run/netns/$far")
  fi
  local program=$build/tests/program_ranks
  begin 0 "${here[@]}" "$program" "$phase" "$dir/mark"
  # shellcheck disable=SC2046
  begin 2 "${there[@]}" $(at_fault "$phase" "$fault") "$program" "$phase" "$dir/mark"
  if [ "$phase" = meeting ]; then
    sleep 0.7
    at=$(now_ms)
    (sleep 0.7; begin 1 "${here[@]}" "$program" "$phase"; wait) &
  else
    begin 1 "${here[@]}" "$program" "$phase"
    for ((i = 0; i < 200; i++)); do [ -f "$dir/mark" ] && break; sleep 0.05; done
    [ -f "$dir/mark" ] || echo "it does not run: $(cat "$dir"/rank*)"
    at=$(now_ms)
  fi
  pid=$(pgrep -f -- "$program $phase $dir/mark" | while read -r p; do grep -sqz '^RANK=2$' "/proc/$p/environ" && echo "$p"; done | tail -1)
  case $fault in
  kill) kill -9 "$pid" ;;
  stop) kill -STOP "$pid" ;;
  cut) ip -n "$near" link set link0 down ;;
  esac
  for ((i = 0; i < 200; i++)); do [ -f "$dir/end0" ] && [ -f "$dir/end1" ] && break; sleep 0.05; done
  for rank in 0 1; do
    local code=none end=0
    [ ! -f "$dir/end$rank" ] || read -r code end <"$dir/end$rank"
    [ "$code" = 4 ] || echo "rank $rank: exit code $code, want 4: $(tail -2 "$dir/rank$rank")"
    [ $((end - at)) -le $((bounds[rank] + SLACK)) ] || echo "rank $rank took $((end - at)) ms, want ${bounds[rank]}"
    [ $rank-$phase = 1-meeting ] || grep -q 'rank 2\|ranks [0-9, ]*2' "$dir/rank$rank" || echo "rank $rank does not name rank 2: $(tail -2 "$dir/rank$rank")"
  done
  [ -z "$pid" ] || kill -9 "$pid" 2>/dev/null
  wait
}

echo 'exit 0' >"$work/exit0"
echo 'exit 7' >"$work/exit7"
number=0
while read -r phase fault bound0 bound1; do
  [ -n "$phase" ] || continue
  number=$((number + 1))
  if [ "$fault" = cut ] && [ -z "$can_cut" ]; then
    echo "no right to make network namespaces: no link is cut ($phase)"
    continue
  fi
  cell $number "$phase" "$fault" "$bound0" "$bound1" >"$work/said$number" 2>&1 &
  cells_of[number]="$phase, $fault"
  [ $((number % 5)) != 0 ] || wait
done <<<"$cells"
wait
for number in "${!cells_of[@]}"; do
  grep -v 'Killed\|Stopped' "$work/said$number" >"$work/bad"
  [ ! -s "$work/bad" ] || fail "${cells_of[number]}: $(cat "$work/bad")"
done
want_nothing_left "phases"
[ -z "$(spaces | xargs -r -n 1 ip netns pids)" ] || fail "processes are left in a namespace"
finish
