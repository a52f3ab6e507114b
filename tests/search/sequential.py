"""What a training must come to where the order of everything is fixed: one thing after another, in plain NumPy.

Equations are written anew from the papers, and ranks are entries of lists. Only gradients, the order of an epoch's
samples, the stages and pure functions of numbers are the program's; the first of them are tested against differences.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mpitrain import config as configuration
from mpitrain.algorithms import name_of
from mpitrain.compression.thresholds import UNIT, adapted, integer_step, round_threshold, unit_quantum
from mpitrain.data.sampler import chunked_indices, epoch_indices, independent_indices
from mpitrain.flat import Array
from mpitrain.models.model import Draws
from mpitrain.sampling.batch import Batch
from mpitrain.sampling.common_rate import CommonRate, PlateauState
from mpitrain.sampling.rng import stream
from mpitrain.sampling.rounds import rounds
from mpitrain.training.inputs import network_of
from mpitrain.training.parts import Shards

Vectors = dict[str, Array]


@dataclass(frozen=True, order=True)
class Piece:
    """Samples `begin` to `end` of the training: positions in the order of all epochs."""

    begin: int
    end: int

    @property
    def count(self) -> int:
        """How many they are."""
        return self.end - self.begin

    def share(self, part: int, parts: int) -> "Piece":
        """Those of one of `parts` ranks."""
        return Piece(self.begin + part * self.count // parts, self.begin + (part + 1) * self.count // parts)


@dataclass
class Start:
    """Where a server's training begins: at the start, or as a checkpoint has it."""

    vectors: Vectors = field(default_factory=dict)
    index: int = 0
    trained: int = 0
    position: int = 0
    again: list[Piece] = field(default_factory=list)
    rate: list[float] | None = None

    @property
    def head(self) -> int:
        """Where the samples lie that are given next."""
        return self.again[0].begin if self.again else self.position


