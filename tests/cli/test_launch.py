"""`mpitrain launch`: ranks that are started again when one is lost, and only then."""

import json
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mpitrain.__main__ import main
from mpitrain.api.launching import Relay, nodes_of, on_nodes
from mpitrain.checkpoint.files import STATE, write_manifest
from mpitrain.cli.launch import UNBLOCKED

#: A launcher that notes each start, and then does what a test wants: $1 is the number of ranks. `finish` is the end of
#: a training, which its ranks record.
NOTED = """#!/bin/sh
echo "$@" >> starts
finish() { mkdir -p run; echo '{"event": "end"}' >> run/metrics.jsonl; exit "${1:-0}"; }
"""


@pytest.fixture
def starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Launch two ranks with a shell script's lines for a launcher; the command line of each start."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mpitrain.cli.launch.PAUSE", 0.0)

    def launched(lines: str, *words: str, status: int) -> list[str]:
        Path("launcher").write_text(NOTED + lines)
        given = () if {"--resume", "--continue"} & set(words) else ("--out", "run")
        assert main(["launch", "-n", "2", "--launch", "sh launcher {ranks}", *given, *words]) == status
        return Path("starts").read_text().splitlines()

    return launched


@pytest.mark.parametrize("status", [0, 2, 75])
def test_an_end_of_its_own_is_the_end(starts: Callable[..., list[str]], status: int) -> None:
    """Finished, bad input, stopped by a signal. The words of the command line are the training's."""
    (line,) = starts(f"finish {status}", "net.toml", "--set", "a.b=1", "--set", "c=2", status=status)
    assert line == f"2 {sys.executable} -m mpitrain train net.toml --set a.b=1 --set c=2 --out run"


def test_a_launcher_that_succeeds_without_the_training_has_lost_it(starts: Callable[..., list[str]]) -> None:
    """Open MPI's with ULFM ends with status 0 where all ranks died that had trained. An end that an earlier start has
    recorded is not this one's."""
    Path("run").mkdir()
    Path("run/metrics.jsonl").write_text('{"event": "end"}\n')
    assert len(starts("exit 0", "--resume", "run", status=1)) == 3
    assert [record["text"].split(";")[0] for record in records("restart")] == ["a rank was lost (exit status 0)"] * 2


def test_an_end_is_seen_where_a_start_began_anew(starts: Callable[..., list[str]]) -> None:
    """Before the first checkpoint it leaves the records of the restarts alone, which are fewer than there were."""
    lost = 'mkdir run; yes \'{"event": "train"}\' | head -100 > run/metrics.jsonl; exit 137'
    lines = f'[ -e run ] || {{ {lost}; }}; echo \'{{"event": "start"}}\' > run/metrics.jsonl; sleep 0.5; finish'
    assert len(starts(lines, status=0)) == 2


def test_configurations_that_are_only_printed_are_printed_once(starts: Callable[..., list[str]]) -> None:
    """They record no end."""
    assert len(starts("exit 0", "--print-config", status=0)) == 1


def test_a_run_folder_is_named_as_without_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In run.out, by the time and the algorithm; two launches of one second have two. An empty one does not stay."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mpitrain.config.tables.datetime", SimpleNamespace(now=lambda: datetime(2026, 11, 27, 9, 5, 1)))
    Path("launcher").write_text(NOTED + 'for folder; do :; done; [ -e results ] && touch "$folder/x"; exit 2')
    Path("net.toml").write_text('run.out = "a"\nalgorithm.name = "easgd"')
    words = ["launch", "-n", "2", "--launch", "sh launcher {ranks}", "net.toml"]
    keys = ["--set", "run.out=results", "--set", "algorithm.name=allreduce"]
    assert main(words) == main([*words, *keys]) == main([*words, *keys]) == 2
    told = [line.split()[-2:] for line in Path("starts").read_text().splitlines()]
    there = [f"results/20261127-090501-allreduce{number}" for number in ("", "-2")]
    assert told == [["--continue", folder] for folder in ("a/20261127-090501-easgd", *there)]
    assert sorted(map(str, Path().glob("*/*-*"))) == there
    Path("mine").mkdir()
    Path("results").rename("former")
    assert main([*words, "--continue", "mine"]) == 2 and Path("mine").is_dir()


