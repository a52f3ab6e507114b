#!/usr/bin/env bash
# Everything that is measured on a GPU, in at most 12 minutes, without a download: tables on standard output, one JSON file.
#
#   benchmarks/gpu/run.sh [OUT.json [PART ...]]        in an environment with mpitrain[cuda13,cudnn13,mpich];
#                                                      PyTorch is compared if there. PART: kernels, steps-tf32, …; all by default
#   benchmarks/gpu/run.sh --try [OUT.json [PART ...]]  at sizes that show only that the scripts work
#
# Each part has a deadline, writes down each result at once, and goes on without the others; exit status 1 when one
# failed, or a kernel or the order of a module's was wrong, 2 when there is no GPU or no place for OUT.json.
set -uo pipefail
[ "${1:-}" = --try ] && { try=yes; shift; }
out=$(realpath -- "${1:-gpu.json}") && touch "$out" || { echo "run.sh: cannot write '${1:-gpu.json}'" >&2; exit 2; }
cd "$(dirname "$0")" || exit 2
wanted=("${@:2}")
python - <<'PYTHON' || exit 2
import sys
from mpitrain.device import available, describe
if not available():
    sys.exit(f"run.sh: no GPU can be used ({describe()})")
PYTHON
parts=$(mktemp -d)
trap 'rm -rf "$parts"' EXIT
failed=0

part() { # SCRIPT[-WHAT] SECONDS OPTION...
    local name=$1 limit=$2 began=$SECONDS status=0
    shift 2
    [[ ${#wanted[@]} = 0 || " ${wanted[*]} " = *" $name "* ]] || return 0
    [ "${try:-}" ] && limit=$((4 * limit)) # perhaps on a busy machine
    echo "== $name"
    timeout -k 5 "$limit" python "${name%%-*}.py" --json "$parts/$name.json" "$@" || { status=$?; failed=1; }
    [ $status = 124 ] && echo "$name: no end within $limit s"
    echo "$name $status $((SECONDS - began))" >> "$parts/ended"
}

part kernels 60 ${try:+--elements 5000 --repeats 1}
for matmul in tf32 bf16 float32; do
    part steps-$matmul 120 --matmul $matmul ${try:+--width 0.02 --minibatch 2 --repeats 1 --no-compile strom2015-dnn}
done
part modules 45 ${try:+--minibatch 2 --side 64 --repeats 1 resnet}
others=; [ "${try:-}" ] || others="zhang2013-dnn chan2014-cnn easgd-cifar easgd-imagenet krizhevsky2014"
few=${try:+--minibatches 4 --samples 8192 --deadline 200 --set model.width=0.05}
part sharing-algorithms 150 "$parts/runs" ${few:---minibatches 300} ${try:+--ranks 2 --algorithms asgd}
part sharing-networks 100 "$parts/runs" ${few:---minibatches 100} --algorithms allreduce --ranks 1 \
    --networks ${try:+strom2015-dnn} $others

python - "$out" "$parts" <<'PYTHON' || failed=1
import json, pathlib, sys
out, folder = map(pathlib.Path, sys.argv[1:])
report = {}
print("\n| part | exit status | seconds | results |\n|---|---|---|---|")
for line in (folder / "ended").read_text().splitlines():
    name, status, seconds = line.split()
    try:
        results = json.loads((folder / f"{name}.json").read_text())
    except (OSError, ValueError):  # none, or cut off
        results = None
    report[name] = {"exit_status": int(status), "seconds": int(seconds), "results": results}
    ended = {"0": "all", "1": "failed or wrong: see above", "124": "those before the deadline"}.get(status, "see above")
    print(f"| {name} | {status} | {seconds} | {ended if results else 'none'} |")
out.write_text(json.dumps(report, indent=1) + "\n")
print("\n==", out)
PYTHON
exit $failed
