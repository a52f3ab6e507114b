"""What a file, overrides and defaults say together, as a configuration whose keys fit each other."""

import re
import tomllib
from pathlib import Path
from typing import cast

import msgspec
from msgspec.structs import replace

from mpitrain.algorithms import ALGORITHMS, defaults_of, name_of
from mpitrain.algorithms.interface import Algorithm
from mpitrain.config.names import algorithms_with, check_names, readable
from mpitrain.config.tables import CHOSEN, Config, Data, RunOptions
from mpitrain.config.toml import read_toml, to_toml, with_keys
from mpitrain.errors import BadInput
from mpitrain.files import Record
from mpitrain.models import design, presets
from mpitrain.sampling.stages import Training

MANY = 1 << 40  # samples of an epoch, by which a warm-up in updates is never too long; in epochs or a share it may be
#: Defaults of [training] if no file, data, network or algorithm is given. Without them, the loss of a newcomer's first
#: run would rise in its first epochs on a busy machine, where gradients are stale.
FIRST: Record = {"warmup": "5%", "clip_norm": 1.5}


def load(path: Path | None, overrides: list[str], resumed: bool = False) -> Config:
    """The configuration of a TOML file with `key.path=value` overrides. Raises BadInput naming the file or the key.

    A `resumed` run may continue with another algorithm or optimizer, which has its own defaults instead of the former
    options, or with another preset, which has its own values instead of the former one's. It keeps what it has chosen
    for "auto" if an override says "auto" again, as when the command that started it is repeated to continue it.
    """
    table = read_toml(path) if path else {}
    if resumed:
        if not _key(table, "name"):
            raise BadInput(f"{path}: is incomplete: it names no algorithm")
        said = with_optimizer(with_keys({}, overrides))
        if _key(said, "name") not in (None, _key(table, "name")):
            del table["algorithm"]
        elif _key(said, "preset") not in (None, _key(table, "preset")):
            table = _without_preset(table)
        algorithm, chosen = table.get("algorithm"), _key(said, "optimizer", "name")
        if isinstance(algorithm, dict) and chosen not in (None, _key(table, "optimizer", "name")):
            algorithm.pop("optimizer", None)
        again = {f"{key}=auto" for key in CHOSEN}
        overrides = [override for override in overrides if re.sub(r"[\s\"']", "", override) not in again]
    table = with_keys(table, overrides)
    if path is None and not {"data", "model", "algorithm", "stages"} & set(table):
        table = _merge({"training": FIRST}, table)
    return resolve(table)


def _key(table: Record, *keys: str) -> object:
    """The value of a key of [algorithm], or of a table in it; None if it is not given."""
    found: object = table.get("algorithm")
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found


def _without_preset(table: Record) -> Record:
    """A complete configuration without the values that follow from its algorithm and preset alone."""
    kept = {key: value for key in ("name", "preset") if (value := _key(table, key)) is not None}
    usual = tomllib.loads(to_toml(resolve({"algorithm": kept})))
    return _merge({"algorithm": {"name": kept["name"]}}, _beyond(table, usual))


def _beyond(table: Record, usual: Record) -> Record:
    """The keys of a table, at any depth, whose values differ from those in `usual`, and every key `name`."""
    return {
        key: _beyond(value, inner) if isinstance(value, dict) and isinstance(inner := usual.get(key), dict) else value
        for key, value in table.items()
        if key == "name" or value != usual.get(key)
    }


def resolve(table: Record) -> Config:
    """Check a table and fill in the algorithm's defaults. Raises BadInput naming the key."""
    table = with_optimizer(table)
    check_names(table)
    chosen = cast(Record, table.get("algorithm", {}))
    merged = _merge(defaults_of(chosen), _with_preset(table))
    try:
        config = msgspec.convert(merged, Config)
    except msgspec.ValidationError as error:
        raise BadInput(readable(error, ALGORITHMS[str(chosen.get("name", "asgd"))])) from error
    if config.model.layers is not None:
        design.check(config.model.layers)
    _check_data(config.data)
    algorithm, stages, team = config.algorithm, config.stages, config.run.team
    if any(stage.bias_factor for stage in stages) and not algorithm.rates_biases:
        raise BadInput("stages: bias_factor: this algorithm's biases have the learning rate of the weights")
    if any(stage.momentum is not None for stage in stages) and not algorithm.momentum_changes:
        raise BadInput("stages: momentum: only that of asgd's master can change, where algorithm.momentum is above 0")
    if any(stage.workers for stage in stages) and not algorithm.workers_change:
        why = f"the number is fixed with {name_of(algorithm)}; it can change with {algorithms_with('workers_change')}"
        raise BadInput(f"stages: workers: {why}")
    if team != 1 and not algorithm.in_teams:
        why = f"workers of this algorithm are single ranks; teams train {algorithms_with('in_teams')}"
        raise BadInput(f"run.team = {team}: {why}")
    for key, why in algorithm.unfit().items():
        if getattr(config.training, key) != getattr(Training(), key):
            raise BadInput(f"training.{key}: not with {name_of(algorithm)}, {why}")
    if config.run.record_order:
        config = replace(config, run=_recorded(config.run))
    if config.run.lost_ranks == "continue":
        config = replace(config, run=_continuing(config.run, algorithm))
    elif config.run.spares:
        raise BadInput("run.spares: only with run.lost_ranks = 'continue'")
    algorithm.check()
    settings = config.schedule(MANY).all  # the number of samples is not known yet
    algorithm.check_with(config.run.exchange, config.training.rate_per, settings)
    return config


