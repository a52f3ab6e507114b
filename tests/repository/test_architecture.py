"""docs/architecture.md: its recipes are what their examples are, and what it names is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "mpitrain"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
#: Of each recipe: the file that is written, if it is a new one, the file that names it, and the example.
RECIPES = [
    [re.findall(r"`([^`]+)`", cell) for cell in line.strip("|").split("|")]
    for line in PAGE[PAGE.index("## Recipes") :].splitlines()
    if line.startswith(("| an ", "| a "))
]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe[3][0])
def test_an_example_is_in_the_files_of_its_recipe_and_in_no_others(recipe: list[list[str]]) -> None:
    """One new file and one line, or, for a figure, the line and wherever it is known."""
    _, written, (named,), (example,) = recipe
    found = {path for path in PACKAGE.rglob("*.py") if re.search(rf"\b{example}\b", path.read_text())}
    new = [PACKAGE / path.replace("NAME", example) for path in written if "NAME" in path]
    found |= set(new)
    assert all(path.exists() for path in new) and PACKAGE / named in found
    assert len(found) == 2, found
    assert [line for line in (PACKAGE / named).read_text().splitlines() if re.search(rf"\b{example}\b", line)][1:] == []


def test_there_are_recipes() -> None:
    assert len(RECIPES) == 4


def test_every_file_that_it_names_is_there() -> None:
    """And every room of its picture."""
    names = re.findall(r"`([\w/]+\.py|tests/[\w/]+)`", PAGE)
    gone = [name for name in names if not ((PACKAGE / name).exists() or (ROOT / name).exists() or "NAME" in name)]
    assert len(names) > 10 and [name for name in gone if not list(PACKAGE.rglob(name))] == []
    picture = PAGE[PAGE.index("```text") :].split("```")[1]
    rooms = re.findall(r"\b([a-z]+/|[a-z]+\.py)", picture)
    drawn = {room.strip("/") for room in rooms}
    there = {path.name for path in PACKAGE.iterdir() if not path.name.startswith("_") and path.suffix in ("", ".py")}
    assert there <= drawn, there - drawn
