"""`train`: build everything from the configuration, run this rank's part, and write the run folder.

Steps that can fail because of user input are taken by all ranks together (`agreed`), so that one rank prints the reason
and all exit with status 2.
"""

import platform
import sys
import tomllib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import tomli_w
import xxhash
from threadpoolctl import threadpool_limits

from mpitrain import __version__, checkpoint
from mpitrain import config as configuration
from mpitrain.api.failures import failures_recorded
from mpitrain.api.finish import finish, sha256
from mpitrain.api.folder import Reserved
from mpitrain.api.options import TrainOptions
from mpitrain.api.pretraining import pretrain
from mpitrain.api.setup import furnish, new_session, prepare
from mpitrain.batch import Batch
from mpitrain.checkpoint import coordination
from mpitrain.checkpoint.lease import Lease
from mpitrain.config import Config
from mpitrain.data import origin
from mpitrain.data.corpus import Corpus
from mpitrain.device import Cpu
from mpitrain.errors import BadInput
from mpitrain.flat import on_host
from mpitrain.models import table
from mpitrain.models.model import Model, buffered
from mpitrain.models.warm import warm
from mpitrain.monitoring import trace
from mpitrain.mpi import Transport, library, order
from mpitrain.mpi.agreement import agreed, ending_together
from mpitrain.mpi.recording import recorder as event_recorder
from mpitrain.mpi.witness import Witness
from mpitrain.mpi.witnessed import WitnessedStop, WitnessedTransport
from mpitrain.protocols import PROTOCOLS
from mpitrain.protocols.messages import Over
from mpitrain.protocols.standby import dismiss, idle_ranks, stand_by
from mpitrain.sampling.queue import Work
from mpitrain.signals import Stop
from mpitrain.training.context import Session
from mpitrain.training.inputs import at_home, code_of, design_of, say
from mpitrain.training.run_code import RunFolder, shared
from mpitrain.training.user_code import Code


def train_on(transport: Transport, options: TrainOptions, stop: Stop) -> int:
    """Train and return the exit status, on a transport that may be simulated. Collective."""
    return ending_together(transport, lambda: configured(transport, options, stop))


def configured(
    transport: Transport, options: TrainOptions, stop: Stop, told: Callable[[Path], None] = lambda folder: None
) -> int:
    """Train as the options say; the exit status. The first rank tells its run folder. Collective.

    Ranks watch each other from the beginning: what takes its time before the training is `working`.
    """
    transport.watch()
    with Reserved(transport) as folder:
        agreed(transport, lambda: folder.reserve_given(options), "the run folder")
        return _configured(transport, _started_or_resumed(transport, options), stop, told, folder)


def _configured(
    transport: Transport, options: TrainOptions, stop: Stop, told: Callable[[Path], None], folder: Reserved
) -> int:
    config = shared_config(transport, options)
    if options.print_config:
        text = agreed(transport, lambda: explained(config), "the configuration")
        sys.stdout.write(text if transport.rank == 0 else "")
        return 0
    transport.deadline = config.run.deadline
    # Overflows are detected where they matter: in the loss, and in the gradient that reaches the server.
    with _limits(transport, config), np.errstate(over="ignore", invalid="ignore"):
        return _train(transport, config, options, stop, told, folder)


def explained(config: Config) -> str:
    """TOML that reads back as the configuration. The comments, as keys of [model] instead of those above them, give the
    same network. Raises BadInput naming a key of [model]."""
    text = configuration.to_toml(config)
    if config.model.import_ or (design := design_of(config)).preset is None:
        return text
    keys = tomli_w.dumps({"output": design.output, "l2": design.l2, "l2_biases": design.l2_biases}).splitlines()
    lines = [f"# {line}\n" for line in (*keys, *table.to_lines(design.layers))]
    before, section, after = text.partition("[model]\n")
    own, _, rest = after.partition("\n\n")
    comment = "".join(["# As layers of your own, instead of the keys above:\n", *lines])
    return f"{before}{section}{own}\n{comment}\n{rest}"


def _limits(transport: Transport, config: Config) -> AbstractContextManager[object]:
    """Context in which libraries use a rank's threads. Those of simulated ranks would undo each other's limits."""
    simulated = transport.runtime.simulated
    return nullcontext() if simulated else threadpool_limits(transport.threads(config.run.threads))


