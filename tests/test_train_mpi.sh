#!/usr/bin/env bash
# A training run of four ranks under the mpirun of OpenMPI and of MPICH, on one machine and on two (as LOCKSTEP_HOST_ID has
# it): the bits of one rank. A rank that is killed ends the run.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
export LOCKSTEP_MODULES=$build LOCKSTEP_TIMEOUT=30
# In a sanitized build: the MPI libraries keep memory of their own to the end.
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0
text "$work/text"
gpt=(--model "gpt:layers=2,heads=2,width=32,context=32" --data "text:$work/text" --batch-size 8 --shards 4)
cat >"$work/on_hosts" <<'END'
#!/bin/sh
rank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}
LOCKSTEP_HOST_ID=host$((rank / 2)) exec "$@"
END
chmod +x "$work/on_hosts"

# mpirun_of MPI COMMAND...
mpirun_of() {
  local options=()
  [ "$1" = mpich ] || options=(--allow-run-as-root --oversubscribe --bind-to none)
  timeout -k 5 120 "mpirun.$1" "${options[@]}" -n 4 "${@:2}"
}

"$lockstep" train "${gpt[@]}" --steps 10 --out "$work/one" >/dev/null 2>&1 || fail "one rank"
tried=0
for mpi in openmpi mpich; do
  if ! command -v mpirun.$mpi >/dev/null || [ ! -f "$build/liblockstep-mpi-$mpi.so" ]; then
    echo "skipped: $mpi is not installed"
    continue
  fi
  tried=$((tried + 1))
  for hosts in '' "$work/on_hosts"; do
    out=$work/$mpi${hosts:+-hosts}
    mpirun_of $mpi ${hosts:+"$hosts"} "$lockstep" train "${gpt[@]}" --steps 10 --out "$out" >"$work/log" 2>&1 ||
      { fail "$mpi"; cat "$work/log"; }
    [ "$(hash_of "$out")" = "$(hash_of "$work/one")" ] || { fail "$mpi: bits differ"; cat "$work/log"; }
  done
  mpirun_of $mpi "$work/on_hosts" "$lockstep" train "${gpt[@]}" --steps 1000000 --out "$work/killed-$mpi" >"$work/log" 2>&1 &
  mpirun=$!
  for ((i = 0; i < 200; i++)); do [ -s "$work/killed-$mpi/metrics.jsonl" ] && break; sleep 0.1; done
  pgrep -f "^$lockstep train .*--out $work/killed-$mpi" | tail -1 | xargs -r kill -9
  wait $mpirun && fail "$mpi: a killed rank was not noticed"
  want_nothing_left "$mpi, killed"
done
[ $tried -gt 0 ] || skip "neither OpenMPI nor MPICH is installed"
echo "4 ranks under mpirun: $(hash_of "$work/one"), as 1 rank"
# The MPI of another mpirun than the one that started it would make four jobs of one rank.
if [ $tried = 2 ]; then
  for pair in "openmpi mpich" "mpich openmpi"; do
    mpirun_of "${pair% *}" env LOCKSTEP_MPI="${pair#* }" "$lockstep" train "${gpt[@]}" --steps 1 >"$work/log" 2>&1 &&
      fail "$pair: no error"
    grep -q "mpirun started 4 ranks, but the MPI in use sees 1" "$work/log" || { fail "$pair: message" && cat "$work/log"; }
  done
fi
finish
