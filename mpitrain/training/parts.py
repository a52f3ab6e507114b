"""Which data a configuration names: the parts of a shard folder, or of data sets of the user's own."""

import copy
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np

from mpitrain.config import Config
from mpitrain.data import origin as origins
from mpitrain.data.augmentation import Augmentation
from mpitrain.data.corpus import Corpus
from mpitrain.data.digits import data_path
from mpitrain.data.origin import Origin
from mpitrain.data.own import DATASET, OwnPart, classes_of
from mpitrain.data.reader import digest_of
from mpitrain.data.shards import folder_parts, part_order, require_part
from mpitrain.errors import BadInput, blaming
from mpitrain.sampling.batch import SampleForm
from mpitrain.training.run_code import DATA, DataRecord, sums, texts
from mpitrain.training.user_code import Code

#: A part that has been opened.
Part = Corpus | OwnPart


class Shards:
    """A folder of shards, by default the configuration's, read as the configuration says; `changes` replace arguments
    of `Corpus`. `documents` are what a run folder keeps of a source, texts by file name.

    As with `OwnData`, all methods raise BadInput naming folder, shard, key or sample.
    """

    documents: Mapping[str, str] = MappingProxyType({})  # none: the configuration says everything

    def __init__(self, config: Config, path: Path | None = None) -> None:
        self._config, self.path = config, path or data_path(config)

    def __str__(self) -> str:
        return str(self.path)

    def parts(self) -> list[str]:
        """The names of its parts."""
        return list(folder_parts(self.path))

    def origin(self, part: str = "train") -> Origin:
        """What is known of a part."""
        return origins.of_part(self.path, part)

    def training(self, **changes: Any) -> Corpus:
        """The part to train on. Call its `hold` before samples are gathered from it."""
        return Corpus(self.path, "train", **reading(self._config) | {"hold": False} | changes)

    def opened(self, part: str, known: Origin, **changes: Any) -> Corpus:
        """A part, read as a network was trained on the training part `known`: with its window, a centre crop, and the
        training part's mean and standard deviation."""
        known.require(self.origin(part), str(self), part)
        centre = {"augmentation": Augmentation(self._config.data.crop), "statistics": known.statistics}
        return Corpus(self.path, part, **reading(self._config) | centre | changes)


class OwnData:
    """What the function of `data.import` returns: data sets by the names of parts."""

    def __init__(self, config: Config, code: Mapping[str, Code]) -> None:
        data, own = config.data, {key: each for key, each in code.items() if key == "data.import"}
        self._config, self._name = config, f"data.import = {data.import_!r}"
        options = data.options or {}
        build = own["data.import"].function()
        with blaming(self._name, "cannot be called"):
            given = build(**copy.deepcopy(options))
        if not isinstance(given, Mapping) or "train" not in given:
            told = f"a table of {', '.join(map(str, given))}" if isinstance(given, Mapping) else type(given).__name__
            raise BadInput(f"{self._name}: returned {told}, not a table of data sets with one called 'train'")
        for part in given:
            require_part(part, f"{self._name}: {part}")
        #: The parts that have been opened, and the data sets of the others.
        self._parts: dict[str, Any] = {part: given[part] for part in sorted(given, key=part_order)}
        self._classes = data.classes or classes_of(self._parts["train"], self._name)
        record = DataRecord(data.import_ or "", options, sums(own))
        self.documents = {DATA: json.dumps(msgspec.to_builtins(record), indent=1) + "\n", **texts(own)}

    def __str__(self) -> str:
        return self._name

    def parts(self) -> list[str]:
        """See Shards."""
        return list(self._parts)

    def origin(self, part: str = "train") -> Origin:
        """See Shards."""
        opened = self._part(part)
        form = opened.form
        kinds = ["float" if kind is None else "int32" for kind in (form.dtype, form.target_dtype)]
        shape, targets = list(form.shape), list(form.targets)
        return Origin(DATASET, shape, opened.classes, [], samples=opened.samples, targets=targets, dtypes=kinds)

    def training(self, **changes: Any) -> OwnPart:
        """See Shards."""
        return self._part("train")

    def opened(self, part: str, known: Origin, **changes: Any) -> OwnPart:
        """See Shards."""
        known.require(self.origin(part), self._name, part)
        return self._part(part)

    def _part(self, part: str) -> OwnPart:
        if part not in self._parts:
            raise BadInput(f"{self._name}: has no part {part}, only {', '.join(self._parts)}")
        found = self._parts[part]
        if not isinstance(found, OwnPart):
            found = self._parts[part] = OwnPart(self._name, part, found, self._classes, self._config.training.dtype)
        return found


