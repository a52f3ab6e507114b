"""What is tried: the configuration itself, each algorithm's defaults, and points of the space that it declares.

The learning rates and minibatches of other algorithms are their defaults, scaled as those of the configuration are.
"""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import count
from math import prod

import msgspec
import numpy as np

from mpitrain.algorithms import ALGORITHMS, name_of
from mpitrain.algorithms.space import COMMON, MINIBATCH, RATE, MomentumChoice, Space
from mpitrain.config import Config, flat, overrides_of, resolve, with_keys
from mpitrain.errors import BadInput
from mpitrain.files import Record
from mpitrain.sampling.rng import stream

TRIES = 50  # points of every algorithm: if as many in a row do not load, no more are drawn
NEAR = 0.12  # of an axis: the standard deviation of neighbours from a good point


@dataclass(frozen=True)
class Candidate:
    """A configuration to try: `table` is its TOML, `settings` what differs from the algorithm's defaults, `point` where
    it lies in the algorithm's space. The configuration itself has the number 0."""

    number: int
    algorithm: str
    table: Record
    settings: Record = field(default_factory=dict)
    point: tuple[float, ...] = ()

    @property
    def shown(self) -> str:
        """The algorithm and its settings, such as "easgd tau=4 learning_rate=0.1"."""
        said = [f"{key.partition('.')[2]}={value}" for key, value in self.settings.items()]
        return " ".join([self.algorithm, *said]) if self.number else f"{self.algorithm}, as configured"

    @property
    def config(self) -> Config:
        """The resolved configuration."""
        return resolve(self.table)

    @property
    def dependence(self) -> tuple[int, int, int]:
        """What to sort by, less is better: whether a rank serves, how many of its own options differ, its number."""
        return int(self.config.algorithm.has_master), len(self.settings.keys() - COMMON.keys()), self.number


class Candidates:
    """The candidates for the configuration `table`, whose keys `fixed` are not varied; `seed` seeds the draws. Raises
    BadInput if the configuration does not load."""

    def __init__(self, table: Record, fixed: set[str], seed: int) -> None:
        self._own, self._fixed, self._seed = resolve(table), fixed, seed
        self.first = Candidate(0, name_of(self._own.algorithm), table)
        chosen = self._own.algorithm.chosen
        self._optimizer = {"optimizer": msgspec.to_builtins(chosen)} if chosen else {}
        every = [name for name, kind in ALGORITHMS.items() if kind.space]
        self.names = [self.first.algorithm] if "algorithm.name" in fixed else every
        plain, given = self._plain(self.first.algorithm), self._own.training
        self._factor = given.learning_rate / _slowed(self._own) * _slowed(plain) / plain.training.learning_rate
        self._larger = given.minibatch / plain.training.minibatch

    def axes(self, name: str) -> Space:
        """The axes along which an algorithm is varied; not its momentum if it takes the configured optimizer."""
        kind = ALGORITHMS[name]
        left = (MomentumChoice,) if self._optimizer and kind.any_optimizer else ()
        space = {key if "." in key else f"algorithm.{key}": axis for key, axis in (kind.space or COMMON).items()}
        return {key: axis for key, axis in space.items() if key not in self._fixed and not isinstance(axis, left)}

    def drawn(self) -> Iterator[Candidate]:
        """Each algorithm's defaults, then points of the algorithms in turns, until too many in a row do not load."""
        vain = 0
        for turn in count():
            for name in self.names:
                found = self.candidate(name, self.point(name, turn) if turn else ())
                vain = 0 if found else vain + 1
                if found:
                    yield found
            if vain > TRIES * len(self.names):
                return

    def near(self, good: list[Candidate]) -> Iterator[Candidate]:
        """Neighbours of the candidates `good` in turns, except of the configuration itself."""
        good = [each for each in good if each.number]
        for turn in count() if good else ():
            base = good[turn % len(good)]
            point = base.point or (0.5,) * len(self.axes(base.algorithm))
            moved = stream(self._seed, "neighbours", base.number, turn).normal(point, NEAR)
            found = self.candidate(base.algorithm, tuple(np.clip(moved, 0.0, 0.999).tolist()))
            if found:
                yield found

    def candidate(self, name: str, point: tuple[float, ...]) -> Candidate | None:
        """An algorithm at `point` of its space, () for its defaults; None if that does not load, or is the first."""
        axes, plain = self.axes(name), self._plain(name)
        values = {key: axis.at(u) for (key, axis), u in zip(axes.items(), point, strict=False)}
        table = deepcopy(self.first.table)
        if name != self.first.algorithm:
            table["algorithm"] = {"name": name, **self._chosen(name)}
        factor, larger = (values.pop(key, 1.0) for key in COMMON)
        try:
            with_keys(table, overrides_of(values))
            rate = self._factor * plain.training.learning_rate / _slowed(plain) * _slowed(resolve(table))
            size = max(1, round(self._larger * plain.training.minibatch * larger))
            scaled = {RATE: float(f"{rate * factor:.3g}"), MINIBATCH: size}
            with_keys(table, overrides_of({key: value for key, value in scaled.items() if key in axes}))
            config = resolve(table)
        except BadInput:
            return None
        before, now = (flat(msgspec.to_builtins(each)) for each in (plain, config))
        changed = {key: now[key] for key in axes if key in scaled or now[key] != before[key]}
        return None if config == self._own else Candidate(0, name, table, changed, point)

    def _chosen(self, name: str) -> Record:
        return self._optimizer if ALGORITHMS[name].any_optimizer else {}

    def _plain(self, name: str) -> Config:
        """An algorithm's defaults, with the configured optimizer where it takes one."""
        return resolve({"algorithm": {"name": name, **self._chosen(name)}})

    def point(self, name: str, number: int) -> tuple[float, ...]:
        """Point `number` of an additive recurrence that fills the space evenly (Roberts' R sequence)."""
        axes, golden = len(self.axes(name)), 2.0
        for _ in range(50):
            golden = (1 + golden) ** (1 / (axes + 1))
        begun = stream(self._seed, "candidates", *name.encode()).random(axes)
        return tuple(((begun + number / golden ** np.arange(1, axes + 1)) % 1.0).tolist())


def _slowed(config: Config) -> float:
    """Π(1 − μ) over the momenta μ: learning rates in the ratio of these products have about the same effect."""
    if config.algorithm.chosen:
        return 1.0
    momenta = [key for key, axis in config.algorithm.space.items() if isinstance(axis, MomentumChoice)]
    return prod(1.0 - getattr(config.algorithm, key) for key in momenta)
