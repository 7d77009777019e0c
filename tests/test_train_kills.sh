#!/usr/bin/env bash
# A few rounds of scripts/soak-resume; the long run is `scripts/soak-resume 500`.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
LOCKSTEP_TEST_BUILD=$build "$source_dir/scripts/soak-resume" 10 1 || fail "resuming killed jobs"
finish
