"""The program as its users start it: what a run leaves behind, and how every kind of fault ends."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import chdir, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpitrain.__main__ import main, parser
from mpitrain.data.digits import embedded
from mpitrain.data.shards import write_shard

from ..conftest import refusals

SHORT = ("--set", "training.epochs=2", "--out", "run")
LONG = ("--set", "training.epochs=100000", "--set", "run.evaluate_every=0", "--out", "run")


def records(folder: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def summary(folder: Path) -> dict[str, Any]:
    """summary.json."""
    return dict(json.loads((folder / "summary.json").read_text()))


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("name", ["sgd", "msgd", "averaged", "moving-average", "allreduce", "asgd"])
def test_every_algorithm_learns_the_digits_by_its_defaults(
    launch: Callable[..., Any], simulated: Callable[..., Any], tmp_path: Path, name: str, ranks: int
) -> None:
    """Under 10 % test error with nothing but its name, and a run folder that keeps the contract."""
    ended = (launch if ranks > 1 else simulated)(ranks, "--set", f"algorithm.name={name}", "--out", "run")
    assert ended.status == 0, ended.err
    told, log = summary(tmp_path / "run"), records(tmp_path / "run")
    assert " 0.0 MB" not in ended.out and "(at most 0)" not in ended.out
    assert told["test_error"] < 0.10 and told["exit_reason"] == "finished"
    assert (told["algorithm"], told["ranks"]) == (name, ranks)
    assert told["workers"] == {"asgd": max(ranks - 1, 1), "allreduce": ranks}.get(name, 1)
    keys = "samples seconds samples_per_second train_loss test_loss bytes_sent bytes_received messages_sent "
    keys += "staleness_mean staleness_max updates parameters_sha256"
    assert set(keys.split()) <= set(told) and len(told["parameters_sha256"]) == 64
    assert told["samples"] == log[-1]["samples"]
    last = [record for record in log if record["event"] == "evaluate"][-1]
    assert last["test_error"] == told["test_error"]
    assert {"step", "samples", "epoch", "seconds", "train_loss", "test_loss"} <= set(last)
    assert any((tmp_path / "run" / "checkpoints").iterdir()) and (tmp_path / "run" / "config.toml").exists()
    if name == "allreduce" and ranks > 1:
        assert told["replicas_identical"] is True


def test_loops_are_compiled_before_the_training(
    launch: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each once, also those that fill minibatches; so a first run is as fast as a second."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "compiled"))
    ended = launch(3, "--out", "run", "--set", "training.epochs=2")
    assert ended.status == 0, ended.err
    began = (tmp_path / "run" / "config.toml").stat().st_mtime_ns
    compiled = list((tmp_path / "compiled").rglob("*.nbc"))
    assert [path.name for path in compiled if path.stat().st_mtime_ns > began] == []
    assert sum("gather_images" in path.name for path in compiled) == 1


def test_a_finished_run_that_is_resumed_says_that_nothing_was_trained(
    launch: Callable[..., Any], tmp_path: Path
) -> None:
    """The loss of the last epoch, which the checkpoint keeps, and no rate; the summary of what was trained stays."""
    assert launch(1, *SHORT).status == 0
    before = summary(tmp_path / "run")
    again = launch(1, "--resume", "run")
    assert again.status == 0 and "nan" not in again.out and " a second" not in again.out
    assert f"train loss  {before['train_loss']:.4f}" in again.out
    assert summary(tmp_path / "run") == before


@pytest.mark.parametrize("name", ["msgd", "averaged", "allreduce"])
def test_a_resumed_run_ends_with_the_bits_of_an_uninterrupted_one(
    launch: Callable[..., Any], simulated: Callable[..., Any], tmp_path: Path, name: str
) -> None:
    """Four epochs at once; three, then the fourth."""
    algorithm, train = ("--set", f"algorithm.name={name}"), launch if name == "allreduce" else simulated
    assert train(2, *algorithm, "--set", "training.epochs=4", "--out", "whole").status == 0
    assert train(2, *algorithm, "--set", "training.epochs=3", "--out", "cut").status == 0
    assert train(2, "--resume", "cut", "--set", "training.epochs=4").status == 0
    hashes = [summary(tmp_path / run)["parameters_sha256"] for run in ("whole", "cut")]
    assert hashes[0] == hashes[1]
    assert [record["event"] for record in records(tmp_path / "cut")].count("start") == 2


def test_a_run_resumes_with_another_number_of_ranks(launch: Callable[..., Any], tmp_path: Path) -> None:
    """Server state, served count and index go on; a torn newest checkpoint is named and the one before it taken."""
    one = ("--set", "run.checkpoint_samples=2000", "--set", "run.evaluate_every=0")  # the last one is made at 2876
    assert launch(4, *SHORT, *one).status == 0
    checkpoints = sorted((tmp_path / "run" / "checkpoints").glob("0*"))
    assert len(checkpoints) == 2
    (checkpoints[-1] / "state.h5").write_bytes(b"torn")
    before = summary(tmp_path / "run")
    ended = launch(2, "--resume", "run", "--set", "training.epochs=3")
    assert ended.status == 0 and checkpoints[-1].name in ended.err
    after = summary(tmp_path / "run")
    assert after["samples"] == before["samples"] * 3 // 2 and after["updates"] < before["updates"]
    assert " a second since the resume\n" in re.sub(" +\n", "\n", ended.out)


def shards(folder: Path) -> Path:
    """A copy of the digits whose files a test may damage."""
    folder.mkdir()
    for path in embedded().glob("*.h5"):
        shutil.copy(path, folder)
    return folder


ELSEWHERE = ("-c", "import os, sys; from mpitrain.__main__ import main; os.chdir('elsewhere'); sys.exit(main())")


def test_a_relative_data_path_is_found_from_elsewhere(launch: Callable[..., Any], tmp_path: Path) -> None:
    """Where the run began, else here; where neither has it, both are named. One that is given is of here."""
    shards(tmp_path / "data")
    (tmp_path / "elsewhere").mkdir()
    settings = ("--set", "algorithm.name=msgd", "--set", "training.epochs=1")
    assert launch(1, *settings, "--set", "data.path=data", "--out", "run").status == 0
    assert launch(1, "evaluate", "../run", program=ELSEWHERE).status == 0
    (tmp_path / "data").rename(tmp_path / "elsewhere" / "moved")
    lost = launch(2, "evaluate", "../run", program=ELSEWHERE)
    assert lost.status == 2 and lost.err.count("mpitrain: ") == 1
    assert f"neither {tmp_path}/data, where the run began, nor {tmp_path}/elsewhere/data is" in lost.err
    more = ("--resume", "../run", "--set", "training.epochs=2", "--set", "data.path=moved")
    assert launch(1, *more, program=ELSEWHERE).status == 0
    ended = launch(2, "--resume", "run", "--set", "training.epochs=3")
    assert ended.status == 0 and summary(tmp_path / "run")["samples"] == 3 * 1438, ended.err


def close(monkeypatch: pytest.MonkeyPatch, folder: Path | str) -> None:
    """Nothing below a folder may be looked at, as where this user may not search it."""
    plain = os.stat

    def stat(path: Any, **how: Any) -> os.stat_result:
        if str(path).startswith(f"{folder}/"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return plain(path, **how)

    monkeypatch.setattr(os, "stat", stat)


@pytest.mark.parametrize(
    "words",
    [
        ("--resume", "closed/run"),
        ("evaluate", "closed/run"),
        ("prepare", "text", "closed/texts", "out"),
        ("report", "closed/run"),
        ("jobs", "closed/here"),
    ],
)
def test_a_folder_that_may_not_be_searched_is_one_line(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in another user's home."""
    monkeypatch.chdir(tmp_path)
    close(monkeypatch, "closed")
    status, lines = refusals(words, capsys)
    assert status == 2 and len(lines) == 1 and lines[0].startswith("mpitrain: closed/"), lines


