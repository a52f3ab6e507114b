"""Every recipe of jobs/configs learns: its loss comes below that of the best constant outputs.

At its own rule, rates, minibatches, stages, output and geometry, with its paper's ranks on its paper's simulated
cluster: `benchmarks/papers/recipes.py`, whose whole table takes an hour, on fewer ranks or at a smaller width where a
recipe would take long. Those that take minutes even so are left out but with `--recipes all`.
"""

import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from mpitrain.data.corpus import Corpus

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks" / "papers"))
recipes = import_module("recipes")
CASES = recipes.CASES
LONG = ("easgd-imagenet2015", "mdownpour2015", "zhang2013")


def test_every_recipe_is_tested() -> None:
    assert {path.stem for path in (ROOT / "jobs" / "configs").glob("*.toml")} == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_all_classes_are_there_as_often(name: str, tmp_path: Path) -> None:
    """So that the best constant outputs are known, and nothing is learnt by learning which classes there are."""
    case = CASES[name]
    recipes.corpus(tmp_path, case, 2 * case.together)
    for part in ("train", "test"):
        counts = np.bincount(Corpus(tmp_path, part).targets, minlength=case.classes)
        assert len(counts) == case.classes and counts.min() == counts.max() > 0


@pytest.mark.parametrize("name", CASES)
def test_constant_outputs_do_not_learn(name: str) -> None:
    assert not recipes.learns(name, None)
    assert not recipes.learns(name, {"train_loss": recipes.constant(name)})


@pytest.mark.parametrize("name", CASES)
def test_a_recipe_learns(name: str, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    if name in LONG and pytestconfig.getoption("--recipes") != "all":
        pytest.skip("takes minutes: --recipes all")
    told = recipes.trained(name, tmp_path, short=True)
    assert told is not None and recipes.learns(name, told), told
    assert told["updates"] * recipes.period(name) >= recipes.UPDATES, told


def test_ten_times_the_rate_does_not(tmp_path: Path) -> None:
    """The bar tells a rate that is too high from one that is not; of all recipes in the benchmark's table."""
    assert not recipes.learns("mvadownpour2015", recipes.trained("mvadownpour2015", tmp_path, 10.0, short=True))
