"""What is done to the initial weights before a training: by the first rank, whatever the algorithm, then everybody's.

Each method is a module with `fits` and `steps`.
"""

from itertools import groupby
from types import ModuleType

from mpitrain.config import Pretraining
from mpitrain.errors import BadInput
from mpitrain.evaluation import Subset
from mpitrain.models.network import Network
from mpitrain.pretraining import contrastive_divergence, layerwise
from mpitrain.session import Session
from mpitrain.state import fresh

METHODS: dict[str, ModuleType] = {"layerwise": layerwise, "contrastive-divergence": contrastive_divergence}
NEWS = 41  # message tag
AT_WORK, DONE, CUT = b"at work", b"done", b"cut"
SIGN_EVERY = 1.0  # seconds between signs of life


def require_fit(options: Pretraining, network: Network) -> None:
    """Raise BadInput when the method cannot pre-train the network."""
    reason = METHODS[options.method].fits(network) if options.method != "none" else ""
    if reason:
        raise BadInput(f"pretraining.method = {options.method!r}: the network {reason}")


def pretrain(session: Session) -> None:
    """Pre-train the initial weights of a fresh session as its configuration says. Collective.

    The other ranks wait for as long as the first one gives signs of life. A stop ends it, and then the training, which
    leaves no checkpoint: weights that are half pre-trained are none to resume from.
    """
    options, transport, theta = session.config.pretraining, session.transport, session.state.theta
    if options.method == "none":
        return
    if transport.rank == 0:
        news = _work(session, options)
    else:
        while (news := transport.receive(0, NEWS, "the pre-training by rank 0")) == AT_WORK:
            pass
    if news == CUT:
        session.saver = session.monitor.saver = None
    transport.broadcast_array(theta, "the pre-trained weights")
    transport.flush()
    session.state = fresh(session.config.algorithm, theta, session.state.assignments)


def _work(session: Session, options: Pretraining) -> bytes:
    corpus, seed = session.learner.corpus, session.config.training.seed
    if options.samples:
        corpus = Subset(corpus, options.samples, seed)
    device, theta = session.device, session.device.place(session.state.theta)
    steps = METHODS[options.method].steps(session.network, corpus, theta, options, seed, device)
    said = session.clock()
    for (layer, layers), same_layer in groupby(steps, lambda step: (step.layer, step.layers)):
        began, loss, samples = session.clock(), 0.0, 0
        for step in same_layer:
            loss, samples = loss + step.loss * step.samples, samples + step.samples
            if session.clock() - said > SIGN_EVERY:
                said = session.clock()
                _tell(session, AT_WORK)
            if session.stop.flag:
                break
        _record(session, layer, layers, loss / samples, session.clock() - began)
        if session.stop.flag:
            break
    if theta is not session.state.theta:
        device.download(theta, session.state.theta)
    news = CUT if session.stop.flag else DONE
    _tell(session, news)
    return news


def _tell(session: Session, news: bytes) -> None:
    for rank in range(1, session.transport.size):
        session.transport.post(rank, NEWS, news)


def _record(session: Session, layer: int, layers: int, loss: float, seconds: float) -> None:
    """Of a layer that is done, its mean loss over all of its minibatches."""
    monitor = session.monitor
    monitor.progress.line(f"pre-trained layer {layer} of {layers}: loss {loss:.4f}, {seconds:.1f} s")
    monitor.write("pretraining", layer=layer, layers=layers, loss=loss, seconds=seconds)