def test_a_run_that_diverged_is_not_started_again(starts: Callable[..., list[str]]) -> None:
    """Nor one that ended in another way that its summary tells."""
    assert len(starts('mkdir run; echo \'{"exit_reason": "diverged"}\' > run/summary.json; exit 1', status=1)) == 1


def test_a_rank_that_is_lost_after_the_end_changes_nothing(starts: Callable[..., list[str]]) -> None:
    """The training has finished, whatever the launcher says."""
    assert len(starts('mkdir run; echo \'{"exit_reason": "finished"}\' > run/summary.json; exit 9', status=0)) == 1


STOPPED = 'mkdir run; echo \'{"exit_reason": "stopped"}\' > run/summary.json; '


@pytest.mark.parametrize(("lines", "end"), [("", "exit 9"), (STOPPED, "exit 9"), (STOPPED, "finish")])
def test_a_rank_that_is_lost_at_a_stop_does_not_keep_the_job_from_going_on(
    starts: Callable[..., list[str]], lines: str, end: str
) -> None:
    """Before or after the training has ended: with the status on which a job goes back into the queue. Open MPI's
    launcher, whose daemons of other nodes Slurm terminates, too, ends with 0."""
    assert len(starts(f"trap '' USR1; {lines}kill -TERM $PPID; sleep 0.5; {end}", status=75)) == 1


@pytest.mark.parametrize("there", [False, True])
def test_a_run_whose_folder_was_moved_does_not_begin_anew_under_its_name(
    starts: Callable[..., list[str]], there: bool
) -> None:
    """Its ranks end with a checkpoint where it is now. `there`: it is resumed, and has a summary."""
    if there:
        Path("run").mkdir()
        Path("run/summary.json").write_text('{"exit_reason": "stopped"}')
    moved = 'mkdir -p run; echo \'{"event": "start"}\' >> run/metrics.jsonl; sleep 2; mv run moved; exit 1'
    assert len(starts(moved, "--continue", "run", status=1)) == 1
    assert not Path("run").exists()


def test_an_older_summary_says_nothing(starts: Callable[..., list[str]]) -> None:
    """That of a run which was stopped, and has been taken up again, does not keep a lost rank from being noticed."""
    Path("run").mkdir()
    Path("run/summary.json").touch()
    first, *others = starts("exit 137", "--resume", "run", status=1)
    assert first.endswith("train --resume run") and len(others) == 2


