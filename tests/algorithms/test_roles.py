"""What holds for the arithmetic of every algorithm's roles: any slices give the same bits, checkpoints are enough."""

from typing import Any, cast

import numpy as np
import pytest

from mpitrain import config as configuration
from mpitrain.algorithms import ALGORITHMS, Algorithm, WorkerRule
from mpitrain.algorithms.optimizers import plain
from mpitrain.algorithms.roles import Merge
from mpitrain.flat import Array, blocks

SIZE, WORKERS = 1009, 3
WITH_WORKER = ["easgd", "eamsgd", "easgd-sync", "eamsgd-sync", "downpour", "admm"]
WITH_MASTER = ["asgd", "mdownpour", "adownpour", "mvadownpour"]


def algorithm(name: str, *settings: str) -> Algorithm:
    return configuration.load(None, [f"algorithm.name={name}", *settings]).algorithm


def start() -> tuple[Array, Array]:
    rng = np.random.default_rng(1)
    return rng.standard_normal(SIZE), rng.standard_normal(SIZE)


def worker_of(name: str) -> WorkerRule:
    x, centre = start()
    settings = ["algorithm.delta=0.5"] if name == "admm" else []
    return algorithm(name, *settings).worker(x, centre, WORKERS, plain)


def turn(rule: WorkerRule, centre: Array, t: int, block: int = SIZE) -> None:
    """An exchange and three steps, in blocks of this size; the centre gains what the worker gives it."""
    rule.begin(0.05, WORKERS)
    for b in blocks(SIZE, block):
        centre[b] += rule.exchange(b, centre[b].copy(), t)
    for step in range(3):
        g = rule.at + np.random.default_rng(t + step).standard_normal(SIZE)
        for b in blocks(SIZE, block):
            rule.step(b, g[b], 0.05, t + step, first=step == 0)


@pytest.mark.parametrize("name", WITH_WORKER)
def test_blocks_give_the_bits_of_the_whole(name: str) -> None:
    found = []
    for block in (SIZE, 100):
        rule, centre = worker_of(name), start()[1]
        for t in (0, 3, 6):
            turn(rule, centre, t, block)
        found.append([centre.tobytes(), *(vector.tobytes() for vector in rule.vectors.values())])
    assert found[0] == found[1]


@pytest.mark.parametrize("name", WITH_WORKER)
def test_what_a_checkpoint_keeps_is_enough_to_go_on(name: str) -> None:
    one, centre = worker_of(name), start()[1]
    turn(one, centre, 0)
    other = worker_of(name)
    for vector, kept in other.vectors.items():
        kept[:] = one.vectors[vector]
    other.local.look()
    centres = centre.copy(), centre.copy()
    for rule, each in zip((one, other), centres, strict=True):
        turn(rule, each, 3)
    assert centres[0].tobytes() == centres[1].tobytes() and one.at.tobytes() == other.at.tobytes()


@pytest.mark.parametrize("name", WITH_WORKER)
def test_a_restart_is_a_start_at_the_centre(name: str) -> None:
    used, centre = worker_of(name), start()[1]
    turn(used, centre, 0)
    at = centre.copy()
    for b in blocks(SIZE, 100):
        used.restart(b, at[b])
    new = algorithm(name, *(["algorithm.delta=0.5"] if name == "admm" else [])).worker(at, at, WORKERS, plain)
    for vector, kept in new.vectors.items():
        assert used.vectors[vector].tobytes() == kept.tobytes(), vector
    assert used.at.tobytes() == new.at.tobytes()


@pytest.mark.parametrize("name", WITH_MASTER)
def test_a_master_merges_blocks_to_the_bits_of_the_whole(name: str) -> None:
    settings = ["algorithm.momentum=0.9", "algorithm.gradient_decay=0.9"] if name == "asgd" else []
    found = []
    for block in (SIZE, 100):
        options = algorithm(name, *settings)
        theta, delta = start()
        vectors = {"theta": theta, **options.beside(theta)}
        rule, scratch = options.master(plain), np.empty(SIZE)
        for t in range(3):
            for b in blocks(SIZE, block):
                parts = {key: vector[b] for key, vector in vectors.items()}
                rule.merge(parts, delta[b], scratch[: b.stop - b.start], Merge(0.1, min(t, 1), t))
        found.append([vector.tobytes() for vector in vectors.values()])
        assert np.isfinite(options.model(vectors)).all()
    assert found[0] == found[1]


def test_a_mean_of_the_centre_that_begins_at_a_resume_is_that_of_what_follows() -> None:
    theta = np.array([1.0])
    vectors = {"theta": theta, "average": theta.copy()}
    master, scratch = algorithm("adownpour").master(plain), np.empty(1)
    for t in (100, 101, 102):  # Θ is 1, 3 and 5 where they are merged
        master.merge(vectors, np.array([-2.0]), scratch, Merge(1.0, 0, t, began=100))
    assert vectors["theta"] == 7 and vectors["average"] == pytest.approx(3)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_model_is_made_of_vectors_that_a_checkpoint_has(name: str) -> None:
    options = algorithm(name)
    theta = start()[0]
    vectors = {"theta": theta, **options.beside(theta)}
    assert set(options.model_from) <= set(vectors)
    wanted = {key: vectors[key] for key in options.model_from}
    assert options.model(wanted).tobytes() == options.model(cast(Any, vectors)).tobytes()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_there_is_a_worker_for_every_number_of_ranks(name: str) -> None:
    options = algorithm(name)
    for ranks in (1, 2, 5):
        assert 1 <= options.workers(ranks) <= ranks
        assert not options.has_master or options.workers(ranks) == max(ranks - 1, 1)
