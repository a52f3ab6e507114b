"""What a run tells of itself: which samples a loss is over, which parameters an error is of, and when."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mpitrain import config as configuration
from mpitrain.checkpoint.late import CopyWriter, Moment, delete, waiting
from mpitrain.checkpoint.state import MasterNumbers, State, checked
from mpitrain.flat import Layout, Parameter
from mpitrain.monitoring.cadence import Cadence
from mpitrain.monitoring.evaluation import Results
from mpitrain.monitoring.evaluations import Evaluations
from mpitrain.monitoring.journal import FolderJournal, Progress
from mpitrain.monitoring.monitor import MasterMonitor
from mpitrain.monitoring.records import Metrics, by_part
from mpitrain.mpi.witness import Witness
from mpitrain.sampling.means import Losses
from mpitrain.sampling.queue import Queue
from mpitrain.stopwatch import Stopwatch
from mpitrain.training.context import Session
from mpitrain.training.loop import Trainer


class Evaluation:
    """One slice, which takes ten seconds; the error is the parameters' mean."""

    measures = False
    merit = "error"

    def __init__(self, pass_time: Callable[[float], None]) -> None:
        self.active, self.parameters, self._pass_time = False, np.zeros(0), pass_time

    def begin(self, parameters: np.ndarray) -> None:
        self.active, self.parameters = True, parameters.copy()

    def is_of(self, parameters: np.ndarray) -> bool:
        return np.array_equal(self.parameters, parameters)

    def step(self) -> dict[str, float]:
        self.active = False
        self._pass_time(10.0)
        return {"test_loss": 1.0, "test_error": float(self.parameters.mean())}


class Written(list):
    """Records in place of metrics.jsonl."""

    def write(self, event: str, **fields: Any) -> None:
        self.append({"event": event, **fields})

    def restore(self) -> None:
        """Nothing: it is no file."""


class Run:
    """A monitor of epochs of 10 samples, its state, and its clock; `numbers` are a checkpoint's."""

    def __init__(self, *settings: str, numbers: dict[str, Any] | None = None, folder: Path = Path()) -> None:
        self.now = 100.0
        self.state = State(np.zeros(3), Queue(10, 1000))
        if numbers is not None:
            self.state.restore(checked(numbers, MasterNumbers))
        config, alone = (
            configuration.load(None, list(settings)),
            SimpleNamespace(
                size=1,
                heartbeat=lambda: None,
                alive_while=lambda action: action(),
                stopwatch=Stopwatch(lambda: 0.0),
            ),
        )
        network = SimpleNamespace(layout=Layout([Parameter("x", (3,), ("constant", 0.0))]))
        self.session = Session(config, alone, [0], network, None, None, self.state, lambda: self.now)  # type: ignore[arg-type]
        self.counters, self.trainer, self.records = self.session.counters, Trainer(self.session), Written()
        self.evaluation: Any = Evaluation(self.pass_time)
        self.rate, self.saver, transport, records = 0.05, None, alone, self.records  # type: Any, Any, Any, Any
        cadence = Cadence(config.run.evaluate_every, "auto", 0, lambda: self.now, 10)
        stop, told = self.session.stop, (cadence, self.counters)
        self.journal = FolderJournal(folder, lambda: folder, records, Progress("none", 1), 10, stop, lambda: None)
        copies = CopyWriter(network.layout) if config.run.evaluate_late else None
        self.evaluated = Evaluations(self.evaluation, self.journal, *told, transport, stop, self.moment, copies)
        of_saves = (lambda: self.saver), alone.stopwatch, Witness(), str
        self.monitor = MasterMonitor(*told, self.journal, *of_saves, self.moment, self.evaluated)
        self.monitor.start()

    def moment(self, loss: float | None) -> Moment:
        return Moment(self.state.trained, self.state.index, self.monitor.cadence.seconds, loss, self.rate)

    def turn(self, whole: bool = False) -> bool:
        self.trainer.all_wait = whole
        return self.monitor.turn(self.trainer)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    def evaluations(self) -> list[dict[str, Any]]:
        return [record for record in self.records if record["event"] == "evaluate"]


