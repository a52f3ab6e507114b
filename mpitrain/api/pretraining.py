"""Pre-training of the initial weights on the first rank, before a training with any algorithm."""

from itertools import groupby

from mpitrain.config import Pretraining
from mpitrain.models.network import network_of_layers
from mpitrain.monitoring.evaluation import random_subset
from mpitrain.protocols.messages import TO_FIRST, Over
from mpitrain.protocols.standby import dismiss, stand_by
from mpitrain.training.context import Session, fresh
from mpitrain.training.pretraining import PretrainingTask, steps


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
    corpus, seed = session.learner.corpus, session.config.training.seed
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