def test_a_run_that_was_copied_out_of_a_closed_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its data is looked for here, too."""
    (tmp_path / "closed").mkdir()
    shards(tmp_path / "closed" / "data")
    one = ("algorithm.name=allreduce", "training.epochs=1", "data.path=data")
    settings = [word for each in one for word in ("--set", each)]
    with chdir(tmp_path / "closed"):
        assert main(["simulate", "--cluster", "zhang2013", "--ranks", "2", *settings, "--out", "../run"]) == 0
    monkeypatch.chdir(tmp_path)
    close(monkeypatch, tmp_path / "closed")
    status, lines = refusals(["evaluate", "run"], capsys)
    assert status == 2 and lines[-1].endswith(f"where the run began, nor {tmp_path}/data is a folder"), lines
    shards(tmp_path / "data")
    assert main(["evaluate", "run"]) == 0


def test_a_training_off_the_main_thread(launch: Callable[..., Any], tmp_path: Path) -> None:
    """Where Python lets nobody listen to signals: as a part of another program."""
    (tmp_path / "program.py").write_text(
        "import sys, threading\nfrom mpitrain.__main__ import main\nends = []\n"
        "thread = threading.Thread(target=lambda: ends.append(main(sys.argv[1:])))\n"
        "thread.start()\nthread.join()\nsys.exit(ends[0] if ends else 3)\n"
    )
    ended = launch(1, "train", "--set", "algorithm.name=msgd", *SHORT, program=("program.py",))
    assert ended.status == 0 and summary(tmp_path / "run")["exit_reason"] == "finished", ended.err


BAD: dict[str, tuple[tuple[str, ...], str]] = {
    "unknown key": (("--set", "training.learnin_rate=1"), "training.learning_rate"),
    "value out of range": (("--set", "training.learning_rate=0"), "training.learning_rate"),
    "no such configuration": (("none.toml",), "none.toml"),
    "no such data": (("--set", "data.path=nowhere"), "nowhere"),
    "too many workers": (("--set", "stages=[{at=0, workers=9}]"), "9 workers"),
    "nothing to resume": (("--resume", "nothing"), "nothing"),
    "unknown network": (("--set", "model.preset=digit-cnn"), "digits-cnn"),
    "less than a sample": (("--set", "run.evaluate_every=1e-300"), "run.evaluate_every"),
    "NUL in a path": (("--set", 'run.out="a\\u0000b"'), "run.out"),
    "network beyond all memory": (("--set", "model.width=10000"), "model.width"),
    "misspelled command": (("evalute", "run", "data"), "the nearest known is evaluate"),
    "option of another program": (("--bogus",), "unrecognized arguments: --bogus"),
    "option that a command needs": (("export", "run"), "export: the following arguments are required: --format"),
    "folder that cannot be made": (("--out", "/proc/nothing"), "/proc/nothing"),
}


@pytest.mark.parametrize("fault", BAD)
def test_bad_input_is_one_line_and_status_2(
    launch: Callable[..., Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    fault: str,
) -> None:
    """From one rank, without a traceback, on any number of ranks: on three, and in this process."""
    arguments, word = BAD[fault]
    ended = launch(3, *arguments, deadline=60)
    ours = [line for line in ended.err.splitlines() if line.startswith("mpitrain: ")]
    assert ended.status == 2 and len(ours) == 1 and word in ours[0] and "Traceback" not in ended.err
    with chdir(tmp_path):
        status, lines = refusals(arguments, capsys)
    assert status == 2 and len(lines) == 1 and word.rpartition(": ")[2] in lines[0]


@pytest.mark.parametrize("damage", ["missing", "truncated", "bit flipped"])
def test_a_damaged_shard_is_named(launch: Callable[..., Any], tmp_path: Path, damage: str) -> None:
    """Status 2 and the file's name."""
    path = shards(tmp_path / "data") / "train-00000-of-00001.h5"
    content = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    elif damage == "truncated":
        path.write_bytes(content[:-1000])
    else:
        content[len(content) // 2] ^= 4
        path.write_bytes(content)
    ended = launch(3, "--set", "data.path=data", deadline=60)
    lines = [line for line in ended.err.splitlines() if line.startswith("mpitrain: ")]
    assert ended.status == 2 and len(lines) == 1
    assert ("train" if damage == "missing" else path.name) in lines[0]


def test_bad_input_in_a_held_out_part_leaves_run_folders_as_they_were(
    launch: Callable[..., Any], tmp_path: Path
) -> None:
    """A new one is gone, so that the corrected command can be given; that of a run still resumes."""
    good, bad = shards(tmp_path / "good"), shards(tmp_path / "bad")
    next(bad.glob("test-*")).write_bytes(b"nothing")
    data = [("--set", f"data.path={folder.name}") for folder in (good, bad)]
    assert launch(2, *SHORT, *data[1]).status == 2 and not (tmp_path / "run").exists()
    assert launch(2, *SHORT, *data[0]).status == 0
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    more = ("--resume", "run", "--set", "training.epochs=3")
    assert launch(2, *more, *data[1]).status == 2
    assert before == {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert launch(2, *more).status == 0


@pytest.mark.parametrize("change", ["targets = corpus.targets[::-1]", "samples = 1000"])
def test_ranks_with_different_data_are_named(launch: Callable[..., Any], tmp_path: Path, change: str) -> None:
    """As where each node has a copy, and one is an older one: status 2, one line."""
    (tmp_path / "other.py").write_text(
        "import sys\nfrom mpitrain.api import setup\nfrom mpitrain.mpi import MPI\n"
        "from mpitrain.__main__ import main\n"
        "plain = setup._built\n"
        "def built(*arguments):\n"
        "    prepared = plain(*arguments)\n    corpus = prepared.corpus\n"
        f"    if MPI.COMM_WORLD.rank == 2:\n        corpus.{change}\n"
        "    return prepared\n"
        "setup._built = built\nsys.exit(main())\n"
    )
    ended = launch(4, "--out", "run", program=("other.py",))
    lines = [line for line in ended.err.splitlines() if line.startswith("mpitrain: ")]
    assert ended.status == 2 and len(lines) == 1 and "data.path: rank 2 has " in lines[0], ended.err
    assert not (tmp_path / "run").exists()


def test_a_run_goes_on_when_nobody_reads_its_output(tmp_path: Path) -> None:
    """As in `... | head -1`: status 0, and the run folder is whole."""
    command = [sys.executable, "-m", "mpitrain", "--set", "algorithm.name=msgd", *SHORT]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, cwd=tmp_path, stdout=pipe, stderr=pipe)
    assert process.stdout is not None and process.stdout.readline().startswith(b"mpitrain ")
    process.stdout.close()
    assert process.stderr is not None and process.stderr.read() == b"" and process.wait(60) == 0
    assert summary(tmp_path / "run")["exit_reason"] == "finished"


@pytest.mark.parametrize("name", ["sgd", "allreduce", "asgd"])
def test_a_diverging_training_ends_with_a_clear_line(launch: Callable[..., Any], tmp_path: Path, name: str) -> None:
    """Status 1, what to change, no rank left hanging, no traceback; the line is recorded."""
    vast = ("--set", f"algorithm.name={name}", "--set", "training.learning_rate=1e30", "--out", "run")
    ended = launch(3, *vast, deadline=60)
    said = [str(record["text"]) for record in records(tmp_path / "run") if record["event"] == "failed"]
    assert said and any(line in ended.err for line in said)
    assert ended.status == 1 and "learning_rate" in ended.err and "Traceback" not in ended.err
    if name == "asgd":
        assert re.search(r"from rank [12]|rank [12]: its gradient", ended.err)


def test_a_training_whose_loss_explodes_but_stays_finite(launch: Callable[..., Any], tmp_path: Path) -> None:
    """Status 1 and a line; the run folder is whole; a resume with nothing left to train says the same."""
    vast = ("--set", "algorithm.name=msgd", "--set", "training.learning_rate=1000", "--set", "training.epochs=1")
    for arguments in ((*vast, "--out", "run"), ("--resume", "run")):
        ended = launch(2, *arguments, deadline=60)
        assert ended.status == 1 and "Traceback" not in ended.err
        assert sum("diverged" in line and "learning_rate" in line for line in ended.err.splitlines()) == 1
        told = summary(tmp_path / "run")
        assert told["exit_reason"] == "diverged" and told["train_loss"] > 1e6 and told["samples"] == 1438
        assert told["train_loss"] == records(tmp_path / "run")[-1]["train_loss"]


def test_a_training_whose_last_update_exploded(simulated: Callable[..., Any], tmp_path: Path) -> None:
    """No loss of a minibatch tells, only that of the evaluation."""
    vast = ("algorithm.name=msgd", "training.learning_rate=1e30", "training.epochs=1", "training.minibatch=1438")
    ended = simulated(1, *(word for key in vast for word in ("--set", key)), "--out", "run")
    assert summary(tmp_path / "run")["test_loss"] is None
    assert "warning: the test loss is not finite; a smaller training.learning_rate" in ended.out


def test_a_training_whose_loss_exploded_and_came_back(simulated: Callable[..., Any], tmp_path: Path) -> None:
    """Diverged, although the last epochs look like others; a resume remembers it."""
    vast = ("algorithm.name=msgd", "training.learning_rate=1000", "training.epochs=1.5", "run.progress=none")
    assert simulated(1, *(word for key in vast for word in ("--set", key)), "--out", "run").status == 1
    small = ("training.learning_rate=1e-30", "training.epochs=4")
    ended = simulated(1, "--resume", "run", *(word for key in small for word in ("--set", key)))
    assert ended.status == 1 and summary(tmp_path / "run")["exit_reason"] == "diverged", ended.err


def test_a_training_that_ended_in_its_closing_evaluations_keeps_its_speed(
    simulated: Callable[..., Any], tmp_path: Path
) -> None:
    """The resume only evaluates: its samples a second are those of the training."""
    arguments = ("--set", "algorithm.name=msgd", "--set", "training.epochs=1")
    assert simulated(1, *arguments, "--out", "run").status == 0
    before = summary(tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    assert simulated(1, "--resume", "run").status == 0
    told = summary(tmp_path / "run")
    assert told["resumed_samples"] == before["samples"] == 1438
    assert told["samples_per_second"] == pytest.approx(before["samples_per_second"]) and told["samples_per_second"] > 0


@pytest.mark.parametrize(
    ("name", "ranks", "team"), [("allreduce", 3, 1), ("asgd", 3, 1), ("easgd", 5, 2), ("sparse-delta", 4, 2)]
)
def test_the_bytes_of_the_last_record_are_those_of_the_summary(
    simulated: Callable[..., Any], tmp_path: Path, name: str, ranks: int, team: int
) -> None:
    """Without those within teams, as in the closing table; earlier records estimate them."""
    keys = (f"algorithm.name={name}", "training.epochs=1", f"run.team={team}")
    assert simulated(ranks, *(word for key in keys for word in ("--set", key)), "--out", "run").status == 0
    told = summary(tmp_path / "run")
    both = told["bytes_sent"] + told["bytes_received"] - 2 * told.get("bytes_sent_within_teams", 0)
    last = [record for record in records(tmp_path / "run") if record["event"] == "train"][-1]
    assert last["bytes_exchanged"] == both > 0


def test_a_servers_messages_count(simulated: Callable[..., Any], tmp_path: Path) -> None:
    """The trace has each message; its last sum follows on the counts. Only the workers' were counted, half of all."""
    keys = ("algorithm.name=asgd", "training.epochs=1", "run.exchange=messages", "run.trace=true")
    assert simulated(3, *(word for key in keys for word in ("--set", key)), "--out", "run").status == 0
    events = json.loads((tmp_path / "run" / "trace.json").read_text())["traceEvents"]
    messages = [event["name"] for event in events if event["ph"] == "i" and event["name"] != "update"]
    assert summary(tmp_path / "run")["messages_sent"] == len(messages) - 3


@pytest.mark.parametrize("name", ["sgd", "allreduce", "block-momentum", "easgd-sync"])
def test_one_rank_sends_nothing(simulated: Callable[..., Any], tmp_path: Path, name: str) -> None:
    """Sums over a single rank counted as messages: 5.8 kB of `block-momentum` in an epoch."""
    keys = (f"algorithm.name={name}", "training.epochs=1")
    assert simulated(1, *(word for key in keys for word in ("--set", key)), "--out", "run").status == 0
    told = summary(tmp_path / "run")
    assert [told[key] for key in ("bytes_sent", "bytes_received", "messages_sent")] == [0, 0, 0]


@pytest.mark.parametrize(("rate", "warned"), [(1e-9, ["the test error of"]), (0.02, [])])
def test_a_training_that_ends_at_chance_is_said(
    simulated: Callable[..., Any], tmp_path: Path, rate: float, warned: list[str]
) -> None:
    """After the table, with status 0; and what to do next, before the folder."""
    ended = simulated(1, "--set", "algorithm.name=msgd", "--set", f"training.learning_rate={rate}", *SHORT)
    lines = ended.out.splitlines()
    found = [line for line in lines if line.startswith("warning: ")]
    assert ended.status == 0 and len(found) == len(warned), ended.out
    assert all(text in line for text, line in zip(warned, found, strict=True))
    assert [line.split()[3] for line in lines[-4:-1]] == ["evaluate", "report", "export"] and lines[-1] == "run"


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("--set", "lr=1"), "training.learning_rate"),
        (("--set", "training.batch_size=1"), "training.minibatch"),
        (("--set", "algorithm.adamw=1"), "algorithm.optimizer.name"),
        (("--epochs", "3"), "--set training.epochs=VALUE"),
        (("--lr=3",), "--set training.learning_rate=VALUE"),
    ],
)
def test_what_others_call_a_key(words: tuple[str, ...], meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, lines = refusals(words, capsys)
    assert status == 2 and lines[-1].endswith(f"; here it is {meant}")


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("evaluate run --checkpoint best shards", {"run_folder": "run", "data": "shards", "checkpoint": "best"}),
        ("report a --out page.html b", {"folders": "a b", "out": "page.html"}),
        ("calibrate c.toml --nodes 2 net.toml", {"cluster": "c.toml", "config": "net.toml"}),
        ("prepare text a --ending .py b out", {"source": "a b", "folder": "out", "ending": ".py"}),
        ("launch -n 2 --continue saved -- own.py --out there", {"config": "own.py", "words": "--out there"}),
    ],
)
def test_options_may_stand_between_other_arguments(line: str, found: dict[str, str]) -> None:
    """Until a `--`."""
    told = vars(parser(line.split()[0]).parse_args(line.split()))
    assert {name: " ".join(map(str, np.atleast_1d(told[name]))) for name in found} == found


