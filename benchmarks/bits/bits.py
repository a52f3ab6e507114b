"""Whether two versions of the program train the same parameters, to the bit.

python benchmarks/bits/bits.py [--keep DIR] [--epochs E] [--only NAME ...] [--ranks P ...] REVISION [REVISION]

Installs each git revision beside MPICH in a virtual environment of its own, trains every algorithm with deterministic
settings (round-robin order, or synchronous) on the embedded digits with 1, 2 and 4 ranks, and compares
`parameters_sha256` of the two. Exit status 1 when any differs or a training fails. With one revision it only prints the
digests. `here` for a revision is the environment of this Python, as it is.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE, FAILED = "here", "status"
IN_ORDER = "algorithm.order=round-robin"
SETTINGS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("sgd", "msgd", "averaged", "moving-average", "allreduce", "easgd-sync", "eamsgd-sync"), ()),
    **dict.fromkeys(("asgd", "mdownpour", "adownpour", "mvadownpour", "downpour", "sparse-delta"), (IN_ORDER,)),
    **dict.fromkeys(("easgd", "eamsgd", "admm"), (IN_ORDER,)),
    "hybrid": (),
    "asgd zhang2013": ("algorithm.preset=zhang2013", IN_ORDER),
    "asgd chan2014": ("algorithm.preset=chan2014", IN_ORDER),
    "msgd classical": ("algorithm.nesterov=false",),
    "easgd different": ("algorithm.start=different", "algorithm.tau=4", IN_ORDER),
    "eamsgd chunked": ("algorithm.sampling=chunked", "algorithm.rate_decay=0.001", IN_ORDER),
    "downpour tau 4": ("algorithm.tau=4", IN_ORDER),
    "admm momentum": ("algorithm.delta=0.5", IN_ORDER),
    "hybrid a": ("algorithm.scheme=a",),
    "hybrid c sub": ("algorithm.scheme=c", "algorithm.fc_batch=sub"),
    "sparse-delta adaptive": ("algorithm.target_density=0.01", "algorithm.codec=golomb-rice", IN_ORDER),
    "easgd messages": ("run.exchange=messages", IN_ORDER),
    "asgd messages": ("run.exchange=messages", IN_ORDER),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("revisions", nargs="+", metavar="REVISION")
    parser.add_argument("--keep", type=Path, help="keep environments and digests here, and use what is there already")
    parser.add_argument("--epochs", type=float, default=3.0)
    parser.add_argument("--only", nargs="+", choices=SETTINGS, default=list(SETTINGS), metavar="NAME")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = options.keep or Path(made)
        found = [digests(folder, revision, options) for revision in options.revisions]
    first, last = found[0], found[-1]
    for key, digest in first.items():
        verdict = "same" if last.get(key) == digest else f"{last.get(key, 'missing')[:12]} differs"
        print(f"{key:32s} {digest[:12]} {verdict if len(found) > 1 else ''}")
    print(f"{sum(last.get(key) == digest for key, digest in first.items())} of {len(first)} the same")
    return int(first != last or any(digest.startswith(FAILED) for digest in first.values()))


def digests(folder: Path, revision: str, options: argparse.Namespace) -> dict[str, str]:
    """The digest of each training, by "settings, ranks"."""
    if revision == HERE:
        return {key: _digest(Path(sys.executable), key, options.epochs) for key in _keys(options)}
    commit = subprocess.check_output(["git", "rev-parse", "--short", revision], cwd=ROOT, text=True).strip()
    kept = folder / f"{commit}-{options.epochs:g}.json"
    found: dict[str, str] = json.loads(kept.read_text()) if kept.exists() else {}
    if missing := [key for key in _keys(options) if key not in found]:
        python = installed(folder / commit, revision)
        found |= {key: _digest(python, key, options.epochs) for key in missing}
        whole = {key: digest for key, digest in found.items() if not digest.startswith(FAILED)}
        kept.write_text(json.dumps(whole, indent=1))
    return {key: found[key] for key in _keys(options)}


def _keys(options: argparse.Namespace) -> list[str]:
    return [f"{name}, {ranks} ranks" for name in options.only for ranks in options.ranks]


def _digest(python: Path, key: str, epochs: float) -> str:
    name, ranks = key.removesuffix(" ranks").rsplit(", ", 1)
    return trained(python, (f"algorithm.name={name.split()[0]}", *SETTINGS[name]), int(ranks), epochs)


def installed(folder: Path, revision: str) -> Path:
    """The Python of a new environment with the program at this revision."""
    python = folder / "venv" / "bin" / "python"
    if not python.exists():
        source = folder / "source"
        source.mkdir(parents=True, exist_ok=True)
        archive = subprocess.Popen(["git", "archive", revision], cwd=ROOT, stdout=subprocess.PIPE)
        subprocess.run(["tar", "-x", "-C", source], stdin=archive.stdout, check=True)
        venv.create(folder / "venv", with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", f"{source}[mpich]"], check=True)
    return python


def trained(python: Path, settings: tuple[str, ...], ranks: int, epochs: float) -> str:
    """`parameters_sha256` of a short training; why, where there is none."""
    with tempfile.TemporaryDirectory() as folder:
        common = (f"training.epochs={epochs}", "run.progress=none", "run.deadline=20")
        keys = [f"--set={item}" for item in (*settings, *common)]
        command = [python.with_name("mpirun"), "-n", str(ranks), python, "-m", "mpitrain", f"--out={folder}/run", *keys]
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=600)
        if done.returncode:
            said = done.stderr.strip().splitlines() or ["no message"]
            print(f"{settings} on {ranks} ranks: {said[-1]}", file=sys.stderr)
            return f"{FAILED} {done.returncode}"
        return str(json.loads((Path(folder) / "run/summary.json").read_text())["parameters_sha256"])


if __name__ == "__main__":
    sys.exit(main())
