#!/usr/bin/env bash
# The whole suite in two processes side by side, since servers of the end-to-end tests mostly wait for themselves.
#   tests/run.sh PYTHON [pytest arguments]
# One process has most end-to-end tests; the other has the rest of the suite, then the end-to-end tests of `later`, so
# that both take about as long. What the first printed comes after the rest. Exits 1 where something failed.
set -u
cd "$(dirname "$0")/.."
python=$1; shift
later=(tests/e2e/test_two_modes.py tests/e2e/test_bench_demo.py)
log=$(mktemp)
trap 'kill "$first" 2>/dev/null; rm -f "$log"' EXIT
began=$SECONDS
"$python" -m pytest tests/e2e "${later[@]/#/--ignore=}" "$@" > "$log" 2>&1 &
first=$!
"$python" -m pytest --ignore=tests/e2e --ignore=tests/gpu "$@"
rest=$?
"$python" -m pytest "${later[@]}" "$@"
second=$?
wait "$first"
servers=$?
echo; echo "== end-to-end tests"; grep -v '^GPU tests skipped: 0 (none' "$log"
echo; echo "== GPU tests"
"$python" -m pytest tests/gpu "$@" | grep -E '^(GPU tests|FAILED|ERROR|E  |=+ )'
gpu=${PIPESTATUS[0]}
echo
echo "unit, seam and CPU tests: exit $rest; end-to-end: exit $servers and $second; GPU: exit $gpu; $((SECONDS - began)) s"
for status in "$rest" "$servers" "$second" "$gpu"; do
  [ "$status" = 0 ] || [ "$status" = 5 ] || exit 1  # 5: the arguments select none of them
done
