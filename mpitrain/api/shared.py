"""Give all ranks what rank 0 reads of a run folder, a configuration and the user's code: collective functions."""

import json
import os
import socket
import tomllib
from collections.abc import Callable, Sequence
from contextlib import chdir, suppress
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from mpitrain import __version__, checkpoint
from mpitrain import config as configuration
from mpitrain.api.options import TrainOptions
from mpitrain.checkpoint.state import MasterNumbers, State, checked
from mpitrain.config import Config, flat
from mpitrain.data import origin
from mpitrain.data.validation import Attributes
from mpitrain.errors import BadInput, say
from mpitrain.files import Record
from mpitrain.flat import on_host
from mpitrain.monitoring.records import Callback
from mpitrain.mpi import Transport, order
from mpitrain.mpi.agreement import agreed, of_first
from mpitrain.sampling.queue import Work
from mpitrain.sampling.rng import undisturbed
from mpitrain.training import run_code
from mpitrain.training.context import Session
from mpitrain.training.inputs import code_of, shared
from mpitrain.training.parts import at_home
from mpitrain.training.run_code import RunFolder
from mpitrain.training.user_code import Code


def started_or_resumed(transport: Transport, options: TrainOptions) -> TrainOptions:
    """The options with the checkpoint to resume from, if any. `--continue` starts a new run if there is none."""
    folder = options.resume or options.continued
    if folder is None:
        return options
    must = options.resume is not None
    found = os.fsdecode(of_first(transport, lambda: os.fsencode(_verified(folder, must) or ""), "the run folder"))
    return replace(options, resume=folder if found else None, checkpoint=Path(found) if found else None)


def _verified(run: Path, must: bool) -> Path | None:
    """The newest intact checkpoint of a run whose documents match their checksums. Raises BadInput."""
    folder = run / "checkpoints"
    newest, torn = checkpoint.newest(folder)
    if newest is None and must:
        raise BadInput(f"{folder}: no whole checkpoint to resume from{f' ({torn[0]})' if torn else ''}")
    if newest is None and torn:
        raise BadInput(f"{folder}: no whole checkpoint ({torn[0]}); to start afresh, remove the folder")
    for line in torn:
        say(line)
    if newest is not None:
        checkpoint.require_intact(run, newest)
        origin.read(run)
    return newest


def shared_config(transport: Transport, options: TrainOptions) -> Config:
    """The resolved configuration, from the files that rank 0 reads; its deadline holds from now on. Raises BadInput on
    all ranks, and on ranks with another version of the program than rank 0's."""

    def read() -> bytes:
        if options.whole:
            return options.whole.encode()
        run, found, path = options.resume, options.checkpoint, options.config
        if run is not None and found is not None:
            path = found / checkpoint.CONFIG
        config = configuration.load(path, list(options.overrides), run is not None)
        if run is not None and options.config is not None:
            _say_what_is_kept(options.config, options.overrides, config)
        if run is not None and not any(said.partition("=")[0].strip() == "data.path" for said in options.overrides):
            config = at_home(config, run)
        return configuration.to_toml(config).encode()

    told = of_first(transport, lambda: f"{__version__}\n".encode() + read(), "the configuration").decode()
    version, _, told = told.partition("\n")
    if version != __version__:  # whose messages or arithmetic may differ
        at = f"rank {transport.rank} on {socket.gethostname()}"
        raise BadInput(f"{at}: has mpitrain {__version__}, rank 0 {version}: install one version on all nodes")
    config = transport.runtime.once("the configuration", lambda: configuration.resolve(tomllib.loads(told)))
    transport.deadline = config.run.deadline
    return config


def _say_what_is_kept(path: Path, overrides: Sequence[str], config: Config) -> None:
    """Warn of keys with other values in a given file than in the run that is continued, which keeps its own values."""
    with suppress(BadInput):  # the file need not be valid: none of its values is used
        given = configuration.load(path, list(overrides))
        asked, kept = (flat(tomllib.loads(configuration.to_toml(each))) for each in (given, config))
        told = configuration.with_optimizer(configuration.read_toml(path))
        said = flat(told).keys() - {"data.path"}  # may be relative to another folder
        if other := sorted(key for key in said if asked.get(key) not in ("auto", kept.get(key))):
            say(f"warning: {path}: the run keeps its own {', '.join(other)}; --set changes them")


def shared_code(transport: Transport, config: Config, options: TrainOptions) -> dict[str, Code]:
    """The user's own code, which rank 0 reads. If a run folder names it, the user is told before a rank executes it."""
    if not (config.model.import_ or config.data.import_):
        return {}
    return shared(transport, lambda: code_of(config, options.build, _naming(options)))


def shared_statistics(transport: Transport, options: TrainOptions) -> Attributes | None:
    """The statistics that normalise a resumed run's inputs, whatever its shards say now; None for a new run."""
    run, found = options.resume, options.checkpoint
    if run is None or found is None:
        return None

    def read() -> bytes:
        known = origin.read(found) or origin.read(run)
        return msgspec.json.encode(known and {name: value.tolist() for name, value in known.statistics.items()})

    told = msgspec.json.decode(of_first(transport, read, "the statistics"), type=dict[str, list[float]] | None)
    return None if told is None else {name: np.array(values) for name, values in told.items()}


def _naming(options: TrainOptions) -> RunFolder | None:
    """The run folder that names the code, if the training goes on in it or repeats it."""
    run, replayed, allowed = options.resume, options.replayed, (options.trust, options.new_code)
    if replayed is not None:
        return RunFolder(replayed, replayed, *allowed, order.file_of(replayed, 0))
    if run is not None and options.checkpoint is not None:
        return RunFolder(run, options.checkpoint, *allowed)
    return None


def callback_of(transport: Transport, config: Config, options: TrainOptions) -> Callback | None:
    """On rank 0, calls the function that `run.callback` names with a record; None if the key is empty.

    The function may be slow. The random numbers that it draws and the folder that it changes to do not change the
    training's. Raises BadInput naming the key; a call raises Overdue for ranks that have fallen silent meanwhile."""
    key, spec = "run.callback", config.run.callback
    if not spec:
        return None

    def read() -> Callable[..., object] | None:
        return None if transport.rank else run_code.choose({key: spec}, _naming(options))[key].function()

    function = agreed(transport, read, key)
    if function is None:
        return None

    def call(record: Record) -> BaseException | None:
        with transport.working(), undisturbed():
            try:
                with chdir(os.curdir):
                    function(record)
            except BaseException as error:  # such as asyncio.CancelledError
                return error
        return None

    return call


def share_state(state: State, transport: Transport, root: int = 0) -> None:
    """Copy the state of rank `root` into that of every other rank."""
    for vector in state.vectors().values():
        transport.broadcast_array(vector, "the checkpoint", root)
    numbers = transport.broadcast(json.dumps(state.numbers()).encode(), "the checkpoint", root)
    state.restore(checked(json.loads(numbers), MasterNumbers))
    ranges = transport.broadcast(msgspec.json.encode(state.queue.returned), "the checkpoint", root)
    state.queue.returned = msgspec.json.decode(ranges, type=list[Work])


def share_checkpoint(session: Session) -> None:
    """Broadcast the state that rank 0 read from a checkpoint; each rank reads what else the model keeps there."""
    state, transport = session.state, session.transport
    share_state(state, transport)
    folder, network = session.resumed, session.network
    if folder is not None and network.holds_buffers:
        network.restore(transport.alive_while(lambda: checkpoint.load_kept(folder)), on_host(state.model))
