"""The report page: size, time to load, time to change the axis of all plots, what its content security policy refuses.

    python benchmarks/report/pages.py [--runs 10] [--records 10000] [--repeats 9] [--keep DIR]

Wants Chromium. The page counts as loaded in the second frame after its last plot was drawn.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from mpitrain.report.page import page
from mpitrain.report.runs import read_runs
from tests.report.chromium import CHROMIUM, Chromium
from tests.report.folders import curve, ended, write_run

LOADED = """(async () => {
await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done))); return performance.now(); })()"""
AXIS = """(async () => { const began = performance.now(); document.querySelector('input[value="epochs"]').click();
await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
return performance.now() - began; })()"""


def our_page(folder: Path, runs: int, records: int) -> str:
    """The report of invented runs: `runs` runs with `records` records each, whose metrics fill every kind of plot."""
    fields = {"density": 0.001, "threshold": 0.5, "residual_norm": 7.0, "bytes_per_minibatch": 400.0}
    fields |= {"compression_ratio": 300.0, "bits_per_element": 12.0, "bytes_exchanged": 10**9, "staleness_mean": 1.5}
    folders = []
    for number in range(runs):
        made = curve(records // 2, 50.0 + 10 * number, **fields)
        ages = {"staleness_histogram": {str(age): 10 * age + number for age in range(12)}}
        folders.append(write_run(folder / f"run-{number}", "sparse-delta", made, ended(made, **ages)))
    return page(read_runs(folders), "Ten runs")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    if CHROMIUM is None:
        sys.exit("pages.py: Chromium is not installed")
    with tempfile.TemporaryDirectory() as temporary, Chromium() as browser:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        text, path = our_page(Path(temporary), options.runs, options.records), folder / "report.html"
        path.write_text(text, encoding="utf-8")
        loaded, axis = [], []
        for _ in range(options.repeats):
            browser.open(path, 1280)
            loaded.append(browser.evaluate(LOADED))
            axis.append(browser.evaluate(AXIS))
        print(f"{options.runs} runs of {options.records:,} records: {len(text.encode()) / 1e6:.2f} MB")
        print(f"loaded after {statistics.median(loaded):.0f} ms, another axis after {statistics.median(axis):.0f} ms")
        print(f"refused by the policy: {len(browser.complaints)}", *dict.fromkeys(browser.complaints), sep="\n    ")


if __name__ == "__main__":
    main()