def _started_or_resumed(transport: Transport, options: TrainOptions) -> TrainOptions:
    """The options with the checkpoint to resume from, if any. `--continue` starts a new run if there is none."""
    folder = options.resume or options.continued
    if folder is None:
        return options

    def found() -> Path | None:
        return None if transport.rank else _verified(folder, options.resume is not None)

    checked = agreed(transport, found, "the run folder")
    resumes = transport.broadcast(b"resume" if checked else b"", "the run folder") == b"resume"
    return replace(options, resume=folder if resumes else None, checkpoint=checked)


def _verified(run: Path, must: bool) -> Path | None:
    """The newest intact checkpoint of a run whose documents match their checksums. Raises BadInput."""
    folder = run / "checkpoints"
    newest, torn = checkpoint.newest(folder)
    if newest is None and must:
        raise BadInput(f"{folder}: no whole checkpoint to resume from{f' ({torn[0]})' if torn else ''}")
    if newest is None and torn:
        raise BadInput(f"{folder}: no whole checkpoint ({torn[0]}); to start afresh, remove the folder")
    for line in torn:
        print(f"mpitrain: {line}", file=sys.stderr)
    if newest is not None:
        checkpoint.require_intact(run, newest)
        origin.read(run)
    return newest


def shared_config(transport: Transport, options: TrainOptions) -> Config:
    """Rank 0 reads the files and broadcasts the resolved configuration."""

    def read() -> str:
        if transport.rank:
            return ""
        if options.whole:
            return options.whole
        run, found, path = options.resume, options.checkpoint, options.config
        if run is not None and found is not None:
            path = found / checkpoint.CONFIG
        config = configuration.load(path, list(options.overrides), run is not None)
        if run is not None and not any(said.partition("=")[0].strip() == "data.path" for said in options.overrides):
            config = at_home(config, run)
        return configuration.to_toml(config)

    text = agreed(transport, read, "the configuration")
    told = transport.broadcast(text.encode(), "the configuration").decode()
    return transport.runtime.once("the configuration", lambda: configuration.resolve(tomllib.loads(told)))


def shared_code(transport: Transport, config: Config, options: TrainOptions) -> dict[str, Code]:
    """The user's own code, which rank 0 reads. If a run folder names it, the user is told before a rank executes it."""

    def choose() -> dict[str, Code]:
        run, replayed, allowed = options.resume, options.replayed, (options.trust, options.new_code)
        named = None
        if replayed is not None:
            named = RunFolder(replayed, order.file_of(replayed, 0), replayed, *allowed)
        elif run is not None and options.checkpoint is not None:
            named = RunFolder.at(run, options.checkpoint, *allowed)
        return code_of(config, options.build, named, say)

    return shared(transport, choose) if config.model.import_ else {}


def _train(
    transport: Transport,
    config: Config,
    options: TrainOptions,
    stop: Stop,
    told: Callable[[Path], None],
    folder: Reserved,
) -> int:
    code = shared_code(transport, config, options)
    parts = agreed(transport, lambda: prepare(transport, config, options, code), "the preparation")
    agreed(transport, lambda: _require_same_data(transport, parts[1]), "the data", calls_mpi=True)
    agreed(transport, lambda: folder.reserve_new(config, options), "the run folder")
    if folder.lease is not None:
        told(folder.lease.folder)
    return _train_in(folder.lease, told, transport, config, options, stop, parts)


def _train_in(
    lease: Lease | None,
    told: Callable[[Path], None],
    transport: Transport,
    config: Config,
    options: TrainOptions,
    stop: Stop,
    parts: tuple[Cpu, Corpus, Model],
) -> int:
    """Train in the run folder, which only the first rank has reserved."""
    device, corpus, network = parts
    _compile(transport, corpus, network, config, device)
    witness = _witness(transport, config, options, None if lease is None else lease.folder)
    if witness is not None:
        transport, stop = WitnessedTransport(transport, witness), WitnessedStop(stop, witness)
    session = new_session(transport, config, device, corpus, network, stop, witness)
    agreed(transport, lambda: _require_same_model(session), "the model", calls_mpi=True)
    monitor = agreed(transport, lambda: furnish(session, lease, options.checkpoint), "the run folder")
    layout = session.network.layout
    session.saver, session.resumed = coordination.share(session.saver, session.resumed, transport, layout, config.run)
    if options.resume:
        _share_state(session)
        _restore_kept(session)
    with failures_recorded(session):
        if not options.resume:
            pretrain(session)
        session.counters.resume(session.state)
        session.monitor.start()
        recorder = trace.begin(transport, session.counters) if config.run.trace else None
        transport.stopwatch.start()
        if session.takes_part(transport.rank):
            PROTOCOLS[config.algorithm.protocol](session)
        else:
            stand_by(session, session.members[0], "the end of the training")
        if transport.rank == session.members[0]:
            dismiss(session, idle_ranks(session), Over())
        stopped = np.array([int(stop.flag)])
        transport.sum(stopped, "the end")
        status = finish(session, monitor, bool(stopped[0]), recorder)
        if monitor is not None:
            told(monitor.folder)
        session.witness.end(status, lambda: "" if transport.rank else sha256(session) or "")
        return status


