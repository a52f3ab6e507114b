"""The parameter server: rank 0 applies what the workers send (Zhang 2013, Algorithm 2; Chan & Lane 2014, Algorithm 1).

A worker's round: pull Θ_j; take n minibatches, stepping its own θ; when `until_free`, say so and compute on until the
server grants; hand over the plain sum of its gradients with j; wait for the next work, which comes once Θ includes it.
"""

import numpy as np

from mpitrain.checkpoint import coordination
from mpitrain.errors import WireError
from mpitrain.protocols.centre import Centre, choose, open_centre
from mpitrain.protocols.messages import (
    TO_SERVED,
    TO_SERVER,
    Assignment,
    FromServer,
    Gradient,
    Grant,
    Hello,
    Pull,
    Pulled,
    Ready,
    Stop,
    StopRequest,
)
from mpitrain.protocols.server_updates import Updates
from mpitrain.protocols.server_vectors import Vectors
from mpitrain.protocols.server_worker import alone, work
from mpitrain.sampling.queue import Work
from mpitrain.training.context import Session
from mpitrain.training.trainer import Trainer

IDLE_LOOKS = 50  # of a server for which there is nothing to do


def run(session: Session) -> None:
    """Train until all samples are served or a stop is asked for. Collective over all members."""
    master, *workers = session.members
    transport, state = session.transport, session.state
    if transport.rank == master:
        state.to_device(session.device)
    if not workers:
        alone(session)
        return
    vectors = transport.local_size * state.theta.nbytes  # Θ, and every worker's gradient
    how = choose(transport, session.config.run.exchange, session.device.direct, vectors)
    session.say_exchange(how)
    centre = open_centre(transport, how, state.theta.size, state.theta.dtype, master, session.device)
    if transport.rank == master:
        _lay_out(centre, session)
    transport.barrier("the start")
    if transport.rank == master:
        Server(session, centre, workers).serve()
    else:
        work(session, centre, master, workers.index(transport.rank))
    transport.flush()
    transport.barrier("the end")
    if state.theta is centre.theta:
        state.theta = centre.theta.copy()
    centre.close()


def _lay_out(centre: Centre, session: Session) -> None:
    """Show Θ where workers read it. It is updated there, unless a GPU keeps it and shows a copy in host memory."""
    state = session.state
    with centre.writing(state.index):
        if type(centre.theta) is not type(state.theta):
            session.device.download(state.theta, centre.theta)
            return
        np.copyto(centre.theta, state.theta)
    state.theta = centre.theta


