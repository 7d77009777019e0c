#!/usr/bin/env bash
# The scripts of bench/: help, mistakes, and a PyTorch that is not there. What they measure is not tested.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
export LOCKSTEP=$lockstep

# refused TEXT COMMAND...: fails with one line that holds TEXT
refused() {
  local text=$1
  shift
  timeout 60 "$@" >"$work/out" 2>"$work/err" && fail "$*: succeeded"
  grep -qF -- "$text" "$work/err" || fail "$*: $(cat "$work/err")"
}
for script in train_vs_pytorch collectives hosts overlap convergence; do
  "$source_dir/bench/$script" --help | grep -q "usage: bench/$script" || fail "$script --help"
  refused "unknown option --nope" "$source_dir/bench/$script" --nope
  LOCKSTEP=$work/none refused "LOCKSTEP" "$source_dir/bench/$script"
done
refused "no model nope" "$source_dir/bench/train_vs_pytorch" --models nope
refused "--core 99999" "$source_dir/bench/train_vs_pytorch" --core 99999
refused "no case nope" "$source_dir/bench/collectives" --cases nope
refused "no peer nccl" "$source_dir/bench/collectives" --peers nccl
MPICC=$work/none refused "apt-get install openmpi-bin libopenmpi-dev" "$source_dir/bench/collectives" --peers mpi
refused "no peer nccl" "$source_dir/bench/hosts" --peers nccl
PYTHON=$work/none refused "apt-get install python3-torch" "$source_dir/bench/collectives" --peers gloo
if ip netns add lsprobe$$ 2>/dev/null && ip netns del lsprobe$$; then
  timeout 120 "$source_dir/bench/hosts" --peers tcp --bytes 1048576 --rounds 1 --iterations 2 >"$work/out" 2>&1 </dev/null
  grep -qE '^Lockstep, shm\+tcp +[0-9]+ +[0-9.]+$' "$work/out" || fail "hosts: $(cat "$work/out")"
  echo '{"backward": [{"elements": 100000, "ms": 5}]}' >"$work/timeline"
  timeout 60 "$source_dir/bench/overlap" --ranks 1 --timeline "$work/timeline" --steps 1 >"$work/out" 2>&1 </dev/null
  grep -qE '^overlap takes [-0-9.]+ % off the step' "$work/out" || fail "overlap: $(cat "$work/out")"
else
  echo "no right to make network namespaces: bench/hosts and bench/overlap were not run"
fi
if [ "$(nproc)" -lt 2 ]; then
  echo "one core, where MPI's ranks spin for each other's turn: bench/collectives was not run"
elif command -v mpicc >/dev/null && command -v mpirun >/dev/null; then
  timeout 120 "$source_dir/bench/collectives" --peers mpi --cases 4B --rounds 1 >"$work/out" 2>&1 </dev/null
  grep -qE '^4B +[0-9.]+ +[0-9.]+ +- ' "$work/out" || fail "collectives: $(cat "$work/out")"
else
  echo "without OpenMPI's mpicc and mpirun: bench/collectives was not run"
fi
python=$(command -v python3) || skip "no python3 for the rest"
printf '#!/bin/sh\nexec %s -S -I "$@"\n' "$python" >"$work/bare"
chmod +x "$work/bare"
"$work/bare" -c 'import torch' 2>/dev/null ||
  PYTHON=$work/bare refused "apt-get install python3-torch libopenblas0-pthread" "$source_dir/bench/train_vs_pytorch"
# A PyTorch that takes 1 ms a step: the table says what is missed, and the profile follows.
printf '#!/bin/sh\necho %s\n' "'{\"step_ms_p50\":1.0,\"peak_rss_mb\":1.0}'" >"$work/fast"
chmod +x "$work/fast"
PYTHON=$work/fast timeout 60 "$source_dir/bench/train_vs_pytorch" --quick --models mlp --rounds 1 >"$work/out" 2>&1
grep -qE '^mlp +1\.00 .* ratio( |$)' "$work/out" || fail "train_vs_pytorch: $(cat "$work/out")"
grep -qE '^limited by: [0-9]+ % products at the peak, ' "$work/out" || fail "train_vs_pytorch: $(cat "$work/out")"
finish
