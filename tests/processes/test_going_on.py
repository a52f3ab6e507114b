"""`run.lost_ranks = "continue"` under Open MPI: a training goes on without ranks that are killed or frozen."""

import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from mpitrain import checkpoint
from mpitrain.monitoring.records import records_of
from mpitrain.signals import STOPPED
from tests.cli.test_lost_ranks import LOAD, faults
from tests.conftest import MPIRUN, Ended, finish, start
from tests.faults import Fault, program

#: A callback that is still at work when another rank is lost.
SLOW = """
from pathlib import Path
from time import sleep

def note(record):
    if record["event"] == "evaluate" and not Path("calls").exists():
        Path("calls").touch()
        sleep(7)
"""
enduring = pytest.mark.usefixtures("open_mpi")
SAMPLES, EPOCHS, MINIBATCH, DEADLINE = 1438, 4, 16, 5
KILL, FREEZE, TAU = 9, 19, 10


@pytest.fixture(scope="module")
def open_mpi() -> None:
    if not MPIRUN.exists() or b"Open MPI" not in subprocess.run([MPIRUN, "--version"], stdout=subprocess.PIPE).stdout:
        pytest.skip("needs Open MPI 5 and its mpirun in this environment")


def keys_of(algorithm: str, *keys: str) -> list[str]:
    """The words of a training's keys."""
    own = (f"algorithm.name={algorithm}", f"training.epochs={EPOCHS}", f"training.minibatch={MINIBATCH}")
    return [word for key in (*own, "run.evaluate_every=1", *keys) for word in ("--set", key)]


def trained(folder: Path, ranks: int, algorithm: str, *lost: Fault, keys: tuple[str, ...] = ()) -> dict[str, Any]:
    """The summary of a training that loses ranks."""
    words = keys_of(algorithm, "run.lost_ranks=continue", f"run.deadline={DEADLINE}", *keys)
    faulty = program(Fault(LOAD, ["note loads-{rank}"]), *lost)
    command = [str(MPIRUN), "--with-ft", "ulfm", "-n", str(ranks), sys.executable, *faulty, *words, "--out", "run"]
    ended = finish(start(command, folder), 120)
    assert ended.status == 0, f"{ended.out}\n{ended.err}"
    assert (folder / "lost").exists(), "nobody was lost"
    told = json.loads((folder / "run" / "summary.json").read_text())
    assert told["exit_reason"] == "finished" and told["samples"] == EPOCHS * SAMPLES, ended.err
    return told


def lost_ranks(folder: Path, ranks: int) -> list[int]:
    """Which of the ranks that were started the restarts name: each by their numbers before it, after which those that
    are left have new ones."""
    living, found = [*range(ranks)], list[int]()
    for restart in reversed([*records_of(folder / "run" / "metrics.jsonl", "restart")]):
        gone = [living[rank] for rank, _ in cast("list[list[int]]", restart["lost_ranks"])]
        living, found = [rank for rank in living if rank not in gone], found + gone
    return sorted(found)


def loaded(folder: Path) -> Counter[tuple[int, int]]:
    """How often each sample of each epoch was loaded."""
    counts: Counter[tuple[int, int]] = Counter()
    for path in folder.glob("loads-*"):
        for line in path.read_text().splitlines():
            if line.count(" ") == 3:
                epoch, first, count = (int(word) for word in line.split()[1:])
                counts.update((epoch, first + k) for k in range(count))
    return counts


@enduring
@pytest.mark.parametrize(
    ("algorithm", "victim", "signal", "again"),
    [
        ("asgd", 2, KILL, 4 * 2 * MINIBATCH),  # each rank reads one minibatch ahead
        ("allreduce", 3, KILL, 4 * 2 * MINIBATCH),
        ("asgd", 1, FREEZE, 4 * 2 * MINIBATCH),
        ("easgd", 3, KILL, 3 * 2 * TAU * MINIBATCH),  # what workers have done since their exchanges, and read ahead
    ],
)
def test_a_lost_rank_costs_what_the_others_had_in_hand(
    tmp_path: Path, algorithm: str, victim: int, signal: int, again: int
) -> None:
    """What a master or a replica had is trained on no more; minibatches that ranks were at are begun anew."""
    told = trained(tmp_path, 4, algorithm, *faults("training", victim, signal))
    assert told["restarts"] == 1 and told["ranks"] == 3
    assert told["samples_repeated"] <= (3 * TAU * MINIBATCH if algorithm == "easgd" else 0)
    assert [rank for rank, _ in told["lost_ranks"]] == [victim]
    counts = loaded(tmp_path)
    assert len(counts) == EPOCHS * SAMPLES
    assert sum(count - 1 for count in counts.values()) <= again


