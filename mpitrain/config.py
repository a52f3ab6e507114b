"""The typed configuration: a TOML file, overrides on the command line, defaults of the algorithm.

Every key is checked: unknown keys, for which the error names the nearest known one, and values of the wrong type or
range are errors. `to_toml` writes the resolved configuration, which resolves to itself.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Literal, cast

import msgspec
import numpy as np
import tomli_w
from msgspec import inspect
from msgspec.structs import replace

from mpitrain.algorithms import ALGORITHMS, AnyAlgorithm, defaults_of, name_of
from mpitrain.algorithms.interface import Algorithm
from mpitrain.algorithms.optimizers import OPTIMIZERS
from mpitrain.errors import ALIASES, BadInput, naming, nearest
from mpitrain.files import Record
from mpitrain.keys import (
    Amount,
    AmountOrNone,
    Count,
    Few,
    Fraction,
    Handful,
    Large,
    NotNegative,
    Number,
    Positive,
    Section,
    Text,
    values_of,
)
from mpitrain.models import design, presets
from mpitrain.models.layers import AnyLayer
from mpitrain.sampling.stages import Schedule
from mpitrain.sampling.stages import Stage as Stage
from mpitrain.sampling.stages import Training as Training
from mpitrain.start import DEADLINE

#: Keys whose "auto" is replaced by a definite value when a run starts.
CHOSEN = ("model.backend", "run.matmul")
MANY = 1 << 40  # samples of an epoch, by which a warm-up in updates is never too long; in epochs or a share it may be
#: Defaults of [training] if no file, data, network or algorithm is given. Without them, the loss of a newcomer's first
#: run would rise in its first epochs on a busy machine, where gradients are stale.
FIRST: Record = {"warmup": "5%", "clip_norm": 1.5}
#: How messages of msgspec begin, and clearer messages in their place.
PLAIN = {
    "Expected `array`": "expected one or two numbers in brackets, such as [5,5]",
    "Expected `str` matching regex": "holds a NUL character",
}


class Data(Section, frozen=True):
    """Where the shards are and how they are read."""

    path: Text = ""
    """A folder of shards; empty: the embedded digits. A relative path is resolved from the folder where the run
    began, so that `--resume`, `evaluate` and the other commands work from anywhere."""
    import_: Text | None = msgspec.field(default=None, name="import")
    """Instead of shards, `FILE.py:function` or `package.module:function` that returns a table of data sets, "train",
    "dev", "test" or "test-NAME": pairs of arrays, or any objects with `__len__` and `__getitem__`
    ([guide](data.md))."""
    options: dict[str, object] | None = None  # the keyword arguments of the function of `import`
    classes: Count | None = None
    """With `import`, the number of classes, where the targets are classes and the data sets do not tell."""
    context: Annotated[list[Few], msgspec.Meta(max_length=2)] = msgspec.field(default_factory=list)
    """frames left and right of the one to classify; one number counts for both sides"""
    window: Number = 0
    """Tokens of a sample, each of which is the target of those before it; a sample begins where the last one ended."""
    node_memory_gb: Amount = 4.0
    """Parts whose inputs take more than this are read from disk during training. Of the training part as many shards
    as fit are kept in memory nevertheless. The ranks of a node share what is in memory of the training part."""
    memory_limit_gb: Amount | None = None
    """The same limit for each rank, in place of `node_memory_gb`; each rank then keeps its own copy of a smaller part,
    and nothing of a larger one."""
    normalise: Literal["corpus", "speaker", "utterance", "mean", "unit", "none"] = "corpus"
    """Whose mean and standard deviation; for images also `"mean"`, the corpus's mean alone; `"unit"`: pixels ÷ 255."""
    crop: Number = 0  # side of the square crop in pixels: random in training, central in evaluation
    flip: bool = False  # reflect each training image with probability ½
    colour_shift: NotNegative = 0.0  # standard deviation of Krizhevsky's α; 0: none


