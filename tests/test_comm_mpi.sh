#!/usr/bin/env bash
# Ranks started by the mpirun of OpenMPI and of MPICH: every collective, the bits of the other transports,
# mismatches, leavers; jobs from communicators of a program that uses MPI itself.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"

ranks=$build/tests/program_ranks
export LOCKSTEP_TIMEOUT=20 LOCKSTEP_MODULES=$build
# In a sanitized build: the MPI libraries keep memory of their own to the end.
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0
# A program that links a sanitized library is linked with its sanitizer.
sanitizer=()
found=$(sed -n 's/^LOCKSTEP_SANITIZE:[A-Z]*=//p' "$build/CMakeCache.txt")
[ -z "$found" ] || sanitizer=("-fsanitize=$found")
tried=0

# mpirun_of MPI N COMMAND...
mpirun_of() {
  local mpi=$1 n=$2
  shift 2
  if [ "$mpi" = openmpi ]; then
    timeout -k 5 120 mpirun.openmpi --allow-run-as-root --oversubscribe --bind-to none -n "$n" "$@"
  else
    timeout -k 5 120 mpirun.mpich -n "$n" "$@"
  fi
}

# by_hand N WHAT: prints the ranks' lines, over tcp
by_hand() {
  local n=$1 rank port
  local -x LOCKSTEP_TRANSPORT=tcp
  port=$(free_port)
  for ((rank = 0; rank < n; rank++)); do
    RANK=$rank WORLD_SIZE=$n MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "$ranks" "$2" &
  done
  wait
}

# on_hosts COMMAND...: rank r on host r / 2, as far as Lockstep is concerned
cat >"$work/on_hosts" <<'END'
#!/bin/sh
rank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}
LOCKSTEP_HOST_ID=host$((rank / 2)) exec "$@"
END
chmod +x "$work/on_hosts"

# stopped MPI N WANTED [COMMAND...]: rank 1 gets SIGSTOP in its collectives; the others name it and say WANTED
stopped() {
  local mpi=$1 n=$2 wanted=$3 job pid at i
  shift 3
  rm -f "$work/mark"
  mpirun_of "$mpi" "$n" "$@" "$ranks" loop "$work/mark" >"$work/log" 2>&1 &
  job=$!
  for ((i = 0; i < 200; i++)); do [ -f "$work/mark" ] && break; sleep 0.05; done
  for pid in $(pgrep -f -- "$ranks loop $work/mark"); do
    grep -sqzE '^(OMPI_COMM_WORLD_RANK|PMI_RANK)=1$' "/proc/$pid/environ" && kill -STOP "$pid" && break
  done
  at=$(now_ms)
  while [ "$(grep -c 'status [0-9]*: ' "$work/log")" = 0 ] && [ $(($(now_ms) - at)) -le 15000 ]; do sleep 0.1; done
  [ $(($(now_ms) - at)) -le 15000 ] || fail "$mpi: a stopped rank took $(($(now_ms) - at)) ms"
  sleep 0.5 # the others
  kill -9 "$pid" 2>/dev/null # MPICH's mpirun waits for it without end where the ranks need MPI no more
  wait $job && fail "$mpi: a stopped rank, no error"
  grep -q "status [0-9]*: .*rank 1 (host [^)]*) $wanted" "$work/log" || { fail "$mpi: the stopped rank is not named"; cat "$work/log"; }
}