def test_a_word_that_is_no_command_suggests_none_far_from_it(capsys: pytest.CaptureFixture[str]) -> None:
    status, lines = refusals(["resnet"], capsys)
    assert status == 2 and "; known: train, " in lines[-1]


def test_a_key_without_effect_and_a_lonely_rank_are_said(simulated: Callable[..., Any]) -> None:
    ended = simulated(1, "--set", "run.matmul=bf16", *SHORT)
    assert "warning: run.matmul = 'bf16': has no effect" in ended.out


@pytest.mark.parametrize(("key", "value"), [("model.width", "2"), ("data.crop", "6"), ("model.preset", "chan2014-dnn")])
def test_a_resume_with_another_network_names_the_key(launch: Callable[..., Any], key: str, value: str) -> None:
    assert launch(1, "--set", "training.epochs=1", "--out", "run").status == 0
    ended = launch(2, "--resume", "run", "--set", f"{key}={value}")
    assert ended.status == 2 and f"; changed since then: {key}\n" in ended.err, ended.err


def test_help_is_printed_once_on_any_number_of_ranks(launch: Callable[..., Any]) -> None:
    ended = launch(3, "train", "--help")
    assert ended.status == 0 and ended.out.count("usage: ") == 1


def test_data_that_teach_nothing_are_said(simulated: Callable[..., Any], tmp_path: Path) -> None:
    """No statistics to normalise by; a minibatch that the corpus does not fill; a single class; no held-out part."""
    arrays = {"images": np.zeros((20, 8, 8, 1), np.uint8), "targets": np.full(20, 1, np.int32)}
    write_shard(tmp_path / "data" / "train-00000-of-00001.h5", "images", arrays, {"classes": 3})
    settings = ("--set", "algorithm.name=msgd", "--set", "data.path=data", "--set", "training.minibatch=500")
    ended = simulated(1, *settings, *SHORT)
    assert ended.status == 0, ended.err
    said = [record["text"] for record in records(tmp_path / "run") if record["event"] == "warning"]
    words = [line.split()[0] for line in said]
    assert words == ["data.normalise", "training.minibatch", "data.path:", "data.path:"]
    assert all(f"warning: {line}" in ended.out for line in said)


