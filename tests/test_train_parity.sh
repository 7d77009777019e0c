#!/usr/bin/env bash
# A part of scripts/parity, the table of bits over models, optimizers, shards and ranks; and that it can fail.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
parity=$source_dir/scripts/parity

"$parity" --quick "$build" >"$work/table" 2>&1 || fail "scripts/parity --quick: exit $?"
cat "$work/table"
grep -q '^19 runs: 7 equal to the bit as promised, 7 near where bits may differ, 0 broken$' "$work/table" || fail "not all was compared"

# two ranks that train something else than one process does, and three that do not even start
cat >"$work/other" <<END
#!/bin/sh
case "\$*" in
*"--ranks 2"*) set -- "\$@" --seed 2 ;;
*"--ranks 3"*) echo no >&2; exit 1 ;;
esac
exec "$lockstep" "\$@"
END
chmod +x "$work/other"
LOCKSTEP=$work/other "$parity" --quick "$build" >"$work/table" 2>&1 && fail "other bits are not seen"
[ "$(grep -c 'BROKEN: want' "$work/table")" = 3 ] || fail "other bits on 2 ranks: $(cat "$work/table")"
[ "$(grep -c 'BROKEN: no' "$work/table")" = 4 ] || fail "ranks that fail: $(cat "$work/table")"
"$parity" --help | grep -q '^usage: scripts/parity' || fail "--help"
"$parity" --nope >/dev/null 2>&1 && fail "--nope is accepted"
finish