class ModelOptions(Section, frozen=True):
    """The network: a preset, scaled, or a list of layers. What is not given is as the preset has it."""

    preset: Text | None = None  # one of the networks below; by default `digits-cnn`
    width: Annotated[float, msgspec.Meta(gt=0, le=1e4)] | None = None
    """Multiplies the number of units and filters of every hidden layer of a preset; by default 1."""
    hidden_layers: Handful | None = None  # number of hidden layers of the `-dnn` presets
    seed: Large | None = None
    """Determines the initial weights; by default `training.seed` does. Runs with one `model.seed` and different
    `training.seed` start from the same point (Figure 2 of the EASGD paper)."""
    output: Literal["softmax", "logistic"] | None = None  # the function of the outputs, and with it the loss
    l2: NotNegative | None = None  # λ of the penalty λ/2·‖x‖²; by default the preset's
    l2_biases: bool | None = None
    """Whether the penalty acts on all parameters, as in the EASGD paper and by default in its networks `easgd-cifar`
    and `easgd-imagenet`, or on weights without biases, the default elsewhere."""
    dropout: Fraction | None = None  # the fraction of units dropped; by default the preset's
    layers: Annotated[list[AnyLayer], msgspec.Meta(max_length=1000)] | None = None
    """Instead of a preset, a list of layers: tables `[[model.layers]]`, whose keys are below."""
    import_: Text | None = msgspec.field(default=None, name="import")
    """Instead of a preset, a PyTorch module: `FILE.py:function` or `package.module:function` that builds it."""
    options: dict[str, object] | None = None  # the keyword arguments of the function of `import`
    backend: Literal["numpy", "torch", "auto"] = "numpy"
    """What computes the network; with `import`, always `"torch"`. `"auto"`: the faster one, by a few steps that are
    timed before the training ([guide](pytorch.md#which-one))."""
    loss: Text | None = None
    """With `import`, a function of outputs and targets instead of the loss of `output`, named in the same way."""
    metric: Text | None = None
    """With `import`, a function of outputs and targets instead of the share of wrong classes: the mean over a
    minibatch's samples of a figure of merit, of which less is better, reported under the function's name."""


class Pretraining(Section, frozen=True):
    """Pre-training of the initial weights on rank 0."""

    method: Literal["none", "layerwise", "contrastive-divergence"] = "none"
    """`"layerwise"`: supervised, a layer at a time (Strom 2015). `"contrastive-divergence"`: restricted Boltzmann
    machines, for the sigmoid networks (Zhang 2013)."""
    epochs: Amount = 1.0  # for each layer
    minibatch: Count = 64  # samples of a step
    learning_rate: Positive = 0.05
    """Multiplies mean gradients. A machine of contrastive divergence starts from weights of 0.01: it wants
    `learning_rate` × updates of 100 and more a layer (digits, five layers, then 12 epochs: 88% error after 11, 9%
    after 45, 5% after 135)."""
    samples: Large = 0  # how many samples of the training split; 0: all of it