class Server(Trainer):
    """Rank 0's loop: takes messages, applies gradients, grants, dispenses samples, and evaluates when nothing waits."""

    def __init__(self, session: Session, centre: Centre, workers: list[int]) -> None:
        super().__init__(session)
        self.centre, self.workers = centre, workers
        self.transport, self.state, self.counters = session.transport, session.state, session.counters
        self.updates, self.vectors = Updates(session), Vectors(session, centre)
        self.options = self.updates.options
        self.in_order = self.options.order == "round-robin"
        self.assigned: dict[int, Work] = {}
        self.ready: list[int] = []
        self.gradients: dict[int, Gradient] = {}  # arrived, not yet applied
        self.hello: set[int] = set()
        self.pulling: int | None = None  # in round-robin order: who must have Θ before the next update
        self.stopped: set[int] = set()
        self._told = False
        self.turn = self._idle_looks = 0

    def serve(self) -> None:
        """Until every worker has been told to stop."""
        self.transport.until(lambda: len(self.stopped) == len(self.workers), "any worker", self.workers, self._turn)
        self.vectors.finish()

    def save(self) -> None:
        """The master alone; what workers hold is handed out again after a resume."""
        coordination.save_state(self.session, list(self.assigned.values()))

    def _turn(self) -> bool:
        """Do what is due; whether there was anything. After a turn without, little is done for some looks unless a
        message waits: the workers need the cores."""
        if self._idle_looks and not self.transport.waiting(TO_SERVER.tag):
            self._idle_looks -= 1
            return False
        busy = self.take_messages()
        busy |= self.apply_one()
        if not self.gradients:
            busy |= self.grant()
        busy |= self.greet()
        busy |= self.vectors.answer()
        busy |= self.session.monitor.turn(self, punctual=self.in_order)
        self.transport.heartbeat(busy)
        self._idle_looks = 0 if busy or self.vectors.asked else IDLE_LOOKS
        return busy

    # ---- what arrives

    def take_messages(self) -> bool:
        """Sort the waiting messages by what they ask."""
        taken = False
        while (arrived := TO_SERVER.poll(self.transport)) is not None:
            sender, envelope = arrived
            if sender not in self.workers:
                raise WireError(f"rank {sender} is no worker of this server")
            self.session.stop.flag |= envelope.stopping
            self.counters.exchanged(sender, envelope.traffic)
            taken = True
            match envelope.message:
                case Hello():
                    self.hello.add(sender)
                case Ready():
                    self.ready.append(sender)
                case Gradient() as gradient:
                    self.gradients[sender] = gradient
                case Pull():
                    self.vectors.asked.append(sender)
                case Pulled():
                    self.pulling = None if self.pulling == sender else self.pulling
                case StopRequest():
                    pass  # the envelope says so
        return taken

    # ---- what is done about it

    def apply_one(self) -> bool:
        """Apply the next gradient: the oldest, or in round-robin order the one whose turn it is."""
        if not self.gradients or self.pulling is not None or (self.in_order and self._missing()):
            return False
        worker = self._whose_turn() if self.in_order else next(iter(self.gradients))
        if worker is None or worker not in self.gradients:
            return False
        began = self.session.clock()
        told = self.gradients.pop(worker)
        self._check(told, worker)
        gradient = self.vectors.gradient(worker, told)
        if accepted := self.updates.accepts(gradient, told, worker):
            with self.centre.writing(self.state.index + 1):
                self.updates.apply(gradient, told, worker)
                self.vectors.show()
        given = self.assigned.pop(worker)
        self.state.queue.give_back(given.rest(told.work.count))
        self.counters.trained(*(told.work.count, told.loss) if accepted else (0, 0.0), self.session.clock() - began)
        self._assign(worker)
        return True

    def grant(self) -> bool:
        """Tell those who wait with enough minibatches to hand over; everybody, once, when the end is wished for."""
        granted, self.ready = self.ready, []
        if self.session.stop.flag and not self._told:
            self._told, granted = True, self.workers
        for worker in granted:
            if worker in self.assigned and worker not in self.gradients:
                self._post(worker, Grant())
        return bool(granted)

    def greet(self) -> bool:
        """Give work to those who have none: at the start, and when their stage begins."""
        greeted = [
            worker
            for worker in self.workers
            if worker in self.hello and self._may_enter(worker) and not self._waits(worker)
        ]
        for worker in greeted[:1] if self.in_order else greeted:
            self.hello.discard(worker)
            self._assign(worker)
        return bool(greeted)

    def _may_enter(self, worker: int) -> bool:
        """In round-robin order the workers enter one by one, each once its forerunner has Θ."""
        missing = self._missing() if self.in_order else []
        return worker not in missing or (worker == missing[0] and self.pulling is None)

    def _missing(self) -> list[int]:
        """The workers of this stage that have no work although there is some."""
        if self.state.queue.exhausted or self.session.stop.flag:
            return []
        active = self.workers[: self.session.schedule.at(self.state.queue.position).workers]
        return [worker for worker in active if worker not in self.assigned and worker not in self.stopped]

    def _whose_turn(self) -> int | None:
        for step in range(len(self.workers)):
            worker = self.workers[(self.turn + step) % len(self.workers)]
            if worker in self.assigned:
                if worker in self.gradients:
                    self.turn = (self.turn + step + 1) % len(self.workers)
                return worker
        return None

    def _assign(self, worker: int) -> None:
        if self._waits(worker):
            self.hello.add(worker)
            return
        settings, work = self.session.schedule.at(self.state.queue.position), None
        if not self.session.stop.flag:
            left = self.session.schedule.until_change(self.state.queue.position)
            work = self.state.queue.next(settings.minibatch, self.options.most, left)
        if work is None:
            self.stopped.add(worker)
            self._post(worker, Stop())
            return
        self.assigned[worker] = work
        self._post(worker, Assignment(self.state.index, work, settings.learning_rate))
        if self.in_order:
            self.pulling = worker

    def _waits(self, worker: int) -> bool:
        """Whether a worker is to wait for its stage, or for ranges that others may give back."""
        if self._over() or self.session.stop.flag:
            return False
        active = self.session.schedule.at(self.state.queue.position).workers
        return self.state.queue.exhausted or (active is not None and self.workers.index(worker) >= active)

    def _over(self) -> bool:
        return self.state.queue.exhausted and not (self.assigned and self.options.computes_on)

    def _post(self, worker: int, message: FromServer) -> None:
        TO_SERVED.post(self.transport, worker, message)

    def _check(self, told: Gradient, worker: int) -> None:
        given, work = self.assigned.get(worker), told.work
        if given is None or (work.epoch, work.start) != (given.epoch, given.start) or work.count > given.count:
            raise WireError(f"rank {worker} sent a gradient over samples it was not given")