def test_a_resume_that_changes_the_moving_rate_says_so(launch: Callable[..., Any], tmp_path: Path) -> None:
    """α = β/p of EASGD, with another p; not where α itself is given, nor with the same p."""
    said = "warning: the number of workers p is 1, was 2: α = β/p is 0.9, was 0.45"
    first = launch(3, "--set", "algorithm.name=easgd", "--set", "training.epochs=1", "--out", "run")
    assert first.status == 0 and "α = β/p" not in first.out, first.err
    assert said in launch(2, "--resume", "run", "--set", "training.epochs=1.5").out
    more = ("--set", "training.epochs=2", "--set", "algorithm.alpha=0.3")
    assert "α = β/p" not in launch(3, "--resume", "run", *more).out


def started(tmp_path: Path, ranks: int, *arguments: str) -> "subprocess.Popen[str]":
    """The program, once it trains."""
    command = [str(Path(sys.executable).with_name("mpirun")), "-n", str(ranks), sys.executable, "-m", "mpitrain", *LONG]
    process = subprocess.Popen(
        [*command, *arguments],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    log, end = tmp_path / "run" / "metrics.jsonl", time.monotonic() + 60
    while not (log.exists() and '"train"' in log.read_text()):
        if time.monotonic() > end or process.poll() is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            pytest.fail(f"does not train:\n{process.communicate()}")
        time.sleep(0.1)
    return process


def ranks_of(launcher: "subprocess.Popen[str]") -> list[int]:
    """The processes below mpirun and its helper."""
    found, parents = [], [launcher.pid]
    while parents:
        below = [path.read_text() for pid in parents for path in Path(f"/proc/{pid}/task").glob("*/children")]
        found, parents = parents, [int(pid) for pid in " ".join(below).split()]
    return found


def ended_within(process: "subprocess.Popen[str]", seconds: float) -> tuple[int, str]:
    """Exit status and standard error; fails when it takes longer."""
    try:
        _, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        pytest.fail(f"still running after {seconds} s")
    return process.returncode, err


@pytest.mark.parametrize(
    ("name", "number"), [("msgd", signal.SIGTERM), ("allreduce", signal.SIGINT), ("asgd", signal.SIGTERM)]
)
def test_a_signal_leaves_a_checkpoint(
    tmp_path: Path, launch: Callable[..., Any], name: str, number: signal.Signals
) -> None:
    """Not status 0; the summary says that it was stopped; the run can be resumed."""
    process = started(tmp_path, 3, "--set", f"algorithm.name={name}")
    process.send_signal(number)
    status, err = ended_within(process, 60)
    assert status != 0 and "Traceback" not in err
    assert summary(tmp_path / "run")["exit_reason"] == "stopped"
    trained = summary(tmp_path / "run")["samples"]
    assert (tmp_path / "run" / "checkpoints" / f"{trained:012d}" / "manifest.json").exists()
    more = trained / 1438 + 1
    assert launch(3, "--resume", "run", "--set", f"training.epochs={more}").status == 0


def test_a_crash_on_one_rank_ends_the_job_with_its_traceback(tmp_path: Path, launch: Callable[..., Any]) -> None:
    """Although the others wait for it."""
    (tmp_path / "crash.py").write_text(
        "import sys\nimport mpitrain.training.gradients as learner\n"
        "from mpitrain.mpi import MPI\nfrom mpitrain.__main__ import main\n"
        "plain = learner.Learner.gradient\n"
        "def gradient(self, theta, out, work, on_ready=None):\n"
        "    if MPI.COMM_WORLD.rank == 1 and work.epoch >= 1:\n        raise KeyError('lost')\n"
        "    return plain(self, theta, out, work, on_ready)\n"
        "learner.Learner.gradient = gradient\nsys.exit(main())\n"
    )
    ended = launch(3, *LONG, program=("crash.py",), deadline=60, cold=True)
    assert ended.status != 0 and "\nrank 1: KeyError: 'lost'\n" in ended.err
    assert {"event": "failed", "text": "KeyError: 'lost'", "silent": []} in records(tmp_path / "run")


def test_a_killed_rank_ends_the_job(tmp_path: Path) -> None:
    """SIGKILL to one rank: mpirun ends the others."""
    process = started(tmp_path, 3)
    os.kill(ranks_of(process)[-1], signal.SIGKILL)
    status, _ = ended_within(process, 60)
    assert status != 0


def test_the_configuration_is_printed_and_read_back(launch: Callable[..., Any], tmp_path: Path) -> None:
    """--print-config prints once, and what it prints is a configuration."""
    printed = launch(3, "--set", "algorithm.preset=chan2014", "--print-config")
    (tmp_path / "printed.toml").write_text(printed.out)
    again = launch(1, "printed.toml", "--print-config")
    assert printed.status == again.status == 0 and printed.out == again.out and "[algorithm]" in printed.out


def test_info_says_what_was_found(launch: Callable[..., Any]) -> None:
    """Every rank's place, the MPI library, and how vectors would travel."""
    ended = launch(3, "info", cold=True)
    assert ended.status == 0
    assert all(word in ended.out for word in ("MPI", "rank 2", "local rank 2 of 3", "exchange"))
    assert "shared" in ended.out or "messages from GPU memory" in ended.out
