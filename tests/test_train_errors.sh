#!/usr/bin/env bash
# Bad input: a one-line message that names the thing, the documented exit code, no result called complete.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"

fashion "$work/data" 64 20
text "$work/text"

# expect CODE PATTERN ARGS...: runs with 1 and with 2 ranks
expect() {
  local code=$1 pattern=$2 ranks seen lines
  shift 2
  for ranks in 1 2; do
    rm -rf "$work/out"
    timeout 60 "$lockstep" train --ranks $ranks --out "$work/out" "$@" >"$work/stdout" 2>"$work/stderr"
    seen=$?
    [ $seen = "$code" ] || fail "train $*: exit $seen with $ranks ranks, want $code"
    grep -q -- "$pattern" "$work/stderr" || { fail "train $*: message lacks '$pattern'"; cat "$work/stderr"; }
    lines=$(wc -l <"$work/stderr")
    [ "$lines" = 1 ] || { fail "train $*: $lines lines with $ranks ranks, want 1"; cat "$work/stderr"; }
    [ ! -e "$work/out/summary.json" ] || fail "train $*: left a summary"
    [ ! -e "$work/out/model.safetensors" ] || fail "train $*: left a model"
  done
}

cnn=(--model cnn --data "idx:$work/data" --steps 1 --batch-size 8)
gpt=(--model "gpt:layers=1,heads=1,width=8,context=8" --steps 1 --batch-size 4)

expect 3 "/nowhere" --model cnn --data idx:/nowhere
expect 3 "$work/none" "${gpt[@]}" --data "text:$work/none"
: >"$work/empty"
expect 3 "$work/empty" "${gpt[@]}" --data "text:$work/empty"
printf 'abc' >"$work/short"
expect 3 "$work/short" "${gpt[@]}" --data "text:$work/short"
expect 3 "$work" "${gpt[@]}" --data "text:$work"
expect 2 'parquet' --model cnn --data parquet:x
expect 2 'resnet9000' --model resnet9000 --data "idx:$work/data"
expect 2 'mlp:784,x' --model mlp:784,x --data "idx:$work/data"
expect 2 'heads' --model gpt:layers=1,heads=3,width=8,context=8 --data "text:$work/text"
expect 2 'a text wants a gpt' --model cnn --data "text:$work/text"
expect 2 'images want' "${gpt[@]}" --data "idx:$work/data"
expect 2 '9 outputs' --model mlp:784,9 --data "idx:$work/data"
expect 2 '100 values' --model mlp:100,10 --data "idx:$work/data"
expect 2 'batch-size' "${cnn[@]}" --batch-size 65
expect 2 '--stpes' "${cnn[@]}" --stpes 3
expect 2 'lr' "${cnn[@]}" --lr fast
expect 2 'batch-size' "${cnn[@]}" --batch-size 0
expect 2 'nesterov' "${cnn[@]}" --optimizer sgd --nesterov
expect 2 'nesterov is only for --optimizer sgd' "${cnn[@]}" --nesterov
expect 2 'momentum is only for --optimizer sgd' "${cnn[@]}" --momentum 0.9
for option in beta1 beta2 epsilon; do
  expect 2 "--$option is only for --optimizer adam and adamw" "${cnn[@]}" --optimizer sgd --$option 0.5
done
expect 2 'decay-all is only for --weight-decay above 0' "${cnn[@]}" --decay-all
expect 2 'min-lr is only for --schedule cosine and linear' "${cnn[@]}" --warmup 1 --min-lr 0.0001
expect 2 'trace-steps is only for --trace' "${cnn[@]}" --trace-steps 3
expect 2 'transport is only for --strategy ddp' "${cnn[@]}" --strategy dp --transport shm
expect 2 'watch is only for --strategy ddp' "${cnn[@]}" --strategy dp --watch 5
"$lockstep" train "${cnn[@]}" --overwrite >/dev/null 2>"$work/stderr"
[ $? = 2 ] && grep -q 'overwrite is only for --out' "$work/stderr" || { fail "--overwrite alone"; cat "$work/stderr"; }
expect 2 'epochs and --steps contradict' "${cnn[@]}" --steps 1 --epochs 1
expect 2 'want 0 to 0.9999999' "${cnn[@]}" --beta2 1
# 0 is 0, not the default
for option in beta1 beta2; do
  for value in 0 1e-300; do
    "$lockstep" train --model mlp:784,8,10 --data "idx:$work/data" --steps 5 --batch-size 8 --$option $value --out "$work/beta$value" --overwrite \
      >"$work/stdout" 2>&1 || { fail "--$option $value"; cat "$work/stdout"; }
  done
  [ "$(hash_of "$work/beta0")" = "$(hash_of "$work/beta1e-300")" ] || fail "--$option 0 is not 0"
done
expect 2 'want 0 to 9223372036854775807' "${cnn[@]}" --seed 18446744073709551616
LOCKSTEP_TRANSPORT=mpi expect 2 'mpi is for ranks that mpirun starts' "${cnn[@]}"
expect 2 'surplus' "${cnn[@]}" surplus
expect 2 'recompute: cnn has no blocks' "${cnn[@]}" --recompute
LOCKSTEP_TRANSPORT=pigeon expect 2 'LOCKSTEP_TRANSPORT.*pigeon' "${cnn[@]}"

