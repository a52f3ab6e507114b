"""How many samples a second do ranks that share one GPU train?

    python benchmarks/gpu/sharing.py [--ranks 1 2 4] [--samples 40000] [--deadline 15] [--json FILE]

Each algorithm trains the embedded digits, on a wider network than the default, and on every count of ranks for the same
number of samples. Ranks are started by the mpirun beside this Python; a run has a deadline and failing leaves a gap.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from launch import end

ALGORITHMS = ("asgd", "easgd", "sparse-delta", "hybrid")
DEADLINE = 15.0  # seconds a run, and two to end it: twelve runs take 204 s at the most, of run.sh's 210
SAMPLES = 1438  # of the digits' training part


def rate(name: str, ranks: int, samples: int, width: float, device: str, deadline: float) -> float | None:
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
        failure = launch(command, deadline)
        if failure:
            print(f"{name} on {ranks} ranks: {failure}", file=sys.stderr)
            return None
        return float(json.loads((out / "summary.json").read_text())["samples_per_second"])


def launch(command: list[str], deadline: float) -> str:
    """Run mpirun within the deadline; why it failed, "" when it did not."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            errors = process.communicate(timeout=deadline)[1]
        except subprocess.TimeoutExpired:
            end([process])
            return f"no end within {deadline:g} s"
    # Launchers say more than the program, and nothing new.
    said = [line for line in errors.splitlines() if line.startswith("mpitrain: ")]
    why = said[0] if said else errors.strip()[-300:]
    return why or f"exit status {process.returncode}" if process.returncode else ""


def main() -> int:
    """One table, and one JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--samples", type=int, default=40000)
    parser.add_argument("--width", type=float, default=4.0)
    parser.add_argument("--device", choices=("cpu", "gpu"), default="gpu")
    parser.add_argument("--deadline", type=float, default=DEADLINE, help="seconds a run")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(f"{'samples/s':<14}" + "".join(f"{f'{ranks} ranks':>12}" for ranks in options.ranks))
    table: dict[str, dict[int, float | None]] = {}
    report = {"ranks": options.ranks, "samples_per_second": table}
    for name in ALGORITHMS:
        rates = {
            n: rate(name, n, options.samples, options.width, options.device, options.deadline) for n in options.ranks
        }
        table[name] = rates
        print(f"{name:<14}" + "".join(f"{'–' if r is None else f'{r:,.0f}':>12}" for r in rates.values()), flush=True)
        if options.json:
            options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 1 if any(r is None for rates in table.values() for r in rates.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