@pytest.fixture
def run() -> Run:
    return Run()


def test_the_training_loss_of_a_run_is_that_of_its_last_epoch(run: Run) -> None:
    """Minibatches of 4 that reach over its begin count in proportion; the records between do not matter."""
    assert run.monitor.last_loss is None
    run.counters.trained(4, 4 * 8.0)
    assert run.monitor.last_loss == 8.0
    for loss in (5.0, 3.0, 2.0, 1.0):
        run.counters.trained(4, 4 * loss)
        run.pass_time(2.0)
        run.turn()
    run.counters.trained(0, 0.0, busy=1.0)  # a refused gradient
    assert run.monitor.last_loss == pytest.approx((2 * 3.0 + 4 * 2.0 + 4 * 1.0) / 10)


def train(run: Run, losses: list[float], seconds: float) -> None:
    """Minibatches of 5 with these mean losses, each so many seconds long."""
    for loss in losses:
        run.counters.trained(5, 5 * loss)
        run.pass_time(seconds)
        while run.turn():
            pass


@pytest.mark.parametrize("seconds", [0.0, 0.4, 3.0])
def test_an_epoch_s_loss_does_not_depend_on_the_clock(run: Run, seconds: float) -> None:
    """Two minibatches an epoch, with and without records of seconds between them; those tell the recent loss."""
    train(run, [8.0, 6.0, 5.0, 3.0, 2.0, 1.0], seconds)
    assert [(record["samples"], record["train_loss"]) for record in run.evaluations()] == [(10, 7), (20, 4), (30, 1.5)]
    assert run.monitor.last_loss == 1.5
    recent = [record["train_loss"] for record in run.records if record["event"] == "train"]
    assert seconds < 3 or recent == [8.0, 6.0, 5.0, 3.0, 2.0, 1.0]


def test_an_epoch_s_loss_is_that_of_the_moment_when_its_evaluation_began(run: Run) -> None:
    """What is trained while slices are evaluated belongs to the next line."""
    run.counters.trained(10, 10 * 4.0)
    run.evaluation.step = lambda: None
    run.turn()
    run.counters.trained(5, 5 * 1.0)
    del run.evaluation.step
    run.turn()
    (record,) = run.evaluations()
    assert (record["samples"], record["train_loss"]) == (10, 4.0)


@pytest.mark.parametrize(("every", "losses"), [(0.5, [8, 6, 5, 3]), (2.0, [4]), (0.0, [4])])
def test_an_evaluation_s_loss_is_over_what_lies_between_two_but_at_most_an_epoch(
    every: float, losses: list[float]
) -> None:
    """Several an epoch, or one every few epochs, or one at the end."""
    run = Run(f"run.evaluate_every={every}")
    train(run, [8.0, 6.0, 5.0, 3.0], 0.1)
    run.evaluated.measure()
    run.monitor.finish(evaluate=True)
    assert [record["train_loss"] for record in run.evaluations()] == losses


def recorded(folder: Path, *records: tuple[str, int]) -> Path:
    """The run folder, in which these records of starts and evaluations are, each with its samples."""
    metrics = Metrics(folder / "metrics.jsonl")
    for event, samples in records:
        metrics.write(event, samples=samples)
    return folder


def test_a_resumed_epoch_s_loss_is_that_of_all_of_it(run: Run, tmp_path: Path) -> None:
    """A checkpoint keeps what has been counted of it."""
    train(run, [8.0, 6.0, 5.0], 0.1)
    folder = recorded(tmp_path, ("evaluate", 10))
    resumed = Run(numbers=json.loads(json.dumps(run.state.numbers())), folder=folder)
    train(resumed, [3.0], 0.1)
    (record,) = resumed.evaluations()
    assert (record["samples"], record["train_loss"]) == (20, 4.0)


