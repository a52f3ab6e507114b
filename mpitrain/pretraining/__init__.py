"""What is done to the initial weights before a training: by the first rank, whatever the algorithm, then everybody's.

Each method is a module with `fits` and `steps`.
"""

from itertools import groupby
from types import ModuleType

from mpitrain.checkpoint.state import fresh
from mpitrain.config import Pretraining
from mpitrain.errors import BadInput
from mpitrain.models.network import Network
from mpitrain.monitoring.evaluation import Subset
from mpitrain.pretraining import contrastive_divergence, layerwise
from mpitrain.training.context import Session

METHODS: dict[str, ModuleType] = {"layerwise": layerwise, "contrastive-divergence": contrastive_divergence}
NEWS = 41  # message tag
DONE, CUT, HEARD = b"done", b"cut", b"heard"


def require_fit(options: Pretraining, network: Network) -> None:
    """Raise BadInput when the method cannot pre-train the network."""
    reason = METHODS[options.method].fits(network) if options.method != "none" else ""
    if reason:
        raise BadInput(f"pretraining.method = {options.method!r}: the network {reason}")


def pretrain(session: Session) -> None:
    """Pre-train the initial weights of a fresh session as its configuration says. Collective.

    The other ranks wait for as long as the first one gives heartbeats. A stop ends it, and then the training, which
    leaves no checkpoint: weights that are half pre-trained are none to resume from.
    """
    options, transport, theta = session.config.pretraining, session.transport, session.state.theta
    if options.method == "none":
        return
    news = _work(session, options) if transport.rank == 0 else _await(session)
    if news == CUT:
        session.saver = session.monitor.saver = None
    transport.broadcast_array(theta, "the pre-trained weights")
    transport.flush()
    session.state = fresh(session.config.algorithm, theta, session.state.assignments)
    session.monitor.resume(session.state)


def _work(session: Session, options: Pretraining) -> bytes:
    corpus, seed = session.learner.corpus, session.config.training.seed
    if options.samples:
        corpus = Subset(corpus, options.samples, seed)
    device, theta = session.device, session.device.place(session.state.theta)
    deadline = session.config.run.deadline
    steps = METHODS[options.method].steps(session.network, corpus, theta, options, seed, device, deadline)
    for (layer, layers), same_layer in groupby(steps, lambda step: (step.layer, step.layers)):
        began, loss, samples = session.clock(), 0.0, 0
        for step in same_layer:
            loss, samples = loss + step.loss * step.samples, samples + step.samples
            session.transport.heartbeat()
            session.stop.flag |= session.transport.poll(NEWS) is not None
            if session.stop.flag:
                break
        if session.stop.flag:
            session.monitor.progress.line(f"pre-training of layer {layer} of {layers} stopped; nothing of it is kept")
            break
        _record(session, layer, layers, loss / samples, session.clock() - began)
    if theta is not session.state.theta:
        device.download(theta, session.state.theta)
    news = CUT if session.stop.flag else DONE
    others = range(1, session.transport.size)
    for rank in others:
        session.transport.post(rank, NEWS, news)
    for rank in others:  # no wish to stop that came too late stays behind
        while session.transport.receive(rank, NEWS, "the end of the pre-training") != HEARD:
            pass
    return news


def _await(session: Session) -> bytes:
    """What has come of it; a wish to stop is told to the first rank."""
    transport, told = session.transport, False
    backoff = transport.backoff("the pre-training by rank 0", [0])
    while (news := transport.poll(NEWS, 0)) is None:
        if session.stop.flag and not told:
            transport.post(0, NEWS, CUT)
            told = True
        backoff.pause()
    transport.post(0, NEWS, HEARD)
    return news[1]


def _record(session: Session, layer: int, layers: int, loss: float, seconds: float) -> None:
    """Of a layer that is done, its mean loss over all of its minibatches."""
    monitor = session.monitor
    monitor.progress.line(f"pre-trained layer {layer} of {layers}: loss {loss:.4f}, {seconds:.1f} s")
    monitor.write("pretraining", layer=layer, layers=layers, loss=loss, seconds=seconds)
