"""`compare --on`: what configurations change of a benchmark's."""

from pathlib import Path

import pytest

from mpitrain.__main__ import main
from mpitrain.report.benchmarks.known import NAMES, TARGETS, base_of
from mpitrain.report.comparison.matrix import Element, matrix


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def of(name: str, on: str = "bytes", *settings: str) -> Element:
    """The configuration of a benchmark as `name` and --set change it."""
    (element,) = matrix([name], [1], [], list(settings), Path("out"), base_of(on, list(settings)))
    return element


def chosen(element: Element) -> tuple[object, object]:
    """Optimizer and learning rate."""
    return element.config.get("algorithm.optimizer.name"), element.config["training.learning_rate"]


def toml(name: str, text: str) -> str:
    Path(name).write_text(text, encoding="utf-8")
    return name


@pytest.mark.parametrize("name", ["sgd", "allreduce", "easgd", "block-momentum"])
def test_the_optimizer_of_bytes(name: str) -> None:
    assert chosen(of(name)) == ("adamw", 4e-3)


@pytest.mark.parametrize("name", ["asgd", "sparse-delta", "msgd", "admm", "downpour"])
def test_an_algorithm_without_a_choice_keeps_its_own_step(name: str) -> None:
    assert chosen(of(name)) == (None, 0.3)


def test_what_a_configuration_names_stays() -> None:
    easgd = '[algorithm]\nname = "easgd"\n'
    assert chosen(of(toml("one.toml", f'{easgd}[algorithm.optimizer]\nname = "nesterov"\n'))) == ("nesterov", 0.3)
    assert chosen(of(toml("two.toml", f"{easgd}[training]\nlearning_rate = 0.01\n"))) == ("adamw", 0.01)
    decay = of(toml("three.toml", f'{easgd}[algorithm.optimizer]\nname = "adamw"\nweight_decay = 0.5\n'))
    assert chosen(decay) == ("adamw", 4e-3) and decay.config["algorithm.optimizer.weight_decay"] == 0.5
    assert chosen(of("easgd", "bytes", "training.learning_rate=1e-4")) == ("adamw", 1e-4)
    assert chosen(of("easgd", "bytes", "algorithm.optimizer.name=sgd")) == ("sgd", 0.3)


@pytest.mark.parametrize("name", ["glyphs", "speech"])
def test_no_optimizer_of_the_others(name: str) -> None:
    assert [chosen(of(algorithm, name)) for algorithm in ("easgd", "asgd")] == [chosen(of("sgd", name))] * 2


def test_values_of_a_configuration_arrive_as_they_are() -> None:
    """Tables, lists, and letters beyond the first 65536, which JSON escapes in halves that are not TOML."""
    path = toml(
        "odd.toml", '[algorithm]\nname = "sgd"\n[model]\noptions = { name = "\U0001f600 é", n = [1, { a = 2 }] }\n'
    )
    config = of(path).config
    assert config["model.options.name"] == "\U0001f600 é" and config["model.options.n"] == [1, {"a": 2}]


def test_data_from_another_place_are_not_made(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "asgd", "--on", "bytes", "--set", "data.path=none", "--out", "out", "--list"]) == 0
    assert capsys.readouterr().out == "0\tasgd-w1-s1\t1\tmissing\n" and not list(Path().iterdir())
    assert of("asgd", "bytes", "data.path=none").config["data.path"] == "none"


def test_every_benchmark_has_a_configuration() -> None:
    assert [of("sgd", name).config["run.threads"] for name in NAMES] == [1] * 3 and all(map(float, TARGETS.values()))