@pytest.mark.parametrize(
    ("records", "made"),
    [
        ([("start", 0)], [15]),
        ([("start", 0), ("evaluate", 10)], []),
        ([("start", 0), ("evaluate", 17)], [15]),  # of what is trained again
        ([("start", 0), ("evaluate", 10), ("evaluate", 20), ("start", 5)], [15]),
        ([("start", 0), ("evaluate", 10), ("evaluate", 20), ("start", 12)], []),
    ],
)
@pytest.mark.parametrize("late", [False, True])
def test_a_resume_makes_the_evaluation_that_was_cut_off(
    run: Run, tmp_path: Path, records: list[tuple[str, int]], made: list[int], late: bool
) -> None:
    """At once, of where it goes on, in no time of the training; it does not repeat one that is on record."""
    train(run, [8.0, 6.0, 5.0], 0.1)
    seconds = run.state.seconds
    folder = recorded(tmp_path, *records, ("start", 15))
    resumed = Run(*["run.evaluate_late=true"] * late, numbers=run.state.numbers(), folder=folder)
    assert [each["samples"] for each in resumed.evaluations()] == ([] if late else made)
    assert resumed.monitor.cadence.seconds == seconds
    train(resumed, [3.0], 0.1)
    resumed.monitor.finish(evaluate=True)
    assert [each["samples"] for each in resumed.evaluations()] == [*made, 20]
    assert [each["seconds"] for each in resumed.evaluations()][: len(made)] == [seconds] * len(made)


def test_a_copy_that_is_there_is_not_made_again(tmp_path: Path) -> None:
    """One that had not been written before the loss is made where the training goes on."""
    run = Run(*LATE, folder=tmp_path)
    train_late(run, [0.5, 0.25])
    run.evaluated.settle_copies(run.evaluated.transport)
    Run(*LATE, folder=tmp_path, numbers=run.state.numbers()).monitor.finish(evaluate=False)
    assert [copy.name for copy in waiting(tmp_path)] == ["000000000005", "000000000010"]
    delete(waiting(tmp_path)[-1])
    Run(*LATE, folder=tmp_path, numbers={**run.state.numbers(), "trained": 12}).monitor.finish(evaluate=False)
    assert [copy.name for copy in waiting(tmp_path)] == ["000000000005", "000000000012"]


def test_no_evaluation_is_made_at_a_resume_where_none_is_asked_for(run: Run, tmp_path: Path) -> None:
    train(run, [8.0, 6.0, 5.0], 0.1)
    assert not Run("run.evaluate_every=0", numbers=run.state.numbers(), folder=tmp_path).evaluations()


def test_a_long_epoch_s_losses_are_kept_in_few_numbers() -> None:
    """In chunks that none of the epochs shares with another: their means are whole."""
    losses, rng = Losses(100_001), np.random.default_rng(3)
    for _ in range(3):
        epoch = rng.uniform(1, 2, 100_001)
        for loss in epoch:
            losses.add(1, loss)
        assert losses.mean(100_001) == pytest.approx(epoch.mean(), rel=1e-12)
        assert len(losses.numbers()) < 600
    assert losses.mean(1000) == pytest.approx(epoch[-1000:].mean(), rel=1e-2)


@pytest.mark.parametrize(("minibatch", "first"), [(1, 0.5), (8, 0.5), (32, 0.5), (100, 0.84)])
def test_the_loss_of_the_start_is_that_of_more_than_a_sample(minibatch: int, first: float) -> None:
    """Of 32, half of which are fitted by chance; of a larger minibatch as a whole."""
    losses = Losses(1000)
    each = [0.0, 1.0] * 16 + [1.0] * 168
    for k in range(0, 200, minibatch):
        losses.add(len(each[k : k + minibatch]), sum(each[k : k + minibatch]))
    assert losses.first == pytest.approx(first)