def test_starts_without_progress_come_to_an_end(
    starts: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Three, of which the later ones go on in the run folder."""
    lines = starts("exit 137", status=1)
    assert [line.split()[-2:] for line in lines] == [["--out", "run"], ["--continue", "run"], ["--continue", "run"]]
    told = capsys.readouterr().err.splitlines()
    assert (
        told[0] == "mpitrain: a rank was lost (exit status 137); the training begins anew: there is no checkpoint yet"
    )
    why = "3 starts in a row left no new checkpoint; the last one ended with 137; see what they said"
    assert told[-1] == f"mpitrain: {why}" and len(told) == 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-n", "0"), "-n: at least 1 rank, not 0"),
        (("-n", "2", "--launch", "mpirun"), "{ranks}"),
        (("-n", "2", "--launch", "'mpirun -n {ranks}"), "--launch 'mpirun -n {ranks}: No closing quotation"),
    ],
)
def test_wrong_words(words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is started."""
    assert main(["launch", *words]) == 2 and said in capsys.readouterr().err


def records(event: str) -> list[dict[str, object]]:
    """What metrics.jsonl has of this kind."""
    lines = map(json.loads, Path("run/metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["event"] == event]


def test_each_restart_is_recorded(starts: Callable[..., list[str]]) -> None:
    """Where the launcher names the rank that died, that one, and how far it was; in a run folder that was not there."""
    died = "prterun noticed that process rank 3 with PID 7 on node a exited on\nsignal 9 (Killed)."
    assert len(starts(f'[ -e run ] && finish; echo "{died}" >&2; exit 137', status=0)) == 2
    (record,) = records("restart")
    assert record["lost_ranks"] == [[3, 0]] and record["samples"] == record["repeated"] == 0
    assert record["text"] == "rank 3 was lost (exit status 137); the training begins anew: there is no checkpoint yet"


def test_what_an_earlier_start_had_trained_is_not_counted_twice(starts: Callable[..., list[str]]) -> None:
    """The second of three starts trains nothing."""
    train = '{"event": "train", "samples": 700}'
    assert len(starts(f"[ -e run ] || {{ mkdir run; echo '{train}' > run/metrics.jsonl; }}; exit 9", status=1)) == 3
    assert [record["repeated"] for record in records("restart")] == [700, 0]


def test_the_samples_of_an_evaluation_count_as_trained(starts: Callable[..., list[str]]) -> None:
    """Its record may be newer than the last of the training, or older; an earlier start's does not count."""
    events = (("train", 900), ("start", 0), ("evaluate", 700), ("train", 650))
    lines = "\n".join(f'{{"event": "{event}", "samples": {samples}}}' for event, samples in events)
    starts(f"[ -e run ] && finish; mkdir run; echo '{lines}' > run/metrics.jsonl; exit 9", status=0)
    assert [record["repeated"] for record in records("restart")] == [700]


def test_a_checkpoint_that_ranks_write_after_their_launcher_has_ended_is_what_the_next_start_resumes_from(
    starts: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Open MPI's launcher ends at once where a node is lost, before the ranks of the others."""
    checkpoint = Path("run/checkpoints/000000000700")

    def write(relay: Relay, seconds: float) -> None:
        checkpoint.mkdir(parents=True, exist_ok=True)
        (checkpoint / STATE).touch()
        write_manifest(checkpoint)

    monkeypatch.setattr("mpitrain.cli.launch.Relay.pause", write)
    starts("[ -e run ] && finish; exit 9", status=0)
    assert [record["samples"] for record in records("restart")] == [700]


SILENT = """
mkdir -p run
[ -e run/metrics.jsonl ] && finish
echo '{"event": "train", "samples": 700}' > run/metrics.jsonl
echo '{"event": "failed", "text": "waited", "silent": [1, 2]}' >> run/metrics.jsonl
sleep 1000
"""


def test_a_launcher_that_does_not_end_after_its_ranks_is_ended(
    starts: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that waits for a node which no longer answers: the ranks have said that the training failed."""
    monkeypatch.setattr("mpitrain.api.launching.ENDING", 0.1)
    assert len(starts(SILENT, status=0)) == 2
    (record,) = records("restart")
    assert record["lost_ranks"] == [[1, 700], [2, 700]] and record["repeated"] == 700


#: In place of MPICH's mpirun, `mpirun -hosts LIST -n N COMMAND`: node b answers until it is gone, node c only late,
#: node d when it is asked again. It fails unless it is told that its job steps may overlap with others.
MPIRUN = """#!/bin/sh
[ "$1" = --version ] && exit
[ -n "$SLURM_OVERLAP" ] || exit 1
hosts=$2 ranks=$4
shift 4
case $hosts,$1 in
b:*,true) [ ! -e gone ] ;;
c:*,true) sleep 1000 ;;
d:*,true) [ -e asked ] || { touch asked; exit 1; } ;;
*,true) ;;
*) echo "$hosts" "$ranks" >> starts; touch gone; [ "$(wc -l < starts)" != 1 ] || exit 1
   echo '{"event": "end"}' >> run/metrics.jsonl ;;
esac
"""


@pytest.fixture
def hosts(starts: object) -> Callable[..., list[str]]:
    """Launch four ranks on hosts, one after another of which is gone; hosts and ranks of each start."""

    def launched(status: int, hosts: str, *words: str) -> list[str]:
        Path("mpirun").write_text(MPIRUN)
        Path("mpirun").chmod(0o755)
        launch = ["launch", "-n", "4", "--launch", "./mpirun -n {ranks}", "--hosts", hosts, "--out", "run"]
        assert main([*launch, *words]) == status
        return Path("starts").read_text().splitlines()

    return launched


def test_a_node_that_no_longer_answers_is_left_out(
    hosts: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Its ranks are missing in the next start."""
    assert hosts(0, "a:2,b:2") == ["a:2,b:2 4", "a:2 2"]
    assert "no answer from b: left out; 2 of 4 ranks can be started" in capsys.readouterr().err


