# shellcheck shell=bash
# Shared by the scripts of this folder: sourced.
set -eu
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/lockstep-bench.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

die() {
  echo "${0##*/}: $*" >&2
  exit 2
}

# The command: LOCKSTEP, or the release build of this tree.
lockstep=${LOCKSTEP:-$here/../build/release/lockstep}
need_lockstep() {
  [ -x "$lockstep" ] || die "$lockstep is not there: cmake --preset release && cmake --build --preset release," \
    "or set LOCKSTEP to the command"
}

# value KEY FILE: of every JSON line in FILE
value() { sed -n "s/.*\"$1\":\"\{0,1\}\([^\",}]*\).*/\1/p" "$2"; }

# median KEY FILE
median() {
  value "$1" "$2" | sort -g |
    awk '{ v[NR] = $1 } END { if (NR) print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'
}

# The cores this process may use, one a line.
allowed_cores() {
  awk '/^Cpus_allowed_list/ { n = split($2, parts, ",")
    for (i = 1; i <= n; i++) { k = split(parts[i], ends, "-"); for (c = ends[1]; c <= ends[k]; c++) print c } }' \
    /proc/self/status
}
