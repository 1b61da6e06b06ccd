#!/usr/bin/env bash
# All kernel benchmarks on one GPU, into one folder; the tables come last.
#
#   bench_serving/gpu_kernels.sh OUT_DIR [ceilings] [resolve] [groups] [listed] [pages] [tune]   (all of them when none is named)
#
# Needs SGLang 0.5.23 importable as `python3`, nvcc and 40 GiB of host memory. About 3 minutes.
set -u
cd "$(dirname "$0")/.."
out=$(mkdir -p "$1" && cd "$1" && pwd); shift
{
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv
  python3 -c "import torch, sglang; print('torch', torch.__version__, 'sglang', sglang.__version__)"
  nvcc --version | tail -1
  git rev-parse HEAD 2>/dev/null
} > "$out/environment.txt"
timeout "${LIMIT_S:-300}" python3 -m bench_serving.kernels.run --out "$out" ${*:+--only "$@"} > "$out/run.txt" 2>&1
echo "exit $?" >> "$out/run.txt"
grep -E '^\[|^exit' "$out/run.txt"
python3 -m bench_serving.kernels.report "$out" | tee "$out/tables.md"
