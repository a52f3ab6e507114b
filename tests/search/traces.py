"""What trainings of the search come to, to compare two versions of the program with.

    python -m tests.search.traces FILE [--of SEEDS]        write one line a seed
    python -m tests.search.traces FILE --against OLD       and compare with what another version wrote

A line holds how the ranks ended, what they said, the virtual time, the traffic, and the parameters of the training of
a seed, without its resume. The same events in the same order give the same line. Exit status 1 when any differs.
"""

import argparse
import json
import re
import sys
import tempfile
from pathlib import Path

from . import EXACT, MORE, case, session

FIELDS = (
    *("exit_reason", "seconds", "samples", "updates", "staleness_mean", "staleness_max"),
    *("bytes_sent", "bytes_received", "messages_sent", "train_loss", "test_error", "parameters_sha256"),
)
RANGES = (range(70), range(MORE, MORE + 70), range(EXACT, EXACT + 60))


def trace(seed: int) -> dict[str, object]:
    """What the first session of a seed comes to."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        run = Path(folder) / "run"
        told = session(case(seed), seed, run)
        summary = json.loads((run / "summary.json").read_text()) if (run / "summary.json").exists() else {}
        said = re.sub(re.escape(folder), "", told.said)
    return {"seed": seed, "ended": told.ended, "said": said, **{name: summary.get(name) for name in FIELDS}}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--of", type=int, nargs="*", help="seeds; by default 200 of all kinds", metavar="SEED")
    parser.add_argument("--every", type=int, default=1, help="take one of so many of them", metavar="N")
    parser.add_argument("--against", type=Path, metavar="OLD")
    options = parser.parse_args()
    seeds = options.of or [seed for each in RANGES for seed in each][:: options.every]
    lines = [json.dumps(trace(seed)) for seed in seeds]
    options.file.write_text("\n".join(lines) + "\n")
    if not options.against:
        return 0
    old = {json.loads(line)["seed"]: line for line in options.against.read_text().splitlines()}
    differ = [line for line in lines if old[json.loads(line)["seed"]] != line]
    for line in differ:
        was, now = json.loads(old[json.loads(line)["seed"]]), json.loads(line)
        print(now["seed"], {key: (was.get(key), now[key]) for key in now if was.get(key) != now[key]})
    print(f"{len(lines) - len(differ)} of {len(lines)} the same")
    return int(bool(differ))


if __name__ == "__main__":
    sys.exit(main())