class RunOptions(Section, frozen=True):
    """Where and how the program runs."""

    out: Text = "runs"  # folder that contains the run folders
    device: Literal["auto", "cpu", "gpu"] = "auto"  # auto: a GPU if there is one
    matmul: Literal["float32", "tf32", "bf16", "auto"] = "float32"
    """Precision of products on a GPU, and of PyTorch's; weights and sums are float32. `"auto"`: `"bf16"` where PyTorch
    is faster with it, by a few steps that are timed before the training, and otherwise `"float32"`."""
    cuda_aware: Literal["auto", "yes", "no"] = "auto"  # whether MPI accepts GPU memory; auto: ask MPI
    team: Annotated[int, msgspec.Meta(ge=1, le=1000)] | Literal["node"] = 1
    """With `sparse-delta` and the elastic family: how many neighbouring ranks form a team that acts as one worker, or
    `"node"` for one team per node; a centre's rank is in none. The ranks of a team share each minibatch, so that
    `training.minibatch` counts the whole team's samples, and only the leader exchanges anything with other teams."""
    threads: Few = 0  # threads per rank; 0: what Slurm or OMP_NUM_THREADS says, else its share of the cores
    evaluate_every: AmountOrNone = 1.0  # epochs between evaluations; 0: only at the end
    evaluate_late: bool = False
    """Keep copies of the parameters on the disk instead, and evaluate these after the training, so that evaluations
    take no time from it, whatever the algorithm: for comparisons ([guide](compare.md))."""
    train_subset: Number = 0  # number of training samples that are also evaluated
    checkpoint_every: AmountOrNone | Literal["auto"] = "auto"
    """Minutes between checkpoints; 0: not by the clock; `"auto"`: the first one at the first evaluation, then as often
    as they take at most 2% of the time ([guide](checkpoints.md))."""
    checkpoint_samples: Large = 0  # samples between checkpoints; 0: not by samples
    checkpoints_kept: Count = 3  # how many of the newest to keep; one is always written at the end and on a signal
    checkpoint_best: bool = True  # also keep the model with the smallest error on dev, or on test without dev
    fallback: Text = ""
    """An existing folder where the last checkpoint goes if the run folder has no room for it, or is gone; empty: the
    system's folder for temporary files."""
    deadline: Amount = DEADLINE
    """Seconds to wait for a rank that sends no heartbeat; it is then named, and the job ends."""
    least_ranks: Count = 1
    """With fewer ranks, because nodes no longer answer or ranks were lost, a training ends with status 75 and does not
    go on ([guide](faults.md))."""
    lost_ranks: Literal["end", "continue"] = "end"
    """`"continue"`: where a rank dies, or is silent for `deadline`, the others go on without it, in place of ending the
    job ([guide](faults.md#going-on-without-a-rank)). Needs Open MPI 5 and `mpirun --with-ft ulfm`; vectors travel by
    messages."""
    spares: Few = 0
    """How many of the ranks wait until others are lost, and then take their places ([guide](faults.md#spare-ranks))."""
    exchange: Literal["auto", "shared", "one-sided", "messages"] = "auto"  # how vectors travel; auto: as measured
    nonfinite_limit: Count = 10  # how many gradients of one worker in a row may not be finite; then a server's run ends
    gradient_statistics: bool = False
    """Record figures of the gradients: the norm and the fraction of exact zeros of each that a rank computes (with
    `allreduce` and teams, of its share of a minibatch), and the cosine between the sums that workers send (Chan & Lane
    §3.4); costs a pass over each gradient."""
    progress: Literal["auto", "plain", "none"] = "auto"  # auto: a live line on a terminal; none: nothing but errors
    tensorboard: bool = False  # also write event files for TensorBoard
    callback: Text = ""
    """`FILE.py:function` or `package.module:function` that rank 0 calls with each record, as a dict
    ([guide](report.md#records-to-a-logger-of-your-own))."""
    trace: bool = False
    """Also write `trace.json`, what every rank did when, for ui.perfetto.dev and the report
    ([guide](simulate.md#a-trace-of-every-rank))."""
    record_order: bool = False
    """Also write `order/`, the order of every rank's events, which `mpitrain simulate --replay` repeats to the bit
    ([guide](simulate.md#a-recorded-run-to-the-bit)); vectors then travel by messages."""


class Config(Section, frozen=True, kw_only=True):
    """The whole configuration."""

    data: Data = Data()
    model: ModelOptions = ModelOptions()
    training: Training = Training()
    pretraining: Pretraining = Pretraining()
    algorithm: AnyAlgorithm
    run: RunOptions = RunOptions()
    stages: list[Stage] = msgspec.field(default_factory=list)

    @property
    def by_torch(self) -> bool:
        """Whether PyTorch computes the network."""
        return self.model.backend == "torch"

    @property
    def by_error(self) -> bool:
        """Whether the figure of merit is sure to be the share of wrong classes."""
        return not (self.data.window or self.data.import_ or self.model.metric)

    @property
    def initial_seed(self) -> int:
        """The seed of the initial parameters."""
        return self.training.seed if self.model.seed is None else self.model.seed

    def new_folder(self) -> Path:
        """The run folder, named after the time and the algorithm, of a run for which the user names none."""
        return Path(self.run.out) / f"{datetime.now():%Y%m%d-%H%M%S}-{name_of(self.algorithm)}"

    def schedule(self, samples: int, ranks: int = 1) -> Schedule:
        """The learning rate, the minibatch and the number of workers over a training on this many samples by this many
        ranks. Raises BadInput naming a stage or the warm-up."""
        step = partial(self.algorithm.samples_of_step, ranks=ranks)
        return Schedule(self.training, self.stages, samples, step)


def load(path: Path | None, overrides: list[str], resumed: bool = False) -> Config:
    """The configuration of a TOML file with `key.path=value` overrides. Raises BadInput naming the file or the key.

    A `resumed` run may continue with another algorithm, which has its own defaults instead of the former options, or
    with another preset, which has its own values instead of the former one's. It keeps what it has chosen for "auto"
    if an override says "auto" again, as when the command that started it is repeated to continue it.
    """
    table = read_toml(path) if path else {}
    if resumed:
        if not _key(table, "name"):
            raise BadInput(f"{path}: is incomplete: it names no algorithm")
        said = with_keys({}, overrides)
        if _key(said, "name") not in (None, _key(table, "name")):
            del table["algorithm"]
        elif _key(said, "preset") not in (None, _key(table, "preset")):
            table = _without_preset(table)
        again = {f"{key}=auto" for key in CHOSEN}
        overrides = [override for override in overrides if re.sub(r"[\s\"']", "", override) not in again]
    table = with_keys(table, overrides)
    if path is None and not {"data", "model", "algorithm", "stages"} & set(table):
        table = _merge({"training": FIRST}, table)
    return resolve(table)


