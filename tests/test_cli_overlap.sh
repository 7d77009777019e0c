#!/usr/bin/env bash
# lockstep bench overlap: figures agree with each other and with a small timeline, mistakes are told. That much is
# hidden is a claim about speed and is not tested.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
unset RANK WORLD_SIZE

# value KEY LINE: of the LINE-th object in $work/out
value() { sed -n "$2p" "$work/out" | sed -n "s/.*\"$1\":\"\{0,1\}\([^\",}]*\).*/\1/p"; }
check() { awk "BEGIN { exit !($1) }" || fail "$2: $1 is not so; $(cat "$work/out")"; }
refused() {
  local text=$1
  shift
  timeout 30 "$lockstep" bench overlap "$@" >"$work/out" 2>"$work/err"
  local code=$?
  [ $code = 3 ] || fail "$*: exit $code, want 3"
  grep -qF -- "$text" "$work/err" || fail "$*: $(cat "$work/err")"
}

# 40 of 100 ms and 1 of 4 MB of gradients are left when the last layer is done
cat >"$work/small.json" <<END
{"forward_ms": 10, "backward": [{"name": "loss", "elements": 0, "ms": 5}, {"elements": 750000, "ms": 25},
 {"name": "first", "elements": 250000, "ms": 10}]}
END
timeout 60 "$lockstep" bench overlap --timeline "$work/small.json" --backward 0 --steps 2 --ranks 2 --format json \
  >"$work/out" 2>"$work/err" || fail "small: $(cat "$work/err")"
[ "$(wc -l <"$work/out")" = 5 ] || fail "small: $(cat "$work/out")"
check "$(value bytes 5) == 4000000 && $(value ranks 5) == 2 && $(value buckets 5) == 2" "small"
check "$(value forward_ms 5) == 10 && $(value backward_ms 5) == 40" "small: times"
check "($(value hideable_ms 5) / $(value transfer_ms 5) / 0.75 - 1) ^ 2 < 1e-6" "small: hideable"
for line in 1 2 3 4; do
  check "$(value step_ms $line) >= 50 && ($(value step_ms $line) - 50 - $(value exposed_ms $line)) ^ 2 < 1e-6" "exposed"
  check "($(value hidden_ms $line) + $(value exposed_ms $line) - $(value transfer_ms 5)) ^ 2 < 1e-6" "hidden"
done
[ "$(value overlap 1)$(value overlap 3)" = truefalse ] || fail "small: overlap"

# stretched: backward takes twice the transfer
timeout 60 "$lockstep" bench overlap --timeline "$work/small.json" --backward 2 --steps 1 --overlap on --ranks 1 \
  --format json >"$work/out" 2>"$work/err" || fail "stretched: $(cat "$work/err")"
check "($(value backward_ms 2) / $(value transfer_ms 2) / 2 - 1) ^ 2 < 1e-6" "stretched"
[ "$(value gain 2)" = null ] || fail "stretched: gain without the other steps"

refused "nope.json" --timeline "$work/nope.json"
refused "$work: is a folder" --timeline "$work"
echo '{"backward": 3}' >"$work/bad.json"
refused 'wants {"forward_ms"' --timeline "$work/bad.json"
echo '{"backward": [{"elements": -1, "ms": 1}]}' >"$work/bad.json"
refused 'backward[0] wants' --timeline "$work/bad.json"
echo '{"backward": [{"elements": 10, "columns": 3, "ms": 1}]}' >"$work/bad.json"
refused '"columns" of backward[0]' --timeline "$work/bad.json"
echo '{"backward": [{"elements": 0, "ms": 1}]}' >"$work/bad.json"
refused 'backward has no elements' --timeline "$work/bad.json"
echo '{"backward": [' >"$work/bad.json"
refused 'line 2' --timeline "$work/bad.json"
want_nothing_left "overlap"
finish
