#!/usr/bin/env bash
# Everything that has to be shown on one GPU, into one folder: kernels against the reference, the sanitizer, servers
# against stock and against themselves, pressure, the demo.
#
#   bench_serving/gpu_suite.sh OUT_DIR [kernels] [equality] [pressure] [demo]        (all of them when none is named)
#
# Needs SGLang 0.5.23 importable as `python3`, nvcc and compute-sanitizer. About 8 minutes with compiled kernels.
set -u
cd "$(dirname "$0")/.."
out=$(mkdir -p "$1" && cd "$1" && pwd); shift
steps=${*:-kernels equality pressure demo}
limit=${LIMIT_S:-400}
{
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv
  python3 -c "import torch, sglang; print('torch', torch.__version__, 'sglang', sglang.__version__)"
  nvcc --version | tail -1
  git rev-parse HEAD 2>/dev/null
} > "$out/environment.txt"

compare() { # name, arguments of bench_serving.equality
  local name=$1; shift
  timeout "$limit" python3 -m bench_serving.equality "$@" --out "$out/$name.jsonl" > "$out/$name.txt" 2>&1
  echo "exit $?" >> "$out/$name.txt"
}

for model in glm52-tiny dsv32-tiny; do python3 -m bench_serving.tiny_models "$model" > /dev/null; done
for step in $steps; do
  case $step in
    kernels)
      timeout "$limit" python3 -m pytest tests/gpu -q -p no:cacheprovider > "$out/gpu-tests.txt" 2>&1
      echo "exit $?" >> "$out/gpu-tests.txt"
      PYTHON=python3 timeout "$limit" sh tests/gpu/sanitize.sh > "$out/sanitize.txt" 2>&1
      echo "exit $?" >> "$out/sanitize.txt" ;;
    equality)
      for model in glm52 dsv32; do for dtype in bf16 fp8; do
        compare "$model-$dtype" "$model-tiny" --dtype "$dtype" &
        sleep 2
      done; done
      wait ;;
    pressure)
      for dtype in bf16 fp8; do compare "pressure-$dtype" glm52-tiny --dtype "$dtype" --pressure & sleep 2; done
      wait ;;
    demo)
      timeout "$limit" python3 -m bench_serving.demo > "$out/demo.txt" 2>&1
      echo "exit $?" >> "$out/demo.txt" ;;
  esac
done
rm -f "$out"/*.log
for file in "$out"/*.txt; do echo "== ${file##*/}"; grep -v Warning "$file" | tail -14 | cut -c1-320; done