class Straight:
    """A configuration's training on `ranks` ranks."""

    def __init__(self, keys: tuple[str, ...], ranks: int) -> None:
        config = configuration.load(None, list(keys))
        assert config.training.dtype == "float64"
        self.config, self.options, self.ranks = config, config.algorithm, ranks
        self.corpus = Shards(config).training(hold=True)
        self.network: Any = network_of(config, self.corpus.form, self.corpus.classes)
        self.schedule = config.schedule(self.corpus.samples)
        self.start = self.network.initial(config.initial_seed, np.float64)
        self.tied = False

    # ---- samples and gradients

    def next(self, position: int, most: int | None = None) -> Piece | None:
        """The minibatch at a position, of one epoch and one stage; of `most` samples instead of a minibatch's."""
        size, total = self.corpus.samples, self.schedule.total
        if position >= total:
            return None
        count = most or self.schedule.at(position).minibatch
        left = self.schedule.until_change(position)
        return Piece(position, position + min(count, size - position % size, left, total - position))

    def minibatches(self, piece: Piece, size: int) -> list[Piece]:
        """A piece cut up."""
        return [Piece(begin, min(begin + size, piece.end)) for begin in range(piece.begin, piece.end, size)]

    def batch(self, piece: Piece) -> Batch:
        """Its samples."""
        epoch, start = divmod(piece.begin, self.corpus.samples)
        seed, samples = self.config.training.seed, self.corpus.samples
        if self.options.independent:
            chosen = independent_indices(seed, epoch, start, piece.count, samples)
        else:
            chunks = self.options.chunked
            order = chunked_indices(seed, epoch, samples, *chunks) if chunks else epoch_indices(seed, epoch, samples)
            chosen = order[start : start + piece.count]
        out = Batch(np.empty((piece.count, *self.corpus.shape)), np.empty(piece.count, np.int32))
        return self.corpus.gather(chosen, out)

    def gradient(self, theta: Array, piece: Piece, whole: Piece | None = None) -> tuple[float, Array]:
        """The mean loss at θ and its gradient; the sum where rates are per sample."""
        g, first = np.empty_like(theta), whole or piece
        rng = stream(self.config.training.seed, "dropout", *divmod(first.begin, self.corpus.samples))
        share = None if whole is None else (piece.begin - whole.begin, whole.count)
        loss = float(self.network.loss_and_gradient(theta.copy(), g, self.batch(piece), Draws(rng, share)))
        return loss, g * piece.count if self.config.training.rate_per == "sample" else g

    def local(self, x: Array) -> "Local":
        """The local step of a rank that starts at x."""
        options, name = self.options, name_of(self.options)
        if options.chosen is not None:
            return Local(x, str(type(options.chosen).__struct_config__.tag), options.chosen)
        if name in ("msgd", "allreduce") and options.momentum:
            return Local(x, "nesterov" if options.nesterov else "momentum", options)
        if name in ("eamsgd", "eamsgd-sync", "admm") and options.delta:
            return Local(x, "nesterov", options)
        return Local(x, "sgd", options)

    # ---- one rank, or all together

    def together(self) -> Vectors:
        """θ ← θ + u(g over the whole minibatch); z beside it."""
        theta, position, t, z = self.start.copy(), 0, 0, self.start.copy()
        step, common = self.local(theta), Stagnation(self.options)  # a step moves θ
        while (piece := self._of_all(position)) is not None:
            if name_of(self.options) in ("averaged", "moving-average"):
                z += (theta - z) * (1 / (t + 1) if name_of(self.options) == "averaged" else self.options.average_rate)
            loss, g = self.gradient(step.at, piece)
            step.take(g, self.schedule.at(position).learning_rate / common.divisor, t)
            common.observe(loss)
            position, t = piece.end, t + 1
        return {"theta": theta, "average": z}

    def _of_all(self, position: int) -> Piece | None:
        size = self.schedule.at(position).minibatch
        return self.next(position, self.options.samples_of_step(size, self.ranks))

    def hybrid(self) -> Vectors:
        """inc ← μ·inc − ωεw − ε⟨∂E/∂w⟩; w ← w + inc, biases at twice the rate (Krizhevsky 2014). With sub-batches, the
        fully connected part is updated after each round, whose gradients belong to the weights of its forward pass."""
        options, layout, split = self.options, self.network.layout, self.network.slices[self.network.split].start
        w, position = self.start.copy(), 0
        inc = np.zeros_like(w)
        decays = np.zeros_like(w)
        for p in layout.parameters:
            decays[layout.slices[p.name]] = p.decay
        convolutions, connected = slice(0, split), slice(split, w.size)
        assert options.scaling == "linear" and not self.config.model.l2

        def update(part: slice, g: Array, eta: float, batch: int) -> None:
            epsilon = eta * batch / options.base_batch * np.where(decays[part] > 0, 1.0, options.bias_rate)
            inc[part] = options.momentum * inc[part] - epsilon * (options.weight_decay * decays[part] * w[part] + g)
            w[part] += inc[part]

        while (piece := self._of_all(position)) is not None:
            eta, g = self.schedule.at(position).learning_rate, np.zeros_like(w)
            if options.fc_batch == "full":
                update(slice(0, w.size), self.gradient(w, piece)[1], eta, piece.count)
            else:
                for turn in rounds(options.scheme, self.ranks, piece.count, options.group):
                    own = np.zeros_like(w)
                    for each in turn.pieces:
                        part = Piece(piece.begin + each.start, piece.begin + each.stop)
                        own += self.gradient(w, part)[1] * part.count
                    g += own
                    update(connected, own[connected] / turn.examples, eta, turn.examples)
                update(convolutions, g[convolutions] / piece.count, eta, piece.count)
            position = piece.end
        return {"theta": w}

    def elastic_together(self) -> Vectors:
        """Equations 5 to 7 of Zhang, Choromanska & LeCun 2015: old values on the right."""
        centre, workers = self.start.copy(), [self.local(x) for x in self._starts(self.ranks)]
        position, t, common = 0, 0, Stagnation(self.options)
        while (piece := self._of_all(position)) is not None:
            eta, losses = self.schedule.at(position).learning_rate / common.divisor, 0.0
            eta /= (1 + self.options.rate_decay * t) ** 0.5
            points = [worker.at.copy() for worker in workers]
            if t % self.options.tau == 0:
                alpha = self.options.moving_rate(eta, self.ranks)
                mean = np.mean([worker.x for worker in workers], axis=0)
                for worker in workers:
                    worker.x -= alpha * (worker.x - centre)
                centre = (1 - self.ranks * alpha) * centre + self.ranks * alpha * mean
            for number, worker in enumerate(workers):
                share = piece.share(number, self.ranks)
                loss, g = self.gradient(points[number], share) if share.count else (0.0, np.zeros_like(centre))
                losses += loss * share.count
                worker.take(g, eta, t)
            common.observe(losses / piece.count)
            position, t = piece.end, t + 1
        return {"theta": centre}

    def block_momentum(self) -> Vectors:
        """BMUF, SlowMo, DiLoCo, local SGD. The last average, after fewer than τ steps, has as much less momentum."""
        options, theta, v = self.options, self.start.copy(), np.zeros_like(self.start)
        whole = 1 - 1 / self.ranks if options.momentum is None else options.momentum
        ahead = whole * options.rate if options.look_ahead == "start" else 0.0
        workers = [self.local(theta.copy()) for _ in range(self.ranks)]
        errors = np.zeros((self.ranks, theta.size))
        position = t = since = 0
        eta = 0.0

        def average(steps: int) -> None:
            nonlocal theta, v
            mu, unit = whole * steps / options.tau, eta if options.unit == "learning-rate" else 1.0
            ends = [worker.x for worker in workers]
            if options.top_k:
                for number, end in enumerate(ends):
                    errors[number] = options.error_decay * errors[number] + theta - end
                    sent = self.largest(errors[number], 1.0)
                    errors[number] -= sent
                    ends[number] = theta - sent
            delta = (np.mean(ends, axis=0) - (theta + ahead * v)) / unit
            v = mu * v + delta
            if options.look_ahead == "step":
                theta = theta + options.rate * (delta + mu * v)
            else:
                theta = theta + options.rate * unit * v
            buffers = [np.mean([w.buffers[name] for w in workers], axis=0) for name in workers[0].buffers]
            for worker in workers:
                worker.x[:] = theta + ahead * v
                for name, mean in zip(worker.buffers, buffers, strict=True):
                    if options.buffers != "kept":
                        worker.buffers[name][:] = mean if options.buffers == "averaged" else 0

        while (piece := self._of_all(position)) is not None:
            eta = self.schedule.at(position).learning_rate
            for number, worker in enumerate(workers):
                share = piece.share(number, self.ranks)
                g = self.gradient(worker.at, share)[1] if share.count else np.zeros_like(theta)
                worker.take(g, eta, t % options.tau if options.buffers == "reset" else t)
            t, since, position = t + 1, since + 1, piece.end
            if t % options.tau == 0:
                average(options.tau)
                since = 0
        if since:
            average(since)
        return {} if self.tied else {"theta": theta, "velocity": v}

    def largest(self, e: Array, rate: float) -> Array:
        """What SparseLoCo takes out of e, an element after the other: of each chunk of a tensor the largest, as the
        means of those that are of the same size, in `bits` − 1 bits. Of
        some that are equally large anybody may choose any: then no comparison is possible (`tied`)."""
        options, sent, unit = self.options, np.zeros_like(e), unit_quantum(rate)
        for tensor in self.network.layout.slices.values():
            chosen: list[int] = []
            for begin in range(tensor.start, tensor.stop, options.chunk):
                chunk = list(range(begin, min(begin + options.chunk, tensor.stop)))
                most = options.top_k if len(chunk) == options.chunk else options.top_k * len(chunk) / options.chunk
                chunk.sort(key=lambda i: -abs(e[i]))
                largest, rest = chunk[: max(round(most), 1)], chunk[max(round(most), 1) :]
                chosen += [i for i in largest if abs(e[i]) > unit / 2]
                last = abs(e[largest[-1]])
                self.tied |= bool(rest) and last > unit / 2 and last - abs(e[rest[0]]) <= 1e-6 * last
            root, width, levels = np.sqrt(np.mean(e[chosen] ** 2)) if chosen else 0.0, 2 ** (options.bits - 1), {}
            for i in chosen:
                code = i if options.bits == 32 else min(max(np.ceil(abs(e[i]) * width / (3 * root)), 1), width)
                levels.setdefault(code, []).append(i)
            for alike in levels.values():
                sent[alike] = np.sign(e[alike]) * max(round(np.mean(np.abs(e[alike])) / unit), 1) * unit
        return sent

    # ---- a server

    def server(self, start: Start | None = None) -> Vectors:
        """Workers in turn: merge one's gradient, give it the next samples and the new Θ, and so on.

        Chan & Lane 2014, Algorithm 1; Zhang 2013 is μ = 0 and β = 1; MDOWNPOUR and the averaging DOWNPOURs likewise.
        """
        now, options, workers = start or Start(), self.options, max(self.ranks - 1, 1)
        theta = now.vectors.get("theta", self.start).copy()
        v, z = (now.vectors.get(name, other).copy() for name, other in (("velocity", 0 * theta), ("average", theta)))
        squares, own_v = now.vectors.get("squares", 0 * theta).copy(), [v / workers for _ in range(workers)]
        highest = max(each.learning_rate for each in self.schedule.all)
        moved, block = now.vectors.get("moved", 0 * theta).copy(), name_of(options) == "block-momentum"
        told = (options.given_speeds or (1.0,)) if block else ()  # where they are measured, of the only worker
        speeds = [told[w % len(told)] for w in range(workers)] if told else []
        each = [self.local(0 * theta) for _ in range(workers)]
        held: dict[int, tuple[Array, int, Piece, int, float]] = {}
        stock: dict[int, Piece] = {}
        gone: set[int] = set()
        turn, common = 0, Stagnation(options, now.rate)

        def give(worker: int) -> None:
            settings = self.schedule.at(stock[worker].begin if worker in stock else now.head)
            steps = max(1, int(options.tau * speeds[worker] / max(speeds) + 1e-9)) if block else options.steps_of(1, 1)
            most = settings.minibatch * steps
            if options.samples_of_chunks:
                given = stock.pop(worker, None) or self._hand_out(now, self._left_of_group(now), now.position)
                if given is not None and given.count > most:
                    stock[worker] = Piece(given.begin + most, given.end)
                    given = Piece(given.begin, given.begin + most)
            else:
                given = self._hand_out(now, most, now.position)
            if given is None:
                gone.add(worker)
            else:
                own = settings.learning_rate / common.divisor
                held[worker] = theta.copy(), now.index, given, settings.minibatch, own

        def enter(worker: int) -> None:
            active = self.schedule.at(now.head).workers or workers
            if worker in stock or worker < active or not (now.again or now.position < self.schedule.total):
                give(worker)

        while True:
            for worker in range(workers):  # a stage may end while they enter
                active = self.schedule.at(now.head).workers or workers
                missing = worker < active and worker not in held and worker not in gone
                if missing and (now.again or now.position < self.schedule.total):
                    give(worker)
            if not held:
                return {"theta": theta, "velocity": v, "average": z, "squares": squares, "moved": moved}
            worker = next(w % workers for w in range(turn, turn + workers) if w % workers in held)
            turn = worker + 1
            seen, j, piece, minibatch, own = held.pop(worker)
            pulled, total, summed, parts = seen.copy(), np.zeros_like(theta), 0.0, self.minibatches(piece, minibatch)
            local = each[worker]
            local.x[:] = seen
            if block and options.buffers == "reset":
                local.restart(seen)
                local.t = 0
            for part in parts:
                loss, g = self.gradient(local.at if block else pulled, part)
                summed += loss * part.count
                total += g
                pulled -= own * g
                if block:
                    local.take(g, own, local.t)
                    local.t += 1
            at = self.schedule.at(now.trained)
            eta, stale = at.learning_rate / common.divisor, now.index - j
            if options.too_stale(stale):
                now.again = sorted([*now.again, piece])
                enter(worker)
                continue
            common.observe(summed / piece.count * len(parts), len(parts))
            match name_of(options):
                case "block-momentum":
                    n = min(at.workers or workers, workers)
                    share = piece.count / (options.tau * minibatch) if options.weights == "samples" else 1.0
                    move = -options.rate / n * share * (seen - local.x)
                    theta, moved = theta + move, moved + move
                    if (now.index + 1) % n == 0:
                        theta = theta + (v if options.look_ahead == "none" else 0)
                        v = (1 - 1 / n if options.momentum is None else options.momentum) * (v + moved)
                        theta = theta + (v if options.look_ahead != "none" else 0)
                        moved = 0 * moved
                case "asgd" if options.staleness == "dana":
                    before = own_v[worker]
                    own_v[worker] = options.momentum * before - eta * total
                    model = theta - options.momentum * v + own_v[worker]
                    v = v + own_v[worker] - before
                    theta = model + options.momentum * v
                case "asgd":
                    mu = options.momentum if at.momentum is None else at.momentum
                    weight = options.gradient_decay**stale if options.staleness == "decay" else 1.0
                    if options.staleness == "inverse":
                        weight = 1 / (1 + stale)
                    if options.staleness == "gap-aware":
                        squares = 0.999 * squares + 0.001 * total**2
                        usual = highest * np.sqrt(squares / (1 - 0.999 ** (now.index + 1)))
                        gap = np.abs(theta - seen)
                        total = total * np.divide(usual, usual + gap, out=np.zeros_like(gap), where=usual > 0)
                    v = mu * v - weight * eta * total
                    theta = theta + v
                case "mdownpour":
                    v = options.delta * v - eta * total
                    theta = theta - eta * total + options.delta * v
                case name:
                    z = z + (theta - z) * (1 / (now.index + 1) if name == "adownpour" else options.average_rate)
                    theta = theta - eta * total
            now.index, now.trained = now.index + 1, now.trained + piece.count
            enter(worker)

    def _hand_out(self, now: Start, most: int, position: int) -> Piece | None:
        """The samples at the queue's head: those that were handed out before come first."""
        if now.again:
            first = now.again[0]
            given = Piece(first.begin, min(first.begin + most, first.end))
            now.again[:1] = [Piece(given.end, first.end)] if given.end < first.end else []
            return given
        given = self.next(position, most)
        now.position = position if given is None else given.end
        return given

    def _left_of_group(self, now: Start) -> int:
        start = now.head % self.corpus.samples
        group = self.options.samples_of_chunks
        return int(min(group - start % group, self.corpus.samples - start))

    # ---- a centre that only adds

    def centre(self) -> Vectors:
        """Workers in turn: the exchange of Algorithms 1 and 2 (EASGD, EAMSGD), DOWNPOUR's, or ADMM's; then τ steps,
        which concern nobody else, so that they are taken at once."""
        workers = max(self.ranks - 1, 1)
        centre = self.start.copy()
        kind = {"downpour": Downpour, "admm": Admm}.get(name_of(self.options), Elastic)
        each = [kind(self, x, centre, workers) for x in self._starts(workers)]
        position, over, common = 0, False, Stagnation(self.options)
        while not over:
            for number, worker in enumerate(each):
                works, after = self._claim(position, number, len(worker.stock))
                worker.stock += works
                period, worker.stock = worker.stock[: self.options.tau], worker.stock[self.options.tau :]
                position = after
                if not period and position >= self.schedule.total:
                    over = not any(other.stock for other in each)
                    if over:
                        break
                    continue
                if not period:
                    worker.leave(centre)
                    worker.idle = True
                    continue
                active = min(self.schedule.at(period[0].begin).workers or workers, workers)
                worker.period(period, centre, active, common)
        for worker in each:
            worker.leave(centre)
        return {"theta": centre}

    def _claim(self, position: int, worker: int, has: int) -> tuple[list[Piece], int]:
        """The minibatches that a worker takes for itself, with chunks as many as these hold."""
        works = list[Piece]()
        active = self.schedule.at(position).workers
        inside, group, samples = False, self.options.samples_of_chunks, self.corpus.samples
        while (inside or len(works) < self.options.tau - has) and (active is None or worker < active):
            piece = self.next(position)
            if piece is None:
                break
            if group:
                start = piece.begin % samples
                left = min(group - start % group, samples - start)
                inside = piece.count < left
                piece = Piece(piece.begin, piece.begin + min(piece.count, left))
            works.append(piece)
            position = piece.end
        return works, position

    def _starts(self, workers: int) -> list[Array]:
        """Where workers start: at the centre, or each from a seed of its own."""
        if not self.options.starts_apart:
            return [self.start.copy() for _ in range(workers)]
        seed = self.config.initial_seed
        return [self.network.initial(seed + 1 + number, np.float64) for number in range(workers)]

    # ---- peers

    def peers(self) -> Vectors:
        """Strom 2015, §2.6, round by round: what exceeds a peer's threshold leaves its residual, and moves the integer
        weights of all."""
        options, size, team = self.options, self.start.size, self.config.run.team
        members = self.ranks // (2 if team == "node" else int(team))
        counts = np.rint(self.start / UNIT).astype(np.int64)
        residuals, levels = np.zeros((members, size)), [options.threshold] * members
        velocities, summed = np.zeros((members, size)), self.config.training.rate_per == "sample"
        position = 0
        while position < self.schedule.total:
            weights, moves = counts * UNIT, np.zeros(size, np.int64)
            workers, pieces = self.schedule.at(position).workers or members, list[tuple[Piece, float]]()
            while len(pieces) < workers * options.tau and (piece := self.next(position)) is not None:
                now = self.schedule.at(position)
                rate = options.rate(self.config.training.rate_per, now.learning_rate, now.minibatch)
                pieces.append((piece, rate))
                position = piece.end
            for peer in range(workers):
                x, mine, residual = weights.copy(), pieces[peer::workers], residuals[peer]
                if not mine:
                    break
                residual *= options.error_decay
                for piece, rate in mine:
                    u = self.gradient(x, piece)[1] * (1 if summed else piece.count)
                    x -= rate * u
                if options.tau > 1:
                    u = (weights - x) / rate
                elif options.momentum:
                    u = velocities[peer] = options.momentum * velocities[peer] + u
                residual += u
                rate /= workers if options.combine == "mean" else 1
                sent, units = self.entries(residual, levels, peer, rate)
                residual -= sent
                velocities[peer][sent != 0] = 0
                if options.clip:
                    limit = options.clip * round_threshold(levels[peer])
                    np.clip(residual, -limit, limit, out=residual)
                moves -= units
                if options.target_density:
                    share = float((sent != 0).sum()) / size
                    epoch, start = divmod(mine[-1][0].begin, self.corpus.samples)
                    target = options.density_at(epoch + start / self.corpus.samples)
                    levels[peer] = adapted(levels[peer], share, target, rate)
            counts += moves
        return {} if self.tied else {"theta": counts * UNIT}

    def entries(self, residual: Array, levels: list[float], peer: int, rate: float) -> tuple[Array, Array]:
        """What leaves a residual, and by how many units it moves the weights."""
        options, threshold = self.options, round_threshold(levels[peer])
        if options.top_k:
            sent = self.largest(residual, rate)
            return sent, np.rint(sent / unit_quantum(rate)).astype(np.int64)
        size_of, sign = np.abs(residual), np.sign(residual)
        unit, step = (unit_quantum(rate), 1) if options.bits == 32 else (threshold, integer_step(rate, threshold))
        level = np.rint(size_of / unit) if options.bits == 32 else np.floor(size_of / unit)
        level = sign * np.clip(level, 1, min(2 ** (options.bits - 1), 2**31 - 1)) * (size_of > threshold)
        return level * unit, level.astype(np.int64) * step


