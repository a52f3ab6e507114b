"""`train`: build everything from the configuration, run this rank's part, and write the run folder.

Steps that can fail because of user input are taken by all ranks together (`agreed`), so that one rank prints the reason
and all exit with status 2.
"""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import groupby
from pathlib import Path

import numpy as np
import tomli_w
from threadpoolctl import threadpool_limits

from mpitrain import config as configuration
from mpitrain.api import warnings
from mpitrain.api.computing import chosen
from mpitrain.api.ending import sha256
from mpitrain.api.finish import failures_recorded, finish
from mpitrain.api.folder import Reserved
from mpitrain.api.going_on import introduce, prepare_for_loss
from mpitrain.api.opening import open_run_folder
from mpitrain.api.options import TrainOptions
from mpitrain.api.requirements import require_same_model
from mpitrain.api.setup import Prepared, new_session, prepare
from mpitrain.api.shared import callback_of, share_checkpoint, shared_code, shared_config, started_or_resumed
from mpitrain.api.spares import beside_spares
from mpitrain.checkpoint import coordination
from mpitrain.config import Config, Pretraining
from mpitrain.models.design import to_lines
from mpitrain.models.network import network_of_layers, warm
from mpitrain.monitoring import trace
from mpitrain.monitoring.evaluation import random_subset
from mpitrain.monitoring.monitor import MasterMonitor
from mpitrain.mpi import Transport
from mpitrain.mpi.agreement import agreed, ending_together
from mpitrain.mpi.recording import recorder as event_recorder
from mpitrain.mpi.witness import Witness
from mpitrain.mpi.witnessed import WitnessedStop
from mpitrain.protocols import PREPARATIONS, PROTOCOLS
from mpitrain.protocols.messages import TO_FIRST, Over
from mpitrain.protocols.standby import dismiss, idle_ranks, stand_by
from mpitrain.signals import Stop
from mpitrain.training.context import Session, fresh
from mpitrain.training.inputs import design_of
from mpitrain.training.pretraining import PretrainingTask, steps

Told = Callable[[Path], None]  #: called with the run folder


def train_on(transport: Transport, options: TrainOptions, stop: Stop) -> int:
    """Train and return the exit status, on a transport that may be simulated. Collective."""
    return ending_together(transport, lambda: configured(transport, options, stop))


def configured(transport: Transport, options: TrainOptions, stop: Stop, told: Told = lambda folder: None) -> int:
    """Train as the options say; return the exit status. At the end, the first rank calls `told` with its run folder.
    Collective.

    Ranks watch each other from the beginning, so slow preparations must run in the context `Transport.working`.
    """
    transport.watch()
    with Reserved(transport) as folder:
        agreed(transport, lambda: folder.reserve_given(options), "the run folder")
        options = started_or_resumed(transport, options)
        config = shared_config(transport, options)
        if options.print_config:
            text = agreed(transport, lambda: explained(config), "the configuration")
            sys.stdout.write(text if transport.rank == 0 else "")
            return 0

        def trained(transport: Transport) -> int:
            limits: AbstractContextManager[object] = nullcontext()
            if not transport.runtime.simulated:  # simulated ranks would undo each other's limits
                limits = threadpool_limits(transport.threads(config.run.threads))
            # Overflows are detected where they matter: in the loss, and in the gradient that reaches the server.
            with limits, np.errstate(over="ignore", invalid="ignore"):
                return _train(transport, config, options, stop, folder, told)

        introduce(transport)
        return beside_spares(transport, options, config.run, trained)


def explained(config: Config) -> str:
    """TOML that reads back as the configuration. Its comments are keys that, in place of the keys of [model] above,
    give the same network. Raises BadInput naming a key of [model]."""
    text = configuration.to_toml(config)
    if config.model.import_ or (design := design_of(config)).preset is None:
        return text
    keys = tomli_w.dumps({"output": design.output, "l2": design.l2, "l2_biases": design.l2_biases}).splitlines()
    lines = [f"# {line}\n" for line in (*keys, *to_lines(design.layers))]
    before, section, after = text.partition("[model]\n")
    own, _, rest = after.partition("\n\n")
    comment = "".join(["# As layers of your own, instead of the keys above:\n", *lines])
    return f"{before}{section}{own}\n{comment}\n{rest}"


def _ready(
    transport: Transport, config: Config, options: TrainOptions, stop: Stop, folder: Reserved
) -> tuple[Session, MasterMonitor | None]:
    """A session that can train, in its run folder, once all that the user has given was found to fit; and the monitor,
    on rank 0."""
    code = shared_code(transport, config, options)
    callback = callback_of(transport, config, options)
    config, source = chosen(transport, config, options, code)
    prepared = prepare(transport, config, options, code, source)
    agreed(transport, lambda: folder.reserve_new(config, options), "the run folder")
    lease = folder.lease
    _compile(transport, config, prepared)
    witness = _witness(transport, config, options, None if lease is None else lease.folder)
    if witness is not None:
        transport, stop = transport.witnessed(witness), WitnessedStop(stop, witness)
    session = new_session(transport, config, prepared, stop, witness)
    agreed(transport, lambda: require_same_model(session), "the model", calls_mpi=True)
    opened = partial(open_run_folder, session, prepared.source, lease, options.checkpoint, callback)
    monitor = agreed(transport, opened, "the run folder")
    layout = session.network.layout
    session.saver, session.resumed, session.token = coordination.share(
        session.saver, session.resumed, transport, layout, config.run.checkpoints_kept, config.run.deadline
    )
    for line in warnings.of_unseen_folder(session):
        session.journal.warn(line)
    if options.resume:
        share_checkpoint(session)
    if session.goes_on:
        prepare_for_loss(session)
    return session, monitor


