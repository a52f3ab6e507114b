"""The configuration: what it accepts, what it refuses and how it says so."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpitrain import config as configuration
from mpitrain.algorithms import ALGORITHMS
from mpitrain.errors import BadInput


@pytest.mark.parametrize("name", ALGORITHMS)
def test_resolved_configuration_reads_back_as_itself(name: str) -> None:
    """to_toml loses nothing, for every algorithm's defaults."""
    config = configuration.load(None, [f"algorithm.name={name}"])
    assert configuration.resolve(tomllib.loads(configuration.to_toml(config))) == config


@given(
    rate=st.floats(1e-9, 1e3),
    minibatch=st.integers(1, 10**6),
    at=st.one_of(st.floats(0, 100), st.integers(0, 100).map("{}%".format)),
    workers=st.integers(1, 1000),
)
def test_any_valid_values_read_back(rate: float, minibatch: int, at: float | str, workers: int) -> None:
    """Round trip of values and stages."""
    table = {
        "training": {"learning_rate": rate, "minibatch": minibatch},
        "stages": [{"at": at, "workers": workers, "learning_rate": rate}],
    }
    config = configuration.resolve(table)
    assert config.training.learning_rate == rate and config.stages[0].at == at
    assert configuration.resolve(tomllib.loads(configuration.to_toml(config))) == config


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("training.learnin_rate=1", ("training.learnin_rate", "learning_rate")),
        ("trainin.epochs=1", ("trainin", "training")),
        ("algorithm.name=asgdd", ("algorithm.name", "asgd")),
        ("algorithm.preset=zhang", ("algorithm.preset", "zhang2013")),
        ("training.learning_rate=-0.5", ("training.learning_rate", "> 0")),
        ("training.learning_rate=fast", ("training.learning_rate",)),
        ("training.minibatch=0", ("training.minibatch", ">= 1")),
        ("training=3", ("training",)),
        ("training", ("--set training", "key=value")),
        ("stages=[{at = 1, worker = 2}]", ("stages[0].worker", "workers")),
        ("model.dropout=1.0", ("model.dropout",)),
    ],
)
def test_a_refusal_names_the_key(override: str, words: tuple[str, ...]) -> None:
    """One line with the key, and the nearest known one where that helps."""
    with pytest.raises(BadInput) as refusal:
        configuration.load(None, [override])
    assert all(word in str(refusal.value) for word in words) and "\n" not in str(refusal.value)


def test_a_file_is_under_the_overrides_and_over_the_defaults(tmp_path: Path) -> None:
    """Precedence: --set, file, preset, algorithm's defaults."""
    path = tmp_path / "run.toml"
    path.write_text('[algorithm]\nname = "asgd"\npreset = "chan2014"\ngradient_decay = 0.8\n[training]\nepochs = 3\n')
    config = configuration.load(path, ["training.epochs=4"])
    assert config.training.epochs == 4 and config.algorithm.gradient_decay == 0.8
    assert config.algorithm.momentum == 0.9 and config.algorithm.until_free


def test_a_bad_file_is_named(tmp_path: Path) -> None:
    """Missing, and not TOML."""
    with pytest.raises(BadInput, match=r"none\.toml"):
        configuration.load(tmp_path / "none.toml", [])
    (tmp_path / "bad.toml").write_text("a = = 1")
    with pytest.raises(BadInput, match=r"bad\.toml"):
        configuration.load(tmp_path / "bad.toml", [])


README = Path(__file__).resolve().parent.parent / "README.md"


def keys() -> set[str]:
    """Every key of every section, and of `[algorithm]` whatever the algorithm."""
    sections = [configuration.Data, configuration.Model, configuration.Training, configuration.Pretraining]
    sections += [configuration.Run, configuration.Stage, *ALGORITHMS.values()]
    return {field for section in sections for field in section.__struct_fields__}


def test_every_key_is_explained() -> None:
    """In the README's chapter on them."""
    chapter = README.read_text().split("## Every key")[1].split("\n## ")[0]
    assert sorted(key for key in keys() if f"`{key}`" not in chapter) == []
