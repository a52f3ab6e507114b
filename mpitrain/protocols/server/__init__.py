"""A centre on rank 0, and workers that exchange with it, each at its own pace or in turn.

A worker claims samples from the common queue, reads the centre, and pushes what is added to or merged into it. Two
kinds of centre differ in who computes; `Algorithm.additive` says which one an algorithm has:

- One that only adds (the elastic family: Zhang, Choromanska & LeCun 2015): workers push differences that add up in any
  order, so that each rank may add its own, one-sidedly where MPI can. Rank 0 counts, evaluates and saves
  (`adding_master.py`, `adding.py`; the centre is in `windows.py` or `by_messages.py`).
- One that a master merges gradients into (the parameter server: Zhang 2013; Chan & Lane 2014): rank 0 applies them one
  by one, hands samples out, and readers find Θ whole by its version (`merging_master.py`, `merging.py`; the
  centre is in `merged.py` over the memory of `versioned.py`).

`interface.py` has what all centres offer.
"""

from mpitrain.errors import BadInput
from mpitrain.mpi import Transport
from mpitrain.mpi.agreement import agreed
from mpitrain.protocols.messages import TO_MASTER
from mpitrain.protocols.server.adding import AddingWorker, take_up
from mpitrain.protocols.server.adding_master import AddingMaster, add_alone
from mpitrain.protocols.server.by_messages import AskingCentre, ServingCentre
from mpitrain.protocols.server.interface import Centre, Source
from mpitrain.protocols.server.link import MasterLink
from mpitrain.protocols.server.merged import MergedCentre, MergingCentre
from mpitrain.protocols.server.merging import MergingWorker, merge_alone
from mpitrain.protocols.server.merging_master import MergingMaster
from mpitrain.protocols.server.versioned import open_memory
from mpitrain.protocols.server.windows import WindowCentre
from mpitrain.protocols.team import follow, release
from mpitrain.training.context import Session
from mpitrain.training.loop import warn


def prepare(session: Session) -> None:
    """Choose the way to exchange vectors, once: before the training's clock begins, as a probe takes 75 ms. Collective
    over all members."""
    if len(session.members) > 1 and not session.way:
        session.way = agreed(session.transport, lambda: _way(session), "the choice of the exchange", calls_mpi=True)


def run(session: Session) -> None:
    """Train until all samples are served or a stop is asked for. Collective over all members."""
    transport, additive = session.transport, session.config.algorithm.additive
    workers = len(session.members) - 1
    warn(session, max(workers, 1))
    if not workers:
        (add_alone if additive else merge_alone)(session)
        return
    prepare(session)
    session.say_exchange(session.way)
    centre = (_add if additive else _merge)(session, session.way)
    transport.flush()
    transport.barrier("the end")
    while TO_MASTER.poll(transport) is not None:
        pass  # a stop request that came too late
    centre.close()


def choose(transport: Transport, wanted: str, direct: bool, shared: int = 0) -> str:
    """The way to exchange vectors: `run.exchange`, or for "auto" what the ranks' places and the probe allow.

    `direct`: MPI takes vectors from GPU memory, while windows would need a copy on the host. `shared`: the bytes that
    windows would take of this node's shared memory. Collective.
    """
    if wanted != "auto":
        return wanted
    if direct or not transport.has_shared_memory(shared):
        return "messages"
    if transport.nodes == 1:
        return "shared"
    return "one-sided" if transport.progresses_passively() else "messages"


def _way(session: Session) -> str:
    """The way to exchange vectors that these ranks and this algorithm allow. Collective."""
    options, transport, nbytes = session.config.algorithm, session.transport, session.state.theta.nbytes
    direct = session.device.direct and not options.sharded
    each = 1 if options.additive else transport.local_size  # Θ, and every worker's gradient
    how = choose(transport, session.config.run.exchange, direct, nbytes * each)
    if how == "messages" and options.sharded:
        raise BadInput(
            "algorithm.centre = 'sharded': needs one-sided access, which this MPI does not serve across these nodes, "
            "or more room in /dev/shm"
        )
    return how


def _add(session: Session, how: str) -> Centre:
    """Train with a centre that only adds, and return it."""
    (master, *workers), transport, theta = session.members, session.transport, session.state.theta
    options, link = session.config.algorithm, MasterLink(session, session.members[0])
    session.counters.numbered = False
    number = workers.index(transport.rank) if transport.rank in workers else -1
    if session.follows:
        session.state.local.clear()  # the leader has the team's vectors
    worker = AddingWorker(session, link, number, workers) if number >= 0 else None
    queue, first, claimed = take_up(session, worker)
    source = Source(queue, session.schedule, options.period, options.samples_of_chunks)
    centre: Centre
    if how != "messages":  # where nobody computes at the centre, one-sided access on one node is shared memory
        ranks = session.members if options.sharded else [master]
        centre = WindowCentre(transport, ranks, theta.size, theta.dtype, source, number)
        centre.put(theta)
    elif session.follows:
        centre = Centre()  # not used: a follower talks to its leader only
    elif worker is None:
        centre = ServingCentre(transport, workers, theta, source, session.device, claimed, session.goes_on)
        centre.put(theta)
    else:
        centre = AskingCentre(transport, link, theta, source, number, session.device)
    if worker is not None:
        worker.run(centre, first)
        release(session)
    elif session.follows:
        session.state.to_device(session.device.to_device)
        follow(session)
    else:
        AddingMaster(session, centre, workers, queue).serve()
    return centre


def _merge(session: Session, how: str) -> Centre:
    """Train with a centre that a master merges gradients into, and return it."""
    (master, *workers), transport, state = session.members, session.transport, session.state
    if transport.rank == master:
        state.to_device(session.device.to_device)
    memory = open_memory(transport, how, state.theta.size, state.theta.dtype, master, session.device)
    if transport.rank != master:
        transport.barrier("the start")
        centre = MergedCentre(session, memory, MasterLink(session, master))
        MergingWorker(session, centre).train()
        return centre
    serving = MergingCentre(session, memory)
    serving.put(state.theta)
    transport.barrier("the start")
    MergingMaster(session, serving, workers).serve()
    return serving
