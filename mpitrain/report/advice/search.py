"""The search: trials without gradients, then rungs of ever longer trainings, then the best candidates with more seeds.

A bracket has BRACKET candidates: in the first one, each algorithm's defaults and points of its space; in later ones,
half are neighbours of the best so far. What is tried follows from the seed and from the outcomes of earlier trials;
time only decides how far the search comes.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count, islice, product
from math import inf

from mpitrain.errors import BadInput, TrainingFailed, some
from mpitrain.report.advice.candidates import Candidate, Candidates
from mpitrain.report.advice.halving import ETA, Curve, least, ranked, rungs
from mpitrain.report.advice.trials import Outcome, Trial, Trials
from mpitrain.report.html import duration
from mpitrain.signals import Interrupted

BRACKET, FINALISTS, SEEDS = 27, 3, 3
PATIENCE = 2  # brackets in a row that find nothing better, after which no more follow
POINTS = 12  # evaluations of the longest trainings
CARRIED = 4.0  # a candidate that computes this many times less of its time than the best falls out without a training
LONGEST = 2.0  # most samples of a training, as a multiple of the configuration's
EASIER = 0.05  # the target if none is given is this part of the configuration's own error above it: seeds differ
LOOK, RUNG, FINALS = 1.0, 2.0, 3.0  # weights of the trials without gradients, a rung and the finals in the time left
LATE = "the budget was spent"


@dataclass(eq=False)
class Tried:
    """What became of a candidate: `carried`, without gradients; `outcomes`, by seed, of its longest trainings, which
    had `share` of the time and `epochs`; and why it fell out ("" if it did not)."""

    candidate: Candidate
    carried: Outcome | None = None
    share: float = 0.0
    epochs: float = 0.0
    outcomes: list[Outcome] = field(default_factory=list)
    fell: str = ""

    @property
    def curve(self) -> Curve:
        """The curve of the first seed."""
        return self.outcomes[0].curve


@dataclass
class Question:
    """What is asked: the time to `target`, or the least error after `time`; if both are None, the time to the error of
    the configuration itself. A whole training lasts `seconds`, of which the budget allows the share `whole`."""

    target: float | None
    time: float | None
    seconds: float = 0.0
    whole: float = 1.0


@dataclass
class Search:
    """Carries out the search in `budget` seconds; `tried` holds what it found. `phantoms`: whether trials without
    gradients can be made; `say` prints a line that stays, `show` one that tells how far the search is."""

    question: Question
    candidates: Candidates
    trials: Trials
    budget: float
    phantoms: bool
    say: Callable[[str], None]
    show: Callable[[str], None]

    def __post_init__(self) -> None:
        self.tried, self._end = [Tried(self.candidates.first)], time.monotonic() + self.budget
        training = self.candidates.first.config.training
        self._epochs, self._seed, self._samples = training.epochs, training.seed, 0.0

    @property
    def left(self) -> float:
        """Seconds of the budget that are left."""
        return self._end - time.monotonic() - self.trials.earlier / self.trials.processes

    @property
    def best(self) -> list[Tried]:
        """The candidates that trained for the longest, from the best to the worst by the first seed."""
        asked = self.question
        curves = {each: each.curve for each in self.tried if each.outcomes and each.share >= asked.whole}
        return ranked(curves, asked.target, asked.seconds * asked.whole)

    def run(self) -> None:
        """Search. Raises BadInput where the configuration itself cannot be trained, TrainingFailed where a rank of it
        was lost, Interrupted at a stop request."""
        self._measure()
        drawn, numbers, vain = self.candidates.drawn(), count(1), 0
        for bracket in count():
            half = BRACKET // 2 if bracket else 0
            near = islice(self.candidates.near([each.candidate for each in self.best[:FINALISTS]]), half)
            chosen = [replace(each, number=next(numbers)) for each in (*near, *islice(drawn, BRACKET - half))]
            before = self.best[:1]
            cost = self._bracket([Tried(each) for each in chosen])
            vain = vain + 1 if self.best[:1] == before else 0
            finals = max((each.outcomes[0].wall for each in self.best), default=0.0) * (FINALISTS + 1) * (SEEDS - 1)
            if not chosen or vain >= PATIENCE or self.left * self.trials.processes < 1.3 * cost + finals:
                break
        self._finals()

    def _measure(self) -> None:
        """Learn how fast the configuration is, what a whole training lasts, which share of it the budget allows, and
        the target."""
        first, asked = self.tried[0], self.question
        if self._carries(first.candidate):
            first.carried = self._one(Trial(first.candidate, min(1.0, self._epochs), self._seed, phantom=True))
        if first.carried is None or first.carried.why:
            first.carried = self._one(self._trial(first, 1 / ETA**2))
        self._require_ranks(first.carried)
        if first.carried.why:
            raise BadInput(first.carried.why)
        self._samples = first.carried.samples_of_epoch
        asked.seconds = asked.time or self._epochs * self._samples / first.carried.speed
        short = self._one(self._trial(first, asked.whole / ETA**2), 0.2)
        if not (short.why or short.curve):
            raise BadInput("the configuration itself: no figure of merit on a part dev or test, by which to judge")
        while self._dearest(short) * BRACKET / self.trials.processes > self.budget / 4 and asked.whole > 0.1:
            shorter = self._one(self._trial(first, asked.whole / ETA**3), 0.2)
            if shorter.wall * 2 > short.wall:  # most of the time is the start of the program
                break
            short, asked.whole = shorter, asked.whole / ETA
        if asked.whole < 1:
            self.say(f"the budget allows only {_part(asked.whole)} of a whole training; what follows is extrapolated")
        trial = self._trial(first, asked.whole)
        whole = self._one(trial, 0.5)
        _take(first, asked.whole, trial, whole)
        if asked.target is None and asked.time is None:
            self._require_ranks(whole)
            if first.fell:
                then = "--target-error or --time says what else to look for"
                raise BadInput(f"the configuration itself: {first.fell}; {then}")
            asked.target = easier(least(first.curve))

    def _require_ranks(self, own: Outcome) -> None:
        """Raise TrainingFailed if this training of the configuration itself has lost a rank."""
        if not own.lasts:
            log = f"{self.trials.run_folder(own.name)}.log"
            raise TrainingFailed(f"the configuration itself: {own.why} (see {log})")

    def _dearest(self, short: Outcome) -> float:
        """The seconds that a training as long as `short` takes if all of its ranks compute: in earnest they do so at
        the same time, and in a simulation one after another."""
        carried = self.tried[0].carried
        if not self.phantoms or carried is None:
            return short.wall
        start = min(carried.wall, short.wall)
        return start + (short.wall - start) * self.trials.ranks / max(short.number("workers"), 1.0)

    def _one(self, trial: Trial, part: float = 1.0) -> Outcome:
        """The outcome of one trial, which may take the fraction `part` of the time that is left."""
        return self._try([trial], part).get(trial.name, Outcome(trial.name, LATE, inf))

    def _carries(self, candidate: Candidate) -> bool:
        return self.phantoms and not candidate.config.algorithm.divides

    def _bracket(self, tried: list[Tried]) -> float:
        """Train the candidates in rungs of ever fewer. Returns the seconds of all trials, as if one after another."""
        self.tried += tried
        self._look([each for each in tried if self._carries(each.candidate)])
        schedule = rungs(BRACKET, FINALISTS)
        walls, order = sum(each.carried.wall for each in tried if each.carried), tried
        for at, rung in enumerate(schedule):
            share = rung.share * self.question.whole
            left = [each for each in order if not each.fell]  # the best first, as the time may not be enough for all
            trials = [self._trial(each, share) for each in left]
            part = RUNG / (RUNG * (len(schedule) - at) + FINALS)
            found = self._try(trials, part, f"for {_part(share)} of the time")
            for each, trial in zip(left, trials, strict=True):
                _take(each, share, trial, found.get(trial.name, Outcome(trial.name, LATE)))
            walls += sum(outcome.wall for outcome in found.values())
            curves = {each: each.curve for each in left if not each.fell}
            order = ranked(curves, self.question.target, self.question.seconds * share)
            for each in order[schedule[at + 1].candidates :] if at + 1 < len(schedule) else ():
                told = each.outcomes[0]
                each.fell = f"{figure(told, least(told.curve))} after {duration(told.number('seconds'))}"
        return walls

    def _look(self, tried: Sequence[Tried]) -> None:
        """Drop the candidates whose workers hardly compute, because the network cannot carry what they send."""
        trials = [self._phantom(each.candidate) for each in tried]
        found = self._try(trials, LOOK / (LOOK + 3 * RUNG + FINALS), "without gradients")
        for each, trial in zip(tried, trials, strict=True):
            each.carried = found.get(trial.name)
            each.fell = each.carried.why if each.carried else LATE
        shares = {id(each): each.carried.computing for each in self.tried if each.carried and not each.fell}
        most = max(shares.values(), default=0.0)
        for each in tried:
            if shares.get(id(each), inf) * CARRIED < most:
                each.fell = f"workers compute {shares[id(each)]:.0%} of their time"

    def _phantom(self, candidate: Candidate) -> Trial:
        """A trial without gradients, of as many exchanges as show the pace of a whole training."""
        period, config = 1, candidate.config
        with suppress(NotImplementedError):
            period = config.algorithm.period
        epochs = max(40, 4 * period) * config.training.minibatch * self.trials.ranks / self._samples
        return Trial(candidate, float(f"{min(epochs, LONGEST * self._epochs):.4g}"), self._seed, phantom=True)

    def _trial(self, tried: Tried, share: float, more: int = 0) -> Trial:
        """A training for `share` of the time (of the epochs if its speed is unknown); its seed is higher by `more`."""
        epochs, points = self._epochs * share, max(round(POINTS * share / self.question.whole), POINTS // 3)
        speed = next((each.speed for each in (tried.carried, *tried.outcomes) if each and each.speed), 0.0)
        if self._samples:
            by_time = self.question.seconds * share * speed / self._samples or epochs
            fewest = points + tried.candidate.config.training.minibatch * self.trials.ranks
            epochs = max(min(by_time, LONGEST * epochs), fewest / self._samples)
        return Trial(tried.candidate, float(f"{epochs:.4g}"), self._seed + more, points)

    def _finals(self) -> None:
        """Train the best, and the configuration itself, with more seeds."""
        best, seeds = self.best, range(1, SEEDS)
        final, own = best[:FINALISTS], [each for each in best[FINALISTS:] if each is self.tried[0]]
        pairs = [*product(seeds, final), *product(seeds, own)]  # the configuration last, if the time is not enough
        trials = [(each, self._trial(each, self.question.whole, more)) for more, each in pairs]
        found = self._try([trial for _, trial in trials], 1.0, "with more seeds")
        for each, trial in trials:
            each.outcomes += [found[trial.name]] if trial.name in found else []
        for each in best:
            each.fell = "" if each in final + own else "others were sooner"

    def _try(self, trials: Sequence[Trial], part: float, what: str = "as configured") -> dict[str, Outcome]:
        """The outcomes of the trials that ended within the fraction `part` of the time left. Raises Interrupted."""
        until = time.monotonic() + max(self.left, 0.0) * part
        found = self.trials.carry_out(
            trials, until, lambda done: self.show(f"{what}: {done} of {len(trials)}, {self.left:.0f} s left")
        )
        if self.trials.stop.flag:
            raise Interrupted
        failed, late = sum(bool(each.why) for each in found.values()), len(trials) - len(found)
        told = [f"{failed} failed"] * bool(failed) + [f"{late} did not end in time"] * bool(late)
        if len(trials) > 1:
            self.say(f"{what}: {', '.join([some(len(trials), 'training'), *told])}")
        return found


def easier(own: float) -> float:
    """The target if none is given, by the configuration's `own` figure of merit, which may be below 0."""
    return float(f"{own + EASIER * abs(own):.3g}")


def _take(tried: Tried, share: float, trial: Trial, found: Outcome) -> None:
    tried.fell = found.why
    if not found.why:
        tried.share, tried.epochs, tried.outcomes = share, trial.epochs, [found]


def figure(outcome: Outcome, value: float) -> str:
    """A figure of merit as text."""
    return f"{value:.2%}" if "merit" not in outcome.summary else f"{value:.4g}"


def _part(share: float) -> str:
    return "all" if share >= 1 else f"1/{round(1 / share)}"
