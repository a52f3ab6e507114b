"""Asynchronous EASGD, EAMSGD, DOWNPOUR and ADMM (Zhang, Choromanska & LeCun 2015): messages and order.

A worker's period: take τ minibatches from the common queue; exchange with the centre x̃; take τ steps, during which
what it added to x̃ travels (elastic_worker.py; the arithmetic is in elastic_methods.py). Rank 0 counts, evaluates and
saves (elastic_master.py).
"""

import json
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from mpitrain.algorithms import Elastic
from mpitrain.checkpoint import coordination
from mpitrain.errors import BadInput
from mpitrain.mpi.agreement import agreed
from mpitrain.protocols.centre import choose
from mpitrain.protocols.elastic_centre import OwnCentre, WindowCentre
from mpitrain.protocols.elastic_master import Master
from mpitrain.protocols.elastic_messages import AskingCentre, ServingCentre
from mpitrain.protocols.elastic_worker import Worker
from mpitrain.protocols.messages import FromWorker, Report
from mpitrain.protocols.orders import Orders
from mpitrain.sampling.queue import Queue, Work
from mpitrain.training.context import Session
from mpitrain.training.trainer import Trainer


def run(session: Session) -> None:
    """Train until all samples are served or a stop is asked for. Collective over all members."""
    master, *workers = session.members
    warn(session, max(len(workers), 1))
    if not workers:
        _Alone(session).train()
        return
    transport, theta = session.transport, session.state.theta
    how = agreed(transport, lambda: _way(session), "the choice of the exchange")
    session.say_exchange(how)
    session.counters.unnumbered()
    number = workers.index(transport.rank) if transport.rank != master else -1
    orders = Orders(session, master)
    worker = Worker(session, orders, number, workers) if number >= 0 else None
    queue, first = take_up(session, worker)
    take = partial(queue.take, session.schedule)
    centre: Any
    if how == "one-sided":
        ranks = session.members if _options(session).centre == "sharded" else [master]
        centre = WindowCentre(transport, ranks, theta.size, theta.dtype, take)
        centre.put(theta)
    elif worker is None:
        centre = ServingCentre(transport, workers, theta, take, session.device)
        centre.put(theta)
    else:
        centre = AskingCentre(transport, orders, theta.size, take, session.device)
    if worker is None:
        Master(session, centre, workers, queue).serve()
    else:
        worker.train(centre, queue.end, first)
    transport.flush()
    transport.barrier("the end")
    if how == "one-sided":
        centre.close()


def _options(session: Session) -> Elastic:
    return cast(Elastic, session.config.algorithm)


def _way(session: Session) -> str:
    """ "one-sided" or "messages": on one node shared memory and one-sided access are the same thing."""
    sharded = _options(session).centre == "sharded"
    direct = session.device.direct and not sharded
    how = choose(session.transport, session.config.run.exchange, direct, session.state.theta.nbytes)
    if how == "messages" and sharded:
        raise BadInput(
            "algorithm.centre = 'sharded': needs one-sided access, which this MPI does not serve across these nodes, "
            "or more room in /dev/shm"
        )
    return "messages" if how == "messages" else "one-sided"


def warn(session: Session, workers: int) -> None:
    """Say what may not converge."""
    if session.transport.rank != session.members[0]:
        return
    settings = session.schedule.at(0)
    for line, numbers in session.config.algorithm.warnings(settings.learning_rate, settings.workers or workers):
        session.monitor.warn(line, **numbers)


def take_up(session: Session, worker: "Worker | None") -> tuple[Queue, int]:
    """The samples to train on and the worker whose turn is first, from a checkpoint of the same ranks or anew.

    With other ranks the workers restart at x̃, and what the old ones had not used comes first in the queue. Collective.
    """
    state, transport, master = session.state, session.transport, session.members[0]
    if transport.rank == master:
        state.local_numbers["again"] = []
    restored = coordination.restore(session)
    if worker is not None and restored:
        worker.restored()
    if restored:
        again = json.dumps(state.local_numbers.get("again", [])).encode()
        returned = json.loads(transport.broadcast(again, "the checkpoint", master))
        state.queue.returned = [Work(*row) for row in returned]
    turns = transport.gather_texts("" if worker is None else str(worker.turns), "the workers' turns")
    counts = [int(text) for text in turns if text]
    return state.queue, counts.index(min(counts))


class _Alone(Trainer):
    """The centre and its one worker in one process, and the line between them."""

    saving = False
    over = True

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.worker = Worker(session, self, 0, [session.members[0]])
        self.queue, _ = take_up(session, self.worker)
        theta = session.state.theta
        self.centre = OwnCentre(theta.size, theta.dtype, partial(self.queue.take, session.schedule), session.device)

    def train(self) -> None:
        """Until all samples are served or a stop is asked for."""
        self.centre.put(self.session.state.theta)
        self.worker.report_every = 0.0
        self.worker.train(self.centre, self.queue.end)
        self.refresh()

    def refresh(self) -> None:
        """Bring the state up to what x̃, the queue and the worker are now."""
        state, place = self.session.state, self.centre.place()
        self.centre.copy(state.theta)
        state.trained = self.session.counters.trained_all
        state.queue = self.queue.after(place)
        again = list(state.queue.returned)
        state.queue.returned += self.worker.unused()
        self.worker.note_numbers()
        state.local_numbers["again"] = [[w.epoch, w.start, w.count, w.minibatch] for w in again]

    def save(self) -> None:
        """With the worker's own vectors."""
        self.refresh()
        coordination.together(self.session, [])

    @property
    def stopping(self) -> bool:
        return self.session.stop.flag

    def look(self) -> bool:
        return False

    def until(self, condition: Callable[[], bool], what: str) -> None:
        assert condition(), what

    def tell(self, message: FromWorker) -> None:
        if isinstance(message, Report):
            self.session.counters.trained(message.samples, message.loss)
            self.session.counters.updated(count=message.exchanges)
            self.session.state.index += message.exchanges
            while self.session.monitor.turn(self):
                pass
