# shellcheck shell=bash
# Shared by tests/test_*.sh: sourced, with the build folder as $1 of the script. Gives a folder of its own,
# $work; processes that have it in their command line are ended with the script, however that ends.
set -u
build=${1:?usage: $0 BUILD_FOLDER}
source_dir=${LOCKSTEP_TEST_SOURCE:-$(cd "$(dirname "$0")/.." && pwd)}
# shellcheck disable=SC2034
lockstep=$build/lockstep
failures=0
work=$(mktemp -d "${TMPDIR:-/tmp}/lockstep-test.XXXXXX")

cleanup() {
  trap - EXIT
  [ "$BASHPID" = $$ ] || return # a child of the script that a signal has hit before it became its command
  local pids
  mapfile -t pids < <(pgrep -f -- "$work")
  [ ${#pids[@]} = 0 ] || kill -9 "${pids[@]}" 2>/dev/null
  if mountpoint -q "$work/full" 2>/dev/null; then umount "$work/full"; fi
  rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 1' INT TERM

fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}

skip() {
  echo "skipped: $*"
  exit 77
}

finish() {
  [ "$failures" = 0 ] || { echo "$failures checks failed"; exit 1; }
  exit 0
}

# fashion DIR TRAIN TEST: a folder of four IDX files with the first images of Fashion-MNIST.
fashion() {
  local from=/usr/share/datasets/fashion-mnist
  [ -f $from/train-images-idx3-ubyte.gz ] || skip "dataset-fashion-mnist is not installed"
  mkdir -p "$1"
  local part count file
  for part in train t10k; do
    count=$2
    [ $part = train ] || count=$3
    file=$1/$part-images-idx3-ubyte
    idx_header 3 "$count" 28 28 >"$file"
    zcat $from/$part-images-idx3-ubyte.gz 2>/dev/null | tail -c +17 | head -c $((count * 784)) >>"$file"
    file=$1/$part-labels-idx1-ubyte
    idx_header 1 "$count" >"$file"
    zcat $from/$part-labels-idx1-ubyte.gz 2>/dev/null | tail -c +9 | head -c "$count" >>"$file"
  done
}

# idx_header DIMS SIZE...: magic and big-endian sizes
idx_header() {
  local number
  printf '\0\0\10'
  # shellcheck disable=SC2059
  printf "\\x$(printf %02x "$1")"
  shift
  for number in "$@"; do
    # shellcheck disable=SC2059
    printf "\\x$(printf %02x $((number >> 24 & 255)))\\x$(printf %02x $((number >> 16 & 255)))"
    # shellcheck disable=SC2059
    printf "\\x$(printf %02x $((number >> 8 & 255)))\\x$(printf %02x $((number & 255)))"
  done
}

# text FILE: some 100 KB of text that is always there, the project's own sources
text() {
  cat "$source_dir"/src/*/*.c | LC_ALL=C tr -cd '\11\12\40-\176' | head -c 100000 >"$1"
}

# hash_of FOLDER: weights_xxh64 of a finished run
hash_of() {
  grep -o '"weights_xxh64":"[0-9a-f]*"' "$1/summary.json" | cut -d'"' -f4
}

# free_port: one that nothing listens on at the moment
free_port() {
  local port
  while :; do
    port=$((20000 + RANDOM % 12000)) # below those that the kernel hands out
    (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || break
  done
  echo "$port"
}

# has_tcp: whether the build has the tcp transport and loopback works
has_tcp() { "$lockstep" doctor | grep -q '^  tcp  *built in; loopback works'; }

now_ms() { date +%s%3N; }

# want_nothing_left WHAT [TEXT]: no process with TEXT ($work) in its command line is left; the kernel has a
# moment to end who was killed.
want_nothing_left() {
  local i text=${2:-$work}
  for ((i = 0; i < 40; i++)); do
    pgrep -f -- "$text" >/dev/null || return 0
    sleep 0.05
  done
  fail "$1: left $(pgrep -af -- "$text")"
}
