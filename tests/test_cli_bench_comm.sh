#!/usr/bin/env bash
# lockstep bench OPERATION: every operation is listed, checked and timed, its keys are there and agree with each
# other, mistakes are told. Times are not tested.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"

# value KEY: of the last JSON object in $work/out
value() { tail -n 1 "$work/out" | sed -n "s/.*\"$1\":\"\{0,1\}\([^\",}]*\).*/\1/p"; }

# check EXPRESSION WHAT: awk's arithmetic
check() { awk "BEGIN { exit !($1) }" || fail "$2: $1 is not so"; }

bench() {
  timeout 60 "$lockstep" bench "$@" >"$work/out" 2>"$work/err" || { fail "bench $*: exit $?"; cat "$work/err"; }
}

# measured BUS BYTES ARGS...: the last line's keys, and how they follow from each other; BUS for three ranks
measured() {
  local bus=$1 bytes=$2 name=$3 key
  shift 2
  bench "$@" --ranks 3 --iterations 5 --format json
  for key in op transport ranks bytes dtype registered in_place iterations us_p50 us_p99 algbw_gbs busbw_gbs verified; do
    [ -n "$(value $key)" ] || fail "$*: no key $key"
  done
  [ "$(grep -c '"verified":true' "$work/out")" = "$(wc -l <"$work/out")" ] || fail "$*: $(cat "$work/out")"
  [ "$(value op) $(value ranks) $(value bytes) $(value iterations)" = "$name 3 $bytes 5" ] || fail "$*: $(cat "$work/out")"
  check "$(value us_p50) > 0 && $(value us_p99) >= $(value us_p50)" "$*: times"
  check "($(value algbw_gbs) - $bytes / $(value us_p50) / 1e3) ^ 2 < 1e-9" "$*: algbw"
  check "($(value busbw_gbs) - $(value algbw_gbs) * $bus) ^ 2 < 1e-9" "$*: busbw"
}

listed=$("$lockstep" bench --help | awk '/^Operations/ { on = 1; next } on && NF == 0 { exit } on { print $1 }')
for name in $listed; do
  case $name in
  all_reduce*) bus=4/3 ;;
  reduce_scatter* | all_gather* | gather* | scatter* | all_to_all*) bus=2/3 ;;
  *) bus=1 ;;
  esac
  bytes=300000
  if [ "$name" = barrier ]; then
    measured 1 0 barrier
    continue
  fi
  measured $bus $bytes "$name" --sizes 12,300000
  [ "$(value transport) $(value dtype) $(value registered)" = "shm f32 false" ] || fail "$name: $(cat "$work/out")"
  measured $bus $bytes "$name" --sizes 300000 --registered --dtype bf16
  [ "$(value dtype) $(value registered)" = "bf16 true" ] || fail "$name: $(cat "$work/out")"
done
for name in all_reduce reduce_scatter all_gather reduce gather scatter all_to_all all_to_all_v send; do
  grep -q "^$name" <<<"$listed" || fail "--help does not list $name"
done

# Every dtype and reduction, in place; sizes are rounded up to whole blocks.
for dtype in f32 f64 f16 bf16 i8 u8 i32 i64; do
  for op in sum product min max avg; do
    bench all_reduce --ranks 3 --iterations 1 --sizes 9,12345 --dtype $dtype --op $op --in-place --registered --format json
    [ "$(grep -c '"in_place":true.*"verified":true' "$work/out")" = 2 ] || fail "$dtype $op: $(cat "$work/out")"
  done
done
[ "$(value bytes)" = 12352 ] || fail "12345 bytes of i64 became $(value bytes)"
measured 2/3 3145728 all_gather --sizes 3M --in-place
measured 2/3 300000 reduce_scatter --sizes 300000 --in-place
if "$lockstep" doctor | grep -q 'tcp  *built in'; then measured 4/3 70000 all_reduce --sizes 70000 --transport tcp; fi

# The floor, and the table for people.
bench all_reduce --floor --sizes 64K,20 --iterations 9 --dtype i8
bench all_reduce --registered --in-place --floor --sizes 64K --iterations 9
bench all_reduce --registered --floor --sizes 64K --iterations 9 --format json
check "$(value floor_us) > 0 && ($(value floor_ratio) - $(value us_p50) / $(value floor_us)) ^ 2 < 1e-9" "--floor"
[ "$(value ranks)" = 2 ] || fail "two ranks are not the default: $(value ranks)"
bench broadcast --root 1 --sizes 4,64K --iterations 3
[ "$(grep -c ' right$' "$work/out")" = 2 ] || fail "the table: $(cat "$work/out")"
# head_is TEXT ARGS...: the first line of the table says what was called, and no more
head_is() {
  local want=$1
  shift
  bench "$@" --iterations 1
  [ "$(head -n 1 "$work/out")" = "$want" ] || fail "head of $*: $(head -n 1 "$work/out")"
}
head_is "barrier, 2 ranks over shm" barrier
head_is "broadcast of f32, 2 ranks over shm, ordinary memory, in place" broadcast --sizes 4
head_is "all_reduce of i8, max, 2 ranks over shm, ordinary memory, out of place" all_reduce --sizes 4 --dtype i8 --op max
"$lockstep" bench all_reduce --ranks 1 --sizes 4 | grep -q 'over self' || fail "a world of one"
"$lockstep" run -n 2 -- "$lockstep" bench all_reduce --sizes 4 --format json | grep -q '"ranks":2' || fail "as a rank"