def _key(table: Record, key: str) -> object:
    """The value of a key of [algorithm]; None if it is not given."""
    algorithm = table.get("algorithm")
    return algorithm.get(key) if isinstance(algorithm, dict) else None


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


def read_toml(path: Path) -> Record:
    """The content of a TOML file. Raises BadInput naming the file."""
    with naming(path), naming(f"{path}: not TOML", ValueError):
        if path.is_dir():
            raise BadInput(f"{path}: a folder, not a configuration file; --resume {path} continues a run")
        return parse_toml(path, path.read_text(encoding="utf-8"))


def parse_toml(path: Path, text: str) -> Record:
    """The content of a TOML file that has been read. Raises BadInput naming the file."""
    # ValueError is raised for faults of TOML and, by Python, for integers with more than 4300 digits
    with naming(f"{path}: not TOML", ValueError):
        try:
            return tomllib.loads(text)
        except RecursionError:
            raise BadInput(f"{path}: brackets are nested too deeply") from None


def with_keys(table: Record, overrides: Iterable[str]) -> Record:
    """Apply `set_key` to the table with each override; return the table."""
    for override in overrides:
        set_key(table, override)
    return table


def set_key(table: Record, override: str) -> None:
    """Set `a.b=value` in the table; a value that is not TOML is used as a string. Raises BadInput naming it."""
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise BadInput(f"--set {override}: expected key=value")
    if any("\ud800" <= letter <= "\udfff" for letter in override):  # how Python represents bytes that are not UTF-8
        raise BadInput(f"--set {override}: not UTF-8")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except ValueError:
        value = text
    except RecursionError:
        raise BadInput(f"--set {key.strip()}: brackets are nested too deeply") from None
    *parents, last = key.strip().split(".")
    for name in parents:
        inner = table.setdefault(name, {})
        if not isinstance(inner, dict):
            raise BadInput(f"--set {override}: {name} is not a table")
        table = inner
    table[last] = value


def flat(table: Mapping[str, object], prefix: str = "") -> Record:
    """The keys of a table with dots, as in `--set`, and their values. A list of tables stays one value."""
    found: Record = {}
    for key, value in table.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def overrides_of(table: Mapping[str, object]) -> list[str]:
    """The keys of a table and their values, as `set_key` takes them. Raises BadInput naming a key whose value cannot be
    written in TOML."""
    found = []
    for key, value in flat(table).items():
        with naming(f"{key} = {value!r}: not a value of TOML's", TypeError):
            found.append(f"{key}={_inline(value)}")
    return found


def _inline(value: object) -> str:
    """A value as TOML on one line. Raises TypeError for a value that TOML cannot express."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_inline(str(key))} = {_inline(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_inline, value)) + "]"
    return tomli_w.dumps({"": str(value) if isinstance(value, Path) else value}).removeprefix('"" = ').rstrip("\n")


def resolve(table: Record) -> Config:
    """Check a table and fill in the algorithm's defaults. Raises BadInput naming the key."""
    table = _with_optimizer(table)
    _check_names(table, _types())
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
        why = f"the number is fixed with {name_of(algorithm)}; it can change with {_with('workers_change')}"
        raise BadInput(f"stages: workers: {why}")
    if team != 1 and not algorithm.in_teams:
        why = f"workers of this algorithm are single ranks; teams train {_with('in_teams')}"
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


def to_toml(config: Config) -> str:
    """The configuration as TOML, which resolves to the same configuration."""
    return tomli_w.dumps({name: _without_none(section) for name, section in msgspec.to_builtins(config).items()})


def _without_none(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list) else value


def _merge(under: Record, over: Record) -> Record:
    merged = dict(under)
    for key, value in over.items():
        under_it = merged.get(key)
        merged[key] = _merge(under_it, value) if isinstance(value, dict) and isinstance(under_it, dict) else value
    return merged


