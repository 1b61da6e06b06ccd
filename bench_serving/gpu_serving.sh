#!/usr/bin/env bash
# The end-to-end serving benchmark on one H200, in stages with hard time limits; results are on disk as they come.
#
#   bench_serving/gpu_serving.sh OUT_DIR [fp8] [fp8-more] [bf16] [hot-rows] [multi-turn] [long-document]
#
# Without a stage: fp8. Every stage is `bench_serving.run` with its own folder OUT_DIR/STAGE, but fp8-more goes on in
# OUT_DIR/fp8 with what the time limit of fp8 left out. PREVIOUS=DIR takes the results of an earlier call first, so that
# only what they lack is run. LIMIT_S (default below) is a stage's limit, start of the servers included.
#
# MODEL=glm52-shaped-dense replaces the model (no mixture of experts: fewer kernels to compile on a fresh host).
#
# Needs SGLang 0.5.23 importable as `python3` and a GPU with 141 GB. Estimates, from guessed speeds (--dry-run prints
# them): fp8 (cold 32K prompts, all systems) 120 s to start, 510 s to measure; fp8-more (24K shared) 120 s and 390 s.
# No name of a machine and no folder outside the repository is in what is written.
set -u
cd "$(dirname "$0")/.."
out=$(mkdir -p "$1" && cd "$1" && pwd); shift
stages=${*:-fp8}
configs=${CONFIGS:-bench_serving/configs}
[ -n "${PREVIOUS:-}" ] && cp -r "$PREVIOUS"/. "$out"/
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 PYTHONUNBUFFERED=1

python3 -m bench_serving.large_shapes glm52-shaped | tail -1
nvidia-smi --query-gpu=name,memory.used,memory.total --format=csv,noheader 2>/dev/null
df -h /dev/shm | tail -1 | awk '{print "shared memory", $2}'
free -g | awk '/^Mem:/ {print "host memory GiB, total and free:", $2, $7}'

stage() { # folder, limit in seconds, arguments of bench_serving.run
  local folder=$out/$1 limit=${LIMIT_S:-$2}; shift 2
  mkdir -p "$folder"
  python3 -m bench_serving.run "$@" ${MODEL:+--model "$MODEL"} --dry-run 2>&1 > /dev/null | tail -1
  # SIGTERM lets the runner end its servers and keep its lines; SIGKILL is for one that does not.
  timeout -k 30 $((limit + 20)) python3 -m bench_serving.run "$@" ${MODEL:+--model "$MODEL"} --out "$folder" --limit-s "$limit" \
    > "$folder/table.txt" 2> "$folder/progress.txt"
  echo "exit $?" >> "$folder/table.txt"
  python3 -m bench_serving.report "$folder" > /dev/null 2>> "$folder/progress.txt"
  sed -i "s#$PWD/##g; s#$HOME/#~/#g; s#/tmp/[^ \"']*/#.../#g" "$folder/progress.txt" "$folder/table.txt"
}

failed_systems() { # folder: file names of the logs of systems without a result
  python3 - "$1" <<'P'
import pathlib, sys
from bench_serving.config import slug
from bench_serving.folder import Folder
if pathlib.Path(sys.argv[1], "results.jsonl").exists():
    print(*{slug(line["system"]) for line in Folder.read(pathlib.Path(sys.argv[1])).lines if line["status"] == "failed"})
P
}

for name in $stages; do
  case $name in
    fp8) stage fp8 480 $configs/h200.toml --workload "cold 32K" ;;
    fp8-more) stage fp8 480 $configs/h200.toml ;;
    bf16) stage bf16 540 $configs/h200_bf16.toml ;;
    hot-rows) stage hot-rows 300 $configs/h200_hot_rows.toml ;;
    multi-turn) stage multi-turn 420 $configs/h200_multi_turn.toml ;;
    long-document) stage long-document 540 $configs/h200_long_document.toml ;;
    *) echo "no stage '$name'; there are fp8, fp8-more, bf16, hot-rows, multi-turn, long-document" >&2; exit 2 ;;
  esac
done

for folder in "$out"/*/; do
  [ -f "$folder/table.txt" ] || continue
  # What a person needs when it went wrong: what the runner said, and the end of the logs of what failed.
  if ! grep -q '^exit 0' "$folder/table.txt"; then
    echo "== $(basename "$folder"): problems"
    grep -q PROBLEM "$folder/progress.txt" || tail -20 "$folder/progress.txt"
    grep -A14 PROBLEM "$folder/progress.txt" | cut -c1-300 | tail -60
    for name in $(failed_systems "$folder"); do
      echo "-- log of $name"
      grep -vE 'GET /(metrics|server_info|health|v1)|POST /generate' "$folder/logs/$name.txt" | tail -30 | cut -c1-240
    done
  fi
  echo "== $(basename "$folder")"
  tail -45 "$folder/table.txt" | cut -c1-200
  tail -2 "$folder/progress.txt" | cut -c1-200
done
