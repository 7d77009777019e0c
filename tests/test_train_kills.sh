#!/usr/bin/env bash
# A few rounds of scripts/soak-resume and of scripts/soak; the long runs are `scripts/soak-resume 500` and `scripts/soak 3600`.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
LOCKSTEP_TEST_BUILD=$build "$source_dir/scripts/soak-resume" 10 1 || fail "resuming killed jobs"
LOCKSTEP_TEST_BUILD=$build "$source_dir/scripts/soak" 4 1 || fail "soak"
finish