def _check_names(value: object, kind: inspect.Type, key: str = "") -> None:
    """Raise BadInput naming a key at or below `key` that does not exist, or that must be a table and is not."""
    for each in kind.types if isinstance(kind, inspect.UnionType) else (kind,):
        if isinstance(each, inspect.ListType) and _tables(each.item_type):
            if not isinstance(value, list):
                raise BadInput(f"{key}: expected tables, each under a line [[{key}]]")
            for number, table in enumerate(value):
                _check_names(table, each.item_type, f"{key}[{number}]")
    if not (tables := _tables(kind)):
        return
    if not isinstance(value, dict):
        example = ", such as algorithm.optimizer.name = 'nesterov'" if key == "algorithm.optimizer" else ""
        raise BadInput(f"{key}: expected a table{example}")
    prefix = f"{key}." if key else ""
    table = tables[_kind(value, tables, prefix)]
    if key == "algorithm" and "optimizer" in value and not ALGORITHMS[str(table.tag)].any_optimizer:
        choosing = _with("any_optimizer")
        raise BadInput(f"algorithm.optimizer: {table.tag} has its own optimizer; one can be chosen with {choosing}")
    fields = {field.encode_name: field.type for field in table.fields}
    for name, inner in value.items():
        if name in fields:
            _check_names(inner, fields[name], f"{prefix}{name}")
        elif name != table.tag_field:
            raise BadInput(_unknown(name, [*fields, *filter(None, [table.tag_field])], prefix, table.tag))


@cache
def _types() -> inspect.Type:
    return inspect.type_info(Config)


def _tables(kind: inspect.Type) -> dict[object, inspect.StructType]:
    """The types of tables that a type, or a union, consists of, by their tags; None for a table without a tag."""
    kinds = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    return {each.tag: each for each in kinds if isinstance(each, inspect.StructType)}


def _with(ability: str) -> str:
    """The names of the algorithms whose class has an `ability`, such as any_optimizer."""
    return ", ".join(name for name, kind in ALGORITHMS.items() if getattr(kind, ability))


def _with_optimizer(table: Record) -> Record:
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


def _kind(table: Record, kinds: Mapping[object, inspect.StructType], prefix: str) -> object:
    """The tag of a table, which chooses one of `kinds`; None for kinds without tags. Raises BadInput for an unknown
    tag, or a missing one without a default."""
    tag = next(iter(kinds.values())).tag_field
    if tag is None:
        return None
    name = table.get(tag, "asgd" if prefix == "algorithm." else None)
    if not isinstance(name, str) or name not in kinds:
        said = ": missing" if name is None else f" = {name!r}: unknown"
        if prefix == "algorithm." and ALIASES.get(str(name), str(name)) in ("algorithm.optimizer.name", *OPTIMIZERS):
            raise BadInput(
                f"{prefix}{tag}{said}; an optimizer is algorithm.optimizer.name, with {_with('any_optimizer')}"
            )
        raise BadInput(f"{prefix}{tag}{said}{nearest('' if name is None else str(name), list(map(str, kinds)))}")
    return name


def _unknown(key: str, known: list[str], prefix: str, tag: object) -> str:
    """The message about a key that tables of the kind `tag` do not have."""
    owners = [name for name, kind in ALGORITHMS.items() if key in kind.__struct_encode_fields__]
    if prefix == "algorithm." and owners:
        return f"unknown key algorithm.{key} of {tag}; it is one of {', '.join(owners)}"
    meant = ALIASES.get(key)
    hint = nearest(key, known, prefix) if meant is None else f"; here it is {meant}"
    return f"unknown key {prefix}{key}{hint}"


def readable(error: msgspec.ValidationError, algorithm: type[Algorithm] = Algorithm) -> str:
    """An error as a message: the key, and what is wrong with its value. `algorithm`: the type of [algorithm]."""
    message, _, where = str(error).partition(" - at `$")
    for said, plain in PLAIN.items():
        if message.startswith(said):
            message = plain
    key = where.rstrip("`").lstrip(".") or "configuration"
    kind, at = (algorithm, "algorithm") if key.startswith("algorithm.") else (Config, "")
    if allowed := sorted({value for name, value in values_of(inspect.type_info(kind), at) if name == key and value}):
        allowed = ["a number", *allowed] if len(allowed) == 1 else allowed
        message = f"{message.removeprefix('Invalid enum value ')}: must be {' or '.join(allowed)}"
    return f"{key}: {message}"