# --explain: every size has its ways, one of them chosen, with a reason; the costs can be kept
explain() { bench all_reduce --explain --ranks 3 --sizes 4,25M "$@"; }
explain --registered
cp "$work/out" "$work/first"
bench --explain --ranks 3 --sizes 4,25M --registered
[ "$(grep -c bytes: "$work/out")" = "$(grep -c bytes: "$work/first")" ] || { fail "bench --explain"; cat "$work/out"; }
grep -q '^4 bytes: tiny, because ' "$work/out" || { fail "--explain, tiny"; cat "$work/out"; }
grep -q '^26214400 bytes: mapped, because the buffers come from ls_group_alloc' "$work/out" || { fail "--explain, mapped"; cat "$work/out"; }
[ "$(grep -c '^  \* ' "$work/out")" = 2 ] || { fail "--explain: not one way a size"; cat "$work/out"; }
if "$lockstep" doctor | grep -q 'tcp  *built in'; then
  explain --transport tcp --store "$work/table" --format json
  [ "$(grep -c '"chosen":"[a-z-]*","reason":"..*","predicted_us":{"one-shot":[0-9.]*,"pairwise":[0-9.]*}' "$work/out")" = 2 ] ||
    { fail "--explain --format json"; cat "$work/out"; }
  export LOCKSTEP_COST_TABLE=$work/table
  explain --transport tcp
  grep -q 'costs from LOCKSTEP_COST_TABLE' "$work/out" || { fail "the table is not taken"; cat "$work/out"; }
  LOCKSTEP_ALGORITHM=one-shot explain --transport tcp
  [ "$(grep -c 'bytes: one-shot, because LOCKSTEP_ALGORITHM is one-shot' "$work/out")" = 2 ] || { fail "forced"; cat "$work/out"; }
  : >"$work/empty" && mkfifo "$work/pipe" && printf '\0' >"$work/binary"
  for table in "$work/none" "$work" "$work/empty" "$work/pipe" "$work/binary"; do
    LOCKSTEP_COST_TABLE=$table timeout 60 "$lockstep" bench all_reduce --explain --transport tcp >"$work/out" 2>"$work/err"
    code=$?
    [ $code = 3 ] && grep -q "LOCKSTEP_COST_TABLE of rank 0:.* $table: " "$work/err" ||
      fail "LOCKSTEP_COST_TABLE=$table: exit $code: $(cat "$work/err")"
  done
  unset LOCKSTEP_COST_TABLE
  for table in "$work" "$work/pipe"; do
    timeout 60 "$lockstep" bench all_reduce --explain --transport tcp --store "$table" >"$work/out" 2>"$work/err"
    code=$?
    [ $code = 3 ] && grep -q "the cost table: $table: is a .*, want a " "$work/err" || fail "--store $table: exit $code: $(cat "$work/err")"
  done
fi

# refused TEXT ARGS...: one line that holds TEXT, exit code 2
refused() {
  local text=$1 code=0
  shift
  timeout 60 "$lockstep" bench "$@" >"$work/out" 2>"$work/err" || code=$?
  [ $code = 2 ] || fail "bench $*: exit $code, want 2"
  if [ -s "$work/out" ] || [ "$(wc -l <"$work/err")" != 1 ] || ! grep -qF -- "$text" "$work/err"; then
    fail "bench $*: $(cat "$work/out" "$work/err")"
  fi
}
refused "--explain knows all_reduce only" broadcast --explain
refused "--store is only for --explain" all_reduce --store "$work/table"
for option in "--dtype f64" "--op max" --in-place "--iterations 3" "--warmup 0" --floor; do
  # shellcheck disable=SC2086
  refused "${option%% *} is only for the measurement" all_reduce --explain $option
done
refused "did you mean all_reduce?" all_reduse
for sizes in 0 -4 4x 4,,8 '4,' 2000G 99999999999999999999 ,4; do
  refused "--sizes $sizes: want up to 64 numbers" all_reduce "--sizes=$sizes"
done
refused "--root 2, but the ranks are 0 to 1" broadcast --root 2
refused "--in-place does not apply to sendrecv: it has no form in place" sendrecv --in-place
refused "--op does not apply to broadcast" broadcast --op sum
refused "--root does not apply to all_reduce" all_reduce --root 0
refused "--floor does not apply to all_gather" all_gather --floor
for option in --sizes=4 --dtype=f32 --registered --in-place; do
  refused "${option%%=*} does not apply to barrier" barrier "$option"
done
refused "wants a float --dtype" all_reduce_weighted --dtype i8
refused "--op does not apply" all_reduce_weighted --op max
refused "--ranks: '0' is out of range, want 1 to 4096 or auto" all_reduce --ranks 0
refused "unexpected argument '4'" all_reduce 4
"$lockstep" bench reduce_scatter --help | grep -q busbw || fail "--help does not say what busbw is"
finish
