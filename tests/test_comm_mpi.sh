#!/usr/bin/env bash
# Ranks started by the mpirun of OpenMPI and of MPICH: every collective, the bits of the other transports,
# mismatches, leavers; jobs from communicators of a program that uses MPI itself.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"

ranks=$build/tests/program_ranks
export LOCKSTEP_TIMEOUT=20 LOCKSTEP_MODULES=$build
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
  port=$(free_port)
  for ((rank = 0; rank < n; rank++)); do
    RANK=$rank WORLD_SIZE=$n MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "$ranks" "$2" &
  done
  wait
}

has_tcp && want=$(by_hand 3 bits | grep -o 'bits [0-9a-f]*' | sort -u)
for mpi in openmpi mpich; do
  if ! command -v mpirun.$mpi >/dev/null || [ ! -f "$build/liblockstep-mpi-$mpi.so" ]; then
    echo "skipped: $mpi is not installed"
    continue
  fi
  tried=$((tried + 1))
  for n in 2 3; do
    mpirun_of $mpi $n "$ranks" grid >"$work/log" 2>&1 || { fail "$mpi: grid of $n"; cat "$work/log"; }
  done
  mpirun_of $mpi 3 "$ranks" point >"$work/log" 2>&1 || { fail "$mpi: point"; cat "$work/log"; }
  mpirun_of $mpi 3 "$ranks" bits >"$work/log" 2>&1 || { fail "$mpi: bits"; cat "$work/log"; }
  [ "$(grep -c 'transport .*mpi' "$work/log")" = 3 ] || { fail "$mpi: transport"; cat "$work/log"; }
  got=$(grep -o 'bits [0-9a-f]*' "$work/log" | sort -u)
  [ -z "${want:-}" ] || [ "$got" = "$want" ] || fail "$mpi: $got, tcp: $want"
  mpirun_of $mpi 3 "$ranks" mismatch >"$work/log" 2>&1 || { fail "$mpi: mismatch"; cat "$work/log"; }
  [ "$(grep -c 'rank 2' "$work/log")" -ge 3 ] || { fail "$mpi: mismatch does not name rank 2"; cat "$work/log"; }
  mpirun_of $mpi 3 "$ranks" leave >"$work/log" 2>&1 || { fail "$mpi: leave"; cat "$work/log"; }
  [ "$(grep -c 'rank 2.*left the job' "$work/log")" = 2 ] || { fail "$mpi: leaver not named"; cat "$work/log"; }

  # a module that is not there is told, not passed over
  LOCKSTEP_MODULES=$work mpirun_of $mpi 2 "$ranks" grid >"$work/log" 2>&1 && fail "$mpi: no module, no error"
  grep -q "the module for $mpi cannot be loaded" "$work/log" || { fail "$mpi: missing module not told"; cat "$work/log"; }

  if command -v mpicc.$mpi >/dev/null && [ -f "$build/liblockstep-comm.so" ]; then
    mpicc.$mpi -o "$work/program" "$source_dir/tests/mpi_program.c" -I"$source_dir/include" -L"$build" \
      -llockstep-comm -Wl,-rpath,"$build" || fail "$mpi: program does not compile"
    for what in split funneled; do
      mpirun_of $mpi 3 "$work/program" $what >"$work/log" 2>&1 || { fail "$mpi: $what"; cat "$work/log"; }
    done
  fi
done
[ $tried -gt 0 ] || skip "neither OpenMPI nor MPICH is installed"
want_nothing_left "mpirun"
finish
