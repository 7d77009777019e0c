#!/usr/bin/env bash
# Where the time of steps went: metrics.jsonl has the last step's times of every rank, which agree with each other;
# the trace shows what of the reduction was exposed.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
command -v python3 >/dev/null || skip "no python3"
fashion "$work/data" 200 50

# train NAME OPTIONS...
train() {
  "$lockstep" train --model mlp:784,64,10 --data "idx:$work/data" --batch-size 20 --steps 4 \
    --out "$work/$1" "${@:2}" >"$work/$1.out" 2>"$work/$1.err" || fail "$1: $(cat "$work/$1.err")"
}
for progress in thread inline; do
  train $progress --ranks 3 --progress $progress --trace "$work/$progress.trace" --trace-steps 3
  python3 - $progress "$work/$progress/metrics.jsonl" "$work/$progress.trace" <<'END' || fail "$progress"
import json, sys
progress, metrics, trace = sys.argv[1:]
lines = [json.loads(line) for line in open(metrics)]
assert len(lines) == 4 and "timing" not in lines[0]
for line in lines[1:]:
    t = line["timing"]
    assert t["step"] == line["step"] - 1, t
    for key in "compute_ms", "transfer_ms", "hidden_ms", "exposed_ms", "late_ms", "last_rank":
        assert len(t[key]) == 3, key
    for r in range(3):
        assert t["compute_ms"][r] > 0 and t["transfer_ms"][r] > 0, t
        # one that was held up finds all of its sums there
        assert t["exposed_ms"][r] > 0 or progress == "thread" and t["exposed_ms"][r] == 0, t
        assert -0.01 <= t["hidden_ms"][r] <= t["transfer_ms"][r] + 0.01, t
        assert progress == "thread" or t["hidden_ms"][r] == 0 and t["last_rank"][r] == -1, t
        assert -1 <= t["last_rank"][r] < 3, t
    own = lines[t["step"] - 1]  # rank 0's line of that step
    assert t["compute_ms"][0] + t["exposed_ms"][0] <= own["step_ms"] + 0.01, (t, own)
    assert progress == "inline" or abs(t["exposed_ms"][0] - own["wait_ms"]) < 0.01, (t, own)
events = json.load(open(trace))["traceEvents"]
exposed = {(e["pid"], e["args"]["step"]) for e in events if e["name"] == "exposed reduction"}
assert exposed == {(rank, step) for rank in range(3) for step in (1, 2, 3)}, exposed
END
done
[ "$(hash_of "$work/thread")" = "$(hash_of "$work/inline")" ] || fail "the weights differ"
train one
grep -q '"timing":{"step":3' "$work/one/metrics.jsonl" || fail "one rank: $(tail -1 "$work/one/metrics.jsonl")"

# a machine that was started 11 days before: its clock is another, the timeline is one
if has_tcp && unshare --time --monotonic 1000000 --fork true 2>/dev/null; then
  export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 LOCKSTEP_TRANSPORT=tcp
  MASTER_PORT=$(free_port)
  export MASTER_PORT
  RANK=1 unshare --time --monotonic 1000000 --fork "$lockstep" train --model mlp:784,64,10 --data "idx:$work/data" --batch-size 20 --steps 4 \
    --out "$work/hosts" --trace "$work/hosts.trace" >"$work/rank1.log" 2>&1 &
  RANK=0 train hosts --trace "$work/hosts.trace"
  wait || fail "rank 1: $(cat "$work/rank1.log")"
  python3 - "$work/hosts.trace" <<'END' || fail "two clocks"
import json, sys
spans = [e for e in json.load(open(sys.argv[1]))["traceEvents"] if e["ph"] == "X"]
assert {e["pid"] for e in spans} == {0, 1}
last = max(e["ts"] for e in spans)
assert last < 1e9, f"the timeline is {last / 1e6} s long"
END
else
  echo "not tried: a clock of its own (no tcp, or no right to make a time namespace)"
fi
want_nothing_left timing
finish
