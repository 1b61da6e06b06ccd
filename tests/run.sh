#!/usr/bin/env bash
# The whole suite in two processes side by side, since servers of the end-to-end tests mostly wait for themselves.
#   tests/run.sh PYTHON [pytest arguments]
# End-to-end output comes after the rest; the summary of both is last. Exits 1 where one of them failed.
set -u
cd "$(dirname "$0")/.."
python=$1; shift
log=$(mktemp)
trap 'kill "$e2e" 2>/dev/null; rm -f "$log"' EXIT
began=$SECONDS
"$python" -m pytest tests/e2e "$@" > "$log" 2>&1 &
e2e=$!
"$python" -m pytest --ignore=tests/e2e --ignore=tests/gpu "$@"
rest=$?
wait "$e2e"
servers=$?
echo; echo "== end-to-end tests"; grep -v '^GPU tests skipped: 0 (none' "$log"
echo; echo "== GPU tests"
"$python" -m pytest tests/gpu "$@" | grep -E '^(GPU tests|FAILED|ERROR|E  |=+ )'
gpu=${PIPESTATUS[0]}
echo
echo "unit, seam and CPU tests: exit $rest; end-to-end: exit $servers; GPU: exit $gpu; $((SECONDS - began)) s"
for status in "$rest" "$servers" "$gpu"; do
  [ "$status" = 0 ] || [ "$status" = 5 ] || exit 1  # 5: the arguments select none of them
done
