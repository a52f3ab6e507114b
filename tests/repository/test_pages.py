"""The documents: their links lead somewhere, they fit a reader's time, and the site is built from them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("*/*/README.md"), ROOT / "kernels/README.md"])


def anchors(page: Path) -> set[str]:
    """Those of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_somewhere(page: Path) -> None:
    """To a file of the repository, and to a heading in it."""
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_the_readme_is_read_in_five_minutes() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_the_site_is_built_without_warnings(tmp_path: Path) -> None:
    for package in ("sphinx", "myst_parser", "furo"):
        pytest.importorskip(package, reason="the extra mpitrain[docs] is not installed")
    build = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", str(tmp_path / "trees")]
    ended = subprocess.run(
        [*build, str(ROOT / "docs"), str(tmp_path / "site")], capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stderr
    pages = {page.stem for page in ROOT.glob("docs/*.md")}
    assert pages <= {page.stem for page in (tmp_path / "site").glob("*.html")}
