#!/bin/sh
# Runs the small GPU tests of our kernels under compute-sanitizer: memcheck, then racecheck. Minutes, not seconds.
#   tests/gpu/sanitize.sh [pytest arguments]
# PYTHON and CUDA_HOME name another interpreter or toolkit. Exits non-zero on a finding, and when the tool is missing.
set -eu

cd "$(dirname "$0")/../.."
python=${PYTHON:-python}
sanitizer=$(command -v compute-sanitizer || echo "${CUDA_HOME:-/usr/local/cuda}/bin/compute-sanitizer")
if [ ! -x "$sanitizer" ]; then
    echo "sanitize.sh: no compute-sanitizer in PATH and none at $sanitizer; install it or set CUDA_HOME" >&2
    exit 1
fi

# Outside the sanitizer first: compiles the kernels, and fails at once where no GPU runs them.
"$python" -c 'from sglang_hisparse.kernels import map_rows, pages, resolve; resolve.prepare(); pages.prepare(); map_rows.prepare()'

# Without torch's caching allocator an access behind a tensor leaves its allocation, so that memcheck sees it.
export PYTORCH_NO_CUDA_MEMORY_CACHING=1
for tool in memcheck racecheck; do
    echo "== $tool"
    "$sanitizer" --tool "$tool" --kernel-name kns=hisparse --error-exitcode 3 \
        "$python" -m pytest tests/gpu/test_resolve_cuda.py tests/gpu/test_listed_fetch_cuda.py tests/gpu/test_page_copy_cuda.py \
        tests/gpu/test_resident_cuda.py tests/gpu/test_set_tables_cuda.py -q -k small "$@"
done
