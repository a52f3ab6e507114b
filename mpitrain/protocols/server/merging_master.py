"""The master of a centre that merges whole gradients (Zhang 2013, Algorithm 2; Chan & Lane 2014, Algorithm 1).

It hands samples out, applies what the workers push one after another, and evaluates when nothing waits. It knows what
every worker is working on, and therefore saves without asking them.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from mpitrain.errors import WireError
from mpitrain.protocols.messages import Assignment, Claim, FromWorker, Gradient, Grant, Pulled, Ready
from mpitrain.protocols.server.master import Master
from mpitrain.protocols.server.merged import MergingCentre
from mpitrain.protocols.server.updates import Updates
from mpitrain.sampling.queue import Work
from mpitrain.training.context import Session

LATEST = 4  # rounds of a worker that count: a master that is busy takes note of some of them late


class MergingMaster(Master):
    """Serves the workers. In round-robin order it merges gradients in the order of the workers, each after the worker
    before has read Θ."""

    centre: MergingCentre

    def __init__(self, session: Session, centre: MergingCentre, workers: list[int]) -> None:
        super().__init__(session, centre, workers)
        self.updates, self.options = Updates(session), session.config.algorithm
        self.punctual = self.in_order = self.options.in_order
        self.assigned: dict[int, Work] = {}
        self.stocks: dict[int, Work] = {}  # what is left of a worker's own chunks
        self.ready: set[int] = set()  # workers who compute on, and whose gradients can be had
        self.gradients: dict[int, Gradient] = {}  # arrived, not yet merged
        self.claims: set[int] = set()  # workers who want samples
        self.pulling: int | None = None  # in round-robin order: who must have Θ before the next update
        self.speeds = Speeds(self.options.given_speeds, session.clock, workers)
        self._next = 0  # in round-robin order: whose gradient comes next
        session.outstanding = self._outstanding

    def _outstanding(self) -> list[Work]:
        """What workers hold, which is handed out again after a resume."""
        return [*self.assigned.values(), *self.stocks.values()]

    def serve(self) -> None:
        super().serve()
        for work in self.stocks.values():  # of a training that was stopped
            self.state.queue.give_back(work)
        self.stocks.clear()

    # ---- what arrives

    def handle(self, sender: int, message: FromWorker) -> None:
        match message:
            case Claim():
                self.claims.add(sender)
            case Ready():
                self.ready.add(sender)
            case Gradient() as told:
                given, work = self.assigned.get(sender), told.work
                if given is None or replace(work, count=given.count) != given or not 0 < work.count <= given.count:
                    raise WireError(f"rank {sender} sent a gradient over samples it was not given")
                self.gradients[sender] = told
                self.ready.discard(sender)  # it came to its maximum: a grant would end its next round
                self.speeds.ended(sender, told.work.count)
            case Pulled():
                self.pulling = None if self.pulling == sender else self.pulling
            case _:
                super().handle(sender, message)

    # ---- what is done about it

    def work(self) -> bool:
        busy = self._merge_one()
        if not self.gradients:
            busy |= self._grant()
        return self._answer_claims() or busy

    def _merge_one(self) -> bool:
        """Merge the next gradient: the oldest, or in round-robin order the one whose turn it is."""
        if not self.gradients or self.pulling is not None or (self.in_order and self._missing()):
            return False
        worker = self._whose_turn() if self.in_order else next(iter(self.gradients))
        if worker is None:
            return False
        began = self.session.clock()
        told = self.gradients.pop(worker)
        gradient = self.centre.gradient(worker, told)
        if accepted := self.updates.accepts(gradient, told, worker):
            with self.centre.updating():
                self.updates.apply(gradient, told, worker)
        samples, loss = (told.work.count, told.loss) if accepted else (0, 0.0)
        self._take_back(worker, self.assigned.pop(worker).rest(samples))
        self.counters.trained(samples, loss, self.session.clock() - began)
        self._answer_claim(worker)
        return True

    def _grant(self) -> bool:
        """Tell those who have done enough minibatches to hand their gradients over."""
        granted, self.ready = self.ready, set()
        for worker in granted:
            self.tell(worker, Grant())
        return bool(granted)

    def _answer_claims(self) -> bool:
        """Give samples to those who want some: at the start, and when their stage begins."""
        if not self.claims:
            return False
        waiting = [worker for worker in self.workers if worker in self.claims and not self._waits(worker)]
        entering = [worker for worker in waiting if self._may_enter(worker)]
        for worker in entering[:1] if self.in_order else entering:
            self._answer_claim(worker)
        return bool(entering)

    def _answer_claim(self, worker: int) -> None:
        """Give a worker samples, unless it must wait for them; or let it go."""
        self.claims.add(worker)
        if self._waits(worker):
            return
        self.claims.discard(worker)
        queue, stock, work = self.state.queue, self.stocks.get(worker), None
        position = queue.position_at() if stock is None else stock.position(queue.samples)
        settings, left = self.session.schedule.at(position), self.session.schedule.until_change(position)
        if not self.session.stop.flag:
            work = self._next_work(worker, settings.minibatch, left)
        if work is not None:
            self.assigned[worker] = work
        self.tell(worker, Assignment(self.state.index, work, self.state.rate(settings.learning_rate)))
        if work is None:
            self.finished.add(worker)
            return
        self.updates.begins(worker)
        self.speeds.began(worker)
        if self.in_order:
            self.pulling = worker

    def _next_work(self, worker: int, minibatch: int, left: int) -> Work | None:
        """The next samples for a worker: from the queue, or with chunked sampling from chunks that it has to itself."""
        queue, most = self.state.queue, self.options.steps_of(*self.speeds.of(worker))
        if not self.options.samples_of_chunks:
            return queue.next(minibatch, most, left)
        stock = self.stocks.pop(worker, None) or queue.next_of_group(self.options.samples_of_chunks, left)
        if stock is None:
            return None
        work = replace(stock, count=min(stock.count, minibatch * most), minibatch=minibatch)
        self._take_back(worker, stock.rest(work.count))
        return work

    def _take_back(self, worker: int, rest: Work) -> None:
        """Keep for a worker what it has not used of its own chunks; other samples go back to the queue."""
        if not self.options.samples_of_chunks:
            self.state.queue.give_back(rest)
            return
        stock = self.stocks.pop(worker, None)  # begins where `rest` ends
        joined = replace(rest, count=rest.count + (stock.count if stock else 0))
        if joined.count:
            self.stocks[worker] = joined

    # ---- whose turn it is

    def _waits(self, worker: int) -> bool:
        """Whether a worker is to wait for its stage, or for samples that others may give back."""
        queue = self.state.queue
        if worker in self.stocks:
            return False
        over = queue.exhausted and not (self.assigned and self.options.computes_on)
        if over or self.session.stop.flag:
            return False
        active = self._active()
        if self.finished.issuperset(active):  # the others must do what is left
            active = self.workers
        return queue.exhausted or worker not in active

    def _active(self) -> list[int]:
        """The workers of this stage."""
        return self.workers[: self.session.schedule.at(self.state.queue.position_at()).workers]

    def _may_enter(self, worker: int) -> bool:
        """In round-robin order the workers enter one by one, each once the one before has Θ."""
        missing = self._missing() if self.in_order else []
        return worker not in missing or (worker == missing[0] and self.pulling is None)

    def _missing(self) -> list[int]:
        """The workers of this stage that have no samples although there are some."""
        if self.state.queue.exhausted or self.session.stop.flag:
            return []
        return [worker for worker in self._active() if worker not in self.assigned and worker not in self.finished]

    def _whose_turn(self) -> int | None:
        """The worker whose gradient comes next in round-robin order, if it has come."""
        turned = self.workers[self._next :] + self.workers[: self._next]
        worker = next((each for each in turned if each in self.assigned), None)
        if worker not in self.gradients:
            return None
        self._next = (self.workers.index(worker) + 1) % len(self.workers)
        return worker


class Speeds:
    """The speed of each worker: measured samples a second, or those `given`, repeated if there are more workers."""

    def __init__(self, given: Sequence[float], clock: Callable[[], float], workers: Sequence[int]) -> None:
        self._clock, self._began = clock, dict[int, float]()
        self._rounds = {worker: deque[float](maxlen=LATEST) for worker in workers}
        self._given = {worker: given[number % len(given)] for number, worker in enumerate(workers)} if given else {}

    def began(self, worker: int) -> None:
        """Note that a worker gets samples now."""
        self._began[worker] = self._clock()

    def ended(self, worker: int, samples: int) -> None:
        """Note that a worker has trained on `samples` samples since `began`."""
        if (seconds := self._clock() - self._began[worker]) > 0:
            self._rounds[worker].append(samples / seconds)

    def of(self, worker: int) -> tuple[float, float]:
        """The speeds of a worker and of the fastest; equal as long as that worker's speed is not known."""
        known = self._given or {each: max(rounds) for each, rounds in self._rounds.items() if rounds}
        fastest = max(known.values(), default=1.0)
        return known.get(worker, fastest), fastest