def test_an_evaluation_is_of_the_moment_when_it_began(run: Run) -> None:
    """Its parameters are copied then; what it takes itself is no training."""
    run.counters.trained(10, 1.0)
    run.pass_time(5.0)
    run.turn(whole=True)
    (record,) = run.evaluations()
    assert (record["samples"], record["seconds"]) == (10, 5.0)


@pytest.mark.parametrize(("whole", "seconds"), [(True, 10.0), (False, 20.0)])
def test_the_clock_stands_still_while_all_ranks_wait_for_an_evaluation(run: Run, whole: bool, seconds: float) -> None:
    """Others train meanwhile: then its ten seconds count."""
    for _ in range(2):
        run.counters.trained(10, 1.0)
        run.pass_time(5.0)
        run.turn(whole)
    assert [record["seconds"] for record in run.evaluations()] == [5.0, seconds]
    resumed = Run()
    resumed.state.seconds = run.monitor.cadence.seconds
    resumed.monitor.start()
    resumed.pass_time(1.0)
    assert resumed.monitor.cadence.seconds == seconds + (0.0 if whole else 10.0) + 1.0


def test_evaluations_that_come_late_because_they_take_long_are_said_once(run: Run) -> None:
    """That of epoch 1 ends after epoch 2.4 only, so that the next one is not of epoch 2; the third is late again."""
    last = run.evaluation.step
    for samples in (10, 12, 2, 16, 4):  # up to epochs 1, 2.2, 2.4, 4 and 4.4
        run.counters.trained(samples, 1.0)
        run.evaluation.step = last if samples < 10 else lambda: None  # the evaluation ends at epochs 2.4 and 4.4
        run.turn()
        run.turn()
    said = [record["text"] for record in run.records if record["event"] == "warning"]
    assert said == [
        "evaluations take longer than the training between them: one begins at epoch 2.40 (run.evaluate_every)"
    ]


def test_evaluations_that_are_late_by_a_minibatch_are_not_said(run: Run) -> None:
    for _ in range(3):
        run.counters.trained(14, 1.0)
        run.turn()
    assert len(run.evaluations()) == 3 and all(record["event"] != "warning" for record in run.records)


LATE = ("run.evaluate_late=true", "run.evaluate_every=0.5")


def train_late(run: Run, parameters: list[float]) -> None:
    """Half an epoch of a second for each."""
    for value in parameters:
        run.counters.trained(5, 5 * value)
        run.state.index += 1
        run.state.theta[:] = value
        run.pass_time(1.0)
        assert not run.turn() and not run.evaluations()


def told(run: Run) -> list[tuple[Any, ...]]:
    keys = ("samples", "seconds", "step", "train_loss", "test_error")
    return [tuple(record[key] for key in keys) for record in run.evaluations()]


def test_late_evaluations_are_of_their_moments_and_take_no_time(tmp_path: Path) -> None:
    """Of copies, one after another, at the end; what changed since the last one is evaluated, too."""
    run = Run(*LATE, folder=tmp_path)
    train_late(run, [0.5, 0.25, 0.125])
    assert run.monitor.cadence.seconds == 3.0
    run.state.theta[:] = 0.0625
    run.evaluated.measure()
    run.monitor.finish(evaluate=True)
    moments = [(5, 1.0, 1, 0.5, 0.5), (10, 2.0, 2, 0.25, 0.25), (15, 3.0, 3, 0.125, 0.125)]
    assert told(run)[:3] == moments and told(run)[3][-1] == 0.0625 and run.monitor.evaluated
    assert run.monitor.results["test_error"] == 0.0625 and not (tmp_path / "late").exists()


def test_evaluations_after_the_training_are_none_of_its_time(tmp_path: Path) -> None:
    """Neither in their own records nor in the last one."""
    run = Run(*LATE, folder=tmp_path)
    train_late(run, [0.5, 0.25])
    run.state.theta[:] = 0.125
    run.monitor.trained()
    step = run.evaluation.step

    def slow() -> Results | None:
        run.pass_time(7.0)
        return step()

    run.evaluation.step = slow
    run.monitor.finish(evaluate=True)
    assert [record["seconds"] for record in run.evaluations()] == [1.0, 2.0, 2.0]
    assert run.records[-1]["seconds"] == 2.0