def _check_data(data: Data) -> None:
    """Raise BadInput for keys of shards beside an import, and for keys of an import without one."""
    given = {field.encode_name for field in msgspec.structs.fields(Data) if getattr(data, field.name) != field.default}
    if data.import_ is None:
        for key in sorted(given & {"options", "classes"}):
            raise BadInput(f"data.{key}: belongs to data.import, which is not given")
        return
    for key in sorted(given - {"import", "options", "classes", "context"} | ({"context"} if data.context else set())):
        raise BadInput(f"data.{key}: of shards; what data.import = {data.import_!r} returns is taken as it is")


def _recorded(run: RunOptions) -> RunOptions:
    """[run] of a training whose order of events is recorded. Raises BadInput for keys with which no replay is exact."""
    if run.exchange not in ("auto", "messages"):
        raise BadInput(
            f"run.record_order: of run.exchange = {run.exchange!r} the order is in accesses to memory; only that of "
            "messages is recorded"
        )
    if run.device == "gpu":
        raise BadInput("run.record_order: run.device = 'gpu': a replay computes on the CPU, where bits differ")
    return replace(run, exchange="messages", device="cpu")


def _continuing(run: RunOptions, algorithm: Algorithm) -> RunOptions:
    """[run] of a training that goes on without lost ranks. Raises BadInput for keys with which it could not."""
    for wrong, why in (
        (run.exchange not in ("auto", "messages"), f"run.exchange = {run.exchange!r}: memory is lost with its rank"),
        (algorithm.protocol == "hybrid", f"{name_of(algorithm)} has a part of the network on each rank"),
        (algorithm.sharded, "algorithm.centre = 'sharded' has a part of the centre on each rank"),
        (run.team != 1, "not with run.team"),
        (run.record_order, "not with run.record_order"),
    ):
        if wrong:
            raise BadInput(f"run.lost_ranks = 'continue': {why}")
    return replace(run, exchange="messages")


def _merge(under: Record, over: Record) -> Record:
    merged = dict(under)
    for key, value in over.items():
        under_it = merged.get(key)
        merged[key] = _merge(under_it, value) if isinstance(value, dict) and isinstance(under_it, dict) else value
    return merged


def with_optimizer(table: Record) -> Record:
    """The table with `training.optimizer` as algorithm.optimizer.name. Raises BadInput if both are given and differ."""
    training, algorithm = table.get("training"), table.get("algorithm", {})
    if not (isinstance(training, dict) and "optimizer" in training and isinstance(algorithm, dict)):
        return table
    chosen = algorithm.get("optimizer", {})
    name = training["optimizer"]
    if isinstance(chosen, dict) and chosen.get("name", name) != name:
        raise BadInput(
            f"training.optimizer = {name!r}: algorithm.optimizer.name is {chosen['name']!r}; give one of them"
        )
    chosen = {**chosen, "name": name} if isinstance(chosen, dict) else chosen
    rest = {key: value for key, value in training.items() if key != "optimizer"}
    return {**table, "training": rest, "algorithm": {**algorithm, "optimizer": chosen}}


def _with_preset(table: Record) -> Record:
    """The table with the defaults of [model]. Raises BadInput for keys of presets beside layers or an import, and for
    keys of an import without one."""
    model = table.get("model", {})
    assert isinstance(model, dict)
    for key in ("options", "loss", "metric"):
        if key in model and "import" not in model:
            raise BadInput(f"model.{key}: belongs to model.import, which is not given")
    ways = [key for key in ("preset", "layers", "import") if key in model]
    if len(ways) > 1:
        raise BadInput(f"model.{ways[0]}: model.{ways[1]} says something else; give one of them")
    if ways in ([], ["preset"]):
        return {**table, "model": {"preset": presets.DEFAULT, "width": 1.0, **model}}
    for key in ("width", "hidden_layers", "dropout"):
        if key in model:
            where = "[model.options]" if ways == ["import"] else "itself"
            raise BadInput(f"model.{key}: changes a preset; model.{ways[0]} says it {where}")
    if ways == ["import"]:
        return {**table, "model": {**model, "backend": "torch"}}
    return table
