#!/usr/bin/env bash
# A few rounds of scripts/soak-kills; the long run is `scripts/soak-kills 200`. And a job where /dev/shm is full.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"

LOCKSTEP_TEST_BUILD=$build "$source_dir/scripts/soak-kills" 12 1 || fail "kills"

# Memory of a job has no name in /dev/shm, so a full one harms nobody.
ranks=$build/tests/program_ranks
# shellcheck disable=SC2016 # for the inner shell
unshare --mount sh -c 'mount -t tmpfs -o size=4k tmpfs /dev/shm && head -c 8192 /dev/zero >/dev/shm/full 2>/dev/null
  [ "$(df --output=avail /dev/shm | tail -1)" -eq 0 ] || exit 77
  "$1" run -n 3 "$2" point && "$1" run -n 2 "$2" grid && [ "$(ls /dev/shm)" = full ]' sh "$lockstep" "$ranks" \
  >"$work/out" 2>&1
code=$?
case $code in
0) ;;
1 | 32 | 77) grep -qi 'permitted\|denied' "$work/out" && echo "no right to mount: a full /dev/shm is not tried" || { fail "full /dev/shm: exit $code"; cat "$work/out"; } ;;
*) fail "full /dev/shm: exit $code"; cat "$work/out" ;;
esac
finish