class Local:
    """A rank's x and its optimizer: u from a gradient at `at`, and x ← x + u."""

    def __init__(self, x: Array, kind: str, options: Any) -> None:
        self.x, self.kind, self.options, self.t = x, kind, options, 0
        names = {"sgd": (), "momentum": ("v",), "nesterov": ("v",), "adamw": ("m", "v")}[kind]
        self.buffers = {name: np.zeros_like(x) for name in names}
        self.mu = getattr(options, "delta", None) or getattr(options, "momentum", 0.0)

    @property
    def at(self) -> Array:
        """Where the gradient is taken: ahead, by Nesterov."""
        return self.x + self.mu * self.buffers["v"] if self.kind == "nesterov" else self.x

    def take(self, g: Array, eta: float, t: int) -> Array:
        """x ← x + u; u. `t` steps were taken before."""
        u = self.increment(g, eta, t)
        self.x += u
        return u

    def increment(self, g: Array, eta: float, t: int) -> Array:
        """−ηg; v ← μv − ηg; or AdamW's −η(m̂/(√v̂ + ε) + λx)."""
        if self.kind == "sgd":
            return -eta * g
        if self.kind != "adamw":
            self.buffers["v"][:] = self.mu * self.buffers["v"] - eta * g
            return self.buffers["v"].copy()
        o, m, v = self.options, self.buffers["m"], self.buffers["v"]
        m[:] = o.beta1 * m + (1 - o.beta1) * g
        v[:] = o.beta2 * v + (1 - o.beta2) * g**2
        root = np.sqrt(v / (1 - o.beta2 ** (t + 1)))
        return -eta * (m / (1 - o.beta1 ** (t + 1)) / (root + o.epsilon) + o.weight_decay * self.x)

    def restart(self, x: Array) -> None:
        """At x, as at the start of a training."""
        self.x[:] = x
        for buffer in self.buffers.values():
            buffer[:] = 0