def _train(
    transport: Transport, config: Config, options: TrainOptions, stop: Stop, folder: Reserved, told: Told
) -> int:
    session, monitor = _ready(transport, config, options, stop, folder)
    transport, config = session.transport, session.config
    with failures_recorded(session):
        if not options.resume:
            pretrain(session)
        session.counters.resume(session.state)
        if (prepare_protocol := PREPARATIONS.get(config.algorithm.protocol)) is not None:
            prepare_protocol(session)
        session.monitor.start()
        if options.resume:
            transport.barrier("the evaluation that was cut off")
        recorder = trace.begin(transport, session.counters) if config.run.trace else None
        transport.stopwatch.start()
        if session.takes_part(transport.rank):
            PROTOCOLS[config.algorithm.protocol](session)
        else:
            stand_by(session, session.members[0], "the end of the training")
        if transport.rank == session.members[0]:
            dismiss(session, idle_ranks(session), Over())
        stopped = np.array([int(session.stop.flag)])
        transport.sum(stopped, "the end")
        status = finish(session, monitor, bool(stopped[0]), recorder)
        session.witness.end(status, lambda: "" if transport.rank else sha256(session) or "")
        if recorder is not None:  # after the end of the recorded order, which must be the same without a trace
            trace.write(transport, recorder, monitor, session.members[0] if session.has_master else None)
        if monitor is not None:
            told(monitor.journal.folder)
        return status


def _witness(transport: Transport, config: Config, options: TrainOptions, folder: Path | None) -> Witness | None:
    """What records or replays the order of events, if wanted; only the first rank has a `folder`. Collective."""
    if transport.runtime.witness is not None or not config.run.record_order or options.resume:
        return transport.runtime.witness
    number, text = transport.threads(config.run.threads), configuration.to_toml(config)
    return event_recorder(transport, folder, number, text)


def _compile(transport: Transport, config: Config, prepared: Prepared) -> None:
    """Compile the loops, or read them from the cache."""
    device, corpus, network = prepared.device, prepared.corpus, prepared.network
    dtype = np.dtype(config.training.dtype)

    def once() -> None:
        if device.phantom:
            return
        corpus.gather(np.zeros(1, np.int64), corpus.form.room(1, dtype))
        warm(network, dtype, device.to_device)
        device.compile_rules(dtype)

    transport.leader_first(lambda: transport.runtime.once("the compilation", once), "the compilation")


def pretrain(session: Session) -> None:
    """Pre-train the initial weights of a fresh session as its configuration says. Collective.

    The other ranks wait as long as the first one sends heartbeats. A stop request ends the pre-training and then the
    training, without a checkpoint, since a run cannot be resumed from incompletely pre-trained weights.
    """
    options, transport, theta = session.config.pretraining, session.transport, session.state.theta
    if options.method == "none":
        return
    first = transport.members[0]
    if transport.rank == first:
        complete = _work(session, options)
    else:
        complete = stand_by(session, first, f"the pre-training by rank {first}").complete
    if not complete:
        session.saver = None
    transport.broadcast_array(theta, "the pre-trained weights", first)
    transport.flush()
    session.state = fresh(session.config.algorithm, theta, session.state.queue)


def _work(session: Session, options: Pretraining) -> bool:
    """Pre-train on rank 0; returns whether the pre-training was completed."""
    corpus, seed = session.learner.corpus, session.config.initial_seed
    if options.samples:
        corpus = random_subset(corpus, options.samples, seed)
    device, theta = session.device, session.device.to_device(session.state.theta)
    network = network_of_layers(session.network, "layers", "pretraining.method")
    task = PretrainingTask(network, corpus, theta, options, seed, device, session.config.run.deadline)
    for (layer, layers), same_layer in groupby(steps(task), lambda step: (step.layer, step.layers)):
        began, loss, samples = session.clock(), 0.0, 0
        for step in same_layer:
            loss, samples = loss + step.loss * step.samples, samples + step.samples
            session.transport.heartbeat()
            session.stop.flag |= TO_FIRST.poll(session.transport) is not None
            if session.stop.flag:
                break
        if session.stop.flag:
            session.journal.progress.line(f"pre-training of layer {layer} of {layers} stopped; its result is discarded")
            break
        mean, seconds = loss / samples, session.clock() - began  # over all minibatches of the layer
        session.journal.progress.line(f"pre-trained layer {layer} of {layers}: loss {mean:.4f}, {seconds:.1f} s")
        session.journal.write("pretraining", layer=layer, layers=layers, loss=mean, seconds=seconds)
    if theta is not session.state.theta:
        device.download(theta, session.state.theta)
    dismiss(session, session.transport.members[1:], Over(not session.stop.flag))
    return not session.stop.flag
