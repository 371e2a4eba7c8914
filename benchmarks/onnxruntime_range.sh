#!/usr/bin/env bash
# Do exported models load and agree in the oldest onnxruntime that pyproject.toml allows, and in the newest?
# Makes two virtual environments in a temporary directory (or in $1, kept) and compares the logits of both with
# those recorded here. Needs a package index, and PYTHON (default python3.11) that the oldest version supports.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3.11}
oldest=$(sed -n 's/^infer = .*"onnxruntime>=\([0-9.]*\)".*/\1/p' "$root/pyproject.toml")
if [ $# -gt 0 ]; then work=$1; mkdir -p "$work"; else work=$(mktemp -d); trap 'rm -rf "$work"' EXIT; fi

PYTHONPATH=$root "${EXPORT_PYTHON:-$root/.venv/bin/python}" "$root/benchmarks/onnxruntime_range.py" write "$work"
for version in "==$oldest.*" ""; do
    environment="$work/venv-${version:+oldest}${version:-newest}"
    environment=${environment//[=.*]/}
    "$python" -m venv "$environment"
    # Versions before 1.19 were built against numpy 1.
    numpy=$([ -n "$version" ] && echo "numpy<2" || echo numpy)
    "$environment/bin/pip" install --quiet --disable-pip-version-check "onnxruntime$version" "$numpy"
    PYTHONPATH=$root "$environment/bin/python" "$root/benchmarks/onnxruntime_range.py" check "$work"
done
