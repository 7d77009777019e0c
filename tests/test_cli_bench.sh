#!/usr/bin/env bash
# lockstep bench train: every key is there, figures are plausible and agree with each other, mistakes are told.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"

# value KEY: of the JSON object in $work/out
value() { sed -n "s/.*\"$1\":\"\{0,1\}\([^\",}]*\).*/\1/p" "$work/out"; }

# check EXPRESSION WHAT: awk's arithmetic
check() { awk "BEGIN { exit !($1) }" || fail "$2: $1 is not so"; }

bench() {
  timeout 60 "$lockstep" bench train --format json "$@" >"$work/out" 2>"$work/err" ||
    { fail "bench train $*: exit $?"; cat "$work/err"; }
  [ "$(wc -l <"$work/out")" = 1 ] || fail "bench train $*: not one line on stdout"
}

# measured NAME FLOPS BATCH ARGS...: the keys, and how they follow from each other
measured() {
  local name=$1 flops=$2 batch=$3 key
  shift 3
  bench --batch "$batch" "$@"
  for key in model ranks threads dtype params step_ms_p50 samples_per_s tokens_per_s gflops peak_gflops \
    share peak_rss_mb; do
    [ -n "$(value $key)" ] || fail "$name: no key $key"
  done
  check "$(value step_ms_p50) > 0 && $(value step_ms_p50) < 60000" "$name: step time"
  check "($(value samples_per_s) * $(value step_ms_p50) / 1e3 / $batch - 1) ^ 2 < 1e-8" "$name: samples_per_s"
  check "($(value gflops) * $(value step_ms_p50) * 1e6 / ($flops) - 1) ^ 2 < 1e-8" "$name: gflops"
  check "($(value share) * $(value peak_gflops) / $(value gflops) - 1) ^ 2 < 1e-8" "$name: share"
  # peak and steps are measured one after the other, so on a busy machine a share may pass 1; a wrong unit is worse
  check "$(value share) > 0 && $(value share) < 20" "$name: share of the peak"
  check "$(value peak_rss_mb) > 5 && $(value peak_rss_mb) < 4000" "$name: memory"
}

# 8 x (4 x 784 x 32 + 6 x 32 x 10)
measured mlp 818176 8 --model mlp:784,32,10 --steps 3
[ "$(value params)" = 25450 ] || fail "mlp: params $(value params)"
[ "$(value tokens_per_s)" = null ] || fail "mlp: tokens_per_s $(value tokens_per_s)"
# 2 x (4 x 32 x 9 x 26^2 + 6 x (64 x 32 x 9 x 24^2 + 9216 x 128 + 128 x 10))
measured cnn 143126016 2 --model cnn --steps 2 --warmup 0
# parameters: 50 x 16 + 8 x 16 + 1 layer + final norm; 6 x P x tokens + 12 x L x C x T x tokens
measured gpt "(6 * $((50 * 16 + 8 * 16 + 12 * 16 * 16 + 13 * 16 + 32)) + 12 * 16 * 8) * 4 * 8" 4 \
  --model gpt:layers=1,heads=2,width=16,context=32,vocab=50 --seq 8 --steps 3 --threads 2 --ranks 2
grep -q 'context=8,vocab=50' "$work/out" || fail "gpt: --seq is not the context"
[ "$(value ranks)$(value threads)" = 22 ] || fail "gpt: ranks and threads"
check "($(value tokens_per_s) / $(value samples_per_s) / 8 - 1) ^ 2 < 1e-8" "gpt: tokens_per_s"
# variables that are set but empty count as not set; as a rank of a job, the job says how many there are
RANK='' LOCKSTEP_MPI='' bench --model mlp:4,2 --steps 1 --ranks 2
[ "$(value ranks)" = 2 ] || fail "an empty RANK: ranks $(value ranks)"
"$lockstep" run -n 2 --no-prefix -- "$lockstep" bench train --model mlp:4,2 --steps 1 --format json >"$work/out" 2>"$work/err" ||
  fail "as a rank: $(cat "$work/err")"
