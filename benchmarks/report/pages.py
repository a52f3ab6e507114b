"""The report page with our own plots, and the same curves drawn by libraries: size, time to load, what the page's
content security policy refuses.

    python benchmarks/report/pages.py [--libraries DIR] [--runs 10] [--records 10000] [--repeats 9] [--keep DIR]

Wants Chromium. DIR holds packages of npm, unpacked: `cd DIR; for p in uplot plotly.js-basic-dist-min vega vega-lite
vega-embed @bokeh/bokehjs; do mkdir -p $p; tar xzf $(npm pack -s $p) -C $p; done`. The curves of all pages are those of
our page: thinned, as JSON. A page counts as loaded in the second frame after its last plot was drawn.
"""

import argparse
import re
import statistics
import sys
import tempfile
from base64 import b64encode
from hashlib import sha256
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent))

from mpitrain.report.page import page  # noqa: E402
from mpitrain.report.runs import read_runs  # noqa: E402
from tests.report.chromium import CHROMIUM, Chromium  # noqa: E402
from tests.report.folders import curve, ended, write_run  # noqa: E402

LIBRARIES = {  # the files of each, in the packages' folders; our few lines that draw with it are NAME.js
    "uplot": ["uplot/package/dist/uPlot.iife.min.js"],
    "plotly": ["plotly.js-basic-dist-min/package/plotly-basic.min.js"],
    "bokeh": [f"@bokeh/bokehjs/package/build/js/bokeh{part}.min.js" for part in ("", "-api")],
    "vega": [f"{each}/package/build/{each}.min.js" for each in ("vega", "vega-lite", "vega-embed")],
}
STYLES = {"uplot": "uplot/package/dist/uPlot.min.css"}
POLICY = (
    "default-src 'none'; style-src {style}; script-src {script}; img-src data:; base-uri 'none'; form-action 'none'"
)
LOADED = """(async () => { await window.ready;
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


def library_page(name: str, libraries: Path, data: str, policy: bool) -> str:
    """A page of the same data with a library's files in it, under our page's policy or under none."""
    scripts = [(libraries / path).read_text(encoding="utf-8") for path in LIBRARIES[name]]
    scripts += [(HERE / f"{name}.js").read_text(encoding="utf-8")]
    style = (libraries / STYLES[name]).read_text(encoding="utf-8") if name in STYLES else ""
    style += "#plots { display: grid; grid-template-columns: 1fr 1fr; } #plots > div { height: 300px; min-width: 0; }"
    scripts = [text.replace("</script", "<\\/script") for text in scripts]
    hashes = {"style": _hash(style), "script": " ".join(map(_hash, scripts))}
    said = f'<meta http-equiv="Content-Security-Policy" content="{POLICY.format(**hashes)}">' if policy else ""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">{said}<link rel="icon" href="data:,">'
        f'<style>{style}</style></head><body><div id="plots"></div>'
        f'<script type="application/json" id="data">{data}</script>'
        + "".join(f"<script>{text}</script>" for text in scripts)
        + "</body></html>"
    )


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def measured(browser: Chromium, path: Path) -> tuple[float, float | None, list[str]]:
    """Milliseconds until the page is drawn, and for a change of its axis; what the browser complains of."""
    browser.complaints.clear()
    browser.open(path, 1280)
    try:
        loaded = browser.evaluate(LOADED)
    except AssertionError as error:
        return float("nan"), None, [*browser.complaints, str(error)]
    axis = browser.evaluate(AXIS) if browser.evaluate("!!document.querySelector('input[value=epochs]')") else None
    return loaded, axis, list(browser.complaints)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--libraries", type=Path)
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
        texts = {"ours": our_page(Path(temporary), options.runs, options.records)}
        data = re.search(r'id="data">(.*?)</script>', texts["ours"], re.DOTALL)[1]  # type: ignore[index]
        for name in LIBRARIES if options.libraries else ():
            for policy in (True, False):
                text = library_page(name, options.libraries, data, policy)
                texts[name if policy else f"{name}, no policy"] = text
        print(f"{options.runs} runs of {options.records:,} records; data {len(data) / 1e6:.2f} MB")
        for name, text in texts.items():
            (folder / f"{name}.html").write_text(text, encoding="utf-8")
        found: dict[str, list[tuple[float, float | None, list[str]]]] = {name: [] for name in texts}
        for _ in range(options.repeats):
            for name in texts:
                found[name].append(measured(browser, folder / f"{name}.html"))
        print("page                  MB    loaded ms   axis ms   refused")
        for name, rows in found.items():
            loaded = statistics.median(row[0] for row in rows)
            axis = statistics.median(row[1] for row in rows if row[1] is not None) if rows[0][1] is not None else None
            size = len(texts[name].encode()) / 1e6
            shown = "" if axis is None else f"{axis:.0f}"
            print(f"{name:20} {size:5.2f} {loaded:9.0f} {shown:>9} {len(rows[0][2]):9}")
            for line in dict.fromkeys(line[:100] for line in rows[0][2]):
                print(f"    {line}")


if __name__ == "__main__":
    main()