# same_bits MPI N TRANSPORT COMMAND...
same_bits() {
  local mpi=$1 n=$2 transport=$3 got want=
  shift 3
  mpirun_of "$mpi" "$n" "$@" "$ranks" bits >"$work/log" 2>&1 || { fail "$mpi: bits"; cat "$work/log"; }
  [ "$(grep -c "transport $transport\$" "$work/log")" = "$n" ] || { fail "$mpi: not $transport"; cat "$work/log"; }
  got=$(grep -o 'bits [0-9a-f]*' "$work/log" | sort -u)
  has_tcp || return 0
  [ -f "$work/want$n" ] || by_hand "$n" bits >"$work/want$n"
  want=$(grep -o 'bits [0-9a-f]*' "$work/want$n" | sort -u)
  [ "$got" = "$want" ] || fail "$mpi: $got, tcp: $want"
}
for mpi in openmpi mpich; do
  if ! command -v mpirun.$mpi >/dev/null || [ ! -f "$build/liblockstep-mpi-$mpi.so" ]; then
    echo "skipped: $mpi is not installed"
    continue
  fi
  tried=$((tried + 1))
  export LOCKSTEP_TRANSPORT=mpi # not the memory that ranks of one machine share
  for n in 2 3; do
    mpirun_of $mpi $n "$ranks" grid >"$work/log" 2>&1 || { fail "$mpi: grid of $n"; cat "$work/log"; }
  done
  for what in rest point split; do
    mpirun_of $mpi 4 "$ranks" $what >"$work/log" 2>&1 || { fail "$mpi: $what"; cat "$work/log"; }
  done
  same_bits $mpi 3 mpi
  LOCKSTEP_ALGORITHM=one-shot same_bits $mpi 3 mpi
  mpirun_of $mpi 3 "$ranks" mismatch >"$work/log" 2>&1 || { fail "$mpi: mismatch"; cat "$work/log"; }
  [ "$(grep -c 'rank 2' "$work/log")" -ge 3 ] || { fail "$mpi: mismatch does not name rank 2"; cat "$work/log"; }
  mpirun_of $mpi 3 "$ranks" leave >"$work/log" 2>&1 || { fail "$mpi: leave"; cat "$work/log"; }
  [ "$(grep -c 'rank 2.*left the job' "$work/log")" = 2 ] || { fail "$mpi: leaver not named"; cat "$work/log"; }

  # a rank that is stopped: without a heartbeat the deadline finds it, with one its silence
  LOCKSTEP_HEARTBEAT=off LOCKSTEP_TIMEOUT=2 stopped $mpi 3 '\(did not arrive at it\|stopped in its middle\)'
  LOCKSTEP_HEARTBEAT=1 LOCKSTEP_TIMEOUT=60 stopped $mpi 3 'has stopped: no heartbeat'

  unset LOCKSTEP_TRANSPORT
  LOCKSTEP_HEARTBEAT=1 LOCKSTEP_TIMEOUT=60 stopped $mpi 3 'has stopped: no heartbeat'
  LOCKSTEP_HEARTBEAT=1 LOCKSTEP_TIMEOUT=60 stopped $mpi 4 'has stopped: no heartbeat' "$work/on_hosts"
  same_bits $mpi 3 shm
  same_bits $mpi 4 shm+mpi "$work/on_hosts"
  for what in grid rest mismatch; do
    mpirun_of $mpi 4 "$work/on_hosts" "$ranks" $what >"$work/log" 2>&1 || { fail "$mpi: $what, hosts"; cat "$work/log"; }
  done

  # a module that is not there is told, not passed over
  LOCKSTEP_MODULES=$work mpirun_of $mpi 2 "$ranks" grid >"$work/log" 2>&1 && fail "$mpi: no module, no error"
  grep -q "the module for $mpi cannot be loaded" "$work/log" || { fail "$mpi: missing module not told"; cat "$work/log"; }

  if command -v mpicc.$mpi >/dev/null && [ -f "$build/liblockstep-comm.so" ]; then
    mpicc.$mpi "${sanitizer[@]}" -o "$work/program" "$source_dir/tests/mpi_program.c" -I"$source_dir/include" -L"$build" \
      -llockstep-comm -Wl,-rpath,"$build" || fail "$mpi: program does not compile"
    for what in split funneled; do
      LOCKSTEP_TRANSPORT=mpi mpirun_of $mpi 3 "$work/program" $what >"$work/log" 2>&1 || { fail "$mpi: $what"; cat "$work/log"; }
    done
  fi
done
[ $tried -gt 0 ] || skip "neither OpenMPI nor MPICH is installed"
want_nothing_left "mpirun"
finish
