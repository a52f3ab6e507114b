"""Memory that a training needs: counted for the ranks of a simulation, and without a simulation for one process."""

import pytest

from mpitrain import config as configuration
from mpitrain.api import requirements
from mpitrain.data.corpus import Corpus
from mpitrain.data.digits import embedded
from mpitrain.errors import BadInput
from mpitrain.models.network import build

DIGITS_CNN = 38_282  # parameters


@pytest.mark.parametrize(
    ("settings", "simulated", "megabytes"),
    [
        ([], 0, 0.31),  # 2 vectors of 4 bytes
        (["algorithm.name=allreduce", "algorithm.batch=global"], 0, 0.31),
        (
            ["algorithm.name=allreduce", "algorithm.batch=global"],
            3,
            1.54,
        ),  # 3 · 4 · (3 vectors + 3 samples of 1,738) + samples
    ],
)
def test_what_fits(monkeypatch: pytest.MonkeyPatch, settings: list[str], simulated: int, megabytes: float) -> None:
    config = configuration.load(None, ["training.minibatch=8", *settings])
    network = build("digits-cnn", (8, 8, 1), 10)
    assert network.layout.size == DIGITS_CNN
    corpus = Corpus(embedded(), "train")
    monkeypatch.setattr(requirements, "usable_memory", lambda: int(megabytes * 1e6))
    requirements.require_memory(config, network, corpus, simulated)
    monkeypatch.setattr(requirements, "usable_memory", lambda: int(0.95 * megabytes * 1e6))
    with pytest.raises(BadInput, match="a process may have"):
        requirements.require_memory(config, network, corpus, simulated)