@enduring
@pytest.mark.parametrize("keys", [(), ("algorithm.order=round-robin",), ("algorithm.tau=3", "algorithm.combine=mean")])
def test_peers_that_are_left_have_one_replica(tmp_path: Path, keys: tuple[str, ...]) -> None:
    """Each message that is applied ends with its sender's sum of all that it has sent, so that one that was left out,
    or taken twice, ends the training. The turns of the lost one that nobody knows of are done again."""
    told = trained(tmp_path, 4, "sparse-delta", *faults("training", 1, KILL), keys=keys)
    assert told["replicas_identical"] and told["restarts"] == 1 and told["ranks"] == 3
    counts = loaded(tmp_path)
    assert len(counts) == EPOCHS * SAMPLES
    assert sum(count - 1 for count in counts.values()) <= 4 * 3 * 2 * MINIBATCH


@enduring
def test_replicas_go_on_as_from_a_checkpoint(tmp_path: Path, run_command: Callable[[list[str], float], Ended]) -> None:
    """To the bit: as four ranks whose checkpoint of that moment three ranks go on from."""
    told = trained(tmp_path, 4, "allreduce", *faults("training", 0, KILL))
    samples = next(records_of(tmp_path / "run" / "metrics.jsonl", "restart"))["samples"]
    assert 0 < samples < EPOCHS * SAMPLES

    def run(ranks: int, *words: str) -> None:
        command = [str(MPIRUN), "-n", str(ranks), sys.executable, "-m", "mpitrain", *words]
        ended = run_command(command, 120)
        assert ended.status == 0, ended.err

    # None is begun before, which may still be being written at that moment.
    keys = keys_of("allreduce", f"run.checkpoint_samples={samples}", "run.checkpoint_every=0", "run.checkpoints_kept=9")
    run(4, *keys, "--out", "whole")
    for path in (tmp_path / "whole" / "checkpoints").iterdir():
        if path.name != f"{samples:012d}":
            shutil.rmtree(path)
    run(3, "--resume", "whole")
    resumed = json.loads((tmp_path / "whole" / "summary.json").read_text())
    assert resumed["parameters_sha256"] == told["parameters_sha256"]


@enduring
def test_without_its_first_rank_a_training_goes_on_from_the_newest_checkpoint(tmp_path: Path) -> None:
    """The second one has the run folder then, and says what is trained on again."""
    told = trained(tmp_path, 4, "easgd", *faults("training", 0, KILL), keys=("run.checkpoint_samples=256",))
    assert told["restarts"] == 1 and told["ranks"] == 3
    assert [rank for rank, _ in told["lost_ranks"]] == [0]


@enduring
@pytest.mark.parametrize(
    ("algorithm", "victims", "signals"),
    [("asgd", [1], [KILL]), ("sparse-delta", [0, 3], [KILL, KILL]), ("easgd", [1, 2], [KILL, FREEZE])],
)
def test_spare_ranks_take_the_places_of_lost_ones(
    tmp_path: Path, algorithm: str, victims: list[int], signals: list[int]
) -> None:
    """Also where one stands still while the others already leave another one behind, or when they have."""
    lost = [faults("training", victims[0], signals[0])[0]]
    for victim, signal in zip(victims, signals, strict=True):
        lost.append(Fault("thread", ["await calls", "touch lost-{rank}", f"lose {signal}"], victim))
    lost.append(Fault(LOAD, [f"from {3 * SAMPLES}", *(f"await lost-{victim}" for victim in victims)]))
    told = trained(tmp_path, 4 + len(victims), algorithm, *lost, keys=(f"run.spares={len(victims)}",))
    assert told["ranks"] == 4
    assert told["samples_repeated"] <= (2 * 3 * TAU * MINIBATCH if algorithm == "easgd" else 0)
    assert lost_ranks(tmp_path, 4 + len(victims)) == victims
    assert len(loaded(tmp_path)) == EPOCHS * SAMPLES


@enduring
@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("data.path=/nowhere", "/nowhere: no such folder"),  # met by those that train, while the spare waits
        ("run.spares=3", "run.spares = 3: none of 3 ranks is left to train"),
    ],
)
def test_bad_input_is_said_once_beside_spare_ranks(
    tmp_path: Path, run_command: Callable[[list[str], float], Ended], key: str, line: str
) -> None:
    words = ["--set", "run.lost_ranks=continue", "--set", "run.spares=1", "--set", key]
    command = [str(MPIRUN), "--with-ft", "ulfm", "-n", "3", sys.executable, "-m", "mpitrain", *words]
    ended = run_command(command, 60)
    assert ended.status == 2
    (said,) = [each for each in ended.err.splitlines() if each.startswith("mpitrain")]
    assert said.startswith(f"mpitrain: {line}")


@enduring
def test_ranks_are_lost_one_after_another(tmp_path: Path) -> None:
    """The second one while the others resume after the first."""
    second = Fault("mpitrain.api.shared.share_checkpoint", [f"lose {KILL}"], 3)
    told = trained(tmp_path, 4, "asgd", *faults("training", 1, KILL), second)
    assert told["ranks"] == 2 and told["restarts"] == 2


