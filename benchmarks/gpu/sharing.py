"""How many samples a second do ranks that share one GPU train?

    python benchmarks/gpu/sharing.py [--ranks 1 2 4] [--samples 40000] [--json FILE]

Each algorithm trains the embedded digits, on a wider network than the default, and on every count of ranks for the same
number of samples. Ranks are started by the mpirun beside this Python; a run has a deadline and failing leaves a gap.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ALGORITHMS = ("asgd", "easgd", "sparse-delta", "hybrid")
DEADLINE = 30.0  # seconds a run: twelve runs and their starts within the script's 150
SAMPLES = 1438  # of the digits' training part


def rate(name: str, ranks: int, samples: int, width: float, device: str) -> float | None:
    """Samples a second of one run; None when it failed."""
    mpirun = Path(sys.executable).with_name("mpirun")
    settings = {
        "algorithm.name": name,
        "training.epochs": samples / SAMPLES,
        "training.minibatch": 128 if name != "sparse-delta" else 64,
        "training.learning_rate": 0.001,
        "model.width": width,
        "run.device": device,
        "run.evaluate_every": 0,
        "run.checkpoint_every": 0,
    }
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [str(mpirun), "-n", str(ranks), sys.executable, "-m", "mpitrain", *words, "--out", str(out)]
        try:
            ended = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)
        except subprocess.TimeoutExpired:
            print(f"{name} on {ranks} ranks: no end within {DEADLINE:g} s", file=sys.stderr)
            return None
        if ended.returncode:
            print(f"{name} on {ranks} ranks: {ended.stderr.strip()[-300:]}", file=sys.stderr)
            return None
        return float(json.loads((out / "summary.json").read_text())["samples_per_second"])


def main() -> None:
    """One table, and one JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--samples", type=int, default=40000)
    parser.add_argument("--width", type=float, default=4.0)
    parser.add_argument("--device", choices=("cpu", "gpu"), default="gpu")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(f"{'samples/s':<14}" + "".join(f"{f'{ranks} ranks':>12}" for ranks in options.ranks))
    table: dict[str, dict[int, float | None]] = {}
    for name in ALGORITHMS:
        rates = {n: rate(name, n, options.samples, options.width, options.device) for n in options.ranks}
        table[name] = rates
        print(f"{name:<14}" + "".join(f"{'–' if r is None else f'{r:,.0f}':>12}" for r in rates.values()), flush=True)
    if options.json:
        options.json.write_text(json.dumps({"ranks": options.ranks, "samples_per_second": table}, indent=1) + "\n")


if __name__ == "__main__":
    main()