def test_a_node_that_answers_too_late_is_left_out(
    hosts: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the first start on."""
    monkeypatch.setattr("mpitrain.api.launching.ANSWER", 1.0)
    assert hosts(0, "a:3,c:1") == ["a:3 3", "a:3 3"]


def test_a_node_that_answers_when_it_is_asked_again_is_there(hosts: Callable[..., list[str]]) -> None:
    assert hosts(0, "a:2,d:2") == ["a:2,d:2 4", "a:2,d:2 4"]


def test_too_few_ranks_end_the_launch(hosts: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    """With status 75, on which a job goes back into the queue."""
    assert hosts(75, "a:2,b:2", "--set", "run.least_ranks=3") == ["a:2,b:2 4"]
    told = "no answer from b: left out; 2 of 4 ranks can be started; run.least_ranks is 3; the next launch goes on"
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("given", ["a:0", "a:x", ":3"])
def test_hosts_that_cannot_be_read(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "-n", "1", "--launch", "sh {ranks}", "--hosts", given]) == 2
    assert f"--hosts {given}: expected a:4,b:4" in capsys.readouterr().err


def test_hosts_with_too_few_places(capsys: pytest.CaptureFixture[str]) -> None:
    """Open MPI refuses them at each start, MPICH puts more ranks on a host than it has places."""
    assert main(["launch", "-n", "4", "--launch", "sh {ranks}", "--hosts", "a:2,b"]) == 2
    assert capsys.readouterr().err == "mpitrain: --hosts a:2,b: room for 3 ranks, not for 4\n"


def test_the_nodes_of_a_slurm_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several nodes; what is known of one is nothing that could be left out."""
    scontrol = tmp_path / "scontrol"
    scontrol.write_text("#!/bin/sh\n[ $3 = n[1-4] ] && echo n1 n2 n3 n4 || echo n1\n")
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-4]")
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", "2(x3),1")
    assert nodes_of("") == {"n1": 2, "n2": 2, "n3": 2, "n4": 1}
    assert on_nodes("srun -n {ranks}", {"n1": 2, "n4": 1}) == "srun --nodes=2 --nodelist=n1,n4 -n '{ranks}'"
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n1")
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", "3")
    assert nodes_of("") == {}


PROGRAM = """
import sys
from pathlib import Path

saved = Path("saved", "manifest.json")
saved.parent.mkdir(exist_ok=True)
count = int(saved.read_text()) + 1 if saved.exists() else 1
if count < 6:
    saved.write_text(str(count))
    sys.exit(137)
"""


def test_a_program_of_ones_own_goes_on_from_what_it_has_saved(starts: Callable[..., list[str]]) -> None:
    """As long as each start saves; more than three do."""
    Path("train.py").write_text(PROGRAM)
    lines = starts('shift; exec "$@"', "--continue", "saved", "--", "train.py", "--lr", "3", status=0)
    assert lines == [f"2 {sys.executable} -c {UNBLOCKED} train.py --lr 3"] * 6


def test_a_program_of_ones_own_can_be_terminated(starts: Callable[..., list[str]]) -> None:
    """And can terminate its own processes, as loaders do; the launcher is not to be."""
    ends = "import subprocess; p = subprocess.Popen(['sleep', '60']); p.terminate(); p.wait(10)"
    Path("train.py").write_text(ends)
    assert len(starts('shift; exec "$@"', "--continue", "saved", "--", "train.py", status=0)) == 1


def test_a_program_of_ones_own_that_a_signal_ended_is_to_go_on(starts: Callable[..., list[str]]) -> None:
    """With the status on which a job goes back into the queue."""
    Path("train.py").write_text("import os, time; os.kill(os.getppid(), 15); time.sleep(60)")
    assert len(starts('shift; exec "$@"', "--continue", "saved", "--", "train.py", status=75)) == 1


@pytest.mark.parametrize("words", [("train.py",), ("--continue", "a", "--set", "b=1", "--", "train.py"), ("a", "b")])
def test_words_that_are_the_other_kinds(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """A program's own words belong to no configuration, and keys not to a program."""
    assert main(["launch", "-n", "1", *words]) == 2
    assert "a program of your own is started as launch -n 4 --continue DIR -- PROGRAM.py" in capsys.readouterr().err


def test_it_is_said_once_that_it_wants_no_mpirun(launch: Callable[..., Any]) -> None:
    """On any number of ranks."""
    ended = launch(2, "launch", "-n", "2")
    assert ended.status == 2 and ended.err.count("launch starts the ranks itself: start it without mpirun") == 1