def test_late_evaluations_tell_the_rates_of_their_moments(tmp_path: Path) -> None:
    """Although a plateau has lowered the rate since."""
    run, rates = Run(*LATE, folder=tmp_path), iter([2.0, 0.4])
    for rate in rates:
        run.rate = rate
        train_late(run, [0.5])
    run.monitor.finish(evaluate=True)
    assert [record["learning_rate"] for record in run.evaluations()] == [2.0, 0.4]
    assert run.records[-1]["learning_rate"] == 0.4


def test_checkpoints_of_the_same_samples_are_recorded_whole(run: Run) -> None:
    """The last one begins before it is known that the one at the last evaluation has been written."""
    run.saver = saver = SimpleNamespace(begun=0, outcomes=list)
    run.counters.trained(10, 1.0)
    for index in (1, 2):
        run.state.index = index
        run.monitor.checkpoint(lambda: setattr(saver, "begun", saver.begun + 1))
        run.pass_time(1.0)
    saver.outcomes = lambda: [(Path("000000000010"), "")] * 2
    run.monitor.tell_checkpoints()
    told = [record for record in run.records if record["event"] == "checkpoint"]
    assert [(each["samples"], each["step"], each["seconds"]) for each in told] == [(10, 1, 0.0), (10, 2, 1.0)]


def test_late_evaluations_survive_a_stop(tmp_path: Path) -> None:
    """They are made at the end of the run that goes on, each once; of what it trains again, anew."""
    run = Run(*LATE, folder=tmp_path)
    train_late(run, [0.5, 0.25, 0.125])
    run.monitor.finish(evaluate=False)
    assert not run.evaluations()
    resumed = Run(*LATE, folder=tmp_path, numbers={**run.state.numbers(), "trained": 10, "index": 2, "seconds": 2.0})
    resumed.counters.resume(resumed.state)
    resumed.monitor.start()
    train_late(resumed, [0.75])
    resumed.evaluation.step = lambda: setattr(resumed.session.stop, "flag", True)
    resumed.monitor.finish(evaluate=True)
    assert not resumed.evaluations() and not resumed.monitor.evaluated
    resumed.session.stop.flag, resumed.evaluation.active = False, False
    del resumed.evaluation.step
    resumed.monitor.finish(evaluate=True)
    assert [(each[0], each[-1]) for each in told(resumed)] == [(5, 0.5), (10, 0.25), (15, 0.75)]


def test_a_torn_copy_is_left_out_with_a_warning(tmp_path: Path) -> None:
    run = Run(*LATE, folder=tmp_path)
    train_late(run, [0.5, 0.25])
    run.evaluated.settle_copies(run.evaluated.transport)
    with (tmp_path / "late/000000000005/state.h5").open("r+b") as file:
        file.truncate(100)
    run.monitor.finish(evaluate=True)
    assert [each[0] for each in told(run)] == [10]
    (warning,) = (record["text"] for record in run.records if record["event"] == "warning")
    assert "late/000000000005: state.h5 does not match its checksum; " in warning and "is left out" in warning


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("stopped", [False, True])
def test_the_results_at_the_end_are_of_the_last_parameters(run: Run, moved: bool, stopped: bool) -> None:
    """Those that changed uncounted are evaluated again; a stopped run has no time to, and knows that it has not."""
    run.counters.trained(10, 1.0)
    run.turn(whole=True)
    if moved:
        run.state.theta += 0.5
    if not stopped:
        run.evaluated.measure()
    run.monitor.finish(evaluate=not stopped)
    assert run.monitor.evaluated == (not moved or not stopped)
    assert len(run.evaluations()) == 1 + (moved and not stopped)
    assert run.monitor.results["test_error"] == (0.5 if moved and not stopped else 0.0)
    assert run.records[-1]["event"] == "train"