class Stagnation(CommonRate):
    """What all rates are divided by, from the losses of all workers."""

    def __init__(self, options: Any, past: list[float] | None = None) -> None:
        super().__init__(getattr(options, "plateau", 0))
        if past:
            self.state = PlateauState(*past)


class Elastic:
    """A worker of EASGD or EAMSGD; its method for the others to change."""

    def __init__(self, straight: Straight, x: Array, centre: Array, workers: int) -> None:
        self.straight, self.options, self.workers = straight, straight.options, workers
        self.local, self.losses, self.divisor = straight.local(x), list[float](), 1.0
        self.stock, self.idle, self.t, self.began = list[Piece](), False, 0, 0

    def period(self, pieces: list[Piece], centre: Array, active: int, common: Stagnation) -> None:
        """An exchange, by which a worker that was idle starts anew; and a step for each minibatch, whose losses concern
        the common rate from its next turn on."""
        common.observe(sum(self.losses), len(self.losses))
        self.divisor, self.losses = common.divisor, []
        if self.idle:
            self.restart(centre)
            self.idle, self.began = False, self.t
            d = np.zeros_like(centre)
        else:
            d = self.exchange(centre, self.eta(pieces[0]), active)
        for piece in pieces:
            loss, g = self.straight.gradient(self.local.at, piece)
            self.step(g, self.eta(piece), d)
            d = np.zeros_like(centre)
            self.t += 1
            self.losses.append(loss)
        self.over(centre)

    def eta(self, piece: Piece) -> float:
        """This worker's own rate, which falls with its clock."""
        eta = self.straight.schedule.at(piece.begin).learning_rate / self.divisor
        return float(eta / (1 + self.options.rate_decay * self.t) ** 0.5)

    def restart(self, centre: Array) -> None:
        """From x̃."""
        self.local.restart(centre)

    def exchange(self, centre: Array, eta: float, active: int) -> Array:
        """d ← α(x − x̃); x̃ ← x̃ + d. What x loses: with its next step, whose gradient is taken before."""
        d = self.options.moving_rate(eta, active) * (self.local.x - centre)
        centre += d
        return np.asarray(d)

    def step(self, g: Array, eta: float, d: Array) -> None:
        """x ← (x − d) + u."""
        self.local.x -= d
        self.local.take(g, eta, self.t - self.began)

    def over(self, centre: Array) -> None:
        """The turn's end, in an order that has the steps in it."""

    def leave(self, centre: Array) -> None:
        """The end of the training, or of this worker's part in it for now."""