def _witness(transport: Transport, config: Config, options: TrainOptions, folder: Path | None) -> Witness | None:
    """The witness of a training in this run folder, which the first rank knows. Collective; raises BadInput."""
    if transport.runtime.witness is not None or not config.run.record_order or options.resume:
        return transport.runtime.witness
    by = f"mpitrain {__version__}, NumPy {np.__version__}, {library()}, {platform.machine()}"  # what bits may depend on
    number, text = transport.threads(config.run.threads), configuration.to_toml(config)
    return event_recorder(transport, folder, number, by, text)


def _require_same_data(transport: Transport, corpus: Corpus) -> None:
    """Raise BadInput naming a rank whose training part differs from rank 0's, such as an old copy on a local disk."""
    shape = " x ".join(map(str, corpus.shape))
    mine = f"{corpus.samples:,} samples of {shape} in {corpus.classes} classes"
    with transport.working():
        of_targets = xxhash.xxh3_64_hexdigest(np.ascontiguousarray(corpus.targets).tobytes())
    texts = transport.gather_texts(f"{mine}\n{of_targets}", "the data")
    odd = next((rank for rank, text in enumerate(texts) if text != texts[0]), None)
    if odd is not None:
        found, first = texts[odd].split("\n")[0], texts[0].split("\n")[0]
        same = ", others than rank 0" if found == first else f", rank 0 {first}"
        raise BadInput(f"data.path: rank {odd} has {found}{same}")


def _require_same_model(session: Session) -> None:
    """Raise BadInput naming a rank on which the user's code builds another model than on rank 0."""
    network, transport = session.network, session.transport
    if not network.documents:  # of our own layers: the configuration is all there is
        return
    own, theta = buffered(network), session.state.theta
    with transport.working():
        kept = own.kept(theta) if own else {}
        sums = [xxhash.xxh3_64_hexdigest(part.tobytes()) for part in (theta, *kept.values())]
    texts = transport.gather_texts(" ".join((str(theta.size), *sums)), "the model")
    odd = next((rank for rank, text in enumerate(texts) if text != texts[0]), None)
    if odd is not None:
        raise BadInput(f"{network.name}: gives rank {odd} other initial weights or constants than rank 0")


def _restore_kept(session: Session) -> None:
    """Give every rank's model what the checkpoint holds beside the parameters."""
    own, folder, state = buffered(session.network), session.resumed, session.state
    if own is not None and folder is not None:
        own.restore(session.transport.alive_while(lambda: checkpoint.load_kept(folder)), on_host(state.model))


def _compile(transport: Transport, corpus: Corpus, network: Model, config: Config, device: Cpu) -> None:
    """Compile the loops: one rank of each node fills the cache, then the others read it."""
    dtype = np.dtype(config.training.dtype)

    def once() -> None:
        if device.phantom:
            return
        sample = Batch(np.empty((1, *corpus.shape), dtype), np.empty(1, np.int32))
        corpus.gather(np.zeros(1, np.int64), sample)
        warm(network, dtype, device.to_device)
        device.compile_rules(dtype)

    for leaders in (True, False):
        if transport.leader is leaders:
            with transport.working():
                transport.runtime.once("the compilation", once)
        if leaders:
            transport.local_barrier("the compilation")


def _share_state(session: Session) -> None:
    """Broadcast the state that rank 0 read from a checkpoint."""
    state, transport = session.state, session.transport
    for vector in state.vectors().values():
        transport.broadcast_array(vector, "the checkpoint")
    numbers = np.array([state.index, state.began, state.trained, state.queue.position], dtype=np.int64)
    transport.broadcast_array(numbers, "the checkpoint")
    state.index, state.began, state.trained, state.queue.position = map(int, numbers)
    rate = np.array(state.rate.numbers())
    transport.broadcast_array(rate, "the checkpoint")
    state.rate.restore(tuple(rate.tolist()))
    ranges = msgspec.json.encode(state.queue.returned)
    state.queue.returned = msgspec.json.decode(transport.broadcast(ranges, "the checkpoint"), type=list[Work])
