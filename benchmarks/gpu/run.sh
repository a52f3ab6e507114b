#!/usr/bin/env bash
# Everything that is measured on a GPU, in under 8 minutes, without a download: tables on standard output, one JSON file.
#
#   benchmarks/gpu/run.sh [OUT.json]        in an environment with mpitrain[cuda13,mpich]; PyTorch is compared if there
#
# Each part has a deadline and goes on without the others; exit status 1 when one failed or a kernel was wrong.
set -uo pipefail
cd "$(dirname "$0")"
out=$(realpath "${1:-gpu.json}")
parts=$(mktemp -d)
trap 'rm -rf "$parts"' EXIT
status=0
for part in kernels steps sharing; do
    [ -e $part.py ] || continue
    echo "== $part"
    timeout 150 python $part.py --json "$parts/$part.json" || { echo "$part: exit status $?"; status=1; }
done
python - "$out" "$parts"/*.json <<'PYTHON'
import json, pathlib, sys
out, *parts = map(pathlib.Path, sys.argv[1:])
out.write_text(json.dumps({part.stem: json.loads(part.read_text()) for part in parts if part.exists()}, indent=1))
print("==", out)
PYTHON
exit $status