# break_copy NAME: a fresh copy of the data to damage
break_copy() {
  rm -rf "$work/broken"
  cp -r "$work/data" "$work/broken"
}
images=$work/broken/train-images-idx3-ubyte
labels=$work/broken/train-labels-idx1-ubyte
broken=("${cnn[@]:0:2}" --data "idx:$work/broken" --steps 1 --batch-size 8)
break_copy && truncate -s -1 "$images" && expect 3 "$images" "${broken[@]}"
break_copy && truncate -s 7 "$images" && expect 3 "$images" "${broken[@]}"
break_copy && : >"$labels" && expect 3 "$labels" "${broken[@]}"
break_copy && head -c 50000 /dev/urandom >"$images" && expect 3 "$images" "${broken[@]}"
break_copy && printf '\0\0\10\1' | dd of="$images" conv=notrunc status=none && expect 3 "$images" "${broken[@]}"
break_copy && printf '\377\377\377\377' | dd of="$images" seek=4 bs=1 conv=notrunc status=none && expect 3 "$images" "${broken[@]}"
break_copy && printf '\12' | dd of="$labels" seek=20 bs=1 conv=notrunc status=none && expect 3 "label" "${broken[@]}"
break_copy && rm "$labels" && expect 3 "$labels" "${broken[@]}"
break_copy && rm "$images" && ln -s "$images" "$images" && expect 3 "$images: cannot open: Too many levels" "${broken[@]}"
expect 3 "$labels/train-images-idx3-ubyte: cannot open: Not a directory" "${cnn[@]:0:2}" --data "idx:$labels" --steps 1 --batch-size 8
break_copy && gzip "$images" && truncate -s 2000 "$images.gz" && expect 3 "$images.gz" "${broken[@]}"

# four ranks and too little for each
for option in --batch-size --shards; do
  "$lockstep" train "${cnn[@]}" --ranks 4 $option 2 2>"$work/stderr"
  [ $? = 2 ] || fail "$option 2 with 4 ranks: want exit 2"
  grep -q -- "$option 2 is smaller than --ranks 4" "$work/stderr" || fail "$option 2 with 4 ranks: not named"
done

# --out: no folder, and a finished run is not replaced by accident
expect_out() {
  local code=$1 pattern=$2 out=$3 ranks
  shift 3
  for ranks in 1 2; do
    "$lockstep" train "${cnn[@]}" --ranks $ranks --out "$out" "$@" >"$work/stdout" 2>"$work/stderr"
    local seen=$?
    [ $seen = "$code" ] || fail "--out $out: exit $seen with $ranks ranks, want $code"
    grep -q -- "$pattern" "$work/stderr" || { fail "--out $out: message lacks '$pattern'"; cat "$work/stderr"; }
  done
}
: >"$work/file"
expect_out 3 "$work/file" "$work/file"
expect_out 3 "/proc/nowhere" /proc/nowhere
mkdir "$work/pipes"
mkfifo "$work/pipes/metrics.jsonl"
expect_out 3 'no regular file' "$work/pipes" --overwrite
rm "$work/pipes/metrics.jsonl"
mkfifo "$work/pipes/model.safetensors"
expect_out 3 'model.safetensors: is a pipe or device, want a regular file' "$work/pipes" --overwrite
[ -p "$work/pipes/model.safetensors" ] && [ "$(ls "$work/pipes")" = model.safetensors ] || fail "a pipe called model.safetensors"
rm "$work/pipes/model.safetensors"
mkfifo "$work/pipes/profile.json"
expect_out 3 'profile.json: is a pipe or device, want a regular file' "$work/pipes" --overwrite --profile
mkfifo "$work/trace"
expect_out 3 "--trace: $work/trace: is a pipe or device, want a regular file" "$work/traced" --overwrite --trace "$work/trace"
"$lockstep" train "${cnn[@]}" --out "$work/done" >/dev/null 2>&1 || fail "a plain run"
before=$(hash_of "$work/done")
expect_out 2 'overwrite' "$work/done"
[ "$(hash_of "$work/done")" = "$before" ] || fail "a refused run changed the folder"
"$lockstep" train "${cnn[@]}" --out "$work/done" --overwrite >/dev/null 2>&1 || fail "--overwrite"

# the environment's transport is taken where --transport is not given
if has_tcp; then
  LOCKSTEP_TRANSPORT=tcp "$lockstep" train "${cnn[@]}" --ranks 2 --out "$work/tcp" >/dev/null 2>&1 || fail "LOCKSTEP_TRANSPORT=tcp"
  grep -q '"transport":"tcp"' "$work/tcp/summary.json" || fail "LOCKSTEP_TRANSPORT=tcp was not heard"
fi

# A record that cannot be written is said, and costs no run
LOCKSTEP_FLIGHT=/proc/nowhere "$lockstep" train "${cnn[@]}" >"$work/stdout" 2>"$work/stderr" || fail "LOCKSTEP_FLIGHT: the run"
grep -q 'no record can be written to /proc/nowhere' "$work/stderr" || fail "LOCKSTEP_FLIGHT: $(cat "$work/stderr")"

# A full disk: named, non-zero, nothing called complete, the older file of that name is kept
mkdir "$work/full"
if mount -t tmpfs -o size=256k lockstep-test "$work/full" 2>/dev/null; then
  expect_out 3 "$work/full" "$work/full"
  [ ! -e "$work/full/summary.json" ] || fail "full disk: left a summary"
  [ ! -e "$work/full/model.safetensors" ] || fail "full disk: left a model"
  [ -z "$(find "$work/full" -name '*.part*' -o -name '*.tmp*')" ] || fail "full disk: left a temporary file"
  head -c 300k /dev/zero >"$work/full/filler" 2>/dev/null
  expect_out 3 "$work/full" "$work/full"
else
  echo "full disk not tried: no right to mount a tmpfs"
fi
finish
