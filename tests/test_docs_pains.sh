#!/usr/bin/env bash
# docs/pains.md names tests and their cases: each of them is there, and every row has one or says why not.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"

# check PAGE: complains about each `test_...` or `test_...: case` that is nowhere
check() {
  local name test case bad=0
  while read -r name; do
    test=${name%%: *} case=
    [ "$test" = "$name" ] || case=${name#*: }
    if [ -f "$source_dir/tests/$test.c" ]; then
      [ -z "$case" ] || grep -qE "(cmocka_unit_test[a-z_]*|WITH_FIXTURE)\(${case}[,)]" "$source_dir/tests/$test.c" || { echo "no case $case in tests/$test.c" && bad=1; }
    elif [ -f "$source_dir/tests/$test.sh" ]; then
      [ -z "$case" ] || grep -qF -- "$case" "$source_dir/tests/$test.sh" || { echo "tests/$test.sh does not say '$case'" && bad=1; }
    else
      echo "no tests/$test.c or .sh" && bad=1
    fi
  done < <(grep -oE '`test_[^`]+`' "$1" | tr -d '`' | sort -u)
  return $bad
}
page=$source_dir/docs/pains.md
[ "$(grep -oE '`test_[^`]+`' "$page" | sort -u | wc -l)" -gt 50 ] || fail "docs/pains.md names too few tests"
check "$page" || fail "docs/pains.md names what is not there"
for row in $(seq 1 45); do
  grep -qE "^\| ([0-9]+, )*$row(,| )" <(sed -n '/^## A/,$p' "$page") || fail "row $row is missing"
done
[ "$(sed -n '/^## The twelve/,/^## A/p' "$page" | grep -cE '^\| [0-9]+ \|.*`test_')" = 12 ] || fail "not twelve pains with a test"

# it can fail
for wrong in 'test_nowhere' 'test_ddp: test_nothing' 'test_cli_run: no_such_function'; do
  printf '`%s`\n' "$wrong" >"$work/page"
  check "$work/page" >/dev/null && fail "$wrong is not missed"
done
finish