[ "$(value ranks)" = 2 ] || fail "as a rank: ranks $(value ranks)"
"$lockstep" run -n 2 -- "$lockstep" bench train --model mlp:4,2 --batch 7 >"$work/out" 2>"$work/err" && fail "as a rank: --batch 7"
grep -q "no multiple of the job's 2 ranks" "$work/err" || fail "as a rank, --batch 7: $(cat "$work/err")"
# scaling: both forms of the same model were measured, and the figures agree with each other
timeout 60 "$lockstep" bench scaling --model mlp:16,8,4 --batch 6 --ranks 2 --rounds 3 --seconds 0.01 --format json \
  >"$work/out" 2>"$work/err" || fail "scaling: $(cat "$work/err")"
[ "$(value ranks) $(value rounds) $(value batch_per_rank) $(value params)" = "2 3 6 172" ] || fail "scaling: $(cat "$work/out")"
check "$(value replicas_samples_per_s) > 0 && $(value job_samples_per_s) > 0 && $(value wait_ms) >= 0" "scaling: speeds"
check "$(value ratio_min) <= $(value ratio) && $(value ratio) <= $(value ratio_max)" "scaling: ratio"
timeout 60 "$lockstep" bench scaling --model mlp --ranks 2 --rounds 1 --seconds 0.001 >"$work/out" 2>"$work/err" ||
  fail "scaling, of the set: $(cat "$work/err")"
grep -qE '^mlp +64 .* 0\.85( \*)?$' "$work/out" || fail "scaling, of the set: $(cat "$work/out")"
"$lockstep" bench scaling --model nope >"$work/out" 2>"$work/err"
[ $? = 2 ] || fail "scaling --model nope: $(cat "$work/err")"
# checkpoint: leaves what was there before, also where it fails after the folder was made
saving=(bench checkpoint --model "mlp:64,64,10" --batch 8 --rounds 2)
mkdir "$work/mine"
for ranks in 1 2; do
  timeout 60 "$lockstep" "${saving[@]}" --ranks $ranks --folder "$work/mine/a/b/" --format json >"$work/out" 2>"$work/err" ||
    fail "checkpoint: $(cat "$work/err")"
  check "$(value file_bytes) > 0 && $(value ranks) == $ranks" "checkpoint"
  (ulimit -f 4 && exec timeout 60 "$lockstep" "${saving[@]}" --ranks $ranks --transport tcp --folder "$work/mine/a/b") 2>&1 >/dev/null |
    cat >"$work/err"
  code=${PIPESTATUS[0]}
  [ "$code" = 3 ] && grep -q 'File too large' "$work/err" || fail "checkpoint, no room: exit $code: $(cat "$work/err")"
  [ -z "$(ls -A "$work/mine")" ] || fail "checkpoint, $ranks ranks: left $(find "$work/mine")"
done
mkdir "$work/mine/a"
timeout 60 "$lockstep" "${saving[@]}" --folder "$work/mine/a" >"$work/out" 2>"$work/err" || fail "checkpoint: $(cat "$work/err")"
[ -d "$work/mine/a" ] || fail "checkpoint: removed a folder that it had not made"
# ... and as a rank of a job that others began, with checkpoints of another run there
text "$work/text"
"$lockstep" train --model "gpt:layers=1,heads=1,width=8,context=8" --data "text:$work/text" --batch-size 4 --steps 2 \
  --checkpoint-every 1 --out "$work/others" >"$work/out" 2>&1 ||
  fail "checkpoint: no run: $(cat "$work/out")"
for ranks in 1 2; do
  timeout 60 "$lockstep" run -n $ranks -- "$lockstep" "${saving[@]}" --folder "$work/others/checkpoints" >"$work/out" 2>"$work/err"
  [ $? = 2 ] && grep -q "checkpoints: holds 2 checkpoints; choose another" "$work/err" || fail "checkpoint, as a rank: $(cat "$work/err")"
  [ "$(cd "$work/others/checkpoints" && echo step-*)" = "step-00000001 step-00000002" ] ||
    fail "checkpoint, as a rank: left $(ls -A "$work/others/checkpoints")"
  timeout 60 "$lockstep" run -n $ranks -- "$lockstep" "${saving[@]}" --folder "$work/new/b" >"$work/out" 2>"$work/err" ||
    fail "checkpoint, as a rank: $(cat "$work/err")"
  [ ! -e "$work/new" ] || fail "checkpoint, as a rank: left $(find "$work/new")"