def test_an_unnamed_test_set_is_told_once() -> None:
    """Where it stands for the first named one; a part "test" of its own beside named ones is one more."""
    assert by_part({"test_error": 0.1, "test_loss": 2.0, "dev_error": 0.3}) == {"test": 0.1, "dev": 0.3}
    assert by_part({"test_error": 0.1, "test_noisy_error": 0.1}) == {"test noisy": 0.1}
    both = {"test_error": 0.1, "test_loss": 2.0, "test_noisy_error": 0.1}
    assert by_part({**both, "test_noisy_loss": 2.0}) == {"test noisy": 0.1}
    assert by_part({**both, "test_noisy_loss": 3.0}) == {"test": 0.1, "test noisy": 0.1}
    assert by_part({"test_error": 0.1, "test_noisy_error": 0.2}) == {"test": 0.1, "test noisy": 0.2}
    assert by_part({"test_error": None}) == {}
    own = {"seconds": 1.0, "resumed_seconds": 0.0, "server_busy_seconds": 0.5, "test_seconds": 3.0}
    assert by_part({**own, "merit": "seconds"}) == {"test": 3.0}  # a metric of that name
    assert by_part({"train_subset_error": 0.5, "train_loss": 1.0}) == {"train subset": 0.5}
    assert by_part({"merit": "loss", "train_loss": 1.0, "test_loss": 2.0, "dev_loss": 3.0}) == {"test": 2.0, "dev": 3.0}


def test_a_record_that_was_cut_is_dropped(tmp_path: Path) -> None:
    """By a kill: the next start's records are whole lines."""
    path = tmp_path / "metrics.jsonl"
    Metrics(path).write("start", samples=0)
    with path.open("a") as file:
        file.write('{"event": "tra')
    Metrics(path).write("start", samples=5)
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"event": "start", "samples": samples} for samples in (0, 5)
    ]


def test_records_that_were_deleted_are_written_again(run: Run, tmp_path: Path) -> None:
    """All of them, with the next one; but not into another folder in the place of the run's."""
    folder = tmp_path / "run"
    folder.mkdir()
    path, journal = folder / "metrics.jsonl", run.journal
    journal.metrics, journal.folder, journal.find = Metrics(path), folder, lambda: folder
    journal.write("start", samples=0)
    path.unlink()
    train(run, [8.0], 2.0)
    assert [record["event"] for record in map(json.loads, path.read_text().splitlines())] == ["start", "train"]
    path.unlink()
    journal.find = lambda: None
    train(run, [8.0], 2.0)
    assert not path.exists()


def test_a_stale_handle_of_the_records_ends_no_training(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where another node has deleted the file from a file server."""

    def stale(handle: int) -> os.stat_result:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    journal = run.journal
    journal.metrics, journal.folder, journal.find = Metrics(tmp_path / "metrics.jsonl"), tmp_path, lambda: tmp_path
    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", stale)
        train(run, [8.0], 2.0)
    assert (tmp_path / "metrics.jsonl").read_text().count("\n") == 1


class Full:
    """A file on a disk that takes so many bytes, then none, then all."""

    def __init__(self, file: Any, room: int) -> None:
        self._file, self.room = file, room
        self.seek, self.truncate = file.seek, file.truncate

    def write(self, line: bytes) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = line[: self.room]
        self.room -= len(taken)
        return int(self._file.write(taken))


def test_a_full_disk_costs_records_and_nothing_else(tmp_path: Path) -> None:
    """It is said once; what is in the file are whole lines."""
    path, said = tmp_path / "metrics.jsonl", list[str]()
    metrics = Metrics(path, warn=said.append)
    metrics._file = full = Full(metrics._file, 50)  # type: ignore[assignment]
    for step in range(5):
        metrics.write("train", step=step)
    assert len(said) == 1 and "No space left on device; the training goes on" in said[0]
    full.room = 1000
    metrics.write("end", step=5)
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [0, 5]