#: Where samples come from.
DataSource = Shards | OwnData


def source_of(config: Config, code: Mapping[str, Code]) -> DataSource:
    """The source of a configuration's samples. Executes code of `data.import`. Raises BadInput naming key or folder."""
    return OwnData(config, code) if config.data.import_ else Shards(config)


def held_out(parts: Iterable[str]) -> list[str]:
    """The parts that are not trained on, in the order in which they are evaluated: tests first."""
    return sorted((part for part in parts if part != "train"), key=lambda part: (part[:4] != "test", part))


def path_of_run(config: Config, told: Origin | None) -> Path:
    """The shard folder of a run: a relative data.path is one from where the run, by its origin, began, or from here.

    Raises BadInput naming both places when it is in neither.
    """
    path = data_path(config)
    if path.is_absolute() or told is None or told.folder is None or told.folder == str(path.absolute()):
        return path
    began = Path(told.folder)
    if os.path.isdir(began):  # unlike Path.is_dir, also below a folder that may not be searched
        return began
    if not os.path.isdir(path):
        raise BadInput(f"data.path = {path}: neither {began}, where the run began, nor {path.absolute()} is a folder")
    return path


def at_home(config: Config, run: Path) -> Config:
    """The configuration of a run that is resumed here: `data.path` leads where it led when the run began."""
    if config.data.import_:
        return config
    path = path_of_run(config, None if data_path(config).is_absolute() else origins.read(run))
    if path == data_path(config):
        return config
    return msgspec.structs.replace(config, data=msgspec.structs.replace(config.data, path=str(path)))


def reading(config: Config) -> dict[str, Any]:
    """How `Corpus` reads the training part."""
    data, training = config.data, config.training
    return {
        "context": data.context,
        "dtype": training.dtype,
        "memory_limit": int((data.memory_limit_gb or data.node_memory_gb) * 1e9),
        "augmentation": Augmentation(data.crop, data.flip, data.colour_shift, training.seed),
        "normalise": data.normalise,
        "window": data.window,
    }


def trained_on(config: Config, source: DataSource, earlier: Origin | None) -> Origin:
    """The training part, and how the run reads it; `earlier`: what a resumed run has been trained on so far.

    Raises BadInput naming the folder that does not fit that, or the key of [data] that reads it in another way.
    """
    context, found = config.data.context, source.origin()
    how: dict[str, Any] = {} if found.kind == DATASET else {"data.normalise": config.data.normalise}
    if found.kind == "frames":
        how["data.context"] = [context[0], context[-1]] if context else [0, 0]
    if found.kind == "tokens":
        how["data.window"] = config.data.window
    digest = digest_of(source.path) if isinstance(source, Shards) else ""
    found = msgspec.structs.replace(found, preparation={**found.preparation, **how}, digest=digest)
    if earlier is None:
        return found
    earlier.require(found, str(source), "train")
    return earlier.continued(found)


def form_of(config: Config, known: Origin) -> SampleForm:
    """What a sample is as the network sees it: [window, dims], [h, w, c] after the crop, [window], or as it is. Raises
    BadInput naming the key of [data] that does not fit."""
    shape = tuple(known.shape)
    if known.kind == DATASET:
        of_inputs, of_targets = (None if kind == "float" else np.int32 for kind in known.dtypes)
        return SampleForm(shape, tuple(known.targets), of_inputs, target_dtype=of_targets)
    if known.kind == "tokens":
        if not config.data.window:
            raise BadInput("data.window: the data are tokens; say how many of them a sample has")
        window = (config.data.window,)
        return SampleForm(window, window, np.int32)
    if known.kind == "frames":
        context = config.data.context
        return SampleForm((sum((context[0], context[-1])) + 1 if context else 1, *shape))
    return SampleForm(Augmentation(config.data.crop).shape(shape), pixels=True)


def epoch_of(config: Config, known: Origin) -> int:
    """The samples of an epoch of the training part."""
    if known.kind == "tokens":
        return (known.tokens - 1) // config.data.window
    return known.samples or sum(known.class_counts)