done
# --recompute: less memory, and it says so
activations=(--model "gpt:layers=8,heads=2,width=64,context=64,vocab=64" --batch 64 --steps 1 --warmup 0)
bench "${activations[@]}"
kept=$(value peak_rss_mb)
[ "$(value recompute)" = false ] || fail "recompute: $(value recompute) without --recompute"
bench "${activations[@]}" --recompute
[ "$(value recompute)" = true ] || fail "recompute: $(value recompute) with --recompute"
check "$(value peak_rss_mb) < 0.6 * $kept" "--recompute: memory"
"$lockstep" bench train --model mlp:4,2 --steps 2 >"$work/out" 2>&1 || fail "text: exit $?"
grep -q 'GFLOP/s' "$work/out" || fail "text: $(cat "$work/out")"

# refused CODE TEXT ARGS...: one line that holds TEXT
refused() {
  local want=$1 text=$2 code=0
  shift 2
  timeout 60 "$lockstep" bench "$@" >"$work/out" 2>"$work/err" || code=$?
  [ $code = "$want" ] || fail "bench $*: exit $code, want $want"
  [ ! -s "$work/out" ] || fail "bench $*: printed on stdout"
  if [ "$(wc -l <"$work/err")" != 1 ] || ! grep -qF -- "$text" "$work/err"; then
    fail "bench $*: $(cat "$work/err")"
  fi
}
refused 2 "unknown benchmark trian" trian
refused 2 "--model is missing" train
refused 2 'model "cnm": unknown' train --model cnm
refused 2 "vocab is missing" train --model gpt:layers=1,heads=1,width=8,context=8
refused 2 "cnn has no context" train --model cnn --seq 8
refused 2 "--batch 3 is no multiple of --ranks 2" train --model cnn --batch 3 --ranks 2
refused 2 "--dtype" train --model cnn --dtype f16
refused 2 "cnn has no blocks to compute again" train --model cnn --recompute
LOCKSTEP_TRANSPORT=pigeon refused 2 "LOCKSTEP_TRANSPORT: 'pigeon'" train --model cnn --ranks 2
refused 2 "--steps: '0'" train --model cnn --steps 0
refused 2 "unknown option --stepz" train --model cnn --stepz 1
# --profile: each operation of the model, and times that make up the steps
fashion "$work/data" 64 16
"$lockstep" train --model cnn --data "idx:$work/data" --batch-size 16 --steps 3 --shards 2 --profile \
  --out "$work/run" >"$work/out" 2>"$work/err" || fail "train --profile: $(cat "$work/err")"
tr '{' '\n' <"$work/run/profile.json" >"$work/rows"
# row OPERATION PASS CALLS: of the two steps after the first
row() {
  grep -q "\"operation\":\"$1\",\"pass\":\"$2\",\"calls\":$3," "$work/rows" || fail "profile: no $1 $2, $3 calls"
  grep -q "^$1  *$2  *$3 " "$work/err" || fail "profile: the table has no $1 $2, $3 calls"
}
row conv2d forward 8
row conv2d backward 8
row linear backward 8
row cross_entropy forward 4
row optimizer update 2
grep '"operation":"conv2d"' "$work/rows" | grep -q '"gflops":[0-9]' || fail "profile: conv2d has no GFLOP/s"
grep '"operation":"relu"' "$work/rows" | grep -q '"gb_per_s":[0-9]' || fail "profile: relu has no GB/s"
total=$(sed -n 's/^"steps":2,"total_ms":\([0-9.]*\).*/\1/p' "$work/rows")
sum=$(sed -n 's/^"operation".*"total_ms":\([0-9.e-]*\).*/\1/p' "$work/rows" | awk '{ s += $1 } END { print s }')
other=$(sed -n 's/^"operation":"other".*"total_ms":\([0-9.e-]*\).*/\1/p' "$work/rows")
check "$sum > 0.99 * $total && $sum < 1.01 * $total && $other < 0.7 * $total" "profile: rows against steps"
"$lockstep" bench train --model mlp:8,4 --steps 2 --profile 2>&1 >/dev/null | grep -q "^linear  *backward  *2 " ||
  fail "bench train --profile"
"$lockstep" bench train --help | grep -q -- "6 x parameters" || fail "--help does not say what gflops counts"
finish