class Downpour(Elastic):
    """x̃ ← x̃ + v; x ← x̃; v ← 0; then x ← x + u, v ← v + u."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.v = np.zeros_like(self.local.x)

    def restart(self, centre: Array) -> None:
        super().restart(centre)
        self.v[:] = 0

    def exchange(self, centre: Array, eta: float, active: int) -> Array:
        centre += self.v
        self.local.x[:] = centre
        self.v[:] = 0
        return np.zeros_like(centre)

    def step(self, g: Array, eta: float, d: Array) -> None:
        self.v += self.local.take(g, eta, self.t - self.began)

    def leave(self, centre: Array) -> None:
        centre += self.v
        self.v[:] = 0


class Admm(Elastic):
    """Equations 9 to 11, with λ/ρ for λ: one worker's whole turn, and what it changes of the mean of all xⁱ − λⁱ."""

    def __init__(self, straight: Straight, x: Array, centre: Array, workers: int) -> None:
        super().__init__(straight, x, centre, workers)
        self.lam, self.part, self.frozen = np.zeros_like(x), centre.copy(), centre

    def exchange(self, centre: Array, eta: float, active: int) -> Array:
        self.frozen = centre.copy()
        self.lam -= self.local.x - centre
        return np.zeros_like(centre)

    def step(self, g: Array, eta: float, d: Array) -> None:
        u, rho = self.local.increment(g, eta, self.t - self.began), self.options.rho
        self.local.x[:] = (self.local.x + u + eta * rho * (self.lam + self.frozen)) / (1 + eta * rho)

    def over(self, centre: Array) -> None:
        centre += (self.local.x - self.lam - self.part) / self.workers
        self.part = self.local.x - self.lam


#: The protocol of each algorithm, one thing after another.
WAYS: dict[str, Callable[[Straight], Vectors]] = {
    **dict.fromkeys(("allreduce", "sgd", "msgd", "averaged", "moving-average"), Straight.together),
    **dict.fromkeys(("asgd", "mdownpour", "adownpour", "mvadownpour"), Straight.server),
    **dict.fromkeys(("easgd", "eamsgd", "downpour", "admm"), Straight.centre),
    **dict.fromkeys(("easgd-sync", "eamsgd-sync"), Straight.elastic_together),
    "hybrid": Straight.hybrid,
    "block-momentum": Straight.block_momentum,
    "sparse-delta": Straight.peers,
}


def expected(keys: tuple[str, ...], ranks: int, start: Start | None = None) -> Vectors:
    """The vectors of the last checkpoint of a training with these keys; a server's, from this start on."""
    straight = Straight(keys, ranks)
    if start is None and straight.options.protocol == "server" and name_of(straight.options) == "block-momentum":
        return straight.server()
    return straight.server(start) if start is not None else WAYS[name_of(straight.options)](straight)