@enduring
@pytest.mark.parametrize(("call", "number"), [("Split_type", 2), ("Split", 1), ("Split_type", 3)])
def test_a_rank_that_stands_still_where_the_others_make_a_communicator_is_left_behind(
    tmp_path: Path, call: str, number: int
) -> None:
    """And nobody else: once each of them ended itself, after its deadline in that call. In the last case, where those
    that have trained save, spares wait for them elsewhere, and killed all of them, silent in that call."""
    second = Fault(f"mpitrain.mpi.enduring.EnduringCommunicator.{call}", [f"lose {FREEZE}"], 2, number)
    told = trained(tmp_path, 6, "asgd", *faults("training", 1, KILL), second, keys=("run.spares=2",))
    assert told["ranks"] == 4 and lost_ranks(tmp_path, 6) == [1, 2]


@enduring
def test_a_rank_that_is_lost_after_the_end_changes_nothing(tmp_path: Path) -> None:
    """Once the others trained on: they recorded a restart, and a second end."""
    victim = Fault("thread", ["await written", f"lose {KILL}"], 1)
    ended = Fault("mpitrain.api.finish._write_summary", ["touch written", "await lost 20", "sleep 2"], 0, after=True)
    trained(tmp_path, 3, "asgd", victim, ended)
    kinds = ("start", "end", "restart", "failed")
    assert [each["event"] for each in records_of(tmp_path / "run" / "metrics.jsonl", *kinds)] == ["end", "start"]


@enduring
@pytest.mark.parametrize(("algorithm", "signal"), [("allreduce", KILL), ("asgd", FREEZE)])
def test_a_rank_at_work_joins_the_others_when_it_is_done(tmp_path: Path, algorithm: str, signal: int) -> None:
    """As rank 0 in a slow `run.callback`; the job does not end a second after the loss."""
    (tmp_path / "slow.py").write_text(SLOW)
    victim = Fault("thread", ["await calls", f"lose {signal}"], 2)
    told = trained(tmp_path, 3, algorithm, victim, keys=("run.callback=slow.py:note",))
    assert told["restarts"] == 1 and told["ranks"] == 2
    assert len(loaded(tmp_path)) == EPOCHS * SAMPLES


@enduring
def test_a_sum_that_breaks_off_in_its_second_round_tells_of_the_loss(tmp_path: Path) -> None:
    """Of a rank that comes late to it, while another one has found the loss; it ended the job with a traceback."""
    late = Fault(
        "mpitrain.api.going_on.prepare_for_loss", ["touch calls", "await lost 30", "sleep 1"], 0, 0, after=True
    )
    told = trained(tmp_path, 3, "block-momentum", late, Fault("thread", ["await calls", f"lose {KILL}"], 2))
    assert told["restarts"] == 1 and told["ranks"] == 2


@enduring
def test_fewer_than_the_least_ranks_end_with_what_they_have(tmp_path: Path) -> None:
    """The status is that of a training to be continued; what the ranks had is saved."""
    faulty = program(*faults("training", 2, KILL))
    words = ["--set", "run.lost_ranks=continue", "--set", "run.least_ranks=4", "--out", "run"]
    command = [str(MPIRUN), "--with-ft", "ulfm", "-n", "4", sys.executable, *faulty, *words]
    ended = finish(start(command, tmp_path), 120)
    assert ended.status == STOPPED, ended.err
    assert "run.least_ranks is 4; --resume run continues" in ended.err
    newest, _ = checkpoint.newest(tmp_path / "run" / "checkpoints")
    assert newest is not None and int(newest.name) > 0


@enduring
@pytest.mark.parametrize("least", [1, 3])
def test_a_pre_training_begins_anew_on_the_ranks_that_are_left(tmp_path: Path, least: int) -> None:
    """With fewer than the least it ends, and no resume is promised where there is no checkpoint."""
    step = Fault("mpitrain.training.pretraining.sgd", ["touch calls", "await lost 30"], 0, 20)
    faulty = program(step, Fault("thread", ["await calls", f"lose {KILL}"], 1))
    words = keys_of("easgd", "pretraining.method=layerwise", "run.lost_ranks=continue", f"run.least_ranks={least}")
    command = [str(MPIRUN), "--with-ft", "ulfm", "-n", "3", sys.executable, *faulty, *words, "--out", "run"]
    ended = finish(start(command, tmp_path), 120)
    records = [each["layer"] for each in records_of(tmp_path / "run" / "metrics.jsonl", "pretraining")]
    if least == 1:
        assert ended.status == 0 and records[:3] == [3, 2, 1], ended.err  # the last one first
    else:
        assert ended.status == STOPPED
        assert "run.least_ranks is 3; there is no checkpoint to continue from" in ended.err


def test_an_mpi_that_ends_with_its_ranks_is_refused(launch: Callable[..., Ended]) -> None:
    """One line, and status 2, where mpirun was not told to tolerate faults."""
    ended = launch(2, "--set", "run.lost_ranks=continue")
    assert ended.status == 2
    (line,) = [line for line in ended.err.splitlines() if line.startswith("mpitrain")]
    assert line == "mpitrain: run.lost_ranks = 'continue': needs Open MPI 5, started by mpirun --with-ft ulfm"
