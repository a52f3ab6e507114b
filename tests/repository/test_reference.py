"""The pages of keys and commands: written from the program, current, and without a gap."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mpitrain.__main__ import COMMANDS
from mpitrain.algorithms import ALGORITHMS
from mpitrain.algorithms.optimizers import OPTIMIZERS
from mpitrain.models.layers import LAYERS
from mpitrain.models.presets import PRESETS

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="module")
def reference() -> Any:
    """docs/reference.py, which is no package."""
    specification = importlib.util.spec_from_file_location("reference", DOCS / "reference.py")
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["keys.md", "commands.md"])
def test_the_page_is_current(reference: Any, name: str) -> None:
    assert (DOCS / name).read_text() == reference.PAGES[name](), "write it by `python docs/reference.py`"


def test_every_key_says_what_it_means(reference: Any) -> None:
    """At its declaration, or, of a layer, in the class's docstring; and what values it takes."""
    kinds = [*reference.SECTIONS.values(), *ALGORITHMS.values(), *OPTIMIZERS.values()]
    gaps = [f"{kind.__name__}.{key}" for kind in kinds for key, values, _, said in reference.fields(kind) if not said]
    gaps += [f"{kind.__name__}.{key}" for kind in kinds for key, values, _, _ in reference.fields(kind) if not values]
    assert gaps == []


def test_every_kind_and_key_of_a_layer_is_on_the_page() -> None:
    page = (DOCS / "keys.md").read_text()
    rows = {row.split("`")[1]: row for row in re.findall(r"^\| `.*$", page.partition("### Layers")[2], re.MULTILINE)}
    for name, kind in LAYERS.items():
        assert all(f"`{key}`" in rows[name] for key in kind.__struct_encode_fields__), name


def test_every_name_is_on_the_page() -> None:
    """Of algorithms, their presets, optimizers and networks."""
    names = {
        *ALGORITHMS,
        *OPTIMIZERS,
        *PRESETS,
        *(each for kind in ALGORITHMS.values() for each in kind.presets if each),
    }
    page = (DOCS / "keys.md").read_text()
    assert sorted(name for name in names if f"`{name}`" not in page) == []


def test_every_argument_of_every_command_says_what_it_means(reference: Any) -> None:
    """All commands are there, by the table that `main` looks in."""
    found = {name.split()[3] for name, _, _ in reference.commands()}
    assert found == set(COMMANDS)
    gaps = [name for name, _, said in reference.commands() if not said]
    gaps += [
        f"{name} {a}" for name, each, _ in reference.commands() for a, said in reference.arguments(each) if not said
    ]
    assert gaps == []


def test_the_page_of_commands_is_that_of_the_command_line() -> None:
    """Options of a command as `--help` shows them."""
    text = subprocess.run(
        [sys.executable, "-m", "mpitrain", "prepare", "speech", "--help"], capture_output=True, text=True, timeout=60
    ).stdout
    section = (DOCS / "commands.md").read_text().partition("## prepare speech\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"--[a-z-]+", text)) - {"--help"} == set(re.findall(r"`(--[a-z-]+)", section))
