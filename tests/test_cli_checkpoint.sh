#!/usr/bin/env bash
# lockstep checkpoint: verify, show, diff, merge.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"

text "$work/text"
args=(--model "gpt:layers=1,heads=2,width=32,context=16" --data "text:$work/text" --batch-size 4 --steps 6 --shards 2)
"$lockstep" train "${args[@]}" --out "$work/a" --checkpoint-every 2 >"$work/log" 2>&1 || { fail "train a"; cat "$work/log"; }
"$lockstep" train "${args[@]}" --out "$work/b" --ranks 2 --checkpoint-every 3 >"$work/log" 2>&1 || fail "train b"
a=$work/a/checkpoints b=$work/b/checkpoints

# expect CODE PATTERN COMMAND...: what is printed goes to $work/said
expect() {
  local want=$1 pattern=$2 code=0
  shift 2
  "$lockstep" checkpoint "$@" >"$work/said" 2>&1 || code=$?
  [ $code = "$want" ] || { fail "$*: exit $code, want $want"; cat "$work/said"; }
  grep -q -- "$pattern" "$work/said" || { fail "$*: lacks '$pattern'"; cat "$work/said"; }
}

expect 0 'step-00000006: whole' verify "$a"
[ "$(grep -c ': whole$' "$work/said")" = 3 ] || fail "verify of a folder: $(cat "$work/said")"
expect 0 '"whole":true' verify --format json "$a/step-00000002"
expect 0 '^.*/step-00000006: step 6, epoch 0 at sample 24, saved by 1 ranks' show "$a"
grep -q '  wte.weight  *F32   (' "$work/said" || fail "show lists no wte.weight"
grep -q '  wte.weight.exp_avg_sq  *F32 ' "$work/said" || fail "show lists no optimizer state"
expect 0 '"name":"h.0.attn.c_attn.weight","dtype":"F32","shape":\[32,96\]' show "$a/step-00000002/model.safetensors" --format json

expect 0 '"step":6,"epoch":0,"position":24,"shards":2,"world_size":1,"train_loss":[0-9.]*,"val_loss":[a-z0-9.]*,"settings":{' show "$a" --format json
odd=$work/$'odd\377name'
cp -r "$a" "$odd"
expect 0 'odd?name/step-00000006","whole":true' verify "$odd" --format json
expect 0 'odd?name/step-00000006","step":6' show "$odd" --format json
cp "$work/text" "$odd.text"
"$lockstep" train --model "gpt:layers=1,heads=2,width=32,context=16" --data "text:$odd.text" --batch-size 4 --steps 4 --out "$work/odd" \
  --checkpoint-dir "$odd.saved" --checkpoint-every 2 --format json >"$work/said" 2>&1 || fail "train with names that are no UTF-8: $(cat "$work/said")"
grep -q '"event":"checkpoint".*odd?name.saved' "$work/said" && grep -q '"data":"text:.*odd?name.text"' "$work/odd/summary.json" ||
  fail "names that are no UTF-8: $(cat "$work/said")"

# what two numbers of ranks have saved is equal; an earlier step is not
expect 0 '^[0-9]* tensors are equal, 0 differ' diff "$a" "$b"
expect 1 'wte.weight: [0-9]* elements differ, the first at [0-9]*, by at most' diff "$a/step-00000002" "$a/step-00000004"
expect 1 'wte.weight.exp_avg: only in the first' diff "$a/step-00000002" "$a/step-00000002/model.safetensors"
expect 1 '"difference":"only in the second"' diff --format json "$a/step-00000002/model.safetensors" "$a/step-00000002"
expect 2 'want two' diff "$a"
expect 3 'neither a checkpoint nor a folder of checkpoints' diff "$a" "$work"

expect 0 'all.safetensors: ' merge "$a/step-00000006" --out "$work/all.safetensors"
expect 2 'is there' merge "$a/step-00000006" --out "$work/all.safetensors"
mkfifo "$work/pipe"
ln -s all.safetensors "$work/link"
for out in pipe link; do
  expect 2 'is no regular file' merge "$a/step-00000006" --out "$work/$out" --overwrite
done
[ -p "$work/pipe" ] && [ -L "$work/link" ] || fail "merge replaced what is no regular file"
expect 0 ' 0 differ' diff "$work/all.safetensors" "$a/step-00000006"
expect 0 ': whole' verify "$work/all.safetensors"
expect 0 'twice.safetensors: ' merge "$a/step-00000006/model.safetensors" "$work/a/model.safetensors" --out "$work/twice.safetensors"
expect 0 ' 0 differ' diff "$work/twice.safetensors" "$work/b/model.safetensors"
expect 3 'tensor .* is another one than before' merge "$a/step-00000002" "$a/step-00000004" --out "$work/none.safetensors"
[ ! -e "$work/none.safetensors" ] || fail "a merge that failed left a file"

# Names in a file obey no terminal: they are shown as they are written, but for control characters
hostile() { # FILE VALUE
  local header='{"a\u001b[2Jb\nc\u009bd":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
  # shellcheck disable=SC2059
  { printf "\\x$(printf %02x ${#header})\0\0\0\0\0\0\0"; printf '%s%s' "$header" "$2"; } >"$work/$1"
}
hostile hostile.safetensors x
hostile other.safetensors y
shown='a\\x1b\[2Jb\\x0ac\\xc2\\x9bd'
expect 0 "^  $shown  *U8 " show "$work/hostile.safetensors"
expect 1 "^$shown: 1 element" diff "$work/hostile.safetensors" "$work/other.safetensors"
expect 1 "^$shown: only in the first" diff "$work/hostile.safetensors" "$work/a/model.safetensors"
expect 3 "tensor $shown is another one" merge "$work/hostile.safetensors" "$work/other.safetensors" --out "$work/none.safetensors"
cp -r "$a/step-00000006" "$work/hostile"
cp "$work/hostile.safetensors" "$work/hostile/model.safetensors"
expect 3 'broken: ' verify "$work/hostile"
! LC_ALL=C grep -q '[[:cntrl:]]' "$work/said" || fail "verify: $(cat -v "$work/said")"

# a flipped bit anywhere, a missing end, a missing file
for file in model.safetensors optimizer.safetensors manifest.json; do
  cp -r "$a/step-00000004" "$work/broken"
  size=$(stat -c %s "$work/broken/$file")
  byte=$(od -An -tu1 -j $((size / 2)) -N 1 "$work/broken/$file")
  # shellcheck disable=SC2059
  printf "\\x$(printf %02x $((byte ^ 1)))" | dd of="$work/broken/$file" bs=1 seek=$((size / 2)) conv=notrunc 2>/dev/null
  expect 3 "broken: .*/$file: " verify "$work/broken"
  cp "$a/step-00000004/$file" "$work/broken/$file"
  truncate -s -1 "$work/broken/$file"
  expect 3 "broken: .*/$file: " verify "$work/broken"
  rm "$work/broken/$file"
  expect 3 "broken: .*/$file: cannot open" verify "$work/broken"
  rm -r "$work/broken"
done
# what is not readable may be whole
expect 3 "nowhere: cannot be checked: .*/nowhere: cannot open: No such file" verify "$work/nowhere"
# whoever can write a manifest still leads nobody out of the folder, nor makes a pipe be waited for
mkdir "$work/evil"
mkfifo "$work/evil/manifest.json"
expect 3 'is a pipe or device' verify "$work/evil"
expect 2 'unknown action' cut "$a"
finish
