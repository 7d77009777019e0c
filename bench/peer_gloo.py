#!/usr/bin/env python3
"""all_reduce of f32, sum, by Gloo through torch.distributed, measured as `lockstep bench all_reduce` measures.

usage: peer_gloo.py RANKS BYTES ITERATIONS WARMUP
       peer_gloo.py --version

Starts its own ranks, bound to a core each where the cores suffice; they meet through a file. Always in place,
as torch.distributed's all_reduce is. Rank 0 prints one JSON object.
"""
import json
import os
import subprocess
import sys
import tempfile
import time

try:
    import torch
    import torch.distributed as dist
    if not dist.is_available() or not dist.is_gloo_available():
        raise ImportError("this PyTorch has no Gloo")
except ImportError as error:
    sys.exit(f"{sys.executable}: {error}; apt-get install python3-torch, or set PYTHON to an interpreter that has torch")


def rank_main(rank, ranks, size, iterations, warmup, store):
    cores = sorted(os.sched_getaffinity(0))
    if ranks <= len(cores):
        os.sched_setaffinity(0, {cores[rank]})
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    places = torch.arange(size // 4)
    x = ((places + rank * 3) % 5).float()
    dist.all_reduce(x)
    want = sum(((places + r * 3) % 5).float() for r in range(ranks))
    good = torch.tensor([1 if torch.equal(x, want) else 0])
    dist.all_reduce(good, op=dist.ReduceOp.MIN)
    for _ in range(warmup):
        dist.all_reduce(x)
    dist.barrier()
    times = []
    before = time.perf_counter()
    for _ in range(iterations):
        dist.all_reduce(x)
        after = time.perf_counter()
        times.append((after - before) * 1e6)
        before = after
    slowest = torch.tensor(times, dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    slowest = sorted(slowest.tolist())
    if rank == 0:
        print(json.dumps({
            "op": "all_reduce",
            "transport": "gloo",
            "ranks": ranks,
            "bytes": size // 4 * 4,
            "us_p50": slowest[(iterations - 1) // 2],
            "us_p99": slowest[int((iterations - 1) * 0.99 + 0.5)],
            "verified": bool(good.item()),
        }, separators=(",", ":")))
    return 0 if good.item() else 1


def start(ranks, arguments):
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ, GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1")
        started = [subprocess.Popen([sys.executable, __file__, "--rank", str(r), str(ranks), *arguments, f"{folder}/store"],
                                    env=environment) for r in range(ranks)]
        return max(process.wait() for process in started)


def main():
    if sys.argv[1:] == ["--version"]:
        print(f"Gloo of PyTorch {torch.__version__} ({sys.executable})")
        return 0
    if len(sys.argv) == 8 and sys.argv[1] == "--rank":
        return rank_main(*(int(word) for word in sys.argv[2:7]), sys.argv[7])
    if len(sys.argv) == 5:
        return start(int(sys.argv[1]), sys.argv[2:])
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
