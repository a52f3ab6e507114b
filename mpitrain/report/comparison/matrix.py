"""The runs of a comparison: every configuration with every number of workers and every seed."""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mpitrain.algorithms import ALGORITHMS, maker_of, name_of
from mpitrain.config import CHOSEN, Config, flat, load, overrides_of, read_toml, to_toml, with_keys
from mpitrain.errors import BadInput, nearest, printable
from mpitrain.files import Record
from mpitrain.report.benchmarks.known import Base
from mpitrain.report.runs import StoredRun, read_run

#: An evaluation during training holds some ranks up and, on few cores, slows the others down: it is put off to the end.
EVALUATION = "run.evaluate_late=true"
FAIR = ("training.minibatch", "training.learning_rate")  # keys in which rows should differ only on purpose


@dataclass(frozen=True)
class Element:
    """One run: its name, its number of ranks and the arguments of `python -m mpitrain train`."""

    configuration: str
    workers: int
    ranks: int
    seed: int
    words: tuple[str, ...]
    config: Record  # the resolved configuration, "training.epochs" → value
    out: Path
    loaded: Config
    left: tuple[str, ...]  # of the keys in FAIR, those that nobody set: they are the algorithm's defaults

    @property
    def name(self) -> str:
        """The name of the run folder."""
        return f"{self.configuration}-w{self.workers}-s{self.seed}"

    @property
    def shown(self) -> str:
        """The name without unprintable characters, since it may come from any file name."""
        return printable(self.name)

    @property
    def training(self) -> int:
        """How many of the ranks train; the others are spares."""
        return self.ranks - self.loaded.run.spares

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self.out / "runs" / self.name

    @property
    def log(self) -> Path:
        """The file with the program's output."""
        return self.folder.with_name(f"{self.name}.log")

    def read(self) -> StoredRun | None:
        """The run, if its folder exists. Raises BadInput if it belongs to another configuration."""
        if not (self.folder / "metrics.jsonl").is_file():
            return None
        run = read_run(self.folder, self.name)
        for key in {**run.config, **self.config}:
            there, wanted = run.config.get(key), self.config.get(key)
            if there != wanted and not (key in CHOSEN and wanted == "auto"):
                raise BadInput(f"{self.folder}: is there with {key} = {there}, not {wanted}; take another --out")
        return run

    def state(self) -> str:
        """The run's state: "finished", "diverged", "unfinished" or "missing". Raises BadInput as `read` does."""
        return self._state_of(self.read())

    def finished(self) -> StoredRun | None:
        """The run, if it is finished."""
        run = self.read()
        return run if self._state_of(run) == "finished" else None

    def _state_of(self, run: StoredRun | None) -> str:
        if run is None:
            return "missing"
        if run.summary is not None and run.summary.get("exit_reason") == "diverged":
            return "diverged"
        return "finished" if run.finished and run.results.get("ranks") == self.training else "unfinished"


def matrix(
    names: list[str], workers: list[int], seeds: list[int], settings: list[str], out: Path, base: Base | None = None
) -> list[Element]:
    """All elements in the order of `names`, workers, seeds. Raises BadInput naming what cannot be run.

    A name is a TOML file or an algorithm, changing the configuration `base` of a benchmark if there is one. An
    algorithm for a single rank appears once, with one worker. Without `seeds`, the seed of each configuration is used.
    """
    found: list[Element] = []
    for name in names:
        label, path, own = _source(name) if base is None else _changing(base, name, settings)
        overrides = [EVALUATION, *own, *settings]
        config, left = load(path, overrides), _left(path, overrides)
        if f"algorithm.name={label}" in own and name_of(config.algorithm) != label:
            raise BadInput(f"--set algorithm.name: {label} would be the name of a row, but not its algorithm")
        if any(element.configuration == label for element in found):
            raise BadInput(f"{name}: a second configuration named {label}")
        for count, ranks in _sizes(config, workers):
            for seed in seeds or [config.training.seed]:
                seeded = [*overrides, f"training.seed={seed}"]
                words = [*([str(path)] if path else []), *(word for one in seeded for word in ("--set", one))]
                resolved = flat(tomllib.loads(to_toml(load(path, seeded))))
                found.append(Element(label, count, ranks, seed, tuple(words), resolved, out, config, left))
    return found


def _left(path: Path | None, overrides: list[str]) -> tuple[str, ...]:
    """The keys in FAIR that are set neither by the file, nor by an override, nor by the preset that these choose."""
    said = flat(with_keys(read_toml(path) if path else {}, overrides))
    recipe = ALGORITHMS[str(said.get("algorithm.name", "asgd"))].recipes.get(str(said.get("algorithm.preset")), {})
    return tuple(key for key in FAIR if key not in {**said, **flat(recipe)})


def by_chance(elements: list[Element]) -> Iterator[str]:
    """Lines about keys in which rows differ though nobody set them for all: keys in FAIR, and "auto" ones in CHOSEN."""
    for key in FAIR:
        left = dict.fromkeys(each.configuration for each in elements if key in each.left)
        if left and len({each.config[key] for each in elements}) > 1:
            values = {each.configuration: each.config[key] for each in elements}
            told = ", ".join(f"{name} {value}" for name, value in values.items())
            why = f"nobody set it for {printable(', '.join(left))}"
            yield f"{key} differs between rows, and {why}: {printable(told)}; --set {key}=… sets it for all"
    for key in CHOSEN if any("auto" in map(each.config.get, CHOSEN) for each in elements) else ():
        found = {f"{each.configuration} {run.config[key]}" for each in elements if (run := each.read())}
        if len({told.rpartition(" ")[2] for told in found}) > 1:
            told = printable(", ".join(sorted(found)))
            yield f"{key} differs between rows, as was best for each: {told}; --set {key}=… sets it for all"


def _source(name: str) -> tuple[str, Path | None, list[str]]:
    """The label of a configuration, its file if any, and the overrides that its name implies."""
    path = Path(name)
    if path.suffix == ".toml" or (path.exists() and not path.is_dir()):  # a folder may be called easgd, as by --out
        return path.stem, path, []
    if name in ALGORITHMS:
        return name, None, [f"algorithm.name={name}"]
    raise BadInput(f"{name}: neither a TOML file nor an algorithm{nearest(name, list(ALGORITHMS))}")


def _changing(base: Base, name: str, settings: list[str]) -> tuple[str, Path, list[str]]:
    """As `_source`, for a benchmark's configuration as the name changes it. The benchmark's optimizer is added if the
    algorithm takes any optimizer and no other one is named."""
    label, path, own = _source(name)
    own = [*base.settings, *own, *(overrides_of(read_toml(path)) if path else [])]
    algorithm = load(base.path, [*own, *settings]).algorithm
    if algorithm.any_optimizer and maker_of(algorithm).partition(" ")[2] in ("", base.optimizer) and base.optimizer:
        own = [f"algorithm.optimizer.name={base.optimizer}", f"training.learning_rate={base.rate}", *own]
    return label, base.path, own


def _sizes(config: Config, workers: list[int]) -> list[tuple[int, int]]:
    """Numbers of workers with their numbers of ranks: with several workers, a server or centre takes one more, a team
    is one worker of several ranks, and spares come on top."""
    algorithm, team, spares = config.algorithm, config.run.team, config.run.spares
    if team == "node":
        raise BadInput("run.team = 'node': compare counts ranks before they have nodes; give the ranks of a team")
    if algorithm.workers(3) == 1:
        return [(1, 1 + spares)]
    server = int(algorithm.workers(3) == 2)
    return [(count, count * team + server * (count * team > 1) + spares) for count in workers]
